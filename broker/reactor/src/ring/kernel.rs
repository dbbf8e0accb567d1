//! One io_uring, and all memory that the kernel may read or write through it.
//!
//! What is given to the kernel is moved into a [`Flight`], which stays here until the kernel has said that it is done with it;
//! only then does the flight come back, by [`Kernel::next`]. That rule is what all unsafe code of the ring reactor rests on, and
//! all of it is in this file.
#![expect(unsafe_code, reason = "the kernel is given memory by address")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use nix::libc;

use crate::buffer::{Buffer, View};
use crate::device::FlushTicket;
use crate::net::Sending;
use crate::op::{File, Socket, Tag};

/// Requests that are handed to the kernel at once; more only cost another call.
const SUBMISSIONS: u32 = 1024;
/// Completions that lie ready at once; the kernel keeps more aside, at a price.
const COMPLETIONS: u32 = 16 << 10;

/// Pieces of one send that the kernel takes.
const PIECES_MAX: usize = 1024;

/// Told with the end of a request for a cancellation, which nobody waits for.
const CANCELLATION: u64 = u64::MAX;

/// `IORING_RECVSEND_POLL_FIRST`: wait for the socket before the first attempt.
const POLL_FIRST: u16 = 1;

/// What the kernel has been asked for, with the memory that it uses meanwhile.
pub(super) enum Flight {
    /// Into the free part of the buffer.
    Receive { socket: Socket, buf: Buffer, first: First },
    /// What is left of the send, or as much of it as one call takes.
    Send { socket: Socket, sending: Sending, tag: Tag },
    /// Connections of one listener, until the kernel says that no more will come.
    Accept { listening: u32 },
    /// Strokes of the alarm, until the kernel says that no more will come.
    Alarm,
    /// Into the buffer's first `len` bytes.
    Read { file: File, tag: Tag, at: u64, len: u32, buf: Buffer },
    /// All of the view; `what` it is called if it fails.
    Write { file: File, tag: Tag, at: u64, data: View, what: &'static str },
    /// What `fdatasync` does.
    Flush { file: File, tag: Tag, ticket: FlushTicket },
}

/// What a receive begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// There should be something to receive.
    Try,
    /// There should be nothing yet.
    Wait,
}

/// What vectored sends point to that have not been handed over: the kernel reads it when it takes the request.
#[derive(Default)]
#[expect(
    clippy::vec_box,
    reason = "the kernel knows a message by its address, which stays when the list grows"
)]
struct Messages {
    // used <= all.len()
    all: Vec<Box<Message>>,
    used: usize,
}

struct Message {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
}

/// A flight under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightId(u32);

/// What the kernel says of a flight.
pub(super) struct Landed {
    /// With it its memory, which is the caller's again.
    pub(super) flight: Flight,
    /// A count or a descriptor, or the error.
    pub(super) result: io::Result<u32>,
    flags: u32,
}

impl Landed {
    /// More will be said of the same flight.
    pub(super) fn goes_on(&self) -> bool {
        cqueue::more(self.flags)
    }

    /// The socket had more to receive than was taken.
    pub(super) fn leaves_more(&self) -> bool {
        cqueue::sock_nonempty(self.flags)
    }

    /// Of an accept: the new connection.
    pub(super) fn into_connection(self) -> io::Result<OwnedFd> {
        assert!(matches!(self.flight, Flight::Accept { .. }), "only an accept makes a connection");
        // SAFETY: a successful accept has made this descriptor for us, its number is told once, and `self` ends here.
        self.result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// Nobody wants to know.
    pub(super) fn discard(self) {
        if matches!(self.flight, Flight::Accept { .. }) {
            drop(self.into_connection());
        }
    }
}

/// How long to stay in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not at all.
    No,
    /// Until something completes, or for so long.
    AtMost(Duration),
    /// Until something completes.
    ForEver,
}

/// An io_uring of this thread with all its flights.
pub(super) struct Kernel {
    uring: IoUring,
    /// By [`FlightId`], which is also what the kernel tells a completion by.
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    messages: Messages,
    enter: EnterFlags,
    draining: bool,
}

/// An io_uring as the reactor needs it, for the calling thread alone.
///
/// # Errors
/// As [`crate::probe::ring`] explains them.
pub(super) fn make() -> io::Result<IoUring> {
    build(SUBMISSIONS, COMPLETIONS)
}

/// The smallest one with all that the reactor needs of one.
pub(crate) fn try_small() -> io::Result<()> {
    build(1, 2).map(drop)
}

fn build(submissions: u32, completions: u32) -> io::Result<IoUring> {
    let uring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(completions)
        .build(submissions)?;
    // Older than the flags above: a wait with an end, no completion lost, messages read with their request.
    let has = uring.params();
    assert!(has.is_feature_ext_arg() && has.is_feature_nodrop() && has.is_feature_submit_stable());
    Ok(uring)
}

impl Kernel {
    pub(super) fn new(uring: IoUring) -> Kernel {
        // A shard that waits for its clients is idle, not kept from work by a drive.
        let no_iowait = uring.params().is_feature_no_iowait();
        let enter = if no_iowait { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
        Kernel {
            uring,
            flights: Vec::new(),
            free: Vec::new(),
            messages: Messages::default(),
            enter,
            draining: false,
        }
    }

    /// Asks the kernel for something; handed over by the next [`Kernel::enter`].
    pub(super) fn start(&mut self, fd: BorrowedFd<'_>, mut flight: Flight) -> FlightId {
        // Before the request is made: what waits may use all messages.
        self.make_room();
        let entry = request(Fd(fd.as_raw_fd()), &mut flight, &mut self.messages);
        // Only now, when nothing can go wrong any more: a flight that is not the kernel's would be waited for at the end for ever.
        let id = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            u32::try_from(self.flights.len() - 1).expect("flights are fewer than 2^32")
        });
        self.flights[id as usize] = Some(flight);
        let entry = entry.user_data(u64::from(id));
        // SAFETY: the addresses in the entry are of memory that the flight owns or shares, on the heap and so unmoved when the
        // flight moves; the flight stays in `self.flights` until the kernel has told its end (`next`), also when `self` ends
        // (`drop`). Those of a message are needed only until the entry has been handed over, and stay until then (`handed_over`).
        unsafe { self.push(&entry) }
        FlightId(id)
    }

    /// Asks the kernel to end a flight early. It lands by itself, perhaps without having noticed.
    pub(super) fn cancel(&mut self, FlightId(id): FlightId) {
        let entry = opcode::AsyncCancel::new(u64::from(id)).build();
        // SAFETY: the entry points to no memory.
        unsafe { self.push(&entry.user_data(CANCELLATION).flags(squeue::Flags::SKIP_SUCCESS)) }
    }

    /// # Safety
    /// All memory that the entry points to is what it says until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        self.make_room();
        // SAFETY: as for this function.
        unsafe { self.uring.submission().push(entry) }.expect("there is room");
    }

    fn make_room(&mut self) {
        while self.uring.submission().is_full() {
            self.uring.submit().or_else(is_passing).expect("a full queue can be handed over");
            self.handed_over();
        }
    }

    /// The kernel has taken requests: if all of them, their messages can be used again.
    fn handed_over(&mut self) {
        if self.uring.submission().is_empty() {
            self.messages.used = 0;
        }
    }

    /// Hands over what has been started, lets the kernel do what it has put off, and waits.
    pub(super) fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let args = SubmitArgs::new();
        let entered = match wait {
            Wait::No => {
                let queue = self.uring.submission();
                if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                    return Ok(());
                }
                drop(queue);
                self.uring.submit()
            }
            Wait::AtMost(limit) => {
                let limit = Timespec::from(limit);
                self.uring.submitter().submit_with_args_and_flags(1, &args.timespec(&limit), self.enter)
            }
            Wait::ForEver => self.uring.submitter().submit_with_args_and_flags(1, &args, self.enter),
        };
        self.handed_over();
        entered.or_else(is_passing).map(drop)
    }

    /// What the kernel has said since, oldest first.
    pub(super) fn next(&mut self) -> Option<Landed> {
        loop {
            let said = self.uring.completion().next()?;
            if said.user_data() == CANCELLATION {
                continue;
            }
            let result = u32::try_from(said.result());
            let result = result.map_err(|_| io::Error::from_raw_os_error(-said.result()));
            let id = u32::try_from(said.user_data()).expect("every request but cancellations is a flight");
            let entry = &mut self.flights[id as usize];
            let flight = match entry {
                Some(Flight::Accept { listening }) if cqueue::more(said.flags()) => {
                    Flight::Accept { listening: *listening }
                }
                Some(Flight::Alarm) if cqueue::more(said.flags()) => Flight::Alarm,
                entry => {
                    self.free.push(id);
                    entry.take().expect("the kernel tells of flights under way")
                }
            };
            return Some(Landed { flight, result, flags: said.flags() });
        }
    }

    /// Ends what might never end by itself and waits for the next flight to land. None: nothing is under way any more, or the kernel
    /// does not say; then flushes have landed with its error, and the memory of the others is lost.
    pub(super) fn drain_next(&mut self) -> Option<Landed> {
        if !std::mem::replace(&mut self.draining, true) {
            // The drive always answers; and a flush that was cancelled would look like one that failed.
            let endless = (0..).map(FlightId).zip(&self.flights).filter(|(_, flight)| match flight {
                Some(
                    Flight::Receive { .. } | Flight::Send { .. } | Flight::Accept { .. } | Flight::Alarm,
                ) => true,
                Some(Flight::Read { .. } | Flight::Write { .. } | Flight::Flush { .. }) | None => false,
            });
            let endless: Vec<FlightId> = endless.map(|(id, _)| id).collect();
            endless.into_iter().for_each(|id| self.cancel(id));
        }
        while self.free.len() < self.flights.len() {
            if let Some(landed) = self.next() {
                return Some(landed);
            }
            let Err(error) = self.enter(Wait::ForEver) else { continue };
            let is_flush = |flight: &&mut Option<Flight>| matches!(flight, Some(Flight::Flush { .. }));
            if let Some(flight) = self.flights.iter_mut().find(is_flush).and_then(Option::take) {
                return Some(Landed { flight, result: Err(error), flags: 0 });
            }
            self.lose_sight();
        }
        None
    }

    /// What the kernel may still write to must not be freed.
    fn lose_sight(&mut self) {
        std::mem::forget(std::mem::take(&mut self.flights));
        self.free.clear();
    }
}

impl Drop for Kernel {
    /// No memory is freed before the kernel is done with it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A bug of the shard ends the process now, whatever the drive does.
            return self.lose_sight();
        }
        while let Some(landed) = self.drain_next() {
            landed.discard();
        }
    }
}

/// What says only that the kernel wants to be asked again.
fn is_passing(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(0),
        _ => Err(error),
    }
}

/// The request for a flight. It points into memory that the flight owns or shares.
fn request(fd: Fd, flight: &mut Flight, messages: &mut Messages) -> squeue::Entry {
    match flight {
        Flight::Receive { buf, first, .. } => {
            let free = buf.free_mut();
            let len = u32::try_from(free.len()).unwrap_or(u32::MAX);
            let ioprio = if *first == First::Wait { POLL_FIRST } else { 0 };
            opcode::Recv::new(fd, free.as_mut_ptr(), len).ioprio(ioprio).build()
        }
        Flight::Send { sending, .. } => request_send(fd, sending, messages),
        Flight::Accept { .. } => opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build(),
        Flight::Alarm => opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build(),
        Flight::Read { buf, at, len, .. } => {
            let memory = buf.memory_mut();
            assert!(*len as usize <= memory.len());
            opcode::Read::new(fd, memory.as_mut_ptr(), *len).offset(*at).build()
        }
        Flight::Write { data, at, .. } => {
            let len = u32::try_from(data.len()).expect("one write is less than 4 GiB");
            opcode::Write::new(fd, data.as_ptr(), len).offset(*at).build()
        }
        Flight::Flush { .. } => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

/// One piece goes as it is; several by way of a message.
fn request_send(fd: Fd, sending: &Sending, messages: &mut Messages) -> squeue::Entry {
    // WAITALL: the kernel itself goes on after a short send.
    const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    let mut pieces = sending.pieces().take(PIECES_MAX);
    let first = pieces.next().expect("a send with nothing left does not reach the kernel");
    let Some(second) = pieces.next() else {
        let len = u32::try_from(first.len()).unwrap_or(u32::MAX);
        return opcode::Send::new(fd, first.as_ptr(), len).flags(FLAGS).build();
    };
    let message = messages.unused();
    message.pieces.clear();
    message.pieces.extend(
        [first, second]
            .into_iter()
            .chain(pieces)
            .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() }),
    );
    message.header.msg_iov = message.pieces.as_mut_ptr();
    message.header.msg_iovlen = message.pieces.len();
    opcode::SendMsg::new(fd, &raw const message.header).flags(FLAGS as u32).build()
}

impl Messages {
    fn unused(&mut self) -> &mut Message {
        if self.used == self.all.len() {
            // SAFETY: `msghdr` is a plain C struct of integers and pointers, for which all zeros mean nothing given.
            let header = unsafe { std::mem::zeroed() };
            self.all.push(Box::new(Message { header, pieces: Vec::new() }));
        }
        self.used += 1;
        &mut self.all[self.used - 1]
    }
}
