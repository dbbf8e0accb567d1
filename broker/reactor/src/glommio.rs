//! The first reactor: a glommio executor a shard, with the turn as its one long task.
//!
//! Read in this order: [`run`]; the loop in `Shard::poll`; `io.rs`, which drives sockets by readiness from within that task,
//! and where each file op is a small task of its own that leaves its result in `Done`.
//!
//! Known of glommio 0.9 and respected here:
//! - It looks for work from the kernel only when no task is ready, so the loop never wakes itself: with events left it asks for a
//!   timer that is due at once, and glommio hands submissions to the kernel before that fires.
//! - It finds out once per device whether polled reads work, by reading a block of the first file opened there. A block that
//!   needs no drive, because the file is empty or not initialised, is taken for a yes, and later reads fail with
//!   EOPNOTSUPP. So the first file opened on a device is one made for that, with an initialised block.
//! - Its memory for direct I/O is its own: a write is copied into it, a read out of it.
//! - Its loop takes "no task queue may run, the preempt timer has fired" for "nothing is ready" and goes to sleep with a ready task,
//!   if the thread loses its core for longer than that timer right there. In the first round that sleep is for ever: nobody has
//!   a waker yet. With a timer of a millisecond one start in some dozens on a busy machine hung so. So the timer is long
//!   (`PREEMPT_AFTER`), and a `Pulse` wakes each executor ten times a second.

mod io;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use glommio::io::DmaFile;
use glommio::net::TcpStream;
use glommio::timer::Timer;
use glommio::{GlommioError, LocalExecutorBuilder, Placement, ReactorErrorKind};

use crate::clock::{Clock, Timers};
use crate::device::FlushTicket;
use crate::doubts::Doubts;
use crate::mailbox::{Bell, Delivery, Order, Parcel};
use crate::op::{Event, Fault, File, Loop, Now, Op, ShardIndex, Tag, Turn};
use crate::probe::ZeroFill;
use crate::setup::{Setup, Trouble};
use io::Sockets;

/// Turns in a row before the kernel is asked for completions, while the turns' ops complete at once.
const TURNS_MAX: usize = 4;

/// Soon enough to fire in the executor's next round, late enough to be registered at all.
const AT_ONCE: Duration = Duration::from_nanos(500);

/// glommio's preempt timer: longer than a thread is ever kept from its core. It would make the executor ask the kernel for
/// completions although tasks are still ready; ours do not make each other ready without the kernel.
const PREEMPT_AFTER: Duration = Duration::from_secs(10);

/// Between two strokes of a [`Pulse`].
const PULSE: Duration = Duration::from_millis(100);

/// Runs the shard's loop on this thread until a turn says [`Loop::Stop`].
///
/// # Errors
/// If the executor cannot be made: no io_uring, too little locked memory, no descriptors left. Nothing has been run then.
pub fn run(setup: Setup, turn: &mut dyn Turn) -> Result<(), Fault> {
    let name = format!("shard-{}", setup.shard.0);
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .name(&name)
        .io_memory(setup.io_memory_bytes)
        .preempt_timer(PREEMPT_AFTER)
        .make()
        .map_err(|e| executor_fault(&e))?;
    let _pulse = Pulse::start(&name, Arc::clone(setup.post.door().bell()))?;
    executor.run(async {
        let mut shard = Shard::new(setup);
        poll_fn(|cx| shard.poll(cx, turn)).await;
        shard.setup.post.door().bell().set_waker(None);
        // An executor that ends before its file tasks would leave its helper thread without anybody to answer to.
        poll_fn(|_| if shard.file_tasks.get() == 0 { Poll::Ready(()) } else { Poll::Pending }).await;
        // Unseen, but a flush counts even so.
        let done = std::mem::take(&mut shard.done.borrow_mut().all);
        done.into_iter().for_each(|completion| shard.complete(completion));
        shard.doubts.end(&shard.setup.flushes);
    });
    Ok(())
}

/// A thread that rings a shard's bell at a steady rate, whatever the bell thinks. Ends when dropped.
struct Pulse {
    beating: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    fn start(shard: &str, bell: Arc<Bell>) -> Result<Pulse, Fault> {
        let beating = Arc::new(AtomicBool::new(true));
        let beats = Arc::clone(&beating);
        let beat = move || {
            while beats.load(Ordering::SeqCst) {
                std::thread::park_timeout(PULSE);
                bell.ring_again();
            }
        };
        let thread = std::thread::Builder::new().name(format!("{shard}-pulse")).spawn(beat);
        let fault = |e: std::io::Error| Fault::new("start a thread", e.raw_os_error().unwrap_or(0));
        Ok(Pulse { beating, thread: Some(thread.map_err(fault)?) })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beating.store(false, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn executor_fault(error: &GlommioError<()>) -> Fault {
    match error {
        GlommioError::ReactorError(ReactorErrorKind::MemLockLimit(now, needed)) => Fault::new(
            format!(
                "start a reactor: {now} bytes may be locked in memory (RLIMIT_MEMLOCK), {needed} are needed"
            ),
            nix::libc::ENOMEM,
        ),
        other => match other.raw_os_error() {
            Some(errno) => Fault::new("start a reactor (io_uring)", errno),
            None => Fault::new(format!("start a reactor: {other}"), 0),
        },
    }
}

/// One shard's reactor; lives in the executor's main task.
struct Shard {
    setup: Setup,
    sockets: Sockets,
    files: HashMap<File, Rc<DmaFile>>,
    probed: io::Probed,
    /// As far as this shard has found out.
    zero_fill: Rc<Cell<ZeroFill>>,
    done: Rc<RefCell<Done>>,
    /// File tasks that have not left their result yet.
    file_tasks: Rc<Cell<usize>>,
    listening: Option<io::Listening>,
    doubts: Doubts,
    timers: Timers,
    /// Wakes the task for the earliest timer, or at once while events are left.
    alarm: Option<(u64, Timer)>,
    clock: Clock,
    events: Vec<Event>,
    ops: Vec<Op>,
    first: bool,
}

/// What file tasks and the accepting task leave for the loop.
#[derive(Default)]
struct Done {
    all: Vec<Completion>,
    waker: Option<Waker>,
}

enum Completion {
    Event(Event),
    Opened { file: File, result: Result<DmaFile, Fault> },
    Flushed { file: File, tag: Tag, flush: FlushTicket, result: Result<(), Fault> },
    Accepted(TcpStream),
    Trouble(Trouble),
}

impl Done {
    fn push(&mut self, completion: Completion) {
        self.all.push(completion);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Shard {
    fn new(setup: Setup) -> Shard {
        Shard {
            setup,
            sockets: Sockets::new(),
            files: HashMap::new(),
            probed: io::Probed::default(),
            zero_fill: Rc::new(Cell::new(ZeroFill::ByDrive)),
            done: Rc::default(),
            file_tasks: Rc::default(),
            listening: None,
            doubts: Doubts::default(),
            timers: Timers::default(),
            alarm: None,
            clock: Clock::start(),
            events: Vec::new(),
            ops: Vec::new(),
            first: true,
        }
    }

    /// One round of the loop: completions -> turn -> ops, as often as that makes events at once, up to a bound.
    fn poll(&mut self, cx: &mut Context<'_>, turn: &mut dyn Turn) -> Poll<()> {
        for _ in 0..TURNS_MAX {
            let now = self.clock.now();
            if std::mem::take(&mut self.first) {
                // What has come already comes with the second turn.
                self.set_wakers(cx.waker());
            } else {
                self.collect(now);
                if self.events.is_empty() {
                    return self.wait(cx, now);
                }
            }
            let goes_on = turn.turn(now, &mut self.events, &mut self.ops);
            debug_assert!(self.events.is_empty(), "a turn takes all events");
            let file_ops = self.submit();
            self.setup.post.dispatch();
            if goes_on == Loop::Stop {
                return Poll::Ready(());
            }
            if file_ops {
                // They reach the kernel only after this task has given way.
                break;
            }
        }
        self.wait_at_once(cx)
    }

    fn set_wakers(&mut self, waker: &Waker) {
        self.setup.post.door().bell().set_waker(Some(waker.clone()));
        self.sockets.set_waker(waker.clone());
        self.done.borrow_mut().waker = Some(waker.clone());
    }

    fn collect(&mut self, now: Now) {
        self.collect_post();
        let done = std::mem::take(&mut self.done.borrow_mut().all);
        done.into_iter().for_each(|completion| self.complete(completion));
        self.doubts.settle(&self.setup.flushes, &mut self.events);
        self.sockets.collect(&mut self.events);
        self.timers.collect(now, &mut self.events);
    }

    fn collect_post(&mut self) {
        let mut deliveries = Vec::new();
        self.setup.post.collect(|delivery| deliveries.push(delivery));
        for delivery in deliveries {
            match delivery {
                Delivery::Parcel { from, parcel: Parcel::Mail(letter) } => {
                    self.events.push(Event::Mail { from, letter });
                }
                Delivery::Parcel { parcel: Parcel::Socket(fd, letter), .. } => {
                    #[expect(
                        unsafe_code,
                        reason = "glommio takes a socket from outside only as a raw descriptor"
                    )]
                    // SAFETY: the descriptor was owned by `fd`, which gives it up here; the stream owns it from now on.
                    let stream = unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) };
                    let socket = self.sockets.adopt(stream);
                    self.events.push(Event::Arrived { socket, letter });
                }
                Delivery::Taken { by } => self.events.push(Event::MailTaken { to: by }),
                Delivery::Order(Order::Letter(letter)) => self.events.push(Event::Order { letter }),
                Delivery::Order(Order::Listen(listener)) => {
                    self.listening = Some(io::accept_from(listener, Rc::clone(&self.done)));
                }
                Delivery::Order(Order::StopListening) => self.listening = None,
            }
        }
    }

    fn complete(&mut self, completion: Completion) {
        match completion {
            Completion::Event(event) => self.events.push(event),
            Completion::Accepted(stream) => {
                let socket = self.sockets.adopt(stream);
                self.events.push(Event::Accepted { socket });
            }
            Completion::Trouble(trouble) => (self.setup.report)(Box::new(trouble)),
            Completion::Opened { file, result } => {
                let result = result.map(|opened| {
                    let earlier = self.files.insert(file, Rc::new(opened));
                    assert!(earlier.is_none(), "{file:?} was opened twice");
                });
                self.events.push(Event::Opened { file, result });
            }
            Completion::Flushed { file, tag, flush, result } => {
                self.doubts.flushed(&self.setup.flushes, file, tag, flush, result, &mut self.events);
            }
        }
    }

    /// Returns whether there were ops on files.
    fn submit(&mut self) -> bool {
        let mut file_ops = false;
        let mut ops = std::mem::take(&mut self.ops);
        for op in ops.drain(..) {
            match op {
                Op::Receive { socket, buf } => self.sockets.receive(socket, buf, &mut self.events),
                Op::Send { socket, views, tag } => self.sockets.send(socket, views, tag, &mut self.events),
                Op::Close { socket } => self.sockets.close(socket, &mut self.events),
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
                | Op::FreeSpace { .. } => {
                    file_ops = true;
                    self.submit_file(op);
                }
            }
        }
        self.ops = ops;
        file_ops
    }

    fn hand_over(&mut self, socket: crate::op::Socket, to: ShardIndex, letter: crate::op::Letter) {
        let result = self.sockets.take(socket).and_then(|fd| {
            let put = self.setup.post.put(to, Parcel::Socket(fd, letter));
            put.map_err(|_| Fault::new(format!("hand over to shard {}, which has ended", to.0), 0))
        });
        self.events.push(Event::HandedOver { socket, result });
    }

    /// Nothing has happened: sleep until a waker or the earliest timer calls.
    fn wait(&mut self, cx: &mut Context<'_>, now: Now) -> Poll<()> {
        let Some(at_ns) = self.timers.next_ns() else {
            self.alarm = None;
            return Poll::Pending;
        };
        if self.alarm.as_ref().is_none_or(|(armed, _)| *armed != at_ns) {
            self.alarm = Some((at_ns, Timer::new(Duration::from_nanos(at_ns - now.mono_ns))));
        }
        self.poll_alarm(cx)
    }

    /// There may be more to do, but the kernel comes first.
    fn wait_at_once(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.alarm = Some((0, Timer::new(AT_ONCE)));
        self.poll_alarm(cx)
    }

    /// A timer that is due already cannot be registered, and waking ourselves would keep glommio from the kernel: such a timer
    /// is put off until it can.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut delay = AT_ONCE;
        while let Some((at_ns, timer)) = &mut self.alarm
            && Pin::new(timer).poll(cx).is_ready()
        {
            delay *= 2;
            self.alarm = Some((*at_ns, Timer::new(delay)));
        }
        Poll::Pending
    }
}
