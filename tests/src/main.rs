//! Harnesses that are too long, or need too much of the machine, for a unit test. Each ends in a line
//! `<name>: N passed, N failed` and an exit code that is not 0 if anything failed.

use std::alloc::System;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tests::fuzz::command as fuzz;
use tests::sim::command as sim;
use tests::{crash, kill, partitions};

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
    /// Recover the real broker from crash states of a real filesystem. Needs root, /dev/fuse and loop devices.
    Crash(crash::CrashArgs),
    /// Feed every decoder, and a whole broker, inputs that are nearly right.
    Fuzz(fuzz::FuzzArgs),
    /// Kill the real broker in the middle of acknowledged produces.
    Kill(kill::KillArgs),
    /// Create, restart and use a thousand partitions.
    Partitions(partitions::PartitionsArgs),
    /// Simulate a broker on a virtual drive, network and clock, and lose its power at any op.
    Sim(sim::SimArgs),
}

#[tokio::main]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a harness speaks to its operator")]
async fn main() -> ExitCode {
    let result = match Args::parse().harness {
        Harness::Crash(args) => crash::run(&args).await.map(|report| {
            println!(
                "crash states: {} on {:?}, {} pending sectors, {} torn; recovery killed and repeated in {}",
                report.images, args.fs, report.pending, report.torn, report.recovered_twice
            );
            println!("acknowledged records checked {}: {:?}", report.verdict.checked, report.verdict);
            ("crash", report.images, report.verdict.is_clean() && report.verdict.checked > 0)
        }),
        Harness::Fuzz(args) => {
            fuzz::fuzz_all(&args).map_err(std::io::Error::other).map(|(text, targets, is_well)| {
                print!("{text}");
                ("fuzz", targets, is_well)
            })
        }
        Harness::Kill(args) => kill::run(&args).await.map(|(verdict, acks)| {
            println!(
                "kill -9: {} cycles, {acks} acks; checked {}: {verdict:?}",
                args.cycles, verdict.checked
            );
            ("kill", args.cycles, verdict.is_clean())
        }),
        Harness::Partitions(args) => partitions::run(&args).await.map(|report| {
            println!("{} partitions: {report:?}", args.partitions);
            ("partitions", 1, report.acked == args.partitions as u64)
        }),
        Harness::Sim(args) => {
            let (text, is_well) = sim::simulate(&args);
            print!("{text}");
            Ok(("sim", 1, is_well))
        }
    };
    match result {
        Ok((name, passed, true)) => {
            println!("{name}: {passed} passed, 0 failed");
            ExitCode::SUCCESS
        }
        Ok((name, _, false)) => {
            println!("{name}: 0 passed, 1 failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("{e}");
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}
