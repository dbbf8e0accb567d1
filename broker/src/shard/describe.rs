//! Where everything is and how it stands: `metadata` and `describe_topic`, as many topics as fit one reply.

use tidegate_logic::placement::shard_of;
use tidegate_logic::topics::Topic;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::metadata::{
    MetadataReply, MetadataRequest, NodeInfo, PartitionInfo, TopicInfo, TopicsWanted,
};
use tidegate_protocol::api::topic::{
    DescribeTopicReply, DescribeTopicRequest, PartitionDescription, TopicDescription,
};
use tidegate_protocol::ids::{PartitionId, ShardId, TopicId, TopicPartition};
use tidegate_protocol::internal::TopicRecord;
use tidegate_reactor::op::Op;

use super::Shard;
use super::connection::ConnectionId;
use super::limits::topic_bytes;
use super::mail::Ask;
use super::stats::Gathering;

impl Shard {
    /// Nodes, shards and the topics asked for.
    pub(super) fn metadata(&mut self, id: ConnectionId, correlation: u32, request: &MetadataRequest) {
        let names = match &request.topics {
            TopicsWanted::All => None,
            TopicsWanted::Named(names) => Some(names.as_slice()),
        };
        let (topics, more) = self.topics_page(names, &request.after);
        let topics = topics.into_iter().map(|topic| self.topic_info(&topic.record)).collect();
        let shards = self.advertised.clone();
        let nodes = vec![NodeInfo { node: self.node, shards }];
        let reply = MetadataReply { cluster: self.cluster.0, nodes, topics, more };
        self.send(id, |out| reply.encode(correlation, out));
    }

    /// Topics behind `after` in the order of their names, as many as fit one reply, and whether there are more: those that are
    /// named, else all.
    fn topics_page(&self, names: Option<&[String]>, after: &str) -> (Vec<&Topic>, bool) {
        let mut named: Vec<&Topic> = Vec::new();
        let mut all = None;
        match names {
            Some(names) => {
                let mut names: Vec<&String> = names.iter().filter(|name| name.as_str() > after).collect();
                names.sort_unstable();
                names.dedup();
                named = names.into_iter().filter_map(|name| self.topics.named(name)).collect();
            }
            None => all = Some(self.topics.topics_after(after)),
        }
        let (mut page, mut bytes) = (Vec::new(), 0);
        for topic in named.into_iter().chain(all.into_iter().flatten()) {
            if bytes >= self.limits.page_bytes {
                return (page, true);
            }
            bytes += topic_bytes(topic.record.partitions.unsigned_abs() as usize);
            page.push(topic);
        }
        (page, false)
    }

    fn topic_info(&self, topic: &TopicRecord) -> TopicInfo {
        let epoch = self.logs.leader_epoch();
        let of = |partition: PartitionId| {
            let shard = shard_of(TopicPartition { topic: topic.topic, partition }, self.shard_count);
            PartitionInfo { partition, leader: self.node, shard, epoch }
        };
        let partitions = (0..topic.partitions).map(PartitionId).map(of).collect();
        TopicInfo { name: topic.name.clone(), topic: topic.topic, partitions }
    }

    /// Describes topics: settings from the table, positions from the shards that own the partitions.
    pub(super) fn describe_topic(
        &mut self,
        id: ConnectionId,
        correlation: u32,
        request: &DescribeTopicRequest,
        ops: &mut Vec<Op>,
    ) {
        let names = (!request.names.is_empty()).then_some(request.names.as_slice());
        let (topics, more) = self.topics_page(names, &request.after);
        let mut logs = vec![Vec::new(); usize::from(self.shard_count)];
        let mut reply = DescribeTopicReply { topics: Vec::new(), more };
        for topic in topics {
            for partition in (0..topic.record.partitions).map(PartitionId) {
                let log = TopicPartition { topic: topic.record.topic, partition };
                logs[usize::from(shard_of(log, self.shard_count).0)].push(log);
            }
            reply.topics.push(TopicDescription {
                name: topic.record.name.clone(),
                topic: topic.record.topic,
                replication: topic.record.replication,
                created_ms: topic.record.created_ms,
                settings: topic.settings.describe(),
                partitions: Vec::new(),
            });
        }
        let shards: Vec<(ShardId, Ask)> = (0..self.shard_count)
            .map(ShardId)
            .zip(logs)
            .filter(|(_, logs)| !logs.is_empty())
            .map(|(shard, logs)| (shard, Ask::Describe(logs)))
            .collect();
        self.gather(id, correlation, Api::DescribeTopic, Gathering::Describe(reply), shards, ops);
    }

    /// Where logs of this shard stand.
    pub(super) fn describe_logs(&self, logs: &[TopicPartition]) -> Vec<(TopicId, PartitionDescription)> {
        let of = |log: &TopicPartition| {
            let positions = self.logs.positions(*log)?;
            let damaged = self.damage.of(*log);
            let first = damaged.first().copied().unwrap_or_default();
            let description = PartitionDescription {
                partition: log.partition,
                shard: self.me,
                start: positions.start,
                committed: positions.committed,
                appended: positions.appended,
                bytes: i64::try_from(self.logs.bytes(*log)).unwrap_or(i64::MAX),
                damaged_ranges: u32::try_from(damaged.len()).unwrap_or(u32::MAX),
                damaged_from: first.from,
                damaged_upto: first.upto,
            };
            Some((log.topic, description))
        };
        logs.iter().filter_map(of).collect()
    }
}
