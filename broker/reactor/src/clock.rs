//! A reactor's clock, and the timers that shards have asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::op::{Event, Now, Tag};

/// The clock of one reactor, from its start on.
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    /// As [`Now::mono_ns`].
    pub(crate) fn mono_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).expect("a process runs less than 584 years")
    }

    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_ns: self.mono_ns(), wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX) }
    }
}

/// Timers under way, in the order in which they end.
#[derive(Default)]
pub(crate) struct Timers {
    /// When, and a count that keeps timers of one instant in the order in which they were asked for.
    heap: BinaryHeap<Reverse<(u64, u64, Tag)>>,
    made: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, at_ns: u64, tag: Tag) {
        self.made += 1;
        self.heap.push(Reverse((at_ns, self.made, tag)));
    }

    /// When the earliest ends.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }

    /// Ends all that are due.
    pub(crate) fn collect(&mut self, now: Now, events: &mut Vec<Event>) {
        while self.next_ns().is_some_and(|at_ns| at_ns <= now.mono_ns) {
            let Reverse((_, _, tag)) = self.heap.pop().expect("looked at above");
            events.push(Event::Timer { tag });
        }
    }
}
