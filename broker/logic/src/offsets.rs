//! Where named consumers continue: a table that one partition of the internal offsets topic restores.
//!
//! The log is the truth; the table is what its records amount to, live and in replay by the same [`OffsetsTable::apply`].

use std::collections::BTreeMap;

use tidegate_protocol::ids::{Offset, TopicId, TopicPartition};
use tidegate_protocol::internal::{OffsetRecord, Stored};

/// Bounds of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetsLimits {
    /// Pairs of consumer and partition.
    pub entries_max: usize,
    /// Bytes of a consumer's name.
    pub name_bytes_max: usize,
    /// Bytes of the application's own note.
    pub note_bytes_max: usize,
}

/// Why an offset is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetRefusal {
    /// The name is empty or too long.
    Name {
        /// Longest name, in bytes.
        limit: usize,
        /// Its bytes.
        found: usize,
    },
    /// The note is too long.
    Note {
        /// Longest note, in bytes.
        limit: usize,
        /// Its bytes.
        found: usize,
    },
    /// The offset is negative.
    Negative {
        /// The offset.
        found: Offset,
    },
    /// The table is full.
    Full {
        /// Entries that it may hold.
        limit: usize,
    },
}

/// The stored offsets of one partition of the internal topic.
///
/// Invariants: `entries` and `bytes` are the number and the size of all entries; no consumer is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsTable {
    limits: OffsetsLimits,
    consumers: BTreeMap<String, BTreeMap<TopicPartition, Stored>>,
    entries: usize,
    bytes: usize,
    // What a snapshot under way has repeated so far.
    snapshot: Option<Vec<(String, TopicPartition)>>,
}

/// Fixed bytes that an entry is counted with: topic, partition, offset, epoch and the record around them.
const ENTRY_BYTES: usize = 64;

impl OffsetsTable {
    /// An empty table.
    pub fn new(limits: OffsetsLimits) -> OffsetsTable {
        OffsetsTable { limits, consumers: BTreeMap::new(), entries: 0, bytes: 0, snapshot: None }
    }

    /// Whether a commit of these entries for `consumer` may be written; changes nothing. `coming` entries are on their way
    /// into the log already and count.
    pub fn check(
        &self,
        consumer: &str,
        wanted: &[(TopicPartition, Stored)],
        coming: usize,
    ) -> Result<(), OffsetRefusal> {
        if consumer.is_empty() || consumer.len() > self.limits.name_bytes_max {
            return Err(OffsetRefusal::Name { limit: self.limits.name_bytes_max, found: consumer.len() });
        }
        let known = self.consumers.get(consumer);
        let mut new = 0;
        for (partition, stored) in wanted {
            if stored.note.len() > self.limits.note_bytes_max {
                let (limit, found) = (self.limits.note_bytes_max, stored.note.len());
                return Err(OffsetRefusal::Note { limit, found });
            }
            if stored.offset < Offset(0) {
                return Err(OffsetRefusal::Negative { found: stored.offset });
            }
            new += usize::from(!known.is_some_and(|entries| entries.contains_key(partition)));
        }
        if new > 0 && self.entries + coming + new > self.limits.entries_max {
            return Err(OffsetRefusal::Full { limit: self.limits.entries_max });
        }
        Ok(())
    }

    /// Takes in a change that is durable, live or in replay.
    pub fn apply(&mut self, change: OffsetRecord) {
        match change {
            OffsetRecord::Put { consumer, partition, stored } => {
                if let Some(repeated) = &mut self.snapshot {
                    repeated.push((consumer.clone(), partition));
                }
                let added = entry_bytes(&consumer, &stored);
                let name_len = consumer.len();
                let replaced = self.consumers.entry(consumer).or_default().insert(partition, stored);
                let removed = replaced.as_ref().map_or(0, |old| name_len + old.note.len() + ENTRY_BYTES);
                self.entries += usize::from(replaced.is_none());
                self.bytes = self.bytes + added - removed;
            }
            OffsetRecord::TopicGone { topic } => self.retain(|_, partition| partition.topic != topic),
            OffsetRecord::SnapshotBegin => self.snapshot = Some(Vec::new()),
            OffsetRecord::SnapshotEnd => {
                if let Some(mut repeated) = self.snapshot.take() {
                    repeated.sort_unstable();
                    self.retain(|consumer, partition| {
                        let wanted = (consumer, partition);
                        repeated.binary_search_by(|(c, p)| (c.as_str(), p).cmp(&wanted)).is_ok()
                    });
                }
            }
        }
    }

    fn retain(&mut self, keep: impl Fn(&str, &TopicPartition) -> bool) {
        let (mut entries, mut bytes) = (0, 0);
        self.consumers.retain(|consumer, stored| {
            stored.retain(|partition, _| keep(consumer, partition));
            entries += stored.len();
            bytes += stored.values().map(|s| entry_bytes(consumer, s)).sum::<usize>();
            !stored.is_empty()
        });
        (self.entries, self.bytes) = (entries, bytes);
    }

    /// What `consumer` has stored for `partitions`, or, if none are named, for all.
    pub fn find(&self, consumer: &str, partitions: &[TopicPartition]) -> Vec<(TopicPartition, Stored)> {
        let Some(stored) = self.consumers.get(consumer) else { return Vec::new() };
        let own = |(partition, stored): (&TopicPartition, &Stored)| (*partition, stored.clone());
        if partitions.is_empty() {
            return stored.iter().map(own).collect();
        }
        partitions.iter().filter_map(|p| stored.get_key_value(p).map(own)).collect()
    }

    /// All entries as changes, for a snapshot: `begin`, one put each, `end`.
    pub fn snapshot(&self) -> Vec<OffsetRecord> {
        let puts = self.consumers.iter().flat_map(|(consumer, entries)| {
            entries.iter().map(|(partition, stored)| OffsetRecord::Put {
                consumer: consumer.clone(),
                partition: *partition,
                stored: stored.clone(),
            })
        });
        let mut changes = vec![OffsetRecord::SnapshotBegin];
        changes.extend(puts);
        changes.push(OffsetRecord::SnapshotEnd);
        changes
    }

    /// Entries in the table.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes that a snapshot would take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether anything is stored for a partition of `topic`.
    pub fn knows(&self, topic: TopicId) -> bool {
        self.consumers.values().any(|entries| entries.keys().any(|p| p.topic == topic))
    }
}

fn entry_bytes(consumer: &str, stored: &Stored) -> usize {
    consumer.len() + stored.note.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::ids::{LeaderEpoch, PartitionId};

    use super::*;

    const LIMITS: OffsetsLimits = OffsetsLimits { entries_max: 3, name_bytes_max: 8, note_bytes_max: 4 };

    fn partition(topic: u8, partition: i32) -> TopicPartition {
        TopicPartition { topic: TopicId([topic; 16]), partition: PartitionId(partition) }
    }

    fn stored(offset: i64, note: &str) -> Stored {
        Stored { offset: Offset(offset), leader_epoch: LeaderEpoch(1), note: note.to_owned() }
    }

    fn put(consumer: &str, at: TopicPartition, offset: i64) -> OffsetRecord {
        OffsetRecord::Put { consumer: consumer.to_owned(), partition: at, stored: stored(offset, "n") }
    }

    fn table(changes: &[OffsetRecord]) -> OffsetsTable {
        let mut table = OffsetsTable::new(LIMITS);
        changes.iter().cloned().for_each(|change| table.apply(change));
        table
    }

    #[test]
    fn the_last_commit_of_each_partition_counts() {
        let (a, b) = (partition(1, 0), partition(1, 1));
        let table = table(&[put("x", a, 5), put("x", b, 7), put("y", a, 1), put("x", a, 9)]);
        assert_eq!(table.find("x", &[]), [(a, stored(9, "n")), (b, stored(7, "n"))]);
        assert_eq!(table.find("y", &[b, a]), [(a, stored(1, "n"))]);
        assert_eq!(table.find("z", &[]), []);
        assert_eq!((table.entries(), table.bytes()), (3, 3 * (ENTRY_BYTES + 2)));
    }

    #[test]
    fn what_cannot_be_stored_is_refused_with_the_limit() {
        let (a, b) = (partition(1, 0), partition(1, 1));
        let table = table(&[put("x", a, 5), put("y", a, 5)]);
        let one = |consumer: &str, at, stored, coming| table.check(consumer, &[(at, stored)], coming);
        assert_eq!(one("x", a, stored(0, ""), 9), Ok(()));
        assert_eq!(one("x", b, stored(0, ""), 0), Ok(()));
        assert_eq!(one("x", b, stored(0, ""), 1), Err(OffsetRefusal::Full { limit: 3 }));
        assert_eq!(one("", a, stored(0, ""), 0), Err(OffsetRefusal::Name { limit: 8, found: 0 }));
        assert_eq!(one("longer-name", a, stored(0, ""), 0), Err(OffsetRefusal::Name { limit: 8, found: 11 }));
        assert_eq!(one("x", a, stored(0, "12345"), 0), Err(OffsetRefusal::Note { limit: 4, found: 5 }));
        assert_eq!(one("x", a, stored(-1, ""), 0), Err(OffsetRefusal::Negative { found: Offset(-1) }));
    }

    #[test]
    fn a_deleted_topic_takes_its_entries_along() {
        let mut table = table(&[
            put("x", partition(1, 0), 5),
            put("x", partition(2, 0), 6),
            put("y", partition(1, 1), 7),
        ]);
        table.apply(OffsetRecord::TopicGone { topic: TopicId([1; 16]) });
        assert_eq!((table.entries(), table.bytes()), (1, ENTRY_BYTES + 2));
        assert!(!table.knows(TopicId([1; 16])) && table.knows(TopicId([2; 16])));
    }

    #[test]
    fn a_whole_snapshot_replaces_the_table_and_one_without_end_changes_nothing() {
        let (a, b) = (partition(1, 0), partition(2, 0));
        let live = table(&[put("x", a, 5), put("x", b, 6), put("y", b, 7)]);
        assert_eq!(table(&live.snapshot()), live);

        let mut behind = table(&[put("old", a, 1), put("x", a, 2)]);
        let mut torn = live.snapshot();
        torn.pop();
        torn.iter().cloned().for_each(|change| behind.apply(change));
        assert_eq!(behind.find("old", &[]).len(), 1, "no end, so nothing is dropped");
        live.snapshot().into_iter().for_each(|change| behind.apply(change));
        assert_eq!(behind, live);
    }
}
