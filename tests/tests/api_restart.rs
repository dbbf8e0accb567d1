//! What a restart of a real broker means for its clients: nothing but a pause.

#![allow(clippy::unwrap_used, missing_docs)]

use tests::live::LiveBroker;
use tidegate::{Client, Offset, PartitionId, Record, Start, TopicSpec};

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
