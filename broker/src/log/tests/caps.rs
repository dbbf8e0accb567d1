//! Every cap at once: a checkpoint of as much as there may be fits its slot, and who would make it more is told the cap.

use tidegate_protocol::disk::checkpoint::{self, Contents};

use super::super::answer::CreateRefused;
use super::*;

/// The slot is exactly as large as the caps need.
const CAPS: Limits = {
    let files = FileLimits { files_max: 24, ..LIMITS.files };
    let caps = Limits { logs_max: 40, extents_max: 80, batches_remembered_max: 1024, files, ..LIMITS };
    Limits { checkpoint_slot_bytes: caps.checkpoint_contents_max().encoded_bytes() as u64, ..caps }
};

fn origin(producer: i64, sequence: i32) -> BatchOrigin {
    BatchOrigin {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(sequence),
    }
}

/// What the newest checkpoint on disk holds.
fn newest_checkpoint(bench: &Bench) -> Contents {
    let slots = (0..3).map(|slot| format!("/d/journal/00000001-checkpoint-{slot}"));
    let whole = slots.filter_map(|path| checkpoint::decode(bench.drive.disk.bytes_of(&path)).ok());
    Contents::of(&whole.max_by_key(|(header, _)| header.sequence).expect("a checkpoint").1)
}

#[test]
fn with_every_cap_reached_a_checkpoint_fits_its_slot_and_refusals_say_the_cap() {
    let mut bench = Bench::new(CAPS);
    for p in 0..40 {
        let idempotence_window = if p == 0 { 256 } else { 16 };
        bench.logs.create(log(p), LogOptions { idempotence_window, ..OPTIONS }).expect("room for a log");
    }
    let mut bench = started(bench);

    // Logs: one that is deleted counts until a frame says that it is gone.
    assert_eq!(bench.logs.create(log(40), OPTIONS), Err(CreateRefused::TooMany { limit: 40 }));
    bench.logs.remove(log(39));
    assert_eq!(bench.logs.create(log(40), OPTIONS), Err(CreateRefused::TooMany { limit: 40 }));
    bench.settle();
    bench.logs.create(log(39), OPTIONS).expect("it is gone");

    // Producers: two with a window of 256 and 32 that count 16 batches each, every window filled.
    for n in 0..256 {
        for producer in 0..2 {
            bench.append(log(0), batch(1, 10, origin(producer, n), 1)).expect("room");
        }
        bench.turn(usize::MAX);
    }
    for producer in 2..34 {
        for n in 0..16 {
            bench.append(log(1), batch(1, 10, origin(producer, n), 1)).expect("room");
        }
        bench.turn(usize::MAX);
    }
    let refused = bench.append(log(2), batch(1, 10, origin(99, 0), 1));
    assert_eq!(refused, Err(AppendRefused::TooManyProducers { limit: 1024, current: 1024 }));
    bench.append(log(0), batch(1, 10, origin(0, 256), 1)).expect("a known producer goes on");
    bench.append(log(2), batch(1, 10, BatchOrigin::NONE, 1)).expect("so does who has no sequence");

    // Data files.
    let full = Shortage::Files { limit: 24, current: 24 };
    for step in 0.. {
        assert!(step < 2000, "{:?}", bench.logs.stats());
        let _ = bench.append(log(3 + step % 6), batch(1, 7000, BatchOrigin::NONE, 1));
        bench.turn(usize::MAX);
        if bench.logs.segments.full() == Some(&full) && bench.logs.segments.state().len() == 24 {
            break;
        }
    }

    // Small extents of logs without a data file: many logs at once do not pass the cap either.
    for _ in 0..20 {
        for p in 20..40 {
            let _ = bench.append(log(p), batch(1, 10, BatchOrigin::NONE, 1));
        }
        bench.turn(usize::MAX);
        assert!(bench.stat("small_extents") <= 60, "{:?}", bench.logs.stats());
    }
    bench.settle();
    assert_eq!(bench.stat("small_extents"), 60, "{:?}", bench.logs.stats());
    let refused = bench.append(log(20), batch(1, 10, BatchOrigin::NONE, 1));
    assert_eq!(refused, Err(AppendRefused::DiskFull(full)), "as on a full drive");
    let internal = TopicPartition { topic: TopicId::OFFSETS, partition: PartitionId(0) };
    bench.logs.create(internal, OPTIONS).expect("the broker's own logs have a share of their own");
    while bench.append(internal, batch(1, 10, BatchOrigin::NONE, 1)).is_ok() {
        bench.settle();
        assert!(bench.stat("small_extents") <= 80);
    }
    assert_eq!(bench.stat("small_extents"), 80);

    bench.logs.stop();
    bench.settle();
    assert!(bench.logs.stopped());
    let contents = newest_checkpoint(&bench);
    assert_eq!(contents, Contents { logs: 41, extents: 80, producers: 34, batches: 1024, files: 24 });
    assert!(contents.encoded_bytes() as u64 <= CAPS.checkpoint_slot_bytes);
    bench.restart(Some(3));
    assert_eq!(bench.stat("small_extents"), 80);
}

#[test]
fn a_raised_window_forgets_the_longest_silent_producers_and_a_replay_before_the_topics_are_known_fits_too() {
    let mut bench = started(Bench::with_logs(CAPS, 2));
    for producer in 0..60 {
        for n in 0..5 {
            bench.append(log(0), batch(1, 10, origin(producer, n), 1)).expect("room");
            bench.turn(usize::MAX);
        }
    }
    bench.logs.set_options(log(0), LogOptions { idempotence_window: 100, ..OPTIONS });
    bench.logs.check();
    assert_eq!(bench.stat("batches_remembered"), 1000, "ten of them fit");
    let refused = bench.append(log(0), batch(1, 10, origin(0, 5), 1));
    assert!(
        matches!(refused, Err(AppendRefused::Producer(_))),
        "forgotten, not taken for a new one: {refused:?}"
    );
    bench.append(log(0), batch(1, 10, origin(59, 5), 1)).expect("remembered");
    bench.settle();

    // More batches than a checkpoint may hold lie behind the last one, and no topic has said yet how many it wants.
    let mut logs = bench.recovered().expect("the logs open");
    let mut ops = Vec::new();
    logs.start(bench.drive.now(), &mut ops);
    logs.stop();
    while !ops.is_empty() {
        bench.drive.submit(std::mem::take(&mut ops));
        for event in bench.drive.complete() {
            logs.on_event(bench.drive.now(), event, &mut ops);
        }
        logs.pump(bench.drive.now(), &mut ops);
    }
    assert!(logs.stopped());
    assert!(newest_checkpoint(&bench).batches <= 1024);
}

#[test]
fn at_the_cap_of_producers_a_known_one_may_begin_a_new_epoch_and_another_one_is_refused() {
    let origin = |id, epoch| BatchOrigin {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(0),
    };
    let mut bench = started(Bench::with_logs(CAPS, 2));
    let known =
        (0..2000_i64).take_while(|id| bench.append(log(0), batch(1, 10, origin(*id, 0), 1)).is_ok()).count();
    assert!((2..2000).contains(&known), "{known}");
    let too_many = |appended: Result<Appended, AppendRefused>| {
        assert!(matches!(appended, Err(AppendRefused::TooManyProducers { .. })), "{appended:?}");
    };
    bench.append(log(0), batch(1, 10, origin(1, 1), 2)).expect("a new epoch of a known one takes no room");
    too_many(bench.append(log(1), batch(1, 10, origin(1, 1), 2)));
    bench.settle();
    bench.restart(Some(5));
    bench.settle();
    too_many(bench.append(log(0), batch(1, 10, origin(5000, 0), 3)));
    bench.append(log(0), batch(1, 10, origin(0, 1), 4)).expect("after a restart likewise");
}
