//! The scrub over a disk in memory: what it reads and when, and what it says of each kind of damage.

use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader};
use tidegate_protocol::extent::EXTENT_HEADER_BYTES;
use tidegate_reactor::op::{Event, Tag};

use super::super::ReadRefused;
use super::super::scrub::SCRUB;
use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// So slow that a pass takes seconds: its pace is seen.
const BYTES_PER_S: u64 = 128 << 10;

fn limits() -> Limits {
    let files = FileLimits { scrub_interval_ns: SECOND_NS, ..LIMITS.files };
    Limits { files, ..LIMITS }
}

fn is_scrub_read(op: &Op) -> bool {
    matches!(op, Op::Read { tag: Tag(tag), .. } if tag >> 48 == SCRUB)
}

/// Runs of one batch each in data files of log 0, and something small of log 1 in the journal alone.
fn filled() -> Bench {
    filled_within(limits())
}

fn filled_within(limits: Limits) -> Bench {
    let mut bench = started(Bench::with_logs(limits, 2));
    for n in 0..20 {
        bench.append(log(0), batch(1, 5_000, BatchOrigin::NONE, n)).unwrap();
        bench.append(log(1), batch(1, 20, BatchOrigin::NONE, n)).unwrap();
        bench.settle();
    }
    assert!(bench.stat("runs") >= 20 && bench.stat("small_extents") > 0);
    bench
}

/// Time passes until the scrub has been through everything. Returns what was told.
fn pass(bench: &mut Bench) -> Vec<Outcome> {
    bench.outcomes.clear();
    let before = bench.stat("scrub_passes");
    for _ in 0..10_000 {
        bench.drive.pass(SECOND_NS / 100);
        bench.settle();
        if bench.stat("scrub_passes") > before {
            let told = |o: &Outcome| matches!(o, Outcome::Damaged { .. } | Outcome::Notice(_));
            return std::mem::take(&mut bench.outcomes).into_iter().filter(told).collect();
        }
    }
    panic!("no pass ends: {:?}", bench.logs.stats());
}

/// Every run of log 0: file, place, header.
fn runs(bench: &Bench) -> Vec<(String, usize, RunHeader)> {
    let mut runs = Vec::new();
    for name in bench.drive.disk.names().into_iter().filter(|name| name.starts_with("/d/files/")) {
        let bytes = bench.drive.disk.bytes_of(&name);
        let mut at = 0;
        while let Some(Ok(run)) = bytes.get(at..).map(RunHeader::decode) {
            if run.log == log(0) {
                runs.push((name.clone(), at, run));
            }
            at += run.bytes as usize;
        }
    }
    runs.sort_by_key(|(_, _, run)| run.base);
    runs
}

fn damaged(told: &[Outcome]) -> Vec<(Offset, Offset)> {
    let range = |o: &Outcome| match o {
        Outcome::Damaged { refused: ReadRefused::Damaged { from, upto, .. }, .. } => (*from, *upto),
        other => panic!("{other:?}"),
    };
    told.iter().map(range).collect()
}

#[test]
fn a_pass_reads_every_run_and_frame_no_faster_than_it_may_and_the_next_one_waits_for_its_time() {
    const INTERVAL_S: u64 = 20;
    let slow = FileLimits {
        scrub_bytes_per_s: BYTES_PER_S,
        scrub_interval_ns: INTERVAL_S * SECOND_NS,
        ..LIMITS.files
    };
    let mut bench = filled_within(Limits { files: slow, ..LIMITS });
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes"), 0, "not at once");
    let began = bench.drive.now().mono_ns;
    let seconds = |bench: &Bench| (bench.drive.now().mono_ns - began) as f64 / 1e9;
    assert!(pass(&mut bench).is_empty());
    let written: u64 = runs(&bench).iter().map(|(_, _, run)| u64::from(run.bytes)).sum();
    let read = bench.stat("scrub_bytes") as u64;
    assert!(read > written, "{read} bytes of {written} in runs, and the journal's");
    let (first, took) = (INTERVAL_S as f64, read as f64 / BYTES_PER_S as f64);
    assert!(took > 1.0, "{read} bytes are too few to tell a pace");
    let ended = seconds(&bench);
    assert!((first + took - 0.1..first + took + 0.5).contains(&ended), "{read} bytes in {ended} s");
    // The next pass begins so long after this one began, not after it ended.
    while bench.stat("scrub_bytes") as u64 == read {
        bench.drive.pass(SECOND_NS / 10);
        bench.settle();
        assert!(seconds(&bench) < 3.0 * first, "no pass begins");
    }
    let again = seconds(&bench);
    assert!((2.0 * first - 0.1..2.0 * first + 0.3).contains(&again), "the next pass begins after {again} s");
    bench.logs.stop();
    bench.settle();
    let at_stop = bench.stat("scrub_bytes");
    bench.drive.pass(100 * SECOND_NS);
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes"), at_stop, "a shard that stops begins no further read");

    let off = FileLimits { scrub_bytes_per_s: 0, ..limits().files };
    let mut bench = started(Bench::with_logs(Limits { files: off, ..LIMITS }, 1));
    bench.append(log(0), batch(1, 5_000, BatchOrigin::NONE, 1)).unwrap();
    bench.settle();
    bench.drive.pass(100 * SECOND_NS);
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes"), 0);
}

#[test]
fn the_first_pass_begins_a_minute_after_the_start_however_long_the_interval_is() {
    let rarely = FileLimits { scrub_interval_ns: 1_000_000 * SECOND_NS, ..LIMITS.files };
    let mut bench = filled_within(Limits { files: rarely, ..LIMITS });
    bench.drive.pass(59 * SECOND_NS);
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes"), 0);
    bench.drive.pass(SECOND_NS);
    bench.settle();
    assert!(bench.stat("scrub_bytes") > 0);
    assert!(bench.stat("scrub_pass_bytes") > 0 && bench.stat("scrub_pass_of_bytes") > 0);
    pass(&mut bench);
    assert_eq!(
        (bench.stat("scrub_pass_bytes"), bench.stat("scrub_pass_of_bytes")),
        (0, 0),
        "between two passes"
    );
}

#[test]
fn what_is_still_being_written_is_left_for_the_next_pass() {
    let mut bench = filled();
    pass(&mut bench);
    let file = bench.logs.segments.newest_file(log(0)).unwrap();
    let written = |bench: &Bench| bench.logs.segments.table.segment(file).unwrap().written;
    let before = written(&bench);
    bench.append(log(0), batch(1, 5_000, BatchOrigin::NONE, 77)).unwrap();
    let (mut held, mut read_upto) = (Vec::new(), 0);
    bench.outcomes.clear();
    let passes = bench.stat("scrub_passes");
    while bench.stat("scrub_passes") == passes {
        let mut ops = Vec::new();
        bench.logs.pump(bench.drive.now(), &mut ops);
        for op in ops {
            if let Op::Read { file: io, at, len, .. } = &op
                && is_scrub_read(&op)
                && bench.logs.segments.handles.file_of(*io) == Some(file)
            {
                read_upto = read_upto.max(at + *len as u64);
            }
            match op {
                Op::Write { .. } | Op::Flush { .. } => held.push(op),
                op => bench.drive.submit(vec![op]),
            }
        }
        bench.drive.pass(SECOND_NS / 100);
        let mut ops = Vec::new();
        let now = bench.drive.now();
        bench.drive.complete().into_iter().for_each(|event| bench.logs.on_event(now, event, &mut ops));
        bench.drive.submit(ops);
        assert!(now.mono_ns < 100 * SECOND_NS, "no pass ends");
    }
    bench.collect();
    let told = bench.outcomes.iter().find(|o| matches!(o, Outcome::Damaged { .. } | Outcome::Notice(_)));
    assert!(told.is_none(), "its frame is not there yet: {told:?}");
    assert!(written(&bench) > before, "it counts as written already");
    assert_eq!(read_upto, before, "everything that was flushed, and nothing else");
    bench.drive.submit(held);
    bench.settle();
    assert!(pass(&mut bench).is_empty());
}

#[test]
fn in_a_file_of_several_pieces_every_run_is_checked_and_told_once() {
    let mut bench = started(Bench::with_logs(limits(), 1));
    bench.logs.set_options(log(0), LogOptions { segment_bytes: 512 << 10, ..OPTIONS });
    // Larger and smaller ones, so that pieces end within runs.
    for n in 0..100 {
        bench.append(log(0), batch(1, [5_000, 7_900][n as usize % 2], BatchOrigin::NONE, n)).unwrap();
        bench.settle();
    }
    let runs = runs(&bench);
    let largest = runs.iter().map(|(_, at, _)| *at).max().unwrap();
    assert!(runs.len() >= 90 && largest > 300 << 10, "{} runs, up to byte {largest}", runs.len());
    for (file, at, _) in &runs {
        bench.drive.disk.flip(file, at + RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 300);
    }
    let expected: Vec<_> = runs.iter().map(|(_, _, run)| (run.base, run.end)).collect();
    assert_eq!(damaged(&pass(&mut bench)), expected);
    assert_eq!(bench.stat("scrub_damaged"), runs.len() as i64);
}

#[test]
fn damage_in_a_run_is_told_once_with_what_a_reader_would_be_told() {
    let mut bench = filled();
    let runs = runs(&bench);
    let (file, at, run) = runs[3].clone();
    bench.drive.disk.flip(&file, at + RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 300);
    let (file, at, header_run) = runs[9].clone();
    bench.drive.disk.flip(&file, at + RUN_HEADER_BYTES + 40);
    let told = pass(&mut bench);
    let found = damaged(&told);
    assert_eq!(found[0], (run.base, run.end), "{told:?}");
    assert_eq!(found[1], (header_run.base, header_run.end), "{told:?}");
    assert_eq!((found.len(), bench.stat("scrub_damaged")), (2, 2));
    for (outcome, of) in told.iter().zip([&runs[3], &runs[9]]) {
        let Outcome::Damaged { log: l, refused: ReadRefused::Damaged { file, .. } } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(*l == log(0) && of.0.ends_with(file), "{outcome:?}");
    }
    // The next pass finds the same; the shard, which knows these ranges, tells nobody again.
    assert_eq!(damaged(&pass(&mut bench)), found);
    assert_eq!(bench.stat("scrub_damaged"), 2);
}

#[test]
fn a_damaged_run_header_is_told_and_what_lies_behind_it_is_checked() {
    // With an index of everything, and with none.
    for restart in [false, true] {
        let mut bench = filled();
        let runs = runs(&bench);
        if restart {
            bench.settle();
            bench.restart(None);
        }
        let damage = [runs[1].clone(), runs[2].clone(), runs[4].clone(), runs[runs.len() - 1].clone()];
        for ((file, at, _), place) in
            damage.iter().zip([50, RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 9, 60, 100])
        {
            bench.drive.disk.flip(file, at + place);
        }
        let expected: Vec<_> = damage.iter().map(|(_, _, run)| (run.base, run.end)).collect();
        assert_eq!(damaged(&pass(&mut bench)), expected);
        assert_eq!(damaged(&pass(&mut bench)), expected, "and found again");
        assert_eq!(bench.stat("scrub_damaged"), 4);
    }
}

#[test]
fn each_damaged_extent_of_a_run_is_told() {
    let mut bench = started(Bench::with_logs(limits(), 1));
    for n in 0..12 {
        bench.append(log(0), batch(1, 5_000, BatchOrigin::NONE, n)).unwrap();
        if n % 2 == 1 {
            bench.settle();
        }
    }
    let (file, at, extents) = runs(&bench)
        .into_iter()
        .map(|(file, at, _)| {
            let (_, extents) = RunHeader::decode_whole(&bench.drive.disk.bytes_of(&file)[at..]).unwrap();
            (file, at, extents)
        })
        .find(|(_, _, extents)| extents.len() > 1)
        .expect("a run of several extents");
    // The last first: what is sound in front of it is read again as well.
    let mut expected = Vec::new();
    for extent in extents.iter().rev() {
        bench.drive.disk.flip(&file, at + extent.at + EXTENT_HEADER_BYTES + 200);
        expected.insert(0, (extent.header.base, extent.header.end));
        assert_eq!(damaged(&pass(&mut bench)), expected);
    }
}

#[test]
fn a_run_larger_than_a_piece_is_checked_too() {
    let files = FileLimits { classes: [512 << 10, 1 << 20, 2 << 20, 4 << 20], ..limits().files };
    let larger = Limits { run_bytes_max: 400 << 10, memory_bytes: 8 << 20, files, ..LIMITS };
    let mut bench = started(Bench::with_logs(larger, 1));
    bench.logs.set_options(log(0), LogOptions { segment_bytes: 4 << 20, ..OPTIONS });
    for n in 0..90 {
        bench.append(log(0), batch(1, 7_900, BatchOrigin::NONE, n)).unwrap();
        if n % 45 == 44 {
            bench.settle();
        }
    }
    let runs = runs(&bench);
    assert!(runs[0].2.bytes > 300 << 10, "{:?}", runs[0].2);
    let last = runs.last().unwrap();
    bench.drive.disk.flip(&last.0, last.1 + RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 9);
    let told = damaged(&pass(&mut bench));
    assert!(told.len() == 1 && told[0].0 == last.2.base, "{told:?}");
}

#[test]
fn nothing_is_read_before_the_files_are_open() {
    let at_once = FileLimits { scrub_interval_ns: 0, ..LIMITS.files };
    let mut bench = Bench::with_logs(Limits { files: at_once, ..LIMITS }, 1);
    let mut ops = Vec::new();
    bench.logs.start(bench.drive.now(), &mut ops);
    for _ in 0..3 {
        bench.logs.pump(bench.drive.now(), &mut ops);
        bench.drive.pass(SECOND_NS);
    }
    assert!(!ops.iter().any(is_scrub_read), "{ops:?}");
}

#[test]
fn a_shard_that_takes_no_writes_is_told_of_damaged_runs_and_not_again_of_its_journal() {
    let mut bench = filled();
    bench.logs.stop();
    bench.settle();
    let oldest = bench.logs.log_mut(log(1)).unwrap().oldest_frame().unwrap();
    let (_, path, within) = needed_frames(&bench).into_iter().find(|(frame, ..)| *frame == oldest).unwrap();
    bench.drive.disk.flip(&path, within as usize + 300);
    let (file, at, run) = runs(&bench)[3].clone();
    bench.drive.disk.flip(&file, at + RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 9);
    bench.restart(None);
    assert!(matches!(bench.logs.condition, crate::log::Condition::ReadOnly { .. }));
    assert_eq!(damaged(&pass(&mut bench)), [(run.base, run.end)]);
}

#[test]
fn a_sound_journal_is_told_to_be_damaged_after_no_restart() {
    // Wherever the ring stands: a frame may lie where its predecessor ends, or at the start of the next file.
    for count in (0..240).step_by(4) {
        let mut bench = started(Bench::with_logs(limits(), 6));
        for n in 0..count {
            for partition in 0..6 {
                let value_bytes = 900 + 350 * ((n as usize + partition as usize) % 7);
                bench.append(log(partition), batch(1, value_bytes, BatchOrigin::NONE, n)).unwrap();
            }
            bench.settle();
        }
        bench.restart(None);
        let told = pass(&mut bench);
        assert!(told.is_empty(), "after {count}: {told:?}");
    }
}

#[test]
fn damage_below_the_start_is_not_told_and_hides_nothing_above_it() {
    let mut bench = filled();
    let runs = runs(&bench);
    let start = runs[3].2.base;
    bench.logs.trim(log(0), start).unwrap();
    bench.settle();
    let payload = RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 9;
    for (n, place) in [(1, payload), (2, 50), (4, payload)] {
        bench.drive.disk.flip(&runs[n].0, runs[n].1 + place);
    }
    let told = damaged(&pass(&mut bench));
    assert_eq!(told, [(runs[4].2.base, runs[4].2.end)]);
}

#[test]
fn a_damaged_pad_concerns_no_record_and_is_told_once_as_such() {
    let mut bench = filled();
    let (file, at, run) = runs(&bench)[5].clone();
    bench.drive.disk.flip(&file, at + run.bytes as usize - 1);
    let told = pass(&mut bench);
    let expected = |o: &Outcome| matches!(o, Outcome::Notice(Notice::RunUnsound { file: f, at: a }) if file.ends_with(&f.to_string()) && *a == at as u64);
    assert!(told.len() == 1 && told.iter().all(expected), "{told:?}");
    assert!(pass(&mut bench).is_empty());
}

#[test]
fn what_lies_in_a_damaged_frame_is_written_anew_so_that_a_restart_finds_everything() {
    let mut bench = filled();
    let held: Vec<_> = bench.logs.journal.held_from(FrameSequence(0)).copied().collect();
    let oldest = bench.logs.log_mut(log(1)).unwrap().oldest_frame().unwrap();
    let frame = held.iter().find(|held| held.sequence == oldest).copied().unwrap();
    let (index, within) = bench.logs.journal.index_of(frame.at);
    let path = journal::ring_path(Path::new("/d"), bench.boot.identity.journal, index);
    bench.drive.disk.flip(&path.display().to_string(), within as usize + 300);
    let told = pass(&mut bench);
    let expected = |o: &Outcome| matches!(o, Outcome::Notice(Notice::FrameDamaged { frame: f, at, .. }) if *f == oldest && *at == within);
    assert!(told.len() == 1 && told.iter().all(expected), "{told:?}");
    assert!(bench.logs.log_mut(log(1)).unwrap().oldest_frame() > Some(oldest), "it was moved");
    assert_eq!(bench.logs.scrub.rescue(), None, "a checkpoint lies behind it");
    bench.settle();
    let small = bench.stat("small_extents");
    assert!(small > 0);
    bench.restart(None);
    assert!(bench.logs.notes().is_empty(), "{:?}", bench.logs.notes());
    assert!(matches!(bench.logs.condition, crate::log::Condition::Serving));
    bench.settle();
    assert!(bench.verify_tails() as i64 >= small);
}

#[test]
fn every_frame_that_is_needed_is_checked() {
    let count = needed_frames(&filled()).len();
    assert!(count > 5, "{count} frames");
    for n in 0..count {
        // In its header, which hides where the next one lies, and behind it.
        for place in [60, 300] {
            let mut bench = filled();
            let (sequence, path, within) = needed_frames(&bench)[n].clone();
            bench.drive.disk.flip(&path, within as usize + place);
            let told = pass(&mut bench);
            let is_it = |o: &Outcome| matches!(o, Outcome::Notice(Notice::FrameDamaged { frame, at, .. }) if *frame == sequence && *at == within);
            assert!(told.len() == 1 && told.iter().all(is_it), "frame {sequence}, byte {place}: {told:?}");
        }
    }
}

/// Frames that were flushed and are still needed: number, file, place.
fn needed_frames(bench: &Bench) -> Vec<(FrameSequence, String, u64)> {
    let flushed = bench.logs.journal.flushed();
    let held = bench.logs.journal.held_from(FrameSequence(0)).filter(|held| held.sequence <= flushed);
    held.map(|held| {
        let (index, within) = bench.logs.journal.index_of(held.at);
        let path = journal::ring_path(Path::new("/d"), bench.boot.identity.journal, index);
        (held.sequence, path.display().to_string(), within)
    })
    .collect()
}

#[test]
fn a_scrub_waits_while_readers_wait_and_has_one_read_under_way() {
    let mut bench = filled();
    bench.settle();
    bench.restart(None);
    bench.settle();
    bench.drive.pass(2 * SECOND_NS);
    // More reads than may be under way: the others wait, and so does the scrub.
    let many = bench.logs.limits.files.reads_max + 3;
    for _ in 0..many {
        assert!(matches!(bench.logs.read(log(0), Offset(0), Offset(1), 100), ReadStart::Pending(_)));
    }
    let mut scrubs = 0;
    let mut cold = 0;
    for _ in 0..1_000 {
        let mut ops = Vec::new();
        bench.logs.pump(bench.drive.now(), &mut ops);
        let count = ops.iter().filter(|op| is_scrub_read(op)).count();
        assert!(count == 0 || (count == 1 && !bench.logs.reader.is_waited_for()));
        scrubs += count;
        bench.drive.submit(ops);
        bench.collect();
        let events = bench.drive.complete_at_most(1);
        cold +=
            events.iter().filter(|e| matches!(e, Event::Read { tag, .. } if tag.0 >> 48 != SCRUB)).count();
        if scrubs > 0 {
            break;
        }
        let mut ops = Vec::new();
        events.into_iter().for_each(|event| bench.logs.on_event(bench.drive.now(), event, &mut ops));
        bench.drive.submit(ops);
    }
    assert!(scrubs == 1 && cold >= 3, "{scrubs} scrub reads after {cold} cold ones");
    // However long that read takes, no other is begun.
    for _ in 0..5 {
        bench.drive.pass(10 * SECOND_NS);
        let mut ops = Vec::new();
        bench.logs.pump(bench.drive.now(), &mut ops);
        assert!(!ops.iter().any(is_scrub_read), "{ops:?}");
    }
}

#[test]
fn a_file_that_is_gone_is_told_and_the_others_are_checked() {
    let mut bench = filled();
    let runs = runs(&bench);
    let ((first, ..), (file, at, last)) = (runs[0].clone(), runs[runs.len() - 1].clone());
    assert_ne!(first, file);
    bench.settle();
    bench.restart(None);
    bench.drive.disk.remove(Path::new(&first)).unwrap();
    bench.drive.disk.flip(&file, at + RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 9);
    let told = pass(&mut bench);
    assert!(
        matches!(&told[0], Outcome::Notice(Notice::NotScrubbed { file, fault, .. }) if first.ends_with(&file[10..]) && fault.errno == 2),
        "{told:?}"
    );
    assert_eq!(damaged(&told[1..]), [(last.base, last.end)]);
    assert_eq!(damaged(&pass(&mut bench)), [(last.base, last.end)], "the file is told once");
}

/// commonware monorepo#4260, TigerBeetle #2653: bytes that were sound, and another's, were believed.
#[test]
fn a_sound_run_in_the_place_of_another_one_is_damage() {
    let mut bench = filled();
    let all = runs(&bench);
    let found = bench.drive.disk.clone();
    let (file, at, run) = &all[10];
    let bytes = run.bytes as usize;
    let mut others = 0;
    for (n, (other_file, other_at, other)) in all.iter().enumerate() {
        if n == 10 || other.bytes != run.bytes {
            continue;
        }
        others += 1;
        let misplaced = found.bytes_of(other_file)[*other_at..other_at + bytes].to_vec();
        let mut content = found.bytes_of(file).to_vec();
        content[*at..at + bytes].copy_from_slice(&misplaced);
        bench.drive.disk.put(file, &content);
        bench.restart(None);
        bench.settle();
        let refused = read_cold(&mut bench, log(0));
        assert!(refused.contains(&run.base), "the run of {:?}: {refused:?} are refused", other.base);
        let told = damaged(&pass(&mut bench));
        assert!(
            told.iter().any(|(from, upto)| *from <= run.base && run.base < *upto),
            "the run of {:?}: {told:?}",
            other.base
        );
        bench.drive.disk.put(file, found.bytes_of(file));
    }
    assert!(others > 3, "{others} runs of the same length");
}

/// Reads a log from its first record on. What is served follows what was served before, without a gap; returns the first
/// offset of each range that is refused.
fn read_cold(bench: &mut Bench, log: TopicPartition) -> Vec<Offset> {
    let positions = bench.logs.positions(log).unwrap();
    let (mut from, mut refused) = (positions.start, Vec::new());
    while from < positions.durable {
        let result = match bench.logs.read(log, from, positions.durable, 20_000) {
            ReadStart::Ready(batches) => Ok(batches),
            ReadStart::Refused(why) => Err(why),
            ReadStart::Pending(_) => {
                bench.outcomes.clear();
                bench.settle();
                let done = bench.outcomes.iter().find_map(|outcome| match outcome {
                    Outcome::ReadDone { result, .. } => Some(result.clone()),
                    _ => None,
                });
                done.expect("a cold read ends")
            }
            ReadStart::AtEnd => panic!("{from} is below the end"),
        };
        from = match result {
            Ok(batches) => {
                assert_eq!(batches.first, from, "nothing is passed over");
                batches.end
            }
            Err(ReadRefused::Damaged { from: at, upto, .. }) => {
                assert!(at <= from && from < upto, "{at} to {upto} at {from}");
                refused.push(at);
                upto
            }
            Err(other) => panic!("{other:?}"),
        };
    }
    refused
}
