//! Blocking access to the data directory for the time before a shard turns: start, recovery, change of layout.
//!
//! Recovery is a sequence of decisions, each of which needs the bytes that the one before asked for. Written over
//! blocking calls it reads from top to bottom; nothing else runs on the shard's thread at that time, so nothing waits for
//! it. The simulator implements the same trait over its virtual disk and may lose power at every call.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::buffer::{BLOCK, Buffer};
use crate::file::{allocate, flush_dir, parent, remove, zero_by_drive};
use crate::op::Fault;

/// A file opened by a [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskFile(pub u64);

/// Blocking, direct access to files. Paths are as given by the caller; lengths and places are multiples of the block.
pub trait Disk {
    /// Opens an existing file.
    fn open(&mut self, path: &Path) -> Result<DiskFile, Fault>;
    /// Creates a file of `bytes` that must not exist, all zeros and initialised on the drive, flushed together with its
    /// directory. After a failure the file does not exist.
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

/// The real disk: files of the kernel, opened for direct I/O.
#[derive(Debug, Default)]
pub struct StdDisk {
    files: BTreeMap<DiskFile, Opened>,
    next: u64,
}

#[derive(Debug)]
struct Opened {
    file: File,
    path: PathBuf,
}

impl StdDisk {
    /// A disk with no file open.
    pub fn new() -> StdDisk {
        StdDisk::default()
    }

    fn adopt(&mut self, file: File, path: &Path) -> DiskFile {
        let number = DiskFile(self.next);
        self.next += 1;
        self.files.insert(number, Opened { file, path: path.to_owned() });
        number
    }

    fn opened(&self, file: DiskFile) -> &Opened {
        self.files.get(&file).expect("the caller uses files that it has opened and not closed")
    }
}

impl Disk for StdDisk {
    fn open(&mut self, path: &Path) -> Result<DiskFile, Fault> {
        let file = direct().open(path).map_err(|e| Fault::io("open", path, &e))?;
        Ok(self.adopt(file, path))
    }

    fn create_zeroed(&mut self, path: &Path, bytes: u64) -> Result<DiskFile, Fault> {
        assert!(bytes.is_multiple_of(BLOCK as u64), "a file of {bytes} bytes is not whole blocks");
        let made = direct()
            .create_new(true)
            .open(path)
            .and_then(|file| write_zeros(&file, bytes).map(|()| file))
            .and_then(|file| file.sync_all().map(|()| file))
            .and_then(|file| flush_dir(parent(path)).map(|()| file));
        match made {
            Ok(file) => Ok(self.adopt(file, path)),
            Err(e) => {
                // A filesystem without direct I/O refuses the flag after it has created the file.
                if e.kind() != io::ErrorKind::AlreadyExists {
                    let _ = fs::remove_file(path);
                }
                Err(Fault::io("create", path, &e))
            }
        }
    }

    fn len(&mut self, file: DiskFile) -> Result<u64, Fault> {
        let Opened { file, path } = self.opened(file);
        file.metadata().map(|m| m.len()).map_err(|e| Fault::io("stat", path, &e))
    }

    fn read(&mut self, file: DiskFile, at: u64, len: usize) -> Result<Buffer, Fault> {
        assert!(
            at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK),
            "read of {len} at {at} is not whole blocks"
        );
        let Opened { file, path } = self.opened(file);
        let mut buf = Buffer::for_filling(len);
        while buf.filled() < len {
            let done = buf.filled();
            match file.read_at(&mut buf.free_mut()[..len - done], at + done as u64) {
                Ok(count) => buf.set_filled(done + count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Fault::io("read", path, &e)),
            }
            // A direct read that ends inside a block has met the end of the file.
            if buf.filled() == done || !buf.filled().is_multiple_of(BLOCK) {
                break;
            }
        }
        Ok(buf)
    }

    fn write(&mut self, file: DiskFile, at: u64, data: &Buffer) -> Result<(), Fault> {
        let Opened { file, path } = self.opened(file);
        write_whole(file, at, data).map_err(|e| Fault::io("write", path, &e))
    }

    fn flush(&mut self, file: DiskFile) -> Result<(), Fault> {
        let Opened { file, path } = self.opened(file);
        file.sync_data().map_err(|e| Fault::io("flush", path, &e))
    }

    fn close(&mut self, file: DiskFile) {
        self.files.remove(&file);
    }

    fn create_dir(&mut self, path: &Path) -> Result<(), Fault> {
        match fs::create_dir(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => {
                return Err(Fault::io("create directory", path, &e));
            }
            Ok(()) | Err(_) => {}
        }
        flush_dir(parent(path)).map_err(|e| Fault::io("flush directory of", path, &e))
    }

    fn list(&mut self, path: &Path) -> Result<Vec<PathBuf>, Fault> {
        let names = fs::read_dir(path).and_then(|entries| {
            entries.map(|entry| Ok(PathBuf::from(entry?.file_name()))).collect::<io::Result<Vec<_>>>()
        });
        let mut names = names.map_err(|e| Fault::io("list", path, &e))?;
        names.sort();
        Ok(names)
    }

    fn remove(&mut self, path: &Path) -> Result<(), Fault> {
        Ok(remove(path)?)
    }
}

fn direct() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(nix::libc::O_DIRECT);
    options
}

fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    allocate(file, bytes)?;
    if bytes > 0 && zero_by_drive(file.as_raw_fd(), 0, bytes)? {
        return Ok(());
    }
    let mut zeros = Buffer::zeroed(PIECE.min(bytes) as usize);
    let mut at = 0;
    while at < bytes {
        let len = PIECE.min(bytes - at);
        zeros.set_filled(len as usize);
        write_whole(file, at, &zeros)?;
        at += len;
    }
    Ok(())
}

fn write_whole(file: &File, at: u64, data: &Buffer) -> io::Result<()> {
    assert!(
        at.is_multiple_of(BLOCK as u64) && data.len().is_multiple_of(BLOCK),
        "write of {} at {at} is not whole blocks",
        data.len()
    );
    let mut done = 0;
    while done < data.len() {
        match file.write_at(&data[done..], at + done as u64) {
            // Go on from the last whole block: the kernel takes direct writes only there.
            Ok(count) if count >= BLOCK => done += count / BLOCK * BLOCK,
            Ok(_) => return Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> tempfile::TempDir {
        // Beside the build, not in /tmp, which may be in memory.
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_and_new_files_are_zero() {
        let dir = dir();
        let mut disk = StdDisk::new();
        let sub = dir.path().join("journal");
        disk.create_dir(&sub).unwrap();
        disk.create_dir(&sub).unwrap();
        let path = sub.join("0");
        let file = disk.create_zeroed(&path, 3 << 20).unwrap();
        assert_eq!(disk.len(file).unwrap(), 3 << 20);
        let mut block = Buffer::copy_of(b"hello");
        block.set_filled(BLOCK);
        disk.write(file, 2 * BLOCK as u64, &block).unwrap();
        disk.flush(file).unwrap();
        disk.close(file);

        let file = disk.open(&path).unwrap();
        let back = disk.read(file, BLOCK as u64, 2 * BLOCK).unwrap();
        assert!(back[..BLOCK].iter().all(|b| *b == 0));
        assert_eq!(&back[BLOCK..BLOCK + 5], b"hello");
        assert_eq!(
            disk.read(file, (3 << 20) - BLOCK as u64, 4 * BLOCK).unwrap().len(),
            BLOCK,
            "short at the end"
        );
        assert_eq!(disk.read(file, 3 << 20, BLOCK).unwrap().len(), 0);

        assert_eq!(disk.list(&sub).unwrap(), [PathBuf::from("0")]);
        disk.remove(&path).unwrap();
        assert!(disk.list(&sub).unwrap().is_empty());
    }

    #[test]
    fn an_existing_file_is_not_created_again_and_stays() {
        let dir = dir();
        let mut disk = StdDisk::new();
        let path = dir.path().join("a");
        let file = disk.create_zeroed(&path, BLOCK as u64).unwrap();
        disk.close(file);
        let fault = disk.create_zeroed(&path, BLOCK as u64).unwrap_err();
        assert_eq!(fault.errno, nix::libc::EEXIST);
        assert!(fault.to_string().contains("/a"), "{fault}");
        assert!(path.exists());
    }

    #[test]
    fn a_file_that_finds_no_room_is_not_left_behind() {
        let dir = dir();
        let path = dir.path().join("huge");
        let fault = StdDisk::new().create_zeroed(&path, 1 << 50).unwrap_err();
        assert!(fault.is_full() || fault.errno == nix::libc::EFBIG, "{fault}");
        assert!(!path.exists());
    }
}
