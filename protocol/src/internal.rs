//! Records of the broker's own topics: what topics there are, and where named consumers continue.
//!
//! They lie in ordinary batches of ordinary logs. Key: `kind u8`, then what identifies the entry; value: `version u8`,
//! then its content. Numbers are little-endian; text is `length u16` and UTF-8. A snapshot is the records of all live
//! entries between a begin and an end; one without its end counts for nothing.

use crate::code::{DecodeError, DecodeErrorKind, Reader, Writer};
use crate::ids::{LeaderEpoch, Offset, PartitionId, TopicId, TopicPartition};

const VERSION: u8 = 1;

/// A record of [`TopicId::METADATA`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataRecord {
    /// A topic as it is from now on. Kind 1.
    Topic(TopicRecord),
    /// A topic is deleted; its logs can go once this is durable. Kind 2.
    TopicGone {
        /// Its identity, which is never used again.
        topic: TopicId,
        /// Its name, which is free again.
        name: String,
    },
    /// Producer ids below this may have been given out. Kind 3.
    ProducerIds {
        /// The lowest id that was never given out.
        below: i64,
    },
    /// A snapshot begins. Kind 254.
    SnapshotBegin,
    /// The snapshot is whole. Kind 255.
    SnapshotEnd,
}

/// A topic in the metadata log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// Its identity.
    pub topic: TopicId,
    /// Its name.
    pub name: String,
    /// Partitions.
    pub partitions: i32,
    /// Replicas of each.
    pub replication: i16,
    /// Milliseconds since the Unix epoch at which it was created.
    pub created_ms: i64,
    /// Settings that were given, as name and value; the others have their defaults.
    pub settings: Vec<(String, String)>,
}

/// A record of [`TopicId::OFFSETS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffsetRecord {
    /// A consumer continues here. Kind 1.
    Put {
        /// The consumer's name.
        consumer: String,
        /// Which partition.
        partition: TopicPartition,
        /// What it stored.
        stored: Stored,
    },
    /// Nothing of a deleted topic is needed any more. Kind 2.
    TopicGone {
        /// Which.
        topic: TopicId,
    },
    /// A snapshot begins. Kind 254.
    SnapshotBegin,
    /// The snapshot is whole. Kind 255.
    SnapshotEnd,
}

/// What a consumer has stored for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The next record to read.
    pub offset: Offset,
    /// The epoch of the record before it, or unknown.
    pub leader_epoch: LeaderEpoch,
    /// The application's own note.
    pub note: String,
}

/// Key and value of a record as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

const PUT: u8 = 1;
const GONE: u8 = 2;
const PRODUCER_IDS: u8 = 3;
const SNAPSHOT_BEGIN: u8 = 254;
const SNAPSHOT_END: u8 = 255;

impl MetadataRecord {
    /// The record's bytes.
    ///
    /// # Panics
    /// If a text is longer than 65,535 bytes, which the rules of topics forbid.
    pub fn encode(&self) -> KeyValue {
        let mut out = KeyValue::default();
        let (mut key, mut value) = (Writer::new(&mut out.key), Writer::new(&mut out.value));
        value.u8(VERSION);
        match self {
            MetadataRecord::Topic(record) => {
                key.u8(PUT);
                key.bytes(&record.topic.0);
                put_text(&mut value, &record.name);
                value.i32(record.partitions);
                value.bytes(&record.replication.to_le_bytes());
                value.i64(record.created_ms);
                value.u32(u32::try_from(record.settings.len()).expect("settings are few"));
                for (name, setting) in &record.settings {
                    put_text(&mut value, name);
                    put_text(&mut value, setting);
                }
            }
            MetadataRecord::TopicGone { topic, name } => {
                key.u8(GONE);
                key.bytes(&topic.0);
                put_text(&mut value, name);
            }
            MetadataRecord::ProducerIds { below } => {
                key.u8(PRODUCER_IDS);
                value.i64(*below);
            }
            MetadataRecord::SnapshotBegin => key.u8(SNAPSHOT_BEGIN),
            MetadataRecord::SnapshotEnd => key.u8(SNAPSHOT_END),
        }
        out
    }

    /// Reads a record of the metadata log.
    pub fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<MetadataRecord, DecodeError> {
        let (mut key, mut value) = key_and_value(key, value)?;
        let kind = key.u8("kind")?;
        let read = match kind {
            PUT => MetadataRecord::Topic(TopicRecord {
                topic: take_topic(&mut key)?,
                name: take_text(&mut value, "name")?,
                partitions: value.i32("partitions")?,
                replication: value.u16("replication")?.cast_signed(),
                created_ms: value.i64("created_ms")?,
                settings: {
                    let count = value.count("settings", 4)?;
                    let mut settings = Vec::with_capacity(count);
                    for _ in 0..count {
                        settings.push((take_text(&mut value, "setting")?, take_text(&mut value, "value")?));
                    }
                    settings
                },
            }),
            GONE => MetadataRecord::TopicGone {
                topic: take_topic(&mut key)?,
                name: take_text(&mut value, "name")?,
            },
            PRODUCER_IDS => MetadataRecord::ProducerIds { below: value.i64("below")? },
            SNAPSHOT_BEGIN => MetadataRecord::SnapshotBegin,
            SNAPSHOT_END => MetadataRecord::SnapshotEnd,
            _ => return Err(unknown_kind(kind)),
        };
        key.end("key")?;
        value.end("value")?;
        Ok(read)
    }
}

impl OffsetRecord {
    /// The record's bytes.
    ///
    /// # Panics
    /// If a text is longer than 65,535 bytes, which the rules of stored offsets forbid.
    pub fn encode(&self) -> KeyValue {
        let mut out = KeyValue::default();
        let (mut key, mut value) = (Writer::new(&mut out.key), Writer::new(&mut out.value));
        value.u8(VERSION);
        match self {
            OffsetRecord::Put { consumer, partition, stored } => {
                key.u8(PUT);
                put_text(&mut key, consumer);
                key.bytes(&partition.topic.0);
                key.i32(partition.partition.0);
                value.i64(stored.offset.0);
                value.i32(stored.leader_epoch.0);
                put_text(&mut value, &stored.note);
            }
            OffsetRecord::TopicGone { topic } => {
                key.u8(GONE);
                key.bytes(&topic.0);
            }
            OffsetRecord::SnapshotBegin => key.u8(SNAPSHOT_BEGIN),
            OffsetRecord::SnapshotEnd => key.u8(SNAPSHOT_END),
        }
        out
    }

    /// Reads a record of the offsets topic.
    pub fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<OffsetRecord, DecodeError> {
        let (mut key, mut value) = key_and_value(key, value)?;
        let kind = key.u8("kind")?;
        let read = match kind {
            PUT => OffsetRecord::Put {
                consumer: take_text(&mut key, "consumer")?,
                partition: TopicPartition {
                    topic: take_topic(&mut key)?,
                    partition: PartitionId(key.i32("partition")?),
                },
                stored: Stored {
                    offset: Offset(value.i64("offset")?),
                    leader_epoch: LeaderEpoch(value.i32("leader_epoch")?),
                    note: take_text(&mut value, "note")?,
                },
            },
            GONE => OffsetRecord::TopicGone { topic: take_topic(&mut key)? },
            SNAPSHOT_BEGIN => OffsetRecord::SnapshotBegin,
            SNAPSHOT_END => OffsetRecord::SnapshotEnd,
            _ => return Err(unknown_kind(kind)),
        };
        key.end("key")?;
        value.end("value")?;
        Ok(read)
    }
}

fn key_and_value<'a>(
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
) -> Result<(Reader<'a>, Reader<'a>), DecodeError> {
    let (Some(key), Some(value)) = (key, value) else {
        return Err(DecodeError::rule("record", 0, "has no key or no value"));
    };
    let mut value = Reader::new(value);
    let version = value.u8("version")?;
    if version != VERSION {
        return Err(DecodeError::new("version", 0, DecodeErrorKind::Unknown { found: i64::from(version) }));
    }
    Ok((Reader::new(key), value))
}

fn unknown_kind(kind: u8) -> DecodeError {
    DecodeError::new("kind", 0, DecodeErrorKind::Unknown { found: i64::from(kind) })
}

fn take_topic(r: &mut Reader<'_>) -> Result<TopicId, DecodeError> {
    let bytes = r.bytes("topic", 16)?;
    Ok(TopicId(bytes.try_into().expect("16 bytes were taken")))
}

fn put_text(w: &mut Writer<'_>, text: &str) {
    w.u16(u16::try_from(text.len()).expect("texts of internal records are short"));
    w.bytes(text.as_bytes());
}

fn take_text(r: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
    let len = r.u16(field)?;
    Ok(r.text(field, usize::from(len))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_and_none_with_a_byte_missing() {
        let topic = TopicId([7; 16]);
        let metadata = [
            MetadataRecord::Topic(TopicRecord {
                topic,
                name: "orders".to_owned(),
                partitions: 3,
                replication: 1,
                created_ms: 12,
                settings: vec![("retention.ms".to_owned(), "5".to_owned())],
            }),
            MetadataRecord::TopicGone { topic, name: "orders".to_owned() },
            MetadataRecord::ProducerIds { below: 1 << 40 },
            MetadataRecord::SnapshotBegin,
            MetadataRecord::SnapshotEnd,
        ];
        for written in metadata {
            let mut bytes = written.encode();
            assert_eq!(MetadataRecord::decode(Some(&bytes.key), Some(&bytes.value)), Ok(written.clone()));
            bytes.value.pop();
            assert!(MetadataRecord::decode(Some(&bytes.key), Some(&bytes.value)).is_err(), "{written:?}");
        }
        let partition = TopicPartition { topic, partition: PartitionId(2) };
        let stored = Stored { offset: Offset(9), leader_epoch: LeaderEpoch(3), note: "é".to_owned() };
        let offsets = [
            OffsetRecord::Put { consumer: "billing".to_owned(), partition, stored },
            OffsetRecord::TopicGone { topic },
            OffsetRecord::SnapshotBegin,
            OffsetRecord::SnapshotEnd,
        ];
        for written in offsets {
            let mut bytes = written.encode();
            assert_eq!(OffsetRecord::decode(Some(&bytes.key), Some(&bytes.value)), Ok(written.clone()));
            bytes.key.pop();
            assert!(OffsetRecord::decode(Some(&bytes.key), Some(&bytes.value)).is_err(), "{written:?}");
        }
    }
}
