//! Damage that reads have come across: told once in the broker's log, shown wherever its partition is described.

use std::collections::BTreeMap;

use tidegate_protocol::ids::{Offset, TopicPartition};

use super::Shard;
use super::reply::Refusal;
use crate::log::ReadRefused;

/// Ranges remembered of one log.
const RANGES_OF_LOG_MAX: usize = 64;
/// Ranges remembered of all logs; those beyond are refused to readers like the others, but neither told nor shown.
const RANGES_MAX: usize = 4096;

/// Offsets that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DamagedRange {
    pub(super) from: Offset,
    /// One past the last.
    pub(super) upto: Offset,
}

/// What is known to be damaged, since the start.
///
/// Invariant: the ranges of a log are in order, and none touches another.
#[derive(Debug, Default)]
pub(super) struct Damage {
    logs: BTreeMap<TopicPartition, Vec<DamagedRange>>,
}

impl Damage {
    /// The ranges of a log.
    pub(super) fn of(&self, log: TopicPartition) -> &[DamagedRange] {
        self.logs.get(&log).map_or(&[], Vec::as_slice)
    }

    /// Ranges of all logs.
    pub(super) fn ranges(&self) -> usize {
        self.logs.values().map(Vec::len).sum()
    }

    /// A log is gone.
    pub(super) fn forget(&mut self, log: TopicPartition) {
        self.logs.remove(&log);
    }

    /// Takes a range in; whether it is news. A read sees damage from its own offset on, so a later one may see more of a range
    /// that is known; that is none.
    fn add(&mut self, log: TopicPartition, range: DamagedRange) -> bool {
        let is_full = self.ranges() >= RANGES_MAX;
        let ranges = self.logs.entry(log).or_default();
        if let Some(known) = ranges.iter_mut().find(|r| r.from <= range.upto && range.from <= r.upto) {
            known.from = known.from.min(range.from);
            known.upto = known.upto.max(range.upto);
            return false;
        }
        if is_full || ranges.len() >= RANGES_OF_LOG_MAX {
            return false;
        }
        ranges.push(range);
        ranges.sort_unstable_by_key(|range| range.from);
        true
    }
}

impl Shard {
    /// What a read that was refused says to whoever asked. Damage that was not known goes to the broker's log.
    pub(super) fn read_refused(&mut self, log: TopicPartition, refused: ReadRefused) -> Refusal {
        let damaged = match &refused {
            ReadRefused::Damaged { from, upto, .. } => Some(DamagedRange { from: *from, upto: *upto }),
            _ => None,
        };
        let refusal = Refusal::from_read(log, refused);
        if let Some(range) = damaged
            && self.damage.add(log, range)
        {
            self.notices.push(refusal.body(self.names()).cause);
        }
        refusal
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::ids::{PartitionId, TopicId};

    use super::*;

    fn range(from: i64, upto: i64) -> DamagedRange {
        DamagedRange { from: Offset(from), upto: Offset(upto) }
    }

    #[test]
    fn a_range_is_news_once_however_much_of_it_a_read_sees() {
        let log = TopicPartition { topic: TopicId([1; 16]), partition: PartitionId(0) };
        let mut damage = Damage::default();
        assert!(damage.add(log, range(50, 60)));
        assert!(!damage.add(log, range(55, 60)));
        assert!(!damage.add(log, range(40, 60)));
        assert!(damage.add(log, range(10, 20)));
        assert_eq!(damage.of(log), [range(10, 20), range(40, 60)]);
        let other = TopicPartition { partition: PartitionId(1), ..log };
        assert!(damage.of(other).is_empty());
        for at in 0..2 * RANGES_OF_LOG_MAX as i64 {
            damage.add(other, range(10 * at, 10 * at + 5));
        }
        assert_eq!(damage.of(other).len(), RANGES_OF_LOG_MAX);
        damage.forget(other);
        assert_eq!(damage.ranges(), 2);
    }
}
