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
use std::time::Duration;

use crate::crash::mount::Filesystem;
use crate::kill;
use crate::scenario::{self, Finding, ScenarioArgs};
use crate::sim::random::Random;

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
pub async fn run(args: &ScenarioArgs, mut tell: impl FnMut(&Finding)) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, (name, scenario)) in (0..).zip(SCENARIOS).filter(|(_, (name, _))| name.contains(&args.only))
    {
        let mut random = Random::new(args.seed ^ (number << 32));
        let missing = scenario::missing(scenario.needs()).map(|what| format!("{what} is missing"));
        let finding = scenario::play(name, missing, SCENARIO_MAX, scenario.play(&mut random)).await;
        tell(&finding);
        findings.push(finding);
    }
    findings
}
