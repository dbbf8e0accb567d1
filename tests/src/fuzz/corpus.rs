//! The stored inputs, `tests/corpus/TARGET/`: `seed-*` follow from the golden bytes, the encoders and batches that Kafka's
//! clients wrote, and are valid; `refused-*` follow from encoders too and must not be; any other was found, and broke
//! something once.

use std::path::{Path, PathBuf};

use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::hello::{HelloRequest, Ping};
use tidegate_protocol::api::metadata::MetadataRequest;
use tidegate_protocol::api::offset::{
    DeleteRecordsRequest, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest, OffsetQuery,
    StoredOffset,
};
use tidegate_protocol::api::produce::{Acks, ProduceRequest};
use tidegate_protocol::api::producer::ProducerInitRequest;
use tidegate_protocol::api::status::StatusRequest;
use tidegate_protocol::api::subscribe::{Isolation, SubscribeRequest, SubscriptionId, UnsubscribeRequest};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicRequest, DeleteTopicRequest, DescribeTopicRequest, Setting,
};
use tidegate_protocol::batch::compression::Packer;
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView, Compression};
use tidegate_protocol::disk::checkpoint::{
    self, CheckpointBody, CheckpointHeader, ExtentPlace, FileOwner, FileState, LogState, ProducerBatch,
    ProducerState,
};
use tidegate_protocol::disk::entry::{
    Assign, Carriage, Cut, Entry, Free, ProducerNote, Recovered, RunMark, Start,
};
use tidegate_protocol::disk::frame::{FrameBuilder, FrameHeader, JournalIdentity};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader, run_bytes};
use tidegate_protocol::disk::superblock::{Layout, State, Superblock};
use tidegate_protocol::extent::{ExtentHeader, LogKind};
use tidegate_protocol::frame::Kind;
use tidegate_protocol::ids::*;
use tidegate_protocol::internal::{KeyValue, MetadataRecord, OffsetRecord, Stored, TopicRecord};

use super::connection::TOPIC_IN_INPUTS;
use super::{TARGETS, Target, seal};
use crate::sim::random::Random;

/// The names of inputs that [`write_seeds`] writes begin with this, if they are valid.
pub const SEED: &str = "seed-";
/// Those that must be refused begin with this.
pub const REFUSED: &str = "refused-";

/// A stored input: the file's name, and its bytes.
pub type Named = (String, Vec<u8>);

/// The stored inputs of a target, by name.
///
/// # Errors
/// As a text, if there is none or one cannot be read.
pub fn named(target: &Target) -> Result<Vec<Named>, String> {
    let folder = root().join("tests/corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        found.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), bytes));
    }
    if found.is_empty() {
        return Err(format!("{}: there is no input", folder.display()));
    }
    found.sort();
    Ok(found)
}

/// The bytes of the stored inputs of a target, by name.
///
/// # Errors
/// As [`named`].
pub fn inputs(target: &Target) -> Result<Vec<Vec<u8>>, String> {
    Ok(named(target)?.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Writes the seeds of all targets anew; returns how many.
///
/// # Errors
/// As a text, if a file cannot be read or written.
pub fn write_seeds() -> Result<usize, String> {
    let mut count = 0;
    for target in TARGETS {
        let folder = root().join("tests/corpus").join(target.name);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let seeds = seeds(target.name)?.into_iter().map(|(name, bytes)| (format!("{SEED}{name}.bin"), bytes));
        for (name, bytes) in seeds.chain(refused(target.name)) {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
            count += 1;
        }
    }
    Ok(count)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

fn seeds(target: &str) -> Result<Vec<Named>, String> {
    let named = |name: &str, bytes: Vec<u8>| (name.to_string(), bytes);
    Ok(match target {
        "frame" => golden(&[Api::Credit, Api::Ping, Api::ListOffsets])?,
        "hello" => golden(&[Api::Hello, Api::Ping])?,
        "metadata" => golden(&[Api::Metadata])?,
        "topic" => golden(&[Api::CreateTopic, Api::DeleteTopic, Api::AlterTopic, Api::DescribeTopic])?,
        "produce" => {
            let mut all = golden(&[Api::Produce])?;
            all.push(named(
                "with-batches",
                produce(partition(), [plain(), packed(Compression::Lz4)].concat()),
            ));
            all
        }
        "subscribe" => golden(&[Api::Subscribe, Api::Unsubscribe, Api::Data, Api::CaughtUp, Api::Heartbeat])?,
        "credit" => golden(&[Api::Credit])?,
        "offset" => golden(&[Api::ListOffsets, Api::DeleteRecords, Api::OffsetCommit, Api::OffsetFetch])?,
        "producer" => golden(&[Api::ProducerInit])?,
        "status" => golden(&[Api::Status])?,
        "error" => golden_named(|name, _| name.starts_with("error"))?,
        "batch" => vec![
            named("plain", plain()),
            named("two", [plain(), packed(Compression::Gzip)].concat()),
            named("lz4", packed(Compression::Lz4)),
            named("kafka", fixture("kafka-python-snappy")?),
        ],
        "gzip" => codec(Compression::Gzip, "gzip")?,
        "snappy" => codec(Compression::Snappy, "snappy")?,
        "lz4" => codec(Compression::Lz4, "lz4")?,
        "zstd" => codec(Compression::Zstd, "zstd")?,
        "extent" => vec![named("one", extent(0, 2, &plain()))],
        "run" | "run_scan" => {
            let mut all = vec![named("one", run(0, 1)), named("three-extents", run(2, 3))];
            if target == "run_scan" {
                all.push(named("two-runs", [run(0, 1), run(2, 3)].concat()));
            }
            all
        }
        "journal_frame" => vec![named("every-entry", journal_frame())],
        "superblock" => superblocks(),
        "checkpoint" => checkpoints(),
        "metadata_record" => metadata_records(),
        "offset_record" => offset_records(),
        "connection" => connections(),
        other => return Err(format!("no seeds are known for the target {other}")),
    })
}

/// The golden messages of these apis, in all kinds.
fn golden(apis: &[Api]) -> Result<Vec<Named>, String> {
    const API_AT: usize = 4;
    const FLAGS_AT: usize = 6;
    golden_named(|_, bytes| {
        let api = bytes.get(API_AT).copied().unwrap_or_default();
        apis.iter().any(|known| known.number() == api) && bytes[FLAGS_AT] & 2 == 0
    })
}

/// The golden messages that are wanted. The file has a name, then hexadecimal digits, then an empty line.
fn golden_named(wanted: impl Fn(&str, &[u8]) -> bool) -> Result<Vec<Named>, String> {
    let path = root().join("protocol/tests/golden/messages.txt");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let (Some(name), Some(digits)) = (lines.next(), lines.next()) {
        let byte = |at: usize| digits.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.ok_or_else(|| format!("{}: {name} is not hexadecimal", path.display()))?;
        if wanted(name, &bytes) {
            let name: String = name.chars().filter(|c| *c != ',').collect();
            found.push((name.replace([' ', '_'], "-"), bytes));
        }
        lines.next();
    }
    Ok(found)
}

fn fixture(name: &str) -> Result<Vec<u8>, String> {
    let path = root().join(format!("protocol/tests/fixtures/{name}.batch"));
    std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Packed records that Kafka's clients wrote, and some that we did.
fn codec(compression: Compression, name: &str) -> Result<Vec<Named>, String> {
    let mut found = Vec::new();
    for client in ["kafka-python", "librdkafka"] {
        let batch = fixture(&format!("{client}-{name}"))?;
        let view = BatchView::parse(&batch).map_err(|e| format!("{client}-{name}: {e}"))?;
        found.push((client.to_string(), view.records_bytes().to_vec()));
    }
    for (what, plain) in [("empty", Vec::new()), ("zeros", vec![0; 20_000]), ("text", b"tidegate".repeat(40))]
    {
        if let Ok(packed) = Packer::default().pack(compression, &plain) {
            found.push((what.to_string(), packed.to_vec()));
        }
    }
    Ok(found)
}

/// What would become many times as long as it is: packed records, and a table.
fn refused(target: &str) -> Vec<Named> {
    if target == "metadata" {
        return vec![(format!("{REFUSED}shared-name.bin"), shared_name())];
    }
    let compression = match target {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        _ => return Vec::new(),
    };
    // Snappy and lz4 make no less than a 21st and a 255th of anything.
    let bytes = if compression == Compression::Snappy { 64 << 10 } else { 512 << 10 };
    let mut packer = Packer::default();
    let packed = packer.pack(compression, &vec![0; bytes]).expect("codecs that are built in");
    vec![(format!("{REFUSED}bomb.bin"), packed.to_vec())]
}

/// A request for many topics whose names are one and the same long one. No encoder of ours writes that.
fn shared_name() -> Vec<u8> {
    let mut names = vec![String::new(); 150];
    names[0] = "x".repeat(2_000);
    let count = (names.len() as u32).to_le_bytes();
    let mut frame = Vec::new();
    MetadataRequest::named(names).encode(1, &mut frame);
    let vector = (0..frame.len()).step_by(4).find(|at| frame[*at..at + 4] == count).expect("its length");
    let place = |frame: &[u8], at: usize| {
        at + u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes")) as usize
    };
    let name = place(&frame, vector + 4);
    for at in (0..150).map(|n| vector + 4 + 4 * n) {
        frame[at..at + 4].copy_from_slice(&((name - at) as u32).to_le_bytes());
    }
    seal::frames(&mut Random::new(0), &mut frame);
    frame
}

fn partition() -> TopicPartition {
    TopicPartition { topic: TopicId([0xa5; 16]), partition: PartitionId(3) }
}

fn builder() -> BatchBuilder {
    let mut builder = BatchBuilder::new(Vec::new());
    builder.push(1_780_000_000_000, Some(b"key"), Some(&b"value".repeat(20)), [("trace", Some(&b"1"[..]))]);
    builder.push(1_780_000_000_007, None, None, []);
    builder
}

fn origin(sequence: i32) -> BatchOrigin {
    BatchOrigin {
        producer_id: ProducerId(4),
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(sequence),
    }
}

/// A batch of two records.
fn plain() -> Vec<u8> {
    builder().finish(origin(0))
}

fn packed(compression: Compression) -> Vec<u8> {
    builder().finish_packed(origin(2), compression, &mut Packer::default()).expect("codecs that are built in")
}

fn produce(partition: TopicPartition, body: Vec<u8>) -> Vec<u8> {
    let request = ProduceRequest { partition, leader_epoch: LeaderEpoch::UNKNOWN, acks: Acks::All };
    let mut frame = Vec::new();
    request.encode_head(9, body.len(), &mut frame);
    frame.extend_from_slice(&body);
    frame
}

fn extent(base: i64, records: i64, payload: &[u8]) -> Vec<u8> {
    let header = ExtentHeader {
        log: partition(),
        kind: LogKind::Data,
        flags: 0,
        leader_epoch: LeaderEpoch(1),
        base: Offset(base),
        end: Offset(base + records),
        batch_count: 1,
        byte_len: payload.len() as u32,
        append_time_ms: 1_780_000_000_000,
        max_timestamp_ms: 1_780_000_000_007,
        payload_crc: crc32c::crc32c(payload),
    };
    [&header.encode()[..], payload].concat()
}

fn run(base: i64, extents: u32) -> Vec<u8> {
    let mut body = Vec::new();
    for at in 0..i64::from(extents) {
        body.extend(extent(base + 2 * at, 2, &plain()));
    }
    let mut run = vec![0; run_bytes(body.len())];
    run[RUN_HEADER_BYTES..RUN_HEADER_BYTES + body.len()].copy_from_slice(&body);
    let header = RunHeader {
        cluster: ClusterId([7; 16]),
        file: FileId(3),
        generation: Generation(2),
        sequence: 1,
        previous_crc: 0x1234,
        log: partition(),
        base: Offset(base),
        end: Offset(base + 2 * i64::from(extents)),
        bytes: run.len() as u32,
        extents,
        append_first_ms: 1_780_000_000_000,
        append_last_ms: 1_780_000_000_000,
        max_timestamp_ms: 1_780_000_000_007,
    };
    header.finish(&mut run, RUN_HEADER_BYTES + body.len());
    run
}

fn identity() -> JournalIdentity {
    JournalIdentity { cluster: ClusterId([7; 16]), node: NodeId(1), journal: JournalId(9) }
}

fn journal_frame() -> Vec<u8> {
    let (fresh, carried) = (extent(0, 2, &plain()), extent(2, 2, &plain()));
    let note = ProducerNote {
        producer: ProducerId(4),
        epoch: ProducerEpoch(0),
        base_sequence: Sequence(0),
        record_count: 2,
        base: Offset(4),
        append_time_ms: 1_780_000_000_000,
    };
    let mark = RunMark {
        log: partition(),
        base: Offset(4),
        end: Offset(8),
        file: FileId(3),
        generation: Generation(2),
        at: 4096,
        bytes: 8192,
        crc: 0x1234,
        run_sequence: 1,
        append_first_ms: 1_780_000_000_000,
        append_last_ms: 1_780_000_000_001,
        max_timestamp_ms: 1_780_000_000_002,
        producers: vec![note, note],
    };
    let (log, file, generation) = (partition(), FileId(3), Generation(2));
    let entries = [
        Entry::Extent { how: Carriage::Fresh, bytes: &fresh },
        Entry::Extent { how: Carriage::Carried, bytes: &carried },
        Entry::Run(mark),
        Entry::Start(Start { log, offset: Offset(1) }),
        Entry::Cut(Cut { log, offset: Offset(9) }),
        Entry::Assign(Assign { file, generation, log, base: Offset(4) }),
        Entry::Free(Free { file, generation }),
        Entry::Recovered(Recovered {
            incarnation: Incarnation(2),
            last_kept: FrameSequence(5),
            last_hash: 0x5678,
        }),
    ];
    let mut out = vec![0; 8192];
    let mut builder = FrameBuilder::new(&mut out);
    for entry in &entries {
        builder.push(entry);
    }
    let header = FrameHeader {
        identity: identity(),
        incarnation: Incarnation(3),
        sequence: FrameSequence(6),
        previous_hash: 0x5678,
        mark: FrameSequence(5),
        bytes: 0,
        entries: 0,
        inner_crc: 0,
    };
    let (bytes, _) = builder.finish(header);
    out.truncate(bytes);
    out
}

fn superblocks() -> Vec<Named> {
    let layout =
        |id, journals: &[u32]| Layout { id, journals: journals.iter().map(|j| JournalId(*j)).collect() };
    let block = |state| {
        let superblock = Superblock {
            sequence: 4,
            cluster: ClusterId([7; 16]),
            node: NodeId(1),
            incarnation: Incarnation(3),
            journal_next: JournalId(30),
            layout: layout(1, &[7, 8]),
            state,
        };
        superblock.encode()
    };
    vec![
        ("current".to_string(), block(State::Current)),
        ("preparing".to_string(), block(State::Preparing(layout(2, &[9, 10, 11])))),
    ]
}

fn checkpoints() -> Vec<Named> {
    let header = CheckpointHeader {
        identity: identity(),
        incarnation: Incarnation(3),
        sequence: FrameSequence(6),
        hash: 0x5678,
        next_at: 8192,
    };
    let batch = ProducerBatch { base_sequence: 0, record_count: 2, base: 0, append_time_ms: 1 };
    let place = ExtentPlace { base: 0, end: 2, frame: 6, frame_at: 0, at: 96, bytes: 300, crc: 0x1234 };
    let log = LogState {
        topic: [0xa5; 16],
        partition: 3,
        start: 0,
        appended: 8,
        append_time_ms: 1_780_000_000_000,
        extents: vec![place, place],
        producers: vec![ProducerState { producer: 4, epoch: 0, batches: vec![batch; 3] }],
        forgotten: Some((3, 1)),
    };
    let owner = FileOwner {
        topic: [0xa5; 16],
        partition: 3,
        base: 0,
        end: 8,
        written: 8192,
        runs: 1,
        last_crc: 0x1234,
        sealed: false,
        append_first_ms: 1,
        append_last_ms: 2,
        max_timestamp_ms: 3,
    };
    let file = FileState { file: 3, generation: 2, bytes: 1 << 20, freed_by: 0, owner: Some(owner) };
    let body = CheckpointBody {
        logs: vec![LogState { forgotten: None, extents: vec![], ..log.clone() }, log],
        files: vec![FileState { owner: None, freed_by: 5, ..file.clone() }, file],
        wall_ms: 1_780_000_000_000,
    };
    vec![
        ("empty".to_string(), checkpoint::encode(&header, &CheckpointBody::default())),
        ("all-in-it".to_string(), checkpoint::encode(&header, &body)),
    ]
}

fn record(name: &str, written: KeyValue) -> Named {
    let bytes = [&[written.key.len() as u8][..], &written.key, &written.value].concat();
    (name.to_string(), bytes)
}

fn metadata_records() -> Vec<Named> {
    let topic = TopicRecord {
        topic: TopicId([7; 16]),
        name: "orders".to_string(),
        partitions: 3,
        replication: 1,
        created_ms: 12,
        settings: vec![("retention.ms".to_string(), "5".to_string()); 2],
    };
    let gone = MetadataRecord::TopicGone { topic: topic.topic, name: topic.name.clone() };
    vec![
        record("topic", MetadataRecord::Topic(topic).encode()),
        record("topic-gone", gone.encode()),
        record("producer-ids", MetadataRecord::ProducerIds { below: 1 << 40 }.encode()),
        record("snapshot-begin", MetadataRecord::SnapshotBegin.encode()),
    ]
}

fn offset_records() -> Vec<Named> {
    let stored = Stored { offset: Offset(9), leader_epoch: LeaderEpoch(3), note: "é".to_string() };
    let put = OffsetRecord::Put { consumer: "billing".to_string(), partition: partition(), stored };
    vec![
        record("put", put.encode()),
        record("topic-gone", OffsetRecord::TopicGone { topic: TopicId([7; 16]) }.encode()),
        record("snapshot-end", OffsetRecord::SnapshotEnd.encode()),
    ]
}

/// What a client may send over one connection, from its hello on.
fn connections() -> Vec<Named> {
    let log = TopicPartition { topic: TOPIC_IN_INPUTS, partition: PartitionId(0) };
    let mut hello = Vec::new();
    let request = HelloRequest {
        version_min: 1,
        version_max: 1,
        client_id: "stranger".to_string(),
        software: "fuzz".to_string(),
        shard: None,
    };
    request.encode(1, &mut hello);
    let stream = |name: &str, write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = hello.clone();
        write(&mut bytes);
        (name.to_string(), bytes)
    };
    vec![
        stream("reads", &|out| reads(log, out)),
        stream("writes", &|out| writes(log, out)),
        stream("topics", &topics),
        stream("offsets", &|out| offsets(log, out)),
    ]
}

fn reads(log: TopicPartition, out: &mut Vec<u8>) {
    let subscription = SubscriptionId(5);
    let request = SubscribeRequest {
        subscription,
        partition: log,
        from: Offset(0),
        limit: 1_000,
        min_bytes: 1,
        max_wait_ms: 5,
        isolation: Isolation::Committed,
        leader_epoch: LeaderEpoch::UNKNOWN,
        last_read_epoch: LeaderEpoch::UNKNOWN,
    };
    request.encode(2, out);
    let credit = |scope, limit| Credit { scope, limit, reason: Reason::None, wanted: 0 };
    credit(Scope::Connection, 1 << 20).encode(out);
    credit(Scope::Subscription(subscription), 5_000).encode(out);
    MetadataRequest::all().encode(3, out);
    UnsubscribeRequest { subscription }.encode(4, out);
    Ping { nonce: 5, produce_bytes: 0, produce_limit: 0 }.encode(Kind::Request, 5, out);
}

fn writes(log: TopicPartition, out: &mut Vec<u8>) {
    ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer: None }.encode(2, out);
    Credit { scope: Scope::Produce, limit: 0, reason: Reason::None, wanted: 4_096 }.encode(out);
    out.extend(produce(log, builder().finish(BatchOrigin::NONE)));
    out.extend(produce(log, [plain(), packed(Compression::Lz4)].concat()));
    StatusRequest.encode(3, out);
}

fn topics(out: &mut Vec<u8>) {
    let name = || "stranger".to_string();
    let settings = vec![Setting { name: "retention.ms".to_string(), value: "60000".to_string() }];
    CreateTopicRequest { name: name(), partitions: 2, replication: -1, settings: settings.clone() }
        .encode(2, out);
    AlterTopicRequest { name: name(), partitions: 3, settings }.encode(3, out);
    DescribeTopicRequest { names: vec![name()], after: String::new() }.encode(4, out);
    MetadataRequest::named(vec![name()]).encode(5, out);
    DeleteTopicRequest { name: name() }.encode(6, out);
}

fn offsets(log: TopicPartition, out: &mut Vec<u8>) {
    ListOffsetsRequest { partition: log, query: OffsetQuery::Latest }.encode(2, out);
    ListOffsetsRequest { partition: log, query: OffsetQuery::Earliest }.encode(3, out);
    let stored = StoredOffset {
        partition: log,
        offset: Offset(1),
        leader_epoch: LeaderEpoch(1),
        metadata: "note".to_string(),
    };
    let (group, member) = ("billing".to_string(), String::new());
    OffsetCommitRequest { group: group.clone(), generation: -1, member, offsets: vec![stored] }
        .encode(4, out);
    OffsetFetchRequest { group, partitions: vec![log] }.encode(5, out);
    DeleteRecordsRequest { partition: log, before: Offset(1) }.encode(6, out);
}
