//! The record batch: Kafka's layout, magic 2, the same bytes on the wire, on disk and between nodes.
//!
//! Big-endian, from byte 0:
//! ```text
//! base_offset i64 | length i32 | leader_epoch i32 | magic i8 | crc u32 |                            21 bytes: head
//! attributes i16 | last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 | producer_id i64 |
//! producer_epoch i16 | base_sequence i32 | records_count i32 | records ..
//! ```
//! `length` counts the bytes behind itself; `crc` (CRC32C) covers everything behind itself, so that the broker can set
//! the base offset and the leader epoch in front of it. Source: Apache Kafka, "Record Batch" in its message format.
//!
//! Reading order: [`BatchView`] and [`BatchHeader`], the patches, then [`record`], [`builder`], `compression`.

use std::fmt;

use zerocopy::big_endian::{I16, I32, I64, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::code::{DecodeError, DecodeErrorKind, Reader};
use crate::crc;
use crate::error_code::ErrorCode;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};

pub mod builder;
#[cfg(feature = "compression")]
pub mod compression;
pub mod record;

pub use builder::{BatchBuilder, BatchOrigin};
pub use record::{Header, Record, Records};

/// Bytes in front of what the batch's own checksum covers.
pub const HEAD_LEN: usize = 21;
/// Bytes in front of the records.
pub const HEADER_LEN: usize = 61;
/// Base offset and length, which `length` does not count.
const LENGTH_END: usize = 12;
const EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const MAX_TIMESTAMP_AT: usize = 35;
const MAX_TIMESTAMP_END: usize = 43;
const MAGIC: i8 = 2;

/// Attribute: the broker set the timestamps.
const APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;
const KNOWN_FROM_CLIENTS: i16 = 0b111;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    base_offset: I64,
    length: I32,
    leader_epoch: I32,
    magic: i8,
    crc: U32,
    attributes: I16,
    last_offset_delta: I32,
    base_timestamp: I64,
    max_timestamp: I64,
    producer_id: I64,
    producer_epoch: I16,
    base_sequence: I32,
    records_count: I32,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// How the records of a batch are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    /// As they are.
    #[default]
    None = 0,
    /// A gzip stream.
    Gzip = 1,
    /// Snappy, in xerial's blocks or as one raw block.
    Snappy = 2,
    /// An lz4 frame.
    Lz4 = 3,
    /// A zstd frame.
    Zstd = 4,
}

impl Compression {
    /// The codec of a number in the attributes.
    pub fn from_number(number: u8) -> Option<Compression> {
        match number {
            0 => Some(Compression::None),
            1 => Some(Compression::Gzip),
            2 => Some(Compression::Snappy),
            3 => Some(Compression::Lz4),
            4 => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// Whose clock the timestamps of a batch show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's, record by record.
    Create,
    /// The broker's at the append, one for all records: [`BatchHeader::max_timestamp_ms`].
    Append,
}

/// The fields of a batch in front of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Bytes of the whole batch.
    pub len: usize,
    /// Epoch of the leader that appended it.
    pub leader_epoch: LeaderEpoch,
    /// CRC32C of everything behind the first [`HEAD_LEN`] bytes, as stored.
    pub crc: u32,
    /// Codec.
    pub compression: Compression,
    /// Whose clock.
    pub timestamp_type: TimestampType,
    /// Part of a transaction.
    pub transactional: bool,
    /// A marker of the broker, not data of an application.
    pub control: bool,
    /// Offset of the last record less that of the first.
    pub last_offset_delta: i32,
    /// Timestamp of the first record, milliseconds since the Unix epoch; -1: none.
    pub base_timestamp_ms: i64,
    /// Largest timestamp of the records, or the append time of all of them.
    pub max_timestamp_ms: i64,
    /// Who produced it, or none.
    pub producer_id: ProducerId,
    /// That producer's epoch; -1: none.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record; -1: none.
    pub base_sequence: Sequence,
    /// Records in the batch.
    pub records_count: i32,
    attributes: i16,
}

impl BatchHeader {
    /// Offset of the last record.
    pub fn last_offset(&self) -> Offset {
        self.base_offset.plus(i64::from(self.last_offset_delta))
    }

    /// One past the offset of the last record.
    pub fn end_offset(&self) -> Offset {
        self.base_offset.plus(i64::from(self.last_offset_delta) + 1)
    }

    /// Sequence of the last record, of a batch that has a producer.
    pub fn last_sequence(&self) -> Sequence {
        self.base_sequence.plus(self.last_offset_delta)
    }
}

/// One batch in the bytes that it came in: its header has been read and its length fits; its checksum is not checked
/// until [`BatchView::verify_crc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchView<'a> {
    bytes: &'a [u8],
    header: BatchHeader,
}

impl<'a> BatchView<'a> {
    /// The batch at the front of `bytes`, which may go on behind it.
    ///
    /// # Errors
    /// If it is not whole, or its header is not one of this format.
    pub fn parse(bytes: &'a [u8]) -> Result<BatchView<'a>, BatchError> {
        let layout: &Layout = Reader::new(bytes).fixed("batch")?;
        let least = (HEADER_LEN - LENGTH_END) as i64;
        let length = layout.length.get();
        if i64::from(length) < least {
            let kind = DecodeErrorKind::BelowLimit { limit: least, found: i64::from(length) };
            return Err(DecodeError::new("length", 8, kind).into());
        }
        let len = LENGTH_END + length as usize;
        if len > bytes.len() {
            let kind = DecodeErrorKind::Truncated { needed: len as u64, left: bytes.len() as u64 };
            return Err(DecodeError::new("length", 8, kind).into());
        }
        Ok(BatchView { bytes: &bytes[..len], header: header_of(layout, len)? })
    }

    /// The header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The first [`HEAD_LEN`] bytes, which the batch's checksum does not cover.
    pub fn head(&self) -> &'a [u8] {
        &self.bytes[..HEAD_LEN]
    }

    /// The packed records.
    pub fn records_bytes(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// Reads the batch and compares its checksum.
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        let computed = crc::of(&self.bytes[HEAD_LEN..]);
        let stored = self.header.crc;
        if stored != computed {
            return Err(BatchError::Corrupt { stored, computed });
        }
        Ok(())
    }

    /// CRC32C of the whole batch, head included, without reading it again; right if its own checksum is.
    pub fn whole_crc(&self) -> u32 {
        crc::combine(crc::of(self.head()), self.header.crc, self.bytes.len() - HEAD_LEN)
    }

    /// What a client may send: storage takes no other batch.
    ///
    /// The checksum is not looked at. Base offset and leader epoch are, but have no meaning in a produce.
    pub fn check_from_client(&self, batch_bytes_max: u32) -> Result<(), BatchError> {
        let header = &self.header;
        if self.bytes.len() > batch_bytes_max as usize {
            return Err(BatchError::TooLarge { limit: batch_bytes_max, len: self.bytes.len() });
        }
        let rule = |field, at, rule| Err(DecodeError::rule(field, at, rule).into());
        if header.control {
            return rule("attributes", ATTRIBUTES_AT, "marks a control batch, which only a broker writes");
        }
        if header.transactional {
            return rule(
                "attributes",
                ATTRIBUTES_AT,
                "marks a transactional batch; there are no transactions yet",
            );
        }
        if header.timestamp_type == TimestampType::Append {
            return rule("attributes", ATTRIBUTES_AT, "says append time, which only a broker sets");
        }
        if header.attributes & !KNOWN_FROM_CLIENTS != 0 {
            return rule("attributes", ATTRIBUTES_AT, "has bits that are not known");
        }
        if header.records_count < 1 {
            return rule("records_count", 57, "is not at least 1");
        }
        if header.last_offset_delta != header.records_count - 1 {
            return rule("last_offset_delta", 23, "is not records_count - 1");
        }
        let records = self.records_bytes().len();
        let least = record::LEN_MIN as u64 * header.records_count as u64;
        if header.compression == Compression::None && least > records as u64 {
            return rule("records_count", 57, "is more than the bytes behind the header can hold");
        }
        if records == 0 {
            return rule("records", HEADER_LEN, "are missing");
        }
        if header.producer_id == ProducerId::NONE {
            return Ok(());
        }
        if header.producer_id.0 < 0 {
            return rule("producer_id", 43, "is below -1");
        }
        if header.producer_epoch.0 < 0 {
            return rule("producer_epoch", 51, "is negative in a batch with a producer id");
        }
        if header.base_sequence.0 < 0 {
            return rule("base_sequence", 53, "is negative in a batch with a producer id");
        }
        Ok(())
    }

    /// The records of an uncompressed batch, in place. For a compressed one see `compression::records`.
    pub fn records(&self) -> Result<Records<'a>, BatchError> {
        if self.header.compression != Compression::None {
            return Err(DecodeError::rule(
                "attributes",
                ATTRIBUTES_AT,
                "says that the records are compressed",
            )
            .into());
        }
        Ok(Records::new(&self.header, self.records_bytes(), HEADER_LEN))
    }
}

fn header_of(layout: &Layout, len: usize) -> Result<BatchHeader, DecodeError> {
    if layout.magic != MAGIC {
        let kind = DecodeErrorKind::Unknown { found: i64::from(layout.magic) };
        return Err(DecodeError::new("magic", MAGIC_AT, kind));
    }
    let attributes = layout.attributes.get();
    let codec = (attributes & 0b111) as u8;
    let Some(compression) = Compression::from_number(codec) else {
        let kind = DecodeErrorKind::Unknown { found: i64::from(codec) };
        return Err(DecodeError::new("compression", ATTRIBUTES_AT, kind));
    };
    let base = layout.base_offset.get();
    let delta = layout.last_offset_delta.get();
    if base < 0 || base.checked_add(i64::from(delta) + 1).is_none() {
        return Err(DecodeError::rule("base_offset", 0, "is negative or leaves no room for the records"));
    }
    if delta < 0 {
        return Err(DecodeError::rule("last_offset_delta", 23, "is negative"));
    }
    if layout.records_count.get() < 0 {
        return Err(DecodeError::rule("records_count", 57, "is negative"));
    }
    Ok(BatchHeader {
        base_offset: Offset(base),
        len,
        leader_epoch: LeaderEpoch(layout.leader_epoch.get()),
        crc: layout.crc.get(),
        compression,
        timestamp_type: if attributes & APPEND_TIME == 0 {
            TimestampType::Create
        } else {
            TimestampType::Append
        },
        transactional: attributes & TRANSACTIONAL != 0,
        control: attributes & CONTROL != 0,
        last_offset_delta: delta,
        base_timestamp_ms: layout.base_timestamp.get(),
        max_timestamp_ms: layout.max_timestamp.get(),
        producer_id: ProducerId(layout.producer_id.get()),
        producer_epoch: ProducerEpoch(layout.producer_epoch.get()),
        base_sequence: Sequence(layout.base_sequence.get()),
        records_count: layout.records_count.get(),
        attributes,
    })
}

/// Why a batch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// It breaks a rule of the format.
    Invalid(DecodeError),
    /// Its checksum is wrong.
    Corrupt {
        /// As stored.
        stored: u32,
        /// As computed over the bytes.
        computed: u32,
    },
    /// It is above the limit.
    TooLarge {
        /// Bytes allowed.
        limit: u32,
        /// Bytes of the batch.
        len: usize,
    },
}

impl BatchError {
    /// The code that a broker answers.
    pub fn code(&self) -> ErrorCode {
        match self {
            BatchError::Invalid(_) => ErrorCode::BatchInvalid,
            BatchError::Corrupt { .. } => ErrorCode::BatchCorrupt,
            BatchError::TooLarge { .. } => ErrorCode::BatchTooLarge,
        }
    }
}

impl From<DecodeError> for BatchError {
    fn from(error: DecodeError) -> BatchError {
        BatchError::Invalid(error)
    }
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BatchError::Invalid(error) => write!(f, "in the record batch, {error}"),
            BatchError::Corrupt { stored, computed } => {
                write!(f, "the record batch has checksum {computed:#010x}, stored in it is {stored:#010x}")
            }
            BatchError::TooLarge { limit, len } => {
                write!(f, "the record batch has {len} bytes, the limit is {limit}")
            }
        }
    }
}

impl std::error::Error for BatchError {}

/// Goes through consecutive batches. After an error it ends.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    bytes: &'a [u8],
}

impl<'a> Batches<'a> {
    /// The batches in `bytes`, back to back and nothing else.
    pub fn new(bytes: &'a [u8]) -> Batches<'a> {
        Batches { bytes }
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let batch = BatchView::parse(self.bytes);
        self.bytes = match &batch {
            Ok(view) => &self.bytes[view.bytes().len()..],
            Err(_) => &[],
        };
        Some(batch)
    }
}

/// CRC32C over the first 21 bytes of every batch in `body`: `heads_crc` of a `data` frame.
pub fn heads_crc(body: &[u8]) -> Result<u32, BatchError> {
    let mut crc = 0;
    for batch in Batches::new(body) {
        crc = crc::append(crc, batch?.head());
    }
    Ok(crc)
}

/// Sets base offset and leader epoch of the batch at the front of `batch`. No checksum changes.
///
/// # Panics
/// If `batch` is shorter than a head.
pub fn set_place(batch: &mut [u8], base_offset: Offset, leader_epoch: LeaderEpoch) {
    batch[..8].copy_from_slice(&base_offset.0.to_be_bytes());
    batch[EPOCH_AT..MAGIC_AT].copy_from_slice(&leader_epoch.0.to_be_bytes());
}

/// Says in the batch at the front of `batch` that all its records have the broker's append time, and mends its checksum
/// without reading the records: the checksum must have been right before.
///
/// # Panics
/// If `batch` is not a whole batch that [`BatchView::parse`] has accepted.
pub fn set_append_time(batch: &mut [u8], append_time_ms: i64) {
    let layout = Layout::ref_from_bytes(&batch[..HEADER_LEN]).expect("a whole batch");
    let (attributes, stored) = (layout.attributes.get() | APPEND_TIME, layout.crc.get());
    let behind = LENGTH_END + layout.length.get() as usize - MAX_TIMESTAMP_END;
    let changed = ATTRIBUTES_AT..MAX_TIMESTAMP_END;
    let mut old = [0; MAX_TIMESTAMP_END - ATTRIBUTES_AT];
    old.copy_from_slice(&batch[changed.clone()]);
    batch[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    batch[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_END].copy_from_slice(&append_time_ms.to_be_bytes());
    let crc = crc::patch(stored, &old, &batch[changed], behind);
    batch[CRC_AT..HEAD_LEN].copy_from_slice(&crc.to_be_bytes());
}

/// Says in the batch at the front of `batch` who it is from, and computes its checksum anew.
///
/// # Panics
/// If `batch` is not a whole batch that [`BatchView::parse`] has accepted.
pub fn set_origin(batch: &mut [u8], origin: BatchOrigin) {
    let (layout, _) = Layout::mut_from_prefix(batch).expect("a whole batch");
    layout.producer_id = I64::new(origin.producer_id.0);
    layout.producer_epoch = I16::new(origin.producer_epoch.0);
    layout.base_sequence = I32::new(origin.base_sequence.0);
    let end = LENGTH_END + layout.length.get() as usize;
    let crc = crc::of(&batch[HEAD_LEN..end]);
    batch[CRC_AT..HEAD_LEN].copy_from_slice(&crc.to_be_bytes());
}

/// Replaces bytes of a record in the batch that `front` begins with, and mends its checksum without reading the rest: the
/// checksum must have been right before. `front` has to reach to the end of the replaced bytes, not to that of the batch.
///
/// # Panics
/// If the bytes do not lie behind the header and inside both the batch and `front`.
pub fn replace_in_records(front: &mut [u8], at: usize, bytes: &[u8]) {
    let layout = Layout::ref_from_bytes(&front[..HEADER_LEN]).expect("a batch has a header");
    let (stored, end) = (layout.crc.get(), at + bytes.len());
    let behind = (LENGTH_END + layout.length.get() as usize).checked_sub(end);
    assert!(at >= HEADER_LEN, "records begin behind the header");
    let crc = crc::patch(stored, &front[at..end], bytes, behind.expect("the bytes lie in the batch"));
    front[at..end].copy_from_slice(bytes);
    front[CRC_AT..HEAD_LEN].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests;
