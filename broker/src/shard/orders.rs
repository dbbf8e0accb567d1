//! Topics, and whatever else the cluster has to agree on: a log of its own on shard 0.
//!
//! A wish is decided against the table as it will be once everything on its way is flushed; its record is appended; after the
//! flush the table takes it in and the news goes to every shard by mail; when every shard has its logs, whoever asked is
//! answered. At the start the log is read first; only then do the other shards hear what topics there are, and only then do
//! they say anything about the logs that they have found.

use std::collections::VecDeque;

use tidegate_logic::placement::shard_of;
use tidegate_logic::topics::{Timestamps, TopicRefusal, TopicSettings, TopicTable};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicRequest, Setting,
};
use tidegate_protocol::ids::{
    Offset, PartitionId, ProducerEpoch, ProducerId, ShardId, TopicId, TopicPartition,
};
use tidegate_protocol::internal::{MetadataRecord, TopicRecord};
use tidegate_reactor::op::{Fault, Op};

use super::Shard;
use super::internal::{Pending, Snapshot};
use super::mail::{Answer, Asker, Mail};
use super::produce::Partition;
use super::reply::Refusal;
use crate::log::LogOptions;
use crate::mutants::{self, Mutant};

/// The shard that keeps the topics.
pub(super) const ORDERS_SHARD: ShardId = ShardId(0);

/// The log of topics.
pub(super) const METADATA: TopicPartition =
    TopicPartition { topic: TopicId::METADATA, partition: PartitionId(0) };

/// What shard 0 keeps beyond the copy of the table that every shard has.
///
/// Invariant: `coming` is the shard's table with every pending record applied.
#[derive(Debug)]
pub(super) struct Orders {
    coming: TopicTable,
    pending: Pending<Change>,
    news: VecDeque<News>,
    version: u64,
    producer_ids: ProducerIds,
    snapshot: Option<Snapshot>,
}

/// A record on its way to the drive.
#[derive(Debug)]
enum Change {
    Topic { record: MetadataRecord, asker: Asker, answer: Answer },
    ProducerIds { below: i64 },
    Snapshot(Snapshot),
}

/// News that not every shard has taken in yet, and who is answered then.
#[derive(Debug)]
struct News {
    version: u64,
    missing: u16,
    answers: Vec<(Asker, Answer)>,
}

/// Ids below `leased` may be given out; those below `next` were.
#[derive(Debug, Default)]
struct ProducerIds {
    next: i64,
    leased: i64,
    leasing: bool,
    waiting: VecDeque<Asker>,
}

impl Orders {
    pub(super) fn new(coming: TopicTable) -> Orders {
        Orders {
            coming,
            pending: Pending::default(),
            news: VecDeque::new(),
            version: 0,
            producer_ids: ProducerIds::default(),
            snapshot: None,
        }
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.news.is_empty()
    }

    /// Requests on their way.
    fn under_way(&self) -> usize {
        self.pending.len() + self.news.len() + self.producer_ids.waiting.len()
    }
}

impl Shard {
    /// A record of the metadata log, at the start.
    pub(super) fn orders_replay(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), Refusal> {
        let record = MetadataRecord::decode(key, value)?;
        if let Some(orders) = &mut self.orders {
            orders.coming.apply(&record);
        }
        Ok(())
    }

    /// The metadata log is read: every shard hears what topics there are.
    pub(super) fn orders_restored(&mut self, ops: &mut Vec<Op>) -> Result<(), Refusal> {
        let Some(orders) = &mut self.orders else { return Ok(()) };
        orders.coming.check_invariants();
        let leased = orders.coming.producer_ids_below();
        orders.producer_ids = ProducerIds { next: leased, leased, ..ProducerIds::default() };
        let records = orders.coming.snapshot();
        self.orders_tell(true, records, Vec::new(), ops);
        Ok(())
    }

    fn orders_tell(
        &mut self,
        whole: bool,
        records: Vec<MetadataRecord>,
        answers: Vec<(Asker, Answer)>,
        ops: &mut Vec<Op>,
    ) {
        let missing = self.shard_count;
        let Some(orders) = &mut self.orders else { return };
        orders.version += 1;
        let version = orders.version;
        orders.news.push_back(News { version, missing, answers });
        let me = self.me;
        for shard in (0..self.shard_count).map(ShardId).filter(|shard| *shard != me) {
            self.post(shard, Mail::Topics { version, whole, records: records.clone() }, ops);
        }
        self.topics_came(whole, &records, ops);
        self.topics_seen(version, ops);
    }

    /// A shard has taken in the news of this version.
    pub(super) fn topics_seen(&mut self, version: u64, ops: &mut Vec<Op>) {
        let Some(orders) = &mut self.orders else { return };
        if let Some(news) = orders.news.iter_mut().find(|news| news.version == version) {
            news.missing -= 1;
        }
        let mut answers = Vec::new();
        while let Some(seen) = orders.news.pop_front_if(|news| news.missing == 0) {
            answers.extend(seen.answers);
        }
        for (asker, answer) in answers {
            self.answer(asker, Ok(answer), ops);
        }
    }

    /// The broker stops: what is decided is answered although not every shard has heard of it. Some may have ended already, and none
    /// serves again before it has the whole table.
    pub(super) fn orders_wait_no_more(&mut self, ops: &mut Vec<Op>) {
        let Some(orders) = &mut self.orders else { return };
        for news in std::mem::take(&mut orders.news) {
            for (asker, answer) in news.answers {
                self.answer(asker, Ok(answer), ops);
            }
        }
    }

    /// The table, or news of it, has come from shard 0: this shard makes and removes logs to match.
    pub(super) fn topics_came(&mut self, whole: bool, records: &[MetadataRecord], ops: &mut Vec<Op>) {
        for record in records {
            self.topics.apply(record);
            match record {
                MetadataRecord::Topic(topic) => self.topic_logs(topic),
                MetadataRecord::TopicGone { topic, .. } => self.topic_gone(*topic, ops),
                MetadataRecord::ProducerIds { .. }
                | MetadataRecord::SnapshotBegin
                | MetadataRecord::SnapshotEnd => {}
            }
        }
        if whole {
            self.topics_known = true;
            self.logs_found_check();
        }
    }

    fn topic_logs(&mut self, topic: &TopicRecord) {
        let Some(settings) = self.topics.get(topic.topic).map(|topic| topic.settings) else { return };
        let options = log_options(&settings);
        for partition in (0..topic.partitions).map(PartitionId) {
            let log = TopicPartition { topic: topic.topic, partition };
            if shard_of(log, self.shard_count) != self.me {
                continue;
            }
            if self.logs.positions(log).is_some() {
                self.logs.set_options(log, options);
            } else if self.logs.create(log, options).is_err() {
                // At a cap, or read-only: requests to the partition say so.
                self.stats.logs_not_created += 1;
                continue;
            }
            let start = self.logs.positions(log).map_or(Offset(0), |positions| positions.start);
            let partition = self.partitions.entry(log).or_insert_with(|| Partition::new(settings, start));
            partition.settings = settings;
        }
    }

    fn topic_gone(&mut self, topic: TopicId, ops: &mut Vec<Op>) {
        let first = TopicPartition { topic, partition: PartitionId(0) };
        let last = TopicPartition { topic, partition: PartitionId(i32::MAX) };
        let logs: Vec<TopicPartition> = self.partitions.range(first..=last).map(|(log, _)| *log).collect();
        for log in logs {
            self.damage.forget(log);
            if let Some(partition) = self.partitions.remove(&log) {
                self.produce_abandoned(partition, log, ops);
            }
            self.logs.remove(log);
        }
        self.readers_abandoned(topic);
        self.offsets_topic_gone(topic);
    }

    /// Every log that recovery has found belongs to a topic, or to a deleted one; else the shard does not serve: metadata
    /// that is missing is no reason to delete anything.
    fn logs_found_check(&mut self) {
        let found: Vec<TopicPartition> = self.logs.logs_found().collect();
        for log in found {
            let known = self.topics.get(log.topic).is_some_and(|t| log.partition.0 < t.record.partitions);
            if known || log.topic.is_internal() {
                continue;
            }
            if self.topics.is_tombstoned(log.topic) {
                self.logs.remove(log);
                continue;
            }
            let cause = format!(
                "a log of topic {}, partition {}, is here, but the metadata log knows no such topic and no deletion of \
                 it; nothing was deleted: restore the journal of shard 0, or start with the data directory that belongs \
                 to it",
                log.topic, log.partition
            );
            return self.fail(cause);
        }
    }

    /// Creates a topic.
    pub(super) fn create_topic(&mut self, asker: Asker, request: CreateTopicRequest, ops: &mut Vec<Op>) {
        let topic = self.new_topic_id();
        let wish = TopicRecord {
            topic,
            name: request.name,
            partitions: request.partitions,
            replication: request.replication,
            created_ms: self.now.wall_ms,
            settings: pairs(request.settings),
        };
        let decided = self.orders.as_ref().map(|orders| orders.coming.check_create(wish));
        self.change_topic(asker, decided, Answer::CreateTopic(CreateTopicReply { topic }), ops);
    }

    /// Deletes a topic.
    pub(super) fn delete_topic(&mut self, asker: Asker, request: &DeleteTopicRequest, ops: &mut Vec<Op>) {
        let decided = self.orders.as_ref().map(|orders| orders.coming.check_delete(&request.name));
        self.change_topic(asker, decided, Answer::Done, ops);
    }

    /// Changes a topic's settings or adds partitions.
    pub(super) fn alter_topic(&mut self, asker: Asker, request: AlterTopicRequest, ops: &mut Vec<Op>) {
        let settings = pairs(request.settings);
        let decide =
            |orders: &Orders| orders.coming.check_alter(&request.name, request.partitions, &settings);
        let decided = self.orders.as_ref().map(decide);
        self.change_topic(asker, decided, Answer::Done, ops);
    }

    fn change_topic(
        &mut self,
        asker: Asker,
        decided: Option<Result<MetadataRecord, TopicRefusal>>,
        answer: Answer,
        ops: &mut Vec<Op>,
    ) {
        let decided = decided.expect("only shard 0 is asked, and it keeps the orders");
        let written = decided.map_err(Refusal::Topic).and_then(|record| {
            self.orders_have_room()?;
            let appended = self.internal_append(METADATA, &[record.encode()])?;
            Ok((record, appended))
        });
        match (written, &mut self.orders) {
            (Ok((record, appended)), Some(orders)) => {
                orders.coming.apply(&record);
                if mutants::on(Mutant::TopicToldEarly) {
                    return self.orders_tell(false, vec![record], vec![(asker, answer)], ops);
                }
                orders.pending.push(&appended, Change::Topic { record, asker, answer });
            }
            (Ok(_), None) => {}
            (Err(refusal), _) => self.answer(asker, Err(refusal), ops),
        }
    }

    fn orders_have_room(&self) -> Result<(), Refusal> {
        let (limit, current) = (self.limits.orders_max, self.orders.as_ref().map_or(0, Orders::under_way));
        if current < limit {
            return Ok(());
        }
        let (limit, current) = (limit as u64, current as u64);
        Err(Refusal::Limit { what: "changes of topics and producer ids under way", limit, current })
    }

    /// Gives out a producer id, or the next epoch of one. The epoch needs no record: each log refuses epochs older than the
    /// newest that it has seen.
    pub(super) fn producer_init(&mut self, asker: Asker, request: &ProducerInitRequest, ops: &mut Vec<Op>) {
        if request.transactional_id.is_some() {
            let rule = "is set, but there are no transactions yet".to_owned();
            return self.answer(asker, Err(Refusal::Invalid { field: "transactional_id", rule }), ops);
        }
        let known_below = self.orders.as_ref().map_or(0, |orders| orders.producer_ids.next);
        match request.producer {
            Some((producer_id, epoch)) if !(0..known_below).contains(&producer_id.0) || epoch.0 < 0 => {
                self.answer(asker, Err(Refusal::ProducerNeverGiven { producer: producer_id }), ops);
            }
            Some((producer_id, ProducerEpoch(epoch))) if epoch < i16::MAX => {
                let producer_epoch = ProducerEpoch(epoch + 1);
                let answer = ProducerInitReply { producer_id, producer_epoch };
                self.answer(asker, Ok(Answer::ProducerInit(answer)), ops);
            }
            Some(_) | None => {
                if let Err(refusal) = self.orders_have_room() {
                    return self.answer(asker, Err(refusal), ops);
                }
                if let Some(orders) = &mut self.orders {
                    orders.producer_ids.waiting.push_back(asker);
                }
                self.producer_ids_give(ops);
            }
        }
    }

    /// Serves those who wait for an id from the durable lease; leases more when it is used up.
    fn producer_ids_give(&mut self, ops: &mut Vec<Op>) {
        while let Some(ids) = self.orders.as_mut().map(|orders| &mut orders.producer_ids) {
            if ids.waiting.is_empty() {
                return;
            }
            if ids.next == ids.leased {
                return self.producer_ids_lease(ops);
            }
            let Some(asker) = ids.waiting.pop_front() else { return };
            let (producer_id, producer_epoch) = (ProducerId(ids.next), ProducerEpoch(0));
            ids.next += 1;
            self.answer(
                asker,
                Ok(Answer::ProducerInit(ProducerInitReply { producer_id, producer_epoch })),
                ops,
            );
        }
    }

    fn producer_ids_lease(&mut self, ops: &mut Vec<Op>) {
        let Some(orders) = &mut self.orders else { return };
        if orders.producer_ids.leasing {
            return;
        }
        let below = orders.producer_ids.leased + self.limits.producer_ids_lease;
        match self.internal_append(METADATA, &[MetadataRecord::ProducerIds { below }.encode()]) {
            Ok(appended) => {
                let Some(orders) = &mut self.orders else { return };
                orders.producer_ids.leasing = true;
                orders.coming.apply(&MetadataRecord::ProducerIds { below });
                orders.pending.push(&appended, Change::ProducerIds { below });
                if mutants::on(Mutant::ProducerIdReused) {
                    orders.producer_ids.leased = below;
                    self.producer_ids_give(ops);
                }
            }
            Err(refusal) => {
                let Some(orders) = &mut self.orders else { return };
                for asker in std::mem::take(&mut orders.producer_ids.waiting) {
                    self.answer(asker, Err(refusal.clone()), ops);
                }
            }
        }
    }

    /// A flush has covered the metadata log below `upto`: what was decided becomes true, and everyone hears of it.
    pub(super) fn orders_flushed(&mut self, upto: Offset, ops: &mut Vec<Op>) {
        let (mut records, mut answers) = (Vec::new(), Vec::new());
        while let Some(orders) = &mut self.orders {
            match orders.pending.flushed(upto) {
                Some(Change::Topic { record, asker, answer }) => {
                    records.push(record);
                    answers.push((asker, answer));
                }
                Some(Change::ProducerIds { below }) => {
                    orders.producer_ids.leased = below;
                    orders.producer_ids.leasing = false;
                }
                Some(Change::Snapshot(snapshot)) => {
                    orders.snapshot = None;
                    self.internal_trim(METADATA, snapshot);
                }
                None => break,
            }
        }
        if !records.is_empty() {
            self.orders_tell(false, records, answers, ops);
        }
        self.producer_ids_give(ops);
        self.orders_snapshot();
    }

    fn orders_snapshot(&mut self) {
        const TOPIC_BYTES: usize = 256;
        let Some(orders) = &self.orders else { return };
        let alive = TOPIC_BYTES * orders.coming.topics().count();
        if orders.snapshot.is_some() || !self.internal_wants_snapshot(METADATA, alive) {
            return;
        }
        let records: Vec<_> = orders.coming.snapshot().iter().map(MetadataRecord::encode).collect();
        let Some((appended, snapshot)) = self.internal_snapshot(METADATA, &records) else { return };
        if let Some(orders) = &mut self.orders {
            orders.snapshot = Some(snapshot);
            orders.pending.push(&appended, Change::Snapshot(snapshot));
        }
    }

    /// The drive has failed under the metadata log: what was on its way has an unknown outcome.
    pub(super) fn orders_faulted(&mut self, from: Offset, fault: &Fault, ops: &mut Vec<Op>) {
        let Some(orders) = &mut self.orders else { return };
        let changes: Vec<Change> = orders.pending.abandon().collect();
        let waiting = std::mem::take(&mut orders.producer_ids.waiting);
        let refusal = Refusal::UnknownOutcome { log: METADATA, from, fault: fault.clone() };
        for change in changes {
            if let Change::Topic { asker, .. } = change {
                self.answer(asker, Err(refusal.clone()), ops);
            }
        }
        for asker in waiting {
            self.answer(asker, Err(refusal.clone()), ops);
        }
    }

    /// A random identity that no topic has or has had: from the shard's seed, which differs with every start.
    fn new_topic_id(&mut self) -> TopicId {
        loop {
            let topic = TopicId::from_random(self.random(), self.random());
            let coming = self.orders.as_ref().is_some_and(|orders| orders.coming.get(topic).is_some());
            if !coming && !self.topics.is_tombstoned(topic) && !topic.is_internal() {
                return topic;
            }
        }
    }
}

fn log_options(settings: &TopicSettings) -> LogOptions {
    LogOptions {
        retention_ms: settings.retention_ms,
        retention_bytes: settings.retention_bytes,
        segment_bytes: settings.segment_bytes,
        append_time: settings.timestamps == Timestamps::Append,
        idempotence_window: settings.idempotence_window,
    }
}

fn pairs(settings: Vec<Setting>) -> Vec<(String, String)> {
    settings.into_iter().map(|setting| (setting.name, setting.value)).collect()
}
