//! A block recorder: a small FUSE daemon that exposes one file, `disk`, and remembers every write and every flush that
//! reaches it. A loop device and a real filesystem lie on that file, so what is recorded is exactly what a drive would
//! have been told, in order.
//!
//! The kernel's side of the protocol is `include/uapi/linux/fuse.h` of Linux, version 7.31.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// What the drive was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Write these bytes at this place.
    Write {
        /// In bytes.
        at: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Everything written before is durable from here on.
    Flush,
}

/// A mounted recorder. Dropping it without [`Recorder::finish`] leaves the mount to the operator.
pub struct Recorder {
    mount_point: PathBuf,
    shared: Arc<Shared>,
    daemon: JoinHandle<io::Result<()>>,
}

#[derive(Default)]
struct Shared {
    records: Mutex<Vec<Recorded>>,
    /// Flushes that the drive has confirmed. An ack that a client saw when this was `n` must be in every state from flush
    /// `n` on.
    flushes: AtomicU64,
}

impl Recorder {
    /// Mounts a recorder at `mount_point` whose one file, `disk`, has the content of `image`. Needs root and /dev/fuse.
    pub fn mount(mount_point: &Path, image: &Path) -> io::Result<Recorder> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={MAX_IO}",
            device.as_raw_fd()
        );
        mount(Some("recorder"), mount_point, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
        let image = OpenOptions::new().read(true).write(true).open(image)?;
        let shared = Arc::new(Shared::default());
        let daemon = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                Daemon { device, size: image.metadata()?.len(), image, shared }.serve()
            })
        };
        Ok(Recorder { mount_point: mount_point.to_owned(), shared, daemon })
    }

    /// The file to put a loop device on.
    pub fn disk(&self) -> PathBuf {
        self.mount_point.join("disk")
    }

    /// Flushes that the drive has confirmed so far.
    pub fn flushes(&self) -> u64 {
        self.shared.flushes.load(Ordering::SeqCst)
    }

    /// Unmounts and returns everything recorded, in order. The loop device must be gone.
    pub fn finish(self) -> io::Result<Vec<Recorded>> {
        umount2(&self.mount_point, MntFlags::empty())?;
        self.daemon.join().map_err(|_| io::Error::other("the recorder's thread panicked"))??;
        Ok(std::mem::take(&mut *self.shared.records.lock().expect("no holder panics")))
    }
}

/// Largest read or write in one request, in bytes.
const MAX_IO: usize = 131_072;
const ROOT: u64 = 1;
const DISK: u64 = 2;
const REQUEST_HEADER_BYTES: usize = 40;

/// Request numbers of the kernel's protocol.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const SETATTR: u32 = 4;
}

struct Daemon {
    device: File,
    image: File,
    size: u64,
    shared: Arc<Shared>,
}

impl Daemon {
    fn serve(mut self) -> io::Result<()> {
        let mut buf = vec![0u8; MAX_IO + 4096];
        loop {
            let len = match self.device.read(&mut buf) {
                Ok(len) => len,
                Err(e) => match e.raw_os_error() {
                    Some(libc_errno::ENODEV) => return Ok(()),
                    Some(libc_errno::ENOENT | libc_errno::EINTR | libc_errno::EAGAIN) => continue,
                    _ => return Err(e),
                },
            };
            let request = &buf[..len];
            let opcode = u32_at(request, 4);
            let unique = u64_at(request, 8);
            let node = u64_at(request, 16);
            match self.answer(opcode, node, &request[REQUEST_HEADER_BYTES..])? {
                Answer::None => {}
                Answer::Data(data) => self.reply(unique, 0, &data)?,
                Answer::Errno(errno) => self.reply(unique, errno, &[])?,
            }
        }
    }

    fn answer(&mut self, opcode: u32, node: u64, body: &[u8]) -> io::Result<Answer> {
        Ok(match opcode {
            opcode::INIT => Answer::Data(self.init(body)),
            opcode::LOOKUP if body.starts_with(b"disk\0") => {
                let mut out = Vec::new();
                for word in [DISK, 0, 1000, 1000] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
                out.extend_from_slice(&[0; 8]);
                out.extend_from_slice(&self.attributes(DISK));
                Answer::Data(out)
            }
            opcode::LOOKUP => Answer::Errno(libc_errno::ENOENT),
            opcode::GETATTR | opcode::SETATTR => {
                let mut out = 1000u64.to_le_bytes().to_vec();
                out.extend_from_slice(&[0; 8]);
                out.extend_from_slice(&self.attributes(node));
                Answer::Data(out)
            }
            opcode::OPEN | opcode::OPENDIR => {
                // FOPEN_DIRECT_IO: no page cache between the loop device and this recorder.
                let direct = u32::from(opcode == opcode::OPEN);
                let mut out = 1u64.to_le_bytes().to_vec();
                out.extend_from_slice(&direct.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                Answer::Data(out)
            }
            opcode::READ => {
                let mut data = vec![0; u32_at(body, 16) as usize];
                let len = self.image.read_at(&mut data, u64_at(body, 8))?;
                data.truncate(len);
                Answer::Data(data)
            }
            opcode::WRITE => {
                let (at, len) = (u64_at(body, 8), u32_at(body, 16));
                let data = &body[40..40 + len as usize];
                self.image.write_all_at(data, at)?;
                self.record(Recorded::Write { at, data: data.to_vec() });
                let mut out = len.to_le_bytes().to_vec();
                out.extend_from_slice(&[0; 4]);
                Answer::Data(out)
            }
            opcode::FSYNC => {
                self.record(Recorded::Flush);
                self.shared.flushes.fetch_add(1, Ordering::SeqCst);
                Answer::Data(Vec::new())
            }
            opcode::STATFS => Answer::Data(statfs()),
            opcode::FLUSH | opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => {
                Answer::Data(Vec::new())
            }
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Answer::None,
            opcode::FALLOCATE => Answer::Errno(libc_errno::EOPNOTSUPP),
            _ => Answer::Errno(libc_errno::ENOSYS),
        })
    }

    fn init(&self, body: &[u8]) -> Vec<u8> {
        let (minor, readahead, wanted) = (u32_at(body, 4), u32_at(body, 8), u32_at(body, 12));
        const ASYNC_READ: u32 = 1;
        const BIG_WRITES: u32 = 1 << 5;
        let mut out = Vec::with_capacity(64);
        for word in [7, minor.min(31), readahead, BIG_WRITES | (wanted & ASYNC_READ)] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for half in [16u16, 12] {
            out.extend_from_slice(&half.to_le_bytes()); // background requests: most, congested at
        }
        for word in [MAX_IO as u32, 1] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for half in [32u16, 0] {
            out.extend_from_slice(&half.to_le_bytes()); // pages a request, mapping alignment
        }
        out.resize(64, 0);
        out
    }

    /// The kernel's `fuse_attr`, 88 bytes.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = if node == ROOT { (0o040_755, 4096) } else { (0o100_600, self.size) };
        let mut out = Vec::with_capacity(88);
        for word in [node, size, size / 512, 0, 0, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn record(&self, what: Recorded) {
        self.shared.records.lock().expect("no holder panics").push(what);
    }

    fn reply(&mut self, unique: u64, errno: i32, data: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(16 + data.len());
        out.extend_from_slice(&(16 + data.len() as u32).to_le_bytes());
        out.extend_from_slice(&(-errno).to_le_bytes());
        out.extend_from_slice(&unique.to_le_bytes());
        out.extend_from_slice(data);
        match self.device.write(&out) {
            // The request was interrupted: nobody waits for the reply.
            Err(e) if e.raw_os_error() == Some(libc_errno::ENOENT) => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Ok(()),
        }
    }
}

enum Answer {
    None,
    Data(Vec<u8>),
    Errno(i32),
}

mod libc_errno {
    use nix::errno::Errno;
    pub(super) const ENODEV: i32 = Errno::ENODEV as i32;
    pub(super) const ENOENT: i32 = Errno::ENOENT as i32;
    pub(super) const EINTR: i32 = Errno::EINTR as i32;
    pub(super) const EAGAIN: i32 = Errno::EAGAIN as i32;
    pub(super) const EOPNOTSUPP: i32 = Errno::EOPNOTSUPP as i32;
    pub(super) const ENOSYS: i32 = Errno::ENOSYS as i32;
}

fn statfs() -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    for word in [100_000u64, 90_000, 90_000, 1000, 900] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for word in [4096u32, 255, 4096] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.resize(80, 0);
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
