//! `tg bench`: the drive alone, a broker alone, and the one against the other.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Acks, Client, TopicSpec};
use tidegate_bench::consume;
use tidegate_bench::limits::{self, FLUSH_BYTES, Target, WriteCell};
use tidegate_bench::produce::{self, Workload};
use tidegate_bench::wire;

use crate::args::{BenchCommand, ClientArg, FirstArgs, LimitsArgs, WorkloadArgs};
use crate::broker::{BrokerProcess, Spawn};
use crate::connect::{connect, runtime};
use crate::exit::{Code, Failure};
use crate::output::{Out, bytes_text, grouped, micros_text, note, progress_bar};

/// Bytes of a full batch of the workloads.
const BATCH_BYTES: usize = 512 << 10;

/// Does one of them.
pub(crate) fn run(server: &str, command: BenchCommand, out: &mut Out) -> Result<(), Failure> {
    match command {
        BenchCommand::Limits(args) => drive(&args, out),
        BenchCommand::First(args) => first(&args, out),
        BenchCommand::Produce(args) => {
            runtime()?.block_on(async { produce_to(connect(server).await?, args, out).await })
        }
        BenchCommand::Consume { topic } => {
            runtime()?.block_on(async { consume_from(connect(server).await?, &topic, out).await })
        }
    }
}

fn drive(args: &LimitsArgs, out: &mut Out) -> Result<(), Failure> {
    let target = make_target(args)?;
    let time = Duration::from_millis(args.cell_ms);
    let cells = target.overwrite_all(time).map_err(|e| unmeasurable(&args.dir, &e))?;
    let flushes: Result<Vec<_>, _> =
        FLUSH_BYTES.iter().map(|bytes| target.write_and_flush(*bytes, time)).collect();
    let flushes = flushes.map_err(|e| unmeasurable(&args.dir, &e))?;
    let best = limits::best(&cells);
    if out.is_json() {
        return out.json(
            &json!({ "overwrite": cells, "write_and_flush": flushes, "best": best, "kernel": kernel(),
            "file_mib": args.mib, "cell_ms": args.cell_ms }),
        );
    }
    out.line(format!("direct writes over a zero-filled file of {} MiB, kernel {}", args.mib, kernel()))?;
    let rows: Vec<Vec<String>> = cells.iter().map(cell_row).collect();
    out.table(&["write", "depth", "MiB/s"], &rows)?;
    out.line(format!("\nthe drive's figure: {:.0} MiB/s ({})\n", best.mib_per_s, cell_name(&best)))?;
    let rows: Vec<Vec<String>> = flushes
        .iter()
        .map(|f| {
            let latency = &f.latency;
            let micros = [latency.p50_us, latency.p99_us, latency.max_us].map(micros_text);
            [vec![bytes_text(f.write_bytes as u64), grouped(latency.count)], micros.to_vec()].concat()
        })
        .collect();
    out.table(&["write + flush", "times", "p50", "p99", "max"], &rows)
}

fn first(args: &FirstArgs, out: &mut Out) -> Result<(), Failure> {
    let target = make_target(&args.limits)?;
    let data = args.limits.dir.join(format!("tidegate-bench-{}", std::process::id()));
    let result = runtime()?.block_on(async {
        tokio::select! {
            result = first_rounds(args, &target, &data, out) => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::new(Code::Interrupted, "interrupted")),
        }
    });
    if let Err(error) = std::fs::remove_dir_all(&data)
        && data.exists()
    {
        note(format!("warning: cannot remove {}: {error}", data.display()));
    }
    result
}

async fn first_rounds(args: &FirstArgs, target: &Target, data: &Path, out: &mut Out) -> Result<(), Failure> {
    let broker =
        BrokerProcess::start(Spawn { data, shards: args.shards, allow_volatile: args.allow_volatile })
            .await?;
    let rounds = alternate(&broker, args, target, out).await?;
    broker.stop().await?;
    report_first(args, &rounds, out)
}

#[derive(Default)]
struct Rounds {
    facts: Vec<(String, String)>,
    drives: Vec<WriteCell>,
    produces: Vec<produce::Outcome>,
}

/// The drive and the broker in turn, so that a busy minute of a shared drive meets both.
async fn alternate(
    broker: &BrokerProcess,
    args: &FirstArgs,
    target: &Target,
    out: &mut Out,
) -> Result<Rounds, Failure> {
    let client = broker.client().await?;
    let mut rounds = Rounds { facts: client.admin().status().await?.facts, ..Rounds::default() };
    let cell = Duration::from_millis(args.limits.cell_ms);
    // The first produce is for warmth: the broker's data files come to be, and is not counted.
    produce_round(broker, &client, args, 0).await?;
    for round in 1..=args.rounds {
        let cells = tokio::task::block_in_place(|| target.overwrite_all(cell));
        let best = limits::best(&cells.map_err(|e| unmeasurable(&args.limits.dir, &e))?);
        let produced = produce_round(broker, &client, args, round).await?;
        if !out.is_json() {
            out.line(format!(
                "round {round}: drive {:.0} MiB/s ({}), produce {:.0} MiB/s, ack p50 {} p99 {}",
                best.mib_per_s,
                cell_name(&best),
                produced.mib_per_s,
                micros_text(produced.ack.p50_us),
                micros_text(produced.ack.p99_us),
            ))?;
            out.flush()?;
        }
        rounds.drives.push(best);
        rounds.produces.push(produced);
    }
    Ok(rounds)
}

async fn produce_round(
    broker: &BrokerProcess,
    client: &Client,
    args: &FirstArgs,
    round: u32,
) -> Result<produce::Outcome, Failure> {
    let topic = format!("bench-{round}");
    client.admin().create_topic(TopicSpec::new(&topic).partitions(args.partitions)).await?;
    let workload = Workload {
        topic: topic.clone(),
        record_bytes: args.record_bytes,
        batch_bytes: BATCH_BYTES,
        acks: Acks::Leader,
        time: Duration::from_secs(args.seconds),
    };
    let outcome = match args.client {
        ClientArg::Sdk => produce::run(client, &workload).await?,
        ClientArg::Wire => {
            let topics = client.admin().list_topics().await?;
            let info = topics.iter().find(|t| t.name == topic);
            let info =
                info.ok_or_else(|| Failure::new(Code::Failed, "the topic is not there after its creation"))?;
            let run = || wire::run(broker.addr(), info.topic, &info.partitions, &workload);
            tokio::task::block_in_place(run)
                .map_err(|e| Failure::new(Code::Failed, format!("producing failed: {e}")))?
        }
    };
    client.admin().delete_topic(&topic).await?;
    Ok(outcome)
}

fn report_first(args: &FirstArgs, rounds: &Rounds, out: &mut Out) -> Result<(), Failure> {
    let Rounds { facts, drives, produces } = rounds;
    let drive = median(drives.iter().map(|c| c.mib_per_s));
    let produced = median(produces.iter().map(|p| p.mib_per_s));
    let percent = 100.0 * produced / drive;
    let micros = |of: fn(&produce::Outcome) -> u64| median(produces.iter().map(|p| of(p) as f64)) as u64;
    let (p50, p99, p999) = (micros(|p| p.ack.p50_us), micros(|p| p.ack.p99_us), micros(|p| p.ack.p999_us));
    let level = produces.iter().map(|p| p.level_min).min().unwrap_or(0);
    let level = level_text(level);
    if out.is_json() {
        let facts: serde_json::Map<String, Value> =
            facts.iter().map(|(n, v)| (n.clone(), Value::from(v.clone()))).collect();
        return out.json(&json!({
            "drive_mib_per_s": drive, "produce_mib_per_s": produced, "percent_of_drive": percent, "level": level,
            "ack_p50_us": p50, "ack_p99_us": p99, "ack_p999_us": p999, "partitions": args.partitions,
            "record_bytes": args.record_bytes, "rounds": args.rounds, "seconds": args.seconds, "client": client_name(args.client), "kernel": kernel(),
            "facts": facts, "drive_rounds": drives, "produce_rounds": produces,
        }));
    }
    let fact = |name: &str| facts.iter().find(|(n, _)| n == name).map_or("unknown", |(_, v)| v.as_str());
    let records = median(produces.iter().map(|p| p.records_per_s)) as u64;
    let rows = [
        ("drive", format!("{drive:.0} MiB/s, direct writes, best of size and depth in each round")),
        ("produce", format!("{produced:.0} MiB/s, {} records/s, acks=1", grouped(records))),
        ("of the drive", format!("{percent:.0} %")),
        ("ack", format!("p50 {}, p99 {}, p99.9 {}", micros_text(p50), micros_text(p99), micros_text(p999))),
        ("level met", level.to_owned()),
        (
            "work",
            format!("{} B records, {} partitions, {} s", args.record_bytes, args.partitions, args.seconds),
        ),
        ("client", client_name(args.client).to_owned()),
        ("kernel", kernel()),
        ("filesystem", fact("filesystem").to_owned()),
        ("flush rule", fact("flush_rule").to_owned()),
    ];
    out.line(format!("\nmedians of {} rounds", args.rounds))?;
    for (name, value) in rows {
        out.line(format!("{name:<13} {value}"))?;
    }
    Ok(())
}

async fn produce_to(client: Client, args: WorkloadArgs, out: &mut Out) -> Result<(), Failure> {
    let workload = Workload {
        topic: args.topic,
        record_bytes: args.record_bytes,
        batch_bytes: BATCH_BYTES,
        acks: args.acks.into(),
        time: Duration::from_secs(args.seconds),
    };
    let outcome = produce::run(&client, &workload).await?;
    if out.is_json() {
        return out.json(&json!(outcome));
    }
    let ack = &outcome.ack;
    out.line(format!(
        "{} records in {:.1} s: {:.0} MiB/s, {} records/s\nack p50 {}, p99 {}, p99.9 {}, max {}; level {}; waited for \
         credit {} ms, for memory {} ms",
        grouped(outcome.records),
        outcome.seconds,
        outcome.mib_per_s,
        grouped(outcome.records_per_s as u64),
        micros_text(ack.p50_us),
        micros_text(ack.p99_us),
        micros_text(ack.p999_us),
        micros_text(ack.max_us),
        level_text(outcome.level_min),
        grouped(outcome.credit_wait_ms),
        grouped(outcome.memory_wait_ms),
    ))
}

async fn consume_from(client: Client, topic: &str, out: &mut Out) -> Result<(), Failure> {
    let outcome = consume::run(&client, topic).await?;
    if out.is_json() {
        return out.json(&json!(outcome));
    }
    out.line(format!(
        "{} records in {:.1} s: {:.0} MiB/s, {} records/s",
        grouped(outcome.records),
        outcome.seconds,
        outcome.mib_per_s,
        grouped(outcome.records_per_s as u64),
    ))
}

fn make_target(args: &LimitsArgs) -> Result<Target, Failure> {
    let bytes = args.mib << 20;
    let bar = progress_bar(Some(bytes), "bytes");
    bar.set_message("zero-filling");
    let target = Target::create(&args.dir, bytes, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    target.map_err(|e| unmeasurable(&args.dir, &e))
}

fn unmeasurable(dir: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Code::Failed, format!("cannot measure the drive: {error}"))
        .place(dir.display().to_string())
        .fix("name a writable directory on the drive with --dir, with room for --mib")
}

fn cell_row(cell: &WriteCell) -> Vec<String> {
    vec![bytes_text(cell.write_bytes as u64), cell.depth.to_string(), format!("{:.0}", cell.mib_per_s)]
}

fn cell_name(cell: &WriteCell) -> String {
    format!("{} x {}", bytes_text(cell.write_bytes as u64), cell.depth)
}

fn client_name(client: ClientArg) -> &'static str {
    match client {
        ClientArg::Wire => "prepared batches, no SDK",
        ClientArg::Sdk => "SDK",
    }
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or("unknown".into(), |text| text.trim().to_owned())
}

fn level_text(level: u8) -> &'static str {
    ["none", "memory", "disk", "quorum"].get(usize::from(level)).copied().unwrap_or("unknown")
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
