//! Topics, offsets and status of a real broker.

#![allow(clippy::unwrap_used, missing_docs)]

use tests::live::{CuttingProxy, LiveBroker};
use tidegate::{Client, ErrorCode, Offset, OffsetQuery, PartitionId, Record, TopicChange, TopicSpec};

async fn client(address: impl ToString) -> Client {
    Client::connect(&address.to_string()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_created_described_altered_listed_and_deleted() {
    let broker = LiveBroker::shared();
    let admin = client(broker.address).await.admin();
    let spec = TopicSpec::new("life").partitions(3).setting("retention.ms", "60000");
    let id = admin.create_topic(spec).await.unwrap();
    let described = admin.describe_topic("life").await.unwrap();
    assert_eq!((described.topic, described.partitions.len(), described.replication), (id, 3, 1));
    assert!(described.settings.iter().any(|set| set.name == "retention.ms" && set.value == "60000"));
    assert!(described.created_ms > 1_600_000_000_000);

    let change = TopicChange::new("life").partitions(5).setting("retention.ms", "");
    admin.alter_topic(change).await.unwrap();
    let described = admin.describe_topic("life").await.unwrap();
    assert_eq!(described.partitions.len(), 5);
    assert!(!described.settings.iter().any(|set| set.name == "retention.ms" && set.value == "60000"));
    assert!(admin.list_topics().await.unwrap().iter().any(|topic| topic.name == "life" && topic.topic == id));
    assert!(admin.describe_topics().await.unwrap().iter().all(|topic| !topic.topic.is_internal()));

    admin.delete_topic("life").await.unwrap();
    assert_eq!(admin.describe_topic("life").await.unwrap_err().code(), Some(ErrorCode::UnknownTopic));
    assert_eq!(admin.delete_topic("life").await.unwrap_err().code(), Some(ErrorCode::UnknownTopic));
    let again = admin.create_topic(TopicSpec::new("life")).await.unwrap();
    assert_ne!(again, id, "an identity is never used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_topics_are_refused_with_what_is_wrong() {
    let broker = LiveBroker::shared();
    let admin = client(broker.address).await.admin();
    admin.create_topic(TopicSpec::new("taken")).await.unwrap();
    let long = "x".repeat(250);
    let cases = [
        (TopicSpec::new("taken"), ErrorCode::TopicExists),
        (TopicSpec::new(""), ErrorCode::InvalidTopic),
        (TopicSpec::new("no spaces"), ErrorCode::InvalidTopic),
        (TopicSpec::new(&long), ErrorCode::InvalidTopic),
        (TopicSpec::new("none").partitions(0), ErrorCode::InvalidTopic),
        (TopicSpec::new("three").replication(3), ErrorCode::InvalidTopic),
        (TopicSpec::new("typo").setting("retention.msec", "1"), ErrorCode::InvalidTopic),
        (TopicSpec::new("value").setting("retention.ms", "soon"), ErrorCode::InvalidTopic),
    ];
    for (spec, code) in cases {
        let error = admin.create_topic(spec.clone()).await.expect_err("refused");
        assert_eq!(error.code(), Some(code), "{spec:?}: {error}");
        assert!(!error.is_retriable() && !error.cause().is_empty(), "{error:?}");
    }
    let change = TopicChange::new("taken").setting("durability", "hopeful");
    assert_eq!(admin.alter_topic(change).await.unwrap_err().code(), Some(ErrorCode::InvalidTopic));
    let change = TopicChange::new("nowhere").partitions(2);
    assert_eq!(admin.alter_topic(change).await.unwrap_err().code(), Some(ErrorCode::UnknownTopic));
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_listed_committed_and_fetched() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    let admin = client.admin();
    admin.create_topic(TopicSpec::new("offsets").partitions(2)).await.unwrap();
    let producer = client.producer("offsets").start().await.unwrap();
    for number in 0..10 {
        producer.send(Record::new(b"x").partition(PartitionId(1)).timestamp_ms(100 + number)).await.unwrap();
    }
    let ends = admin.list_offsets("offsets", OffsetQuery::Latest).await.unwrap();
    assert_eq!(ends.iter().map(|(_, end)| end.offset.0).collect::<Vec<_>>(), [0, 10]);
    let found = admin.list_offset("offsets", PartitionId(1), OffsetQuery::RecordTime(104)).await.unwrap();
    assert_eq!((found.offset, found.timestamp_ms), (Offset(4), 104));
    let found = admin.list_offset("offsets", PartitionId(1), OffsetQuery::RecordTime(1_000)).await.unwrap();
    assert_eq!(found.offset, Offset(10));
    let error = admin.list_offset("offsets", PartitionId(2), OffsetQuery::Latest).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));

    let stored = [(PartitionId(1), Offset(7)), (PartitionId(0), Offset(0))];
    admin.commit_offsets("reader", "offsets", &stored).await.unwrap();
    let mut fetched = admin.fetch_offsets("reader", "offsets").await.unwrap();
    fetched.sort_by_key(|stored| stored.partition);
    assert_eq!(fetched.iter().map(|stored| stored.offset.0).collect::<Vec<_>>(), [0, 7]);
    let error = admin.commit_offsets("reader", "offsets", &[(PartitionId(9), Offset(0))]).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_trimmed_below_an_offset_and_not_beyond_the_end() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    let admin = client.admin();
    admin.create_topic(TopicSpec::new("trim")).await.unwrap();
    let producer = client.producer("trim").start().await.unwrap();
    for _ in 0..10 {
        producer.send(Record::new(b"x")).await.unwrap();
    }
    assert_eq!(admin.delete_records("trim", PartitionId(0), Offset(4)).await.unwrap(), Offset(4));
    assert_eq!(admin.delete_records("trim", PartitionId(0), Offset(2)).await.unwrap(), Offset(4));
    let found = admin.list_offset("trim", PartitionId(0), OffsetQuery::Earliest).await.unwrap();
    assert_eq!(found.offset, Offset(4));
    let error = admin.delete_records("trim", PartitionId(0), Offset(11)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_metadata_tell_what_the_broker_is() {
    let broker = LiveBroker::shared();
    let admin = client(broker.address).await.admin();
    let status = admin.status().await.unwrap();
    assert_eq!(status.shards.len(), 2);
    assert!(status.facts.iter().any(|(name, _)| name == "version"), "{:?}", status.facts);
    // Of stages only what is not zero is there.
    let names = |shard: &Vec<(String, i64)>| {
        let names = shard.iter().map(|(name, _)| name.clone());
        names.filter(|name| !name.starts_with("stage_")).collect::<Vec<_>>()
    };
    assert_eq!(names(&status.shards[0]), names(&status.shards[1]));
    let metadata = admin.metadata().await.unwrap();
    assert_eq!((metadata.nodes.len(), metadata.nodes[0].shards.len()), (1, 2));
    admin.ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_survive_cut_connections() {
    let broker = LiveBroker::shared();
    let proxy = CuttingProxy::start(broker.address).await;
    let admin = client(proxy.address).await.admin();
    admin.create_topic(TopicSpec::new("survivor")).await.unwrap();
    for _ in 0..20 {
        proxy.cut();
        assert_eq!(admin.describe_topic("survivor").await.unwrap().name, "survivor");
    }
}
