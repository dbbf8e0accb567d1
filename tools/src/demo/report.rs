//! What the demo prints: the opening, a line of rates each second, the table, the verdict.

use std::path::Path;

use serde_json::{Value, json};

use crate::args::DemoArgs;
use crate::cmd::produce::level_name;
use crate::exit::{Code, Failure};
use crate::output::{Out, bytes_text, grouped, micros_text};

use super::{Cold, Stored};

/// Says what is about to happen, and where.
pub(super) fn opening(
    args: &DemoArgs,
    data: &Path,
    facts: &[(String, String)],
    out: &mut Out,
) -> Result<(), Failure> {
    if out.is_json() {
        return Ok(());
    }
    let fact =
        |name: &str| facts.iter().find(|(n, _)| n == name).map_or("unknown", |(_, value)| value.as_str());
    out.line(format!(
        "tidegate {}: {} s of this machine's telemetry",
        env!("CARGO_PKG_VERSION"),
        args.seconds
    ))?;
    out.line(format!("data        {} ({})", data.display(), fact("filesystem")))?;
    out.line(format!("flush rule  {}", fact("flush_rule")))?;
    out.line(format!("shards      {}, {} partitions, acks=1\n", fact("shards"), args.partitions))?;
    out.flush()
}

/// One line of what happens next.
pub(super) fn progress(text: &str, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        return Ok(());
    }
    out.line(text)?;
    out.flush()
}

/// Rates of one second.
pub(super) struct Rates {
    /// Since the start.
    pub(super) second: u64,
    /// Records acknowledged.
    pub(super) records_per_s: f64,
    /// Bytes acknowledged.
    pub(super) bytes_per_s: f64,
    /// Records enqueued, not yet acknowledged.
    pub(super) unacked: u64,
    /// Records acknowledged, not yet read.
    pub(super) lag: u64,
}

impl Rates {
    /// As a line, or as an object.
    pub(super) fn print(&self, out: &mut Out) -> Result<(), Failure> {
        if out.is_json() {
            out.json(&json!({ "second": self.second, "records_per_s": self.records_per_s.round(),
                "bytes_per_s": self.bytes_per_s.round(), "unacknowledged": self.unacked, "lag": self.lag }))?;
            return out.flush();
        }
        out.line(format!(
            "{:>4} s  {:>9} records/s  {:>9}/s  {:>7} unacknowledged  lag {:>7} records",
            self.second,
            grouped(self.records_per_s.round() as u64),
            bytes_text(self.bytes_per_s.round() as u64),
            grouped(self.unacked),
            grouped(self.lag),
        ))?;
        out.flush()
    }
}

/// Names and values, summed over the shards.
pub(super) type Counters = Vec<(String, i64)>;

/// Everything that the demo knows at its end.
pub(super) struct Report<'a> {
    pub(super) args: &'a DemoArgs,
    pub(super) stored: Stored,
    pub(super) cold: Cold,
}

impl Report<'_> {
    /// The table, or one object.
    pub(super) fn print(&self, out: &mut Out) -> Result<(), Failure> {
        if out.is_json() {
            return out.json(&self.json());
        }
        let (live, sampled) = (&self.stored.flow, self.stored.flow.sampled.total());
        let (ack, end) = (live.ack.summary(), live.read.end_to_end.summary());
        let records_per_s = sampled.records as f64 / live.seconds;
        let mib_per_s = live.bytes_acked as f64 / live.seconds / f64::from(1 << 20);
        let rows = [
            ("records", format!("{} of {} series", grouped(sampled.records), grouped(sampled.series as u64))),
            ("rate", format!("{} records/s, {mib_per_s:.1} MiB/s", grouped(records_per_s as u64))),
            ("ack", quantiles(&[("p50", ack.p50_us), ("p99", ack.p99_us), ("p99.9", ack.p999_us)])),
            ("end to end", quantiles(&[("p50", end.p50_us), ("p99", end.p99_us)])),
            ("level met", level_name(live.level).to_owned()),
            (
                "flushes",
                format!("{}, {} records per flush", grouped(self.flushes()), self.records_per_flush()),
            ),
            (
                "cold bytes read",
                format!(
                    "{} of {}{}",
                    bytes_text(self.cold.read.bytes),
                    bytes_text(live.bytes_acked),
                    self.drive_share()
                ),
            ),
            (
                "cold rate",
                format!("{:.1} MiB/s", self.cold.read.bytes as f64 / self.cold.seconds / f64::from(1 << 20)),
            ),
            ("bound by", self.bound()),
            (
                "digest",
                format!(
                    "{:016x} sampled, {:016x} read live, {:016x} read from disk",
                    sampled.digest,
                    live.read.digest.total().digest,
                    self.cold.read.digest.total().digest
                ),
            ),
        ];
        out.line("")?;
        for (name, value) in rows {
            out.line(format!("{name:<16} {value}"))?;
        }
        out.line(format!("{:<16} {}", "verified:", if self.difference().is_none() { "yes" } else { "NO" }))?;
        out.flush()
    }

    /// # Errors
    /// What was read is not what was sampled.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.difference() {
            None => Ok(()),
            Some(difference) => {
                let failure = Failure::new(Code::Differs, difference);
                Err(failure
                    .fix("run it again with --keep, look inside with `tg dump`, and report what you see"))
            }
        }
    }

    fn difference(&self) -> Option<String> {
        let live = &self.stored.flow;
        if live.sampled.total().disorder > 0 {
            return Some("the sampler gave two samples of a series in the wrong order".to_owned());
        }
        if live.sampled.total().records == 0 {
            return Some("nothing was sampled".to_owned());
        }
        let seen_live = live.sampled.difference(&live.read.digest, "read while it was written");
        let seen_cold = live.sampled.difference(&self.cold.read.digest, "read from disk by a new process");
        seen_live.or(seen_cold).or_else(|| {
            (self.cold.read.bytes != live.bytes_acked).then(|| {
                format!(
                    "{} bytes of batches were acknowledged and {} read from disk",
                    live.bytes_acked, self.cold.read.bytes
                )
            })
        })
    }

    fn json(&self) -> Value {
        let (live, sampled) = (&self.stored.flow, self.stored.flow.sampled.total());
        json!({
            "records": sampled.records, "series": sampled.series, "seconds": live.seconds, "samplers": self.args.samplers,
            "bytes": live.bytes_acked, "batches": live.batches,
            "records_per_s": sampled.records as f64 / live.seconds,
            "mib_per_s": live.bytes_acked as f64 / live.seconds / f64::from(1 << 20),
            "ack": live.ack.summary(), "end_to_end": live.read.end_to_end.summary(), "level": level_name(live.level),
            "flushes": self.flushes(), "cold_bytes_read": self.cold.read.bytes, "cold_seconds": self.cold.seconds,
            "cold_bytes_from_drive": counter(&self.cold.counters, "cold_read_bytes"),
            "bound_by": self.bound(), "digest": format!("{:016x}", sampled.digest),
            "facts": self.stored.facts.iter().map(|(n, v)| (n.clone(), Value::from(v.clone()))).collect::<serde_json::Map<_, _>>(),
            "verified": self.difference().is_none(),
        })
    }

    fn flushes(&self) -> u64 {
        let count = |counters| counter(counters, "flushes").unwrap_or(0);
        (count(&self.stored.after) - count(&self.stored.before)).max(0) as u64
    }

    fn records_per_flush(&self) -> String {
        match self.flushes() {
            0 => "-".to_owned(),
            flushes => format!("{:.0}", self.stored.flow.sampled.total().records as f64 / flushes as f64),
        }
    }

    /// How much of the cold reading came from the drive at that moment; the rest was read by recovery.
    fn drive_share(&self) -> String {
        match counter(&self.cold.counters, "cold_read_bytes") {
            Some(bytes) if bytes > 0 => format!(" ({} by direct reads)", bytes_text(bytes as u64)),
            _ => String::new(),
        }
    }

    /// Where the time of the samplers went decides what bound the rate.
    fn bound(&self) -> String {
        let live = &self.stored.flow;
        let share = |seconds: f64| 100.0 * seconds / live.sampler_seconds.max(1e-9);
        let waiting = share(live.waiting_seconds);
        let busy = 100.0 * live.cores_busy;
        let who = if waiting > 20.0 && live.credit_seconds > live.waiting_seconds / 2.0 {
            "the broker's credit"
        } else if waiting > 20.0 {
            "acknowledgements"
        } else if busy > 90.0 {
            "the cores, which sampling, broker and reader share"
        } else {
            "reading /proc"
        };
        format!("{who} (samplers waited {waiting:.1} % of their time, cores {busy:.0} % busy)")
    }
}

fn counter(counters: &Counters, name: &str) -> Option<i64> {
    counters.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
}

fn quantiles(figures: &[(&str, u64)]) -> String {
    let figures: Vec<String> =
        figures.iter().map(|(name, us)| format!("{name} {}", micros_text(*us))).collect();
    figures.join(", ")
}
