//! Which logs there are, what they may have, and what can be said about all of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_protocol::ids::{Offset, TopicPartition};

use super::answer::CreateRefused;
use super::append::Staging;
use super::checkpoint::Checkpoints;
use super::flight::Cycles;
use super::journal::Journal;
use super::quiet::Quiet;
use super::reader::ColdReader;
use super::recent::Memory;
use super::retention::Retention;
use super::scrub::Scrub;
use super::segment::Segments;
use super::state::{Log, LogIndex};
use super::{Condition, Counts, Departure, LogOptions, Logs, ShardBoot};

impl Logs {
    /// The logs of a shard whose state recovery has found; they are added one by one.
    pub(super) fn assembled(
        boot: ShardBoot,
        journal: Journal,
        checkpoints: Checkpoints,
        memory: Memory,
        segments: Segments,
        condition: Condition,
    ) -> Logs {
        let reader = ColdReader::new(boot.limits.files, boot.identity.cluster);
        let last = journal.last_sequence();
        Logs {
            limits: boot.limits,
            scrub: Scrub::new(boot.limits.files),
            boot,
            logs: Vec::new(),
            by_id: BTreeMap::new(),
            dirty: VecDeque::new(),
            aging: BTreeSet::new(),
            small_bytes: 0,
            small_count: 0,
            batches_reserved: 0,
            removing: 0,
            staging: Staging::default(),
            departures: VecDeque::new(),
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
            shortage: None,
            opening: 0,
            quiet: Quiet::after_recovery(last),
            notes: Vec::new(),
            outcomes: VecDeque::new(),
            counts: Counts::default(),
            identities: Vec::new(),
        }
    }

    /// The logs that exist, in order.
    pub fn logs_found(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        self.by_id.keys().copied()
    }

    /// Makes an empty log; one that exists keeps what it has and takes the options. On a shard that recovery has found damaged
    /// it lies in memory alone, so that its readers are told of the damage.
    ///
    /// # Errors
    /// If the shard has as many as it may have, or takes no writes.
    pub fn create(&mut self, log: TopicPartition, options: LogOptions) -> Result<(), CreateRefused> {
        if self.by_id.contains_key(&log) {
            self.set_options(log, options);
            return Ok(());
        }
        if !matches!(self.condition, Condition::Serving | Condition::ReadOnly { .. }) {
            return Err(CreateRefused::ReadOnly);
        }
        let limit = self.limits.logs_max;
        if self.by_id.len() + self.removing >= limit as usize && !log.topic.is_internal() {
            return Err(CreateRefused::TooMany { limit });
        }
        self.insert(Log::new(log, options, &self.limits));
        Ok(())
    }

    /// Changes a log's options. If the shard cannot remember so many batches of each of the log's producers, the longest
    /// silent of them are forgotten.
    pub fn set_options(&mut self, log: TopicPartition, options: LogOptions) {
        let (limits, all) = (self.limits, self.batches_reserved);
        if let Some(log) = self.log_mut(log) {
            let others = all - log.batches_reserved();
            log.set_options(options, &limits);
            log.reserve_at_most((limits.batches_remembered_max as usize).saturating_sub(others));
            self.batches_reserved = others + log.batches_reserved();
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
        self.removing += 1;
        self.departures.push_back(Departure::Remove { log: index });
    }

    /// A frame says that a log is gone.
    pub(super) fn forget(&mut self, index: LogIndex) -> TopicPartition {
        self.remove_age(index);
        let mut gone = self.logs[index.0 as usize].take().expect("a log that goes exists");
        self.small_bytes -= gone.small_bytes;
        self.small_count -= gone.small.len();
        self.batches_reserved -= gone.batches_reserved();
        self.removing -= 1;
        gone.tail.drop_below(Offset(i64::MAX), &mut self.memory);
        gone.id
    }

    /// Bytes that a log holds, on disk and pending.
    pub fn bytes(&self, log: TopicPartition) -> u64 {
        let memory = self.find_log(log).map_or(0, |log| log.small_bytes + log.pending_bytes);
        self.segments.bytes(log) + memory as u64
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
            ("tails_evicted", counts.tails_evicted as i64),
            ("checkpoints", self.checkpoints.count() as i64),
            ("ring_laps", self.journal.laps() as i64),
            ("ring_free_bytes", self.journal.free_bytes() as i64),
            ("log_memory_bytes", self.memory_used() as i64),
            ("small_extent_bytes", self.small_bytes as i64),
            ("small_extents", self.small_count as i64),
            ("logs", self.by_id.len() as i64),
            ("batches_remembered", self.batches_reserved as i64),
        ];
        stats.extend(self.segments.stats());
        stats.extend(self.scrub.stats());
        stats.push(("produce_refused_for_room", i64::from(self.shortage.is_some())));
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
        let (mut small_bytes, mut small_count, mut batches_reserved) = (0, 0, 0);
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
            batches_reserved += log.batches_reserved();
            let oldest_held = self.journal.oldest_held();
            assert!(
                log.oldest_frame().is_none_or(|f| oldest_held.is_some_and(|held| held <= f)),
                "a live frame is free"
            );
        }
        assert_eq!(self.aging, aging);
        assert_eq!((self.small_bytes, self.small_count), (small_bytes, small_count));
        assert_eq!(self.batches_reserved, batches_reserved);
        assert_eq!(self.logs.iter().flatten().count(), self.by_id.len() + self.removing);
    }

    pub(super) fn insert(&mut self, log: Log) {
        let index = LogIndex(self.logs.len() as u32);
        self.by_id.insert(log.id, index);
        self.small_bytes += log.small_bytes;
        self.small_count += log.small.len();
        self.batches_reserved += log.batches_reserved();
        self.logs.push(Some(Box::new(log)));
        self.note_age(index);
    }

    pub(super) fn log(&self, index: LogIndex) -> &Log {
        self.logs[index.0 as usize].as_deref().expect("the log exists")
    }

    pub(super) fn find_log(&self, log: TopicPartition) -> Option<&Log> {
        self.by_id.get(&log).map(|index| self.log(*index))
    }

    pub(super) fn log_mut(&mut self, log: TopicPartition) -> Option<&mut Log> {
        let index = self.by_id.get(&log)?;
        self.logs[index.0 as usize].as_deref_mut()
    }

    /// The frame of a log's oldest small extent may have changed.
    pub(super) fn note_age(&mut self, index: LogIndex) {
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
    pub(super) fn remove_age(&mut self, index: LogIndex) {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("the log exists");
        if let Some(frame) = log.aged.take() {
            self.aging.remove(&(frame, index));
        }
    }
}
