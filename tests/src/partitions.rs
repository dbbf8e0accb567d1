//! A thousand partitions in one broker: created, restarted, all of them serve.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidegate::{Client, PartitionId, Record, TopicSpec};

use crate::process::BrokerProcess;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct PartitionsArgs {
    /// How many.
    #[arg(long, default_value_t = 1000)]
    pub partitions: i32,
    /// A file that gets the result as JSON.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct PartitionsReport {
    /// Until the topic was durable and every shard had it.
    pub created_in: Duration,
    /// From the start of the process until it listened, with all of them.
    pub restarted_in: Duration,
    /// Until each had acknowledged one more record.
    pub acked_in: Duration,
    /// Records acknowledged after the restart.
    pub acked: u64,
}

impl PartitionsReport {
    /// Whether each of so many partitions has acknowledged its record.
    pub fn is_well(&self, partitions: i32) -> bool {
        i64::try_from(self.acked) == Ok(i64::from(partitions))
    }

    /// The result for a machine.
    pub fn json(&self, partitions: i32) -> serde_json::Value {
        let ms = |time: Duration| time.as_millis() as u64;
        serde_json::json!({
            "harness": "partitions",
            "passed": self.is_well(partitions),
            "partitions": partitions,
            "acked": self.acked,
            "created_ms": ms(self.created_in),
            "restarted_ms": ms(self.restarted_in),
            "acked_ms": ms(self.acked_in),
        })
    }
}

/// Runs it.
pub async fn run(args: &PartitionsArgs) -> io::Result<PartitionsReport> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let broker = BrokerProcess::start(&data, &[])?;
    let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
    let started = Instant::now();
    client
        .admin()
        .create_topic(TopicSpec::new("many").partitions(args.partitions))
        .await
        .map_err(io::Error::other)?;
    let created_in = started.elapsed();
    produce_to_each(&client, args.partitions).await?;
    drop(client);
    broker.kill()?;

    let broker = BrokerProcess::start(&data, &[])?;
    let restarted_in = broker.started_in;
    let client = Client::connect(&broker.server()).await.map_err(io::Error::other)?;
    let started = Instant::now();
    let acked = produce_to_each(&client, args.partitions).await?;
    let acked_in = started.elapsed();
    drop(client);
    let status = broker.terminate()?;
    if !status.success() {
        return Err(io::Error::other(format!("after SIGTERM the broker ended with {status}")));
    }
    Ok(PartitionsReport { created_in, restarted_in, acked_in, acked })
}

async fn produce_to_each(client: &Client, partitions: i32) -> io::Result<u64> {
    let producer = client.producer("many").start().await.map_err(io::Error::other)?;
    let mut tickets = Vec::new();
    for partition in 0..partitions {
        let record = Record::new(b"one more").partition(PartitionId(partition));
        tickets.push(producer.enqueue(record).await.map_err(io::Error::other)?);
    }
    let mut acked = 0;
    for ticket in tickets {
        ticket.await.map_err(io::Error::other)?;
        acked += 1;
    }
    producer.close().await.map_err(io::Error::other)?;
    Ok(acked)
}
