//! Memory that ops carry: [`Buffer`] has one owner and can be filled, [`View`] is shared and read-only.
//!
//! Neither leaves its thread; across shards owned bytes travel.

use std::ops::{Deref, Range};
use std::rc::Rc;

/// The unit of direct I/O: memory, length and place on disk are multiples of it.
pub const BLOCK: usize = 4096;

/// Block-aligned memory with one owner; `filled()` bytes from its start hold data.
#[derive(Debug)]
pub struct Buffer {
    // Whole blocks, so that the memory is aligned by its type.
    blocks: Box<[Block]>,
    filled: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

impl Buffer {
    /// Zeroed memory for at least `len` bytes, rounded up to whole blocks; nothing filled.
    pub fn zeroed(len: usize) -> Buffer {
        let blocks = len.div_ceil(BLOCK);
        Buffer { blocks: vec![Block([0; BLOCK]); blocks].into_boxed_slice(), filled: 0 }
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buf = Buffer::zeroed(bytes.len());
        buf.extend(bytes);
        buf
    }

    /// Bytes of memory, a multiple of the block.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// Bytes that hold data.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Declares that `len` bytes from the start hold data.
    ///
    /// # Panics
    /// If `len` is above the capacity.
    pub fn set_filled(&mut self, len: usize) {
        assert!(len <= self.capacity(), "filled {len} of a buffer of {}", self.capacity());
        self.filled = len;
    }

    /// Appends `bytes` to the filled part.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        assert!(end <= self.capacity(), "{end} bytes in a buffer of {}", self.capacity());
        let at = self.filled;
        self.memory_mut()[at..end].copy_from_slice(bytes);
        self.filled = end;
    }

    /// The part that is not filled yet.
    pub fn free_mut(&mut self) -> &mut [u8] {
        let at = self.filled;
        &mut self.memory_mut()[at..]
    }

    /// The whole memory, filled or not.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        as_bytes_mut(&mut self.blocks)
    }

    /// The filled part as a shared view; the buffer cannot be changed any more.
    pub fn freeze(self) -> View {
        let range = 0..self.filled;
        View { buffer: Rc::new(self), range }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &as_bytes(&self.blocks)[..self.filled]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let filled = self.filled;
        &mut self.memory_mut()[..filled]
    }
}

/// A shared, read-only range of a frozen [`Buffer`]. Cloning it copies no bytes and keeps the whole buffer alive.
#[derive(Clone, Debug)]
pub struct View {
    buffer: Rc<Buffer>,
    range: Range<usize>,
}

impl View {
    /// A view of a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> View {
        Buffer::copy_of(bytes).freeze()
    }

    /// A part of this view; `range` counts from its start.
    ///
    /// # Panics
    /// If the range is not inside the view.
    pub fn slice(&self, range: Range<usize>) -> View {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} of {:?}", self.range);
        let start = self.range.start + range.start;
        View { buffer: Rc::clone(&self.buffer), range: start..start + range.len() }
    }

    /// Bytes of memory that this view keeps alive, shared with every other view of the same buffer.
    pub fn pinned(&self) -> usize {
        self.buffer.capacity()
    }

    /// The buffer back for reuse, if this was its last view.
    pub fn into_buffer(self) -> Option<Buffer> {
        Rc::into_inner(self.buffer)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &as_bytes(&self.buffer.blocks)[self.range.clone()]
    }
}

#[expect(unsafe_code, reason = "a slice of blocks is a slice of bytes")]
fn as_bytes(blocks: &[Block]) -> &[u8] {
    // SAFETY: `Block` is `repr(C)` around `[u8; 4096]` with the same size (its alignment equals its size), so the
    // memory is `len * 4096` initialised bytes, borrowed for as long as `blocks` is.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * BLOCK) }
}

#[expect(unsafe_code, reason = "a slice of blocks is a slice of bytes")]
fn as_bytes_mut(blocks: &mut [Block]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; the borrow is exclusive, and every bit pattern is a valid `u8`.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), blocks.len() * BLOCK) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_views_share_it() {
        let mut buf = Buffer::zeroed(5000);
        assert_eq!(buf.capacity(), 8192);
        buf.extend(b"abcdef");
        let view = buf.freeze();
        assert_eq!(view.as_ptr() as usize % BLOCK, 0);
        let part = view.slice(2..4);
        assert_eq!(&*part, b"cd");
        assert!(view.into_buffer().is_none(), "a second view lives");
        assert_eq!(part.into_buffer().map(|b| b.filled()), Some(6));
    }
}
