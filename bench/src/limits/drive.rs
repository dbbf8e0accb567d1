//! The drive: direct writes over a zero-filled file and direct reads of it, by size and depth, and one write with its
//! flush, by size.
//!
//! Depth is the number of threads that each have one write or read under way. The file is zero-filled and flushed before, so that
//! no write allocates: this is what a broker's journal and data files look like to the drive.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use serde::Serialize;

use crate::latency::{Latencies, Summary};
use crate::payload::random;

/// Sizes of one write or read of the drive's figures, in bytes.
pub const SIZES: [usize; 2] = [128 << 10, 1 << 20];
/// Writes or reads under way at once.
pub const DEPTHS: [usize; 4] = [1, 4, 8, 16];
/// Sizes of one write before a flush, in bytes.
pub const FLUSH_BYTES: [usize; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The alignment that direct access needs.
pub(crate) const BLOCK: usize = 4096;

/// A file to measure with; removed when dropped.
#[derive(Debug)]
pub struct Target {
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// Direct writes or reads of one size at one depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Bytes of one write or read.
    pub bytes: usize,
    /// How many are under way at once.
    pub depth: usize,
    /// MiB in a second.
    pub mib_per_s: f64,
}

/// Write and flush of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FlushCell {
    /// Bytes of one write.
    pub write_bytes: usize,
    /// From the write's submission to the flush's end.
    pub latency: Summary,
}

impl Target {
    /// Makes a zero-filled, flushed file of `bytes` in `dir`. `progress` is told the bytes written so far.
    ///
    /// # Errors
    /// The directory cannot be written, is full, or its filesystem has no direct access.
    pub fn create(dir: &Path, bytes: u64, progress: &mut dyn FnMut(u64)) -> io::Result<Target> {
        let bytes = bytes.next_multiple_of(1 << 20).max(64 << 20);
        let path = dir.join(format!("tidegate-limits-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).custom_flags(OFlag::O_DIRECT.bits());
        let file = options.open(&path)?;
        let target = Target { file, path, bytes };
        let zeros = AlignedBytes::zeros(1 << 20);
        let mut at = 0;
        while at < bytes {
            target.file.write_all_at(zeros.bytes(), at)?;
            at += 1 << 20;
            progress(at);
        }
        target.file.sync_all()?;
        Ok(target)
    }

    /// Overwrites the file from its beginning with writes of one size for `time`, `depth` of them at once.
    ///
    /// # Errors
    /// A write fails.
    pub fn overwrite(&self, bytes: usize, depth: usize, time: Duration) -> io::Result<Cell> {
        self.at_depth(bytes, depth, time, |data, at| self.file.write_all_at(data, at))
    }

    /// Reads the file from its beginning with reads of one size for `time`, `depth` of them at once.
    ///
    /// # Errors
    /// A read fails.
    pub fn read(&self, bytes: usize, depth: usize, time: Duration) -> io::Result<Cell> {
        self.at_depth(bytes, depth, time, |data, at| self.file.read_exact_at(data, at))
    }

    fn at_depth(
        &self,
        bytes: usize,
        depth: usize,
        time: Duration,
        work: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
    ) -> io::Result<Cell> {
        let slots = self.bytes / bytes as u64;
        let next = AtomicU64::new(0);
        let begun = Instant::now();
        let done = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..depth)
                .map(|seed| {
                    let (next, work) = (&next, &work);
                    scope.spawn(move || {
                        let mut data = AlignedBytes::pattern(bytes, seed as u64);
                        let mut done = 0u64;
                        // Once at least: on a busy machine a thread may begin when the time is over.
                        loop {
                            let slot = next.fetch_add(1, Ordering::Relaxed) % slots;
                            work(data.bytes_mut(), slot * bytes as u64)?;
                            done += bytes as u64;
                            if begun.elapsed() >= time {
                                return io::Result::Ok(done);
                            }
                        }
                    })
                })
                .collect();
            let mut sum = 0;
            for worker in workers {
                sum += worker.join().expect("a worker does not panic")?;
            }
            io::Result::Ok(sum)
        })?;
        let mib_per_s = done as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20);
        Ok(Cell { bytes, depth, mib_per_s })
    }

    /// Writes `bytes` at `at`, both whole blocks, and flushes.
    pub(crate) fn write_through(&self, data: &AlignedBytes, bytes: usize, at: u64) -> io::Result<()> {
        self.file.write_all_at(&data.bytes()[..bytes], at)?;
        self.file.sync_data()
    }

    /// The file's size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Writes of one size, each with its own flush, for `time`.
    ///
    /// # Errors
    /// A write or a flush fails.
    pub fn write_and_flush(&self, write_bytes: usize, time: Duration) -> io::Result<FlushCell> {
        let slots = self.bytes / write_bytes as u64;
        let data = AlignedBytes::pattern(write_bytes, 1);
        let mut latencies = Latencies::new();
        let begun = Instant::now();
        for slot in (0..slots).cycle() {
            if begun.elapsed() >= time {
                break;
            }
            let at = Instant::now();
            self.file.write_all_at(data.bytes(), slot * write_bytes as u64)?;
            self.file.sync_data()?;
            latencies.record(at.elapsed().as_micros() as u64);
        }
        Ok(FlushCell { write_bytes, latency: latencies.summary() })
    }

    /// Write and flush of every size, `time` for each.
    ///
    /// # Errors
    /// A write or a flush fails.
    pub fn write_and_flush_all(&self, time: Duration) -> io::Result<Vec<FlushCell>> {
        FLUSH_BYTES.iter().map(|bytes| self.write_and_flush(*bytes, time)).collect()
    }

    /// Overwrites with every size at every depth, `time` for each.
    ///
    /// # Errors
    /// A write fails.
    pub fn overwrite_all(&self, time: Duration) -> io::Result<Vec<Cell>> {
        cells().map(|(bytes, depth)| self.overwrite(bytes, depth, time)).collect()
    }

    /// Reads with every size at every depth, `time` for each.
    ///
    /// # Errors
    /// A read fails.
    pub fn read_all(&self, time: Duration) -> io::Result<Vec<Cell>> {
        cells().map(|(bytes, depth)| self.read(bytes, depth, time)).collect()
    }
}

fn cells() -> impl Iterator<Item = (usize, usize)> {
    SIZES.into_iter().flat_map(|bytes| DEPTHS.into_iter().map(move |depth| (bytes, depth)))
}

impl Drop for Target {
    fn drop(&mut self) {
        // Nothing to do for the caller if it fails: the file's name says what it is.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The drive's figure: the best cell.
///
/// # Panics
/// There is no cell.
pub fn best(cells: &[Cell]) -> Cell {
    *cells.iter().max_by(|a, b| a.mib_per_s.total_cmp(&b.mib_per_s)).expect("at least one cell is measured")
}

/// Bytes that begin at a multiple of the block, as direct access needs; made without unsafe code by taking a little more.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    skip: usize,
    length: usize,
}

impl AlignedBytes {
    pub(crate) fn zeros(length: usize) -> AlignedBytes {
        let bytes = vec![0; length + BLOCK];
        let skip = bytes.as_ptr().align_offset(BLOCK);
        AlignedBytes { bytes, skip, length }
    }

    /// Bytes without repetition inside a block, so that no drive can compress them away.
    pub(crate) fn pattern(length: usize, seed: u64) -> AlignedBytes {
        let mut aligned = AlignedBytes::zeros(length);
        aligned.bytes_mut().copy_from_slice(&random(length, seed));
        aligned
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_bytes_begin_at_a_block_and_do_not_repeat() {
        let data = AlignedBytes::pattern(2 * BLOCK, 3);
        assert_eq!(data.bytes().as_ptr() as usize % BLOCK, 0);
        assert_ne!(data.bytes()[..BLOCK], data.bytes()[BLOCK..]);
    }

    #[test]
    fn a_drive_is_measured_and_its_file_removed() {
        // The build directory's filesystem: the temporary directory may be one without direct access.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let target = Target::create(dir.path(), 64 << 20, &mut |_| {}).unwrap();
        let cell = target.overwrite(128 << 10, 4, Duration::from_millis(20)).unwrap();
        assert!(cell.mib_per_s > 0.0);
        assert!(target.read(128 << 10, 4, Duration::from_millis(20)).unwrap().mib_per_s > 0.0);
        let flush = target.write_and_flush(4096, Duration::from_millis(20)).unwrap();
        assert!(flush.latency.count > 0 && flush.latency.p50_us > 0);
        drop(target);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_drives_figure_is_the_best_cell() {
        let cell = |depth, mib_per_s| Cell { bytes: 1, depth, mib_per_s };
        assert_eq!(best(&[cell(1, 5.0), cell(4, 9.0), cell(8, 7.0)]).depth, 4);
    }
}
