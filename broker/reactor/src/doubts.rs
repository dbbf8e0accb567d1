//! The ends of a shard's flushes: each counts on the device, and an OK is told only when nothing speaks against it any more.

use crate::device::{Doubt, FlushTicket};
use crate::file::FileFault;
use crate::op::{Event, Fault, File, Tag};
use crate::setup::Flushes;

/// Flushes of one shard that said OK and wait for those of other shards. Oldest first.
#[derive(Default)]
pub(crate) struct Doubts {
    waiting: Vec<(File, Tag, Doubt)>,
}

impl Doubts {
    /// A flush has ended. An OK says little yet: another flush of the same device may have failed before it.
    pub(crate) fn flushed(
        &mut self,
        flushes: &Flushes,
        file: File,
        tag: Tag,
        flush: FlushTicket,
        result: Result<(), Fault>,
        events: &mut Vec<Event>,
    ) {
        match result {
            Ok(()) => {
                let doubt = flushes.device.reaped_ok(flush);
                flushes.doubt();
                self.waiting.push((file, tag, doubt));
            }
            Err(fault) => {
                flushes.device.reaped_fault(flush);
                events.push(Event::Flushed { file, tag, result: Err(fault) });
            }
        }
        flushes.reaped();
    }

    /// Nobody waits for them any more.
    pub(crate) fn end(&mut self, flushes: &Flushes) {
        self.waiting.drain(..).for_each(|_| flushes.resolve());
    }

    /// Ends flushes about which there is no doubt any more: all others submitted before they ended have been reaped, or one failed.
    pub(crate) fn settle(&mut self, flushes: &Flushes, events: &mut Vec<Event>) {
        self.waiting.retain(|(file, tag, doubt)| {
            let Some(believed) = flushes.device.verdict(doubt) else { return true };
            flushes.resolve();
            let result = if believed { Ok(()) } else { Err(device_fault()) };
            events.push(Event::Flushed { file: *file, tag: *tag, result });
            false
        });
    }
}

/// Does what flushes on its way, which counts as a flush of the device by shard `shard`. Blocks.
pub(crate) fn counted<T>(
    flushes: &Flushes,
    shard: usize,
    work: impl FnOnce() -> Result<T, FileFault>,
) -> Result<T, Fault> {
    let flush = flushes.device.submitting(shard);
    let done = work();
    match &done {
        Err(FileFault::Flush(_)) => flushes.device.reaped_fault(flush),
        // No promise rests on it alone: it needs no verdict.
        Ok(_) | Err(FileFault::Refused(_)) => drop(flushes.device.reaped_ok(flush)),
    }
    flushes.reaped();
    Ok(done?)
}

/// What a flush that said OK ends in after another flush of its device has failed.
fn device_fault() -> Fault {
    Fault::new("flush: this one said OK, but another flush of the same device has failed", nix::libc::EIO)
}
