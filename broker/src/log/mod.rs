//! The logs of one shard: one journal, one flush a cycle, large data written once.
//!
//! `Logs` is a state machine under the shard's turn: `append` takes a place in the order, `pump` submits what has come
//! together, `on_event` learns what the drive did, and outcomes say what follows for those who wait. Before the first
//! turn `Logs::open` recovers over blocking disk access.

pub mod answer;
mod file_table;
pub mod flush_rule;
mod handles;
mod index;
mod memory;
mod pool;
pub mod reader;
mod retention;
mod run_scan;
pub mod segment;

use std::path::PathBuf;

use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::ids::{Incarnation, LeaderEpoch, Offset, ShardId, TopicPartition};
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Event, Fault, Now, Op};

pub use self::answer::{
    AppendRefused, Appended, CreateRefused, DurableToken, FindStart, Found, IncomingBatch, Outcome,
    ReadBatches, ReadRefused, ReadStart, Room, TrimRefused,
};
use self::flush_rule::FlushRule;
use crate::limits::Limits;

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

impl Positions {
    /// Asserts the invariants.
    pub fn check(&self) {
        let Positions { start, stable, committed, durable, written, appended } = *self;
        assert!(start <= stable && stable <= committed && committed <= appended, "{self:?}");
        assert!(durable <= written && written <= appended, "{self:?}");
    }
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

/// Everything that the logs of a shard have to know before they can be opened.
#[derive(Clone, Debug)]
pub struct ShardBoot {
    /// The data directory.
    pub root: PathBuf,
    /// Cluster, node and journal.
    pub identity: JournalIdentity,
    /// Raised and flushed in the superblock before this.
    pub incarnation: Incarnation,
    /// The shard.
    pub shard: ShardId,
    /// Its bounds.
    pub limits: Limits,
    /// Whether one flush covers a cycle.
    pub flush_rule: FlushRule,
}

/// Why a shard's logs cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The drive failed.
    Fault(Fault),
    /// What lies there cannot be right, and going on might lose data.
    Refused {
        /// The file concerned.
        file: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Fault(fault) => fault.fmt(f),
            OpenError::Refused { file, cause } => write!(f, "{}: {cause}", file.display()),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> OpenError {
        OpenError::Fault(fault)
    }
}

/// All logs of one shard.
#[derive(Debug)]
pub struct Logs {
    boot: ShardBoot,
    memory: memory::MemoryLogs,
    stopping: bool,
}

impl Logs {
    /// Recovers the shard's logs. Everything that is found is flushed when this returns.
    pub fn open(_disk: &mut dyn Disk, boot: ShardBoot) -> Result<Logs, OpenError> {
        Ok(Logs { boot, memory: memory::MemoryLogs::default(), stopping: false })
    }

    /// The first turn: opens the files.
    pub fn start(&mut self, _now: Now, _ops: &mut Vec<Op>) {}

    /// The epoch in which the node leads its logs.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(self.boot.incarnation.0 as i32)
    }

    /// The logs that exist, in order.
    pub fn logs_found(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        std::iter::empty()
    }

    /// Makes an empty log; one that exists keeps what it has and takes the options.
    pub fn create(&mut self, log: TopicPartition, options: LogOptions) -> Result<(), CreateRefused> {
        self.memory.create(log, options);
        Ok(())
    }

    /// Changes a log's options.
    pub fn set_options(&mut self, log: TopicPartition, options: LogOptions) {
        self.memory.set_options(log, options);
    }

    /// Ends a log with all that it holds; what is not answered yet never is.
    pub fn remove(&mut self, log: TopicPartition) {
        self.memory.remove(log);
    }

    /// Gives the batches their place behind all others of the log.
    pub fn append(
        &mut self,
        now: Now,
        log: TopicPartition,
        batches: &[IncomingBatch],
    ) -> Result<Appended, AppendRefused> {
        self.memory.append(now, log, self.leader_epoch(), batches)
    }

    /// Where a log stands.
    pub fn positions(&self, log: TopicPartition) -> Option<Positions> {
        self.memory.positions(log)
    }

    /// Proof of what is flushed of a log by now, by a flush since the start or by recovery's.
    pub fn durable(&self, log: TopicPartition) -> Option<DurableToken> {
        self.memory.durable(log)
    }

    /// Bytes of batches that a log holds, on disk and pending.
    pub fn bytes(&self, log: TopicPartition) -> u64 {
        self.memory.bytes(log)
    }

    /// Reads whole batches: the first is the one that holds `from`, none begins at or above `upto`, and all but the first
    /// fit `bytes_max`.
    pub fn read(
        &mut self,
        log: TopicPartition,
        from: Offset,
        upto: Offset,
        bytes_max: usize,
        _ops: &mut Vec<Op>,
    ) -> ReadStart {
        self.memory.read(log, from, upto, bytes_max)
    }

    /// Finds an offset.
    pub fn find(&mut self, log: TopicPartition, query: OffsetQuery, _ops: &mut Vec<Op>) -> FindStart {
        self.memory.find(log, query)
    }

    /// Moves a log's start; done when [`Outcome::Trimmed`] comes.
    pub fn trim(&mut self, log: TopicPartition, before: Offset) -> Result<(), TrimRefused> {
        self.memory.trim(log, before)
    }

    /// Whether an event belongs to the logs.
    pub fn owns_event(event: &Event) -> bool {
        const OWNER: u64 = 1;
        match event {
            Event::Opened { file, .. } | Event::FileClosed { file } => file.0 >> 56 == OWNER,
            Event::Read { tag, .. }
            | Event::Written { tag, .. }
            | Event::Flushed { tag, .. }
            | Event::Removed { tag, .. }
            | Event::Timer { tag } => tag.0 >> 56 == OWNER,
            _ => false,
        }
    }

    /// Takes in what the drive did.
    pub fn on_event(&mut self, _now: Now, _event: Event, _ops: &mut Vec<Op>) {
        self.memory.flushed();
    }

    /// The end of a turn: submits what has come together.
    pub fn pump(&mut self, now: Now, ops: &mut Vec<Op>) {
        self.memory.pump(now, ops);
    }

    /// What has happened for those who wait, in order.
    pub fn drain_outcomes(&mut self, into: &mut Vec<Outcome>) {
        self.memory.drain_outcomes(into);
    }

    /// How much may be appended now.
    pub fn room(&self) -> Room {
        Room { bytes: 64 << 20, reason: tidegate_protocol::api::credit::Reason::None }
    }

    /// Writes, flushes and checkpoints what there is, and takes no more appends.
    pub fn stop(&mut self, _now: Now, _ops: &mut Vec<Op>) {
        self.stopping = true;
    }

    /// Whether a stop has come to its end.
    pub fn stopped(&self) -> bool {
        self.stopping && self.memory.is_idle()
    }

    /// Counters and gauges by name.
    pub fn stats(&self) -> Vec<(&'static str, i64)> {
        vec![("flushes", self.memory.flushes)]
    }

    /// Asserts the invariants of everything; linear in the logs.
    pub fn check(&self) {}
}
