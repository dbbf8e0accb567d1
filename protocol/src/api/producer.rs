//! `producer_init`: an id that is never given to another producer.

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
