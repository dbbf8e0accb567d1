//! The flush cycle, top to bottom: due, built, written, flushed, released; and what the drive did comes in here.
//!
//! All that was appended since the last cycle goes out together: logs with much to write as runs straight into their data
//! files, everything else as small extents in one journal frame, which also carries the marks of the runs. Extents of old
//! frames are settled or carried on the way (`emptying`). All writes of a cycle are submitted at once. The flush that covers
//! it is submitted only when every write of it and of all cycles before it is whole; one flush is under way at a time, and it
//! releases every cycle that it covers. No timer and no linger: the length of a cycle follows the drive.

use std::collections::VecDeque;
use std::ops::Range;

use tidegate_protocol::batch::{self, BatchView};
use tidegate_protocol::disk::checkpoint::ExtentPlace;
use tidegate_protocol::disk::entry::{ASSIGN_BYTES, Carriage, Entry, entry_bytes, run_mark_bytes};
use tidegate_protocol::disk::frame::{FrameBuilder, frame_bytes};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, run_bytes};
use tidegate_protocol::extent::{EXTENT_HEADER_BYTES, ExtentHeader, LogKind, identity_crc, payload_crc};
use tidegate_protocol::ids::{FileId, LeaderEpoch, Offset, TopicPartition};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Event, Fault, File, Now, Op, Tag};

use super::answer::{DurableToken, Outcome};
use super::append::{Pending, Staging};
use super::flight::{Content, Cycle, FlushWanted, WriteEnd};
use super::quiet::QUIET_TIMER;
use super::recent::{BufferId, Settled, TailExtent};
use super::room::RingUse;
use super::run_mark::{mark_of, run_header};
use super::scrub::SCRUB;
use super::segment::{Place, PlaceFlush, Purpose, Zeros};
use super::state::{Log, LogIndex};
use super::{CHECKPOINT, CYCLE, Condition, DATA_FILE_TIMERS, DATA_FILES, Logs};
use crate::mutants::{self, Mutant};

/// Files to flush for a cycle up to which they cost less than zeros would: the journal and a few data files.
const FLUSHES_FEW: usize = 8;

/// What a cycle will consist of, in the order in which it enters the frame.
#[derive(Debug, Default)]
pub(super) struct Building {
    pub(super) items: Vec<Item>,
    /// Bytes of the frame's entries.
    pub(super) entry_bytes: usize,
    /// Bytes that the frame may have.
    pub(super) room: usize,
    /// Bytes of all runs.
    pub(super) run_bytes: usize,
    /// Fresh extents in the frame.
    fresh: usize,
    runs: Vec<BuiltRun>,
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
    /// Takes in what the drive did.
    pub fn on_event(&mut self, now: Now, event: Event, ops: &mut Vec<Op>) {
        match event {
            Event::Opened { file, result } if matches!(file.0 >> 48, CYCLE | CHECKPOINT) => {
                self.opening -= 1;
                if let Err(fault) = result {
                    self.fail(fault);
                }
            }
            Event::Written { tag, result, .. } if tag.0 >> 48 == CYCLE => self.on_written(tag, result, ops),
            Event::Flushed { tag, result, .. } if tag.0 >> 48 == CYCLE => self.on_flushed(now, result, ops),
            Event::Written { tag, result, .. } if tag.0 >> 48 == CHECKPOINT => {
                if let Err(fault) = self.checkpoints.on_written(result, ops) {
                    self.fail(fault);
                }
            }
            Event::Flushed { tag, result, .. } if tag.0 >> 48 == CHECKPOINT => {
                match self.checkpoints.on_flushed(result) {
                    Ok(bound) => {
                        self.journal.free_below(bound);
                        self.scrub_checkpointed();
                    }
                    Err(fault) => self.fail(fault),
                }
            }
            Event::Timer { tag } if tag == QUIET_TIMER => self.quiet.timer_at_ns = None,
            Event::Read { tag, .. } | Event::Timer { tag } if tag.0 >> 48 == SCRUB => {
                self.on_scrub_event(event);
            }
            Event::Read { .. } => self.reader.on_event(event, &mut self.segments),
            other if is_of_data_files(&other) => {
                if let Event::Opened { file, result: Err(fault) } = &other
                    && let Some(file) = self.segments.handles.file_of(*file)
                {
                    self.scrub_open_failed(file, fault.clone());
                }
                self.segments.on_event(now, other, ops);
            }
            other => panic!("an event that nobody asked for: {other:?}"),
        }
    }

    /// The end of a pass of the turn: submits what has come together.
    pub fn pump(&mut self, now: Now, ops: &mut Vec<Op>) {
        self.reader.pump(&mut self.segments, ops);
        self.pass_reads_on();
        self.scrub(now, ops);
        self.evict();
        self.retain(now, ops);
        if self.opening == 0 {
            while let Some((room, content)) = self.next_cycle(now) {
                if !self.build_cycle(now, room, content, ops) {
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
        let much = self.cycles.bytes_writing() >= self.limits.direct_min_bytes;
        let few_files = self.cycles.files_to_flush() <= FLUSHES_FEW;
        self.segments.pump(now, if much && few_files { Zeros::Wait } else { Zeros::GoOn }, ops);
        self.watch_room();
        self.announce_failure();
        self.set_timer(now, ops);
    }

    /// Whether a cycle is to be built now, with the largest frame that it may have.
    fn next_cycle(&self, now: Now) -> Option<(usize, Content)> {
        let may_write = matches!(self.condition, Condition::Serving | Condition::Stopping);
        let limits = &self.limits;
        let unflushed = self.journal.unflushed_bytes() + limits.frame_bytes_max as u64;
        let is_full = self.cycles.len() >= limits.frames_in_flight_max as usize
            || (self.cycles.len() > 0 && unflushed > limits.in_flight_bytes_max);
        if !may_write || is_full {
            return None;
        }
        let room = self.frame_room(RingUse::Moving);
        if room == 0 {
            return None;
        }
        if !self.dirty.is_empty() || !self.departures.is_empty() {
            // Beside one that still writes another is written only if it is worth writes of its own.
            let worth = self.staging.memory_bytes() >= limits.cycle_bytes_min;
            let writing = self.cycles.writing();
            let go = writing == 0 || (writing < limits.cycles_writing_max as usize && worth);
            return go.then_some((room, Content::Entries));
        }
        if self.cycles.len() > 0 {
            return None;
        }
        // A stop needs no room for what comes later.
        let serving = matches!(self.condition, Condition::Serving);
        let oldest = self.aging.first();
        if serving
            && (self.ring_is_low() || self.memory_is_low() || self.scrub.rescue().is_some())
            && oldest.is_some_and(|(_, index)| self.urgency(*index).is_some())
        {
            return Some((room, Content::Entries));
        }
        let due = self.mark_is_due(now) && self.frame_room(RingUse::Departures) > 0;
        due.then_some((room, Content::MarkOnly))
    }

    /// Builds the next cycle and submits its writes. `room` is the largest frame that the ring has a place for.
    /// Returns whether there was anything to build.
    pub(super) fn build_cycle(&mut self, now: Now, room: usize, content: Content, ops: &mut Vec<Op>) -> bool {
        let departures = room.min(self.frame_room(RingUse::Departures));
        let mut building = Building { room: departures, ..Building::default() };
        self.add_departures(&mut building);
        building.room = room;
        // What is new has at least half of the frame, if it has a part in it at all.
        let share = if self.dirty.is_empty() || self.ring_is_short() { room } else { room / 2 };
        self.add_old_frames(&mut building, share);
        self.add_all_pending(&mut building);
        if building.items.is_empty() && content == Content::Entries {
            return false;
        }
        let sequence = self.journal.next_sequence();
        let mark = self.journal.flushed();
        let (view, at, buffer) = self.finish_frame(&building);
        for index in building.items.iter().filter_map(Item::log_with_small) {
            self.note_age(index);
        }
        let (ring_file, ring_at) = self.journal.file_of(at);
        if mutants::on(Mutant::TrimToldEarly) {
            for (log, start) in &building.trimmed {
                self.outcomes.push_back(Outcome::Trimmed { log: *log, start: *start });
            }
        }
        let own_flush = building.runs.iter().filter(|run| run.flush == PlaceFlush::Own).map(|run| run.io);
        let cycle = Cycle {
            sequence,
            mark,
            content,
            touched: building.touched,
            trimmed: building.trimmed,
            runs: building.runs.iter().map(|run| (run.file, run.at)).collect(),
            flush_files: own_flush.chain([ring_file]).collect(),
            writes_left: 0,
            begun_ns: now.mono_ns,
        };
        self.counts.cycles += 1;
        self.counts.bytes_journal += view.len() as u64;
        self.cycles.begin(cycle);
        for run in building.runs {
            self.counts.bytes_data_files += run.view.len() as u64;
            ops.push(self.cycles.write(run.io, run.at, run.view, run.buffer));
        }
        ops.push(self.cycles.write(ring_file, ring_at, view, buffer));
        true
    }

    /// What is pending, oldest log first, as far as the frame has room for it or its marks.
    fn add_all_pending(&mut self, building: &mut Building) {
        let mut left = VecDeque::new();
        let ordinary = building.room.min(self.frame_room(RingUse::Produce));
        let internal = building.room.min(self.frame_room(RingUse::Departures));
        while let Some(index) = self.dirty.pop_front() {
            let Some(log) = self.logs[index.0 as usize].as_deref() else { continue };
            if log.pending.is_empty() {
                continue;
            }
            // The ring's reserve is not for what clients produce.
            let full = building.room;
            building.room = if log.id.topic.is_internal() { internal } else { ordinary };
            self.add_pending(index, building);
            building.room = full;
            let log = self.log(index);
            if log.pending_placed > 0 {
                building.touched.push((index, log.pending[log.pending_placed - 1].end()));
            }
            if log.pending_placed < log.pending.len() {
                left.push_back(index);
            }
        }
        self.dirty = left;
    }

    /// What a log has pending: into its data file if that is worth it and a file is ready, else into the frame.
    fn add_pending(&mut self, index: LogIndex, building: &mut Building) {
        let log = self.log(index);
        let direct = log.pending_bytes >= self.limits.direct_min_bytes
            || log.small_bytes + log.pending_bytes >= self.limits.settle_bytes;
        // What this very cycle carries goes before everything else of the log.
        if direct && !log.is_carried() {
            self.add_runs(index, Purpose::Direct, building);
        }
        // Large data takes the way through the ring only while that leaves room for what is small; else it waits for a file.
        let may_wait = direct && self.segments.full().is_none();
        let internal = self.log(index).id.topic.is_internal();
        let limits = &self.limits;
        let extents_max = if internal { limits.extents_max } else { limits.extents_of_topics_max() } as usize;
        let small_max = match internal {
            true => usize::MAX,
            false if may_wait => limits.small_bytes_many() as usize,
            false => limits.small_bytes_max() as usize,
        };
        // A log is carried whole.
        let carried_max = if direct { limits.frame_bytes_max / 2 } else { usize::MAX };
        let mut fresh_bytes = 0;
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a dirty log exists");
        for range in extents_of(&log.pending, log.pending_placed, self.limits.extent_bytes_max) {
            let bytes: usize = log.pending[range.clone()].iter().map(|p| p.len).sum();
            let cost = entry_bytes(EXTENT_HEADER_BYTES + bytes);
            let small = self.small_bytes + building.entry_bytes + cost;
            let own = log.small_bytes + fresh_bytes + cost;
            if !building.fits(cost) || small > small_max || own > carried_max {
                return;
            }
            // At the cap it waits for others to be settled.
            if self.small_count + building.fresh >= extents_max {
                return;
            }
            building.fresh += 1;
            fresh_bytes += cost;
            log.pending_placed = range.end;
            building.push(Item::Fresh(index, range), cost);
        }
    }

    /// Writes runs of a log's small extents and pending batches, as far as there are places for them.
    pub(super) fn add_runs(&mut self, index: LogIndex, purpose: Purpose, building: &mut Building) {
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
            if !building.fits(ASSIGN_BYTES + run_mark_bytes(notes))
                || building.run_bytes >= 2 * self.limits.frame_bytes_max
            {
                break;
            }
            let base = self.base_of(index, &run[0]);
            let Some(place) = self.segments.place(id, base, bytes as u32, segment_bytes, purpose) else {
                break;
            };
            self.add_run(index, run, bytes, place, building);
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
    fn add_run(
        &mut self,
        index: LogIndex,
        pieces: &[Piece],
        bytes: usize,
        place: Place,
        building: &mut Building,
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
            building.push(Item::Entry(Entry::Assign(assign)), ASSIGN_BYTES);
        }
        self.segments.apply_run(&mark).expect("the table chose the place itself");
        let cost = run_mark_bytes(mark.producers.len());
        building.push(Item::Entry(Entry::Run(mark)), cost);
        let (file, io, flush, at) = (place.file, place.io, place.flush, place.at);
        building.run_bytes += bytes;
        building.runs.push(BuiltRun { file, io, flush, at, view, buffer });
    }

    /// Lays out the frame, and lets state and tails follow. Returns it with its place in the ring.
    fn finish_frame(&mut self, building: &Building) -> (View, u64, BufferId) {
        let bytes = frame_bytes(building.entry_bytes);
        let frame_at = self.journal.place(bytes).expect("the room was asked for before");
        let sequence = self.journal.next_sequence();
        let epoch = self.leader_epoch();
        let mut buffer = Buffer::for_filling(bytes);
        let mut builder = FrameBuilder::new(buffer.memory_mut());
        let mut placed = Vec::new();
        for item in &building.items {
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
        assert_eq!(used, bytes, "the building knows the frame's length");
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
        for (index, _) in &building.touched {
            self.leave_pending(*index);
        }
        let laps = self.journal.laps();
        self.journal.took(frame_at, bytes, hash);
        if self.journal.laps() > laps {
            self.carried_in_lap = 0;
        }
        self.checkpoints.frame_built(bytes as u64);
        (view, frame_at, buffer)
    }

    /// The pending batches that are part of the cycle leave the queue, and with them the memory that they came in.
    fn leave_pending(&mut self, index: LogIndex) {
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
        match self.cycles.write_ended(tag, result) {
            WriteEnd::GoesOn(op) => ops.push(op),
            WriteEnd::Complete(buffer) => self.memory.release(buffer),
            WriteEnd::Failed(buffer, fault) => {
                self.memory.release(buffer);
                self.fail(fault);
            }
        }
        while let Some(cycle) = self.cycles.take_whole() {
            for (index, end) in &cycle.touched {
                let Some(log) = self.logs[index.0 as usize].as_deref_mut() else { continue };
                log.written = log.written.max(*end);
                if self.by_id.get(&log.id) != Some(index) {
                    continue;
                }
                let begun_ns = cycle.begun_ns;
                self.outcomes.push_back(Outcome::Written { log: log.id, upto: log.written, begun_ns });
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
        let flush = self.cycles.flush(wanted);
        self.counts.flushes += u64::from(!flush.is_empty());
        ops.extend(flush);
    }

    pub(super) fn on_flushed(&mut self, now: Now, result: Result<(), Fault>, ops: &mut Vec<Op>) {
        match self.cycles.flush_ended(result) {
            None => {}
            Some(Err(fault)) => self.fail(fault),
            Some(Ok(upto)) => {
                self.journal.flushed_upto(upto);
                while let Some(cycle) = self.cycles.take_flushed(upto) {
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
        for (file, _) in cycle.runs {
            self.segments.put_back(file);
        }
        self.segments.on_marked(cycle.mark);
        if cycle.content == Content::Entries {
            self.quiet.entries_flushed = cycle.sequence;
            self.quiet.since_ns = now.mono_ns;
        }
    }
}

fn is_of_data_files(event: &Event) -> bool {
    let number = match event {
        Event::Opened { file, .. } | Event::FileClosed { file } => file.0,
        Event::Written { tag, .. }
        | Event::Flushed { tag, .. }
        | Event::Removed { tag, .. }
        | Event::FreeSpace { tag, .. }
        | Event::Timer { tag } => tag.0,
        _ => return false,
    };
    matches!(number >> 48, DATA_FILES | DATA_FILE_TIMERS)
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

/// The copy of batches into the buffer that is written, with their final offset, epoch and time.
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

impl Building {
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
