//! What is checked of everything that lies on a drive, and of the records of the broker's own topics.

use tidegate_protocol::disk::checkpoint::{self, Contents};
use tidegate_protocol::disk::entry::Entry;
use tidegate_protocol::disk::frame::{FRAME_HEADER_BYTES, Frame, FrameBuilder, FrameHeader};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader, run_bytes};
use tidegate_protocol::disk::run_scan::{Cursor, RunOwner, Scan, Step};
use tidegate_protocol::disk::superblock::Superblock;
use tidegate_protocol::disk::{BLOCK, DiskError};
use tidegate_protocol::extent::{EXTENT_HEADER_BYTES, ExtentHeader, identity_crc};
use tidegate_protocol::ids::{ClusterId, FileId, Generation, Offset, PartitionId, TopicId, TopicPartition};
use tidegate_protocol::internal::{MetadataRecord, OffsetRecord};

use super::Outcome;
use super::measure::bounded;

/// Bytes of memory that a structure may take for each of its own bytes.
const MEMORY_PER_BYTE: usize = 16;
/// Bytes of memory for a structure of any length.
const MEMORY_LEAST: usize = 1 << 10;

fn memory_of(bytes: &[u8]) -> usize {
    MEMORY_PER_BYTE * bytes.len() + MEMORY_LEAST
}

fn refused(error: &DiskError) -> Outcome {
    assert!(!error.to_string().is_empty());
    Outcome::Refused
}

/// An extent.
pub fn extent(bytes: &[u8]) -> Outcome {
    let header = bounded("reading an extent's header", 0, || ExtentHeader::decode(bytes));
    if let Ok(header) = &header {
        assert_eq!(header.encode(), bytes[..EXTENT_HEADER_BYTES], "a header comes back byte for byte");
        assert!(identity_crc(&header.encode()) == identity_crc(bytes));
    }
    match bounded("reading an extent", 0, || ExtentHeader::decode_whole(bytes)) {
        Ok((whole, payload)) => {
            assert_eq!(header.as_ref(), Ok(&whole));
            assert_eq!(payload.len(), whole.byte_len as usize);
            assert_eq!(whole.total_bytes(), EXTENT_HEADER_BYTES + payload.len());
            Outcome::Taken
        }
        Err(error) => refused(&error),
    }
}

/// A run.
pub fn run(bytes: &[u8]) -> Outcome {
    let whole = bounded("reading a run", memory_of(bytes), || RunHeader::decode_whole(bytes));
    let (header, extents) = match whole {
        Ok(whole) => whole,
        Err(error) => return refused(&error),
    };
    let (mut at, mut next) = (RUN_HEADER_BYTES, header.base);
    for extent in &extents {
        assert_eq!((extent.at, extent.header.base), (at, next), "extents lie back to back");
        assert_eq!(extent.header.log, header.log);
        (at, next) = (at + extent.header.total_bytes(), extent.header.end);
    }
    assert_eq!(next, header.end);
    assert_eq!(extents.len(), header.extents as usize);
    let mut again = bytes[..header.bytes as usize].to_vec();
    if run_bytes(at - RUN_HEADER_BYTES) == again.len() {
        header.finish(&mut again, at);
        assert_eq!(again, bytes[..again.len()], "a run comes back byte for byte");
    }
    assert_eq!(RunHeader::crc_of(&again), RunHeader::crc_of(bytes));
    Outcome::Taken
}

/// The runs of a segment, extent by extent: with all bytes there, and with those before the next one left out.
pub fn run_scan(bytes: &[u8]) -> Outcome {
    let (owner, base) = match RunHeader::decode(bytes) {
        Ok(run) => (
            RunOwner { cluster: run.cluster, file: run.file, generation: run.generation, log: run.log },
            run.base,
        ),
        Err(_) => (
            RunOwner {
                cluster: ClusterId([0; 16]),
                file: FileId(0),
                generation: Generation(0),
                log: TopicPartition { topic: TopicId([0; 16]), partition: PartitionId(0) },
            },
            Offset(0),
        ),
    };
    let written = (bytes.len() - bytes.len() % BLOCK) as u64;
    let mut scan = Scan::new(bytes, 0, written, owner, Cursor::at_run(0, base));
    let (mut extents, mut run_end, mut left) = (0, 0, 0);
    loop {
        let step = bounded("a step of a scan", 0, || scan.step());
        assert_eq!(scan.step(), step, "a step is the same until it is passed");
        let cursor = scan.cursor();
        let from = usize::try_from(cursor.pos).map_or(bytes.len(), |pos| pos.min(bytes.len()));
        let later = Scan::new(&bytes[from..], from as u64, written, owner, cursor).step();
        match (&step, &later) {
            (Step::Extent(header, place), Step::Extent(other, elsewhere)) => {
                assert_eq!((header, place.len()), (other, elsewhere.len()));
                assert_eq!(&bytes[place.clone()], &bytes[from..][elsewhere.clone()], "the same payload");
                assert_eq!(place.len(), header.byte_len as usize);
            }
            _ => assert_eq!(step, later, "what a piece begins with does not matter"),
        }
        match step {
            Step::Extent(header, _) => {
                extents += 1;
                if left == 0 {
                    let run = RunHeader::decode(&bytes[run_end..]).expect("an extent lies in a run");
                    (run_end, left) = (run_end + run.bytes as usize, run.extents);
                }
                left -= 1;
                let end = cursor.pos as usize + header.total_bytes();
                assert!(end <= run_end, "an extent to {end} of a run to {run_end}");
                assert!(extents <= bytes.len() / EXTENT_HEADER_BYTES, "a scan comes to its end");
                scan.pass(&header);
            }
            Step::DamagedRest(rest) => {
                assert!(rest.from <= rest.upto && rest.end >= cursor.pos, "what is left: {rest:?}");
                (run_end, left) = (rest.end as usize, 0);
                scan.pass_rest(&rest);
            }
            Step::Cut(_) | Step::PieceEnd | Step::End | Step::DamagedRun => break,
        }
    }
    if extents > 0 { Outcome::Taken } else { Outcome::Refused }
}

/// A journal frame with its entries.
pub fn journal_frame(bytes: &[u8]) -> Outcome {
    let header = bounded("reading a frame's header", 0, || FrameHeader::decode(bytes));
    let frame = match bounded("reading a frame", memory_of(bytes), || Frame::decode_whole(bytes)) {
        Ok(frame) => frame,
        Err(error) => return refused(&error),
    };
    assert_eq!(header.as_ref(), Ok(&frame.header));
    assert_eq!(frame.entries.len(), frame.header.entries as usize);
    let mut again = vec![0; frame.header.bytes as usize];
    let mut builder = FrameBuilder::new(&mut again);
    for (at, entry) in &frame.entries {
        assert_eq!(builder.push(entry), *at, "entries lie back to back");
        if let Entry::Extent { bytes: extent, .. } = entry {
            assert_eq!(extent.as_ptr(), bytes[*at..].as_ptr(), "an extent stays where it is");
            let (header, _) = ExtentHeader::decode_whole(extent).expect("an extent that was checked");
            assert_eq!(header.total_bytes(), extent.len(), "an entry is its extent and no more");
        }
    }
    let (len, _) = builder.finish(frame.header);
    let again = Frame::decode_whole(&again[..len]).expect("a frame that was laid out");
    assert_eq!(again.entries, frame.entries, "entries come back");
    assert!(len >= FRAME_HEADER_BYTES && len <= frame.header.bytes as usize);
    Outcome::Taken
}

/// A block of a superblock.
pub fn superblock(bytes: &[u8]) -> Outcome {
    match bounded("reading a superblock", memory_of(bytes), || Superblock::decode(bytes)) {
        Ok(superblock) => {
            superblock.check();
            assert_eq!(superblock.encode(), bytes, "a superblock comes back byte for byte");
            Outcome::Taken
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Outcome::Refused
        }
    }
}

/// A checkpoint with its archive.
pub fn checkpoint(bytes: &[u8]) -> Outcome {
    let header = bounded("reading a checkpoint's header", 0, || checkpoint::decode_header(bytes));
    let (whole, body) = match bounded("reading a checkpoint", memory_of(bytes), || checkpoint::decode(bytes))
    {
        Ok(checkpoint) => checkpoint,
        Err(error) => return refused(&error),
    };
    let (header, total) = header.expect("the header of a whole checkpoint");
    assert_eq!(header, whole);
    assert!(total <= bytes.len() as u64);
    let again = checkpoint::encode(&whole, &body);
    assert_eq!(again.len(), Contents::of(&body).encoded_bytes(), "its size follows from what it holds");
    assert_eq!(checkpoint::decode(&again).as_ref(), Ok(&(whole, body)), "a checkpoint comes back");
    Outcome::Taken
}

/// Bytes in front of an internal record's value: the key's length, below which there is no key.
const NO_KEY: u8 = 0xff;

/// Key and value of an internal record: one byte of the key's length, the key, the value.
fn key_and_value(bytes: &[u8]) -> (Option<&[u8]>, Option<&[u8]>) {
    let Some((len, rest)) = bytes.split_first() else { return (None, None) };
    if *len == NO_KEY {
        return (None, Some(rest));
    }
    match rest.split_at_checked(usize::from(*len)) {
        Some((key, value)) => (Some(key), Some(value)),
        None => (Some(rest), None),
    }
}

/// A record of the log of topics.
pub fn metadata_record(bytes: &[u8]) -> Outcome {
    let (key, value) = key_and_value(bytes);
    let read = bounded("reading a record", memory_of(bytes), || MetadataRecord::decode(key, value));
    let Ok(record) = read else { return Outcome::Refused };
    let written = record.encode();
    assert_eq!(MetadataRecord::decode(Some(&written.key), Some(&written.value)).as_ref(), Ok(&record));
    assert_eq!((Some(&written.key[..]), Some(&written.value[..])), (key, value), "byte for byte");
    Outcome::Taken
}

/// A record of the log of stored offsets.
pub fn offset_record(bytes: &[u8]) -> Outcome {
    let (key, value) = key_and_value(bytes);
    let read = bounded("reading a record", memory_of(bytes), || OffsetRecord::decode(key, value));
    let Ok(record) = read else { return Outcome::Refused };
    let written = record.encode();
    assert_eq!(OffsetRecord::decode(Some(&written.key), Some(&written.value)).as_ref(), Ok(&record));
    assert_eq!((Some(&written.key[..]), Some(&written.value[..])), (key, value), "byte for byte");
    Outcome::Taken
}
