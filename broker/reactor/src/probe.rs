//! What a reactor needs of the machine, asked before anything is made: io_uring, lockable memory, descriptors, direct I/O.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::buffer::BLOCK;
use crate::file::{nameless_block, zero_by_drive};

/// Bytes that glommio wants to be able to lock in memory for each of its rings' buffers.
pub const LOCKED_BYTES_MIN: u64 = 512 << 10;

/// Whether this process may make an io_uring.
///
/// # Errors
/// ENOSYS: the kernel has none; EPERM: a policy forbids it (sysctl, container); ENOMEM: too little lockable memory.
pub fn io_uring() -> io::Result<()> {
    // struct io_uring_params, all zeros: no flags.
    let mut params = [0u8; 120];
    #[expect(unsafe_code, reason = "nix has no call for io_uring_setup")]
    // SAFETY: the kernel reads and writes at most the 120 bytes of `struct io_uring_params` at the pointer, which lives
    // and is exclusive until the call returns.
    let fd = unsafe { nix::libc::syscall(nix::libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    let fd = Errno::result(fd)?;
    #[expect(unsafe_code, reason = "the descriptor is a number from a raw call")]
    // SAFETY: the call above has just made this descriptor; nobody else knows it.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) });
    Ok(())
}

/// Whether this process may make an io_uring with all that the reactor `ring` needs of it.
///
/// # Errors
/// As [`io_uring()`]; EINVAL: the kernel is older than 6.1.
pub fn ring() -> io::Result<()> {
    crate::ring::kernel::try_small()
}

/// The running kernel's release; `unknown` if it does not say.
pub fn kernel_release() -> String {
    let name = nix::sys::utsname::uname().ok();
    name.and_then(|name| name.release().to_str().map(str::to_owned)).unwrap_or_else(|| "unknown".into())
}

/// The value of `sysctl kernel.io_uring_disabled`: 0 for nobody, 1 for all but a group and the privileged, 2 for everybody. None:
/// the kernel has no such setting.
pub fn io_uring_disabled() -> Option<String> {
    let value = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    Some(value.trim().to_owned())
}

/// A limit of the process after it has been raised as far as allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// What may be used now.
    pub now: u64,
    /// What only a privileged user can raise.
    pub hard: u64,
}

/// Raises the limit of memory that may be locked as far as this user may.
pub fn raise_locked_bytes() -> io::Result<Raised> {
    raise(Resource::RLIMIT_MEMLOCK)
}

/// Raises the limit of open descriptors as far as this user may.
pub fn raise_open_files() -> io::Result<Raised> {
    raise(Resource::RLIMIT_NOFILE)
}

fn raise(resource: Resource) -> io::Result<Raised> {
    let (soft, hard) = getrlimit(resource)?;
    if soft < hard && setrlimit(resource, hard, hard).is_ok() {
        return Ok(Raised { now: hard, hard });
    }
    Ok(Raised { now: soft, hard })
}

/// Whether files in this directory can be read and written past the page cache. Leaves nothing behind.
///
/// # Errors
/// EINVAL: they cannot. A filesystem without nameless files passes here and is told by the first file that is made.
pub fn direct_io(dir: &Path) -> io::Result<()> {
    match nameless_block(dir) {
        Ok(_) => Ok(()),
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(nix::libc::EOPNOTSUPP | nix::libc::EISDIR | nix::libc::ENOENT)
            ) =>
        {
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// How new files of a directory get their zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroFill {
    /// The drive makes them, at one command for a range.
    ByDrive,
    /// They are written.
    Written,
}

/// How files in this directory are filled with zeros. Leaves nothing behind. What cannot be found out is taken for
/// [`ZeroFill::Written`], which works everywhere.
pub fn zero_fill(dir: &Path) -> ZeroFill {
    let by_drive = nameless_block(dir).and_then(|file| zero_by_drive(file.as_raw_fd(), 0, BLOCK as u64));
    if matches!(by_drive, Ok(true)) { ZeroFill::ByDrive } else { ZeroFill::Written }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_the_projects_kind_passes() {
        io_uring().unwrap();
        ring().unwrap();
        assert_eq!(io_uring_disabled().as_deref(), Some("0"));
        direct_io(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(raise_open_files().unwrap().now >= 256);
    }

    #[test]
    fn a_directory_that_cannot_be_probed_has_its_zeros_written() {
        assert_eq!(zero_fill(Path::new("/nowhere")), ZeroFill::Written);
        // No drive below it that could do anything.
        assert_eq!(zero_fill(Path::new("/proc")), ZeroFill::Written);
    }
}
