//! How an input is changed: bits, bytes, numbers, ranges, and pieces of another input.

use crate::sim::random::Random;

/// Changes to one input, at most.
const CHANGES_MAX: u64 = 6;
/// Numbers at the edges of what fields hold, beside powers of two and the input's own length.
const EDGES: [i64; 12] = [
    0,
    1,
    -1,
    i8::MAX as i64,
    i16::MAX as i64,
    i16::MIN as i64,
    u16::MAX as i64,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    i64::MAX,
    i64::MIN,
];

/// Changes `input` a few times; it is not longer than `bytes_max` afterwards. `other` is where pieces come from.
pub fn mutate(random: &mut Random, input: &mut Vec<u8>, other: &[u8], bytes_max: usize) {
    // One change is the most common: it gets furthest into a decoder.
    let changes = if random.chance(500_000) { 1 } else { random.between(2, CHANGES_MAX) };
    for _ in 0..changes {
        change(random, input, other);
        input.truncate(bytes_max);
    }
}

fn change(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    if input.is_empty() {
        return input.extend_from_slice(other);
    }
    let at = random.index(input.len());
    match random.below(100) {
        0..20 => input[at] ^= 1 << random.below(8),
        20..32 => input[at] = random.word() as u8,
        32..62 => put_number(random, input, at),
        62..70 => {
            let end = some_end(random, at, input.len());
            input.drain(at..end);
        }
        70..76 => {
            let piece = input[at..some_end(random, at, input.len())].to_vec();
            insert(input, random.index(input.len() + 1), &piece);
        }
        76..82 => {
            let piece: Vec<u8> = (0..random.between(1, 16)).map(|_| random.word() as u8).collect();
            insert(input, at, &piece);
        }
        82..86 => {
            let end = some_end(random, at, input.len());
            input[at..end].fill(random.pick(&[0, 0xff]));
        }
        86..90 => input.truncate(at),
        90..96 => {
            // A piece of another input in the same place: a field's value for its own.
            let end = some_end(random, at, input.len()).min(other.len());
            if at < end {
                input[at..end].copy_from_slice(&other[at..end]);
            }
        }
        _ => {
            // The front of this input and the back of another.
            let cut = random.index(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[cut..]);
        }
    }
}

/// Puts an interesting number over the bytes at `at`, or moves the one that is there a little.
fn put_number(random: &mut Random, input: &mut [u8], at: usize) {
    let width = random.pick(&[1, 2, 4, 4, 8]).min(input.len() - at);
    let is_little = random.chance(500_000);
    let field = &mut input[at..at + width];
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(field);
    if !is_little {
        bytes[..width].reverse();
    }
    let found = i64::from_le_bytes(bytes);
    let value = match random.below(4) {
        0 => random.pick(&EDGES),
        1 => (1i64 << random.below(63)).wrapping_add(random.between(0, 2) as i64 - 1),
        2 => found.wrapping_add(random.between(0, 32) as i64 - 16),
        _ => random.between(0, 300) as i64,
    };
    let mut bytes = value.to_le_bytes();
    if !is_little {
        bytes[..width].reverse();
    }
    field.copy_from_slice(&bytes[..width]);
}

fn some_end(random: &mut Random, at: usize, len: usize) -> usize {
    let most = random.pick(&[4, 32, 256, 4096]).min(len - at) as u64;
    at + random.between(1, most) as usize
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    let behind = input.split_off(at);
    input.extend_from_slice(piece);
    input.extend_from_slice(&behind);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_inputs_again_and_never_one_that_is_too_long() {
        let make = |seed| {
            let mut random = Random::new(seed);
            let mut inputs = Vec::new();
            for _ in 0..500 {
                let mut input = b"an input that is changed".to_vec();
                mutate(&mut random, &mut input, b"another one", 40);
                assert!(input.len() <= 40, "{} bytes", input.len());
                inputs.push(input);
            }
            inputs
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }

    #[test]
    fn most_changes_change_something_and_reach_every_byte() {
        let original = [0x55; 16];
        let mut random = Random::new(3);
        let (mut changed, mut reached) = (0, [false; 16]);
        for _ in 0..1000 {
            let mut input = original.to_vec();
            mutate(&mut random, &mut input, &[0xaa; 16], 64);
            changed += usize::from(input != original);
            for (at, byte) in input.iter().take(16).enumerate() {
                reached[at] |= *byte != 0x55;
            }
        }
        assert!(changed > 900, "{changed} of 1000");
        assert_eq!(reached, [true; 16]);
    }
}
