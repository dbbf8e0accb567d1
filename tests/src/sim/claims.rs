//! What clients were told, and what therefore must hold: the checkers of a run that goes through the wire.
//!
//! Every batch that is sent has content of its own, known by its checksum. Whatever a client learns about a place (by an
//! acknowledgement or by reading it) holds for ever, for all clients.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::run::Counts;

use tidegate_protocol::batch::{BatchHeader, Batches, heads_crc};
use tidegate_protocol::ids::{Offset, PartitionId, ProducerId, Sequence, TopicId, TopicPartition};

/// How the names of relaxed topics begin.
pub const RELAXED: &str = "relaxed-";

/// Everything that the clients of a run know together.
#[derive(Debug, Default)]
pub struct Claims {
    /// By name.
    pub topics: BTreeMap<String, TopicClaim>,
    partitions: BTreeMap<TopicPartition, PartitionClaim>,
    /// By name of the consumer.
    pub stored: BTreeMap<(String, TopicPartition), StoredClaim>,
    producers: BTreeSet<ProducerId>,
    /// Topics that were created with relaxed durability.
    relaxed: BTreeSet<TopicId>,
    /// Topics that were deleted for good: no client may hear of them again.
    pub gone: BTreeSet<TopicId>,
    /// How much was checked.
    pub counts: ClaimCounts,
}

/// How much happened that a check depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a count of what its name says")]
pub struct ClaimCounts {
    pub sent: u64,
    pub resent: u64,
    /// Sent without a sequence, and never again.
    pub sent_once: u64,
    pub topics_altered: u64,
    pub acks: u64,
    pub duplicates_joined: u64,
    pub batches_read: u64,
    pub topics_created: u64,
    pub topics_deleted: u64,
    pub trims: u64,
    pub offsets_stored: u64,
    pub refused: u64,
    pub connections: u64,
}

/// What is known of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicClaim {
    /// Its creation was asked for; whether it exists is not known.
    Asked,
    /// It exists.
    Exists {
        /// Its identity.
        topic: TopicId,
        /// Its partitions.
        partitions: i32,
    },
    /// Its deletion was asked for; whether it exists is not known.
    Leaving {
        /// Its identity.
        topic: TopicId,
    },
}

/// What is known of a stored offset: the last one acknowledged, and what was asked for since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredClaim {
    /// Acknowledged.
    pub firm: Option<Offset>,
    /// Asked for after that, outcome unknown.
    pub maybe: Vec<Offset>,
}

/// What is known of a partition.
#[derive(Debug, Default)]
struct PartitionClaim {
    /// Every batch that was sent, by the checksum of its content.
    sent: BTreeMap<u32, Sent>,
    /// What is known to lie at a base offset.
    at: BTreeMap<Offset, (Offset, u32)>,
    start_firm: Offset,
    start_asked: Offset,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    count: i32,
    producer: ProducerId,
    sequence: Sequence,
    base: Option<Offset>,
    is_acked: bool,
}

impl Claims {
    /// How much was checked, by name.
    pub fn counts(&self) -> Counts {
        let c = &self.counts;
        Counts::from([
            ("sent", c.sent),
            ("resent", c.resent),
            ("sent once, without a sequence", c.sent_once),
            ("topics altered", c.topics_altered),
            ("acks", c.acks),
            ("acks of resent batches", c.duplicates_joined),
            ("batches read", c.batches_read),
            ("topics created", c.topics_created),
            ("topics deleted", c.topics_deleted),
            ("trims", c.trims),
            ("offsets stored", c.offsets_stored),
            ("refused", c.refused),
            ("connections", c.connections),
        ])
    }

    /// A batch is about to be sent, perhaps again.
    pub fn sending(&mut self, log: TopicPartition, header: &BatchHeader) {
        let sent = Sent {
            count: header.records_count,
            producer: header.producer_id,
            sequence: header.base_sequence,
            base: None,
            is_acked: false,
        };
        let known = &mut self.partitions.entry(log).or_default().sent;
        match known.entry(header.crc) {
            Entry::Occupied(_) => self.counts.resent += 1,
            Entry::Vacant(vacant) => {
                vacant.insert(sent);
                self.counts.sent += 1;
            }
        }
    }

    /// A batch was acknowledged at a place.
    pub fn acked(&mut self, log: TopicPartition, header: &BatchHeader, base: Offset) {
        self.learn(log, base, header.crc, header.records_count);
        if let Some(sent) = self.partitions.get_mut(&log).and_then(|p| p.sent.get_mut(&header.crc)) {
            sent.is_acked = true;
        }
        self.counts.acks += 1;
    }

    /// Batches were read from `from` on: returns where to read on.
    pub fn read(&mut self, log: TopicPartition, from: Offset, body: &[u8], heads: u32) -> Offset {
        assert_eq!(heads_crc(body).ok(), Some(heads), "{log:?}: the checksum over the heads");
        let mut next = None;
        for batch in Batches::new(body) {
            let batch = batch.unwrap_or_else(|e| panic!("{log:?}: data from {from}: {e}"));
            batch.verify_crc().unwrap_or_else(|e| panic!("{log:?}: data from {from}: {e}"));
            let header = batch.header();
            match next {
                None => assert!(
                    (header.base_offset..header.end_offset()).contains(&from),
                    "{log:?}: data from {from} begins at {}",
                    header.base_offset
                ),
                Some(next) => assert_eq!(header.base_offset, next, "{log:?}: data has a gap"),
            }
            self.learn(log, header.base_offset, header.crc, header.records_count);
            self.counts.batches_read += 1;
            next = Some(header.end_offset());
        }
        next.unwrap_or_else(|| panic!("{log:?}: data from {from} is empty"))
    }

    /// One past the last place that is known to hold something.
    pub fn firm_end(&self, log: TopicPartition) -> Offset {
        let last = self.partitions.get(&log).and_then(|p| p.at.last_key_value());
        last.map_or(Offset(0), |(_, (end, _))| *end)
    }

    /// Somebody asks for a trim.
    pub fn trim_asked(&mut self, log: TopicPartition, before: Offset) {
        let claim = self.partitions.entry(log).or_default();
        claim.start_asked = claim.start_asked.max(before);
    }

    /// A trim was acknowledged.
    pub fn trimmed(&mut self, log: TopicPartition, start: Offset) {
        self.check_start(log, start);
        let claim = self.partitions.entry(log).or_default();
        claim.start_firm = claim.start_firm.max(start);
        self.counts.trims += 1;
    }

    /// The start of a log was told.
    pub fn check_start(&self, log: TopicPartition, start: Offset) {
        if self.gone.contains(&log.topic) {
            return;
        }
        let asked = self.partitions.get(&log).map_or(Offset(0), |p| p.start_asked);
        assert!(start <= asked, "{log:?}: LOST: it starts at {start}, but at most {asked} was asked for");
    }

    /// The start that was acknowledged.
    pub fn start_firm(&self, log: TopicPartition) -> Offset {
        self.partitions.get(&log).map_or(Offset(0), |p| p.start_firm)
    }

    /// The partitions of all topics that certainly exist.
    pub fn partitions_that_exist(&self) -> Vec<TopicPartition> {
        let mut all = Vec::new();
        for claim in self.topics.values() {
            if let TopicClaim::Exists { topic, partitions } = *claim {
                all.extend((0..partitions).map(|p| TopicPartition { topic, partition: PartitionId(p) }));
            }
        }
        all
    }

    /// Whether the partition's topic may exist.
    pub fn may_exist(&self, log: TopicPartition) -> bool {
        self.topics.values().any(|claim| match *claim {
            TopicClaim::Asked => false,
            TopicClaim::Exists { topic, .. } | TopicClaim::Leaving { topic } => topic == log.topic,
        })
    }

    /// Whether the partition's topic may be deleted.
    pub fn may_be_gone(&self, log: TopicPartition) -> bool {
        !self.topics.values().any(|c| matches!(*c, TopicClaim::Exists { topic, .. } if topic == log.topic))
    }

    /// Whether acks=1 on the partition promises nothing.
    pub fn is_relaxed(&self, log: TopicPartition) -> bool {
        self.relaxed.contains(&log.topic)
    }

    /// A new producer id was given.
    pub fn producer_given(&mut self, id: ProducerId) {
        assert!(self.producers.insert(id), "the producer id {id} was given twice");
    }

    /// A topic was created, or was found after its creation had been asked for. Its name says whether it is relaxed.
    pub fn created(&mut self, name: String, topic: TopicId, partitions: i32) {
        if name.starts_with(RELAXED) {
            self.relaxed.insert(topic);
        }
        assert!(!self.gone.contains(&topic), "topic {name}: the identity {topic} is used again");
        self.counts.topics_created += 1;
        self.topics.insert(name, TopicClaim::Exists { topic, partitions });
    }

    /// A topic was found to have so many partitions.
    pub fn altered(&mut self, name: &str, partitions: i32) {
        if let Some(TopicClaim::Exists { partitions: known, .. }) = self.topics.get_mut(name) {
            *known = partitions;
        }
    }

    /// A topic was deleted for good.
    pub fn deleted(&mut self, name: &str, topic: TopicId) {
        self.topics.remove(name);
        self.gone.insert(topic);
        self.partitions.retain(|log, _| log.topic != topic);
        self.counts.topics_deleted += 1;
    }

    /// Storing an offset was acknowledged.
    pub fn stored_acked(&mut self, group: &str, log: TopicPartition, offset: Offset) {
        let claim = self.stored.entry((group.to_string(), log)).or_default();
        claim.firm = Some(offset);
        claim.maybe.clear();
        self.counts.offsets_stored += 1;
    }

    /// A stored offset was told, or that there is none.
    pub fn stored_read(&mut self, group: &str, log: TopicPartition, told: Option<Offset>) {
        let claim = self.stored.entry((group.to_string(), log)).or_default();
        let fits = told == claim.firm || told.is_some_and(|told| claim.maybe.contains(&told));
        assert!(fits, "{log:?}: the stored offset of {group} is {told:?}, but {claim:?}");
        // What was read once stays, until something whose outcome is not known comes behind it.
        claim.firm = told;
    }

    /// Everything has been read: `seen` holds every base offset of the partition that is there now.
    pub fn check_complete(&self, log: TopicPartition, start: Offset, seen: &BTreeSet<Offset>) {
        let Some(claim) = self.partitions.get(&log) else { return };
        self.check_start(log, start);
        assert!(
            start >= claim.start_firm,
            "{log:?}: it starts at {start}, was trimmed to {}",
            claim.start_firm
        );
        let mut by_producer: BTreeMap<ProducerId, Vec<(Offset, i32, Sequence)>> = BTreeMap::new();
        for sent in claim.sent.values() {
            let Some(base) = sent.base else { continue };
            if sent.is_acked && base >= start {
                assert!(seen.contains(&base), "{log:?}: LOST: {sent:?} was acknowledged and is not there");
            }
            if sent.producer != ProducerId::NONE {
                by_producer.entry(sent.producer).or_default().push((base, sent.count, sent.sequence));
            }
        }
        for (producer, mut batches) in by_producer {
            batches.sort();
            for pair in batches.windows(2) {
                let [(_, count, sequence), (base, _, next)] = [pair[0], pair[1]];
                assert_eq!(sequence.plus(count), next, "{log:?}: the order of producer {producer} at {base}");
            }
        }
    }

    fn learn(&mut self, log: TopicPartition, base: Offset, crc: u32, count: i32) {
        if self.gone.contains(&log.topic) {
            return;
        }
        let claim = self.partitions.entry(log).or_default();
        let Some(sent) = claim.sent.get_mut(&crc) else {
            panic!("{log:?}: PHANTOM: nobody sent what lies at {base}");
        };
        assert_eq!(sent.count, count, "{log:?}: the records of the batch at {base}");
        match sent.base {
            None => sent.base = Some(base),
            Some(known) => assert_eq!(known, base, "{log:?}: TWICE: one batch lies at two places: {sent:?}"),
        }
        let end = base.plus(count.into());
        match claim.at.get(&base) {
            Some(known) => assert_eq!(*known, (end, crc), "{log:?}: CHANGED: what lies at {base}"),
            None => {
                let before = claim.at.range(..base).next_back();
                assert!(
                    before.is_none_or(|(_, (e, _))| *e <= base),
                    "{log:?}: CHANGED: {before:?} covers {base}"
                );
                let after = claim.at.range(base..).next();
                assert!(
                    after.is_none_or(|(b, _)| *b >= end),
                    "{log:?}: CHANGED: {after:?} lies before {end}"
                );
                claim.at.insert(base, (end, crc));
            }
        }
    }
}
