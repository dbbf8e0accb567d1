//! The codecs of the records in a batch, for those who look inside one: clients and tools. The broker does not.
//!
//! Read is what Kafka's clients write: gzip; snappy in the blocks of xerial's Java library or as one raw block
//! (librdkafka); lz4 and zstd frames. Written is what all of them read. Unpacking is bounded: a small batch that claims to
//! be a large one costs no more than the limit.

use std::fmt;
use std::io::{self, Read, Write};

use super::{BatchView, Compression, HEADER_LEN, Records};

/// In front of xerial's blocks: magic, version, lowest compatible version.
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";
const XERIAL_HEADER_LEN: usize = 16;
/// A copy element of snappy has at least 2 bytes and makes at most 64.
const SNAPPY_RATIO_MAX: usize = 32;
/// The window that RFC 8878 wants every zstd decoder to grant. A frame may ask for more up to the limit of its content: the
/// decoder holds back that much before it gives any of it out, so this bounds its memory.
const ZSTD_WINDOW_GRANTED: u64 = 8 << 20;

/// Why packed records could not be unpacked.
#[derive(Debug)]
pub enum UnpackError {
    /// They would be longer than the limit.
    TooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// They are not what the codec writes.
    Corrupt {
        /// The codec.
        compression: Compression,
        /// What it says.
        cause: String,
    },
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnpackError::TooLarge { limit } => {
                write!(f, "the records of the batch are longer than {limit} bytes when unpacked")
            }
            UnpackError::Corrupt { compression, cause } => {
                write!(f, "the records of the batch are not valid {compression:?}: {cause}")
            }
        }
    }
}

impl std::error::Error for UnpackError {}

/// Why records could not be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackError {
    /// This build has no encoder of the codec: zstd needs the feature `zstd`.
    NotBuilt(Compression),
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::NotBuilt(compression) => {
                write!(f, "this build cannot write {compression:?}; build with the feature `zstd`")
            }
        }
    }
}

impl std::error::Error for PackError {}

/// The records of a batch, packed or not. Those of a packed one are put into `scratch` and are at most `limit` bytes.
pub fn records<'a>(
    batch: &BatchView<'a>,
    limit: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<Records<'a>, UnpackError> {
    let header = batch.header();
    let bytes = match header.compression {
        Compression::None => batch.records_bytes(),
        compression => {
            scratch.clear();
            unpack(compression, batch.records_bytes(), limit, scratch)?;
            &scratch[..]
        }
    };
    Ok(Records::new(header, bytes, HEADER_LEN))
}

/// Appends to `out` what `packed` holds: at most `limit` bytes.
pub fn unpack(
    compression: Compression,
    packed: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), UnpackError> {
    let corrupt = |cause: String| UnpackError::Corrupt { compression, cause };
    match compression {
        Compression::None => {
            if packed.len() > limit {
                return Err(UnpackError::TooLarge { limit });
            }
            out.extend_from_slice(packed);
            Ok(())
        }
        Compression::Gzip => {
            read_bounded(compression, flate2::bufread::MultiGzDecoder::new(packed), limit, out)
        }
        Compression::Snappy => unpack_snappy(packed, limit, out),
        Compression::Lz4 => {
            let mut left = packed;
            read_bounded(compression, lz4_flex::frame::FrameDecoder::new(&mut left), limit, out)?;
            left.is_empty()
                .then_some(())
                .ok_or_else(|| corrupt(format!("{} bytes follow the frame", left.len())))
        }
        Compression::Zstd => {
            let mut left = packed;
            let window_max = ZSTD_WINDOW_GRANTED.max(limit as u64);
            let frame = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut left, window_max)
                .map_err(|error| corrupt(error.to_string()))?;
            read_bounded(compression, frame, limit, out)?;
            left.is_empty()
                .then_some(())
                .ok_or_else(|| corrupt(format!("{} bytes follow the frame", left.len())))
        }
    }
}

fn read_bounded(
    compression: Compression,
    reader: impl Read,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), UnpackError> {
    let before = out.len();
    reader
        .take(limit as u64 + 1)
        .read_to_end(out)
        .map_err(|error| UnpackError::Corrupt { compression, cause: error.to_string() })?;
    if out.len() - before > limit {
        return Err(UnpackError::TooLarge { limit });
    }
    Ok(())
}

fn unpack_snappy(packed: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), UnpackError> {
    let corrupt =
        |cause: &str| UnpackError::Corrupt { compression: Compression::Snappy, cause: cause.to_owned() };
    if !packed.starts_with(XERIAL_MAGIC) {
        return unpack_snappy_block(packed, limit, out);
    }
    let before = out.len();
    let mut left = packed.get(XERIAL_HEADER_LEN..).ok_or_else(|| corrupt("the header is cut off"))?;
    while !left.is_empty() {
        let (len, rest) = left.split_first_chunk().ok_or_else(|| corrupt("a block's length is cut off"))?;
        let len = u32::from_be_bytes(*len) as usize;
        let (block, rest) = rest.split_at_checked(len).ok_or_else(|| corrupt("a block is cut off"))?;
        let used = out.len() - before;
        unpack_snappy_block(block, limit - used, out).map_err(|error| match error {
            UnpackError::TooLarge { .. } => UnpackError::TooLarge { limit },
            error => error,
        })?;
        left = rest;
    }
    Ok(())
}

fn unpack_snappy_block(block: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), UnpackError> {
    let corrupt = |cause: String| UnpackError::Corrupt { compression: Compression::Snappy, cause };
    let len = snap::raw::decompress_len(block).map_err(|error| corrupt(error.to_string()))?;
    if len > limit {
        return Err(UnpackError::TooLarge { limit });
    }
    if len > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(corrupt(format!("{} bytes cannot hold {len}", block.len())));
    }
    let at = out.len();
    out.resize(at + len, 0);
    let unpacked = snap::raw::Decoder::new().decompress(block, &mut out[at..]);
    let unpacked = unpacked.map_err(|error| corrupt(error.to_string()))?;
    out.truncate(at + unpacked);
    Ok(())
}

/// Packs records; keeps its memory from batch to batch.
#[derive(Debug, Default)]
pub struct Packer {
    packed: Vec<u8>,
}

impl Packer {
    /// `plain` packed, until the next call.
    pub fn pack(&mut self, compression: Compression, plain: &[u8]) -> Result<&[u8], PackError> {
        self.packed.clear();
        // The writers below write to memory, which does not fail.
        const TO_MEMORY: &str = "packing into memory does not fail";
        match compression {
            Compression::None => self.packed.extend_from_slice(plain),
            Compression::Gzip => {
                let mut writer =
                    flate2::write::GzEncoder::new(&mut self.packed, flate2::Compression::default());
                writer.write_all(plain).and_then(|()| writer.finish().map(drop)).expect(TO_MEMORY);
            }
            Compression::Snappy => {
                self.packed.resize(snap::raw::max_compress_len(plain.len()), 0);
                let len = snap::raw::Encoder::new().compress(plain, &mut self.packed).expect(TO_MEMORY);
                self.packed.truncate(len);
            }
            Compression::Lz4 => self.pack_lz4(plain).expect(TO_MEMORY),
            Compression::Zstd => self.pack_zstd(plain)?,
        }
        Ok(&self.packed)
    }

    fn pack_lz4(&mut self, plain: &[u8]) -> io::Result<()> {
        // Kafka's Java client reads independent blocks only.
        let info = lz4_flex::frame::FrameInfo::new()
            .block_size(lz4_flex::frame::BlockSize::Max64KB)
            .block_mode(lz4_flex::frame::BlockMode::Independent);
        let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(info, &mut self.packed);
        writer.write_all(plain)?;
        writer.finish().map(drop).map_err(io::Error::other)
    }

    #[cfg(feature = "zstd")]
    fn pack_zstd(&mut self, plain: &[u8]) -> Result<(), PackError> {
        const LEVEL: i32 = 3;
        zstd::stream::copy_encode(plain, &mut self.packed, LEVEL).expect("packing into memory does not fail");
        Ok(())
    }

    #[cfg(not(feature = "zstd"))]
    fn pack_zstd(&mut self, _plain: &[u8]) -> Result<(), PackError> {
        Err(PackError::NotBuilt(Compression::Zstd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchBuilder, BatchOrigin};

    const WRITTEN: &[Compression] = &[
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        #[cfg(feature = "zstd")]
        Compression::Zstd,
    ];

    #[test]
    fn what_is_packed_comes_back_and_a_limit_is_kept() {
        let mut packer = Packer::default();
        let plain: Vec<u8> = (0..300_000u32).map(|i| (i / 100) as u8).collect();
        for &compression in WRITTEN {
            let packed = packer.pack(compression, &plain).expect("built").to_vec();
            let mut out = b"before".to_vec();
            unpack(compression, &packed, plain.len(), &mut out).expect("just packed");
            assert_eq!((&out[..6], out[6..] == plain), (&b"before"[..], true), "{compression:?}");
            let mut out = Vec::new();
            let result = unpack(compression, &packed, plain.len() - 1, &mut out);
            assert!(matches!(result, Err(UnpackError::TooLarge { .. })), "{compression:?}: {result:?}");
            assert!(out.capacity() <= 4 * plain.len(), "{compression:?} took {}", out.capacity());
        }
    }

    #[test]
    fn bytes_cut_off_or_left_over_are_an_error() {
        let mut packer = Packer::default();
        let plain: Vec<u8> = (0..10_000u32).map(|i| (i / 10) as u8).collect();
        for &compression in &WRITTEN[1..] {
            let packed = packer.pack(compression, &plain).expect("built").to_vec();
            let cut = unpack(compression, &packed[..packed.len() - 9], 100_000, &mut Vec::new());
            assert!(matches!(cut, Err(UnpackError::Corrupt { .. })), "{compression:?}: {cut:?}");
            let longer = [&packed[..], b"behind"].concat();
            let longer = unpack(compression, &longer, 100_000, &mut Vec::new());
            assert!(matches!(longer, Err(UnpackError::Corrupt { .. })), "{compression:?}: {longer:?}");
        }
    }

    #[test]
    fn a_snappy_block_that_claims_too_much_costs_nothing() {
        // A length of 2^30 and nothing behind it.
        let claim = [0x80, 0x80, 0x80, 0x80, 4];
        let mut out = Vec::new();
        assert!(unpack(Compression::Snappy, &claim, usize::MAX, &mut out).is_err());
        assert_eq!(out.capacity(), 0);
    }

    #[test]
    fn a_zstd_window_is_granted_up_to_the_limit() {
        // A frame whose window is 16 MiB and whose only block is one byte as it is.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 14 << 3, 1 | 1 << 3, 0, 0, b'x'];
        let mut out = Vec::new();
        unpack(Compression::Zstd, &frame, 16 << 20, &mut out).expect("a window of the limit");
        assert_eq!(out, b"x");
        let refused = unpack(Compression::Zstd, &frame, (16 << 20) - 1, &mut out);
        assert!(matches!(refused, Err(UnpackError::Corrupt { .. })), "{refused:?}");
    }

    #[test]
    fn a_packed_batch_is_read_like_a_plain_one() {
        for &compression in WRITTEN {
            let mut builder = BatchBuilder::new(Vec::new());
            for i in 0..100 {
                builder.push(i, Some(b"the same key"), Some(b"the same value"), []);
            }
            let mut packer = Packer::default();
            let bytes = builder.finish_packed(BatchOrigin::NONE, compression, &mut packer).expect("built");
            let batch = BatchView::parse(&bytes).expect("built");
            batch.verify_crc().expect("built");
            batch.check_from_client(10_000).expect("built");
            assert_eq!(batch.header().compression, compression);
            let mut scratch = Vec::new();
            let records = records(&batch, 10_000, &mut scratch).expect("built");
            assert!(records.map(|r| r.expect("built").timestamp_ms).eq(0..100));
        }
    }

    #[test]
    fn records_that_do_not_shrink_stay_as_they_are() {
        let mut builder = BatchBuilder::new(Vec::new());
        builder.push(1, None, Some(b"x"), []);
        let plain = builder.len();
        let bytes = builder
            .finish_packed(BatchOrigin::NONE, Compression::Gzip, &mut Packer::default())
            .expect("built");
        let batch = BatchView::parse(&bytes).expect("built");
        assert_eq!((batch.header().compression, bytes.len()), (Compression::None, plain));
    }
}
