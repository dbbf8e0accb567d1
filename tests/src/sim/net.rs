//! Virtual connections: bytes arrive late and in pieces, windows fill up, and a connection may be cut at any time.
//!
//! A [`Link`] joins a peer (a simulated client) to one shard's socket. Each direction is a pipe whose pieces have a time of
//! arrival; the order within a direction is kept, as TCP keeps it.

use std::collections::{BTreeMap, VecDeque};

use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::{Event, Fault, ShardIndex, Socket, Tag};

use super::random::Random;

const ECANCELED: i32 = 125;
const ECONNRESET: i32 = 104;
const EPIPE: i32 = 32;

/// A connection as its peer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link(pub u64);

/// What a peer asks of the network.
#[derive(Debug)]
pub enum PeerOp {
    /// Connect. The link's number is the peer's to choose, unique in the run.
    Connect(Link),
    /// Send bytes; they are dropped if the link is gone.
    Send(Link, Vec<u8>),
    /// Stop taking bytes from the link, or take them again.
    Reading(Link, Reading),
    /// Send nothing more; go on reading.
    Finish(Link),
    /// Close the link from the peer's side.
    Close(Link),
    /// Wake the peer up at that time of the run, in nanoseconds.
    WakeAt(u64),
}

/// Whether a peer takes what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It does.
    On,
    /// It does not: the window fills up.
    Off,
}

/// What a peer learns from the network.
#[derive(Debug)]
pub enum PeerEvent {
    /// Bytes have arrived.
    Bytes(Link, Vec<u8>),
    /// The link is gone: closed by the broker, cut, or the broker has ended.
    Gone(Link),
    /// The time of a [`PeerOp::WakeAt`] has come.
    Wake,
}

/// Something outside the broker that speaks to it over links.
pub trait Peer {
    /// Takes what has happened and adds what follows. `now_ns` is the time of the run.
    fn act(&mut self, now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>);
}

/// How the network treats bytes.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The shortest and longest delay of a piece, in nanoseconds.
    pub delay_ns: (u64, u64),
    /// The largest piece, in bytes.
    pub piece_bytes_max: u64,
    /// Bytes that a direction holds before its sender has to wait.
    pub window_bytes: usize,
    /// How often a link is cut, in a million looks at one on which something is on its way.
    pub cut: u32,
    /// How often nothing arrives any more from one side, or from both, and nobody is told; likewise.
    pub half_open: u32,
    /// How often a bit flips on its way to the broker, in a million pieces. What comes from it is read by the clients of these
    /// runs alone, of which nothing would be learned.
    pub flip: u32,
}

impl Default for Weather {
    fn default() -> Weather {
        Weather {
            delay_ns: (20_000, 300_000),
            piece_bytes_max: 16 << 10,
            window_bytes: 64 << 10,
            cut: 0,
            half_open: 0,
            flip: 0,
        }
    }
}

/// All links of a run.
#[derive(Debug)]
pub struct Network {
    random: Random,
    /// How bytes are treated from now on.
    pub weather: Weather,
    links: BTreeMap<Link, LinkState>,
    sockets: BTreeMap<Socket, Link>,
    next_socket: u64,
    happened: NetFaults,
}

/// How often the network has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetFaults {
    /// Links that were cut.
    pub cuts: u64,
    /// Links that are or were half open.
    pub half_open: u64,
    /// Bits that have flipped.
    pub flips: u64,
}

#[derive(Debug)]
struct LinkState {
    peer: usize,
    /// The shard and socket that hold it; none before it is accepted and after it is closed.
    end: Option<(ShardIndex, Socket)>,
    to_broker: Pipe,
    to_peer: Pipe,
    receiving: Option<Buffer>,
    sending: Option<Sending>,
    reading: Reading,
    /// The peer has closed: what the broker still sends goes nowhere.
    peer_closed: bool,
    cut: bool,
    /// The peer has been told that the link is gone.
    told: bool,
}

#[derive(Debug)]
struct Sending {
    views: VecDeque<View>,
    tag: Tag,
}

#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    last_at_ns: u64,
    /// The latest arrival for which a look has been asked for: one look a piece, however often the link is pumped meanwhile.
    asked_ns: u64,
    /// The writer has closed its side; its reader sees the end after the last piece.
    ended: bool,
}

/// What follows from looking at a link.
#[derive(Debug, Default)]
pub struct Pumped {
    /// For the shard that holds it.
    pub events: Vec<(ShardIndex, Event)>,
    /// For its peer.
    pub peer_events: Vec<(usize, PeerEvent)>,
    /// Look again then.
    pub look_at_ns: Vec<u64>,
}

impl Network {
    /// A network without links.
    pub fn new(random: Random) -> Network {
        Network {
            random,
            weather: Weather::default(),
            links: BTreeMap::new(),
            sockets: BTreeMap::new(),
            next_socket: 1,
            happened: NetFaults::default(),
        }
    }

    /// How often it has failed so far.
    pub fn faults(&self) -> NetFaults {
        self.happened
    }

    /// Ends all faults. Returns the links that are half open: they are found to be dead, as by the kernel's own probes.
    pub fn heal(&mut self) -> Vec<Link> {
        let Weather { cut, half_open, flip, .. } = &mut self.weather;
        (*cut, *half_open, *flip) = (0, 0, 0);
        let dead = |state: &LinkState| state.to_broker.is_dead() || state.to_peer.is_dead();
        let mut found = Vec::new();
        for (link, state) in self.links.iter_mut().filter(|(_, state)| dead(state)) {
            state.cut = true;
            found.push(*link);
        }
        found
    }

    /// The delay of a piece, in nanoseconds.
    pub fn delay_ns(&mut self) -> u64 {
        let (low, high) = self.weather.delay_ns;
        self.random.between(low, high)
    }

    /// A peer connects; the broker has not accepted yet.
    pub fn connect(&mut self, link: Link, peer: usize) {
        let state = LinkState {
            peer,
            end: None,
            to_broker: Pipe::default(),
            to_peer: Pipe::default(),
            receiving: None,
            sending: None,
            reading: Reading::On,
            peer_closed: false,
            cut: false,
            told: false,
        };
        assert!(self.links.insert(link, state).is_none(), "{link:?} is in use");
    }

    /// The link reaches a shard; none if it is gone meanwhile.
    pub fn arrive(&mut self, link: Link, shard: ShardIndex) -> Option<Socket> {
        let socket = Socket(self.next_socket);
        let state = self.links.get_mut(&link)?;
        self.next_socket += 1;
        state.end = Some((shard, socket));
        self.sockets.insert(socket, link);
        Some(socket)
    }

    /// The link of a socket that the shard holds.
    ///
    /// # Panics
    /// If the shard does not hold it: an op on a socket that was closed or given away is a fault of the broker.
    pub fn link_of(&self, shard: ShardIndex, socket: Socket) -> Link {
        let link = *self.sockets.get(&socket).unwrap_or_else(|| panic!("{socket:?} is not open"));
        let end = self.links[&link].end;
        assert_eq!(end, Some((shard, socket)), "an op on a socket of another shard");
        link
    }

    /// Takes the socket away from its shard to give it to another.
    pub fn leave(&mut self, shard: ShardIndex, socket: Socket) -> Link {
        let link = self.link_of(shard, socket);
        let state = self.links.get_mut(&link).expect("just found");
        assert!(state.receiving.is_none() && state.sending.is_none(), "{socket:?} has ops under way");
        state.end = None;
        self.sockets.remove(&socket);
        link
    }

    /// A shard wants bytes.
    pub fn receive(&mut self, link: Link, mut buf: Buffer) {
        assert!(!buf.free_mut().is_empty(), "a receive into a full buffer");
        let state = self.links.get_mut(&link).expect("a link with a socket");
        assert!(state.receiving.is_none(), "two receives on one socket");
        state.receiving = Some(buf);
    }

    /// A shard sends bytes.
    pub fn send(&mut self, link: Link, views: Vec<View>, tag: Tag) {
        let state = self.links.get_mut(&link).expect("a link with a socket");
        assert!(state.sending.is_none(), "two sends on one socket");
        state.sending = Some(Sending { views: views.into(), tag });
    }

    /// A peer sends bytes. Returns whether the link exists.
    pub fn peer_send(&mut self, now_ns: u64, link: Link, bytes: &[u8]) -> bool {
        let Some(state) = self.links.get_mut(&link).filter(|s| !s.to_broker.ended && !s.cut) else {
            return false;
        };
        for mut piece in pieces(&mut self.random, &self.weather, bytes) {
            if self.random.chance(self.weather.flip) {
                let at = self.random.index(piece.len());
                piece[at] ^= 1 << self.random.below(8);
                self.happened.flips += 1;
            }
            state.to_broker.push(
                now_ns,
                self.random.between(self.weather.delay_ns.0, self.weather.delay_ns.1),
                piece,
            );
        }
        true
    }

    /// A peer takes bytes or does not. Returns whether the link exists.
    pub fn set_reading(&mut self, link: Link, reading: Reading) -> bool {
        let Some(state) = self.links.get_mut(&link) else { return false };
        state.reading = reading;
        true
    }

    /// A peer sends nothing more. Returns whether the link exists.
    pub fn peer_finish(&mut self, link: Link) -> bool {
        let Some(state) = self.links.get_mut(&link) else { return false };
        state.to_broker.ended = true;
        true
    }

    /// A peer closes its link. Returns whether the link exists.
    pub fn peer_close(&mut self, link: Link) -> bool {
        let Some(state) = self.links.get_mut(&link) else { return false };
        state.to_broker.ended = true;
        state.peer_closed = true;
        state.reading = Reading::On;
        true
    }

    /// Cuts a link: what is on its way is gone, and both sides learn it.
    pub fn cut(&mut self, link: Link) {
        if let Some(state) = self.links.get_mut(&link)
            && !state.cut
        {
            state.cut = true;
            self.happened.cuts += 1;
        }
    }

    /// Ends what the shard has under way on a socket and forgets it. The peer sees the end after what was sent.
    pub fn close(&mut self, shard: ShardIndex, socket: Socket) -> (Link, Vec<Event>) {
        let link = self.link_of(shard, socket);
        self.sockets.remove(&socket);
        let state = self.links.get_mut(&link).expect("just found");
        state.end = None;
        state.to_peer.ended = true;
        let fault = |what: &str| Fault { what: what.to_string(), errno: ECANCELED };
        let mut events = Vec::new();
        if let Some(buf) = state.receiving.take() {
            events.push(Event::Received { socket, buf, result: Err(fault("receive")) });
        }
        if let Some(sending) = state.sending.take() {
            events.push(Event::Sent { socket, tag: sending.tag, result: Err(fault("send")) });
        }
        events.push(Event::Closed { socket });
        (link, events)
    }

    /// The broker has ended: all links are gone. Returns whom to tell.
    pub fn end_all(&mut self) -> Vec<(usize, Link)> {
        self.sockets.clear();
        std::mem::take(&mut self.links).into_iter().map(|(link, state)| (state.peer, link)).collect()
    }

    /// All links, for a choice among them.
    pub fn links(&self) -> Vec<Link> {
        self.links.keys().copied().collect()
    }

    /// Moves what can move on a link now.
    pub fn pump(&mut self, now_ns: u64, link: Link) -> Pumped {
        let mut out = Pumped::default();
        let Network { random, weather, links, happened, .. } = self;
        let Some(state) = links.get_mut(&link) else { return out };
        if !state.cut && state.to_broker.bytes + state.to_peer.bytes > 0 {
            if random.chance(weather.cut) {
                state.cut = true;
                happened.cuts += 1;
            } else if random.chance(weather.half_open) {
                let (to_broker, to_peer) = random.pick(&[(true, false), (false, true), (true, true)]);
                state.to_broker.die_if(to_broker);
                state.to_peer.die_if(to_peer);
                happened.half_open += 1;
            }
        }
        if state.cut {
            state.end_cut(&mut out, link);
        } else {
            state.pump_send(now_ns, random, weather);
            state.pump_receive(now_ns, &mut out);
            state.pump_peer(now_ns, link, &mut out);
            state.pump_sent(&mut out);
            out.look_at_ns.extend(state.to_broker.next_look(now_ns));
            out.look_at_ns.extend(state.to_peer.next_look(now_ns));
        }
        let peer_done = state.cut || (state.to_peer.ended && state.to_peer.pieces.is_empty());
        if peer_done && state.end.is_none() {
            state.tell(&mut out, link);
            self.links.remove(&link);
        }
        out
    }
}

impl LinkState {
    /// The peer learns once that the link is gone, also if it is cut after the broker has closed it.
    fn tell(&mut self, out: &mut Pumped, link: Link) {
        if !std::mem::replace(&mut self.told, true) {
            out.peer_events.push((self.peer, PeerEvent::Gone(link)));
        }
    }

    fn end_cut(&mut self, out: &mut Pumped, link: Link) {
        self.to_peer.ended = true;
        self.tell(out, link);
        self.to_broker = Pipe { ended: true, ..Pipe::default() };
        self.to_peer.pieces.clear();
        let Some((shard, socket)) = self.end else { return };
        if let Some(buf) = self.receiving.take() {
            let fault = Fault { what: "receive".to_string(), errno: ECONNRESET };
            out.events.push((shard, Event::Received { socket, buf, result: Err(fault) }));
        }
        if let Some(sending) = self.sending.take() {
            let fault = Fault { what: "send".to_string(), errno: EPIPE };
            out.events.push((shard, Event::Sent { socket, tag: sending.tag, result: Err(fault) }));
        }
    }

    /// Puts as much into the pipe as the window allows.
    fn pump_send(&mut self, now_ns: u64, random: &mut Random, weather: &Weather) {
        let Some(sending) = &mut self.sending else { return };
        while let Some(view) = sending.views.pop_front() {
            let room = weather.window_bytes.saturating_sub(self.to_peer.bytes);
            let part = room.min(view.len());
            for piece in pieces(random, weather, &view[..part]) {
                let delay = random.between(weather.delay_ns.0, weather.delay_ns.1);
                self.to_peer.push(now_ns, delay, piece);
            }
            if part < view.len() {
                let rest = view.slice(part..view.len());
                sending.views.push_front(rest);
                return;
            }
        }
    }

    fn pump_sent(&mut self, out: &mut Pumped) {
        let done = self.sending.as_ref().is_some_and(|s| s.views.is_empty());
        if let (true, Some((shard, socket))) = (done, self.end)
            && let Some(sending) = self.sending.take()
        {
            out.events.push((shard, Event::Sent { socket, tag: sending.tag, result: Ok(()) }));
        }
    }

    fn pump_receive(&mut self, now_ns: u64, out: &mut Pumped) {
        let Some((shard, socket)) = self.end else { return };
        let Some(mut buf) = self.receiving.take() else { return };
        let has_ended = self.to_broker.ended && !self.to_broker.is_dead();
        let pipe = &mut self.to_broker;
        let n = match pipe.pieces.front_mut() {
            Some((at, piece)) if *at <= now_ns => {
                let n = piece.len().min(buf.free_mut().len());
                buf.extend(&piece[..n]);
                piece.drain(..n);
                if piece.is_empty() {
                    pipe.pieces.pop_front();
                }
                pipe.bytes -= n;
                n
            }
            None if has_ended => 0,
            _ => {
                self.receiving = Some(buf);
                return;
            }
        };
        out.events.push((shard, Event::Received { socket, buf, result: Ok(n) }));
    }

    fn pump_peer(&mut self, now_ns: u64, link: Link, out: &mut Pumped) {
        if self.reading == Reading::Off {
            return;
        }
        let discard = self.peer_closed;
        while let Some((at, _)) = self.to_peer.pieces.front()
            && (*at <= now_ns || discard)
        {
            let (_, piece) = self.to_peer.pieces.pop_front().expect("just seen");
            self.to_peer.bytes -= piece.len();
            if !discard {
                out.peer_events.push((self.peer, PeerEvent::Bytes(link, piece)));
            }
            // Room in the window: the sender may go on.
            if self.sending.as_ref().is_some_and(|s| !s.views.is_empty()) {
                out.look_at_ns.push(now_ns);
            }
        }
    }
}

/// The time of arrival of what never arrives.
const NEVER_NS: u64 = u64::MAX;

impl Pipe {
    /// From now on nothing arrives; what is sent fills the window.
    fn die_if(&mut self, dies: bool) {
        if dies {
            self.last_at_ns = NEVER_NS;
            self.pieces.iter_mut().for_each(|(at_ns, _)| *at_ns = NEVER_NS);
        }
    }

    fn is_dead(&self) -> bool {
        self.last_at_ns == NEVER_NS
    }

    fn push(&mut self, now_ns: u64, delay_ns: u64, piece: Vec<u8>) {
        self.last_at_ns = self.last_at_ns.max(now_ns + delay_ns);
        self.bytes += piece.len();
        self.pieces.push_back((self.last_at_ns, piece));
    }

    /// When to look again for the next piece, unless that was said already.
    fn next_look(&mut self, now_ns: u64) -> Option<u64> {
        let (at_ns, _) = self.pieces.front()?;
        if *at_ns <= now_ns.max(self.asked_ns) || *at_ns == NEVER_NS {
            return None;
        }
        self.asked_ns = *at_ns;
        Some(*at_ns)
    }
}

/// Cuts bytes into pieces of random sizes, often one, sometimes single bytes.
fn pieces(random: &mut Random, weather: &Weather, mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let max = if random.chance(20_000) { 7 } else { weather.piece_bytes_max };
    while !bytes.is_empty() {
        let len = (random.between(1, max) as usize).max(bytes.len().div_ceil(64)).min(bytes.len());
        let len = if random.chance(500_000) { bytes.len().min(max as usize).max(len) } else { len };
        out.push(bytes[..len].to_vec());
        bytes = &bytes[len..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_on_its_way_is_looked_for_once_however_often_its_link_is_pumped() {
        let mut net = Network::new(Random::new(1));
        let link = Link(1);
        net.connect(link, 0);
        net.arrive(link, ShardIndex(0)).unwrap();
        assert!(net.peer_send(0, link, &[7; 10]));
        let asked: usize = (0..5).map(|_| net.pump(0, link).look_at_ns.len()).sum();
        assert_eq!(asked, 1);
    }

    #[test]
    fn a_half_open_link_swallows_what_is_sent_until_it_is_found_to_be_dead() {
        let mut net = Network::new(Random::new(1));
        let link = Link(1);
        net.connect(link, 7);
        let socket = net.arrive(link, ShardIndex(0)).expect("the link is there");
        net.receive(link, Buffer::zeroed(4096));
        assert!(net.peer_send(0, link, &[7; 10]));
        net.weather.half_open = 1_000_000;
        while !net.links[&link].to_broker.is_dead() {
            net.pump(0, link);
        }
        assert!(net.peer_close(link));
        let pumped = net.pump(u64::MAX - 1, link);
        assert!(pumped.events.is_empty() && pumped.look_at_ns.is_empty(), "not even its end: {pumped:?}");
        assert_eq!(net.heal(), [link]);
        let pumped = net.pump(u64::MAX - 1, link);
        let [(_, Event::Received { socket: told, result, .. })] = &pumped.events[..] else {
            panic!("{pumped:?}")
        };
        assert!(*told == socket && result.is_err());
    }

    #[test]
    fn a_bit_that_flips_on_its_way_is_one() {
        let mut net = Network::new(Random::new(1));
        let link = Link(1);
        net.weather.flip = 1_000_000;
        net.connect(link, 7);
        assert!(net.peer_send(0, link, &[0; 100]));
        let bytes: Vec<u8> =
            net.links[&link].to_broker.pieces.iter().flat_map(|(_, piece)| piece.clone()).collect();
        let flipped: u32 = bytes.iter().map(|b| b.count_ones()).sum();
        assert_eq!((u64::from(flipped), bytes.len()), (net.faults().flips, 100));
        assert!(flipped > 0);
    }

    #[test]
    fn a_peer_learns_that_its_link_was_cut_also_after_the_broker_has_closed_it() {
        let mut net = Network::new(Random::new(1));
        let (shard, link) = (ShardIndex(0), Link(1));
        net.connect(link, 7);
        let socket = net.arrive(link, shard).expect("the link is there");
        net.close(shard, socket);
        net.cut(link);
        let pumped = net.pump(0, link);
        assert!(matches!(pumped.peer_events[..], [(7, PeerEvent::Gone(gone))] if gone == link));
        assert!(net.links().is_empty());
    }
}
