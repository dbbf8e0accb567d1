//! What has been tried on the simulated drive.

/// What has been tried on the drive, to tell whether a run was interesting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a count of what its name says")]
pub struct Coverage {
    pub reads: u64,
    pub read_errors: u64,
    pub writes: u64,
    pub write_errors: u64,
    pub short_writes: u64,
    pub flushes: u64,
    pub flush_errors: u64,
    pub creates: u64,
    pub full: u64,
    pub low_space: u64,
    /// Those because the drive had no byte left, not because the seed said so.
    pub full_at_byte: u64,
    /// Failed ops after which the file went on failing until the broker was started again.
    pub sticky: u64,
    /// Times that what lay on the drive was changed, by how.
    pub bits_flipped: u64,
    pub sectors_garbled: u64,
    pub sectors_zeroed: u64,
    /// The sector holds again what it held before: a write that was lost.
    pub sectors_stale: u64,
    /// The sector holds what belongs elsewhere: a write that went astray.
    pub sectors_misplaced: u64,
    pub removes: u64,
    pub kills: u64,
    pub power_losses: u64,
    /// Power losses in which at least one pending write was dropped.
    pub power_losses_that_drop: u64,
    pub sectors_old: u64,
    pub sectors_new: u64,
    pub sectors_torn: u64,
    pub sectors_zero: u64,
    pub sectors_garbage: u64,
}

impl Coverage {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Coverage) {
        self.reads += other.reads;
        self.read_errors += other.read_errors;
        self.writes += other.writes;
        self.write_errors += other.write_errors;
        self.short_writes += other.short_writes;
        self.flushes += other.flushes;
        self.flush_errors += other.flush_errors;
        self.creates += other.creates;
        self.full += other.full;
        self.low_space += other.low_space;
        self.full_at_byte += other.full_at_byte;
        self.sticky += other.sticky;
        self.bits_flipped += other.bits_flipped;
        self.sectors_garbled += other.sectors_garbled;
        self.sectors_zeroed += other.sectors_zeroed;
        self.sectors_stale += other.sectors_stale;
        self.sectors_misplaced += other.sectors_misplaced;
        self.removes += other.removes;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.power_losses_that_drop += other.power_losses_that_drop;
        self.sectors_old += other.sectors_old;
        self.sectors_new += other.sectors_new;
        self.sectors_torn += other.sectors_torn;
        self.sectors_zero += other.sectors_zero;
        self.sectors_garbage += other.sectors_garbage;
    }

    /// The kinds of faults, with how often each occurred.
    pub fn faults(&self) -> [(&'static str, u64); 15] {
        [
            ("reads that failed", self.read_errors),
            ("writes that failed", self.write_errors),
            ("writes that ended early", self.short_writes),
            ("flushes that failed", self.flush_errors),
            ("files that went on failing", self.sticky),
            ("files that could not be made", self.full),
            ("files for which no byte was left", self.full_at_byte),
            ("times that free space was low", self.low_space),
            ("kills", self.kills),
            ("power losses that drop a pending write", self.power_losses_that_drop),
            ("bits flipped at rest", self.bits_flipped),
            ("sectors garbled at rest", self.sectors_garbled),
            ("sectors zeroed at rest", self.sectors_zeroed),
            ("sectors that fell back to what they held", self.sectors_stale),
            ("sectors written in the wrong place", self.sectors_misplaced),
        ]
    }

    /// What became of sectors with pending writes when the power was lost.
    pub fn sectors(&self) -> [(&'static str, u64); 5] {
        [
            ("old sectors", self.sectors_old),
            ("new sectors", self.sectors_new),
            ("torn sectors", self.sectors_torn),
            ("sectors of zeros", self.sectors_zero),
            ("sectors of garbage", self.sectors_garbage),
        ]
    }
}
