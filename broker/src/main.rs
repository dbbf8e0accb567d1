//! `tidegate serve`: arguments -> configuration -> start -> wait -> stop.

use std::io::Write;
use std::process::ExitCode;

use tidegate_broker::arguments;
use tidegate_broker::config::RawConfig;
use tidegate_broker::problem::{Problem, StartError};
use tidegate_broker::start::{Ended, SignalsOf, start_with};

/// The configuration or the command line is wrong.
const USAGE: u8 = 2;
/// The broker could not start, or has stopped by itself.
const FAILED: u8 = 7;

fn main() -> ExitCode {
    let matches = arguments::command().get_matches();
    let serve = matches.subcommand_matches("serve").expect("the command line requires it");
    let config = match read_config(serve).check() {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    let running = match start_with(config, SignalsOf::Broker) {
        Ok(running) => running,
        Err(error) => return fail(FAILED, &error),
    };
    let ended = running.wait();
    let stopped = running.stop();
    match (ended, stopped) {
        (Ended::Asked(_), Ok(())) => ExitCode::SUCCESS,
        (Ended::Failed(problem), _) => fail(FAILED, &problem.into()),
        (Ended::Asked(_), Err(error)) => fail(FAILED, &error),
    }
}

fn read_config(serve: &clap::ArgMatches) -> RawConfig {
    let raw = RawConfig::new();
    let raw = match serve.get_one::<std::path::PathBuf>("config") {
        Some(path) => raw.with_file_at(path),
        None => raw,
    };
    arguments::take(raw, serve)
}

fn fail(code: u8, error: &StartError) -> ExitCode {
    // Standard error that is gone is nobody's to tell; the exit code says it too.
    let mut out = std::io::stderr().lock();
    for problem in &error.problems {
        let _ = writeln!(out, "tidegate: {}", Problem::to_string(problem));
    }
    ExitCode::from(code)
}
