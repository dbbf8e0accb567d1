//! Batches that unpack to a thousand times their size. To the broker they are bytes like others; the SDK's consumer has a limit.

use std::io;
use std::time::Duration;

use tidegate::{Client, ErrorKind, Start, TopicSpec};
use tidegate_protocol::api::offset::{ListOffsetsReply, ListOffsetsRequest, OffsetQuery};
use tidegate_protocol::batch::compression::Packer;
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, Compression, HEAD_LEN, HEADER_LEN};
use tidegate_protocol::ids::{ShardId, TopicPartition};
use tokio::task::JoinHandle;

use super::raw::{Dial, Raw, encoded};
use super::scene::Scene;
use crate::faults::scene::ensure;

const TOPIC: &str = "bombs";
/// Above the 128 MiB that the SDK unpacks at most.
const BOMB_BYTES: usize = 160 << 20;
/// Snappy packs no better than 1 to 21: more does not fit a batch. It is within the limit, and is to be read.
const SNAPPY_BYTES: usize = 16 << 20;

/// What is in a batch, and what a reader has to make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// It is refused, and the error says this.
    Bomb(&'static str),
    /// It is read, and has so many bytes.
    Sound(usize),
}

/// They are produced again and again while the well-behaved client is measured, then read, by time too.
pub(super) async fn bombs() -> io::Result<String> {
    const PACE: Duration = Duration::from_millis(50);
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let made = tokio::task::spawn_blocking(make).await.map_err(io::Error::other)?;
    let (partition, shard) = create(&scene.broker.server()).await?;
    let batches: Vec<Vec<u8>> = made.iter().map(|(_, batch)| batch.clone()).collect();
    let abuse: JoinHandle<io::Result<()>> = tokio::spawn(async move {
        let mut raw = Raw::open(address, Dial::default(), Some(shard)).await?;
        let mut pace = tokio::time::interval(PACE);
        for batch in batches.iter().cycle() {
            pace.tick().await;
            raw.produce(partition, batch).await?;
            // A search by time looks into batches, but not into packed ones.
            let correlation = raw.correlation();
            let request = ListOffsetsRequest { partition, query: OffsetQuery::RecordTime(1) };
            raw.send(&encoded(|out| request.encode(correlation, out))).await?;
            let found = raw.answer(correlation).await?;
            ListOffsetsReply::decode(&found.frame()).map_err(|e| io::Error::other(e.to_string()))?;
        }
        Ok(())
    });
    scene.measure().await?;
    ensure(!abuse.is_finished(), || "a batch was refused, or a search".to_owned())?;
    abuse.abort();
    let _ = abuse.await;
    let contents: Vec<Content> = made.iter().map(|(content, _)| *content).collect();
    let (refused, read) = read_all(&scene.broker.server(), &contents).await?;
    let least = made.iter().filter(|(content, _)| matches!(content, Content::Bomb(_)));
    let largest = least.map(|(_, batch)| batch.len()).max().unwrap_or_default();
    scene
        .end(&format!(
            "{refused} bombs of up to {} KiB refused by the consumer, {read} other batches read",
            largest >> 10
        ))
        .await
}

/// One of each kind, and a plain one behind them.
fn make() -> Vec<(Content, Vec<u8>)> {
    const TOO_LONG: &str = "longer than 134217728 bytes when unpacked";
    let zeros = vec![0; BOMB_BYTES];
    vec![
        (Content::Bomb(TOO_LONG), packed(Compression::Gzip, &zeros)),
        (Content::Bomb(TOO_LONG), packed(Compression::Lz4, &zeros)),
        (Content::Bomb(TOO_LONG), with_records(Compression::Zstd, &zstd_of_zeros())),
        // A raw block whose length says 4 GiB less one byte.
        (Content::Bomb(TOO_LONG), with_records(Compression::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0])),
        // And one that would be within the limit, were it there.
        (Content::Bomb("cannot hold"), with_records(Compression::Snappy, &[0x80, 0x80, 0x80, 0x20, 0])),
        (Content::Sound(SNAPPY_BYTES), packed(Compression::Snappy, &zeros[..SNAPPY_BYTES])),
        (Content::Sound(5), plain(b"plain")),
    ]
}

/// A batch of one record.
pub(super) fn plain(value: &[u8]) -> Vec<u8> {
    built(value).finish(BatchOrigin::NONE)
}

fn built(value: &[u8]) -> BatchBuilder {
    const NO_HEADERS: [(&str, Option<&[u8]>); 0] = [];
    let mut builder = BatchBuilder::new(Vec::new());
    builder.push(1, None, Some(value), NO_HEADERS);
    builder
}

fn packed(compression: Compression, value: &[u8]) -> Vec<u8> {
    let batch = built(value).finish_packed(BatchOrigin::NONE, compression, &mut Packer::default());
    batch.expect("these codecs are built")
}

/// A batch whose one record is said to be in these packed bytes.
fn with_records(compression: Compression, records: &[u8]) -> Vec<u8> {
    const LENGTH_END: usize = 12;
    const ATTRIBUTES_LOW: usize = 22;
    let mut batch = plain(b"");
    batch.truncate(HEADER_LEN);
    batch.extend_from_slice(records);
    let length = (batch.len() - LENGTH_END) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[ATTRIBUTES_LOW] = compression as u8;
    seal(&mut batch);
    batch
}

/// Makes the checksum of a batch right.
pub(super) fn seal(batch: &mut [u8]) {
    const CRC: usize = 17;
    let crc = crc32c::crc32c(&batch[HEAD_LEN..]);
    batch[CRC..CRC + 4].copy_from_slice(&crc.to_be_bytes());
}

/// A zstd frame of blocks that each repeat one byte 128 Ki times (RFC 8878, 3.1.1): 1 to 32,768.
fn zstd_of_zeros() -> Vec<u8> {
    const BLOCK_BYTES: usize = 128 << 10;
    const WINDOW_OF_A_BLOCK: u8 = 7 << 3;
    const RLE: u32 = 1 << 1;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, WINDOW_OF_A_BLOCK];
    let blocks = BOMB_BYTES / BLOCK_BYTES;
    for block in 1..=blocks {
        let header = (BLOCK_BYTES as u32) << 3 | RLE | u32::from(block == blocks);
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(0);
    }
    frame
}

async fn create(server: &str) -> io::Result<(TopicPartition, ShardId)> {
    let client = Client::connect(server).await.map_err(io::Error::other)?;
    client.admin().create_topic(TopicSpec::new(TOPIC)).await.map_err(io::Error::other)?;
    let metadata = client.admin().metadata().await.map_err(io::Error::other)?;
    let topic = metadata.topics.iter().find(|topic| topic.name == TOPIC);
    let topic = topic.ok_or_else(|| io::Error::other("the topic is not there"))?;
    let partition = topic.partitions[0];
    Ok((TopicPartition { topic: topic.topic, partition: partition.partition }, partition.shard))
}

/// Reads the topic to its end: what cannot be unpacked is told by offsets, and what follows is read. Returns how many batches of
/// either kind there were.
async fn read_all(server: &str, contents: &[Content]) -> io::Result<(usize, usize)> {
    let client = Client::connect(server).await.map_err(io::Error::other)?;
    let consumer = client.consumer(TOPIC).from(Start::Earliest).until_end().start().await;
    let mut consumer = consumer.map_err(io::Error::other)?;
    let (mut refused, mut read) = (0, 0);
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.map_err(io::Error::other)?;
        let content = contents[(refused + read) % contents.len()];
        match (batch.records(), content) {
            (Err(e), Content::Bomb(says)) => {
                let unread = e.unread().map(|unread| (unread.from, unread.to));
                let is_told = e.kind() == ErrorKind::Damaged && e.to_string().contains(says);
                ensure(is_told && unread == Some((batch.first_offset(), Some(batch.end_offset()))), || {
                    format!("a bomb of {:?} is told as {e}, unread {unread:?}", batch.compression())
                })?;
                refused += 1;
            }
            (Ok(mut records), Content::Sound(bytes)) => {
                let record = records.next().transpose().map_err(io::Error::other)?;
                let found = record.and_then(|record| record.value()).map(<[u8]>::len);
                ensure(found == Some(bytes), || format!("{found:?} bytes of {bytes} were read"))?;
                read += 1;
            }
            (Ok(_), Content::Bomb(_)) => {
                return Err(io::Error::other(format!("a bomb of {:?} was unpacked", batch.compression())));
            }
            (Err(e), Content::Sound(_)) => return Err(io::Error::other(e)),
        }
    }
    ensure(refused > 0 && read > 0, || "nothing was read".to_owned())?;
    Ok((refused, read))
}
