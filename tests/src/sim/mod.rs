//! The simulator: the third reactor, with a seeded drive, network and clock.
//!
//! The code of the broker is the very code that ships; everything around it follows from one number, so that a run that
//! fails can be repeated. Read in this order: [`random`], [`trace`] and [`clock`], then [`disk`] (what survives; [`coverage`]: what was tried), [`blocking`]
//! (the same drive for recovery), [`net`], [`reactor`] (the loop). [`run`] is a seed from beginning to end, [`summary`] many of them. Of the logs of one shard:
//! [`machine`] (how they are built), [`plan`] and [`workload`] (what is asked of them), [`truth`] (what must hold). Of whole shards behind
//! the wire: [`scene`] and [`claims`] (what clients know), [`session`], [`producer`], [`reader`], [`admin`], and
//! [`shards`] that puts them together. [`command`] is the
//! command line.

pub mod admin;
pub mod blocking;
pub mod claims;
pub mod clock;
pub mod command;
pub mod coverage;
pub mod disk;
pub mod machine;
pub mod net;
pub mod plan;
pub mod producer;
pub mod random;
pub mod reactor;
pub mod reader;
pub mod run;
pub mod scene;
pub mod session;
pub mod shards;
pub mod summary;
pub mod trace;
pub mod truth;
pub mod workload;
