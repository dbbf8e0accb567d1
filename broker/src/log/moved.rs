//! The state of a shard on its way into another journal: what a change of the number of shards takes and founds.

use tidegate_protocol::disk::checkpoint::{
    self, CheckpointBody, CheckpointHeader, ExtentPlace, FileState, LogState,
};
use tidegate_protocol::disk::entry::{Carriage, entry_bytes};
use tidegate_protocol::disk::frame::{FrameBuilder, frame_bytes};
use tidegate_protocol::ids::FrameSequence;
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::disk::Disk;

use super::journal::{self, Journal, JournalEnd, ring_path, slot_path};
use super::recover::Recovery;
use super::{OpenError, ShardBoot};

/// Everything that a shard's journal and checkpoints say.
#[derive(Clone, Debug, Default)]
pub struct ShardState {
    /// Its logs.
    pub logs: Vec<MovedLog>,
    /// Its data files. `freed_by` counts in the journal that the state comes from.
    pub files: Vec<FileState>,
}

/// One log.
#[derive(Clone, Debug)]
pub struct MovedLog {
    /// As a checkpoint keeps it; the places of its extents are those in the journal that it comes from.
    pub state: LogState,
    /// The extents that lie in the journal alone, whole, one for each of `state.extents`.
    pub extents: Vec<View>,
}

/// Recovers a shard under its present journal and takes its state; everything in it is flushed.
///
/// # Errors
/// If the drive fails, or the shard could not be served without loss.
pub fn take(disk: &mut dyn Disk, boot: &ShardBoot) -> Result<ShardState, OpenError> {
    Recovery::run(disk, boot)?.into_state(disk, boot)
}

/// Makes the journal of `boot` with that state in it, flushed.
///
/// # Errors
/// If the drive fails, or the small extents do not fit the ring.
pub fn found(disk: &mut dyn Disk, boot: &ShardBoot, state: &ShardState) -> Result<(), OpenError> {
    let limits = &boot.limits;
    journal::create(disk, &boot.root, boot.identity, boot.incarnation, limits)?;
    let end =
        JournalEnd { last: FrameSequence(0), hash: 0, head: 0, held: Vec::new(), marked: FrameSequence(0) };
    let mut founding = Founding { journal: Journal::new(boot.identity, boot.incarnation, limits, end), boot };
    let mut logs: Vec<LogState> =
        state.logs.iter().map(|log| LogState { extents: Vec::new(), ..log.state.clone() }).collect();
    let extents = state.logs.iter().enumerate().flat_map(|(i, log)| {
        log.state.extents.iter().zip(&log.extents).map(move |(place, bytes)| (i, *place, bytes))
    });
    let mut frame: Vec<(usize, ExtentPlace, &View)> = Vec::new();
    let mut bytes = 0;
    for (log, place, extent) in extents {
        let more = entry_bytes(extent.len());
        if frame_bytes(bytes + more) > limits.frame_bytes_max {
            founding.write(disk, &std::mem::take(&mut frame), bytes, &mut logs)?;
            bytes = 0;
        }
        bytes += more;
        frame.push((log, place, extent));
    }
    founding.write(disk, &frame, bytes, &mut logs)?;
    for index in 0..limits.ring_files {
        let file = disk.open(&ring_path(&boot.root, boot.identity.journal, index))?;
        disk.flush(file)?;
        disk.close(file);
    }
    let header = CheckpointHeader {
        identity: boot.identity,
        incarnation: boot.incarnation,
        sequence: founding.journal.last_sequence(),
        hash: founding.journal.last_hash(),
        next_at: founding.journal.head(),
    };
    let image = checkpoint::encode(&header, &CheckpointBody { logs, files: state.files.clone(), wall_ms: 0 });
    // Twice, so that an older one is kept that is not empty.
    for slot in [0, 1] {
        let path = slot_path(&boot.root, boot.identity.journal, slot);
        if image.len() as u64 > limits.checkpoint_slot_bytes {
            let cause = format!(
                "the state of {} bytes does not fit its {}",
                image.len(),
                limits.checkpoint_slot_bytes
            );
            return Err(OpenError::Refused { file: path, cause });
        }
        let file = disk.open(&path)?;
        disk.write(file, 0, &Buffer::copy_of(&image))?;
        disk.flush(file)?;
        disk.close(file);
    }
    Ok(())
}

struct Founding<'a> {
    journal: Journal,
    boot: &'a ShardBoot,
}

impl Founding<'_> {
    /// Writes a frame of small extents, each as the next one of its log.
    fn write(
        &mut self,
        disk: &mut dyn Disk,
        extents: &[(usize, ExtentPlace, &View)],
        entry_bytes: usize,
        logs: &mut [LogState],
    ) -> Result<(), OpenError> {
        let bytes = frame_bytes(entry_bytes);
        let (root, journal) = (&self.boot.root, self.boot.identity.journal);
        let reserve = self.boot.limits.ring_reserve_bytes();
        let at = self.journal.place(bytes).filter(|_| self.journal.free_bytes() > reserve + bytes as u64);
        let at = at.ok_or_else(|| OpenError::Refused {
            file: ring_path(root, journal, 0),
            cause: "the records that lie in journals alone do not fit the ring of the new one; take fewer steps at once".into(),
        })?;
        let mut buffer = Buffer::zeroed(bytes);
        let mut builder = FrameBuilder::new(buffer.memory_mut());
        let sequence = self.journal.next_sequence();
        for (log, place, extent) in extents {
            let (in_frame, memory) = builder.extent(Carriage::Carried, extent.len());
            memory.copy_from_slice(extent);
            logs[*log].extents.push(ExtentPlace {
                frame: sequence.0,
                frame_at: at,
                at: in_frame as u32,
                ..*place
            });
        }
        let (len, hash) = builder.finish(self.journal.header());
        buffer.set_filled(len);
        let (index, within) = self.journal.index_of(at);
        let file = disk.open(&ring_path(root, journal, index))?;
        disk.write(file, within, &buffer)?;
        disk.close(file);
        self.journal.took(at, len, hash);
        Ok(())
    }
}
