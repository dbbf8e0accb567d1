//! The broker is stopped (SIGSTOP) under load and goes on later. While it is stopped, connections are cut, so that clients send
//! again what the broker finds in its sockets too.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tidegate::Client;

use super::scene::{Load, all_there, ensure, until};
use crate::ledger::Ledger;
use crate::live::CuttingProxy;
use crate::process::BrokerProcess;

const ROUNDS: usize = 4;
const PAUSE: Duration = Duration::from_millis(1_500);

/// Pauses it some times; in every second one the connections are cut.
pub(super) async fn pause() -> io::Result<String> {
    let dir = tempfile::tempdir()?;
    let broker = BrokerProcess::start(&dir.path().join("data"), &["--shards", "2"])?;
    let proxy = CuttingProxy::start(broker.address).await;
    let server = proxy.address.to_string();
    Load::create(&server).await?;
    let ledger = Arc::new(Ledger::default());
    let load = Load::start(&ledger, &server, &[1, 50, 1_000]);
    for round in 0..ROUNDS {
        load.acks(2_000).await?;
        broker.signal(Signal::SIGSTOP)?;
        until("each thread stands still", async || broker.is_stopped()).await?;
        if round % 2 == 1 {
            proxy.cut();
        }
        let newcomer = tokio::spawn({
            let server = broker.server();
            async move { Client::connect(&server).await?.admin().status().await }
        });
        tokio::time::sleep(PAUSE).await;
        if newcomer.is_finished() {
            let told = newcomer.await.map_err(io::Error::other)?;
            return Err(io::Error::other(format!("a stopped broker has answered: {told:?}")));
        }
        broker.signal(Signal::SIGCONT)?;
        newcomer.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    load.acks(2_000).await?;
    load.finish().await?;
    ensure(ledger.refused() == 0, || format!("{} records were refused", ledger.refused()))?;
    let connections = proxy.connections();
    let verdict = all_there(&ledger, &broker.server(), "after the pauses").await?;
    ensure(verdict.stored == verdict.checked, || format!("more is stored than was sent: {verdict:?}"))?;
    let status = broker.terminate()?;
    ensure(status.success(), || format!("after SIGTERM the broker ended with {status}"))?;
    Ok(format!("{ROUNDS} pauses, {connections} connections, {} acks, each there once", ledger.len()))
}
