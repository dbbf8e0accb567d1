//! What an operator is told of a shard's logs when it begins and when it ends, one line each.

use std::fmt;

use tidegate_protocol::ids::{FileId, FrameSequence};
use tidegate_reactor::op::Fault;

/// Why the drive has no room for what producers send. Reads, commits, deletes and trims go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Its free space is below the floor.
    BelowFloor {
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes with which produce goes on.
        needed_bytes: u64,
    },
    /// No data file can be made, and the journal is full.
    NoFile(Fault),
    /// The shard has as many data files as its checkpoints have room for, and the journal is full.
    Files {
        /// How many that is.
        limit: u32,
        /// How many there are.
        current: usize,
    },
}

/// Something that begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Produce is refused from now on.
    ProduceRefused(Shortage),
    /// There is room again.
    ProduceTaken,
    /// The wall clock is so many milliseconds from where it should be, positive: ahead. Nothing goes for its age.
    AgeRetentionPaused {
        /// How far.
        off_ms: i64,
    },
    /// The clock is believed again.
    AgeRetentionResumed,
    /// A run does not match its checksums, and no record in it is damaged: its pad is.
    RunUnsound {
        /// The data file.
        file: FileId,
        /// Where the run begins, in bytes.
        at: u64,
    },
    /// The scrub could not read a file from there on.
    NotScrubbed {
        /// The file.
        file: String,
        /// From where on, in bytes.
        at: u64,
        /// What failed.
        fault: Fault,
    },
    /// A frame of the journal is damaged that may still be needed.
    FrameDamaged {
        /// The file of the ring.
        file: String,
        /// Where the frame begins, in bytes.
        at: u64,
        /// Its sequence.
        frame: FrameSequence,
    },
}

impl Notice {
    /// Whether something is not as it should be from now on.
    pub fn is_trouble(&self) -> bool {
        match self {
            Notice::ProduceRefused(_)
            | Notice::AgeRetentionPaused { .. }
            | Notice::RunUnsound { .. }
            | Notice::NotScrubbed { .. }
            | Notice::FrameDamaged { .. } => true,
            Notice::ProduceTaken | Notice::AgeRetentionResumed => false,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::BelowFloor { free_bytes, needed_bytes } => write!(
                f,
                "the drive that holds the data directory has {} MiB free and produce needs {} MiB",
                free_bytes >> 20,
                needed_bytes >> 20
            ),
            Shortage::NoFile(fault) => write!(f, "the drive takes no further data file: {fault}"),
            Shortage::Files { limit, current } => {
                write!(f, "a shard may have {limit} data files and this one has {current}")
            }
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::ProduceRefused(shortage) => write!(
                f,
                "produce is refused: {shortage}; reads, commits, deletes and trims go on; free space, shorten retention or \
                 delete topics, and produce goes on by itself (the limit: --free-space-floor)"
            ),
            Notice::ProduceTaken => f.write_str("produce is taken again: the drive has room"),
            Notice::AgeRetentionPaused { off_ms } => {
                let (minutes, side) =
                    (off_ms.unsigned_abs() / 60_000, if *off_ms > 0 { "ahead of" } else { "behind" });
                write!(
                    f,
                    "nothing is deleted for its age any more: the wall clock is {minutes} minutes {side} where it should be \
                     by the monotonic clock and the last checkpoint, and 60 are allowed; set the clock right, or start the \
                     broker again if it is"
                )
            }
            Notice::RunUnsound { file, at } => write!(
                f,
                "data file {file}: the run at byte {at} is damaged in a place that holds no record; every record in it is sound, \
                 but the drive has changed what was stored: look after the drive"
            ),
            Notice::NotScrubbed { file, at, fault } => write!(
                f,
                "{file} cannot be read from byte {at} on ({fault}) and is not checked further; look after the drive, \
                 and keep the file"
            ),
            Notice::FrameDamaged { file, at, frame } => write!(
                f,
                "journal frame {frame} at byte {at} of {file} is damaged; its records are still in memory and are written anew, \
                 so that nothing is lost while this broker runs: let it run, and look after the drive"
            ),
            Notice::AgeRetentionResumed => {
                f.write_str("retention by age goes on: the wall clock is where it should be")
            }
        }
    }
}
