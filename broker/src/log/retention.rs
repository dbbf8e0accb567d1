//! Which records may go, by age and by size; and when the clock cannot be trusted to say so.
//!
//! Age is counted in append time, so no client's clock can keep records or end them. If the broker's own wall clock jumps,
//! age retention pauses: a clock a year ahead would delete everything.

use std::ops::Bound;

use tidegate_protocol::ids::{Offset, TopicPartition};
use tidegate_reactor::op::{Now, Op, Tag};

use super::answer::Outcome;
use super::notice::Notice;
use super::{Condition, LogOptions, Logs};

/// How far the wall clock may be from where it should be, in milliseconds.
const DISAGREEMENT_MS_MAX: i64 = 3_600_000;
/// How often each log is looked at, in nanoseconds.
const ROUND_NS: u64 = 10_000_000_000;
/// Logs looked at in one turn.
const LOGS_PER_TURN: usize = 16;
/// The tag of the timer that begins a round on an idle shard.
const TAG: Tag = Tag(0x0105 << 48 | 1);

/// Records that go together: a data file's, or those of one small extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// One past its last record.
    pub end: Offset,
    /// Its bytes.
    pub bytes: u64,
    /// When its last record was appended, milliseconds since the Unix epoch.
    pub append_last_ms: i64,
}

/// Whether the wall clock is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// It is.
    Trusted,
    /// It is so many milliseconds from where it should be: positive, ahead.
    Off(i64),
}

/// The pace of retention: every log in turn, each about every ten seconds.
#[derive(Debug)]
pub(crate) struct Retention {
    /// Both clocks at the first turn.
    anchor: Option<Now>,
    /// Wall clock of the last checkpoint before the start.
    checkpoint_wall_ms: Option<i64>,
    /// The last log that was looked at in this round.
    after: Option<TopicPartition>,
    round_at_ns: u64,
    timer_at_ns: u64,
    paused: bool,
}

impl Retention {
    /// Begins with the first turn. `checkpoint_wall_ms` is the wall clock of the newest checkpoint found at the start.
    pub(crate) fn new(checkpoint_wall_ms: Option<i64>) -> Retention {
        Retention {
            anchor: None,
            checkpoint_wall_ms,
            after: None,
            round_at_ns: 0,
            timer_at_ns: 0,
            paused: false,
        }
    }

    /// The logs to look at now, a few at a time. `next` gives the log behind another one, in any lasting order.
    pub(crate) fn take_turn(
        &mut self,
        now: Now,
        next: impl Fn(Option<TopicPartition>) -> Option<TopicPartition>,
        ops: &mut Vec<Op>,
    ) -> Vec<TopicPartition> {
        self.anchor.get_or_insert(now);
        if self.timer_at_ns <= now.mono_ns {
            self.timer_at_ns = now.mono_ns + ROUND_NS;
            ops.push(Op::Timer { at_ns: self.timer_at_ns, tag: TAG });
        }
        let mut logs = Vec::new();
        while now.mono_ns >= self.round_at_ns && logs.len() < LOGS_PER_TURN {
            self.after = next(self.after);
            match self.after {
                Some(log) => logs.push(log),
                None => self.round_at_ns = now.mono_ns + ROUND_NS,
            }
        }
        logs
    }

    /// Whether age retention waits for a clock that can be trusted.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the wall clock is believed: it has gone on like the monotonic one since the start, and is not before the last
    /// checkpoint.
    pub(crate) fn clock(&self, now: Now) -> Clock {
        let Some(anchor) = self.anchor else { return Clock::Trusted };
        let passed_ms = (now.mono_ns.saturating_sub(anchor.mono_ns) / 1_000_000) as i64;
        let off = now.wall_ms.saturating_sub(anchor.wall_ms.saturating_add(passed_ms));
        if off.abs() > DISAGREEMENT_MS_MAX {
            return Clock::Off(off);
        }
        match self.checkpoint_wall_ms.map(|checkpoint| now.wall_ms.saturating_sub(checkpoint)) {
            Some(behind) if behind < -DISAGREEMENT_MS_MAX => Clock::Off(behind),
            _ => Clock::Trusted,
        }
    }
}

impl Logs {
    /// Trims what the options of a few logs allow to go.
    pub(super) fn retain(&mut self, now: Now, ops: &mut Vec<Op>) {
        if !matches!(self.condition, Condition::Serving) {
            return;
        }
        let by_id = &self.by_id;
        let next = |after: Option<TopicPartition>| match after {
            None => by_id.keys().next().copied(),
            Some(after) => by_id.range((Bound::Excluded(after), Bound::Unbounded)).next().map(|(id, _)| *id),
        };
        let logs = self.retention.take_turn(now, next, ops);
        let clock = self.retention.clock(now);
        let was_paused = std::mem::replace(&mut self.retention.paused, clock != Clock::Trusted);
        self.outcomes.extend(match (was_paused, clock) {
            (false, Clock::Off(off_ms)) => Some(Outcome::Notice(Notice::AgeRetentionPaused { off_ms })),
            (true, Clock::Trusted) => Some(Outcome::Notice(Notice::AgeRetentionResumed)),
            (false, Clock::Trusted) | (true, Clock::Off(_)) => None,
        });
        for id in logs {
            let Some(log) = self.find_log(id) else { continue };
            if log.options.retention_ms.is_none() && log.options.retention_bytes.is_none() {
                continue;
            }
            let (durable, start) = (log.durable, log.start);
            let small_from = log.small.front().map_or(log.placed, |extent| Offset(extent.base));
            let small = log.tail.extents_from(small_from).map(|extent| Piece {
                end: extent.header.end,
                bytes: extent.view.len() as u64,
                append_last_ms: extent.header.append_time_ms,
            });
            let pieces: Vec<Piece> =
                self.segments.pieces(id).chain(small).take_while(|piece| piece.end <= durable).collect();
            let allowed = allowed_start(&log.options, &pieces, now.wall_ms, clock);
            if let Some(allowed) = allowed.filter(|allowed| *allowed > start) {
                self.trim(id, allowed).expect("a durable offset of a log that is there");
            }
        }
    }
}

/// The start that `options` allow a log, which holds `pieces`, oldest first. None: nothing may go.
pub(crate) fn allowed_start(
    options: &LogOptions,
    pieces: &[Piece],
    wall_ms: i64,
    clock: Clock,
) -> Option<Offset> {
    let expired = |piece: &Piece| match options.retention_ms {
        Some(keep_ms) if clock == Clock::Trusted => {
            let keep_ms = i64::try_from(keep_ms).unwrap_or(i64::MAX);
            piece.append_last_ms < wall_ms.saturating_sub(keep_ms)
        }
        _ => false,
    };
    let mut left: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let mut start = None;
    for piece in pieces {
        left -= piece.bytes;
        let too_large = options.retention_bytes.is_some_and(|most| left >= most);
        if !too_large && !expired(piece) {
            break;
        }
        start = Some(piece.end);
    }
    start
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::ids::{PartitionId, TopicId};

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn options(retention_ms: Option<u64>, retention_bytes: Option<u64>) -> LogOptions {
        LogOptions {
            retention_ms,
            retention_bytes,
            segment_bytes: 1 << 20,
            append_time: false,
            idempotence_window: 5,
        }
    }

    /// Pieces of 100 bytes and ten records, one a second from 1 s on.
    fn pieces(count: i64) -> Vec<Piece> {
        let piece = |n| Piece { end: Offset(n * 10), bytes: 100, append_last_ms: n * 1000 };
        (1..=count).map(piece).collect()
    }

    #[test]
    fn whole_pieces_go_when_all_of_them_is_too_old_or_too_much() {
        let start = |ms, bytes, wall| allowed_start(&options(ms, bytes), &pieces(5), wall, Clock::Trusted);
        assert_eq!(start(None, None, i64::MAX), None, "kept for ever");
        assert_eq!(start(Some(2000), None, 3000), None, "exactly as old as allowed");
        assert_eq!(start(Some(2000), None, 5500), Some(Offset(30)));
        assert_eq!(start(Some(2000), None, 99_000), Some(Offset(50)), "the whole log");
        assert_eq!(start(None, Some(500), 0), None);
        assert_eq!(start(None, Some(499), 0), None, "less than that would be kept");
        assert_eq!(start(None, Some(400), 0), Some(Offset(10)));
        assert_eq!(start(None, Some(0), 0), Some(Offset(50)));
        assert_eq!(start(Some(2000), Some(100), 4500), Some(Offset(40)), "the stricter one");
        assert_eq!(start(Some(u64::MAX), None, i64::MAX), None, "no overflow");
    }

    #[test]
    fn age_retention_pauses_while_the_clock_is_off_and_size_retention_does_not() {
        let mut retention = Retention::new(Some(1_000_000_000));
        let at = |mono_s: u64, wall_ms| Now { mono_ns: mono_s * 1_000_000_000, wall_ms };
        let start = 1_000_500_000;
        retention.take_turn(at(5, start), |_| None, &mut Vec::new());
        assert_eq!(retention.clock(at(7205, start + 2 * HOUR_MS)), Clock::Trusted);
        assert_eq!(retention.clock(at(10, start + 5000 + HOUR_MS)), Clock::Trusted, "an hour is tolerated");
        let year = 365 * 24 * HOUR_MS;
        assert_eq!(retention.clock(at(10, start + 5000 + year)), Clock::Off(year));
        assert_eq!(retention.clock(at(10, start + 5000 - year)), Clock::Off(-year));
        let off = Clock::Off(year);
        assert_eq!(allowed_start(&options(Some(1), None), &pieces(5), year, off), None);
        assert_eq!(allowed_start(&options(Some(1), Some(100)), &pieces(5), year, off), Some(Offset(40)));
        let mut early = Retention::new(Some(start + 2 * HOUR_MS));
        early.take_turn(at(0, start), |_| None, &mut Vec::new());
        assert_eq!(early.clock(at(1, start + 1000)), Clock::Off(1000 - 2 * HOUR_MS), "before its own past");
    }

    #[test]
    fn every_log_has_its_turn_in_each_round_and_an_idle_shard_is_woken_for_the_next() {
        let log = |n: i32| TopicPartition { topic: TopicId([1; 16]), partition: PartitionId(n) };
        let next = |after: Option<TopicPartition>| {
            let n = after.map_or(0, |log| log.partition.0 + 1);
            (n < 40).then(|| log(n))
        };
        let mut retention = Retention::new(None);
        let mut timers = Vec::new();
        let mut seen = Vec::new();
        for turn in 0..10 {
            let logs = retention.take_turn(Now { mono_ns: turn, wall_ms: 0 }, next, &mut timers);
            assert!(logs.len() <= LOGS_PER_TURN);
            seen.extend(logs);
        }
        assert_eq!(seen, (0..40).map(log).collect::<Vec<_>>(), "once, and then no more in this round");
        assert_eq!(timers.len(), 1);
        let later = Now { mono_ns: ROUND_NS + 10, wall_ms: 0 };
        assert_eq!(retention.take_turn(later, next, &mut timers)[0], log(0));
        assert_eq!(timers.len(), 2);
    }
}
