//! What the broker has counted, looked at before and after a round: whether the round was what its name says.

use std::collections::BTreeMap;

use tidegate::StatusReply;
use tidegate_bench::suite::Files;

/// The counters of each shard at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    shards: Vec<BTreeMap<String, i64>>,
}

impl Counters {
    /// Those of a status.
    pub(crate) fn of(status: StatusReply) -> Counters {
        Counters { shards: status.shards.into_iter().map(|shard| shard.into_iter().collect()).collect() }
    }

    /// The sum over all shards; 0 of a counter that is not there.
    pub(crate) fn sum(&self, name: &str) -> i64 {
        self.shards.iter().filter_map(|shard| shard.get(name)).sum()
    }

    /// By how much all shards together have counted more than at an earlier moment of the same broker.
    pub(crate) fn growth(&self, before: &Counters, name: &str) -> i64 {
        self.sum(name) - before.sum(name)
    }

    /// The same of the shard that has counted least more.
    pub(crate) fn growth_least(&self, before: &Counters, name: &str) -> i64 {
        let of = |shard: &BTreeMap<String, i64>| shard.get(name).copied().unwrap_or(0);
        let pairs = self.shards.iter().zip(&before.shards);
        pairs.map(|(now, before)| of(now) - of(before)).min().unwrap_or(0)
    }
}

/// What was seen on both sides of a round of a row that promises how data files come to be.
#[derive(Clone, Debug)]
pub(crate) struct FilesSeen {
    /// The counters.
    pub(crate) before: Counters,
    /// As above.
    pub(crate) after: Counters,
    /// How far retention has moved the beginnings of all partitions, in records.
    pub(crate) records_given_back: i64,
}

impl FilesSeen {
    /// Data files handed out before they were filled, each of which needs a flush of its own.
    pub(crate) fn own_flushes(&self) -> i64 {
        self.after.growth(&self.before, "files_with_own_flush")
    }

    /// Why the round was not what it promises, if it was not.
    pub(crate) fn shortcoming(&self, files: Files) -> Option<&'static str> {
        match files {
            Files::Ready if self.own_flushes() > 0 => Some("data files were used before they were ready"),
            Files::Steady if self.records_given_back <= 0 => Some("retention gave nothing back in a round"),
            Files::Steady if self.after.growth(&self.before, "bytes_data_files") <= 0 => {
                Some("nothing was written into data files in a round")
            }
            Files::Ready | Files::Steady => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(shards: &[&[(&str, i64)]]) -> Counters {
        let shard =
            |list: &&[(&str, i64)]| list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let shards = shards.iter().map(shard).collect();
        Counters::of(StatusReply { facts: Vec::new(), shards })
    }

    #[test]
    fn the_slowest_shard_says_how_often_all_have_lapped() {
        let before = counters(&[&[("ring_laps", 5)], &[("ring_laps", 1)]]);
        let after = counters(&[&[("ring_laps", 9)], &[("ring_laps", 2)]]);
        assert_eq!((after.growth(&before, "ring_laps"), after.growth_least(&before, "ring_laps")), (5, 1));
        assert_eq!(after.growth_least(&before, "unknown"), 0);
        assert_eq!(Counters::default().growth_least(&before, "ring_laps"), 0, "nobody has lapped");
    }

    #[test]
    fn a_round_that_is_not_what_its_name_says_is_found() {
        let seen = |own: i64, written: i64, records_given_back: i64| FilesSeen {
            before: counters(&[&[("files_with_own_flush", 3), ("bytes_data_files", 10)]]),
            after: counters(&[&[("files_with_own_flush", 3 + own), ("bytes_data_files", 10 + written)]]),
            records_given_back,
        };
        assert_eq!(seen(0, 1, 0).shortcoming(Files::Ready), None);
        assert!(seen(1, 1, 1).shortcoming(Files::Ready).is_some());
        assert_eq!(seen(1, 1, 1).shortcoming(Files::Steady), None, "whatever files there are");
        assert!(seen(0, 1, 0).shortcoming(Files::Steady).is_some_and(|why| why.contains("retention")));
        assert!(seen(0, 0, 1).shortcoming(Files::Steady).is_some_and(|why| why.contains("data files")));
    }
}
