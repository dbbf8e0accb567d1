//! Every byte layout that Tidegate promises to keep: lay out, read and check bytes, nothing else.
//!
//! Reading order: [`ids`] (what the numbers are), [`code`] (cursors), [`frame`] (how a stream is cut), [`batch`] (the
//! record batch, the same bytes everywhere), [`partitioner`], [`api`] (one file per request), [`error_code`], then
//! [`internal`] (the broker's own topics) and [`disk`].

pub mod api;
pub mod batch;
pub mod code;
pub mod crc;
pub mod disk;
pub mod error_code;
pub mod extent;
pub mod frame;
pub mod ids;
pub mod internal;
pub mod partitioner;
