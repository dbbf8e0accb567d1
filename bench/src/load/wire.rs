//! Produce below the SDK: batches that are built once and sent again and again, from a few threads that never block.
//!
//! What an SDK costs (copying records into batches, their checksum) is left out, so that the broker is what is measured.
//! The bytes are real batches without a producer id, so none of them is a repetition to the broker. The first record of
//! each begins with the time at which the batch was to be sent; the checksum is mended for those eight bytes alone.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use tidegate::{PartitionInfo, ShardId, TopicId};
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView};

use super::{Job, Published, sleep_exactly};
use crate::load::link::Link;
use crate::payload::{Payload, STAMP_BYTES};
use crate::workload::{Schedule, Workload};

/// How long a run waits, after its end, for what it has sent.
pub(crate) const DRAIN: Duration = Duration::from_secs(20);

/// Longest wait for anything to happen, so that a stop is seen.
const NAP: Duration = Duration::from_millis(50);

/// A batch to send again and again.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: u32,
    /// Where the first value begins, if it is long enough for a time.
    pub(crate) stamp_at: Option<usize>,
}

/// Connections of all producers, each to a shard with the partitions that it owns. They are made before the time of a run
/// begins: a busy broker may take seconds for them.
///
/// # Errors
/// The broker cannot be reached or refuses.
pub(crate) fn connect(
    server: &str,
    topic: TopicId,
    partitions: &[PartitionInfo],
    workload: &Workload,
) -> io::Result<Vec<Link>> {
    let connect = |(shard, partitions): (ShardId, Vec<PartitionInfo>)| {
        let mut link = Link::connect(server, shard, workload.in_flight)?;
        link.produce_to(topic, &partitions, workload.acks);
        Ok(link)
    };
    routes(partitions, workload.producers).into_iter().map(connect).collect()
}

/// Produces over the connections until the time is over, and waits for the last acknowledgement. Blocks.
///
/// # Errors
/// The broker is lost, or says what cannot be understood. What it refuses is counted.
pub(crate) fn run(job: &Job<'_>, mut links: Vec<Link>, workload: &Workload) -> io::Result<Published> {
    let batch = prepare(workload);
    let link_count = links.len();
    let batches_per_s = workload.rate.map(|records| records / f64::from(batch.records));
    for (index, link) in links.iter_mut().enumerate() {
        link.schedule = batches_per_s.map(|rate| Schedule::new(job.start_ns, rate, index, link_count));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(link_count).max(1);
    let mut shares: Vec<Vec<Link>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, link) in links.into_iter().enumerate() {
        shares[index % threads].push(link);
    }
    let mut published = Published::new(job.window);
    std::thread::scope(|scope| {
        let batch = &batch;
        let running: Vec<_> =
            shares.into_iter().map(|links| scope.spawn(move || drive(job, links, batch))).collect();
        for load in running {
            published.merge(&load.join().expect("a load thread does not panic")?);
        }
        io::Result::Ok(())
    })?;
    Ok(published)
}

/// Which connection goes to which partitions: each producer has one for every shard that owns one of its partitions.
fn routes(partitions: &[PartitionInfo], producers: usize) -> Vec<(ShardId, Vec<PartitionInfo>)> {
    let mut routes: BTreeMap<(usize, u16), Vec<PartitionInfo>> = BTreeMap::new();
    for k in 0..partitions.len().max(producers) {
        let partition = &partitions[k % partitions.len()];
        routes.entry((k % producers, partition.shard.0)).or_default().push(*partition);
    }
    routes.into_iter().map(|((_, shard), partitions)| (ShardId(shard), partitions)).collect()
}

/// Lets some connections send what is due and takes in what comes, until all is done.
fn drive(job: &Job<'_>, mut links: Vec<Link>, batch: &Prepared) -> io::Result<Published> {
    sleep_exactly();
    let mut published = Published::new(job.window);
    let give_up_ns = job.window.end_ns + DRAIN.as_nanos() as u64;
    loop {
        let mut wake_ns = give_up_ns;
        let mut active = false;
        for link in &mut links {
            link.pump(job, batch, &mut published)?;
            wake_ns = wake_ns.min(link.next_due_ns(job));
            active |= !link.is_done(job);
        }
        let now_ns = job.clock.now_ns();
        if !active || now_ns >= give_up_ns || job.stop.load(Ordering::Relaxed) {
            break;
        }
        let wait = Duration::from_nanos(wake_ns.saturating_sub(now_ns)).min(NAP);
        for (link, ready) in wait_for(&links, wait)? {
            if ready {
                links[link].receive(job, batch, &mut published)?;
            }
        }
    }
    for link in &mut links {
        link.give_up(job, batch, &mut published);
    }
    Ok(published)
}

/// Which links have something to read, after `wait` at the latest.
fn wait_for(links: &[Link], wait: Duration) -> io::Result<Vec<(usize, bool)>> {
    let mut fds: Vec<PollFd<'_>> = links
        .iter()
        .map(|link| {
            let wanted =
                if link.is_writing() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
            PollFd::new(link.socket(), wanted)
        })
        .collect();
    match ppoll(&mut fds, Some(TimeSpec::from_duration(wait)), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let readable = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
    Ok(fds
        .iter()
        .map(|fd| fd.revents().is_some_and(|happened| happened.intersects(readable)))
        .enumerate()
        .collect())
}

/// A full batch of the workload.
pub(crate) fn prepare(workload: &Workload) -> Prepared {
    let mut payload = Payload::new(workload, 1);
    let mut builder = BatchBuilder::new(Vec::new());
    let none: [(&str, Option<&[u8]>); 0] = [];
    let full = |builder: &BatchBuilder, next: usize| match workload.batch_records {
        0 => builder.len() + next > workload.batch_bytes(),
        records => builder.records_count() as usize == records,
    };
    loop {
        let (value, key) = payload.next(0);
        if !builder.is_empty() && full(&builder, builder.len_of(0, key, Some(value), none)) {
            break;
        }
        builder.push(0, key, Some(value), none);
    }
    let records = builder.records_count() as u32;
    let bytes = builder.finish(BatchOrigin::NONE);
    let stamp_at = stamp_place(&bytes);
    Prepared { bytes, records, stamp_at }
}

/// Where the first value lies in a batch that was just built, if it can hold a time.
fn stamp_place(bytes: &[u8]) -> Option<usize> {
    let batch = BatchView::parse(bytes).expect("it was built by the builder");
    let first = batch.records().expect("it is not compressed").next()?.expect("a record of the builder");
    let value = first.value.filter(|value| value.len() >= STAMP_BYTES)?;
    Some(value.as_ptr().addr() - bytes.as_ptr().addr())
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::batch::replace_in_records;

    use super::*;
    use crate::payload::stamp_of;
    use crate::workload::sample;

    #[test]
    fn a_prepared_batch_is_full_and_passes_the_brokers_check_with_any_time() {
        let workload = Workload { record_bytes: 1024, batch_records: 0, ..sample() };
        let mut batch = prepare(&workload);
        assert!(batch.bytes.len() <= 256 << 10 && batch.bytes.len() > 254 << 10);
        replace_in_records(&mut batch.bytes, batch.stamp_at.unwrap(), &77u64.to_ne_bytes());
        let view = BatchView::parse(&batch.bytes).unwrap();
        view.check_from_client(1 << 20).unwrap();
        view.verify_crc().unwrap();
        assert_eq!(view.header().records_count as u32, batch.records);
        assert_eq!(view.records().unwrap().next().unwrap().unwrap().value.and_then(stamp_of), Some(77));
    }

    #[test]
    fn a_batch_has_as_many_records_as_asked_for_and_short_ones_have_no_time() {
        let batch = prepare(&Workload { record_bytes: 4, batch_records: 3, keys: 10, ..sample() });
        assert_eq!((batch.records, batch.stamp_at), (3, None));
    }

    #[test]
    fn every_partition_and_every_producer_has_a_connection_to_the_right_shard() {
        let partition = |n: i32| PartitionInfo {
            partition: tidegate::PartitionId(n),
            leader: tidegate::NodeId(0),
            shard: ShardId((n % 2) as u16),
            epoch: tidegate::LeaderEpoch(0),
        };
        let four: Vec<_> = (0..4).map(partition).collect();
        let few = routes(&four, 2);
        assert_eq!(few.len(), 2, "producer 0 has the even partitions, 1 the odd ones");
        assert!(few.iter().all(|(shard, list)| list.len() == 2 && list.iter().all(|p| p.shard == *shard)));
        let many = routes(&four, 8);
        assert_eq!(many.len(), 8);
        let one = routes(&four, 1);
        assert_eq!(one.len(), 2, "a connection for each shard");
    }
}
