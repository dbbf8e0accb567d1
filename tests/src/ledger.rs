//! What a client outside the broker was promised: every acknowledged record with its place and value. After whatever has
//! happened to the broker, all of it must be there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidegate::{Client, ErrorCode, ErrorKind, Offset, PartitionId, Record, Start, Ticket};

/// One promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Which partition of the topic.
    pub partition: PartitionId,
    /// Where the record is.
    pub offset: Offset,
    /// Determines the record's value, see [`value_of`].
    pub id: u64,
    /// The witness's count when the client saw the ack, such as flushes that the drive had confirmed.
    pub seen_at: u64,
}

/// The promises of one topic, collected while producers run.
#[derive(Default)]
pub struct Ledger {
    promises: Mutex<Vec<Promise>>,
    next_id: AtomicU64,
    refused: Mutex<HashMap<ErrorKind, u64>>,
}

impl Ledger {
    /// Promises so far.
    pub fn len(&self) -> usize {
        self.promises.lock().expect("no holder panics").len()
    }

    /// Whether nothing was promised yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends that ended in an error: no promise, the record may be there or not.
    pub fn refused(&self) -> u64 {
        self.refused.lock().expect("no holder panics").values().sum()
    }

    /// How many of them met what.
    pub fn refusals(&self) -> HashMap<ErrorKind, u64> {
        self.refused.lock().expect("no holder panics").clone()
    }

    /// Of these, such whose outcome the client was told to be unknown.
    pub fn unknown(&self) -> u64 {
        let refused = self.refused.lock().expect("no holder panics");
        let kinds = [ErrorKind::UnknownOutcome, ErrorKind::Refused(ErrorCode::UnknownOutcome)];
        kinds.iter().filter_map(|kind| refused.get(kind)).sum()
    }

    /// A copy of all promises.
    pub fn promises(&self) -> Vec<Promise> {
        self.promises.lock().expect("no holder panics").clone()
    }

    /// The number of the next record, for a caller that produces by itself.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes what became of a record of that number.
    pub fn note(&self, id: u64, outcome: tidegate::Result<tidegate::Ack>, seen_at: u64) {
        match outcome {
            Ok(ack) => self.promises.lock().expect("no holder panics").push(Promise {
                partition: ack.partition,
                offset: ack.offset,
                id,
                seen_at,
            }),
            Err(error) => {
                let mut refused = self.refused.lock().expect("no holder panics");
                *refused.entry(error.kind()).or_default() += 1;
            }
        }
    }

    /// Produces to `topic` with acks=1 until `stop`, with up to `in_flight` records waiting, and notes each ack.
    pub async fn produce(
        self: Arc<Self>,
        server: String,
        topic: String,
        in_flight: usize,
        stop: Arc<AtomicBool>,
        witness: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> tidegate::Result<()> {
        let client = Client::connect(&server).await?;
        let producer = client.producer(&topic).start().await?;
        let (sender, mut tickets) = tokio::sync::mpsc::channel::<(u64, Ticket)>(in_flight);
        let ledger = Arc::clone(&self);
        let collector = tokio::spawn(async move {
            while let Some((id, ticket)) = tickets.recv().await {
                let outcome = ticket.await;
                ledger.note(id, outcome, witness());
            }
        });
        while !stop.load(Ordering::SeqCst) {
            let id = self.next_id();
            let value = value_of(id);
            let ticket = match producer.enqueue(Record::keyed(&id.to_le_bytes(), &value)).await {
                Ok(ticket) => ticket,
                Err(_) => break,
            };
            if sender.send((id, ticket)).await.is_err() {
                break;
            }
        }
        drop(sender);
        // The broker may be dead by now: what was not acknowledged resolves as an error or is dropped with the runtime.
        let _ = collector.await;
        Ok(())
    }

    /// Reads the whole topic and compares. Only promises seen before or at `seen_at` count.
    pub async fn check(&self, server: &str, topic: &str, seen_at: u64) -> tidegate::Result<Verdict> {
        let stored = read_all(server, topic).await?;
        let mut verdict =
            Verdict { holes: stored.holes, wrong_values: stored.wrong_values, ..Verdict::default() };
        for promise in self.promises().iter().filter(|p| p.seen_at <= seen_at) {
            verdict.checked += 1;
            match stored.records.get(&(promise.partition, promise.offset)) {
                Some(id) if *id == promise.id => {}
                Some(_) => verdict.wrong_values += 1,
                None => verdict.lost += 1,
            }
        }
        let mut ids: Vec<u64> = stored.records.values().copied().collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        verdict.stored = all as u64;
        verdict.duplicates = (all - ids.len()) as u64;
        Ok(verdict)
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Promises looked for.
    pub checked: u64,
    /// Records found.
    pub stored: u64,
    /// Promised records that are not there.
    pub lost: u64,
    /// Places that hold another value than was promised, or one that nobody sent.
    pub wrong_values: u64,
    /// Records that are there twice, although the producers are idempotent.
    pub duplicates: u64,
    /// Offsets missing inside a partition.
    pub holes: u64,
}

impl Verdict {
    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.wrong_values == 0 && self.duplicates == 0 && self.holes == 0
    }

    /// Both together.
    pub fn plus(self, other: Verdict) -> Verdict {
        Verdict {
            checked: self.checked + other.checked,
            stored: self.stored + other.stored,
            lost: self.lost + other.lost,
            wrong_values: self.wrong_values + other.wrong_values,
            duplicates: self.duplicates + other.duplicates,
            holes: self.holes + other.holes,
        }
    }
}

#[derive(Default)]
struct Stored {
    records: HashMap<(PartitionId, Offset), u64>,
    wrong_values: u64,
    holes: u64,
}

async fn read_all(server: &str, topic: &str) -> tidegate::Result<Stored> {
    let client = Client::connect(server).await?;
    let mut consumer = client.consumer(topic).from(Start::Earliest).until_end().start().await?;
    let mut stored = Stored::default();
    let mut next: HashMap<PartitionId, Offset> = HashMap::new();
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch?;
        for record in batch.records()? {
            let record = record?;
            let expected = next.insert(batch.partition(), Offset(record.offset().0 + 1));
            stored.holes += u64::from(expected.is_some_and(|e| e != record.offset()));
            let id = record.key().and_then(|key| key.try_into().ok()).map(u64::from_le_bytes);
            match id {
                Some(id) if record.value() == Some(value_of(id).as_slice()) => {
                    stored.records.insert((batch.partition(), record.offset()), id);
                }
                _ => stored.wrong_values += 1,
            }
        }
    }
    Ok(stored)
}

/// The value of record `id`: 0 to about 3,000 bytes that no other record has.
pub fn value_of(id: u64) -> Vec<u8> {
    let mut random = crate::sim::random::Random::new(id);
    let len = match random.below(16) {
        0 => 0,
        1..=9 => random.below(200),
        10..=14 => random.below(1_200),
        _ => random.below(3_000),
    };
    let mut value = Vec::with_capacity(len as usize + 8);
    while value.len() < len as usize {
        value.extend_from_slice(&random.word().to_le_bytes());
    }
    value.truncate(len as usize);
    value
}
