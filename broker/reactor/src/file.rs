//! Calls on files that both the blocking disk and the reactors need.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};

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
