//! What goes where in a flush cycle.
//!
//! All that was appended since the last cycle goes out together: logs with much to write as runs straight into their data
//! files, with their unsettled small extents in front; everything else as small extents in one journal frame, which also
//! carries the marks of the runs. Extents of old frames are settled or carried on the way, so that their frames become free.
//! No timer and no linger: the length of a cycle follows the drive.

use std::collections::VecDeque;
use std::ops::Range;

use tidegate_protocol::batch::{self, BatchView};
use tidegate_protocol::disk::checkpoint::ExtentPlace;
use tidegate_protocol::disk::entry::{
    ASSIGN_BYTES, Carriage, Entry, FREE_BYTES, ProducerNote, RunMark, START_BYTES, Start, entry_bytes,
    run_mark_bytes,
};
use tidegate_protocol::disk::frame::{FrameBuilder, frame_bytes};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader, run_bytes};
use tidegate_protocol::extent::{EXTENT_HEADER_BYTES, ExtentHeader, LogKind, identity_crc, payload_crc};
use tidegate_protocol::ids::{ClusterId, FileId, LeaderEpoch, Offset, TopicPartition};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{File, Op};

use super::flight::{Content, Cycle};
use super::pending::{Pending, Staging};
use super::pump::Urgency;
use super::recent::{BufferId, Settled, TailExtent};
use super::segment::{Place, PlaceFlush, Purpose};
use super::state::{Log, LogIndex};
use super::{Logs, Order};

/// What a cycle will consist of, in the order in which it enters the frame.
#[derive(Debug, Default)]
struct Draft {
    items: Vec<Item>,
    /// Bytes of the frame's entries.
    entry_bytes: usize,
    /// Bytes that the frame may have.
    room: usize,
    /// Bytes of all runs.
    run_bytes: usize,
    runs: Vec<BuiltRun>,
    trimmed: Vec<(TopicPartition, Offset)>,
    touched: Vec<(LogIndex, Offset)>,
}

#[derive(Debug)]
enum Item {
    Entry(Entry<'static>),
    /// A fresh extent of these batches of a log's pending ones.
    Fresh(LogIndex, Range<usize>),
    /// A small extent of a log, by offset.
    Carried(LogIndex, Offset),
}

#[derive(Debug)]
struct BuiltRun {
    file: FileId,
    io: File,
    flush: PlaceFlush,
    at: u64,
    view: View,
    buffer: BufferId,
}

/// A part of a run.
#[derive(Clone, Debug)]
enum Piece {
    Small(ExtentPlace),
    Fresh(Range<usize>),
}

impl Logs {
    /// Builds the next cycle and submits its writes. `room` is the largest frame that the ring has a place for.
    /// Returns whether there was anything to build.
    pub(super) fn build_cycle(&mut self, room: usize, content: Content, ops: &mut Vec<Op>) -> bool {
        let mut draft = Draft { room, ..Draft::default() };
        self.draft_orders(&mut draft);
        // What is new has at least half of the frame.
        let share = if self.dirty.is_empty() { room } else { room / 2 };
        self.draft_old_frames(&mut draft, share);
        self.draft_all_pending(&mut draft);
        if draft.items.is_empty() && content == Content::Entries {
            return false;
        }
        let sequence = self.journal.next_sequence();
        let mut cycle = Cycle::new(sequence, self.journal.flushed(), content);
        let (view, at, buffer) = self.write_frame(&draft);
        for index in draft.items.iter().filter_map(Item::log_with_small) {
            self.note_age(index);
        }
        cycle.touched = draft.touched;
        cycle.trimmed = draft.trimmed;
        let (ring_file, ring_at) = self.journal.file_of(at);
        cycle.flush_files.insert(ring_file);
        for run in &draft.runs {
            cycle.files.push(run.file);
            if run.flush == PlaceFlush::Own {
                cycle.flush_files.insert(run.io);
            }
        }
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

    /// Trims and removals: a start, and the files that lie wholly below it.
    fn draft_orders(&mut self, draft: &mut Draft) {
        let sequence = self.journal.next_sequence();
        while let Some(order) = self.orders.front().copied() {
            let (Order::Trim { log: index, .. } | Order::Remove { log: index }) = order;
            let Some(id) = self.logs[index.0 as usize].as_deref().map(|log| log.id) else {
                self.orders.pop_front();
                continue;
            };
            let frees = match order {
                Order::Trim { start, .. } => self.segments.below(id, start),
                Order::Remove { .. } => self.segments.all_of(id),
            };
            if !draft.fits(START_BYTES + frees.len() * FREE_BYTES) {
                return;
            }
            self.orders.pop_front();
            let offset = match order {
                Order::Trim { start, .. } => {
                    draft.trimmed.push((id, start));
                    self.apply_trim(index, start);
                    start
                }
                Order::Remove { .. } => {
                    self.forget(index);
                    Start::REMOVED
                }
            };
            draft.push(Item::Entry(Entry::Start(Start { log: id, offset })), START_BYTES);
            for free in frees {
                self.segments.apply_free(sequence, &free).expect("the table named the file itself");
                draft.push(Item::Entry(Entry::Free(free)), FREE_BYTES);
            }
        }
    }

    fn apply_trim(&mut self, index: LogIndex, start: Offset) {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a log that is trimmed exists");
        let small = (log.small_bytes, log.small.len());
        log.move_start(start);
        log.tail.drop_below(start, &mut self.memory);
        self.small_bytes -= small.0 - log.small_bytes;
        self.small_count -= small.1 - log.small.len();
        self.note_age(index);
    }

    /// Empties old frames: large logs are settled, small ones carried, oldest first.
    fn draft_old_frames(&mut self, draft: &mut Draft, share: usize) {
        const LOGS_MAX: usize = 1024;
        let oldest: Vec<LogIndex> = self.aging.iter().take(LOGS_MAX).map(|(_, index)| *index).collect();
        for index in oldest {
            let Some(urgency) = self.urgency(index) else { return };
            let log = self.log(index);
            if urgency == Urgency::Settle || log.small_bytes + log.pending_bytes >= self.settle_threshold() {
                self.draft_runs(index, Purpose::Settling, draft);
            }
            let log = self.log(index);
            let carry_cost: usize = log.small.iter().map(|e| entry_bytes(e.bytes as usize)).sum();
            let fits = frame_bytes(draft.entry_bytes + carry_cost) <= share;
            if urgency == Urgency::Move && carry_cost > 0 && fits {
                self.draft_carried(index, draft);
            }
        }
    }

    /// Copies what is still small of a log into this frame.
    fn draft_carried(&mut self, index: LogIndex, draft: &mut Draft) {
        let places: Vec<ExtentPlace> = self.log(index).small.iter().copied().collect();
        self.remove_age(index);
        for place in places {
            let bytes = place.bytes as usize;
            draft.push(Item::Carried(index, Offset(place.base)), entry_bytes(bytes));
            self.carried_in_lap += bytes as u64;
        }
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
            self.draft_runs(index, Purpose::Direct, draft);
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

    /// Writes runs of a log's small extents and pending batches, as far as there are places for them.
    fn draft_runs(&mut self, index: LogIndex, purpose: Purpose, draft: &mut Draft) {
        let log = self.log(index);
        let (id, segment_bytes) = (log.id, log.options.segment_bytes);
        let fresh = extents_of(&log.pending, log.pending_placed, self.limits.extent_bytes_max);
        let pieces: Vec<Piece> =
            log.small.iter().map(|e| Piece::Small(*e)).chain(fresh.into_iter().map(Piece::Fresh)).collect();
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (count, bytes) = self.run_of(index, rest);
            let (run, rest_of) = rest.split_at(count);
            let notes = match run.last() {
                Some(Piece::Fresh(range)) => range.end - self.log(index).pending_placed,
                Some(Piece::Small(_)) | None => 0,
            };
            if !draft.fits(ASSIGN_BYTES + run_mark_bytes(notes))
                || draft.run_bytes >= 2 * self.limits.frame_bytes_max
            {
                break;
            }
            let base = self.base_of(index, &run[0]);
            let Some(place) = self.segments.place(id, base, bytes as u32, segment_bytes, purpose) else {
                break;
            };
            self.draft_run(index, run, bytes, place, draft);
            rest = rest_of;
        }
        self.note_age(index);
    }

    /// How many of `pieces` one run takes, and its bytes.
    fn run_of(&self, index: LogIndex, pieces: &[Piece]) -> (usize, usize) {
        let log = self.log(index);
        let mut extent_bytes = 0;
        let mut count = 0;
        for piece in pieces {
            let more = match piece {
                Piece::Small(place) => place.bytes as usize,
                Piece::Fresh(range) => {
                    EXTENT_HEADER_BYTES + log.pending[range.clone()].iter().map(|p| p.len).sum::<usize>()
                }
            };
            if count > 0 && run_bytes(extent_bytes + more) > self.limits.run_bytes_max {
                break;
            }
            extent_bytes += more;
            count += 1;
        }
        (count, run_bytes(extent_bytes))
    }

    fn base_of(&self, index: LogIndex, piece: &Piece) -> Offset {
        match piece {
            Piece::Small(place) => Offset(place.base),
            Piece::Fresh(range) => self.log(index).pending[range.start].base,
        }
    }

    /// Lays out one run, and lets the log's state and tail follow.
    fn draft_run(
        &mut self,
        index: LogIndex,
        pieces: &[Piece],
        bytes: usize,
        place: Place,
        draft: &mut Draft,
    ) {
        let sequence = self.journal.next_sequence();
        let epoch = self.leader_epoch();
        let mut buffer = Buffer::for_filling(bytes);
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a log with pieces exists");
        let memory = buffer.memory_mut();
        let mut at = RUN_HEADER_BYTES;
        let mut extents = Vec::with_capacity(pieces.len());
        let mut producers = Vec::new();
        for piece in pieces {
            let header = match piece {
                Piece::Small(small) => {
                    let source = log.tail.extent(Offset(small.base)).expect("small extents are in the tail");
                    memory[at..at + small.bytes as usize].copy_from_slice(&source.view);
                    source.header
                }
                Piece::Fresh(range) => {
                    let batches = &log.pending[range.clone()];
                    producers.extend(batches.iter().filter_map(Pending::note));
                    fill_extent(&mut memory[at..], log, range.clone(), epoch, &self.staging)
                }
            };
            extents.push((at, header));
            at += header.total_bytes();
        }
        let header = run_header(self.journal.identity().cluster, &place, &extents, bytes);
        let crc = header.finish(&mut memory[..bytes], at);
        buffer.set_filled(bytes);
        let (capacity, view) = (buffer.capacity(), buffer.freeze());
        let buffer = self.memory.charge(capacity);
        for ((at, header), piece) in extents.into_iter().zip(pieces) {
            let view = view.slice(at..at + header.total_bytes());
            match piece {
                Piece::Small(_) => log.tail.replace(header.base, view, buffer, &mut self.memory),
                Piece::Fresh(_) => log.tail.push(TailExtent { header, view, buffer }, &mut self.memory),
            }
        }
        let mark = mark_of(&header, place.at, crc, producers);
        let small_before = (log.small_bytes, log.small.len());
        log.settle(&mark).expect("a run continues its log");
        self.small_bytes -= small_before.0 - log.small_bytes;
        self.small_count -= small_before.1 - log.small.len();
        if let Some(Piece::Fresh(range)) = pieces.last() {
            log.pending_placed = range.end;
        }
        self.counts.runs += 1;
        self.memory.settled(Settled { log: index, upto: mark.end, cycle: sequence });
        if let Some(assign) = place.assign {
            self.segments.apply_assign(&assign).expect("the table chose the file itself");
            draft.push(Item::Entry(Entry::Assign(assign)), ASSIGN_BYTES);
        }
        self.segments.apply_run(&mark).expect("the table chose the place itself");
        let cost = run_mark_bytes(mark.producers.len());
        draft.push(Item::Entry(Entry::Run(mark)), cost);
        let (file, io, flush, at) = (place.file, place.io, place.flush, place.at);
        draft.run_bytes += bytes;
        draft.runs.push(BuiltRun { file, io, flush, at, view, buffer });
    }

    /// Lays out the frame, and lets state and tails follow. Returns it with its place in the ring.
    fn write_frame(&mut self, draft: &Draft) -> (View, u64, BufferId) {
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
}

impl Draft {
    /// Whether an entry, or several, of so many bytes together still fit the frame.
    fn fits(&self, entry_bytes: usize) -> bool {
        frame_bytes(self.entry_bytes + entry_bytes) <= self.room
    }

    fn push(&mut self, item: Item, bytes: usize) {
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

/// The header of a run of these extents.
fn run_header(
    cluster: ClusterId,
    place: &Place,
    extents: &[(usize, ExtentHeader)],
    bytes: usize,
) -> RunHeader {
    let (first, last) = (extents[0].1, extents[extents.len() - 1].1);
    RunHeader {
        cluster,
        file: place.file,
        generation: place.generation,
        sequence: place.run_sequence,
        previous_crc: place.previous_crc,
        log: first.log,
        base: first.base,
        end: last.end,
        bytes: bytes as u32,
        extents: extents.len() as u32,
        append_first_ms: first.append_time_ms,
        append_last_ms: last.append_time_ms,
        max_timestamp_ms: extents.iter().map(|(_, h)| h.max_timestamp_ms).max().unwrap_or(i64::MIN),
    }
}

/// What the journal says about a run.
fn mark_of(header: &RunHeader, at: u64, crc: u32, producers: Vec<ProducerNote>) -> RunMark {
    RunMark {
        log: header.log,
        base: header.base,
        end: header.end,
        file: header.file,
        generation: header.generation,
        at,
        bytes: header.bytes,
        crc,
        run_sequence: header.sequence,
        append_first_ms: header.append_first_ms,
        append_last_ms: header.append_last_ms,
        max_timestamp_ms: header.max_timestamp_ms,
        producers,
    }
}

/// Cuts pending batches from the `from`th on into extents.
fn extents_of(pending: &[Pending], from: usize, extent_bytes_max: usize) -> Vec<Range<usize>> {
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
fn fill_extent(
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
