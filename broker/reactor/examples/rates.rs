//! What the seam costs on this machine: acks over loopback, and writes with flushes, through each reactor and without one.
//!
//! `cargo run --release -p tidegate-reactor --example rates -- [DIRECTORY]` (a minute and a half; the directory is for a file of
//! 32 MiB). Client and server share the machine's cores, and other work on it hits all sides, which take turns: read the ratios.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example prints, and ends where something fails"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::disk::{Disk, StdDisk};
use tidegate_reactor::mailbox::Order;
use tidegate_reactor::op::{Event, Fault, File, Loop, Now, Op, OpenHow, Tag, Turn};
use tidegate_reactor::setup::{Setup, setups};
use tidegate_reactor::{glommio, net, ring};

const ACK: usize = 16;
/// Of one side; sides alternate.
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: usize = 15;

type Reactor = fn(Setup, &mut dyn Turn) -> Result<(), Fault>;

fn main() {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    println!(
        "Medians of {ROUNDS} rounds of {} ms; ratios are medians of the rounds' ratios.\n",
        ROUND.as_millis()
    );
    println!(
        "| connections | frame bytes | in flight | glommio, frames/s | ring, frames/s | ratio | glommio, µs of CPU a frame | ring | ratio |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for load in [(4, 64 << 10, 8), (32, 1 << 10, 64), (64, 200, 1)] {
        let pairs: Vec<[Acks; 2]> =
            (0..ROUNDS).map(|_| [acks(glommio::run, load), acks(ring::run, load)]).collect();
        let of = |side: usize, figure: fn(&Acks) -> f64| median(pairs.iter().map(|pair| figure(&pair[side])));
        let (a, b) = (of(0, |x| x.rate), of(1, |x| x.rate));
        let (cpu_a, cpu_b) = (of(0, |x| x.cpu_us), of(1, |x| x.cpu_us));
        let (connections, frame, window) = load;
        println!(
            "| {connections} | {frame} | {window} | {a:.0} | {b:.0} | {:.2} | {cpu_a:.2} | {cpu_b:.2} | {:.2} |",
            median(pairs.iter().map(|[a, b]| b.rate / a.rate)),
            median(pairs.iter().map(|[a, b]| b.cpu_us / a.cpu_us))
        );
    }
    println!("\n| write and flush | blocking, rounds/s | glommio | ring | ring / glommio |");
    println!("|---|---|---|---|---|");
    for (name, bytes) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
        let rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| {
                let with = |reactor| write_loop(reactor, &dir, bytes, 1, true);
                [flushes_blocking(&dir, bytes), with(glommio::run), with(ring::run)]
            })
            .collect();
        let [plain, a, b] = [0, 1, 2].map(|side| median(rounds.iter().map(|round| round[side])));
        let ratio = median(rounds.iter().map(|[_, a, b]| b / a));
        println!("| {name} | {plain:.0} | {a:.0} | {b:.0} | {ratio:.2} |");
    }
    println!("\n| 128 KiB writes, depth | glommio, MiB/s | ring, MiB/s | ratio |");
    println!("|---|---|---|---|");
    for depth in [1, 4, 8] {
        let rounds: Vec<[f64; 2]> = (0..ROUNDS)
            .map(|_| {
                [glommio::run as Reactor, ring::run]
                    .map(|r| write_loop(r, &dir, 128 << 10, depth, false) / 8.0)
            })
            .collect();
        let [a, b] = [0, 1].map(|side| median(rounds.iter().map(|round| round[side])));
        let ratio = median(rounds.iter().map(|[a, b]| b / a));
        println!("| {depth} | {a:.0} | {b:.0} | {ratio:.2} |");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Answers each whole frame with an ack, all acks of a receive in one send.
struct AckServer {
    frame: usize,
    acks: View,
    /// By socket slot: bytes of the frame that is not whole yet.
    partial: std::collections::HashMap<u64, usize>,
}

impl Turn for AckServer {
    fn turn(&mut self, _: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        let mut goes_on = Loop::Continue;
        for event in events.drain(..) {
            match event {
                Event::Accepted { socket } => {
                    ops.push(Op::Receive { socket, buf: Buffer::for_filling(256 << 10) })
                }
                Event::Received { socket, mut buf, result: Ok(count) } if count > 0 => {
                    let partial = self.partial.entry(socket.0).or_default();
                    let (whole, rest) = ((*partial + count) / self.frame, (*partial + count) % self.frame);
                    *partial = rest;
                    if whole > 0 {
                        let views = vec![self.acks.slice(0..whole * ACK)];
                        ops.push(Op::Send { socket, views, tag: Tag(0) });
                    }
                    buf.set_filled(0);
                    ops.push(Op::Receive { socket, buf });
                }
                Event::Received { socket, .. } => ops.push(Op::Close { socket }),
                Event::Order { .. } => goes_on = Loop::Stop,
                _ => {}
            }
        }
        goes_on
    }
}

struct Acks {
    /// Frames a second.
    rate: f64,
    /// Of the server's thread, user and system, a frame.
    cpu_us: f64,
}

fn acks(reactor: Reactor, (connections, frame, window): (usize, usize, usize)) -> Acks {
    let (mut all, doors) = setups(1, 1 << 20, drop);
    let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    doors[0].give(Order::Listen(listener));
    let setup = all.remove(0);
    let server = std::thread::spawn(move || {
        let acks = Buffer::zeroed(ACK * (256 << 10) / 64).freeze();
        let acks = {
            let mut b = acks.into_buffer().unwrap();
            b.set_filled(b.capacity());
            b.freeze()
        };
        let mut turn = AckServer { frame, acks, partial: Default::default() };
        reactor(setup, &mut turn).unwrap();
        let used = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        let us = |time: TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
        us(used.user_time()) + us(used.system_time())
    });
    let count = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + ROUND;
    let clients: Vec<_> = (0..connections)
        .map(|_| {
            let count = Arc::clone(&count);
            std::thread::spawn(move || client(addr, frame, window, end, &count))
        })
        .collect();
    clients.into_iter().for_each(|c| c.join().unwrap());
    doors[0].give(Order::Letter(Box::new(())));
    let cpu_us = server.join().unwrap();
    let frames = count.load(Ordering::SeqCst) as f64;
    Acks { rate: frames / ROUND.as_secs_f64(), cpu_us: cpu_us / frames }
}

/// Keeps a window of frames under way.
fn client(addr: SocketAddr, frame: usize, window: usize, end: Instant, count: &AtomicU64) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    let bytes = vec![7; frame * window];
    let mut acks = vec![0; ACK * window];
    let (mut to_send, mut done) = (window, 0);
    let mut part = 0;
    while Instant::now() < end {
        stream.write_all(&bytes[..frame * to_send]).unwrap();
        let got = part + stream.read(&mut acks).unwrap();
        (to_send, part) = (got / ACK, got % ACK);
        done += to_send as u64;
    }
    count.fetch_add(done, Ordering::SeqCst);
}

const FILE: File = File(1);
const FILE_BYTES: u64 = 32 << 20;
const FILL_BYTES: usize = 1 << 20;

/// Zero-fills a file, then runs rounds of `depth` writes, with or without a flush after each.
struct Writer {
    path: PathBuf,
    bytes: usize,
    depth: usize,
    flushes: bool,
    data: Option<View>,
    filled: u64,
    at: u64,
    rounds: u64,
    under_way: usize,
    begun: Option<Instant>,
}

impl Writer {
    fn fill(&mut self, ops: &mut Vec<Op>) {
        ops.push(Op::Zero { file: FILE, at: self.filled, len: FILL_BYTES, tag: Tag(0) });
    }

    fn write(&mut self, ops: &mut Vec<Op>) {
        let data = self.data.clone().unwrap();
        ops.push(Op::Write { file: FILE, at: self.at, data, tag: Tag(0) });
        self.at = (self.at + self.bytes as u64) % FILE_BYTES;
        self.under_way += 1;
    }
}

impl Turn for Writer {
    fn turn(&mut self, _: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        if events.is_empty() {
            let mut data = Buffer::zeroed(self.bytes);
            data.set_filled(self.bytes);
            self.data = Some(data.freeze());
            ops.push(Op::Open {
                file: FILE,
                path: self.path.clone(),
                how: OpenHow::New { bytes: FILE_BYTES },
            });
        }
        for event in events.drain(..) {
            match event {
                Event::Opened { result, .. } => {
                    result.unwrap();
                    self.fill(ops);
                }
                Event::Written { result, .. } if self.begun.is_none() => {
                    assert_eq!(result.unwrap(), FILL_BYTES);
                    self.filled += FILL_BYTES as u64;
                    if self.filled < FILE_BYTES {
                        self.fill(ops);
                    } else {
                        ops.push(Op::Flush { file: FILE, tag: Tag(0) });
                    }
                }
                Event::Written { result, .. } => {
                    assert_eq!(result.unwrap(), self.bytes);
                    self.under_way -= 1;
                    if self.flushes {
                        ops.push(Op::Flush { file: FILE, tag: Tag(0) });
                    } else if self.begun.is_some_and(|begun| begun.elapsed() < ROUND) {
                        self.rounds += 1;
                        self.write(ops);
                    } else if self.under_way == 0 {
                        return Loop::Stop;
                    }
                }
                Event::Flushed { result, .. } => {
                    result.unwrap();
                    match self.begun {
                        None => {
                            self.begun = Some(Instant::now());
                            (0..self.depth).for_each(|_| self.write(ops));
                        }
                        Some(begun) if begun.elapsed() < ROUND => {
                            self.rounds += 1;
                            self.write(ops);
                        }
                        Some(_) => return Loop::Stop,
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        Loop::Continue
    }
}

fn write_loop(reactor: Reactor, dir: &Path, bytes: usize, depth: usize, flushes: bool) -> f64 {
    let path = dir.join(format!("tidegate-rates-{}", std::process::id()));
    let (mut all, _doors) = setups(1, 16 << 20, drop);
    let setup = all.remove(0);
    let name = path.clone();
    let rounds = std::thread::spawn(move || {
        let mut turn = Writer {
            path: name,
            bytes,
            depth,
            flushes,
            data: None,
            filled: 0,
            at: 0,
            rounds: 0,
            under_way: 0,
            begun: None,
        };
        reactor(setup, &mut turn).unwrap();
        turn.rounds as f64 / turn.begun.unwrap().elapsed().as_secs_f64()
    });
    let rounds = rounds.join().unwrap();
    std::fs::remove_file(path).unwrap();
    rounds
}

fn flushes_blocking(dir: &Path, bytes: usize) -> f64 {
    let path = dir.join(format!("tidegate-rates-{}", std::process::id()));
    let mut disk = StdDisk::new();
    let file = disk.create_zeroed(&path, FILE_BYTES).unwrap();
    let mut data = Buffer::zeroed(bytes);
    data.set_filled(bytes);
    let (begun, mut rounds, mut at) = (Instant::now(), 0, 0);
    while begun.elapsed() < ROUND {
        disk.write(file, at, &data).unwrap();
        disk.flush(file).unwrap();
        at = (at + bytes as u64) % FILE_BYTES;
        rounds += 1;
    }
    let rate = f64::from(rounds) / begun.elapsed().as_secs_f64();
    disk.close(file);
    disk.remove(&path).unwrap();
    rate
}
