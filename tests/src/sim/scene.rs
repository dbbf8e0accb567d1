//! What the simulated clients of a run share.

use std::collections::BTreeMap;

use super::claims::Claims;

/// The clients' common knowledge and orders.
#[derive(Debug)]
pub struct Scene {
    /// What they know.
    pub claims: Claims,
    /// What is wanted of them now.
    pub wanted: Wanted,
    /// Shards of the broker that runs now.
    pub shard_count: u16,
    /// Whether faults of the drive explain errors that are ours to raise.
    pub faults_injected: bool,
    /// Whether bits flip on the way to the broker, so that it refuses what was sent well.
    pub bits_flip: bool,
    /// Whether the broker has said that outcomes are unknown: it does no more until it is restarted.
    pub is_halted: bool,
    /// Batches that a producer still waits for, by its number.
    pub unacknowledged: BTreeMap<u64, usize>,
    /// Whether a reader has read everything since [`Wanted::Everything`] was said, by its number.
    pub complete: BTreeMap<u64, bool>,
    /// Bytes of a batch, at most.
    pub batch_bytes_max: u64,
}

impl Scene {
    /// The time until a client looks again whose usual time is `usual_ns`.
    pub fn pause_ns(&self, usual_ns: u64) -> u64 {
        if self.wanted == Wanted::Rest { 100 * usual_ns } else { usual_ns }
    }
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Work.
    Work,
    /// Send nothing new, and be slow.
    Rest,
    /// Send nothing new, only what is not acknowledged.
    Drain,
    /// Read everything from the start.
    Everything,
}
