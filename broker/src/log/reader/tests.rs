//! Reads of batches that lie on the drive: what they find, what they refuse, and in which order they are done.

use std::path::Path;

use proptest::prelude::*;
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView, heads_crc, set_place};
use tidegate_protocol::disk::entry::RunMark;
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, run_bytes};
use tidegate_protocol::extent::LogKind;
use tidegate_protocol::ids::{JournalId, LeaderEpoch, PartitionId, TopicId};
use tidegate_reactor::disk::Disk;

use super::*;
use crate::datadir;
use crate::log::segment::{FlushReach, Purpose, Rot, SegmentsConfig, Zeros};
use crate::testdisk::TestDrive;

const CLUSTER: ClusterId = ClusterId([3; 16]);
const LOG: TopicPartition = TopicPartition { topic: TopicId([1; 16]), partition: PartitionId(2) };

fn config() -> SegmentsConfig {
    let limits = FileLimits {
        classes: [128 << 10, 256 << 10, 512 << 10, 1 << 20],
        zero_piece_bytes: 128 << 10,
        files_max: 1000,
        open_max: 8,
        read_bytes_max: 16 << 10,
        reads_max: 2,
        reads_waiting_max: 4,
        ..FileLimits::DEFAULT
    };
    SegmentsConfig { root: "/data".into(), journal: JournalId(1), reach: FlushReach::AllFiles, limits }
}

/// Records of one batch: timestamps, with a value of that many bytes each.
type BatchSpec = (Vec<i64>, usize);

struct World {
    segments: Segments,
    reader: ColdReader,
    drive: TestDrive,
    /// All batches, with the append time of their extent.
    batches: Vec<(Vec<u8>, i64)>,
    end: Offset,
    append_time: i64,
}

impl World {
    fn new() -> World {
        let mut drive = TestDrive::with_dir("/data");
        drive.disk.create_dir(Path::new("/data/files")).unwrap();
        let limits = config().limits;
        let mut world = World {
            segments: Segments::new(config()),
            reader: ColdReader::new(limits, CLUSTER),
            drive,
            batches: Vec::new(),
            end: Offset(0),
            append_time: 1000,
        };
        world.settle();
        world
    }

    /// Turns until nothing is under way.
    fn settle(&mut self) {
        for turns in 0.. {
            assert!(turns < 10_000, "it never comes to rest");
            let mut ops = Vec::new();
            self.segments.pump(self.drive.now(), Zeros::GoOn, &mut ops);
            self.reader.pump(&mut self.segments, &mut ops);
            self.drive.submit(ops);
            let events = self.drive.complete();
            if events.is_empty() {
                return;
            }
            let mut ops = Vec::new();
            for event in events {
                match event {
                    Event::Read { .. } => self.reader.on_event(event, &mut self.segments),
                    event => self.segments.on_event(self.drive.now(), event, &mut ops),
                }
            }
            self.drive.submit(ops);
            self.segments.check();
            assert!(self.reader.under_way.len() <= self.reader.limits.reads_max as usize);
        }
    }

    /// As after a restart: the index is gone.
    fn restart(&mut self) {
        self.drive.close_all();
        self.segments = Segments::restore(config(), &self.segments.state()).unwrap();
        self.segments.opened(&mut self.drive.disk, Rot::Absent).unwrap();
        self.reader = ColdReader::new(config().limits, CLUSTER);
    }

    /// A run; each extent is a list of batches.
    fn put(&mut self, extents: &[Vec<BatchSpec>]) {
        let base = self.end;
        let mut bytes = vec![0; RUN_HEADER_BYTES];
        let append_first_ms = self.append_time + 10;
        let mut max_timestamp_ms = i64::MIN;
        for extent in extents {
            self.append_time += 10;
            let header = self.put_extent(extent, &mut bytes);
            max_timestamp_ms = max_timestamp_ms.max(header.max_timestamp_ms);
        }
        let extents_end = bytes.len();
        bytes.resize(run_bytes(extents_end - RUN_HEADER_BYTES), 0);
        let mut asked = 0;
        let place = loop {
            asked += 1;
            assert!(asked < 100, "no file for {} bytes: {:?}", bytes.len(), self.segments);
            let len = bytes.len() as u32;
            if let Some(place) = self.segments.place(LOG, base, len, u64::MAX, Purpose::Settling) {
                break place;
            }
            self.settle();
        };
        if let Some(assign) = &place.assign {
            self.segments.apply_assign(assign).unwrap();
        }
        let header = RunHeader {
            cluster: CLUSTER,
            file: place.file,
            generation: place.generation,
            sequence: place.run_sequence,
            previous_crc: place.previous_crc,
            log: LOG,
            base,
            end: self.end,
            bytes: bytes.len() as u32,
            extents: extents.len() as u32,
            append_first_ms,
            append_last_ms: self.append_time,
            max_timestamp_ms,
        };
        let crc = header.finish(&mut bytes, extents_end);
        let path = datadir::data_file(Path::new("/data"), place.file);
        let file = self.drive.disk.open(&path).unwrap();
        self.drive.disk.write(file, place.at, &Buffer::copy_of(&bytes)).unwrap();
        self.drive.disk.flush(file).unwrap();
        let run = RunMark {
            log: LOG,
            base,
            end: self.end,
            file: place.file,
            generation: place.generation,
            at: place.at,
            bytes: bytes.len() as u32,
            crc,
            run_sequence: place.run_sequence,
            append_first_ms,
            append_last_ms: self.append_time,
            max_timestamp_ms,
            producers: Vec::new(),
        };
        self.segments.apply_run(&run).unwrap();
        self.segments.put_back(place.file);
    }

    fn put_extent(&mut self, batches: &[BatchSpec], run: &mut Vec<u8>) -> ExtentHeader {
        let base = self.end;
        let mut payload = Vec::new();
        for (times, value) in batches {
            let mut builder = BatchBuilder::new(Vec::new());
            for time in times {
                let value = vec![*time as u8; *value];
                builder.push(*time, None, Some(&value), std::iter::empty::<(&str, Option<&[u8]>)>());
            }
            let mut batch = builder.finish(BatchOrigin::NONE);
            set_place(&mut batch, self.end, LeaderEpoch(1));
            self.end = self.end.plus(times.len() as i64);
            payload.extend_from_slice(&batch);
            self.batches.push((batch, self.append_time));
        }
        let header = ExtentHeader {
            log: LOG,
            kind: LogKind::Data,
            flags: 0,
            leader_epoch: LeaderEpoch(1),
            base,
            end: self.end,
            batch_count: batches.len() as u32,
            byte_len: payload.len() as u32,
            append_time_ms: self.append_time,
            max_timestamp_ms: batches.iter().flat_map(|(times, _)| times).copied().max().unwrap(),
            payload_crc: crc::of(&payload),
        };
        run.extend_from_slice(&header.encode());
        run.extend_from_slice(&payload);
        header
    }

    fn read(&mut self, from: i64, bytes_max: usize) -> Result<ReadBatches, ReadRefused> {
        self.reader.read(LOG, Offset(from), self.end, bytes_max, 7)?;
        self.settle();
        match self.reader.take_done().pop() {
            Some((7, Done::Batches(result))) => result,
            other => panic!("{other:?}"),
        }
    }

    fn find(&mut self, from: i64, time: Time) -> Option<Found> {
        self.find_result(from, time).unwrap()
    }

    fn find_result(&mut self, from: i64, time: Time) -> Result<Option<Found>, ReadRefused> {
        self.reader.find(LOG, Offset(from), self.end, time, 8).unwrap();
        self.settle();
        match self.reader.take_done().pop() {
            Some((8, Done::Found(result))) => result,
            other => panic!("{other:?}"),
        }
    }

    /// What a read has to give: the batches from the one that holds `from`, as many as fit.
    fn expected(&self, from: i64, bytes_max: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (batch, _) in &self.batches {
            let view = BatchView::parse(batch).unwrap();
            if view.header().end_offset() > Offset(from) {
                if !out.is_empty() && out.len() + batch.len() > bytes_max {
                    break;
                }
                out.extend_from_slice(batch);
            }
        }
        out
    }

    /// The first record with that time, by looking at each.
    fn expected_find(&self, from: i64, time: Time) -> Option<Found> {
        self.batches.iter().find_map(|(batch, append_time)| {
            let view = BatchView::parse(batch).unwrap();
            let mut records = view.records().unwrap().map(Result::unwrap).filter(|r| r.offset.0 >= from);
            match time {
                Time::Record(ms) => records
                    .find(|r| r.timestamp_ms >= ms)
                    .map(|r| Found { offset: r.offset, timestamp_ms: r.timestamp_ms }),
                Time::Append(ms) => records
                    .find(|_| *append_time >= ms)
                    .map(|r| Found { offset: r.offset, timestamp_ms: *append_time }),
            }
        })
    }
}

fn bytes_of(batches: &ReadBatches) -> Vec<u8> {
    let bytes = batches.views.iter().flat_map(|view| view.to_vec()).collect::<Vec<u8>>();
    assert_eq!(bytes.len(), batches.bytes);
    assert_eq!(heads_crc(&bytes).unwrap(), batches.heads_crc);
    let last = Batches::new(&bytes).last().unwrap().unwrap();
    assert_eq!(last.header().end_offset(), batches.end);
    assert_eq!(Batches::new(&bytes).count(), batches.batch_count as usize);
    bytes
}

fn small(count: usize) -> Vec<Vec<BatchSpec>> {
    (0..count).map(|n| vec![(vec![n as i64 * 5, n as i64 * 5 + 1], 700)]).collect()
}

#[test]
fn a_reader_gets_every_batch_in_order_across_runs_and_files_with_and_without_an_index() {
    let mut world = World::new();
    for _ in 0..40 {
        world.put(&small(9));
    }
    assert!(world.segments.table.of_log(LOG).count() > 1, "several files");
    for _ in 0..2 {
        let (mut at, mut all) = (0, Vec::new());
        while at < world.end.0 {
            let got = world.read(at, 10_000).unwrap();
            assert_eq!(got.first, Offset(at));
            all.extend(bytes_of(&got));
            at = got.end.0;
        }
        assert_eq!(all, world.expected(0, usize::MAX));
        world.restart();
    }
}

#[test]
fn an_extent_larger_than_a_piece_is_read_whole() {
    let mut world = World::new();
    world.put(&[vec![(vec![1; 40], 1000), (vec![2; 30], 1000)], vec![(vec![3], 10)]]);
    assert_eq!(bytes_of(&world.read(0, 100).unwrap()), world.expected(0, 100));
    assert_eq!(bytes_of(&world.read(45, 100).unwrap()), world.expected(45, 100));
    assert_eq!(bytes_of(&world.read(70, 100).unwrap()), world.expected(70, 100));
}

#[test]
fn damage_is_refused_with_file_and_offsets_and_what_is_sound_around_it_is_served() {
    let mut world = World::new();
    for _ in 0..12 {
        world.put(&small(4));
    }
    let (file, _) = world.segments.table.of_log(LOG).next().unwrap();
    let path = format!("/data/files/{file}");
    // In the third run: the payload of its first extent.
    let at = 2 * 8192 + RUN_HEADER_BYTES + 96 + 300;
    world.drive.disk.flip(&path, at);
    let got = world.read(0, 1 << 20).unwrap();
    assert_eq!(got.end, Offset(16), "everything in front of the damage");
    let extent_at = 2 * 8192 + RUN_HEADER_BYTES as u64;
    let (from, upto) = (Offset(16), Offset(18));
    let refused = world.read(17, 100).unwrap_err();
    match &refused {
        ReadRefused::Damaged { bytes, .. } => {
            assert_eq!((bytes.start, bytes.end < 3 * 8192), (extent_at, true))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(range(&refused), (file.to_string(), from, upto));
    assert_eq!(world.read(18, 100).unwrap().first, Offset(18));
}

fn range(refused: &ReadRefused) -> (String, Offset, Offset) {
    match refused {
        ReadRefused::Damaged { file, from, upto, .. } => (file.clone(), *from, *upto),
        other => panic!("{other:?}"),
    }
}

/// Everything that can be read one offset at a time, and everything that is refused.
fn all(world: &mut World) -> (Vec<i64>, Vec<ReadRefused>) {
    let (mut served, mut refusals) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < world.end.0 {
        match world.read(at, 1) {
            Ok(got) => {
                assert_eq!(bytes_of(&got), world.expected(at, 1), "at {at}");
                served.extend(at..got.end.0);
                at = got.end.0;
            }
            Err(refused) => {
                let (_, from, upto) = range(&refused);
                assert!(from.0 <= at && upto.0 > at, "{refused:?} at {at}");
                at = upto.0;
                refusals.push(refused);
            }
        }
    }
    (served, refusals)
}

#[test]
fn a_damaged_run_header_hides_its_own_run_and_nothing_behind_it() {
    // Runs of 8 offsets each in two blocks, several to an entry of the index, and one of them larger than a piece.
    for damaged_runs in [&[2][..], &[0], &[11], &[2, 3], &[0, 5, 11], &[4], &[10, 11]] {
        let mut world = World::new();
        for n in 0..12 {
            world.put(&if n == 4 { vec![vec![(vec![1; 8], 3_000)]] } else { small(4) });
        }
        let (file, segment) = world.segments.table.of_log(LOG).next().map(|(f, s)| (f, s.clone())).unwrap();
        let path = format!("/data/files/{file}");
        let mut places = Vec::new();
        while places.last().is_none_or(|end| *end < segment.written) {
            let at = places.last().copied().unwrap_or(0);
            let run = RunHeader::decode(&world.drive.disk.bytes_of(&path)[at as usize..]).unwrap();
            places.push(at);
            places.push(at + u64::from(run.bytes));
        }
        let runs: Vec<Range<u64>> = places.chunks(2).map(|pair| pair[0]..pair[1]).collect();
        for run in damaged_runs {
            world.drive.disk.flip(&path, runs[*run].start as usize + 50);
        }
        // Known from the placing; from nothing; and from the end alone, with a reader that has been there before.
        for round in 0..3 {
            let (served, refusals) = all(&mut world);
            let lost = |at: i64| damaged_runs.contains(&(at as usize / 8));
            let sound: Vec<i64> = (0..world.end.0).filter(|at| !lost(*at)).collect();
            assert_eq!(served, sound, "{damaged_runs:?}, round {round}: {refusals:?}");
            let told: u64 = refusals
                .iter()
                .map(|refused| match refused {
                    ReadRefused::Damaged { bytes, .. } => bytes.end - bytes.start,
                    other => panic!("{other:?}"),
                })
                .sum();
            let expected: u64 = damaged_runs.iter().map(|run| runs[*run].end - runs[*run].start).sum();
            assert_eq!(told, expected, "{damaged_runs:?}, round {round}: {refusals:?}");
            match round {
                0 => world.restart(),
                _ => world.reader = ColdReader::new(config().limits, CLUSTER),
            }
        }
        // The time of the last batch, which is behind all damage, or in it.
        let last_ms = world.append_time;
        let found = world.find_result(0, Time::Append(last_ms));
        assert_eq!(found.is_ok(), !damaged_runs.contains(&11), "{damaged_runs:?}: {found:?}");
        world.restart();
        let last = world.end.0 - 1;
        assert_eq!(world.read(last, 1).is_ok(), !damaged_runs.contains(&11), "the last first");
    }
}

#[test]
fn what_the_drive_has_misread_once_is_told_once() {
    let mut world = World::new();
    (0..12).for_each(|_| world.put(&small(4)));
    let (file, _) = world.segments.table.of_log(LOG).next().unwrap();
    let path = format!("/data/files/{file}");
    world.drive.disk.flip(&path, 2 * 8192 + 50);
    world.reader.read(LOG, Offset(16), world.end, 1, 7).unwrap();
    let mut flipped_back = false;
    while !world.reader.is_idle() {
        let mut ops = Vec::new();
        world.reader.pump(&mut world.segments, &mut ops);
        world.segments.pump(world.drive.now(), Zeros::GoOn, &mut ops);
        world.drive.submit(ops);
        for event in world.drive.complete() {
            match event {
                Event::Read { .. } => world.reader.on_event(event, &mut world.segments),
                event => world.segments.on_event(world.drive.now(), event, &mut Vec::new()),
            }
        }
        let is_sought = world.reader.jobs.values().any(|job| job.seek.is_some());
        if is_sought && !std::mem::replace(&mut flipped_back, true) {
            world.drive.disk.flip(&path, 2 * 8192 + 50);
        }
        if let Some((7, Done::Batches(result))) = world.reader.take_done().pop() {
            assert_eq!(range(&result.unwrap_err()), (file.to_string(), Offset(16), Offset(24)));
        }
    }
    assert!(flipped_back);
    assert_eq!(all(&mut world).1, []);
}

#[test]
fn an_extent_header_that_is_damaged_hides_the_rest_of_its_run_and_no_other_run() {
    let mut world = World::new();
    (0..12).for_each(|_| world.put(&small(4)));
    let (file, _) = world.segments.table.of_log(LOG).next().unwrap();
    // The second extent of the third run.
    let path = format!("/data/files/{file}");
    let bytes = world.drive.disk.bytes_of(&path);
    let (_, extents) = RunHeader::decode_whole(&bytes[2 * 8192..]).unwrap();
    world.drive.disk.flip(&path, 2 * 8192 + extents[1].at + 40);
    for _ in 0..2 {
        let (served, refusals) = all(&mut world);
        assert_eq!(served, (0..96).filter(|at| !(18..24).contains(at)).collect::<Vec<_>>(), "{refusals:?}");
        assert_eq!(refusals.len(), 1);
        world.restart();
    }
}

#[test]
fn what_somebody_has_put_into_a_record_is_never_taken_for_the_next_run() {
    // A run whose payload holds, at every block, a header that fits but that no run behind it names.
    let mut world = World::new();
    (0..3).for_each(|_| world.put(&small(4)));
    world.put(&[vec![(vec![1; 8], 5_000)]]);
    let (file, segment) = world.segments.table.of_log(LOG).next().map(|(f, s)| (f, s.clone())).unwrap();
    (0..3).for_each(|_| world.put(&small(4)));
    let path = format!("/data/files/{file}");
    let (begin, end) = (3 * 8192, segment.written);
    let mut bytes = world.drive.disk.bytes_of(&path).to_vec();
    let generation = world.segments.table.get(file).unwrap().generation;
    for at in (begin as usize + BLOCK..end as usize).step_by(BLOCK) {
        let forged = RunHeader {
            cluster: CLUSTER,
            file,
            generation,
            sequence: 4,
            previous_crc: 7,
            log: LOG,
            base: Offset(25),
            end: Offset(32),
            bytes: BLOCK as u32,
            extents: 1,
            append_first_ms: 0,
            append_last_ms: 0,
            max_timestamp_ms: 0,
        };
        bytes[at..at + RUN_HEADER_BYTES].copy_from_slice(&sealed(&forged));
        assert_eq!(RunHeader::decode(&bytes[at..]).map(|run| run.base), Ok(Offset(25)), "it decodes");
    }
    world.drive.disk.put(&path, &bytes);
    world.drive.disk.flip(&path, begin as usize + 50);
    for _ in 0..2 {
        let refused = world.read(26, 1).unwrap_err();
        assert_eq!(range(&refused), (file.to_string(), Offset(24), Offset(32)));
        assert_eq!(world.read(32, 1).unwrap().first, Offset(32));
        world.restart();
    }
}

/// A header that says this, as somebody may put it into a record.
fn sealed(says: &RunHeader) -> [u8; RUN_HEADER_BYTES] {
    let payload = [7; 10];
    let extents_end = RUN_HEADER_BYTES + 96 + payload.len();
    let mut run = vec![0; run_bytes(extents_end - RUN_HEADER_BYTES)];
    let extent = ExtentHeader {
        log: says.log,
        kind: LogKind::Data,
        flags: 0,
        leader_epoch: LeaderEpoch(1),
        base: says.base,
        end: says.end,
        batch_count: 1,
        byte_len: payload.len() as u32,
        append_time_ms: 0,
        max_timestamp_ms: 0,
        payload_crc: crc::of(&payload),
    };
    run[RUN_HEADER_BYTES..RUN_HEADER_BYTES + 96].copy_from_slice(&extent.encode());
    run[extents_end - payload.len()..extents_end].copy_from_slice(&payload);
    says.finish(&mut run, extents_end);
    run[..RUN_HEADER_BYTES].try_into().unwrap()
}

#[test]
fn a_truncated_file_is_damaged_from_where_it_ends() {
    for left in [2 * 8192, 2 * 8192 + 4096, 8192 + 4096, 0] {
        let mut world = World::new();
        for _ in 0..12 {
            world.put(&small(4));
        }
        let (file, _) = world.segments.table.of_log(LOG).next().unwrap();
        world.drive.disk.truncate(&format!("/data/files/{file}"), left);
        let mut at = 0;
        let refused = loop {
            match world.read(at, 1 << 20) {
                Ok(got) => at = got.end.0,
                Err(refused) => break refused,
            }
        };
        assert!(at * 1024 <= left as i64, "{at} offsets of more than a KiB in {left} bytes");
        match refused {
            ReadRefused::Damaged { file: named, from, upto, .. } => {
                assert_eq!((named, from), (file.to_string(), Offset(at)));
                assert!(upto > from);
            }
            other => panic!("{other:?}"),
        }
        world.reader.find(LOG, Offset(at), world.end, Time::Record(0), 8).unwrap();
        world.settle();
        let done = world.reader.take_done();
        assert!(matches!(done[..], [(8, Done::Found(Err(ReadRefused::Damaged { .. })))]), "{done:?}");
    }
}

#[test]
fn what_was_trimmed_is_out_of_range_and_its_file_is_not_reused_under_a_read() {
    let mut world = World::new();
    for _ in 0..40 {
        world.put(&small(9));
    }
    let (first, segment) = world.segments.table.of_log(LOG).next().unwrap();
    let end = segment.end;
    // The op is under way when the file is freed and could be used again.
    world.reader.read(LOG, Offset(0), world.end, 100, 1).unwrap();
    let mut ops = Vec::new();
    world.reader.pump(&mut world.segments, &mut ops);
    while ops.iter().all(|op| !matches!(op, Op::Read { .. })) {
        world.drive.submit(std::mem::take(&mut ops));
        for event in world.drive.complete() {
            world.segments.on_event(world.drive.now(), event, &mut ops);
        }
        world.reader.pump(&mut world.segments, &mut ops);
    }
    for free in world.segments.below(LOG, end) {
        world.segments.apply_free(tidegate_protocol::ids::FrameSequence(5), &free).unwrap();
    }
    world.segments.on_marked(tidegate_protocol::ids::FrameSequence(5));
    assert!(!world.segments.handles.idle(first));
    world.drive.submit(ops);
    world.settle();
    let done = world.reader.take_done();
    assert!(
        matches!(done[..], [(1, Done::Batches(Err(ReadRefused::OutOfRange { start, .. })))] if start == end),
        "{done:?}"
    );
    assert!(world.segments.handles.idle(first));
}

#[test]
fn reads_beyond_the_limit_wait_and_then_are_refused() {
    let mut world = World::new();
    world.put(&small(9));
    for ticket in 0..4 {
        world.reader.read(LOG, Offset(0), world.end, 100, ticket).unwrap();
    }
    assert_eq!(world.reader.read(LOG, Offset(0), world.end, 100, 9), Err(ReadRefused::Busy));
    world.settle();
    let tickets: Vec<u64> = world.reader.take_done().iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(tickets, [0, 1, 2, 3]);
    assert!(world.reader.is_idle());
}

#[test]
fn a_file_that_is_gone_is_damage_to_all_that_it_held() {
    let mut world = World::new();
    world.put(&small(2));
    world.restart();
    let name = world.segments.table.of_log(LOG).next().unwrap().0;
    world.drive.disk.remove(&datadir::data_file(Path::new("/data"), name)).unwrap();
    let refused = world.read(0, 100).unwrap_err();
    assert_eq!(range(&refused), (name.to_string(), Offset(0), world.end));
}

fn extents() -> impl Strategy<Value = Vec<Vec<BatchSpec>>> {
    let batch = (proptest::collection::vec(0i64..200, 1..5), 0usize..3000);
    proptest::collection::vec(proptest::collection::vec(batch, 1..4), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_read_and_any_search_gives_what_a_look_at_each_record_gives(
        runs in proptest::collection::vec(extents(), 1..8),
        asks in proptest::collection::vec((0usize..1000, 0usize..30_000, -1i64..210, 0i64..300), 1..12),
    ) {
        let mut world = World::new();
        for run in &runs {
            world.put(run);
        }
        for (n, (from, bytes_max, record_ms, append_ms)) in asks.into_iter().enumerate() {
            if n == 6 {
                world.restart();
            }
            let from = from as i64 % world.end.0;
            // A read may end early, where its piece does, but never gives nothing.
            let got = bytes_of(&world.read(from, bytes_max).unwrap());
            prop_assert!(!got.is_empty() && world.expected(from, bytes_max).starts_with(&got), "from {from}");
            for time in [Time::Record(record_ms), Time::Append(1000 + append_ms)] {
                prop_assert_eq!(world.find(from, time), world.expected_find(from, time), "{:?} from {}", time, from);
            }
        }
    }
}
