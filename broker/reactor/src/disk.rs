//! Blocking access to the data directory for the time before a shard turns: start, recovery, change of layout.
//!
//! Recovery is a sequence of decisions, each of which needs the bytes that the one before asked for. Written over
//! blocking calls it reads from top to bottom; nothing else runs on the shard's thread at that time, so nothing waits for
//! it. The simulator implements the same trait over its virtual disk and may lose power at every call.

use std::path::{Path, PathBuf};

use crate::buffer::Buffer;
use crate::op::Fault;

/// A file opened by a [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskFile(pub u64);

/// Blocking, direct access to files. Paths are as given by the caller; lengths and places are multiples of the block.
pub trait Disk {
    /// Opens an existing file.
    fn open(&mut self, path: &Path) -> Result<DiskFile, Fault>;
    /// Creates a file of `bytes` that must not exist, all zeros and initialised on the drive, flushed together with its
    /// directory.
    fn create_zeroed(&mut self, path: &Path, bytes: u64) -> Result<DiskFile, Fault>;
    /// The file's length, in bytes.
    fn len(&mut self, file: DiskFile) -> Result<u64, Fault>;
    /// Reads up to `len` bytes at `at`; short at the end of the file.
    fn read(&mut self, file: DiskFile, at: u64, len: usize) -> Result<Buffer, Fault>;
    /// Writes all of `data` at `at`; a short write is continued.
    fn write(&mut self, file: DiskFile, at: u64, data: &Buffer) -> Result<(), Fault>;
    /// fdatasync.
    fn flush(&mut self, file: DiskFile) -> Result<(), Fault>;
    /// Closes the file.
    fn close(&mut self, file: DiskFile);
    /// Creates a directory that may exist already, and flushes its parent.
    fn create_dir(&mut self, path: &Path) -> Result<(), Fault>;
    /// The names in a directory, sorted.
    fn list(&mut self, path: &Path) -> Result<Vec<PathBuf>, Fault>;
    /// Removes a file and flushes its directory.
    fn remove(&mut self, path: &Path) -> Result<(), Fault>;
}
