//! The first frame of a connection: who speaks, and which shard serves it.

use tidegate_logic::topics::IDEMPOTENCE_WINDOW_MIN;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::frame::Frame;
use tidegate_protocol::ids::ShardId;
use tidegate_reactor::buffer::View;
use tidegate_reactor::op::{Op, ShardIndex};

use super::connection::{ConnectionId, Flow, Stage};
use super::mail::Mail;
use super::reply::Refusal;
use super::{Phase, Shard};

/// The version of the protocol that this broker speaks.
const PROTOCOL_VERSION: u16 = 1;
/// Bytes of a client's name for itself, which is kept as long as its connection.
const CLIENT_ID_BYTES_MAX: usize = 255;

impl Shard {
    /// Answers the first frame, or sends the socket where it wants to go.
    pub(super) fn hello(&mut self, id: ConnectionId, frame: &Frame<'_>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Stage::Hello { at_home } = connection.stage else {
            return self.refuse(
                id,
                frame.correlation,
                frame.api_number,
                &Refusal::HelloNeeded { again: true },
            );
        };
        match self.hello_decided(at_home, frame) {
            Ok((request, to)) if to == self.me => self.hello_answered(id, frame.correlation, request),
            Ok((_, to)) => self.connection_mut(id).stage = Stage::Leaving { to },
            Err(refusal) => {
                self.refuse(id, frame.correlation, frame.api_number, &refusal);
                self.connection_end(id);
            }
        }
    }

    /// A connection begins with something else. It is ended: a socket that waits to send cannot be handed to another shard
    /// should a hello follow.
    pub(super) fn hello_missing(&mut self, id: ConnectionId, frame: &Frame<'_>) -> Result<Flow, Refusal> {
        let refusal = Refusal::HelloNeeded { again: false };
        self.refuse(id, frame.correlation, frame.api_number, &refusal);
        self.connection_end(id);
        Ok(Flow::Next)
    }

    fn hello_decided(
        &mut self,
        at_home: bool,
        frame: &Frame<'_>,
    ) -> Result<(HelloRequest, ShardId), Refusal> {
        let request = HelloRequest::decode(frame)?;
        if !(request.version_min..=request.version_max).contains(&PROTOCOL_VERSION) {
            let (min, max) = (request.version_min, request.version_max);
            return Err(Refusal::ProtocolVersion { min, max, ours: PROTOCOL_VERSION });
        }
        if request.client_id.len() > CLIENT_ID_BYTES_MAX {
            let rule =
                format!("has {} bytes, at most {CLIENT_ID_BYTES_MAX} are kept", request.client_id.len());
            return Err(Refusal::Invalid { field: "client_id", rule });
        }
        if self.phase != Phase::Serving {
            return Err(self.not_ready());
        }
        if self.connections.len() > self.limits.connections_max {
            return Err(self.too_many_connections());
        }
        let to = match request.shard {
            _ if at_home => self.me,
            Some(shard) if shard.0 < self.shard_count => shard,
            Some(shard) => {
                let rule = format!("is {shard}; this node has shards 0 to {}", self.shard_count - 1);
                return Err(Refusal::Invalid { field: "shard", rule });
            }
            None => {
                self.next_shard = (self.next_shard + 1) % self.shard_count;
                ShardId(self.next_shard)
            }
        };
        Ok((request, to))
    }

    pub(super) fn too_many_connections(&self) -> Refusal {
        let (limit, current) = (self.limits.connections_max as u64, self.connections.len() as u64);
        Refusal::Limit { what: "connections of a shard", limit, current }
    }

    fn hello_answered(&mut self, id: ConnectionId, correlation: u32, request: HelloRequest) {
        let reply = HelloReply {
            version: PROTOCOL_VERSION,
            node: self.node,
            cluster: self.cluster.0,
            incarnation: self.incarnation,
            shard: self.me,
            shard_count: self.shard_count,
            software: concat!("tidegate ", env!("CARGO_PKG_VERSION")).to_owned(),
            frame_bytes_max: self.limits.frame_bytes_max,
            batch_bytes_max: self.limits.topics.batch_bytes_max,
            idempotence_window: IDEMPOTENCE_WINDOW_MIN,
            credit_initial: 0,
            features: self.storage.features(),
        };
        let connection = self.connection_mut(id);
        connection.stage = Stage::Open;
        connection.client_id = request.client_id;
        self.send(id, |out| reply.encode(correlation, out));
    }

    pub(super) fn connection_hand_over(
        &mut self,
        id: ConnectionId,
        to: ShardId,
        bytes: &View,
        ops: &mut Vec<Op>,
    ) {
        if let Some(mut connection) = self.connections.remove(&id) {
            self.held_by_none(&mut connection);
        }
        self.pool.leave(id.holder());
        self.stats.connections_handed_over += 1;
        let letter = Box::new(Mail::HandOver { bytes: bytes.to_vec() });
        ops.push(Op::HandOver { socket: id.socket(), to: ShardIndex(to.0), letter });
    }
}
