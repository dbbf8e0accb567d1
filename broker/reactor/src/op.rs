//! `Op` and `Event`: the one seam between a shard and the world.
//!
//! The contract, tested against every reactor and against the simulator:
//! - A buffer belongs to the op until its event comes back, also after a close or a failure.
//! - Every op ends in exactly one event, except [`Op::Report`], which nobody answers.
//! - Results carry the kernel's count or its error; short and failed completions are ordinary outcomes.
//! - Nothing is ordered by the kernel. An order that matters is made by submitting the second op after the
//!   first op's event.
//! - One reading of the clock a turn.
//! - An op on a socket that has been closed or handed over, or on a file that is not open, is a bug of the shard and
//!   stops the process; so does a second receive or send while one is under way.
//! - The first turn comes at once, without events, so that a shard can submit its first ops.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};

use crate::buffer::{Buffer, View};

/// What drives a reactor's loop: the state machine of one shard.
pub trait Turn {
    /// Takes all events since the last turn, in the order in which they happened, and adds the ops that follow
    /// from them. `events` is drained. Returns whether the loop goes on.
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop;
}

/// Whether the reactor's loop goes on after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// Wait for further events.
    Continue,
    /// The shard has nothing under way any more: leave the loop and end the thread.
    Stop,
}

/// The one reading of the clock of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since the reactor started; never falls. For deadlines and durations.
    pub mono_ns: u64,
    /// Milliseconds since the Unix epoch; may jump. For record timestamps only.
    pub wall_ms: i64,
}

/// Chosen by the shard, carried by the reactor, returned with the event. The reactor never looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// A connected socket of this reactor. Chosen by the reactor; a number is not used again for another socket
/// while the reactor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket(pub u64);

/// An open file of this reactor. Chosen by the shard in [`Op::Open`], unique among its open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct File(pub u64);

/// The number of a shard, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardIndex(pub u16);

/// Something that the reactor carries from one thread to another unopened.
pub type Letter = Box<dyn Any + Send>;

/// What a shard asks of the world.
#[derive(Debug)]
pub enum Op {
    /// Read once, at least one byte unless the peer has closed. One at a time per socket. Ends in [`Event::Received`].
    Receive {
        /// From where.
        socket: Socket,
        /// Its free part, not empty, takes the bytes.
        buf: Buffer,
    },
    /// Send all views, in order. One at a time per socket. Ends in [`Event::Sent`].
    Send {
        /// To where.
        socket: Socket,
        /// Held until the event.
        views: Vec<View>,
        /// Comes back with the event.
        tag: Tag,
    },
    /// Close the socket. Ops under way on it end early, each with its own event (a fault, if they had not finished);
    /// then comes [`Event::Closed`].
    Close {
        /// Which.
        socket: Socket,
    },
    /// Give the socket, which has no op under way, to another shard; it arrives there as [`Event::Arrived`].
    /// Ends in [`Event::HandedOver`].
    HandOver {
        /// Which; its number ends here.
        socket: Socket,
        /// Another shard than this one.
        to: ShardIndex,
        /// Travels with it: what has been read already, and what the other shard is to know.
        letter: Letter,
    },

    /// Open a file for direct I/O. Ends in [`Event::Opened`].
    Open {
        /// The number by which it will be known.
        file: File,
        /// Its name, as the kernel takes it.
        path: PathBuf,
        /// Existing or new.
        how: OpenHow,
    },
    /// Close the file, which has no op under way. Ends in [`Event::FileClosed`].
    CloseFile {
        /// Which; the number may be used again after the event.
        file: File,
    },
    /// Read into a buffer that the reactor allocates. Ends in [`Event::Read`].
    Read {
        /// From where.
        file: File,
        /// Place of the first byte, a multiple of the block.
        at: u64,
        /// Bytes, a multiple of the block, not 0.
        len: usize,
        /// Comes back with the event.
        tag: Tag,
    },
    /// Write the whole view. Ends in [`Event::Written`].
    Write {
        /// To where.
        file: File,
        /// Place of the first byte, a multiple of the block.
        at: u64,
        /// Aligned memory; its length is a multiple of the block, not 0.
        data: View,
        /// Comes back with the event.
        tag: Tag,
    },
    /// Fill a range with zeros that are initialised on the drive, by whatever way is cheapest there. Ends in
    /// [`Event::Written`].
    Zero {
        /// To where.
        file: File,
        /// Place of the first byte, a multiple of the block.
        at: u64,
        /// Bytes, a multiple of the block, not 0.
        len: usize,
        /// Comes back with the event.
        tag: Tag,
    },
    /// fdatasync. Ends in [`Event::Flushed`], which is successful only if the *device* has had no flush fault.
    Flush {
        /// Which; the flush covers every write of this device whose event has come.
        file: File,
        /// Comes back with the event.
        tag: Tag,
    },
    /// Remove a file by name and flush its directory. Ends in [`Event::Removed`].
    Remove {
        /// Its name.
        path: PathBuf,
        /// Comes back with the event.
        tag: Tag,
    },
    /// Ask how much room the filesystem of a directory has. Ends in [`Event::FreeSpace`].
    FreeSpace {
        /// The directory.
        path: PathBuf,
        /// Comes back with the event.
        tag: Tag,
    },

    /// Ends in [`Event::Timer`] at or after the given time.
    Timer {
        /// On the clock of [`Now::mono_ns`]; a time in the past ends at once.
        at_ns: u64,
        /// Comes back with the event.
        tag: Tag,
    },
    /// Put a letter into another shard's mailbox; letters from one shard to another arrive in the order in which they were
    /// put. Ends in [`Event::MailTaken`] once that shard has taken it.
    Mail {
        /// Another shard than this one.
        to: ShardIndex,
        /// What it says.
        letter: Letter,
    },
    /// Tell the control threads something. Ends in no event.
    Report {
        /// What it says.
        letter: Letter,
    },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// It must exist and hold at least one block.
    Existing,
    /// It must not exist; its directory is flushed before the event. After a failure it does not exist.
    New {
        /// Its length: allocated, not yet initialised; a multiple of the block, not 0.
        bytes: u64,
    },
}

/// The room on a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that an unprivileged process may still write.
    pub free_bytes: u64,
    /// Bytes of the whole filesystem.
    pub total_bytes: u64,
}

/// What has happened since the last turn.
#[derive(Debug)]
pub enum Event {
    /// A client connected.
    Accepted {
        /// Its number on this reactor.
        socket: Socket,
    },
    /// A socket came from another shard by [`Op::HandOver`].
    Arrived {
        /// Its number on this reactor.
        socket: Socket,
        /// As the other shard gave it.
        letter: Letter,
    },
    /// The end of an [`Op::Receive`].
    Received {
        /// From where.
        socket: Socket,
        /// As it was given, filled further by the bytes read.
        buf: Buffer,
        /// Bytes read; 0: the peer has closed its side.
        result: Result<usize, Fault>,
    },
    /// The end of an [`Op::Send`].
    Sent {
        /// To where.
        socket: Socket,
        /// As given.
        tag: Tag,
        /// Everything went to the kernel, or nothing more will.
        result: Result<(), Fault>,
    },
    /// The end of an [`Op::Close`]; no event of this socket follows.
    Closed {
        /// Which.
        socket: Socket,
    },
    /// The end of an [`Op::HandOver`] on the giving side.
    HandedOver {
        /// The number that it had here.
        socket: Socket,
        /// A fault: the socket is closed and will not arrive.
        result: Result<(), Fault>,
    },

    /// The end of an [`Op::Open`].
    Opened {
        /// As given; after a fault the number is free again.
        file: File,
        /// Whether it is open.
        result: Result<(), Fault>,
    },
    /// The end of an [`Op::CloseFile`].
    FileClosed {
        /// Which.
        file: File,
    },
    /// The end of an [`Op::Read`].
    Read {
        /// From where.
        file: File,
        /// As given.
        tag: Tag,
        /// A buffer filled with what was read, short at the end of the file.
        result: Result<Buffer, Fault>,
    },
    /// The end of an [`Op::Write`] or an [`Op::Zero`].
    Written {
        /// To where.
        file: File,
        /// As given.
        tag: Tag,
        /// Bytes written from the start, perhaps fewer than asked.
        result: Result<usize, Fault>,
    },
    /// The end of an [`Op::Flush`].
    Flushed {
        /// Which.
        file: File,
        /// As given.
        tag: Tag,
        /// Success says that every write whose event had come before the op was submitted is on the drive.
        result: Result<(), Fault>,
    },
    /// The end of an [`Op::Remove`].
    Removed {
        /// As given.
        tag: Tag,
        /// Whether it is gone for good.
        result: Result<(), Fault>,
    },
    /// The end of an [`Op::FreeSpace`].
    FreeSpace {
        /// As given.
        tag: Tag,
        /// What the filesystem says.
        result: Result<FreeSpace, Fault>,
    },

    /// The end of an [`Op::Timer`].
    Timer {
        /// As given.
        tag: Tag,
    },
    /// A letter from another shard.
    Mail {
        /// Who wrote it.
        from: ShardIndex,
        /// What it says.
        letter: Letter,
    },
    /// The end of an [`Op::Mail`]: the receiver has taken it out of its mailbox.
    MailTaken {
        /// Which shard.
        to: ShardIndex,
    },
    /// An order from the control threads.
    Order {
        /// What it says.
        letter: Letter,
    },
}

/// An operation that the world refused or failed, as the kernel told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was tried, in a word or two: `write`, `open data/journal/0`.
    pub what: String,
    /// The kernel's error number; 0 where it gave none.
    pub errno: i32,
}

impl Fault {
    /// A fault of `what`, with the kernel's error number or 0.
    pub fn new(what: impl Into<String>, errno: i32) -> Fault {
        Fault { what: what.into(), errno }
    }

    /// What the kernel said when `verb` was tried on `path`.
    pub fn io(verb: &str, path: &Path, error: &io::Error) -> Fault {
        match error.raw_os_error() {
            Some(errno) => Fault::new(format!("{verb} {}", path.display()), errno),
            None => Fault::new(format!("{verb} {}: {error}", path.display()), 0),
        }
    }

    /// What the kernel said to `what`.
    pub(crate) fn of(what: &str, error: &io::Error) -> Fault {
        match error.raw_os_error() {
            Some(errno) => Fault::new(what, errno),
            None => Fault::new(format!("{what}: {error}"), 0),
        }
    }

    /// The end of an op that was under way on a socket when this side closed it.
    pub(crate) fn closed(what: &str) -> Fault {
        Fault::new(format!("{what}: the socket was closed by this side"), nix::libc::ECANCELED)
    }

    /// No space is left on the device, or its quota is used up.
    pub fn is_full(&self) -> bool {
        const ENOSPC: i32 = 28;
        const EDQUOT: i32 = 122;
        self.errno == ENOSPC || self.errno == EDQUOT
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.errno == 0 {
            return f.write_str(&self.what);
        }
        write!(f, "{}: {}", self.what, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for Fault {}
