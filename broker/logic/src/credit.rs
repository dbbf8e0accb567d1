//! Credit: who may send how many bytes. A limit is absolute and never falls; a batch may start while less was sent.
//!
//! [`ProducePool`] is a shard's memory for bytes that producers may still send; [`FetchCredit`] is what one reader takes;
//! [`RoundRobin`] says whose turn it is among readers that have credit.

use std::collections::{BTreeMap, VecDeque};

/// The number of a connection on its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(pub u64);

/// A raised limit for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose.
    pub holder: Holder,
    /// Bytes that it may send in all; the last frame may go beyond.
    pub limit: u64,
}

/// More was sent than the limit allowed to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfCredit {
    /// The limit.
    pub limit: u64,
    /// Bytes received before this frame.
    pub received: u64,
}

/// How a pool is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Bytes that may be on their way or arrive in all.
    pub pool_bytes: u64,
    /// The largest frame: by so much a holder may go beyond its limit.
    pub overshoot_bytes: u64,
    /// Most that one connection holds.
    pub window_bytes: u64,
}

/// Produce credit of one shard.
///
/// Invariant: `promised` is the sum over all connections of `limit - received` plus one overshoot for each whose limit is
/// above what it has sent, and never rises above the pool by a grant.
#[derive(Debug)]
pub struct ProducePool {
    limits: PoolLimits,
    accounts: BTreeMap<Holder, Account>,
    waiting: VecDeque<Holder>,
    promised: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    limit: u64,
    received: u64,
    // Bytes that the client has said are waiting beyond what it may send.
    wanted: u64,
    // What the client is kept supplied with while it goes on sending; grows each time it runs dry.
    window: u64,
    queued: bool,
    // It has asked and got nothing yet.
    asked: bool,
    // When bytes came or the limit rose last, on the shard's monotonic clock.
    moved_ns: u64,
}

impl Account {
    fn outstanding(&self) -> u64 {
        self.limit.saturating_sub(self.received)
    }

    fn promised(&self, overshoot: u64) -> u64 {
        match self.outstanding() {
            0 => 0,
            bytes => bytes + overshoot,
        }
    }
}

impl ProducePool {
    /// A pool without connections.
    pub fn new(limits: PoolLimits) -> ProducePool {
        assert!(limits.pool_bytes > limits.overshoot_bytes, "a pool has room for one frame at least");
        ProducePool { limits, accounts: BTreeMap::new(), waiting: VecDeque::new(), promised: 0 }
    }

    /// A connection has come; it holds nothing.
    pub fn join(&mut self, holder: Holder) {
        self.accounts.insert(holder, Account::default());
    }

    /// A connection is gone; what it held is free.
    pub fn leave(&mut self, holder: Holder) {
        if let Some(account) = self.accounts.remove(&holder) {
            self.promised -= account.promised(self.limits.overshoot_bytes);
        }
    }

    /// The client says that `wanted` bytes wait beyond the limit it knows.
    pub fn asked(&mut self, holder: Holder, wanted: u64) {
        let window_max = self.limits.window_bytes;
        let Some(account) = self.accounts.get_mut(&holder) else { return };
        account.wanted = wanted;
        // Asking again while it waits is no sign that it needs more.
        if wanted > 0 && account.outstanding() == 0 && !account.asked {
            account.window = (account.window * 2).max(wanted).min(window_max);
            account.asked = true;
        }
        self.enqueue(holder);
    }

    /// Whether a frame that has come might begin.
    pub fn may_begin(&self, holder: Holder) -> Result<(), OutOfCredit> {
        let (received, limit) = self.counters(holder);
        if received < limit { Ok(()) } else { Err(OutOfCredit { limit, received }) }
    }

    /// A produce frame of `bytes` is taken or refused. It counts whether it was in order or not.
    pub fn received(&mut self, now_ns: u64, holder: Holder, bytes: u64) {
        let overshoot = self.limits.overshoot_bytes;
        let account = self.accounts.get_mut(&holder).expect("a connection joins before it sends");
        let before = account.promised(overshoot);
        let had_begun = account.received < account.limit;
        account.received += bytes;
        account.moved_ns = now_ns;
        account.wanted = account.wanted.saturating_sub(bytes);
        self.promised -= before - account.promised(overshoot);
        if had_begun && account.outstanding() < account.window / 2 {
            self.enqueue(holder);
        }
    }

    fn enqueue(&mut self, holder: Holder) {
        let Some(account) = self.accounts.get_mut(&holder) else { return };
        if !account.queued {
            account.queued = true;
            self.waiting.push_back(holder);
        }
    }

    /// Raises limits in the order of asking while `room`, bytes that the shard can take now, and the pool allow it. A
    /// connection that gets a part of what it wants goes on waiting at the end of the queue.
    pub fn grant(&mut self, now_ns: u64, room: u64, grants: &mut Vec<Grant>) {
        let pool = self.limits.pool_bytes.min(room);
        for _ in 0..self.waiting.len() {
            let Some(holder) = self.waiting.pop_front() else { return };
            let Some(account) = self.accounts.get_mut(&holder) else { continue };
            account.queued = false;
            let target = account.wanted.max(account.window).min(self.limits.window_bytes);
            let Some(lacking) = target.checked_sub(account.outstanding()).filter(|lacking| *lacking > 0)
            else {
                continue;
            };
            let before = account.promised(self.limits.overshoot_bytes);
            let others = self.promised - before;
            let own_max = pool.saturating_sub(others).saturating_sub(self.limits.overshoot_bytes);
            let raise = lacking.min(own_max.saturating_sub(account.outstanding()));
            if raise > 0 {
                account.limit = account.limit.max(account.received) + raise;
                account.moved_ns = now_ns;
                account.asked = false;
                self.promised = others + account.promised(self.limits.overshoot_bytes);
                grants.push(Grant { holder, limit: account.limit });
            }
            account.queued = raise < lacking;
            if raise == 0 {
                self.waiting.push_front(holder);
                return;
            }
            if account.queued {
                self.waiting.push_back(holder);
            }
        }
    }

    /// Connections that hold credit and have not used any since `since_ns`. A limit never falls, so the only way to get back
    /// what they hold is to end them. Linear in the number of connections.
    pub fn idle_holders(&self, since_ns: u64) -> Vec<Holder> {
        let idle = |(holder, account): (&Holder, &Account)| {
            (account.outstanding() > 0 && account.moved_ns < since_ns).then_some(*holder)
        };
        self.accounts.iter().filter_map(idle).collect()
    }

    /// Bytes received and the limit of a connection.
    pub fn counters(&self, holder: Holder) -> (u64, u64) {
        self.accounts.get(&holder).map_or((0, 0), |account| (account.received, account.limit))
    }

    /// Connections that wait for credit.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes promised, the possible overshoot included.
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// Asserts the invariants; linear in the number of connections.
    pub fn check_invariants(&self) {
        let sum: u64 = self.accounts.values().map(|a| a.promised(self.limits.overshoot_bytes)).sum();
        assert_eq!(sum, self.promised);
        assert!(self.promised <= self.limits.pool_bytes, "{} of {}", self.promised, self.limits.pool_bytes);
    }
}

/// What one reader, or all of a connection, may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchCredit {
    /// Bytes sent in all.
    pub sent: u64,
    /// Bytes at which nothing may start any more.
    pub limit: u64,
}

impl FetchCredit {
    /// Nothing sent yet.
    pub fn new(limit: u64) -> FetchCredit {
        FetchCredit { sent: 0, limit }
    }

    /// Raises the limit; a lower one, late or repeated, changes nothing.
    pub fn raise(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Whether a batch may start.
    pub fn may_start(&self) -> bool {
        self.sent < self.limit
    }

    /// Bytes that may be started; the last batch may go beyond.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.sent)
    }
}

/// Deficit round robin: who has been sent more than its share waits until the others have caught up.
#[derive(Debug)]
pub struct RoundRobin<K> {
    quantum: i64,
    queue: VecDeque<(K, i64)>,
}

impl<K: Copy + PartialEq> RoundRobin<K> {
    /// Nobody in the queue; each gets `quantum` bytes a round.
    pub fn new(quantum: i64) -> RoundRobin<K> {
        RoundRobin { quantum, queue: VecDeque::new() }
    }

    /// Puts somebody at the end, who must not be in the queue already. `deficit` is what it left with, else 0.
    pub fn push(&mut self, key: K, deficit: i64) {
        self.queue.push_back((key, deficit));
    }

    /// The next one and the bytes that it may be sent now; it is out of the queue until pushed again with what it left.
    pub fn take_next(&mut self) -> Option<(K, i64)> {
        // Each pass adds a quantum, so this ends after a few rounds: an overshoot is one batch.
        loop {
            let (key, deficit) = self.queue.pop_front()?;
            let budget = deficit + self.quantum;
            if budget > 0 {
                return Some((key, budget));
            }
            self.queue.push_back((key, budget));
        }
    }

    /// Takes somebody out.
    pub fn remove(&mut self, key: K) {
        self.queue.retain(|(queued, _)| *queued != key);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PoolLimits = PoolLimits { pool_bytes: 1000, overshoot_bytes: 100, window_bytes: 400 };
    const ROOM: u64 = u64::MAX;

    fn pool(connections: u64) -> ProducePool {
        let mut pool = ProducePool::new(LIMITS);
        (0..connections).for_each(|c| pool.join(Holder(c)));
        pool
    }

    fn send(pool: &mut ProducePool, at_ns: u64, holder: u64, bytes: u64) -> Result<(), OutOfCredit> {
        let allowed = pool.may_begin(Holder(holder));
        pool.received(at_ns, Holder(holder), bytes);
        allowed
    }

    fn grants(pool: &mut ProducePool, room: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        pool.grant(0, room, &mut out);
        pool.check_invariants();
        out.iter().map(|grant| (grant.holder.0, grant.limit)).collect()
    }

    #[test]
    fn idle_connections_hold_nothing() {
        let mut pool = pool(10_000);
        assert_eq!(grants(&mut pool, ROOM), []);
        assert_eq!(pool.promised(), 0);
    }

    #[test]
    fn grants_stay_within_the_pool_with_one_frame_more_for_each_holder() {
        let mut pool = pool(4);
        (0..4).for_each(|c| pool.asked(Holder(c), 300));
        assert_eq!(grants(&mut pool, ROOM), [(0, 300), (1, 300), (2, 100)]);
        assert_eq!(pool.promised(), 1000);
        assert_eq!(grants(&mut pool, ROOM), [], "the pool is used up");
        assert_eq!(send(&mut pool, 0, 0, 350), Ok(()), "the last frame may go beyond the limit");
        assert_eq!(grants(&mut pool, ROOM), [(3, 300)], "who got a part waits behind who got nothing");
        pool.leave(Holder(1));
        assert_eq!(grants(&mut pool, ROOM), [(2, 300), (0, 450)]);
    }

    #[test]
    fn a_frame_that_starts_at_the_limit_is_counted_and_refused() {
        let mut pool = pool(1);
        assert_eq!(send(&mut pool, 0, 0, 10), Err(OutOfCredit { limit: 0, received: 0 }));
        pool.asked(Holder(0), 50);
        assert_eq!(grants(&mut pool, ROOM), [(0, 60)]);
        assert_eq!(send(&mut pool, 0, 0, 50), Ok(()));
        assert_eq!(send(&mut pool, 0, 0, 5), Err(OutOfCredit { limit: 60, received: 60 }));
        assert_eq!(pool.counters(Holder(0)), (65, 60));
    }

    #[test]
    fn a_busy_connection_is_kept_supplied_and_its_window_doubles_when_it_runs_dry() {
        let mut pool = pool(1);
        pool.asked(Holder(0), 100);
        assert_eq!(grants(&mut pool, ROOM), [(0, 100)]);
        assert_eq!(send(&mut pool, 0, 0, 60), Ok(()));
        assert_eq!(grants(&mut pool, ROOM), [(0, 160)], "topped up before it has to ask");
        assert_eq!(send(&mut pool, 0, 0, 100), Ok(()));
        pool.asked(Holder(0), 10);
        assert_eq!(grants(&mut pool, ROOM), [(0, 360)], "it ran dry: twice the window");
    }

    #[test]
    fn without_room_in_the_shard_limits_stand_still_and_grow_later() {
        let mut pool = pool(1);
        pool.asked(Holder(0), 200);
        assert_eq!(grants(&mut pool, 0), []);
        assert_eq!(grants(&mut pool, 150), [(0, 50)]);
        assert_eq!(grants(&mut pool, 1000), [(0, 200)]);
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn who_holds_credit_and_sends_nothing_is_found() {
        let mut pool = pool(3);
        (0..2).for_each(|c| pool.asked(Holder(c), 100));
        let mut out = Vec::new();
        pool.grant(10, ROOM, &mut out);
        assert_eq!(send(&mut pool, 50, 1, 10), Ok(()));
        assert_eq!(pool.idle_holders(10), []);
        assert_eq!(pool.idle_holders(11), [Holder(0)], "the third holds nothing");
        assert_eq!(send(&mut pool, 60, 0, 100), Ok(()));
        assert_eq!(pool.idle_holders(100), [Holder(1)]);
    }

    #[test]
    fn a_fetch_limit_never_falls_and_a_batch_may_start_below_it() {
        let mut credit = FetchCredit::new(10);
        credit.sent = 9;
        assert!(credit.may_start());
        credit.sent = 19;
        credit.raise(5);
        assert!(!credit.may_start() && credit.limit == 10);
        credit.raise(20);
        assert_eq!((credit.may_start(), credit.left()), (true, 1));
    }

    #[test]
    fn readers_of_large_and_of_small_batches_get_equal_bytes() {
        let mut ring = RoundRobin::new(100);
        let batch = [10, 350, 100];
        let mut sent = [0_i64; 3];
        (0..3).for_each(|reader| ring.push(reader, 0));
        for _ in 0..300 {
            let (reader, mut budget) = ring.take_next().expect("all have data");
            while budget > 0 {
                budget -= batch[reader];
                sent[reader] += batch[reader];
            }
            ring.push(reader, budget);
        }
        let (least, most) = (sent.iter().min(), sent.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 450), "{sent:?}");
    }
}
