//! While the demo runs: threads that sample and enqueue, a reader in parallel, and a line of rates every second.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate::{Batch, Client, Error, Header, Level, Producer, ProducerEvent, ProducerStats, Record, Start};
use tidegate_bench::latency::Latencies;
use tokio::runtime::Handle;

use crate::args::DemoArgs;
use crate::exit::{Code, Failure};
use crate::output::Out;
use crate::time::now_ns;

use super::TOPIC;
use super::digest::{Digest, Seen};
use super::report;
use super::sampler::{Next, Sample, Sampler, Share};

/// One record in so many has its acknowledgement timed: a timer for each would cost more than the record.
const TIMED_EVERY: u64 = 16;

/// What the producer may hold unacknowledged. Small, so that samplers that are faster than the broker wait instead of
/// building a queue whose length would be all that the latencies show.
const MEMORY_BYTES: usize = 8 << 20;

/// How long the reader may stand still before the demo gives up.
const STALLED: Duration = Duration::from_secs(30);

/// What came of sampling, producing and reading in parallel.
pub(super) struct Outcome {
    /// What was sampled.
    pub(super) sampled: Digest,
    /// What the reader saw meanwhile.
    pub(super) read: Live,
    /// From a sample's enqueueing to its acknowledgement.
    pub(super) ack: Latencies,
    /// Bytes of batches acknowledged.
    pub(super) bytes_acked: u64,
    /// Batches acknowledged.
    pub(super) batches: u64,
    /// The lowest level met.
    pub(super) level: Level,
    /// From the first sample to the last acknowledgement.
    pub(super) seconds: f64,
    /// Seconds of sampler threads, summed.
    pub(super) sampler_seconds: f64,
    /// Seconds of them that were spent waiting for the producer's memory.
    pub(super) waiting_seconds: f64,
    /// Seconds that batches waited for the broker's credit, summed over connections.
    pub(super) credit_seconds: f64,
    /// Share of all cores that was busy, 0 to 1.
    pub(super) cores_busy: f64,
}

/// What one reader has seen.
#[derive(Default)]
pub(super) struct Live {
    /// Every record.
    pub(super) digest: Digest,
    /// Records.
    pub(super) records: u64,
    /// Bytes of batches.
    pub(super) bytes: u64,
    /// From a sample's own time to its arrival here.
    pub(super) end_to_end: Latencies,
}

impl Live {
    /// Takes in a batch that arrived at `now_ns`.
    ///
    /// # Errors
    /// The batch cannot be read, or a record is none of the demo's.
    pub(super) fn add(&mut self, batch: &Batch, now_ns: u64) -> Result<(), Failure> {
        for record in batch.records()? {
            let record = record?;
            let (mut host, mut unit) = (None, None);
            for (name, value) in record.headers() {
                match name {
                    "host" => host = value,
                    "unit" => unit = value,
                    _ => {}
                }
            }
            let value = record.value().unwrap_or_default();
            let (Some(key), Some(host), Some(unit), Some(t_ns)) = (record.key(), host, unit, t_ns(value))
            else {
                let place = format!("partition {} offset {}", batch.partition(), record.offset());
                return Err(Failure::new(Code::Differs, "a record is not what the demo wrote").place(place));
            };
            self.digest.add(Seen { key, value, host, unit, t_ns });
            self.end_to_end.record(now_ns.saturating_sub(t_ns) / 1000);
            self.records += 1;
        }
        self.bytes += batch.bytes().len() as u64;
        Ok(())
    }
}

/// The time that stands at the beginning of every sample.
fn t_ns(value: &[u8]) -> Option<u64> {
    let digits = value.strip_prefix(b"{\"t_ns\":")?;
    let end = digits.iter().position(|b| !b.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// What the threads, the reader and the line of rates share.
#[derive(Default)]
struct Shared {
    /// No further sample is to be taken; those under way are still enqueued.
    stop: AtomicBool,
    /// The samplers have ended: `enqueued` grows no more.
    all_enqueued: AtomicBool,
    enqueued: AtomicU64,
    acked: AtomicU64,
    bytes_acked: AtomicU64,
    read: AtomicU64,
    observed: Mutex<Observed>,
}

#[derive(Default)]
struct Observed {
    ack: Latencies,
    level: Option<Level>,
    error: Option<Error>,
}

/// Samples for the time asked for, and reads in parallel until everything has come.
pub(super) async fn run(client: &Client, args: &DemoArgs, out: &mut Out) -> Result<Outcome, Failure> {
    let shared = Arc::new(Shared::default());
    let producer =
        client.producer(TOPIC).memory_bytes(MEMORY_BYTES).observe(observer(shared.clone())).start().await?;
    let reader = tokio::spawn(read(client.clone(), shared.clone()));
    let begun = Instant::now();
    let cpu_before = cpu_ticks();
    let mut threads = Vec::new();
    for index in 0..args.samplers {
        threads.push(spawn_sampler(Share { index, of: args.samplers }, &producer, &shared)?);
    }
    let deadline = begun + Duration::from_secs(args.seconds);
    let watched = watch(&shared, begun, deadline, &reader, out).await;
    shared.stop.store(true, Ordering::Relaxed);
    let mut sampled = Digest::default();
    let (mut sampler_seconds, mut waiting_seconds) = (0.0, 0.0);
    for thread in threads {
        let joined =
            tokio::task::spawn_blocking(move || thread.join().expect("a sampler does not panic")).await;
        let part = joined.expect("joining does not panic")?;
        sampled.join(part.digest);
        sampler_seconds += part.seconds;
        waiting_seconds += part.waiting_seconds;
    }
    shared.all_enqueued.store(true, Ordering::SeqCst);
    watched?;
    producer.flush().await?;
    let seconds = begun.elapsed().as_secs_f64();
    let cores_busy = busy_share(cpu_before, cpu_ticks());
    let stats = settled(&producer).await;
    producer.close().await?;
    let read = finish_reading(reader, &shared).await?;
    let observed = std::mem::take(&mut *shared.observed.lock().expect("no observer panics"));
    if let Some(error) = observed.error {
        return Err(error.into());
    }
    Ok(Outcome {
        sampled,
        read,
        ack: observed.ack,
        bytes_acked: stats.bytes_acked,
        batches: stats.batches_acked,
        level: observed.level.unwrap_or(Level::None),
        seconds,
        sampler_seconds,
        waiting_seconds,
        credit_seconds: stats.credit_wait_us as f64 / 1e6,
        cores_busy,
    })
}

/// The producer's counters once they have caught up with the flush before.
async fn settled(producer: &Producer) -> ProducerStats {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let stats = producer.stats();
        if stats.records_acked + stats.records_failed >= stats.records || Instant::now() >= deadline {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn observer(shared: Arc<Shared>) -> impl Fn(&ProducerEvent) + Send + Sync + 'static {
    move |event| {
        let mut observed = shared.observed.lock().expect("no observer panics");
        match event {
            ProducerEvent::Acknowledged(ack) => {
                shared.acked.fetch_add(ack.record_count.into(), Ordering::Relaxed);
                shared.bytes_acked.fetch_add(ack.bytes.into(), Ordering::Relaxed);
                observed.level = Some(observed.level.map_or(ack.level, |level| level.min(ack.level)));
            }
            ProducerEvent::Failed { error, .. } => {
                observed.error.get_or_insert_with(|| error.clone());
                shared.stop.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// What one sampler thread has done.
struct Part {
    digest: Digest,
    seconds: f64,
    waiting_seconds: f64,
}

fn spawn_sampler(
    share: Share,
    producer: &Producer,
    shared: &Arc<Shared>,
) -> Result<JoinHandle<Result<Part, Failure>>, Failure> {
    let sampler = Sampler::open(Path::new("/proc"), share)
        .map_err(|e| Failure::new(Code::Failed, format!("cannot sample this machine: {e}")).place("/proc"))?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let mut sampling = Sampling {
        producer: producer.clone(),
        shared: shared.clone(),
        handle: Handle::current(),
        host,
        digest: Digest::default(),
        waiting: Duration::ZERO,
        count: 0,
    };
    let thread = std::thread::Builder::new().name(format!("sampler-{}", share.index));
    let spawned = thread.spawn(move || sampling.run(sampler));
    spawned.map_err(|e| Failure::new(Code::Failed, format!("cannot start a thread: {e}")))
}

/// One thread: reads a file, enqueues its samples, reads the next.
struct Sampling {
    producer: Producer,
    shared: Arc<Shared>,
    handle: Handle,
    host: String,
    digest: Digest,
    waiting: Duration,
    count: u64,
}

impl Sampling {
    fn run(&mut self, mut sampler: Sampler) -> Result<Part, Failure> {
        let begun = Instant::now();
        let mut rescanned = Instant::now();
        let mut samples = Vec::new();
        let mut result = Ok(());
        let handle = self.handle.clone();
        let _entered = handle.enter();
        while result.is_ok() && !self.shared.stop.load(Ordering::Relaxed) {
            sampler.sample_all(&mut samples, &mut |samples| {
                for sample in samples.drain(..) {
                    result = self.enqueue(&sample);
                    if result.is_err() {
                        return Next::Stop;
                    }
                }
                if self.shared.stop.load(Ordering::Relaxed) { Next::Stop } else { Next::Go }
            });
            if rescanned.elapsed() >= Duration::from_secs(1) {
                // A directory that cannot be listed now leaves the processes that are known.
                let _ = sampler.rescan();
                rescanned = Instant::now();
            }
        }
        result?;
        let digest = std::mem::take(&mut self.digest);
        let waiting_seconds = self.waiting.as_secs_f64();
        Ok(Part { digest, seconds: begun.elapsed().as_secs_f64(), waiting_seconds })
    }

    fn enqueue(&mut self, sample: &Sample) -> Result<(), Failure> {
        let (host, unit) = (self.host.as_bytes(), sample.unit.as_bytes());
        let headers =
            [Header { name: "host", value: Some(host) }, Header { name: "unit", value: Some(unit) }];
        let record = Record::keyed(sample.series.as_bytes(), &sample.value)
            .headers(&headers)
            .timestamp_ms((sample.t_ns / 1_000_000) as i64);
        let at = Instant::now();
        let ticket = match self.producer.try_enqueue(record)? {
            Some(ticket) => ticket,
            None => {
                let ticket = self.handle.block_on(self.producer.enqueue(record))?;
                self.waiting += at.elapsed();
                ticket
            }
        };
        self.digest.add(Seen {
            key: sample.series.as_bytes(),
            value: &sample.value,
            host,
            unit,
            t_ns: sample.t_ns,
        });
        if self.count.is_multiple_of(TIMED_EVERY) {
            let shared = self.shared.clone();
            self.handle.spawn(async move {
                if ticket.await.is_ok() {
                    let micros = at.elapsed().as_micros() as u64;
                    shared.observed.lock().expect("no observer panics").ack.record(micros);
                }
            });
        }
        self.count += 1;
        self.shared.enqueued.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Reads until it has seen as many records as were enqueued, once all are.
async fn read(client: Client, shared: Arc<Shared>) -> Result<Live, Failure> {
    let mut live = Live::default();
    let mut consumer = client.consumer(TOPIC).from(Start::Earliest).start().await?;
    loop {
        if shared.all_enqueued.load(Ordering::SeqCst)
            && live.records >= shared.enqueued.load(Ordering::Relaxed)
        {
            consumer.close().await;
            return Ok(live);
        }
        // The wait is short so that the end is noticed also when nothing more comes.
        match tokio::time::timeout(Duration::from_millis(100), consumer.next_batch()).await {
            Err(_) => {}
            Ok(None) => return Err(Failure::new(Code::Failed, "the stream of records ended by itself")),
            Ok(Some(batch)) => live.add(&batch?, now_ns())?,
        }
        shared.read.store(live.records, Ordering::Relaxed);
    }
}

type Reader = tokio::task::JoinHandle<Result<Live, Failure>>;

/// Prints rates once a second until the deadline, or until something has failed.
async fn watch(
    shared: &Shared,
    begun: Instant,
    deadline: Instant,
    reader: &Reader,
    out: &mut Out,
) -> Result<(), Failure> {
    let (mut acked_before, mut bytes_before, mut at_before) = (0, 0, begun);
    while Instant::now() < deadline && !shared.stop.load(Ordering::Relaxed) && !reader.is_finished() {
        let next = (at_before + Duration::from_secs(1)).min(deadline);
        tokio::time::sleep_until(next.into()).await;
        let elapsed = at_before.elapsed().as_secs_f64();
        let acked = shared.acked.load(Ordering::Relaxed);
        let bytes = shared.bytes_acked.load(Ordering::Relaxed);
        let line = report::Rates {
            second: begun.elapsed().as_secs_f64().round() as u64,
            records_per_s: (acked - acked_before) as f64 / elapsed,
            bytes_per_s: (bytes - bytes_before) as f64 / elapsed,
            unacked: shared.enqueued.load(Ordering::Relaxed).saturating_sub(acked),
            lag: acked.saturating_sub(shared.read.load(Ordering::Relaxed)),
        };
        line.print(out)?;
        (acked_before, bytes_before, at_before) = (acked, bytes, Instant::now());
    }
    Ok(())
}

/// Waits for the reader as long as it makes progress.
async fn finish_reading(mut reader: Reader, shared: &Shared) -> Result<Live, Failure> {
    let mut seen = 0;
    loop {
        match tokio::time::timeout(STALLED, &mut reader).await {
            Ok(joined) => return joined.expect("the reader does not panic"),
            Err(_) if shared.read.load(Ordering::Relaxed) > seen => {
                seen = shared.read.load(Ordering::Relaxed)
            }
            Err(_) => {
                reader.abort();
                let enqueued = shared.enqueued.load(Ordering::Relaxed);
                let failure = Failure::new(Code::Differs, "the reader gets no more records");
                return Err(failure.limit(format!("{enqueued} records")).current(format!("{seen} records")));
            }
        }
    }
}

/// Ticks of all cores so far: busy and idle.
#[derive(Clone, Copy, Default)]
struct CpuTicks {
    busy: u64,
    idle: u64,
}

fn cpu_ticks() -> CpuTicks {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbers: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|n| n.parse().ok())
        .collect();
    // The fourth and fifth are idle and waiting for the drive.
    let idle = numbers.get(3).unwrap_or(&0) + numbers.get(4).unwrap_or(&0);
    CpuTicks { busy: numbers.iter().sum::<u64>() - idle, idle }
}

fn busy_share(before: CpuTicks, after: CpuTicks) -> f64 {
    let busy = after.busy.saturating_sub(before.busy) as f64;
    let all = busy + after.idle.saturating_sub(before.idle) as f64;
    if all > 0.0 { busy / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_sample_is_found() {
        assert_eq!(t_ns(b"{\"t_ns\":17,\"user\":1}"), Some(17));
        assert_eq!(t_ns(b"{\"t_ns\":17}"), Some(17));
        assert_eq!(t_ns(b"{\"t_ns\":17"), None);
        assert_eq!(t_ns(b"text"), None);
    }
}
