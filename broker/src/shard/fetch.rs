//! A subscription: `subscribed -> positioned -> (waiting) -> read -> sent`.
//!
//! A reader is in exactly one [`State`]. Those that may be sent something stand in one ring and are served by deficit round
//! robin, a bounded number of bytes a turn; what is in memory goes out as shared views, what is on the drive is read by an op
//! of its own while the others go on. A reader that lacks data, credit or room in its connection's queue is in no queue of
//! the shard; what it lacks wakes it.

use tidegate_logic::credit::FetchCredit;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::subscribe::{
    DataHead, Isolation, Progress, ProgressKind, SubscribeReply, SubscribeRequest, SubscriptionId,
    UnsubscribeRequest,
};
use tidegate_protocol::frame::Frame;
use tidegate_protocol::ids::{Offset, TopicId, TopicPartition};

use super::connection::ConnectionId;
use super::reply::Refusal;
use super::{Shard, Ticket};
use crate::log::{Positions, ReadBatches, ReadRefused, ReadStart};

/// A subscription of this shard; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReaderId(u64);

/// What a reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its turn.
    Queued,
    /// A read from the drive.
    Reading,
    /// Something to be committed.
    AtTail,
    /// Its own credit.
    NoCredit,
    /// Its connection's queue or ceiling.
    Held,
}

/// One subscription.
#[derive(Debug)]
pub(super) struct Reader {
    connection: ConnectionId,
    subscription: SubscriptionId,
    log: TopicPartition,
    next: Offset,
    credit: FetchCredit,
    isolation: Isolation,
    min_bytes: usize,
    max_wait_ns: u64,
    // When the bytes that are there go out although they are fewer than wanted; 0: none are held back.
    send_at_ns: u64,
    state: State,
    // Whether the partition's list of readers at the tail names it.
    listed: bool,
    told_caught_up: bool,
    // Since when nothing was sent, for the heartbeat.
    quiet_since_ns: u64,
}

impl Reader {
    fn upto(&self, positions: &Positions) -> Offset {
        match self.isolation {
            Isolation::Committed => positions.committed,
            Isolation::Stable => positions.stable,
        }
    }

    fn progress(&self, positions: &Positions) -> Progress {
        Progress {
            subscription: self.subscription,
            committed: positions.committed,
            stable: positions.stable,
            end: positions.appended,
            sent: self.credit.sent,
            limit: self.credit.limit,
        }
    }
}

impl Shard {
    /// Starts a subscription.
    pub(super) fn subscribe(&mut self, id: ConnectionId, frame: &Frame<'_>) -> Result<(), Refusal> {
        let request = SubscribeRequest::decode(frame)?;
        self.owned(request.partition, request.leader_epoch)?;
        let log = request.partition;
        let positions = self.logs.positions(log).ok_or(Refusal::NoLog { log })?;
        if let Some(lost) = self.logs.lost_behind(log).filter(|_| request.from > positions.committed) {
            return Err(Refusal::from_read(log, lost));
        }
        if request.from < positions.start || request.from > positions.committed {
            let (start, end) = (positions.start, positions.committed);
            return Err(Refusal::OffsetOutOfRange { log, start, end, found: request.from });
        }
        let limit = self.limits.subscriptions_max;
        let connection = self.connections.get(&id).expect("its frame has just come");
        if connection.subscriptions.contains_key(&request.subscription) {
            let rule = format!("{} is in use on this connection", request.subscription.0);
            return Err(Refusal::Invalid { field: "subscription", rule });
        }
        let shard_limit = self.limits.subscriptions_total_max;
        if self.readers.len() >= shard_limit {
            let (limit, current) = (shard_limit as u64, self.readers.len() as u64);
            return Err(Refusal::Limit { what: "subscriptions of a shard", limit, current });
        }
        if connection.subscriptions.len() >= limit {
            let current = connection.subscriptions.len() as u64;
            return Err(Refusal::Limit {
                what: "subscriptions of a connection",
                limit: limit as u64,
                current,
            });
        }
        let leader_epoch = self.logs.leader_epoch();
        let reply = SubscribeReply { start: positions.start, committed: positions.committed, leader_epoch };
        self.send(id, |out| reply.encode(frame.correlation, out));
        self.fetch_subscribed(id, &request);
        Ok(())
    }

    fn fetch_subscribed(&mut self, id: ConnectionId, request: &SubscribeRequest) {
        self.readers_made += 1;
        let reader_id = ReaderId(self.readers_made);
        let reader = Reader {
            connection: id,
            subscription: request.subscription,
            log: request.partition,
            next: request.from,
            credit: FetchCredit::new(request.limit),
            isolation: request.isolation,
            min_bytes: (request.min_bytes as usize).min(self.limits.read_bytes_max),
            max_wait_ns: u64::from(request.max_wait_ms) * 1_000_000,
            send_at_ns: 0,
            state: State::Queued,
            listed: false,
            told_caught_up: false,
            quiet_since_ns: self.now.mono_ns,
        };
        self.readers.insert(reader_id, reader);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.subscriptions.insert(request.subscription, reader_id);
        }
        self.ring.push(reader_id, 0);
        self.heartbeat_due.push_back((self.now.mono_ns + self.limits.heartbeat_ms * 1_000_000, reader_id));
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&mut self, id: ConnectionId, frame: &Frame<'_>) -> Result<(), Refusal> {
        let request = UnsubscribeRequest::decode(frame)?;
        let connection = self.connections.get_mut(&id).expect("its frame has just come");
        let Some(reader) = connection.subscriptions.remove(&request.subscription) else {
            let rule = format!("{} is not one of this connection", request.subscription.0);
            return Err(Refusal::Invalid { field: "subscription", rule });
        };
        self.reader_end(reader);
        self.reply_done(id, frame.correlation, Api::Unsubscribe);
        Ok(())
    }

    /// Serves readers in turn until nobody can be sent anything or the turn's share is used up.
    pub(super) fn fetch_turn(&mut self) {
        let mut budget = self.limits.turn_read_bytes_max as i64;
        while budget > 0 {
            let Some((id, share)) = self.ring.take_next() else { return };
            budget -= self.fetch_positioned(id, share);
        }
    }

    /// A reader has its turn: it reads, or finds out what it lacks. Returns the bytes queued for it.
    fn fetch_positioned(&mut self, id: ReaderId, share: i64) -> i64 {
        let Some(reader) = self.readers.get_mut(&id) else { return 0 };
        debug_assert_eq!(reader.state, State::Queued);
        let (log, next) = (reader.log, reader.next);
        let Some(positions) = self.logs.positions(log) else {
            let refusal = self.known(log).err().unwrap_or(Refusal::NoLog { log });
            self.reader_refused(id, &refusal);
            return 0;
        };
        let upto = reader.upto(&positions);
        if next >= upto {
            // Who waited there would wait for ever for records that were acknowledged once.
            match self.logs.lost_behind(log) {
                Some(lost) => self.reader_refused(id, &Refusal::from_read(log, lost)),
                None => self.fetch_waiting(id, &positions),
            }
            return 0;
        }
        if !reader.credit.may_start() {
            reader.state = State::NoCredit;
            self.stats.fetch_credit_waits += 1;
            return 0;
        }
        let credit_left = reader.credit.left();
        let Some(connection_left) = self.connection_left(id) else { return 0 };
        let most = (credit_left.min(connection_left)).min(self.limits.read_bytes_max as u64);
        let bytes_max = usize::try_from(most).unwrap_or(usize::MAX).min(usize::try_from(share).unwrap_or(1));
        match self.logs.read(log, next, upto, bytes_max) {
            ReadStart::Ready(batches) => self.fetch_read(id, batches, share),
            ReadStart::Pending(ticket) => {
                self.reader_state(id, State::Reading);
                self.tickets.insert(ticket, Ticket::Reader { reader: id, share });
                0
            }
            ReadStart::AtEnd => {
                self.fetch_waiting(id, &positions);
                0
            }
            ReadStart::Refused(refused) => {
                self.fetch_refused(id, refused);
                0
            }
        }
    }

    /// Bytes that the reader's connection can take now; none: the reader is held until it can.
    fn connection_left(&mut self, id: ReaderId) -> Option<u64> {
        let reader = self.readers.get(&id)?;
        let connection_id = reader.connection;
        let connection = self.connections.get(&connection_id)?;
        let left = connection.ceiling.map_or(u64::MAX, |ceiling| ceiling.left());
        let waits_for_its_own = left == 0 || self.is_full_for(connection);
        if !waits_for_its_own && !self.is_queued_most_for(connection) {
            return Some(left);
        }
        self.reader_state(id, State::Held);
        match waits_for_its_own {
            true => self.connection_mut(connection_id).held_readers.push(id),
            false => self.wait_for_less_queued(id),
        }
        None
    }

    /// A read from the drive has ended.
    pub(super) fn fetch_read_done(
        &mut self,
        id: ReaderId,
        share: i64,
        result: Result<ReadBatches, ReadRefused>,
    ) {
        if !self.readers.contains_key(&id) {
            return;
        }
        match result {
            Ok(batches) => {
                self.stats.cold_read_bytes += batches.bytes as u64;
                self.fetch_read(id, batches, share);
            }
            Err(refused) => self.fetch_refused(id, refused),
        }
    }

    /// Batches are here: they go out, unless they are too few and may wait for more.
    fn fetch_read(&mut self, id: ReaderId, batches: ReadBatches, share: i64) -> i64 {
        let now_ns = self.now.mono_ns;
        let Some(reader) = self.readers.get_mut(&id) else { return 0 };
        let Some(positions) = self.logs.positions(reader.log) else { return 0 };
        let at_tail = batches.end >= reader.upto(&positions);
        if at_tail && batches.bytes < reader.min_bytes && reader.max_wait_ns > 0 {
            if reader.send_at_ns == 0 {
                reader.send_at_ns = now_ns + reader.max_wait_ns;
            }
            if now_ns < reader.send_at_ns {
                let due = reader.send_at_ns;
                reader.state = State::AtTail;
                let log = reader.log;
                self.wait_due.insert((due, id));
                self.tail_readers(log, id);
                return 0;
            }
        }
        self.fetch_sent(id, batches, &positions, share)
    }

    fn fetch_sent(&mut self, id: ReaderId, batches: ReadBatches, positions: &Positions, share: i64) -> i64 {
        let reader = self.readers.get_mut(&id).expect("looked up just before");
        let bytes = batches.bytes;
        reader.credit.sent += bytes as u64;
        reader.next = batches.end;
        reader.send_at_ns = 0;
        reader.quiet_since_ns = self.now.mono_ns;
        reader.told_caught_up &= batches.end >= reader.upto(positions);
        reader.state = State::Queued;
        let head = DataHead {
            subscription: reader.subscription,
            first: batches.first,
            end: batches.end,
            batch_count: batches.batch_count,
            committed: positions.committed,
            stable: positions.stable,
            append_time_first_ms: batches.append_time_first_ms,
            append_time_last_ms: batches.append_time_last_ms,
            heads_crc: batches.heads_crc,
            aborted_count: 0,
            sent: reader.credit.sent,
        };
        let connection = reader.connection;
        self.ring.push(id, share - bytes as i64);
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.data_sent += bytes as u64;
            if let Some(ceiling) = &mut connection.ceiling {
                ceiling.sent += bytes as u64;
            }
        }
        self.stats.data_frames += 1;
        self.stats.data_bytes += bytes as u64;
        self.send_views(connection, batches.views, |out| head.encode_head(bytes, out));
        bytes as i64
    }

    /// Everything readable has been sent: say so once, and wait for more.
    fn fetch_waiting(&mut self, id: ReaderId, positions: &Positions) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        reader.state = State::AtTail;
        let (log, connection, progress) = (reader.log, reader.connection, reader.progress(positions));
        let first_time = !std::mem::replace(&mut reader.told_caught_up, true);
        self.tail_readers(log, id);
        if first_time {
            self.send(connection, |out| progress.encode(ProgressKind::CaughtUp, out));
        }
    }

    fn tail_readers(&mut self, log: TopicPartition, id: ReaderId) {
        let (Some(partition), Some(reader)) = (self.partitions.get_mut(&log), self.readers.get_mut(&id))
        else {
            return;
        };
        if std::mem::replace(&mut reader.listed, true) {
            return;
        }
        let list = &mut partition.tail_readers;
        if list.len() == list.capacity() {
            // Before the list grows, those that have ended leave it.
            list.retain(|listed| self.readers.contains_key(listed));
        }
        list.push(id);
    }

    fn fetch_refused(&mut self, id: ReaderId, refused: ReadRefused) {
        match refused {
            // Too many cold reads are under way: the next turn, after those of others.
            ReadRefused::Busy => {
                self.reader_state(id, State::Queued);
                self.stats.cold_reads_delayed += 1;
                self.delayed_readers.push(id);
            }
            other => {
                let Some(log) = self.readers.get(&id).map(|reader| reader.log) else { return };
                let refusal = self.read_refused(log, other);
                self.reader_refused(id, &refusal);
            }
        }
    }

    /// Puts readers back into the ring that found the drive busy.
    pub(super) fn fetch_delayed(&mut self) {
        for id in std::mem::take(&mut self.delayed_readers) {
            self.ring.push(id, 0);
        }
    }

    /// Tells the client that its subscription ends, and why.
    pub(super) fn reader_refused(&mut self, id: ReaderId, refusal: &Refusal) {
        let Some(reader) = self.readers.remove(&id) else { return };
        if let Some(connection) = self.connections.get_mut(&reader.connection) {
            connection.subscriptions.remove(&reader.subscription);
        }
        self.refuse(reader.connection, reader.subscription.0, Api::Data.number(), refusal);
    }

    /// A topic is gone: its subscriptions end, whatever they wait for. Linear in the shard's subscriptions.
    pub(super) fn readers_abandoned(&mut self, topic: TopicId) {
        let of_topic = |(id, reader): (&ReaderId, &Reader)| (reader.log.topic == topic).then_some(*id);
        let readers: Vec<ReaderId> = self.readers.iter().filter_map(of_topic).collect();
        readers.into_iter().for_each(|id| self.reader_refused(id, &Refusal::UnknownTopicId { topic }));
    }

    /// Forgets a reader. Queues that still name it skip it.
    pub(super) fn reader_end(&mut self, id: ReaderId) {
        self.readers.remove(&id);
    }

    fn reader_state(&mut self, id: ReaderId, state: State) {
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.state = state;
        }
    }

    /// What the reader lacked may be there now.
    pub(super) fn reader_wake(&mut self, id: ReaderId) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        match reader.state {
            State::Queued | State::Reading => {}
            State::AtTail | State::NoCredit | State::Held => {
                reader.state = State::Queued;
                self.ring.push(id, 0);
            }
        }
    }

    /// More of a log is committed.
    pub(super) fn readers_wake(&mut self, log: TopicPartition) {
        let Some(partition) = self.partitions.get_mut(&log) else { return };
        let mut readers = std::mem::take(&mut partition.tail_readers);
        for id in readers.drain(..) {
            if let Some(reader) = self.readers.get_mut(&id) {
                reader.listed = false;
                self.reader_wake(id);
            }
        }
        // The list's memory serves the next time, unless somebody has come back already.
        if let Some(partition) = self.partitions.get_mut(&log).filter(|p| p.tail_readers.is_empty()) {
            partition.tail_readers = readers;
        }
    }

    /// Raises the credit of a subscription.
    pub(super) fn reader_credit(&mut self, id: ReaderId, limit: u64) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        reader.credit.raise(limit);
        if reader.state == State::NoCredit {
            self.reader_wake(id);
        }
    }

    /// Sends what was held back for `max_wait`, and heartbeats for what has been quiet.
    pub(super) fn fetch_tick(&mut self) {
        let now_ns = self.now.mono_ns;
        while let Some((due, id)) = self.wait_due.first().copied().filter(|(due, _)| *due <= now_ns) {
            self.wait_due.remove(&(due, id));
            self.reader_wake(id);
        }
        let period_ns = self.limits.heartbeat_ms * 1_000_000;
        while let Some((_, id)) = self.heartbeat_due.pop_front_if(|(due, _)| *due <= now_ns) {
            let Some(reader) = self.readers.get_mut(&id) else { continue };
            // Who has not read the last one needs no further: heartbeats alone would fill the queue of a client that never reads.
            let has_read = self.connections.get(&reader.connection).is_some_and(|c| c.queued() == 0);
            if has_read
                && now_ns - reader.quiet_since_ns >= period_ns
                && let Some(positions) = self.logs.positions(reader.log)
            {
                reader.quiet_since_ns = now_ns;
                let (connection, progress) = (reader.connection, reader.progress(&positions));
                self.send(connection, |out| progress.encode(ProgressKind::Heartbeat, out));
            }
            self.heartbeat_due.push_back((now_ns + period_ns, id));
        }
    }
}
