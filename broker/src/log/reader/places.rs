//! Where readers stopped, so that one that goes on need not look for its place again.

use std::collections::{BTreeMap, VecDeque};

use tidegate_protocol::disk::run_scan::Cursor;
use tidegate_protocol::ids::{Offset, TopicPartition};

use super::{Stand, UnderWay};

/// Places remembered.
const PLACES_MAX: usize = 4096;

/// Where readers stopped, by the offset with which they will go on; the oldest is forgotten first.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: BTreeMap<(TopicPartition, Offset), Stand>,
    order: VecDeque<(TopicPartition, Offset)>,
}

impl Places {
    pub(super) fn put(&mut self, log: TopicPartition, next: Offset, read: &UnderWay, cursor: Cursor) {
        let stand = Stand { file: read.file, generation: read.generation, cursor };
        if self.places.insert((log, next), stand).is_none() {
            self.order.push_back((log, next));
        }
        if self.order.len() > PLACES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, log: TopicPartition, next: Offset) {
        if self.places.remove(&(log, next)).is_some() {
            self.order.retain(|place| *place != (log, next));
        }
    }

    pub(super) fn get(&self, log: TopicPartition, from: Offset) -> Option<Stand> {
        self.places.get(&(log, from)).copied()
    }
}
