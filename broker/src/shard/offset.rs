//! Offsets: those that named consumers store in the internal topic, those that a partition has, and trims.

use std::collections::BTreeMap;

use tidegate_logic::offsets::{OffsetRefusal, OffsetsTable};
use tidegate_logic::placement::{OFFSETS_PARTITIONS, offsets_partition, shard_of};
use tidegate_protocol::api::offset::{
    DeleteRecordsReply, DeleteRecordsRequest, ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply,
    OffsetCommitRequest, OffsetFetchReply, OffsetFetchRequest, OffsetQuery, StoredOffset,
};
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::ids::{LeaderEpoch, Offset, PartitionId, TopicId, TopicPartition};
use tidegate_protocol::internal::{OffsetRecord, Stored};
use tidegate_reactor::op::{Fault, Op};

use super::internal::{Pending, Snapshot};
use super::mail::{Answer, Asker};
use super::reply::Refusal;
use super::{Shard, Ticket};
use crate::log::{FindStart, Found, ReadRefused};
use crate::mutants::{self, Mutant};

/// One partition of the internal topic that this shard owns.
#[derive(Debug)]
pub(super) struct StoredOffsets {
    table: OffsetsTable,
    pending: Pending<Change>,
    // Entries of pending commits, for the cap.
    coming: usize,
    snapshot: Option<Snapshot>,
    // Why the table is not all that was stored; nothing is said of it then, and nothing replaced.
    unknown: Option<ReadRefused>,
}

/// Records on their way to the drive.
#[derive(Debug)]
enum Change {
    Commit { records: Vec<OffsetRecord>, asker: Asker, reply: OffsetCommitReply },
    TopicGone(TopicId),
    Snapshot(Snapshot),
}

/// The partitions of the internal topic, by log.
pub(super) type OffsetsLogs = BTreeMap<TopicPartition, StoredOffsets>;

impl StoredOffsets {
    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Shard {
    /// Opens the partitions of the internal topic that belong to this shard.
    pub(super) fn offsets_open(&mut self) -> Result<(), Refusal> {
        for partition in (0..OFFSETS_PARTITIONS).map(PartitionId) {
            let log = TopicPartition { topic: TopicId::OFFSETS, partition };
            if shard_of(log, self.shard_count) == self.me {
                let table = OffsetsTable::new(self.limits.offsets);
                let (pending, snapshot, unknown) = (Pending::default(), None, None);
                let stored = StoredOffsets { table, pending, coming: 0, snapshot, unknown };
                self.offsets.insert(log, stored);
                self.internal_open(log)?;
            }
        }
        Ok(())
    }

    /// Damage keeps a partition of the internal topic from being read whole.
    pub(super) fn offsets_unknown(&mut self, log: TopicPartition, why: ReadRefused) {
        if let Some(stored) = self.offsets.get_mut(&log) {
            stored.unknown = Some(why);
        }
    }

    /// The partition of the internal topic that holds what the consumer has stored, if all of that is known.
    fn stored_of(&self, consumer: &str) -> Result<(TopicPartition, &StoredOffsets), Refusal> {
        let log = offsets_partition(consumer);
        let stored = self.offsets.get(&log).ok_or(Refusal::NoLog { log })?;
        match &stored.unknown {
            Some(why) => Err(Refusal::from_read(log, why.clone())),
            None => Ok((log, stored)),
        }
    }

    /// A record of the internal topic, at the start.
    pub(super) fn offsets_replay(
        &mut self,
        log: TopicPartition,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<(), Refusal> {
        let record = OffsetRecord::decode(key, value)?;
        if let Some(stored) = self.offsets.get_mut(&log) {
            stored.table.apply(record);
        }
        Ok(())
    }

    /// Stores where a consumer continues. Each partition has its own result; what is allowed is one append.
    pub(super) fn offset_commit(&mut self, asker: Asker, request: OffsetCommitRequest, ops: &mut Vec<Op>) {
        if request.generation != -1 || !request.member.is_empty() {
            let rule =
                "names a member of a group, but there are no groups yet: use -1 and no member".to_owned();
            return self.answer(asker, Err(Refusal::Invalid { field: "generation", rule }), ops);
        }
        let (log, stored) = match self.stored_of(&request.group) {
            Ok(found) => found,
            Err(refusal) => return self.answer(asker, Err(refusal), ops),
        };
        let (mut records, mut results) = (Vec::new(), Vec::new());
        for StoredOffset { partition, offset, leader_epoch, metadata } in request.offsets {
            let wanted = Stored { offset, leader_epoch, note: metadata };
            let checked = match self.known(partition) {
                Ok(()) => stored
                    .table
                    .check(&request.group, &[(partition, wanted.clone())], stored.coming + records.len())
                    .map_err(commit_error),
                Err(_) => Err(ErrorCode::UnknownPartition),
            };
            results.push(checked.err());
            if checked.is_ok() {
                records.push(OffsetRecord::Put {
                    consumer: request.group.clone(),
                    partition,
                    stored: wanted,
                });
            }
        }
        let reply = OffsetCommitReply { results };
        if records.is_empty() {
            return self.answer(asker, Ok(Answer::OffsetCommit(reply)), ops);
        }
        let bytes: Vec<_> = records.iter().map(OffsetRecord::encode).collect();
        match self.internal_append(log, &bytes) {
            Ok(appended) => {
                let stored = self.offsets.get_mut(&log).expect("looked up above");
                if mutants::on(Mutant::OffsetStoredEarly) {
                    records.into_iter().for_each(|record| stored.table.apply(record));
                    return self.answer(asker, Ok(Answer::OffsetCommit(reply)), ops);
                }
                stored.coming += records.len();
                stored.pending.push(&appended, Change::Commit { records, asker, reply });
            }
            Err(refusal) => self.answer(asker, Err(refusal), ops),
        }
    }

    /// Where a consumer continues, as far as it is durable.
    pub(super) fn offset_fetch(&mut self, asker: Asker, request: &OffsetFetchRequest, ops: &mut Vec<Op>) {
        let stored = match self.stored_of(&request.group) {
            Ok((_, stored)) => stored,
            Err(refusal) => return self.answer(asker, Err(refusal), ops),
        };
        let own = |(partition, stored): (TopicPartition, Stored)| StoredOffset {
            partition,
            offset: stored.offset,
            leader_epoch: stored.leader_epoch,
            metadata: stored.note,
        };
        let offsets = stored.table.find(&request.group, &request.partitions).into_iter().map(own).collect();
        self.answer(asker, Ok(Answer::OffsetFetch(OffsetFetchReply { offsets })), ops);
    }

    /// A flush has covered a partition of the internal topic.
    pub(super) fn offsets_flushed(&mut self, log: TopicPartition, upto: Offset, ops: &mut Vec<Op>) {
        while let Some(stored) = self.offsets.get_mut(&log) {
            match stored.pending.flushed(upto) {
                Some(Change::Commit { records, asker, reply }) => {
                    stored.coming -= records.len();
                    records.into_iter().for_each(|record| stored.table.apply(record));
                    self.stats.offset_commits += 1;
                    self.answer(asker, Ok(Answer::OffsetCommit(reply)), ops);
                }
                Some(Change::TopicGone(topic)) => stored.table.apply(OffsetRecord::TopicGone { topic }),
                Some(Change::Snapshot(snapshot)) => {
                    stored.snapshot = None;
                    self.internal_trim(log, snapshot);
                }
                None => break,
            }
        }
        self.offsets_snapshot(log);
    }

    fn offsets_snapshot(&mut self, log: TopicPartition) {
        let Some(stored) = self.offsets.get(&log) else { return };
        // Nothing else may be on its way: the snapshot holds what the table holds, and replaces everything before it.
        let quiet = stored.snapshot.is_none() && stored.pending.is_empty() && stored.unknown.is_none();
        if !quiet || !self.internal_wants_snapshot(log, stored.table.bytes()) {
            return;
        }
        let records: Vec<_> = stored.table.snapshot().iter().map(OffsetRecord::encode).collect();
        let Some((appended, snapshot)) = self.internal_snapshot(log, &records) else { return };
        if let Some(stored) = self.offsets.get_mut(&log) {
            stored.snapshot = Some(snapshot);
            stored.pending.push(&appended, Change::Snapshot(snapshot));
        }
    }

    /// A topic is gone: what was stored for it goes too.
    pub(super) fn offsets_topic_gone(&mut self, topic: TopicId) {
        let logs: Vec<TopicPartition> = self
            .offsets
            .iter()
            .filter(|(_, stored)| stored.table.knows(topic))
            .map(|(log, _)| *log)
            .collect();
        for log in logs {
            // Without room for it the entries stay until the next deletion; nothing reads them.
            let record = OffsetRecord::TopicGone { topic }.encode();
            let Ok(appended) = self.internal_append(log, &[record]) else { continue };
            if let Some(stored) = self.offsets.get_mut(&log) {
                stored.pending.push(&appended, Change::TopicGone(topic));
            }
        }
    }

    /// The drive has failed under a partition of the internal topic.
    pub(super) fn offsets_faulted(
        &mut self,
        log: TopicPartition,
        from: Offset,
        fault: &Fault,
        ops: &mut Vec<Op>,
    ) {
        let Some(stored) = self.offsets.get_mut(&log) else { return };
        let changes: Vec<Change> = stored.pending.abandon().collect();
        stored.coming = 0;
        for change in changes {
            if let Change::Commit { asker, .. } = change {
                self.answer(asker, Err(Refusal::UnknownOutcome { log, from, fault: fault.clone() }), ops);
            }
        }
    }

    /// Which offset a partition has at one of its ends, or at a time.
    pub(super) fn list_offsets(&mut self, asker: Asker, request: ListOffsetsRequest, ops: &mut Vec<Op>) {
        let log = request.partition;
        let positions = match self.owned(log, LeaderEpoch::UNKNOWN) {
            Ok(_) => self.logs.positions(log).ok_or(Refusal::NoLog { log }),
            Err(refusal) => Err(refusal),
        };
        let positions = match positions {
            Ok(positions) => positions,
            Err(refusal) => return self.answer(asker, Err(refusal), ops),
        };
        let at = |offset| Ok(Found { offset, timestamp_ms: -1 });
        let found = match request.query {
            OffsetQuery::Earliest => at(positions.start),
            OffsetQuery::Latest => at(positions.committed),
            OffsetQuery::Stable => at(positions.stable),
            OffsetQuery::RecordTime(_) | OffsetQuery::AppendTime(_) => {
                match self.logs.find(log, request.query) {
                    FindStart::Ready(found) => Ok(found),
                    FindStart::Refused(refused) => Err(refused),
                    FindStart::Pending(ticket) => {
                        self.tickets.insert(ticket, Ticket::Find { asker, log });
                        return;
                    }
                }
            }
        };
        self.list_offsets_found(asker, log, found, ops);
    }

    /// The offset of a time is found, or not.
    pub(super) fn list_offsets_found(
        &mut self,
        asker: Asker,
        log: TopicPartition,
        found: Result<Found, ReadRefused>,
        ops: &mut Vec<Op>,
    ) {
        let leader_epoch = self.logs.leader_epoch();
        let reply = |Found { offset, timestamp_ms }| {
            Answer::ListOffsets(ListOffsetsReply { offset, timestamp_ms, leader_epoch })
        };
        let answer = found.map(reply).map_err(|refused| self.read_refused(log, refused));
        self.answer(asker, answer, ops);
    }

    /// Trims a partition; the answer comes once the trim is flushed.
    pub(super) fn delete_records(&mut self, asker: Asker, request: DeleteRecordsRequest, ops: &mut Vec<Op>) {
        let log = request.partition;
        let trimmed = match self.owned(log, LeaderEpoch::UNKNOWN) {
            Ok(_) => self.trim_begun(log, request.before),
            Err(refusal) => Err(refusal),
        };
        match trimmed {
            Ok(None) => {
                let partition = self.partitions.get_mut(&log).expect("owned");
                partition.trims.push((request.before, asker));
            }
            Ok(Some(start)) => {
                self.answer(asker, Ok(Answer::DeleteRecords(DeleteRecordsReply { start })), ops);
            }
            Err(refusal) => self.answer(asker, Err(refusal), ops),
        }
    }

    /// Begins a trim, or tells the start if nothing is below it.
    fn trim_begun(&mut self, log: TopicPartition, before: Offset) -> Result<Option<Offset>, Refusal> {
        let positions = self.logs.positions(log).ok_or(Refusal::NoLog { log })?;
        if before < Offset(0) || before > positions.committed {
            let (start, end) = (positions.start, positions.committed);
            return Err(Refusal::OffsetOutOfRange { log, start, end, found: before });
        }
        let partition = self.partitions.get(&log).ok_or(Refusal::NoLog { log })?;
        if before <= partition.start_flushed {
            return Ok(Some(partition.start_flushed));
        }
        if let Some(fault) = self.logs.failed() {
            return Err(Refusal::Stopped { from: before, fault: fault.clone() });
        }
        if before <= positions.start {
            // A trim on its way, this one's elder or retention's, covers it.
            return Ok(None);
        }
        self.logs.trim(log, before).map_err(|refused| Refusal::from_trim(log, before, refused))?;
        Ok(None)
    }

    /// A trim is flushed.
    pub(super) fn trimmed(&mut self, log: TopicPartition, start: Offset, ops: &mut Vec<Op>) {
        let Some(partition) = self.partitions.get_mut(&log) else { return };
        partition.start_flushed = partition.start_flushed.max(start);
        let (done, waiting) = partition.trims.drain(..).partition(|(before, _)| *before <= start);
        partition.trims = waiting;
        let done: Vec<(Offset, Asker)> = done;
        for (_, asker) in done {
            self.answer(asker, Ok(Answer::DeleteRecords(DeleteRecordsReply { start })), ops);
        }
    }

    /// After a failure of the drive no trim ends any more: whoever waits for one hears of it. Linear in the partitions, once.
    pub(super) fn trims_faulted(&mut self, ops: &mut Vec<Op>) {
        let Some(fault) = self.logs.failed().cloned().filter(|_| !self.fault_told) else { return };
        self.fault_told = true;
        let mut waiting = Vec::new();
        for (log, partition) in &mut self.partitions {
            waiting.extend(partition.trims.drain(..).map(|(before, asker)| (*log, before, asker)));
        }
        for (log, from, asker) in waiting {
            self.answer(asker, Err(Refusal::UnknownOutcome { log, from, fault: fault.clone() }), ops);
        }
    }
}

fn commit_error(refusal: OffsetRefusal) -> ErrorCode {
    match refusal {
        OffsetRefusal::Name { .. } | OffsetRefusal::Note { .. } | OffsetRefusal::Negative { .. } => {
            ErrorCode::InvalidRequest
        }
        OffsetRefusal::Full { .. } => ErrorCode::LimitReached,
    }
}
