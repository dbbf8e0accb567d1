//! Topics, offsets, metadata, status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_protocol::api::hello::Ping;
use tidegate_protocol::api::metadata::{MetadataReply, MetadataRequest, TopicInfo};
use tidegate_protocol::api::offset::{
    DeleteRecordsReply, DeleteRecordsRequest, ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply,
    OffsetCommitRequest, OffsetFetchReply, OffsetFetchRequest, OffsetQuery, StoredOffset,
};
use tidegate_protocol::api::status::{StatusReply, StatusRequest};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicRequest, DescribeTopicReply,
    DescribeTopicRequest, Setting, TopicDescription,
};
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::{LeaderEpoch, Offset, PartitionId, TopicId, TopicPartition};

use crate::client::{Repeat, Route, Shared, unknown_partition, unknown_topic};
use crate::connection::unreadable;
use crate::{Error, ErrorKind, Result};

/// Administration; made by [`crate::Client::admin`].
///
/// ```no_run
/// use tidegate::{Client, ErrorCode, TopicSpec};
///
/// # async fn example() -> tidegate::Result<()> {
/// let admin = Client::connect("127.0.0.1:7171").await?.admin();
/// let topic = TopicSpec::new("readings").partitions(4).setting("retention.ms", "86400000");
/// match admin.create_topic(topic).await {
///     Err(error) if error.code() != Some(ErrorCode::TopicExists) => return Err(error),
///     _ => {}
/// }
/// for partition in admin.describe_topic("readings").await?.partitions {
///     println!("{}: {} to {}", partition.partition, partition.start, partition.committed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    shared: Arc<Shared>,
}

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

impl Admin {
    pub(crate) fn new(shared: Arc<Shared>) -> Admin {
        Admin { shared }
    }

    /// Creates a topic; it is durable and known to every shard when this returns.
    ///
    /// # Errors
    /// `TopicExists`, `InvalidTopic` and whatever stands in the way of any request.
    pub async fn create_topic(&self, topic: TopicSpec) -> Result<TopicId> {
        let TopicSpec { name, partitions, replication, settings } = topic;
        let request = CreateTopicRequest { name, partitions, replication, settings };
        let reply =
            self.shared.call(Repeat::Never, |correlation, out| request.encode(correlation, out)).await?;
        let reply =
            CreateTopicReply::decode(&reply.frame()).map_err(|error| unreadable("the reply", &error))?;
        Ok(reply.topic)
    }

    /// Deletes a topic with all its records.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let request = DeleteTopicRequest { name: name.to_string() };
        self.shared.call(Repeat::Never, |correlation, out| request.encode(correlation, out)).await.map(|_| ())
    }

    /// Changes settings, adds partitions, or both.
    ///
    /// # Errors
    /// `UnknownTopic`, `InvalidTopic`.
    pub async fn alter_topic(&self, change: TopicChange) -> Result<()> {
        let TopicChange { name, partitions, settings } = change;
        let request = AlterTopicRequest { name, partitions, settings };
        // The change names the values to reach, not steps: doing it twice is the same.
        self.shared
            .call(Repeat::Harmless, |correlation, out| request.encode(correlation, out))
            .await
            .map(|_| ())
    }

    /// One topic with its settings and positions.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn describe_topic(&self, name: &str) -> Result<TopicDescription> {
        let topics = self.describe(vec![name.to_string()]).await?;
        topics.into_iter().find(|topic| topic.name == name).ok_or_else(|| unknown_topic(name))
    }

    /// All topics but the internal ones, with their settings and positions, by name.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn describe_topics(&self) -> Result<Vec<TopicDescription>> {
        self.describe(Vec::new()).await
    }

    /// All topics but the internal ones, by name.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>> {
        let mut topics = self.metadata().await?.topics;
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// Nodes, shards, topics, partitions.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn metadata(&self) -> Result<MetadataReply> {
        self.shared.metadata(MetadataRequest::all()).await
    }

    /// One offset of one partition.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`.
    pub async fn list_offset(
        &self,
        topic: &str,
        partition: PartitionId,
        query: OffsetQuery,
    ) -> Result<ListOffsetsReply> {
        let place = self.place(topic, partition).await?;
        list_offset(&self.shared, place, query).await
    }

    /// The same question to every partition, in their order.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn list_offsets(
        &self,
        topic: &str,
        query: OffsetQuery,
    ) -> Result<Vec<(PartitionId, ListOffsetsReply)>> {
        let route = self.shared.route(topic).await?;
        let mut found = Vec::with_capacity(route.partitions.len());
        for partition in &route.partitions {
            let place = TopicPartition { topic: route.topic, partition: partition.partition };
            found.push((partition.partition, list_offset(&self.shared, place, query).await?));
        }
        Ok(found)
    }

    /// Trims a partition: everything below `before` is gone. Returns the new start.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`, `OffsetOutOfRange`.
    pub async fn delete_records(
        &self,
        topic: &str,
        partition: PartitionId,
        before: Offset,
    ) -> Result<Offset> {
        let request = DeleteRecordsRequest { partition: self.place(topic, partition).await?, before };
        let reply =
            self.shared.call(Repeat::Harmless, |correlation, out| request.encode(correlation, out)).await?;
        let reply =
            DeleteRecordsReply::decode(&reply.frame()).map_err(|error| unreadable("the reply", &error))?;
        Ok(reply.start)
    }

    /// Stores where the named consumer continues; durable when this returns.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`.
    pub async fn commit_offsets(
        &self,
        consumer: &str,
        topic: &str,
        offsets: &[(PartitionId, Offset)],
    ) -> Result<()> {
        let route = self.shared.route(topic).await?;
        commit_offsets(&self.shared, consumer, route.topic, offsets).await
    }

    /// Where the named consumer continues in this topic; partitions without a stored offset are absent.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub async fn fetch_offsets(&self, consumer: &str, topic: &str) -> Result<Vec<StoredOffset>> {
        let route = self.shared.route(topic).await?;
        fetch_offsets(&self.shared, consumer, &route).await
    }

    /// What the broker is, and what its shards have counted since they started.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn status(&self) -> Result<StatusReply> {
        let reply = self
            .shared
            .call(Repeat::Harmless, |correlation, out| StatusRequest.encode(correlation, out))
            .await?;
        StatusReply::decode(&reply.frame()).map_err(|error| unreadable("the status", &error))
    }

    /// The time to the broker and back.
    ///
    /// # Errors
    /// Whatever stands in the way of any request.
    pub async fn ping(&self) -> Result<Duration> {
        let ping = Ping { nonce: 1, produce_bytes: 0, produce_limit: 0 };
        let sent = Instant::now();
        self.shared
            .call(Repeat::Harmless, |correlation, out| ping.encode(Kind::Request, correlation, out))
            .await?;
        Ok(sent.elapsed())
    }

    async fn describe(&self, names: Vec<String>) -> Result<Vec<TopicDescription>> {
        let mut request = DescribeTopicRequest { names, after: String::new() };
        let mut topics = Vec::new();
        loop {
            let reply = self
                .shared
                .call(Repeat::Harmless, |correlation, out| request.encode(correlation, out))
                .await?;
            let mut reply = DescribeTopicReply::decode(&reply.frame())
                .map_err(|error| unreadable("the description", &error))?;
            topics.append(&mut reply.topics);
            match topics.last() {
                // Names rise, or it would never end.
                Some(last) if reply.more && last.name > request.after => request.after = last.name.clone(),
                _ => return Ok(topics),
            }
        }
    }

    async fn place(&self, topic: &str, partition: PartitionId) -> Result<TopicPartition> {
        let route = self.shared.route(topic).await?;
        if !route.partitions.iter().any(|known| known.partition == partition) {
            return Err(unknown_partition(topic, partition, route.partitions.len()));
        }
        Ok(TopicPartition { topic: route.topic, partition })
    }
}

/// One offset of one partition.
pub(crate) async fn list_offset(
    shared: &Shared,
    partition: TopicPartition,
    query: OffsetQuery,
) -> Result<ListOffsetsReply> {
    let request = ListOffsetsRequest { partition, query };
    let reply = shared.call(Repeat::Harmless, |correlation, out| request.encode(correlation, out)).await?;
    ListOffsetsReply::decode(&reply.frame()).map_err(|error| unreadable("the offset", &error))
}

/// Offsets in one request: well below what the broker takes in a frame that is no produce.
const OFFSETS_PER_REQUEST: usize = 1_000;

/// Stores where a named consumer continues.
pub(crate) async fn commit_offsets(
    shared: &Shared,
    consumer: &str,
    topic: TopicId,
    offsets: &[(PartitionId, Offset)],
) -> Result<()> {
    for some in offsets.chunks(OFFSETS_PER_REQUEST) {
        commit_some(shared, consumer, topic, some).await?;
    }
    Ok(())
}

async fn commit_some(
    shared: &Shared,
    consumer: &str,
    topic: TopicId,
    offsets: &[(PartitionId, Offset)],
) -> Result<()> {
    let stored = offsets.iter().map(|&(partition, offset)| StoredOffset {
        partition: TopicPartition { topic, partition },
        offset,
        leader_epoch: LeaderEpoch::UNKNOWN,
        metadata: String::new(),
    });
    let request = OffsetCommitRequest {
        group: consumer.to_string(),
        generation: -1,
        member: String::new(),
        offsets: stored.collect(),
    };
    let reply = shared.call(Repeat::Harmless, |correlation, out| request.encode(correlation, out)).await?;
    let reply = OffsetCommitReply::decode(&reply.frame()).map_err(|error| unreadable("the reply", &error))?;
    for (code, (partition, offset)) in reply.results.iter().zip(offsets) {
        if let Some(code) = code {
            let cause =
                format!("offset {offset} of partition {partition} was not stored: {}", code.meaning());
            return Err(Error::new(ErrorKind::Refused(*code), cause));
        }
    }
    Ok(())
}

/// Where a named consumer continues in a topic.
pub(crate) async fn fetch_offsets(
    shared: &Shared,
    consumer: &str,
    route: &Route,
) -> Result<Vec<StoredOffset>> {
    let mut offsets = Vec::new();
    for some in route.partitions.chunks(OFFSETS_PER_REQUEST) {
        let partitions =
            some.iter().map(|known| TopicPartition { topic: route.topic, partition: known.partition });
        let request = OffsetFetchRequest { group: consumer.to_string(), partitions: partitions.collect() };
        let reply =
            shared.call(Repeat::Harmless, |correlation, out| request.encode(correlation, out)).await?;
        let reply =
            OffsetFetchReply::decode(&reply.frame()).map_err(|error| unreadable("the offsets", &error))?;
        offsets.extend(reply.offsets);
    }
    Ok(offsets)
}
