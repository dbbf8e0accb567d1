//! Where the runs of a segment lie: by offset, append time and record time.
//!
//! What was placed since the start is known as it happens; what was there before is learnt lazily by hopping from run header
//! to run header, from the front. So there are two known stretches, `head` from the file's start and `tail` up to its end,
//! which meet when everything is known.

use tidegate_protocol::ids::Offset;

/// One run, or several small ones that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The first record's offset.
    pub base: Offset,
    /// One past the last record's offset.
    pub end: Offset,
    /// Bytes from the start of the file.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
    /// Append time of the last extent, milliseconds since the Unix epoch.
    pub append_last_ms: i64,
    /// The latest timestamp of any record, milliseconds since the Unix epoch.
    pub max_timestamp_ms: i64,
    /// What lies there.
    pub holds: Holds,
}

/// What lies in the place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Runs.
    Runs,
    /// Nothing that can be read: the header of its first run is damaged. Its times are the largest that may be.
    Damage,
}

/// What is known about the runs of one segment.
///
/// Invariants, see [`Index::check`]: entries of a stretch follow each other without a gap in place and offset; `head`
/// begins at place 0; `tail` begins at or behind the end of `head`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    head: Vec<Entry>,
    tail: Vec<Entry>,
}

/// What the index says about a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Look into this entry; nothing before it can match.
    In(Entry),
    /// It may lie in this entry, which cannot be read.
    Damaged(Entry),
    /// Not in what is known: read the run header at this place, then ask again.
    Hop(u64),
    /// No run of the segment matches.
    Nowhere,
}

/// Small runs that follow each other share an entry up to this many bytes.
const ENTRY_BYTES: u64 = 64 << 10;

impl Index {
    /// A run was placed at the segment's end.
    pub(crate) fn push_tail(&mut self, run: Entry) {
        if self.tail.is_empty() && self.head_end() == run.at {
            push(&mut self.head, run);
        } else {
            push(&mut self.tail, run);
        }
    }

    /// The header of the run at [`Index::head_end`] was read.
    pub(crate) fn push_head(&mut self, run: Entry) {
        assert_eq!(run.at, self.head_end(), "the index is learnt from the front");
        push(&mut self.head, run);
        if self.tail.first().is_some_and(|first| first.at == self.head_end()) {
            self.head.append(&mut self.tail);
        }
    }

    /// The header of a run is damaged, and what is known again begins where `damage` ends. Whether it could be kept: in a stretch
    /// that is not known it cannot.
    pub(crate) fn put_damage(&mut self, damage: Entry) -> bool {
        if damage.at == self.head_end() && self.tail.first().is_none_or(|first| damage.at < first.at) {
            self.push_head(damage);
            return true;
        }
        let stretch = if damage.at < self.head_end() { &mut self.head } else { &mut self.tail };
        let Some((index, whole)) = containing(stretch, damage.at) else { return false };
        if whole.holds == Holds::Damage {
            return true;
        }
        let (damage_end, whole_end) = (damage.at + damage.bytes, whole.at + whole.bytes);
        let damage = Entry {
            append_last_ms: damage.append_last_ms.min(whole.append_last_ms),
            max_timestamp_ms: damage.max_timestamp_ms.min(whole.max_timestamp_ms),
            ..damage
        };
        let before = Entry {
            end: damage.base,
            bytes: damage.at - whole.at,
            append_last_ms: damage.append_last_ms,
            ..whole
        };
        let behind = Entry { base: damage.end, at: damage_end, bytes: whole_end - damage_end, ..whole };
        let parts = [before, damage, behind].into_iter().filter(|part| part.bytes > 0);
        stretch.splice(index..=index, parts);
        true
    }

    /// What is known next, by place, behind a run at `at`: its place, its offset, and an append time that no earlier record has
    /// passed.
    pub(crate) fn known_behind(&self, at: u64) -> Option<(u64, Offset, i64)> {
        let stretch = if at < self.head_end() { &self.head } else { &self.tail };
        if let Some((_, entry)) = containing(stretch, at) {
            return Some((entry.at + entry.bytes, entry.end, entry.append_last_ms));
        }
        self.tail
            .first()
            .filter(|first| first.at > at)
            .map(|first| (first.at, first.base, first.append_last_ms))
    }

    /// Up to where runs are known from the file's start, in bytes.
    pub(crate) fn head_end(&self) -> u64 {
        self.head.last().map_or(0, |last| last.at + last.bytes)
    }

    /// One past the last offset that is known from the file's start.
    pub(crate) fn head_end_offset(&self) -> Option<Offset> {
        self.head.last().map(|last| last.end)
    }

    /// Where it is known again behind what is not: place and first offset.
    pub(crate) fn tail_start(&self) -> Option<(u64, Offset)> {
        self.tail.first().map(|first| (first.at, first.base))
    }

    /// The entry that holds `offset`. `written` is the segment's end in bytes.
    pub(crate) fn by_offset(&self, offset: Offset, written: u64) -> Answer {
        self.first(written, |e| e.end > offset)
    }

    /// The first entry with an extent appended at or after `ms`.
    pub(crate) fn by_append_time(&self, ms: i64, written: u64) -> Answer {
        self.first(written, |e| e.append_last_ms >= ms)
    }

    /// The first entry that holds a record of that time or later. Record times need not rise, so each entry is asked.
    pub(crate) fn by_record_time(&self, ms: i64, from: Offset, written: u64) -> Answer {
        let matches = |e: &&Entry| e.end > from && e.max_timestamp_ms >= ms;
        if let Some(entry) = self.head.iter().find(matches) {
            return entry.answer();
        }
        if self.head_end() < self.tail.first().map_or(written, |first| first.at) {
            return Answer::Hop(self.head_end());
        }
        self.tail.iter().find(matches).map_or(Answer::Nowhere, Entry::answer)
    }

    /// The first entry for which `reached` holds, which once it holds holds for all later ones.
    fn first(&self, written: u64, reached: impl Fn(&Entry) -> bool) -> Answer {
        let in_head = self.head.partition_point(|e| !reached(e));
        if let Some(entry) = self.head.get(in_head) {
            return entry.answer();
        }
        let in_tail = self.tail.partition_point(|e| !reached(e));
        let unknown_to = self.tail.first().map_or(written, |first| first.at);
        // The first entry of the tail that reaches it may still be behind an unknown one that does.
        if in_tail == 0 && self.head_end() < unknown_to {
            return Answer::Hop(self.head_end());
        }
        self.tail.get(in_tail).map_or(Answer::Nowhere, Entry::answer)
    }

    /// Entries held in memory.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Asserts the invariants. `written` is the segment's end in bytes.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn check(&self, written: u64) {
        for stretch in [&self.head, &self.tail] {
            for pair in stretch.windows(2) {
                assert!(pair[0].at + pair[0].bytes == pair[1].at, "a gap in place: {pair:?}");
                assert!(pair[0].end == pair[1].base, "a gap in offsets: {pair:?}");
            }
        }
        assert!(self.head.first().is_none_or(|first| first.at == 0), "the head begins at the file's start");
        let tail = self.tail.first().map_or(written, |first| first.at);
        assert!(self.head_end() <= tail, "the tail begins behind the head");
        let end = self.tail.last().map_or(self.head_end(), |last| last.at + last.bytes);
        assert!(end <= written, "no entry lies behind the segment's end");
    }
}

impl Entry {
    fn answer(&self) -> Answer {
        match self.holds {
            Holds::Runs => Answer::In(*self),
            Holds::Damage => Answer::Damaged(*self),
        }
    }
}

/// The entry in which a place lies.
fn containing(stretch: &[Entry], at: u64) -> Option<(usize, Entry)> {
    let index = stretch.partition_point(|entry| entry.at + entry.bytes <= at);
    stretch.get(index).filter(|entry| entry.at <= at).map(|entry| (index, *entry))
}

fn push(entries: &mut Vec<Entry>, run: Entry) {
    match entries.last_mut() {
        Some(last)
            if last.bytes + run.bytes <= ENTRY_BYTES
                && (last.holds, run.holds) == (Holds::Runs, Holds::Runs) =>
        {
            assert!(
                last.at + last.bytes == run.at && last.end == run.base,
                "{last:?} is not followed by {run:?}"
            );
            last.end = run.end;
            last.bytes += run.bytes;
            last.append_last_ms = run.append_last_ms;
            last.max_timestamp_ms = last.max_timestamp_ms.max(run.max_timestamp_ms);
        }
        _ => entries.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of 10 records and 64 KiB; append time 100 a run; record times 1000, 1010, .. but run 3 has 5000.
    fn run(number: i64) -> Entry {
        Entry {
            base: Offset(number * 10),
            end: Offset(number * 10 + 10),
            at: number as u64 * ENTRY_BYTES,
            bytes: ENTRY_BYTES,
            append_last_ms: number * 100,
            max_timestamp_ms: if number == 3 { 5000 } else { 1000 + number * 10 },
            holds: Holds::Runs,
        }
    }

    #[test]
    fn what_is_unknown_is_hopped_over_from_the_front_until_both_ends_meet() {
        let written = 8 * ENTRY_BYTES;
        let mut index = Index::default();
        for n in 5..8 {
            index.push_tail(run(n));
        }
        assert_eq!(index.by_offset(Offset(60), written), Answer::In(run(6)));
        assert_eq!(index.by_append_time(650, written), Answer::In(run(7)));
        assert_eq!(index.by_append_time(450, written), Answer::Hop(0), "run 4 may be older or not");
        for n in 0..5 {
            assert_eq!(index.by_offset(Offset(49), written), Answer::Hop(run(n).at));
            index.push_head(run(n));
            index.check(written);
        }
        assert_eq!(index.len(), 8);
        assert_eq!(index.by_offset(Offset(49), written), Answer::In(run(4)));
        assert_eq!(index.by_append_time(450, written), Answer::In(run(5)));
        assert_eq!(index.by_offset(Offset(80), written), Answer::Nowhere);
    }

    #[test]
    fn record_times_are_found_although_they_do_not_rise() {
        let written = 6 * ENTRY_BYTES;
        let mut index = Index::default();
        for n in 0..6 {
            index.push_tail(run(n));
        }
        assert_eq!(index.by_record_time(1015, Offset(0), written), Answer::In(run(2)));
        assert_eq!(
            index.by_record_time(1045, Offset(0), written),
            Answer::In(run(3)),
            "it holds a later record"
        );
        assert_eq!(index.by_record_time(1045, Offset(40), written), Answer::In(run(5)));
        assert_eq!(index.by_record_time(6000, Offset(0), written), Answer::Nowhere);
    }

    #[test]
    fn small_runs_share_an_entry() {
        let mut index = Index::default();
        for n in 0..20u64 {
            let base = Offset(n as i64);
            index.push_tail(Entry { base, end: base.plus(1), at: n * 4096, bytes: 4096, ..run(0) });
        }
        assert_eq!(index.len(), 2);
        index.check(20 * 4096);
    }

    /// Offsets `base` to `end` in bytes `at` to `upto`, not readable.
    fn damage(base: i64, end: i64, at: u64, upto: u64) -> Entry {
        let (base, end) = (Offset(base), Offset(end));
        Entry { base, end, at, bytes: upto - at, max_timestamp_ms: i64::MAX, holds: Holds::Damage, ..run(3) }
    }

    #[test]
    fn damage_is_kept_where_it_lies_and_only_what_is_in_it_is_not_readable() {
        let written = 8 * ENTRY_BYTES;
        // In what is being learnt: the next run is learnt behind it.
        let mut index = Index::default();
        index.push_tail(run(6));
        index.push_tail(run(7));
        for n in 0..3 {
            index.push_head(run(n));
        }
        assert_eq!(
            index.known_behind(3 * ENTRY_BYTES).map(|(at, base, _)| (at, base)),
            Some((run(6).at, Offset(60)))
        );
        let unreadable = damage(30, 45, 3 * ENTRY_BYTES, 4 * ENTRY_BYTES + 4096);
        assert!(index.put_damage(unreadable));
        index.check(written);
        assert_eq!(index.by_offset(Offset(44), written), Answer::Damaged(unreadable));
        assert_eq!(index.by_offset(Offset(45), written), Answer::Hop(4 * ENTRY_BYTES + 4096));
        assert!(
            !index.put_damage(damage(55, 58, 5 * ENTRY_BYTES, 5 * ENTRY_BYTES + 4096)),
            "nothing is known there"
        );
        // Within an entry of several runs.
        let mut index = Index::default();
        for n in 0..16u64 {
            let base = Offset(n as i64);
            index.push_tail(Entry { base, end: base.plus(1), at: n * 4096, bytes: 4096, ..run(0) });
        }
        assert_eq!(index.len(), 1);
        for n in [5u64, 0, 15] {
            let (at, base) = (n * 4096, n as i64);
            assert!(index.put_damage(damage(base, base + 1, at, at + 4096)), "{n}");
            index.check(16 * 4096);
        }
        for n in 0..16i64 {
            let is_damaged = matches!(index.by_offset(Offset(n), 16 * 4096), Answer::Damaged(_));
            assert_eq!(is_damaged, [0, 5, 15].contains(&n), "{n}");
        }
        assert_eq!(index.len(), 5);
    }
}
