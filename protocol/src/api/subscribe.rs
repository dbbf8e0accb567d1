//! `subscribe` and what it starts: `data`, `caught_up`, `heartbeat`; `unsubscribe` ends it.

use crate::ids::{LeaderEpoch, Offset, TopicPartition};

/// Chosen by the client, unique among the live subscriptions of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub u32);

/// What may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Isolation {
    /// Up to `committed`.
    Committed = 0,
    /// Up to `stable`: nothing of an open transaction.
    Stable = 1,
}

/// Start a stream of the batches of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeRequest {
    /// Its number.
    pub subscription: SubscriptionId,
    /// Which partition.
    pub partition: TopicPartition,
    /// The first record wanted; the first batch may begin earlier.
    pub from: Offset,
    /// Absolute credit: body bytes that may be sent in all; a batch may start while less was sent.
    pub limit: u64,
    /// Wait for this many bytes ...
    pub min_bytes: u32,
    /// ... but not longer than this, once something is there.
    pub max_wait_ms: u32,
    /// What may be read.
    pub isolation: Isolation,
    /// The epoch that the client believes in, or unknown.
    pub leader_epoch: LeaderEpoch,
    /// The epoch of the last record read before `from`, or unknown.
    pub last_read_epoch: LeaderEpoch,
}

/// The subscription stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeReply {
    /// First readable offset.
    pub start: Offset,
    /// One past the last readable offset.
    pub committed: Offset,
    /// The current leader epoch.
    pub leader_epoch: LeaderEpoch,
}

/// End a subscription; no `data` of it follows the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubscribeRequest {
    /// Which.
    pub subscription: SubscriptionId,
}

/// The head of a `data` frame; the body is `batch_count` batches as they lie on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHead {
    /// Which subscription.
    pub subscription: SubscriptionId,
    /// The first offset of the first batch.
    pub first: Offset,
    /// One past the last offset of the last batch.
    pub end: Offset,
    /// Batches in the body.
    pub batch_count: u32,
    /// One past the last readable offset now.
    pub committed: Offset,
    /// As `committed`, before the first open transaction.
    pub stable: Offset,
    /// Append time of the first batch's extent, milliseconds since the Unix epoch.
    pub append_time_first_ms: i64,
    /// Append time of the last batch's extent.
    pub append_time_last_ms: i64,
    /// CRC32C over the first 21 bytes of every batch in the body, which the batches' own CRC does not cover.
    pub heads_crc: u32,
    /// Aborted transactions listed after the batches: 0 today.
    pub aborted_count: u32,
    /// Body bytes sent on this subscription, this frame included.
    pub sent: u64,
}

/// The end was reached, or counters of a quiet subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which subscription.
    pub subscription: SubscriptionId,
    /// One past the last readable offset.
    pub committed: Offset,
    /// As `committed`, before the first open transaction.
    pub stable: Offset,
    /// One past the last appended offset.
    pub end: Offset,
    /// Body bytes sent.
    pub sent: u64,
    /// The limit as the broker knows it.
    pub limit: u64,
}
