//! What makes load: `wire` and `link` (prepared batches over plain sockets), `sdk` (producers), `consume`
//! (consumers), [`idle`] (connections that do nothing).

pub(crate) mod consume;
pub mod idle;
pub(crate) mod link;
pub(crate) mod sdk;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::series::{Clock, Live, Series, Window};

/// What all workers of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// The run's time.
    pub(crate) clock: Clock,
    /// When the first send is due.
    pub(crate) start_ns: u64,
    /// Which part counts.
    pub(crate) window: Window,
    /// For whoever watches.
    pub(crate) live: &'a Arc<Live>,
    /// Whether to end at once.
    pub(crate) stop: &'a AtomicBool,
}

/// What producers have recorded.
#[derive(Clone, Debug)]
pub struct Published {
    /// Throughput, and latency from the intended time to the acknowledgement.
    pub series: Series,
    /// Batches acknowledged, warm-up included.
    pub batches: u64,
    /// Bytes acknowledged, warm-up included.
    pub bytes: u64,
    /// The lowest level that any batch met: 0 none, 1 memory, 2 disk, 3 quorum.
    pub level_min: Option<u8>,
    /// For how long credit was waited for, summed over connections.
    pub credit_wait: Duration,
    /// Why the first record that failed did.
    pub first_error: Option<String>,
}

impl Published {
    pub(crate) fn new(window: Window) -> Published {
        Published {
            series: Series::new(window),
            batches: 0,
            bytes: 0,
            level_min: None,
            credit_wait: Duration::ZERO,
            first_error: None,
        }
    }

    pub(crate) fn merge(&mut self, other: &Published) {
        self.series.merge(&other.series);
        self.add(other);
    }

    /// Adds a later slice of the same run.
    pub(crate) fn append(&mut self, later: Published) {
        self.add(&later);
        self.series.append(later.series);
    }

    fn add(&mut self, other: &Published) {
        self.batches += other.batches;
        self.bytes += other.bytes;
        self.level_min = match (self.level_min, other.level_min) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.credit_wait += other.credit_wait;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
    }

    fn acked(&mut self, job: &Job<'_>, intended_ns: u64, now_ns: u64, batch: &wire::Prepared, level: u8) {
        let (records, bytes) = (u64::from(batch.records), batch.bytes.len() as u64);
        self.series.done(intended_ns, now_ns, records, bytes);
        self.count_batch(job.live, records, bytes, level);
    }

    fn count_batch(&mut self, live: &Live, records: u64, bytes: u64, level: u8) {
        self.batches += 1;
        self.bytes += bytes;
        self.level_min = Some(self.level_min.map_or(level, |min| min.min(level)));
        Live::add(&live.published, records);
        Live::add(&live.published_bytes, bytes);
    }

    /// Records that counted as done when they were written are refused: their latency stands, their failure is counted.
    fn refused_late(&mut self, live: &Live, records: u64, why: &str) {
        self.series.missing(records);
        self.first_error.get_or_insert_with(|| why.to_owned());
        Live::add(&live.errors, records);
    }

    fn failed(&mut self, live: &Live, intended_ns: u64, now_ns: u64, records: u64, why: &str) {
        self.series.failed(intended_ns, now_ns, records);
        self.first_error.get_or_insert_with(|| why.to_owned());
        Live::add(&live.errors, records);
    }
}

/// Lets this thread's sleeps end when they should: the kernel may otherwise add 50 us to each.
pub(crate) fn sleep_exactly() {
    // Where it is refused the run is a little less exact, which its latencies then show.
    let _ = nix::sys::prctl::set_timerslack(1);
}
