//! Cursors over bytes: [`Reader`] takes fields from the front and knows where it stands, [`Writer`] appends them.
//!
//! Every read is checked against the bytes that remain, before anything is allocated, so that a count or a length
//! from outside can never make more work than the bytes that came with it.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Why bytes could not be read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The field, by its name in docs/WIRE_FORMAT.md or docs/DISK_FORMAT.md.
    pub field: &'static str,
    /// Where the field begins: bytes from the start of the frame, batch or structure that is read.
    pub at: usize,
    /// What is wrong with it.
    pub kind: DecodeErrorKind,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    /// It needs more bytes than are left.
    Truncated {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// It is above its limit.
    AboveLimit {
        /// The largest value allowed.
        limit: u64,
        /// The value found.
        found: u64,
    },
    /// It is below its least value.
    BelowLimit {
        /// The least value allowed.
        limit: i64,
        /// The value found.
        found: i64,
    },
    /// Its value is none of those that this version knows.
    Unknown {
        /// The value found.
        found: i64,
    },
    /// The checksum over it is not the stored one.
    Checksum {
        /// As stored.
        stored: u32,
        /// As computed over the bytes.
        computed: u32,
    },
    /// Text is not UTF-8.
    NotUtf8,
    /// Bytes are left over behind it.
    LeftOver {
        /// How many.
        bytes: u64,
    },
    /// A reserved field is not zero.
    Reserved,
    /// A variable-length number does not end within its width.
    VarintTooLong,
    /// A flatbuffers table breaks the rules of its format.
    Table,
    /// It breaks a rule, told in a few words.
    Rule(&'static str),
}

impl DecodeError {
    /// An error at `at`, bytes from the start of what is read.
    pub fn new(field: &'static str, at: usize, kind: DecodeErrorKind) -> DecodeError {
        DecodeError { field, at, kind }
    }

    /// A broken rule at `at`.
    pub fn rule(field: &'static str, at: usize, rule: &'static str) -> DecodeError {
        DecodeError { field, at, kind: DecodeErrorKind::Rule(rule) }
    }
}

impl fmt::Display for DecodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DecodeErrorKind::Truncated { needed, left } => write!(f, "needs {needed} bytes, {left} are left"),
            DecodeErrorKind::AboveLimit { limit, found } => write!(f, "is {found}, above the limit {limit}"),
            DecodeErrorKind::BelowLimit { limit, found } => {
                write!(f, "is {found}, below the least value {limit}")
            }
            DecodeErrorKind::Unknown { found } => write!(f, "has the unknown value {found}"),
            DecodeErrorKind::Checksum { stored, computed } => {
                write!(f, "has checksum {computed:#010x}, stored is {stored:#010x}")
            }
            DecodeErrorKind::NotUtf8 => f.write_str("is not UTF-8"),
            DecodeErrorKind::LeftOver { bytes } => write!(f, "is followed by {bytes} bytes too many"),
            DecodeErrorKind::Reserved => f.write_str("is reserved and not zero"),
            DecodeErrorKind::VarintTooLong => f.write_str("does not end within the width of its number"),
            DecodeErrorKind::Table => f.write_str("is not a valid flatbuffers table"),
            DecodeErrorKind::Rule(rule) => f.write_str(rule),
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.field, self.at, self.kind)
    }
}

impl std::error::Error for DecodeError {}

/// Takes fields from the front of borrowed bytes; numbers are little-endian.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, whose first byte is byte 0.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Reads `bytes`, whose first byte is byte `at` of something larger: errors then name places in that.
    pub fn new_at(bytes: &'a [u8], at: usize) -> Reader<'a> {
        Reader { bytes, at }
    }

    /// Where the next field begins.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            let kind = DecodeErrorKind::Truncated { needed: len as u64, left: self.bytes.len() as u64 };
            return Err(DecodeError::new(field, self.at, kind));
        };
        self.bytes = rest;
        self.at += len;
        Ok(taken)
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.bytes;
        self.at += rest.len();
        self.bytes = &[];
        rest
    }

    /// A reader of the next `len` bytes only.
    pub fn sub(&mut self, field: &'static str, len: usize) -> Result<Reader<'a>, DecodeError> {
        let at = self.at;
        Ok(Reader { bytes: self.bytes(field, len)?, at })
    }

    /// A structure of fixed layout, in place.
    pub fn fixed<T>(&mut self, field: &'static str) -> Result<&'a T, DecodeError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let at = self.at;
        let bytes = self.bytes(field, size_of::<T>())?;
        T::ref_from_bytes(bytes).map_err(|_| DecodeError::rule(field, at, "has the wrong size"))
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.bytes(field, 1)?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(self.fixed::<zerocopy::little_endian::U16>(field)?.get())
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(self.fixed::<zerocopy::little_endian::U32>(field)?.get())
    }

    /// Four bytes, signed.
    pub fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        Ok(self.fixed::<zerocopy::little_endian::I32>(field)?.get())
    }

    /// Eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(self.fixed::<zerocopy::little_endian::U64>(field)?.get())
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        Ok(self.fixed::<zerocopy::little_endian::I64>(field)?.get())
    }

    /// `len` bytes of UTF-8.
    pub fn text(&mut self, field: &'static str, len: usize) -> Result<&'a str, DecodeError> {
        let at = self.at;
        let bytes = self.bytes(field, len)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::new(field, at, DecodeErrorKind::NotUtf8))
    }

    /// A count of things that take at least `each` bytes: one that the remaining bytes cannot hold is refused.
    pub fn count(&mut self, field: &'static str, each: usize) -> Result<usize, DecodeError> {
        let at = self.at;
        let count = self.u32(field)?;
        let limit = (self.left() / each.max(1)) as u64;
        if u64::from(count) > limit {
            let kind = DecodeErrorKind::AboveLimit { limit, found: u64::from(count) };
            return Err(DecodeError::new(field, at, kind));
        }
        Ok(count as usize)
    }

    /// A zigzag variable-length number of at most 32 bits, as in Kafka's records.
    #[inline]
    pub fn varint(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        let at = self.at;
        let raw = self.unsigned_varint(field, 5)?;
        let raw =
            u32::try_from(raw).map_err(|_| DecodeError::new(field, at, DecodeErrorKind::VarintTooLong))?;
        Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    /// A zigzag variable-length number of at most 64 bits, as in Kafka's records.
    #[inline]
    pub fn varlong(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        let raw = self.unsigned_varint(field, 10)?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    #[inline]
    fn unsigned_varint(&mut self, field: &'static str, bytes_max: usize) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for (i, &byte) in self.bytes.iter().take(bytes_max).enumerate() {
            // The tenth byte has room for one bit.
            if i == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[i + 1..];
                self.at += i + 1;
                return Ok(value);
            }
        }
        let left = self.bytes.len();
        let kind = if left < bytes_max {
            DecodeErrorKind::Truncated { needed: left as u64 + 1, left: left as u64 }
        } else {
            DecodeErrorKind::VarintTooLong
        };
        Err(DecodeError::new(field, self.at, kind))
    }

    /// Nothing may be left.
    pub fn end(&self, field: &'static str) -> Result<(), DecodeError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let kind = DecodeErrorKind::LeftOver { bytes: self.bytes.len() as u64 };
        Err(DecodeError::new(field, self.at, kind))
    }
}

/// Appends fields to a vector; numbers are little-endian.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`, whatever it holds already.
    pub fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    /// Bytes in the vector.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// A structure of fixed layout.
    pub fn fixed<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.out.extend_from_slice(value.as_bytes());
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Four bytes, signed.
    pub fn i32(&mut self, value: i32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }

    /// A zigzag variable-length number of 32 bits.
    #[inline]
    pub fn varint(&mut self, value: i32) {
        self.unsigned_varint(u64::from(zigzag32(value)));
    }

    /// A zigzag variable-length number of 64 bits.
    #[inline]
    pub fn varlong(&mut self, value: i64) {
        self.unsigned_varint(zigzag64(value));
    }

    #[inline]
    fn unsigned_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }
}

/// Bytes that [`Writer::varint`] takes for a value.
#[inline]
pub fn varint_len(value: i32) -> usize {
    unsigned_varint_len(u64::from(zigzag32(value)))
}

/// Bytes that [`Writer::varlong`] takes for a value.
#[inline]
pub fn varlong_len(value: i64) -> usize {
    unsigned_varint_len(zigzag64(value))
}

fn zigzag32(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

fn zigzag64(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[inline]
fn unsigned_varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_those_of_kafka_and_come_back() {
        // Zigzag as in the protobuf encoding guide.
        let known: [(i32, &[u8]); 6] =
            [(0, &[0]), (-1, &[1]), (1, &[2]), (63, &[126]), (-65, &[0x81, 1]), (300, &[0xd8, 4])];
        for (value, bytes) in known {
            let mut out = Vec::new();
            Writer::new(&mut out).varint(value);
            assert_eq!(out, bytes, "{value}");
        }
        for value in [0, 1, -1, 63, 64, -64, -65, i32::MAX, i32::MIN] {
            let mut out = Vec::new();
            Writer::new(&mut out).varint(value);
            assert_eq!(out.len(), varint_len(value));
            assert_eq!(Reader::new(&out).varint("v"), Ok(value));
        }
        for value in [0, i64::from(i32::MAX) + 1, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            Writer::new(&mut out).varlong(value);
            assert_eq!(out.len(), varlong_len(value));
            assert_eq!(Reader::new(&out).varlong("v"), Ok(value));
        }
    }

    #[test]
    fn a_varint_that_does_not_end_is_refused() {
        let kind = |bytes: &[u8]| Reader::new(bytes).varint("v").map_err(|e| e.kind);
        assert_eq!(kind(&[0x80; 5]), Err(DecodeErrorKind::VarintTooLong));
        assert_eq!(kind(&[0xff, 0xff, 0xff, 0xff, 0x7f]), Err(DecodeErrorKind::VarintTooLong));
        assert_eq!(kind(&[0x80, 0x80]), Err(DecodeErrorKind::Truncated { needed: 3, left: 2 }));
        let long = |bytes: &[u8]| Reader::new(bytes).varlong("v").map_err(|e| e.kind);
        assert_eq!(long(&[0xff; 10]), Err(DecodeErrorKind::VarintTooLong));
        assert_eq!(
            long(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
            Err(DecodeErrorKind::VarintTooLong)
        );
    }

    #[test]
    fn errors_name_field_and_place() {
        let mut r = Reader::new_at(&[1, 0, 0, 0, 9], 20);
        assert_eq!(r.u32("count"), Ok(1));
        let error = r.u32("next").expect_err("one byte is left");
        assert_eq!(error.to_string(), "next at byte 24: needs 4 bytes, 1 are left");
        assert_eq!(r.end("body").map_err(|e| e.kind), Err(DecodeErrorKind::LeftOver { bytes: 1 }));
    }

    #[test]
    fn a_count_is_bounded_by_the_bytes_that_remain() {
        let mut r = Reader::new(&[3, 0, 0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(
            r.count("things", 2).map_err(|e| e.kind),
            Err(DecodeErrorKind::AboveLimit { limit: 2, found: 3 })
        );
    }
}
