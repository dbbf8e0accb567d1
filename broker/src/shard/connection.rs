//! A connection: bytes in, where each frame goes, frames out.
//!
//! One receive is under way at a time. What it brings is cut into frames in place; bodies stay views of the receive buffer
//! until the log has copied them. What has come of a frame that is not whole stays where it is if it stands at the front of
//! its buffer and the rest fits there; else it is copied to the front of the next one, which is as large as the whole frame.
//! Nothing is received while too much waits to be sent or answered: TCP then slows the client, but nobody else.
//!
//! The match over the table of apis is closed: a new api does not compile until it has a place here.
//!
//! Whatever a turn has to say to a connection leaves in one send; one send is under way at a time.

use std::collections::BTreeMap;

use tidegate_logic::credit::{FetchCredit, Holder};
use tidegate_logic::placement::{offsets_partition, shard_of};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::api::hello::Ping;
use tidegate_protocol::api::metadata::MetadataRequest;
use tidegate_protocol::api::offset::{
    DeleteRecordsRequest, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest,
};
use tidegate_protocol::api::producer::ProducerInitRequest;
use tidegate_protocol::api::status::StatusRequest;
use tidegate_protocol::api::subscribe::SubscriptionId;
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicRequest, DeleteTopicRequest, DescribeTopicRequest,
};
use tidegate_protocol::frame::{self, Frame, HELLO_BYTES_MAX, Kind, LENGTH_LEN, Split};
use tidegate_protocol::ids::ShardId;
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Fault, Op, Socket, Tag};

use super::fetch::ReaderId;
use super::mail::{Ask, Asker};
use super::orders::ORDERS_SHARD;
use super::outbound::Outbound;
use super::reply::Refusal;
use super::{Phase, Shard, ShardLimits, stages};

/// A connection of this shard: the number of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) u64);

impl ConnectionId {
    pub(super) fn socket(self) -> Socket {
        Socket(self.0)
    }

    pub(super) fn holder(self) -> Holder {
        Holder(self.0)
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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
    pub(super) stage: Stage,
    pub(super) client_id: String,
    receiving: bool,
    receive_bytes: usize,
    unread: Option<(View, usize)>,
    waits_for_room: bool,
    pub(super) out: Outbound,
    dirty: bool,
    /// When it began, and when its client had last taken what was sent.
    pub(super) since_ns: u64,
    pub(super) sent_ns: u64,
    // When the send that is under way began.
    sending_ns: u64,
    /// Bytes of the receive buffer under way that count for the shard.
    pub(super) set_aside: usize,
    /// Since when a frame is not whole.
    pub(super) begun_ns: Option<u64>,
    /// Requests that are not answered yet.
    pub(super) in_flight: usize,
    /// Those of them that gather something from every shard: their replies may be large.
    pub(super) gathering: usize,
    pub(super) subscriptions: BTreeMap<SubscriptionId, ReaderId>,
    /// Why there is no produce credit or no room for it now, as it has heard.
    pub(super) told: Option<Reason>,
    /// The ceiling over all subscriptions, once the client has set one.
    pub(super) ceiling: Option<FetchCredit>,
    /// Bytes of all `data` bodies sent so far, for a ceiling that comes late.
    pub(super) data_sent: u64,
    /// Subscriptions that wait for the queue to drain or the ceiling to rise.
    pub(super) held_readers: Vec<ReaderId>,
}

impl Connection {
    fn new(stage: Stage, receive_bytes: usize, now_ns: u64) -> Connection {
        Connection {
            stage,
            client_id: String::new(),
            receiving: false,
            receive_bytes,
            unread: None,
            waits_for_room: false,
            out: Outbound::default(),
            dirty: false,
            since_ns: now_ns,
            sent_ns: now_ns,
            sending_ns: 0,
            set_aside: 0,
            begun_ns: None,
            in_flight: 0,
            gathering: 0,
            subscriptions: BTreeMap::new(),
            told: None,
            ceiling: None,
            data_sent: 0,
            held_readers: Vec::new(),
        }
    }

    /// Bytes queued for sending or under way.
    pub(super) fn queued(&self) -> usize {
        self.out.queued()
    }

    /// When the send began that is under way; none: none is.
    pub(super) fn sending_since_ns(&self) -> Option<u64> {
        self.out.sending.map(|_| self.sending_ns)
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether what its client sends is still of interest.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.stage, Stage::Hello { .. } | Stage::Open)
    }

    /// Whether nothing is read from it now, so that what its client sends is not seen.
    pub(super) fn is_paused(&self) -> bool {
        !self.receiving
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
        let now_ns = self.now.mono_ns;
        self.connections.insert(id, Connection::new(stage, self.limits.receive_bytes_min, now_ns));
        self.pool.join(id.holder());
        self.hello_due.push_back((now_ns + self.limits.hello_ms * 1_000_000, id));
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
        self.held.set_aside -= std::mem::take(&mut connection.set_aside);
        match (connection.stage, result) {
            (Stage::Ending | Stage::Closing, _) => {}
            (_, Ok(0) | Err(_)) => self.connection_end(id),
            (_, Ok(bytes)) => {
                self.stats.bytes_received += bytes as u64;
                self.pool.moved(self.now.mono_ns, id.holder());
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
            let in_flight = connection.in_flight;
            if in_flight >= self.limits.in_flight_max || self.is_full_for(&self.connections[&id]) {
                self.stats.receive_pauses += 1;
                self.connection_mut(id).unread = Some((bytes, at));
                return;
            }
            match frame::split(&bytes[at..], length_max) {
                Ok(Split::Frame(frame)) => {
                    let body_at = at + frame.body_at();
                    let frame_at = at;
                    at += frame.len();
                    self.connection_mut(id).begun_ns = None;
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
                    let now_ns = self.now.mono_ns;
                    let begun_ns = &mut self.connection_mut(id).begun_ns;
                    *begun_ns = begun_ns.or(Some(now_ns)).filter(|_| at < bytes.len());
                    if let Err(refusal) = self.may_be_large(id, &bytes[at..], needed) {
                        return self.connection_distrust(id, &bytes[at..], refusal);
                    }
                    return self.connection_receive(id, Some((bytes, at, needed)), ops);
                }
                Err(error) => return self.connection_distrust(id, &bytes[at..], Refusal::Malformed(error)),
            }
        }
    }

    /// Has a frame done. `bytes` are those that it lies in, its body at `body_at`.
    fn route(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
        bytes: &View,
        body_at: usize,
        ops: &mut Vec<Op>,
    ) -> Flow {
        match self.dispatch(id, frame, bytes, body_at, ops) {
            Ok(flow) => flow,
            Err(refusal) => {
                self.refuse(id, frame.correlation, frame.api_number, &refusal);
                Flow::Next
            }
        }
    }

    fn dispatch(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
        bytes: &View,
        body_at: usize,
        ops: &mut Vec<Op>,
    ) -> Result<Flow, Refusal> {
        let api = frame.api()?;
        if frame.kind != Kind::Request {
            return Err(Refusal::Invalid { field: "flags", rule: "says that this is a reply".to_owned() });
        }
        if api == Api::Hello {
            self.hello(id, frame);
            return Ok(Flow::Next);
        }
        if !self.is_open(id) {
            return self.hello_missing(id, frame);
        }
        let asker = Asker::Connection { id, correlation: frame.correlation, api };
        match api {
            Api::Hello => {}
            Api::Ping => self.ping(id, frame.correlation, Ping::decode(frame, Kind::Request)?),
            Api::Metadata => self.metadata(id, frame.correlation, &MetadataRequest::decode(frame)?),
            Api::CreateTopic => {
                self.asks(asker, ORDERS_SHARD, Ask::CreateTopic(CreateTopicRequest::decode(frame)?), ops)?;
            }
            Api::DeleteTopic => {
                self.asks(asker, ORDERS_SHARD, Ask::DeleteTopic(DeleteTopicRequest::decode(frame)?), ops)?;
            }
            Api::AlterTopic => {
                self.asks(asker, ORDERS_SHARD, Ask::AlterTopic(AlterTopicRequest::decode(frame)?), ops)?;
            }
            Api::DescribeTopic => {
                self.describe_topic(id, frame.correlation, &DescribeTopicRequest::decode(frame)?, ops);
            }
            Api::Produce => return Ok(self.produce_received(id, frame, bytes, body_at, ops)),
            Api::Subscribe => self.subscribe(id, frame)?,
            Api::Unsubscribe => self.unsubscribe(id, frame)?,
            Api::Credit => self.credit(id, frame)?,
            Api::Data | Api::CaughtUp | Api::Heartbeat => {
                return Err(Refusal::Invalid { field: "api", rule: "is sent by the broker only".to_owned() });
            }
            Api::ListOffsets => {
                let request = ListOffsetsRequest::decode(frame)?;
                let owner = shard_of(request.partition, self.shard_count);
                self.asks(asker, owner, Ask::ListOffsets(request), ops)?;
            }
            Api::DeleteRecords => {
                let request = DeleteRecordsRequest::decode(frame)?;
                let owner = shard_of(request.partition, self.shard_count);
                self.asks(asker, owner, Ask::DeleteRecords(request), ops)?;
            }
            Api::OffsetCommit => {
                let request = OffsetCommitRequest::decode(frame)?;
                let owner = shard_of(offsets_partition(&request.group), self.shard_count);
                self.asks(asker, owner, Ask::OffsetCommit(request), ops)?;
            }
            Api::OffsetFetch => {
                let request = OffsetFetchRequest::decode(frame)?;
                let owner = shard_of(offsets_partition(&request.group), self.shard_count);
                self.asks(asker, owner, Ask::OffsetFetch(request), ops)?;
            }
            Api::ProducerInit => {
                self.asks(asker, ORDERS_SHARD, Ask::ProducerInit(ProducerInitRequest::decode(frame)?), ops)?;
            }
            Api::Status => {
                StatusRequest::decode(frame)?;
                self.status(id, frame.correlation, ops);
            }
        }
        Ok(Flow::Next)
    }

    fn asks(&mut self, asker: Asker, to: ShardId, ask: Ask, ops: &mut Vec<Op>) -> Result<(), Refusal> {
        if self.phase != Phase::Serving {
            return Err(self.not_ready());
        }
        if let Asker::Connection { id, .. } = asker {
            self.request_begins(id);
        }
        self.ask(asker, to, ask, ops);
        Ok(())
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
        self.letters_find_room(try_anyway, ops);
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
        let Some(connection) = self.connections.get(&id) else { return };
        assert!(!connection.receiving, "one receive at a time");
        let buf = receive_buffer(self.receive_bytes(connection.receive_bytes), begun);
        let set_aside = self.counted(id, &buf, buf.capacity());
        self.held.set_aside += set_aside;
        let connection = self.connection_mut(id);
        (connection.receiving, connection.set_aside) = (true, set_aside);
        ops.push(Op::Receive { socket: id.socket(), buf });
    }

    fn ping(&mut self, id: ConnectionId, correlation: u32, ping: Ping) {
        let (produce_bytes, produce_limit) = self.pool.counters(id.holder());
        let pong = Ping { nonce: ping.nonce, produce_bytes, produce_limit };
        self.send(id, |out| pong.encode(Kind::Reply, correlation, out));
    }

    /// Queues a small frame.
    pub(super) fn send(&mut self, id: ConnectionId, encode: impl FnOnce(&mut Vec<u8>)) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.held.queued += connection.out.put(encode);
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
            self.held.queued += views.into_iter().map(|view| connection.out.put_view(view)).sum::<usize>();
        }
    }

    /// Puts one send under way for each connection that has something to say.
    pub(super) fn connections_send(&mut self, ops: &mut Vec<Op>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.dirty = false;
            self.connection_send(id, ops);
        }
        self.dirty = dirty;
    }

    fn connection_send(&mut self, id: ConnectionId, ops: &mut Vec<Op>) {
        let (views_max, now_ns) = (self.limits.send_views_max, self.now.mono_ns);
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
        connection.sending_ns = now_ns;
        self.stats.sends += 1;
        ops.push(Op::Send { socket: id.socket(), views, tag: Tag(0) });
    }

    /// A send has ended.
    pub(super) fn connection_sent(&mut self, socket: Socket, result: Result<(), Fault>, ops: &mut Vec<Op>) {
        let id = ConnectionId(socket.0);
        let out_bytes_max = self.limits.out_bytes_max;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let sent = connection.out.sending.take().unwrap_or(0);
        self.held.queued -= sent;
        connection.sent_ns = self.now.mono_ns;
        stages::count(&mut self.stages.send, self.now.mono_ns - connection.sending_ns);
        self.stats.bytes_sent += sent as u64;
        if result.is_err() {
            self.held.queued -= std::mem::take(&mut connection.out).queued();
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
        let Some(connection) = self.connections.get(&id) else { return };
        let room =
            connection.queued() <= limits.out_bytes_max / 2 && connection.in_flight < limits.in_flight_max;
        let go = room && !connection.waits_for_room && !self.is_full_for(connection);
        if let Some((bytes, at)) = self.connection_mut(id).unread.take_if(|_| go) {
            self.connection_process(id, bytes, at, ops);
        }
    }

    /// A request of this connection will be answered later.
    pub(super) fn request_begins(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.in_flight += 1;
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
        if let Some(mut connection) = self.connections.remove(&id) {
            self.held_by_none(&mut connection);
        }
    }

    /// Closes connections that have not said hello in time.
    pub(super) fn connections_tick(&mut self) {
        while let Some((_, id)) = self.hello_due.pop_front_if(|(due, _)| *due <= self.now.mono_ns) {
            let silent = self.connections.get(&id).is_some_and(|c| matches!(c.stage, Stage::Hello { .. }));
            if silent {
                self.stats.hello_timeouts += 1;
                let refusal = Refusal::HelloLate { hello_ms: self.limits.hello_ms };
                self.refuse(id, 0, Api::Hello.number(), &refusal);
                self.connection_end(id);
            }
        }
    }

    /// Whether the connection has said hello and is not ending.
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(Connection::is_open)
    }

    pub(super) fn connection_mut(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("the caller has just looked it up")
    }
}

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
    let next = if came * 2 >= capacity {
        now * 2
    } else if came * 8 < capacity {
        now / 2
    } else {
        now
    };
    next.clamp(limits.receive_bytes_min, limits.receive_bytes_max)
}

/// The limit for the length of a frame, once its api can be seen.
fn length_max(begun: &[u8], limits: &ShardLimits) -> u32 {
    let is_control = begun.get(LENGTH_LEN).is_some_and(|api| *api != Api::Produce.number());
    if is_control { limits.control_bytes_max } else { limits.frame_bytes_max }
}
