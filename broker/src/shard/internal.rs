//! The broker's own logs: written as ordinary batches, read whole at the start.
//!
//! An internal log has no retention. When it has grown far beyond what is alive in it, its owner appends a snapshot of all
//! live entries and, once that is flushed, trims everything before it.

use std::collections::VecDeque;

use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView, Batches};
use tidegate_protocol::ids::{Offset, TopicId, TopicPartition};
use tidegate_protocol::internal::KeyValue;
use tidegate_reactor::buffer::View;
use tidegate_reactor::op::Op;

use super::reply::Refusal;
use super::{Shard, Ticket};
use crate::log::{Appended, IncomingBatch, LogOptions, ReadBatches, ReadRefused, ReadStart};

/// Bytes of records after which a batch of an internal log ends.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of one read while an internal log is restored.
const READ_BYTES: usize = 512 << 10;

/// An internal log that is being read at the start.
#[derive(Debug)]
pub(super) struct Restore {
    next: Offset,
    upto: Offset,
    reading: bool,
}

/// A snapshot that is appended and not flushed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Offset of its first record: the new start.
    begin: Offset,
}

/// What waits for a flush of an internal log, in the order of the appends.
#[derive(Debug)]
pub(super) struct Pending<T>(VecDeque<(Offset, T)>);

impl<T> Default for Pending<T> {
    fn default() -> Pending<T> {
        Pending(VecDeque::new())
    }
}

impl<T> Pending<T> {
    pub(super) fn push(&mut self, appended: &Appended, what: T) {
        self.0.push_back((appended.end, what));
    }

    /// The oldest one, if all of it is flushed.
    pub(super) fn flushed(&mut self, upto: Offset) -> Option<T> {
        self.0.pop_front_if(|(end, _)| *end <= upto).map(|(_, what)| what)
    }

    /// All of them: their outcome will never be known.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0).into_iter().map(|(_, what)| what)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Shard {
    /// Makes sure that an internal log is here, and begins to read it.
    pub(super) fn internal_open(&mut self, log: TopicPartition) -> Result<(), Refusal> {
        // One that is there takes its options.
        let created = self.logs.create(log, internal_options());
        created.map_err(|refused| Refusal::from_create(log, refused))?;
        let positions = self.logs.positions(log).ok_or(Refusal::NoLog { log })?;
        self.internal_bytes.insert(log, self.logs.bytes(log));
        let restore = Restore { next: positions.start, upto: positions.committed, reading: false };
        self.restoring.insert(log, restore);
        Ok(())
    }

    /// Reads on in every internal log that is being restored.
    pub(super) fn internal_restore(&mut self, ops: &mut Vec<Op>) -> Result<(), Refusal> {
        let logs: Vec<TopicPartition> = self.restoring.keys().copied().collect();
        for log in logs {
            while let Some(restore) = self.restoring.get_mut(&log).filter(|restore| !restore.reading) {
                let (next, upto) = (restore.next, restore.upto);
                if next >= upto {
                    self.restoring.remove(&log);
                    self.internal_restored(log, ops)?;
                    break;
                }
                match self.logs.read(log, next, upto, READ_BYTES) {
                    ReadStart::Ready(batches) => self.internal_read(log, &batches)?,
                    ReadStart::Pending(ticket) => {
                        restore.reading = true;
                        self.tickets.insert(ticket, Ticket::Restore(log));
                    }
                    ReadStart::AtEnd => restore.next = upto,
                    // The next turn tries again.
                    ReadStart::Refused(ReadRefused::Busy) => break,
                    ReadStart::Refused(refused) => {
                        self.internal_unreadable(log, refused)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// An internal log is damaged. Without topics there is nothing to serve; a partition of stored offsets is refused by
    /// itself.
    pub(super) fn internal_unreadable(
        &mut self,
        log: TopicPartition,
        refused: ReadRefused,
    ) -> Result<(), Refusal> {
        let damaged = matches!(refused, ReadRefused::Damaged { .. } | ReadRefused::Lost { .. });
        if !damaged || log.topic == TopicId::METADATA {
            return Err(self.read_refused(log, refused));
        }
        self.restoring.remove(&log);
        self.offsets_unknown(log, refused);
        Ok(())
    }

    /// Takes in what was read of an internal log.
    pub(super) fn internal_read(
        &mut self,
        log: TopicPartition,
        batches: &ReadBatches,
    ) -> Result<(), Refusal> {
        if let Some(restore) = self.restoring.get_mut(&log) {
            restore.next = batches.end;
            restore.reading = false;
        }
        for view in &batches.views {
            for batch in Batches::new(view) {
                let batch = batch?;
                for record in batch.records()? {
                    let record = record.map_err(|error| Refusal::Batch(error.into()))?;
                    self.internal_record(log, record.key, record.value)?;
                }
            }
        }
        Ok(())
    }

    fn internal_record(
        &mut self,
        log: TopicPartition,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<(), Refusal> {
        if log.topic == TopicId::METADATA {
            self.orders_replay(key, value)
        } else {
            self.offsets_replay(log, key, value)
        }
    }

    fn internal_restored(&mut self, log: TopicPartition, ops: &mut Vec<Op>) -> Result<(), Refusal> {
        if log.topic == TopicId::METADATA {
            return self.orders_restored(ops);
        }
        if let Some(lost) = self.logs.lost_behind(log) {
            self.offsets_unknown(log, lost);
        }
        Ok(())
    }

    /// Appends records to an internal log, in as few batches as they need.
    pub(super) fn internal_append(
        &mut self,
        log: TopicPartition,
        records: &[KeyValue],
    ) -> Result<Appended, Refusal> {
        assert!(!records.is_empty(), "an append holds something");
        let mut batches = Vec::new();
        let mut left = records;
        while !left.is_empty() {
            let mut builder = BatchBuilder::new(Vec::new());
            while let Some((record, rest)) = left.split_first().filter(|_| builder.len() < BATCH_BYTES) {
                let none = std::iter::empty::<(&str, Option<&[u8]>)>();
                builder.push(self.now.wall_ms, Some(&record.key), Some(&record.value), none);
                left = rest;
            }
            let view = View::copy_of(&builder.finish(BatchOrigin::NONE));
            let header = *BatchView::parse(&view)?.header();
            batches.push(IncomingBatch { view, header });
        }
        let appended = self.logs.append(self.now, log, &batches)?;
        let bytes: u64 = batches.iter().map(|batch| batch.view.len() as u64).sum();
        *self.internal_bytes.entry(log).or_default() += bytes;
        Ok(appended)
    }

    /// Whether so much of an internal log is dead that a snapshot pays. What counts is what was appended since the last one:
    /// the drive may give the space of trimmed records back much later.
    pub(super) fn internal_wants_snapshot(&self, log: TopicPartition, live_bytes: usize) -> bool {
        let alive = live_bytes as u64;
        let grown = self.internal_bytes.get(&log).copied().unwrap_or(0);
        grown > self.limits.snapshot_bytes_min.max(4 * alive)
    }

    /// Appends a snapshot: all live entries as ordinary records. Without room for it now there is the next flush.
    pub(super) fn internal_snapshot(
        &mut self,
        log: TopicPartition,
        records: &[KeyValue],
    ) -> Option<(Appended, Snapshot)> {
        let before = self.internal_bytes.get(&log).copied().unwrap_or(0);
        let appended = self.internal_append(log, records).ok()?;
        if let Some(bytes) = self.internal_bytes.get_mut(&log) {
            *bytes -= before;
        }
        Some((appended, Snapshot { begin: appended.base }))
    }

    /// A snapshot is flushed: what lies before it can go.
    pub(super) fn internal_trim(&mut self, log: TopicPartition, snapshot: Snapshot) {
        self.stats.snapshots += 1;
        // A refusal leaves the old records where they are; the next snapshot tries again.
        if self.logs.trim(log, snapshot.begin).is_err() {
            self.stats.snapshot_trims_refused += 1;
        }
    }
}

/// Internal logs keep everything until a snapshot replaces it.
fn internal_options() -> LogOptions {
    LogOptions {
        retention_ms: None,
        retention_bytes: None,
        segment_bytes: 4 << 20,
        append_time: false,
        idempotence_window: 5,
    }
}
