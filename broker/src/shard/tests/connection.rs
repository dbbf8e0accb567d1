//! From the first byte of a connection to the last of a shard.

use super::*;

#[test]
fn a_stream_that_cannot_be_trusted_is_answered_and_closed_and_others_go_on() {
    let mut node = Node::new(1);
    let (mut bad, mut good) = (node.connect(None), node.connect(None));
    bad.put(&mut node, &[0xff; 4]);
    node.settle();
    let answer = bad.next(&node).expect("an error frame");
    assert_eq!(error_of(&whole(&answer)).map(|e| e.code), Some(Ok(ErrorCode::FrameTooLarge)));
    assert!(node.sockets[&bad.socket].closed);
    assert_eq!(node.shards[0].shard.connections.len(), 1);
    node.create(&mut good, "t", 1, &[]);
}

#[test]
fn only_a_produce_may_be_longer_than_the_documented_limit_of_the_others() {
    let limit = ShardLimits::default().control_bytes_max;
    let document = include_str!("../../../../docs/WIRE_FORMAT.md");
    assert!(document.contains("262,144 for every other api") && limit == 262_144);
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    let commit = |note: usize| OffsetCommitRequest {
        group: "g".into(),
        generation: -1,
        member: String::new(),
        offsets: vec![StoredOffset {
            partition: log(topic, 0),
            offset: Offset(0),
            leader_epoch: LeaderEpoch::UNKNOWN,
            metadata: "x".repeat(note),
        }],
    };
    // Below the limit of a frame it is the note itself that is too long, and the connection goes on.
    let reply: OffsetCommitReply = client.ask(
        &mut node,
        Api::OffsetCommit,
        |c, out| commit(250_000).encode(c, out),
        OffsetCommitReply::decode,
    );
    assert!(reply.results[0].is_some(), "a note has at most 1,024 bytes");
    let error = client.refused(&mut node, |c, out| commit(300_000).encode(c, out));
    assert_eq!((error.code, error.limit), (Ok(ErrorCode::FrameTooLarge), i64::from(limit)));
    assert!(node.sockets[&client.socket].closed);
}

#[test]
fn an_unknown_api_is_refused_and_the_connection_stays() {
    let mut node = Node::new(1);
    let mut client = node.connect(None);
    let error = client.refused(&mut node, |c, out| {
        frame::encode(99, 1, Kind::Request, c, &[0u8; 0][..], 0, out);
    });
    assert_eq!(error.code, Ok(ErrorCode::UnsupportedVersion));
    node.create(&mut client, "t", 1, &[]);
}

#[test]
fn frames_cut_anywhere_mean_the_same() {
    for piece in [1, 7, 64, 5000] {
        let mut node = Node::new(1);
        let mut client = node.connect(None);
        let topic = node.create(&mut client, "t", 1, &[]);
        let mut stream = Vec::new();
        for _ in 0..5 {
            stream.extend(client.produce_frame(
                log(topic, 0),
                Acks::Leader,
                &batch_of(3, 900, BatchOrigin::NONE),
            ));
        }
        client.credit(&mut node, stream.len() as u64);
        for bytes in stream.chunks(piece) {
            client.put(&mut node, bytes);
            node.turn(0);
        }
        node.settle();
        for expected in 0..5 {
            assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(expected * 3)));
        }
    }
}

#[test]
fn a_connection_goes_to_the_shard_that_it_asks_for() {
    let mut node = Node::new(3);
    for shard in 0..3 {
        let mut client = node.connect(Some(shard));
        assert_eq!(node.sockets[&client.socket].shard, usize::from(shard));
        node.create(&mut client, &format!("t{shard}"), 3, &[]);
    }
    let mut client = node.connect(None);
    let request = MetadataRequest::all();
    let reply: MetadataReply =
        client.ask(&mut node, Api::Metadata, |c, out| request.encode(c, out), MetadataReply::decode);
    let names: Vec<&str> = reply.topics.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["t0", "t1", "t2"]);
    assert!(reply.topics.iter().all(|t| t.partitions.len() == 3));
    let socket = Socket(999);
    node.sockets.insert(socket, Pipe::default());
    node.shards[0].events.push(Event::Accepted { socket });
    let mut stranger = Client { socket, correlation: 0, read: 0, granted: 0, sent: 0 };
    let error = stranger.refused(&mut node, |c, out| hello_request(Some(ShardId(7))).encode(c, out));
    assert_eq!((error.code, error.field.as_str()), (Ok(ErrorCode::InvalidRequest), "shard"));
}

#[test]
fn a_client_that_does_not_say_hello_is_let_go() {
    let mut node = Node::new(1);
    let socket = Socket(900);
    node.sockets.insert(socket, Pipe::default());
    node.shards[0].events.push(Event::Accepted { socket });
    node.settle();
    node.pass(9_000);
    assert!(!node.sockets[&socket].closed);
    node.pass(1_200);
    assert!(node.sockets[&socket].closed);
}

#[test]
fn a_stop_answers_what_is_under_way_and_then_ends() {
    let mut node = Node::new(2);
    let mut client = node.connect(Some(0));
    let topic = node.create(&mut client, "t", 2, &[]);
    let here = i32::from(!node.shards[0].shard.partitions.contains_key(&log(topic, 0)));
    client.produce(&mut node, log(topic, here), Acks::Leader, &records(1));
    node.turn(0);
    for core in &mut node.shards {
        core.events.push(Event::Order { letter: Box::new(Order::Stop) });
    }
    node.settle();
    node.pass(200);
    assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(0)));
    assert!(node.sockets[&client.socket].closed);
    assert!(node.shards.iter().all(|core| core.stopped));
}

#[test]
fn bytes_of_every_kind_harm_nobody_but_who_sent_them() {
    let mut random = Random(7);
    let mut node = Node::new(2);
    let mut good = node.connect(Some(0));
    let topic = node.create(&mut good, "t", 2, &[]);
    for round in 0..400 {
        let mut bad = node.connect(Some((round % 2) as u16));
        let mut stream = bad.produce_frame(log(topic, (round % 3) - 1), Acks::All, &records(3));
        let list = ListOffsetsRequest { partition: log(topic, 0), query: OffsetQuery::AppendTime(5) };
        list.encode(900, &mut stream);
        subscribe_request(1, log(topic, round % 2), 0, 1 << 40).encode(901, &mut stream);
        create_request("other name", 3, &[("retention.ms", "x")]).encode(902, &mut stream);
        MetadataRequest::all().encode(903, &mut stream);
        for _ in 0..random.below(4) {
            let at = random.below(stream.len());
            stream[at] ^= 1 << random.below(8);
        }
        stream.truncate(stream.len() - random.below(40));
        while !stream.is_empty() && !node.sockets[&bad.socket].closed {
            let len = (1 + random.below(200)).min(stream.len());
            let piece: Vec<u8> = stream.drain(..len).collect();
            bad.put(&mut node, &piece);
            node.turn(round as usize % 2);
        }
        node.settle();
        bad.heard(&node);
        node.hang_up(&bad);
    }
    good.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    good.produce(&mut node, log(topic, 1), Acks::Leader, &records(1));
    node.settle();
    assert!(good.produced(&mut node).is_ok() && good.produced(&mut node).is_ok());
    assert_eq!(node.shards.iter().map(|core| core.shard.connections.len()).sum::<usize>(), 1);
    assert!(node.shards.iter().all(|core| core.shard.readers.is_empty()));
}

#[test]
fn from_a_client_that_reads_nothing_nothing_more_is_read() {
    let limits = ShardLimits { out_bytes_max: 16 << 10, ..ShardLimits::default() };
    let mut node = Node::with(1, limits, Storage::Durable);
    let (mut deaf, mut other) = (node.connect(None), node.connect(None));
    let topic = node.create(&mut other, "t", 1, &[]);
    node.stick(&deaf, true);
    for _ in 0..2000 {
        deaf.frame(&mut node, |c, out| MetadataRequest::all().encode(c, out));
        node.turn(0);
    }
    node.settle();
    let connection = node.shards[0].shard.connections.values().next().expect("the deaf one");
    assert!(connection.queued() < 40 << 10, "{} bytes are queued", connection.queued());
    other.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    node.settle();
    assert!(other.produced(&mut node).is_ok(), "others go on");
    node.stick(&deaf, false);
    node.settle();
    assert_eq!(deaf.heard(&node).len(), 2000, "everything is answered once it reads again");
}

#[test]
fn so_many_requests_may_be_under_way_and_the_next_ones_wait() {
    let limits = ShardLimits { in_flight_max: 3, ..ShardLimits::default() };
    let mut node = Node::with(1, limits, Storage::Durable);
    let mut client = node.connect(None);
    let topic = node.create(&mut client, "t", 1, &[]);
    for _ in 0..10 {
        client.produce(&mut node, log(topic, 0), Acks::Leader, &records(1));
    }
    node.turn(0);
    assert_eq!(node.shards[0].shard.logs.positions(log(topic, 0)).map(|p| p.appended), Some(Offset(3)));
    node.settle();
    for expected in 0..10 {
        assert_eq!(client.produced(&mut node).map(|r| r.base_offset), Ok(Offset(expected)));
    }
}
