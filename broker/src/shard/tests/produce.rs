//! What a produce is answered, and when.

use super::super::connection::ConnectionId;
use super::*;

#[test]
fn a_record_goes_in_and_comes_out() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(3));
    node.settle();
    let reply = client.produced(&mut node).expect("accepted");
    assert_eq!((reply.base_offset, reply.record_count, reply.level), (Offset(0), 3, Level::Disk));
    assert_eq!(reply.leader_epoch, LeaderEpoch(3));
    let reply = client.subscribe(&mut node, 5, log(topic, 0), 0, 1000);
    assert_eq!((reply.start, reply.committed), (Offset(0), Offset(3)));
    assert_eq!(client.heard(&node), ["data 5 0..3", "caught_up 5 3"]);
    client.produce(&mut node, log(topic, 0), Acks::None, &records(1));
    node.settle();
    assert_eq!(client.heard(&node), ["data 5 3..4"]);
}

#[test]
fn a_reply_waits_for_the_flush_and_only_a_relaxed_topic_answers_from_memory() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    let relaxed = node.create(&mut client, "relaxed", 1, &[("durability", "relaxed")]);
    for topic in [durable, relaxed] {
        client.produce(&mut node, log(topic, 0), Acks::All, &records(1));
    }
    // One turn takes in both; the flush of their cycle has not ended.
    node.turn(0);
    let reply = client.produced(&mut node).expect("the relaxed one is answered");
    assert_eq!(reply.level, Level::Memory);
    assert!(client.next(&node).is_none(), "the durable one waits");
    node.settle();
    assert_eq!(client.produced(&mut node).expect("flushed").level, Level::Disk);
}

#[test]
fn replies_of_one_partition_come_in_order_refusals_too() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let mut bad = records(1);
    let last = bad.len() - 1;
    bad[last] ^= 1;
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    client.produce(&mut node, log(topic, 0), Acks::Leader, &bad);
    client.produce(&mut node, log(topic, 0), Acks::None, &bad);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.turn(0);
    assert!(client.next(&node).is_none(), "nothing overtakes the first");
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::BatchCorrupt));
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::BatchCorrupt), "acks=0 hears of refusals");
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(1)));
}

#[test]
fn a_repeated_batch_joins_the_waiters_of_the_original() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let init = ProducerInitRequest { transactional_id: None, transaction_timeout_ms: 0, producer: None };
    let producer: ProducerInitReply =
        client.ask(&mut node, Api::ProducerInit, |c, out| init.encode(c, out), ProducerInitReply::decode);
    assert_eq!(producer, ProducerInitReply { producer_id: ProducerId(0), producer_epoch: ProducerEpoch(0) });
    let first = batch_of(2, 10, origin(producer, 0));
    for _ in 0..2 {
        client.produce(&mut node, log(topic, 0), Acks::Leader, &first);
    }
    node.turn(0);
    assert!(client.next(&node).is_none(), "the repetition is not answered before the original");
    node.settle();
    for _ in 0..2 {
        assert_eq!(client.produced(&mut node).map(|r| (r.base_offset, r.record_count)), Ok((Offset(0), 2)));
    }
    // Long after the flush a repetition is answered at once; a gap is refused with what was expected.
    client.produce(&mut node, log(topic, 0), Acks::Leader, &first);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &batch_of(1, 10, origin(producer, 7)));
    node.turn(0);
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
    let error = client.produced(&mut node).expect_err("a gap");
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::OutOfSequence), 2, 7));
}

#[test]
fn produce_is_refused_for_each_reason_with_its_own_code() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[("batch.bytes.max", "1024")]);
    let here = i32::from(!node.shards[0].shard.partitions.contains_key(&log(topic, 0)));
    let cases = [
        (log(TopicId([9; 16]), 0), records(1), ErrorCode::UnknownTopic),
        (log(TopicId::METADATA, 0), records(1), ErrorCode::UnknownTopic),
        (log(topic, 2), records(1), ErrorCode::UnknownPartition),
        (log(topic, -1), records(1), ErrorCode::UnknownPartition),
        (log(topic, here), batch_of(1, 2000, BatchOrigin::NONE), ErrorCode::BatchTooLarge),
        (log(topic, here), Vec::new(), ErrorCode::InvalidRequest),
        (log(topic, here), records(1)[..50].to_vec(), ErrorCode::BatchInvalid),
    ];
    for (log, batches, expected) in cases {
        client.produce(&mut node, log, Acks::Leader, &batches);
        node.settle();
        assert_eq!(code(client.produced(&mut node)), Ok(expected), "{log:?}");
    }
    let stale =
        ProduceRequest { partition: log(topic, here), leader_epoch: LeaderEpoch(2), acks: Acks::Leader };
    let body = records(1);
    client.credit(&mut node, 1000);
    let error = client.refused(&mut node, |c, out| {
        stale.encode_head(c, body.len(), out);
        out.extend_from_slice(&body);
    });
    assert_eq!((error.code, error.limit), (Ok(ErrorCode::StaleEpoch), 3));
}

#[test]
fn without_credit_a_produce_is_refused_and_the_connection_stays() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let frame = client.produce_frame(log(topic, 0), Acks::Leader, &records(1));
    client.put(&mut node, &frame);
    client.sent += frame.len() as u64;
    node.settle();
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::OutOfCredit));
    let ping = Ping { nonce: 5, produce_bytes: 0, produce_limit: 0 };
    let pong = client.ask(
        &mut node,
        Api::Ping,
        |c, out| ping.encode(Kind::Request, c, out),
        |f| Ping::decode(f, Kind::Reply),
    );
    assert_eq!(pong, Ping { nonce: 5, produce_bytes: frame.len() as u64, produce_limit: 0 });
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
}

#[test]
fn storage_that_cannot_flush_never_claims_disk() {
    let mut node = Node::with(1, ShardLimits::default(), Storage::Volatile { allowed: false });
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    let relaxed = node.create(&mut client, "relaxed", 1, &[("durability", "relaxed")]);
    client.produce(&mut node, log(durable, 0), Acks::Leader, &records(1));
    client.produce(&mut node, log(relaxed, 0), Acks::Leader, &records(1));
    node.settle();
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::DurabilityNotAvailable));
    assert_eq!(client.produced(&mut node).map(|r| r.level), Ok(Level::Memory));

    let mut node = Node::with(1, ShardLimits::default(), Storage::Volatile { allowed: true });
    let mut client = node.connect(None);
    let durable = node.create(&mut client, "durable", 1, &[]);
    client.produce(&mut node, log(durable, 0), Acks::All, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| r.level), Ok(Level::Memory));
}

/// A pool with room for one holder.
fn tight() -> ShardLimits {
    let produce = PoolLimits {
        pool_bytes: 4 << 20,
        overshoot_bytes: 3 << 20,
        window_bytes: 1 << 20,
        start_bytes: 1 << 20,
    };
    ShardLimits { produce, ..ShardLimits::default() }
}

fn ask_for_credit(client: &mut Client, node: &mut Node, wanted: u64) {
    let ask = Credit { scope: Scope::Produce, limit: client.granted, reason: Reason::None, wanted };
    client.frame(node, |_, out| ask.encode(out));
}

#[test]
fn who_gets_no_credit_hears_why_and_gets_it_when_there_is_room() {
    let mut node = Node::with(1, tight(), Storage::Durable);
    let (mut first, mut second) = (node.connect(None), node.connect(None));
    first.credit(&mut node, 1 << 20);
    ask_for_credit(&mut second, &mut node, 1000);
    node.settle();
    let answer = second.next(&node).expect("an answer");
    let told = Credit::decode(&whole(&answer)).expect("credit");
    assert_eq!((told.limit, told.reason), (0, Reason::Memory));
    ask_for_credit(&mut second, &mut node, 1000);
    node.settle();
    assert!(second.next(&node).is_none(), "it is told once, so that nobody asks in circles");
    // The first one does not use what it holds.
    node.pass(1_900);
    assert!(second.next(&node).is_none());
    node.pass(200);
    assert!(node.sockets[&first.socket].closed);
    let told = first.next(&node).expect("a farewell");
    let error = error_of(&whole(&told)).expect("an error frame");
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::LimitReached), 2_000, 2_100));
    let answer = second.next(&node).expect("room has come back");
    let told = Credit::decode(&whole(&answer)).expect("credit");
    assert_eq!((told.limit, told.reason), (1000, Reason::None));
}

/// The reason of the next credit frame; others are passed over.
fn told(client: &mut Client, node: &Node) -> Option<Reason> {
    loop {
        let bytes = client.next(node)?;
        if let Ok(credit) = Credit::decode(&whole(&bytes)) {
            client.granted = credit.limit;
            return Some(credit.reason);
        }
    }
}

#[test]
fn on_a_full_drive_who_waits_hears_that_it_is_full_once_whatever_was_the_reason_before() {
    let mut node = Node::new(1);
    let (mut first, mut second) = (node.connect(None), node.connect(None));
    let topic = node.create(&mut first, "t", 1, &[("durability", "relaxed")]);
    node.disk.full = true;
    let large = batch_of(9, 100 << 10, BatchOrigin::NONE);
    let mut reason = Reason::None;
    for _ in 0..1000 {
        ask_for_credit(&mut first, &mut node, 1 << 20);
        if first.granted > first.sent {
            let frame = first.produce_frame(log(topic, 0), Acks::None, &large);
            first.sent += frame.len() as u64;
            first.put(&mut node, &frame);
        }
        node.pass(100);
        while let Some(next) = told(&mut first, &node) {
            reason = next;
        }
        if reason == Reason::DiskFull {
            break;
        }
    }
    assert_eq!(reason, Reason::DiskFull);
    ask_for_credit(&mut second, &mut node, 1000);
    node.settle();
    assert_eq!(told(&mut second, &node), Some(Reason::DiskFull));
    ask_for_credit(&mut second, &mut node, 1000);
    node.settle();
    assert_eq!(told(&mut second, &node), None, "once");
    let id = ConnectionId(second.socket.0);
    node.shards[0].shard.connections.get_mut(&id).expect("open").told = Some(Reason::Memory);
    ask_for_credit(&mut second, &mut node, 1000);
    node.settle();
    assert_eq!(told(&mut second, &node), Some(Reason::DiskFull), "it is news to who waited for memory");
}

#[test]
fn a_frame_that_is_still_coming_is_not_ended_as_idle() {
    let mut node = Node::with(1, tight(), Storage::Durable);
    let (mut first, mut second) = (node.connect(None), node.connect(None));
    let topic = node.create(&mut first, "t", 1, &[]);
    first.credit(&mut node, 1000);
    let frame = first.produce_frame(log(topic, 0), Acks::Leader, &records(20));
    ask_for_credit(&mut second, &mut node, 1000);
    for piece in frame.chunks(frame.len().div_ceil(8)) {
        node.pass(1_000);
        first.put(&mut node, piece);
        node.settle();
    }
    assert_eq!(first.produced(&mut node).map(|reply| reply.base_offset), Ok(Offset(0)));
    assert!(!node.sockets[&first.socket].closed);
}

#[test]
fn many_who_ask_for_all_credit_and_send_nothing_hold_up_a_producer_for_seconds_at_the_most() {
    // As many to the small pool of this node as 150 are to a real one.
    const TAKERS: usize = 20;
    let mut node = Node::new(1);
    let mut producer = node.connect(None);
    let topic = node.create(&mut producer, "t", 1, &[]);
    let mut takers: Vec<Client> = (0..TAKERS).map(|_| node.connect(None)).collect();
    for taker in &mut takers {
        ask_for_credit(taker, &mut node, 1 << 40);
    }
    node.settle();
    let granted = |taker: &mut Client| taker.heard(&node).is_empty() && taker.granted > 0;
    assert!(!takers.iter_mut().all(granted), "there is not enough for all");
    ask_for_credit(&mut producer, &mut node, 1000);
    let mut waited_ms = 0;
    while producer.granted == 0 {
        node.pass(100);
        waited_ms += 100;
        assert_eq!(producer.heard(&node), [""; 0]);
        assert!(waited_ms <= 9_000, "it waits for {waited_ms} ms");
    }
    // Once it has sent something, the others do not hold it up any more.
    for offset in 0..50 {
        let frame = producer.produce_frame(log(topic, 0), Acks::Leader, &records(1));
        producer.put(&mut node, &frame);
        ask_for_credit(&mut producer, &mut node, 1000);
        node.pass(100);
        assert_eq!(producer.produced(&mut node).map(|reply| reply.base_offset), Ok(Offset(offset)));
        producer.heard(&node);
    }
}

#[test]
fn a_produce_for_another_shard_is_one_letter_there_and_one_back() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    let there = i32::from(node.shards[0].shard.partitions.contains_key(&log(topic, 0)));
    let mut bad = records(1);
    let last = bad.len() - 1;
    bad[last] ^= 1;
    client.produce(&mut node, log(topic, there), Acks::Leader, &records(2));
    client.produce(&mut node, log(topic, there), Acks::None, &records(2));
    client.produce(&mut node, log(topic, there), Acks::Leader, &bad);
    client.produce(&mut node, log(topic, there), Acks::All, &records(2));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|r| (r.base_offset, r.level)), Ok((Offset(0), Level::Disk)));
    assert_eq!(code(client.produced(&mut node)), Ok(ErrorCode::BatchCorrupt));
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(4)));
    let shard = &node.shards[0].shard;
    assert!(shard.asked_elsewhere.is_empty(), "nothing is left behind, for acks=0 neither");
    assert_eq!(shard.connections.values().next().map(|c| c.in_flight), Some(0));
    let error =
        client.refused(&mut node, |c, out| subscribe_request(1, log(topic, there), 0, 9).encode(c, out));
    assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::WrongShard), 1, 0));
    assert_eq!(error.address, ":0", "where the owner can be reached");
}

/// Sends frames of large batches until `full`; how many.
fn fill_up(node: &mut Node, client: &mut Client, log: TopicPartition, full: impl Fn(&Node) -> bool) -> usize {
    let large = batch_of(9, 100 << 10, BatchOrigin::NONE);
    for sent in 0..1000 {
        if full(node) {
            return sent;
        }
        // As if room had gone since the grant.
        let shard = node.sockets[&client.socket].shard;
        let now_ns = node.now.mono_ns;
        let pool = &mut node.shards[shard].shard.pool;
        let mut grants = Vec::new();
        pool.asked(now_ns, ConnectionId(client.socket.0).holder(), 1 << 20);
        pool.grant(now_ns, u64::MAX, &mut grants);
        let frame = client.produce_frame(log, Acks::Leader, &large);
        client.put(node, &frame);
        node.pass(1);
    }
    panic!("it does not get full");
}

/// All replies so far, which have to be in order and none a refusal.
fn accepted(node: &Node, client: &mut Client, mut already: i64) -> i64 {
    while let Some(bytes) = client.next(node) {
        let frame = whole(&bytes);
        if Credit::decode(&frame).is_ok() {
            continue;
        }
        let reply = ProduceReply::decode(&frame).unwrap_or_else(|_| panic!("{:?}", error_of(&frame)));
        assert_eq!(reply.base_offset, Offset(9 * already));
        already += 1;
    }
    already
}

#[test]
fn a_produce_within_its_credit_waits_for_room_and_is_not_refused() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    node.drive_hangs = true;
    let sent =
        fill_up(&mut node, &mut client, log(topic, 0), |node| node.shards[0].shard.stats.room_waits > 0);
    node.pass(1_000);
    let mut replies = accepted(&node, &mut client, 0);
    assert!(replies < sent as i64, "the drive hangs");
    assert!(!node.sockets[&client.socket].closed);
    node.drive_goes_on();
    for _ in 0..600 {
        node.pass(100);
        replies = accepted(&node, &mut client, replies);
    }
    assert_eq!(replies, sent as i64);
}

#[test]
fn a_produce_by_mail_waits_for_room_likewise_and_its_senders_bytes_are_bounded() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[("durability", "relaxed")]);
    let there = i32::from(node.shards[0].shard.partitions.contains_key(&log(topic, 0)));
    node.drive_hangs = true;
    let sent = fill_up(&mut node, &mut client, log(topic, there), |node| {
        let [sender, owner] = [0, 1].map(|shard: usize| &node.shards[shard].shard);
        !owner.letters.is_empty() && sender.stats.room_waits > 0
    });
    let [sender, owner] = [0, 1].map(|shard: usize| &node.shards[shard].shard);
    let waiting: usize = sender.produce_mailed.iter().sum();
    assert!(waiting <= sender.limits.mail_produce_bytes_max && owner.letters.len() * 900_000 <= waiting);
    node.pass(1_000);
    let mut replies = accepted(&node, &mut client, 0);
    assert!(replies < sent as i64, "the drive hangs");
    node.drive_goes_on();
    for _ in 0..600 {
        node.pass(100);
        replies = accepted(&node, &mut client, replies);
    }
    assert_eq!(replies, sent as i64);
    assert_eq!(node.shards[0].shard.produce_mailed, [0, 0]);
    assert!(node.shards[1].shard.letters.is_empty());
}

#[test]
fn letters_that_wait_for_room_are_answered_when_the_shard_stops() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[("durability", "relaxed")]);
    let there = i32::from(node.shards[0].shard.partitions.contains_key(&log(topic, 0)));
    node.drive_hangs = true;
    fill_up(&mut node, &mut client, log(topic, there), |node| node.shards[1].shard.letters.len() > 1);
    node.shards[1].events.push(Event::Order { letter: Box::new(Order::Stop) });
    node.settle();
    assert!(node.shards[1].shard.letters.is_empty());
    assert!(client.heard(&node).iter().any(|heard| heard.contains("NotReady")));
}

#[test]
fn below_the_floor_a_produce_is_told_what_is_needed_and_the_operator_hears_once_of_each_change() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let told = node.shards[0].reports.len();
    client.credit(&mut node, 1 << 20);
    node.disk.space = Some(FreeSpace { free_bytes: 5 << 20, total_bytes: 1 << 40 });
    node.pass(1_000);
    for _ in 0..2 {
        client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
        node.settle();
        let error = client.produced(&mut node).unwrap_err();
        let (needed, free) = ((1 << 30) + (1 << 28), 5 << 20);
        assert_eq!((error.code, error.limit, error.current), (Ok(ErrorCode::DiskFull), needed, free));
        assert!(error.cause.contains("5 MiB free") && error.hint.contains("free_space_floor"), "{error}");
    }
    node.disk.space = Some(FreeSpace { free_bytes: 2 << 30, total_bytes: 1 << 40 });
    node.pass(1_000);
    client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.settle();
    assert_eq!(client.produced(&mut node).map(|reply| reply.base_offset), Ok(Offset(0)));
    let reports = &node.shards[0].reports[told..];
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports[0].contains("ProduceRefused") && reports[1].contains("ProduceTaken"), "{reports:?}");
}
