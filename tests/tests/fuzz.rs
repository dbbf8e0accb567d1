//! Every decoder against its stored inputs and a fixed number of changed ones. More of them: `tests fuzz`.

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tests::fuzz::run::{Progress, execute, fuzz};
use tests::fuzz::{Outcome, TARGETS, Target, corpus, measure, seal};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What is measured of memory is the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn stored_inputs_break_nothing_and_seeds_are_valid() {
    let _alone = alone();
    assert!(measure::counts());
    for target in TARGETS {
        for (name, input) in corpus::named(target).unwrap() {
            let outcome = execute(target, &input);
            match outcome {
                Err(why) => panic!("{} {name}: {why}", target.name),
                Ok(Outcome::Refused) if name.starts_with(corpus::SEED) => {
                    panic!("{} {name}: a seed is refused: write it anew", target.name)
                }
                Ok(Outcome::Taken) if name.starts_with(corpus::REFUSED) => {
                    panic!("{} {name}: it must not be valid", target.name)
                }
                Ok(_) => {}
            }
            assert!(input.len() <= target.bytes_max, "{} {name}: {} bytes", target.name, input.len());
        }
    }
}

#[test]
fn changed_inputs_break_nothing() {
    let _alone = alone();
    for target in TARGETS {
        let stored = corpus::inputs(target).unwrap();
        let report = fuzz(target, &stored, 1, &Progress::default(), |done| done < target.tries);
        let why: Vec<&String> = report.failures.iter().map(|failure| &failure.why).collect();
        assert!(why.is_empty(), "{}: {why:#?}", target.name);
        // Of what is tried enough must get past the first checks, or nothing is tried.
        assert!(report.taken * 50 > report.executions, "{}: {} valid", target.name, report.taken);
    }
}

#[test]
fn a_decoder_that_believes_a_count_is_caught() {
    let _alone = alone();
    fn believes(bytes: &[u8]) -> Outcome {
        let count = bytes.first().map_or(0, |byte| usize::from(*byte) << 10);
        measure::bounded("reading", 16 * bytes.len() + 1024, || drop(Vec::<u8>::with_capacity(count)));
        Outcome::Taken
    }
    let target =
        Target { name: "believes", check: believes, seal: seal::nothing, bytes_max: 64, tries: 1000 };
    let report = fuzz(&target, &[vec![0; 8]], 1, &Progress::default(), |done| done < target.tries);
    assert_eq!(report.failures.len(), 1, "one place, told once");
    assert!(report.failures[0].why.contains("bytes of memory"), "{}", report.failures[0].why);
    assert!(execute(&target, &report.failures[0].input).is_err(), "the input fails again");
}
