//! Consume as fast as a running broker gives it.

use std::time::Instant;

use serde::Serialize;
use tidegate::{Client, Error, Start};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Records read.
    pub records: u64,
    /// Bytes of their batches, headers included.
    pub bytes: u64,
    /// From the start to the last batch.
    pub seconds: f64,
    /// MiB of batches read in a second.
    pub mib_per_s: f64,
    /// Records read in a second.
    pub records_per_s: f64,
}

/// Reads all that is in a topic when it starts; batches are checked, their records are not looked at.
///
/// # Errors
/// The topic does not exist, the broker is lost, or data is damaged.
pub async fn run(client: &Client, topic: &str) -> Result<Outcome, Error> {
    let begun = Instant::now();
    let mut consumer = client.consumer(topic).from(Start::Earliest).until_end().start().await?;
    let (mut records, mut bytes) = (0, 0);
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch?;
        records += u64::from(batch.record_count());
        bytes += batch.bytes().len() as u64;
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Outcome {
        records,
        bytes,
        seconds,
        mib_per_s: bytes as f64 / seconds / f64::from(1 << 20),
        records_per_s: records as f64 / seconds,
    })
}
