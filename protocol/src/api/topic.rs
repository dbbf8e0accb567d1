//! `create_topic`, `delete_topic`, `alter_topic`, `describe_topic`.

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, Vector, WIPOffset};
use tidegate_schema::wire;

use super::Api;
use super::table::{id16, put_after, put_strings, put_table, take_strings, take_table};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind};
use crate::ids::{Offset, PartitionId, ShardId, TopicId};

/// A setting of a topic as the caller typed it: the broker refuses unknown names and bad values.
///
/// Names: `retention.ms`, `retention.bytes` (-1: no limit), `segment.bytes`, `durability` (`disk` | `relaxed`),
/// `timestamp.type` (`create` | `append`), `batch.bytes.max`, `idempotence.window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name.
    pub name: String,
    /// The value; empty: back to the default.
    pub value: String,
}

/// Create a topic; the reply comes once it is durable and every shard has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopicRequest {
    /// 1 to 249 of `a-z A-Z 0-9 . _ -`, as Kafka's names.
    pub name: String,
    /// At least 1.
    pub partitions: i32,
    /// Replicas of each partition: 1 today; -1: the broker's default.
    pub replication: i16,
    /// Settings that differ from the defaults.
    pub settings: Vec<Setting>,
}

/// The new topic's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTopicReply {
    /// The identity.
    pub topic: TopicId,
}

/// Delete a topic with all its records; the reply comes once the deletion is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopicRequest {
    /// The name.
    pub name: String,
}

/// Change settings, add partitions, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterTopicRequest {
    /// The name.
    pub name: String,
    /// The new number of partitions, not below the present one; 0: as it is.
    pub partitions: i32,
    /// Settings to change; the others stay.
    pub settings: Vec<Setting>,
}

/// Which topics to describe; none named: all but the internal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeTopicRequest {
    /// Names.
    pub names: Vec<String>,
    /// Only topics whose name comes behind this one; empty: all.
    pub after: String,
}

/// The topics asked for that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeTopicReply {
    /// By name.
    pub topics: Vec<TopicDescription>,
    /// There are further ones: ask again, `after` the last name.
    pub more: bool,
}

/// A topic with all its settings, also those at their default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// The name.
    pub name: String,
    /// The identity.
    pub topic: TopicId,
    /// Replicas of each partition.
    pub replication: i16,
    /// Milliseconds since the Unix epoch at which it was created.
    pub created_ms: i64,
    /// All settings with their present value.
    pub settings: Vec<Setting>,
    /// The partitions, from 0.
    pub partitions: Vec<PartitionDescription>,
}

/// Where a partition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    /// The partition.
    pub partition: PartitionId,
    /// The shard that owns it.
    pub shard: ShardId,
    /// First readable offset.
    pub start: Offset,
    /// One past the last readable offset.
    pub committed: Offset,
    /// One past the last appended offset.
    pub appended: Offset,
    /// Bytes on disk and in memory that belong to it.
    pub bytes: i64,
    /// Ranges of offsets that are known to be damaged: found by a read since the broker has started.
    pub damaged_ranges: u32,
    /// The first of them; 0 and 0: none.
    pub damaged_from: Offset,
    /// One past its last offset.
    pub damaged_upto: Offset,
}

impl CreateTopicRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::CreateTopic.number(), Kind::Request, correlation, out, |b| {
            let args = wire::CreateTopicRequestArgs {
                name: Some(b.create_string(&self.name)),
                partitions: self.partitions,
                replication: self.replication,
                settings: Some(put_settings(b, &self.settings)),
            };
            wire::CreateTopicRequest::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<CreateTopicRequest, DecodeError> {
        let table = take_table::<wire::CreateTopicRequest<'_>>(frame, Api::CreateTopic, Kind::Request)?;
        Ok(CreateTopicRequest {
            name: table.name().to_owned(),
            partitions: table.partitions(),
            replication: table.replication(),
            settings: take_settings(table.settings()),
        })
    }
}

impl CreateTopicReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::CreateTopic.number(), Kind::Reply, correlation, out, |b| {
            let topic = Some(b.create_vector(&self.topic.0));
            wire::CreateTopicReply::create(b, &wire::CreateTopicReplyArgs { topic }).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<CreateTopicReply, DecodeError> {
        let table = take_table::<wire::CreateTopicReply<'_>>(frame, Api::CreateTopic, Kind::Reply)?;
        Ok(CreateTopicReply { topic: TopicId(id16("topic", table.topic(), frame.body_at())?) })
    }
}

impl DeleteTopicRequest {
    /// Appends the whole frame. The reply is [`super::Done`].
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::DeleteTopic.number(), Kind::Request, correlation, out, |b| {
            let name = Some(b.create_string(&self.name));
            wire::DeleteTopicRequest::create(b, &wire::DeleteTopicRequestArgs { name }).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<DeleteTopicRequest, DecodeError> {
        let table = take_table::<wire::DeleteTopicRequest<'_>>(frame, Api::DeleteTopic, Kind::Request)?;
        Ok(DeleteTopicRequest { name: table.name().to_owned() })
    }
}

impl AlterTopicRequest {
    /// Appends the whole frame. The reply is [`super::Done`].
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::AlterTopic.number(), Kind::Request, correlation, out, |b| {
            let args = wire::AlterTopicRequestArgs {
                name: Some(b.create_string(&self.name)),
                partitions: self.partitions,
                settings: Some(put_settings(b, &self.settings)),
            };
            wire::AlterTopicRequest::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<AlterTopicRequest, DecodeError> {
        let table = take_table::<wire::AlterTopicRequest<'_>>(frame, Api::AlterTopic, Kind::Request)?;
        Ok(AlterTopicRequest {
            name: table.name().to_owned(),
            partitions: table.partitions(),
            settings: take_settings(table.settings()),
        })
    }
}

impl DescribeTopicRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::DescribeTopic.number(), Kind::Request, correlation, out, |b| {
            let names = Some(put_strings(b, &self.names));
            let after = put_after(b, &self.after);
            let args = wire::DescribeTopicRequestArgs { names, after };
            wire::DescribeTopicRequest::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<DescribeTopicRequest, DecodeError> {
        let table = take_table::<wire::DescribeTopicRequest<'_>>(frame, Api::DescribeTopic, Kind::Request)?;
        let after = table.after().unwrap_or_default().to_owned();
        Ok(DescribeTopicRequest { names: take_strings(table.names()), after })
    }
}

impl DescribeTopicReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::DescribeTopic.number(), Kind::Reply, correlation, out, |b| {
            let topics: Vec<_> = self.topics.iter().map(|topic| put_description(b, topic)).collect();
            let topics = Some(b.create_vector(&topics));
            let args = wire::DescribeTopicReplyArgs { topics, more: self.more };
            wire::DescribeTopicReply::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<DescribeTopicReply, DecodeError> {
        let table = take_table::<wire::DescribeTopicReply<'_>>(frame, Api::DescribeTopic, Kind::Reply)?;
        let at = frame.body_at();
        let topics =
            table.topics().iter().map(|topic| take_description(topic, at)).collect::<Result<_, _>>()?;
        Ok(DescribeTopicReply { topics, more: table.more() })
    }
}

fn put_description<'b>(
    b: &mut FlatBufferBuilder<'b>,
    topic: &TopicDescription,
) -> WIPOffset<wire::TopicDescription<'b>> {
    let mut partitions = Vec::with_capacity(topic.partitions.len());
    for partition in &topic.partitions {
        let args = wire::PartitionDescriptionArgs {
            partition: partition.partition.0,
            shard: partition.shard.0,
            start: partition.start.0,
            committed: partition.committed.0,
            appended: partition.appended.0,
            bytes: partition.bytes,
            damaged_ranges: partition.damaged_ranges,
            damaged_from: partition.damaged_from.0,
            damaged_upto: partition.damaged_upto.0,
        };
        partitions.push(wire::PartitionDescription::create(b, &args));
    }
    let args = wire::TopicDescriptionArgs {
        name: Some(b.create_string(&topic.name)),
        topic: Some(b.create_vector(&topic.topic.0)),
        replication: topic.replication,
        created_ms: topic.created_ms,
        settings: Some(put_settings(b, &topic.settings)),
        partitions: Some(b.create_vector(&partitions)),
    };
    wire::TopicDescription::create(b, &args)
}

fn take_description(topic: wire::TopicDescription<'_>, at: usize) -> Result<TopicDescription, DecodeError> {
    let partition = |partition: wire::PartitionDescription<'_>| PartitionDescription {
        partition: PartitionId(partition.partition()),
        shard: ShardId(partition.shard()),
        start: Offset(partition.start()),
        committed: Offset(partition.committed()),
        appended: Offset(partition.appended()),
        bytes: partition.bytes(),
        damaged_ranges: partition.damaged_ranges(),
        damaged_from: Offset(partition.damaged_from()),
        damaged_upto: Offset(partition.damaged_upto()),
    };
    Ok(TopicDescription {
        name: topic.name().to_owned(),
        topic: TopicId(id16("topic", topic.topic(), at)?),
        replication: topic.replication(),
        created_ms: topic.created_ms(),
        settings: take_settings(topic.settings()),
        partitions: topic.partitions().iter().map(partition).collect(),
    })
}

fn put_settings<'b>(
    b: &mut FlatBufferBuilder<'b>,
    settings: &[Setting],
) -> WIPOffset<Vector<'b, ForwardsUOffset<wire::Setting<'b>>>> {
    let mut tables = Vec::with_capacity(settings.len());
    for setting in settings {
        let args = wire::SettingArgs {
            name: Some(b.create_string(&setting.name)),
            value: Some(b.create_string(&setting.value)),
        };
        tables.push(wire::Setting::create(b, &args));
    }
    b.create_vector(&tables)
}

fn take_settings<'a>(settings: Vector<'a, ForwardsUOffset<wire::Setting<'a>>>) -> Vec<Setting> {
    let setting = |s: wire::Setting<'_>| Setting { name: s.name().to_owned(), value: s.value().to_owned() };
    settings.iter().map(setting).collect()
}
