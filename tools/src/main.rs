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

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::Cli;
use exit::Failure;
use output::{Format, Out};

/// Nothing but `tg` or `tg topic`: clap shows the help.
const MISSING: ErrorKind = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

fn main() -> ExitCode {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        // Help and version are results.
        Err(error) if !error.use_stderr() || error.kind() == MISSING => error.exit(),
        Err(error) => return ended(&mistyped(&error, &typed), format_wished(&typed)),
    };
    let mut out = Out::new(cli.output);
    let result = cmd::run(cli, &mut out).and_then(|()| out.flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was found before the error is a result too.
            let _ = out.flush();
            ended(&failure, out.format())
        }
    }
}

fn ended(failure: &Failure, format: Format) -> ExitCode {
    if !failure.is_silent() {
        output::tell(failure, format);
    }
    ExitCode::from(failure.exit_number())
}

/// What clap says of a command line that makes no sense, as our own error.
fn mistyped(error: &clap::Error, typed: &[OsString]) -> Failure {
    let text = error.to_string();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    let mut paragraphs = text.trim_start_matches("error: ").split("\n\n");
    let cause = paragraphs.next().unwrap_or_default().trim();
    let mut tips = paragraphs.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("tip: "));
    let cli = <Cli as clap::CommandFactory>::command();
    let mut path = vec!["tg".to_owned()];
    let mut command = &cli;
    for word in typed.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(found) = command.find_subcommand(word) {
            path.push(found.get_name().to_owned());
            command = found;
        }
    }
    let help = format!("`{} --help` shows what can be typed", path.join(" "));
    Failure::usage(cause).place(path.join(" ")).fix(match tips.next() {
        Some(tip) => format!("{tip}; {help}"),
        None => help,
    })
}

/// The form of the output, of a command line that could not be understood as a whole.
fn format_wished(typed: &[OsString]) -> Format {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let json = words.iter().any(|word| ["-ojson", "-o=json", "--output=json"].contains(word))
        || words.windows(2).any(|pair| ["-o", "--output"].contains(&pair[0]) && pair[1] == "json");
    if json { Format::Json } else { Format::Human }
}
