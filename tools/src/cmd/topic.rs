//! `tg topic`: create, list, describe, alter, trim, delete.

use serde_json::{Value, json};
use tidegate::{
    Client, ErrorCode, Offset, PartitionDescription, PartitionId, TopicChange, TopicDescription, TopicSpec,
};

use crate::args::TopicCommand;
use crate::exit::Failure;
use crate::output::{Out, bytes_text, grouped, note};
use crate::time;

/// Does one of them.
pub(crate) async fn run(client: Client, command: TopicCommand, out: &mut Out) -> Result<(), Failure> {
    match command {
        TopicCommand::Create { names, partitions, replication, settings, if_absent } => {
            for name in &names {
                let spec = TopicSpec::new(name).partitions(partitions).replication(replication);
                let spec = settings.iter().fold(spec, |spec, (name, value)| spec.setting(name, value));
                create(&client, name, spec, if_absent, out).await?;
            }
            Ok(())
        }
        TopicCommand::List => list(&client, out).await,
        TopicCommand::Describe { names } => describe(&client, &names, out).await,
        TopicCommand::Alter { name, partitions, settings } => {
            alter(&client, &name, partitions, &settings, out).await
        }
        TopicCommand::Trim { name, partition, before } => {
            let start = client.admin().delete_records(&name, PartitionId(partition), Offset(before)).await?;
            if out.is_json() {
                return out.json(&json!({ "topic": name, "partition": partition, "start": start.0 }));
            }
            out.line(format!("{name} partition {partition} now starts at offset {start}"))
        }
        TopicCommand::Delete { names } => {
            for name in &names {
                client.admin().delete_topic(name).await?;
                match out.is_json() {
                    true => out.json(&json!({ "topic": name, "deleted": true }))?,
                    false => out.line(format!("deleted {name}"))?,
                }
            }
            Ok(())
        }
    }
}

async fn create(
    client: &Client,
    name: &str,
    spec: TopicSpec,
    if_absent: bool,
    out: &mut Out,
) -> Result<(), Failure> {
    let created = match client.admin().create_topic(spec).await {
        Ok(_) => true,
        Err(error) if if_absent && error.code() == Some(ErrorCode::TopicExists) => false,
        Err(error) => return Err(error.into()),
    };
    let topic = client.admin().describe_topic(name).await?;
    if out.is_json() {
        return out.json(&json!({
            "topic": name, "id": topic.topic.to_string(), "partitions": topic.partitions.len(), "created": created,
        }));
    }
    let verb = if created { "created" } else { "exists:" };
    let count = topic.partitions.len();
    out.line(format!("{verb} {name} with {count} partition{}", if count == 1 { "" } else { "s" }))
}

async fn list(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let topics = client.admin().describe_topics().await?;
    if out.is_json() {
        for topic in &topics {
            out.json(&json!({
                "topic": topic.name, "id": topic.topic.to_string(), "partitions": topic.partitions.len(),
                "records": records(topic), "bytes": bytes(topic), "damaged_ranges": damaged_ranges(topic),
            }))?;
        }
        return Ok(());
    }
    if topics.is_empty() {
        return out.line("no topics; make one with: tg topic create NAME --partitions 4");
    }
    let rows: Vec<Vec<String>> = topics
        .iter()
        .map(|t| {
            let partitions = t.partitions.len().to_string();
            vec![t.name.clone(), partitions, grouped(records(t)), bytes_text(bytes(t))]
        })
        .collect();
    out.table(&["topic", "partitions", "records", "size"], &rows)?;
    for topic in topics.iter().filter(|topic| damaged_ranges(topic) > 0) {
        out.line(format!("{} is damaged in part; see: tg topic describe {}", topic.name, topic.name))?;
    }
    Ok(())
}

async fn describe(client: &Client, names: &[String], out: &mut Out) -> Result<(), Failure> {
    let mut topics = Vec::new();
    if names.is_empty() {
        topics = client.admin().describe_topics().await?;
    }
    for name in names {
        topics.push(client.admin().describe_topic(name).await?);
    }
    for (i, topic) in topics.iter().enumerate() {
        if out.is_json() {
            out.json(&description_json(topic))?;
            continue;
        }
        if i > 0 {
            out.line("")?;
        }
        out.line(format!("topic       {}", topic.name))?;
        out.line(format!("id          {}", topic.topic))?;
        out.line(format!("created     {}", time::render_ms(topic.created_ms)))?;
        out.line(format!("replication {}", topic.replication))?;
        for setting in &topic.settings {
            out.line(format!("setting     {}={}", setting.name, setting.value))?;
        }
        let rows: Vec<Vec<String>> = topic
            .partitions
            .iter()
            .map(|p| {
                let records = (p.committed.0 - p.start.0).max(0) as u64;
                vec![
                    p.partition.to_string(),
                    p.shard.to_string(),
                    p.start.to_string(),
                    p.committed.to_string(),
                    p.appended.to_string(),
                    grouped(records),
                    bytes_text(p.bytes.max(0) as u64),
                ]
            })
            .collect();
        out.table(&["partition", "shard", "start", "committed", "appended", "records", "size"], &rows)?;
        for p in topic.partitions.iter().filter(|p| p.damaged_ranges > 0) {
            out.line(damage_text(&topic.name, p))?;
        }
    }
    Ok(())
}

/// What is damaged of a partition, as far as reads have found it, and where to read on.
fn damage_text(topic: &str, p: &PartitionDescription) -> String {
    let others = match p.damaged_ranges {
        0 | 1 => String::new(),
        2 => " and 1 other range".to_owned(),
        more => format!(" and {} other ranges", more - 1),
    };
    format!(
        "damaged     partition {}, offsets {} to {}{others}; read on with: tg consume {topic} -p {} --from {}",
        p.partition,
        p.damaged_from,
        p.damaged_upto.0 - 1,
        p.partition,
        p.damaged_upto
    )
}

fn description_json(topic: &TopicDescription) -> Value {
    let settings: serde_json::Map<String, Value> =
        topic.settings.iter().map(|s| (s.name.clone(), Value::from(s.value.clone()))).collect();
    let partitions: Vec<Value> = topic
        .partitions
        .iter()
        .map(|p| {
            json!({
                "partition": p.partition.0, "shard": p.shard.0, "start": p.start.0, "committed": p.committed.0,
                "appended": p.appended.0, "bytes": p.bytes, "damaged_ranges": p.damaged_ranges,
                "damaged_from": (p.damaged_ranges > 0).then_some(p.damaged_from.0),
                "damaged_upto": (p.damaged_ranges > 0).then_some(p.damaged_upto.0),
            })
        })
        .collect();
    json!({
        "topic": topic.name, "id": topic.topic.to_string(), "created_ms": topic.created_ms,
        "replication": topic.replication, "settings": settings, "partitions": partitions,
    })
}

async fn alter(
    client: &Client,
    name: &str,
    partitions: Option<i32>,
    settings: &[(String, String)],
    out: &mut Out,
) -> Result<(), Failure> {
    if partitions.is_none() && settings.is_empty() {
        let failure = Failure::usage("there is nothing to change").place("tg topic alter");
        return Err(failure.fix("give --partitions N, or --set NAME=VALUE"));
    }
    let before = client.admin().describe_topic(name).await?.partitions.len();
    let mut change = TopicChange::new(name);
    if let Some(partitions) = partitions {
        change = change.partitions(partitions);
    }
    change = settings.iter().fold(change, |change, (name, value)| change.setting(name, value));
    client.admin().alter_topic(change).await?;
    let after = client.admin().describe_topic(name).await?.partitions.len();
    if after != before {
        note(format!(
            "warning: {name} has {after} partitions instead of {before}: from now on most keys map to another partition\n  \
             than their older records, so order by key holds within the older and the newer records, not across them"
        ));
    }
    match out.is_json() {
        true => out.json(&json!({ "topic": name, "partitions": after, "partitions_before": before })),
        false => out.line(format!("altered {name}")),
    }
}

fn records(topic: &TopicDescription) -> u64 {
    topic.partitions.iter().map(|p| (p.committed.0 - p.start.0).max(0) as u64).sum()
}

fn damaged_ranges(topic: &TopicDescription) -> u32 {
    topic.partitions.iter().map(|p| p.damaged_ranges).sum()
}

fn bytes(topic: &TopicDescription) -> u64 {
    topic.partitions.iter().map(|p| p.bytes.max(0) as u64).sum()
}
