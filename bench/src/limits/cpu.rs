//! Copies and checksums of one core: what every byte costs that a broker touches.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Serialize;
use tidegate_protocol::crc;

/// Bytes of one pass: more than the caches of a core hold, so that memory is measured.
const PASS_BYTES: usize = 64 << 20;

/// MiB in a second, of one core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuRates {
    /// CRC32C, as the broker and the SDK compute it.
    pub crc32c_mib_per_s: f64,
    /// Copies from memory to memory.
    pub memcpy_mib_per_s: f64,
}

/// Measures both, `time` for each.
pub fn measure(time: Duration) -> CpuRates {
    let from = vec![1u8; PASS_BYTES];
    let mut to = vec![0u8; PASS_BYTES];
    CpuRates {
        crc32c_mib_per_s: passes(time, || {
            black_box(crc::of(black_box(&from)));
        }),
        memcpy_mib_per_s: passes(time, || black_box(&mut to).copy_from_slice(black_box(&from))),
    }
}

fn passes(time: Duration, mut pass: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut count = 0u32;
    loop {
        pass();
        count += 1;
        let elapsed = begun.elapsed();
        if elapsed >= time {
            return f64::from(count) * (PASS_BYTES >> 20) as f64 / elapsed.as_secs_f64();
        }
    }
}
