//! `list_offsets`, `delete_records`, `offset_commit`, `offset_fetch`.

use zerocopy::little_endian::{I32, I64, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Api, CRC_LEN, Place, check_count, put, put_crc, put_whole, reserved, take_crc, take_head, take_whole,
    unknown,
};
use crate::code::{DecodeError, DecodeErrorKind, Reader, Writer};
use crate::error_code::ErrorCode;
use crate::frame::{Frame, Kind, PREFIX_LEN};
use crate::ids::{LeaderEpoch, Offset, TopicPartition};

/// Which offset is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetQuery {
    /// The first readable one.
    Earliest,
    /// One past the last readable one.
    Latest,
    /// As latest, before the first open transaction.
    Stable,
    /// The first record whose own timestamp is at or after this, milliseconds since the Unix epoch.
    RecordTime(i64),
    /// The first record appended at or after this, milliseconds since the Unix epoch.
    AppendTime(i64),
}

/// Ask for one offset of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOffsetsRequest {
    /// Which partition.
    pub partition: TopicPartition,
    /// Which offset.
    pub query: OffsetQuery,
}

/// The offset found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOffsetsReply {
    /// The offset; for a time later than every record: the end.
    pub offset: Offset,
    /// The timestamp found, of the kind asked for; -1 where none was.
    pub timestamp_ms: i64,
    /// The epoch of that record, or the current one.
    pub leader_epoch: LeaderEpoch,
}

/// Trim a partition: everything below `before` is gone once the reply comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteRecordsRequest {
    /// Which partition.
    pub partition: TopicPartition,
    /// The new start; at most `committed`.
    pub before: Offset,
}

/// The first readable offset now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteRecordsReply {
    /// The start.
    pub start: Offset,
}

/// Where a named consumer continues in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOffset {
    /// Which partition.
    pub partition: TopicPartition,
    /// The next record to read.
    pub offset: Offset,
    /// The epoch of the record before it, or unknown.
    pub leader_epoch: LeaderEpoch,
    /// The application's own note.
    pub metadata: String,
}

/// Store offsets; durable when the reply comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitRequest {
    /// The consumer's name.
    pub group: String,
    /// -1: no group membership.
    pub generation: i32,
    /// Empty: no group membership.
    pub member: String,
    /// What to store.
    pub offsets: Vec<StoredOffset>,
}

/// One result for each offset of the request, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitReply {
    /// None: stored.
    pub results: Vec<Option<ErrorCode>>,
}

/// Read stored offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchRequest {
    /// The consumer's name.
    pub group: String,
    /// Which partitions; none named: all that are stored.
    pub partitions: Vec<TopicPartition>,
}

/// Those of the asked partitions for which something is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchReply {
    /// The stored offsets.
    pub offsets: Vec<StoredOffset>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ListHead {
    place: Place,
    query: u8,
    reserved: [u8; 3],
    time_ms: I64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ListReplyHead {
    offset: I64,
    timestamp_ms: I64,
    leader_epoch: I32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DeleteHead {
    place: Place,
    before: I64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CommitHead {
    generation: I32,
    count: U32,
    group_len: U16,
    member_len: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FetchHead {
    count: U32,
    group_len: U16,
    reserved: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StoredLayout {
    place: Place,
    leader_epoch: I32,
    offset: I64,
    metadata_len: U32,
}

impl ListOffsetsRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let (query, time_ms) = match self.query {
            OffsetQuery::Earliest => (0, 0),
            OffsetQuery::Latest => (1, 0),
            OffsetQuery::Stable => (2, 0),
            OffsetQuery::RecordTime(time_ms) => (3, time_ms),
            OffsetQuery::AppendTime(time_ms) => (4, time_ms),
        };
        let head = ListHead {
            place: Place::of(self.partition),
            query,
            reserved: [0; 3],
            time_ms: I64::new(time_ms),
        };
        put_whole(Api::ListOffsets, Kind::Request, correlation, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<ListOffsetsRequest, DecodeError> {
        let head: &ListHead = take_whole(frame, Api::ListOffsets, Kind::Request)?;
        reserved("reserved", PREFIX_LEN + 21, &head.reserved)?;
        let query = match head.query {
            0 => OffsetQuery::Earliest,
            1 => OffsetQuery::Latest,
            2 => OffsetQuery::Stable,
            3 => OffsetQuery::RecordTime(head.time_ms.get()),
            4 => OffsetQuery::AppendTime(head.time_ms.get()),
            found => return Err(unknown("query", PREFIX_LEN + 20, found)),
        };
        if head.query < 3 {
            reserved("time_ms", PREFIX_LEN + 24, head.time_ms.as_bytes())?;
        }
        Ok(ListOffsetsRequest { partition: head.place.get(), query })
    }
}

impl ListOffsetsReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = ListReplyHead {
            offset: I64::new(self.offset.0),
            timestamp_ms: I64::new(self.timestamp_ms),
            leader_epoch: I32::new(self.leader_epoch.0),
        };
        put_whole(Api::ListOffsets, Kind::Reply, correlation, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<ListOffsetsReply, DecodeError> {
        let head: &ListReplyHead = take_whole(frame, Api::ListOffsets, Kind::Reply)?;
        Ok(ListOffsetsReply {
            offset: Offset(head.offset.get()),
            timestamp_ms: head.timestamp_ms.get(),
            leader_epoch: LeaderEpoch(head.leader_epoch.get()),
        })
    }
}

impl DeleteRecordsRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = DeleteHead { place: Place::of(self.partition), before: I64::new(self.before.0) };
        put_whole(Api::DeleteRecords, Kind::Request, correlation, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<DeleteRecordsRequest, DecodeError> {
        let head: &DeleteHead = take_whole(frame, Api::DeleteRecords, Kind::Request)?;
        Ok(DeleteRecordsRequest { partition: head.place.get(), before: Offset(head.before.get()) })
    }
}

impl DeleteRecordsReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_whole(Api::DeleteRecords, Kind::Reply, correlation, &I64::new(self.start.0), out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<DeleteRecordsReply, DecodeError> {
        let head: &I64 = take_whole(frame, Api::DeleteRecords, Kind::Reply)?;
        Ok(DeleteRecordsReply { start: Offset(head.get()) })
    }
}

impl OffsetCommitRequest {
    /// Appends the whole frame.
    ///
    /// # Panics
    /// If group or member are longer than 65,535 bytes.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = CommitHead {
            generation: I32::new(self.generation),
            count: U32::new(self.offsets.len() as u32),
            group_len: name_len(&self.group),
            member_len: name_len(&self.member),
        };
        let body_len = self.group.len() + self.member.len() + stored_len(&self.offsets) + CRC_LEN;
        put(Api::OffsetCommit, Kind::Request, correlation, &head, body_len, out);
        let body_at = out.len();
        let mut w = Writer::new(out);
        w.bytes(self.group.as_bytes());
        w.bytes(self.member.as_bytes());
        put_stored(&mut w, &self.offsets);
        put_crc(out, body_at);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<OffsetCommitRequest, DecodeError> {
        let head: &CommitHead = take_head(frame, Api::OffsetCommit, Kind::Request)?;
        let mut r = take_crc(frame)?;
        let group = r.text("group", head.group_len.get().into())?.to_owned();
        let member = r.text("member", head.member_len.get().into())?.to_owned();
        let offsets = take_stored(&mut r, head.count.get(), PREFIX_LEN + 4)?;
        Ok(OffsetCommitRequest { group, generation: head.generation.get(), member, offsets })
    }
}

impl OffsetCommitReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let body_len = self.results.len() * 2 + CRC_LEN;
        put(Api::OffsetCommit, Kind::Reply, correlation, &U32::new(self.results.len() as u32), body_len, out);
        let body_at = out.len();
        let mut w = Writer::new(out);
        for result in &self.results {
            w.u16(result.map_or(0, ErrorCode::number));
        }
        put_crc(out, body_at);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<OffsetCommitReply, DecodeError> {
        let head: &U32 = take_head(frame, Api::OffsetCommit, Kind::Reply)?;
        let mut r = take_crc(frame)?;
        let count = check_count(&r, head.get(), 2, PREFIX_LEN)?;
        let mut results = Vec::with_capacity(count);
        for _ in 0..count {
            let at = r.at();
            let number = r.u16("result")?;
            results.push(match number {
                0 => None,
                _ => Some(ErrorCode::from_number(number).ok_or_else(|| {
                    DecodeError::new("result", at, DecodeErrorKind::Unknown { found: i64::from(number) })
                })?),
            });
        }
        r.end("body")?;
        Ok(OffsetCommitReply { results })
    }
}

impl OffsetFetchRequest {
    /// Appends the whole frame.
    ///
    /// # Panics
    /// If the group is longer than 65,535 bytes.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let head = FetchHead {
            count: U32::new(self.partitions.len() as u32),
            group_len: name_len(&self.group),
            reserved: U16::ZERO,
        };
        let body_len = self.group.len() + self.partitions.len() * size_of::<Place>() + CRC_LEN;
        put(Api::OffsetFetch, Kind::Request, correlation, &head, body_len, out);
        let body_at = out.len();
        let mut w = Writer::new(out);
        w.bytes(self.group.as_bytes());
        for &partition in &self.partitions {
            w.fixed(&Place::of(partition));
        }
        put_crc(out, body_at);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<OffsetFetchRequest, DecodeError> {
        let head: &FetchHead = take_head(frame, Api::OffsetFetch, Kind::Request)?;
        reserved("reserved", PREFIX_LEN + 6, head.reserved.as_bytes())?;
        let mut r = take_crc(frame)?;
        let group = r.text("group", head.group_len.get().into())?.to_owned();
        let count = check_count(&r, head.count.get(), size_of::<Place>(), PREFIX_LEN)?;
        let mut partitions = Vec::with_capacity(count);
        for _ in 0..count {
            partitions.push(r.fixed::<Place>("partition")?.get());
        }
        r.end("body")?;
        Ok(OffsetFetchRequest { group, partitions })
    }
}

impl OffsetFetchReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        let body_len = stored_len(&self.offsets) + CRC_LEN;
        put(Api::OffsetFetch, Kind::Reply, correlation, &U32::new(self.offsets.len() as u32), body_len, out);
        let body_at = out.len();
        put_stored(&mut Writer::new(out), &self.offsets);
        put_crc(out, body_at);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<OffsetFetchReply, DecodeError> {
        let head: &U32 = take_head(frame, Api::OffsetFetch, Kind::Reply)?;
        let mut r = take_crc(frame)?;
        Ok(OffsetFetchReply { offsets: take_stored(&mut r, head.get(), PREFIX_LEN)? })
    }
}

fn name_len(name: &str) -> U16 {
    U16::new(u16::try_from(name.len()).expect("names are checked by whoever makes them"))
}

fn stored_len(offsets: &[StoredOffset]) -> usize {
    offsets.iter().map(|stored| size_of::<StoredLayout>() + stored.metadata.len()).sum()
}

fn put_stored(w: &mut Writer<'_>, offsets: &[StoredOffset]) {
    for stored in offsets {
        w.fixed(&StoredLayout {
            place: Place::of(stored.partition),
            leader_epoch: I32::new(stored.leader_epoch.0),
            offset: I64::new(stored.offset.0),
            metadata_len: U32::new(stored.metadata.len() as u32),
        });
        w.bytes(stored.metadata.as_bytes());
    }
}

fn take_stored(r: &mut Reader<'_>, count: u32, count_at: usize) -> Result<Vec<StoredOffset>, DecodeError> {
    let count = check_count(r, count, size_of::<StoredLayout>(), count_at)?;
    let mut offsets = Vec::with_capacity(count);
    for _ in 0..count {
        let stored: &StoredLayout = r.fixed("offset")?;
        offsets.push(StoredOffset {
            partition: stored.place.get(),
            offset: Offset(stored.offset.get()),
            leader_epoch: LeaderEpoch(stored.leader_epoch.get()),
            metadata: r.text("metadata", stored.metadata_len.get() as usize)?.to_owned(),
        });
    }
    r.end("body")?;
    Ok(offsets)
}
