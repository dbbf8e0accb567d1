//! What all clones of a producer and all its lanes share: the partitions, the memory, who has something to send.
//!
//! Plain data behind one lock that is held for the time of a few instructions, never across an await. A record is
//! encoded under it, straight into its batch; batches are compressed, checked and sent by the lanes without it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::api::produce::Acks;
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, Compression};
use tidegate_protocol::ids::{PartitionId, TopicPartition};
use tidegate_protocol::partitioner;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::queue::{Done, Identity, Mode, Open, Queue};
use super::ticket::Slot;
use super::{Linger, Partitioning, ProducerStats, Record, Stall};
use crate::client::{Route, ShardAddress, unknown_partition};
use crate::{Error, ErrorKind, Result};

/// Bytes of a record beside its key, value and headers, at most.
const RECORD_OVERHEAD: usize = 40;
/// Bytes of a header beside its name and value, at most.
const HEADER_OVERHEAD: usize = 10;
/// Buffers kept to be used again.
const SPARE_MAX: usize = 16;

/// How a producer works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) acks: Acks,
    pub(crate) compression: Compression,
    pub(crate) partitioning: Partitioning,
    pub(crate) linger: Linger,
    pub(crate) idempotent: bool,
    pub(crate) batch_bytes: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) max_in_flight: usize,
    pub(crate) delivery_timeout: Duration,
}

/// The partitions of one shard that have something to send.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) address: ShardAddress,
    /// Has a task.
    pub(crate) running: bool,
    pub(crate) wake: Arc<Notify>,
    ready: VecDeque<usize>,
    /// Partitions that may send from a time on.
    delayed: Vec<(Instant, usize)>,
    /// What has stood in its way since when.
    held: Option<(Instant, Error)>,
}

impl Lane {
    /// What stands in its way, for those whose time runs out.
    pub(crate) fn obstacle(&self) -> Option<&Error> {
        self.held.as_ref().map(|(_, error)| error)
    }

    /// Something stands in its way, or something else than before.
    pub(crate) fn hold(&mut self, error: Error) {
        let since = self.held.as_ref().map_or_else(Instant::now, |&(since, _)| since);
        self.held = Some((since, error));
    }

    /// It comes on.
    pub(crate) fn free(&mut self) {
        self.held = None;
    }
}

/// What became of a record.
#[derive(Debug)]
pub(crate) enum Added {
    /// It stands in its batch.
    In {
        slot: Arc<Slot>,
        index: u32,
        /// The lane to wake, if it has to.
        wake: Option<Arc<Notify>>,
        /// A batch became full.
        filled: bool,
    },
    /// The memory is full.
    Full,
}

/// What a lane sends next.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) queue: usize,
    pub(crate) place: TopicPartition,
    pub(crate) epoch: tidegate_protocol::ids::LeaderEpoch,
    /// The batch to encode; none: it is encoded.
    pub(crate) fresh: Option<(BatchBuilder, BatchOrigin)>,
}

/// Whether the application has ended the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Closed,
}

/// Invariant: a queue is `listed` exactly if it stands once in its lane's `ready` or `delayed`.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) topic: String,
    pub(crate) settings: Settings,
    pub(crate) queues: Vec<Queue>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) phase: Phase,
    pub(crate) memory_used: usize,
    pub(crate) stats: ProducerStats,
    /// Batches that have left their queues while those who wait for them are being told.
    pub(crate) telling: Vec<Arc<Slot>>,
    /// The first failure since the last flush.
    pub(crate) first_error: Option<Error>,
    /// The partition that records without a key go to until its batch is full.
    sticky: usize,
    spare: Vec<Vec<u8>>,
    /// The largest batch that the broker takes.
    batch_bytes_max: usize,
}

impl State {
    pub(crate) fn new(topic: &str, settings: Settings, batch_bytes_max: usize) -> State {
        State {
            topic: topic.to_string(),
            settings,
            queues: Vec::new(),
            lanes: Vec::new(),
            phase: Phase::Running,
            memory_used: 0,
            stats: ProducerStats::default(),
            telling: Vec::new(),
            first_error: None,
            sticky: 0,
            spare: Vec::new(),
            batch_bytes_max,
        }
    }

    /// Takes over where the partitions are. Returns the lanes that need a task.
    pub(crate) fn set_route(
        &mut self,
        route: &Route,
        identity: Option<Identity>,
        done: &mut Vec<Done>,
    ) -> Vec<usize> {
        for (index, partition) in route.partitions.iter().enumerate() {
            let lane = self.lane_of(&partition.shard);
            let place = TopicPartition { topic: route.topic, partition: partition.partition };
            let Some(queue) = self.queues.get_mut(index) else {
                self.queues.push(Queue::new(place, partition.epoch, lane, identity));
                continue;
            };
            queue.epoch = partition.epoch;
            if queue.place != place {
                let cause = format!("topic {:?} was deleted and created anew", self.topic);
                queue.fail_all(&Error::new(ErrorKind::Closed, cause), done);
                queue.move_to_new_log(place);
            }
            if queue.lane != lane {
                // Its old lane forgets it when it comes across it.
                queue.lane = lane;
                queue.listed = false;
            }
        }
        let mut to_start = Vec::new();
        for index in 0..self.queues.len() {
            self.list(index, Instant::now());
            let lane = self.queues[index].lane;
            if !self.lanes[lane].running {
                self.lanes[lane].running = true;
                to_start.push(lane);
            }
            self.lanes[lane].wake.notify_one();
        }
        to_start
    }

    fn lane_of(&mut self, address: &ShardAddress) -> usize {
        if let Some(lane) = self.lanes.iter().position(|lane| lane.address == *address) {
            return lane;
        }
        self.lanes.push(Lane {
            address: address.clone(),
            running: false,
            wake: Arc::new(Notify::new()),
            ready: VecDeque::new(),
            delayed: Vec::new(),
            held: None,
        });
        self.lanes.len() - 1
    }

    /// Puts a record into the batch of its partition.
    pub(crate) fn add(&mut self, record: &Record<'_>, timestamp_ms: i64) -> Result<Added> {
        if self.phase == Phase::Closed {
            return Err(Error::new(ErrorKind::Closed, "the producer is closed"));
        }
        if self.memory_used >= self.settings.memory_bytes {
            return Ok(Added::Full);
        }
        let bytes = bytes_of(record);
        if bytes > self.batch_bytes_max.saturating_sub(tidegate_protocol::batch::HEADER_LEN) {
            return Err(Error::new(ErrorKind::TooLarge, "the record does not fit into a batch")
                .with_limit("batch bytes", self.batch_bytes_max as i64, bytes as i64)
                .with_hint("split the record into several"));
        }
        let index = self.partition_for(record)?;
        let queue = &mut self.queues[index];
        let mut filled = false;
        if queue.open.as_ref().is_some_and(|open| open.builder.len() + bytes > self.settings.batch_bytes) {
            queue.sealed.extend(queue.open.take());
            filled = true;
        }
        let fresh = queue.open.is_none();
        let before = if fresh { 0 } else { queue.open.as_ref().map_or(0, |open| open.builder.len()) };
        let spare = &mut self.spare;
        let open = queue.open.get_or_insert_with(|| Open {
            builder: BatchBuilder::new(spare.pop().unwrap_or_default()),
            slot: Arc::new(Slot::new()),
            opened: Instant::now(),
        });
        let place = open.builder.records_count() as u32;
        let headers = record.headers.iter().map(|header| (header.name, header.value));
        open.builder.push(timestamp_ms, record.key, record.value, headers);
        let slot = open.slot.clone();
        self.memory_used += open.builder.len() - before;
        self.stats.records += 1;
        let wake = if (fresh || filled) && self.list(index, Instant::now()) {
            Some(self.lanes[self.queues[index].lane].wake.clone())
        } else {
            None
        };
        if filled {
            self.turn_from(index);
        }
        Ok(Added::In { slot, index: place, wake, filled })
    }

    fn partition_for(&self, record: &Record<'_>) -> Result<usize> {
        let count = self.queues.len();
        if let Some(PartitionId(partition)) = record.partition {
            let index = usize::try_from(partition).ok().filter(|&index| index < count);
            return index.ok_or_else(|| unknown_partition(&self.topic, PartitionId(partition), count));
        }
        Ok(match (record.key, self.settings.partitioning) {
            (Some(key), Partitioning::Keyed) => partitioner::of_key(key, count as i32).0 as usize,
            _ => self.sticky,
        })
    }

    /// Records without a key go on to the next partition once the batch of this one has gone.
    fn turn_from(&mut self, index: usize) {
        if index == self.sticky {
            self.sticky = (index + 1) % self.queues.len();
        }
    }

    /// Puts a partition into its lane's list if it may send something, now or later. Returns whether it is new there.
    pub(crate) fn list(&mut self, index: usize, now: Instant) -> bool {
        let queue = &mut self.queues[index];
        if queue.listed {
            return false;
        }
        let lane = &mut self.lanes[queue.lane];
        match may_send(queue, &self.settings, now) {
            May::Now => lane.ready.push_back(index),
            May::From(time) => lane.delayed.push((time, index)),
            May::Not => return false,
        }
        queue.listed = true;
        true
    }

    /// The next batch of a lane, put in flight.
    pub(crate) fn take(&mut self, lane: usize, now: Instant) -> Option<Taken> {
        self.wake_delayed(lane, now);
        while let Some(index) = self.lanes[lane].ready.pop_front() {
            let queue = &mut self.queues[index];
            if queue.lane != lane || !queue.listed {
                continue;
            }
            queue.listed = false;
            match may_send(queue, &self.settings, now) {
                May::Now => {}
                May::From(_) => {
                    self.list(index, now);
                    continue;
                }
                May::Not => continue,
            }
            if let Mode::Paused(_) = queue.mode {
                queue.mode = Mode::Flowing;
            }
            let had_open = queue.open.is_some();
            let Some(fresh) = queue.start_next(true, now) else { continue };
            let (place, epoch) = (queue.place, queue.epoch);
            if had_open && queue.open.is_none() {
                self.turn_from(index);
            }
            self.list(index, now);
            return Some(Taken { queue: index, place, epoch, fresh });
        }
        None
    }

    fn wake_delayed(&mut self, lane: usize, now: Instant) {
        let lane = &mut self.lanes[lane];
        let ready = &mut lane.ready;
        lane.delayed.retain(|&(time, index)| {
            if time <= now {
                ready.push_back(index);
            }
            time > now
        });
    }

    /// When a partition of this lane may send at the earliest that may not yet.
    pub(crate) fn delayed_until(&self, lane: usize) -> Option<Instant> {
        self.lanes[lane].delayed.iter().map(|&(time, _)| time).min()
    }

    /// Whether something of this lane could be sent now if the broker let it.
    pub(crate) fn has_ready(&mut self, lane: usize, now: Instant) -> bool {
        self.wake_delayed(lane, now);
        !self.lanes[lane].ready.is_empty()
    }

    /// Bytes of a lane that wait to be sent.
    pub(crate) fn unsent_bytes(&self, lane: usize) -> u64 {
        let own = self.queues.iter().filter(|queue| queue.lane == lane);
        own.map(|queue| queue.unsent_bytes() as u64).sum()
    }

    /// What keeps a lane with work from coming on; of several the one that has lasted longest.
    pub(crate) fn stall(&self, now: Instant) -> Option<Stall> {
        let of_lane = |(index, lane): (usize, &Lane)| {
            let (since, error) = lane.held.as_ref()?;
            let own = self.queues.iter().filter(|queue| queue.lane == index);
            // An obstacle from before there was something to do has held up nothing yet.
            let oldest = own.filter_map(Queue::oldest).min()?;
            let lasted = now.saturating_duration_since(oldest.max(*since));
            Some(Stall { error: error.clone(), lasted })
        };
        self.lanes.iter().enumerate().filter_map(of_lane).max_by_key(|stall| stall.lasted)
    }

    /// Whether a lane has nothing more to do for ever.
    pub(crate) fn is_finished(&self, lane: usize) -> bool {
        let mut own = self.queues.iter().filter(|queue| queue.lane == lane).peekable();
        own.peek().is_none() || (self.phase == Phase::Closed && own.all(Queue::is_idle))
    }

    /// Partitions of this lane that wait for an identity.
    pub(crate) fn without_identity(&self, lane: usize) -> Option<(usize, Option<Identity>)> {
        self.queues.iter().enumerate().find_map(|(index, queue)| match queue.mode {
            Mode::NeedsIdentity(known) if queue.lane == lane => Some((index, known)),
            _ => None,
        })
    }

    /// Keeps a buffer to be used again, if nobody else still looks at it.
    pub(crate) fn recycle(&mut self, buffer: Bytes) {
        if self.spare.len() < SPARE_MAX && buffer.is_unique() && buffer.len() * 2 > self.settings.batch_bytes
        {
            let mut buffer = Vec::from(buffer);
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

enum May {
    Now,
    From(Instant),
    Not,
}

/// Whether a partition may send its next batch.
fn may_send(queue: &Queue, settings: &Settings, now: Instant) -> May {
    match queue.mode {
        Mode::Flowing => {}
        Mode::Paused(until) if until <= now => {}
        Mode::Paused(until) => return if queue.is_idle() { May::Not } else { May::From(until) },
        Mode::Draining(_) | Mode::NeedsIdentity(_) => return May::Not,
    }
    if queue.in_flight.len() >= settings.max_in_flight {
        return May::Not;
    }
    if !queue.again.is_empty() || !queue.sealed.is_empty() {
        return May::Now;
    }
    let Some(open) = &queue.open else { return May::Not };
    if !queue.in_flight.is_empty() {
        return May::Not;
    }
    match settings.linger {
        Linger::AtLeast(wait) if open.opened + wait > now => May::From(open.opened + wait),
        _ => May::Now,
    }
}

fn bytes_of(record: &Record<'_>) -> usize {
    let headers = record.headers.iter();
    let headers: usize =
        headers.map(|header| header.name.len() + header.value.map_or(0, <[u8]>::len) + HEADER_OVERHEAD).sum();
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len) + headers + RECORD_OVERHEAD
}
