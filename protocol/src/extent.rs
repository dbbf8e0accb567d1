//! An extent: consecutive batches of one log behind one header. The unit of disk and of replication: the same bytes in a
//! journal frame, in a data file and on every node, so nothing in it belongs to a node.
//!
//! Layout in docs/DISK_FORMAT.md. The header has a CRC of its own; the payload's CRC is a plain CRC32C over all batches, which
//! [`payload_crc`] puts together from the batches' own, already verified CRCs, so that large payloads are read once.

use zerocopy::little_endian::{I32, I64, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk::{DiskError, FORMAT, header};
use crate::ids::{LeaderEpoch, Offset, PartitionId, TopicId, TopicPartition};

/// Bytes of an extent's header.
pub const EXTENT_HEADER_BYTES: usize = 96;
/// Bytes at the start of every batch that its own CRC does not cover.
pub const BATCH_HEAD_BYTES: usize = 21;

const MAGIC: [u8; 4] = *b"TGex";

/// Which of a partition's logs an extent belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogKind {
    /// The records.
    Data = 0,
    /// Leases and acknowledgements; reserved.
    State = 1,
}

/// What an extent says about its batches.
///
/// Invariants: `base < end`, `batch_count >= 1`, `byte_len >= 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentHeader {
    /// Whose batches.
    pub log: TopicPartition,
    /// Which of the partition's logs.
    pub kind: LogKind,
    /// [`ExtentHeader::TRANSACTIONAL`], [`ExtentHeader::CONTROL`], [`ExtentHeader::GAPS`].
    pub flags: u16,
    /// The epoch in which they were appended.
    pub leader_epoch: LeaderEpoch,
    /// The first record's offset.
    pub base: Offset,
    /// One past the last record's offset.
    pub end: Offset,
    /// Batches.
    pub batch_count: u32,
    /// Bytes of all batches.
    pub byte_len: u32,
    /// When they were appended, milliseconds since the Unix epoch; never falls within a log.
    pub append_time_ms: i64,
    /// The latest timestamp of any record in them, milliseconds since the Unix epoch.
    pub max_timestamp_ms: i64,
    /// CRC32C of all batches.
    pub payload_crc: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    format: U16,
    header_len: U16,
    topic: [u8; 16],
    partition: I32,
    kind: u8,
    reserved_a: u8,
    flags: U16,
    leader_epoch: I32,
    batch_count: U32,
    base: I64,
    end: I64,
    append_time_ms: I64,
    max_timestamp_ms: I64,
    byte_len: U32,
    payload_crc: U32,
    reserved_b: [u8; 12],
    header_crc: U32,
}

const _: () = assert!(size_of::<Raw>() == EXTENT_HEADER_BYTES);

impl ExtentHeader {
    /// Flag: batches of a transaction.
    pub const TRANSACTIONAL: u16 = 1;
    /// Flag: control batches.
    pub const CONTROL: u16 = 2;
    /// Flag: not every offset from `base` to `end` has a record.
    pub const GAPS: u16 = 4;

    /// Bytes of the whole extent, header and payload.
    pub fn total_bytes(&self) -> usize {
        EXTENT_HEADER_BYTES + self.byte_len as usize
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; EXTENT_HEADER_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            format: U16::new(FORMAT),
            header_len: U16::new(EXTENT_HEADER_BYTES as u16),
            topic: self.log.topic.0,
            partition: I32::new(self.log.partition.0),
            kind: self.kind as u8,
            reserved_a: 0,
            flags: U16::new(self.flags),
            leader_epoch: I32::new(self.leader_epoch.0),
            batch_count: U32::new(self.batch_count),
            base: I64::new(self.base.0),
            end: I64::new(self.end.0),
            append_time_ms: I64::new(self.append_time_ms),
            max_timestamp_ms: I64::new(self.max_timestamp_ms),
            byte_len: U32::new(self.byte_len),
            payload_crc: U32::new(self.payload_crc),
            reserved_b: [0; 12],
            header_crc: U32::new(0),
        };
        let mut out = [0; EXTENT_HEADER_BYTES];
        out.copy_from_slice(raw.as_bytes());
        header::seal(&mut out);
        out
    }

    /// Reads and checks a header at the start of `bytes`; the payload is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<ExtentHeader, DiskError> {
        let raw: &Raw = header::open(bytes, MAGIC, "extent header")?;
        if raw.reserved_a != 0 || raw.reserved_b != [0; 12] {
            return Err(DiskError::bad("extent reserved bytes", 29));
        }
        let kind = match raw.kind {
            0 => LogKind::Data,
            1 => LogKind::State,
            _ => return Err(DiskError::bad("extent log kind", 28)),
        };
        let header = ExtentHeader {
            log: TopicPartition { topic: TopicId(raw.topic), partition: PartitionId(raw.partition.get()) },
            kind,
            flags: raw.flags.get(),
            leader_epoch: LeaderEpoch(raw.leader_epoch.get()),
            base: Offset(raw.base.get()),
            end: Offset(raw.end.get()),
            batch_count: raw.batch_count.get(),
            byte_len: raw.byte_len.get(),
            append_time_ms: raw.append_time_ms.get(),
            max_timestamp_ms: raw.max_timestamp_ms.get(),
            payload_crc: raw.payload_crc.get(),
        };
        let sound =
            header.base.0 >= 0 && header.base < header.end && header.batch_count > 0 && header.byte_len > 0;
        if !sound || header.flags & !(Self::TRANSACTIONAL | Self::CONTROL | Self::GAPS) != 0 {
            return Err(DiskError::bad("extent bounds", 32));
        }
        Ok(header)
    }

    /// Reads an extent at the start of `bytes` and checks header and payload; the payload is what remains of the extent.
    pub fn decode_whole(bytes: &[u8]) -> Result<(ExtentHeader, &[u8]), DiskError> {
        let header = ExtentHeader::decode(bytes)?;
        let payload = bytes
            .get(EXTENT_HEADER_BYTES..header.total_bytes())
            .ok_or(DiskError::short("extent payload", bytes.len()))?;
        if crc32c::crc32c(payload) != header.payload_crc {
            return Err(DiskError::crc("extent payload", EXTENT_HEADER_BYTES));
        }
        Ok((header, payload))
    }
}

/// The CRC that identifies an extent wherever it lies: that of its header, which holds the payload's.
///
/// # Panics
/// If `extent` is shorter than a header.
pub fn identity_crc(extent: &[u8]) -> u32 {
    header::crc(&extent[..EXTENT_HEADER_BYTES])
}

/// Extends the CRC of a payload by one batch, whose final bytes are `batch` and whose own CRC, over all but its first
/// [`BATCH_HEAD_BYTES`], is known to be right and is `batch_crc`. Small batches are scanned: that is cheaper than combining.
pub fn payload_crc(crc: u32, batch: &[u8], batch_crc: u32) -> u32 {
    const SCAN_BYTES_MAX: usize = 4096;
    if batch.len() <= SCAN_BYTES_MAX {
        return crc32c::crc32c_append(crc, batch);
    }
    let (head, rest) = batch.split_at(BATCH_HEAD_BYTES);
    crate::crc::combine(crate::crc::append(crc, head), batch_crc, rest.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> ExtentHeader {
        ExtentHeader {
            log: TopicPartition { topic: TopicId(*b"0123456789abcdef"), partition: PartitionId(7) },
            kind: LogKind::Data,
            flags: ExtentHeader::TRANSACTIONAL,
            leader_epoch: LeaderEpoch(3),
            base: Offset(1000),
            end: Offset(1010),
            batch_count: 2,
            byte_len: 500,
            append_time_ms: 1_700_000_000_123,
            max_timestamp_ms: 1_700_000_000_000,
            payload_crc: 0x0102_0304,
        }
    }

    #[test]
    fn golden_bytes_of_a_header() {
        let hex: String = example().encode().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "5447657801006000",
                "30313233343536373839616263646566",
                "07000000",
                "00",
                "00",
                "0100",
                "03000000",
                "02000000",
                "e803000000000000",
                "f203000000000000",
                "7b68e5cf8b010000",
                "0068e5cf8b010000",
                "f4010000",
                "04030201",
                "000000000000000000000000",
                "94687988"
            )
        );
    }

    #[test]
    fn every_single_bit_flip_of_a_header_is_noticed_and_zeros_never_decode() {
        let good = example().encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ExtentHeader::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(ExtentHeader::decode(&[0; EXTENT_HEADER_BYTES]).is_err());
    }

    proptest! {
        #[test]
        fn a_header_reads_back_as_written(base in 0i64..1 << 60, count in 1i64..1 << 31, len in 1u32.., crc: u32, epoch: i32) {
            let header = ExtentHeader {
                base: Offset(base), end: Offset(base + count), byte_len: len, payload_crc: crc, leader_epoch: LeaderEpoch(epoch),
                ..example()
            };
            prop_assert_eq!(ExtentHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ExtentHeader::decode_whole(&bytes);
        }

        #[test]
        fn the_combined_crc_is_the_crc_of_the_bytes(sizes in proptest::collection::vec(22usize..9000, 1..5), seed: u8) {
            let mut all = Vec::new();
            let mut crc = 0;
            for (i, size) in sizes.iter().enumerate() {
                let batch: Vec<u8> = (0..*size).map(|n| (n as u8).wrapping_mul(seed).wrapping_add(i as u8)).collect();
                crc = payload_crc(crc, &batch, crc32c::crc32c(&batch[BATCH_HEAD_BYTES..]));
                all.extend_from_slice(&batch);
            }
            prop_assert_eq!(crc, crc32c::crc32c(&all));
        }
    }
}
