//! A node in memory for tests: a data directory and its shards, which run one after the other.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_logic::placement::shard_of;
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView};
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::ids::{
    ClusterId, Incarnation, JournalId, NodeId, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence,
    ShardId, TopicId, TopicPartition,
};
use tidegate_reactor::buffer::View;

use super::super::answer::{IncomingBatch, Outcome, ReadBatches, ReadStart};
use super::super::flush_rule::FlushRule;
use super::super::{LogOptions, Logs, ShardBoot, journal};
use crate::datadir::{DataDir, Wanted};
use crate::limits::{FileLimits, Limits};
use crate::testdisk::TestDrive;

pub(in crate::log) const ROOT: &str = "/d";

pub(in crate::log) const LIMITS: Limits = Limits {
    ring_file_bytes: 64 << 10,
    ring_files: 8,
    checkpoint_slot_bytes: 512 << 10,
    checkpoint_interval_bytes: 96 << 10,
    frame_bytes_max: 32 << 10,
    frames_in_flight_max: 3,
    in_flight_bytes_max: 96 << 10,
    cycles_writing_max: 2,
    cycle_bytes_min: 4 << 10,
    batch_bytes_max: 8 << 10,
    direct_min_bytes: 4 << 10,
    settle_bytes: 6 << 10,
    settle_min_bytes: 2 << 10,
    run_bytes_max: 16 << 10,
    extent_bytes_max: 8 << 10,
    memory_bytes: 1 << 20,
    logs_max: 2000,
    batches_remembered_max: 4_800,
    extents_max: 500,
    files: FileLimits {
        classes: [64 << 10, 128 << 10, 256 << 10, 512 << 10],
        zero_piece_bytes: 64 << 10,
        files_max: 200,
        ..FileLimits::DEFAULT
    },
    ..Limits::DEFAULT
};

pub(in crate::log) const OPTIONS: LogOptions = LogOptions {
    retention_ms: None,
    retention_bytes: None,
    segment_bytes: 128 << 10,
    append_time: false,
    idempotence_window: 5,
};

pub(in crate::log) fn wanted(shard_count: u16) -> Wanted {
    let (cluster_if_new, journal_first_if_new) = (ClusterId([9; 16]), JournalId(1));
    Wanted { cluster: None, cluster_if_new, journal_first_if_new, node: NodeId(1), shard_count }
}

pub(in crate::log) fn log(n: u8) -> TopicPartition {
    TopicPartition { topic: TopicId([n / 3 + 1; 16]), partition: PartitionId(i32::from(n % 3)) }
}

pub(in crate::log) fn batch(of: TopicPartition, sequence: i32, value_bytes: usize) -> IncomingBatch {
    let producer = ProducerId(i64::from(of.topic.0[0]) * 10 + i64::from(of.partition.0));
    let origin = BatchOrigin {
        producer_id: producer,
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(sequence),
    };
    let mut builder = BatchBuilder::new(Vec::new());
    let value = vec![sequence as u8; value_bytes];
    builder.push(1000, Some(&of.topic.0), Some(&value), std::iter::empty());
    let bytes = builder.finish(origin);
    let header = *BatchView::parse(&bytes).unwrap().header();
    IncomingBatch { view: View::copy_of(&bytes), header }
}

/// A node whose shards run one after the other, over a disk in memory.
#[derive(Default)]
pub(in crate::log) struct Node {
    pub(in crate::log) drive: TestDrive,
    /// Batches of each log without the 21 bytes that the broker sets.
    pub(in crate::log) expected: BTreeMap<TopicPartition, Vec<Vec<u8>>>,
    pub(in crate::log) starts: BTreeMap<TopicPartition, Offset>,
}

impl Node {
    pub(in crate::log) fn dir(&mut self, shard_count: u16) -> DataDir {
        DataDir::open(&mut self.drive.disk, Path::new(ROOT), &wanted(shard_count), &mut |disk, journal| {
            let identity = JournalIdentity { cluster: ClusterId([9; 16]), node: NodeId(1), journal };
            journal::create(disk, Path::new(ROOT), identity, Incarnation(0), &LIMITS)
        })
        .unwrap()
    }

    /// Starts every shard in turn, lets `work` use it, and ends it with a kill.
    pub(in crate::log) fn each_shard(&mut self, mut work: impl FnMut(&mut Node, &mut Logs, ShardId, u16)) {
        let mut dir = self.dir(1);
        let incarnation = dir.raise(&mut self.drive.disk).unwrap();
        let journals = dir.superblock().layout.journals.clone();
        dir.close(&mut self.drive.disk);
        let count = journals.len() as u16;
        for (shard, journal) in (0..).map(ShardId).zip(journals) {
            let boot = ShardBoot {
                root: ROOT.into(),
                identity: JournalIdentity { cluster: ClusterId([9; 16]), node: NodeId(1), journal },
                incarnation,
                shard,
                limits: LIMITS,
                flush_rule: FlushRule::OneFlush,
            };
            let mut logs = Logs::open(&mut self.drive.disk, boot).unwrap();
            self.drive.close_all();
            let mut ops = Vec::new();
            logs.start(self.drive.now(), &mut ops);
            self.drive.submit(ops);
            self.settle(&mut logs);
            let found: Vec<TopicPartition> = logs.logs_found().collect();
            for log in found {
                assert_eq!(shard_of(log, count), shard, "{log:?} is where it belongs");
                logs.set_options(log, OPTIONS);
            }
            work(self, &mut logs, shard, count);
            self.settle(&mut logs);
            self.drive.close_all();
        }
    }

    pub(in crate::log) fn settle(&mut self, logs: &mut Logs) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for turns in 0.. {
            assert!(turns < 10_000, "it never comes to rest");
            let mut ops = Vec::new();
            logs.pump(self.drive.now(), &mut ops);
            logs.drain_outcomes(&mut outcomes);
            self.drive.submit(ops);
            let events = self.drive.complete();
            if events.is_empty() {
                break;
            }
            let mut ops = Vec::new();
            events.into_iter().for_each(|event| logs.on_event(self.drive.now(), event, &mut ops));
            self.drive.submit(ops);
        }
        outcomes
    }

    /// More of every log: of some a little, of some enough for data files of their own.
    pub(in crate::log) fn fill(&mut self, rounds: i32) {
        self.each_shard(|node, logs, shard, count| {
            for n in (0..20).filter(|n| shard_of(log(*n), count) == shard) {
                logs.create(log(n), OPTIONS).unwrap();
                let have = node.expected.get(&log(n)).map_or(0, Vec::len) as i32;
                for round in have..have + rounds {
                    let value = if n % 4 == 0 { 6000 } else { 60 + usize::from(n) };
                    let batch = batch(log(n), round, value);
                    logs.append(node.drive.now(), log(n), std::slice::from_ref(&batch)).unwrap();
                    node.expected.entry(log(n)).or_default().push(batch.view[21..].to_vec());
                    node.settle(logs);
                }
            }
        });
    }

    pub(in crate::log) fn read(
        &mut self,
        logs: &mut Logs,
        log: TopicPartition,
        from: Offset,
        upto: Offset,
    ) -> ReadBatches {
        match logs.read(log, from, upto, 20_000) {
            ReadStart::Ready(batches) => batches,
            ReadStart::Pending(wanted) => {
                let done = self.settle(logs).into_iter().find_map(|outcome| match outcome {
                    Outcome::ReadDone { ticket, result } if ticket == wanted => Some(result),
                    _ => None,
                });
                done.expect("a read ends").unwrap()
            }
            other => panic!("{log:?} from {from}: {other:?}"),
        }
    }

    /// Every log has everything, and remembers its producer.
    pub(in crate::log) fn verify(&mut self) {
        let mut seen = 0;
        self.each_shard(|node, logs, shard, count| {
            for (log, batches) in node.expected.clone() {
                if shard_of(log, count) != shard {
                    continue;
                }
                seen += 1;
                let positions = logs.positions(log).unwrap_or_else(|| panic!("{log:?} is lost"));
                let start = node.starts.get(&log).copied().unwrap_or_default();
                assert_eq!((positions.start, positions.durable), (start, Offset(batches.len() as i64)));
                let mut from = start;
                while from < positions.durable {
                    let read = node.read(logs, log, from, positions.durable);
                    assert_eq!(read.first, from);
                    let bytes: Vec<u8> = read.views.iter().flat_map(|view| view.to_vec()).collect();
                    for found in tidegate_protocol::batch::Batches::new(&bytes) {
                        let found = found.unwrap();
                        let expected = &batches[found.header().base_offset.0 as usize];
                        assert_eq!(&found.bytes()[21..], &expected[..]);
                    }
                    from = read.end;
                }
                let last = batches.len() as i32 - 1;
                let value = batches[last as usize].len();
                let again = batch(log, last, value);
                let appended = logs.append(node.drive.now(), log, &[again]).unwrap();
                assert!(appended.duplicate, "{log:?} remembers its producer");
            }
        });
        assert_eq!(seen, self.expected.len());
    }
}
