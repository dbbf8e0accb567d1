//! What is known about the storage under a directory, and the lock that keeps a second process out of it.
//!
//! Only facts are gathered here; what follows from them (how many flushes a cycle needs) is decided by the broker.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::op::FreeSpace;

/// The storage under a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageFacts {
    /// The directory.
    pub path: PathBuf,
    /// Its filesystem.
    pub filesystem: Filesystem,
    /// The number of the device that holds the filesystem; equal for two directories of one filesystem.
    pub device: u64,
    /// The drive's physical block in bytes; none where the kernel does not say.
    pub physical_block_bytes: Option<u32>,
}

/// A filesystem, with what decides about the reach of a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// ext4.
    Ext4 {
        /// Whether file data passes through the filesystem's journal.
        data: DataMode,
        /// Whether it passes flushes on to the drive.
        barriers: Barriers,
    },
    /// XFS.
    Xfs {
        /// Whether blocks may be shared by two files.
        reflink: Reflink,
        /// Whether it passes flushes on to the drive.
        barriers: Barriers,
    },
    /// In memory: nothing survives a power loss, whatever is flushed.
    Memory {
        /// The kernel's name for it.
        name: String,
    },
    /// Any other.
    Other {
        /// The kernel's name for it.
        name: String,
    },
}

/// How ext4 writes file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// To its place.
    InPlace,
    /// Into the filesystem's journal first (`data=journal`).
    Journal,
    /// The kernel did not say.
    Unknown,
}

/// Whether a filesystem passes flushes on to the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// It does.
    On,
    /// It was told not to (`nobarrier`).
    Off,
}

/// Whether blocks of an XFS may be shared by two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reflink {
    /// They may (`reflink=1`, the default of mkfs).
    Possible,
    /// They may not (`reflink=0`).
    Impossible,
    /// The kernel did not say.
    Unknown,
}

impl Filesystem {
    /// The kernel's name for it.
    pub fn name(&self) -> &str {
        match self {
            Filesystem::Ext4 { .. } => "ext4",
            Filesystem::Xfs { .. } => "xfs",
            Filesystem::Memory { name } | Filesystem::Other { name } => name,
        }
    }
}

impl StorageFacts {
    /// Asks the kernel about the filesystem under an existing directory.
    ///
    /// # Errors
    /// If the directory or the kernel's table of mounts cannot be read.
    pub fn gather(path: &Path) -> std::io::Result<StorageFacts> {
        let device = fs::metadata(path)?.dev();
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let real = fs::canonicalize(path)?;
        let mount = mount_of(&mounts, (major, minor), &real);
        let (name, options) = mount.unwrap_or(("unknown", ""));
        let block_dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let filesystem = match name {
            "ext4" => ext4(options, ext4_options(&block_dir).as_deref()),
            "xfs" => Filesystem::Xfs { reflink: xfs_reflink(path), barriers: barriers(options) },
            "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs" => Filesystem::Memory { name: name.into() },
            _ => Filesystem::Other { name: name.into() },
        };
        Ok(StorageFacts {
            path: path.into(),
            filesystem,
            device,
            physical_block_bytes: physical_block_bytes(&block_dir),
        })
    }
}

/// Type and options of the mount that `path` lies on: of those of its device the one with the longest matching mount
/// point, the later one if a mount covers another.
fn mount_of<'a>(mountinfo: &'a str, device: (u64, u64), path: &Path) -> Option<(&'a str, &'a str)> {
    let wanted = format!("{}:{}", device.0, device.1);
    let mut best: Option<(usize, (&str, &str))> = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(2);
        let (Some(numbers), Some(_root), Some(point)) = (left.next(), left.next(), left.next()) else {
            continue;
        };
        let mut right = right.split(' ');
        let (Some(kind), Some(_source)) = (right.next(), right.next()) else { continue };
        let point = PathBuf::from(unescape(point));
        if numbers != wanted || !path.starts_with(&point) {
            continue;
        }
        let length = point.as_os_str().len();
        if best.is_none_or(|(longest, _)| length >= longest) {
            best = Some((length, (kind, right.next().unwrap_or_default())));
        }
    }
    best.map(|(_, found)| found)
}

/// The kernel writes space, tab, newline and backslash in paths as three octal digits.
fn unescape(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// The options in force of an ext4, defaults included: the table of mounts leaves out what is the filesystem's default.
fn ext4_options(block_dir: &Path) -> Option<String> {
    let target = fs::read_link(block_dir).ok()?;
    let name = target.file_name()?;
    fs::read_to_string(Path::new("/proc/fs/ext4").join(name).join("options")).ok()
}

fn ext4(mount_options: &str, all_options: Option<&str>) -> Filesystem {
    let all = all_options.map(|text| text.replace('\n', ","));
    let options = all.as_deref().unwrap_or(mount_options);
    let data = match options.split(',').find_map(|o| o.strip_prefix("data=")) {
        Some("journal") => DataMode::Journal,
        Some(_) => DataMode::InPlace,
        None if all.is_some() => DataMode::InPlace,
        None => DataMode::Unknown,
    };
    Filesystem::Ext4 { data, barriers: barriers(options) }
}

fn barriers(options: &str) -> Barriers {
    if options.split(',').any(|o| o == "nobarrier" || o == "barrier=0") {
        Barriers::Off
    } else {
        Barriers::On
    }
}

/// The kernel's `struct xfs_fsop_geom`, of which only the flags are of interest.
#[repr(C)]
struct XfsGeometry {
    before: [u32; 23],
    flags: u32,
    after: [u32; 40],
}

const _: () = assert!(size_of::<XfsGeometry>() == 256);

nix::ioctl_read!(
    /// `XFS_IOC_FSGEOMETRY`.
    xfs_geometry, b'X', 126, XfsGeometry
);

#[expect(unsafe_code, reason = "the ioctl has no safe wrapper")]
fn xfs_reflink(path: &Path) -> Reflink {
    const FLAG_REFLINK: u32 = 1 << 20;
    let Ok(dir) = File::open(path) else { return Reflink::Unknown };
    let mut geometry = XfsGeometry { before: [0; 23], flags: 0, after: [0; 40] };
    // SAFETY: the descriptor is open for the length of the call, and the kernel writes at most the 256 bytes that the
    // request's number says, which is the size of `geometry`.
    match unsafe { xfs_geometry(dir.as_raw_fd(), &raw mut geometry) } {
        Ok(_) if geometry.flags & FLAG_REFLINK == 0 => Reflink::Impossible,
        Ok(_) => Reflink::Possible,
        Err(_) => Reflink::Unknown,
    }
}

/// Of a partition the whole drive's.
fn physical_block_bytes(block_dir: &Path) -> Option<u32> {
    ["queue", "../queue"].iter().find_map(|queue| {
        let text = fs::read_to_string(block_dir.join(queue).join("physical_block_size")).ok()?;
        text.trim().parse().ok()
    })
}

/// The room on the filesystem of a directory.
///
/// # Errors
/// If the kernel does not say.
pub fn free_space(dir: &Path) -> std::io::Result<FreeSpace> {
    let stat = nix::sys::statvfs::statvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok(FreeSpace { free_bytes: bytes(stat.blocks_available()), total_bytes: bytes(stat.blocks()) })
}

/// The right to serve a directory, held by one process at a time until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    file: Flock<File>,
    path: PathBuf,
    made: bool,
}

/// Why the lock of a directory was not to be had.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it.
    Held {
        /// The lock's file.
        path: PathBuf,
        /// What that process wrote into it: its number; may be empty.
        holder: String,
    },
    /// The file could not be opened, locked or written.
    File {
        /// The lock's file.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

impl DirLock {
    /// Takes the lock by the file at `path`, made if it is absent. What stands in it stays until [`DirLock::sign`].
    ///
    /// # Errors
    /// If another process holds it, or the file cannot be used.
    pub fn take(path: &Path) -> Result<DirLock, LockError> {
        let failed = |error| LockError::File { path: path.into(), error };
        loop {
            let made = !path.exists();
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(failed)?;
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(failed)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                // Another process may have withdrawn meanwhile: then a file is locked that nobody will find.
                Ok(file) if !is_at(&file, path).map_err(failed)? => {}
                Ok(file) => return Ok(DirLock { file, path: path.into(), made }),
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(LockError::Held { path: path.into(), holder: holder.trim().to_owned() });
                }
                Err((_, errno)) => return Err(failed(errno.into())),
            }
        }
    }

    /// Writes this process's number into the file, for whoever is refused.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn sign(&mut self) -> Result<(), LockError> {
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut self.file).map_err(|error| LockError::File { path: self.path.clone(), error })
    }

    /// Gives the lock back and leaves everything as it was: a file that was made for it goes.
    pub fn withdraw(self) {
        if self.made {
            // Under the lock: whoever opens the file before it goes finds out that it has gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether an open file is the one that has this name.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl std::fmt::Display for LockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LockError::Held { path, holder } => {
                let who = if holder.is_empty() { String::new() } else { format!(" (process {holder})") };
                write!(
                    f,
                    "{}: held by another process{who}; one process at a time may serve a data directory; stop that one, or \
                     give another directory with --data",
                    path.display()
                )
            }
            LockError::File { path, error } => write!(
                f,
                "{}: cannot lock: {error}; the broker's user needs read and write permission on the directory, and its \
                 filesystem needs space",
                path.display()
            ),
        }
    }
}

impl std::error::Error for LockError {}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:27 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684100k
40 27 254:0 /srv /srv/my\\040data rw - ext4 /dev/vda rw,data=journal
50 27 7:1 / /mnt/x rw - xfs /dev/loop1 rw,attr2
51 27 7:1 / /mnt/x/deep rw - xfs /dev/loop1 rw,nobarrier
";

    #[test]
    fn the_mount_of_a_path_is_the_deepest_of_its_device() {
        let of = |device, path: &str| mount_of(MOUNTS, device, Path::new(path));
        assert_eq!(of((254, 0), "/opt/data"), Some(("ext4", "rw,discard")));
        assert_eq!(of((254, 0), "/srv/my data/a"), Some(("ext4", "rw,data=journal")));
        assert_eq!(of((0, 27), "/dev/shm/t"), Some(("tmpfs", "rw,size=24684100k")));
        assert_eq!(of((7, 1), "/mnt/x/deep/er"), Some(("xfs", "rw,nobarrier")));
        assert_eq!(of((7, 1), "/mnt/xy"), None, "a name that begins alike is another directory");
    }

    #[test]
    fn ext4_is_known_to_write_in_place_only_if_all_its_options_are_known() {
        let data = |mount, all| match ext4(mount, all) {
            Filesystem::Ext4 { data, .. } => data,
            other => panic!("{other:?}"),
        };
        assert_eq!(data("rw,discard", None), DataMode::Unknown, "the default may be data=journal");
        assert_eq!(data("rw", Some("rw\nbarrier\n")), DataMode::InPlace);
        assert_eq!(data("rw", Some("rw\ndata=journal\n")), DataMode::Journal);
        assert_eq!(data("rw,data=ordered", None), DataMode::InPlace);
        assert_eq!(barriers("rw,barrier=0"), Barriers::Off);
        assert_eq!(barriers("rw,nobarrier"), Barriers::Off);
        assert_eq!(barriers("rw,barrier=1"), Barriers::On);
    }

    #[test]
    fn memory_is_told_from_a_drive() {
        let shm = StorageFacts::gather(Path::new("/dev/shm")).unwrap();
        assert_eq!(shm.filesystem, Filesystem::Memory { name: "tmpfs".into() });
        let here = StorageFacts::gather(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert_ne!(here.device, shm.device);
    }

    #[test]
    fn a_second_lock_of_a_directory_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut first = DirLock::take(&path).unwrap();
        first.sign().unwrap();
        let error = DirLock::take(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        DirLock::take(&path).unwrap();
    }

    #[test]
    fn a_lock_that_is_given_back_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        DirLock::take(&path).unwrap().withdraw();
        assert!(!path.exists(), "it was made for the lock");
        fs::write(&path, "77\n").unwrap();
        DirLock::take(&path).unwrap().withdraw();
        assert_eq!(fs::read_to_string(&path).unwrap(), "77\n");
        let again = DirLock::take(&path).unwrap();
        assert!(DirLock::take(&path).is_err());
        drop(again);
    }
}
