//! What every reactor is given, whichever it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::Device;
use crate::mailbox::{Bell, Door, Post};
use crate::op::{Letter, ShardIndex};

/// One shard's place in the process: its number, its mailboxes and the device that it shares with the others.
pub struct Setup {
    /// Which shard.
    pub shard: ShardIndex,
    /// Its mailboxes.
    pub post: Post,
    /// The flushes of all shards.
    pub flushes: Flushes,
    /// Takes what the shard reports; called on the shard's thread, must not block.
    pub report: Box<dyn FnMut(Letter) + Send>,
    /// Memory that the kernel is asked to keep pinned for this reactor's direct I/O. Works with less.
    pub io_memory_bytes: usize,
}

/// What a reactor itself reports, beside its shard: something that an operator should know, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(pub String);

/// The device of all shards, and who is to be woken when one of its flushes has been reaped.
#[derive(Clone, Debug)]
pub struct Flushes {
    /// All shards' journals lie on it.
    pub device: Arc<Device>,
    /// Shards that hold a flush back until others are reaped.
    doubters: Arc<AtomicUsize>,
    bells: Arc<[Arc<Bell>]>,
}

impl Flushes {
    /// A flush has been reaped: wakes those that wait for it.
    pub fn reaped(&self) {
        // Ordered after the count of reaped flushes: either the doubter has seen that, or it is seen here.
        if self.doubters.load(Ordering::SeqCst) > 0 {
            self.bells.iter().for_each(|bell| bell.ring());
        }
    }

    /// A shard holds a flush back from now on. It has to look at the verdict once more after this.
    pub fn doubt(&self) {
        self.doubters.fetch_add(1, Ordering::SeqCst);
    }

    /// It does no more.
    pub fn resolve(&self) {
        self.doubters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Setups of all shards of a process, and the doors by which orders reach them.
pub fn setups(
    shards: u16,
    io_memory_bytes: usize,
    report: impl FnMut(Letter) + Clone + Send + 'static,
) -> (Vec<Setup>, Vec<Door>) {
    let posts = Post::mesh(usize::from(shards));
    let doors: Vec<Door> = posts.iter().map(|post| post.door().clone()).collect();
    let flushes = Flushes {
        device: Arc::new(Device::new(usize::from(shards))),
        doubters: Arc::default(),
        bells: doors.iter().map(|door| Arc::clone(door.bell())).collect(),
    };
    let setups = posts.into_iter().zip(0..).map(|(post, shard)| Setup {
        shard: ShardIndex(shard),
        post,
        flushes: flushes.clone(),
        report: Box::new(report.clone()),
        io_memory_bytes,
    });
    (setups.collect(), doors)
}
