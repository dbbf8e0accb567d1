//! `tg dump`: what lies in a data directory, structure by structure, in the order of the bytes.
//!
//! Every structure begins at a block and says by its first bytes what it is, so a file is walked block by block without
//! knowing its role. What is shown is what is there, also what recovery would not believe: frames of the ring's last lap,
//! runs of a file's earlier generation.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidegate_protocol::batch::{BatchHeader, Batches};
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, FileOwner, FileState};
use tidegate_protocol::disk::entry::{Carriage, Entry, Start};
use tidegate_protocol::disk::frame::{Frame, FrameHeader};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::disk::superblock::{State, Superblock};
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::{FileId, ProducerId, TopicId, TopicPartition};

use crate::args::DumpArgs;
use crate::exit::{Code, Failure};
use crate::output::{Out, bytes_text, grouped};
use crate::time;

/// Shows one file, or every file of a directory.
pub(crate) fn run(args: &DumpArgs, out: &mut Out) -> Result<(), Failure> {
    let mut files = Vec::new();
    collect(&args.path, &mut files)?;
    let mut dump = Dump { batches: args.batches, damaged: 0, first_damage: None, out };
    for file in &files {
        dump.file(file)?;
    }
    match dump.first_damage {
        None => Ok(()),
        Some(place) => {
            let cause = format!("{} structures are damaged", dump.damaged);
            Err(Failure::new(Code::Differs, cause)
                .place(place)
                .fix("stop the broker and dump again: what a running broker is writing looks damaged"))
        }
    }
}

/// All files below a path, by name; the lock is no data.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let metadata = path.metadata().map_err(|e| unreadable(path, &e))?;
    if metadata.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut names = Vec::new();
    for entry in path.read_dir().map_err(|e| unreadable(path, &e))? {
        names.push(entry.map_err(|e| unreadable(path, &e))?.path());
    }
    names.sort();
    // The superblock first: it says what the other files are.
    names.sort_by_key(|name| !name.ends_with("superblock"));
    for name in names.iter().filter(|name| !name.ends_with("lock")) {
        collect(name, files)?;
    }
    Ok(())
}

struct Dump<'a> {
    batches: bool,
    damaged: u64,
    first_damage: Option<String>,
    out: &'a mut Out,
}

/// Where a structure lies.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path,
    at: u64,
}

/// Blocks in a row that are no structure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filler {
    Zeros,
    Unknown,
}

impl Dump<'_> {
    fn file(&mut self, path: &Path) -> Result<(), Failure> {
        let file = File::open(path).map_err(|e| unreadable(path, &e))?;
        let length = file.metadata().map_err(|e| unreadable(path, &e))?.len();
        if !self.out.is_json() {
            self.out.line(format!("{} ({})", path.display(), bytes_text(length)))?;
        }
        let mut at = 0;
        let mut filler: Option<(Filler, u64)> = None;
        while at < length {
            let place = Place { path, at };
            let block = read(&file, place, BLOCK.min((length - at) as usize))?;
            let no_structure = match block.get(..4) {
                _ if block.iter().all(|b| *b == 0) => Some(Filler::Zeros),
                Some(b"TIDE" | b"TGfr" | b"TGcp" | b"TGrn") => None,
                _ => Some(Filler::Unknown),
            };
            if filler.is_some_and(|(before, _)| Some(before) != no_structure) {
                self.filled(path, filler.take(), at)?;
            }
            if let Some(kind) = no_structure {
                filler.get_or_insert((kind, at));
                at += BLOCK as u64;
                continue;
            }
            let length = match &block[..4] {
                b"TIDE" => self.superblock(place, &block)?,
                b"TGfr" => self.frame(&file, place, &block)?,
                b"TGcp" => self.checkpoint(&file, place, &block)?,
                _ => self.run(&file, place, &block)?,
            };
            at += length.max(BLOCK as u64);
        }
        self.filled(path, filler, length)
    }

    /// Blocks in a row that are no structure end at `end`.
    fn filled(&mut self, path: &Path, filler: Option<(Filler, u64)>, end: u64) -> Result<(), Failure> {
        let Some((kind, at)) = filler else { return Ok(()) };
        let (name, text) = match kind {
            Filler::Zeros => ("zeros", "zeros"),
            Filler::Unknown => ("unknown", "no structure begins here (payload of an older one, or damage)"),
        };
        let bytes = end - at;
        let human = format!("{text}, {}", bytes_text(bytes));
        self.show(Place { path, at }, human, json!({ "kind": name, "bytes": bytes }))
    }

    /// One structure: a line for people, an object for scripts.
    fn show(&mut self, place: Place<'_>, human: String, mut object: Value) -> Result<(), Failure> {
        if self.out.is_json() {
            object["file"] = json!(place.path.display().to_string());
            object["at"] = json!(place.at);
            return self.out.json(&object);
        }
        self.out.line(format!("{:>12}  {human}", place.at))
    }

    /// A part of the structure above it; in JSON it is in that structure's object.
    fn part(&mut self, human: String) -> Result<(), Failure> {
        if self.out.is_json() { Ok(()) } else { self.out.line(format!("{:>12}    {human}", "")) }
    }

    fn damage(
        &mut self,
        place: Place<'_>,
        what: &str,
        error: &dyn std::fmt::Display,
    ) -> Result<u64, Failure> {
        self.damaged += 1;
        self.first_damage.get_or_insert_with(|| format!("{} at byte {}", place.path.display(), place.at));
        self.show(
            place,
            format!("{what}, DAMAGED: {error}"),
            json!({ "kind": what, "damaged": error.to_string() }),
        )?;
        Ok(BLOCK as u64)
    }

    fn superblock(&mut self, place: Place<'_>, block: &[u8]) -> Result<u64, Failure> {
        let block_name = if place.at == 0 { "A" } else { "B" };
        let superblock = match Superblock::decode(block) {
            Ok(superblock) => superblock,
            Err(error) => return self.damage(place, "superblock", &error),
        };
        let (state, other) = match &superblock.state {
            State::Initialising => ("initialising", None),
            State::Current => ("current", None),
            State::Preparing(other) => ("preparing", Some(other)),
            State::Retiring(other) => ("retiring", Some(other)),
        };
        let cluster = TopicId(superblock.cluster.0).to_string();
        let journals = |ids: &[tidegate_protocol::ids::JournalId]| {
            ids.iter().map(|id| format!("{:08x}", id.0)).collect::<Vec<_>>()
        };
        self.show(
            place,
            format!(
                "superblock {block_name}: sequence {}, cluster {cluster}, node {}, incarnation {}, {state}",
                superblock.sequence, superblock.node.0, superblock.incarnation.0
            ),
            json!({
                "kind": "superblock", "block": block_name, "sequence": superblock.sequence, "cluster": cluster,
                "node": superblock.node.0, "incarnation": superblock.incarnation.0, "state": state,
                "layout": superblock.layout.id, "journals": journals(&superblock.layout.journals),
                "other_layout": other.map(|other| other.id),
                "other_journals": other.map(|other| journals(&other.journals)),
            }),
        )?;
        let layout = &superblock.layout;
        self.part(format!("layout {}: journals {}", layout.id, journals(&layout.journals).join(" ")))?;
        if let Some(other) = other {
            self.part(format!(
                "{state} layout {}: journals {}",
                other.id,
                journals(&other.journals).join(" ")
            ))?;
        }
        Ok(BLOCK as u64)
    }

    fn frame(&mut self, file: &File, place: Place<'_>, block: &[u8]) -> Result<u64, Failure> {
        let header = match FrameHeader::decode(block) {
            Ok(header) => header,
            Err(error) => return self.damage(place, "frame", &error),
        };
        let bytes = read(file, place, header.bytes as usize)?;
        let frame = match Frame::decode_whole(&bytes) {
            Ok(frame) => frame,
            Err(error) => {
                self.damage(place, "frame", &error)?;
                return Ok(header.bytes.into());
            }
        };
        let entries: Vec<Value> = frame.entries.iter().map(|(_, entry)| entry_json(entry)).collect();
        self.show(
            place,
            format!(
                "frame {}: incarnation {}, journal {:08x}, mark {}, {} entries, {}",
                header.sequence.0,
                header.incarnation.0,
                header.identity.journal.0,
                header.mark.0,
                frame.entries.len(),
                bytes_text(header.bytes.into()),
            ),
            json!({
                "kind": "frame", "sequence": header.sequence.0, "incarnation": header.incarnation.0,
                "journal": format!("{:08x}", header.identity.journal.0), "mark": header.mark.0, "bytes": header.bytes,
                "hash": format!("{:016x}", frame.hash), "previous_hash": format!("{:016x}", header.previous_hash),
                "entries": entries,
            }),
        )?;
        for (_, entry) in &frame.entries {
            self.part(entry_text(entry))?;
            if let Entry::Extent { bytes, .. } = entry {
                self.batches_of(bytes)?;
            }
        }
        Ok(header.bytes.into())
    }

    fn checkpoint(&mut self, file: &File, place: Place<'_>, block: &[u8]) -> Result<u64, Failure> {
        let length = match checkpoint::decode_header(block) {
            Ok((_, length)) => length,
            Err(error) => return self.damage(place, "checkpoint", &error),
        };
        let bytes = read(file, place, length as usize)?;
        let (header, body) = match checkpoint::decode(&bytes) {
            Ok(whole) => whole,
            Err(error) => {
                self.damage(place, "checkpoint", &error)?;
                return Ok(length);
            }
        };
        self.show(
            place,
            format!(
                "checkpoint after frame {}: incarnation {}, {} logs, {} files, taken {}",
                header.sequence.0,
                header.incarnation.0,
                body.logs.len(),
                body.files.len(),
                time::render_ms(body.wall_ms),
            ),
            json!({
                "kind": "checkpoint", "sequence": header.sequence.0, "incarnation": header.incarnation.0,
                "journal": format!("{:08x}", header.identity.journal.0), "bytes": length, "wall_ms": body.wall_ms,
                "next_at": header.next_at, "logs": logs_json(&body), "files": files_json(&body),
            }),
        )?;
        for log in &body.logs {
            self.part(format!(
                "log {}/{}: start {}, appended {}, {} extents in the journal, {} producers",
                topic_text(TopicId(log.topic)),
                log.partition,
                log.start,
                log.appended,
                log.extents.len(),
                log.producers.len(),
            ))?;
        }
        for file in &body.files {
            self.part(file_text(file))?;
        }
        Ok(length)
    }

    fn run(&mut self, file: &File, place: Place<'_>, block: &[u8]) -> Result<u64, Failure> {
        let header = match RunHeader::decode(block) {
            Ok(header) => header,
            Err(error) => return self.damage(place, "run", &error),
        };
        let bytes = read(file, place, header.bytes as usize)?;
        let extents = match RunHeader::decode_whole(&bytes) {
            Ok((_, extents)) => extents,
            Err(error) => {
                self.damage(place, "run", &error)?;
                return Ok(header.bytes.into());
            }
        };
        let parts: Vec<Value> = extents.iter().map(|extent| extent_json(&extent.header)).collect();
        self.show(
            place,
            format!(
                "run {} of generation {}: {}, offsets {} to {}, {} extents, {}, appended {}",
                header.sequence,
                header.generation.0,
                log_text(header.log),
                header.base,
                header.end,
                extents.len(),
                bytes_text(header.bytes.into()),
                time::render_ms(header.append_last_ms),
            ),
            json!({
                "kind": "run", "data_file": file_name(header.file), "generation": header.generation.0,
                "run_sequence": header.sequence, "log": log_json(header.log), "base": header.base.0,
                "end": header.end.0, "bytes": header.bytes, "append_first_ms": header.append_first_ms,
                "append_last_ms": header.append_last_ms, "max_timestamp_ms": header.max_timestamp_ms,
                "extents": parts,
            }),
        )?;
        for extent in &extents {
            self.part(extent_text(&extent.header))?;
            self.batches_of(&bytes[extent.at..extent.at + extent.header.total_bytes()])?;
        }
        Ok(header.bytes.into())
    }

    /// The batches of an extent, for people who asked for them.
    fn batches_of(&mut self, extent: &[u8]) -> Result<(), Failure> {
        if !self.batches || self.out.is_json() {
            return Ok(());
        }
        let Ok((_, payload)) = ExtentHeader::decode_whole(extent) else { return Ok(()) };
        for batch in Batches::new(payload) {
            match batch {
                Ok(batch) => self.part(format!("  {}", batch_text(batch.header())))?,
                Err(error) => self.part(format!("  batch, DAMAGED: {error}"))?,
            }
        }
        Ok(())
    }
}

fn batch_text(header: &BatchHeader) -> String {
    let producer = match header.producer_id {
        ProducerId::NONE => String::new(),
        id => format!(", producer {id} epoch {} sequence {}", header.producer_epoch, header.base_sequence),
    };
    format!(
        "batch: offsets {} to {}, {} records, {}, compression {:?}, times {} to {}{producer}",
        header.base_offset,
        header.end_offset(),
        grouped(header.records_count.max(0) as u64),
        bytes_text(header.len as u64),
        header.compression,
        time::render_ms(header.base_timestamp_ms),
        time::render_ms(header.max_timestamp_ms),
    )
}

fn entry_text(entry: &Entry<'_>) -> String {
    match entry {
        Entry::Extent { how, bytes } => {
            let how = if *how == Carriage::Carried { "carried " } else { "" };
            match ExtentHeader::decode(bytes) {
                Ok(header) => format!("{how}{}", extent_text(&header)),
                Err(error) => format!("{how}extent, DAMAGED: {error}"),
            }
        }
        Entry::Run(mark) => format!(
            "run mark: {}, offsets {} to {}, in file {} generation {} at byte {}, {}",
            log_text(mark.log),
            mark.base,
            mark.end,
            file_name(mark.file),
            mark.generation.0,
            mark.at,
            bytes_text(mark.bytes.into()),
        ),
        Entry::Start(start) if start.offset == Start::REMOVED => format!("removed: {}", log_text(start.log)),
        Entry::Start(start) => format!("start: {} from offset {}", log_text(start.log), start.offset),
        Entry::Cut(cut) => format!("cut: {} at offset {}", log_text(cut.log), cut.offset),
        Entry::Assign(assign) => format!(
            "assign: file {} generation {} to {} from offset {}",
            file_name(assign.file),
            assign.generation.0,
            log_text(assign.log),
            assign.base,
        ),
        Entry::Free(free) => format!("free: file {} generation {}", file_name(free.file), free.generation.0),
        Entry::Recovered(recovered) => format!(
            "recovered: incarnation {}, last kept frame {}",
            recovered.incarnation.0, recovered.last_kept.0
        ),
    }
}

fn entry_json(entry: &Entry<'_>) -> Value {
    match entry {
        Entry::Extent { how, bytes } => {
            let mut object = match ExtentHeader::decode(bytes) {
                Ok(header) => extent_json(&header),
                Err(error) => json!({ "damaged": error.to_string() }),
            };
            object["entry"] = json!("extent");
            object["carried"] = json!(*how == Carriage::Carried);
            object
        }
        Entry::Run(mark) => json!({
            "entry": "run", "log": log_json(mark.log), "base": mark.base.0, "end": mark.end.0,
            "data_file": file_name(mark.file), "generation": mark.generation.0, "at": mark.at, "bytes": mark.bytes,
            "run_sequence": mark.run_sequence, "append_first_ms": mark.append_first_ms,
            "append_last_ms": mark.append_last_ms, "producers": mark.producers.len(),
        }),
        Entry::Start(start) if start.offset == Start::REMOVED => {
            json!({ "entry": "removed", "log": log_json(start.log) })
        }
        Entry::Start(start) => {
            json!({ "entry": "start", "log": log_json(start.log), "offset": start.offset.0 })
        }
        Entry::Cut(cut) => json!({ "entry": "cut", "log": log_json(cut.log), "offset": cut.offset.0 }),
        Entry::Assign(assign) => json!({
            "entry": "assign", "data_file": file_name(assign.file), "generation": assign.generation.0,
            "log": log_json(assign.log), "base": assign.base.0,
        }),
        Entry::Free(free) => {
            json!({ "entry": "free", "data_file": file_name(free.file), "generation": free.generation.0 })
        }
        Entry::Recovered(recovered) => json!({
            "entry": "recovered", "incarnation": recovered.incarnation.0, "last_kept": recovered.last_kept.0,
        }),
    }
}

fn extent_text(header: &ExtentHeader) -> String {
    format!(
        "extent: {}, offsets {} to {}, {} batches, {}, epoch {}, appended {}",
        log_text(header.log),
        header.base,
        header.end,
        grouped(header.batch_count.into()),
        bytes_text(header.byte_len.into()),
        header.leader_epoch,
        time::render_ms(header.append_time_ms),
    )
}

fn extent_json(header: &ExtentHeader) -> Value {
    json!({
        "log": log_json(header.log), "base": header.base.0, "end": header.end.0, "batches": header.batch_count,
        "bytes": header.byte_len, "leader_epoch": header.leader_epoch.0, "append_time_ms": header.append_time_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
    })
}

fn logs_json(body: &CheckpointBody) -> Vec<Value> {
    let log = |log: &checkpoint::LogState| {
        json!({
            "topic_id": TopicId(log.topic).to_string(), "partition": log.partition, "start": log.start,
            "appended": log.appended, "append_time_ms": log.append_time_ms, "extents": log.extents.len(),
            "producers": log.producers.len(),
        })
    };
    body.logs.iter().map(log).collect()
}

fn files_json(body: &CheckpointBody) -> Vec<Value> {
    let owner = |owner: &FileOwner| {
        json!({
            "topic_id": TopicId(owner.topic).to_string(), "partition": owner.partition, "base": owner.base,
            "end": owner.end, "written": owner.written, "runs": owner.runs, "sealed": owner.sealed,
        })
    };
    let file = |file: &FileState| {
        json!({
            "data_file": file_name(FileId(file.file)), "generation": file.generation, "bytes": file.bytes,
            "freed_by": file.freed_by, "owner": file.owner.as_ref().map(owner),
        })
    };
    body.files.iter().map(file).collect()
}

fn file_text(file: &FileState) -> String {
    let (name, size) = (file_name(FileId(file.file)), bytes_text(file.bytes));
    match &file.owner {
        None => format!("file {name} generation {}: {size}, free", file.generation),
        Some(owner) => format!(
            "file {name} generation {}: {size}, log {}/{}, offsets {} to {}, {} in {} runs{}",
            file.generation,
            topic_text(TopicId(owner.topic)),
            owner.partition,
            owner.base,
            owner.end,
            bytes_text(owner.written),
            owner.runs,
            if owner.sealed { ", sealed" } else { "" },
        ),
    }
}

fn log_text(log: TopicPartition) -> String {
    format!("log {}/{}", topic_text(log.topic), log.partition)
}

/// The broker's own topics by what they hold: the names of the others stand in records of the first.
fn topic_text(topic: TopicId) -> String {
    match topic {
        TopicId::METADATA => "(topics)".to_owned(),
        TopicId::OFFSETS => "(consumer offsets)".to_owned(),
        topic => topic.to_string(),
    }
}

fn log_json(log: TopicPartition) -> Value {
    json!({ "topic_id": log.topic.to_string(), "partition": log.partition.0 })
}

/// As the file is named in its directory.
fn file_name(file: FileId) -> String {
    format!("{:08x}-{:08x}", file.0 >> 32, file.0 & 0xffff_ffff)
}

fn read(file: &File, place: Place<'_>, length: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    // Short at the end of the file: the decoder says what is missing.
    while filled < length {
        match file.read_at(&mut bytes[filled..], place.at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(place.path, &error)),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let code = if error.kind() == ErrorKind::NotFound { Code::NotFound } else { Code::Failed };
    Failure::new(code, format!("cannot be read: {error}"))
        .place(path.display().to_string())
        .fix("name a data directory, or a file in one")
}
