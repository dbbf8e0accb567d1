//! `tg bench limits`.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tidegate_bench::limits::drive::{Cell, Target};
use tidegate_bench::limits::{Limits, drive, loopback};
use tidegate_bench::machine;

use crate::args::{DriveArgs, LimitsArgs};
use crate::exit::{Code, Failure};
use crate::output::{Out, bytes_text, grouped, micros_text, progress_bar};

/// Measures all of them.
pub(crate) fn run(args: &LimitsArgs, out: &mut Out) -> Result<(), Failure> {
    let target = make_target(&args.drive)?;
    let time = Duration::from_millis(args.drive.cell_ms);
    let limits = Limits::measure(&target, time).map_err(|e| unmeasurable(&args.drive.dir, &e))?;
    let facts = machine::facts(&args.drive.dir);
    if out.is_json() {
        let mut object = json!(limits);
        object["best"] = json!(limits.bounds());
        object["file_mib"] = json!(args.drive.mib);
        object["cell_ms"] = json!(args.drive.cell_ms);
        for (name, value) in facts {
            object[name] = json!(value);
        }
        return out.json(&object);
    }
    for (name, value) in &facts {
        out.line(format!("{name:<8} {value}"))?;
    }
    tables(args, &limits, out)
}

fn tables(args: &LimitsArgs, limits: &Limits, out: &mut Out) -> Result<(), Failure> {
    let mib = args.drive.mib;
    out.line(format!("\ndrive, directly, a zero-filled file of {mib} MiB, MiB/s"))?;
    let pairs = limits.writes.iter().zip(&limits.reads);
    let rows = pairs.map(|(write, read)| {
        let size = bytes_text(write.bytes as u64);
        vec![size, write.depth.to_string(), mib_text(write.mib_per_s), mib_text(read.mib_per_s)]
    });
    out.table(&["size", "depth", "write", "read"], &rows.collect::<Vec<_>>())?;
    let (write, read) = (drive::best(&limits.writes), drive::best(&limits.reads));
    out.line(format!("best: write {}, read {}\n", cell_text(&write), cell_text(&read)))?;
    let rows = limits.flushes.iter().map(|f| {
        let micros =
            [f.latency.p50_us, f.latency.p99_us, f.latency.p999_us, f.latency.max_us].map(micros_text);
        [vec![bytes_text(f.write_bytes as u64), grouped(f.latency.count)], micros.to_vec()].concat()
    });
    out.table(&["write + flush", "times", "p50", "p99", "p99.9", "max"], &rows.collect::<Vec<_>>())?;
    out.line("\nloopback, with the number of connections that is best, MiB/s")?;
    let rows = limits.loopback.iter().map(|cell| {
        let size = bytes_text(cell.message_bytes as u64);
        let connections = cell.connections.to_string();
        vec![size, connections, mib_text(cell.one_way_mib_per_s), mib_text(cell.both_ways_mib_per_s)]
    });
    out.table(&["message", "connections", "one way", "both ways"], &rows.collect::<Vec<_>>())?;
    let trips = &limits.round_trips;
    out.line(format!(
        "best: {} MiB/s\n\nround trips, {} connections with {} B under way: {}/s, p50 {}, p99 {}",
        mib_text(loopback::best(&limits.loopback)),
        trips.connections,
        trips.message_bytes,
        grouped(trips.per_s as u64),
        micros_text(trips.latency.p50_us),
        micros_text(trips.latency.p99_us),
    ))?;
    out.line(format!(
        "one core: CRC32C {} MiB/s, copy {} MiB/s",
        mib_text(limits.cpu.crc32c_mib_per_s),
        mib_text(limits.cpu.memcpy_mib_per_s)
    ))
}

/// A file to measure the drive with.
///
/// # Errors
/// The directory cannot be written, is full, or has no direct access.
pub(crate) fn make_target(args: &DriveArgs) -> Result<Target, Failure> {
    let bytes = args.mib << 20;
    let bar = progress_bar(Some(bytes), "bytes");
    bar.set_message("zero-filling");
    let target = Target::create(&args.dir, bytes, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    target.map_err(|e| unmeasurable(&args.dir, &e))
}

/// What to do when the drive cannot be measured.
pub(crate) fn unmeasurable(dir: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Code::Failed, format!("cannot measure the machine's limits: {error}"))
        .place(dir.display().to_string())
        .fix("name a writable directory on the drive with --dir, with room for --mib")
}

fn mib_text(mib_per_s: f64) -> String {
    grouped(mib_per_s.round() as u64)
}

fn cell_text(cell: &Cell) -> String {
    format!("{} MiB/s ({} x {})", mib_text(cell.mib_per_s), bytes_text(cell.bytes as u64), cell.depth)
}
