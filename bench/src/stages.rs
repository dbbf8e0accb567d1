//! Where a broker's time goes, out of the counters of its status: `stage_write_us_upto_127` is how many values of the stage
//! `write` lie in the bucket whose largest is 127 µs.

use std::collections::BTreeMap;

use serde::Serialize;

const PREFIX: &str = "stage_";
const INFIX: &str = "_us_upto_";

/// One stage: by the largest value of each bucket, how many lie in it. Buckets are a tenth wide, so quantiles are right to a tenth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Such as `write`.
    pub name: String,
    buckets: BTreeMap<u64, u64>,
}

/// Whether a counter belongs to a stage.
pub fn is_bucket(counter: &str) -> bool {
    parts(counter).is_some()
}

/// The stages among counters, in the order in which they begin there.
pub fn of(counters: &[(String, i64)]) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for (counter, count) in counters {
        let Some((name, largest)) = parts(counter) else { continue };
        let stage = match stages.iter_mut().position(|stage| stage.name == name) {
            Some(known) => &mut stages[known],
            None => {
                stages.push(Stage { name: name.to_owned(), buckets: BTreeMap::new() });
                stages.last_mut().expect("just put there")
            }
        };
        *stage.buckets.entry(largest).or_default() += u64::try_from(*count).unwrap_or(0);
    }
    stages
}

impl Stage {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// The value, in microseconds, that a share of all do not exceed; 0 of none.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = self.buckets.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        reached.map_or(0, |(largest, _)| *largest)
    }

    /// Its quantiles.
    pub fn times(&self) -> StageTimes {
        let [p50_us, p99_us, p999_us, max_us] = [0.5, 0.99, 0.999, 1.0].map(|share| self.quantile(share));
        StageTimes { count: self.count(), p50_us, p99_us, p999_us, max_us }
    }
}

/// What has been counted since an earlier look at the same broker.
pub fn since(before: &[Stage], mut now: Vec<Stage>) -> Vec<Stage> {
    for stage in &mut now {
        let Some(earlier) = before.iter().find(|earlier| earlier.name == stage.name) else { continue };
        for (largest, count) in &mut stage.buckets {
            *count = count.saturating_sub(earlier.buckets.get(largest).copied().unwrap_or(0));
        }
    }
    now.retain(|stage| stage.count() > 0);
    now
}

/// How often a stage was gone through, and how many microseconds that took; right to a tenth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StageTimes {
    /// How often.
    pub count: u64,
    /// Half took at most as long.
    pub p50_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// 999 of 1,000.
    pub p999_us: u64,
    /// All.
    pub max_us: u64,
}

fn parts(counter: &str) -> Option<(&str, u64)> {
    let (name, largest) = counter.strip_prefix(PREFIX)?.split_once(INFIX)?;
    Some((name, largest.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_out_of_the_buckets_of_their_stage_alone() {
        let counters = [
            ("cycles", 7),
            ("stage_write_us_upto_127", 98),
            ("stage_flush_us_upto_63", 3),
            ("stage_write_us_upto_4095", 1),
            ("stage_write_us_upto_255", 1),
        ]
        .map(|(name, count)| (name.to_owned(), count));
        let stages = of(&counters);
        let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["write", "flush"]);
        let quantiles = [0.0, 0.5, 0.98, 0.99, 1.0].map(|share| stages[0].quantile(share));
        assert_eq!(quantiles, [127, 127, 127, 255, 4095]);
        assert_eq!((stages[1].count(), stages[1].quantile(0.99)), (3, 63));
        let later =
            of(&[("stage_write_us_upto_127".to_owned(), 99), ("stage_write_us_upto_255".to_owned(), 1)]);
        let since = since(&stages, later);
        assert_eq!(since.len(), 1);
        let times = StageTimes { count: 1, p50_us: 127, p99_us: 127, p999_us: 127, max_us: 127 };
        assert_eq!(since[0].times(), times, "what was there before does not count");
    }
}
