//! Batches that have a place in the order, but lie in no cycle yet.
//!
//! Large ones stay in the buffer that they were received in. Small ones are copied together, so that 200 bytes do not pin a
//! receive buffer.

use std::collections::VecDeque;

use tidegate_logic::producer::BatchIdentity;
use tidegate_protocol::disk::entry::ProducerNote;
use tidegate_protocol::ids::{Offset, ProducerId};
use tidegate_reactor::buffer::View;

use super::answer::IncomingBatch;

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
