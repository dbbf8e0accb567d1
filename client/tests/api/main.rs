//! The SDK against a broker in memory that does on purpose what a real one does rarely.

// A test fails at the first thing that fails, also in what its functions share.
#![allow(clippy::unwrap_used)]

mod admin;
mod consume;
mod fake;
mod produce;
