//! `hello`: who speaks, which version, which shard. `ping`: are the credit counters of both sides the same.

use crate::ids::{Incarnation, NodeId, ShardId};

/// The first frame of a connection; the client sends nothing more until the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloRequest {
    /// Lowest and highest protocol version that the client speaks.
    pub version_min: u16,
    /// Highest version.
    pub version_max: u16,
    /// The client's own name for itself, for logs and metrics; may be empty.
    pub client_id: String,
    /// Name and version of the client's software.
    pub software: String,
    /// The shard that the client wants to talk to; none: any.
    pub shard: Option<ShardId>,
}

/// What the broker is and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The protocol version for this connection.
    pub version: u16,
    /// This node.
    pub node: NodeId,
    /// The cluster's random identity.
    pub cluster: [u8; 16],
    /// Rises with every start of the node.
    pub incarnation: Incarnation,
    /// The shard that serves this connection.
    pub shard: ShardId,
    /// Shards of the node.
    pub shard_count: u16,
    /// Name and version of the broker's software.
    pub software: String,
    /// Longest frame, in bytes after its length field.
    pub frame_bytes_max: u32,
    /// Largest batch, in bytes.
    pub batch_bytes_max: u32,
    /// Batches that the broker remembers per producer and partition: keep fewer in flight.
    pub idempotence_window: u16,
    /// Absolute produce credit at the start, in bytes; may be 0.
    pub credit_initial: u64,
}

/// Both sides' view of the produce credit of the connection, as a self-check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Returned as it is.
    pub nonce: u64,
    /// Produce bytes sent (from the client) or received (from the broker) on this connection.
    pub produce_bytes: u64,
    /// The produce limit as this side knows it.
    pub produce_limit: u64,
}
