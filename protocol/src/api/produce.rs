//! `produce`: append batches to one partition. The data plane: a fixed head, then batches as they lie.

use zerocopy::little_endian::{I32, I64, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Api, Place, put, put_whole, reserved, take_head, take_whole, unknown};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind, PREFIX_LEN};
use crate::ids::{LeaderEpoch, Offset, TopicPartition};

/// When a produce is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Acks {
    /// Never, unless it is refused.
    None = 0,
    /// Once the leader has it on disk (in memory on a relaxed topic).
    Leader = 1,
    /// Once every in-sync replica has it on disk (in memory on a relaxed topic).
    All = 2,
}

/// What has been reached for the records of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing is known.
    None = 0,
    /// In the leader's memory.
    Memory = 1,
    /// Flushed on the leader's drive.
    Disk = 2,
    /// Flushed on a quorum of replicas.
    Quorum = 3,
}

/// The head of a produce; the body is one or more batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceRequest {
    /// Where to.
    pub partition: TopicPartition,
    /// The epoch that the client believes in, or unknown.
    pub leader_epoch: LeaderEpoch,
    /// When to answer.
    pub acks: Acks,
}

/// Where the records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceReply {
    /// The offset of the first record.
    pub base_offset: Offset,
    /// Records in this produce.
    pub record_count: u32,
    /// The broker's append time, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
    /// The level met.
    pub level: Level,
    /// The current leader epoch.
    pub leader_epoch: LeaderEpoch,
    /// Where the time went.
    pub stages: StageTimes,
}

/// Microseconds from receipt to the end of each stage; 0 where a stage was not waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Place in the log taken.
    pub appended_us: u32,
    /// Written to the drive.
    pub written_us: u32,
    /// Flushed.
    pub flushed_us: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestHead {
    place: Place,
    leader_epoch: I32,
    acks: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReplyHead {
    base_offset: I64,
    append_time_ms: I64,
    record_count: U32,
    leader_epoch: I32,
    level: u8,
    reserved: [u8; 3],
    appended_us: U32,
    written_us: U32,
    flushed_us: U32,
}

impl Acks {
    /// The level of a number on the wire.
    pub fn from_number(number: u8) -> Option<Acks> {
        match number {
            0 => Some(Acks::None),
            1 => Some(Acks::Leader),
            2 => Some(Acks::All),
            _ => None,
        }
    }
}

impl Level {
    /// The level of a number on the wire.
    pub fn from_number(number: u8) -> Option<Level> {
        match number {
            0 => Some(Level::None),
            1 => Some(Level::Memory),
            2 => Some(Level::Disk),
            3 => Some(Level::Quorum),
            _ => None,
        }
    }
}

impl ProduceRequest {
    /// Bytes of the prefix and the head; the batches begin behind them.
    pub const FRAME_HEAD_LEN: usize = PREFIX_LEN + size_of::<RequestHead>();

    /// Appends prefix and head; `body_len` bytes of batches have to follow.
    pub fn encode_head(&self, correlation: u32, body_len: usize, out: &mut Vec<u8>) {
        let head = RequestHead {
            place: Place::of(self.partition),
            leader_epoch: I32::new(self.leader_epoch.0),
            acks: self.acks as u8,
            reserved: [0; 3],
        };
        put(Api::Produce, Kind::Request, correlation, &head, body_len, out);
    }

    /// Reads the head; the batches are `frame.body`.
    pub fn decode(frame: &Frame<'_>) -> Result<ProduceRequest, DecodeError> {
        let head: &RequestHead = take_head(frame, Api::Produce, Kind::Request)?;
        reserved("reserved", PREFIX_LEN + 25, &head.reserved)?;
        Ok(ProduceRequest {
            partition: head.place.get(),
            leader_epoch: LeaderEpoch(head.leader_epoch.get()),
            acks: Acks::from_number(head.acks).ok_or(unknown("acks", PREFIX_LEN + 24, head.acks))?,
        })
    }
}

impl ProduceReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = ReplyHead {
            base_offset: I64::new(self.base_offset.0),
            append_time_ms: I64::new(self.append_time_ms),
            record_count: U32::new(self.record_count),
            leader_epoch: I32::new(self.leader_epoch.0),
            level: self.level as u8,
            reserved: [0; 3],
            appended_us: U32::new(self.stages.appended_us),
            written_us: U32::new(self.stages.written_us),
            flushed_us: U32::new(self.stages.flushed_us),
        };
        put_whole(Api::Produce, Kind::Reply, correlation, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<ProduceReply, DecodeError> {
        let head: &ReplyHead = take_whole(frame, Api::Produce, Kind::Reply)?;
        reserved("reserved", PREFIX_LEN + 25, &head.reserved)?;
        Ok(ProduceReply {
            base_offset: Offset(head.base_offset.get()),
            record_count: head.record_count.get(),
            append_time_ms: head.append_time_ms.get(),
            level: Level::from_number(head.level).ok_or(unknown("level", PREFIX_LEN + 24, head.level))?,
            leader_epoch: LeaderEpoch(head.leader_epoch.get()),
            stages: StageTimes {
                appended_us: head.appended_us.get(),
                written_us: head.written_us.get(),
                flushed_us: head.flushed_us.get(),
            },
        })
    }
}
