//! `metadata`: where everything is.

use tidegate_schema::wire;

use super::Api;
use super::table::{id16, put_strings, put_table, take_strings, take_table};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind};
use crate::ids::{LeaderEpoch, NodeId, PartitionId, ShardId, TopicId};

/// Which topics are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataRequest {
    /// All topics but the internal ones.
    All,
    /// These, by name; an unknown one is simply absent from the reply.
    Named(Vec<String>),
}

/// The cluster as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataReply {
    /// The cluster's random identity.
    pub cluster: [u8; 16],
    /// All nodes.
    pub nodes: Vec<NodeInfo>,
    /// The topics asked for that exist.
    pub topics: Vec<TopicInfo>,
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
            let names = match self {
                MetadataRequest::All => None,
                MetadataRequest::Named(names) => Some(put_strings(b, names)),
            };
            wire::MetadataRequest::create(b, &wire::MetadataRequestArgs { names }).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<MetadataRequest, DecodeError> {
        let table = take_table::<wire::MetadataRequest<'_>>(frame, Api::Metadata, Kind::Request)?;
        Ok(match table.names() {
            None => MetadataRequest::All,
            Some(names) => MetadataRequest::Named(take_strings(names)),
        })
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
        })
    }
}
