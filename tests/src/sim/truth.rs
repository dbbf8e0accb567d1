//! What must be true of every log: the checkers that a run is held against.
//!
//! A log's truth is the list of its batches as they were appended, and three promises about it: what was acknowledged as
//! durable or was read (`firm`) is there for ever with the same bytes at the same offsets; what was appended after that is
//! there after a crash as a prefix or not at all; nothing else is there. Every violation is a panic that says which log and
//! offset, and ends the run.

use std::collections::BTreeMap;

use super::run::Counts;

use tidegate_broker::log::{Appended, Positions};
use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::batch::{BatchHeader, Batches};
use tidegate_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition};

/// The truth about all logs of a run, across all starts of the broker.
#[derive(Debug, Default)]
pub struct Truth {
    logs: BTreeMap<TopicPartition, LogTruth>,
    /// How much was checked.
    pub counts: TruthCounts,
}

/// How much happened that a check depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a count of what its name says")]
pub struct TruthCounts {
    pub appends: u64,
    /// Appends that became durable.
    pub acks: u64,
    pub duplicates: u64,
    pub refused: u64,
    /// Appends refused because ring or memory were full.
    pub no_room: u64,
    /// Reads refused because too many were under way.
    pub busy: u64,
    pub reads: u64,
    pub searches: u64,
    pub damage_named: u64,
    pub damage_scrubbed: u64,
    /// Logs of which records are lost to decay, as the broker says itself.
    pub losses_told: u64,
    pub batches_read: u64,
    /// Batches that a crash took although they had been appended.
    pub batches_lost_unacknowledged: u64,
    pub trims: u64,
    pub removes: u64,
    pub restarts: u64,
}

/// The truth about one log.
///
/// Invariants: `batches` are dense and end at `end`; `start_firm <= firm <= end`.
#[derive(Debug)]
pub struct LogTruth {
    batches: Vec<BatchTruth>,
    /// Acknowledged as the log's start.
    start_firm: Offset,
    /// The highest start that was asked for.
    start_asked: Offset,
    firm: Offset,
    written: Offset,
    end: Offset,
    /// Whether the broker may move the start by itself.
    retention: Retention,
}

/// Whether a log's start may move without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// It may not.
    Off,
    /// It may, up to what is durable.
    On,
}

/// A batch that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTruth {
    /// Offset of its first record.
    pub base: Offset,
    /// One past its last record.
    pub end: Offset,
    /// Checksum of everything that the producer decides.
    pub crc: u32,
    /// Bytes.
    pub len: usize,
    /// The append time that was told.
    pub append_time_ms: i64,
    /// The highest timestamp of its records.
    pub max_timestamp_ms: i64,
    /// Its producer.
    pub producer: ProducerId,
    /// The producer's epoch.
    pub epoch: ProducerEpoch,
    /// The sequence of its first record.
    pub sequence: Sequence,
    /// What the workload needs to make the same bytes again.
    pub salt: u64,
}

impl Truth {
    /// A log is made, empty.
    pub fn create(&mut self, log: TopicPartition, retention: Retention) {
        let truth = LogTruth::new(retention);
        assert!(self.logs.insert(log, truth).is_none(), "{log:?} exists");
    }

    /// A log is removed, for ever.
    pub fn remove(&mut self, log: TopicPartition) {
        self.counts.removes += 1;
        self.logs.remove(&log);
    }

    /// How much was checked, by name.
    pub fn counts(&self) -> Counts {
        let c = &self.counts;
        Counts::from([
            ("appends", c.appends),
            ("acks", c.acks),
            ("duplicates", c.duplicates),
            ("refused", c.refused),
            ("appends refused for want of room", c.no_room),
            ("reads refused because many wait", c.busy),
            ("reads", c.reads),
            ("searches by time", c.searches),
            ("ranges refused as damaged", c.damage_named),
            ("damage that the scrub has told", c.damage_scrubbed),
            ("logs that lost records to decay, and say so", c.losses_told),
            ("batches read", c.batches_read),
            ("batches lost unacknowledged", c.batches_lost_unacknowledged),
            ("trims", c.trims),
            ("removes", c.removes),
            ("restarts", c.restarts),
        ])
    }

    /// All logs that exist.
    pub fn logs(&self) -> Vec<TopicPartition> {
        self.logs.keys().copied().collect()
    }

    /// Whether the log exists.
    pub fn has(&self, log: TopicPartition) -> bool {
        self.logs.contains_key(&log)
    }

    /// One past the last record that must be there for ever.
    pub fn firm(&self, log: TopicPartition) -> Offset {
        self.logs[&log].firm
    }

    /// One past the last record that has a place.
    pub fn end(&self, log: TopicPartition) -> Offset {
        self.logs[&log].end
    }

    /// The batches of a producer that the log holds, oldest first.
    pub fn of_producer(&self, log: TopicPartition, producer: ProducerId) -> Vec<BatchTruth> {
        self.logs[&log].batches.iter().filter(|b| b.producer == producer).copied().collect()
    }

    /// An append was taken.
    pub fn appended(&mut self, log: TopicPartition, told: &Appended, header: &BatchHeader, salt: u64) {
        let truth = self.logs.get_mut(&log).expect("appended to a log that exists");
        let same = |b: &&BatchTruth| {
            b.producer == header.producer_id
                && b.epoch == header.producer_epoch
                && b.sequence == header.base_sequence
        };
        let has_producer = header.producer_id != ProducerId::NONE;
        let original = if has_producer { truth.batches.iter().rev().find(same) } else { None };
        if let Some(original) = original {
            assert!(told.duplicate, "{log:?}: a repetition of {original:?} was appended at {}", told.base);
            assert_eq!((told.base, told.end), (original.base, original.end), "{log:?}: a duplicate's place");
            assert_eq!(told.append_time_ms, original.append_time_ms, "{log:?}: a duplicate's append time");
            self.counts.duplicates += 1;
            return;
        }
        assert!(!told.duplicate, "{log:?}: {header:?} was called a duplicate and is none");
        assert_eq!(told.base, truth.end, "{log:?}: offsets are dense");
        assert_eq!(told.end, told.base.plus(header.records_count.into()), "{log:?}: offsets are dense");
        let last_time = truth.batches.last().map_or(i64::MIN, |b| b.append_time_ms);
        assert!(told.append_time_ms >= last_time, "{log:?}: append time fell to {}", told.append_time_ms);
        truth.end = told.end;
        truth.batches.push(BatchTruth {
            base: told.base,
            end: told.end,
            crc: header.crc,
            len: header.len,
            append_time_ms: told.append_time_ms,
            max_timestamp_ms: header.max_timestamp_ms,
            producer: header.producer_id,
            epoch: header.producer_epoch,
            sequence: header.base_sequence,
            salt,
        });
        self.counts.appends += 1;
    }

    /// The log says that all below `upto` is written.
    pub fn written(&mut self, log: TopicPartition, upto: Offset) {
        let Some(truth) = self.logs.get_mut(&log) else { return };
        assert!(upto <= truth.end, "{log:?}: written {upto} is above appended {}", truth.end);
        truth.written = truth.written.max(upto);
    }

    /// The log says that all below `upto` is flushed: from now on it must be there for ever.
    pub fn durable(&mut self, log: TopicPartition, upto: Offset) {
        let Some(truth) = self.logs.get_mut(&log) else { return };
        assert!(upto <= truth.end, "{log:?}: durable {upto} is above appended {}", truth.end);
        assert!(
            truth.batches.is_empty() || truth.is_boundary(upto),
            "{log:?}: durable {upto} inside a batch"
        );
        let acked = truth.batches.iter().rev().take_while(|b| b.end > truth.firm);
        self.counts.acks += acked.filter(|b| b.end <= upto).count() as u64;
        truth.firm = truth.firm.max(upto);
    }

    /// The log says that what was appended at or above `from` may or may not be there.
    pub fn unknown(&mut self, log: TopicPartition, from: Offset) {
        let Some(truth) = self.logs.get_mut(&log) else { return };
        assert!(from >= truth.firm, "{log:?}: unknown from {from}, but {} was acknowledged", truth.firm);
    }

    /// Somebody asks for a trim.
    pub fn trim_asked(&mut self, log: TopicPartition, before: Offset) {
        let truth = self.logs.get_mut(&log).expect("a log that exists");
        truth.start_asked = truth.start_asked.max(before);
    }

    /// The log says that its start has moved, for ever.
    pub fn trimmed(&mut self, log: TopicPartition, start: Offset) {
        let Some(truth) = self.logs.get_mut(&log) else { return };
        truth.check_start(log, start);
        truth.start_firm = truth.start_firm.max(start);
        self.counts.trims += 1;
    }

    /// The log shows its positions while it runs.
    pub fn positions(&self, log: TopicPartition, shown: &Positions) {
        shown.check();
        let truth = &self.logs[&log];
        truth.check_start(log, shown.start);
        assert_eq!(shown.appended, truth.end, "{log:?}: appended");
        assert!(shown.durable >= truth.firm, "{log:?}: durable fell below {}: {shown:?}", truth.firm);
        assert!(shown.committed <= shown.durable, "{log:?}: readers would see what may vanish: {shown:?}");
    }

    /// A read from `from` has returned `views`; all of it must be as it was appended, and stays for ever.
    pub fn read<'a>(
        &mut self,
        log: TopicPartition,
        from: Offset,
        views: impl Iterator<Item = &'a [u8]>,
    ) -> Offset {
        let truth = self.logs.get_mut(&log).expect("a log that exists");
        let mut next: Option<Offset> = None;
        for view in views {
            for batch in Batches::new(view) {
                let batch = batch.unwrap_or_else(|e| panic!("{log:?}: a read from {from} returned {e}"));
                batch.verify_crc().unwrap_or_else(|e| panic!("{log:?}: a read from {from} returned {e}"));
                let header = batch.header();
                let at = header.base_offset;
                match next {
                    None => {
                        assert!(
                            (at..header.end_offset()).contains(&from),
                            "{log:?}: a read from {from} begins at {at}"
                        )
                    }
                    Some(next) => assert_eq!(at, next, "{log:?}: a read leaves a gap"),
                }
                truth.check_batch(log, header);
                next = Some(header.end_offset());
                self.counts.batches_read += 1;
            }
        }
        let end = next.unwrap_or_else(|| panic!("{log:?}: a read from {from} returned nothing"));
        self.counts.reads += 1;
        truth.firm = truth.firm.max(end);
        end
    }

    /// A search by time, asked for when all below `durable` was readable, has found `found`; the log starts at `start` now.
    pub fn searched(
        &mut self,
        log: TopicPartition,
        query: OffsetQuery,
        durable: Offset,
        start: Offset,
        found: Offset,
    ) {
        self.counts.searches += 1;
        let truth = &self.logs[&log];
        let reaches = |batch: &BatchTruth| match query {
            OffsetQuery::AppendTime(ms) => batch.append_time_ms >= ms,
            OffsetQuery::RecordTime(ms) => batch.max_timestamp_ms >= ms,
            OffsetQuery::Earliest | OffsetQuery::Latest | OffsetQuery::Stable => {
                unreachable!("only searches by time come here")
            }
        };
        let readable = truth.batches.iter().filter(|b| b.end > start);
        let first = readable.clone().find(|b| reaches(b));
        let told = readable.clone().find(|b| (b.base..b.end).contains(&found));
        if told.is_some_and(reaches) {
            assert!(first.is_some_and(|b| b.end > found), "{log:?}: {query:?} told {found}, but {first:?}");
        } else {
            assert!(found >= durable || found < start, "{log:?}: {query:?} told {found}, which is {told:?}");
            let missed = first.filter(|b| b.end <= durable);
            assert!(missed.is_none() || found < start, "{log:?}: {query:?} found nothing, but {missed:?}");
        }
    }

    /// A batch of the log, by number.
    pub fn batch(&self, log: TopicPartition, pick: impl FnOnce(usize) -> usize) -> Option<&BatchTruth> {
        let batches = &self.logs[&log].batches;
        if batches.is_empty() { None } else { batches.get(pick(batches.len())) }
    }

    /// A new start of the broker does not find a log, of which nothing was promised, or tells that what there was is lost.
    pub fn restarted_empty(&mut self, log: TopicPartition, is_loss_told: bool) {
        let truth = self.logs.get_mut(&log).expect("a log that exists");
        assert!(
            truth.firm == Offset(0) || is_loss_told,
            "{log:?}: LOST: recovery did not find it, of which {} was acknowledged",
            truth.firm
        );
        self.counts.batches_lost_unacknowledged += truth.batches.len() as u64;
        *truth = LogTruth::new(truth.retention);
    }

    /// A new start of the broker shows a log, and perhaps tells that there was more. Everything in it counts as promised from now
    /// on.
    pub fn restarted(&mut self, log: TopicPartition, shown: &Positions, is_loss_told: bool) {
        shown.check();
        let truth = self.logs.get_mut(&log).expect("a log that exists");
        let end = shown.appended;
        self.counts.losses_told += u64::from(end < truth.firm);
        assert!(
            end >= truth.firm || is_loss_told,
            "{log:?}: LOST: it ends at {end}, but {} was acknowledged",
            truth.firm
        );
        assert!(end <= truth.end, "{log:?}: it ends at {end}, but only {} was ever appended", truth.end);
        assert!(truth.is_boundary(end), "{log:?}: it ends at {end}, inside a batch");
        assert_eq!(shown.durable, end, "{log:?}: recovery serves only what it has flushed: {shown:?}");
        truth.check_start(log, shown.start);
        assert!(
            shown.start >= truth.start_firm || is_loss_told,
            "{log:?}: it starts at {}, but was trimmed up to {}",
            shown.start,
            truth.start_firm
        );
        let before = truth.batches.len();
        truth.batches.retain(|b| b.end <= end);
        self.counts.batches_lost_unacknowledged += (before - truth.batches.len()) as u64;
        truth.start_asked = truth.start_asked.min(end);
        truth.end = end;
        truth.written = end;
        truth.firm = end;
    }
}

impl LogTruth {
    fn new(retention: Retention) -> LogTruth {
        LogTruth {
            batches: Vec::new(),
            start_firm: Offset(0),
            start_asked: Offset(0),
            firm: Offset(0),
            written: Offset(0),
            end: Offset(0),
            retention,
        }
    }

    fn is_boundary(&self, at: Offset) -> bool {
        at == Offset(0) || self.batches.binary_search_by_key(&at, |b| b.end).is_ok()
    }

    fn check_start(&self, log: TopicPartition, start: Offset) {
        let highest = match self.retention {
            Retention::Off => self.start_asked,
            Retention::On => self.end,
        };
        assert!(start <= highest, "{log:?}: it starts at {start}, but at most {highest} was asked for");
    }

    fn check_batch(&self, log: TopicPartition, header: &BatchHeader) {
        let at = header.base_offset;
        let Ok(index) = self.batches.binary_search_by_key(&at, |b| b.base) else {
            panic!("{log:?}: PHANTOM: {header:?} was never appended at {at}");
        };
        let truth = &self.batches[index];
        assert_eq!(header.end_offset(), truth.end, "{log:?}: the end of the batch at {at}");
        assert_eq!(header.len, truth.len, "{log:?}: the length of the batch at {at}");
        assert_eq!(header.crc, truth.crc, "{log:?}: CHANGED: the content of the batch at {at}");
    }
}
