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
fn every_planted_bug_is_caught() {
    let at_shards = [
        Mutant::DuplicateAnsweredEarly,
        Mutant::OffsetStoredEarly,
        Mutant::TopicToldEarly,
        Mutant::ProducerIdReused,
    ];
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let level = if at_shards.contains(&mutant) { Level::Shards } else { Level::Logs };
        match caught_by(level, mutant, BUDGET) {
            Some((seed, how)) => println!("{}: seed {seed}: {how}", mutant.name()),
            None => missed.push(mutant.name()),
        }
    }
    let (all, caught) = (Mutant::ALL.len(), Mutant::ALL.len() - missed.len());
    println!("{caught} of {all} planted bugs are caught within {BUDGET} seeds");
    assert_eq!(missed, Vec::<&str>::new(), "{BUDGET} seeds do not notice these");
}
