//! Recovery: what a journal and its checkpoints say about the state of a shard, by the tables of [`super::decision`].
//!
//! Nothing is believed because it decodes. The state is that of the newest whole checkpoint and of the frames that follow
//! it without a gap. M, the highest mark of any frame, tells how far everything was flushed: what is bad above M is the torn
//! end of the journal and is dropped; what is bad at or below M is rot. Nothing is served before everything that is kept has
//! been flushed: after a kill the drive may hold it in its cache alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tidegate_logic::producer::BatchIdentity;
use tidegate_protocol::batch::Batches;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{CheckpointBody, CheckpointHeader, ExtentPlace};
use tidegate_protocol::disk::entry::{Carriage, Entry, Recovered as RecoveredEntry, Start};
use tidegate_protocol::disk::frame::{Frame, FrameBuilder};
use tidegate_protocol::extent::{ExtentHeader, LogKind, identity_crc};
use tidegate_protocol::ids::{FileId, FrameSequence, LeaderEpoch, Offset, TopicPartition};
use tidegate_reactor::buffer::Buffer;
use tidegate_reactor::disk::{Disk, DiskFile};

use super::checkpoint::{Checkpoints, Kept, TooLarge, image};
use super::decision::{
    Decision, FrameKind, Level, Link, NextFrame, Runs, SmallExtent, decide, decide_extent, keeps,
};
use super::flush_rule::FlushRule;
use super::journal::{HeldFrame, Journal, JournalEnd, SLOTS, ring_path, slot_path};
use super::recent::{Memory, TailExtent};
use super::retention::Retention;
use super::scan::{
    Chain, ChainFrame, Ring, choose, held_by, kept_of, marks_further_on, places_of, read_chain, read_slots,
    runs_of,
};
use super::segment::{FlushReach, Rot, Segments, SegmentsConfig};
use super::state::{Contradiction, Damage, Log, LostFrames, OPTIONS_UNKNOWN, identity_of};
use super::{Condition, Logs, OpenError, ShardBoot};
use crate::datadir::data_file;
use crate::mutants::{self, Mutant};

/// Recovers a shard and makes its logs ready to serve.
pub(super) fn open(disk: &mut dyn Disk, boot: ShardBoot) -> Result<Logs, OpenError> {
    let recovery = Recovery::run(disk, &boot)?;
    recovery.into_logs(disk, boot)
}

/// The state of a shard as it was found.
pub(super) struct Recovery {
    ring: Ring,
    slots: Vec<DiskFile>,
    logs: BTreeMap<TopicPartition, Log>,
    segments: Segments,
    memory: Memory,
    newest: Kept,
    /// Where the newest checkpoint's last frame ends.
    newest_end: u64,
    older: Kept,
    next_slot: u32,
    held: BTreeMap<FrameSequence, u64>,
    last: Link,
    head: u64,
    mark: FrameSequence,
    /// Data files that a kept frame above the mark names.
    unflushed_files: BTreeSet<FileId>,
    /// Why nothing may be written: damage to what was promised, one sentence each.
    damage: Vec<String>,
    /// Flushed frames that cannot be read.
    lost: Option<LostFrames>,
    /// What an operator should know of this recovery.
    notes: Vec<String>,
    /// Wall clock of the newest checkpoint.
    wall_ms: i64,
}

impl Recovery {
    pub(super) fn run(disk: &mut dyn Disk, boot: &ShardBoot) -> Result<Recovery, OpenError> {
        let mut ring = Ring::open(disk, boot)?;
        let mut notes = Vec::new();
        let (slots, found) = read_slots(disk, boot, &mut notes)?;
        let [newest, older] = choose(boot, &found)?;
        let (slot, header, body) = (newest.0, &newest.1, &newest.2);
        let refused =
            |cause| OpenError::Refused { file: slot_path(&boot.root, boot.identity.journal, slot), cause };
        let config = SegmentsConfig {
            root: boot.root.clone(),
            journal: boot.identity.journal,
            reach: match boot.flush_rule {
                FlushRule::OneFlush => FlushReach::AllFiles,
                FlushRule::OwnFlush { .. } | FlushRule::MemoryOnly { .. } => FlushReach::Journal,
            },
            limits: boot.limits.files,
        };
        let segments = Segments::restore(config, &body.files).map_err(refused)?;
        let logs = body.logs.iter().map(|state| Log::restore(state, OPTIONS_UNKNOWN, &boot.limits));
        let link = Link { sequence: header.sequence, hash: header.hash, incarnation: header.incarnation };
        let chain = read_chain(disk, boot, &mut ring, link, header.next_at)?;
        let on_chain = chain.frames.iter().map(|f| f.header.mark).max();
        let mark = header.sequence.max(on_chain.unwrap_or_default());
        let last = chain.frames.last().map_or(header.sequence, |f| f.header.sequence);
        let mark = mark.max(marks_further_on(disk, boot, &mut ring, chain.head, last)?);
        let older_slots: Vec<u32> = [slot, older.0].into_iter().collect();
        let mut recovery = Recovery {
            ring,
            slots,
            logs: logs.map(|log| (log.id, log)).collect(),
            segments,
            memory: Memory::default(),
            newest: kept_of(header, body),
            newest_end: header.next_at,
            older: kept_of(&older.1, &older.2),
            next_slot: (0..SLOTS).find(|s| !older_slots.contains(s)).expect("two of three slots are kept"),
            held: held_by(&older.1, &older.2, header.sequence),
            last: link,
            head: header.next_at,
            mark,
            unflushed_files: BTreeSet::new(),
            damage: Vec::new(),
            lost: None,
            notes,
            wall_ms: body.wall_ms,
        };
        recovery.held.extend(places_of(body));
        recovery.keep(disk, boot, chain)?;
        recovery.load_small(disk, boot)?;
        Ok(recovery)
    }

    /// Goes through the chain and does what the table says.
    fn keep(&mut self, disk: &mut dyn Disk, boot: &ShardBoot, chain: Chain) -> Result<(), OpenError> {
        let mut frames = chain.frames.into_iter();
        let mut before = (self.last, self.head);
        let mut unfollowed = false;
        while let Some(frame) = frames.next() {
            let level = self.level(frame.header.sequence);
            let runs = match level {
                Level::Promised => Runs::Whole,
                Level::AboveMark if mutants::on(Mutant::TornRunKept) => Runs::Whole,
                Level::AboveMark => runs_of(disk, boot, &frame.runs)?,
            };
            match decide(NextFrame::Follows, runs, level, keeps(boot.shard)) {
                Decision::Keep | Decision::KeepAndRefuseRange => {
                    before = (self.last, self.head);
                    unfollowed = frame.kind == FrameKind::Recovered && level == Level::AboveMark;
                    self.replay(disk, boot, &frame)?;
                }
                Decision::EndOfLog => {
                    self.notes.push(format!(
                        "the journal ends before frame {}, which names a run that was not written whole: it and all behind \
                         it is dropped; nothing in it was acknowledged",
                        frame.header.sequence
                    ));
                    for run in frame.runs.iter().chain(frames.flat_map(|f| f.runs).collect::<Vec<_>>().iter())
                    {
                        self.segments.seal(run.file);
                    }
                    break;
                }
                Decision::ReadOnly | Decision::ReadOnlyAndRefuseRange | Decision::RefuseStart => {
                    unreachable!("a frame that follows is not the reason")
                }
            }
        }
        let expected = FrameSequence(self.last.sequence.0 + 1);
        if unfollowed {
            // It says nothing but that a recovery ended here. The new one takes its place, so that recoveries that are cut
            // short again and again do not fill the ring.
            self.held.remove(&self.last.sequence);
            (self.last, self.head) = before;
        }
        match decide(chain.end, Runs::Whole, self.level(expected), keeps(boot.shard)) {
            Decision::EndOfLog => {
                if chain.end == NextFrame::Damaged {
                    self.notes.push(format!(
                        "the journal ends before frame {expected}, which was not written whole: it is dropped; nothing in \
                         it was acknowledged"
                    ));
                }
                Ok(())
            }
            Decision::ReadOnly => {
                let (file, or_in) = self.ring.paths_of(boot, self.head);
                self.damage.push(self.damaged(expected, chain.end, or_in.as_deref()));
                self.lost = Some(LostFrames { file, or_in, from: expected, upto: self.mark });
                Ok(())
            }
            Decision::RefuseStart => {
                let (file, or_in) = self.ring.paths_of(boot, self.head);
                let cause = self.damaged(expected, chain.end, or_in.as_deref());
                Err(OpenError::Refused { file, cause })
            }
            Decision::Keep | Decision::KeepAndRefuseRange | Decision::ReadOnlyAndRefuseRange => {
                unreachable!("the chain ends where no frame follows")
            }
        }
    }

    fn level(&self, sequence: FrameSequence) -> Level {
        if sequence <= self.mark { Level::Promised } else { Level::AboveMark }
    }

    /// A frame that was flushed cannot be read: what it held is not known.
    fn damaged(&self, frame: FrameSequence, found: NextFrame, or_in: Option<&Path>) -> String {
        let what = match found {
            NextFrame::Missing => "is missing",
            NextFrame::Damaged => "is damaged",
            NextFrame::OffChain | NextFrame::Follows => "is not the one that was written there",
        };
        let or_in = or_in
            .map(|path| format!(" (it may also lie at the start of {})", path.display()))
            .unwrap_or_default();
        format!(
            "journal frame {frame} {what}{or_in} although frames up to {} were flushed: what frames {frame} to {} held is not \
             known",
            self.mark, self.mark
        )
    }

    /// Makes a kept frame part of the state.
    fn replay(&mut self, disk: &mut dyn Disk, boot: &ShardBoot, kept: &ChainFrame) -> Result<(), OpenError> {
        let bytes = self.ring.read(disk, kept.at, kept.bytes)?;
        let frame = Frame::decode_whole(&bytes).expect("it was whole a moment ago");
        let above_mark = kept.header.sequence > self.mark;
        for (at, entry) in &frame.entries {
            let place = EntryPlace { frame: kept.header.sequence, frame_at: kept.at, at: *at as u32 };
            self.apply(boot, place, entry).map_err(|cause| OpenError::Refused {
                file: self.ring.path_of(boot, kept.at),
                cause: format!("journal frame {}: {cause}", kept.header.sequence),
            })?;
            if let (Entry::Run(mark), true) = (entry, above_mark) {
                self.unflushed_files.insert(mark.file);
            }
        }
        self.held.insert(kept.header.sequence, kept.at);
        let (sequence, hash) = (kept.header.sequence, kept.hash);
        self.last = Link { sequence, hash, incarnation: kept.header.incarnation };
        self.head = kept.at + kept.bytes as u64;
        Ok(())
    }

    fn apply(&mut self, boot: &ShardBoot, place: EntryPlace, entry: &Entry<'_>) -> Result<(), Contradiction> {
        match entry {
            Entry::Extent { how, bytes } => self.apply_extent(boot, place, *how, bytes),
            Entry::Run(mark) => {
                let log = self.log(boot, mark.log);
                for note in &mark.producers {
                    log.place_batch(note.append_time_ms, identity_of(note), note.base);
                }
                log.settle(mark)?;
                self.segments.apply_run(mark)
            }
            Entry::Start(Start { log, offset }) if *offset == Start::REMOVED => {
                self.logs.remove(log);
                Ok(())
            }
            Entry::Start(_) if mutants::on(Mutant::StartForgotten) => Ok(()),
            Entry::Start(Start { log, offset }) => {
                self.log(boot, *log).move_start(*offset);
                Ok(())
            }
            Entry::Assign(assign) => self.segments.apply_assign(assign),
            Entry::Free(free) => self.segments.apply_free(place.frame, free),
            Entry::Recovered(_) => Ok(()),
            Entry::Cut(cut) => {
                Err(format!("{:?} is cut at {}, which a single node never does", cut.log, cut.offset))
            }
        }
    }

    fn apply_extent(
        &mut self,
        boot: &ShardBoot,
        place: EntryPlace,
        how: Carriage,
        bytes: &[u8],
    ) -> Result<(), Contradiction> {
        let (header, payload) = ExtentHeader::decode_whole(bytes).map_err(|e| e.to_string())?;
        let place = ExtentPlace {
            base: header.base.0,
            end: header.end.0,
            frame: place.frame.0,
            frame_at: place.frame_at,
            at: place.at,
            bytes: bytes.len() as u32,
            crc: identity_crc(bytes),
        };
        let log = self.log(boot, header.log);
        if how == Carriage::Carried {
            return log.carry(place);
        }
        for batch in Batches::new(payload) {
            let batch = batch.map_err(|e| e.to_string())?;
            let batch = batch.header();
            let identity = BatchIdentity {
                producer: batch.producer_id,
                epoch: batch.producer_epoch,
                base_sequence: batch.base_sequence,
                record_count: batch.records_count,
            };
            log.place_batch(header.append_time_ms, identity, batch.base_offset);
        }
        log.place_small(&header, place)
    }

    fn log(&mut self, boot: &ShardBoot, id: TopicPartition) -> &mut Log {
        self.logs.entry(id).or_insert_with(|| Log::new(id, OPTIONS_UNKNOWN, &boot.limits))
    }

    /// Brings the extents that lie in the journal alone into memory, many to a buffer. In place of one that is damaged stands
    /// an empty one, whose range is refused to readers.
    fn load_small(&mut self, disk: &mut dyn Disk, boot: &ShardBoot) -> Result<(), OpenError> {
        const BUFFER_BYTES: usize = 1 << 20;
        let mut loading = Loading::default();
        for log in self.logs.values_mut() {
            log.replayed();
            for place in &log.small {
                let bytes = self.ring.read_extent(disk, place)?;
                let header = ExtentHeader::decode_whole(&bytes).ok().map(|(h, _)| h);
                let sound = header.filter(|h| {
                    identity_crc(&bytes) == place.crc && h.log == log.id && h.base.0 == place.base
                });
                let found = if sound.is_some() { SmallExtent::Whole } else { SmallExtent::Damaged };
                let file = self.ring.path_of(boot, place.frame_at);
                let cause = || {
                    format!(
                        "records {} to {} of {:?} in journal frame {} are damaged, although they were flushed",
                        place.base, place.end, log.id, place.frame
                    )
                };
                let (header, bytes) = match (sound, decide_extent(found, keeps(boot.shard))) {
                    (Some(header), _) => (header, bytes),
                    (None, Decision::RefuseStart) => {
                        return Err(OpenError::Refused { file, cause: cause() });
                    }
                    (None, _) => {
                        self.damage.push(format!("{}: {}", file.display(), cause()));
                        let (from, upto) = (Offset(place.base), Offset(place.end));
                        let file = format!("{} (frame {})", file.display(), place.frame);
                        let at = place.frame_at % self.ring.file_bytes + u64::from(place.at);
                        let bytes = at..at + u64::from(place.bytes);
                        log.damaged.push(Damage { file, bytes, from, upto });
                        let header = empty_extent(log.id, from, upto);
                        (header, header.encode().to_vec())
                    }
                };
                if loading.bytes + bytes.len() > BUFFER_BYTES {
                    loading.finish(&mut self.memory);
                }
                loading.add(log.id, header, bytes);
            }
        }
        loading.finish(&mut self.memory);
        for (id, extent) in loading.done {
            self.logs.get_mut(&id).expect("it was just there").tail.push(extent, &mut self.memory);
        }
        for buffer in loading.buffers {
            self.memory.release(buffer);
        }
        Ok(())
    }

    /// Ends the recovery on disk, and hands the state over to logs that serve.
    fn into_logs(mut self, disk: &mut dyn Disk, boot: ShardBoot) -> Result<Logs, OpenError> {
        let mut journal = self.journal(&boot);
        let rot = if self.damage.is_empty() { Rot::Absent } else { Rot::Present };
        let condition = match rot {
            Rot::Absent => {
                self.segments.seal_leftovers(disk);
                let limits = &boot.limits;
                if journal.free_bytes() < limits.ring_reserve_bytes() + limits.ring_move_bytes() {
                    self.flush_kept(disk, &boot, &mut journal)?;
                    self.checkpoint(disk, &boot, &mut journal)?;
                }
                self.end_recovery(disk, &boot, &mut journal)?;
                self.segments.on_marked(self.mark);
                Condition::Serving
            }
            Rot::Present => {
                // Nothing is written, not even into files of no log; what is served is flushed even so.
                self.flush_kept(disk, &boot, &mut journal)?;
                self.segments.stop();
                let cause = self.damage.join("; ");
                self.notes.push(format!("it takes no writes and serves what is sound: {cause}"));
                Condition::ReadOnly { cause, lost: self.lost.take() }
            }
        };
        self.segments.opened(disk, rot)?;
        self.close(disk);
        let since = journal.bytes_behind_head(self.newest_end % boot.limits.ring_bytes());
        let checkpoints = Checkpoints::new(self.newest, self.older, self.next_slot, since);
        let mut logs = Logs::assembled(boot, journal, checkpoints, self.memory, self.segments, condition);
        logs.retention = Retention::new(Some(self.wall_ms).filter(|wall_ms| *wall_ms > 0));
        logs.notes = self.notes;
        for log in self.logs.into_values() {
            logs.insert(log);
        }
        Ok(logs)
    }

    fn journal(&self, boot: &ShardBoot) -> Journal {
        let held =
            self.held.iter().map(|(sequence, at)| HeldFrame { sequence: *sequence, at: *at }).collect();
        let end = JournalEnd {
            last: self.last.sequence,
            hash: self.last.hash,
            head: self.head,
            held,
            marked: self.mark.min(self.last.sequence),
        };
        Journal::new(boot.identity, boot.incarnation, &boot.limits, end)
    }

    fn close(&mut self, disk: &mut dyn Disk) {
        for file in self.slots.drain(..).chain(self.ring.files.drain(..)) {
            disk.close(file);
        }
    }

    /// Checkpoints what was recovered, twice, so that the older kept one frees what it can: a shard that fails before it
    /// comes to that would fill its ring start by start.
    fn checkpoint(
        &mut self,
        disk: &mut dyn Disk,
        boot: &ShardBoot,
        journal: &mut Journal,
    ) -> Result<(), OpenError> {
        let header = CheckpointHeader {
            identity: boot.identity,
            incarnation: self.last.incarnation,
            // Before the frame that ends this recovery, so that the next recovery may still replace that one.
            sequence: self.last.sequence,
            hash: self.last.hash,
            next_at: self.head % boot.limits.ring_bytes(),
        };
        let logs = self.logs.values().map(Log::state).collect();
        let body = CheckpointBody { logs, files: self.segments.state(), wall_ms: self.wall_ms };
        let kept = kept_of(&header, &body);
        let image = image(&header, body, &boot.limits).map_err(|TooLarge { bytes, limit }| {
            let file = slot_path(&boot.root, boot.identity.journal, self.next_slot);
            let cause = format!(
                "the state of the shard takes {bytes} bytes and a checkpoint slot has {limit}: it was written under other \
                 limits than this version's"
            );
            OpenError::Refused { file, cause }
        })?;
        let image = Buffer::copy_of(&image);
        for _ in 0..2 {
            let file = self.slots[self.next_slot as usize];
            disk.write(file, 0, &image)?;
            disk.flush(file)?;
            (self.older, self.newest) = (self.newest, kept);
            self.newest_end = header.next_at;
            self.next_slot = (self.next_slot + 1) % SLOTS;
        }
        journal.free_below(self.older.bound);
        Ok(())
    }

    /// Flushes everything that is kept: after a kill the drive may hold it in its cache alone.
    fn flush_kept(
        &mut self,
        disk: &mut dyn Disk,
        boot: &ShardBoot,
        journal: &mut Journal,
    ) -> Result<(), OpenError> {
        if !mutants::on(Mutant::RecoveryWithoutFlush) {
            for file in self.ring.files.iter().chain(&self.slots) {
                disk.flush(*file)?;
            }
            for file in &self.unflushed_files {
                let file = disk.open(&data_file(&boot.root, *file))?;
                disk.flush(file)?;
                disk.close(file);
            }
        }
        journal.flushed_upto(journal.last_sequence());
        Ok(())
    }

    /// Writes the frame `recovered`, which repeats the old mark, and flushes everything that was kept above it.
    fn end_recovery(
        &mut self,
        disk: &mut dyn Disk,
        boot: &ShardBoot,
        journal: &mut Journal,
    ) -> Result<(), OpenError> {
        let at = journal.place(BLOCK).ok_or_else(|| OpenError::Refused {
            file: ring_path(&boot.root, boot.identity.journal, 0),
            cause: "the ring has no place for the frame that ends recovery".into(),
        })?;
        let mut buffer = Buffer::zeroed(BLOCK);
        let mut builder = FrameBuilder::new(buffer.memory_mut());
        builder.push(&Entry::Recovered(RecoveredEntry {
            incarnation: boot.incarnation,
            last_kept: self.last.sequence,
            last_hash: self.last.hash,
        }));
        let (bytes, hash) = builder.finish(journal.header());
        buffer.set_filled(bytes);
        self.ring.write(disk, at, &buffer)?;
        journal.took(at, bytes, hash);
        self.flush_kept(disk, boot, journal)
    }
}

#[derive(Clone, Copy)]
struct EntryPlace {
    frame: FrameSequence,
    frame_at: u64,
    at: u32,
}

/// What stands in memory for an extent that cannot be read.
fn empty_extent(log: TopicPartition, base: Offset, end: Offset) -> ExtentHeader {
    ExtentHeader {
        log,
        kind: LogKind::Data,
        flags: 0,
        leader_epoch: LeaderEpoch(0),
        base,
        end,
        batch_count: 0,
        byte_len: 0,
        append_time_ms: i64::MIN,
        max_timestamp_ms: i64::MIN,
        payload_crc: 0,
    }
}

/// Small extents on their way into shared buffers.
#[derive(Default)]
struct Loading {
    waiting: Vec<(TopicPartition, ExtentHeader, Vec<u8>)>,
    bytes: usize,
    done: Vec<(TopicPartition, TailExtent)>,
    buffers: Vec<super::recent::BufferId>,
}

impl Loading {
    fn add(&mut self, log: TopicPartition, header: ExtentHeader, bytes: Vec<u8>) {
        self.bytes += bytes.len();
        self.waiting.push((log, header, bytes));
    }

    fn finish(&mut self, memory: &mut Memory) {
        if self.waiting.is_empty() {
            return;
        }
        let mut buffer = Buffer::for_filling(self.bytes);
        for (_, _, bytes) in &self.waiting {
            buffer.extend(bytes);
        }
        let (capacity, view) = (buffer.capacity(), buffer.freeze());
        let buffer = memory.charge(capacity);
        self.buffers.push(buffer);
        let mut at = 0;
        for (log, header, bytes) in self.waiting.drain(..) {
            let view = view.slice(at..at + bytes.len());
            at += bytes.len();
            self.done.push((log, TailExtent { header, view, buffer }));
        }
        self.bytes = 0;
    }
}
