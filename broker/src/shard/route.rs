//! Where a frame goes. The match over the table of apis is closed: a new api does not compile until it has a place here.

use tidegate_logic::placement::{offsets_partition, shard_of};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::hello::Ping;
use tidegate_protocol::api::metadata::MetadataRequest;
use tidegate_protocol::api::offset::{
    DeleteRecordsRequest, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest,
};
use tidegate_protocol::api::producer::ProducerInitRequest;
use tidegate_protocol::api::status::StatusRequest;
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicRequest, DeleteTopicRequest, DescribeTopicRequest,
};
use tidegate_protocol::frame::{Frame, Kind};
use tidegate_protocol::ids::ShardId;
use tidegate_reactor::buffer::View;
use tidegate_reactor::op::Op;

use super::connection::{ConnectionId, Flow};
use super::mail::{Ask, Asker};
use super::reply::Refusal;
use super::{Phase, Shard};

/// The shard that keeps the topics.
pub(super) const ORDERS_SHARD: ShardId = ShardId(0);

impl Shard {
    /// Has a frame done. `bytes` are those that it lies in, its body at `body_at`.
    pub(super) fn route(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
        bytes: &View,
        body_at: usize,
        ops: &mut Vec<Op>,
    ) -> Flow {
        match self.routed(id, frame, bytes, body_at, ops) {
            Ok(flow) => flow,
            Err(refusal) => {
                self.refuse(id, frame.correlation, frame.api_number, &refusal);
                Flow::Next
            }
        }
    }

    fn routed(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
        bytes: &View,
        body_at: usize,
        ops: &mut Vec<Op>,
    ) -> Result<Flow, Refusal> {
        let api = frame.api()?;
        if frame.kind != Kind::Request {
            return Err(Refusal::Invalid { field: "flags", rule: "says that this is a reply".to_owned() });
        }
        if api == Api::Hello {
            self.hello(id, frame);
            return Ok(Flow::Next);
        }
        if !self.is_open(id) {
            return Err(Refusal::HelloNeeded { again: false });
        }
        let asker = Asker::Connection { id, correlation: frame.correlation, api };
        match api {
            Api::Hello => {}
            Api::Ping => self.ping(id, frame.correlation, Ping::decode(frame, Kind::Request)?),
            Api::Metadata => self.metadata(id, frame.correlation, &MetadataRequest::decode(frame)?),
            Api::CreateTopic => {
                self.asks(asker, ORDERS_SHARD, Ask::CreateTopic(CreateTopicRequest::decode(frame)?), ops)?;
            }
            Api::DeleteTopic => {
                self.asks(asker, ORDERS_SHARD, Ask::DeleteTopic(DeleteTopicRequest::decode(frame)?), ops)?;
            }
            Api::AlterTopic => {
                self.asks(asker, ORDERS_SHARD, Ask::AlterTopic(AlterTopicRequest::decode(frame)?), ops)?;
            }
            Api::DescribeTopic => {
                self.describe_topic(id, frame.correlation, &DescribeTopicRequest::decode(frame)?, ops);
            }
            Api::Produce => return Ok(self.produce_received(id, frame, bytes, body_at, ops)),
            Api::Subscribe => self.subscribe(id, frame)?,
            Api::Unsubscribe => self.unsubscribe(id, frame)?,
            Api::Credit => self.credit(id, frame)?,
            Api::Data | Api::CaughtUp | Api::Heartbeat => {
                return Err(Refusal::Invalid { field: "api", rule: "is sent by the broker only".to_owned() });
            }
            Api::ListOffsets => {
                let request = ListOffsetsRequest::decode(frame)?;
                let owner = shard_of(request.partition, self.shard_count);
                self.asks(asker, owner, Ask::ListOffsets(request), ops)?;
            }
            Api::DeleteRecords => {
                let request = DeleteRecordsRequest::decode(frame)?;
                let owner = shard_of(request.partition, self.shard_count);
                self.asks(asker, owner, Ask::DeleteRecords(request), ops)?;
            }
            Api::OffsetCommit => {
                let request = OffsetCommitRequest::decode(frame)?;
                let owner = shard_of(offsets_partition(&request.group), self.shard_count);
                self.asks(asker, owner, Ask::OffsetCommit(request), ops)?;
            }
            Api::OffsetFetch => {
                let request = OffsetFetchRequest::decode(frame)?;
                let owner = shard_of(offsets_partition(&request.group), self.shard_count);
                self.asks(asker, owner, Ask::OffsetFetch(request), ops)?;
            }
            Api::ProducerInit => {
                self.asks(asker, ORDERS_SHARD, Ask::ProducerInit(ProducerInitRequest::decode(frame)?), ops)?;
            }
            Api::Status => {
                StatusRequest::decode(frame)?;
                self.status(id, frame.correlation, ops);
            }
        }
        Ok(Flow::Next)
    }

    fn asks(&mut self, asker: Asker, to: ShardId, ask: Ask, ops: &mut Vec<Op>) -> Result<(), Refusal> {
        if self.phase != Phase::Serving {
            return Err(self.not_ready());
        }
        if let Asker::Connection { id, .. } = asker {
            self.request_begins(id);
        }
        self.ask(asker, to, ask, ops);
        Ok(())
    }

    /// A request of this connection will be answered later.
    pub(super) fn request_begins(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.in_flight += 1;
        }
    }

    fn ping(&mut self, id: ConnectionId, correlation: u32, ping: Ping) {
        let (produce_bytes, produce_limit) = self.pool.counters(id.holder());
        let pong = Ping { nonce: ping.nonce, produce_bytes, produce_limit };
        self.send(id, |out| pong.encode(Kind::Reply, correlation, out));
    }

    /// Why nothing new is begun now.
    pub(super) fn not_ready(&self) -> Refusal {
        match self.phase {
            Phase::Starting => Refusal::NotReady { state: "starting" },
            Phase::Serving | Phase::Draining | Phase::Flushing | Phase::Closing => {
                Refusal::NotReady { state: "stopping" }
            }
            Phase::Failed => Refusal::NotReady { state: "not able to start; its log says why" },
        }
    }
}
