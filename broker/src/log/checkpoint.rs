//! Checkpoints: when one is taken, which slot it goes to, and which frames the kept ones still need.
//!
//! Three slots are written in turn, so that two whole ones are kept while the third is written. A frame is free when the
//! *older* kept checkpoint does not need it: recovery may have to fall back to that one.

use tidegate_logic::producer::WINDOW_MIN;
use tidegate_logic::topics::{IDEMPOTENCE_WINDOW_MAX, IDEMPOTENCE_WINDOW_MIN};
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader, LogState, ProducerState};
use tidegate_protocol::ids::FrameSequence;
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Fault, Now, Op, Tag};

use super::journal::{SLOTS, slot_file};
use super::{Condition, Logs};
use crate::limits::Limits;
use crate::mutants::{self, Mutant};

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

/// A state that does not fit a slot. The caps on appends, logs and files keep a live shard from it; a directory written under
/// larger ones may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge {
    /// Bytes that it takes.
    pub(super) bytes: u64,
    /// Bytes that there are.
    pub(super) limit: u64,
}

/// A checkpoint as the bytes of its slot.
pub(super) fn image(
    header: &CheckpointHeader,
    mut body: CheckpointBody,
    limits: &Limits,
) -> Result<Vec<u8>, TooLarge> {
    if mutants::on(Mutant::ProducersForgotten) {
        body.logs.iter_mut().for_each(|log| log.producers.clear());
    }
    cut_producers(&mut body.logs, limits.batches_remembered_max as usize);
    let image = checkpoint::encode(header, &body);
    let (bytes, limit) = (image.len() as u64, limits.checkpoint_slot_bytes);
    if bytes <= limit { Ok(image) } else { Err(TooLarge { bytes, limit }) }
}

/// Leaves out what is remembered of producers beyond the cap: the oldest batches of those of whom most is remembered, then
/// the longest silent ones. A live shard stays below the cap; one that was just recovered and does not know its topics' windows
/// yet has remembered more than they want. What is left out is refused if it is sent again, never stored twice.
fn cut_producers(logs: &mut [LogState], batches_max: usize) {
    let producers_max = batches_max / usize::from(IDEMPOTENCE_WINDOW_MIN);
    let kept = |logs: &[LogState], window: usize| -> usize {
        logs.iter().flat_map(|log| &log.producers).map(|p| p.batches.len().min(window)).sum()
    };
    let mut windows = (WINDOW_MIN..=usize::from(IDEMPOTENCE_WINDOW_MAX)).rev();
    let window = windows.find(|window| kept(logs, *window) <= batches_max).unwrap_or(WINDOW_MIN);
    for producer in logs.iter_mut().flat_map(|log| &mut log.producers) {
        let surplus = producer.batches.len().saturating_sub(window);
        producer.batches.drain(..surplus);
    }
    let mut batches = kept(logs, window);
    let mut producers: usize = logs.iter().map(|log| log.producers.len()).sum();
    if batches <= batches_max && producers <= producers_max {
        return;
    }
    let mut by_silence: Vec<(i64, usize, i64)> = Vec::new();
    for (at, log) in logs.iter().enumerate() {
        let last = |p: &ProducerState| p.batches.last().map_or(i64::MIN, |batch| batch.append_time_ms);
        by_silence.extend(log.producers.iter().map(|p| (last(p), at, p.producer)));
    }
    by_silence.sort_unstable();
    for (_, at, id) in by_silence {
        if batches <= batches_max && producers <= producers_max {
            return;
        }
        let log = &mut logs[at];
        let Ok(place) = log.producers.binary_search_by_key(&id, |p| p.producer) else { continue };
        let gone = log.producers.remove(place);
        (batches, producers) = (batches - gone.batches.len(), producers - 1);
        let (highest_id, highest_epoch) = log.forgotten.unwrap_or((id, gone.epoch));
        log.forgotten = Some((highest_id.max(id), highest_epoch.max(gone.epoch)));
    }
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
            State::Taken(image)
                if image.kept.sequence <= flushed || mutants::on(Mutant::CheckpointBeforeItsFrames) =>
            {
                self.write(image, ops);
            }
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
        if !mutants::on(Mutant::CheckpointOverNewest) {
            self.next_slot = (self.next_slot + 1) % SLOTS;
        }
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
        let alive = self.aging.first().filter(|_| !mutants::on(Mutant::FramesFreedAlive));
        let bound = alive.map_or(next, |(frame, _)| *frame);
        let kept = Kept { sequence: last, bound };
        let newest = self.checkpoints.newest();
        let due = self.checkpoints.bytes_since() >= self.limits.checkpoint_interval_bytes;
        let stopping =
            matches!(self.condition, Condition::Stopping) && newest.sequence < last && self.cycles.len() == 0;
        // What lies in a damaged frame has been written anew.
        let rescued = self.scrub.rescue().is_some_and(|frame| bound > frame && last >= frame);
        if !(due || stopping || rescued || (self.ring_is_low() && self.frees_frames(kept))) {
            return;
        }
        // Before the topics have said what they want, more is remembered of producers than has to fit.
        if !stopping && self.logs.iter().flatten().any(|log| !log.knows_options()) {
            return;
        }
        let header = CheckpointHeader {
            identity: self.journal.identity(),
            incarnation: self.journal.incarnation(),
            sequence: last,
            hash: self.journal.last_hash(),
            next_at: self.journal.head(),
        };
        let body = CheckpointBody {
            logs: self.logs.iter().flatten().map(|log| log.state()).collect(),
            files: self.segments.state(),
            wall_ms: now.wall_ms,
        };
        let image =
            image(&header, body, &self.limits).expect("the caps of limits.rs keep it within its slot");
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

#[cfg(test)]
mod tests {
    use tidegate_protocol::disk::checkpoint::ProducerBatch;

    use super::*;

    /// Producers of one log with so many batches each; the later a producer, the longer it has been silent.
    fn log(partition: i32, batches: &[usize]) -> LogState {
        let producer = |(id, batches): (i64, &usize)| ProducerState {
            producer: id,
            epoch: 0,
            batches: (0..*batches as i64)
                .map(|n| ProducerBatch {
                    base_sequence: n as i32,
                    record_count: 1,
                    base: n,
                    append_time_ms: 1000 - id,
                })
                .collect(),
        };
        LogState {
            topic: [1; 16],
            partition,
            start: 0,
            appended: 1000,
            append_time_ms: 1000,
            extents: Vec::new(),
            producers: (0..).zip(batches).map(producer).collect(),
            forgotten: None,
        }
    }

    fn cut(logs: &[LogState], batches_max: usize) -> Vec<Vec<(i64, usize)>> {
        let mut logs = logs.to_vec();
        cut_producers(&mut logs, batches_max);
        let of = |log: &LogState| log.producers.iter().map(|p| (p.producer, p.batches.len())).collect();
        logs.iter().map(of).collect()
    }

    #[test]
    fn what_is_remembered_beyond_the_cap_is_left_out_where_it_is_most_and_then_of_the_longest_silent() {
        let logs = [log(0, &[256, 10]), log(1, &[20, 5])];
        assert_eq!(cut(&logs, 291), [[(0, 256), (1, 10)], [(0, 20), (1, 5)]], "all of it");
        assert_eq!(cut(&logs, 100), [[(0, 65), (1, 10)], [(0, 20), (1, 5)]]);
        assert_eq!(
            cut(&logs, 64),
            [[(0, 29), (1, 10)], [(0, 20), (1, 5)]],
            "four producers, as many as there may be"
        );
        assert_eq!(cut(&logs, 48), [vec![(0, 16)], vec![(0, 16), (1, 5)]], "one too many");
        assert_eq!(cut(&logs, 19), [vec![], vec![(0, 5)]], "a window of five has to be left");
        let mut logs = logs.to_vec();
        cut_producers(&mut logs, 48);
        assert_eq!((logs[0].forgotten, logs[1].forgotten), (Some((1, 0)), None), "never taken for a new one");
        let newest = logs[0].producers[0].batches.last().map(|batch| batch.base);
        assert_eq!(newest, Some(255), "the oldest batches go");
    }
}
