//! The logs of one shard: one journal, one flush a cycle, large data written once.
//!
//! `Logs` is a state machine under the shard's turn: `append` takes a place in the order, `pump` submits what has come
//! together, `on_event` learns what the drive did, and outcomes say what follows for those who wait. Before the first
//! turn `Logs::open` recovers over blocking disk access.
//!
//! Reading order: this file (what there is), `append` (a batch gets its place), `cycle` (it is written and flushed) with
//! `flight` (its memory), [`reader`] (it is read again) with `recent` (the tail in memory). Then what serves these: `state` (one log,
//! live and in replay), [`journal`] (the ring), [`segment`] (the data files, with `pool` and `space`), `emptying`, `room`,
//! `quiet`, `scrub` (reads what nobody asks for), `checkpoint`, `catalog`, `ending`, [`notice`] (what an operator is told); at last
//! [`recover`] over [`decision`] (its tables) and `scan`, and [`reshard`].

pub mod answer;
mod append;
mod catalog;
mod checkpoint;
mod cycle;
pub mod decision;
mod emptying;
mod ending;
mod file_table;
mod flight;
pub mod flush_rule;
mod handles;
mod index;
pub mod journal;
pub mod notice;
mod pool;
mod quiet;
pub mod reader;
mod recent;
pub mod recover;
pub mod reshard;
mod retention;
mod room;
mod run_mark;
mod scan;
mod scrub;
pub mod segment;
mod space;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use tidegate_logic::producer::BatchIdentity;
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::ids::{FrameSequence, Incarnation, LeaderEpoch, Offset, ShardId, TopicPartition};
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Event, Fault, Now, Op, OpenHow};

pub use self::answer::{
    AppendRefused, Appended, CreateRefused, DurableToken, FindStart, Found, IncomingBatch, Outcome,
    ReadBatches, ReadRefused, ReadStart, Room, TrimRefused,
};
use self::append::Staging;
use self::checkpoint::Checkpoints;
use self::flight::Cycles;
use self::flush_rule::FlushRule;
use self::journal::{Journal, SLOTS, ring_file, ring_path, slot_file, slot_path};
use self::notice::Shortage;
use self::quiet::Quiet;
use self::reader::{ColdFind, ColdReader};
use self::recent::Memory;
use self::retention::Retention;
use self::scrub::Scrub;
use self::segment::Segments;
use self::state::{Log, LogIndex, LostFrames};
use crate::limits::Limits;

/// The upper 16 bits of the numbers of files and of the tags of ops, by owner.
const CYCLE: u64 = 0x0100;
const CHECKPOINT: u64 = 0x0101;
const DATA_FILES: u64 = 0x0102;
const DATA_FILE_TIMERS: u64 = 0x0105;

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
///
/// Invariants: `dirty` names the logs with pending batches; `aging` holds each log with small extents once, under the
/// frame of its oldest; `small_bytes` is the sum of all logs'.
#[derive(Debug)]
pub struct Logs {
    boot: ShardBoot,
    limits: Limits,
    logs: Vec<Option<Box<Log>>>,
    by_id: BTreeMap<TopicPartition, LogIndex>,
    dirty: VecDeque<LogIndex>,
    aging: BTreeSet<(FrameSequence, LogIndex)>,
    small_bytes: usize,
    /// Small extents of all logs.
    small_count: usize,
    /// Batches that the producers of all logs count as.
    batches_reserved: usize,
    /// Logs that are gone once a frame says so.
    removing: usize,
    staging: Staging,
    departures: VecDeque<Departure>,
    carried_in_lap: u64,
    journal: Journal,
    cycles: Cycles,
    checkpoints: Checkpoints,
    memory: Memory,
    segments: Segments,
    reader: ColdReader,
    scrub: Scrub,
    retention: Retention,
    next_ticket: u64,
    /// Searches that go on in memory if the data files have nothing.
    finds: BTreeMap<u64, ColdFind>,
    /// The logs of cold reads under way.
    reads: BTreeMap<u64, TopicPartition>,
    condition: Condition,
    /// Why produce is refused for want of room, if it is.
    shortage: Option<Shortage>,
    /// Files that are still being opened.
    opening: u32,
    quiet: Quiet,
    notes: Vec<String>,
    outcomes: VecDeque<Outcome>,
    counts: Counts,
    identities: Vec<BatchIdentity>,
}

/// What a frame has to say about a log beside its records.
#[derive(Clone, Copy, Debug)]
enum Departure {
    Trim { log: LogIndex, start: Offset },
    Remove { log: LogIndex },
}

/// What the shard may do.
#[derive(Clone, Debug)]
enum Condition {
    Serving,
    /// Everything is to be written, flushed and checkpointed.
    Stopping,
    /// Recovery has found damage to what was promised.
    ReadOnly {
        cause: String,
        /// If it was to frames behind the state: what is behind the end of every log is not known.
        lost: Option<LostFrames>,
    },
    /// A write or a flush has failed.
    Failed {
        fault: Fault,
        announced: bool,
    },
}

impl Condition {
    fn lost(&self) -> Option<&LostFrames> {
        match self {
            Condition::ReadOnly { lost, .. } => lost.as_ref(),
            Condition::Serving | Condition::Stopping | Condition::Failed { .. } => None,
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    cycles: u64,
    flushes: u64,
    runs: u64,
    bytes_journal: u64,
    bytes_data_files: u64,
    appends_refused: u64,
    duplicates: u64,
    recent_read_bytes: u64,
    tails_evicted: u64,
}

impl Logs {
    /// Recovers the shard's logs. Everything that is found is flushed when this returns.
    ///
    /// # Errors
    /// If the drive fails, or what lies there cannot be right.
    pub fn open(disk: &mut dyn Disk, boot: ShardBoot) -> Result<Logs, OpenError> {
        recover::open(disk, boot)
    }

    /// The first turn: opens the files.
    pub fn start(&mut self, _now: Now, ops: &mut Vec<Op>) {
        let (root, journal) = (&self.boot.root, self.journal.identity().journal);
        for index in 0..self.limits.ring_files {
            let path = ring_path(root, journal, index);
            ops.push(Op::Open { file: ring_file(index), path, how: OpenHow::Existing });
        }
        for slot in 0..SLOTS {
            let path = slot_path(root, journal, slot);
            ops.push(Op::Open { file: slot_file(slot), path, how: OpenHow::Existing });
        }
        self.opening = self.limits.ring_files + SLOTS;
    }

    /// What recovery has repaired or found damaged, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The epoch in which the node leads its logs.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(self.boot.incarnation.0 as i32)
    }

    /// Where a log stands.
    pub fn positions(&self, log: TopicPartition) -> Option<Positions> {
        self.find_log(log).map(Log::positions)
    }

    /// Why nothing can be said about what lies behind the end of a log, if that is so.
    pub fn lost_behind(&self, log: TopicPartition) -> Option<ReadRefused> {
        let lost = self.condition.lost()?;
        Some(lost.refused(self.find_log(log)?.durable))
    }

    /// Proof of how far a log is flushed now; after a restart by the flush that ends recovery.
    pub fn durable(&self, log: TopicPartition) -> Option<DurableToken> {
        self.find_log(log).map(|log| DurableToken::of_flush(log.durable))
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
            | Event::FreeSpace { tag, .. }
            | Event::Timer { tag } => tag.0 >> 56 == OWNER,
            _ => false,
        }
    }

    /// What has happened for those who wait, in order.
    pub fn drain_outcomes(&mut self, into: &mut Vec<Outcome>) {
        into.extend(self.outcomes.drain(..));
    }
}

#[cfg(test)]
mod tests;
