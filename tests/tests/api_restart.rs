//! What a restart of a real broker means for its clients: nothing but a pause.

#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use tests::live::LiveBroker;
use tidegate::{Client, Offset, OffsetQuery, PartitionId, Record, Start, TopicSpec};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_topics_records_producers_and_stored_offsets() {
    let broker = LiveBroker::start();
    let client = Client::connect(&broker.address.to_string()).await.unwrap();
    let admin = client.admin();
    let id = admin.create_topic(TopicSpec::new("kept").partitions(2)).await.unwrap();
    let producer = client.producer("kept").start().await.unwrap();
    let mut consumer = client.consumer("kept").name("reader").from(Start::Earliest).start().await.unwrap();
    let mut sent = 0;
    for round in 0..3 {
        for _ in 0..100 {
            let value = sent.to_string();
            producer.enqueue(Record::new(value.as_bytes()).partition(PartitionId(1))).await.unwrap();
            sent += 1;
        }
        producer.flush().await.unwrap();
        while consumer.positions()[1].position < Offset(sent) {
            consumer.next_batch().await.unwrap().unwrap();
        }
        consumer.commit().await.unwrap();
        if round < 2 {
            broker.restart();
        }
        let stored = admin.fetch_offsets("reader", "kept").await.unwrap();
        assert!(stored.iter().any(|stored| stored.offset == Offset(sent)), "{stored:?}");
        assert_eq!(admin.describe_topic("kept").await.unwrap().topic, id);
    }
    let mut reader = client.consumer("kept").from(Start::Earliest).until_end().start().await.unwrap();
    let mut next = 0;
    while let Some(batch) = reader.next_batch().await {
        for record in batch.unwrap().records().unwrap() {
            assert_eq!(record.unwrap().value(), Some(next.to_string().as_bytes()));
            next += 1;
        }
    }
    assert_eq!(next, sent);
    assert_eq!(producer.stats().records_lost, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_and_consumers_go_on_through_restarts_without_loss_or_repetition() {
    let broker = Arc::new(LiveBroker::start());
    let client = Client::connect(&broker.address.to_string()).await.unwrap();
    client.admin().create_topic(TopicSpec::new("through").partitions(3)).await.unwrap();
    let (rounds, each) = (5, 4_000_i64);
    let count = rounds * each;
    let (now, restart) = std::sync::mpsc::channel();
    let producing = tokio::spawn({
        let client = client.clone();
        async move {
            let producer = client.producer("through").batch_bytes(4096).start().await.unwrap();
            for number in 0..count {
                let value = number.to_string();
                let record = Record::new(value.as_bytes()).partition(PartitionId((number % 3) as i32));
                let ticket = producer.enqueue(record).await.unwrap();
                if number % each == each / 2 {
                    // Something is stored before the restart, and more is under way in the middle of it.
                    ticket.await.unwrap();
                    now.send(()).unwrap();
                }
            }
            producer.flush().await.unwrap();
            producer.stats()
        }
    });
    let restarting = tokio::task::spawn_blocking({
        let broker = broker.clone();
        move || restart.iter().for_each(|()| broker.restart())
    });
    let builder = client.consumer("through").partitions(&[0, 1, 2].map(PartitionId)).from(Start::Earliest);
    let mut consumer = builder.start().await.unwrap();
    let mut next = [0, 1, 2];
    while next.iter().any(|&next| next < count) {
        let batch = consumer.next_batch().await.unwrap().unwrap();
        let next = &mut next[batch.partition().0 as usize];
        for record in batch.records().unwrap() {
            assert_eq!(record.unwrap().value(), Some(next.to_string().as_bytes()));
            *next += 3;
        }
    }
    restarting.await.unwrap();
    let stats = producing.await.unwrap();
    assert_eq!((stats.records_failed, stats.records_lost), (0, 0));
    assert!(stats.reconnects > 0, "{stats:?}");
    let ends = client.admin().list_offsets("through", OffsetQuery::Latest).await.unwrap();
    let total: i64 = ends.iter().map(|(_, end)| end.offset.0).sum();
    assert_eq!(total as u64, stats.records_acked);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_number_of_shards_keeps_topics_records_and_stored_offsets() {
    let broker = LiveBroker::start();
    let client = Client::connect(&broker.address.to_string()).await.unwrap();
    let admin = client.admin();
    admin.create_topic(TopicSpec::new("moved").partitions(5)).await.unwrap();
    let mut sent = 0;
    for shards in [3, 1] {
        let producer = client.producer("moved").start().await.unwrap();
        for _ in 0..500 {
            let value = format!("{sent:0200}");
            let to = PartitionId(sent % 5);
            producer.enqueue(Record::new(value.as_bytes()).partition(to)).await.unwrap();
            sent += 1;
        }
        producer.close().await.unwrap();
        admin.commit_offsets("reader", "moved", &[(PartitionId(1), Offset(i64::from(sent)))]).await.unwrap();
        broker.restart_with(shards);
        let stored = admin.fetch_offsets("reader", "moved").await.unwrap();
        assert!(stored.iter().any(|stored| stored.offset == Offset(i64::from(sent))), "{stored:?}");
        let mut reader = client.consumer("moved").from(Start::Earliest).until_end().start().await.unwrap();
        let mut found = Vec::new();
        while let Some(batch) = reader.next_batch().await {
            for record in batch.unwrap().records().unwrap() {
                let value = String::from_utf8(record.unwrap().value().unwrap().to_vec()).unwrap();
                found.push(value.parse::<i32>().unwrap());
            }
        }
        found.sort();
        assert_eq!(found, (0..sent).collect::<Vec<_>>(), "with {shards} shards");
    }
}
