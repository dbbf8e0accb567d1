//! What leaves: trimmed and removed records, and small extents that have to leave old frames, so that these become free.

use tidegate_protocol::disk::checkpoint::ExtentPlace;
use tidegate_protocol::disk::entry::{Entry, FREE_BYTES, START_BYTES, Start, entry_bytes};
use tidegate_protocol::disk::frame::frame_bytes;
use tidegate_protocol::ids::{Offset, TopicPartition};

use super::answer::{Outcome, TrimRefused};
use super::cycle::{Building, Item};
use super::segment::Purpose;
use super::state::LogIndex;
use super::{Condition, Departure, Logs};

/// What has to be done about small extents of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// There are too many in all: carrying them would not help.
    Settle,
    /// They hold up their frames: settled or carried, whatever is cheaper.
    Move,
}

impl Logs {
    /// Moves a log's start; done when [`Outcome::Trimmed`] comes.
    ///
    /// # Errors
    /// If `before` is not within the log's committed part, or the shard takes no writes.
    pub fn trim(&mut self, log: TopicPartition, before: Offset) -> Result<(), TrimRefused> {
        let index = *self.by_id.get(&log).ok_or(TrimRefused::UnknownLog)?;
        if !matches!(self.condition, Condition::Serving) {
            return Err(TrimRefused::Stopped);
        }
        let state = self.logs[index.0 as usize].as_deref_mut().expect("a named log exists");
        let (start, committed) = (state.start, state.durable);
        if before > committed || before.0 < 0 {
            return Err(TrimRefused::OutOfRange { start, committed });
        }
        if before <= start {
            self.outcomes.push_back(Outcome::Trimmed { log, start });
            return Ok(());
        }
        state.start = before;
        self.departures.push_back(Departure::Trim { log: index, start: before });
        Ok(())
    }

    /// Trims and removals: a start, and the files that lie wholly below it.
    pub(super) fn add_departures(&mut self, building: &mut Building) {
        let sequence = self.journal.next_sequence();
        while let Some(departure) = self.departures.front().copied() {
            let (Departure::Trim { log: index, .. } | Departure::Remove { log: index }) = departure;
            let Some(id) = self.logs[index.0 as usize].as_deref().map(|log| log.id) else {
                self.departures.pop_front();
                continue;
            };
            let frees = match departure {
                Departure::Trim { start, .. } => self.segments.below(id, start),
                Departure::Remove { .. } => self.segments.all_of(id),
            };
            if !building.fits(START_BYTES + frees.len() * FREE_BYTES) {
                return;
            }
            self.departures.pop_front();
            let offset = match departure {
                Departure::Trim { start, .. } => {
                    building.trimmed.push((id, start));
                    self.apply_trim(index, start);
                    start
                }
                Departure::Remove { .. } => {
                    self.forget(index);
                    Start::REMOVED
                }
            };
            building.push(Item::Entry(Entry::Start(Start { log: id, offset })), START_BYTES);
            for free in frees {
                self.segments.apply_free(sequence, &free).expect("the table named the file itself");
                building.push(Item::Entry(Entry::Free(free)), FREE_BYTES);
            }
        }
    }

    fn apply_trim(&mut self, index: LogIndex, start: Offset) {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a log that is trimmed exists");
        let small = (log.small_bytes, log.small.len());
        log.move_start(start);
        log.tail.drop_below(start, &mut self.memory);
        self.small_bytes -= small.0 - log.small_bytes;
        self.small_count -= small.1 - log.small.len();
        self.note_age(index);
    }

    /// Empties old frames: large logs are settled, small ones carried, oldest first.
    pub(super) fn add_old_frames(&mut self, building: &mut Building, share: usize) {
        const LOGS_MAX: usize = 1024;
        let oldest: Vec<LogIndex> = self.aging.iter().take(LOGS_MAX).map(|(_, index)| *index).collect();
        for index in oldest {
            let Some(urgency) = self.urgency(index) else { return };
            let log = self.log(index);
            if urgency == Urgency::Settle || log.small_bytes + log.pending_bytes >= self.settle_threshold() {
                self.add_runs(index, Purpose::Settling, building);
            }
            let log = self.log(index);
            let carry_cost: usize = log.small.iter().map(|e| entry_bytes(e.bytes as usize)).sum();
            let fits = frame_bytes(building.entry_bytes + carry_cost) <= share;
            if urgency == Urgency::Move && carry_cost > 0 && fits {
                self.add_carried(index, building);
            }
        }
    }

    /// Copies what is still small of a log into this frame.
    fn add_carried(&mut self, index: LogIndex, building: &mut Building) {
        let places: Vec<ExtentPlace> = self.log(index).small.iter().copied().collect();
        self.remove_age(index);
        for place in places {
            let bytes = place.bytes as usize;
            building.push(Item::Carried(index, Offset(place.base)), entry_bytes(bytes));
            self.carried_in_lap += bytes as u64;
        }
    }

    /// Whether a log's small extents have to leave their frames.
    pub(super) fn urgency(&self, index: LogIndex) -> Option<Urgency> {
        let oldest = self.log(index).small.front()?;
        let age = self.journal.bytes_behind_head(oldest.frame_at);
        // Twice what is small in all: else carrying one log would make the next one old, for ever.
        let old = (self.limits.checkpoint_interval_bytes / 2).max(2 * self.small_bytes as u64);
        let moves = if self.ring_is_short() {
            // What was moved within the part that is kept for moving stays where it is, so that the part is enough.
            age > self.limits.ring_move_bytes()
        } else {
            let is_damaged = self.scrub.rescue().is_some_and(|frame| oldest.frame <= frame.0);
            is_damaged || age > old || (self.memory_is_low() && self.memory_is_sparse())
        };
        if moves {
            return Some(Urgency::Move);
        }
        self.has_too_many_small().then_some(Urgency::Settle)
    }

    /// The least bytes of small extents for which a log is settled and not carried when its frame is emptied.
    pub(super) fn settle_threshold(&self) -> usize {
        let quarter = self.limits.ring_bytes() / 4;
        let much_carried = self.carried_in_lap > quarter;
        if much_carried || self.has_too_many_small() { 1 } else { self.limits.settle_min_bytes }
    }

    fn has_too_many_small(&self) -> bool {
        let bytes = self.small_bytes as u64;
        bytes > self.limits.small_bytes_many()
            || bytes > self.limits.memory_bytes as u64 / 4
            || self.small_count > self.limits.extents_max as usize / 2
    }
}
