//! A run: extents of one log back to back, in whole blocks: the unit of writing to a data file.
//!
//! `header | extent ... | pad header | zeros`. The run's own CRC covers the headers of its extents and the pad; an extent's
//! header covers its payload. So a run is whole if header, inner CRC and every payload CRC are right.

use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK, DiskError, FORMAT, header, whole_blocks};
use crate::extent::{EXTENT_HEADER_BYTES, ExtentHeader};
use crate::ids::{ClusterId, FileId, Generation, Offset, PartitionId, TopicId, TopicPartition};

/// Bytes of a run's header.
pub const RUN_HEADER_BYTES: usize = 128;
/// Bytes of the header of the pad that ends every run.
pub const PAD_HEADER_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"TGrn";
const PAD_MAGIC: [u8; 4] = *b"TGpd";

/// What a run says about itself; node-local.
///
/// Invariants: `base < end`, `bytes` is a multiple of the block, `extents >= 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// The cluster that wrote it.
    pub cluster: ClusterId,
    /// The data file that it lies in.
    pub file: FileId,
    /// The file's generation then.
    pub generation: Generation,
    /// Its number among the runs of this generation, from 0.
    pub sequence: u64,
    /// The CRC of the header of the run before it in the file; 0 for the first.
    pub previous_crc: u32,
    /// Whose extents.
    pub log: TopicPartition,
    /// The first record's offset.
    pub base: Offset,
    /// One past the last record's offset.
    pub end: Offset,
    /// Bytes of the whole run, pad included.
    pub bytes: u32,
    /// Extents in it.
    pub extents: u32,
    /// Append time of the first extent, milliseconds since the Unix epoch.
    pub append_first_ms: i64,
    /// Append time of the last extent.
    pub append_last_ms: i64,
    /// The latest timestamp of any record, milliseconds since the Unix epoch.
    pub max_timestamp_ms: i64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    format: U16,
    header_len: U16,
    cluster: [u8; 16],
    file: U64,
    generation: U32,
    previous_crc: U32,
    sequence: U64,
    topic: [u8; 16],
    partition: I32,
    bytes: U32,
    base: I64,
    end: I64,
    append_first_ms: I64,
    append_last_ms: I64,
    max_timestamp_ms: I64,
    extents: U32,
    inner_crc: U32,
    reserved: [u8; 4],
    header_crc: U32,
}

const _: () = assert!(size_of::<Raw>() == RUN_HEADER_BYTES);

/// Bytes of a run whose extents have `extent_bytes` together.
pub fn run_bytes(extent_bytes: usize) -> usize {
    whole_blocks(RUN_HEADER_BYTES + extent_bytes + PAD_HEADER_BYTES)
}

impl RunHeader {
    /// Completes a run whose extents already lie in `run` from [`RUN_HEADER_BYTES`] to `extents_end`: writes header and pad.
    /// Returns the header's CRC, by which the journal and the next run name this one.
    ///
    /// # Panics
    /// If `run` is not exactly as long as the run must be, or the extents in it are not those that the header counts.
    pub fn finish(&self, run: &mut [u8], extents_end: usize) -> u32 {
        assert_eq!(run.len(), run_bytes(extents_end - RUN_HEADER_BYTES), "a run has its exact length");
        assert_eq!(run.len(), self.bytes as usize, "the header says the run's length");
        let pad = run.len() - extents_end;
        run[extents_end..].fill(0);
        run[extents_end..extents_end + 4].copy_from_slice(&PAD_MAGIC);
        run[extents_end + 4..extents_end + 8].copy_from_slice(&(pad as u32).to_le_bytes());
        let inner_crc = inner_crc(run, self.extents).expect("the extents were just laid out");
        let raw = Raw {
            magic: MAGIC,
            format: U16::new(FORMAT),
            header_len: U16::new(RUN_HEADER_BYTES as u16),
            cluster: self.cluster.0,
            file: U64::new(self.file.0),
            generation: U32::new(self.generation.0),
            previous_crc: U32::new(self.previous_crc),
            sequence: U64::new(self.sequence),
            topic: self.log.topic.0,
            partition: I32::new(self.log.partition.0),
            bytes: U32::new(self.bytes),
            base: I64::new(self.base.0),
            end: I64::new(self.end.0),
            append_first_ms: I64::new(self.append_first_ms),
            append_last_ms: I64::new(self.append_last_ms),
            max_timestamp_ms: I64::new(self.max_timestamp_ms),
            extents: U32::new(self.extents),
            inner_crc: U32::new(inner_crc),
            reserved: [0; 4],
            header_crc: U32::new(0),
        };
        run[..RUN_HEADER_BYTES].copy_from_slice(raw.as_bytes());
        header::seal(&mut run[..RUN_HEADER_BYTES])
    }

    /// Reads and checks a header at the start of `bytes`; nothing behind it is looked at.
    pub fn decode(bytes: &[u8]) -> Result<RunHeader, DiskError> {
        let raw: &Raw = header::open(bytes, MAGIC, "run header")?;
        let header = RunHeader {
            cluster: ClusterId(raw.cluster),
            file: FileId(raw.file.get()),
            generation: Generation(raw.generation.get()),
            sequence: raw.sequence.get(),
            previous_crc: raw.previous_crc.get(),
            log: TopicPartition { topic: TopicId(raw.topic), partition: PartitionId(raw.partition.get()) },
            base: Offset(raw.base.get()),
            end: Offset(raw.end.get()),
            bytes: raw.bytes.get(),
            extents: raw.extents.get(),
            append_first_ms: raw.append_first_ms.get(),
            append_last_ms: raw.append_last_ms.get(),
            max_timestamp_ms: raw.max_timestamp_ms.get(),
        };
        let blocks = header.bytes > 0 && (header.bytes as usize).is_multiple_of(BLOCK);
        if !blocks
            || header.base.0 < 0
            || header.base >= header.end
            || header.extents == 0
            || raw.reserved != [0; 4]
        {
            return Err(DiskError::bad("run bounds", 76));
        }
        Ok(header)
    }

    /// The header's CRC in the bytes of a run.
    ///
    /// # Panics
    /// If `run` is shorter than a header.
    pub fn crc_of(run: &[u8]) -> u32 {
        header::crc(&run[..RUN_HEADER_BYTES])
    }

    /// Reads a run at the start of `bytes` and checks all of it, every payload included. Its extents are contiguous from
    /// `base` to `end` and belong to its log.
    pub fn decode_whole(bytes: &[u8]) -> Result<(RunHeader, Vec<RunExtent>), DiskError> {
        let header = RunHeader::decode(bytes)?;
        let run = bytes.get(..header.bytes as usize).ok_or(DiskError::short("run", bytes.len()))?;
        let wanted = u32::from_le_bytes(run[116..120].try_into().expect("four bytes"));
        if inner_crc(run, header.extents)? != wanted {
            return Err(DiskError::crc("run", 116));
        }
        let mut extents = Vec::new();
        let mut at = RUN_HEADER_BYTES;
        let mut next = header.base;
        for _ in 0..header.extents {
            let (extent, _) = ExtentHeader::decode_whole(&run[at..])?;
            if extent.log != header.log || extent.base != next {
                return Err(DiskError::foreign("extent of a run", at));
            }
            next = extent.end;
            extents.push(RunExtent { at, header: extent });
            at += extent.total_bytes();
        }
        if next != header.end {
            return Err(DiskError::bad("run end", 88));
        }
        Ok((header, extents))
    }
}

/// An extent and where it lies in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunExtent {
    /// Bytes from the start of the run.
    pub at: usize,
    /// Its header.
    pub header: ExtentHeader,
}

/// CRC32C over the headers of all extents, the pad's header and its zeros.
fn inner_crc(run: &[u8], extents: u32) -> Result<u32, DiskError> {
    let mut at = RUN_HEADER_BYTES;
    let mut crc = 0;
    for _ in 0..extents {
        let header = run.get(at..at + EXTENT_HEADER_BYTES).ok_or(DiskError::short("extents of a run", at))?;
        crc = crc32c::crc32c_append(crc, header);
        at += ExtentHeader::decode(header)?.total_bytes();
    }
    let pad =
        run.get(at..).filter(|pad| pad.len() >= PAD_HEADER_BYTES).ok_or(DiskError::short("run pad", at))?;
    let said = u32::from_le_bytes(pad[4..8].try_into().expect("four bytes"));
    let zeros = pad[8..].iter().all(|b| *b == 0);
    if pad[..4] != PAD_MAGIC || said as usize != pad.len() || !zeros {
        return Err(DiskError::bad("run pad", at));
    }
    Ok(crc32c::crc32c_append(crc, pad))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extent::LogKind;
    use crate::ids::LeaderEpoch;

    fn run_of(payloads: &[Vec<u8>]) -> (RunHeader, Vec<u8>) {
        let log = TopicPartition { topic: TopicId([9; 16]), partition: PartitionId(1) };
        let extent_bytes: usize = payloads.iter().map(|p| EXTENT_HEADER_BYTES + p.len()).sum();
        let mut run = vec![0xaa; run_bytes(extent_bytes)];
        let mut at = RUN_HEADER_BYTES;
        for (i, payload) in payloads.iter().enumerate() {
            let header = ExtentHeader {
                log,
                kind: LogKind::Data,
                flags: 0,
                leader_epoch: LeaderEpoch(1),
                base: Offset(10 + i as i64),
                end: Offset(11 + i as i64),
                batch_count: 1,
                byte_len: payload.len() as u32,
                append_time_ms: 5,
                max_timestamp_ms: 6,
                payload_crc: crc32c::crc32c(payload),
            };
            run[at..at + EXTENT_HEADER_BYTES].copy_from_slice(&header.encode());
            run[at + EXTENT_HEADER_BYTES..at + header.total_bytes()].copy_from_slice(payload);
            at += header.total_bytes();
        }
        let header = RunHeader {
            cluster: ClusterId([1; 16]),
            file: FileId(0x1_0000_0002),
            generation: Generation(3),
            sequence: 4,
            previous_crc: 0xdead_beef,
            log,
            base: Offset(10),
            end: Offset(10 + payloads.len() as i64),
            bytes: run.len() as u32,
            extents: payloads.len() as u32,
            append_first_ms: 5,
            append_last_ms: 5,
            max_timestamp_ms: 6,
        };
        header.finish(&mut run, at);
        (header, run)
    }

    #[test]
    fn golden_bytes_of_a_run_header_and_pad() {
        let (_, run) = run_of(&[vec![7; 100]]);
        let hex =
            |range: std::ops::Range<usize>| run[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(run.len(), BLOCK);
        assert_eq!(
            hex(0..128),
            concat!(
                "5447726e01008000",
                "01010101010101010101010101010101",
                "0200000001000000",
                "03000000",
                "efbeadde",
                "0400000000000000",
                "09090909090909090909090909090909",
                "01000000",
                "00100000",
                "0a00000000000000",
                "0b00000000000000",
                "0500000000000000",
                "0500000000000000",
                "0600000000000000",
                "01000000",
                "dafa9a6a",
                "00000000",
                "6984a3e7"
            )
        );
        assert_eq!(hex(324..340), "54477064bc0e00000000000000000000");
    }

    #[test]
    fn every_flipped_byte_of_a_run_is_noticed() {
        let (_, good) = run_of(&[vec![7; 100], vec![8; 50]]);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(RunHeader::decode_whole(&bad).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn a_run_reads_back_as_written(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..5000), 1..6)) {
            let (header, run) = run_of(&payloads);
            let (read, extents) = RunHeader::decode_whole(&run).expect("whole");
            prop_assert_eq!(read, header);
            prop_assert_eq!(extents.len(), payloads.len());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = RunHeader::decode_whole(&bytes);
        }
    }
}
