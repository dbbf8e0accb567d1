//! What producers, consumers and the administration of one client share: the address, the limits of waiting.

use std::time::Duration;

use crate::admin::Admin;
use crate::consumer::ConsumerBuilder;
use crate::producer::ProducerBuilder;
use crate::{Error, ErrorKind, Result};

/// A client of one cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {}

/// Settings of a client; made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {}

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
        ClientBuilder {}
    }

    /// A producer for one topic.
    pub fn producer(&self, topic: &str) -> ProducerBuilder {
        ProducerBuilder::new(topic)
    }

    /// A consumer of one topic.
    pub fn consumer(&self, topic: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(topic)
    }

    /// Topics, offsets, metadata, status.
    pub fn admin(&self) -> Admin {
        Admin {}
    }
}

impl ClientBuilder {
    /// The client's own name for itself, for the broker's logs and metrics. Default: empty.
    pub fn client_id(self, _client_id: &str) -> ClientBuilder {
        self
    }

    /// The longest wait for a connection and its hello. Default: 5 s.
    pub fn connect_timeout(self, _timeout: Duration) -> ClientBuilder {
        self
    }

    /// The longest wait for the reply to a request, retries included. Default: 30 s.
    pub fn request_timeout(self, _timeout: Duration) -> ClientBuilder {
        self
    }

    /// First and longest wait between attempts; the actual waits are shortened at random. Default: 20 ms and 2 s.
    pub fn backoff(self, _first: Duration, _max: Duration) -> ClientBuilder {
        self
    }

    /// Connects to a broker, `host:port`, and says hello to it.
    ///
    /// # Errors
    /// The address makes no sense, nobody answers there, or what answers is no Tidegate broker.
    pub async fn connect(self, _server: &str) -> Result<Client> {
        Err(Error::new(ErrorKind::Closed, "being written"))
    }
}
