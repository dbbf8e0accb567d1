//! Data files: who gets which extent, when a file is given back, and what a failed write leaves behind.

use std::path::Path;

use tidegate_protocol::ids::{PartitionId, TopicId};
use tidegate_reactor::op::FreeSpace;

use super::*;
use crate::limits::FILE_CLASSES;
use crate::testdisk::TestDrive;

const KIB: u64 = 1 << 10;
const RUN: u32 = 16 << 10;
const CLASSES: [u64; FILE_CLASSES] = [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB];

fn log(n: u8) -> TopicPartition {
    TopicPartition { topic: TopicId([n; 16]), partition: PartitionId(0) }
}

fn config() -> SegmentsConfig {
    let limits = FileLimits {
        classes: CLASSES,
        ready_per_class: 2,
        ready_max: 4,
        zero_piece_bytes: 16 << 10,
        files_max: 1000,
        open_max: 100,
        read_bytes_max: 64 << 10,
        reads_max: 2,
        reads_waiting_max: 4,
        floor_bytes: Some(256 * KIB),
        space_look_ns: 1_000_000_000,
        class_idle_ns: 60_000_000_000,
        ..FileLimits::DEFAULT
    };
    SegmentsConfig { root: "/data".into(), journal: JournalId(1), reach: FlushReach::AllFiles, limits }
}

/// A shard that places runs and writes no journal: every frame is flushed and marked when the test says so.
struct Shard {
    segments: Segments,
    drive: TestDrive,
    sequence: u64,
}

impl Shard {
    fn new() -> Shard {
        let mut drive = TestDrive::with_dir("/data");
        drive.disk.create_dir(Path::new("/data/files")).unwrap();
        let mut shard = Shard { segments: Segments::new(config()), drive, sequence: 0 };
        shard.settle();
        shard
    }

    /// Turns until nothing is under way.
    fn settle(&mut self) {
        self.settle_while(Zeros::GoOn);
    }

    fn settle_while(&mut self, zeros: Zeros) {
        loop {
            let mut ops = Vec::new();
            self.segments.pump(self.drive.now(), zeros, &mut ops);
            self.drive.submit(ops);
            if !self.turn() {
                return;
            }
        }
    }

    /// The events of all ops under way; whether there was one.
    fn turn(&mut self) -> bool {
        let events = self.drive.complete();
        let any = !events.is_empty();
        let mut ops = Vec::new();
        for event in events {
            self.segments.on_event(self.drive.now(), event, &mut ops);
        }
        self.drive.submit(ops);
        self.segments.check();
        any
    }

    /// Ten records.
    fn put(&mut self, log: TopicPartition, purpose: Purpose) -> Option<Place> {
        let base = self.segments.end(log).unwrap_or_default();
        let place = self.segments.place(log, base, RUN, u64::MAX, purpose)?;
        if let Some(assign) = &place.assign {
            self.segments.apply_assign(assign).unwrap();
        }
        self.sequence += 1;
        let run = RunMark {
            log,
            base,
            end: base.plus(10),
            file: place.file,
            generation: place.generation,
            at: place.at,
            bytes: RUN,
            crc: 1,
            run_sequence: place.run_sequence,
            append_first_ms: 0,
            append_last_ms: 0,
            max_timestamp_ms: 0,
            producers: Vec::new(),
        };
        self.segments.apply_run(&run).unwrap();
        self.segments.put_back(place.file);
        Some(place)
    }

    fn free_all(&mut self, log: TopicPartition) -> FrameSequence {
        self.sequence += 1;
        for free in self.segments.all_of(log) {
            self.segments.apply_free(FrameSequence(self.sequence), &free).unwrap();
        }
        FrameSequence(self.sequence)
    }
}

#[test]
fn files_are_zero_filled_and_flushed_before_one_flush_may_cover_them() {
    let mut shard = Shard::new();
    assert_eq!(shard.drive.disk.names(), ["/data/files/00000001-00000000", "/data/files/00000001-00000001"]);
    assert!(shard.drive.disk.is_durable_zeros("/data/files/00000001-00000000"));
    let place = shard.put(log(1), Purpose::Direct).unwrap();
    assert_eq!((place.at, place.run_sequence, place.flush), (0, 0, PlaceFlush::Cycle));
    assert_eq!(place.generation, Generation(1));
    let second = shard.put(log(1), Purpose::Direct).unwrap();
    assert_eq!((second.file, second.at, second.previous_crc), (place.file, u64::from(RUN), 1));
    assert_eq!(second.assign, None);
}

#[test]
fn a_log_that_fills_its_file_gets_a_larger_one() {
    let mut shard = Shard::new();
    let mut sizes = Vec::new();
    while sizes.len() < 12 {
        shard.settle();
        if let Some(place) = shard.put(log(1), Purpose::Direct)
            && place.assign.is_some()
        {
            sizes.push(shard.segments.table.get(place.file).unwrap().bytes);
        }
    }
    assert_eq!(sizes[..4], CLASSES);
    assert!(sizes[4..].iter().all(|s| *s == CLASSES[3]), "{sizes:?}");
}

#[test]
fn the_last_ready_file_is_held_back_for_what_must_not_wait() {
    let mut shard = Shard::new();
    shard.put(log(1), Purpose::Direct).unwrap();
    assert_eq!(shard.put(log(2), Purpose::Direct), None);
    assert!(shard.put(log(3), Purpose::Settling).is_some());
}

#[test]
fn a_file_made_while_a_log_waits_is_used_at_once_with_a_flush_of_its_own() {
    let mut shard = Shard::new();
    shard.put(log(1), Purpose::Settling).unwrap();
    shard.put(log(2), Purpose::Settling).unwrap();
    assert_eq!(shard.put(log(3), Purpose::Direct), None);
    shard.settle();
    let mut own = 0;
    for n in 3..6 {
        let Some(place) = shard.put(log(n), Purpose::Direct) else { continue };
        let allocated = place.file.number() >= ALLOCATED;
        assert_eq!(place.flush == PlaceFlush::Own, allocated, "{place:?}");
        own += usize::from(allocated);
    }
    assert!(own > 0);
}

#[test]
fn while_zeros_wait_files_are_allocated_ahead_freed_ones_used_again_and_all_filled_later() {
    let mut shard = Shard::new();
    let mut places = Vec::new();
    for n in 1..9 {
        places.extend(shard.put(log(n), Purpose::Direct));
        shard.settle_while(Zeros::Wait);
    }
    assert_eq!(places.len(), 8, "none waits: two are there, and each that is taken is followed by another");
    assert_eq!(shard.segments.pool.zero_filled, 2, "those of the start");
    let own: Vec<&Place> = places.iter().filter(|place| place.flush == PlaceFlush::Own).collect();
    assert!(own.len() >= 6 && own.iter().all(|place| place.file.number() >= ALLOCATED), "{own:?}");

    let freed = shard.free_all(log(8));
    shard.segments.on_marked(freed);
    let again = |shard: &mut Shard, logs: std::ops::Range<u8>| {
        let put = logs.filter_map(|n| shard.put(log(n), Purpose::Settling)).collect::<Vec<_>>();
        put.into_iter().find(|place| place.file == places[7].file)
    };
    let place = again(&mut shard, 20..24).expect("a file that was allocated and freed is ready");
    assert_eq!((place.generation, place.flush), (Generation(2), PlaceFlush::Own));

    let freed = shard.free_all(place.assign.unwrap().log);
    shard.segments.on_marked(freed);
    shard.settle();
    let name = format!("/data/files/00000001-{:08x}", place.file.number());
    assert!(shard.drive.disk.is_durable_zeros(&name), "{name} of {:?}", shard.drive.disk.names());
    assert_eq!(again(&mut shard, 24..30).map(|place| place.flush), Some(PlaceFlush::Cycle));
}

#[test]
fn a_log_that_waits_gets_a_file_before_those_that_are_being_filled() {
    let mut shard = Shard::new();
    shard.put(log(1), Purpose::Settling).unwrap();
    shard.put(log(2), Purpose::Settling).unwrap();
    let mut ops = Vec::new();
    // As many as there are to be at most are on their way to be filled.
    for _ in 0..12 {
        shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
        let creating = ops.extract_if(.., |op| matches!(op, Op::Open { .. })).collect();
        shard.drive.submit(creating);
        shard.turn();
    }
    let filling = ops.iter().filter(|op| matches!(op, Op::Zero { .. })).count();
    assert_eq!((filling, shard.segments.pool.ready_count()), (1, 0), "one file, whose zeros take long");
    assert_eq!(shard.put(log(3), Purpose::Direct), None);
    for _ in 0..4 {
        let mut more = Vec::new();
        shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut more);
        shard.drive.submit(more);
        shard.turn();
    }
    let place = shard.put(log(3), Purpose::Direct).expect("it is not made to wait for zeros");
    assert_eq!(place.flush, PlaceFlush::Own);
}

#[test]
fn a_freed_file_is_handed_out_only_when_a_mark_has_passed_its_free() {
    let mut shard = Shard::new();
    let old = shard.put(log(1), Purpose::Settling).unwrap();
    shard.put(log(2), Purpose::Settling).unwrap();
    let freed = shard.free_all(log(1));
    let mut logs = 3;
    let mut handed_out = |shard: &mut Shard| {
        // As many files as the pool will give.
        let mut files = Vec::new();
        for _ in 0..8 {
            shard.settle();
            logs += 1;
            files.extend(shard.put(log(logs), Purpose::Settling).map(|p| (p.file, p.generation)));
        }
        files
    };
    shard.segments.on_marked(FrameSequence(freed.0 - 1));
    assert!(handed_out(&mut shard).iter().all(|(file, _)| *file != old.file));
    shard.segments.on_marked(freed);
    assert!(handed_out(&mut shard).contains(&(old.file, Generation(2))));
}

#[test]
fn the_table_of_a_replay_is_that_of_the_live_shard() {
    let mut shard = Shard::new();
    for n in 0..40u8 {
        shard.settle();
        shard.put(log(n % 3), Purpose::Settling);
        if n == 20 {
            let freed = shard.free_all(log(0));
            shard.segments.on_marked(freed);
        }
    }
    let state = shard.segments.state();
    let mut again = Segments::restore(config(), &state).unwrap();
    again.check();
    assert_eq!(again.state(), state);
    again.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
    again.on_marked(FrameSequence(shard.sequence));
    assert_eq!(again.state(), state);
    // It goes on where the other stood, with new numbers for new files.
    let taken: BTreeSet<FileId> = shard.segments.table.iter().map(|(file, _)| file).collect();
    let mut shard = Shard { segments: again, ..shard };
    shard.drive.close_all();
    for n in 50..70 {
        shard.settle();
        if let Some(place) = shard.put(log(n), Purpose::Settling) {
            let fresh = !taken.contains(&place.file);
            assert!(fresh || place.generation > Generation(1), "{place:?}");
        }
    }
}

#[test]
fn files_that_nobody_names_are_filled_again_but_left_alone_after_rot() {
    let mut shard = Shard::new();
    let name = "/data/files/00000001-00000007";
    for rot in [Rot::Present, Rot::Absent] {
        shard.drive.close_all();
        shard.drive.disk.put(name, &vec![9; 32 << 10]);
        shard.drive.disk.put("/data/files/00000001-00000008", b"half made");
        shard.segments = Segments::new(config());
        shard.segments.opened(&mut shard.drive.disk, rot).unwrap();
        shard.settle();
        assert_eq!(shard.drive.disk.is_durable_zeros(name), rot == Rot::Absent);
        let half = shard.drive.disk.names().contains(&"/data/files/00000001-00000008".to_owned());
        assert_eq!(half, rot == Rot::Present);
    }
    assert!(shard.put(log(1), Purpose::Settling).is_some());
}

/// As long as each is given up for the next one, a drive that fails is filled with files that nobody can use.
#[test]
fn a_drive_that_fails_is_not_filled_with_files_that_are_given_up() {
    let mut shard = Shard::new();
    let usual = {
        assert!(shard.put(log(1), Purpose::Settling).is_some(), "one was ready");
        shard.settle();
        shard.drive.disk.names().len()
    };
    shard.drive.flushes_fail = true;
    assert!(shard.put(log(2), Purpose::Settling).is_some(), "one was ready");
    // Not until it is still: with a file after the other it never is.
    for _ in 0..200 {
        let mut ops = Vec::new();
        shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
        shard.drive.submit(ops);
        shard.turn();
        shard.drive.pass(100_000_000);
    }
    assert!(shard.drive.disk.names().len() <= usual + 2, "{:?}", shard.drive.disk.names());
    assert!(matches!(shard.segments.full(), Some(Shortage::NoFile(fault)) if fault.errno == 5));
}

#[test]
fn a_full_drive_is_said_and_tried_again_until_there_is_room() {
    let mut shard = Shard::new();
    shard.drive.full = true;
    let mut given = 0;
    for n in 1..6 {
        given += usize::from(shard.put(log(n), Purpose::Settling).is_some());
        shard.settle();
    }
    assert_eq!(given, 2, "the ready files");
    assert!(matches!(shard.segments.full(), Some(Shortage::NoFile(fault)) if fault.is_full()));
    shard.drive.full = false;
    shard.drive.pass(2_000_000_000);
    shard.settle();
    assert_eq!(shard.segments.full(), None);
    assert!(shard.put(log(9), Purpose::Settling).is_some());
    assert!(
        shard.drive.disk.names().iter().all(|n| shard.drive.disk.len_of(n) >= 32 << 10),
        "no half-made file"
    );
}

#[test]
fn below_the_floor_no_file_is_made_ahead_but_what_was_accepted_gets_small_ones() {
    let mut shard = Shard::new();
    shard.drive.disk.space = Some(FreeSpace { free_bytes: 256 * KIB, total_bytes: 1 << 30 });
    shard.drive.pass(1_000_000_000);
    shard.settle();
    let before = shard.drive.disk.names().len();
    let mut sizes = Vec::new();
    for _ in 0..40 {
        if let Some(place) = shard.put(log(1), Purpose::Settling)
            && place.assign.is_some()
        {
            sizes.push(shard.segments.table.get(place.file).unwrap().bytes);
        }
        shard.settle();
    }
    assert!(sizes.len() > 8, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size == CLASSES[0]), "{sizes:?}");
    let made = shard.drive.disk.names().len() - before;
    // One may be on its way when the log that waited has found another.
    assert!(made <= sizes.len() + 1, "{made} files made for {} that were taken", sizes.len());
}

#[test]
fn a_file_that_would_not_leave_the_floor_free_is_not_made() {
    let mut shard = Shard::new();
    // Room for one of 128 KiB, not for one of 256 KiB.
    shard.drive.disk.space = Some(FreeSpace { free_bytes: 500 * KIB, total_bytes: 1 << 30 });
    let mut largest = 0;
    for _ in 0..60 {
        shard.drive.pass(1_000_000_000);
        shard.settle();
        if let Some(place) = shard.put(log(1), Purpose::Settling) {
            largest = largest.max(shard.segments.table.get(place.file).unwrap().bytes);
        }
    }
    assert_eq!(largest, CLASSES[2]);
}

/// Names and sizes of the files that there are.
fn there(shard: &Shard) -> Vec<(String, u64)> {
    let names = shard.drive.disk.names();
    names.into_iter().map(|name| (name.clone(), shard.drive.disk.len_of(&name) as u64)).collect()
}

/// Several turns, a second each: one file goes at a time.
fn wait(shard: &mut Shard, seconds: u64) {
    for _ in 0..seconds {
        shard.drive.pass(1_000_000_000);
        shard.settle();
    }
}

#[test]
fn files_of_a_size_that_is_out_of_use_for_long_go_back_to_the_drive() {
    let mut shard = Shard::new();
    for _ in 0..30 {
        shard.put(log(1), Purpose::Settling);
        wait(&mut shard, 1);
    }
    let freed = shard.free_all(log(1));
    shard.segments.on_marked(freed);
    wait(&mut shard, 30);
    assert!(there(&shard).iter().any(|(_, bytes)| *bytes == CLASSES[3]), "not yet");
    wait(&mut shard, 60);
    let left = there(&shard);
    assert!(left.iter().all(|(_, bytes)| *bytes == CLASSES[0]) && left.len() == 2, "{left:?}");
    assert!(shard.put(log(2), Purpose::Settling).is_some(), "what is kept is used");
    // The next start knows them as gone, whatever its checkpoint says.
    let state = shard.segments.state();
    shard.drive.close_all();
    shard.segments = Segments::restore(config(), &state).unwrap();
    shard.segments.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
    shard.segments.on_marked(FrameSequence(shard.sequence));
    assert!(shard.segments.pool.spare_count() <= 2, "{}", shard.segments.pool.spare_count());
    shard.settle();
    for n in 3..9 {
        shard.put(log(n), Purpose::Settling);
        wait(&mut shard, 1);
    }
    let names: BTreeSet<String> = there(&shard).into_iter().map(|(name, _)| name).collect();
    let again = state.iter().filter(|s| s.owner.is_none()).map(|s| FileId(s.file));
    for file in again.filter(|file| !left.iter().any(|(name, _)| name.ends_with(&file.to_string()))) {
        assert!(!names.iter().any(|name| name.ends_with(&file.to_string())), "the name of {file} came again");
    }
}

#[test]
fn below_the_floor_all_files_but_a_few_small_ones_go_back_at_once_and_it_ends() {
    let mut shard = Shard::new();
    for _ in 0..30 {
        shard.put(log(1), Purpose::Settling);
        wait(&mut shard, 1);
    }
    let freed = shard.free_all(log(1));
    shard.segments.on_marked(freed);
    shard.drive.disk.space = Some(FreeSpace { free_bytes: 0, total_bytes: 1 << 30 });
    wait(&mut shard, 20);
    let left = there(&shard);
    assert!(left.iter().all(|(_, bytes)| *bytes == CLASSES[0]) && left.len() == 2, "{left:?}");
}

#[test]
fn a_file_that_waits_for_a_mark_or_is_read_does_not_go_back() {
    let mut shard = Shard::new();
    let place = shard.put(log(1), Purpose::Settling).unwrap();
    shard.segments.handles.take(place.file, &mut Vec::new()).expect("it is open");
    let freed = shard.free_all(log(1));
    shard.drive.disk.space = Some(FreeSpace { free_bytes: 0, total_bytes: 1 << 30 });
    let name = format!("/data/files/{}", place.file);
    let is_there = |shard: &Shard| there(shard).iter().any(|(n, _)| *n == name);
    wait(&mut shard, 5);
    assert!(is_there(&shard), "its free is not marked");
    shard.segments.on_marked(freed);
    wait(&mut shard, 5);
    assert!(is_there(&shard), "somebody reads it");
    shard.segments.put_back(place.file);
    let more = [shard.put(log(2), Purpose::Settling), shard.put(log(3), Purpose::Settling)];
    assert!(more.iter().flatten().count() > 0);
    for n in 2..4 {
        let freed = shard.free_all(log(n));
        shard.segments.on_marked(freed);
    }
    wait(&mut shard, 10);
    assert_eq!(there(&shard).len(), 2);
}

#[test]
fn a_shard_makes_no_more_data_files_than_its_checkpoints_have_room_for_and_uses_freed_ones_again() {
    let mut shard = Shard::new();
    shard.drive.close_all();
    let limits = FileLimits { files_max: 6, ..config().limits };
    shard.segments = Segments::new(SegmentsConfig { limits, ..config() });
    shard.segments.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
    let mut given = 0;
    for n in 0..40 {
        shard.settle();
        given += usize::from(shard.put(log(n), Purpose::Settling).is_some());
    }
    assert_eq!((given, shard.drive.disk.names().len()), (6, 6));
    assert_eq!(shard.segments.full(), Some(&Shortage::Files { limit: 6, current: 6 }));
    let freed = shard.free_all(log(0));
    shard.segments.on_marked(freed);
    shard.settle();
    assert!(shard.put(log(50), Purpose::Settling).is_some());
    assert_eq!(shard.drive.disk.names().len(), 6);
}

#[test]
fn after_a_stop_nothing_new_is_begun_and_what_is_under_way_comes_to_its_end() {
    let mut shard = Shard::new();
    shard.put(log(1), Purpose::Settling).unwrap();
    let mut ops = Vec::new();
    shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
    shard.drive.submit(ops);
    assert!(!shard.segments.is_idle(), "files are being made");
    shard.segments.stop();
    for turns in 0.. {
        assert!(turns < 4, "it goes on and on");
        if shard.segments.is_idle() {
            break;
        }
        shard.turn();
        let mut ops = Vec::new();
        shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
        shard.drive.submit(ops);
    }
    assert!(!shard.turn());
}

#[test]
fn a_freed_file_that_replay_knows_no_size_of_is_filled_as_long_as_it_is() {
    let mut shard = Shard::new();
    let file = FileId::new(JournalId(1), ALLOCATED);
    shard.drive.close_all();
    shard.drive.disk.put("/data/files/00000001-80000000", &vec![9; 32 << 10]);
    shard.segments = Segments::new(config());
    let assign = Assign { file, generation: Generation(1), log: log(1), base: Offset(0) };
    shard.segments.apply_assign(&assign).unwrap();
    shard.segments.apply_free(FrameSequence(3), &Free { file, generation: Generation(1) }).unwrap();
    shard.segments.on_marked(FrameSequence(3));
    shard.segments.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
    shard.settle();
    assert!(shard.drive.disk.is_durable_zeros("/data/files/00000001-80000000"));
}

#[test]
fn what_no_sound_shard_writes_is_refused() {
    let mut table = FileTable::default();
    let file = FileId::new(JournalId(1), 0);
    let assign = |generation, base| Assign {
        file,
        generation: Generation(generation),
        log: log(1),
        base: Offset(base),
    };
    assert!(table.assign(&assign(2, 0)).is_err(), "a generation is left out");
    table.assign(&assign(1, 0)).unwrap();
    assert!(table.assign(&assign(2, 0)).is_err(), "it has an owner");
    let free = |generation| Free { file, generation: Generation(generation) };
    assert!(table.free(FrameSequence(1), &free(2)).is_err(), "another generation");
    table.free(FrameSequence(1), &free(1)).unwrap();
    assert!(table.free(FrameSequence(2), &free(1)).is_err(), "twice");
}
