//! The row of 1,024 partitions. Its throughput and what the drive writes for it are those of a run in which every shard's
//! journal has lapped twice, so that what was stored has been settled; its latency is that of an open loop at half of that.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tidegate_bench::engine::Outcome;
use tidegate_bench::limits::Meets;
use tidegate_bench::workload::Workload;

use super::{Bench, MIB, published};
use crate::exit::Failure;

/// Laps of its ring that each shard's journal has to make in a run.
const LAPS: i64 = 2;

/// A run that has not come to that by then ends, and is not valid.
const LAPS_TIME_MAX: Duration = Duration::from_secs(120);

/// Between two looks at what is not settled yet.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Bytes that each partition keeps: a round is as long as it takes, and the drive is to be large enough for any.
const RETENTION_BYTES: u64 = 8 << 20;

/// The least rest of the time that is worth another slice.
const SLICE_MIN: Duration = Duration::from_secs(1);

/// What was not settled at one moment of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Unsettled {
    seconds: f64,
    bytes: i64,
}

/// A run of as many slices as it takes.
struct Lapped {
    outcome: Outcome,
    laps: i64,
    unsettled: Vec<Unsettled>,
}

impl Bench<'_> {
    pub(super) fn many_partitions(&mut self) -> Result<(), Failure> {
        let shape =
            Workload { partitions: 1024, producers: 16, batch_records: 16, in_flight: 4, ..self.workload() };
        let retention = [("retention.bytes".to_owned(), RETENTION_BYTES.to_string())];
        let workload = self.with_topic(&shape, &retention)?;
        // The first records of so many partitions wait for their files.
        self.warm_up(&Workload { time: workload.time.max(Duration::from_secs(5)), ..workload.clone() })?;
        for _ in 0..self.args.rounds {
            self.many_partitions_round(&workload)?;
        }
        self.host.delete(&workload.topic)
    }

    fn many_partitions_round(&mut self, workload: &Workload) -> Result<(), Failure> {
        let bounds = self.bounds(Meets { writes: true, ..Meets::default() })?;
        self.note("drive_write", bounds.drive_write);
        let written_before = self.host.drive_written_bytes();
        let Lapped { outcome, laps, unsettled } = self.run_until_lapped(workload)?;
        // What is settled behind the run was written for it, too.
        self.await_still_drive()?;
        let written =
            self.host.drive_written_bytes().zip(written_before).map(|(after, before)| after - before);
        self.note("ring_laps", laps as f64);
        if laps < LAPS {
            self.measured.invalidate(format!(
                "a shard's journal did not lap {LAPS} times within {} s",
                LAPS_TIME_MAX.as_secs()
            ));
        }
        if let Some((quarter, end)) = quarter_and_end(&unsettled) {
            self.note("unsettled_mib_quarter", quarter as f64 / MIB);
            self.note("unsettled_mib_end", end as f64 / MIB);
            self.note("unsettled_ratio", end as f64 / quarter.max(1) as f64);
        }
        let (reached, mib_per_s) = {
            let series = published(&outcome)?;
            (series.records_per_s(), series.mib_per_s())
        };
        self.note("mib_per_s", mib_per_s);
        self.note("records_per_s", reached);
        let bytes = outcome.published.as_ref().map_or(0, |published| published.bytes);
        if let (Some(written @ 1..), 1..) = (written, bytes) {
            let amplification = written as f64 / bytes as f64;
            self.note("amplification", amplification);
            self.note("drive_by_amplification", bounds.drive_write / amplification);
        }
        let open = self.run(&Workload { rate: Some(reached / 2.0), ..workload.clone() })?;
        self.note("open_rate", reached / 2.0);
        let latency = published(&open)?.latency.summary();
        self.note("p50_us", latency.p50_us as f64);
        self.note("p99_us", latency.p99_us as f64);
        self.note("p999_us", latency.p999_us as f64);
        Ok(())
    }

    /// As fast as it goes, in slices, each twice as long as the one before.
    fn run_until_lapped(&mut self, workload: &Workload) -> Result<Lapped, Failure> {
        let (begun, before) = (Instant::now(), self.host.counters()?);
        let mut slice = workload.clone();
        let mut unsettled = Vec::new();
        let mut whole: Option<Outcome> = None;
        let laps = loop {
            let outcome = self.measure_and_look(&slice, begun, &mut unsettled)?;
            match &mut whole {
                None => whole = Some(outcome),
                Some(whole) => {
                    whole.workload.time += outcome.workload.time;
                    whole.append(outcome);
                }
            }
            let laps = self.host.counters()?.growth_least(&before, "ring_laps");
            let left = LAPS_TIME_MAX.saturating_sub(begun.elapsed());
            if laps >= LAPS || left < SLICE_MIN {
                break laps;
            }
            slice = Workload { warmup: Duration::ZERO, time: (slice.time * 2).min(left), ..slice };
        };
        let outcome = whole.expect("there is at least one slice");
        self.keep(&outcome, None)?;
        Ok(Lapped { outcome, laps, unsettled })
    }

    /// A run, and what is not settled meanwhile and right behind it.
    fn measure_and_look(
        &self,
        workload: &Workload,
        begun: Instant,
        unsettled: &mut Vec<Unsettled>,
    ) -> Result<Outcome, Failure> {
        let look = || {
            let counters = self.host.counters()?;
            let bytes = counters.sum("small_extent_bytes");
            Ok::<_, Failure>(Unsettled { seconds: begun.elapsed().as_secs_f64(), bytes })
        };
        let (over, ended) = channel::<()>();
        let outcome = std::thread::scope(|scope| {
            let looking = scope.spawn(move || {
                let mut seen = Vec::new();
                while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    // A broker that does not answer fails the run itself.
                    seen.extend(look().ok());
                }
                seen.extend(look().ok());
                seen
            });
            let outcome = self.host.measure(workload);
            drop(over);
            unsettled.extend(looking.join().expect("a look does not panic"));
            outcome
        })?;
        Ok(outcome)
    }
}

/// What was not settled at a quarter of the run, and at its end.
fn quarter_and_end(unsettled: &[Unsettled]) -> Option<(i64, i64)> {
    let end = unsettled.last()?;
    let quarter = unsettled.iter().find(|look| look.seconds >= end.seconds / 4.0)?;
    Some((quarter.bytes, end.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_is_compared_with_its_first_quarter() {
        let looks = [(1.0, 10), (2.0, 20), (3.0, 30), (8.0, 25)];
        let looks = looks.map(|(seconds, bytes)| Unsettled { seconds, bytes });
        assert_eq!(quarter_and_end(&looks), Some((20, 25)));
        assert_eq!(quarter_and_end(&looks[..1]), Some((10, 10)));
        assert_eq!(quarter_and_end(&[]), None);
    }
}
