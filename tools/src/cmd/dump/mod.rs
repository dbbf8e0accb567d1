//! `tg dump`: what lies in a data directory, structure by structure, in the order of the bytes.
//!
//! Every structure begins at a block and says by its first bytes what it is, so a file is walked block by block without
//! knowing its role. What is shown is what is there, also what recovery would not believe: frames of the ring's last lap,
//! runs of a file's earlier generation. What of it is needed, and missing or damaged, says [`promised`].

mod promised;
mod text;

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidegate_protocol::batch::Batches;
use tidegate_protocol::disk::checkpoint;
use tidegate_protocol::disk::entry::Entry;
use tidegate_protocol::disk::frame::{Frame, FrameHeader};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::disk::superblock::{FORMAT, State, Superblock, SuperblockError};
use tidegate_protocol::disk::{BLOCK, DiskError, DiskErrorKind};
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::{FileId, Generation, TopicId};

use crate::args::DumpArgs;
use crate::exit::{Code, Failure};
use crate::output::{Out, bytes_text, grouped};
use crate::time;

use promised::{Checked, Counts, Finding};
use text::{
    batch_text, checkpoint_text, entry_json, entry_text, extent_json, extent_text, file_name, file_text,
    files_json, log_json, log_text, logs_json, topic_text,
};

/// Names that tell a data directory from any other.
const SUPERBLOCK: &str = "superblock";
const FOLDERS: [&str; 2] = ["journal", "files"];

/// Shows one file, or every file of a directory.
///
/// # Errors
/// Something is damaged or missing, is of a later format, or is no part of a data directory.
pub(crate) fn run(args: &DumpArgs, out: &mut Out) -> Result<(), Failure> {
    let path = &args.path;
    let metadata = path.metadata().map_err(|e| unreadable(path, &e))?;
    let kind = if metadata.is_file() { Kind::File } else { kind_of(path)? };
    if args.verify && kind != Kind::Whole {
        return Err(Failure::new(Code::Usage, "--verify judges a data directory as a whole")
            .place(path.display().to_string())
            .fix("name the directory that a broker was started with (--data), or leave --verify out"));
    }
    let checked = if kind == Kind::Whole { promised::check(path)? } else { Checked::default() };
    if args.verify {
        return verdict(path, &checked, out);
    }
    let mut files = Vec::new();
    collect(path, &mut files)?;
    let (batches, walk) = (args.batches, Walk::default());
    let mut dump = Dump { kind, batches, structures: 0, unknown: 0, newer: None, checked, walk, out };
    for file in &files {
        dump.file(file)?;
        if dump.newer.is_some() && file.ends_with(SUPERBLOCK) {
            // Nothing that a later version wrote can be judged by this one.
            break;
        }
    }
    dump.verdict(path)
}

/// How much is known of what the files should hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A data directory: its superblock and journals say what is needed.
    Whole,
    /// A part of one: whatever is not whole is called damaged.
    Part,
    /// One file.
    File,
}

fn kind_of(path: &Path) -> Result<Kind, Failure> {
    if path.join(SUPERBLOCK).exists() || FOLDERS.iter().all(|name| path.join(name).is_dir()) {
        return Ok(Kind::Whole);
    }
    let real = path.canonicalize().map_err(|e| unreadable(path, &e))?;
    let parent_is_whole = real.parent().is_some_and(|parent| parent.join(SUPERBLOCK).exists());
    if parent_is_whole && FOLDERS.iter().any(|name| real.ends_with(name)) {
        return Ok(Kind::Part);
    }
    Err(Failure::new(Code::NotFound, "this is no data directory: it has no superblock")
        .place(path.display().to_string())
        .fix("name the directory that a broker was started with (--data), or a file in one"))
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
    names.sort_by_key(|name| !name.ends_with(SUPERBLOCK));
    for name in names.iter().filter(|name| !name.ends_with("lock")) {
        collect(name, files)?;
    }
    Ok(())
}

struct Dump<'a> {
    kind: Kind,
    batches: bool,
    structures: u64,
    /// Stretches of bytes that are neither a structure nor zeros.
    unknown: u64,
    /// The format of a structure that a later version wrote.
    newer: Option<u32>,
    /// What is damaged or missing; of a data directory it is known before the first file is shown.
    checked: Checked,
    walk: Walk,
    out: &'a mut Out,
}

/// What a file that nobody has judged says of itself, while it is walked.
#[derive(Default)]
struct Walk {
    /// File, generation and number of the last run.
    run: Option<(FileId, Generation, u64)>,
    /// Where bytes lie behind it that are no structure.
    behind: Option<u64>,
    /// Places where a structure has to be and none is.
    damaged: Vec<Finding>,
}

impl Walk {
    /// Bytes from `at` on are no structure. Whatever was written into a file begins at its start.
    fn unknown(&mut self, path: &Path, at: u64) {
        if at == 0 || (path.ends_with(SUPERBLOCK) && at == BLOCK as u64) {
            self.found(path, at, "a structure should begin here");
        }
        self.behind.get_or_insert(at);
    }

    /// A run; one between it and the one before may be missing.
    fn run(&mut self, path: &Path, run: &RunHeader) {
        let behind = self.behind.take();
        let before = self.run.replace((run.file, run.generation, run.sequence));
        if let (Some((file, generation, number)), Some(at)) = (before, behind)
            && (file, generation) == (run.file, run.generation)
            && run.sequence > number + 1
        {
            self.found(path, at, &format!("run {} should begin here or behind", number + 1));
        }
    }

    fn found(&mut self, path: &Path, at: u64, what: &str) {
        let (path, what) = (path.to_owned(), what.to_owned());
        self.damaged.push(Finding { path, at, bytes: None, records: None, what });
    }
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
        (self.walk.run, self.walk.behind) = (None, None);
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
        let needed = self.checked.findings.iter().any(|f| f.path == path && (at..end).contains(&f.at));
        let (name, text) = match kind {
            Filler::Zeros => ("zeros", "zeros"),
            Filler::Unknown if needed => ("unknown", "no structure begins here, DAMAGED"),
            Filler::Unknown if self.kind == Kind::Whole => ("unknown", "what is left of an older structure"),
            Filler::Unknown => {
                ("unknown", "no structure begins here (what is left of an older one, or damage)")
            }
        };
        if kind == Filler::Unknown {
            self.unknown += 1;
            self.walk.unknown(path, at);
        }
        let bytes = end - at;
        let human = format!("{text}, {}", bytes_text(bytes));
        self.show(Place { path, at }, human, json!({ "kind": name, "bytes": bytes }))
    }

    /// One structure: a line for people, an object for scripts.
    fn structure(&mut self, place: Place<'_>, human: String, object: Value) -> Result<(), Failure> {
        self.structures += 1;
        self.show(place, human, object)
    }

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

    /// A structure that is not whole. In a data directory that may be as it should: a torn end that nothing needs.
    fn not_whole(
        &mut self,
        place: Place<'_>,
        bytes: u64,
        what: &str,
        error: DiskError,
    ) -> Result<u64, Failure> {
        if let DiskErrorKind::Format(format) = error.kind {
            self.newer = Some(format.into());
            self.structure(place, error.to_string(), json!({ "kind": what, "format": format }))?;
            return Ok(BLOCK as u64);
        }
        self.damage(place, bytes, what, &error.to_string())
    }

    fn damage(&mut self, place: Place<'_>, bytes: u64, what: &str, error: &str) -> Result<u64, Failure> {
        if self.kind != Kind::Whole {
            let (path, at, what) = (place.path.to_owned(), place.at, error.to_owned());
            self.checked.findings.push(Finding { path, at, bytes: None, records: None, what });
        }
        let within = place.at..place.at + bytes;
        if self.checked.findings.iter().any(|f| f.path == place.path && within.contains(&f.at)) {
            let object = json!({ "kind": what, "damaged": error });
            self.structure(place, format!("{what}, DAMAGED: {error}"), object)?;
        } else {
            let object = json!({ "kind": what, "torn": error });
            self.structure(place, format!("{what}, torn, and nothing needs it: {error}"), object)?;
        }
        Ok(BLOCK as u64)
    }

    /// The count, and how the command ends.
    fn verdict(self, path: &Path) -> Result<(), Failure> {
        let Dump { kind, structures, unknown, newer, mut checked, walk, out, .. } = self;
        // A file without any structure is none of a data directory. Of a directory it is known what it needs.
        if kind != Kind::Whole && structures > 0 {
            checked.findings.extend(walk.damaged);
        }
        tell(&checked, out)?;
        let damaged = checked.findings.len() as u64;
        match out.is_json() {
            true => out.json(&json!({ "kind": "summary", "structures": structures, "damaged": damaged }))?,
            false => {
                out.line(format!("{} structures, {} damaged", grouped(structures), grouped(damaged)))?;
            }
        }
        fail(path, newer, &checked)?;
        if kind == Kind::File && structures == 0 && unknown > 0 {
            return Err(Failure::new(Code::NotFound, "there is no structure of a data directory in it")
                .place(path.display().to_string())
                .fix("name a data directory, or a file in one"));
        }
        Ok(())
    }

    fn superblock(&mut self, place: Place<'_>, block: &[u8]) -> Result<u64, Failure> {
        let block_name = if place.at == 0 { "A" } else { "B" };
        let superblock = match Superblock::decode(block) {
            Ok(superblock) => superblock,
            Err(SuperblockError::Format(format)) => {
                self.newer = Some(format);
                let text =
                    format!("superblock {block_name}: format {format}, this build reads up to {FORMAT}");
                self.structure(place, text, json!({ "kind": "superblock", "format": format }))?;
                return Ok(BLOCK as u64);
            }
            Err(error) => return self.damage(place, BLOCK as u64, "superblock", &error.to_string()),
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
        self.structure(
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
            Err(error) => return self.not_whole(place, BLOCK as u64, "frame", error),
        };
        let bytes = read(file, place, header.bytes as usize)?;
        let frame = match Frame::decode_whole(&bytes) {
            Ok(frame) => frame,
            Err(error) => {
                self.not_whole(place, header.bytes.into(), "frame", error)?;
                return Ok(header.bytes.into());
            }
        };
        let entries: Vec<Value> = frame.entries.iter().map(|(_, entry)| entry_json(entry)).collect();
        self.structure(
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
            Err(error) => return self.not_whole(place, BLOCK as u64, "checkpoint", error),
        };
        let bytes = read(file, place, length as usize)?;
        let (header, body) = match checkpoint::decode(&bytes) {
            Ok(whole) => whole,
            Err(error) => {
                self.not_whole(place, length, "checkpoint", error)?;
                return Ok(length);
            }
        };
        self.structure(
            place,
            checkpoint_text(&header, &body),
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
            Err(error) => return self.not_whole(place, BLOCK as u64, "run", error),
        };
        let bytes = read(file, place, header.bytes as usize)?;
        let extents = match RunHeader::decode_whole(&bytes) {
            Ok((_, extents)) => extents,
            Err(error) => {
                self.not_whole(place, header.bytes.into(), "run", error)?;
                return Ok(header.bytes.into());
            }
        };
        self.walk.run(place.path, &header);
        let parts: Vec<Value> = extents.iter().map(|extent| extent_json(&extent.header)).collect();
        self.structure(
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

/// Everything that is damaged or missing, one line or object each.
fn tell(checked: &Checked, out: &mut Out) -> Result<(), Failure> {
    for finding in &checked.findings {
        match out.is_json() {
            true => out.json(&finding.object(&checked.names))?,
            false => out.line(format!("DAMAGED: {}", finding.text(&checked.names)))?,
        }
    }
    Ok(())
}

/// Why what was found is no success.
fn fail(path: &Path, newer: Option<u32>, checked: &Checked) -> Result<(), Failure> {
    if let Some(found) = newer {
        return Err(Failure::new(Code::Failed, "it was written by a later version and cannot be judged")
            .place(path.display().to_string())
            .limit(format!("this build reads up to format {FORMAT}"))
            .current(format!("format {found}"))
            .fix("use the tg of the version that wrote it, or a later one"));
    }
    let Some(first) = checked.findings.first() else { return Ok(()) };
    let damaged = checked.findings.len();
    let verb = if damaged == 1 { "structure is" } else { "structures are" };
    Err(Failure::new(Code::Differs, format!("{damaged} {verb} damaged or missing"))
        .place(format!("{} at byte {}", first.path.display(), first.at))
        .fix(
            "if a broker serves the directory, stop it and dump again: what it is writing looks damaged; else \
             keep the directory as it is",
        ))
}

/// `--verify`: only what is damaged, and how much was checked.
fn verdict(path: &Path, checked: &Checked, out: &mut Out) -> Result<(), Failure> {
    tell(checked, out)?;
    let Counts { superblocks, checkpoints, frames, runs, extents, batches, bytes } = checked.counts;
    let damaged = checked.findings.len() as u64;
    match out.is_json() {
        true => out.json(&json!({
            "kind": "summary", "superblocks": superblocks, "checkpoints": checkpoints, "frames": frames, "runs": runs,
            "extents": extents, "batches": batches, "bytes": bytes, "damaged": damaged,
        }))?,
        false => out.line(format!(
            "checked: {superblocks} superblock copies, {checkpoints} checkpoints, {} frames, {} runs, {} extents, {} batches, {}; \
             {} damaged",
            grouped(frames),
            grouped(runs),
            grouped(extents),
            grouped(batches),
            bytes_text(bytes),
            grouped(damaged)
        ))?,
    }
    fail(path, checked.newer, checked)
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
