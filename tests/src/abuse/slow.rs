//! Clients that send a byte now and then, say nothing, or vanish in the middle of a frame.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate::Client;
use tidegate_protocol::api::metadata::MetadataRequest;
use tidegate_protocol::api::subscribe::{Isolation, SubscribeRequest, SubscriptionId};
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::ids::{LeaderEpoch, Offset, ShardId, TopicPartition};
use tokio::task::JoinHandle;

use super::raw::{Dial, Raw, encoded, hello, produce_frame};
use super::scene::Scene;
use crate::faults::scene::{TOPIC, ensure, until};

/// Between two bytes of one slow connection.
const DRIP: Duration = Duration::from_millis(500);

/// Connections that never come to the end of what they are sending: of their hello, of frames one after the other, of a large
/// request for which the broker has to set memory aside, and of a produce for which it has given credit.
pub(super) async fn slow_loris() -> io::Result<String> {
    const HELLOS: usize = 150;
    const FRAMES: usize = 150;
    const LARGE: usize = 1_500;
    const PRODUCES: usize = 10;
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let mut slow = Vec::new();
    let mut hellos = Vec::new();
    for _ in 0..HELLOS {
        hellos.push(Raw::connect(address, Dial::default()).await?);
    }
    let request = encoded(|out| MetadataRequest::all().encode(1, out));
    for _ in 0..FRAMES {
        slow.push((Raw::open(address, Dial::default(), None).await?, request.clone()));
    }
    let (partition, shard) = somewhere(&scene).await?;
    let batch = super::bombs::plain(&vec![b'x'; 700_000]);
    for _ in 0..PRODUCES {
        let mut raw = Raw::open(address, Dial::default(), Some(shard)).await?;
        raw.credit(batch.len() as u64).await?;
        let frame = produce_frame(partition, &batch, 1);
        let (half, rest) = frame.split_at(frame.len() / 2);
        raw.send(half).await?;
        slow.push((raw, rest.to_vec()));
    }
    let large = large_request();
    let mut begun = 0;
    for _ in 0..LARGE {
        let mut raw = Raw::open(address, Dial::default(), None).await?;
        // It may be refused while it is being sent.
        if raw.send(&large[..large.len() - 1_000]).await.is_ok() {
            begun += 1;
        }
        slow.push((raw, large[large.len() - 1_000..].to_vec()));
    }
    let dripping = drip(slow);
    let greeting = greet_slowly(hellos);
    scene.measure().await?;
    let set_aside = scene.counted("set_aside_bytes").await?;
    let answered = greeting.await.map_err(io::Error::other)??;
    ensure(answered == HELLOS, || {
        format!("{answered} of {HELLOS} slow hellos were told why they are let go")
    })?;
    dripping.abort();
    // Its connections are closed once it has ended.
    let _ = dripping.await;
    scene
        .end(&format!(
            "{HELLOS} slow hellos let go, {FRAMES} slow frames, {PRODUCES} halves of a produce, {begun} of {LARGE} \
             large requests begun, {} MiB set aside",
            set_aside >> 20
        ))
        .await
}

/// Sends one byte of each connection's bytes, then waits, and begins again where they end.
fn drip(mut slow: Vec<(Raw, Vec<u8>)>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let pace = DRIP / u32::try_from(slow.len()).unwrap_or(u32::MAX);
        let mut due = tokio::time::Instant::now();
        for at in 0.. {
            for (raw, bytes) in &mut slow {
                due += pace;
                tokio::time::sleep_until(due).await;
                // A large request would end if its bytes were few: those in front of its last one are sent only.
                let at = at % bytes.len();
                let _ = raw.stream.try_write(&bytes[at..=at]);
            }
        }
    })
}

/// Sends hellos a byte at a time until all are let go; returns how many heard why.
fn greet_slowly(hellos: Vec<Raw>) -> JoinHandle<io::Result<usize>> {
    let bytes = hello(None);
    let clients: Vec<_> = hellos
        .into_iter()
        .map(|mut raw| {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                for byte in &bytes[..bytes.len() - 1] {
                    if raw.stream.try_write(std::slice::from_ref(byte)).is_err() {
                        break;
                    }
                    tokio::time::sleep(DRIP).await;
                }
                let errors = raw.closing().await?;
                Ok::<bool, io::Error>(errors.iter().any(|e| e.code == Ok(ErrorCode::HelloNeeded)))
            })
        })
        .collect();
    tokio::spawn(async move {
        let mut told = 0;
        for client in clients {
            told += usize::from(client.await.map_err(io::Error::other)??);
        }
        Ok(told)
    })
}

/// A request that is nearly as long as any but a produce may be.
fn large_request() -> Vec<u8> {
    let names = (0..2_400).map(|n| format!("{n:092}")).collect();
    encoded(|out| MetadataRequest::named(names).encode(1, out))
}

/// A partition of the well-behaved client's topic, and its shard.
pub(super) async fn somewhere(scene: &Scene) -> io::Result<(TopicPartition, ShardId)> {
    let client = Client::connect(&scene.broker.server()).await.map_err(io::Error::other)?;
    let metadata = client.admin().metadata().await.map_err(io::Error::other)?;
    let topic = metadata.topics.iter().find(|topic| topic.name == TOPIC);
    let found = topic.and_then(|topic| Some((topic.topic, topic.partitions.first()?)));
    let (topic, partition) = found.ok_or_else(|| io::Error::other("the topic is gone"))?;
    Ok((TopicPartition { topic, partition: partition.partition }, partition.shard))
}

/// Connections that say hello and then neither read nor write, with and without a subscription whose heartbeats nobody reads, and
/// others that vanish in the middle of a frame, again and again.
pub(super) async fn half_open() -> io::Result<String> {
    const SILENT: usize = 300;
    const SUBSCRIBED: usize = 100;
    const VANISHING_PER_S: u32 = 200;
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let (partition, shard) = somewhere(&scene).await?;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(Raw::open(address, Dial::default(), None).await?);
    }
    let subscribe = encoded(|out| subscription(partition, Offset(0), 0).encode(1, out));
    for _ in 0..SUBSCRIBED {
        let mut raw = Raw::open(address, Dial::default(), Some(shard)).await?;
        raw.send(&subscribe).await?;
        silent.push(raw);
    }
    let vanishing = tokio::spawn(vanish(address, VANISHING_PER_S));
    scene.measure().await?;
    ensure(!vanishing.is_finished(), || "a client could not even connect in order to vanish".to_owned())?;
    vanishing.abort();
    let _ = vanishing.await;
    // Of a peer that vanishes without a word only the kernel can know, by asking.
    until("the kernel watches over each connection", async || {
        let watched = watched(address)?;
        Ok(watched >= SILENT + SUBSCRIBED)
    })
    .await?;
    for raw in &mut silent[..SILENT] {
        // Silence alone is no reason to be let go.
        raw.send(&encoded(|out| MetadataRequest::all().encode(7, out))).await?;
        raw.answer(7).await?;
    }
    drop(silent);
    scene
        .end(&format!(
            "{SILENT} silent connections, {SUBSCRIBED} with a subscription, {VANISHING_PER_S} a second vanish in a frame"
        ))
        .await
}

/// A subscription from `from` on with a credit of `limit` bytes.
pub(super) fn subscription(partition: TopicPartition, from: Offset, limit: u64) -> SubscribeRequest {
    SubscribeRequest {
        subscription: SubscriptionId(1),
        partition,
        from,
        limit,
        min_bytes: 1,
        max_wait_ms: 0,
        isolation: Isolation::Committed,
        leader_epoch: LeaderEpoch::UNKNOWN,
        last_read_epoch: LeaderEpoch::UNKNOWN,
    }
}

async fn vanish(address: SocketAddr, per_s: u32) -> io::Result<()> {
    let frame = encoded(|out| MetadataRequest::all().encode(1, out));
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_s);
    for at in 0.. {
        pace.tick().await;
        let hello = hello(None);
        let mut raw = match at % 2 {
            0 => Raw::open(address, Dial { from: 2, receive_bytes: 0 }, None).await?,
            _ => Raw::connect(address, Dial { from: 2, receive_bytes: 0 }).await?,
        };
        let cut = [&hello[..hello.len() / 2], &frame[..frame.len() / 2]][usize::from(at % 2 == 0)];
        raw.send(cut).await?;
        raw.vanish()?;
    }
    Ok(())
}

/// Connections of the broker for which the kernel has a timer running: for asking whether the peer is still there, or for what is
/// under way.
fn watched(address: SocketAddr) -> io::Result<usize> {
    const ESTABLISHED: &str = "01";
    const NO_TIMER: &str = "00";
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let is_watched = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, timer, ..] = fields[..] else { return false };
        local.ends_with(&port) && state == ESTABLISHED && !timer.starts_with(NO_TIMER)
    };
    Ok(table.lines().filter(is_watched).count())
}
