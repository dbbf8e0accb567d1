//! Every message comes back as it was, from bytes that do not change, and no bytes make a decoder panic.

use std::fmt::Debug;

use proptest::prelude::*;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{Features, HelloReply, HelloRequest, Ping};
use tidegate_protocol::api::metadata::{MetadataReply, MetadataRequest, NodeInfo, PartitionInfo, TopicInfo};
use tidegate_protocol::api::offset::*;
use tidegate_protocol::api::produce::{Acks, Level, ProduceReply, ProduceRequest, StageTimes};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::api::status::{StatusReply, StatusRequest};
use tidegate_protocol::api::subscribe::*;
use tidegate_protocol::api::topic::*;
use tidegate_protocol::api::{Api, Done, Request};
use tidegate_protocol::code::DecodeError;
use tidegate_protocol::error_code::{ErrorCode, Retry};
use tidegate_protocol::frame::{self, Frame, Kind, Split};
use tidegate_protocol::ids::*;

/// A message with the ways to write and read it.
struct Sample {
    name: &'static str,
    bytes: Vec<u8>,
    check: Box<dyn Fn(&Frame<'_>)>,
}

fn sample<M: PartialEq + Debug + 'static>(
    name: &'static str,
    message: M,
    encode: impl Fn(&M, &mut Vec<u8>),
    decode: impl Fn(&Frame<'_>) -> Result<M, DecodeError> + 'static,
) -> Sample {
    let mut bytes = Vec::new();
    encode(&message, &mut bytes);
    Sample {
        name,
        bytes,
        check: Box::new(move |frame| assert_eq!(decode(frame).as_ref(), Ok(&message), "{name}")),
    }
}

macro_rules! whole {
    ($name:literal, $type:ty, $message:expr) => {
        sample($name, $message, |m: &$type, out| m.encode(7, out), |f| <$type>::decode(f))
    };
}

fn partition() -> TopicPartition {
    TopicPartition { topic: TopicId([0xa5; 16]), partition: PartitionId(3) }
}

fn settings() -> Vec<Setting> {
    vec![
        Setting { name: "retention.ms".to_owned(), value: "60000".to_owned() },
        Setting { name: "durability".to_owned(), value: String::new() },
    ]
}

fn stored() -> Vec<StoredOffset> {
    let first = StoredOffset {
        partition: partition(),
        offset: Offset(99),
        leader_epoch: LeaderEpoch(4),
        metadata: "note ö".to_owned(),
    };
    let second =
        StoredOffset { leader_epoch: LeaderEpoch::UNKNOWN, metadata: String::new(), ..first.clone() };
    vec![first, second]
}

fn cluster_samples() -> Vec<Sample> {
    let hello = HelloRequest {
        version_min: 1,
        version_max: 3,
        client_id: "billing".to_owned(),
        software: "tidegate/0.1.0".to_owned(),
        shard: Some(ShardId(5)),
    };
    let hello_any = HelloRequest { shard: None, client_id: String::new(), ..hello.clone() };
    let hello_reply = HelloReply {
        version: 1,
        node: NodeId(2),
        cluster: [7; 16],
        incarnation: Incarnation(12),
        shard: ShardId(1),
        shard_count: 4,
        software: "tidegate/0.1.0".to_owned(),
        frame_bytes_max: 16 << 20,
        batch_bytes_max: 8 << 20,
        idempotence_window: 64,
        credit_initial: 1 << 40,
        features: Features::DURABLE.and(Features::ZSTD),
    };
    let metadata = MetadataReply {
        cluster: [7; 16],
        nodes: vec![NodeInfo { node: NodeId(2), shards: vec![String::new(), "localhost:7171".to_owned()] }],
        topics: vec![TopicInfo {
            name: "orders".to_owned(),
            topic: TopicId([9; 16]),
            partitions: vec![PartitionInfo {
                partition: PartitionId(0),
                leader: NodeId(2),
                shard: ShardId(1),
                epoch: LeaderEpoch(12),
            }],
        }],
        more: true,
    };
    vec![
        whole!("hello", HelloRequest, hello),
        whole!("hello, any shard", HelloRequest, hello_any),
        whole!("hello reply", HelloReply, hello_reply),
        whole!("metadata, all", MetadataRequest, MetadataRequest::all()),
        whole!("metadata, named", MetadataRequest, MetadataRequest::named(vec!["orders".to_owned()])),
        whole!("metadata, none", MetadataRequest, MetadataRequest::named(vec![])),
        whole!(
            "metadata, the next page",
            MetadataRequest,
            MetadataRequest { after: "orders".to_owned(), ..MetadataRequest::all() }
        ),
        whole!("metadata reply", MetadataReply, metadata),
    ]
}

fn topic_samples() -> Vec<Sample> {
    let described = DescribeTopicReply {
        topics: vec![TopicDescription {
            name: "orders".to_owned(),
            topic: TopicId([9; 16]),
            replication: 1,
            created_ms: 1_700_000_000_000,
            settings: settings(),
            partitions: vec![PartitionDescription {
                partition: PartitionId(0),
                shard: ShardId(1),
                start: Offset(10),
                committed: Offset(20),
                appended: Offset(30),
                bytes: 4096,
                damaged_ranges: 2,
                damaged_from: Offset(12),
                damaged_upto: Offset(14),
            }],
        }],
        more: true,
    };
    let create = CreateTopicRequest {
        name: "orders".to_owned(),
        partitions: 12,
        replication: -1,
        settings: settings(),
    };
    let alter = AlterTopicRequest { name: "orders".to_owned(), partitions: 0, settings: settings() };
    vec![
        whole!("create_topic", CreateTopicRequest, create),
        whole!("create_topic reply", CreateTopicReply, CreateTopicReply { topic: TopicId([9; 16]) }),
        whole!("delete_topic", DeleteTopicRequest, DeleteTopicRequest { name: "orders".to_owned() }),
        sample(
            "delete_topic reply",
            Done,
            |m, out| m.encode(Api::DeleteTopic, 7, out),
            |f| Done::decode(f, Api::DeleteTopic),
        ),
        whole!("alter_topic", AlterTopicRequest, alter),
        whole!(
            "describe_topic",
            DescribeTopicRequest,
            DescribeTopicRequest { names: vec!["a".to_owned()], after: "b".to_owned() }
        ),
        whole!("describe_topic reply", DescribeTopicReply, described),
    ]
}

fn other_samples() -> Vec<Sample> {
    let init = ProducerInitRequest {
        transactional_id: None,
        transaction_timeout_ms: 0,
        producer: Some((ProducerId(8), ProducerEpoch(2))),
    };
    let init_new =
        ProducerInitRequest { producer: None, transactional_id: Some("t".to_owned()), ..init.clone() };
    let status = StatusReply {
        facts: vec![("flush_rule".to_owned(), "one flush".to_owned())],
        shards: vec![vec![("flushes".to_owned(), 5), ("cycles".to_owned(), 6)], vec![]],
    };
    let error = ErrorBody {
        code: Ok(ErrorCode::OutOfCredit),
        retry: Retry::Later,
        cause: "cause".to_owned(),
        limited: "produce credit".to_owned(),
        limit: 10,
        current: 11,
        hint: "wait".to_owned(),
        field: "length".to_owned(),
        position: 4,
        address: "host:7171".to_owned(),
    };
    let error_new = ErrorBody { code: Err(9999), ..error.clone() };
    let read_error = |f: &Frame<'_>| ErrorBody::decode(f);
    vec![
        whole!("producer_init", ProducerInitRequest, init),
        whole!("producer_init, new", ProducerInitRequest, init_new),
        whole!(
            "producer_init reply",
            ProducerInitReply,
            ProducerInitReply { producer_id: ProducerId(8), producer_epoch: ProducerEpoch(3) }
        ),
        whole!("status", StatusRequest, StatusRequest),
        whole!("status reply", StatusReply, status),
        sample("error", error, |m, out| m.encode(Api::Produce.number(), 7, out), read_error),
        sample("error, unknown code and api", error_new, |m, out| m.encode(250, 7, out), read_error),
    ]
}

fn control_samples() -> Vec<Sample> {
    [cluster_samples(), topic_samples(), other_samples()].into_iter().flatten().collect()
}

fn data_samples() -> Vec<Sample> {
    let subscribe = SubscribeRequest {
        subscription: SubscriptionId(6),
        partition: partition(),
        from: Offset(1 << 40),
        limit: 1 << 20,
        min_bytes: 1,
        max_wait_ms: 500,
        isolation: Isolation::Stable,
        leader_epoch: LeaderEpoch(12),
        last_read_epoch: LeaderEpoch::UNKNOWN,
    };
    let data = DataHead {
        subscription: SubscriptionId(6),
        first: Offset(100),
        end: Offset(200),
        batch_count: 2,
        committed: Offset(300),
        stable: Offset(299),
        append_time_first_ms: 1_700_000_000_000,
        append_time_last_ms: 1_700_000_000_009,
        heads_crc: 0xdead_beef,
        aborted_count: 0,
        sent: 12345,
    };
    let progress = Progress {
        subscription: SubscriptionId(6),
        committed: Offset(300),
        stable: Offset(299),
        end: Offset(310),
        sent: 12345,
        limit: 1 << 20,
    };
    let produce = ProduceRequest { partition: partition(), leader_epoch: LeaderEpoch(12), acks: Acks::All };
    let produce_reply = ProduceReply {
        base_offset: Offset(1000),
        record_count: 17,
        append_time_ms: 1_700_000_000_000,
        level: Level::Disk,
        leader_epoch: LeaderEpoch(12),
        stages: StageTimes { appended_us: 1, written_us: 200, flushed_us: 900 },
    };
    vec![
        sample(
            "produce",
            produce,
            |m, out| {
                m.encode_head(7, 7, out);
                out.extend_from_slice(b"batches");
            },
            ProduceRequest::decode,
        ),
        whole!("produce reply", ProduceReply, produce_reply),
        whole!("subscribe", SubscribeRequest, subscribe),
        whole!(
            "subscribe reply",
            SubscribeReply,
            SubscribeReply { start: Offset(1), committed: Offset(2), leader_epoch: LeaderEpoch(3) }
        ),
        whole!("unsubscribe", UnsubscribeRequest, UnsubscribeRequest { subscription: SubscriptionId(6) }),
        sample(
            "data",
            data,
            |m, out| {
                m.encode_head(7, out);
                out.extend_from_slice(b"batches");
            },
            DataHead::decode,
        ),
        sample(
            "caught_up",
            progress,
            |m, out| m.encode(ProgressKind::CaughtUp, out),
            |f| Progress::decode(f, ProgressKind::CaughtUp),
        ),
        sample(
            "heartbeat",
            progress,
            |m, out| m.encode(ProgressKind::Heartbeat, out),
            |f| Progress::decode(f, ProgressKind::Heartbeat),
        ),
    ]
}

fn credit_samples() -> Vec<Sample> {
    let credit = Credit { scope: Scope::Produce, limit: 1 << 33, reason: Reason::Disk, wanted: 0 };
    let drive_full = Credit { reason: Reason::DiskFull, ..credit };
    let scoped = Credit { scope: Scope::Subscription(SubscriptionId(6)), reason: Reason::None, ..credit };
    let connection = Credit { scope: Scope::Connection, wanted: 77, ..credit };
    let ping = Ping { nonce: 1, produce_bytes: 2, produce_limit: 3 };
    vec![
        sample("credit, produce", credit, |m, out| m.encode(out), Credit::decode),
        sample("credit, drive full", drive_full, |m, out| m.encode(out), Credit::decode),
        sample("credit, subscription", scoped, |m, out| m.encode(out), Credit::decode),
        sample("credit, connection", connection, |m, out| m.encode(out), Credit::decode),
        sample("ping", ping, |m, out| m.encode(Kind::Request, 7, out), |f| Ping::decode(f, Kind::Request)),
        sample("ping reply", ping, |m, out| m.encode(Kind::Reply, 7, out), |f| Ping::decode(f, Kind::Reply)),
    ]
}

fn offset_samples() -> Vec<Sample> {
    let list = |query| ListOffsetsRequest { partition: partition(), query };
    let commit = OffsetCommitRequest {
        group: "billing".to_owned(),
        generation: -1,
        member: String::new(),
        offsets: stored(),
    };
    vec![
        whole!("list_offsets, earliest", ListOffsetsRequest, list(OffsetQuery::Earliest)),
        whole!("list_offsets, latest", ListOffsetsRequest, list(OffsetQuery::Latest)),
        whole!("list_offsets, stable", ListOffsetsRequest, list(OffsetQuery::Stable)),
        whole!("list_offsets, record time", ListOffsetsRequest, list(OffsetQuery::RecordTime(-5))),
        whole!("list_offsets, append time", ListOffsetsRequest, list(OffsetQuery::AppendTime(1 << 41))),
        whole!(
            "list_offsets reply",
            ListOffsetsReply,
            ListOffsetsReply { offset: Offset(5), timestamp_ms: -1, leader_epoch: LeaderEpoch(1) }
        ),
        whole!(
            "delete_records",
            DeleteRecordsRequest,
            DeleteRecordsRequest { partition: partition(), before: Offset(50) }
        ),
        whole!("delete_records reply", DeleteRecordsReply, DeleteRecordsReply { start: Offset(50) }),
        whole!("offset_commit", OffsetCommitRequest, commit),
        whole!(
            "offset_commit reply",
            OffsetCommitReply,
            OffsetCommitReply { results: vec![None, Some(ErrorCode::UnknownTopic)] }
        ),
        whole!(
            "offset_fetch",
            OffsetFetchRequest,
            OffsetFetchRequest { group: "billing".to_owned(), partitions: vec![partition()] }
        ),
        whole!("offset_fetch reply", OffsetFetchReply, OffsetFetchReply { offsets: stored() }),
    ]
}

fn samples() -> Vec<Sample> {
    [control_samples(), data_samples(), credit_samples(), offset_samples()].into_iter().flatten().collect()
}

fn frame_of(bytes: &[u8]) -> Frame<'_> {
    match frame::split(bytes, 1 << 20) {
        Ok(Split::Frame(frame)) => frame,
        other => panic!("a whole frame, not {other:?}"),
    }
}

/// Calls every decoder that could be asked to read this frame.
fn decode_all(frame: &Frame<'_>) {
    if let Ok(api) = frame.api() {
        let _ = Request::decode(frame, api);
        let _ = Done::decode(frame, api);
    }
    let _ = HelloReply::decode(frame);
    let _ = MetadataReply::decode(frame);
    let _ = CreateTopicReply::decode(frame);
    let _ = DescribeTopicReply::decode(frame);
    let _ = ProducerInitReply::decode(frame);
    let _ = StatusReply::decode(frame);
    let _ = ErrorBody::decode(frame);
    let _ = ProduceReply::decode(frame);
    let _ = SubscribeReply::decode(frame);
    let _ = DataHead::decode(frame);
    let _ = Progress::decode(frame, ProgressKind::CaughtUp);
    let _ = Progress::decode(frame, ProgressKind::Heartbeat);
    let _ = Ping::decode(frame, Kind::Reply);
    let _ = ListOffsetsReply::decode(frame);
    let _ = DeleteRecordsReply::decode(frame);
    let _ = OffsetCommitReply::decode(frame);
    let _ = OffsetFetchReply::decode(frame);
}

#[test]
fn every_message_comes_back_as_it_was() {
    for sample in samples() {
        let frame = frame_of(&sample.bytes);
        assert_eq!(frame.len(), sample.bytes.len(), "{}: the length is that of the bytes", sample.name);
        (sample.check)(&frame);
    }
}

#[test]
fn every_api_has_a_sample() {
    let seen: Vec<u8> = samples().iter().map(|sample| sample.bytes[4]).collect();
    for api in Api::ALL {
        assert!(seen.contains(&api.number()), "no sample of {api:?}");
    }
}

/// `hex` of a frame by its name: what is on the wire must not change within a version.
///
/// After a change that is meant, and a new version of the api: run with `GOLDEN_WRITE=1`.
#[test]
fn bytes_on_the_wire_are_the_golden_ones() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/messages.txt");
    let mut now = String::new();
    for sample in samples() {
        let hex: String = sample.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        now.push_str(&format!("{}\n{hex}\n\n", sample.name));
    }
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(path, &now).expect("writing the golden file");
    }
    let golden = std::fs::read_to_string(path).expect("the golden file is committed");
    for (is, was) in now.split("\n\n").zip(golden.split("\n\n")) {
        assert_eq!(is, was, "bytes have changed; see the comment of this test");
    }
    assert_eq!(now.len(), golden.len());
}

#[test]
fn a_message_of_another_kind_is_refused_by_every_decoder() {
    for sample in samples() {
        decode_all(&frame_of(&sample.bytes));
    }
}

#[test]
fn a_flipped_bit_in_a_control_body_is_noticed() {
    for sample in control_samples() {
        let body_at = frame_of(&sample.bytes).body_at();
        for at in body_at..sample.bytes.len() {
            let mut bad = sample.bytes.clone();
            bad[at] ^= 4;
            let frame = frame_of(&bad);
            let refused = match (frame.kind, frame.api()) {
                (Kind::Error, _) => ErrorBody::decode(&frame).is_err(),
                (Kind::Request, Ok(api)) => Request::decode(&frame, api).is_err(),
                _ => HelloReply::decode(&frame).is_err(),
            };
            assert!(refused, "{} byte {at}", sample.name);
        }
    }
}

/// A frame around any head and body, with a right head checksum and, if asked, a right body checksum.
fn wrap(api: u8, kind: Kind, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let crc = tidegate_protocol::crc::of(body).to_le_bytes();
    frame::encode(api, 1, kind, 1, head, body.len() + 4, &mut bytes);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&crc);
    bytes
}

#[test]
fn a_table_that_describes_far_more_than_its_bytes_is_refused() {
    // Ten thousand names that are one and the same kilobyte: 41 KiB would become 10 MiB.
    let mut builder = flatbuffers::FlatBufferBuilder::new();
    let name = builder.create_string(&"x".repeat(1024));
    let names = Some(builder.create_vector(&[name; 10_000]));
    let root = tidegate_schema::wire::MetadataRequest::create(
        &mut builder,
        &tidegate_schema::wire::MetadataRequestArgs { names, after: None },
    );
    builder.finish_minimal(root);
    let bytes = wrap(Api::Metadata.number(), Kind::Request, &[], builder.finished_data());
    let error = MetadataRequest::decode(&frame_of(&bytes)).expect_err("refused");
    assert_eq!(error.to_string(), "body at byte 20: is not a valid flatbuffers table");
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_incomplete_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Split::Frame(frame)) = frame::split(&bytes, 1000) {
            decode_all(&frame);
        }
    }

    #[test]
    fn any_head_and_body_are_read_or_refused(
        api in 0u8..32,
        kind in prop_oneof![Just(Kind::Request), Just(Kind::Reply), Just(Kind::Error)],
        head in proptest::collection::vec(any::<u8>(), 0..80),
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        decode_all(&frame_of(&wrap(api, kind, &head, &body)));
    }

    #[test]
    fn a_changed_message_is_read_or_refused(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in 0usize..20,
    ) {
        let samples = samples();
        let sample = which.get(&samples);
        let frame = frame_of(&sample.bytes);
        let (mut head, mut body) = (frame.head.to_vec(), frame.body.to_vec());
        body.truncate(body.len().saturating_sub(4 + cut));
        if let Some(byte) = (!body.is_empty()).then(|| at.index(body.len())) {
            body[byte] = value;
        }
        if let Some(byte) = (!head.is_empty()).then(|| at.index(head.len())) {
            head[byte] = value;
        }
        decode_all(&frame_of(&wrap(frame.api_number, frame.kind, &head, &body)));
    }

    #[test]
    fn stored_offsets_of_any_content_come_back(
        group in "\\PC{0,40}",
        offsets in proptest::collection::vec((any::<[u8; 16]>(), any::<i32>(), any::<i64>(), "\\PC{0,20}"), 0..20),
    ) {
        let stored = |(topic, partition, offset, metadata): ([u8; 16], i32, i64, String)| StoredOffset {
            partition: TopicPartition { topic: TopicId(topic), partition: PartitionId(partition) },
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(partition),
            metadata,
        };
        let request = OffsetCommitRequest {
            group,
            generation: -1,
            member: String::new(),
            offsets: offsets.into_iter().map(stored).collect(),
        };
        let mut bytes = Vec::new();
        request.encode(3, &mut bytes);
        prop_assert_eq!(OffsetCommitRequest::decode(&frame_of(&bytes)), Ok(request));
    }

    #[test]
    fn settings_of_any_content_come_back(names in proptest::collection::vec(("\\PC{0,30}", "\\PC{0,30}"), 0..20)) {
        let settings = names.into_iter().map(|(name, value)| Setting { name, value }).collect();
        let request = CreateTopicRequest { name: "t".to_owned(), partitions: 1, replication: 1, settings };
        let mut bytes = Vec::new();
        request.encode(3, &mut bytes);
        prop_assert_eq!(CreateTopicRequest::decode(&frame_of(&bytes)), Ok(request));
    }
}
