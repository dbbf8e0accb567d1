//! Cycles under way: which writes and flushes belong to which, and when a flush may be submitted. `cycle` tells the story; this is
//! its memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::ids::{FileId, FrameSequence, Offset, TopicPartition};
use tidegate_reactor::buffer::View;
use tidegate_reactor::op::{Fault, File, Op, Tag};

use super::recent::BufferId;
use super::state::LogIndex;
use crate::mutants::{self, Mutant};

const TAGS: u64 = super::CYCLE << 48;
const EIO: i32 = 5;

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
    /// Its runs: the data file of each, and where in it the run begins.
    pub(super) runs: Vec<(FileId, u64)>,
    /// Files that the flush has to be called on.
    pub(super) flush_files: BTreeSet<File>,
    /// Not complete yet.
    pub(super) writes_left: u32,
    /// When its writes were submitted.
    pub(super) begun_ns: u64,
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
    /// It goes on from where it stopped, by this op.
    GoesOn(Op),
    /// It is complete; the buffer is not needed for it any more.
    Complete(BufferId),
    /// It has failed: the outcome of its cycle and of every later one is unknown.
    Failed(BufferId, Fault),
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

    /// Bytes whose write is under way.
    pub(super) fn bytes_writing(&self) -> usize {
        self.writes.values().map(|write| write.data.len()).sum()
    }

    /// Files on which the flush of one cycle has to be called, of the cycle with the most.
    pub(super) fn files_to_flush(&self) -> usize {
        self.in_flight.iter().map(|cycle| cycle.flush_files.len()).max().unwrap_or(0)
    }

    /// Where the first run of a data file begins that is not flushed yet, if there is one.
    pub(super) fn unflushed_from(&self, file: FileId) -> Option<u64> {
        let runs = self.in_flight.iter().flat_map(|cycle| &cycle.runs);
        runs.filter(|(of, _)| *of == file).map(|(_, at)| *at).min()
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

    /// The op of a write of the newest cycle; the buffer is held until it ends.
    pub(super) fn write(&mut self, file: File, at: u64, data: View, buffer: BufferId) -> Op {
        let cycle = self.in_flight.back_mut().expect("a cycle has begun");
        cycle.writes_left += 1;
        let write = Write { cycle: cycle.sequence, file, at, data, buffer };
        self.under_way(write)
    }

    fn under_way(&mut self, write: Write) -> Op {
        let number = self.next_tag;
        self.next_tag += 1;
        let (file, at, data) = (write.file, write.at, write.data.clone());
        self.writes.insert(number, write);
        Op::Write { file, at, data, tag: Tag(TAGS | number) }
    }

    /// A write has ended. One that stopped short goes on from the last whole block, before any flush.
    pub(super) fn write_ended(&mut self, tag: Tag, result: Result<usize, Fault>) -> WriteEnd {
        let write = self.writes.remove(&(tag.0 & !TAGS)).expect("every write ends once");
        let done = match result {
            Ok(bytes) if bytes >= write.data.len() || mutants::on(Mutant::ShortWriteBelieved) => {
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
            Err(_) if mutants::on(Mutant::FailedWriteBelieved) => write.data.len(),
            Err(fault) => return self.failed(write, fault),
        };
        let rest = write.data.slice(done..write.data.len());
        let at = write.at + done as u64;
        WriteEnd::GoesOn(self.under_way(Write { at, data: rest, ..write }))
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
    pub(super) fn take_whole(&mut self) -> Option<&Cycle> {
        let cycle = self.in_flight.get(self.whole)?;
        let failed = self.failed_from.is_some_and(|f| cycle.sequence >= f);
        if (cycle.writes_left > 0 && !mutants::on(Mutant::FlushBeforeWritesEnd)) || failed {
            return None;
        }
        self.whole += 1;
        self.in_flight.get(self.whole - 1)
    }

    /// The ops of a flush of all cycles at the front whose writes are whole, one for each file that it has to be called on; none
    /// while another is under way. `wanted` says whether cycles that hold a mark alone are worth it.
    pub(super) fn flush(&mut self, wanted: FlushWanted) -> Vec<Op> {
        let failed_from = self.failed_from.unwrap_or(FrameSequence(u64::MAX));
        let whole = self.in_flight.iter().take(self.whole).take_while(|c| c.sequence < failed_from);
        let worth = match wanted {
            FlushWanted::ForEntries => whole.clone().any(|c| c.content == Content::Entries),
            FlushWanted::ForMarks => whole.clone().next().is_some(),
        };
        if self.flush.is_some() || !worth {
            return Vec::new();
        }
        let files: BTreeSet<File> = whole.clone().flat_map(|c| c.flush_files.iter().copied()).collect();
        let upto = whole.last().expect("some cycle is whole").sequence;
        let tag = Tag(TAGS | self.next_tag);
        self.next_tag += 1;
        self.flush = Some(Flush { upto, left: files.len() as u32, fault: None });
        files.into_iter().map(|file| Op::Flush { file, tag }).collect()
    }

    /// A flush has ended. Once all of its files are done: how far everything is flushed, or what failed.
    pub(super) fn flush_ended(&mut self, result: Result<(), Fault>) -> Option<Result<FrameSequence, Fault>> {
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
            Some(_) if mutants::on(Mutant::FailedFlushBelieved) => Ok(flush.upto),
            Some(fault) => {
                let first = self.in_flight.front().expect("a flush covers a cycle").sequence;
                self.fail_from(first);
                Err(fault)
            }
        })
    }

    /// Takes out the oldest cycle, if a flush up to `upto` has covered it.
    pub(super) fn take_flushed(&mut self, upto: FrameSequence) -> Option<Cycle> {
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
