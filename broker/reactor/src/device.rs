//! Why a failed flush belongs to the device: after one failed device flush another file's next flush says OK although
//! its data is gone. So a shard believes its own OK only when every flush that another shard of the device had submitted
//! by then has been reaped, and none of them failed.

use std::sync::atomic::{AtomicU64, Ordering};

/// The flushes of all shards on one device; shared by their reactors.
#[derive(Debug)]
pub struct Device {
    shards: Box<[Counts]>,
    faults: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    submitted: AtomicU64,
    reaped: AtomicU64,
}

/// What has to be reaped before one successful flush may be believed; made by [`Device::reaped_ok`].
#[derive(Debug)]
pub struct Doubt {
    reaped_needed: Box<[u64]>,
}

impl Device {
    /// A device on which `shards` shards will flush.
    pub fn new(shards: usize) -> Device {
        Device { shards: (0..shards).map(|_| Counts::default()).collect(), faults: AtomicU64::new(0) }
    }

    /// Shard `shard` is about to submit a flush.
    pub fn submitting(&self, shard: usize) {
        self.shards[shard].submitted.fetch_add(1, Ordering::SeqCst);
    }

    /// A flush of `shard` has failed. The fault is counted before the flush counts as reaped.
    pub fn reaped_fault(&self, shard: usize) {
        self.faults.fetch_add(1, Ordering::SeqCst);
        self.shards[shard].reaped.fetch_add(1, Ordering::SeqCst);
    }

    /// A flush of `shard` has said OK: what else must be reaped before it may be believed.
    pub fn reaped_ok(&self, shard: usize) -> Doubt {
        self.shards[shard].reaped.fetch_add(1, Ordering::SeqCst);
        Doubt { reaped_needed: self.shards.iter().map(|s| s.submitted.load(Ordering::SeqCst)).collect() }
    }

    /// Whether a successful flush may be believed: `None` while others are still under way, else whether the device is
    /// free of faults.
    pub fn verdict(&self, doubt: &Doubt) -> Option<bool> {
        if self.faults.load(Ordering::SeqCst) > 0 {
            return Some(false);
        }
        let settled = self
            .shards
            .iter()
            .zip(&doubt.reaped_needed)
            .all(|(s, need)| s.reaped.load(Ordering::SeqCst) >= *need);
        // Read again: a fault is counted before its flush is reaped, so one seen as reaped is also seen as a fault.
        settled.then(|| self.faults.load(Ordering::SeqCst) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ok_is_not_believed_before_the_other_shards_flush_is_reaped() {
        let device = Device::new(2);
        device.submitting(0);
        device.submitting(1);
        let doubt = device.reaped_ok(0);
        assert_eq!(device.verdict(&doubt), None);
        device.reaped_fault(1);
        assert_eq!(device.verdict(&doubt), Some(false));
    }

    #[test]
    fn an_ok_is_believed_once_all_others_said_ok() {
        let device = Device::new(2);
        device.submitting(0);
        device.submitting(1);
        let doubt = device.reaped_ok(0);
        device.reaped_ok(1);
        device.submitting(1);
        assert_eq!(device.verdict(&doubt), Some(true), "a later flush does not matter");
    }
}
