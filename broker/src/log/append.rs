//! A batch gets its place in the order of its log, and waits for the next cycle.
//!
//! Large batches stay in the buffer that they were received in. Small ones are copied side by side, so that 200 bytes do not
//! pin a receive buffer.

use std::collections::VecDeque;

use tidegate_logic::producer::{BatchIdentity, Verdict};
use tidegate_protocol::disk::entry::ProducerNote;
use tidegate_protocol::ids::{Offset, ProducerId, TopicPartition};
use tidegate_reactor::buffer::View;
use tidegate_reactor::op::Now;

use super::answer::{AppendRefused, Appended, IncomingBatch};
use super::state::LogIndex;
use super::{Condition, Logs};
use crate::mutants::{self, Mutant};

impl Logs {
    /// Gives the batches their place behind all others of the log.
    ///
    /// # Errors
    /// If they may not or cannot be appended; nothing was then.
    pub fn append(
        &mut self,
        now: Now,
        log: TopicPartition,
        batches: &[IncomingBatch],
    ) -> Result<Appended, AppendRefused> {
        let appended = self.append_checked(now, log, batches);
        self.counts.appends_refused += u64::from(appended.is_err());
        appended
    }

    fn append_checked(
        &mut self,
        now: Now,
        id: TopicPartition,
        batches: &[IncomingBatch],
    ) -> Result<Appended, AppendRefused> {
        assert!(!batches.is_empty(), "an append has batches");
        let index = *self.by_id.get(&id).ok_or(AppendRefused::UnknownLog)?;
        self.check_condition(index)?;
        self.identities.clear();
        self.identities.extend(batches.iter().map(identity_of));
        let log = self.log(index);
        // What is pending of a log becomes one extent, with one append time.
        let append_time_ms =
            if log.pending.is_empty() { log.append_time_ms.max(now.wall_ms) } else { log.append_time_ms };
        match log.producers.check(append_time_ms, &self.identities) {
            Verdict::Accept => {}
            Verdict::Duplicate { base, end, append_time_ms } => {
                if mutants::on(Mutant::DuplicateAtNewOffset) {
                    let (base, end) = (Offset(log.appended.0 - (end.0 - base.0)), log.appended);
                    return Ok(Appended { base, end, append_time_ms, duplicate: true });
                }
                self.counts.duplicates += 1;
                return Ok(Appended { base, end, append_time_ms, duplicate: true });
            }
            Verdict::Refused(_) if mutants::on(Mutant::GapAccepted) => {}
            Verdict::Refused(refusal) => return Err(AppendRefused::Producer(refusal)),
        }
        let largest = batches.iter().map(|b| b.view.len()).max().unwrap_or(0);
        assert!(
            largest <= self.limits.batch_bytes_max,
            "a batch of {largest} bytes: the shard bounds batches"
        );
        let bytes = batches.iter().map(|b| b.view.len()).sum();
        self.check_room(id, bytes)?;
        self.check_producers(index)?;
        Ok(self.take(index, append_time_ms, batches))
    }

    /// A shard at its cap takes no new producer, so that its state fits a checkpoint.
    fn check_producers(&self, index: LogIndex) -> Result<(), AppendRefused> {
        let (producer, log) = (self.identities[0].producer, self.log(index));
        let is_new = producer != ProducerId::NONE && !log.producers.knows(producer);
        let (limit, current) = (self.limits.batches_remembered_max as usize, self.batches_reserved);
        if is_new && current + log.window_reserved() > limit {
            return Err(AppendRefused::TooManyProducers { limit, current });
        }
        Ok(())
    }

    fn check_condition(&self, index: LogIndex) -> Result<(), AppendRefused> {
        match &self.condition {
            Condition::Serving => Ok(()),
            Condition::Stopping => Err(AppendRefused::ReadOnly { cause: "the broker is stopping".into() }),
            Condition::ReadOnly { cause, .. } => Err(AppendRefused::ReadOnly { cause: cause.clone() }),
            Condition::Failed { fault, .. } => {
                Err(AppendRefused::Unknown { from: self.log(index).durable, fault: fault.clone() })
            }
        }
    }

    /// The batches are accepted: they get their offsets and wait for the next cycle.
    fn take(&mut self, index: LogIndex, append_time_ms: i64, batches: &[IncomingBatch]) -> Appended {
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a named log exists");
        let base = log.appended;
        if log.pending.is_empty() {
            self.dirty.push_back(index);
        }
        let reserved = log.batches_reserved();
        for (batch, identity) in batches.iter().zip(&self.identities) {
            let len = batch.view.len();
            log.pending.push(Pending {
                bytes: self.staging.keep(batch),
                len,
                base: log.appended,
                crc: batch.header.crc,
                max_timestamp_ms: batch.header.max_timestamp_ms,
                append_time_ms,
                identity: *identity,
            });
            log.pending_bytes += len;
            log.append(append_time_ms, *identity, log.appended);
        }
        self.batches_reserved = self.batches_reserved + log.batches_reserved() - reserved;
        Appended { base, end: log.appended, append_time_ms, duplicate: false }
    }
}

/// A batch that waits for a cycle.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) bytes: PendingBytes,
    pub(super) len: usize,
    pub(super) base: Offset,
    pub(super) crc: u32,
    pub(super) max_timestamp_ms: i64,
    pub(super) append_time_ms: i64,
    pub(super) identity: BatchIdentity,
}

/// Where its bytes are.
#[derive(Debug)]
pub(super) enum PendingBytes {
    Received(View),
    Staged { chunk: u64, at: usize },
}

impl Pending {
    pub(super) fn end(&self) -> Offset {
        self.base.plus(i64::from(self.identity.record_count))
    }

    /// What a run mark keeps of it.
    pub(super) fn note(&self) -> Option<ProducerNote> {
        let identity = self.identity;
        (identity.producer != ProducerId::NONE).then_some(ProducerNote {
            producer: identity.producer,
            epoch: identity.epoch,
            base_sequence: identity.base_sequence,
            record_count: identity.record_count,
            base: self.base,
            append_time_ms: self.append_time_ms,
        })
    }
}

/// The memory of all pending batches.
///
/// Invariant: a chunk leaves when the last batch in it does; chunks are in the order in which they were begun.
#[derive(Debug, Default)]
pub(super) struct Staging {
    chunks: VecDeque<Chunk>,
    first: u64,
    spare: Vec<u8>,
    /// Bytes of pending batches that lie in receive buffers.
    received: usize,
    /// Bytes of all chunks.
    staged: usize,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    live: u32,
}

impl Staging {
    /// Bytes of memory that pending batches take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.received + self.staged
    }

    /// Takes the bytes of a batch in.
    pub(super) fn keep(&mut self, batch: &IncomingBatch) -> PendingBytes {
        const STAGED_BYTES_MAX: usize = 4096;
        const CHUNK_BYTES: usize = 256 << 10;
        let len = batch.view.len();
        if len > STAGED_BYTES_MAX {
            self.received += len;
            return PendingBytes::Received(batch.view.clone());
        }
        if self.chunks.back().is_none_or(|chunk| chunk.bytes.len() + len > CHUNK_BYTES) {
            let bytes = std::mem::take(&mut self.spare);
            self.chunks.push_back(Chunk { bytes, live: 0 });
        }
        let number = self.first + self.chunks.len() as u64 - 1;
        let chunk = self.chunks.back_mut().expect("one was just made sure of");
        chunk.live += 1;
        let at = chunk.bytes.len();
        chunk.bytes.extend_from_slice(&batch.view);
        self.staged += len;
        PendingBytes::Staged { chunk: number, at }
    }

    /// The bytes of a pending batch.
    pub(super) fn bytes<'a>(&'a self, pending: &'a Pending) -> &'a [u8] {
        match &pending.bytes {
            PendingBytes::Received(view) => view,
            PendingBytes::Staged { chunk, at } => {
                let chunk = &self.chunks[(chunk - self.first) as usize];
                &chunk.bytes[*at..*at + pending.len]
            }
        }
    }

    /// The batch lies in a cycle, or its log is gone.
    pub(super) fn release(&mut self, pending: &Pending) {
        match &pending.bytes {
            PendingBytes::Received(_) => self.received -= pending.len,
            PendingBytes::Staged { chunk, .. } => {
                self.chunks[(chunk - self.first) as usize].live -= 1;
                while let Some(mut gone) = self.chunks.pop_front_if(|chunk| chunk.live == 0) {
                    self.first += 1;
                    self.staged -= gone.bytes.len();
                    gone.bytes.clear();
                    self.spare = gone.bytes;
                }
            }
        }
    }
}

/// What the header of a batch says about its producer.
fn identity_of(batch: &IncomingBatch) -> BatchIdentity {
    BatchIdentity {
        producer: batch.header.producer_id,
        epoch: batch.header.producer_epoch,
        base_sequence: batch.header.base_sequence,
        record_count: batch.header.records_count,
    }
}
