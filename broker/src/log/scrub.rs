//! The scrub: reads what nobody asks for, so that damage is found while it can still be mended.
//!
//! A pass goes through the runs of every data file and then through the frames of the journal that are not free. It has one
//! read at the drive at a time, none while readers wait for theirs, and no more bytes a second than it may. A run that does not
//! match its checksums is read again record by record, as a reader would: what a reader is refused is told as his refusal is.
//! All records of a damaged frame are in memory; they are written anew, and a checkpoint then makes the frame superfluous.

use std::collections::BTreeSet;

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::frame::{Frame, FrameHeader};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::ids::{FileId, FrameSequence, Generation, Offset, TopicPartition};
use tidegate_reactor::op::{Event, Fault, Now, Op, Tag};

use super::answer::{Outcome, ReadBatches, ReadRefused};
use super::index::{Answer, Entry};
use super::journal::ring_path;
use super::notice::Notice;
use super::{Condition, Logs};
use crate::limits::FileLimits;

/// The upper 16 bits of the tags of the scrub.
pub(super) const SCRUB: u64 = 0x0106;
const READ: Tag = Tag(SCRUB << 48 | 1);
const AGAIN: Tag = Tag(SCRUB << 48 | 2);

/// Bytes read at once, unless one run or frame is larger.
const PIECE_BYTES: usize = 256 << 10;
/// Nanoseconds from a start to the first pass, if passes are not wanted more often.
const FIRST_AFTER_NS: u64 = 60_000_000_000;
/// Places of damage remembered, so that the next pass does not tell them again.
const TOLD_MAX: usize = 4096;

/// How far the scrub of a shard has come.
///
/// Invariant: at most one op is under way, `reading`; while a suspect run is read again it is none of the scrub's own.
#[derive(Debug)]
pub(super) struct Scrub {
    limits: FileLimits,
    stage: Stage,
    reading: Option<Reading>,
    /// When the next read may begin; none before the first turn.
    due_ns: Option<u64>,
    timer_at_ns: Option<u64>,
    began_ns: u64,
    is_stopped: bool,
    told: BTreeSet<(FileId, Generation, u64)>,
    /// The newest damaged frame; what lies in it and in older ones is written anew.
    rescue: Option<FrameSequence>,
    bytes: u64,
    pass_bytes: u64,
    pass_of_bytes: u64,
    passes: u64,
    passed_at_ms: i64,
    damaged: u64,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Between two passes.
    Resting,
    /// In front of the runs of a data file.
    Runs(Place),
    /// A run is read again.
    Suspect(Suspect),
    /// In front of a frame.
    Frames(FramePlace),
}

/// In front of a run.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: FileId,
    generation: Generation,
    pos: u64,
    /// The run begins at this offset, or behind it.
    expected: Offset,
    /// Bytes that the piece has to hold.
    least: usize,
}

/// A run that does not match its checksums.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    place: Place,
    log: TopicPartition,
    /// What of it is still to be read again.
    from: Offset,
    upto: Offset,
    /// Where the next run begins; none: the header that says so is damaged, and the refusal says where runs are known again.
    next: Option<u64>,
    /// Whether a reader is refused any of it.
    is_refused: bool,
    /// Of the read under way.
    ticket: Option<u64>,
}

/// In front of the first frame from that sequence on that must not be overwritten.
#[derive(Clone, Copy, Debug)]
struct FramePlace {
    sequence: FrameSequence,
    least: usize,
    /// Whether it did not lie where its predecessor ends: then it lies at the start of the ring's next file.
    at_next_file: bool,
}

#[derive(Clone, Copy, Debug)]
enum Reading {
    /// Runs up to `flushed` bytes were flushed when the read began.
    Runs { place: Place, len: usize, flushed: u64 },
    /// The ring from `at`; frames up to `flushed` were flushed when the read began.
    Frames { place: FramePlace, at: u64, len: usize, flushed: FrameSequence },
}

impl Scrub {
    /// Before the first pass.
    pub(super) fn new(limits: FileLimits) -> Scrub {
        Scrub {
            limits,
            stage: Stage::Resting,
            reading: None,
            due_ns: None,
            timer_at_ns: None,
            began_ns: 0,
            is_stopped: false,
            told: BTreeSet::new(),
            rescue: None,
            bytes: 0,
            pass_bytes: 0,
            pass_of_bytes: 0,
            passes: 0,
            passed_at_ms: 0,
            damaged: 0,
        }
    }

    /// Begins no further read.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether no read of its own is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.reading.is_none()
    }

    /// The newest damaged frame that may still be needed.
    pub(super) fn rescue(&self) -> Option<FrameSequence> {
        self.rescue
    }

    /// Whether the end of that read is awaited here.
    pub(super) fn awaits(&self, ticket: u64) -> bool {
        matches!(self.stage, Stage::Suspect(Suspect { ticket: Some(mine), .. }) if mine == ticket)
    }

    /// Counters and gauges by name.
    pub(super) fn stats(&self) -> [(&'static str, i64); 6] {
        [
            ("scrub_bytes", self.bytes as i64),
            ("scrub_pass_bytes", self.pass_bytes as i64),
            ("scrub_pass_of_bytes", self.pass_of_bytes as i64),
            ("scrub_passes", self.passes as i64),
            ("scrub_passed_at_ms", self.passed_at_ms),
            ("scrub_damaged", self.damaged as i64),
        ]
    }

    fn reads(&mut self, now: Now, reading: Reading, bytes: usize) {
        self.reading = Some(reading);
        let ns = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.limits.scrub_bytes_per_s);
        self.due_ns = Some(now.mono_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX)));
    }

    fn set_timer(&mut self, at_ns: u64, ops: &mut Vec<Op>) {
        if self.timer_at_ns.is_none() {
            self.timer_at_ns = Some(at_ns);
            ops.push(Op::Timer { at_ns, tag: AGAIN });
        }
    }

    fn pass_ends(&mut self, now: Now) {
        // At least a little later, however short the wanted interval is.
        const PAUSE_NS: u64 = 1_000_000;
        self.stage = Stage::Resting;
        self.passes += 1;
        self.passed_at_ms = now.wall_ms;
        (self.pass_bytes, self.pass_of_bytes) = (0, 0);
        let next_ns = self.began_ns.saturating_add(self.limits.scrub_interval_ns);
        self.due_ns = Some(next_ns.max(now.mono_ns + PAUSE_NS));
    }

    /// Counts a place of damage; whether it was not known.
    fn is_news(&mut self, file: FileId, generation: Generation, at: u64) -> bool {
        let is_news = self.told.len() < TOLD_MAX && self.told.insert((file, generation, at));
        self.damaged += u64::from(is_news);
        is_news
    }
}

impl Logs {
    /// The end of a pass of the turn, behind the reads of clients: goes on with the scrub.
    pub(super) fn scrub(&mut self, now: Now, ops: &mut Vec<Op>) {
        if self.scrub.limits.scrub_bytes_per_s == 0 {
            return;
        }
        let first = now.mono_ns.saturating_add(self.scrub.limits.scrub_interval_ns.min(FIRST_AFTER_NS));
        loop {
            let due_ns = *self.scrub.due_ns.get_or_insert(first);
            if self.scrub.is_stopped || self.opening > 0 || self.scrub.reading.is_some() {
                return;
            }
            if now.mono_ns < due_ns {
                return self.scrub.set_timer(due_ns, ops);
            }
            // The end of one of them brings the next turn.
            if self.reader.is_waited_for() {
                return;
            }
            let goes_on = match self.scrub.stage {
                Stage::Resting => self.scrub_begins(now),
                Stage::Runs(place) => self.scrub_runs(now, place, ops),
                Stage::Suspect(suspect) => self.scrub_again(suspect, ops),
                Stage::Frames(place) => self.scrub_frames(now, place, ops),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The end of one of its ops.
    pub(super) fn on_scrub_event(&mut self, event: Event) {
        let result = match event {
            Event::Timer { .. } => {
                self.scrub.timer_at_ns = None;
                return;
            }
            Event::Read { result, .. } => result,
            other => panic!("not an event of the scrub: {other:?}"),
        };
        let reading = self.scrub.reading.take().expect("only what was asked for is read");
        if let Ok(buffer) = &result {
            self.scrub.bytes += buffer.len() as u64;
            self.scrub.pass_bytes += buffer.len() as u64;
        }
        match reading {
            Reading::Runs { place, len, flushed } => {
                self.segments.put_back(place.file);
                match result {
                    Ok(buffer) => self.check_runs(place, len, flushed, &buffer),
                    Err(fault) => self.scrub_fault(place, fault),
                }
            }
            Reading::Frames { place, at, len, flushed } => match result {
                Ok(buffer) => self.check_frames(place, at, len, flushed, &buffer),
                Err(fault) => self.frames_unreadable(at, flushed, fault),
            },
        }
    }

    /// A data file could not be opened: if the scrub waits for it, it goes on with the next one.
    pub(super) fn scrub_open_failed(&mut self, file: FileId, fault: Fault) {
        if let Stage::Runs(place) = self.scrub.stage
            && place.file == file
        {
            self.scrub_fault(place, fault);
        }
    }

    fn scrub_begins(&mut self, now: Now) -> bool {
        self.scrub.began_ns = now.mono_ns;
        let files = self.segments.table.iter().filter_map(|(_, data)| data.segment.as_ref());
        let frames = self.limits.ring_bytes() - self.journal.free_bytes();
        self.scrub.pass_of_bytes = files.map(|segment| segment.written).sum::<u64>() + frames;
        self.scrub.pass_bytes = 0;
        self.next_file(None);
        true
    }

    fn next_file(&mut self, after: Option<FileId>) {
        self.scrub.stage = match self.segments.table.owned_after(after) {
            Some((file, generation, segment)) => {
                Stage::Runs(Place { file, generation, pos: 0, expected: segment.base, least: 0 })
            }
            None => Stage::Frames(FramePlace { sequence: FrameSequence(0), least: 0, at_next_file: false }),
        };
    }

    /// Reads the runs at a place. Whether it goes on at once.
    fn scrub_runs(&mut self, now: Now, place: Place, ops: &mut Vec<Op>) -> bool {
        let Some((written, end, log)) = self.place_of(place) else {
            self.next_file(Some(place.file));
            return true;
        };
        let start = self.find_log(log).map_or(end, |log| log.start);
        // A run is the journal's as soon as it is being written.
        let flushed = self.cycles.unflushed_from(place.file).map_or(written, |at| at.min(written));
        if place.pos >= flushed || end <= start {
            self.next_file(Some(place.file));
            return true;
        }
        let left = usize::try_from(flushed - place.pos).unwrap_or(usize::MAX);
        let len = PIECE_BYTES.max(place.least).min(left);
        let Some(io) = self.segments.handles.take(place.file, ops) else { return false };
        self.scrub.reads(now, Reading::Runs { place, len, flushed }, len);
        ops.push(Op::Read { file: io, at: place.pos, len, tag: READ });
        false
    }

    /// What the file holds, if it is still what it was: bytes of runs, the end of its offsets, its log.
    fn place_of(&self, place: Place) -> Option<(u64, Offset, TopicPartition)> {
        let data = self.segments.table.get(place.file).filter(|data| data.generation == place.generation)?;
        data.segment.as_ref().map(|segment| (segment.written, segment.end, segment.log))
    }

    fn check_runs(&mut self, mut place: Place, len: usize, flushed: u64, bytes: &[u8]) {
        let Some((_, end, log)) = self.place_of(place) else { return self.next_file(Some(place.file)) };
        let (start, durable) = self.find_log(log).map_or((end, end), |log| (log.start, log.durable));
        place.least = 0;
        let mut at = 0;
        while place.pos < flushed {
            let rest = &bytes[at..];
            if rest.len() < BLOCK && at > 0 {
                break;
            }
            let run = RunHeader::decode(rest).ok().filter(|run| {
                let is_its = (run.cluster, run.file) == (self.boot.identity.cluster, place.file);
                is_its
                    && (run.generation, run.log) == (place.generation, log)
                    && run.base == place.expected
                    && place.pos + u64::from(run.bytes) <= flushed
            });
            let mut suspect = Suspect {
                place,
                log,
                from: place.expected,
                upto: end.min(durable),
                next: None,
                is_refused: false,
                ticket: None,
            };
            if let Some(run) = run {
                let run_bytes = run.bytes as usize;
                if run_bytes > rest.len() && (at > 0 || run_bytes > len) {
                    place.least = run_bytes;
                    break;
                }
                let next = place.pos + u64::from(run.bytes);
                if run.end <= start || RunHeader::decode_whole(rest).is_ok() {
                    at += run_bytes.min(rest.len());
                    (place.pos, place.expected) = (next, run.end);
                    continue;
                }
                (suspect.from, suspect.upto, suspect.next) = (run.base, run.end, Some(next));
            }
            suspect.from = suspect.from.max(start);
            self.scrub.stage = Stage::Suspect(suspect);
            return;
        }
        if place.pos >= flushed {
            return self.next_file(Some(place.file));
        }
        self.scrub.stage = Stage::Runs(place);
    }

    /// Reads what is suspect as a reader would. Whether the scrub goes on at once.
    fn scrub_again(&mut self, suspect: Suspect, ops: &mut Vec<Op>) -> bool {
        if suspect.ticket.is_some() {
            return false;
        }
        let ticket = self.ticket();
        let Suspect { log, from, upto, .. } = suspect;
        if from >= upto || self.reader.read(log, from, upto, PIECE_BYTES, ticket).is_err() {
            self.next_file(Some(suspect.place.file));
            return true;
        }
        self.scrub.stage = Stage::Suspect(Suspect { ticket: Some(ticket), ..suspect });
        self.reader.pump(&mut self.segments, ops);
        self.pass_reads_on();
        !self.scrub.awaits(ticket)
    }

    /// The end of such a read.
    pub(super) fn on_read_again(&mut self, result: Result<ReadBatches, ReadRefused>) {
        let Stage::Suspect(mut suspect) = self.scrub.stage else { return };
        suspect.ticket = None;
        match result {
            Ok(_) if suspect.next.is_none() => return self.suspect_is_none(&suspect),
            Ok(batches) => suspect.from = batches.end,
            Err(ReadRefused::Damaged { file, bytes, from, upto }) => {
                suspect.is_refused = true;
                suspect.from = upto.max(suspect.from.plus(1));
                let place = suspect.place;
                self.scrub.is_news(place.file, place.generation, place.pos);
                let behind = bytes.end.max(place.pos + BLOCK as u64);
                let refused = ReadRefused::Damaged { file, bytes, from, upto };
                self.outcomes.push_back(Outcome::Damaged { log: suspect.log, refused });
                if suspect.next.is_none() {
                    suspect.next = Some(behind);
                    suspect.upto = suspect.from;
                }
            }
            Err(ReadRefused::Fault(fault)) => return self.scrub_fault(suspect.place, fault),
            Err(_) => return self.next_file(Some(suspect.place.file)),
        }
        match suspect.next.filter(|_| suspect.from >= suspect.upto) {
            Some(next) => self.suspect_ends(suspect, next),
            None => self.scrub.stage = Stage::Suspect(suspect),
        }
    }

    /// Nothing is refused from a damaged header on: its run was trimmed, or it is sound after all and was not looked at. The
    /// reader has learnt where the first run lies that is not trimmed.
    fn suspect_is_none(&mut self, suspect: &Suspect) {
        let Place { file, pos, .. } = suspect.place;
        let segment = self.segments.table.segment(file);
        match segment.map(|segment| segment.index.by_offset(suspect.from, segment.written)) {
            Some(Answer::In(Entry { at, base, .. })) if at > pos => {
                self.scrub.stage = Stage::Runs(Place { pos: at, expected: base, least: 0, ..suspect.place });
            }
            _ => self.next_file(Some(file)),
        }
    }

    /// A suspect run has been read again; the scrub goes on behind it, at byte `next`.
    fn suspect_ends(&mut self, suspect: Suspect, next: u64) {
        let Place { file, generation, pos, .. } = suspect.place;
        if !suspect.is_refused && self.scrub.is_news(file, generation, pos) {
            self.outcomes.push_back(Outcome::Notice(Notice::RunUnsound { file, at: pos }));
        }
        let expected = suspect.upto;
        self.scrub.stage = Stage::Runs(Place { pos: next, expected, least: 0, ..suspect.place });
    }

    /// The rest of a file cannot be read now.
    fn scrub_fault(&mut self, place: Place, fault: Fault) {
        let Place { file, generation, pos, .. } = place;
        if self.scrub.is_news(file, generation, pos) {
            let what = format!("data file {file}");
            self.outcomes.push_back(Outcome::Notice(Notice::NotScrubbed { file: what, at: pos, fault }));
        }
        self.next_file(Some(file));
    }

    /// Reads the frames at a place. Whether it goes on at once.
    fn scrub_frames(&mut self, now: Now, place: FramePlace, ops: &mut Vec<Op>) -> bool {
        let flushed = self.journal.flushed();
        let held = self.journal.held_from(place.sequence).next().filter(|held| held.sequence <= flushed);
        // Of a shard that writes no more, recovery or the fault has said what there is to say.
        let Some(held) = held.filter(|_| matches!(self.condition, Condition::Serving)) else {
            self.scrub.pass_ends(now);
            return true;
        };
        let at = if place.at_next_file { self.journal.next_file_from(held.at) } else { held.at };
        let (file, within) = self.journal.file_of(at);
        let left = usize::try_from(self.limits.ring_file_bytes - within).unwrap_or(usize::MAX);
        let len = PIECE_BYTES.max(place.least).min(left);
        self.scrub.reads(now, Reading::Frames { place, at, len, flushed }, len);
        ops.push(Op::Read { file, at: within, len, tag: READ });
        false
    }

    fn check_frames(&mut self, place: FramePlace, at: u64, len: usize, flushed: FrameSequence, bytes: &[u8]) {
        let mut next = FramePlace { least: 0, at_next_file: false, ..place };
        let held: Vec<_> = self.journal.held_from(place.sequence).copied().collect();
        for frame in held {
            // What has become free meanwhile may be overwritten, and is not among these.
            let is_first = next.sequence == place.sequence;
            let frame_at = if is_first && place.at_next_file { at } else { frame.at };
            let in_piece = (at..at + len as u64).contains(&frame_at);
            if frame.sequence > flushed || !in_piece {
                break;
            }
            let rest = bytes.get((frame_at - at) as usize..).unwrap_or_default();
            let header = FrameHeader::decode(rest)
                .ok()
                .filter(|h| h.identity == self.journal.identity() && h.sequence == frame.sequence);
            let frame_bytes = header.map_or(0, |h| h.bytes as usize);
            if frame_bytes > rest.len() && (frame_at > at || frame_bytes > len) {
                next.least = frame_bytes;
                break;
            }
            if header.is_none() && !(is_first && place.at_next_file) {
                // Of a frame older than the newest checkpoint recovery knows only where its predecessor ends.
                next = FramePlace { sequence: frame.sequence, least: 0, at_next_file: true };
                break;
            }
            if header.is_none() || Frame::decode_whole(rest).is_err() {
                self.frame_is_damaged(frame.sequence, frame.at);
            }
            next.sequence = FrameSequence(frame.sequence.0 + 1);
        }
        self.scrub.stage = Stage::Frames(next);
    }

    /// What lies in a damaged frame is still in memory: it is written anew, and a checkpoint made behind it.
    fn frame_is_damaged(&mut self, frame: FrameSequence, at: u64) {
        self.scrub.damaged += 1;
        self.scrub.rescue = self.scrub.rescue.max(Some(frame));
        let (file, within) = self.ring_name(at);
        self.outcomes.push_back(Outcome::Notice(Notice::FrameDamaged { file, at: within, frame }));
    }

    /// The ring cannot be read there: it is not known which of its frames are damaged.
    fn frames_unreadable(&mut self, at: u64, flushed: FrameSequence, fault: Fault) {
        self.scrub.damaged += 1;
        self.scrub.rescue = self.scrub.rescue.max(Some(flushed));
        let (file, within) = self.ring_name(at);
        self.outcomes.push_back(Outcome::Notice(Notice::NotScrubbed { file, at: within, fault }));
        self.scrub.stage =
            Stage::Frames(FramePlace { sequence: FrameSequence(u64::MAX), least: 0, at_next_file: false });
    }

    fn ring_name(&self, at: u64) -> (String, u64) {
        let (index, within) = self.journal.index_of(at);
        let path = ring_path(&self.boot.root, self.journal.identity().journal, index);
        (path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(), within)
    }

    /// A checkpoint is whole: frames that it does not need any more are no concern.
    pub(super) fn scrub_checkpointed(&mut self) {
        let newest = self.checkpoints.newest();
        if self.scrub.rescue.is_some_and(|frame| newest.sequence >= frame && newest.bound > frame) {
            self.scrub.rescue = None;
        }
    }
}
