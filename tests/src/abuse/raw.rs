//! A connection without manners: bytes out whenever its owner likes, frames in if its owner cares to look.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::api::produce::{Acks, ProduceReply, ProduceRequest};
use tidegate_protocol::frame::{self, Frame, Kind, Split};
use tidegate_protocol::ids::{LeaderEpoch, ShardId, TopicPartition};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The longest that the broker may take for an answer, or to close what it has to close. Its own patience with a hello is 10 s.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
pub struct Raw {
    /// The socket itself.
    pub stream: TcpStream,
    bytes: Vec<u8>,
    correlation: u32,
    produced: u64,
    limit: u64,
}

/// How to connect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dial {
    /// Which of this machine's own addresses to come from: each has ports of its own.
    pub from: u8,
    /// Bytes that the kernel takes in for a connection that is not read; 0: as many as it likes.
    pub receive_bytes: u32,
}

/// A frame that the broker has sent.
pub struct Heard {
    bytes: Vec<u8>,
}

impl Heard {
    /// It, to be decoded.
    pub fn frame(&self) -> Frame<'_> {
        match frame::split(&self.bytes, u32::MAX) {
            Ok(Split::Frame(frame)) => frame,
            other => panic!("a frame that was whole: {other:?}"),
        }
    }

    /// What it says, if it is an error.
    pub fn error(&self) -> Option<ErrorBody> {
        let frame = self.frame();
        (frame.kind == Kind::Error).then(|| ErrorBody::decode(&frame).ok()).flatten()
    }
}

impl Raw {
    /// Connects, and says nothing.
    pub async fn connect(address: SocketAddr, dial: Dial) -> io::Result<Raw> {
        let socket = TcpSocket::new_v4()?;
        if dial.receive_bytes > 0 {
            socket.set_recv_buffer_size(dial.receive_bytes)?;
        }
        if dial.from > 0 {
            socket.bind((Ipv4Addr::new(127, 0, 0, dial.from), 0).into())?;
        }
        let stream = within("a connection", socket.connect(address)).await?;
        stream.set_nodelay(true)?;
        Ok(Raw { stream, bytes: Vec::new(), correlation: 0, produced: 0, limit: 0 })
    }

    /// Connects and says hello.
    pub async fn open(address: SocketAddr, dial: Dial, shard: Option<ShardId>) -> io::Result<Raw> {
        let mut raw = Raw::connect(address, dial).await?;
        raw.send(&hello(shard)).await?;
        let heard = raw.next().await?.ok_or_else(|| io::Error::other("closed instead of a hello"))?;
        HelloReply::decode(&heard.frame())
            .map_err(|e| io::Error::other(format!("{e}: {:?}", heard.error())))?;
        Ok(raw)
    }

    /// A number for the next request.
    pub fn correlation(&mut self) -> u32 {
        self.correlation += 1;
        self.correlation
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        within("room to send", self.stream.write_all(bytes)).await
    }

    /// The next frame; none: the broker has closed.
    pub async fn next(&mut self) -> io::Result<Option<Heard>> {
        loop {
            let split = frame::split(&self.bytes, u32::MAX).map_err(io::Error::other)?;
            if let Split::Frame(frame) = split {
                let len = frame.len();
                return Ok(Some(Heard { bytes: self.bytes.drain(..len).collect() }));
            }
            match within("an answer", self.stream.read_buf(&mut self.bytes)).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // What it still had to say has come before.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Listens until the broker closes; returns the errors that it has told.
    pub async fn closing(&mut self) -> io::Result<Vec<ErrorBody>> {
        let mut errors = Vec::new();
        while let Some(heard) = self.next().await? {
            errors.extend(heard.error());
        }
        Ok(errors)
    }

    /// Asks for the answer to a request, whatever else comes before it.
    pub async fn answer(&mut self, correlation: u32) -> io::Result<Heard> {
        loop {
            let heard = self.next().await?.ok_or_else(|| io::Error::other("closed instead of an answer"))?;
            let frame = heard.frame();
            if frame.kind != Kind::Request && frame.correlation == correlation {
                return Ok(heard);
            }
        }
    }

    /// Waits for produce credit.
    pub async fn credit(&mut self, wanted: u64) -> io::Result<()> {
        if self.produced < self.limit {
            return Ok(());
        }
        let credit = Credit { scope: Scope::Produce, limit: self.limit, reason: Reason::None, wanted };
        let mut bytes = Vec::new();
        credit.encode(&mut bytes);
        self.send(&bytes).await?;
        while self.produced >= self.limit {
            let heard = self.next().await?.ok_or_else(|| io::Error::other("closed instead of credit"))?;
            if let Ok(credit) = Credit::decode(&heard.frame()) {
                self.limit = self.limit.max(credit.limit);
            }
        }
        Ok(())
    }

    /// Produces one batch and waits for the answer.
    pub async fn produce(&mut self, partition: TopicPartition, batch: &[u8]) -> io::Result<ProduceReply> {
        self.credit(batch.len() as u64 + 64).await?;
        let correlation = self.correlation();
        let bytes = produce_frame(partition, batch, correlation);
        self.produced += bytes.len() as u64;
        self.send(&bytes).await?;
        let heard = self.answer(correlation).await?;
        ProduceReply::decode(&heard.frame())
            .map_err(|e| io::Error::other(format!("{e}: {:?}", heard.error())))
    }

    /// Vanishes: the broker's next packet, or its next read, meets a reset.
    pub fn vanish(self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }
}

/// A hello.
pub fn hello(shard: Option<ShardId>) -> Vec<u8> {
    let request = HelloRequest {
        version_min: 1,
        version_max: 1,
        client_id: "a client without manners".to_owned(),
        software: "abuse".to_owned(),
        shard,
    };
    encoded(|out| request.encode(0, out))
}

/// A whole produce of one batch.
pub fn produce_frame(partition: TopicPartition, batch: &[u8], correlation: u32) -> Vec<u8> {
    let request = ProduceRequest { partition, leader_epoch: LeaderEpoch::UNKNOWN, acks: Acks::Leader };
    let mut bytes = encoded(|out| request.encode_head(correlation, batch.len(), out));
    bytes.extend_from_slice(batch);
    bytes
}

/// What `encode` appends.
pub fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

/// Waits for it, but not for ever.
pub async fn within<T>(what: &str, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::other(format!("after {PATIENCE:?} still no: {what}"))),
    }
}
