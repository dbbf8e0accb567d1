//! Topics, offsets, metadata, status.

use std::time::Duration;

use tidegate_protocol::api::metadata::{MetadataReply, TopicInfo};
use tidegate_protocol::api::offset::{ListOffsetsReply, OffsetQuery, StoredOffset};
use tidegate_protocol::api::status::StatusReply;
use tidegate_protocol::api::topic::{Setting, TopicDescription};
use tidegate_protocol::ids::{Offset, PartitionId, TopicId};

use crate::{Error, ErrorKind, Result};

/// Administration; made by [`crate::Client::admin`].
#[derive(Clone, Debug)]
pub struct Admin {}

/// A topic to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSpec {
    name: String,
    partitions: i32,
    replication: i16,
    settings: Vec<Setting>,
}

impl TopicSpec {
    /// A topic of one partition with the broker's defaults.
    pub fn new(name: &str) -> TopicSpec {
        TopicSpec { name: name.to_string(), partitions: 1, replication: -1, settings: Vec::new() }
    }

    /// Number of partitions, at least 1.
    pub fn partitions(mut self, partitions: i32) -> TopicSpec {
        self.partitions = partitions;
        self
    }

    /// Replicas of each partition; -1: the broker's default.
    pub fn replication(mut self, replication: i16) -> TopicSpec {
        self.replication = replication;
        self
    }

    /// A setting that differs from its default, such as `retention.ms`; see [`Setting`].
    pub fn setting(mut self, name: &str, value: &str) -> TopicSpec {
        self.settings.push(Setting { name: name.to_string(), value: value.to_string() });
        self
    }
}

/// A change of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicChange {
    name: String,
    partitions: i32,
    settings: Vec<Setting>,
}

impl TopicChange {
    /// Changes nothing yet.
    pub fn new(name: &str) -> TopicChange {
        TopicChange { name: name.to_string(), partitions: 0, settings: Vec::new() }
    }

    /// The new number of partitions, not below the present one. Keys then map to other partitions than before.
    pub fn partitions(mut self, partitions: i32) -> TopicChange {
        self.partitions = partitions;
        self
    }

    /// A setting to change; an empty value: back to the default.
    pub fn setting(mut self, name: &str, value: &str) -> TopicChange {
        self.settings.push(Setting { name: name.to_string(), value: value.to_string() });
        self
    }
}

fn being_written<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Closed, "being written"))
}

impl Admin {
    /// Creates a topic; it is durable and known to every shard when this returns.
    ///
    /// # Errors
    /// `TopicExists`, `InvalidTopic` and whatever stands in the way of any request.
    pub async fn create_topic(&self, _topic: TopicSpec) -> Result<TopicId> {
        being_written()
    }

    /// Deletes a topic with all its records.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn delete_topic(&self, _name: &str) -> Result<()> {
        being_written()
    }

    /// Changes settings, adds partitions, or both.
    ///
    /// # Errors
    /// `UnknownTopic`, `InvalidTopic`.
    pub async fn alter_topic(&self, _change: TopicChange) -> Result<()> {
        being_written()
    }

    /// One topic with its settings and positions.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn describe_topic(&self, _name: &str) -> Result<TopicDescription> {
        being_written()
    }

    /// All topics but the internal ones, with their settings and positions, by name.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn describe_topics(&self) -> Result<Vec<TopicDescription>> {
        being_written()
    }

    /// All topics but the internal ones, by name.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>> {
        being_written()
    }

    /// Nodes, shards, topics, partitions.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn metadata(&self) -> Result<MetadataReply> {
        being_written()
    }

    /// One offset of one partition.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`.
    pub async fn list_offset(
        &self,
        _topic: &str,
        _partition: PartitionId,
        _query: OffsetQuery,
    ) -> Result<ListOffsetsReply> {
        being_written()
    }

    /// The same question to every partition, in their order.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn list_offsets(
        &self,
        _topic: &str,
        _query: OffsetQuery,
    ) -> Result<Vec<(PartitionId, ListOffsetsReply)>> {
        being_written()
    }

    /// Trims a partition: everything below `before` is gone. Returns the new start.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`, `OffsetOutOfRange`.
    pub async fn delete_records(
        &self,
        _topic: &str,
        _partition: PartitionId,
        _before: Offset,
    ) -> Result<Offset> {
        being_written()
    }

    /// Stores where the named consumer continues; durable when this returns.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`.
    pub async fn commit_offsets(
        &self,
        _consumer: &str,
        _topic: &str,
        _offsets: &[(PartitionId, Offset)],
    ) -> Result<()> {
        being_written()
    }

    /// Where the named consumer continues in this topic; partitions without a stored offset are absent.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn fetch_offsets(&self, _consumer: &str, _topic: &str) -> Result<Vec<StoredOffset>> {
        being_written()
    }

    /// What the broker is, and what its shards have counted since they started.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn status(&self) -> Result<StatusReply> {
        being_written()
    }

    /// The time to the broker and back.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn ping(&self) -> Result<Duration> {
        being_written()
    }
}
