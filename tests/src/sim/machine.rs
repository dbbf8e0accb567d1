//! How a seed's broker is built: its limits, its data directory, its logs. The steps of a start are those of the real one.

use std::path::Path;

use tidegate_broker::datadir::{DataDir, Wanted, first_journal};
use tidegate_broker::limits::{FileLimits, Limits};
use tidegate_broker::log::flush_rule::FlushRule;
use tidegate_broker::log::{Logs, ShardBoot, journal, reshard};
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::disk::superblock::Superblock;
use tidegate_protocol::ids::{ClusterId, Incarnation, NodeId, ShardId};
use tidegate_reactor::disk::Disk;

use super::disk::OneFlush;
use super::random::Random;

/// The data directory on every simulated drive.
pub const ROOT: &str = "/data";

/// What of a broker differs between seeds and stays the same within one.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Bounds of the logs: tiny, so that every one of them is met.
    pub limits: Limits,
    /// As the drive needs it.
    pub flush_rule: FlushRule,
    /// The largest data file.
    pub segment_bytes: u64,
    /// The largest batch.
    pub batch_bytes_max: u64,
}

/// How long a seed's broker stands idle at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rests {
    /// A second or so: everything that repeats does so every few milliseconds.
    Short,
    /// Minutes: what repeats takes seconds between, or a seed would consist of nothing else.
    Long,
}

impl Shape {
    /// Draws a shape whose bounds fit together.
    pub fn draw(random: &mut Random, one_flush: OneFlush, rests: Rests) -> Shape {
        let frame_bytes_max = random.pick(&[64, 128, 256]) << 10;
        let ring_file_bytes = (frame_bytes_max as u64) * random.between(1, 2);
        let ring_files = random.between(4, 6) as u32;
        let ring = ring_file_bytes * u64::from(ring_files);
        let most = (ring - ring.div_ceil(10)) / 3;
        let settle_bytes = random.pick(&[8, 16, 32]) << 10;
        let slow = if rests == Rests::Long { 100 } else { 1 };
        let limits = Limits {
            ring_file_bytes,
            ring_files,
            checkpoint_slot_bytes: 256 << 10,
            checkpoint_interval_bytes: (frame_bytes_max as u64).max(most * random.between(60, 100) / 100),
            frame_bytes_max,
            frames_in_flight_max: random.pick(&[2, 4, 8, 16]),
            in_flight_bytes_max: frame_bytes_max as u64 * random.between(2, 4),
            cycles_writing_max: random.between(1, 4) as u32,
            cycle_bytes_min: random.pick(&[8, 32, 64]) << 10,
            batch_bytes_max: frame_bytes_max / 4,
            direct_min_bytes: random.pick(&[8, 16, 32]) << 10,
            settle_bytes,
            settle_min_bytes: random.pick(&[1, 2, 8]) << 10,
            run_bytes_max: (frame_bytes_max / 2).max(settle_bytes),
            extent_bytes_max: 16 << 10,
            memory_bytes: frame_bytes_max * random.between(6, 16) as usize,
            logs_max: 100,
            extents_max: 1_000,
            producers_per_log_max: 10,
            batches_remembered_max: 2_000,
            files: FileLimits {
                classes: [256 << 10, 512 << 10, 1 << 20, 2 << 20],
                ready_per_class: random.between(2, 3) as u32,
                ready_max: 4,
                zero_piece_bytes: 64 << 10,
                files_max: 1_000,
                open_max: random.pick(&[8, 100]),
                read_bytes_max: random.pick(&[16, 64, 256]) << 10,
                reads_max: random.pick(&[1, 4]),
                reads_waiting_max: random.pick(&[2, 20]),
                floor_bytes: random.pick(&[None, Some(0), Some(1 << 20)]),
                space_look_ns: slow * random.pick(&[5_000_000, 200_000_000]),
                class_idle_ns: random.pick(&[10_000_000, 500_000_000, 60_000_000_000]),
                scrub_bytes_per_s: random.pick(&[0, 1 << 20, 1 << 30]),
                scrub_interval_ns: slow * random.pick(&[20_000_000, 1_000_000_000]),
            },
            mark_after_ns: 10_000_000,
            mark_flush_after_ns: 1_000_000_000,
            ..Limits::DEFAULT
        };
        limits.check().unwrap_or_else(|why| panic!("{why}: {limits:?}"));
        let flush_rule = match one_flush {
            OneFlush::WholeDevice => FlushRule::OneFlush,
            OneFlush::OwnFileOnly => FlushRule::OwnFlush { why: "the simulated drive says so".to_string() },
        };
        Shape {
            limits,
            flush_rule,
            segment_bytes: random.pick(&[256, 512, 1024]) << 10,
            batch_bytes_max: (frame_bytes_max / 4) as u64 - 4096,
        }
    }
}

/// A data directory that has been recovered.
#[derive(Debug)]
pub struct Opened {
    /// Whose it is.
    pub superblock: Superblock,
    /// Of this start.
    pub incarnation: Incarnation,
    /// The logs of each shard.
    pub logs: Vec<Logs>,
}

/// Opens the data directory, gives it that number of shards, and recovers the logs of each.
///
/// # Errors
/// As a text: whatever ended it, a crash included.
pub fn open(disk: &mut dyn Disk, shape: &Shape, shard_count: u16) -> Result<Opened, String> {
    let wanted = Wanted {
        cluster: None,
        cluster_if_new: ClusterId(*b"simulated clustr"),
        journal_first_if_new: first_journal(7),
        node: NodeId(1),
        shard_count,
    };
    let root = Path::new(ROOT);
    let limits = shape.limits;
    let mut make = |disk: &mut dyn Disk, journal| {
        let identity = JournalIdentity { cluster: wanted.cluster_if_new, node: wanted.node, journal };
        journal::create(disk, root, identity, Incarnation(0), &limits)
    };
    let mut dir = DataDir::open(disk, root, &wanted, &mut make).map_err(|e| e.to_string())?;
    if dir.superblock().layout.journals.len() != usize::from(shard_count) {
        reshard::change(disk, &mut dir, &limits, &shape.flush_rule, shard_count)
            .map_err(|e| e.to_string())?;
    }
    let incarnation = dir.raise(disk).map_err(|e| e.to_string())?;
    let superblock = dir.close(disk);
    let mut logs = Vec::new();
    for (shard, journal) in (0..).map(ShardId).zip(superblock.layout.journals.clone()) {
        let identity = JournalIdentity { cluster: superblock.cluster, node: superblock.node, journal };
        let boot = ShardBoot {
            root: root.to_path_buf(),
            identity,
            incarnation,
            shard,
            limits,
            flush_rule: shape.flush_rule.clone(),
        };
        logs.push(Logs::open(disk, boot).map_err(|e| e.to_string())?);
    }
    Ok(Opened { superblock, incarnation, logs })
}
