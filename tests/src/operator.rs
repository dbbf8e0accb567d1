//! What an operator outside the broker was told: which topics there are and how far a consumer has come. After whatever has
//! happened to the broker, all of it must hold.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use tidegate::{Client, Offset, PartitionId, TopicSpec};

/// The consumer whose offsets are stored.
const READER: &str = "reader";
/// Topics that are left at a time.
const TOPICS_MAX: usize = 8;

/// What one operator knows. Whatever was asked for and not answered may have happened or not.
#[derive(Debug, Default)]
pub struct Operator {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// The offset that was stored last, and the one that was asked for last.
    stored: Option<(i64, i64)>,
    orders: u64,
}

impl Operator {
    /// Orders that were answered.
    pub fn orders(&self) -> u64 {
        self.known().orders
    }

    /// Creates and deletes topics of its own, and stores offsets of `topic`, until an order fails.
    pub async fn work(self: Arc<Self>, server: String, topic: String) -> tidegate::Result<()> {
        let client = Client::connect(&server).await?;
        let admin = client.admin();
        loop {
            let number = self.begin();
            let name = format!("made-{number}");
            admin.create_topic(TopicSpec::new(&name)).await?;
            let oldest = self.answered(|known| {
                known.created.insert(name);
                // While it is being deleted nobody can say whether it is there.
                (known.created.len() > TOPICS_MAX).then(|| known.created.pop_first()).flatten()
            });
            if let Some(oldest) = oldest {
                admin.delete_topic(&oldest).await?;
                self.answered(|known| known.deleted.insert(oldest));
            }
            let asked = number as i64;
            self.known().stored.get_or_insert((-1, asked)).1 = asked;
            admin.commit_offsets(READER, &topic, &[(PartitionId(0), Offset(asked))]).await?;
            self.answered(|known| known.stored = Some((asked, asked)));
        }
    }

    /// Compares with what the broker says now.
    ///
    /// # Errors
    /// What is not as it was told.
    pub async fn check(&self, server: &str, topic: &str) -> io::Result<()> {
        let client = Client::connect(server).await.map_err(io::Error::other)?;
        let topics = client.admin().list_topics().await.map_err(io::Error::other)?;
        let topics: BTreeSet<String> = topics.into_iter().map(|topic| topic.name).collect();
        let offsets = client.admin().fetch_offsets(READER, topic).await.map_err(io::Error::other)?;
        let offset = offsets.iter().find(|stored| stored.partition.partition == PartitionId(0));
        let offset = offset.map_or(-1, |stored| stored.offset.0);
        let known = self.known();
        let wrong = |what: String| Err(io::Error::other(what));
        if let Some(lost) = known.created.iter().find(|name| !topics.contains(*name)) {
            return wrong(format!("topic {lost} was created and is gone"));
        }
        if let Some(back) = known.deleted.iter().find(|name| topics.contains(*name)) {
            return wrong(format!("topic {back} was deleted and is there again"));
        }
        match known.stored {
            Some((stored, asked)) if offset < stored || offset > asked => wrong(format!(
                "offset {stored} was stored, {asked} was asked for last, and {offset} is there"
            )),
            _ => Ok(()),
        }
    }

    fn begin(&self) -> u64 {
        let mut known = self.known();
        known.next += 1;
        known.next
    }

    fn answered<T>(&self, take_in: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known();
        known.orders += 1;
        take_in(&mut known)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().expect("no holder panics")
    }
}
