//! `tg demo`: this machine's own telemetry, stored durably, read back from disk and compared.
//!
//! Reading order: [`run`], `flow` (sampler threads, producer, live reader), `sampler` (procfs), `digest` (what is
//! compared), `report` (what is printed).

mod digest;
mod flow;
mod report;
mod sampler;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tidegate::{Start, TopicSpec};

use crate::args::DemoArgs;
use crate::broker::{BrokerProcess, Spawn};
use crate::cmd::status::sums;
use crate::connect::runtime;
use crate::exit::{Code, Failure};
use crate::output::{Out, note, progress_bar};
use crate::time::now_ns;

use flow::Live;
use report::{Counters, Report};

/// The demo's topic.
const TOPIC: &str = "telemetry";

/// Everything from the empty directory to the verdict.
pub(crate) fn run(args: &DemoArgs, out: &mut Out) -> Result<(), Failure> {
    let data = DemoDir::create(&args.dir, if args.keep { AtEnd::Keep } else { AtEnd::Remove })?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = store_and_compare(args, &data.path, out) => result,
            () = interrupted() => Err(Failure::new(Code::Interrupted, "interrupted; nothing was verified")),
        }
    });
    // The broker process has to be gone before its directory goes.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    if args.keep {
        note(format!("kept: {}  (look inside with: tg dump {0})", data.path.display()));
    }
    result
}

async fn store_and_compare(args: &DemoArgs, data: &Path, out: &mut Out) -> Result<(), Failure> {
    let spawn = Spawn { data, shards: None, allow_volatile: args.allow_volatile, settings: &[] };
    let broker = BrokerProcess::start(spawn).await?;
    let stored = store(&broker, args, data, out).await?;
    broker.stop().await?;
    report::progress("stopped the broker; a new process reads everything back from disk", out)?;
    let broker = BrokerProcess::start(spawn).await?;
    let cold = read_back(&broker, stored.flow.bytes_acked).await?;
    broker.stop().await?;
    let report = Report { args, stored, cold };
    report.print(out)?;
    report.verdict()
}

/// What is known when the first broker has stopped.
struct Stored {
    facts: Vec<(String, String)>,
    /// The broker's counters before the first sample and after the last acknowledgement.
    before: Counters,
    after: Counters,
    flow: flow::Outcome,
}

async fn store(
    broker: &BrokerProcess,
    args: &DemoArgs,
    data: &Path,
    out: &mut Out,
) -> Result<Stored, Failure> {
    let client = broker.client().await?;
    let admin = client.admin();
    admin.create_topic(TopicSpec::new(TOPIC).partitions(args.partitions)).await?;
    let status = admin.status().await?;
    report::opening(args, data, &status.facts, out)?;
    let flow = flow::run(&client, args, out).await?;
    let after = sums(&admin.status().await?);
    Ok(Stored { before: sums(&status), facts: status.facts, after, flow })
}

/// What a reader of the new process has seen.
struct Cold {
    read: Live,
    seconds: f64,
    counters: Counters,
}

async fn read_back(broker: &BrokerProcess, bytes: u64) -> Result<Cold, Failure> {
    let bar = progress_bar(Some(bytes), "bytes");
    let client = broker.client().await?;
    let begun = Instant::now();
    let mut consumer = client.consumer(TOPIC).from(Start::Earliest).until_end().start().await?;
    let mut read = Live::default();
    while let Some(batch) = consumer.next_batch().await {
        read.add(&batch?, now_ns())?;
        bar.set_position(read.bytes);
    }
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    consumer.close().await;
    Ok(Cold { read, seconds, counters: sums(&client.admin().status().await?) })
}

/// ctrl-C or SIGTERM.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM can be installed");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtEnd {
    Keep,
    Remove,
}

/// The demo's data directory; removed when dropped, also after an error.
struct DemoDir {
    path: PathBuf,
    at_end: AtEnd,
}

impl DemoDir {
    fn create(parent: &Path, at_end: AtEnd) -> Result<DemoDir, Failure> {
        let path =
            parent.join(format!("tidegate-demo-{}-{:06x}", std::process::id(), now_ns() / 1000 % (1 << 24)));
        fs::create_dir(&path).map_err(|e| {
            Failure::new(Code::BrokerFailed, format!("cannot make the data directory: {e}"))
                .place(path.display().to_string())
                .fix("name a directory on a drive that you can write, with --dir")
        })?;
        Ok(DemoDir { path, at_end })
    }
}

impl Drop for DemoDir {
    fn drop(&mut self) {
        if self.at_end == AtEnd::Keep {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            note(format!("warning: cannot remove {}: {error}", self.path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_goes_unless_it_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        let dir = DemoDir::create(parent.path(), AtEnd::Remove).unwrap();
        fs::write(dir.path.join("file"), "x").unwrap();
        drop(dir);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        drop(DemoDir::create(parent.path(), AtEnd::Keep).unwrap());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
