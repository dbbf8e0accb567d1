//! When one flush covers a whole cycle, decided from facts about the storage.
//!
//! A flush of any file makes the drive's cache durable. That is enough for data written in place, into blocks that are
//! allocated and initialised, of a filesystem that passes flushes on. Anything else needs a flush of its own.

use std::fmt;

use tidegate_protocol::disk::BLOCK;
use tidegate_reactor::facts::{Barriers, DataMode, Filesystem, Reflink, StorageFacts};

/// How many flushes a cycle needs before it counts as durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushRule {
    /// One of the journal, for all files of the cycle that are initialised.
    OneFlush,
    /// One of the journal and one of each data file of the cycle.
    OwnFlush {
        /// Why one is not enough.
        why: String,
    },
    /// No flush makes anything durable.
    MemoryOnly {
        /// Why not.
        why: String,
    },
}

/// Storage that cannot hold a data directory at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTooLarge {
    /// The drive's physical block, in bytes.
    pub found: u32,
}

impl FlushRule {
    /// The rule for a data directory with its journals on `journals` and its data files on `files`.
    ///
    /// # Errors
    /// If a drive's physical block is larger than that of the format: a write would then rewrite a neighbour.
    pub fn decide(journals: &StorageFacts, files: &StorageFacts) -> Result<FlushRule, BlockTooLarge> {
        for facts in [journals, files] {
            if let Some(found) = facts.physical_block_bytes.filter(|b| *b as usize > BLOCK) {
                return Err(BlockTooLarge { found });
            }
        }
        for facts in [journals, files] {
            if let Filesystem::Memory { name } = &facts.filesystem {
                let why = format!("{} lies in memory ({name})", facts.path.display());
                return Ok(FlushRule::MemoryOnly { why });
            }
            if barriers(&facts.filesystem) == Barriers::Off {
                let why = format!(
                    "{} is mounted without barriers: flushes do not reach the drive",
                    facts.path.display()
                );
                return Ok(FlushRule::MemoryOnly { why });
            }
        }
        let own = |why: String| Ok(FlushRule::OwnFlush { why });
        if journals.device != files.device {
            return own("journals and data files lie on different devices".into());
        }
        match &files.filesystem {
            Filesystem::Ext4 { data: DataMode::InPlace, .. } => Ok(FlushRule::OneFlush),
            Filesystem::Ext4 { data: DataMode::Journal, .. } => {
                own("ext4 is mounted with data=journal".into())
            }
            Filesystem::Ext4 { data: DataMode::Unknown, .. } => {
                own("the kernel does not say whether ext4 has data=journal".into())
            }
            Filesystem::Xfs { reflink: Reflink::Impossible, .. } => Ok(FlushRule::OneFlush),
            Filesystem::Xfs { reflink: Reflink::Possible, .. } => {
                own("XFS was made with reflink=1: a copy of a file (cp) may share its blocks".into())
            }
            Filesystem::Xfs { reflink: Reflink::Unknown, .. } => {
                own("the kernel does not say whether XFS was made with reflink=0".into())
            }
            other => own(format!("{} is not known to write in place", other.name())),
        }
    }
}

fn barriers(filesystem: &Filesystem) -> Barriers {
    match filesystem {
        Filesystem::Ext4 { barriers, .. } | Filesystem::Xfs { barriers, .. } => *barriers,
        Filesystem::Memory { .. } | Filesystem::Other { .. } => Barriers::On,
    }
}

impl fmt::Display for FlushRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlushRule::OneFlush => f.write_str("one flush a cycle"),
            FlushRule::OwnFlush { why } => write!(f, "one flush a file and cycle ({why})"),
            FlushRule::MemoryOnly { why } => write!(f, "memory only ({why})"),
        }
    }
}

impl fmt::Display for BlockTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the drive's physical block of {} bytes is larger than the format's {BLOCK}: a write would touch its \
             neighbours; put the data directory on a drive with blocks of at most {BLOCK} bytes",
            self.found
        )
    }
}

impl std::error::Error for BlockTooLarge {}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(filesystem: Filesystem) -> StorageFacts {
        StorageFacts { path: "/d".into(), filesystem, device: 1, physical_block_bytes: Some(4096) }
    }

    fn ext4(data: DataMode, barriers: Barriers) -> Filesystem {
        Filesystem::Ext4 { data, barriers }
    }

    fn xfs(reflink: Reflink) -> Filesystem {
        Filesystem::Xfs { reflink, barriers: Barriers::On }
    }

    #[test]
    fn one_flush_is_enough_only_where_it_was_shown_to_be() {
        let cases = [
            (ext4(DataMode::InPlace, Barriers::On), "one flush a cycle"),
            (ext4(DataMode::Journal, Barriers::On), "one flush a file and cycle"),
            (ext4(DataMode::Unknown, Barriers::On), "one flush a file and cycle"),
            (ext4(DataMode::InPlace, Barriers::Off), "memory only"),
            (xfs(Reflink::Impossible), "one flush a cycle"),
            (xfs(Reflink::Possible), "one flush a file and cycle"),
            (xfs(Reflink::Unknown), "one flush a file and cycle"),
            (Filesystem::Xfs { reflink: Reflink::Impossible, barriers: Barriers::Off }, "memory only"),
            (Filesystem::Memory { name: "tmpfs".into() }, "memory only"),
            (Filesystem::Other { name: "btrfs".into() }, "one flush a file and cycle"),
        ];
        for (filesystem, expected) in cases {
            let rule = FlushRule::decide(&on(filesystem.clone()), &on(filesystem.clone())).unwrap();
            let said = rule.to_string();
            assert!(said.starts_with(expected), "{filesystem:?}: {said}");
        }
    }

    #[test]
    fn a_second_device_needs_its_own_flush_and_the_weaker_one_decides() {
        let drive = on(ext4(DataMode::InPlace, Barriers::On));
        let other = StorageFacts { device: 2, ..drive.clone() };
        assert!(matches!(FlushRule::decide(&drive, &other), Ok(FlushRule::OwnFlush { .. })));
        let memory = on(Filesystem::Memory { name: "tmpfs".into() });
        assert!(matches!(FlushRule::decide(&drive, &memory), Ok(FlushRule::MemoryOnly { .. })));
        assert!(matches!(FlushRule::decide(&memory, &drive), Ok(FlushRule::MemoryOnly { .. })));
    }

    #[test]
    fn a_drive_with_larger_physical_blocks_is_refused() {
        let mut drive = on(ext4(DataMode::InPlace, Barriers::On));
        drive.physical_block_bytes = Some(16384);
        let error = FlushRule::decide(&drive, &drive).unwrap_err();
        assert!(error.to_string().contains("16384"), "{error}");
    }
}
