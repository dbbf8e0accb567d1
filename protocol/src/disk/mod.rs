//! The layouts of the data directory, all little-endian, all in whole blocks of [`BLOCK`] bytes.

/// The unit of every frame, run, header and position of format 1, in bytes.
pub const BLOCK: usize = 4096;

pub mod superblock;
