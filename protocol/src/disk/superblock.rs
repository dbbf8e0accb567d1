//! The superblock: what a data directory is, whose it is, and which journals hold it.
//!
//! One file of two blocks, A and B, written in place: A, flush, B, flush. At any moment at least one of them is whole. It is
//! written only while no shard runs.

use zerocopy::byteorder::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK;
use crate::ids::{ClusterId, Incarnation, JournalId, NodeId};

/// The format of the data directory that this code writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
/// The most shards, and so journals, that a superblock has room for.
pub const SHARDS_MAX: usize = 256;
/// Length of the superblock's file, in bytes: two blocks.
pub const SUPERBLOCK_BYTES: u64 = 2 * BLOCK as u64;

const MAGIC: [u8; 8] = *b"TIDEGATE";

/// What one block of the superblock says.
///
/// Invariants, see [`Superblock::check`]: the sequence is at least 1, every layout has 1 to [`SHARDS_MAX`] journals, no
/// journal is named twice, and all of them are below `journal_next`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Rises with every change; of two whole blocks the one with the higher sequence counts.
    pub sequence: u64,
    /// The cluster to which the directory belongs.
    pub cluster: ClusterId,
    /// The node of that cluster.
    pub node: NodeId,
    /// How often the node has been started; no two starts share one.
    pub incarnation: Incarnation,
    /// The lowest journal number that was never given out.
    pub journal_next: JournalId,
    /// The layout that holds the data.
    pub layout: Layout,
    /// Whether the layout is being made or changed.
    pub state: State,
}

/// Which journals hold the data: one a shard, in the order of the shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Counts the layouts of this directory, from 1.
    pub id: u32,
    /// The journal of each shard.
    pub journals: Vec<JournalId>,
}

/// Whether the layout is being made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The directory is being made and holds no promise yet.
    Initialising,
    /// The layout holds all data.
    Current,
    /// The layout holds all data; another one is being written, whose files go if that does not come to its end.
    Preparing(Layout),
    /// The layout holds all data; the files of the one before it are being deleted.
    Retiring(Layout),
}

/// Why a block is not a superblock that this code can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// The block is not [`BLOCK`] bytes long.
    Length(usize),
    /// The block does not begin with a superblock's first bytes.
    NoMagic,
    /// The checksum does not fit: the block is torn or damaged.
    Checksum,
    /// The block is whole, but of a format that this code does not know.
    Format(u32),
    /// The block is whole, but says something impossible about the named field.
    Field(&'static str),
}

impl std::fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SuperblockError::Length(len) => write!(f, "{len} bytes long instead of {BLOCK}"),
            SuperblockError::NoMagic => f.write_str("does not begin as a superblock"),
            SuperblockError::Checksum => f.write_str("wrong checksum"),
            SuperblockError::Format(found) => write!(f, "format {found}, this build reads up to {FORMAT}"),
            SuperblockError::Field(name) => write!(f, "impossible value of `{name}`"),
        }
    }
}

impl std::error::Error for SuperblockError {}

/// A block as it lies on disk. Whatever the format, the first 16 bytes stay as they are here and the checksum covers
/// everything after itself, so that a later format is told from damage.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    crc: U32,
    format: U32,
    sequence: U64,
    cluster: [u8; 16],
    node: I32,
    incarnation: U32,
    journal_next: U32,
    state: u8,
    zero: [u8; 3],
    layout: RawLayout,
    other: RawLayout,
    reserved: [u8; RESERVED],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLayout {
    id: U32,
    shard_count: U16,
    zero: [u8; 2],
    journals: [U32; SHARDS_MAX],
}

const RESERVED: usize = BLOCK - 56 - 2 * size_of::<RawLayout>();
const CRC_FROM: usize = 12;
const _: () = assert!(size_of::<Raw>() == BLOCK);

const INITIALISING: u8 = 1;
const CURRENT: u8 = 2;
const PREPARING: u8 = 3;
const RETIRING: u8 = 4;

impl Superblock {
    /// Asserts the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        if let Err(field) = self.fault() {
            panic!("impossible `{field}` in {self:?}");
        }
    }

    /// The layout that is not `layout`: being prepared or retired.
    pub fn other(&self) -> Option<&Layout> {
        match &self.state {
            State::Initialising | State::Current => None,
            State::Preparing(other) | State::Retiring(other) => Some(other),
        }
    }

    /// The block as it goes to disk, [`BLOCK`] bytes.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn encode(&self) -> Vec<u8> {
        self.check();
        let state = match self.state {
            State::Initialising => INITIALISING,
            State::Current => CURRENT,
            State::Preparing(_) => PREPARING,
            State::Retiring(_) => RETIRING,
        };
        let mut raw = Raw {
            magic: MAGIC,
            crc: U32::ZERO,
            format: U32::new(FORMAT),
            sequence: U64::new(self.sequence),
            cluster: self.cluster.0,
            node: I32::new(self.node.0),
            incarnation: U32::new(self.incarnation.0),
            journal_next: U32::new(self.journal_next.0),
            state,
            zero: [0; 3],
            layout: RawLayout::of(Some(&self.layout)),
            other: RawLayout::of(self.other()),
            reserved: [0; RESERVED],
        };
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[CRC_FROM..]));
        raw.as_bytes().to_vec()
    }

    /// Reads one block.
    ///
    /// # Errors
    /// If it is not a whole block of a known format; zeros never are.
    pub fn decode(block: &[u8]) -> Result<Superblock, SuperblockError> {
        let raw = Raw::ref_from_bytes(block).map_err(|_| SuperblockError::Length(block.len()))?;
        if raw.magic != MAGIC {
            return Err(SuperblockError::NoMagic);
        }
        if raw.crc.get() != crc32c::crc32c(&block[CRC_FROM..]) {
            return Err(SuperblockError::Checksum);
        }
        if raw.format.get() != FORMAT {
            return Err(SuperblockError::Format(raw.format.get()));
        }
        if raw.zero != [0; 3] || raw.reserved.iter().any(|b| *b != 0) {
            return Err(SuperblockError::Field("reserved"));
        }
        let layout = raw.layout.read()?.ok_or(SuperblockError::Field("layout.shard_count"))?;
        let state = match (raw.state, raw.other.read()?) {
            (INITIALISING, None) => State::Initialising,
            (CURRENT, None) => State::Current,
            (PREPARING, Some(other)) => State::Preparing(other),
            (RETIRING, Some(other)) => State::Retiring(other),
            _ => return Err(SuperblockError::Field("state")),
        };
        let superblock = Superblock {
            sequence: raw.sequence.get(),
            cluster: ClusterId(raw.cluster),
            node: NodeId(raw.node.get()),
            incarnation: Incarnation(raw.incarnation.get()),
            journal_next: JournalId(raw.journal_next.get()),
            layout,
            state,
        };
        superblock.fault().map_err(SuperblockError::Field)?;
        Ok(superblock)
    }

    /// The name of a field that breaks an invariant.
    fn fault(&self) -> Result<(), &'static str> {
        if self.sequence == 0 {
            return Err("sequence");
        }
        let mut seen = Vec::new();
        for layout in [Some(&self.layout), self.other()].into_iter().flatten() {
            if layout.id == 0 {
                return Err("layout.id");
            }
            if layout.journals.is_empty() || layout.journals.len() > SHARDS_MAX {
                return Err("layout.shard_count");
            }
            for journal in &layout.journals {
                if journal.0 == 0 || *journal >= self.journal_next || seen.contains(journal) {
                    return Err("layout.journals");
                }
                seen.push(*journal);
            }
        }
        match self.other() {
            Some(other) if other.id == self.layout.id => Err("layout.id"),
            _ => Ok(()),
        }
    }
}

impl RawLayout {
    fn of(layout: Option<&Layout>) -> RawLayout {
        let mut raw = RawLayout {
            id: U32::ZERO,
            shard_count: U16::ZERO,
            zero: [0; 2],
            journals: [U32::ZERO; SHARDS_MAX],
        };
        if let Some(layout) = layout {
            raw.id = U32::new(layout.id);
            raw.shard_count = U16::new(layout.journals.len() as u16);
            for (slot, journal) in raw.journals.iter_mut().zip(&layout.journals) {
                *slot = U32::new(journal.0);
            }
        }
        raw
    }

    fn read(&self) -> Result<Option<Layout>, SuperblockError> {
        let count = usize::from(self.shard_count.get());
        if count > SHARDS_MAX {
            return Err(SuperblockError::Field("layout.shard_count"));
        }
        if self.zero != [0; 2] || self.journals[count..].iter().any(|j| j.get() != 0) {
            return Err(SuperblockError::Field("reserved"));
        }
        if count == 0 {
            return if self.id.get() == 0 {
                Ok(None)
            } else {
                Err(SuperblockError::Field("layout.shard_count"))
            };
        }
        let journals = self.journals[..count].iter().map(|j| JournalId(j.get())).collect();
        Ok(Some(Layout { id: self.id.get(), journals }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(id: u32, journals: std::ops::Range<u32>) -> Layout {
        Layout { id, journals: journals.map(JournalId).collect() }
    }

    fn sample() -> Superblock {
        Superblock {
            sequence: 7,
            cluster: ClusterId(*b"0123456789abcdef"),
            node: NodeId(3),
            incarnation: Incarnation(5),
            journal_next: JournalId(6),
            layout: layout(1, 1..3),
            state: State::Preparing(layout(2, 3..6)),
        }
    }

    fn strategy() -> impl Strategy<Value = Superblock> {
        let counts = (1..=SHARDS_MAX as u32, 1..=SHARDS_MAX as u32, 0..4u8);
        (1..u64::MAX, any::<[u8; 16]>(), any::<i32>(), any::<u32>(), 1..1000u32, counts).prop_map(
            |(sequence, cluster, node, incarnation, first, (a, b, state))| Superblock {
                sequence,
                cluster: ClusterId(cluster),
                node: NodeId(node),
                incarnation: Incarnation(incarnation),
                journal_next: JournalId(first + a + b),
                layout: layout(first, first..first + a),
                state: match state {
                    0 => State::Initialising,
                    1 => State::Current,
                    2 => State::Preparing(layout(first + 1, first + a..first + a + b)),
                    _ => State::Retiring(layout(first + 1, first + a..first + a + b)),
                },
            },
        )
    }

    #[test]
    fn golden_bytes_of_format_1() {
        let block = sample().encode();
        let hex: String = block[..72].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "5449444547415445",                 // magic
                "76768dfa",                         // crc
                "01000000",                         // format
                "0700000000000000",                 // sequence
                "30313233343536373839616263646566", // cluster
                "03000000",                         // node
                "05000000",                         // incarnation
                "06000000",                         // journal_next
                "03",                               // state
                "000000",
                "01000000", // layout.id
                "02000000", // layout.shard_count
                "01000000", // layout.journals
                "02000000",
            )
        );
        let other: String = block[1088..1108].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(other, concat!("02000000", "03000000", "03000000", "04000000", "05000000"));
    }

    #[test]
    fn zeros_never_decode() {
        assert_eq!(Superblock::decode(&[0; BLOCK]), Err(SuperblockError::NoMagic));
    }

    #[test]
    fn a_later_format_is_told_from_damage() {
        let mut block = sample().encode();
        block[12] = 2;
        assert_eq!(Superblock::decode(&block), Err(SuperblockError::Checksum));
        let crc = crc32c::crc32c(&block[CRC_FROM..]);
        block[8..12].copy_from_slice(U32::new(crc).as_bytes());
        assert_eq!(Superblock::decode(&block), Err(SuperblockError::Format(2)));
    }

    #[test]
    fn a_whole_block_with_an_impossible_value_is_refused() {
        let cases: [(usize, u8, &str); 7] = [
            (16, 0, "sequence"),
            (52, 9, "state"),
            (53, 1, "reserved"),
            (56, 0, "layout.id"),
            (61, 2, "layout.shard_count"),
            (64, 9, "layout.journals"),
            (4095, 1, "reserved"),
        ];
        for (at, value, field) in cases {
            let mut block = sample().encode();
            block[at] = value;
            let crc = crc32c::crc32c(&block[CRC_FROM..]);
            block[8..12].copy_from_slice(U32::new(crc).as_bytes());
            assert_eq!(Superblock::decode(&block), Err(SuperblockError::Field(field)), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(superblock in strategy()) {
            prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        }

        #[test]
        fn any_changed_bit_is_noticed(superblock in strategy(), bit in 0..BLOCK * 8) {
            let mut block = superblock.encode();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&block).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(mut block in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = Superblock::decode(&block);
            block.resize(BLOCK, 0);
            block[..8].copy_from_slice(&MAGIC);
            let crc = crc32c::crc32c(&block[CRC_FROM..]);
            block[8..12].copy_from_slice(U32::new(crc).as_bytes());
            let _ = Superblock::decode(&block);
        }
    }
}
