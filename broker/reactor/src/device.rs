//! Why a failed flush belongs to the device: after one failed device flush another file's next flush says OK although
//! its data is gone. So a shard believes its own OK only when every flush that another shard of the device had submitted
//! by then has been reaped, and none of them failed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The flushes of all shards on one device; shared by their reactors.
#[derive(Debug)]
pub struct Device {
    shards: Box<[Counts]>,
    faults: AtomicU64,
}

/// The flushes of one shard, numbered from 0. Several may be under way, of different files, and end in any order.
#[derive(Debug, Default)]
struct Counts {
    submitted: AtomicU64,
    /// Every flush with a lower number has been reaped.
    reaped_below: AtomicU64,
    under_way: Mutex<BTreeSet<u64>>,
}

/// A flush under way; made by [`Device::submitting`], given back when it is reaped.
#[derive(Debug)]
#[must_use = "a flush that is never reaped keeps every later one in doubt"]
pub struct FlushTicket {
    shard: usize,
    number: u64,
}

/// What has to be reaped before one successful flush may be believed; made by [`Device::reaped_ok`].
#[derive(Debug)]
pub struct Doubt {
    /// By shard: every flush with a lower number.
    below: Box<[u64]>,
}

impl Device {
    /// A device on which `shards` shards will flush.
    pub fn new(shards: usize) -> Device {
        Device { shards: (0..shards).map(|_| Counts::default()).collect(), faults: AtomicU64::new(0) }
    }

    /// Shard `shard` is about to submit a flush.
    pub fn submitting(&self, shard: usize) -> FlushTicket {
        let counts = &self.shards[shard];
        let mut under_way = counts.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let number = counts.submitted.fetch_add(1, Ordering::SeqCst);
        under_way.insert(number);
        FlushTicket { shard, number }
    }

    /// A flush has failed. The fault is counted before the flush counts as reaped.
    pub fn reaped_fault(&self, flush: FlushTicket) {
        self.faults.fetch_add(1, Ordering::SeqCst);
        self.reaped(flush);
    }

    /// A flush has said OK: what else must be reaped before it may be believed.
    pub fn reaped_ok(&self, flush: FlushTicket) -> Doubt {
        self.reaped(flush);
        Doubt { below: self.shards.iter().map(|s| s.submitted.load(Ordering::SeqCst)).collect() }
    }

    fn reaped(&self, FlushTicket { shard, number }: FlushTicket) {
        let counts = &self.shards[shard];
        let mut under_way = counts.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&number);
        let next = counts.submitted.load(Ordering::SeqCst);
        counts.reaped_below.store(under_way.first().copied().unwrap_or(next), Ordering::SeqCst);
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
            .zip(&doubt.below)
            .all(|(s, need)| s.reaped_below.load(Ordering::SeqCst) >= *need);
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
        let own = device.submitting(0);
        let other = device.submitting(1);
        let doubt = device.reaped_ok(own);
        assert_eq!(device.verdict(&doubt), None);
        device.reaped_fault(other);
        assert_eq!(device.verdict(&doubt), Some(false));
    }

    #[test]
    fn an_ok_is_believed_once_all_others_said_ok() {
        let device = Device::new(2);
        let own = device.submitting(0);
        let other = device.submitting(1);
        let doubt = device.reaped_ok(own);
        device.reaped_ok(other);
        let _later = device.submitting(1);
        assert_eq!(device.verdict(&doubt), Some(true), "a later flush does not matter");
    }

    #[test]
    fn a_later_flush_that_ends_first_does_not_stand_for_the_one_before_it() {
        let device = Device::new(2);
        let own = device.submitting(0);
        let of_the_pool = device.submitting(1);
        let doubt = device.reaped_ok(own);
        let of_the_journal = device.submitting(1);
        device.reaped_ok(of_the_journal);
        assert_eq!(device.verdict(&doubt), None);
        device.reaped_fault(of_the_pool);
        assert_eq!(device.verdict(&doubt), Some(false));
    }
}
