//! Shards under a reactor of a few lines: ops complete at once, in order, over a disk in memory.

mod connection;
mod fetch;
mod held;
mod orders;
mod produce;
mod restart;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidegate_logic::credit::PoolLimits;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest, Ping};
use tidegate_protocol::api::metadata::{MetadataReply, MetadataRequest};
use tidegate_protocol::api::offset::{
    DeleteRecordsReply, DeleteRecordsRequest, ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply,
    OffsetCommitRequest, OffsetFetchReply, OffsetFetchRequest, OffsetQuery, StoredOffset,
};
use tidegate_protocol::api::produce::{Acks, Level, ProduceReply, ProduceRequest};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::api::status::{StatusReply, StatusRequest};
use tidegate_protocol::api::subscribe::{
    DataHead, Isolation, Progress, ProgressKind, SubscribeReply, SubscribeRequest, SubscriptionId,
    UnsubscribeRequest,
};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicRequest, DescribeTopicReply,
    DescribeTopicRequest, Setting,
};
use tidegate_protocol::api::{Api, Done};
use tidegate_protocol::batch::{self, BatchBuilder, BatchOrigin};
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::{self, Frame, Kind, Split};
use tidegate_protocol::ids::{
    ClusterId, Incarnation, JournalId, LeaderEpoch, NodeId, Offset, PartitionId, ProducerEpoch, ProducerId,
    Sequence, ShardId, TopicId, TopicPartition,
};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::{
    Event, Fault, File, FreeSpace, Loop, Now, Op, OpenHow, ShardIndex, Socket, Tag, Turn,
};

use super::{Order, Report, Shard, ShardLimits, ShardParts, Storage};
use crate::limits::Limits;
use crate::log::flush_rule::FlushRule;
use crate::log::{Logs, ShardBoot, journal};
use crate::testdisk::TestDisk;

/// A node of some shards, and clients that talk to it over pipes of bytes.
struct Node {
    shards: Vec<Core>,
    disk: TestDisk,
    sockets: BTreeMap<Socket, Pipe>,
    now: Now,
    parts: Parts,
    /// Ops of files are taken and do not end.
    drive_hangs: bool,
}

struct Core {
    shard: Shard,
    events: Vec<Event>,
    files: BTreeMap<File, DiskFile>,
    /// Ops that the drive has not done yet.
    hanging: Vec<Op>,
    timers: Vec<(u64, Tag)>,
    reports: Vec<String>,
    stopped: bool,
}

#[derive(Default)]
struct Pipe {
    shard: usize,
    to_broker: Vec<u8>,
    from_broker: Vec<u8>,
    receiving: Option<Buffer>,
    closed: bool,
    /// The client reads nothing: sends do not end.
    stuck: bool,
    sending: Option<Tag>,
}

impl Node {
    fn new(shard_count: u16) -> Node {
        Node::with(shard_count, ShardLimits::default(), Storage::Durable)
    }

    fn with(shard_count: u16, limits: ShardLimits, storage: Storage) -> Node {
        let mut disk = TestDisk::with_dir("data");
        for dir in ["data/journal", "data/files"] {
            disk.create_dir(dir.as_ref()).expect("an empty directory");
        }
        for shard in 0..shard_count {
            journal::create(&mut disk, "data".as_ref(), identity(shard), Incarnation(0), &Limits::SMALL)
                .expect("an empty directory");
        }
        Node::start(disk, Parts { shard_count, limits, storage, incarnation: 3, wall_ms: 1_700_000_000_000 })
    }

    fn start(mut disk: TestDisk, parts: Parts) -> Node {
        let core = |shard| Core {
            shard: Shard::new(parts.of(shard, &mut disk)),
            events: Vec::new(),
            files: BTreeMap::new(),
            hanging: Vec::new(),
            timers: Vec::new(),
            reports: Vec::new(),
            stopped: false,
        };
        let shards = (0..parts.shard_count).map(core).collect();
        let now = Now { mono_ns: 1, wall_ms: parts.wall_ms };
        let mut node = Node { shards, disk, sockets: BTreeMap::new(), now, parts, drive_hangs: false };
        node.settle();
        for (shard, core) in node.shards.iter().enumerate() {
            let serving = Report::Serving { shard: ShardId(shard as u16) };
            assert_eq!(core.reports, [format!("{serving:?}")]);
        }
        node
    }

    /// Stops all shards in order and starts them again.
    fn restart(mut self) -> Node {
        for core in &mut self.shards {
            core.events.push(Event::Order { letter: Box::new(Order::Stop) });
        }
        self.settle();
        self.pass(200);
        assert!(self.shards.iter().all(|core| core.stopped));
        self.start_again()
    }

    /// Takes the power away and starts again: what was not flushed may be lost.
    fn lose_power(mut self, seed: u64) -> Node {
        self.disk.power_loss(seed);
        self.start_again()
    }

    fn start_again(self) -> Node {
        let incarnation = self.parts.incarnation + 1;
        Node::start(self.disk, Parts { incarnation, wall_ms: self.now.wall_ms + 1, ..self.parts })
    }

    /// Turns every shard until nothing happens any more without time passing.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut quiet = true;
            for shard in 0..self.shards.len() {
                quiet &= !self.turn(shard);
            }
            if quiet {
                return;
            }
        }
        panic!("the shards do not come to rest");
    }

    fn turn(&mut self, index: usize) -> bool {
        let now_ns = self.now.mono_ns;
        for (socket, pipe) in self.sockets.iter_mut().filter(|(_, pipe)| pipe.shard == index) {
            pipe.deliver(*socket, &mut self.shards[index].events);
        }
        let core = &mut self.shards[index];
        let due = |(at, _): &mut (u64, Tag)| *at <= now_ns;
        core.events.extend(core.timers.extract_if(.., due).map(|(_, tag)| Event::Timer { tag }));
        if core.stopped || (core.events.is_empty() && core.shard.stats.turns > 0) {
            return false;
        }
        let mut ops = Vec::new();
        core.stopped = core.shard.turn(self.now, &mut core.events, &mut ops) == Loop::Stop;
        core.shard.check();
        ops.into_iter().for_each(|op| self.done(index, op));
        true
    }

    fn done(&mut self, index: usize, op: Op) {
        let from = ShardIndex(index as u16);
        let core = &mut self.shards[index];
        match op {
            Op::Receive { socket, buf } => {
                let pipe = self.sockets.get_mut(&socket).expect("a socket of this node");
                assert!(pipe.receiving.replace(buf).is_none(), "one receive at a time");
                pipe.deliver(socket, &mut core.events);
            }
            Op::Send { socket, views, tag } => {
                let pipe = self.sockets.get_mut(&socket).expect("a socket of this node");
                assert!(pipe.sending.is_none(), "one send at a time");
                views.iter().for_each(|view| pipe.from_broker.extend_from_slice(view));
                if pipe.stuck {
                    pipe.sending = Some(tag);
                } else {
                    core.events.push(Event::Sent { socket, tag, result: Ok(()) });
                }
            }
            Op::Close { socket } => {
                let pipe = self.sockets.get_mut(&socket).expect("a socket of this node");
                pipe.closed = true;
                if let Some(buf) = pipe.receiving.take() {
                    let result = Err(Fault { what: "receive".to_owned(), errno: 125 });
                    core.events.push(Event::Received { socket, buf, result });
                }
                if let Some(tag) = pipe.sending.take() {
                    let result = Err(Fault { what: "send".to_owned(), errno: 125 });
                    core.events.push(Event::Sent { socket, tag, result });
                }
                core.events.push(Event::Closed { socket });
            }
            Op::HandOver { socket, to, letter } => {
                core.events.push(Event::HandedOver { socket, result: Ok(()) });
                let pipe = self.sockets.get_mut(&socket).expect("a socket of this node");
                let idle = pipe.receiving.is_none() && pipe.sending.is_none();
                assert!(idle, "a socket that leaves has no op under way");
                pipe.shard = usize::from(to.0);
                self.shards[pipe.shard].events.push(Event::Arrived { socket, letter });
            }
            Op::Timer { at_ns, tag } => core.timers.push((at_ns, tag)),
            Op::Mail { to, letter } => {
                core.events.push(Event::MailTaken { to });
                self.shards[usize::from(to.0)].events.push(Event::Mail { from, letter });
            }
            Op::Report { letter } => {
                let report = letter.downcast::<Report>().expect("shards report these");
                core.reports.push(format!("{report:?}"));
            }
            Op::Open { .. }
            | Op::CloseFile { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Zero { .. }
            | Op::Flush { .. }
            | Op::Remove { .. }
            | Op::FreeSpace { .. } => {
                if self.drive_hangs {
                    return core.hanging.push(op);
                }
                let event = core.on_disk(&mut self.disk, op);
                core.events.push(event);
            }
        }
    }

    /// The drive does what it was asked for meanwhile, and whatever comes from now on.
    fn drive_goes_on(&mut self) {
        self.drive_hangs = false;
        for core in &mut self.shards {
            for op in std::mem::take(&mut core.hanging) {
                let event = core.on_disk(&mut self.disk, op);
                core.events.push(event);
            }
        }
        self.settle();
    }

    /// The client closes its side.
    fn hang_up(&mut self, client: &Client) {
        let pipe = self.sockets.get_mut(&client.socket).expect("connected");
        if let Some(buf) = pipe.receiving.take() {
            let received = Event::Received { socket: client.socket, buf, result: Ok(0) };
            self.shards[pipe.shard].events.push(received);
        }
        self.settle();
    }

    /// The client reads nothing any more, or again.
    fn stick(&mut self, client: &Client, stuck: bool) {
        let pipe = self.sockets.get_mut(&client.socket).expect("connected");
        pipe.stuck = stuck;
        if let Some(tag) = pipe.sending.take_if(|_| !stuck) {
            let sent = Event::Sent { socket: client.socket, tag, result: Ok(()) };
            self.shards[pipe.shard].events.push(sent);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono_ns += ms * 1_000_000;
        self.now.wall_ms += ms as i64;
        self.settle();
    }

    fn connect(&mut self, shard: Option<u16>) -> Client {
        let socket = Socket(100 + self.sockets.len() as u64);
        self.sockets.insert(socket, Pipe::default());
        self.shards[0].events.push(Event::Accepted { socket });
        let mut client = Client { socket, correlation: 0, read: 0, granted: 0, sent: 0 };
        let hello = hello_request(shard.map(ShardId));
        let reply = client.ask(self, Api::Hello, |c, out| hello.encode(c, out), HelloReply::decode);
        assert!(shard.is_none_or(|shard| reply.shard == ShardId(shard)));
        client
    }

    fn create(
        &mut self,
        client: &mut Client,
        name: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) -> TopicId {
        let request = create_request(name, partitions, settings);
        let reply: CreateTopicReply =
            client.ask(self, Api::CreateTopic, |c, out| request.encode(c, out), CreateTopicReply::decode);
        reply.topic
    }
}

impl Core {
    fn on_disk(&mut self, disk: &mut TestDisk, op: Op) -> Event {
        match op {
            Op::Open { file, path, how } => {
                let opened = match how {
                    OpenHow::Existing => disk.open(&path),
                    OpenHow::New { bytes } => disk.create_zeroed(&path, bytes),
                };
                let result = opened.map(|handle| {
                    self.files.insert(file, handle);
                });
                Event::Opened { file, result }
            }
            Op::CloseFile { file } => {
                disk.close(self.files.remove(&file).expect("an open file"));
                Event::FileClosed { file }
            }
            Op::Read { file, at, len, tag } => {
                Event::Read { file, tag, result: disk.read(self.files[&file], at, len) }
            }
            Op::Write { file, at, data, tag } => {
                let written = disk.write(self.files[&file], at, &Buffer::copy_of(&data));
                Event::Written { file, tag, result: written.map(|()| data.len()) }
            }
            Op::Zero { file, at, len, tag } => {
                let zeros = Buffer::copy_of(&vec![0; len]);
                let written = disk.write(self.files[&file], at, &zeros);
                Event::Written { file, tag, result: written.map(|()| len) }
            }
            Op::Flush { file, tag } => Event::Flushed { file, tag, result: disk.flush(self.files[&file]) },
            Op::Remove { path, tag } => Event::Removed { tag, result: disk.remove(&path) },
            Op::FreeSpace { tag, .. } => {
                let result = disk.space.ok_or(Fault { what: "look for free space".to_owned(), errno: 5 });
                Event::FreeSpace { tag, result }
            }
            other => panic!("{other:?} is no op of files"),
        }
    }
}

impl Pipe {
    fn deliver(&mut self, socket: Socket, events: &mut Vec<Event>) {
        if self.to_broker.is_empty() || self.receiving.is_none() {
            return;
        }
        let mut buf = self.receiving.take().expect("just seen");
        let len = self.to_broker.len().min(buf.capacity() - buf.filled());
        buf.extend(&self.to_broker[..len]);
        self.to_broker.drain(..len);
        events.push(Event::Received { socket, buf, result: Ok(len) });
    }
}

/// What the shards of a node have in common.
#[derive(Clone, Copy)]
struct Parts {
    shard_count: u16,
    limits: ShardLimits,
    storage: Storage,
    incarnation: u32,
    /// The time of the start.
    wall_ms: i64,
}

impl Parts {
    fn of(&self, shard: u16, disk: &mut TestDisk) -> ShardParts {
        let incarnation = Incarnation(self.incarnation);
        let boot = ShardBoot {
            root: PathBuf::from("data"),
            identity: identity(shard),
            incarnation,
            shard: ShardId(shard),
            limits: Limits::SMALL,
            flush_rule: FlushRule::OneFlush,
        };
        ShardParts {
            shard: ShardId(shard),
            shard_count: self.shard_count,
            node: NodeId(1),
            cluster: ClusterId([7; 16]),
            incarnation,
            seed: 42 + u64::from(self.incarnation),
            limits: self.limits,
            facts: vec![("version".to_owned(), "test".to_owned())],
            advertised: vec![":0".to_owned(); usize::from(self.shard_count)],
            storage: self.storage,
            logs: Logs::open(disk, boot).expect("what was written can be read"),
        }
    }
}

fn identity(shard: u16) -> JournalIdentity {
    JournalIdentity { cluster: ClusterId([7; 16]), node: NodeId(1), journal: JournalId(u32::from(shard)) }
}

/// Credit that a connection gets for the asking.
const FIRST_CREDIT: u64 = 256 << 10;

/// A client that is spoken to frame by frame.
struct Client {
    socket: Socket,
    correlation: u32,
    read: usize,
    granted: u64,
    sent: u64,
}

impl Client {
    fn put(&mut self, node: &mut Node, bytes: &[u8]) {
        let pipe = node.sockets.get_mut(&self.socket).expect("connected");
        pipe.to_broker.extend_from_slice(bytes);
    }

    fn frame(&mut self, node: &mut Node, encode: impl FnOnce(u32, &mut Vec<u8>)) -> u32 {
        self.correlation += 1;
        let mut out = Vec::new();
        encode(self.correlation, &mut out);
        self.put(node, &out);
        self.correlation
    }

    /// The next whole frame from the broker, if one is there, as bytes.
    fn next(&mut self, node: &Node) -> Option<Vec<u8>> {
        let bytes = &node.sockets[&self.socket].from_broker[self.read..];
        match frame::split(bytes, u32::MAX).expect("the broker's frames are good") {
            Split::Frame(frame) => {
                let len = frame.len();
                self.read += len;
                Some(bytes[..len].to_vec())
            }
            Split::Incomplete { .. } => None,
        }
    }

    fn ask<T>(
        &mut self,
        node: &mut Node,
        api: Api,
        encode: impl FnOnce(u32, &mut Vec<u8>),
        decode: impl FnOnce(&Frame<'_>) -> Result<T, tidegate_protocol::code::DecodeError>,
    ) -> T {
        let correlation = self.frame(node, encode);
        node.settle();
        let bytes = self.answer(node);
        let frame = whole(&bytes);
        assert_eq!(
            (frame.api_number, frame.correlation),
            (api.number(), correlation),
            "{:?}",
            error_of(&frame)
        );
        decode(&frame).unwrap_or_else(|error| panic!("{error}: {:?}", error_of(&frame)))
    }

    fn refused(&mut self, node: &mut Node, encode: impl FnOnce(u32, &mut Vec<u8>)) -> ErrorBody {
        self.frame(node, encode);
        node.settle();
        error_of(&whole(&self.answer(node))).expect("an error frame")
    }

    /// The next frame that is no credit.
    fn answer(&mut self, node: &Node) -> Vec<u8> {
        loop {
            let bytes = self.next(node).expect("an answer");
            match Credit::decode(&whole(&bytes)) {
                Ok(credit) => self.granted = credit.limit,
                Err(_) => return bytes,
            }
        }
    }

    /// Asks for produce credit until there is some for `bytes`, or for as much of it as anybody gets who has sent nothing yet.
    fn credit(&mut self, node: &mut Node, bytes: u64) {
        while self.granted < self.sent + bytes.min(FIRST_CREDIT) {
            let credit =
                Credit { scope: Scope::Produce, limit: self.granted, reason: Reason::None, wanted: bytes };
            self.frame(node, |_, out| credit.encode(out));
            node.settle();
            let answer = self.next(node).expect("a grant");
            let grant = Credit::decode(&whole(&answer)).expect("a credit frame");
            assert!(grant.limit > self.granted);
            self.granted = grant.limit;
        }
    }

    fn produce_frame(&mut self, log: TopicPartition, acks: Acks, batches: &[u8]) -> Vec<u8> {
        self.correlation += 1;
        let request = ProduceRequest { partition: log, leader_epoch: LeaderEpoch::UNKNOWN, acks };
        let mut out = Vec::new();
        request.encode_head(self.correlation, batches.len(), &mut out);
        out.extend_from_slice(batches);
        out
    }

    /// Puts a produce on its way. The first one brings credit for many.
    fn produce(&mut self, node: &mut Node, log: TopicPartition, acks: Acks, batches: &[u8]) {
        if self.granted == 0 {
            self.credit(node, FIRST_CREDIT);
        }
        let frame = self.produce_frame(log, acks, batches);
        self.credit(node, frame.len() as u64);
        self.sent += frame.len() as u64;
        self.put(node, &frame);
    }

    fn produced(&mut self, node: &mut Node) -> Result<ProduceReply, Box<ErrorBody>> {
        let bytes = self.answer(node);
        let frame = whole(&bytes);
        match error_of(&frame) {
            Some(error) => Err(Box::new(error)),
            None => Ok(ProduceReply::decode(&frame).expect("a produce reply")),
        }
    }

    fn subscribe(
        &mut self,
        node: &mut Node,
        id: u32,
        log: TopicPartition,
        from: i64,
        limit: u64,
    ) -> SubscribeReply {
        let request = subscribe_request(id, log, from, limit);
        self.ask(node, Api::Subscribe, |c, out| request.encode(c, out), SubscribeReply::decode)
    }

    /// Everything that the broker has said meanwhile, in a few words.
    fn heard(&mut self, node: &Node) -> Vec<String> {
        let mut heard = Vec::new();
        while let Some(bytes) = self.next(node) {
            let frame = whole(&bytes);
            let words = match frame.api() {
                _ if frame.kind == Kind::Error => format!("{:?}", error_of(&frame).map(|e| e.code)),
                Ok(Api::Credit) => {
                    self.granted = Credit::decode(&frame).expect("credit").limit;
                    continue;
                }
                Ok(Api::Data) => {
                    let head = DataHead::decode(&frame).expect("data");
                    assert_eq!(batch::heads_crc(frame.body), Ok(head.heads_crc));
                    assert_eq!(batch::Batches::new(frame.body).count(), head.batch_count as usize);
                    format!("data {} {}..{}", head.subscription.0, head.first, head.end)
                }
                Ok(Api::CaughtUp) => {
                    let progress = Progress::decode(&frame, ProgressKind::CaughtUp).expect("caught up");
                    format!("caught_up {} {}", progress.subscription.0, progress.committed)
                }
                Ok(Api::Heartbeat) => {
                    let progress = Progress::decode(&frame, ProgressKind::Heartbeat).expect("heartbeat");
                    format!("heartbeat {}", progress.subscription.0)
                }
                Ok(api) => format!("{api:?}"),
                Err(unsupported) => panic!("{unsupported}"),
            };
            heard.push(words);
        }
        heard
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

fn whole(bytes: &[u8]) -> Frame<'_> {
    match frame::split(bytes, u32::MAX) {
        Ok(Split::Frame(frame)) => frame,
        other => panic!("{other:?}"),
    }
}

fn error_of(frame: &Frame<'_>) -> Option<ErrorBody> {
    (frame.kind == Kind::Error).then(|| ErrorBody::decode(frame).expect("an error body"))
}

fn hello_request(shard: Option<ShardId>) -> HelloRequest {
    let (client_id, software) = ("test".to_owned(), "test 1".to_owned());
    HelloRequest { version_min: 1, version_max: 1, client_id, software, shard }
}

fn create_request(name: &str, partitions: i32, settings: &[(&str, &str)]) -> CreateTopicRequest {
    let setting =
        |(name, value): &(&str, &str)| Setting { name: (*name).to_owned(), value: (*value).to_owned() };
    let settings = settings.iter().map(setting).collect();
    CreateTopicRequest { name: name.to_owned(), partitions, replication: -1, settings }
}

fn subscribe_request(id: u32, log: TopicPartition, from: i64, limit: u64) -> SubscribeRequest {
    SubscribeRequest {
        subscription: SubscriptionId(id),
        partition: log,
        from: Offset(from),
        limit,
        min_bytes: 1,
        max_wait_ms: 0,
        isolation: Isolation::Committed,
        leader_epoch: LeaderEpoch::UNKNOWN,
        last_read_epoch: LeaderEpoch::UNKNOWN,
    }
}

fn log(topic: TopicId, partition: i32) -> TopicPartition {
    TopicPartition { topic, partition: PartitionId(partition) }
}

fn records(count: i32) -> Vec<u8> {
    batch_of(count, 10, BatchOrigin::NONE)
}

fn batch_of(count: i32, value_bytes: usize, origin: BatchOrigin) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    for i in 0..count {
        let none = std::iter::empty::<(&str, Option<&[u8]>)>();
        builder.push(1000 + i64::from(i), None, Some(&vec![b'v'; value_bytes]), none);
    }
    builder.finish(origin)
}

fn origin(producer: ProducerInitReply, sequence: i32) -> BatchOrigin {
    BatchOrigin {
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        base_sequence: Sequence(sequence),
    }
}

fn code(error: Result<ProduceReply, Box<ErrorBody>>) -> Result<ErrorCode, u16> {
    error.expect_err("refused").code
}
