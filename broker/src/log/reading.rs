//! Where a read or a search is answered from: memory, or data files.

use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::ids::{Offset, TopicPartition};
use tidegate_reactor::op::Op;

use super::Logs;
use super::answer::{FindStart, Found, Outcome, ReadRefused, ReadStart};
use super::reader::{Done, Time};
use super::recent::FindTime;
use super::state::{Log, LogIndex};

/// A search in data files, which goes on in memory if they have nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColdFind {
    log: LogIndex,
    from: Offset,
    /// Where memory began when it did.
    upto: Offset,
    time: FindTime,
}

impl Logs {
    /// Reads whole batches: the first is the one that holds `from`, none begins at or above `upto`, and all but the first
    /// fit `bytes_max`.
    pub fn read(
        &mut self,
        log: TopicPartition,
        from: Offset,
        upto: Offset,
        bytes_max: usize,
        _ops: &mut Vec<Op>,
    ) -> ReadStart {
        let Some(log) = self.by_id.get(&log).and_then(|i| self.logs[i.0 as usize].as_deref()) else {
            return ReadStart::Refused(ReadRefused::UnknownLog);
        };
        if from < log.start || from > log.appended {
            return ReadStart::Refused(ReadRefused::OutOfRange { start: log.start, end: log.durable });
        }
        let upto = upto.min(log.durable);
        if from >= upto {
            return ReadStart::AtEnd;
        }
        let Some(memory_from) = log.tail.base().filter(|base| *base <= from) else {
            let upto = log.tail.base().map_or(upto, |base| base.min(upto));
            let id = log.id;
            return self.read_cold(id, from, upto, bytes_max);
        };
        match log.tail.read(from, upto, bytes_max) {
            Ok(Some(found)) => {
                self.counts.recent_read_bytes += found.bytes as u64;
                ReadStart::Ready(found)
            }
            Ok(None) => ReadStart::AtEnd,
            Err(_) => {
                let file = "memory".into();
                ReadStart::Refused(ReadRefused::Damaged { file, from: memory_from, upto })
            }
        }
    }

    fn read_cold(&mut self, log: TopicPartition, from: Offset, upto: Offset, bytes_max: usize) -> ReadStart {
        let ticket = self.ticket();
        match self.reader.read(log, from, upto, bytes_max, ticket) {
            Ok(()) => {
                self.reads.insert(ticket, log);
                ReadStart::Pending(ticket)
            }
            Err(refused) => ReadStart::Refused(refused),
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Finds an offset.
    pub fn find(&mut self, log: TopicPartition, query: OffsetQuery, _ops: &mut Vec<Op>) -> FindStart {
        let Some(log) = self.find_log(log) else { return FindStart::Refused(ReadRefused::UnknownLog) };
        let found = |offset| FindStart::Ready(Found { offset, timestamp_ms: -1 });
        let time = match query {
            OffsetQuery::Earliest => return found(log.start),
            OffsetQuery::Latest | OffsetQuery::Stable => return found(log.durable),
            OffsetQuery::RecordTime(ms) => FindTime::Record(ms),
            OffsetQuery::AppendTime(ms) => FindTime::Append(ms),
        };
        if log.start >= log.durable {
            return found(log.durable);
        }
        let memory_from = log.tail.base().unwrap_or(log.durable);
        if memory_from <= log.start {
            return match find_in_memory(log, time) {
                Ok(found) => FindStart::Ready(found),
                Err(refused) => FindStart::Refused(refused),
            };
        }
        let (index, from) = (self.by_id[&log.id], log.start);
        self.find_cold(ColdFind { log: index, from, upto: memory_from, time })
    }

    fn find_cold(&mut self, find: ColdFind) -> FindStart {
        let id = self.log(find.log).id;
        let time = match find.time {
            FindTime::Record(ms) => Time::Record(ms),
            FindTime::Append(ms) => Time::Append(ms),
        };
        let ticket = self.ticket();
        match self.reader.find(id, find.from, find.upto, time, ticket) {
            Ok(()) => {
                self.finds.insert(ticket, find);
                FindStart::Pending(ticket)
            }
            Err(refused) => FindStart::Refused(refused),
        }
    }

    /// Passes on what cold reads have brought; a search that has found nothing goes on in memory.
    pub(super) fn pass_reads_on(&mut self) {
        for (ticket, done) in self.reader.take_done() {
            self.outcomes.push_back(match done {
                Done::Batches(result) => {
                    let log = self.reads.remove(&ticket).expect("every read ends once");
                    let result = result.map_err(|refused| match (refused, self.by_id.get(&log)) {
                        // A trim has overtaken the read: the range is that of now.
                        (ReadRefused::OutOfRange { .. }, Some(index)) => {
                            let log = self.logs[index.0 as usize].as_deref().expect("a named log exists");
                            ReadRefused::OutOfRange { start: log.start, end: log.durable }
                        }
                        (ReadRefused::OutOfRange { .. }, None) => ReadRefused::UnknownLog,
                        (other, _) => other,
                    });
                    Outcome::ReadDone { ticket, result }
                }
                Done::Found(result) => {
                    let find = self.finds.remove(&ticket).expect("every search ends once");
                    let log = self.logs[find.log.0 as usize].as_deref();
                    let result = result.and_then(|found| match (found, log) {
                        (Some(found), _) => Ok(found),
                        // What was in memory when the search began may have left it.
                        (None, Some(log)) if log.tail.base().is_none_or(|base| base > find.upto) => {
                            Err(ReadRefused::Busy)
                        }
                        (None, Some(log)) => find_in_memory(log, find.time),
                        (None, None) => Err(ReadRefused::UnknownLog),
                    });
                    Outcome::FindDone { ticket, result }
                }
            });
        }
    }
}

/// Searches the part of a log that is in memory; the end where nothing is found.
fn find_in_memory(log: &Log, time: FindTime) -> Result<Found, ReadRefused> {
    match log.tail.find(log.start, log.durable, time) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Ok(Found { offset: log.durable, timestamp_ms: -1 }),
        Err(_) => Err(ReadRefused::Damaged { file: "memory".into(), from: log.start, upto: log.durable }),
    }
}
