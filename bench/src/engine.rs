//! Runs one workload: starts consumers, then producers, waits for the last acknowledgement and the last arrival.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Client, Error};
use tokio::runtime::Handle;

use crate::load::consume::{ARRIVAL, Consumed, Readers, Standing};
use crate::load::link::Link;
use crate::load::{Job, Published, sdk, wire};
use crate::machine::{CpuShares, CpuTimes, Device, Process};
use crate::series::{Clock, Live, Window};
use crate::workload::{ClientKind, ReadFrom, Workload};

/// Between the start of the workers' threads and the first send: all of them are there by then. What takes longer, such as
/// connections and the identities of producers, is made before.
const LEAD: Duration = Duration::from_millis(200);

/// The broker that is measured.
#[derive(Clone, Debug)]
pub struct Site {
    /// Where it listens.
    pub server: String,
    /// A client of it.
    pub client: Client,
    /// The threads of clients.
    pub handle: Handle,
    /// Where its data lie, if that is on this machine: for what the drive writes.
    pub data: Option<PathBuf>,
    /// Its process, if that is known: for what others take of the processors.
    pub process: Option<Process>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub workload: Workload,
    /// Of the producers; none without any.
    pub published: Option<Published>,
    /// Of each reading, in their order.
    pub consumed: Vec<Consumed>,
    /// The processors' time, warm-up included.
    pub cpu: CpuShares,
    /// Bytes that the drive wrote from the first send to the last acknowledgement, whoever wrote them.
    pub device_written: Option<u64>,
}

/// Why a run could not go on.
#[derive(Debug)]
pub enum RunError {
    /// The SDK says why.
    Client(Error),
    /// A plain socket, a file or the broker on the other end of it.
    Io(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Client(error) => error.fmt(f),
            RunError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {}

impl From<Error> for RunError {
    fn from(error: Error) -> RunError {
        RunError::Client(error)
    }
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> RunError {
        RunError::Io(error)
    }
}

/// Runs a workload to its end, or until `stop` is set. Blocks; must not be called from a task.
///
/// # Errors
/// A topic does not exist, the broker is lost, or stored data is damaged. Records that are refused are counted, not an
/// error.
pub fn run(
    site: &Site,
    workload: &Workload,
    live: &Arc<Live>,
    stop: &AtomicBool,
) -> Result<Outcome, RunError> {
    let device = site.data.as_deref().and_then(Device::of);
    let written = || device.as_ref().and_then(|device| device.written_bytes().ok());
    let clock = Clock::start();
    let producers = start_producers(site, workload, clock, live)?;
    let mut standing = Vec::new();
    for reading in &workload.readings {
        standing.push(Standing::open(&site.client, &site.handle, reading)?);
    }
    let (cpu_before, own_before, written_before) = (CpuTimes::now(), own_seconds(site), written());
    let start_ns = clock.now_ns() + LEAD.as_nanos() as u64;
    let window = Window::after(start_ns, workload.warmup, workload.time);
    let job = Job { clock, start_ns, window, live, stop };
    let (arrived_before, published_before) = (Live::of(&live.arrived), Live::of(&live.published));
    let readers: Vec<Readers> =
        standing.into_iter().map(|standing| standing.begin(&site.client, &site.handle, &job)).collect();
    let published = if workload.producers == 0 {
        wait_for_window(&job, &readers);
        None
    } else {
        Some(produce(&job, site, workload, producers)?)
    };
    let device_written = written().zip(written_before).map(|(after, before)| after - before);
    let sent = Live::of(&live.published) - published_before;
    let missing = await_arrival(&job, workload, sent, arrived_before);
    let mut consumed = Vec::new();
    for reader in readers {
        consumed.push(reader.finish(&site.handle)?);
    }
    let tail = workload.readings.iter().position(|reading| reading.from == ReadFrom::Tail);
    if let Some(tail) = tail {
        consumed[tail].series.missing(missing);
    }
    let own_after = own_seconds(site);
    let cpu_after = CpuTimes::now();
    let mut cpu = cpu_after.since(cpu_before);
    if let Some((after, before)) = own_after.zip(own_before) {
        cpu = cpu.without(after - before, cpu_after.seconds_since(cpu_before));
    }
    Ok(Outcome { workload: workload.clone(), published, consumed, cpu, device_written })
}

/// Seconds of processor time that the broker's process and this one have used.
fn own_seconds(site: &Site) -> Option<f64> {
    let this = Process { pid: std::process::id() };
    Some(site.process?.cpu_seconds().ok()? + this.cpu_seconds().ok()?)
}

/// Records and bytes of one arrival at the broker or the SDK: a full batch where batches are prepared, else a record.
pub fn arrival(workload: &Workload) -> (usize, usize) {
    match workload.client {
        ClientKind::Sdk => (1, workload.record_bytes),
        ClientKind::Wire => {
            let batch = wire::prepare(workload);
            (batch.records as usize, batch.bytes.len())
        }
    }
}

/// What produces, ready to send.
enum Producers {
    Wire(Vec<Link>),
    Sdk(Vec<sdk::Started>),
}

/// Connections of prepared batches, or producers of the SDK. A busy broker may take seconds for them.
fn start_producers(
    site: &Site,
    workload: &Workload,
    clock: Clock,
    live: &Arc<Live>,
) -> Result<Producers, RunError> {
    if workload.producers == 0 {
        return Ok(Producers::Wire(Vec::new()));
    }
    if workload.client == ClientKind::Sdk {
        return Ok(Producers::Sdk(sdk::start(&site.client, &site.handle, workload, clock, live)?));
    }
    let topics = site.handle.block_on(site.client.admin().list_topics())?;
    let topic = topics.iter().find(|topic| topic.name == workload.topic);
    let topic = topic.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no topic {:?}", workload.topic))
    })?;
    Ok(Producers::Wire(wire::connect(&site.server, topic.topic, &topic.partitions, workload)?))
}

fn produce(
    job: &Job<'_>,
    site: &Site,
    workload: &Workload,
    producers: Producers,
) -> Result<Published, RunError> {
    match producers {
        Producers::Sdk(producers) => Ok(sdk::run(job, producers, &site.handle, workload)?),
        Producers::Wire(links) => Ok(wire::run(job, links, workload)?),
    }
}

/// Waits for the window's end, or until there is nothing more to read.
fn wait_for_window(job: &Job<'_>, readers: &[Readers]) {
    while job.clock.now_ns() < job.window.end_ns
        && (readers.is_empty() || !readers.iter().all(Readers::is_finished))
        && !job.stop.load(Ordering::Relaxed)
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until tail readers have what was acknowledged, for it belongs to their latency; other readers end with the window.
/// Returns how many records have not come.
fn await_arrival(job: &Job<'_>, workload: &Workload, sent: u64, arrived_before: u64) -> u64 {
    let tails = workload.readings.iter().filter(|reading| reading.from == ReadFrom::Tail);
    let expected = sent * tails.map(|reading| reading.subscriptions as u64).sum::<u64>();
    let missing = || (arrived_before + expected).saturating_sub(Live::of(&job.live.arrived));
    let begun = Instant::now();
    while missing() > 0 && begun.elapsed() < ARRIVAL && !job.stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    missing()
}

impl Outcome {
    /// Adds a later slice of the same run.
    ///
    /// # Panics
    /// The slices are of different workloads.
    pub fn append(&mut self, later: Outcome) {
        match (&mut self.published, later.published) {
            (Some(mine), Some(theirs)) => mine.append(theirs),
            (None, None) => {}
            _ => panic!("slices of one run all produce or none does"),
        }
        assert_eq!(self.consumed.len(), later.consumed.len(), "slices of one run have the same readings");
        for (mine, theirs) in self.consumed.iter_mut().zip(later.consumed) {
            mine.series.append(theirs.series);
            mine.records += theirs.records;
            mine.ended_early |= theirs.ended_early;
        }
        // Of two slices the worse one counts.
        self.cpu = CpuShares {
            busy: self.cpu.busy.max(later.cpu.busy),
            steal: self.cpu.steal.max(later.cpu.steal),
            others: self.cpu.others.zip(later.cpu.others).map(|(a, b)| a.max(b)),
        };
        self.device_written = self.device_written.zip(later.device_written).map(|(a, b)| a + b);
    }

    /// Why its figures are none to quote, if they are not: records that failed or never came, or arrivals that nobody timed.
    pub fn shortcoming(&self) -> Option<String> {
        let published = self.published.as_ref();
        let failed = published.map_or(0, |published| published.series.errors);
        if failed > 0 {
            let why = published.and_then(|published| published.first_error.as_deref()).unwrap_or("unknown");
            return Some(format!("{failed} records failed: {why}"));
        }
        for (reading, consumed) in self.workload.readings.iter().zip(&self.consumed) {
            if consumed.series.errors > 0 {
                return Some(format!(
                    "{} records never arrived at {}",
                    consumed.series.errors, consumed.name
                ));
            }
            if reading.from == ReadFrom::Tail && published.is_some() && consumed.series.latency.count() == 0 {
                return Some(format!("no arrival at {} has a latency", consumed.name));
            }
        }
        None
    }

    /// Records that failed.
    pub fn errors(&self) -> u64 {
        let published = self.published.as_ref().map_or(0, |published| published.series.errors);
        published + self.consumed.iter().map(|consumed| consumed.series.errors).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::sample_outcome;
    use crate::series::Series;
    use crate::workload::Reading;

    /// An outcome with a tail reading, of whose arrivals `timed` have a latency.
    fn with_tail(timed: u64) -> Outcome {
        let mut outcome = sample_outcome(1_000);
        outcome.workload.readings = vec![Reading::each("tail", "t", ReadFrom::Tail, 1)];
        let mut series = Series::new(Window { begin_ns: 0, end_ns: 1_000, interval_ns: 1_000 });
        if timed > 0 {
            series.done(0, 500, timed, timed);
        }
        let name = "tail".to_owned();
        outcome.consumed = vec![Consumed { name, series, records: timed, ended_early: false }];
        outcome
    }

    #[test]
    fn a_run_whose_records_failed_or_never_came_is_none_to_quote() {
        assert_eq!(with_tail(5).shortcoming(), None);
        let mut lost = with_tail(5);
        lost.consumed[0].series.missing(2);
        assert_eq!(lost.shortcoming().as_deref(), Some("2 records never arrived at tail"));
        assert_eq!(with_tail(0).shortcoming().as_deref(), Some("no arrival at tail has a latency"));
        let mut failed = with_tail(5);
        failed.published.as_mut().unwrap().series.missing(3);
        assert!(failed.shortcoming().is_some_and(|why| why.starts_with("3 records failed")));
        assert_eq!(sample_outcome(1_000).shortcoming(), None, "nobody reads");
    }
}
