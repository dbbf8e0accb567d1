//! What is checked of record batches, their records and their codecs.

use tidegate_protocol::batch::compression::{Packer, UnpackError, records, unpack};
use tidegate_protocol::batch::{
    self, BatchBuilder, BatchOrigin, BatchView, Batches, Compression, HEAD_LEN, Header, Record,
};
use tidegate_protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};

use super::Outcome;
use super::measure::bounded;

/// Bytes of records that a small batch may become.
const UNPACKED_MAX: usize = 32 << 10;
/// Bytes of memory for the text of an error.
const ERROR_BYTES: usize = 1 << 10;
/// Bytes of memory of a gzip decoder: window, tables and buffers.
const GZIP_BYTES: usize = 128 << 10;
/// Bytes of memory of an lz4 decoder: a block of the largest size (4 MiB) packed and unpacked, and the window before it.
const LZ4_BYTES: usize = 13 << 20;
/// Bytes of memory of a zstd decoder: the window that every decoder grants (8 MiB), in a ring that grows by doubling, and its
/// blocks and tables.
const ZSTD_BYTES: usize = 20 << 20;

/// Batches back to back, and every record in them.
pub fn batches(bytes: &[u8]) -> Outcome {
    let mut outcome = Outcome::Refused;
    let mut at = 0;
    let whole = bounded("going through batches", 0, || Batches::new(bytes).all(|batch| batch.is_ok()));
    assert_eq!(batch::heads_crc(bytes).is_ok(), whole);
    for batch in Batches::new(bytes) {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                assert!(!error.to_string().is_empty() && error.code().retry() == error.code().retry());
                break;
            }
        };
        assert_eq!(batch.bytes(), &bytes[at..at + batch.header().len], "a batch takes what it says");
        at += batch.bytes().len();
        one(&batch);
        outcome = Outcome::Taken;
    }
    if whole {
        assert_eq!(at, bytes.len(), "all bytes belong to a batch");
    }
    outcome
}

fn one(batch: &BatchView<'_>) {
    let header = *batch.header();
    assert!(header.base_offset.0 >= 0 && header.last_offset() >= header.base_offset);
    assert!(header.end_offset() > header.last_offset());
    let is_right = batch.verify_crc().is_ok();
    if is_right {
        assert_eq!(batch.whole_crc(), crc32c::crc32c(batch.bytes()), "the checksum of the whole batch");
    }
    let from_client = batch.check_from_client(1 << 20).is_ok();
    if from_client {
        assert!(header.records_count >= 1 && header.last_offset_delta == header.records_count - 1);
        assert!(header.producer_id == ProducerId::NONE || header.base_sequence.0 >= 0);
    }
    placed(batch, is_right);
    let mut scratch = Vec::new();
    match records(batch, UNPACKED_MAX, &mut scratch) {
        Err(UnpackError::TooLarge { limit }) => assert_eq!(limit, UNPACKED_MAX),
        Err(error @ UnpackError::Corrupt { .. }) => assert!(!error.to_string().is_empty()),
        Ok(records) => {
            // The count comes from outside: it must not make room for more than the bytes can hold.
            let packed = batch.records_bytes().len().max(UNPACKED_MAX);
            assert!(records.size_hint().1.is_some_and(|most| most <= packed / 7 + 1), "room for records");
            let mut read = Vec::with_capacity(packed / 7 + 2);
            let result = bounded("reading records", 0, || {
                for record in records {
                    read.push(record?);
                }
                Ok::<_, tidegate_protocol::code::DecodeError>(())
            });
            check_records(&header, &read);
            if result.is_ok() {
                assert_eq!(read.len(), header.records_count as usize, "as many records as the header says");
                if !read.is_empty() {
                    built_again(&read);
                }
            }
        }
    }
    if batch.records().is_ok() {
        assert_eq!(header.compression, Compression::None);
    }
}

fn check_records(header: &batch::BatchHeader, read: &[Record<'_>]) {
    let mut next = header.base_offset;
    for record in read {
        assert!(record.offset >= next && record.offset <= header.last_offset(), "offsets rise in the batch");
        next = record.offset.plus(1);
        let headers = bounded("reading headers", 0, || record.headers().count());
        assert_eq!(headers, record.headers_count());
    }
}

/// What the broker writes into a batch keeps it a batch with the right checksum.
fn placed(batch: &BatchView<'_>, is_right: bool) {
    let mut bytes = batch.bytes().to_vec();
    batch::set_place(&mut bytes, Offset(77), LeaderEpoch(5));
    if let Ok(placed) = BatchView::parse(&bytes) {
        assert_eq!((placed.header().base_offset, placed.header().leader_epoch), (Offset(77), LeaderEpoch(5)));
        assert_eq!(placed.verify_crc().is_ok(), is_right, "a place is not covered by the checksum");
    }
    let mut bytes = batch.bytes().to_vec();
    batch::set_append_time(&mut bytes, 1_780_000_000_123);
    let timed = BatchView::parse(&bytes).expect("a batch with an append time");
    assert_eq!(timed.header().max_timestamp_ms, 1_780_000_000_123);
    assert_eq!(timed.verify_crc().is_ok(), is_right, "the checksum follows the append time");
    let origin = BatchOrigin {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(1),
        base_sequence: Sequence(i32::MAX),
    };
    batch::set_origin(&mut bytes, origin);
    let owned = BatchView::parse(&bytes).expect("a batch with an origin");
    assert!(owned.verify_crc().is_ok() && owned.header().producer_id == ProducerId(9));
    assert!(owned.header().last_sequence().0 >= 0, "sequences wrap to 0");
    assert_eq!(bytes[HEAD_LEN + 40..], batch.bytes()[HEAD_LEN + 40..], "the records stay as they are");
}

/// The records, written anew, are the same ones.
fn built_again(read: &[Record<'_>]) {
    let mut builder = BatchBuilder::new(Vec::new());
    for record in read {
        let headers: Vec<Header<'_>> = record.headers().collect();
        let mut texts = Vec::with_capacity(headers.len());
        for header in &headers {
            let Ok(key) = std::str::from_utf8(header.key) else { return };
            texts.push((key, header.value));
        }
        let len = builder.len_of(record.timestamp_ms, record.key, record.value, texts.iter().copied());
        let before = builder.len();
        builder.push(record.timestamp_ms, record.key, record.value, texts.iter().copied());
        assert_eq!(builder.len(), before + len, "a record takes what was measured");
    }
    let bytes = builder.finish(BatchOrigin::NONE);
    let batch = BatchView::parse(&bytes).expect("a batch that was built");
    batch.verify_crc().expect("its checksum");
    let mut same = 0;
    for (old, new) in read.iter().zip(batch.records().expect("not packed")) {
        let new = new.expect("a record that was built");
        assert_eq!((old.timestamp_ms, old.key, old.value), (new.timestamp_ms, new.key, new.value));
        assert!(old.headers().eq(new.headers()), "headers of a record");
        same += 1;
    }
    assert_eq!(same, read.len());
}

/// A gzip stream.
pub fn gzip(bytes: &[u8]) -> Outcome {
    codec(Compression::Gzip, GZIP_BYTES, bytes)
}

/// Snappy, in xerial's blocks or raw.
pub fn snappy(bytes: &[u8]) -> Outcome {
    codec(Compression::Snappy, 0, bytes)
}

/// An lz4 frame.
pub fn lz4(bytes: &[u8]) -> Outcome {
    codec(Compression::Lz4, LZ4_BYTES, bytes)
}

/// A zstd frame.
pub fn zstd(bytes: &[u8]) -> Outcome {
    codec(Compression::Zstd, ZSTD_BYTES, bytes)
}

/// Unpacking keeps its limit exactly and takes no more memory than that and what the codec itself needs; what comes out comes
/// back from what is packed of it.
fn codec(compression: Compression, own_bytes: usize, bytes: &[u8]) -> Outcome {
    let mut out = Vec::new();
    let bound = 2 * UNPACKED_MAX + own_bytes + ERROR_BYTES;
    let result = bounded("unpacking", bound, || unpack(compression, bytes, UNPACKED_MAX, &mut out));
    match result {
        Err(UnpackError::TooLarge { limit }) => {
            assert_eq!(limit, UNPACKED_MAX);
            return Outcome::Refused;
        }
        Err(error @ UnpackError::Corrupt { .. }) => {
            assert!(!error.to_string().is_empty());
            return Outcome::Refused;
        }
        Ok(()) => assert!(out.len() <= UNPACKED_MAX, "{} bytes came out", out.len()),
    }
    let mut exact = Vec::new();
    unpack(compression, bytes, out.len(), &mut exact).expect("the limit may be met");
    assert_eq!(exact, out);
    if let Some(less) = out.len().checked_sub(1) {
        let result = unpack(compression, bytes, less, &mut Vec::new());
        assert!(matches!(result, Err(UnpackError::TooLarge { limit }) if limit == less), "{result:?}");
    }
    let mut packer = Packer::default();
    if let Ok(packed) = packer.pack(compression, &out) {
        let mut again = Vec::new();
        unpack(compression, packed, UNPACKED_MAX, &mut again).expect("what was packed");
        assert_eq!(again, out, "what was packed comes back");
    }
    Outcome::Taken
}
