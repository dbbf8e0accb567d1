//! The broker: shards that own partitions and connections, and the logs under them.

pub mod log;
pub mod shard;
