//! The scrub over a disk in memory: what it reads and when, and what it says of each kind of damage.

use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader};
use tidegate_protocol::extent::EXTENT_HEADER_BYTES;
use tidegate_reactor::op::{Event, Tag};

use super::super::ReadRefused;
use super::super::scrub::SCRUB;
use super::*;

const SECOND_NS: u64 = 1_000_000_000;

fn limits() -> Limits {
    let files = FileLimits { scrub_interval_ns: SECOND_NS, ..LIMITS.files };
    Limits { files, ..LIMITS }
}

fn is_scrub_read(op: &Op) -> bool {
    matches!(op, Op::Read { tag: Tag(tag), .. } if tag >> 48 == SCRUB)
}

/// Runs of one batch each in data files of log 0, and something small of log 1 in the journal alone.
fn filled() -> Bench {
    let mut bench = started(Bench::with_logs(limits(), 2));
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
    let mut bench = filled();
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes"), 0, "not at once");
    let began = bench.drive.now().mono_ns;
    assert!(pass(&mut bench).is_empty());
    let written: u64 = runs(&bench).iter().map(|(_, _, run)| u64::from(run.bytes)).sum();
    let read = bench.stat("scrub_bytes") as u64;
    assert!(read > written, "{read} bytes of {written} in runs, and the journal's");
    let seconds = (bench.drive.now().mono_ns - began) as f64 / 1e9;
    assert!(seconds >= 1.0 + read as f64 / (8 << 20) as f64 - 0.2, "{read} bytes in {seconds} s");
    bench.drive.pass(SECOND_NS / 2);
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes") as u64, read, "until the next pass is due");
    bench.drive.pass(SECOND_NS);
    bench.settle();
    assert!(bench.stat("scrub_bytes") as u64 > read);

    let off = FileLimits { scrub_bytes_per_s: 0, ..limits().files };
    let mut bench = started(Bench::with_logs(Limits { files: off, ..LIMITS }, 1));
    bench.append(log(0), batch(1, 5_000, BatchOrigin::NONE, 1)).unwrap();
    bench.settle();
    bench.drive.pass(100 * SECOND_NS);
    bench.settle();
    assert_eq!(bench.stat("scrub_bytes"), 0);
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
    assert_eq!(found[1].0, header_run.base, "{told:?}");
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
fn a_damaged_run_header_is_told_and_what_the_index_knows_behind_it_is_checked() {
    let mut bench = filled();
    let runs = runs(&bench);
    let ((file, at, run), (last_file, last_at, last)) = (runs[1].clone(), runs[runs.len() - 1].clone());
    bench.drive.disk.flip(&file, at + 50);
    bench.drive.disk.flip(&last_file, last_at + RUN_HEADER_BYTES + EXTENT_HEADER_BYTES + 9);
    let found = damaged(&pass(&mut bench));
    assert_eq!(found[0].0, run.base);
    assert_eq!(found[found.len() - 1], (last.base, last.end), "{found:?}");
    assert!(found[0].1 < last.base, "{found:?}");
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
}
