//! What the scenarios share: a broker under the SDK's load, and waiting for what must come.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::{Client, Start, TopicSpec};
use tokio::task::JoinHandle;

use crate::crash::always;
use crate::ledger::{Ledger, Verdict};

/// The topic that the load goes to.
pub const TOPIC: &str = "load";

/// Producers, with what they were promised.
pub struct Load {
    /// Their promises.
    pub ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<tidegate::Result<()>>>,
}

impl Load {
    /// Makes the topic.
    pub async fn create(server: &str) -> io::Result<()> {
        let client = Client::connect(server).await.map_err(io::Error::other)?;
        let spec = TopicSpec::new(TOPIC).partitions(4);
        client.admin().create_topic(spec).await.map_err(io::Error::other).map(drop)
    }

    /// Starts a producer for each number of records in flight; their promises join those of `ledger`.
    pub fn start(ledger: &Arc<Ledger>, server: &str, in_flight: &[usize]) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let produce = |in_flight: &usize| {
            let (server, stop) = (server.to_owned(), Arc::clone(&stop));
            tokio::spawn(Arc::clone(ledger).produce(server, TOPIC.to_owned(), *in_flight, stop, always()))
        };
        let producers = in_flight.iter().map(produce).collect();
        Load { ledger: Arc::clone(ledger), stop, producers }
    }

    /// Waits until so many more acks have come.
    pub async fn acks(&self, more: usize) -> io::Result<()> {
        let wanted = self.ledger.len() + more;
        let came = until(&format!("{more} more acks"), async || Ok(self.ledger.len() >= wanted)).await;
        came.map_err(|e| io::Error::other(format!("{e}; refused: {:?}", self.ledger.refusals())))
    }

    /// Ends the producers once everything that they have sent is answered.
    pub async fn finish(self) -> io::Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        for producer in self.producers {
            producer.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Ends the producers of a broker that is gone.
    pub async fn abandon(self) {
        self.stop.store(true, Ordering::SeqCst);
        for producer in self.producers {
            producer.abort();
            let _ = producer.await;
        }
    }
}

/// Every promise so far must be kept by the broker at `server`.
pub async fn all_there(ledger: &Ledger, server: &str, when: &str) -> io::Result<Verdict> {
    let verdict = ledger.check(server, TOPIC, u64::MAX).await.map_err(io::Error::other)?;
    ensure(verdict.is_clean() && verdict.checked > 0, || format!("{when}: {verdict:?}"))?;
    Ok(verdict)
}

/// How many records of a topic can be read now.
pub async fn readable(client: &Client, topic: &str) -> io::Result<u64> {
    let consumer = client.consumer(topic).from(Start::Earliest).until_end().start().await;
    let mut consumer = consumer.map_err(io::Error::other)?;
    let mut count = 0;
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.map_err(io::Error::other)?;
        count += batch.records().map_err(io::Error::other)?.count() as u64;
    }
    Ok(count)
}

/// Waits until that is so; it has to be within 20 seconds.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> io::Result<bool>) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(20);
    const LOOK: Duration = Duration::from_millis(2);
    let waiting = async {
        while !is_so().await? {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::other(format!("after {PATIENCE:?} still no: {what}"))),
    }
}

/// An error that says what is not as it must be.
pub fn ensure(is_so: bool, else_text: impl FnOnce() -> String) -> io::Result<()> {
    if is_so { Ok(()) } else { Err(io::Error::other(else_text())) }
}
