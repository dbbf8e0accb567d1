//! A byte stream against a whole broker: a stranger sends it in random pieces over one connection, while an honest client
//! uses another.
//!
//! Everything follows from the input: the pieces, their times and the network come from its checksum.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_broker::shard::{Order, Shard, ShardLimits, ShardParts, Storage};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Scope};
use tidegate_protocol::api::produce::{Acks, ProduceReply, ProduceRequest};
use tidegate_protocol::api::topic::{CreateTopicReply, CreateTopicRequest};
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin};
use tidegate_protocol::frame::{self, Kind, Split};
use tidegate_protocol::ids::{LeaderEpoch, PartitionId, ShardId, TopicId, TopicPartition};
use tidegate_reactor::op::Turn;

use super::measure::{asked, in_use};
use super::{Outcome, seal, wire};
use crate::sim::blocking::BlockingDisk;
use crate::sim::disk::{OneFlush, VirtualDisk};
use crate::sim::machine::{self, Rests, Shape};
use crate::sim::net::{Link, Peer, PeerEvent, PeerOp, Reading};
use crate::sim::random::Random;
use crate::sim::reactor::{Step, World};
use crate::sim::session::{Arrived, Session, Standing};
use crate::sim::shards::shard_limits;
use crate::sim::trace::Trace;

/// Stands in inputs for the topic that exists: its identity is chosen anew by every broker.
pub const TOPIC_IN_INPUTS: TopicId = TopicId(*b"TOPIC OF FUZZING");
/// Where the stranger's link begins; sessions count from a million.
const STRANGERS_LINK: Link = Link(1);
/// Steps within which what is waited for must come about.
const STEPS_MAX: u64 = 100_000;
/// Virtual time without a byte from the stranger after which it has its answers.
const QUIET_NS: u64 = 300_000_000;
/// Bytes of memory that the broker and everything around it may take for one stranger, in all or in one step: what the shard's
/// own bounds allow, and what the virtual drive keeps of it.
const MEMORY_MAX: usize = 4 << 20;

/// A stream is sent; the broker holds all that is promised.
pub fn check(input: &[u8]) -> Outcome {
    let mut random = Random::new(u64::from(crc32c::crc32c(input)));
    let shape = Shape::draw(&mut Random::new(1), OneFlush::WholeDevice, Rests::Short);
    let mut limits = shard_limits(&shape);
    // A client that holds credit and is silent is ended when others wait for some; here it is silent on purpose.
    limits.credit_idle_ms = ShardLimits::default().credit_idle_ms;
    let mut world = broker(&mut random, &shape, limits);
    let shared = Rc::new(RefCell::new(Shared { wanted: 1, ..Shared::default() }));
    world.add_peer(Box::new(Client::new(&shared)));
    until(&mut world, "an honest client is served", || shared.borrow().acked == 1);

    let stream = with_topic(&mut random, input, shared.borrow().topic.expect("it was created"));
    let before = in_use();
    let stranger =
        Stranger { shared: Rc::clone(&shared), random: random.fork(), sent: 0, stream: stream.clone() };
    world.add_peer(Box::new(stranger));
    let mut most = 0;
    until(&mut world, "the stranger has its answers", || {
        most = most.max(in_use().saturating_sub(before));
        shared.borrow().is_done
    });
    assert!(
        most <= MEMORY_MAX,
        "one stranger takes {most} bytes of memory, at most {MEMORY_MAX} are allowed"
    );

    shared.borrow_mut().wanted = 2;
    until(&mut world, "the honest client is still served", || shared.borrow().acked == 2);
    let answered = answers(&stream, &shared.borrow(), &limits);
    shared.borrow_mut().is_stopping = true;
    world.order(0, Box::new(Order::Stop));
    for _ in 0..STEPS_MAX {
        match world.step() {
            Step::Progress => {}
            Step::Stopped => return answered,
            Step::Idle => break,
        }
    }
    panic!("the broker does not stop");
}

fn broker(random: &mut Random, shape: &Shape, limits: ShardLimits) -> World {
    let disk = VirtualDisk::new(random.fork(), OneFlush::WholeDevice, 1 << 30);
    let mut world = World::new(random.fork(), disk, Trace::new());
    world.disk.create_dir(machine::ROOT.as_ref()).expect("the drive is empty");
    world.net.weather.piece_bytes_max = random.pick(&[1, 20, 300, 16 << 10]);
    let World { disk, clock, trace, .. } = &mut world;
    let opened = machine::open(&mut BlockingDisk::new(disk, clock, trace, None), shape, 1);
    let opened = opened.unwrap_or_else(|why| panic!("a new broker does not start: {why}"));
    let mut turns: Vec<Box<dyn Turn>> = Vec::new();
    for logs in opened.logs {
        turns.push(Box::new(Shard::new(ShardParts {
            shard: ShardId(0),
            shard_count: 1,
            node: opened.superblock.node,
            cluster: opened.superblock.cluster,
            incarnation: opened.incarnation,
            seed: random.word(),
            limits,
            facts: Vec::new(),
            advertised: vec![String::new()],
            storage: Storage::Durable,
            logs,
        })));
    }
    world.boot(turns);
    world
}

fn until(world: &mut World, what: &str, mut is_done: impl FnMut() -> bool) {
    for _ in 0..STEPS_MAX {
        if is_done() {
            return;
        }
        let (step, bytes) = asked(|| world.step());
        assert!(bytes <= MEMORY_MAX, "one step asked for {bytes} bytes of memory");
        assert_eq!(step, Step::Progress, "nothing is due before {what}");
    }
    panic!("{STEPS_MAX} steps, and it has not come about that {what}");
}

/// The stream with the identity of the topic that exists, in all frames up to the first that is none.
fn with_topic(random: &mut Random, input: &[u8], topic: TopicId) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Ok(Split::Frame(frame)) = frame::split(rest, u32::MAX) {
        let mut bytes = rest[..frame.len()].to_vec();
        let at = bytes.windows(topic.0.len()).position(|window| window == TOPIC_IN_INPUTS.0);
        if let Some(at) = at {
            bytes[at..at + topic.0.len()].copy_from_slice(&topic.0);
            seal::frames(random, &mut bytes);
        }
        out.extend_from_slice(&bytes);
        rest = &rest[frame.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// What client and stranger want and have learned.
#[derive(Default)]
struct Shared {
    topic: Option<TopicId>,
    /// Batches that the client has to produce in all.
    wanted: u64,
    acked: u64,
    /// Bytes that the stranger was sent.
    heard: Vec<u8>,
    /// The broker has closed the stranger's connection.
    is_gone: bool,
    is_done: bool,
    is_stopping: bool,
}

/// What the broker answered: frames that can be read, nothing that was not asked, and the end where the stream cannot be
/// trusted any more.
fn answers(stream: &[u8], shared: &Shared, limits: &ShardLimits) -> Outcome {
    let mut asked: BTreeMap<(u8, u32), i64> = BTreeMap::new();
    let (mut rest, mut is_broken, mut whole) = (stream, false, 0);
    let is_refused;
    loop {
        match frame::split(rest, limits.frame_bytes_max) {
            Ok(Split::Frame(frame)) => {
                *asked.entry((frame.api_number, frame.correlation)).or_default() += 1;
                whole += 1;
                rest = &rest[frame.len()..];
            }
            Ok(Split::Incomplete { .. }) => {
                // Before hello, and for all but produces, the limit of the length is a lower one.
                let limit = frame::HELLO_BYTES_MAX.min(limits.control_bytes_max);
                is_refused = frame::split(rest, limit).is_err();
                break;
            }
            Err(_) => {
                (is_broken, is_refused) = (true, true);
                break;
            }
        }
    }
    // One error more for what is no frame; with few bytes there it claims to be nothing yet. It may come before the answer to a
    // frame that it looks like.
    let spare = i64::from(is_refused);
    let mut errors_of: BTreeMap<(u8, u32), i64> = BTreeMap::new();
    let claims = [frame::claimed(rest), (0, 0)];
    let mut heard = &shared.heard[..];
    let (mut errors, mut replies, mut produce_limit, mut unasked_since) = (0, 0, 0, 0);
    loop {
        let split = frame::split(heard, u32::MAX);
        let frame = match split.unwrap_or_else(|e| panic!("the broker sent what is no frame: {e}")) {
            Split::Frame(frame) => frame,
            Split::Incomplete { .. } => break,
        };
        heard = &heard[frame.len()..];
        assert_eq!(wire::message(&frame), Outcome::Taken, "the broker sent what cannot be read: {frame:?}");
        if frame.kind != Kind::Request {
            let key = (frame.api_number, frame.correlation);
            *asked.entry(key).or_default() -= 1;
            *errors_of.entry(key).or_default() += i64::from(frame.kind == Kind::Error);
            replies += i64::from(frame.kind == Kind::Reply);
            if frame.kind == Kind::Error {
                (errors, unasked_since) = (errors + 1, 0);
            }
            continue;
        }
        unasked_since += 1;
        if let Ok(Credit { scope: Scope::Produce, limit, .. }) = Credit::decode(&frame) {
            assert!(limit >= produce_limit, "the produce limit falls from {produce_limit} to {limit}");
            produce_limit = limit;
        }
    }
    let unasked: Vec<_> = asked.iter().filter(|(_, left)| **left < 0).collect();
    for (key, left) in &unasked {
        let is_known = claims.contains(key) && -**left <= spare.min(errors_of[key]);
        assert!(is_known, "an answer to nothing that was asked, after {errors} errors: {key:?}");
    }
    assert!(unasked.len() as i64 <= spare, "answers to nothing that was asked: {unasked:?}");
    if is_broken {
        assert!(shared.is_gone, "after {whole} frames comes what is none, and the connection stays");
    }
    if shared.is_gone {
        assert!(errors > 0, "the connection was closed, and nothing says why");
        assert_eq!(unasked_since, 0, "frames that nobody asked for follow the error that ends a connection");
    } else {
        let free = [Api::Credit, Api::Produce].map(Api::number);
        let open = asked.iter().find(|((api, _), left)| **left > 0 && !free.contains(api));
        assert_eq!(open, None, "a request without an answer, after {whole} frames");
    }
    if replies > 0 { Outcome::Taken } else { Outcome::Refused }
}

/// Sends the stream in pieces, with pauses, and listens; it may stop to listen for a while.
struct Stranger {
    shared: Rc<RefCell<Shared>>,
    random: Random,
    stream: Vec<u8>,
    sent: usize,
}

impl Stranger {
    fn wake(&mut self, now_ns: u64, ops: &mut Vec<PeerOp>) {
        if self.sent == 0 {
            ops.push(PeerOp::Connect(STRANGERS_LINK));
        }
        if self.sent == self.stream.len() + 1 {
            self.shared.borrow_mut().is_done = true;
            return;
        }
        let left = self.stream.len() - self.sent;
        if left == 0 {
            self.sent += 1;
            ops.push(PeerOp::Reading(STRANGERS_LINK, Reading::On));
            ops.push(PeerOp::WakeAt(now_ns + QUIET_NS));
            return;
        }
        let most = self.random.pick(&[1, 30, 1_000, 1 << 20]).min(left as u64);
        let piece = self.random.between(1, most) as usize;
        let bytes = self.stream[self.sent..self.sent + piece].to_vec();
        self.sent += piece;
        ops.push(PeerOp::Send(STRANGERS_LINK, bytes));
        if self.random.chance(30_000) {
            ops.push(PeerOp::Reading(STRANGERS_LINK, self.random.pick(&[Reading::On, Reading::Off])));
        }
        let pause = self.random.pick(&[0, 50_000, 2_000_000]);
        ops.push(PeerOp::WakeAt(now_ns + pause));
    }
}

impl Peer for Stranger {
    fn act(&mut self, now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>) {
        for event in events {
            match event {
                PeerEvent::Wake => self.wake(now_ns, ops),
                PeerEvent::Gone(_) => self.shared.borrow_mut().is_gone = true,
                PeerEvent::Bytes(_, bytes) => self.shared.borrow_mut().heard.extend_from_slice(&bytes),
            }
        }
    }
}

/// An honest client: creates a topic and produces as many batches as are wanted.
struct Client {
    shared: Rc<RefCell<Shared>>,
    session: Session,
    waiting: Option<u32>,
    was_served: bool,
}

impl Client {
    fn new(shared: &Rc<RefCell<Shared>>) -> Client {
        Client { shared: Rc::clone(shared), session: Session::new(1), waiting: None, was_served: false }
    }

    fn wake(&mut self, now_ns: u64, ops: &mut Vec<PeerOp>) {
        ops.push(PeerOp::WakeAt(now_ns + 2_000_000));
        match self.session.standing() {
            _ if self.shared.borrow().is_stopping => {}
            Standing::Gone => self.session.connect(now_ns, None, ops),
            Standing::Greeting => {}
            Standing::Ready if self.waiting.is_none() => {
                self.ask();
                self.session.send(ops);
            }
            Standing::Ready => {}
        }
    }

    fn ask(&mut self) {
        let shared = self.shared.borrow();
        let correlation = self.session.correlation();
        let Some(topic) = shared.topic else {
            let name = "honest".to_string();
            CreateTopicRequest { name, partitions: 1, replication: -1, settings: vec![] }
                .encode(correlation, self.session.out());
            self.waiting = Some(correlation);
            return;
        };
        if shared.acked == shared.wanted {
            return;
        }
        let mut builder = BatchBuilder::new(Vec::new());
        builder.push(1_780_000_000_000, None, Some(&[0x55; 200]), []);
        let batch = builder.finish(BatchOrigin::NONE);
        let partition = TopicPartition { topic, partition: PartitionId(0) };
        let request = ProduceRequest { partition, leader_epoch: LeaderEpoch::UNKNOWN, acks: Acks::All };
        let mut frame = Vec::new();
        request.encode_head(correlation, batch.len(), &mut frame);
        frame.extend_from_slice(&batch);
        self.session.ask_again();
        if self.session.may_produce(frame.len() as u64) {
            self.session.out().extend_from_slice(&frame);
            self.waiting = Some(correlation);
        }
    }

    fn takes(&mut self, arrived: &Arrived) {
        if self.waiting != Some(arrived.correlation) || arrived.kind == Kind::Request {
            return;
        }
        self.waiting = None;
        if arrived.kind == Kind::Error {
            // A broker that has just begun; later there is no reason to refuse anything.
            assert!(!self.was_served, "an honest request was refused: {:?}", arrived.frame());
            return;
        }
        let mut shared = self.shared.borrow_mut();
        if arrived.api == Api::CreateTopic.number() {
            shared.topic = Some(CreateTopicReply::decode(&arrived.frame()).expect("a readable reply").topic);
        } else {
            ProduceReply::decode(&arrived.frame()).expect("a readable reply");
            shared.acked += 1;
            self.was_served = true;
        }
    }
}

impl Peer for Client {
    fn act(&mut self, now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>) {
        for event in events {
            match event {
                PeerEvent::Wake => self.wake(now_ns, ops),
                PeerEvent::Gone(link) => {
                    let is_cut_off = self.session.gone(link) && !self.shared.borrow().is_stopping;
                    assert!(!is_cut_off, "an honest client was cut off");
                }
                PeerEvent::Bytes(link, bytes) => {
                    for arrived in self.session.take(now_ns, link, &bytes) {
                        self.takes(&arrived);
                    }
                }
            }
        }
    }
}
