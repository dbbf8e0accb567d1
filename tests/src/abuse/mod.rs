//! Abuse of the real broker's connections: clients that are slow, deaf, silent, gone, too many, absurd or hostile. A well-behaved
//! client works beside them and is measured before and during.
//!
//! Reading order: [`run`] (which scenarios there are), [`honest`] (the well-behaved client), [`scene`] (a broker under abuse, and
//! what must hold of it), [`raw`] (a connection without manners), then a file a kind of abuse.
//!
//! The abuse is bounded in rate, not only in count: on a machine whose few cores broker, clients and abusers share, an abuser at
//! full speed would measure the scheduler.

pub mod absurd;
pub mod bombs;
pub mod crowd;
pub mod deaf;
pub mod honest;
pub mod raw;
pub mod scene;
pub mod slow;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::scenario::{self, Finding};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct AbuseArgs {
    /// Only scenarios whose name contains this.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Counts a scenario that this machine cannot run as no failure.
    #[arg(long)]
    pub allow_skips: bool,
    /// Chooses the garbage.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A file that gets the result as JSON.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    SlowLoris,
    HalfOpen,
    Idle,
    ConnectStorm,
    DeafConsumers,
    AbsurdLengths,
    Bombs,
    Garbage,
}

const SCENARIOS: &[(&str, Scenario)] = &[
    ("slow-loris", Scenario::SlowLoris),
    ("half-open", Scenario::HalfOpen),
    ("idle-10000", Scenario::Idle),
    ("connect-storm", Scenario::ConnectStorm),
    ("deaf-consumers", Scenario::DeafConsumers),
    ("absurd-lengths", Scenario::AbsurdLengths),
    ("bombs", Scenario::Bombs),
    ("garbage", Scenario::Garbage),
];

/// Longest time for one scenario: what hangs has failed.
const SCENARIO_MAX: Duration = Duration::from_secs(60);

impl Scenario {
    /// Why it cannot run here, if so.
    fn missing(self) -> Option<String> {
        match self {
            Scenario::Idle => crowd::missing_descriptors(),
            _ => None,
        }
    }

    async fn play(self, seed: u64) -> io::Result<String> {
        match self {
            Scenario::SlowLoris => slow::slow_loris().await,
            Scenario::HalfOpen => slow::half_open().await,
            Scenario::Idle => crowd::idle().await,
            Scenario::ConnectStorm => crowd::connect_storm().await,
            Scenario::DeafConsumers => deaf::deaf_consumers().await,
            Scenario::AbsurdLengths => absurd::absurd_lengths().await,
            Scenario::Bombs => bombs::bombs().await,
            Scenario::Garbage => absurd::garbage(seed).await,
        }
    }
}

/// Runs them one after the other, and tells `tell` of each as it ends.
pub async fn run(args: &AbuseArgs, mut tell: impl FnMut(&Finding)) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.contains(&args.only)) {
        let finding = scenario::play(name, scenario.missing(), SCENARIO_MAX, scenario.play(args.seed)).await;
        tell(&finding);
        findings.push(finding);
    }
    findings
}
