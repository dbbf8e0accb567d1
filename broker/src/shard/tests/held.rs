//! What connections hold together, and how little those get who go on with nothing.

use super::*;

/// A client that has connected and said nothing.
fn stranger(node: &mut Node, stuck: bool) -> Client {
    let socket = Socket(900 + node.sockets.len() as u64);
    node.sockets.insert(socket, Pipe { stuck, ..Pipe::default() });
    node.shards[0].events.push(Event::Accepted { socket });
    node.settle();
    Client { socket, correlation: 0, read: 0, granted: 0, sent: 0 }
}

fn tight() -> ShardLimits {
    ShardLimits {
        control_bytes_max: 32 << 10,
        out_bytes_max: 16 << 10,
        out_total_bytes_max: 64 << 10,
        receive_total_bytes_max: 64 << 10,
        read_bytes_max: 4 << 10,
        held_ms: 1_000,
        ..ShardLimits::default()
    }
}

/// A request of about that many bytes.
fn large_request(bytes: usize) -> Vec<u8> {
    let names = (0..bytes / 100).map(|n| format!("{n:092}")).collect();
    let mut out = Vec::new();
    MetadataRequest::named(names).encode(7, &mut out);
    out
}

fn frame_of(encode: impl FnOnce(u32, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(1, &mut out);
    out
}

#[test]
fn a_socket_whose_answer_is_not_sent_yet_is_never_handed_over() {
    let mut node = Node::new(2);
    let mut deaf = stranger(&mut node, true);
    let ping = Ping { nonce: 1, produce_bytes: 0, produce_limit: 0 };
    deaf.put(&mut node, &frame_of(|c, out| ping.encode(Kind::Request, c, out)));
    node.settle();
    deaf.put(&mut node, &frame_of(|c, out| hello_request(Some(ShardId(1))).encode(c, out)));
    node.settle();
    assert_eq!(node.sockets[&deaf.socket].shard, 0);
    node.stick(&deaf, false);
    node.settle();
    assert_eq!(deaf.heard(&node), ["Some(Ok(HelloNeeded))"]);
    assert!(node.sockets[&deaf.socket].closed);
}

#[test]
fn a_client_that_says_no_hello_hears_why_it_is_let_go() {
    let mut node = Node::new(1);
    let mut silent = stranger(&mut node, false);
    node.pass(10_200);
    assert_eq!(silent.heard(&node), ["Some(Ok(HelloNeeded))"]);
    assert!(node.sockets[&silent.socket].closed);
}

#[test]
fn a_clients_name_is_kept_and_therefore_short() {
    let mut node = Node::new(1);
    let mut client = stranger(&mut node, false);
    let hello = HelloRequest { client_id: "x".repeat(256), ..hello_request(None) };
    let error = client.refused(&mut node, |c, out| hello.encode(c, out));
    assert_eq!((error.code, error.field.as_str()), (Ok(ErrorCode::InvalidRequest), "client_id"));
    assert!(node.sockets[&client.socket].closed);
    let mut client = stranger(&mut node, false);
    let hello = HelloRequest { client_id: "x".repeat(255), ..hello_request(None) };
    client.ask(&mut node, Api::Hello, |c, out| hello.encode(c, out), HelloReply::decode);
}

#[test]
fn clients_that_do_not_read_hold_little_together_and_those_who_read_go_on() {
    let limits = tight();
    let mut node = Node::with(1, limits, Storage::Durable);
    let mut good = node.connect(None);
    let topic = node.create(&mut good, "t", 1, &[]);
    for _ in 0..100 {
        good.produce(&mut node, log(topic, 0), Acks::None, &batch_of(1, 1000, BatchOrigin::NONE));
    }
    node.settle();
    good.heard(&node);
    node.pass(1_200);
    good.frame(&mut node, |c, out| MetadataRequest::all().encode(c, out));
    let subscribe = |node: &mut Node, client: &mut Client, limit| {
        let request = subscribe_request(1, log(topic, 0), 0, limit);
        client.frame(node, |c, out| request.encode(c, out));
        node.settle();
    };
    let mut deaf: Vec<Client> = (0..40).map(|_| node.connect(None)).collect();
    for client in &mut deaf {
        // What is sent at first goes into the kernel's buffers.
        subscribe(&mut node, client, 1);
        node.stick(client, true);
        let scope = Scope::Subscription(SubscriptionId(1));
        let credit = Credit { scope, limit: u64::MAX, reason: Reason::None, wanted: 0 };
        client.frame(&mut node, |_, out| credit.encode(out));
        node.settle();
    }
    let queued = |node: &Node| node.shards[0].shard.held.queued;
    let most = limits.out_total_bytes_max / 4 * 3 + limits.read_bytes_max + 40 * 200;
    assert!(queued(&node) <= most, "{} bytes are queued", queued(&node));
    let is_served =
        |node: &Node, client: &mut Client| client.heard(node).iter().any(|frame| frame == "caught_up 1 100");
    subscribe(&mut node, &mut good, u64::MAX);
    assert!(is_served(&node, &mut good), "who was there and reads goes on at once");
    let mut newcomer = node.connect(None);
    subscribe(&mut node, &mut newcomer, u64::MAX);
    assert!(!is_served(&node, &mut newcomer));
    node.pass(1_200);
    assert!(is_served(&node, &mut newcomer), "others once the deaf are ended");
    let ended = deaf.iter().filter(|client| node.sockets[&client.socket].closed).count();
    assert!((1..40).contains(&ended), "{ended} of them were ended: as many as it takes");
    assert!(queued(&node) <= limits.out_total_bytes_max, "{} bytes are queued", queued(&node));
}

#[test]
fn heartbeats_do_not_pile_up_for_a_client_that_does_not_read() {
    let mut node = Node::new(1);
    let mut deaf = node.connect(None);
    let topic = node.create(&mut deaf, "t", 1, &[]);
    deaf.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    node.stick(&deaf, true);
    for _ in 0..20 {
        node.pass(1_100);
    }
    let queued = node.shards[0].shard.held.queued;
    assert!((1..100).contains(&queued), "{queued} bytes are queued");
    node.stick(&deaf, false);
    node.settle();
    node.pass(1_100);
    let heard = deaf.heard(&node);
    assert_eq!(heard, ["caught_up 1 0", "heartbeat 1", "heartbeat 1"]);
}

#[test]
fn requests_of_a_client_that_does_not_read_wait_when_much_is_queued_to_others() {
    let limits = ShardLimits { out_total_bytes_max: 16 << 10, ..tight() };
    let mut node = Node::with(1, limits, Storage::Durable);
    let mut deaf: Vec<Client> = (0..4).map(|_| node.connect(None)).collect();
    for client in &mut deaf {
        node.stick(client, true);
        for _ in 0..200 {
            client.frame(&mut node, |c, out| MetadataRequest::all().encode(c, out));
        }
        node.settle();
    }
    let queued = node.shards[0].shard.held.queued;
    assert!(queued <= 12 << 10, "{queued} bytes are queued");
    for client in &mut deaf {
        node.stick(client, false);
        node.settle();
        assert_eq!(client.heard(&node).len(), 200, "everything is answered once it reads");
    }
}

#[test]
fn frames_that_do_not_come_whole_take_so_much_memory_and_the_oldest_make_room() {
    let limits = tight();
    let mut node = Node::with(1, limits, Storage::Durable);
    let begun = large_request(30_000);
    let begin = |node: &mut Node| {
        let mut client = node.connect(None);
        client.put(node, &begun[..begun.len() - 1]);
        node.settle();
        client
    };
    let mut first: Vec<Client> = (0..2).map(|_| begin(&mut node)).collect();
    assert!(first.iter().all(|client| !node.sockets[&client.socket].closed));
    let mut third = begin(&mut node);
    assert_eq!(third.heard(&node), ["Some(Ok(LimitReached))"]);
    assert!(node.sockets[&third.socket].closed && node.shards[0].shard.held.set_aside <= 64 << 10);
    // What is small always comes through.
    let mut good = node.connect(None);
    node.create(&mut good, "t", 1, &[]);

    node.pass(100);
    node.pass(1_200);
    assert!(!node.sockets[&first[0].socket].closed, "nobody needs the memory now");
    begin(&mut node);
    node.pass(100);
    for client in &mut first {
        assert_eq!(client.heard(&node), ["Some(Ok(LimitReached))"]);
        assert!(node.sockets[&client.socket].closed);
    }
    let mut next = begin(&mut node);
    next.put(&mut node, &begun[begun.len() - 1..]);
    node.settle();
    assert_eq!(next.heard(&node), ["Metadata"]);
}

#[test]
fn a_shard_has_so_many_subscriptions_and_no_more() {
    let limits = ShardLimits { subscriptions_total_max: 3, ..ShardLimits::default() };
    let mut node = Node::with(1, limits, Storage::Durable);
    let (mut one, mut other) = (node.connect(None), node.connect(None));
    let topic = node.create(&mut one, "t", 1, &[]);
    one.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    one.heard(&node);
    one.subscribe(&mut node, 2, log(topic, 0), 0, 1000);
    other.subscribe(&mut node, 1, log(topic, 0), 0, 1000);
    other.heard(&node);
    let request = subscribe_request(2, log(topic, 0), 0, 1000);
    let error = other.refused(&mut node, |c, out| request.encode(c, out));
    assert_eq!((error.code, error.limit), (Ok(ErrorCode::LimitReached), 3));
    node.hang_up(&one);
    other.subscribe(&mut node, 2, log(topic, 0), 0, 1000);
}

#[test]
fn few_large_answers_are_gathered_for_one_client_at_a_time() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    node.create(&mut client, "t", 2, &[]);
    let describe = DescribeTopicRequest { names: Vec::new(), after: String::new() };
    for _ in 0..50 {
        client.frame(&mut node, |c, out| describe.encode(c, out));
    }
    node.turn(0);
    let under_way = node.shards[0].shard.gathers.len();
    assert!((1..=3).contains(&under_way), "{under_way} are under way");
    node.settle();
    assert_eq!(client.heard(&node), ["DescribeTopic"; 50]);
}

#[test]
fn little_of_a_large_buffer_is_copied_when_it_is_queued() {
    let mut out = super::super::outbound::Outbound::default();
    let buffer = View::copy_of(&vec![b'x'; 1 << 20]);
    assert_eq!(out.put_view(buffer.slice(0..10_000)), 10_000);
    assert_eq!(out.put_view(buffer.slice(0..500_000)), 500_000);
    let views = out.take(10);
    assert_eq!(views.iter().map(|view| view.len()).collect::<Vec<_>>(), [10_000, 500_000]);
    assert!(views[0].pinned() < 20_000 && views[1].pinned() >= 1 << 20);
}
