//! The broker under load on a recorded drive: little records on several partitions, and much on one, so that both ways to the
//! drive are taken: the journal, and data files with initialised extents and without.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::{Client, TopicSpec};

use super::CrashArgs;
use super::image;
use super::mount::{Filesystem, Mounted, run};
use super::overlay::Overlay;
use super::recorder::{Recorded, Recorder};
use crate::ledger::{Ledger, Verdict};
use crate::process::{BrokerProcess, counted};

/// How the broker is started, on the recorded drive and on every crash state.
pub const BROKER_ARGUMENTS: &[&str] = &["--shards", "2", "--pin=false"];

/// The counter of data files that were handed out without having been initialised.
const OWN_FLUSH: &str = "files_with_own_flush";
const FEW: &str = "few";
const MUCH: &str = "much";
/// Records of the topic with much, at least; more only until data files are handed out that were merely allocated, which is a
/// matter of how fast the drive is just then. Each crash state is read whole.
const MUCH_RECORDS: usize = 24_000;
/// Longest wait for that.
const MUCH_MAX: Duration = Duration::from_secs(20);

/// What a run of the broker was told and has promised.
pub struct Load {
    /// Everything that the drive was told, from the mount on.
    pub records: Vec<Recorded>,
    /// The flush from which on the topics exist.
    pub first_flush: u64,
    /// The last one.
    pub last_flush: u64,
    /// What the broker said of the drive.
    pub flush_rule: String,
    /// Data files that were written without having been initialised.
    pub files_with_own_flush: u64,
    ledgers: Vec<(&'static str, Arc<Ledger>)>,
}

impl Load {
    /// Runs it on the filesystem in `base`.
    ///
    /// # Errors
    /// Also if what is to be shown did not happen: no acks, another flush rule than the filesystem needs, no extent that was
    /// not initialised.
    pub async fn record(dir: &Path, base: &Path, args: &CrashArgs) -> io::Result<Load> {
        let content = Overlay::new(Arc::new(File::open(base)?))?;
        let recorder = Arc::new(Recorder::mount(&dir.join("recorder"), content)?);
        let mounted = Mounted::new(args.fs, &recorder.disk(), &dir.join("live"))?;
        let data = mounted.path.join("data");
        if args.fs == Filesystem::XfsReflink {
            share_blocks(&mounted.path, &data).await?;
        }
        let broker = BrokerProcess::start(&data, BROKER_ARGUMENTS)?;
        let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
        if args.fs != Filesystem::XfsReflink {
            create_topics(&client).await?;
        }
        let first_flush = recorder.flushes();
        let ledgers = produce(&client, &broker.server(), &recorder, args.seconds).await?;
        let status = client.admin().status().await.map_err(io::Error::other)?;
        let files_with_own_flush = counted(&status, OWN_FLUSH);
        let flush_rule =
            status.facts.iter().find(|(name, _)| name == "flush_rule").map(|(_, rule)| rule.clone());
        drop(client);
        broker.kill()?;
        mounted.unmount()?;
        let recorder = Arc::into_inner(recorder)
            .ok_or_else(|| io::Error::other("a producer still holds the recorder"))?;
        let records = recorder.finish()?;
        let load = Load {
            first_flush,
            last_flush: image::flushes(&records),
            records,
            flush_rule: flush_rule.unwrap_or_default(),
            files_with_own_flush: files_with_own_flush as u64,
            ledgers,
        };
        load.is_worth_it(args.fs)?;
        Ok(load)
    }

    /// Reads all topics and compares with what was promised until `flush`.
    pub async fn check(&self, server: &str, flush: u64) -> io::Result<Verdict> {
        let mut sum = Verdict::default();
        for (topic, ledger) in &self.ledgers {
            sum = sum.plus(ledger.check(server, topic, flush).await.map_err(io::Error::other)?);
        }
        Ok(sum)
    }

    /// Whether the run has done what its images are to show.
    fn is_worth_it(&self, fs: Filesystem) -> io::Result<()> {
        let vacuous = |what: String| Err(io::Error::other(format!("nothing to check: {what}")));
        let rule = match fs {
            Filesystem::Ext4 | Filesystem::Xfs => "one flush a cycle",
            Filesystem::XfsReflink => "one flush a file and cycle",
        };
        if !self.flush_rule.starts_with(rule) {
            return vacuous(format!("the flush rule is {:?}, {rule:?} was expected", self.flush_rule));
        }
        if self.last_flush <= self.first_flush || self.ledgers.iter().any(|(_, ledger)| ledger.is_empty()) {
            let acks: Vec<_> = self.ledgers.iter().map(|(topic, ledger)| (topic, ledger.len())).collect();
            return vacuous(format!("acks {acks:?}, flushes {} to {}", self.first_flush, self.last_flush));
        }
        if self.files_with_own_flush == 0 {
            return vacuous("no data file was written without having been initialised".into());
        }
        Ok(())
    }
}

/// Makes `data` a copy of a data directory with two topics, which shares all its blocks with the original.
async fn share_blocks(folder: &Path, data: &Path) -> io::Result<()> {
    let original = folder.join("original");
    let broker = BrokerProcess::start(&original, BROKER_ARGUMENTS)?;
    let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
    create_topics(&client).await?;
    drop(client);
    if !broker.terminate()?.success() {
        return Err(io::Error::other("the broker of the original did not stop cleanly"));
    }
    run(Command::new("cp").args(["-a", "--reflink=always"]).arg(&original).arg(data))
}

async fn create_topics(client: &Client) -> io::Result<()> {
    for (topic, partitions) in [(FEW, 6), (MUCH, 1)] {
        let spec = TopicSpec::new(topic).partitions(partitions);
        client.admin().create_topic(spec).await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Produces for that long, and returns what was promised by topic.
async fn produce(
    client: &Client,
    server: &str,
    recorder: &Arc<Recorder>,
    seconds: u64,
) -> io::Result<Vec<(&'static str, Arc<Ledger>)>> {
    let ledgers = vec![(FEW, Arc::new(Ledger::default())), (MUCH, Arc::new(Ledger::default()))];
    let (stop, stop_much) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut producers = Vec::new();
    let few_and_much = [(0, 1), (0, 16), (0, 200), (1, 4_000)];
    for (which, in_flight) in few_and_much {
        let (topic, ledger) = &ledgers[which];
        let witness = Arc::clone(recorder);
        producers.push(tokio::spawn(Arc::clone(ledger).produce(
            server.to_owned(),
            (*topic).to_owned(),
            in_flight,
            Arc::clone(if which == 0 { &stop } else { &stop_much }),
            Arc::new(move || witness.flushes()),
        )));
    }
    let much = Arc::clone(&ledgers[1].1);
    let enough = async {
        while much.len() < MUCH_RECORDS
            || counted(&client.admin().status().await.map_err(io::Error::other)?, OWN_FLUSH) == 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop_much.store(true, Ordering::SeqCst);
        Ok::<(), io::Error>(())
    };
    let whole = tokio::time::sleep(Duration::from_secs(seconds));
    let ((), reached) = tokio::join!(whole, tokio::time::timeout(MUCH_MAX, enough));
    // Not reached in time is told by what is counted at the end.
    reached.unwrap_or(Ok(()))?;
    for stop in [&stop, &stop_much] {
        stop.store(true, Ordering::SeqCst);
    }
    for producer in producers {
        producer.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    Ok(ledgers)
}
