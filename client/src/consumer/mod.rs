//! Consuming: batches stream in under credit and are handed to the application as they came.

//!
//! Reading order: this file (what an application sees), `state` (what waits for it, and the credit that follows from
//! that), `feed` (the task of one shard's connection), `batch`.

mod batch;
mod feed;
mod state;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::ids::{Offset, PartitionId, TopicPartition};

pub use self::batch::{Batch, Record, Records};
use self::state::{Chunk, Growth, Item, State, Until};
use crate::admin;
use crate::client::{Route, Shared, unknown_partition};
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
    client: Arc<Shared>,
    topic: String,
    name: Option<String>,
    start: Option<Start>,
    offsets: HashMap<PartitionId, Offset>,
    partitions: Vec<PartitionId>,
    until: Until,
    prefetch_bytes: usize,
    out_of_range: OutOfRange,
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Arc<Shared>, topic: &str) -> ConsumerBuilder {
        ConsumerBuilder {
            client,
            topic: topic.to_string(),
            name: None,
            start: None,
            offsets: HashMap::new(),
            partitions: Vec::new(),
            until: Until::Forever,
            prefetch_bytes: 16 * 1024 * 1024,
            out_of_range: OutOfRange::Fail,
        }
    }

    /// The consumer's name, under which it commits.
    pub fn name(mut self, name: &str) -> ConsumerBuilder {
        self.name = Some(name.to_string());
        self
    }

    /// Where to begin. Default: latest; with a name: stored.
    pub fn from(mut self, start: Start) -> ConsumerBuilder {
        self.start = Some(start);
        self
    }

    /// Where to begin in one partition, whatever [`ConsumerBuilder::from`] says.
    pub fn from_offset(mut self, partition: PartitionId, offset: Offset) -> ConsumerBuilder {
        self.offsets.insert(partition, offset);
        self
    }

    /// Only these partitions. Default: all, and, unless an end is asked for, those that are added later.
    pub fn partitions(mut self, partitions: &[PartitionId]) -> ConsumerBuilder {
        self.partitions = partitions.to_vec();
        self
    }

    /// Ends behind what was readable when the consumer started. A start behind that is out of range.
    pub fn until_end(mut self) -> ConsumerBuilder {
        self.until = Until::End;
        self
    }

    /// Ends, in every selected partition, before this offset.
    pub fn until_offset(mut self, end: Offset) -> ConsumerBuilder {
        self.until = Until::Offset(end);
        self
    }

    /// Bytes that may wait in memory for the application, over all partitions; each partition gets its share, but at
    /// least 64 KiB. Default: 16 MiB.
    pub fn prefetch_bytes(mut self, bytes: usize) -> ConsumerBuilder {
        self.prefetch_bytes = bytes;
        self
    }

    /// What happens when the position is not in the log. Default: it fails.
    pub fn out_of_range(mut self, policy: OutOfRange) -> ConsumerBuilder {
        self.out_of_range = policy;
        self
    }

    /// Looks the topic up and starts the consumer.
    ///
    /// # Errors
    /// `UnknownTopic`, `UnknownPartition`; a setting that makes no sense.
    pub async fn start(self) -> Result<Consumer> {
        let mut route = self.client.route(&self.topic).await?;
        self.select(&mut route)?;
        let starts = self.starts(&route).await?;
        let mut ends = vec![None; starts.len()];
        if self.until == Until::End {
            for (end, known) in ends.iter_mut().zip(&route.partitions) {
                let place = TopicPartition { topic: route.topic, partition: known.partition };
                *end = Some(admin::list_offset(&self.client, place, OffsetQuery::Latest).await?.offset);
            }
        }
        if let Until::Offset(offset) = self.until {
            // A partition that begins behind the end has nothing that was asked for.
            ends = starts.iter().map(|start| Some(offset.max(*start))).collect();
        }
        let from_time_ms = match self.start {
            Some(Start::RecordTime(time_ms)) => Some(time_ms),
            _ => None,
        };
        let growth = match self.until {
            Until::Forever if self.partitions.is_empty() => Growth::Followed,
            _ => Growth::Ignored,
        };
        let state = State::new(&route, &starts, &ends, from_time_ms, self.prefetch_bytes, growth);
        let inner = Inner {
            client: self.client,
            topic: self.topic,
            out_of_range: self.out_of_range,
            state: Mutex::new(state),
        };
        let inner = Arc::new(inner);
        inner.set_route(&route);
        Ok(Consumer { inner, name: self.name, topic: route.topic, current: None })
    }

    /// Leaves only the partitions asked for in the route.
    fn select(&self, route: &mut Route) -> Result<()> {
        let count = route.partitions.len();
        for &partition in self.partitions.iter().chain(self.offsets.keys()) {
            if !route.partitions.iter().any(|known| known.partition == partition) {
                return Err(unknown_partition(&self.topic, partition, count));
            }
        }
        if !self.partitions.is_empty() {
            route.partitions.retain(|known| self.partitions.contains(&known.partition));
        }
        Ok(())
    }

    /// The first offset wanted, by selected partition.
    async fn starts(&self, route: &Route) -> Result<Vec<Offset>> {
        let default = if self.name.is_some() { Start::Stored } else { Start::Latest };
        let start = self.start.unwrap_or(default);
        let stored = match (start, &self.name) {
            (Start::Stored, Some(name)) => admin::fetch_offsets(&self.client, name, route).await?,
            (Start::Stored, None) => {
                let cause = "a stored start needs a consumer's name";
                return Err(Error::new(ErrorKind::InvalidArgument, cause).with_hint("give it with `name`"));
            }
            _ => Vec::new(),
        };
        let mut starts = Vec::with_capacity(route.partitions.len());
        for known in &route.partitions {
            let place = TopicPartition { topic: route.topic, partition: known.partition };
            let query = match start {
                Start::Earliest => OffsetQuery::Earliest,
                Start::Latest => OffsetQuery::Latest,
                Start::RecordTime(time_ms) => OffsetQuery::RecordTime(time_ms),
                Start::AppendTime(time_ms) => OffsetQuery::AppendTime(time_ms),
                Start::Stored | Start::Offset(_) => OffsetQuery::Earliest,
            };
            let given = match start {
                Start::Offset(offset) => Some(offset),
                _ => stored.iter().find(|stored| stored.partition == place).map(|stored| stored.offset),
            };
            starts.push(match self.offsets.get(&known.partition).copied().or(given) {
                Some(offset) => offset,
                None => admin::list_offset(&self.client, place, query).await?.offset,
            });
        }
        Ok(starts)
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
///
/// A named consumer goes on where it committed last:
/// ```no_run
/// use tidegate::{Client, Event};
///
/// # async fn example() -> tidegate::Result<()> {
/// let client = Client::connect("127.0.0.1:7171").await?;
/// let mut consumer = client.consumer("readings").name("dashboard").start().await?;
/// while let Some(event) = consumer.next_event().await {
///     match event? {
///         Event::Batch(batch) => {
///             for record in batch.records()? {
///                 println!("{:?}", record?.value());
///             }
///         }
///         // Nothing more for now: a good moment to commit what was handled.
///         Event::CaughtUp(_) => consumer.commit().await?,
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Consumer {
    inner: Arc<Inner>,
    name: Option<String>,
    topic: tidegate_protocol::ids::TopicId,
    /// What was taken from the queue and is handed out batch by batch.
    current: Option<Chunk>,
}

/// What the consumer and its feeds share.
#[derive(Debug)]
struct Inner {
    client: Arc<Shared>,
    topic: String,
    out_of_range: OutOfRange,
    state: Mutex<State>,
}

impl Consumer {
    /// The next batch; none after the end that was asked for. May be dropped at any time.
    pub async fn next_batch(&mut self) -> Option<Result<Batch>> {
        poll_fn(|context| self.poll_batch(context)).await
    }

    /// The next batch or notice; none after the end that was asked for. May be dropped at any time.
    ///
    /// # Errors
    /// A partition cannot be read on; [`Error::unread`] says from where. The other partitions go on with the next call.
    pub async fn next_event(&mut self) -> Option<Result<Event>> {
        poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
        loop {
            match self.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(Event::Batch(batch)))) => return Poll::Ready(Some(Ok(batch))),
                Poll::Ready(Some(Ok(_))) => {}
            }
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            if let Some(chunk) = &mut self.current {
                if let Some(batch) = chunk.next_batch() {
                    // A commit counts what was handed out, and nothing more.
                    self.inner.lock().handed_out(chunk.source, batch.end_offset());
                    return Poll::Ready(Some(Ok(Event::Batch(batch))));
                }
                let (source, end) = (chunk.source, chunk.end);
                self.current = None;
                self.inner.lock().handed_out(source, end);
            }
            let mut state = self.inner.lock();
            match state.pop() {
                Some(Item::Chunk(chunk)) => self.current = Some(chunk),
                Some(Item::CaughtUp(source)) => {
                    let position = state.position(source);
                    return Poll::Ready(Some(Ok(Event::CaughtUp(position))));
                }
                Some(Item::Skipped { source, from, to }) => {
                    let partition = state.position(source).partition;
                    return Poll::Ready(Some(Ok(Event::Skipped { partition, from, to })));
                }
                Some(Item::Failed(error)) => return Poll::Ready(Some(Err(error))),
                None if state.is_finished() => return Poll::Ready(None),
                None => {
                    state.wait(context.waker());
                    return Poll::Pending;
                }
            }
        }
    }

    /// Where it stands, by partition.
    pub fn positions(&self) -> Vec<PartitionPosition> {
        let state = self.inner.lock();
        (0..state.source_count()).map(|source| state.position(source)).collect()
    }

    /// Records between the positions and the last readable ones, over all partitions.
    pub fn lag(&self) -> i64 {
        self.positions().iter().map(PartitionPosition::lag).sum()
    }

    /// Stores the positions under the consumer's name: all batches handed out count as done. Durable on return.
    ///
    /// # Errors
    /// The consumer has no name; whatever stands in the way of any request.
    pub async fn commit(&self) -> Result<()> {
        let positions = self.positions();
        let offsets: Vec<_> =
            positions.iter().map(|position| (position.partition, position.position)).collect();
        self.commit_offsets(&offsets).await
    }

    /// Stores these positions (the next record to read) under the consumer's name. Durable on return.
    ///
    /// # Errors
    /// The consumer has no name; whatever stands in the way of any request.
    pub async fn commit_offsets(&self, offsets: &[(PartitionId, Offset)]) -> Result<()> {
        let Some(name) = &self.name else {
            let cause = "a consumer without a name cannot commit";
            return Err(Error::new(ErrorKind::InvalidArgument, cause).with_hint("give it one with `name`"));
        };
        admin::commit_offsets(&self.inner.client, name, self.topic, offsets).await
    }

    /// Ends it. Dropping it does the same.
    pub async fn close(self) {}
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.inner.lock().close();
    }
}

impl Stream for Consumer {
    type Item = Result<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
        self.poll_batch(context)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug that was reported already; the state is plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over where the partitions are, and starts the feeds that are missing.
    fn set_route(self: &Arc<Inner>, route: &Route) {
        for feed in self.lock().set_route(route) {
            tokio::spawn(feed::run(self.clone(), feed));
        }
    }
}
