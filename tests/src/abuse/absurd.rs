//! Frames that claim to be or to hold far more than they do, and bytes that are no frames at all.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_protocol::api::Api;
use tidegate_protocol::api::hello::Ping;
use tidegate_protocol::api::metadata::MetadataRequest;
use tidegate_protocol::api::offset::{OffsetCommitRequest, OffsetFetchRequest, StoredOffset};
use tidegate_protocol::api::topic::{AlterTopicRequest, CreateTopicRequest, DescribeTopicRequest, Setting};
use tidegate_protocol::frame::{Kind, PREFIX_LEN};
use tidegate_protocol::ids::{LeaderEpoch, Offset, ShardId, TopicPartition};
use tokio::task::{JoinHandle, JoinSet};

use super::bombs;
use super::raw::{Dial, Raw, encoded, hello, produce_frame};
use super::scene::Scene;
use super::slow::somewhere;
use crate::faults::scene::ensure;
use crate::fuzz::seal;
use crate::sim::random::Random;

/// Between two of them.
const PACE: Duration = Duration::from_millis(10);

/// What is sent after a hello, and what it is called.
struct Absurd {
    name: String,
    bytes: Vec<u8>,
    correlation: u32,
}

/// Lengths of up to 4 GiB for every api, before hello and after; and counts of up to 2^32 in every request with a list.
pub(super) async fn absurd_lengths() -> io::Result<String> {
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let (partition, shard) = somewhere(&scene).await?;
    let (lengths, counts) = (lengths(), counts(partition));
    let sent = lengths.len() * 2 + counts.len();
    let abuse: JoinHandle<io::Result<()>> = tokio::spawn(async move {
        let mut pace = tokio::time::interval(PACE);
        loop {
            for absurd in &lengths {
                pace.tick().await;
                let mut raw = Raw::connect(address, Dial::default()).await?;
                refused_and_closed(&mut raw, absurd, "before hello").await?;
                let mut raw = Raw::open(address, Dial::default(), None).await?;
                refused_and_closed(&mut raw, absurd, "after hello").await?;
            }
            for absurd in &counts {
                pace.tick().await;
                let mut raw = Raw::open(address, Dial::default(), Some(shard)).await?;
                if absurd.bytes[4] == Api::Produce.number() {
                    raw.credit(1 << 20).await?;
                }
                refused(&mut raw, absurd).await?;
            }
        }
    });
    scene.measure().await?;
    ends(abuse).await?;
    scene.end(&format!("{sent} absurd frames again and again, each refused with a reason")).await
}

/// What goes on until it is told to end must not have ended before, unless it says why.
async fn ends(abuse: JoinHandle<io::Result<()>>) -> io::Result<()> {
    if abuse.is_finished() {
        return abuse.await.map_err(io::Error::other)?;
    }
    abuse.abort();
    let _ = abuse.await;
    Ok(())
}

async fn refused_and_closed(raw: &mut Raw, absurd: &Absurd, when: &str) -> io::Result<()> {
    let name = &absurd.name;
    raw.send(&absurd.bytes).await?;
    let errors = raw.closing().await.map_err(|e| io::Error::other(format!("{name} {when}: {e}")))?;
    let says_why = errors.iter().any(|error| !error.cause.is_empty());
    ensure(says_why, || format!("{name} {when}: closed without a reason"))
}

/// The connection may go on, or end once the reason is told.
async fn refused(raw: &mut Raw, absurd: &Absurd) -> io::Result<()> {
    let Absurd { name, bytes, correlation } = absurd;
    raw.send(bytes).await?;
    let heard = raw.answer(*correlation).await.map_err(|e| io::Error::other(format!("{name}: {e}")))?;
    let error = heard.error().ok_or_else(|| io::Error::other(format!("{name}: it was done")))?;
    ensure(!error.cause.is_empty(), || format!("{name}: refused without a reason"))
}

fn lengths() -> Vec<Absurd> {
    let mut all = Vec::new();
    for api in (1..=30).filter_map(Api::from_number) {
        for length in [1 << 22, i32::MAX as u32, 1 << 31, u32::MAX] {
            let mut bytes = vec![0; PREFIX_LEN];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            (bytes[4], bytes[5]) = (api.number(), 1);
            all.push(Absurd { name: format!("{} of {length} bytes", api.name()), bytes, correlation: 0 });
        }
    }
    let mut bytes = encoded(|out| MetadataRequest::all().encode(9, out));
    bytes[12..14].copy_from_slice(&u16::MAX.to_le_bytes());
    all.push(Absurd { name: "a head of 65,535 bytes".to_owned(), bytes, correlation: 9 });
    all
}

/// Every request with a list, of so many elements that their count is found again in the frame and changed.
fn counts(partition: TopicPartition) -> Vec<Absurd> {
    const MANY: usize = 77;
    let correlation = 5;
    let names: Vec<String> = (0..MANY).map(|n| format!("name {n}")).collect();
    let setting = |name: &String| Setting { name: name.clone(), value: "1".to_owned() };
    let settings: Vec<Setting> = names.iter().map(setting).collect();
    let stored = |note: &String| StoredOffset {
        partition,
        offset: Offset(0),
        leader_epoch: LeaderEpoch::UNKNOWN,
        metadata: note.clone(),
    };
    let commit = OffsetCommitRequest {
        group: "g".to_owned(),
        generation: -1,
        member: String::new(),
        offsets: names.iter().map(stored).collect(),
    };
    let fetch = OffsetFetchRequest { group: "g".to_owned(), partitions: vec![partition; MANY] };
    let create = CreateTopicRequest {
        name: "t".to_owned(),
        partitions: 1,
        replication: -1,
        settings: settings.clone(),
    };
    let alter = AlterTopicRequest { name: "t".to_owned(), partitions: 0, settings };
    let describe = DescribeTopicRequest { names: names.clone(), after: String::new() };
    let metadata = MetadataRequest::named(names);
    let requests = [
        ("metadata", encoded(|out| metadata.encode(correlation, out))),
        ("describe_topic", encoded(|out| describe.encode(correlation, out))),
        ("create_topic", encoded(|out| create.encode(correlation, out))),
        ("alter_topic", encoded(|out| alter.encode(correlation, out))),
        ("offset_commit", encoded(|out| commit.encode(correlation, out))),
        ("offset_fetch", encoded(|out| fetch.encode(correlation, out))),
    ];
    let mut all = Vec::new();
    for (name, bytes) in requests {
        let is_count = |at: &usize| bytes[*at..].starts_with(&(MANY as u32).to_le_bytes());
        let places: Vec<usize> = (PREFIX_LEN..bytes.len() - 4).filter(is_count).collect();
        assert!(!places.is_empty(), "{name} has a count");
        for (at, count) in places.iter().flat_map(|at| [1 << 31, i32::MAX as u32, u32::MAX].map(|n| (*at, n)))
        {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
            seal::frames(&mut Random::new(1), &mut bytes);
            all.push(Absurd { name: format!("{name} with {count} elements"), bytes, correlation });
        }
    }
    all.extend(batches(partition, correlation));
    all
}

/// Batches that claim to hold more than they do.
fn batches(partition: TopicPartition, correlation: u32) -> Vec<Absurd> {
    const LENGTH: usize = 8;
    const LAST_OFFSET_DELTA: usize = 23;
    const RECORDS: usize = 57;
    let claim = |what: &str, places: &[(usize, i32)], value: i32| {
        let mut batch = bombs::plain(b"little");
        for (at, value) in places {
            batch[*at..*at + 4].copy_from_slice(&value.to_be_bytes());
        }
        bombs::seal(&mut batch);
        let bytes = produce_frame(partition, &batch, correlation);
        Absurd { name: format!("produce with {value} {what}"), bytes, correlation }
    };
    let mut all = Vec::new();
    for value in [i32::MIN, -1, i32::MAX] {
        let last = value.wrapping_sub(1);
        all.push(claim("bytes in its batch", &[(LENGTH, value)], value));
        all.push(claim("records in its batch", &[(RECORDS, value)], value));
        all.push(claim("records and offsets", &[(RECORDS, value), (LAST_OFFSET_DELTA, last)], value));
    }
    all
}

/// Bytes of other protocols and of none, and requests in front of the hello whose answers are not read.
pub(super) async fn garbage(seed: u64) -> io::Result<String> {
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let mut random = Random::new(seed);
    let kinds = [tls_client_hello(), http_get(), kafka_api_versions()];
    let abuse: JoinHandle<io::Result<usize>> = tokio::spawn(async move {
        let mut pace = tokio::time::interval(PACE);
        let mut strangers: JoinSet<io::Result<()>> = JoinSet::new();
        let begun = tokio::time::Instant::now();
        for at in 0u16.. {
            pace.tick().await;
            let bytes = match at % 6 {
                0 => kinds[0].clone(),
                1 => kinds[1].clone(),
                2 => kinds[2].clone(),
                3 => (0..random.between(1, 60)).map(|_| random.word() as u8).collect(),
                4 => (0..random.between(1, 60_000)).map(|_| random.word() as u8).collect(),
                _ => early_requests(random.between(1_000, 30_000) as u32),
            };
            let greets = (at % 6 == 5).then_some(ShardId(at / 6 % 2));
            strangers.spawn(stranger(address, bytes, greets));
            // So that most of those who are let go for their silence are so while others still come.
            if begun.elapsed() > Duration::from_secs(3) {
                break;
            }
        }
        let all = strangers.len();
        while let Some(ended) = strangers.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(all)
    });
    scene.measure().await?;
    let strangers = abuse.await.map_err(io::Error::other)??;
    scene.end(&format!("{strangers} strangers, each told why it is let go, and closed")).await
}

/// Sends what it has, perhaps a hello a while later, and is to hear why that was wrong, and the end.
async fn stranger(address: SocketAddr, bytes: Vec<u8>, greets: Option<ShardId>) -> io::Result<()> {
    /// What was sent is answered by then, as far as a socket takes answers that nobody reads.
    const WHILE: Duration = Duration::from_millis(200);
    let mut raw = Raw::connect(address, Dial { from: 2, receive_bytes: 4 << 10 }).await?;
    // It may be closed before it has sent everything.
    let _ = raw.send(&bytes).await;
    if greets.is_some() {
        tokio::time::sleep(WHILE).await;
        let _ = raw.send(&hello(greets)).await;
    }
    let shown = &bytes[..bytes.len().min(24)];
    let errors = raw.closing().await.map_err(|e| io::Error::other(format!("{e}, after {shown:02x?}")))?;
    ensure(errors.iter().any(|error| !error.cause.is_empty()), || {
        format!("closed without a reason after {shown:02x?} of {} bytes", bytes.len())
    })
}

/// So many requests in front of a hello for a shard that their answers fill the socket which would have to move there.
fn early_requests(count: u32) -> Vec<u8> {
    let ping = Ping { nonce: 0, produce_bytes: 0, produce_limit: 0 };
    encoded(|out| (0..count).for_each(|c| ping.encode(Kind::Request, c, out)))
}

fn http_get() -> Vec<u8> {
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()
}

/// The beginning of a TLS 1.3 handshake: record, handshake header, version, random, and what follows cut off.
fn tls_client_hello() -> Vec<u8> {
    let mut bytes = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    bytes.resize(11 + 32, 0xab);
    bytes.extend_from_slice(&[32; 33]);
    bytes.extend_from_slice(&[0, 2, 0x13, 1, 1, 0]);
    bytes
}

/// ApiVersions, version 0, of a client named `k`.
fn kafka_api_versions() -> Vec<u8> {
    vec![0, 0, 0, 11, 0, 18, 0, 0, 0, 0, 0, 1, 0, 1, b'k']
}
