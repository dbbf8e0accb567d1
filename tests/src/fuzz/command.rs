//! The command line of the fuzzing, and its report.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::run::{Failure, Progress, Report, execute, fuzz};
use super::{TARGETS, Target, corpus, measure, target_named};
use crate::result;

/// Targets at a time, each in a process of its own: what is measured of memory is the process's.
const AT_ONCE: usize = 2;
/// An input that takes longer never comes to its end.
const INPUT_MAX: Duration = Duration::from_secs(20);
/// Where inputs that break something are put.
const FAILURES_DIR: &str = "target/fuzz";

/// What to fuzz, and for how long.
#[derive(Args, Debug)]
pub struct FuzzArgs {
    /// Only this target; without it all of them, two at a time.
    #[arg(long)]
    target: Option<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The inputs follow from it and the stored corpus.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the result as JSON to this file as well.
    #[arg(short, long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
    /// Try this input once, instead of changed ones. Needs --target.
    #[arg(long, requires = "target")]
    replay: Option<PathBuf>,
    /// Write the inputs of the corpus that follow from the encoders, instead of fuzzing.
    #[arg(long, conflicts_with_all = ["target", "replay"])]
    write_seeds: bool,
}

/// Fuzzes as asked; returns what to print, how many targets there were, and whether nothing broke.
///
/// # Errors
/// As a text: what could not be read or written.
pub fn fuzz_all(args: &FuzzArgs) -> Result<(String, u64, bool), String> {
    if args.write_seeds {
        let count = corpus::write_seeds()?;
        return Ok((format!("{count} inputs written\n"), 1, true));
    }
    if !measure::counts() {
        return Err("memory is not counted in this program: its bounds would not be checked".to_string());
    }
    let results = match &args.target {
        Some(name) => {
            let target = target_named(name).ok_or_else(|| unknown(name))?;
            if let Some(path) = &args.replay {
                return replay(target, path);
            }
            vec![watched(target, args)?]
        }
        None => all_at_once(args)?,
    };
    let is_well = results.iter().all(Finished::is_well);
    let text = results.iter().map(Finished::line).collect();
    let targets: Vec<Value> = results.iter().map(Finished::json).collect();
    let result = json!({"harness": "fuzz", "passed": is_well, "targets": targets});
    result::write(args.output.as_deref(), result).map_err(|e| format!("the result's file: {e}"))?;
    Ok((text, results.len() as u64, is_well))
}

/// What came of one target.
struct Finished {
    name: String,
    executions: u64,
    taken: u64,
    seconds: f64,
    /// Why it failed, and the file with the input.
    failures: Vec<(String, String)>,
}

impl Finished {
    fn is_well(&self) -> bool {
        self.failures.is_empty() && self.taken > 0
    }

    fn line(&self) -> String {
        let rate = self.executions as f64 / self.seconds.max(0.001);
        let mut text = format!(
            "{:<16} {:>9} executions, {rate:>8.0} a second, {} with something valid, {} failures\n",
            self.name,
            self.executions,
            self.taken,
            self.failures.len()
        );
        if self.taken == 0 {
            text.push_str("    vacuous: nothing valid was among them\n");
        }
        for (why, file) in &self.failures {
            let _ = writeln!(text, "    {why}\n    again: tests fuzz --target {} --replay {file}", self.name);
        }
        text
    }

    fn json(&self) -> Value {
        let failures: Vec<Value> =
            self.failures.iter().map(|(why, file)| json!({"why": why, "input": file})).collect();
        json!({
            "name": self.name, "executions": self.executions, "taken": self.taken,
            "seconds": self.seconds, "failures": failures,
        })
    }

    fn of_json(name: &str, value: &Value) -> Option<Finished> {
        let target = value["targets"].get(0)?;
        let text = |value: &Value| value.as_str().map(str::to_string);
        let failures = target["failures"].as_array()?.iter();
        Some(Finished {
            name: name.to_string(),
            executions: target["executions"].as_u64()?,
            taken: target["taken"].as_u64()?,
            seconds: target["seconds"].as_f64()?,
            failures: failures.filter_map(|f| Some((text(&f["why"])?, text(&f["input"])?))).collect(),
        })
    }
}

/// Fuzzes in a thread and watches that every input comes to its end.
fn watched(target: &'static Target, args: &FuzzArgs) -> Result<Finished, String> {
    let stored = corpus::inputs(target)?;
    let progress = Progress::default();
    let begin = Instant::now();
    let end = begin + Duration::from_secs(args.seconds);
    let watcher = std::thread::current();
    let report = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let report = fuzz(target, &stored, args.seed, &progress, |_| Instant::now() < end);
            watcher.unpark();
            report
        });
        let (mut begun, mut since) = (0, Instant::now());
        while !worker.is_finished() {
            // Asks for no memory, which would be counted.
            std::thread::park_timeout(Duration::from_millis(500));
            let now_begun = progress.begun.load(Ordering::SeqCst);
            if now_begun != begun {
                (begun, since) = (now_begun, Instant::now());
            } else if since.elapsed() > INPUT_MAX && begun > 0 {
                hangs(target, args, &progress, begin);
            }
        }
        worker.join().map_err(|_| format!("{}: the loop itself failed", target.name))
    })?;
    finished(target, &report, begin.elapsed())
}

/// The thread cannot be ended: the report is written and the process ends.
fn hangs(target: &Target, args: &FuzzArgs, progress: &Progress, begin: Instant) -> ! {
    let input = progress.input.lock().map(|input| input.clone()).unwrap_or_default();
    let why = format!("an input takes longer than {} s", INPUT_MAX.as_secs());
    let executions = progress.begun.load(Ordering::SeqCst);
    let report = Report { executions, taken: 0, failures: vec![Failure { input, why }] };
    if let Ok(finished) = finished(target, &report, begin.elapsed()) {
        let result = json!({"harness": "fuzz", "passed": false, "targets": [finished.json()]});
        let _ = result::write(args.output.as_deref(), result);
    }
    std::process::exit(1)
}

fn finished(target: &Target, report: &Report, time: Duration) -> Result<Finished, String> {
    let mut failures = Vec::new();
    for failure in &report.failures {
        let crc = crc32c::crc32c(&failure.input);
        let path = Path::new(FAILURES_DIR).join(format!("{}-{crc:08x}.bin", target.name));
        write(&path, &failure.input)?;
        failures.push((failure.why.clone(), path.display().to_string()));
    }
    Ok(Finished {
        name: target.name.to_string(),
        executions: report.executions,
        taken: report.taken,
        seconds: time.as_secs_f64(),
        failures,
    })
}

/// All targets, each in a process of its own.
fn all_at_once(args: &FuzzArgs) -> Result<Vec<Finished>, String> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(target) = TARGETS.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let result = in_process(target, args);
                    if let Ok(mut results) = results.lock() {
                        results.push((target.name, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().map_err(|_| "a thread has failed".to_string())?;
    results.sort_by_key(|(name, _)| TARGETS.iter().position(|t| t.name == *name));
    results.into_iter().map(|(_, result)| result).collect()
}

fn in_process(target: &Target, args: &FuzzArgs) -> Result<Finished, String> {
    let program = std::env::current_exe().map_err(|e| format!("where this program lies: {e}"))?;
    let dir = tempfile::tempdir().map_err(|e| format!("a folder for results: {e}"))?;
    let result = dir.path().join("result.json");
    let output = Command::new(program)
        .args(["fuzz", "--target", target.name])
        .args(["--seconds", &args.seconds.to_string(), "--seed", &args.seed.to_string()])
        .arg("-o")
        .arg(&result)
        .output()
        .map_err(|e| format!("starting {}: {e}", target.name))?;
    let read = std::fs::read(&result).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let ended = |why: &str| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{}: {why} ({}): {}", target.name, output.status, said.trim())
    };
    match read.and_then(|value: Value| Finished::of_json(target.name, &value)) {
        Some(finished) if finished.is_well() && !output.status.success() => Err(ended("ended badly")),
        Some(finished) => Ok(finished),
        None => Err(ended("ended without a result")),
    }
}

fn replay(target: &Target, path: &Path) -> Result<(String, u64, bool), String> {
    let input = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(match execute(target, &input) {
        Ok(outcome) => (format!("{}: {outcome:?}\n", target.name), 1, true),
        Err(why) => (format!("{}: {why}\n", target.name), 1, false),
    })
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    format!("there is no target {name:?}; there are {}", names.join(", "))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}
