//! Every bound of a shard outside its logs, tied together by assertions.

use tidegate_logic::credit::PoolLimits;
use tidegate_logic::offsets::OffsetsLimits;
use tidegate_logic::topics::TopicLimits;

/// Bounds of one shard. Each queue and map that the shard keeps is held by one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Longest frame behind its length field, in bytes.
    pub frame_bytes_max: u32,
    /// Longest frame of any request but produce, in bytes.
    pub control_bytes_max: u32,
    /// Bytes of descriptions of topics after which a reply ends and the rest is told in another one.
    pub page_bytes: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// Subscriptions of one connection.
    pub subscriptions_max: usize,
    /// Subscriptions of the shard.
    pub subscriptions_total_max: usize,
    /// Requests of one connection that are not answered yet; at the cap nothing more is read from it.
    pub in_flight_max: usize,
    /// Bytes queued to one connection above which nothing more is read from it and its subscriptions wait.
    pub out_bytes_max: usize,
    /// Bytes queued to all connections above which no subscription is served; above half of it none whose connection has
    /// something queued, above three quarters none of a newcomer.
    pub out_total_bytes_max: usize,
    /// Views in one send.
    pub send_views_max: usize,
    /// Bytes that a connection's receive buffer begins with, in bytes; it grows with what comes.
    pub receive_bytes_min: usize,
    /// Largest receive buffer for more than one frame, in bytes.
    pub receive_bytes_max: usize,
    /// Bytes of all receive buffers beyond the first of each connection and what produce credit has promised.
    pub receive_total_bytes_max: usize,
    /// Milliseconds after which a connection is ended that goes on with nothing while a cap on either of these totals is
    /// reached: its frame is not whole, or its client has not read.
    pub held_ms: u64,
    /// Produce credit.
    pub produce: PoolLimits,
    /// Milliseconds without a byte after which a connection that holds produce credit is ended, if others wait for some.
    pub credit_idle_ms: u64,
    /// Milliseconds since its limit rose after which a connection is ended that has not used what it holds, likewise.
    pub credit_held_ms: u64,
    /// Bytes of one read for a subscription, unless one batch is larger.
    pub read_bytes_max: usize,
    /// Bytes read for subscriptions in one turn.
    pub turn_read_bytes_max: usize,
    /// Milliseconds without a frame of a subscription after which a heartbeat goes out.
    pub heartbeat_ms: u64,
    /// Milliseconds in which a connection has to say hello.
    pub hello_ms: u64,
    /// Milliseconds for queued replies to leave when the shard stops.
    pub drain_ms: u64,
    /// Letters to one other shard that it has not taken yet; requests beyond are refused.
    pub mail_max: usize,
    /// Bytes of produces that one other shard has not answered yet; connections with more for it wait.
    pub mail_produce_bytes_max: usize,
    /// Changes of topics on their way to the drive.
    pub orders_max: usize,
    /// Producer ids leased at a time.
    pub producer_ids_lease: i64,
    /// Bytes of an internal log below which no snapshot is written.
    pub snapshot_bytes_min: u64,
    /// Topics.
    pub topics: TopicLimits,
    /// Stored offsets of each partition of the internal topic.
    pub offsets: OffsetsLimits,
}

/// Bytes of a produce frame around its batches, at most.
const FRAME_OVERHEAD: u32 = 1024;

impl Default for ShardLimits {
    fn default() -> ShardLimits {
        const BATCH_BYTES_MAX: u32 = 1 << 20;
        const FRAME_BYTES_MAX: u32 = 2 * BATCH_BYTES_MAX + FRAME_OVERHEAD;
        ShardLimits {
            frame_bytes_max: FRAME_BYTES_MAX,
            control_bytes_max: 256 << 10,
            page_bytes: 512 << 10,
            connections_max: 20_000,
            subscriptions_max: 4_096,
            subscriptions_total_max: 50_000,
            in_flight_max: 4_096,
            out_bytes_max: 1 << 20,
            out_total_bytes_max: 64 << 20,
            send_views_max: 256,
            receive_bytes_min: 4 << 10,
            receive_bytes_max: 256 << 10,
            receive_total_bytes_max: 64 << 20,
            held_ms: 5_000,
            produce: PoolLimits {
                pool_bytes: 128 << 20,
                overshoot_bytes: FRAME_BYTES_MAX as u64,
                window_bytes: 8 << 20,
                start_bytes: 256 << 10,
            },
            credit_idle_ms: 2_000,
            credit_held_ms: 30_000,
            read_bytes_max: 256 << 10,
            turn_read_bytes_max: 8 << 20,
            heartbeat_ms: 1_000,
            hello_ms: 10_000,
            drain_ms: 5_000,
            mail_max: 4_096,
            mail_produce_bytes_max: 8 << 20,
            orders_max: 1_024,
            producer_ids_lease: 1_000,
            snapshot_bytes_min: 1 << 20,
            topics: TopicLimits {
                topics_max: 20_000,
                partitions_max: 100_000,
                partitions_per_topic_max: 10_000,
                batch_bytes_max: BATCH_BYTES_MAX,
                tombstones_max: 10_000,
            },
            offsets: OffsetsLimits { entries_max: 50_000, name_bytes_max: 255, note_bytes_max: 1_024 },
        }
    }
}

/// Bytes of a reply that describes a topic of so many partitions, at most.
pub(super) const fn topic_bytes(partitions: usize) -> usize {
    const TOPIC: usize = 1024;
    const PARTITION: usize = 96;
    TOPIC + partitions * PARTITION
}

impl ShardLimits {
    /// Asserts what ties the bounds together.
    pub fn check(&self) {
        assert!(
            self.topics.batch_bytes_max + FRAME_OVERHEAD <= self.frame_bytes_max,
            "a batch fits into a frame"
        );
        assert!(self.control_bytes_max <= self.frame_bytes_max);
        assert!(
            self.page_bytes + topic_bytes(self.topics.partitions_per_topic_max)
                <= self.frame_bytes_max as usize,
            "a page and the topic that ends it fit into a frame"
        );
        assert!(u64::from(self.frame_bytes_max) <= self.produce.overshoot_bytes, "one frame may overshoot");
        assert!(self.produce.window_bytes + self.produce.overshoot_bytes <= self.produce.pool_bytes);
        assert!(self.produce.start_bytes <= self.produce.window_bytes);
        assert!(self.credit_idle_ms <= self.credit_held_ms);
        assert!(self.receive_bytes_min <= self.receive_bytes_max);
        assert!(
            self.control_bytes_max as usize <= self.receive_total_bytes_max,
            "one frame may be set aside"
        );
        assert!(self.out_bytes_max <= self.out_total_bytes_max);
        assert!(self.read_bytes_max <= self.turn_read_bytes_max);
        assert!(self.in_flight_max > 0 && self.send_views_max > 1 && self.producer_ids_lease > 0);
    }
}
