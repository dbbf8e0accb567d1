//! Very many connections: at once and idle, or one after the other as quickly as they come.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::raw::{Dial, Raw};
use super::scene::{Scene, status_bytes};
use crate::faults::scene::{ensure, until};

const IDLE: usize = 10_000;
/// For the connections of either side, and everything else that a process has open.
const DESCRIPTORS: u64 = 16_000;
/// This machine's own addresses that abusers come from: each has some 28,000 ports, and a closed connection keeps its one for
/// a minute.
const ADDRESSES: u8 = 8;

/// Raises this process's limit of descriptors, which the broker inherits; why not, if it cannot be.
pub(super) fn missing_descriptors() -> Option<String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft >= DESCRIPTORS {
        return None;
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, hard.max(DESCRIPTORS));
    raised.err().map(|e| format!("{DESCRIPTORS} descriptors are needed, {soft} of {hard} are allowed: {e}"))
}

/// Ten thousand connections that have said hello and do nothing.
pub(super) async fn idle() -> io::Result<String> {
    const CONNECTING: u8 = 8;
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let before = status_bytes(scene.broker.pid(), "RssAnon")?;
    let connecting: Vec<_> = (0..CONNECTING)
        .map(|number| {
            tokio::spawn(async move {
                let dial = Dial { from: 2 + number % ADDRESSES, receive_bytes: 0 };
                let mut connected = Vec::new();
                for _ in 0..IDLE / usize::from(CONNECTING) {
                    connected.push(Raw::open(address, dial, None).await?);
                }
                Ok::<Vec<Raw>, io::Error>(connected)
            })
        })
        .collect();
    let mut connected = Vec::new();
    for task in connecting {
        connected.extend(task.await.map_err(io::Error::other)??);
    }
    let more = scene.sockets_more()?;
    ensure(more >= IDLE, || format!("the broker has {more} of {IDLE} connections"))?;
    scene.measure().await?;
    let each = status_bytes(scene.broker.pid(), "RssAnon")?.saturating_sub(before) / IDLE as u64;
    drop(connected);
    scene.end(&format!("{IDLE} idle connections, {each} bytes of memory each")).await
}

/// Connections that come and go: closed at once, reset at once, or after a hello.
pub(super) async fn connect_storm() -> io::Result<String> {
    const PER_S: u32 = 2_000;
    let mut scene = Scene::begin().await?;
    let address = scene.broker.address;
    let made = Arc::new(AtomicU64::new(0));
    let storms: Vec<_> = (0..ADDRESSES)
        .map(|number| tokio::spawn(storm(address, number, PER_S / u32::from(ADDRESSES), Arc::clone(&made))))
        .collect();
    scene.measure().await?;
    for storm in storms {
        ensure(!storm.is_finished(), || "a client could not connect any more".to_owned())?;
        storm.abort();
        let _ = storm.await;
    }
    let made = made.load(Ordering::Relaxed);
    ensure(made >= 3_000, || format!("{made} connections are no storm"))?;
    until("the broker has taken them all", async || Ok(scene.sockets_more()? == 0)).await?;
    scene.end(&format!("{made} connections, up to {PER_S} a second")).await
}

async fn storm(address: SocketAddr, number: u8, per_s: u32, made: Arc<AtomicU64>) -> io::Result<()> {
    let dial = Dial { from: 2 + number, receive_bytes: 0 };
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_s);
    for at in 0.. {
        pace.tick().await;
        match at % 3 {
            0 => drop(Raw::connect(address, dial).await?),
            1 => Raw::connect(address, dial).await?.vanish()?,
            _ => drop(Raw::open(address, dial, None).await?),
        }
        made.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
