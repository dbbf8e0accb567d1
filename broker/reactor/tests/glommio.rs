//! What the contract's common tests cannot bring about: another shard's flush, and a process without descriptors.
#![expect(clippy::unwrap_used, reason = "all of this file is test code, its helpers too")]

use std::fs::File as OsFile;
use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use tidegate_reactor::device::FlushTicket;
use tidegate_reactor::mailbox::Order;
use tidegate_reactor::op::{Event, Fault, File, Loop, Now, Op, OpenHow, Tag, Turn};
use tidegate_reactor::setup::{Flushes, Trouble, setups};
use tidegate_reactor::{glommio, net};

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
fn flush_beside(reap: impl FnOnce(&Flushes, FlushTicket)) -> Result<(), Fault> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut all, doors) = setups(2, 1 << 20, drop);
    let other = all.pop().unwrap();
    let setup = all.pop().unwrap();
    let (tell, told) = mpsc::channel();
    let path = dir.path().join("file");
    let thread = std::thread::spawn(move || glommio::run(setup, &mut OneFlush { path, tell }).unwrap());
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
    let result = flush_beside(|flushes, under_way| {
        drop(flushes.device.reaped_ok(under_way));
        flushes.reaped();
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn a_flush_that_said_ok_fails_if_another_of_its_device_failed() {
    let result = flush_beside(|flushes, under_way| {
        flushes.device.reaped_fault(under_way);
        flushes.reaped();
    });
    assert_eq!(result.unwrap_err().errno, nix::libc::EIO);
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
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut all, _doors) = setups(1, 1 << 20, drop);
    let mut turn = Impatient { path: dir.path().join("file"), flushes: 100 };
    let begun = std::time::Instant::now();
    glommio::run(all.pop().unwrap(), &mut turn).unwrap();
    // At a tenth of a second each, which is how often glommio looks by itself, they would take ten.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
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
    if std::env::var_os(CHILD).is_some() {
        return starve_and_recover();
    }
    // The limit is the process's: a process of its own.
    let name = "without_descriptors_clients_wait_are_served_later_and_nothing_spins";
    let child = Command::new(std::env::current_exe().unwrap()).arg(name).env(CHILD, "1").output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

fn starve_and_recover() {
    use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
    const OPEN_MAX: u64 = 128;
    let (report, reported) = mpsc::channel();
    let (mut all, doors) = setups(1, 1 << 20, move |letter| report.send(letter).unwrap());
    let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let setup = all.pop().unwrap();
    let (tell, closed) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut turn = Closer { turns: 0, closed: tell };
        glommio::run(setup, &mut turn).unwrap();
        turn
    });
    doors[0].give(Order::Listen(listener));
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_MAX, OPEN_MAX).unwrap();
    for _ in 0..2 {
        // The first of them ends an accept that the kernel had begun under the old limit.
        let mut early = TcpStream::connect(addr).unwrap();
        assert_eq!(early.read(&mut [0]).unwrap(), 0, "served while there are descriptors");
        // Its descriptor is free again.
        closed.recv().unwrap();
    }
    let mut hoard: Vec<OsFile> = std::iter::from_fn(|| OsFile::open("/dev/null").ok()).collect();
    // One for the client's side; the server's side finds none.
    hoard.pop();
    let mut starved = TcpStream::connect(addr).unwrap();
    starved.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let before = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    assert!(starved.read(&mut [0]).is_err(), "it cannot be served now");
    let after = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let spent = |u: nix::sys::resource::Usage| (u.user_time() + u.system_time()).num_microseconds_total();
    assert!(spent(after) - spent(before) < 200_000, "the accepting task spins");

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

trait Microseconds {
    fn num_microseconds_total(self) -> i64;
}

impl Microseconds for nix::sys::time::TimeVal {
    fn num_microseconds_total(self) -> i64 {
        self.tv_sec() * 1_000_000 + self.tv_usec()
    }
}
