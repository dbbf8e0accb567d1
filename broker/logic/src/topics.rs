//! The table of topics: which names and settings are allowed, and what the metadata log amounts to.
//!
//! A `check_*` decides about a wish and gives the record to write; [`TopicTable::apply`] takes in a record, live and in
//! replay. Tombstones of deleted topics stay, so that a log which a shard still finds is told from one that nobody knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Bound;

use tidegate_protocol::api::topic::Setting;
use tidegate_protocol::ids::TopicId;
use tidegate_protocol::internal::{MetadataRecord, TopicRecord};

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicLimits {
    /// Topics.
    pub topics_max: usize,
    /// Partitions of all topics together.
    pub partitions_max: usize,
    /// Partitions of one topic: a reply that describes it has to fit one frame.
    pub partitions_per_topic_max: usize,
    /// Largest batch that any topic may allow, in bytes.
    pub batch_bytes_max: u32,
    /// Tombstones kept; the oldest go first.
    pub tombstones_max: usize,
}

/// Batches that every topic remembers per producer and partition, at least: so many may a client have under way without
/// knowing the topic's setting.
pub const IDEMPOTENCE_WINDOW_MIN: u16 = 16;
/// Batches that a topic can be set to remember per producer and partition, at most.
pub const IDEMPOTENCE_WINDOW_MAX: u16 = 256;

/// When records of a topic are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Once they are flushed.
    Disk,
    /// Once they are in memory.
    Relaxed,
}

/// Whose clock stamps the records of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// The producer's.
    Create,
    /// The broker's.
    Append,
}

/// What a topic's settings come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    /// Milliseconds after which records may go; none: never.
    pub retention_ms: Option<u64>,
    /// Bytes of a partition above which the oldest may go; none: never.
    pub retention_bytes: Option<u64>,
    /// The largest data file, in bytes.
    pub segment_bytes: u64,
    /// When records are acknowledged.
    pub durability: Durability,
    /// Whose clock.
    pub timestamps: Timestamps,
    /// The largest batch, in bytes.
    pub batch_bytes_max: u32,
    /// Batches remembered per producer and partition.
    pub idempotence_window: u16,
}

impl Default for TopicSettings {
    fn default() -> TopicSettings {
        TopicSettings {
            retention_ms: Some(7 * 24 * 3600 * 1000),
            retention_bytes: None,
            segment_bytes: 64 << 20,
            durability: Durability::Disk,
            timestamps: Timestamps::Create,
            batch_bytes_max: 1 << 20,
            idempotence_window: IDEMPOTENCE_WINDOW_MIN,
        }
    }
}

/// Names of all settings, in the order in which they are described.
pub const SETTING_NAMES: [&str; 7] = [
    "retention.ms",
    "retention.bytes",
    "segment.bytes",
    "durability",
    "timestamp.type",
    "batch.bytes.max",
    "idempotence.window",
];

impl TopicSettings {
    /// Sets one of them as typed; the error says what would be allowed.
    fn set(&mut self, name: &str, value: &str, limits: &TopicLimits) -> Result<(), String> {
        match name {
            "retention.ms" => self.retention_ms = limit_or_none(value)?,
            "retention.bytes" => self.retention_bytes = limit_or_none(value)?,
            "segment.bytes" => self.segment_bytes = within(value, 1 << 20, 1 << 30)?,
            "durability" => {
                self.durability = match value {
                    "disk" => Durability::Disk,
                    "relaxed" => Durability::Relaxed,
                    _ => return Err("is neither disk nor relaxed".to_owned()),
                }
            }
            "timestamp.type" => {
                self.timestamps = match value {
                    "create" => Timestamps::Create,
                    "append" => Timestamps::Append,
                    _ => return Err("is neither create nor append".to_owned()),
                }
            }
            "batch.bytes.max" => {
                let bytes = within(value, 1024, u64::from(limits.batch_bytes_max))?;
                self.batch_bytes_max = u32::try_from(bytes).expect("checked against a u32");
            }
            "idempotence.window" => {
                let (least, most) = (IDEMPOTENCE_WINDOW_MIN, IDEMPOTENCE_WINDOW_MAX);
                let window = within(value, u64::from(least), u64::from(most))?;
                self.idempotence_window = u16::try_from(window).expect("checked against a u16");
            }
            _ => return Err(format!("is unknown; known are {}", SETTING_NAMES.join(", "))),
        }
        Ok(())
    }

    /// All settings as name and value, those at their default too.
    pub fn describe(&self) -> Vec<Setting> {
        let limit = |limit: Option<u64>| limit.map_or("-1".to_owned(), |l| l.to_string());
        let values = [
            limit(self.retention_ms),
            limit(self.retention_bytes),
            self.segment_bytes.to_string(),
            match self.durability {
                Durability::Disk => "disk".to_owned(),
                Durability::Relaxed => "relaxed".to_owned(),
            },
            match self.timestamps {
                Timestamps::Create => "create".to_owned(),
                Timestamps::Append => "append".to_owned(),
            },
            self.batch_bytes_max.to_string(),
            self.idempotence_window.to_string(),
        ];
        let pair = |(name, value): (&str, String)| Setting { name: name.to_owned(), value };
        SETTING_NAMES.into_iter().zip(values).map(pair).collect()
    }
}

fn limit_or_none(value: &str) -> Result<Option<u64>, String> {
    match value.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(limit) if limit > 0 => Ok(Some(limit.unsigned_abs())),
        _ => Err("is neither a whole number above 0 nor -1 (no limit)".to_owned()),
    }
}

fn within(value: &str, least: u64, most: u64) -> Result<u64, String> {
    match value.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("is not a whole number from {least} to {most}")),
    }
}

/// A topic as the table knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// As it lies in the metadata log.
    pub record: TopicRecord,
    /// What its settings come to.
    pub settings: TopicSettings,
}

/// Why a wish is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicRefusal {
    /// Names, numbers or settings break rules: all problems at once.
    Invalid {
        /// One sentence each.
        problems: Vec<String>,
    },
    /// A topic of this name exists.
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The table is full.
    TooMany {
        /// Topics or partitions.
        what: &'static str,
        /// How many there may be.
        limit: usize,
        /// How many there are.
        current: usize,
    },
}

/// All topics of the cluster, and the range of producer ids given out.
///
/// Invariants: `by_name` names exactly the topics in `by_id`; `partitions` is the sum of theirs; no topic is both known and
/// in the tombstones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTable {
    limits: TopicLimits,
    by_id: BTreeMap<TopicId, Topic>,
    by_name: BTreeMap<String, TopicId>,
    partitions: usize,
    tombstones: BTreeMap<TopicId, u64>,
    tombstones_made: u64,
    producer_ids_below: i64,
    // Topics that a snapshot under way has repeated so far.
    snapshot: Option<BTreeSet<TopicId>>,
}

impl TopicTable {
    /// A table without topics.
    pub fn new(limits: TopicLimits) -> TopicTable {
        TopicTable {
            limits,
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
            partitions: 0,
            tombstones: BTreeMap::new(),
            tombstones_made: 0,
            producer_ids_below: 0,
            snapshot: None,
        }
    }

    /// Decides whether a topic may be created, as what record. `topic` is a fresh random identity.
    pub fn check_create(&self, wish: TopicRecord) -> Result<MetadataRecord, TopicRefusal> {
        let mut problems = name_problems(&wish.name);
        if wish.partitions < 1 {
            problems.push(format!("partitions is {}; a topic has at least 1", wish.partitions));
        }
        if !matches!(wish.replication, -1 | 1) {
            let given = wish.replication;
            problems
                .push(format!("replication is {given}; only 1 (or -1, the default) is possible on one node"));
        }
        let (_, mut bad) = self.settings_of(&wish.settings);
        problems.append(&mut bad);
        if !problems.is_empty() {
            return Err(TopicRefusal::Invalid { problems });
        }
        if self.by_name.contains_key(&wish.name) {
            return Err(TopicRefusal::Exists { name: wish.name });
        }
        let (limit, current) = (self.limits.topics_max, self.by_id.len());
        if current >= limit {
            return Err(TopicRefusal::TooMany { what: "topics", limit, current });
        }
        self.check_partitions(wish.partitions, 0)?;
        let settings = normal(wish.settings);
        Ok(MetadataRecord::Topic(TopicRecord { replication: 1, settings, ..wish }))
    }

    /// Decides whether a topic may be changed, into what record. `partitions` 0 leaves their number; a setting with an empty
    /// value goes back to its default.
    pub fn check_alter(
        &self,
        name: &str,
        partitions: i32,
        changes: &[(String, String)],
    ) -> Result<MetadataRecord, TopicRefusal> {
        let Some(topic) = self.named(name) else {
            return Err(TopicRefusal::Unknown { name: name.to_owned() });
        };
        let old = &topic.record;
        let mut settings = old.settings.clone();
        settings.extend(changes.iter().cloned());
        let (_, mut problems) = self.settings_of(changes);
        if partitions != 0 && partitions < old.partitions {
            let now = old.partitions;
            problems.push(format!(
                "partitions is {partitions}; the topic has {now}, and they never become fewer"
            ));
        }
        if !problems.is_empty() {
            return Err(TopicRefusal::Invalid { problems });
        }
        let partitions = if partitions == 0 { old.partitions } else { partitions };
        self.check_partitions(partitions, old.partitions)?;
        Ok(MetadataRecord::Topic(TopicRecord { partitions, settings: normal(settings), ..old.clone() }))
    }

    /// Decides whether a topic may be deleted, by what record.
    pub fn check_delete(&self, name: &str) -> Result<MetadataRecord, TopicRefusal> {
        match self.named(name) {
            Some(topic) => {
                let topic = topic.record.topic;
                Ok(MetadataRecord::TopicGone { topic, name: name.to_owned() })
            }
            None => Err(TopicRefusal::Unknown { name: name.to_owned() }),
        }
    }

    fn check_partitions(&self, wanted: i32, replaced: i32) -> Result<(), TopicRefusal> {
        let (wanted, replaced) = (wanted.unsigned_abs() as usize, replaced.unsigned_abs() as usize);
        let (limit, current) = (self.limits.partitions_max, self.partitions);
        if wanted > limit {
            // However many others go, this will never be possible: no reason to try again.
            let problems = vec![format!("partitions is {wanted}; all topics together have at most {limit}")];
            return Err(TopicRefusal::Invalid { problems });
        }
        let per_topic = self.limits.partitions_per_topic_max;
        if wanted > per_topic {
            let problems = vec![format!("partitions is {wanted}; one topic has at most {per_topic}")];
            return Err(TopicRefusal::Invalid { problems });
        }
        if current - replaced + wanted > limit {
            return Err(TopicRefusal::TooMany { what: "partitions", limit, current });
        }
        Ok(())
    }

    /// Takes in a record of the metadata log, live or in replay.
    pub fn apply(&mut self, record: &MetadataRecord) {
        match record {
            MetadataRecord::Topic(topic) => {
                if let Some(repeated) = &mut self.snapshot {
                    repeated.insert(topic.topic);
                }
                self.remove(topic.topic);
                let (settings, _) = self.settings_of(&topic.settings);
                self.partitions += topic.partitions.unsigned_abs() as usize;
                self.by_name.insert(topic.name.clone(), topic.topic);
                self.by_id.insert(topic.topic, Topic { record: topic.clone(), settings });
            }
            MetadataRecord::TopicGone { topic, .. } => {
                self.remove(*topic);
                self.tombstones_made += 1;
                self.tombstones.insert(*topic, self.tombstones_made);
                if self.tombstones.len() > self.limits.tombstones_max {
                    let oldest = self.tombstones.iter().min_by_key(|(_, made)| **made).map(|(id, _)| *id);
                    self.tombstones.remove(&oldest.expect("there are more than the limit"));
                }
            }
            MetadataRecord::ProducerIds { below } => {
                self.producer_ids_below = self.producer_ids_below.max(*below);
            }
            MetadataRecord::SnapshotBegin => self.snapshot = Some(BTreeSet::new()),
            MetadataRecord::SnapshotEnd => {
                let Some(repeated) = self.snapshot.take() else { return };
                let gone: Vec<TopicId> =
                    self.by_id.keys().filter(|id| !repeated.contains(id)).copied().collect();
                gone.into_iter().for_each(|id| self.remove(id));
            }
        }
    }

    fn remove(&mut self, topic: TopicId) {
        if let Some(old) = self.by_id.remove(&topic) {
            self.by_name.remove(&old.record.name);
            self.partitions -= old.record.partitions.unsigned_abs() as usize;
        }
    }

    /// All live entries and tombstones as records, for a snapshot.
    pub fn snapshot(&self) -> Vec<MetadataRecord> {
        let mut records = vec![MetadataRecord::SnapshotBegin];
        records.push(MetadataRecord::ProducerIds { below: self.producer_ids_below });
        records.extend(self.by_id.values().map(|topic| MetadataRecord::Topic(topic.record.clone())));
        let mut tombstones: Vec<_> = self.tombstones.iter().collect();
        tombstones.sort_unstable_by_key(|(_, made)| **made);
        let gone = |(id, _): (&TopicId, &u64)| MetadataRecord::TopicGone { topic: *id, name: String::new() };
        records.extend(tombstones.into_iter().map(gone));
        records.push(MetadataRecord::SnapshotEnd);
        records
    }

    /// The topic of an identity.
    pub fn get(&self, topic: TopicId) -> Option<&Topic> {
        self.by_id.get(&topic)
    }

    /// The topic of a name.
    pub fn named(&self, name: &str) -> Option<&Topic> {
        self.by_name.get(name).and_then(|id| self.by_id.get(id))
    }

    /// All topics, by name.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.by_name.values().filter_map(|id| self.by_id.get(id))
    }

    /// All topics whose name comes behind this one, by name.
    pub fn topics_after(&self, after: &str) -> impl Iterator<Item = &Topic> {
        let names = self.by_name.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        names.filter_map(|(_, id)| self.by_id.get(id))
    }

    /// Whether the topic has existed and was deleted.
    pub fn is_tombstoned(&self, topic: TopicId) -> bool {
        self.tombstones.contains_key(&topic)
    }

    /// Partitions of all topics.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// The lowest producer id that was never leased.
    pub fn producer_ids_below(&self) -> i64 {
        self.producer_ids_below
    }

    fn settings_of(&self, given: &[(String, String)]) -> (TopicSettings, Vec<String>) {
        let mut settings = TopicSettings::default();
        settings.batch_bytes_max = settings.batch_bytes_max.min(self.limits.batch_bytes_max);
        let mut problems = Vec::new();
        for (name, value) in given {
            if value.is_empty() && SETTING_NAMES.contains(&name.as_str()) {
                continue;
            }
            if let Err(rule) = settings.set(name, value, &self.limits) {
                problems.push(format!("{name} = {value:?} {rule}"));
            }
        }
        (settings, problems)
    }

    /// Asserts the invariants; linear in the table's size.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_id.len(), self.by_name.len());
        for (name, id) in &self.by_name {
            assert_eq!(&self.by_id[id].record.name, name);
            assert!(!self.tombstones.contains_key(id), "{name} is known and deleted");
        }
        let sum: usize = self.by_id.values().map(|t| t.record.partitions.unsigned_abs() as usize).sum();
        assert_eq!(sum, self.partitions);
    }
}

/// The last value of each setting, without those that are back at their default.
fn normal(settings: Vec<(String, String)>) -> Vec<(String, String)> {
    let last: BTreeMap<String, String> = settings.into_iter().collect();
    last.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn name_problems(name: &str) -> Vec<String> {
    const NAME_BYTES_MAX: usize = 249;
    let mut problems = Vec::new();
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        problems.push(format!("the name has {} characters; allowed are 1 to {NAME_BYTES_MAX}", name.len()));
    }
    if name == "." || name == ".." {
        problems.push(format!("the name {name:?} is reserved"));
    }
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let bad: BTreeSet<char> = name.chars().filter(|c| !allowed(c)).collect();
    if !bad.is_empty() {
        let mut problem = String::from("the name has characters other than a-z A-Z 0-9 . _ -:");
        for c in bad.iter().take(5) {
            let _ = write!(problem, " {c:?}");
        }
        problems.push(problem);
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TopicLimits = TopicLimits {
        topics_max: 3,
        partitions_max: 10,
        partitions_per_topic_max: 8,
        batch_bytes_max: 1 << 20,
        tombstones_max: 2,
    };

    fn wish(id: u8, name: &str, partitions: i32, settings: &[(&str, &str)]) -> TopicRecord {
        let settings = settings.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let name = name.to_owned();
        TopicRecord { topic: TopicId([id; 16]), name, partitions, replication: -1, created_ms: 5, settings }
    }

    fn table(records: &[TopicRecord]) -> TopicTable {
        let mut table = TopicTable::new(LIMITS);
        for record in records {
            let record = table.check_create(record.clone()).expect("allowed");
            table.apply(&record);
        }
        table.check_invariants();
        table
    }

    #[test]
    fn all_problems_of_a_wish_are_told_at_once() {
        let wish = wish(1, "a b/", 0, &[("retention.ms", "0"), ("durability", "maybe"), ("colour", "red")]);
        let said = TopicTable::new(LIMITS).check_create(TopicRecord { replication: 3, ..wish });
        let problems = [
            "the name has characters other than a-z A-Z 0-9 . _ -: ' ' '/'".to_owned(),
            "partitions is 0; a topic has at least 1".to_owned(),
            "replication is 3; only 1 (or -1, the default) is possible on one node".to_owned(),
            "retention.ms = \"0\" is neither a whole number above 0 nor -1 (no limit)".to_owned(),
            "durability = \"maybe\" is neither disk nor relaxed".to_owned(),
            format!("colour = \"red\" is unknown; known are {}", SETTING_NAMES.join(", ")),
        ];
        assert_eq!(said, Err(TopicRefusal::Invalid { problems: problems.to_vec() }));
    }

    #[test]
    fn names_are_unique_and_caps_hold() {
        let table = table(&[wish(1, "a", 4, &[]), wish(2, "b", 4, &[])]);
        let name = "a".to_owned();
        assert_eq!(table.check_create(wish(3, "a", 1, &[])), Err(TopicRefusal::Exists { name }));
        let full = TopicRefusal::TooMany { what: "partitions", limit: 10, current: 8 };
        assert_eq!(table.check_create(wish(3, "c", 3, &[])), Err(full.clone()));
        assert_eq!(table.check_alter("a", 7, &[]), Err(full));
        let never = "partitions is 11; all topics together have at most 10".to_owned();
        let never = TopicRefusal::Invalid { problems: vec![never] };
        assert_eq!(table.check_create(wish(3, "c", 11, &[])), Err(never.clone()));
        assert_eq!(table.check_alter("a", 11, &[]), Err(never));
        assert!(table.check_alter("a", 6, &[]).is_ok());
        assert!(table.check_create(wish(3, "c", 2, &[])).is_ok());
    }

    #[test]
    fn a_change_keeps_other_settings_and_an_empty_value_restores_the_default() {
        let mut table = table(&[wish(1, "a", 2, &[("retention.ms", "5"), ("durability", "relaxed")])]);
        assert_eq!(table.named("a").map(|t| t.settings.durability), Some(Durability::Relaxed));
        let changes =
            [("durability".to_owned(), String::new()), ("segment.bytes".to_owned(), "1048576".to_owned())];
        let record = table.check_alter("a", 3, &changes).expect("allowed");
        table.apply(&record);
        table.check_invariants();
        let expected =
            TopicSettings { retention_ms: Some(5), segment_bytes: 1 << 20, ..TopicSettings::default() };
        let topic = table.named("a").expect("it is there");
        assert_eq!((topic.settings, topic.record.partitions), (expected, 3));
        let fewer = "partitions is 2; the topic has 3, and they never become fewer".to_owned();
        assert_eq!(table.check_alter("a", 2, &[]), Err(TopicRefusal::Invalid { problems: vec![fewer] }));
    }

    #[test]
    fn a_deleted_topic_frees_its_name_and_leaves_a_tombstone() {
        let mut table = table(&[wish(1, "a", 2, &[])]);
        let gone = table.check_delete("a").expect("it is there");
        table.apply(&gone);
        table.check_invariants();
        assert!(table.is_tombstoned(TopicId([1; 16])) && table.named("a").is_none());
        assert_eq!(table.partitions(), 0);
        assert!(table.check_create(wish(2, "a", 1, &[])).is_ok());
        for id in 2..4 {
            table.apply(&MetadataRecord::TopicGone { topic: TopicId([id; 16]), name: String::new() });
        }
        assert!(!table.is_tombstoned(TopicId([1; 16])), "the oldest goes at the cap");
    }

    #[test]
    fn a_replayed_snapshot_is_the_table_and_one_without_end_changes_nothing() {
        let mut live = table(&[wish(1, "a", 2, &[]), wish(2, "b", 1, &[("durability", "relaxed")])]);
        live.apply(&MetadataRecord::ProducerIds { below: 2000 });
        let gone = live.check_delete("a").expect("it is there");
        live.apply(&gone);

        let mut fresh = TopicTable::new(LIMITS);
        live.snapshot().iter().for_each(|record| fresh.apply(record));
        assert_eq!(fresh, live);

        let mut torn = live.clone();
        let mut records = TopicTable::new(LIMITS).snapshot();
        records.pop();
        records.iter().for_each(|record| torn.apply(record));
        assert!(torn.named("b").is_some());
    }

    #[test]
    fn described_settings_can_be_set_as_they_are() {
        let mut settings = TopicSettings::default();
        for Setting { name, value } in TopicSettings::default().describe() {
            settings.set(&name, &value, &LIMITS).expect("what is described is allowed");
        }
        assert_eq!(settings, TopicSettings::default());
    }
}
