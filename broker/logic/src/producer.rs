//! Idempotence: whether a batch is new, a repetition, or leaves a gap in its producer's sequence.
//!
//! One [`ProducerTable`] belongs to each log. [`ProducerTable::check`] decides and changes nothing;
//! [`ProducerTable::apply`] takes in a batch that has got its place. Replay after a restart calls the same `apply` with
//! the same batches and append times, so a replayed table equals the live one; a [`Snapshot`] in a checkpoint cuts the
//! replay short.
//!
//! The table is bounded: producers silent for longer than the expiry are forgotten, and at the cap the longest silent one.
//! A forgotten producer must never be taken for a new one, or its resent first batch would be stored twice. So the table
//! remembers the highest id and the highest epoch that it has forgotten; an unknown producer at or below both is refused,
//! and takes a new id. Ids are given out in rising order, so a fresh one is always above.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence};

/// Fewer remembered batches than this would break clients that keep five in flight, as Kafka's do.
pub const WINDOW_MIN: usize = 5;

/// Bounds of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerLimits {
    /// Batches remembered per producer; at least [`WINDOW_MIN`] are.
    pub window: u16,
    /// Producers remembered.
    pub producers_max: u32,
    /// Milliseconds of append time after which a silent producer is forgotten.
    pub expiry_ms: i64,
}

/// What the header of a batch says about its place in its producer's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIdentity {
    /// The producer, or [`ProducerId::NONE`].
    pub producer: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
    /// The sequence of the first record.
    pub base_sequence: Sequence,
    /// Records in the batch, at least 1.
    pub record_count: i32,
}

impl BatchIdentity {
    fn next_sequence(&self) -> Sequence {
        self.base_sequence.plus(self.record_count)
    }
}

/// What is to be done with the batches of one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are new: append and apply them.
    Accept,
    /// All of them are here already: join the original's waiters.
    Duplicate {
        /// Offset of the original's first record.
        base: Offset,
        /// One past the original's last record.
        end: Offset,
        /// The append time of the original's first batch, milliseconds since the Unix epoch.
        append_time_ms: i64,
    },
    /// Nothing is appended.
    Refused(Refusal),
}

/// Why batches are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A batch neither continues the sequence nor repeats a remembered batch.
    OutOfSequence {
        /// The sequence that would have been taken.
        expected: Sequence,
        /// The one that came.
        found: Sequence,
    },
    /// The producer is not known here (any more), and this is not its beginning.
    UnknownProducer {
        /// Which.
        producer: ProducerId,
    },
    /// A newer epoch of the producer has been seen.
    StaleProducer {
        /// The newest epoch.
        current: ProducerEpoch,
    },
    /// One append holds batches of different producers or epochs.
    MixedProducers,
    /// One append holds more batches of a producer than are remembered, so its repetition could not be recognised.
    TooManyBatches {
        /// Batches remembered.
        limit: usize,
    },
}

/// The producers of one log.
///
/// Invariants: at most `producers_max` producers; each has 1 to `window` batches with strictly rising offsets; `by_silence`
/// holds exactly one entry a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerTable {
    limits: ProducerLimits,
    producers: BTreeMap<ProducerId, Producer>,
    by_silence: BTreeSet<(i64, ProducerId)>,
    forgotten: Option<(ProducerId, ProducerEpoch)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: ProducerEpoch,
    last_append_ms: i64,
    batches: VecDeque<Remembered>,
}

/// A batch that would be recognised if it came again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The sequence of its first record.
    pub base_sequence: Sequence,
    /// Its records.
    pub record_count: i32,
    /// The offset of its first record.
    pub base: Offset,
    /// Its append time, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
}

/// A table as a checkpoint keeps it: plain data, ordered by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The producers.
    pub producers: Vec<ProducerSnapshot>,
    /// The highest id and the highest epoch that were forgotten.
    pub forgotten: Option<(ProducerId, ProducerEpoch)>,
}

/// One producer in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSnapshot {
    /// Its id.
    pub producer: ProducerId,
    /// Its newest epoch.
    pub epoch: ProducerEpoch,
    /// Its remembered batches, oldest first; at least one.
    pub batches: Vec<Remembered>,
}

impl ProducerTable {
    /// A table that knows nobody.
    pub fn new(limits: ProducerLimits) -> ProducerTable {
        ProducerTable { limits, producers: BTreeMap::new(), by_silence: BTreeSet::new(), forgotten: None }
    }

    /// The table of a checkpoint. Should the limits have shrunk since, the oldest entries go.
    pub fn restore(limits: ProducerLimits, snapshot: &Snapshot) -> ProducerTable {
        let mut table = ProducerTable::new(limits);
        table.forgotten = snapshot.forgotten;
        for kept in &snapshot.producers {
            let Some(newest) = kept.batches.last() else { continue };
            let last_append_ms = newest.append_time_ms;
            let batches = kept.batches.iter().copied().collect();
            table.by_silence.insert((last_append_ms, kept.producer));
            table.producers.insert(kept.producer, Producer { epoch: kept.epoch, last_append_ms, batches });
        }
        table.set_limits(limits);
        table
    }

    /// The table as a checkpoint keeps it.
    pub fn snapshot(&self) -> Snapshot {
        let of = |(id, producer): (&ProducerId, &Producer)| ProducerSnapshot {
            producer: *id,
            epoch: producer.epoch,
            batches: producer.batches.iter().copied().collect(),
        };
        Snapshot { producers: self.producers.iter().map(of).collect(), forgotten: self.forgotten }
    }

    /// Changes the limits; what is above them is forgotten, oldest first.
    pub fn set_limits(&mut self, limits: ProducerLimits) {
        self.limits = limits;
        let window = self.window();
        for producer in self.producers.values_mut() {
            let surplus = producer.batches.len().saturating_sub(window);
            producer.batches.drain(..surplus);
        }
        while self.producers.len() > self.producers_max() {
            self.forget_longest_silent();
        }
        self.check_invariants();
    }

    /// Forgets the longest silent producers until at most `most` are left.
    pub fn forget_down_to(&mut self, most: usize) {
        while self.producers.len() > most {
            self.forget_longest_silent();
        }
    }

    /// Producers remembered.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether this producer is remembered.
    pub fn knows(&self, producer: ProducerId) -> bool {
        self.producers.contains_key(&producer)
    }

    /// Whether no producer is remembered.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// Decides about the batches of one append, which would get `append_time_ms`; changes nothing.
    pub fn check(&self, append_time_ms: i64, batches: &[BatchIdentity]) -> Verdict {
        let Some(first) = batches.first() else { return Verdict::Accept };
        if batches.iter().any(|b| (b.producer, b.epoch) != (first.producer, first.epoch)) {
            return Verdict::Refused(Refusal::MixedProducers);
        }
        if first.producer == ProducerId::NONE {
            return Verdict::Accept;
        }
        if batches.len() > self.window() {
            return Verdict::Refused(Refusal::TooManyBatches { limit: self.window() });
        }
        let known = self
            .producers
            .get(&first.producer)
            .filter(|p| !self.is_expired(p.last_append_ms, append_time_ms));
        let Some(known) = known else { return self.check_unknown(first, batches) };
        if first.epoch < known.epoch {
            return Verdict::Refused(Refusal::StaleProducer { current: known.epoch });
        }
        if first.epoch > known.epoch {
            return check_chain(Sequence(0), batches);
        }
        let expected = known.next_sequence();
        if first.base_sequence == expected {
            return check_chain(expected, batches);
        }
        match known.find(batches) {
            Some(original) => original,
            None => Verdict::Refused(Refusal::OutOfSequence { expected, found: first.base_sequence }),
        }
    }

    fn check_unknown(&self, first: &BatchIdentity, batches: &[BatchIdentity]) -> Verdict {
        let expired = self.producers.get(&first.producer).map(|p| (first.producer, p.epoch));
        let may_be_forgotten = [self.forgotten, expired]
            .into_iter()
            .flatten()
            .any(|(id, epoch)| first.producer <= id && first.epoch <= epoch);
        if first.base_sequence != Sequence(0) || may_be_forgotten {
            return Verdict::Refused(Refusal::UnknownProducer { producer: first.producer });
        }
        check_chain(Sequence(0), batches)
    }

    /// Takes in a batch that has got its place at `base`, live or in replay. Only batches that [`ProducerTable::check`]
    /// accepted are ever applied.
    pub fn apply(&mut self, append_time_ms: i64, batch: BatchIdentity, base: Offset) {
        if batch.producer == ProducerId::NONE {
            return;
        }
        self.forget_expired(append_time_ms);
        let window = self.window();
        let newest = Remembered {
            base_sequence: batch.base_sequence,
            record_count: batch.record_count,
            base,
            append_time_ms,
        };
        if let Some(known) = self.producers.get_mut(&batch.producer) {
            if known.last_append_ms != append_time_ms {
                self.by_silence.remove(&(known.last_append_ms, batch.producer));
                self.by_silence.insert((append_time_ms, batch.producer));
                known.last_append_ms = append_time_ms;
            }
            if known.epoch != batch.epoch {
                known.epoch = batch.epoch;
                known.batches.clear();
            }
            if known.batches.len() == window {
                known.batches.pop_front();
            }
            known.batches.push_back(newest);
        } else {
            if self.producers.len() == self.producers_max() {
                self.forget_longest_silent();
            }
            let batches = VecDeque::from([newest]);
            let producer = Producer { epoch: batch.epoch, last_append_ms: append_time_ms, batches };
            self.producers.insert(batch.producer, producer);
            self.by_silence.insert((append_time_ms, batch.producer));
        }
    }

    fn window(&self) -> usize {
        usize::from(self.limits.window).max(WINDOW_MIN)
    }

    fn producers_max(&self) -> usize {
        (self.limits.producers_max as usize).max(1)
    }

    fn is_expired(&self, last_append_ms: i64, now_ms: i64) -> bool {
        now_ms.saturating_sub(last_append_ms) > self.limits.expiry_ms
    }

    fn forget_expired(&mut self, now_ms: i64) {
        while let Some((last_append_ms, _)) = self.by_silence.first() {
            if !self.is_expired(*last_append_ms, now_ms) {
                return;
            }
            self.forget_longest_silent();
        }
    }

    fn forget_longest_silent(&mut self) {
        let Some((_, id)) = self.by_silence.pop_first() else { return };
        let gone = self.producers.remove(&id).expect("every entry by silence has its producer");
        let (highest_id, highest_epoch) = self.forgotten.unwrap_or((id, gone.epoch));
        self.forgotten = Some((highest_id.max(id), highest_epoch.max(gone.epoch)));
    }

    /// Asserts the invariants; linear in the table's size.
    pub fn check_invariants(&self) {
        assert!(self.producers.len() <= self.producers_max(), "{} producers", self.producers.len());
        assert_eq!(self.producers.len(), self.by_silence.len());
        for (id, producer) in &self.producers {
            assert!(self.by_silence.contains(&(producer.last_append_ms, *id)));
            assert!((1..=self.window()).contains(&producer.batches.len()));
            assert!(
                producer.batches.iter().zip(producer.batches.iter().skip(1)).all(|(a, b)| a.base < b.base)
            );
        }
    }
}

impl Producer {
    fn next_sequence(&self) -> Sequence {
        let newest = self.batches.back().expect("a producer is known by at least one batch");
        newest.base_sequence.plus(newest.record_count)
    }

    /// The remembered batches of which `batches` is a whole repetition.
    fn find(&self, batches: &[BatchIdentity]) -> Option<Verdict> {
        let same = |kept: &Remembered, came: &BatchIdentity| {
            kept.base_sequence == came.base_sequence && kept.record_count == came.record_count
        };
        let at = self.batches.iter().position(|kept| same(kept, &batches[0]))?;
        let kept = self.batches.range(at..).take(batches.len());
        if kept.len() < batches.len() || !kept.clone().zip(batches).all(|(kept, came)| same(kept, came)) {
            return None;
        }
        let (first, last) = (kept.clone().next()?, kept.clone().next_back()?);
        let end = last.base.plus(i64::from(last.record_count));
        Some(Verdict::Duplicate { base: first.base, end, append_time_ms: first.append_time_ms })
    }
}

fn check_chain(mut expected: Sequence, batches: &[BatchIdentity]) -> Verdict {
    for batch in batches {
        if batch.base_sequence != expected {
            return Verdict::Refused(Refusal::OutOfSequence { expected, found: batch.base_sequence });
        }
        expected = batch.next_sequence();
    }
    Verdict::Accept
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ProducerLimits = ProducerLimits { window: 5, producers_max: 3, expiry_ms: 1000 };

    fn batch(producer: i64, epoch: i16, base_sequence: i32, record_count: i32) -> BatchIdentity {
        BatchIdentity {
            producer: ProducerId(producer),
            epoch: ProducerEpoch(epoch),
            base_sequence: Sequence(base_sequence),
            record_count,
        }
    }

    fn out_of_sequence(expected: i32, found: i32) -> Verdict {
        Verdict::Refused(Refusal::OutOfSequence { expected: Sequence(expected), found: Sequence(found) })
    }

    fn unknown(producer: i64) -> Verdict {
        Verdict::Refused(Refusal::UnknownProducer { producer: ProducerId(producer) })
    }

    fn duplicate(base: i64, end: i64, append_time_ms: i64) -> Verdict {
        Verdict::Duplicate { base: Offset(base), end: Offset(end), append_time_ms }
    }

    /// A log in miniature: accepted batches get the next offsets.
    struct Log {
        table: ProducerTable,
        end: i64,
        kept: Vec<(i64, BatchIdentity, Offset)>,
    }

    impl Log {
        fn new(limits: ProducerLimits) -> Log {
            Log { table: ProducerTable::new(limits), end: 0, kept: Vec::new() }
        }

        fn send(&mut self, at_ms: i64, batches: &[BatchIdentity]) -> Verdict {
            let verdict = self.table.check(at_ms, batches);
            if verdict == Verdict::Accept {
                for batch in batches {
                    self.table.apply(at_ms, *batch, Offset(self.end));
                    self.kept.push((at_ms, *batch, Offset(self.end)));
                    self.end += i64::from(batch.record_count);
                }
            }
            self.table.check_invariants();
            verdict
        }

        fn sends(&mut self, steps: &[(i64, BatchIdentity)]) -> Vec<Verdict> {
            steps.iter().map(|(at_ms, batch)| self.send(*at_ms, &[*batch])).collect()
        }
    }

    #[test]
    fn new_batches_are_taken_repetitions_found_and_gaps_refused() {
        let said = Log::new(LIMITS).sends(&[
            (0, batch(7, 0, 0, 10)),
            (1, batch(7, 0, 10, 5)),
            (2, batch(7, 0, 0, 10)),
            (3, batch(7, 0, 10, 5)),
            (4, batch(7, 0, 20, 1)),
            (5, batch(7, 0, 10, 4)),
            (6, batch(7, 0, 15, 1)),
        ]);
        let expected = [
            Verdict::Accept,
            Verdict::Accept,
            duplicate(0, 10, 0),
            duplicate(10, 15, 1),
            out_of_sequence(15, 20),
            out_of_sequence(15, 10),
            Verdict::Accept,
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_batch_older_than_the_window_is_refused_not_stored_again() {
        let mut log = Log::new(LIMITS);
        for sequence in 0..6 {
            assert_eq!(log.send(0, &[batch(7, 0, sequence, 1)]), Verdict::Accept);
        }
        assert_eq!(log.send(0, &[batch(7, 0, 1, 1)]), duplicate(1, 2, 0));
        assert_eq!(log.send(0, &[batch(7, 0, 0, 1)]), out_of_sequence(6, 0));
    }

    #[test]
    fn the_sequence_goes_on_with_zero_after_its_highest_value() {
        let mut log = Log::new(LIMITS);
        log.table.apply(0, batch(7, 0, i32::MAX - 1, 1), Offset(0));
        log.end = 1;
        let said = log.sends(&[
            (0, batch(7, 0, i32::MAX, 3)),
            (0, batch(7, 0, 2, 1)),
            (0, batch(7, 0, i32::MAX, 3)),
        ]);
        assert_eq!(said, [Verdict::Accept, Verdict::Accept, duplicate(1, 4, 0)]);
    }

    #[test]
    fn an_unknown_producer_must_begin_with_zero() {
        let said = Log::new(LIMITS).sends(&[(0, batch(7, 0, 3, 1)), (0, batch(7, 0, 0, 1))]);
        assert_eq!(said, [unknown(7), Verdict::Accept]);
    }

    #[test]
    fn a_new_epoch_begins_with_zero_and_makes_the_old_one_stale() {
        let said = Log::new(LIMITS).sends(&[
            (0, batch(7, 0, 0, 4)),
            (0, batch(7, 1, 4, 1)),
            (0, batch(7, 1, 0, 1)),
            (0, batch(7, 0, 4, 1)),
            (0, batch(7, 1, 0, 1)),
        ]);
        let stale = Verdict::Refused(Refusal::StaleProducer { current: ProducerEpoch(1) });
        assert_eq!(
            said,
            [Verdict::Accept, out_of_sequence(0, 4), Verdict::Accept, stale, duplicate(4, 5, 0)]
        );
    }

    #[test]
    fn at_the_cap_the_longest_silent_producer_goes_and_is_never_taken_for_a_new_one() {
        let mut log = Log::new(LIMITS);
        let first = log.sends(&[(0, batch(1, 0, 0, 1)), (1, batch(2, 0, 0, 1)), (2, batch(3, 0, 0, 1))]);
        assert_eq!(first, [Verdict::Accept; 3]);
        let said = log.sends(&[
            (3, batch(1, 0, 1, 1)),
            (4, batch(4, 0, 0, 1)),
            (5, batch(2, 0, 0, 1)),
            (5, batch(2, 0, 1, 1)),
            (6, batch(1, 0, 1, 1)),
            (7, batch(2, 1, 0, 1)),
        ]);
        let expected =
            [Verdict::Accept, Verdict::Accept, unknown(2), unknown(2), duplicate(3, 4, 3), Verdict::Accept];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_silent_producer_expires_and_is_told_so_even_for_its_first_batch() {
        let mut log = Log::new(LIMITS);
        let said = log.sends(&[
            (0, batch(7, 0, 0, 1)),
            (1000, batch(7, 0, 0, 1)),
            (1001, batch(7, 0, 0, 1)),
            (1001, batch(7, 0, 1, 1)),
            (1001, batch(8, 0, 0, 1)),
            (1002, batch(7, 0, 0, 1)),
        ]);
        let accept = Verdict::Accept;
        assert_eq!(said, [accept, duplicate(0, 1, 0), unknown(7), unknown(7), accept, unknown(7)]);
        assert_eq!(log.table.len(), 1);
    }

    #[test]
    fn several_batches_of_one_append_are_taken_or_found_as_a_whole() {
        let mut log = Log::new(LIMITS);
        let pair = [batch(7, 0, 0, 2), batch(7, 0, 2, 3)];
        assert_eq!(log.send(0, &pair), Verdict::Accept);
        assert_eq!(log.send(1, &pair), duplicate(0, 5, 0));
        assert_eq!(log.send(2, &[pair[1], batch(7, 0, 5, 1)]), out_of_sequence(5, 2));
        assert_eq!(log.send(3, &[batch(7, 0, 5, 1), batch(7, 0, 7, 1)]), out_of_sequence(6, 7));
        assert_eq!(
            log.send(4, &[batch(7, 0, 5, 1), batch(8, 0, 0, 1)]),
            Verdict::Refused(Refusal::MixedProducers)
        );
        let six: Vec<_> = (0..6).map(|i| batch(7, 0, 5 + i, 1)).collect();
        assert_eq!(log.send(5, &six), Verdict::Refused(Refusal::TooManyBatches { limit: 5 }));
        assert_eq!(log.end, 5, "nothing of a refused append was taken");
    }

    #[test]
    fn batches_without_a_producer_are_always_taken_and_not_remembered() {
        let mut log = Log::new(LIMITS);
        let none = batch(-1, -1, -1, 4);
        assert_eq!(log.sends(&[(0, none), (0, none)]), [Verdict::Accept, Verdict::Accept]);
        assert!(log.table.is_empty());
    }

    #[test]
    fn replay_from_any_checkpoint_gives_the_live_table() {
        let mut log = Log::new(LIMITS);
        let mut snapshots = vec![(0, log.table.snapshot())];
        for step in 0..400_i64 {
            let producer = step * 7 % 5;
            let known = log.table.producers.get(&ProducerId(producer + step / 150 * 10));
            let (epoch, sequence) = known.map_or((0, Sequence(0)), |p| (p.epoch.0, p.next_sequence()));
            let came = batch(producer + step / 150 * 10, epoch, sequence.0, (step % 3 + 1) as i32);
            log.send(step * 90, &[came]);
            snapshots.push((log.kept.len(), log.table.snapshot()));
        }
        assert!(log.kept.len() > 50, "only {} batches were taken", log.kept.len());
        for (taken, snapshot) in snapshots {
            let mut table = ProducerTable::restore(LIMITS, &snapshot);
            for (at_ms, batch, base) in &log.kept[taken..] {
                table.apply(*at_ms, *batch, *base);
            }
            assert_eq!(table, log.table);
        }
    }

    #[test]
    fn smaller_limits_forget_the_oldest_first() {
        let mut log = Log::new(ProducerLimits { window: 8, ..LIMITS });
        for sequence in 0..8 {
            log.send(0, &[batch(7, 0, sequence, 1)]);
        }
        log.send(1, &[batch(8, 0, 0, 1)]);
        let mut table = ProducerTable::restore(LIMITS, &log.table.snapshot());
        assert_eq!(table.check(1, &[batch(7, 0, 3, 1)]), duplicate(3, 4, 0));
        assert_eq!(table.check(1, &[batch(7, 0, 2, 1)]), out_of_sequence(8, 2));
        table.set_limits(ProducerLimits { producers_max: 1, ..LIMITS });
        assert_eq!(table.check(1, &[batch(7, 0, 8, 1)]), unknown(7));
    }
}
