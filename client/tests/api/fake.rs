//! A broker in memory that speaks the wire protocol, with switches for everything that can go wrong.

mod log;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{Features, HelloReply, HelloRequest, Ping};
use tidegate_protocol::api::metadata::{
    MetadataReply, MetadataRequest, NodeInfo, PartitionInfo, TopicInfo, TopicsWanted,
};
use tidegate_protocol::api::offset::{
    ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply, OffsetCommitRequest, OffsetFetchReply,
    OffsetFetchRequest, OffsetQuery, StoredOffset,
};
use tidegate_protocol::api::produce::{Acks, Level, ProduceReply, ProduceRequest, StageTimes};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::api::subscribe::{
    DataHead, Progress, ProgressKind, SubscribeReply, SubscribeRequest, SubscriptionId, UnsubscribeRequest,
};
use tidegate_protocol::api::topic::{CreateTopicReply, CreateTopicRequest};
use tidegate_protocol::api::{Api, Done};
use tidegate_protocol::batch::{self, BatchView, Batches};
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::{self, Frame, Kind, Split};
use tidegate_protocol::ids::{
    Incarnation, LeaderEpoch, NodeId, Offset, PartitionId, ProducerEpoch, ProducerId, ShardId, TopicId,
    TopicPartition,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub(crate) use self::log::Log;

/// What the broker does that a healthy one would not; counts go down as they are used.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Cut the connection after the next so many produces were stored, before they are answered.
    pub(crate) cut_after_storing: u32,
    /// Cut the connection instead of storing the next so many produces.
    pub(crate) cut_before_storing: u32,
    /// Refuse the next produces with these.
    pub(crate) refuse_produce: VecDeque<ErrorCode>,
    /// Refuse the next subscriptions with these.
    pub(crate) refuse_subscribe: VecDeque<ErrorCode>,
    /// What is stored from the first offset up to the second is damaged; where both are the same, everything behind is lost.
    pub(crate) damaged: Option<(i64, i64)>,
    /// Flip a bit in the body of the next so many data frames.
    pub(crate) damage_data: u32,
    /// Leave out the batch that begins here, so many times.
    pub(crate) leave_out: (i64, u32),
    /// Cut every connection after so many data frames.
    pub(crate) cut_after_data: Option<u32>,
    /// Send bytes that are no frame instead of the next so many produce replies.
    pub(crate) garbage: u32,
    /// Do not answer hello.
    pub(crate) silent: bool,
}

#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) topics: Vec<(String, TopicId, Vec<Log>)>,
    pub(crate) shard_count: u16,
    /// Which shard a partition is on: partition + this, modulo the shards.
    pub(crate) placement: i32,
    pub(crate) epoch: i32,
    pub(crate) level: Level,
    pub(crate) credit_initial: u64,
    /// What `wanted` brings.
    pub(crate) credit_step: u64,
    pub(crate) credit_withheld: bool,
    /// What is told to whoever gets none.
    pub(crate) credit_reason: Reason,
    /// What was asked for, each time.
    pub(crate) credit_wanted: Vec<u64>,
    pub(crate) faults: Faults,
    pub(crate) stored: HashMap<(String, TopicPartition), i64>,
    pub(crate) next_producer: i64,
    /// Topics that one reply to metadata names at most.
    pub(crate) topics_per_reply: usize,
    /// Connections accepted.
    pub(crate) connections: u32,
    /// Produces that began at or beyond the limit: must stay 0.
    pub(crate) credit_broken: u32,
    /// Most data bytes that a subscription got beyond its limit.
    pub(crate) overshoot_max: u64,
    pub(crate) shards_asked: Vec<Option<u16>>,
}

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) address: String,
    broker: Arc<Mutex<Broker>>,
    changed: Arc<Notify>,
    cut: Arc<Notify>,
}

impl Fake {
    pub(crate) async fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let broker = Broker {
            topics: Vec::new(),
            shard_count: 1,
            placement: 0,
            epoch: 0,
            level: Level::Disk,
            credit_initial: 1 << 20,
            credit_step: 1 << 20,
            credit_withheld: false,
            credit_reason: Reason::None,
            credit_wanted: Vec::new(),
            faults: Faults::default(),
            stored: HashMap::new(),
            next_producer: 100,
            topics_per_reply: usize::MAX,
            connections: 0,
            credit_broken: 0,
            overshoot_max: 0,
            shards_asked: Vec::new(),
        };
        let fake = Fake {
            address: listener.local_addr().unwrap().to_string(),
            broker: Arc::new(Mutex::new(broker)),
            changed: Arc::new(Notify::new()),
            cut: Arc::new(Notify::new()),
        };
        let accepting = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = accepting.clone();
                fake.lock().connections += 1;
                tokio::spawn(async move { Session::new(fake).serve(stream).await });
            }
        });
        fake
    }

    /// One with a topic `t`.
    pub(crate) async fn with_topic(partitions: i32) -> Fake {
        let fake = Fake::start().await;
        fake.lock().create("t", partitions);
        fake
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Broker> {
        self.broker.lock().unwrap()
    }

    /// Changes the broker, then lets every connection look.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Broker)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// The values in a partition of topic `t`, in their order.
    pub(crate) fn values(&self, partition: usize) -> Vec<String> {
        let broker = self.lock();
        let mut values = Vec::new();
        for (_, _, bytes) in &broker.topics[0].2[partition].batches {
            let view = BatchView::parse(bytes).unwrap();
            let mut scratch = Vec::new();
            let records = batch::compression::records(&view, 1 << 24, &mut scratch).unwrap();
            values.extend(
                records.map(|record| String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap()),
            );
        }
        values
    }
}

impl Broker {
    pub(crate) fn create(&mut self, name: &str, partitions: i32) -> TopicId {
        let topic = TopicId([self.topics.len() as u8 + 1; 16]);
        let log = || Log { start: 0, end: 0, batches: Vec::new(), producers: HashMap::new() };
        self.topics.push((name.to_string(), topic, (0..partitions).map(|_| log()).collect()));
        topic
    }

    /// Adds partitions to topic `t`.
    pub(crate) fn grow(&mut self, partitions: usize) {
        let log = || Log { start: 0, end: 0, batches: Vec::new(), producers: HashMap::new() };
        self.topics[0].2.resize_with(partitions, log);
    }

    fn log(&mut self, place: TopicPartition) -> Option<&mut Log> {
        let (_, _, logs) = self.topics.iter_mut().find(|(_, topic, _)| *topic == place.topic)?;
        logs.get_mut(usize::try_from(place.partition.0).ok()?)
    }

    fn shard_of(&self, partition: i32) -> u16 {
        ((partition + self.placement) as u16) % self.shard_count
    }
}

/// Whether an offset lies in [`Faults::damaged`].
fn is_in((from, upto): (i64, i64), offset: i64) -> bool {
    offset >= from && (from == upto || offset < upto)
}

struct Subscribed {
    id: u32,
    place: TopicPartition,
    next: i64,
    sent: u64,
    limit: u64,
    caught_up: bool,
}

struct Session {
    fake: Fake,
    shard: u16,
    greeted: bool,
    received: u64,
    limit: u64,
    wanted: bool,
    subscriptions: Vec<Subscribed>,
    out: Vec<u8>,
    closing: bool,
    data_frames: u32,
}

impl Session {
    fn new(fake: Fake) -> Session {
        Session {
            fake,
            shard: 0,
            greeted: false,
            received: 0,
            limit: 0,
            wanted: false,
            subscriptions: Vec::new(),
            out: Vec::new(),
            closing: false,
            data_frames: 0,
        }
    }

    async fn serve(mut self, mut stream: TcpStream) {
        let (changed, cut) = (self.fake.changed.clone(), self.fake.cut.clone());
        let mut cut = std::pin::pin!(cut.notified());
        cut.as_mut().enable();
        let mut input = Vec::new();
        loop {
            let mut changed = std::pin::pin!(changed.notified());
            changed.as_mut().enable();
            while let Split::Frame(frame) = frame::split(&input, 1 << 26).unwrap() {
                let len = frame.len();
                self.on_frame(&frame, len);
                input.drain(..len);
            }
            self.grant();
            self.feed();
            self.refuse_damaged();
            if stream.write_all(&self.out).await.is_err() || self.closing {
                return;
            }
            self.out.clear();
            tokio::select! {
                read = stream.read_buf(&mut input) => if !matches!(read, Ok(1..)) { return },
                () = &mut changed => {}
                () = &mut cut => return,
            }
        }
    }

    fn on_frame(&mut self, frame: &Frame<'_>, len: usize) {
        if self.closing {
            return;
        }
        let api = frame.api().unwrap();
        let correlation = frame.correlation;
        let result = match api {
            Api::Hello => self.hello(frame),
            Api::Ping => {
                let ping = Ping::decode(frame, Kind::Request).unwrap();
                ping.encode(Kind::Reply, correlation, &mut self.out);
                Ok(())
            }
            Api::Metadata => self.metadata(frame),
            Api::CreateTopic => {
                let request = CreateTopicRequest::decode(frame).unwrap();
                let mut broker = self.fake.lock();
                if broker.topics.iter().any(|(name, ..)| *name == request.name) {
                    {
                        let hint = "choose another name".into();
                        Err(Box::new(ErrorBody { hint, ..ErrorBody::of(ErrorCode::TopicExists) }))
                    }
                } else {
                    let topic = broker.create(&request.name, request.partitions);
                    drop(broker);
                    CreateTopicReply { topic }.encode(correlation, &mut self.out);
                    Ok(())
                }
            }
            Api::ProducerInit => self.producer_init(frame),
            Api::Produce => self.produce(frame, len),
            Api::Credit => {
                self.credit(frame);
                Ok(())
            }
            Api::Subscribe => self.subscribe(frame),
            Api::Unsubscribe => {
                let id = UnsubscribeRequest::decode(frame).unwrap().subscription.0;
                self.subscriptions.retain(|subscribed| subscribed.id != id);
                Done.encode(Api::Unsubscribe, correlation, &mut self.out);
                Ok(())
            }
            Api::ListOffsets => self.list_offsets(frame),
            Api::OffsetCommit => self.offset_commit(frame),
            Api::OffsetFetch => self.offset_fetch(frame),
            _ => Err(Box::new(ErrorBody::of(ErrorCode::UnsupportedVersion))),
        };
        if let Err(body) = result {
            body.encode(api.number(), correlation, &mut self.out);
        }
    }

    fn hello(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = HelloRequest::decode(frame).unwrap();
        assert!(!self.greeted, "hello is the first frame, and only the first");
        self.greeted = true;
        let mut broker = self.fake.lock();
        broker.shards_asked.push(request.shard.map(|shard| shard.0));
        if broker.faults.silent {
            return Ok(());
        }
        self.shard = request.shard.map_or(0, |shard| shard.0);
        self.limit = broker.credit_initial;
        let reply = HelloReply {
            version: 1,
            node: NodeId(0),
            cluster: [7; 16],
            incarnation: Incarnation(1),
            shard: ShardId(self.shard),
            shard_count: broker.shard_count,
            software: "fake".into(),
            frame_bytes_max: 1 << 24,
            batch_bytes_max: 1 << 20,
            idempotence_window: 5,
            credit_initial: self.limit,
            features: Features::default(),
        };
        reply.encode(frame.correlation, &mut self.out);
        Ok(())
    }

    fn metadata(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = MetadataRequest::decode(frame).unwrap();
        let broker = self.fake.lock();
        let wanted = |name: &String| match &request.topics {
            TopicsWanted::All => true,
            TopicsWanted::Named(names) => names.contains(name),
        };
        let mut asked: Vec<_> =
            broker.topics.iter().filter(|(name, ..)| wanted(name) && *name > request.after).collect();
        asked.sort_by_key(|(name, ..)| name);
        let more = asked.len() > broker.topics_per_reply;
        let topics = asked.into_iter().take(broker.topics_per_reply).map(|(name, topic, logs)| TopicInfo {
            name: name.clone(),
            topic: *topic,
            partitions: (0..logs.len() as i32)
                .map(|partition| PartitionInfo {
                    partition: PartitionId(partition),
                    leader: NodeId(0),
                    shard: ShardId(broker.shard_of(partition)),
                    epoch: LeaderEpoch(broker.epoch),
                })
                .collect(),
        });
        let shards = vec![String::new(); usize::from(broker.shard_count)];
        let reply = MetadataReply {
            cluster: [7; 16],
            nodes: vec![NodeInfo { node: NodeId(0), shards }],
            topics: topics.collect(),
            more,
        };
        drop(broker);
        reply.encode(frame.correlation, &mut self.out);
        Ok(())
    }

    fn producer_init(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = ProducerInitRequest::decode(frame).unwrap();
        let mut broker = self.fake.lock();
        let reply = match request.producer {
            Some((producer_id, epoch)) => {
                ProducerInitReply { producer_id, producer_epoch: ProducerEpoch(epoch.0 + 1) }
            }
            None => {
                broker.next_producer += 1;
                ProducerInitReply {
                    producer_id: ProducerId(broker.next_producer),
                    producer_epoch: ProducerEpoch(0),
                }
            }
        };
        reply.encode(frame.correlation, &mut self.out);
        Ok(())
    }

    fn produce(&mut self, frame: &Frame<'_>, len: usize) -> Result<(), Box<ErrorBody>> {
        let request = ProduceRequest::decode(frame).unwrap();
        let mut broker = self.fake.lock();
        if self.received >= self.limit {
            broker.credit_broken += 1;
        }
        self.received += len as u64;
        if broker.faults.cut_before_storing > 0 {
            broker.faults.cut_before_storing -= 1;
            self.closing = true;
            return Ok(());
        }
        if let Some(code) = broker.faults.refuse_produce.pop_front() {
            return Err(Box::new(ErrorBody::of(code)));
        }
        if broker.shard_of(request.partition.partition.0) != self.shard {
            return Err(Box::new(ErrorBody::of(ErrorCode::WrongShard)));
        }
        if request.leader_epoch.0 != broker.epoch {
            return Err(Box::new(ErrorBody::of(ErrorCode::StaleEpoch)));
        }
        let (level, epoch) = (broker.level, broker.epoch);
        let Some(log) = broker.log(request.partition) else {
            return Err(Box::new(ErrorBody::of(ErrorCode::UnknownTopic)));
        };
        let mut first = None;
        let mut count = 0;
        for batch in Batches::new(frame.body) {
            let (base, records) = log.append(batch.unwrap().bytes())?;
            first.get_or_insert(base);
            count += records;
        }
        if broker.faults.cut_after_storing > 0 {
            broker.faults.cut_after_storing -= 1;
            self.closing = true;
            return Ok(());
        }
        if broker.faults.garbage > 0 {
            broker.faults.garbage -= 1;
            self.out.extend_from_slice(&[0xff; 64]);
            return Ok(());
        }
        if request.acks != Acks::None {
            let reply = ProduceReply {
                base_offset: Offset(first.unwrap()),
                record_count: count as u32,
                append_time_ms: 1_000_000,
                level,
                leader_epoch: LeaderEpoch(epoch),
                stages: StageTimes::default(),
            };
            reply.encode(frame.correlation, &mut self.out);
        }
        drop(broker);
        self.fake.changed.notify_waiters();
        Ok(())
    }

    fn credit(&mut self, frame: &Frame<'_>) {
        let credit = Credit::decode(frame).unwrap();
        match credit.scope {
            Scope::Produce => {
                self.wanted = credit.wanted > 0;
                self.fake.lock().credit_wanted.push(credit.wanted);
            }
            Scope::Subscription(SubscriptionId(id)) => {
                for subscribed in self.subscriptions.iter_mut().filter(|subscribed| subscribed.id == id) {
                    assert!(credit.limit >= subscribed.limit, "a limit never falls");
                    subscribed.limit = credit.limit;
                }
            }
            Scope::Connection => {}
        }
    }

    fn grant(&mut self) {
        let broker = self.fake.lock();
        let reason = broker.credit_reason;
        if self.wanted && broker.credit_withheld && reason != Reason::None {
            self.wanted = false;
            let credit = Credit { scope: Scope::Produce, limit: self.limit, reason, wanted: 0 };
            credit.encode(&mut self.out);
        }
        if self.wanted && !broker.credit_withheld {
            self.wanted = false;
            self.limit = self.received.max(self.limit) + broker.credit_step;
            let credit = Credit { scope: Scope::Produce, limit: self.limit, reason: Reason::Disk, wanted: 0 };
            credit.encode(&mut self.out);
        }
    }

    fn subscribe(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = SubscribeRequest::decode(frame).unwrap();
        let mut broker = self.fake.lock();
        if let Some(code) = broker.faults.refuse_subscribe.pop_front() {
            return Err(Box::new(ErrorBody::of(code)));
        }
        if broker.shard_of(request.partition.partition.0) != self.shard {
            return Err(Box::new(ErrorBody::of(ErrorCode::WrongShard)));
        }
        let epoch = broker.epoch;
        let Some(log) = broker.log(request.partition) else {
            return Err(Box::new(ErrorBody::of(ErrorCode::UnknownTopic)));
        };
        let (start, end) = (log.start, log.end);
        if request.from.0 < start || request.from.0 > end {
            let (limit, current) = (start, end);
            return Err(Box::new(ErrorBody { limit, current, ..ErrorBody::of(ErrorCode::OffsetOutOfRange) }));
        }
        let reply =
            SubscribeReply { start: Offset(start), committed: Offset(end), leader_epoch: LeaderEpoch(epoch) };
        reply.encode(frame.correlation, &mut self.out);
        self.subscriptions.push(Subscribed {
            id: request.subscription.0,
            place: request.partition,
            next: request.from.0,
            sent: 0,
            limit: request.limit,
            caught_up: false,
        });
        Ok(())
    }

    /// Ends subscriptions that have come to what is damaged.
    fn refuse_damaged(&mut self) {
        let Some((from, upto)) = self.fake.lock().faults.damaged else { return };
        self.subscriptions.retain(|subscribed| {
            let is_damaged = is_in((from, upto), subscribed.next);
            if is_damaged {
                let (limited, limit, current) = ("offset".to_owned(), from, upto);
                let body = ErrorBody { limited, limit, current, ..ErrorBody::of(ErrorCode::DataDamaged) };
                body.encode(Api::Subscribe.number(), subscribed.id, &mut self.out);
            }
            !is_damaged
        });
    }

    /// Sends what there is, a few batches a frame, while credit lasts.
    fn feed(&mut self) {
        let mut broker = self.fake.lock();
        let damaged = broker.faults.damaged;
        for subscribed in &mut self.subscriptions {
            while let Some(log) = broker.log(subscribed.place) {
                let (start, end) = (log.start, log.end);
                let next = subscribed.next;
                if damaged.is_some_and(|damaged| is_in(damaged, next)) {
                    break;
                }
                let batches: Vec<_> = log
                    .batches
                    .iter()
                    .filter(|(_, end, _)| *end > next && *end > start)
                    .take_while(|(_, end, _)| damaged.is_none_or(|(from, _)| next >= from || *end <= from))
                    .take(3)
                    .cloned()
                    .collect();
                if batches.is_empty() {
                    if !subscribed.caught_up {
                        subscribed.caught_up = true;
                        let progress = Progress {
                            subscription: SubscriptionId(subscribed.id),
                            committed: Offset(end),
                            stable: Offset(end),
                            end: Offset(end),
                            sent: subscribed.sent,
                            limit: subscribed.limit,
                        };
                        progress.encode(ProgressKind::CaughtUp, &mut self.out);
                    }
                    break;
                }
                if subscribed.sent >= subscribed.limit {
                    break;
                }
                let (left_out, times) = broker.faults.leave_out;
                let mut batches = batches;
                if times > 0 && batches.len() > 1 && batches.iter().any(|(base, ..)| *base == left_out) {
                    broker.faults.leave_out.1 -= 1;
                    batches.retain(|(base, ..)| *base != left_out);
                }
                subscribed.caught_up = false;
                let mut body: Vec<u8> = batches.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
                subscribed.sent += body.len() as u64;
                let over = subscribed.sent.saturating_sub(subscribed.limit);
                subscribed.next = batches.last().unwrap().1;
                let head = DataHead {
                    subscription: SubscriptionId(subscribed.id),
                    first: Offset(batches[0].0),
                    end: Offset(subscribed.next),
                    batch_count: batches.len() as u32,
                    committed: Offset(end),
                    stable: Offset(end),
                    append_time_first_ms: 5,
                    append_time_last_ms: 6,
                    heads_crc: batch::heads_crc(&body).unwrap(),
                    aborted_count: 0,
                    sent: subscribed.sent,
                };
                broker.overshoot_max = broker.overshoot_max.max(over);
                if broker.faults.damage_data > 0 {
                    broker.faults.damage_data -= 1;
                    let last = body.len() - 1;
                    body[last] ^= 1;
                }
                head.encode_head(body.len(), &mut self.out);
                self.out.extend_from_slice(&body);
                self.data_frames += 1;
                if broker.faults.cut_after_data == Some(self.data_frames) {
                    self.closing = true;
                    return;
                }
            }
        }
    }

    fn list_offsets(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = ListOffsetsRequest::decode(frame).unwrap();
        let mut broker = self.fake.lock();
        let Some(log) = broker.log(request.partition) else {
            return Err(Box::new(ErrorBody::of(ErrorCode::UnknownPartition)));
        };
        let by_time = |time: i64| {
            let batch = log
                .batches
                .iter()
                .find(|(_, _, bytes)| BatchView::parse(bytes).unwrap().header().max_timestamp_ms >= time);
            batch.map_or(log.end, |(base, ..)| *base)
        };
        let offset = match request.query {
            OffsetQuery::Earliest => log.start,
            OffsetQuery::Latest | OffsetQuery::Stable => log.end,
            OffsetQuery::RecordTime(time) | OffsetQuery::AppendTime(time) => by_time(time),
        };
        let reply =
            ListOffsetsReply { offset: Offset(offset), timestamp_ms: -1, leader_epoch: LeaderEpoch(0) };
        reply.encode(frame.correlation, &mut self.out);
        Ok(())
    }

    fn offset_commit(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = OffsetCommitRequest::decode(frame).unwrap();
        let mut broker = self.fake.lock();
        let mut results = Vec::new();
        for stored in request.offsets {
            if broker.log(stored.partition).is_none() {
                results.push(Some(ErrorCode::UnknownPartition));
                continue;
            }
            broker.stored.insert((request.group.clone(), stored.partition), stored.offset.0);
            results.push(None);
        }
        OffsetCommitReply { results }.encode(frame.correlation, &mut self.out);
        Ok(())
    }

    fn offset_fetch(&mut self, frame: &Frame<'_>) -> Result<(), Box<ErrorBody>> {
        let request = OffsetFetchRequest::decode(frame).unwrap();
        let broker = self.fake.lock();
        let found = request.partitions.iter().filter_map(|place| {
            broker.stored.get(&(request.group.clone(), *place)).map(|offset| StoredOffset {
                partition: *place,
                offset: Offset(*offset),
                leader_epoch: LeaderEpoch::UNKNOWN,
                metadata: String::new(),
            })
        });
        OffsetFetchReply { offsets: found.collect() }.encode(frame.correlation, &mut self.out);
        Ok(())
    }
}
