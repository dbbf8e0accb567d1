//! Statistics: a histogram of microseconds that can be merged, the few figures that people read, and the median.
//!
//! Histograms are merged, percentiles never are: the mean of two p99 is the p99 of nothing.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies in microseconds, three significant digits, up to ten minutes; longer ones count as that.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

/// The figures of a histogram, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How many were measured.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Half are at or below.
    pub p50_us: u64,
    /// 75 of 100 are at or below.
    pub p75_us: u64,
    /// 95 of 100 are at or below.
    pub p95_us: u64,
    /// 99 of 100 are at or below.
    pub p99_us: u64,
    /// 999 of 1,000 are at or below.
    pub p999_us: u64,
    /// 9,999 of 10,000 are at or below.
    pub p9999_us: u64,
    /// 99,999 of 100,000 are at or below.
    pub p99999_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// One point of the percentile curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// From 0 to 1.
    pub quantile: f64,
    /// This share is at or below, in microseconds.
    pub micros: u64,
    /// How many are at or below.
    pub count: u64,
}

const MICROS_MAX: u64 = 600_000_000;

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// Empty. It takes memory only as far as its longest latency needs, so that one for each second is cheap.
    pub fn new() -> Latencies {
        let mut histogram = Histogram::new(3).expect("three digits are valid");
        histogram.auto(true);
        Latencies { histogram }
    }

    /// Adds one, in microseconds.
    pub fn record(&mut self, micros: u64) {
        self.record_many(micros, 1);
    }

    /// Adds `count` of the same length, in microseconds.
    pub fn record_many(&mut self, micros: u64, count: u64) {
        let recorded = self.histogram.record_n(micros.clamp(1, MICROS_MAX), count);
        recorded.expect("a histogram that grows takes everything up to its bound");
    }

    /// Adds all of another histogram.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("a histogram that grows takes any other");
    }

    /// How many were measured.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// How many took at least so many microseconds, within the histogram's three digits.
    pub fn count_from(&self, micros: u64) -> u64 {
        self.histogram.count_between(micros, MICROS_MAX)
    }

    /// This share, from 0 to 1, is at or below, in microseconds; 0 if there is none.
    pub fn at(&self, quantile: f64) -> u64 {
        if self.histogram.is_empty() { 0 } else { self.histogram.value_at_quantile(quantile) }
    }

    /// The figures that people read.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.count(),
            mean_us: self.histogram.mean(),
            p50_us: self.at(0.5),
            p75_us: self.at(0.75),
            p95_us: self.at(0.95),
            p99_us: self.at(0.99),
            p999_us: self.at(0.999),
            p9999_us: self.at(0.9999),
            p99999_us: self.at(0.99999),
            max_us: self.histogram.max(),
        }
    }

    /// The percentile curve, with five points for each halving of the distance to 100 %.
    pub fn curve(&self) -> Vec<Point> {
        let points = self.histogram.iter_quantiles(5);
        points
            .map(|step| Point {
                quantile: step.quantile_iterated_to(),
                micros: step.value_iterated_to(),
                count: self.histogram.count_between(0, step.value_iterated_to()),
            })
            .collect()
    }

    /// The standard deviation, in microseconds.
    pub fn deviation(&self) -> f64 {
        self.histogram.stdev()
    }
}

/// The middle of some values; of an even number the mean of the two in the middle; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_histograms_count_all_of_both() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record_many(100, 99);
        b.record(50_000);
        b.record(u64::MAX);
        a.merge(&b);
        let summary = a.summary();
        assert_eq!(summary.count, 101);
        assert_eq!(summary.p50_us, 100);
        assert!(summary.max_us >= MICROS_MAX / 1000 * 999);
    }

    #[test]
    fn a_merged_percentile_is_that_of_all_and_not_the_mean_of_two() {
        let (mut fast, mut slow) = (Latencies::new(), Latencies::new());
        fast.record_many(100, 9_900);
        slow.record_many(10_000, 100);
        let mut both = Latencies::new();
        both.merge(&fast);
        both.merge(&slow);
        assert_eq!(both.at(0.99), 100, "100 of 10,000 lie above");
        assert!(both.at(0.9901) >= 9_990);
        assert_eq!(both.count_from(5_000), 100);
    }

    #[test]
    fn the_curve_rises_and_ends_with_everything() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|micros| latencies.record(micros));
        let curve = latencies.curve();
        assert!(curve.windows(2).all(|w| w[0].micros <= w[1].micros && w[0].count <= w[1].count));
        assert_eq!(curve.last().map(|p| (p.quantile, p.count)), Some((1.0, 1000)));
        assert_eq!(Latencies::new().summary().max_us, 0);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }
}
