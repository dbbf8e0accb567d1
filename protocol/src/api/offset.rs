//! `list_offsets`, `delete_records`, `offset_commit`, `offset_fetch`.

use crate::error_code::ErrorCode;
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
