//! What a run does, as plain data, and when its sends are due.

use std::time::Duration;

use serde::Serialize;
use tidegate::{Acks, Compression};

/// Bytes of a full batch, unless a number of records is asked for: the SDK's default.
pub const BATCH_BYTES: usize = 256 << 10;

/// One run: what is produced, what is consumed meanwhile, and for how long.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What people call it.
    pub name: String,
    /// The topic; it must exist.
    pub topic: String,
    /// Its partitions.
    pub partitions: i32,
    /// Producers, each with its own connections; 0: nothing is produced.
    pub producers: usize,
    /// What is consumed meanwhile.
    pub readings: Vec<Reading>,
    /// Bytes of each record's value.
    pub record_bytes: usize,
    /// Records of a full batch; 0: as many as fit [`BATCH_BYTES`].
    pub batch_records: usize,
    /// When a record counts as stored.
    pub acks: Acks,
    /// How durable the topic is: told in the result, the topic itself decides.
    pub durability: Durability,
    /// Records due in a second over all producers; none: as many as go.
    pub rate: Option<f64>,
    /// Runs before anything counts.
    pub warmup: Duration,
    /// How long records are sent and count.
    pub time: Duration,
    /// The share of each value that compresses to nearly nothing, from 0 to 1.
    pub compressible: f64,
    /// How the SDK compresses batches.
    pub compression: Compression,
    /// Different keys; 0: records without a key.
    pub keys: u64,
    /// What produces.
    pub client: ClientKind,
    /// Frames under way at most on each connection (wire), batches in flight for each partition (SDK).
    pub in_flight: usize,
}

/// What is consumed. Always by the SDK, which checks the checksum of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What people call it.
    pub name: String,
    /// The topic.
    pub topic: String,
    /// From where.
    pub from: ReadFrom,
    /// How often the whole stream is read.
    pub subscriptions: usize,
    /// Consumers of a subscription, which share its partitions.
    pub consumers: usize,
    /// Whether readers have all cores or half of them.
    pub cores: Cores,
    /// What readers take out of the stream.
    pub looks_at: LooksAt,
}

/// What a consumer takes out of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LooksAt {
    /// Batches, each of which says how many records it has.
    Batches,
    /// Every record, by the SDK's iterator.
    Records,
}

/// Where consumers begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the end: what is produced meanwhile.
    Tail,
    /// At the beginning, up to the end, once.
    Start,
    /// At the beginning, up to the end, again and again.
    Again,
}

/// The cores that the threads of readers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// All.
    All,
    /// Half of them, at least one.
    Half,
}

/// How durable a topic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// An acknowledgement follows the flush.
    Disk,
    /// An acknowledgement may come from memory.
    Relaxed,
}

/// What produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientKind {
    /// Batches built once and sent again and again: measures the broker.
    Wire,
    /// The SDK, record by record: measures both together.
    Sdk,
}

impl Reading {
    /// One consumer for each of `subscriptions`, on all cores.
    pub fn each(name: &str, topic: &str, from: ReadFrom, subscriptions: usize) -> Reading {
        let (name, topic) = (name.to_owned(), topic.to_owned());
        let (consumers, cores, looks_at) = (1, Cores::All, LooksAt::Batches);
        Reading { name, topic, from, subscriptions, consumers, cores, looks_at }
    }
}

impl Workload {
    /// Bytes at which a batch is full, headers included.
    pub fn batch_bytes(&self) -> usize {
        // The longest record head there is, with a key.
        const RECORD_OVERHEAD: usize = 32;
        match self.batch_records {
            0 => BATCH_BYTES,
            records => 61 + records * (self.record_bytes + RECORD_OVERHEAD),
        }
    }
}

/// When the sends of one worker are due: evenly, whatever becomes of them.
///
/// Latency from these times includes the wait of sends that a slow broker held up, which is what a user would have seen
/// (Tene, "How NOT to Measure Latency").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    first_ns: f64,
    step_ns: f64,
}

impl Schedule {
    /// Sends of worker `worker` of `workers`, which have `per_second` between them, from `begin_ns` on. The workers take
    /// turns.
    pub fn new(begin_ns: u64, per_second: f64, worker: usize, workers: usize) -> Schedule {
        let step_ns = 1e9 * workers as f64 / per_second;
        Schedule { first_ns: begin_ns as f64 + step_ns * worker as f64 / workers as f64, step_ns }
    }

    /// When send number `index`, from 0, is due.
    pub fn due_ns(&self, index: u64) -> u64 {
        (self.first_ns + self.step_ns * index as f64) as u64
    }
}

/// A small workload for tests.
#[cfg(test)]
pub(crate) fn sample() -> Workload {
    Workload {
        name: "sample".into(),
        topic: "t".into(),
        partitions: 1,
        producers: 1,
        readings: Vec::new(),
        record_bytes: 100,
        batch_records: 1,
        acks: Acks::Leader,
        durability: Durability::Disk,
        rate: None,
        warmup: Duration::ZERO,
        time: Duration::from_secs(1),
        compressible: 0.0,
        compression: Compression::None,
        keys: 0,
        client: ClientKind::Wire,
        in_flight: 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_turns_and_keep_the_rate() {
        let workers = [0, 1, 2, 3].map(|worker| Schedule::new(1_000, 1e6, worker, 4));
        let mut due: Vec<u64> =
            (0..5).flat_map(|i| workers.iter().map(move |worker| worker.due_ns(i))).collect();
        due.sort_unstable();
        assert_eq!(due[0], 1_000);
        assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 1_000), "one a microsecond: {due:?}");
    }
}
