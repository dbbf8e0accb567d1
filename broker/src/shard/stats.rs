//! What a shard has counted, and the requests that gather something from every shard.

use tidegate_protocol::api::Api;
use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::api::status::StatusReply;
use tidegate_protocol::api::topic::DescribeTopicReply;
use tidegate_protocol::ids::ShardId;
use tidegate_reactor::op::Op;

use super::Shard;
use super::connection::ConnectionId;
use super::mail::{Answer, Ask, Asker};
use super::reply::Refusal;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start; each only rises.
        #[derive(Debug, Default)]
        pub(super) struct Stats {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl Stats {
            fn list(&self, out: &mut Vec<(String, i64)>) {
                $(out.push((stringify!($name).to_owned(), self.$name as i64));)*
            }
        }
    };
}

counters! {
    turns,
    connections_accepted,
    connections_handed_over,
    hello_timeouts,
    late_frames_ended,
    deaf_connections_ended,
    streams_distrusted,
    frames_received,
    bytes_received,
    receive_pauses,
    room_waits,
    sends,
    bytes_sent,
    refusals,
    produces_received,
    produces_refused,
    produces_forwarded,
    records_appended,
    bytes_appended,
    duplicates,
    acks,
    ack_us_total,
    unknown_outcomes,
    data_frames,
    data_bytes,
    recent_read_bytes,
    cold_read_bytes,
    cold_reads_delayed,
    fetch_credit_waits,
    credit_grants,
    credit_holders_ended,
    credit_waits_disk,
    credit_waits_disk_full,
    credit_waits_replica,
    credit_waits_memory,
    credit_waits_quota,
    credit_waits_consumer,
    produce_credit_wait_us,
    offset_commits,
    snapshots,
    snapshot_trims_refused,
    logs_not_created,
}

impl Stats {
    /// A turn has ended with connections waiting for produce credit.
    pub(super) fn count_credit_wait(&mut self, reason: Reason) {
        match reason {
            Reason::None => {}
            Reason::Disk => self.credit_waits_disk += 1,
            Reason::DiskFull => self.credit_waits_disk_full += 1,
            Reason::Replica => self.credit_waits_replica += 1,
            Reason::Memory => self.credit_waits_memory += 1,
            Reason::Quota => self.credit_waits_quota += 1,
            Reason::Consumer => self.credit_waits_consumer += 1,
        }
    }
}

/// A request that waits for several shards.
#[derive(Debug)]
pub(super) struct Gather {
    connection: ConnectionId,
    correlation: u32,
    api: Api,
    missing: usize,
    what: Gathering,
}

/// What comes together.
#[derive(Debug)]
pub(super) enum Gathering {
    Describe(DescribeTopicReply),
    Status(StatusReply),
}

impl Shard {
    /// All counters of this shard, and how much there is of everything now.
    pub(super) fn counters(&self) -> Vec<(String, i64)> {
        let mut out = vec![("shard".to_owned(), i64::from(self.me.0))];
        self.stats.list(&mut out);
        let gauges = [
            ("connections", self.connections.len()),
            ("subscriptions", self.readers.len()),
            ("queued_bytes", self.held.queued),
            ("set_aside_bytes", self.held.set_aside),
            ("partitions", self.partitions.len()),
            ("topics", self.topics.topics().count()),
            ("credit_waiting", self.pool.waiting()),
            ("credit_promised", usize::try_from(self.pool.promised()).unwrap_or(usize::MAX)),
            ("letters_waiting", self.letters.len()),
            ("damaged_ranges", self.damage.ranges()),
            ("requests_elsewhere", self.asked_elsewhere.len()),
        ];
        out.extend(gauges.map(|(name, value)| (name.to_owned(), value as i64)));
        self.stages.list(&mut out);
        for (name, value) in self.logs.stats() {
            if !out.iter().any(|(known, _)| known == name) {
                out.push((name.to_owned(), value));
            }
        }
        out
    }

    /// What the broker is, and what all shards have counted.
    pub(super) fn status(&mut self, id: ConnectionId, correlation: u32, ops: &mut Vec<Op>) {
        let shards = vec![Vec::new(); usize::from(self.shard_count)];
        let reply = StatusReply { facts: self.facts.clone(), shards };
        let asks = (0..self.shard_count).map(|shard| (ShardId(shard), Ask::Counters)).collect();
        self.gather(id, correlation, Api::Status, Gathering::Status(reply), asks, ops);
    }

    /// Asks several shards, and answers when all have.
    pub(super) fn gather(
        &mut self,
        connection: ConnectionId,
        correlation: u32,
        api: Api,
        what: Gathering,
        asks: Vec<(ShardId, Ask)>,
        ops: &mut Vec<Op>,
    ) {
        self.request_begins(connection);
        self.gathering_changes(connection, 1);
        self.gathers_made += 1;
        let gather = self.gathers_made;
        // One more than is asked, so that answers that come at once do not end it too early.
        let missing = asks.len() + 1;
        self.gathers.insert(gather, Gather { connection, correlation, api, missing, what });
        for (shard, ask) in asks {
            self.ask(Asker::Gather { gather, shard }, shard, ask, ops);
        }
        self.gathered_part(gather);
    }

    /// A shard has answered.
    pub(super) fn gathered(&mut self, gather: u64, shard: ShardId, answer: Result<Answer, Refusal>) {
        let Some(waiting) = self.gathers.get_mut(&gather) else { return };
        match (&mut waiting.what, answer) {
            (Gathering::Describe(reply), Ok(Answer::Describe(partitions))) => {
                for (topic, partition) in partitions {
                    if let Some(description) = reply.topics.iter_mut().find(|t| t.topic == topic) {
                        description.partitions.push(partition);
                    }
                }
            }
            (Gathering::Status(reply), Ok(Answer::Counters(counters))) => {
                reply.shards[usize::from(shard.0)] = counters;
            }
            (_, Ok(_)) => unreachable!("each request has its own kind of answer"),
            (_, Err(refusal)) => {
                let failed = self.gathers.remove(&gather).expect("looked up above");
                self.gathering_changes(failed.connection, -1);
                self.connection_answered(failed.connection);
                return self.refuse(failed.connection, failed.correlation, failed.api.number(), &refusal);
            }
        }
        self.gathered_part(gather);
    }

    fn gathering_changes(&mut self, id: ConnectionId, by: isize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.gathering = connection.gathering.checked_add_signed(by).expect("each ends once");
        }
    }

    fn gathered_part(&mut self, gather: u64) {
        let Some(waiting) = self.gathers.get_mut(&gather) else { return };
        waiting.missing -= 1;
        if waiting.missing > 0 {
            return;
        }
        let Gather { connection, correlation, what, .. } =
            self.gathers.remove(&gather).expect("looked up above");
        self.gathering_changes(connection, -1);
        self.connection_answered(connection);
        match what {
            Gathering::Describe(mut reply) => {
                for topic in &mut reply.topics {
                    topic.partitions.sort_unstable_by_key(|partition| partition.partition);
                }
                self.send(connection, |out| reply.encode(correlation, out));
            }
            Gathering::Status(reply) => self.send(connection, |out| reply.encode(correlation, out)),
        }
    }
}
