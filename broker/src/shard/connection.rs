//! A connection: bytes in, frames out.
//!
//! One receive is under way at a time. What it brings is cut into frames in place; bodies stay views of the receive buffer
//! until the log has copied them. A frame that is not whole yet is moved to the front of the next buffer, which is as large
//! as the frame once its length is known, so that a large one is received straight into its own memory. Nothing is received
//! while too much waits to be sent or answered: TCP then slows the client, but nobody else.
//!
//! Whatever a turn has to say to a connection leaves in one send; one send is under way at a time.

use std::collections::{BTreeMap, VecDeque};

use tidegate_logic::credit::{FetchCredit, Holder};
use tidegate_logic::topics::IDEMPOTENCE_WINDOW_MIN;
use tidegate_protocol::api::Api;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::api::subscribe::SubscriptionId;
use tidegate_protocol::frame::{self, Frame, HELLO_BYTES_MAX, LENGTH_LEN, Split};
use tidegate_protocol::ids::ShardId;
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Fault, Op, ShardIndex, Socket, Tag};

use super::fetch::ReaderId;
use super::mail::Mail;
use super::reply::Refusal;
use super::{Phase, Shard, ShardLimits};

/// A connection of this shard: the number of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) u64);

impl ConnectionId {
    fn socket(self) -> Socket {
        Socket(self.0)
    }

    pub(super) fn holder(self) -> Holder {
        Holder(self.0)
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing has been said. `at_home`: another shard has sent it here, so it stays.
    Hello { at_home: bool },
    /// It goes to another shard.
    Leaving { to: ShardId },
    /// It is served.
    Open,
    /// Nothing more is read; what is queued is sent, then it is closed.
    Ending,
    /// The close is under way.
    Closing,
}

/// What follows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next one.
    Next,
    /// The same one again, later: nothing has come of it yet.
    Again,
}

/// One connection.
///
/// Invariants: at most one receive and one send are under way; `out.bytes` is what is queued and not under way.
#[derive(Debug)]
pub(super) struct Connection {
    stage: Stage,
    pub(super) client_id: String,
    receiving: bool,
    receive_bytes: usize,
    unread: Option<(View, usize)>,
    waits_for_room: bool,
    out: Outbound,
    dirty: bool,
    /// Requests that are not answered yet.
    pub(super) in_flight: usize,
    pub(super) subscriptions: BTreeMap<SubscriptionId, ReaderId>,
    /// It has heard that there is no produce credit for it now.
    pub(super) told_to_wait: bool,
    /// The ceiling over all subscriptions, once the client has set one.
    pub(super) ceiling: Option<FetchCredit>,
    /// Bytes of all `data` bodies sent so far, for a ceiling that comes late.
    pub(super) data_sent: u64,
    /// Subscriptions that wait for the queue to drain or the ceiling to rise.
    pub(super) held_readers: Vec<ReaderId>,
}

/// What is queued for a send: small frames side by side in `frames`, large bodies as views between them.
#[derive(Debug, Default)]
struct Outbound {
    frames: Vec<u8>,
    parts: VecDeque<Part>,
    bytes: usize,
    sending: Option<usize>,
}

#[derive(Debug)]
enum Part {
    // So many further bytes of `frames`.
    Frames(usize),
    View(View),
}

impl Outbound {
    fn put(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let before = self.frames.len();
        encode(&mut self.frames);
        let added = self.frames.len() - before;
        self.bytes += added;
        match self.parts.back_mut() {
            Some(Part::Frames(bytes)) => *bytes += added,
            _ => self.parts.push_back(Part::Frames(added)),
        }
    }

    fn put_view(&mut self, view: View) {
        self.bytes += view.len();
        self.parts.push_back(Part::View(view));
    }

    /// The first `views_max` parts. The small frames among them are copied into one buffer.
    fn take(&mut self, views_max: usize) -> Vec<View> {
        let count = self.parts.len().min(views_max);
        let small: usize = self.parts.iter().take(count).map(|part| part.frames_bytes()).sum();
        let frames = (small > 0).then(|| View::copy_of(&self.frames[..small]));
        self.frames.drain(..small);
        let (mut at, mut bytes) = (0, 0);
        let views: Vec<View> = self
            .parts
            .drain(..count)
            .filter_map(|part| match part {
                Part::Frames(len) => {
                    at += len;
                    frames.as_ref().map(|frames| frames.slice(at - len..at))
                }
                Part::View(view) => Some(view),
            })
            .inspect(|view| bytes += view.len())
            .collect();
        self.bytes -= bytes;
        self.sending = Some(bytes);
        views
    }

    fn queued(&self) -> usize {
        self.bytes + self.sending.unwrap_or(0)
    }
}

impl Part {
    fn frames_bytes(&self) -> usize {
        match self {
            Part::Frames(bytes) => *bytes,
            Part::View(_) => 0,
        }
    }
}

impl Connection {
    fn new(stage: Stage, receive_bytes: usize) -> Connection {
        Connection {
            stage,
            client_id: String::new(),
            receiving: false,
            receive_bytes,
            unread: None,
            waits_for_room: false,
            out: Outbound::default(),
            dirty: false,
            in_flight: 0,
            subscriptions: BTreeMap::new(),
            told_to_wait: false,
            ceiling: None,
            data_sent: 0,
            held_readers: Vec::new(),
        }
    }

    /// Bytes queued for sending or under way.
    pub(super) fn queued(&self) -> usize {
        self.out.queued()
    }

    fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }
}

impl Shard {
    /// A client has connected.
    pub(super) fn connection_accepted(&mut self, socket: Socket, ops: &mut Vec<Op>) {
        let id = ConnectionId(socket.0);
        self.connection_begins(socket, Stage::Hello { at_home: false });
        if self.connections.len() > self.limits.connections_max {
            let refusal = self.too_many_connections();
            self.refuse(id, 0, Api::Hello.number(), &refusal);
            return self.connection_end(id);
        }
        self.connection_receive(id, None, ops);
    }

    /// A socket has come from another shard with what was read from it.
    pub(super) fn connection_arrived(&mut self, socket: Socket, bytes: &[u8], ops: &mut Vec<Op>) {
        self.connection_begins(socket, Stage::Hello { at_home: true });
        let mut buf = Buffer::for_filling(bytes.len().max(self.limits.receive_bytes_min));
        buf.extend(bytes);
        self.connection_process(ConnectionId(socket.0), buf.freeze(), 0, ops);
    }

    fn connection_begins(&mut self, socket: Socket, stage: Stage) {
        let id = ConnectionId(socket.0);
        self.connections.insert(id, Connection::new(stage, self.limits.receive_bytes_min));
        self.pool.join(id.holder());
        self.hello_due.push_back((self.now.mono_ns + self.limits.hello_ms * 1_000_000, id));
        self.stats.connections_accepted += 1;
    }

    /// A receive has ended.
    pub(super) fn connection_received(
        &mut self,
        socket: Socket,
        buf: Buffer,
        result: Result<usize, Fault>,
        ops: &mut Vec<Op>,
    ) {
        let id = ConnectionId(socket.0);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.receiving = false;
        match (connection.stage, result) {
            (Stage::Ending | Stage::Closing, _) => {}
            (_, Ok(0) | Err(_)) => self.connection_end(id),
            (_, Ok(bytes)) => {
                self.stats.bytes_received += bytes as u64;
                connection.receive_bytes =
                    next_receive_bytes(&self.limits, connection.receive_bytes, buf.capacity(), bytes);
                self.connection_process(id, buf.freeze(), 0, ops);
            }
        }
    }

    /// Cuts `bytes` from `at` into frames and has each done.
    fn connection_process(&mut self, id: ConnectionId, bytes: View, mut at: usize, ops: &mut Vec<Op>) {
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let length_max = match connection.stage {
                Stage::Hello { .. } => HELLO_BYTES_MAX,
                Stage::Open => length_max(&bytes[at..], &self.limits),
                Stage::Leaving { to } => return self.connection_hand_over(id, to, &bytes, ops),
                Stage::Ending | Stage::Closing => return,
            };
            if connection.queued() > self.limits.out_bytes_max
                || connection.in_flight >= self.limits.in_flight_max
            {
                self.stats.receive_pauses += 1;
                connection.unread = Some((bytes, at));
                return;
            }
            match frame::split(&bytes[at..], length_max) {
                Ok(Split::Frame(frame)) => {
                    let body_at = at + frame.body_at();
                    let frame_at = at;
                    at += frame.len();
                    if self.route(id, &frame, &bytes, body_at, ops) == Flow::Again {
                        return self.connection_waits_for_room(id, bytes, frame_at);
                    }
                    self.stats.frames_received += 1;
                    // A socket that leaves takes its hello along.
                    if self.connections.get(&id).is_some_and(|c| matches!(c.stage, Stage::Leaving { .. })) {
                        at = frame_at;
                        let rest = bytes.slice(at..bytes.len());
                        return self.connection_process(id, rest, 0, ops);
                    }
                }
                Ok(Split::Incomplete { needed }) => {
                    if let Err(refusal) = self.may_be_large(id, &bytes[at..], needed) {
                        return self.connection_distrust(id, &bytes[at..], refusal);
                    }
                    return self.connection_receive(id, Some((bytes, at, needed)), ops);
                }
                Err(error) => return self.connection_distrust(id, &bytes[at..], Refusal::Malformed(error)),
            }
        }
    }

    /// Nothing more is read until the log has room for the frame at `at`.
    fn connection_waits_for_room(&mut self, id: ConnectionId, bytes: View, at: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.unread = Some((bytes, at));
        self.stats.room_waits += 1;
        if !std::mem::replace(&mut connection.waits_for_room, true) {
            self.room_waiters.push_back(id);
        }
    }

    /// Lets those go on that wait for room in the logs, in the order in which they have begun to wait, while there is some.
    /// Now and then they try without: a log that takes no writes any more has no room, but an answer.
    pub(super) fn connections_find_room(&mut self, ops: &mut Vec<Op>) {
        let try_anyway = std::mem::take(&mut self.try_for_room) || self.phase != Phase::Serving;
        for _ in 0..self.room_waiters.len() {
            if self.logs.room().bytes == 0 && !try_anyway {
                return;
            }
            let Some(id) = self.room_waiters.pop_front() else { return };
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.waits_for_room = false;
                self.connection_resume(id, ops);
            }
        }
    }

    /// Whether memory may be set aside for a frame of `needed` bytes: a large produce needs credit to begin.
    fn may_be_large(&self, id: ConnectionId, begun: &[u8], needed: usize) -> Result<(), Refusal> {
        let is_produce = begun.get(LENGTH_LEN) == Some(&Api::Produce.number());
        if !is_produce || needed <= self.limits.receive_bytes_max {
            return Ok(());
        }
        let (received, limit) = self.pool.counters(id.holder());
        if received < limit {
            return Ok(());
        }
        Err(Refusal::OutOfCredit { limit, received })
    }

    /// The stream cannot be trusted any more: say why and close.
    fn connection_distrust(&mut self, id: ConnectionId, begun: &[u8], refusal: Refusal) {
        let (api, correlation) = frame::claimed(begun);
        self.stats.streams_distrusted += 1;
        self.refuse(id, correlation, api, &refusal);
        self.connection_end(id);
    }

    /// Puts a receive under way; bytes that do not make a whole frame yet go in front.
    fn connection_receive(
        &mut self,
        id: ConnectionId,
        begun: Option<(View, usize, usize)>,
        ops: &mut Vec<Op>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        assert!(!connection.receiving, "one receive at a time");
        let buf = receive_buffer(connection.receive_bytes, begun);
        connection.receiving = true;
        ops.push(Op::Receive { socket: id.socket(), buf });
    }

    /// Answers the first frame, or sends the socket where it wants to go.
    pub(super) fn hello(&mut self, id: ConnectionId, frame: &Frame<'_>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Stage::Hello { at_home } = connection.stage else {
            return self.refuse(
                id,
                frame.correlation,
                frame.api_number,
                &Refusal::HelloNeeded { again: true },
            );
        };
        match self.hello_decided(at_home, frame) {
            Ok((request, to)) if to == self.me => self.hello_answered(id, frame.correlation, request),
            Ok((_, to)) => self.connection_mut(id).stage = Stage::Leaving { to },
            Err(refusal) => {
                self.refuse(id, frame.correlation, frame.api_number, &refusal);
                self.connection_end(id);
            }
        }
    }

    fn hello_decided(
        &mut self,
        at_home: bool,
        frame: &Frame<'_>,
    ) -> Result<(HelloRequest, ShardId), Refusal> {
        let request = HelloRequest::decode(frame)?;
        if !(request.version_min..=request.version_max).contains(&PROTOCOL_VERSION) {
            let (min, max) = (request.version_min, request.version_max);
            return Err(Refusal::ProtocolVersion { min, max, ours: PROTOCOL_VERSION });
        }
        if self.phase != Phase::Serving {
            return Err(self.not_ready());
        }
        if self.connections.len() > self.limits.connections_max {
            return Err(self.too_many_connections());
        }
        let to = match request.shard {
            _ if at_home => self.me,
            Some(shard) if shard.0 < self.shard_count => shard,
            Some(shard) => {
                let rule = format!("is {shard}; this node has shards 0 to {}", self.shard_count - 1);
                return Err(Refusal::Invalid { field: "shard", rule });
            }
            None => {
                self.next_shard = (self.next_shard + 1) % self.shard_count;
                ShardId(self.next_shard)
            }
        };
        Ok((request, to))
    }

    fn too_many_connections(&self) -> Refusal {
        let (limit, current) = (self.limits.connections_max as u64, self.connections.len() as u64);
        Refusal::Limit { what: "connections of a shard", limit, current }
    }

    fn hello_answered(&mut self, id: ConnectionId, correlation: u32, request: HelloRequest) {
        let reply = HelloReply {
            version: PROTOCOL_VERSION,
            node: self.node,
            cluster: self.cluster.0,
            incarnation: self.incarnation,
            shard: self.me,
            shard_count: self.shard_count,
            software: concat!("tidegate ", env!("CARGO_PKG_VERSION")).to_owned(),
            frame_bytes_max: self.limits.frame_bytes_max,
            batch_bytes_max: self.limits.topics.batch_bytes_max,
            idempotence_window: IDEMPOTENCE_WINDOW_MIN,
            credit_initial: 0,
        };
        let connection = self.connection_mut(id);
        connection.stage = Stage::Open;
        connection.client_id = request.client_id;
        self.send(id, |out| reply.encode(correlation, out));
    }

    fn connection_hand_over(&mut self, id: ConnectionId, to: ShardId, bytes: &View, ops: &mut Vec<Op>) {
        self.connections.remove(&id);
        self.pool.leave(id.holder());
        self.stats.connections_handed_over += 1;
        let letter = Box::new(Mail::HandOver { bytes: bytes.to_vec() });
        ops.push(Op::HandOver { socket: id.socket(), to: ShardIndex(to.0), letter });
    }

    /// Queues a small frame.
    pub(super) fn send(&mut self, id: ConnectionId, encode: impl FnOnce(&mut Vec<u8>)) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.out.put(encode);
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Queues a frame whose body lies in views.
    pub(super) fn send_views(
        &mut self,
        id: ConnectionId,
        views: Vec<View>,
        encode_head: impl FnOnce(&mut Vec<u8>),
    ) {
        self.send(id, encode_head);
        if let Some(connection) = self.connections.get_mut(&id) {
            views.into_iter().for_each(|view| connection.out.put_view(view));
        }
    }

    /// Puts one send under way for each connection that has something to say.
    pub(super) fn connections_flush(&mut self, ops: &mut Vec<Op>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.dirty = false;
            self.connection_flush(id, ops);
        }
        self.dirty = dirty;
    }

    fn connection_flush(&mut self, id: ConnectionId, ops: &mut Vec<Op>) {
        let views_max = self.limits.send_views_max;
        let connection = self.connection_mut(id);
        if connection.out.sending.is_some() || connection.stage == Stage::Closing {
            return;
        }
        if connection.out.parts.is_empty() {
            if connection.stage == Stage::Ending {
                connection.stage = Stage::Closing;
                ops.push(Op::Close { socket: id.socket() });
            }
            return;
        }
        let views = connection.out.take(views_max);
        self.stats.sends += 1;
        ops.push(Op::Send { socket: id.socket(), views, tag: Tag(0) });
    }

    /// A send has ended.
    pub(super) fn connection_sent(&mut self, socket: Socket, result: Result<(), Fault>, ops: &mut Vec<Op>) {
        let id = ConnectionId(socket.0);
        let out_bytes_max = self.limits.out_bytes_max;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let sent = connection.out.sending.take().unwrap_or(0);
        self.stats.bytes_sent += sent as u64;
        if result.is_err() {
            connection.out = Outbound::default();
            self.connection_end(id);
        } else if connection.queued() <= out_bytes_max / 2 {
            let held = std::mem::take(&mut connection.held_readers);
            held.into_iter().for_each(|reader| self.reader_wake(reader));
        }
        self.mark_dirty(id);
        self.connection_resume(id, ops);
    }

    fn mark_dirty(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|c| !c.dirty) {
            connection.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Goes on with what was left unread, once there is room again.
    pub(super) fn connection_resume(&mut self, id: ConnectionId, ops: &mut Vec<Op>) {
        let limits = self.limits;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let room =
            connection.queued() <= limits.out_bytes_max / 2 && connection.in_flight < limits.in_flight_max;
        let go = room && !connection.waits_for_room;
        if let Some((bytes, at)) = connection.unread.take_if(|_| go) {
            self.connection_process(id, bytes, at, ops);
        }
    }

    /// A request is answered.
    pub(super) fn connection_answered(&mut self, id: ConnectionId) {
        let in_flight_max = self.limits.in_flight_max;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.in_flight = connection.in_flight.checked_sub(1).expect("each request is answered once");
        if connection.unread.is_some() && connection.in_flight < in_flight_max {
            self.resumable.push(id);
        }
    }

    /// Reads no more; what is queued is sent, then the socket is closed.
    pub(super) fn connection_end(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if matches!(connection.stage, Stage::Ending | Stage::Closing) {
            return;
        }
        connection.stage = Stage::Ending;
        connection.unread = None;
        let readers: Vec<ReaderId> = std::mem::take(&mut connection.subscriptions).into_values().collect();
        readers.into_iter().for_each(|reader| self.reader_end(reader));
        self.pool.leave(id.holder());
        self.mark_dirty(id);
    }

    /// The socket is gone.
    pub(super) fn connection_closed(&mut self, socket: Socket) {
        let id = ConnectionId(socket.0);
        self.connection_end(id);
        self.connections.remove(&id);
    }

    /// Closes connections that have not said hello in time.
    pub(super) fn connections_tick(&mut self) {
        while let Some((_, id)) = self.hello_due.pop_front_if(|(due, _)| *due <= self.now.mono_ns) {
            let silent = self.connections.get(&id).is_some_and(|c| matches!(c.stage, Stage::Hello { .. }));
            if silent {
                self.stats.hello_timeouts += 1;
                self.connection_end(id);
            }
        }
    }

    /// Whether the connection has said hello and is not ending.
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(Connection::is_open)
    }

    fn connection_mut(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("the caller has just looked it up")
    }
}

/// The version of the protocol that this broker speaks.
const PROTOCOL_VERSION: u16 = 1;

/// Where the next bytes go: behind what has come of a frame that is not whole (the view, where the frame begins, and the bytes
/// that make it whole), or into memory of `size` bytes.
fn receive_buffer(size: usize, begun: Option<(View, usize, usize)>) -> Buffer {
    let Some((bytes, at, needed)) = begun else { return Buffer::for_filling(size) };
    let begin_anew = |rest: &[u8]| {
        let mut buf = Buffer::for_filling(needed.max(size));
        buf.extend(rest);
        buf
    };
    match (at, bytes.len() - at) {
        // The same memory again, if nothing has kept a view of it.
        (_, 0) => match bytes.into_buffer().filter(|buf| (size..=2 * size).contains(&buf.capacity())) {
            Some(mut buf) => {
                buf.set_filled(0);
                buf
            }
            None => Buffer::for_filling(size),
        },
        (0, _) => {
            let buf = bytes.into_buffer().expect("nothing was cut out of it, so there is no other view");
            if buf.capacity() >= needed { buf } else { begin_anew(&buf) }
        }
        (_, _) => begin_anew(&bytes[at..]),
    }
}

/// A full buffer asks for a larger one, a nearly empty one for a smaller.
fn next_receive_bytes(limits: &ShardLimits, now: usize, capacity: usize, came: usize) -> usize {
    let next = match came {
        came if came * 2 >= capacity => now * 2,
        came if came * 8 < capacity => now / 2,
        _ => now,
    };
    next.clamp(limits.receive_bytes_min, limits.receive_bytes_max)
}

/// The limit for the length of a frame, once its api can be seen.
fn length_max(begun: &[u8], limits: &ShardLimits) -> u32 {
    match begun.get(LENGTH_LEN) {
        Some(api) if *api != Api::Produce.number() => limits.control_bytes_max,
        _ => limits.frame_bytes_max,
    }
}
