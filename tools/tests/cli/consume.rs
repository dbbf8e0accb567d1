//! `tg consume` where something is wrong: with what was typed, or with what is stored.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{HelloReply, HelloRequest};
use tidegate_protocol::api::produce::{Acks, ProduceReply, ProduceRequest};
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, set_origin};
use tidegate_protocol::frame::{Frame, Kind, Split, split};
use tidegate_protocol::ids::{LeaderEpoch, PartitionId, TopicId, TopicPartition};

use crate::world::{self, Dev, tg};
use crate::{lines, objects};

#[test]
fn what_makes_no_sense_is_refused_without_a_broker_and_says_what_would() {
    let cases: [(&[&str], &str); 9] = [
        (&["consume", "t", "--until", "-1"], "--from -N"),
        (&["consume", "t", "--until", "soon"], "an offset from 0 on"),
        (&["consume", "t", "--group", ""], "1 to 255 bytes"),
        (&["offsets", "t", "--group", ""], "1 to 255 bytes"),
        (&["-o", "json", "consume", "t", "--raw"], "--raw"),
        (&["-o", "json", "consume", "t", "-f", "%v"], "--format"),
        (&["consume", "t", "-f", "%q"], "%s"),
        (&["consume", "t", "-p", "-1"], "-1 is not in 0.."),
        (&["consume", "t", "--from", "soon"], "earliest"),
    ];
    for (args, word) in cases {
        let ran = tg(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        let fix = if args[0] == "-o" { "\"fix\":" } else { "fix: " };
        assert!(ran.stderr.contains(word) && ran.stderr.contains(fix), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn every_letter_of_a_format_is_in_the_help() {
    let help = tg(&["consume", "--help"]).ok().stdout;
    for letter in ["%t", "%p", "%o", "%k", "%K", "%v", "%s", "%S", "%T", "%h", "%%", "\\xHH"] {
        assert!(help.contains(letter), "{letter} in {help}");
    }
    let help = tg(&["produce", "--help"]).ok().stdout;
    assert!(help.contains("%s") && help.contains("-K '\\t'"), "{help}");
}

#[test]
fn a_start_behind_the_end_is_out_of_range_in_the_partitions_where_it_is() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--partitions", "2"]).ok();
    dev.tg_with_input(&["produce", "t", "-p", "0"], b"a\nb\nc\n").ok();
    dev.tg_with_input(&["produce", "t", "-p", "1"], b"d\n").ok();
    let ran = dev.tg(&["consume", "t", "--from", "2"]);
    assert_eq!((ran.code, lines(&ran)), (5, vec!["c"]), "{}", ran.stderr);
    for word in ["out of range", "partition 1", "earliest 0, end 1", "current: 2", "fix:"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert_eq!(lines(&dev.tg(&world::advice(&ran.stderr)).ok()), ["d"]);
    assert_eq!(lines(&dev.tg(&["consume", "t", "-p", "0", "--from", "3"]).ok()), [""; 0], "the end itself");
    assert_eq!(dev.tg(&["consume", "t", "-p", "0", "--from", "4", "--follow"]).code, 5);
    dev.stop();
}

/// Appends a batch of three records to partition 0 that no client would send: its checksum is right, its records are
/// none. The broker does not look into batches.
fn produce_garbage(server: &str, topic: TopicId) {
    let mut socket = TcpStream::connect(server).unwrap();
    let hello = HelloRequest {
        version_min: 1,
        version_max: 1,
        client_id: "test".into(),
        software: "test".into(),
        shard: None,
    };
    let mut out = Vec::new();
    hello.encode(0, &mut out);
    socket.write_all(&out).unwrap();
    reply(&mut socket, |frame| HelloReply::decode(frame).is_ok());
    let mut out = Vec::new();
    Credit { scope: Scope::Produce, limit: 0, reason: Reason::None, wanted: 1 << 16 }.encode(&mut out);
    socket.write_all(&out).unwrap();
    reply(&mut socket, |frame| Credit::decode(frame).is_ok_and(|credit| credit.limit > 0));
    let mut builder = BatchBuilder::new(Vec::new());
    for value in ["x", "y", "z"] {
        builder.push(1000, None, Some(value.as_bytes()), std::iter::empty());
    }
    let mut batch = builder.finish(BatchOrigin::NONE);
    batch[61..].fill(0xff);
    // Its checksum is made anew.
    set_origin(&mut batch, BatchOrigin::NONE);
    let partition = TopicPartition { topic, partition: PartitionId(0) };
    let request = ProduceRequest { partition, leader_epoch: LeaderEpoch::UNKNOWN, acks: Acks::Leader };
    let mut out = Vec::new();
    request.encode_head(1, batch.len(), &mut out);
    out.extend_from_slice(&batch);
    socket.write_all(&out).unwrap();
    reply(&mut socket, |frame| ProduceReply::decode(frame).is_ok());
}

/// Reads frames until one is the wanted one.
fn reply(socket: &mut TcpStream, wanted: impl Fn(&Frame<'_>) -> bool) {
    let mut bytes = Vec::new();
    loop {
        while let Split::Frame(frame) = split(&bytes, 1 << 20).unwrap() {
            assert_ne!(frame.kind, Kind::Error, "{:?}", ErrorBody::decode(&frame));
            if wanted(&frame) {
                return;
            }
            let len = frame.len();
            bytes.drain(..len);
        }
        let mut piece = [0; 4096];
        let count = socket.read(&mut piece).unwrap();
        assert!(count > 0, "the broker closes the connection");
        bytes.extend_from_slice(&piece[..count]);
    }
}

#[test]
fn a_batch_that_holds_no_records_stops_its_partition_and_can_be_skipped() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--partitions", "2"]).ok();
    dev.tg_with_input(&["produce", "t", "-p", "0"], b"before\n").ok();
    let id = &objects(&dev.tg(&["-o", "json", "topic", "describe", "t"]).ok())[0]["id"];
    let topic = world::topic_id(id.as_str().unwrap());
    produce_garbage(&dev.server, topic);
    dev.tg_with_input(&["produce", "t", "-p", "0"], b"behind\n").ok();
    dev.tg_with_input(&["produce", "t", "-p", "1"], b"other\n").ok();
    let ran = dev.tg(&["consume", "t", "--group", "g"]);
    let mut got = lines(&ran);
    got.sort_unstable();
    assert_eq!((ran.code, got), (6, vec!["before", "other"]), "{}", ran.stderr);
    assert!(ran.stderr.contains("topic t, partition 0, offsets 1 to 3"), "{}", ran.stderr);
    let stored = objects(&dev.tg(&["-o", "json", "offsets", "t", "--group", "g"]).ok());
    assert_eq!((&stored[0]["stored"], &stored[1]["stored"]), (&1.into(), &1.into()), "nothing is skipped");
    let advice = world::advice(&ran.stderr);
    assert_eq!(lines(&dev.tg(&advice).ok()), ["behind"], "{advice:?}");
    let json = dev.tg(&["-o", "json", "consume", "t"]);
    let error: serde_json::Value = serde_json::from_str(json.stderr.trim()).unwrap();
    assert_eq!(error["error"]["exit_code"], 6);
    dev.stop();
}
