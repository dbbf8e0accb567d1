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
