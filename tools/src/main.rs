//! `tg`, the operator's command line of the Tidegate log broker.
//!
//! Reading order: `args` (what can be typed), `cmd` (what each command does), `demo`, then what they share: `broker`, `connect`,
//! `format`, `time`, `output`, `exit`.

mod args;
mod broker;
mod cmd;
mod connect;
mod demo;
mod exit;
mod format;
mod output;
mod time;

use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use output::Out;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = Out::new(cli.output);
    let result = cmd::run(cli, &mut out).and_then(|()| out.flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was found before the error is a result too.
            let _ = out.flush();
            if !failure.is_silent() {
                match out.is_json() {
                    true => output::note(failure.to_json()),
                    false => output::note(&failure),
                }
            }
            ExitCode::from(failure.exit_number())
        }
    }
}
