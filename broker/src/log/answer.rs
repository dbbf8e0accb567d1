//! What the logs say to the shard: results of calls, and what has happened since.

use std::ops::Range;

use tidegate_logic::producer::Refusal;
use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::batch::BatchHeader;
use tidegate_protocol::ids::{Offset, TopicPartition};
use tidegate_reactor::buffer::View;
use tidegate_reactor::op::Fault;

use super::notice::{Notice, Shortage};

/// A batch as it came from a client: parsed, its rules and its checksum checked.
#[derive(Clone, Debug)]
pub struct IncomingBatch {
    /// Exactly the batch, in the buffer that it was received in.
    pub view: View,
    /// Its header.
    pub header: BatchHeader,
}

/// Proof that a flush has covered an offset. Only the flush completion makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableToken {
    upto: Offset,
}

impl DurableToken {
    /// For the flush completion alone.
    pub(super) fn of_flush(upto: Offset) -> DurableToken {
        DurableToken { upto }
    }

    /// Everything below is flushed.
    pub fn upto(&self) -> Offset {
        self.upto
    }
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base: Offset,
    /// One past the last record.
    pub end: Offset,
    /// The append time given, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
    /// Whether this was a repetition of an append that the log already has; it joins the original's waiters.
    pub duplicate: bool,
}

/// Why nothing was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendRefused {
    /// The shard has no such log.
    UnknownLog,
    /// The producer's sequence does not fit.
    Producer(Refusal),
    /// There is no room now; it comes back by itself.
    NoRoom {
        /// What is short.
        reason: Reason,
        /// Bytes of the append.
        wanted: u64,
        /// Bytes that there is room for.
        room: u64,
    },
    /// The drive has no room; produce is taken again by itself.
    DiskFull(Shortage),
    /// The shard remembers as many batches of producers as it may, and this is a producer that it does not know.
    TooManyProducers {
        /// Batches that there may be; a producer counts as its topic's window.
        limit: usize,
        /// Batches that there are.
        current: usize,
    },
    /// A write or a flush has failed: what happened to everything from that offset on is not known, and the shard takes
    /// no appends until a restart has recovered it.
    Unknown {
        /// The first offset whose fate is not known.
        from: Offset,
        /// What failed.
        fault: Fault,
    },
    /// The shard takes no writes.
    ReadOnly {
        /// Why.
        cause: String,
    },
}

/// What the drive has done for those who wait.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// All below `upto` is written, not yet flushed.
    Written {
        /// Which log.
        log: TopicPartition,
        /// One past the last written record.
        upto: Offset,
        /// When the last of it was submitted, on the reactor's clock.
        begun_ns: u64,
    },
    /// All below `token.upto()` is flushed; `committed` has moved with it.
    Durable {
        /// Which log.
        log: TopicPartition,
        /// The proof.
        token: DurableToken,
    },
    /// Everything appended at or above `from` has an unknown outcome; the log takes no more appends.
    Unknown {
        /// Which log.
        log: TopicPartition,
        /// The first offset whose fate is not known.
        from: Offset,
        /// What failed.
        fault: Fault,
    },
    /// A trim is durable.
    Trimmed {
        /// Which log.
        log: TopicPartition,
        /// Its start.
        start: Offset,
    },
    /// A cold read has ended.
    ReadDone {
        /// As given by [`ReadStart::Pending`].
        ticket: u64,
        /// The batches, or why not.
        result: Result<ReadBatches, ReadRefused>,
    },
    /// A search has ended.
    FindDone {
        /// As given by [`FindStart::Pending`].
        ticket: u64,
        /// What was found, or why not.
        result: Result<Found, ReadRefused>,
    },
    /// The scrub was refused what a reader would be.
    Damaged {
        /// Which log.
        log: TopicPartition,
        /// What a reader would be told.
        refused: ReadRefused,
    },
    /// Something has begun or ended that an operator should know.
    Notice(Notice),
}

/// Consecutive whole batches of one log, as they lie.
#[derive(Clone, Debug)]
pub struct ReadBatches {
    /// The bytes, in order; each view holds one or more whole batches.
    pub views: Vec<View>,
    /// The first offset of the first batch, which may lie below the one asked for.
    pub first: Offset,
    /// One past the last offset of the last batch.
    pub end: Offset,
    /// Batches.
    pub batch_count: u32,
    /// Bytes of all of them.
    pub bytes: usize,
    /// Append time of the first batch, milliseconds since the Unix epoch.
    pub append_time_first_ms: i64,
    /// Append time of the last batch.
    pub append_time_last_ms: i64,
    /// CRC32C over the first 21 bytes of every batch.
    pub heads_crc: u32,
}

/// Why nothing is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRefused {
    /// The shard has no such log.
    UnknownLog,
    /// The offset is not in the log.
    OutOfRange {
        /// The first readable offset.
        start: Offset,
        /// One past the last readable offset.
        end: Offset,
    },
    /// Stored data is damaged.
    Damaged {
        /// The file that holds it.
        file: String,
        /// Which bytes of that file.
        bytes: Range<u64>,
        /// The first offset concerned.
        from: Offset,
        /// One past the last offset concerned.
        upto: Offset,
    },
    /// What was stored from that offset on is not known: flushed frames of the journal are damaged.
    Lost {
        /// The file and the frames.
        file: String,
        /// One past the last record that is known.
        from: Offset,
    },
    /// The drive failed to read.
    Fault(Fault),
    /// Too many cold reads are under way; try again.
    Busy,
}

/// How a read begins.
#[derive(Clone, Debug)]
pub enum ReadStart {
    /// It was in memory.
    Ready(ReadBatches),
    /// It comes as [`Outcome::ReadDone`] with this ticket.
    Pending(u64),
    /// There is nothing at or above the offset yet.
    AtEnd,
    /// It cannot be read.
    Refused(ReadRefused),
}

/// An offset found by a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The offset; for a time later than every record: the end.
    pub offset: Offset,
    /// The timestamp found, of the kind asked for; -1 where none was.
    pub timestamp_ms: i64,
}

/// How a search begins.
#[derive(Clone, Debug)]
pub enum FindStart {
    /// It was answered from memory.
    Ready(Found),
    /// It comes as [`Outcome::FindDone`] with this ticket.
    Pending(u64),
    /// It cannot be searched.
    Refused(ReadRefused),
}

/// Why a log was not trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrimRefused {
    /// The shard has no such log.
    UnknownLog,
    /// The new start is not within the log's committed part.
    OutOfRange {
        /// The start now.
        start: Offset,
        /// One past the last committed record.
        committed: Offset,
    },
    /// The shard takes no writes.
    Stopped,
}

/// Why a log was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateRefused {
    /// The shard has as many logs as it may have.
    TooMany {
        /// How many that is.
        limit: u32,
    },
    /// The shard takes no writes.
    ReadOnly,
}

/// How much may be appended now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// What keeps it from being more, if it is little.
    pub reason: Reason,
}
