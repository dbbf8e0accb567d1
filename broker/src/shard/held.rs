//! Memory that connections hold outside the logs: receive buffers with frames that have not come whole, and what clients do not
//! read. Either is small for one connection and too much for thousands, so each has a cap for the whole shard. What comes
//! beyond it waits or is refused, and whoever has gone on with nothing for the longest is ended.

use tidegate_protocol::api::Api;
use tidegate_protocol::frame::LENGTH_LEN;
use tidegate_reactor::op::Op;

use super::connection::{Connection, ConnectionId, Stage};
use super::fetch::ReaderId;
use super::reply::Refusal;
use super::{Shard, ShardLimits};

/// What all connections of a shard hold.
///
/// Invariants: `queued` and `set_aside` are the sums over all connections.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Bytes queued for sending or under way.
    pub(super) queued: usize,
    /// Bytes of receive buffers beyond what every connection has, those of produces excepted that are within their credit: the
    /// room in the logs was promised to them.
    pub(super) set_aside: usize,
    // Subscriptions that wait until less is queued.
    readers: Vec<ReaderId>,
    // Whether a frame was refused for want of memory since the last look.
    was_refused: bool,
}

impl Shard {
    /// Whether nothing more may be queued to a connection now. While the shard has half of what it may queue, that is so for each
    /// that has something to take first: those who read go on, and those who do not get no more.
    pub(super) fn is_full_for(&self, connection: &Connection) -> bool {
        let owed = connection.queued() + connection.gathering * self.limits.page_bytes;
        owed > self.limits.out_bytes_max
            || (owed > 0 && self.held.queued > self.limits.out_total_bytes_max / 2)
    }

    /// Whether the shard has queued so much that subscriptions of this connection wait. The last quarter is for those that have
    /// shown that they read: else many who come and never do would keep them waiting.
    pub(super) fn is_queued_most_for(&self, connection: &Connection) -> bool {
        let held_ns = self.limits.held_ms * 1_000_000;
        let lately_ns = self.now.mono_ns.saturating_sub(held_ns);
        let reads = connection.since_ns < lately_ns && connection.sent_ns >= lately_ns;
        self.held.queued > if reads { self.limits.out_total_bytes_max } else { self.queued_much() }
    }

    /// Bytes queued to all connections above which newcomers wait, and those are ended who read nothing.
    fn queued_much(&self) -> usize {
        self.limits.out_total_bytes_max / 4 * 3
    }

    /// A subscription waits until less is queued.
    pub(super) fn wait_for_less_queued(&mut self, reader: ReaderId) {
        self.held.readers.push(reader);
    }

    /// Lets subscriptions go on once less is queued.
    pub(super) fn held_wake(&mut self) {
        if self.held.readers.is_empty() || self.held.queued > self.queued_much() {
            return;
        }
        let readers = std::mem::take(&mut self.held.readers);
        readers.into_iter().for_each(|reader| self.reader_wake(reader));
    }

    /// The size of the next receive buffer of a connection that would like one of `wanted` bytes: the more all hold, the less a
    /// further one is given.
    pub(super) fn receive_bytes(&self, wanted: usize) -> usize {
        const SHARE: usize = 64;
        let left = self.limits.receive_total_bytes_max.saturating_sub(self.held.set_aside);
        wanted.min(left / SHARE).max(self.limits.receive_bytes_min)
    }

    /// What counts of a receive buffer of `capacity` bytes in which these bytes of a frame stand.
    pub(super) fn counted(&self, id: ConnectionId, begun: &[u8], capacity: usize) -> usize {
        match self.is_promised(id, begun) {
            true => 0,
            false => capacity.saturating_sub(self.limits.receive_bytes_min),
        }
    }

    /// Whether memory may be set aside for a frame of `needed` bytes: a large produce needs credit to begin, for any other there
    /// has to be some left.
    pub(super) fn may_be_large(
        &mut self,
        id: ConnectionId,
        begun: &[u8],
        needed: usize,
    ) -> Result<(), Refusal> {
        let ShardLimits { receive_bytes_min, receive_bytes_max, receive_total_bytes_max, .. } = self.limits;
        if needed <= receive_bytes_min || self.is_promised(id, begun) {
            return Ok(());
        }
        if is_produce(begun) && needed > receive_bytes_max {
            let (received, limit) = self.pool.counters(id.holder());
            return Err(Refusal::OutOfCredit { limit, received });
        }
        let current = self.held.set_aside + needed - receive_bytes_min;
        if current > receive_total_bytes_max {
            self.held.was_refused = true;
            let (limit, current) = (receive_total_bytes_max as u64, current as u64);
            return Err(Refusal::Limit {
                what: "bytes of a shard for frames that have not come whole",
                limit,
                current,
            });
        }
        Ok(())
    }

    fn is_promised(&self, id: ConnectionId, begun: &[u8]) -> bool {
        let (received, limit) = self.pool.counters(id.holder());
        is_produce(begun) && received < limit
    }

    /// At a cap, ends connections that hold much and go on with nothing: whose frame does not come to its end, or whose client
    /// does not read, the longest first. Linear in the number of connections, and only then.
    pub(super) fn held_tick(&mut self, ops: &mut Vec<Op>) {
        let before_ns = self.now.mono_ns.saturating_sub(self.limits.held_ms * 1_000_000);
        if std::mem::take(&mut self.held.was_refused) {
            let is_late = |c: &Connection| {
                c.set_aside > 0 && c.is_read() && c.begun_ns.is_some_and(|begun_ns| begun_ns < before_ns)
            };
            let late: Vec<ConnectionId> =
                self.connections.iter().filter(|(_, c)| is_late(c)).map(|(id, _)| *id).collect();
            for id in late {
                self.stats.late_frames_ended += 1;
                let refusal = Refusal::FrameLate { held_ms: self.limits.held_ms };
                self.refuse(id, 0, Api::Hello.number(), &refusal);
                self.connection_end(id);
            }
        }
        if self.held.queued <= self.queued_much() {
            return;
        }
        let since = |(id, c): (&ConnectionId, &Connection)| {
            let since_ns = c.sending_since_ns().filter(|_| c.stage != Stage::Closing)?;
            (since_ns < before_ns).then_some((since_ns, *id))
        };
        let mut deaf: Vec<(u64, ConnectionId)> = self.connections.iter().filter_map(since).collect();
        deaf.sort_unstable();
        let mut still = self.held.queued;
        for (_, id) in deaf {
            // Those who wait are to find room for more than one of them.
            if still <= self.limits.out_total_bytes_max / 8 * 5 {
                return;
            }
            still -= self.connections.get(&id).map_or(0, Connection::queued);
            self.stats.deaf_connections_ended += 1;
            self.connection_cut(id, ops);
        }
    }

    /// Ends a connection whose client does not read: it cannot be told why.
    fn connection_cut(&mut self, id: ConnectionId, ops: &mut Vec<Op>) {
        self.connection_end(id);
        let connection = self.connection_mut(id);
        connection.stage = Stage::Closing;
        ops.push(Op::Close { socket: id.socket() });
    }

    /// What the connection held is free.
    pub(super) fn held_by_none(&mut self, connection: &mut Connection) {
        self.held.queued -= std::mem::take(&mut connection.out).queued();
        self.held.set_aside -= std::mem::take(&mut connection.set_aside);
    }

    /// Asserts the invariants.
    pub(super) fn held_check(&self) {
        assert_eq!(self.held.queued, self.connections.values().map(Connection::queued).sum::<usize>());
        assert_eq!(self.held.set_aside, self.connections.values().map(|c| c.set_aside).sum::<usize>());
    }
}

fn is_produce(begun: &[u8]) -> bool {
    begun.get(LENGTH_LEN) == Some(&Api::Produce.number())
}
