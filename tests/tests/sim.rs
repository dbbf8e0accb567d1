//! The simulator's seeds, and the planted bugs that they have to catch.

use tests::sim::run::{Level, caught_by, run_many};
use tidegate_broker::mutants::Mutant;

/// About a minute and a half of both cores of a small machine.
const SEEDS: u64 = 1000;
/// About half a minute.
const SEEDS_OF_SHARDS: u64 = 500;
/// A planted bug must show within so many seeds.
const BUDGET: u64 = 300;

#[test]
fn a_thousand_seeds_lose_nothing_that_was_acknowledged() {
    let summary = run_many(Level::Logs, 0, SEEDS, 2);
    println!("{:#?}", summary.kinds());
    assert_eq!(summary.failed, []);
    assert_eq!(summary.seeds, SEEDS);
    assert_eq!(summary.never(), Vec::<&str>::new(), "nothing is proved of what never occurred");
}

#[test]
fn whole_shards_keep_what_they_have_told_their_clients() {
    let summary = run_many(Level::Shards, 0, SEEDS_OF_SHARDS, 2);
    println!("{:#?}", summary.kinds());
    assert_eq!(summary.failed, []);
    assert_eq!(summary.seeds, SEEDS_OF_SHARDS);
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
