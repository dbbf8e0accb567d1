//! Consume by the SDK, which checks the checksum of every batch.

use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tidegate::{Batch, Client, Consumer, Error, PartitionId, Start};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Job;
use crate::payload::stamp_of;
use crate::series::{Clock, Live, Series, Window};
use crate::workload::{Cores, LooksAt, ReadFrom, Reading};

/// What the consumers of one reading have recorded.
#[derive(Clone, Debug)]
pub struct Consumed {
    /// What people call it.
    pub name: String,
    /// Throughput, and, where records say when they were to be sent, latency from then to their arrival: of each batch that
    /// of its first record, which has waited longest.
    pub series: Series,
    /// Records read, warm-up included.
    pub records: u64,
    /// Whether all of it was read before the window's end.
    pub ended_early: bool,
}

/// The consumers of a reading before the time of a run begins.
pub(crate) struct Standing {
    reading: Reading,
    consumers: Vec<(Vec<PartitionId>, Option<Consumer>)>,
    /// Their own threads, if they have not all cores.
    runtime: Option<Runtime>,
}

/// Consumers under way.
pub(crate) struct Readers {
    name: String,
    window: Window,
    tasks: Vec<JoinHandle<Result<One, Error>>>,
    over: watch::Sender<bool>,
    /// Their own threads, if they have not all cores.
    runtime: Option<Runtime>,
}

/// What one consumer has recorded.
struct One {
    series: Series,
    records: u64,
    ended_ns: Option<u64>,
}

struct Reader {
    client: Client,
    topic: String,
    from: ReadFrom,
    looks_at: LooksAt,
    partitions: Vec<PartitionId>,
    clock: Clock,
    live: Arc<Live>,
    over: watch::Receiver<bool>,
    one: One,
}

impl Standing {
    /// Makes the consumers of a reading. Those of a tail stand when this returns, before the first send; the others have
    /// their work before them, and all of it counts.
    ///
    /// # Errors
    /// The topic does not exist.
    pub(crate) fn open(client: &Client, handle: &Handle, reading: &Reading) -> Result<Standing, Error> {
        let runtime = match reading.cores {
            Cores::All => None,
            Cores::Half => Some(half_the_cores()),
        };
        let on = runtime.as_ref().map_or(handle, Runtime::handle);
        let count = on.block_on(client.admin().describe_topic(&reading.topic))?.partitions.len();
        let mut consumers = Vec::new();
        for _ in 0..reading.subscriptions {
            let sharing = reading.consumers.clamp(1, count);
            for consumer in 0..sharing {
                let partitions: Vec<PartitionId> =
                    (consumer..count).step_by(sharing).map(|p| PartitionId(p as i32)).collect();
                let standing = match reading.from {
                    ReadFrom::Tail => {
                        Some(on.block_on(open(client, &reading.topic, reading.from, &partitions))?)
                    }
                    ReadFrom::Start | ReadFrom::Again => None,
                };
                consumers.push((partitions, standing));
            }
        }
        Ok(Standing { reading: reading.clone(), consumers, runtime })
    }

    /// Lets them read.
    pub(crate) fn begin(self, client: &Client, handle: &Handle, job: &Job<'_>) -> Readers {
        let Job { clock, start_ns, window, live, .. } = *job;
        let Standing { reading, consumers, runtime } = self;
        let (over, over_seen) = watch::channel(false);
        let on = runtime.as_ref().map_or(handle, Runtime::handle);
        let mut tasks = Vec::new();
        for (partitions, standing) in consumers {
            let mut reader = Reader {
                client: client.clone(),
                topic: reading.topic.clone(),
                from: reading.from,
                looks_at: reading.looks_at,
                partitions,
                clock,
                live: live.clone(),
                over: over_seen.clone(),
                one: One { series: Series::new(window), records: 0, ended_ns: None },
            };
            tasks.push(on.spawn(async move {
                reader.read(standing, start_ns).await?;
                Ok(reader.one)
            }));
        }
        Readers { name: reading.name, window, tasks, over, runtime }
    }
}

impl Readers {
    /// Whether all have come to their end.
    pub(crate) fn is_finished(&self) -> bool {
        self.tasks.iter().all(JoinHandle::is_finished)
    }

    /// Ends them and takes what they have recorded.
    ///
    /// # Errors
    /// A partition cannot be read on.
    pub(crate) fn finish(self, handle: &Handle) -> Result<Consumed, Error> {
        self.over.send_replace(true);
        let mut consumed =
            Consumed { name: self.name, series: Series::new(self.window), records: 0, ended_early: false };
        let mut ended = Some(0);
        for task in self.tasks {
            let one = handle.block_on(task).expect("a consumer does not panic")?;
            consumed.series.merge(&one.series);
            consumed.records += one.records;
            ended = ended.zip(one.ended_ns).map(|(a, b)| a.max(b));
        }
        if let Some(ended_ns) = ended.filter(|ended| (1..self.window.end_ns).contains(ended)) {
            consumed.series.end_at(ended_ns);
            consumed.ended_early = true;
        }
        if let Some(runtime) = self.runtime {
            runtime.shutdown_background();
        }
        Ok(consumed)
    }
}

async fn open(
    client: &Client,
    topic: &str,
    from: ReadFrom,
    partitions: &[PartitionId],
) -> Result<Consumer, Error> {
    let builder = client.consumer(topic).partitions(partitions);
    match from {
        ReadFrom::Tail => builder.from(Start::Latest).start().await,
        ReadFrom::Start | ReadFrom::Again => builder.from(Start::Earliest).until_end().start().await,
    }
}

impl Reader {
    async fn open(&self) -> Result<Consumer, Error> {
        open(&self.client, &self.topic, self.from, &self.partitions).await
    }

    async fn read(&mut self, standing: Option<Consumer>, start_ns: u64) -> Result<(), Error> {
        let mut consumer = match standing {
            Some(consumer) => consumer,
            None => {
                let wait_ns = start_ns.saturating_sub(self.clock.now_ns());
                tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
                self.open().await?
            }
        };
        loop {
            let batch = tokio::select! {
                biased;
                _ = self.over.wait_for(|over| *over) => return Ok(()),
                batch = consumer.next_batch() => batch,
            };
            match batch {
                Some(batch) => self.take(&batch?)?,
                None if self.from == ReadFrom::Again && self.one.records > 0 => {
                    consumer = self.open().await?
                }
                None => {
                    self.one.ended_ns = Some(self.clock.now_ns());
                    return Ok(());
                }
            }
        }
    }

    fn take(&mut self, batch: &Batch) -> Result<(), Error> {
        let records = match self.looks_at {
            LooksAt::Batches => u64::from(batch.record_count()),
            LooksAt::Records => look_at_each(batch)?,
        };
        let (now_ns, bytes) = (self.clock.now_ns(), batch.bytes().len() as u64);
        let stamp = if self.from == ReadFrom::Tail { first_stamp(batch) } else { None };
        match stamp {
            // A record of an earlier run, or of somebody else, has a time that has not been yet.
            Some(intended_ns) if intended_ns <= now_ns => {
                self.one.series.done(intended_ns, now_ns, records, bytes);
            }
            _ => self.one.series.came(now_ns, records, bytes),
        }
        self.one.records += records;
        if self.from == ReadFrom::Tail {
            Live::add(&self.live.arrived, records);
        }
        Live::add(&self.live.consumed, records);
        Live::add(&self.live.consumed_bytes, bytes);
        Ok(())
    }
}

/// Takes every record out of a batch, as an application does. Returns how many there were.
fn look_at_each(batch: &Batch) -> Result<u64, Error> {
    let mut count = 0;
    for record in batch.records()? {
        std::hint::black_box(record?.value());
        count += 1;
    }
    Ok(count)
}

fn first_stamp(batch: &Batch) -> Option<u64> {
    batch.records().ok()?.next()?.ok()?.value().and_then(stamp_of)
}

/// Threads that may use half of the cores that this process may use, at least one.
fn half_the_cores() -> Runtime {
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let allowed: Vec<usize> = (0..CpuSet::count()).filter(|cpu| own.is_set(*cpu).unwrap_or(false)).collect();
    let half = (allowed.len() / 2).max(1);
    let mut set = CpuSet::new();
    for cpu in &allowed[allowed.len().saturating_sub(half)..] {
        let _ = set.set(*cpu);
    }
    Builder::new_multi_thread()
        .worker_threads(half)
        .enable_all()
        .on_thread_start(move || {
            // Where that is refused the number of threads alone holds them.
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        })
        .build()
        .expect("threads can be made")
}

/// How long is waited for the last records to arrive after the last acknowledgement.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(20);
