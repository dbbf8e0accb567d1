//! Calls on files that both the blocking disk and the reactors need.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::buffer::{BLOCK, Buffer};
use crate::op::Fault;

/// Why a file could not be made or removed.
#[derive(Debug)]
pub(crate) enum FileFault {
    /// It was refused.
    Refused(Fault),
    /// A flush has failed: the device is not to be trusted any more.
    Flush(Fault),
}

impl FileFault {
    /// A flush that finds no space has lost nothing.
    fn of_flush(verb: &str, path: &Path, error: &io::Error) -> FileFault {
        let fault = Fault::io(verb, path, error);
        if fault.is_full() { FileFault::Refused(fault) } else { FileFault::Flush(fault) }
    }
}

impl From<FileFault> for Fault {
    fn from(fault: FileFault) -> Fault {
        match fault {
            FileFault::Refused(fault) | FileFault::Flush(fault) => fault,
        }
    }
}

/// Creates a file that must not exist, allocated but not initialised, and makes its name durable. After a failure the
/// file does not exist.
pub(crate) fn create_allocated(path: &Path, bytes: u64) -> Result<(), FileFault> {
    let dir = open_dir("create", path)?;
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|e| FileFault::Refused(Fault::io("create", path, &e)))?;
    let allocated = allocate(&created, bytes).map_err(|e| FileFault::Refused(Fault::io("create", path, &e)));
    let ready = allocated.and_then(|()| {
        let flushed = created.sync_all().and_then(|()| dir.sync_all());
        flushed.map_err(|e| FileFault::of_flush("flush on creating", path, &e))
    });
    ready.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

/// A file without a name on the filesystem of `dir`, whose one block is initialised on the drive.
pub(crate) fn nameless_block(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_TMPFILE | nix::libc::O_DIRECT)
        .open(dir)?;
    let mut block = Buffer::zeroed(BLOCK);
    block.set_filled(BLOCK);
    file.write_all_at(&block, 0)?;
    Ok(file)
}

/// Makes sure that a file is there and holds a block; returns its device.
pub(crate) fn look(path: &Path) -> Result<u64, Fault> {
    let found = fs::metadata(path).map_err(|e| Fault::io("open", path, &e))?;
    if found.len() < BLOCK as u64 {
        let what =
            format!("open {}: it holds {} bytes, less than a block of {BLOCK}", path.display(), found.len());
        return Err(Fault::new(what, 0));
    }
    Ok(found.dev())
}

/// Removes a file and makes that durable.
pub(crate) fn remove(path: &Path) -> Result<(), FileFault> {
    let dir = open_dir("remove", path)?;
    fs::remove_file(path).map_err(|e| FileFault::Refused(Fault::io("remove", path, &e)))?;
    dir.sync_all().map_err(|e| FileFault::of_flush("flush on removing", path, &e))
}

/// The directory of a file, for its flush: opened before anything is done, so that a want of descriptors is a refusal and not
/// taken for a flush that has failed.
fn open_dir(verb: &str, path: &Path) -> Result<File, FileFault> {
    File::open(parent(path)).map_err(|e| FileFault::Refused(Fault::io(verb, path, &e)))
}

/// Gives the file its full length with space behind all of it (not yet initialised).
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let bytes = i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(nix::libc::EFBIG))?;
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // Filesystems without it (some in memory or over the network): the length alone.
        Err(nix::Error::EOPNOTSUPP) => file.set_len(bytes as u64),
        Err(e) => Err(e.into()),
    }
}

/// Has the drive itself fill a range with zeros, as written blocks, not unwritten ones: `FALLOC_FL_WRITE_ZEROES` of Linux 6.17
/// (ext4 and XFS, on drives that unmap to zeros). False: kernel, filesystem or drive cannot.
pub(crate) fn zero_by_drive(fd: RawFd, at: u64, len: u64) -> io::Result<bool> {
    const FALLOC_FL_WRITE_ZEROES: i32 = 0x80;
    let range = i64::try_from(at).and_then(|at| Ok((at, i64::try_from(len)?)));
    let Ok((at, len)) = range else { return Err(io::Error::from_raw_os_error(nix::libc::EFBIG)) };
    #[expect(unsafe_code, reason = "nix does not know the flag")]
    // SAFETY: the call is given no memory, and the caller keeps the descriptor open until it returns.
    let done = unsafe { nix::libc::fallocate(fd, FALLOC_FL_WRITE_ZEROES, at, len) };
    match Errno::result(done) {
        Ok(_) => Ok(true),
        // Kernels before the flag say EOPNOTSUPP too; some filesystems EINVAL.
        Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Makes creations and removals in a directory durable.
pub(crate) fn flush_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The bounds of every op on a range of a file.
///
/// # Panics
/// If they are not those of whole blocks.
pub(crate) fn assert_blocks(what: &str, at: u64, len: usize) {
    let whole = at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK) && len > 0;
    assert!(whole, "{what} of {len} bytes at {at} is not whole blocks");
}

/// The directory that a path's last name lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
