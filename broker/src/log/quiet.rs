//! The marks of a quiet shard. A mark travels in the next frame; when none comes, a frame of its own is written for it, and
//! later flushed, so that the last promise of an idle shard is marked too.

use tidegate_protocol::ids::FrameSequence;
use tidegate_reactor::op::{Now, Op, Tag};

use super::{Condition, Logs};

pub(super) const QUIET_TIMER: Tag = Tag(0x0104 << 48);

/// What a quiet shard still owes its journal: the mark of its last flush, and later a flush of that mark.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The last flushed frame that held entries.
    pub(super) entries_flushed: FrameSequence,
    /// When the last flush of entries or the last frame with a mark alone was.
    pub(super) since_ns: u64,
    /// When the timer that is under way will come.
    pub(super) timer_at_ns: Option<u64>,
}

impl Quiet {
    /// What recovery has kept and flushed is not marked yet.
    pub(super) fn after_recovery(last: FrameSequence) -> Quiet {
        Quiet { entries_flushed: last, ..Quiet::default() }
    }
}

impl Logs {
    pub(super) fn mark_is_due(&self, now: Now) -> bool {
        self.owes_mark() && now.mono_ns >= self.quiet.since_ns + self.limits.mark_after_ns
    }

    /// Whether the last flush of entries is not marked yet and no frame under way will do so.
    fn owes_mark(&self) -> bool {
        let serving = matches!(self.condition, Condition::Serving);
        serving && self.cycles.len() == 0 && self.journal.marked() < self.quiet.entries_flushed
    }

    pub(super) fn mark_flush_is_due(&self, now: Now) -> bool {
        self.owes_mark_flush() && now.mono_ns >= self.quiet.since_ns + self.limits.mark_flush_after_ns
    }

    fn owes_mark_flush(&self) -> bool {
        self.cycles.len() > 0 && !self.cycles.has_entries() && self.cycles.is_quiet()
    }

    pub(super) fn set_timer(&mut self, now: Now, ops: &mut Vec<Op>) {
        if self.quiet.timer_at_ns.is_some() {
            return;
        }
        let after = if self.owes_mark() {
            self.limits.mark_after_ns
        } else if self.owes_mark_flush() {
            self.limits.mark_flush_after_ns
        } else {
            return;
        };
        // What is overdue and cannot be written yet is not asked for again at once.
        const AGAIN_NS: u64 = 1_000_000;
        let at_ns = (self.quiet.since_ns + after).max(now.mono_ns + AGAIN_NS);
        self.quiet.timer_at_ns = Some(at_ns);
        ops.push(Op::Timer { at_ns, tag: QUIET_TIMER });
    }
}
