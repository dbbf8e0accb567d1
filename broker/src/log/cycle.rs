//! The flush cycle, top to bottom: due, built, written, flushed, released.
//!
//! All that was appended since the last cycle goes out together: logs with much to write as runs straight into their data
//! files (`runs`), everything else as small extents in one journal frame, which also carries the marks of the runs. Extents of
//! old frames are settled or carried on the way (`emptying`). All writes of a cycle are submitted at once. The flush that covers
//! it is submitted only when every write of it and of all cycles before it is whole; one flush is under way at a time, and it
//! releases every cycle that it covers. No timer and no linger: the length of a cycle follows the drive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use tidegate_protocol::batch::{self, BatchView};
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::ExtentPlace;
use tidegate_protocol::disk::entry::{Carriage, Entry, entry_bytes};
use tidegate_protocol::disk::frame::{FrameBuilder, frame_bytes};
use tidegate_protocol::extent::{EXTENT_HEADER_BYTES, ExtentHeader, LogKind, identity_crc, payload_crc};
use tidegate_protocol::ids::{FileId, FrameSequence, LeaderEpoch, Offset, TopicPartition};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Fault, File, Now, Op, Tag};

use super::answer::{DurableToken, Outcome};
use super::append::{Pending, Staging};
use super::recent::{BufferId, TailExtent};
use super::runs::BuiltRun;
use super::segment::{PlaceFlush, Purpose};
use super::state::{Log, LogIndex};
use super::{Condition, Logs};
use crate::mutants::{self, Mutant};

const TAGS: u64 = 0x0100 << 48;
const EIO: i32 = 5;

/// What a cycle will consist of, in the order in which it enters the frame.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) items: Vec<Item>,
    /// Bytes of the frame's entries.
    pub(super) entry_bytes: usize,
    /// Bytes that the frame may have.
    pub(super) room: usize,
    /// Bytes of all runs.
    pub(super) run_bytes: usize,
    pub(super) runs: Vec<BuiltRun>,
    pub(super) trimmed: Vec<(TopicPartition, Offset)>,
    pub(super) touched: Vec<(LogIndex, Offset)>,
}

#[derive(Debug)]
pub(super) enum Item {
    Entry(Entry<'static>),
    /// A fresh extent of these batches of a log's pending ones.
    Fresh(LogIndex, Range<usize>),
    /// A small extent of a log, by offset.
    Carried(LogIndex, Offset),
}

/// Cycles that are not flushed yet, and the ops that belong to them.
///
/// Invariants: cycles rise without a gap; `whole` counts those at the front whose writes are all complete; a flush covers
/// whole cycles only; no flush covers a cycle at or above `failed_from`.
#[derive(Debug, Default)]
pub(super) struct Cycles {
    in_flight: VecDeque<Cycle>,
    whole: usize,
    writes: BTreeMap<u64, Write>,
    flush: Option<Flush>,
    next_tag: u64,
    failed_from: Option<FrameSequence>,
}

/// One cycle: a frame and the runs that it marks.
#[derive(Debug)]
pub(super) struct Cycle {
    pub(super) sequence: FrameSequence,
    /// The mark that its frame carries.
    pub(super) mark: FrameSequence,
    pub(super) content: Content,
    /// Logs with new records, and how far these go.
    pub(super) touched: Vec<(LogIndex, Offset)>,
    pub(super) trimmed: Vec<(TopicPartition, Offset)>,
    /// Data files that it wrote to, one entry a run.
    pub(super) files: Vec<FileId>,
    /// Files that the flush has to be called on.
    pub(super) flush_files: BTreeSet<File>,
    /// Not complete yet.
    writes_left: u32,
}

/// Whether a frame says anything but how far the journal is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Entries,
    MarkOnly,
}

#[derive(Debug)]
struct Write {
    cycle: FrameSequence,
    file: File,
    at: u64,
    data: View,
    buffer: BufferId,
}

#[derive(Debug)]
struct Flush {
    upto: FrameSequence,
    left: u32,
    fault: Option<Fault>,
}

/// What became of a write that has ended.
#[derive(Debug)]
pub(super) enum WriteEnd {
    /// It goes on from where it stopped.
    Continued,
    /// It is complete; the buffer is not needed for it any more.
    Complete(BufferId),
    /// It has failed: the outcome of its cycle and of every later one is unknown.
    Failed(BufferId, Fault),
}

impl Logs {
    /// The end of a turn: submits what has come together.
    pub fn pump(&mut self, now: Now, ops: &mut Vec<Op>) {
        self.reader.pump(&mut self.segments, ops);
        self.pass_reads_on();
        self.evict();
        self.retain(now, ops);
        if self.opening == 0 {
            while let Some((room, content)) = self.next_cycle(now) {
                if !self.build_cycle(room, content, ops) {
                    break;
                }
                if content == Content::MarkOnly {
                    self.quiet.since_ns = now.mono_ns;
                }
            }
            self.flush(now, ops);
            self.take_checkpoint(now, ops);
        }
        if matches!(self.condition, Condition::Stopping) && self.is_drained() {
            self.segments.stop();
        }
        // Last, so that a file which a cycle has asked for in vain is on its way when this turn ends: on a quiet shard there
        // may be no other turn.
        self.segments.pump(now, ops);
        self.announce_failure();
        self.set_timer(now, ops);
    }

    /// Whether a cycle is to be built now, with the largest frame that it may have.
    fn next_cycle(&self, now: Now) -> Option<(usize, Content)> {
        let may_write = matches!(self.condition, Condition::Serving | Condition::Stopping);
        if !may_write || self.cycles.len() >= self.limits.frames_in_flight_max as usize {
            return None;
        }
        let room = self.journal.room(self.limits.frame_bytes_max);
        if room == 0 {
            return None;
        }
        if !self.dirty.is_empty() || !self.departures.is_empty() {
            // A second cycle is written beside one that still writes only if it is worth a write of its own.
            let worth = self.staging.memory_bytes() >= self.limits.direct_min_bytes;
            let go = self.cycles.writing() == 0 || (self.cycles.writing() == 1 && worth);
            return go.then_some((room, Content::Entries));
        }
        if self.cycles.len() > 0 {
            return None;
        }
        // A stop needs no room for what comes later.
        let serving = matches!(self.condition, Condition::Serving);
        let oldest = self.aging.first();
        if serving
            && (self.ring_is_low() || self.memory_is_low())
            && oldest.is_some_and(|(_, index)| self.urgency(*index).is_some())
        {
            return Some((room, Content::Entries));
        }
        self.mark_is_due(now).then_some((room, Content::MarkOnly))
    }

    /// Builds the next cycle and submits its writes. `room` is the largest frame that the ring has a place for.
    /// Returns whether there was anything to build.
    pub(super) fn build_cycle(&mut self, room: usize, content: Content, ops: &mut Vec<Op>) -> bool {
        let mut draft = Draft { room, ..Draft::default() };
        self.draft_departures(&mut draft);
        // What is new has at least half of the frame.
        let share = if self.dirty.is_empty() { room } else { room / 2 };
        self.draft_old_frames(&mut draft, share);
        self.draft_all_pending(&mut draft);
        if draft.items.is_empty() && content == Content::Entries {
            return false;
        }
        let sequence = self.journal.next_sequence();
        let mark = self.journal.flushed();
        let (view, at, buffer) = self.place_frame(&draft);
        for index in draft.items.iter().filter_map(Item::log_with_small) {
            self.note_age(index);
        }
        let (ring_file, ring_at) = self.journal.file_of(at);
        let own_flush = draft.runs.iter().filter(|run| run.flush == PlaceFlush::Own).map(|run| run.io);
        let cycle = Cycle {
            sequence,
            mark,
            content,
            touched: draft.touched,
            trimmed: draft.trimmed,
            files: draft.runs.iter().map(|run| run.file).collect(),
            flush_files: own_flush.chain([ring_file]).collect(),
            writes_left: 0,
        };
        self.counts.cycles += 1;
        self.counts.bytes_journal += view.len() as u64;
        self.cycles.begin(cycle);
        for run in draft.runs {
            self.counts.bytes_data_files += run.view.len() as u64;
            self.cycles.write(run.io, run.at, run.view, run.buffer, ops);
        }
        self.cycles.write(ring_file, ring_at, view, buffer, ops);
        true
    }

    /// What is pending, oldest log first, as far as the frame has room for it or its marks.
    fn draft_all_pending(&mut self, draft: &mut Draft) {
        let mut left = VecDeque::new();
        let ordinary = self.ordinary_room(draft.room);
        while let Some(index) = self.dirty.pop_front() {
            let Some(log) = self.logs[index.0 as usize].as_deref() else { continue };
            if log.pending.is_empty() {
                continue;
            }
            // The ring's reserve is not for what clients produce.
            let full = draft.room;
            draft.room = if log.id.topic.is_internal() { full } else { ordinary };
            self.draft_pending(index, draft);
            draft.room = full;
            let log = self.log(index);
            if log.pending_placed > 0 {
                draft.touched.push((index, log.pending[log.pending_placed - 1].end()));
            }
            if log.pending_placed < log.pending.len() {
                left.push_back(index);
            }
        }
        self.dirty = left;
    }

    /// What a log has pending: into its data file if that is worth it and a file is ready, else into the frame.
    fn draft_pending(&mut self, index: LogIndex, draft: &mut Draft) {
        let log = self.log(index);
        let direct = log.pending_bytes >= self.limits.direct_min_bytes
            || log.small_bytes + log.pending_bytes >= self.limits.settle_bytes;
        // What is being carried goes before everything else of the log.
        let carried = log.aged.is_none() && !log.small.is_empty();
        if direct && !carried {
            self.place_runs(index, Purpose::Direct, draft);
        }
        // Large data takes the way through the ring only while that leaves room for what is small; else it waits for a file.
        let may_wait = direct && self.segments.full().is_none();
        let small_max = (self.limits.ring_bytes() / 8) as usize;
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a dirty log exists");
        for range in extents_of(&log.pending, log.pending_placed, self.limits.extent_bytes_max) {
            let bytes: usize = log.pending[range.clone()].iter().map(|p| p.len).sum();
            let cost = entry_bytes(EXTENT_HEADER_BYTES + bytes);
            if !draft.fits(cost) || (may_wait && self.small_bytes + draft.entry_bytes > small_max) {
                return;
            }
            log.pending_placed = range.end;
            draft.push(Item::Fresh(index, range), cost);
        }
    }

    /// Lays out the frame, and lets state and tails follow. Returns it with its place in the ring.
    fn place_frame(&mut self, draft: &Draft) -> (View, u64, BufferId) {
        let bytes = frame_bytes(draft.entry_bytes);
        let frame_at = self.journal.place(bytes).expect("the room was asked for before");
        let sequence = self.journal.next_sequence();
        let epoch = self.leader_epoch();
        let mut buffer = Buffer::for_filling(bytes);
        let mut builder = FrameBuilder::new(buffer.memory_mut());
        let mut placed = Vec::new();
        for item in &draft.items {
            match item {
                Item::Entry(entry) => {
                    builder.push(entry);
                }
                Item::Fresh(index, range) => {
                    let log = self.log(*index);
                    let bytes: usize = log.pending[range.clone()].iter().map(|p| p.len).sum();
                    let (at, place) = builder.extent(Carriage::Fresh, EXTENT_HEADER_BYTES + bytes);
                    let header = fill_extent(place, log, range.clone(), epoch, &self.staging);
                    placed.push((*index, at, header, identity_crc(place), Carriage::Fresh));
                }
                Item::Carried(index, base) => {
                    let source = self.log(*index).tail.extent(*base).expect("small extents are in the tail");
                    let (at, place) = builder.extent(Carriage::Carried, source.view.len());
                    place.copy_from_slice(&source.view);
                    placed.push((*index, at, source.header, identity_crc(place), Carriage::Carried));
                }
            }
        }
        let (used, hash) = builder.finish(self.journal.header());
        assert_eq!(used, bytes, "the draft knows the frame's length");
        buffer.set_filled(bytes);
        let (capacity, view) = (buffer.capacity(), buffer.freeze());
        let buffer = self.memory.charge(capacity);
        for (index, at, header, crc, how) in placed {
            let extent = view.slice(at..at + header.total_bytes());
            let place = ExtentPlace {
                base: header.base.0,
                end: header.end.0,
                frame: sequence.0,
                frame_at,
                at: at as u32,
                bytes: header.total_bytes() as u32,
                crc,
            };
            let log = self.logs[index.0 as usize].as_deref_mut().expect("a log with extents exists");
            match how {
                Carriage::Fresh => {
                    log.place_small(&header, place).expect("a fresh extent continues its log");
                    log.tail.push(TailExtent { header, view: extent, buffer }, &mut self.memory);
                    self.small_bytes += header.total_bytes();
                    self.small_count += 1;
                }
                Carriage::Carried => {
                    log.carry(place).expect("a carried extent is live");
                    log.tail.replace(header.base, extent, buffer, &mut self.memory);
                }
            }
        }
        for (index, _) in &draft.touched {
            self.place_pending(*index);
        }
        let laps = self.journal.laps();
        self.journal.took(frame_at, bytes, hash);
        if self.journal.laps() > laps {
            self.carried_in_lap = 0;
        }
        self.checkpoints.frame_built(bytes as u64);
        (view, frame_at, buffer)
    }

    /// The pending batches that are part of the cycle leave the queue.
    fn place_pending(&mut self, index: LogIndex) {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a log with pending batches exists");
        let mut pending = std::mem::take(&mut log.pending);
        for placed in pending.drain(..std::mem::take(&mut log.pending_placed)) {
            log.pending_bytes -= placed.len;
            log.place_batch(placed.append_time_ms, placed.identity, placed.base);
            self.staging.release(&placed);
        }
        log.pending = pending;
    }

    pub(super) fn on_written(&mut self, tag: Tag, result: Result<usize, Fault>, ops: &mut Vec<Op>) {
        match self.cycles.on_written(tag, result, ops) {
            WriteEnd::Continued => {}
            WriteEnd::Complete(buffer) => self.memory.release(buffer),
            WriteEnd::Failed(buffer, fault) => {
                self.memory.release(buffer);
                self.fail(fault);
            }
        }
        while let Some(cycle) = self.cycles.next_whole() {
            for (index, end) in &cycle.touched {
                let Some(log) = self.logs[index.0 as usize].as_deref_mut() else { continue };
                log.written = log.written.max(*end);
                if self.by_id.get(&log.id) != Some(index) {
                    continue;
                }
                self.outcomes.push_back(Outcome::Written { log: log.id, upto: log.written });
                if mutants::on(Mutant::AckBeforeFlush) {
                    log.durable = log.written;
                    let token = DurableToken::of_flush(log.written);
                    self.outcomes.push_back(Outcome::Durable { log: log.id, token });
                }
            }
        }
    }

    fn flush(&mut self, now: Now, ops: &mut Vec<Op>) {
        let waits = self.checkpoints.waits_for().is_some_and(|n| n > self.journal.flushed());
        // After a failure those who wait hear of it once all before it is flushed, so that does not wait for its time.
        let ending = matches!(self.condition, Condition::Stopping | Condition::Failed { .. });
        let wanted = if waits || ending || self.mark_flush_is_due(now) {
            FlushWanted::ForMarks
        } else {
            FlushWanted::ForEntries
        };
        if self.cycles.flush_if_due(wanted, ops) {
            self.counts.flushes += 1;
        }
    }

    pub(super) fn on_flushed(&mut self, now: Now, result: Result<(), Fault>, ops: &mut Vec<Op>) {
        match self.cycles.on_flushed(result) {
            None => {}
            Some(Err(fault)) => self.fail(fault),
            Some(Ok(upto)) => {
                self.journal.flushed_upto(upto);
                while let Some(cycle) = self.cycles.pop_flushed(upto) {
                    self.release(now, cycle);
                }
                self.checkpoints.on_frames_flushed(upto, ops);
            }
        }
    }

    /// A flush has covered the cycle: whoever waits for it may know.
    fn release(&mut self, now: Now, cycle: Cycle) {
        for (index, end) in &cycle.touched {
            let Some(log) = self.logs[index.0 as usize].as_deref_mut() else { continue };
            log.durable = log.durable.max(*end);
            if self.by_id.get(&log.id) != Some(index) {
                continue;
            }
            let token = DurableToken::of_flush(log.durable);
            self.outcomes.push_back(Outcome::Durable { log: log.id, token });
        }
        for (log, start) in cycle.trimmed {
            self.outcomes.push_back(Outcome::Trimmed { log, start });
        }
        for file in cycle.files {
            self.segments.put_back(file);
        }
        self.segments.on_marked(cycle.mark);
        if cycle.content == Content::Entries {
            self.quiet.entries_flushed = cycle.sequence;
            self.quiet.since_ns = now.mono_ns;
        }
    }
}

/// Cuts pending batches from the `from`th on into extents.
pub(super) fn extents_of(pending: &[Pending], from: usize, extent_bytes_max: usize) -> Vec<Range<usize>> {
    let mut extents = Vec::new();
    let (mut start, mut bytes) = (from, 0);
    for (i, batch) in pending.iter().enumerate().skip(from) {
        let other_time = i > start && batch.append_time_ms != pending[start].append_time_ms;
        if other_time || (i > start && bytes + batch.len > extent_bytes_max) {
            extents.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += batch.len;
    }
    if start < pending.len() {
        extents.push(start..pending.len());
    }
    extents
}

/// The one copy of batches from where they were received to where they go to disk from, with their final offset, epoch and
/// time.
pub(super) fn fill_extent(
    out: &mut [u8],
    log: &Log,
    range: Range<usize>,
    epoch: LeaderEpoch,
    staging: &Staging,
) -> ExtentHeader {
    let batches = &log.pending[range];
    let append_time_ms = batches[0].append_time_ms;
    let mut at = EXTENT_HEADER_BYTES;
    let mut crc = 0;
    let mut max_timestamp_ms = i64::MIN;
    for pending in batches {
        let place = &mut out[at..at + pending.len];
        place.copy_from_slice(staging.bytes(pending));
        batch::set_place(place, pending.base, epoch);
        let mut batch_crc = pending.crc;
        if log.options.append_time {
            batch::set_append_time(place, append_time_ms);
            batch_crc = BatchView::parse(place).expect("it was parsed when it came").header().crc;
        }
        let timestamp = if log.options.append_time { append_time_ms } else { pending.max_timestamp_ms };
        max_timestamp_ms = max_timestamp_ms.max(timestamp);
        crc = payload_crc(crc, place, batch_crc);
        at += pending.len;
    }
    let last = batches.last().expect("an extent has batches");
    let header = ExtentHeader {
        log: log.id,
        kind: LogKind::Data,
        flags: 0,
        leader_epoch: epoch,
        base: batches[0].base,
        end: last.end(),
        batch_count: batches.len() as u32,
        byte_len: (at - EXTENT_HEADER_BYTES) as u32,
        append_time_ms,
        max_timestamp_ms,
        payload_crc: crc,
    };
    out[..EXTENT_HEADER_BYTES].copy_from_slice(&header.encode());
    header
}

impl Draft {
    /// Whether an entry, or several, of so many bytes together still fit the frame.
    pub(super) fn fits(&self, entry_bytes: usize) -> bool {
        frame_bytes(self.entry_bytes + entry_bytes) <= self.room
    }

    pub(super) fn push(&mut self, item: Item, bytes: usize) {
        self.entry_bytes += bytes;
        self.items.push(item);
    }
}

impl Item {
    fn log_with_small(&self) -> Option<LogIndex> {
        match self {
            Item::Entry(_) => None,
            Item::Fresh(index, _) | Item::Carried(index, _) => Some(*index),
        }
    }
}

impl Cycles {
    /// Cycles that are not flushed.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Cycles that still write.
    pub(super) fn writing(&self) -> usize {
        self.in_flight.len() - self.whole
    }

    /// Whether no op is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.writes.is_empty() && self.flush.is_none()
    }

    /// Whether some cycle in flight holds more than a mark.
    pub(super) fn has_entries(&self) -> bool {
        self.in_flight.iter().any(|c| c.content == Content::Entries)
    }

    /// Adds the next cycle, whose writes follow by [`Cycles::write`].
    pub(super) fn begin(&mut self, cycle: Cycle) {
        if let Some(last) = self.in_flight.back() {
            assert_eq!(last.sequence.0 + 1, cycle.sequence.0, "cycles rise without a gap");
        }
        self.in_flight.push_back(cycle);
    }

    /// Submits a write of the newest cycle; the buffer is held until it ends.
    pub(super) fn write(&mut self, file: File, at: u64, data: View, buffer: BufferId, ops: &mut Vec<Op>) {
        let cycle = self.in_flight.back_mut().expect("a cycle has begun");
        cycle.writes_left += 1;
        let write = Write { cycle: cycle.sequence, file, at, data, buffer };
        self.submit(write, ops);
    }

    fn submit(&mut self, write: Write, ops: &mut Vec<Op>) {
        let number = self.next_tag;
        self.next_tag += 1;
        ops.push(Op::Write {
            file: write.file,
            at: write.at,
            data: write.data.clone(),
            tag: Tag(TAGS | number),
        });
        self.writes.insert(number, write);
    }

    /// A write has ended. One that stopped short goes on from the last whole block, before any flush.
    pub(super) fn on_written(
        &mut self,
        tag: Tag,
        result: Result<usize, Fault>,
        ops: &mut Vec<Op>,
    ) -> WriteEnd {
        let write = self.writes.remove(&(tag.0 & !TAGS)).expect("every write ends once");
        let done = match result {
            Ok(bytes) if bytes >= write.data.len() => {
                let cycle = self.in_flight.iter_mut().find(|c| c.sequence == write.cycle);
                cycle.expect("a cycle that writes is in flight").writes_left -= 1;
                return WriteEnd::Complete(write.buffer);
            }
            Ok(bytes) if bytes >= BLOCK => bytes / BLOCK * BLOCK,
            Ok(bytes) => {
                let fault = Fault {
                    what: format!("write of {} bytes that wrote {bytes}", write.data.len()),
                    errno: EIO,
                };
                return self.failed(write, fault);
            }
            Err(fault) => return self.failed(write, fault),
        };
        let rest = write.data.slice(done..write.data.len());
        self.submit(Write { at: write.at + done as u64, data: rest, ..write }, ops);
        WriteEnd::Continued
    }

    fn failed(&mut self, write: Write, fault: Fault) -> WriteEnd {
        self.fail_from(write.cycle);
        WriteEnd::Failed(write.buffer, fault)
    }

    /// No flush of this cycle or a later one is submitted any more.
    pub(super) fn fail_from(&mut self, cycle: FrameSequence) {
        self.failed_from = Some(self.failed_from.map_or(cycle, |f| f.min(cycle)));
    }

    /// The next cycle in order whose writes have all completed since it was last asked; it counts as whole from now on.
    pub(super) fn next_whole(&mut self) -> Option<&Cycle> {
        let cycle = self.in_flight.get(self.whole)?;
        let failed = self.failed_from.is_some_and(|f| cycle.sequence >= f);
        if cycle.writes_left > 0 || failed {
            return None;
        }
        self.whole += 1;
        self.in_flight.get(self.whole - 1)
    }

    /// Submits the flush of all whole cycles, if there is one to submit and none is under way. `wanted` says whether cycles
    /// that hold a mark alone are worth it.
    pub(super) fn flush_if_due(&mut self, wanted: FlushWanted, ops: &mut Vec<Op>) -> bool {
        let failed_from = self.failed_from.unwrap_or(FrameSequence(u64::MAX));
        let whole = self.in_flight.iter().take(self.whole).take_while(|c| c.sequence < failed_from);
        let worth = match wanted {
            FlushWanted::ForEntries => whole.clone().any(|c| c.content == Content::Entries),
            FlushWanted::ForMarks => whole.clone().next().is_some(),
        };
        if self.flush.is_some() || !worth {
            return false;
        }
        let files: BTreeSet<File> = whole.clone().flat_map(|c| c.flush_files.iter().copied()).collect();
        let upto = whole.last().expect("some cycle is whole").sequence;
        for file in &files {
            ops.push(Op::Flush { file: *file, tag: Tag(TAGS | self.next_tag) });
        }
        self.next_tag += 1;
        self.flush = Some(Flush { upto, left: files.len() as u32, fault: None });
        true
    }

    /// A flush has ended. Once all of its files are done: how far everything is flushed, or what failed.
    pub(super) fn on_flushed(&mut self, result: Result<(), Fault>) -> Option<Result<FrameSequence, Fault>> {
        let flush = self.flush.as_mut().expect("a flush is under way");
        flush.left -= 1;
        if let Err(fault) = result {
            flush.fault.get_or_insert(fault);
        }
        if flush.left > 0 {
            return None;
        }
        let flush = self.flush.take().expect("it was just there");
        Some(match flush.fault {
            None => Ok(flush.upto),
            Some(fault) => {
                let first = self.in_flight.front().expect("a flush covers a cycle").sequence;
                self.fail_from(first);
                Err(fault)
            }
        })
    }

    /// Takes out the oldest cycle, if a flush up to `upto` has covered it.
    pub(super) fn pop_flushed(&mut self, upto: FrameSequence) -> Option<Cycle> {
        let cycle = self.in_flight.pop_front_if(|c| c.sequence <= upto)?;
        self.whole -= 1;
        Some(cycle)
    }

    /// Whether everything that can still be flushed has been.
    pub(super) fn is_settled_after_failure(&self) -> bool {
        let failed_from = self.failed_from.unwrap_or(FrameSequence(0));
        self.flush.is_none() && self.in_flight.front().is_none_or(|c| c.sequence >= failed_from)
    }

    pub(super) fn check(&self) {
        assert!(self.whole <= self.in_flight.len());
        let whole = self.in_flight.iter().take(self.whole);
        assert!(whole.clone().all(|c| c.writes_left == 0));
        if let (Some(flush), Some(last)) = (&self.flush, whole.clone().next_back()) {
            assert!(flush.upto <= last.sequence, "a flush covers whole cycles only");
        }
    }
}

/// What a flush is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushWanted {
    /// Somebody waits for entries.
    ForEntries,
    /// A mark has waited long enough, or a checkpoint or a stop needs it.
    ForMarks,
}
