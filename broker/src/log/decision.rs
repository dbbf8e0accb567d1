//! What recovery does about what it finds: literal tables, looked up by [`super::recover`].

use tidegate_protocol::disk::frame::FrameHeader;
use tidegate_protocol::ids::{FrameSequence, Incarnation, ShardId};

use crate::mutants::{self, Mutant};

/// What lies where the next frame is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextFrame {
    /// A whole frame that follows the one before it.
    Follows,
    /// Nothing that was ever a frame.
    Missing,
    /// A frame that is not whole.
    Damaged,
    /// A whole frame that does not follow.
    OffChain,
}

/// What the runs that a frame marks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// All whole, or none marked.
    Whole,
    /// One is not.
    NotWhole,
}

/// What lies at the place of a small extent that the checkpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallExtent {
    /// The extent.
    Whole,
    /// Something else.
    Damaged,
}

/// Where the expected sequence stands to M, the highest mark found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It was flushed.
    Promised,
    /// It may not have been.
    AboveMark,
}

/// What the shard keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Shard 0: also what topics there are. An older state of them could bring deleted ones back, and without them nothing can
    /// be served.
    Topics,
    /// The others: partitions alone.
    Partitions,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is part of the state.
    Keep,
    /// Likewise, but the range of the bad run is refused to readers.
    KeepAndRefuseRange,
    /// It and everything behind it is dropped.
    EndOfLog,
    /// The shard serves the state before it, refuses the rest and writes nothing.
    ReadOnly,
    /// The shard serves the state but for the extent's range, which it refuses, and writes nothing.
    ReadOnlyAndRefuseRange,
    /// The broker does not start.
    RefuseStart,
}

/// What is found, in what shard, and what is done about it. None: whatever it is.
pub type Row = (NextFrame, Option<Runs>, Level, Option<Keeps>, Decision);

/// What is done about the next frame. The runs of a frame that does not follow are not looked at.
pub const TABLE: [Row; 13] = [
    (NextFrame::Follows, Some(Runs::Whole), Level::Promised, None, Decision::Keep),
    (NextFrame::Follows, Some(Runs::Whole), Level::AboveMark, None, Decision::Keep),
    (NextFrame::Follows, Some(Runs::NotWhole), Level::Promised, None, Decision::KeepAndRefuseRange),
    (NextFrame::Follows, Some(Runs::NotWhole), Level::AboveMark, None, Decision::EndOfLog),
    (NextFrame::Missing, None, Level::Promised, Some(Keeps::Topics), Decision::RefuseStart),
    (NextFrame::Missing, None, Level::Promised, Some(Keeps::Partitions), Decision::ReadOnly),
    (NextFrame::Missing, None, Level::AboveMark, None, Decision::EndOfLog),
    (NextFrame::Damaged, None, Level::Promised, Some(Keeps::Topics), Decision::RefuseStart),
    (NextFrame::Damaged, None, Level::Promised, Some(Keeps::Partitions), Decision::ReadOnly),
    (NextFrame::Damaged, None, Level::AboveMark, None, Decision::EndOfLog),
    (NextFrame::OffChain, None, Level::Promised, Some(Keeps::Topics), Decision::RefuseStart),
    (NextFrame::OffChain, None, Level::Promised, Some(Keeps::Partitions), Decision::ReadOnly),
    (NextFrame::OffChain, None, Level::AboveMark, None, Decision::EndOfLog),
];

/// What is done about a small extent in a frame that the checkpoint covers, so that it was flushed. (The extents of later
/// frames are whole where their frame is.)
pub const EXTENT_TABLE: [(SmallExtent, Keeps, Decision); 4] = [
    (SmallExtent::Whole, Keeps::Topics, Decision::Keep),
    (SmallExtent::Whole, Keeps::Partitions, Decision::Keep),
    (SmallExtent::Damaged, Keeps::Topics, Decision::RefuseStart),
    (SmallExtent::Damaged, Keeps::Partitions, Decision::ReadOnlyAndRefuseRange),
];

/// Looks the next frame up.
pub fn decide(next: NextFrame, runs: Runs, level: Level, keeps: Keeps) -> Decision {
    let row = TABLE.iter().find(|(n, r, l, k, _)| {
        *n == next && r.is_none_or(|r| r == runs) && *l == level && k.is_none_or(|k| k == keeps)
    });
    row.expect("the table has every combination").4
}

/// Looks a small extent up.
pub fn decide_extent(found: SmallExtent, keeps: Keeps) -> Decision {
    let row = EXTENT_TABLE.iter().find(|(f, k, _)| *f == found && *k == keeps);
    row.expect("the table has every combination").2
}

/// What a shard keeps.
pub fn keeps(shard: ShardId) -> Keeps {
    if shard.0 == 0 { Keeps::Topics } else { Keeps::Partitions }
}

/// Whether a frame follows the one before it: sequence and hash fit, and its incarnation is equal, or it ends a later
/// recovery.
pub fn follows(before: &Link, frame: &FrameHeader, kind: FrameKind) -> bool {
    let fits = frame.sequence.0 == before.sequence.0 + 1 && frame.previous_hash == before.hash;
    if mutants::on(Mutant::HashIgnored) {
        return frame.sequence.0 == before.sequence.0 + 1;
    }
    let incarnation = match kind {
        FrameKind::Ordinary => frame.incarnation == before.incarnation,
        FrameKind::Recovered => frame.incarnation >= before.incarnation,
    };
    fits && incarnation
}

/// The end of a chain of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The last frame.
    pub sequence: FrameSequence,
    /// Its hash.
    pub hash: u64,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// Whether a frame ends a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// It begins with the entry `recovered`.
    Recovered,
    /// It does not.
    Ordinary,
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::disk::frame::JournalIdentity;
    use tidegate_protocol::ids::{ClusterId, JournalId, NodeId};

    use super::*;

    const KEEPS: [Keeps; 2] = [Keeps::Topics, Keeps::Partitions];

    #[test]
    fn the_table_has_exactly_one_row_for_every_combination() {
        let nexts = [NextFrame::Follows, NextFrame::Missing, NextFrame::Damaged, NextFrame::OffChain];
        for next in nexts {
            for runs in [Runs::Whole, Runs::NotWhole] {
                for (level, keeps) in
                    [Level::Promised, Level::AboveMark].into_iter().flat_map(|l| KEEPS.map(|k| (l, k)))
                {
                    let fits = |(n, r, l, k, _): &&Row| {
                        *n == next
                            && r.is_none_or(|r| r == runs)
                            && *l == level
                            && k.is_none_or(|k| k == keeps)
                    };
                    assert_eq!(TABLE.iter().filter(fits).count(), 1, "{next:?} {runs:?} {level:?} {keeps:?}");
                    let expected = match (next, runs, level, keeps) {
                        (NextFrame::Follows, Runs::Whole, _, _) => Decision::Keep,
                        (NextFrame::Follows, Runs::NotWhole, Level::Promised, _) => {
                            Decision::KeepAndRefuseRange
                        }
                        (_, _, Level::AboveMark, _) => Decision::EndOfLog,
                        (_, _, Level::Promised, Keeps::Topics) => Decision::RefuseStart,
                        (_, _, Level::Promised, Keeps::Partitions) => Decision::ReadOnly,
                    };
                    assert_eq!(decide(next, runs, level, keeps), expected);
                }
            }
        }
    }

    #[test]
    fn the_table_of_extents_has_exactly_one_row_for_every_combination() {
        assert_eq!(
            (keeps(ShardId(0)), keeps(ShardId(1)), keeps(ShardId(255))),
            (KEEPS[0], KEEPS[1], KEEPS[1])
        );
        for found in [SmallExtent::Whole, SmallExtent::Damaged] {
            for keeps in KEEPS {
                let rows = EXTENT_TABLE.iter().filter(|(f, k, _)| *f == found && *k == keeps).count();
                assert_eq!(rows, 1, "{found:?} {keeps:?}");
                let expected = match (found, keeps) {
                    (SmallExtent::Whole, _) => Decision::Keep,
                    (SmallExtent::Damaged, Keeps::Topics) => Decision::RefuseStart,
                    (SmallExtent::Damaged, Keeps::Partitions) => Decision::ReadOnlyAndRefuseRange,
                };
                assert_eq!(decide_extent(found, keeps), expected);
            }
        }
    }

    #[test]
    fn a_frame_follows_only_with_the_right_sequence_hash_and_incarnation() {
        let identity =
            JournalIdentity { cluster: ClusterId([1; 16]), node: NodeId(1), journal: JournalId(1) };
        let before = Link { sequence: FrameSequence(7), hash: 99, incarnation: Incarnation(3) };
        for sequence in [7, 8, 9] {
            for hash in [98, 99] {
                for incarnation in [2, 3, 4] {
                    for kind in [FrameKind::Ordinary, FrameKind::Recovered] {
                        let header = FrameHeader {
                            identity,
                            incarnation: Incarnation(incarnation),
                            sequence: FrameSequence(sequence),
                            previous_hash: hash,
                            mark: FrameSequence(6),
                            bytes: 4096,
                            entries: 0,
                            inner_crc: 0,
                        };
                        let expected = sequence == 8
                            && hash == 99
                            && (incarnation == 3 || (incarnation == 4 && kind == FrameKind::Recovered));
                        assert_eq!(follows(&before, &header, kind), expected, "{header:?} {kind:?}");
                    }
                }
            }
        }
    }
}
