//! The table of requests, and one file for each.
//!
//! A request and its reply carry the same api number and correlation; the reply has [`crate::frame::REPLY`] set, an
//! error [`crate::frame::ERROR`] as well. `data`, `caught_up` and `heartbeat` are sent unasked under the
//! subscription's number.

use zerocopy::little_endian::I32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::code::{DecodeError, DecodeErrorKind, Reader, Writer};
use crate::crc;
use crate::frame::{self, Frame, Kind};
use crate::ids::{PartitionId, TopicId, TopicPartition};

pub mod credit;
pub mod error;
pub mod hello;
pub mod metadata;
pub mod offset;
pub mod produce;
pub mod producer;
pub mod status;
pub mod subscribe;
pub(crate) mod table;
pub mod topic;

macro_rules! apis {
    ($($name:ident = $number:literal, $text:literal, $doc:literal;)*) => {
        /// Numbers of the requests on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Api {
            $(#[doc = $doc] $name = $number,)*
        }

        impl Api {
            /// All apis, by number.
            pub const ALL: &[Api] = &[$(Api::$name,)*];

            /// Its name in docs, logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Api::$name => $text,)* }
            }

            /// What it is for, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Api::$name => $doc,)* }
            }
        }
    };
}

apis! {
    Hello = 1, "hello", "The first frame of every connection.";
    Ping = 2, "ping", "Are you there; carries both sides' credit counters.";
    Metadata = 3, "metadata", "Nodes, shards, topics, partitions.";
    CreateTopic = 4, "create_topic", "Create a topic.";
    DeleteTopic = 5, "delete_topic", "Delete a topic.";
    AlterTopic = 6, "alter_topic", "Change a topic's settings or add partitions.";
    DescribeTopic = 7, "describe_topic", "Describe topics with their settings and positions.";
    Produce = 10, "produce", "Append batches to a partition.";
    Subscribe = 11, "subscribe", "Start a stream of batches.";
    Unsubscribe = 12, "unsubscribe", "End it.";
    Data = 13, "data", "Batches of a subscription, from the broker.";
    CaughtUp = 14, "caught_up", "A subscription has reached the end, from the broker.";
    Heartbeat = 15, "heartbeat", "A subscription's counters, from the broker.";
    Credit = 16, "credit", "Raises a credit limit, from either side.";
    ListOffsets = 20, "list_offsets", "Earliest, latest, stable, by time.";
    DeleteRecords = 21, "delete_records", "Trim a partition below an offset.";
    OffsetCommit = 22, "offset_commit", "Store the offsets of a named consumer.";
    OffsetFetch = 23, "offset_fetch", "Read the offsets of a named consumer.";
    ProducerInit = 24, "producer_init", "A producer id and epoch.";
    Status = 30, "status", "What the broker is and what its shards have counted.";
}

const BY_NUMBER: [Option<Api>; 256] = {
    let mut table = [None; 256];
    let mut i = 0;
    while i < Api::ALL.len() {
        table[Api::ALL[i] as usize] = Some(Api::ALL[i]);
        i += 1;
    }
    table
};

impl Api {
    /// The api of a number, if this version knows it.
    pub fn from_number(number: u8) -> Option<Api> {
        BY_NUMBER[usize::from(number)]
    }

    /// The number on the wire.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The lowest version of its layout that this side speaks.
    pub fn version_min(self) -> u8 {
        1
    }

    /// The highest version of its layout that this side speaks, and the one that it sends.
    pub fn version_max(self) -> u8 {
        1
    }
}

/// Appends the prefix and head of a frame of `api` in the version that this side sends.
fn put<H: IntoBytes + Immutable + ?Sized>(
    api: Api,
    kind: Kind,
    correlation: u32,
    head: &H,
    body_len: usize,
    out: &mut Vec<u8>,
) {
    frame::encode(api.number(), api.version_max(), kind, correlation, head, body_len, out);
}

/// Appends a frame that has a head and no body.
fn put_whole<H: IntoBytes + Immutable + ?Sized>(
    api: Api,
    kind: Kind,
    correlation: u32,
    head: &H,
    out: &mut Vec<u8>,
) {
    put(api, kind, correlation, head, 0, out);
}

/// The fixed head of a frame of this api and kind; a body may follow.
fn take_head<'a, H>(frame: &Frame<'a>, api: Api, kind: Kind) -> Result<&'a H, DecodeError>
where
    H: FromBytes + KnownLayout + Immutable + Unaligned,
{
    frame.expect(api, kind)?;
    let mut r = frame.head_reader();
    let head = r.fixed("head")?;
    r.end("head")?;
    Ok(head)
}

/// The fixed head of a frame of this api and kind that has no body.
fn take_whole<'a, H>(frame: &Frame<'a>, api: Api, kind: Kind) -> Result<&'a H, DecodeError>
where
    H: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let head = take_head(frame, api, kind)?;
    frame.body_reader().end("body")?;
    Ok(head)
}

/// Bytes of the checksum behind the body of a control-plane frame.
const CRC_LEN: usize = 4;

/// Appends the checksum of the body that begins at `body_at` of `out`.
fn put_crc(out: &mut Vec<u8>, body_at: usize) {
    let crc = crc::of(&out[body_at..]);
    Writer::new(out).u32(crc);
}

/// A reader of the body in front of its checksum, which is right.
fn take_crc<'a>(frame: &Frame<'a>) -> Result<Reader<'a>, DecodeError> {
    let mut r = frame.body_reader();
    let Some(len) = r.left().checked_sub(CRC_LEN) else {
        let kind = DecodeErrorKind::Truncated { needed: CRC_LEN as u64, left: r.left() as u64 };
        return Err(DecodeError::new("body_crc", r.at(), kind));
    };
    let body = r.sub("body", len)?;
    let computed = crc::of(&frame.body[..len]);
    let at = r.at();
    let stored = r.u32("body_crc")?;
    if stored != computed {
        return Err(DecodeError::new("body_crc", at, DecodeErrorKind::Checksum { stored, computed }));
    }
    Ok(body)
}

/// A count from the head of things in the body that take at least `each` bytes.
fn check_count(r: &Reader<'_>, count: u32, each: usize, count_at: usize) -> Result<usize, DecodeError> {
    let limit = (r.left() / each) as u64;
    if u64::from(count) > limit {
        let kind = DecodeErrorKind::AboveLimit { limit, found: u64::from(count) };
        return Err(DecodeError::new("count", count_at, kind));
    }
    Ok(count as usize)
}

/// A reply that has nothing to say but that the request was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done;

impl Done {
    /// Appends the whole frame.
    pub fn encode(self, api: Api, correlation: u32, out: &mut Vec<u8>) {
        put_whole(api, Kind::Reply, correlation, &[0u8; 0], out);
    }

    /// Reads it from a reply of `api`.
    pub fn decode(frame: &Frame<'_>, api: Api) -> Result<Done, DecodeError> {
        take_whole::<[u8; 0]>(frame, api, Kind::Reply)?;
        Ok(Done)
    }
}

/// A request, read. The batches of a produce stay in the frame's body.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the api of its name")]
pub enum Request {
    Hello(hello::HelloRequest),
    Ping(hello::Ping),
    Metadata(metadata::MetadataRequest),
    CreateTopic(topic::CreateTopicRequest),
    DeleteTopic(topic::DeleteTopicRequest),
    AlterTopic(topic::AlterTopicRequest),
    DescribeTopic(topic::DescribeTopicRequest),
    Produce(produce::ProduceRequest),
    Subscribe(subscribe::SubscribeRequest),
    Unsubscribe(subscribe::UnsubscribeRequest),
    Credit(credit::Credit),
    ListOffsets(offset::ListOffsetsRequest),
    DeleteRecords(offset::DeleteRecordsRequest),
    OffsetCommit(offset::OffsetCommitRequest),
    OffsetFetch(offset::OffsetFetchRequest),
    ProducerInit(producer::ProducerInitRequest),
    Status(status::StatusRequest),
}

impl Request {
    /// Reads a frame that a client sent, of an api that [`Frame::api`] has named.
    pub fn decode(frame: &Frame<'_>, api: Api) -> Result<Request, DecodeError> {
        Ok(match api {
            Api::Hello => Request::Hello(hello::HelloRequest::decode(frame)?),
            Api::Ping => Request::Ping(hello::Ping::decode(frame, Kind::Request)?),
            Api::Metadata => Request::Metadata(metadata::MetadataRequest::decode(frame)?),
            Api::CreateTopic => Request::CreateTopic(topic::CreateTopicRequest::decode(frame)?),
            Api::DeleteTopic => Request::DeleteTopic(topic::DeleteTopicRequest::decode(frame)?),
            Api::AlterTopic => Request::AlterTopic(topic::AlterTopicRequest::decode(frame)?),
            Api::DescribeTopic => Request::DescribeTopic(topic::DescribeTopicRequest::decode(frame)?),
            Api::Produce => Request::Produce(produce::ProduceRequest::decode(frame)?),
            Api::Subscribe => Request::Subscribe(subscribe::SubscribeRequest::decode(frame)?),
            Api::Unsubscribe => Request::Unsubscribe(subscribe::UnsubscribeRequest::decode(frame)?),
            Api::Data | Api::CaughtUp | Api::Heartbeat => {
                return Err(DecodeError::rule("api", 4, "is sent by the broker only"));
            }
            Api::Credit => Request::Credit(credit::Credit::decode(frame)?),
            Api::ListOffsets => Request::ListOffsets(offset::ListOffsetsRequest::decode(frame)?),
            Api::DeleteRecords => Request::DeleteRecords(offset::DeleteRecordsRequest::decode(frame)?),
            Api::OffsetCommit => Request::OffsetCommit(offset::OffsetCommitRequest::decode(frame)?),
            Api::OffsetFetch => Request::OffsetFetch(offset::OffsetFetchRequest::decode(frame)?),
            Api::ProducerInit => Request::ProducerInit(producer::ProducerInitRequest::decode(frame)?),
            Api::Status => Request::Status(status::StatusRequest::decode(frame)?),
        })
    }
}

/// A partition in a fixed head: 20 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Place {
    topic: [u8; 16],
    partition: I32,
}

impl Place {
    fn of(partition: TopicPartition) -> Place {
        Place { topic: partition.topic.0, partition: I32::new(partition.partition.0) }
    }

    fn get(self) -> TopicPartition {
        TopicPartition { topic: TopicId(self.topic), partition: PartitionId(self.partition.get()) }
    }
}

fn unknown(field: &'static str, at: usize, found: u8) -> DecodeError {
    DecodeError::new(field, at, DecodeErrorKind::Unknown { found: i64::from(found) })
}

fn reserved(field: &'static str, at: usize, bytes: &[u8]) -> Result<(), DecodeError> {
    if bytes.iter().any(|&byte| byte != 0) {
        return Err(DecodeError::new(field, at, DecodeErrorKind::Reserved));
    }
    Ok(())
}
