//! A broker process of our own for `demo` and `bench`: this very executable, started again with its hidden `serve`.
//!
//! The child serves until its standard input ends. So it also stops, cleanly, when this process is killed.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tidegate::Client;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::task::JoinHandle;

use crate::connect::connect;
use crate::exit::{Code, Failure};

/// How long a broker may take to serve, and to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Last lines of its messages that are kept, for the case that it ends badly.
const LINES_KEPT: usize = 40;

/// What the child is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spawn<'a> {
    /// The data directory.
    pub(crate) data: &'a Path,
    /// Shards; none: one for each core.
    pub(crate) shards: Option<u16>,
    /// Whether it serves from storage that cannot flush.
    pub(crate) allow_volatile: bool,
    /// Keys of docs/CONFIG.md and their values.
    pub(crate) settings: &'a [(String, String)],
}

/// A broker process on a data directory; killed when dropped without [`BrokerProcess::stop`].
pub(crate) struct BrokerProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Takes in its messages to the last, so that it never waits for a reader.
    messages: JoinHandle<Vec<String>>,
    /// Where it listens.
    addr: String,
    /// What it says of itself at its start.
    facts: Vec<(String, String)>,
}

impl BrokerProcess {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// It ends before, with its own words for why.
    pub(crate) async fn start(spawn: Spawn<'_>) -> Result<BrokerProcess, Failure> {
        let program =
            std::env::current_exe().map_err(|e| failed(format!("cannot find this executable: {e}")))?;
        let mut command = Command::new(program);
        command.args(["-o", "json", "serve", "--data"]).arg(spawn.data);
        if let Some(shards) = spawn.shards {
            command.args(["--shards", &shards.to_string()]);
        }
        for (key, value) in spawn.settings {
            command.args(["--set", &format!("{key}={value}")]);
        }
        if spawn.allow_volatile {
            command.arg("--allow-volatile");
        }
        // Its own process group: ctrl-C is ours to handle, the broker is stopped after what is under way.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| failed(format!("cannot start a broker process: {e}")))?;
        let stdin = child.stdin.take();
        let messages = tokio::spawn(last_lines(child.stderr.take().expect("standard error is piped")));
        let mut stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, stdout.read_line(&mut line)).await;
        let serving: Option<Value> = serde_json::from_str(&line).ok();
        let addr = serving.as_ref().and_then(|serving| serving["listen"].as_str()).map(str::to_owned);
        match (read, addr) {
            (Ok(Ok(_)), Some(addr)) => {
                let facts = serving.as_ref().and_then(|serving| serving["facts"].as_object());
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let facts = facts.into_iter().flatten().map(|(name, value)| (name.clone(), text(value)));
                Ok(BrokerProcess { child, stdin, messages, addr, facts: facts.collect() })
            }
            (Err(_), _) => Err(failed(format!("the broker does not serve within {} s", PATIENCE.as_secs()))),
            (Ok(_), _) => Err(died(&mut child, messages).await),
        }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// What it says of itself at its start, by name.
    pub(crate) fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// Its process, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// A client of it.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        connect(&self.addr).await
    }

    /// Lets it drain, flush and checkpoint, and waits for its end.
    ///
    /// # Errors
    /// It ends with another code than 0, or not at all.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        drop(self.stdin.take());
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(_) => Err(died(&mut self.child, self.messages).await),
            Err(_) => Err(failed(format!("the broker does not stop within {} s", PATIENCE.as_secs()))),
        }
    }
}

async fn last_lines(stderr: ChildStderr) -> Vec<String> {
    let mut lines = BufReader::new(stderr).lines();
    let mut kept = Vec::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if kept.len() == LINES_KEPT {
            kept.remove(0);
        }
        kept.push(line);
    }
    kept
}

/// Why the child has ended, as it says itself.
async fn died(child: &mut Child, messages: JoinHandle<Vec<String>>) -> Failure {
    // A grandchild could hold the pipe open.
    let lines = match tokio::time::timeout(Duration::from_secs(2), messages).await {
        Ok(Ok(lines)) => lines,
        _ => Vec::new(),
    };
    let status = match tokio::time::timeout(Duration::from_secs(2), child.wait()).await {
        Ok(Ok(status)) => status.to_string(),
        _ => "it still runs".to_owned(),
    };
    // A failure of `serve` is one line of JSON; anything else (a panic) is shown as it is.
    let said: Option<Value> = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok());
    let field = |name: &str| said.as_ref().and_then(|said| said["error"][name].as_str()).map(str::to_owned);
    let Some(cause) = field("cause") else {
        let text = if lines.is_empty() { "it said nothing".to_owned() } else { lines.join("\n") };
        return failed(format!("the broker process ended ({status}): {text}"));
    };
    let mut failure = failed(cause);
    if let Some(place) = field("place") {
        failure = failure.place(place);
    }
    if let Some(limit) = field("limit") {
        failure = failure.limit(limit);
    }
    if let Some(current) = field("current") {
        failure = failure.current(current);
    }
    if let Some(fix) = field("fix") {
        failure = failure.fix(fix);
    }
    failure
}

fn failed(cause: String) -> Failure {
    Failure::new(Code::BrokerFailed, cause)
}
