//! `metadata`: where everything is.

use tidegate_schema::wire;

use super::Api;
use super::table::{id16, put_after, put_strings, put_table, take_strings, take_table};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind};
use crate::ids::{LeaderEpoch, NodeId, PartitionId, ShardId, TopicId};

/// Which topics are wanted, in the order of their names. A broker tells as many as fit its frames; for the others it is asked
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataRequest {
    /// Which.
    pub topics: TopicsWanted,
    /// Only those whose name comes behind this one; empty: all.
    pub after: String,
}

/// All topics or some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicsWanted {
    /// All topics but the internal ones.
    All,
    /// These, by name; an unknown one is simply absent from the reply.
    Named(Vec<String>),
}

impl MetadataRequest {
    /// All topics, from the first.
    pub fn all() -> MetadataRequest {
        MetadataRequest { topics: TopicsWanted::All, after: String::new() }
    }

    /// These topics, from the first.
    pub fn named(names: Vec<String>) -> MetadataRequest {
        MetadataRequest { topics: TopicsWanted::Named(names), after: String::new() }
    }
}

/// The cluster as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataReply {
    /// The cluster's random identity.
    pub cluster: [u8; 16],
    /// All nodes.
    pub nodes: Vec<NodeInfo>,
    /// The topics asked for that exist, by name.
    pub topics: Vec<TopicInfo>,
    /// There are further ones: ask again, `after` the last name.
    pub more: bool,
}

/// A node and the addresses of its shards (all equal today).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node.
    pub node: NodeId,
    /// `host:port` by shard; an empty host means the address that the client has connected to.
    pub shards: Vec<String>,
}

/// A topic and its partitions, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// The name.
    pub name: String,
    /// The identity.
    pub topic: TopicId,
    /// The partitions, from 0.
    pub partitions: Vec<PartitionInfo>,
}

/// Who leads a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// The partition.
    pub partition: PartitionId,
    /// The node that leads it.
    pub leader: NodeId,
    /// The shard of that node which owns it.
    pub shard: ShardId,
    /// The current leader epoch.
    pub epoch: LeaderEpoch,
}

impl MetadataRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::Metadata.number(), Kind::Request, correlation, out, |b| {
            let names = match &self.topics {
                TopicsWanted::All => None,
                TopicsWanted::Named(names) => Some(put_strings(b, names)),
            };
            let after = put_after(b, &self.after);
            wire::MetadataRequest::create(b, &wire::MetadataRequestArgs { names, after }).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<MetadataRequest, DecodeError> {
        let table = take_table::<wire::MetadataRequest<'_>>(frame, Api::Metadata, Kind::Request)?;
        let topics = match table.names() {
            None => TopicsWanted::All,
            Some(names) => TopicsWanted::Named(take_strings(names)),
        };
        Ok(MetadataRequest { topics, after: table.after().unwrap_or_default().to_owned() })
    }
}

impl MetadataReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::Metadata.number(), Kind::Reply, correlation, out, |b| {
            let mut nodes = Vec::with_capacity(self.nodes.len());
            for node in &self.nodes {
                let shards = Some(put_strings(b, &node.shards));
                nodes.push(wire::Node::create(b, &wire::NodeArgs { node: node.node.0, shards }));
            }
            let mut topics = Vec::with_capacity(self.topics.len());
            for topic in &self.topics {
                let mut partitions = Vec::with_capacity(topic.partitions.len());
                for partition in &topic.partitions {
                    let args = wire::PartitionArgs {
                        partition: partition.partition.0,
                        leader: partition.leader.0,
                        shard: partition.shard.0,
                        epoch: partition.epoch.0,
                    };
                    partitions.push(wire::Partition::create(b, &args));
                }
                let args = wire::TopicArgs {
                    name: Some(b.create_string(&topic.name)),
                    topic: Some(b.create_vector(&topic.topic.0)),
                    partitions: Some(b.create_vector(&partitions)),
                };
                topics.push(wire::Topic::create(b, &args));
            }
            let args = wire::MetadataReplyArgs {
                cluster: Some(b.create_vector(&self.cluster)),
                nodes: Some(b.create_vector(&nodes)),
                topics: Some(b.create_vector(&topics)),
                more: self.more,
            };
            wire::MetadataReply::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<MetadataReply, DecodeError> {
        let table = take_table::<wire::MetadataReply<'_>>(frame, Api::Metadata, Kind::Reply)?;
        let at = frame.body_at();
        let node = |node: wire::Node<'_>| NodeInfo {
            node: NodeId(node.node()),
            shards: take_strings(node.shards()),
        };
        let partition = |partition: wire::Partition<'_>| PartitionInfo {
            partition: PartitionId(partition.partition()),
            leader: NodeId(partition.leader()),
            shard: ShardId(partition.shard()),
            epoch: LeaderEpoch(partition.epoch()),
        };
        let mut topics = Vec::with_capacity(table.topics().len());
        for topic in table.topics() {
            topics.push(TopicInfo {
                name: topic.name().to_owned(),
                topic: TopicId(id16("topic", topic.topic(), at)?),
                partitions: topic.partitions().iter().map(partition).collect(),
            });
        }
        Ok(MetadataReply {
            cluster: id16("cluster", table.cluster(), at)?,
            nodes: table.nodes().iter().map(node).collect(),
            topics,
            more: table.more(),
        })
    }
}
