//! `metadata`: where everything is.

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
