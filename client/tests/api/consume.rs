//! Consuming from every start, through cuts, damage and refusals, within the granted bytes.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use tidegate::{
    Client, Compression, Consumer, ErrorCode, ErrorKind, Event, Offset, OutOfRange, PartitionId, Record,
    Start,
};

use crate::fake::Fake;

async fn client(fake: &Fake) -> Client {
    let builder = Client::builder().backoff(Duration::from_millis(1), Duration::from_millis(10));
    builder.connect(&fake.address).await.unwrap()
}

/// Fills partition 0 of topic `t` with the numbers in this range, in batches of 10, the timestamp 1000 + number.
async fn fill(client: &Client, range: std::ops::Range<i64>) {
    let producer = client.producer("t").start().await.unwrap();
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

/// All values up to the end that was asked for.
async fn values(consumer: &mut Consumer) -> Vec<i64> {
    let mut values = Vec::new();
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.unwrap();
        let mut expected = batch.first_offset();
        for record in batch.records().unwrap() {
            let record = record.unwrap();
            assert_eq!(record.offset(), expected);
            expected = expected.plus(1);
            values.push(std::str::from_utf8(record.value().unwrap()).unwrap().parse().unwrap());
        }
        assert_eq!(batch.end_offset(), expected);
    }
    values
}

fn numbers(range: std::ops::Range<i64>) -> Vec<i64> {
    range.collect()
}

#[tokio::test]
async fn a_consumer_begins_where_it_is_told() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..95).await;
    let cases = [
        (Start::Earliest, 0),
        (Start::Offset(Offset(0)), 0),
        (Start::Offset(Offset(37)), 37),
        (Start::Offset(Offset(94)), 94),
        (Start::Offset(Offset(95)), 95),
        (Start::Latest, 95),
        (Start::RecordTime(1045), 45),
        (Start::RecordTime(1050), 50),
        (Start::RecordTime(1), 0),
    ];
    for (start, first) in cases {
        let mut consumer = client.consumer("t").from(start).until_end().start().await.unwrap();
        assert_eq!(values(&mut consumer).await, numbers(first..95), "{start:?}");
    }
    let mut consumer = client.consumer("t").from(Start::AppendTime(5000)).until_end().start().await.unwrap();
    assert_eq!(values(&mut consumer).await, numbers(0..0));
    let mut consumer =
        client.consumer("t").from_offset(PartitionId(0), Offset(90)).until_end().start().await.unwrap();
    assert_eq!(values(&mut consumer).await, numbers(90..95));
}

#[tokio::test]
async fn a_consumer_ends_before_the_offset_it_is_told() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..50).await;
    for end in [0, 1, 20, 33, 50] {
        let builder = client.consumer("t").from(Start::Earliest).until_offset(Offset(end));
        assert_eq!(values(&mut builder.start().await.unwrap()).await, numbers(0..end));
    }
}

#[tokio::test]
async fn new_records_arrive_as_they_are_produced() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    let mut consumer = client.consumer("t").from(Start::Latest).start().await.unwrap();
    let event = consumer.next_event().await.unwrap().unwrap();
    assert!(matches!(event, Event::CaughtUp(position) if position.position == Offset(0)), "{event:?}");
    for number in 0..5 {
        fill(&client, number..number + 1).await;
        let batch = consumer.next_batch().await.unwrap().unwrap();
        assert_eq!((batch.first_offset(), batch.record_count()), (Offset(number), 1));
    }
    assert_eq!(consumer.lag(), 0);
}

#[tokio::test]
async fn the_end_is_told_each_time_it_is_reached() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..10).await;
    let mut consumer = client.consumer("t").from(Start::Earliest).start().await.unwrap();
    for round in 1..4 {
        let mut end = Offset(0);
        loop {
            match consumer.next_event().await.unwrap().unwrap() {
                Event::Batch(batch) => end = batch.end_offset(),
                Event::CaughtUp(position) => {
                    assert_eq!((position.position, position.lag()), (Offset(round * 10), 0));
                    assert!(position.caught_up);
                    break;
                }
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(end, Offset(round * 10));
        fill(&client, round * 10..round * 10 + 10).await;
    }
}

#[tokio::test]
async fn cuts_leave_no_gap_and_no_repetition() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..1000).await;
    let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
    fake.change(|broker| broker.faults.cut_after_data = Some(3));
    let mut seen = Vec::new();
    while let Some(batch) = consumer.next_batch().await {
        let batch = batch.unwrap();
        seen.extend(batch.records().unwrap().map(|record| record.unwrap().offset().0));
    }
    assert_eq!(seen, numbers(0..1000));
    assert!(fake.lock().connections > 5);
}

/// Apache Iggy #2715, #4034: a consumer went on at the end of the stream, or left out the beginning of a partition.
#[tokio::test]
async fn records_that_a_broker_leaves_out_are_asked_for_again_and_never_passed_over() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..100).await;
    let bases: Vec<i64> = fake.lock().topics[0].2[0].batches.iter().map(|(base, ..)| *base).collect();
    assert!(bases.len() > 6, "{bases:?}");
    for left_out in [bases[0], bases[1], bases[5]] {
        fake.change(|broker| broker.faults.leave_out = (left_out, 2));
        let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
        assert_eq!(values(&mut consumer).await, numbers(0..100), "the batch at {left_out}");
        assert_eq!(fake.lock().faults.leave_out.1, 0);
    }
    fake.change(|broker| broker.faults.leave_out = (bases[1], u32::MAX));
    let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
    let mut next = Offset(0);
    let error = loop {
        match consumer.next_batch().await.expect("an error") {
            Ok(batch) => {
                assert_eq!(batch.first_offset(), next);
                next = batch.end_offset();
            }
            Err(error) => break error,
        }
    };
    assert!(next.0 <= bases[1] && error.cause().contains("left out offsets"), "{next}: {error}");
    assert!(consumer.next_batch().await.is_none());
}

#[tokio::test]
async fn no_more_than_the_prefetch_waits_for_a_slow_application() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..20_000).await;
    let mut consumer =
        client.consumer("t").from(Start::Earliest).until_end().prefetch_bytes(1).start().await.unwrap();
    let total: usize = fake.lock().topics[0].2[0].batches.iter().map(|(_, _, bytes)| bytes.len()).sum();
    assert!(total > 200_000, "{total}");
    assert_eq!(values(&mut consumer).await, numbers(0..20_000));
    let over = fake.lock().overshoot_max;
    assert!(over < 1024, "at most a frame beyond the limit: {over}");
}

#[tokio::test]
async fn damage_on_the_way_is_fetched_again() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..100).await;
    fake.change(|broker| broker.faults.damage_data = 2);
    let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
    assert_eq!(values(&mut consumer).await, numbers(0..100));
}

#[tokio::test]
async fn damage_that_stays_is_told() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..100).await;
    fake.change(|broker| broker.faults.damage_data = 1000);
    let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
    let error = consumer.next_batch().await.unwrap().expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(consumer.next_batch().await.is_none(), "and the partition ends");
}

#[tokio::test]
async fn an_offset_that_is_gone_fails_or_is_skipped_as_asked() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..100).await;
    fake.change(|broker| {
        broker.topics[0].2[0].batches.retain(|&(base, ..)| base >= 50);
        broker.topics[0].2[0].start = broker.topics[0].2[0].batches[0].0;
    });
    let builder = client.consumer("t").from(Start::Offset(Offset(10))).until_end();
    let error = builder.clone().start().await.unwrap().next_batch().await.unwrap().expect_err("gone");
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));

    let mut consumer = builder.clone().out_of_range(OutOfRange::Earliest).start().await.unwrap();
    let start = fake.lock().topics[0].2[0].start;
    match consumer.next_event().await.unwrap().unwrap() {
        Event::Skipped { from, to, .. } => assert_eq!((from, to), (Offset(10), Offset(start))),
        event => panic!("{event:?}"),
    }
    assert_eq!(values(&mut consumer).await, numbers(start..100));

    let mut consumer = builder.out_of_range(OutOfRange::Latest).start().await.unwrap();
    assert!(matches!(consumer.next_event().await, Some(Ok(Event::Skipped { to: Offset(100), .. }))));
    assert!(consumer.next_event().await.is_none());
}

#[tokio::test]
async fn a_named_consumer_goes_on_where_it_committed() {
    let fake = Fake::with_topic(2).await;
    let client = client(&fake).await;
    fill(&client, 0..40).await;
    let builder = client.consumer("t").name("reader").until_end();
    let mut consumer = builder.clone().start().await.unwrap();
    let first = consumer.next_batch().await.unwrap().unwrap();
    assert_eq!(first.first_offset(), Offset(0), "never committed: from the first record");
    consumer.commit().await.unwrap();
    let end = first.end_offset();
    assert_eq!(consumer.positions()[0].position, end, "what was not handed out is not committed");
    drop(consumer);

    let mut consumer = builder.clone().start().await.unwrap();
    assert_eq!(consumer.next_batch().await.unwrap().unwrap().first_offset(), end);
    consumer.commit_offsets(&[(PartitionId(0), Offset(35))]).await.unwrap();
    let mut consumer = builder.start().await.unwrap();
    assert_eq!(values(&mut consumer).await, numbers(35..40));
    let stored = client.admin().fetch_offsets("reader", "t").await.unwrap();
    let of_first = stored.iter().find(|stored| stored.partition.partition == PartitionId(0)).unwrap();
    assert_eq!(of_first.offset, Offset(35));
}

#[tokio::test]
async fn a_consumer_without_a_name_cannot_commit_or_begin_at_a_stored_offset() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    let consumer = client.consumer("t").start().await.unwrap();
    assert_eq!(consumer.commit().await.expect_err("no name").kind(), ErrorKind::InvalidArgument);
    let error = client.consumer("t").from(Start::Stored).start().await.expect_err("no name");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn only_the_selected_partitions_come() {
    let fake = Fake::with_topic(3).await;
    let client = client(&fake).await;
    let producer = client.producer("t").start().await.unwrap();
    for partition in 0..3 {
        producer.send(Record::new(b"x").partition(PartitionId(partition))).await.unwrap();
    }
    let builder = client.consumer("t").from(Start::Earliest).until_end();
    let mut consumer = builder.clone().partitions(&[PartitionId(2), PartitionId(0)]).start().await.unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = consumer.next_batch().await {
        seen.push(batch.unwrap().partition().0);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 2]);
    let error = builder.partitions(&[PartitionId(3)]).start().await.expect_err("0, 1 and 2 exist");
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));
}

#[tokio::test]
async fn partitions_on_several_shards_are_followed_when_they_move() {
    let fake = Fake::with_topic(4).await;
    fake.change(|broker| broker.shard_count = 2);
    let client = client(&fake).await;
    let mut consumer = client.consumer("t").from(Start::Earliest).start().await.unwrap();
    let mut expected = 0;
    for round in 0..4 {
        fake.change(|broker| {
            broker.placement = round;
            broker.epoch = round;
        });
        fake.cut();
        fill(&client, expected..expected + 50).await;
        while expected < i64::from(round + 1) * 50 {
            let batch = consumer.next_batch().await.unwrap().unwrap();
            assert_eq!(batch.first_offset(), Offset(expected));
            expected = batch.end_offset().0;
        }
    }
}

#[tokio::test]
async fn partitions_that_are_added_are_produced_to_and_consumed() {
    let fake = Fake::with_topic(1).await;
    fake.change(|broker| broker.shard_count = 2);
    let builder = Client::builder().metadata_refresh(Duration::from_millis(5));
    let client = builder.connect(&fake.address).await.unwrap();
    let producer = client.producer("t").start().await.unwrap();
    let mut consumer = client.consumer("t").from(Start::Latest).start().await.unwrap();
    let mut chosen =
        client.consumer("t").from(Start::Latest).partitions(&[PartitionId(0)]).start().await.unwrap();
    fake.change(|broker| broker.grow(3));
    while producer.partition_count() < 3 {
        tokio::task::yield_now().await;
    }
    for partition in [2, 1, 0] {
        producer.send(Record::new(b"x").partition(PartitionId(partition))).await.unwrap();
        let batch = consumer.next_batch().await.unwrap().unwrap();
        assert_eq!((batch.partition(), batch.first_offset()), (PartitionId(partition), Offset(0)));
    }
    assert_eq!(chosen.next_batch().await.unwrap().unwrap().partition(), PartitionId(0));
    assert_eq!((consumer.positions().len(), chosen.positions().len()), (3, 1));
}

#[tokio::test]
async fn passing_refusals_of_a_subscription_are_tried_again() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..30).await;
    let codes = [ErrorCode::NotReady, ErrorCode::StaleEpoch, ErrorCode::LimitReached];
    fake.change(|broker| broker.faults.refuse_subscribe = codes.into());
    let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
    assert_eq!(values(&mut consumer).await, numbers(0..30));
}

#[tokio::test]
async fn a_final_refusal_of_a_subscription_is_told_and_ends_it() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..30).await;
    fake.change(|broker| broker.faults.refuse_subscribe = [ErrorCode::DataDamaged].into());
    let mut consumer = client.consumer("t").from(Start::Earliest).start().await.unwrap();
    let error = consumer.next_batch().await.unwrap().expect_err("refused");
    assert_eq!(error.code(), Some(ErrorCode::DataDamaged));
    let unread = error.unread().expect("it stops a partition");
    assert_eq!((unread.partition, unread.from), (PartitionId(0), Offset(0)));
    assert!(consumer.next_batch().await.is_none());
}

#[tokio::test]
async fn what_the_broker_cannot_read_ends_the_partition_and_says_where_to_go_on_if_anywhere() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..100).await;
    for (upto, to) in [(70, Some(Offset(70))), (50, None)] {
        fake.change(|broker| broker.faults.damaged = Some((50, upto)));
        // Each goes on where the one before it said, so that it would go round for ever if that were the same place.
        let mut from = Offset(0);
        let mut seen = Vec::new();
        let unread = loop {
            let mut consumer =
                client.consumer("t").from(Start::Offset(from)).until_end().start().await.unwrap();
            let error = loop {
                match consumer.next_batch().await {
                    Some(Ok(batch)) => seen.extend(batch.first_offset().0..batch.end_offset().0),
                    Some(Err(error)) => break Some(error),
                    None => break None,
                }
            };
            assert!(error.is_none() || consumer.next_batch().await.is_none(), "an error ends the partition");
            let unread = error.as_ref().and_then(tidegate::Error::unread);
            match unread.and_then(|unread| unread.to) {
                Some(to) => from = to,
                None => break unread,
            }
            assert_eq!((unread.unwrap().from, unread.unwrap().to), (Offset(50), to));
        };
        match to {
            Some(to) => assert_eq!((unread, seen), (None, [numbers(0..50), numbers(to.0..100)].concat())),
            None => {
                assert_eq!(unread.map(|unread| (unread.from, unread.to)), Some((Offset(50), None)));
                assert_eq!(seen, numbers(0..50));
            }
        }
        // Whoever begins there is told the same at once.
        let mut consumer = client.consumer("t").from(Start::Offset(Offset(50))).start().await.unwrap();
        let error = consumer.next_batch().await.unwrap().expect_err("damaged");
        assert_eq!(error.unread().map(|unread| (unread.from, unread.to)), Some((Offset(50), to)));
        assert!(consumer.next_batch().await.is_none());
    }
}

#[tokio::test]
async fn a_start_behind_the_end_is_told_and_the_end_itself_is_no_error() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..30).await;
    let at = |offset| client.consumer("t").from(Start::Offset(Offset(offset))).until_end();
    assert!(at(30).start().await.unwrap().next_batch().await.is_none());
    let mut consumer = at(31).start().await.unwrap();
    let error = consumer.next_batch().await.unwrap().expect_err("out of range");
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
    assert_eq!(error.unread().map(|unread| unread.from), Some(Offset(31)));
    assert!(consumer.next_batch().await.is_none());
}

#[tokio::test]
async fn a_deleted_topic_ends_its_consumers_with_an_error() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    let mut consumer = client.consumer("t").from(Start::Earliest).start().await.unwrap();
    fake.change(|broker| broker.topics.clear());
    fake.cut();
    let error = consumer.next_batch().await.unwrap().expect_err("gone");
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic));
    assert!(consumer.next_batch().await.is_none());
}

#[tokio::test]
async fn every_compression_is_read() {
    let mut compressions = vec![Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4];
    if cfg!(feature = "zstd") {
        compressions.push(Compression::Zstd);
    }
    for compression in compressions {
        let fake = Fake::with_topic(1).await;
        let client = client(&fake).await;
        let producer = client.producer("t").compression(compression).start().await.unwrap();
        for number in 0..500 {
            producer.enqueue(Record::new(number.to_string().as_bytes())).await.unwrap();
        }
        producer.flush().await.unwrap();
        let start = Start::Offset(Offset(123));
        let mut consumer = client.consumer("t").from(start).until_end().start().await.unwrap();
        assert_eq!(values(&mut consumer).await, numbers(123..500), "{compression:?}");
    }
}

#[tokio::test]
async fn a_consumer_is_a_stream() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    fill(&client, 0..20).await;
    let mut consumer = client.consumer("t").from(Start::Earliest).until_end().start().await.unwrap();
    let mut records = 0;
    while let Some(batch) = poll_fn(|context| Pin::new(&mut consumer).poll_next(context)).await {
        records += batch.unwrap().record_count();
    }
    assert_eq!(records, 20);
}
