//! What a seed asks of the logs of a shard.

use super::machine::Shape;
use super::random::Random;
use super::truth::Retention;

/// What a seed asks for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Logs at a time.
    pub logs: u64,
    /// The first are asked for most.
    pub skew: u64,
    /// Appends a tick, at most.
    pub appends_max: u64,
    /// Nanoseconds between ticks, at most.
    pub tick_ns_max: u64,
    /// How often a batch is large, in a million.
    pub large: u32,
    /// Bytes of a large batch, at most.
    pub large_bytes_max: u64,
    /// How often a tick reads, trims, removes a log, in a million.
    pub read: u32,
    /// Likewise.
    pub trim: u32,
    /// Likewise.
    pub remove: u32,
    /// How often it rests for a while, likewise.
    pub rest: u32,
    /// How often it searches by time, likewise.
    pub search: u32,
    /// How many producers with a sequence write to each log.
    pub producers: u64,
    /// Whether logs trim themselves by size.
    pub retention: Retention,
    /// And by age.
    pub retention_ms: Option<u64>,
    /// The largest data file.
    pub segment_bytes: u64,
}

impl Plan {
    /// Draws it, for logs of that shape.
    pub fn draw(random: &mut Random, shape: &Shape) -> Plan {
        let mut some = |per_million| if random.chance(600_000) { per_million } else { 0 };
        let (read, trim, remove) = (some(300_000), some(30_000), some(2_000));
        let (large, rest) = (some(60_000), some(5_000));
        Plan {
            logs: random.pick(&[1, 3, 12, 40]),
            skew: random.between(1, 3),
            appends_max: random.between(1, 8),
            tick_ns_max: random.pick(&[50_000, 300_000, 2_000_000]),
            large,
            large_bytes_max: random.pick(&[20_000, 60_000, shape.batch_bytes_max]).min(shape.batch_bytes_max),
            read,
            trim,
            remove,
            rest,
            search: 0,
            producers: random.between(0, 3),
            retention: if random.chance(300_000) { Retention::On } else { Retention::Off },
            retention_ms: None,
            segment_bytes: shape.segment_bytes,
        }
    }
}
