//! RLIMIT_NOFILE is low, and connections take every descriptor while partitions need files. Nothing dies, the broker says what
//! is the matter, and everything goes on when the connections have gone.

use std::io;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Client, PartitionId, Record, TopicSpec};

use super::scene::{Load, all_there, ensure, readable, until};
use crate::ledger::Ledger;
use crate::process::{BrokerProcess, binary};

/// Above the 256 that a start demands.
const DESCRIPTORS: usize = 300;
const WIDE: &str = "wide";
const PARTITIONS: i32 = 120;

/// More connections than descriptors, and more files to be opened than are left.
pub(super) async fn few_descriptors() -> io::Result<String> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")).arg(binary("tidegate")?);
    let broker = BrokerProcess::start_by(command, "127.0.0.1:0", &data, &["--shards", "2"])?;
    let server = broker.server();
    Load::create(&server).await?;
    let client = Client::connect(&server).await.map_err(io::Error::other)?;
    let spec = TopicSpec::new(WIDE).partitions(PARTITIONS);
    client.admin().create_topic(spec).await.map_err(io::Error::other)?;
    let wide = client.producer(WIDE).start().await.map_err(io::Error::other)?;
    let ledger = Arc::new(Ledger::default());
    let load = Load::start(&ledger, &server, &[1, 50]);
    load.acks(500).await?;

    let mut crowd = Vec::new();
    while crowd.len() < 2 * DESCRIPTORS {
        crowd.push(TcpStream::connect(broker.address)?);
    }
    let log = || std::fs::read_to_string(data.with_extension("log"));
    until("a line that no connection can be accepted", async || {
        Ok(log()?.contains("no connection can be accepted"))
    })
    .await?;
    // Enough for each partition to need a file of its own.
    let value = vec![7u8; 100_000];
    let mut tickets = Vec::new();
    for partition in (0..PARTITIONS).map(PartitionId) {
        let record = Record::new(&value).partition(partition);
        tickets.push(wide.enqueue(record).await.map_err(io::Error::other)?);
    }
    // Those who are connected are served on; what needs a descriptor may wait.
    let went_on = load.acks(500).await;
    let status = client.admin().status().await.map_err(io::Error::other)?;
    went_on
        .map_err(|e| io::Error::other(format!("{e}; {:?}; {}", status.shards, log().unwrap_or_default())))?;

    drop(crowd);
    for (partition, ticket) in (0..).zip(tickets) {
        let acked = tokio::time::timeout(Duration::from_secs(20), ticket).await;
        let acked = acked.map_err(|_| io::Error::other(format!("{WIDE}/{partition}: no answer")))?;
        acked.map_err(|e| io::Error::other(format!("{WIDE}/{partition}: {e}")))?;
    }
    let newcomer = Client::connect(&server).await.map_err(io::Error::other)?;
    let stored = readable(&newcomer, WIDE).await?;
    ensure(stored == PARTITIONS as u64, || {
        format!("{stored} of {PARTITIONS} records of {WIDE} can be read")
    })?;
    load.acks(500).await?;
    load.finish().await?;
    ensure(ledger.refused() == 0, || format!("{} records were refused", ledger.refused()))?;
    all_there(&ledger, &server, "after the crowd").await?;
    let status = broker.terminate()?;
    ensure(status.success(), || format!("after SIGTERM the broker ended with {status}"))?;
    Ok(format!("{DESCRIPTORS} descriptors, {} connections, {} acks", 2 * DESCRIPTORS, ledger.len()))
}
