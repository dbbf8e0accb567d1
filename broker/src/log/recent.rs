//! The tail of the logs in memory: recent extents as shared views of the buffers that went to disk.
//!
//! A view keeps its whole buffer alive, so memory is charged by buffer: 200 bytes that stay of a large frame cost the
//! frame, until they are carried or settled.

use std::collections::{BTreeMap, VecDeque};

use tidegate_protocol::extent::{EXTENT_HEADER_BYTES, ExtentHeader};
use tidegate_protocol::ids::{FrameSequence, Offset};
use tidegate_reactor::buffer::View;

use super::answer::{Found, ReadBatches};
use super::reader::{More, Time, first_at, may_hold, take_batches};
use super::state::LogIndex;

/// A buffer that views of the tail or writes under way keep alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BufferId(u64);

/// Memory of the shard's logs, charged by buffer.
///
/// Invariant: `used` is the sum of all held buffers.
#[derive(Debug, Default)]
pub(super) struct Memory {
    used: usize,
    held: BTreeMap<BufferId, Held>,
    next: u64,
    /// What may leave memory once its cycle is flushed, oldest first.
    settled: VecDeque<Settled>,
}

#[derive(Debug)]
struct Held {
    bytes: usize,
    holders: u32,
}

/// A log's records below `upto` lie in data files once `cycle` is flushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) log: LogIndex,
    pub(super) upto: Offset,
    pub(super) cycle: FrameSequence,
}

impl Memory {
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Charges a new buffer to its first holder.
    pub(super) fn charge(&mut self, bytes: usize) -> BufferId {
        let id = BufferId(self.next);
        self.next += 1;
        self.used += bytes;
        self.held.insert(id, Held { bytes, holders: 1 });
        id
    }

    pub(super) fn hold(&mut self, id: BufferId) {
        self.held.get_mut(&id).expect("a holder shares it").holders += 1;
    }

    /// One holder less: an account, the views themselves keep the bytes alive.
    pub(super) fn release(&mut self, id: BufferId) {
        let held = self.held.get_mut(&id).expect("every holder releases once");
        held.holders -= 1;
        if held.holders == 0 {
            self.used -= held.bytes;
            self.held.remove(&id);
        }
    }

    pub(super) fn settled(&mut self, settled: Settled) {
        self.settled.push_back(settled);
    }

    /// The oldest that may leave, if its cycle is flushed.
    pub(super) fn next_evictable(&mut self, flushed: FrameSequence) -> Option<Settled> {
        self.settled.pop_front_if(|s| s.cycle <= flushed)
    }

    pub(super) fn check(&self) {
        assert_eq!(self.used, self.held.values().map(|h| h.bytes).sum::<usize>());
    }
}

/// An extent in memory.
#[derive(Clone, Debug)]
pub(super) struct TailExtent {
    pub(super) header: ExtentHeader,
    /// The whole extent, header first.
    pub(super) view: View,
    pub(super) buffer: BufferId,
}

/// The newest extents of one log, contiguous, by offset.
#[derive(Debug, Default)]
pub(super) struct Tail {
    extents: VecDeque<TailExtent>,
}

impl Tail {
    /// Adds the next extent; its holder is the tail from now on.
    pub(super) fn push(&mut self, extent: TailExtent, memory: &mut Memory) {
        memory.hold(extent.buffer);
        self.extents.push_back(extent);
    }

    /// The same extent in another buffer.
    pub(super) fn replace(&mut self, base: Offset, view: View, buffer: BufferId, memory: &mut Memory) {
        let index = self.extents.partition_point(|e| e.header.base < base);
        let extent = &mut self.extents[index];
        assert_eq!(extent.header.base, base, "small extents are in the tail");
        memory.hold(buffer);
        memory.release(extent.buffer);
        (extent.view, extent.buffer) = (view, buffer);
    }

    /// The bytes of the extent that begins at `base`.
    pub(super) fn extent(&self, base: Offset) -> Option<&TailExtent> {
        let index = self.extents.partition_point(|e| e.header.base < base);
        self.extents.get(index).filter(|e| e.header.base == base)
    }

    /// The extents from the one that begins at `base` on.
    pub(super) fn extents_from(&self, base: Offset) -> impl Iterator<Item = &TailExtent> {
        let index = self.extents.partition_point(|e| e.header.base < base);
        self.extents.range(index..)
    }

    /// Where memory begins; none: it holds nothing.
    pub(super) fn base(&self) -> Option<Offset> {
        self.extents.front().map(|e| e.header.base)
    }

    /// The first record from `from` on and below `upto` with that time or a later one.
    pub(super) fn find(&self, from: Offset, upto: Offset, time: Time) -> Option<Found> {
        let first = self.extents.partition_point(|e| e.header.end <= from);
        let mut extents = self.extents.range(first..).take_while(|e| e.header.base < upto);
        let found = extents.find_map(|extent| {
            let payload = &extent.view[EXTENT_HEADER_BYTES..];
            may_hold(&extent.header, time, from)
                .then(|| first_at(&extent.header, payload, time, from))
                .flatten()
        });
        found.filter(|found| found.offset < upto)
    }

    /// Forgets all extents that end at or below `upto`.
    pub(super) fn drop_below(&mut self, upto: Offset, memory: &mut Memory) {
        while let Some(gone) = self.extents.pop_front_if(|e| e.header.end <= upto) {
            memory.release(gone.buffer);
        }
    }

    /// Reads from the extent that holds `from`, which must be in memory. None: nothing of it is below `upto`.
    pub(super) fn read(&self, from: Offset, upto: Offset, bytes_max: usize) -> Option<ReadBatches> {
        let first = self.extents.partition_point(|e| e.header.end <= from);
        let mut found = None;
        for extent in self.extents.range(first..) {
            let payload = extent.view.slice(EXTENT_HEADER_BYTES..extent.view.len());
            let more = take_batches(&extent.header, &payload, from, upto, bytes_max, &mut found);
            if more.expect("batches are parsed before they are appended") == More::No {
                break;
            }
        }
        found
    }

    pub(super) fn check(&self, small_from: Offset, placed: Offset) {
        let mut next = self.extents.front().map_or(placed, |e| e.header.base);
        assert!(next <= small_from, "the tail holds every small extent");
        for extent in &self.extents {
            assert_eq!(extent.header.base, next, "the tail is contiguous");
            next = extent.header.end;
        }
        assert_eq!(next, placed, "the tail ends where the log does");
    }
}
