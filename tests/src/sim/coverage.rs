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
    /// Bits that were flipped at rest.
    pub rotten: u64,
    pub removes: u64,
    pub kills: u64,
    pub power_losses: u64,
    /// Power losses in which at least one pending write was dropped.
    pub power_losses_that_drop: u64,
    pub sectors_old: u64,
    pub sectors_new: u64,
    pub sectors_torn: u64,
    pub sectors_zero: u64,
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
        self.rotten += other.rotten;
        self.removes += other.removes;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.power_losses_that_drop += other.power_losses_that_drop;
        self.sectors_old += other.sectors_old;
        self.sectors_new += other.sectors_new;
        self.sectors_torn += other.sectors_torn;
        self.sectors_zero += other.sectors_zero;
    }

    /// The kinds of faults, with how often each occurred.
    pub fn faults(&self) -> [(&'static str, u64); 12] {
        [
            ("reads that failed", self.read_errors),
            ("writes that failed", self.write_errors),
            ("writes that ended early", self.short_writes),
            ("flushes that failed", self.flush_errors),
            ("files that could not be made", self.full),
            ("files for which no byte was left", self.full_at_byte),
            ("times that free space was low", self.low_space),
            ("kills", self.kills),
            ("power losses that drop a pending write", self.power_losses_that_drop),
            ("torn sectors", self.sectors_torn),
            ("sectors of zeros", self.sectors_zero),
            ("bits flipped at rest", self.rotten),
        ]
    }
}
