//! A run as one JSON object. Fields are only ever added.
//!
//! Where a field means the same as in the result file of the OpenMessaging Benchmark it has that name and unit (rates in
//! records a second, one value an interval; latencies in milliseconds). Its publish latency begins at the actual send; ours
//! at the intended one, which is never later: `latencyFrom` says so.

use serde_json::{Map, Value, json};
use tidegate::Acks;

use crate::engine::Outcome;
use crate::latency::{Latencies, Summary};
use crate::limits::Limit;
use crate::load::Published;
use crate::load::consume::Consumed;
use crate::machine::STEAL_SHARE_MAX;
use crate::search::Step;
use crate::series::{Interval, Series};
use crate::stages::Stage;

/// A run with all that is told beside it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// What came of it.
    pub outcome: &'a Outcome,
    /// Names and values of the broker and the machine.
    pub facts: &'a [(String, String)],
    /// What binds it, if that was measured.
    pub limit: Option<&'a Limit>,
    /// A plain loop of write and flush in turn with it.
    pub flush_loop: Option<&'a Series>,
    /// The rates that were tried for it.
    pub steps: &'a [Step],
    /// The bound of the search, in microseconds.
    pub p99_us_max: Option<u64>,
    /// Where the broker's time went, the warm-up included.
    pub stages: &'a [Stage],
}

/// The level that a number stands for.
pub fn level_text(level: u8) -> &'static str {
    ["none", "memory", "disk", "quorum"].get(usize::from(level)).copied().unwrap_or("unknown")
}

impl Run<'_> {
    /// The series that the run is named after: of the producers, else of the first reading.
    pub fn main(&self) -> Option<&Series> {
        let published = self.outcome.published.as_ref().map(|published| &published.series);
        published.or(self.outcome.consumed.first().map(|consumed| &consumed.series))
    }

    /// Whether nothing that has nothing to do with the broker disturbed it.
    pub fn is_valid(&self) -> bool {
        self.outcome.cpu.steal <= STEAL_SHARE_MAX
    }

    /// All of it.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut add = |fields: Value| {
            if let Value::Object(fields) = fields {
                object.extend(fields);
            }
        };
        add(self.work());
        if let Some(series) = self.main() {
            add(self.figures(series));
            add(json!({ "samples": samples(&series.intervals), "intervals": intervals(series) }));
            add(json!({ "curve": series.latency.curve() }));
        }
        if let Some(published) = &self.outcome.published {
            add(publish_lists(&published.series));
            add(aggregated("Publish", &published.series.latency));
            add(self.published(published));
        }
        let consumed: Vec<Value> = self.outcome.consumed.iter().map(one_reading).collect();
        if let Some(first) = self.outcome.consumed.first() {
            add(consume_lists(&first.series));
            add(aggregated("EndToEnd", &first.series.latency));
        }
        add(json!({ "consumed": consumed }));
        if let Some(series) = self.flush_loop {
            add(json!({ "flush_loop": self.beside(series) }));
        }
        let stages = self.stages.iter().map(|stage| (stage.name.clone(), json!(stage.times())));
        add(json!({ "stages": stages.collect::<Map<_, _>>() }));
        if !self.steps.is_empty() {
            add(json!({ "steps": self.steps, "p99_us_max": self.p99_us_max }));
        }
        add(Value::Object(self.facts.iter().map(|(n, v)| (n.clone(), Value::from(v.clone()))).collect()));
        // The topic's own, not what the broker's storage could do.
        add(json!({ "durability": self.outcome.workload.durability }));
        Value::Object(object)
    }

    fn work(&self) -> Value {
        let Outcome { workload, cpu, .. } = self.outcome;
        let consumers = workload.readings.iter().map(|reading| reading.subscriptions * reading.consumers);
        json!({
            "workload": workload.name, "driver": "tidegate", "topics": 1, "topic": workload.topic,
            "partitions": workload.partitions, "messageSize": workload.record_bytes,
            "producersPerTopic": workload.producers, "consumersPerTopic": consumers.sum::<usize>(),
            "record_bytes": workload.record_bytes, "batch_bytes_max": workload.batch_bytes(),
            "acks": match workload.acks { Acks::None => "0", Acks::Leader => "1", Acks::All => "all" },
            "rate": workload.rate, "loop": if workload.rate.is_some() { "open" } else { "closed" },
            "latencyFrom": "intended send", "seconds_asked": workload.time.as_secs_f64(),
            "warmup_seconds": workload.warmup.as_secs_f64(), "client": workload.client,
            "in_flight": workload.in_flight, "keys": workload.keys, "compressible": workload.compressible,
            "compression": format!("{:?}", workload.compression).to_lowercase(),
            "cpu_busy": cpu.busy, "cpu_others": cpu.others, "steal": cpu.steal, "valid": self.is_valid(),
            "disturbed": cpu.is_disturbed(), "errors": self.outcome.errors(),
        })
    }

    fn figures(&self, series: &Series) -> Value {
        let mut figures = json!({
            "seconds": series.seconds(), "records": series.records(), "bytes": series.bytes(),
            "mib_per_s": series.mib_per_s(), "records_per_s": series.records_per_s(),
            "limit": self.limit.map(|limit| &limit.name),
            "limit_mib_per_s": self.limit.map(|limit| limit.mib_per_s),
            "of_limit": self.limit.map(|limit| series.mib_per_s() / limit.mib_per_s),
        });
        merge(&mut figures, json!(series.latency.summary()));
        figures
    }

    fn published(&self, published: &Published) -> Value {
        let bytes = published.bytes;
        let written = self.outcome.device_written;
        json!({
            "level": level_text(published.level_min.unwrap_or(0)), "batches": published.batches,
            "credit_wait_ms": published.credit_wait.as_millis() as u64, "first_error": published.first_error,
            "device_written_bytes": written,
            "amplification": written.filter(|_| bytes > 0).map(|written| written as f64 / bytes as f64),
        })
    }

    /// The loop's own figures, and how the run's latency compares with them.
    fn beside(&self, series: &Series) -> Value {
        let theirs = series.latency.summary();
        let ours = self.main().map(|series| series.latency.summary()).unwrap_or_default();
        let ratio = |a: u64, b: u64| if b == 0 { Value::Null } else { json!(a as f64 / b as f64) };
        let mut figures = json!({
            "mib_per_s": series.mib_per_s(), "per_s": series.records_per_s(),
            "p50_ratio": ratio(ours.p50_us, theirs.p50_us), "p99_ratio": ratio(ours.p99_us, theirs.p99_us),
            "p999_ratio": ratio(ours.p999_us, theirs.p999_us),
        });
        merge(&mut figures, json!(theirs));
        figures
    }
}

fn merge(into: &mut Value, fields: Value) {
    if let (Value::Object(into), Value::Object(fields)) = (into, fields) {
        into.extend(fields);
    }
}

fn one_reading(consumed: &Consumed) -> Value {
    let series = &consumed.series;
    let mut reading = json!({
        "name": consumed.name, "mib_per_s": series.mib_per_s(), "records_per_s": series.records_per_s(),
        "seconds": series.seconds(), "records": consumed.records, "ended_early": consumed.ended_early,
        "client": "sdk", "intervals": intervals(series),
    });
    merge(&mut reading, json!(series.latency.summary()));
    reading
}

/// One value for each interval: what two runs are compared by.
fn samples(intervals: &[Interval]) -> Value {
    let latency = |of: fn(&Summary) -> u64| -> Vec<u64> {
        let measured = intervals.iter().filter(|interval| interval.latency.count() > 0);
        measured.map(|interval| of(&interval.latency.summary())).collect()
    };
    json!({
        "records_per_s": intervals.iter().map(|i| i.records as f64 / i.seconds).collect::<Vec<_>>(),
        "p50_us": latency(|s| s.p50_us), "p99_us": latency(|s| s.p99_us), "p999_us": latency(|s| s.p999_us),
    })
}

fn intervals(series: &Series) -> Vec<Value> {
    let intervals = series.intervals.iter().map(|interval| {
        let latency = interval.latency.summary();
        json!({
            "seconds": interval.seconds, "records": interval.records, "errors": interval.errors,
            "mib_per_s": interval.bytes as f64 / interval.seconds / f64::from(1 << 20),
            "p50_us": latency.p50_us, "p99_us": latency.p99_us, "max_us": latency.max_us,
        })
    });
    intervals.collect()
}

type Figure = (&'static str, fn(&Summary) -> f64);

/// The endings of the benchmark's latency fields, and their values in milliseconds.
const LATENCIES: [Figure; 9] = [
    ("Avg", |s| s.mean_us / 1e3),
    ("50pct", |s| ms(s.p50_us)),
    ("75pct", |s| ms(s.p75_us)),
    ("95pct", |s| ms(s.p95_us)),
    ("99pct", |s| ms(s.p99_us)),
    ("999pct", |s| ms(s.p999_us)),
    ("9999pct", |s| ms(s.p9999_us)),
    ("99999pct", |s| ms(s.p99999_us)),
    ("Max", |s| ms(s.max_us)),
];

fn ms(micros: u64) -> f64 {
    micros as f64 / 1e3
}

fn publish_lists(series: &Series) -> Value {
    let rate = |of: fn(&Interval) -> u64| -> Vec<f64> {
        series.intervals.iter().map(|interval| of(interval) as f64 / interval.seconds).collect()
    };
    let mut lists = json!({ "publishRate": rate(|i| i.records), "publishErrorRate": rate(|i| i.errors) });
    merge(&mut lists, latency_lists("publishLatency", series));
    lists
}

fn consume_lists(series: &Series) -> Value {
    let rate = series.intervals.iter().map(|interval| interval.records as f64 / interval.seconds);
    let mut lists = json!({ "consumeRate": rate.collect::<Vec<_>>() });
    merge(&mut lists, latency_lists("endToEndLatency", series));
    lists
}

fn latency_lists(prefix: &str, series: &Series) -> Value {
    let summaries: Vec<Summary> = series.intervals.iter().map(|i| i.latency.summary()).collect();
    let lists = LATENCIES.map(|(ending, of)| {
        (format!("{prefix}{ending}"), Value::from(summaries.iter().map(of).collect::<Vec<_>>()))
    });
    Value::Object(lists.into_iter().collect())
}

fn aggregated(what: &str, latency: &Latencies) -> Value {
    let summary = latency.summary();
    let mut fields: Map<String, Value> = LATENCIES
        .iter()
        .map(|(ending, of)| (format!("aggregated{what}Latency{ending}"), Value::from(of(&summary))))
        .collect();
    let quantiles = latency.curve().into_iter();
    let quantiles =
        quantiles.map(|point| (format!("{}", point.quantile * 100.0), Value::from(ms(point.micros))));
    fields.insert(format!("aggregated{what}LatencyQuantiles"), Value::Object(quantiles.collect()));
    Value::Object(fields)
}

/// For tests: a run of three seconds, 1,000 records in each, with a second of slow ones in the middle.
#[cfg(test)]
pub(crate) fn sample_outcome(slow_us: u64) -> Outcome {
    let second = 1_000_000_000;
    let mut published =
        Published::new(crate::series::Window { begin_ns: 0, end_ns: 3 * second, interval_ns: second });
    for (at, micros) in [(0, 1_000), (1, slow_us), (2, 1_000)] {
        published.series.done(at * second, at * second + micros * 1000, 1000, 1 << 20);
    }
    published.level_min = Some(2);
    published.bytes = 3 << 20;
    Outcome {
        workload: crate::workload::sample(),
        published: Some(published),
        consumed: Vec::new(),
        cpu: crate::machine::CpuShares { busy: 0.5, steal: 0.01, others: None },
        device_written: Some(6 << 20),
    }
}

/// For tests: the same with all that is told beside it.
#[cfg(test)]
pub(crate) fn sample_run<'a>(
    outcome: &'a Outcome,
    facts: &'a [(String, String)],
    limit: &'a Limit,
) -> Run<'a> {
    Run { outcome, facts, limit: Some(limit), flush_loop: None, steps: &[], p99_us_max: None, stages: &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_what_was_measured_how_durably_and_of_which_limit() {
        let (outcome, limit) = (sample_outcome(50_000), Limit { name: "drive write".into(), mib_per_s: 4.0 });
        let facts = [("reactor", "glommio"), ("durability", "whatever"), ("kernel", "6.18")];
        let facts = facts.map(|(n, v)| (n.to_owned(), v.to_owned()));
        let json = sample_run(&outcome, &facts, &limit).to_json();
        let wanted = [
            ("mib_per_s", json!(1.0)),
            ("records_per_s", json!(1000.0)),
            ("p50_us", json!(1000)),
            ("errors", json!(0)),
            ("durability", json!("disk")),
            ("level", json!("disk")),
            ("reactor", json!("glommio")),
            ("limit", json!("drive write")),
            ("limit_mib_per_s", json!(4.0)),
            ("of_limit", json!(0.25)),
            ("amplification", json!(2.0)),
            ("valid", json!(true)),
            ("messageSize", json!(100)),
            ("publishRate", json!([1000.0, 1000.0, 1000.0])),
        ];
        for (name, value) in wanted {
            assert_eq!(json[name], value, "{name}");
        }
        for name in ["p99_us", "p999_us", "p9999_us", "max_us"] {
            let micros = json[name].as_u64().unwrap();
            assert!((49_900..=50_100).contains(&micros), "{name} {micros}");
        }
        let per_interval = json["publishLatency99pct"].as_array().unwrap();
        assert_eq!(per_interval.len(), 3);
        assert!(per_interval[1].as_f64().unwrap() > 49.0, "milliseconds: {per_interval:?}");
        assert!(json["aggregatedPublishLatencyQuantiles"]["100"].as_f64().unwrap() > 49.0);
        assert!(json["aggregatedPublishLatency999pct"].as_f64().is_some());
    }

    #[test]
    fn a_run_with_stolen_time_is_not_valid() {
        let mut outcome = sample_outcome(1_000);
        outcome.cpu.steal = 0.021;
        let limit = Limit { name: "loopback".into(), mib_per_s: 1.0 };
        assert_eq!(sample_run(&outcome, &[], &limit).to_json()["valid"], false);
    }

    #[test]
    fn a_run_beside_busy_processes_is_disturbed_and_stays_valid() {
        let mut outcome = sample_outcome(1_000);
        let limit = Limit { name: "loopback".into(), mib_per_s: 1.0 };
        for (others, disturbed) in [(None, false), (Some(0.1), false), (Some(0.11), true)] {
            outcome.cpu.others = others;
            let json = sample_run(&outcome, &[], &limit).to_json();
            assert_eq!((&json["disturbed"], &json["valid"]), (&json!(disturbed), &json!(true)), "{others:?}");
        }
    }

    #[test]
    fn a_flush_loop_in_turn_gives_ratios() {
        let (outcome, mut plain) = (sample_outcome(3_000), sample_outcome(1_000).published.unwrap().series);
        plain.latency = Latencies::new();
        plain.latency.record_many(1_000, 1_000);
        let run = Run {
            outcome: &outcome,
            facts: &[],
            limit: None,
            flush_loop: Some(&plain),
            steps: &[],
            p99_us_max: None,
            stages: &[],
        };
        let json = run.to_json();
        assert!((json["flush_loop"]["p99_ratio"].as_f64().unwrap() - 3.0).abs() < 0.01, "{json}");
        assert_eq!(json["of_limit"], Value::Null);
    }
}
