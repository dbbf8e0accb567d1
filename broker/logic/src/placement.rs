//! Which shard owns a log: a pure function of the log and the number of shards, the same on every node and for ever.

use tidegate_protocol::ids::{PartitionId, ShardId, TopicId, TopicPartition};

/// Partitions of the internal topic that holds the offsets of named consumers.
pub const OFFSETS_PARTITIONS: i32 = 8;

/// The shard that owns `log` on a node of `shard_count` shards.
///
/// The partitions of one topic go round the shards, beginning at a place that depends on the topic; so every topic is
/// spread evenly, and many topics of one partition are too. The metadata log is always on shard 0.
///
/// # Panics
/// If `shard_count` is 0.
pub fn shard_of(log: TopicPartition, shard_count: u16) -> ShardId {
    if log.topic == TopicId::METADATA {
        return ShardId(0);
    }
    let begin = hash(&log.topic.0) % u64::from(shard_count);
    let step = u64::from(log.partition.0.unsigned_abs()) % u64::from(shard_count);
    let shard = (begin + step) % u64::from(shard_count);
    ShardId(u16::try_from(shard).expect("a remainder of a u16 fits"))
}

/// The partition of the internal offsets topic that holds what the consumer `name` has stored.
pub fn offsets_partition(name: &str) -> TopicPartition {
    let partition = hash(name.as_bytes()) % OFFSETS_PARTITIONS.unsigned_abs() as u64;
    let partition = PartitionId(i32::try_from(partition).expect("below the number of partitions"));
    TopicPartition { topic: TopicId::OFFSETS, partition }
}

/// FNV-1a with 64 bits, its halves folded: what places depend on must never change, so it is ours.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash >> 32) ^ (hash & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(topic: u128, partition: i32) -> TopicPartition {
        TopicPartition { topic: TopicId(topic.to_be_bytes()), partition: PartitionId(partition) }
    }

    #[test]
    fn places_are_those_that_they_have_always_been() {
        let places: Vec<u16> = (0..6).map(|p| shard_of(log(7, p), 4).0).collect();
        assert_eq!(places, [1, 2, 3, 0, 1, 2]);
        let metadata = TopicPartition { topic: TopicId::METADATA, partition: PartitionId(0) };
        assert!((1..100).all(|shards| shard_of(metadata, shards) == ShardId(0)));
        let names = ["", "a", "billing", "telemetry-eu"].map(|name| offsets_partition(name).partition.0);
        assert_eq!(names, [1, 0, 6, 6]);
    }

    #[test]
    fn topics_of_one_partition_spread_over_all_shards() {
        let mut counts = [0; 8];
        for topic in 0..8000 {
            counts[usize::from(shard_of(log(topic * 0x9e37_79b9_7f4a_7c15, 0), 8).0)] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
