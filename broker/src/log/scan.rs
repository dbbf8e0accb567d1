//! Reading a journal as it was found: checkpoint slots, the chain of frames, marks further on, runs. What follows from it is
//! decided in [`super::recover`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader, ExtentPlace, LogState};
use tidegate_protocol::disk::entry::{Entry, RunMark};
use tidegate_protocol::disk::frame::{Frame, FrameHeader};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::disk::{BLOCK, whole_blocks};
use tidegate_protocol::ids::FrameSequence;
use tidegate_reactor::buffer::Buffer;
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::Fault;

use super::checkpoint::Kept;
use super::decision::{FrameKind, Link, NextFrame, Runs, follows};
use super::journal::{SLOTS, ring_path, slot_path};
use super::{OpenError, ShardBoot};
use crate::datadir::{JOURNALS_FIRST, data_file};

pub(super) const ENOENT: i32 = 2;

/// A frame of the chain behind the checkpoint.
pub(super) struct ChainFrame {
    pub(super) at: u64,
    pub(super) bytes: usize,
    pub(super) header: FrameHeader,
    pub(super) hash: u64,
    pub(super) runs: Vec<RunMark>,
    pub(super) kind: FrameKind,
}

/// The files of the ring, read in large pieces.
pub(super) struct Ring {
    pub(super) files: Vec<DiskFile>,
    pub(super) file_bytes: u64,
    pub(super) window_at: u64,
    pub(super) window: Buffer,
}

impl Ring {
    pub(super) fn open(disk: &mut dyn Disk, boot: &ShardBoot) -> Result<Ring, OpenError> {
        let (limits, journal) = (&boot.limits, boot.identity.journal);
        let mut files = Vec::new();
        for index in 0..limits.ring_files {
            let path = ring_path(&boot.root, journal, index);
            let file = match disk.open(&path) {
                Ok(file) => file,
                Err(fault) if fault.errno == ENOENT => {
                    let cause = "this file of the journal's ring is missing; it held acknowledged records that may lie nowhere \
                                 else, and without it the shard cannot be recovered: put it back, or restore the whole \
                                 directory from a backup";
                    return Err(OpenError::Refused { file: path, cause: cause.into() });
                }
                Err(fault) => return Err(fault.into()),
            };
            let len = disk.len(file)?;
            if len != limits.ring_file_bytes {
                let cause = format!("the file has {len} bytes and should have {}", limits.ring_file_bytes);
                return Err(OpenError::Refused { file: path, cause });
            }
            files.push(file);
        }
        Ok(Ring { files, file_bytes: limits.ring_file_bytes, window_at: 0, window: Buffer::zeroed(0) })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.file_bytes * self.files.len() as u64
    }

    pub(super) fn path_of(&self, boot: &ShardBoot, at: u64) -> PathBuf {
        let index = (at % self.bytes()) / self.file_bytes;
        ring_path(&boot.root, boot.identity.journal, index as u32)
    }

    /// The file of a place where a frame is expected, and the next one, at whose start it lies if it did not fit here.
    pub(super) fn paths_of(&self, boot: &ShardBoot, at: u64) -> (PathBuf, Option<PathBuf>) {
        let within = at % self.file_bytes;
        let next = (within > 0).then(|| self.path_of(boot, at - within + self.file_bytes));
        (self.path_of(boot, at), next)
    }

    /// What lies at a place; shorter at the end of the place's file.
    pub(super) fn look(&mut self, disk: &mut dyn Disk, at: u64, len: usize) -> Result<&[u8], Fault> {
        const WINDOW_BYTES: usize = 1 << 20;
        let left = (self.file_bytes - at % self.file_bytes) as usize;
        let len = whole_blocks(len).min(left);
        let inside = at >= self.window_at && at + len as u64 <= self.window_at + self.window.filled() as u64;
        if !inside {
            let wanted = len.max(WINDOW_BYTES).min(left);
            let file = self.files[(at / self.file_bytes) as usize];
            self.window = disk.read(file, at % self.file_bytes, wanted)?;
            self.window_at = at;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..(from + len).min(self.window.filled())])
    }

    pub(super) fn read(&mut self, disk: &mut dyn Disk, at: u64, len: usize) -> Result<Vec<u8>, Fault> {
        Ok(self.look(disk, at, len)?.to_vec())
    }

    /// The bytes of a small extent, or what lies at its place.
    pub(super) fn read_extent(&mut self, disk: &mut dyn Disk, place: &ExtentPlace) -> Result<Vec<u8>, Fault> {
        let block = BLOCK as u64;
        let at = place.frame_at + u64::from(place.at);
        let from = at / block * block;
        let skip = (at - from) as usize;
        let end = skip + place.bytes as usize;
        let found = self.look(disk, from, end)?;
        Ok(found.get(skip..end).unwrap_or_default().to_vec())
    }

    pub(super) fn write(&mut self, disk: &mut dyn Disk, at: u64, data: &Buffer) -> Result<(), Fault> {
        self.window.set_filled(0);
        disk.write(self.files[(at / self.file_bytes) as usize], at % self.file_bytes, data)
    }
}

pub(super) type SlotFound = (u32, CheckpointHeader, CheckpointBody);

/// All whole checkpoints of this journal, newest first. One that is not whole is said. A slot that is missing is made anew, empty,
/// if it is the only one: one of the other two is kept, then, and all frames behind it.
pub(super) fn read_slots(
    disk: &mut dyn Disk,
    boot: &ShardBoot,
    notes: &mut Vec<String>,
) -> Result<(Vec<DiskFile>, Vec<SlotFound>), OpenError> {
    let mut slots = Vec::new();
    let mut found = Vec::new();
    let mut missing = Vec::new();
    let mut broken = Vec::new();
    for slot in 0..SLOTS {
        let path = slot_path(&boot.root, boot.identity.journal, slot);
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(fault) if fault.errno == ENOENT => {
                missing.push((slot, path));
                continue;
            }
            Err(fault) => return Err(fault.into()),
        };
        slots.push(file);
        let first = disk.read(file, 0, BLOCK)?;
        // It was never written.
        if first.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (header, bytes) = match checkpoint::decode_header(&first) {
            Ok(sound) => sound,
            Err(error) => {
                broken.push((path, error.to_string()));
                continue;
            }
        };
        if header.identity != boot.identity {
            let cause = "it belongs to another cluster, node or journal".into();
            return Err(OpenError::Refused { file: path, cause });
        }
        let len = disk.len(file)?;
        if bytes > len {
            broken.push((path, format!("it has {bytes} bytes and its file {len}")));
            continue;
        }
        let whole = disk.read(file, 0, bytes as usize)?;
        match checkpoint::decode(&whole) {
            Ok((header, body)) => found.push((slot, header, body)),
            Err(error) => broken.push((path, error.to_string())),
        }
    }
    found.sort_by_key(|(slot, header, _)| (std::cmp::Reverse(header.sequence), *slot));
    if let Some((slot, header, _)) = found.first() {
        let sequence = header.sequence;
        notes.extend(broken.iter().map(|(path, error)| {
            format!(
                "{}: the checkpoint in it is not whole ({error}): it is damaged, or the power was lost while it was written; the \
                 shard is recovered from the one after frame {sequence} in slot {slot} and the frames behind it, and this slot is \
                 written anew by the next checkpoint; if no power was lost, look after the drive",
                path.display()
            )
        }));
    }
    match &missing[..] {
        [] => {}
        [(slot, path)] if !found.is_empty() => {
            slots.insert(*slot as usize, disk.create_zeroed(path, boot.limits.checkpoint_slot_bytes)?);
            notes.push(format!(
                "{} was missing: the shard is recovered from another checkpoint, and an empty slot was made in its place; \
                 find out who removed it",
                path.display()
            ));
        }
        [(_, path), ..] => {
            let cause = format!(
                "{} of the three checkpoint slots are missing and {} of the others are whole: what is left may be older than \
                 what the ring still holds; restore the whole directory from a backup",
                missing.len(),
                found.len()
            );
            return Err(OpenError::Refused { file: path.clone(), cause });
        }
    }
    Ok((slots, found))
}

/// The newest whole checkpoint and the next older one, or the same twice.
pub(super) fn choose<'a>(boot: &ShardBoot, found: &'a [SlotFound]) -> Result<[&'a SlotFound; 2], OpenError> {
    let Some(newest) = found.first() else {
        return Err(OpenError::Refused {
            file: slot_path(&boot.root, boot.identity.journal, 0),
            cause: "none of the three checkpoints is whole: the state of the shard is not known".into(),
        });
    };
    Ok([newest, found.get(1).unwrap_or(newest)])
}

pub(super) fn places_of(body: &CheckpointBody) -> impl Iterator<Item = (FrameSequence, u64)> + '_ {
    let extents = body.logs.iter().flat_map(|log: &LogState| &log.extents);
    extents.map(|place| (FrameSequence(place.frame), place.frame_at))
}

pub(super) fn kept_of(header: &CheckpointHeader, body: &CheckpointBody) -> Kept {
    let next = FrameSequence(header.sequence.0 + 1);
    let bound = places_of(body).map(|(frame, _)| frame).min().unwrap_or(next);
    Kept { sequence: header.sequence, bound }
}

/// What a checkpoint still needs of the ring: its live extents, and every frame behind it.
pub(super) fn held_by(
    header: &CheckpointHeader,
    body: &CheckpointBody,
    newest: FrameSequence,
) -> BTreeMap<FrameSequence, u64> {
    let mut held: BTreeMap<FrameSequence, u64> = places_of(body).collect();
    if header.sequence < newest {
        held.insert(FrameSequence(header.sequence.0 + 1), header.next_at);
    }
    held
}

pub(super) struct Chain {
    pub(super) frames: Vec<ChainFrame>,
    /// Where it ends.
    pub(super) head: u64,
    /// What lies there.
    pub(super) end: NextFrame,
}

/// Follows the frames from a checkpoint on as far as they are whole and follow each other.
pub(super) fn read_chain(
    disk: &mut dyn Disk,
    boot: &ShardBoot,
    ring: &mut Ring,
    mut link: Link,
    mut head: u64,
) -> Result<Chain, OpenError> {
    let mut frames: Vec<ChainFrame> = Vec::new();
    let mut length = 0;
    loop {
        head %= ring.bytes();
        let next_file = (head / ring.file_bytes + 1) * ring.file_bytes % ring.bytes();
        let mut end = NextFrame::Missing;
        let mut found = None;
        for at in [head, next_file] {
            match frame_at(disk, boot, ring, at, &link)? {
                Ok(frame) => {
                    found = Some(frame);
                    break;
                }
                Err(bad) if end == NextFrame::Missing => end = bad,
                Err(_) => {}
            }
        }
        let Some(frame) = found else { return Ok(Chain { frames, head, end }) };
        length += frame.bytes as u64;
        if length > ring.bytes() {
            return Ok(Chain { frames, head, end: NextFrame::OffChain });
        }
        link =
            Link { sequence: frame.header.sequence, hash: frame.hash, incarnation: frame.header.incarnation };
        head = frame.at + frame.bytes as u64;
        frames.push(frame);
    }
}

pub(super) fn frame_at(
    disk: &mut dyn Disk,
    boot: &ShardBoot,
    ring: &mut Ring,
    at: u64,
    link: &Link,
) -> Result<Result<ChainFrame, NextFrame>, OpenError> {
    let Ok(header) = FrameHeader::decode(ring.look(disk, at, BLOCK)?) else {
        return Ok(Err(NextFrame::Missing));
    };
    if header.identity != boot.identity || header.bytes as usize > boot.limits.frame_bytes_max {
        return Ok(Err(NextFrame::OffChain));
    }
    let bytes = ring.look(disk, at, header.bytes as usize)?;
    let Ok(frame) = Frame::decode_whole(bytes) else { return Ok(Err(NextFrame::Damaged)) };
    let kind = match frame.entries.first() {
        Some((_, Entry::Recovered(_))) => FrameKind::Recovered,
        _ => FrameKind::Ordinary,
    };
    if !follows(link, &header, kind) {
        return Ok(Err(NextFrame::OffChain));
    }
    let runs = frame.entries.iter().filter_map(|(_, entry)| match entry {
        Entry::Run(mark) => Some(mark.clone()),
        _ => None,
    });
    let (runs, hash) = (runs.collect(), frame.hash);
    Ok(Ok(ChainFrame { at, bytes: header.bytes as usize, header, hash, runs, kind }))
}

/// The highest mark of any frame of this journal that lies within reach behind the end of the chain, whose last frame is
/// `last`. A frame at or below `last` was left by an earlier lap and marks nothing new.
///
/// Bytes that a client has chosen lie here too. They cannot pass for a frame of a journal whose number nobody was told. The
/// numbers of a directory from before that rule are known to everybody; there, what cannot be true is not believed: each
/// frame takes at least a block, so that a place so many blocks further on has a sequence at most so many higher.
pub(super) fn marks_further_on(
    disk: &mut dyn Disk,
    boot: &ShardBoot,
    ring: &mut Ring,
    head: u64,
    last: FrameSequence,
) -> Result<FrameSequence, OpenError> {
    let reach = 2 * boot.limits.in_flight_bytes_max;
    let secret = boot.identity.journal.0 >= JOURNALS_FIRST.start;
    let mut highest = FrameSequence(0);
    for step in 0..reach.min(ring.bytes()) / BLOCK as u64 {
        let at = (head + step * BLOCK as u64) % ring.bytes();
        if let Ok(header) = FrameHeader::decode(ring.look(disk, at, BLOCK)?)
            && header.identity == boot.identity
            && header.sequence > last
            && (secret || header.sequence.0 <= last.0 + 1 + step)
        {
            highest = highest.max(header.mark);
        }
    }
    Ok(highest)
}

/// Reads the runs that a frame above the mark names.
pub(super) fn runs_of(disk: &mut dyn Disk, boot: &ShardBoot, runs: &[RunMark]) -> Result<Runs, OpenError> {
    for run in runs {
        let file = match disk.open(&data_file(&boot.root, run.file)) {
            Ok(file) => file,
            Err(fault) if fault.errno == ENOENT => return Ok(Runs::NotWhole),
            Err(fault) => return Err(fault.into()),
        };
        let len = disk.len(file)?;
        let found = if run.at + u64::from(run.bytes) <= len {
            Some(disk.read(file, run.at, run.bytes as usize)?)
        } else {
            None
        };
        disk.close(file);
        if !found.is_some_and(|bytes| is_the_run(&bytes, run, boot)) {
            return Ok(Runs::NotWhole);
        }
    }
    Ok(Runs::Whole)
}

pub(super) fn is_the_run(bytes: &[u8], mark: &RunMark, boot: &ShardBoot) -> bool {
    let Ok((header, _)) = RunHeader::decode_whole(bytes) else { return false };
    RunHeader::crc_of(bytes) == mark.crc
        && header.cluster == boot.identity.cluster
        && (header.file, header.generation) == (mark.file, mark.generation)
        && (header.log, header.base, header.end) == (mark.log, mark.base, mark.end)
}
