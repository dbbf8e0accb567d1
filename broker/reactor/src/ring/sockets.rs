//! Connections: at most one receive and one send of each are with the kernel.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use super::kernel::{First, Flight, FlightId, Kernel, Landed};
use crate::buffer::{Buffer, View};
use crate::net::{self, Sending};
use crate::op::{Event, Fault, Socket, Tag};
use crate::setup::Trouble;
use crate::slots::Slots;

/// All connected sockets.
pub(super) struct Sockets {
    slots: Slots<Connection>,
}

struct Connection {
    fd: OwnedFd,
    receiving: Option<FlightId>,
    sending: Option<FlightId>,
    /// For the next receive.
    first: First,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The shard has closed it; what is under way has still to land.
    Closing,
}

impl Connection {
    fn is_idle(&self) -> bool {
        self.receiving.is_none() && self.sending.is_none()
    }
}

impl Sockets {
    pub(super) fn new() -> Sockets {
        Sockets { slots: Slots::new() }
    }

    pub(super) fn adopt(&mut self, fd: OwnedFd) -> Socket {
        let (first, state) = (First::Wait, State::Open);
        self.slots.add(|_| Connection { fd, receiving: None, sending: None, first, state })
    }

    pub(super) fn receive(&mut self, socket: Socket, buf: Buffer, kernel: &mut Kernel) {
        assert!(buf.filled() < buf.capacity(), "a receive into a full buffer");
        let connection = self.open(socket);
        assert!(connection.receiving.is_none(), "a second receive on {socket:?}");
        let flight = Flight::Receive { socket, buf, first: connection.first };
        connection.receiving = Some(kernel.start(connection.fd.as_fd(), flight));
    }

    pub(super) fn send(
        &mut self,
        socket: Socket,
        views: Vec<View>,
        tag: Tag,
        kernel: &mut Kernel,
        events: &mut Vec<Event>,
    ) {
        let connection = self.open(socket);
        assert!(connection.sending.is_none(), "a second send on {socket:?}");
        let sending = Sending::new(views);
        if sending.pieces().next().is_none() {
            events.push(Event::Sent { socket, tag, result: Ok(()) });
            return;
        }
        let flight = Flight::Send { socket, sending, tag };
        connection.sending = Some(kernel.start(connection.fd.as_fd(), flight));
    }

    pub(super) fn close(&mut self, socket: Socket, kernel: &mut Kernel, events: &mut Vec<Event>) {
        let connection = self.open(socket);
        connection.state = State::Closing;
        for flight in connection.receiving.into_iter().chain(connection.sending) {
            kernel.cancel(flight);
        }
        self.finish_close(socket, events);
    }

    /// The socket itself, for another reactor.
    pub(super) fn take(&mut self, socket: Socket) -> OwnedFd {
        assert!(self.open(socket).is_idle(), "{socket:?} is handed over with an op under way");
        self.slots.remove(socket).fd
    }

    pub(super) fn received(
        &mut self,
        socket: Socket,
        mut buf: Buffer,
        result: io::Result<u32>,
        next: First,
        kernel: &mut Kernel,
        events: &mut Vec<Event>,
    ) {
        let connection = self.slots.get(socket);
        connection.receiving = None;
        connection.first = next;
        let result = match result {
            Err(e) if wants_another_try(&e) && connection.state == State::Open => {
                return self.receive(socket, buf, kernel);
            }
            Err(_) if connection.state == State::Closing => Err(Fault::closed("receive")),
            other => other.map(|count| count as usize).map_err(|e| Fault::of("receive", &e)),
        };
        if let Ok(count) = result {
            buf.set_filled(buf.filled() + count);
        }
        events.push(Event::Received { socket, buf, result });
        self.finish_close(socket, events);
    }

    pub(super) fn sent(
        &mut self,
        socket: Socket,
        mut sending: Sending,
        tag: Tag,
        result: io::Result<u32>,
        kernel: &mut Kernel,
        events: &mut Vec<Event>,
    ) {
        let connection = self.slots.get(socket);
        connection.sending = None;
        let passing = result.as_ref().is_err_and(wants_another_try);
        if let Ok(count) = result {
            sending.advance(count as usize);
        }
        let finished = sending.pieces().next().is_none();
        if (result.is_ok() || passing) && !finished && connection.state == State::Open {
            let flight = Flight::Send { socket, sending, tag };
            connection.sending = Some(kernel.start(connection.fd.as_fd(), flight));
            return;
        }
        let result = match result {
            _ if finished => Ok(()),
            Err(e) if connection.state == State::Open => Err(Fault::of("send", &e)),
            Ok(_) | Err(_) => Err(Fault::closed("send")),
        };
        events.push(Event::Sent { socket, tag, result });
        self.finish_close(socket, events);
    }

    /// Ends those whose close the shard did not wait for.
    pub(super) fn end(&mut self) {
        let closing = self.slots.iter().filter(|connection| connection.state == State::Closing);
        closing.for_each(|connection| net::say_goodbye(connection.fd.as_fd()));
    }

    /// Closes a socket that is to be closed, once nothing is under way on it.
    fn finish_close(&mut self, socket: Socket, events: &mut Vec<Event>) {
        let connection = self.slots.get(socket);
        if connection.state == State::Closing && connection.is_idle() {
            net::say_goodbye(self.slots.remove(socket).fd.as_fd());
            events.push(Event::Closed { socket });
        }
    }

    /// For an op of the shard.
    fn open(&mut self, socket: Socket) -> &mut Connection {
        let connection = self.slots.get(socket);
        assert_eq!(connection.state, State::Open, "{socket:?} is closed");
        connection
    }
}

/// The kernel gave up without an end.
fn wants_another_try(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EINTR | nix::libc::EAGAIN))
}

/// The listeners of a reactor: the one that accepts, and those that have not ended yet.
#[derive(Default)]
pub(super) struct Acceptor {
    listening: Option<Listening>,
    ending: Vec<Listening>,
    made: u32,
    /// It has been told that connections wait.
    starved: bool,
}

struct Listening {
    number: u32,
    listener: TcpListener,
    accepting: Accepting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepting {
    Now(FlightId),
    /// Until then on the reactor's clock: there were no descriptors.
    Paused(u64),
}

/// What came of an accept.
pub(super) enum Accepted {
    Connection(OwnedFd),
    Nothing,
    /// For the first of several failures.
    Starved(Trouble),
}

impl Acceptor {
    /// Accepts connections from this listener from now on, and from no other.
    pub(super) fn listen(&mut self, listener: TcpListener, kernel: &mut Kernel) {
        self.stop(kernel);
        self.made += 1;
        let number = self.made;
        let accepting = Accepting::Now(kernel.start(listener.as_fd(), Flight::Accept { listening: number }));
        self.listening = Some(Listening { number, listener, accepting });
    }

    /// The listener closes once the kernel no longer accepts from it.
    pub(super) fn stop(&mut self, kernel: &mut Kernel) {
        let Some(listening) = self.listening.take() else { return };
        if let Accepting::Now(flight) = listening.accepting {
            kernel.cancel(flight);
            self.ending.push(listening);
        }
    }

    /// When it will try again, if it pauses.
    pub(super) fn paused_until_ns(&self) -> Option<u64> {
        match self.listening.as_ref()?.accepting {
            Accepting::Paused(until_ns) => Some(until_ns),
            Accepting::Now(_) => None,
        }
    }

    /// Tries again after a pause.
    pub(super) fn collect(&mut self, now_ns: u64, kernel: &mut Kernel) {
        if self.paused_until_ns().is_some_and(|until_ns| until_ns <= now_ns)
            && let Some(Listening { number, listener, accepting }) = &mut self.listening
        {
            let flight = Flight::Accept { listening: *number };
            *accepting = Accepting::Now(kernel.start(listener.as_fd(), flight));
        }
    }

    pub(super) fn accepted(&mut self, listening: u32, landed: Landed, now_ns: u64) -> Accepted {
        let goes_on = landed.goes_on();
        let connection = landed.into_connection();
        let fault = connection.as_ref().err().map(io::Error::raw_os_error);
        let starves = fault.is_some_and(|errno| !net::is_of_one_connection(errno));
        if !goes_on {
            let pause_ns = net::ACCEPT_PAUSE.as_nanos() as u64;
            self.ended(listening, if starves { now_ns + pause_ns } else { now_ns });
        }
        match connection {
            Ok(fd) => {
                self.starved = false;
                // Fails only for a connection that is gone again; the first receive says so.
                let _ = net::set_nodelay(fd.as_fd());
                Accepted::Connection(fd)
            }
            Err(e) if starves && self.listening.is_some() && !std::mem::replace(&mut self.starved, true) => {
                Accepted::Starved(net::starved(&e))
            }
            Err(_) => Accepted::Nothing,
        }
    }

    /// The kernel accepts no more from a listener: it goes on at that time, unless it is to end.
    fn ended(&mut self, number: u32, at_ns: u64) {
        self.ending.retain(|ending| ending.number != number);
        if let Some(listening) = &mut self.listening
            && listening.number == number
        {
            listening.accepting = Accepting::Paused(at_ns);
        }
    }
}
