//! Another number of shards: every log moves to the journal of the shard that owns it from now on.
//!
//! Blocking, before the first turn. Recover under the old layout; name the new journals in the superblock; write them:
//! small extents copied byte for byte, then a checkpoint with everything; swing the superblock; delete the old journals.
//! Until the swing the old layout holds everything and is not touched, from then on the new one does; whatever the power
//! cuts short, the next start deletes the files of the layout that does not hold.
//!
//! Data files stay as they are: only their owner's journal changes.

use std::fmt;
use std::path::Path;

use tidegate_logic::placement::shard_of;
use tidegate_protocol::disk::checkpoint::{
    CheckpointBody, CheckpointHeader, ExtentPlace, FileOwner, FileState, LogState,
};
use tidegate_protocol::disk::entry::{Carriage, Entry, entry_bytes};
use tidegate_protocol::disk::frame::{FrameBuilder, FrameHeader, JournalIdentity, frame_bytes};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader, run_bytes};
use tidegate_protocol::extent::{ExtentHeader, identity_crc};
use tidegate_protocol::ids::{
    FileId, FrameSequence, Generation, Incarnation, Offset, PartitionId, ShardId, TopicId, TopicPartition,
};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::Fault;

use super::checkpoint::{TooLarge, image};
use super::flush_rule::FlushRule;
use super::journal::{SLOTS, ring_path, slot_path};
use super::{Condition, Logs, OpenError, ShardBoot};
use crate::datadir::{self, DataDir};
use crate::limits::Limits;

/// Gives the directory another number of shards. When this fails, the directory still holds everything, under the old
/// number or the new.
///
/// # Errors
/// If a shard cannot be recovered or is damaged, if the logs do not fit so few shards, or if the disk fails.
pub fn change(
    disk: &mut dyn Disk,
    dir: &mut DataDir,
    limits: &Limits,
    flush_rule: &FlushRule,
    shard_count: u16,
) -> Result<(), ChangeError> {
    let incarnation = dir.raise(disk)?;
    let superblock = dir.superblock().clone();
    let (cluster, node) = (superblock.cluster, superblock.node);
    let mut new: Vec<NewShard> = (0..shard_count).map(|_| NewShard::default()).collect();
    for (shard, journal) in (0..).map(ShardId).zip(superblock.layout.journals) {
        let boot = ShardBoot {
            root: dir.root().into(),
            identity: JournalIdentity { cluster, node, journal },
            incarnation,
            shard,
            limits: *limits,
            flush_rule: flush_rule.clone(),
        };
        let logs = Logs::open(disk, boot).map_err(|error| ChangeError::Recovery { shard, error })?;
        take_apart(&logs, shard, &mut new)?;
    }
    for (shard, part) in (0..).map(ShardId).zip(&new) {
        part.check_fits(shard, limits)?;
    }
    let layout = dir.prepare(disk, shard_count)?;
    for (part, journal) in new.into_iter().zip(layout.journals) {
        let identity = JournalIdentity { cluster, node, journal };
        Founding { root: dir.root(), identity, incarnation, limits, part }.write(disk)?;
    }
    dir.swing(disk)?;
    Ok(())
}

/// What a shard of the new layout will hold.
#[derive(Default)]
struct NewShard {
    logs: Vec<Moved>,
    files: Vec<FileState>,
}

/// A log on its way.
struct Moved {
    state: LogState,
    /// The bytes of its small extents, in order.
    extents: Vec<View>,
}

/// Gives everything that an old shard holds to the new ones.
fn take_apart(logs: &Logs, shard: ShardId, new: &mut [NewShard]) -> Result<(), ChangeError> {
    if let Condition::ReadOnly { cause, .. } = &logs.condition {
        return Err(ChangeError::Damaged { shard, cause: cause.clone() });
    }
    let count = u16::try_from(new.len()).expect("as many as asked for");
    let owner_of = |log: TopicPartition| usize::from(shard_of(log, count).0);
    for log in logs.logs.iter().flatten() {
        let state = log.state();
        let bytes = |place: &ExtentPlace| {
            let extent = log.tail.extent(Offset(place.base)).expect("small extents are in memory");
            extent.view.clone()
        };
        let extents = state.extents.iter().map(bytes).collect();
        new[owner_of(log.id)].logs.push(Moved { state, extents });
    }
    // Free files go round; their `free` is flushed with the checkpoint, and old sequences mean nothing in a new journal.
    let mut next_free = usize::from(shard.0);
    let mut free = |file: FileState| {
        new[next_free % usize::from(count)].files.push(FileState { freed_by: 0, ..file });
        next_free += 1;
    };
    let mut owned = Vec::new();
    for file in logs.segments.state() {
        match &file.owner {
            Some(owner) => owned.push((owner_of(log_of(owner)), file)),
            None => free(file),
        }
    }
    // Files that no frame has named may hold anything; generation 0 says so.
    for (file, bytes) in logs.segments.unnamed() {
        free(FileState { file: file.0, generation: 0, bytes, freed_by: 0, owner: None });
    }
    for (to, file) in owned {
        new[to].files.push(file);
    }
    Ok(())
}

fn log_of(owner: &FileOwner) -> TopicPartition {
    TopicPartition { topic: TopicId(owner.topic), partition: PartitionId(owner.partition) }
}

impl NewShard {
    fn check_fits(&self, shard: ShardId, limits: &Limits) -> Result<(), ChangeError> {
        let most = limits.logs_max as usize;
        let logs = self.logs.iter().filter(|log| !TopicId(log.state.topic).is_internal()).count();
        if logs > most {
            return Err(ChangeError::TooManyLogs { shard, logs, limit: most });
        }
        let producers: usize = self.logs.iter().map(|log| log.state.producers.len()).sum();
        let most = limits.checkpoint_contents_max().producers;
        if producers > most {
            return Err(ChangeError::TooManyProducers { shard, producers, limit: most });
        }
        let most = limits.files.files_max as usize;
        if self.files.len() > most {
            return Err(ChangeError::TooManyFiles { shard, files: self.files.len(), limit: most });
        }
        Ok(())
    }

    fn small_bytes(&self) -> usize {
        self.logs.iter().map(Moved::small_bytes).sum()
    }

    fn small_count(&self) -> usize {
        self.logs.iter().map(|log| log.extents.len()).sum()
    }
}

impl Moved {
    fn small_bytes(&self) -> usize {
        self.extents.iter().map(|extent| entry_bytes(extent.len())).sum()
    }
}

/// The writing of one journal of the new layout. Its files do not exist yet; if it is cut short, they go.
struct Founding<'a> {
    root: &'a Path,
    identity: JournalIdentity,
    incarnation: Incarnation,
    limits: &'a Limits,
    part: NewShard,
}

impl Founding<'_> {
    fn write(mut self, disk: &mut dyn Disk) -> Result<(), ChangeError> {
        self.settle(disk)?;
        let end = self.write_ring(disk)?;
        self.write_slots(disk, end)
    }

    /// Writes the small extents of the largest logs into data files until the rest is as much as the ring may hold, and a
    /// quarter of memory.
    fn settle(&mut self, disk: &mut dyn Disk) -> Result<(), ChangeError> {
        let bytes_max = (self.limits.small_bytes_max() as usize).min(self.limits.memory_bytes / 4);
        let count_max = self.limits.extents_max as usize / 2;
        let mut number = 0;
        while self.part.small_bytes() > bytes_max || self.part.small_count() > count_max {
            let largest = (0..self.part.logs.len()).max_by_key(|i| self.part.logs[*i].small_bytes());
            let largest = largest.expect("somebody's extents are too many");
            self.settle_log(disk, largest, &mut number)?;
        }
        Ok(())
    }

    fn settle_log(&mut self, disk: &mut dyn Disk, log: usize, number: &mut u32) -> Result<(), ChangeError> {
        let log = &mut self.part.logs[log];
        log.state.extents.clear();
        let extents = std::mem::take(&mut log.extents);
        let mut runs = Vec::new();
        let mut from = 0;
        while from < extents.len() {
            let mut len = 0;
            let fits = |extent: &&View| {
                len += extent.len();
                run_bytes(len) <= self.limits.run_bytes_max.max(run_bytes(extent.len()))
            };
            let upto = from + extents[from..].iter().take_while(fits).count().max(1);
            runs.push(&extents[from..upto]);
            from = upto;
        }
        let is_its = |file: &&mut FileState| {
            file.owner
                .as_ref()
                .is_some_and(|o| (o.topic, o.partition) == (log.state.topic, log.state.partition))
        };
        self.part.files.iter_mut().filter(is_its).for_each(|file| {
            file.owner.as_mut().expect("just looked at").sealed = true;
        });
        let classes = self.limits.files.classes;
        let mut runs = runs.into_iter().peekable();
        while runs.peek().is_some() {
            let file = FileId::new(self.identity.journal, *number);
            *number += 1;
            let wanted: usize = runs.clone().map(|run| run_bytes(run.iter().map(|e| e.len()).sum())).sum();
            let size = classes.iter().find(|class| **class >= wanted as u64);
            let bytes = *size.unwrap_or(&classes[classes.len() - 1]);
            let path = datadir::data_file(self.root, file);
            let handle = disk.create_zeroed(&path, bytes)?;
            let mut out = RunWriter { cluster: self.identity.cluster, file, bytes, owner: None };
            while let Some(run) = runs.peek() {
                if !out.write(disk, handle, run)? {
                    break;
                }
                runs.next();
            }
            disk.flush(handle)?;
            disk.close(handle);
            let owner = out.owner;
            assert!(owner.is_some(), "a run fits the largest data file");
            self.part.files.push(FileState { file: file.0, generation: 1, bytes, freed_by: 0, owner });
        }
        Ok(())
    }

    /// Copies the small extents into frames. Returns where the journal ends.
    fn write_ring(&mut self, disk: &mut dyn Disk) -> Result<RingEnd, ChangeError> {
        let mut ring = Vec::new();
        for index in 0..self.limits.ring_files {
            let path = ring_path(self.root, self.identity.journal, index);
            ring.push(disk.create_zeroed(&path, self.limits.ring_file_bytes)?);
        }
        let mut out = RingWriter {
            ring: &ring,
            identity: self.identity,
            incarnation: self.incarnation,
            limits: self.limits,
            end: RingEnd { sequence: FrameSequence(0), hash: 0, at: 0 },
        };
        // Frames hold extents of as many logs as fit.
        let mut waiting: Vec<(&View, &mut ExtentPlace)> = Vec::new();
        let mut bytes = 0;
        for log in &mut self.part.logs {
            for (extent, place) in log.extents.iter().zip(&mut log.state.extents) {
                let more = entry_bytes(extent.len());
                if frame_bytes(bytes + more) > self.limits.frame_bytes_max {
                    out.frame(disk, std::mem::take(&mut waiting))?;
                    bytes = 0;
                }
                bytes += more;
                waiting.push((extent, place));
            }
        }
        if !waiting.is_empty() {
            out.frame(disk, waiting)?;
        }
        let end = out.end;
        for file in ring {
            disk.flush(file)?;
            disk.close(file);
        }
        Ok(end)
    }

    /// The same checkpoint in every slot: there is no older state that this journal could fall back to.
    fn write_slots(self, disk: &mut dyn Disk, end: RingEnd) -> Result<(), ChangeError> {
        let mut logs: Vec<LogState> = self.part.logs.into_iter().map(|log| log.state).collect();
        logs.sort_by_key(|log| (log.topic, log.partition));
        let mut files = self.part.files;
        files.sort_by_key(|file| file.file);
        let header = CheckpointHeader {
            identity: self.identity,
            incarnation: self.incarnation,
            sequence: end.sequence,
            hash: end.hash,
            next_at: end.at,
        };
        let image = image(&header, CheckpointBody { logs, files, wall_ms: 0 }, self.limits)
            .map_err(|TooLarge { bytes, limit }| ChangeError::CheckpointTooLarge { bytes, limit })?;
        for slot in 0..SLOTS {
            let path = slot_path(self.root, self.identity.journal, slot);
            let file = disk.create_zeroed(&path, self.limits.checkpoint_slot_bytes)?;
            disk.write(file, 0, &Buffer::copy_of(&image))?;
            disk.flush(file)?;
            disk.close(file);
        }
        Ok(())
    }
}

/// The end of the frames of a new journal.
#[derive(Clone, Copy)]
struct RingEnd {
    sequence: FrameSequence,
    hash: u64,
    at: u64,
}

struct RingWriter<'a> {
    ring: &'a [DiskFile],
    identity: JournalIdentity,
    incarnation: Incarnation,
    limits: &'a Limits,
    end: RingEnd,
}

impl RingWriter<'_> {
    /// Writes one frame with these extents and notes where each lies.
    fn frame(
        &mut self,
        disk: &mut dyn Disk,
        extents: Vec<(&View, &mut ExtentPlace)>,
    ) -> Result<(), ChangeError> {
        let entries = extents.iter().map(|(extent, _)| entry_bytes(extent.len())).sum();
        let bytes = frame_bytes(entries);
        let file_bytes = self.limits.ring_file_bytes;
        let left = file_bytes - self.end.at % file_bytes;
        let at = if bytes as u64 <= left { self.end.at } else { self.end.at + left };
        assert!(at + bytes as u64 <= self.limits.ring_bytes(), "a quarter of the ring fits the ring");
        let sequence = FrameSequence(self.end.sequence.0 + 1);
        let mut buffer = Buffer::zeroed(bytes);
        let mut builder = FrameBuilder::new(buffer.memory_mut());
        for (extent, place) in extents {
            let within = builder.push(&Entry::Extent { how: Carriage::Carried, bytes: extent });
            place.frame = sequence.0;
            place.frame_at = at;
            place.at = within as u32;
            debug_assert_eq!(place.crc, identity_crc(extent));
        }
        let (bytes, hash) = builder.finish(FrameHeader {
            identity: self.identity,
            incarnation: self.incarnation,
            sequence,
            previous_hash: self.end.hash,
            mark: self.end.sequence,
            bytes: 0,
            entries: 0,
            inner_crc: 0,
        });
        buffer.set_filled(bytes);
        disk.write(self.ring[(at / file_bytes) as usize], at % file_bytes, &buffer)?;
        self.end = RingEnd { sequence, hash, at: at + bytes as u64 };
        Ok(())
    }
}

struct RunWriter {
    cluster: tidegate_protocol::ids::ClusterId,
    file: FileId,
    bytes: u64,
    owner: Option<FileOwner>,
}

impl RunWriter {
    /// Writes a run of these extents behind the one before it; false: it does not fit.
    fn write(&mut self, disk: &mut dyn Disk, handle: DiskFile, run: &[View]) -> Result<bool, ChangeError> {
        let extents_end = RUN_HEADER_BYTES + run.iter().map(|e| e.len()).sum::<usize>();
        let bytes = run_bytes(extents_end - RUN_HEADER_BYTES);
        let at = self.owner.as_ref().map_or(0, |owner| owner.written);
        if at + bytes as u64 > self.bytes {
            return Ok(false);
        }
        let headers: Vec<ExtentHeader> =
            run.iter().map(|extent| ExtentHeader::decode(extent).expect("recovery has checked it")).collect();
        let (first, last) = (headers[0], headers[headers.len() - 1]);
        let max_timestamp_ms = headers.iter().map(|h| h.max_timestamp_ms).max().expect("a run has extents");
        let header = RunHeader {
            cluster: self.cluster,
            file: self.file,
            generation: Generation(1),
            sequence: self.owner.as_ref().map_or(0, |owner| owner.runs),
            previous_crc: self.owner.as_ref().map_or(0, |owner| owner.last_crc),
            log: first.log,
            base: first.base,
            end: last.end,
            bytes: bytes as u32,
            extents: run.len() as u32,
            append_first_ms: first.append_time_ms,
            append_last_ms: last.append_time_ms,
            max_timestamp_ms,
        };
        let mut buffer = Buffer::zeroed(bytes);
        buffer.set_filled(RUN_HEADER_BYTES);
        run.iter().for_each(|extent| buffer.extend(extent));
        buffer.set_filled(bytes);
        let crc = header.finish(&mut buffer, extents_end);
        disk.write(handle, at, &buffer)?;
        let before = self.owner.take();
        self.owner = Some(FileOwner {
            topic: first.log.topic.0,
            partition: first.log.partition.0,
            base: before.as_ref().map_or(first.base.0, |o| o.base),
            end: last.end.0,
            written: at + bytes as u64,
            runs: header.sequence + 1,
            last_crc: crc,
            sealed: before.is_none(),
            append_first_ms: before.as_ref().map_or(first.append_time_ms, |o| o.append_first_ms),
            append_last_ms: last.append_time_ms,
            max_timestamp_ms: before.map_or(max_timestamp_ms, |o| o.max_timestamp_ms.max(max_timestamp_ms)),
        });
        Ok(true)
    }
}

/// Why a directory keeps its number of shards.
#[derive(Debug)]
pub enum ChangeError {
    /// The superblock could not be changed.
    Directory(datadir::OpenError),
    /// A shard of the old layout could not be recovered.
    Recovery {
        /// Which.
        shard: ShardId,
        /// Why.
        error: OpenError,
    },
    /// A shard of the old layout is damaged: what it held is not known in full, and a copy would hide that.
    Damaged {
        /// Which.
        shard: ShardId,
        /// What recovery found.
        cause: String,
    },
    /// A shard of the new layout would have too many logs.
    TooManyLogs {
        /// Which.
        shard: ShardId,
        /// How many it would have.
        logs: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A shard of the new layout would have to remember too many producers.
    TooManyProducers {
        /// Which.
        shard: ShardId,
        /// How many it would have.
        producers: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A shard of the new layout would have too many data files.
    TooManyFiles {
        /// Which.
        shard: ShardId,
        /// How many it would have.
        files: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The checkpoint of a shard of the new layout would not fit its slot.
    CheckpointTooLarge {
        /// Its bytes.
        bytes: u64,
        /// Bytes of a slot.
        limit: u64,
    },
    /// The disk failed or is full.
    Disk(Fault),
}

impl From<Fault> for ChangeError {
    fn from(fault: Fault) -> ChangeError {
        ChangeError::Disk(fault)
    }
}

impl From<datadir::OpenError> for ChangeError {
    fn from(error: datadir::OpenError) -> ChangeError {
        ChangeError::Directory(error)
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MORE: &str = "start with more shards";
        match self {
            ChangeError::Directory(error) => error.fmt(f),
            ChangeError::Recovery { shard, error } => write!(f, "shard {shard} cannot be recovered: {error}"),
            ChangeError::Damaged { shard, cause } => write!(
                f,
                "shard {shard} is damaged, so the number of shards stays as it is: {cause}; start with the old number"
            ),
            ChangeError::TooManyLogs { shard, logs, limit } => {
                write!(f, "shard {shard} would have {logs} logs, at most {limit} are allowed; {MORE}")
            }
            ChangeError::TooManyFiles { shard, files, limit } => {
                write!(f, "shard {shard} would have {files} data files, at most {limit} are possible")
            }
            ChangeError::TooManyProducers { shard, producers, limit } => write!(
                f,
                "shard {shard} would have to remember {producers} producers, at most {limit} are allowed; {MORE}"
            ),
            ChangeError::CheckpointTooLarge { bytes, limit } => {
                write!(
                    f,
                    "a shard's checkpoint would have {bytes} bytes, at most {limit} are allowed; {MORE}"
                )
            }
            ChangeError::Disk(fault) => write!(
                f,
                "{fault}; the directory still holds everything under the old number of shards; {}",
                if fault.is_full() { "free space and start again" } else { "see the kernel's log" }
            ),
        }
    }
}

impl std::error::Error for ChangeError {}

#[cfg(test)]
mod tests {
    use super::super::tests::node::{LIMITS, Node, OPTIONS, ROOT, batch, log, wanted};
    use super::*;
    use crate::testdisk::TestDrive;

    impl Node {
        fn change(&mut self, shard_count: u16) -> Result<(), ChangeError> {
            let mut dir =
                DataDir::open(&mut self.drive.disk, Path::new(ROOT), &wanted(shard_count), &mut |_, _| {
                    panic!("it exists")
                })?;
            change(&mut self.drive.disk, &mut dir, &LIMITS, &FlushRule::OneFlush, shard_count)
        }

        fn shard_count(&mut self) -> u16 {
            self.dir(1).superblock().layout.journals.len() as u16
        }

        /// Changes the number of shards with the power cut at every call in turn.
        fn change_with_crashes(&mut self, to: u16) {
            // One flush of a journal has covered the data files, which this disk does not know.
            self.drive.disk.all_durable();
            let before = self.drive.disk.clone();
            let from = self.shard_count();
            let (mut old, mut new) = (0, 0);
            for call in 0.. {
                self.drive.disk = before.clone();
                self.drive.disk.crash_at(Some(call));
                let result = self.change(to);
                self.drive.power_loss(u64::from(call));
                match self.shard_count() {
                    count if count == from => old += 1,
                    count if count == to => new += 1,
                    other => panic!("{other} shards after a cut at call {call}"),
                }
                // A look into every state would take long and show the same.
                if call % 23 == 0 || result.is_ok() || new == 1 {
                    self.verify();
                }
                if result.is_ok() {
                    break;
                }
            }
            assert!(old > 10 && new > 2, "{old} cuts before the swing, {new} after it");
            assert_eq!(self.shard_count(), to);
        }
    }

    #[test]
    fn one_shard_becomes_seven_and_two_and_nothing_is_lost_wherever_the_power_fails() {
        let mut node = Node { drive: TestDrive::with_dir(ROOT), ..Node::default() };
        node.dir(1);
        node.fill(9);
        // One log has given up data files, which wait in the pool.
        node.each_shard(|node, logs, shard, count| {
            if shard_of(log(4), count) == shard {
                logs.trim(log(4), Offset(7)).unwrap();
                node.settle(logs);
            }
        });
        node.starts.insert(log(4), Offset(7));
        node.verify();
        node.change_with_crashes(7);
        node.fill(3);
        node.verify();
        node.change_with_crashes(2);
        node.fill(3);
        node.verify();
    }

    #[test]
    fn what_is_too_much_to_carry_goes_into_data_files() {
        let mut node = Node { drive: TestDrive::with_dir(ROOT), ..Node::default() };
        node.dir(7);
        // Each of seven journals holds less than a quarter of a ring, together they hold more.
        node.each_shard(|node, logs, shard, count| {
            for n in (0..250).filter(|n| shard_of(log(*n), count) == shard) {
                logs.create(log(n), OPTIONS).unwrap();
                let batch = batch(log(n), 0, 900);
                logs.append(node.drive.now(), log(n), std::slice::from_ref(&batch)).unwrap();
                node.expected.entry(log(n)).or_default().push(batch.view[21..].to_vec());
                node.settle(logs);
            }
        });
        node.verify();
        node.change(1).unwrap();
        node.verify();
        node.fill(2);
        node.verify();
    }

    #[test]
    fn too_many_logs_for_so_few_shards_are_refused_before_anything_is_changed() {
        let mut part = NewShard::default();
        let state = LogState {
            topic: [1; 16],
            partition: 0,
            start: 0,
            appended: 0,
            append_time_ms: 0,
            extents: Vec::new(),
            producers: Vec::new(),
            forgotten: None,
        };
        part.logs.extend((0..2001).map(|_| Moved { state: state.clone(), extents: Vec::new() }));
        let error = part.check_fits(ShardId(0), &LIMITS).unwrap_err().to_string();
        assert_eq!(error, "shard 0 would have 2001 logs, at most 2000 are allowed; start with more shards");
    }
}
