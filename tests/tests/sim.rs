//! The simulator's seeds, and the planted bugs that they have to catch.

use tests::sim::run::{Level, caught_by, run_many};
use tidegate_broker::mutants::Mutant;

/// About a minute and a half of both cores of a small machine.
const SEEDS: u64 = 1000;
/// Seeds that may come to no end, all for one known fault: with the smallest rings the logs wait for room, or a stop for a
/// checkpoint, that only they themselves could make. No record is lost by it. To become 0.
const STUCK_MAX: usize = 30;
/// A planted bug must show within so many seeds.
const BUDGET: u64 = 300;

#[test]
fn a_thousand_seeds_lose_nothing_that_was_acknowledged() {
    let summary = run_many(Level::Logs, 0, SEEDS, 2);
    println!("{summary:#?}");
    let (stuck, wrong): (Vec<_>, Vec<_>) =
        summary.failed.into_iter().partition(|(_, how)| how.starts_with("STUCK"));
    assert_eq!(wrong, []);
    assert!(stuck.len() <= STUCK_MAX, "{stuck:#?}");
    assert_eq!(summary.seeds, SEEDS);
}

#[test]
fn an_acknowledgement_before_the_flush_is_caught() {
    caught(Level::Logs, Mutant::AckBeforeFlush);
}

#[test]
fn a_recovery_without_its_flush_is_caught() {
    caught(Level::Logs, Mutant::RecoveryWithoutFlush);
}

#[test]
fn a_file_handed_out_before_its_free_is_marked_is_caught() {
    caught(Level::Logs, Mutant::FileHandedOutBeforeFreeMarked);
}

#[test]
fn a_duplicate_answered_before_its_original_is_flushed_is_caught() {
    caught(Level::Shards, Mutant::DuplicateAnsweredEarly);
}

fn caught(level: Level, mutant: Mutant) {
    let caught = caught_by(level, mutant, BUDGET);
    assert!(caught.is_some(), "{BUDGET} seeds do not notice {}", mutant.name());
}
