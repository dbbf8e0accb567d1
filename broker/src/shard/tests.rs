//! Shards under a reactor of a few lines: ops complete at once, in order, over a disk in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

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
use tidegate_reactor::buffer::Buffer;
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::{Event, Fault, File, Loop, Now, Op, OpenHow, ShardIndex, Socket, Tag, Turn};

use super::{Order, Report, Shard, ShardLimits, ShardParts, Storage};
use crate::limits::Limits;
use crate::log::flush_rule::FlushRule;
use crate::log::{Logs, ShardBoot};
use crate::testdisk::TestDisk;

/// A node of some shards, and clients that talk to it over pipes of bytes.
struct Node {
    shards: Vec<Core>,
    disk: TestDisk,
    sockets: BTreeMap<Socket, Pipe>,
    now: Now,
}

struct Core {
    shard: Shard,
    events: Vec<Event>,
    files: BTreeMap<File, DiskFile>,
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
}

impl Node {
    fn new(shard_count: u16) -> Node {
        Node::with(shard_count, ShardLimits::default(), Storage::Durable)
    }

    fn with(shard_count: u16, limits: ShardLimits, storage: Storage) -> Node {
        let mut disk = TestDisk::with_dir("data");
        let shards = (0..shard_count)
            .map(|shard| Core {
                shard: Shard::new(parts(&mut disk, shard, shard_count, limits, storage)),
                events: Vec::new(),
                files: BTreeMap::new(),
                timers: Vec::new(),
                reports: Vec::new(),
                stopped: false,
            })
            .collect();
        let now = Now { mono_ns: 1, wall_ms: 1_700_000_000_000 };
        let mut node = Node { shards, disk, sockets: BTreeMap::new(), now };
        node.settle();
        for (shard, core) in node.shards.iter().enumerate() {
            let serving = Report::Serving { shard: ShardId(shard as u16) };
            assert_eq!(core.reports, [format!("{serving:?}")]);
        }
        node
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
                views.iter().for_each(|view| pipe.from_broker.extend_from_slice(view));
                core.events.push(Event::Sent { socket, tag, result: Ok(()) });
            }
            Op::Close { socket } => {
                let pipe = self.sockets.get_mut(&socket).expect("a socket of this node");
                pipe.closed = true;
                if let Some(buf) = pipe.receiving.take() {
                    let result = Err(Fault { what: "receive".to_owned(), errno: 125 });
                    core.events.push(Event::Received { socket, buf, result });
                }
                core.events.push(Event::Closed { socket });
            }
            Op::HandOver { socket, to, letter } => {
                core.events.push(Event::HandedOver { socket, result: Ok(()) });
                let pipe = self.sockets.get_mut(&socket).expect("a socket of this node");
                assert!(pipe.receiving.is_none(), "a socket that leaves has no op under way");
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
            | Op::Flush { .. }
            | Op::Remove { .. } => {
                let event = core.on_disk(&mut self.disk, op);
                core.events.push(event);
            }
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
            Op::Flush { file, tag } => Event::Flushed { file, tag, result: disk.flush(self.files[&file]) },
            Op::Remove { path, tag } => Event::Removed { tag, result: disk.remove(&path) },
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

fn parts(
    disk: &mut TestDisk,
    shard: u16,
    shard_count: u16,
    limits: ShardLimits,
    storage: Storage,
) -> ShardParts {
    let cluster = ClusterId([7; 16]);
    let boot = ShardBoot {
        root: PathBuf::from("data"),
        identity: JournalIdentity { cluster, node: NodeId(1), journal: JournalId(u32::from(shard)) },
        incarnation: Incarnation(3),
        shard: ShardId(shard),
        limits: Limits::DEFAULT,
        flush_rule: FlushRule::OneFlush,
    };
    ShardParts {
        shard: ShardId(shard),
        shard_count,
        node: NodeId(1),
        cluster,
        incarnation: Incarnation(3),
        seed: 42,
        limits,
        facts: vec![("version".to_owned(), "test".to_owned())],
        advertised: vec![":0".to_owned(); usize::from(shard_count)],
        storage,
        logs: Logs::open(disk, boot).expect("an empty directory"),
    }
}

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
        let bytes = self.next(node).expect("an answer");
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
        error_of(&whole(&self.next(node).expect("an answer"))).expect("an error frame")
    }

    /// Asks for produce credit until there is some for `bytes`.
    fn credit(&mut self, node: &mut Node, bytes: u64) {
        while self.granted < self.sent + bytes {
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
            self.credit(node, 1 << 20);
        }
        let frame = self.produce_frame(log, acks, batches);
        self.credit(node, frame.len() as u64);
        self.sent += frame.len() as u64;
        self.put(node, &frame);
    }

    fn produced(&mut self, node: &mut Node) -> Result<ProduceReply, Box<ErrorBody>> {
        loop {
            let bytes = self.next(node).expect("an answer");
            let frame = whole(&bytes);
            if let Ok(credit) = Credit::decode(&frame) {
                self.granted = credit.limit;
                continue;
            }
            return match error_of(&frame) {
                Some(error) => Err(Box::new(error)),
                None => Ok(ProduceReply::decode(&frame).expect("a produce reply")),
            };
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
                Ok(Api::Credit) => {
                    self.granted = Credit::decode(&frame).expect("credit").limit;
                    continue;
                }
                _ if frame.kind == Kind::Error => format!("{:?}", error_of(&frame).map(|e| e.code)),
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

#[test]
fn a_record_goes_in_and_comes_out() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(3));
    node.settle();
    let reply = client.produced(&mut node).expect("accepted");
    assert_eq!((reply.base_offset, reply.record_count, reply.level), (Offset(0), 3, Level::Disk));
    assert_eq!(reply.leader_epoch, LeaderEpoch(3));
    let reply = client.subscribe(&mut node, 5, log(topic, 0), 0, 1000);
    assert_eq!((reply.start, reply.committed), (Offset(0), Offset(3)));
    assert_eq!(client.heard(&node), ["data 5 0..3", "caught_up 5 3"]);
    client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    node.settle();
    assert_eq!(client.heard(&node), ["data 5 3..4"]);
}

#[test]
fn a_reply_waits_for_the_flush_and_only_a_relaxed_topic_answers_from_memory() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    let relaxed = node.create(&mut client, "relaxed", 1, &[("durability", "relaxed")]);
    for topic in [durable, relaxed] {
        client.produce(&mut node, log(topic, 0), Acks::All, &records(1));
    }
    // One turn takes in both; the flush of their cycle has not ended.
    node.turn(0);
    let reply = client.produced(&mut node).expect("the relaxed one is answered");
    assert_eq!(reply.level, Level::Memory);
    assert!(client.next(&node).is_none(), "the durable one waits");
    node.settle();
    assert_eq!(client.produced(&mut node).expect("flushed").level, Level::Disk);
}

#[test]
fn replies_of_one_partition_come_in_order_refusals_too() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let mut bad = records(1);
    let last = bad.len() - 1;
    bad[last] ^= 1;
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    client.produce(&mut node, log(topic, 0), Acks::Leader, &bad);
    client.produce(&mut node, log(topic, 0), Acks::None, &bad);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.turn(0);
    assert!(client.next(&node).is_none(), "nothing overtakes the first");
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::BatchCorrupt));
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::BatchCorrupt), "acks=0 hears of refusals");
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(1)));
}

#[test]
fn a_repeated_batch_joins_the_waiters_of_the_original() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let init = ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer: None };
    let producer: ProducerInitReply =
        client.ask(&mut node, Api::ProducerInit, |c, out| init.encode(c, out), ProducerInitReply::decode);
    assert_eq!(producer, ProducerInitReply { producer_id: ProducerId(0), producer_epoch: ProducerEpoch(0) });
    let first = batch_of(2, 10, origin(producer, 0));
    for _ in 0..2 {
        client.produce(&mut node, log(topic, 0), Acks::Leader, &first);
    }
    node.turn(0);
    assert!(client.next(&node).is_none(), "the repetition is not answered before the original");
    node.settle();
    for _ in 0..2 {
        assert_eq!(client.produced(&mut node).map(|r| (r.base_offset, r.record_count)), Ok((Offset(0), 2)));
    }
    // Long after the flush a repetition is answered at once; a gap is refused with what was expected.
    client.produce(&mut node, log(topic, 0), Acks::Leader, &first);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &batch_of(1, 10, origin(producer, 7)));
    node.turn(0);
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
    let error = client.produced(&mut node).expect_err("a gap");
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::OutOfSequence), 2, 7));
}

#[test]
fn produce_is_refused_for_each_reason_with_its_own_code() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[("batch.bytes.max", "1024")]);
    let (here, there) =
        if node.shards[0].shard.partitions.contains_key(&log(topic, 0)) { (0, 1) } else { (1, 0) };
    let cases = [
        (log(TopicId([9; 16]), 0), records(1), ErrorCode::UnknownTopic),
        (log(TopicId::METADATA, 0), records(1), ErrorCode::UnknownTopic),
        (log(topic, 2), records(1), ErrorCode::UnknownPartition),
        (log(topic, -1), records(1), ErrorCode::UnknownPartition),
        (log(topic, there), records(1), ErrorCode::WrongShard),
        (log(topic, here), batch_of(1, 2000, BatchOrigin::NONE), ErrorCode::BatchTooLarge),
        (log(topic, here), Vec::new(), ErrorCode::InvalidRequest),
        (log(topic, here), records(1)[..50].to_vec(), ErrorCode::BatchInvalid),
    ];
    for (log, batches, expected) in cases {
        client.produce(&mut node, log, Acks::Leader, &batches);
        node.settle();
        assert_eq!(code(client.produced(&mut node)), Ok(expected), "{log:?}");
    }
    let stale =
        ProduceRequest { partition: log(topic, here), leader_epoch: LeaderEpoch(2), acks: Acks::Leader };
    let body = records(1);
    client.credit(&mut node, 1000);
    let error = client.refused(&mut node, |c, out| {
        stale.encode_head(c, body.len(), out);
        out.extend_from_slice(&body);
    });
    assert_eq!((error.code, error.limit), (Ok(ErrorCode::StaleEpoch), 3));
}

#[test]
fn without_credit_a_produce_is_refused_and_the_connection_stays() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let frame = client.produce_frame(log(topic, 0), Acks::Leader, &records(1));
    client.put(&mut node, &frame);
    client.sent += frame.len() as u64;
    node.settle();
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::OutOfCredit));
    let ping = Ping { nonce: 5, produce_bytes: 0, produce_limit: 0 };
    let pong = client.ask(
        &mut node,
        Api::Ping,
        |c, out| ping.encode(Kind::Request, c, out),
        |f| Ping::decode(f, Kind::Reply),
    );
    assert_eq!(pong, Ping { nonce: 5, produce_bytes: frame.len() as u64, produce_limit: 0 });
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
}

#[test]
fn a_stream_that_cannot_be_trusted_is_answered_and_closed_and_others_go_on() {
    let mut node = Node::new(1);
    let (mut bad, mut good) = (node.connect(None), node.connect(None));
    let too_long = u32::MAX.to_le_bytes();
    bad.put(&mut node, &too_long);
    node.settle();
    let answer = bad.next(&node).expect("an error frame");
    assert_eq!(error_of(&whole(&answer)).map(|e| e.code), Some(Ok(ErrorCode::FrameTooLarge)));
    assert!(node.sockets[&bad.socket].closed);
    assert_eq!(node.shards[0].shard.connections.len(), 1);
    node.create(&mut good, "t", 1, &[]);
}

#[test]
fn an_unknown_api_is_refused_and_the_connection_stays() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let error = client.refused(&mut node, |c, out| {
        frame::encode(99, 1, Kind::Request, c, &[0u8; 0][..], 0, out);
    });
    assert_eq!(error.code, Ok(ErrorCode::UnsupportedVersion));
    node.create(&mut client, "t", 1, &[]);
}

#[test]
fn frames_cut_anywhere_mean_the_same() {
    for piece in [1, 7, 64, 5000] {
        let mut node = Node::new(1);
        let mut client = node.connect(None);
        let topic = node.create(&mut client, "t", 1, &[]);
        let mut stream = Vec::new();
        for _ in 0..5 {
            stream.extend(client.produce_frame(
                log(topic, 0),
                Acks::Leader,
                &batch_of(3, 900, BatchOrigin::NONE),
            ));
        }
        client.credit(&mut node, stream.len() as u64);
        for bytes in stream.chunks(piece) {
            client.put(&mut node, bytes);
            node.turn(0);
        }
        node.settle();
        for expected in 0..5 {
            assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(expected * 3)));
        }
    }
}

#[test]
fn a_connection_goes_to_the_shard_that_it_asks_for() {
    let mut node = Node::new(3);
    for shard in 0..3 {
        let mut client = node.connect(Some(shard));
        assert_eq!(node.sockets[&client.socket].shard, usize::from(shard));
        node.create(&mut client, &format!("t{shard}"), 3, &[]);
    }
    let mut client = node.connect(None);
    let request = MetadataRequest::All;
    let reply: MetadataReply =
        client.ask(&mut node, Api::Metadata, |c, out| request.encode(c, out), MetadataReply::decode);
    let names: Vec<&str> = reply.topics.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["t0", "t1", "t2"]);
    assert!(reply.topics.iter().all(|t| t.partitions.len() == 3));
    let socket = Socket(999);
    node.sockets.insert(socket, Pipe::default());
    node.shards[0].events.push(Event::Accepted { socket });
    let mut stranger = Client { socket, correlation: 0, read: 0, granted: 0, sent: 0 };
    let error = stranger.refused(&mut node, |c, out| hello_request(Some(ShardId(7))).encode(c, out));
    assert_eq!((error.code, error.field.as_str()), (Ok(ErrorCode::InvalidRequest), "shard"));
}

#[test]
fn topics_are_created_described_altered_and_deleted_from_any_shard() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(1));
    let topic = node.create(&mut client, "t", 2, &[("retention.ms", "5000")]);
    let error = client.refused(&mut node, |c, out| create_request("t", 1, &[]).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::TopicExists));
    let error = client.refused(&mut node, |c, out| create_request("u", 0, &[("x", "y")]).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::InvalidTopic));
    let settings = vec![Setting { name: "durability".to_owned(), value: "relaxed".to_owned() }];
    let alter = AlterTopicRequest { name: "t".to_owned(), partitions: 4, settings };
    client.ask(
        &mut node,
        Api::AlterTopic,
        |c, out| alter.encode(c, out),
        |f| Done::decode(f, Api::AlterTopic),
    );
    let describe = DescribeTopicRequest { names: Vec::new() };
    let reply: DescribeTopicReply = client.ask(
        &mut node,
        Api::DescribeTopic,
        |c, out| describe.encode(c, out),
        DescribeTopicReply::decode,
    );
    assert_eq!(reply.topics.len(), 1);
    let described = &reply.topics[0];
    let partitions: Vec<i32> = described.partitions.iter().map(|p| p.partition.0).collect();
    assert_eq!((described.topic, partitions), (topic, vec![0, 1, 2, 3]));
    let value = |name: &str| described.settings.iter().find(|s| s.name == name).map(|s| s.value.as_str());
    assert_eq!((value("retention.ms"), value("durability")), (Some("5000"), Some("relaxed")));
    let delete = DeleteTopicRequest { name: "t".to_owned() };
    client.ask(
        &mut node,
        Api::DeleteTopic,
        |c, out| delete.encode(c, out),
        |f| Done::decode(f, Api::DeleteTopic),
    );
    assert!(node.shards.iter().all(|core| core.shard.partitions.is_empty()));
    let error = client.refused(&mut node, |c, out| delete.encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::UnknownTopic));
    assert_ne!(node.create(&mut client, "t", 1, &[]), topic, "an identity is never used again");
}

#[test]
fn deleting_a_topic_ends_its_subscriptions() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    assert_eq!(client.heard(&node), ["caught_up 1 0"]);
    let delete = DeleteTopicRequest { name: "t".to_owned() };
    client.frame(&mut node, |c, out| delete.encode(c, out));
    node.settle();
    assert_eq!(client.heard(&node), ["Some(Ok(UnknownTopic))", "DeleteTopic"]);
}

#[test]
fn credit_of_a_subscription_bounds_what_is_sent_and_a_batch_may_go_beyond() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    for _ in 0..5 {
        client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 100, BatchOrigin::NONE));
    }
    node.settle();
    client.heard(&node);
    let batch_bytes = batch_of(1, 100, BatchOrigin::NONE).len() as u64;
    client.subscribe(&mut node, 1, log(topic, 0), 0, batch_bytes + 1);
    assert_eq!(client.heard(&node), ["data 1 0..1", "data 1 1..2"]);
    let raise = |limit| Credit {
        scope: Scope::Subscription(SubscriptionId(1)),
        limit,
        reason: Reason::None,
        wanted: 0,
    };
    client.frame(&mut node, |_, out| raise(batch_bytes).encode(out));
    node.settle();
    assert_eq!(client.heard(&node), [""; 0], "a lower limit changes nothing");
    client.frame(&mut node, |_, out| raise(4 * batch_bytes).encode(out));
    node.settle();
    assert_eq!(client.heard(&node), ["data 1 2..4"]);
    let ceiling = Credit { scope: Scope::Connection, limit: 0, reason: Reason::None, wanted: 0 };
    client.frame(&mut node, |_, out| ceiling.encode(out));
    client.frame(&mut node, |_, out| raise(1 << 20).encode(out));
    node.settle();
    assert_eq!(client.heard(&node), [""; 0], "the connection's ceiling holds all of them");
    client.frame(&mut node, |_, out| Credit { limit: 1 << 20, ..ceiling }.encode(out));
    node.settle();
    assert_eq!(client.heard(&node), ["data 1 4..5", "caught_up 1 5"]);
}

#[test]
fn an_unsubscribed_reader_hears_nothing_more_and_its_number_is_free() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    client.heard(&node);
    let error = client.refused(&mut node, |c, out| subscribe_request(1, log(topic, 0), 0, 9).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::InvalidRequest), "{error:?}");
    let end = UnsubscribeRequest { subscription: SubscriptionId(1) };
    client.ask(
        &mut node,
        Api::Unsubscribe,
        |c, out| end.encode(c, out),
        |f| Done::decode(f, Api::Unsubscribe),
    );
    client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    node.settle();
    assert_eq!(client.heard(&node), [""; 0]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    assert_eq!(client.heard(&node), ["data 1 0..1", "caught_up 1 1"]);
    let error = client.refused(&mut node, |c, out| subscribe_request(2, log(topic, 0), 2, 9).encode(c, out));
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::OffsetOutOfRange), 0, 1));
}

#[test]
fn few_bytes_wait_for_more_but_not_for_ever() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let request =
        SubscribeRequest { min_bytes: 400, max_wait_ms: 50, ..subscribe_request(1, log(topic, 0), 0, 9999) };
    client.ask(&mut node, Api::Subscribe, |c, out| request.encode(c, out), SubscribeReply::decode);
    assert_eq!(client.heard(&node), ["caught_up 1 0"]);
    client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 100, BatchOrigin::NONE));
    node.settle();
    node.pass(49);
    assert_eq!(client.heard(&node), [""; 0]);
    node.pass(1);
    assert_eq!(client.heard(&node), ["data 1 0..1"]);
    client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 100, BatchOrigin::NONE));
    node.settle();
    client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 300, BatchOrigin::NONE));
    node.settle();
    assert_eq!(client.heard(&node), ["data 1 1..3"], "enough has come together before the time was up");
}

#[test]
fn a_quiet_subscription_gets_heartbeats_and_a_busy_one_does_not() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 9999);
    client.heard(&node);
    node.pass(600);
    client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    node.settle();
    node.pass(600);
    assert_eq!(client.heard(&node), ["data 1 0..1"]);
    node.pass(1000);
    assert_eq!(client.heard(&node), ["heartbeat 1"]);
}

#[test]
fn stored_offsets_come_back_on_every_shard_and_unknown_partitions_are_refused_one_by_one() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    for name in ["a", "billing", "telemetry-eu"] {
        let stored = |partition, offset| StoredOffset {
            partition: log(topic, partition),
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(3),
            metadata: "note".to_owned(),
        };
        let commit = OffsetCommitRequest {
            group: name.to_owned(),
            generation: -1,
            member: String::new(),
            offsets: vec![stored(0, 5), stored(9, 1), stored(1, -3), stored(1, 7)],
        };
        let reply: OffsetCommitReply = client.ask(
            &mut node,
            Api::OffsetCommit,
            |c, out| commit.encode(c, out),
            OffsetCommitReply::decode,
        );
        let expected = [None, Some(ErrorCode::UnknownPartition), Some(ErrorCode::InvalidRequest), None];
        assert_eq!(reply.results, expected);
        let mut other = node.connect(Some(1));
        let fetch = OffsetFetchRequest { group: name.to_owned(), partitions: Vec::new() };
        let reply: OffsetFetchReply =
            other.ask(&mut node, Api::OffsetFetch, |c, out| fetch.encode(c, out), OffsetFetchReply::decode);
        assert_eq!(reply.offsets, [stored(0, 5), stored(1, 7)]);
    }
}

#[test]
fn offsets_are_listed_and_records_trimmed_from_any_shard() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    for partition in 0..2 {
        let log = log(topic, partition);
        let owner = u16::from(node.shards[1].shard.partitions.contains_key(&log));
        let mut producer = node.connect(Some(owner));
        for _ in 0..3 {
            producer.produce(&mut node, log, Acks::None, &records(2));
        }
        node.settle();
        let mut list = |node: &mut Node, query| {
            let request = ListOffsetsRequest { partition: log, query };
            let reply: ListOffsetsReply =
                client.ask(node, Api::ListOffsets, |c, out| request.encode(c, out), ListOffsetsReply::decode);
            reply.offset
        };
        assert_eq!(list(&mut node, OffsetQuery::Earliest), Offset(0));
        assert_eq!(list(&mut node, OffsetQuery::Latest), Offset(6));
        assert_eq!(list(&mut node, OffsetQuery::AppendTime(0)), Offset(0));
        assert_eq!(list(&mut node, OffsetQuery::AppendTime(i64::MAX)), Offset(6));
        let trim = DeleteRecordsRequest { partition: log, before: Offset(2) };
        let reply: DeleteRecordsReply = client.ask(
            &mut node,
            Api::DeleteRecords,
            |c, out| trim.encode(c, out),
            DeleteRecordsReply::decode,
        );
        assert_eq!(reply.start, Offset(2));
        let beyond = DeleteRecordsRequest { partition: log, before: Offset(7) };
        let error = client.refused(&mut node, |c, out| beyond.encode(c, out));
        assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::OffsetOutOfRange), 2, 6));
    }
}

#[test]
fn producer_ids_are_leased_in_ranges_and_epochs_rise() {
    let limits = ShardLimits { producer_ids_lease: 2, ..ShardLimits::default() };
    let mut node = Node::with(2, limits, Storage::Durable);
    let mut client = node.connect(Some(1));
    let mut init = |node: &mut Node, producer| {
        let request = ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer };
        let reply: ProducerInitReply =
            client.ask(node, Api::ProducerInit, |c, out| request.encode(c, out), ProducerInitReply::decode);
        (reply.producer_id.0, reply.producer_epoch.0)
    };
    let given: Vec<(i64, i16)> = (0..5).map(|_| init(&mut node, None)).collect();
    assert_eq!(given, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(init(&mut node, Some((ProducerId(3), ProducerEpoch(6)))), (3, 7));
    assert_eq!(init(&mut node, Some((ProducerId(3), ProducerEpoch(i16::MAX)))), (5, 0));
}

#[test]
fn storage_that_cannot_flush_never_claims_disk() {
    let mut node = Node::with(1, ShardLimits::default(), Storage::Volatile { allowed: false });
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    let relaxed = node.create(&mut client, "relaxed", 1, &[("durability", "relaxed")]);
    client.produce(&mut node, log(durable, 0), Acks::Leader, &records(1));
    client.produce(&mut node, log(relaxed, 0), Acks::Leader, &records(1));
    node.settle();
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::DurabilityNotAvailable));
    assert_eq!(client.produced(&mut node).map(|r| r.level), Ok(Level::Memory));

    let mut node = Node::with(1, ShardLimits::default(), Storage::Volatile { allowed: true });
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    client.produce(&mut node, log(durable, 0), Acks::All, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| r.level), Ok(Level::Memory));
}

#[test]
fn status_has_the_same_counters_of_every_shard() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(1));
    let reply: StatusReply =
        client.ask(&mut node, Api::Status, |c, out| StatusRequest.encode(c, out), StatusReply::decode);
    assert_eq!(reply.facts, [("version".to_owned(), "test".to_owned())]);
    let names = |shard: usize| reply.shards[shard].iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(0), names(1));
    assert!(names(0).contains(&"acks".to_owned()));
}

#[test]
fn a_client_that_does_not_say_hello_is_let_go() {
    let mut node = Node::new(1);
    let socket = Socket(900);
    node.sockets.insert(socket, Pipe::default());
    node.shards[0].events.push(Event::Accepted { socket });
    node.settle();
    node.pass(9_000);
    assert!(!node.sockets[&socket].closed);
    node.pass(1_200);
    assert!(node.sockets[&socket].closed);
}

#[test]
fn a_stop_answers_what_is_under_way_and_then_ends() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    let here = i32::from(!node.shards[0].shard.partitions.contains_key(&log(topic, 0)));
    client.produce(&mut node, log(topic, here), Acks::Leader, &records(1));
    node.turn(0);
    for core in &mut node.shards {
        core.events.push(Event::Order { letter: Box::new(Order::Stop) });
    }
    node.settle();
    node.pass(200);
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
    assert!(node.sockets[&client.socket].closed);
    assert!(node.shards.iter().all(|core| core.stopped));
}
