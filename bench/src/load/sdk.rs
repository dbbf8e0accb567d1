//! Produce by the SDK, record by record, as an application does: one thread a producer, which waits for nothing but the
//! producer's memory.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Client, Error, PartitionId, Producer, ProducerEvent, Record};
use tidegate_protocol::partitioner;
use tokio::runtime::Handle;

use super::wire::DRAIN;
use super::{Job, Published, sleep_exactly};
use crate::payload::Payload;
use crate::series::{Clock, Live, Window};
use crate::workload::{BATCH_BYTES, Schedule, Workload};

/// Without a rate the time is looked at once for so many records: they share their intended time.
const LOOK_EVERY: u64 = 64;

/// Records enqueued and not yet acknowledged, by partition, and what has become of the others.
///
/// Acknowledgements of one partition come in the order of its records, so counts suffice; no record needs a ticket.
struct Pending {
    /// Intended time and how many records had it, oldest first.
    queues: Vec<VecDeque<(u64, u32)>>,
    published: Published,
}

/// A producer that is ready, and what it is to be told about.
pub(crate) struct Started {
    producer: Producer,
    pending: Arc<Mutex<Pending>>,
}

/// Starts the producers. That is done before the time of a run begins: the identity of each is made durable first. The
/// window is known only later, see [`run`].
///
/// # Errors
/// The topic does not exist, or a producer cannot start.
pub(crate) fn start(
    client: &Client,
    handle: &Handle,
    workload: &Workload,
    clock: Clock,
    live: &Arc<Live>,
) -> Result<Vec<Started>, Error> {
    let mut started = Vec::new();
    for _ in 0..workload.producers {
        let pending = Arc::new(Mutex::new(Pending {
            queues: vec![VecDeque::new(); workload.partitions as usize],
            published: Published::new(Window::after(0, Duration::ZERO, workload.time)),
        }));
        let observer = {
            let (pending, live) = (pending.clone(), live.clone());
            move |event: &ProducerEvent| lock(&pending).take(event, &live, clock)
        };
        let starting = client
            .producer(&workload.topic)
            .acks(workload.acks)
            .batch_bytes(workload.batch_bytes())
            .compression(workload.compression)
            .max_in_flight(workload.in_flight)
            .observe(observer)
            .start();
        started.push(Started { producer: handle.block_on(starting)?, pending });
    }
    Ok(started)
}

/// Produces until the time is over, and waits for the last acknowledgement. Blocks; must not be called from a task.
///
/// # Errors
/// A producer cannot go on. Batches that fail are counted.
pub(crate) fn run(
    job: &Job<'_>,
    producers: Vec<Started>,
    handle: &Handle,
    workload: &Workload,
) -> Result<Published, Error> {
    for started in &producers {
        lock(&started.pending).published = Published::new(job.window);
    }
    std::thread::scope(|scope| {
        let running: Vec<_> = producers
            .iter()
            .enumerate()
            .map(|(index, started)| scope.spawn(move || produce(job, started, handle, workload, index)))
            .collect();
        for worker in running {
            worker.join().expect("a producer thread does not panic")?;
        }
        Ok::<_, Error>(())
    })?;
    let mut published = Published::new(job.window);
    for Started { producer, pending } in producers {
        let stats = producer.stats();
        // What fails was counted when it did; what does not come in time is counted below.
        let _ = handle.block_on(async { tokio::time::timeout(DRAIN, producer.close()).await });
        let mut pending = lock(&pending);
        pending.give_up(job.live, job.clock);
        pending.published.credit_wait += Duration::from_micros(stats.credit_wait_us);
        published.merge(&pending.published);
    }
    Ok(published)
}

fn produce(
    job: &Job<'_>,
    started: &Started,
    handle: &Handle,
    workload: &Workload,
    index: usize,
) -> Result<(), Error> {
    sleep_exactly();
    let Started { producer, pending } = started;
    let give_up_ns = job.window.end_ns + DRAIN.as_nanos() as u64;
    let schedule = workload.rate.map(|rate| Schedule::new(job.start_ns, rate, index, workload.producers));
    let mut payload = Payload::new(workload, index as u64 + 1);
    let own = own_partitions(workload, index);
    let full = match workload.batch_records {
        0 => (BATCH_BYTES / workload.record_bytes.max(1)).max(1),
        records => records,
    } as u64;
    let mut now_ns = wait_until(job, job.start_ns);
    for count in 0u64.. {
        let intended_ns = match &schedule {
            Some(schedule) => {
                let due_ns = schedule.due_ns(count);
                if due_ns > now_ns && due_ns < job.window.end_ns {
                    now_ns = wait_until(job, due_ns);
                }
                due_ns
            }
            None => {
                if count.is_multiple_of(LOOK_EVERY) {
                    now_ns = job.clock.now_ns();
                }
                now_ns
            }
        };
        if intended_ns >= job.window.end_ns {
            return Ok(());
        }
        if job.stop.load(Ordering::Relaxed) || (count.is_multiple_of(LOOK_EVERY) && over(job, give_up_ns)) {
            lock(pending).give_up_unsent(job, schedule.as_ref(), count);
            return Ok(());
        }
        Live::add(&job.live.due, 1);
        let (value, key) = payload.next(intended_ns);
        let partition = match key {
            Some(key) => partitioner::of_key(key, workload.partitions),
            None => own[(count / full) as usize % own.len()],
        };
        lock(pending).expect_one(partition, intended_ns);
        let record = Record { key, value: Some(value), partition: Some(partition), ..Record::default() };
        // The ticket is not needed: the observer is told of every batch.
        let enqueued = match producer.try_enqueue(record) {
            Ok(None) => handle.block_on(unless_over(job, give_up_ns, producer.enqueue(record))),
            Ok(Some(ticket)) => Some(Ok(ticket)),
            Err(error) => Some(Err(error)),
        };
        match enqueued {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                lock(pending).forget_one(partition);
                return Err(error);
            }
            None => {
                let mut pending = lock(pending);
                pending.forget_one(partition);
                pending.give_up_unsent(job, schedule.as_ref(), count);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Whether nothing is waited for any more.
fn over(job: &Job<'_>, give_up_ns: u64) -> bool {
    job.clock.now_ns() >= give_up_ns || job.stop.load(Ordering::Relaxed)
}

/// What `work` comes to; none if the run is over before: a broker that stands still would hold its producers for ever.
async fn unless_over<T>(job: &Job<'_>, give_up_ns: u64, work: impl Future<Output = T>) -> Option<T> {
    const NAP: Duration = Duration::from_millis(50);
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(NAP, &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if over(job, give_up_ns) => return None,
            Err(_) => {}
        }
    }
}

/// The partitions that producer `index` writes to in turn, a batch at a time.
fn own_partitions(workload: &Workload, index: usize) -> Vec<PartitionId> {
    let (partitions, producers) = (workload.partitions as usize, workload.producers);
    let turns = 0..partitions.max(producers);
    turns
        .filter(|turn| turn % producers == index)
        .map(|turn| PartitionId((turn % partitions) as i32))
        .collect()
}

/// Sleeps until then or until the run is stopped; returns the time.
fn wait_until(job: &Job<'_>, then_ns: u64) -> u64 {
    const NAP_NS: u64 = 50_000_000;
    loop {
        let now_ns = job.clock.now_ns();
        if now_ns >= then_ns || job.stop.load(Ordering::Relaxed) {
            return now_ns;
        }
        std::thread::sleep(Duration::from_nanos((then_ns - now_ns).min(NAP_NS)));
    }
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    // Plain data: a panic elsewhere leaves it as good as it was.
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    fn expect_one(&mut self, partition: PartitionId, intended_ns: u64) {
        let queue = &mut self.queues[partition.0 as usize];
        match queue.back_mut() {
            Some((same_ns, count)) if *same_ns == intended_ns => *count += 1,
            _ => queue.push_back((intended_ns, 1)),
        }
    }

    fn forget_one(&mut self, partition: PartitionId) {
        let queue = &mut self.queues[partition.0 as usize];
        match queue.back_mut() {
            Some((_, count)) if *count > 1 => *count -= 1,
            _ => drop(queue.pop_back()),
        }
    }

    fn take(&mut self, event: &ProducerEvent, live: &Live, clock: Clock) {
        let now_ns = clock.now_ns();
        match event {
            ProducerEvent::Acknowledged(ack) => {
                let records = u64::from(ack.record_count);
                self.each(ack.partition, ack.record_count, |published, intended_ns, count| {
                    // The bytes of a batch are shared among its records.
                    let bytes = u64::from(ack.bytes) * u64::from(count) / records.max(1);
                    published.series.done(intended_ns, now_ns, u64::from(count), bytes);
                });
                self.published.count_batch(live, records, u64::from(ack.bytes), ack.level as u8);
            }
            ProducerEvent::Failed { partition, record_count, error } => {
                self.each(*partition, *record_count, |published, intended_ns, count| {
                    published.failed(live, intended_ns, now_ns, u64::from(count), &error.to_string());
                });
            }
            ProducerEvent::Lost { record_count, .. } => {
                let why = "acknowledged from memory, and lost";
                self.published.refused_late(live, u64::from(*record_count), why);
            }
            _ => {}
        }
    }

    /// Takes the oldest `count` records of a partition out of their queue, in runs of one intended time.
    fn each(&mut self, partition: PartitionId, count: u32, mut then: impl FnMut(&mut Published, u64, u32)) {
        let queue = &mut self.queues[partition.0 as usize];
        let mut left = count;
        while left > 0 {
            let Some((intended_ns, run)) = queue.front_mut() else { return };
            let taken = left.min(*run);
            then(&mut self.published, *intended_ns, taken);
            left -= taken;
            *run -= taken;
            if *run == 0 {
                queue.pop_front();
            }
        }
    }

    /// What was to be sent by now, from number `next` on, and never will be. Without a rate nothing was to be sent.
    fn give_up_unsent(&mut self, job: &Job<'_>, schedule: Option<&Schedule>, next: u64) {
        let Some(schedule) = schedule else { return };
        let now_ns = job.clock.now_ns();
        let end_ns = job.window.end_ns.min(now_ns);
        for due_ns in (next..).map(|index| schedule.due_ns(index)).take_while(|due_ns| *due_ns < end_ns) {
            self.published.failed(job.live, due_ns, now_ns, 1, "not sent when the run gave up");
        }
    }

    fn give_up(&mut self, live: &Live, clock: Clock) {
        let now_ns = clock.now_ns();
        for queue in &mut self.queues {
            for (intended_ns, count) in queue.drain(..) {
                let why = "not acknowledged when the run gave up";
                self.published.failed(live, intended_ns, now_ns, u64::from(count), why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tidegate::{BatchAck, LeaderEpoch, Level, Offset, StageTimes};

    use super::*;
    use crate::workload::sample;

    fn ack(record_count: u32) -> ProducerEvent {
        ProducerEvent::Acknowledged(BatchAck {
            partition: PartitionId(0),
            base_offset: Offset(0),
            record_count,
            bytes: 100 * record_count,
            level: Level::Disk,
            append_time_ms: 0,
            leader_epoch: LeaderEpoch(0),
            stages: StageTimes::default(),
            round_trip_us: 1,
        })
    }

    #[test]
    fn a_batch_takes_the_oldest_records_and_each_keeps_its_own_intended_time() {
        let clock = Clock::start();
        let window = Window { begin_ns: 0, end_ns: u64::MAX / 2, interval_ns: u64::MAX / 2 };
        let published = Published::new(window);
        let mut pending = Pending { queues: vec![VecDeque::new()], published };
        for intended_ns in [10, 10, 20, 30] {
            pending.expect_one(PartitionId(0), intended_ns);
        }
        pending.forget_one(PartitionId(0));
        let live = Live::default();
        pending.take(&ack(2), &live, clock);
        assert_eq!(pending.queues[0], [(20, 1)]);
        pending.give_up(&live, clock);
        let series = &pending.published.series;
        assert_eq!((series.records(), series.errors, series.latency.count()), (2, 1, 3));
        assert_eq!(pending.published.level_min, Some(2));
    }

    #[test]
    fn what_was_acknowledged_and_lost_has_one_latency_and_one_error() {
        let clock = Clock::start();
        let window = Window { begin_ns: 0, end_ns: u64::MAX / 2, interval_ns: u64::MAX / 2 };
        let mut pending = Pending { queues: vec![VecDeque::new()], published: Published::new(window) };
        pending.expect_one(PartitionId(0), 10);
        let live = Live::default();
        pending.take(&ack(1), &live, clock);
        let lost = ProducerEvent::Lost { partition: PartitionId(0), base_offset: Offset(0), record_count: 1 };
        pending.take(&lost, &live, clock);
        let series = &pending.published.series;
        assert_eq!((series.latency.count(), series.errors, Live::of(&live.errors)), (1, 1, 1));
        assert!(pending.published.first_error.is_some());
    }

    #[test]
    fn what_was_due_and_never_sent_has_failed_and_a_stop_ends_any_wait() {
        let (clock, stop, live) = (Clock::start(), AtomicBool::new(true), Arc::new(Live::default()));
        let window = Window { begin_ns: 0, end_ns: 1_000, interval_ns: 1_000 };
        let job = Job { clock, start_ns: 0, window, live: &live, stop: &stop };
        while clock.now_ns() < window.end_ns {}
        let mut pending = Pending { queues: vec![VecDeque::new()], published: Published::new(window) };
        // One every 100 ns: ten are due in the window, of which four were sent.
        pending.give_up_unsent(&job, Some(&Schedule::new(0, 1e7, 0, 1)), 4);
        pending.give_up_unsent(&job, None, 4);
        let series = &pending.published.series;
        assert_eq!((series.errors, series.latency.count()), (6, 6));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let never = unless_over(&job, u64::MAX, std::future::pending::<()>());
        assert_eq!(runtime.block_on(never), None);
        assert_eq!(runtime.block_on(unless_over(&job, u64::MAX, std::future::ready(7))), Some(7));
    }

    #[test]
    fn every_partition_is_somebodys_and_every_producer_has_one() {
        let all = |partitions, producers| -> Vec<Vec<i32>> {
            let workload = Workload { partitions, producers, ..sample() };
            (0..producers).map(|p| own_partitions(&workload, p).iter().map(|p| p.0).collect()).collect()
        };
        assert_eq!(all(4, 2), [[0, 2], [1, 3]]);
        assert_eq!(all(2, 4), [[0], [1], [0], [1]]);
    }
}
