//! Planted bugs. The simulator switches one on for its thread and has to catch it; without the feature `mutants` every
//! question is a constant `false` and nothing is left of them in the build.

/// A planted bug, named by what the broker then does wrong. The numbers are those of the list of real failures in `docs/FAILURES.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Durability is announced when the cycle's writes have completed, before its flush (1, 3, 6).
    AckBeforeFlush,
    /// Recovery serves what it has read without flushing it first (2, 9).
    RecoveryWithoutFlush,
    /// A repeated batch is answered at once, although the original is not flushed yet (7, 53).
    DuplicateAnsweredEarly,
    /// A freed data file is handed out again before a flushed frame has marked its `free` (36, 37).
    FileHandedOutBeforeFreeMarked,
    /// A flush that failed counts as one that succeeded (40).
    FailedFlushBelieved,
    /// A flush is submitted while writes that it is to cover are under way (44).
    FlushBeforeWritesEnd,
    /// A write that stopped short counts as complete (44).
    ShortWriteBelieved,
    /// A write that failed counts as complete, and the shard goes on appending (41).
    FailedWriteBelieved,
    /// Recovery keeps a frame of the last cycles without looking at the runs that it names (37, 38).
    TornRunKept,
    /// Recovery takes any frame with the next number for the successor, whatever it was written after (16, 17).
    HashIgnored,
    /// Replay passes over moves of a log's start: what was trimmed comes back (57).
    StartForgotten,
    /// A checkpoint is written before the frames that it covers are flushed (45).
    CheckpointBeforeItsFrames,
    /// Each checkpoint overwrites the one before it (22, 39).
    CheckpointOverNewest,
    /// A checkpoint frees frames whose extents lie nowhere else (43).
    FramesFreedAlive,
    /// A checkpoint leaves out what is remembered of producers (50).
    ProducersForgotten,
    /// A repeated batch is answered with the end of the log, not with its own place (50).
    DuplicateAtNewOffset,
    /// A batch whose sequence does not follow is taken (48, 55).
    GapAccepted,
    /// A trim is told before its flush (7).
    TrimToldEarly,
    /// Readers are given what is not flushed yet (13).
    ReadsAboveFlush,
    /// A data file that needs a flush of its own does not get it (40).
    OwnFlushForgotten,
    /// Records leave memory before the run that holds them is flushed (43).
    TailEvictedEarly,
    /// A stored offset is acknowledged before its flush (10).
    OffsetStoredEarly,
    /// A topic is created for its client before its record is flushed (33, 34).
    TopicToldEarly,
    /// Producer ids are given out before their lease is flushed, and again after a crash (48).
    ProducerIdReused,
}

impl Mutant {
    /// Every planted bug.
    pub const ALL: [Mutant; 24] = [
        Mutant::AckBeforeFlush,
        Mutant::RecoveryWithoutFlush,
        Mutant::DuplicateAnsweredEarly,
        Mutant::FileHandedOutBeforeFreeMarked,
        Mutant::FailedFlushBelieved,
        Mutant::FlushBeforeWritesEnd,
        Mutant::ShortWriteBelieved,
        Mutant::FailedWriteBelieved,
        Mutant::TornRunKept,
        Mutant::HashIgnored,
        Mutant::StartForgotten,
        Mutant::CheckpointBeforeItsFrames,
        Mutant::CheckpointOverNewest,
        Mutant::FramesFreedAlive,
        Mutant::ProducersForgotten,
        Mutant::DuplicateAtNewOffset,
        Mutant::GapAccepted,
        Mutant::TrimToldEarly,
        Mutant::ReadsAboveFlush,
        Mutant::OwnFlushForgotten,
        Mutant::TailEvictedEarly,
        Mutant::OffsetStoredEarly,
        Mutant::TopicToldEarly,
        Mutant::ProducerIdReused,
    ];

    /// The name on the simulator's command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::AckBeforeFlush => "ack-before-flush",
            Mutant::RecoveryWithoutFlush => "recovery-without-flush",
            Mutant::DuplicateAnsweredEarly => "duplicate-answered-early",
            Mutant::FileHandedOutBeforeFreeMarked => "file-handed-out-before-free-marked",
            Mutant::FailedFlushBelieved => "failed-flush-believed",
            Mutant::FlushBeforeWritesEnd => "flush-before-writes-end",
            Mutant::ShortWriteBelieved => "short-write-believed",
            Mutant::FailedWriteBelieved => "failed-write-believed",
            Mutant::TornRunKept => "torn-run-kept",
            Mutant::HashIgnored => "hash-ignored",
            Mutant::StartForgotten => "start-forgotten",
            Mutant::CheckpointBeforeItsFrames => "checkpoint-before-its-frames",
            Mutant::CheckpointOverNewest => "checkpoint-over-newest",
            Mutant::FramesFreedAlive => "frames-freed-alive",
            Mutant::ProducersForgotten => "producers-forgotten",
            Mutant::DuplicateAtNewOffset => "duplicate-at-new-offset",
            Mutant::GapAccepted => "gap-accepted",
            Mutant::TrimToldEarly => "trim-told-early",
            Mutant::ReadsAboveFlush => "reads-above-flush",
            Mutant::OwnFlushForgotten => "own-flush-forgotten",
            Mutant::TailEvictedEarly => "tail-evicted-early",
            Mutant::OffsetStoredEarly => "offset-stored-early",
            Mutant::TopicToldEarly => "topic-told-early",
            Mutant::ProducerIdReused => "producer-id-reused",
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
