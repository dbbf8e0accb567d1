//! The reliability card: a page with what the harnesses have shown, made from their result files and from nothing else.
//!
//! Several files of one harness are summed. What was not run is said, and so is what has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// From what the card is made, and where it goes.
#[derive(Clone, Debug, clap::Args)]
pub struct CardArgs {
    /// Folder with the files that the harnesses have written with `-o`.
    #[arg(long, value_name = "DIR")]
    pub results: PathBuf,
    /// The file that gets the card.
    #[arg(short, long)]
    pub output: PathBuf,
}

/// Every harness whose results are known, with the fields that a result of a run that came to its end has.
const HARNESSES: &[(&str, &[&str])] = &[
    ("sim", &["level", "seeds", "failed", "hours_virtual", "hours_counted", "acks", "faults", "cpu_seconds"]),
    ("mutants", &["caught", "of", "missed"]),
    ("crash", &["fs", "images", "recoveries_repeated", "promises", "lost", "wrong_bytes"]),
    ("kill", &["cycles", "acks", "promises", "lost", "wrong_bytes"]),
    ("fuzz", &["targets"]),
    ("corrupt", &["cases"]),
    ("abuse", &["scenarios"]),
    ("faults", &["scenarios"]),
    ("partitions", &["partitions", "acked", "restarted_ms"]),
];

/// The simulator's name for what makes a crash state in process.
const POWER_LOSSES: &str = "power losses that drop a pending write";
const NOT_RUN: &str = "not run";

/// Reads the results and writes the card. Returns how many files there were and whether all that was run is well.
///
/// # Errors
/// A file cannot be read or written, or is no harness's result.
pub fn make(args: &CardArgs) -> io::Result<(u64, bool)> {
    let results = Results::read(&args.results)?;
    std::fs::write(&args.output, results.card())?;
    Ok((results.files, results.failures().is_empty()))
}

/// All result files of a folder, by harness.
#[derive(Debug, Default)]
struct Results {
    of: BTreeMap<&'static str, Vec<Value>>,
    files: u64,
}

impl Results {
    fn read(folder: &Path) -> io::Result<Results> {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
        paths.sort();
        let mut results = Results::default();
        for path in paths {
            let bad = |why: String| io::Error::other(format!("{}: {why}", path.display()));
            let value: Value =
                serde_json::from_slice(&std::fs::read(&path)?).map_err(|e| bad(e.to_string()))?;
            results.add(value).map_err(bad)?;
        }
        Ok(results)
    }

    fn add(&mut self, value: Value) -> Result<(), String> {
        let name = value["harness"].as_str().unwrap_or_default();
        let Some((name, fields)) = HARNESSES.iter().find(|(known, _)| *known == name) else {
            return Err(format!("it is the result of no harness that is known: {name:?}"));
        };
        let missing = fields.iter().find(|field| value["failure"].is_null() && value[**field].is_null());
        if let Some(field) = missing {
            return Err(format!("a result of {name} has to say `{field}`"));
        }
        self.files += 1;
        self.of.entry(name).or_default().push(value);
        Ok(())
    }

    fn all(&self, harness: &str) -> &[Value] {
        self.of.get(harness).map_or(&[], Vec::as_slice)
    }

    /// Every failure of every run, for a person.
    fn failures(&self) -> Vec<String> {
        self.of.values().flatten().flat_map(failures).collect()
    }

    fn card(&self) -> String {
        let mut text = self.head();
        text += "| measure | figure | target in CI | target before a release | how to repeat |\n|---|---|---|---|---|\n";
        let rows = [self.simulated(), self.of_processes(), self.of_everything()].concat();
        for Row { measure, figure, in_ci, before_release, repeat } in rows {
            let cells = [measure, figure, in_ci.into(), before_release.into(), repeat];
            let _ = writeln!(text, "| {} |", cells.map(|cell| one_line(&cell)).join(" | "));
        }
        text += "\n## Faults and operations in the simulator, by kind\n\n";
        text += "| kind | times |\n|---|---|\n";
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        for (kind, count) in self.all("sim").iter().filter_map(|sim| sim["faults"].as_object()).flatten() {
            *kinds.entry(kind).or_default() += count.as_u64().unwrap_or(0);
        }
        if kinds.is_empty() {
            let _ = writeln!(text, "| all | {NOT_RUN} |");
        }
        for (kind, count) in kinds {
            let _ = writeln!(text, "| {kind} | {} |", grouped(count));
        }
        let failures = self.failures();
        if !failures.is_empty() {
            text += "\n## What failed\n\n";
            failures.iter().for_each(|failure| text += &format!("- {}\n", one_line(failure)));
        }
        text
    }

    fn head(&self) -> String {
        let values = |key: &str| -> Vec<&str> {
            let all: BTreeSet<&str> = self.of.values().flatten().filter_map(|v| v[key].as_str()).collect();
            all.into_iter().collect()
        };
        let (dates, commits) = (values("date"), values("commit"));
        let when = match dates.as_slice() {
            [] => "At no known time".into(),
            [day] => format!("On {day}"),
            [first, .., last] => format!("From {first} to {last}"),
        };
        let of_what = match commits.as_slice() {
            [] => "of no known commit".into(),
            [one] => format!("of commit {one}"),
            several => format!("of commits {}", several.join(", ")),
        };
        let mut text = String::from(
            "# Reliability\n\n\
             What the harnesses that [TESTING.md](TESTING.md) describes have shown. This page is made from their result files, by\n\
             `target/release/tests card --results DIR --output docs/RELIABILITY.md`, and is not edited by hand.\n\n",
        );
        let _ = writeln!(text, "{when}, {of_what}; {} result files.\n", self.files);
        if !self.failures().is_empty() {
            text += "**Something has failed: see the end.**\n\n";
        }
        text
    }

    fn simulated(&self) -> Vec<Row> {
        let sims = self.all("sim");
        let row = |measure: &str, figure: String, in_ci, before_release| Row {
            measure: measure.into(),
            figure,
            in_ci,
            before_release,
            repeat: repeat(sims, "sim --hours 60 -o FILE"),
        };
        let per_cpu_second = |sims: &[&Value], field: &str| {
            let cpu_seconds: f64 = sims.iter().map(|sim| fraction(sim, "cpu_seconds")).sum();
            let sum: f64 = sims.iter().map(|s| fraction(s, field) * fraction(s, "cpu_seconds")).sum();
            grouped((sum / cpu_seconds.max(f64::MIN_POSITIVE)).round() as u64)
        };
        let hours = |sims: &[&Value]| {
            let passed: f64 = sims.iter().map(|sim| fraction(sim, "hours_virtual")).sum();
            format!("{} of {passed:.1}", grouped(sum(sims, "hours_counted")))
        };
        let seeds = |sims: &[&Value]| {
            let failed: usize = sims.iter().filter_map(|sim| sim["failed"].as_array()).map(Vec::len).sum();
            let failed = if failed > 0 { format!(", {failed} **failed**") } else { String::new() };
            format!("{}{failed}", grouped(sum(sims, "seeds")))
        };
        let acks = |sims: &[&Value]| grouped(sum(sims, "acks"));
        let losses = |sims: &[&Value]| {
            let losses = sims.iter().filter_map(|sim| sim["faults"][POWER_LOSSES].as_u64()).sum();
            grouped(losses)
        };
        let mutants = self.all("mutants");
        let caught = row("planted bugs caught", planted(mutants), "10", "95 % of 30");
        let caught = Row { repeat: repeat(mutants, "sim --mutants 300 -o FILE"), ..caught };
        vec![
            row(
                "simulated hours that count, of all: one counts if it has at least 100,000 acknowledgements and 60 faults",
                by_level(sims, hours),
                "60",
                "1,000, then 10,000",
            ),
            row("seeds", by_level(sims, seeds), "700 and those of 60 hours, none fails", "none fails"),
            row("acknowledgements in them", by_level(sims, acks), "-", "-"),
            row(
                "virtual time to CPU time",
                by_level(sims, |sims| format!("{}x", per_cpu_second(sims, "speed_up"))),
                "printed",
                "700x",
            ),
            row(
                "acknowledgements a CPU second",
                by_level(sims, |sims| per_cpu_second(sims, "acks_per_cpu_second")),
                "printed",
                "printed",
            ),
            row(
                "crash states in process: power losses that drop a pending write",
                by_level(sims, losses),
                "1,000,000",
                "100,000,000",
            ),
            caught,
        ]
    }

    fn of_processes(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for fs in ["ext4", "xfs", "xfs-reflink"] {
            let crashes: Vec<Value> =
                self.all("crash").iter().filter(|crash| crash["fs"] == fs).cloned().collect();
            let figure = figure(&crashes, |crashes| {
                let [images, repeated, promises] =
                    ["images", "recoveries_repeated", "promises"].map(|field| grouped(sum(crashes, field)));
                format!(
                    "{images}, recovery crashed and repeated in {repeated}; {promises} acked records looked for"
                )
            });
            rows.push(Row {
                measure: format!("crash images of {fs} from which the real broker recovered"),
                figure,
                in_ci: "300 in all",
                before_release: "20,000 in all",
                repeat: repeat(&crashes, &format!("crash --fs {fs} -o FILE")),
            });
        }
        let row = |measure: &str, harness, figure, in_ci, before_release| Row {
            measure: measure.into(),
            figure,
            in_ci,
            before_release,
            repeat: repeat(self.all(harness), &format!("{harness} -o FILE")),
        };
        let kills = figure(self.all("kill"), |kills| {
            format!("{}, {} acks", grouped(sum(kills, "cycles")), grouped(sum(kills, "acks")))
        });
        rows.push(row("kill -9 cycles", "kill", kills, "50", "10,000"));
        rows.push(row(
            "fuzz executions",
            "fuzz",
            executions(self.all("fuzz")),
            "60 s a target",
            "10^9 a target",
        ));
        let cases = figure(self.all("corrupt"), |all| {
            ended(all, "cases", |case| match case["failure"].is_null() {
                true => "passed",
                false => "failed",
            })
        });
        rows.push(row(
            "bit flips: one in each structure, stopped and running",
            "corrupt",
            cases,
            "all",
            "all",
        ));
        for (measure, harness) in [("abuse by clients", "abuse"), ("faults of the machine", "faults")] {
            let scenarios = figure(self.all(harness), |all| {
                ended(all, "scenarios", |s| s["result"].as_str().unwrap_or("failed"))
            });
            rows.push(row(measure, harness, scenarios, "all, none skipped", "all, none skipped"));
        }
        let partitions = figure(self.all("partitions"), |all| {
            let slowest = all.iter().filter_map(|one| one["restarted_ms"].as_u64()).max().unwrap_or(0);
            format!("{}; serves {slowest} ms after kill -9", grouped(sum(all, "partitions")))
        });
        rows.push(row(
            "partitions of one broker, each used after a restart",
            "partitions",
            partitions,
            "1,000",
            "1,000",
        ));
        rows
    }

    /// What all harnesses that count it say together.
    fn of_everything(&self) -> Vec<Row> {
        let counting: Vec<Value> = [self.all("crash"), self.all("kill")].concat();
        let doubt = match self.failures().len() {
            0 => "",
            _ => "; not counted: what failed, at the end",
        };
        let row = |measure: &str, field: &str| Row {
            measure: measure.into(),
            figure: figure(&counting, |all| {
                let (wrong, promises) = (sum(all, field), grouped(sum(all, "promises")));
                format!("{} of {promises} looked for{doubt}", grouped(wrong))
            }),
            in_ci: "0",
            before_release: "0",
            repeat: "crash images and kill -9 count it, above; the simulator's seeds fail by it".into(),
        };
        vec![row("acked records lost", "lost"), row("acked records with wrong bytes", "wrong_bytes")]
    }
}

/// A line of the main table.
#[derive(Clone, Debug)]
struct Row {
    measure: String,
    figure: String,
    in_ci: &'static str,
    before_release: &'static str,
    repeat: String,
}

/// What failed in one run, a text each.
fn failures(result: &Value) -> Vec<String> {
    let harness = result["harness"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let list = |field: &str| result[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut found = Vec::new();
    if let Some(why) = result["failure"].as_str() {
        found.push(why.to_owned());
    }
    for seed in list("failed") {
        found.push(format!("{}, seed {}: {}", text(&result["level"]), seed[0], text(&seed[1])));
    }
    for scenario in list("scenarios").iter().filter(|s| s["result"] == "failed") {
        found.push(format!("{}: {}", text(&scenario["name"]), text(&scenario["text"])));
    }
    for case in list("cases").iter().filter(|case| !case["failure"].is_null()) {
        found.push(format!("{}: {}", text(&case["structure"]), text(&case["failure"])));
    }
    for target in list("targets") {
        let failed = target["failures"].as_array().map(Vec::as_slice).unwrap_or_default();
        found.extend(failed.iter().map(|f| format!("{}: {}", text(&target["name"]), text(&f["why"]))));
        if target["taken"] == 0 {
            found.push(format!("{}: nothing valid was among its inputs", text(&target["name"])));
        }
    }
    // Whatever else it was: a run that has not passed is never shown as one that has.
    let passed = if harness == "sim" { list("failed").is_empty() } else { result["passed"] == true };
    if found.is_empty() && !passed {
        found.push("it has not passed".into());
    }
    let command = result["command"].as_str().map(|command| format!(" (`{command}`)")).unwrap_or_default();
    found.into_iter().map(|why| format!("{harness}: {why}{command}")).collect()
}

/// A figure of some runs: that they were not run, that something failed, or the figure alone.
fn figure(results: &[Value], of: impl Fn(&[&Value]) -> String) -> String {
    if results.is_empty() {
        return NOT_RUN.into();
    }
    let ended: Vec<&Value> = results.iter().filter(|result| result["failure"].is_null()).collect();
    let figure = of(&ended);
    let failed = results.iter().any(|result| !failures(result).is_empty());
    let broken_off = results.len() - ended.len();
    match (failed, broken_off) {
        (false, _) => figure,
        (true, 0) => format!("**FAILED** {figure}"),
        (true, runs) => format!("**FAILED** {figure}; broken off: {runs}"),
    }
}

/// A figure of the simulator: of both levels together if there is one only, else of each.
fn by_level(sims: &[Value], of: impl Fn(&[&Value]) -> String) -> String {
    figure(sims, |sims| {
        let levels: BTreeSet<&str> = sims.iter().filter_map(|sim| sim["level"].as_str()).collect();
        let each = levels.into_iter().map(|level| {
            let of_level: Vec<&Value> = sims.iter().copied().filter(|sim| sim["level"] == level).collect();
            format!("{level}: {}", of(&of_level))
        });
        each.collect::<Vec<_>>().join("; ")
    })
}

/// Each run tries all planted bugs; one is missed if no run has caught it.
fn planted(tried: &[Value]) -> String {
    let Some(of) = tried.iter().filter_map(|mutants| mutants["of"].as_u64()).max() else {
        return NOT_RUN.into();
    };
    let missed = tried.iter().map(|mutants| {
        let names = mutants["missed"].as_array().map(Vec::as_slice).unwrap_or_default();
        names.iter().filter_map(Value::as_str).collect::<BTreeSet<&str>>()
    });
    let missed = missed.reduce(|both, other| &both & &other).unwrap_or_default();
    let caught = of - missed.len() as u64;
    let names = if missed.is_empty() {
        String::new()
    } else {
        format!("; missed: {}", Vec::from_iter(missed).join(", "))
    };
    format!("{caught} of {of}{names}")
}

fn executions(runs: &[Value]) -> String {
    figure(runs, |runs| {
        let mut targets: BTreeMap<&str, u64> = BTreeMap::new();
        for target in runs.iter().filter_map(|run| run["targets"].as_array()).flatten() {
            let name = target["name"].as_str().unwrap_or_default();
            *targets.entry(name).or_default() += target["executions"].as_u64().unwrap_or(0);
        }
        let Some((least, count)) = targets.iter().min_by_key(|(_, count)| **count) else {
            return "none".into();
        };
        let (all, of) = (grouped(targets.values().sum()), targets.len());
        format!("{all} in {of} targets; at least {} each (`{least}`)", grouped(*count))
    })
}

/// How many of the parts of some runs have ended how.
fn ended(runs: &[&Value], field: &str, word: impl Fn(&Value) -> &str) -> String {
    let parts: Vec<&Value> = runs.iter().filter_map(|run| run[field].as_array()).flatten().collect();
    let count = |wanted: &str| parts.iter().filter(|part| word(part) == wanted).count() as u64;
    let others = ["failed", "skipped"].into_iter().filter(|other| count(other) > 0);
    let others: String = others.map(|other| format!(", {} {other}", grouped(count(other)))).collect();
    format!("{} of {} passed{others}", grouped(count("passed")), grouped(parts.len() as u64))
}

/// The commands of some runs, if they are few; without one, what would make one.
fn repeat(results: &[Value], otherwise: &str) -> String {
    const FEW: usize = 3;
    let commands: BTreeSet<&str> = results.iter().filter_map(|result| result["command"].as_str()).collect();
    let quoted = |commands: &[&str]| format!("`{}`", commands.join("`, `"));
    match Vec::from_iter(commands).as_slice() {
        [] => quoted(&[&format!("target/release/tests {otherwise}")]),
        few if few.len() <= FEW => quoted(few),
        [first, more @ ..] => {
            format!("{} and {} more with other seeds or options", quoted(&[first]), more.len())
        }
    }
}

fn sum(results: &[&Value], field: &str) -> u64 {
    results.iter().filter_map(|result| result[field].as_u64()).sum()
}

fn fraction(result: &Value, field: &str) -> f64 {
    result[field].as_f64().unwrap_or(0.0)
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (places - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// As one line of Markdown, whatever a failure says.
fn one_line(text: &str) -> String {
    let text: Vec<&str> = text.split_whitespace().collect();
    text.join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The card of these results, read from files.
    fn card(results: &[Value]) -> io::Result<String> {
        let dir = tempfile::tempdir()?;
        for (number, result) in results.iter().enumerate() {
            std::fs::write(dir.path().join(format!("{number:03}.json")), result.to_string())?;
        }
        let output = dir.path().join("card.md");
        let (files, _) = make(&CardArgs { results: dir.path().into(), output: output.clone() })?;
        assert_eq!(files, results.len() as u64);
        std::fs::read_to_string(output)
    }

    fn with_origin(mut result: Value, command: &str) -> Value {
        result["date"] = json!("2026-03-01");
        result["commit"] = json!("0123abc");
        result["command"] = json!(format!("target/release/tests {command}"));
        result
    }

    fn sim(level: &str, seeds: u64) -> Value {
        json!({
            "harness": "sim", "level": level, "first": 0, "seeds": seeds, "failed": [],
            "hours_virtual": 20.25, "hours_counted": 18, "acks": 2_000_000,
            "faults": { POWER_LOSSES: 4_000, "torn sectors": 12 },
            "cpu_seconds": 100.0, "speed_up": 729.0, "acks_per_cpu_second": 20_000.0,
        })
    }

    fn crash(fs: &str, images: u64, lost: u64) -> Value {
        json!({
            "harness": "crash", "fs": fs, "passed": lost == 0, "images": images, "promises": 10_000,
            "lost": lost, "wrong_bytes": 0, "recoveries_repeated": images / 3,
        })
    }

    fn scenarios(harness: &str, results: &[(&str, &str)]) -> Value {
        let scenarios: Vec<Value> = results
            .iter()
            .map(|(name, result)| json!({ "name": name, "result": result, "text": "why | so", "seconds": 1.5 }))
            .collect();
        let passed = results.iter().all(|(_, result)| *result == "passed");
        json!({ "harness": harness, "passed": passed, "scenarios": scenarios })
    }

    /// What is in the table's row of that measure.
    fn figure_of(card: &str, measure: &str) -> String {
        let row = card.lines().find(|line| line.starts_with(&format!("| {measure}"))).expect("a row");
        row.split(" | ").nth(1).expect("its figure").to_owned()
    }

    #[test]
    fn the_card_of_a_run_that_passed_is_this_text() {
        let mutants = |missed: &str| json!({ "harness": "mutants", "passed": true, "caught": 23, "of": 24, "missed": [missed] });
        let target = |name, executions| json!({ "name": name, "executions": executions, "taken": 5, "seconds": 1.0, "failures": [] });
        let results = [
            with_origin(sim("logs", 1_000), "sim --seeds 1000"),
            with_origin(sim("shards", 500), "sim --level shards --seeds 500"),
            with_origin(mutants("one"), "sim --mutants 300"),
            with_origin(mutants("another"), "sim --mutants 300 --first 1000"),
            with_origin(crash("ext4", 24, 0), "crash"),
            with_origin(crash("ext4", 300, 0), "crash --images 300 --seed 2"),
            with_origin(crash("xfs", 24, 0), "crash --fs xfs"),
            with_origin(
                json!({ "harness": "kill", "passed": true, "cycles": 50, "acks": 80_000, "promises": 2_000_000, "lost": 0, "wrong_bytes": 0 }),
                "kill --cycles 50",
            ),
            with_origin(
                json!({ "harness": "fuzz", "passed": true, "targets": [target("frame", 5_000_000), target("zstd", 70_000)] }),
                "fuzz",
            ),
            with_origin(
                json!({ "harness": "fuzz", "passed": true, "targets": [target("zstd", 30_000)] }),
                "fuzz --target zstd --seed 2",
            ),
            with_origin(scenarios("faults", &[("pause", "passed"), ("kill", "passed")]), "faults"),
        ];
        let card = card(&results).expect("results");
        if std::env::var_os("GOLDEN_WRITE").is_some() {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/card_golden.txt");
            std::fs::write(golden, &card).expect("the sources can be written");
        }
        assert_eq!(
            card,
            include_str!("card_golden.txt"),
            "if it is meant: run this test with GOLDEN_WRITE=1"
        );
    }

    #[test]
    fn what_was_not_run_is_said_in_every_row() {
        let card = card(&[]).expect("no results");
        let rows = card.lines().filter(|line| line.starts_with("| ")).count();
        let not_run = card.matches(NOT_RUN).count();
        assert_eq!(rows - 2, not_run, "all but the heads of the two tables: {card}");
    }

    #[test]
    fn what_failed_is_shown_as_failed_whatever_else_has_passed() {
        let mut failing_sim = sim("logs", 1_000);
        failing_sim["failed"] = json!([[7, "LOST: a record"]]);
        let results = [
            sim("logs", 1_000),
            failing_sim,
            crash("ext4", 24, 0),
            crash("ext4", 24, 3),
            crate::result::broken_off("kill", "the broker\nended"),
            scenarios("faults", &[("pause", "passed"), ("drive-full", "failed"), ("kill", "skipped")]),
            json!({ "harness": "corrupt", "passed": false, "cases": [
                { "structure": "superblock", "failure": null }, { "structure": "frame", "failure": "served" },
            ]}),
            json!({ "harness": "fuzz", "passed": false, "targets": [
                { "name": "run", "executions": 5, "taken": 0, "failures": [{ "why": "panic", "input": "x" }] },
            ]}),
            // Passed by its parts and yet not well: none of its scenarios has run.
            json!({ "harness": "abuse", "passed": false, "scenarios": [] }),
        ];
        let card = card(&results).expect("results");
        for (measure, figure) in [
            ("seeds", "**FAILED** logs: 2,000, 1 **failed**"),
            (
                "crash images of ext4",
                "**FAILED** 48, recovery crashed and repeated in 16; 20,000 acked records looked for",
            ),
            ("kill -9", "**FAILED** 0, 0 acks; broken off: 1"),
            ("faults of the machine", "**FAILED** 1 of 3 passed, 1 failed, 1 skipped"),
            ("bit flips", "**FAILED** 1 of 2 passed, 1 failed"),
            ("abuse", "**FAILED** 0 of 0 passed"),
            ("fuzz", "**FAILED** 5 in 1 targets; at least 5 each (`run`)"),
            ("acked records lost", "**FAILED** 3 of 20,000 looked for; not counted: what failed, at the end"),
        ] {
            assert!(
                figure_of(&card, measure).starts_with(figure),
                "{measure}: {}",
                figure_of(&card, measure)
            );
        }
        let end = card.split("## What failed").nth(1).expect("a list at the end");
        for failure in [
            "- sim: logs, seed 7: LOST: a record\n",
            "- crash: it has not passed\n",
            "- kill: the broker ended\n",
            "- faults: drive-full: why \\| so\n",
            "- corrupt: frame: served\n",
            "- fuzz: run: panic\n",
            "- fuzz: run: nothing valid was among its inputs\n",
            "- abuse: it has not passed\n",
        ] {
            assert!(end.contains(failure), "{failure}{end}");
        }
    }

    #[test]
    fn a_file_that_is_no_result_or_lacks_a_figure_is_named_and_not_left_out() {
        let refused = |value: Value| card(&[value]).expect_err("refused").to_string();
        assert!(refused(json!({ "harness": "bench" })).contains("000.json"));
        assert!(refused(json!([])).contains("no harness"));
        let mut crash = crash("xfs", 8, 0);
        crash.as_object_mut().expect("an object").remove("lost");
        assert!(refused(crash).ends_with("a result of crash has to say `lost`"));
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
