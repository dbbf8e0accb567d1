//! What is there again after a stop or a loss of power.

use tidegate_logic::placement::{offsets_partition, shard_of};
use tidegate_protocol::disk;
use tidegate_protocol::extent::ExtentHeader;

use super::*;

fn metadata(node: &mut Node, client: &mut Client) -> Vec<(String, usize)> {
    let reply: MetadataReply = client.ask(
        node,
        Api::Metadata,
        |c, out| MetadataRequest::all().encode(c, out),
        MetadataReply::decode,
    );
    reply.topics.into_iter().map(|topic| (topic.name, topic.partitions.len())).collect()
}

fn init(node: &mut Node, client: &mut Client) -> ProducerInitReply {
    let request = ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer: None };
    client.ask(node, Api::ProducerInit, |c, out| request.encode(c, out), ProducerInitReply::decode)
}

fn commit(node: &mut Node, client: &mut Client, log: TopicPartition, offset: i64) {
    let stored = StoredOffset {
        partition: log,
        offset: Offset(offset),
        leader_epoch: LeaderEpoch(3),
        metadata: String::new(),
    };
    let commit = OffsetCommitRequest {
        group: "g".to_owned(),
        generation: -1,
        member: String::new(),
        offsets: vec![stored],
    };
    let reply: OffsetCommitReply =
        client.ask(node, Api::OffsetCommit, |c, out| commit.encode(c, out), OffsetCommitReply::decode);
    assert_eq!(reply.results, [None]);
}

fn committed(node: &mut Node, client: &mut Client) -> Vec<i64> {
    let fetch = OffsetFetchRequest { group: "g".to_owned(), partitions: Vec::new() };
    let reply: OffsetFetchReply =
        client.ask(node, Api::OffsetFetch, |c, out| fetch.encode(c, out), OffsetFetchReply::decode);
    reply.offsets.iter().map(|stored| stored.offset.0).collect()
}

/// Topics, records, stored offsets, producer ids and the memory of repetitions, over an end of the given kind.
fn everything_is_there_again(end: impl Fn(Node) -> Node) {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "kept", 2, &[("retention.ms", "-1")]);
    node.create(&mut client, "gone", 3, &[]);
    let gone = DeleteTopicRequest { name: "gone".to_owned() };
    client.ask(
        &mut node,
        Api::DeleteTopic,
        |c, out| gone.encode(c, out),
        |f| Done::decode(f, Api::DeleteTopic),
    );
    let producer = init(&mut node, &mut client);
    let first = batch_of(3, 10, origin(producer, 0));
    for partition in 0..2 {
        client.produce(&mut node, log(topic, partition), Acks::Leader, &first);
    }
    node.settle();
    assert!(client.produced(&mut node).is_ok() && client.produced(&mut node).is_ok());
    commit(&mut node, &mut client, log(topic, 0), 2);

    let mut node = end(node);
    let mut client = node.connect(Some(1));
    assert_eq!(metadata(&mut node, &mut client), [("kept".to_owned(), 2)]);
    assert_eq!(committed(&mut node, &mut client), [2]);
    assert!(
        init(&mut node, &mut client).producer_id > producer.producer_id,
        "an id is never given out again"
    );
    for partition in 0..2 {
        client.produce(&mut node, log(topic, partition), Acks::Leader, &first);
        client.produce(&mut node, log(topic, partition), Acks::Leader, &batch_of(1, 10, origin(producer, 3)));
    }
    node.settle();
    for _ in 0..4 {
        let reply = client.produced(&mut node).expect("a repetition, or the next in sequence");
        assert!(
            matches!((reply.base_offset, reply.record_count), (Offset(0), 3) | (Offset(3), 1)),
            "{reply:?}"
        );
    }
    for partition in 0..2 {
        let owner = u16::from(node.shards[1].shard.partitions.contains_key(&log(topic, partition)));
        let mut reader = node.connect(Some(owner));
        reader.subscribe(&mut node, 1, log(topic, partition), 0, 1 << 20);
        let heard = reader.heard(&node);
        assert_eq!(heard.last().map(String::as_str), Some("caught_up 1 4"), "{heard:?}");
    }
    assert!(node.shards.iter().all(|core| core.shard.partitions.keys().all(|log| log.topic == topic)));
}

#[test]
fn after_a_clean_stop_everything_is_there_again() {
    everything_is_there_again(Node::restart);
}

#[test]
fn after_a_loss_of_power_everything_acknowledged_is_there_again() {
    for seed in 1..6 {
        everything_is_there_again(|node| node.lose_power(seed));
    }
}

/// Kafka KAFKA-13636, KAFKA-8069: stored offsets expired while nobody asked for them, or came back with another age.
#[test]
fn stored_offsets_stay_as_long_as_their_topic_however_old_they_are() {
    const WEEK_MS: u64 = 7 * 24 * 3_600_000;
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 1, &[("retention.ms", "60000")]);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(3));
    node.settle();
    client.produced(&mut node).expect("stored");
    commit(&mut node, &mut client, log(topic, 0), 2);
    for seed in 1..4 {
        (0..10).for_each(|_| node.pass(WEEK_MS));
        let mut client = node.connect(Some(0));
        assert_eq!(committed(&mut node, &mut client), [2], "after {seed} times ten weeks");
        node = if seed % 2 == 0 { node.restart() } else { node.lose_power(seed) };
        let mut client = node.connect(Some(0));
        assert_eq!(committed(&mut node, &mut client), [2], "and a start");
    }
    // The records themselves are long gone: whoever goes on there is told so, and not moved elsewhere.
    let owner = u16::from(node.shards[1].shard.partitions.contains_key(&log(topic, 0)));
    let mut client = node.connect(Some(owner));
    let error = client.refused(&mut node, |c, out| subscribe_request(1, log(topic, 0), 2, 9).encode(c, out));
    assert_eq!((error.code, error.limit), (Ok(ErrorCode::OffsetOutOfRange), 3), "{error}");
}

#[test]
fn several_ends_after_another_lose_nothing() {
    everything_is_there_again(|node| node.lose_power(1).restart().lose_power(2).lose_power(3).restart());
}

#[test]
fn a_snapshot_of_an_internal_log_is_enough_to_start_from() {
    let limits = ShardLimits { snapshot_bytes_min: 3_000, ..ShardLimits::default() };
    for seed in 1..3 {
        let mut node = Node::with(1, limits, Storage::Durable);
        let mut client = node.connect(None);
        let topic = node.create(&mut client, "t", 1, &[]);
        for offset in 0..60 {
            commit(&mut node, &mut client, log(topic, 0), offset);
        }
        assert!(node.shards[0].shard.stats.snapshots > 1);
        let mut node = node.lose_power(seed);
        let mut client = node.connect(None);
        assert_eq!(committed(&mut node, &mut client), [59]);
        commit(&mut node, &mut client, log(topic, 0), 60);
        let mut node = node.restart();
        let mut client = node.connect(None);
        assert_eq!(committed(&mut node, &mut client), [60]);
    }
}

#[test]
fn a_failed_flush_is_told_as_unknown_and_the_shard_then_only_reads_until_it_is_started_again() {
    // The write of the cycle's frame, or its flush.
    for failing_call in 0..2 {
        let mut node = Node::new(1);
        let mut client = node.connect(None);
        let topic = node.create(&mut client, "t", 1, &[]);
        let producer = init(&mut node, &mut client);
        client.produce(&mut node, log(topic, 0), Acks::Leader, &batch_of(2, 10, origin(producer, 0)));
        node.settle();
        assert!(client.produced(&mut node).is_ok());
        node.pass(2_000);

        node.disk.fail_at(failing_call, 5);
        let uncertain = batch_of(2, 10, origin(producer, 2));
        client.produce(&mut node, log(topic, 0), Acks::Leader, &uncertain);
        node.settle();
        let error = client.produced(&mut node).expect_err("not acknowledged");
        assert_eq!((error.code, error.limit), (Ok(ErrorCode::UnknownOutcome), 2), "{error:?}");
        client.produce(&mut node, log(topic, 0), Acks::Leader, &batch_of(1, 10, origin(producer, 4)));
        node.settle();
        assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::ReadOnly));
        let error = client.refused(&mut node, |c, out| create_request("u", 1, &[]).encode(c, out));
        assert_eq!(error.code, Ok(ErrorCode::ReadOnly), "{error:?}");
        client.subscribe(&mut node, 1, log(topic, 0), 0, 1 << 20);
        assert_eq!(client.heard(&node), ["data 1 0..2", "caught_up 1 2"], "what is committed is served");

        let mut node = node.lose_power(7);
        let mut client = node.connect(None);
        client.produce(&mut node, log(topic, 0), Acks::Leader, &uncertain);
        node.settle();
        assert_eq!(
            client.produced(&mut node).map(|r| r.base_offset),
            Ok(Offset(2)),
            "stored once, then or now"
        );
    }
}

#[test]
fn a_trim_is_answered_once_it_is_flushed_a_repeated_one_too_and_as_unknown_if_the_drive_fails() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    for _ in 0..4 {
        client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    }
    node.settle();
    node.pass(2_000);
    client.heard(&node);
    let trim = |before| DeleteRecordsRequest { partition: log(topic, 0), before: Offset(before) };
    for before in [2, 1, 2] {
        client.frame(&mut node, |c, out| trim(before).encode(c, out));
    }
    node.turn(0);
    assert_eq!(client.heard(&node), [""; 0], "the start has moved, but is not flushed");
    node.settle();
    assert_eq!(client.heard(&node), ["DeleteRecords"; 3]);
    client.frame(&mut node, |c, out| trim(2).encode(c, out));
    node.turn(0);
    assert_eq!(client.heard(&node), ["DeleteRecords"], "flushed long ago");

    node.pass(2_000);
    node.disk.fail_at(0, 5);
    for before in [3, 3] {
        client.frame(&mut node, |c, out| trim(before).encode(c, out));
    }
    node.settle();
    node.pass(200);
    assert_eq!(client.heard(&node), ["Some(Ok(UnknownOutcome))"; 2]);
    let error = client.refused(&mut node, |c, out| trim(3).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::ReadOnly));
}

/// Where the frame with the record at `offset` of a log begins in a file of a ring.
fn frame_with(ring: &[u8], log: TopicPartition, offset: i64) -> usize {
    let holds = |at: &usize| {
        let Ok(frame) = disk::frame::Frame::decode_whole(&ring[*at..]) else { return false };
        frame.entries.iter().any(|(_, entry)| match entry {
            disk::entry::Entry::Extent { bytes, .. } => ExtentHeader::decode(bytes)
                .is_ok_and(|extent| (extent.log, extent.base) == (log, Offset(offset))),
            _ => false,
        })
    };
    (0..ring.len()).step_by(disk::BLOCK).find(holds).expect("the frame is there")
}

#[test]
fn a_damaged_shard_serves_what_it_knows_beside_the_others_and_refuses_the_rest() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(1));
    let topic = node.create(&mut client, "t", 2, &[]);
    let on = |shard| {
        (0..2).map(|p| log(topic, p)).find(|log| shard_of(*log, 2) == ShardId(shard)).expect("one each")
    };
    let (sound, harmed) = (on(0), on(1));
    for _ in 0..3 {
        client.produce(&mut node, harmed, Acks::Leader, &records(1));
        node.settle();
        assert!(client.produced(&mut node).is_ok());
    }
    node.pass(2_000);
    let ring = "data/journal/00000001-ring-00";
    let at = frame_with(node.disk.bytes_of(ring), harmed, 1);
    node.disk.flip(ring, at + 200);

    let mut node = node.lose_power(1);
    let mut client = node.connect(Some(1));
    client.subscribe(&mut node, 1, harmed, 0, 1 << 20);
    node.settle();
    assert_eq!(
        client.heard(&node),
        ["data 1 0..1", "Some(Ok(DataDamaged))"],
        "nobody waits for what is lost"
    );
    let beyond = |c, out: &mut Vec<u8>| subscribe_request(2, harmed, 3, 1 << 20).encode(c, out);
    let error = client.refused(&mut node, beyond);
    assert_eq!(error.code, Ok(ErrorCode::DataDamaged));
    assert!(error.cause.contains(ring) && error.cause.contains("frames"), "{error:?}");
    client.produce(&mut node, harmed, Acks::Leader, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).expect_err("no writes").code, Ok(ErrorCode::ReadOnly));
    let names = (0..).map(|n| format!("g{n}"));
    let group = names
        .into_iter()
        .find(|name| shard_of(offsets_partition(name), 2) == ShardId(1))
        .expect("half of them");
    let fetch = OffsetFetchRequest { group, partitions: Vec::new() };
    let error = client.refused(&mut node, |c, out| fetch.encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::DataDamaged), "newer offsets may be in what is lost");

    let mut client = node.connect(Some(0));
    client.produce(&mut node, sound, Acks::Leader, &records(1));
    node.settle();
    assert!(client.produced(&mut node).is_ok(), "the other shard is as it was");
}
