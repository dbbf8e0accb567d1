//! Calls on files that both the blocking disk and the reactors need.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};

use crate::buffer::{BLOCK, Buffer};
use crate::op::Fault;

/// Creates a file that must not exist, allocated but not initialised, and makes its name durable. After a failure the
/// file does not exist.
pub(crate) fn create_allocated(path: &Path, bytes: u64) -> Result<(), Fault> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|e| Fault::io("create", path, &e))?;
    let ready =
        allocate(&created, bytes).and_then(|()| created.sync_all()).and_then(|()| flush_dir(parent(path)));
    ready.map_err(|e| {
        let _ = fs::remove_file(path);
        Fault::io("create", path, &e)
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

/// Removes a file and makes that durable.
pub(crate) fn remove(path: &Path) -> Result<(), Fault> {
    fs::remove_file(path).and_then(|()| flush_dir(parent(path))).map_err(|e| Fault::io("remove", path, &e))
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

/// Makes creations and removals in a directory durable.
pub(crate) fn flush_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The directory that a path's last name lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
