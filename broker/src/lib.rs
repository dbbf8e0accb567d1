//! The broker: shards that own partitions and connections, and the logs under them.

pub mod datadir;
pub mod limits;
pub mod log;
pub mod mutants;
pub mod shard;

#[cfg(test)]
mod testdisk;
