//! Latencies: a histogram of microseconds that can be merged, and the few figures that people read.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies in microseconds, three significant digits, up to ten minutes; longer ones count as that.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

/// The figures of a histogram, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How many were measured.
    pub count: u64,
    /// Half are at or below.
    pub p50_us: u64,
    /// 99 of 100 are at or below.
    pub p99_us: u64,
    /// 999 of 1,000 are at or below.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

const MICROS_MAX: u64 = 600_000_000;

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// Empty.
    pub fn new() -> Latencies {
        let histogram = Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("the bounds are valid");
        Latencies { histogram }
    }

    /// Adds one, in microseconds.
    pub fn record(&mut self, micros: u64) {
        self.record_many(micros, 1);
    }

    /// Adds `count` of the same length, in microseconds.
    pub fn record_many(&mut self, micros: u64, count: u64) {
        self.histogram.saturating_record_n(micros.clamp(1, MICROS_MAX), count);
    }

    /// Adds all of another histogram.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("all histograms have the same bounds");
    }

    /// The figures that people read.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.histogram.len(),
            p50_us: self.histogram.value_at_quantile(0.5),
            p99_us: self.histogram.value_at_quantile(0.99),
            p999_us: self.histogram.value_at_quantile(0.999),
            max_us: self.histogram.max(),
        }
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
}
