//! A broker that stalls or refuses, and what of it the histogram shows.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tidegate::{Acks, ErrorCode, LeaderEpoch, NodeId, Offset, PartitionId, PartitionInfo, ShardId, TopicId};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::hello::{Features, HelloReply};
use tidegate_protocol::api::produce::{Level, ProduceReply, StageTimes};
use tidegate_protocol::frame::{Split, split};
use tidegate_protocol::ids::Incarnation;

use super::link::Link;
use super::{Job, Published, wire};
use crate::series::{Clock, Live, Window};
use crate::workload::{Schedule, Workload, sample};

const SENDS: u64 = 500;
const STALL_BEFORE: usize = 100;
const DUE_BEFORE_IT_GOES_ON: u64 = 400;

/// What the broker does to produces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Before it answers number [`STALL_BEFORE`] it waits until [`DUE_BEFORE_IT_GOES_ON`] sends have come due at the client.
    Stalls,
    /// It refuses all of them.
    Refuses,
}

/// Speaks as much of the protocol as a producer needs.
fn serve(mut socket: TcpStream, live: &Live, manner: Manner) {
    let mut received = Vec::new();
    let mut answered = 0;
    loop {
        let mut answer = Vec::new();
        let taken = match split(&received, 1 << 20).expect("frames of a client") {
            Split::Frame(frame) => {
                match frame.api().expect("an api that is known") {
                    Api::Hello => hello().encode(frame.correlation, &mut answer),
                    Api::Produce if manner == Manner::Refuses => {
                        ErrorBody::of(ErrorCode::DiskFull).encode(
                            frame.api_number,
                            frame.correlation,
                            &mut answer,
                        );
                    }
                    Api::Produce => {
                        while answered == STALL_BEFORE && Live::of(&live.due) < DUE_BEFORE_IT_GOES_ON {
                            std::thread::yield_now();
                        }
                        reply(answered as i64).encode(frame.correlation, &mut answer);
                        answered += 1;
                    }
                    Api::Credit => {
                        let limit = u64::MAX;
                        Credit { scope: Scope::Produce, limit, reason: Reason::None, wanted: 0 }
                            .encode(&mut answer);
                    }
                    other => panic!("a producer does not send {other:?}"),
                }
                frame.len()
            }
            Split::Incomplete { .. } => {
                let mut buffer = [0; 4096];
                match socket.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                }
                continue;
            }
        };
        received.drain(..taken);
        if socket.write_all(&answer).is_err() {
            return;
        }
    }
}

fn hello() -> HelloReply {
    HelloReply {
        version: 1,
        node: NodeId(0),
        cluster: [1; 16],
        incarnation: Incarnation(1),
        shard: ShardId(0),
        shard_count: 1,
        software: "a test".into(),
        frame_bytes_max: 1 << 20,
        batch_bytes_max: 1 << 20,
        idempotence_window: 5,
        // Nothing: the client has to ask first.
        credit_initial: 0,
        features: Features::DURABLE,
    }
}

fn reply(offset: i64) -> ProduceReply {
    ProduceReply {
        base_offset: Offset(offset),
        record_count: 1,
        append_time_ms: 0,
        level: Level::Disk,
        leader_epoch: LeaderEpoch(0),
        stages: StageTimes::default(),
    }
}

/// Runs a workload of half a second against such a broker.
fn produce_to(manner: Manner, workload: &Workload) -> Published {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = listener.local_addr().expect("it is bound").to_string();
    let live = Arc::new(Live::default());
    let broker = std::thread::spawn({
        let live = live.clone();
        move || serve(listener.accept().expect("a client").0, &live, manner)
    });
    let partition = PartitionInfo {
        partition: PartitionId(0),
        leader: NodeId(0),
        epoch: LeaderEpoch(0),
        shard: ShardId(0),
    };
    let links = wire::connect(&server, TopicId([7; 16]), &[partition], workload).expect("it accepts");
    let (clock, stop) = (Clock::start(), AtomicBool::new(false));
    let window = Window::after(clock.now_ns(), Duration::ZERO, Duration::from_millis(SENDS));
    let job = Job { clock, start_ns: window.begin_ns, window, live: &live, stop: &stop };
    let published = wire::run(&job, links, workload).expect("the run goes to its end");
    broker.join().expect("the broker does not panic");
    published
}

#[test]
fn a_stall_shows_in_every_send_that_it_held_up() {
    // One send a millisecond, one under way: a closed loop would have met the stall with a single send.
    let workload = Workload { rate: Some(1000.0), in_flight: 1, ..sample() };
    let published = produce_to(Manner::Stalls, &workload);
    let latency = &published.series.latency;
    assert_eq!((latency.count(), published.series.errors), (SENDS, 0), "every intended send is in it");
    // Send 100 was due at 100 ms and held until send 399 was due, at 399 ms: it has waited 299 ms or longer, the next one
    // 298 ms, and so on.
    for waited_ms in [1, 100, 200, 290] {
        let least = DUE_BEFORE_IT_GOES_ON - STALL_BEFORE as u64 - waited_ms;
        let found = latency.count_from(waited_ms * 1000 - 1);
        assert!(found >= least, "{found} sends waited {waited_ms} ms, at least {least} have to");
    }
    assert_eq!(published.level_min, Some(2));
}

#[test]
fn what_is_refused_is_counted_and_the_run_goes_on() {
    for acks in [Acks::Leader, Acks::None] {
        let workload = Workload { rate: Some(1000.0), acks, ..sample() };
        let published = produce_to(Manner::Refuses, &workload);
        assert_eq!(published.series.latency.count(), SENDS, "{acks:?}: each send is in it once");
        let errors = published.series.errors;
        match acks {
            // The last refusals may come when nobody listens any more.
            Acks::None => assert!(errors > 0 && errors <= SENDS, "{errors}"),
            _ => assert_eq!(errors, SENDS),
        }
        assert!(published.first_error.is_some(), "{acks:?}");
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = listener.local_addr().expect("it is bound").to_string();
    let error =
        Link::connect_within(&server, ShardId(0), 1, Duration::from_millis(50)).expect_err("no hello");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
}

#[test]
fn nothing_is_due_behind_the_end_however_long_an_answer_takes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = listener.local_addr().expect("it is bound").to_string();
    let broker = std::thread::spawn(move || {
        let mut socket = listener.accept().expect("a client").0;
        let mut answer = Vec::new();
        hello().encode(0, &mut answer);
        socket.write_all(&answer).expect("it listens");
        socket
    });
    let mut link = Link::connect(&server, ShardId(0), 1).expect("it answers");
    let (clock, stop, live) = (Clock::start(), AtomicBool::new(false), Arc::new(Live::default()));
    let window = Window { begin_ns: 0, end_ns: 1_000, interval_ns: 1_000 };
    let job = Job { clock, start_ns: 0, window, live: &live, stop: &stop };
    link.schedule = Some(Schedule::new(999, 1e9, 0, 1));
    assert_eq!(link.next_due_ns(&job), 999);
    link.schedule = Some(Schedule::new(1_000, 1e9, 0, 1));
    assert_eq!(link.next_due_ns(&job), u64::MAX);
    drop(broker.join().expect("the broker does not panic"));
}
