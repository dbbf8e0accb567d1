//! One connection of a simulated client: hello, frames, correlations, produce credit.

use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::frame::{self, Frame, Kind, Split};
use tidegate_protocol::ids::ShardId;

use super::net::{Link, PeerOp};

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No connection.
    Gone,
    /// Hello was sent.
    Greeting,
    /// Hello was answered.
    Ready,
}

/// A frame that came, in memory of its own.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The api's number.
    pub api: u8,
    /// What it is in an exchange.
    pub kind: Kind,
    /// The request's.
    pub correlation: u32,
    bytes: Vec<u8>,
}

impl Arrived {
    /// The frame again.
    pub fn frame(&self) -> Frame<'_> {
        match frame::split(&self.bytes, u32::MAX) {
            Ok(Split::Frame(frame)) => frame,
            other => panic!("a frame that was whole: {other:?}"),
        }
    }
}

/// One connection after another, each with a link of its own.
#[derive(Debug)]
pub struct Session {
    peer: u64,
    links: u64,
    standing: Standing,
    bytes: Vec<u8>,
    correlation: u32,
    hello: Option<HelloReply>,
    /// Produce bytes sent, whole frames.
    sent: u64,
    limit: u64,
    /// Whether more credit was asked for at this limit.
    asked_at: Option<u64>,
    unsent: Vec<u8>,
    /// When something came last, or the link was made.
    heard_ns: u64,
}

/// A client gives a link up on which nothing has come for so long.
const SILENCE_NS: u64 = 2_000_000_000;

impl Session {
    /// A session of the client with that number, not connected.
    pub fn new(peer: u64) -> Session {
        Session {
            peer,
            links: 0,
            standing: Standing::Gone,
            bytes: Vec::new(),
            correlation: 0,
            hello: None,
            sent: 0,
            limit: 0,
            asked_at: None,
            unsent: Vec::new(),
            heard_ns: 0,
        }
    }

    /// Where it stands.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The shard that serves it.
    pub fn shard(&self) -> Option<ShardId> {
        self.hello.as_ref().map(|h| h.shard)
    }

    /// The link in use.
    pub fn link(&self) -> Link {
        Link(self.peer * 1_000_000 + self.links)
    }

    /// Closes a connection on which nothing has come for long. Returns whether it has.
    pub fn close_if_silent(&mut self, now_ns: u64, ops: &mut Vec<PeerOp>) -> bool {
        let is_silent = self.standing != Standing::Gone && now_ns > self.heard_ns + SILENCE_NS;
        if is_silent {
            self.close(ops);
        }
        is_silent
    }

    /// Connects anew.
    pub fn connect(&mut self, now_ns: u64, shard: Option<ShardId>, ops: &mut Vec<PeerOp>) {
        assert_eq!(self.standing, Standing::Gone);
        self.heard_ns = now_ns;
        self.links += 1;
        self.standing = Standing::Greeting;
        self.bytes.clear();
        self.unsent.clear();
        self.hello = None;
        (self.sent, self.limit, self.asked_at) = (0, 0, None);
        ops.push(PeerOp::Connect(self.link()));
        let hello = HelloRequest {
            version_min: 1,
            version_max: 1,
            client_id: format!("client {}", self.peer),
            software: "simulated".to_string(),
            shard,
        };
        let correlation = self.correlation();
        hello.encode(correlation, &mut self.unsent);
        self.send(ops);
    }

    /// Closes the connection from this side.
    pub fn close(&mut self, ops: &mut Vec<PeerOp>) {
        ops.push(PeerOp::Close(self.link()));
        self.standing = Standing::Gone;
    }

    /// The link is gone; true if it was the one in use.
    pub fn gone(&mut self, link: Link) -> bool {
        let is_mine = link == self.link() && self.standing != Standing::Gone;
        if is_mine {
            self.standing = Standing::Gone;
        }
        is_mine
    }

    /// A number for the next request.
    pub fn correlation(&mut self) -> u32 {
        self.correlation += 1;
        self.correlation
    }

    /// Where requests are encoded, to be sent by [`Session::send`].
    pub fn out(&mut self) -> &mut Vec<u8> {
        assert_ne!(self.standing, Standing::Gone, "a request without a connection");
        &mut self.unsent
    }

    /// Sends what was encoded.
    pub fn send(&mut self, ops: &mut Vec<PeerOp>) {
        if !self.unsent.is_empty() {
            ops.push(PeerOp::Send(self.link(), std::mem::take(&mut self.unsent)));
        }
    }

    /// Whether a produce of `bytes` may be sent; if not, credit is asked for.
    pub fn may_produce(&mut self, bytes: u64) -> bool {
        if self.sent < self.limit {
            self.sent += bytes;
            return true;
        }
        if self.asked_at != Some(self.limit) {
            self.asked_at = Some(self.limit);
            let credit =
                Credit { scope: Scope::Produce, limit: self.limit, reason: Reason::None, wanted: bytes };
            credit.encode(&mut self.unsent);
        }
        false
    }

    /// Asks for credit again.
    pub fn ask_again(&mut self) {
        self.asked_at = None;
    }

    /// Takes bytes from a link; returns the whole frames, hello and produce credit excepted.
    pub fn take(&mut self, now_ns: u64, link: Link, bytes: &[u8]) -> Vec<Arrived> {
        if link != self.link() || self.standing == Standing::Gone {
            return Vec::new();
        }
        self.heard_ns = now_ns;
        self.bytes.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let mut at = 0;
        loop {
            let split = frame::split(&self.bytes[at..], u32::MAX);
            let frame = match split.unwrap_or_else(|e| panic!("the broker sent a bad frame: {e}")) {
                Split::Frame(frame) => frame,
                Split::Incomplete { .. } => break,
            };
            let len = frame.len();
            let arrived = Arrived {
                api: frame.api_number,
                kind: frame.kind,
                correlation: frame.correlation,
                bytes: self.bytes[at..at + len].to_vec(),
            };
            at += len;
            if self.takes(&arrived) {
                continue;
            }
            frames.push(arrived);
        }
        self.bytes.drain(..at);
        frames
    }

    fn takes(&mut self, arrived: &Arrived) -> bool {
        if arrived.api == Api::Hello.number() && arrived.kind == Kind::Reply {
            let hello = HelloReply::decode(&arrived.frame()).expect("a readable hello");
            self.limit = hello.credit_initial;
            self.hello = Some(hello);
            self.standing = Standing::Ready;
            return true;
        }
        if arrived.api == Api::Credit.number() && arrived.kind == Kind::Request {
            let credit = Credit::decode(&arrived.frame()).expect("a readable credit");
            if credit.scope == Scope::Produce {
                assert!(
                    credit.limit >= self.limit,
                    "a produce limit fell from {} to {}",
                    self.limit,
                    credit.limit
                );
                self.limit = credit.limit;
                return true;
            }
        }
        false
    }
}
