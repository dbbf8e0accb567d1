//! Sockets of the glommio reactor, driven by readiness: an op is tried when it is submitted and again when the kernel says that
//! it may succeed. No task per socket.

use std::cell::RefCell;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use glommio::timer::sleep;

use super::{Completion, Done};
use crate::buffer::{Buffer, View};
use crate::net;
use crate::op::{Event, Fault, Socket, Tag};
use crate::setup::Trouble;

/// All connected sockets. A [`Socket`] is a slot and how often it had been used before.
pub(super) struct Sockets {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: Arc<Ready>,
    looking: Vec<u32>,
}

struct Slot {
    used: u32,
    connection: Option<Connection>,
}

struct Connection {
    stream: TcpStream,
    receiving: Option<Buffer>,
    sending: Option<Sending>,
    waker: Waker,
}

struct Sending {
    views: Vec<View>,
    /// The first view that is not wholly sent, and the bytes of it that are.
    index: usize,
    at: usize,
    tag: Tag,
}

/// Slots of which the kernel said something since the last look.
#[derive(Default)]
struct Ready {
    slots: Mutex<ReadySlots>,
}

#[derive(Default)]
struct ReadySlots {
    slots: Vec<u32>,
    task: Option<Waker>,
}

struct SlotWaker {
    slot: u32,
    ready: Arc<Ready>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.slots.lock().unwrap_or_else(PoisonError::into_inner);
        ready.slots.push(self.slot);
        if ready.slots.len() == 1
            && let Some(task) = &ready.task
        {
            task.wake_by_ref();
        }
    }
}

impl Sockets {
    pub(super) fn new() -> Sockets {
        Sockets { slots: Vec::new(), free: Vec::new(), ready: Arc::default(), looking: Vec::new() }
    }

    pub(super) fn set_waker(&mut self, task: Waker) {
        self.ready.slots.lock().unwrap_or_else(PoisonError::into_inner).task = Some(task);
    }

    pub(super) fn adopt(&mut self, stream: TcpStream) -> Socket {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { used: 0, connection: None });
            u32::try_from(self.slots.len() - 1).expect("descriptors are fewer than 2^31")
        });
        let waker = Waker::from(Arc::new(SlotWaker { slot, ready: Arc::clone(&self.ready) }));
        let entry = &mut self.slots[slot as usize];
        entry.used += 1;
        entry.connection = Some(Connection { stream, receiving: None, sending: None, waker });
        number(slot, entry.used)
    }

    /// Tries again what the kernel said may succeed now.
    pub(super) fn collect(&mut self, events: &mut Vec<Event>) {
        let mut looking = std::mem::take(&mut self.looking);
        std::mem::swap(
            &mut looking,
            &mut self.ready.slots.lock().unwrap_or_else(PoisonError::into_inner).slots,
        );
        for slot in looking.drain(..) {
            let entry = &mut self.slots[slot as usize];
            if let Some(connection) = &mut entry.connection {
                let socket = number(slot, entry.used);
                connection.try_receive(socket, events);
                connection.try_send(socket, events);
            }
        }
        self.looking = looking;
    }

    pub(super) fn receive(&mut self, socket: Socket, buf: Buffer, events: &mut Vec<Event>) {
        assert!(buf.filled() < buf.capacity(), "a receive into a full buffer");
        let connection = self.connection(socket);
        assert!(connection.receiving.is_none(), "a second receive on {socket:?}");
        connection.receiving = Some(buf);
        connection.try_receive(socket, events);
    }

    pub(super) fn send(&mut self, socket: Socket, views: Vec<View>, tag: Tag, events: &mut Vec<Event>) {
        let connection = self.connection(socket);
        assert!(connection.sending.is_none(), "a second send on {socket:?}");
        connection.sending = Some(Sending { views, index: 0, at: 0, tag });
        connection.try_send(socket, events);
    }

    pub(super) fn close(&mut self, socket: Socket, events: &mut Vec<Event>) {
        let connection = self.remove(socket);
        if let Some(buf) = connection.receiving {
            events.push(Event::Received { socket, buf, result: Err(closed("receive")) });
        }
        if let Some(sending) = connection.sending {
            events.push(Event::Sent { socket, tag: sending.tag, result: Err(closed("send")) });
        }
        net::say_goodbye(borrow(&connection.stream));
        events.push(Event::Closed { socket });
    }

    /// The socket itself, for another reactor. After a fault it is closed.
    pub(super) fn take(&mut self, socket: Socket) -> Result<OwnedFd, Fault> {
        let connection = self.remove(socket);
        let idle = connection.receiving.is_none() && connection.sending.is_none();
        assert!(idle, "{socket:?} is handed over with an op under way");
        // glommio does not give its descriptor back, and cancels what it has under way on it when dropped.
        net::duplicate(borrow(&connection.stream)).map_err(|e| fault("hand over", &e))
    }

    fn connection(&mut self, socket: Socket) -> &mut Connection {
        let (slot, used) = parts(socket);
        let entry = self.slots.get_mut(slot as usize).filter(|entry| entry.used == used);
        entry
            .and_then(|entry| entry.connection.as_mut())
            .unwrap_or_else(|| panic!("{socket:?} is not connected"))
    }

    fn remove(&mut self, socket: Socket) -> Connection {
        self.connection(socket);
        let (slot, _) = parts(socket);
        self.free.push(slot);
        self.slots[slot as usize].connection.take().expect("looked at above")
    }
}

impl Connection {
    fn try_receive(&mut self, socket: Socket, events: &mut Vec<Event>) {
        let Some(buf) = &mut self.receiving else { return };
        let mut cx = Context::from_waker(&self.waker);
        let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(&mut cx, buf.free_mut()) else {
            return;
        };
        let mut buf = self.receiving.take().expect("looked at above");
        if let Ok(count) = result {
            buf.set_filled(buf.filled() + count);
        }
        let result = result.map_err(|e| fault("receive", &e));
        events.push(Event::Received { socket, buf, result });
    }

    fn try_send(&mut self, socket: Socket, events: &mut Vec<Event>) {
        let Some(sending) = &mut self.sending else { return };
        let result = loop {
            sending.skip_finished();
            if sending.index == sending.views.len() {
                break Ok(());
            }
            match net::send_some(borrow(&self.stream), &sending.views[sending.index..], sending.at) {
                Ok(count) => sending.advance(count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // glommio tries once more itself and then waits for room.
                    let rest = &sending.views[sending.index][sending.at..];
                    let mut cx = Context::from_waker(&self.waker);
                    match Pin::new(&mut self.stream).poll_write(&mut cx, rest) {
                        Poll::Pending => return,
                        Poll::Ready(Ok(count)) => sending.advance(count),
                        Poll::Ready(Err(e)) => break Err(fault("send", &e)),
                    }
                }
                Err(e) => break Err(fault("send", &e)),
            }
        };
        let tag = sending.tag;
        self.sending = None;
        events.push(Event::Sent { socket, tag, result });
    }
}

impl Sending {
    fn skip_finished(&mut self) {
        while self.index < self.views.len() && self.at == self.views[self.index].len() {
            (self.index, self.at) = (self.index + 1, 0);
        }
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let step = count.min(self.views[self.index].len() - self.at);
            self.at += step;
            count -= step;
            self.skip_finished();
        }
    }
}

/// Keeps the accepting task going; dropping it closes the listener.
pub(super) struct Listening {
    _task: glommio::Task<()>,
}

/// Accepts connections for as long as the result lives.
pub(super) fn accept_from(listener: TcpListener, done: Rc<RefCell<Done>>) -> Listening {
    Listening { _task: glommio::spawn_local(accept(listener, done)) }
}

async fn accept(listener: TcpListener, done: Rc<RefCell<Done>>) {
    /// Out of descriptors or memory: the queue in the kernel waits, and so do we.
    const PAUSE: Duration = Duration::from_millis(100);
    /// Connections in a row before the shard gets its turn.
    const ROW: u32 = 16;

    #[expect(unsafe_code, reason = "glommio takes a listener from outside only as a raw descriptor")]
    // SAFETY: the descriptor was owned by `listener`, which gives it up here; glommio's listener owns it from now on.
    let listener = unsafe { glommio::net::TcpListener::from_raw_fd(listener.into_raw_fd()) };
    let (mut row, mut starved) = (0, false);
    loop {
        match listener.accept().await {
            Ok(stream) => {
                // Fails only for a connection that is gone again; the first receive says so.
                let _ = net::set_nodelay(borrow(&stream));
                done.borrow_mut().push(Completion::Accepted(stream));
                starved = false;
            }
            // One connection failed before it was accepted; the next one is independent of it.
            Err(e) if matches!(e.raw_os_error(), Some(nix::libc::ECONNABORTED | nix::libc::EPROTO)) => {}
            Err(e) => {
                // Told once, not with each attempt.
                if !std::mem::replace(&mut starved, true) {
                    let text = format!("no connection can be accepted for now, clients wait: {e}");
                    done.borrow_mut().push(Completion::Trouble(Trouble(text)));
                }
                sleep(PAUSE).await;
            }
        }
        row += 1;
        if row % ROW == 0 {
            glommio::executor().yield_now().await;
        }
    }
}

fn number(slot: u32, used: u32) -> Socket {
    Socket(u64::from(used) << 32 | u64::from(slot))
}

fn parts(socket: Socket) -> (u32, u32) {
    (socket.0 as u32, (socket.0 >> 32) as u32)
}

#[expect(unsafe_code, reason = "glommio's streams lend their descriptor only raw")]
fn borrow(stream: &TcpStream) -> BorrowedFd<'_> {
    // SAFETY: the stream owns the descriptor and stays borrowed for as long as the result lives.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

fn closed(what: &str) -> Fault {
    Fault::new(format!("{what}: the socket was closed by this side"), nix::libc::ECANCELED)
}

fn fault(what: &str, error: &io::Error) -> Fault {
    match error.raw_os_error() {
        Some(errno) => Fault::new(what, errno),
        None => Fault::new(format!("{what}: {error}"), 0),
    }
}
