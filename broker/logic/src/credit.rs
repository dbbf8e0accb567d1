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
    /// Most that a connection holds which has not sent more than that lately.
    pub start_bytes: u64,
}

/// How long a connection that holds credit may leave it unused while others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Nanoseconds without a byte from it.
    pub idle_ns: u64,
    /// Nanoseconds since its limit rose, if by then it has not used what it holds: it sends, but so little that it keeps others
    /// waiting.
    pub held_ns: u64,
}

/// A connection that leaves its credit unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleHolder {
    /// Which.
    pub holder: Holder,
    /// Bytes that it might still send.
    pub bytes: u64,
    /// Nanoseconds without a byte from it.
    pub idle_ns: u64,
    /// Nanoseconds since its limit rose.
    pub held_ns: u64,
}

/// What is sent in this time and the one before it decides what a connection is kept supplied with.
const PERIOD_NS: u64 = 1_000_000_000;
/// For so long after its last frame a connection counts as one that uses what it gets.
const USES_NS: u64 = 60_000_000_000;

/// Produce credit of one shard.
///
/// A limit never falls, so what is granted and not used is lost to others. Therefore credit follows use: a connection is kept
/// supplied with what it has sent lately and gets at most `start_bytes` beyond that for the asking, so that nobody has much
/// by asking for much. Those that have sent lately and those that have not wait in two queues, and neither may hold more than
/// three quarters of the pool: whoever never sends holds up beginners like itself, not those at work. Nobody is supplied
/// unasked from the upper half, so that there is something for whoever asks. Who leaves it unused while others wait
/// is found by [`ProducePool::idle_holders`].
///
/// Invariants: `promised` is the sum over all connections of `limit - received` plus one overshoot for each whose limit is
/// above what it has sent, by the class in which it was granted; a grant never brings it above the pool, nor one class above
/// its part, unless nobody else holds any.
#[derive(Debug)]
pub struct ProducePool {
    limits: PoolLimits,
    accounts: BTreeMap<Holder, Account>,
    waiting: ByClass<VecDeque<Holder>>,
    promised: ByClass<u64>,
    holders: u64,
    // The class that has its turn first; when room is short there may be enough for one only.
    first: Class,
}

/// What a connection has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// It has sent something lately.
    Running,
    /// Nobody knows yet whether it will.
    Starting,
}

impl Class {
    fn other(self) -> Class {
        match self {
            Class::Running => Class::Starting,
            Class::Starting => Class::Running,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ByClass<T> {
    running: T,
    starting: T,
}

impl<T> ByClass<T> {
    fn of(&self, class: Class) -> &T {
        match class {
            Class::Running => &self.running,
            Class::Starting => &self.starting,
        }
    }

    fn of_mut(&mut self, class: Class) -> &mut T {
        match class {
            Class::Running => &mut self.running,
            Class::Starting => &mut self.starting,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Account {
    limit: u64,
    received: u64,
    // Bytes that the client has said are waiting beyond what it may send.
    wanted: u64,
    // Bytes sent within credit in this period and in the one before.
    period: u64,
    sent_now: u64,
    sent_before: u64,
    // When a frame within credit came last.
    used_ns: Option<u64>,
    // When bytes came or the limit rose last, and when it rose, on the shard's monotonic clock.
    moved_ns: u64,
    raised_ns: u64,
    queued: bool,
    // That of its last grant: what it holds is counted there.
    class: Class,
}

impl Account {
    const NEW: Account = Account {
        limit: 0,
        received: 0,
        wanted: 0,
        period: 0,
        sent_now: 0,
        sent_before: 0,
        used_ns: None,
        moved_ns: 0,
        raised_ns: 0,
        queued: false,
        class: Class::Starting,
    };

    fn outstanding(&self) -> u64 {
        self.limit.saturating_sub(self.received)
    }

    fn promised(&self, overshoot: u64) -> u64 {
        match self.outstanding() {
            0 => 0,
            bytes => bytes + overshoot,
        }
    }

    fn note_use(&mut self, now_ns: u64, bytes: u64) {
        let period = now_ns / PERIOD_NS;
        if period != self.period {
            self.sent_before = if period == self.period + 1 { self.sent_now } else { 0 };
            (self.period, self.sent_now) = (period, 0);
        }
        self.sent_now += bytes;
        self.used_ns = Some(now_ns);
    }

    fn sent_lately(&self, now_ns: u64) -> u64 {
        match (now_ns / PERIOD_NS).saturating_sub(self.period) {
            0 => self.sent_now + self.sent_before,
            1 => self.sent_now,
            _ => 0,
        }
    }

    fn class_now(&self, now_ns: u64) -> Class {
        match self.used_ns {
            Some(used_ns) if now_ns.saturating_sub(used_ns) < USES_NS => Class::Running,
            _ => Class::Starting,
        }
    }
}

impl ProducePool {
    /// A pool without connections.
    pub fn new(limits: PoolLimits) -> ProducePool {
        assert!(limits.pool_bytes > limits.overshoot_bytes, "a pool has room for one frame at least");
        assert!(limits.start_bytes > 0, "who asks gets something");
        ProducePool {
            limits,
            accounts: BTreeMap::new(),
            waiting: ByClass::default(),
            promised: ByClass::default(),
            holders: 0,
            first: Class::Running,
        }
    }

    /// A connection has come; it holds nothing.
    pub fn join(&mut self, holder: Holder) {
        self.accounts.insert(holder, Account::NEW);
    }

    /// A connection is gone; what it held is free.
    pub fn leave(&mut self, holder: Holder) {
        if let Some(account) = self.accounts.remove(&holder) {
            *self.promised.of_mut(account.class) -= account.promised(self.limits.overshoot_bytes);
            self.holders -= u64::from(account.outstanding() > 0);
        }
    }

    /// The client says that `wanted` bytes wait beyond the limit it knows.
    pub fn asked(&mut self, now_ns: u64, holder: Holder, wanted: u64) {
        if let Some(account) = self.accounts.get_mut(&holder) {
            account.wanted = wanted;
            self.enqueue(now_ns, holder);
        }
    }

    /// Whether a frame that has come might begin.
    pub fn may_begin(&self, holder: Holder) -> Result<(), OutOfCredit> {
        let (received, limit) = self.counters(holder);
        if received < limit { Ok(()) } else { Err(OutOfCredit { limit, received }) }
    }

    /// Bytes have come that may be a part of a frame: what the connection holds is not idle.
    pub fn moved(&mut self, now_ns: u64, holder: Holder) {
        if let Some(account) = self.accounts.get_mut(&holder) {
            account.moved_ns = now_ns;
        }
    }

    /// The shard itself does not read what may have come: the time until now does not count against the connection.
    pub fn pardon(&mut self, now_ns: u64, holder: Holder) {
        if let Some(account) = self.accounts.get_mut(&holder) {
            (account.moved_ns, account.raised_ns) = (now_ns, now_ns);
        }
    }

    /// A produce frame of `bytes` is taken or refused. It counts whether it was in order or not.
    pub fn received(&mut self, now_ns: u64, holder: Holder, bytes: u64) {
        let PoolLimits { overshoot_bytes, window_bytes, .. } = self.limits;
        let account = self.accounts.get_mut(&holder).expect("a connection joins before it sends");
        let before = account.promised(overshoot_bytes);
        let had_begun = account.outstanding() > 0;
        account.received += bytes;
        account.moved_ns = now_ns;
        account.wanted = account.wanted.saturating_sub(bytes);
        *self.promised.of_mut(account.class) -= before - account.promised(overshoot_bytes);
        if !had_begun {
            return;
        }
        account.note_use(now_ns, bytes);
        self.holders -= u64::from(account.outstanding() == 0);
        if account.outstanding() < account.sent_lately(now_ns).min(window_bytes) / 2 {
            self.enqueue(now_ns, holder);
        }
    }

    fn enqueue(&mut self, now_ns: u64, holder: Holder) {
        let Some(account) = self.accounts.get_mut(&holder).filter(|account| !account.queued) else { return };
        account.queued = true;
        self.waiting.of_mut(account.class_now(now_ns)).push_back(holder);
    }

    /// Raises limits while `room`, bytes that the shard can take now, and the pool allow it: in each class in the order of
    /// asking. A connection that gets a part of what it asks for goes on waiting at the end of its queue.
    pub fn grant(&mut self, now_ns: u64, room: u64, grants: &mut Vec<Grant>) {
        let before = grants.len();
        for class in [self.first, self.first.other()] {
            self.grant_class(now_ns, room, class, grants);
        }
        if grants.len() > before {
            self.first = self.first.other();
        }
    }

    fn grant_class(&mut self, now_ns: u64, room: u64, class: Class, grants: &mut Vec<Grant>) {
        for _ in 0..self.waiting.of(class).len() {
            let Some(holder) = self.waiting.of_mut(class).pop_front() else { return };
            let Some(mut account) = self.accounts.get(&holder).copied() else { continue };
            account.queued = false;
            let (raise, lacking) = self.raise(now_ns, room, class, &account);
            if raise > 0 {
                let overshoot = self.limits.overshoot_bytes;
                *self.promised.of_mut(account.class) -= account.promised(overshoot);
                self.holders += u64::from(account.outstanding() == 0);
                account.limit = account.limit.max(account.received) + raise;
                (account.moved_ns, account.raised_ns, account.class) = (now_ns, now_ns, class);
                *self.promised.of_mut(class) += account.promised(overshoot);
                grants.push(Grant { holder, limit: account.limit });
            }
            account.queued = raise < lacking;
            self.accounts.insert(holder, account);
            if account.queued && raise == 0 {
                return self.waiting.of_mut(class).push_front(holder);
            }
            if account.queued {
                self.waiting.of_mut(class).push_back(holder);
            }
        }
    }

    /// By how much a connection's limit may rise now, and what it lacks of what it may have for the asking.
    fn raise(&self, now_ns: u64, room: u64, class: Class, account: &Account) -> (u64, u64) {
        let PoolLimits { pool_bytes, overshoot_bytes, window_bytes, start_bytes } = self.limits;
        let pool = pool_bytes.min(room);
        let own = account.promised(overshoot_bytes);
        let others = self.promised() - own;
        let others_of_class = self.promised.of(class) - if account.class == class { own } else { 0 };
        // Beyond what it holds, and one frame over, if all promises together may reach `most`.
        let left = |most: u64| {
            let of_class = if others == 0 { most } else { (pool / 4 * 3).saturating_sub(others_of_class) };
            let free = most.saturating_sub(others).min(of_class);
            free.saturating_sub(overshoot_bytes + account.outstanding())
        };
        let share = pool / (self.holders + self.waiting() as u64 + 1);
        let supply = account.sent_lately(now_ns).min(window_bytes).min(share.saturating_sub(overshoot_bytes));
        let asked = account.wanted.min(supply.max(start_bytes).min(window_bytes));
        let lacking = |target: u64| target.saturating_sub(account.outstanding());
        let raise = lacking(asked).min(left(pool)).max(lacking(supply).min(left(pool / 2)));
        (raise, lacking(asked))
    }

    /// Connections that hold credit and leave it unused, the longest idle first. A limit never falls, so the only way to get
    /// back what they hold is to end them. Linear in the number of connections.
    pub fn idle_holders(&self, now_ns: u64, patience: Patience) -> Vec<IdleHolder> {
        let describe = |(holder, account): (&Holder, &Account)| IdleHolder {
            holder: *holder,
            bytes: account.outstanding(),
            idle_ns: now_ns.saturating_sub(account.moved_ns),
            held_ns: now_ns.saturating_sub(account.raised_ns),
        };
        let is_idle = |idle: &IdleHolder| {
            idle.bytes > 0 && (idle.idle_ns > patience.idle_ns || idle.held_ns > patience.held_ns)
        };
        let mut idle: Vec<IdleHolder> = self.accounts.iter().map(describe).filter(is_idle).collect();
        idle.sort_by_key(|idle| (std::cmp::Reverse(idle.idle_ns), idle.holder));
        idle
    }

    /// Bytes received and the limit of a connection.
    pub fn counters(&self, holder: Holder) -> (u64, u64) {
        self.accounts.get(&holder).map_or((0, 0), |account| (account.received, account.limit))
    }

    /// The limit of a connection; none: it has no account.
    pub fn limit(&self, holder: Holder) -> Option<u64> {
        self.accounts.get(&holder).map(|account| account.limit)
    }

    /// Connections that wait for credit.
    pub fn waiting(&self) -> usize {
        self.waiting.running.len() + self.waiting.starting.len()
    }

    /// Bytes promised, the possible overshoot included.
    pub fn promised(&self) -> u64 {
        self.promised.running + self.promised.starting
    }

    /// Asserts the invariants; linear in the number of connections.
    pub fn check_invariants(&self) {
        for class in [Class::Running, Class::Starting] {
            let of_class = self.accounts.values().filter(|a| a.class == class);
            let sum: u64 = of_class.map(|a| a.promised(self.limits.overshoot_bytes)).sum();
            assert_eq!(sum, *self.promised.of(class), "{class:?}");
        }
        let holders = self.accounts.values().filter(|a| a.outstanding() > 0).count() as u64;
        assert_eq!(holders, self.holders);
        assert!(
            self.promised() <= self.limits.pool_bytes,
            "{} of {}",
            self.promised(),
            self.limits.pool_bytes
        );
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

    const LIMITS: PoolLimits =
        PoolLimits { pool_bytes: 1000, overshoot_bytes: 100, window_bytes: 400, start_bytes: 300 };
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
        grants_at(pool, 0, room)
    }

    fn grants_at(pool: &mut ProducePool, now_ns: u64, room: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        pool.grant(now_ns, room, &mut out);
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
        (0..4).for_each(|c| pool.asked(0, Holder(c), 300));
        assert_eq!(grants(&mut pool, ROOM), [(0, 300), (1, 250)]);
        assert_eq!(pool.promised(), 750, "a quarter stays for those at work");
        assert_eq!(grants(&mut pool, ROOM), [], "the beginners' part is used up");
        assert_eq!(send(&mut pool, 0, 0, 350), Ok(()), "the last frame may go beyond the limit");
        assert_eq!(grants(&mut pool, ROOM), [(2, 300)], "who got a part waits behind who got nothing");
        pool.asked(0, Holder(0), 50);
        assert_eq!(grants(&mut pool, ROOM), [(0, 400)], "who has sent is not held up by beginners");
        pool.leave(Holder(2));
        assert_eq!(grants(&mut pool, ROOM), [(3, 300)]);
        pool.leave(Holder(0));
        pool.leave(Holder(3));
        assert_eq!(grants(&mut pool, ROOM), [(1, 300)]);
    }

    #[test]
    fn a_frame_that_starts_at_the_limit_is_counted_and_refused() {
        let mut pool = pool(1);
        assert_eq!(send(&mut pool, 0, 0, 10), Err(OutOfCredit { limit: 0, received: 0 }));
        pool.asked(0, Holder(0), 50);
        assert_eq!(grants(&mut pool, ROOM), [(0, 60)]);
        assert_eq!(send(&mut pool, 0, 0, 50), Ok(()));
        assert_eq!(send(&mut pool, 0, 0, 5), Err(OutOfCredit { limit: 60, received: 60 }));
        assert_eq!(pool.counters(Holder(0)), (65, 60));
    }

    #[test]
    fn a_connection_is_kept_supplied_with_what_it_has_sent_lately_and_gets_no_more_for_asking_for_more() {
        let mut pool = pool(1);
        pool.asked(0, Holder(0), 1 << 40);
        assert_eq!(grants(&mut pool, ROOM), [(0, 300)], "what anybody gets to begin with");
        pool.asked(0, Holder(0), 0);
        assert_eq!(send(&mut pool, 0, 0, 250), Ok(()));
        assert_eq!(grants(&mut pool, ROOM), [(0, 500)], "as much as it has sent, before it has to ask");
        assert_eq!(send(&mut pool, 1, 0, 250), Ok(()));
        assert_eq!(grants(&mut pool, ROOM), [(0, 900)], "more, for it sends more; never above the window");
        // Two periods later it is forgotten.
        assert_eq!(send(&mut pool, 3 * PERIOD_NS, 0, 10), Ok(()));
        assert_eq!(send(&mut pool, 3 * PERIOD_NS, 0, 390), Ok(()));
        assert_eq!(send(&mut pool, 9 * PERIOD_NS, 0, 20), Err(OutOfCredit { limit: 900, received: 900 }));
        pool.asked(9 * PERIOD_NS, Holder(0), 40);
        assert_eq!(grants_at(&mut pool, 9 * PERIOD_NS, ROOM), [(0, 960)]);
    }

    #[test]
    fn nobody_is_supplied_unasked_from_what_is_kept_for_those_who_ask() {
        let mut pool = pool(10);
        for c in 0..10 {
            pool.asked(0, Holder(c), 20);
            assert_eq!(grants(&mut pool, ROOM).len(), 1, "{c}");
            assert_eq!(send(&mut pool, 0, c, 20), Ok(()));
            grants(&mut pool, ROOM);
            assert!(pool.promised() <= LIMITS.pool_bytes / 2);
        }
        assert!(pool.promised() > LIMITS.pool_bytes / 4, "the first ones are supplied");
    }

    #[test]
    fn without_room_in_the_shard_limits_stand_still_and_grow_later() {
        let mut pool = pool(1);
        pool.asked(0, Holder(0), 200);
        assert_eq!(grants(&mut pool, 0), []);
        assert_eq!(grants(&mut pool, 150), [(0, 50)]);
        assert_eq!(grants(&mut pool, 1000), [(0, 200)]);
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn who_holds_credit_and_leaves_it_unused_is_found() {
        const PATIENCE: Patience = Patience { idle_ns: 10, held_ns: 1000 };
        let mut pool = pool(3);
        (0..2).for_each(|c| pool.asked(10, Holder(c), 100));
        assert_eq!(grants_at(&mut pool, 10, ROOM).len(), 2);
        assert_eq!(send(&mut pool, 15, 1, 10), Ok(()));
        let idle = |pool: &ProducePool, now_ns| -> Vec<Holder> {
            pool.idle_holders(now_ns, PATIENCE).iter().map(|idle| idle.holder).collect()
        };
        let none: [Holder; 0] = [];
        assert_eq!(idle(&pool, 20), none);
        assert_eq!(idle(&pool, 21), [Holder(0)], "the third holds nothing");
        assert_eq!(idle(&pool, 30), [Holder(0), Holder(1)], "the longest idle first");
        let found = pool.idle_holders(30, PATIENCE)[1];
        assert_eq!(found, IdleHolder { holder: Holder(1), bytes: 90, idle_ns: 15, held_ns: 20 });
        // A frame that is still coming is no idleness, but it may not take for ever.
        for at_ns in 16..=1010 {
            pool.moved(at_ns, Holder(0));
            pool.moved(at_ns, Holder(1));
        }
        assert_eq!(idle(&pool, 1010), none);
        assert_eq!(idle(&pool, 1011), [Holder(0), Holder(1)]);
        assert_eq!(send(&mut pool, 1011, 0, 100), Ok(()));
        assert_eq!(idle(&pool, 1011), [Holder(1)]);
        pool.pardon(1011, Holder(1));
        assert_eq!(idle(&pool, 1011), none);
    }

    const REAL: PoolLimits = PoolLimits {
        pool_bytes: 128 << 20,
        overshoot_bytes: 2 << 20,
        window_bytes: 8 << 20,
        start_bytes: 256 << 10,
    };
    const STEP_NS: u64 = 100_000_000;
    const REAL_PATIENCE: Patience = Patience { idle_ns: 2_000_000_000, held_ns: 30_000_000_000 };

    /// A pool in which `takers` connections have asked for more than there is and send nothing; each that is ended comes again.
    fn besieged(takers: u64) -> ProducePool {
        let mut pool = ProducePool::new(REAL);
        for taker in 0..takers {
            pool.join(Holder(taker));
            pool.asked(0, Holder(taker), 1 << 40);
        }
        grants(&mut pool, ROOM);
        pool
    }

    fn siege_goes_on(pool: &mut ProducePool, now_ns: u64, next: &mut u64) -> Vec<(u64, u64)> {
        let waiting = pool.waiting();
        for idle in pool.idle_holders(now_ns, REAL_PATIENCE).into_iter().take(waiting) {
            pool.leave(idle.holder);
            pool.join(Holder(*next));
            pool.asked(now_ns, Holder(*next), 1 << 40);
            *next += 1;
        }
        grants_at(pool, now_ns, ROOM)
    }

    #[test]
    fn many_who_take_credit_and_send_nothing_never_hold_up_who_is_at_work() {
        const WORKER: u64 = 9999;
        let (mut pool, mut next) = (ProducePool::new(REAL), 150);
        pool.join(Holder(WORKER));
        pool.asked(0, Holder(WORKER), 1000);
        grants(&mut pool, ROOM);
        assert_eq!(send(&mut pool, 0, WORKER, 1000), Ok(()));
        for taker in 0..150 {
            pool.join(Holder(taker));
            pool.asked(0, Holder(taker), 1 << 40);
        }
        for step in 1..600 {
            let now_ns = step * STEP_NS;
            pool.asked(now_ns, Holder(WORKER), 1 << 20);
            siege_goes_on(&mut pool, now_ns, &mut next);
            assert_eq!(send(&mut pool, now_ns, WORKER, 1 << 20), Ok(()), "step {step}");
        }
    }

    #[test]
    fn a_beginner_behind_many_who_take_credit_and_send_nothing_gets_its_turn_in_seconds() {
        const BEGINNER: u64 = 9999;
        let (mut pool, mut next) = (besieged(150), 150);
        pool.join(Holder(BEGINNER));
        pool.asked(0, Holder(BEGINNER), 1000);
        let served = (1..600).find(|step| {
            let granted = siege_goes_on(&mut pool, step * STEP_NS, &mut next);
            granted.iter().any(|(holder, _)| *holder == BEGINNER)
        });
        let waited_s = served.expect("it gets its turn") as f64 * STEP_NS as f64 / 1e9;
        assert!(waited_s < 9.0, "{waited_s} s");
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
