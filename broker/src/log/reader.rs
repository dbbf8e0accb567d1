//! Reads: whole batches, from memory (`recent`) or from data files. `search` finds offsets by time, `gap` the next run behind a
//! damaged run header.
//!
//! A cold read is put into a queue; `pump` submits it. It finds its segment, then its run in the index (hopping over run headers
//! that are not known yet), then reads a block-aligned piece. An extent is handed out after its run's header and owner, its own
//! header, log and offsets, and the checksum of its payload were found right; what is sound in front of damage is served. Reads
//! beyond [`FileLimits::reads_max`] wait their turn; beyond [`FileLimits::reads_waiting_max`] they are refused.

mod gap;
mod places;
mod search;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tidegate_protocol::batch::Batches;
use tidegate_protocol::crc;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::disk::run_scan::{Cursor, Rest, RunOwner, Scan, Step};
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::{ClusterId, FileId, Generation, Offset, TopicPartition};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Event, Fault, Op, Tag};

use super::Logs;
use super::answer::{Found, Outcome, ReadBatches, ReadRefused, ReadStart};
use super::file_table::Segment;
use super::index::{Answer, Entry, Holds};
use super::scan::ENOENT;
use super::segment::Segments;
use super::state::LostFrames;
use crate::limits::FileLimits;

use self::gap::Seek;
use self::places::Places;
pub use self::search::Time;
pub(super) use self::search::{ColdFind, first_at, may_hold};

/// The upper 16 bits of the tags of reads.
const TAG_SPACE: u64 = 0x0103 << 48;

/// All cold reads of a shard.
///
/// Invariants: at most [`FileLimits::reads_max`] ops are under way, each of one job; every other job is in `waiting`.
#[derive(Debug)]
pub struct ColdReader {
    limits: FileLimits,
    cluster: ClusterId,
    jobs: BTreeMap<u64, Job>,
    /// Jobs without an op, in their order.
    waiting: VecDeque<u64>,
    /// Ops under way, by the number in their tag.
    under_way: BTreeMap<u64, UnderWay>,
    ops_submitted: u64,
    places: Places,
    done: Vec<(u64, Done)>,
    bytes_read: u64,
}

/// How a cold read has ended.
#[derive(Clone, Debug)]
pub enum Done {
    /// One begun by [`ColdReader::read`].
    Batches(Result<ReadBatches, ReadRefused>),
    /// One begun by [`ColdReader::find`]; none: no record in data files matches.
    Found(Result<Option<Found>, ReadRefused>),
}

#[derive(Clone, Copy, Debug)]
struct Job {
    log: TopicPartition,
    /// The next offset of interest.
    from: Offset,
    upto: Offset,
    wish: Wish,
    /// Bytes that the next piece has to hold, because an extent does not fit a smaller one.
    piece_least: usize,
    /// Where to go on, if a piece did not hold what was wanted.
    resume: Option<Stand>,
    /// What is looked for first, if a run header was damaged.
    seek: Option<Seek>,
}

#[derive(Clone, Copy, Debug)]
enum Wish {
    Batches { bytes_max: usize },
    Find(Time),
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    ticket: u64,
    file: FileId,
    generation: Generation,
    what: What,
    /// Bytes asked for; all of them lie in front of the segment's end.
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The header of the run at this place, for the index.
    Header { pos: u64 },
    /// The piece from `at`; the cursor stands in it.
    Piece { at: u64, cursor: Cursor },
    /// From `at`, to find the next run.
    Seek { at: u64, seek: Seek },
}

/// What a job does next.
enum Plan {
    /// Read so many bytes.
    Read { file: FileId, generation: Generation, what: What, len: usize },
    /// Say that.
    End(Done),
}

impl Logs {
    /// Reads whole batches: the first is the one that holds `from`, none begins at or above `upto`, and all but the first
    /// fit `bytes_max`.
    pub fn read(&mut self, log: TopicPartition, from: Offset, upto: Offset, bytes_max: usize) -> ReadStart {
        let Some(log) = self.by_id.get(&log).and_then(|i| self.logs[i.0 as usize].as_deref()) else {
            return ReadStart::Refused(ReadRefused::UnknownLog);
        };
        if let Some(lost) = self.condition.lost().filter(|_| from >= log.durable) {
            return ReadStart::Refused(lost.refused(log.durable));
        }
        if from < log.start || from > log.appended {
            return ReadStart::Refused(ReadRefused::OutOfRange { start: log.start, end: log.durable });
        }
        let damage = log.damage_from(from);
        if let Some(damage) = damage.filter(|damage| damage.from <= from) {
            return ReadStart::Refused(damage.into());
        }
        let upto = upto.min(damage.map_or(log.durable, |damage| damage.from));
        if from >= upto {
            return ReadStart::AtEnd;
        }
        if log.tail.base().is_none_or(|base| base > from) {
            let upto = log.tail.base().map_or(upto, |base| base.min(upto));
            let id = log.id;
            return self.read_cold(id, from, upto, bytes_max);
        }
        match log.tail.read(from, upto, bytes_max) {
            Some(found) => {
                self.counts.recent_read_bytes += found.bytes as u64;
                ReadStart::Ready(found)
            }
            None => ReadStart::AtEnd,
        }
    }

    fn read_cold(&mut self, log: TopicPartition, from: Offset, upto: Offset, bytes_max: usize) -> ReadStart {
        let ticket = self.ticket();
        match self.reader.read(log, from, upto, bytes_max, ticket) {
            Ok(()) => {
                self.reads.insert(ticket, log);
                ReadStart::Pending(ticket)
            }
            Err(refused) => ReadStart::Refused(refused),
        }
    }

    pub(super) fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Passes on what cold reads have brought; a search that has found nothing goes on in memory.
    pub(super) fn pass_reads_on(&mut self) {
        for (ticket, done) in self.reader.take_done() {
            if self.scrub.awaits(ticket) {
                if let Done::Batches(result) = done {
                    self.on_read_again(result);
                }
                continue;
            }
            self.outcomes.push_back(match done {
                Done::Batches(result) => {
                    let log = self.reads.remove(&ticket).expect("every read ends once");
                    let result = result.map_err(|refused| match (refused, self.by_id.get(&log)) {
                        // A trim has overtaken the read: the range is that of now.
                        (ReadRefused::OutOfRange { .. }, Some(index)) => {
                            let log = self.logs[index.0 as usize].as_deref().expect("a named log exists");
                            ReadRefused::OutOfRange { start: log.start, end: log.durable }
                        }
                        (ReadRefused::OutOfRange { .. }, None) => ReadRefused::UnknownLog,
                        (other, _) => other,
                    });
                    let result = result.map_err(|refused| in_doubt(refused, self.condition.lost()));
                    Outcome::ReadDone { ticket, result }
                }
                Done::Found(result) => {
                    let find = self.finds.remove(&ticket).expect("every search ends once");
                    let log = self.logs[find.log.0 as usize].as_deref();
                    let result = result.and_then(|found| match (found, log) {
                        (Some(found), _) => Ok(found),
                        // What was in memory when the search began may have left it.
                        (None, Some(log)) if log.tail.base().is_none_or(|base| base > find.upto) => {
                            Err(ReadRefused::Busy)
                        }
                        (None, Some(log)) => search::find_in_memory(log, find.time, self.condition.lost()),
                        (None, None) => Err(ReadRefused::UnknownLog),
                    });
                    let result = result.map_err(|refused| in_doubt(refused, self.condition.lost()));
                    Outcome::FindDone { ticket, result }
                }
            });
        }
    }
}

impl ColdReader {
    /// None under way.
    pub fn new(limits: FileLimits, cluster: ClusterId) -> ColdReader {
        ColdReader {
            limits,
            cluster,
            jobs: BTreeMap::new(),
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            ops_submitted: 0,
            places: Places::default(),
            done: Vec::new(),
            bytes_read: 0,
        }
    }

    /// Reads whole batches from the one that holds `from` on, none at or above `upto`, all but the first within `bytes_max`.
    /// Everything below `upto` is in data files. Ends in [`ColdReader::take_done`] with `ticket`, which no other read has.
    ///
    /// # Errors
    /// If too many wait already.
    pub fn read(
        &mut self,
        log: TopicPartition,
        from: Offset,
        upto: Offset,
        bytes_max: usize,
        ticket: u64,
    ) -> Result<(), ReadRefused> {
        self.begin(
            ticket,
            Job {
                log,
                from,
                upto,
                wish: Wish::Batches { bytes_max },
                piece_least: 0,
                resume: None,
                seek: None,
            },
        )
    }

    /// The end of a pass of the turn: submits reads, as many as may be under way.
    pub fn pump(&mut self, segments: &mut Segments, ops: &mut Vec<Op>) {
        for (file, fault) in segments.take_open_failed() {
            self.fail_waiting_for(file, &fault, segments);
        }
        let mut still = VecDeque::new();
        while self.under_way.len() < self.limits.reads_max as usize {
            let Some(ticket) = self.waiting.pop_front() else { break };
            if !self.step(ticket, segments, ops) {
                still.push_back(ticket);
            }
        }
        still.append(&mut self.waiting);
        self.waiting = still;
    }

    /// The end of one of its ops.
    pub fn on_event(&mut self, event: Event, segments: &mut Segments) {
        let Event::Read { tag, result, .. } = event else { panic!("not the end of a read: {event:?}") };
        let under_way =
            self.under_way.remove(&(tag.0 & !TAG_SPACE)).expect("only what was asked for is read");
        segments.put_back(under_way.file);
        let ticket = under_way.ticket;
        let buffer = match result {
            Ok(buffer) => buffer,
            Err(fault) => {
                let refused = self.jobs[&ticket].wish.refused(ReadRefused::Fault(fault));
                return self.end(ticket, refused);
            }
        };
        self.bytes_read += buffer.len() as u64;
        let job = self.jobs[&ticket];
        // Freed meanwhile: what was read may be right, but is no part of the log any more.
        let current =
            segments.table.get(under_way.file).is_some_and(|d| d.generation == under_way.generation);
        if !current || segments.table.segment(under_way.file).is_none() {
            self.waiting.push_front(ticket);
            return;
        }
        let end = match under_way.what {
            What::Header { pos } => self.on_header(&job, &under_way, pos, &buffer, segments),
            What::Piece { at, cursor } => self.on_piece(&job, &under_way, at, cursor, buffer, segments),
            What::Seek { seek, .. } => self.on_seek(&under_way, seek, &buffer, segments),
        };
        match end {
            Some(done) => self.end(ticket, done),
            None => self.waiting.push_front(ticket),
        }
    }

    /// What has ended, in order.
    pub fn take_done(&mut self) -> Vec<(u64, Done)> {
        std::mem::take(&mut self.done)
    }

    /// Whether nothing is under way or waiting.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.done.is_empty()
    }

    /// Whether a read waits for its turn at the drive.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes read from data files since the start.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    fn begin(&mut self, ticket: u64, job: Job) -> Result<(), ReadRefused> {
        if self.waiting.len() >= self.limits.reads_waiting_max as usize {
            return Err(ReadRefused::Busy);
        }
        let before = self.jobs.insert(ticket, job);
        assert!(before.is_none(), "ticket {ticket} is used once");
        self.waiting.push_back(ticket);
        Ok(())
    }

    /// Brings a job to its next op or its end; whether it got there. Else its file is being opened.
    fn step(&mut self, ticket: u64, segments: &mut Segments, ops: &mut Vec<Op>) -> bool {
        let job = self.jobs[&ticket];
        let plan = match self.plan(&job, segments) {
            Ok(plan) => plan,
            Err(refused) => {
                self.end(ticket, job.wish.refused(refused));
                return true;
            }
        };
        match plan {
            Plan::End(done) => self.end(ticket, done),
            Plan::Read { file, generation, what, len } => {
                let Some(io) = segments.handles.take(file, ops) else { return false };
                self.ops_submitted += 1;
                let number = self.ops_submitted;
                self.under_way.insert(number, UnderWay { ticket, file, generation, what, len });
                let at = match what {
                    What::Header { pos } => pos,
                    What::Piece { at, .. } | What::Seek { at, .. } => at,
                };
                ops.push(Op::Read { file: io, at, len, tag: Tag(TAG_SPACE | number) });
            }
        }
        true
    }

    fn plan(&self, job: &Job, segments: &Segments) -> Result<Plan, ReadRefused> {
        if let Some(seek) = job.seek
            && let Some(segment) = segments.table.segment(seek.file)
            && segment.log == job.log
            && generation_of(segments, seek.file) == seek.generation
        {
            return Ok(self.plan_seek(seek, segment));
        }
        let known = match job.wish {
            Wish::Batches { .. } => job.resume.or_else(|| self.places.get(job.log, job.from)),
            Wish::Find(_) => job.resume,
        };
        if let Some(stand) = known
            && let Some(segment) = segments.table.segment(stand.file)
            && segment.log == job.log
            && generation_of(segments, stand.file) == stand.generation
            && stand.cursor.pos < segment.written
        {
            return Ok(self.piece(job, stand, segment));
        }
        match job.wish {
            Wish::Batches { .. } => {
                let found = segments.table.at_or_after(job.log, job.from);
                let Some((file, segment)) = found.filter(|(_, segment)| segment.base <= job.from) else {
                    let (start, end) = found.map_or((job.from, job.from), |(_, s)| (s.base, s.end));
                    return Err(ReadRefused::OutOfRange { start, end });
                };
                let answer = segment.index.by_offset(job.from, segment.written);
                self.after_index(job, file, segments, segment, answer)
            }
            Wish::Find(time) => self.plan_find(job, time, segments),
        }
    }

    fn after_index(
        &self,
        job: &Job,
        file: FileId,
        segments: &Segments,
        segment: &Segment,
        answer: Answer,
    ) -> Result<Plan, ReadRefused> {
        let generation = generation_of(segments, file);
        match answer {
            Answer::Hop(pos) => Ok(Plan::Read { file, generation, what: What::Header { pos }, len: BLOCK }),
            Answer::In(entry) => {
                let stand = Stand { file, generation, cursor: Cursor::at_run(entry.at, entry.base) };
                Ok(self.piece(job, stand, segment))
            }
            Answer::Damaged(entry) => {
                Err(damaged(file, entry.at..entry.at + entry.bytes, entry.base, entry.end))
            }
            Answer::Nowhere => Err(damaged(file, 0..segment.written, segment.base, segment.end)),
        }
    }

    /// The piece to read from there on.
    fn piece(&self, job: &Job, stand: Stand, segment: &Segment) -> Plan {
        const LEAST: usize = 64 << 10;
        let Stand { file, generation, cursor } = stand;
        let at = cursor.pos & !(BLOCK as u64 - 1);
        let lead = (cursor.pos - at) as usize;
        let most = self.limits.read_bytes_max;
        let wanted = match job.wish {
            // Headers of extents and runs come on top of the batches.
            Wish::Batches { bytes_max } => bytes_max.saturating_add(BLOCK),
            Wish::Find(_) => LEAST,
        };
        let wanted = wanted.clamp(LEAST.min(most), most).max(job.piece_least);
        let left = usize::try_from(segment.written - at).unwrap_or(usize::MAX);
        let len = (lead + wanted).next_multiple_of(BLOCK).min(left);
        Plan::Read { file, generation, what: What::Piece { at, cursor }, len }
    }

    /// A run header for the index.
    fn on_header(
        &mut self,
        job: &Job,
        read: &UnderWay,
        pos: u64,
        bytes: &[u8],
        segments: &mut Segments,
    ) -> Option<Done> {
        let owner = self.owner(job, read);
        let segment = segments.table.segment_mut(read.file).expect("looked up before");
        if segment.index.head_end() != pos {
            // Another reader was here first.
            return None;
        }
        let run = RunHeader::decode(bytes).ok().filter(|run| owner == owner_of(run));
        match run.map(|run| entry_of(&run, pos)).filter(|entry| segment.can_hold(entry)) {
            Some(entry) => segment.index.push_head(entry),
            None => {
                let from = segment.index.head_end_offset().unwrap_or(segment.base);
                self.job_mut(read).seek = Some(Seek::new(read, pos, from));
            }
        }
        None
    }

    fn on_piece(
        &mut self,
        job: &Job,
        read: &UnderWay,
        at: u64,
        cursor: Cursor,
        buffer: Buffer,
        segments: &Segments,
    ) -> Option<Done> {
        let segment = segments.table.segment(read.file).expect("looked up before");
        let view = buffer.freeze();
        let mut scan = Scan::new(&view, at, segment.written, self.owner(job, read), cursor);
        match job.wish {
            Wish::Batches { bytes_max } => self.collect(job, read, bytes_max, &view, &mut scan, segment),
            Wish::Find(time) => self.search(job, read, time, &view, &mut scan, segment),
        }
    }

    /// Takes whole batches out of a piece.
    fn collect(
        &mut self,
        job: &Job,
        read: &UnderWay,
        bytes_max: usize,
        view: &View,
        scan: &mut Scan<'_>,
        segment: &Segment,
    ) -> Option<Done> {
        let mut found = None;
        let mut damage = None;
        loop {
            match scan.step() {
                Step::Extent(extent, payload) if extent.end > job.from && extent.base < job.upto => {
                    let payload = view.slice(payload);
                    let whole = crc::of(&payload) == extent.payload_crc;
                    let Some(more) = whole
                        .then(|| take_batches(&extent, &payload, job.from, job.upto, bytes_max, &mut found))
                        .flatten()
                    else {
                        let at = scan.cursor().pos;
                        let bytes = at..at + extent.total_bytes() as u64;
                        damage = Some(damaged(read.file, bytes, extent.base, extent.end));
                        break;
                    };
                    if found.as_ref().is_some_and(|f| f.end == extent.end) {
                        scan.pass(&extent);
                    }
                    if more == More::No {
                        break;
                    }
                }
                Step::Extent(extent, _) | Step::Cut(extent) if extent.end <= job.from => scan.pass(&extent),
                Step::Extent(..) | Step::End => break,
                // The file ends too early: the same read would end so again.
                Step::Cut(_) | Step::PieceEnd if found.is_none() && view.len() < read.len => {
                    let bytes = scan.cursor().pos..segment.written;
                    damage = Some(damaged(read.file, bytes, job.from, segment.end));
                    break;
                }
                Step::Cut(extent) if found.is_none() => {
                    return self.read_on(read, scan.cursor(), extent.total_bytes());
                }
                Step::PieceEnd if found.is_none() => return self.read_on(read, scan.cursor(), BLOCK),
                Step::Cut(_) | Step::PieceEnd => break,
                Step::DamagedRest(rest) if rest.upto <= job.from => scan.pass_rest(&rest),
                Step::DamagedRest(Rest { end, from, upto }) => {
                    damage = Some(damaged(read.file, scan.cursor().pos..end, from, upto));
                    break;
                }
                Step::DamagedRun if found.is_none() => {
                    let Cursor { pos, .. } = scan.cursor();
                    self.job_mut(read).seek = Some(Seek::new(read, pos, scan.cursor().expected()));
                    return None;
                }
                Step::DamagedRun => break,
            }
        }
        // What is sound in front of damage is served; the next read begins at the damage and says so.
        Some(Done::Batches(match (found, damage) {
            (Some(found), _) => {
                self.places.put(job.log, found.end, read, scan.cursor());
                Ok(found)
            }
            (None, Some(damage)) => Err(damage),
            (None, None) => Err(ReadRefused::OutOfRange { start: segment.base, end: job.upto }),
        }))
    }

    /// The job goes on at the cursor, with a piece that holds at least what comes next.
    fn read_on(&mut self, read: &UnderWay, cursor: Cursor, least: usize) -> Option<Done> {
        let job = self.job_mut(read);
        job.piece_least = least;
        job.resume = Some(Stand { file: read.file, generation: read.generation, cursor });
        None
    }

    fn job_mut(&mut self, read: &UnderWay) -> &mut Job {
        self.jobs.get_mut(&read.ticket).expect("an op belongs to a job")
    }

    fn owner(&self, job: &Job, read: &UnderWay) -> RunOwner {
        RunOwner { cluster: self.cluster, file: read.file, generation: read.generation, log: job.log }
    }

    fn fail_waiting_for(&mut self, file: FileId, fault: &Fault, segments: &Segments) {
        let tickets: Vec<u64> = self.waiting.iter().copied().collect();
        for ticket in tickets {
            let job = self.jobs[&ticket];
            if matches!(self.plan(&job, segments), Ok(Plan::Read { file: wanted, .. }) if wanted == file) {
                self.waiting.retain(|t| *t != ticket);
                let why = match segments.table.segment(file) {
                    // All that it held is gone; it will not come back by itself, as a drive that fails may.
                    Some(segment) if fault.errno == ENOENT => {
                        damaged(file, 0..segment.written, segment.base, segment.end)
                    }
                    _ => ReadRefused::Fault(fault.clone()),
                };
                self.end(ticket, job.wish.refused(why));
            }
        }
    }

    fn end(&mut self, ticket: u64, done: Done) {
        self.jobs.remove(&ticket).expect("a job ends once");
        self.done.push((ticket, done));
    }
}

/// A place in one generation of a data file.
#[derive(Clone, Copy, Debug)]
struct Stand {
    file: FileId,
    generation: Generation,
    cursor: Cursor,
}

impl Wish {
    fn refused(self, why: ReadRefused) -> Done {
        match self {
            Wish::Batches { .. } => Done::Batches(Err(why)),
            Wish::Find(_) => Done::Found(Err(why)),
        }
    }
}

/// Whether further batches may follow those taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Yes,
    No,
}

/// Takes from a checked payload the batches that end above `from` and begin below `upto`, as long as all but the first fit
/// `bytes_max`. None: it does not consist of batches.
pub(super) fn take_batches(
    extent: &ExtentHeader,
    payload: &View,
    from: Offset,
    upto: Offset,
    bytes_max: usize,
    found: &mut Option<ReadBatches>,
) -> Option<More> {
    let (mut at, mut begin, mut more) = (0, None, More::Yes);
    for batch in Batches::new(payload) {
        let batch = batch.ok()?;
        let (header, len) = (batch.header(), batch.bytes().len());
        if header.end_offset() > from {
            let full = found.as_ref().is_some_and(|f| f.bytes + len > bytes_max);
            if header.base_offset >= upto || full {
                more = More::No;
                break;
            }
            begin.get_or_insert(at);
            let found = found.get_or_insert_with(|| ReadBatches {
                views: Vec::new(),
                first: header.base_offset,
                end: header.end_offset(),
                batch_count: 0,
                bytes: 0,
                append_time_first_ms: extent.append_time_ms,
                append_time_last_ms: extent.append_time_ms,
                heads_crc: 0,
            });
            found.end = header.end_offset();
            found.batch_count += 1;
            found.bytes += len;
            found.append_time_last_ms = extent.append_time_ms;
            found.heads_crc = crc::append(found.heads_crc, batch.head());
        }
        at += len;
    }
    if let (Some(begin), Some(found)) = (begin, found.as_mut()) {
        found.views.push(payload.slice(begin..at));
    }
    Some(more)
}

fn generation_of(segments: &Segments, file: FileId) -> Generation {
    segments.table.get(file).map(|data| data.generation).unwrap_or_default()
}

fn entry_of(run: &RunHeader, at: u64) -> Entry {
    Entry {
        base: run.base,
        end: run.end,
        at,
        bytes: u64::from(run.bytes),
        append_last_ms: run.append_last_ms,
        max_timestamp_ms: run.max_timestamp_ms,
        holds: Holds::Runs,
    }
}

fn owner_of(run: &RunHeader) -> RunOwner {
    RunOwner { cluster: run.cluster, file: run.file, generation: run.generation, log: run.log }
}

/// The frames that a shard has lost may have said that a file was freed: what is not found in it then need not be damage to it.
fn in_doubt(refused: ReadRefused, lost: Option<&LostFrames>) -> ReadRefused {
    match (refused, lost) {
        (ReadRefused::Damaged { file, bytes, from, upto }, Some(lost)) => {
            let file = format!("{file}, as of before {lost}");
            ReadRefused::Damaged { file, bytes, from, upto }
        }
        (refused, _) => refused,
    }
}

fn damaged(file: FileId, bytes: Range<u64>, from: Offset, upto: Offset) -> ReadRefused {
    ReadRefused::Damaged { file: file.to_string(), bytes, from, upto }
}

#[cfg(test)]
mod tests;
