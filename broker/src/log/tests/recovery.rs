//! What recovery makes of damage, of errors of the drive, and of bytes that look like something else.

use std::path::Path;

use tidegate_protocol::api::offset::OffsetQuery;
use tidegate_protocol::disk::BLOCK;

use super::super::answer::{FindStart, Found, ReadRefused, ReadStart};
use super::*;
use crate::datadir::JOURNALS_FIRST;
use crate::testdisk::TestDisk;

const RING: &str = "/d/journal/00000001-ring-00";
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;

fn path_of(disk: &mut TestDisk, dir: &str) -> Vec<String> {
    disk.list(Path::new(dir)).expect("a directory").iter().map(|n| format!("{dir}/{}", n.display())).collect()
}

/// Where the newest small extent of a log lies in the ring.
fn newest_small(logs: &Logs, log: TopicPartition) -> usize {
    let place = logs.find_log(log).and_then(|log| log.small.back()).expect("a small extent");
    (place.frame_at + u64::from(place.at)) as usize
}

/// One batch that is acknowledged, then a run in a data file that is written with its frame and not flushed.
fn with_a_run_above_the_mark() -> Bench {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 1)).expect("room");
    bench.settle();
    bench.append(log(0), batch(1, 7000, BatchOrigin::NONE, 2)).expect("room");
    bench.pump();
    assert_eq!(bench.turn(2), 2, "the run and the frame are written");
    assert_eq!(bench.stat("runs"), 1);
    assert_eq!(bench.durable.get(&log(0)), Some(&Offset(1)));
    bench
}

#[test]
fn an_error_of_the_drive_refuses_the_start_and_drops_nothing() {
    let mut bench = with_a_run_above_the_mark();
    let found = bench.drive.disk.clone();
    for errno in [EIO, EACCES, EMFILE] {
        for call in 0.. {
            bench.drive.disk = found.clone();
            bench.drive.disk.fail_at(call, errno);
            match bench.recovered() {
                Err(OpenError::Fault(fault)) => assert_eq!(fault.errno, errno, "call {call}"),
                Err(other) => panic!("call {call} fails with {errno} and the start is refused by {other}"),
                Ok(_) => {
                    assert!(
                        bench.drive.disk.calls() <= call && call > 10,
                        "{errno} at call {call} was ignored"
                    );
                    break;
                }
            }
            let logs = bench.recovered().expect("the drive works again");
            assert_eq!(logs.positions(log(0)).map(|p| p.durable), Some(Offset(2)), "{errno} at call {call}");
        }
    }
}

#[test]
fn a_run_above_the_mark_that_is_missing_short_or_another_is_the_end_of_the_log() {
    type Harm = fn(&mut TestDisk, &str);
    let harms: [Harm; 4] = [
        |disk, path| disk.remove(Path::new(path)).expect("it is there"),
        |disk, path| disk.truncate(path, BLOCK),
        |disk, path| disk.flip(path, 3000),
        |disk, path| disk.put(path, &vec![0; 64 << 10]),
    ];
    for (i, harm) in harms.into_iter().enumerate() {
        let mut bench = with_a_run_above_the_mark();
        let file = bench.logs.segments.newest_file(log(0)).expect("a data file");
        harm(&mut bench.drive.disk, &format!("/d/files/{file}"));
        let logs = bench.recovered().unwrap_or_else(|e| panic!("harm {i}: {e}"));
        assert_eq!(logs.positions(log(0)).map(|p| p.durable), Some(Offset(1)), "harm {i}");
        assert!(logs.notes().iter().any(|note| note.contains("was not written whole")), "{:?}", logs.notes());
    }
}

#[test]
fn an_idle_shard_marks_what_recovery_has_kept_and_flushes_the_mark() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 1)).expect("room");
    bench.settle();
    let at = newest_small(&bench.logs, log(0));
    bench.restart(None);
    bench.settle();
    let kept = bench.logs.journal.last_sequence();
    assert!(bench.logs.journal.marked() < kept, "recovery itself marks nothing new");
    bench.drive.pass(LIMITS.mark_after_ns + 1);
    bench.settle();
    assert_eq!(bench.logs.journal.marked(), kept);
    bench.drive.pass(LIMITS.mark_flush_after_ns + 1);
    bench.settle();
    // So what rots from now on is told from what was never flushed, also after a loss of power.
    bench.drive.power_loss(3);
    bench.drive.disk.flip(RING, at + 100);
    let mut logs = bench.recovered().expect("the shard opens");
    let refused = logs.append(bench.drive.now(), log(0), &[batch(1, 10, BatchOrigin::NONE, 2)]);
    assert!(matches!(refused, Err(AppendRefused::UnknownLog)), "what the state does not cover: {refused:?}");
    logs.create(log(0), OPTIONS).expect("in memory");
    let refused = logs.append(bench.drive.now(), log(0), &[batch(1, 10, BatchOrigin::NONE, 2)]);
    assert!(matches!(refused, Err(AppendRefused::ReadOnly { .. })), "{refused:?}");
    let read = logs.read(log(0), Offset(0), Offset(9), 1000);
    assert!(matches!(read, ReadStart::Refused(ReadRefused::Lost { from: Offset(0), .. })), "{read:?}");
}

#[test]
fn behind_lost_frames_readers_are_refused_with_the_file_and_the_frames() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    let mut places = Vec::new();
    for salt in 0..4 {
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, salt)).expect("room");
        bench.settle();
        places.push(newest_small(&bench.logs, log(0)));
    }
    let last = bench.logs.journal.last_sequence().0;
    bench.drive.disk.flip(RING, places[1] + 100);
    let mut logs = bench.recovered().expect("the shard opens");
    // A frame that did not fit there would lie at the start of the next file.
    let next = RING.replace("ring-00", "ring-01");
    let file = format!("{RING} or {next} (frames {} to {})", last - 2, last - 1);
    let lost = ReadRefused::Lost { file, from: Offset(1) };
    let mut read = |from| logs.read(log(0), Offset(from), Offset(9), 1000);
    assert!(matches!(read(0), ReadStart::Ready(found) if found.end == Offset(1)));
    for from in [1, 2] {
        let found = read(from);
        assert!(matches!(&found, ReadStart::Refused(refused) if *refused == lost), "{from}: {found:?}");
    }
    let mut find = |query| logs.find(log(0), query);
    assert!(matches!(find(OffsetQuery::RecordTime(0)), FindStart::Ready(Found { offset: Offset(0), .. })));
    let later = find(OffsetQuery::RecordTime(1 << 50));
    assert!(
        matches!(&later, FindStart::Refused(refused) if *refused == lost),
        "it may be in them: {later:?}"
    );
    assert_eq!(logs.lost_behind(log(0)), Some(lost));
}

/// Three small batches of one log in frames that a checkpoint covers, one of another, then a clean stop. Returns where
/// the second lies.
fn stopped_with_small_extents(boot: ShardBoot) -> (Bench, usize) {
    let mut bench = Bench::of(boot);
    (0..2).for_each(|p| bench.logs.create(log(p), OPTIONS).expect("room for a log"));
    let mut bench = started(bench);
    let mut second = 0;
    for salt in 0..3 {
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, salt)).expect("room");
        bench.settle();
        second = if salt == 1 { newest_small(&bench.logs, log(0)) } else { second };
    }
    bench.append(log(1), batch(1, 100, BatchOrigin::NONE, 9)).expect("room");
    bench.settle();
    bench.logs.stop();
    bench.settle();
    assert!(bench.logs.stopped());
    (bench, second)
}

#[test]
fn a_damaged_extent_that_only_the_checkpoint_names_is_refused_by_itself() {
    let (mut bench, at) = stopped_with_small_extents(boot(LIMITS, 0));
    bench.drive.disk.flip(RING, at + 100);
    bench.restart(None);
    let refusal = |file: &str| file.starts_with(RING) && file.contains("frame");
    let mut read = |from| bench.logs.read(log(0), Offset(from), Offset(9), 10_000);
    assert!(matches!(read(0), ReadStart::Ready(found) if found.end == Offset(1)), "up to the damage");
    let (from, upto) = (Offset(1), Offset(2));
    let found = read(1);
    let damaged = |r: &ReadRefused| matches!(r, ReadRefused::Damaged { file, bytes, from: f, upto: u } if (*f, *u) == (from, upto) && refusal(file) && bytes.contains(&(at as u64 + 100)));
    assert!(matches!(&found, ReadStart::Refused(refused) if damaged(refused)), "{found:?}");
    assert!(matches!(read(2), ReadStart::Ready(found) if found.end == Offset(3)), "behind it");
    assert!(matches!(read(3), ReadStart::AtEnd), "the state covers everything");
    let mut find = |ms| bench.logs.find(log(0), OffsetQuery::RecordTime(ms));
    assert!(matches!(find(0), FindStart::Ready(Found { offset: Offset(0), .. })));
    let found = find(5_000_000);
    assert!(matches!(&found, FindStart::Refused(refused) if damaged(refused)), "it may be there: {found:?}");
    let other = bench.logs.read(log(1), Offset(0), Offset(9), 1000);
    assert!(matches!(other, ReadStart::Ready(_)), "{other:?}");
    let refused = bench.append(log(1), batch(1, 10, BatchOrigin::NONE, 9));
    assert!(
        matches!(&refused, Err(AppendRefused::ReadOnly { cause }) if cause.contains(RING)),
        "{refused:?}"
    );
    assert!(bench.logs.notes().iter().any(|note| note.contains(RING)), "{:?}", bench.logs.notes());
    let before = bench.drive.disk.clone();
    bench.drive.pass(10 * LIMITS.mark_flush_after_ns);
    bench.settle();
    for path in before.names() {
        assert!(bench.drive.disk.bytes_of(&path) == before.bytes_of(&path), "{path} is left as it is");
    }
}

#[test]
fn a_damaged_extent_of_shard_0_refuses_the_start() {
    let (mut bench, at) = stopped_with_small_extents(ShardBoot { shard: ShardId(0), ..boot(LIMITS, 0) });
    let before = bench.drive.disk.clone();
    bench.drive.disk.flip(RING, at + 100);
    let error = bench.recovered().expect_err("topics may be in it").to_string();
    assert!(error.starts_with(RING) && error.contains("records 1 to 2"), "{error}");
    bench.drive.disk = before;
    assert!(bench.recovered().is_ok());
}

#[test]
fn a_client_that_knows_all_but_the_journals_number_cannot_make_a_torn_end_look_like_rot() {
    let identity =
        JournalIdentity { journal: JournalId(JOURNALS_FIRST.start + 5), ..boot(LIMITS, 0).identity };
    let ring = "/d/journal/00010005-ring-00";
    for (number, believed) in [(1, false), (identity.journal.0 + 1, false), (identity.journal.0, true)] {
        let mut bench = Bench::of(ShardBoot { identity, ..boot(LIMITS, 0) });
        bench.logs.create(log(0), OPTIONS).expect("room for a log");
        let mut bench = started(bench);
        bench.append(log(0), batch(1, 100, BatchOrigin::NONE, 0)).expect("room");
        bench.settle();
        let (head, last) = (bench.logs.journal.head() as usize, bench.logs.journal.last_sequence().0);
        let mut forged = vec![0; BLOCK];
        FrameBuilder::new(&mut forged).finish(FrameHeader {
            identity: JournalIdentity { journal: JournalId(number), ..identity },
            incarnation: Incarnation(1),
            sequence: FrameSequence(last + 2),
            previous_hash: 7,
            mark: FrameSequence(last + 1),
            bytes: 0,
            entries: 0,
            inner_crc: 0,
        });
        let mut bytes = bench.drive.disk.bytes_of(ring).to_vec();
        bytes[head + 2 * BLOCK..head + 3 * BLOCK].copy_from_slice(&forged);
        bench.drive.disk.put(ring, &bytes);
        let mut logs = bench.recovered().expect("the shard opens");
        let appended = logs.append(bench.drive.now(), log(0), &[batch(1, 10, BatchOrigin::NONE, 1)]);
        assert_eq!(appended.is_err(), believed, "journal {number}: {appended:?}");
    }
}

#[test]
fn a_checkpoint_that_the_ring_has_overtaken_is_never_taken_for_the_newest_state() {
    let identity = JournalIdentity { journal: JournalId(0x00ab_cdef), ..boot(LIMITS, 0).identity };
    let mut bench = Bench::of(ShardBoot { identity, ..boot(LIMITS, 0) });
    (0..3).for_each(|p| bench.logs.create(log(p), OPTIONS).expect("room for a log"));
    let mut bench = started(bench);
    let path = |slot: u32| format!("/d/journal/00abcdef-checkpoint-{slot}");
    let mut old = None;
    for step in 0.. {
        let _ = bench.append(log(step % 3), batch(1, 900, BatchOrigin::NONE, step as u64));
        bench.turn(usize::MAX);
        if old.is_none() && bench.stat("checkpoints") == 2 {
            old = Some(bench.drive.disk.bytes_of(&path(2)).to_vec());
        }
        if bench.stat("ring_laps") == 2 {
            break;
        }
    }
    bench.settle();
    // As if the two newer slots were rotten and the third had not been written for a lap.
    bench.drive.disk.put(&path(2), &old.expect("a checkpoint"));
    (0..2).for_each(|slot| bench.drive.disk.flip(&path(slot), 200));
    let mut logs = bench.recovered().expect("one is whole");
    let durable = |logs: &Logs| logs.positions(log(0)).map(|p| p.durable);
    assert!(durable(&logs) < bench.durable.get(&log(0)).copied(), "most of it is not known");
    let refused = logs.append(bench.drive.now(), log(0), &[batch(1, 10, BatchOrigin::NONE, 1)]);
    assert!(matches!(refused, Err(AppendRefused::ReadOnly { .. })), "nobody would hear of it: {refused:?}");
}

#[test]
fn one_missing_checkpoint_slot_is_made_anew_and_said_and_two_refuse_the_start() {
    for slot in 0..3 {
        let mut bench = started(Bench::with_logs(LIMITS, 3));
        for step in 0..600 {
            let _ = bench.append(log(step % 3), batch(1, 900, BatchOrigin::NONE, step as u64));
            bench.turn(usize::MAX);
        }
        bench.settle();
        assert!(bench.stat("checkpoints") > 2, "all three are in use");
        let path = |slot: u32| format!("/d/journal/00000001-checkpoint-{slot}");
        bench.drive.disk.remove(Path::new(&path(slot))).expect("it is there");
        let whole = bench.drive.disk.clone();
        bench.drive.disk.remove(Path::new(&path((slot + 1) % 3))).expect("it is there");
        let error = bench.recovered().expect_err("what is left may be too old").to_string();
        assert!(error.contains("2 of the three checkpoint slots are missing"), "{error}");
        bench.drive.disk = whole;
        bench.restart(None);
        assert!(bench.logs.notes().iter().any(|note| note.contains(&path(slot))), "{:?}", bench.logs.notes());
        assert!(path_of(&mut bench.drive.disk, "/d/journal").contains(&path(slot)));
        for step in 0..600 {
            let _ = bench.append(log(step % 3), batch(1, 900, BatchOrigin::NONE, step as u64));
            bench.turn(usize::MAX);
        }
        bench.settle();
        assert!(bench.stat("checkpoints") > 2, "it goes on with all three");
        bench.restart(Some(7));
        assert_eq!(bench.logs.notes(), [""; 0]);
    }
}

#[test]
fn a_damaged_checkpoint_slot_is_said_with_the_one_that_is_used_instead() {
    let unwritten = started(Bench::new(LIMITS)).recovered().expect("one slot was written");
    assert_eq!(unwritten.notes(), [""; 0], "a slot that was never written is not damaged");
    let mut bench = started(Bench::with_logs(LIMITS, 3));
    let path = |slot: u32| format!("/d/journal/00000001-checkpoint-{slot}");
    for step in 0..600 {
        let _ = bench.append(log(step % 3), batch(1, 900, BatchOrigin::NONE, step as u64));
        bench.turn(usize::MAX);
    }
    bench.settle();
    assert!(bench.stat("checkpoints") > 2, "all three are in use");
    let whole = bench.drive.disk.clone();
    for slot in 0..3 {
        // Its header, its body.
        for at in [40, 200] {
            bench.drive.disk = whole.clone();
            bench.drive.disk.flip(&path(slot), at);
            let logs = bench.recovered().expect("two are whole");
            let [note] = logs.notes() else { panic!("one line: {:?}", logs.notes()) };
            assert!(note.starts_with(&path(slot)) && note.contains("is not whole"), "{note}");
            let others = (0..3).filter(|other| *other != slot).map(|other| format!("in slot {other} "));
            assert_eq!(others.filter(|other| note.contains(other)).count(), 1, "{note}");
        }
    }
}

#[test]
fn a_missing_file_of_the_ring_refuses_the_start_and_is_named() {
    let mut bench = started(Bench::with_logs(LIMITS, 1));
    bench.drive.disk.remove(Path::new(RING)).expect("it is there");
    let error = bench.recovered().expect_err("frames are gone").to_string();
    assert!(error.starts_with(RING) && error.contains("is missing"), "{error}");
}

/// Pulsar #5218: the number of a batch was remembered before the batch was stored, and its repetition then dropped.
#[test]
fn a_batch_whose_flush_never_came_is_stored_by_its_repetition() {
    let origin = |sequence| BatchOrigin {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(sequence),
    };
    let (mut lost, mut kept) = (0, 0);
    for seed in 1..30u64 {
        for (value_bytes, done) in [(50, 0), (50, 1), (7000, 0), (7000, 1), (7000, 2)] {
            let mut bench = started(Bench::with_logs(LIMITS, 1));
            bench.append(log(0), batch(1, value_bytes, origin(0), 1)).expect("new");
            bench.settle();
            bench.append(log(0), batch(1, value_bytes, origin(1), 2)).expect("new");
            bench.pump();
            bench.turn(done);
            assert_eq!(bench.durable.get(&log(0)), Some(&Offset(1)), "its flush has not ended");
            bench.restart(Some(seed * 0x9e37_79b9));
            bench.settle();
            let again = bench.append(log(0), batch(1, value_bytes, origin(1), 2)).expect("the same, or new");
            assert_eq!((again.base, again.end), (Offset(1), Offset(2)));
            *(if again.duplicate { &mut kept } else { &mut lost }) += 1;
            bench.settle();
            bench.restart(Some(seed));
            assert_eq!(bench.logs.positions(log(0)).map(|p| p.durable), Some(Offset(2)), "seed {seed}");
        }
    }
    assert!(lost > 10 && kept > 10, "{lost} lost, {kept} kept");
}

/// RabbitMQ's Ra #170, #175: a last file without content stopped every start. NATS nats-server#7556: something small was
/// damaged, and the data that it belonged to was deleted.
#[test]
fn a_file_without_content_is_made_good_or_named_and_nothing_else_is_deleted_or_changed() {
    let mut bench = started(Bench::with_logs(LIMITS, 2));
    for n in 0..20 {
        bench.append(log(0), batch(1, 5_000, BatchOrigin::NONE, n)).expect("room");
        bench.append(log(1), batch(1, 50, BatchOrigin::NONE, n)).expect("room");
        bench.settle();
    }
    bench.logs.stop();
    bench.settle();
    assert!(bench.logs.stopped());
    let found = bench.drive.disk.clone();
    let (mut good, mut read_only, mut refused) = (0, 0, 0);
    for path in found.names() {
        let bytes = found.len_of(&path);
        for kept in [0, BLOCK, bytes] {
            bench.drive.disk = found.clone();
            bench.drive.disk.put(&path, &vec![0; kept]);
            let harmed = bench.drive.disk.clone();
            let place = format!("{path}, {kept} zeros of {bytes} bytes");
            let writes = match bench.recovered() {
                Err(OpenError::Refused { file, .. }) => {
                    assert_eq!(file, Path::new(&path), "{place}");
                    refused += 1;
                    false
                }
                Err(other) => panic!("{place}: {other}"),
                Ok(mut logs) => {
                    for log in [log(0), log(1)] {
                        assert_eq!(logs.positions(log).map(|p| p.durable), Some(Offset(20)), "{place}");
                    }
                    let append =
                        logs.append(bench.drive.now(), log(0), &[batch(1, 10, BatchOrigin::NONE, 1)]);
                    if append.is_err() {
                        assert!(
                            logs.notes().iter().any(|note| note.contains(&path)),
                            "{place}: {:?}",
                            logs.notes()
                        );
                        read_only += 1;
                    } else {
                        good += 1;
                    }
                    append.is_ok()
                }
            };
            for other in harmed.names().into_iter().filter(|other| *other != path) {
                assert!(bench.drive.disk.names().contains(&other), "{place}: {other} is gone");
                let is_same = bench.drive.disk.bytes_of(&other) == harmed.bytes_of(&other);
                // A start that goes on ends its recovery by a frame, and nothing else.
                assert!(is_same || (writes && other.contains("-ring-")), "{place}: {other} has changed");
            }
        }
    }
    assert!(
        good > 0 && read_only > 0 && refused > 0,
        "{good} good, {read_only} read-only, {refused} refused"
    );
}
