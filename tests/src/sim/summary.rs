//! Many seeds, and what they have shown together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_broker::mutants::Mutant;

use super::coverage::Coverage;
use super::run::{
    Counts, FAULTS, History, KINDS, Level, NET_FAULTS, OF_LOGS_ALONE, Repeat, Report, run, run_fully,
};

/// Failing seeds after which no more are run.
const FAILURES_MAX: u64 = 40;

/// What many seeds have shown together.
#[derive(Debug, Default)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Those that failed, by number.
    pub failed: Vec<(u64, String)>,
    /// Sums.
    pub counts: Counts,
    /// Sums.
    pub coverage: Coverage,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// What counts of each seed that has passed, by seed.
    pub passed: BTreeMap<u64, Weight>,
    /// Nanoseconds that its threads have spent on a core.
    pub cpu_ns: u64,
}

/// What a seed adds to a simulated hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Acknowledged appends.
    pub acks: u64,
    /// Faults.
    pub faults: u64,
}

/// Acknowledged appends that an hour must have to count: idle time is free and proves nothing.
pub const ACKS_PER_HOUR: u64 = 100_000;
/// Faults, likewise.
pub const FAULTS_PER_HOUR: u64 = 60;
/// An hour, in nanoseconds.
pub const HOUR_NS: u64 = 3_600 * 1_000_000_000;

/// How many hours the seeds make, taken in their order. An hour is as many seeds as it takes to have all three: an hour of virtual
/// time, [`ACKS_PER_HOUR`] and [`FAULTS_PER_HOUR`]; what one has of something beyond that does not help the next.
pub fn hours(seeds: &BTreeMap<u64, Weight>) -> u64 {
    let mut hours = 0;
    let mut hour = Weight::default();
    for seed in seeds.values() {
        hour.virtual_ns += seed.virtual_ns;
        hour.acks += seed.acks;
        hour.faults += seed.faults;
        if hour.virtual_ns >= HOUR_NS && hour.acks >= ACKS_PER_HOUR && hour.faults >= FAULTS_PER_HOUR {
            hours += 1;
            hour = Weight::default();
        }
    }
    hours
}

/// Nanoseconds that this thread has spent on a core; Linux alone, 0 elsewhere.
fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Which seeds are run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// What is simulated.
    pub level: Level,
    /// The first of them.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Threads.
    pub threads: usize,
    /// One of so many is run twice.
    pub repeat_every: u64,
}

/// Runs these seeds. Stops early after many failures.
pub fn run_many(seeds: Seeds) -> Summary {
    let Seeds { level, first, count, threads, repeat_every } = seeds;
    let next = AtomicU64::new(first);
    let failures = AtomicU64::new(0);
    let work = || {
        let mut sum = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= first + count || failures.load(Ordering::SeqCst) >= FAILURES_MAX {
                sum.cpu_ns = thread_cpu_ns();
                return sum;
            }
            let repeat = if seed.is_multiple_of(repeat_every) { Repeat::Yes } else { Repeat::No };
            let report = run_fully(level, seed, repeat);
            failures.fetch_add(u64::from(report.failure.is_some()), Ordering::SeqCst);
            sum.add(report);
        }
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut total = Summary::default();
        for handle in handles {
            total.merge(handle.join().expect("a run's panics are caught inside"));
        }
        total.failed.sort();
        total
    })
}

/// The first seed below `budget` that notices a planted bug, and how.
pub fn caught_by(level: Level, mutant: Mutant, budget: u64) -> Option<(u64, String)> {
    (0..budget).find_map(|seed| {
        let failure = run(level, seed, Some(mutant), History::Dropped).failure?;
        // It is the planted bug that is caught, not one that is there without it.
        let is_sound = run(level, seed, None, History::Dropped).failure.is_none();
        is_sound.then_some((seed, failure))
    })
}

impl Summary {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        if report.failure.is_none() {
            let acks = report.counts.get("acks").copied().unwrap_or(0);
            let weight = Weight { virtual_ns: report.virtual_ns, acks, faults: report.faults() };
            self.passed.insert(report.seed, weight);
        }
        self.failed.extend(report.failure.map(|failure| (report.seed, failure)));
        add_counts(&mut self.counts, &report.counts);
        self.coverage.add(&report.coverage);
        self.virtual_ns += report.virtual_ns;
    }

    /// Adds what other seeds have shown.
    pub fn merge(&mut self, other: Summary) {
        self.seeds += other.seeds;
        self.failed.extend(other.failed);
        add_counts(&mut self.counts, &other.counts);
        self.coverage.add(&other.coverage);
        self.virtual_ns += other.virtual_ns;
        self.passed.extend(other.passed);
        self.cpu_ns += other.cpu_ns;
    }

    /// Acknowledged appends.
    pub fn acks(&self) -> u64 {
        self.counts.get("acks").copied().unwrap_or(0)
    }

    /// Of a second on a core; what repetitions have cost is in it, what they acknowledged is not.
    pub fn acks_per_cpu_second(&self) -> f64 {
        self.acks() as f64 / (self.cpu_ns as f64 / 1e9)
    }

    /// Virtual seconds in a second on a core; as above.
    pub fn speed_up(&self) -> f64 {
        self.virtual_ns as f64 / self.cpu_ns as f64
    }

    /// The kinds of faults, with how often each has occurred; sectors are not counted one by one.
    pub fn faults(&self) -> Vec<(&'static str, u64)> {
        let count = |name| (name, self.counts.get(name).copied().unwrap_or(0));
        self.coverage.faults().into_iter().chain(NET_FAULTS.map(count)).chain(FAULTS.map(count)).collect()
    }

    /// The kinds of faults and the operations that have not occurred once in all these seeds: nothing is proved of them.
    pub fn never(&self, level: Level) -> Vec<&'static str> {
        self.kinds(level).into_iter().filter(|(_, count)| *count == 0).map(|(kind, _)| kind).collect()
    }

    /// Kinds of faults and operations that this level knows, with how often each has occurred.
    pub fn kinds(&self, level: Level) -> Vec<(&'static str, u64)> {
        let count = |name| (name, self.counts.get(name).copied().unwrap_or(0));
        let of_the_other: &[&str] = match level {
            Level::Logs => &NET_FAULTS,
            Level::Shards => &OF_LOGS_ALONE,
        };
        let all = self.faults().into_iter().chain(self.coverage.sectors()).chain(KINDS.map(count));
        all.filter(|(name, _)| !of_the_other.contains(name)).collect()
    }
}

fn add_counts(sum: &mut Counts, more: &Counts) {
    for (name, count) in more {
        *sum.entry(name).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_asked_for_what_it_knows_alone() {
        let kinds = |level| -> Vec<&str> {
            Summary::default().kinds(level).into_iter().map(|(kind, _)| kind).collect()
        };
        let (logs, shards) = (kinds(Level::Logs), kinds(Level::Shards));
        assert!(OF_LOGS_ALONE.iter().all(|kind| logs.contains(kind) && !shards.contains(kind)));
        assert!(NET_FAULTS.iter().all(|kind| shards.contains(kind) && !logs.contains(kind)));
    }

    #[test]
    fn an_hour_counts_when_it_has_enough_of_all_three() {
        let seed = |minutes: u64, acks, faults| Weight { virtual_ns: minutes * HOUR_NS / 60, acks, faults };
        let count = |weights: &[Weight]| hours(&(0..).zip(weights.iter().copied()).collect());
        assert_eq!(count(&[seed(30, 50_000, 30), seed(30, 50_000, 30)]), 1);
        assert_eq!(count(&[seed(59, 500_000, 600)]), 0, "too short");
        assert_eq!(count(&[seed(600, 99_999, 600)]), 0, "idle");
        assert_eq!(count(&[seed(600, 500_000, 59)]), 0, "nothing went wrong");
        assert_eq!(count(&[seed(600, 500_000, 600)]), 1, "nothing is left over for another one");
        assert_eq!(count(&[seed(600, 50_000, 600), seed(1, 50_000, 0), seed(60, 100_000, 60)]), 2);
    }
}
