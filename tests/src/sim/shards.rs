//! Whole shards behind the wire protocol, as a script: producers, readers and an operator on virtual connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_broker::shard::{Order, Shard, ShardLimits, ShardParts, Storage};
use tidegate_protocol::ids::ShardId;
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::Turn;

use super::admin::Admin;
use super::claims::Claims;
use super::disk::OneFlush;
use super::machine::{self, Rests, Shape};
use super::producer::Producer;
use super::random::Random;
use super::reactor::World;
use super::reader::Reader;
use super::run::{Counts, Script, Stage};
use super::scene::{Scene, Wanted};

/// The script.
pub struct ShardsScript {
    shape: Shape,
    random: Random,
    scene: Rc<RefCell<Scene>>,
    shard_count: u16,
    acks_before: u64,
    has_peers: bool,
    /// How often links fail while work is done.
    cut: u32,
    half_open: u32,
    flip: u32,
}

impl ShardsScript {
    /// Draws shape and number of shards of a seed.
    pub fn new(mut random: Random, one_flush: OneFlush, rests: Rests) -> ShardsScript {
        let shape = Shape::draw(&mut random, one_flush, rests);
        let shard_count = random.between(1, 3) as u16;
        let scene = Scene {
            claims: Claims::default(),
            wanted: Wanted::Work,
            shard_count,
            faults_injected: false,
            bits_flip: false,
            is_halted: false,
            unacknowledged: BTreeMap::new(),
            complete: BTreeMap::new(),
            batch_bytes_max: shape.batch_bytes_max,
        };
        ShardsScript {
            shape,
            random,
            scene: Rc::new(RefCell::new(scene)),
            shard_count,
            acks_before: 0,
            has_peers: false,
            cut: 0,
            half_open: 0,
            flip: 0,
        }
    }

    fn add_peers(&mut self, world: &mut World) {
        self.has_peers = true;
        let scene = &self.scene;
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        for _ in 0..self.random.between(1, 4) {
            world.add_peer(Box::new(Producer::new(next(), scene, self.random.fork())));
        }
        for _ in 0..self.random.between(1, 3) {
            world.add_peer(Box::new(Reader::new(next(), scene, self.random.fork())));
        }
        world.add_peer(Box::new(Admin::new(next(), scene, self.random.fork())));
        self.cut = self.random.pick(&[0, 0, 1_000, 10_000]);
        self.half_open = self.random.pick(&[0, 0, 500, 5_000]);
        self.flip = self.random.pick(&[0, 0, 500, 5_000]);
        world.net.weather.piece_bytes_max = self.random.pick(&[100, 3_000, 64 << 10]);
        // A slow drive behind a fast network: batches come again before the first of them is flushed.
        if self.random.chance(500_000) {
            world.pace.flush_ns = (2_000_000, 30_000_000);
            world.net.weather.delay_ns = (5_000, 50_000);
        }
        world.net.weather.window_bytes = self.random.pick(&[4 << 10, 64 << 10]);
    }
}

impl Script for ShardsScript {
    fn open(&mut self, disk: &mut dyn Disk) -> Result<Vec<Box<dyn Turn>>, String> {
        let opened = machine::open(disk, &self.shape, self.shard_count)?;
        let mut turns: Vec<Box<dyn Turn>> = Vec::new();
        for (shard, logs) in (0..).map(ShardId).zip(opened.logs) {
            turns.push(Box::new(Shard::new(ShardParts {
                shard,
                shard_count: self.shard_count,
                node: opened.superblock.node,
                cluster: opened.superblock.cluster,
                incarnation: opened.incarnation,
                seed: self.random.word(),
                limits: shard_limits(&self.shape),
                facts: Vec::new(),
                advertised: vec![String::new(); usize::from(self.shard_count)],
                storage: Storage::Durable,
                logs,
            })));
        }
        let mut scene = self.scene.borrow_mut();
        scene.is_halted = false;
        scene.shard_count = self.shard_count;
        drop(scene);
        Ok(turns)
    }

    fn heal_network(&mut self, world: &mut World) {
        (self.cut, self.half_open, self.flip) = (0, 0, 0);
        world.heal_network();
    }

    fn change_shards(&mut self, shard_count: u16) {
        self.shard_count = shard_count;
    }

    fn expect_decay(&mut self, _file: &str) {
        unreachable!("decay is tried on the logs alone");
    }

    fn expect_faults(&mut self, may_fail: bool) {
        self.scene.borrow_mut().faults_injected = may_fail;
    }

    fn is_halted(&self) -> bool {
        self.scene.borrow().is_halted
    }

    fn want(&mut self, stage: Stage, world: &mut World) {
        if !self.has_peers {
            self.add_peers(world);
        }
        let mut scene = self.scene.borrow_mut();
        scene.complete.values_mut().for_each(|done| *done = false);
        self.acks_before = scene.claims.counts.acks;
        match stage {
            Stage::Work => {
                scene.wanted = Wanted::Work;
                scene.bits_flip |= self.flip > 0;
                let weather = &mut world.net.weather;
                (weather.cut, weather.half_open, weather.flip) = (self.cut, self.half_open, self.flip);
            }
            Stage::Rest => scene.wanted = Wanted::Rest,
            // Where something has to come to its end, the network is well.
            Stage::Drain => {
                scene.wanted = Wanted::Drain;
                world.heal_network();
            }
            Stage::Verify => {
                scene.wanted = Wanted::Everything;
                world.heal_network();
            }
            Stage::Stop => {
                for shard in 0..usize::from(self.shard_count) {
                    world.order(shard, Box::new(Order::Stop));
                }
            }
        }
    }

    fn is_done(&self, stage: Stage) -> bool {
        let scene = self.scene.borrow();
        match stage {
            Stage::Work => scene.claims.counts.acks >= self.acks_before + 200,
            Stage::Drain => scene.unacknowledged.values().all(|n| *n == 0),
            Stage::Verify => !scene.complete.is_empty() && scene.complete.values().all(|done| *done),
            Stage::Rest | Stage::Stop => false,
        }
    }

    fn waiting(&self) -> String {
        let scene = self.scene.borrow();
        format!("unacknowledged by producer {:?}, readers done {:?}", scene.unacknowledged, scene.complete)
    }

    fn counts(&self) -> Counts {
        self.scene.borrow().claims.counts()
    }
}

/// Bounds as tiny as those of the logs below.
pub fn shard_limits(shape: &Shape) -> ShardLimits {
    let batch_bytes_max = shape.batch_bytes_max as u32;
    let frame_bytes_max = batch_bytes_max + 4096;
    let mut limits = ShardLimits {
        frame_bytes_max,
        control_bytes_max: frame_bytes_max.min(16 << 10),
        ..ShardLimits::default()
    };
    limits.produce.overshoot_bytes = frame_bytes_max.into();
    limits.produce.window_bytes = batch_bytes_max.into();
    limits.produce.start_bytes = limits.produce.window_bytes.min(4 << 10);
    limits.produce.pool_bytes = 4 * u64::from(frame_bytes_max);
    limits.read_bytes_max = 16 << 10;
    limits.turn_read_bytes_max = 64 << 10;
    limits.heartbeat_ms = 50;
    limits.credit_idle_ms = 100;
    limits.producer_ids_lease = 2;
    limits.snapshot_bytes_min = 8 << 10;
    limits.topics.batch_bytes_max = batch_bytes_max;
    limits.topics.partitions_per_topic_max = 16;
    limits.page_bytes = 1024;
    limits.out_bytes_max = 32 << 10;
    limits.out_total_bytes_max = 64 << 10;
    limits.held_ms = 100;
    limits
}
