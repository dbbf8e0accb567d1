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

tests::contract_tests!(SEEDS.map(|seed| Simulated { seed }));
