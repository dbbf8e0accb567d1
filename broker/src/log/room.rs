//! How much ring, memory and drive there is for what, and who has to leave memory when it runs low.

use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::ids::{FrameSequence, TopicPartition};

use super::answer::{AppendRefused, Outcome, Room};
use super::notice::{Notice, Shortage};
use super::{Condition, Logs};
use crate::mutants::{self, Mutant};

/// What a frame, or a part of it, is for. Each leaves a part of the ring to those that follow it, so that nothing waits for
/// what it is to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingUse {
    /// What clients produce.
    Produce,
    /// Trims, frees, internal logs, marks alone.
    Departures,
    /// Settling and carrying.
    Moving,
}

impl Logs {
    /// How much may be appended now.
    pub fn room(&self) -> Room {
        let none = |reason| Room { bytes: 0, reason };
        match self.condition {
            Condition::Serving => {}
            Condition::Stopping => return none(Reason::Disk),
            // What is refused takes no room, and a refusal says more than a wait.
            Condition::ReadOnly { .. } | Condition::Failed { .. } => {
                return Room { bytes: self.memory_high() as u64, reason: Reason::None };
            }
        }
        if self.shortage.is_some() {
            return none(Reason::DiskFull);
        }
        if self.ring_is_full() {
            return none(Reason::Disk);
        }
        // The tail may grow to its share whatever is promised now.
        let used = self.memory_used().max(self.tail_share());
        let bytes = self.memory_high().saturating_sub(used) as u64;
        let is_full = self.segments.full().is_some();
        let reason = match bytes < self.limits.memory_bytes as u64 / 8 {
            true if is_full => Reason::DiskFull,
            true => Reason::Memory,
            false => Reason::None,
        };
        Room { bytes, reason }
    }

    /// Whether the ring has too little room for what producers may send at once.
    fn ring_is_full(&self) -> bool {
        let limits = &self.limits;
        let small = self.small_bytes + limits.batch_bytes_max;
        self.frame_room(RingUse::Produce) < limits.frame_bytes_max / 4
            || small as u64 > limits.small_bytes_max()
    }

    /// Whether there are as many small extents as producers may have.
    fn has_most_extents(&self) -> bool {
        self.small_count >= self.limits.extents_of_topics_max() as usize
    }

    /// Why the drive has no room for what producers send, if so.
    pub fn shortage(&self) -> Option<&Shortage> {
        self.shortage.as_ref()
    }

    /// Whether produce is refused for want of room on the drive. A full ring alone is no reason: what is appended waits in
    /// memory until frames are free again. With it a file that cannot be made is one, until one can be made again.
    pub(super) fn watch_room(&mut self) {
        if !matches!(self.condition, Condition::Serving) {
            return;
        }
        let shortage = self.segments.below_floor().or_else(|| {
            let hopeless = self.shortage.is_some() || self.ring_is_full() || self.has_most_extents();
            self.segments.full().filter(|_| hopeless).cloned()
        });
        let notice = match (&self.shortage, &shortage) {
            (None, Some(shortage)) => Some(Notice::ProduceRefused(shortage.clone())),
            (Some(_), None) => Some(Notice::ProduceTaken),
            (None, None) | (Some(_), Some(_)) => None,
        };
        self.outcomes.extend(notice.map(Outcome::Notice));
        self.shortage = shortage;
    }

    /// The largest frame that the ring has room for now, or the part of one that may be used so.
    pub(super) fn frame_room(&self, what: RingUse) -> usize {
        let limits = &self.limits;
        let kept = match what {
            RingUse::Produce => limits.ring_reserve_bytes() + limits.ring_move_bytes(),
            RingUse::Departures => limits.ring_recovery_bytes() + limits.ring_move_bytes(),
            RingUse::Moving => limits.ring_recovery_bytes(),
        };
        self.journal.room(limits.frame_bytes_max, kept)
    }

    /// Whether what clients produce has to wait until old frames are free.
    pub(super) fn ring_is_short(&self) -> bool {
        self.frame_room(RingUse::Produce) == 0
    }

    /// The last check before an append: the bounds that nothing may pass, whatever credit was given before.
    pub(super) fn check_room(&self, log: TopicPartition, bytes: usize) -> Result<(), AppendRefused> {
        let wanted = bytes as u64;
        let refuse = |reason, room| Err(AppendRefused::NoRoom { reason, wanted, room });
        if log.topic.is_internal() {
            let full = self.small_count >= self.limits.extents_max as usize;
            return if full { refuse(Reason::Disk, 0) } else { Ok(()) };
        }
        if let Some(shortage) = &self.shortage {
            return Err(AppendRefused::DiskFull(shortage.clone()));
        }
        let memory = self.limits.memory_bytes.saturating_sub(self.memory_used());
        if bytes > memory {
            return refuse(Reason::Memory, memory as u64);
        }
        if self.has_most_extents() {
            return refuse(Reason::Disk, 0);
        }
        Ok(())
    }

    pub(super) fn ring_is_low(&self) -> bool {
        let (limits, frame) = (&self.limits, self.limits.frame_bytes_max as u64);
        let short = limits.ring_reserve_bytes() + limits.ring_move_bytes() + frame;
        self.journal.free_bytes() < short.max(2 * limits.ring_reserve_bytes() + 2 * frame)
    }

    /// Memory that may be used before what is old has to leave.
    fn memory_high(&self) -> usize {
        self.limits.memory_bytes - 2 * self.limits.frame_bytes_max
    }

    /// Memory up to which settled records stay.
    fn tail_share(&self) -> usize {
        self.memory_high() / 2
    }

    pub(super) fn memory_used(&self) -> usize {
        self.memory.used() + self.checkpoints.memory_bytes() + self.staging.memory_bytes()
    }

    pub(super) fn memory_is_low(&self) -> bool {
        self.memory_used() > self.memory_high() / 4 * 3
    }

    /// Whether buffers are kept alive by much less than they hold, so that carrying gives memory back.
    pub(super) fn memory_is_sparse(&self) -> bool {
        self.memory.used() > 2 * self.small_bytes + 2 * self.limits.frame_bytes_max
    }

    /// What is settled by a cycle above this one is not in its data file for certain.
    fn evictable_upto(&self) -> FrameSequence {
        match mutants::on(Mutant::TailEvictedEarly) {
            true => self.journal.last_sequence(),
            false => self.journal.flushed(),
        }
    }

    /// Lets the oldest settled records leave memory while it holds more than the tail's share.
    pub(super) fn evict(&mut self) {
        while self.memory_used() > self.tail_share() {
            let Some(settled) = self.memory.next_evictable(self.evictable_upto()) else { return };
            if let Some(log) = self.logs[settled.log.0 as usize].as_deref_mut() {
                log.tail.drop_below(settled.upto, &mut self.memory);
                self.counts.tails_evicted += 1;
            }
        }
    }
}
