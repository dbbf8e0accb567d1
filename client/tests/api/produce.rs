//! Producing through refusals, cuts, missing credit and lost tails.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{
    Acks, Client, Compression, CreditReason, ErrorCode, ErrorKind, Header, Level, Linger, Offset,
    PartitionId, Producer, ProducerEvent, Record,
};

use crate::fake::Fake;

async fn client(fake: &Fake) -> Client {
    let builder = Client::builder().backoff(Duration::from_millis(1), Duration::from_millis(10));
    builder.connect(&fake.address).await.unwrap()
}

async fn producer(fake: &Fake) -> Producer {
    client(fake).await.producer("t").start().await.unwrap()
}

fn texts(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("record {number}")).collect()
}

/// Enqueues the texts into partition 0 and waits for all acknowledgements.
async fn produce_all(producer: &Producer, texts: &[String]) {
    let mut tickets = Vec::new();
    for text in texts {
        let record = Record::new(text.as_bytes()).partition(PartitionId(0));
        tickets.push(producer.enqueue(record).await.unwrap());
    }
    let mut last = None;
    for ticket in tickets {
        let ack = ticket.await.unwrap();
        assert!(Some(ack.offset) > last, "offsets rise in the order of the calls");
        last = Some(ack.offset);
    }
}

#[tokio::test]
async fn a_record_is_acknowledged_with_its_place() {
    let fake = Fake::with_topic(2).await;
    let producer = producer(&fake).await;
    for number in 0..3 {
        let ack = producer.send(Record::new(b"x").partition(PartitionId(1))).await.unwrap();
        assert_eq!((ack.partition, ack.offset, ack.level), (PartitionId(1), Offset(number), Level::Disk));
        assert_eq!(ack.append_time_ms, 1_000_000);
    }
    producer.close().await.unwrap();
    assert_eq!(fake.values(1), ["x", "x", "x"]);
}

#[tokio::test]
async fn records_gather_into_batches_while_one_is_in_flight() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    let texts = texts(0..10_000);
    produce_all(&producer, &texts).await;
    assert_eq!(fake.values(0), texts);
    let stats = producer.stats();
    assert_eq!((stats.records, stats.records_acked, stats.memory_used), (10_000, 10_000, 0));
    assert!(stats.batches_acked < 1_000, "{stats:?}");
}

#[tokio::test]
async fn records_of_one_key_stay_in_one_partition_in_order() {
    let fake = Fake::with_topic(4).await;
    let producer = producer(&fake).await;
    for number in 0..200 {
        let (key, value) = (format!("key {}", number % 7), format!("{} {number}", number % 7));
        producer.enqueue(Record::keyed(key.as_bytes(), value.as_bytes())).await.unwrap();
    }
    producer.flush().await.unwrap();
    let mut seen = 0;
    for key in 0..7 {
        let prefix = format!("{key} ");
        let of_key = |partition| -> Vec<String> {
            fake.values(partition).into_iter().filter(|value| value.starts_with(&prefix)).collect()
        };
        let homes: Vec<_> = (0..4).map(of_key).filter(|values| !values.is_empty()).collect();
        assert_eq!(homes.len(), 1, "one partition a key");
        let numbers: Vec<usize> = homes[0].iter().map(|value| value[2..].parse().unwrap()).collect();
        assert!(numbers.is_sorted());
        seen += numbers.len();
    }
    assert_eq!(seen, 200);
}

#[tokio::test]
async fn records_without_a_key_go_round_all_partitions() {
    let fake = Fake::with_topic(4).await;
    let producer = client(&fake).await.producer("t").batch_bytes(1024).start().await.unwrap();
    for text in texts(0..2_000) {
        producer.enqueue(Record::new(text.as_bytes())).await.unwrap();
    }
    producer.flush().await.unwrap();
    let counts: Vec<_> = (0..4).map(|partition| fake.values(partition).len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 2_000);
    assert!(counts.iter().all(|&count| count > 200), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observer_knows_of_everything_that_a_flush_has_waited_for() {
    let fake = Fake::with_topic(4).await;
    let told = Arc::new(Mutex::new(0));
    let counted = told.clone();
    let observe = move |event: &ProducerEvent| {
        if let ProducerEvent::Acknowledged(ack) = event {
            *counted.lock().unwrap() += ack.record_count;
        }
    };
    let producer = client(&fake).await.producer("t").observe(observe).start().await.unwrap();
    for round in 1..50 {
        for text in texts(0..100) {
            producer.enqueue(Record::new(text.as_bytes())).await.unwrap();
        }
        producer.flush().await.unwrap();
        assert_eq!(*told.lock().unwrap(), round * 100);
    }
}

#[tokio::test]
async fn a_cut_between_storing_and_answering_repeats_nothing() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    let texts = texts(0..5_000);
    for (round, part) in texts.chunks(500).enumerate() {
        fake.change(|broker| match round % 2 {
            0 => broker.faults.cut_after_storing = 2,
            _ => broker.faults.cut_before_storing = 1,
        });
        produce_all(&producer, part).await;
    }
    assert_eq!(fake.values(0), texts);
    let stats = producer.stats();
    assert!(stats.reconnects >= 10 && stats.batches_resent >= 10, "{stats:?}");
}

#[tokio::test]
async fn cuts_at_any_time_lose_and_repeat_nothing() {
    let fake = Fake::with_topic(3).await;
    let producer = client(&fake).await.producer("t").batch_bytes(2048).start().await.unwrap();
    let cutting = fake.clone();
    let cutter = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(3)).await;
            cutting.cut();
        }
    });
    let mut tickets = Vec::new();
    for number in 0..20_000 {
        let (key, value) = (format!("{}", number % 50), format!("{number}"));
        tickets.push(producer.enqueue(Record::keyed(key.as_bytes(), value.as_bytes())).await.unwrap());
        if number % 500 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for ticket in tickets {
        ticket.await.unwrap();
    }
    cutter.abort();
    let mut all: Vec<usize> =
        (0..3).flat_map(|partition| fake.values(partition)).map(|v| v.parse().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..20_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn bytes_beyond_the_credit_wait_until_the_broker_grants_more() {
    let fake = Fake::with_topic(1).await;
    fake.change(|broker| {
        broker.credit_initial = 0;
        broker.credit_step = 3_000;
    });
    let producer = client(&fake).await.producer("t").batch_bytes(1024).start().await.unwrap();
    let texts = texts(0..5_000);
    produce_all(&producer, &texts).await;
    assert_eq!(fake.values(0), texts);
    assert_eq!(fake.lock().credit_broken, 0, "no frame starts at or beyond the limit");
    assert!(producer.stats().credit_wait_us > 0);
}

#[tokio::test]
async fn who_waits_for_credit_can_see_why_and_the_error_of_what_is_too_late_says_it() {
    let fake = Fake::with_topic(1).await;
    fake.change(|broker| {
        broker.credit_initial = 0;
        broker.credit_withheld = true;
        broker.credit_reason = CreditReason::DiskFull;
    });
    let builder = client(&fake).await.producer("t").delivery_timeout(Duration::from_millis(500));
    let producer = builder.start().await.unwrap();
    assert!(producer.stall().is_none(), "nothing waits yet");
    let ticket = producer.enqueue(Record::new(b"x")).await.unwrap();
    let stall = loop {
        match producer.stall() {
            Some(stall) => break stall,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!(stall.error.kind(), ErrorKind::NoCredit(CreditReason::DiskFull));
    assert!(stall.lasted < Duration::from_secs(30));
    let error = ticket.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Expired);
    assert!(error.to_string().contains("drive, which is full"), "{error}");
    assert!(producer.stall().is_none(), "nothing waits any more");
    fake.change(|broker| broker.credit_withheld = false);
    // On a busy machine even what may be sent can be too late.
    let ack = loop {
        match producer.enqueue(Record::new(b"y")).await.unwrap().await {
            Ok(ack) => break ack,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Expired),
        }
    };
    assert_eq!(ack.offset, Offset(0), "nothing that was too late is stored");
    assert!(producer.stall().is_none());
}

#[tokio::test]
async fn a_connection_asks_for_credit_for_what_waits_for_it_and_not_for_others() {
    let fake = Fake::with_topic(2).await;
    fake.change(|broker| {
        broker.shard_count = 2;
        broker.credit_initial = 0;
        broker.credit_withheld = true;
    });
    let producer = producer(&fake).await;
    let large = vec![b'v'; 50_000];
    producer.enqueue(Record::new(&large).partition(PartitionId(0))).await.unwrap();
    producer.enqueue(Record::new(b"small").partition(PartitionId(1))).await.unwrap();
    while fake.lock().credit_wanted.len() < 2 {
        tokio::task::yield_now().await;
    }
    let mut wanted = fake.lock().credit_wanted.clone();
    wanted.sort_unstable();
    assert!(wanted[0] < 1_000 && wanted[1] > 50_000, "{wanted:?}");
    fake.change(|broker| broker.credit_withheld = false);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn refused_bytes_count_as_sent_and_credit_is_asked_for_again() {
    let fake = Fake::with_topic(1).await;
    fake.change(|broker| {
        broker.credit_initial = 1;
        broker.credit_step = 1;
        broker.faults.refuse_produce = [ErrorCode::NotReady, ErrorCode::DiskFull].into();
    });
    let producer = producer(&fake).await;
    produce_all(&producer, &texts(0..10)).await;
    assert_eq!(fake.values(0), texts(0..10));
}

#[tokio::test]
async fn a_full_memory_holds_the_application_back() {
    let fake = Fake::with_topic(1).await;
    fake.change(|broker| {
        broker.credit_initial = 0;
        broker.credit_withheld = true;
    });
    let producer = client(&fake).await.producer("t").memory_bytes(10_000).start().await.unwrap();
    let mut tickets = Vec::new();
    while let Some(ticket) = producer.try_enqueue(Record::new(&[7; 100])).unwrap() {
        tickets.push(ticket);
    }
    assert!(tickets.len() > 80 && tickets.len() < 100, "{}", tickets.len());
    let waiting = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(Record::new(b"after")).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    fake.change(|broker| broker.credit_withheld = false);
    assert_eq!(waiting.await.unwrap().unwrap().offset, Offset(tickets.len() as i64));
    assert!(producer.stats().memory_wait_us > 0);
}

#[tokio::test]
async fn passing_refusals_are_tried_again_in_order() {
    let fake = Fake::with_topic(1).await;
    let producer = client(&fake).await.producer("t").batch_bytes(1024).start().await.unwrap();
    let texts = texts(0..1_000);
    for part in texts.chunks(200) {
        let codes = [ErrorCode::DiskFull, ErrorCode::NotReady, ErrorCode::LimitReached];
        fake.change(|broker| broker.faults.refuse_produce = codes.into());
        produce_all(&producer, part).await;
    }
    assert_eq!(fake.values(0), texts);
    assert_eq!(producer.stats().records_failed, 0);
}

#[tokio::test]
async fn a_final_refusal_fails_its_records_and_the_later_ones_go_on() {
    let fake = Fake::with_topic(1).await;
    let producer = client(&fake).await.producer("t").batch_bytes(1024).start().await.unwrap();
    producer.send(Record::new(b"first")).await.unwrap();
    fake.change(|broker| broker.faults.refuse_produce = [ErrorCode::BatchInvalid].into());
    let mut tickets = Vec::new();
    for text in texts(0..300) {
        tickets.push((producer.enqueue(Record::new(text.as_bytes())).await.unwrap(), text));
    }
    let mut stored = vec!["first".to_string()];
    let mut failed = 0;
    for (ticket, text) in tickets {
        match ticket.await {
            Ok(_) => stored.push(text),
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::BatchInvalid));
                assert!(!error.is_retriable() && !error.is_unknown_outcome());
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && failed < 300);
    assert_eq!(fake.values(0), stored);
    let stats = producer.stats();
    assert_eq!((stats.records_failed, stats.records_lost), (failed, 0));
    assert_eq!(producer.flush().await.expect_err("told once").code(), Some(ErrorCode::BatchInvalid));
    producer.flush().await.expect("and not again");
}

#[tokio::test]
async fn an_unknown_outcome_is_told_as_one() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    fake.change(|broker| broker.faults.refuse_produce = [ErrorCode::UnknownOutcome].into());
    let error = producer.send(Record::new(b"x")).await.expect_err("not known");
    assert!(error.is_unknown_outcome() && !error.is_retriable());
    producer.send(Record::new(b"y")).await.expect("goes on");
}

#[tokio::test]
async fn a_lost_tail_of_a_relaxed_topic_is_told_and_counted() {
    let fake = Fake::with_topic(1).await;
    fake.change(|broker| broker.level = Level::Memory);
    let events = Arc::new(Mutex::new(Vec::new()));
    let observed = events.clone();
    let observe = move |event: &ProducerEvent| {
        if let ProducerEvent::Lost { base_offset, record_count, .. } = event {
            observed.lock().unwrap().push((*base_offset, *record_count));
        }
    };
    let producer = client(&fake).await.producer("t").observe(observe).start().await.unwrap();
    for number in 0..5 {
        let ack = producer.send(Record::new(format!("{number}").as_bytes())).await.unwrap();
        assert_eq!(ack.level, Level::Memory);
    }
    fake.change(|broker| broker.topics[0].2[0].lose_from(3));
    fake.cut();
    let ack = producer.send(Record::new(b"after")).await.unwrap();
    assert_eq!(ack.offset, Offset(3));
    producer.send(Record::new(b"more")).await.unwrap();
    assert_eq!(fake.values(0), ["0", "1", "2", "after", "more"]);
    assert_eq!(*events.lock().unwrap(), [(Offset(3), 1), (Offset(4), 1)]);
    assert_eq!(producer.stats().records_lost, 2);
}

#[tokio::test]
async fn a_forgotten_producer_takes_a_new_identity() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    produce_all(&producer, &texts(0..10)).await;
    fake.change(|broker| broker.topics[0].2[0].producers.clear());
    produce_all(&producer, &texts(10..20)).await;
    assert_eq!(fake.values(0), texts(0..20));
    let producers = fake.lock().topics[0].2[0].producers.len();
    assert_eq!(producers, 1, "under an id of its own");
}

/// librdkafka #4953: one partition's error raised the epoch of all, and what was under way elsewhere was stored twice.
#[tokio::test]
async fn a_refusal_of_one_partition_changes_nothing_for_the_others() {
    let fake = Fake::with_topic(2).await;
    let producer = producer(&fake).await;
    let to = async |text: &str, partition| {
        producer.send(Record::new(text.as_bytes()).partition(PartitionId(partition))).await
    };
    let texts = texts(0..30);
    let mut identities = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        if number > 0 {
            fake.change(|broker| {
                broker.topics[0].2[0].producers.clear();
                broker.faults.cut_after_storing = 1;
            });
        }
        // Of partition 0 it may stay unknown whether it was stored, but it is never stored twice.
        let (_, other) = tokio::join!(to(text, 0), to(text, 1));
        assert_eq!(other.unwrap().offset, Offset(number as i64));
        let broker = fake.lock();
        let known = broker.topics[0].2[1].producers.iter().map(|(id, (epoch, ..))| (*id, *epoch));
        identities.push(known.collect::<Vec<_>>());
    }
    assert_eq!(fake.values(1), texts);
    assert!(identities.iter().all(|known| known.len() == 1 && *known == identities[0]), "{identities:?}");
    let first = fake.values(0);
    let once: std::collections::BTreeSet<_> = first.iter().collect();
    assert_eq!(once.len(), first.len(), "{first:?}");
    assert!(fake.lock().next_producer > 110, "partition 0 took a new identity again and again");
}

#[tokio::test]
async fn a_batch_that_may_be_stored_is_not_sent_under_a_new_identity() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    producer.send(Record::new(b"a")).await.unwrap();
    fake.change(|broker| {
        broker.faults.cut_after_storing = 1;
        // By the time that it is sent again nobody knows this producer any more.
        broker.faults.refuse_produce.clear();
    });
    let forgetting = fake.clone();
    let sending = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(Record::new(b"b")).await }
    });
    loop {
        let stored = forgetting.lock().topics[0].2[0].batches.len();
        if stored == 2 {
            forgetting.change(|broker| broker.topics[0].2[0].producers.clear());
            break;
        }
        tokio::task::yield_now().await;
    }
    let error = sending.await.unwrap().expect_err("not known");
    assert!(error.is_unknown_outcome());
    producer.send(Record::new(b"c")).await.unwrap();
    assert_eq!(fake.values(0), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_partition_that_moves_is_followed() {
    let fake = Fake::with_topic(4).await;
    fake.change(|broker| broker.shard_count = 3);
    let producer = client(&fake).await.producer("t").batch_bytes(1024).start().await.unwrap();
    let all = texts(0..2_000);
    for (round, part) in all.chunks(500).enumerate() {
        fake.change(|broker| {
            broker.placement = round as i32;
            broker.epoch = round as i32;
        });
        produce_all(&producer, part).await;
    }
    assert_eq!(fake.values(0), all);
    let asked = fake.lock().shards_asked.clone();
    assert!((0..3).all(|shard| asked.contains(&Some(shard))), "each shard over a connection of its own");
}

#[tokio::test]
async fn without_acknowledgements_nothing_is_waited_for_and_refusals_are_counted() {
    let fake = Fake::with_topic(1).await;
    let producer = client(&fake).await.producer("t").acks(Acks::None).start().await.unwrap();
    let ack = producer.send(Record::new(b"first")).await.unwrap();
    assert_eq!((ack.level, ack.offset), (Level::None, Offset(-1)));
    producer.send(Record::new(b"second")).await.unwrap();
    while fake.values(0).len() < 2 {
        tokio::task::yield_now().await;
    }
    fake.change(|broker| broker.faults.refuse_produce = [ErrorCode::DiskFull].into());
    producer.send(Record::new(b"refused")).await.unwrap();
    while producer.stats().records_failed == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fake.values(0), ["first", "second"]);
}

#[tokio::test]
async fn what_cannot_be_read_cuts_the_connection_and_nothing_else() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    fake.change(|broker| broker.faults.garbage = 2);
    let texts = texts(0..100);
    produce_all(&producer, &texts).await;
    assert_eq!(fake.values(0), texts);
    assert!(producer.stats().reconnects >= 1);
}

#[tokio::test]
async fn every_compression_arrives() {
    for compression in [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4] {
        let fake = Fake::with_topic(1).await;
        let producer = client(&fake).await.producer("t").compression(compression).start().await.unwrap();
        let texts: Vec<_> = texts(0..2_000).into_iter().map(|text| text.repeat(4)).collect();
        produce_all(&producer, &texts).await;
        assert_eq!(fake.values(0), texts, "{compression:?}");
    }
}

#[cfg(not(feature = "zstd"))]
#[tokio::test]
async fn zstd_is_refused_by_a_build_without_it() {
    let fake = Fake::with_topic(1).await;
    let error = client(&fake).await.producer("t").compression(Compression::Zstd).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.hint().contains("feature"));
}

#[tokio::test]
async fn records_that_cannot_be_sent_are_refused_at_once() {
    let fake = Fake::with_topic(2).await;
    let producer = producer(&fake).await;
    let large = vec![0; 1 << 20];
    let error = producer.enqueue(Record::new(&large)).await.expect_err("larger than a batch");
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(error.limit().map(|(_, limit, _)| limit), Some(1 << 20));
    let error =
        producer.enqueue(Record::new(b"").partition(PartitionId(2))).await.expect_err("0 and 1 exist");
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));
    let clone = producer.clone();
    producer.close().await.unwrap();
    assert_eq!(clone.enqueue(Record::new(b"")).await.expect_err("closed").kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_record_larger_than_the_usual_batch_goes_alone() {
    let fake = Fake::with_topic(1).await;
    let producer = client(&fake).await.producer("t").batch_bytes(1024).start().await.unwrap();
    let large = "x".repeat(500_000);
    produce_all(&producer, &["a".into(), large.clone(), "b".into()]).await;
    assert_eq!(fake.values(0), ["a".to_string(), large, "b".into()]);
}

#[tokio::test]
async fn an_unknown_topic_is_told_at_the_start() {
    let fake = Fake::start().await;
    let error = client(&fake).await.producer("nowhere").start().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic));
    assert!(error.to_string().contains("nowhere"));
}

#[tokio::test]
async fn a_deleted_topic_fails_what_waits_for_it() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    producer.send(Record::new(b"x")).await.unwrap();
    fake.change(|broker| {
        broker.topics.clear();
        broker.faults.cut_before_storing = 1;
    });
    let error = producer.send(Record::new(b"y")).await.expect_err("gone");
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic));
}

#[tokio::test]
async fn a_topic_created_anew_under_its_name_is_used() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    producer.send(Record::new(b"old")).await.unwrap();
    fake.change(|broker| {
        broker.topics.clear();
        broker.create("other", 1);
        broker.create("t", 1);
        broker.topics.swap(0, 1);
    });
    fake.cut();
    // The first may meet the old log on its way; what it meets is told.
    let _ = producer.send(Record::new(b"between")).await;
    producer.send(Record::new(b"new")).await.unwrap();
    assert_eq!(fake.values(0).last().map(String::as_str), Some("new"));
}

#[tokio::test]
async fn time_that_runs_out_is_told_with_what_stood_in_the_way() {
    let fake = Fake::with_topic(1).await;
    let timeout = Duration::from_millis(300);
    let producer = client(&fake).await.producer("t").delivery_timeout(timeout).start().await.unwrap();
    producer.send(Record::new(b"x")).await.unwrap();
    fake.change(|broker| broker.faults.refuse_produce = vec![ErrorCode::DiskFull; 100_000].into());
    let error = producer.send(Record::new(b"y")).await.expect_err("never taken");
    assert_eq!(error.kind(), ErrorKind::Expired);
    assert!(error.is_retriable() && error.cause().contains("room"), "{error}");
    fake.change(|broker| broker.faults.refuse_produce.clear());
    producer.send(Record::new(b"z")).await.unwrap();
    assert_eq!(fake.values(0), ["x", "z"]);
}

#[tokio::test]
async fn a_linger_gathers_records_even_while_idle() {
    let fake = Fake::with_topic(1).await;
    let linger = Linger::AtLeast(Duration::from_millis(50));
    let producer = client(&fake).await.producer("t").linger(linger).start().await.unwrap();
    for text in texts(0..20) {
        producer.enqueue(Record::new(text.as_bytes())).await.unwrap();
        tokio::task::yield_now().await;
    }
    producer.flush().await.unwrap();
    assert_eq!(producer.stats().batches_acked, 1);
}

#[tokio::test]
async fn what_was_enqueued_is_sent_after_the_last_clone_is_gone() {
    let fake = Fake::with_topic(1).await;
    let producer = producer(&fake).await;
    let mut last = None;
    for text in texts(0..100) {
        last = Some(producer.enqueue(Record::new(text.as_bytes())).await.unwrap());
    }
    drop(producer);
    assert_eq!(last.unwrap().await.unwrap().offset, Offset(99));
    assert_eq!(fake.values(0), texts(0..100));
}

#[tokio::test]
async fn headers_null_and_empty_arrive_as_they_are() {
    let fake = Fake::with_topic(1).await;
    let client = client(&fake).await;
    let producer = client.producer("t").start().await.unwrap();
    let headers = [Header { name: "host", value: Some(b"a") }, Header { name: "host", value: None }];
    producer.send(Record { key: None, value: None, headers: &headers, ..Record::default() }).await.unwrap();
    producer.send(Record::keyed(b"", b"").timestamp_ms(77)).await.unwrap();
    let mut consumer =
        client.consumer("t").from(tidegate::Start::Earliest).until_end().start().await.unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = consumer.next_batch().await {
        for record in batch.unwrap().records().unwrap() {
            let record = record.unwrap();
            let own = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
            let headers: Vec<_> =
                record.headers().map(|(name, value)| (name.to_string(), own(value))).collect();
            seen.push((own(record.key()), own(record.value()), headers, record.timestamp_ms()));
        }
    }
    assert_eq!(seen.len(), 2);
    let expected = vec![("host".to_string(), Some(b"a".to_vec())), ("host".to_string(), None)];
    assert_eq!((&seen[0].0, &seen[0].1, &seen[0].2), (&None, &None, &expected));
    assert_eq!((&seen[1].0, &seen[1].1, seen[1].3), (&Some(vec![]), &Some(vec![]), 77));
}
