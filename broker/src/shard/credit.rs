//! Credit frames, and the grants at the end of a turn.

use tidegate_logic::credit::{FetchCredit, Grant, Patience};
use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::{Credit, Reason, Scope};
use tidegate_protocol::frame::Frame;

use super::Shard;
use super::connection::{Connection, ConnectionId};
use super::reply::Refusal;

impl Shard {
    /// A credit frame has come: more for a subscription or a connection, or a wish to produce.
    pub(super) fn credit(&mut self, id: ConnectionId, frame: &Frame<'_>) -> Result<(), Refusal> {
        let credit = Credit::decode(frame)?;
        let connection = self.connections.get_mut(&id).expect("its frame has just come");
        match credit.scope {
            Scope::Produce => {
                self.pool.asked(self.now.mono_ns, id.holder(), credit.wanted);
                self.credit_askers.push(id);
            }
            Scope::Subscription(subscription) => {
                // One that has just ended may still be spoken of.
                if let Some(reader) = connection.subscriptions.get(&subscription).copied() {
                    self.reader_credit(reader, credit.limit);
                }
            }
            Scope::Connection => {
                let sent = connection.data_sent;
                connection.ceiling.get_or_insert(FetchCredit { sent, limit: 0 }).raise(credit.limit);
                let held = std::mem::take(&mut connection.held_readers);
                held.into_iter().for_each(|reader| self.reader_wake(reader));
            }
        }
        Ok(())
    }

    /// Raises produce limits as far as the pool and the room in the logs allow. Who has asked in this turn and gets nothing
    /// hears for what it waits.
    pub(super) fn credit_grant(&mut self) {
        let now_ns = self.now.mono_ns;
        if let Some(since_ns) = self.credit_waiting_since_ns.take() {
            self.stats.produce_credit_wait_us += (now_ns - since_ns) / 1000;
        }
        if self.pool.waiting() == 0 {
            return self.credit_askers.clear();
        }
        let room = self.logs.room();
        let mut grants = std::mem::take(&mut self.grants);
        self.pool.grant(now_ns, room.bytes, &mut grants);
        let waiting = self.pool.waiting() > 0;
        let reason = if waiting { self.wait_reason() } else { Reason::None };
        if waiting {
            self.credit_waiting_since_ns = Some(now_ns);
            self.stats.count_credit_wait(reason);
        }
        for grant in &grants {
            if let Some(connection) = self.connections.get_mut(&ConnectionId(grant.holder.0)) {
                connection.told = None;
            }
        }
        self.credit_askers.retain(|id| grants.iter().all(|grant| grant.holder != id.holder()));
        for id in std::mem::take(&mut self.credit_askers) {
            self.tell_reason(id, reason);
        }
        for Grant { holder, limit } in grants.drain(..) {
            let credit = Credit { scope: Scope::Produce, limit, reason, wanted: 0 };
            self.stats.credit_grants += 1;
            self.send(ConnectionId(holder.0), |out| credit.encode(out));
        }
        self.grants = grants;
    }

    /// For what those wait that get no credit, or whose frames wait for room in the logs.
    fn wait_reason(&self) -> Reason {
        match self.logs.room().reason {
            Reason::None => Reason::Memory,
            reason => reason,
        }
    }

    /// Tells a connection that it waits, and for what, unless it knows. Once until something changes: a client may ask again
    /// whenever it hears of credit. One that is ending has no account any more, and hears nothing.
    fn tell_reason(&mut self, id: ConnectionId, reason: Reason) {
        let Some(limit) = self.pool.limit(id.holder()) else { return };
        let told = self.connections.get_mut(&id).map(|connection| connection.told.replace(reason));
        if told.is_some_and(|told| told != Some(reason)) {
            let credit = Credit { scope: Scope::Produce, limit, reason, wanted: 0 };
            self.send(id, |out| credit.encode(out));
        }
    }

    /// Those whose frames wait for room in the logs hear for what; their clients see only that no reply comes.
    pub(super) fn credit_explain(&mut self) {
        let reason = self.wait_reason();
        for at in 0..self.room_waiters.len() {
            self.tell_reason(self.room_waiters[at], reason);
        }
    }

    /// While others wait, ends connections that hold credit and leave it unused: as many as wait, the longest idle first.
    pub(super) fn credit_tick(&mut self) {
        let now_ns = self.now.mono_ns;
        // Where the logs have no room, nobody would get what is taken back.
        let in_vain = self.logs.room().bytes <= self.limits.produce.overshoot_bytes;
        if self.pool.waiting() == 0 || in_vain {
            return;
        }
        let patience = Patience {
            idle_ns: self.limits.credit_idle_ms * 1_000_000,
            held_ns: self.limits.credit_held_ms * 1_000_000,
        };
        let mut wanted = self.pool.waiting();
        for idle in self.pool.idle_holders(now_ns, patience) {
            let id = ConnectionId(idle.holder.0);
            if self.connections.get(&id).is_some_and(Connection::is_paused) {
                // It is this shard that does not read what may have come.
                self.pool.pardon(now_ns, idle.holder);
                continue;
            }
            if wanted == 0 {
                return;
            }
            wanted -= 1;
            let refusal = Refusal::CreditUnused { idle, patience };
            self.stats.credit_holders_ended += 1;
            self.refuse(id, 0, Api::Credit.number(), &refusal);
            self.connection_end(id);
        }
    }
}
