//! The filesystem is shut down under load (EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN: one number), as at a power cut.
//!
//! This is about the filesystem's metadata alone: what was written directly and never flushed survives it, as it survives a
//! kill, so a missing flush goes unnoticed here. The crash states (`tests crash`) and the simulator are for that.

use std::io;
use std::process::Command;
use std::sync::Arc;

use super::scene::{Load, all_there, ensure, until};
use crate::crash::mount::{Filesystem, Mounted, run};
use crate::crash::scratch;
use crate::ledger::Ledger;
use crate::process::BrokerProcess;

const IMAGE_BYTES: u64 = 768 << 20;

/// Cuts twice: once the filesystem's journal is dropped, once it is written out before.
pub(super) async fn power_cut(fs: Filesystem) -> io::Result<String> {
    let dir = scratch()?;
    let image = dir.path().join("drive.img");
    fs.make(&image, IMAGE_BYTES)?;
    let ledger = Arc::new(Ledger::default());
    for (round, command) in ["shutdown", "shutdown -f"].into_iter().enumerate() {
        let mounted = Mounted::new(fs, &image, &dir.path().join("mnt"))?;
        let broker = BrokerProcess::start(&mounted.path.join("data"), &["--shards", "2"])?;
        if round == 0 {
            Load::create(&broker.server()).await?;
        }
        let load = Load::start(&ledger, &broker.server(), &[1, 50, 1_000]);
        load.acks(3_000).await?;
        let unknown = ledger.unknown();
        run(Command::new("xfs_io").args(["-x", "-c", command]).arg(&mounted.path))?;
        until("an unknown outcome, told to a client", async || Ok(ledger.unknown() > unknown)).await?;
        load.abandon().await;
        broker.kill()?;
        mounted.unmount()?;

        let mounted = Mounted::new(fs, &image, &dir.path().join("mnt"))?;
        let broker = BrokerProcess::start(&mounted.path.join("data"), &["--shards", "2"])?;
        all_there(&ledger, &broker.server(), &format!("after the cut of round {round}")).await?;
        let status = broker.terminate()?;
        ensure(status.success(), || format!("after SIGTERM the broker ended with {status}"))?;
        mounted.unmount()?;
    }
    Ok(format!("2 cuts, {} acks, all there (metadata only)", ledger.len()))
}
