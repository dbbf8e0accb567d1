//! Scenarios that are played one after the other and told as passed, failed or skipped, for the harnesses that have such.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArgs {
    /// Only scenarios whose name contains this.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Counts a scenario that this machine cannot run as no failure.
    #[arg(long)]
    pub allow_skips: bool,
    /// Chooses what a scenario leaves to chance: moments, garbage.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A file that gets the result as JSON.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

/// How a scenario has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All that it looks at was as it must be; with what happened, for a person.
    Passed(String),
    /// Something was not.
    Failed(String),
    /// This machine lacks what it needs.
    Skipped(String),
}

impl Ended {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Ended::Passed(_) => "passed",
            Ended::Failed(_) => "failed",
            Ended::Skipped(_) => "skipped",
        }
    }

    /// What there is to say.
    pub fn text(&self) -> &str {
        match self {
            Ended::Passed(text) | Ended::Failed(text) | Ended::Skipped(text) => text,
        }
    }
}

/// One scenario's result.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its name.
    pub name: &'static str,
    /// How it has ended.
    pub ended: Ended,
    /// How long it took.
    pub lasted: Duration,
}

impl Finding {
    /// A line for a person.
    pub fn line(&self) -> String {
        let (word, text) = (self.ended.word(), self.ended.text());
        format!("{word:7} {:18} {:5.1} s  {text}", self.name, self.lasted.as_secs_f64())
    }
}

/// Plays one, unless something is missing. What hangs for longer than `lasts_max` has failed.
pub async fn play(
    name: &'static str,
    missing: Option<String>,
    lasts_max: Duration,
    scenario: impl Future<Output = io::Result<String>>,
) -> Finding {
    let begun = Instant::now();
    let ended = match missing {
        Some(what) => Ended::Skipped(what),
        None => match tokio::time::timeout(lasts_max, scenario).await {
            Ok(Ok(text)) => Ended::Passed(text),
            Ok(Err(e)) => Ended::Failed(e.to_string()),
            Err(_) => Ended::Failed(format!("not over after {lasts_max:?}")),
        },
    };
    Finding { name, ended, lasted: begun.elapsed() }
}

/// How many of these results have that word.
pub fn count(findings: &[Finding], word: &str) -> u64 {
    findings.iter().filter(|f| f.ended.word() == word).count() as u64
}

/// Whether these results are to end the command well: something ran, nothing failed, and nothing was skipped unless that is
/// allowed.
pub fn is_well(findings: &[Finding], allow_skips: bool) -> bool {
    count(findings, "passed") > 0
        && count(findings, "failed") == 0
        && (allow_skips || count(findings, "skipped") == 0)
}

/// The results for a machine.
pub fn json(harness: &str, findings: &[Finding], is_well: bool) -> serde_json::Value {
    let scenarios: Vec<_> = findings
        .iter()
        .map(|f| {
            serde_json::json!({
                "name": f.name,
                "result": f.ended.word(),
                "text": f.ended.text(),
                "seconds": (f.lasted.as_secs_f64() * 100.0).round() / 100.0,
            })
        })
        .collect();
    serde_json::json!({ "harness": harness, "passed": is_well, "scenarios": scenarios })
}

/// The first of these programs and files that the machine lacks; mounting needs root as well.
pub fn missing(needs: &[&'static str]) -> Option<&'static str> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |need: &str| match need.starts_with('/') {
        true => Path::new(need).exists(),
        false => std::env::split_paths(&paths).any(|folder| folder.join(need).is_file()),
    };
    if needs.contains(&"losetup") && !nix::unistd::geteuid().is_root() {
        return Some("root");
    }
    needs.iter().find(|need| !is_there(need)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(ended: Ended) -> Finding {
        Finding { name: "any", ended, lasted: Duration::ZERO }
    }

    #[test]
    fn a_skip_is_a_failure_unless_it_is_allowed_and_nothing_run_is_one_too() {
        let passed = finding(Ended::Passed(String::new()));
        let failed = finding(Ended::Failed(String::new()));
        let skipped = finding(Ended::Skipped(missing(&["no-such-program"]).unwrap().to_owned()));
        assert!(is_well(std::slice::from_ref(&passed), false));
        assert!(!is_well(&[passed.clone(), skipped.clone()], false));
        assert!(is_well(&[passed.clone(), skipped.clone()], true));
        assert!(!is_well(&[passed, failed], true));
        assert!(!is_well(&[skipped], true), "nothing was shown");
        assert!(!is_well(&[], true));
    }
}
