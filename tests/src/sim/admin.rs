//! A simulated operator: topics come and go, partitions are trimmed, consumers store their offsets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_protocol::api::Api;
use tidegate_protocol::api::Done;
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::metadata::{MetadataReply, MetadataRequest};
use tidegate_protocol::api::offset::{
    DeleteRecordsReply, DeleteRecordsRequest, ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply,
    OffsetCommitRequest, OffsetFetchReply, OffsetFetchRequest, OffsetQuery, StoredOffset,
};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicRequest, Setting,
};
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::{LeaderEpoch, Offset, ShardId, TopicId, TopicPartition};

use super::claims::{RELAXED, TopicClaim};
use super::net::{Peer, PeerEvent, PeerOp};
use super::random::Random;
use super::scene::{Scene, Wanted};
use super::session::{Arrived, Session, Standing};

/// Topics at a time.
const TOPICS_MAX: usize = 4;
/// Partitions of a topic, at most.
const PARTITIONS_MAX: i32 = 6;
const GROUPS: [&str; 3] = ["one", "two", "three"];

/// The operator: one request at a time.
pub struct Admin {
    session: Session,
    scene: Rc<RefCell<Scene>>,
    random: Random,
    waiting: Option<(u32, Waiting)>,
    names: u64,
    /// Topics whose fate has to be looked up.
    doubtful: BTreeMap<String, Doubt>,
    /// Topics whose deletion has to be asked for again.
    leaving: BTreeMap<String, TopicId>,
    /// The most partitions that were ever asked for: a request over an earlier connection may come late.
    asked: BTreeMap<String, i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    Creating(i32),
    /// It had so many partitions, and more were asked for perhaps.
    Growing(i32),
    Deleting(TopicId),
}

#[derive(Clone, Debug)]
enum Waiting {
    Create(String, i32),
    Delete(String, TopicId),
    Look(String),
    /// The partitions before, and those asked for.
    Alter(String, i32, i32),
    Trim(TopicPartition),
    Latest(TopicPartition, Offset),
    Store(&'static str, TopicPartition, Offset),
    Stored(&'static str, TopicPartition),
}

impl Admin {
    /// An operator with that number.
    pub fn new(number: u64, scene: &Rc<RefCell<Scene>>, random: Random) -> Admin {
        Admin {
            session: Session::new(number),
            scene: Rc::clone(scene),
            random,
            waiting: None,
            names: 0,
            doubtful: BTreeMap::new(),
            leaving: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    fn wake(&mut self, now_ns: u64, ops: &mut Vec<PeerOp>) {
        let pause_ns = self.random.between(500_000, 6_000_000);
        ops.push(PeerOp::WakeAt(now_ns + self.scene.borrow().pause_ns(pause_ns)));
        if self.session.close_if_silent(now_ns, ops) {
            self.gave_up();
        }
        match self.session.standing() {
            Standing::Gone => {
                let shards = self.scene.borrow().shard_count;
                let shard =
                    self.random.chance(700_000).then(|| ShardId(self.random.below(shards.into()) as u16));
                self.session.connect(now_ns, shard, ops);
                self.scene.borrow_mut().claims.counts.connections += 1;
            }
            Standing::Greeting => {}
            Standing::Ready => {
                if self.random.chance(10_000) {
                    self.session.close(ops);
                    self.gave_up();
                } else if self.waiting.is_none() {
                    self.ask();
                    self.session.send(ops);
                }
            }
        }
    }

    /// The answer to what was asked for will not come.
    fn gave_up(&mut self) {
        match self.waiting.take() {
            Some((_, Waiting::Create(name, partitions))) => {
                self.doubtful.insert(name, Doubt::Creating(partitions));
            }
            Some((_, Waiting::Delete(name, topic))) => {
                self.doubtful.insert(name, Doubt::Deleting(topic));
            }
            Some((_, Waiting::Alter(name, was, _))) => {
                self.doubtful.insert(name, Doubt::Growing(was));
            }
            _ => {}
        }
    }

    fn ask(&mut self) {
        if let Some(name) = self.doubtful.keys().next().cloned() {
            return self.look(name);
        }
        if let Some((name, topic)) = self.leaving.pop_first() {
            return self.ask_delete(name, topic);
        }
        let scene = self.scene.borrow();
        let busy = scene.wanted == Wanted::Work;
        let logs = scene.claims.partitions_that_exist();
        let topics = scene.claims.topics.len();
        drop(scene);
        let choice = self.random.below(100);
        if topics == 0 || (busy && topics < TOPICS_MAX && choice < 20) {
            return self.create();
        }
        if logs.is_empty() || !busy {
            return;
        }
        let log = self.random.pick(&logs);
        match choice {
            0..6 => self.alter(log.topic),
            6..22 if topics > 1 => self.delete(log.topic),
            22..40 => self.trim(log),
            40..60 => self.latest(log),
            60..85 => self.store(log),
            _ => self.stored(log),
        }
    }

    fn wait(&mut self, correlation: u32, waiting: Waiting) {
        self.waiting = Some((correlation, waiting));
    }

    fn create(&mut self) {
        let is_relaxed = self.random.chance(250_000);
        let name = format!("{}{}", if is_relaxed { RELAXED } else { "topic-" }, self.names);
        self.names += 1;
        let partitions = self.random.between(1, 4) as i32;
        self.scene.borrow_mut().claims.topics.insert(name.clone(), TopicClaim::Asked);
        let correlation = self.session.correlation();
        let relaxed = Setting { name: "durability".to_string(), value: "relaxed".to_string() };
        let settings = is_relaxed.then_some(relaxed).into_iter().collect();
        let request = CreateTopicRequest { name: name.clone(), partitions, replication: -1, settings };
        request.encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Create(name, partitions));
    }

    fn delete(&mut self, topic: TopicId) {
        let mut scene = self.scene.borrow_mut();
        let found = scene
            .claims
            .topics
            .iter_mut()
            .find(|(_, claim)| matches!(**claim, TopicClaim::Exists { topic: id, .. } if id == topic));
        let Some((name, claim)) = found else { return };
        let name = name.clone();
        *claim = TopicClaim::Leaving { topic };
        drop(scene);
        self.ask_delete(name, topic);
    }

    fn ask_delete(&mut self, name: String, topic: TopicId) {
        let correlation = self.session.correlation();
        DeleteTopicRequest { name: name.clone() }.encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Delete(name, topic));
    }

    /// Asks for another partition, or none, and changes a setting that changes nothing that is seen here.
    fn alter(&mut self, topic: TopicId) {
        let scene = self.scene.borrow();
        let found = scene.claims.topics.iter().find_map(|(name, claim)| match *claim {
            TopicClaim::Exists { topic: id, partitions } if id == topic => Some((name.clone(), partitions)),
            _ => None,
        });
        drop(scene);
        let Some((name, was)) = found else { return };
        let asked = (was + self.random.below(2) as i32).min(PARTITIONS_MAX);
        const MONTH_MS: &str = "2592000000";
        let value = self.random.pick(&["", MONTH_MS]).to_string();
        let settings = vec![Setting { name: "retention.ms".to_string(), value }];
        let most = self.asked.entry(name.clone()).or_default();
        *most = asked.max(*most);
        let correlation = self.session.correlation();
        AlterTopicRequest { name: name.clone(), partitions: asked, settings }
            .encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Alter(name, was, asked));
    }

    fn look(&mut self, name: String) {
        let correlation = self.session.correlation();
        MetadataRequest::named(vec![name.clone()]).encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Look(name));
    }

    fn trim(&mut self, log: TopicPartition) {
        let mut scene = self.scene.borrow_mut();
        let (start, end) = (scene.claims.start_firm(log), scene.claims.firm_end(log));
        if end <= start {
            return;
        }
        let before =
            Offset(self.random.between(start.0 as u64, (start.0 + (end.0 - start.0) / 2) as u64) as i64);
        scene.claims.trim_asked(log, before);
        drop(scene);
        let correlation = self.session.correlation();
        DeleteRecordsRequest { partition: log, before }.encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Trim(log));
    }

    fn latest(&mut self, log: TopicPartition) {
        let firm_end = self.scene.borrow().claims.firm_end(log);
        let correlation = self.session.correlation();
        let request = ListOffsetsRequest { partition: log, query: OffsetQuery::Latest };
        request.encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Latest(log, firm_end));
    }

    fn store(&mut self, log: TopicPartition) {
        let group = self.random.pick(&GROUPS);
        let offset = Offset(self.random.below(1_000_000) as i64);
        let claim = (group.to_string(), log);
        self.scene.borrow_mut().claims.stored.entry(claim).or_default().maybe.push(offset);
        let stored = StoredOffset {
            partition: log,
            offset,
            leader_epoch: LeaderEpoch(1),
            metadata: "note".to_string(),
        };
        let request = OffsetCommitRequest {
            group: group.to_string(),
            generation: -1,
            member: String::new(),
            offsets: vec![stored],
        };
        let correlation = self.session.correlation();
        request.encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Store(group, log, offset));
    }

    fn stored(&mut self, log: TopicPartition) {
        let group = self.random.pick(&GROUPS);
        let correlation = self.session.correlation();
        OffsetFetchRequest { group: group.to_string(), partitions: vec![log] }
            .encode(correlation, self.session.out());
        self.wait(correlation, Waiting::Stored(group, log));
    }

    fn takes(&mut self, arrived: &Arrived) {
        let Some((correlation, waiting)) = self.waiting.clone() else { return };
        if correlation != arrived.correlation {
            return;
        }
        if arrived.kind == Kind::Error {
            let error = ErrorBody::decode(&arrived.frame()).expect("a readable error");
            self.gave_up();
            return self.check_refusal(&waiting, &error);
        }
        self.waiting = None;
        let frame = arrived.frame();
        let scene = Rc::clone(&self.scene);
        let claims = &mut scene.borrow_mut().claims;
        match waiting {
            Waiting::Create(name, partitions) => {
                let topic = CreateTopicReply::decode(&frame).expect("a readable reply").topic;
                claims.created(name, topic, partitions);
            }
            Waiting::Delete(name, topic) => {
                Done::decode(&frame, Api::DeleteTopic).expect("a readable reply");
                claims.deleted(&name, topic);
            }
            Waiting::Look(name) => {
                let reply = MetadataReply::decode(&frame).expect("a readable reply");
                let found = reply.topics.first().map(|t| (t.topic, t.partitions.len() as i32));
                let doubt = self.doubtful.remove(&name).expect("only doubtful topics are looked up");
                match (doubt, found) {
                    (Doubt::Creating(asked), Some((topic, partitions))) => {
                        assert_eq!(asked, partitions, "topic {name}: its partitions");
                        claims.created(name, topic, partitions);
                    }
                    (Doubt::Creating(_), None) => {
                        claims.topics.remove(&name);
                    }
                    (Doubt::Growing(was), Some((_, partitions))) => {
                        let most = self.asked[&name];
                        let fits = (was..=most).contains(&partitions);
                        assert!(fits, "topic {name}: {partitions} partitions, {was} to {most} were expected");
                        claims.altered(&name, partitions);
                    }
                    (Doubt::Growing(_), None) => {
                        assert!(!claims.topics.contains_key(&name), "topic {name}: LOST: it is not there");
                    }
                    // The request may still be on its way, or not have reached this shard: ask for it again.
                    (Doubt::Deleting(id), Some((topic, _))) => {
                        assert_eq!(id, topic, "topic {name}: its identity");
                        self.leaving.insert(name, topic);
                    }
                    (Doubt::Deleting(id), None) => claims.deleted(&name, id),
                }
            }
            Waiting::Alter(name, _, asked) => {
                Done::decode(&frame, Api::AlterTopic).expect("a readable reply");
                claims.altered(&name, asked);
                claims.counts.topics_altered += 1;
                // Looked up at once, and by a later start as well if this one ends first.
                self.doubtful.insert(name, Doubt::Growing(asked));
            }
            Waiting::Trim(log) => {
                let reply = DeleteRecordsReply::decode(&frame).expect("a readable reply");
                claims.trimmed(log, reply.start);
            }
            Waiting::Latest(log, firm_end) => {
                let told = ListOffsetsReply::decode(&frame).expect("a readable reply").offset;
                assert!(told >= firm_end, "{log:?}: LOST: the end is {told}, but {firm_end} was promised");
            }
            Waiting::Store(group, log, offset) => {
                let reply = OffsetCommitReply::decode(&frame).expect("a readable reply");
                match reply.results[..] {
                    [None] => claims.stored_acked(group, log, offset),
                    [Some(ErrorCode::UnknownTopic | ErrorCode::UnknownPartition)]
                        if claims.may_be_gone(log) => {}
                    ref other => panic!("{log:?}: storing an offset: {other:?}"),
                }
            }
            Waiting::Stored(group, log) => {
                let reply = OffsetFetchReply::decode(&frame).expect("a readable reply");
                let told = reply.offsets.iter().find(|o| o.partition == log).map(|o| o.offset);
                if !claims.may_be_gone(log) {
                    claims.stored_read(group, log, told);
                }
            }
        }
    }

    fn check_refusal(&mut self, waiting: &Waiting, error: &ErrorBody) {
        let scene = self.scene.borrow();
        let code = error.code.unwrap_or_else(|n| panic!("{waiting:?}: an error without a known code {n}"));
        let log = match waiting {
            Waiting::Trim(log) | Waiting::Latest(log, _) => Some(*log),
            Waiting::Store(_, log, _) | Waiting::Stored(_, log) => Some(*log),
            Waiting::Create(..) | Waiting::Delete(..) | Waiting::Alter(..) | Waiting::Look(_) => None,
        };
        match code {
            ErrorCode::NotReady | ErrorCode::LimitReached => {}
            ErrorCode::UnknownOutcome | ErrorCode::DiskFull | ErrorCode::ReadOnly
                if scene.faults_injected => {}
            // Asked for twice: the first request has done it. What there is now is looked up.
            ErrorCode::UnknownTopic if matches!(waiting, Waiting::Delete(..)) => {}
            ErrorCode::UnknownTopic | ErrorCode::UnknownPartition
                if log.is_some_and(|log| scene.claims.may_be_gone(log)) => {}
            // One that was asked for earlier, and whose answer did not come, has grown it since it was looked up.
            ErrorCode::InvalidTopic if matches!(waiting, Waiting::Alter(name, _, asked) if *asked < self.asked[name]) =>
                {}
            _ if scene.bits_flip => {}
            _ => panic!("{waiting:?}: refused: {error}"),
        }
    }
}

impl Peer for Admin {
    fn act(&mut self, now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>) {
        for event in events {
            match event {
                PeerEvent::Wake => self.wake(now_ns, ops),
                PeerEvent::Gone(link) => {
                    if self.session.gone(link) {
                        self.gave_up();
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
