//! Producing: records go into a batch of their partition in place, batches go to the partition's shard.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_protocol::api::produce::{Acks, Level, StageTimes};
use tidegate_protocol::ids::{LeaderEpoch, Offset, PartitionId};

use crate::{Error, ErrorKind, Result};

/// A record to produce; everything in it is borrowed until it stands in its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key; none is distinct from empty.
    pub key: Option<&'a [u8]>,
    /// The value; none is distinct from empty.
    pub value: Option<&'a [u8]>,
    /// Names and values beside it.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since the Unix epoch; none: now.
    pub timestamp_ms: Option<i64>,
    /// The partition to put it into; none: as the producer's [`Partitioning`] says.
    pub partition: Option<PartitionId>,
}

/// A name and a value beside a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name; need not be unique.
    pub name: &'a str,
    /// The value; none is distinct from empty.
    pub value: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// A record without a key.
    pub fn new(value: &'a [u8]) -> Record<'a> {
        Record { value: Some(value), ..Record::default() }
    }

    /// A record with a key: those of one key stay in one partition, in order.
    pub fn keyed(key: &'a [u8], value: &'a [u8]) -> Record<'a> {
        Record { key: Some(key), value: Some(value), ..Record::default() }
    }

    /// The same with headers.
    pub fn headers(mut self, headers: &'a [Header<'a>]) -> Record<'a> {
        self.headers = headers;
        self
    }

    /// The same with a timestamp, milliseconds since the Unix epoch.
    pub fn timestamp_ms(mut self, timestamp_ms: i64) -> Record<'a> {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// The same for this partition.
    pub fn partition(mut self, partition: PartitionId) -> Record<'a> {
        self.partition = Some(partition);
        self
    }
}

/// How batches are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Gzip.
    Gzip,
    /// Snappy, in the framing that Kafka's clients use.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard; needs the cargo feature `zstd`.
    Zstd,
}

/// Which partition a record without an explicit one goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partitioning {
    /// By the murmur2 hash of the key, as Kafka's clients do; records without a key as `RoundRobin`.
    #[default]
    Keyed,
    /// In turn, a batch at a time, whatever the key.
    RoundRobin,
}

/// How long a batch that is not full waits for more records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linger {
    /// Not at all while nothing of its partition is in flight, else until it is full or the acknowledgement comes.
    #[default]
    Adaptive,
    /// As `Adaptive`, but at least this long.
    AtLeast(Duration),
}

/// Where one record went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset; -1 with [`Acks::None`], which is not told.
    pub offset: Offset,
    /// What has been reached for it.
    pub level: Level,
    /// The broker's append time, milliseconds since the Unix epoch; -1 with [`Acks::None`].
    pub append_time_ms: i64,
}

/// Where one batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAck {
    /// Its partition.
    pub partition: PartitionId,
    /// The offset of its first record; -1 with [`Acks::None`].
    pub base_offset: Offset,
    /// Its records.
    pub record_count: u32,
    /// Its size as sent, in bytes.
    pub bytes: u32,
    /// What has been reached for it.
    pub level: Level,
    /// The broker's append time, milliseconds since the Unix epoch; -1 with [`Acks::None`].
    pub append_time_ms: i64,
    /// The leader epoch under which it was appended.
    pub leader_epoch: LeaderEpoch,
    /// Where the time went in the broker.
    pub stages: StageTimes,
    /// From the last sending of the batch to its acknowledgement, microseconds.
    pub round_trip_us: u64,
}

/// What the observer of a producer is told; see [`ProducerBuilder::observe`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProducerEvent {
    /// A batch is acknowledged.
    Acknowledged(BatchAck),
    /// A batch will not be delivered; its tickets have the same error.
    Failed {
        /// Its partition.
        partition: PartitionId,
        /// Its records.
        record_count: u32,
        /// Why.
        error: Error,
    },
    /// A batch that was acknowledged from memory (a relaxed topic) is lost: the broker restarted before it was flushed.
    Lost {
        /// Its partition.
        partition: PartitionId,
        /// The offset that its first record had; other records may have it now. -1 if it is no longer known.
        base_offset: Offset,
        /// Its records.
        record_count: u32,
    },
}

/// What a producer has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProducerStats {
    /// Records enqueued.
    pub records: u64,
    /// Records acknowledged; with [`Acks::None`]: sent.
    pub records_acked: u64,
    /// Records whose tickets got an error.
    pub records_failed: u64,
    /// Records acknowledged from memory and lost later; see [`ProducerEvent::Lost`].
    pub records_lost: u64,
    /// Batches acknowledged; with [`Acks::None`]: sent.
    pub batches_acked: u64,
    /// Batches sent again.
    pub batches_resent: u64,
    /// Bytes of batches acknowledged.
    pub bytes_acked: u64,
    /// Connections lost.
    pub reconnects: u64,
    /// Microseconds during which batches waited for the broker's credit, summed over connections.
    pub credit_wait_us: u64,
    /// Microseconds during which `enqueue` waited for memory.
    pub memory_wait_us: u64,
    /// Bytes of memory in use now.
    pub memory_used: u64,
}

/// Settings of a producer; made by [`crate::Client::producer`].
pub struct ProducerBuilder {
    topic: String,
}

impl ProducerBuilder {
    pub(crate) fn new(topic: &str) -> ProducerBuilder {
        ProducerBuilder { topic: topic.to_string() }
    }

    /// When a batch counts as acknowledged. Default: [`Acks::Leader`], flushed on the leader's drive.
    pub fn acks(self, _acks: Acks) -> ProducerBuilder {
        self
    }

    /// How batches are compressed. Default: not at all.
    pub fn compression(self, _compression: Compression) -> ProducerBuilder {
        self
    }

    /// Which partition a record without an explicit one goes to. Default: by key.
    pub fn partitioning(self, _partitioning: Partitioning) -> ProducerBuilder {
        self
    }

    /// How long a batch that is not full waits. Default: adaptive.
    pub fn linger(self, _linger: Linger) -> ProducerBuilder {
        self
    }

    /// Without idempotence a batch that is sent again may be stored twice. On by default; always off with
    /// [`Acks::None`].
    pub fn without_idempotence(self) -> ProducerBuilder {
        self
    }

    /// The size at which a batch is full, in bytes before compression. Default: 256 KiB; never above the broker's limit.
    pub fn batch_bytes(self, _bytes: usize) -> ProducerBuilder {
        self
    }

    /// The bound of the memory that unacknowledged records take, in bytes: `enqueue` waits beyond it. Default: 64 MiB.
    pub fn memory_bytes(self, _bytes: usize) -> ProducerBuilder {
        self
    }

    /// Batches in flight per partition; kept below what the broker remembers for idempotence. Default: 4.
    pub fn max_in_flight(self, _batches: usize) -> ProducerBuilder {
        self
    }

    /// How long a batch is tried, retries included, before its records fail. Default: 2 min.
    pub fn delivery_timeout(self, _timeout: Duration) -> ProducerBuilder {
        self
    }

    /// Called for every acknowledged, failed or lost batch, from the producer's own tasks: it must not block.
    pub fn observe(self, _observer: impl Fn(&ProducerEvent) + Send + Sync + 'static) -> ProducerBuilder {
        self
    }

    /// Looks the topic up and starts the producer.
    ///
    /// # Errors
    /// `UnknownTopic`; a setting that makes no sense.
    pub async fn start(self) -> Result<Producer> {
        Err(Error::new(ErrorKind::Closed, format!("being written: {}", self.topic)))
    }
}

/// Produces to one topic. Cheap to clone; the clones share batches, memory and connections.
#[derive(Clone)]
pub struct Producer {}

impl Producer {
    /// Puts a record into its batch and returns as soon as it stands there; waits only while the memory is full.
    ///
    /// # Errors
    /// The record is too large, its partition does not exist, or the producer is closed.
    pub async fn enqueue(&self, _record: Record<'_>) -> Result<Ticket> {
        Err(Error::new(ErrorKind::Closed, "being written"))
    }

    /// As [`Producer::enqueue`], but returns none instead of waiting while the memory is full.
    ///
    /// # Errors
    /// As [`Producer::enqueue`].
    pub fn try_enqueue(&self, _record: Record<'_>) -> Result<Option<Ticket>> {
        Err(Error::new(ErrorKind::Closed, "being written"))
    }

    /// Puts a record into its batch and waits for the acknowledgement.
    ///
    /// # Errors
    /// As [`Producer::enqueue`], and whatever the record met on its way; see [`Error::is_unknown_outcome`].
    pub async fn send(&self, record: Record<'_>) -> Result<Ack> {
        self.enqueue(record).await?.await
    }

    /// Waits until everything enqueued before is acknowledged or has failed.
    ///
    /// # Errors
    /// The first error of those records that failed since the last flush.
    pub async fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Flushes, then ends the producer and its clones.
    ///
    /// # Errors
    /// As [`Producer::flush`].
    pub async fn close(self) -> Result<()> {
        Ok(())
    }

    /// Partitions of the topic, as known.
    pub fn partition_count(&self) -> i32 {
        0
    }

    /// What it has counted.
    pub fn stats(&self) -> ProducerStats {
        ProducerStats::default()
    }
}

/// The acknowledgement to come of one record. Dropping it is fine: the record is sent all the same.
#[derive(Debug)]
pub struct Ticket {}

impl Future for Ticket {
    type Output = Result<Ack>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Result<Ack>> {
        Poll::Ready(Err(Error::new(ErrorKind::Closed, "being written")))
    }
}
