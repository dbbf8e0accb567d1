//! What a cycle over several data files costs: zero-filled files with one flush for all, against files that are only allocated
//! with a flush of each. Both in turn in every round, so that a busy machine slows both.
//!
//! `cargo run --release -p tidegate-reactor --example fill_or_flush -- DIR`: one line for each number of files and bytes
//! a file and cycle: milliseconds a cycle (medians), and how they compare with the zeros counted in.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use nix::fcntl::{FallocateFlags, fallocate};
use tidegate_reactor::buffer::Buffer;

const FILE_BYTES: u64 = 64 << 20;
const CYCLES: u64 = 24;

fn main() -> io::Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let mut out = io::stdout();
    writeln!(out, "files  KiB  one flush  own flushes  zeros  own/one  own/(one+zeros)")?;
    for files in [1, 4, 16, 64] {
        for kib in [64, 256, 1024] {
            let line = measure(Path::new(&dir), files, kib << 10)?;
            writeln!(out, "{files:5} {kib:4} {line}")?;
        }
    }
    Ok(())
}

/// Medians of cycles of both kinds.
fn measure(dir: &Path, count: usize, bytes: usize) -> io::Result<String> {
    let len = (bytes as u64 * CYCLES).min(FILE_BYTES);
    let data = buffer(bytes, 7);
    let zeros = buffer(bytes, 0);
    let journal = make(&dir.join("journal"), 1 << 20)?;
    journal.write_all_at(&buffer(1 << 20, 0), 0)?;
    journal.sync_all()?;
    let mut filled = files(dir, "filled", count, len)?;
    let allocated = files(dir, "allocated", count, len)?;
    let mut fill_ms = Vec::new();
    for at in (0..len).step_by(bytes) {
        fill_ms.push(timed(|| write_each(&filled, &zeros, at))?);
    }
    filled.iter_mut().try_for_each(|file| file.sync_all())?;
    let (mut one_ms, mut own_ms) = (Vec::new(), Vec::new());
    for at in (0..len).step_by(bytes) {
        let frame = buffer(4096, 9);
        one_ms.push(timed(|| {
            journal.write_all_at(&frame, at / bytes as u64 % 16 * 4096)?;
            write_each(&filled, &data, at)?;
            journal.sync_data()
        })?);
        own_ms.push(timed(|| {
            journal.write_all_at(&frame, at / bytes as u64 % 16 * 4096)?;
            write_each(&allocated, &data, at)?;
            // As the broker does: those of the data files together, the journal's when they have ended.
            each(&allocated, |file| file.sync_data())?;
            journal.sync_data()
        })?);
    }
    let _ = fs::remove_dir_all(dir.join("files"));
    let (one, own, fill) = (median(one_ms), median(own_ms), median(fill_ms));
    Ok(format!("{one:10.2} {own:12.2} {fill:6.2} {:8.2} {:16.2}", own / one, own / (one + fill)))
}

fn write_each(files: &[File], data: &[u8], at: u64) -> io::Result<()> {
    each(files, |file| file.write_all_at(data, at))
}

/// Of all files, eight at a time, as the ring of a reactor would have them under way together.
fn each(files: &[File], work: impl Fn(&File) -> io::Result<()> + Sync) -> io::Result<()> {
    if files.len() == 1 {
        return work(&files[0]);
    }
    let parts = files.chunks(files.len().div_ceil(8));
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(|| part.iter().try_for_each(&work))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn files(dir: &Path, kind: &str, count: usize, bytes: u64) -> io::Result<Vec<File>> {
    let dir = dir.join("files");
    fs::create_dir_all(&dir)?;
    (0..count).map(|n| make(&dir.join(format!("{kind}-{n}")), bytes)).collect()
}

fn make(path: &Path, bytes: u64) -> io::Result<File> {
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create_new(true).custom_flags(nix::libc::O_DIRECT).open(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes as i64)?;
    file.sync_all()?;
    Ok(file)
}

fn buffer(bytes: usize, with: u8) -> Buffer {
    let mut buf = Buffer::zeroed(bytes);
    buf.extend(&vec![with; bytes]);
    buf
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1000.0)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
