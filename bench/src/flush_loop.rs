//! The plainest thing that acknowledges after a flush: a loop that writes what is due, flushes, and goes on.
//!
//! It has the arrivals of a broker's run (size and rate, open loop) and takes everything that is due in one write with one
//! flush: the best that one thread with one file can do, without sockets, checksums or partitions. A loop that flushed
//! every write by itself would fall behind at most rates, and then any broker looks good beside it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::limits::drive::{AlignedBytes, BLOCK, Target};
use crate::load::sleep_exactly;
use crate::series::{Clock, Series, Window};
use crate::workload::Schedule;

/// Bytes of one write at most.
const WRITE_BYTES_MAX: usize = 4 << 20;

/// What arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Bytes of each.
    pub bytes: usize,
    /// How many in a second.
    pub per_s: f64,
}

/// Runs it for `time` after `warmup`. Latency is from an arrival's intended time to the end of the flush that covers it.
///
/// # Errors
/// A write or a flush fails, or an arrival is larger than one write.
pub fn run(
    target: &Target,
    arrivals: Arrivals,
    warmup: Duration,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Series> {
    if arrivals.bytes > WRITE_BYTES_MAX {
        let why = format!("an arrival of {} bytes; one write has {WRITE_BYTES_MAX} at most", arrivals.bytes);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let clock = Clock::start();
    let window = Window::after(clock.now_ns(), warmup, time);
    let schedule = Schedule::new(clock.now_ns(), arrivals.per_s, 0, 1);
    let data = AlignedBytes::pattern(WRITE_BYTES_MAX, 1);
    let fit = (WRITE_BYTES_MAX / arrivals.bytes.max(1)).max(1) as u64;
    sleep_exactly();
    let mut series = Series::new(window);
    let (mut next, mut at) = (0, 0);
    while schedule.due_ns(next) < window.end_ns && !stop.load(Ordering::Relaxed) {
        let now_ns = clock.now_ns();
        let due = due_by(&schedule, next, now_ns.min(window.end_ns - 1), fit);
        if due == 0 {
            std::thread::sleep(Duration::from_nanos(schedule.due_ns(next) - now_ns));
            continue;
        }
        let bytes = (due as usize * arrivals.bytes).next_multiple_of(BLOCK);
        if at + bytes as u64 > target.len() {
            at = 0;
        }
        target.write_through(&data, bytes, at)?;
        at += bytes as u64;
        let done_ns = clock.now_ns();
        for index in next..next + due {
            series.done(schedule.due_ns(index), done_ns, 1, arrivals.bytes as u64);
        }
        next += due;
    }
    Ok(series)
}

/// How many arrivals from `next` on are due, `most` at most.
fn due_by(schedule: &Schedule, next: u64, now_ns: u64, most: u64) -> u64 {
    (0..most).take_while(|ahead| schedule.due_ns(next + ahead) <= now_ns).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_due_goes_into_one_write() {
        let schedule = Schedule::new(0, 1e6, 0, 1);
        assert_eq!(due_by(&schedule, 0, 9_999, 100), 10);
        assert_eq!(due_by(&schedule, 0, 9_999, 4), 4);
        assert_eq!(due_by(&schedule, 11, 9_999, 4), 0);
    }

    #[test]
    fn every_arrival_is_written_and_has_a_latency() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let target = Target::create(dir.path(), 64 << 20, &mut |_| {}).unwrap();
        let arrivals = Arrivals { bytes: 5000, per_s: 2000.0 };
        let (time, stop) = (Duration::from_millis(100), AtomicBool::new(false));
        let series = run(&target, arrivals, Duration::ZERO, time, &stop).unwrap();
        assert_eq!(series.latency.count(), 200, "however long a flush takes");
        let large = Arrivals { bytes: WRITE_BYTES_MAX + 1, per_s: 1.0 };
        let refused = run(&target, large, Duration::ZERO, time, &stop).expect_err("it is not cut");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
    }
}
