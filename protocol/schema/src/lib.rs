//! Code generated from `wire.fbs`; see the README of this package. Nothing here is written by hand but this
//! list of modules.
#![allow(clippy::all, missing_docs, unreachable_pub, unused_qualifications, mismatched_lifetime_syntaxes)]

mod wire_generated;

pub use wire_generated::wire;
