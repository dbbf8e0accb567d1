//! The drive fails: one flush, or one write, ends in EIO, and everything after it works again, as drives do.
//!
//! The recorder below the loop device refuses the request. What the failed flush should have made durable is dropped from the
//! state that is recovered afterwards: whoever was told "stored" on its strength, or on that of a later flush, is found out.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Client, PartitionId, Record};

use super::scene::{Load, TOPIC, all_there, ensure, until};
use crate::crash::mount::{Filesystem, Mounted};
use crate::crash::overlay::Overlay;
use crate::crash::recorder::{Failure, Recorded, Recorder};
use crate::crash::{image, on_state, scratch};
use crate::ledger::{Ledger, value_of};
use crate::process::BrokerProcess;
use crate::sim::random::Random;

const IMAGE_BYTES: u64 = 768 << 20;
const ARGUMENTS: &[&str] = &["--shards", "2"];

/// A flush soon after the load has begun, and a later one.
pub(super) async fn flush_fails(fs: Filesystem, random: &mut Random) -> io::Result<String> {
    let mut texts = Vec::new();
    for others in [random.below(3), 10 + random.below(40)] {
        texts.push(one_failure(fs, Failure::FlushAfter(others)).await?);
    }
    Ok(texts.join("; "))
}

/// A write soon after the load has begun, and a later one.
pub(super) async fn write_fails(fs: Filesystem, random: &mut Random) -> io::Result<String> {
    let mut texts = Vec::new();
    for others in [random.below(3), 10 + random.below(90)] {
        texts.push(one_failure(fs, Failure::WriteAfter(others)).await?);
    }
    Ok(texts.join("; "))
}

async fn one_failure(fs: Filesystem, failure: Failure) -> io::Result<String> {
    let dir = scratch()?;
    let base = dir.path().join("drive.img");
    fs.make(&base, IMAGE_BYTES)?;
    let base = Arc::new(File::open(&base)?);
    let recorder = Recorder::mount(&dir.path().join("drive"), Overlay::new(Arc::clone(&base))?)?;
    let mounted = Mounted::new(fs, &recorder.disk(), &dir.path().join("mnt"))?;
    let data = mounted.path.join("data");
    let broker = BrokerProcess::start(&data, ARGUMENTS)?;
    Load::create(&broker.server()).await?;
    let ledger = Arc::new(Ledger::default());
    let load = Load::start(&ledger, &broker.server(), &[1, 50, 1_000]);
    load.acks(2_000).await?;
    let failed_at = meet(&recorder, &load, failure).await.map_err(|e| at(failure, &e))?;
    every_partition_that_failed_says_so(&broker, failure).await.map_err(|e| at(failure, &e))?;
    load.finish().await?;
    all_there(&ledger, &broker.server(), "while the drive had failed").await.map_err(|e| at(failure, &e))?;
    broker.kill()?;
    mounted.unmount()?;

    // The drive works again.
    let mounted = Mounted::new(fs, &recorder.disk(), &dir.path().join("mnt"))?;
    let broker = BrokerProcess::start(&data, ARGUMENTS)?;
    all_there(&ledger, &broker.server(), "after the restart").await.map_err(|e| at(failure, &e))?;
    broker.kill()?;
    mounted.unmount()?;
    let records = recorder.finish()?;
    let kept = match failure {
        Failure::FlushAfter(_) => failed_at,
        // Everything that was flushed; what the failed write held had to be given up.
        Failure::WriteAfter(_) => image::flushes(&records),
    };
    let checked = recover_without_the_rest(fs, dir.path(), &base, &records, kept, &ledger).await;
    let checked = checked.map_err(|e| at(failure, &e))?;
    Ok(format!("{failure:?}: {} told unknown, {checked} acks, all there", ledger.unknown()))
}

/// Lets the failure happen until a client is told of it. A failed write of zeros to a file that nobody uses yet concerns nobody:
/// then acks go on, and it happens again. Returns the flushes that were confirmed before it.
async fn meet(recorder: &Recorder, load: &Load, failure: Failure) -> io::Result<u64> {
    const TRIES: u32 = 20;
    for _ in 0..TRIES {
        let failed_before = recorder.failed_at();
        recorder.fail(Some(failure));
        // A client may hear of the one before only now.
        until("the failure", async || Ok(recorder.failed_at().is_some() || load.ledger.unknown() > 0))
            .await?;
        let before = load.ledger.len();
        let goes_on = async || {
            let harmless = matches!(failure, Failure::WriteAfter(_)) && load.ledger.len() > before + 5_000;
            Ok(load.ledger.unknown() > 0 || harmless)
        };
        until("an unknown outcome, told to a client", goes_on).await?;
        if load.ledger.unknown() > 0 {
            recorder.fail(None);
            let failed_at = recorder.failed_at().or(failed_before);
            return failed_at.ok_or_else(|| io::Error::other("told of a failure that has not happened"));
        }
    }
    Err(io::Error::other(format!("none of {TRIES} failed writes concerned a client")))
}

/// After a failed flush no partition takes a record: it belongs to the drive. After a failed write those of its shard take
/// none. Whoever asks is told that the shard is read-only, at once, and so are those that waited.
async fn every_partition_that_failed_says_so(broker: &BrokerProcess, failure: Failure) -> io::Result<()> {
    let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
    client.admin().status().await.map_err(io::Error::other)?;
    let mut refused = 0;
    for partition in (0..4).map(PartitionId) {
        let producer = client.producer(TOPIC).without_idempotence().delivery_timeout(Duration::from_secs(5));
        let producer = producer.start().await.map_err(io::Error::other)?;
        // A number that nobody else sends, so that the ledger takes the record for one of its own.
        let number = u64::MAX - partition.0 as u64;
        let (key, value) = (number.to_le_bytes(), value_of(number));
        let record = Record::keyed(&key, &value).partition(partition);
        match tokio::time::timeout(Duration::from_secs(10), producer.send(record)).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) if e.is_retriable() => {
                return Err(io::Error::other(format!("{partition}: not told for good: {e}")));
            }
            Ok(Err(_)) => refused += 1,
            Err(_) => return Err(io::Error::other(format!("{partition}: told nothing"))),
        }
    }
    let least = if matches!(failure, Failure::FlushAfter(_)) { 4 } else { 1 };
    ensure(refused >= least, || {
        format!("{refused} of 4 partitions refuse records, at least {least} expected")
    })
}

/// Recovers from what `kept` flushes had made durable, and nothing else.
async fn recover_without_the_rest(
    fs: Filesystem,
    dir: &Path,
    base: &Arc<File>,
    records: &[Recorded],
    kept: u64,
    ledger: &Ledger,
) -> io::Result<u64> {
    let mut state = Overlay::new(Arc::clone(base))?;
    image::durable_at(&mut state, records, kept)?;
    let when = format!("with nothing but what the first {kept} flushes had covered");
    let check = async |broker: &BrokerProcess| all_there(ledger, &broker.server(), &when).await;
    Ok(on_state(fs, dir, state, check).await?.1.checked)
}

fn at(failure: Failure, error: &io::Error) -> io::Error {
    io::Error::other(format!("{failure:?}: {error}"))
}
