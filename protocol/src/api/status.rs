//! `status`: what the broker is, and what its shards have counted since they started.

/// Facts for a person, and counters by shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusReply {
    /// Name and value, such as `data_dir`, `filesystem`, `flush_rule`, `reactor`, `durability`, `version`.
    pub facts: Vec<(String, String)>,
    /// One list of counters a shard, the same names in each.
    pub shards: Vec<Vec<(String, i64)>>,
}
