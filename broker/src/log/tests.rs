//! The journal path as a whole, over a disk in memory that loses what was not flushed.

mod caps;
mod fixture;
pub(super) mod node;
mod recovery;
mod retention;
mod scrub;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView};
use tidegate_protocol::disk::frame::{FrameBuilder, FrameHeader, JournalIdentity};
use tidegate_protocol::ids::{
    ClusterId, FrameSequence, Incarnation, JournalId, NodeId, Offset, PartitionId, ProducerEpoch, ProducerId,
    Sequence, ShardId, TopicId, TopicPartition,
};
use tidegate_reactor::buffer::View;
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Fault, FreeSpace, Op};

use super::answer::{AppendRefused, Appended, IncomingBatch, Outcome, ReadStart};
use super::flush_rule::FlushRule;
use super::notice::{Notice, Shortage};
use super::{LogOptions, Logs, OpenError, ShardBoot, journal};
use crate::limits::{FileLimits, Limits};
use crate::testdisk::TestDrive;

const KIB: usize = 1024;

const LIMITS: Limits = Limits {
    ring_file_bytes: 64 << 10,
    ring_files: 8,
    checkpoint_slot_bytes: 256 << 10,
    checkpoint_interval_bytes: 96 << 10,
    frame_bytes_max: 32 * KIB,
    frames_in_flight_max: 3,
    in_flight_bytes_max: 96 << 10,
    cycles_writing_max: 2,
    cycle_bytes_min: 4 * KIB,
    batch_bytes_max: 8 * KIB,
    direct_min_bytes: 4 * KIB,
    settle_bytes: 6 * KIB,
    settle_min_bytes: 2 * KIB,
    run_bytes_max: 16 * KIB,
    extent_bytes_max: 8 * KIB,
    memory_bytes: 1 << 20,
    logs_max: 1200,
    extents_max: 1600,
    batches_remembered_max: 512,
    files: FileLimits {
        classes: [64 << 10, 128 << 10, 256 << 10, 512 << 10],
        zero_piece_bytes: 32 << 10,
        files_max: 400,
        ..FileLimits::DEFAULT
    },
    ..Limits::DEFAULT
};

const OPTIONS: LogOptions = LogOptions {
    retention_ms: None,
    retention_bytes: None,
    segment_bytes: 128 << 10,
    append_time: false,
    idempotence_window: 5,
};

fn log(partition: i32) -> TopicPartition {
    TopicPartition { topic: TopicId([7; 16]), partition: PartitionId(partition) }
}

fn batch(records: i32, value_bytes: usize, origin: BatchOrigin, salt: u64) -> IncomingBatch {
    let mut builder = BatchBuilder::new(Vec::new());
    let value = vec![salt as u8; value_bytes];
    for record in 0..records {
        let key = format!("{salt} {record}").into_bytes();
        builder.push(1_000 + i64::from(record), Some(&key), Some(&value), std::iter::empty());
    }
    let bytes = builder.finish(origin);
    let header = *BatchView::parse(&bytes).expect("a built batch").header();
    IncomingBatch { view: View::copy_of(&bytes), header }
}

/// A shard's logs over a disk in memory, and what was promised to those who wait.
struct Bench {
    drive: TestDrive,
    logs: Logs,
    boot: ShardBoot,
    incarnation: u32,
    /// Batches by log: end offset and the batch without its head.
    appended: BTreeMap<TopicPartition, Vec<(Offset, Vec<u8>)>>,
    durable: BTreeMap<TopicPartition, Offset>,
    outcomes: Vec<Outcome>,
}

impl Bench {
    fn new(limits: Limits) -> Bench {
        Bench::of(boot(limits, 0))
    }

    /// A new shard.
    fn of(boot: ShardBoot) -> Bench {
        let limits = boot.limits;
        limits.check().expect("the bounds fit together");
        let mut drive = TestDrive::with_dir("/d");
        for dir in ["/d/journal", "/d/files"] {
            drive.disk.create_dir(dir.as_ref()).expect("a directory");
        }
        journal::create(&mut drive.disk, &boot.root, boot.identity, boot.incarnation, &limits)
            .expect("a journal");
        let boot = ShardBoot { incarnation: Incarnation(1), ..boot };
        let logs = Logs::open(&mut drive.disk, boot.clone()).expect("the logs open");
        let (appended, durable) = (BTreeMap::new(), BTreeMap::new());
        Bench { drive, logs, boot, incarnation: 1, appended, durable, outcomes: Vec::new() }
    }

    fn with_logs(limits: Limits, count: i32) -> Bench {
        let mut bench = Bench::new(limits);
        (0..count).for_each(|p| bench.logs.create(log(p), OPTIONS).expect("room for a log"));
        bench
    }

    fn append(&mut self, log: TopicPartition, batch: IncomingBatch) -> Result<Appended, AppendRefused> {
        let appended = self.logs.append(self.drive.now(), log, std::slice::from_ref(&batch))?;
        if !appended.duplicate {
            let rest = batch.view[21..].to_vec();
            self.appended.entry(log).or_default().push((appended.end, rest));
        }
        Ok(appended)
    }

    /// The end of a turn.
    fn pump(&mut self) {
        let mut ops = Vec::new();
        self.logs.pump(self.drive.now(), &mut ops);
        self.drive.submit(ops);
        self.collect();
    }

    fn collect(&mut self) {
        let mut outcomes = Vec::new();
        self.logs.drain_outcomes(&mut outcomes);
        for outcome in &outcomes {
            if let Outcome::Durable { log, token } = outcome {
                let durable = self.durable.entry(*log).or_default();
                *durable = (*durable).max(token.upto());
            }
        }
        self.outcomes.append(&mut outcomes);
    }

    /// The drive does at most `count` ops, then the turn ends.
    fn turn(&mut self, count: usize) -> usize {
        let events = self.drive.complete_at_most(count);
        let done = events.len();
        let mut ops = Vec::new();
        for event in events {
            self.logs.on_event(self.drive.now(), event, &mut ops);
        }
        self.drive.submit(ops);
        self.pump();
        self.logs.check();
        done
    }

    fn settle(&mut self) {
        self.pump();
        while self.turn(usize::MAX) > 0 {}
    }

    /// What a start finds; whatever was under way before it is gone.
    fn recovered(&mut self) -> Result<Logs, OpenError> {
        self.drive.close_all();
        self.incarnation += 1;
        self.boot.incarnation = Incarnation(self.incarnation);
        Logs::open(&mut self.drive.disk, self.boot.clone())
    }

    /// The process ends, perhaps with the power, and starts again.
    fn restart(&mut self, power: Option<u64>) {
        if let Some(seed) = power {
            self.drive.power_loss(seed);
        }
        self.logs = self.recovered().expect("the logs open");
        let mut ops = Vec::new();
        self.logs.start(self.drive.now(), &mut ops);
        self.drive.submit(ops);
        let found: Vec<TopicPartition> = self.logs.logs_found().collect();
        found.into_iter().for_each(|log| self.logs.set_options(log, OPTIONS));
        self.logs.check();
        // What was not acknowledged may be gone; what is there is what was appended.
        let logs: Vec<TopicPartition> = self.appended.keys().copied().collect();
        for log in logs {
            let acked = self.durable.get(&log).copied().unwrap_or_default();
            let end = self.logs.positions(log).map_or(Offset(0), |p| p.durable);
            assert!(end >= acked, "{log:?} ends at {end} and was acknowledged up to {acked}");
            let batches = self.appended.get_mut(&log).expect("a log with appends");
            batches.retain(|(batch_end, _)| *batch_end <= end);
            assert_eq!(batches.last().map_or(Offset(0), |(end, _)| *end), end, "{log:?} ends at a batch");
            self.durable.insert(log, end);
            if self.logs.positions(log).is_none() {
                self.logs.create(log, OPTIONS).expect("room for a log");
            }
        }
    }

    /// Reads everything that is in memory and compares it.
    fn verify_tails(&mut self) -> usize {
        let mut batches_read = 0;
        for (log, batches) in &self.appended {
            let Some(positions) = self.logs.positions(*log) else { continue };
            let from = self.logs.find_log(*log).and_then(|l| l.tail.base());
            let Some(mut from) = from else { continue };
            while from < positions.durable {
                let read = self.logs.read(*log, from, positions.durable, 10_000);
                let ReadStart::Ready(read) = read else { panic!("{log:?} at {from}: {read:?}") };
                assert_eq!(read.first, from);
                for view in &read.views {
                    for found in tidegate_protocol::batch::Batches::new(view) {
                        let found = found.expect("a whole batch");
                        found.verify_crc().expect("sound");
                        let end = found.header().end_offset();
                        let at = batches
                            .binary_search_by_key(&end, |(end, _)| *end)
                            .expect("a batch that was appended");
                        assert!(batches[at].1 == found.bytes()[21..], "{log:?} differs below {end}");
                        batches_read += 1;
                    }
                }
                from = read.end;
            }
        }
        batches_read
    }

    fn stat(&self, name: &str) -> i64 {
        self.logs.stats().iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }
}

fn boot(limits: Limits, incarnation: u32) -> ShardBoot {
    ShardBoot {
        root: PathBuf::from("/d"),
        identity: JournalIdentity { cluster: ClusterId([1; 16]), node: NodeId(1), journal: JournalId(1) },
        incarnation: Incarnation(incarnation),
        shard: ShardId(1),
        limits,
        flush_rule: FlushRule::OwnFlush { why: "the disk in memory flushes files one by one".into() },
    }
}

fn started(mut bench: Bench) -> Bench {
    let mut ops = Vec::new();
    bench.logs.start(bench.drive.now(), &mut ops);
    bench.drive.submit(ops);
    bench.settle();
    bench
}

/// A small generator, so that a run is told by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

#[test]
fn what_was_appended_is_durable_after_its_flush_and_there_after_a_restart() {
    let mut bench = started(Bench::with_logs(LIMITS, 3));
    let appended = bench.append(log(1), batch(3, 100, BatchOrigin::NONE, 1)).expect("room");
    assert_eq!((appended.base, appended.end), (Offset(0), Offset(3)));
    assert_eq!(bench.logs.positions(log(1)).map(|p| (p.appended, p.durable)), Some((Offset(3), Offset(0))));
    bench.settle();
    assert_eq!(bench.durable.get(&log(1)), Some(&Offset(3)));
    bench.restart(Some(1));
    assert_eq!(bench.logs.positions(log(1)).map(|p| p.durable), Some(Offset(3)));
    assert_eq!(bench.verify_tails(), 1);
}

#[test]
fn nothing_is_durable_before_its_flush_has_ended() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 1)).expect("room");
    bench.pump();
    assert_eq!(bench.turn(1), 1, "the write");
    assert_eq!(bench.logs.positions(log(0)).map(|p| (p.written, p.durable)), Some((Offset(1), Offset(0))));
    assert!(bench.durable.is_empty());
    assert_eq!(bench.turn(1), 1, "the flush");
    assert_eq!(bench.durable.get(&log(0)), Some(&Offset(1)));
}

#[test]
fn a_replayed_state_equals_the_live_one() {
    for seed in 1..20 {
        let mut bench = started(Bench::with_logs(LIMITS, 6));
        let mut dice = Dice(seed * 7919);
        for step in 0..400 {
            let target = log(dice.roll(6) as i32);
            let size = [20, 200, 1500, 5000][dice.roll(4) as usize];
            let _ = bench.append(target, batch(1 + dice.roll(3) as i32, size / 3, BatchOrigin::NONE, step));
            if dice.roll(40) == 0 {
                let before = bench.logs.positions(target).expect("it exists").durable;
                bench.logs.trim(target, Offset(before.0 / 2)).expect("below committed");
            }
            if dice.roll(3) == 0 {
                bench.turn(dice.roll(4) as usize);
            }
        }
        bench.settle();
        let state = |logs: &Logs| logs.by_id.values().map(|i| logs.log(*i).state()).collect::<Vec<_>>();
        let (before, files) = (state(&bench.logs), bench.logs.segments.state());
        bench.restart(None);
        let mut after = state(&bench.logs);
        after.retain(|log| log.appended > 0);
        let before: Vec<_> = before.into_iter().filter(|log| log.appended > 0).collect();
        assert_eq!(after, before, "seed {seed}");
        let plain = |files: Vec<_>| {
            files
                .into_iter()
                .map(|f: tidegate_protocol::disk::checkpoint::FileState| {
                    (f.file, f.generation, f.freed_by, f.owner)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(plain(bench.logs.segments.state()), plain(files), "seed {seed}");
    }
}

#[test]
fn acknowledged_records_survive_power_loss_at_any_time() {
    let (mut laps, mut checkpoints, mut runs) = (0, 0, 0);
    for seed in 1..60u64 {
        let mut bench = started(Bench::with_logs(LIMITS, 5));
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for life in 0..4 {
            let steps = 100 + dice.roll(400);
            for step in 0..steps {
                let target = log(dice.roll(5) as i32);
                let size = [20, 200, 1500, 5000][dice.roll(4) as usize];
                let _ = bench.append(target, batch(1, size as usize, BatchOrigin::NONE, life << 20 | step));
                if dice.roll(2) == 0 {
                    bench.turn(dice.roll(5) as usize);
                }
            }
            bench.verify_tails();
            laps += bench.stat("ring_laps");
            checkpoints += bench.stat("checkpoints");
            runs += bench.stat("runs");
            let power = (dice.roll(4) > 0).then(|| 1 + dice.roll(1 << 30));
            bench.restart(power);
            bench.verify_tails();
        }
    }
    assert!(
        laps > 50 && checkpoints > 200 && runs > 500,
        "{laps} laps, {checkpoints} checkpoints, {runs} runs"
    );
}

#[test]
fn a_duplicate_is_recognised_also_after_a_restart() {
    let origin = |sequence| BatchOrigin {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(sequence),
    };
    for value_bytes in [50, 7000] {
        let mut bench = started(Bench::with_logs(LIMITS, 1));
        let first = bench.append(log(0), batch(1, value_bytes, origin(0), 1)).expect("new");
        let again = bench.append(log(0), batch(1, value_bytes, origin(0), 1)).expect("known");
        assert_eq!(again, Appended { duplicate: true, ..first });
        bench.settle();
        bench.append(log(0), batch(1, value_bytes, origin(1), 2)).expect("new");
        bench.settle();
        bench.restart(Some(5));
        bench.settle();
        let again = bench.append(log(0), batch(1, value_bytes, origin(1), 2)).expect("known");
        assert!(again.duplicate && again.base == Offset(1), "{again:?}");
        bench.append(log(0), batch(1, value_bytes, origin(2), 3)).expect("the next of the sequence");
        assert!(matches!(bench.append(log(0), batch(1, 10, origin(9), 4)), Err(AppendRefused::Producer(_))));
    }
}

#[test]
fn a_short_write_is_continued_before_the_flush() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(1, 3500, BatchOrigin::NONE, 1)).expect("room");
    bench.append(log(0), batch(1, 300, BatchOrigin::NONE, 2)).expect("room");
    bench.drive.cut_next_write(4096);
    bench.settle();
    assert_eq!(bench.durable.get(&log(0)), Some(&Offset(2)));
    bench.restart(Some(3));
    assert_eq!(bench.verify_tails(), 2);
}

#[test]
fn after_a_failed_write_or_flush_the_outcome_is_unknown_appends_stop_and_reads_go_on() {
    let mut failures = 0;
    for failing_call in 0..8 {
        let mut bench = started(Bench::with_logs(LIMITS, 2));
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 1)).expect("room");
        bench.settle();
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 2)).expect("room");
        bench.pump();
        bench.drive.disk.fail_at(failing_call, 5);
        bench.settle();
        let unknown = |o: &Outcome| matches!(o, Outcome::Unknown { log: l, from: Offset(1), fault: Fault { errno: 5, .. } } if *l == log(0));
        if !bench.outcomes.iter().any(unknown) {
            // A call on behalf of the pool of files.
            assert_eq!(bench.durable.get(&log(0)), Some(&Offset(2)));
            continue;
        }
        failures += 1;
        let flushes = bench.stat("flushes");
        bench.drive.pass(10 * LIMITS.mark_flush_after_ns);
        bench.settle();
        assert_eq!(bench.stat("flushes"), flushes, "a failed flush is never tried again");
        assert_eq!(bench.durable.get(&log(0)), Some(&Offset(1)));
        let refused = bench.append(log(1), batch(1, 10, BatchOrigin::NONE, 3));
        assert!(matches!(refused, Err(AppendRefused::Unknown { .. })), "{refused:?}");
        assert_eq!(bench.verify_tails(), 1);
        bench.restart(Some(7));
        bench.settle();
        bench.logs.create(log(1), OPTIONS).expect("room for a log");
        bench.append(log(1), batch(1, 10, BatchOrigin::NONE, 3)).expect("a restart has recovered it");
    }
    assert!(failures >= 2, "the write and the flush: {failures}");
}

#[test]
fn a_quiet_shard_marks_its_last_flush_and_later_flushes_the_mark() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 1)).expect("room");
    bench.settle();
    let flushes = bench.stat("flushes");
    let last = bench.logs.journal.last_sequence();
    assert!(bench.logs.journal.marked() < last);
    bench.drive.pass(LIMITS.mark_after_ns + 1);
    bench.settle();
    assert_eq!(bench.logs.journal.marked(), last);
    assert_eq!(bench.stat("flushes"), flushes, "a mark alone is not flushed at once");
    bench.drive.pass(LIMITS.mark_flush_after_ns + 1);
    bench.settle();
    assert_eq!(bench.stat("flushes"), flushes + 1);
    bench.drive.pass(10 * LIMITS.mark_flush_after_ns);
    bench.settle();
    assert_eq!(bench.stat("flushes"), flushes + 1, "then it is quiet");
}

#[test]
fn a_clean_stop_leaves_a_checkpoint_of_everything() {
    let mut bench = started(Bench::with_logs(LIMITS, 2));
    bench.append(log(1), batch(1, 100, BatchOrigin::NONE, 1)).expect("room");
    bench.logs.stop();
    bench.settle();
    assert!(bench.logs.stopped());
    assert_eq!(bench.durable.get(&log(1)), Some(&Offset(1)));
    assert_eq!(bench.logs.checkpoints.newest().sequence, bench.logs.journal.last_sequence());
    bench.restart(Some(2));
    assert_eq!(bench.verify_tails(), 1);
}

#[test]
fn a_damaged_frame_that_was_flushed_stops_writes_and_the_state_before_it_is_served() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    let mut places = Vec::new();
    for salt in 0..3 {
        places.push(bench.logs.journal.head());
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, salt)).expect("room");
        bench.settle();
    }
    bench.drive.disk.flip("/d/journal/00000001-ring-00", places[1] as usize + 300);
    bench.durable.clear();
    bench.appended.get_mut(&log(0)).expect("appends").truncate(1);
    let pool = bench.drive.disk.list(Path::new("/d/files")).expect("a directory");
    assert!(!pool.is_empty());
    let pool: Vec<String> = pool.iter().map(|name| format!("/d/files/{}", name.display())).collect();
    pool.iter().for_each(|path| bench.drive.disk.flip(path, 10));
    bench.restart(Some(1));
    assert_eq!(bench.logs.positions(log(0)).map(|p| p.durable), Some(Offset(1)));
    let refused = bench.append(log(0), batch(1, 10, BatchOrigin::NONE, 9));
    assert!(matches!(refused, Err(AppendRefused::ReadOnly { .. })), "{refused:?}");
    let before = bench.drive.disk.clone();
    bench.settle();
    assert_eq!(
        bench.drive.disk.bytes_of("/d/journal/00000001-ring-00"),
        before.bytes_of("/d/journal/00000001-ring-00")
    );
    for path in &pool {
        assert_eq!(bench.drive.disk.bytes_of(path), before.bytes_of(path), "{path} is left as it is");
    }
    assert_eq!(
        bench.drive.disk.list(Path::new("/d/files")).expect("a directory").len(),
        pool.len(),
        "none is made"
    );
}

#[test]
fn bytes_in_the_ring_that_look_like_a_frame_of_a_far_future_are_not_believed() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 0)).expect("room");
    bench.settle();
    let (head, last) = (bench.logs.journal.head() as usize, bench.logs.journal.last_sequence().0);
    let identity = boot(LIMITS, 0).identity;
    let mut look_alike = |at: usize, sequence: u64| {
        let mut bytes = vec![0; 4 * KIB];
        FrameBuilder::new(&mut bytes).finish(FrameHeader {
            identity,
            incarnation: Incarnation(1),
            sequence: FrameSequence(sequence),
            previous_hash: 7,
            mark: FrameSequence(sequence - 1),
            bytes: 0,
            entries: 0,
            inner_crc: 0,
        });
        let path = "/d/journal/00000001-ring-00";
        let mut ring = bench.drive.disk.bytes_of(path).to_vec();
        ring[at..at + 4 * KIB].copy_from_slice(&bytes);
        bench.drive.disk.put(path, &ring);
    };
    look_alike(head + 8 * KIB, 1 << 60);
    look_alike(head + 12 * KIB, last + 5);
    bench.restart(None);
    bench.append(log(0), batch(1, 10, BatchOrigin::NONE, 1)).expect("the shard serves");
    bench.settle();
    bench.restart(None);
    assert_eq!(bench.verify_tails(), 2);
}

#[test]
fn a_damaged_frame_above_the_mark_is_the_end_of_the_log() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    for salt in 0..2 {
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, salt)).expect("room");
        bench.settle();
    }
    let at = bench.logs.journal.head() as usize;
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 2)).expect("room");
    bench.pump();
    bench.turn(1);
    bench.drive.disk.flip("/d/journal/00000001-ring-00", at + 300);
    bench.restart(None);
    assert_eq!(bench.logs.positions(log(0)).map(|p| p.durable), Some(Offset(2)));
    bench.settle();
    bench.append(log(0), batch(1, 10, BatchOrigin::NONE, 9)).expect("the shard goes on");
    bench.settle();
    bench.restart(Some(3));
    assert_eq!(bench.verify_tails(), 3);
}

#[test]
fn a_shard_that_fails_again_and_again_can_always_be_recovered() {
    for seed in 1..6 {
        let mut bench = started(Bench::with_logs(LIMITS, 4));
        let mut dice = Dice(seed * 31);
        for life in 0..400 {
            bench.drive.pass(LIMITS.mark_after_ns + 1);
            for _ in 0..dice.roll(4) {
                let _ = bench.append(log(dice.roll(4) as i32), batch(1, 1500, BatchOrigin::NONE, life));
                bench.turn(dice.roll(4) as usize);
            }
            let power = (dice.roll(3) > 0).then(|| 1 + dice.roll(1 << 30));
            bench.restart(power);
            // A log of which nothing was kept is made again, as its topic would have it.
            (0..4).for_each(|p| bench.logs.create(log(p), OPTIONS).expect("room for a log"));
        }
        bench.settle();
        assert!(bench.logs.room().bytes > 0);
        bench.logs.create(log(0), OPTIONS).expect("room for a log");
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 0)).expect("it goes on");
        bench.settle();
        bench.restart(Some(1));
        bench.verify_tails();
    }
}

#[test]
fn crash_loops_leave_room_to_move_what_is_old() {
    // The smallest ring that such frames may have: a checkpoint is lost again and again after what it covers was moved.
    let limits = Limits {
        ring_file_bytes: 64 << 10,
        ring_files: 4,
        checkpoint_interval_bytes: 64 << 10,
        frame_bytes_max: 64 * KIB,
        in_flight_bytes_max: 192 << 10,
        settle_bytes: 16 * KIB,
        run_bytes_max: 32 * KIB,
        direct_min_bytes: 16 * KIB,
        ..LIMITS
    };
    for seed in 1..8 {
        let mut bench = started(Bench::with_logs(limits, 12));
        let mut dice = Dice(seed * 7919);
        for life in 0..300 {
            // Long enough to flush a frame or two, too short for a checkpoint or a data file.
            bench.drive.pass(limits.mark_after_ns + 1);
            for _ in 0..6 {
                let to = log(dice.roll(12) as i32);
                let _ = bench.append(to, batch(1, 1500, BatchOrigin::NONE, life));
                bench.turn(3 + dice.roll(3) as usize);
            }
            bench.restart((dice.roll(4) == 0).then(|| 1 + dice.roll(1 << 30)));
            (0..12).for_each(|p| bench.logs.create(log(p), OPTIONS).expect("room for a log"));
        }
        bench.drive.pass(2_000_000_000);
        bench.settle();
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 0)).expect("it goes on");
        bench.settle();
        let behind = (0..12).filter_map(|p| bench.logs.positions(log(p))).filter(|p| p.durable < p.appended);
        assert_eq!(behind.count(), 0, "{:?}", bench.logs.stats());
        bench.logs.stop();
        bench.settle();
        assert!(bench.logs.stopped(), "{:?}", bench.logs.stats());
    }
}

#[test]
fn large_data_that_came_before_there_were_files_is_settled_once_there_are() {
    let mut bench = started(Bench::with_logs(LIMITS, 2));
    bench.drive.full = true;
    let mut refused = 0;
    for step in 0..400 {
        refused += u32::from(bench.append(log(0), batch(1, 7500, BatchOrigin::NONE, step)).is_err());
        bench.turn(usize::MAX);
    }
    assert!(refused > 0, "the ring has no room for ever");
    bench.drive.full = false;
    for _ in 0..20 {
        bench.drive.pass(1_000_000_000);
        bench.settle();
    }
    assert!(bench.logs.room().bytes > 0, "{:?}", bench.logs.stats());
    bench.append(log(1), batch(1, 100, BatchOrigin::NONE, 0)).expect("it goes on");
    bench.settle();
}

#[test]
fn a_quiet_shard_does_not_carry_for_ever_and_a_stop_ends() {
    // Small extents of more than half a checkpoint interval: to carry them all makes the first one old again.
    let limits =
        Limits { direct_min_bytes: 32 * KIB, settle_bytes: 16 * KIB, settle_min_bytes: 16 * KIB, ..LIMITS };
    let mut bench = started(Bench::with_logs(limits, 8));
    bench.drive.full = true;
    for step in 0..300 {
        let _ = bench.append(log(step % 8), batch(1, 1900, BatchOrigin::NONE, step as u64));
        bench.turn(usize::MAX);
    }
    let quiet = |bench: &mut Bench| {
        for turn in 0..1000 {
            if bench.turn(usize::MAX) == 0 {
                return;
            }
            assert!(turn < 900, "no rest: {:?}", bench.logs.stats());
        }
    };
    quiet(&mut bench);
    bench.logs.stop();
    bench.pump();
    quiet(&mut bench);
}

#[test]
fn nothing_waits_for_what_it_is_to_free() {
    // 32 MiB for a thousand logs that get 1 KiB each in turn: no timer passes, and the whole never stops.
    let limits = Limits {
        ring_file_bytes: 4 << 20,
        ring_files: 8,
        checkpoint_slot_bytes: 4 << 20,
        checkpoint_interval_bytes: 8 << 20,
        frame_bytes_max: 1 << 20,
        in_flight_bytes_max: 3 << 20,
        batch_bytes_max: 256 * KIB,
        direct_min_bytes: 32 * KIB,
        settle_bytes: 64 * KIB,
        settle_min_bytes: 8 * KIB,
        run_bytes_max: 256 * KIB,
        extent_bytes_max: 64 * KIB,
        memory_bytes: 32 << 20,
        extents_max: 40_000,
        files: FileLimits {
            files_max: 4000,
            classes: [512 << 10, 1 << 20, 2 << 20, 4 << 20],
            ..LIMITS.files
        },
        ..LIMITS
    };
    let mut bench = started(Bench::with_logs(limits, 1000));
    let mut refused = 0;
    let rounds = 30;
    for round in 0..rounds {
        for partition in 0..1000 {
            let incoming = batch(1, 900, BatchOrigin::NONE, round);
            while bench
                .logs
                .append(bench.drive.now(), log(partition), std::slice::from_ref(&incoming))
                .is_err()
            {
                refused += 1;
                assert!(refused < 100_000, "no progress: {:?}", bench.logs.stats());
                bench.turn_unchecked();
            }
            bench.turn_unchecked();
        }
        bench.logs.check();
    }
    bench.settle();
    for partition in 0..1000 {
        assert_eq!(bench.logs.positions(log(partition)).map(|p| p.durable), Some(Offset(rounds as i64)));
    }
    assert!(bench.stat("log_memory_bytes") <= limits.memory_bytes as i64);
}

impl Bench {
    fn turn_unchecked(&mut self) {
        let events = self.drive.complete_at_most(usize::MAX);
        let mut ops = Vec::new();
        for event in events {
            self.logs.on_event(self.drive.now(), event, &mut ops);
        }
        self.logs.pump(self.drive.now(), &mut ops);
        self.drive.submit(ops);
        self.logs.drain_outcomes(&mut self.outcomes);
        self.outcomes.clear();
    }
}

#[test]
fn records_past_their_age_go_with_their_data_files_and_younger_ones_stay() {
    let mut bench = started(Bench::new(LIMITS));
    let options = LogOptions { retention_ms: Some(60_000), ..OPTIONS };
    bench.logs.create(log(0), options).expect("room for a log");
    bench.logs.create(log(1), OPTIONS).expect("room for a log");
    for n in 0..30 {
        for l in [log(0), log(1)] {
            bench.append(l, batch(3, 2000, BatchOrigin::NONE, n)).expect("room");
        }
        bench.settle();
    }
    let files = bench.logs.segments.pieces(log(0)).count();
    assert!(files > 0, "some of it lies in data files");
    bench.drive.pass(50_000_000_000);
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 99)).expect("room");
    bench.settle();
    assert_eq!(bench.logs.positions(log(0)).expect("a log").start, Offset(0));
    bench.drive.pass(20_000_000_000);
    bench.settle();
    assert_eq!(bench.logs.positions(log(0)).expect("a log").start, Offset(90), "all but the last record");
    assert_eq!(bench.logs.segments.pieces(log(0)).count(), 0);
    assert_eq!(bench.logs.positions(log(1)).expect("a log").start, Offset(0), "kept for ever");
}

#[test]
fn a_file_that_a_cycle_asks_for_in_vain_is_on_its_way_when_the_turn_ends() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(3, 2000, BatchOrigin::NONE, 1)).expect("room");
    bench.settle();
    assert!(bench.logs.segments.pieces(log(0)).count() > 0, "it went into a data file");
    bench.restart(None);
    let mut ops = Vec::new();
    // Until the journal is open nothing is written; the data file is not opened before it is wanted.
    while bench.turn(1) > 0 && bench.logs.opening > 0 {}
    bench.append(log(0), batch(3, 2000, BatchOrigin::NONE, 2)).expect("room");
    bench.logs.pump(bench.drive.now(), &mut ops);
    let opens = |op: &Op| matches!(op, Op::Open { path, .. } if path.starts_with("/d/files"));
    assert!(bench.logs.segments.is_open_for(log(0)) || ops.iter().any(opens), "{ops:?}");
}

fn notices(bench: &Bench) -> Vec<&Notice> {
    let all = bench.outcomes.iter();
    all.filter_map(|o| if let Outcome::Notice(notice) = o { Some(notice) } else { None }).collect()
}

#[test]
fn below_the_floor_produce_is_refused_and_all_else_goes_on_until_there_is_room_again() {
    const MIB: u64 = 1 << 20;
    let space = |free_bytes| Some(FreeSpace { free_bytes, total_bytes: 100 * MIB });
    let files = FileLimits { floor_bytes: Some(MIB), ..LIMITS.files };
    let mut bench = Bench::with_logs(Limits { files, ..LIMITS }, 2);
    bench.drive.disk.space = space(10 * MIB);
    let mut bench = started(bench);
    bench.append(log(0), batch(1, 3_000, BatchOrigin::NONE, 1)).expect("it is taken");
    bench.settle();
    assert_eq!(notices(&bench), Vec::<&Notice>::new());

    bench.drive.disk.space = space(MIB);
    bench.drive.pass(1_000_000_000);
    bench.settle();
    let refused = bench.append(log(1), batch(1, 100, BatchOrigin::NONE, 2)).unwrap_err();
    let needed_bytes = MIB + MIB / 4;
    let shortage = Shortage::BelowFloor { free_bytes: MIB, needed_bytes };
    assert_eq!(refused, AppendRefused::DiskFull(shortage.clone()));
    assert_eq!(bench.logs.room().bytes, 0);
    let internal = TopicPartition { topic: TopicId::METADATA, partition: PartitionId(0) };
    bench.logs.create(internal, OPTIONS).expect("it is taken");
    bench.append(internal, batch(1, 100, BatchOrigin::NONE, 3)).expect("it is taken");
    bench.logs.trim(log(0), Offset(1)).expect("it is taken");
    bench.settle();
    assert_eq!(bench.durable[&internal], Offset(1), "commits go on");
    assert!(bench.outcomes.iter().any(|o| matches!(o, Outcome::Trimmed { .. })), "trims go on");

    bench.drive.disk.space = space(needed_bytes);
    bench.drive.pass(1_000_000_000);
    bench.settle();
    bench.append(log(1), batch(1, 100, BatchOrigin::NONE, 4)).expect("it is taken");
    assert_eq!(notices(&bench), [&Notice::ProduceRefused(shortage), &Notice::ProduceTaken]);
}

#[test]
fn a_full_drive_stops_produce_once_the_ring_is_full_too_and_is_told_once() {
    let mut bench = Bench::with_logs(LIMITS, 40);
    bench.drive.full = true;
    let mut bench = started(bench);
    let mut salt = 0;
    let refused = loop {
        salt += 1;
        assert!(salt < 10_000, "a ring without data files takes no end of records");
        match bench.append(log(salt % 40), batch(1, 3_000, BatchOrigin::NONE, salt as u64)) {
            Ok(_) | Err(AppendRefused::NoRoom { .. }) => bench.settle(),
            Err(other) => break other,
        }
        // Between two tries to make a file nothing begins or ends.
        bench.drive.pass(100_000_000);
    };
    assert!(matches!(refused, AppendRefused::DiskFull(Shortage::NoFile(_))), "{refused:?}");
    for _ in 0..5 {
        bench.drive.pass(1_000_000_000);
        bench.settle();
    }
    assert_eq!(notices(&bench).len(), 1, "{:?}", notices(&bench));
    bench.drive.full = false;
    bench.drive.pass(1_000_000_000);
    bench.settle();
    bench.append(log(0), batch(1, 3_000, BatchOrigin::NONE, 0)).expect("it is taken");
    assert_eq!(notices(&bench)[1..], [&Notice::ProduceTaken]);
}

#[test]
fn a_wall_clock_that_jumps_is_told_once_and_once_more_when_it_is_right_again() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    let year_ms = 365 * 24 * 3_600_000;
    for (wall_off_ms, told) in [(0, 0), (year_ms, 1), (year_ms, 1), (0, 2), (0, 2)] {
        bench.drive.wall_off_ms = wall_off_ms;
        bench.drive.pass(1_000_000_000);
        bench.settle();
        assert_eq!(notices(&bench).len(), told, "{:?}", notices(&bench));
    }
    let expected = [&Notice::AgeRetentionPaused { off_ms: year_ms }, &Notice::AgeRetentionResumed];
    assert_eq!(notices(&bench), expected);
}
