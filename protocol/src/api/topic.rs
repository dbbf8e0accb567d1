//! `create_topic`, `delete_topic`, `alter_topic`, `describe_topic`.

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
}

/// The topics asked for that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeTopicReply {
    /// By name.
    pub topics: Vec<TopicDescription>,
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
}
