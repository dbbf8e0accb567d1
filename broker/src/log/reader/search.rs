//! Searches for an offset by time: in memory, or in data files and then in memory.

use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::batch::{BatchView, Batches, Compression, TimestampType};
use tidegate_protocol::crc;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::{Offset, TopicPartition};
use tidegate_reactor::buffer::View;

use super::{ColdReader, Done, Job, Plan, Rest, Scan, Seek, Step, UnderWay, Wish, damaged};
use crate::log::Logs;
use crate::log::answer::{FindStart, Found, ReadRefused};
use crate::log::file_table::Segment;
use crate::log::index::Answer;
use crate::log::segment::Segments;
use crate::log::state::{Log, LogIndex, LostFrames};

/// A time that a record is looked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Its own timestamp, milliseconds since the Unix epoch.
    Record(i64),
    /// When it was appended, milliseconds since the Unix epoch.
    Append(i64),
}

/// A search in data files, which goes on in memory if they have nothing.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct ColdFind {
    pub(super) log: LogIndex,
    from: Offset,
    /// Where memory began when it did.
    pub(super) upto: Offset,
    pub(super) time: Time,
}

impl Logs {
    /// Finds an offset.
    pub fn find(&mut self, log: TopicPartition, query: OffsetQuery) -> FindStart {
        let Some(log) = self.find_log(log) else { return FindStart::Refused(ReadRefused::UnknownLog) };
        let found = |offset| FindStart::Ready(Found { offset, timestamp_ms: -1 });
        let time = match query {
            OffsetQuery::Earliest => return found(log.start),
            OffsetQuery::Latest | OffsetQuery::Stable => return found(log.durable),
            OffsetQuery::RecordTime(ms) => Time::Record(ms),
            OffsetQuery::AppendTime(ms) => Time::Append(ms),
        };
        let memory_from = log.tail.base().unwrap_or(log.durable);
        if memory_from <= log.start {
            return match find_in_memory(log, time, self.condition.lost()) {
                Ok(found) => FindStart::Ready(found),
                Err(refused) => FindStart::Refused(refused),
            };
        }
        let (index, from) = (self.by_id[&log.id], log.start);
        self.find_cold(ColdFind { log: index, from, upto: memory_from, time })
    }

    fn find_cold(&mut self, find: ColdFind) -> FindStart {
        let id = self.log(find.log).id;
        let ticket = self.ticket();
        match self.reader.find(id, find.from, find.upto, find.time, ticket) {
            Ok(()) => {
                self.finds.insert(ticket, find);
                FindStart::Pending(ticket)
            }
            Err(refused) => FindStart::Refused(refused),
        }
    }
}

/// Searches the part of a log that is in memory; the end where nothing is found. What is damaged or lost might hold it.
pub(super) fn find_in_memory(log: &Log, time: Time, lost: Option<&LostFrames>) -> Result<Found, ReadRefused> {
    let damage = log.damage_from(log.start);
    let upto = damage.map_or(log.durable, |damage| damage.from);
    match (log.tail.find(log.start, upto, time), damage, lost) {
        (Some(found), _, _) => Ok(found),
        (None, Some(damage), _) => Err(damage.into()),
        (None, None, Some(lost)) => Err(lost.refused(log.durable)),
        (None, None, None) => Ok(Found { offset: log.durable, timestamp_ms: -1 }),
    }
}

impl ColdReader {
    /// Finds the first record from `from` on and below `upto` with that time or a later one. Everything below `upto` is in
    /// data files. In a compressed batch, which the broker does not look into, that is the batch's first record.
    ///
    /// # Errors
    /// If too many wait already.
    pub fn find(
        &mut self,
        log: TopicPartition,
        from: Offset,
        upto: Offset,
        time: Time,
        ticket: u64,
    ) -> Result<(), ReadRefused> {
        let wish = Wish::Find(time);
        self.begin(ticket, Job { log, from, upto, wish, piece_least: 0, resume: None, seek: None })
    }

    pub(super) fn plan_find(&self, job: &Job, time: Time, segments: &Segments) -> Result<Plan, ReadRefused> {
        for (file, segment) in segments.table.of_log(job.log) {
            let reached = match time {
                Time::Append(ms) => segment.append_last_ms >= ms,
                Time::Record(ms) => segment.max_timestamp_ms >= ms,
            };
            if segment.base >= job.upto {
                break;
            }
            if segment.end <= job.from || !reached {
                continue;
            }
            let answer = match time {
                Time::Append(ms) => match segment.index.by_append_time(ms, segment.written) {
                    // It is reached before `from` already.
                    Answer::In(entry) | Answer::Damaged(entry) if entry.end <= job.from => {
                        segment.index.by_offset(job.from, segment.written)
                    }
                    answer => answer,
                },
                Time::Record(ms) => segment.index.by_record_time(ms, job.from, segment.written),
            };
            match answer {
                Answer::Nowhere => continue,
                Answer::In(entry) | Answer::Damaged(entry) if entry.base >= job.upto => break,
                answer => return self.after_index(job, file, segments, segment, answer),
            }
        }
        Ok(Plan::End(Done::Found(Ok(None))))
    }

    /// Looks for a time in a piece.
    pub(super) fn search(
        &mut self,
        job: &Job,
        read: &UnderWay,
        time: Time,
        view: &View,
        scan: &mut Scan<'_>,
        segment: &Segment,
    ) -> Option<Done> {
        let mut next = job.from;
        let least = loop {
            // What lies behind may be a run that is still being written.
            if next >= job.upto {
                return Some(Done::Found(Ok(None)));
            }
            match scan.step() {
                Step::Extent(extent, _) | Step::Cut(extent) if extent.base >= job.upto => {
                    return Some(Done::Found(Ok(None)));
                }
                Step::Extent(extent, _) | Step::Cut(extent) if !may_hold(&extent, time, job.from) => {
                    scan.pass(&extent);
                    next = next.max(extent.end);
                }
                Step::Extent(extent, payload) => {
                    let payload = &view[payload];
                    if crc::of(payload) != extent.payload_crc {
                        let at = scan.cursor().pos;
                        let bytes = at..at + extent.total_bytes() as u64;
                        return Some(Done::Found(Err(damaged(read.file, bytes, extent.base, extent.end))));
                    }
                    if let Some(found) = first_at(&extent, payload, time, job.from) {
                        return Some(Done::Found(Ok(Some(found).filter(|found| found.offset < job.upto))));
                    }
                    scan.pass(&extent);
                    next = next.max(extent.end);
                }
                Step::Cut(_) | Step::PieceEnd if view.len() < read.len => {
                    let bytes = scan.cursor().pos..segment.written;
                    return Some(Done::Found(Err(damaged(read.file, bytes, next, segment.end))));
                }
                Step::Cut(extent) => break extent.total_bytes(),
                Step::PieceEnd => break BLOCK,
                Step::End => break 0,
                Step::DamagedRest(rest) if rest.upto <= job.from => scan.pass_rest(&rest),
                Step::DamagedRest(Rest { end, from, upto }) => {
                    let bytes = scan.cursor().pos..end;
                    return Some(Done::Found(Err(damaged(read.file, bytes, from, upto))));
                }
                Step::DamagedRun => {
                    let (pos, expected) = (scan.cursor().pos, scan.cursor().expected());
                    let job = self.job_mut(read);
                    (job.from, job.seek) = (next, Some(Seek::new(read, pos, expected)));
                    return None;
                }
            }
        };
        self.job_mut(read).from = next;
        if least == 0 {
            self.job_mut(read).resume = None;
            return None;
        }
        self.read_on(read, scan.cursor(), least)
    }
}

/// Whether an extent may hold a record from `from` on with that time or a later one.
pub(in crate::log) fn may_hold(extent: &ExtentHeader, time: Time, from: Offset) -> bool {
    let reached = match time {
        Time::Append(ms) => extent.append_time_ms >= ms,
        Time::Record(ms) => extent.max_timestamp_ms >= ms,
    };
    extent.end > from && reached
}

/// The first record of a checked payload from `from` on with that time or a later one.
pub(in crate::log) fn first_at(
    extent: &ExtentHeader,
    payload: &[u8],
    time: Time,
    from: Offset,
) -> Option<Found> {
    let ms = match time {
        Time::Append(_) => {
            return Some(Found { offset: extent.base.max(from), timestamp_ms: extent.append_time_ms });
        }
        Time::Record(ms) => ms,
    };
    let reached =
        |batch: &BatchView<'_>| batch.header().end_offset() > from && batch.header().max_timestamp_ms >= ms;
    Batches::new(payload).filter_map(Result::ok).filter(reached).find_map(|batch| first_in(&batch, ms, from))
}

fn first_in(batch: &BatchView<'_>, ms: i64, from: Offset) -> Option<Found> {
    let header = batch.header();
    let at_front = |timestamp_ms| Found { offset: header.base_offset.max(from), timestamp_ms };
    if header.timestamp_type == TimestampType::Append {
        return Some(at_front(header.max_timestamp_ms));
    }
    if header.compression != Compression::None {
        return Some(at_front(header.base_timestamp_ms));
    }
    batch
        .records()
        .ok()?
        .filter_map(Result::ok)
        .find(|record| record.offset >= from && record.timestamp_ms >= ms)
        .map(|record| Found { offset: record.offset, timestamp_ms: record.timestamp_ms })
}
