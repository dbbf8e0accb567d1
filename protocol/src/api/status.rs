//! `status`: what the broker is, and what its shards have counted since they started.

use tidegate_schema::wire;

use super::table::{put_table, take_table};
use super::{Api, put_whole, take_whole};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind};

/// Ask for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRequest;

/// Facts for a person, and counters by shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusReply {
    /// Name and value, such as `data_dir`, `filesystem`, `flush_rule`, `reactor`, `durability`, `version`.
    pub facts: Vec<(String, String)>,
    /// One list of counters a shard, the same names in each, but for those of stages (`stage_write_us_upto_127`), of which only
    /// what is not zero is there.
    pub shards: Vec<Vec<(String, i64)>>,
}

impl StatusRequest {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_whole(Api::Status, Kind::Request, correlation, &[0u8; 0], out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<StatusRequest, DecodeError> {
        take_whole::<[u8; 0]>(frame, Api::Status, Kind::Request)?;
        Ok(StatusRequest)
    }
}

impl StatusReply {
    /// Appends the whole frame.
    pub fn encode(&self, correlation: u32, out: &mut Vec<u8>) {
        put_table(Api::Status.number(), Kind::Reply, correlation, out, |b| {
            let mut facts = Vec::with_capacity(self.facts.len());
            for (name, value) in &self.facts {
                let args =
                    wire::FactArgs { name: Some(b.create_string(name)), value: Some(b.create_string(value)) };
                facts.push(wire::Fact::create(b, &args));
            }
            let mut shards = Vec::with_capacity(self.shards.len());
            for shard in &self.shards {
                let mut counters = Vec::with_capacity(shard.len());
                for (name, value) in shard {
                    let name = Some(b.create_shared_string(name));
                    counters.push(wire::Counter::create(b, &wire::CounterArgs { name, value: *value }));
                }
                let counters = Some(b.create_vector(&counters));
                shards.push(wire::ShardStatus::create(b, &wire::ShardStatusArgs { counters }));
            }
            let args = wire::StatusReplyArgs {
                facts: Some(b.create_vector(&facts)),
                shards: Some(b.create_vector(&shards)),
            };
            wire::StatusReply::create(b, &args).as_union_value()
        });
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<StatusReply, DecodeError> {
        let table = take_table::<wire::StatusReply<'_>>(frame, Api::Status, Kind::Reply)?;
        let fact = |fact: wire::Fact<'_>| (fact.name().to_owned(), fact.value().to_owned());
        let counter = |counter: wire::Counter<'_>| (counter.name().to_owned(), counter.value());
        Ok(StatusReply {
            facts: table.facts().iter().map(fact).collect(),
            shards: table
                .shards()
                .iter()
                .map(|shard| shard.counters().iter().map(counter).collect())
                .collect(),
        })
    }
}
