//! The logs of one shard: one journal, one flush a cycle, large data written once.
//!
//! `Logs` is a state machine under the shard's turn: `append` takes a place in the order, `pump` submits what has come
//! together, `on_event` learns what the drive did, and outcomes say what follows for those who wait. Before the first
//! turn `Logs::open` recovers over blocking disk access.
//!
//! Reading order: this file (what the shard sees), `state` (one log, live and in replay), `pending` (what waits), `cycle` (what
//! goes where), `pump` (when), `flight` (writes and flushes under way), [`journal`] (the ring), `checkpoint`, `recent` (the
//! tail in memory), `reading`; then [`recover`] (the decision table) over `scan`, and [`reshard`]; then the data files:
//! [`segment`], [`reader`].

pub mod answer;
mod checkpoint;
mod cycle;
mod file_table;
mod flight;
pub mod flush_rule;
mod handles;
mod index;
pub mod journal;
mod pending;
mod pool;
mod pump;
pub mod reader;
mod reading;
mod recent;
pub mod recover;
pub mod reshard;
mod retention;
mod run_scan;
mod scan;
pub mod segment;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use tidegate_logic::producer::{BatchIdentity, Verdict};
use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::ids::{
    FrameSequence, Incarnation, LeaderEpoch, Offset, ProducerId, ShardId, TopicPartition,
};
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Event, Fault, Now, Op};

pub use self::answer::{
    AppendRefused, Appended, CreateRefused, DurableToken, FindStart, Found, IncomingBatch, Outcome,
    ReadBatches, ReadRefused, ReadStart, Room, TrimRefused,
};
use self::checkpoint::Checkpoints;
use self::flight::Cycles;
use self::flush_rule::FlushRule;
use self::journal::Journal;
use self::pending::{Pending, Staging};
use self::pump::Quiet;
use self::reader::Reader;
use self::reading::ColdFind;
use self::recent::Memory;
use self::retention::Retention;
use self::segment::Segments;
use self::state::{Log, LogIndex};
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
    /// Producers of all logs.
    producers: usize,
    /// Batches remembered per producer in the topic that wants most.
    window_max: u16,
    staging: Staging,
    orders: VecDeque<Order>,
    carried_in_lap: u64,
    journal: Journal,
    cycles: Cycles,
    checkpoints: Checkpoints,
    memory: Memory,
    segments: Segments,
    reader: Reader,
    retention: Retention,
    next_ticket: u64,
    /// Searches that go on in memory if the data files have nothing.
    finds: BTreeMap<u64, ColdFind>,
    /// The logs of cold reads under way.
    reads: BTreeMap<u64, TopicPartition>,
    condition: Condition,
    /// Files that are still being opened.
    opening: u32,
    quiet: Quiet,
    outcomes: VecDeque<Outcome>,
    counts: Counts,
    identities: Vec<BatchIdentity>,
}

/// What a frame has to say about a log beside its records.
#[derive(Clone, Copy, Debug)]
enum Order {
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
    },
    /// A write or a flush has failed.
    Failed {
        fault: Fault,
        announced: bool,
    },
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
    checkpoints_too_large: u64,
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
        self.open_files(ops);
    }

    /// The epoch in which the node leads its logs.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(self.boot.incarnation.0 as i32)
    }

    /// The logs that exist, in order.
    pub fn logs_found(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        self.by_id.keys().copied()
    }

    /// Makes an empty log; one that exists keeps what it has and takes the options.
    ///
    /// # Errors
    /// If the shard has as many as it may have, or takes no writes.
    pub fn create(&mut self, log: TopicPartition, options: LogOptions) -> Result<(), CreateRefused> {
        if self.by_id.contains_key(&log) {
            self.set_options(log, options);
            return Ok(());
        }
        if !matches!(self.condition, Condition::Serving) {
            return Err(CreateRefused::ReadOnly);
        }
        let limit = self.limits.logs_max;
        if self.by_id.len() >= limit as usize && !log.topic.is_internal() {
            return Err(CreateRefused::TooMany { limit });
        }
        self.window_max = self.window_max.max(options.idempotence_window);
        self.insert(Log::new(log, options, &self.limits));
        Ok(())
    }

    /// Changes a log's options.
    pub fn set_options(&mut self, log: TopicPartition, options: LogOptions) {
        let limits = self.limits;
        self.window_max = self.window_max.max(options.idempotence_window);
        if let Some(log) = self.log_mut(log) {
            let known = log.producers.len();
            log.set_options(options, &limits);
            let forgotten = known - log.producers.len();
            self.producers -= forgotten;
        }
    }

    /// Ends a log with all that it holds; what is not answered yet never is.
    pub fn remove(&mut self, log: TopicPartition) {
        let Some(index) = self.by_id.remove(&log) else { return };
        // Its state is the journal's until a frame has said that it is gone.
        let gone = self.logs[index.0 as usize].as_deref_mut().expect("a named log exists");
        for pending in gone.pending.drain(..) {
            self.staging.release(&pending);
        }
        gone.pending_bytes = 0;
        gone.appended = gone.placed;
        self.orders.push_back(Order::Remove { log: index });
    }

    /// A frame says that a log is gone.
    fn forget(&mut self, index: LogIndex) -> TopicPartition {
        self.remove_age(index);
        let mut gone = self.logs[index.0 as usize].take().expect("a log that goes exists");
        self.small_bytes -= gone.small_bytes;
        self.small_count -= gone.small.len();
        self.producers -= gone.producers.len();
        gone.tail.drop_below(Offset(i64::MAX), &mut self.memory);
        gone.id
    }

    /// Gives the batches their place behind all others of the log.
    ///
    /// # Errors
    /// If they may not or cannot be appended; nothing was then.
    pub fn append(
        &mut self,
        now: Now,
        log: TopicPartition,
        batches: &[IncomingBatch],
    ) -> Result<Appended, AppendRefused> {
        let appended = self.append_checked(now, log, batches);
        self.counts.appends_refused += u64::from(appended.is_err());
        appended
    }

    fn append_checked(
        &mut self,
        now: Now,
        id: TopicPartition,
        batches: &[IncomingBatch],
    ) -> Result<Appended, AppendRefused> {
        assert!(!batches.is_empty(), "an append has batches");
        let index = *self.by_id.get(&id).ok_or(AppendRefused::UnknownLog)?;
        self.check_condition(index)?;
        self.identities.clear();
        self.identities.extend(batches.iter().map(identity_of));
        let log = self.log(index);
        // What is pending of a log becomes one extent, with one append time.
        let append_time_ms =
            if log.pending.is_empty() { log.append_time_ms.max(now.wall_ms) } else { log.append_time_ms };
        match log.producers.check(append_time_ms, &self.identities) {
            Verdict::Accept => {}
            Verdict::Duplicate { base, end, append_time_ms } => {
                self.counts.duplicates += 1;
                return Ok(Appended { base, end, append_time_ms, duplicate: true });
            }
            Verdict::Refused(refusal) => return Err(AppendRefused::Producer(refusal)),
        }
        let largest = batches.iter().map(|b| b.view.len()).max().unwrap_or(0);
        assert!(
            largest <= self.limits.batch_bytes_max,
            "a batch of {largest} bytes: the shard bounds batches"
        );
        let bytes = batches.iter().map(|b| b.view.len()).sum();
        self.check_room(id, bytes)?;
        self.check_producers(index)?;
        Ok(self.take(index, append_time_ms, batches))
    }

    /// Producers that a checkpoint has room for, as many batches of each as any topic wants remembered.
    fn producers_max(&self) -> usize {
        const PRODUCER_BYTES: usize = 40;
        const BATCH_BYTES: usize = 24;
        let each = PRODUCER_BYTES + BATCH_BYTES * usize::from(self.window_max);
        let share = self.limits.checkpoint_slot_bytes as usize * 2 / 5;
        (share / each).min(self.limits.producers_max as usize)
    }

    /// A shard at its cap takes no new producer, so that its state fits a checkpoint.
    fn check_producers(&self, index: LogIndex) -> Result<(), AppendRefused> {
        let producer = self.identities[0].producer;
        let is_new = producer != ProducerId::NONE && !self.log(index).producers.knows(producer);
        if is_new && self.producers >= self.producers_max() {
            return Err(AppendRefused::NoRoom { reason: Reason::Memory, wanted: 0, room: 0 });
        }
        Ok(())
    }

    fn check_condition(&self, index: LogIndex) -> Result<(), AppendRefused> {
        match &self.condition {
            Condition::Serving => Ok(()),
            Condition::Stopping => Err(AppendRefused::ReadOnly { cause: "the broker is stopping".into() }),
            Condition::ReadOnly { cause } => Err(AppendRefused::ReadOnly { cause: cause.clone() }),
            Condition::Failed { fault, .. } => {
                Err(AppendRefused::Unknown { from: self.log(index).durable, fault: fault.clone() })
            }
        }
    }

    /// The batches are accepted: they get their offsets and wait for the next cycle.
    fn take(&mut self, index: LogIndex, append_time_ms: i64, batches: &[IncomingBatch]) -> Appended {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a named log exists");
        let base = log.appended;
        if log.pending.is_empty() {
            self.dirty.push_back(index);
        }
        let known = log.producers.len();
        for (batch, identity) in batches.iter().zip(&self.identities) {
            let len = batch.view.len();
            log.pending.push(Pending {
                bytes: self.staging.keep(batch),
                len,
                base: log.appended,
                crc: batch.header.crc,
                max_timestamp_ms: batch.header.max_timestamp_ms,
                append_time_ms,
                identity: *identity,
            });
            log.pending_bytes += len;
            log.take(append_time_ms, *identity, log.appended);
        }
        self.producers = self.producers + log.producers.len() - known;
        Appended { base, end: log.appended, append_time_ms, duplicate: false }
    }

    /// Where a log stands.
    pub fn positions(&self, log: TopicPartition) -> Option<Positions> {
        self.find_log(log).map(Log::positions)
    }

    /// Proof of how far a log is flushed now; after a restart by the flush that ends recovery.
    pub fn durable(&self, log: TopicPartition) -> Option<DurableToken> {
        self.find_log(log).map(|log| DurableToken::of_flush(log.durable))
    }

    /// Bytes that a log holds, on disk and pending.
    pub fn bytes(&self, log: TopicPartition) -> u64 {
        let memory = self.find_log(log).map_or(0, |log| log.small_bytes + log.pending_bytes);
        self.segments.bytes(log) + memory as u64
    }

    /// Moves a log's start; done when [`Outcome::Trimmed`] comes.
    ///
    /// # Errors
    /// If `before` is not within the log's committed part, or the shard takes no writes.
    pub fn trim(&mut self, log: TopicPartition, before: Offset) -> Result<(), TrimRefused> {
        let index = *self.by_id.get(&log).ok_or(TrimRefused::UnknownLog)?;
        if !matches!(self.condition, Condition::Serving) {
            return Err(TrimRefused::Stopped);
        }
        let state = self.logs[index.0 as usize].as_deref_mut().expect("a named log exists");
        let (start, committed) = (state.start, state.durable);
        if before > committed || before.0 < 0 {
            return Err(TrimRefused::OutOfRange { start, committed });
        }
        if before <= start {
            self.outcomes.push_back(Outcome::Trimmed { log, start });
            return Ok(());
        }
        state.start = before;
        self.orders.push_back(Order::Trim { log: index, start: before });
        Ok(())
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

    /// What has happened for those who wait, in order.
    pub fn drain_outcomes(&mut self, into: &mut Vec<Outcome>) {
        into.extend(self.outcomes.drain(..));
    }

    /// Writes, flushes and checkpoints what there is, and takes no more appends.
    pub fn stop(&mut self, _now: Now, _ops: &mut Vec<Op>) {
        if matches!(self.condition, Condition::Serving) {
            // Files are made until nothing waits for them any more.
            self.condition = Condition::Stopping;
        } else if !matches!(self.condition, Condition::Stopping) {
            self.segments.stop();
        }
    }

    /// Whether nothing of what is pending can still be written.
    fn is_drained(&self) -> bool {
        (self.dirty.is_empty() && self.orders.is_empty()) || self.segments.full().is_some()
    }

    /// What has failed, once everyone whose records it concerns has been told.
    pub fn failed(&self) -> Option<&Fault> {
        match &self.condition {
            Condition::Failed { fault, announced: true } => Some(fault),
            Condition::Failed { .. }
            | Condition::Serving
            | Condition::Stopping
            | Condition::ReadOnly { .. } => None,
        }
    }

    /// Whether a stop has come to its end.
    pub fn stopped(&self) -> bool {
        let quiet = self.cycles.is_quiet()
            && !self.checkpoints.is_busy()
            && self.opening == 0
            && self.segments.is_idle()
            && self.reader.is_idle();
        match &self.condition {
            Condition::Serving => false,
            Condition::Stopping => {
                let covered = self.checkpoints.newest().sequence == self.journal.last_sequence()
                    || self.counts.checkpoints_too_large > 0;
                quiet && covered && self.is_drained()
            }
            Condition::ReadOnly { .. } | Condition::Failed { .. } => quiet,
        }
    }

    /// Counters and gauges by name.
    pub fn stats(&self) -> Vec<(&'static str, i64)> {
        let counts = self.counts;
        let mut stats = vec![
            ("cycles", counts.cycles as i64),
            ("flushes", counts.flushes as i64),
            ("runs", counts.runs as i64),
            ("bytes_journal", counts.bytes_journal as i64),
            ("bytes_data_files", counts.bytes_data_files as i64),
            ("appends_refused", counts.appends_refused as i64),
            ("duplicates", counts.duplicates as i64),
            ("cold_read_bytes", self.reader.bytes_read() as i64),
            ("recent_read_bytes", counts.recent_read_bytes as i64),
            ("checkpoints_too_large", counts.checkpoints_too_large as i64),
            ("tails_evicted", counts.tails_evicted as i64),
            ("checkpoints", self.checkpoints.count() as i64),
            ("ring_laps", self.journal.laps() as i64),
            ("ring_free_bytes", self.journal.free_bytes() as i64),
            ("log_memory_bytes", self.memory_used() as i64),
            ("small_extent_bytes", self.small_bytes as i64),
            ("small_extents", self.small_count as i64),
            ("logs", self.by_id.len() as i64),
        ];
        stats.extend(self.segments.stats());
        stats.push(("retention_paused", i64::from(self.retention.is_paused())));
        stats
    }

    /// Asserts the invariants of everything; linear in the logs.
    pub fn check(&self) {
        self.journal.check();
        self.cycles.check();
        self.memory.check();
        self.segments.check();
        let mut aging = BTreeSet::new();
        let (mut small_bytes, mut small_count) = (0, 0);
        for (id, index) in &self.by_id {
            assert_eq!(self.log(*index).id, *id);
        }
        for (log, index) in
            self.logs.iter().zip(0..).filter_map(|(log, i)| Some((log.as_deref()?, LogIndex(i))))
        {
            log.check();
            aging.extend(log.oldest_frame().map(|frame| (frame, index)));
            small_bytes += log.small_bytes;
            small_count += log.small.len();
            let oldest_held = self.journal.oldest_held();
            assert!(
                log.oldest_frame().is_none_or(|f| oldest_held.is_some_and(|held| held <= f)),
                "a live frame is free"
            );
        }
        assert_eq!(self.aging, aging);
        assert_eq!((self.small_bytes, self.small_count), (small_bytes, small_count));
    }

    /// The logs of a shard whose state recovery has found; they are added one by one.
    fn assembled(
        boot: ShardBoot,
        journal: Journal,
        checkpoints: Checkpoints,
        memory: Memory,
        segments: Segments,
        condition: Condition,
    ) -> Logs {
        let reader = Reader::new(boot.limits.files, boot.identity.cluster);
        let last = journal.last_sequence();
        Logs {
            limits: boot.limits,
            boot,
            logs: Vec::new(),
            by_id: BTreeMap::new(),
            dirty: VecDeque::new(),
            aging: BTreeSet::new(),
            small_bytes: 0,
            small_count: 0,
            producers: 0,
            window_max: 5,
            staging: Staging::default(),
            orders: VecDeque::new(),
            carried_in_lap: 0,
            journal,
            cycles: Cycles::default(),
            checkpoints,
            memory,
            segments,
            reader,
            retention: Retention::new(None),
            next_ticket: 0,
            finds: BTreeMap::new(),
            reads: BTreeMap::new(),
            condition,
            opening: 0,
            quiet: Quiet::after_recovery(last),
            outcomes: VecDeque::new(),
            counts: Counts::default(),
            identities: Vec::new(),
        }
    }

    fn insert(&mut self, log: Log) {
        let index = LogIndex(self.logs.len() as u32);
        self.by_id.insert(log.id, index);
        self.small_bytes += log.small_bytes;
        self.small_count += log.small.len();
        self.producers += log.producers.len();
        self.logs.push(Some(Box::new(log)));
        self.note_age(index);
    }

    fn log(&self, index: LogIndex) -> &Log {
        self.logs[index.0 as usize].as_deref().expect("the log exists")
    }

    fn find_log(&self, log: TopicPartition) -> Option<&Log> {
        self.by_id.get(&log).map(|index| self.log(*index))
    }

    fn log_mut(&mut self, log: TopicPartition) -> Option<&mut Log> {
        let index = self.by_id.get(&log)?;
        self.logs[index.0 as usize].as_deref_mut()
    }

    /// The frame of a log's oldest small extent may have changed.
    fn note_age(&mut self, index: LogIndex) {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("the log exists");
        let oldest = log.oldest_frame();
        if log.aged != oldest {
            if let Some(frame) = log.aged {
                self.aging.remove(&(frame, index));
            }
            log.aged = oldest;
            if let Some(frame) = oldest {
                self.aging.insert((frame, index));
            }
        }
    }

    /// The log's oldest small extent is not to be looked at until [`Logs::note_age`].
    fn remove_age(&mut self, index: LogIndex) {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("the log exists");
        if let Some(frame) = log.aged.take() {
            self.aging.remove(&(frame, index));
        }
    }
}

/// What the header of a batch says about its producer.
fn identity_of(batch: &IncomingBatch) -> BatchIdentity {
    BatchIdentity {
        producer: batch.header.producer_id,
        epoch: batch.header.producer_epoch,
        base_sequence: batch.header.base_sequence,
        record_count: batch.header.records_count,
    }
}

#[cfg(test)]
mod tests;
