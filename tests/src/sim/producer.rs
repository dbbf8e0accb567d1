//! A simulated producer: numbered batches to some partitions, resent byte for byte until they are acknowledged.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tidegate_logic::placement::shard_of;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::produce::{Acks, Level, ProduceReply, ProduceRequest};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::batch::{BatchBuilder, BatchHeader, BatchOrigin, BatchView};
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence, ShardId, TopicPartition};

use super::net::{Peer, PeerEvent, PeerOp};
use super::random::Random;
use super::scene::{Scene, Wanted};
use super::session::{Arrived, Session, Standing};

/// Batches under way per partition: fewer than the broker remembers.
const UNDER_WAY_MAX: usize = 4;

/// The producer.
pub struct Producer {
    number: u64,
    session: Session,
    scene: Rc<RefCell<Scene>>,
    random: Random,
    id: Option<(ProducerId, ProducerEpoch)>,
    init_under_way: Option<u32>,
    lanes: BTreeMap<TopicPartition, Lane>,
    /// Batches without a sequence that are on their way, by correlation: they are sent once, whatever becomes of them.
    once: BTreeMap<u32, Once>,
}

/// A batch that is sent once.
#[derive(Debug)]
struct Once {
    log: TopicPartition,
    header: BatchHeader,
    acks: Acks,
}

/// What one partition gets from the producer.
#[derive(Debug, Default)]
struct Lane {
    next: i32,
    /// Not acknowledged, oldest first; the first `under_way.len()` of them are on their way on this connection.
    batches: VecDeque<Batch>,
    /// Correlations of what is on its way, and the sequences of those batches.
    under_way: VecDeque<(u32, Sequence)>,
    /// An error came: wait until all that is on its way was answered, then begin again with the first.
    rewinds: bool,
}

#[derive(Debug)]
struct Batch {
    bytes: Vec<u8>,
    header: BatchHeader,
    sends: u32,
}

impl Producer {
    /// A producer with that number.
    pub fn new(number: u64, scene: &Rc<RefCell<Scene>>, random: Random) -> Producer {
        Producer {
            number,
            session: Session::new(number),
            scene: Rc::clone(scene),
            random,
            id: None,
            init_under_way: None,
            lanes: BTreeMap::new(),
            once: BTreeMap::new(),
        }
    }

    fn wake(&mut self, now_ns: u64, ops: &mut Vec<PeerOp>) {
        let pause_ns = self.random.between(100_000, 3_000_000);
        ops.push(PeerOp::WakeAt(now_ns + self.scene.borrow().pause_ns(pause_ns)));
        self.forget_deleted();
        let waiting = self.lanes.values().map(|l| l.batches.len()).sum();
        self.scene.borrow_mut().unacknowledged.insert(self.number, waiting);
        if self.session.close_if_silent(now_ns, ops) {
            self.disconnected();
        }
        match self.session.standing() {
            Standing::Gone => {
                let shard = self.wanted_shard();
                self.session.connect(now_ns, shard, ops);
                self.scene.borrow_mut().claims.counts.connections += 1;
            }
            Standing::Greeting => {}
            Standing::Ready => {
                let idle = self.lanes.values().all(|l| l.under_way.is_empty());
                let elsewhere = self.lanes.iter().any(|(log, l)| !l.batches.is_empty() && !self.owns(*log));
                if self.random.chance(20_000) || (idle && elsewhere && self.random.chance(100_000)) {
                    self.session.close(ops);
                    self.disconnected();
                    return;
                }
                self.session.ask_again();
                self.work();
                self.session.send(ops);
            }
        }
    }

    fn disconnected(&mut self) {
        self.init_under_way = None;
        self.once.clear();
        for lane in self.lanes.values_mut() {
            lane.under_way.clear();
            lane.rewinds = false;
        }
    }

    fn forget_deleted(&mut self) {
        let scene = self.scene.borrow();
        self.lanes.retain(|log, _| scene.claims.may_exist(*log));
    }

    /// The shard that owns something which waits; none in particular if nothing does.
    fn wanted_shard(&mut self) -> Option<ShardId> {
        let shards = self.scene.borrow().shard_count;
        let waiting: Vec<TopicPartition> =
            self.lanes.iter().filter(|(_, l)| !l.batches.is_empty()).map(|(log, _)| *log).collect();
        if !waiting.is_empty() {
            return Some(shard_of(self.random.pick(&waiting), shards));
        }
        self.random.chance(700_000).then(|| ShardId(self.random.below(shards.into()) as u16))
    }

    fn owns(&self, log: TopicPartition) -> bool {
        self.session.shard() == Some(shard_of(log, self.scene.borrow().shard_count))
    }

    fn work(&mut self) {
        let Some(id) = self.id else { return self.init() };
        let (wanted, partitions) = {
            let scene = self.scene.borrow();
            (scene.wanted, scene.claims.partitions_that_exist())
        };
        if wanted == Wanted::Work {
            let mine: Vec<TopicPartition> = partitions.into_iter().filter(|p| self.owns(*p)).collect();
            for _ in 0..self.random.between(0, 3) {
                if mine.is_empty() {
                    continue;
                }
                let log = self.random.pick(&mine);
                let is_relaxed = self.scene.borrow().claims.is_relaxed(log);
                // What is acknowledged from memory may vanish with its sequence.
                if is_relaxed || self.random.chance(50_000) {
                    self.send_once(log);
                } else {
                    self.enqueue(log, id);
                }
            }
        }
        let lanes: Vec<TopicPartition> = self.lanes.keys().copied().collect();
        for log in lanes {
            if self.owns(log) {
                self.send_lane(log);
            }
        }
    }

    fn init(&mut self) {
        if self.init_under_way.is_none() {
            let correlation = self.session.correlation();
            let request =
                ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer: None };
            request.encode(correlation, self.session.out());
            self.init_under_way = Some(correlation);
        }
    }

    fn enqueue(&mut self, log: TopicPartition, (id, epoch): (ProducerId, ProducerEpoch)) {
        let lane = self.lanes.entry(log).or_default();
        if lane.batches.len() > 2 * UNDER_WAY_MAX {
            return;
        }
        let base_sequence = Sequence(lane.next);
        let origin = BatchOrigin { producer_id: id, producer_epoch: epoch, base_sequence };
        let (bytes, header) = self.batch(origin);
        let lane = self.lanes.entry(log).or_default();
        lane.next += header.records_count;
        lane.batches.push_back(Batch { bytes, header, sends: 0 });
    }

    fn batch(&mut self, origin: BatchOrigin) -> (Vec<u8>, BatchHeader) {
        let bytes_max = self.scene.borrow().batch_bytes_max;
        let records = self.random.between(1, 3);
        let large = self.random.chance(50_000);
        let value_max = if large { bytes_max / records - 200 } else { 400 };
        let mut builder = BatchBuilder::new(Vec::new());
        for _ in 0..records {
            let len = self.random.between(8, value_max) as usize;
            let mut value = vec![0; len];
            value.chunks_mut(8).for_each(|c| c.copy_from_slice(&self.random.word().to_le_bytes()[..c.len()]));
            builder.push(1_780_000_000_000, None, Some(&value), []);
        }
        let bytes = builder.finish(origin);
        let header = *BatchView::parse(&bytes).expect("just built").header();
        (bytes, header)
    }

    /// Sends a batch without a sequence, if there is credit for it.
    fn send_once(&mut self, log: TopicPartition) {
        let (bytes, header) = self.batch(BatchOrigin::NONE);
        let acks = self.random.pick(&[Acks::None, Acks::Leader, Acks::All]);
        let correlation = self.session.correlation();
        let request = ProduceRequest { partition: log, leader_epoch: LeaderEpoch::UNKNOWN, acks };
        let mut frame = Vec::new();
        request.encode_head(correlation, bytes.len(), &mut frame);
        frame.extend_from_slice(&bytes);
        if !self.session.may_produce(frame.len() as u64) {
            return;
        }
        self.session.out().extend_from_slice(&frame);
        let mut scene = self.scene.borrow_mut();
        scene.claims.sending(log, &header);
        scene.claims.counts.sent_once += 1;
        self.once.insert(correlation, Once { log, header, acks });
    }

    fn takes_once(&mut self, once: Once, arrived: &Arrived) {
        let scene = &mut *self.scene.borrow_mut();
        let Once { log, header, acks } = once;
        if arrived.kind == Kind::Error {
            let error = ErrorBody::decode(&arrived.frame()).expect("a readable error");
            return check_refusal(scene, log, &Lane::default(), true, &error);
        }
        let reply = ProduceReply::decode(&arrived.frame()).expect("a readable reply");
        assert_ne!(acks, Acks::None, "{log:?}: an acknowledgement that was not asked for: {reply:?}");
        let is_relaxed = scene.claims.is_relaxed(log);
        let least = if is_relaxed { Level::Memory } else { Level::Disk };
        assert!(reply.level >= least, "{log:?}: {acks:?} was answered with {:?}", reply.level);
        // From memory nothing is promised: what becomes of it is held against what was sent alone.
        if reply.level >= Level::Disk {
            scene.claims.acked(log, &header, reply.base_offset);
        }
    }

    fn send_lane(&mut self, log: TopicPartition) {
        let lane = self.lanes.get_mut(&log).expect("a lane of this producer");
        while !lane.rewinds && lane.under_way.len() < UNDER_WAY_MAX {
            let Some(batch) = lane.batches.get_mut(lane.under_way.len()) else { return };
            let correlation = self.session.correlation();
            let acks = if self.random.chance(500_000) { Acks::Leader } else { Acks::All };
            let request = ProduceRequest { partition: log, leader_epoch: LeaderEpoch::UNKNOWN, acks };
            let mut frame = Vec::new();
            request.encode_head(correlation, batch.bytes.len(), &mut frame);
            frame.extend_from_slice(&batch.bytes);
            if !self.session.may_produce(frame.len() as u64) {
                return;
            }
            self.session.out().extend_from_slice(&frame);
            self.scene.borrow_mut().claims.sending(log, &batch.header);
            batch.sends += 1;
            lane.under_way.push_back((correlation, batch.header.base_sequence));
        }
    }

    fn takes(&mut self, arrived: &Arrived) {
        if self.init_under_way == Some(arrived.correlation) {
            self.init_under_way = None;
            if arrived.kind == Kind::Reply {
                let reply = ProducerInitReply::decode(&arrived.frame()).expect("a readable reply");
                self.scene.borrow_mut().claims.producer_given(reply.producer_id);
                self.id = Some((reply.producer_id, reply.producer_epoch));
            }
            return;
        }
        if let Some(once) = self.once.remove(&arrived.correlation) {
            return self.takes_once(once, arrived);
        }
        let waits = |l: &Lane| l.under_way.iter().any(|(c, _)| *c == arrived.correlation);
        let Some((log, lane)) = self.lanes.iter_mut().find(|(_, l)| waits(l)) else { return };
        let is_doubtful = arrived.kind == Kind::Error && self.scene.borrow().bits_flip;
        let next = lane.under_way.front().map(|(correlation, _)| *correlation);
        if is_doubtful && next != Some(arrived.correlation) {
            // A request that cannot be read is answered out of turn, and the broker closes.
            return;
        }
        assert!(
            is_doubtful || arrived.api == Api::Produce.number(),
            "the answer to a produce: {}",
            arrived.api
        );
        let (correlation, sequence) = lane.under_way.pop_front().expect("just found");
        assert_eq!(
            correlation, arrived.correlation,
            "{log:?}: replies to a partition's produces come in order"
        );
        if arrived.kind == Kind::Error {
            let error = ErrorBody::decode(&arrived.frame()).expect("a readable error");
            let alone = !lane.rewinds;
            lane.rewinds = !lane.under_way.is_empty();
            return check_refusal(&mut self.scene.borrow_mut(), *log, lane, alone, &error);
        }
        let reply = ProduceReply::decode(&arrived.frame()).expect("a readable reply");
        assert_ne!(reply.level, Level::None, "{log:?}: an acknowledgement says what was met");
        assert!(reply.level >= Level::Disk, "{log:?}: a durable topic was acknowledged as {:?}", reply.level);
        // Behind a refused batch this is one that came over an earlier connection too.
        let at = lane.batches.iter().position(|b| b.header.base_sequence == sequence);
        let batch = at.and_then(|at| lane.batches.remove(at)).expect("what is on its way is kept");
        lane.rewinds &= !lane.under_way.is_empty();
        assert_eq!(reply.record_count, batch.header.records_count as u32, "{log:?}: records of a produce");
        let mut scene = self.scene.borrow_mut();
        scene.claims.counts.duplicates_joined += u64::from(batch.sends > 1);
        scene.claims.acked(*log, &batch.header, reply.base_offset);
    }
}

/// An error in answer to the first batch that is not acknowledged, or to one behind a refused one.
fn check_refusal(scene: &mut Scene, log: TopicPartition, lane: &Lane, first: bool, error: &ErrorBody) {
    scene.claims.counts.refused += 1;
    let code = error.code.unwrap_or_else(|n| panic!("{log:?}: an error without a known code {n}"));
    match code {
        ErrorCode::NotReady | ErrorCode::OutOfCredit | ErrorCode::LimitReached => {}
        ErrorCode::UnknownOutcome | ErrorCode::DiskFull | ErrorCode::ReadOnly if scene.faults_injected => {
            scene.is_halted |= code == ErrorCode::UnknownOutcome;
        }
        ErrorCode::UnknownTopic | ErrorCode::UnknownPartition if scene.claims.may_be_gone(log) => {}
        // A producer whose first batch was refused is not known yet when the next one comes.
        ErrorCode::OutOfSequence | ErrorCode::UnknownProducer if !first => {}
        _ if scene.bits_flip => {}
        _ => panic!("{log:?}: refused: {error}; waiting: {:?}", lane.batches.front().map(|b| b.header)),
    }
}

impl Peer for Producer {
    fn act(&mut self, now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>) {
        for event in events {
            match event {
                PeerEvent::Wake => self.wake(now_ns, ops),
                PeerEvent::Gone(link) => {
                    if self.session.gone(link) {
                        self.disconnected();
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
