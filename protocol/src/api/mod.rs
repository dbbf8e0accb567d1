//! The table of requests, and one file for each.
//!
//! A request and its reply carry the same api number and correlation; the reply has [`crate::frame::REPLY`] set, an
//! error [`crate::frame::ERROR`] as well. `data`, `caught_up` and `heartbeat` are sent unasked under the
//! subscription's number.

pub mod credit;
pub mod error;
pub mod hello;
pub mod metadata;
pub mod offset;
pub mod produce;
pub mod producer;
pub mod status;
pub mod subscribe;
pub mod topic;

/// Numbers of the requests on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Api {
    /// The first frame of every connection.
    Hello = 1,
    /// Are you there; carries both sides' credit counters.
    Ping = 2,
    /// Nodes, shards, topics, partitions.
    Metadata = 3,
    /// Create a topic.
    CreateTopic = 4,
    /// Delete a topic.
    DeleteTopic = 5,
    /// Change a topic's settings or add partitions.
    AlterTopic = 6,
    /// Describe topics with their settings and positions.
    DescribeTopic = 7,
    /// Append batches to a partition.
    Produce = 10,
    /// Start a stream of batches.
    Subscribe = 11,
    /// End it.
    Unsubscribe = 12,
    /// Batches of a subscription, from the broker.
    Data = 13,
    /// A subscription has reached the end, from the broker.
    CaughtUp = 14,
    /// A subscription's counters, from the broker.
    Heartbeat = 15,
    /// Raises a credit limit, from either side.
    Credit = 16,
    /// Earliest, latest, stable, by time.
    ListOffsets = 20,
    /// Trim a partition below an offset.
    DeleteRecords = 21,
    /// Store the offsets of a named consumer.
    OffsetCommit = 22,
    /// Read the offsets of a named consumer.
    OffsetFetch = 23,
    /// A producer id and epoch.
    ProducerInit = 24,
    /// What the broker is and what its shards have counted.
    Status = 30,
}
