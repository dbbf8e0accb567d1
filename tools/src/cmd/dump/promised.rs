//! What a data directory promises: what its superblock, its checkpoints and the frames behind them say must be there, held
//! against what is.
//!
//! Most of what lies in a directory is needed by nobody: earlier laps of a ring, earlier generations of a data file, a torn end
//! that a recovery has cut. So damage is looked for where something is needed, by the rules of docs/DISK_FORMAT.md, and
//! apart from the broker's own recovery, which is thereby checked too. Nothing is written.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tidegate_broker::datadir::{JOURNALS_FIRST, data_file, journal_file};
use tidegate_broker::limits::Limits;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader, ExtentPlace};
use tidegate_protocol::disk::entry::{Carriage, Entry, RunMark, Start};
use tidegate_protocol::disk::frame::{Frame, FrameHeader, JournalIdentity};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::disk::superblock::{State as SuperblockState, Superblock, SuperblockError};
use tidegate_protocol::extent::{ExtentHeader, identity_crc};
use tidegate_protocol::ids::{
    FileId, FrameSequence, Incarnation, JournalId, PartitionId, TopicId, TopicPartition,
};

use crate::exit::Failure;

use super::text::log_text;
use super::{Place, SUPERBLOCK, read, unreadable};

/// Checkpoint slots of a journal.
const SLOTS: u32 = 3;

/// Something that is needed and is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: PathBuf,
    /// Where it should be, in bytes from the start of the file.
    pub(super) at: u64,
    pub(super) what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.path.display(), self.at, self.what)
    }
}

/// Everything that is needed and is not there or not whole, by file and place.
///
/// # Errors
/// A file cannot be read.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>, Failure> {
    let mut check = Check { root, findings: Vec::new() };
    if let Some(superblock) = check.superblock()? {
        for journal in superblock.layout.journals {
            let (cluster, node) = (superblock.cluster, superblock.node);
            check.journal(JournalIdentity { cluster, node, journal })?;
        }
    }
    check.findings.sort();
    check.findings.dedup_by(|a, b| (&a.path, a.at) == (&b.path, b.at));
    Ok(check.findings)
}

struct Check<'a> {
    root: &'a Path,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn found(&mut self, path: &Path, at: u64, what: impl Into<String>) {
        self.findings.push(Finding { path: path.to_owned(), at, what: what.into() });
    }

    /// None where nothing can be said of the rest: it holds no promise yet, is of a later format, or cannot be read.
    fn superblock(&mut self) -> Result<Option<Superblock>, Failure> {
        let path = self.root.join(SUPERBLOCK);
        let Some(file) = open(&path)? else {
            self.found(&path, 0, "is missing");
            return Ok(None);
        };
        let mut newest: Option<Superblock> = None;
        for at in [0, BLOCK as u64] {
            match Superblock::decode(&read(&file, Place { path: &path, at }, BLOCK)?) {
                Ok(found) if newest.as_ref().is_none_or(|n| n.sequence < found.sequence) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(SuperblockError::Format(_)) => return Ok(None),
                Err(error) => self.found(&path, at, error.to_string()),
            }
        }
        Ok(newest.filter(|superblock| superblock.state != SuperblockState::Initialising))
    }

    fn journal(&mut self, identity: JournalIdentity) -> Result<(), Failure> {
        let newest = self.newest_checkpoint(identity)?;
        let ring = self.ring(identity.journal)?;
        let (Some((header, body)), Some(ring)) = (newest, ring) else { return Ok(()) };
        let chain = Chain::read(&ring, identity, &header)?;
        let mut needed = Needed::of(&body);
        let mut whole = true;
        for (at, bytes) in &chain.frames {
            let image = ring.read(*at, *bytes)?;
            let frame = Frame::decode_whole(&image).map_err(|_| changing(&ring, *at))?;
            if frame.header.sequence > chain.mark && !self.runs_are_whole(&frame)? {
                // Not flushed when the power went: recovery ends the log here.
                whole = false;
                break;
            }
            frame.entries.iter().for_each(|(_, entry)| needed.apply(entry));
        }
        if whole && chain.last.sequence < chain.mark {
            let (path, at) = ring.place(chain.head);
            let next = chain.last.sequence.0 + 1;
            self.found(
                path,
                at,
                format!("frame {next} should be here: frames up to {} were flushed", chain.mark),
            );
        }
        for (log, extents) in &needed.extents {
            for place in extents.values() {
                self.small_extent(&ring, *log, place)?;
            }
        }
        for (file, need) in &needed.files {
            self.data_file(identity, *file, need)?;
        }
        Ok(())
    }

    fn newest_checkpoint(
        &mut self,
        identity: JournalIdentity,
    ) -> Result<Option<(CheckpointHeader, CheckpointBody)>, Failure> {
        let mut newest: Option<(CheckpointHeader, CheckpointBody)> = None;
        for slot in 0..SLOTS {
            let path = journal_file(self.root, identity.journal, &format!("checkpoint-{slot}"));
            let Some(file) = open(&path)? else {
                self.found(&path, 0, "is missing");
                continue;
            };
            let place = Place { path: &path, at: 0 };
            let block = read(&file, place, BLOCK)?;
            // A slot that was never written.
            if !block.is_empty() && block.iter().all(|b| *b == 0) {
                continue;
            }
            let decoded = checkpoint::decode_header(&block).and_then(|(_, bytes)| {
                let image = read(&file, place, usize::try_from(bytes).unwrap_or(usize::MAX).min(MAX_READ));
                checkpoint::decode(&image.unwrap_or_default())
            });
            match decoded {
                Ok((header, _)) if header.identity != identity => {
                    self.found(&path, 0, "belongs to another cluster, node or journal");
                }
                Ok(found) if newest.as_ref().is_none_or(|n| n.0.sequence < found.0.sequence) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(error) => self.found(&path, 0, error.to_string()),
            }
        }
        if newest.is_none() {
            let path = journal_file(self.root, identity.journal, "checkpoint-0");
            self.found(
                &path,
                0,
                "none of the three checkpoints is whole: what the journal holds is not known",
            );
        }
        Ok(newest)
    }

    fn ring(&mut self, journal: JournalId) -> Result<Option<Ring>, Failure> {
        let Limits { ring_files, ring_file_bytes, .. } = Limits::DEFAULT;
        let mut ring = Ring { files: Vec::new(), file_bytes: ring_file_bytes };
        for index in 0..ring_files {
            let path = journal_file(self.root, journal, &format!("ring-{index:02}"));
            let Some(file) = open(&path)? else {
                self.found(&path, 0, "is missing");
                continue;
            };
            let bytes = file.metadata().map_err(|e| unreadable(&path, &e))?.len();
            if bytes != ring_file_bytes {
                self.found(&path, bytes, format!("the file has {bytes} bytes instead of {ring_file_bytes}"));
            }
            ring.files.push((path, file));
        }
        Ok(Some(ring).filter(|ring| ring.files.len() == ring_files as usize))
    }

    fn runs_are_whole(&self, frame: &Frame<'_>) -> Result<bool, Failure> {
        for (_, entry) in &frame.entries {
            let Entry::Run(RunMark { file, at, bytes, crc, .. }) = entry else { continue };
            let path = data_file(self.root, *file);
            let Some(file) = open(&path)? else { return Ok(false) };
            let run = read(&file, Place { path: &path, at: *at }, *bytes as usize)?;
            if RunHeader::decode_whole(&run).is_err() || RunHeader::crc_of(&run) != *crc {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn small_extent(&mut self, ring: &Ring, log: TopicPartition, place: &ExtentPlace) -> Result<(), Failure> {
        let bytes = ring.read(place.frame_at + u64::from(place.at), place.bytes as usize)?;
        let header = ExtentHeader::decode_whole(&bytes).map(|(header, _)| header);
        let is_it = |header: ExtentHeader| {
            (header.log, header.base.0, header.end.0) == (log, place.base, place.end)
                && identity_crc(&bytes) == place.crc
        };
        if !header.is_ok_and(is_it) {
            let (path, at) = ring.place(place.frame_at);
            let (base, end) = (place.base, place.end);
            let what =
                format!("frame {} no longer holds offsets {base} to {end} of {}", place.frame, log_text(log));
            self.found(path, at, what);
        }
        Ok(())
    }

    /// Runs lie back to back from the start of the file to where the journal says that it is filled.
    fn data_file(&mut self, identity: JournalIdentity, id: FileId, need: &FileNeed) -> Result<(), Failure> {
        let Some(log) = need.log.filter(|_| need.written > 0) else { return Ok(()) };
        let path = data_file(self.root, id);
        let Some(file) = open(&path)? else {
            self.found(&path, 0, format!("is missing: it held records of {}", log_text(log)));
            return Ok(());
        };
        let ours = |header: &RunHeader| {
            (header.cluster, header.file, header.generation.0, header.log)
                == (identity.cluster, id, need.generation, log)
        };
        let mut at = 0;
        let mut in_damage = false;
        while at < need.written {
            let place = Place { path: &path, at };
            let header = RunHeader::decode(&read(&file, place, BLOCK)?);
            match header {
                Ok(header) if ours(&header) => {
                    in_damage = false;
                    if let Err(error) = RunHeader::decode_whole(&read(&file, place, header.bytes as usize)?) {
                        let (base, end) = (header.base, header.end);
                        let what = format!("offsets {base} to {end} of {}: {error}", log_text(log));
                        self.found(&path, at, what);
                    }
                    at += u64::from(header.bytes);
                }
                other => {
                    if !in_damage {
                        let why = other.err().map_or("it is another one".to_owned(), |e| e.to_string());
                        self.found(&path, at, format!("a run of {} should be here: {why}", log_text(log)));
                    }
                    // The next run that is whole begins at some block behind.
                    in_damage = true;
                    at += BLOCK as u64;
                }
            }
        }
        Ok(())
    }
}

/// No checkpoint is larger: a slot is not.
const MAX_READ: usize = Limits::DEFAULT.checkpoint_slot_bytes as usize;

fn open(path: &Path) -> Result<Option<File>, Failure> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// What was whole a moment ago no longer is.
fn changing(ring: &Ring, at: u64) -> Failure {
    let error = std::io::Error::other("it changes while it is read: a broker is writing");
    unreadable(ring.place(at).0, &error)
}

/// The files of a journal's ring; places count through all of them.
struct Ring {
    files: Vec<(PathBuf, File)>,
    file_bytes: u64,
}

impl Ring {
    fn bytes(&self) -> u64 {
        self.file_bytes * self.files.len() as u64
    }

    fn place(&self, at: u64) -> (&Path, u64) {
        let at = at % self.bytes();
        (&self.files[(at / self.file_bytes) as usize].0, at % self.file_bytes)
    }

    /// Shorter at the end of a file.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let (path, within) = self.place(at);
        let file = &self.files[(at % self.bytes() / self.file_bytes) as usize].1;
        let len = len.min((self.file_bytes - within) as usize);
        read(file, Place { path, at: within }, len)
    }
}

/// The end of a chain of frames.
#[derive(Clone, Copy)]
struct Link {
    sequence: FrameSequence,
    hash: u64,
    incarnation: Incarnation,
}

/// The frames that follow a checkpoint.
struct Chain {
    /// Where each lies, and its bytes.
    frames: Vec<(u64, usize)>,
    last: Link,
    /// Where the next one should begin.
    head: u64,
    /// The highest sequence that is known to have been flushed.
    mark: FrameSequence,
}

impl Chain {
    fn read(ring: &Ring, identity: JournalIdentity, checkpoint: &CheckpointHeader) -> Result<Chain, Failure> {
        let CheckpointHeader { sequence, hash, incarnation, next_at, .. } = *checkpoint;
        let last = Link { sequence, hash, incarnation };
        let mut chain = Chain { frames: Vec::new(), last, head: next_at % ring.bytes(), mark: sequence };
        let mut length = 0;
        while length <= ring.bytes() {
            let next_file = (chain.head / ring.file_bytes + 1) * ring.file_bytes % ring.bytes();
            let mut found = chain.next_at(ring, identity, chain.head)?;
            if found.is_none() {
                found = chain.next_at(ring, identity, next_file)?;
            }
            let Some((at, header, hash)) = found else { break };
            chain.frames.push((at, header.bytes as usize));
            chain.last = Link { sequence: header.sequence, hash, incarnation: header.incarnation };
            chain.head = (at + u64::from(header.bytes)) % ring.bytes();
            chain.mark = chain.mark.max(header.mark);
            length += u64::from(header.bytes);
        }
        chain.mark = chain.mark.max(chain.marks_further_on(ring, identity)?);
        Ok(chain)
    }

    /// The frame at a place, if it is whole and follows the last one.
    fn next_at(
        &self,
        ring: &Ring,
        identity: JournalIdentity,
        at: u64,
    ) -> Result<Option<(u64, FrameHeader, u64)>, Failure> {
        let Ok(header) = FrameHeader::decode(&ring.read(at, BLOCK)?) else { return Ok(None) };
        if header.identity != identity
            || header.sequence.0 != self.last.sequence.0 + 1
            || header.previous_hash != self.last.hash
        {
            return Ok(None);
        }
        let image = ring.read(at, header.bytes as usize)?;
        let Ok(frame) = Frame::decode_whole(&image) else { return Ok(None) };
        let follows = match frame.entries.first() {
            Some((_, Entry::Recovered(_))) => header.incarnation >= self.last.incarnation,
            _ => header.incarnation == self.last.incarnation,
        };
        Ok(follows.then_some((at, header, frame.hash)))
    }

    /// The highest mark of a frame behind the end. Where clients can know the journal's number, their bytes may look like a
    /// frame of it: then what cannot be true is not believed. Each frame takes at least a block, so that a place so many
    /// blocks further on has a sequence at most so many higher.
    fn marks_further_on(&self, ring: &Ring, identity: JournalIdentity) -> Result<FrameSequence, Failure> {
        let reach = (2 * Limits::DEFAULT.in_flight_bytes_max).min(ring.bytes());
        let secret = identity.journal.0 >= JOURNALS_FIRST.start;
        let last = self.last.sequence;
        let mut highest = FrameSequence(0);
        for step in 0..reach / BLOCK as u64 {
            let block = ring.read(self.head + step * BLOCK as u64, BLOCK)?;
            if let Ok(header) = FrameHeader::decode(&block)
                && header.identity == identity
                && header.sequence > last
                && (secret || header.sequence.0 <= last.0 + 1 + step)
            {
                highest = highest.max(header.mark);
            }
        }
        Ok(highest)
    }
}

/// What of a data file is needed.
struct FileNeed {
    generation: u32,
    log: Option<TopicPartition>,
    /// Bytes of runs from its start.
    written: u64,
}

/// What the checkpoint and the frames behind it need of older frames and of data files.
struct Needed {
    /// Small extents in frames up to the checkpoint's, by log and first offset.
    extents: BTreeMap<TopicPartition, BTreeMap<i64, ExtentPlace>>,
    files: BTreeMap<FileId, FileNeed>,
}

impl Needed {
    fn of(body: &CheckpointBody) -> Needed {
        let log_id =
            |topic, partition| TopicPartition { topic: TopicId(topic), partition: PartitionId(partition) };
        let logs = body.logs.iter().map(|log| {
            let above_start = log.extents.iter().filter(|place| place.end > log.start);
            (log_id(log.topic, log.partition), above_start.map(|place| (place.base, *place)).collect())
        });
        let files = body.files.iter().map(|file| {
            let owner = file.owner.as_ref();
            let need = FileNeed {
                generation: file.generation,
                log: owner.map(|owner| log_id(owner.topic, owner.partition)),
                written: owner.map_or(0, |owner| owner.written),
            };
            (FileId(file.file), need)
        });
        Needed { extents: logs.collect(), files: files.collect() }
    }

    fn keep_extents(&mut self, log: TopicPartition, keep: impl Fn(&ExtentPlace) -> bool) {
        self.extents.entry(log).or_default().retain(|_, place| keep(place));
    }

    fn apply(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Extent { how: Carriage::Carried, bytes } => {
                if let Ok(header) = ExtentHeader::decode(bytes) {
                    self.keep_extents(header.log, |place| place.base != header.base.0);
                }
            }
            Entry::Run(mark) => {
                self.keep_extents(mark.log, |place| place.end > mark.end.0);
                if let Some(file) = self.files.get_mut(&mark.file) {
                    file.written = mark.at + u64::from(mark.bytes);
                }
            }
            Entry::Start(start) if start.offset == Start::REMOVED => {
                self.extents.remove(&start.log);
                self.files.values_mut().filter(|f| f.log == Some(start.log)).for_each(|f| f.log = None);
            }
            Entry::Start(start) => self.keep_extents(start.log, |place| place.end > start.offset.0),
            Entry::Assign(assign) => {
                let need = FileNeed { generation: assign.generation.0, log: Some(assign.log), written: 0 };
                self.files.insert(assign.file, need);
            }
            Entry::Free(free) => {
                if let Some(file) = self.files.get_mut(&free.file) {
                    file.log = None;
                }
            }
            Entry::Extent { how: Carriage::Fresh, .. } | Entry::Cut(_) | Entry::Recovered(_) => {}
        }
    }
}
