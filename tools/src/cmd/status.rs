//! `tg status`: what the broker is, and what its shards have counted since they started.

use serde_json::{Map, Value, json};
use tidegate::{Client, StatusReply};
use tidegate_bench::stages;

use crate::args::StatusArgs;
use crate::exit::Failure;
use crate::output::{Out, stage_table};

/// Facts first, then counters.
pub(crate) async fn run(client: Client, args: StatusArgs, out: &mut Out) -> Result<(), Failure> {
    let status = client.admin().status().await?;
    if out.is_json() {
        let facts: Map<String, Value> =
            status.facts.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect();
        let shards: Vec<Map<String, Value>> = status
            .shards
            .iter()
            .map(|shard| shard.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect())
            .collect();
        return out.json(&json!({ "facts": facts, "shards": shards }));
    }
    let width = status.facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in &status.facts {
        out.line(format!("{name:<width$}  {value}"))?;
    }
    if status.shards.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let sums = sums(&status);
    let stages = stages::of(&sums);
    if !stages.is_empty() {
        stage_table(&stages, out)?;
        out.line("")?;
    }
    if !args.shards {
        let sums = sums.into_iter().filter(|(name, _)| !stages::is_bucket(name));
        let rows: Vec<Vec<String>> = sums.map(|(name, value)| vec![name, value.to_string()]).collect();
        return out.table(&["counter", "all shards"], &rows);
    }
    let heads: Vec<String> = (0..status.shards.len()).map(|i| format!("shard {i}")).collect();
    let mut head = vec!["counter"];
    head.extend(heads.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = status.shards[0]
        .iter()
        .filter(|(name, _)| !stages::is_bucket(name))
        .map(|(name, _)| {
            let cell = |shard: &Vec<(String, i64)>| {
                shard.iter().find(|(n, _)| n == name).map_or("-".into(), |(_, v)| v.to_string())
            };
            std::iter::once(name.clone()).chain(status.shards.iter().map(cell)).collect()
        })
        .collect();
    out.table(&head, &rows)
}

/// Every counter summed over the shards, in the broker's order; of times the earliest.
pub(crate) fn sums(status: &StatusReply) -> Vec<(String, i64)> {
    let mut sums: Vec<(String, i64)> = Vec::new();
    // A shard's own number is no count.
    for (name, value) in status.shards.iter().flatten().filter(|(name, _)| name != "shard") {
        match sums.iter_mut().find(|(n, _)| n == name) {
            // What all shards have done since the earliest of these times.
            Some((_, least)) if name.ends_with("_at_ms") => *least = (*least).min(*value),
            Some((_, sum)) => *sum += value,
            None => sums.push((name.clone(), *value)),
        }
    }
    sums
}
