//! The rows that are promised, as plain data: what each measures, against which limit, and when it holds.
//!
//! A round of a row gives named numbers; a check takes the median of one of them over all rounds, and compares it with a
//! bound, by itself or as a share of another number of the same rounds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::latency::median;
use crate::workload::Durability;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// By which it is picked.
    pub name: &'static str,
    /// What it does, for people.
    pub about: &'static str,
    /// What it does.
    pub work: Work,
    /// What has to hold.
    pub checks: &'static [Check],
}

/// What a row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Produce as fast as it goes, in turn with the drive alone.
    Produce {
        /// Partitions, and as many producers.
        partitions: i32,
        /// Of the topic.
        durability: Durability,
        /// How its data files come to be.
        files: Files,
    },
    /// Small batches into 1,024 partitions.
    ManyPartitions,
    /// Records of 100 bytes, produced and then consumed as fast as it goes.
    SmallRecords,
    /// 64 connections with one record of 200 bytes under way on each.
    ManyConnections,
    /// Half of the highest rate, in turn with a plain loop of write and flush.
    HalfLoad(Load),
    /// Four consumers on what is produced at a quarter of the highest rate.
    Tail,
    /// What is in the broker's memory, read again and again.
    Resident,
    /// What is on the drive alone, read after a restart.
    Cold,
    /// A producer at a quarter of the highest rate, without and with a reader of old records.
    ColdBesideProducer,
    /// 10,000 connections that do nothing, beside a producer.
    IdleConnections,
    /// A broker that nobody uses.
    IdleBroker,
}

/// How the data files of a topic come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Made and filled with zeros before they are needed.
    Ready,
    /// Settled, given back by retention and used again, while records come.
    Steady,
}

/// A shape of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Full batches, 4 partitions.
    Batches,
    /// One record of 200 bytes under way on each of 64 connections.
    Connections,
}

/// What has to hold.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What it is, with its unit.
    pub what: &'static str,
    /// The number that it looks at.
    pub value: &'static str,
    /// The number that it is a share of.
    pub limit: Option<&'static str>,
    /// When it holds.
    pub target: Target,
}

/// When a check holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The share of the limit is at least this.
    Share(f64),
    /// The value is at least this.
    AtLeast(f64),
    /// The value is at most this.
    AtMost(f64),
    /// Nothing is asked of it: it stands there to be read.
    Told,
}

const OF_DRIVE: &[Check] = &[Check {
    what: "MiB/s acknowledged",
    value: "mib_per_s",
    limit: Some("drive_write"),
    target: Target::Share(0.85),
}];

const BESIDE_LOOP: &[Check] = &[
    at_most("ack p99 by that of a plain write + flush loop", "p99_ratio", 3.0),
    at_most("ack p99.9 by that of the loop", "p999_ratio", 5.0),
];

const BESIDE_LOOP_AND_ARRIVAL: &[Check] =
    &[BESIDE_LOOP[0], BESIDE_LOOP[1], at_most("end-to-end p99 beyond ack p99, us", "arrival_us", 1_000.0)];

const fn at_most(what: &'static str, value: &'static str, most: f64) -> Check {
    Check { what, value, limit: None, target: Target::AtMost(most) }
}

const fn at_least(what: &'static str, value: &'static str, least: f64) -> Check {
    Check { what, value, limit: None, target: Target::AtLeast(least) }
}

const fn told(what: &'static str, value: &'static str, limit: &'static str) -> Check {
    Check { what, value, limit: Some(limit), target: Target::Told }
}

const fn share(what: &'static str, value: &'static str, limit: &'static str, least: f64) -> Check {
    Check { what, value, limit: Some(limit), target: Target::Share(least) }
}

const fn produce(name: &'static str, partitions: i32, durability: Durability, files: Files) -> Row {
    let about = match files {
        Files::Ready => "acks=1, 1 KiB records, data files made ready before",
        Files::Steady => "acks=1, 1 KiB records, settling, retention and reuse running",
    };
    Row { name, about, work: Work::Produce { partitions, durability, files }, checks: OF_DRIVE }
}

/// All rows, in the order in which they run.
pub const ROWS: &[Row] = &[
    produce("disk-1p-ready", 1, Durability::Disk, Files::Ready),
    produce("disk-4p-ready", 4, Durability::Disk, Files::Ready),
    produce("disk-16p-ready", 16, Durability::Disk, Files::Ready),
    produce("disk-1p-steady", 1, Durability::Disk, Files::Steady),
    produce("disk-4p-steady", 4, Durability::Disk, Files::Steady),
    produce("disk-16p-steady", 16, Durability::Disk, Files::Steady),
    produce("relaxed-1p-ready", 1, Durability::Relaxed, Files::Ready),
    produce("relaxed-4p-ready", 4, Durability::Relaxed, Files::Ready),
    produce("relaxed-16p-ready", 16, Durability::Relaxed, Files::Ready),
    produce("relaxed-1p-steady", 1, Durability::Relaxed, Files::Steady),
    produce("relaxed-4p-steady", 4, Durability::Relaxed, Files::Steady),
    produce("relaxed-16p-steady", 16, Durability::Relaxed, Files::Steady),
    Row {
        name: "partitions-1024",
        about: "1,024 partitions, 16 producers, batches of 16 KiB",
        work: Work::ManyPartitions,
        checks: &[
            share("MiB/s acknowledged", "mib_per_s", "drive_by_amplification", 0.85),
            at_most("bytes written by the drive per byte produced, settling included", "amplification", 2.1),
            at_most("unsettled bytes at the end by those at a quarter of the run", "unsettled_ratio", 1.0),
            at_most("ack p99 at half of that rate, us", "p99_us", 20_000.0),
        ],
    },
    Row {
        name: "small-records",
        about: "100 B records, produced, then consumed from memory",
        work: Work::SmallRecords,
        checks: &[
            at_least("records/s produced", "records_per_s", 6e6),
            at_least("records/s consumed, each taken out of its batch", "consumed_per_s", 12e6),
        ],
    },
    Row {
        name: "connections-64",
        about: "64 connections, one 200 B record under way on each",
        work: Work::ManyConnections,
        checks: &[
            at_least("acks/s", "records_per_s", 60_000.0),
            told("acks/s of bare round trips", "records_per_s", "round_trips"),
        ],
    },
    Row {
        name: "half-load",
        about: "open loop at half of the highest rate, full batches, 4 partitions",
        work: Work::HalfLoad(Load::Batches),
        checks: BESIDE_LOOP_AND_ARRIVAL,
    },
    Row {
        name: "connections-64-half-load",
        about: "open loop at half of the highest rate, 64 connections, 200 B records",
        work: Work::HalfLoad(Load::Connections),
        checks: BESIDE_LOOP_AND_ARRIVAL,
    },
    Row {
        name: "tail",
        about: "4 consumers on one live stream, producer at a quarter of the highest rate",
        work: Work::Tail,
        checks: &[
            share(
                "MiB/s consumed, of loopback or 4 times what was produced, whichever is less",
                "consumed_mib_per_s",
                "tail_limit",
                0.8,
            ),
            told("MiB/s consumed", "consumed_mib_per_s", "wanted_mib_per_s"),
        ],
    },
    Row {
        name: "resident",
        about: "what is in the broker's memory, read again and again by 4 consumers",
        work: Work::Resident,
        checks: &[share("MiB/s consumed", "consumed_mib_per_s", "loopback", 0.8)],
    },
    Row {
        name: "cold",
        about: "what is on the drive alone, read after a restart",
        work: Work::Cold,
        checks: &[share("MiB/s consumed", "consumed_mib_per_s", "drive_read", 0.8)],
    },
    Row {
        name: "cold-beside-producer",
        about: "producer at a quarter of the highest rate, without and with a cold reader on half of the cores",
        work: Work::ColdBesideProducer,
        checks: &[
            at_most("ack p99 with the reader by p99 without", "p99_ratio", 1.5),
            // A reader that hardly reads would disturb nobody.
            at_least("MiB/s consumed by the reader", "cold_mib_per_s", 100.0),
        ],
    },
    Row {
        name: "idle-connections",
        about: "10,000 connections that do nothing, beside a producer at a quarter of the highest rate",
        work: Work::IdleConnections,
        checks: &[
            at_most("MiB more of the broker's memory", "extra_mib", 150.0),
            at_most("ack p99 with them by p99 without", "p99_ratio", 1.1),
        ],
    },
    Row {
        name: "idle-broker",
        about: "a broker that nobody uses",
        work: Work::IdleBroker,
        checks: &[
            at_most("share of a core", "core_share", 0.01),
            at_most("MiB resident", "resident_mib", 64.0),
        ],
    },
];

/// The numbers of all rounds of a row.
pub type Numbers = BTreeMap<&'static str, Vec<f64>>;

/// Whether a row's check holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Holds,
    /// It does not.
    FallsShort,
    /// It was not measured, or not what its name says, or too much time was stolen meanwhile.
    Invalid,
    /// Nothing was asked of it.
    Told,
}

/// What the rounds of a row have left.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// By name, one of each round.
    pub numbers: Numbers,
    /// The runs as JSON.
    pub runs: Vec<Value>,
    /// Why the row is not valid; valid if there is nothing.
    pub invalid: Vec<String>,
    /// Whether other processes took much of the processors in any of the runs.
    pub disturbed: bool,
}

impl Measured {
    /// Adds a number of a round.
    pub fn note(&mut self, name: &'static str, value: f64) {
        self.numbers.entry(name).or_default().push(value);
    }

    /// The row is not valid, and why. Each reason is told once.
    pub fn invalidate(&mut self, why: impl Into<String>) {
        let why = why.into();
        if !self.invalid.contains(&why) {
            self.invalid.push(why);
        }
    }
}

impl Verdict {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::FallsShort => "falls short",
            Verdict::Invalid => "invalid",
            Verdict::Told => "told",
        }
    }
}

/// A check with its figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The median of its value.
    pub value: f64,
    /// The median of its limit.
    pub limit: Option<f64>,
    /// The median of the rounds' shares.
    pub share: Option<f64>,
    /// Whether it holds.
    pub verdict: Verdict,
}

impl Check {
    /// Judges it by the numbers of all rounds.
    pub fn judge(&self, numbers: &Numbers, valid: bool) -> Judged {
        let of = |name: &str| numbers.get(name).filter(|values| !values.is_empty());
        let values = of(self.value);
        let limits = self.limit.and_then(of);
        let value = values.map_or(0.0, |values| median(values.iter().copied()));
        // Each value by the limit of its own round: a drive that changes by the minute changes both.
        let shares =
            values.zip(limits).map(|(values, limits)| median(values.iter().zip(limits).map(|(v, l)| v / l)));
        let holds = match self.target {
            Target::Share(least) => shares.map(|share| share >= least),
            Target::AtLeast(least) => values.map(|_| value >= least),
            Target::AtMost(most) => values.map(|_| value <= most),
            Target::Told => None,
        };
        let verdict = match holds {
            _ if self.target == Target::Told && values.is_some() => Verdict::Told,
            Some(true) if valid => Verdict::Holds,
            Some(false) if valid => Verdict::FallsShort,
            _ => Verdict::Invalid,
        };
        Judged { value, limit: limits.map(|limits| median(limits.iter().copied())), share: shares, verdict }
    }

    /// The target, for people.
    pub fn target_text(&self) -> String {
        match self.target {
            Target::Share(least) => format!(">= {:.0} %", least * 100.0),
            Target::AtLeast(least) => format!(">= {}", figure(least)),
            Target::AtMost(most) => format!("<= {}", figure(most)),
            Target::Told => "none".to_owned(),
        }
    }
}

/// A figure for people: whole from 100 on.
pub fn figure(value: f64) -> String {
    if value.abs() >= 100.0 {
        let digits = format!("{value:.0}");
        let (sign, digits) = digits.strip_prefix('-').map_or(("", &digits[..]), |digits| ("-", digits));
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        return format!("{sign}{text}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A row's result as JSON: its checks, the numbers of its rounds as samples for a comparison, and whatever `facts` say.
pub fn row_json(row: &Row, measured: &Measured, facts: &[(String, String)]) -> Value {
    let Measured { numbers, runs, invalid, disturbed } = measured;
    let valid = invalid.is_empty();
    let checks = row.checks.iter().map(|check| {
        let judged = check.judge(numbers, valid);
        json!({
            "what": check.what, "value": judged.value, "limit": check.limit, "limit_value": judged.limit,
            "share": judged.share, "verdict": judged.verdict.text(),
            "value_text": figure(judged.value), "target_text": check.target_text(),
            "limit_text": check.limit.zip(judged.limit).map(|(name, value)| format!("{} {name}", figure(value))),
            "share_text": judged.share.map(|share| format!("{:.1} %", share * 100.0)),
        })
    });
    let mut result = json!({
        "row": row.name, "about": row.about, "valid": valid, "invalid_because": invalid, "disturbed": disturbed,
        "checks": checks.collect::<Vec<_>>(), "samples": numbers, "runs": runs,
    });
    for (name, value) in facts {
        result[name] = Value::from(value.clone());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pairs: &[(&'static str, &[f64])]) -> Numbers {
        pairs.iter().map(|(name, values)| (*name, values.to_vec())).collect()
    }

    #[test]
    fn a_share_is_the_median_of_the_rounds_own_shares() {
        let numbers =
            numbers(&[("mib_per_s", &[90.0, 900.0, 100.0]), ("drive_write", &[100.0, 1000.0, 200.0])]);
        let judged = OF_DRIVE[0].judge(&numbers, true);
        assert_eq!((judged.value, judged.limit, judged.share), (100.0, Some(200.0), Some(0.9)));
        assert_eq!(judged.verdict, Verdict::Holds);
        assert_eq!(OF_DRIVE[0].judge(&numbers, false).verdict, Verdict::Invalid, "time was stolen");
    }

    #[test]
    fn bounds_are_inclusive_and_what_was_not_measured_does_not_hold() {
        let most = at_most("x", "x", 2.1);
        assert_eq!(most.judge(&numbers(&[("x", &[2.1])]), true).verdict, Verdict::Holds);
        assert_eq!(most.judge(&numbers(&[("x", &[2.2])]), true).verdict, Verdict::FallsShort);
        assert_eq!(most.judge(&Numbers::new(), true).verdict, Verdict::Invalid);
        let least = at_least("x", "x", 6e6);
        assert_eq!(least.judge(&numbers(&[("x", &[5.9e6])]), true).verdict, Verdict::FallsShort);
        assert_eq!(least.target_text(), ">= 6,000,000");
    }

    #[test]
    fn a_rows_result_can_be_compared_and_read() {
        let numbers = numbers(&[("mib_per_s", &[1.0, 2.0, 3.0]), ("drive_write", &[4.0, 4.0, 4.0])]);
        let mut measured = Measured { numbers, ..Measured::default() };
        let json = row_json(&ROWS[0], &measured, &[("kernel".into(), "6.18".into())]);
        assert_eq!(json["samples"]["mib_per_s"], json!([1.0, 2.0, 3.0]));
        assert_eq!(json["checks"][0]["share_text"], "50.0 %");
        assert_eq!(json["checks"][0]["verdict"], "falls short");
        assert_eq!((&json["kernel"], &json["valid"]), (&json!("6.18"), &json!(true)));
        measured.invalidate("nothing was used again");
        measured.invalidate("nothing was used again");
        let json = row_json(&ROWS[0], &measured, &[]);
        assert_eq!(json["invalid_because"], json!(["nothing was used again"]));
        assert_eq!((&json["valid"], &json["checks"][0]["verdict"]), (&json!(false), &json!("invalid")));
    }

    #[test]
    fn every_check_with_a_target_can_fail_and_the_others_are_told() {
        for check in ROWS.iter().flat_map(|row| row.checks) {
            match check.target {
                Target::Share(least) | Target::AtLeast(least) => assert!(least > 0.0, "{}", check.what),
                Target::AtMost(most) => assert!(most.is_finite(), "{}", check.what),
                Target::Told => {}
            }
        }
        let trips = told("acks/s of bare round trips", "x", "y");
        let judged = trips.judge(&numbers(&[("x", &[1.0]), ("y", &[4.0])]), true);
        assert_eq!((judged.share, judged.verdict), (Some(0.25), Verdict::Told));
        assert_eq!(trips.judge(&Numbers::new(), true).verdict, Verdict::Invalid, "it was not measured");
    }

    #[test]
    fn names_are_unique_and_figures_short() {
        let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        assert_eq!([1_234_567.0, -1234.4, 0.125, 12.0].map(figure), ["1,234,567", "-1,234", "0.125", "12"]);
    }
}
