//! Fuzzing: for every decoder, inputs that are nearly right, and what must hold whatever they are.
//!
//! Inputs come from a stored corpus (`tests/corpus/`), changed by numbers that follow from a seed. Read in this order:
//! [`mutate`] (how an input is changed), [`seal`] (how checksums are made right again), [`measure`] (memory), then what is
//! checked: [`wire`], [`batch`], [`disk`], [`connection`] (a whole broker); [`corpus`], [`run`] (the loop), [`command`].

pub mod batch;
pub mod command;
pub mod connection;
pub mod corpus;
pub mod disk;
pub mod measure;
pub mod mutate;
pub mod run;
pub mod seal;
pub mod wire;

use crate::sim::random::Random;

/// What became of an input that broke nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Something in it was read as valid.
    Taken,
    /// All of it was refused.
    Refused,
}

/// One decoder, or a few that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Reads an input and checks what must hold of it: panics if something does not.
    pub check: fn(&[u8]) -> Outcome,
    /// Makes checksums and lengths of a changed input right again.
    pub seal: Seal,
    /// The longest input, in bytes.
    pub bytes_max: usize,
    /// Changed inputs that the tests try.
    pub tries: u64,
}

/// Makes checksums and lengths of a changed input right again.
pub type Seal = fn(&mut Random, &mut Vec<u8>);

const TRIES: u64 = 10_000;
const FRAMES: Seal = |random, bytes| seal::frames(random, bytes);
const BATCHES: Seal = |random, bytes| seal::batches(random, bytes);
const EXTENT: Seal = |random, bytes| {
    seal::extent(random, bytes);
};

const fn target(name: &'static str, check: fn(&[u8]) -> Outcome, seal: Seal, bytes_max: usize) -> Target {
    Target { name, check, seal, bytes_max, tries: TRIES }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("frame", wire::split, FRAMES, 1 << 10),
    target("hello", wire::messages, FRAMES, 2 << 10),
    target("metadata", wire::messages, FRAMES, 4 << 10),
    target("topic", wire::messages, FRAMES, 2 << 10),
    target("produce", wire::messages, FRAMES, 2 << 10),
    target("subscribe", wire::messages, FRAMES, 2 << 10),
    target("credit", wire::messages, FRAMES, 2 << 10),
    target("offset", wire::messages, FRAMES, 2 << 10),
    target("producer", wire::messages, FRAMES, 2 << 10),
    target("status", wire::messages, FRAMES, 2 << 10),
    target("error", wire::messages, FRAMES, 2 << 10),
    target("batch", batch::batches, BATCHES, 4 << 10),
    target("gzip", batch::gzip, seal::nothing, 4 << 10),
    target("snappy", batch::snappy, seal::nothing, 4 << 10),
    target("lz4", batch::lz4, seal::nothing, 4 << 10),
    target("zstd", batch::zstd, seal::nothing, 4 << 10),
    target("extent", disk::extent, EXTENT, 4 << 10),
    target("run", disk::run, seal::run, 12 << 10),
    target("run_scan", disk::run_scan, seal::runs, 16 << 10),
    target("journal_frame", disk::journal_frame, seal::journal_frame, 12 << 10),
    target("superblock", disk::superblock, seal::superblock, 4 << 10),
    target("checkpoint", disk::checkpoint, seal::checkpoint, 12 << 10),
    target("metadata_record", disk::metadata_record, seal::nothing, 1 << 10),
    target("offset_record", disk::offset_record, seal::nothing, 1 << 10),
    Target { name: "connection", check: connection::check, seal: FRAMES, bytes_max: 4 << 10, tries: 1_000 },
];

/// The target of that name.
pub fn target_named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
