//! Every bound of a shard's logs, tied together: nothing may wait for what it is to free, and a checkpoint of everything that
//! there may be fits its slot.

use tidegate_logic::placement::OFFSETS_PARTITIONS;
use tidegate_logic::topics::{IDEMPOTENCE_WINDOW_MAX, IDEMPOTENCE_WINDOW_MIN};
use tidegate_protocol::disk::checkpoint::Contents;

/// Bounds of the logs of one shard. The simulator runs with tiny ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one file of the journal's ring; a multiple of the block.
    pub ring_file_bytes: u64,
    /// Files of the ring.
    pub ring_files: u32,
    /// Bytes of one of the three checkpoint slots; a multiple of the block.
    pub checkpoint_slot_bytes: u64,
    /// A checkpoint is taken after this many bytes of frames.
    pub checkpoint_interval_bytes: u64,
    /// The largest frame, in bytes; a multiple of the block.
    pub frame_bytes_max: usize,
    /// Frames that may lie above the last flushed one: so many cycles are under way at most.
    pub frames_in_flight_max: u32,
    /// Bytes of the ring that they may take. Recovery looks twice as far behind the first bad frame.
    pub in_flight_bytes_max: u64,
    /// Cycles that write at once, all but the first with at least [`Limits::cycle_bytes_min`] of new batches.
    pub cycles_writing_max: u32,
    /// Bytes of new batches that are worth a cycle beside one that still writes.
    pub cycle_bytes_min: usize,
    /// Bytes of the largest batch.
    pub batch_bytes_max: usize,
    /// A log with at least this many bytes pending writes them straight into its data file.
    pub direct_min_bytes: usize,
    /// A log whose small extents reach this many bytes, pending ones included, writes them into its data file.
    pub settle_bytes: usize,
    /// When old frames are emptied, logs with at least this many bytes in small extents are settled, smaller ones carried.
    pub settle_min_bytes: usize,
    /// The largest run made of several extents, in bytes.
    pub run_bytes_max: usize,
    /// The largest extent made of several batches, in bytes.
    pub extent_bytes_max: usize,
    /// Memory of a shard's logs: tail, pending appends, buffers under way; in bytes.
    pub memory_bytes: usize,
    /// Logs of a shard, the broker's own not counted.
    pub logs_max: u32,
    /// Small extents of a shard that may lie in the journal alone; the last quarter is for the broker's own logs.
    pub extents_max: u32,
    /// Producers remembered per log.
    pub producers_per_log_max: u32,
    /// Batches remembered of all producers of a shard. A producer counts as many as its topic's window, whether it has sent
    /// as many or not: so what is remembered of it never has to be cut short for others.
    pub batches_remembered_max: u32,
    /// Milliseconds of append time after which a silent producer is forgotten.
    pub producer_expiry_ms: i64,
    /// Nanoseconds after a flush after which its mark is written, if no frame has carried it.
    pub mark_after_ns: u64,
    /// Nanoseconds after which such a mark is flushed.
    pub mark_flush_after_ns: u64,
    /// Bounds of the data files.
    pub files: FileLimits,
}

/// Sizes of data files that there are.
pub const FILE_CLASSES: usize = 4;

/// Bounds of a shard's data files and of the reads from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Sizes of data files in bytes, rising; multiples of the block.
    pub classes: [u64; FILE_CLASSES],
    /// Ready files kept of each class in use; the last one is held back for settling.
    pub ready_per_class: u32,
    /// Ready files of a class at most.
    pub ready_max: u32,
    /// Bytes of zeros written at once when a file is filled; a multiple of the block.
    pub zero_piece_bytes: usize,
    /// Data files of a shard, ready ones included.
    pub files_max: u32,
    /// Data files open at once.
    pub open_max: u32,
    /// Bytes read at once for a reader, unless one extent is larger; a multiple of the block.
    pub read_bytes_max: usize,
    /// Reads from data files under way at once.
    pub reads_max: u32,
    /// Reads that wait for their turn.
    pub reads_waiting_max: u32,
    /// Free bytes of the drive below which produce is refused; none: the smaller of 1 GiB and a twentieth of the drive.
    pub floor_bytes: Option<u64>,
    /// Nanoseconds between two looks at the drive's free space.
    pub space_look_ns: u64,
    /// Nanoseconds after which ready files of a size that nobody has taken go back to the drive.
    pub class_idle_ns: u64,
    /// Bytes that the scrub reads a second at most; 0: there is none.
    pub scrub_bytes_per_s: u64,
    /// Nanoseconds from the beginning of one pass of the scrub to that of the next.
    pub scrub_interval_ns: u64,
}

impl FileLimits {
    /// What a broker runs with.
    pub const DEFAULT: FileLimits = FileLimits {
        classes: [2 << 20, 16 << 20, 64 << 20, 256 << 20],
        ready_per_class: 2,
        ready_max: 4,
        zero_piece_bytes: MIB,
        files_max: 18_000,
        open_max: 2_000,
        read_bytes_max: MIB,
        reads_max: 16,
        reads_waiting_max: 1_000,
        floor_bytes: None,
        space_look_ns: 1_000_000_000,
        class_idle_ns: 3_600_000_000_000,
        scrub_bytes_per_s: 8 << 20,
        scrub_interval_ns: 7 * 24 * 3_600 * 1_000_000_000,
    };

    const fn check(&self, run_bytes_max: usize) -> Result<(), &'static str> {
        const BLOCK: usize = tidegate_protocol::disk::BLOCK;
        let mut class = 0;
        while class < FILE_CLASSES {
            if !self.classes[class].is_multiple_of(BLOCK as u64) || self.classes[class] == 0 {
                return Err("data files are whole blocks");
            }
            if class > 0 && self.classes[class] <= self.classes[class - 1] {
                return Err("the sizes of data files rise");
            }
            class += 1;
        }
        if self.classes[0] < run_bytes_max as u64 {
            return Err("the largest run fits the smallest data file");
        }
        if self.ready_per_class < 2 || self.ready_max < self.ready_per_class {
            return Err("two ready files of a class, one of them held back");
        }
        if !self.zero_piece_bytes.is_multiple_of(BLOCK) || self.zero_piece_bytes == 0 {
            return Err("zeros are written in whole blocks");
        }
        if !self.read_bytes_max.is_multiple_of(BLOCK) || self.read_bytes_max == 0 || self.reads_max == 0 {
            return Err("reads are whole blocks");
        }
        Ok(())
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

impl Limits {
    /// What a broker runs with.
    pub const DEFAULT: Limits = Limits {
        ring_file_bytes: 16 << 20,
        ring_files: 6,
        checkpoint_slot_bytes: 8 << 20,
        checkpoint_interval_bytes: 20 << 20,
        frame_bytes_max: 8 * MIB,
        frames_in_flight_max: 16,
        in_flight_bytes_max: 32 << 20,
        cycles_writing_max: 4,
        cycle_bytes_min: MIB,
        batch_bytes_max: 2 * MIB,
        direct_min_bytes: 64 * KIB,
        settle_bytes: 64 * KIB,
        settle_min_bytes: 8 * KIB,
        run_bytes_max: MIB,
        extent_bytes_max: 256 * KIB,
        memory_bytes: 384 * MIB,
        logs_max: 10_000,
        extents_max: 40_000,
        producers_per_log_max: 10_000,
        batches_remembered_max: 128_000,
        producer_expiry_ms: 7 * 24 * 3600 * 1000,
        mark_after_ns: 10_000_000,
        mark_flush_after_ns: 1_000_000_000,
        files: FileLimits::DEFAULT,
    };

    /// Small enough for a disk in memory that copies whole files.
    #[cfg(test)]
    pub(crate) const SMALL: Limits = Limits {
        ring_file_bytes: 4 << 20,
        ring_files: 8,
        checkpoint_slot_bytes: 256 << 10,
        checkpoint_interval_bytes: 8 << 20,
        frame_bytes_max: 4 * MIB,
        in_flight_bytes_max: 16 << 20,
        batch_bytes_max: MIB,
        memory_bytes: 48 * MIB,
        logs_max: 400,
        extents_max: 2_000,
        batches_remembered_max: 2_000,
        files: FileLimits { files_max: 400, ..FileLimits::DEFAULT },
        ..Limits::DEFAULT
    };

    /// Bytes of the whole ring.
    pub const fn ring_bytes(&self) -> u64 {
        self.ring_file_bytes * self.ring_files as u64
    }

    /// Bytes of small extents up to which clients' data goes into the ring; more waits until some of them are settled.
    pub const fn small_bytes_max(&self) -> u64 {
        self.ring_bytes() / 6
    }

    /// Bytes of small extents above which they are settled whatever their age: before the largest one has to wait for room.
    pub const fn small_bytes_many(&self) -> u64 {
        const HEADERS: u64 = tidegate_protocol::disk::BLOCK as u64;
        let extent = if self.extent_bytes_max > self.batch_bytes_max {
            self.extent_bytes_max
        } else {
            self.batch_bytes_max
        };
        let room_for_one = self.small_bytes_max().saturating_sub(extent as u64 + HEADERS);
        let many = self.ring_bytes() / 8;
        if room_for_one < many { room_for_one } else { many }
    }

    /// The part of the ring that only settling and carrying may use: all small extents can be moved to the head once, with
    /// what is lost at the ends of files and in blocks begun. Without it a shard that fails again and again, and loses the
    /// checkpoints that would free what it has moved, comes to a ring in which nothing can be moved any more.
    pub const fn ring_move_bytes(&self) -> u64 {
        self.small_bytes_max() + self.frame_bytes_max as u64 / 2
    }

    /// The part of the ring that only trims, frees and internal logs may use, beside that.
    pub const fn ring_reserve_bytes(&self) -> u64 {
        self.ring_bytes() / 10
    }

    /// The part of that reserve which only the frames that end recoveries may use, so that a shard that fails again and
    /// again can always be recovered.
    pub const fn ring_recovery_bytes(&self) -> u64 {
        const LEAST: u64 = 4 * tidegate_protocol::disk::BLOCK as u64;
        let part = self.ring_bytes() / 64;
        if part > LEAST { part } else { LEAST }
    }

    /// Small extents that may lie in the journal alone with more of the topics' logs to come.
    pub const fn extents_of_topics_max(&self) -> u32 {
        self.extents_max / 4 * 3
    }

    /// The most that a checkpoint has to hold.
    pub const fn checkpoint_contents_max(&self) -> Contents {
        const METADATA_LOGS: u32 = 1;
        Contents {
            logs: (self.logs_max + OFFSETS_PARTITIONS.unsigned_abs() + METADATA_LOGS) as usize,
            extents: self.extents_max as usize,
            producers: (self.batches_remembered_max / IDEMPOTENCE_WINDOW_MIN as u32) as usize,
            batches: self.batches_remembered_max as usize,
            files: self.files.files_max as usize,
        }
    }

    /// Whether the bounds fit together; the text says which does not.
    pub const fn check(&self) -> Result<(), &'static str> {
        const BLOCK: usize = tidegate_protocol::disk::BLOCK;
        if !self.ring_file_bytes.is_multiple_of(BLOCK as u64)
            || !self.checkpoint_slot_bytes.is_multiple_of(BLOCK as u64)
        {
            return Err("files of the journal are whole blocks");
        }
        if !self.frame_bytes_max.is_multiple_of(BLOCK) || self.frame_bytes_max < 4 * BLOCK {
            return Err("a frame is whole blocks, at least four");
        }
        if self.ring_file_bytes < self.frame_bytes_max as u64 {
            return Err("the largest frame fits one file of the ring");
        }
        if self.ring_bytes() < 3 * self.checkpoint_interval_bytes + self.ring_reserve_bytes() {
            return Err("ring >= 3 x checkpoint interval + reserve");
        }
        let moved = 2 * self.ring_move_bytes() + self.frame_bytes_max as u64;
        if self.ring_bytes() < moved + self.ring_reserve_bytes() {
            return Err("ring >= small extents, room to move them, a frame, and the reserve");
        }
        if self.ring_reserve_bytes() <= self.ring_recovery_bytes() {
            return Err("the reserve holds more than the frames that end recoveries");
        }
        if self.checkpoint_interval_bytes < self.frame_bytes_max as u64 {
            return Err("the checkpoint interval holds the largest frame");
        }
        if self.batch_bytes_max > self.frame_bytes_max / 4 {
            return Err("a batch is at most a quarter of a frame");
        }
        if self.memory_bytes < 6 * self.frame_bytes_max {
            return Err("memory for six of the largest frames");
        }
        if self.frames_in_flight_max < 2 || self.in_flight_bytes_max < 2 * self.frame_bytes_max as u64 {
            return Err("at least two frames in flight, of any size");
        }
        if self.cycles_writing_max == 0 {
            return Err("at least one cycle writes");
        }
        if self.extent_bytes_max > self.run_bytes_max || self.settle_bytes > self.run_bytes_max {
            return Err("a run holds an extent and what is settled at once");
        }
        if self.checkpoint_contents_max().encoded_bytes() as u64 > self.checkpoint_slot_bytes {
            return Err(
                "a checkpoint of as many logs, small extents, producers and data files as there may be fits its slot",
            );
        }
        if self.batches_remembered_max < IDEMPOTENCE_WINDOW_MAX as u32 || self.extents_max < 4 {
            return Err("one producer with the largest window, and one small extent");
        }
        // An extent and a run have headers of their own.
        self.files.check(self.run_bytes_max + 4 * BLOCK)
    }
}

const _: () = assert!(Limits::DEFAULT.check().is_ok());
