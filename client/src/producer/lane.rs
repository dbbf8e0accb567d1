//! The task of one shard's connection: takes batches of the shard's partitions, encodes and sends them while credit
//! lasts, hands answers to their queues, and after a cut begins anew.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::produce::{Acks, ProduceReply, ProduceRequest};
use tidegate_protocol::batch::compression::Packer;
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, Compression};
use tidegate_protocol::error_code::Retry;
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::PartitionId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::queue::{Done, Identity, Next};
use super::{Inner, ProducerEvent, init_identity};
use crate::connection::{Connection, Received, unreadable};
use crate::retry::Backoff;
use crate::{Error, ErrorKind, Result};

/// Bytes given to the connection before the kernel takes some.
const OUTPUT_BYTES: usize = 1024 * 1024;
/// How often the lane looks for batches whose time has run out.
const EXPIRE_EVERY: Duration = Duration::from_millis(250);
/// Asking again for credit that does not come.
const WANTED_EVERY: Duration = Duration::from_secs(1);
/// The longest wait for the metadata before the old place is tried again.
const REROUTE_WAIT: Duration = Duration::from_secs(2);
/// Produces without acknowledgement whose refusal could still be told.
const UNANSWERED_MAX: usize = 4096;

/// Serves one shard until the producer is closed and nothing is left, or no partition is there any more.
pub(crate) async fn run(inner: Arc<Inner>, lane: usize) {
    let mut backoff = Backoff::new(inner.client.backoff);
    loop {
        let address = inner.lock().lanes[lane].address.clone();
        let opened = Connection::open(&address.address, Some(address.shard), &inner.client.dial).await;
        let ended = match opened {
            Ok(connection) => Link::new(&inner, lane, connection).serve(&mut backoff).await,
            Err(error) => Err(error),
        };
        if finish_or_take_back(&inner, lane, ended) {
            return;
        }
        expire(&inner, lane);
        tokio::time::sleep(backoff.next()).await;
        reroute(&inner, lane).await;
    }
}

/// After the end of a connection: whether the lane has nothing more to do. Else what was in flight is sent again.
fn finish_or_take_back(inner: &Inner, lane: usize, ended: Result<()>) -> bool {
    let mut state = inner.lock();
    if let Err(error) = ended {
        state.lanes[lane].hold(error);
        state.stats.reconnects += 1;
    }
    let now = Instant::now();
    for index in 0..state.queues.len() {
        if state.queues[index].lane == lane {
            let resent = state.queues[index].connection_lost();
            state.stats.batches_resent += resent as u64;
            state.list(index, now);
        }
    }
    let finished = state.is_finished(lane);
    state.lanes[lane].running = !finished;
    finished
}

/// Asks where the partitions are now; if that is not told in time, they stay where they were.
async fn reroute(inner: &Arc<Inner>, lane: usize) {
    match tokio::time::timeout(REROUTE_WAIT, inner.client.route(&inner.topic)).await {
        Ok(Ok(route)) => {
            let identity = inner.lock().queues.first().and_then(|queue| queue.identity);
            inner.set_route(&route, identity);
        }
        Ok(Err(error)) if !error.is_retriable() && error.code().is_some() => {
            inner.with(|state, done| state.queues.iter_mut().for_each(|queue| queue.fail_all(&error, done)));
        }
        Ok(Err(error)) => inner.lock().lanes[lane].hold(error),
        Err(_) => {}
    }
}

fn expire(inner: &Inner, lane: usize) {
    let now = Instant::now();
    inner.with(|state, done| {
        let Some(oldest) = now.checked_sub(state.settings.delivery_timeout) else { return };
        let obstacle = state.lanes[lane].obstacle().cloned();
        for queue in state.queues.iter_mut().filter(|queue| queue.lane == lane) {
            queue.expire(now, oldest, obstacle.as_ref(), done);
        }
    });
}

/// One connection of a lane.
///
/// Invariant: a correlation stands in `sent_to` exactly while its batch is in flight.
struct Link<'a> {
    inner: &'a Arc<Inner>,
    lane: usize,
    acks: Acks,
    compression: Compression,
    packer: Packer,
    connection: Connection,
    next_correlation: u32,
    /// The queue of each batch in flight.
    sent_to: HashMap<u32, usize>,
    /// Produce bytes sent, and how many may be.
    sent: u64,
    limit: u64,
    /// Since when credit is missing, and when it was asked for last.
    blocked: Option<(Instant, Instant)>,
    /// Without acknowledgements: where each batch ends in what the connection is given.
    unwritten: VecDeque<(u64, usize)>,
    /// Without acknowledgements: what a late refusal is about.
    unanswered: VecDeque<(u32, PartitionId, u32)>,
    identities: (mpsc::Sender<Result<Identity>>, mpsc::Receiver<Result<Identity>>),
    /// The queue that an identity is asked for.
    asking: Option<usize>,
    reroute: bool,
    /// When to look for new partitions.
    refresh_at: Instant,
    expired: Instant,
}

impl<'a> Link<'a> {
    fn new(inner: &'a Arc<Inner>, lane: usize, connection: Connection) -> Link<'a> {
        let mut state = inner.lock();
        let window = usize::from(connection.hello().idempotence_window);
        if state.settings.idempotent && window > 0 {
            state.settings.max_in_flight = state.settings.max_in_flight.min((window - 1).max(1));
        }
        let (acks, compression) = (state.settings.acks, state.settings.compression);
        drop(state);
        let limit = connection.hello().credit_initial;
        Link {
            inner,
            lane,
            acks,
            compression,
            packer: Packer::default(),
            connection,
            next_correlation: 0,
            sent_to: HashMap::new(),
            sent: 0,
            limit,
            blocked: None,
            unwritten: VecDeque::new(),
            unanswered: VecDeque::new(),
            identities: mpsc::channel(1),
            asking: None,
            reroute: false,
            refresh_at: Instant::now() + inner.client.refresh,
            expired: Instant::now(),
        }
    }

    async fn serve(mut self, backoff: &mut Backoff) -> Result<()> {
        let wake = self.inner.lock().lanes[self.lane].wake.clone();
        loop {
            while let Some(frame) = self.connection.next_frame()? {
                self.on_frame(&frame, backoff)?;
            }
            self.pump()?;
            self.connection.transmit()?;
            if self.hand_over() {
                continue;
            }
            if self.inner.lock().is_finished(self.lane) {
                return Ok(());
            }
            self.ask_for_identity();
            if std::mem::take(&mut self.reroute) || Instant::now() >= self.refresh_at {
                reroute(self.inner, self.lane).await;
                self.refresh_at = Instant::now() + self.inner.client.refresh;
                continue;
            }
            let until = self.next_check()?;
            tokio::select! {
                ready = self.connection.ready() => {
                    ready?;
                    self.connection.receive()?;
                }
                () = wake.notified() => {}
                Some(identity) = self.identities.1.recv() => self.on_identity(identity),
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Does what is due by the clock; returns when to do so again.
    fn next_check(&mut self) -> Result<Instant> {
        let now = Instant::now();
        let mut until = self.connection.keep_alive(now, (self.sent, self.limit))?.min(self.refresh_at);
        self.connection.transmit()?;
        if let Some((_, asked)) = self.blocked {
            until = until.min(asked + WANTED_EVERY);
        }
        if now >= self.expired + EXPIRE_EVERY {
            self.expired = now;
            expire(self.inner, self.lane);
        }
        let state = self.inner.lock();
        if state.memory_used > 0 {
            until = until.min(self.expired + EXPIRE_EVERY);
        }
        // While the kernel takes nothing more, whose time has come waits for that instead.
        let delayed = state.delayed_until(self.lane).filter(|_| self.connection.queued() < OUTPUT_BYTES);
        Ok(delayed.map_or(until, |delayed| until.min(delayed)))
    }

    /// Sends as long as there is something, the connection takes it and credit lasts.
    fn pump(&mut self) -> Result<()> {
        while self.connection.queued() < OUTPUT_BYTES {
            let now = Instant::now();
            if self.sent >= self.limit {
                self.want_credit(now);
                return Ok(());
            }
            self.unblock(now);
            let taken = self.inner.lock().take(self.lane, now);
            let Some(taken) = taken else { return Ok(()) };
            let correlation = self.next_correlation;
            self.next_correlation = (correlation + 1) & 0x7fff_ffff;
            let fresh = match taken
                .fresh
                .map(|(builder, origin)| encode(builder, origin, self.compression, &mut self.packer))
            {
                None => None,
                Some(Ok(bytes)) => Some(bytes),
                Some(Err(error)) => {
                    self.inner.with(|state, done| {
                        state.queues[taken.queue].not_started(error, done);
                        state.list(taken.queue, now);
                    });
                    continue;
                }
            };
            let (bytes, record_count) = {
                let mut state = self.inner.lock();
                let queue = &mut state.queues[taken.queue];
                let bytes = queue.started(correlation, fresh);
                (bytes, queue.in_flight.back().map_or(0, |batch| batch.record_count))
            };
            let request =
                ProduceRequest { partition: taken.place, leader_epoch: taken.epoch, acks: self.acks };
            let mut head = Vec::with_capacity(ProduceRequest::FRAME_HEAD_LEN);
            request.encode_head(correlation, bytes.len(), &mut head);
            let len = (head.len() + bytes.len()) as u64;
            self.sent += len;
            self.connection.send(Bytes::from(head));
            self.connection.send(bytes);
            if self.acks == Acks::None {
                let end = self.connection.written() + self.connection.queued() as u64;
                self.unwritten.push_back((end, taken.queue));
                if self.unanswered.len() == UNANSWERED_MAX {
                    self.unanswered.pop_front();
                }
                self.unanswered.push_back((correlation, taken.place.partition, record_count));
            } else {
                self.sent_to.insert(correlation, taken.queue);
            }
        }
        Ok(())
    }

    /// Says once, and again when nothing comes, that bytes wait for credit.
    fn want_credit(&mut self, now: Instant) {
        if !self.inner.lock().has_ready(self.lane, now) {
            self.unblock(now);
            return;
        }
        if let Some((_, asked)) = self.blocked
            && now < asked + WANTED_EVERY
        {
            return;
        }
        // Not more than there is: what is granted and not used is taken from others, and ends the connection.
        let waiting = self.inner.lock().unsent_bytes(self.lane);
        let since = self.blocked.map_or(now, |(since, _)| since);
        self.blocked = Some((since, now));
        let credit =
            Credit { scope: Scope::Produce, limit: self.limit, reason: Reason::None, wanted: waiting.max(1) };
        self.connection.send_with(|out| credit.encode(out));
    }

    fn unblock(&mut self, now: Instant) {
        if let Some((since, _)) = self.blocked.take() {
            let waited = now.saturating_duration_since(since).as_micros() as u64;
            let mut state = self.inner.lock();
            state.stats.credit_wait_us += waited;
            state.lanes[self.lane].free();
        }
    }

    /// Without acknowledgements a batch is done once the kernel has it. Returns whether one was.
    fn hand_over(&mut self) -> bool {
        let mut some = false;
        while let Some(&(end, queue)) = self.unwritten.front() {
            if end > self.connection.written() {
                break;
            }
            self.unwritten.pop_front();
            some = true;
            self.inner.with(|state, done| {
                state.queues[queue].handed_over(done);
                state.list(queue, Instant::now());
            });
        }
        some
    }

    fn on_frame(&mut self, frame: &Received, backoff: &mut Backoff) -> Result<()> {
        match (frame.api()?, frame.kind()) {
            (Api::Produce, Kind::Reply) => {
                let reply = ProduceReply::decode(&frame.frame())
                    .map_err(|error| unreadable("an acknowledgement", &error))?;
                let Some(queue) = self.sent_to.remove(&frame.correlation) else { return Ok(()) };
                backoff.reset();
                let now = Instant::now();
                let (lane, waits_for_credit) = (self.lane, self.blocked.is_some());
                self.inner.with(|state, done| {
                    if !waits_for_credit {
                        state.lanes[lane].free();
                    }
                    state.queues[queue].acknowledged(frame.correlation, &reply, now, done)?;
                    state.list(queue, now);
                    Ok(())
                })?;
            }
            (Api::Produce, Kind::Error) => self.on_refusal(frame, backoff)?,
            (Api::Credit, Kind::Request) => {
                let credit =
                    Credit::decode(&frame.frame()).map_err(|error| unreadable("a credit", &error))?;
                if credit.scope == Scope::Produce {
                    self.on_credit(credit);
                }
            }
            // An error about the connection as a whole.
            (_, Kind::Error) => return Err(frame.refusal()),
            _ => {}
        }
        Ok(())
    }

    /// The limit rises, or the broker says why it does not. It may say so within the limit, too, when what it was sent waits.
    fn on_credit(&mut self, credit: Credit) {
        if credit.limit <= self.limit && credit.reason != Reason::None {
            self.inner.lock().lanes[self.lane].hold(Error::no_credit(credit.reason));
        }
        self.limit = self.limit.max(credit.limit);
    }

    fn on_refusal(&mut self, frame: &Received, backoff: &mut Backoff) -> Result<()> {
        let error = frame.refusal();
        if error.kind() == ErrorKind::Protocol {
            return Err(error);
        }
        if self.acks == Acks::None {
            self.lost_without_ack(frame.correlation, error);
            return Ok(());
        }
        let Some(queue) = self.sent_to.remove(&frame.correlation) else { return Err(error) };
        let (now, lane) = (Instant::now(), self.lane);
        let next = self.inner.with(|state, done| {
            if error.retry() != Retry::Never {
                state.lanes[lane].hold(error.clone());
            }
            let next = state.queues[queue].refused(frame.correlation, error, now + backoff.next(), done);
            state.list(queue, now);
            next
        })?;
        self.reroute |= next == Next::Reroute;
        Ok(())
    }

    /// A batch that counted as sent was refused: its tickets are gone, the loss is counted and told.
    fn lost_without_ack(&mut self, correlation: u32, error: Error) {
        let Some(at) = self.unanswered.iter().position(|&(sent, ..)| sent == correlation) else { return };
        let (_, partition, record_count) = self.unanswered.remove(at).expect("its place was found");
        self.reroute |= error.retry() == Retry::OtherNode;
        let event = ProducerEvent::Failed { partition, record_count, error };
        let lost = Done { slot: None, event, freed: 0, buffer: Bytes::new() };
        self.inner.with(|_, done| done.push(lost));
    }

    /// Asks for one identity at a time, in a task of its own, so that answers are taken meanwhile.
    fn ask_for_identity(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let Some((queue, known)) = self.inner.lock().without_identity(self.lane) else { return };
        self.asking = Some(queue);
        let (client, answer) = (self.inner.client.clone(), self.identities.0.clone());
        tokio::spawn(async move {
            // The lane may have ended meanwhile.
            let _ = answer.send(init_identity(&client, known).await).await;
        });
    }

    fn on_identity(&mut self, identity: Result<Identity>) {
        let Some(queue) = self.asking.take() else { return };
        let mut state = self.inner.lock();
        match identity {
            Ok(identity) if state.queues[queue].lane == self.lane => {
                state.queues[queue].set_identity(identity);
                state.list(queue, Instant::now());
            }
            Ok(_) => {}
            Err(error) => state.lanes[self.lane].hold(error),
        }
    }
}

/// The batch as it goes over the wire.
fn encode(
    builder: BatchBuilder,
    origin: BatchOrigin,
    compression: Compression,
    packer: &mut Packer,
) -> Result<Bytes> {
    if compression == Compression::None {
        return Ok(Bytes::from(builder.finish(origin)));
    }
    let packed = builder.finish_packed(origin, compression, packer);
    packed
        .map(Bytes::from)
        .map_err(|error| Error::new(ErrorKind::Damaged, format!("cannot compress: {error}")))
}
