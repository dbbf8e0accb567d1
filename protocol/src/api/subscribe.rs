//! `subscribe` and what it starts: `data`, `caught_up`, `heartbeat`; `unsubscribe` ends it.

use zerocopy::little_endian::{I32, I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Api, Place, put, put_whole, reserved, take_head, take_whole, unknown};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind, PREFIX_LEN};
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

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SubscribeHead {
    subscription: U32,
    place: Place,
    from: I64,
    limit: U64,
    min_bytes: U32,
    max_wait_ms: U32,
    leader_epoch: I32,
    last_read_epoch: I32,
    isolation: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SubscribeReplyHead {
    start: I64,
    committed: I64,
    leader_epoch: I32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DataLayout {
    subscription: U32,
    batch_count: U32,
    first: I64,
    end: I64,
    committed: I64,
    stable: I64,
    append_time_first_ms: I64,
    append_time_last_ms: I64,
    sent: U64,
    heads_crc: U32,
    aborted_count: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ProgressHead {
    subscription: U32,
    committed: I64,
    stable: I64,
    end: I64,
    sent: U64,
    limit: U64,
}

impl Isolation {
    /// The isolation of a number on the wire.
    pub fn from_number(number: u8) -> Option<Isolation> {
        match number {
            0 => Some(Isolation::Committed),
            1 => Some(Isolation::Stable),
            _ => None,
        }
    }
}

impl SubscribeRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = SubscribeHead {
            subscription: U32::new(self.subscription.0),
            place: Place::of(self.partition),
            from: I64::new(self.from.0),
            limit: U64::new(self.limit),
            min_bytes: U32::new(self.min_bytes),
            max_wait_ms: U32::new(self.max_wait_ms),
            leader_epoch: I32::new(self.leader_epoch.0),
            last_read_epoch: I32::new(self.last_read_epoch.0),
            isolation: self.isolation as u8,
            reserved: [0; 3],
        };
        put_whole(Api::Subscribe, Kind::Request, correlation, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<SubscribeRequest, DecodeError> {
        let head: &SubscribeHead = take_whole(frame, Api::Subscribe, Kind::Request)?;
        reserved("reserved", PREFIX_LEN + 57, &head.reserved)?;
        let isolation = Isolation::from_number(head.isolation);
        Ok(SubscribeRequest {
            subscription: SubscriptionId(head.subscription.get()),
            partition: head.place.get(),
            from: Offset(head.from.get()),
            limit: head.limit.get(),
            min_bytes: head.min_bytes.get(),
            max_wait_ms: head.max_wait_ms.get(),
            isolation: isolation.ok_or(unknown("isolation", PREFIX_LEN + 56, head.isolation))?,
            leader_epoch: LeaderEpoch(head.leader_epoch.get()),
            last_read_epoch: LeaderEpoch(head.last_read_epoch.get()),
        })
    }
}

impl SubscribeReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = SubscribeReplyHead {
            start: I64::new(self.start.0),
            committed: I64::new(self.committed.0),
            leader_epoch: I32::new(self.leader_epoch.0),
        };
        put_whole(Api::Subscribe, Kind::Reply, correlation, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<SubscribeReply, DecodeError> {
        let head: &SubscribeReplyHead = take_whole(frame, Api::Subscribe, Kind::Reply)?;
        Ok(SubscribeReply {
            start: Offset(head.start.get()),
            committed: Offset(head.committed.get()),
            leader_epoch: LeaderEpoch(head.leader_epoch.get()),
        })
    }
}

impl UnsubscribeRequest {
    /// Appends the whole frame. The reply is [`super::Done`].
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_whole(Api::Unsubscribe, Kind::Request, correlation, &U32::new(self.subscription.0), out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<UnsubscribeRequest, DecodeError> {
        let head: &U32 = take_whole(frame, Api::Unsubscribe, Kind::Request)?;
        Ok(UnsubscribeRequest { subscription: SubscriptionId(head.get()) })
    }
}

impl DataHead {
    /// Bytes of the prefix and the head; the batches begin behind them.
    pub const FRAME_HEAD_LEN: usize = PREFIX_LEN + size_of::<DataLayout>();

    /// Appends prefix and head; `body_len` bytes of batches have to follow. The correlation is the subscription's number.
    pub fn encode_head(&self, body_len: usize, out: &mut Vec<u8>) {
        let head = DataLayout {
            subscription: U32::new(self.subscription.0),
            batch_count: U32::new(self.batch_count),
            first: I64::new(self.first.0),
            end: I64::new(self.end.0),
            committed: I64::new(self.committed.0),
            stable: I64::new(self.stable.0),
            append_time_first_ms: I64::new(self.append_time_first_ms),
            append_time_last_ms: I64::new(self.append_time_last_ms),
            sent: U64::new(self.sent),
            heads_crc: U32::new(self.heads_crc),
            aborted_count: U32::new(self.aborted_count),
        };
        put(Api::Data, Kind::Request, self.subscription.0, &head, body_len, out);
    }

    /// Reads the head; the batches are `frame.body`.
    pub fn decode(frame: &Frame<'_>) -> Result<DataHead, DecodeError> {
        let head: &DataLayout = take_head(frame, Api::Data, Kind::Request)?;
        Ok(DataHead {
            subscription: SubscriptionId(head.subscription.get()),
            first: Offset(head.first.get()),
            end: Offset(head.end.get()),
            batch_count: head.batch_count.get(),
            committed: Offset(head.committed.get()),
            stable: Offset(head.stable.get()),
            append_time_first_ms: head.append_time_first_ms.get(),
            append_time_last_ms: head.append_time_last_ms.get(),
            heads_crc: head.heads_crc.get(),
            aborted_count: head.aborted_count.get(),
            sent: head.sent.get(),
        })
    }
}

/// Which of the two frames a [`Progress`] travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressKind {
    /// The end was reached.
    CaughtUp,
    /// Counters of a quiet subscription.
    Heartbeat,
}

impl ProgressKind {
    fn api(self) -> Api {
        match self {
            ProgressKind::CaughtUp => Api::CaughtUp,
            ProgressKind::Heartbeat => Api::Heartbeat,
        }
    }
}

impl Progress {
    /// Appends the whole frame. The correlation is the subscription's number.
    pub fn encode(&self, kind: ProgressKind, out: &mut Vec<u8>) {
        let head = ProgressHead {
            subscription: U32::new(self.subscription.0),
            committed: I64::new(self.committed.0),
            stable: I64::new(self.stable.0),
            end: I64::new(self.end.0),
            sent: U64::new(self.sent),
            limit: U64::new(self.limit),
        };
        put_whole(kind.api(), Kind::Request, self.subscription.0, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>, kind: ProgressKind) -> Result<Progress, DecodeError> {
        let head: &ProgressHead = take_whole(frame, kind.api(), Kind::Request)?;
        Ok(Progress {
            subscription: SubscriptionId(head.subscription.get()),
            committed: Offset(head.committed.get()),
            stable: Offset(head.stable.get()),
            end: Offset(head.end.get()),
            sent: head.sent.get(),
            limit: head.limit.get(),
        })
    }
}
