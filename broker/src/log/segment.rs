//! The data files of a shard: what each holds, where the next run of a log goes, which are ready for use.
//!
//! `FileTable` is the replayable part; `Pool` and `Handles` are what this process knows besides.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::FileState;
use tidegate_protocol::disk::entry::{Assign, Free, RunMark};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::ids::{FileId, FrameSequence, Generation, JournalId, Offset, TopicPartition};
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::{Event, Fault, File, Now, Op, Tag};

use super::file_table::{DataFile, FileTable};
use super::handles::{FILE_SPACE, Handles};
use super::notice::Shortage;
pub use super::pool::{ALLOCATED, Purpose, Zeros};
use super::pool::{Pool, Short};
use super::retention::Piece;
use super::space::Space;
use crate::datadir;
use crate::limits::FileLimits;
use crate::mutants::{self, Mutant};

/// Removal of a file that could not be made.
const REMOVE: Tag = Tag(FILE_SPACE | 1);
/// Removal of a file that is not needed any more.
const GIVE_BACK: Tag = Tag(FILE_SPACE | 3);
/// The table never forgets a file that a frame has named, so that its name is not used again: of such files no more go back.
const NAMED_GONE_MAX: usize = 2_000;

/// What the data files of a shard need to know.
#[derive(Clone, Debug)]
pub struct SegmentsConfig {
    /// The data directory.
    pub root: PathBuf,
    /// The shard's journal, under which new files are made.
    pub journal: JournalId,
    /// How far one flush reaches.
    pub reach: FlushReach,
    /// Bounds.
    pub limits: FileLimits,
}

/// How far a flush of the journal reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushReach {
    /// Over all initialised files.
    AllFiles,
    /// Over the journal alone.
    Journal,
}

/// Whether recovery has found damage to what was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// None.
    Absent,
    /// Some: files that nobody names may be evidence and are left alone.
    Present,
}

/// Where a run goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The data file.
    pub file: FileId,
    /// Under which number it is open.
    pub io: File,
    /// Its generation.
    pub generation: Generation,
    /// Bytes from its start.
    pub at: u64,
    /// The run's number in it.
    pub run_sequence: u64,
    /// The CRC of the header of the run before it; 0 for the first.
    pub previous_crc: u32,
    /// What has to go into the frame in front of the run's mark, if the file is new to the log.
    pub assign: Option<Assign>,
    /// Which flush covers it.
    pub flush: PlaceFlush,
}

/// Which flush covers a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceFlush {
    /// The journal's.
    Cycle,
    /// One of its file, after its write and before the cycle counts as flushed.
    Own,
}

/// The data files of a shard.
#[derive(Debug)]
pub struct Segments {
    pub(super) table: FileTable,
    pub(super) handles: Handles,
    pool: Pool,
    space: Space,
    config: SegmentsConfig,
    /// Ops that came up between two turns.
    queued: Vec<Op>,
    retry_at_ns: Option<u64>,
    /// Files that could not be opened since the reader asked last.
    open_failed: Vec<(FileId, Fault)>,
    /// Removals under way.
    removing: u32,
    /// What recovery has said.
    rot: Rot,
    /// The file that is being removed to give its space back.
    giving_back: Option<FileId>,
    /// Files in the table that are not there any more.
    named_gone: usize,
    given_back: u64,
    upkeep: Upkeep,
}

/// Whether files are made and filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upkeep {
    Running,
    Stopped,
}

impl Segments {
    /// No file yet.
    pub fn new(config: SegmentsConfig) -> Segments {
        Segments {
            table: FileTable::default(),
            handles: Handles::new(config.root.clone(), config.limits.open_max),
            pool: Pool::new(config.limits, config.journal),
            space: Space::new(config.limits, config.root.clone()),
            config,
            queued: Vec::new(),
            retry_at_ns: None,
            open_failed: Vec::new(),
            removing: 0,
            rot: Rot::Absent,
            giving_back: None,
            named_gone: 0,
            given_back: 0,
            upkeep: Upkeep::Running,
        }
    }

    /// The files of a checkpoint.
    ///
    /// # Errors
    /// If no sound shard can have written it.
    pub fn restore(config: SegmentsConfig, states: &[FileState]) -> Result<Segments, String> {
        let mut segments = Segments::new(config);
        segments.table = FileTable::restore(states)?;
        for (file, data) in segments.table.iter() {
            segments.pool.saw(file);
            if data.segment.is_none() {
                segments.pool.add_freed(data.freed_by, file);
            }
        }
        Ok(segments)
    }

    /// The files for a checkpoint: exactly what the three functions that follow have made of them.
    pub fn state(&self) -> Vec<FileState> {
        self.table.state()
    }

    /// A frame assigns a file to a log; live and in replay.
    ///
    /// # Errors
    /// If no sound shard can have written it.
    pub fn apply_assign(&mut self, assign: &Assign) -> Result<(), String> {
        self.table.assign(assign)?;
        self.pool.saw(assign.file);
        self.pool.no_longer_freed(assign.file);
        if let Some(bytes) = self.pool.taken(assign.file) {
            self.table.set_bytes(assign.file, bytes);
        }
        Ok(())
    }

    /// Frame `sequence` frees a file; live and in replay.
    ///
    /// # Errors
    /// If no sound shard can have written it.
    pub fn apply_free(&mut self, sequence: FrameSequence, free: &Free) -> Result<(), String> {
        self.table.free(sequence, free)?;
        self.pool.add_freed(sequence, free.file);
        if mutants::on(Mutant::FileHandedOutBeforeFreeMarked) {
            self.on_marked(FrameSequence(0));
        }
        Ok(())
    }

    /// A frame marks a run; live and in replay.
    ///
    /// # Errors
    /// If no sound shard can have written it.
    pub fn apply_run(&mut self, run: &RunMark) -> Result<(), String> {
        self.table.run(run)
    }

    /// No further run goes into the file: recovery has dropped one that was in it.
    pub fn seal(&mut self, file: FileId) {
        self.table.seal(file);
    }

    /// The end of recovery: no further run goes into a file in which a run lies behind the last one that was kept. It was
    /// dropped, and is whole perhaps: should the drive lose the write of another one in its place, the two could not be told apart.
    pub fn seal_leftovers(&mut self, disk: &mut dyn Disk) {
        let open = |(file, data): (FileId, &DataFile)| {
            let segment = data.segment.as_ref().filter(|s| !s.sealed && s.written < data.bytes)?;
            Some((file, data.generation, segment.log, segment.written))
        };
        let open: Vec<_> = self.table.iter().filter_map(open).collect();
        for (file, generation, log, at) in open {
            let path = datadir::data_file(&self.config.root, file);
            // What cannot be read now is refused when a reader comes to it.
            let Ok(io) = disk.open(&path) else { continue };
            let run = disk.read(io, at, BLOCK).ok().and_then(|block| RunHeader::decode(&block).ok());
            disk.close(io);
            if run.is_some_and(|run| (run.file, run.generation, run.log) == (file, generation, log)) {
                self.table.seal(file);
            }
        }
    }

    /// The end of recovery: looks which files exist. One made under this journal that no frame names holds nothing, and is
    /// filled with zeros again when the shard turns.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn opened(&mut self, disk: &mut dyn Disk, rot: Rot) -> Result<(), Fault> {
        let dir = datadir::files_dir(&self.config.root);
        let names: BTreeSet<FileId> =
            disk.list(&dir)?.iter().filter_map(|name| datadir::data_file_id(name)).collect();
        let gone = |(file, data): (FileId, &DataFile)| {
            (data.segment.is_none() && !names.contains(&file)).then_some(file)
        };
        let gone: Vec<FileId> = self.table.iter().filter_map(gone).collect();
        self.named_gone = gone.len();
        for file in gone {
            // A checkpoint or a frame from before its removal still gives it a size.
            self.table.set_bytes(file, 0);
            self.pool.set_bytes(file, 0);
        }
        for file in names {
            self.pool.saw(file);
            let named = self.table.get(file);
            if named.is_some_and(|data| data.bytes > 0) {
                continue;
            }
            if named.is_none() && (file.journal() != self.config.journal || rot == Rot::Present) {
                continue;
            }
            let path = datadir::data_file(&self.config.root, file);
            let bytes = length(disk, &path)?;
            if named.is_some() {
                self.table.set_bytes(file, bytes);
                self.pool.set_bytes(file, bytes);
            } else if self.config.limits.classes.contains(&bytes) {
                self.pool.add_blank(file, bytes);
            } else {
                // Its making did not come to its end, or the sizes were changed.
                disk.remove(&path)?;
            }
        }
        self.pool.opened();
        self.rot = rot;
        Ok(())
    }

    /// A flushed frame carries this mark: what was freed at or below it may be used again.
    pub fn on_marked(&mut self, mark: FrameSequence) {
        let table = &self.table;
        let known = |file| table.get(file).map(|data| (data.bytes, data.generation)).unwrap_or_default();
        self.pool.on_marked(mark, known);
    }

    /// Where the next run of `log`, of `run_bytes` from offset `base`, goes. None: nothing is ready; ask again in a later
    /// turn. A place that is used is applied before the next question, and given back with [`Segments::put_back`] when the
    /// write and, if it needs one, the flush of its own have ended; one that is not used is given back at once.
    pub fn place(
        &mut self,
        log: TopicPartition,
        base: Offset,
        run_bytes: u32,
        segment_bytes: u64,
        purpose: Purpose,
    ) -> Option<Place> {
        let run_bytes = u64::from(run_bytes);
        let mut wish = self.config.limits.classes[0];
        if let Some((file, segment)) = self.table.of_log(log).next_back() {
            let data = self.table.get(file).expect("a log's file is in the table");
            if !segment.sealed && segment.written + run_bytes <= data.bytes {
                let (generation, at) = (data.generation, segment.written);
                let (run_sequence, previous_crc) = (segment.runs, segment.last_crc);
                let io = self.handles.take(file, &mut self.queued)?;
                let flush = self.flush_of(file);
                return Some(Place {
                    file,
                    io,
                    generation,
                    at,
                    run_sequence,
                    previous_crc,
                    assign: None,
                    flush,
                });
            }
            // A log that has filled a file gets a larger one.
            wish = if segment.sealed { data.bytes } else { data.bytes + 1 };
        }
        let wish = wish.min(segment_bytes);
        let file = self.pool.choose(wish, run_bytes, purpose, &mut self.handles, &mut self.queued)?;
        let io = self.handles.take(file, &mut self.queued)?;
        let generation = Generation(self.table.get(file).map_or(0, |data| data.generation.0) + 1);
        Some(Place {
            file,
            io,
            generation,
            at: 0,
            run_sequence: 0,
            previous_crc: 0,
            assign: Some(Assign { file, generation, log, base }),
            flush: self.flush_of(file),
        })
    }

    /// The end of the use of one [`Place`].
    pub fn put_back(&mut self, file: FileId) {
        self.handles.put_back(file);
    }

    /// What frees the files of `log` that hold nothing at or above `start`.
    pub fn below(&self, log: TopicPartition, start: Offset) -> Vec<Free> {
        self.table.below(log, start)
    }

    /// What frees every file of `log`.
    pub fn all_of(&self, log: TopicPartition) -> Vec<Free> {
        self.table.all_of(log)
    }

    /// Files of this journal that no frame has named, with their sizes.
    pub(super) fn unnamed(&self) -> Vec<(FileId, u64)> {
        self.pool.blank().filter(|(file, _)| self.table.get(*file).is_none()).collect()
    }

    /// Bytes of runs of `log` in data files.
    pub fn bytes(&self, log: TopicPartition) -> u64 {
        self.table.of_log(log).map(|(_, segment)| segment.written).sum()
    }

    /// One past the last record of `log` in data files.
    pub fn end(&self, log: TopicPartition) -> Option<Offset> {
        self.table.of_log(log).next_back().map(|(_, segment)| segment.end)
    }

    /// The file that takes the log's runs.
    #[cfg(test)]
    pub(super) fn newest_file(&self, log: TopicPartition) -> Option<FileId> {
        self.table.of_log(log).next_back().map(|(file, _)| file)
    }

    /// Whether the file that takes the log's runs is open.
    #[cfg(test)]
    pub(super) fn is_open_for(&self, log: TopicPartition) -> bool {
        self.table.of_log(log).next_back().is_some_and(|(file, _)| self.handles.is_open(file))
    }

    /// Why no further file can be made, if that is so.
    pub fn full(&self) -> Option<&Shortage> {
        self.pool.full()
    }

    /// That the drive's free space is below the floor, if so.
    pub fn below_floor(&self) -> Option<Shortage> {
        self.space.shortage()
    }

    /// The end of a turn: goes on with making, filling, opening and closing files.
    pub fn pump(&mut self, now: Now, zeros: Zeros, ops: &mut Vec<Op>) {
        if self.upkeep == Upkeep::Running {
            self.keep_up(now, zeros, ops);
        }
        self.handles.close_unused(ops);
        ops.append(&mut self.queued);
    }

    /// Makes and fills no further file; those that are ready can still be used.
    pub fn stop(&mut self) {
        self.upkeep = Upkeep::Stopped;
    }

    /// Whether no op of its own is under way.
    pub fn is_idle(&self) -> bool {
        self.pool.is_idle()
            && self.space.is_idle()
            && self.handles.all_at_rest()
            && self.removing == 0
            && self.queued.is_empty()
    }

    fn keep_up(&mut self, now: Now, zeros: Zeros, ops: &mut Vec<Op>) {
        const RETRY_NS: u64 = 1_000_000_000;
        match (self.pool.is_held(), self.retry_at_ns) {
            (true, None) => {
                let at_ns = now.mono_ns + RETRY_NS;
                self.retry_at_ns = Some(at_ns);
                ops.push(Op::Timer { at_ns, tag: RETRY });
            }
            (true, Some(at_ns)) if at_ns <= now.mono_ns => {
                self.retry_at_ns = None;
                self.pool.retry();
            }
            _ => {}
        }
        self.space.pump(now, ops);
        self.pool.set_fitting(self.space.classes_that_fit());
        self.give_back(now, ops);
        if let Some(bytes) = self.pool.pump(zeros, &self.table, &mut self.handles, ops) {
            self.space.spend(bytes);
        }
    }

    /// Gives files that are not needed back to the drive, one at a time.
    fn give_back(&mut self, now: Now, ops: &mut Vec<Op>) {
        if self.removing > 0 || self.rot == Rot::Present {
            return;
        }
        let short = if self.space.shortage().is_some() { Short::Yes } else { Short::No };
        let (table, handles, gone) = (&self.table, &self.handles, self.named_gone);
        let may_go = |file| {
            let is_named = table.get(file).is_some();
            (handles.is_closed(file) || (handles.is_open(file) && handles.idle(file)))
                && (!is_named || gone < NAMED_GONE_MAX)
        };
        let Some(file) = self.pool.surplus(now, short, may_go) else { return };
        if !self.handles.is_closed(file) {
            // Its end brings the next turn, in which the same file is found.
            return self.handles.close(file, ops);
        }
        self.pool.give_back(file);
        self.giving_back = Some(file);
        self.removing += 1;
        ops.push(Op::Remove { path: datadir::data_file(&self.config.root, file), tag: GIVE_BACK });
    }

    fn given_back(&mut self, result: &Result<(), Fault>) {
        let file = self.giving_back.take().expect("one removal at a time");
        if result.is_ok() {
            self.given_back += 1;
            self.named_gone += usize::from(self.table.get(file).is_some());
            self.table.set_bytes(file, 0);
        }
    }

    /// Takes in what the drive did with a data file or for the pool; none of a run's own events.
    pub fn on_event(&mut self, now: Now, event: Event, ops: &mut Vec<Op>) {
        match event {
            Event::Opened { file: io, result } => {
                let file = self.handles.on_opened(io, &result);
                if self.pool.on_opened(file, &result) {
                    self.removing += 1;
                    ops.push(Op::Remove { path: datadir::data_file(&self.config.root, file), tag: REMOVE });
                } else if let Err(fault) = result {
                    if !too_many_open(&fault) {
                        // It cannot take runs either.
                        self.table.seal(file);
                    }
                    self.open_failed.push((file, fault));
                }
            }
            Event::FileClosed { file: io } => {
                self.handles.on_closed(io);
                self.pool.look_again();
            }
            Event::Written { file: io, result, .. } => {
                let file = self.handles.file_of(io).expect("a file that is filled is open");
                self.pool.on_written(file, io, result, &mut self.handles, ops);
            }
            Event::Flushed { file: io, result, .. } => {
                let file = self.handles.file_of(io).expect("a file that is filled is open");
                self.pool.on_flushed(file, &result, &mut self.handles);
            }
            // What could not be made was perhaps never there.
            Event::Removed { tag, result } => {
                self.removing -= 1;
                if tag == GIVE_BACK {
                    self.given_back(&result);
                }
            }
            Event::FreeSpace { result, .. } => self.space.on_answer(now, result, ops),
            Event::Timer { .. } => {}
            other => panic!("not an event of data files: {other:?}"),
        }
    }

    /// A log's data files as retention sees them, oldest first.
    pub(super) fn pieces(&self, log: TopicPartition) -> impl Iterator<Item = Piece> {
        self.table.of_log(log).map(|(_, segment)| Piece {
            end: segment.end,
            bytes: segment.written,
            append_last_ms: segment.append_last_ms,
        })
    }

    /// Files that could not be opened since the last time.
    pub(super) fn take_open_failed(&mut self) -> Vec<(FileId, Fault)> {
        std::mem::take(&mut self.open_failed)
    }

    /// Counters and gauges by name.
    pub fn stats(&self) -> Vec<(&'static str, i64)> {
        let entries = self.table.iter().filter_map(|(_, data)| data.segment.as_ref());
        let mut stats = vec![
            ("index_entries", entries.map(|segment| segment.index.len() as i64).sum()),
            ("files_open", self.handles.len() as i64),
            ("files_ready", self.pool.ready_count() as i64),
            ("files_spare", self.pool.spare_count() as i64),
            ("files_given_back", self.given_back as i64),
            ("files_zero_filled", self.pool.zero_filled as i64),
            ("files_with_own_flush", self.pool.handed_out_allocated as i64),
        ];
        stats.extend(self.space.free_bytes().map(|bytes| ("drive_free_bytes", bytes as i64)));
        stats
    }

    /// Asserts the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.table.check();
    }

    fn flush_of(&self, file: FileId) -> PlaceFlush {
        if (self.config.reach == FlushReach::AllFiles && self.pool.is_initialised(file))
            || mutants::on(Mutant::OwnFlushForgotten)
        {
            PlaceFlush::Cycle
        } else {
            PlaceFlush::Own
        }
    }
}

/// Wakes the shard to try again when the drive was full.
const RETRY: Tag = Tag(0x0105 << 48);

fn too_many_open(fault: &Fault) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    fault.errno == ENFILE || fault.errno == EMFILE
}

fn length(disk: &mut dyn Disk, path: &std::path::Path) -> Result<u64, Fault> {
    let file = disk.open(path)?;
    let bytes = disk.len(file);
    disk.close(file);
    bytes
}

#[cfg(test)]
mod tests;
