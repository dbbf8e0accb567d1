//! Values and keys of records: as compressible as asked for, and never the same twice in a row.

use crate::workload::Workload;

/// Bytes of the time that a stamped value begins with.
pub(crate) const STAMP_BYTES: usize = 8;

/// Random bytes from which values are cut: far more than a codec looks back.
const POOL_BYTES: usize = 1 << 20;

/// Makes values and keys.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pool: Vec<u8>,
    at: usize,
    random_bytes: usize,
    value: Vec<u8>,
    keys: u64,
    key: [u8; 8],
    state: u64,
}

impl Payload {
    pub(crate) fn new(workload: &Workload, seed: u64) -> Payload {
        let compressible = (workload.record_bytes as f64 * workload.compressible) as usize;
        let random_bytes = workload.record_bytes - compressible.min(workload.record_bytes);
        let pool = random(POOL_BYTES + random_bytes, seed);
        let value = vec![b'.'; workload.record_bytes];
        Payload { pool, at: 0, random_bytes, value, keys: workload.keys, key: [0; 8], state: seed | 1 }
    }

    /// The next value, beginning with `stamp_ns` where it is long enough, and its key.
    pub(crate) fn next(&mut self, stamp_ns: u64) -> (&[u8], Option<&[u8]>) {
        self.value[..self.random_bytes].copy_from_slice(&self.pool[self.at..self.at + self.random_bytes]);
        // A step that is prime to the pool's length comes by every offset.
        self.at = (self.at + self.random_bytes.max(1) + 7919) % POOL_BYTES;
        if self.value.len() >= STAMP_BYTES {
            self.value[..STAMP_BYTES].copy_from_slice(&stamp_ns.to_ne_bytes());
        }
        if self.keys == 0 {
            return (&self.value, None);
        }
        self.state = step(self.state);
        self.key = (self.state % self.keys).to_ne_bytes();
        (&self.value, Some(&self.key))
    }
}

/// The time that a stamped value begins with; none if it is too short for one.
pub(crate) fn stamp_of(value: &[u8]) -> Option<u64> {
    value.first_chunk::<STAMP_BYTES>().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Bytes that do not compress.
pub(crate) fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        state = step(state);
        chunk.copy_from_slice(&state.to_ne_bytes()[..chunk.len()]);
    }
    bytes
}

/// Marsaglia's xorshift of 64 bits; never 0 from anything but 0.
pub(crate) fn step(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}
