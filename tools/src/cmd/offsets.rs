//! `tg offsets`: where partitions begin and end, and where a named consumer stands.

use std::collections::HashMap;

use serde_json::json;
use tidegate::{Client, OffsetQuery, PartitionId};

use crate::args::OffsetsArgs;
use crate::exit::Failure;
use crate::output::{Out, grouped};
use crate::time;

/// One line a partition.
pub(crate) async fn run(client: Client, args: OffsetsArgs, out: &mut Out) -> Result<(), Failure> {
    let admin = client.admin();
    let at = match &args.at {
        None => None,
        Some(text) => Some(time::parse(text, time::now_ms()).ok_or_else(|| {
            let failure = Failure::usage("this is no time").place("--at").current(text);
            failure.fix("write 2026-11-29T15:00:00Z, @1795965377000 (ms), or -5m")
        })?),
    };
    let earliest = admin.list_offsets(&args.topic, OffsetQuery::Earliest).await?;
    let latest = admin.list_offsets(&args.topic, OffsetQuery::Latest).await?;
    let found = match at {
        None => None,
        Some(ms) => Some(admin.list_offsets(&args.topic, OffsetQuery::RecordTime(ms)).await?),
    };
    let stored: Option<HashMap<PartitionId, i64>> = match &args.group {
        None => None,
        Some(group) => {
            let stored = admin.fetch_offsets(group, &args.topic).await?;
            Some(stored.into_iter().map(|s| (s.partition.partition, s.offset.0)).collect())
        }
    };
    let mut head = vec!["partition", "earliest", "latest", "records"];
    head.extend(found.iter().flat_map(|_| ["at", "at time"]));
    head.extend(stored.iter().flat_map(|_| ["stored", "lag"]));
    let mut rows = Vec::new();
    for (i, ((partition, first), (_, end))) in earliest.iter().zip(&latest).enumerate() {
        let records = (end.offset.0 - first.offset.0).max(0);
        let mut object = json!({
            "topic": args.topic, "partition": partition.0, "earliest": first.offset.0, "latest": end.offset.0,
            "records": records,
        });
        let mut row = vec![
            partition.to_string(),
            first.offset.to_string(),
            end.offset.to_string(),
            grouped(records as u64),
        ];
        if let Some((_, reply)) = found.as_ref().and_then(|found| found.get(i)) {
            object["at"] = json!(reply.offset.0);
            object["at_timestamp_ms"] = json!(reply.timestamp_ms);
            row.push(reply.offset.to_string());
            row.push(if reply.timestamp_ms < 0 { "-".into() } else { time::render_ms(reply.timestamp_ms) });
        }
        if let Some(stored) = &stored {
            let offset = stored.get(partition).copied();
            let lag = (end.offset.0 - offset.unwrap_or(first.offset.0).max(first.offset.0)).max(0);
            object["stored"] = json!(offset);
            object["lag"] = json!(lag);
            row.push(offset.map_or("-".into(), |o| o.to_string()));
            row.push(grouped(lag as u64));
        }
        match out.is_json() {
            true => out.json(&object)?,
            false => rows.push(row),
        }
    }
    if !out.is_json() {
        out.table(&head, &rows)?;
    }
    Ok(())
}
