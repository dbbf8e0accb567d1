//! One connection that produces prepared batches without blocking: frames out under credit, replies in.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tidegate::{Acks, LeaderEpoch, PartitionInfo, ShardId, TopicId, TopicPartition};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::api::produce::{ProduceReply, ProduceRequest};
use tidegate_protocol::batch::replace_in_records;
use tidegate_protocol::frame::{Frame, Kind, Split, split};

use super::wire::Prepared;
use super::{Job, Published};
use crate::payload::STAMP_BYTES;
use crate::series::Live;
use crate::workload::Schedule;

/// Longest reply, in bytes; a hello and a produce reply are far shorter.
const REPLY_BYTES_MAX: u32 = 64 << 10;

/// How long a broker may take to answer a hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection and what is under way on it.
///
/// Invariant: `sent` counts the bytes of all produce frames begun; a frame begins only while `sent < limit`.
#[derive(Debug)]
pub(crate) struct Link {
    socket: TcpStream,
    received: Vec<u8>,
    requests: Vec<ProduceRequest>,
    next_request: usize,
    /// When sends are due; none: whenever there is room.
    pub(crate) schedule: Option<Schedule>,
    /// Sends begun, and sends whose time has come.
    begun: u64,
    counted: u64,
    sent: u64,
    limit: u64,
    /// Since when credit is waited for.
    waits_since_ns: Option<u64>,
    out: Out,
    /// The intended time of each frame under way, at the place that its correlation names.
    slots: Vec<Option<u64>>,
    free: Vec<u32>,
}

/// A frame that is being written.
#[derive(Debug, Default)]
struct Out {
    /// Frame head and what differs in the batch, then the prepared batch from `body_at` on.
    head: Vec<u8>,
    body_at: usize,
    body_len: usize,
    done: usize,
    /// With acks=0 nothing answers: a frame is done when it is written.
    done_when_written: Option<u32>,
}

enum Event {
    Reply(ProduceReply),
    Limit(u64),
    Refused(String),
}

impl Link {
    /// Connects to a shard and says hello; `in_flight` frames may be under way.
    pub(crate) fn connect(server: &str, shard: ShardId, in_flight: usize) -> io::Result<Link> {
        Link::connect_within(server, shard, in_flight, HELLO_TIME_MAX)
    }

    /// The same; the broker has to answer within `patience`.
    pub(super) fn connect_within(
        server: &str,
        shard: ShardId,
        in_flight: usize,
        patience: Duration,
    ) -> io::Result<Link> {
        let socket = TcpStream::connect(server)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let in_flight = in_flight.max(1) as u32;
        let mut link = Link {
            socket,
            received: Vec::new(),
            requests: Vec::new(),
            next_request: 0,
            schedule: None,
            begun: 0,
            counted: 0,
            sent: 0,
            limit: 0,
            waits_since_ns: None,
            out: Out::default(),
            slots: vec![None; in_flight as usize],
            free: (0..in_flight).rev().collect(),
        };
        link.limit = link.hello(shard, patience)?.credit_initial;
        link.socket.set_nonblocking(true)?;
        Ok(link)
    }

    fn hello(&mut self, shard: ShardId, patience: Duration) -> io::Result<HelloReply> {
        let begun = Instant::now();
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
        loop {
            if let Some(reply) = self.take(|frame| HelloReply::decode(frame).map_err(io::Error::other))? {
                return reply;
            }
            // Nothing came for as long as a read may take, or too little of it.
            if begun.elapsed() >= patience {
                let why = format!("the broker does not answer a hello within {} s", patience.as_secs_f64());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            self.read()?;
        }
    }

    pub(crate) fn produce_to(&mut self, topic: TopicId, partitions: &[PartitionInfo], acks: Acks) {
        self.requests = partitions
            .iter()
            .map(|info| ProduceRequest {
                partition: TopicPartition { topic, partition: info.partition },
                leader_epoch: LeaderEpoch::UNKNOWN,
                acks,
            })
            .collect();
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether a frame is partly written.
    pub(crate) fn is_writing(&self) -> bool {
        self.out.done < self.out.head.len() + self.out.body_len
    }

    /// When its next send is due; far away if its next step depends on the broker.
    pub(crate) fn next_due_ns(&self, job: &Job<'_>) -> u64 {
        let blocked = self.free.is_empty() || self.sent >= self.limit || self.is_writing();
        let due_ns = match &self.schedule {
            // The due times are counted for whoever watches, even while nothing can be sent.
            Some(schedule) if blocked => schedule.due_ns(self.counted),
            Some(schedule) => schedule.due_ns(self.begun),
            None if job.clock.now_ns() < job.start_ns => job.start_ns,
            None => u64::MAX,
        };
        // What would be due behind the end is never sent.
        if due_ns < job.window.end_ns { due_ns } else { u64::MAX }
    }

    /// Whether all that was to be sent is sent and answered.
    pub(crate) fn is_done(&self, job: &Job<'_>) -> bool {
        let all_begun = match &self.schedule {
            Some(schedule) => schedule.due_ns(self.begun) >= job.window.end_ns,
            None => job.clock.now_ns() >= job.window.end_ns,
        };
        all_begun && self.free.len() == self.slots.len() && !self.is_writing()
    }

    /// Writes what can be written, and begins the sends that are due.
    pub(crate) fn pump(
        &mut self,
        job: &Job<'_>,
        batch: &Prepared,
        published: &mut Published,
    ) -> io::Result<()> {
        self.count_due(job, batch);
        loop {
            if !self.write(batch)? {
                return Ok(());
            }
            if let Some(slot) = self.out.done_when_written.take() {
                let now_ns = job.clock.now_ns();
                self.settle(slot, |intended_ns| published.acked(job, intended_ns, now_ns, batch, 0));
            }
            let Some(intended_ns) = self.next_intended(job) else { return Ok(()) };
            if self.sent >= self.limit {
                if self.waits_since_ns.is_none() {
                    self.waits_since_ns = Some(job.clock.now_ns());
                    self.ask(batch);
                    continue;
                }
                return Ok(());
            }
            let Some(slot) = self.free.pop() else { return Ok(()) };
            self.slots[slot as usize] = Some(intended_ns);
            self.begun += 1;
            self.begin(slot, intended_ns, batch);
            self.out.done_when_written = self.is_unanswered().then_some(slot);
        }
    }

    fn count_due(&mut self, job: &Job<'_>, batch: &Prepared) {
        let Some(schedule) = &self.schedule else { return };
        let now_ns = job.clock.now_ns().min(job.window.end_ns - 1);
        let before = self.counted;
        while schedule.due_ns(self.counted) <= now_ns {
            self.counted += 1;
        }
        Live::add(&job.live.due, (self.counted - before) * u64::from(batch.records));
    }

    /// The intended time of the next send, if that has come and there is room for one more.
    fn next_intended(&self, job: &Job<'_>) -> Option<u64> {
        let now_ns = job.clock.now_ns();
        let intended_ns = self.schedule.map_or(now_ns, |schedule| schedule.due_ns(self.begun));
        let due = (job.start_ns..=now_ns).contains(&intended_ns) && intended_ns < job.window.end_ns;
        (due && !self.free.is_empty()).then_some(intended_ns)
    }

    fn begin(&mut self, slot: u32, intended_ns: u64, batch: &Prepared) {
        let request = &self.requests[self.next_request];
        self.next_request = (self.next_request + 1) % self.requests.len();
        self.out.head.clear();
        // Correlation 0 was the hello's.
        request.encode_head(slot + 1, batch.bytes.len(), &mut self.out.head);
        self.sent += (self.out.head.len() + batch.bytes.len()) as u64;
        self.out.body_at = 0;
        if let Some(at) = batch.stamp_at {
            let front = self.out.head.len();
            self.out.body_at = at + STAMP_BYTES;
            self.out.head.extend_from_slice(&batch.bytes[..self.out.body_at]);
            replace_in_records(&mut self.out.head[front..], at, &intended_ns.to_ne_bytes());
        }
        self.out.body_len = batch.bytes.len() - self.out.body_at;
        self.out.done = 0;
    }

    fn ask(&mut self, batch: &Prepared) {
        let wanted = (batch.bytes.len() * self.slots.len()) as u64;
        let ask = Credit { scope: Scope::Produce, limit: self.limit, reason: Reason::None, wanted };
        self.out = Out::default();
        ask.encode(&mut self.out.head);
    }

    /// Whether everything is written.
    fn write(&mut self, batch: &Prepared) -> io::Result<bool> {
        let out = &mut self.out;
        while out.done < out.head.len() + out.body_len {
            let (head, body) = (out.done.min(out.head.len()), out.done.saturating_sub(out.head.len()));
            let body = &batch.bytes[out.body_at + body..out.body_at + out.body_len];
            match self.socket.write_vectored(&[IoSlice::new(&out.head[head..]), IoSlice::new(body)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => out.done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes in what has come: acknowledgements, refusals, more credit.
    pub(crate) fn receive(
        &mut self,
        job: &Job<'_>,
        batch: &Prepared,
        published: &mut Published,
    ) -> io::Result<()> {
        if !self.read()? {
            return Ok(());
        }
        while let Some((correlation, event)) = self.event()? {
            let now_ns = job.clock.now_ns();
            match event {
                Event::Limit(limit) if limit > self.limit => {
                    self.limit = limit;
                    if let Some(since_ns) = self.waits_since_ns.take() {
                        published.credit_wait += Duration::from_nanos(now_ns - since_ns);
                    }
                }
                Event::Limit(_) => {}
                Event::Reply(reply) if reply.record_count != batch.records => {
                    return Err(io::Error::other("the broker acknowledges another number of records"));
                }
                Event::Reply(reply) => {
                    let level = reply.level as u8;
                    self.answered(correlation, |intended_ns| {
                        published.acked(job, intended_ns, now_ns, batch, level);
                    })?;
                }
                // Its frame counted as done when it was written, and its place may be in use again.
                Event::Refused(why) if self.is_unanswered() => {
                    published.refused_late(job.live, u64::from(batch.records), &why);
                }
                Event::Refused(why) => {
                    self.answered(correlation, |intended_ns| {
                        published.failed(job.live, intended_ns, now_ns, u64::from(batch.records), &why);
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Whether the broker answers only what it refuses.
    fn is_unanswered(&self) -> bool {
        self.requests.first().is_some_and(|request| request.acks == Acks::None)
    }

    fn answered(&mut self, correlation: u32, then: impl FnOnce(u64)) -> io::Result<()> {
        let slot = correlation.wrapping_sub(1);
        match self.slots.get(slot as usize) {
            Some(Some(_)) => {
                self.settle(slot, then);
                Ok(())
            }
            _ => Err(io::Error::other("the broker answers what was not asked")),
        }
    }

    fn settle(&mut self, slot: u32, then: impl FnOnce(u64)) {
        let intended_ns = self.slots[slot as usize].take().expect("only a slot in use is settled");
        self.free.push(slot);
        then(intended_ns);
    }

    /// Counts what is not answered, and what was to be sent and is not, as failed.
    pub(crate) fn give_up(&mut self, job: &Job<'_>, batch: &Prepared, published: &mut Published) {
        let now_ns = job.clock.now_ns();
        let records = u64::from(batch.records);
        for intended_ns in self.slots.iter_mut().filter_map(Option::take) {
            published.failed(job.live, intended_ns, now_ns, records, "not answered when the run gave up");
        }
        let Some(schedule) = &self.schedule else { return };
        let end_ns = job.window.end_ns.min(now_ns);
        for index in self.begun.. {
            let due_ns = schedule.due_ns(index);
            if due_ns >= end_ns {
                break;
            }
            published.failed(job.live, due_ns, now_ns, records, "not sent when the run gave up");
        }
    }

    /// Reads once; false if there is nothing.
    fn read(&mut self) -> io::Result<bool> {
        let before = self.received.len();
        self.received.resize(before + (16 << 10), 0);
        let read = self.socket.read(&mut self.received[before..]);
        self.received.truncate(before + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => {
                let kind = io::ErrorKind::UnexpectedEof;
                Err(io::Error::new(kind, "the broker has closed the connection"))
            }
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn event(&mut self) -> io::Result<Option<(u32, Event)>> {
        let event = self.take(|frame| {
            let correlation = frame.correlation;
            if frame.kind == Kind::Error {
                let body = ErrorBody::decode(frame).map_err(io::Error::other)?;
                return Ok((correlation, Event::Refused(body.to_string())));
            }
            let event = match frame.api() {
                Ok(Api::Produce) => Event::Reply(ProduceReply::decode(frame).map_err(io::Error::other)?),
                Ok(Api::Credit) => {
                    let credit = Credit::decode(frame).map_err(io::Error::other)?;
                    Event::Limit(if credit.scope == Scope::Produce { credit.limit } else { 0 })
                }
                other => {
                    let text = format!("the broker sends {other:?}, which nobody asked for");
                    return Err(io::Error::other(text));
                }
            };
            Ok((correlation, event))
        })?;
        event.transpose()
    }

    /// Looks at the next whole frame that has come, if there is one.
    fn take<T>(&mut self, look: impl FnOnce(&Frame<'_>) -> T) -> io::Result<Option<T>> {
        match split(&self.received, REPLY_BYTES_MAX).map_err(io::Error::other)? {
            Split::Frame(frame) => {
                let looked = look(&frame);
                let length = frame.len();
                self.received.drain(..length);
                Ok(Some(looked))
            }
            Split::Incomplete { .. } => Ok(None),
        }
    }
}
