//! What workers record: throughput and latency, in all and by interval, in a window that follows the warm-up.
//!
//! A latency counts from the intended time of its send, in the interval of that time; throughput counts when it is done. So
//! a stall shows in full: as an interval without throughput, and in the latency of everything that should have been sent
//! meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::latency::Latencies;

/// More intervals than this say no more to a reader and take memory.
const INTERVALS_MAX: u64 = 300;

/// Nanoseconds since one moment of this process, the same for all of its workers.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Starts at 0.
    pub fn start() -> Clock {
        Clock { epoch: Instant::now() }
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// Which part of a run counts. Invariant: `begin_ns < end_ns`, `interval_ns > 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// End of the warm-up, in nanoseconds of the run's clock.
    pub begin_ns: u64,
    /// End of what counts.
    pub end_ns: u64,
    /// The length of one interval.
    pub interval_ns: u64,
}

impl Window {
    /// `time` after `warmup`, from `now_ns` on; intervals of a second, longer ones in a very long run.
    pub fn after(now_ns: u64, warmup: Duration, time: Duration) -> Window {
        let begin_ns = now_ns + warmup.as_nanos() as u64;
        let time_ns = (time.as_nanos() as u64).max(1);
        let interval_ns = time_ns.div_ceil(INTERVALS_MAX).max(1_000_000_000).min(time_ns);
        Window { begin_ns, end_ns: begin_ns + time_ns, interval_ns }
    }

    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        (self.end_ns - self.begin_ns) as f64 / 1e9
    }

    fn interval_of(&self, ns: u64) -> Option<usize> {
        (self.begin_ns..self.end_ns).contains(&ns).then(|| ((ns - self.begin_ns) / self.interval_ns) as usize)
    }

    fn intervals(&self) -> usize {
        (self.end_ns - self.begin_ns).div_ceil(self.interval_ns) as usize
    }
}

/// What happened in one interval.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// Its length in seconds; the last one may be shorter.
    pub seconds: f64,
    /// Records done in it.
    pub records: u64,
    /// Bytes of their batches.
    pub bytes: u64,
    /// Records that failed in it.
    pub errors: u64,
    /// Of everything that was to be sent in it.
    pub latency: Latencies,
}

/// What one worker, or all of a run together, have recorded.
#[derive(Clone, Debug)]
pub struct Series {
    window: Window,
    /// One after the other.
    pub intervals: Vec<Interval>,
    /// Of all intervals.
    pub latency: Latencies,
    /// Records that failed, or were not done when the run gave up on them.
    pub errors: u64,
}

impl Series {
    /// Nothing yet.
    pub fn new(window: Window) -> Series {
        let length = |index: usize| {
            let begin = window.begin_ns + index as u64 * window.interval_ns;
            (window.end_ns.min(begin + window.interval_ns) - begin) as f64 / 1e9
        };
        let intervals = (0..window.intervals())
            .map(|index| Interval { seconds: length(index), ..Interval::default() })
            .collect();
        Series { window, intervals, latency: Latencies::new(), errors: 0 }
    }

    /// `records` that were to be sent at `intended_ns` are done at `done_ns`.
    pub fn done(&mut self, intended_ns: u64, done_ns: u64, records: u64, bytes: u64) {
        self.came(done_ns, records, bytes);
        self.waited(intended_ns, done_ns, records);
    }

    /// `records` came at `now_ns`, and nobody knows since when they were wanted.
    pub fn came(&mut self, now_ns: u64, records: u64, bytes: u64) {
        if let Some(index) = self.window.interval_of(now_ns) {
            self.intervals[index].records += records;
            self.intervals[index].bytes += bytes;
        }
    }

    /// Nothing happened from `end_ns` on, by plan: the window ends there.
    pub fn end_at(&mut self, end_ns: u64) {
        let window = self.window;
        let begin_of = |index: usize| window.begin_ns + index as u64 * window.interval_ns;
        let count = self.intervals.len();
        let kept = (0..count).take_while(|index| begin_of(*index) < end_ns).count().max(1);
        self.intervals.truncate(kept);
        if let Some(last) = self.intervals.last_mut() {
            let length = end_ns.saturating_sub(begin_of(kept - 1)) as f64 / 1e9;
            // A window that ended before it began has nothing in it; a length of 0 would make rates of it.
            last.seconds = length.clamp(1e-9, last.seconds);
        }
    }

    /// `records` that were to be sent at `intended_ns` have failed, or are given up, at `now_ns`. They have waited, too.
    pub fn failed(&mut self, intended_ns: u64, now_ns: u64, records: u64) {
        if let Some(index) = self.window.interval_of(now_ns) {
            self.intervals[index].errors += records;
        }
        // Those of the warm-up count, too: a run with errors is not one to quote.
        self.errors += records;
        self.waited(intended_ns, now_ns, records);
    }

    /// `records` were expected and never came; since when they were wanted is not known.
    pub fn missing(&mut self, records: u64) {
        self.errors += records;
    }

    fn waited(&mut self, intended_ns: u64, now_ns: u64, records: u64) {
        if let Some(index) = self.window.interval_of(intended_ns) {
            let micros = now_ns.saturating_sub(intended_ns) / 1000;
            self.intervals[index].latency.record_many(micros, records);
            self.latency.record_many(micros, records);
        }
    }

    /// Adds what another worker has recorded in the same window.
    ///
    /// # Panics
    /// The windows differ.
    pub fn merge(&mut self, other: &Series) {
        assert_eq!(self.window, other.window, "workers of one run share their window");
        for (mine, theirs) in self.intervals.iter_mut().zip(&other.intervals) {
            mine.records += theirs.records;
            mine.bytes += theirs.bytes;
            mine.errors += theirs.errors;
            mine.latency.merge(&theirs.latency);
        }
        self.latency.merge(&other.latency);
        self.errors += other.errors;
    }

    /// Adds what came in a later window: of a run in several slices.
    pub fn append(&mut self, later: Series) {
        self.intervals.extend(later.intervals);
        self.latency.merge(&later.latency);
        self.errors += later.errors;
    }

    /// Seconds of all its intervals.
    pub fn seconds(&self) -> f64 {
        self.intervals.iter().map(|interval| interval.seconds).sum()
    }

    /// Records done in the window.
    pub fn records(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.records).sum()
    }

    /// Bytes of their batches.
    pub fn bytes(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.bytes).sum()
    }

    /// Records done in a second.
    pub fn records_per_s(&self) -> f64 {
        self.records() as f64 / self.seconds()
    }

    /// MiB of batches done in a second.
    pub fn mib_per_s(&self) -> f64 {
        self.bytes() as f64 / self.seconds() / f64::from(1 << 20)
    }
}

/// Counters that a run keeps up to date for whoever watches it.
#[derive(Debug, Default)]
pub struct Live {
    /// Records whose intended time has come.
    pub due: AtomicU64,
    /// Records acknowledged.
    pub published: AtomicU64,
    /// Bytes of their batches.
    pub published_bytes: AtomicU64,
    /// Records consumed.
    pub consumed: AtomicU64,
    /// Bytes of their batches.
    pub consumed_bytes: AtomicU64,
    /// Records that tail readers have got.
    pub arrived: AtomicU64,
    /// Records failed.
    pub errors: AtomicU64,
}

impl Live {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// The value of one of the counters.
    pub fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { begin_ns: 1_000, end_ns: 3_500, interval_ns: 1_000 };

    #[test]
    fn what_is_intended_in_the_window_counts_whenever_it_is_done() {
        let mut series = Series::new(WINDOW);
        series.done(500, 900, 1, 10);
        series.done(900, 1_500, 2, 20);
        series.done(1_200, 9_000_000, 4, 40);
        series.failed(2_100, 5_002_100, 8);
        assert_eq!(series.records(), 2, "done in the window");
        assert_eq!(series.bytes(), 20);
        assert_eq!(series.latency.count(), 12, "intended in the window, failures included");
        assert_eq!(series.latency.count_from(8_000), 4);
        assert_eq!(series.errors, 8);
        assert_eq!(series.intervals.iter().map(|i| i.latency.count()).collect::<Vec<_>>(), [4, 8, 0]);
        assert_eq!(series.intervals[2].seconds, 500e-9);
    }

    #[test]
    fn merging_workers_adds_their_intervals_and_appending_puts_them_behind() {
        let (mut a, mut b) = (Series::new(WINDOW), Series::new(WINDOW));
        a.done(1_000, 1_000, 1, 1);
        b.done(1_000, 1_000, 1, 1);
        b.failed(2_000, 2_000, 3);
        a.merge(&b);
        assert_eq!((a.intervals[0].records, a.intervals[1].errors, a.errors), (2, 3, 3));
        a.append(b);
        assert_eq!((a.intervals.len(), a.records(), a.latency.count()), (6, 3, 9));
    }

    #[test]
    fn a_window_that_ends_early_has_the_rate_of_what_it_saw() {
        let mut series =
            Series::new(Window { begin_ns: 0, end_ns: 3_000_000_000, interval_ns: 1_000_000_000 });
        series.came(400_000_000, 10, 10 << 20);
        series.came(1_400_000_000, 5, 5 << 20);
        series.end_at(1_500_000_000);
        assert_eq!((series.intervals.len(), series.seconds()), (2, 1.5));
        assert_eq!((series.records_per_s(), series.mib_per_s()), (10.0, 10.0));
    }

    #[test]
    fn a_long_window_has_a_bounded_number_of_intervals() {
        let hour = Window::after(0, Duration::ZERO, Duration::from_secs(3600));
        assert_eq!(hour.intervals(), 300);
        let short = Window::after(7, Duration::from_millis(1), Duration::from_millis(500));
        assert_eq!((short.begin_ns, short.intervals()), (1_000_007, 1));
    }
}
