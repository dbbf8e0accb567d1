//! What a subscription hears, and when.

use super::*;

#[test]
fn deleting_a_topic_ends_its_subscriptions() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    assert_eq!(client.heard(&node), ["caught_up 1 0"]);
    let delete = DeleteTopicRequest { name: "t".to_owned() };
    client.frame(&mut node, |c, out| delete.encode(c, out));
    node.settle();
    assert_eq!(client.heard(&node), ["Some(Ok(UnknownTopic))", "DeleteTopic"]);
}

#[test]
fn credit_of_a_subscription_bounds_what_is_sent_and_a_batch_may_go_beyond() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    for _ in 0..5 {
        client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 100, BatchOrigin::NONE));
    }
    node.settle();
    client.heard(&node);
    let batch_bytes = batch_of(1, 100, BatchOrigin::NONE).len() as u64;
    client.subscribe(&mut node, 1, log(topic, 0), 0, batch_bytes + 1);
    assert_eq!(client.heard(&node), ["data 1 0..1", "data 1 1..2"]);
    let raise = |limit| Credit {
        scope: Scope::Subscription(SubscriptionId(1)),
        limit,
        reason: Reason::None,
        wanted: 0,
    };
    client.frame(&mut node, |_, out| raise(batch_bytes).encode(out));
    node.settle();
    assert_eq!(client.heard(&node), [""; 0], "a lower limit changes nothing");
    client.frame(&mut node, |_, out| raise(4 * batch_bytes).encode(out));
    node.settle();
    assert_eq!(client.heard(&node), ["data 1 2..4"]);
    let ceiling = Credit { scope: Scope::Connection, limit: 0, reason: Reason::None, wanted: 0 };
    client.frame(&mut node, |_, out| ceiling.encode(out));
    client.frame(&mut node, |_, out| raise(1 << 20).encode(out));
    node.settle();
    assert_eq!(client.heard(&node), [""; 0], "the connection's ceiling holds all of them");
    client.frame(&mut node, |_, out| Credit { limit: 1 << 20, ..ceiling }.encode(out));
    node.settle();
    assert_eq!(client.heard(&node), ["data 1 4..5", "caught_up 1 5"]);
}

#[test]
fn an_unsubscribed_reader_hears_nothing_more_and_its_number_is_free() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    client.heard(&node);
    let error = client.refused(&mut node, |c, out| subscribe_request(1, log(topic, 0), 0, 9).encode(c, out));
    assert_eq!(error.code, Ok(ErrorCode::InvalidRequest), "{error:?}");
    let end = UnsubscribeRequest { subscription: SubscriptionId(1) };
    client.ask(
        &mut node,
        Api::Unsubscribe,
        |c, out| end.encode(c, out),
        |f| Done::decode(f, Api::Unsubscribe),
    );
    client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    node.settle();
    assert_eq!(client.heard(&node), [""; 0]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    assert_eq!(client.heard(&node), ["data 1 0..1", "caught_up 1 1"]);
    let error = client.refused(&mut node, |c, out| subscribe_request(2, log(topic, 0), 2, 9).encode(c, out));
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::OffsetOutOfRange), 0, 1));
}

#[test]
fn few_bytes_wait_for_more_but_not_for_ever() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let request =
        SubscribeRequest { min_bytes: 400, max_wait_ms: 50, ..subscribe_request(1, log(topic, 0), 0, 9999) };
    client.ask(&mut node, Api::Subscribe, |c, out| request.encode(c, out), SubscribeReply::decode);
    assert_eq!(client.heard(&node), ["caught_up 1 0"]);
    client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 100, BatchOrigin::NONE));
    node.settle();
    node.pass(49);
    assert_eq!(client.heard(&node), [""; 0]);
    node.pass(1);
    assert_eq!(client.heard(&node), ["data 1 0..1"]);
    client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 100, BatchOrigin::NONE));
    node.settle();
    client.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 300, BatchOrigin::NONE));
    node.settle();
    assert_eq!(client.heard(&node), ["data 1 1..3"], "enough has come together before the time was up");
}

#[test]
fn a_quiet_subscription_gets_heartbeats_and_a_busy_one_does_not() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.subscribe(&mut node, 1, log(topic, 0), 0, 9999);
    client.heard(&node);
    node.pass(600);
    client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    node.settle();
    node.pass(600);
    assert_eq!(client.heard(&node), ["data 1 0..1"]);
    node.pass(1000);
    assert_eq!(client.heard(&node), ["heartbeat 1"]);
}

#[test]
fn readers_of_one_connection_share_it_and_a_full_queue_holds_them() {
    let limits = ShardLimits { out_bytes_max: 8 << 10, read_bytes_max: 4 << 10, ..ShardLimits::default() };
    let mut node = Node::with(1, limits, Storage::Durable);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 2, &[]);
    for partition in 0..2 {
        for _ in 0..50 {
            client.produce(
                &mut node,
                log(topic, partition),
                Acks::None,
                &batch_of(1, 1000, BatchOrigin::NONE),
            );
        }
        node.settle();
    }
    client.heard(&node);
    node.stick(&client, true);
    for partition in 0..2 {
        let request = subscribe_request(partition as u32, log(topic, partition), 0, 1 << 30);
        client.frame(&mut node, |c, out| request.encode(c, out));
    }
    node.settle();
    let queued = node.shards[0].shard.connections.values().next().expect("the client").queued();
    assert!(queued < 16 << 10, "{queued} bytes are queued");
    node.stick(&client, false);
    node.settle();
    let heard = client.heard(&node);
    let ends = ["caught_up 0 50".to_owned(), "caught_up 1 50".to_owned()];
    assert!(ends.iter().all(|end| heard.contains(end)), "{heard:?}");
    let half: Vec<&String> = heard.iter().filter(|h| h.starts_with("data")).take(10).collect();
    let of_first = half.iter().filter(|h| h.starts_with("data 0")).count();
    assert!((3..=7).contains(&of_first), "both are served in turn: {half:?}");
}

#[test]
fn damage_is_told_once_by_name_with_the_way_around_it_and_shown_where_the_topic_is_described() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "readings", 1, &[]);
    for _ in 0..2 {
        client.produce(&mut node, log(topic, 0), Acks::Leader, &batch_of(3, 50_000, BatchOrigin::NONE));
        node.settle();
        client.produced(&mut node).expect("stored");
    }
    let mut node = node.restart();
    let (file, at) = place_of(&node, &[b'v'; 1000]);
    node.disk.flip(&file, at);
    let mut client = node.connect(None);
    let refused = |client: &mut Client, node: &mut Node, id| {
        let subscribe = subscribe_request(id, log(topic, 0), 0, 1 << 20);
        client.ask(node, Api::Subscribe, |c, out| subscribe.encode(c, out), SubscribeReply::decode);
        error_of(&whole(&client.answer(node))).expect("an error frame")
    };
    let error = refused(&mut client, &mut node, 1);
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::DataDamaged), 0, 3));
    assert!(error.cause.contains("offsets 0 to 2 of partition 0 of topic readings"), "{error}");
    assert!(error.hint.contains("tg consume readings -p 0 --from 3"), "{error}");
    refused(&mut client, &mut node, 2);
    let told = node.shards[0].reports.iter().filter(|report| report.contains("topic readings")).count();
    assert_eq!(told, 1, "{:?}", node.shards[0].reports);
    let describe = DescribeTopicRequest { names: vec!["readings".to_owned()], after: String::new() };
    let described: DescribeTopicReply = client.ask(
        &mut node,
        Api::DescribeTopic,
        |c, out| describe.encode(c, out),
        DescribeTopicReply::decode,
    );
    let partition = described.topics[0].partitions[0];
    assert_eq!(partition.damaged_ranges, 1);
    assert_eq!((partition.damaged_from, partition.damaged_upto), (Offset(0), Offset(3)));
    client.subscribe(&mut node, 3, log(topic, 0), 3, 1 << 20);
    assert_eq!(client.heard(&node), ["data 3 3..6", "caught_up 3 6"], "what follows can be read");
}

/// The data file that holds these bytes, and where they begin.
fn place_of(node: &Node, bytes: &[u8]) -> (String, usize) {
    let files = node.disk.names().into_iter().filter(|name| name.contains("/files/"));
    let place = |name: String| {
        let at = node.disk.bytes_of(&name).windows(bytes.len()).position(|window| window == bytes)?;
        Some((name, at))
    };
    files.into_iter().find_map(place).expect("a data file holds it")
}

#[test]
fn an_offset_out_of_range_is_told_with_the_topics_name_and_no_place_in_the_frame() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "readings", 1, &[]);
    let subscribe = subscribe_request(1, log(topic, 0), 7, 9);
    let trim = DeleteRecordsRequest { partition: log(topic, 0), before: Offset(7) };
    let errors = [
        client.refused(&mut node, |c, out| subscribe.encode(c, out)),
        client.refused(&mut node, |c, out| trim.encode(c, out)),
    ];
    for error in errors {
        assert_eq!(error.cause, "partition 0 of topic readings has offsets 0 to 0, asked was 7");
        assert_eq!((error.code, error.field.as_str()), (Ok(ErrorCode::OffsetOutOfRange), ""));
    }
}

/// Redpanda #7633: a drive that failed every read was asked again and again, and nobody was told.
#[test]
fn a_drive_that_fails_reads_is_told_to_who_reads_and_is_not_asked_for_ever() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &batch_of(3, 50_000, BatchOrigin::NONE));
    node.settle();
    client.produced(&mut node).expect("stored");
    let mut node = node.restart();
    let mut client = node.connect(None);
    node.disk.reads_fail = true;
    for id in 1..4 {
        let subscribe = subscribe_request(id, log(topic, 0), 0, 1 << 20);
        client.ask(&mut node, Api::Subscribe, |c, out| subscribe.encode(c, out), SubscribeReply::decode);
        let error = error_of(&whole(&client.answer(&node))).expect("an error frame");
        assert_eq!(error.code, Ok(ErrorCode::DataDamaged));
        assert!(error.cause.contains("the drive failed to read partition 0 of topic t"), "{error}");
    }
    // Somebody else goes on meanwhile, and the end of the log, which is in memory, can be read.
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|reply| reply.base_offset), Ok(Offset(3)));
    client.subscribe(&mut node, 9, log(topic, 0), 3, 1 << 20);
    assert_eq!(client.heard(&node), ["data 9 3..4", "caught_up 9 4"]);
    // The scrub comes across it too: an hour has neither many calls nor many words about it.
    let (calls, words) = (node.disk.calls(), node.shards[0].reports.len());
    (0..3_600).for_each(|_| node.pass(1_000));
    let (calls, words) = (node.disk.calls() - calls, node.shards[0].reports.len() - words);
    assert!(calls < 20_000 && words < 10, "{calls} calls, {words} reports: {:?}", node.shards[0].reports);
    node.disk.reads_fail = false;
    let mut reader = node.connect(None);
    reader.subscribe(&mut node, 1, log(topic, 0), 0, 1 << 20);
    assert_eq!(reader.heard(&node).first().map(String::as_str), Some("data 1 0..3"), "as soon as it can");
}
