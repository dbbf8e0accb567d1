//! The layouts of the data directory, all little-endian, all in whole blocks of [`BLOCK`] bytes.
//!
//! Reading order: [`superblock`], [`frame`] and its [`entry`]s, [`run`] and [`run_scan`], [`checkpoint`]. What frames and runs hold are
//! [extents](crate::extent).

pub mod checkpoint;
pub mod entry;
mod error;
pub mod frame;
pub(crate) mod header;
pub mod run;
pub mod run_scan;
pub mod superblock;

pub use error::{DiskError, DiskErrorKind, FORMAT};

/// The unit of every frame, run, header and position of format 1, in bytes.
pub const BLOCK: usize = 4096;

/// `bytes` rounded up to whole blocks.
pub const fn whole_blocks(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK) * BLOCK
}
