//! Planted bugs. The simulator switches one on for its thread and has to catch it; without the feature `mutants` every
//! question is a constant `false` and nothing is left of them in the build.

/// A planted bug, named by what the broker then does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Durability is announced when the cycle's writes have completed, before its flush.
    AckBeforeFlush,
    /// Recovery serves what it has read without flushing it first.
    RecoveryWithoutFlush,
    /// A repeated batch is answered at once, although the original is not flushed yet.
    DuplicateAnsweredEarly,
    /// A freed data file is handed out again before a flushed frame has marked its `free`.
    FileHandedOutBeforeFreeMarked,
}

impl Mutant {
    /// Every planted bug.
    pub const ALL: [Mutant; 4] = [
        Mutant::AckBeforeFlush,
        Mutant::RecoveryWithoutFlush,
        Mutant::DuplicateAnsweredEarly,
        Mutant::FileHandedOutBeforeFreeMarked,
    ];

    /// The name on the simulator's command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::AckBeforeFlush => "ack-before-flush",
            Mutant::RecoveryWithoutFlush => "recovery-without-flush",
            Mutant::DuplicateAnsweredEarly => "duplicate-answered-early",
            Mutant::FileHandedOutBeforeFreeMarked => "file-handed-out-before-free-marked",
        }
    }
}

#[cfg(feature = "mutants")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether `mutant` is switched on for this thread.
#[cfg(feature = "mutants")]
pub fn on(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// Whether `mutant` is switched on: never, in a build without the feature.
#[cfg(not(feature = "mutants"))]
pub const fn on(_mutant: Mutant) -> bool {
    false
}

/// Switches one planted bug on for this thread, or all off.
#[cfg(feature = "mutants")]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}
