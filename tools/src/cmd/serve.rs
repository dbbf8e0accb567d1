//! `tg dev`: a broker inside this process, to try things out. And the hidden `tg serve`, which `demo` and `bench` start.

use std::io::Read;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tidegate_broker::config::{LISTEN, RawConfig};
use tidegate_broker::problem::{Problem, StartError};
use tidegate_broker::start::{Ended, Running, Signal, SignalsOf, start, start_with};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{DevArgs, ServeArgs};
use crate::exit::{Code, Failure};
use crate::output::{Out, note};

/// Serves until ctrl-C or SIGTERM.
pub(crate) fn dev(args: &DevArgs, out: &mut Out) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut raw = RawConfig::new();
    if let Some(file) = &args.config {
        raw = raw.with_file_at(file);
    }
    for (key, value) in &args.settings {
        raw = raw.with_set(key, value);
    }
    if let Some(data) = &args.data {
        raw = raw.with("data", data.display().to_string());
    }
    if let Some(listen) = &args.listen {
        raw = raw.with("listen", listen);
    }
    if let Some(shards) = args.shards {
        raw = raw.with("shards", shards.to_string());
    }
    if let Some(file) = &args.port_file {
        raw = raw.with("port_file", file.display().to_string());
    }
    // Left out, they are as the file says.
    for (key, given) in [("allow_volatile", args.allow_volatile), ("insecure", args.insecure)] {
        if given {
            raw = raw.with(key, "true");
        }
    }
    let config = raw.check().map_err(|e| failed(e, Code::Usage))?;
    // Signals are the broker's from the first moment: whoever has seen a sign of it may send one at once.
    let running = start_with(config, SignalsOf::Broker).map_err(|e| failed(e, Code::BrokerFailed))?;
    banner(&running, begun, out)?;
    let ended = running.wait();
    if let Ended::Asked(signal) = &ended
        && !out.is_json()
    {
        let signal = match signal {
            Signal::Terminate => "SIGTERM",
            Signal::Interrupt => "ctrl-C",
        };
        // The terminal shows ^C without a line's end.
        note(format!("\n{signal}: answering what is under way, flushing, writing the checkpoint"));
    }
    let stopped = running.stop().map_err(|e| failed(e, Code::BrokerFailed));
    match ended {
        Ended::Asked(_) => stopped,
        Ended::Failed(problem) => Err(failed(problem.into(), Code::BrokerFailed)),
    }
}

/// Serves until standard input ends, or SIGTERM.
pub(crate) fn serve(args: &ServeArgs, out: &mut Out) -> Result<(), Failure> {
    let mut raw = RawConfig::new();
    for (key, value) in &args.settings {
        raw = raw.with_set(key, value);
    }
    raw = raw.with("data", args.data.display().to_string()).with("listen", &args.listen);
    if args.allow_volatile {
        raw = raw.with("allow_volatile", "true");
    }
    if let Some(shards) = args.shards {
        raw = raw.with("shards", shards.to_string());
    }
    let config = raw.check().map_err(|e| failed(e, Code::Usage))?;
    let running = start(config).map_err(|e| failed(e, Code::BrokerFailed))?;
    out.json(&json!({ "listen": running.addr.to_string(), "facts": facts(&running) }))?;
    out.flush()?;
    wait_for_input_to_end()?;
    running.stop().map_err(|e| failed(e, Code::BrokerFailed))
}

/// What a stranger needs to know, and what to type next.
fn banner(running: &Running, begun: Instant, out: &mut Out) -> Result<(), Failure> {
    let ready_ms = begun.elapsed().as_millis() as u64;
    if out.is_json() {
        let listen = running.addr.to_string();
        out.json(&json!({ "listen": listen, "ready_ms": ready_ms, "facts": facts(running) }))?;
        return out.flush();
    }
    let server =
        if running.addr.to_string() == LISTEN { String::new() } else { format!(" -s {}", running.addr) };
    out.line(format!(
        "tidegate {} is ready after {ready_ms} ms; ctrl-C stops it\n",
        env!("CARGO_PKG_VERSION")
    ))?;
    for (name, value) in running.facts.iter().filter(|(name, _)| name != "version") {
        out.line(format!("{:<12} {value}", name.replace('_', " ")))?;
    }
    out.line("\nnext, in another terminal:")?;
    out.line(format!("  tg{server} topic create t --partitions 4"))?;
    out.line(format!("  tg{server} produce t < README.md"))?;
    out.line(format!("  tg{server} consume t"))?;
    out.flush()
}

fn facts(running: &Running) -> Map<String, Value> {
    running.facts.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect()
}

/// Returns when the process that started this one has closed our standard input or ended; or on SIGTERM.
fn wait_for_input_to_end() -> Result<(), Failure> {
    let no_wait = |e: std::io::Error| Failure::new(Code::Failed, format!("cannot wait for signals: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_wait)?;
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let input = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_to_end(&mut Vec::new()));
        tokio::select! {
            _ = terminate.recv() => {}
            // A broken input has ended, too.
            _ = input => {}
        }
        Ok(())
    });
    // The thread that reads standard input cannot be told to stop.
    runtime.shutdown_background();
    ended.map_err(no_wait)
}

/// All problems of a start or a stop are shown; the last one ends the command.
fn failed(error: StartError, code: Code) -> Failure {
    let mut failures: Vec<Failure> =
        error.problems.into_iter().map(|problem| failure_of(problem, code)).collect();
    let last = failures.pop().unwrap_or_else(|| Failure::new(code, "the broker failed without saying why"));
    for failure in failures {
        note(failure);
    }
    last
}

fn failure_of(problem: Problem, code: Code) -> Failure {
    let mut failure = Failure::new(code, problem.cause.trim_end_matches('.'));
    if !problem.place.is_empty() {
        failure = failure.place(problem.place);
    }
    if !problem.limit.is_empty() {
        failure = failure.limit(problem.limit);
    }
    if !problem.current.is_empty() {
        failure = failure.current(problem.current);
    }
    if !problem.fix.is_empty() {
        failure = failure.fix(problem.fix);
    }
    failure
}
