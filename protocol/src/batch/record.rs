//! The records inside a batch, read where they lie.
//!
//! A record: `length varint | attributes i8 | timestamp_delta varlong | offset_delta varint | key_length varint | key |
//! value_length varint | value | headers_count varint | headers`; a header: `key_length varint | key | value_length
//! varint | value`. A length of -1 is null, which is not the same as empty.

use std::borrow::Cow;

use super::{BatchHeader, TimestampType};
use crate::code::{DecodeError, DecodeErrorKind, Reader};
use crate::ids::Offset;

/// Bytes of the smallest record: null key, null value, no headers.
pub(super) const LEN_MIN: usize = 7;
/// Bytes of the smallest header: empty key, null value.
const HEADER_LEN_MIN: usize = 2;

/// One record, borrowed from its batch.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Its place in the partition.
    pub offset: Offset,
    /// Milliseconds since the Unix epoch, by the clock that the batch names; -1: none.
    pub timestamp_ms: i64,
    /// Null is distinct from empty.
    pub key: Option<&'a [u8]>,
    /// Null is distinct from empty; a null value is a tombstone where topics are compacted.
    pub value: Option<&'a [u8]>,
    headers: Reader<'a>,
    headers_count: usize,
}

/// A header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name, UTF-8 by Kafka's rules but not checked by everybody who writes it.
    pub key: &'a [u8],
    /// Null is distinct from empty.
    pub value: Option<&'a [u8]>,
}

impl<'a> Header<'a> {
    /// The name as text, with a replacement character for bytes that are not UTF-8.
    pub fn key_text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.key)
    }
}

impl<'a> Record<'a> {
    /// How many headers there are.
    pub fn headers_count(&self) -> usize {
        self.headers_count
    }

    /// The headers, in their order; keys may repeat.
    pub fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let mut r = self.headers.clone();
        // All were read once when the record was, so none is missing here.
        (0..self.headers_count).map_while(move |_| read_header(&mut r).ok())
    }
}

/// Goes through the records of a batch. After an error it ends.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    reader: Reader<'a>,
    header: BatchHeader,
    left: i32,
    delta_before: i32,
}

impl<'a> Records<'a> {
    /// The records in `bytes`, unpacked, of the batch with this header; errors name places counted from `at`.
    pub fn new(header: &BatchHeader, bytes: &'a [u8], at: usize) -> Records<'a> {
        Records {
            reader: Reader::new_at(bytes, at),
            header: *header,
            left: header.records_count,
            delta_before: -1,
        }
    }

    fn read(&mut self) -> Result<Record<'a>, DecodeError> {
        let at = self.reader.at();
        let length = read_length(&mut self.reader, "record.length")?;
        let mut r = self.reader.sub("record", length.unwrap_or(0))?;
        r.u8("record.attributes")?;
        let timestamp_delta = r.varlong("record.timestamp_delta")?;
        let offset_delta = r.varint("record.offset_delta")?;
        if offset_delta <= self.delta_before || offset_delta > self.header.last_offset_delta {
            return Err(DecodeError::rule("record.offset_delta", at, "does not rise within the batch"));
        }
        self.delta_before = offset_delta;
        let key = read_bytes(&mut r, "record.key")?;
        let value = read_bytes(&mut r, "record.value")?;
        let at = r.at();
        let count = r.varint("record.headers_count")?;
        let limit = (r.left() / HEADER_LEN_MIN) as u64;
        if count < 0 || count as u64 > limit {
            let kind = DecodeErrorKind::AboveLimit { limit, found: u64::from(count as u32) };
            return Err(DecodeError::new("record.headers_count", at, kind));
        }
        let headers = r.clone();
        for _ in 0..count {
            read_header(&mut r)?;
        }
        r.end("record")?;
        let timestamp_ms = match self.header.timestamp_type {
            TimestampType::Create => self.header.base_timestamp_ms.wrapping_add(timestamp_delta),
            TimestampType::Append => self.header.max_timestamp_ms,
        };
        let offset = self.header.base_offset.plus(i64::from(offset_delta));
        Ok(Record { offset, timestamp_ms, key, value, headers, headers_count: count as usize })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let end = self.reader.end("records");
            self.reader.rest();
            return end.err().map(Err);
        }
        self.left -= 1;
        let record = self.read();
        if record.is_err() {
            self.left = 0;
            self.reader.rest();
        }
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The count comes from outside; only the bytes that are there can become records.
        (0, Some((self.left as usize).min(self.reader.left() / LEN_MIN).saturating_add(1)))
    }
}

fn read_header<'a>(r: &mut Reader<'a>) -> Result<Header<'a>, DecodeError> {
    let at = r.at();
    let Some(key) = read_bytes(r, "header.key")? else {
        return Err(DecodeError::rule("header.key", at, "is null"));
    };
    Ok(Header { key, value: read_bytes(r, "header.value")? })
}

#[inline]
fn read_bytes<'a>(r: &mut Reader<'a>, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
    read_length(r, field)?.map(|length| r.bytes(field, length)).transpose()
}

#[inline]
fn read_length(r: &mut Reader<'_>, field: &'static str) -> Result<Option<usize>, DecodeError> {
    let at = r.at();
    match r.varint(field)? {
        -1 => Ok(None),
        length if length < 0 => {
            let kind = DecodeErrorKind::BelowLimit { limit: -1, found: i64::from(length) };
            Err(DecodeError::new(field, at, kind))
        }
        length => Ok(Some(length as usize)),
    }
}
