//! How long a produce spends in each stage; always on. A value costs a few nanoseconds, for a request, not for a record.

use hdrhistogram::Histogram;

/// A stage that takes longer counts as this long.
const LONGEST_US: u64 = 60_000_000;

/// One histogram a stage, of microseconds, each bucket a tenth wide at most.
///
/// The first three are of every produce that a flush has answered, on the shard that owns its partition; they add up to the time
/// from its receipt there to its reply.
#[derive(Debug)]
pub(super) struct Stages {
    /// From receipt until the write of its cycle is submitted.
    pub(super) queue: Histogram<u64>,
    /// Until all of that cycle is written.
    pub(super) write: Histogram<u64>,
    /// Until a flush that covers it has ended, the wait for the flush before that included.
    pub(super) flush: Histogram<u64>,
    /// Of every send of a connection, whatever it carries: until the kernel has taken all of it.
    pub(super) send: Histogram<u64>,
}

impl Stages {
    pub(super) fn new() -> Stages {
        Stages { queue: histogram(), write: histogram(), flush: histogram(), send: histogram() }
    }

    /// As counters: `stage_write_us_upto_127` is how many values lie in the bucket whose largest is 127 µs. Only what is not
    /// zero. Those of several shards can be added up.
    pub(super) fn list(&self, out: &mut Vec<(String, i64)>) {
        let all =
            [("queue", &self.queue), ("write", &self.write), ("flush", &self.flush), ("send", &self.send)];
        for (stage, histogram) in all {
            out.extend(histogram.iter_recorded().map(|bucket| {
                let largest = histogram.highest_equivalent(bucket.value_iterated_to());
                (format!("stage_{stage}_us_upto_{largest}"), bucket.count_at_value() as i64)
            }));
        }
    }
}

/// Counts a duration.
pub(super) fn count(stage: &mut Histogram<u64>, ns: u64) {
    stage.saturating_record((ns / 1000).min(LONGEST_US));
}

fn histogram() -> Histogram<u64> {
    const DIGITS: u8 = 1;
    Histogram::new_with_max(LONGEST_US, DIGITS).expect("the bounds are sound")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_listed_by_buckets_of_a_tenth() {
        let mut stages = Stages::new();
        for us in [1u64, 1000, 1001, 70_000_000] {
            count(&mut stages.write, us * 1000);
        }
        let mut listed = Vec::new();
        stages.list(&mut listed);
        let named = |name: &str| {
            let (stage, largest) = name.rsplit_once("_upto_").unwrap();
            (stage.to_owned(), largest.parse::<u64>().unwrap())
        };
        let listed: Vec<_> = listed.iter().map(|(name, count)| (named(name), *count)).collect();
        assert_eq!(listed.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 2, 1]);
        assert!(listed.iter().all(|((stage, _), _)| stage == "stage_write_us"));
        for (((_, largest), _), us) in listed.iter().zip([1, 1001, LONGEST_US]) {
            assert!((us..=us + us / 10).contains(largest), "{us} lies below {largest}");
        }
    }
}
