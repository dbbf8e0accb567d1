//! `hello`: who speaks, which version, which shard. `ping`: are the credit counters of both sides the same.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use tidegate_schema::wire;

use super::table::{id16, put_table, take_table};
use super::{Api, put_whole, take_whole};
use crate::code::{DecodeError, DecodeErrorKind};
use crate::frame::{Frame, Kind};
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
    /// What this broker can do beyond the version; see [`Features`]. Bits that are not known mean nothing.
    pub features: Features,
}

/// What a broker can do that not every broker of its protocol version can: one bit each, names in docs/WIRE_FORMAT.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// `acks` 1 and `all` wait for a flush that survives a loss of power.
    pub const DURABLE: Features = Features(1);
    /// Batches of Zstandard are taken, checked no deeper than others.
    pub const ZSTD: Features = Features(1 << 1);

    /// Whether all of `wanted` are among these.
    pub fn has(self, wanted: Features) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// These and those.
    pub const fn and(self, others: Features) -> Features {
        Features(self.0 | others.0)
    }
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

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PingHead {
    nonce: U64,
    produce_bytes: U64,
    produce_limit: U64,
}

impl Ping {
    /// Appends the whole frame, a request or a reply.
    pub fn encode(&self, kind: Kind, correlation: u32, out: &mut Vec<u8>) {
        let head = PingHead {
            nonce: U64::new(self.nonce),
            produce_bytes: U64::new(self.produce_bytes),
            produce_limit: U64::new(self.produce_limit),
        };
        put_whole(Api::Ping, kind, correlation, &head, out);
    }

    /// Reads the frame, a request or a reply.
    pub fn decode(frame: &Frame<'_>, kind: Kind) -> Result<Ping, DecodeError> {
        let head: &PingHead = take_whole(frame, Api::Ping, kind)?;
        Ok(Ping {
            nonce: head.nonce.get(),
            produce_bytes: head.produce_bytes.get(),
            produce_limit: head.produce_limit.get(),
        })
    }
}

impl HelloRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::Hello.number(), Kind::Request, correlation, out, |b| {
            let args = wire::HelloRequestArgs {
                version_min: self.version_min,
                version_max: self.version_max,
                client_id: Some(b.create_string(&self.client_id)),
                software: Some(b.create_string(&self.software)),
                shard: self.shard.map_or(-1, |shard| i32::from(shard.0)),
            };
            wire::HelloRequest::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<HelloRequest, DecodeError> {
        let table = take_table::<wire::HelloRequest<'_>>(frame, Api::Hello, Kind::Request)?;
        let shard = match table.shard() {
            -1 => None,
            shard => Some(ShardId(u16::try_from(shard).map_err(|_| {
                let kind = DecodeErrorKind::Unknown { found: i64::from(shard) };
                DecodeError::new("shard", frame.body_at(), kind)
            })?)),
        };
        Ok(HelloRequest {
            version_min: table.version_min(),
            version_max: table.version_max(),
            client_id: table.client_id().to_owned(),
            software: table.software().to_owned(),
            shard,
        })
    }
}

impl HelloReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::Hello.number(), Kind::Reply, correlation, out, |b| {
            let args = wire::HelloReplyArgs {
                version: self.version,
                node: self.node.0,
                cluster: Some(b.create_vector(&self.cluster)),
                incarnation: self.incarnation.0,
                shard: self.shard.0,
                shard_count: self.shard_count,
                software: Some(b.create_string(&self.software)),
                frame_bytes_max: self.frame_bytes_max,
                batch_bytes_max: self.batch_bytes_max,
                idempotence_window: self.idempotence_window,
                credit_initial: self.credit_initial,
                features: self.features.0,
            };
            wire::HelloReply::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<HelloReply, DecodeError> {
        let table = take_table::<wire::HelloReply<'_>>(frame, Api::Hello, Kind::Reply)?;
        Ok(HelloReply {
            version: table.version(),
            node: NodeId(table.node()),
            cluster: id16("cluster", table.cluster(), frame.body_at())?,
            incarnation: Incarnation(table.incarnation()),
            shard: ShardId(table.shard()),
            shard_count: table.shard_count(),
            software: table.software().to_owned(),
            frame_bytes_max: table.frame_bytes_max(),
            batch_bytes_max: table.batch_bytes_max(),
            idempotence_window: table.idempotence_window(),
            credit_initial: table.credit_initial(),
            features: Features(table.features()),
        })
    }
}
