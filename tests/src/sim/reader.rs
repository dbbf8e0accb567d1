//! A simulated consumer: subscriptions with tiny credits, whose every byte is held against what is known.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tidegate_logic::placement::shard_of;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::subscribe::{
    DataHead, Isolation, Progress, ProgressKind, SubscribeReply, SubscribeRequest, SubscriptionId,
};
use tidegate_protocol::batch::Batches;
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::{LeaderEpoch, Offset, ShardId, TopicPartition};

use super::net::{Peer, PeerEvent, PeerOp, Reading};
use super::random::Random;
use super::scene::{Scene, Wanted};
use super::session::{Arrived, Session, Standing};

/// The reader.
pub struct Reader {
    number: u64,
    session: Session,
    scene: Rc<RefCell<Scene>>,
    random: Random,
    /// By subscription number.
    streams: BTreeMap<u32, Stream>,
    next_stream: u32,
    /// What was read of each partition since [`Wanted::Everything`] was said; none before.
    everything: Option<BTreeMap<TopicPartition, Complete>>,
    paused: bool,
}

#[derive(Debug, Default)]
struct Complete {
    start: Option<Offset>,
    bases: BTreeSet<Offset>,
    next: Offset,
    is_done: bool,
}

#[derive(Debug)]
struct Stream {
    log: TopicPartition,
    next: Offset,
    correlation: u32,
    stands: bool,
    /// What was known to lie in the partition when the subscription was asked for.
    firm_end: Offset,
    sent: u64,
    taken: u64,
    limit: u64,
    /// Bytes of credit beyond what was taken.
    window: u64,
    ends: bool,
}

impl Reader {
    /// A reader with that number.
    pub fn new(number: u64, scene: &Rc<RefCell<Scene>>, random: Random) -> Reader {
        Reader {
            number,
            session: Session::new(number),
            scene: Rc::clone(scene),
            random,
            streams: BTreeMap::new(),
            next_stream: 1,
            everything: None,
            paused: false,
        }
    }

    fn wake(&mut self, now_ns: u64, ops: &mut Vec<PeerOp>) {
        let pause_ns = self.random.between(200_000, 5_000_000);
        ops.push(PeerOp::WakeAt(now_ns + self.scene.borrow().pause_ns(pause_ns)));
        let wanted = self.scene.borrow().wanted;
        if wanted == Wanted::Everything && self.everything.is_none() {
            let logs = self.scene.borrow().claims.partitions_that_exist();
            self.everything = Some(logs.into_iter().map(|log| (log, Complete::default())).collect());
            if self.session.standing() != Standing::Gone {
                self.session.close(ops);
            }
            self.streams.clear();
        } else if wanted != Wanted::Everything {
            self.everything = None;
        }
        let done = self.everything.as_ref().is_some_and(|e| e.values().all(|c| c.is_done));
        self.scene.borrow_mut().complete.insert(self.number, done);
        if self.session.close_if_silent(now_ns, ops) {
            self.streams.clear();
        }
        match self.session.standing() {
            Standing::Gone => {
                let shard = self.wanted_shard();
                self.paused = false;
                self.session.connect(now_ns, shard, ops);
                self.scene.borrow_mut().claims.counts.connections += 1;
            }
            Standing::Greeting => {}
            Standing::Ready => {
                if self.random.chance(10_000) || self.is_out_of_work() {
                    self.session.close(ops);
                    self.streams.clear();
                    return;
                }
                self.work();
                self.session.send(ops);
                self.pause(ops);
            }
        }
    }

    /// Stops taking bytes for a while, or takes them again.
    fn pause(&mut self, ops: &mut Vec<PeerOp>) {
        let pauses = self.random.chance(30_000) && self.everything.is_none();
        if pauses != self.paused {
            self.paused = pauses;
            let reading = if pauses { Reading::Off } else { Reading::On };
            ops.push(PeerOp::Reading(self.session.link(), reading));
        }
    }

    fn wanted_shard(&mut self) -> Option<ShardId> {
        let shards = self.scene.borrow().shard_count;
        let open = self.everything.iter().flatten().find(|(_, c)| !c.is_done);
        if let Some((log, _)) = open {
            return Some(shard_of(*log, shards));
        }
        self.random.chance(700_000).then(|| ShardId(self.random.below(shards.into()) as u16))
    }

    /// Everything of this shard is read, but not all.
    fn is_out_of_work(&self) -> bool {
        let Some(everything) = &self.everything else { return false };
        let mut open = everything.iter().filter(|(_, c)| !c.is_done).peekable();
        open.peek().is_some() && !open.any(|(log, _)| self.owns(*log))
    }

    fn owns(&self, log: TopicPartition) -> bool {
        self.session.shard() == Some(shard_of(log, self.scene.borrow().shard_count))
    }

    fn work(&mut self) {
        let streams: Vec<u32> = self.streams.keys().copied().collect();
        for number in streams {
            let stream = &self.streams[&number];
            if stream.ends {
                self.streams.remove(&number);
            } else if stream.stands && self.random.chance(600_000) {
                self.grant(number);
            }
        }
        let logs: Vec<TopicPartition> = match &self.everything {
            Some(everything) => everything.iter().filter(|(_, c)| !c.is_done).map(|(log, _)| *log).collect(),
            None => self.scene.borrow().claims.partitions_that_exist(),
        };
        let mut logs: Vec<TopicPartition> = logs.into_iter().filter(|log| self.owns(*log)).collect();
        logs.retain(|log| !self.streams.values().any(|s| s.log == *log));
        if !logs.is_empty() && self.streams.len() < 3 {
            let log = self.random.pick(&logs);
            self.subscribe(log);
        }
    }

    fn subscribe(&mut self, log: TopicPartition) {
        let scene = self.scene.borrow();
        let (start, firm_end) = (scene.claims.start_firm(log), scene.claims.firm_end(log));
        drop(scene);
        let next = match &self.everything {
            Some(everything) => everything[&log].next.max(start),
            None => Offset(self.random.between(start.0 as u64, firm_end.0.max(start.0) as u64) as i64),
        };
        let window = self.random.pick(&[1, 500, 5_000, 100_000]);
        let correlation = self.next_stream;
        self.next_stream += 1;
        let request = SubscribeRequest {
            subscription: SubscriptionId(correlation),
            partition: log,
            from: next,
            limit: window,
            min_bytes: self.random.pick(&[0, 1, 2_000]),
            max_wait_ms: self.random.between(0, 5) as u32,
            isolation: Isolation::Committed,
            leader_epoch: LeaderEpoch::UNKNOWN,
            last_read_epoch: LeaderEpoch::UNKNOWN,
        };
        // The subscription's number is the correlation of all its frames; requests of this session use no other kind.
        request.encode(correlation, self.session.out());
        let stream = Stream {
            log,
            next,
            correlation,
            stands: false,
            firm_end,
            sent: 0,
            taken: 0,
            limit: window,
            window,
            ends: false,
        };
        self.streams.insert(correlation, stream);
    }

    fn grant(&mut self, number: u32) {
        let stream = self.streams.get_mut(&number).expect("a stream of this reader");
        stream.taken = stream.sent;
        let limit = stream.taken + stream.window;
        if limit > stream.limit {
            stream.limit = limit;
            let scope = Scope::Subscription(SubscriptionId(number));
            Credit { scope, limit, reason: Reason::None, wanted: 0 }.encode(self.session.out());
        }
    }

    fn takes(&mut self, arrived: &Arrived) {
        let Some(stream) = self.streams.get_mut(&arrived.correlation) else { return };
        if stream.ends {
            return;
        }
        assert_eq!(stream.correlation, arrived.correlation);
        let log = stream.log;
        let mut scene = self.scene.borrow_mut();
        if arrived.kind == Kind::Error {
            let error = ErrorBody::decode(&arrived.frame()).expect("a readable error");
            stream.ends = true;
            scene.claims.counts.refused += 1;
            let complete = self.everything.as_mut().and_then(|e| e.get_mut(&log));
            return check_refusal(&scene, stream, complete, &error);
        }
        let frame = arrived.frame();
        if arrived.api == Api::Subscribe.number() {
            let reply = SubscribeReply::decode(&frame).expect("a readable reply");
            scene.claims.check_start(log, reply.start);
            let (have, need) = (reply.committed, stream.firm_end);
            assert!(have >= need, "{log:?}: LOST: readable up to {have}, but {need} was promised");
            stream.stands = true;
            if let Some(complete) = self.everything.as_mut().and_then(|e| e.get_mut(&log)) {
                complete.start.get_or_insert(reply.start);
            }
        } else if arrived.api == Api::Data.number() {
            let head = DataHead::decode(&frame).expect("a readable head");
            let end = scene.claims.read(log, stream.next, frame.body, head.heads_crc);
            stream.check_data(&head, frame.body, end);
            if let Some(complete) = self.everything.as_mut().and_then(|e| e.get_mut(&log)) {
                complete.bases.extend(Batches::new(frame.body).flatten().map(|b| b.header().base_offset));
                complete.next = end;
            }
        } else if arrived.api == Api::CaughtUp.number() {
            let progress = Progress::decode(&frame, ProgressKind::CaughtUp).expect("a readable progress");
            assert_eq!(progress.sent, stream.sent, "{log:?}: bytes sent");
            assert_eq!(progress.committed, stream.next, "{log:?}: caught up before the end");
            if let Some(complete) = self.everything.as_mut().and_then(|e| e.get_mut(&log))
                && !complete.is_done
            {
                complete.is_done = true;
                stream.ends = true;
                let start = complete.start.expect("the reply came first");
                scene.claims.check_complete(log, start, &complete.bases);
            }
        }
    }
}

impl Stream {
    fn check_data(&mut self, head: &DataHead, body: &[u8], end: Offset) {
        let log = self.log;
        assert_eq!(head.end, end, "{log:?}: the end that the head names");
        assert!(head.end <= head.committed, "{log:?}: data above committed: {head:?}");
        let mut last = 0;
        let mut count = 0;
        for batch in Batches::new(body).flatten() {
            last = batch.header().len as u64;
            count += 1;
        }
        assert_eq!(head.batch_count, count, "{log:?}: batches in the body");
        self.sent += body.len() as u64;
        assert_eq!(head.sent, self.sent, "{log:?}: bytes sent");
        assert!(
            self.sent - last < self.limit,
            "{log:?}: a batch began at the limit {}: {head:?}",
            self.limit
        );
        self.next = end;
    }
}

fn check_refusal(scene: &Scene, stream: &Stream, complete: Option<&mut Complete>, error: &ErrorBody) {
    let log = stream.log;
    match error.code.unwrap_or_else(|n| panic!("{log:?}: an error without a known code {n}")) {
        ErrorCode::NotReady | ErrorCode::LimitReached => {}
        ErrorCode::UnknownTopic | ErrorCode::UnknownPartition if scene.claims.may_be_gone(log) => {
            if let Some(complete) = complete {
                complete.is_done = true;
            }
        }
        ErrorCode::OffsetOutOfRange => {
            let start = Offset(error.limit);
            assert!(stream.next < start, "{log:?}: LOST: {} is out of range: {error}", stream.next);
            scene.claims.check_start(log, start);
            if let Some(complete) = complete {
                complete.next = start;
            }
        }
        ErrorCode::UnknownOutcome | ErrorCode::DataDamaged if scene.faults_injected => {}
        _ if scene.bits_flip => {}
        _ => panic!("{log:?}: a subscription from {} ended: {error}", stream.next),
    }
}

impl Peer for Reader {
    fn act(&mut self, now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>) {
        for event in events {
            match event {
                PeerEvent::Wake => self.wake(now_ns, ops),
                PeerEvent::Gone(link) => {
                    if self.session.gone(link) {
                        self.streams.clear();
                    }
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
