//! The journal: a ring of preallocated, zero-filled files that holds the frames of a shard.
//!
//! A frame lies within one file; one that does not fit behind its predecessor begins at the next file. So a reader has
//! two places to look for the successor of a frame, and the chain of hashes says which is the right one.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader};
use tidegate_protocol::disk::frame::{FrameHeader, JournalIdentity};
use tidegate_protocol::ids::{FrameSequence, Incarnation, JournalId};
use tidegate_reactor::buffer::Buffer;
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Fault, File};

use crate::datadir::journal_file;
use crate::limits::Limits;

/// Checkpoint slots of a journal.
pub(super) const SLOTS: u32 = 3;
const RING_FILES: u64 = 0x0100 << 48;
const SLOT_FILES: u64 = 0x0101 << 48;

/// Where frames lie and which of them are free to be overwritten.
///
/// Invariants: frames in `held` rise; `marked < next`, `flushed < next`; `head` never reaches the first held frame.
#[derive(Debug)]
pub(super) struct Journal {
    identity: JournalIdentity,
    incarnation: Incarnation,
    file_bytes: u64,
    ring_bytes: u64,
    next: FrameSequence,
    last_hash: u64,
    head: u64,
    held: VecDeque<HeldFrame>,
    /// The highest sequence known flushed.
    flushed: FrameSequence,
    /// The highest mark that a frame carries.
    marked: FrameSequence,
    laps: u64,
}

/// A frame that must not be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldFrame {
    pub(super) sequence: FrameSequence,
    pub(super) at: u64,
}

/// Where recovery has found the journal's end.
#[derive(Clone, Debug)]
pub(super) struct JournalEnd {
    /// The last frame.
    pub(super) last: FrameSequence,
    /// Its hash.
    pub(super) hash: u64,
    /// Where the next frame may begin.
    pub(super) head: u64,
    /// Everything that must not be overwritten, oldest first.
    pub(super) held: Vec<HeldFrame>,
    /// M, the highest mark: what lies above it has not been flushed yet for certain.
    pub(super) marked: FrameSequence,
}

/// The path of a file of the ring.
pub(super) fn ring_path(root: &Path, journal: JournalId, index: u32) -> PathBuf {
    journal_file(root, journal, &format!("ring-{index:02}"))
}

/// The path of a checkpoint slot.
pub(super) fn slot_path(root: &Path, journal: JournalId, slot: u32) -> PathBuf {
    journal_file(root, journal, &format!("checkpoint-{slot}"))
}

/// The number by which a file of the ring is open.
pub(super) fn ring_file(index: u32) -> File {
    File(RING_FILES | u64::from(index))
}

/// The number by which a checkpoint slot is open.
pub(super) fn slot_file(slot: u32) -> File {
    File(SLOT_FILES | u64::from(slot))
}

/// Makes an empty journal: its files, all zeros, and a checkpoint of a shard without logs. Flushed when it returns.
///
/// # Errors
/// If the drive fails; files that were made are left for the next try to remove.
pub fn create(
    disk: &mut dyn Disk,
    root: &Path,
    identity: JournalIdentity,
    incarnation: Incarnation,
    limits: &Limits,
) -> Result<(), Fault> {
    for index in 0..limits.ring_files {
        let file = disk.create_zeroed(&ring_path(root, identity.journal, index), limits.ring_file_bytes)?;
        disk.close(file);
    }
    for slot in 0..SLOTS {
        let file =
            disk.create_zeroed(&slot_path(root, identity.journal, slot), limits.checkpoint_slot_bytes)?;
        if slot == 0 {
            let header =
                CheckpointHeader { identity, incarnation, sequence: FrameSequence(0), hash: 0, next_at: 0 };
            let image = checkpoint::encode(&header, &CheckpointBody::default());
            disk.write(file, 0, &Buffer::copy_of(&image))?;
            disk.flush(file)?;
        }
        disk.close(file);
    }
    Ok(())
}

impl Journal {
    pub(super) fn new(
        identity: JournalIdentity,
        incarnation: Incarnation,
        limits: &Limits,
        end: JournalEnd,
    ) -> Journal {
        Journal {
            identity,
            incarnation,
            file_bytes: limits.ring_file_bytes,
            ring_bytes: limits.ring_bytes(),
            next: FrameSequence(end.last.0 + 1),
            last_hash: end.hash,
            head: end.head % limits.ring_bytes(),
            held: end.held.into(),
            flushed: end.marked,
            marked: end.marked,
            laps: 0,
        }
    }

    /// The sequence of the next frame.
    pub(super) fn next_sequence(&self) -> FrameSequence {
        self.next
    }

    /// The sequence of the last frame.
    pub(super) fn last_sequence(&self) -> FrameSequence {
        FrameSequence(self.next.0 - 1)
    }

    pub(super) fn last_hash(&self) -> u64 {
        self.last_hash
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn flushed(&self) -> FrameSequence {
        self.flushed
    }

    pub(super) fn marked(&self) -> FrameSequence {
        self.marked
    }

    /// How often the ring has begun anew.
    pub(super) fn laps(&self) -> u64 {
        self.laps
    }

    /// The oldest frame that must not be overwritten.
    pub(super) fn oldest_held(&self) -> Option<FrameSequence> {
        self.held.front().map(|f| f.sequence)
    }

    /// Frames from that sequence on that must not be overwritten, oldest first.
    pub(super) fn held_from(&self, sequence: FrameSequence) -> impl Iterator<Item = &HeldFrame> {
        let first = self.held.partition_point(|frame| frame.sequence < sequence);
        self.held.range(first..)
    }

    /// Where the file of the ring begins that follows the one of a place.
    pub(super) fn next_file_from(&self, at: u64) -> u64 {
        (at / self.file_bytes + 1) * self.file_bytes % self.ring_bytes
    }

    /// Bytes from a place in the ring forward to the head.
    pub(super) fn bytes_behind_head(&self, at: u64) -> u64 {
        (self.head + self.ring_bytes - at) % self.ring_bytes
    }

    /// Bytes of the ring from the first frame that is not flushed up to the head.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        // A frame that is not flushed is held.
        let newest = self.held.iter().rev().take_while(|frame| frame.sequence > self.flushed);
        newest.last().map_or(0, |first| self.bytes_behind_head(first.at))
    }

    /// Bytes that frames may take before the ring is full.
    pub(super) fn free_bytes(&self) -> u64 {
        let used = self.held.front().map_or(0, |f| self.bytes_behind_head(f.at));
        self.ring_bytes - used
    }

    /// Where a frame of `bytes` would begin; none: the ring is full.
    pub(super) fn place(&self, bytes: usize) -> Option<u64> {
        let left_in_file = self.file_bytes - self.head % self.file_bytes;
        let skip = if bytes as u64 <= left_in_file { 0 } else { left_in_file };
        // Strictly less: a head that reached the oldest frame would look like an empty ring.
        (skip + (bytes as u64) < self.free_bytes()).then_some((self.head + skip) % self.ring_bytes)
    }

    /// The largest frame of at most `bytes_max` that has a place and leaves more than `kept` bytes of the ring behind it,
    /// whatever is lost at the end of a file; 0: not even a block.
    pub(super) fn room(&self, bytes_max: usize, kept: u64) -> usize {
        let block = BLOCK as u64;
        let left_in_file = self.file_bytes - self.head % self.file_bytes;
        let free = self.free_bytes().saturating_sub(block + kept);
        let behind = left_in_file.min(free);
        let at_next = self.file_bytes.min(free.saturating_sub(left_in_file));
        let room = behind.max(at_next).min(bytes_max as u64);
        (room / block * block) as usize
    }

    /// The header of the next frame; lengths and inner CRC are set by its builder.
    pub(super) fn header(&self) -> FrameHeader {
        FrameHeader {
            identity: self.identity,
            incarnation: self.incarnation,
            sequence: self.next,
            previous_hash: self.last_hash,
            mark: self.flushed,
            bytes: 0,
            entries: 0,
            inner_crc: 0,
        }
    }

    /// The frame whose header was [`Journal::header`] has been built and lies at `at`, a place that [`Journal::place`] gave.
    pub(super) fn took(&mut self, at: u64, bytes: usize, hash: u64) {
        if at < self.head || at + bytes as u64 == self.ring_bytes {
            self.laps += 1;
        }
        self.held.push_back(HeldFrame { sequence: self.next, at });
        self.head = (at + bytes as u64) % self.ring_bytes;
        self.next = FrameSequence(self.next.0 + 1);
        self.last_hash = hash;
        self.marked = self.marked.max(self.flushed);
    }

    /// Every frame up to `upto` is flushed.
    pub(super) fn flushed_upto(&mut self, upto: FrameSequence) {
        assert!(self.flushed <= upto && upto < self.next, "flushed {upto:?} of frames below {:?}", self.next);
        self.flushed = upto;
    }

    /// The two kept checkpoints need no frame below `bound` any more.
    pub(super) fn free_below(&mut self, bound: FrameSequence) {
        while self.held.pop_front_if(|f| f.sequence < bound).is_some() {}
    }

    /// The file of the ring that holds a place, and the place within it.
    pub(super) fn file_of(&self, at: u64) -> (File, u64) {
        let (index, within) = self.index_of(at);
        (ring_file(index), within)
    }

    /// Likewise, by the file's number in the ring.
    pub(super) fn index_of(&self, at: u64) -> (u32, u64) {
        ((at / self.file_bytes) as u32, at % self.file_bytes)
    }

    pub(super) fn identity(&self) -> JournalIdentity {
        self.identity
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn check(&self) {
        assert!(self.marked < self.next && self.flushed < self.next);
        assert!(self.head < self.ring_bytes);
        assert!(self.held.iter().zip(self.held.iter().skip(1)).all(|(a, b)| a.sequence < b.sequence));
        assert!(self.held.front().is_none_or(|f| f.at != self.head), "the head has reached the oldest frame");
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::ids::{ClusterId, NodeId};

    use super::*;

    fn journal(ring_files: u32) -> Journal {
        let limits = Limits { ring_file_bytes: 4 * 4096, ring_files, ..Limits::DEFAULT };
        let identity =
            JournalIdentity { cluster: ClusterId([1; 16]), node: NodeId(1), journal: JournalId(1) };
        let end = JournalEnd {
            last: FrameSequence(0),
            hash: 0,
            head: 0,
            held: Vec::new(),
            marked: FrameSequence(0),
        };
        Journal::new(identity, Incarnation(1), &limits, end)
    }

    #[test]
    fn unflushed_bytes_reach_from_the_first_frame_above_the_last_flush_to_the_head() {
        let mut journal = journal(2);
        assert_eq!(journal.unflushed_bytes(), 0);
        // The second begins at the next file: the block left over counts.
        for (at, blocks) in [(0, 3), (4 * 4096, 2)] {
            journal.took(at, blocks * 4096, 7);
        }
        assert_eq!(journal.unflushed_bytes(), 6 * 4096);
        journal.flushed_upto(FrameSequence(1));
        assert_eq!(journal.unflushed_bytes(), 2 * 4096);
        journal.flushed_upto(FrameSequence(2));
        assert_eq!(journal.unflushed_bytes(), 0);
    }

    #[test]
    fn a_frame_that_does_not_fit_its_file_begins_at_the_next_and_a_full_ring_has_no_place() {
        let mut journal = journal(2);
        let mut places = Vec::new();
        for blocks in [3, 2, 2, 1] {
            let at = journal.place(blocks * 4096);
            places.push(at.map(|at| at / 4096));
            if let Some(at) = at {
                journal.took(at, blocks * 4096, 7);
            }
            journal.check();
        }
        assert_eq!(places, [Some(0), Some(4), None, Some(6)]);
        assert_eq!(journal.room(1 << 20, 0), 0, "the head may not reach the oldest frame");
        journal.free_below(FrameSequence(2));
        assert_eq!(journal.place(4 * 4096), None, "the head may not reach the oldest frame");
        assert_eq!(journal.place(3 * 4096), Some(0));
        assert_eq!(journal.room(1 << 20, 0), 3 * 4096);
        // What is lost at the end of the file counts too.
        assert_eq!(journal.room(1 << 20, 2 * 4096), 4096);
        journal.took(0, 3 * 4096, 7);
        assert_eq!(journal.laps(), 1);
    }
}
