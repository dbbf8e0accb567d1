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
use std::time::Duration;

use crate::scenario::{self, Finding, ScenarioArgs};

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
pub async fn run(args: &ScenarioArgs, mut tell: impl FnMut(&Finding)) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.contains(&args.only)) {
        let finding = scenario::play(name, scenario.missing(), SCENARIO_MAX, scenario.play(args.seed)).await;
        tell(&finding);
        findings.push(finding);
    }
    findings
}
