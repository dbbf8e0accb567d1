//! How much memory code asks for. The counts are those of the process, so whoever measures must be the only thread at work;
//! they are kept only where a binary has [`stats_alloc::INSTRUMENTED_SYSTEM`] as its global allocator.

use stats_alloc::INSTRUMENTED_SYSTEM;

/// What `work` returns, and the bytes that it has asked for in all, freed or not.
pub fn asked<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = INSTRUMENTED_SYSTEM.stats().bytes_allocated;
    let result = work();
    (result, INSTRUMENTED_SYSTEM.stats().bytes_allocated - before)
}

/// What `work` returns.
///
/// # Panics
/// If it has asked for more than `bound` bytes in all.
pub fn bounded<T>(what: &str, bound: usize, work: impl FnOnce() -> T) -> T {
    let (result, bytes) = asked(work);
    assert!(bytes <= bound, "{what} asked for {bytes} bytes of memory, at most {bound} are allowed");
    result
}

/// Bytes in use now.
pub fn in_use() -> usize {
    let stats = INSTRUMENTED_SYSTEM.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// Whether this binary counts at all: without, every bound would be kept.
pub fn counts() -> bool {
    asked(|| std::hint::black_box(vec![0u8; 64])).1 >= 64
}
