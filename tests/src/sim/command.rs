//! `tests sim`: many seeds, or one seed again with its history.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tidegate_broker::mutants::Mutant;

use super::run::{History, Level, Report, level_of, run};
use super::summary::{ACKS_PER_HOUR, FAULTS_PER_HOUR, HOUR_NS, Seeds, Summary, caught_by, hours, run_many};

/// Seeds after which the hours are counted.
const SEEDS_AT_ONCE: u64 = 250;

/// What to simulate.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// What is simulated: the logs of one shard, or whole shards behind the wire protocol
    #[arg(long, default_value = "logs", value_parser = level)]
    level: Level,
    /// Run this seed alone, once, and say what happened
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run so many seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Run seeds until they make so many simulated hours, each with 100,000 acknowledged appends and 60 faults at least
    #[arg(long, conflicts_with_all = ["seeds", "mutant"])]
    hours: Option<u64>,
    /// Plant every bug in turn: each has to be caught within so many seeds
    #[arg(long, conflicts_with_all = ["seed", "hours", "mutant"])]
    mutants: Option<u64>,
    /// Write the result to that file, as JSON
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Run one seed of so many twice, to see that it does the same
    #[arg(long, default_value = "1")]
    repeat_every: NonZeroU64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Plant a bug, by name: the seeds have to catch it
    #[arg(long, value_parser = mutant)]
    mutant: Option<Mutant>,
    /// With --seed: print every op and event
    #[arg(long, requires = "seed")]
    history: bool,
}

fn level(name: &str) -> Result<Level, String> {
    match name {
        "logs" => Ok(Level::Logs),
        "shards" => Ok(Level::Shards),
        _ => Err("no such level; there are logs, shards".to_string()),
    }
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let names: Vec<&str> = Mutant::ALL.iter().map(|m| m.name()).collect();
    let found = Mutant::ALL.into_iter().find(|m| m.name() == name);
    found.ok_or_else(|| format!("no planted bug of that name; there are {}", names.join(", ")))
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// For a person.
    pub text: String,
    /// With a planted bug: whether it was caught.
    pub is_well: bool,
    /// For a program; none of one seed alone.
    pub json: Option<serde_json::Value>,
}

/// Runs what was asked for.
pub fn simulate(args: &SimArgs) -> Outcome {
    let mut out = String::new();
    if let Some(seed) = args.seed {
        let history = if args.history { History::Kept } else { History::Dropped };
        let report = run(args.level, seed, args.mutant, history);
        describe(&report, &mut out);
        let failure = report.failure.clone().or_else(|| report.vacuous());
        let _ = writeln!(out, "seed {seed}: {}", failure.as_deref().unwrap_or("passed"));
        return Outcome { text: out, is_well: failure.is_none() != args.mutant.is_some(), json: None };
    }
    if let Some(mutant) = args.mutant {
        let is_well = is_caught(args.level, mutant, args.seeds, &mut out);
        return Outcome { text: out, is_well, json: None };
    }
    if let Some(budget) = args.mutants {
        let caught = |mutant: &Mutant| is_caught(level_of(*mutant), *mutant, budget, &mut out);
        let (caught, missed): (Vec<Mutant>, Vec<Mutant>) = Mutant::ALL.into_iter().partition(caught);
        let _ = writeln!(
            out,
            "{} of {} planted bugs are caught within {budget} seeds",
            caught.len(),
            Mutant::ALL.len()
        );
        let missed: Vec<&str> = missed.iter().map(|m| m.name()).collect();
        let json = json!({
            "harness": "mutants",
            "passed": missed.is_empty(),
            "budget": budget,
            "caught": caught.len(),
            "of": Mutant::ALL.len(),
            "missed": missed,
        });
        return Outcome { text: out, is_well: missed.is_empty(), json: Some(json) };
    }
    let began = Instant::now();
    let mut summary = Summary::default();
    let mut next = args.first;
    loop {
        let count = if args.hours.is_some() { SEEDS_AT_ONCE } else { args.seeds };
        summary.merge(run_many(Seeds {
            level: args.level,
            first: next,
            count,
            threads: args.threads,
            repeat_every: args.repeat_every.get(),
        }));
        next += count;
        let goes_on = args.hours.is_some_and(|wanted| hours(&summary.passed) < wanted);
        if !goes_on || !summary.failed.is_empty() {
            break;
        }
    }
    summarise(args.level, &summary, began.elapsed().as_secs_f64(), &mut out);
    // Nothing is proved of a kind of fault that has never occurred, and a few seeds do not have all.
    let never = if args.hours.is_some() { summary.never(args.level) } else { Vec::new() };
    for kind in &never {
        let _ = writeln!(out, "never occurred: {kind}");
    }
    let is_well = summary.failed.is_empty() && never.is_empty();
    Outcome { text: out, is_well, json: Some(json_of(args, &summary)) }
}

fn is_caught(level: Level, mutant: Mutant, budget: u64, out: &mut String) -> bool {
    let caught = caught_by(level, mutant, budget);
    let _ = match &caught {
        Some((seed, how)) => writeln!(out, "{} is caught by seed {seed}: {how}", mutant.name()),
        None => writeln!(out, "{budget} seeds do not notice {}", mutant.name()),
    };
    caught.is_some()
}

fn json_of(args: &SimArgs, summary: &Summary) -> serde_json::Value {
    let faults: BTreeMap<&str, u64> = summary.faults().into_iter().collect();
    json!({
        "harness": "sim",
        "level": args.level.name(),
        "first": args.first,
        "seeds": summary.seeds,
        "failed": summary.failed,
        "hours_virtual": summary.virtual_ns as f64 / HOUR_NS as f64,
        "hours_counted": hours(&summary.passed),
        "acks": summary.acks(),
        "faults": faults,
        "cpu_seconds": summary.cpu_ns as f64 / 1e9,
        "speed_up": summary.speed_up(),
        "acks_per_cpu_second": summary.acks_per_cpu_second(),
    })
}

fn describe(report: &Report, out: &mut String) {
    for line in &report.history {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{:?}", report.counts);
    let _ = writeln!(out, "{:?}", report.coverage);
    let _ = writeln!(
        out,
        "{} ms of virtual time, trace {:016x} of {} notes",
        report.virtual_ns / 1_000_000,
        report.trace.0,
        report.trace.1
    );
}

fn summarise(level: Level, summary: &Summary, seconds: f64, out: &mut String) {
    let _ = writeln!(out, "{:?}", summary.counts);
    let _ = writeln!(out, "{:?}", summary.coverage);
    for (kind, count) in summary.kinds(level) {
        let _ = writeln!(out, "{count:>10} {kind}");
    }
    for (seed, failure) in &summary.failed {
        let _ = writeln!(out, "seed {seed}: {failure}");
    }
    let _ = writeln!(
        out,
        "{} seeds in {seconds:.1} s; {:.1} hours of virtual time, of which {} count with {ACKS_PER_HOUR} \
         acknowledged appends and {FAULTS_PER_HOUR} faults in each; {} failed",
        summary.seeds,
        summary.virtual_ns as f64 / HOUR_NS as f64,
        hours(&summary.passed),
        summary.failed.len()
    );
    let _ = writeln!(
        out,
        "{} acknowledged appends; a second of a core gives {:.0} of them and {:.0} seconds of virtual time",
        summary.acks(),
        summary.acks_per_cpu_second(),
        summary.speed_up()
    );
}
