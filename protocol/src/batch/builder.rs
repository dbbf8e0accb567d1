//! Writes a batch record by record into one buffer.

use zerocopy::IntoBytes;
use zerocopy::big_endian::{I16, I32, I64, U32};

use super::{Compression, HEAD_LEN, HEADER_LEN, LENGTH_END, Layout, MAGIC};
use crate::code::{Writer, varint_len, varlong_len};
use crate::crc;
use crate::ids::{ProducerEpoch, ProducerId, Sequence};

/// Who a batch is from, for the broker to tell a repetition from something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOrigin {
    /// The producer, or none.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// The sequence of the first record.
    pub base_sequence: Sequence,
}

impl BatchOrigin {
    /// From nobody: the broker takes every batch as new.
    pub const NONE: BatchOrigin = BatchOrigin {
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
    };
}

/// A batch that grows. Records are encoded in place; nothing is allocated for one but the growth of the buffer.
///
/// Invariant: `buf[start..]` is room for a header followed by `count` whole records.
#[derive(Debug)]
pub struct BatchBuilder {
    buf: Vec<u8>,
    start: usize,
    count: i32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
}

impl BatchBuilder {
    /// An empty batch behind whatever `buf` holds, such as nothing, other batches or the head of a frame.
    pub fn new(mut buf: Vec<u8>) -> BatchBuilder {
        let start = buf.len();
        buf.resize(start + HEADER_LEN, 0);
        BatchBuilder { buf, start, count: 0, base_timestamp_ms: -1, max_timestamp_ms: -1 }
    }

    /// Bytes of the batch if it were finished now, uncompressed.
    pub fn len(&self) -> usize {
        self.buf.len() - self.start
    }

    /// Whether there is no record yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Records so far.
    pub fn records_count(&self) -> i32 {
        self.count
    }

    /// Bytes by which the batch would grow with this record.
    pub fn len_of<'h>(
        &self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl IntoIterator<Item = (&'h str, Option<&'h [u8]>)>,
    ) -> usize {
        let (headers_count, headers_len) = measure(headers);
        let len = self.body_len(self.timestamp_delta(timestamp_ms), key, value, headers_count, headers_len);
        varint_len(len as i32) + len
    }

    /// Adds a record. `timestamp_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Panics
    /// If the batch would reach 2^31 bytes or records; limits far below that are checked by [`BatchBuilder::len_of`].
    pub fn push<'h, H>(&mut self, timestamp_ms: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: H)
    where
        H: IntoIterator<Item = (&'h str, Option<&'h [u8]>)> + Clone,
    {
        let timestamp_delta = self.timestamp_delta(timestamp_ms);
        let (headers_count, headers_len) = measure(headers.clone());
        let body_len = self.body_len(timestamp_delta, key, value, headers_count, headers_len);
        assert!(self.len() + body_len < i32::MAX as usize - 5, "a batch ends below 2^31 bytes");
        if self.count == 0 {
            self.base_timestamp_ms = timestamp_ms;
            self.max_timestamp_ms = timestamp_ms;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        let mut w = Writer::new(&mut self.buf);
        w.varint(body_len as i32);
        let body_at = w.len();
        w.u8(0);
        w.varlong(timestamp_delta);
        w.varint(self.count);
        put_bytes(&mut w, key);
        put_bytes(&mut w, value);
        w.varint(headers_count);
        for (key, value) in headers {
            put_bytes(&mut w, Some(key.as_bytes()));
            put_bytes(&mut w, value);
        }
        debug_assert_eq!(w.len() - body_at, body_len, "the length was measured before");
        self.count += 1;
    }

    /// Ends the batch: the buffer given to [`BatchBuilder::new`] with the batch behind what it held.
    ///
    /// # Panics
    /// If there is no record.
    pub fn finish(mut self, origin: BatchOrigin) -> Vec<u8> {
        self.write_header(origin, Compression::None);
        self.buf
    }

    /// Ends the batch with its records packed. Should packing not make them smaller, they stay as they are.
    ///
    /// # Errors
    /// If the codec cannot be written by this build.
    #[cfg(feature = "compression")]
    pub fn finish_packed(
        mut self,
        origin: BatchOrigin,
        compression: Compression,
        packer: &mut super::compression::Packer,
    ) -> Result<Vec<u8>, super::compression::PackError> {
        let records_at = self.start + HEADER_LEN;
        let packed = packer.pack(compression, &self.buf[records_at..])?;
        let smaller = packed.len() < self.buf.len() - records_at;
        if smaller {
            self.buf.truncate(records_at);
            self.buf.extend_from_slice(packed);
        }
        self.write_header(origin, if smaller { compression } else { Compression::None });
        Ok(self.buf)
    }

    fn write_header(&mut self, origin: BatchOrigin, compression: Compression) {
        assert!(self.count > 0, "a batch has at least one record");
        let batch = &mut self.buf[self.start..];
        let mut layout = Layout {
            base_offset: I64::ZERO,
            length: I32::new((batch.len() - LENGTH_END) as i32),
            leader_epoch: I32::new(-1),
            magic: MAGIC,
            crc: U32::ZERO,
            attributes: I16::new(compression as i16),
            last_offset_delta: I32::new(self.count - 1),
            base_timestamp: I64::new(self.base_timestamp_ms),
            max_timestamp: I64::new(self.max_timestamp_ms),
            producer_id: I64::new(origin.producer_id.0),
            producer_epoch: I16::new(origin.producer_epoch.0),
            base_sequence: I32::new(origin.base_sequence.0),
            records_count: I32::new(self.count),
        };
        layout.crc = U32::new(crc::append(crc::of(&layout.as_bytes()[HEAD_LEN..]), &batch[HEADER_LEN..]));
        batch[..HEADER_LEN].copy_from_slice(layout.as_bytes());
    }

    fn timestamp_delta(&self, timestamp_ms: i64) -> i64 {
        if self.count == 0 { 0 } else { timestamp_ms.wrapping_sub(self.base_timestamp_ms) }
    }

    fn body_len(
        &self,
        timestamp_delta: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers_count: i32,
        headers_len: usize,
    ) -> usize {
        1 + varlong_len(timestamp_delta)
            + varint_len(self.count)
            + bytes_len(key)
            + bytes_len(value)
            + varint_len(headers_count)
            + headers_len
    }
}

fn measure<'h>(headers: impl IntoIterator<Item = (&'h str, Option<&'h [u8]>)>) -> (i32, usize) {
    let mut count = 0;
    let mut len = 0;
    for (key, value) in headers {
        count += 1;
        len += bytes_len(Some(key.as_bytes())) + bytes_len(value);
    }
    (count, len)
}

#[inline]
fn bytes_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varint_len(bytes.len() as i32) + bytes.len())
}

#[inline]
fn put_bytes(w: &mut Writer<'_>, bytes: Option<&[u8]>) {
    match bytes {
        None => w.varint(-1),
        Some(bytes) => {
            w.varint(bytes.len() as i32);
            w.bytes(bytes);
        }
    }
}
