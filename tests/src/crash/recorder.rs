//! A block recorder: a small FUSE daemon that exposes one file, `disk`, and remembers every write and every flush that
//! reaches it. A loop device and a real filesystem lie on that file, so what is recorded is exactly what a drive would
//! have been told, in order. It can also be told to refuse one of them, as a failing drive does.
//!
//! The kernel's side of the protocol is `include/uapi/linux/fuse.h` of Linux, version 7.31.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::mount::unmount;
use super::overlay::Overlay;

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

/// A request that the drive answers with EIO. What it carries has no effect and is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The flush that comes after this many others.
    FlushAfter(u64),
    /// The write that comes after this many others.
    WriteAfter(u64),
}

/// A mounted recorder. Dropping it without [`Recorder::finish`] takes the mount away as soon as nobody uses it.
pub struct Recorder {
    mount_point: PathBuf,
    shared: Arc<Shared>,
    /// None once [`Recorder::finish`] waits for it.
    daemon: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    records: Mutex<Vec<Recorded>>,
    /// Flushes that the drive has confirmed. An ack that a client saw when this was `n` must be in every state from flush
    /// `n` on.
    flushes: AtomicU64,
    failure: Mutex<Option<Failure>>,
    /// Flushes confirmed before the failure, plus 1; 0: none was met yet.
    failed_at: AtomicU64,
}

impl Recorder {
    /// Mounts a recorder at `mount_point`, which is made if it is not there, whose one file, `disk`, has that content. Needs
    /// root and /dev/fuse.
    pub fn mount(mount_point: &Path, content: Overlay) -> io::Result<Recorder> {
        std::fs::create_dir_all(mount_point)?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={MAX_IO}",
            device.as_raw_fd()
        );
        mount(Some("recorder"), mount_point, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
        let shared = Arc::new(Shared::default());
        let daemon = {
            let shared = Arc::clone(&shared);
            let reply = Vec::with_capacity(MAX_IO + REPLY_HEADER_BYTES);
            let daemon = Daemon { device, size: content.bytes(), content, shared, reply };
            std::thread::spawn(move || daemon.serve())
        };
        Ok(Recorder { mount_point: mount_point.to_owned(), shared, daemon: Some(daemon) })
    }

    /// The file to put a loop device on.
    pub fn disk(&self) -> PathBuf {
        self.mount_point.join("disk")
    }

    /// Flushes that the drive has confirmed so far.
    pub fn flushes(&self) -> u64 {
        self.shared.flushes.load(Ordering::SeqCst)
    }

    /// From now on counts towards this failure, which happens once. None: one that has not happened yet never will.
    pub fn fail(&self, failure: Option<Failure>) {
        let mut waiting = self.shared.failure.lock().expect("no holder panics");
        *waiting = failure;
        if failure.is_some() {
            self.shared.failed_at.store(0, Ordering::SeqCst);
        }
    }

    /// Flushes that were confirmed before the failure; none if it has not happened yet.
    pub fn failed_at(&self) -> Option<u64> {
        self.shared.failed_at.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Unmounts and returns everything recorded, in order. The loop device must be gone.
    pub fn finish(mut self) -> io::Result<Vec<Recorded>> {
        unmount(&self.mount_point)?;
        let daemon = self.daemon.take().expect("taken here alone");
        daemon.join().map_err(|_| io::Error::other("the recorder's thread panicked"))??;
        Ok(std::mem::take(&mut *self.shared.records.lock().expect("no holder panics")))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            let _ = umount2(&self.mount_point, MntFlags::MNT_DETACH);
        }
    }
}

/// Largest read or write in one request, in bytes.
const MAX_IO: usize = 1 << 20;
const REPLY_HEADER_BYTES: usize = 16;
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
    content: Overlay,
    size: u64,
    shared: Arc<Shared>,
    /// The answer under construction, kept for the next one: a new megabyte each time costs more than what is done with it.
    reply: Vec<u8>,
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
            self.reply.resize(REPLY_HEADER_BYTES, 0);
            match self.answer(opcode, node, &request[REQUEST_HEADER_BYTES..])? {
                Answer::None => {}
                Answer::Data => self.reply(unique, 0)?,
                Answer::Errno(errno) => self.reply(unique, errno)?,
            }
        }
    }

    /// Does what is asked; an answer's data is appended to `reply`.
    fn answer(&mut self, opcode: u32, node: u64, body: &[u8]) -> io::Result<Answer> {
        Ok(match opcode {
            opcode::INIT => {
                self.init(body);
                Answer::Data
            }
            opcode::LOOKUP if body.starts_with(b"disk\0") => {
                self.put_u64s(&[DISK, 0, 1000, 1000, 0]);
                self.attributes(DISK);
                Answer::Data
            }
            opcode::LOOKUP => Answer::Errno(libc_errno::ENOENT),
            opcode::GETATTR | opcode::SETATTR => {
                self.put_u64s(&[1000, 0]);
                self.attributes(node);
                Answer::Data
            }
            opcode::OPEN | opcode::OPENDIR => {
                // FOPEN_DIRECT_IO: no page cache between the loop device and this recorder.
                let direct = u32::from(opcode == opcode::OPEN);
                self.put_u64s(&[1]);
                self.put_u32s(&[direct, 0]);
                Answer::Data
            }
            opcode::READ => {
                let at = u64_at(body, 8).min(self.size);
                let len = u64::from(u32_at(body, 16)).min(self.size - at) as usize;
                self.reply.resize(REPLY_HEADER_BYTES + len, 0);
                self.content.read_at(&mut self.reply[REPLY_HEADER_BYTES..], at)?;
                Answer::Data
            }
            opcode::WRITE => {
                if self.is_to_fail(|failure| match failure {
                    Failure::WriteAfter(others) => Some(others),
                    Failure::FlushAfter(_) => None,
                }) {
                    return Ok(Answer::Errno(libc_errno::EIO));
                }
                let (at, len) = (u64_at(body, 8), u32_at(body, 16));
                let data = &body[40..40 + len as usize];
                self.content.write_at(data, at)?;
                self.record(Recorded::Write { at, data: data.to_vec() });
                self.put_u32s(&[len, 0]);
                Answer::Data
            }
            opcode::FSYNC => {
                if self.is_to_fail(|failure| match failure {
                    Failure::FlushAfter(others) => Some(others),
                    Failure::WriteAfter(_) => None,
                }) {
                    return Ok(Answer::Errno(libc_errno::EIO));
                }
                self.record(Recorded::Flush);
                self.shared.flushes.fetch_add(1, Ordering::SeqCst);
                Answer::Data
            }
            opcode::STATFS => {
                self.put_u64s(&[100_000, 90_000, 90_000, 1000, 900]);
                self.put_u32s(&[4096, 255, 4096]);
                self.put_u32s(&[0; 7]);
                Answer::Data
            }
            opcode::FLUSH | opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => Answer::Data,
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Answer::None,
            opcode::FALLOCATE => Answer::Errno(libc_errno::EOPNOTSUPP),
            _ => Answer::Errno(libc_errno::ENOSYS),
        })
    }

    fn init(&mut self, body: &[u8]) {
        let (minor, readahead, wanted) = (u32_at(body, 4), u32_at(body, 8), u32_at(body, 12));
        const ASYNC_READ: u32 = 1;
        const BIG_WRITES: u32 = 1 << 5;
        const MAX_PAGES: u32 = 1 << 22;
        let flags = BIG_WRITES | MAX_PAGES | (wanted & ASYNC_READ);
        self.put_u32s(&[7, minor.min(31), readahead, flags]);
        self.put_u16s(&[16, 12]); // background requests: most, congested at
        self.put_u32s(&[MAX_IO as u32, 1]);
        self.put_u16s(&[(MAX_IO / 4096) as u16, 0]); // pages a request, mapping alignment
        self.put_u32s(&[0; 8]);
    }

    /// The kernel's `fuse_attr`, 88 bytes.
    fn attributes(&mut self, node: u64) {
        let (mode, size) = if node == ROOT { (0o040_755, 4096) } else { (0o100_600, self.size) };
        self.put_u64s(&[node, size, size / 512, 0, 0, 0]);
        self.put_u32s(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
    }

    fn put_u64s(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.reply.extend_from_slice(&word.to_le_bytes()));
    }

    fn put_u32s(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.reply.extend_from_slice(&word.to_le_bytes()));
    }

    fn put_u16s(&mut self, words: &[u16]) {
        words.iter().for_each(|word| self.reply.extend_from_slice(&word.to_le_bytes()));
    }

    /// Whether this request is the one to fail; `counter` chooses what the failure counts.
    fn is_to_fail(&self, counter: impl Fn(&mut Failure) -> Option<&mut u64>) -> bool {
        let mut failure = self.shared.failure.lock().expect("no holder panics");
        let Some(others) = failure.as_mut().and_then(counter) else { return false };
        if *others > 0 {
            *others -= 1;
            return false;
        }
        *failure = None;
        let confirmed = self.shared.flushes.load(Ordering::SeqCst);
        self.shared.failed_at.store(confirmed + 1, Ordering::SeqCst);
        true
    }

    fn record(&self, what: Recorded) {
        self.shared.records.lock().expect("no holder panics").push(what);
    }

    fn reply(&mut self, unique: u64, errno: i32) -> io::Result<()> {
        let len = self.reply.len() as u32;
        self.reply[..4].copy_from_slice(&len.to_le_bytes());
        self.reply[4..8].copy_from_slice(&(-errno).to_le_bytes());
        self.reply[8..16].copy_from_slice(&unique.to_le_bytes());
        match self.device.write(&self.reply) {
            // The request was interrupted: nobody waits for the reply.
            Err(e) if e.raw_os_error() == Some(libc_errno::ENOENT) => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Ok(()),
        }
    }
}

enum Answer {
    None,
    /// What stands in [`Daemon::reply`].
    Data,
    Errno(i32),
}

mod libc_errno {
    use nix::errno::Errno;
    pub(super) const EIO: i32 = Errno::EIO as i32;
    pub(super) const ENODEV: i32 = Errno::ENODEV as i32;
    pub(super) const ENOENT: i32 = Errno::ENOENT as i32;
    pub(super) const EINTR: i32 = Errno::EINTR as i32;
    pub(super) const EAGAIN: i32 = Errno::EAGAIN as i32;
    pub(super) const EOPNOTSUPP: i32 = Errno::EOPNOTSUPP as i32;
    pub(super) const ENOSYS: i32 = Errno::ENOSYS as i32;
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
