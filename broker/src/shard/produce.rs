//! A produce, top to bottom, one function for each stage:
//! `received -> admitted -> appended -> written -> flushed -> committed -> replied`. Any stage may end in
//! [`Shard::produce_refused`] (the caller's fault, or an ordinary state of the world) or [`Shard::produce_faulted`] (the
//! drive's).
//!
//! The ack levels that wait are values in one ordered queue of waiters for each log, so that replies to one partition leave in the
//! order of the requests; acks=0 waits for nothing. What a reply says about durability comes out of [`Proof`], and only a flush makes the token
//! in it. With one replica, acks=all is met by the leader's own flush and says `disk`; a relaxed topic is answered from
//! memory at acks=1 and acks=all alike and says `memory`.

use std::collections::VecDeque;

use tidegate_logic::placement::shard_of;
use tidegate_logic::topics::{Durability, TopicSettings};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::produce::{Acks, Level, ProduceReply, ProduceRequest, StageTimes};
use tidegate_protocol::batch::Batches;
use tidegate_protocol::frame::Frame;
use tidegate_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Fault, Op};

use super::connection::{ConnectionId, Flow};
use super::fetch::ReaderId;
use super::mail::{Answer, Ask, Asker};
use super::reply::Refusal;
use super::{Phase, Shard, stages};
use crate::log::{AppendRefused, Appended, DurableToken, IncomingBatch};
use crate::mutants::{self, Mutant};

/// A user's partition on this shard: who waits for it.
///
/// Invariant: `waiting` is in the order of the requests; the offsets of those that were appended rise.
#[derive(Debug)]
pub(super) struct Partition {
    /// What its topic has decided.
    pub(super) settings: TopicSettings,
    waiting: VecDeque<Waiting>,
    /// Subscriptions that have read everything.
    pub(super) tail_readers: Vec<ReaderId>,
    /// Who waits for a trim, and of everything below which offset.
    pub(super) trims: Vec<(Offset, Asker)>,
    /// The start as far as it is flushed; the log's own moves when a trim begins.
    pub(super) start_flushed: Offset,
}

/// Who is told when a log has come so far.
#[derive(Debug)]
struct Waiting {
    asker: Asker,
    until: Until,
    received_ns: u64,
    /// When the write of its last batch was submitted, and when that had ended; 0 before.
    begun_ns: u64,
    written_ns: u64,
    outcome: Result<Appended, Refusal>,
}

impl Waiting {
    fn new(asker: Asker, until: Until, received_ns: u64, outcome: Result<Appended, Refusal>) -> Waiting {
        Waiting { asker, until, received_ns, begun_ns: 0, written_ns: 0, outcome }
    }
}

/// What releases a waiter that has come to the front of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Its place in the log, or its refusal: nothing more.
    Appended,
    /// All below is flushed on this drive.
    Durable(Offset),
    /// All below is flushed on every in-sync replica.
    Committed(Offset),
}

/// A produce that has come by mail and waits for room in its log.
#[derive(Debug)]
pub(super) struct Letter {
    asker: Asker,
    request: ProduceRequest,
    body: View,
}

/// How it is known that a produce has met its level.
#[derive(Clone, Copy, Debug)]
enum Proof {
    Memory,
    Flush(DurableToken),
}

impl Proof {
    fn level(self) -> Level {
        match self {
            Proof::Memory => Level::Memory,
            Proof::Flush(_) => Level::Disk,
        }
    }
}

impl Partition {
    /// Of a log that recovery has found, or that is new: its start is flushed.
    pub(super) fn new(settings: TopicSettings, start_flushed: Offset) -> Partition {
        let (waiting, tail_readers, trims) = (VecDeque::new(), Vec::new(), Vec::new());
        Partition { settings, waiting, tail_readers, trims, start_flushed }
    }

    /// Requests that wait for this log.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Shard {
    /// A produce frame has come. It counts against the connection's credit, whatever becomes of it, but for one case: within
    /// its credit a client is not refused because the log has no room now. Then nothing has happened yet, and the connection
    /// waits with this frame.
    ///
    /// If another shard owns the partition, the rest of the story happens there; the connection waits likewise while that shard
    /// has not answered for too many bytes.
    pub(super) fn produce_received(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
        bytes: &View,
        body_at: usize,
        ops: &mut Vec<Op>,
    ) -> Flow {
        let credit = self.pool.may_begin(id.holder());
        let request = match ProduceRequest::decode(frame) {
            Ok(request) => request,
            Err(error) => {
                self.produce_counted(id, frame);
                self.refuse(id, frame.correlation, frame.api_number, &error.into());
                return Flow::Next;
            }
        };
        let asker = Asker::Connection { id, correlation: frame.correlation, api: Api::Produce };
        self.request_begins(id);
        let owner = shard_of(request.partition, self.shard_count);
        if let Err(out) = credit {
            self.produce_counted(id, frame);
            let refusal = Refusal::OutOfCredit { limit: out.limit, received: out.received };
            self.produce_refused(asker, request.partition, refusal, ops);
        } else if owner == self.me || self.phase != Phase::Serving {
            let body = bytes.slice(body_at..body_at + frame.body.len());
            if self.produce_came(asker, &request, &body, ops) == Flow::Again {
                self.connection_answered(id);
                return Flow::Again;
            }
            self.produce_counted(id, frame);
        } else if self.forwards_too_much(owner, frame.body.len()) {
            self.connection_answered(id);
            return Flow::Again;
        } else {
            self.produce_counted(id, frame);
            self.stats.produces_forwarded += 1;
            self.ask(asker, owner, Ask::Produce { request, body: Buffer::copy_of(frame.body) }, ops);
        }
        Flow::Next
    }

    fn produce_counted(&mut self, id: ConnectionId, frame: &Frame<'_>) {
        self.stats.produces_received += 1;
        // One that was ended meanwhile has left the pool.
        if let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.is_open()) {
            connection.told = None;
            self.pool.received(self.now.mono_ns, id.holder(), frame.len() as u64);
        }
    }

    /// A produce has come by mail. It waits for room like one from a connection, behind those that wait already, so that replies
    /// to one partition keep their order. The sender bounds how many bytes wait here.
    pub(super) fn produce_by_mail(
        &mut self,
        asker: Asker,
        request: ProduceRequest,
        body: View,
        ops: &mut Vec<Op>,
    ) {
        if self.letters.is_empty() && self.produce_came(asker, &request, &body, ops) == Flow::Next {
            return;
        }
        self.stats.room_waits += 1;
        self.letters.push_back(Letter { asker, request, body });
    }

    /// Lets letters go on that wait for room, in their order, while there is some; `anyway`: also without.
    pub(super) fn letters_find_room(&mut self, anyway: bool, ops: &mut Vec<Op>) {
        while self.logs.room().bytes > 0 || anyway {
            let Some(letter) = self.letters.pop_front() else { return };
            if self.produce_came(letter.asker, &letter.request, &letter.body, ops) == Flow::Again {
                return self.letters.push_front(letter);
            }
        }
    }

    /// A produce has come to the shard that owns its partition, from a connection of its own or by mail.
    pub(super) fn produce_came(
        &mut self,
        asker: Asker,
        request: &ProduceRequest,
        body: &View,
        ops: &mut Vec<Op>,
    ) -> Flow {
        let mut batches = std::mem::take(&mut self.incoming);
        let flow = match self.produce_admitted(request, body, &mut batches) {
            Ok(()) => self.produce_appended(asker, request, &batches, ops),
            Err(refusal) => {
                self.produce_refused(asker, request.partition, refusal, ops);
                Flow::Next
            }
        };
        batches.clear();
        self.incoming = batches;
        flow
    }

    /// Whether the request may be done at all: everything that can be told without the log.
    fn produce_admitted(
        &self,
        request: &ProduceRequest,
        body: &View,
        batches: &mut Vec<IncomingBatch>,
    ) -> Result<(), Refusal> {
        if self.phase != Phase::Serving {
            return Err(self.not_ready());
        }
        let partition = self.owned(request.partition, request.leader_epoch)?;
        let relaxed = partition.settings.durability == Durability::Relaxed;
        if self.storage.refuses_durable() && !relaxed && request.acks != Acks::None {
            return Err(Refusal::DurabilityNotAvailable);
        }
        let mut at = 0;
        for batch in Batches::new(body) {
            let batch = batch?;
            batch.check_from_client(partition.settings.batch_bytes_max)?;
            batch.verify_crc()?;
            let end = at + batch.bytes().len();
            batches.push(IncomingBatch { view: body.slice(at..end), header: *batch.header() });
            at = end;
        }
        if batches.is_empty() {
            return Err(Refusal::Invalid { field: "body", rule: "holds no batch".to_owned() });
        }
        Ok(())
    }

    /// The partition, if this shard leads it under the epoch that the client believes in, and clients may use it.
    pub(super) fn owned(&self, log: TopicPartition, epoch: LeaderEpoch) -> Result<&Partition, Refusal> {
        self.known(log)?;
        let owner = shard_of(log, self.shard_count);
        if owner != self.me {
            return Err(Refusal::WrongShard { log, owner, here: self.me });
        }
        let current = self.logs.leader_epoch();
        if epoch != LeaderEpoch::UNKNOWN && epoch != current {
            return Err(Refusal::StaleEpoch { current, found: epoch });
        }
        self.partitions.get(&log).ok_or(Refusal::NoLog { log })
    }

    /// That a client's topic has this partition.
    pub(super) fn known(&self, log: TopicPartition) -> Result<(), Refusal> {
        let Some(topic) = self.topics.get(log.topic) else {
            return Err(Refusal::UnknownTopicId { topic: log.topic });
        };
        if log.partition.0 < 0 || log.partition.0 >= topic.record.partitions {
            let (name, partitions) = (topic.record.name.clone(), topic.record.partitions);
            return Err(Refusal::UnknownPartition { name, partitions, found: log.partition });
        }
        Ok(())
    }

    /// The batches get their place in the log, and the request its place in the queue of those who wait.
    fn produce_appended(
        &mut self,
        asker: Asker,
        request: &ProduceRequest,
        batches: &[IncomingBatch],
        ops: &mut Vec<Op>,
    ) -> Flow {
        let log = request.partition;
        let appended = match self.logs.append(self.now, log, batches) {
            Ok(appended) => appended,
            Err(AppendRefused::NoRoom { wanted: 1.., .. }) => return Flow::Again,
            Err(refused) => {
                self.produce_refused(asker, log, refused.into(), ops);
                return Flow::Next;
            }
        };
        if appended.duplicate {
            self.stats.duplicates += 1;
        } else {
            self.stats.records_appended += (appended.end.0 - appended.base.0).unsigned_abs();
            self.stats.bytes_appended += batches.iter().map(|batch| batch.view.len() as u64).sum::<u64>();
        }
        if request.acks == Acks::None {
            self.answer(asker, Ok(Answer::Produce(None)), ops);
            return Flow::Next;
        }
        let partition = self.partitions.get_mut(&log).expect("admitted");
        let relaxed = partition.settings.durability == Durability::Relaxed;
        let early = appended.duplicate && mutants::on(Mutant::DuplicateAnsweredEarly);
        let until = match (relaxed || early, request.acks) {
            (true, _) | (false, Acks::None) => Until::Appended,
            (false, Acks::Leader) => Until::Durable(appended.end),
            (false, Acks::All) => Until::Committed(appended.end),
        };
        let waiting = Waiting::new(asker, until, self.now.mono_ns, Ok(appended));
        if early {
            partition.waiting.push_front(waiting);
        } else {
            partition.waiting.push_back(waiting);
        }
        // On a relaxed topic, and for a repetition of what is flushed already, there is nothing to wait for but one's turn.
        let flushed = self.logs.durable(log).filter(|_| appended.duplicate);
        self.produce_committed(log, flushed.map_or(Proof::Memory, Proof::Flush), ops);
        Flow::Next
    }

    /// All below `upto` has been written, the last of it by a write submitted at `begun_ns`: noted for the stage times; nothing can
    /// be said about durability yet.
    pub(super) fn produce_written(&mut self, log: TopicPartition, upto: Offset, begun_ns: u64) {
        let now_ns = self.now.mono_ns;
        let Some(partition) = self.partitions.get_mut(&log) else { return };
        for waiting in &mut partition.waiting {
            match &waiting.outcome {
                Ok(appended) if appended.end > upto => break,
                Ok(_) if waiting.written_ns == 0 => {
                    // A repetition may have come while the first one was being written.
                    waiting.begun_ns = begun_ns.max(waiting.received_ns);
                    waiting.written_ns = now_ns;
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// A flush has covered all below the token.
    pub(super) fn produce_flushed(&mut self, log: TopicPartition, token: DurableToken, ops: &mut Vec<Op>) {
        // One replica: what is durable here is durable on every one, so it is committed.
        self.produce_committed(log, Proof::Flush(token), ops);
        self.readers_wake(log);
    }

    /// Releases those at the front of the queue whose condition holds.
    fn produce_committed(&mut self, log: TopicPartition, proof: Proof, ops: &mut Vec<Op>) {
        let durable = match proof {
            Proof::Memory => Offset(0),
            Proof::Flush(token) => token.upto(),
        };
        while let Some(partition) = self.partitions.get_mut(&log) {
            let Some(released) = partition.waiting.pop_front_if(|waiting| match waiting.until {
                Until::Appended => true,
                Until::Durable(end) | Until::Committed(end) => end <= durable,
            }) else {
                return;
            };
            let proof = match released.until {
                Until::Appended => Proof::Memory,
                Until::Durable(_) | Until::Committed(_) => proof,
            };
            self.produce_replied(released, proof, ops);
        }
    }

    fn produce_replied(&mut self, waiting: Waiting, proof: Proof, ops: &mut Vec<Op>) {
        let Waiting { asker, received_ns, begun_ns, written_ns, outcome, .. } = waiting;
        let appended = match outcome {
            Ok(appended) => appended,
            Err(refusal) => return self.answer(asker, Err(refusal), ops),
        };
        let mut stages = StageTimes::default();
        if let Proof::Flush(_) = proof {
            stages.flushed_us = micros(self.now.mono_ns - received_ns);
            self.stats.ack_us_total += u64::from(stages.flushed_us);
        }
        // A repetition of what was written before has waited for no write.
        if written_ns > 0 {
            stages.written_us = micros(written_ns - received_ns);
            stages::count(&mut self.stages.queue, begun_ns - received_ns);
            stages::count(&mut self.stages.write, written_ns - begun_ns);
            stages::count(&mut self.stages.flush, self.now.mono_ns - written_ns);
        }
        let early = appended.duplicate && mutants::on(Mutant::DuplicateAnsweredEarly);
        let reply = ProduceReply {
            base_offset: appended.base,
            record_count: u32::try_from(appended.end.0 - appended.base.0).unwrap_or(u32::MAX),
            append_time_ms: appended.append_time_ms,
            level: self.storage.met(if early { Level::Disk } else { proof.level() }),
            leader_epoch: self.logs.leader_epoch(),
            stages,
        };
        self.stats.acks += 1;
        match asker {
            Asker::Connection { id, correlation, .. } => {
                self.connection_answered(id);
                self.send(id, |out| reply.encode(correlation, out));
            }
            Asker::Shard { .. } | Asker::Gather { .. } => {
                self.answer(asker, Ok(Answer::Produce(Some(reply))), ops);
            }
        }
    }

    /// Nothing was appended. The error takes its turn behind earlier requests to the same partition.
    fn produce_refused(&mut self, asker: Asker, log: TopicPartition, refusal: Refusal, ops: &mut Vec<Op>) {
        self.stats.produces_refused += 1;
        match self.partitions.get_mut(&log).filter(|partition| !partition.waiting.is_empty()) {
            Some(partition) => {
                let waiting = Waiting::new(asker, Until::Appended, self.now.mono_ns, Err(refusal));
                partition.waiting.push_back(waiting);
            }
            None => self.answer(asker, Err(refusal), ops),
        }
    }

    /// The drive has failed under everything at or above `from`: whether it is stored is not known.
    pub(super) fn produce_faulted(
        &mut self,
        log: TopicPartition,
        from: Offset,
        fault: &Fault,
        ops: &mut Vec<Op>,
    ) {
        let Some(partition) = self.partitions.get_mut(&log) else { return };
        let waiting = std::mem::take(&mut partition.waiting);
        let flushed = self.logs.durable(log);
        for mut waiting in waiting {
            let proof = match (&waiting.outcome, waiting.until, flushed) {
                (Err(_), _, _) | (Ok(_), Until::Appended, _) => Proof::Memory,
                (Ok(_), Until::Durable(end) | Until::Committed(end), Some(token)) if token.upto() >= end => {
                    Proof::Flush(token)
                }
                (Ok(appended), Until::Durable(_) | Until::Committed(_), _) => {
                    self.stats.unknown_outcomes += 1;
                    let from = appended.base.max(from);
                    waiting.outcome = Err(Refusal::UnknownOutcome { log, from, fault: fault.clone() });
                    Proof::Memory
                }
            };
            self.produce_replied(waiting, proof, ops);
        }
    }

    /// The topic is gone: everyone who waits for one of its partitions is told so.
    pub(super) fn produce_abandoned(&mut self, partition: Partition, log: TopicPartition, ops: &mut Vec<Op>) {
        for (_, asker) in partition.trims {
            self.answer(asker, Err(Refusal::UnknownTopicId { topic: log.topic }), ops);
        }
        for mut waiting in partition.waiting {
            waiting.outcome = Err(Refusal::UnknownTopicId { topic: log.topic });
            self.produce_replied(waiting, Proof::Memory, ops);
        }
    }
}

fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1000).unwrap_or(u32::MAX)
}
