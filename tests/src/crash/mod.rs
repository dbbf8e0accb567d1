//! Crash states on real filesystems, without a device mapper: a recorder under a filesystem under the real broker.
//!
//! Reading order: [`recorder`] (what the drive was told), [`image`] (what it may hold after a power cut), then the
//! harness that runs the broker on the one and recovers it from the other.

pub mod image;
pub mod recorder;
