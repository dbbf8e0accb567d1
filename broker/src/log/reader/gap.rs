//! A run header that is damaged: it alone says where the next run begins, so that one is looked for.
//!
//! A run begins at a block. What lies at a block and says that it is a run of this file, generation and log, with offsets that
//! follow, may still be what somebody has put into a record. So the run behind it has to name it by its checksum, or the
//! journal has to: when a record was sent, nobody could know what checksum the header in front of the next run would have.

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::disk::run_scan::{Cursor, RunOwner};
use tidegate_protocol::ids::{FileId, Generation, Offset};

use super::{ColdReader, Done, Job, Plan, Stand, Time, UnderWay, What, Wish, damaged, owner_of};
use crate::log::file_table::Segment;
use crate::log::index::{Entry, Holds};
use crate::log::segment::Segments;

/// A search for the next run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seek {
    pub(super) file: FileId,
    pub(super) generation: Generation,
    /// Where the damaged header lies.
    gap_at: u64,
    /// The offset with which its run begins.
    gap_from: Offset,
    /// The block that is looked at next, the damaged header first: what the drive has misread only once is not kept.
    at: u64,
    /// What may be the next run, until it is known what follows it.
    candidate: Option<Candidate>,
}

/// A run header, and where what follows its run begins.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    next: Next,
    upto: Offset,
    end: u64,
    crc: u32,
}

/// Where runs are known again.
#[derive(Clone, Copy, Debug)]
struct Next {
    at: u64,
    from: Offset,
    /// No record in front of it was appended later.
    append_ms: i64,
}

impl Seek {
    /// The run header at that place is damaged; its run begins at `gap_from`.
    pub(super) fn new(read: &UnderWay, gap_at: u64, gap_from: Offset) -> Seek {
        let UnderWay { file, generation, .. } = *read;
        Seek { file, generation, gap_at, gap_from, at: gap_at, candidate: None }
    }

    /// Where runs are known again whatever is found.
    fn known(&self, segment: &Segment) -> Next {
        let end = (segment.written, segment.end, segment.append_last_ms);
        let (at, from, append_ms) = segment.index.known_behind(self.gap_at).unwrap_or(end);
        Next { at, from, append_ms }
    }

    /// The first block in a piece from `self.at` on that may be the next run.
    fn candidate_in(&self, bytes: &[u8], known: Next, owner: &RunOwner) -> Option<Candidate> {
        let blocks = (self.at..known.at).step_by(BLOCK).zip(bytes.chunks(BLOCK));
        let mut runs = blocks.filter_map(|(at, block)| Some((at, block, RunHeader::decode(block).ok()?)));
        runs.find_map(|(at, block, run)| {
            let end = at + u64::from(run.bytes);
            // A damaged run held a record at least.
            let begins_well =
                if at == self.gap_at { run.base == self.gap_from } else { run.base > self.gap_from };
            let follows = begins_well && run.end <= known.from && end <= known.at;
            let next = Next { at, from: run.base, append_ms: run.append_first_ms };
            let crc = RunHeader::crc_of(block);
            (owner_of(&run) == *owner && follows).then_some(Candidate { next, upto: run.end, end, crc })
        })
    }
}

impl Candidate {
    /// Whether what lies behind it names it. What is behind everything that was flushed may still be on its way.
    fn is_named(&self, behind: &[u8], owner: &RunOwner, flushed_upto: Offset) -> bool {
        let run = RunHeader::decode(behind).ok().filter(|run| owner_of(run) == *owner);
        run.map_or(self.upto >= flushed_upto, |run| run.previous_crc == self.crc)
    }
}

impl ColdReader {
    /// The next read of a search.
    pub(super) fn plan_seek(&self, seek: Seek, segment: &Segment) -> Plan {
        let (at, most) = match seek.candidate {
            Some(candidate) => (candidate.end, BLOCK),
            None => (seek.at, self.limits.read_bytes_max),
        };
        let left = usize::try_from(segment.written - at).unwrap_or(usize::MAX);
        let Seek { file, generation, .. } = seek;
        Plan::Read { file, generation, what: What::Seek { at, seek }, len: most.min(left) }
    }

    /// A piece of a search.
    pub(super) fn on_seek(
        &mut self,
        read: &UnderWay,
        mut seek: Seek,
        bytes: &[u8],
        segments: &mut Segments,
    ) -> Option<Done> {
        let job = self.jobs[&read.ticket];
        let owner = self.owner(&job, read);
        let segment = segments.table.segment_mut(read.file).expect("looked up before");
        let known = seek.known(segment);
        let found = match seek.candidate.take() {
            Some(candidate) => Some((candidate, candidate.is_named(bytes, &owner, job.upto))),
            None => seek.candidate_in(bytes, known, &owner).map(|candidate| {
                let is_last = candidate.end == segment.written;
                seek.candidate = Some(candidate).filter(|_| !is_last);
                (candidate, is_last && candidate.crc == segment.last_crc)
            }),
        };
        match found {
            Some((candidate, _)) if candidate.next.at == seek.gap_at => {
                return self.seek_in_vain(&job, read, &seek, &candidate);
            }
            Some((candidate, true)) => return self.seek_ends(&job, read, &seek, candidate.next, segment),
            Some((candidate, false)) => seek.at = candidate.next.at + BLOCK as u64,
            None => seek.at += read.len as u64,
        }
        // A file that ends too early holds nothing further.
        let is_over = bytes.len() < read.len || seek.at >= known.at;
        if is_over && seek.candidate.is_none() {
            return self.seek_ends(&job, read, &seek, known, segment);
        }
        self.job_mut(read).seek = Some(seek);
        None
    }

    /// The header is sound now. Whoever wanted its run is told that it was not; the next read gets it.
    fn seek_in_vain(
        &mut self,
        job: &Job,
        read: &UnderWay,
        seek: &Seek,
        candidate: &Candidate,
    ) -> Option<Done> {
        if job.from < candidate.upto {
            let bytes = seek.gap_at..candidate.end;
            return Some(job.wish.refused(damaged(seek.file, bytes, seek.gap_from, candidate.upto)));
        }
        let cursor = Cursor::at_run(candidate.end, candidate.upto);
        let stand = Stand { file: seek.file, generation: seek.generation, cursor };
        let mine = self.job_mut(read);
        (mine.seek, mine.resume) = (None, Some(stand));
        None
    }

    /// The next run is found, or nothing up to the next known place.
    fn seek_ends(
        &mut self,
        job: &Job,
        read: &UnderWay,
        seek: &Seek,
        next: Next,
        segment: &mut Segment,
    ) -> Option<Done> {
        let stand = Stand {
            file: seek.file,
            generation: seek.generation,
            cursor: Cursor::at_run(next.at, next.from),
        };
        self.places.forget(job.log, job.from);
        let mine = self.job_mut(read);
        (mine.seek, mine.resume) = (None, None);
        let damage = Entry {
            base: seek.gap_from,
            end: next.from,
            at: seek.gap_at,
            bytes: next.at - seek.gap_at,
            append_last_ms: next.append_ms,
            max_timestamp_ms: i64::MAX,
            holds: Holds::Damage,
        };
        let is_kept = segment.index.put_damage(damage);
        let is_too_old = matches!(job.wish, Wish::Find(Time::Append(ms)) if next.append_ms < ms);
        if job.from < damage.end && !is_too_old {
            return Some(job.wish.refused(damaged(
                seek.file,
                seek.gap_at..next.at,
                seek.gap_from,
                next.from,
            )));
        }
        mine.from = mine.from.max(damage.end);
        if !is_kept {
            mine.resume = Some(stand);
        }
        None
    }
}
