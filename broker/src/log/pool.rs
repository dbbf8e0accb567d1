//! Data files ready for use: zero-filled in the background or freed, by size.
//!
//! A file comes here in one of three ways. It is made, zero-filled piece by piece and flushed, so that later one flush of the
//! journal covers what is written into it. It is freed by its log, and waits until a flushed frame carries a mark at or above
//! the sequence of its `free`: else a damaged frame could pass for a torn one and bring the old owner back. Or, when none
//! is ready and a log waits, or while the shard writes so much that zeros would only be in the way, it is only allocated: such
//! a file (its number is at least [`ALLOCATED`]) needs a flush of its own until there was time to fill it with zeros.
//!
//! A file leaves by being taken, or goes back to the drive when its size is out of use for long or space is short.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_protocol::ids::{FileId, FrameSequence, Generation, JournalId};
use tidegate_reactor::op::{Fault, File, Now, Op, Tag};

use super::file_table::FileTable;
use super::handles::{FILE_SPACE, Handles};
use super::notice::Shortage;
use crate::limits::{FILE_CLASSES, FileLimits};
use crate::mutants::{self, Mutant};

const EIO: i32 = 5;

/// Data files of a journal with this number or a higher one were allocated, not zero-filled, when they were made.
pub const ALLOCATED: u32 = 1 << 31;

/// Between two looks for files that may go back to the drive, in nanoseconds.
const GIVE_BACK_NS: u64 = 1_000_000_000;

/// The tag of all ops of the pool; the file says which.
const TAG: Tag = Tag(FILE_SPACE);

/// Files that belong to no log.
///
/// Invariants: at most one file is being filled, with at most one op under way; a ready file has no owner. One that is to be
/// filled next, but is not open yet, is not handed out.
#[derive(Debug)]
pub(crate) struct Pool {
    limits: FileLimits,
    journal: JournalId,
    next: u32,
    spares: BTreeMap<FileId, Spare>,
    /// Freed files that wait for a mark.
    freed: BTreeSet<(FrameSequence, FileId)>,
    marked: FrameSequence,
    /// Allocated files that this process has zero-filled.
    zeroed: BTreeSet<FileId>,
    filling: Option<FileId>,
    /// Whether an op on the file that is being filled is under way.
    busy: bool,
    creating: Option<FileId>,
    /// Files that there should be of each class.
    wanted: [u32; FILE_CLASSES],
    /// Whether a log waits for a file of the class.
    missed: [bool; FILE_CLASSES],
    /// Why the last file could not be made; until one can, or none is wanted.
    full: Option<Shortage>,
    /// Whether no file is made until [`Pool::retry`].
    held: bool,
    /// Zeros could not be written or flushed: the drive is not to be trusted, and to try on with file after file would fill it.
    /// Nothing is made until the next start.
    failed: bool,
    /// Sizes, from the smallest, of which a file may be made ahead of its use.
    fitting: usize,
    /// When a file of each class was taken last, and whether one has been since that was noted.
    taken_at_ns: [u64; FILE_CLASSES],
    was_taken: [bool; FILE_CLASSES],
    /// When it is looked next whether files may go back to the drive.
    give_back_at_ns: u64,
    /// Whether it is known which files there are: from then on one without a size is not there.
    is_opened: bool,
    /// Whether something has changed since all spares were looked at last: there may be thousands.
    look: bool,
    /// What held when they were looked at last.
    zeros: Zeros,
    /// Files that were zero-filled, and those handed out with a flush of their own.
    pub zero_filled: u64,
    pub handed_out_allocated: u64,
}

#[derive(Clone, Copy, Debug)]
struct Spare {
    bytes: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Creating,
    /// May hold what looks like records of its own generation: of no use until it is full of zeros.
    Blank,
    /// Zeros up to `done`.
    Zeroing {
        done: u64,
    },
    Flushing,
    Ready,
}

/// Whether the drive is short of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    Yes,
    No,
}

/// Whether files are filled with zeros now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// Yes, one after another.
    GoOn,
    /// No: much is written to few files. Zeros would take half of the drive, and a flush for each of those files costs less.
    Wait,
}

/// What a file is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Data that could also go into the frame: leaves the last ready file of each class alone.
    Direct,
    /// Emptying the journal or memory, which must not wait: takes the last one too.
    Settling,
}

impl Pool {
    /// Empty; the files of `journal` have numbers from `next` on.
    pub(crate) fn new(limits: FileLimits, journal: JournalId) -> Pool {
        let mut wanted = [0; FILE_CLASSES];
        wanted[0] = limits.ready_per_class;
        Pool {
            journal,
            next: 0,
            spares: BTreeMap::new(),
            freed: BTreeSet::new(),
            marked: FrameSequence(0),
            zeroed: BTreeSet::new(),
            filling: None,
            busy: false,
            creating: None,
            wanted,
            missed: [false; FILE_CLASSES],
            full: None,
            held: false,
            failed: false,
            fitting: FILE_CLASSES,
            taken_at_ns: [0; FILE_CLASSES],
            was_taken: [false; FILE_CLASSES],
            give_back_at_ns: 0,
            is_opened: false,
            look: true,
            zeros: Zeros::GoOn,
            zero_filled: 0,
            handed_out_allocated: 0,
            limits,
        }
    }

    /// A file of this journal exists: its number is taken.
    pub(crate) fn saw(&mut self, file: FileId) {
        if file.journal() == self.journal {
            self.next = self.next.max((file.number() & !ALLOCATED) + 1);
        }
    }

    /// A file that nobody names and that holds anything.
    pub(crate) fn add_blank(&mut self, file: FileId, bytes: u64) {
        self.look = true;
        self.spares.insert(file, Spare { bytes, stage: Stage::Blank });
    }

    /// Something that the pool waits for may have happened.
    pub(crate) fn look_again(&mut self) {
        self.look = true;
    }

    /// A log has given the file up in frame `sequence`.
    pub(crate) fn add_freed(&mut self, sequence: FrameSequence, file: FileId) {
        self.freed.insert((sequence, file));
    }

    /// Somebody has looked at the file itself. One that is not there keeps size 0 and is of no use.
    pub(crate) fn set_bytes(&mut self, file: FileId, bytes: u64) {
        self.look = true;
        if let Some(spare) = self.spares.get_mut(&file) {
            spare.bytes = bytes;
        }
    }

    /// The files themselves have been looked at: what has no size is not there.
    pub(crate) fn opened(&mut self) {
        self.is_opened = true;
        self.spares.retain(|_, spare| spare.bytes > 0);
    }

    /// Whether it has no op under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy && self.creating.is_none()
    }

    /// Files that no frame has named, with their sizes.
    pub(crate) fn blank(&self) -> impl Iterator<Item = (FileId, u64)> {
        self.spares.iter().map(|(file, spare)| (*file, spare.bytes))
    }

    /// A flushed frame carries this mark. `known` gives a freed file's size and generation.
    pub(crate) fn on_marked(&mut self, mark: FrameSequence, known: impl Fn(FileId) -> (u64, Generation)) {
        self.marked = self.marked.max(mark);
        while let Some((sequence, file)) = self.freed.first().copied() {
            if sequence > self.marked && !mutants::on(Mutant::FileHandedOutBeforeFreeMarked) {
                break;
            }
            self.freed.pop_first();
            self.look = true;
            let (bytes, generation) = known(file);
            if self.is_opened && bytes == 0 {
                continue;
            }
            // One that was never assigned came from another layout's pool and may hold anything.
            let used = generation > Generation(0);
            let stage = if used { Stage::Ready } else { Stage::Blank };
            self.spares.insert(file, Spare { bytes, stage });
        }
    }

    /// Whether one flush of the journal covers what is written into the file.
    pub(crate) fn is_initialised(&self, file: FileId) -> bool {
        file.number() < ALLOCATED || self.zeroed.contains(&file)
    }

    /// The file to use next for a log that would like one of `wish` bytes and needs `least`; it stays here until
    /// [`Pool::taken`]. None: it is being made, or room for it is missing.
    pub(crate) fn choose(
        &mut self,
        wish: u64,
        least: u64,
        purpose: Purpose,
        handles: &mut Handles,
        ops: &mut Vec<Op>,
    ) -> Option<FileId> {
        let largest = self.limits.classes[self.fitting.saturating_sub(1)];
        let wish = wish.min(largest).max(least);
        let class = self.class_for(wish);
        let best = self.ready(wish, purpose, handles).or_else(|| {
            // Rather a file of another size than none, if somebody waits already.
            self.missed[class].then(|| self.ready(least, purpose, handles)).flatten()
        });
        let Some(file) = best else {
            if !self.missed[class] {
                self.missed[class] = true;
                self.look = true;
                self.wanted[class] = (self.wanted[class] + 1).min(self.limits.ready_max);
            }
            return None;
        };
        // Not open yet: the next question will find it so.
        handles.get(file, ops).map(|_| file)
    }

    /// In replay: a file that was freed belongs to a log again.
    pub(crate) fn no_longer_freed(&mut self, file: FileId) {
        if !self.spares.contains_key(&file) {
            self.freed.retain(|(_, freed)| *freed != file);
        }
    }

    /// The file that was chosen belongs to a log now. Returns its size.
    pub(crate) fn taken(&mut self, file: FileId) -> Option<u64> {
        self.look = true;
        let spare = self.spares.remove(&file)?;
        let class = self.class_of(spare.bytes);
        self.missed[class] = false;
        self.was_taken[class] = true;
        // A log that fills one file of a class will want the next, and then a larger one.
        for class in [class, (class + 1).min(FILE_CLASSES - 1)] {
            self.wanted[class] = self.wanted[class].max(self.limits.ready_per_class);
        }
        if !self.is_initialised(file) {
            self.handed_out_allocated += 1;
        }
        Some(spare.bytes)
    }

    /// Of so many sizes, from the smallest, the drive has room for a file that nobody waits for yet.
    pub(crate) fn set_fitting(&mut self, classes: usize) {
        self.look |= self.fitting != classes;
        self.fitting = classes;
    }

    /// Goes on with making and filling files: one of each at a time. Returns the size of one that is being made from now on.
    pub(crate) fn pump(
        &mut self,
        zeros: Zeros,
        table: &FileTable,
        handles: &mut Handles,
        ops: &mut Vec<Op>,
    ) -> Option<u64> {
        self.look |= self.zeros != zeros;
        self.zeros = zeros;
        if !std::mem::take(&mut self.look) {
            return None;
        }
        let made = if self.failed { None } else { self.create_next(table, handles, ops) };
        match zeros {
            Zeros::GoOn if self.failed => {}
            Zeros::GoOn => self.fill_next(handles, ops),
            // One that is not begun can be used instead.
            Zeros::Wait => self.filling = self.filling.filter(|file| self.spares[file].stage != Stage::Ready),
        }
        // So that the next log need not wait for one, unless other files need the descriptors.
        if handles.len() * 2 <= self.limits.open_max as usize {
            let ready: Vec<FileId> =
                self.ready_files().map(|(file, _)| file).take(FILE_CLASSES * 2).collect();
            for file in ready {
                handles.get(file, ops);
            }
        }
        made
    }

    /// The end of an opening. A file whose opening failed is forgotten, the next start finds it; returns whether it was to
    /// be made, so that what there is of it can be removed.
    pub(crate) fn on_opened(&mut self, file: FileId, result: &Result<(), Fault>) -> bool {
        self.look = true;
        let Some(spare) = self.spares.get_mut(&file) else { return false };
        let created = self.creating == Some(file);
        if created {
            self.creating = None;
        }
        match result {
            Ok(()) if created => {
                let ready = file.number() >= ALLOCATED;
                spare.stage = if ready { Stage::Ready } else { Stage::Blank };
                self.full.take_if(|_| !self.failed);
                false
            }
            Ok(()) => false,
            Err(fault) => {
                self.spares.remove(&file);
                self.filling.take_if(|f| *f == file);
                if created {
                    self.full = Some(Shortage::NoFile(fault.clone()));
                    self.held = true;
                }
                created
            }
        }
    }

    /// A piece of zeros is written.
    pub(crate) fn on_written(
        &mut self,
        file: FileId,
        io: File,
        result: Result<usize, Fault>,
        handles: &mut Handles,
        ops: &mut Vec<Op>,
    ) {
        self.look = true;
        assert_eq!(self.filling, Some(file), "one file is filled at a time");
        self.busy = false;
        handles.put_back(file);
        let spare = self.spares.get_mut(&file).expect("a file that is filled is a spare");
        let Stage::Zeroing { done } = &mut spare.stage else { panic!("zeros written in {:?}", spare.stage) };
        match result {
            Ok(bytes) if bytes > 0 => *done += bytes as u64,
            Ok(_) => {
                let fault = Fault { what: format!("zeros for {file}: nothing was written"), errno: EIO };
                return self.give_up(file, fault);
            }
            Err(fault) => return self.give_up(file, fault),
        }
        if *done < spare.bytes {
            return;
        }
        spare.stage = Stage::Flushing;
        self.busy = true;
        handles.take(file, ops).expect("it was written just now");
        ops.push(Op::Flush { file: io, tag: TAG });
    }

    /// A file full of zeros is flushed.
    pub(crate) fn on_flushed(&mut self, file: FileId, result: &Result<(), Fault>, handles: &mut Handles) {
        self.look = true;
        handles.put_back(file);
        if let Err(fault) = result {
            return self.give_up(file, fault.clone());
        }
        self.filling = None;
        self.busy = false;
        self.zero_filled += 1;
        self.zeroed.insert(file);
        self.spares.get_mut(&file).expect("a file that is filled is a spare").stage = Stage::Ready;
    }

    /// Why no further file can be made, if that is so.
    pub(crate) fn full(&self) -> Option<&Shortage> {
        self.full.as_ref()
    }

    /// Whether it waits for a [`Pool::retry`].
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Room may have been made on the drive: try again.
    pub(crate) fn retry(&mut self) {
        self.look = true;
        self.held = false;
    }

    /// The next file to give back to the drive, if one may go: more than are kept, and nobody has taken one of its size for long,
    /// or the drive is short of space. `may_go` tells whether a file that nobody uses may be removed.
    pub(crate) fn surplus(
        &mut self,
        now: Now,
        short: Short,
        may_go: impl Fn(FileId) -> bool,
    ) -> Option<FileId> {
        if now.mono_ns < self.give_back_at_ns || self.creating.is_some() {
            return None;
        }
        for class in (0..FILE_CLASSES).rev() {
            if std::mem::take(&mut self.was_taken[class]) || self.taken_at_ns[class] == 0 {
                self.taken_at_ns[class] = now.mono_ns;
            }
            let is_idle = now.mono_ns - self.taken_at_ns[class] >= self.limits.class_idle_ns;
            if self.missed[class] || !(is_idle || short == Short::Yes) {
                continue;
            }
            let kept = if class == 0 { self.limits.ready_per_class } else { 0 };
            self.wanted[class] = self.wanted[class].min(kept);
            let here = |(_, spare): &(&FileId, &Spare)| self.class_of(spare.bytes) == class;
            let at_rest = |stage| matches!(stage, Stage::Blank | Stage::Ready);
            if self.spares.iter().filter(here).count() <= kept as usize {
                continue;
            }
            let mut free = self.spares.iter().filter(here).filter(|(_, spare)| at_rest(spare.stage));
            if let Some((file, _)) = free.find(|(file, _)| self.filling != Some(**file) && may_go(**file)) {
                return Some(*file);
            }
        }
        self.give_back_at_ns = now.mono_ns + GIVE_BACK_NS;
        None
    }

    /// The file is being removed.
    pub(crate) fn give_back(&mut self, file: FileId) {
        self.spares.remove(&file);
        self.zeroed.remove(&file);
    }

    /// Files ready for use.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready_files().count()
    }

    /// All files here, ready or not.
    pub(crate) fn spare_count(&self) -> usize {
        self.spares.len() + self.freed.len()
    }

    /// It may be anything now; the next start fills it again.
    fn give_up(&mut self, file: FileId, fault: Fault) {
        self.filling = None;
        self.busy = false;
        self.spares.remove(&file);
        match fault.is_full() {
            true => self.held = true,
            false => self.failed = true,
        }
        self.full = Some(Shortage::NoFile(fault));
    }

    fn ready_files(&self) -> impl Iterator<Item = (FileId, u64)> {
        let is_ready =
            |(file, spare): &(&FileId, &Spare)| spare.stage == Stage::Ready && self.filling != Some(**file);
        self.spares.iter().filter(is_ready).map(|(file, s)| (*file, s.bytes))
    }

    /// The smallest ready file of at least `bytes` that the purpose may take.
    fn ready(&self, bytes: u64, purpose: Purpose, handles: &Handles) -> Option<FileId> {
        let mut of_class = [0; FILE_CLASSES];
        for (_, size) in self.ready_files() {
            of_class[self.class_of(size)] += 1;
        }
        let keep = match purpose {
            Purpose::Direct => 1,
            Purpose::Settling => 0,
        };
        self.ready_files()
            .filter(|(file, size)| {
                *size >= bytes && of_class[self.class_of(*size)] > keep && handles.idle(*file)
            })
            .min_by_key(|(file, size)| (*size, !handles.is_open(*file), *file))
            .map(|(file, _)| file)
    }

    fn create_next(&mut self, table: &FileTable, handles: &mut Handles, ops: &mut Vec<Op>) -> Option<u64> {
        if self.creating.is_some() || self.held || self.next >= ALLOCATED {
            return None;
        }
        let (mut have, mut ready) = ([0; FILE_CLASSES], [0; FILE_CLASSES]);
        for spare in self.spares.values().filter(|spare| spare.bytes > 0) {
            have[self.class_of(spare.bytes)] += 1;
        }
        for (_, bytes) in self.ready_files().filter(|(file, _)| handles.idle(*file)) {
            ready[self.class_of(bytes)] += 1;
        }
        // One that is yet to be filled is no help to a log that waits, nor while nothing is filled.
        let soon = |c: usize| !self.missed[c] && self.zeros == Zeros::GoOn;
        let is_short = |c: &usize| match soon(*c) {
            true => have[*c] < self.wanted[*c],
            false => ready[*c] < self.wanted[*c].min(self.limits.ready_per_class),
        };
        // What somebody waits for was accepted already: it may go below the floor, with the smallest file.
        let may_be_made = |c: &usize| *c < self.fitting || (*c == 0 && self.missed[0]);
        let short = (0..FILE_CLASSES).filter(is_short).filter(may_be_made);
        let Some(class) = short.max_by_key(|c| (self.missed[*c], FILE_CLASSES - c)) else {
            self.full = None;
            return None;
        };
        let unnamed = self.spares.keys().filter(|file| table.get(**file).is_none()).count();
        let (limit, current) = (self.limits.files_max, table.len() + unnamed);
        if current >= limit as usize {
            self.full = Some(Shortage::Files { limit, current });
            return None;
        }
        let kind = if soon(class) { 0 } else { ALLOCATED };
        let file = FileId::new(self.journal, self.next | kind);
        let bytes = self.limits.classes[class];
        self.next += 1;
        self.creating = Some(file);
        self.spares.insert(file, Spare { bytes, stage: Stage::Creating });
        handles.create(file, bytes, ops);
        Some(bytes)
    }

    fn fill_next(&mut self, handles: &mut Handles, ops: &mut Vec<Op>) {
        if self.busy {
            return;
        }
        let nobody_waits = self.missed == [false; FILE_CLASSES];
        let wants_zeros = |(file, spare): (&FileId, &Spare)| match spare.stage {
            Stage::Blank => spare.bytes > 0,
            // One that is of use as it is stays so while somebody waits.
            Stage::Ready => nobody_waits && !self.is_initialised(*file),
            Stage::Creating | Stage::Zeroing { .. } | Stage::Flushing => false,
        };
        let first = |(file, spare): (&FileId, &Spare)| {
            handles.idle(*file).then_some((spare.stage == Stage::Ready, spare.bytes, *file))
        };
        let mut waiting = self.spares.iter().filter(|spare| wants_zeros(*spare)).peekable();
        let is_any = waiting.peek().is_some();
        let next = self.filling.or_else(|| waiting.filter_map(first).min().map(|(.., file)| file));
        let Some(file) = next else {
            // One that a reader still uses is filled when the reader has done: nobody says so.
            self.look = is_any;
            return;
        };
        self.filling = Some(file);
        let Some(io) = handles.take(file, ops) else { return };
        let spare = self.spares.get_mut(&file).expect("a file that is filled is a spare");
        let done = if let Stage::Zeroing { done } = spare.stage { done } else { 0 };
        spare.stage = Stage::Zeroing { done };
        let len = (spare.bytes - done).min(self.limits.zero_piece_bytes as u64) as usize;
        self.busy = true;
        ops.push(Op::Zero { file: io, at: done, len, tag: TAG });
    }

    /// The class that a file of that size belongs to.
    fn class_of(&self, bytes: u64) -> usize {
        self.limits.classes.iter().rposition(|class| *class <= bytes).unwrap_or(0)
    }

    /// The class of a file that holds `bytes`.
    fn class_for(&self, bytes: u64) -> usize {
        self.limits.classes.iter().position(|class| *class >= bytes).unwrap_or(FILE_CLASSES - 1)
    }
}
