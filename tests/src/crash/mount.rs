//! Filesystems for a test: made on an image, mounted through a loop device, gone again when dropped.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::image::Sectors;

/// How long a filesystem may stay busy after the last process or device on it has ended.
const BUSY_MAX: Duration = Duration::from_secs(20);

/// Which filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Filesystem {
    /// ext4 as `mkfs.ext4` makes it.
    Ext4,
    /// XFS made with reflink=0, as the one-flush rule wants it.
    Xfs,
    /// XFS made with reflink=1, and a data directory whose blocks are shared with a copy (`cp --reflink`): the one-flush rule
    /// does not hold there, and the broker has to find that out.
    XfsReflink,
}

impl Filesystem {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
            Filesystem::XfsReflink => "xfs-reflink",
        }
    }

    /// What this filesystem bears. ext4 writes whole blocks back from its journal; XFS trusts a block that says it is new, and
    /// cannot be mounted if only a part of it is.
    pub fn sectors(self) -> Sectors {
        match self {
            Filesystem::Ext4 => Sectors::Torn,
            Filesystem::Xfs | Filesystem::XfsReflink => Sectors::Whole,
        }
    }

    fn mount_options(self) -> &'static [&'static str] {
        match self {
            Filesystem::Ext4 => &[],
            // Several states of one filesystem are mounted at a time.
            Filesystem::Xfs | Filesystem::XfsReflink => &["-o", "nouuid"],
        }
    }

    /// Makes an empty filesystem on a new sparse image.
    pub fn make(self, image: &Path, bytes: u64) -> io::Result<()> {
        let file = std::fs::File::create(image)?;
        file.set_len(bytes)?;
        let mut command = match self {
            Filesystem::Ext4 => {
                let mut c = Command::new("mkfs.ext4");
                c.args(["-q", "-F", "-J", "size=8", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
                c
            }
            Filesystem::Xfs | Filesystem::XfsReflink => {
                let reflink = if self == Filesystem::Xfs { "reflink=0" } else { "reflink=1" };
                let mut c = Command::new("mkfs.xfs");
                c.args(["-q", "-f", "-s", "size=4096", "-m", reflink]);
                c
            }
        };
        run(command.arg(image))
    }
}

/// A mounted image. Dropping it unmounts.
pub struct Mounted {
    /// Where.
    pub path: PathBuf,
    device: String,
}

impl Mounted {
    /// Attaches a loop device to `image`, of that filesystem, and mounts it at `path`, which is made if it is not there.
    pub fn new(fs: Filesystem, image: &Path, path: &Path) -> io::Result<Mounted> {
        std::fs::create_dir_all(path)?;
        let output = Command::new("losetup").args(["-f", "--show"]).arg(image).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "losetup {}: {}",
                image.display(),
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if let Err(e) = run(Command::new("mount").args(fs.mount_options()).arg(&device).arg(path)) {
            let _ = run(Command::new("losetup").args(["-d", &device]));
            return Err(e);
        }
        Ok(Mounted { path: path.to_owned(), device })
    }

    /// Unmounts, and says so if that fails.
    pub fn unmount(self) -> io::Result<()> {
        let mounted = std::mem::ManuallyDrop::new(self);
        mounted.release()
    }

    fn release(&self) -> io::Result<()> {
        unmount(&self.path)?;
        run(Command::new("losetup").args(["-d", &self.device]))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = run(Command::new("losetup").args(["-d", &self.device]));
    }
}

/// Unmounts, once nobody uses it any more: the kernel takes the rings of a killed process apart after the process is gone, and they
/// hold its files; so it does with a loop device, which holds its image.
pub fn unmount(path: &Path) -> io::Result<()> {
    let begun = Instant::now();
    while let Err(errno) = umount2(path, MntFlags::empty()) {
        if errno != Errno::EBUSY || begun.elapsed() > BUSY_MAX {
            return Err(io::Error::other(format!("unmount {}: {errno}", path.display())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Runs a command that has nothing to say when it works.
pub fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output().map_err(|e| io::Error::other(format!("{command:?}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}
