//! kill -9 in the middle of acknowledged produces, again and again, on one data directory.
//!
//! The kernel keeps what the process had written, so this says nothing about a missing flush (the recorder and the
//! simulator do); it says that recovery finds everything and answers nothing twice.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tidegate::{Client, TopicSpec};

use crate::crash::always;
use crate::ledger::{Ledger, Verdict};
use crate::process::BrokerProcess;
use crate::sim::random::Random;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct KillArgs {
    /// Times to kill the broker.
    #[arg(long, default_value_t = 20)]
    pub cycles: u64,
    /// Chooses the moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the data directory is made; the system's temporary folder if not given.
    #[arg(long)]
    pub dir: Option<std::path::PathBuf>,
}

const TOPIC: &str = "kill";

/// Runs the cycles. Returns the sum of all checks and the number of acks.
pub async fn run(args: &KillArgs) -> io::Result<(Verdict, usize)> {
    let dir = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let data = dir.path().join("data");
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(args.seed);
    let mut sum = Verdict::default();
    for cycle in 0..args.cycles {
        let broker = BrokerProcess::start(&data, &[])?;
        if cycle == 0 {
            let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
            client
                .admin()
                .create_topic(TopicSpec::new(TOPIC).partitions(4))
                .await
                .map_err(io::Error::other)?;
        }
        let wanted = ledger.len() + 200 + random.below(3_000) as usize;
        let producers: Vec<_> = [1, 50, 500]
            .into_iter()
            .map(|in_flight| {
                tokio::spawn(Arc::clone(&ledger).produce(
                    broker.server(),
                    TOPIC.to_owned(),
                    in_flight,
                    Arc::new(AtomicBool::new(false)),
                    always(),
                ))
            })
            .collect();
        let acked = async {
            while ledger.len() < wanted {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), acked).await.map_err(|_| {
            io::Error::other(format!("cycle {cycle}: {} acks, {wanted} wanted, after 60 s", ledger.len()))
        })?;
        broker.kill()?;
        for producer in producers {
            producer.abort();
            let _ = producer.await;
        }

        let broker = BrokerProcess::start(&data, &[])?;
        let verdict = ledger.check(&broker.server(), TOPIC, 0).await.map_err(io::Error::other)?;
        if !verdict.is_clean() {
            return Err(io::Error::other(format!("cycle {cycle}, seed {}: {verdict:?}", args.seed)));
        }
        sum = sum.plus(verdict);
        // Half of the time the next cycle follows a clean stop.
        if cycle % 2 == 0 {
            broker.kill()?;
        } else if !broker.terminate()?.success() {
            return Err(io::Error::other(format!("cycle {cycle}: the broker did not stop cleanly")));
        }
    }
    Ok((sum, ledger.len()))
}
