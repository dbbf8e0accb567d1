//! The task of one shard's connection: subscribes to the shard's partitions, verifies what comes, queues it, grants
//! credit as the application takes it, and after a cut goes on exactly where it was.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::subscribe::{
    DataHead, Isolation, Progress, ProgressKind, SubscribeReply, SubscribeRequest, SubscriptionId,
    UnsubscribeRequest,
};
use tidegate_protocol::batch::{BatchError, Batches};
use tidegate_protocol::crc;
use tidegate_protocol::error_code::{ErrorCode, Retry};
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::{LeaderEpoch, Offset};
use tokio::time::Instant;

use super::state::{Chunk, State};
use super::{Inner, OutOfRange};
use crate::connection::{Connection, Received, unreadable};
use crate::retry::Backoff;
use crate::{Error, ErrorKind, Result};

/// A data frame that is not full waits this long for more, once something is there.
const MAX_WAIT_MS: u32 = 0;
/// The longest wait for the metadata before the old place is tried again.
const REROUTE_WAIT: Duration = Duration::from_secs(2);
/// So often the same damaged bytes are asked for again: the wire may have done it. Then the application is told.
const DAMAGE_MAX: u32 = 3;

/// Serves the partitions of one shard until there is nothing more to get or the application has left.
pub(crate) async fn run(inner: Arc<Inner>, feed: usize) {
    let mut backoff = Backoff::new(inner.client.backoff);
    let mut damage = Damage::default();
    loop {
        let address = inner.lock().feeds[feed].address.clone();
        let opened = Connection::open(&address.address, Some(address.shard), &inner.client.dial).await;
        let ended = match opened {
            Ok(connection) => Link::new(&inner, feed, connection).serve(&mut backoff, &mut damage).await,
            Err(error) => Err(error),
        };
        {
            let mut state = inner.lock();
            if state.is_feed_finished(feed) {
                state.feeds[feed].running = false;
                return;
            }
        }
        if let Err(error) = &ended
            && error.code().is_some()
            && !error.is_retriable()
        {
            fail_all(&inner, feed, error);
            continue;
        }
        tokio::time::sleep(backoff.next()).await;
        reroute(&inner).await;
    }
}

/// Asks where the partitions are now; if that is not told in time, they stay where they were.
async fn reroute(inner: &Arc<Inner>) {
    match tokio::time::timeout(REROUTE_WAIT, inner.client.route(&inner.topic)).await {
        Ok(Ok(route)) => {
            let same = inner.lock().sources.first().is_none_or(|source| source.place.topic == route.topic);
            if same {
                inner.set_route(&route);
            } else {
                let cause = format!("topic {:?} was deleted and created anew", inner.topic);
                fail_everywhere(inner, &Error::new(ErrorKind::Closed, cause));
            }
        }
        Ok(Err(error)) if error.code() == Some(ErrorCode::UnknownTopic) => fail_everywhere(inner, &error),
        _ => {}
    }
}

fn fail_everywhere(inner: &Inner, error: &Error) {
    let feeds = inner.lock().feeds.len();
    (0..feeds).for_each(|feed| fail_all(inner, feed, error));
}

fn fail_all(inner: &Inner, feed: usize, error: &Error) {
    let mut state = inner.lock();
    let served: Vec<_> = (0..state.source_count()).filter(|&index| state.is_served_by(index, feed)).collect();
    let wakers: Vec<_> =
        served.into_iter().filter_map(|index| state.failed(index, error.clone(), None)).collect();
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
}

/// Where damaged bytes came, and how often in a row.
#[derive(Debug, Default)]
struct Damage {
    at: Option<(usize, Offset)>,
    times: u32,
}

/// A subscription of this connection.
#[derive(Debug)]
struct Subscription {
    source: usize,
    /// Body bytes that have come.
    received: u64,
    /// The limit last told.
    limit: u64,
}

/// One connection of a feed.
struct Link<'a> {
    inner: &'a Arc<Inner>,
    feed: usize,
    connection: Connection,
    subscriptions: HashMap<u32, Subscription>,
    /// The subscription of each partition that has one.
    subscribed: HashMap<usize, u32>,
    next_id: u32,
    /// Partitions that were refused for a passing reason, and when to try again.
    refused: HashMap<usize, Instant>,
    reroute: bool,
    /// When to look for new partitions.
    refresh_at: Instant,
}

impl<'a> Link<'a> {
    fn new(inner: &'a Arc<Inner>, feed: usize, connection: Connection) -> Link<'a> {
        Link {
            inner,
            feed,
            connection,
            subscriptions: HashMap::new(),
            subscribed: HashMap::new(),
            next_id: 1,
            refused: HashMap::new(),
            reroute: false,
            refresh_at: Instant::now() + inner.client.refresh,
        }
    }

    async fn serve(mut self, backoff: &mut Backoff, damage: &mut Damage) -> Result<()> {
        let wake = {
            let feed = &mut self.inner.lock().feeds[self.feed];
            // A new connection has no subscriptions yet.
            feed.changed = true;
            feed.wake.clone()
        };
        loop {
            while let Some(frame) = self.connection.next_frame()? {
                self.on_frame(&frame, backoff, damage)?;
            }
            self.subscribe_and_grant();
            if self.inner.lock().is_feed_finished(self.feed) {
                return Ok(());
            }
            if std::mem::take(&mut self.reroute) || Instant::now() >= self.refresh_at {
                reroute(self.inner).await;
                self.refresh_at = Instant::now() + self.inner.client.refresh;
                continue;
            }
            let mut until = self.connection.keep_alive(Instant::now(), (0, 0))?.min(self.refresh_at);
            until = self.refused.values().fold(until, |until, &time| until.min(time));
            self.connection.transmit()?;
            tokio::select! {
                ready = self.connection.ready() => {
                    ready?;
                    self.connection.receive()?;
                }
                () = wake.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Subscribes to what has no subscription, ends those that are not wanted any more, and raises limits.
    fn subscribe_and_grant(&mut self) {
        let now = Instant::now();
        let due_again = self.refused.values().any(|&time| time <= now);
        let inner = self.inner;
        let mut state = inner.lock();
        let due = std::mem::take(&mut state.feeds[self.feed].due);
        if std::mem::take(&mut state.feeds[self.feed].changed) || due_again {
            self.refused.retain(|_, &mut time| time > now);
            self.end_subscriptions(&state);
            self.subscribe(&mut state);
        }
        for source in due {
            self.grant(&mut state, source);
        }
    }

    fn end_subscriptions(&mut self, state: &State) {
        let feed = self.feed;
        let connection = &mut self.connection;
        self.subscribed.retain(|&source, &mut id| {
            if state.is_served_by(source, feed) {
                return true;
            }
            self.subscriptions.remove(&id);
            let request = UnsubscribeRequest { subscription: SubscriptionId(id) };
            connection.send_with(|out| request.encode(id, out));
            false
        });
    }

    fn subscribe(&mut self, state: &mut State) {
        for source in 0..state.source_count() {
            let waits = self.subscribed.contains_key(&source) || self.refused.contains_key(&source);
            if waits || !state.is_served_by(source, self.feed) {
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            let request = subscribe_request(state, source, id);
            self.connection.send_with(|out| request.encode(id, out));
            self.subscriptions.insert(id, Subscription { source, received: 0, limit: request.limit });
            self.subscribed.insert(source, id);
        }
    }

    fn grant(&mut self, state: &mut State, source: usize) {
        let Some(&id) = self.subscribed.get(&source) else { return };
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        let limit = state.limit(source, subscription.received);
        state.sources[source].taken = 0;
        if limit > subscription.limit {
            subscription.limit = limit;
            let scope = Scope::Subscription(SubscriptionId(id));
            let credit = Credit { scope, limit, reason: Reason::None, wanted: 0 };
            self.connection.send_with(|out| credit.encode(out));
        }
    }

    fn on_frame(&mut self, frame: &Received, backoff: &mut Backoff, damage: &mut Damage) -> Result<()> {
        let id = frame.correlation;
        match (frame.api()?, frame.kind()) {
            (_, Kind::Error) => self.on_refusal(id, frame.refusal(), backoff),
            (Api::Subscribe, Kind::Reply) => {
                let reply = SubscribeReply::decode(&frame.frame());
                let reply = reply.map_err(|error| unreadable("a subscription", &error))?;
                if let Some(subscription) = self.subscriptions.get(&id) {
                    self.inner.lock().committed(subscription.source, reply.committed);
                }
                Ok(())
            }
            (Api::Data, Kind::Request) => {
                self.on_data(frame, damage)?;
                backoff.reset();
                Ok(())
            }
            (Api::CaughtUp, Kind::Request) => self.on_progress(frame, ProgressKind::CaughtUp),
            (Api::Heartbeat, Kind::Request) => self.on_progress(frame, ProgressKind::Heartbeat),
            _ => Ok(()),
        }
    }

    fn on_progress(&mut self, frame: &Received, kind: ProgressKind) -> Result<()> {
        let progress =
            Progress::decode(&frame.frame(), kind).map_err(|error| unreadable("a notice", &error))?;
        let Some(subscription) = self.subscriptions.get(&progress.subscription.0) else { return Ok(()) };
        let mut state = self.inner.lock();
        let waker = match kind {
            ProgressKind::CaughtUp => state.caught_up(subscription.source, progress.committed),
            ProgressKind::Heartbeat => {
                state.committed(subscription.source, progress.committed);
                None
            }
        };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn on_data(&mut self, frame: &Received, damage: &mut Damage) -> Result<()> {
        let head = DataHead::decode(&frame.frame()).map_err(|error| unreadable("data", &error))?;
        // What was on its way when the subscription ended.
        let Some(subscription) = self.subscriptions.get_mut(&head.subscription.0) else { return Ok(()) };
        let source = subscription.source;
        let body = frame.body();
        subscription.received += body.len() as u64;
        if head.sent != subscription.received {
            let cause = format!(
                "the broker says that it sent {} bytes of a subscription, {} came",
                head.sent, subscription.received
            );
            return Err(Error::new(ErrorKind::Protocol, cause));
        }
        let (place, fetched, until, from_time_ms) = {
            let state = self.inner.lock();
            let source = &state.sources[source];
            (source.place, source.fetched, source.until, source.from_time_ms)
        };
        let end = match verify(&head, &body, fetched) {
            Ok(end) => end,
            Err(error) => return self.on_damage(source, (fetched, head.end), error, damage),
        };
        *damage = Damage::default();
        let mut chunk = Chunk {
            source,
            partition: place.partition,
            bytes: body,
            wanted: (fetched, until.unwrap_or(Offset(i64::MAX))),
            end,
            append_time_ms: head.append_time_first_ms,
        };
        let found = from_time_ms.is_none_or(|time_ms| chunk.begin_at(time_ms));
        let mut state = self.inner.lock();
        if found {
            state.sources[source].from_time_ms = None;
        }
        let waker = state.received(chunk, head.committed);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Damaged bytes are asked for again over a new connection; those that stay damaged are told.
    fn on_damage(
        &mut self,
        source: usize,
        (at, end): (Offset, Offset),
        error: Error,
        damage: &mut Damage,
    ) -> Result<()> {
        if damage.at != Some((source, at)) {
            *damage = Damage { at: Some((source, at)), times: 0 };
        }
        damage.times += 1;
        if damage.times >= DAMAGE_MAX {
            let to = Some(end).filter(|end| *end > at);
            let waker = self.inner.lock().failed(source, error.clone(), to);
            waker.into_iter().for_each(Waker::wake);
        }
        // The kind of error that a new connection may mend.
        Err(Error::new(ErrorKind::Protocol, error.cause()))
    }

    fn on_refusal(&mut self, id: u32, error: Error, backoff: &mut Backoff) -> Result<()> {
        let Some(subscription) = self.subscriptions.remove(&id) else {
            // The answer to an unsubscribe of what has ended, or an error about the connection as a whole.
            return if error.code() == Some(ErrorCode::InvalidRequest) { Ok(()) } else { Err(error) };
        };
        let source = subscription.source;
        self.subscribed.remove(&source);
        let pause_until = Instant::now() + backoff.next();
        let mut state = self.inner.lock();
        let waker = match (error.code(), error.retry()) {
            (Some(ErrorCode::OffsetOutOfRange), _) if self.inner.out_of_range != OutOfRange::Fail => {
                let (start, committed) = error.numbers();
                let to = match self.inner.out_of_range {
                    OutOfRange::Latest => Offset(committed),
                    _ => Offset(start),
                };
                state.feeds[self.feed].changed = true;
                state.skipped(source, to)
            }
            (_, Retry::Later) => {
                // Looked at again when its time has come.
                self.refused.insert(source, pause_until);
                None
            }
            (_, Retry::OtherNode) => {
                self.refused.insert(source, pause_until);
                self.reroute = true;
                None
            }
            (_, Retry::Never) => {
                let to = match (error.code(), error.limit()) {
                    (Some(ErrorCode::DataDamaged), Some((_, _, end))) => Some(Offset(end)),
                    _ => None,
                };
                state.failed(source, error, to)
            }
        };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

fn subscribe_request(state: &mut State, index: usize, id: u32) -> SubscribeRequest {
    let limit = state.limit(index, 0);
    let source = &mut state.sources[index];
    source.taken = 0;
    SubscribeRequest {
        subscription: SubscriptionId(id),
        partition: source.place,
        from: source.fetched,
        limit,
        min_bytes: 1,
        max_wait_ms: MAX_WAIT_MS,
        isolation: Isolation::Committed,
        leader_epoch: source.epoch,
        last_read_epoch: LeaderEpoch::UNKNOWN,
    }
}

/// Checks every checksum and that the batches join `fetched` and one another: every offset has a record, and the
/// application would not notice if some were left out. Returns where the next ones go on.
fn verify(head: &DataHead, body: &Bytes, fetched: Offset) -> Result<Offset> {
    let damaged = |error: BatchError| {
        Error::new(ErrorKind::Damaged, format!("at offset {fetched}: {error}"))
            .with_hint("the bytes are damaged on the wire or in the broker")
    };
    let rule = |what: &str| Error::new(ErrorKind::Protocol, format!("at offset {fetched}: {what}"));
    let mut heads_crc = 0;
    let mut count = 0;
    let mut end = None;
    let mut next = fetched;
    for batch in Batches::new(body) {
        let batch = batch.map_err(damaged)?;
        batch.verify_crc().map_err(damaged)?;
        heads_crc = crc::append(heads_crc, batch.head());
        let header = batch.header();
        if end.is_some_and(|end| header.base_offset < end) {
            return Err(rule("a batch begins before the one in front of it ends"));
        }
        if header.base_offset > next {
            return Err(rule(&format!("the broker has left out offsets {next} to {}", header.base_offset)));
        }
        next = header.end_offset();
        end = Some(next);
        count += 1;
    }
    if heads_crc != head.heads_crc {
        return Err(rule("the heads of the batches have another checksum than the frame says"));
    }
    if count != head.batch_count {
        return Err(rule("there are more or fewer batches than the frame says"));
    }
    match end {
        Some(end) if end == head.end && end > fetched => Ok(end),
        _ => Err(rule("the batches do not end where the frame says, or bring nothing new")),
    }
}
