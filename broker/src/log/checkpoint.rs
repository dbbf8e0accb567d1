//! Checkpoints: when one is taken, which slot it goes to, and which frames the kept ones still need.
//!
//! Three slots are written in turn, so that two whole ones are kept while the third is written. A frame is free when the
//! *older* kept checkpoint does not need it: recovery may have to fall back to that one.

use tidegate_protocol::disk::{BLOCK, checkpoint as layout};
use tidegate_protocol::ids::FrameSequence;
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Fault, Now, Op, Tag};

use super::journal::{SLOTS, slot_file};
use super::{Condition, Logs};

const TAGS: u64 = 0x0101 << 48;
const EIO: i32 = 5;

/// The kept checkpoints and the one that is being written.
#[derive(Debug)]
pub(super) struct Checkpoints {
    newest: Kept,
    older: Kept,
    next_slot: u32,
    state: State,
    /// Bytes of frames since the newest one that was taken.
    bytes_since: u64,
    whole: u64,
}

/// A whole checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The last frame that it covers.
    pub(super) sequence: FrameSequence,
    /// The first frame that a replay from it, or an extent in it, still needs.
    pub(super) bound: FrameSequence,
}

#[derive(Debug)]
enum State {
    Idle,
    /// Until frame N is flushed.
    Taken(Image),
    Writing(Image),
    Flushing(Image),
}

#[derive(Debug)]
struct Image {
    kept: Kept,
    data: View,
    /// Bytes of it that are written.
    done: usize,
}

impl Checkpoints {
    /// After a recovery from `newest`; `older` is the next older whole one, or the same. `next_slot` holds neither.
    pub(super) fn new(newest: Kept, older: Kept, next_slot: u32, bytes_since: u64) -> Checkpoints {
        Checkpoints { newest, older, next_slot: next_slot % SLOTS, state: State::Idle, bytes_since, whole: 0 }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether an op is under way.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.state, State::Writing(_) | State::Flushing(_))
    }

    /// The frame that has to be flushed before the slot may be written.
    pub(super) fn waits_for(&self) -> Option<FrameSequence> {
        match &self.state {
            State::Taken(image) => Some(image.kept.sequence),
            State::Idle | State::Writing(_) | State::Flushing(_) => None,
        }
    }

    pub(super) fn newest(&self) -> Kept {
        self.newest
    }

    pub(super) fn bytes_since(&self) -> u64 {
        self.bytes_since
    }

    /// Checkpoints that became whole since the start.
    pub(super) fn count(&self) -> u64 {
        self.whole
    }

    /// Bytes of memory that the one under way takes.
    pub(super) fn memory_bytes(&self) -> usize {
        match &self.state {
            State::Idle => 0,
            State::Taken(image) | State::Writing(image) | State::Flushing(image) => image.data.pinned(),
        }
    }

    /// A frame of `bytes` was built.
    pub(super) fn frame_built(&mut self, bytes: u64) {
        self.bytes_since += bytes;
    }

    /// The state after exactly the frames up to `kept.sequence`, as the bytes of a slot.
    pub(super) fn take(&mut self, kept: Kept, image: &[u8]) {
        assert!(self.is_idle(), "one checkpoint at a time");
        let data = Buffer::copy_of(image).freeze();
        self.state = State::Taken(Image { kept, data, done: 0 });
        self.bytes_since = 0;
    }

    /// Frames are flushed up to `flushed`: writes the slot if it waited for that.
    pub(super) fn on_frames_flushed(&mut self, flushed: FrameSequence, ops: &mut Vec<Op>) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Taken(image) if image.kept.sequence <= flushed => self.write(image, ops),
            other => self.state = other,
        }
    }

    fn write(&mut self, image: Image, ops: &mut Vec<Op>) {
        let rest = image.data.slice(image.done..image.data.len());
        let file = slot_file(self.next_slot);
        ops.push(Op::Write { file, at: image.done as u64, data: rest, tag: Tag(TAGS) });
        self.state = State::Writing(image);
    }

    /// The write of the slot has ended.
    pub(super) fn on_written(
        &mut self,
        result: Result<usize, Fault>,
        ops: &mut Vec<Op>,
    ) -> Result<(), Fault> {
        let State::Writing(mut image) = std::mem::replace(&mut self.state, State::Idle) else {
            panic!("a write of a slot ends while one is under way");
        };
        let done = result? / BLOCK * BLOCK;
        if done == 0 {
            return Err(Fault { what: "write of a checkpoint that wrote nothing".into(), errno: EIO });
        }
        image.done += done;
        if image.done < image.data.len() {
            self.write(image, ops);
        } else {
            ops.push(Op::Flush { file: slot_file(self.next_slot), tag: Tag(TAGS) });
            self.state = State::Flushing(image);
        }
        Ok(())
    }

    /// The flush of the slot has ended. The frames below the bound that is returned are free.
    pub(super) fn on_flushed(&mut self, result: Result<(), Fault>) -> Result<FrameSequence, Fault> {
        let State::Flushing(image) = std::mem::replace(&mut self.state, State::Idle) else {
            panic!("a flush of a slot ends while one is under way");
        };
        result?;
        self.older = self.newest;
        self.newest = image.kept;
        self.next_slot = (self.next_slot + 1) % SLOTS;
        self.whole += 1;
        Ok(self.older.bound)
    }
}

impl Logs {
    /// Takes a checkpoint if one is due: the state after exactly the last frame; what is pending is not part of it.
    pub(super) fn take_checkpoint(&mut self, now: Now, ops: &mut Vec<Op>) {
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
}
