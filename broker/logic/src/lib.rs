//! The rules of Tidegate: pure decisions without I/O, clock, randomness or bytes on disk.
//!
//! Reading order: [`producer`] (is a batch new, a repetition or a gap), [`placement`] (which shard owns a log),
//! [`credit`] (who may send how many bytes), [`topics`] (the table of topics and its rules), [`offsets`] (where named
//! consumers continue). Each is a state machine whose test compares everything it says.

pub mod credit;
pub mod offsets;
pub mod placement;
pub mod producer;
pub mod topics;
