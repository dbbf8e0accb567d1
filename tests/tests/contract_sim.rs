//! The simulator keeps the contract of `Op` and `Event` that the real reactors keep, under several seeds.

use std::path::{Path, PathBuf};

use tests::contract::{MakeTurn, Step, World};
use tests::sim::disk::{OneFlush, VirtualDisk};
use tests::sim::net::{Link, Peer, PeerEvent, PeerOp, Reading};
use tests::sim::random::Random;
use tests::sim::reactor::{self, World as Machine};
use tests::sim::trace::Trace;
use tidegate_reactor::op::{Letter, ShardIndex};

const SEEDS: std::ops::Range<u64> = 0..5;

struct Simulated {
    seed: u64,
}

impl World for Simulated {
    fn dir(&self) -> PathBuf {
        PathBuf::from("/data")
    }

    fn run(
        &mut self,
        shards: Vec<MakeTurn>,
        peers: Vec<Vec<Step>>,
        orders: Vec<(ShardIndex, Letter)>,
    ) -> Vec<Letter> {
        let mut random = Random::new(self.seed);
        let mut disk = VirtualDisk::new(random.fork(), OneFlush::WholeDevice, 1 << 32);
        disk.create_dir(Path::new("/data")).expect("the drive is empty");
        let mut machine = Machine::new(random, disk, Trace::with_history());
        machine.boot(shards.into_iter().map(|make| make()).collect());
        for (link, steps) in (0..).zip(peers) {
            machine.add_peer(Box::new(Player { link: Link(link), steps, got: Vec::new(), at: 0 }));
        }
        for (to, letter) in orders {
            machine.order(to.0.into(), letter);
        }
        let mut stopped = false;
        for _ in 0..3_000_000 {
            match machine.step() {
                reactor::Step::Progress => {}
                reactor::Step::Stopped => {
                    stopped = true;
                    break;
                }
                reactor::Step::Idle => break,
            }
        }
        let tail: Vec<&String> = machine.trace.history().iter().rev().take(60).rev().collect();
        assert!(stopped, "the shards do not stop: {tail:#?}");
        std::mem::take(&mut machine.reports)
    }
}

/// Plays the steps of one peer.
struct Player {
    link: Link,
    steps: Vec<Step>,
    got: Vec<u8>,
    at: usize,
}

impl Peer for Player {
    fn act(&mut self, _now_ns: u64, events: Vec<PeerEvent>, ops: &mut Vec<PeerOp>) {
        let mut gone = false;
        for event in events {
            match event {
                PeerEvent::Wake => {
                    ops.push(PeerOp::Connect(self.link));
                    ops.push(PeerOp::Reading(self.link, Reading::Off));
                }
                PeerEvent::Bytes(_, bytes) => self.got.extend(bytes),
                PeerEvent::Gone(_) => gone = true,
            }
        }
        while let Some(step) = self.steps.get(self.at) {
            match step {
                Step::Send(bytes) => ops.push(PeerOp::Send(self.link, bytes.clone())),
                Step::Expect(bytes) => {
                    ops.push(PeerOp::Reading(self.link, Reading::On));
                    if self.got.len() < bytes.len() {
                        assert!(!gone, "the connection ended before the bytes came");
                        return;
                    }
                    let rest = self.got.split_off(bytes.len());
                    assert!(self.got == *bytes, "the bytes differ");
                    self.got = rest;
                }
                Step::Finish => ops.push(PeerOp::Finish(self.link)),
                Step::DrainToEnd => {
                    ops.push(PeerOp::Reading(self.link, Reading::On));
                    if !gone {
                        return;
                    }
                }
                Step::Stay => {}
            }
            self.at += 1;
        }
    }
}

macro_rules! under_seeds {
    ($($rule:ident)*) => {
        $(#[test]
        fn $rule() {
            for seed in SEEDS {
                tests::contract::$rule(&mut Simulated { seed });
            }
        })*
    };
}

under_seeds! {
    the_first_turn_comes_at_once_and_without_events
    the_clock_is_read_once_a_turn_and_never_falls
    what_is_sent_comes_back_in_order
    a_receive_fills_only_the_free_part_and_the_buffer_comes_back
    a_peer_that_ends_its_side_is_a_receive_of_zero_bytes
    a_close_ends_each_op_under_way_once_and_comes_last
    a_send_to_a_peer_that_does_not_read_waits_and_loses_nothing
    a_socket_number_is_not_used_again
    a_socket_changes_its_shard_with_the_bytes_already_read
    letters_arrive_in_order_and_each_gives_its_credit_back_once
    timers_end_in_order_of_time_and_never_early
    what_is_written_and_flushed_is_read_back
    many_writes_under_way_end_once_each
    errors_of_files_are_events
    orders_and_reports_pass_unopened
}
