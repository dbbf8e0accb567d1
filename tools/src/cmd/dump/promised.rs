//! What a data directory promises: what its superblock, its checkpoints and the frames behind them say must be there, held
//! against what is.
//!
//! Most of what lies in a directory is needed by nobody: earlier laps of a ring, earlier generations of a data file, a torn end
//! that a recovery has cut. So damage is looked for where something is needed, by the rules of docs/DISK_FORMAT.md, and
//! apart from the broker's own recovery, which is thereby checked too. Nothing is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidegate_broker::datadir::{JOURNALS_FIRST, data_file, journal_file};
use tidegate_broker::limits::Limits;
use tidegate_protocol::batch::Batches;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader, ExtentPlace};
use tidegate_protocol::disk::entry::{Carriage, Entry, RunMark, Start};
use tidegate_protocol::disk::frame::{Frame, FrameHeader, JournalIdentity};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader};
use tidegate_protocol::disk::superblock::{State as SuperblockState, Superblock, SuperblockError};
use tidegate_protocol::extent::{ExtentHeader, identity_crc};
use tidegate_protocol::ids::{
    FileId, FrameSequence, Incarnation, JournalId, PartitionId, TopicId, TopicPartition,
};
use tidegate_protocol::internal::MetadataRecord;

use crate::exit::Failure;

use super::text::{log_json, log_text};
use super::{Place, SUPERBLOCK, read, unreadable};

/// Checkpoint slots of a journal.
const SLOTS: u32 = 3;

/// Something that is needed and is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: PathBuf,
    /// Where it should be, in bytes from the start of the file.
    pub(super) at: u64,
    /// How far it goes; none: not known, or a file as a whole.
    pub(super) bytes: Option<u64>,
    pub(super) records: Option<Records>,
    pub(super) what: String,
}

/// The records that lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Records {
    pub(super) log: TopicPartition,
    pub(super) from: i64,
    /// One past the last.
    pub(super) upto: i64,
}

/// What a check has found, and how much it has looked at.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) findings: Vec<Finding>,
    /// Of all topics that the sound part of the directory knows, those that are gone included.
    pub(super) names: BTreeMap<TopicId, String>,
    /// The format of a superblock that a later version wrote.
    pub(super) newer: Option<u32>,
    pub(super) counts: Counts,
}

/// Structures that are needed and were looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) superblocks: u64,
    pub(super) checkpoints: u64,
    pub(super) frames: u64,
    pub(super) runs: u64,
    pub(super) extents: u64,
    pub(super) batches: u64,
    pub(super) bytes: u64,
}

impl Finding {
    /// A line for people.
    pub(super) fn text(&self, names: &BTreeMap<TopicId, String>) -> String {
        let file = self.path.display();
        let place = match self.bytes {
            Some(bytes) => format!("{file} bytes {} to {}", self.at, self.at + bytes),
            None => format!("{file} at byte {}", self.at),
        };
        let Some(Records { log, from, upto }) = self.records else {
            return format!("{place}: {}", self.what);
        };
        let name =
            names.get(&log.topic).map_or_else(|| log_text(log), |name| format!("{name}/{}", log.partition));
        format!("{place}: {name} offsets {from} to {}: {}", upto - 1, self.what)
    }

    /// An object for scripts.
    pub(super) fn object(&self, names: &BTreeMap<TopicId, String>) -> Value {
        let mut object = json!({
            "kind": "damage", "file": self.path.display().to_string(), "at": self.at, "bytes": self.bytes, "what": self.what,
        });
        if let Some(Records { log, from, upto }) = self.records {
            object["topic"] = json!(names.get(&log.topic));
            object["log"] = log_json(log);
            object["from"] = json!(from);
            object["upto"] = json!(upto);
        }
        object
    }
}

/// Everything that is needed and is not there or not whole, by file and place.
///
/// # Errors
/// A file cannot be read.
pub(super) fn check(root: &Path) -> Result<Checked, Failure> {
    let mut check = Check { root, checked: Checked::default() };
    if let Some(superblock) = check.superblock()? {
        for journal in superblock.layout.journals {
            let (cluster, node) = (superblock.cluster, superblock.node);
            check.journal(JournalIdentity { cluster, node, journal })?;
        }
    }
    let mut checked = check.checked;
    checked.findings.sort();
    checked.findings.dedup_by(|a, b| (&a.path, a.at, a.records) == (&b.path, b.at, b.records));
    Ok(checked)
}

struct Check<'a> {
    root: &'a Path,
    checked: Checked,
}

impl Check<'_> {
    fn found(&mut self, path: &Path, at: u64, what: impl Into<String>) {
        let finding = Finding { path: path.to_owned(), at, bytes: None, records: None, what: what.into() };
        self.checked.findings.push(finding);
    }

    fn found_block(&mut self, path: &Path, at: u64, bytes: u64, what: impl Into<String>) {
        let (path, what) = (path.to_owned(), what.into());
        self.checked.findings.push(Finding { path, at, bytes: Some(bytes), records: None, what });
    }

    fn found_records(&mut self, path: &Path, at: u64, bytes: u64, records: Records, what: impl Into<String>) {
        let (path, what) = (path.to_owned(), what.into());
        let finding = Finding { path, at, bytes: Some(bytes), records: Some(records), what };
        self.checked.findings.push(finding);
    }

    /// Looks at a whole extent's batches; the checksum of each is a client's, and covers what the extent's covers too. The broker's
    /// own records give the topics their names.
    fn batches(&mut self, header: &ExtentHeader, payload: &[u8]) -> Result<(), String> {
        self.checked.counts.extents += 1;
        self.checked.counts.bytes += payload.len() as u64;
        for batch in Batches::new(payload) {
            let batch = batch.map_err(|e| format!("a batch in it cannot be read: {e}"))?;
            batch
                .verify_crc()
                .map_err(|e| format!("the batch at offset {}: {e}", batch.header().base_offset))?;
            self.checked.counts.batches += 1;
            let records = (header.log.topic == TopicId::METADATA).then(|| batch.records().ok()).flatten();
            for record in records.into_iter().flatten().flatten() {
                if let Ok(MetadataRecord::Topic(topic)) = MetadataRecord::decode(record.key, record.value) {
                    self.checked.names.insert(topic.topic, topic.name);
                }
            }
        }
        Ok(())
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
            self.checked.counts.superblocks += 1;
            match Superblock::decode(&read(&file, Place { path: &path, at }, BLOCK)?) {
                Ok(found) if newest.as_ref().is_none_or(|n| n.sequence < found.sequence) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(SuperblockError::Format(format)) => {
                    self.checked.newer = Some(format);
                    return Ok(None);
                }
                Err(error) => self.found_block(&path, at, BLOCK as u64, error.to_string()),
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
            self.checked.counts.frames += 1;
            for (_, entry) in &frame.entries {
                if let Entry::Extent { bytes, .. } = entry
                    && let Ok((header, payload)) = ExtentHeader::decode_whole(bytes)
                {
                    self.batches_at(&ring, *at, &header, payload);
                }
                needed.apply(entry);
            }
        }
        if whole && chain.last.sequence < chain.mark {
            let (path, at) = ring.place(chain.head);
            let next = chain.last.sequence.0 + 1;
            let what = format!(
                "frame {next} should be here: frames up to {} were flushed, and what they held is not known",
                chain.mark
            );
            // Where its header is sound it says how far the frame goes.
            match FrameHeader::decode(&ring.read(chain.head, BLOCK)?) {
                Ok(header) if header.sequence.0 == next => {
                    self.found_block(path, at, header.bytes.into(), what);
                }
                _ => self.found(path, at, what),
            }
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
            self.checked.counts.checkpoints += 1;
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
                Err(error) => {
                    let bytes = checkpoint::decode_header(&block).map_or(BLOCK as u64, |(_, bytes)| bytes);
                    self.found_block(&path, 0, bytes, error.to_string());
                }
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
        let found = ExtentHeader::decode_whole(&bytes).ok();
        let is_it = |header: &ExtentHeader| {
            (header.log, header.base.0, header.end.0) == (log, place.base, place.end)
                && identity_crc(&bytes) == place.crc
        };
        match found.filter(|(header, _)| is_it(header)) {
            Some((header, payload)) => self.batches_at(ring, place.frame_at, &header, payload),
            None => {
                let (path, at) = ring.place(place.frame_at + u64::from(place.at));
                let records = Records { log, from: place.base, upto: place.end };
                let what = format!(
                    "frame {} at byte {} no longer holds them",
                    place.frame,
                    at - u64::from(place.at)
                );
                self.found_records(path, at, place.bytes.into(), records, what);
            }
        }
        Ok(())
    }

    fn batches_at(&mut self, ring: &Ring, frame_at: u64, header: &ExtentHeader, payload: &[u8]) {
        if let Err(what) = self.batches(header, payload) {
            let (path, at) = ring.place(frame_at);
            let records = Records { log: header.log, from: header.base.0, upto: header.end.0 };
            self.found_records(path, at, header.total_bytes() as u64, records, what);
        }
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
        let mut next = need.base;
        let mut gap: Option<(u64, String)> = None;
        while at < need.written {
            let place = Place { path: &path, at };
            let header = RunHeader::decode(&read(&file, place, BLOCK)?);
            // Behind damage: what a record holds may look like an earlier run of this file.
            let least = next + i64::from(gap.is_some());
            let fits = |header: &RunHeader| {
                header.base.0 >= least
                    && header.end.0 <= need.end
                    && at + u64::from(header.bytes) <= need.written
            };
            match header {
                Ok(header) if ours(&header) && fits(&header) => {
                    if let Some((from, why)) = gap.take() {
                        let records = Records { log, from: next, upto: header.base.0 };
                        self.found_records(&path, from, at - from, records, why);
                    }
                    self.run(place, &read(&file, place, header.bytes as usize)?, &header);
                    next = header.end.0;
                    at += u64::from(header.bytes);
                }
                other => {
                    let why = other.err().map_or("it is another one".to_owned(), |e| e.to_string());
                    gap.get_or_insert_with(|| (at, format!("a run should be here: {why}")));
                    // The next run that is whole begins at some block behind.
                    at += BLOCK as u64;
                }
            }
        }
        if let Some((from, why)) = gap {
            let records = Records { log, from: next, upto: need.end };
            self.found_records(&path, from, at - from, records, why);
        }
        Ok(())
    }

    /// A run whose header is right: which of its extents are damaged, if it is not whole.
    fn run(&mut self, place: Place<'_>, bytes: &[u8], run: &RunHeader) {
        self.checked.counts.runs += 1;
        let whole = RunHeader::decode_whole(bytes);
        let sound_before = self.checked.findings.len();
        let mut at = RUN_HEADER_BYTES;
        let mut next = run.base.0;
        for _ in 0..run.extents {
            let rest = bytes.get(at..).unwrap_or_default();
            let within = place.at + at as u64;
            let Ok(header) = ExtentHeader::decode(rest) else {
                // Only this header says where the next extent begins.
                let records = Records { log: run.log, from: next, upto: run.end.0 };
                let left = place.at + u64::from(run.bytes) - within;
                self.found_records(place.path, within, left, records, "the header of an extent is damaged");
                break;
            };
            let records = Records { log: run.log, from: header.base.0, upto: header.end.0 };
            let checked = ExtentHeader::decode_whole(rest).map_err(|e| e.to_string());
            if let Err(what) = checked.and_then(|(header, payload)| self.batches(&header, payload)) {
                self.found_records(place.path, within, header.total_bytes() as u64, records, what);
            }
            next = header.end.0;
            at += header.total_bytes();
        }
        if let Err(error) = whole
            && self.checked.findings.len() == sound_before
        {
            let what = format!("the run is damaged where it holds no record: {error}");
            self.found_block(place.path, place.at, run.bytes.into(), what);
        }
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
    /// The first offset that may lie in it, and one past the last that does.
    base: i64,
    end: i64,
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
                base: owner.map_or(0, |owner| owner.base),
                end: owner.map_or(0, |owner| owner.end),
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
                    file.end = mark.end.0;
                }
            }
            Entry::Start(start) if start.offset == Start::REMOVED => {
                self.extents.remove(&start.log);
                self.files.values_mut().filter(|f| f.log == Some(start.log)).for_each(|f| f.log = None);
            }
            Entry::Start(start) => self.keep_extents(start.log, |place| place.end > start.offset.0),
            Entry::Assign(assign) => {
                let (base, end) = (assign.base.0, assign.base.0);
                let (generation, log) = (assign.generation.0, Some(assign.log));
                let need = FileNeed { generation, log, base, end, written: 0 };
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
