//! Crash states on real filesystems, without a device mapper: a recorder under a filesystem under the real broker.
//!
//! Reading order: [`overlay`] (a drive's content), [`recorder`] (what the drive was told), [`image`] (what it may hold after
//! a power cut), [`mount`] (filesystems on images), [`load`] (the broker under load on the one), then [`run`], which recovers
//! it from the other.
//!
//! An ack that a client saw when the drive had confirmed `n` flushes must be in every state from flush `n` on: that is the
//! whole promise, and the proof that one flush of the journal covers the data files too.

pub mod image;
pub mod load;
pub mod mount;
pub mod overlay;
pub mod recorder;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ledger::Verdict;
use crate::process::BrokerProcess;
use crate::sim::random::Random;
use image::States;
use load::{BROKER_ARGUMENTS, Load};
use mount::{Filesystem, Mounted};
use overlay::Overlay;
use recorder::{Recorded, Recorder};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct CrashArgs {
    /// The filesystem under the broker.
    #[arg(long, value_enum, default_value = "ext4")]
    pub fs: Filesystem,
    /// Crash states to recover from.
    #[arg(long, default_value_t = 24)]
    pub images: u64,
    /// Seconds of load.
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
    /// Chooses the flushes and what became of the writes after them.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Crash states that are recovered side by side.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub jobs: u64,
    /// A file that gets the result as JSON.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct CrashReport {
    /// What the broker said of the drive.
    pub flush_rule: String,
    /// Data files whose extents were not initialised when they were written: flushed each for itself.
    pub files_with_own_flush: u64,
    /// States recovered and checked.
    pub images: u64,
    /// Sectors that were pending in them.
    pub pending: u64,
    /// Sectors torn in them.
    pub torn: u64,
    /// States in which recovery was crashed once and repeated.
    pub recoveries_repeated: u64,
    /// Sum of all checks.
    pub verdict: Verdict,
}

impl CrashReport {
    /// Whether every promise was kept, and there was one.
    pub fn is_well(&self) -> bool {
        self.verdict.is_clean() && self.verdict.checked > 0 && self.images > 0
    }

    /// The result for a machine.
    pub fn json(&self, fs: Filesystem) -> serde_json::Value {
        serde_json::json!({
            "harness": "crash",
            "fs": fs.name(),
            "passed": self.is_well(),
            "images": self.images,
            "promises": self.verdict.checked,
            "lost": self.verdict.lost,
            "wrong_bytes": self.verdict.wrong_values,
            "duplicates": self.verdict.duplicates,
            "holes": self.verdict.holes,
            "recoveries_repeated": self.recoveries_repeated,
        })
    }

    fn add(&mut self, other: &CrashReport) {
        self.images += other.images;
        self.pending += other.pending;
        self.torn += other.torn;
        self.recoveries_repeated += other.recoveries_repeated;
        self.verdict = self.verdict.plus(other.verdict);
    }
}

const IMAGE_BYTES: u64 = 2 << 30;

/// Runs the broker under load on a recorded filesystem, then recovers it from crash states and checks every ack.
pub async fn run(args: &CrashArgs) -> io::Result<CrashReport> {
    let dir = scratch()?;
    let base = dir.path().join("base.img");
    args.fs.make(&base, IMAGE_BYTES)?;
    let load = Arc::new(Load::record(dir.path(), &base, args).await?);
    let mut workers = Vec::new();
    for worker in 0..args.jobs {
        let (args, load, base) = (args.clone(), Arc::clone(&load), base.clone());
        let slot = dir.path().join(format!("worker-{worker}"));
        std::fs::create_dir(&slot)?;
        let runtime = tokio::runtime::Handle::current();
        workers.push(tokio::task::spawn_blocking(move || {
            runtime.block_on(recover_some(&args, &load, &base, &slot, worker))
        }));
    }
    let mut report = CrashReport {
        flush_rule: load.flush_rule.clone(),
        files_with_own_flush: load.files_with_own_flush,
        ..CrashReport::default()
    };
    for worker in workers {
        report.add(&worker.await.map_err(io::Error::other)??);
    }
    Ok(report)
}

/// A folder for images: in memory where there is room for them.
pub fn scratch() -> io::Result<tempfile::TempDir> {
    const MEMORY: &str = "/dev/shm";
    const NEEDED: u64 = 4 << 30;
    let free = nix::sys::statvfs::statvfs(MEMORY).map(|s| s.blocks_available() * s.fragment_size());
    if free.is_ok_and(|free| free > NEEDED) { tempfile::tempdir_in(MEMORY) } else { tempfile::tempdir() }
}

/// Recovers every state whose number has this worker's remainder.
async fn recover_some(
    args: &CrashArgs,
    load: &Load,
    base: &Path,
    slot: &Path,
    worker: u64,
) -> io::Result<CrashReport> {
    let mut report = CrashReport::default();
    let mut states = States::new(base, &slot.join("durable.img"), &load.records)?;
    for number in (worker..args.images).step_by(args.jobs as usize) {
        let flush = load.first_flush + (load.last_flush - load.first_flush) * (number + 1) / args.images;
        let place = format!("image {number} (flush {flush}, seed {})", args.seed);
        let failed = |e: io::Error| io::Error::other(format!("{place}: {e}"));
        // Each state follows from its number alone, however many workers there are.
        let mut random = Random::new(args.seed ^ (number << 32));
        states.advance_to(flush)?;
        let (mut state, pending) = states.build(args.fs.sectors(), random.word())?;
        report.pending += pending.sectors;
        report.torn += pending.torn;
        if number % 3 == 2 {
            crash_recovery(args.fs, slot, &mut state, &mut random).await.map_err(failed)?;
            report.recoveries_repeated += 1;
        }
        let verdict = recover(args.fs, slot, state, load, flush).await.map_err(failed)?;
        if !verdict.is_clean() {
            say(&format!("{place}: {verdict:?}"));
        }
        report.verdict = report.verdict.plus(verdict);
        report.images += 1;
    }
    Ok(report)
}

/// Recovers a state, and turns it into one that a power cut in the midst of that recovery may have left.
async fn crash_recovery(
    fs: Filesystem,
    slot: &Path,
    state: &mut Overlay,
    random: &mut Random,
) -> io::Result<()> {
    let (records, flushes) = on_state(fs, slot, state.clone(), async |_| Ok(())).await?.0;
    image::crash_at(state, &records, random.below(flushes + 1), fs.sectors(), random).map(drop)
}

/// Recovers the broker from a state and compares with the promises that it must keep.
async fn recover(
    fs: Filesystem,
    slot: &Path,
    state: Overlay,
    load: &Load,
    flush: u64,
) -> io::Result<Verdict> {
    let check = async |broker: &BrokerProcess| load.check(&broker.server(), flush).await;
    Ok(on_state(fs, slot, state, check).await?.1)
}

/// Mounts a state, starts the broker from it, uses it and kills it. Returns what the drive was told, with the flushes until
/// the kill, and what the use gave.
pub async fn on_state<T>(
    fs: Filesystem,
    slot: &Path,
    state: Overlay,
    use_it: impl AsyncFnOnce(&BrokerProcess) -> io::Result<T>,
) -> io::Result<((Vec<Recorded>, u64), T)> {
    let recorder = Recorder::mount(&slot.join("recorder"), state)?;
    let mounted = Mounted::new(fs, &recorder.disk(), &slot.join("crashed"))?;
    let broker = BrokerProcess::start(&mounted.path.join("data"), BROKER_ARGUMENTS)?;
    let used = use_it(&broker).await?;
    broker.kill()?;
    let flushes = recorder.flushes();
    mounted.unmount()?;
    Ok(((recorder.finish()?, flushes), used))
}

/// Flushes counted by nobody: a witness for ledgers whose every promise counts.
pub fn always() -> Arc<dyn Fn() -> u64 + Send + Sync> {
    Arc::new(|| 0)
}

#[expect(clippy::print_stderr, reason = "a harness tells its operator at once which image failed")]
fn say(line: &str) {
    eprintln!("{line}");
}
