//! The loop: takes what is due next, gives it to the shard it belongs to, runs the shard's turn, submits its ops.
//!
//! Time passes only between events. Each op ends after a delay drawn from the seed, so completions come in any order; a
//! turn gets one event or a handful. A flush that the drive called successful is believed only by the verdict of
//! [`Device`], and it is reaped late, as on a busy core.

mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidegate_reactor::device::{Device, Doubt, FlushTicket};
use tidegate_reactor::op::{Event, Fault, File, Letter, Loop, Op, OpenHow, ShardIndex, Socket, Tag, Turn};

use super::blocking::Crash;
use super::clock::Clock;
use super::disk::{Data, Inode, Ticket, VirtualDisk};
use super::net::{Link, Network, Peer, PeerEvent};
use super::random::Random;
use super::trace::{Field, Trace};

/// A simulated machine: its drive, network and clock, and the broker that runs on it now, if one does.
pub struct World {
    /// Virtual time.
    pub clock: Clock,
    /// The drive.
    pub disk: VirtualDisk,
    /// The network.
    pub net: Network,
    /// Everything that has happened.
    pub trace: Trace,
    /// What the shards told the control threads, oldest first.
    pub reports: Vec<Letter>,
    /// How long ops take.
    pub pace: Pace,
    random: Random,
    peers: Vec<Box<dyn Peer>>,
    seats: Vec<Seat>,
    device: Device,
    due: BTreeMap<(u64, u64), Due>,
    next: u64,
    turns: u64,
    written: BTreeMap<PathBuf, WrittenTo>,
    pauses: u64,
}

/// What the shards' turns wrote to a file; zeros that were asked for as such do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenTo {
    /// How many writes.
    pub writes: u64,
    /// How often they went back from the second half to the first, as in a ring.
    pub laps: u64,
    last_at: u64,
}

/// How long ops take, in nanoseconds: the shortest and the longest usual time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A read or a write.
    pub transfer_ns: (u64, u64),
    /// A flush.
    pub flush_ns: (u64, u64),
    /// How many ops in a million take twenty times as long.
    pub slow: u32,
    /// How many steps in a million stop the process, or one of its threads, for a while: nothing else waits meanwhile.
    pub pause: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { transfer_ns: (10_000, 200_000), flush_ns: (50_000, 1_000_000), slow: 10_000, pause: 0 }
    }
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something happened.
    Progress,
    /// Nothing is due any more.
    Idle,
    /// Every shard has left its loop.
    Stopped,
}

/// The place of one shard.
struct Seat {
    turn: Box<dyn Turn>,
    files: BTreeMap<File, OpenFile>,
    events: Vec<Event>,
    /// Timers by their time on the monotonic clock: they end in that order.
    timers: BTreeMap<(u64, u64), Tag>,
    /// Successful flushes that are not believed yet.
    doubts: Vec<(Doubt, File, Tag)>,
    /// It has no turn before that time of the run.
    paused_until_ns: u64,
    stopped: bool,
}

struct OpenFile {
    path: PathBuf,
    inode: Inode,
    ops: u32,
}

/// What ends or arrives at a time.
enum Due {
    Opened {
        shard: usize,
        file: File,
        path: PathBuf,
        ticket: Ticket,
    },
    FileClosed {
        shard: usize,
        file: File,
    },
    Read {
        shard: usize,
        file: File,
        at: u64,
        len: usize,
        tag: Tag,
    },
    Written {
        shard: usize,
        file: File,
        ticket: Ticket,
        tag: Tag,
    },
    Timers {
        shard: usize,
    },
    /// The drive has done the flush; the shard's reactor does not know yet.
    FlushDone {
        shard: usize,
        file: File,
        ticket: Ticket,
        flush: FlushTicket,
        tag: Tag,
    },
    FlushReaped {
        shard: usize,
        file: File,
        flush: FlushTicket,
        tag: Tag,
        result: Result<(), Fault>,
    },
    Removed {
        shard: usize,
        ticket: Ticket,
        tag: Tag,
    },
    FreeSpace {
        shard: usize,
        tag: Tag,
    },
    Event {
        shard: usize,
        event: Event,
    },
    Mail {
        from: usize,
        to: usize,
        letter: Letter,
    },
    Arrive {
        link: Link,
        shard: usize,
        from: Option<(usize, Socket)>,
        letter: Option<Letter>,
    },
    Look {
        link: Link,
    },
    /// A pause is over.
    Resumed,
    Peer {
        peer: usize,
        event: PeerEvent,
    },
}

impl World {
    /// A machine with an empty drive on which no broker runs.
    pub fn new(mut random: Random, disk: VirtualDisk, trace: Trace) -> World {
        World {
            clock: Clock::new(),
            disk,
            net: Network::new(random.fork()),
            trace,
            reports: Vec::new(),
            pace: Pace::default(),
            random,
            peers: Vec::new(),
            seats: Vec::new(),
            device: Device::new(0),
            due: BTreeMap::new(),
            next: 0,
            turns: 0,
            written: BTreeMap::new(),
            pauses: 0,
        }
    }

    /// How often the process or one of its threads was stopped for a while.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// What was written to the files whose path contains `part`, all together.
    pub fn written_to(&self, part: &str) -> WrittenTo {
        let mut sum = WrittenTo::default();
        for (_, one) in self.written.iter().filter(|(path, _)| path.to_string_lossy().contains(part)) {
            sum.writes += one.writes;
            sum.laps += one.laps;
        }
        sum
    }

    /// Adds a peer; it acts first at the next step.
    pub fn add_peer(&mut self, peer: Box<dyn Peer>) {
        self.peers.push(peer);
        let peer = self.peers.len() - 1;
        self.at(self.clock.now_ns(), Due::Peer { peer, event: PeerEvent::Wake });
    }

    /// Ends all faults of the network.
    pub fn heal_network(&mut self) {
        for link in self.net.heal() {
            self.soon(Due::Look { link });
        }
    }

    /// How many turns have run.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Starts a broker: gives every shard its first turn, without events.
    pub fn boot(&mut self, turns: Vec<Box<dyn Turn>>) {
        assert!(self.seats.is_empty(), "a broker runs already");
        self.clock.restart();
        self.trace.note(self.clock.now_ns(), "boot", "", &[("shards", turns.len() as u64)]);
        self.device = Device::new(turns.len());
        for turn in turns {
            self.seats.push(Seat {
                turn,
                files: BTreeMap::new(),
                events: Vec::new(),
                timers: BTreeMap::new(),
                doubts: Vec::new(),
                paused_until_ns: 0,
                stopped: false,
            });
        }
        for shard in 0..self.seats.len() {
            self.turn(shard);
        }
    }

    /// Ends the broker at once, with whatever it has under way.
    pub fn crash(&mut self, how: Crash) {
        self.trace.note(self.clock.now_ns(), crash_word(how), "", &[]);
        match how {
            Crash::PowerLoss => self.disk.power_loss(),
            Crash::Kill => self.disk.kill(),
        }
        self.clear();
    }

    /// Clears away a broker whose shards have all left their loops.
    pub fn clear_stopped(&mut self) {
        assert!(self.seats.iter().all(|s| s.stopped), "a shard still runs");
        self.clear();
    }

    /// Tells a shard something as the control threads would.
    pub fn order(&mut self, shard: usize, letter: Letter) {
        self.at(self.clock.now_ns(), Due::Event { shard, event: Event::Order { letter } });
    }

    /// Lets the next thing happen, and a few more that are due about then.
    pub fn step(&mut self) -> Step {
        if !self.seats.is_empty() && self.seats.iter().all(|s| s.stopped) {
            return Step::Stopped;
        }
        let Some(((at, _), due)) = self.due.pop_first() else { return Step::Idle };
        self.clock.advance(at.max(self.clock.now_ns()));
        self.happen(due);
        // A busy core sees several completions at once.
        if self.random.chance(300_000) {
            let until = self.clock.now_ns() + self.random.between(1_000, 200_000);
            while let Some(entry) = self.due.first_entry()
                && entry.key().0 <= until
            {
                let ((at, _), due) = entry.remove_entry();
                self.clock.advance(at.max(self.clock.now_ns()));
                self.happen(due);
            }
        }
        if self.random.chance(self.pace.pause) {
            self.pause();
        }
        for shard in 0..self.seats.len() {
            let seat = &self.seats[shard];
            let is_paused = seat.paused_until_ns > self.clock.now_ns();
            if !seat.events.is_empty() && !seat.stopped && !is_paused {
                self.turn(shard);
            }
        }
        Step::Progress
    }

    /// One thread loses its core for a while, or all do, as by SIGSTOP; drive and network go on.
    fn pause(&mut self) {
        if self.seats.is_empty() {
            return;
        }
        self.pauses += 1;
        let until_ns = self.clock.now_ns() + self.random.pick(&[2_000_000, 100_000_000, 5_000_000_000]);
        let one = self.random.chance(500_000).then(|| self.random.index(self.seats.len()));
        self.note("PAUSE", "", &[("until", until_ns)]);
        for (shard, seat) in self.seats.iter_mut().enumerate() {
            if one.is_none_or(|one| one == shard) {
                seat.paused_until_ns = until_ns;
            }
        }
        self.at(until_ns, Due::Resumed);
    }

    fn clear(&mut self) {
        self.seats.clear();
        let keep = std::mem::take(&mut self.due);
        self.due = keep.into_iter().filter(|(_, due)| matches!(due, Due::Peer { .. })).collect();
        for (peer, link) in self.net.end_all() {
            let at = self.clock.now_ns() + self.net.delay_ns();
            self.at(at, Due::Peer { peer, event: PeerEvent::Gone(link) });
        }
    }

    fn turn(&mut self, shard: usize) {
        self.turns += 1;
        let now = self.clock.now();
        let seat = &mut self.seats[shard];
        let mut events = std::mem::take(&mut seat.events);
        let mut ops = Vec::new();
        let goes_on = seat.turn.turn(now, &mut events, &mut ops);
        assert!(events.is_empty(), "a turn drains its events");
        for op in ops {
            self.submit(shard, op);
        }
        if goes_on == Loop::Stop {
            let open = self.seats[shard].files.values().filter(|f| f.ops > 0).count();
            assert_eq!(open, 0, "shard {shard} stopped with ops under way");
            self.note("stopped", "", &[("shard", shard as u64)]);
            self.seats[shard].stopped = true;
        }
    }

    fn submit(&mut self, shard: usize, op: Op) {
        match op {
            Op::Open { file, path, how } => self.submit_open(shard, file, &path, how),
            Op::CloseFile { file } => {
                let open =
                    self.seats[shard].files.remove(&file).unwrap_or_else(|| panic!("{file:?} is not open"));
                assert_eq!(open.ops, 0, "{file:?} is closed with ops under way");
                self.note("close file", "", &[("file", file.0)]);
                self.soon(Due::FileClosed { shard, file });
            }
            Op::Read { file, at, len, tag } => {
                self.open_file(shard, file).ops += 1;
                self.note("read", "", &[("file", file.0), ("at", at), ("len", len as u64), ("tag", tag.0)]);
                let time = self.transfer_ns();
                self.after(time, Due::Read { shard, file, at, len, tag });
            }
            Op::Write { file, at, data, tag } => {
                self.submit_write(shard, file, at, Data::Bytes(data), tag);
            }
            Op::Zero { file, at, len, tag } => self.submit_write(shard, file, at, Data::Zeros(len), tag),
            Op::Flush { file, tag } => {
                let inode = self.begin_file_op(shard, file);
                self.note("flush", "", &[("file", file.0), ("tag", tag.0)]);
                let flush = self.device.submitting(shard);
                let ticket = self.disk.begin_flush(inode);
                let time = self.draw(self.pace.flush_ns);
                self.after(time, Due::FlushDone { shard, file, ticket, flush, tag });
            }
            Op::Remove { path, tag } => {
                self.note("remove", &path.display().to_string(), &[("tag", tag.0)]);
                let ticket = self.disk.begin_remove(&path);
                let time = self.transfer_ns();
                self.after(time, Due::Removed { shard, ticket, tag });
            }
            Op::FreeSpace { tag, .. } => {
                let time = self.transfer_ns();
                self.after(time, Due::FreeSpace { shard, tag });
            }
            Op::Timer { at_ns, tag } => {
                self.note("timer", "", &[("at", at_ns), ("tag", tag.0)]);
                let late = self.random.between(0, 60_000);
                let at = self.clock.at_mono(at_ns).max(self.clock.now_ns()).saturating_add(late);
                self.seats[shard].timers.insert((at_ns, self.next), tag);
                self.at(at, Due::Timers { shard });
            }
            Op::Mail { to, letter } => {
                self.note("mail", "", &[("from", shard as u64), ("to", to.0.into())]);
                // One queue between two shards: letters keep their order.
                let at = self.clock.now_ns() + 2_000;
                self.at(at, Due::Mail { from: shard, to: to.0.into(), letter });
            }
            Op::Report { letter } => {
                self.note("report", "", &[("shard", shard as u64)]);
                self.reports.push(letter);
            }
            Op::Receive { .. } | Op::Send { .. } | Op::Close { .. } | Op::HandOver { .. } => {
                self.submit_socket(shard, op);
            }
        }
    }

    fn submit_open(&mut self, shard: usize, file: File, path: &std::path::Path, how: OpenHow) {
        assert!(!self.seats[shard].files.contains_key(&file), "{file:?} is open already");
        let bytes = match how {
            OpenHow::Existing => 0,
            OpenHow::New { bytes } => bytes,
        };
        self.note("open", &path.display().to_string(), &[("file", file.0), ("new", bytes)]);
        let ticket = self.disk.begin_open(path, how);
        let time = self.transfer_ns();
        self.after(time, Due::Opened { shard, file, path: path.to_path_buf(), ticket });
    }

    fn submit_write(&mut self, shard: usize, file: File, at: u64, data: Data, tag: Tag) {
        let inode = self.begin_file_op(shard, file);
        let crc = match &data {
            Data::Bytes(view) => u64::from(crc32c::crc32c(view)),
            Data::Zeros(_) => 0,
        };
        let len = data.len() as u64;
        self.note("write", "", &[("file", file.0), ("at", at), ("len", len), ("tag", tag.0), ("crc", crc)]);
        if matches!(data, Data::Bytes(_)) {
            let path = self.seats[shard].files[&file].path.clone();
            let half = self.disk.len(inode) / 2;
            let to = self.written.entry(path).or_default();
            to.writes += 1;
            to.laps += u64::from(to.last_at >= half && at < half);
            to.last_at = at;
        }
        let ticket = self.disk.begin_write(inode, at, data);
        let time = self.transfer_ns();
        self.after(time, Due::Written { shard, file, ticket, tag });
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Peer { peer, event } => self.peer_acts(peer, event),
            Due::Look { link } => self.look(link),
            Due::Resumed => {}
            Due::Arrive { link, shard, from, letter } => self.arrive(link, shard, from, letter),
            Due::Mail { from, to, letter } => {
                self.post(to, Event::Mail { from: ShardIndex(from as u16), letter });
                let event = Event::MailTaken { to: ShardIndex(to as u16) };
                self.soon(Due::Event { shard: from, event });
            }
            Due::Event { shard, event } => self.post(shard, event),
            Due::FreeSpace { shard, tag } => {
                let result = Ok(self.disk.free_space());
                self.post(shard, Event::FreeSpace { tag, result });
            }
            Due::Timers { shard } => {
                let now = self.clock.now().mono_ns;
                while let Some(entry) = self.seats[shard].timers.first_entry()
                    && entry.key().0 <= now
                {
                    let tag = entry.remove();
                    self.post(shard, Event::Timer { tag });
                }
            }
            Due::FlushDone { shard, file, ticket, flush, tag } => {
                let result = self.disk.end_flush(ticket);
                let late = if self.random.chance(100_000) { self.draw(self.pace.flush_ns) } else { 500 };
                self.after(late, Due::FlushReaped { shard, file, flush, tag, result });
            }
            Due::FlushReaped { shard, file, flush, tag, result } => {
                self.reap_flush(shard, file, flush, tag, result);
            }
            Due::Opened { .. }
            | Due::FileClosed { .. }
            | Due::Read { .. }
            | Due::Written { .. }
            | Due::Removed { .. } => {
                self.end_file_op(due);
            }
        }
    }

    fn end_file_op(&mut self, due: Due) {
        match due {
            Due::Opened { shard, file, path, ticket } => {
                let result = self.disk.end_open(ticket);
                if let Ok(inode) = &result {
                    self.seats[shard].files.insert(file, OpenFile { path, inode: *inode, ops: 0 });
                }
                self.post(shard, Event::Opened { file, result: result.map(drop) });
            }
            Due::FileClosed { shard, file } => self.post(shard, Event::FileClosed { file }),
            Due::Read { shard, file, at, len, tag } => {
                let inode = self.finish_file_op(shard, file);
                let result = self.disk.read(inode, at, len);
                self.post(shard, Event::Read { file, tag, result });
            }
            Due::Written { shard, file, ticket, tag } => {
                self.finish_file_op(shard, file);
                let result = self.disk.end_write(ticket);
                self.post(shard, Event::Written { file, tag, result });
            }
            Due::Removed { shard, ticket, tag } => {
                let result = self.disk.end_remove(ticket);
                self.post(shard, Event::Removed { tag, result });
            }
            _ => unreachable!("only ops on files come here"),
        }
    }

    fn reap_flush(
        &mut self,
        shard: usize,
        file: File,
        flush: FlushTicket,
        tag: Tag,
        result: Result<(), Fault>,
    ) {
        match result {
            Ok(()) => {
                let doubt = self.device.reaped_ok(flush);
                self.seats[shard].doubts.push((doubt, file, tag));
            }
            Err(fault) => {
                self.device.reaped_fault(flush);
                self.finish_file_op(shard, file);
                self.post(shard, Event::Flushed { file, tag, result: Err(fault) });
            }
        }
        // Whatever was reaped may settle the doubts of any shard.
        for shard in 0..self.seats.len() {
            for (doubt, file, tag) in std::mem::take(&mut self.seats[shard].doubts) {
                let result = match self.device.verdict(&doubt) {
                    None => {
                        self.seats[shard].doubts.push((doubt, file, tag));
                        continue;
                    }
                    Some(true) => Ok(()),
                    Some(false) => {
                        Err(Fault { what: "fdatasync: the device has had a flush fault".into(), errno: 5 })
                    }
                };
                self.finish_file_op(shard, file);
                self.post(shard, Event::Flushed { file, tag, result });
            }
        }
    }

    /// Puts an event before its shard.
    fn post(&mut self, shard: usize, event: Event) {
        if self.seats[shard].stopped {
            return;
        }
        let at_ns = self.clock.now_ns();
        self.trace.note_event(at_ns, shard, &event);
        self.seats[shard].events.push(event);
    }

    fn open_file(&mut self, shard: usize, file: File) -> &mut OpenFile {
        self.seats[shard].files.get_mut(&file).unwrap_or_else(|| panic!("{file:?} is not open"))
    }

    fn begin_file_op(&mut self, shard: usize, file: File) -> Inode {
        let open = self.open_file(shard, file);
        open.ops += 1;
        open.inode
    }

    fn finish_file_op(&mut self, shard: usize, file: File) -> Inode {
        let open = self.open_file(shard, file);
        open.ops -= 1;
        open.inode
    }

    fn note(&mut self, what: &'static str, name: &str, fields: &[Field]) {
        self.trace.note(self.clock.now_ns(), what, name, fields);
    }

    fn draw(&mut self, (low, high): (u64, u64)) -> u64 {
        let usual = self.random.between(low, high);
        if self.random.chance(self.pace.slow) { usual * 20 } else { usual }
    }

    fn transfer_ns(&mut self) -> u64 {
        self.draw(self.pace.transfer_ns)
    }

    fn after(&mut self, delay_ns: u64, due: Due) {
        self.at(self.clock.now_ns() + delay_ns, due);
    }

    fn soon(&mut self, due: Due) {
        let delay = self.random.between(500, 5_000);
        self.after(delay, due);
    }

    fn at(&mut self, at_ns: u64, due: Due) {
        self.due.insert((at_ns, self.next), due);
        self.next += 1;
    }
}

fn crash_word(how: Crash) -> &'static str {
    match how {
        Crash::PowerLoss => "POWER LOSS",
        Crash::Kill => "KILL",
    }
}

#[cfg(test)]
#[path = "reactor_test.rs"]
mod reactor_test;
