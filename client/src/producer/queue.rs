//! The batches of one partition from their first record to their outcome, and what each refusal means for them.
//!
//! ```text
//! open -> sealed -> in flight -> acknowledged
//!                    |     ^
//!                 refused  |   resent byte by byte, or under a new identity
//!                    v     |
//!                   again -+
//! ```
//! After a refusal nothing more is sent until all that is in flight is answered: then it is known what the broker has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::api::produce::{Level, ProduceReply};
use tidegate_protocol::batch::{self, BatchBuilder, BatchOrigin};
use tidegate_protocol::error_code::{ErrorCode, Retry};
use tidegate_protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition};
use tokio::time::Instant;

use super::ticket::{Slot, UNKNOWN_OFFSET};
use super::{BatchAck, ProducerEvent};
use crate::{Error, ErrorKind, Result};

/// A batch whose time has run out gets so long for the answer that is on its way.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Batches acknowledged from memory that are remembered, in case the broker loses them.
const FROM_MEMORY_MAX: usize = 1024;

/// Who the batches of a partition are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: ProducerId,
    pub(crate) epoch: ProducerEpoch,
}

/// A batch that still grows, or has stopped growing and is not encoded yet.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) builder: BatchBuilder,
    pub(crate) slot: Arc<Slot>,
    pub(crate) opened: Instant,
}

/// A batch on its way.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) slot: Arc<Slot>,
    pub(crate) opened: Instant,
    /// Bytes that it takes of the producer's memory.
    pub(crate) charged: usize,
    pub(crate) record_count: u32,
    pub(crate) identity: Option<Identity>,
    pub(crate) base_sequence: Sequence,
    /// As sent, and as sent again; empty until it is encoded.
    pub(crate) bytes: Bytes,
    pub(crate) correlation: u32,
    pub(crate) sent: Instant,
    /// The connection was cut while it was in flight: the broker may have it.
    pub(crate) uncertain: bool,
    /// Its tickets were told that its time ran out; its answer is still waited for.
    pub(crate) given_up: bool,
}

/// What a partition does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It sends.
    Flowing,
    /// It waits for the answers to what is in flight.
    Draining(After),
    /// It waits before it sends again.
    Paused(Instant),
    /// It waits for a new identity: the next epoch of this one, or a new id.
    NeedsIdentity(Option<Identity>),
}

/// What follows once everything in flight is answered; the later ones outweigh the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum After {
    /// Go on.
    Nothing,
    /// Send the refused batches again, after a pause.
    SendAgain,
    /// Ask where the partition is now.
    Move,
    /// The broker expects this sequence.
    Sequence(Sequence),
    /// The broker no longer knows the producer.
    NewProducer,
}

/// What a refusal or an answer leads to outside of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    Nothing,
    /// The partition is elsewhere: look where.
    Reroute,
}

/// Something to tell the application, once no lock is held.
#[derive(Debug)]
pub(crate) struct Done {
    /// Where there is somebody to tell, and what.
    pub(crate) slot: Option<(Arc<Slot>, Result<BatchAck>)>,
    pub(crate) event: ProducerEvent,
    /// Bytes of memory that are free now.
    pub(crate) freed: usize,
    /// The batch's buffer, to be used again.
    pub(crate) buffer: Bytes,
}

#[derive(Clone, Copy, Debug)]
struct FromMemory {
    base_sequence: Sequence,
    base_offset: Offset,
    record_count: u32,
}

/// Everything of one partition.
///
/// Invariants: sequences rise by the records of each batch through `refused`, `in_flight` and `again`, in that order,
/// unless `gap`; `refused` holds something only while the mode is `Draining`.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) place: TopicPartition,
    pub(crate) epoch: LeaderEpoch,
    /// The lane that sends it.
    pub(crate) lane: usize,
    /// It stands in its lane's list.
    pub(crate) listed: bool,
    pub(crate) open: Option<Open>,
    pub(crate) sealed: VecDeque<Open>,
    pub(crate) in_flight: VecDeque<Batch>,
    refused: VecDeque<Batch>,
    pub(crate) again: VecDeque<Batch>,
    pub(crate) mode: Mode,
    pub(crate) identity: Option<Identity>,
    next_sequence: Sequence,
    /// A batch failed for good: the sequence of those behind it does not join any more.
    gap: bool,
    from_memory: VecDeque<FromMemory>,
}

impl Queue {
    pub(crate) fn new(
        place: TopicPartition,
        epoch: LeaderEpoch,
        lane: usize,
        identity: Option<Identity>,
    ) -> Queue {
        Queue {
            place,
            epoch,
            lane,
            listed: false,
            open: None,
            sealed: VecDeque::new(),
            in_flight: VecDeque::new(),
            refused: VecDeque::new(),
            again: VecDeque::new(),
            mode: Mode::Flowing,
            identity,
            next_sequence: Sequence(0),
            gap: false,
            from_memory: VecDeque::new(),
        }
    }

    /// Whether nothing is left of what was enqueued.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_none() && self.sealed.is_empty() && self.again.is_empty() && self.unanswered() == 0
    }

    /// Bytes that wait to be sent, uncompressed where they are not encoded yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let encoded: usize = self.again.iter().map(|batch| batch.bytes.len()).sum();
        let growing = self.sealed.iter().chain(&self.open);
        encoded + growing.map(|open| open.builder.len()).sum::<usize>()
    }

    /// When the oldest of what is not settled was enqueued.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let sent = self.refused.iter().chain(&self.in_flight).chain(&self.again).map(|batch| batch.opened);
        sent.chain(self.sealed.iter().chain(&self.open).map(|open| open.opened)).min()
    }

    fn unanswered(&self) -> usize {
        self.in_flight.len() + self.refused.len()
    }

    /// The slots of everything enqueued and not settled.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        let on_the_way =
            self.refused.iter().chain(&self.in_flight).chain(&self.again).map(|batch| &batch.slot);
        on_the_way.chain(self.sealed.iter().chain(&self.open).map(|open| &open.slot))
    }

    /// The next batch to send, put in flight: either to be encoded with this builder, or as it was sent before.
    pub(crate) fn start_next(
        &mut self,
        open_too: bool,
        now: Instant,
    ) -> Option<Option<(BatchBuilder, BatchOrigin)>> {
        if let Some(mut batch) = self.again.pop_front() {
            batch.sent = now;
            self.in_flight.push_back(batch);
            return Some(None);
        }
        let open = match self.sealed.pop_front() {
            Some(sealed) => sealed,
            None if open_too => self.open.take()?,
            None => return None,
        };
        let record_count = u32::try_from(open.builder.records_count()).expect("a count is not negative");
        let base_sequence = self.next_sequence;
        let origin = match self.identity {
            None => BatchOrigin::NONE,
            Some(identity) => {
                self.next_sequence = base_sequence.plus(open.builder.records_count());
                BatchOrigin { producer_id: identity.id, producer_epoch: identity.epoch, base_sequence }
            }
        };
        self.in_flight.push_back(Batch {
            slot: open.slot,
            opened: open.opened,
            charged: open.builder.len(),
            record_count,
            identity: self.identity,
            base_sequence,
            bytes: Bytes::new(),
            correlation: 0,
            sent: now,
            uncertain: false,
            given_up: false,
        });
        Some(Some((open.builder, origin)))
    }

    /// The batch that was put in flight last has this correlation and these bytes; none: those it had before.
    pub(crate) fn started(&mut self, correlation: u32, bytes: Option<Bytes>) -> Bytes {
        let batch = self.in_flight.back_mut().expect("it was put in flight by the only task that takes out");
        batch.correlation = correlation;
        if let Some(bytes) = bytes {
            batch.bytes = bytes;
        }
        batch.bytes.clone()
    }

    /// The batch that was put in flight last cannot be encoded.
    pub(crate) fn not_started(&mut self, error: Error, done: &mut Vec<Done>) {
        let batch = self.in_flight.pop_back().expect("it was put in flight by the only task that takes out");
        self.fail(batch, error, done);
        self.drain(After::Nothing, Instant::now(), done);
    }

    /// The front of what is in flight, if it has this correlation; replies to one partition come in order.
    fn answered_batch(&mut self, correlation: u32) -> Result<Batch> {
        match self.in_flight.front() {
            Some(batch) if batch.correlation == correlation => {}
            _ => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    "the broker answered produces out of their order",
                ));
            }
        }
        Ok(self.in_flight.pop_front().expect("looked at just now"))
    }

    /// The broker has a batch.
    pub(crate) fn acknowledged(
        &mut self,
        correlation: u32,
        reply: &ProduceReply,
        now: Instant,
        done: &mut Vec<Done>,
    ) -> Result<()> {
        let batch = self.answered_batch(correlation)?;
        if reply.level == Level::Memory && batch.identity.is_some() {
            if self.from_memory.len() == FROM_MEMORY_MAX {
                self.from_memory.pop_front();
            }
            let (base_sequence, record_count) = (batch.base_sequence, batch.record_count);
            self.from_memory.push_back(FromMemory {
                base_sequence,
                base_offset: reply.base_offset,
                record_count,
            });
        } else {
            self.from_memory.clear();
        }
        let ack = BatchAck {
            partition: self.place.partition,
            base_offset: reply.base_offset,
            record_count: batch.record_count,
            bytes: batch.bytes.len() as u32,
            level: reply.level,
            append_time_ms: reply.append_time_ms,
            leader_epoch: reply.leader_epoch,
            stages: reply.stages,
            round_trip_us: now.saturating_duration_since(batch.sent).as_micros() as u64,
        };
        settle(batch, ack, done);
        self.answered(now, done);
        Ok(())
    }

    /// The front of what is in flight was handed to the kernel, and no answer is wanted.
    pub(crate) fn handed_over(&mut self, done: &mut Vec<Done>) {
        let Some(batch) = self.in_flight.pop_front() else { return };
        let ack = BatchAck {
            partition: self.place.partition,
            base_offset: UNKNOWN_OFFSET,
            record_count: batch.record_count,
            bytes: batch.bytes.len() as u32,
            level: Level::None,
            append_time_ms: -1,
            leader_epoch: self.epoch,
            stages: Default::default(),
            round_trip_us: 0,
        };
        settle(batch, ack, done);
    }

    /// The broker refused a batch. `pause_until` is when to try again at the earliest where that makes sense.
    pub(crate) fn refused(
        &mut self,
        correlation: u32,
        error: Error,
        pause_until: Instant,
        done: &mut Vec<Done>,
    ) -> Result<Next> {
        let batch = self.answered_batch(correlation)?;
        let after = match (error.code(), error.retry()) {
            (Some(ErrorCode::OutOfSequence), _) if batch.identity.is_some() => {
                let expected = Sequence((error.numbers().0 & 0x7fff_ffff) as i32);
                match distance(batch.base_sequence, expected) {
                    // The broker is past it and no longer remembers how it went.
                    1.. => None,
                    _ => Some(After::Sequence(expected)),
                }
            }
            (Some(ErrorCode::UnknownProducer | ErrorCode::StaleProducer), _) if batch.identity.is_some() => {
                // An earlier sending of it may have been stored: under a new identity that would not be noticed.
                if batch.uncertain { None } else { Some(After::NewProducer) }
            }
            (_, Retry::Later) => Some(After::SendAgain),
            (_, Retry::OtherNode) => Some(After::Move),
            (_, Retry::Never) => {
                self.fail(batch, error, done);
                return Ok(self.drain(After::Nothing, pause_until, done));
            }
        };
        match after {
            Some(after) => {
                self.refused.push_back(batch);
                Ok(self.drain(after, pause_until, done))
            }
            None => {
                let hint = "read the end of the partition to see whether the records are there";
                self.fail(batch, Error::new(ErrorKind::UnknownOutcome, error.cause()).with_hint(hint), done);
                Ok(self.drain(After::NewProducer, pause_until, done))
            }
        }
    }

    fn drain(&mut self, after: After, pause_until: Instant, done: &mut Vec<Done>) -> Next {
        let before = match self.mode {
            Mode::Draining(before) => before,
            _ => After::Nothing,
        };
        // Of several expected sequences the first counts: those behind it follow from it.
        let after = match (before, after) {
            (After::Sequence(_), After::Sequence(_)) => before,
            _ => before.max(after),
        };
        self.mode = Mode::Draining(after);
        self.answered(pause_until, done)
    }

    /// When nothing is in flight any more, decides how to go on.
    fn answered(&mut self, pause_until: Instant, done: &mut Vec<Done>) -> Next {
        let Mode::Draining(after) = self.mode else { return Next::Nothing };
        if !self.in_flight.is_empty() {
            return Next::Nothing;
        }
        while let Some(batch) = self.refused.pop_back() {
            self.again.push_front(batch);
        }
        self.mode = match after {
            After::Nothing | After::SendAgain | After::Move if self.gap => Mode::NeedsIdentity(self.identity),
            After::Nothing => Mode::Flowing,
            After::SendAgain | After::Move => Mode::Paused(pause_until),
            After::Sequence(expected) => self.expected(expected, pause_until, done),
            After::NewProducer => Mode::NeedsIdentity(None),
        };
        if after == After::Move { Next::Reroute } else { Next::Nothing }
    }

    /// The broker waits for `expected`, and everything that it has answered is known.
    fn expected(&mut self, expected: Sequence, pause_until: Instant, done: &mut Vec<Done>) -> Mode {
        if self.gap {
            return Mode::NeedsIdentity(self.identity);
        }
        let Some(first) = self.again.front() else { return Mode::Flowing };
        let missing = distance(expected, first.base_sequence);
        if missing == 0 {
            // A batch in front of it was refused for a passing reason.
            return Mode::Paused(pause_until);
        }
        let mut told = 0;
        for lost in std::mem::take(&mut self.from_memory) {
            if distance(expected, lost.base_sequence) >= 0 {
                told += i64::from(lost.record_count);
                done.push(self.lost(lost.base_offset, lost.record_count));
            }
        }
        if told < i64::from(missing) {
            done.push(self.lost(UNKNOWN_OFFSET, (i64::from(missing) - told) as u32));
        }
        Mode::NeedsIdentity(self.identity)
    }

    fn lost(&self, base_offset: Offset, record_count: u32) -> Done {
        let event = ProducerEvent::Lost { partition: self.place.partition, base_offset, record_count };
        Done { slot: None, event, freed: 0, buffer: Bytes::new() }
    }

    /// Starts a new sequence: what waits to be sent again is renumbered, which only the header of each batch shows.
    pub(crate) fn set_identity(&mut self, identity: Identity) {
        self.identity = Some(identity);
        self.next_sequence = Sequence(0);
        self.gap = false;
        self.from_memory.clear();
        for batch in &mut self.again {
            let origin = BatchOrigin {
                producer_id: identity.id,
                producer_epoch: identity.epoch,
                base_sequence: self.next_sequence,
            };
            let mut bytes = Vec::from(std::mem::take(&mut batch.bytes));
            batch::set_origin(&mut bytes, origin);
            batch.bytes = Bytes::from(bytes);
            batch.identity = Some(identity);
            batch.base_sequence = self.next_sequence;
            self.next_sequence = self.next_sequence.plus(batch.record_count as i32);
        }
        self.mode = Mode::Flowing;
    }

    /// The connection was cut: everything in flight is sent again as it was. Returns how many batches that are.
    pub(crate) fn connection_lost(&mut self) -> usize {
        let resent = self.unanswered();
        while let Some(mut batch) = self.in_flight.pop_back() {
            batch.uncertain = true;
            self.again.push_front(batch);
        }
        while let Some(batch) = self.refused.pop_back() {
            self.again.push_front(batch);
        }
        if let Mode::Draining(_) = self.mode {
            self.mode = Mode::Flowing;
        }
        resent
    }

    /// Fails what was opened before `oldest` and is not stored for all that is known.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        oldest: Instant,
        obstacle: Option<&Error>,
        done: &mut Vec<Done>,
    ) {
        while self.again.front().is_some_and(|batch| batch.opened < oldest) {
            let batch = self.again.pop_front().expect("looked at just now");
            let error = too_late(batch.uncertain, obstacle);
            self.fail(batch, error, done);
        }
        // Batches in flight are about to be answered, as a rule. Where that takes too long their tickets are told that
        // it is not known; their answers are still waited for, because those behind them join them.
        let patience = now.checked_sub(ANSWER_WAIT).unwrap_or(oldest);
        let hanging = |batch: &&mut Batch| batch.opened < oldest && batch.sent < patience && !batch.given_up;
        for batch in self.in_flight.iter_mut().filter(hanging) {
            batch.given_up = true;
            let error = too_late(true, obstacle);
            let (partition, record_count) = (self.place.partition, batch.record_count);
            let event = ProducerEvent::Failed { partition, record_count, error: error.clone() };
            let slot = Some((batch.slot.clone(), Err(error)));
            done.push(Done { slot, event, freed: 0, buffer: Bytes::new() });
        }
        while self.sealed.front().is_some_and(|open| open.opened < oldest) {
            let open = self.sealed.pop_front().expect("looked at just now");
            done.push(self.never_sent(open, too_late(false, obstacle)));
        }
        if self.open.as_ref().is_some_and(|open| open.opened < oldest) {
            let open = self.open.take().expect("looked at just now");
            done.push(self.never_sent(open, too_late(false, obstacle)));
        }
        self.begin_anew_after_a_gap();
    }

    /// Fails everything, for a reason that no waiting mends.
    pub(crate) fn fail_all(&mut self, error: &Error, done: &mut Vec<Done>) {
        self.connection_lost();
        while let Some(batch) = self.again.pop_front() {
            self.fail(batch, error.clone(), done);
        }
        while let Some(open) = self.sealed.pop_front().or_else(|| self.open.take()) {
            done.push(self.never_sent(open, error.clone()));
        }
        self.begin_anew_after_a_gap();
    }

    fn begin_anew_after_a_gap(&mut self) {
        if self.gap && self.in_flight.is_empty() && matches!(self.mode, Mode::Flowing | Mode::Paused(_)) {
            self.mode = Mode::NeedsIdentity(self.identity);
        }
    }

    /// The topic was deleted and created anew: its log knows no sequence of this producer.
    pub(crate) fn move_to_new_log(&mut self, place: TopicPartition) {
        self.place = place;
        self.next_sequence = Sequence(0);
        self.gap = false;
        self.from_memory.clear();
        self.mode = Mode::Flowing;
    }

    fn fail(&mut self, batch: Batch, error: Error, done: &mut Vec<Done>) {
        self.gap |= batch.identity.is_some();
        let (partition, record_count) = (self.place.partition, batch.record_count);
        let event = ProducerEvent::Failed { partition, record_count, error: error.clone() };
        done.push(Done {
            slot: Some((batch.slot, Err(error))),
            event,
            freed: batch.charged,
            buffer: batch.bytes,
        });
    }

    fn never_sent(&self, open: Open, error: Error) -> Done {
        let record_count = u32::try_from(open.builder.records_count()).expect("a count is not negative");
        let event =
            ProducerEvent::Failed { partition: self.place.partition, record_count, error: error.clone() };
        Done { slot: Some((open.slot, Err(error))), event, freed: open.builder.len(), buffer: Bytes::new() }
    }
}

fn settle(batch: Batch, ack: BatchAck, done: &mut Vec<Done>) {
    let event = ProducerEvent::Acknowledged(ack);
    done.push(Done { slot: Some((batch.slot, Ok(ack))), event, freed: batch.charged, buffer: batch.bytes });
}

fn too_late(uncertain: bool, obstacle: Option<&Error>) -> Error {
    let why = obstacle.map_or_else(|| "the broker has not answered".to_string(), Error::to_string);
    let cause = format!("not acknowledged within the delivery timeout: {why}");
    if uncertain {
        return Error::new(ErrorKind::UnknownOutcome, cause)
            .with_hint("the records may or may not be stored; read the end of the partition to see");
    }
    Error::new(ErrorKind::Expired, cause).with_hint("the records are not stored; produce them again")
}

/// How far `to` is ahead of `from` in the ring of sequences; negative if it is behind.
fn distance(from: Sequence, to: Sequence) -> i32 {
    let ahead = (i64::from(to.0) - i64::from(from.0)) & 0x7fff_ffff;
    if ahead < 1 << 30 { ahead as i32 } else { (ahead - (1 << 31)) as i32 }
}
