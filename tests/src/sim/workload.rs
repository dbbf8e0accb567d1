//! What a run asks of the logs of one shard: a [`Turn`] that drives [`Logs`] directly, as a shard would.
//!
//! Every choice comes from the seed. Nothing here knows how the log works; everything it answers goes to [`Truth`].

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tidegate_broker::log::notice::Notice;
use tidegate_broker::log::{
    AppendRefused, CreateRefused, FindStart, Found, IncomingBatch, LogOptions, Logs, Outcome, ReadBatches,
    ReadRefused, ReadStart,
};
use tidegate_logic::placement::shard_of;
use tidegate_logic::topics::IDEMPOTENCE_WINDOW_MIN;
use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::batch::{BatchBuilder, BatchHeader, BatchOrigin, BatchView};
use tidegate_protocol::ids::{
    Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId, TopicId, TopicPartition,
};
use tidegate_reactor::buffer::View;
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Event, Loop, Now, Op, Tag, Turn};

use super::disk::OneFlush;
use super::machine::{self, Rests, Shape};
use super::plan::Plan;
use super::random::Random;
use super::reactor::World;
use super::run::{Counts, Script, Stage};
use super::truth::{Retention, Truth};

/// Timers of the workload; no part of the broker uses this top byte.
const TICK: Tag = Tag(0x7f << 56);
/// Batches that every log remembers of a producer.
const WINDOW: u64 = 5;

/// What outlives a start of the broker.
#[derive(Debug)]
pub struct Shared {
    /// What must be true.
    pub truth: Truth,
    /// What the seed asks for.
    pub plan: Plan,
    /// What is asked for now.
    pub stage: Stage,
    /// Whether the log has said that outcomes are unknown and takes no more appends.
    pub halted: bool,
    /// Appends refused for want of room since the start.
    pub no_room: u64,
    /// Reads refused because others are under way, since the start.
    busy_reads: u64,
    /// The log's own counters, now and then.
    stats: Vec<(&'static str, i64)>,
    ticks: u64,
    /// Appends that were acknowledged before the stage began.
    acks_before: u64,
    /// Whether the injected faults explain an unknown outcome or a full disk.
    pub faults_injected: bool,
    /// The name of a file of which something has decayed: ranges of it may be refused.
    decayed: Option<String>,
    random: Random,
    /// For what was added later, so that the other draws of a seed stay as they were.
    more: Random,
    /// By shard.
    desks: Vec<Desk>,
    /// Logs whose removal was asked for; they may be found again after a crash.
    removed: Vec<TopicPartition>,
    next_topic: u64,
}

/// What is under way on one shard since its start.
#[derive(Debug, Default)]
struct Desk {
    /// Logs to be read from there on, whole, after a restart.
    verify: VecDeque<(TopicPartition, Offset)>,
    /// Reads under way, by ticket: from where.
    reading: BTreeMap<u64, (TopicPartition, Offset)>,
    /// Searches under way, by ticket, and how far the log was readable when they were asked for.
    searching: BTreeMap<u64, (TopicPartition, OffsetQuery, Offset)>,
}

impl Shared {
    fn new(random: Random, mut plan: Plan) -> Shared {
        let mut more = random.clone().fork();
        plan.search = if more.chance(400_000) { 100_000 } else { 0 };
        plan.retention_ms = more.pick(&[None, Some(50), Some(20_000)]);
        Shared {
            truth: Truth::default(),
            plan,
            stage: Stage::Work,
            acks_before: 0,
            halted: false,
            no_room: 0,
            busy_reads: 0,
            stats: Vec::new(),
            ticks: 0,
            faults_injected: false,
            decayed: None,
            random,
            more,
            desks: Vec::new(),
            removed: Vec::new(),
            next_topic: 1,
        }
    }

    /// Recovery has found these logs, by shard.
    fn restarted(&mut self, shards: &[Logs]) {
        self.halted = false;
        self.no_room = 0;
        self.busy_reads = 0;
        self.desks = shards.iter().map(|_| Desk::default()).collect();
        self.truth.counts.restarts += 1;
    }

    /// Whether the broker tells that more of a log was there than it has, because of what has decayed.
    fn has_told_loss(&self, told: Option<ReadRefused>) -> bool {
        let Some(ReadRefused::Lost { file, .. }) = &told else { return false };
        let named = self.decayed.as_ref().is_some_and(|name| file.contains(name.as_str()));
        assert!(named, "{told:?} is told, but {:?} has decayed", self.decayed);
        true
    }

    fn options(&self) -> LogOptions {
        LogOptions {
            retention_ms: self.plan.retention_ms.filter(|_| self.plan.retention == Retention::On),
            retention_bytes: (self.plan.retention == Retention::On).then_some(self.plan.segment_bytes * 2),
            segment_bytes: self.plan.segment_bytes,
            append_time: false,
            idempotence_window: WINDOW as u16,
        }
    }
}

/// The logs of one shard, as a script.
pub struct LogsScript {
    shape: Shape,
    shard_count: u16,
    shared: Rc<RefCell<Shared>>,
}

impl LogsScript {
    /// Draws shape and plan of a seed.
    pub fn new(mut random: Random, one_flush: OneFlush, rests: Rests) -> LogsScript {
        let shape = Shape::draw(&mut random, one_flush, rests);
        let plan = Plan::draw(&mut random, &shape);
        LogsScript { shape, shard_count: 1, shared: Rc::new(RefCell::new(Shared::new(random, plan))) }
    }
}

impl Script for LogsScript {
    fn open(&mut self, disk: &mut dyn Disk) -> Result<Vec<Box<dyn Turn>>, String> {
        let opened = machine::open(disk, &self.shape, self.shard_count)?;
        let mut shared = self.shared.borrow_mut();
        // What is wanted of this life is said when it has begun.
        shared.stage = Stage::Drain;
        shared.restarted(&opened.logs);
        drop(shared);
        let mut turns: Vec<Box<dyn Turn>> = Vec::new();
        for (shard, logs) in (0..).map(ShardId).zip(opened.logs) {
            turns.push(Box::new(LogsTurn::new(logs, &self.shared, shard, self.shard_count)));
        }
        Ok(turns)
    }

    fn heal_network(&mut self, _world: &mut World) {}

    fn change_shards(&mut self, shard_count: u16) {
        self.shard_count = shard_count;
    }

    fn expect_decay(&mut self, file: &str) {
        self.shared.borrow_mut().decayed = Some(file.to_string());
    }

    fn expect_faults(&mut self, may_fail: bool) {
        self.shared.borrow_mut().faults_injected = may_fail;
    }

    fn is_halted(&self) -> bool {
        self.shared.borrow().halted
    }

    fn want(&mut self, stage: Stage, _world: &mut World) {
        let mut shared = self.shared.borrow_mut();
        shared.stage = stage;
        shared.acks_before = shared.truth.counts.acks;
    }

    fn is_done(&self, stage: Stage) -> bool {
        let shared = self.shared.borrow();
        match stage {
            Stage::Work => shared.truth.counts.acks >= shared.acks_before + 200,
            Stage::Drain => {
                let truth = &shared.truth;
                truth.logs().iter().all(|log| truth.firm(*log) == truth.end(*log))
            }
            Stage::Verify => shared.desks.iter().all(|d| d.verify.is_empty() && d.reading.is_empty()),
            Stage::Rest | Stage::Stop => false,
        }
    }

    fn waiting(&self) -> String {
        let shared = self.shared.borrow();
        let truth = &shared.truth;
        let behind = truth.logs().into_iter().filter(|log| truth.firm(*log) < truth.end(*log)).count();
        format!(
            "{behind} logs not durable, {} refusals for want of room, {} busy reads, {:?}, {:?}",
            shared.no_room, shared.busy_reads, shared.stats, shared.desks
        )
    }

    fn counts(&self) -> Counts {
        self.shared.borrow().truth.counts()
    }
}

/// The turn of a simulated shard that is nothing but its logs.
pub struct LogsTurn {
    logs: Logs,
    me: ShardId,
    shard_count: u16,
    shared: Rc<RefCell<Shared>>,
    started: bool,
    stopping: bool,
}

impl LogsTurn {
    /// Takes over logs that were just opened: what recovery found is held against the truth.
    pub fn new(mut logs: Logs, shared: &Rc<RefCell<Shared>>, me: ShardId, shard_count: u16) -> LogsTurn {
        let mut state = shared.borrow_mut();
        let found: Vec<TopicPartition> = logs.logs_found().collect();
        for log in found {
            assert_eq!(shard_of(log, shard_count), me, "{log:?}: a shard has it that does not own it");
            if state.truth.has(log) {
                let shown = logs.positions(log).expect("a log that recovery found");
                let is_loss_told = state.has_told_loss(logs.lost_behind(log));
                state.truth.restarted(log, &shown, is_loss_told);
                state.desks[usize::from(me.0)].verify.push_back((log, shown.start));
            } else {
                assert!(state.removed.contains(&log), "{log:?}: PHANTOM: nobody ever made this log");
                logs.remove(log);
            }
        }
        // What the topics say exists is made anew if nothing of it had come to the disk.
        for log in state.truth.logs().into_iter().filter(|log| shard_of(*log, shard_count) == me) {
            if logs.positions(log).is_none() {
                let created = logs.create(log, state.options());
                // After damage a shard may take no writes.
                assert!(created.is_ok() || state.decayed.is_some(), "{log:?} existed before: {created:?}");
                let is_loss_told = state.has_told_loss(logs.lost_behind(log));
                state.truth.restarted_empty(log, is_loss_told);
            }
            logs.set_options(log, state.options());
        }
        drop(state);
        LogsTurn { logs, me, shard_count, shared: Rc::clone(shared), started: false, stopping: false }
    }

    fn desk<'a>(&self, state: &'a mut Shared) -> &'a mut Desk {
        &mut state.desks[usize::from(self.me.0)]
    }

    fn is_mine(&self, log: TopicPartition) -> bool {
        shard_of(log, self.shard_count) == self.me
    }

    fn outcomes(&mut self, state: &mut Shared) {
        let mut outcomes = Vec::new();
        self.logs.drain_outcomes(&mut outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::Written { log, upto, .. } => state.truth.written(log, upto),
                Outcome::Durable { log, token } => state.truth.durable(log, token.upto()),
                Outcome::Unknown { log, from, fault } => {
                    assert!(state.faults_injected, "{log:?}: unknown outcome without a fault: {fault}");
                    state.truth.unknown(log, from);
                    state.halted = true;
                }
                Outcome::Trimmed { log, start } => state.truth.trimmed(log, start),
                Outcome::ReadDone { ticket, result } => {
                    let read = self.desk(state).reading.remove(&ticket);
                    let (log, from) = read.expect("a read that was asked for");
                    self.read_done(state, log, from, result);
                }
                Outcome::FindDone { ticket, result } => {
                    let search = self.desk(state).searching.remove(&ticket);
                    let (log, query, durable) = search.expect("a search that was asked for");
                    self.search_done(state, log, query, durable, result);
                }
                Outcome::Damaged { log, refused } => {
                    let ReadRefused::Damaged { file, upto, .. } = &refused else {
                        panic!("{log:?}: the scrub tells {refused:?}");
                    };
                    let named = state.decayed.as_ref().is_some_and(|name| file.contains(name.as_str()));
                    assert!(
                        named,
                        "{log:?}: {file} is called damaged below {upto}, but {:?} is",
                        state.decayed
                    );
                    state.truth.counts.damage_scrubbed += 1;
                }
                Outcome::Notice(Notice::RunUnsound { file, .. }) => {
                    let name = file.to_string();
                    assert!(
                        state.decayed.as_ref() == Some(&name),
                        "{name} is damaged, but {:?} is",
                        state.decayed
                    );
                }
                Outcome::Notice(Notice::FrameDamaged { file, frame, .. }) => {
                    let named = state.decayed.as_ref() == Some(&file);
                    assert!(named, "frame {frame} of {file} is damaged, but {:?} is", state.decayed);
                    state.truth.counts.damage_scrubbed += 1;
                }
                Outcome::Notice(_) => {}
            }
        }
    }

    fn read_done(
        &mut self,
        state: &mut Shared,
        log: TopicPartition,
        from: Offset,
        result: Result<ReadBatches, ReadRefused>,
    ) {
        if !state.truth.has(log) {
            return;
        }
        match result {
            Ok(batches) => {
                let end = state.truth.read(log, from, batches.views.iter().map(|v| &v[..]));
                assert_eq!(batches.end, end, "{log:?}: the end that a read names");
                let committed = self.logs.positions(log).map_or(end, |p| p.committed);
                assert!(end <= committed, "{log:?}: a read up to {end} above committed {committed}");
                self.verify_on(state, log, from, end);
            }
            Err(ReadRefused::Busy) => {
                state.busy_reads += 1;
                state.truth.counts.busy += 1;
            }
            Err(ReadRefused::OutOfRange { start, .. }) if start > from => {
                self.verify_on(state, log, from, start);
            }
            Err(ReadRefused::Damaged { file, upto, .. }) if upto > from => {
                let named = state.decayed.as_ref().is_some_and(|name| file.contains(name.as_str()));
                assert!(named, "{log:?}: {file} is called damaged below {upto}, but {:?} is", state.decayed);
                state.truth.counts.damage_named += 1;
                self.verify_on(state, log, from, upto);
            }
            Err(ReadRefused::UnknownLog) => {}
            Err(ReadRefused::Fault(fault)) => {
                assert!(state.faults_injected, "{log:?}: a read from {from} failed: {fault}");
            }
            Err(other) => panic!("{log:?}: a read from {from} was refused: {other:?}"),
        }
    }

    /// What is to be read of a log goes on at `next`.
    fn verify_on(&self, state: &mut Shared, log: TopicPartition, from: Offset, next: Offset) {
        let verify = &mut self.desk(state).verify;
        if let Some((_, at)) = verify.iter_mut().find(|(l, at)| *l == log && *at == from) {
            *at = next;
        }
    }

    /// Searches for a time at which, or about which, something was appended.
    fn search(&mut self, state: &mut Shared, log: TopicPartition) {
        let Some(positions) = self.logs.positions(log) else { return };
        let pick = state.more.word() as usize;
        let Some(batch) = state.truth.batch(log, |count| pick % count) else { return };
        let (appended_ms, record_ms) = (batch.append_time_ms, batch.max_timestamp_ms);
        let about = state.more.below(3) as i64 - 1;
        let query = match state.more.chance(500_000) {
            true => OffsetQuery::AppendTime(appended_ms + about),
            false => OffsetQuery::RecordTime(record_ms + about),
        };
        match self.logs.find(log, query) {
            FindStart::Ready(found) => self.search_done(state, log, query, positions.durable, Ok(found)),
            FindStart::Refused(refused) => {
                self.search_done(state, log, query, positions.durable, Err(refused));
            }
            FindStart::Pending(ticket) => {
                self.desk(state).searching.insert(ticket, (log, query, positions.durable));
            }
        }
    }

    fn search_done(
        &mut self,
        state: &mut Shared,
        log: TopicPartition,
        query: OffsetQuery,
        durable: Offset,
        result: Result<Found, ReadRefused>,
    ) {
        let (true, Some(positions)) = (state.truth.has(log), self.logs.positions(log)) else { return };
        match result {
            Ok(found) => state.truth.searched(log, query, durable, positions.start, found.offset),
            Err(ReadRefused::Busy | ReadRefused::UnknownLog) => {}
            Err(ReadRefused::OutOfRange { start, .. }) if start == positions.start => {}
            Err(ReadRefused::Fault(_)) if state.faults_injected => {}
            Err(refused) => panic!("{log:?}: {query:?} was refused: {refused:?}"),
        }
    }

    /// Reads what recovery found, log by log, whole.
    fn verify(&mut self, state: &mut Shared) {
        for _ in 0..4 {
            let desk = self.desk(state);
            let Some((log, from)) = desk.verify.front().copied() else { return };
            if desk.reading.values().any(|r| *r == (log, from)) {
                desk.verify.rotate_left(1);
                continue;
            }
            let there = state.truth.has(log);
            let upto = self.logs.positions(log).map_or(Offset(0), |p| p.committed);
            if !there || from >= upto {
                self.desk(state).verify.pop_front();
                continue;
            }
            self.read(state, log, from);
        }
    }

    fn read(&mut self, state: &mut Shared, log: TopicPartition, from: Offset) {
        if self.desk(state).reading.len() >= 4 {
            return;
        }
        let Some(positions) = self.logs.positions(log) else { return };
        let bytes_max = state.random.pick(&[1, 4096, 65_536]);
        match self.logs.read(log, from, positions.committed, bytes_max) {
            ReadStart::Ready(batches) => self.read_done(state, log, from, Ok(batches)),
            ReadStart::Pending(ticket) => {
                self.desk(state).reading.insert(ticket, (log, from));
            }
            ReadStart::AtEnd => {
                assert!(
                    from >= positions.committed,
                    "{log:?}: a read from {from} below {positions:?} found nothing"
                );
            }
            ReadStart::Refused(refused) => self.read_done(state, log, from, Err(refused)),
        }
    }

    fn tick(&mut self, now: Now, state: &mut Shared) {
        state.ticks += 1;
        if state.ticks.is_multiple_of(64) {
            state.stats = self.logs.stats();
        }
        self.verify(state);
        if state.stage != Stage::Work {
            return;
        }
        self.create_missing(state);
        let logs: Vec<_> = state.truth.logs().into_iter().filter(|log| self.is_mine(*log)).collect();
        if logs.is_empty() {
            return;
        }
        for _ in 0..state.random.between(0, state.plan.appends_max) {
            // The smaller of several draws: the first logs are busy, the last ones idle.
            let skew = state.plan.skew;
            let index = (0..skew).map(|_| state.random.index(logs.len())).min().unwrap_or(0);
            self.append(now, state, logs[index]);
        }
        let log = state.random.pick(&logs);
        let Some(positions) = self.logs.positions(log) else { return };
        state.truth.positions(log, &positions);
        if state.random.chance(state.plan.read) && positions.start < positions.committed {
            let back = state.random.between(1, 200) as i64;
            let from = Offset((positions.committed.0 - back).max(positions.start.0));
            self.read(state, log, from);
        }
        if state.more.chance(state.plan.search) {
            self.search(state, log);
        }
        if state.random.chance(state.plan.trim) && positions.start < positions.committed {
            let span = (positions.committed.0 - positions.start.0) as u64;
            let before = positions.start.plus(state.random.between(1, span) as i64);
            state.truth.trim_asked(log, before);
            if let Err(refused) = self.logs.trim(log, before) {
                // With nothing of a log under way, a failed flush is not told before somebody asks for more.
                let excused = state.halted || state.faults_injected;
                assert!(excused, "{log:?}: a trim before {before} was refused: {refused:?}");
                state.halted = true;
            }
        }
        if state.random.chance(state.plan.remove) && !state.halted {
            state.truth.remove(log);
            state.removed.push(log);
            self.logs.remove(log);
        }
    }

    fn create_missing(&mut self, state: &mut Shared) {
        // A draw may be for another shard.
        const TRIES_MAX: u64 = 100;
        for _ in 0..TRIES_MAX {
            if state.truth.logs().len() as u64 >= state.plan.logs {
                return;
            }
            let mut id = *b"simulated-topic\0";
            id[..4].copy_from_slice(&(state.random.word() as u32).to_le_bytes());
            id[15] = state.next_topic as u8;
            let log =
                TopicPartition { topic: TopicId(id), partition: PartitionId(state.random.below(3) as i32) };
            if !self.is_mine(log) {
                continue;
            }
            match self.logs.create(log, state.options()) {
                Ok(()) => {
                    state.next_topic += 1;
                    state.truth.create(log, state.plan.retention);
                }
                Err(CreateRefused::TooMany { .. }) => return,
                // Damage to what was promised has made the shard so, or a write or flush that failed.
                Err(CreateRefused::ReadOnly) if state.decayed.is_some() || state.faults_injected => return,
                Err(refused) => panic!("{log:?} could not be made: {refused:?}"),
            }
        }
    }

    fn append(&mut self, now: Now, state: &mut Shared, log: TopicPartition) {
        let mut salt = state.random.word() >> 8;
        let mut origin = BatchOrigin::NONE;
        let mut wrong = false;
        if state.plan.producers > 0 && state.random.chance(600_000) {
            let producer = ProducerId(1000 + state.random.below(state.plan.producers) as i64);
            let past = state.truth.of_producer(log, producer);
            let next = past.last().map_or(Sequence(0), |b| b.sequence.plus((b.end.0 - b.base.0) as i32));
            origin =
                BatchOrigin { producer_id: producer, producer_epoch: ProducerEpoch(0), base_sequence: next };
            let choice = state.random.below(100);
            if choice < 20 && !past.is_empty() {
                let back = state.random.below((past.len() as u64).min(WINDOW)) as usize;
                let again = past[past.len() - 1 - back];
                salt = again.salt;
                origin.base_sequence = again.sequence;
            } else if choice < 25 && !past.is_empty() {
                origin.base_sequence = next.plus(state.random.between(1, 50) as i32);
                wrong = true;
            }
        }
        let batch = self.batch(state, origin, salt);
        let header = batch.header;
        match self.logs.append(now, log, &[batch]) {
            Ok(told) => {
                assert!(!wrong, "{log:?}: a gap in the sequence was taken: {header:?}");
                state.truth.appended(log, &told, &header, salt);
            }
            Err(AppendRefused::Producer(refusal)) => {
                assert!(wrong, "{log:?}: {header:?} was refused: {refusal:?}");
                state.truth.counts.refused += 1;
            }
            Err(AppendRefused::NoRoom { .. }) => {
                state.no_room += 1;
                state.truth.counts.no_room += 1;
            }
            Err(AppendRefused::DiskFull(_)) => {
                assert!(state.faults_injected, "{log:?}: the drive has room");
                state.no_room += 1;
            }
            Err(AppendRefused::Unknown { .. }) => {
                assert!(state.faults_injected, "{log:?}: an append was refused without a fault");
                state.halted = true;
            }
            // Of many logs, several producers each; those of logs that are going count until a frame has said so.
            Err(AppendRefused::TooManyProducers { limit, current }) => {
                assert!(
                    current + usize::from(IDEMPOTENCE_WINDOW_MIN) > limit,
                    "{current} of {limit} are in use"
                );
                state.truth.counts.refused += 1;
            }
            Err(other) => panic!("{log:?}: an append was refused: {other:?}"),
        }
    }

    /// The same bytes for the same salt and origin.
    fn batch(&self, state: &Shared, origin: BatchOrigin, salt: u64) -> IncomingBatch {
        let mut random = Random::new(salt);
        let records = random.between(1, 4);
        let large = random.chance(state.plan.large);
        let bytes_max = if large { state.plan.large_bytes_max / records } else { 600 };
        let mut builder = BatchBuilder::new(Vec::new());
        let first_ms = 1_780_000_000_000 + (salt % 5_000) as i64;
        for record in 0..records {
            let len = random.between(1, bytes_max) as usize;
            let mut value = vec![0; len];
            value.chunks_mut(8).for_each(|c| c.copy_from_slice(&random.word().to_le_bytes()[..c.len()]));
            builder.push(first_ms + record as i64, None, Some(&value), []);
        }
        let bytes = builder.finish(origin);
        // The batch lies somewhere in a receive buffer, not at its start.
        let mut buffer = vec![0xee; 96];
        buffer.extend(&bytes);
        let view = View::copy_of(&buffer).slice(96..buffer.len());
        let header: BatchHeader = *BatchView::parse(&view).expect("just built").header();
        IncomingBatch { view, header }
    }
}

impl Turn for LogsTurn {
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        let shared = Rc::clone(&self.shared);
        let state = &mut *shared.borrow_mut();
        let mut tick = !self.started;
        if !self.started {
            self.started = true;
            self.logs.start(now, ops);
        }
        for event in events.drain(..) {
            match event {
                Event::Timer { tag: TICK } => tick = true,
                event => {
                    assert!(Logs::owns_event(&event), "an event of nobody: {event:?}");
                    self.logs.on_event(now, event, ops);
                }
            }
        }
        self.outcomes(state);
        if tick && !self.stopping {
            self.tick(now, state);
            let mut pause = state.random.between(1_000, state.plan.tick_ns_max);
            if state.stage == Stage::Work && state.random.chance(state.plan.rest) {
                // Long enough for a mark to be written, or to be flushed.
                pause = state.random.pick(&[15_000_000, 1_200_000_000]);
            }
            if state.stage == Stage::Rest {
                pause = 1_000_000_000;
            }
            ops.push(Op::Timer { at_ns: now.mono_ns + pause, tag: TICK });
        }
        if state.stage == Stage::Stop && !self.stopping {
            self.stopping = true;
            self.logs.stop();
        }
        self.logs.pump(now, ops);
        self.outcomes(state);
        self.logs.check();
        if self.stopping && self.logs.stopped() { Loop::Stop } else { Loop::Continue }
    }
}
