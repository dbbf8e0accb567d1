//! Topics, producer ids, offsets and counters, whichever shard is asked.

use tidegate_logic::placement::offsets_partition;
use tidegate_logic::topics::SETTING_NAMES;
use tidegate_protocol::api::topic::{PartitionDescription, TopicDescription};
use tidegate_protocol::internal::{MetadataRecord, TopicRecord};

use super::super::limits::topic_bytes;
use super::super::orders::METADATA;
use super::*;

#[test]
fn topics_are_created_described_altered_and_deleted_from_any_shard() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(1));
    let topic = node.create(&mut client, "t", 2, &[("retention.ms", "5000")]);
    let error = client.refused(&mut node, |c, out| create_request("t", 1, &[]).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::TopicExists));
    let error = client.refused(&mut node, |c, out| create_request("u", 0, &[("x", "y")]).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::InvalidTopic));
    let settings = vec![Setting { name: "durability".to_owned(), value: "relaxed".to_owned() }];
    let alter = AlterTopicRequest { name: "t".to_owned(), partitions: 4, settings };
    client.ask(
        &mut node,
        Api::AlterTopic,
        |c, out| alter.encode(c, out),
        |f| Done::decode(f, Api::AlterTopic),
    );
    let describe = DescribeTopicRequest { names: Vec::new(), after: String::new() };
    let reply: DescribeTopicReply = client.ask(
        &mut node,
        Api::DescribeTopic,
        |c, out| describe.encode(c, out),
        DescribeTopicReply::decode,
    );
    assert_eq!(reply.topics.len(), 1);
    let described = &reply.topics[0];
    let partitions: Vec<i32> = described.partitions.iter().map(|p| p.partition.0).collect();
    assert_eq!((described.topic, partitions), (topic, vec![0, 1, 2, 3]));
    let value = |name: &str| described.settings.iter().find(|s| s.name == name).map(|s| s.value.as_str());
    assert_eq!((value("retention.ms"), value("durability")), (Some("5000"), Some("relaxed")));
    let delete = DeleteTopicRequest { name: "t".to_owned() };
    client.ask(
        &mut node,
        Api::DeleteTopic,
        |c, out| delete.encode(c, out),
        |f| Done::decode(f, Api::DeleteTopic),
    );
    assert!(node.shards.iter().all(|core| core.shard.partitions.is_empty()));
    let error = client.refused(&mut node, |c, out| delete.encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::UnknownTopic));
    assert_ne!(node.create(&mut client, "t", 1, &[]), topic, "an identity is never used again");
}

#[test]
fn stored_offsets_come_back_on_every_shard_and_unknown_partitions_are_refused_one_by_one() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    for name in ["a", "billing", "telemetry-eu"] {
        let stored = |partition, offset| StoredOffset {
            partition: log(topic, partition),
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(3),
            metadata: "note".to_owned(),
        };
        let commit = OffsetCommitRequest {
            group: name.to_owned(),
            generation: -1,
            member: String::new(),
            offsets: vec![stored(0, 5), stored(9, 1), stored(1, -3), stored(1, 7)],
        };
        let reply: OffsetCommitReply = client.ask(
            &mut node,
            Api::OffsetCommit,
            |c, out| commit.encode(c, out),
            OffsetCommitReply::decode,
        );
        let expected = [None, Some(ErrorCode::UnknownPartition), Some(ErrorCode::InvalidRequest), None];
        assert_eq!(reply.results, expected);
        let mut other = node.connect(Some(1));
        let fetch = OffsetFetchRequest { group: name.to_owned(), partitions: Vec::new() };
        let reply: OffsetFetchReply =
            other.ask(&mut node, Api::OffsetFetch, |c, out| fetch.encode(c, out), OffsetFetchReply::decode);
        assert_eq!(reply.offsets, [stored(0, 5), stored(1, 7)]);
    }
}

#[test]
fn offsets_are_listed_and_records_trimmed_from_any_shard() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    for partition in 0..2 {
        let log = log(topic, partition);
        let owner = u16::from(node.shards[1].shard.partitions.contains_key(&log));
        let mut producer = node.connect(Some(owner));
        for _ in 0..3 {
            producer.produce(&mut node, log, Acks::None, &records(2));
        }
        node.settle();
        let mut list = |node: &mut Node, query| {
            let request = ListOffsetsRequest { partition: log, query };
            let reply: ListOffsetsReply =
                client.ask(node, Api::ListOffsets, |c, out| request.encode(c, out), ListOffsetsReply::decode);
            reply.offset
        };
        assert_eq!(list(&mut node, OffsetQuery::Earliest), Offset(0));
        assert_eq!(list(&mut node, OffsetQuery::Latest), Offset(6));
        assert_eq!(list(&mut node, OffsetQuery::AppendTime(0)), Offset(0));
        assert_eq!(list(&mut node, OffsetQuery::AppendTime(i64::MAX)), Offset(6));
        let trim = DeleteRecordsRequest { partition: log, before: Offset(2) };
        let reply: DeleteRecordsReply = client.ask(
            &mut node,
            Api::DeleteRecords,
            |c, out| trim.encode(c, out),
            DeleteRecordsReply::decode,
        );
        assert_eq!(reply.start, Offset(2));
        let beyond = DeleteRecordsRequest { partition: log, before: Offset(7) };
        let error = client.refused(&mut node, |c, out| beyond.encode(c, out));
        assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::OffsetOutOfRange), 2, 6));
    }
}

#[test]
fn producer_ids_are_leased_in_ranges_and_epochs_rise() {
    let limits = ShardLimits { producer_ids_lease: 2, ..ShardLimits::default() };
    let mut node = Node::with(2, limits, Storage::Durable);
    let mut client = node.connect(Some(1));
    let mut init = |node: &mut Node, producer| {
        let request = ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer };
        let reply: ProducerInitReply =
            client.ask(node, Api::ProducerInit, |c, out| request.encode(c, out), ProducerInitReply::decode);
        (reply.producer_id.0, reply.producer_epoch.0)
    };
    let given: Vec<(i64, i16)> = (0..5).map(|_| init(&mut node, None)).collect();
    assert_eq!(given, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(init(&mut node, Some((ProducerId(3), ProducerEpoch(6)))), (3, 7));
    assert_eq!(init(&mut node, Some((ProducerId(3), ProducerEpoch(i16::MAX)))), (5, 0));
}

#[test]
fn status_has_the_same_counters_of_every_shard() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(1));
    let reply: StatusReply =
        client.ask(&mut node, Api::Status, |c, out| StatusRequest.encode(c, out), StatusReply::decode);
    assert_eq!(reply.facts, [("version".to_owned(), "test".to_owned())]);
    let names = |shard: usize| {
        let names = reply.shards[shard].iter().map(|(name, _)| name.clone());
        names.filter(|name| !name.starts_with("stage_")).collect::<Vec<_>>()
    };
    assert_eq!(names(0), names(1));
    assert!(names(0).contains(&"acks".to_owned()));
}

#[test]
fn every_produce_that_a_flush_answers_is_in_the_times_of_each_stage_once() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    let relaxed = node.create(&mut client, "relaxed", 1, &[("durability", "relaxed")]);
    for acks in [Acks::Leader, Acks::All, Acks::None] {
        client.produce(&mut node, log(durable, 0), acks, &records(1));
        client.produce(&mut node, log(relaxed, 0), acks, &records(1));
    }
    node.settle();
    for _ in 0..4 {
        client.produced(&mut node).expect("accepted");
    }
    let reply: StatusReply =
        client.ask(&mut node, Api::Status, |c, out| StatusRequest.encode(c, out), StatusReply::decode);
    for stage in ["stage_queue_us_", "stage_write_us_", "stage_flush_us_"] {
        let times = reply.shards[0].iter().filter(|(name, _)| name.starts_with(stage));
        assert_eq!(times.map(|(_, count)| count).sum::<i64>(), 2, "{stage}");
    }
}

#[test]
fn an_internal_log_that_has_grown_far_beyond_what_is_alive_is_cut_to_a_snapshot() {
    let limits = ShardLimits { snapshot_bytes_min: 5_000, ..ShardLimits::default() };
    let mut node = Node::with(1, limits, Storage::Durable);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    for round in 0..200 {
        let setting = Setting { name: "retention.ms".to_owned(), value: (round + 1).to_string() };
        let alter = AlterTopicRequest { name: "t".to_owned(), partitions: 0, settings: vec![setting] };
        client.ask(
            &mut node,
            Api::AlterTopic,
            |c, out| alter.encode(c, out),
            |f| Done::decode(f, Api::AlterTopic),
        );
        let commit = OffsetCommitRequest {
            group: "g".to_owned(),
            generation: -1,
            member: String::new(),
            offsets: vec![StoredOffset {
                partition: log(topic, 0),
                offset: Offset(round),
                leader_epoch: LeaderEpoch::UNKNOWN,
                metadata: String::new(),
            }],
        };
        let reply: OffsetCommitReply = client.ask(
            &mut node,
            Api::OffsetCommit,
            |c, out| commit.encode(c, out),
            OffsetCommitReply::decode,
        );
        assert_eq!(reply.results, [None]);
    }
    let shard = &node.shards[0].shard;
    for internal in [METADATA, offsets_partition("g")] {
        assert!(shard.logs.bytes(internal) < 12_000, "{} bytes are left", shard.logs.bytes(internal));
        assert!(shard.logs.positions(internal).is_some_and(|p| p.start > Offset(100)));
    }
    assert!((2..40).contains(&shard.stats.snapshots), "{} snapshots", shard.stats.snapshots);
    assert_eq!(shard.stats.snapshot_trims_refused, 0);
}

#[test]
fn topics_of_any_number_are_told_in_replies_that_fit_a_frame() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let limits = node.shards[0].shard.limits;
    // The table alone: as many partitions as there may be, in topics of every size.
    let per_topic = limits.topics.partitions_per_topic_max as i32;
    let mut partitions = 0;
    for number in 0..200_u8 {
        let of_this = if number % 20 == 0 { per_topic } else { 1 };
        partitions += of_this;
        let record = TopicRecord {
            topic: TopicId([if number == 0 { 255 } else { number }; 16]),
            name: format!("{number:03}{}", "n".repeat(246)),
            partitions: of_this,
            replication: 1,
            created_ms: 1,
            settings: Vec::new(),
        };
        node.shards[0].shard.topics.apply(&MetadataRecord::Topic(record));
    }
    assert_eq!(partitions as usize, limits.topics.partitions_max + 190);
    let mut told: Vec<(String, usize)> = Vec::new();
    loop {
        let after = told.last().map_or(String::new(), |(name, _)| name.clone());
        let request = MetadataRequest { after, ..MetadataRequest::all() };
        let reply: MetadataReply =
            client.ask(&mut node, Api::Metadata, |c, out| request.encode(c, out), MetadataReply::decode);
        told.extend(reply.topics.iter().map(|topic| (topic.name.clone(), topic.partitions.len())));
        let mut frame = Vec::new();
        reply.encode(0, &mut frame);
        assert!(frame.len() <= limits.frame_bytes_max as usize, "{}", frame.len());
        if !reply.more {
            break;
        }
    }
    assert!(told.is_sorted() && told.len() == 200);
    assert_eq!(told.iter().map(|(_, count)| *count).sum::<usize>(), partitions as usize);
    // Who names topics gets those and no others, page after page.
    let names = vec![told[0].0.clone(), told[20].0.clone(), told[7].0.clone(), "none".to_owned()];
    let request = MetadataRequest { after: told[0].0.clone(), ..MetadataRequest::named(names) };
    let reply: MetadataReply =
        client.ask(&mut node, Api::Metadata, |c, out| request.encode(c, out), MetadataReply::decode);
    let named: Vec<&str> = reply.topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(named, [told[7].0.as_str(), told[20].0.as_str()]);
}

#[test]
fn a_topic_takes_no_more_of_a_reply_than_is_reckoned() {
    let partition = PartitionDescription {
        partition: PartitionId(i32::MAX),
        shard: ShardId(u16::MAX),
        start: Offset(i64::MAX),
        committed: Offset(i64::MAX),
        appended: Offset(i64::MAX),
        bytes: i64::MAX,
        damaged_ranges: u32::MAX,
        damaged_from: Offset(i64::MAX),
        damaged_upto: Offset(i64::MAX),
    };
    let settings = SETTING_NAMES.map(|name| Setting { name: name.to_owned(), value: i64::MAX.to_string() });
    for count in [1, 1000] {
        let topic = TopicDescription {
            name: "n".repeat(249),
            topic: TopicId([255; 16]),
            replication: i16::MAX,
            created_ms: i64::MAX,
            settings: settings.to_vec(),
            partitions: vec![partition; count],
        };
        let reply = DescribeTopicReply { topics: vec![topic], more: true };
        let mut frame = Vec::new();
        reply.encode(0, &mut frame);
        assert!(frame.len() <= topic_bytes(count), "{} bytes of {count} partitions", frame.len());
    }
}
