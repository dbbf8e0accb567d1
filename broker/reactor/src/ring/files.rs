//! Files: reads, writes and flushes go to the kernel's ring, with the shard's own memory; what blocks goes to a helper thread.

use std::collections::HashMap;
use std::fs::{File as OsFile, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::task::Waker;
use std::thread::JoinHandle;

use super::kernel::{Flight, Kernel};
use crate::buffer::{Buffer, View};
use crate::doubts::counted;
use crate::facts::free_space;
use crate::file::{assert_blocks, create_allocated, look, remove, zero_by_drive};
use crate::op::{Event, Fault, File, Op, OpenHow, Tag};
use crate::probe::ZeroFill;
use crate::setup::Flushes;

/// What is told to have failed.
const FILL: &str = "fill with zeros";

/// All open files, and the thread that does what would keep the shard waiting.
pub(super) struct Files {
    // Dropped first: it ends with its last job, and a job may use an open file by number.
    helper: Helper,
    open: HashMap<File, OpenFile>,
    /// As far as this shard has found out.
    zero_fill: ZeroFill,
    /// Zeros to write; as many as have been asked for at once.
    zeros: View,
    shard: usize,
    flushes: Flushes,
}

struct OpenFile {
    file: OsFile,
    /// Ops under way on it.
    under_way: u32,
}

impl Files {
    /// # Errors
    /// If no thread can be started.
    pub(super) fn new(shard: usize, flushes: Flushes, waker: Waker) -> Result<Files, Fault> {
        let helper = Helper::start(shard, flushes.clone(), waker)?;
        let zeros = Buffer::zeroed(0).freeze();
        Ok(Files { helper, open: HashMap::new(), zero_fill: ZeroFill::ByDrive, zeros, shard, flushes })
    }

    /// Begins an op on files.
    pub(super) fn submit(&mut self, op: Op, kernel: &mut Kernel) {
        match op {
            Op::Open { file, path, how } => {
                assert!(!self.open.contains_key(&file), "{file:?} is open already");
                self.helper.give(Job::Open { file, path, how });
            }
            Op::CloseFile { file } => {
                let closing = self.open.remove(&file).unwrap_or_else(|| not_open(file));
                assert_eq!(closing.under_way, 0, "{file:?} is closed with an op under way");
                self.helper.give(Job::Close { file, opened: closing.file });
            }
            Op::Read { file, at, len, tag } => {
                assert_blocks("read", at, len);
                let buf = Buffer::for_filling(len);
                let len = u32::try_from(len).expect("one read is less than 4 GiB");
                self.start(file, Flight::Read { file, tag, at, len, buf }, kernel);
            }
            Op::Write { file, at, data, tag } => {
                assert_blocks("write", at, data.len());
                self.start(file, Flight::Write { file, tag, at, data, what: "write" }, kernel);
            }
            Op::Zero { file, at, len, tag } => {
                assert_blocks("fill", at, len);
                self.zero(Range { file, at, len, tag }, kernel);
            }
            Op::Flush { file, tag } => {
                let ticket = self.flushes.device.submitting(self.shard);
                self.start(file, Flight::Flush { file, tag, ticket }, kernel);
            }
            Op::Remove { path, tag } => self.helper.give(Job::Remove { path, tag }),
            Op::FreeSpace { path, tag } => self.helper.give(Job::FreeSpace { path, tag }),
            other => unreachable!("{other:?} is no op on a file"),
        }
    }

    /// Takes what the helper has done.
    pub(super) fn collect(&mut self, kernel: &mut Kernel, events: &mut Vec<Event>) {
        while let Some(done) = self.helper.next() {
            match done {
                Done::Event(event) => events.push(event),
                Done::Opened { file, result } => {
                    let result = result.map(|opened| {
                        let earlier = self.open.insert(file, OpenFile { file: opened, under_way: 0 });
                        assert!(earlier.is_none(), "{file:?} was opened twice");
                    });
                    events.push(Event::Opened { file, result });
                }
                Done::Zeroed(range, result) => {
                    self.landed(range.file);
                    match result {
                        Ok(true) => events.push(range.filled(Ok(range.len))),
                        Ok(false) => {
                            self.zero_fill = ZeroFill::Written;
                            self.zero(range, kernel);
                        }
                        Err(e) => events.push(range.filled(Err(Fault::of(FILL, &e)))),
                    }
                }
            }
        }
    }

    /// Whether the helper has done something since.
    pub(super) fn has_news(&mut self) -> bool {
        self.helper.has_news()
    }

    /// An op on this file has ended.
    pub(super) fn landed(&mut self, file: File) {
        self.open.get_mut(&file).unwrap_or_else(|| not_open(file)).under_way -= 1;
    }

    /// By the drive, unless it has said that it cannot; else by writing.
    fn zero(&mut self, range: Range, kernel: &mut Kernel) {
        let Range { file, at, len, tag } = range;
        if self.zero_fill == ZeroFill::ByDrive {
            let fd = self.begin(file).as_raw_fd();
            return self.helper.give(Job::Zero { range, fd });
        }
        if self.zeros.len() < len {
            let mut zeros = Buffer::zeroed(len);
            zeros.set_filled(len);
            self.zeros = zeros.freeze();
        }
        let data = self.zeros.slice(0..len);
        self.start(file, Flight::Write { file, tag, at, data, what: FILL }, kernel);
    }

    fn start(&mut self, file: File, flight: Flight, kernel: &mut Kernel) {
        kernel.start(self.begin(file).as_fd(), flight);
    }

    /// One more op is under way on a file.
    fn begin(&mut self, file: File) -> &OsFile {
        let opened = self.open.get_mut(&file).unwrap_or_else(|| not_open(file));
        opened.under_way += 1;
        &opened.file
    }
}

/// What is to be filled with zeros.
#[derive(Clone, Copy)]
struct Range {
    file: File,
    at: u64,
    len: usize,
    tag: Tag,
}

impl Range {
    fn filled(self, result: Result<usize, Fault>) -> Event {
        Event::Written { file: self.file, tag: self.tag, result }
    }
}

/// A thread for calls that block. Takes jobs in order.
struct Helper {
    /// None: it is to end.
    jobs: Option<mpsc::Sender<Job>>,
    done: mpsc::Receiver<Done>,
    /// What was found when it was asked for news.
    found: Option<Done>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Open {
        file: File,
        path: PathBuf,
        how: OpenHow,
    },
    /// The last close of a removed file frees its room on the drive.
    Close {
        file: File,
        opened: OsFile,
    },
    /// The file stays open meanwhile: it has this op under way.
    Zero {
        range: Range,
        fd: RawFd,
    },
    Remove {
        path: PathBuf,
        tag: Tag,
    },
    FreeSpace {
        path: PathBuf,
        tag: Tag,
    },
}

enum Done {
    Event(Event),
    Opened { file: File, result: Result<OsFile, Fault> },
    Zeroed(Range, io::Result<bool>),
}

impl Helper {
    fn start(shard: usize, flushes: Flushes, waker: Waker) -> Result<Helper, Fault> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        let (tell, done) = mpsc::channel();
        let work = move || {
            for job in to_do {
                // A reactor that has ended wants no answer.
                let _ = tell.send(job.run(shard, &flushes));
                waker.wake_by_ref();
            }
        };
        let thread = std::thread::Builder::new().name(format!("shard-{shard}-files")).spawn(work);
        let thread = thread.map_err(|e| Fault::of("start a thread", &e))?;
        Ok(Helper { jobs: Some(jobs), done, found: None, thread: Some(thread) })
    }

    fn give(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("it ends with the reactor");
        jobs.send(job).expect("it ends after its last job");
    }

    fn next(&mut self) -> Option<Done> {
        self.found.take().or_else(|| self.done.try_recv().ok())
    }

    fn has_news(&mut self) -> bool {
        self.found = self.next();
        self.found.is_some()
    }
}

impl Drop for Helper {
    /// Waits for the last job: a flush on its way counts, and files that it holds are closed.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Job {
    fn run(self, shard: usize, flushes: &Flushes) -> Done {
        match self {
            Job::Open { file, path, how } => Done::Opened { file, result: open(&path, how, shard, flushes) },
            Job::Close { file, opened } => {
                drop(opened);
                Done::Event(Event::FileClosed { file })
            }
            Job::Zero { range, fd } => Done::Zeroed(range, zero_by_drive(fd, range.at, range.len as u64)),
            Job::Remove { path, tag } => {
                let result = counted(flushes, shard, || remove(&path));
                Done::Event(Event::Removed { tag, result })
            }
            Job::FreeSpace { path, tag } => {
                let result = free_space(&path).map_err(|e| Fault::io("look for free space in", &path, &e));
                Done::Event(Event::FreeSpace { tag, result })
            }
        }
    }
}

fn open(path: &Path, how: OpenHow, shard: usize, flushes: &Flushes) -> Result<OsFile, Fault> {
    if let OpenHow::New { bytes } = how {
        counted(flushes, shard, || create_allocated(path, bytes))?;
    }
    let opened = look(path).and_then(|_| {
        let direct = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(path);
        direct.map_err(|e| Fault::io("open", path, &e))
    });
    if opened.is_err() && matches!(how, OpenHow::New { .. }) {
        // The fault that counts is the one above.
        let _ = counted(flushes, shard, || remove(path));
    }
    opened
}

fn not_open<T>(file: File) -> T {
    panic!("{file:?} is not open")
}
