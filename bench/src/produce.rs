//! Produce as fast as a running broker takes it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tidegate::{Acks, Client, Error, Level, PartitionId, ProducerEvent, Record};

use crate::latency::{Latencies, Summary};

/// What to produce.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The topic; it must exist. One task produces to each of its partitions.
    pub topic: String,
    /// Bytes of each record's value.
    pub record_bytes: usize,
    /// Bytes of a full batch.
    pub batch_bytes: usize,
    /// When a record counts as stored.
    pub acks: Acks,
    /// How long records are sent; what is under way then is waited for.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Records acknowledged.
    pub records: u64,
    /// Bytes of their batches, headers included.
    pub bytes: u64,
    /// Batches acknowledged.
    pub batches: u64,
    /// From the first record to the last acknowledgement.
    pub seconds: f64,
    /// MiB of batches acknowledged in a second.
    pub mib_per_s: f64,
    /// Records acknowledged in a second.
    pub records_per_s: f64,
    /// From a record's call to its acknowledgement; one record of each [`SAMPLED_EVERY`] is measured.
    pub ack: Summary,
    /// From a batch's sending to its acknowledgement.
    pub round_trip: Summary,
    /// The lowest level that any batch met: 0 none, 1 memory, 2 disk, 3 quorum.
    pub level_min: u8,
    /// Milliseconds during which batches waited for the broker's credit, summed over connections.
    pub credit_wait_ms: u64,
    /// Milliseconds during which callers waited for the producer's memory.
    pub memory_wait_ms: u64,
}

/// One record in so many has its latency measured: a ticket for each would cost more than the record.
pub const SAMPLED_EVERY: u64 = 64;

#[derive(Default)]
struct Observed {
    round_trip: Latencies,
    level_min: Option<Level>,
    error: Option<Error>,
}

/// Produces until the time is over, and waits for the last acknowledgement.
///
/// # Errors
/// The topic does not exist, the broker is lost, or any batch fails.
pub async fn run(client: &Client, workload: &Workload) -> Result<Outcome, Error> {
    let observed = Arc::new(Mutex::new(Observed::default()));
    let producer = client
        .producer(&workload.topic)
        .acks(workload.acks)
        .batch_bytes(workload.batch_bytes)
        .observe({
            let observed = observed.clone();
            move |event| observed.lock().expect("no observer panics").add(event)
        })
        .start()
        .await?;
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for partition in 0..producer.partition_count() {
        let (producer, workload) = (producer.clone(), workload.clone());
        tasks.push(tokio::spawn(async move {
            let value = payload(workload.record_bytes, partition as u64);
            let record = Record::new(&value).partition(PartitionId(partition));
            let latencies = Arc::new(Mutex::new(Latencies::new()));
            let mut count = 0u64;
            loop {
                if count.is_multiple_of(SAMPLED_EVERY) {
                    let at = Instant::now();
                    if at.duration_since(begun) >= workload.time {
                        return Ok::<_, Error>(latencies);
                    }
                    let ticket = producer.enqueue(record).await?;
                    let latencies = latencies.clone();
                    tokio::spawn(async move {
                        if ticket.await.is_ok() {
                            let micros = at.elapsed().as_micros() as u64;
                            latencies.lock().expect("no recorder panics").record(micros);
                        }
                    });
                } else {
                    producer.enqueue(record).await?;
                }
                count += 1;
            }
        }));
    }
    let mut histograms = Vec::new();
    for task in tasks {
        histograms.push(task.await.expect("a task that produces does not panic")?);
    }
    producer.flush().await?;
    let seconds = begun.elapsed().as_secs_f64();
    let stats = producer.stats();
    producer.close().await?;
    let mut ack = Latencies::new();
    for histogram in histograms {
        ack.merge(&histogram.lock().expect("no recorder panics"));
    }
    let observed = observed.lock().expect("no observer panics");
    if let Some(error) = &observed.error {
        return Err(error.clone());
    }
    Ok(Outcome {
        records: stats.records_acked,
        bytes: stats.bytes_acked,
        batches: stats.batches_acked,
        seconds,
        mib_per_s: stats.bytes_acked as f64 / seconds / f64::from(1 << 20),
        records_per_s: stats.records_acked as f64 / seconds,
        ack: ack.summary(),
        round_trip: observed.round_trip.summary(),
        level_min: observed.level_min.map_or(0, |level| level as u8),
        credit_wait_ms: stats.credit_wait_us / 1000,
        memory_wait_ms: stats.memory_wait_us / 1000,
    })
}

impl Observed {
    fn add(&mut self, event: &ProducerEvent) {
        match event {
            ProducerEvent::Acknowledged(ack) => {
                self.round_trip.record(ack.round_trip_us);
                self.level_min = Some(self.level_min.map_or(ack.level, |level| level.min(ack.level)));
            }
            ProducerEvent::Failed { error, .. } => {
                self.error.get_or_insert_with(|| error.clone());
            }
            _ => {}
        }
    }
}

/// Bytes that do not compress.
pub(crate) fn payload(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(length)
    .collect()
}
