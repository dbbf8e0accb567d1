//! One log's state: what frames make of it. Live and replay call the same functions, so that a replayed log equals the live
//! one.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use tidegate_logic::producer::{
    BatchIdentity, ProducerLimits, ProducerSnapshot, ProducerTable, Remembered, Snapshot,
};
use tidegate_logic::topics::{IDEMPOTENCE_WINDOW_MAX, IDEMPOTENCE_WINDOW_MIN};
use tidegate_protocol::disk::checkpoint::{ExtentPlace, LogState, ProducerBatch, ProducerState};
use tidegate_protocol::disk::entry::{ProducerNote, RunMark};
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::{
    FrameSequence, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, TopicId, TopicPartition,
};

use super::answer::ReadRefused;
use super::append::Pending;
use super::recent::Tail;
use super::{LogOptions, Positions};
use crate::limits::Limits;
use crate::mutants::{self, Mutant};

/// The place of a log in the shard's list; never used for another log while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogIndex(pub(super) u32);

/// One log.
///
/// Invariants: those of [`Positions`]; `small` is contiguous, its frames never fall, and it ends at `placed`; the tail
/// holds every extent of `small`; `placed <= appended`, the difference being `pending`.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) id: TopicPartition,
    pub(super) options: LogOptions,
    pub(super) start: Offset,
    /// The start that a frame has said; `start` runs ahead of it until the next cycle.
    pub(super) start_placed: Offset,
    /// One past the last record that a frame or run holds, written or not.
    pub(super) placed: Offset,
    pub(super) appended: Offset,
    pub(super) written: Offset,
    pub(super) durable: Offset,
    pub(super) append_time_ms: i64,
    /// With the pending batches.
    pub(super) producers: ProducerTable,
    /// What frames have made of the table and of the append time.
    pub(super) placed_producers: ProducerTable,
    pub(super) placed_append_ms: i64,
    /// Extents that lie in the journal alone, by offset.
    pub(super) small: VecDeque<ExtentPlace>,
    pub(super) small_bytes: usize,
    /// Batches that have a place in the order, but in no cycle yet.
    pub(super) pending: Vec<Pending>,
    pub(super) pending_bytes: usize,
    /// How many of the pending batches are part of the cycle that is being built.
    pub(super) pending_placed: usize,
    /// The frame under which the log is listed for its oldest small extent.
    pub(super) aged: Option<FrameSequence>,
    pub(super) tail: Tail,
    /// Small extents that recovery could not read, by offset; only on a shard that takes no writes.
    pub(super) damaged: Vec<Damage>,
}

/// Records that were flushed and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// Where they lay.
    pub(super) file: String,
    /// Which bytes of that file.
    pub(super) bytes: Range<u64>,
    /// The first.
    pub(super) from: Offset,
    /// One past the last.
    pub(super) upto: Offset,
}

impl From<&Damage> for ReadRefused {
    fn from(damage: &Damage) -> ReadRefused {
        let Damage { file, bytes, from, upto } = damage.clone();
        ReadRefused::Damaged { file, bytes, from, upto }
    }
}

/// Flushed frames of the journal that cannot be read: what they held is not known, so nothing can be said of what lies behind
/// the end of any log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostFrames {
    /// The file of the ring in which the first of them is expected.
    pub(super) file: PathBuf,
    /// The file at whose start it lies if it did not fit there.
    pub(super) or_in: Option<PathBuf>,
    /// The first.
    pub(super) from: FrameSequence,
    /// The last.
    pub(super) upto: FrameSequence,
}

impl LostFrames {
    /// For a reader at the end of a log.
    pub(super) fn refused(&self, end: Offset) -> ReadRefused {
        ReadRefused::Lost { file: self.to_string(), from: end }
    }
}

impl fmt::Display for LostFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(path) = &self.or_in {
            write!(f, " or {}", path.display())?;
        }
        write!(f, " (frames {} to {})", self.from, self.upto)
    }
}

/// Why a frame cannot follow the state before it: something else than our own code wrote it.
pub(super) type Contradiction = String;

impl Log {
    pub(super) fn new(id: TopicPartition, options: LogOptions, limits: &Limits) -> Log {
        let producers = ProducerTable::new(producer_limits(&options, limits));
        Log {
            id,
            options,
            start: Offset(0),
            start_placed: Offset(0),
            placed: Offset(0),
            appended: Offset(0),
            written: Offset(0),
            durable: Offset(0),
            append_time_ms: i64::MIN,
            placed_producers: producers.clone(),
            placed_append_ms: i64::MIN,
            producers,
            small: VecDeque::new(),
            small_bytes: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            pending_placed: 0,
            aged: None,
            tail: Tail::default(),
            damaged: Vec::new(),
        }
    }

    /// Whether the log's topic has said what it wants. Until then replay has remembered as much as any topic may want.
    pub(super) fn knows_options(&self) -> bool {
        self.options.idempotence_window <= IDEMPOTENCE_WINDOW_MAX
    }

    /// Batches that one producer counts as for the shard's cap.
    pub(super) fn window_reserved(&self) -> usize {
        let window = if self.knows_options() { self.options.idempotence_window } else { 0 };
        usize::from(window.max(IDEMPOTENCE_WINDOW_MIN))
    }

    /// Batches that all producers count as.
    pub(super) fn batches_reserved(&self) -> usize {
        self.producers.len() * self.window_reserved()
    }

    /// Forgets the longest silent producers until the others count as at most so many batches.
    pub(super) fn reserve_at_most(&mut self, batches: usize) {
        let most = batches / self.window_reserved();
        self.producers.forget_down_to(most);
        self.placed_producers.forget_down_to(most);
    }

    pub(super) fn set_options(&mut self, options: LogOptions, limits: &Limits) {
        self.options = options;
        self.producers.set_limits(producer_limits(&options, limits));
        self.placed_producers.set_limits(producer_limits(&options, limits));
    }

    pub(super) fn positions(&self) -> Positions {
        let committed = if mutants::on(Mutant::ReadsAboveFlush) { self.written } else { self.durable };
        let start = self.start;
        Positions {
            start,
            stable: committed,
            committed,
            durable: self.durable,
            written: self.written,
            appended: self.appended,
        }
    }

    /// A batch has got its place in the order: the log's end moves behind it.
    pub(super) fn append(&mut self, append_time_ms: i64, batch: BatchIdentity, base: Offset) {
        self.append_time_ms = append_time_ms;
        self.appended = base.plus(i64::from(batch.record_count));
        self.producers.apply(append_time_ms, batch, base);
    }

    /// A batch lies in a frame or run: live when its cycle is built, in replay when it is read.
    pub(super) fn place_batch(&mut self, append_time_ms: i64, batch: BatchIdentity, base: Offset) {
        self.placed_append_ms = self.placed_append_ms.max(append_time_ms);
        self.placed_producers.apply(append_time_ms, batch, base);
    }

    /// The end of a replay: nothing is pending.
    pub(super) fn replayed(&mut self) {
        (self.appended, self.written, self.durable) = (self.placed, self.placed, self.placed);
        self.start = self.start_placed;
        self.append_time_ms = self.placed_append_ms;
        self.producers = self.placed_producers.clone();
    }

    /// A fresh extent lies in a frame.
    pub(super) fn place_small(
        &mut self,
        header: &ExtentHeader,
        place: ExtentPlace,
    ) -> Result<(), Contradiction> {
        if header.base != self.placed {
            return Err(format!("extent at offset {} of a log that ends at {}", header.base, self.placed));
        }
        self.placed_append_ms = self.placed_append_ms.max(header.append_time_ms);
        self.placed = header.end;
        self.small_bytes += place.bytes as usize;
        self.small.push_back(place);
        Ok(())
    }

    /// A small extent lies in another frame now.
    pub(super) fn carry(&mut self, place: ExtentPlace) -> Result<(), Contradiction> {
        let index = self.small.partition_point(|e| e.base < place.base);
        let Some(found) = self.small.get_mut(index).filter(|e| e.base == place.base) else {
            return Err(format!("carried extent at offset {} that is not live", place.base));
        };
        if found.crc != place.crc || found.bytes != place.bytes {
            return Err(format!(
                "carried extent at offset {} differs from the one it was copied from",
                place.base
            ));
        }
        *found = place;
        Ok(())
    }

    /// A run lies in a data file: it holds small extents from the oldest on, then fresh ones.
    pub(super) fn settle(&mut self, mark: &RunMark) -> Result<(), Contradiction> {
        let front = self.small.front().map_or(self.placed, |e| Offset(e.base));
        if mark.base != front {
            return Err(format!("run at offset {} of a log that continues at {front}", mark.base));
        }
        while self.small.front().is_some_and(|e| e.end <= mark.end.0) {
            let gone = self.small.pop_front().expect("it was just there");
            self.small_bytes -= gone.bytes as usize;
        }
        if self.small.front().is_some_and(|e| e.base != mark.end.0)
            || (self.small.is_empty() && mark.end < self.placed)
        {
            return Err(format!("run that ends at {} within a small extent", mark.end));
        }
        self.placed_append_ms = self.placed_append_ms.max(mark.append_last_ms);
        self.placed = self.placed.max(mark.end);
        Ok(())
    }

    /// The start has moved. Small extents wholly below it live no longer.
    pub(super) fn move_start(&mut self, start: Offset) {
        self.start_placed = self.start_placed.max(start);
        while self.small.front().is_some_and(|e| e.end <= start.0) {
            let gone = self.small.pop_front().expect("it was just there");
            self.small_bytes -= gone.bytes as usize;
        }
        // A start above everything that replay has seen: the rest of the log was trimmed away before a checkpoint.
        self.placed = self.placed.max(start);
    }

    /// The first damage that a reader who begins at `from` meets.
    pub(super) fn damage_from(&self, from: Offset) -> Option<&Damage> {
        self.damaged.iter().find(|damage| damage.upto > from)
    }

    /// Whether the cycle that is being built carries its small extents.
    pub(super) fn is_carried(&self) -> bool {
        self.aged.is_none() && !self.small.is_empty()
    }

    /// The oldest frame that holds a live extent of this log.
    pub(super) fn oldest_frame(&self) -> Option<FrameSequence> {
        self.small.front().map(|e| FrameSequence(e.frame))
    }

    /// The state as a checkpoint keeps it.
    pub(super) fn state(&self) -> LogState {
        let snapshot = self.placed_producers.snapshot();
        LogState {
            topic: self.id.topic.0,
            partition: self.id.partition.0,
            start: self.start_placed.0,
            appended: self.placed.0,
            append_time_ms: self.placed_append_ms,
            extents: self.small.iter().copied().collect(),
            producers: snapshot.producers.iter().map(producer_state).collect(),
            forgotten: snapshot.forgotten.map(|(id, epoch)| (id.0, epoch.0)),
        }
    }

    /// The log of a checkpoint, all flushed.
    pub(super) fn restore(state: &LogState, options: LogOptions, limits: &Limits) -> Log {
        let id = TopicPartition { topic: TopicId(state.topic), partition: PartitionId(state.partition) };
        let mut log = Log::new(id, options, limits);
        (log.start_placed, log.placed) = (Offset(state.start), Offset(state.appended));
        log.placed_append_ms = state.append_time_ms;
        log.small = state.extents.iter().copied().collect();
        log.small_bytes = state.extents.iter().map(|e| e.bytes as usize).sum();
        let snapshot = Snapshot {
            producers: state.producers.iter().map(producer_snapshot).collect(),
            forgotten: state.forgotten.map(|(id, epoch)| (ProducerId(id), ProducerEpoch(epoch))),
        };
        log.placed_producers = ProducerTable::restore(producer_limits(&options, limits), &snapshot);
        log.replayed();
        log
    }

    pub(super) fn check(&self) {
        self.positions().check();
        assert!(self.start_placed <= self.start, "{:?}", self.id);
        assert!(self.written <= self.placed && self.placed <= self.appended, "{:?}", self.id);
        assert_eq!(self.small_bytes, self.small.iter().map(|e| e.bytes as usize).sum::<usize>());
        let mut frame = 0;
        let mut next = self.small.front().map_or(self.placed.0, |e| e.base);
        for extent in &self.small {
            assert!(extent.base == next && extent.frame >= frame, "small extents of {:?}", self.id);
            (next, frame) = (extent.end, extent.frame);
        }
        assert_eq!(next, self.placed.0, "small extents of {:?} end where the log does", self.id);
        let pending: i64 = self.pending.iter().map(|p| i64::from(p.identity.record_count)).sum();
        assert_eq!(self.placed.plus(pending), self.appended, "{:?}", self.id);
        self.tail.check(self.small.front().map_or(self.placed, |e| Offset(e.base)), self.placed);
    }
}

/// What the table of producers is told in replay.
pub(super) fn identity_of(note: &ProducerNote) -> BatchIdentity {
    BatchIdentity {
        producer: note.producer,
        epoch: note.epoch,
        base_sequence: note.base_sequence,
        record_count: note.record_count,
    }
}

/// What a topic without known options has: recovery comes before the topics are known, and must forget nothing.
pub(super) const OPTIONS_UNKNOWN: LogOptions = LogOptions {
    retention_ms: None,
    retention_bytes: None,
    segment_bytes: 1 << 30,
    append_time: false,
    idempotence_window: u16::MAX,
};

fn producer_limits(options: &LogOptions, limits: &Limits) -> ProducerLimits {
    ProducerLimits {
        window: options.idempotence_window.min(IDEMPOTENCE_WINDOW_MAX),
        producers_max: limits.producers_per_log_max,
        expiry_ms: limits.producer_expiry_ms,
    }
}

fn producer_state(snapshot: &ProducerSnapshot) -> ProducerState {
    let batch = |b: &Remembered| ProducerBatch {
        base_sequence: b.base_sequence.0,
        record_count: b.record_count,
        base: b.base.0,
        append_time_ms: b.append_time_ms,
    };
    ProducerState {
        producer: snapshot.producer.0,
        epoch: snapshot.epoch.0,
        batches: snapshot.batches.iter().map(batch).collect(),
    }
}

fn producer_snapshot(state: &ProducerState) -> ProducerSnapshot {
    let batch = |b: &ProducerBatch| Remembered {
        base_sequence: Sequence(b.base_sequence),
        record_count: b.record_count,
        base: Offset(b.base),
        append_time_ms: b.append_time_ms,
    };
    ProducerSnapshot {
        producer: ProducerId(state.producer),
        epoch: ProducerEpoch(state.epoch),
        batches: state.batches.iter().map(batch).collect(),
    }
}
