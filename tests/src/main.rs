//! Harnesses that are too long, or need too much of the machine, for a unit test. Each ends in a line
//! `<name>: N passed, N failed` and an exit code that is not 0 if anything failed.

use std::alloc::System;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tests::fuzz::command as fuzz;
use tests::scenario::{self, Finding};
use tests::sim::command as sim;
use tests::{abuse, card, corrupt, crash, faults, kill, partitions, result, soak};

/// Counts what is asked of it, for the bounds that `fuzz` checks.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Parser)]
#[command(about = "Harnesses of Tidegate")]
struct Args {
    #[command(subcommand)]
    harness: Harness,
}

#[derive(Subcommand)]
enum Harness {
    /// Make the page of what the harnesses have shown, from their result files.
    Card(card::CardArgs),
    /// Abuse the real broker's connections while a well-behaved client is measured beside: slow, deaf and vanishing clients,
    /// 10,000 idle ones, storms, absurd lengths, compression bombs, garbage.
    Abuse(scenario::ScenarioArgs),
    /// Flip bits in every structure of a data directory, stopped and running.
    Corrupt(corrupt::CorruptArgs),
    /// Recover the real broker from crash states of a real filesystem. Needs root, /dev/fuse and loop devices.
    Crash(crash::CrashArgs),
    /// Put the real broker through faults of its machine: power cut, full drive, failing drive, few
    /// descriptors, pause, kill.
    /// Needs root, /dev/fuse and loop devices.
    Faults(scenario::ScenarioArgs),
    /// Feed every decoder, and a whole broker, inputs that are nearly right.
    Fuzz(fuzz::FuzzArgs),
    /// Kill the real broker in the middle of acknowledged produces.
    Kill(kill::KillArgs),
    /// Create, restart and use a thousand partitions.
    Partitions(partitions::PartitionsArgs),
    /// Simulate a broker on a virtual drive, network and clock, and lose its power at any op.
    Sim(sim::SimArgs),
    /// Run every harness, for as long as asked, and make the page of what they have shown.
    Soak(soak::SoakArgs),
}

impl Harness {
    /// Its name and the file that its result goes to, where a run may break off without one.
    fn output(&self) -> Option<(&'static str, PathBuf)> {
        let (name, path) = match self {
            Harness::Abuse(args) => ("abuse", &args.output),
            Harness::Corrupt(args) => ("corrupt", &args.output),
            Harness::Crash(args) => ("crash", &args.output),
            Harness::Faults(args) => ("faults", &args.output),
            Harness::Fuzz(args) => ("fuzz", &args.output),
            Harness::Kill(args) => ("kill", &args.output),
            Harness::Partitions(args) => ("partitions", &args.output),
            Harness::Sim(args) => ("sim", &args.output),
            Harness::Card(_) | Harness::Soak(_) => return None,
        };
        Some((name, path.clone()?))
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a harness speaks to its operator")]
async fn main() -> ExitCode {
    let harness = Args::parse().harness;
    // Before anything else: a result is of the commit with which its run began.
    result::origin();
    let output = harness.output();
    let result = match harness {
        Harness::Card(args) => card::make(&args).map(|(files, is_well)| whole("card", files, is_well)),
        Harness::Corrupt(args) => corrupt::run(&args).await.map(|cases| {
            print!("{}", corrupt::table(&cases));
            let failed = cases.iter().filter(|case| case.failure.is_some()).count() as u64;
            let failed = if cases.is_empty() { 1 } else { failed };
            ("corrupt", cases.len() as u64 - failed.min(cases.len() as u64), failed)
        }),
        Harness::Crash(args) => crash::run(&args).await.and_then(|report| {
            println!(
                "crash states: {} on {}, {} pending sectors, {} torn; recovery crashed and repeated in {}",
                report.images,
                args.fs.name(),
                report.pending,
                report.torn,
                report.recoveries_repeated
            );
            println!(
                "{}; {} files with extents not initialised, flushed each for itself",
                report.flush_rule, report.files_with_own_flush
            );
            println!("acknowledged records checked {}: {:?}", report.verdict.checked, report.verdict);
            result::write(args.output.as_deref(), report.json(args.fs))?;
            Ok(whole("crash", report.images, report.is_well()))
        }),
        Harness::Abuse(args) => {
            let findings = abuse::run(&args, |finding| println!("{}", finding.line())).await;
            told("abuse", &findings, args.allow_skips, args.output.as_deref())
        }
        Harness::Faults(args) => {
            let findings = faults::run(&args, |finding| println!("{}", finding.line())).await;
            told("faults", &findings, args.allow_skips, args.output.as_deref())
        }
        Harness::Fuzz(args) => {
            fuzz::fuzz_all(&args).map_err(io::Error::other).map(|(text, targets, is_well)| {
                print!("{text}");
                whole("fuzz", targets, is_well)
            })
        }
        Harness::Kill(args) => kill::run(&args).await.and_then(|report| {
            println!(
                "kill -9: {} cycles, seed {}, {} acks, {} orders; checked {}: {:?}",
                report.cycles, args.seed, report.acks, report.orders, report.verdict.checked, report.verdict
            );
            result::write(args.output.as_deref(), report.json())?;
            Ok(whole("kill", report.cycles, report.is_well()))
        }),
        Harness::Partitions(args) => partitions::run(&args).await.and_then(|report| {
            println!("{} partitions: {report:?}", args.partitions);
            result::write(args.output.as_deref(), report.json(args.partitions))?;
            Ok(whole("partitions", 1, report.is_well(args.partitions)))
        }),
        Harness::Sim(args) => {
            let outcome = sim::simulate(&args);
            print!("{}", outcome.text);
            let written = outcome.json.map_or(Ok(()), |json| result::write(args.output.as_deref(), json));
            written.map(|()| whole("sim", 1, outcome.is_well))
        }
        Harness::Soak(args) => soak::run(&args).map(|(passed, failed)| ("soak", passed, failed)),
    };
    match result {
        Ok((name, passed, failed)) => {
            println!("{name}: {passed} passed, {failed} failed");
            if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            eprintln!("{e}");
            if let Some((name, path)) = output
                && let Err(e) = result::write(Some(&path), result::broken_off(name, &e.to_string()))
            {
                eprintln!("{}: {e}", path.display());
            }
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

/// Name, passed and failed of a harness whose parts pass or fail together.
fn whole(name: &'static str, parts: u64, is_well: bool) -> (&'static str, u64, u64) {
    if is_well { (name, parts, 0) } else { (name, 0, 1) }
}

/// Name, passed and failed of a harness of scenarios, with its summary said and written.
#[expect(clippy::print_stdout, reason = "a harness speaks to its operator")]
fn told(
    name: &'static str,
    findings: &[Finding],
    allow_skips: bool,
    output: Option<&Path>,
) -> io::Result<(&'static str, u64, u64)> {
    println!("{} skipped", scenario::count(findings, "skipped"));
    let is_well = scenario::is_well(findings, allow_skips);
    let passed = scenario::count(findings, "passed");
    // A scenario that could not run and was not allowed to be left out has shown nothing.
    let failed = if is_well { 0 } else { (findings.len() as u64 - passed).max(1) };
    result::write(output, scenario::json(name, findings, is_well))?;
    Ok((name, passed, failed))
}
