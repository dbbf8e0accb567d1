//! Consumers that ask for everything and never read.

use std::io;
use std::time::Duration;

use tidegate::{Client, PartitionId, Record, TopicSpec};
use tidegate_protocol::ids::{Offset, ShardId, TopicPartition};

use super::raw::{Dial, Raw, encoded};
use super::scene::Scene;
use super::slow::{somewhere, subscription};
use crate::faults::scene::{ensure, until};

const OLD: &str = "old";
const PARTITIONS: i32 = 8;
const RECORD_BYTES: usize = 64 << 10;
const RECORDS: usize = 4_000;

/// Each subscribes with all credit there is to another place of a topic that is long on the drive, so that nothing of what waits
/// for it is shared with others; some to the end of the well-behaved client's topic.
pub(super) async fn deaf_consumers() -> io::Result<String> {
    const DEAF: usize = 300;
    const AT_TAIL: usize = 20;
    /// What a shard queues to all its connections together, and a read that begins below that.
    const QUEUED_BYTES_MAX: i64 = (64 << 20) + (1 << 20);
    const LOOK: Duration = Duration::from_millis(300);
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let places = fill(&scene.broker.server()).await?;
    let dial = Dial { from: 0, receive_bytes: 4 << 10 };
    let mut deaf = Vec::new();
    for number in 0..DEAF {
        let (partition, shard, records) = places[number % places.len()];
        let from = Offset(records * number as i64 / DEAF as i64);
        let mut raw = Raw::open(address, dial, Some(shard)).await?;
        raw.send(&encoded(|out| subscription(partition, from, u64::MAX).encode(1, out))).await?;
        deaf.push(raw);
    }
    let (partition, shard) = somewhere(&scene).await?;
    for _ in 0..AT_TAIL {
        let mut raw = Raw::open(address, dial, Some(shard)).await?;
        raw.send(&encoded(|out| subscription(partition, Offset(0), u64::MAX).encode(1, out))).await?;
        deaf.push(raw);
    }
    // What the sockets take at first is read from the drive as quickly as that can: with whoever reads much there, however well
    // it behaves, flushes share it. It is what stays that must harm nobody.
    let mut before = -1;
    until("nothing more is read for them", async || {
        tokio::time::sleep(LOOK).await;
        let now = scene.counted("cold_read_bytes").await?;
        Ok(std::mem::replace(&mut before, now) == now)
    })
    .await?;
    scene.measure().await?;
    until("the longest deaf are ended", async || Ok(scene.counted("deaf_connections_ended").await? > 0))
        .await?;
    let queued = scene.counted("queued_bytes").await?;
    let ended = scene.counted("deaf_connections_ended").await?;
    ensure(queued <= 2 * QUEUED_BYTES_MAX, || format!("{queued} bytes are queued to those who never read"))?;
    ensure(queued > 1 << 20, || format!("{queued} bytes are queued: this is no abuse"))?;
    drop(deaf);
    scene
        .end(&format!(
            "{} consumers that never read, {} MiB queued to them, {ended} ended",
            DEAF + AT_TAIL,
            queued >> 20
        ))
        .await
}

/// Stores much; returns the partitions with their shards and the records in each.
async fn fill(server: &str) -> io::Result<Vec<(TopicPartition, ShardId, i64)>> {
    let client = Client::connect(server).await.map_err(io::Error::other)?;
    let spec = TopicSpec::new(OLD).partitions(PARTITIONS);
    client.admin().create_topic(spec).await.map_err(io::Error::other)?;
    let producer = client.producer(OLD).start().await.map_err(io::Error::other)?;
    let value = vec![7u8; RECORD_BYTES];
    let mut tickets = Vec::new();
    for number in 0..RECORDS {
        let partition = PartitionId((number % PARTITIONS as usize) as i32);
        let record = Record::new(&value).partition(partition);
        tickets.push(producer.enqueue(record).await.map_err(io::Error::other)?);
    }
    for ticket in tickets {
        ticket.await.map_err(io::Error::other)?;
    }
    producer.close().await.map_err(io::Error::other)?;
    let metadata = client.admin().metadata().await.map_err(io::Error::other)?;
    let topic = metadata.topics.iter().find(|topic| topic.name == OLD);
    let topic = topic.ok_or_else(|| io::Error::other("the topic is gone"))?;
    let place = |topic_id, partition| TopicPartition { topic: topic_id, partition };
    let records = (RECORDS / PARTITIONS as usize) as i64;
    Ok(topic.partitions.iter().map(|p| (place(topic.topic, p.partition), p.shard, records)).collect())
}
