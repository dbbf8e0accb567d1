//! kill -9 in the middle of acknowledged produces, again and again, on one data directory.
//!
//! Beside the producers an operator creates and deletes topics and stores offsets: NATS nats-server#6888 lost whole streams by a
//! kill -9 between two files of metadata.
//!
//! The kernel keeps what the process had written, so this says nothing about a missing flush (the recorder and the
//! simulator do); it says that recovery finds everything and answers nothing twice.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tidegate::{Client, TopicSpec};

use crate::crash::always;
use crate::ledger::{Ledger, Verdict};
use crate::operator::Operator;
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
    pub dir: Option<PathBuf>,
    /// A file that gets the result as JSON.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct KillReport {
    /// Cycles that came to their end.
    pub cycles: u64,
    /// Records acknowledged.
    pub acks: u64,
    /// Topics created and deleted and offsets stored, as far as they were answered.
    pub orders: u64,
    /// Sum of all checks, that of the cycle which ended the run included.
    pub verdict: Verdict,
}

impl KillReport {
    /// Whether every promise was kept, and there was one.
    pub fn is_well(&self) -> bool {
        self.verdict.is_clean() && self.verdict.checked > 0 && self.orders > 0
    }

    /// The result for a machine.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "harness": "kill",
            "passed": self.is_well(),
            "cycles": self.cycles,
            "acks": self.acks,
            "orders": self.orders,
            "promises": self.verdict.checked,
            "lost": self.verdict.lost,
            "wrong_bytes": self.verdict.wrong_values,
            "duplicates": self.verdict.duplicates,
            "holes": self.verdict.holes,
        })
    }
}

const TOPIC: &str = "kill";

/// Runs the cycles, up to the first after which something is not as it must be.
pub async fn run(args: &KillArgs) -> io::Result<KillReport> {
    let dir = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let data = dir.path().join("data");
    let ledger = Arc::new(Ledger::default());
    let operator = Arc::new(Operator::default());
    let mut random = Random::new(args.seed);
    let mut report = KillReport::default();
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
        let orders_wanted = operator.orders() + 1 + random.below(40);
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
        let orders = tokio::spawn(Arc::clone(&operator).work(broker.server(), TOPIC.to_owned()));
        let acked = async {
            while ledger.len() < wanted || operator.orders() < orders_wanted {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), acked).await.map_err(|_| {
            let (acks, orders) = (ledger.len(), operator.orders());
            let wanted = format!("{wanted} acks and {orders_wanted} orders wanted");
            io::Error::other(format!("cycle {cycle}: {wanted}, {acks} and {orders} after 60 s"))
        })?;
        broker.kill()?;
        for producer in producers {
            producer.abort();
            let _ = producer.await;
        }
        orders.abort();
        let _ = orders.await;

        let broker = BrokerProcess::start(&data, &[])?;
        let verdict = ledger.check(&broker.server(), TOPIC, 0).await.map_err(io::Error::other)?;
        let told = operator.check(&broker.server(), TOPIC).await;
        told.map_err(|e| io::Error::other(format!("cycle {cycle}, seed {}: {e}", args.seed)))?;
        report.cycles += 1;
        report.acks = ledger.len() as u64;
        report.orders = operator.orders();
        report.verdict = report.verdict.plus(verdict);
        if !verdict.is_clean() {
            break;
        }
        // Half of the time the next cycle follows a clean stop.
        if cycle % 2 == 0 {
            broker.kill()?;
        } else if !broker.terminate()?.success() {
            return Err(io::Error::other(format!("cycle {cycle}: the broker did not stop cleanly")));
        }
    }
    Ok(report)
}
