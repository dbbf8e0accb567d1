//! Where the structures of a data directory lie, found by decoding them, so that a bit of each can be flipped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tidegate_broker::datadir::{data_file, journal_file};
use tidegate_broker::limits::Limits;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader};
use tidegate_protocol::disk::entry::Entry;
use tidegate_protocol::disk::frame::{Frame, FrameHeader};
use tidegate_protocol::disk::run::{RunExtent, RunHeader};
use tidegate_protocol::disk::superblock::Superblock;
use tidegate_protocol::extent::EXTENT_HEADER_BYTES;
use tidegate_protocol::ids::{FileId, JournalId, TopicId};

/// A run that a checkpoint names.
pub(super) struct Run {
    /// Its data file.
    pub(super) path: PathBuf,
    /// Where it begins.
    pub(super) at: u64,
    /// Its header.
    pub(super) header: RunHeader,
    /// Its extents.
    pub(super) extents: Vec<RunExtent>,
}

/// A frame behind the newest checkpoint.
pub(super) struct ChainFrame {
    /// The file of the ring.
    pub(super) path: PathBuf,
    /// Where it begins.
    pub(super) at: u64,
    /// Its number.
    pub(super) sequence: u64,
    /// The mark that it carries.
    pub(super) mark: u64,
    /// Bytes of it.
    pub(super) bytes: u64,
    /// Where the batches of its first extent begin, in bytes from the start of the frame.
    pub(super) payload: Option<u64>,
    /// Whether it holds records of clients.
    pub(super) has_records: bool,
}

/// A small extent that lies in the journal alone.
pub(super) struct Small {
    /// The file of the ring.
    pub(super) path: PathBuf,
    /// Where the extent begins.
    pub(super) at: u64,
    /// Where its frame begins, and where it ends.
    pub(super) frame: Range<u64>,
    /// Its topic.
    pub(super) topic: TopicId,
    /// Its partition.
    pub(super) partition: i32,
    /// Its first offset.
    pub(super) base: i64,
}

/// The journals of the shards, shard 0's first.
pub(super) fn journals(root: &Path) -> io::Result<Vec<JournalId>> {
    let bytes = fs::read(root.join("superblock"))?;
    let superblock = Superblock::decode(&bytes[..BLOCK]).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(superblock.layout.journals)
}

/// The slots of a journal that hold a checkpoint, newest first, as numbers.
pub(super) fn slots(
    root: &Path,
    journal: JournalId,
) -> io::Result<Vec<(u32, CheckpointHeader, CheckpointBody)>> {
    let mut found = Vec::new();
    for slot in 0..3 {
        if let Ok((header, body)) = checkpoint::decode(&fs::read(slot_path(root, journal, slot))?) {
            found.push((slot, header, body));
        }
    }
    found.sort_by_key(|(_, header, _)| std::cmp::Reverse(header.sequence));
    Ok(found)
}

/// The path of a checkpoint slot.
pub(super) fn slot_path(root: &Path, journal: JournalId, slot: u32) -> PathBuf {
    journal_file(root, journal, &format!("checkpoint-{slot}"))
}

/// A place in a journal's ring: the file, and the place within it.
fn ring_place(root: &Path, journal: JournalId, at: u64) -> (PathBuf, u64) {
    let bytes = Limits::DEFAULT.ring_file_bytes;
    (journal_file(root, journal, &format!("ring-{:02}", at / bytes)), at % bytes)
}

/// All small extents that the newest checkpoint of a journal names, those of the broker's own topics too.
pub(super) fn small(root: &Path, journal: JournalId) -> io::Result<Vec<Small>> {
    let slots = slots(root, journal)?;
    let logs = slots.first().map(|(_, _, body)| body.logs.as_slice()).unwrap_or_default();
    let mut found = Vec::new();
    for log in logs {
        for place in &log.extents {
            let (path, frame_at) = ring_place(root, journal, place.frame_at);
            let header = FrameHeader::decode(&read(&path, frame_at, BLOCK)?)
                .map_err(|e| io::Error::other(format!("{} at {frame_at}: {e}", path.display())))?;
            let (topic, partition, base) = (TopicId(log.topic), log.partition, place.base);
            let (at, frame) = (frame_at + u64::from(place.at), frame_at..frame_at + u64::from(header.bytes));
            found.push(Small { path, at, frame, topic, partition, base });
        }
    }
    Ok(found)
}

/// The frames that follow the newest checkpoint of a journal.
pub(super) fn chain(root: &Path, journal: JournalId) -> io::Result<Vec<ChainFrame>> {
    let slots = slots(root, journal)?;
    let Some((_, header, _)) = slots.first() else { return Ok(Vec::new()) };
    let (mut at, mut sequence, mut found) = (header.next_at, header.sequence.0, Vec::new());
    loop {
        let (path, within) = ring_place(root, journal, at);
        let bytes = read(&path, within, Limits::DEFAULT.frame_bytes_max)?;
        let Ok(frame) = Frame::decode_whole(&bytes) else { return Ok(found) };
        if frame.header.sequence.0 != sequence + 1 {
            return Ok(found);
        }
        sequence += 1;
        at += u64::from(frame.header.bytes);
        let has_records =
            frame.entries.iter().any(|(_, entry)| matches!(entry, Entry::Extent { .. } | Entry::Run(_)));
        let payload = frame.entries.iter().find_map(|(at, entry)| match entry {
            Entry::Extent { .. } => Some((at + EXTENT_HEADER_BYTES) as u64),
            _ => None,
        });
        let (mark, bytes) = (frame.header.mark.0, u64::from(frame.header.bytes));
        found.push(ChainFrame { path, at: within, sequence, mark, bytes, payload, has_records });
    }
}

/// Every run of a topic that the checkpoints of a journal name.
pub(super) fn runs(root: &Path, journal: JournalId, topic: TopicId) -> io::Result<Vec<Run>> {
    let slots = slots(root, journal)?;
    let files = slots.first().map(|(_, _, body)| body.files.as_slice()).unwrap_or_default();
    let mut found = Vec::new();
    for file in files {
        let Some(owner) = file.owner.as_ref().filter(|owner| owner.topic == topic.0) else { continue };
        let path = data_file(root, FileId(file.file));
        let bytes = fs::read(&path)?;
        let mut at = 0;
        while at < owner.written {
            let (header, extents) = RunHeader::decode_whole(&bytes[at as usize..])
                .map_err(|e| io::Error::other(format!("{} at {at}: {e}", path.display())))?;
            let next = at + u64::from(header.bytes);
            found.push(Run { path: path.clone(), at, header, extents });
            at = next;
        }
    }
    Ok(found)
}

/// Flips one bit.
pub(super) fn flip(path: &Path, at: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 4;
    file.write_all_at(&byte, at)?;
    // A broker reads directly, past the page cache.
    file.sync_data()
}

/// Copies a data directory; what is zeros stays a hole.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let ran = std::process::Command::new("cp")
        .args(["-r", "--sparse=always", "--no-target-directory"])
        .args([from, to])
        .status()?;
    if !ran.success() {
        return Err(io::Error::other(format!("cp {} {}: {ran}", from.display(), to.display())));
    }
    Ok(())
}

fn read(path: &Path, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let left = file.metadata()?.len().saturating_sub(at);
    let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(len))];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
