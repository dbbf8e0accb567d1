//! A real broker in this process, on a temporary directory, and a proxy in front of it that cuts connections.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;
use tidegate_broker::config::RawConfig;
use tidegate_broker::start::{Running, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::process::asked_reactor;

/// A running broker with two shards. Dropping it stops it and removes its directory.
pub struct LiveBroker {
    running: Mutex<Option<Running>>,
    data: TempDir,
    /// Where it listens.
    pub address: SocketAddr,
}

impl LiveBroker {
    /// One that nobody else uses.
    pub fn start() -> LiveBroker {
        let data = TempDir::new().expect("a temporary directory can be made");
        let (running, address) = start_on(data.path(), 0, 2);
        LiveBroker { running: Mutex::new(Some(running)), data, address }
    }

    /// One for all tests of this process that run at the same time; topics keep them apart.
    pub fn shared() -> Arc<LiveBroker> {
        static SHARED: Mutex<Weak<LiveBroker>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(broker) = shared.upgrade() {
            return broker;
        }
        let broker = Arc::new(LiveBroker::start());
        *shared = Arc::downgrade(&broker);
        broker
    }

    /// Stops it politely and starts it again on its directory and port.
    pub fn restart(&self) {
        self.restart_with(2);
    }

    /// Likewise, with that number of shards.
    pub fn restart_with(&self, shards: u16) {
        let mut running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(running) = running.take() {
            running.stop().expect("a healthy broker stops");
        }
        *running = Some(start_on(self.data.path(), self.address.port(), shards).0);
    }
}

impl Drop for LiveBroker {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(running) = running.take()
            && let Err(error) = running.stop()
            && !std::thread::panicking()
        {
            panic!("the broker did not stop: {error:?}");
        }
    }
}

fn start_on(data: &Path, port: u16, shards: u16) -> (Running, SocketAddr) {
    let raw =
        asked_reactor().map_or_else(RawConfig::new, |reactor| RawConfig::new().with("reactor", reactor));
    let config = raw
        .with("data", data.join("broker").display().to_string())
        .with("listen", format!("127.0.0.1:{port}"))
        .with("shards", shards.to_string())
        .with("pin", "false")
        .with("allow_volatile", "true");
    let running = start(config.check().expect("the keys are right")).expect("the broker starts");
    let address = running.addr;
    (running, address)
}

/// Passes bytes to a broker and back, and cuts all its connections when told to.
pub struct CuttingProxy {
    /// Where clients connect.
    pub address: SocketAddr,
    cut: Arc<Notify>,
    /// Connections taken so far.
    connections: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl CuttingProxy {
    /// In front of the broker at `target`.
    pub async fn start(target: SocketAddr) -> CuttingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let cut = Arc::new(Notify::new());
        let connections = Arc::new(AtomicUsize::new(0));
        let (cutting, counted) = (cut.clone(), connections.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let cut = cutting.clone();
                tokio::spawn(async move {
                    let mut cut = std::pin::pin!(cut.notified());
                    cut.as_mut().enable();
                    tokio::select! {
                        () = pass(client, target) => {}
                        () = cut => {}
                    }
                });
            }
        });
        CuttingProxy { address, cut, connections, accepting }
    }

    /// Cuts all connections; what is under way in them is lost.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// Connections taken so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn pass(client: TcpStream, target: SocketAddr) {
    let Ok(broker) = TcpStream::connect(target).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_broker, to_broker) = broker.into_split();
    tokio::select! {
        () = copy(from_client, to_broker) => {}
        () = copy(from_broker, to_client) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = from.read(&mut bytes).await {
        if to.write_all(&bytes[..len]).await.is_err() {
            return;
        }
    }
}
