//! Consuming: batches stream in under credit and are handed to the application as they came.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tidegate_protocol::ids::{Offset, PartitionId};

use crate::{Error, ErrorKind, Result};

/// Where a consumer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the first readable record.
    Earliest,
    /// Behind the last readable record.
    #[default]
    Latest,
    /// At this offset, in every selected partition.
    Offset(Offset),
    /// At the first record whose timestamp is at or after this, milliseconds since the Unix epoch.
    RecordTime(i64),
    /// At the first record appended at or after this, milliseconds since the Unix epoch.
    AppendTime(i64),
    /// Where the named consumer committed last; where it never did: at the first readable record.
    Stored,
}

/// What happens when the position is no longer (or not yet) in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// The application gets the error `OffsetOutOfRange`, and the partition stops.
    #[default]
    Fail,
    /// It goes on at the first readable record and says so with [`Event::Skipped`].
    Earliest,
    /// It goes on behind the last readable record and says so with [`Event::Skipped`].
    Latest,
}

/// Settings of a consumer; made by [`crate::Client::consumer`].
#[derive(Clone, Debug)]
pub struct ConsumerBuilder {
    topic: String,
}

impl ConsumerBuilder {
    pub(crate) fn new(topic: &str) -> ConsumerBuilder {
        ConsumerBuilder { topic: topic.to_string() }
    }

    /// The consumer's name, under which it commits.
    pub fn name(self, _name: &str) -> ConsumerBuilder {
        self
    }

    /// Where to begin. Default: latest; with a name: stored.
    pub fn from(self, _start: Start) -> ConsumerBuilder {
        self
    }

    /// Where to begin in one partition, whatever [`ConsumerBuilder::from`] says.
    pub fn from_offset(self, _partition: PartitionId, _offset: Offset) -> ConsumerBuilder {
        self
    }

    /// Only these partitions. Default: all.
    pub fn partitions(self, _partitions: &[PartitionId]) -> ConsumerBuilder {
        self
    }

    /// Ends behind what was readable when the consumer started.
    pub fn until_end(self) -> ConsumerBuilder {
        self
    }

    /// Ends, in every selected partition, before this offset.
    pub fn until_offset(self, _end: Offset) -> ConsumerBuilder {
        self
    }

    /// Bytes that may wait in memory for the application, over all partitions. Default: 16 MiB.
    pub fn prefetch_bytes(self, _bytes: usize) -> ConsumerBuilder {
        self
    }

    /// What happens when the position is not in the log. Default: it fails.
    pub fn out_of_range(self, _policy: OutOfRange) -> ConsumerBuilder {
        self
    }

    /// Looks the topic up and starts the consumer.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`; a setting that makes no sense.
    pub async fn start(self) -> Result<Consumer> {
        Err(Error::new(ErrorKind::Closed, format!("being written: {}", self.topic)))
    }
}

/// Where a consumer stands in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionPosition {
    /// The partition.
    pub partition: PartitionId,
    /// The next record that the application gets.
    pub position: Offset,
    /// One past the last readable record, as last told by the broker.
    pub committed: Offset,
    /// Whether everything readable has been handed out, as far as known.
    pub caught_up: bool,
}

impl PartitionPosition {
    /// Records between the position and the last readable one.
    pub fn lag(&self) -> i64 {
        (self.committed.0 - self.position.0).max(0)
    }
}

/// What a consumer tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Records.
    Batch(Batch),
    /// Everything readable of this partition has been handed out; more may come.
    CaughtUp(PartitionPosition),
    /// Records between two offsets are gone from the log; see [`OutOfRange`].
    Skipped {
        /// The partition.
        partition: PartitionId,
        /// The offset that was wanted.
        from: Offset,
        /// Where it goes on.
        to: Offset,
    },
}

/// Consumes one topic: a [`Stream`] of batches, in order within each partition.
#[derive(Debug)]
pub struct Consumer {}

impl Consumer {
    /// The next batch; none after the end that was asked for.
    pub async fn next_batch(&mut self) -> Option<Result<Batch>> {
        None
    }

    /// The next batch or notice; none after the end that was asked for.
    pub async fn next_event(&mut self) -> Option<Result<Event>> {
        None
    }

    /// Where it stands, by partition.
    pub fn positions(&self) -> Vec<PartitionPosition> {
        Vec::new()
    }

    /// Records between the positions and the last readable ones, over all partitions.
    pub fn lag(&self) -> i64 {
        0
    }

    /// Stores the positions under the consumer's name: all batches handed out count as done. Durable on return.
    ///
    /// # Errors
    /// The consumer has no name; whatever stands in the way of any request.
    pub async fn commit(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Closed, "being written"))
    }

    /// Stores these positions (the next record to read) under the consumer's name. Durable on return.
    ///
    /// # Errors
    /// The consumer has no name; whatever stands in the way of any request.
    pub async fn commit_offsets(&self, _offsets: &[(PartitionId, Offset)]) -> Result<()> {
        Err(Error::new(ErrorKind::Closed, "being written"))
    }

    /// Ends it. Dropping it does the same.
    pub async fn close(self) {}
}

impl Stream for Consumer {
    type Item = Result<Batch>;

    fn poll_next(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
        Poll::Ready(None)
    }
}

/// One batch as it lies in the log, its checksums verified.
#[derive(Clone, Debug)]
pub struct Batch {}

impl Batch {
    /// Its partition.
    pub fn partition(&self) -> PartitionId {
        PartitionId(0)
    }

    /// The offset of its first record that was asked for.
    pub fn first_offset(&self) -> Offset {
        Offset(0)
    }

    /// One past its last offset.
    pub fn end_offset(&self) -> Offset {
        Offset(0)
    }

    /// Its records, those before the position asked for included.
    pub fn record_count(&self) -> u32 {
        0
    }

    /// Its bytes, compressed or not, as on the wire and on disk.
    pub fn bytes(&self) -> &bytes::Bytes {
        static EMPTY: bytes::Bytes = bytes::Bytes::new();
        &EMPTY
    }

    /// The broker's append time of the run of batches that it came with, milliseconds since the Unix epoch.
    pub fn append_time_ms(&self) -> i64 {
        -1
    }

    /// Its records from the position asked for on. Decompresses at the first call; later calls are free.
    ///
    /// # Errors
    /// It cannot be decompressed.
    pub fn records(&self) -> Result<Records<'_>> {
        Ok(Records { batch: self })
    }
}

/// The records of a batch, in order.
#[derive(Debug)]
pub struct Records<'a> {
    #[allow(dead_code)]
    batch: &'a Batch,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Result<Record<'a>>> {
        None
    }
}

/// A record as it lies in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    value: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// Its offset.
    pub fn offset(&self) -> Offset {
        Offset(0)
    }

    /// Its timestamp, milliseconds since the Unix epoch.
    pub fn timestamp_ms(&self) -> i64 {
        0
    }

    /// Its key; none is distinct from empty.
    pub fn key(&self) -> Option<&'a [u8]> {
        None
    }

    /// Its value; none is distinct from empty.
    pub fn value(&self) -> Option<&'a [u8]> {
        self.value
    }

    /// Names and values beside it.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> + use<'a> {
        std::iter::empty()
    }
}
