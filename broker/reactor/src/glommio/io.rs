//! Ops as calls of glommio: sockets, driven by readiness, then files, a small task each.
//!
//! An op on a socket is tried when it is submitted and again when the kernel says that it may succeed; there is no task per
//! socket.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_io::{AsyncRead, AsyncWrite};
use glommio::GlommioError;
use glommio::io::{DmaFile, OpenOptions};
use glommio::net::TcpStream;
use glommio::timer::sleep;

use super::{Completion, Done, Shard};
use crate::buffer::{Buffer, View};
use crate::doubts;
use crate::facts::free_space;
use crate::file::{
    FileFault, assert_blocks, create_allocated, look, nameless_block, parent, remove, zero_by_drive,
};
use crate::net::{self, Sending};
use crate::op::{Event, Fault, File, Op, OpenHow, Socket, Tag};
use crate::probe::ZeroFill;
use crate::setup::Flushes;
use crate::slots::Slots;

/// All connected sockets.
pub(super) struct Sockets {
    slots: Slots<Connection>,
    ready: Arc<Ready>,
    looking: Vec<Socket>,
}

struct Connection {
    stream: TcpStream,
    receiving: Option<Buffer>,
    sending: Option<(Sending, Tag)>,
    waker: Waker,
}

/// Sockets of which the kernel said something since the last look.
#[derive(Default)]
struct Ready {
    sockets: Mutex<ReadySockets>,
}

#[derive(Default)]
struct ReadySockets {
    sockets: Vec<Socket>,
    task: Option<Waker>,
}

struct SocketWaker {
    socket: Socket,
    ready: Arc<Ready>,
}

impl Wake for SocketWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        ready.sockets.push(self.socket);
        if ready.sockets.len() == 1
            && let Some(task) = &ready.task
        {
            task.wake_by_ref();
        }
    }
}

impl Sockets {
    pub(super) fn new() -> Sockets {
        Sockets { slots: Slots::new(), ready: Arc::default(), looking: Vec::new() }
    }

    pub(super) fn set_waker(&mut self, task: Waker) {
        self.ready.sockets.lock().unwrap_or_else(PoisonError::into_inner).task = Some(task);
    }

    pub(super) fn adopt(&mut self, stream: TcpStream) -> Socket {
        let ready = Arc::clone(&self.ready);
        self.slots.add(|socket| {
            let waker = Waker::from(Arc::new(SocketWaker { socket, ready }));
            Connection { stream, receiving: None, sending: None, waker }
        })
    }

    /// Tries again what the kernel said may succeed now.
    pub(super) fn collect(&mut self, events: &mut Vec<Event>) {
        let mut looking = std::mem::take(&mut self.looking);
        std::mem::swap(
            &mut looking,
            &mut self.ready.sockets.lock().unwrap_or_else(PoisonError::into_inner).sockets,
        );
        for socket in looking.drain(..) {
            if let Some(connection) = self.slots.find(socket) {
                connection.try_receive(socket, events);
                connection.try_send(socket, events);
            }
        }
        self.looking = looking;
    }

    pub(super) fn receive(&mut self, socket: Socket, buf: Buffer, events: &mut Vec<Event>) {
        assert!(buf.filled() < buf.capacity(), "a receive into a full buffer");
        let connection = self.slots.get(socket);
        assert!(connection.receiving.is_none(), "a second receive on {socket:?}");
        connection.receiving = Some(buf);
        connection.try_receive(socket, events);
    }

    pub(super) fn send(&mut self, socket: Socket, views: Vec<View>, tag: Tag, events: &mut Vec<Event>) {
        let connection = self.slots.get(socket);
        assert!(connection.sending.is_none(), "a second send on {socket:?}");
        connection.sending = Some((Sending::new(views), tag));
        connection.try_send(socket, events);
    }

    pub(super) fn close(&mut self, socket: Socket, events: &mut Vec<Event>) {
        let connection = self.slots.remove(socket);
        if let Some(buf) = connection.receiving {
            events.push(Event::Received { socket, buf, result: Err(Fault::closed("receive")) });
        }
        if let Some((_, tag)) = connection.sending {
            events.push(Event::Sent { socket, tag, result: Err(Fault::closed("send")) });
        }
        net::say_goodbye(borrow(&connection.stream));
        events.push(Event::Closed { socket });
    }

    /// The socket itself, for another reactor. After a fault it is closed.
    pub(super) fn take(&mut self, socket: Socket) -> Result<OwnedFd, Fault> {
        let connection = self.slots.remove(socket);
        let idle = connection.receiving.is_none() && connection.sending.is_none();
        assert!(idle, "{socket:?} is handed over with an op under way");
        // glommio does not give its descriptor back, and cancels what it has under way on it when dropped.
        net::duplicate(borrow(&connection.stream)).map_err(|e| Fault::of("hand over", &e))
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
        let result = result.map_err(|e| Fault::of("receive", &e));
        events.push(Event::Received { socket, buf, result });
    }

    fn try_send(&mut self, socket: Socket, events: &mut Vec<Event>) {
        let Some((sending, tag)) = &mut self.sending else { return };
        let tag = *tag;
        let result = loop {
            let Some(first) = sending.pieces().next() else { break Ok(()) };
            match net::send_some(borrow(&self.stream), sending) {
                Ok(count) => sending.advance(count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // glommio tries once more itself and then waits for room.
                    let mut cx = Context::from_waker(&self.waker);
                    match Pin::new(&mut self.stream).poll_write(&mut cx, first) {
                        Poll::Pending => return,
                        Poll::Ready(Ok(count)) => sending.advance(count),
                        Poll::Ready(Err(e)) => break Err(Fault::of("send", &e)),
                    }
                }
                Err(e) => break Err(Fault::of("send", &e)),
            }
        };
        self.sending = None;
        events.push(Event::Sent { socket, tag, result });
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
            Err(e) if net::is_of_one_connection(e.raw_os_error()) => {}
            Err(e) => {
                // Told once, not with each attempt.
                if !std::mem::replace(&mut starved, true) {
                    done.borrow_mut().push(Completion::Trouble(net::starved(&e)));
                }
                sleep(net::ACCEPT_PAUSE).await;
            }
        }
        row += 1;
        if row % ROW == 0 {
            glommio::executor().yield_now().await;
        }
    }
}

#[expect(unsafe_code, reason = "glommio's streams lend their descriptor only raw")]
fn borrow(stream: &TcpStream) -> BorrowedFd<'_> {
    // SAFETY: the stream owns the descriptor and stays borrowed for as long as the result lives.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

impl Shard {
    pub(super) fn submit_file(&mut self, op: Op) {
        match op {
            Op::Open { file, path, how } => {
                assert!(!self.files.contains_key(&file), "{file:?} is open already");
                let probed = Rc::clone(&self.probed);
                let flushes = self.setup.flushes.clone();
                let shard = usize::from(self.setup.shard.0);
                self.spawn(async move {
                    if let OpenHow::New { bytes } = how {
                        let name = path.clone();
                        let made = counted(&flushes, shard, move || create_allocated(&name, bytes)).await;
                        if let Err(fault) = made {
                            return Completion::Opened { file, result: Err(fault) };
                        }
                    }
                    Completion::Opened { file, result: open(path, how, probed).await }
                });
            }
            Op::CloseFile { file } => {
                let closing = self.files.remove(&file).unwrap_or_else(|| not_open(file));
                let closing = Rc::into_inner(closing).expect("a file is closed with no op under way");
                self.spawn(async move {
                    // Everything that matters has been flushed; what close says changes nothing.
                    let _ = closing.close().await;
                    Completion::Event(Event::FileClosed { file })
                });
            }
            Op::Read { file, at, len, tag } => {
                assert_blocks("read", at, len);
                let opened = self.opened(file);
                self.spawn(async move {
                    let result = opened.read_at_aligned(at, len).await;
                    let result = result.map_err(|e| glommio_fault("read", &e)).map(|read| {
                        let mut buf = Buffer::for_filling(len);
                        buf.extend(&read);
                        buf
                    });
                    Completion::Event(Event::Read { file, tag, result })
                });
            }
            Op::Write { file, at, data, tag } => {
                assert_blocks("write", at, data.len());
                let opened = self.opened(file);
                let mut copy = opened.alloc_dma_buffer(data.len());
                copy.as_bytes_mut().copy_from_slice(&data);
                self.spawn(async move {
                    let result = opened.write_at(copy, at).await.map_err(|e| glommio_fault("write", &e));
                    drop(data);
                    Completion::Event(Event::Written { file, tag, result })
                });
            }
            Op::Zero { file, at, len, tag } => {
                assert_blocks("fill", at, len);
                let opened = self.opened(file);
                let zero_fill = Rc::clone(&self.zero_fill);
                self.spawn(async move {
                    let result = zero(&opened, at, len, &zero_fill).await;
                    Completion::Event(Event::Written { file, tag, result })
                });
            }
            Op::Flush { file, tag } => {
                let opened = self.opened(file);
                let flush = self.setup.flushes.device.submitting(usize::from(self.setup.shard.0));
                self.spawn(async move {
                    let result = opened.fdatasync().await.map_err(|e| glommio_fault("flush", &e));
                    Completion::Flushed { file, tag, flush, result }
                });
            }
            Op::Remove { path, tag } => {
                let flushes = self.setup.flushes.clone();
                let shard = usize::from(self.setup.shard.0);
                self.spawn(async move {
                    let result = counted(&flushes, shard, move || remove(&path)).await;
                    Completion::Event(Event::Removed { tag, result })
                });
            }
            Op::FreeSpace { path, tag } => {
                self.spawn(async move {
                    let look =
                        move || free_space(&path).map_err(|e| Fault::io("look for free space in", &path, &e));
                    let result = glommio::executor().spawn_blocking(look).await;
                    Completion::Event(Event::FreeSpace { tag, result })
                });
            }
            other => unreachable!("{other:?} is no op on a file"),
        }
    }

    fn opened(&self, file: File) -> Rc<DmaFile> {
        self.files.get(&file).map_or_else(|| not_open(file), Rc::clone)
    }

    /// Runs the task up to its first wait at once, so that its request lies ready for the kernel.
    fn spawn(&self, task: impl Future<Output = Completion> + 'static) {
        let (done, count) = (Rc::clone(&self.done), Rc::clone(&self.file_tasks));
        count.set(count.get() + 1);
        glommio::spawn_local(async move {
            let completion = task.await;
            count.set(count.get() - 1);
            done.borrow_mut().push(completion);
        })
        .detach();
    }
}

/// As [`doubts::counted`], away from the shard's thread.
async fn counted(
    flushes: &Flushes,
    shard: usize,
    work: impl FnOnce() -> Result<(), FileFault> + Send + 'static,
) -> Result<(), Fault> {
    let flushes = flushes.clone();
    glommio::executor().spawn_blocking(move || doubts::counted(&flushes, shard, work)).await
}

/// Devices of which glommio has found out whether polled reads work.
pub(super) type Probed = Rc<RefCell<HashSet<u64>>>;

async fn open(path: PathBuf, how: OpenHow, probed: Probed) -> Result<DmaFile, Fault> {
    let name = path.clone();
    let device = glommio::executor().spawn_blocking(move || look(&name)).await?;
    if !probed.borrow().contains(&device) {
        let dir = parent(&path).to_owned();
        // Where there are no nameless files, the file itself is the probe.
        if let Ok(block) = glommio::executor().spawn_blocking(move || nameless_block(&dir)).await
            && let Ok(probe) = DmaFile::open(format!("/proc/self/fd/{}", block.as_raw_fd())).await
        {
            let _ = probe.close().await;
        }
        probed.borrow_mut().insert(device);
    }
    let opened = OpenOptions::new().read(true).write(true).dma_open(&path).await;
    if opened.is_err() && matches!(how, OpenHow::New { .. }) {
        let name = path.clone();
        let _ = glommio::executor().spawn_blocking(move || remove(&name)).await;
    }
    opened.map_err(|e| glommio_fault(&format!("open {}", path.display()), &e))
}

/// By the drive, unless it has said that it cannot; else by writing.
async fn zero(file: &Rc<DmaFile>, at: u64, len: usize, how: &Cell<ZeroFill>) -> Result<usize, Fault> {
    if how.get() == ZeroFill::ByDrive {
        // The file cannot be closed meanwhile: it has this op under way.
        let fd = file.as_raw_fd();
        let by_drive = glommio::executor().spawn_blocking(move || zero_by_drive(fd, at, len as u64)).await;
        match by_drive {
            Ok(true) => return Ok(len),
            Ok(false) => how.set(ZeroFill::Written),
            Err(e) => return Err(Fault::of("fill with zeros", &e)),
        }
    }
    let mut zeros = file.alloc_dma_buffer(len);
    zeros.as_bytes_mut().fill(0);
    file.write_at(zeros, at).await.map_err(|e| glommio_fault("fill with zeros", &e))
}

fn glommio_fault(what: &str, error: &GlommioError<()>) -> Fault {
    match error.raw_os_error() {
        Some(errno) => Fault::new(what, errno),
        None => Fault::new(format!("{what}: {error}"), 0),
    }
}

fn not_open<T>(file: File) -> T {
    panic!("{file:?} is not open")
}
