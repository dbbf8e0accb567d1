//! `producer_init`: an id that is never given to another producer.

use tidegate_schema::wire;

use super::Api;
use super::table::{put_table, take_table};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind};
use crate::ids::{ProducerEpoch, ProducerId};

/// Ask for a producer id, or for the next epoch of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerInitRequest {
    /// Always null today.
    pub transactional_id: Option<String>,
    /// Milliseconds after which an open transaction is aborted; unused today.
    pub transaction_timeout_ms: u32,
    /// The producer that wants its next epoch; none: a new id.
    pub producer: Option<(ProducerId, ProducerEpoch)>,
}

/// The identity to put into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerInitReply {
    /// The id.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
}

impl ProducerInitRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::ProducerInit.number(), Kind::Request, correlation, out, |b| {
            let (id, epoch) = self.producer.unwrap_or((ProducerId::NONE, ProducerEpoch(-1)));
            let args = wire::ProducerInitRequestArgs {
                transactional_id: self.transactional_id.as_ref().map(|id| b.create_string(id)),
                transaction_timeout_ms: self.transaction_timeout_ms,
                producer_id: id.0,
                producer_epoch: epoch.0,
            };
            wire::ProducerInitRequest::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<ProducerInitRequest, DecodeError> {
        let table = take_table::<wire::ProducerInitRequest<'_>>(frame, Api::ProducerInit, Kind::Request)?;
        let producer = match (table.producer_id(), table.producer_epoch()) {
            (-1, -1) => None,
            (id, epoch) if id >= 0 && epoch >= 0 => Some((ProducerId(id), ProducerEpoch(epoch))),
            _ => {
                let rule = "is negative, or without one of id and epoch";
                return Err(DecodeError::rule("producer", frame.body_at(), rule));
            }
        };
        Ok(ProducerInitRequest {
            transactional_id: table.transactional_id().map(str::to_owned),
            transaction_timeout_ms: table.transaction_timeout_ms(),
            producer,
        })
    }
}

impl ProducerInitReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::ProducerInit.number(), Kind::Reply, correlation, out, |b| {
            let args = wire::ProducerInitReplyArgs {
                producer_id: self.producer_id.0,
                producer_epoch: self.producer_epoch.0,
            };
            wire::ProducerInitReply::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<ProducerInitReply, DecodeError> {
        let table = take_table::<wire::ProducerInitReply<'_>>(frame, Api::ProducerInit, Kind::Reply)?;
        Ok(ProducerInitReply {
            producer_id: ProducerId(table.producer_id()),
            producer_epoch: ProducerEpoch(table.producer_epoch()),
        })
    }
}
