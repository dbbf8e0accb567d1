//! The table of a shard's data files: whose each is, and what lies in it.
//!
//! It is part of the shard's replayable state. Three functions change it, [`FileTable::assign`], [`FileTable::free`] and
//! [`FileTable::run`], live and in replay alike; what they refuse cannot have been written by a sound shard.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use tidegate_protocol::disk::checkpoint::{FileOwner, FileState};
use tidegate_protocol::disk::entry::{Assign, Free, RunMark};
use tidegate_protocol::ids::{
    FileId, FrameSequence, Generation, Offset, PartitionId, TopicId, TopicPartition,
};

use super::index::{Entry, Holds, Index};

/// All data files that a frame has ever named.
///
/// Invariants, see [`FileTable::check`]: a log's files are in the order of their offsets and do not overlap; only the last
/// of them takes further runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileTable {
    files: BTreeMap<FileId, DataFile>,
    by_log: BTreeMap<TopicPartition, VecDeque<FileId>>,
}

/// One data file.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataFile {
    /// How often it has been assigned.
    pub generation: Generation,
    /// Its size; 0 until somebody has looked at the file itself.
    pub bytes: u64,
    /// The frame that freed it last; 0 while it has an owner.
    pub freed_by: FrameSequence,
    /// What it holds of its log; none: it is free.
    pub segment: Option<Segment>,
}

/// What a data file holds of its log.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// The log.
    pub log: TopicPartition,
    /// The offset of the first record that may lie in it.
    pub base: Offset,
    /// One past the last record in it.
    pub end: Offset,
    /// Bytes of runs in it: where the next one goes.
    pub written: u64,
    /// Runs in it.
    pub runs: u64,
    /// The CRC of the header of its last run; 0 before the first.
    pub last_crc: u32,
    /// Whether no further run goes into it.
    pub sealed: bool,
    /// Append time of its first record, milliseconds since the Unix epoch.
    pub append_first_ms: i64,
    /// Append time of its last record.
    pub append_last_ms: i64,
    /// The latest timestamp of any record in it.
    pub max_timestamp_ms: i64,
    /// Where its runs lie, as far as known; not part of the replayable state.
    pub index: Index,
}

impl Segment {
    /// Whether a run that was read where the index ends can lie there. Sound bytes may be those of another place: the run has
    /// to begin where the one before it ended, and to leave room for what is known behind it.
    pub(crate) fn can_hold(&self, run: &Entry) -> bool {
        let next = self.index.head_end_offset().unwrap_or(self.base);
        let (tail_at, tail_base) = self.index.tail_start().unwrap_or((self.written, self.end));
        run.base == next
            && match (run.at + run.bytes).cmp(&tail_at) {
                Ordering::Less => run.end < tail_base,
                Ordering::Equal => run.end == tail_base,
                Ordering::Greater => false,
            }
    }
}

impl FileTable {
    /// The table of a checkpoint.
    pub(crate) fn restore(states: &[FileState]) -> Result<FileTable, String> {
        let mut table = FileTable::default();
        for state in states {
            let file = FileId(state.file);
            let segment = state.owner.as_ref().map(segment_of);
            if let Some(segment) = &segment {
                table.by_log.entry(segment.log).or_default().push_back(file);
            }
            let data = DataFile {
                generation: Generation(state.generation),
                bytes: state.bytes,
                freed_by: FrameSequence(state.freed_by),
                segment,
            };
            if table.files.insert(file, data).is_some() {
                return Err(format!("data file {file} is named twice"));
            }
        }
        for files in table.by_log.values_mut() {
            let base = |f: &FileId| table.files[f].segment.as_ref().map(|s| (s.base, s.end));
            files.make_contiguous().sort_by_key(base);
            let overlap = files.iter().zip(files.iter().skip(1)).find(|(a, b)| {
                let ((_, end), (base, _)) = (base(a).unwrap_or_default(), base(b).unwrap_or_default());
                end > base
            });
            if let Some((a, b)) = overlap {
                return Err(format!("data files {a} and {b} overlap"));
            }
        }
        Ok(table)
    }

    /// The table for a checkpoint: exactly what frames have made of it.
    pub(crate) fn state(&self) -> Vec<FileState> {
        let state = |(file, data): (&FileId, &DataFile)| FileState {
            file: file.0,
            generation: data.generation.0,
            bytes: data.bytes,
            freed_by: data.freed_by.0,
            owner: data.segment.as_ref().map(owner_of),
        };
        self.files.iter().map(state).collect()
    }

    /// A data file now belongs to a log. The log's file before it takes no further runs.
    pub(crate) fn assign(&mut self, assign: &Assign) -> Result<(), String> {
        let data = self.files.entry(assign.file).or_default();
        let file = assign.file;
        if let Some(segment) = &data.segment {
            return Err(format!("data file {file} is assigned while it belongs to {:?}", segment.log));
        }
        if assign.generation.0 != data.generation.0 + 1 {
            return Err(format!(
                "data file {file} goes from generation {} to {}",
                data.generation, assign.generation
            ));
        }
        let files = self.by_log.entry(assign.log).or_default();
        let last = files.back().copied();
        data.generation = assign.generation;
        data.freed_by = FrameSequence(0);
        data.segment = Some(Segment {
            log: assign.log,
            base: assign.base,
            end: assign.base,
            written: 0,
            runs: 0,
            last_crc: 0,
            sealed: false,
            append_first_ms: i64::MAX,
            append_last_ms: i64::MIN,
            max_timestamp_ms: i64::MIN,
            index: Index::default(),
        });
        files.push_back(file);
        if let Some(before) = last.and_then(|f| self.files.get_mut(&f)).and_then(|d| d.segment.as_mut()) {
            if before.end > assign.base {
                return Err(format!("data file {file} begins at {} below {}", assign.base, before.end));
            }
            before.sealed = true;
        }
        Ok(())
    }

    /// A data file belongs to no log any more.
    pub(crate) fn free(&mut self, sequence: FrameSequence, free: &Free) -> Result<(), String> {
        let file = free.file;
        let data = self.files.get_mut(&file).ok_or_else(|| format!("unknown data file {file} is freed"))?;
        if data.generation != free.generation {
            return Err(format!(
                "generation {} of data file {file} is freed while {} is in use",
                free.generation, data.generation
            ));
        }
        let segment = data.segment.take().ok_or_else(|| format!("data file {file} is freed twice"))?;
        data.freed_by = sequence;
        if let Some(files) = self.by_log.get_mut(&segment.log) {
            files.retain(|f| *f != file);
            if files.is_empty() {
                self.by_log.remove(&segment.log);
            }
        }
        Ok(())
    }

    /// A run lies in a data file.
    pub(crate) fn run(&mut self, run: &RunMark) -> Result<(), String> {
        let file = run.file;
        let data =
            self.files.get_mut(&file).ok_or_else(|| format!("a run lies in unknown data file {file}"))?;
        let bytes = u64::from(run.bytes);
        if data.generation != run.generation || (data.bytes > 0 && run.at + bytes > data.bytes) {
            return Err(format!(
                "a run of generation {} at {} does not fit data file {file} of generation {} and {} bytes",
                run.generation, run.at, data.generation, data.bytes
            ));
        }
        let segment = data.segment.as_mut().filter(|s| s.log == run.log);
        let segment = segment.ok_or_else(|| format!("data file {file} does not belong to {:?}", run.log))?;
        if run.at != segment.written || run.run_sequence != segment.runs || run.base < segment.end {
            return Err(format!(
                "run {} at {} from offset {} does not follow run {} at {} up to {} in data file {file}",
                run.run_sequence, run.at, run.base, segment.runs, segment.written, segment.end
            ));
        }
        segment.end = run.end;
        segment.written += bytes;
        segment.runs += 1;
        segment.last_crc = run.crc;
        segment.append_first_ms = segment.append_first_ms.min(run.append_first_ms);
        segment.append_last_ms = run.append_last_ms;
        segment.max_timestamp_ms = segment.max_timestamp_ms.max(run.max_timestamp_ms);
        segment.index.push_tail(Entry {
            base: run.base,
            end: run.end,
            at: run.at,
            bytes,
            append_last_ms: run.append_last_ms,
            max_timestamp_ms: run.max_timestamp_ms,
            holds: Holds::Runs,
        });
        Ok(())
    }

    /// No further run goes into the file.
    pub(crate) fn seal(&mut self, file: FileId) {
        if let Some(segment) = self.segment_mut(file) {
            segment.sealed = true;
        }
    }

    /// Somebody has looked at the file itself.
    pub(crate) fn set_bytes(&mut self, file: FileId, bytes: u64) {
        if let Some(data) = self.files.get_mut(&file) {
            data.bytes = bytes;
        }
    }

    /// A data file that a frame has named.
    pub(crate) fn get(&self, file: FileId) -> Option<&DataFile> {
        self.files.get(&file)
    }

    /// What the file holds of its log.
    pub(crate) fn segment(&self, file: FileId) -> Option<&Segment> {
        self.files.get(&file)?.segment.as_ref()
    }

    /// Likewise, to change its index.
    pub(crate) fn segment_mut(&mut self, file: FileId) -> Option<&mut Segment> {
        self.files.get_mut(&file)?.segment.as_mut()
    }

    /// How many files a frame has ever named.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// All files, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileId, &DataFile)> {
        self.files.iter().map(|(file, data)| (*file, data))
    }

    /// The first file of a log behind that one, by id.
    pub(crate) fn owned_after(&self, after: Option<FileId>) -> Option<(FileId, Generation, &Segment)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let files = self.files.range((from, Bound::Unbounded));
        files.filter_map(|(file, data)| Some((*file, data.generation, data.segment.as_ref()?))).next()
    }

    /// A log's segments with their files, oldest first.
    pub(crate) fn of_log(&self, log: TopicPartition) -> impl DoubleEndedIterator<Item = (FileId, &Segment)> {
        let files = self.by_log.get(&log);
        files.into_iter().flatten().filter_map(|file| Some((*file, self.segment(*file)?)))
    }

    /// The segment that holds `offset`, or the first one behind it.
    pub(crate) fn at_or_after(&self, log: TopicPartition, offset: Offset) -> Option<(FileId, &Segment)> {
        let files = self.by_log.get(&log)?;
        let place = files.partition_point(|f| self.segment(*f).is_some_and(|s| s.end <= offset));
        let file = *files.get(place)?;
        Some((file, self.segment(file)?))
    }

    /// What frees the files of `log` that hold nothing at or above `start`, oldest first.
    pub(crate) fn below(&self, log: TopicPartition, start: Offset) -> Vec<Free> {
        self.of_log(log)
            .take_while(|(_, segment)| segment.end <= start && segment.runs > 0)
            .map(|(file, _)| Free { file, generation: self.files[&file].generation })
            .collect()
    }

    /// What frees every file of `log`, oldest first.
    pub(crate) fn all_of(&self, log: TopicPartition) -> Vec<Free> {
        let files = self.of_log(log);
        files.map(|(file, _)| Free { file, generation: self.files[&file].generation }).collect()
    }

    /// Asserts the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn check(&self) {
        let mut owned = 0;
        for (log, files) in &self.by_log {
            let mut end = Offset(0);
            for (place, file) in files.iter().enumerate() {
                let segment = self.segment(*file).expect("a log's file has a segment");
                assert_eq!(segment.log, *log, "the file belongs to the log that names it");
                assert!(
                    end <= segment.base && segment.base <= segment.end,
                    "{log:?}: offsets overlap at {file}"
                );
                assert!(segment.sealed || place + 1 == files.len(), "{log:?}: only the last file takes runs");
                segment.index.check(segment.written);
                end = segment.end;
                owned += 1;
            }
        }
        let segments = self.files.values().filter(|data| data.segment.is_some()).count();
        assert_eq!(owned, segments, "every file with an owner is named by it");
    }
}

fn segment_of(owner: &FileOwner) -> Segment {
    Segment {
        log: TopicPartition { topic: TopicId(owner.topic), partition: PartitionId(owner.partition) },
        base: Offset(owner.base),
        end: Offset(owner.end),
        written: owner.written,
        runs: owner.runs,
        last_crc: owner.last_crc,
        sealed: owner.sealed,
        append_first_ms: owner.append_first_ms,
        append_last_ms: owner.append_last_ms,
        max_timestamp_ms: owner.max_timestamp_ms,
        index: Index::default(),
    }
}

fn owner_of(segment: &Segment) -> FileOwner {
    FileOwner {
        topic: segment.log.topic.0,
        partition: segment.log.partition.0,
        base: segment.base.0,
        end: segment.end.0,
        written: segment.written,
        runs: segment.runs,
        last_crc: segment.last_crc,
        sealed: segment.sealed,
        append_first_ms: segment.append_first_ms,
        append_last_ms: segment.append_last_ms,
        max_timestamp_ms: segment.max_timestamp_ms,
    }
}
