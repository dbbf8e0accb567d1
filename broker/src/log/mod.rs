//! The logs of one shard: one journal, one flush a cycle, large data written once.
//!
//! `Logs` is a state machine under the shard's turn: `append` takes a place in the order, `pump` submits what has come
//! together, `on_event` learns what the drive did, and `outcomes` says what follows for those who wait. Before the first
//! turn `Logs::open` recovers over blocking disk access.

pub mod flush_rule;

use tidegate_protocol::ids::{Offset, TopicPartition};
use tidegate_reactor::op::Fault;

/// Where a log stands.
///
/// Invariants: `start <= stable <= committed <= appended` and `durable <= written <= appended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The first readable record.
    pub start: Offset,
    /// One past the last record before the first open transaction; equals `committed` today.
    pub stable: Offset,
    /// One past the last record that readers may see: durable on every in-sync replica.
    pub committed: Offset,
    /// One past the last flushed record.
    pub durable: Offset,
    /// One past the last record whose write has completed.
    pub written: Offset,
    /// One past the last record that has a place.
    pub appended: Offset,
}

/// Proof that a flush has covered an offset. Only the flush completion makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableToken {
    upto: Offset,
}

/// What a topic decides about each of its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Milliseconds after which records may go, by append time; none: never.
    pub retention_ms: Option<u64>,
    /// Bytes above which the oldest may go; none: never.
    pub retention_bytes: Option<u64>,
    /// The largest data file.
    pub segment_bytes: u64,
    /// Whether the broker sets the timestamp of batches.
    pub append_time: bool,
    /// Batches remembered per producer.
    pub idempotence_window: u16,
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base: Offset,
    /// One past the last record.
    pub end: Offset,
    /// The append time given, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
    /// Whether this was a repetition of an append that the log already has; it joins the original's waiters.
    pub duplicate: bool,
}

/// What the drive has done for those who wait.
#[derive(Debug)]
pub enum Outcome {
    /// All below `upto` is written, not yet flushed.
    Written { log: TopicPartition, upto: Offset },
    /// All below `token.upto()` is flushed. `committed` has moved with it.
    Durable { log: TopicPartition, token: DurableToken },
    /// Everything appended at or above `from` has an unknown outcome; the log takes no more appends.
    Unknown { log: TopicPartition, from: Offset, fault: Fault },
    /// A trim is durable.
    Trimmed { log: TopicPartition, start: Offset },
    /// A cold read has ended.
    ReadDone { ticket: u64, result: Result<ReadBatches, ReadRefused> },
}
/// The exact shape of what follows belongs to the log's author; see the contract.
#[derive(Debug)]
pub struct ReadBatches;
/// Likewise.
#[derive(Debug)]
pub struct ReadRefused;
