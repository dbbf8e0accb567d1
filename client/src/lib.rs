//! The Rust SDK of the Tidegate log broker: durable produce, credit-based consume, administration. No C in it.
//!
//! ```no_run
//! use tidegate::{Client, Record, Start};
//!
//! # async fn example() -> Result<(), tidegate::Error> {
//! let client = Client::connect("127.0.0.1:7171").await?;
//!
//! let producer = client.producer("readings").start().await?;
//! let ack = producer.send(Record::keyed(b"sensor-7", b"21.4")).await?;
//! println!("partition {} offset {} level {:?}", ack.partition, ack.offset, ack.level);
//! producer.close().await?;
//!
//! let mut consumer = client.consumer("readings").from(Start::Earliest).until_end().start().await?;
//! while let Some(batch) = consumer.next_batch().await {
//!     let batch = batch?;
//!     for record in batch.records()? {
//!         let record = record?;
//!         println!("{} {:?}", record.offset(), record.value());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Reading order of the code: `client` (what is shared), `connection` (frames over one socket), `calls` (requests
//! and replies), `producer`, `consumer`,
//! `admin`, `retry`, `error`.

mod admin;
mod calls;
mod client;
mod connection;
mod consumer;
mod error;
mod producer;
mod retry;

pub use admin::{Admin, TopicChange, TopicSpec};
pub use client::{Client, ClientBuilder};
pub use consumer::{
    Batch, Consumer, ConsumerBuilder, Event, OutOfRange, PartitionPosition, Record as ConsumedRecord,
    Records, Start,
};
pub use error::{Error, ErrorKind, Unread};
pub use producer::{
    Ack, BatchAck, Compression, Header, Linger, Partitioning, Producer, ProducerBuilder, ProducerEvent,
    ProducerStats, Record, Stall, Ticket,
};

pub use tidegate_protocol::api::credit::Reason as CreditReason;
pub use tidegate_protocol::api::metadata::{MetadataReply, NodeInfo, PartitionInfo, TopicInfo};
pub use tidegate_protocol::api::offset::{ListOffsetsReply, OffsetQuery, StoredOffset};
pub use tidegate_protocol::api::produce::{Acks, Level, StageTimes};
pub use tidegate_protocol::api::status::StatusReply;
pub use tidegate_protocol::api::topic::{PartitionDescription, Setting, TopicDescription};
pub use tidegate_protocol::error_code::ErrorCode;
pub use tidegate_protocol::ids::{
    LeaderEpoch, NodeId, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId, TopicId,
    TopicPartition,
};

/// A result with the SDK's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
