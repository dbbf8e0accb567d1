//! When things happen: cycles, flushes, checkpoints, marks of a quiet shard, and what is done when ring or memory run low.

use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::disk::checkpoint as layout;
use tidegate_protocol::ids::{FrameSequence, TopicPartition};
use tidegate_reactor::op::{Event, Fault, Now, Op, OpenHow, Tag};

use super::answer::{AppendRefused, DurableToken, Outcome, Room};
use super::checkpoint::Kept;
use super::flight::{Content, Cycle, FlushWanted, WriteEnd};
use super::journal::{SLOTS, ring_file, ring_path, slot_file, slot_path};
use super::state::LogIndex;
use super::{Condition, Logs};
use crate::mutants::{self, Mutant};

const JOURNAL: u64 = 0x0100;
const CHECKPOINT: u64 = 0x0101;
const DATA_FILES: u64 = 0x0102;
const QUIET_TIMER: Tag = Tag(0x0104 << 48);
const DATA_FILE_TIMERS: u64 = 0x0105;

/// What a quiet shard still owes its journal: the mark of its last flush, and later a flush of that mark.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The last flushed frame that held entries.
    entries_flushed: FrameSequence,
    /// When the last flush of entries or the last frame with a mark alone was.
    since_ns: u64,
    /// When the timer that is under way will come.
    timer_at_ns: Option<u64>,
}

impl Quiet {
    /// What recovery has kept and flushed is not marked yet.
    pub(super) fn after_recovery(last: FrameSequence) -> Quiet {
        Quiet { entries_flushed: last, ..Quiet::default() }
    }
}

/// What has to be done about small extents of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// There are too many in all: carrying them would not help.
    Settle,
    /// They hold up their frames: settled or carried, whatever is cheaper.
    Move,
}

impl Logs {
    pub(super) fn open_files(&mut self, ops: &mut Vec<Op>) {
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

    /// Takes in what the drive did.
    pub fn on_event(&mut self, now: Now, event: Event, ops: &mut Vec<Op>) {
        match event {
            Event::Opened { file, result } if matches!(file.0 >> 48, JOURNAL | CHECKPOINT) => {
                self.opening -= 1;
                if let Err(fault) = result {
                    self.fail(fault);
                }
            }
            Event::Written { tag, result, .. } if tag.0 >> 48 == JOURNAL => self.on_written(tag, result, ops),
            Event::Flushed { tag, result, .. } if tag.0 >> 48 == JOURNAL => self.on_flushed(now, result, ops),
            Event::Written { tag, result, .. } if tag.0 >> 48 == CHECKPOINT => {
                if let Err(fault) = self.checkpoints.on_written(result, ops) {
                    self.fail(fault);
                }
            }
            Event::Flushed { tag, result, .. } if tag.0 >> 48 == CHECKPOINT => {
                match self.checkpoints.on_flushed(result) {
                    Ok(bound) => self.journal.free_below(bound),
                    Err(fault) => self.fail(fault),
                }
            }
            Event::Timer { tag } if tag == QUIET_TIMER => self.quiet.timer_at_ns = None,
            Event::Read { .. } => self.reader.on_event(event, &mut self.segments),
            other if is_of_data_files(&other) => self.segments.on_event(now, other, ops),
            other => panic!("an event that nobody asked for: {other:?}"),
        }
    }

    fn on_written(&mut self, tag: Tag, result: Result<usize, Fault>, ops: &mut Vec<Op>) {
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

    fn on_flushed(&mut self, now: Now, result: Result<(), Fault>, ops: &mut Vec<Op>) {
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

    /// A write or a flush has failed: no append is taken any more; reads go on.
    fn fail(&mut self, fault: Fault) {
        if !matches!(self.condition, Condition::Failed { .. }) {
            self.condition = Condition::Failed { fault, announced: false };
        }
    }

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
        if !self.dirty.is_empty() || !self.orders.is_empty() {
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

    /// Takes a checkpoint if one is due: the state after exactly the last frame; what is pending is not part of it.
    fn take_checkpoint(&mut self, now: Now, ops: &mut Vec<Op>) {
        let may_write = matches!(self.condition, Condition::Serving | Condition::Stopping);
        if !may_write || !self.checkpoints.is_idle() {
            return;
        }
        let last = self.journal.last_sequence();
        let next = FrameSequence(last.0 + 1);
        let bound = self.aging.first().map_or(next, |(frame, _)| *frame);
        let kept = Kept { sequence: last, bound };
        let newest = self.checkpoints.newest();
        let due = self.checkpoints.bytes_since() >= self.limits.checkpoint_interval_bytes;
        let stopping =
            matches!(self.condition, Condition::Stopping) && newest.sequence < last && self.cycles.len() == 0;
        if !(due || stopping || (self.ring_is_low() && self.frees_frames(kept))) {
            return;
        }
        let header = layout::CheckpointHeader {
            identity: self.journal.identity(),
            incarnation: self.journal.incarnation(),
            sequence: last,
            hash: self.journal.last_hash(),
            next_at: self.journal.head(),
        };
        let body = layout::CheckpointBody {
            logs: self.logs.iter().flatten().map(|log| log.state()).collect(),
            files: self.segments.state(),
            wall_ms: now.wall_ms,
        };
        let image = layout::encode(&header, &body);
        let (bytes, limit) = (image.len() as u64, self.limits.checkpoint_slot_bytes);
        assert!(
            bytes <= limit,
            "a checkpoint of {bytes} bytes for a slot of {limit}; the caps of limits.rs keep it within"
        );
        self.checkpoints.take(kept, &image);
        self.checkpoints.on_frames_flushed(self.journal.flushed(), ops);
    }

    /// Whether one or two checkpoints like this would let frames go.
    fn frees_frames(&self, kept: Kept) -> bool {
        let Some(oldest) = self.journal.oldest_held() else { return false };
        let newest = self.checkpoints.newest();
        newest.bound > oldest || kept.bound > newest.bound
    }

    /// Whether a log's small extents have to leave their frames.
    pub(super) fn urgency(&self, index: LogIndex) -> Option<Urgency> {
        let oldest = self.log(index).small.front()?;
        let age = self.journal.bytes_behind_head(oldest.frame_at);
        // Twice what is small in all: else carrying one log would make the next one old, for ever.
        let old = (self.limits.checkpoint_interval_bytes / 2).max(2 * self.small_bytes as u64);
        if age > old || (self.memory_is_low() && self.memory_is_sparse()) {
            return Some(Urgency::Move);
        }
        self.has_too_many_small().then_some(Urgency::Settle)
    }

    /// The least bytes of small extents for which a log is settled and not carried when its frame is emptied.
    pub(super) fn settle_threshold(&self) -> usize {
        let quarter = self.limits.ring_bytes() / 4;
        let much_carried = self.carried_in_lap > quarter;
        if much_carried || self.has_too_many_small() { 1 } else { self.limits.settle_min_bytes }
    }

    fn has_too_many_small(&self) -> bool {
        let bytes = self.small_bytes as u64;
        bytes > self.limits.ring_bytes() / 8
            || bytes > self.limits.memory_bytes as u64 / 4
            || self.small_count > self.limits.extents_max as usize / 2
    }

    fn ring_is_low(&self) -> bool {
        self.journal.free_bytes()
            < 2 * self.limits.ring_reserve_bytes() + 2 * self.limits.frame_bytes_max as u64
    }

    /// Memory that may be used before what is old has to leave.
    fn memory_high(&self) -> usize {
        self.limits.memory_bytes - 2 * self.limits.frame_bytes_max
    }

    /// Memory up to which settled records stay.
    fn tail_share(&self) -> usize {
        self.memory_high() / 2
    }

    pub(super) fn memory_used(&self) -> usize {
        self.memory.used() + self.checkpoints.memory_bytes() + self.staging.memory_bytes()
    }

    fn memory_is_low(&self) -> bool {
        self.memory_used() > self.memory_high() / 4 * 3
    }

    /// Whether buffers are kept alive by much less than they hold, so that carrying gives memory back.
    fn memory_is_sparse(&self) -> bool {
        self.memory.used() > 2 * self.small_bytes + 2 * self.limits.frame_bytes_max
    }

    /// Lets the oldest settled records leave memory while it is low.
    fn evict(&mut self) {
        while self.memory_used() > self.tail_share() {
            let Some(settled) = self.memory.next_evictable(self.journal.flushed()) else { return };
            if let Some(log) = self.logs[settled.log.0 as usize].as_deref_mut() {
                log.tail.drop_below(settled.upto, &mut self.memory);
                self.counts.tails_evicted += 1;
            }
        }
    }

    /// How much may be appended now.
    pub fn room(&self) -> Room {
        let none = |reason| Room { bytes: 0, reason };
        if !matches!(self.condition, Condition::Serving) {
            return none(Reason::Disk);
        }
        if self.ring_room() < self.limits.frame_bytes_max as u64 / 4 {
            return none(Reason::Disk);
        }
        // The tail may grow to its share whatever is promised now.
        let used = self.memory_used().max(self.tail_share());
        let bytes = self.memory_high().saturating_sub(used) as u64;
        let reason = if bytes < self.limits.memory_bytes as u64 / 8 { Reason::Memory } else { Reason::None };
        Room { bytes, reason }
    }

    /// Bytes of frames that produce may still fill, so that trims, internal logs and carrying keep their reserve.
    fn ring_room(&self) -> u64 {
        self.journal
            .free_bytes()
            .saturating_sub(self.limits.ring_reserve_bytes() + self.limits.frame_bytes_max as u64)
    }

    /// The part of a frame of `room` bytes that may hold what clients produce.
    pub(super) fn ordinary_room(&self, room: usize) -> usize {
        room.min(self.ring_room() as usize)
    }

    /// The last check before an append: the bounds that nothing may pass, whatever credit was given before.
    pub(super) fn check_room(&self, log: TopicPartition, bytes: usize) -> Result<(), AppendRefused> {
        let wanted = bytes as u64;
        let refuse = |reason, room| Err(AppendRefused::NoRoom { reason, wanted, room });
        if log.topic.is_internal() {
            return Ok(());
        }
        // A full ring is no reason: what is appended waits in memory until frames are free again. A full drive is.
        if self.ring_room() == 0 && self.segments.full().is_some_and(Fault::is_full) {
            return Err(AppendRefused::DiskFull);
        }
        let memory = self.limits.memory_bytes.saturating_sub(self.memory_used());
        if bytes > memory {
            return refuse(Reason::Memory, memory as u64);
        }
        if self.small_count >= self.limits.extents_max as usize {
            return refuse(Reason::Disk, 0);
        }
        Ok(())
    }

    fn mark_is_due(&self, now: Now) -> bool {
        self.owes_mark() && now.mono_ns >= self.quiet.since_ns + self.limits.mark_after_ns
    }

    /// Whether the last flush of entries is not marked yet and no frame under way will do so.
    fn owes_mark(&self) -> bool {
        let serving = matches!(self.condition, Condition::Serving);
        serving && self.cycles.len() == 0 && self.journal.marked() < self.quiet.entries_flushed
    }

    fn mark_flush_is_due(&self, now: Now) -> bool {
        self.owes_mark_flush() && now.mono_ns >= self.quiet.since_ns + self.limits.mark_flush_after_ns
    }

    fn owes_mark_flush(&self) -> bool {
        self.cycles.len() > 0 && !self.cycles.has_entries() && self.cycles.is_quiet()
    }

    fn set_timer(&mut self, now: Now, ops: &mut Vec<Op>) {
        if self.quiet.timer_at_ns.is_some() {
            return;
        }
        let after = if self.owes_mark() {
            self.limits.mark_after_ns
        } else if self.owes_mark_flush() {
            self.limits.mark_flush_after_ns
        } else {
            return;
        };
        // What is overdue and cannot be written yet is not asked for again at once.
        const AGAIN_NS: u64 = 1_000_000;
        let at_ns = (self.quiet.since_ns + after).max(now.mono_ns + AGAIN_NS);
        self.quiet.timer_at_ns = Some(at_ns);
        ops.push(Op::Timer { at_ns, tag: QUIET_TIMER });
    }

    /// Tells those who wait once everything that can still be flushed has been.
    fn announce_failure(&mut self) {
        let Condition::Failed { fault, announced } = &mut self.condition else { return };
        if *announced || !self.cycles.is_settled_after_failure() {
            return;
        }
        *announced = true;
        for log in self.logs.iter().flatten().filter(|log| log.appended > log.durable) {
            let fault = fault.clone();
            self.outcomes.push_back(Outcome::Unknown { log: log.id, from: log.durable, fault });
        }
    }
}

fn is_of_data_files(event: &Event) -> bool {
    let number = match event {
        Event::Opened { file, .. } | Event::FileClosed { file } => file.0,
        Event::Written { tag, .. }
        | Event::Flushed { tag, .. }
        | Event::Removed { tag, .. }
        | Event::Timer { tag } => tag.0,
        _ => return false,
    };
    matches!(number >> 48, DATA_FILES | DATA_FILE_TIMERS)
}
