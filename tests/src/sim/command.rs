//! `tests sim`: many seeds, or one seed again with its history.

use std::fmt::Write as _;
use std::time::Instant;

use clap::Args;
use tidegate_broker::mutants::Mutant;

use super::run::{History, Level, Report, Summary, caught_by, run, run_many};

/// What to simulate.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// What is simulated: the logs of one shard, or whole shards behind the wire protocol
    #[arg(long, default_value = "logs", value_parser = level)]
    level: Level,
    /// Run this seed alone, once, and say what happened
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run so many seeds, each twice
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
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

/// Runs what was asked for. Returns the text to print and whether all is well: with a planted bug it is if it was caught.
pub fn simulate(args: &SimArgs) -> (String, bool) {
    let began = Instant::now();
    let mut out = String::new();
    if let Some(seed) = args.seed {
        let history = if args.history { History::Kept } else { History::Dropped };
        let report = run(args.level, seed, args.mutant, history);
        describe(&report, &mut out);
        let failure = report.failure.clone().or_else(|| report.vacuous());
        let _ = writeln!(out, "seed {seed}: {}", failure.as_deref().unwrap_or("passed"));
        return (out, failure.is_none() != args.mutant.is_some());
    }
    if let Some(mutant) = args.mutant {
        let caught = caught_by(args.level, mutant, args.seeds);
        let _ = match &caught {
            Some((seed, how)) => writeln!(out, "{} is caught by seed {seed}: {how}", mutant.name()),
            None => writeln!(out, "{} seeds do not notice {}", args.seeds, mutant.name()),
        };
        return (out, caught.is_some());
    }
    let summary = run_many(args.level, args.first, args.seeds, args.threads);
    summarise(&summary, began.elapsed().as_secs_f64(), &mut out);
    (out, summary.failed.is_empty())
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

fn summarise(summary: &Summary, seconds: f64, out: &mut String) {
    let virtual_s = summary.virtual_ns as f64 / 1e9;
    let _ = writeln!(out, "{:?}", summary.counts);
    let _ = writeln!(out, "{:?}", summary.coverage);
    for (kind, count) in summary.kinds() {
        let _ = writeln!(out, "{count:>10} {kind}");
    }
    for (seed, failure) in &summary.failed {
        let _ = writeln!(out, "seed {seed}: {failure}");
    }
    let _ = writeln!(
        out,
        "{} seeds in {seconds:.1} s, {:.0} acknowledged appends a second, {virtual_s:.0} s of virtual time, {} failed",
        summary.seeds,
        summary.counts.get("acks").copied().unwrap_or(0) as f64 / seconds,
        summary.failed.len()
    );
}
