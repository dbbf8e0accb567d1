//! Consuming from a real broker.

#![allow(clippy::unwrap_used, missing_docs)]

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tests::live::{CuttingProxy, LiveBroker};
use tidegate::{
    Client, Consumer, ErrorCode, Event, Offset, OffsetQuery, OutOfRange, PartitionId, Record, Start,
    TopicSpec,
};

async fn client(address: impl ToString) -> Client {
    let builder = Client::builder().backoff(Duration::from_millis(1), Duration::from_millis(50));
    builder.connect(&address.to_string()).await.unwrap()
}

/// Puts numbers into partition 0 of a topic, in batches of 10; the timestamp is 1000 + number.
async fn fill(client: &Client, topic: &str, range: Range<i64>) {
    let producer = client.producer(topic).start().await.unwrap();
    let numbers: Vec<_> = range.collect();
    for part in numbers.chunks(10) {
        for number in part {
            let value = number.to_string();
            let record = Record::new(value.as_bytes()).partition(PartitionId(0)).timestamp_ms(1000 + number);
            producer.enqueue(record).await.unwrap();
        }
        producer.flush().await.unwrap();
    }
}

async fn filled(client: &Client, topic: &str, range: Range<i64>) {
    client.admin().create_topic(TopicSpec::new(topic)).await.unwrap();
    fill(client, topic, range).await;
}

/// All numbers up to the end that was asked for; their offsets are dense.
async fn numbers(consumer: &mut Consumer) -> Vec<i64> {
    let mut numbers = Vec::new();
    let mut next = None;
    while let Some(batch) = consumer.next_batch().await {
        for record in batch.unwrap().records().unwrap() {
            let record = record.unwrap();
            assert!(next.is_none_or(|next| next == record.offset()), "{next:?} {}", record.offset());
            next = Some(record.offset().plus(1));
            numbers.push(std::str::from_utf8(record.value().unwrap()).unwrap().parse().unwrap());
        }
    }
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_begins_where_it_is_told() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    filled(&client, "starts", 0..95).await;
    let cases = [
        (Start::Earliest, 0),
        (Start::Offset(Offset(0)), 0),
        (Start::Offset(Offset(37)), 37),
        (Start::Offset(Offset(94)), 94),
        (Start::Offset(Offset(95)), 95),
        (Start::Latest, 95),
        (Start::RecordTime(0), 0),
        (Start::RecordTime(1042), 42),
        (Start::RecordTime(2000), 95),
        (Start::AppendTime(0), 0),
    ];
    for (start, first) in cases {
        let mut consumer = client.consumer("starts").from(start).until_end().start().await.unwrap();
        assert_eq!(numbers(&mut consumer).await, (first..95).collect::<Vec<_>>(), "{start:?}");
    }
    let later = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64 + 3_600_000;
    let mut consumer =
        client.consumer("starts").from(Start::AppendTime(later)).until_end().start().await.unwrap();
    assert_eq!(numbers(&mut consumer).await, Vec::<i64>::new());
    let mut consumer =
        client.consumer("starts").from(Start::Earliest).until_offset(Offset(33)).start().await.unwrap();
    assert_eq!(numbers(&mut consumer).await, (0..33).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_records_arrive_and_the_end_is_told_each_time() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    filled(&client, "tail", 0..10).await;
    let mut consumer = client.consumer("tail").from(Start::Earliest).start().await.unwrap();
    for round in 1..20 {
        let mut next = Offset((round - 1) * 10);
        loop {
            match consumer.next_event().await.unwrap().unwrap() {
                Event::Batch(batch) => {
                    assert_eq!(batch.first_offset(), next);
                    next = batch.end_offset();
                }
                // It may be told in the middle of what is being produced, too.
                Event::CaughtUp(position) if position.position == Offset(round * 10) => break,
                Event::CaughtUp(position) => assert_eq!(position.position, next),
                event => panic!("{event:?}"),
            }
        }
        assert_eq!((next, consumer.lag()), (Offset(round * 10), 0));
        fill(&client, "tail", round * 10..round * 10 + 10).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_leave_no_gap_and_no_repetition() {
    let broker = LiveBroker::shared();
    let proxy = CuttingProxy::start(broker.address).await;
    let direct = client(broker.address).await;
    direct.admin().create_topic(TopicSpec::new("cut").partitions(2)).await.unwrap();
    let producing = tokio::spawn({
        let direct = direct.clone();
        async move {
            let producer = direct.producer("cut").batch_bytes(2048).start().await.unwrap();
            for number in 0..20_000_i64 {
                let partition = PartitionId((number % 2) as i32);
                producer.enqueue(Record::new(&number.to_le_bytes()).partition(partition)).await.unwrap();
                if number % 100 == 0 {
                    producer.flush().await.unwrap();
                }
            }
            producer.close().await.unwrap();
        }
    });
    let consumer =
        client(proxy.address).await.consumer("cut").from(Start::Earliest).until_offset(Offset(10_000));
    let mut consumer = consumer.prefetch_bytes(1).start().await.unwrap();
    let mut next = [0_i64; 2];
    let mut batches = 0;
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.unwrap();
        let partition = batch.partition().0 as usize;
        for record in batch.records().unwrap() {
            let record = record.unwrap();
            assert_eq!(record.offset(), Offset(next[partition]));
            let value = next[partition] * 2 + partition as i64;
            assert_eq!(record.value(), Some(&value.to_le_bytes()[..]));
            next[partition] += 1;
        }
        batches += 1;
        if batches % 20 == 0 {
            proxy.cut();
        }
    }
    assert_eq!(next, [10_000; 2]);
    assert!(proxy.connections() > 5, "{}", proxy.connections());
    producing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_application_gets_everything_within_its_prefetch() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    client.admin().create_topic(TopicSpec::new("slow")).await.unwrap();
    let producer = client.producer("slow").batch_bytes(16 * 1024).start().await.unwrap();
    for number in 0..5_000_u32 {
        producer.enqueue(Record::new(&[number as u8; 1000])).await.unwrap();
    }
    producer.close().await.unwrap();
    let builder = client.consumer("slow").from(Start::Earliest).until_end().prefetch_bytes(64 * 1024);
    let mut consumer = builder.start().await.unwrap();
    let mut next = 0_u32;
    while let Some(batch) = consumer.next_batch().await {
        for record in batch.unwrap().records().unwrap() {
            assert_eq!(record.unwrap().value(), Some(&[next as u8; 1000][..]));
            next += 1;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(next, 5_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn trimmed_records_are_gone_and_that_is_told() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    filled(&client, "trimmed", 0..100).await;
    let start = client.admin().delete_records("trimmed", PartitionId(0), Offset(55)).await.unwrap();
    assert_eq!(start, Offset(55));
    let builder = client.consumer("trimmed").from(Start::Offset(Offset(10))).until_end();
    let error = builder.clone().start().await.unwrap().next_batch().await.unwrap().expect_err("gone");
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
    let mut consumer = builder.clone().out_of_range(OutOfRange::Earliest).start().await.unwrap();
    let event = consumer.next_event().await.unwrap().unwrap();
    assert!(matches!(event, Event::Skipped { from: Offset(10), to: Offset(55), .. }), "{event:?}");
    assert_eq!(numbers(&mut consumer).await, (55..100).collect::<Vec<_>>());
    let mut consumer = client.consumer("trimmed").from(Start::Earliest).until_end().start().await.unwrap();
    assert_eq!(numbers(&mut consumer).await, (55..100).collect::<Vec<_>>());
    let mut consumer = client.consumer("trimmed").from(Start::Offset(Offset(101))).start().await.unwrap();
    let error = consumer.next_batch().await.unwrap().expect_err("not there yet");
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_consumer_goes_on_where_it_committed() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    filled(&client, "named", 0..40).await;
    let builder = client.consumer("named").name("reader").until_end();
    let mut consumer = builder.clone().start().await.unwrap();
    let first = consumer.next_batch().await.unwrap().unwrap();
    assert_eq!(first.first_offset(), Offset(0));
    consumer.commit().await.unwrap();
    let mut consumer = builder.clone().start().await.unwrap();
    assert_eq!(numbers(&mut consumer).await, (first.end_offset().0..40).collect::<Vec<_>>());
    consumer.commit().await.unwrap();
    let mut consumer = builder.start().await.unwrap();
    assert_eq!(numbers(&mut consumer).await, Vec::<i64>::new());
    let stored = client.admin().fetch_offsets("reader", "named").await.unwrap();
    assert_eq!((stored.len(), stored[0].offset), (1, Offset(40)));
    assert_eq!(client.admin().fetch_offsets("somebody else", "named").await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_topic_ends_its_consumers_by_name() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    filled(&client, "deleted", 0..10).await;
    let mut consumer = client.consumer("deleted").from(Start::Offset(Offset(10))).start().await.unwrap();
    let event = consumer.next_event().await.unwrap().unwrap();
    assert!(matches!(event, Event::CaughtUp(_)), "{event:?}");
    client.admin().delete_topic("deleted").await.unwrap();
    let error = consumer.next_batch().await.unwrap().expect_err("gone");
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_partitions_are_read_to_their_end() {
    let broker = LiveBroker::shared();
    let client = client(broker.address).await;
    client.admin().create_topic(TopicSpec::new("wide").partitions(100)).await.unwrap();
    let producer = client.producer("wide").start().await.unwrap();
    for number in 0..5_000_i32 {
        let record = number.to_le_bytes();
        producer.enqueue(Record::new(&record).partition(PartitionId(number % 100))).await.unwrap();
    }
    producer.close().await.unwrap();
    let mut consumer = client.consumer("wide").from(Start::Earliest).until_end().start().await.unwrap();
    let mut counts = [0; 100];
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.unwrap();
        counts[batch.partition().0 as usize] += batch.record_count();
    }
    assert_eq!(counts, [50; 100]);
    let ends = client.admin().list_offsets("wide", OffsetQuery::Latest).await.unwrap();
    assert!(ends.iter().all(|(_, end)| end.offset == Offset(50)));
}
