//! A batch as the application gets it, and the records in it, read where they lie.

use std::sync::OnceLock;

use bytes::Bytes;
use tidegate_protocol::batch::record::Records as RawRecords;
use tidegate_protocol::batch::{
    BatchHeader, Compression, HEADER_LEN, Record as RawRecord, TimestampType, compression,
};
use tidegate_protocol::ids::{Offset, PartitionId};

use crate::{Error, ErrorKind, Result, Unread};

/// The most that a compressed batch may unpack to, so that a hostile one can't take all memory.
const UNPACKED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// One batch as it lies in the log, its checksums verified.
#[derive(Clone, Debug)]
pub struct Batch {
    partition: PartitionId,
    bytes: Bytes,
    header: BatchHeader,
    /// The application wants the records from here ...
    from: Offset,
    /// ... to before here.
    until: Offset,
    append_time_ms: i64,
    unpacked: OnceLock<Bytes>,
}

impl Batch {
    pub(crate) fn new(
        partition: PartitionId,
        bytes: Bytes,
        header: BatchHeader,
        wanted: (Offset, Offset),
        append_time_ms: i64,
    ) -> Batch {
        let (from, until) = wanted;
        Batch { partition, bytes, header, from, until, append_time_ms, unpacked: OnceLock::new() }
    }

    /// Its partition.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The first offset in it that was asked for.
    pub fn first_offset(&self) -> Offset {
        self.header.base_offset.max(self.from)
    }

    /// One past the last offset in it that was asked for.
    pub fn end_offset(&self) -> Offset {
        self.header.end_offset().min(self.until)
    }

    /// Its records as stored, those that were not asked for included.
    pub fn record_count(&self) -> u32 {
        // Read from a checked header, which has no negative count.
        self.header.records_count as u32
    }

    /// The codec of its records.
    pub fn compression(&self) -> Compression {
        self.header.compression
    }

    /// Its bytes, compressed or not, as on the wire and on disk.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The broker's append time of the run of batches that it came with, milliseconds since the Unix epoch.
    pub fn append_time_ms(&self) -> i64 {
        self.append_time_ms
    }

    /// Whether the broker set the timestamps of its records at the append.
    pub fn has_append_timestamps(&self) -> bool {
        self.header.timestamp_type == TimestampType::Append
    }

    /// The records in it that were asked for. Decompresses at the first call; later calls are free.
    ///
    /// # Errors
    /// It cannot be decompressed.
    pub fn records(&self) -> Result<Records<'_>> {
        let packed = &self.bytes[HEADER_LEN..];
        let plain = match (self.header.compression, self.unpacked.get()) {
            (Compression::None, _) => packed,
            (_, Some(unpacked)) => &unpacked[..],
            (codec, None) => {
                let mut out = Vec::new();
                compression::unpack(codec, packed, UNPACKED_BYTES_MAX, &mut out)
                    .map_err(|error| self.damaged(&error))?;
                &self.unpacked.get_or_init(|| Bytes::from(out))[..]
            }
        };
        Ok(Records { batch: self, raw: RawRecords::new(&self.header, plain, HEADER_LEN) })
    }

    fn damaged(&self, error: &dyn std::fmt::Display) -> Error {
        let (partition, offset) = (self.partition, self.header.base_offset);
        let cause = format!("the batch at offset {offset} of partition {partition}: {error}");
        let (from, to) = (self.first_offset(), Some(self.end_offset()));
        Error::new(ErrorKind::Damaged, cause)
            .with_hint("whoever produced it wrote what is not in the format: begin behind it")
            .with_unread(Unread { partition, from, to })
    }
}

/// The records of a batch, in order. After an error it ends.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    batch: &'a Batch,
    raw: RawRecords<'a>,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Result<Record<'a>>> {
        loop {
            match self.raw.next()? {
                Ok(raw) if raw.offset < self.batch.from => {}
                Ok(raw) if raw.offset >= self.batch.until => return None,
                Ok(raw) => return Some(Ok(Record { raw })),
                Err(error) => return Some(Err(self.batch.damaged(&error))),
            }
        }
    }
}

/// A record as it lies in its batch.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    raw: RawRecord<'a>,
}

impl<'a> Record<'a> {
    /// Its offset.
    pub fn offset(&self) -> Offset {
        self.raw.offset
    }

    /// Its timestamp, milliseconds since the Unix epoch; -1: none.
    pub fn timestamp_ms(&self) -> i64 {
        self.raw.timestamp_ms
    }

    /// Its key; none is distinct from empty.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.raw.key
    }

    /// Its value; none is distinct from empty.
    pub fn value(&self) -> Option<&'a [u8]> {
        self.raw.value
    }

    /// Names and values beside it. A name that is not UTF-8 is shown as U+FFFD; see [`Record::raw_headers`].
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> + use<'a> {
        self.raw_headers().map(|(name, value)| (std::str::from_utf8(name).unwrap_or("\u{fffd}"), value))
    }

    /// Names and values beside it, the names as the bytes that they are.
    pub fn raw_headers(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        self.raw.headers().map(|header| (header.key, header.value))
    }
}
