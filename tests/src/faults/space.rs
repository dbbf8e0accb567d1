//! The drive has no room: by the broker's own data, or by somebody else's. Produce is refused by that name, everything else
//! goes on, also over a restart, and what waits is stored by itself once there is room.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use tidegate::{
    Client, CreditReason, Error, ErrorCode, ErrorKind, PartitionId, Producer, Record, Ticket, TopicSpec,
};

use super::scene::{Load, TOPIC, all_there, ensure, readable, until};
use crate::crash::mount::{Filesystem, Mounted};
use crate::crash::scratch;
use crate::ledger::Ledger;
use crate::process::{BrokerProcess, binary, counted};

/// The topic that fills the drive, and one that is deleted while it is full.
const FILL: &str = "fill";
const GONE: &str = "gone";
const FILL_RECORD_BYTES: usize = 64 << 10;

/// The broker fills the drive to its last byte.
pub(super) async fn drive_full() -> io::Result<String> {
    const ARGUMENTS: &[&str] = &["--shards", "1", "--free-space-floor", "0"];
    let dir = scratch()?;
    let (mounted, data) = small_drive(dir.path(), 288 << 20)?;
    let broker = BrokerProcess::start(&data, ARGUMENTS)?;
    let server = broker.server();
    let client = prepare(&server).await?;
    let ledger = Arc::new(Ledger::default());
    let load = Load::start(&ledger, &server, &[1, 16]);
    load.acks(100).await?;

    let (producer, waiting) = fill(&client).await?;
    everything_else_goes_on(&client, &ledger, &server).await?;
    let stored = readable(&client, FILL).await?;
    client.admin().delete_topic(GONE).await.map_err(io::Error::other)?;

    // It comes back on its full drive, at the same address: whoever waits goes on waiting.
    broker.kill()?;
    let broker = BrokerProcess::start_by(Command::new(binary("tidegate")?), &server, &data, ARGUMENTS)?;
    let client = Client::connect(&server).await.map_err(io::Error::other)?;
    let now = readable(&client, FILL).await?;
    ensure(now >= stored, || format!("{stored} records could be read before the restart, {now} after it"))?;
    ensure(
        !client.admin().list_topics().await.map_err(io::Error::other)?.iter().any(|t| t.name == GONE),
        || "a topic that was deleted while the drive was full is there again".into(),
    )?;
    refused_as_full(&client).await?;

    // Room again, and nobody but the operator does anything.
    client
        .admin()
        .delete_records(FILL, PartitionId(0), tidegate::Offset(now as i64))
        .await
        .map_err(io::Error::other)?;
    resumes(&load, producer, waiting).await?;
    ends_well(broker, mounted, load, &data).await?;
    Ok(format!(
        "refused after {} MiB; {} acks, all there",
        (stored * FILL_RECORD_BYTES as u64) >> 20,
        ledger.len()
    ))
}

/// Somebody else's file takes the room below the floor, and goes.
pub(super) async fn drive_below_floor() -> io::Result<String> {
    const ARGUMENTS: &[&str] = &["--shards", "1"];
    const LEFT_BYTES: u64 = 4 << 20;
    let dir = scratch()?;
    let (mounted, data) = small_drive(dir.path(), 512 << 20)?;
    let broker = BrokerProcess::start(&data, ARGUMENTS)?;
    let server = broker.server();
    let client = prepare(&server).await?;
    let ledger = Arc::new(Ledger::default());
    let load = Load::start(&ledger, &server, &[1, 16]);
    load.acks(100).await?;

    let ballast = mounted.path.join("ballast");
    let drive = nix::sys::statvfs::statvfs(&mounted.path)?;
    let free = drive.blocks_available() * drive.fragment_size();
    fallocate(File::create(&ballast)?, FallocateFlags::empty(), 0, free.saturating_sub(LEFT_BYTES) as i64)?;
    until("a refusal", async || Ok(refusal(&client).await?.is_some_and(|e| is_full(&e)))).await?;
    everything_else_goes_on(&client, &ledger, &server).await?;
    let before = ledger.len();
    std::fs::remove_file(&ballast)?;
    load.acks(100).await?;
    let resumed = ledger.len() - before;
    ends_well(broker, mounted, load, &data).await?;
    Ok(format!("{resumed} acks soon after there was room, {} in all, all there", ledger.len()))
}

fn small_drive(dir: &Path, bytes: u64) -> io::Result<(Mounted, std::path::PathBuf)> {
    let image = dir.join("drive.img");
    Filesystem::Ext4.make(&image, bytes)?;
    let mounted = Mounted::new(Filesystem::Ext4, &image, &dir.join("mnt"))?;
    let data = mounted.path.join("data");
    Ok((mounted, data))
}

async fn prepare(server: &str) -> io::Result<Client> {
    Load::create(server).await?;
    let client = Client::connect(server).await.map_err(io::Error::other)?;
    for topic in [FILL, GONE] {
        client.admin().create_topic(TopicSpec::new(topic)).await.map_err(io::Error::other)?;
    }
    Ok(client)
}

/// Produces until nothing has been acknowledged for a while and the drive is said to be full. What waits then was refused for want of
/// room, or accepted just before and waits for a file: in both cases it is stored once there is room. Returns the producer and what
/// waits in it.
async fn fill(client: &Client) -> io::Result<(Producer, Vec<Ticket>)> {
    let producer = client.producer(FILL).memory_bytes(4 << 20).start().await.map_err(io::Error::other)?;
    let mut value = vec![0u8; FILL_RECORD_BYTES];
    let mut tickets = std::collections::VecDeque::new();
    let mut number = 0u64;
    let (mut acked, mut since) = (0, Instant::now());
    let stopped = until("an end of the acks", async || {
        while let Some(ticket) = {
            value[..8].copy_from_slice(&number.to_le_bytes());
            producer.try_enqueue(Record::new(&value).partition(PartitionId(0))).map_err(io::Error::other)?
        } {
            number += 1;
            tickets.push_back(ticket);
            // Those in front have been answered long since.
            if tickets.len() > 256 {
                tickets.pop_front().expect("there are many").await.map_err(io::Error::other)?;
            }
        }
        let now = producer.stats().records_acked;
        if now > acked {
            (acked, since) = (now, Instant::now());
        }
        // A drive that others keep busy acknowledges nothing for a while, too.
        let is_quiet = acked > 0 && since.elapsed() > Duration::from_secs(1);
        Ok(is_quiet && refusal(client).await?.is_some_and(|e| is_full(&e)))
    })
    .await;
    stopped.map_err(|e| {
        let (stall, stats) = (producer.stall(), producer.stats());
        io::Error::other(format!("{e}; the producer says {stall:?}, {stats:?}, {} wait", tickets.len()))
    })?;
    Ok((producer, tickets.into()))
}

/// What reads, stores no records, or asks, works on a full drive, and the broker says what is the matter.
async fn everything_else_goes_on(client: &Client, ledger: &Ledger, server: &str) -> io::Result<()> {
    refused_as_full(client).await?;
    all_there(ledger, server, "on the full drive").await?;
    readable(client, FILL).await?;
    let admin = client.admin();
    let offsets = [(PartitionId(0), tidegate::Offset(1))];
    admin.commit_offsets("reader", TOPIC, &offsets).await.map_err(io::Error::other)?;
    until("a status that says that produce is refused for want of room", async || {
        let status = admin.status().await.map_err(io::Error::other)?;
        Ok(counted(&status, "produce_refused_for_room") > 0)
    })
    .await
}

/// What a new producer is told; none: its record was stored.
async fn refusal(client: &Client) -> io::Result<Option<Error>> {
    let producer = client.producer(FILL).start().await.map_err(io::Error::other)?;
    let _ticket = producer.enqueue(Record::new(b"one more")).await.map_err(io::Error::other)?;
    let mut told = None;
    until("an answer to a new producer", async || {
        told = producer.stall().map(|stall| stall.error).filter(|e| e.kind() != ErrorKind::Unreachable);
        Ok(told.is_some() || producer.stats().records_acked > 0)
    })
    .await?;
    Ok(told)
}

/// What little room a full drive still has, or gets back from what was settled meanwhile, a few small records may take first.
async fn refused_as_full(client: &Client) -> io::Result<()> {
    until("a refusal for want of room", async || Ok(refusal(client).await?.is_some_and(|e| is_full(&e))))
        .await
}

fn is_full(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NoCredit(CreditReason::DiskFull) | ErrorKind::Refused(ErrorCode::DiskFull)
    )
}

/// Everything that waited is stored, and more.
async fn resumes(load: &Load, producer: Producer, waiting: Vec<Ticket>) -> io::Result<()> {
    for ticket in waiting {
        let acked = tokio::time::timeout(Duration::from_secs(20), ticket).await;
        acked
            .map_err(|_| io::Error::other("there is room, but produce does not go on"))?
            .map_err(io::Error::other)?;
    }
    drop(producer);
    load.acks(100).await
}

async fn ends_well(broker: BrokerProcess, mounted: Mounted, load: Load, data: &Path) -> io::Result<()> {
    let ledger = Arc::clone(&load.ledger);
    load.finish().await?;
    ensure(ledger.refused() == 0, || format!("{} records were refused for good", ledger.refused()))?;
    let status = broker.terminate()?;
    ensure(status.success(), || format!("after SIGTERM the broker ended with {status}"))?;
    let broker = BrokerProcess::start(data, &[])?;
    all_there(&ledger, &broker.server(), "after everything").await?;
    broker.kill()?;
    mounted.unmount()
}
