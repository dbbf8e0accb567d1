//! How a shard's logs come to their end: by a stop, or by a fault of the drive.

use tidegate_reactor::op::Fault;

use super::answer::Outcome;
use super::{Condition, Logs};

impl Logs {
    /// Writes, flushes and checkpoints what there is, and takes no more appends.
    pub fn stop(&mut self) {
        self.scrub.stop();
        if matches!(self.condition, Condition::Serving) {
            // Files are made until nothing waits for them any more.
            self.condition = Condition::Stopping;
        } else if !matches!(self.condition, Condition::Stopping) {
            self.segments.stop();
        }
    }

    /// Whether nothing of what is pending can still be written.
    pub(super) fn is_drained(&self) -> bool {
        (self.dirty.is_empty() && self.departures.is_empty()) || self.segments.full().is_some()
    }

    /// What has failed, once everyone whose records it concerns has been told.
    pub fn failed(&self) -> Option<&Fault> {
        match &self.condition {
            Condition::Failed { fault, announced: true } => Some(fault),
            Condition::Failed { .. }
            | Condition::Serving
            | Condition::Stopping
            | Condition::ReadOnly { .. } => None,
        }
    }

    /// Whether a stop has come to its end.
    pub fn stopped(&self) -> bool {
        let quiet = self.cycles.is_quiet()
            && !self.checkpoints.is_busy()
            && self.opening == 0
            && self.segments.is_idle()
            && self.reader.is_idle()
            && self.scrub.is_idle();
        match &self.condition {
            Condition::Serving => false,
            Condition::Stopping => {
                let covered = self.checkpoints.newest().sequence == self.journal.last_sequence();
                quiet && covered && self.is_drained()
            }
            Condition::ReadOnly { .. } | Condition::Failed { .. } => quiet,
        }
    }

    /// A write or a flush has failed: no append is taken any more; reads go on.
    pub(super) fn fail(&mut self, fault: Fault) {
        if !matches!(self.condition, Condition::Failed { .. }) {
            self.condition = Condition::Failed { fault, announced: false };
            // Nothing will be put into a new file, and on a drive that fails each one may be another that is lost.
            self.segments.stop();
        }
    }

    /// Tells those who wait once everything that can still be flushed has been.
    pub(super) fn announce_failure(&mut self) {
        let Condition::Failed { fault, announced } = &mut self.condition else { return };
        if *announced || !self.cycles.is_settled_after_failure() {
            return;
        }
        *announced = true;
        for log in self.logs.iter().flatten().filter(|log| log.appended > log.durable) {
            let fault = fault.clone();
            self.outcomes.push_back(Outcome::Unknown { log: log.id, from: log.durable, fault });
        }
    }
}
