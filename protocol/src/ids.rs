//! The numbers of the protocol as types of their own, so that an offset cannot be taken for a partition.
//!
//! Widths are those of docs/WIRE_FORMAT.md; they are Kafka's, so that one log can serve both protocols.

use std::fmt;

/// A topic's identity for ever: random, never reused, unlike its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// The internal topic that holds topics and other cluster metadata: one partition, on shard 0.
    pub const METADATA: TopicId = TopicId(*b"tidegate-topics\0");
    /// The internal topic that holds the offsets of named consumers.
    pub const OFFSETS: TopicId = TopicId(*b"tidegate-offset\0");
    /// No topic.
    pub const NONE: TopicId = TopicId([0; 16]);

    /// The identity in two random numbers: a version 4 UUID.
    pub fn from_random(high: u64, low: u64) -> TopicId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        TopicId(bytes)
    }

    /// Whether the topic belongs to the broker and cannot be produced to or deleted by a client.
    pub fn is_internal(self) -> bool {
        self == TopicId::METADATA || self == TopicId::OFFSETS
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One partition of one topic: what a log, a leader and an offset belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicId,
    /// The partition of that topic.
    pub partition: PartitionId,
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(/// A partition of a topic, from 0.
    PartitionId(i32));
number!(/// The place of a record in its partition, from 0.
    Offset(i64));
number!(/// Rises with every change of a partition's leader; -1 where the sender does not know.
    LeaderEpoch(i32));
number!(/// A broker process's lasting number.
    NodeId(i32));
number!(/// A shard of a node, from 0.
    ShardId(u16));
number!(/// A producer with a sequence of its own; -1 where it has none.
    ProducerId(i64));
number!(/// Rises when a producer starts its sequence anew.
    ProducerEpoch(i16));
number!(/// The place of a record in its producer's sequence for one partition; wraps from 2^31-1 to 0.
    Sequence(i32));
number!(/// Rises with every start of a node, before anything else is written.
    Incarnation(u32));
number!(/// One shard's journal. Counts up through the life of a data directory; a layout with another number of shards has
    /// new journals with new numbers.
    JournalId(u32));
number!(/// The place of a frame in its journal, from 1; never used for two frames that were both kept.
    FrameSequence(u64));
number!(/// How often a data file has been assigned to a log; 0 before the first time.
    Generation(u32));

/// A data file's permanent name: the journal under which it was first zero-filled, and its number among that journal's
/// files. So two shards can make files without asking each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

impl FileId {
    /// The `number`th file made under `journal`.
    pub fn new(journal: JournalId, number: u32) -> FileId {
        FileId(u64::from(journal.0) << 32 | u64::from(number))
    }

    /// The journal under which the file was made; the shard that owns it may write another one today.
    pub fn journal(self) -> JournalId {
        JournalId((self.0 >> 32) as u32)
    }

    /// Its number among the files of that journal.
    pub fn number(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:08x}", self.journal().0, self.number())
    }
}

/// A cluster's random identity; a single node is a cluster of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TopicId(self.0).fmt(f)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LeaderEpoch {
    /// The sender does not know the epoch, and no check is wanted.
    pub const UNKNOWN: LeaderEpoch = LeaderEpoch(-1);
}

impl ProducerId {
    /// The batch belongs to no sequence.
    pub const NONE: ProducerId = ProducerId(-1);
}

impl Offset {
    /// The offset `count` records later.
    ///
    /// # Panics
    /// If it would pass the end of the number range, which no check from outside lets through.
    pub fn plus(self, count: i64) -> Offset {
        Offset(self.0.checked_add(count).expect("offsets end at 2^63-1"))
    }
}

impl Sequence {
    /// The sequence `count` records later: 2^31-1 is followed by 0.
    pub fn plus(self, count: i32) -> Sequence {
        Sequence(((i64::from(self.0) + i64::from(count)) & 0x7fff_ffff) as i32)
    }
}
