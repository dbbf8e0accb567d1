//! Memory that ops carry: [`Buffer`] has one owner and can be filled, [`View`] is shared and read-only.
//!
//! A view never leaves its thread; a buffer may travel. Memory comes from a small pool of the thread that asks and goes back
//! to the pool of the thread that drops it, because a fresh mebibyte costs more in page faults than a copy of it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

/// The unit of direct I/O: memory, length and place on disk are multiples of it.
pub const BLOCK: usize = 4096;

/// Bytes that one thread keeps for reuse at most; what is dropped above it goes back to the system.
pub const POOLED_BYTES_MAX: usize = 64 << 20;

/// Block-aligned memory with one owner; `filled()` bytes from its start hold data.
///
/// The rest holds zeros in a buffer made by [`Buffer::zeroed`] (until it is written), anything in one made by
/// [`Buffer::for_filling`].
pub struct Buffer {
    memory: Memory,
    // filled <= capacity <= memory.len()
    capacity: usize,
    filled: usize,
}

impl Buffer {
    /// Zeroed memory for at least `len` bytes, rounded up to whole blocks; nothing filled.
    pub fn zeroed(len: usize) -> Buffer {
        let mut buf = Buffer::for_filling(len);
        let stale = buf.memory.written.min(buf.capacity);
        buf.memory.bytes_mut()[..stale].fill(0);
        if buf.memory.written <= buf.capacity {
            buf.memory.written = 0;
        }
        buf
    }

    /// Memory for at least `len` bytes, rounded up to whole blocks, that may still hold bytes of an earlier use; nothing
    /// filled. For memory that is filled from its start and never handed on beyond that.
    pub fn for_filling(len: usize) -> Buffer {
        let capacity = len.div_ceil(BLOCK) * BLOCK;
        Buffer { memory: Memory::take(capacity), capacity, filled: 0 }
    }

    /// A buffer that holds a copy of `bytes`, followed by zeros.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buf = Buffer::zeroed(bytes.len());
        buf.extend(bytes);
        buf
    }

    /// Bytes of memory, a multiple of the block.
    pub fn capacity(&self) -> usize {
        self.capacity
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
        assert!(len <= self.capacity, "filled {len} of a buffer of {}", self.capacity);
        self.filled = len;
    }

    /// Appends `bytes` to the filled part.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend(&mut self, bytes: &[u8]) {
        let (at, end) = (self.filled, self.filled + bytes.len());
        assert!(end <= self.capacity, "{end} bytes in a buffer of {}", self.capacity);
        self.memory.bytes_mut()[at..end].copy_from_slice(bytes);
        self.memory.written = self.memory.written.max(end);
        self.filled = end;
    }

    /// The part that is not filled yet.
    pub fn free_mut(&mut self) -> &mut [u8] {
        let at = self.filled;
        &mut self.memory_mut()[at..]
    }

    /// The whole memory, filled or not.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        self.memory.written = self.memory.written.max(self.capacity);
        &mut self.memory.bytes_mut()[..self.capacity]
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
        &self.memory.bytes()[..self.filled]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.written = self.memory.written.max(self.filled);
        &mut self.memory.bytes_mut()[..self.filled]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {})", self.filled, self.capacity)
    }
}

/// A shared, read-only range of a frozen [`Buffer`]. Cloning it copies no bytes and keeps the whole buffer alive.
#[derive(Clone)]
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
        self.buffer.memory.len()
    }

    /// The buffer back for reuse, if this was its last view.
    pub fn into_buffer(self) -> Option<Buffer> {
        Rc::into_inner(self.buffer)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.memory.bytes()[self.range.clone()]
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?} of {})", self.range, self.buffer.capacity)
    }
}

/// An aligned piece of the heap, always initialised; `len` is a size class. Bytes from `written` on are zero.
struct Memory {
    start: NonNull<u8>,
    // Where the allocation begins: less than a block below `start`. (The allocator zeroes memory of larger alignment by
    // writing it all; memory of ordinary alignment comes zeroed from the kernel, untouched.)
    base: NonNull<u8>,
    len: usize,
    written: usize,
}

#[expect(unsafe_code, reason = "memory that has one owner may change its thread")]
// SAFETY: `Memory` owns its allocation alone, like a `Box<[u8]>`; nothing in it refers to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// A pooled piece for `capacity` bytes, or a fresh one.
    fn take(capacity: usize) -> Memory {
        let len = size_class(capacity);
        let pooled = POOL.try_with(|pool| pool.borrow_mut().take(len)).ok().flatten();
        pooled.unwrap_or_else(|| Memory::fresh(len))
    }

    #[expect(unsafe_code, reason = "aligned memory that the kernel has zeroed")]
    fn fresh(len: usize) -> Memory {
        let layout = Memory::layout(len);
        // SAFETY: the layout's size is not zero: it is at least one block.
        let base =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let gap = base.as_ptr().align_offset(BLOCK);
        debug_assert!(gap < BLOCK);
        // SAFETY: gap < BLOCK, and the allocation is a block longer than `len`, so `start` and the `len` bytes after it lie in it.
        let start = unsafe { base.add(gap) };
        Memory { start, base, len, written: 0 }
    }

    fn layout(len: usize) -> Layout {
        const ORDINARY_ALIGN: usize = 16;
        Layout::from_size_align(len + BLOCK, ORDINARY_ALIGN)
            .expect("a buffer is far smaller than the address space")
    }

    fn len(&self) -> usize {
        self.len
    }

    #[expect(unsafe_code, reason = "a slice of memory that this owns")]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` bytes as made in `fresh`, all of them initialised (zeroed at first), owned by
        // `self` and borrowed for as long as it is.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[expect(unsafe_code, reason = "a slice of memory that this owns")]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "the other end of `fresh`, or of the pool")]
    fn drop(&mut self) {
        let piece = Piece { start: self.start, base: self.base, written: self.written };
        let kept = POOL.try_with(|pool| pool.borrow_mut().give(self.len, piece)).unwrap_or(false);
        if !kept {
            // SAFETY: `base` was allocated in `fresh` with this very layout and is freed once, here or by the pool.
            unsafe { dealloc(self.base.as_ptr(), Memory::layout(self.len)) }
        }
    }
}

/// Quarter steps between powers of two of blocks, so that at most a fifth of a piece lies idle.
fn size_class(capacity: usize) -> usize {
    let blocks = capacity.div_ceil(BLOCK).max(1);
    let step = (1 << blocks.ilog2()) / 4;
    blocks.next_multiple_of(step.max(1)) * BLOCK
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { pieces: BTreeMap::new(), bytes: 0 }) };
}

/// What a thread keeps for reuse, by size class. `bytes` is the sum of all pieces and at most [`POOLED_BYTES_MAX`].
struct Pool {
    pieces: BTreeMap<usize, Vec<Piece>>,
    bytes: usize,
}

struct Piece {
    start: NonNull<u8>,
    base: NonNull<u8>,
    written: usize,
}

impl Pool {
    fn take(&mut self, len: usize) -> Option<Memory> {
        let Piece { start, base, written } = self.pieces.get_mut(&len)?.pop()?;
        self.bytes -= len;
        Some(Memory { start, base, len, written })
    }

    fn give(&mut self, len: usize, piece: Piece) -> bool {
        let fits = self.bytes + len <= POOLED_BYTES_MAX;
        if fits {
            self.bytes += len;
            self.pieces.entry(len).or_default().push(piece);
        }
        fits
    }
}

impl Drop for Pool {
    #[expect(unsafe_code, reason = "the pool owns its pieces")]
    fn drop(&mut self) {
        for (len, pieces) in &self.pieces {
            for piece in pieces {
                // SAFETY: the piece came from a `Memory` of class `len`, which gave up its ownership in `give`.
                unsafe { dealloc(piece.base.as_ptr(), Memory::layout(*len)) }
            }
        }
    }
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

    #[test]
    fn memory_is_used_again_and_zeroed_memory_is_zero_whatever_it_held() {
        let mut buf = Buffer::zeroed(3 * BLOCK);
        buf.memory_mut().fill(7);
        let place = buf.memory_mut().as_ptr();
        drop(buf);
        let mut buf = Buffer::zeroed(3 * BLOCK);
        assert_eq!(buf.memory_mut().as_ptr(), place, "the pool gave it back");
        assert!(buf.memory_mut().iter().all(|b| *b == 0));
    }

    #[test]
    fn a_smaller_buffer_in_a_larger_piece_does_not_make_the_rest_look_clean() {
        // Nine and ten blocks share a class.
        let mut buf = Buffer::zeroed(10 * BLOCK);
        buf.memory_mut().fill(7);
        drop(buf);
        drop(Buffer::zeroed(9 * BLOCK));
        assert!(Buffer::zeroed(10 * BLOCK).memory_mut().iter().all(|b| *b == 0));
    }

    #[test]
    fn a_buffer_may_be_dropped_on_another_thread() {
        let mut buf = Buffer::copy_of(b"abc");
        buf.extend(b"d");
        let len = std::thread::spawn(move || buf.len()).join().unwrap();
        assert_eq!(len, 4);
    }

    #[test]
    fn classes_hold_what_is_asked_and_waste_at_most_a_fifth() {
        for blocks in 1..3000 {
            let class = size_class(blocks * BLOCK) / BLOCK;
            assert!(class >= blocks && (class - blocks) * 5 <= class, "{blocks} -> {class}");
        }
    }
}
