//! What is checked of wire frames and of every message in them.

use std::fmt::Debug;

use tidegate_protocol::api::credit::Credit;
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest, Ping};
use tidegate_protocol::api::metadata::{MetadataReply, MetadataRequest};
use tidegate_protocol::api::offset::{
    DeleteRecordsReply, DeleteRecordsRequest, ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply,
    OffsetCommitRequest, OffsetFetchReply, OffsetFetchRequest,
};
use tidegate_protocol::api::produce::{ProduceReply, ProduceRequest};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::api::status::{StatusReply, StatusRequest};
use tidegate_protocol::api::subscribe::{
    DataHead, Progress, ProgressKind, SubscribeReply, SubscribeRequest, UnsubscribeRequest,
};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicRequest, DescribeTopicReply,
    DescribeTopicRequest,
};
use tidegate_protocol::api::{Api, Done, Request};
use tidegate_protocol::code::DecodeError;
use tidegate_protocol::frame::{self, Frame, Kind, PREFIX_LEN, Split};

use super::Outcome;
use super::measure::bounded;

/// Longest frame that is looked at.
const LENGTH_MAX: u32 = 64 << 10;
/// Bytes of memory that a message may take for each of its own bytes: tables may share what they point to, and what is read of
/// them shares nothing.
const MEMORY_PER_BYTE: usize = 64;
/// Bytes of memory for a message of any length: an error's text.
const MEMORY_LEAST: usize = 1 << 10;

/// How a stream is cut: the first frame, with every number of bytes that may be there of it.
pub fn split(bytes: &[u8]) -> Outcome {
    let whole = bounded("splitting", 0, || frame::split(bytes, LENGTH_MAX));
    let len = match whole {
        Ok(Split::Frame(frame)) => {
            assert_eq!(frame.len(), frame.body_at() + frame.body.len());
            assert!(frame.len() <= bytes.len(), "a frame ends within its bytes");
            frame.len()
        }
        Ok(Split::Incomplete { needed }) => {
            assert!(needed > bytes.len(), "{needed} bytes are wanted and {} there", bytes.len());
            bytes.len() + 1
        }
        Err(error) => {
            answered(&error);
            bytes.len() + 1
        }
    };
    // Whatever comes first of it must not be told to be something else.
    for there in (0..bytes.len().min(len)).filter(|n| *n <= 2 * PREFIX_LEN || n.is_power_of_two()) {
        match (frame::split(&bytes[..there], LENGTH_MAX), whole) {
            (Ok(Split::Incomplete { needed }), Ok(Split::Frame(_))) => {
                assert!(there < needed && needed <= len, "{needed} bytes are wanted of {len}");
            }
            (Ok(Split::Incomplete { needed }), _) => assert!(there < needed, "{needed} wanted"),
            (Err(early), Err(late)) => assert_eq!(early, late, "an error does not change"),
            (early, late) => panic!("with {there} bytes {early:?}, with all {late:?}"),
        }
    }
    frame::claimed(bytes);
    if matches!(whole, Ok(Split::Frame(_))) { Outcome::Taken } else { Outcome::Refused }
}

/// Frames back to back, every message in them.
pub fn messages(bytes: &[u8]) -> Outcome {
    let mut outcome = Outcome::Refused;
    let mut rest = bytes;
    while let Ok(Split::Frame(frame)) = frame::split(rest, LENGTH_MAX) {
        if message(&frame) == Outcome::Taken {
            outcome = Outcome::Taken;
        }
        rest = &rest[frame.len()..];
    }
    outcome
}

/// The message of a frame: it is read, and comes back from what is written of it; or its error is one that can be answered.
pub fn message(frame: &Frame<'_>) -> Outcome {
    macro_rules! whole {
        ($message:ty) => {
            again(frame, <$message>::decode, |m, out| m.encode(frame.correlation, out))
        };
    }
    if frame.kind == Kind::Error {
        return again(frame, ErrorBody::decode, |m, out| m.encode(frame.api_number, frame.correlation, out));
    }
    let api = match frame.api() {
        Ok(api) => api,
        Err(unsupported) => {
            assert!(!unsupported.to_string().is_empty());
            return Outcome::Refused;
        }
    };
    let done = || again(frame, |f| Done::decode(f, api), |m, out| m.encode(api, frame.correlation, out));
    if frame.kind == Kind::Reply {
        return match api {
            Api::Hello => whole!(HelloReply),
            Api::Ping => ping(frame),
            Api::Metadata => whole!(MetadataReply),
            Api::CreateTopic => whole!(CreateTopicReply),
            Api::DeleteTopic | Api::AlterTopic | Api::Unsubscribe => done(),
            Api::DescribeTopic => whole!(DescribeTopicReply),
            Api::Produce => whole!(ProduceReply),
            Api::Subscribe => whole!(SubscribeReply),
            Api::ListOffsets => whole!(ListOffsetsReply),
            Api::DeleteRecords => whole!(DeleteRecordsReply),
            Api::OffsetCommit => whole!(OffsetCommitReply),
            Api::OffsetFetch => whole!(OffsetFetchReply),
            Api::ProducerInit => whole!(ProducerInitReply),
            Api::Status => whole!(StatusReply),
            Api::Data | Api::CaughtUp | Api::Heartbeat | Api::Credit => Outcome::Refused,
        };
    }
    let outcome = match api {
        Api::Hello => whole!(HelloRequest),
        Api::Ping => ping(frame),
        Api::Metadata => whole!(MetadataRequest),
        Api::CreateTopic => whole!(CreateTopicRequest),
        Api::DeleteTopic => whole!(DeleteTopicRequest),
        Api::AlterTopic => whole!(AlterTopicRequest),
        Api::DescribeTopic => whole!(DescribeTopicRequest),
        Api::Produce => again(frame, ProduceRequest::decode, |m, out| {
            m.encode_head(frame.correlation, frame.body.len(), out);
            out.extend_from_slice(frame.body);
        }),
        Api::Subscribe => whole!(SubscribeRequest),
        Api::Unsubscribe => whole!(UnsubscribeRequest),
        Api::Data => {
            return again(frame, DataHead::decode, |m, out| {
                m.encode_head(frame.body.len(), out);
                out.extend_from_slice(frame.body);
            });
        }
        Api::CaughtUp => return progress(frame, ProgressKind::CaughtUp),
        Api::Heartbeat => return progress(frame, ProgressKind::Heartbeat),
        Api::Credit => again(frame, Credit::decode, Credit::encode),
        Api::ListOffsets => whole!(ListOffsetsRequest),
        Api::DeleteRecords => whole!(DeleteRecordsRequest),
        Api::OffsetCommit => whole!(OffsetCommitRequest),
        Api::OffsetFetch => whole!(OffsetFetchRequest),
        Api::ProducerInit => whole!(ProducerInitRequest),
        Api::Status => whole!(StatusRequest),
    };
    // The broker's own way to the same decoders.
    let taken = Request::decode(frame, api).is_ok();
    assert_eq!(taken, outcome == Outcome::Taken, "{} is a request or it is not", api.name());
    outcome
}

fn ping(frame: &Frame<'_>) -> Outcome {
    let kind = frame.kind;
    again(frame, |f| Ping::decode(f, kind), |m, out| m.encode(kind, frame.correlation, out))
}

fn progress(frame: &Frame<'_>, kind: ProgressKind) -> Outcome {
    again(frame, |f| Progress::decode(f, kind), |m, out| m.encode(kind, out))
}

/// Reads a message, writes it and reads that: it must be the same one.
fn again<M: PartialEq + Debug>(
    frame: &Frame<'_>,
    decode: impl Fn(&Frame<'_>) -> Result<M, DecodeError>,
    encode: impl Fn(&M, &mut Vec<u8>),
) -> Outcome {
    let bound = MEMORY_PER_BYTE * frame.len() + MEMORY_LEAST;
    let message = match bounded("reading a message", bound, || decode(frame)) {
        Ok(message) => message,
        Err(error) => {
            answered(&error);
            return Outcome::Refused;
        }
    };
    let mut bytes = Vec::new();
    encode(&message, &mut bytes);
    let Ok(Split::Frame(written)) = frame::split(&bytes, u32::MAX) else {
        panic!("what was written of {message:?} is no frame");
    };
    assert_eq!(written.len(), bytes.len(), "one whole frame is written");
    if !frame.head.is_empty() {
        // No table: there is one way to write it, and nothing in it is ignored.
        let same = (written.head, written.body) == (frame.head, frame.body);
        assert!(same, "{message:?} comes back as other bytes: {written:?} for {frame:?}");
    }
    assert_eq!(decode(&written).as_ref(), Ok(&message), "a message comes back from what is written of it");
    Outcome::Taken
}

/// An error can be told to whoever sent the frame.
fn answered(error: &DecodeError) {
    let body = ErrorBody::malformed(error);
    let mut bytes = Vec::new();
    body.encode(Api::Hello.number(), 1, &mut bytes);
    let Ok(Split::Frame(frame)) = frame::split(&bytes, u32::MAX) else { panic!("no frame answers {error}") };
    assert_eq!(ErrorBody::decode(&frame), Ok(body));
}
