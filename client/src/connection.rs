//! One socket to one shard: hello, whole frames in, whole frames out, and whether the other side is still there.
//!
//! A connection never waits by itself but for its hello: whoever owns it waits for [`Connection::ready`], then calls
//! [`Connection::receive`] and [`Connection::transmit`], which do what can be done at once. So one task serves a socket
//! in both directions without a lock, and frames are never copied but by the kernel.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{Features, HelloReply, HelloRequest, Ping};
use tidegate_protocol::frame::{self, Frame, Kind, Split};
use tidegate_protocol::ids::ShardId;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::{Error, ErrorKind, Result};

/// Room made for the next read when no larger frame is known to come.
const READ_BYTES: usize = 256 * 1024;
/// Bytes read in one go before the owner gets to look at the frames.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pieces given to the kernel in one call.
const SLICES_MAX: usize = 64;
/// A quiet connection is asked whether it is still there ...
const QUIET: Duration = Duration::from_secs(10);
/// ... and given up when it stays quiet.
const DEAD: Duration = Duration::from_secs(30);
/// The correlation of pings; no request has it.
pub(crate) const PING_CORRELATION: u32 = u32::MAX;

/// Who connects, and how patiently.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) client_id: String,
    pub(crate) connect_timeout: Duration,
}

/// A frame as it came, in bytes of its own.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Bytes,
    api_number: u8,
    version: u8,
    kind: Kind,
    pub(crate) correlation: u32,
    body_at: usize,
}

impl Received {
    /// The frame, to be decoded.
    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame {
            api_number: self.api_number,
            version: self.version,
            kind: self.kind,
            correlation: self.correlation,
            head: &self.bytes[frame::PREFIX_LEN..self.body_at],
            body: &self.bytes[self.body_at..],
        }
    }

    /// The body alone, not copied.
    pub(crate) fn body(&self) -> Bytes {
        self.bytes.slice(self.body_at..)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The api, or an error that the broker speaks what this SDK does not.
    pub(crate) fn api(&self) -> Result<Api> {
        self.frame()
            .api()
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("the broker sent a frame: {error}")))
    }

    /// What an error frame says.
    pub(crate) fn refusal(&self) -> Error {
        match ErrorBody::decode(&self.frame()) {
            Ok(body) => Error::refused(body),
            Err(error) => unreadable("an error frame", &error),
        }
    }
}

/// The error for a frame of the broker that cannot be read.
pub(crate) fn unreadable(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("{what} from the broker cannot be read: {error}"))
}

/// An open connection that has said hello.
///
/// Invariant: `written + queued = ` all bytes ever given to [`Connection::send`].
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    address: String,
    hello: HelloReply,
    input: BytesMut,
    /// Bytes that the frame at the front of `input` needs to be whole.
    needed: usize,
    output: VecDeque<Bytes>,
    queued: usize,
    written: u64,
    heard: Instant,
    pinged: bool,
}

impl Connection {
    /// Connects to `address`, `host:port`, and says hello.
    ///
    /// # Errors
    /// `Unreachable`; `Protocol` if what answers is no Tidegate broker; what the broker refuses the hello with.
    pub(crate) async fn open(address: &str, shard: Option<ShardId>, dial: &Dial) -> Result<Connection> {
        let waited =
            tokio::time::timeout(dial.connect_timeout, Connection::open_patiently(address, shard, dial));
        waited.await.unwrap_or_else(|_| {
            let cause = format!("{address} did not answer within {} ms", dial.connect_timeout.as_millis());
            Err(Error::new(ErrorKind::Unreachable, cause).with_hint("check that a broker is running there"))
        })
    }

    async fn open_patiently(address: &str, shard: Option<ShardId>, dial: &Dial) -> Result<Connection> {
        let stream = TcpStream::connect(address).await.map_err(|error| {
            let cause = format!("cannot connect to {address}: {error}");
            Error::new(ErrorKind::Unreachable, cause)
                .with_hint("check the address and that a broker is running there")
        })?;
        // Batches are formed here, not by the kernel.
        stream.set_nodelay(true).map_err(|error| lost(address, &error))?;
        let request = HelloRequest {
            version_min: 1,
            version_max: 1,
            client_id: dial.client_id.clone(),
            software: concat!("tidegate-rust ", env!("CARGO_PKG_VERSION")).to_string(),
            shard,
        };
        let mut connection = Connection {
            stream,
            address: address.to_string(),
            hello: placeholder_hello(),
            input: BytesMut::new(),
            needed: frame::PREFIX_LEN,
            output: VecDeque::new(),
            queued: 0,
            written: 0,
            heard: Instant::now(),
            pinged: false,
        };
        connection.send_with(|out| request.encode(0, out));
        let reply = loop {
            connection.transmit()?;
            if let Some(frame) = connection.next_frame()? {
                break frame;
            }
            connection.ready().await?;
            connection.receive()?;
        };
        if reply.kind() == Kind::Error {
            return Err(reply.refusal());
        }
        connection.hello = HelloReply::decode(&reply.frame()).map_err(|error| {
            unreadable("the hello", &error).with_hint(format!("check that {address} is a Tidegate broker"))
        })?;
        Ok(connection)
    }

    /// What the broker said in its hello.
    pub(crate) fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// Waits until something can be received, or transmitted where something is queued. May be dropped at any time.
    pub(crate) async fn ready(&self) -> Result<()> {
        let mut interest = Interest::READABLE;
        if self.queued > 0 {
            interest |= Interest::WRITABLE;
        }
        self.stream.ready(interest).await.map(|_| ()).map_err(|error| lost(&self.address, &error))
    }

    /// Takes in what has arrived, without waiting.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn receive(&mut self) -> Result<()> {
        let mut taken = 0;
        while taken < READ_BYTES_MAX {
            let missing = self.needed.saturating_sub(self.input.len());
            // A small rest of room would make small reads; a frame known to be large gets its room at once.
            if self.input.capacity() - self.input.len() < missing.max(4096) {
                self.input.reserve(missing.max(READ_BYTES));
            }
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => {
                    let cause = format!("{} closed the connection", self.address);
                    return Err(Error::new(ErrorKind::Unreachable, cause));
                }
                Ok(bytes) => {
                    taken += bytes;
                    self.heard = Instant::now();
                    self.pinged = false;
                    if self.input.len() < self.input.capacity() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(lost(&self.address, &error)),
            }
        }
        Ok(())
    }

    /// The next whole frame, if it has arrived. Pings are answered and their answers taken here.
    ///
    /// # Errors
    /// The stream cannot be trusted any more.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Received>> {
        loop {
            let length_max = match self.hello.frame_bytes_max {
                0 => frame::HELLO_BYTES_MAX,
                max => max,
            };
            let found = frame::split(&self.input, length_max)
                .map_err(|error| unreadable(&format!("what {} sends", self.address), &error))?;
            let (len, received) = match found {
                Split::Incomplete { needed } => {
                    self.needed = needed;
                    return Ok(None);
                }
                Split::Frame(frame) => {
                    let (api_number, version, kind) = (frame.api_number, frame.version, frame.kind);
                    let (correlation, body_at, len) = (frame.correlation, frame.body_at(), frame.len());
                    (len, Received { bytes: Bytes::new(), api_number, version, kind, correlation, body_at })
                }
            };
            let bytes = self.input.split_to(len).freeze();
            self.needed = frame::PREFIX_LEN;
            let received = Received { bytes, ..received };
            if received.api_number != Api::Ping.number() || received.correlation != PING_CORRELATION {
                return Ok(Some(received));
            }
        }
    }

    /// Queues bytes; they go out with the next [`Connection::transmit`].
    pub(crate) fn send(&mut self, bytes: Bytes) {
        self.queued += bytes.len();
        self.output.push_back(bytes);
    }

    /// Queues what `encode` appends.
    pub(crate) fn send_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::with_capacity(128);
        encode(&mut out);
        self.send(Bytes::from(out));
    }

    /// Gives queued bytes to the kernel until it takes no more, without waiting.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn transmit(&mut self) -> Result<()> {
        while self.queued > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(&self.output) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(bytes) => self.transmitted(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(lost(&self.address, &error)),
            }
        }
        Ok(())
    }

    fn transmitted(&mut self, mut bytes: usize) {
        self.written += bytes as u64;
        self.queued -= bytes;
        while bytes > 0 {
            let front = self.output.front_mut().expect("as many bytes were queued");
            if front.len() > bytes {
                front.advance(bytes);
                return;
            }
            bytes -= front.len();
            self.output.pop_front();
        }
    }

    /// Bytes that wait for the kernel.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Bytes that the kernel has taken so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Asks a quiet broker whether it is still there. Returns when to call again at the latest. `produce` is what this
    /// side has sent and may send of produces, for the broker to compare.
    ///
    /// # Errors
    /// It has been quiet for too long: the connection is given up.
    pub(crate) fn keep_alive(&mut self, now: Instant, produce: (u64, u64)) -> Result<Instant> {
        let quiet = now.saturating_duration_since(self.heard);
        if quiet >= DEAD {
            let cause = format!("{} has said nothing for {} s", self.address, quiet.as_secs());
            return Err(Error::new(ErrorKind::Unreachable, cause));
        }
        if quiet < QUIET {
            return Ok(self.heard + QUIET);
        }
        if !self.pinged {
            self.pinged = true;
            let ping = Ping { nonce: 0, produce_bytes: produce.0, produce_limit: produce.1 };
            self.send_with(|out| ping.encode(Kind::Request, PING_CORRELATION, out));
        }
        Ok(self.heard + DEAD)
    }
}

fn lost(address: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, format!("the connection to {address} is lost: {error}"))
}

/// Stands in the connection until the real one has come.
fn placeholder_hello() -> HelloReply {
    HelloReply {
        version: 0,
        node: tidegate_protocol::ids::NodeId(-1),
        cluster: [0; 16],
        incarnation: tidegate_protocol::ids::Incarnation(0),
        shard: ShardId(0),
        shard_count: 0,
        software: String::new(),
        frame_bytes_max: 0,
        batch_bytes_max: 0,
        idempotence_window: 0,
        credit_initial: 0,
        features: Features::default(),
    }
}
