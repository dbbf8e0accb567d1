//! What retention does to whole logs: by the broker's own clock, and in any order with everything else.

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// Redpanda #11922, #9820: records that a client had dated far ahead were never removed, and the drive filled up.
#[test]
fn what_clients_say_of_time_neither_keeps_records_nor_ends_them() {
    let options = LogOptions { retention_ms: Some(60_000), ..OPTIONS };
    for said_ms in [i64::MAX, i64::MIN, -1, 0] {
        let mut bench = started(Bench::new(LIMITS));
        bench.logs.create(log(0), options).expect("room for a log");
        for n in 0..30 {
            // Some go into data files, some stay in the journal.
            let value = vec![b'v'; if n % 2 == 0 { 5_000 } else { 50 }];
            let mut builder = BatchBuilder::new(Vec::new());
            builder.push(said_ms, None, Some(&value), std::iter::empty());
            let bytes = builder.finish(BatchOrigin::NONE);
            let header = *BatchView::parse(&bytes).expect("a built batch").header();
            let incoming = IncomingBatch { view: View::copy_of(&bytes), header };
            bench.append(log(0), incoming).expect("room");
            bench.settle();
        }
        assert!(bench.stat("runs") > 0);
        // What is known of time has to come back from the drive.
        bench.restart(None);
        bench.logs.set_options(log(0), options);
        bench.settle();
        let start = |bench: &Bench| bench.logs.positions(log(0)).expect("a log").start;
        bench.drive.pass(50 * SECOND_NS);
        bench.settle();
        assert_eq!(start(&bench), Offset(0), "dated {said_ms}, and young");
        bench.drive.pass(20 * SECOND_NS);
        bench.settle();
        assert_eq!(start(&bench), Offset(30), "dated {said_ms}, and old");
    }
}

/// Apache Iggy #2572: to close a segment that retention had emptied ended the shard, and each start after it.
#[test]
fn appends_new_files_retention_trims_and_ends_in_any_order_stop_no_shard_and_no_start() {
    let segment_bytes = 64 << 10;
    let options = [
        LogOptions { retention_ms: Some(5_000), segment_bytes, ..OPTIONS },
        LogOptions { retention_bytes: Some(segment_bytes), segment_bytes, ..OPTIONS },
        LogOptions { retention_ms: Some(1), retention_bytes: Some(0), segment_bytes, ..OPTIONS },
    ];
    let logs = || (0..3).map(log).zip(options);
    let (mut starts, mut retained) = (0, 0);
    for seed in 1..40u64 {
        let mut bench = started(Bench::new(LIMITS));
        logs().for_each(|(log, options)| bench.logs.create(log, options).expect("room for a log"));
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for step in 0..800 {
            let target = log(dice.roll(3) as i32);
            match dice.roll(100) {
                0..60 => {
                    let size = [20, 1500, 7000][dice.roll(3) as usize];
                    let appended = bench.append(target, batch(1, size, BatchOrigin::NONE, step));
                    assert!(matches!(appended, Ok(_) | Err(AppendRefused::NoRoom { .. })), "{appended:?}");
                }
                60..64 => bench.drive.pass(dice.roll(12 * SECOND_NS)),
                64..67 => {
                    let positions = bench.logs.positions(target).expect("a log");
                    let before = positions.start.0
                        + dice.roll(3) as i64 * (positions.durable.0 - positions.start.0) / 2;
                    bench.logs.trim(target, Offset(before)).expect("it is durable");
                }
                67 => {
                    let power = (dice.roll(3) > 0).then(|| 1 + dice.roll(1 << 30));
                    let before: Vec<_> = logs().map(|(log, _)| bench.logs.positions(log)).collect();
                    bench.restart(power);
                    for (log, options) in logs() {
                        if bench.logs.positions(log).is_none() {
                            bench.logs.create(log, options).expect("nothing of it was flushed");
                        }
                        bench.logs.set_options(log, options);
                    }
                    retained += before.iter().flatten().filter(|p| p.start > Offset(0)).count();
                    starts += 1;
                }
                _ => drop(bench.turn(dice.roll(5) as usize)),
            }
        }
        bench.settle();
        for (log, _) in logs() {
            let appended = bench.append(log, batch(1, 20, BatchOrigin::NONE, 0)).expect("it goes on");
            bench.settle();
            let positions = bench.logs.positions(log).expect("a log");
            assert_eq!(positions.durable, appended.end, "seed {seed}");
            let read = bench.logs.read(log, positions.start, positions.durable, 1000);
            assert!(!matches!(read, ReadStart::Refused(_)), "seed {seed}: {read:?}");
        }
    }
    assert!(starts > 100 && retained > 100, "{starts} starts, {retained} logs with a moved start");
}
