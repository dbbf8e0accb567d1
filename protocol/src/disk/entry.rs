//! The entries of a journal frame, all kinds.
//!
//! Each is `kind u8 | flags u8 | reserved u16 | length u32 | body | zeros to a multiple of 8`; `length` counts the body.

use zerocopy::little_endian::{I16, I32, I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DiskError;
use crate::ids::{
    FileId, FrameSequence, Generation, Incarnation, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence,
    TopicId, TopicPartition,
};

/// Bytes before the body of every entry.
pub const ENTRY_HEADER_BYTES: usize = 8;
/// Entries begin at multiples of this.
pub const ENTRY_ALIGN: usize = 8;

pub(super) const KIND_EXTENT: u8 = 1;
const KIND_RUN: u8 = 2;
const KIND_START: u8 = 3;
const KIND_CUT: u8 = 4;
const KIND_ASSIGN: u8 = 5;
const KIND_FREE: u8 = 6;
const KIND_RECOVERED: u8 = 7;
pub(super) const FLAG_CARRIED: u8 = 1;

/// One entry of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// An extent: header and payload.
    Extent {
        /// Fresh, or copied from an older frame.
        how: Carriage,
        /// Its bytes, header first.
        bytes: &'a [u8],
    },
    /// A run in a data file.
    Run(RunMark),
    /// The first readable offset of a log has moved.
    Start(Start),
    /// A log was cut back. Never written by a single node.
    Cut(Cut),
    /// A data file now belongs to a log.
    Assign(Assign),
    /// A data file belongs to no log any more.
    Free(Free),
    /// A recovery has ended here.
    Recovered(Recovered),
}

/// How an extent came into its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// Appended in this frame's cycle.
    Fresh,
    /// Copied byte for byte from an older frame; only its place changes.
    Carried,
}

/// A run in a data file: everything that replay needs to know about it without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunMark {
    /// Whose.
    pub log: TopicPartition,
    /// The first record's offset.
    pub base: Offset,
    /// One past the last record's offset.
    pub end: Offset,
    /// Where it lies.
    pub file: FileId,
    /// The file's generation.
    pub generation: Generation,
    /// Bytes from the start of the file; a multiple of the block.
    pub at: u64,
    /// Its length in bytes; a multiple of the block.
    pub bytes: u32,
    /// The CRC of its header.
    pub crc: u32,
    /// Its number among the runs of this generation.
    pub run_sequence: u64,
    /// Append time of its first extent, milliseconds since the Unix epoch.
    pub append_first_ms: i64,
    /// Append time of its last extent.
    pub append_last_ms: i64,
    /// The latest timestamp of any record, milliseconds since the Unix epoch.
    pub max_timestamp_ms: i64,
    /// The batches that came with this frame and belong to a producer's sequence, by offset. Batches that were small
    /// extents of earlier frames are not repeated.
    pub producers: Vec<ProducerNote>,
}

/// What the table of producers has to know of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerNote {
    /// The producer.
    pub producer: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
    /// The sequence of the first record.
    pub base_sequence: Sequence,
    /// Records.
    pub record_count: i32,
    /// The offset of the first record.
    pub base: Offset,
    /// When it was appended, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
}

/// The first readable offset of a log has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which log.
    pub log: TopicPartition,
    /// Its start; [`Start::REMOVED`]: the log is gone.
    pub offset: Offset,
}

impl Start {
    /// The start of a log that is gone with all that it held.
    pub const REMOVED: Offset = Offset(i64::MAX);
}

/// A log was cut back. Never written by a single node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which log.
    pub log: TopicPartition,
    /// Its new end.
    pub offset: Offset,
}

/// A data file now belongs to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assign {
    /// The file.
    pub file: FileId,
    /// One more than before.
    pub generation: Generation,
    /// The log.
    pub log: TopicPartition,
    /// The offset of the first record that will lie in it.
    pub base: Offset,
}

/// A data file belongs to no log any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// The file.
    pub file: FileId,
    /// The generation that ends.
    pub generation: Generation,
}

/// A recovery has ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// That of the recovery.
    pub incarnation: Incarnation,
    /// The last frame that it kept.
    pub last_kept: FrameSequence,
    /// The hash of that frame's header.
    pub last_hash: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRun {
    topic: [u8; 16],
    partition: I32,
    bytes: U32,
    base: I64,
    end: I64,
    file: U64,
    at: U64,
    run_sequence: U64,
    append_first_ms: I64,
    append_last_ms: I64,
    max_timestamp_ms: I64,
    generation: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawNote {
    producer: I64,
    base: I64,
    append_time_ms: I64,
    base_sequence: I32,
    record_count: I32,
    epoch: I16,
    reserved: [u8; 6],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPlace {
    topic: [u8; 16],
    partition: I32,
    reserved: [u8; 4],
    offset: I64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAssign {
    file: U64,
    generation: U32,
    partition: I32,
    topic: [u8; 16],
    base: I64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFree {
    file: U64,
    generation: U32,
    reserved: [u8; 4],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecovered {
    incarnation: U32,
    reserved: [u8; 4],
    last_kept: U64,
    last_hash: U64,
}

const RUN_BYTES: usize = size_of::<RawRun>();
const NOTE_BYTES: usize = size_of::<RawNote>();

/// Bytes that an entry with a body of `body` bytes takes in a frame.
pub const fn entry_bytes(body: usize) -> usize {
    (ENTRY_HEADER_BYTES + body).next_multiple_of(ENTRY_ALIGN)
}

/// Bytes that a run mark with `notes` producer notes takes in a frame.
pub const fn run_mark_bytes(notes: usize) -> usize {
    entry_bytes(RUN_BYTES + notes * NOTE_BYTES)
}

/// Bytes that an assign takes in a frame.
pub const ASSIGN_BYTES: usize = entry_bytes(size_of::<RawAssign>());
/// Bytes that a free takes in a frame.
pub const FREE_BYTES: usize = entry_bytes(size_of::<RawFree>());
/// Bytes that a start or a cut takes in a frame.
pub const START_BYTES: usize = entry_bytes(size_of::<RawPlace>());

impl Entry<'_> {
    /// Kind, flags and body; for an extent the body is its bytes.
    pub(super) fn encode(&self) -> (u8, u8, Vec<u8>) {
        match self {
            Entry::Extent { how: Carriage::Fresh, bytes } => (KIND_EXTENT, 0, bytes.to_vec()),
            Entry::Extent { how: Carriage::Carried, bytes } => (KIND_EXTENT, FLAG_CARRIED, bytes.to_vec()),
            Entry::Run(mark) => (KIND_RUN, 0, encode_run(mark)),
            Entry::Start(start) => (KIND_START, 0, encode_place(start.log, start.offset)),
            Entry::Cut(cut) => (KIND_CUT, 0, encode_place(cut.log, cut.offset)),
            Entry::Assign(assign) => (KIND_ASSIGN, 0, encode_assign(assign)),
            Entry::Free(free) => (KIND_FREE, 0, encode_free(free)),
            Entry::Recovered(recovered) => (KIND_RECOVERED, 0, encode_recovered(recovered)),
        }
    }
}

/// Reads the body of an entry; `at` is its place in the frame, for errors.
pub(super) fn decode(kind: u8, flags: u8, body: &[u8], at: usize) -> Result<Entry<'_>, DiskError> {
    if kind == KIND_EXTENT {
        return match flags {
            0 => Ok(Entry::Extent { how: Carriage::Fresh, bytes: body }),
            FLAG_CARRIED => Ok(Entry::Extent { how: Carriage::Carried, bytes: body }),
            _ => Err(DiskError::bad("extent entry flags", at)),
        };
    }
    if flags != 0 {
        return Err(DiskError::bad("entry flags", at));
    }
    match kind {
        KIND_RUN => decode_run(body, at).map(Entry::Run),
        KIND_START => decode_place(body, at).map(|(log, offset)| Entry::Start(Start { log, offset })),
        KIND_CUT => decode_place(body, at).map(|(log, offset)| Entry::Cut(Cut { log, offset })),
        KIND_ASSIGN => {
            let raw =
                RawAssign::ref_from_bytes(body).map_err(|_| DiskError::bad("assign entry length", at))?;
            Ok(Entry::Assign(Assign {
                file: FileId(raw.file.get()),
                generation: Generation(raw.generation.get()),
                log: partition(raw.topic, raw.partition),
                base: Offset(raw.base.get()),
            }))
        }
        KIND_FREE => {
            let raw = RawFree::ref_from_bytes(body).map_err(|_| DiskError::bad("free entry length", at))?;
            Ok(Entry::Free(Free {
                file: FileId(raw.file.get()),
                generation: Generation(raw.generation.get()),
            }))
        }
        KIND_RECOVERED => {
            let raw = RawRecovered::ref_from_bytes(body)
                .map_err(|_| DiskError::bad("recovered entry length", at))?;
            Ok(Entry::Recovered(Recovered {
                incarnation: Incarnation(raw.incarnation.get()),
                last_kept: FrameSequence(raw.last_kept.get()),
                last_hash: raw.last_hash.get(),
            }))
        }
        _ => Err(DiskError::bad("entry kind", at)),
    }
}

fn partition(topic: [u8; 16], partition: I32) -> TopicPartition {
    TopicPartition { topic: TopicId(topic), partition: PartitionId(partition.get()) }
}

fn encode_run(mark: &RunMark) -> Vec<u8> {
    let raw = RawRun {
        topic: mark.log.topic.0,
        partition: I32::new(mark.log.partition.0),
        bytes: U32::new(mark.bytes),
        base: I64::new(mark.base.0),
        end: I64::new(mark.end.0),
        file: U64::new(mark.file.0),
        at: U64::new(mark.at),
        run_sequence: U64::new(mark.run_sequence),
        append_first_ms: I64::new(mark.append_first_ms),
        append_last_ms: I64::new(mark.append_last_ms),
        max_timestamp_ms: I64::new(mark.max_timestamp_ms),
        generation: U32::new(mark.generation.0),
        crc: U32::new(mark.crc),
    };
    let mut body = Vec::with_capacity(RUN_BYTES + mark.producers.len() * NOTE_BYTES);
    body.extend_from_slice(raw.as_bytes());
    for note in &mark.producers {
        let raw = RawNote {
            producer: I64::new(note.producer.0),
            base: I64::new(note.base.0),
            append_time_ms: I64::new(note.append_time_ms),
            base_sequence: I32::new(note.base_sequence.0),
            record_count: I32::new(note.record_count),
            epoch: I16::new(note.epoch.0),
            reserved: [0; 6],
        };
        body.extend_from_slice(raw.as_bytes());
    }
    body
}

fn decode_run(body: &[u8], at: usize) -> Result<RunMark, DiskError> {
    let (raw, rest) = RawRun::ref_from_prefix(body).map_err(|_| DiskError::short("run mark", at))?;
    let notes = <[RawNote]>::ref_from_bytes(rest).map_err(|_| DiskError::bad("run mark notes", at))?;
    Ok(RunMark {
        log: partition(raw.topic, raw.partition),
        base: Offset(raw.base.get()),
        end: Offset(raw.end.get()),
        file: FileId(raw.file.get()),
        generation: Generation(raw.generation.get()),
        at: raw.at.get(),
        bytes: raw.bytes.get(),
        crc: raw.crc.get(),
        run_sequence: raw.run_sequence.get(),
        append_first_ms: raw.append_first_ms.get(),
        append_last_ms: raw.append_last_ms.get(),
        max_timestamp_ms: raw.max_timestamp_ms.get(),
        producers: notes
            .iter()
            .map(|note| ProducerNote {
                producer: ProducerId(note.producer.get()),
                epoch: ProducerEpoch(note.epoch.get()),
                base_sequence: Sequence(note.base_sequence.get()),
                record_count: note.record_count.get(),
                base: Offset(note.base.get()),
                append_time_ms: note.append_time_ms.get(),
            })
            .collect(),
    })
}

fn encode_place(log: TopicPartition, offset: Offset) -> Vec<u8> {
    let raw = RawPlace {
        topic: log.topic.0,
        partition: I32::new(log.partition.0),
        reserved: [0; 4],
        offset: I64::new(offset.0),
    };
    raw.as_bytes().to_vec()
}

fn decode_place(body: &[u8], at: usize) -> Result<(TopicPartition, Offset), DiskError> {
    let raw = RawPlace::ref_from_bytes(body).map_err(|_| DiskError::bad("start or cut entry length", at))?;
    Ok((partition(raw.topic, raw.partition), Offset(raw.offset.get())))
}

fn encode_assign(assign: &Assign) -> Vec<u8> {
    let raw = RawAssign {
        file: U64::new(assign.file.0),
        generation: U32::new(assign.generation.0),
        partition: I32::new(assign.log.partition.0),
        topic: assign.log.topic.0,
        base: I64::new(assign.base.0),
    };
    raw.as_bytes().to_vec()
}

fn encode_free(free: &Free) -> Vec<u8> {
    let raw =
        RawFree { file: U64::new(free.file.0), generation: U32::new(free.generation.0), reserved: [0; 4] };
    raw.as_bytes().to_vec()
}

fn encode_recovered(recovered: &Recovered) -> Vec<u8> {
    let raw = RawRecovered {
        incarnation: U32::new(recovered.incarnation.0),
        reserved: [0; 4],
        last_kept: U64::new(recovered.last_kept.0),
        last_hash: U64::new(recovered.last_hash),
    };
    raw.as_bytes().to_vec()
}
