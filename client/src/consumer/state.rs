//! What a consumer and its feeds share: where each partition stands, what waits for the application, and the credit
//! that follows from it.
//!
//! The broker may send until `received + (share - waiting)`: the limit rises only as the application takes what came,
//! so what waits is bounded whatever happens to connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tidegate_protocol::batch::BatchView;
use tidegate_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use tokio::sync::Notify;

use super::{Batch, PartitionPosition};
use crate::client::{Route, ShardAddress};
use crate::{Error, Unread};

/// No partition has less room than this.
const SHARE_MIN: usize = 64 * 1024;

/// When a consumer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Forever,
    /// Behind what is readable at the start.
    End,
    Offset(Offset),
}

/// Whether partitions that are added to the topic later are consumed, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    Followed,
    Ignored,
}

/// Whole batches of one partition, verified, as they came in one frame.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The partition, by its place among the selected ones.
    pub(crate) source: usize,
    pub(crate) partition: tidegate_protocol::ids::PartitionId,
    /// What is not handed out yet.
    pub(crate) bytes: Bytes,
    /// The records that the application wants.
    pub(crate) wanted: (Offset, Offset),
    /// Where the next chunk goes on.
    pub(crate) end: Offset,
    pub(crate) append_time_ms: i64,
}

impl Chunk {
    /// Wants nothing before the first record at or after this time. Returns whether there is one in the chunk. The broker
    /// finds the batch; which record of it that is, only its reader can see.
    pub(crate) fn begin_at(&mut self, time_ms: i64) -> bool {
        let (bytes, (from, until)) = (self.bytes.clone(), self.wanted);
        while let Some(batch) = self.next_batch() {
            // What cannot be read is told to the application when it reads it.
            let Ok(mut records) = batch.records() else { break };
            let found =
                records.find(|record| !matches!(record, Ok(record) if record.timestamp_ms() < time_ms));
            if let Some(record) = found {
                self.bytes = bytes;
                self.wanted = (record.map_or(from, |record| record.offset()), until);
                return true;
            }
        }
        let unreadable = !self.bytes.is_empty();
        self.bytes = bytes;
        if !unreadable {
            self.wanted = (self.end, until);
        }
        unreadable
    }

    /// The next batch with records that are wanted.
    pub(crate) fn next_batch(&mut self) -> Option<Batch> {
        while !self.bytes.is_empty() {
            // Read once before it was queued.
            let header = *BatchView::parse(&self.bytes).ok()?.header();
            let bytes = self.bytes.split_to(header.len);
            let (from, until) = self.wanted;
            if header.end_offset() > from && header.base_offset < until && !header.control {
                return Some(Batch::new(self.partition, bytes, header, self.wanted, self.append_time_ms));
            }
        }
        None
    }
}

/// What waits for the application.
#[derive(Debug)]
pub(crate) enum Item {
    Chunk(Chunk),
    CaughtUp(usize),
    Skipped { source: usize, from: Offset, to: Offset },
    Failed(Error),
}

/// Whether a partition still gives something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    /// Everything up to the end that was asked for is queued, or an error is: nothing more comes.
    Ended,
}

/// One selected partition.
///
/// Invariant: `position <= fetched`; `waiting` is the sum of the chunks of it in the queue.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) place: TopicPartition,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) feed: usize,
    /// The next record that the application gets.
    position: Offset,
    /// The next record that the broker is to send.
    pub(crate) fetched: Offset,
    pub(crate) committed: Offset,
    pub(crate) until: Option<Offset>,
    /// The application wants nothing before the first record with this timestamp, which is still to be found.
    pub(crate) from_time_ms: Option<i64>,
    caught_up: bool,
    waiting: usize,
    /// Bytes taken by the application since the last credit.
    pub(crate) taken: usize,
    life: Life,
}

/// One shard's connection.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) address: ShardAddress,
    pub(crate) running: bool,
    pub(crate) wake: Arc<Notify>,
    /// Partitions of which enough was taken to be worth a new limit.
    pub(crate) due: Vec<usize>,
    /// Partitions have come, gone or ended.
    pub(crate) changed: bool,
}

impl Source {
    fn new(
        place: TopicPartition,
        epoch: LeaderEpoch,
        start: Offset,
        until: Option<Offset>,
        from_time_ms: Option<i64>,
    ) -> Source {
        Source {
            place,
            epoch,
            feed: usize::MAX,
            position: start,
            fetched: start,
            committed: until.unwrap_or(start),
            until,
            from_time_ms,
            caught_up: false,
            waiting: 0,
            taken: 0,
            life: if until == Some(start) { Life::Ended } else { Life::Running },
        }
    }
}

/// Everything of one consumer.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sources: Vec<Source>,
    pub(crate) feeds: Vec<Feed>,
    queue: VecDeque<Item>,
    waker: Option<Waker>,
    /// Bytes of each partition that may wait.
    share: usize,
    growth: Growth,
    pub(crate) closed: bool,
}

impl State {
    /// Invariant of the arguments: one start and one end for each partition of the route.
    pub(crate) fn new(
        route: &Route,
        starts: &[Offset],
        ends: &[Option<Offset>],
        from_time_ms: Option<i64>,
        prefetch_bytes: usize,
        growth: Growth,
    ) -> State {
        let ranges = route.partitions.iter().zip(starts).zip(ends);
        let sources = ranges.map(|((known, &start), &until)| {
            let place = TopicPartition { topic: route.topic, partition: known.partition };
            Source::new(place, known.epoch, start, until, from_time_ms)
        });
        let sources: Vec<_> = sources.collect();
        let share = (prefetch_bytes / sources.len().max(1)).max(SHARE_MIN);
        State {
            sources,
            feeds: Vec::new(),
            queue: VecDeque::new(),
            waker: None,
            share,
            growth,
            closed: false,
        }
    }

    /// Takes over where the partitions are. Returns the feeds that need a task.
    pub(crate) fn set_route(&mut self, route: &Route) -> Vec<usize> {
        let mut to_start = Vec::new();
        if self.growth == Growth::Followed {
            for known in route.partitions.iter().skip(self.sources.len()) {
                let place = TopicPartition { topic: route.topic, partition: known.partition };
                // Everything in a partition that is new is wanted.
                self.sources.push(Source::new(place, known.epoch, Offset(0), None, None));
            }
        }
        for index in 0..self.sources.len() {
            let place = self.sources[index].place;
            let known = route.partitions.iter().find(|known| known.partition == place.partition);
            let Some(known) = known else { continue };
            let feed = self.feed_of(&known.shard);
            let source = &mut self.sources[index];
            source.epoch = known.epoch;
            let before = std::mem::replace(&mut source.feed, feed);
            if let Some(before) = self.feeds.get_mut(before) {
                before.changed = true;
            }
            self.feeds[feed].changed = true;
            let source = &self.sources[index];
            if source.life == Life::Running && !self.feeds[feed].running {
                self.feeds[feed].running = true;
                to_start.push(feed);
            }
            self.feeds[feed].wake.notify_one();
        }
        to_start
    }

    fn feed_of(&mut self, address: &ShardAddress) -> usize {
        if let Some(feed) = self.feeds.iter().position(|feed| feed.address == *address) {
            return feed;
        }
        self.feeds.push(Feed {
            address: address.clone(),
            running: false,
            wake: Arc::new(Notify::new()),
            due: Vec::new(),
            changed: true,
        });
        self.feeds.len() - 1
    }

    pub(crate) fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// Where one partition stands.
    pub(crate) fn position(&self, source: usize) -> PartitionPosition {
        let source = &self.sources[source];
        PartitionPosition {
            partition: source.place.partition,
            position: source.position,
            committed: source.committed,
            caught_up: source.caught_up && source.position == source.fetched,
        }
    }

    /// The next thing for the application. A chunk counts as taken: its bytes are granted again.
    pub(crate) fn pop(&mut self) -> Option<Item> {
        let item = self.queue.pop_front()?;
        if let Item::Chunk(chunk) = &item {
            let source = &mut self.sources[chunk.source];
            source.waiting -= chunk.bytes.len();
            source.taken += chunk.bytes.len();
            // Not for each chunk: a quarter of the room is worth a frame, and so is an empty queue.
            if (source.taken >= self.share / 4 || source.waiting == 0)
                && let Some(feed) = self.feeds.get_mut(source.feed)
            {
                feed.due.push(chunk.source);
                feed.wake.notify_one();
            }
        }
        Some(item)
    }

    /// The application has everything of a partition before `position`.
    pub(crate) fn handed_out(&mut self, source: usize, position: Offset) {
        let source = &mut self.sources[source];
        source.position = source.position.max(position);
    }

    fn end(&mut self, index: usize) {
        let source = &mut self.sources[index];
        source.life = Life::Ended;
        if let Some(feed) = self.feeds.get_mut(source.feed) {
            feed.changed = true;
            feed.wake.notify_one();
        }
    }

    /// Whether nothing will come any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.queue.is_empty() && self.sources.iter().all(|source| source.life == Life::Ended)
    }

    pub(crate) fn wait(&mut self, waker: &Waker) {
        self.waker = Some(waker.clone());
    }

    /// Queues something; returns whom to wake once the lock is free.
    pub(crate) fn push(&mut self, item: Item) -> Option<Waker> {
        if let Item::Chunk(chunk) = &item {
            self.sources[chunk.source].waiting += chunk.bytes.len();
        }
        self.queue.push_back(item);
        self.waker.take()
    }

    /// Verified batches have come.
    pub(crate) fn received(&mut self, chunk: Chunk, committed: Offset) -> Option<Waker> {
        let source = &mut self.sources[chunk.source];
        source.fetched = chunk.end;
        source.committed = source.committed.max(committed);
        // Who reads along at the tail is not told by a frame of its own that this was all.
        source.caught_up = source.fetched >= committed;
        let (index, caught_up) = (chunk.source, source.caught_up);
        if source.until.is_some_and(|until| source.fetched >= until) {
            self.end(index);
        }
        let waker = self.push(Item::Chunk(chunk));
        if caught_up {
            self.queue.push_back(Item::CaughtUp(index));
        }
        waker
    }

    /// The broker has nothing more for now.
    pub(crate) fn caught_up(&mut self, index: usize, committed: Offset) -> Option<Waker> {
        let source = &mut self.sources[index];
        source.committed = source.committed.max(committed);
        if source.caught_up {
            return None;
        }
        source.caught_up = true;
        // Offsets in front of the end may have no record, so the position need not have reached it.
        if source.until.is_some_and(|until| committed >= until) {
            self.end(index);
        }
        self.push(Item::CaughtUp(index))
    }

    /// The broker tells how far the log goes.
    pub(crate) fn committed(&mut self, index: usize, committed: Offset) {
        let source = &mut self.sources[index];
        source.committed = source.committed.max(committed);
    }

    /// The position is not in the log: it goes on elsewhere.
    pub(crate) fn skipped(&mut self, index: usize, to: Offset) -> Option<Waker> {
        let source = &mut self.sources[index];
        let from = std::mem::replace(&mut source.fetched, to);
        if source.waiting == 0 {
            source.position = to;
        }
        if source.until.is_some_and(|until| to >= until) {
            self.end(index);
        }
        self.push(Item::Skipped { source: index, from, to })
    }

    /// A partition ends with an error; `to` is where it could go on behind what cannot be read.
    pub(crate) fn failed(&mut self, index: usize, error: Error, to: Option<Offset>) -> Option<Waker> {
        let source = &self.sources[index];
        // Where the broker has lost frames of its journal it names no end: whoever went on there would be refused for ever.
        let to = to.filter(|to| *to > source.fetched);
        let unread = Unread { partition: source.place.partition, from: source.fetched, to };
        self.end(index);
        self.push(Item::Failed(error.with_unread(unread)))
    }

    /// What the limit of a subscription is that has received so much.
    pub(crate) fn limit(&self, index: usize, received: u64) -> u64 {
        received + self.share.saturating_sub(self.sources[index].waiting) as u64
    }

    /// Whether a feed has this partition to serve.
    pub(crate) fn is_served_by(&self, index: usize, feed: usize) -> bool {
        let source = &self.sources[index];
        !self.closed && source.feed == feed && source.life == Life::Running
    }

    /// Whether a feed has nothing to do any more.
    pub(crate) fn is_feed_finished(&self, feed: usize) -> bool {
        (0..self.sources.len()).all(|index| !self.is_served_by(index, feed))
    }

    /// The application has left.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.queue.clear();
        for feed in &mut self.feeds {
            feed.changed = true;
            feed.wake.notify_one();
        }
    }
}
