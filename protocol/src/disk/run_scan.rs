//! Goes through the extents of consecutive runs in a piece of a data file, checking every header before it is believed.
//!
//! A scan that begins within a run, where an earlier one stopped, relies on that one having checked the run's header; the extents
//! still have to be of the right log, at the right offsets, within the run.

use std::ops::Range;

use super::run::{RUN_HEADER_BYTES, RunHeader};
use crate::extent::{EXTENT_HEADER_BYTES, ExtentHeader};
use crate::ids::{ClusterId, FileId, Generation, Offset, TopicPartition};

/// What every run of a segment has to say about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOwner {
    /// The cluster.
    pub cluster: ClusterId,
    /// The data file.
    pub file: FileId,
    /// How often the file had been handed out when the run was written.
    pub generation: Generation,
    /// The log.
    pub log: TopicPartition,
}

/// A place in a data file: between two runs, or in front of an extent of a run whose header was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Bytes from the start of the file.
    pub pos: u64,
    /// Where the run ends; `pos` between two runs.
    run_end: u64,
    extents_left: u32,
    /// The offset of the next extent; between two runs the one with which the next run begins. Sound bytes may be those of another
    /// place.
    expected: Offset,
    /// One past the run's last offset; `expected` between two runs.
    run_upto: Offset,
}

impl Cursor {
    /// In front of the run at `pos`, which begins at `expected`.
    pub fn at_run(pos: u64, expected: Offset) -> Cursor {
        Cursor { pos, run_end: pos, extents_left: 0, expected, run_upto: expected }
    }

    /// The offset that lies here.
    pub fn expected(&self) -> Offset {
        self.expected
    }
}

/// A piece of a data file, read from `at`.
#[derive(Debug)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: u64,
    /// Where the segment's runs end.
    written: u64,
    owner: RunOwner,
    cursor: Cursor,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An extent whose header is right, and where its payload lies in the piece; its payload is not checked.
    Extent(ExtentHeader, Range<usize>),
    /// An extent whose header is right and that goes on behind the piece.
    Cut(ExtentHeader),
    /// The piece ends here.
    PieceEnd,
    /// The segment ends here.
    End,
    /// The run header that lies here is not what should: where the next run begins is not known.
    DamagedRun,
    /// What lies here, within a run whose header is right, is not what should: the rest of the run is concerned.
    DamagedRest(Rest),
}

/// What is left of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Where the run ends, in bytes from the start of the file.
    pub end: u64,
    /// The first offset that is left.
    pub from: Offset,
    /// One past the last.
    pub upto: Offset,
}

impl<'a> Scan<'a> {
    /// The bytes from `at`, of a segment that ends at `written`.
    pub fn new(bytes: &'a [u8], at: u64, written: u64, owner: RunOwner, cursor: Cursor) -> Scan<'a> {
        Scan { bytes, at, written, owner, cursor }
    }

    /// Where the next extent is.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The next extent; the same one until [`Scan::pass`].
    pub fn step(&mut self) -> Step {
        if self.cursor.extents_left == 0 {
            self.cursor = Cursor::at_run(self.cursor.run_end, self.cursor.run_upto);
            if self.cursor.pos >= self.written {
                return Step::End;
            }
            let Some(bytes) = self.rest().filter(|rest| rest.len() >= RUN_HEADER_BYTES) else {
                return Step::PieceEnd;
            };
            match RunHeader::decode(bytes) {
                Ok(run) if self.is_owner(&run) => {
                    self.cursor = Cursor {
                        pos: self.cursor.pos + RUN_HEADER_BYTES as u64,
                        run_end: self.cursor.pos + u64::from(run.bytes),
                        extents_left: run.extents,
                        expected: run.base,
                        run_upto: run.end,
                    };
                }
                _ => return Step::DamagedRun,
            }
        }
        let Some(bytes) = self.rest().filter(|rest| rest.len() >= EXTENT_HEADER_BYTES) else {
            return Step::PieceEnd;
        };
        let Cursor { run_end, expected, run_upto, .. } = self.cursor;
        let rest = Rest { end: run_end, from: expected, upto: run_upto };
        let Ok(extent) = ExtentHeader::decode(bytes) else { return Step::DamagedRest(rest) };
        let end = self.cursor.pos + extent.total_bytes() as u64;
        let is_next = extent.log == self.owner.log && extent.base == expected;
        if !is_next || extent.end > run_upto || end > run_end {
            return Step::DamagedRest(rest);
        }
        if bytes.len() < extent.total_bytes() {
            return Step::Cut(extent);
        }
        let start = (self.cursor.pos - self.at) as usize;
        Step::Extent(extent, start + EXTENT_HEADER_BYTES..start + extent.total_bytes())
    }

    /// Goes on behind that extent, which was the next one.
    pub fn pass(&mut self, extent: &ExtentHeader) {
        assert_eq!(extent.base, self.cursor.expected, "only the next extent is passed");
        self.cursor.pos += extent.total_bytes() as u64;
        self.cursor.extents_left -= 1;
        self.cursor.expected = extent.end;
    }

    /// Goes on behind what is left of a run.
    pub fn pass_rest(&mut self, rest: &Rest) {
        self.cursor = Cursor::at_run(rest.end, rest.upto);
    }

    fn rest(&self) -> Option<&'a [u8]> {
        let start = usize::try_from(self.cursor.pos.checked_sub(self.at)?).ok()?;
        self.bytes.get(start..)
    }

    fn is_owner(&self, run: &RunHeader) -> bool {
        let owner =
            RunOwner { cluster: run.cluster, file: run.file, generation: run.generation, log: run.log };
        let fits = self.cursor.pos + u64::from(run.bytes) <= self.written;
        owner == self.owner && fits && run.base == self.cursor.expected
    }
}
