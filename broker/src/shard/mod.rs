//! A shard: owns partitions and connections, turns events into ops.
