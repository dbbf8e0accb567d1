//! `Op` and `Event`: the one seam between a shard and the world.
//!
//! The contract, tested against every reactor and against the simulator:
//! - A buffer belongs to the op until its event comes back, also after a close or a failure.
//! - Every op ends in exactly one event, except [`Op::Report`], which nobody answers.
//! - Results carry the kernel's count or its error; short and failed completions are ordinary outcomes.
//! - Nothing is ordered by the kernel. An order that matters is made by submitting the second op after the
//!   first op's event.
//! - One reading of the clock a turn.

use std::any::Any;
use std::path::PathBuf;

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
    /// Read once into the free part of `buf`, at least one byte unless the peer has closed. One at a time per socket.
    /// Ends in [`Event::Received`].
    Receive { socket: Socket, buf: Buffer },
    /// Send all views, in order. One at a time per socket. Ends in [`Event::Sent`].
    Send { socket: Socket, views: Vec<View>, tag: Tag },
    /// Close the socket; ops under way on it end early, then [`Event::Closed`] comes.
    Close { socket: Socket },
    /// Give the socket, which has no op under way, to another shard; it arrives there as [`Event::Arrived`].
    /// Ends in [`Event::HandedOver`].
    HandOver { socket: Socket, to: ShardIndex, letter: Letter },

    /// Open a file for direct I/O. Ends in [`Event::Opened`].
    Open { file: File, path: PathBuf, how: OpenHow },
    /// Close the file, which has no op under way. Ends in [`Event::FileClosed`].
    CloseFile { file: File },
    /// Read `len` bytes at `at` (both multiples of the block) into a buffer that the reactor allocates.
    /// Ends in [`Event::Read`].
    Read { file: File, at: u64, len: usize, tag: Tag },
    /// Write the whole view, whose memory is aligned and whose length and place are multiples of the block.
    /// Ends in [`Event::Written`].
    Write { file: File, at: u64, data: View, tag: Tag },
    /// fdatasync. Ends in [`Event::Flushed`], which is successful only if the *device* has had no flush fault.
    Flush { file: File, tag: Tag },
    /// Remove a file by name and flush its directory. Ends in [`Event::Removed`].
    Remove { path: PathBuf, tag: Tag },

    /// Ends in [`Event::Timer`] at or after `at_ns` on the monotonic clock.
    Timer { at_ns: u64, tag: Tag },
    /// Put a letter into another shard's mailbox. Ends in [`Event::MailTaken`] once that shard has taken it.
    Mail { to: ShardIndex, letter: Letter },
    /// Tell the control threads something. Ends in no event.
    Report { letter: Letter },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// It must exist.
    Existing,
    /// It must not exist; it is allocated with `bytes` (not yet initialised) and its directory is flushed
    /// before the event.
    New { bytes: u64 },
}

/// What has happened since the last turn.
#[derive(Debug)]
pub enum Event {
    /// A client connected.
    Accepted { socket: Socket },
    /// A socket came from another shard by [`Op::HandOver`].
    Arrived { socket: Socket, letter: Letter },
    /// The end of an [`Op::Receive`]: bytes read (0: the peer has closed its side), and the buffer, filled further by
    /// that many.
    Received { socket: Socket, buf: Buffer, result: Result<usize, Fault> },
    /// The end of an [`Op::Send`]: everything went to the kernel, or nothing more will.
    Sent { socket: Socket, tag: Tag, result: Result<(), Fault> },
    /// The end of an [`Op::Close`]; no event of this socket follows.
    Closed { socket: Socket },
    /// The end of an [`Op::HandOver`] on the giving side.
    HandedOver { socket: Socket, result: Result<(), Fault> },

    /// The end of an [`Op::Open`].
    Opened { file: File, result: Result<(), Fault> },
    /// The end of an [`Op::CloseFile`].
    FileClosed { file: File },
    /// The end of an [`Op::Read`]: the buffer holds what was read, short at the end of the file.
    Read { file: File, tag: Tag, result: Result<Buffer, Fault> },
    /// The end of an [`Op::Write`]: bytes written, perhaps fewer than asked.
    Written { file: File, tag: Tag, result: Result<usize, Fault> },
    /// The end of an [`Op::Flush`].
    Flushed { file: File, tag: Tag, result: Result<(), Fault> },
    /// The end of an [`Op::Remove`].
    Removed { tag: Tag, result: Result<(), Fault> },

    /// The end of an [`Op::Timer`].
    Timer { tag: Tag },
    /// A letter from another shard.
    Mail { from: ShardIndex, letter: Letter },
    /// The end of an [`Op::Mail`]: the receiver has taken it out of its mailbox.
    MailTaken { to: ShardIndex },
    /// An order from the control threads.
    Order { letter: Letter },
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
        write!(f, "{}: {}", self.what, std::io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for Fault {}
