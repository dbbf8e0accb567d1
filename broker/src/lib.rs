//! The broker: shards that own partitions and connections, and the logs under them.

pub mod arguments;
pub mod config;
pub mod datadir;
pub mod limits;
pub mod log;
pub mod mutants;
pub mod problem;
pub mod shard;
pub mod site;
pub mod start;
pub mod unit;

#[cfg(test)]
mod testdisk;
