//! Logs that live in memory alone, until the journal is here: the same answers, nothing survives.
//! A "flush" is a timer that ends in the next turn.

use std::collections::BTreeMap;

use tidegate_logic::producer::{BatchIdentity, ProducerLimits, ProducerTable, Verdict};
use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::batch;
use tidegate_protocol::crc;
use tidegate_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Now, Op, Tag};

use super::answer::{
    AppendRefused, Appended, DurableToken, FindStart, Found, IncomingBatch, Outcome, ReadBatches,
    ReadRefused, ReadStart, TrimRefused,
};
use super::{LogOptions, Positions};

const TAG_FLUSH: Tag = Tag(0x01 << 56 | 0x01ff);

#[derive(Debug, Default)]
pub(super) struct MemoryLogs {
    logs: BTreeMap<TopicPartition, Memory>,
    touched: Vec<(TopicPartition, Offset)>,
    flushing: Option<Vec<(TopicPartition, Offset)>>,
    outcomes: Vec<Outcome>,
    pub(super) flushes: i64,
}

#[derive(Debug)]
struct Memory {
    positions: Positions,
    options: LogOptions,
    producers: ProducerTable,
    batches: Vec<Kept>,
    bytes: u64,
    last_append_ms: i64,
}

#[derive(Debug)]
struct Kept {
    base: Offset,
    end: Offset,
    view: View,
    append_ms: i64,
    max_timestamp_ms: i64,
}

fn limits(options: &LogOptions) -> ProducerLimits {
    ProducerLimits { window: options.idempotence_window, producers_max: 1000, expiry_ms: 7 * 24 * 3_600_000 }
}

impl MemoryLogs {
    pub(super) fn create(&mut self, log: TopicPartition, options: LogOptions) {
        self.logs.entry(log).or_insert_with(|| Memory {
            positions: Positions {
                start: Offset(0),
                stable: Offset(0),
                committed: Offset(0),
                durable: Offset(0),
                written: Offset(0),
                appended: Offset(0),
            },
            options,
            producers: ProducerTable::new(limits(&options)),
            batches: Vec::new(),
            bytes: 0,
            last_append_ms: 0,
        });
    }

    pub(super) fn set_options(&mut self, log: TopicPartition, options: LogOptions) {
        if let Some(memory) = self.logs.get_mut(&log) {
            memory.options = options;
            memory.producers.set_limits(limits(&options));
        }
    }

    pub(super) fn remove(&mut self, log: TopicPartition) {
        self.logs.remove(&log);
    }

    pub(super) fn append(
        &mut self,
        now: Now,
        log: TopicPartition,
        epoch: LeaderEpoch,
        batches: &[IncomingBatch],
    ) -> Result<Appended, AppendRefused> {
        let memory = self.logs.get_mut(&log).ok_or(AppendRefused::UnknownLog)?;
        let append_time_ms = now.wall_ms.max(memory.last_append_ms);
        let identity = |batch: &IncomingBatch| BatchIdentity {
            producer: batch.header.producer_id,
            epoch: batch.header.producer_epoch,
            base_sequence: batch.header.base_sequence,
            record_count: batch.header.records_count,
        };
        let identities: Vec<BatchIdentity> = batches.iter().map(identity).collect();
        match memory.producers.check(append_time_ms, &identities) {
            Verdict::Accept => {}
            Verdict::Duplicate { base, end, append_time_ms } => {
                return Ok(Appended { base, end, append_time_ms, duplicate: true });
            }
            Verdict::Refused(refusal) => return Err(AppendRefused::Producer(refusal)),
        }
        let first = memory.positions.appended;
        for (incoming, identity) in batches.iter().zip(identities) {
            let base = memory.positions.appended;
            let mut copy = Buffer::copy_of(&incoming.view);
            batch::set_place(&mut copy, base, epoch);
            if memory.options.append_time {
                batch::set_append_time(&mut copy, append_time_ms);
            }
            let end = base.plus(i64::from(incoming.header.records_count));
            memory.producers.apply(append_time_ms, identity, base);
            memory.bytes += copy.filled() as u64;
            memory.batches.push(Kept {
                base,
                end,
                view: copy.freeze(),
                append_ms: append_time_ms,
                max_timestamp_ms: incoming.header.max_timestamp_ms,
            });
            memory.positions.appended = end;
        }
        memory.last_append_ms = append_time_ms;
        let end = memory.positions.appended;
        self.touched.push((log, end));
        Ok(Appended { base: first, end, append_time_ms, duplicate: false })
    }

    pub(super) fn positions(&self, log: TopicPartition) -> Option<Positions> {
        self.logs.get(&log).map(|memory| memory.positions)
    }

    pub(super) fn durable(&self, log: TopicPartition) -> Option<DurableToken> {
        self.logs.get(&log).map(|memory| DurableToken::of_flush(memory.positions.durable))
    }

    pub(super) fn bytes(&self, log: TopicPartition) -> u64 {
        self.logs.get(&log).map_or(0, |memory| memory.bytes)
    }

    pub(super) fn read(
        &self,
        log: TopicPartition,
        from: Offset,
        upto: Offset,
        bytes_max: usize,
    ) -> ReadStart {
        let Some(memory) = self.logs.get(&log) else { return ReadStart::Refused(ReadRefused::UnknownLog) };
        let (start, end) = (memory.positions.start, memory.positions.committed);
        if from < start || from > end {
            return ReadStart::Refused(ReadRefused::OutOfRange { start, end });
        }
        let at = memory.batches.partition_point(|kept| kept.end <= from);
        let mut read: Option<ReadBatches> = None;
        for kept in memory.batches[at..].iter().take_while(|kept| kept.end <= upto) {
            let so_far = read.get_or_insert_with(|| ReadBatches {
                views: Vec::new(),
                first: kept.base,
                end: kept.base,
                batch_count: 0,
                bytes: 0,
                append_time_first_ms: kept.append_ms,
                append_time_last_ms: kept.append_ms,
                heads_crc: 0,
            });
            if so_far.batch_count > 0 && so_far.bytes + kept.view.len() > bytes_max {
                break;
            }
            so_far.views.push(kept.view.clone());
            so_far.end = kept.end;
            so_far.batch_count += 1;
            so_far.bytes += kept.view.len();
            so_far.append_time_last_ms = kept.append_ms;
            so_far.heads_crc = crc::append(so_far.heads_crc, &kept.view[..batch::HEAD_LEN]);
        }
        read.map_or(ReadStart::AtEnd, ReadStart::Ready)
    }

    pub(super) fn find(&self, log: TopicPartition, query: OffsetQuery) -> FindStart {
        let Some(memory) = self.logs.get(&log) else { return FindStart::Refused(ReadRefused::UnknownLog) };
        let none = Found { offset: memory.positions.committed, timestamp_ms: -1 };
        let found = match query {
            OffsetQuery::Earliest => Found { offset: memory.positions.start, timestamp_ms: -1 },
            OffsetQuery::Latest | OffsetQuery::Stable => none,
            OffsetQuery::RecordTime(time) => memory
                .batches
                .iter()
                .find(|kept| kept.max_timestamp_ms >= time)
                .map_or(none, |kept| Found { offset: kept.base, timestamp_ms: kept.max_timestamp_ms }),
            OffsetQuery::AppendTime(time) => memory
                .batches
                .iter()
                .find(|kept| kept.append_ms >= time)
                .map_or(none, |kept| Found { offset: kept.base, timestamp_ms: kept.append_ms }),
        };
        FindStart::Ready(found)
    }

    pub(super) fn trim(&mut self, log: TopicPartition, before: Offset) -> Result<(), TrimRefused> {
        let memory = self.logs.get_mut(&log).ok_or(TrimRefused::UnknownLog)?;
        let Positions { start, committed, .. } = memory.positions;
        if before < start || before > committed {
            return Err(TrimRefused::OutOfRange { start, committed });
        }
        memory.positions.start = before;
        let gone = memory.batches.partition_point(|kept| kept.end <= before);
        memory.bytes -= memory.batches.drain(..gone).map(|kept| kept.view.len() as u64).sum::<u64>();
        self.outcomes.push(Outcome::Trimmed { log, start: before });
        Ok(())
    }

    pub(super) fn pump(&mut self, now: Now, ops: &mut Vec<Op>) {
        if self.flushing.is_none() && !self.touched.is_empty() {
            self.touched.sort_unstable();
            self.touched.reverse();
            self.touched.dedup_by_key(|(log, _)| *log);
            self.flushing = Some(std::mem::take(&mut self.touched));
            ops.push(Op::Timer { at_ns: now.mono_ns, tag: TAG_FLUSH });
        }
    }

    pub(super) fn flushed(&mut self) {
        self.flushes += 1;
        for (log, upto) in self.flushing.take().unwrap_or_default() {
            let Some(memory) = self.logs.get_mut(&log) else { continue };
            memory.positions.written = upto;
            memory.positions.durable = upto;
            memory.positions.committed = upto;
            memory.positions.stable = upto;
            self.outcomes.push(Outcome::Written { log, upto });
            self.outcomes.push(Outcome::Durable { log, token: DurableToken::of_flush(upto) });
        }
    }

    pub(super) fn drain_outcomes(&mut self, into: &mut Vec<Outcome>) {
        into.append(&mut self.outcomes);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flushing.is_none() && self.touched.is_empty()
    }
}
