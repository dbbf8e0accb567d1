//! How much room the drive has, and when that is too little for producers.
//!
//! Below the floor producers are refused, and no data file is made before somebody waits for it. The room below is for what
//! was accepted before, for commits, deletes and trims, which must come to their end. Nobody tells a shard of a change of
//! free space, so it asks again and again.

use std::path::PathBuf;

use tidegate_reactor::op::{Fault, FreeSpace, Now, Op, Tag};

use super::handles::FILE_SPACE;
use super::notice::Shortage;
use crate::limits::{FILE_CLASSES, FileLimits};

/// The question after free space.
pub(crate) const ASK: Tag = Tag(FILE_SPACE | 2);
/// Wakes the shard for the next one.
const ASK_AGAIN: Tag = Tag(0x0105 << 48 | 2);

/// The room on the drive as far as it is known.
///
/// Invariant: what ends the shortage is more than what begins it, so that it does not come and go with every file.
#[derive(Debug)]
pub(crate) struct Space {
    limits: FileLimits,
    dir: PathBuf,
    /// None: not known, and then nothing is refused.
    known: Option<FreeSpace>,
    is_short: bool,
    is_asked: bool,
    ask_at_ns: u64,
}

impl Space {
    /// Nothing known of the filesystem of `dir`.
    pub(crate) fn new(limits: FileLimits, dir: PathBuf) -> Space {
        Space { limits, dir, known: None, is_short: false, is_asked: false, ask_at_ns: 0 }
    }

    /// Asks, if it is time.
    pub(crate) fn pump(&mut self, now: Now, ops: &mut Vec<Op>) {
        if self.is_asked || now.mono_ns < self.ask_at_ns {
            return;
        }
        self.is_asked = true;
        ops.push(Op::FreeSpace { path: self.dir.clone(), tag: ASK });
    }

    /// The answer.
    pub(crate) fn on_answer(&mut self, now: Now, result: Result<FreeSpace, Fault>, ops: &mut Vec<Op>) {
        self.is_asked = false;
        self.ask_at_ns = now.mono_ns + self.limits.space_look_ns;
        ops.push(Op::Timer { at_ns: self.ask_at_ns, tag: ASK_AGAIN });
        self.known = result.ok();
        let free = self.known.map(|space| space.free_bytes);
        self.is_short = free.is_some_and(|free| free < self.needed_bytes());
    }

    /// A file of that size is being made.
    pub(crate) fn spend(&mut self, bytes: u64) {
        if let Some(space) = &mut self.known {
            space.free_bytes = space.free_bytes.saturating_sub(bytes);
        }
    }

    /// Whether no question is under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_asked
    }

    /// Sizes of data files, from the smallest, of which one still fits above the floor.
    pub(crate) fn classes_that_fit(&self) -> usize {
        let Some(space) = self.known else { return FILE_CLASSES };
        let above = space.free_bytes.saturating_sub(self.floor_bytes());
        self.limits.classes.iter().take_while(|bytes| **bytes <= above).count()
    }

    /// That producers are refused, if so.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        let free_bytes = self.known?.free_bytes;
        self.is_short.then(|| Shortage::BelowFloor { free_bytes, needed_bytes: self.needed_bytes() })
    }

    /// Bytes free on the drive.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.known.map(|space| space.free_bytes)
    }

    /// The floor and a file of the smallest size; a quarter more to end a shortage.
    fn needed_bytes(&self) -> u64 {
        let floor = self.floor_bytes();
        let more =
            if self.is_short { (floor / 4).max(self.limits.classes[1]) } else { self.limits.classes[0] };
        floor + more
    }

    fn floor_bytes(&self) -> u64 {
        const FLOOR_BYTES_MAX: u64 = 1 << 30;
        const SHARE: u64 = 20;
        let total = self.known.map_or(0, |space| space.total_bytes);
        self.limits.floor_bytes.unwrap_or(FLOOR_BYTES_MAX.min(total / SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn limits(floor_bytes: Option<u64>) -> FileLimits {
        FileLimits { floor_bytes, ..FileLimits::DEFAULT }
    }

    fn told(space: &mut Space, free_bytes: u64, total_bytes: u64) {
        let now = Now { mono_ns: 0, wall_ms: 0 };
        space.on_answer(now, Ok(FreeSpace { free_bytes, total_bytes }), &mut Vec::new());
    }

    #[test]
    fn the_floor_is_a_gibibyte_or_a_twentieth_of_a_small_drive_or_what_was_configured() {
        for (floor, total, expected) in [
            (None, 1000 * GIB, GIB),
            (None, 10 * GIB, GIB / 2),
            (Some(3 * GIB), 10 * GIB, 3 * GIB),
            (Some(0), 10 * GIB, 0),
        ] {
            let mut space = Space::new(limits(floor), "/d".into());
            told(&mut space, expected + 2 * MIB, total);
            assert_eq!(space.shortage(), None, "{floor:?} of {total}");
            told(&mut space, expected + 2 * MIB - 1, total);
            let shortage = space.shortage().unwrap();
            let needed = expected + (expected / 4).max(16 * MIB);
            let said = Shortage::BelowFloor { free_bytes: expected + 2 * MIB - 1, needed_bytes: needed };
            assert_eq!(shortage, said, "{floor:?} of {total}");
        }
    }

    #[test]
    fn a_shortage_ends_with_more_than_what_began_it_and_with_not_knowing() {
        let mut space = Space::new(limits(Some(GIB)), "/d".into());
        told(&mut space, GIB, 100 * GIB);
        told(&mut space, GIB + 255 * MIB, 100 * GIB);
        assert!(space.shortage().is_some(), "not enough more");
        told(&mut space, GIB + 256 * MIB, 100 * GIB);
        assert_eq!(space.shortage(), None);
        told(&mut space, GIB + 255 * MIB, 100 * GIB);
        assert_eq!(space.shortage(), None, "enough to go on");
        told(&mut space, 0, 100 * GIB);
        assert!(space.shortage().is_some());
        let failed = Err(Fault::new("look for free space", 5));
        space.on_answer(Now { mono_ns: 0, wall_ms: 0 }, failed, &mut Vec::new());
        assert_eq!((space.shortage(), space.classes_that_fit()), (None, FILE_CLASSES));
    }

    #[test]
    fn what_is_being_made_is_counted_before_the_next_answer() {
        let mut space = Space::new(limits(Some(GIB)), "/d".into());
        told(&mut space, GIB + 100 * MIB, 100 * GIB);
        assert_eq!(space.classes_that_fit(), 3, "256 MiB would go below the floor");
        space.spend(64 * MIB);
        assert_eq!(space.classes_that_fit(), 2);
        space.spend(200 * MIB);
        assert_eq!(space.classes_that_fit(), 0);
    }

    #[test]
    fn one_question_at_a_time_and_one_a_period() {
        let mut space = Space::new(limits(None), "/d".into());
        let at = |ns| Now { mono_ns: ns, wall_ms: 0 };
        let asks = |space: &mut Space, ns| {
            let mut ops = Vec::new();
            space.pump(at(ns), &mut ops);
            ops.len()
        };
        assert_eq!((asks(&mut space, 0), asks(&mut space, 5)), (1, 0));
        let mut ops = Vec::new();
        space.on_answer(at(7), Ok(FreeSpace { free_bytes: GIB, total_bytes: GIB }), &mut ops);
        let again = 7 + FileLimits::DEFAULT.space_look_ns;
        assert!(matches!(ops[..], [Op::Timer { at_ns, .. }] if at_ns == again));
        assert_eq!((asks(&mut space, again - 1), asks(&mut space, again)), (0, 1));
    }
}
