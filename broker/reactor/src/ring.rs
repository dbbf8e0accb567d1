//! The second reactor: one io_uring a shard, by way of the `io-uring` crate, with the turn as what happens between two calls of
//! the kernel.
//!
//! Read in this order: [`run`]; the loop in `Shard::run`; `ring/kernel.rs`, which alone gives memory to the kernel and gets it
//! back; `ring/sockets.rs` and `ring/files.rs`, where an op becomes a request and a completion an event; `ring/alarm.rs`, by which
//! other threads wake this one.
//!
//! - The ring belongs to its thread (SINGLE_ISSUER), and completions are made when the thread asks for them (DEFER_TASKRUN):
//!   nothing interrupts a turn. Both need Linux 6.1.
//! - A receive goes into the shard's own buffer, a read and a write from or to the shard's own memory: nothing is copied.
//! - A round is one call of the kernel: it takes all requests, and waits only if there is nothing to do.

mod alarm;
mod files;
pub(crate) mod kernel;
mod sockets;

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::clock::{Clock, Timers};
use crate::doubts::Doubts;
use crate::mailbox::{Delivery, Order, Parcel};
use crate::op::{Event, Fault, Letter, Loop, Now, Op, ShardIndex, Socket, Turn};
use crate::setup::Setup;
use alarm::Alarm;
use files::Files;
use kernel::{First, Flight, Kernel, Landed, Wait};
use sockets::{Accepted, Acceptor, Sockets};

/// Runs the shard's loop on this thread until a turn says [`Loop::Stop`].
///
/// # Errors
/// If the ring cannot be made ([`crate::probe::ring`] says what is missing), or no descriptor or thread is left: nothing has been
/// run then. Or if the kernel refuses a ring that has worked: what was under way is lost sight of, and its flushes count as failed.
pub fn run(setup: Setup, turn: &mut dyn Turn) -> Result<(), Fault> {
    let mut shard = Shard::new(setup)?;
    let ran = shard.run(turn);
    shard.end();
    ran
}

/// One shard's reactor.
struct Shard {
    // Dropped first: it waits until the kernel is done with memory and files.
    kernel: Kernel,
    setup: Setup,
    sockets: Sockets,
    acceptor: Acceptor,
    files: Files,
    alarm: Alarm,
    doubts: Doubts,
    timers: Timers,
    clock: Clock,
    events: Vec<Event>,
    ops: Vec<Op>,
}

impl Shard {
    fn new(setup: Setup) -> Result<Shard, Fault> {
        let uring = kernel::make().map_err(|e| Fault::of("start a reactor (io_uring)", &e))?;
        let alarm = Alarm::new()?;
        let files = Files::new(usize::from(setup.shard.0), setup.flushes.clone(), alarm.waker())?;
        let mut kernel = Kernel::new(uring);
        kernel.start(alarm.fd(), Flight::Alarm);
        setup.post.door().bell().set_waker(Some(alarm.waker()));
        Ok(Shard {
            kernel,
            setup,
            sockets: Sockets::new(),
            acceptor: Acceptor::default(),
            files,
            alarm,
            doubts: Doubts::default(),
            timers: Timers::default(),
            clock: Clock::start(),
            events: Vec::new(),
            ops: Vec::new(),
        })
    }

    /// completions -> turn -> requests -> wait, until a turn ends it.
    fn run(&mut self, turn: &mut dyn Turn) -> Result<(), Fault> {
        let mut now = self.clock.now();
        loop {
            let goes_on = turn.turn(now, &mut self.events, &mut self.ops);
            debug_assert!(self.events.is_empty(), "a turn takes all events");
            self.submit();
            if goes_on == Loop::Stop {
                self.setup.post.dispatch();
                return Ok(());
            }
            loop {
                // Also without a turn: a mailbox that was full may have room.
                self.setup.post.dispatch();
                self.enter()?;
                now = self.clock.now();
                self.collect(now);
                if !self.events.is_empty() {
                    break;
                }
            }
        }
    }

    /// Lets everything under way end, unseen. A flush counts even so.
    fn end(mut self) {
        self.setup.post.door().bell().set_waker(None);
        while let Some(landed) = self.kernel.drain_next() {
            match landed {
                Landed { flight: Flight::Flush { file, tag, ticket }, result, .. } => {
                    let result = result.map(drop).map_err(|e| Fault::of("flush", &e));
                    self.doubts.flushed(&self.setup.flushes, file, tag, ticket, result, &mut self.events);
                }
                landed => landed.discard(),
            }
        }
        self.doubts.end(&self.setup.flushes);
        self.sockets.end();
    }

    /// The one call of the kernel in a round. Sleeps only if nothing at all waits to be seen.
    fn enter(&mut self) -> Result<(), Fault> {
        let wait = if self.events.is_empty() { self.wait() } else { Wait::No };
        let entered = if wait == Wait::No {
            self.kernel.enter(wait)
        } else {
            self.alarm.about_to_sleep();
            let woken = self.setup.post.door().bell().has_rung() || self.files.has_news();
            let entered = self.kernel.enter(if woken { Wait::No } else { wait });
            self.alarm.awake();
            entered
        };
        entered.map_err(|e| Fault::of("wait for io_uring", &e))
    }

    /// Until what is due next by the clock.
    fn wait(&self) -> Wait {
        let next_ns = [self.timers.next_ns(), self.acceptor.paused_until_ns()].into_iter().flatten().min();
        let Some(at_ns) = next_ns else { return Wait::ForEver };
        match at_ns.saturating_sub(self.clock.mono_ns()) {
            0 => Wait::No,
            left_ns => Wait::AtMost(Duration::from_nanos(left_ns)),
        }
    }

    fn collect(&mut self, now: Now) {
        self.collect_post();
        self.files.collect(&mut self.kernel, &mut self.events);
        self.acceptor.collect(now.mono_ns, &mut self.kernel);
        while let Some(landed) = self.kernel.next() {
            self.landed(landed, now);
        }
        self.doubts.settle(&self.setup.flushes, &mut self.events);
        self.timers.collect(now, &mut self.events);
    }

    fn collect_post(&mut self) {
        let Shard { setup, kernel, sockets, acceptor, events, .. } = self;
        setup.post.collect(|delivery| match delivery {
            Delivery::Parcel { from, parcel: Parcel::Mail(letter) } => {
                events.push(Event::Mail { from, letter })
            }
            Delivery::Parcel { parcel: Parcel::Socket(fd, letter), .. } => {
                let socket = sockets.adopt(fd);
                events.push(Event::Arrived { socket, letter });
            }
            Delivery::Taken { by } => events.push(Event::MailTaken { to: by }),
            Delivery::Order(Order::Letter(letter)) => events.push(Event::Order { letter }),
            Delivery::Order(Order::Listen(listener)) => acceptor.listen(listener, kernel),
            Delivery::Order(Order::StopListening) => acceptor.stop(kernel),
        });
    }

    fn landed(&mut self, landed: Landed, now: Now) {
        if let Flight::Accept { listening } = landed.flight {
            return self.accepted(listening, landed, now);
        }
        let next = if landed.leaves_more() { First::Try } else { First::Wait };
        let goes_on = landed.goes_on();
        let Landed { flight, result, .. } = landed;
        let Shard { kernel, sockets, files, events, .. } = self;
        match flight {
            Flight::Receive { socket, buf, .. } => {
                sockets.received(socket, buf, result, next, kernel, events);
            }
            Flight::Send { socket, sending, tag } => {
                sockets.sent(socket, sending, tag, result, kernel, events);
            }
            Flight::Read { file, tag, mut buf, .. } => {
                files.landed(file);
                let result = result.map_err(|e| Fault::of("read", &e)).map(|count| {
                    buf.set_filled(count as usize);
                    buf
                });
                events.push(Event::Read { file, tag, result });
            }
            Flight::Write { file, tag, what, .. } => {
                files.landed(file);
                let result = result.map(|count| count as usize).map_err(|e| Fault::of(what, &e));
                events.push(Event::Written { file, tag, result });
            }
            Flight::Flush { file, tag, ticket } => {
                files.landed(file);
                let result = result.map(drop).map_err(|e| Fault::of("flush", &e));
                self.doubts.flushed(&self.setup.flushes, file, tag, ticket, result, events);
            }
            Flight::Alarm => {
                if !goes_on {
                    kernel.start(self.alarm.fd(), Flight::Alarm);
                }
            }
            Flight::Accept { .. } => unreachable!("seen to above"),
        }
    }

    fn accepted(&mut self, listening: u32, landed: Landed, now: Now) {
        match self.acceptor.accepted(listening, landed, now.mono_ns) {
            Accepted::Connection(fd) => {
                let socket = self.sockets.adopt(fd);
                self.events.push(Event::Accepted { socket });
            }
            Accepted::Starved(trouble) => (self.setup.report)(Box::new(trouble)),
            Accepted::Nothing => {}
        }
    }

    fn submit(&mut self) {
        let mut ops = std::mem::take(&mut self.ops);
        for op in ops.drain(..) {
            let Shard { kernel, sockets, events, .. } = self;
            match op {
                Op::Receive { socket, buf } => sockets.receive(socket, buf, kernel),
                Op::Send { socket, views, tag } => sockets.send(socket, views, tag, kernel, events),
                Op::Close { socket } => sockets.close(socket, kernel, events),
                Op::HandOver { socket, to, letter } => self.hand_over(socket, to, letter),
                Op::Timer { at_ns, tag } => self.timers.add(at_ns, tag),
                Op::Mail { to, letter } => {
                    // A shard that has ended takes nothing any more; its silence is the process's end.
                    let _ = self.setup.post.put(to, Parcel::Mail(letter));
                }
                Op::Report { letter } => (self.setup.report)(letter),
                Op::Open { .. }
                | Op::CloseFile { .. }
                | Op::Read { .. }
                | Op::Write { .. }
                | Op::Zero { .. }
                | Op::Flush { .. }
                | Op::Remove { .. }
                | Op::FreeSpace { .. } => self.files.submit(op, kernel),
            }
        }
        self.ops = ops;
    }

    fn hand_over(&mut self, socket: Socket, to: ShardIndex, letter: Letter) {
        let fd: OwnedFd = self.sockets.take(socket);
        let put = self.setup.post.put(to, Parcel::Socket(fd, letter));
        let result = put.map_err(|_| Fault::new(format!("hand over to shard {}, which has ended", to.0), 0));
        self.events.push(Event::HandedOver { socket, result });
    }
}
