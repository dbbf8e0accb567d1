//! What the contract's common tests cannot bring about: another shard's flush, a process without descriptors, bugs of a shard, the
//! end of a reactor with ops under way, and what a shard costs that has nothing to do. Both reactors, where nothing else is said.
#![expect(clippy::unwrap_used, reason = "all of this file is test code, its helpers too")]

use std::fs::File as OsFile;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::device::FlushTicket;
use tidegate_reactor::mailbox::Order;
use tidegate_reactor::op::{Event, Fault, File, Loop, Now, Op, OpenHow, Socket, Tag, Turn};
use tidegate_reactor::setup::{Flushes, Setup, Trouble, setups};
use tidegate_reactor::{glommio, net, ring};

type Reactor = fn(Setup, &mut dyn Turn) -> Result<(), Fault>;

const REACTORS: [Reactor; 2] = [glommio::run, ring::run];

/// Opens a file, flushes it, tells how that ended.
struct OneFlush {
    path: PathBuf,
    tell: mpsc::Sender<Told>,
}

#[derive(Debug, PartialEq)]
enum Told {
    Opened,
    /// A turn while the flush has not ended: the timer after its submission.
    StillWaiting,
    Flushed(Result<(), Fault>),
}

impl Turn for OneFlush {
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        const FILE: File = File(1);
        if events.is_empty() {
            ops.push(Op::Open { file: FILE, path: self.path.clone(), how: OpenHow::New { bytes: 4096 } });
        }
        for event in events.drain(..) {
            match event {
                Event::Opened { result, .. } => {
                    result.unwrap();
                    self.tell.send(Told::Opened).unwrap();
                }
                Event::Order { .. } => {
                    ops.push(Op::Flush { file: FILE, tag: Tag(1) });
                    // Far longer than a flush takes.
                    ops.push(Op::Timer { at_ns: now.mono_ns + 300_000_000, tag: Tag(2) });
                }
                Event::Timer { .. } => self.tell.send(Told::StillWaiting).unwrap(),
                Event::Flushed { result, .. } => {
                    self.tell.send(Told::Flushed(result)).unwrap();
                    return Loop::Stop;
                }
                other => panic!("{other:?}"),
            }
        }
        Loop::Continue
    }
}

/// Shard 0 flushes for real while shard 1, played here, has a flush under way that ends by `reap`.
fn flush_beside(reactor: Reactor, reap: impl FnOnce(&Flushes, FlushTicket)) -> Result<(), Fault> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut all, doors) = setups(2, 1 << 20, drop);
    let other = all.pop().unwrap();
    let setup = all.pop().unwrap();
    let (tell, told) = mpsc::channel();
    let path = dir.path().join("file");
    let thread = std::thread::spawn(move || reactor(setup, &mut OneFlush { path, tell }).unwrap());
    assert_eq!(told.recv().unwrap(), Told::Opened);
    let under_way = other.flushes.device.submitting(1);
    doors[0].give(Order::Letter(Box::new(())));
    assert_eq!(
        told.recv().unwrap(),
        Told::StillWaiting,
        "a flush is not believed while another is under way"
    );
    reap(&other.flushes, under_way);
    let Told::Flushed(result) = told.recv().unwrap() else { panic!("the flush ends next") };
    thread.join().unwrap();
    result
}

#[test]
fn a_flush_ends_only_after_those_submitted_before_it_and_believes_them() {
    for reactor in REACTORS {
        let result = flush_beside(reactor, |flushes, under_way| {
            drop(flushes.device.reaped_ok(under_way));
            flushes.reaped();
        });
        assert_eq!(result, Ok(()));
    }
}

#[test]
fn a_flush_that_said_ok_fails_if_another_of_its_device_failed() {
    for reactor in REACTORS {
        let result = flush_beside(reactor, |flushes, under_way| {
            flushes.device.reaped_fault(under_way);
            flushes.reaped();
        });
        assert_eq!(result.unwrap_err().errno, nix::libc::EIO);
    }
}

/// Flushes one after the other, while a timer is always due.
struct Impatient {
    path: PathBuf,
    flushes: u32,
}

impl Turn for Impatient {
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        const FILE: File = File(1);
        if events.is_empty() {
            ops.push(Op::Open { file: FILE, path: self.path.clone(), how: OpenHow::New { bytes: 4096 } });
            ops.push(Op::Timer { at_ns: now.mono_ns, tag: Tag(0) });
        }
        for event in events.drain(..) {
            match event {
                Event::Timer { .. } => ops.push(Op::Timer { at_ns: now.mono_ns + 1, tag: Tag(0) }),
                Event::Opened { .. } => ops.push(Op::Flush { file: FILE, tag: Tag(1) }),
                Event::Flushed { .. } if self.flushes == 0 => return Loop::Stop,
                Event::Flushed { .. } => {
                    self.flushes -= 1;
                    ops.push(Op::Flush { file: FILE, tag: Tag(1) });
                }
                other => panic!("{other:?}"),
            }
        }
        Loop::Continue
    }
}

#[test]
fn a_timer_that_is_always_due_does_not_keep_the_drive_waiting() {
    for reactor in REACTORS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (mut all, _doors) = setups(1, 1 << 20, drop);
        let mut turn = Impatient { path: dir.path().join("file"), flushes: 100 };
        let begun = std::time::Instant::now();
        reactor(all.pop().unwrap(), &mut turn).unwrap();
        // At a tenth of a second each, which is how often glommio looks by itself, they would take ten.
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
}

/// Closes what it accepts, tells so, counts turns.
struct Closer {
    turns: u64,
    closed: mpsc::Sender<()>,
}

impl Turn for Closer {
    fn turn(&mut self, _: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        self.turns += 1;
        let mut goes_on = Loop::Continue;
        for event in events.drain(..) {
            match event {
                Event::Accepted { socket } => ops.push(Op::Close { socket }),
                Event::Closed { .. } => self.closed.send(()).unwrap(),
                Event::Order { .. } => goes_on = Loop::Stop,
                other => panic!("{other:?}"),
            }
        }
        goes_on
    }
}

#[test]
fn without_descriptors_clients_wait_are_served_later_and_nothing_spins() {
    const CHILD: &str = "TIDEGATE_TEST_WITHOUT_DESCRIPTORS";
    if let Ok(number) = std::env::var(CHILD) {
        return starve_and_recover(REACTORS[number.parse::<usize>().unwrap()]);
    }
    // The limit is the process's: a process of its own.
    let name = "without_descriptors_clients_wait_are_served_later_and_nothing_spins";
    for number in 0..REACTORS.len() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.arg(name).env(CHILD, number.to_string()).output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    }
}

fn starve_and_recover(reactor: Reactor) {
    const OPEN_MAX: u64 = 128;
    // Before anything is accepted: the kernel asks for the limit once for a whole series of connections.
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_MAX, OPEN_MAX).unwrap();
    let (report, reported) = mpsc::channel();
    let (mut all, doors) = setups(1, 1 << 20, move |letter| report.send(letter).unwrap());
    let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let setup = all.pop().unwrap();
    let (tell, closed) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut turn = Closer { turns: 0, closed: tell };
        reactor(setup, &mut turn).unwrap();
        turn
    });
    doors[0].give(Order::Listen(listener));
    let mut early = TcpStream::connect(addr).unwrap();
    assert_eq!(early.read(&mut [0]).unwrap(), 0, "served while there are descriptors");
    // Its descriptor is free again.
    closed.recv().unwrap();
    drop(early);
    let mut hoard: Vec<OsFile> = std::iter::from_fn(|| OsFile::open("/dev/null").ok()).collect();
    // One for the client's side; the server's side finds none.
    hoard.pop();
    let mut starved = TcpStream::connect(addr).unwrap();
    starved.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let before = spent_us(UsageWho::RUSAGE_SELF);
    assert!(starved.read(&mut [0]).is_err(), "it cannot be served now");
    assert!(spent_us(UsageWho::RUSAGE_SELF) - before < 200_000, "accepting spins");

    drop(hoard);
    starved.set_read_timeout(None).unwrap();
    assert_eq!(starved.read(&mut [0]).unwrap(), 0, "served once there are descriptors again");
    doors[0].give(Order::Letter(Box::new(())));
    closed.recv().unwrap();
    let turn = thread.join().unwrap();
    assert!(turn.turns < 50, "{} turns", turn.turns);
    let trouble = reported.recv().unwrap();
    assert!(trouble.downcast_ref::<Trouble>().unwrap().0.contains("Too many open files"), "it is told");
    assert!(reported.try_recv().is_err(), "once");
}

/// Microseconds of a core, in user and system.
fn spent_us(who: UsageWho) -> i64 {
    let usage = getrusage(who).unwrap();
    let time = usage.user_time() + usage.system_time();
    time.tv_sec() * 1_000_000 + time.tv_usec()
}

/// Receives on each connection and never gets anything; tells what its thread has spent between two orders.
struct Idle {
    accepted: mpsc::Sender<()>,
    spent_us: Vec<i64>,
    turns: u64,
}

impl Turn for Idle {
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        self.turns += 1;
        if events.is_empty() {
            // Far away: it is to wait for it, not to look for it.
            ops.push(Op::Timer { at_ns: now.mono_ns + 3_600_000_000_000, tag: Tag(0) });
        }
        for event in events.drain(..) {
            match event {
                Event::Accepted { socket } => {
                    ops.push(Op::Receive { socket, buf: Buffer::zeroed(1) });
                    self.accepted.send(()).unwrap();
                }
                Event::Order { .. } => self.spent_us.push(spent_us(UsageWho::RUSAGE_THREAD)),
                other => panic!("{other:?}"),
            }
        }
        if self.spent_us.len() < 2 { Loop::Continue } else { Loop::Stop }
    }
}

#[test]
fn a_shard_with_nothing_to_do_sleeps_and_an_order_wakes_it() {
    for reactor in REACTORS {
        let (mut all, doors) = setups(1, 1 << 20, drop);
        let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        doors[0].give(Order::Listen(listener));
        let setup = all.pop().unwrap();
        let (tell, accepted) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut turn = Idle { accepted: tell, spent_us: Vec::new(), turns: 0 };
            reactor(setup, &mut turn).unwrap();
            turn
        });
        let _clients: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(addr).unwrap()).collect();
        (0..20).for_each(|_| accepted.recv().unwrap());
        doors[0].give(Order::Letter(Box::new(())));
        std::thread::sleep(Duration::from_millis(600));
        doors[0].give(Order::Letter(Box::new(())));
        let turn = thread.join().unwrap();
        let spent = turn.spent_us[1] - turn.spent_us[0];
        assert!(spent < 60_000, "{spent} microseconds of 600,000");
        assert!(turn.turns < 40, "{} turns", turn.turns);
    }
}

/// With a receive, a send that nobody takes, writes, a read and a flush under way it stops, or has a bug.
struct Abrupt {
    path: PathBuf,
    end: End,
    is_open: bool,
    socket: Option<Socket>,
    /// Told once there are a file and a connection.
    ready: mpsc::Sender<()>,
}

#[derive(Clone, Copy)]
enum End {
    Stop,
    SecondReceive,
}

impl Abrupt {
    const FILE: File = File(1);
    const BYTES: usize = 1 << 20;

    fn put_all_under_way(&self, ops: &mut Vec<Op>) {
        let (file, len) = (Abrupt::FILE, Abrupt::BYTES);
        let socket = self.socket.unwrap();
        let data = View::copy_of(&vec![7; len]);
        ops.push(Op::Receive { socket, buf: Buffer::zeroed(len) });
        ops.push(Op::Send { socket, views: vec![data.clone(); 64], tag: Tag(1) });
        let write = |n: usize| Op::Write { file, at: (n * len) as u64, data: data.clone(), tag: Tag(2) };
        ops.extend((0..8).map(write));
        ops.push(Op::Read { file, at: 0, len, tag: Tag(3) });
        ops.push(Op::Flush { file, tag: Tag(4) });
        if let End::SecondReceive = self.end {
            ops.push(Op::Receive { socket, buf: Buffer::zeroed(1) });
        }
    }
}

impl Turn for Abrupt {
    fn turn(&mut self, _: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        if events.is_empty() {
            let how = OpenHow::New { bytes: 8 * Abrupt::BYTES as u64 };
            ops.push(Op::Open { file: Abrupt::FILE, path: self.path.clone(), how });
        }
        for event in events.drain(..) {
            match event {
                Event::Opened { result, .. } => {
                    result.unwrap();
                    self.is_open = true;
                }
                Event::Accepted { socket } => self.socket = Some(socket),
                Event::Order { .. } => {
                    self.put_all_under_way(ops);
                    return Loop::Stop;
                }
                other => panic!("{other:?}"),
            }
        }
        if self.is_open && self.socket.is_some() {
            self.ready.send(()).unwrap();
        }
        Loop::Continue
    }
}

/// Returns how the reactor's thread ended.
fn end_abruptly(end: End) -> std::thread::Result<()> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut all, doors) = setups(1, 1 << 20, drop);
    let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    doors[0].give(Order::Listen(listener));
    let (setup, path) = (all.pop().unwrap(), dir.path().join("file"));
    let flushes = setup.flushes.clone();
    let (ready, is_ready) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        ring::run(setup, &mut Abrupt { path, end, is_open: false, socket: None, ready }).unwrap();
    });
    let mut client = TcpStream::connect(addr).unwrap();
    client.write_all(&[7; 100]).unwrap();
    is_ready.recv().unwrap();
    doors[0].give(Order::Letter(Box::new(())));
    let ended = thread.join();
    // Nothing of it is left: the connection is closed, and no flush keeps others in doubt.
    let _ = client.read_to_end(&mut Vec::new());
    if ended.is_ok() {
        let doubt = flushes.device.reaped_ok(flushes.device.submitting(0));
        assert_eq!(flushes.device.verdict(&doubt), Some(true));
    }
    ended
}

#[test]
fn a_ring_that_stops_with_ops_under_way_waits_for_the_kernel() {
    end_abruptly(End::Stop).unwrap();
}

#[test]
fn a_second_receive_is_a_bug_that_ends_the_ring_with_all_else_under_way() {
    let panic = end_abruptly(End::SecondReceive).unwrap_err();
    let text = panic.downcast_ref::<String>().expect("a panic with a text");
    assert!(text.contains("a second receive"), "{text}");
}
