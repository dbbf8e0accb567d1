//! The well-behaved client: it produces at a steady pace, reads everything back as it comes, and knows how long either took.
//!
//! It has a thread of its own, so that abusers in the same process do not keep it waiting.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate::{Client, Consumer, Record, Start};

use crate::faults::scene::{TOPIC, ensure, until};
use crate::ledger::{Ledger, value_of};

/// Between two records.
const PACE: Duration = Duration::from_millis(2);
/// One window of measurement. A percentile of one window is a matter of luck; that of the middle one of several is less so.
const WINDOW: Duration = Duration::from_millis(800);
/// Windows of one measurement.
const WINDOWS: usize = 3;

/// How long the slowest hundredth took at least, in the middle one of several windows.
#[derive(Clone, Copy, Debug)]
pub struct Latencies {
    /// From the moment when a record was to be sent to its acknowledgement.
    pub ack: Duration,
    /// From then until the consumer had it.
    pub fetch: Duration,
}

/// A client at work.
pub struct Honest {
    /// What it was promised.
    pub ledger: Arc<Ledger>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    is_stopping: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Records without an acknowledgement, and such as were not read yet, with the moment when each was to be sent.
    unacked: BTreeMap<u64, Instant>,
    unread: BTreeMap<u64, Instant>,
    acks: Vec<(Instant, Duration)>,
    fetches: Vec<(Instant, Duration)>,
    read_twice: u64,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn sent(&mut self, id: u64, due: Instant) {
        self.unacked.insert(id, due);
        self.unread.insert(id, due);
    }

    fn acked(&mut self, id: u64) {
        if let Some(due) = self.unacked.remove(&id) {
            self.acks.push((due, due.elapsed()));
        }
    }

    fn read(&mut self, id: u64) {
        match self.unread.remove(&id) {
            Some(due) => self.fetches.push((due, due.elapsed())),
            None => self.read_twice += 1,
        }
    }

    /// Whether everything sent before that moment is acknowledged and read.
    fn is_complete(&self, before: Instant) -> bool {
        let is_later = |(_, due): (&u64, &Instant)| *due >= before;
        self.unacked.iter().next().is_none_or(is_later) && self.unread.iter().next().is_none_or(is_later)
    }
}

impl Honest {
    /// Starts on the topic that [`crate::faults::scene::Load::create`] has made.
    pub fn start(server: &str) -> io::Result<Honest> {
        let (ledger, shared) = (Arc::new(Ledger::default()), Arc::new(Shared::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = {
            let (server, ledger, shared) = (server.to_owned(), Arc::clone(&ledger), Arc::clone(&shared));
            move || runtime.block_on(work(&server, &ledger, &shared))
        };
        let thread = std::thread::Builder::new().name("honest".to_owned()).spawn(body)?;
        Ok(Honest { ledger, shared, thread: Some(thread) })
    }

    /// Measures some windows, one after the other.
    pub async fn measure(&self) -> io::Result<Latencies> {
        let (mut acks, mut fetches) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            let from = Instant::now();
            tokio::time::sleep(WINDOW).await;
            let to = Instant::now();
            let came = until("every record is acknowledged and read", async || {
                ensure(self.thread.as_ref().is_some_and(|t| !t.is_finished()), || {
                    "the well-behaved client has ended".to_owned()
                })?;
                Ok(self.shared.seen().is_complete(to))
            });
            came.await?;
            let seen = self.shared.seen();
            acks.push(slowest_hundredth(&seen.acks, from, to)?);
            fetches.push(slowest_hundredth(&seen.fetches, from, to)?);
        }
        acks.sort_unstable();
        fetches.sort_unstable();
        Ok(Latencies { ack: acks[WINDOWS / 2], fetch: fetches[WINDOWS / 2] })
    }

    /// Ends it once everything that it has sent is acknowledged and read, each record once.
    pub async fn finish(mut self) -> io::Result<Arc<Ledger>> {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        let thread = self.thread.take().ok_or_else(|| io::Error::other("finished before"))?;
        let ended = tokio::task::spawn_blocking(move || thread.join()).await.map_err(io::Error::other)?;
        ended.map_err(|_| io::Error::other("the well-behaved client has panicked"))??;
        let seen = self.shared.seen();
        ensure(seen.unacked.is_empty() && seen.unread.is_empty() && seen.read_twice == 0, || {
            let (unacked, unread) = (seen.unacked.len(), seen.unread.len());
            format!("{unacked} records without an ack, {unread} not read, {} read twice", seen.read_twice)
        })?;
        ensure(self.ledger.refused() == 0, || format!("refused: {:?}", self.ledger.refusals()))?;
        Ok(Arc::clone(&self.ledger))
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        // A scenario has failed; the thread ends by itself, or with the process.
        self.shared.is_stopping.store(true, Ordering::SeqCst);
    }
}

fn slowest_hundredth(all: &[(Instant, Duration)], from: Instant, to: Instant) -> io::Result<Duration> {
    let within = all.iter().filter(|(due, _)| (from..to).contains(due)).map(|(_, lasted)| *lasted);
    let mut lasted: Vec<Duration> = within.collect();
    lasted.sort_unstable();
    let at = lasted.len() * 99 / 100;
    lasted.get(at).copied().ok_or_else(|| io::Error::other("nothing was sent in a window"))
}

async fn work(server: &str, ledger: &Arc<Ledger>, shared: &Arc<Shared>) -> io::Result<()> {
    let client = Client::connect(server).await.map_err(io::Error::other)?;
    let producer = client.producer(TOPIC).start().await.map_err(io::Error::other)?;
    let consumer = client.consumer(TOPIC).from(Start::Earliest).start().await.map_err(io::Error::other)?;
    let reading = tokio::spawn(follow(consumer, Arc::clone(shared)));
    let (mut due, mut was_held_back) = (Instant::now(), false);
    while !shared.is_stopping.load(Ordering::SeqCst) {
        due += PACE;
        tokio::time::sleep_until(due.into()).await;
        let id = ledger.next_id();
        let value = value_of(id);
        // What the timer was late by is this thread's own affair; what a full producer has held back is not.
        let from = if was_held_back { due } else { Instant::now() };
        shared.seen().sent(id, from);
        let key = id.to_le_bytes();
        let ticket = producer.enqueue(Record::keyed(&key, &value)).await.map_err(io::Error::other)?;
        was_held_back = Instant::now() > due + PACE;
        let (ledger, shared) = (Arc::clone(ledger), Arc::clone(shared));
        tokio::spawn(async move {
            let outcome = ticket.await;
            shared.seen().acked(id);
            ledger.note(id, outcome, 0);
        });
    }
    until("everything sent is acknowledged and read", async || {
        Ok(shared.seen().is_complete(Instant::now()) || reading.is_finished())
    })
    .await?;
    if reading.is_finished() {
        return reading.await.map_err(io::Error::other)?;
    }
    reading.abort();
    Ok(())
}

async fn follow(mut consumer: Consumer, shared: Arc<Shared>) -> io::Result<()> {
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.map_err(io::Error::other)?;
        for record in batch.records().map_err(io::Error::other)? {
            let record = record.map_err(io::Error::other)?;
            let id = record.key().and_then(|key| key.try_into().ok()).map(u64::from_le_bytes);
            let id = id.ok_or_else(|| io::Error::other("a record that nobody sent"))?;
            shared.seen().read(id);
        }
    }
    Ok(())
}
