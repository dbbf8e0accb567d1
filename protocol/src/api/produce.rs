//! `produce`: append batches to one partition. The data plane: a fixed head, then batches as they lie.

use crate::ids::{LeaderEpoch, Offset, TopicPartition};

/// When a produce is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Acks {
    /// Never, unless it is refused.
    None = 0,
    /// Once the leader has it on disk (in memory on a relaxed topic).
    Leader = 1,
    /// Once every in-sync replica has it on disk.
    All = 2,
}

/// What has been reached for the records of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing is known.
    None = 0,
    /// In the leader's memory.
    Memory = 1,
    /// Flushed on the leader's drive.
    Disk = 2,
    /// Flushed on a quorum of replicas.
    Quorum = 3,
}

/// The head of a produce; the body is one or more batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceRequest {
    /// Where to.
    pub partition: TopicPartition,
    /// The epoch that the client believes in, or unknown.
    pub leader_epoch: LeaderEpoch,
    /// When to answer.
    pub acks: Acks,
}

/// Where the records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceReply {
    /// The offset of the first record.
    pub base_offset: Offset,
    /// Records in this produce.
    pub record_count: u32,
    /// The broker's append time, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
    /// The level met.
    pub level: Level,
    /// The current leader epoch.
    pub leader_epoch: LeaderEpoch,
    /// Where the time went.
    pub stages: StageTimes,
}

/// Microseconds from receipt to the end of each stage; 0 where a stage was not waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Place in the log taken.
    pub appended_us: u32,
    /// Written to the drive.
    pub written_us: u32,
    /// Flushed.
    pub flushed_us: u32,
}
