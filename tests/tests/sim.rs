//! The simulator's seeds, and the planted bugs that they have to catch.

use tests::sim::run::{Level, Repeat, level_of, run_fully};
use tests::sim::summary::{Seeds, caught_by, run_many};
use tidegate_broker::mutants::Mutant;

/// About half a minute of both cores of a small machine; `tests sim --hours` runs many more.
const SEEDS: u64 = 500;
/// As long.
const SEEDS_OF_SHARDS: u64 = 200;
/// A planted bug must show within so many seeds.
const BUDGET: u64 = 300;

/// Seeds beyond those below that have failed, and why.
const ONCE_FAILED: [(u64, &str); 11] = [
    (1_000_000_034, "a lost frame at the start of a ring file was told by the file before"),
    (2_000_001_724, "the same, where it refuses the start"),
    (3_000_001_476, "the same, several frames"),
    (
        4_000_000_378,
        "a run that recovery had dropped was served when the drive lost the write of the one in its place",
    ),
    (5_000_000_561, "a lost frame, zeros where it lay"),
    (
        1_000_001_381,
        "a drive whose flushes failed was filled with files that were given up one after the other",
    ),
    (1_000_001_463, "the same"),
    (1_000_005_645, "a shard whose zeros could not be written waited for a file when it was to stop"),
    (2_000_000_832, "the same"),
    (9_000_002_037, "one copy of the superblock was written again from the other while that was not flushed"),
    (
        4_000_002_632,
        "none of the broker: so many producers that a shard takes no further one, which it may say",
    ),
];

/// The same of whole shards.
const ONCE_FAILED_SHARDS: [(u64, &str); 1] =
    [(2_000_000_443, "none of the broker: a topic had grown by a request whose answer was lost on the way")];

fn seeds(level: Level, count: u64) -> Seeds {
    Seeds { level, first: 0, count, threads: 2, repeat_every: 1 }
}

#[test]
fn five_hundred_seeds_lose_nothing_that_was_acknowledged() {
    let summary = run_many(seeds(Level::Logs, SEEDS));
    println!("{:#?}", summary.kinds(Level::Logs));
    assert_eq!(summary.failed, []);
    assert_eq!(summary.seeds, SEEDS);
    assert_eq!(summary.never(Level::Logs), Vec::<&str>::new(), "nothing is proved of what never occurred");
}

#[test]
fn what_failed_once_does_not_fail_again() {
    let logs = ONCE_FAILED.map(|failed| (Level::Logs, failed));
    let shards = ONCE_FAILED_SHARDS.map(|failed| (Level::Shards, failed));
    for (level, (seed, what)) in logs.into_iter().chain(shards) {
        let report = run_fully(level, seed, Repeat::No);
        assert_eq!(report.failure, None, "{what}");
    }
}

#[test]
fn whole_shards_keep_what_they_have_told_their_clients() {
    let summary = run_many(seeds(Level::Shards, SEEDS_OF_SHARDS));
    println!("{:#?}", summary.kinds(Level::Shards));
    assert_eq!(summary.failed, []);
    assert_eq!(summary.seeds, SEEDS_OF_SHARDS);
}

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        match caught_by(level_of(mutant), mutant, BUDGET) {
            Some((seed, how)) => println!("{}: seed {seed}: {how}", mutant.name()),
            None => missed.push(mutant.name()),
        }
    }
    let (all, caught) = (Mutant::ALL.len(), Mutant::ALL.len() - missed.len());
    println!("{caught} of {all} planted bugs are caught within {BUDGET} seeds");
    assert_eq!(missed, Vec::<&str>::new(), "{BUDGET} seeds do not notice these");
}
