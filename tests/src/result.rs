//! The result file of a harness: what it found, and with it when, of which commit, and how to run it again.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::process::{ASKED_REACTOR, asked_reactor};

/// What every result says of the run that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// UTC, `YYYY-MM-DD`, when the run began.
    pub date: String,
    /// Short hash, with `+changes` if files of the repository differ from it; `unknown` outside a repository.
    pub commit: String,
    /// What to type to run it again.
    pub command: String,
}

/// The origin of this process's results. The first call fixes it: a long run is of the commit with which it began.
pub fn origin() -> &'static Origin {
    static ORIGIN: OnceLock<Origin> = OnceLock::new();
    ORIGIN.get_or_init(|| {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Origin {
            date: date(seconds),
            commit: commit(),
            command: command(asked_reactor(), std::env::args_os()),
        }
    })
}

/// Writes `result`, an object that names its harness, to `path`, if there is one, with its origin.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: Option<&Path>, mut result: Value) -> io::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let Origin { date, commit, command } = origin();
    for (key, value) in [("date", date), ("commit", commit), ("command", command)] {
        result[key] = json!(value);
    }
    std::fs::write(path, format!("{result:#}\n"))
}

/// The result of a run that did not come to its end: what it has found is unknown, and it has not passed.
pub fn broken_off(harness: &str, why: &str) -> Value {
    json!({ "harness": harness, "passed": false, "failure": why })
}

/// The day of a time in seconds since the Unix epoch.
fn date(seconds: u64) -> String {
    // Years begin in March, so that a leap day is the last of its year: Howard Hinnant's civil_from_days.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn commit() -> String {
    let said = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = said(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    // Files that git does not know, such as results, change nothing of what is run.
    match said(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => hash,
        _ => format!("{hash}+changes"),
    }
}

/// The command line of this process as somebody would type it at the root of the repository, without the result's file; with the
/// reactor that was asked for in its environment.
fn command(reactor: Option<String>, arguments: impl IntoIterator<Item = OsString>) -> String {
    let mut text = reactor.map(|reactor| format!("{ASKED_REACTOR}={reactor} ")).unwrap_or_default();
    text += "target/release/tests";
    let mut arguments = arguments.into_iter().skip(1).map(|a| a.to_string_lossy().into_owned());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-o" | "--output" => drop(arguments.next()),
            _ if argument.starts_with("-o") || argument.starts_with("--output=") => {}
            _ => text += &format!(" {argument}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (1_709_251_199, "2024-02-29")];
        let later =
            [(1_709_251_200, "2024-03-01"), (1_798_761_599, "2026-12-31"), (4_107_542_400, "2100-03-01")];
        for (seconds, day) in days.into_iter().chain(later) {
            assert_eq!(date(seconds), day);
        }
    }

    #[test]
    fn the_command_is_told_without_the_file_of_its_result() {
        for typed in
            ["kill -o k.json --cycles 5", "kill --output k.json --cycles 5", "kill --cycles 5 -ok.json"]
        {
            let arguments = format!("/somewhere/tests {typed}");
            let told = command(None, arguments.split(' ').map(OsString::from));
            assert_eq!(told, "target/release/tests kill --cycles 5");
        }
        assert_eq!(
            command(Some("glommio".into()), ["tests".into(), "faults".into(), "--only=x".into()]),
            "TIDEGATE_TEST_REACTOR=glommio target/release/tests faults --only=x"
        );
    }

    #[test]
    fn a_result_says_when_of_what_and_how() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("kill.json");
        write(Some(&path), json!({ "harness": "kill", "passed": true })).expect("written");
        let read: Value = serde_json::from_slice(&std::fs::read(path).expect("there")).expect("JSON");
        assert_eq!((&read["harness"], &read["passed"]), (&json!("kill"), &json!(true)));
        for key in ["date", "commit", "command"] {
            assert!(read[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {read}");
        }
    }
}
