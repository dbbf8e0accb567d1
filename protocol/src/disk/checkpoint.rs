//! A checkpoint: the whole replayable state of a shard after exactly the frames up to one sequence.
//!
//! `header | body | zeros`, in whole blocks, in one of three slot files. The body is an rkyv archive: little-endian, 32-bit
//! pointers, fixed alignment; it is validated before anything in it is believed.

use rkyv::{Archive, Deserialize, Serialize};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::JournalIdentity;
use super::{DiskError, FORMAT, header, whole_blocks};
use crate::ids::{ClusterId, FrameSequence, Incarnation, JournalId, NodeId};

/// Bytes of a checkpoint's header; the body begins behind it, aligned for rkyv.
pub const CHECKPOINT_HEADER_BYTES: usize = 128;

const MAGIC: [u8; 4] = *b"TGcp";

/// What a checkpoint says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// Whose journal it belongs to.
    pub identity: JournalIdentity,
    /// The start of the node in which it was written.
    pub incarnation: Incarnation,
    /// The last frame that it covers, N; 0 for a journal that has no frame yet.
    pub sequence: FrameSequence,
    /// The hash of that frame's header.
    pub hash: u64,
    /// Where the frame after it begins, in bytes from the start of the ring.
    pub next_at: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    format: U16,
    header_len: U16,
    cluster: [u8; 16],
    node: I32,
    incarnation: U32,
    journal: U32,
    body_crc: U32,
    sequence: U64,
    hash: U64,
    next_at: U64,
    body_bytes: U64,
    reserved: [u8; 52],
    header_crc: U32,
}

const _: () = assert!(size_of::<Raw>() == CHECKPOINT_HEADER_BYTES);

/// The state itself.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointBody {
    /// All logs, by topic and partition.
    pub logs: Vec<LogState>,
    /// All data files, by id.
    pub files: Vec<FileState>,
    /// Wall clock when it was taken, milliseconds since the Unix epoch.
    pub wall_ms: i64,
}

/// One log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The topic.
    pub topic: [u8; 16],
    /// The partition.
    pub partition: i32,
    /// The first readable offset.
    pub start: i64,
    /// One past the last record.
    pub appended: i64,
    /// The last append time, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
    /// Extents that lie in the journal alone, by offset.
    pub extents: Vec<ExtentPlace>,
    /// Producers, by id.
    pub producers: Vec<ProducerState>,
    /// The highest producer id and epoch that were forgotten.
    pub forgotten: Option<(i64, i16)>,
}

/// A small extent that lies in the journal alone.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPlace {
    /// The first record's offset.
    pub base: i64,
    /// One past the last record's offset.
    pub end: i64,
    /// The frame that holds it.
    pub frame: u64,
    /// Where that frame begins, in bytes from the start of the ring.
    pub frame_at: u64,
    /// Where the extent begins, in bytes from the start of the frame.
    pub at: u32,
    /// Its bytes, header included.
    pub bytes: u32,
    /// The CRC of its header.
    pub crc: u32,
}

/// One producer of a log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// Its id.
    pub producer: i64,
    /// Its newest epoch.
    pub epoch: i16,
    /// Its remembered batches, oldest first.
    pub batches: Vec<ProducerBatch>,
}

/// A remembered batch of a producer.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// The sequence of its first record.
    pub base_sequence: i32,
    /// Its records.
    pub record_count: i32,
    /// The offset of its first record.
    pub base: i64,
    /// Its append time, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
}

/// One data file.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    /// Its id.
    pub file: u64,
    /// How often it has been assigned.
    pub generation: u32,
    /// Its size in bytes.
    pub bytes: u64,
    /// The frame that freed it last; 0: never used or in use.
    pub freed_by: u64,
    /// Whose it is; none: nobody's.
    pub owner: Option<FileOwner>,
}

/// The log that a data file belongs to, and what it holds of it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct FileOwner {
    /// The topic.
    pub topic: [u8; 16],
    /// The partition.
    pub partition: i32,
    /// The offset of the first record that may lie in it.
    pub base: i64,
    /// One past the last record in it.
    pub end: i64,
    /// Bytes of runs in it.
    pub written: u64,
    /// Runs in it.
    pub runs: u64,
    /// The CRC of the header of its last run; 0 before the first.
    pub last_crc: u32,
    /// Whether no further run goes into it.
    pub sealed: bool,
    /// Append time of its first record, milliseconds since the Unix epoch.
    pub append_first_ms: i64,
    /// Append time of its last record.
    pub append_last_ms: i64,
    /// The latest timestamp of any record in it.
    pub max_timestamp_ms: i64,
}

/// How much a checkpoint holds; its size follows from nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Logs.
    pub logs: usize,
    /// Small extents of all logs.
    pub extents: usize,
    /// Producers of all logs.
    pub producers: usize,
    /// Remembered batches of all producers.
    pub batches: usize,
    /// Data files.
    pub files: usize,
}

impl Contents {
    /// What a checkpoint holds.
    pub fn of(body: &CheckpointBody) -> Contents {
        let mut contents = Contents { logs: body.logs.len(), files: body.files.len(), ..Contents::default() };
        for log in &body.logs {
            contents.extents += log.extents.len();
            contents.producers += log.producers.len();
            contents.batches += log.producers.iter().map(|producer| producer.batches.len()).sum::<usize>();
        }
        contents
    }

    /// Bytes of such a checkpoint, in whole blocks: as many as [`encode`] makes.
    pub const fn encoded_bytes(&self) -> usize {
        let body = size_of::<ArchivedCheckpointBody>()
            + self.logs * size_of::<ArchivedLogState>()
            + self.extents * size_of::<ArchivedExtentPlace>()
            + self.producers * size_of::<ArchivedProducerState>()
            + self.batches * size_of::<ArchivedProducerBatch>()
            + self.files * size_of::<ArchivedFileState>();
        whole_blocks(CHECKPOINT_HEADER_BYTES + body)
    }
}

/// The bytes of a checkpoint, in whole blocks.
pub fn encode(header: &CheckpointHeader, body: &CheckpointBody) -> Vec<u8> {
    let archive =
        rkyv::to_bytes::<rkyv::rancor::Error>(body).expect("an archive in memory has nothing to fail on");
    let mut out = vec![0; whole_blocks(CHECKPOINT_HEADER_BYTES + archive.len())];
    out[CHECKPOINT_HEADER_BYTES..CHECKPOINT_HEADER_BYTES + archive.len()].copy_from_slice(&archive);
    let raw = Raw {
        magic: MAGIC,
        format: U16::new(FORMAT),
        header_len: U16::new(CHECKPOINT_HEADER_BYTES as u16),
        cluster: header.identity.cluster.0,
        node: I32::new(header.identity.node.0),
        incarnation: U32::new(header.incarnation.0),
        journal: U32::new(header.identity.journal.0),
        body_crc: U32::new(crc32c::crc32c(&out[CHECKPOINT_HEADER_BYTES..])),
        sequence: U64::new(header.sequence.0),
        hash: U64::new(header.hash),
        next_at: U64::new(header.next_at),
        body_bytes: U64::new(archive.len() as u64),
        reserved: [0; 52],
        header_crc: U32::new(0),
    };
    out[..CHECKPOINT_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    header::seal(&mut out[..CHECKPOINT_HEADER_BYTES]);
    out
}

/// Reads and checks a header at the start of `bytes`. Returns it with the bytes of the whole checkpoint, a multiple of the
/// block.
pub fn decode_header(bytes: &[u8]) -> Result<(CheckpointHeader, u64), DiskError> {
    let raw: &Raw = header::open(bytes, MAGIC, "checkpoint header")?;
    if raw.reserved != [0; 52] {
        return Err(DiskError::bad("checkpoint reserved bytes", 72));
    }
    let header = CheckpointHeader {
        identity: JournalIdentity {
            cluster: ClusterId(raw.cluster),
            node: NodeId(raw.node.get()),
            journal: JournalId(raw.journal.get()),
        },
        incarnation: Incarnation(raw.incarnation.get()),
        sequence: FrameSequence(raw.sequence.get()),
        hash: raw.hash.get(),
        next_at: raw.next_at.get(),
    };
    let limit = (isize::MAX as u64) / 2;
    let body = raw.body_bytes.get();
    if body > limit {
        return Err(DiskError::bad("checkpoint length", 64));
    }
    Ok((header, whole_blocks(CHECKPOINT_HEADER_BYTES + body as usize) as u64))
}

/// Reads a checkpoint at the start of `bytes` and checks all of it.
pub fn decode(bytes: &[u8]) -> Result<(CheckpointHeader, CheckpointBody), DiskError> {
    let (header, total) = decode_header(bytes)?;
    let whole = usize::try_from(total)
        .ok()
        .and_then(|total| bytes.get(..total))
        .ok_or(DiskError::short("checkpoint body", bytes.len()))?;
    let covered = &whole[CHECKPOINT_HEADER_BYTES..];
    let (raw, _) = Raw::ref_from_prefix(bytes).expect("the header was read");
    if crc32c::crc32c(covered) != raw.body_crc.get() {
        return Err(DiskError::crc("checkpoint body", CHECKPOINT_HEADER_BYTES));
    }
    let mut archive = rkyv::util::AlignedVec::<16>::new();
    archive.extend_from_slice(&covered[..raw.body_bytes.get() as usize]);
    let body = rkyv::from_bytes::<CheckpointBody, rkyv::rancor::Error>(&archive)
        .map_err(|_| DiskError::bad("checkpoint body", CHECKPOINT_HEADER_BYTES))?;
    Ok((header, body))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::disk::BLOCK;

    fn example() -> (CheckpointHeader, CheckpointBody) {
        let header = CheckpointHeader {
            identity: JournalIdentity { cluster: ClusterId([1; 16]), node: NodeId(2), journal: JournalId(3) },
            incarnation: Incarnation(4),
            sequence: FrameSequence(99),
            hash: 0x0102_0304_0506_0708,
            next_at: 8192,
        };
        let body = CheckpointBody {
            logs: vec![LogState {
                topic: [7; 16],
                partition: 1,
                start: 0,
                appended: 12,
                append_time_ms: 1000,
                extents: vec![ExtentPlace {
                    base: 10,
                    end: 12,
                    frame: 98,
                    frame_at: 4096,
                    at: 104,
                    bytes: 300,
                    crc: 5,
                }],
                producers: vec![ProducerState {
                    producer: 5,
                    epoch: 0,
                    batches: vec![ProducerBatch {
                        base_sequence: 0,
                        record_count: 2,
                        base: 10,
                        append_time_ms: 1000,
                    }],
                }],
                forgotten: Some((3, 1)),
            }],
            files: vec![
                FileState { file: 1 << 32, generation: 1, bytes: 1 << 20, freed_by: 9, owner: None },
                FileState {
                    file: (1 << 32) + 1,
                    generation: 2,
                    bytes: 1 << 20,
                    freed_by: 0,
                    owner: Some(FileOwner {
                        topic: [7; 16],
                        partition: 1,
                        base: 0,
                        end: 10,
                        written: 8192,
                        runs: 2,
                        last_crc: 77,
                        sealed: false,
                        append_first_ms: 900,
                        append_last_ms: 950,
                        max_timestamp_ms: 940,
                    }),
                },
            ],
            wall_ms: 1_700_000_000_000,
        };
        (header, body)
    }

    #[test]
    fn golden_bytes_of_a_checkpoint() {
        let (header, body) = example();
        let bytes = encode(&header, &body);
        let hex: String = bytes[..72].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(bytes.len(), BLOCK);
        assert_eq!(
            hex,
            concat!(
                "5447637001008000010101010101010101010101010101010200000004000000030000004707cef3",
                "6300000000000000",
                "0807060504030201",
                "0020000000000000",
                "d001000000000000"
            )
        );
    }

    #[test]
    fn a_checkpoint_reads_back_as_written_and_every_flipped_byte_is_noticed() {
        let (header, body) = example();
        let good = encode(&header, &body);
        assert_eq!(decode(&good), Ok((header, body)));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
        assert!(decode(&vec![0; BLOCK]).is_err());
    }

    proptest! {
        #[test]
        fn the_size_of_a_checkpoint_follows_from_what_it_holds(
            shape in proptest::collection::vec((0usize..40, proptest::collection::vec(0usize..20, 0..12)), 0..12),
            files in proptest::collection::vec(any::<bool>(), 0..200),
        ) {
            let (header, example) = example();
            let (log, [free, owned]) = (&example.logs[0], [&example.files[0], &example.files[1]]);
            let producer = |batches| ProducerState {
                batches: vec![log.producers[0].batches[0]; batches],
                ..log.producers[0].clone()
            };
            let logs = shape.into_iter().map(|(extents, producers)| LogState {
                extents: vec![log.extents[0]; extents],
                producers: producers.into_iter().map(producer).collect(),
                ..log.clone()
            });
            let files = files.into_iter().map(|is_owned| if is_owned { owned } else { free }.clone());
            let body = CheckpointBody { logs: logs.collect(), files: files.collect(), wall_ms: 1 };
            prop_assert_eq!(encode(&header, &body).len(), Contents::of(&body).encoded_bytes());
        }

        #[test]
        fn a_sound_checksum_around_a_broken_archive_is_refused_without_a_panic(at in 0usize..600, value: u8) {
            let (header, body) = example();
            let mut bytes = encode(&header, &body);
            bytes[CHECKPOINT_HEADER_BYTES + at] = value;
            let crc = crc32c::crc32c(&bytes[CHECKPOINT_HEADER_BYTES..]).to_le_bytes();
            bytes[36..40].copy_from_slice(&crc);
            header::seal(&mut bytes[..CHECKPOINT_HEADER_BYTES]);
            let _ = decode(&bytes);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = decode(&bytes);
        }
    }
}
