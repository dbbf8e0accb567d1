//! Crash states on real filesystems, without a device mapper: a recorder under a filesystem under the real broker.
//!
//! Reading order: [`recorder`] (what the drive was told), [`image`] (what it may hold after a power cut), [`mount`]
//! (filesystems on images), then [`run`], which runs the broker on the one and recovers it from the other.
//!
//! An ack that a client saw when the drive had confirmed `n` flushes must be in every state from flush `n` on: that is the
//! whole promise, and the proof that one flush of the journal covers the data files too.

pub mod image;
pub mod mount;
pub mod recorder;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Client, TopicSpec};

use crate::ledger::{Ledger, Verdict};
use crate::process::BrokerProcess;
use crate::sim::random::Random;
use image::States;
use mount::{Filesystem, Mounted};
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
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Chooses the flushes and what became of the writes after them.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashReport {
    /// States recovered and checked.
    pub images: u64,
    /// Sectors that were pending in them.
    pub pending: u64,
    /// Sectors torn in them.
    pub torn: u64,
    /// States in which recovery was killed once and repeated.
    pub recovered_twice: u64,
    /// Sum of all checks.
    pub verdict: Verdict,
}

const TOPIC: &str = "crash";
const IMAGE_BYTES: u64 = 1 << 30;
/// Small, so that a few seconds of load pass checkpoints and the end of the ring.
const BROKER_ARGUMENTS: &[&str] = &["--shards", "2"];

/// Runs the broker under load on a recorded filesystem, then recovers it from crash states and checks every ack.
pub async fn run(args: &CrashArgs) -> io::Result<CrashReport> {
    let dir = tempfile::tempdir()?;
    let base = dir.path().join("base.img");
    args.fs.make(&base, IMAGE_BYTES)?;
    let ledger = Arc::new(Ledger::default());
    let (records, first_flush) = record(dir.path(), &base, args, &ledger).await?;
    let last_flush = States::flushes(&records);
    if ledger.is_empty() || last_flush <= first_flush {
        return Err(io::Error::other(format!(
            "nothing to check: {} acks, flushes {first_flush} to {last_flush}",
            ledger.len()
        )));
    }

    let mut report = CrashReport::default();
    let mut states = States::new(&base, &dir.path().join("durable.img"), &records)?;
    let mut random = Random::new(args.seed);
    for number in 0..args.images {
        let flush = first_flush + (last_flush - first_flush) * (number + 1) / args.images;
        states.advance_to(flush)?;
        let image = dir.path().join("crash.img");
        let pending = states.build(&image, random.word())?;
        report.pending += pending.sectors;
        report.torn += pending.torn;
        let twice = number % 3 == 2;
        report.recovered_twice += u64::from(twice);
        let verdict = recover(dir.path(), &image, &ledger, flush, twice).await.map_err(|e| {
            io::Error::other(format!("image {number} (flush {flush}, seed {}): {e}", args.seed))
        })?;
        if !verdict.is_clean() {
            eprintln_line(&format!("image {number}, flush {flush}, seed {}: {verdict:?}", args.seed));
        }
        report.verdict = report.verdict.plus(verdict);
        report.images += 1;
    }
    Ok(report)
}

/// Runs the load. Returns what the drive was told and the flush from which on the topic exists.
async fn record(
    dir: &Path,
    base: &Path,
    args: &CrashArgs,
    ledger: &Arc<Ledger>,
) -> io::Result<(Vec<Recorded>, u64)> {
    let work = dir.join("work.img");
    image::copy_sparse(base, &work)?;
    let mount_point = dir.join("recorder");
    std::fs::create_dir_all(&mount_point)?;
    let recorder = Arc::new(Recorder::mount(&mount_point, &work)?);
    let mounted = Mounted::new(&recorder.disk(), &dir.join("live"))?;
    let broker = BrokerProcess::start(&mounted.path.join("data"), BROKER_ARGUMENTS)?;
    let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
    client.admin().create_topic(TopicSpec::new(TOPIC).partitions(6)).await.map_err(io::Error::other)?;
    let first_flush = recorder.flushes();

    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = [1, 16, 400]
        .into_iter()
        .map(|in_flight| {
            let witness = Arc::clone(&recorder);
            tokio::spawn(Arc::clone(ledger).produce(
                broker.server(),
                TOPIC.to_owned(),
                in_flight,
                Arc::clone(&stop),
                Arc::new(move || witness.flushes()),
            ))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    stop.store(true, Ordering::SeqCst);
    for producer in producers {
        producer.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    drop(client);
    broker.kill()?;
    mounted.unmount()?;
    let recorder =
        Arc::into_inner(recorder).ok_or_else(|| io::Error::other("a producer still holds the recorder"))?;
    Ok((recorder.finish()?, first_flush))
}

/// Mounts a crash state, recovers the broker from it and compares with the promises that it must keep.
async fn recover(dir: &Path, image: &Path, ledger: &Ledger, flush: u64, twice: bool) -> io::Result<Verdict> {
    let mounted = Mounted::new(image, &dir.join("crashed"))?;
    let data = mounted.path.join("data");
    if twice {
        // However far recovery has come by then: the next one must come to the same.
        BrokerProcess::start(&data, BROKER_ARGUMENTS)?.kill()?;
    }
    let broker = BrokerProcess::start(&data, BROKER_ARGUMENTS)?;
    let verdict = ledger.check(&broker.server(), TOPIC, flush).await.map_err(io::Error::other)?;
    broker.kill()?;
    mounted.unmount()?;
    Ok(verdict)
}

/// Flushes counted by nobody: a witness for ledgers whose every promise counts.
pub fn always() -> Arc<dyn Fn() -> u64 + Send + Sync> {
    let zero = AtomicU64::new(0);
    Arc::new(move || zero.load(Ordering::SeqCst))
}

#[expect(clippy::print_stderr, reason = "a harness speaks to its operator")]
fn eprintln_line(line: &str) {
    eprintln!("{line}");
}
