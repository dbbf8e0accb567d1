//! Producing to a real broker.

#![allow(clippy::unwrap_used, missing_docs)]

use std::time::Duration;

use tests::live::{CuttingProxy, LiveBroker};
use tidegate::{
    Acks, Client, Compression, ErrorCode, Header, Level, Offset, PartitionId, Record, Start, TopicSpec,
};

async fn client(address: impl ToString) -> Client {
    let builder = Client::builder().backoff(Duration::from_millis(1), Duration::from_millis(50));
    builder.connect(&address.to_string()).await.unwrap()
}

/// All values of a topic, by partition, in their order.
async fn values(client: &Client, topic: &str) -> Vec<Vec<String>> {
    let partitions = client.admin().describe_topic(topic).await.unwrap().partitions.len();
    let mut values = vec![Vec::new(); partitions];
    let mut consumer = client.consumer(topic).from(Start::Earliest).until_end().start().await.unwrap();
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.unwrap();
        for record in batch.records().unwrap() {
            let value = record.unwrap().value().unwrap().to_vec();
            values[batch.partition().0 as usize].push(String::from_utf8(value).unwrap());
        }
    }
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_records_have_dense_offsets_and_their_level() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    client.admin().create_topic(TopicSpec::new("dense").partitions(2)).await.unwrap();
    let producer = client.producer("dense").start().await.unwrap();
    let mut tickets = Vec::new();
    for number in 0..5_000 {
        let record = number.to_string();
        let record = Record::new(record.as_bytes()).partition(PartitionId(number % 2));
        tickets.push(producer.enqueue(record).await.unwrap());
    }
    for (number, ticket) in tickets.into_iter().enumerate() {
        let ack = ticket.await.unwrap();
        assert_eq!((ack.partition.0 as usize, ack.offset.0 as usize), (number % 2, number / 2));
        assert!(ack.level >= Level::Memory && ack.append_time_ms > 1_600_000_000_000);
    }
    producer.close().await.unwrap();
    let expected =
        |first: usize| (first..5_000).step_by(2).map(|number| number.to_string()).collect::<Vec<_>>();
    assert_eq!(values(&client, "dense").await, [expected(0), expected(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_none_one_and_all_store_alike() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    client.admin().create_topic(TopicSpec::new("levels")).await.unwrap();
    for (acks, text) in [(Acks::All, "all"), (Acks::Leader, "leader"), (Acks::None, "none")] {
        let producer = client.producer("levels").acks(acks).start().await.unwrap();
        let ack = producer.send(Record::new(text.as_bytes())).await.unwrap();
        assert_eq!(ack.level == Level::None, acks == Acks::None);
        producer.close().await.unwrap();
    }
    // The last one is not told: it is there soon.
    let from = Start::Offset(Offset(2));
    let mut consumer = client.consumer("levels").from(from).until_offset(Offset(3)).start().await.unwrap();
    assert_eq!(consumer.next_batch().await.unwrap().unwrap().first_offset(), Offset(2));
    assert_eq!(values(&client, "levels").await, [["all", "leader", "none"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_comes_back_as_it_was() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    for compression in [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4] {
        let topic = format!("packed-{compression:?}");
        client.admin().create_topic(TopicSpec::new(&topic)).await.unwrap();
        let producer = client.producer(&topic).compression(compression).start().await.unwrap();
        let headers = [Header { name: "unit", value: Some(b"ms") }];
        for number in 0..1_000 {
            let value = format!("{number} ").repeat(20);
            producer.enqueue(Record::keyed(b"key", value.as_bytes()).headers(&headers)).await.unwrap();
        }
        producer.close().await.unwrap();
        let mut consumer = client.consumer(&topic).from(Start::Earliest).until_end().start().await.unwrap();
        let (mut number, mut packed) = (0, false);
        while let Some(batch) = consumer.next_batch().await {
            let batch = batch.unwrap();
            packed |= batch.compression() == compression;
            for record in batch.records().unwrap() {
                let record = record.unwrap();
                assert_eq!(record.value(), Some(format!("{number} ").repeat(20).as_bytes()));
                assert_eq!((record.key(), record.offset()), (Some(&b"key"[..]), Offset(number)));
                assert_eq!(record.headers().collect::<Vec<_>>(), [("unit", Some(&b"ms"[..]))]);
                number += 1;
            }
        }
        assert_eq!((number, packed), (1_000, true), "{compression:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_lose_and_repeat_nothing() {
    let broker = LiveBroker::shared();
    let proxy = CuttingProxy::start(broker.address).await;
    let direct = client(broker.address).await;
    direct.admin().create_topic(TopicSpec::new("cut").partitions(3)).await.unwrap();
    let producer = client(proxy.address).await.producer("cut").batch_bytes(4096).start().await.unwrap();
    let mut tickets = Vec::new();
    for number in 0..30_000 {
        let (key, value) = ((number % 20).to_string(), number.to_string());
        tickets.push(producer.enqueue(Record::keyed(key.as_bytes(), value.as_bytes())).await.unwrap());
        if number % 1_000 == 999 {
            // In the middle of what is under way: a few batches of this round are, others are not acknowledged.
            tickets[number - 900..].first_mut().unwrap().await.unwrap();
            proxy.cut();
        }
    }
    let mut acked = Vec::new();
    for (number, ticket) in tickets.into_iter().enumerate() {
        let ack = ticket.await.unwrap();
        acked.push((ack.partition, ack.offset, number));
    }
    assert!(proxy.connections() > 20, "{}", proxy.connections());
    let stored = values(&direct, "cut").await;
    for (partition, offset, number) in acked {
        assert_eq!(stored[partition.0 as usize][offset.0 as usize], number.to_string());
    }
    for key in 0..20 {
        let of_key = stored.iter().flatten().map(|value| value.parse::<usize>().unwrap());
        assert!(of_key.filter(|number| number % 20 == key).is_sorted(), "in order");
    }
    let mut all: Vec<usize> = stored.iter().flatten().map(|value| value.parse().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..30_000).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_produces_are_refused_by_name() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    let error = client.producer("no-such-topic").start().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic));

    let spec = TopicSpec::new("small-batches").setting("batch.bytes.max", "2000");
    client.admin().create_topic(spec).await.unwrap();
    let producer = client.producer("small-batches").start().await.unwrap();
    let error = producer.send(Record::new(&[7; 5_000])).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BatchTooLarge), "{error}");
    assert_eq!(error.limit().map(|(_, limit, _)| limit), Some(2000), "{error:?}");
    producer.send(Record::new(&[7; 500])).await.expect("a smaller one is taken after it");
    let error = producer.enqueue(Record::new(b"").partition(PartitionId(1))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_to_a_deleted_topic_fail_by_name() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    client.admin().create_topic(TopicSpec::new("short-lived")).await.unwrap();
    let producer = client.producer("short-lived").start().await.unwrap();
    producer.send(Record::new(b"x")).await.unwrap();
    client.admin().delete_topic("short-lived").await.unwrap();
    let error = producer.send(Record::new(b"y")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_memory_and_many_records_go_through() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    client.admin().create_topic(TopicSpec::new("squeezed").partitions(4)).await.unwrap();
    let builder = client.producer("squeezed").memory_bytes(100_000).batch_bytes(8_192);
    let producer = builder.start().await.unwrap();
    for number in 0..20_000_u32 {
        producer.enqueue(Record::new(&number.to_le_bytes())).await.unwrap();
    }
    producer.flush().await.unwrap();
    let stats = producer.stats();
    assert_eq!((stats.records_acked, stats.memory_used), (20_000, 0));
    let ends = client.admin().list_offsets("squeezed", tidegate::OffsetQuery::Latest).await.unwrap();
    assert_eq!(ends.iter().map(|(_, end)| end.offset.0).sum::<i64>(), 20_000);
}
