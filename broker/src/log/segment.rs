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
mod tests {
    use std::path::Path;

    use tidegate_protocol::ids::{PartitionId, TopicId};
    use tidegate_reactor::op::FreeSpace;

    use super::*;
    use crate::limits::FILE_CLASSES;
    use crate::testdisk::TestDrive;

    const KIB: u64 = 1 << 10;
    const RUN: u32 = 16 << 10;
    const CLASSES: [u64; FILE_CLASSES] = [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB];

    fn log(n: u8) -> TopicPartition {
        TopicPartition { topic: TopicId([n; 16]), partition: PartitionId(0) }
    }

    fn config() -> SegmentsConfig {
        let limits = FileLimits {
            classes: CLASSES,
            ready_per_class: 2,
            ready_max: 4,
            zero_piece_bytes: 16 << 10,
            files_max: 1000,
            open_max: 100,
            read_bytes_max: 64 << 10,
            reads_max: 2,
            reads_waiting_max: 4,
            floor_bytes: Some(256 * KIB),
            space_look_ns: 1_000_000_000,
            class_idle_ns: 60_000_000_000,
            ..FileLimits::DEFAULT
        };
        SegmentsConfig { root: "/data".into(), journal: JournalId(1), reach: FlushReach::AllFiles, limits }
    }

    /// A shard that places runs and writes no journal: every frame is flushed and marked when the test says so.
    struct Shard {
        segments: Segments,
        drive: TestDrive,
        sequence: u64,
    }

    impl Shard {
        fn new() -> Shard {
            let mut drive = TestDrive::with_dir("/data");
            drive.disk.create_dir(Path::new("/data/files")).unwrap();
            let mut shard = Shard { segments: Segments::new(config()), drive, sequence: 0 };
            shard.settle();
            shard
        }

        /// Turns until nothing is under way.
        fn settle(&mut self) {
            self.settle_while(Zeros::GoOn);
        }

        fn settle_while(&mut self, zeros: Zeros) {
            loop {
                let mut ops = Vec::new();
                self.segments.pump(self.drive.now(), zeros, &mut ops);
                self.drive.submit(ops);
                if !self.turn() {
                    return;
                }
            }
        }

        /// The events of all ops under way; whether there was one.
        fn turn(&mut self) -> bool {
            let events = self.drive.complete();
            let any = !events.is_empty();
            let mut ops = Vec::new();
            for event in events {
                self.segments.on_event(self.drive.now(), event, &mut ops);
            }
            self.drive.submit(ops);
            self.segments.check();
            any
        }

        /// Ten records.
        fn put(&mut self, log: TopicPartition, purpose: Purpose) -> Option<Place> {
            let base = self.segments.end(log).unwrap_or_default();
            let place = self.segments.place(log, base, RUN, u64::MAX, purpose)?;
            if let Some(assign) = &place.assign {
                self.segments.apply_assign(assign).unwrap();
            }
            self.sequence += 1;
            let run = RunMark {
                log,
                base,
                end: base.plus(10),
                file: place.file,
                generation: place.generation,
                at: place.at,
                bytes: RUN,
                crc: 1,
                run_sequence: place.run_sequence,
                append_first_ms: 0,
                append_last_ms: 0,
                max_timestamp_ms: 0,
                producers: Vec::new(),
            };
            self.segments.apply_run(&run).unwrap();
            self.segments.put_back(place.file);
            Some(place)
        }

        fn free_all(&mut self, log: TopicPartition) -> FrameSequence {
            self.sequence += 1;
            for free in self.segments.all_of(log) {
                self.segments.apply_free(FrameSequence(self.sequence), &free).unwrap();
            }
            FrameSequence(self.sequence)
        }
    }

    #[test]
    fn files_are_zero_filled_and_flushed_before_one_flush_may_cover_them() {
        let mut shard = Shard::new();
        assert_eq!(
            shard.drive.disk.names(),
            ["/data/files/00000001-00000000", "/data/files/00000001-00000001"]
        );
        assert!(shard.drive.disk.is_durable_zeros("/data/files/00000001-00000000"));
        let place = shard.put(log(1), Purpose::Direct).unwrap();
        assert_eq!((place.at, place.run_sequence, place.flush), (0, 0, PlaceFlush::Cycle));
        assert_eq!(place.generation, Generation(1));
        let second = shard.put(log(1), Purpose::Direct).unwrap();
        assert_eq!((second.file, second.at, second.previous_crc), (place.file, u64::from(RUN), 1));
        assert_eq!(second.assign, None);
    }

    #[test]
    fn a_log_that_fills_its_file_gets_a_larger_one() {
        let mut shard = Shard::new();
        let mut sizes = Vec::new();
        while sizes.len() < 12 {
            shard.settle();
            if let Some(place) = shard.put(log(1), Purpose::Direct)
                && place.assign.is_some()
            {
                sizes.push(shard.segments.table.get(place.file).unwrap().bytes);
            }
        }
        assert_eq!(sizes[..4], CLASSES);
        assert!(sizes[4..].iter().all(|s| *s == CLASSES[3]), "{sizes:?}");
    }

    #[test]
    fn the_last_ready_file_is_held_back_for_what_must_not_wait() {
        let mut shard = Shard::new();
        shard.put(log(1), Purpose::Direct).unwrap();
        assert_eq!(shard.put(log(2), Purpose::Direct), None);
        assert!(shard.put(log(3), Purpose::Settling).is_some());
    }

    #[test]
    fn a_file_made_while_a_log_waits_is_used_at_once_with_a_flush_of_its_own() {
        let mut shard = Shard::new();
        shard.put(log(1), Purpose::Settling).unwrap();
        shard.put(log(2), Purpose::Settling).unwrap();
        assert_eq!(shard.put(log(3), Purpose::Direct), None);
        shard.settle();
        let mut own = 0;
        for n in 3..6 {
            let Some(place) = shard.put(log(n), Purpose::Direct) else { continue };
            let allocated = place.file.number() >= ALLOCATED;
            assert_eq!(place.flush == PlaceFlush::Own, allocated, "{place:?}");
            own += usize::from(allocated);
        }
        assert!(own > 0);
    }

    #[test]
    fn while_zeros_wait_files_are_allocated_ahead_freed_ones_used_again_and_all_filled_later() {
        let mut shard = Shard::new();
        let mut places = Vec::new();
        for n in 1..9 {
            places.extend(shard.put(log(n), Purpose::Direct));
            shard.settle_while(Zeros::Wait);
        }
        assert_eq!(
            places.len(),
            8,
            "none waits: two are there, and each that is taken is followed by another"
        );
        assert_eq!(shard.segments.pool.zero_filled, 2, "those of the start");
        let own: Vec<&Place> = places.iter().filter(|place| place.flush == PlaceFlush::Own).collect();
        assert!(own.len() >= 6 && own.iter().all(|place| place.file.number() >= ALLOCATED), "{own:?}");

        let freed = shard.free_all(log(8));
        shard.segments.on_marked(freed);
        let again = |shard: &mut Shard, logs: std::ops::Range<u8>| {
            let put = logs.filter_map(|n| shard.put(log(n), Purpose::Settling)).collect::<Vec<_>>();
            put.into_iter().find(|place| place.file == places[7].file)
        };
        let place = again(&mut shard, 20..24).expect("a file that was allocated and freed is ready");
        assert_eq!((place.generation, place.flush), (Generation(2), PlaceFlush::Own));

        let freed = shard.free_all(place.assign.unwrap().log);
        shard.segments.on_marked(freed);
        shard.settle();
        let name = format!("/data/files/00000001-{:08x}", place.file.number());
        assert!(shard.drive.disk.is_durable_zeros(&name), "{name} of {:?}", shard.drive.disk.names());
        assert_eq!(again(&mut shard, 24..30).map(|place| place.flush), Some(PlaceFlush::Cycle));
    }

    #[test]
    fn a_log_that_waits_gets_a_file_before_those_that_are_being_filled() {
        let mut shard = Shard::new();
        shard.put(log(1), Purpose::Settling).unwrap();
        shard.put(log(2), Purpose::Settling).unwrap();
        let mut ops = Vec::new();
        // As many as there are to be at most are on their way to be filled.
        for _ in 0..12 {
            shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
            let creating = ops.extract_if(.., |op| matches!(op, Op::Open { .. })).collect();
            shard.drive.submit(creating);
            shard.turn();
        }
        let filling = ops.iter().filter(|op| matches!(op, Op::Zero { .. })).count();
        assert_eq!((filling, shard.segments.pool.ready_count()), (1, 0), "one file, whose zeros take long");
        assert_eq!(shard.put(log(3), Purpose::Direct), None);
        for _ in 0..4 {
            let mut more = Vec::new();
            shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut more);
            shard.drive.submit(more);
            shard.turn();
        }
        let place = shard.put(log(3), Purpose::Direct).expect("it is not made to wait for zeros");
        assert_eq!(place.flush, PlaceFlush::Own);
    }

    #[test]
    fn a_freed_file_is_handed_out_only_when_a_mark_has_passed_its_free() {
        let mut shard = Shard::new();
        let old = shard.put(log(1), Purpose::Settling).unwrap();
        shard.put(log(2), Purpose::Settling).unwrap();
        let freed = shard.free_all(log(1));
        let mut logs = 3;
        let mut handed_out = |shard: &mut Shard| {
            // As many files as the pool will give.
            let mut files = Vec::new();
            for _ in 0..8 {
                shard.settle();
                logs += 1;
                files.extend(shard.put(log(logs), Purpose::Settling).map(|p| (p.file, p.generation)));
            }
            files
        };
        shard.segments.on_marked(FrameSequence(freed.0 - 1));
        assert!(handed_out(&mut shard).iter().all(|(file, _)| *file != old.file));
        shard.segments.on_marked(freed);
        assert!(handed_out(&mut shard).contains(&(old.file, Generation(2))));
    }

    #[test]
    fn the_table_of_a_replay_is_that_of_the_live_shard() {
        let mut shard = Shard::new();
        for n in 0..40u8 {
            shard.settle();
            shard.put(log(n % 3), Purpose::Settling);
            if n == 20 {
                let freed = shard.free_all(log(0));
                shard.segments.on_marked(freed);
            }
        }
        let state = shard.segments.state();
        let mut again = Segments::restore(config(), &state).unwrap();
        again.check();
        assert_eq!(again.state(), state);
        again.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
        again.on_marked(FrameSequence(shard.sequence));
        assert_eq!(again.state(), state);
        // It goes on where the other stood, with new numbers for new files.
        let taken: BTreeSet<FileId> = shard.segments.table.iter().map(|(file, _)| file).collect();
        let mut shard = Shard { segments: again, ..shard };
        shard.drive.close_all();
        for n in 50..70 {
            shard.settle();
            if let Some(place) = shard.put(log(n), Purpose::Settling) {
                let fresh = !taken.contains(&place.file);
                assert!(fresh || place.generation > Generation(1), "{place:?}");
            }
        }
    }

    #[test]
    fn files_that_nobody_names_are_filled_again_but_left_alone_after_rot() {
        let mut shard = Shard::new();
        let name = "/data/files/00000001-00000007";
        for rot in [Rot::Present, Rot::Absent] {
            shard.drive.close_all();
            shard.drive.disk.put(name, &vec![9; 32 << 10]);
            shard.drive.disk.put("/data/files/00000001-00000008", b"half made");
            shard.segments = Segments::new(config());
            shard.segments.opened(&mut shard.drive.disk, rot).unwrap();
            shard.settle();
            assert_eq!(shard.drive.disk.is_durable_zeros(name), rot == Rot::Absent);
            let half = shard.drive.disk.names().contains(&"/data/files/00000001-00000008".to_owned());
            assert_eq!(half, rot == Rot::Present);
        }
        assert!(shard.put(log(1), Purpose::Settling).is_some());
    }

    /// As long as each is given up for the next one, a drive that fails is filled with files that nobody can use.
    #[test]
    fn a_drive_that_fails_is_not_filled_with_files_that_are_given_up() {
        let mut shard = Shard::new();
        let usual = {
            assert!(shard.put(log(1), Purpose::Settling).is_some(), "one was ready");
            shard.settle();
            shard.drive.disk.names().len()
        };
        shard.drive.flushes_fail = true;
        assert!(shard.put(log(2), Purpose::Settling).is_some(), "one was ready");
        // Not until it is still: with a file after the other it never is.
        for _ in 0..200 {
            let mut ops = Vec::new();
            shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
            shard.drive.submit(ops);
            shard.turn();
            shard.drive.pass(100_000_000);
        }
        assert!(shard.drive.disk.names().len() <= usual + 2, "{:?}", shard.drive.disk.names());
        assert!(matches!(shard.segments.full(), Some(Shortage::NoFile(fault)) if fault.errno == 5));
    }

    #[test]
    fn a_full_drive_is_said_and_tried_again_until_there_is_room() {
        let mut shard = Shard::new();
        shard.drive.full = true;
        let mut given = 0;
        for n in 1..6 {
            given += usize::from(shard.put(log(n), Purpose::Settling).is_some());
            shard.settle();
        }
        assert_eq!(given, 2, "the ready files");
        assert!(matches!(shard.segments.full(), Some(Shortage::NoFile(fault)) if fault.is_full()));
        shard.drive.full = false;
        shard.drive.pass(2_000_000_000);
        shard.settle();
        assert_eq!(shard.segments.full(), None);
        assert!(shard.put(log(9), Purpose::Settling).is_some());
        assert!(
            shard.drive.disk.names().iter().all(|n| shard.drive.disk.len_of(n) >= 32 << 10),
            "no half-made file"
        );
    }

    #[test]
    fn below_the_floor_no_file_is_made_ahead_but_what_was_accepted_gets_small_ones() {
        let mut shard = Shard::new();
        shard.drive.disk.space = Some(FreeSpace { free_bytes: 256 * KIB, total_bytes: 1 << 30 });
        shard.drive.pass(1_000_000_000);
        shard.settle();
        let before = shard.drive.disk.names().len();
        let mut sizes = Vec::new();
        for _ in 0..40 {
            if let Some(place) = shard.put(log(1), Purpose::Settling)
                && place.assign.is_some()
            {
                sizes.push(shard.segments.table.get(place.file).unwrap().bytes);
            }
            shard.settle();
        }
        assert!(sizes.len() > 8, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size == CLASSES[0]), "{sizes:?}");
        let made = shard.drive.disk.names().len() - before;
        // One may be on its way when the log that waited has found another.
        assert!(made <= sizes.len() + 1, "{made} files made for {} that were taken", sizes.len());
    }

    #[test]
    fn a_file_that_would_not_leave_the_floor_free_is_not_made() {
        let mut shard = Shard::new();
        // Room for one of 128 KiB, not for one of 256 KiB.
        shard.drive.disk.space = Some(FreeSpace { free_bytes: 500 * KIB, total_bytes: 1 << 30 });
        let mut largest = 0;
        for _ in 0..60 {
            shard.drive.pass(1_000_000_000);
            shard.settle();
            if let Some(place) = shard.put(log(1), Purpose::Settling) {
                largest = largest.max(shard.segments.table.get(place.file).unwrap().bytes);
            }
        }
        assert_eq!(largest, CLASSES[2]);
    }

    /// Names and sizes of the files that there are.
    fn there(shard: &Shard) -> Vec<(String, u64)> {
        let names = shard.drive.disk.names();
        names.into_iter().map(|name| (name.clone(), shard.drive.disk.len_of(&name) as u64)).collect()
    }

    /// Several turns, a second each: one file goes at a time.
    fn wait(shard: &mut Shard, seconds: u64) {
        for _ in 0..seconds {
            shard.drive.pass(1_000_000_000);
            shard.settle();
        }
    }

    #[test]
    fn files_of_a_size_that_is_out_of_use_for_long_go_back_to_the_drive() {
        let mut shard = Shard::new();
        for _ in 0..30 {
            shard.put(log(1), Purpose::Settling);
            wait(&mut shard, 1);
        }
        let freed = shard.free_all(log(1));
        shard.segments.on_marked(freed);
        wait(&mut shard, 30);
        assert!(there(&shard).iter().any(|(_, bytes)| *bytes == CLASSES[3]), "not yet");
        wait(&mut shard, 60);
        let left = there(&shard);
        assert!(left.iter().all(|(_, bytes)| *bytes == CLASSES[0]) && left.len() == 2, "{left:?}");
        assert!(shard.put(log(2), Purpose::Settling).is_some(), "what is kept is used");
        // The next start knows them as gone, whatever its checkpoint says.
        let state = shard.segments.state();
        shard.drive.close_all();
        shard.segments = Segments::restore(config(), &state).unwrap();
        shard.segments.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
        shard.segments.on_marked(FrameSequence(shard.sequence));
        assert!(shard.segments.pool.spare_count() <= 2, "{}", shard.segments.pool.spare_count());
        shard.settle();
        for n in 3..9 {
            shard.put(log(n), Purpose::Settling);
            wait(&mut shard, 1);
        }
        let names: BTreeSet<String> = there(&shard).into_iter().map(|(name, _)| name).collect();
        let again = state.iter().filter(|s| s.owner.is_none()).map(|s| FileId(s.file));
        for file in again.filter(|file| !left.iter().any(|(name, _)| name.ends_with(&file.to_string()))) {
            assert!(
                !names.iter().any(|name| name.ends_with(&file.to_string())),
                "the name of {file} came again"
            );
        }
    }

    #[test]
    fn below_the_floor_all_files_but_a_few_small_ones_go_back_at_once_and_it_ends() {
        let mut shard = Shard::new();
        for _ in 0..30 {
            shard.put(log(1), Purpose::Settling);
            wait(&mut shard, 1);
        }
        let freed = shard.free_all(log(1));
        shard.segments.on_marked(freed);
        shard.drive.disk.space = Some(FreeSpace { free_bytes: 0, total_bytes: 1 << 30 });
        wait(&mut shard, 20);
        let left = there(&shard);
        assert!(left.iter().all(|(_, bytes)| *bytes == CLASSES[0]) && left.len() == 2, "{left:?}");
    }

    #[test]
    fn a_file_that_waits_for_a_mark_or_is_read_does_not_go_back() {
        let mut shard = Shard::new();
        let place = shard.put(log(1), Purpose::Settling).unwrap();
        shard.segments.handles.take(place.file, &mut Vec::new()).expect("it is open");
        let freed = shard.free_all(log(1));
        shard.drive.disk.space = Some(FreeSpace { free_bytes: 0, total_bytes: 1 << 30 });
        let name = format!("/data/files/{}", place.file);
        let is_there = |shard: &Shard| there(shard).iter().any(|(n, _)| *n == name);
        wait(&mut shard, 5);
        assert!(is_there(&shard), "its free is not marked");
        shard.segments.on_marked(freed);
        wait(&mut shard, 5);
        assert!(is_there(&shard), "somebody reads it");
        shard.segments.put_back(place.file);
        let more = [shard.put(log(2), Purpose::Settling), shard.put(log(3), Purpose::Settling)];
        assert!(more.iter().flatten().count() > 0);
        for n in 2..4 {
            let freed = shard.free_all(log(n));
            shard.segments.on_marked(freed);
        }
        wait(&mut shard, 10);
        assert_eq!(there(&shard).len(), 2);
    }

    #[test]
    fn a_shard_makes_no_more_data_files_than_its_checkpoints_have_room_for_and_uses_freed_ones_again() {
        let mut shard = Shard::new();
        shard.drive.close_all();
        let limits = FileLimits { files_max: 6, ..config().limits };
        shard.segments = Segments::new(SegmentsConfig { limits, ..config() });
        shard.segments.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
        let mut given = 0;
        for n in 0..40 {
            shard.settle();
            given += usize::from(shard.put(log(n), Purpose::Settling).is_some());
        }
        assert_eq!((given, shard.drive.disk.names().len()), (6, 6));
        assert_eq!(shard.segments.full(), Some(&Shortage::Files { limit: 6, current: 6 }));
        let freed = shard.free_all(log(0));
        shard.segments.on_marked(freed);
        shard.settle();
        assert!(shard.put(log(50), Purpose::Settling).is_some());
        assert_eq!(shard.drive.disk.names().len(), 6);
    }

    #[test]
    fn after_a_stop_nothing_new_is_begun_and_what_is_under_way_comes_to_its_end() {
        let mut shard = Shard::new();
        shard.put(log(1), Purpose::Settling).unwrap();
        let mut ops = Vec::new();
        shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
        shard.drive.submit(ops);
        assert!(!shard.segments.is_idle(), "files are being made");
        shard.segments.stop();
        for turns in 0.. {
            assert!(turns < 4, "it goes on and on");
            if shard.segments.is_idle() {
                break;
            }
            shard.turn();
            let mut ops = Vec::new();
            shard.segments.pump(shard.drive.now(), Zeros::GoOn, &mut ops);
            shard.drive.submit(ops);
        }
        assert!(!shard.turn());
    }

    #[test]
    fn a_freed_file_that_replay_knows_no_size_of_is_filled_as_long_as_it_is() {
        let mut shard = Shard::new();
        let file = FileId::new(JournalId(1), ALLOCATED);
        shard.drive.close_all();
        shard.drive.disk.put("/data/files/00000001-80000000", &vec![9; 32 << 10]);
        shard.segments = Segments::new(config());
        let assign = Assign { file, generation: Generation(1), log: log(1), base: Offset(0) };
        shard.segments.apply_assign(&assign).unwrap();
        shard.segments.apply_free(FrameSequence(3), &Free { file, generation: Generation(1) }).unwrap();
        shard.segments.on_marked(FrameSequence(3));
        shard.segments.opened(&mut shard.drive.disk, Rot::Absent).unwrap();
        shard.settle();
        assert!(shard.drive.disk.is_durable_zeros("/data/files/00000001-80000000"));
    }

    #[test]
    fn what_no_sound_shard_writes_is_refused() {
        let mut table = FileTable::default();
        let file = FileId::new(JournalId(1), 0);
        let assign = |generation, base| Assign {
            file,
            generation: Generation(generation),
            log: log(1),
            base: Offset(base),
        };
        assert!(table.assign(&assign(2, 0)).is_err(), "a generation is left out");
        table.assign(&assign(1, 0)).unwrap();
        assert!(table.assign(&assign(2, 0)).is_err(), "it has an owner");
        let free = |generation| Free { file, generation: Generation(generation) };
        assert!(table.free(FrameSequence(1), &free(2)).is_err(), "another generation");
        table.free(FrameSequence(1), &free(1)).unwrap();
        assert!(table.free(FrameSequence(2), &free(1)).is_err(), "twice");
    }
}
