//! Faults of the machine under the real broker: a power cut, a full drive, a drive that fails, too few descriptors, a pause, a
//! kill. Each scenario puts the SDK's load on a broker of its own, lets the fault happen, and looks at what the clients were
//! told and at what is there afterwards.
//!
//! Reading order: [`run`] (which scenarios there are and what each needs), [`scene`] (a broker on a filesystem under load), then
//! a file a kind of fault.

pub mod descriptors;
pub mod drive;
pub mod pause;
pub mod power;
pub mod scene;
pub mod space;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::crash::mount::Filesystem;
use crate::kill;
use crate::sim::random::Random;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct FaultsArgs {
    /// Only scenarios whose name contains this.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Counts a scenario that this machine cannot run as no failure.
    #[arg(long)]
    pub allow_skips: bool,
    /// Chooses the moments.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    PowerCut(Filesystem),
    DriveFull,
    DriveBelowFloor,
    FlushFails(Filesystem),
    WriteFails(Filesystem),
    FewDescriptors,
    Pause,
    Kill,
}

const SCENARIOS: &[(&str, Scenario)] = &[
    ("power-cut-ext4", Scenario::PowerCut(Filesystem::Ext4)),
    ("power-cut-xfs", Scenario::PowerCut(Filesystem::Xfs)),
    ("drive-full", Scenario::DriveFull),
    ("drive-below-floor", Scenario::DriveBelowFloor),
    ("flush-fails-ext4", Scenario::FlushFails(Filesystem::Ext4)),
    ("flush-fails-xfs", Scenario::FlushFails(Filesystem::Xfs)),
    ("write-fails-ext4", Scenario::WriteFails(Filesystem::Ext4)),
    ("write-fails-xfs", Scenario::WriteFails(Filesystem::Xfs)),
    ("few-descriptors", Scenario::FewDescriptors),
    ("pause", Scenario::Pause),
    ("kill", Scenario::Kill),
];

/// Longest time for one scenario: what hangs has failed.
const SCENARIO_MAX: Duration = Duration::from_secs(60);

impl Scenario {
    /// Programs and files without which it cannot run.
    fn needs(self) -> &'static [&'static str] {
        const EXT4: &[&str] = &["/dev/loop-control", "losetup", "mkfs.ext4"];
        const EXT4_FUSE: &[&str] = &["/dev/loop-control", "/dev/fuse", "losetup", "mkfs.ext4"];
        const XFS_FUSE: &[&str] = &["/dev/loop-control", "/dev/fuse", "losetup", "mkfs.xfs"];
        match self {
            Scenario::PowerCut(Filesystem::Ext4) => &["/dev/loop-control", "losetup", "mkfs.ext4", "xfs_io"],
            Scenario::PowerCut(_) => &["/dev/loop-control", "losetup", "mkfs.xfs", "xfs_io"],
            Scenario::DriveFull | Scenario::DriveBelowFloor => EXT4,
            Scenario::FlushFails(Filesystem::Ext4) | Scenario::WriteFails(Filesystem::Ext4) => EXT4_FUSE,
            Scenario::FlushFails(_) | Scenario::WriteFails(_) => XFS_FUSE,
            Scenario::FewDescriptors => &["prlimit"],
            Scenario::Pause | Scenario::Kill => &[],
        }
    }

    async fn play(self, random: &mut Random) -> io::Result<String> {
        match self {
            Scenario::PowerCut(fs) => power::power_cut(fs).await,
            Scenario::DriveFull => space::drive_full().await,
            Scenario::DriveBelowFloor => space::drive_below_floor().await,
            Scenario::FlushFails(fs) => drive::flush_fails(fs, random).await,
            Scenario::WriteFails(fs) => drive::write_fails(fs, random).await,
            Scenario::FewDescriptors => descriptors::few_descriptors().await,
            Scenario::Pause => pause::pause().await,
            Scenario::Kill => {
                let args = kill::KillArgs { cycles: 5, seed: random.word(), dir: None, output: None };
                let report = kill::run(&args).await?;
                scene::ensure(report.is_well(), || format!("cycle {}: {:?}", report.cycles, report.verdict))?;
                Ok(format!("{} kills, {} acks, all there", report.cycles, report.acks))
            }
        }
    }
}

/// Runs them one after the other, and tells `tell` of each as it ends.
pub async fn run(args: &FaultsArgs, mut tell: impl FnMut(&Finding)) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, (name, scenario)) in (0..).zip(SCENARIOS).filter(|(_, (name, _))| name.contains(&args.only))
    {
        let begun = Instant::now();
        let ended = match missing(scenario.needs()) {
            Some(what) => Ended::Skipped(format!("{what} is missing")),
            None => {
                let mut random = Random::new(args.seed ^ (number << 32));
                match tokio::time::timeout(SCENARIO_MAX, scenario.play(&mut random)).await {
                    Ok(Ok(text)) => Ended::Passed(text),
                    Ok(Err(e)) => Ended::Failed(e.to_string()),
                    Err(_) => Ended::Failed(format!("not over after {SCENARIO_MAX:?}")),
                }
            }
        };
        let finding = Finding { name, ended, lasted: begun.elapsed() };
        tell(&finding);
        findings.push(finding);
    }
    findings
}

/// Whether these results are to end the command well: something ran, nothing failed, and nothing was skipped unless that is
/// allowed.
pub fn is_well(findings: &[Finding], allow_skips: bool) -> bool {
    let count = |word: &str| findings.iter().filter(|f| f.ended.word() == word).count();
    count("passed") > 0 && count("failed") == 0 && (allow_skips || count("skipped") == 0)
}

/// The results for a machine.
pub fn json(findings: &[Finding], is_well: bool) -> serde_json::Value {
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
    serde_json::json!({ "harness": "faults", "passed": is_well, "scenarios": scenarios })
}

/// The first of these that the machine lacks; mounting needs root as well.
fn missing(needs: &[&'static str]) -> Option<&'static str> {
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
