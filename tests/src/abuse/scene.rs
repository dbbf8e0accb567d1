//! A broker under abuse, with the well-behaved client beside, and what must hold of both.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::Client;

use super::honest::{Honest, Latencies};
use crate::faults::scene::{Load, all_there, ensure, until};
use crate::process::{BrokerProcess, counted};

const MIB: u64 = 1 << 20;
const SHARDS: u64 = 2;
/// What the broker is allowed by its configuration, a shard: the logs and the writes under way.
const MEMORY_BYTES: u64 = 64 * MIB;
const IO_MEMORY_BYTES: u64 = 16 * MIB;
/// What a shard may take beside that: queued to clients, set aside for frames that have not come whole, kept for reuse
/// (64 MiB each, see docs/OPERATING.md).
const BESIDE_BYTES: u64 = 3 * 64 * MIB;
/// And the process: its code, rings and stacks, and 10 KiB for each of 10,000 connections.
const PROCESS_BYTES: u64 = 128 * MIB;
/// The most that the process may ever have taken.
const PEAK_BYTES_MAX: u64 = SHARDS * (MEMORY_BYTES + IO_MEMORY_BYTES + BESIDE_BYTES) + PROCESS_BYTES;

/// A quiet percentile below this counts as this much. Two shards, the client's thread and the abusers share two cores here, and
/// whoever wakes up beside another runnable thread waits for some milliseconds of scheduling: twice a quiet millisecond is
/// nothing that the broker could promise there, and nothing that anybody would notice.
const FLOOR: Duration = Duration::from_millis(10);

/// A broker, its well-behaved client, and what was measured.
pub struct Scene {
    dir: TempDir,
    /// The broker.
    pub broker: BrokerProcess,
    data: PathBuf,
    honest: Honest,
    quiet: Latencies,
    under_abuse: Option<Latencies>,
    sockets_before: usize,
}

impl Scene {
    /// Starts both and measures the client while nobody disturbs it.
    pub async fn begin() -> io::Result<Scene> {
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        let (shards, memory) = (SHARDS.to_string(), MEMORY_BYTES.to_string());
        let io_memory = IO_MEMORY_BYTES.to_string();
        let arguments = ["--shards", &shards, "--memory", &memory, "--io-memory", &io_memory];
        let broker = BrokerProcess::start(&data, &arguments)?;
        Load::create(&broker.server()).await?;
        let honest = Honest::start(&broker.server())?;
        let server = broker.server();
        has_its_files(&server).await?;
        let quiet = honest.measure().await?;
        let sockets_before = sockets(broker.pid())?;
        Ok(Scene { dir, broker, data, honest, quiet, under_abuse: None, sockets_before })
    }

    /// Measures the client while the abuse goes on. What one measurement finds too slow a second one has to confirm.
    pub async fn measure(&mut self) -> io::Result<()> {
        let mut found = self.honest.measure().await?;
        if found.ack > ack_max(self.quiet) {
            found = self.honest.measure().await?;
        }
        self.under_abuse = Some(found);
        Ok(())
    }

    /// What all shards together have under a name of `tg status`.
    pub async fn counted(&self, name: &str) -> io::Result<i64> {
        let client = Client::connect(&self.broker.server()).await.map_err(io::Error::other)?;
        Ok(counted(&client.admin().status().await.map_err(io::Error::other)?, name))
    }

    /// Sockets that the broker has open beside those it had before the abuse.
    pub fn sockets_more(&self) -> io::Result<usize> {
        Ok(sockets(self.broker.pid())?.saturating_sub(self.sockets_before))
    }

    /// The abuse is over, all its connections are closed: everything has to be as before. `what` has happened.
    pub async fn end(self, what: &str) -> io::Result<String> {
        let Scene { dir, broker, data, honest, mut quiet, under_abuse, sockets_before } = self;
        let under_abuse = under_abuse.ok_or_else(|| io::Error::other("nothing was measured"))?;
        let pid = broker.pid();
        // Data files stay open on purpose; connections do not.
        let left =
            until("the broker has closed the abusers' sockets", async || Ok(sockets(pid)? <= sockets_before))
                .await;
        left.map_err(|e| {
            let now = sockets(pid).unwrap_or_default();
            io::Error::other(format!("{e}: {sockets_before} before, {now} now"))
        })?;
        if under_abuse.ack > ack_max(quiet) {
            // A machine that has become busy with something else is slow without the abuse, too.
            let again = honest.measure().await?;
            quiet = if again.ack > quiet.ack { again } else { quiet };
        }
        let ledger = honest.finish().await?;
        let verdict = all_there(&ledger, &broker.server(), "after the abuse").await?;
        ensure(verdict.stored == verdict.checked, || format!("more is stored than was sent: {verdict:?}"))?;
        let peak = status_bytes(pid, "VmHWM")?;
        let status = broker.terminate()?;
        let log = std::fs::read_to_string(data.with_extension("log"))?;
        let bad = log.lines().find(|line| line.contains("panicked") || line.contains(" ERROR "));
        ensure(bad.is_none(), || format!("the broker's log says: {}", bad.unwrap_or_default()))?;
        ensure(status.success(), || format!("after SIGTERM the broker ended with {status}"))?;
        drop(dir);
        let ms = |latency: Duration| format!("{:.1}", latency.as_secs_f64() * 1000.0);
        let text = format!(
            "{what}; p99 of acks {} ms, quiet {} ms; of fetches {}, quiet {}; peak {} of {} MiB; {} acks",
            ms(under_abuse.ack),
            ms(quiet.ack),
            ms(under_abuse.fetch),
            ms(quiet.fetch),
            peak / MIB,
            PEAK_BYTES_MAX / MIB,
            ledger.len(),
        );
        ensure(peak <= PEAK_BYTES_MAX, || format!("too much memory: {text}"))?;
        ensure(under_abuse.ack <= ack_max(quiet), || {
            format!("acks take more than twice as long (or {FLOOR:?}, twice): {text}")
        })?;
        Ok(text)
    }
}

/// The longest that the slowest hundredth of acks may take under abuse.
fn ack_max(quiet: Latencies) -> Duration {
    2 * quiet.ack.max(FLOOR)
}

/// Waits until the broker fills no files with zeros any more: a new one is busy with that at first, and not quiet.
async fn has_its_files(server: &str) -> io::Result<()> {
    const LOOK: Duration = Duration::from_millis(300);
    // A shard has two of the smallest size when it starts; a client's first records ask for two of the next.
    const FILES: i64 = 4 * SHARDS as i64;
    let client = Client::connect(server).await.map_err(io::Error::other)?;
    let mut before = 0;
    until("all files are filled with zeros", async || {
        let status = client.admin().status().await.map_err(io::Error::other)?;
        let now = counted(&status, "files_zero_filled");
        if now >= FILES && now == before {
            return Ok(true);
        }
        before = now;
        tokio::time::sleep(LOOK).await;
        Ok(false)
    })
    .await
}

fn sockets(pid: u32) -> io::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // One that is closed while we look is none any more.
        let target = std::fs::read_link(entry?.path()).unwrap_or_default();
        count += usize::from(target.to_string_lossy().starts_with("socket:"));
    }
    Ok(count)
}

/// A figure of /proc/PID/status, in bytes.
pub fn status_bytes(pid: u32, name: &str) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other(format!("no {name} in /proc/{pid}/status")))
}
