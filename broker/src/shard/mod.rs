//! A shard: the connections and partitions of one core, as a machine that turns events into ops.
//!
//! Nothing here waits, locks, reads a clock or makes a system call. A turn takes everything that has happened, in order;
//! then readers are served, the logs put a cycle under way with all that was appended, credit is granted, and each connection
//! that has something to say gets one send. So whatever came in together shares one cycle and one flush, as long as it fits a
//! frame.
//!
//! Reading order: this file (what a shard has, and its turn), `connection` (bytes in, where a frame goes, frames out), `produce`
//! and `fetch` (the two stories of the data path), `damage`, `hello`, `outbound`, `held` (memory of connections), `credit`, `orders` (topics and producer ids),
//! `offset`, `internal` (the logs under the last two), `describe`, `mail` (other shards), `reply` (how a refusal is told),
//! `stats`, `stages`, `limits`.

mod connection;
mod credit;
mod damage;
mod describe;
mod fetch;
mod held;
mod hello;
mod internal;
mod limits;
mod mail;
mod offset;
mod orders;
mod outbound;
mod produce;
mod reply;
mod stages;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_logic::credit::{Grant, ProducePool, RoundRobin};
use tidegate_logic::topics::TopicTable;
use tidegate_protocol::api::hello::Features;
use tidegate_protocol::api::produce::Level;
use tidegate_protocol::ids::{ClusterId, Incarnation, NodeId, ShardId, TopicPartition};
use tidegate_reactor::op::{Event, Loop, Now, Op, Tag, Turn};

pub use self::limits::ShardLimits;
pub use self::mail::{Order, Report};

use self::connection::{Connection, ConnectionId};
use self::damage::Damage;
use self::fetch::{Reader, ReaderId};
use self::held::Held;
use self::internal::Restore;
use self::mail::{AskedElsewhere, Asker, Mail};
use self::offset::OffsetsLogs;
use self::orders::{METADATA, ORDERS_SHARD, Orders};
use self::produce::{Letter, Partition};
use self::reply::Refusal;
use self::stages::Stages;
use self::stats::{Gather, Stats};
use crate::log::{IncomingBatch, Logs, Outcome, ReadBatches, ReadRefused};

/// Everything that a shard is made of.
#[derive(Debug)]
pub struct ShardParts {
    /// Its number.
    pub shard: ShardId,
    /// Shards of the node.
    pub shard_count: u16,
    /// The node.
    pub node: NodeId,
    /// The cluster.
    pub cluster: ClusterId,
    /// Of this start.
    pub incarnation: Incarnation,
    /// Random, another one at every start.
    pub seed: u64,
    /// Its bounds.
    pub limits: ShardLimits,
    /// Name and value of what a person may want to know about the broker.
    pub facts: Vec<(String, String)>,
    /// `host:port` by shard, for clients; an empty host means the address that they have connected to.
    pub advertised: Vec<String>,
    /// Whether the storage keeps what it has flushed.
    pub storage: Storage,
    /// Its logs, recovered.
    pub logs: Logs,
}

/// What a flush is worth on the storage below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It survives a loss of power.
    Durable,
    /// Nothing does: memory, or storage without flushes. `allowed`: the operator has agreed.
    Volatile {
        /// Whether a durable topic may be produced to all the same.
        allowed: bool,
    },
}

impl Storage {
    fn refuses_durable(self) -> bool {
        self == Storage::Volatile { allowed: false }
    }

    /// What a client is told in the hello.
    fn features(self) -> Features {
        match self {
            Storage::Durable => Features::ZSTD.and(Features::DURABLE),
            Storage::Volatile { .. } => Features::ZSTD,
        }
    }

    /// The level that may be claimed where `level` would be, were the storage durable.
    fn met(self, level: Level) -> Level {
        match self {
            Storage::Durable => level,
            Storage::Volatile { .. } => level.min(Level::Memory),
        }
    }
}

/// How far the shard has come in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Internal logs are read, topics awaited.
    Starting,
    /// Requests are taken.
    Serving,
    /// No new requests; those under way end.
    Draining,
    /// The logs flush and write their checkpoint.
    Flushing,
    /// Sockets are closed.
    Closing,
    /// It could not start; it answers that, and waits for the order to stop.
    Failed,
}

/// What a read or a search of the logs was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ticket {
    Reader { reader: ReaderId, share: i64 },
    Restore(TopicPartition),
    Find { asker: Asker, log: TopicPartition },
}

/// Timers of the shard; the logs have their own.
const TAG_TICK: Tag = Tag(0x03 << 56 | 1);
const TAG_AGAIN: Tag = Tag(0x03 << 56 | 2);
const TAG_WAIT: Tag = Tag(0x03 << 56 | 3);
const TICK_NS: u64 = 100_000_000;

/// One shard.
///
/// Invariants: every reader is named by exactly one connection; `partitions` has exactly the logs of users' topics that
/// belong here; every ticket belongs to a read or a search that is under way.
#[derive(Debug)]
pub struct Shard {
    me: ShardId,
    shard_count: u16,
    node: NodeId,
    cluster: ClusterId,
    incarnation: Incarnation,
    random: u64,
    limits: ShardLimits,
    facts: Vec<(String, String)>,
    advertised: Vec<String>,
    storage: Storage,
    phase: Phase,
    // Why the shard cannot serve, until it is reported.
    failure: Option<String>,
    // What an operator should know, until it is reported.
    notices: Vec<String>,
    now: Now,

    logs: Logs,
    outcomes: Vec<Outcome>,
    damage: Damage,
    tickets: BTreeMap<u64, Ticket>,

    connections: BTreeMap<ConnectionId, Connection>,
    dirty: Vec<ConnectionId>,
    resumable: Vec<ConnectionId>,
    room_waiters: VecDeque<ConnectionId>,
    letters: VecDeque<Letter>,
    // Whoever waits for room may try, whether there is some or not: perhaps there never will be.
    try_for_room: bool,
    fault_told: bool,
    hello_due: VecDeque<(u64, ConnectionId)>,
    next_shard: u16,
    held: Held,

    topics: TopicTable,
    topics_known: bool,
    partitions: BTreeMap<TopicPartition, Partition>,
    incoming: Vec<IncomingBatch>,
    pool: ProducePool,
    grants: Vec<Grant>,
    credit_askers: Vec<ConnectionId>,
    credit_waiting_since_ns: Option<u64>,

    readers: BTreeMap<ReaderId, Reader>,
    readers_made: u64,
    ring: RoundRobin<ReaderId>,
    delayed_readers: Vec<ReaderId>,
    wait_due: BTreeSet<(u64, ReaderId)>,
    wait_timer_ns: Option<u64>,
    heartbeat_due: VecDeque<(u64, ReaderId)>,
    again: bool,

    orders: Option<Orders>,
    offsets: OffsetsLogs,
    restoring: BTreeMap<TopicPartition, Restore>,
    // Bytes appended to each internal log since its last snapshot, the snapshot included.
    internal_bytes: BTreeMap<TopicPartition, u64>,

    asked_elsewhere: BTreeMap<u64, AskedElsewhere>,
    // Bytes of produces that each other shard has not answered yet.
    produce_mailed: Vec<usize>,
    requests: u64,
    mail_under_way: Vec<usize>,
    gathers: BTreeMap<u64, Gather>,
    gathers_made: u64,

    ticking: bool,
    stop_due_ns: u64,
    stats: Stats,
    stages: Stages,
}

impl Shard {
    /// A shard before its first turn.
    pub fn new(parts: ShardParts) -> Shard {
        let limits = parts.limits;
        limits.check();
        let topics = TopicTable::new(limits.topics);
        let orders = (parts.shard == ORDERS_SHARD).then(|| Orders::new(topics.clone()));
        Shard {
            me: parts.shard,
            shard_count: parts.shard_count,
            node: parts.node,
            cluster: parts.cluster,
            incarnation: parts.incarnation,
            random: parts.seed,
            limits,
            facts: parts.facts,
            advertised: parts.advertised,
            storage: parts.storage,
            phase: Phase::Starting,
            failure: None,
            notices: Vec::new(),
            now: Now { mono_ns: 0, wall_ms: 0 },
            logs: parts.logs,
            outcomes: Vec::new(),
            damage: Damage::default(),
            tickets: BTreeMap::new(),
            connections: BTreeMap::new(),
            dirty: Vec::new(),
            resumable: Vec::new(),
            room_waiters: VecDeque::new(),
            letters: VecDeque::new(),
            try_for_room: false,
            fault_told: false,
            hello_due: VecDeque::new(),
            next_shard: 0,
            held: Held::default(),
            topics,
            topics_known: false,
            partitions: BTreeMap::new(),
            incoming: Vec::new(),
            pool: ProducePool::new(limits.produce),
            grants: Vec::new(),
            credit_askers: Vec::new(),
            credit_waiting_since_ns: None,
            readers: BTreeMap::new(),
            readers_made: 0,
            ring: RoundRobin::new(limits.read_bytes_max as i64),
            delayed_readers: Vec::new(),
            wait_due: BTreeSet::new(),
            wait_timer_ns: None,
            heartbeat_due: VecDeque::new(),
            again: false,
            orders,
            offsets: OffsetsLogs::new(),
            restoring: BTreeMap::new(),
            internal_bytes: BTreeMap::new(),
            asked_elsewhere: BTreeMap::new(),
            produce_mailed: vec![0; usize::from(parts.shard_count)],
            requests: 0,
            mail_under_way: vec![0; usize::from(parts.shard_count)],
            gathers: BTreeMap::new(),
            gathers_made: 0,
            ticking: false,
            stop_due_ns: 0,
            stats: Stats::default(),
            stages: Stages::new(),
        }
    }

    /// The first turn: files are opened, internal logs read.
    fn start(&mut self, ops: &mut Vec<Op>) {
        self.ticking = true;
        self.logs.start(self.now, ops);
        ops.push(Op::Timer { at_ns: self.now.mono_ns + TICK_NS, tag: TAG_TICK });
        let mut opened = self.offsets_open();
        if self.me == ORDERS_SHARD {
            opened = opened.and_then(|()| self.internal_open(METADATA));
        }
        if let Err(refusal) = opened {
            self.fail(refusal.body(self.names()).cause);
        }
    }

    /// The shard cannot serve; it goes on turning, so that it can say so.
    fn fail(&mut self, cause: String) {
        self.phase = Phase::Failed;
        self.failure.get_or_insert(cause);
    }

    fn start_goes_on(&mut self, ops: &mut Vec<Op>) {
        if let Err(refusal) = self.internal_restore(ops) {
            self.fail(refusal.body(self.names()).cause);
        }
        if self.phase == Phase::Starting && self.topics_known && self.restoring.is_empty() {
            self.phase = Phase::Serving;
            ops.push(Op::Report { letter: Box::new(Report::Serving { shard: self.me }) });
        }
    }

    fn happened(&mut self, event: Event, ops: &mut Vec<Op>) {
        if Logs::owns_event(&event) {
            return self.logs.on_event(self.now, event, ops);
        }
        match event {
            Event::Accepted { socket } => self.connection_accepted(socket, ops),
            Event::Arrived { socket, letter } => {
                if let Ok(Mail::HandOver { bytes }) = letter.downcast::<Mail>().map(|mail| *mail) {
                    self.connection_arrived(socket, &bytes, ops);
                }
            }
            Event::Received { socket, buf, result } => self.connection_received(socket, buf, result, ops),
            Event::Sent { socket, result, .. } => self.connection_sent(socket, result, ops),
            Event::Closed { socket } => self.connection_closed(socket),
            Event::HandedOver { .. } => {}
            Event::Timer { tag } => self.timer(tag, ops),
            Event::Mail { from, letter } => {
                if let Ok(mail) = letter.downcast::<Mail>() {
                    self.mail_came(from, *mail, ops);
                }
            }
            Event::MailTaken { to } => self.mail_taken(to),
            Event::Order { letter } => {
                if let Ok(Order::Stop) = letter.downcast::<Order>().map(|order| *order) {
                    self.stop_begins();
                }
            }
            Event::Opened { .. }
            | Event::FileClosed { .. }
            | Event::Read { .. }
            | Event::Written { .. }
            | Event::Flushed { .. }
            | Event::Removed { .. }
            | Event::FreeSpace { .. } => unreachable!("only the logs have files"),
        }
    }

    fn timer(&mut self, tag: Tag, ops: &mut Vec<Op>) {
        match tag {
            TAG_TICK => {
                self.connections_tick();
                self.held_tick(ops);
                self.credit_tick();
                self.credit_explain();
                self.try_for_room = true;
                self.trims_faulted(ops);
                self.fetch_delayed();
                ops.push(Op::Timer { at_ns: self.now.mono_ns + TICK_NS, tag: TAG_TICK });
            }
            TAG_AGAIN => self.again = false,
            TAG_WAIT => self.wait_timer_ns = None,
            other => unreachable!("no timer has the tag {other:?}"),
        }
    }

    /// Everything that follows from what has happened: whoever waited is answered, readers are served, a cycle is put under
    /// way. What the logs say at that, such as the end of a read, is followed at once. Returns whether something is left for
    /// a further turn, and whether the loop goes on.
    fn work(&mut self, ops: &mut Vec<Op>) -> (bool, Loop) {
        const PASSES_MAX: usize = 4;
        let mut stop = Loop::Continue;
        for pass in 0..PASSES_MAX {
            let came = self.outcomes(ops);
            if pass > 0 && !came {
                return (!self.ring.is_empty(), stop);
            }
            if self.phase == Phase::Starting {
                self.start_goes_on(ops);
            }
            if let Some(cause) = self.failure.take() {
                ops.push(Op::Report { letter: Box::new(Report::Failed { shard: self.me, cause }) });
            }
            for what in std::mem::take(&mut self.notices) {
                ops.push(Op::Report { letter: Box::new(Report::Damaged { shard: self.me, what }) });
            }
            self.held_wake();
            self.fetch_turn();
            for id in std::mem::take(&mut self.resumable) {
                self.connection_resume(id, ops);
            }
            self.connections_find_room(ops);
            stop = match self.phase {
                Phase::Starting | Phase::Serving | Phase::Failed => Loop::Continue,
                Phase::Draining | Phase::Flushing | Phase::Closing => self.stop_goes_on(ops),
            };
            if self.phase != Phase::Closing {
                // Once the logs have stopped, nothing of theirs is put under way again.
                self.logs.pump(self.now, ops);
            }
        }
        (true, stop)
    }

    /// What the logs have to say to those who wait. Returns whether there was anything.
    fn outcomes(&mut self, ops: &mut Vec<Op>) -> bool {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.logs.drain_outcomes(&mut outcomes);
        let came = !outcomes.is_empty();
        for outcome in outcomes.drain(..) {
            match outcome {
                Outcome::Written { log, upto, begun_ns } => self.produce_written(log, upto, begun_ns),
                Outcome::Durable { log, token } if log == METADATA => self.orders_flushed(token.upto(), ops),
                Outcome::Durable { log, token } if log.topic.is_internal() => {
                    self.offsets_flushed(log, token.upto(), ops);
                }
                Outcome::Durable { log, token } => self.produce_flushed(log, token, ops),
                Outcome::Unknown { log, from, fault } if log == METADATA => {
                    self.orders_faulted(from, &fault, ops)
                }
                Outcome::Unknown { log, from, fault } if log.topic.is_internal() => {
                    self.offsets_faulted(log, from, &fault, ops);
                }
                Outcome::Unknown { log, from, fault } => self.produce_faulted(log, from, &fault, ops),
                Outcome::Notice(notice) => {
                    ops.push(Op::Report { letter: Box::new(Report::Notice { shard: self.me, notice }) });
                }
                Outcome::Damaged { log, refused } => drop(self.read_refused(log, refused)),
                Outcome::Trimmed { log, start } => self.trimmed(log, start, ops),
                Outcome::ReadDone { ticket, result } => self.read_done(ticket, result),
                Outcome::FindDone { ticket, result } => {
                    if let Some(Ticket::Find { asker, log }) = self.tickets.remove(&ticket) {
                        self.list_offsets_found(asker, log, result, ops);
                    }
                }
            }
        }
        self.outcomes = outcomes;
        came
    }

    fn read_done(&mut self, ticket: u64, result: Result<ReadBatches, ReadRefused>) {
        match self.tickets.remove(&ticket) {
            Some(Ticket::Reader { reader, share }) => self.fetch_read_done(reader, share, result),
            Some(Ticket::Restore(log)) => {
                let taken = match result {
                    Ok(batches) => self.internal_read(log, &batches),
                    Err(refused) => self.internal_unreadable(log, refused),
                };
                if let Err(refusal) = taken {
                    self.fail(refusal.body(self.names()).cause);
                }
            }
            Some(Ticket::Find { .. }) | None => {}
        }
        // There is room for another read.
        self.fetch_delayed();
    }

    /// Why nothing new is begun now.
    fn not_ready(&self) -> Refusal {
        match self.phase {
            Phase::Starting => Refusal::NotReady { state: "starting" },
            Phase::Serving | Phase::Draining | Phase::Flushing | Phase::Closing => {
                Refusal::NotReady { state: "stopping" }
            }
            Phase::Failed => Refusal::NotReady { state: "not able to start; its log says why" },
        }
    }

    fn stop_begins(&mut self) {
        if matches!(self.phase, Phase::Starting | Phase::Serving | Phase::Failed) {
            self.phase = Phase::Draining;
            self.stop_due_ns = self.now.mono_ns + self.limits.drain_ms * 1_000_000;
        }
    }

    /// The way to the end: what is under way ends, the logs flush and write their checkpoint, sockets are closed.
    fn stop_goes_on(&mut self, ops: &mut Vec<Op>) -> Loop {
        let overdue = self.now.mono_ns >= self.stop_due_ns;
        if self.phase == Phase::Draining {
            self.orders_wait_no_more(ops);
            let orders_idle = self.orders.as_ref().is_none_or(Orders::is_idle);
            let offsets_idle = self.offsets.values().all(offset::StoredOffsets::is_idle);
            let partitions_idle = self.partitions.values().all(|partition| partition.waiting() == 0);
            if (orders_idle && offsets_idle && partitions_idle) || overdue {
                self.logs.stop();
                self.phase = Phase::Flushing;
            }
        }
        if self.phase == Phase::Flushing && self.logs.stopped() {
            self.phase = Phase::Closing;
            let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
            ids.into_iter().for_each(|id| self.connection_end(id));
        }
        if self.phase == Phase::Closing && (self.connections.is_empty() || overdue) {
            return Loop::Stop;
        }
        Loop::Continue
    }

    /// Timers for what has to happen although nothing else does.
    fn timers(&mut self, unserved: bool, ops: &mut Vec<Op>) {
        if unserved && !self.again {
            self.again = true;
            ops.push(Op::Timer { at_ns: self.now.mono_ns, tag: TAG_AGAIN });
        }
        if let Some((due, _)) = self.wait_due.first().copied()
            && self.wait_timer_ns.is_none_or(|at| at > due)
        {
            self.wait_timer_ns = Some(due);
            ops.push(Op::Timer { at_ns: due, tag: TAG_WAIT });
        }
    }

    /// The next number of a splitmix64 sequence (Steele, Lea, Flood 2014): spread, not secret.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Asserts the invariants; linear in everything that the shard has. For tests and the simulator.
    pub fn check(&self) {
        self.logs.check();
        self.pool.check_invariants();
        self.held_check();
        self.topics.check_invariants();
        let named: usize = self.connections.values().map(|c| c.subscriptions.len()).sum();
        assert_eq!(named, self.readers.len(), "every reader is named by one connection");
        for log in self.partitions.keys() {
            assert!(self.topics.get(log.topic).is_some(), "{log:?} has a topic");
        }
    }
}

impl Turn for Shard {
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        self.now = now;
        self.stats.turns += 1;
        if !self.ticking {
            self.start(ops);
        }
        for event in events.drain(..) {
            self.happened(event, ops);
        }
        self.fetch_tick();
        let (unserved, stop) = self.work(ops);
        self.credit_grant();
        self.connections_send(ops);
        self.timers(unserved, ops);
        stop
    }
}
