//! One run: `tg bench produce` and the other workloads.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tidegate_bench::engine::{self, Outcome};
use tidegate_bench::flush_loop::{self, Arrivals};
use tidegate_bench::limits::{Bounds, Limit, Meets};
use tidegate_bench::load::idle::{Idle, raise_descriptors};
use tidegate_bench::machine::{OTHERS_SHARE_MAX, STEAL_SHARE_MAX};
use tidegate_bench::report::json::{Run, level_text};
use tidegate_bench::report::{hgrm, html, line};
use tidegate_bench::search::{self, Step};
use tidegate_bench::series::Series;
use tidegate_bench::workload::{ClientKind, Cores, Durability, ReadFrom, Reading, Workload};

use super::Stage;
use super::host::{Embedded, Host};
use super::limits::{make_target, unmeasurable};
use crate::args::{ClientArg, CompressionArg, DurabilityArg, HostArgs, RunArgs};
use crate::exit::{Code, Failure};
use crate::output::{Out, grouped, micros_text, note, stage_table};

/// Steps between the last rate that held and the first that did not.
const HALVINGS: u32 = 4;

/// A workload by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Produce.
    Produce,
    /// Consume what is in memory.
    Consume,
    /// Produce and consume.
    E2e,
    /// Consume what is on the drive.
    Catchup,
    /// Produce, consume, catch up.
    Mixed,
    /// Very many partitions.
    Partitions,
    /// Very many connections.
    Connections,
}

/// What a kind is unless told otherwise.
struct Defaults {
    name: &'static str,
    partitions: i32,
    producers: usize,
    subscriptions: usize,
    record_bytes: usize,
    batch_records: usize,
    in_flight_wire: usize,
    preload_mib: u64,
}

impl Kind {
    fn defaults(self) -> Defaults {
        let usual = Defaults {
            name: "produce",
            partitions: 4,
            producers: 4,
            subscriptions: 1,
            record_bytes: 1024,
            batch_records: 0,
            in_flight_wire: 16,
            preload_mib: 0,
        };
        match self {
            Kind::Produce => usual,
            Kind::Consume => {
                Defaults { name: "consume", producers: 0, subscriptions: 4, preload_mib: 128, ..usual }
            }
            Kind::E2e => Defaults { name: "e2e", ..usual },
            Kind::Catchup => Defaults { name: "catchup", producers: 0, preload_mib: 2048, ..usual },
            Kind::Mixed => Defaults { name: "mixed", preload_mib: 2048, ..usual },
            Kind::Partitions => Defaults {
                name: "partitions",
                partitions: 1024,
                producers: 16,
                batch_records: 16,
                in_flight_wire: 4,
                ..usual
            },
            Kind::Connections => Defaults {
                name: "connections",
                producers: 64,
                record_bytes: 200,
                batch_records: 1,
                in_flight_wire: 1,
                ..usual
            },
        }
    }

    fn meets(self) -> Meets {
        let produces = !matches!(self, Kind::Consume | Kind::Catchup);
        Meets { writes: produces, reads: self == Kind::Catchup, sockets: true }
    }
}

/// What a run found beside its outcome.
#[derive(Default)]
struct Beside {
    limit: Option<Limit>,
    flush_loop: Option<Series>,
    steps: Vec<Step>,
}

/// Starts or finds the broker, runs, reports.
pub(crate) fn run(
    stage: &Stage,
    server: &str,
    kind: Kind,
    args: &RunArgs,
    out: &mut Out,
) -> Result<(), Failure> {
    let workload = workload(kind, args)?;
    if args.idle_connections > 0 || kind == Kind::Connections {
        raise_descriptors();
    }
    let HostArgs { embedded, shards, allow_volatile, broker_settings: ref settings } = args.host;
    let mut host = match embedded {
        true => Host::start(stage, Embedded { dir: &args.drive.dir, shards, allow_volatile, settings })?,
        false => Host::connect(stage, server)?,
    };
    let mut beside = Beside::default();
    if !args.no_limits {
        let (dir, time) = (&args.drive.dir, Duration::from_millis(args.drive.cell_ms));
        let bounds = Bounds::measure(dir, args.drive.mib << 20, kind.meets(), time);
        beside.limit = bounds.map_err(|e| unmeasurable(dir, &e))?.binding(kind.meets());
    }
    host.create(&workload, &args.settings)?;
    let outcome = prepare_and_measure(stage, &mut host, kind, args, &workload, &mut beside);
    let stages = host.stages();
    let facts = host.facts(&args.drive.dir);
    // A topic of a broker that others use does not stay, whatever became of the run.
    let deleted = if embedded { Ok(()) } else { delete_topics(&host, &workload) };
    let (outcome, stages) = (outcome?, stages?);
    deleted?;
    host.finish()?;
    let report = Run {
        outcome: &outcome,
        facts: &facts,
        limit: beside.limit.as_ref(),
        flush_loop: beside.flush_loop.as_ref(),
        steps: &beside.steps,
        p99_us_max: args.find_max_p99_ms.map(|ms| (ms * 1000.0) as u64),
        stages: &stages,
    };
    tell(&report, args, out)
}

fn prepare_and_measure(
    stage: &Stage,
    host: &mut Host,
    kind: Kind,
    args: &RunArgs,
    workload: &Workload,
    beside: &mut Beside,
) -> Result<Outcome, Failure> {
    let preload_mib = args.preload_mib.unwrap_or(kind.defaults().preload_mib);
    match kind {
        Kind::Consume => host.preload(workload, preload_mib)?,
        Kind::Catchup => {
            host.preload(workload, preload_mib)?;
            host.restart()?;
        }
        Kind::Mixed => {
            let old = Workload { topic: old_topic(workload), ..workload.clone() };
            host.create(&old, &args.settings)?;
            host.preload(&old, preload_mib)?;
        }
        Kind::Produce | Kind::E2e | Kind::Partitions | Kind::Connections => {}
    }
    let count = args.idle_connections as usize;
    let idle = Idle::open(&host.site.server, host.shards(), count).map_err(|error| {
        Failure::new(Code::Failed, format!("cannot open the idle connections: {error}"))
            .limit(format!("{} descriptors", raise_descriptors()))
            .current(grouped(u64::from(args.idle_connections)))
            .fix("raise `ulimit -n` of this process and of the broker, or ask for fewer")
    })?;
    let outcome = if let Some(ms) = args.find_max_p99_ms {
        find_max(host, workload, (ms * 1000.0) as u64, beside)
    } else if args.beside_flush_loop {
        let target = make_target(&args.drive)?;
        let (outcome, plain) = beside_flush_loop(stage, host, workload, &target)?;
        beside.flush_loop = Some(plain);
        Ok(outcome)
    } else {
        host.measure(workload)
    };
    drop(idle);
    outcome
}

/// The run of the highest rate within the bound; all steps go to `beside`.
fn find_max(
    host: &Host,
    workload: &Workload,
    p99_us_max: u64,
    beside: &mut Beside,
) -> Result<Outcome, Failure> {
    let unbounded = host.measure(&Workload { rate: None, ..workload.clone() })?;
    let rate = unbounded.published.as_ref().map_or(0.0, |published| published.series.records_per_s());
    if rate <= 0.0 {
        return Ok(unbounded);
    }
    let probe = |rate: f64| {
        let outcome = host.measure(&Workload { rate: Some(rate), ..workload.clone() })?;
        Ok::<_, Failure>(step_of(rate, &outcome))
    };
    beside.steps = search::find_max(rate, p99_us_max, HALVINGS, probe)?;
    match search::best(&beside.steps, p99_us_max) {
        Some(best) => {
            let outcome = host.measure(&Workload { rate: Some(best.rate), ..workload.clone() })?;
            let last = step_of(best.rate, &outcome);
            if last.holds(p99_us_max) {
                return Ok(outcome);
            }
            Err(Failure::new(
                Code::Failed,
                "the rate that kept the bound in the search did not keep it again",
            )
            .limit(format!("{}/s, p99 {}", grouped(best.rate as u64), micros_text(p99_us_max)))
            .current(format!("{}/s, p99 {}", grouped(last.reached as u64), micros_text(last.p99_us)))
            .fix("measure for longer with --seconds, or when nothing else runs"))
        }
        None => {
            let lowest = beside.steps.first().map_or(0, |step| step.p99_us);
            Err(Failure::new(Code::Failed, "no rate that was tried keeps the bound")
                .limit(format!("p99 {}", micros_text(p99_us_max)))
                .current(format!("p99 {} at the lowest rate", micros_text(lowest)))
                .fix("allow more with --find-max-p99-ms"))
        }
    }
}

fn step_of(rate: f64, outcome: &Outcome) -> Step {
    let series = &outcome.published.as_ref().expect("a workload with a rate produces").series;
    let latency = series.latency.summary();
    let reached = series.records_per_s();
    Step { rate, reached, p50_us: latency.p50_us, p99_us: latency.p99_us, p999_us: latency.p999_us }
}

/// The workload and a plain loop of write and flush with the same arrivals, in turn, in slices.
///
/// # Errors
/// A run breaks off, or the drive fails.
pub(crate) fn beside_flush_loop(
    stage: &Stage,
    host: &Host,
    workload: &Workload,
    target: &tidegate_bench::limits::drive::Target,
) -> Result<(Outcome, Series), Failure> {
    let rate = workload.rate.expect("clap and the suite give one");
    let slices = workload.time.as_secs().clamp(1, 5) as u32;
    let slice = Workload { time: workload.time / slices, ..workload.clone() };
    let (records, bytes) = engine::arrival(workload);
    let arrivals = Arrivals { bytes, per_s: rate / records as f64 };
    let mut found: Option<(Outcome, Series)> = None;
    for _ in 0..slices {
        let outcome = host.measure(&slice)?;
        let plain = flush_loop::run(target, arrivals, slice.warmup, slice.time, &stage.stop);
        let plain = plain.map_err(|error| {
            Failure::new(Code::Failed, format!("the plain loop of write and flush failed: {error}"))
                .fix("look at the drive: the kernel's log says more")
        })?;
        match &mut found {
            None => found = Some((outcome, plain)),
            Some((outcomes, plains)) => {
                outcomes.append(outcome);
                plains.append(plain);
            }
        }
    }
    Ok(found.expect("there is at least one slice"))
}

fn old_topic(workload: &Workload) -> String {
    format!("{}-old", workload.topic)
}

fn delete_topics(host: &Host, workload: &Workload) -> Result<(), Failure> {
    let old = workload.readings.iter().map(|reading| &reading.topic).find(|topic| **topic != workload.topic);
    if let Some(old) = old {
        host.delete(old)?;
    }
    host.delete(&workload.topic)
}

/// What was typed, as plain data.
fn workload(kind: Kind, args: &RunArgs) -> Result<Workload, Failure> {
    let defaults = kind.defaults();
    let client = client_kind(args.client);
    if args.compression != CompressionArg::None && client == ClientKind::Wire {
        return Err(Failure::usage("prepared batches are not compressed")
            .place("--compression")
            .fix("add --client sdk, which compresses what it sends"));
    }
    let record_bytes = args.record_bytes.map_or(defaults.record_bytes, |bytes| bytes as usize);
    if kind == Kind::E2e && record_bytes < 8 {
        return Err(Failure::usage("a record is too short for the time at which it was to be sent")
            .place("--record-bytes")
            .limit("8 bytes")
            .current(record_bytes)
            .fix("use longer records, or `tg bench produce`"));
    }
    let in_flight = if client == ClientKind::Wire { defaults.in_flight_wire } else { 4 };
    let mut workload = Workload {
        name: defaults.name.into(),
        topic: args.topic.clone(),
        partitions: args.partitions.unwrap_or(defaults.partitions),
        producers: match defaults.producers {
            0 => 0,
            usual => args.producers.map_or(usual, |producers| producers as usize),
        },
        readings: Vec::new(),
        record_bytes,
        batch_records: args.batch_records.map_or(defaults.batch_records, |records| records as usize),
        acks: args.acks.into(),
        durability: match args.durability {
            DurabilityArg::Disk => Durability::Disk,
            DurabilityArg::Relaxed => Durability::Relaxed,
        },
        rate: args.rate,
        warmup: Duration::from_secs_f64(args.warmup),
        time: Duration::from_secs(args.seconds),
        compressible: args.compressible,
        compression: args.compression.into(),
        keys: args.keys,
        client,
        in_flight: args.in_flight.map_or(in_flight, |frames| frames as usize),
    };
    workload.readings = readings(kind, args, &workload);
    if kind == Kind::Catchup {
        // What is read in a warm-up would be missing afterwards.
        workload.warmup = Duration::ZERO;
    }
    Ok(workload)
}

fn readings(kind: Kind, args: &RunArgs, workload: &Workload) -> Vec<Reading> {
    let subscriptions = args.subscriptions.map_or(kind.defaults().subscriptions, |count| count as usize);
    let reading = |name: &str, from| Reading {
        consumers: args.consumers as usize,
        ..Reading::each(name, &workload.topic, from, subscriptions)
    };
    match kind {
        Kind::Produce | Kind::Partitions | Kind::Connections => Vec::new(),
        Kind::Consume => vec![reading("resident", ReadFrom::Again)],
        Kind::E2e => vec![reading("tail", ReadFrom::Tail)],
        Kind::Catchup => vec![reading("cold", ReadFrom::Start)],
        Kind::Mixed => {
            let old = Reading::each("cold", &old_topic(workload), ReadFrom::Again, 1);
            vec![reading("tail", ReadFrom::Tail), Reading { cores: Cores::Half, ..old }]
        }
    }
}

/// The benchmark's own name of what produces.
pub(crate) fn client_kind(client: ClientArg) -> ClientKind {
    match client {
        ClientArg::Wire => ClientKind::Wire,
        ClientArg::Sdk => ClientKind::Sdk,
    }
}

fn tell(report: &Run<'_>, args: &RunArgs, out: &mut Out) -> Result<(), Failure> {
    let object = report.to_json();
    if let Some(file) = &args.json {
        write(file, &format!("{object:#}\n"))?;
    }
    if let Some(file) = &args.html {
        write(file, &html::run_page(&object))?;
    }
    if let (Some(file), Some(series)) = (&args.hgrm, report.main()) {
        write(file, &hgrm::text(&series.latency))?;
    }
    if out.is_json() { out.json(&object) } else { tell_people(report, &object, out) }
}

/// Writes a file of results.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        Failure::new(Code::Failed, format!("cannot write the result: {error}"))
            .place(file.display().to_string())
            .fix("name a file in a directory that exists and can be written")
    })
}

fn tell_people(report: &Run<'_>, object: &Value, out: &mut Out) -> Result<(), Failure> {
    let outcome = report.outcome;
    for step in report.steps {
        out.line(format!(
            "at {:>10}/s: reached {:>10}/s, p50 {}, p99 {}, p99.9 {}",
            grouped(step.rate as u64),
            grouped(step.reached as u64),
            micros_text(step.p50_us),
            micros_text(step.p99_us),
            micros_text(step.p999_us),
        ))?;
    }
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(published) = &outcome.published {
        let level = level_text(published.level_min.unwrap_or(0));
        rows.push(("published", series_text(&published.series)));
        rows.push(("ack", latency_text(&published.series)));
        rows.push(("level met", format!("{level}; topic {}", text(&object["durability"]))));
        rows.push(("errors", grouped(outcome.errors())));
        if let Some(error) = &published.first_error {
            rows.push(("first error", error.clone()));
        }
        if let Some(amplification) = object["amplification"].as_f64() {
            rows.push(("drive wrote", format!("{amplification:.2} bytes for each one acknowledged")));
        }
    }
    for consumed in &outcome.consumed {
        rows.push(("consumed", format!("{}: {}", consumed.name, series_text(&consumed.series))));
        if consumed.series.latency.count() > 0 {
            rows.push(("end to end", latency_text(&consumed.series)));
        }
    }
    if let (Some(limit), Some(share)) = (report.limit, object["of_limit"].as_f64()) {
        let text =
            format!("{:.0} % of {}, {} MiB/s", share * 100.0, limit.name, grouped(limit.mib_per_s as u64));
        rows.push(("of the limit", text));
    }
    if let Some(plain) = report.flush_loop {
        rows.push(("plain loop", format!("write + flush in turn: {}", latency_text(plain))));
        let ratio = |name: &str| object["flush_loop"][name].as_f64().unwrap_or(0.0);
        rows.push((
            "by the loop",
            format!("p99 x {:.2}, p99.9 x {:.2}", ratio("p99_ratio"), ratio("p999_ratio")),
        ));
    }
    rows.extend(facts(outcome, object));
    for (name, value) in rows {
        out.line(format!("{:<13} {value}", name.replace('_', " ")))?;
    }
    if !report.stages.is_empty() {
        out.line("\nwhere the broker's time went, the warm-up included")?;
        stage_table(report.stages, out)?;
    }
    if !report.is_valid() {
        note(format!(
            "not valid: more than {:.0} % of the time was stolen; measure again",
            STEAL_SHARE_MAX * 100.0
        ));
    }
    if outcome.cpu.is_disturbed() {
        note(format!("disturbed: others took more than {:.0} % of the processors", OTHERS_SHARE_MAX * 100.0));
    }
    if let Some(why) = outcome.shortcoming() {
        note(format!("no figure to quote: {why}"));
    }
    match report.main() {
        Some(series) => out.line(format!("\n{}", line::perf_test(series))),
        None => Ok(()),
    }
}

/// What stands beside every figure.
fn facts(outcome: &Outcome, object: &Value) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let loops = if outcome.workload.rate.is_some() { "open loop" } else { "closed loop: as much as goes" };
    rows.push(("client", format!("{} produces, sdk consumes; {loops}", text(&object["client"]))));
    for name in ["reactor", "kernel", "cpu", "drive", "filesystem", "flush_rule"] {
        rows.push((name, text(&object[name])));
    }
    rows.push(("stolen", format!("{:.2} % of the processors' time", outcome.cpu.steal * 100.0)));
    if let Some(others) = outcome.cpu.others {
        rows.push((
            "others",
            format!("{:.0} % of it went to other processes and the kernel", others * 100.0),
        ));
    }
    rows
}

fn series_text(series: &Series) -> String {
    format!("{:.0} MiB/s, {} records/s", series.mib_per_s(), grouped(series.records_per_s() as u64))
}

fn latency_text(series: &Series) -> String {
    let s = series.latency.summary();
    let [p50, p99, p999, p9999, max] = [s.p50_us, s.p99_us, s.p999_us, s.p9999_us, s.max_us].map(micros_text);
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}, p99.99 {p9999}, max {max}")
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
