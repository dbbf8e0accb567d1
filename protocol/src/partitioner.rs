//! Which partition a key belongs to, so that Kafka's clients and ours agree.

use crate::ids::PartitionId;

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

/// The partition of a key among `partitions`, as Kafka's default partitioner chooses it.
///
/// # Panics
/// If `partitions` is not at least 1.
pub fn of_key(key: &[u8], partitions: i32) -> PartitionId {
    assert!(partitions >= 1, "a topic has at least one partition, not {partitions}");
    let positive = (murmur2(key) & 0x7fff_ffff) as i32;
    PartitionId(positive % partitions)
}

/// Murmur2 of 32 bits, with the seed that Kafka uses. Source: Austin Appleby's MurmurHash2.
pub fn murmur2(data: &[u8]) -> u32 {
    let mut hash = SEED ^ data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes(chunk.try_into().expect("chunks of four"));
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let tail = chunks.remainder();
    if !tail.is_empty() {
        for (i, &byte) in tail.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafka() {
        // Values of Apache Kafka's own test of its murmur2.
        let known: [(&[u8], i32); 8] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
            (b"\x00\xff", -190_448_095),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key) as i32, hash, "{key:?}");
        }
        assert_eq!(of_key(b"foobar", 10), PartitionId(((-790_332_482) & 0x7fff_ffff) % 10));
    }
}
