//! Produce below the SDK: batches that are built once and sent again and again, over one blocking socket a partition.
//!
//! What an SDK costs (copying records into batches, their checksum) is left out, so that the broker is what is measured.
//! The bytes are real batches without a producer id, so none of them is a repetition to the broker.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidegate::{LeaderEpoch, PartitionInfo, ShardId, TopicId, TopicPartition};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::api::produce::{ProduceReply, ProduceRequest};
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin};
use tidegate_protocol::frame::{Frame, Kind, Split, split};

use crate::latency::Latencies;
use crate::produce::{Outcome, Workload, payload};

/// Frames under way on each connection, if the broker gives credit for them: enough that a drive with slow flushes is kept
/// writing.
const IN_FLIGHT: usize = 16;

/// Longest reply, in bytes; a hello and a produce reply are far shorter.
const REPLY_BYTES_MAX: u32 = 64 << 10;

/// Produces to all partitions of a topic until the time is over, and waits for the last acknowledgement. Blocks.
///
/// # Errors
/// The broker refuses, is lost, or says what cannot be understood.
pub fn run(
    server: &str,
    topic: TopicId,
    partitions: &[PartitionInfo],
    workload: &Workload,
) -> io::Result<Outcome> {
    let begun = Instant::now();
    let mut sums = Sums::default();
    std::thread::scope(|scope| {
        let loads: Vec<_> = partitions
            .iter()
            .map(|partition| {
                scope.spawn(move || Load::connect(server, topic, partition, workload)?.run(begun))
            })
            .collect();
        for load in loads {
            sums.add(load.join().expect("a load thread does not panic")?);
        }
        io::Result::Ok(())
    })?;
    Ok(sums.outcome(begun.elapsed().as_secs_f64()))
}

/// One connection that produces to one partition.
struct Load<'a> {
    socket: TcpStream,
    received: Vec<u8>,
    request: ProduceRequest,
    workload: &'a Workload,
    batch: Vec<u8>,
    records: u32,
    /// Bytes of produce frames sent, and how many may be.
    sent: u64,
    limit: u64,
    /// When each frame under way was sent, oldest first: replies to one partition come in order.
    under_way: VecDeque<Instant>,
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    records: u64,
    bytes: u64,
    batches: u64,
    level_min: Option<u8>,
    latency: Latencies,
    credit_wait: Duration,
}

impl<'a> Load<'a> {
    fn connect(
        server: &str,
        topic: TopicId,
        partition: &PartitionInfo,
        workload: &'a Workload,
    ) -> io::Result<Load<'a>> {
        let socket = TcpStream::connect(server)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let (batch, records) = batch(workload, partition.partition.0 as u64);
        let mut load = Load {
            socket,
            received: Vec::new(),
            request: ProduceRequest {
                partition: TopicPartition { topic, partition: partition.partition },
                leader_epoch: LeaderEpoch::UNKNOWN,
                acks: workload.acks,
            },
            workload,
            batch,
            records,
            sent: 0,
            limit: 0,
            under_way: VecDeque::new(),
            sums: Sums::default(),
        };
        load.limit = load.hello(partition.shard)?.credit_initial;
        Ok(load)
    }

    fn hello(&mut self, shard: ShardId) -> io::Result<HelloReply> {
        let request = HelloRequest {
            version_min: 1,
            version_max: 1,
            client_id: "tg bench".into(),
            software: concat!("tidegate-bench ", env!("CARGO_PKG_VERSION")).into(),
            shard: Some(shard),
        };
        let mut frame = Vec::new();
        request.encode(0, &mut frame);
        self.socket.write_all(&frame)?;
        self.receive(|frame| HelloReply::decode(frame).map_err(io::Error::other))
    }

    fn run(mut self, begun: Instant) -> io::Result<Sums> {
        let mut head = Vec::new();
        let mut correlation = 1;
        while begun.elapsed() < self.workload.time {
            while self.under_way.len() >= IN_FLIGHT {
                self.acknowledged()?;
            }
            self.wait_for_credit()?;
            head.clear();
            self.request.encode_head(correlation, self.batch.len(), &mut head);
            correlation += 1;
            self.under_way.push_back(Instant::now());
            self.sent += (head.len() + self.batch.len()) as u64;
            write_both(&mut self.socket, &head, &self.batch)?;
        }
        while !self.under_way.is_empty() {
            self.acknowledged()?;
        }
        Ok(self.sums)
    }

    fn wait_for_credit(&mut self) -> io::Result<()> {
        if self.sent < self.limit {
            return Ok(());
        }
        let at = Instant::now();
        let wanted = (self.batch.len() * IN_FLIGHT) as u64;
        let ask = Credit { scope: Scope::Produce, limit: self.limit, reason: Reason::None, wanted };
        let mut frame = Vec::new();
        ask.encode(&mut frame);
        self.socket.write_all(&frame)?;
        while self.sent >= self.limit {
            self.event()?;
        }
        self.sums.credit_wait += at.elapsed();
        Ok(())
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        let before = self.under_way.len();
        while self.under_way.len() == before {
            self.event()?;
        }
        Ok(())
    }

    /// Takes in one frame of the broker: an acknowledgement or more credit.
    fn event(&mut self) -> io::Result<()> {
        enum Event {
            Reply(ProduceReply),
            Limit(u64),
        }
        let event = self.receive(|frame| match frame.api() {
            Ok(Api::Produce) => ProduceReply::decode(frame).map(Event::Reply).map_err(io::Error::other),
            Ok(Api::Credit) => {
                let credit = Credit::decode(frame).map_err(io::Error::other)?;
                Ok(Event::Limit(if credit.scope == Scope::Produce { credit.limit } else { 0 }))
            }
            other => Err(io::Error::other(format!("the broker sends {other:?}, which nobody asked for"))),
        })?;
        match event {
            Event::Limit(limit) => self.limit = self.limit.max(limit),
            Event::Reply(reply) => {
                let sent = self.under_way.pop_front();
                let sent = sent.ok_or_else(|| io::Error::other("the broker answers what was not asked"))?;
                if reply.record_count != self.records {
                    return Err(io::Error::other("the broker acknowledges another number of records"));
                }
                let sums = &mut self.sums;
                sums.latency.record(sent.elapsed().as_micros() as u64);
                sums.records += u64::from(self.records);
                sums.bytes += self.batch.len() as u64;
                sums.batches += 1;
                let level = reply.level as u8;
                sums.level_min = Some(sums.level_min.map_or(level, |min| min.min(level)));
            }
        }
        Ok(())
    }

    /// Waits for the next frame and looks at it.
    fn receive<T>(&mut self, look: impl FnOnce(&Frame<'_>) -> io::Result<T>) -> io::Result<T> {
        loop {
            let needed = match split(&self.received, REPLY_BYTES_MAX).map_err(io::Error::other)? {
                Split::Frame(frame) => {
                    if frame.kind == Kind::Error {
                        let body = ErrorBody::decode(&frame).map_err(io::Error::other)?;
                        return Err(io::Error::other(body.to_string()));
                    }
                    let looked = look(&frame);
                    let length = frame.len();
                    self.received.drain(..length);
                    return looked;
                }
                Split::Incomplete { needed } => needed,
            };
            let before = self.received.len();
            self.received.resize(needed.max(before + 4096), 0);
            let count = self.socket.read(&mut self.received[before..])?;
            self.received.truncate(before + count);
            if count == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the broker has closed the connection",
                ));
            }
        }
    }
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.batches += other.batches;
        self.level_min = match (self.level_min, other.level_min) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.latency.merge(&other.latency);
        self.credit_wait += other.credit_wait;
    }

    fn outcome(&self, seconds: f64) -> Outcome {
        Outcome {
            records: self.records,
            bytes: self.bytes,
            batches: self.batches,
            seconds,
            mib_per_s: self.bytes as f64 / seconds / f64::from(1 << 20),
            records_per_s: self.records as f64 / seconds,
            ack: self.latency.summary(),
            round_trip: self.latency.summary(),
            level_min: self.level_min.unwrap_or(0),
            credit_wait_ms: self.credit_wait.as_millis() as u64,
            memory_wait_ms: 0,
        }
    }
}

/// A full batch of the workload, and its records.
fn batch(workload: &Workload, seed: u64) -> (Vec<u8>, u32) {
    let value = payload(workload.record_bytes, seed);
    let mut builder = BatchBuilder::new(Vec::new());
    let none: [(&str, Option<&[u8]>); 0] = [];
    while builder.is_empty() || builder.len() + value.len() + 32 <= workload.batch_bytes {
        builder.push(0, None, Some(&value), none);
    }
    let records = builder.records_count() as u32;
    (builder.finish(BatchOrigin::NONE), records)
}

fn write_both(socket: &mut TcpStream, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut head_done = 0;
    let mut body_done = 0;
    while body_done < body.len() {
        let parts = [IoSlice::new(&head[head_done..]), IoSlice::new(&body[body_done..])];
        let written = match socket.write_vectored(&parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let of_head = written.min(head.len() - head_done);
        head_done += of_head;
        body_done += written - of_head;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidegate::Acks;
    use tidegate_protocol::batch::BatchView;

    use super::*;

    #[test]
    fn a_prepared_batch_is_full_and_passes_the_brokers_check() {
        let workload = Workload {
            topic: "t".into(),
            record_bytes: 1024,
            batch_bytes: 64 << 10,
            acks: Acks::Leader,
            time: Duration::from_secs(1),
        };
        let (bytes, records) = batch(&workload, 1);
        assert!(bytes.len() <= 64 << 10 && bytes.len() > 62 << 10);
        assert!(records >= 60);
        let view = BatchView::parse(&bytes).unwrap();
        view.check_from_client(1 << 20).unwrap();
        view.verify_crc().unwrap();
        assert_eq!(view.header().records_count as u32, records);
    }
}
