//! A journal frame: one flush cycle of a shard, in whole blocks.
//!
//! `header | entry ... | zeros`. Frames form a chain: each names the hash of the header before it. `mark` is the highest
//! sequence known flushed when the frame was built; after a crash it tells a torn end of the journal from rot.

use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::{self, Carriage, ENTRY_HEADER_BYTES, Entry, FLAG_CARRIED, KIND_EXTENT, entry_bytes};
use super::{BLOCK, DiskError, FORMAT, header, whole_blocks};
use crate::extent::{EXTENT_HEADER_BYTES, ExtentHeader};
use crate::ids::{ClusterId, FrameSequence, Incarnation, JournalId, NodeId};

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 96;

const MAGIC: [u8; 4] = *b"TGfr";

/// Whose journal a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// The journal.
    pub journal: JournalId,
}

/// What a frame says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whose journal it belongs to.
    pub identity: JournalIdentity,
    /// The start of the node in which it was written.
    pub incarnation: Incarnation,
    /// Its place in the journal.
    pub sequence: FrameSequence,
    /// The hash of the header of the frame before it.
    pub previous_hash: u64,
    /// The highest sequence known flushed when it was built.
    pub mark: FrameSequence,
    /// Bytes of the whole frame; a multiple of the block.
    pub bytes: u32,
    /// Its entries.
    pub entries: u32,
    /// CRC32C of entry headers, entry bodies (of extents: their headers) and padding.
    pub inner_crc: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    format: U16,
    header_len: U16,
    cluster: [u8; 16],
    node: I32,
    incarnation: U32,
    journal: U32,
    entries: U32,
    sequence: U64,
    previous_hash: U64,
    mark: U64,
    bytes: U32,
    inner_crc: U32,
    reserved: [u8; 20],
    header_crc: U32,
}

const _: () = assert!(size_of::<Raw>() == FRAME_HEADER_BYTES);

impl FrameHeader {
    /// Reads and checks a header at the start of `bytes`; nothing behind it is looked at.
    pub fn decode(bytes: &[u8]) -> Result<FrameHeader, DiskError> {
        let raw: &Raw = header::open(bytes, MAGIC, "frame header")?;
        let header = FrameHeader {
            identity: JournalIdentity {
                cluster: ClusterId(raw.cluster),
                node: NodeId(raw.node.get()),
                journal: JournalId(raw.journal.get()),
            },
            incarnation: Incarnation(raw.incarnation.get()),
            sequence: FrameSequence(raw.sequence.get()),
            previous_hash: raw.previous_hash.get(),
            mark: FrameSequence(raw.mark.get()),
            bytes: raw.bytes.get(),
            entries: raw.entries.get(),
            inner_crc: raw.inner_crc.get(),
        };
        let blocks = header.bytes > 0 && (header.bytes as usize).is_multiple_of(BLOCK);
        if !blocks || header.sequence.0 == 0 || header.mark >= header.sequence || raw.reserved != [0; 20] {
            return Err(DiskError::bad("frame bounds", 40));
        }
        Ok(header)
    }

    fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            format: U16::new(FORMAT),
            header_len: U16::new(FRAME_HEADER_BYTES as u16),
            cluster: self.identity.cluster.0,
            node: I32::new(self.identity.node.0),
            incarnation: U32::new(self.incarnation.0),
            journal: U32::new(self.identity.journal.0),
            entries: U32::new(self.entries),
            sequence: U64::new(self.sequence.0),
            previous_hash: U64::new(self.previous_hash),
            mark: U64::new(self.mark.0),
            bytes: U32::new(self.bytes),
            inner_crc: U32::new(self.inner_crc),
            reserved: [0; 20],
            header_crc: U32::new(0),
        };
        let mut out = [0; FRAME_HEADER_BYTES];
        out.copy_from_slice(raw.as_bytes());
        header::seal(&mut out);
        out
    }
}

/// The hash by which the next frame names this one: FNV-1a over the bytes of the header, independent of its CRC.
///
/// # Panics
/// If `frame` is shorter than a header.
pub fn header_hash(frame: &[u8]) -> u64 {
    frame[..FRAME_HEADER_BYTES]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Lays a frame out in memory that is already its final place.
#[derive(Debug)]
pub struct FrameBuilder<'a> {
    out: &'a mut [u8],
    at: usize,
    entries: u32,
}

impl<'a> FrameBuilder<'a> {
    /// A frame without entries. `out` must hold all that will be pushed, see [`frame_bytes`].
    pub fn new(out: &'a mut [u8]) -> FrameBuilder<'a> {
        FrameBuilder { out, at: FRAME_HEADER_BYTES, entries: 0 }
    }

    /// Adds an entry. Returns where its body lies in the frame.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn push(&mut self, entry: &Entry<'_>) -> usize {
        if let Entry::Extent { how, bytes } = entry {
            let (at, place) = self.extent(*how, bytes.len());
            place.copy_from_slice(bytes);
            return at;
        }
        let (kind, flags, body) = entry.encode();
        let (at, place) = self.reserve(kind, flags, body.len());
        place.copy_from_slice(&body);
        at
    }

    /// Adds an extent of `len` bytes, header included, and returns where it lies in the frame and the memory that the caller
    /// fills with it.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn extent(&mut self, how: Carriage, len: usize) -> (usize, &mut [u8]) {
        let flags = match how {
            Carriage::Fresh => 0,
            Carriage::Carried => FLAG_CARRIED,
        };
        self.reserve(KIND_EXTENT, flags, len)
    }

    fn reserve(&mut self, kind: u8, flags: u8, len: usize) -> (usize, &mut [u8]) {
        let start = self.at;
        let end = start + entry_bytes(len);
        let body = start + ENTRY_HEADER_BYTES;
        assert!(end <= self.out.len(), "an entry of {len} bytes at {start} of a frame of {}", self.out.len());
        self.out[start] = kind;
        self.out[start + 1] = flags;
        self.out[start + 2..start + 4].fill(0);
        self.out[start + 4..body].copy_from_slice(&(len as u32).to_le_bytes());
        self.out[body + len..end].fill(0);
        self.at = end;
        self.entries += 1;
        (body, &mut self.out[body..body + len])
    }

    /// Bytes used so far.
    pub fn used(&self) -> usize {
        self.at
    }

    /// Completes the frame: zeros up to a whole block, then the header, of which length, count and inner CRC are set
    /// here. Returns the frame's bytes and its hash.
    pub fn finish(self, mut header: FrameHeader) -> (usize, u64) {
        let bytes = whole_blocks(self.at);
        self.out[self.at..bytes].fill(0);
        header.bytes = bytes as u32;
        header.entries = self.entries;
        header.inner_crc =
            inner_crc(&self.out[..bytes], self.entries).expect("the entries were just laid out");
        self.out[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
        (bytes, header_hash(self.out))
    }
}

/// Bytes of a frame whose entries take `entries` bytes together, each counted by [`entry_bytes`].
pub fn frame_bytes(entries: usize) -> usize {
    whole_blocks(FRAME_HEADER_BYTES + entries)
}

/// A frame that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it says about itself.
    pub header: FrameHeader,
    /// Its hash, by which the next frame names it.
    pub hash: u64,
    /// Its entries, each with the place of its body in the frame.
    pub entries: Vec<(usize, Entry<'a>)>,
}

impl<'a> Frame<'a> {
    /// Reads a frame at the start of `bytes` and checks all of it, the payload of every extent included.
    pub fn decode_whole(bytes: &'a [u8]) -> Result<Frame<'a>, DiskError> {
        let header = FrameHeader::decode(bytes)?;
        let frame = bytes.get(..header.bytes as usize).ok_or(DiskError::short("frame", bytes.len()))?;
        if inner_crc(frame, header.entries)? != header.inner_crc {
            return Err(DiskError::crc("frame", 68));
        }
        let mut entries = Vec::new();
        let mut at = FRAME_HEADER_BYTES;
        for _ in 0..header.entries {
            let raw = RawEntry::read(frame, at)?;
            let entry = entry::decode(raw.kind, raw.flags, raw.body, at)?;
            if let Entry::Extent { bytes, .. } = &entry {
                let (extent, _) = ExtentHeader::decode_whole(bytes)?;
                if extent.total_bytes() != bytes.len() {
                    return Err(DiskError::bad("extent entry length", at));
                }
            }
            entries.push((at + ENTRY_HEADER_BYTES, entry));
            at += entry_bytes(raw.body.len());
        }
        Ok(Frame { header, hash: header_hash(frame), entries })
    }
}

struct RawEntry<'a> {
    kind: u8,
    flags: u8,
    body: &'a [u8],
}

impl<'a> RawEntry<'a> {
    fn read(frame: &'a [u8], at: usize) -> Result<RawEntry<'a>, DiskError> {
        let head = frame.get(at..at + ENTRY_HEADER_BYTES).ok_or(DiskError::short("entry header", at))?;
        let len = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        let body = at + ENTRY_HEADER_BYTES;
        if frame.len() < at + entry_bytes(len) {
            return Err(DiskError::short("entry", at));
        }
        if head[2..4] != [0; 2] {
            return Err(DiskError::bad("entry reserved bytes", at));
        }
        Ok(RawEntry { kind: head[0], flags: head[1], body: &frame[body..body + len] })
    }
}

/// CRC32C over everything behind the header but the payloads of extents.
fn inner_crc(frame: &[u8], entries: u32) -> Result<u32, DiskError> {
    let mut at = FRAME_HEADER_BYTES;
    let mut crc = 0;
    for _ in 0..entries {
        let raw = RawEntry::read(frame, at)?;
        let end = at + entry_bytes(raw.body.len());
        if raw.kind == KIND_EXTENT {
            if raw.body.len() < EXTENT_HEADER_BYTES {
                return Err(DiskError::short("extent entry", at));
            }
            let covered = at + ENTRY_HEADER_BYTES + EXTENT_HEADER_BYTES;
            crc = crc32c::crc32c_append(crc, &frame[at..covered]);
            crc = crc32c::crc32c_append(crc, &frame[at + ENTRY_HEADER_BYTES + raw.body.len()..end]);
        } else {
            crc = crc32c::crc32c_append(crc, &frame[at..end]);
        }
        at = end;
    }
    Ok(crc32c::crc32c_append(crc, &frame[at..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::disk::entry::{Assign, Cut, Free, ProducerNote, Recovered, RunMark, Start};
    use crate::extent::LogKind;
    use crate::ids::{
        FileId, Generation, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, TopicId,
        TopicPartition,
    };

    const LOG: TopicPartition = TopicPartition { topic: TopicId([9; 16]), partition: PartitionId(1) };

    fn header() -> FrameHeader {
        FrameHeader {
            identity: JournalIdentity { cluster: ClusterId([1; 16]), node: NodeId(2), journal: JournalId(3) },
            incarnation: Incarnation(4),
            sequence: FrameSequence(6),
            previous_hash: 0x1122_3344_5566_7788,
            mark: FrameSequence(5),
            bytes: 0,
            entries: 0,
            inner_crc: 0,
        }
    }

    fn extent(payload: &[u8]) -> Vec<u8> {
        let header = ExtentHeader {
            log: LOG,
            kind: LogKind::Data,
            flags: 0,
            leader_epoch: LeaderEpoch(1),
            base: Offset(10),
            end: Offset(11),
            batch_count: 1,
            byte_len: payload.len() as u32,
            append_time_ms: 5,
            max_timestamp_ms: 6,
            payload_crc: crc32c::crc32c(payload),
        };
        [&header.encode()[..], payload].concat()
    }

    fn one_of_each(fresh: &[u8]) -> Vec<Entry<'_>> {
        vec![
            Entry::Recovered(Recovered {
                incarnation: Incarnation(4),
                last_kept: FrameSequence(5),
                last_hash: 0x0102_0304_0506_0708,
            }),
            Entry::Extent { how: Carriage::Fresh, bytes: fresh },
            Entry::Extent { how: Carriage::Carried, bytes: fresh },
            Entry::Run(RunMark {
                log: LOG,
                base: Offset(20),
                end: Offset(30),
                file: FileId(0x3_0000_0007),
                generation: Generation(2),
                at: 8192,
                bytes: 4096,
                crc: 0xaabb_ccdd,
                run_sequence: 1,
                append_first_ms: 100,
                append_last_ms: 101,
                max_timestamp_ms: 102,
                producers: vec![ProducerNote {
                    producer: ProducerId(77),
                    epoch: ProducerEpoch(1),
                    base_sequence: Sequence(40),
                    record_count: 10,
                    base: Offset(20),
                    append_time_ms: 100,
                }],
            }),
            Entry::Start(Start { log: LOG, offset: Offset(5) }),
            Entry::Cut(Cut { log: LOG, offset: Offset(6) }),
            Entry::Assign(Assign {
                file: FileId(0x3_0000_0007),
                generation: Generation(2),
                log: LOG,
                base: Offset(20),
            }),
            Entry::Free(Free { file: FileId(0x3_0000_0008), generation: Generation(1) }),
        ]
    }

    fn build(entries: &[Entry<'_>], room: usize) -> Vec<u8> {
        let mut out = vec![0xaa; room];
        let mut builder = FrameBuilder::new(&mut out);
        for entry in entries {
            builder.push(entry);
        }
        let (bytes, _) = builder.finish(header());
        out.truncate(bytes);
        out
    }

    #[test]
    fn golden_bytes_of_a_frame_with_every_kind_of_entry() {
        let fresh = extent(b"hello");
        let frame = build(&one_of_each(&fresh), BLOCK);
        let hex = |range: std::ops::Range<usize>| {
            frame[range].iter().map(|b| format!("{b:02x}")).collect::<String>()
        };
        assert_eq!(
            hex(0..96),
            concat!(
                "5447667201006000",
                "01010101010101010101010101010101",
                "02000000",
                "04000000",
                "03000000",
                "08000000",
                "0600000000000000",
                "8877665544332211",
                "0500000000000000",
                "00100000",
                "0969f940",
                "0000000000000000000000000000000000000000",
                "e623bb9e"
            )
        );
        // The CRC over all entries stands for their bytes: it changes with any of them.
        assert_eq!(header_hash(&frame), 8_449_972_308_068_747_110);
    }

    #[test]
    fn every_flipped_byte_of_a_frame_is_noticed() {
        let fresh = extent(b"hello");
        let good = build(&one_of_each(&fresh), BLOCK);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x04;
            assert!(Frame::decode_whole(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn an_empty_frame_is_one_block() {
        let frame = build(&[], BLOCK);
        assert_eq!(frame.len(), BLOCK);
        assert!(Frame::decode_whole(&frame).expect("whole").entries.is_empty());
    }

    proptest! {
        #[test]
        fn a_frame_reads_back_as_written(payload in proptest::collection::vec(any::<u8>(), 1..9000)) {
            let fresh = extent(&payload);
            let entries = one_of_each(&fresh);
            let frame = build(&entries, 8 * BLOCK);
            let read = Frame::decode_whole(&frame).expect("whole");
            let found: Vec<Entry<'_>> = read.entries.into_iter().map(|(_, entry)| entry).collect();
            prop_assert_eq!(found, entries);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Frame::decode_whole(&bytes);
        }

        #[test]
        fn no_change_of_a_frame_makes_the_decoder_panic(at in 0usize..4096, value: u8, len in 0usize..4097) {
            let fresh = extent(b"hello");
            let mut frame = build(&one_of_each(&fresh), BLOCK);
            frame[at] = value;
            frame.truncate(len);
            let _ = Frame::decode_whole(&frame);
        }
    }
}
