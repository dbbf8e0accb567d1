//! What producers, consumers and the administration of one client share: the address, requests with retries, routes.

use std::sync::Arc;
use std::time::Duration;

use tidegate_protocol::api::metadata::{MetadataReply, MetadataRequest};
use tidegate_protocol::error_code::{ErrorCode, Retry};
use tidegate_protocol::ids::{LeaderEpoch, PartitionId, ShardId, TopicId};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::calls::Calls;
use crate::connection::{Connection, Dial, Received, unreadable};
use crate::consumer::ConsumerBuilder;
use crate::producer::ProducerBuilder;
use crate::retry::{Backoff, BackoffLimits};
use crate::{Error, ErrorKind, Result};

/// A client of one cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// Settings of a client; made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    dial: Dial,
    request_timeout: Duration,
    backoff: BackoffLimits,
    refresh: Duration,
}

impl Client {
    /// Connects to a broker, `host:port`, and says hello to it.
    ///
    /// # Errors
    /// The address makes no sense, nobody answers there, or what answers is no Tidegate broker.
    pub async fn connect(server: &str) -> Result<Client> {
        Client::builder().connect(server).await
    }

    /// Settings other than the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            dial: Dial { client_id: String::new(), connect_timeout: Duration::from_secs(5) },
            request_timeout: Duration::from_secs(30),
            backoff: BackoffLimits::default(),
            refresh: Duration::from_secs(60),
        }
    }

    /// A producer for one topic.
    pub fn producer(&self, topic: &str) -> ProducerBuilder {
        ProducerBuilder::new(self.shared.clone(), topic)
    }

    /// A consumer of one topic.
    pub fn consumer(&self, topic: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.shared.clone(), topic)
    }

    /// The largest batch that the broker takes, in bytes; a topic may allow less (`batch.bytes.max`).
    pub fn batch_bytes_max(&self) -> usize {
        self.shared.batch_bytes_max
    }

    /// Topics, offsets, metadata, status.
    pub fn admin(&self) -> Admin {
        Admin::new(self.shared.clone())
    }
}

impl ClientBuilder {
    /// The client's own name for itself, for the broker's logs and metrics. Default: empty.
    pub fn client_id(mut self, client_id: &str) -> ClientBuilder {
        self.dial.client_id = client_id.to_string();
        self
    }

    /// The longest wait for a connection and its hello. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.dial.connect_timeout = timeout;
        self
    }

    /// The longest wait for the reply to a request, retries included. Default: 30 s.
    pub fn request_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.request_timeout = timeout;
        self
    }

    /// First and longest wait between attempts; the actual waits are shortened at random. Default: 20 ms and 2 s.
    pub fn backoff(mut self, first: Duration, max: Duration) -> ClientBuilder {
        self.backoff = BackoffLimits { first, max };
        self
    }

    /// How often producers and consumers look for new partitions of their topics. Default: 60 s.
    pub fn metadata_refresh(mut self, every: Duration) -> ClientBuilder {
        self.refresh = every;
        self
    }

    /// Connects to a broker, `host:port`, and says hello to it.
    ///
    /// # Errors
    /// The address makes no sense, nobody answers there, or what answers is no Tidegate broker.
    pub async fn connect(self, server: &str) -> Result<Client> {
        let port = server.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        if !matches!(port, Some((host, Ok(_))) if !host.is_empty()) {
            let cause = format!("{server:?} is not the address of a broker");
            return Err(Error::new(ErrorKind::InvalidArgument, cause).with_hint("give it as host:port"));
        }
        let connection = Connection::open(server, None, &self.dial).await?;
        let batch_bytes_max = connection.hello().batch_bytes_max as usize;
        let shared = Shared {
            server: server.to_string(),
            dial: self.dial,
            request_timeout: self.request_timeout,
            backoff: self.backoff,
            refresh: self.refresh,
            batch_bytes_max,
            calls: Mutex::new(Arc::new(Calls::start(connection))),
        };
        Ok(Client { shared: Arc::new(shared) })
    }
}

/// Whether a request may be sent again when it is not known if it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Doing it twice is the same as doing it once.
    Harmless,
    /// The caller has to look first.
    Never,
}

/// Where the partitions of a topic are.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) topic: TopicId,
    /// By number, from 0.
    pub(crate) partitions: Vec<PartitionRoute>,
}

/// Where one partition is.
#[derive(Clone, Debug)]
pub(crate) struct PartitionRoute {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) shard: ShardAddress,
}

/// Which shard to ask for at which address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShardAddress {
    pub(crate) address: String,
    pub(crate) shard: ShardId,
}

/// What everything made from one client shares.
#[derive(Debug)]
pub(crate) struct Shared {
    server: String,
    pub(crate) dial: Dial,
    request_timeout: Duration,
    pub(crate) backoff: BackoffLimits,
    /// How often new partitions are looked for.
    pub(crate) refresh: Duration,
    /// The largest batch that the broker takes, as its hello said.
    pub(crate) batch_bytes_max: usize,
    /// The connection for requests; held across the await of a reconnect, which all callers have to wait for anyway.
    calls: Mutex<Arc<Calls>>,
}

impl Shared {
    /// A request and its reply, through reconnects and passing refusals, within the request timeout.
    pub(crate) async fn call(
        &self,
        repeat: Repeat,
        encode: impl Fn(u32, &mut Vec<u8>) + Send + Sync,
    ) -> Result<Received> {
        let deadline = Instant::now() + self.request_timeout;
        let mut backoff = Backoff::new(self.backoff);
        let mut last: Option<Error> = None;
        loop {
            let attempt = tokio::time::timeout_at(deadline, self.attempt(&encode)).await;
            let error = match attempt {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(error)) => error,
                Err(_) => return Err(last.unwrap_or_else(|| self.no_reply())),
            };
            let again = match error.kind() {
                ErrorKind::Unreachable => true,
                ErrorKind::UnknownOutcome => repeat == Repeat::Harmless,
                ErrorKind::Refused(_) | ErrorKind::RefusedUnknown(_) => error.retry() != Retry::Never,
                _ => false,
            };
            let wait = backoff.next();
            if !again || Instant::now() + wait >= deadline {
                return Err(error);
            }
            last = Some(error);
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&self, encode: &(dyn Fn(u32, &mut Vec<u8>) + Send + Sync)) -> Result<Received> {
        let calls = {
            let mut calls = self.calls.lock().await;
            if !calls.is_open() {
                let connection = Connection::open(&self.server, None, &self.dial).await?;
                *calls = Arc::new(Calls::start(connection));
            }
            calls.clone()
        };
        calls.call(encode).await
    }

    fn no_reply(&self) -> Error {
        let cause = format!("{} did not answer within {} ms", self.server, self.request_timeout.as_millis());
        Error::new(ErrorKind::UnknownOutcome, cause)
            .with_hint("the request may or may not have been done; look before repeating it")
    }

    /// Nodes, shards and the topics asked for, in as many replies as that takes.
    pub(crate) async fn metadata(&self, mut request: MetadataRequest) -> Result<MetadataReply> {
        let mut topics = Vec::new();
        loop {
            let reply =
                self.call(Repeat::Harmless, |correlation, out| request.encode(correlation, out)).await?;
            let mut reply =
                MetadataReply::decode(&reply.frame()).map_err(|error| unreadable("metadata", &error))?;
            topics.append(&mut reply.topics);
            match topics.last() {
                // Names rise, or it would never end.
                Some(last) if reply.more && last.name > request.after => request.after = last.name.clone(),
                _ => return Ok(MetadataReply { topics, more: false, ..reply }),
            }
        }
    }

    /// Where the partitions of a topic are.
    ///
    /// # Errors
    /// `UnknownTopic`.
    pub(crate) async fn route(&self, topic: &str) -> Result<Route> {
        let metadata = self.metadata(MetadataRequest::named(vec![topic.to_string()])).await?;
        let Some(info) = metadata.topics.iter().find(|info| info.name == topic) else {
            return Err(unknown_topic(topic));
        };
        let partitions = info.partitions.iter().map(|info| {
            let node = metadata.nodes.iter().find(|node| node.node == info.leader);
            let listed = node.and_then(|node| node.shards.get(usize::from(info.shard.0)));
            let address = self.address_of(listed.map_or("", String::as_str));
            PartitionRoute {
                partition: info.partition,
                epoch: info.epoch,
                shard: ShardAddress { address, shard: info.shard },
            }
        });
        Ok(Route { topic: info.topic, partitions: partitions.collect() })
    }

    /// The address as listed; where its host or all of it is empty, the one that this client was given.
    fn address_of(&self, listed: &str) -> String {
        let (host, _) = self.server.rsplit_once(':').expect("checked in connect");
        match listed.rsplit_once(':') {
            None => self.server.clone(),
            Some(("", port)) => format!("{host}:{port}"),
            Some(_) => listed.to_string(),
        }
    }
}

/// The error for a topic that the metadata does not name.
pub(crate) fn unknown_topic(topic: &str) -> Error {
    Error::new(ErrorKind::Refused(ErrorCode::UnknownTopic), format!("there is no topic {topic:?}"))
        .with_hint("create it first, or check the name")
}

/// The error for a partition that the topic does not have.
pub(crate) fn unknown_partition(topic: &str, partition: PartitionId, count: usize) -> Error {
    let cause = format!("topic {topic:?} has no partition {partition}");
    Error::new(ErrorKind::Refused(ErrorCode::UnknownPartition), cause)
        .with_limit("partitions", count as i64, i64::from(partition.0))
        .with_hint("partitions count from 0")
}
