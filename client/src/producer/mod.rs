//! Producing: records go into a batch of their partition in place, batches go to the partition's shard.

//!
//! Reading order: this file (what an application sees), `state` (what clones and lanes share), `queue` (one partition's
//! batches and what refusals mean), `lane` (the task of one shard's connection), `ticket`.

mod lane;
mod queue;
mod state;
mod ticket;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_protocol::api::produce::{Acks, Level, StageTimes};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
pub use tidegate_protocol::batch::Compression;
use tidegate_protocol::ids::{LeaderEpoch, Offset, PartitionId};
use tokio::sync::Notify;

use self::queue::{Done, Identity};
use self::state::{Added, Phase, Settings, State};
use self::ticket::BatchOutcome;
pub use self::ticket::Ticket;
use crate::client::{Repeat, Route, Shared};
use crate::connection::unreadable;
use crate::{Error, ErrorKind, Result};

/// No batch is smaller than this, whatever is asked for.
const BATCH_BYTES_MIN: usize = 1024;

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

/// Why records that were enqueued are not acknowledged; see [`Producer::stall`].
#[derive(Clone, Debug)]
pub struct Stall {
    /// What stands in the way. [`Error::kind`] is [`ErrorKind::NoCredit`] with the broker's reason, what the broker refused the
    /// last attempt with, or [`ErrorKind::Unreachable`].
    pub error: Error,
    /// For how long it has.
    pub lasted: Duration,
}

/// Is told every [`ProducerEvent`].
type Observer = Arc<dyn Fn(&ProducerEvent) + Send + Sync>;

/// Settings of a producer; made by [`crate::Client::producer`].
pub struct ProducerBuilder {
    client: Arc<Shared>,
    topic: String,
    settings: Settings,
    observer: Option<Observer>,
}

impl ProducerBuilder {
    pub(crate) fn new(client: Arc<Shared>, topic: &str) -> ProducerBuilder {
        let settings = Settings {
            acks: Acks::Leader,
            compression: Compression::None,
            partitioning: Partitioning::Keyed,
            linger: Linger::Adaptive,
            idempotent: true,
            batch_bytes: 256 * 1024,
            memory_bytes: 64 * 1024 * 1024,
            max_in_flight: 4,
            delivery_timeout: Duration::from_secs(120),
        };
        ProducerBuilder { client, topic: topic.to_string(), settings, observer: None }
    }

    /// When a batch counts as acknowledged. Default: [`Acks::Leader`], flushed on the leader's drive.
    pub fn acks(mut self, acks: Acks) -> ProducerBuilder {
        self.settings.acks = acks;
        self
    }

    /// How batches are compressed. Default: not at all.
    pub fn compression(mut self, compression: Compression) -> ProducerBuilder {
        self.settings.compression = compression;
        self
    }

    /// Which partition a record without an explicit one goes to. Default: by key.
    pub fn partitioning(mut self, partitioning: Partitioning) -> ProducerBuilder {
        self.settings.partitioning = partitioning;
        self
    }

    /// How long a batch that is not full waits. Default: adaptive.
    pub fn linger(mut self, linger: Linger) -> ProducerBuilder {
        self.settings.linger = linger;
        self
    }

    /// Without idempotence a batch that is sent again may be stored twice. On by default; always off with
    /// [`Acks::None`].
    pub fn without_idempotence(mut self) -> ProducerBuilder {
        self.settings.idempotent = false;
        self
    }

    /// The size at which a batch is full, in bytes before compression, at least 1 KiB. Default: 256 KiB; never above the
    /// broker's limit.
    pub fn batch_bytes(mut self, bytes: usize) -> ProducerBuilder {
        self.settings.batch_bytes = bytes;
        self
    }

    /// The bound of the memory that unacknowledged records take, in bytes: `enqueue` waits beyond it, so at least one
    /// record always fits. Default: 64 MiB.
    pub fn memory_bytes(mut self, bytes: usize) -> ProducerBuilder {
        self.settings.memory_bytes = bytes;
        self
    }

    /// Batches in flight per partition, at least 1; kept below what the broker remembers for idempotence. Default: 4.
    pub fn max_in_flight(mut self, batches: usize) -> ProducerBuilder {
        self.settings.max_in_flight = batches;
        self
    }

    /// How long a batch is tried, retries included, before its records fail. Default: 2 min.
    pub fn delivery_timeout(mut self, timeout: Duration) -> ProducerBuilder {
        self.settings.delivery_timeout = timeout;
        self
    }

    /// Called for every acknowledged, failed or lost batch, before its tickets and a flush that waits for it are done.
    /// It is called from the producer's own tasks: it must not block.
    pub fn observe(mut self, observer: impl Fn(&ProducerEvent) + Send + Sync + 'static) -> ProducerBuilder {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Looks the topic up and starts the producer.
    ///
    /// # Errors
    /// `UnknownTopic`; a setting that makes no sense.
    pub async fn start(self) -> Result<Producer> {
        let ProducerBuilder { client, topic, mut settings, observer } = self;
        if settings.compression == Compression::Zstd && !cfg!(feature = "zstd") {
            let cause = "this build of the SDK cannot compress with zstd";
            return Err(Error::new(ErrorKind::InvalidArgument, cause)
                .with_hint("build it with the cargo feature `zstd`, or choose another compression"));
        }
        let batch_bytes_max = client.batch_bytes_max.max(BATCH_BYTES_MIN);
        settings.batch_bytes = settings.batch_bytes.clamp(BATCH_BYTES_MIN, batch_bytes_max);
        settings.memory_bytes = settings.memory_bytes.max(1);
        settings.idempotent &= settings.acks != Acks::None;
        settings.max_in_flight = settings.max_in_flight.max(1);
        let route = client.route(&topic).await?;
        let identity = if settings.idempotent { Some(init_identity(&client, None).await?) } else { None };
        let state = Mutex::new(State::new(&topic, settings, batch_bytes_max));
        let inner = Inner { client, topic, state, room: Notify::new(), observer };
        let inner = Arc::new(inner);
        inner.set_route(&route, identity);
        Ok(Producer { handle: Arc::new(Handle { inner }) })
    }
}

impl fmt::Debug for ProducerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// A new identity, or the next epoch of one.
async fn init_identity(client: &Shared, known: Option<Identity>) -> Result<Identity> {
    let request = ProducerInitRequest {
        transactional_id: None,
        transaction_timeout_ms: 0,
        producer: known.map(|known| (known.id, known.epoch)),
    };
    let reply = client.call(Repeat::Harmless, |correlation, out| request.encode(correlation, out)).await?;
    let reply =
        ProducerInitReply::decode(&reply.frame()).map_err(|error| unreadable("the producer id", &error))?;
    Ok(Identity { id: reply.producer_id, epoch: reply.producer_epoch })
}

/// Produces to one topic. Cheap to clone; the clones share batches, memory and connections.
///
/// ```no_run
/// use tidegate::{Client, Compression, ProducerEvent, Record};
///
/// # async fn example() -> tidegate::Result<()> {
/// let client = Client::connect("127.0.0.1:7171").await?;
/// let producer = client
///     .producer("readings")
///     .compression(Compression::Lz4)
///     .observe(|event| {
///         if let ProducerEvent::Lost { partition, record_count, .. } = event {
///             eprintln!("partition {partition} lost {record_count} records of a relaxed topic");
///         }
///     })
///     .start()
///     .await?;
/// for reading in 0..1_000_000_u32 {
///     // Waits only while 64 MiB are not acknowledged; the ticket may be dropped.
///     producer.enqueue(Record::keyed(b"sensor-7", reading.to_string().as_bytes())).await?;
/// }
/// producer.close().await
/// # }
/// ```
#[derive(Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

/// Ends the producer with its last clone; what was enqueued is still sent.
struct Handle {
    inner: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// What clones and lanes share.
struct Inner {
    client: Arc<Shared>,
    topic: String,
    state: Mutex<State>,
    /// Memory became free.
    room: Notify,
    observer: Option<Observer>,
}

impl Producer {
    /// Puts a record into its batch and returns as soon as it stands there; waits only while the memory is full.
    ///
    /// # Errors
    /// The record is too large, its partition does not exist, or the producer is closed.
    pub async fn enqueue(&self, record: Record<'_>) -> Result<Ticket> {
        let inner = &self.handle.inner;
        let timestamp_ms = record.timestamp_ms.unwrap_or_else(now_ms);
        let added = match inner.add(&record, timestamp_ms)? {
            Added::Full => inner.add_patiently(&record, timestamp_ms).await?,
            added => added,
        };
        let Added::In { slot, index, filled, .. } = added else {
            unreachable!("add_patiently waits for room")
        };
        if filled {
            // Gives the lane a turn where it shares this thread, so that full batches leave before the memory is full.
            tokio::task::yield_now().await;
        }
        Ok(Ticket::new(slot, index))
    }

    /// As [`Producer::enqueue`], but returns none instead of waiting while the memory is full.
    ///
    /// # Errors
    /// As [`Producer::enqueue`].
    pub fn try_enqueue(&self, record: Record<'_>) -> Result<Option<Ticket>> {
        let timestamp_ms = record.timestamp_ms.unwrap_or_else(now_ms);
        match self.handle.inner.add(&record, timestamp_ms)? {
            Added::Full => Ok(None),
            Added::In { slot, index, .. } => Ok(Some(Ticket::new(slot, index))),
        }
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
    /// The first failure since the last flush.
    pub async fn flush(&self) -> Result<()> {
        let slots: Vec<_> = {
            let state = self.handle.inner.lock();
            let queued = state.queues.iter().flat_map(|queue| queue.slots());
            queued.chain(&state.telling).cloned().collect()
        };
        let mut failed = None;
        for slot in slots {
            if let Err(error) = BatchOutcome::new(slot).await {
                failed.get_or_insert(error);
            }
        }
        match self.handle.inner.lock().first_error.take().or(failed) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Flushes, then ends the producer and its clones.
    ///
    /// # Errors
    /// As [`Producer::flush`].
    pub async fn close(self) -> Result<()> {
        self.handle.inner.close();
        self.flush().await
    }

    /// Partitions of the topic, as known.
    pub fn partition_count(&self) -> i32 {
        self.handle.inner.lock().queues.len() as i32
    }

    /// Why records that were enqueued are not acknowledged, as far as the broker has said; none: they come on. The producer
    /// goes on trying, until the delivery timeout; this is for those who want to tell somebody meanwhile.
    pub fn stall(&self) -> Option<Stall> {
        self.handle.inner.lock().stall(tokio::time::Instant::now())
    }

    /// What it has counted.
    pub fn stats(&self) -> ProducerStats {
        let state = self.handle.inner.lock();
        ProducerStats { memory_used: state.memory_used as u64, ..state.stats }
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("topic", &self.handle.inner.topic).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug that was reported already; the state is plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, record: &Record<'_>, timestamp_ms: i64) -> Result<Added> {
        let added = self.lock().add(record, timestamp_ms)?;
        if let Added::In { wake: Some(wake), .. } = &added {
            wake.notify_one();
        }
        Ok(added)
    }

    async fn add_patiently(&self, record: &Record<'_>, timestamp_ms: i64) -> Result<Added> {
        let began = Instant::now();
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            // Stands in the list before the memory is looked at, so that no wake-up is missed.
            room.as_mut().enable();
            match self.add(record, timestamp_ms)? {
                Added::Full => room.await,
                added => {
                    self.lock().stats.memory_wait_us += began.elapsed().as_micros() as u64;
                    return Ok(added);
                }
            }
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        for lane in &state.lanes {
            lane.wake.notify_one();
        }
        drop(state);
        self.room.notify_waiters();
    }

    /// Takes over where the partitions are, and starts the lanes that are missing.
    fn set_route(self: &Arc<Inner>, route: &Route, identity: Option<Identity>) {
        let to_start = self.with(|state, done| state.set_route(route, identity, done));
        for lane in to_start {
            tokio::spawn(lane::run(self.clone(), lane));
        }
    }

    /// Changes the state, counts what is done by that, then tells everybody, without the lock.
    fn with<R>(&self, change: impl FnOnce(&mut State, &mut Vec<Done>) -> R) -> R {
        let mut done = Vec::new();
        let mut state = self.lock();
        let result = change(&mut state, &mut done);
        if done.is_empty() {
            return result;
        }
        let freed: usize = done.iter().map(|done| done.freed).sum();
        state.memory_used -= freed;
        // A flush waits for these, although their queues no longer know them.
        state.telling.retain(|slot| !slot.is_settled());
        for done in &mut done {
            state.count(&done.event);
            state.recycle(std::mem::take(&mut done.buffer));
            state.telling.extend(done.slot.as_ref().map(|(slot, _)| slot.clone()));
        }
        drop(state);
        for Done { slot, event, .. } in done {
            // The observer first: whoever waits for a flush may then look at what it was told.
            if let Some(observer) = &self.observer {
                observer(&event);
            }
            if let Some((slot, outcome)) = slot {
                slot.settle(outcome);
            }
        }
        if freed > 0 {
            self.room.notify_waiters();
        }
        result
    }
}

impl State {
    fn count(&mut self, event: &ProducerEvent) {
        let stats = &mut self.stats;
        match event {
            ProducerEvent::Acknowledged(ack) => {
                stats.records_acked += u64::from(ack.record_count);
                stats.batches_acked += 1;
                stats.bytes_acked += u64::from(ack.bytes);
            }
            ProducerEvent::Failed { record_count, error, .. } => {
                stats.records_failed += u64::from(*record_count);
                self.first_error.get_or_insert_with(|| error.clone());
            }
            ProducerEvent::Lost { record_count, .. } => stats.records_lost += u64::from(*record_count),
        }
    }
}

fn now_ms() -> i64 {
    // A clock before 1970 is no clock; the broker's append time stands beside it anyway.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample_ack(base_offset: i64) -> BatchAck {
        BatchAck {
            partition: PartitionId(0),
            base_offset: Offset(base_offset),
            record_count: 3,
            bytes: 100,
            level: Level::Disk,
            append_time_ms: 5,
            leader_epoch: LeaderEpoch(0),
            stages: StageTimes::default(),
            round_trip_us: 1,
        }
    }
}
