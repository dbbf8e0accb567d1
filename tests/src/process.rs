//! The real broker as a process of its own: started on a data directory, stopped politely or not.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidegate::StatusReply;

/// A running broker. Dropping it kills it.
pub struct BrokerProcess {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// From the start of the process until it listened.
    pub started_in: Duration,
}

/// The variable of the environment by which a reactor is asked for.
pub const ASKED_REACTOR: &str = "TIDEGATE_TEST_REACTOR";

/// The reactor that brokers of tests are started with, if one is asked for; else the default.
pub fn asked_reactor() -> Option<String> {
    std::env::var(ASKED_REACTOR).ok()
}

/// Most time that a start, or a polite stop, may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl BrokerProcess {
    /// Starts `tidegate serve` on `data` with further arguments and waits until it listens. Its messages go to
    /// `<data>.log`, appended.
    pub fn start(data: &Path, arguments: &[&str]) -> io::Result<BrokerProcess> {
        BrokerProcess::start_by(Command::new(binary("tidegate")?), "127.0.0.1:0", data, arguments)
    }

    /// Likewise, by a command that takes the broker's arguments, listening on `listen`.
    pub fn start_by(
        mut command: Command,
        listen: &str,
        data: &Path,
        arguments: &[&str],
    ) -> io::Result<BrokerProcess> {
        // Not beside the data: that drive may be full.
        let dir = tempfile::tempdir()?;
        let port_file = dir.path().join("port");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(data.with_extension("log"))?;
        let started = Instant::now();
        let mut child = command
            .arg("serve")
            .arg("--data")
            .arg(data)
            .args(["--listen", listen, "--port-file"])
            .arg(&port_file)
            .args(asked_reactor().map(|reactor| format!("--reactor={reactor}")))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        loop {
            if let Ok(text) = std::fs::read_to_string(&port_file)
                && let Ok(address) = text.trim().parse()
            {
                return Ok(BrokerProcess { child, address, started_in: started.elapsed() });
            }
            if let Some(status) = child.try_wait()? {
                let log = std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
                let tail =
                    log.lines().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>();
                return Err(io::Error::other(format!(
                    "the broker ended with {status}:\n{}",
                    tail.join("\n")
                )));
            }
            if started.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::other(format!("the broker does not listen after {PATIENCE:?}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// `host:port` for a client.
    pub fn server(&self) -> String {
        self.address.to_string()
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(Pid::from_raw(self.child.id() as i32), signal)?)
    }

    /// Whether each of its threads stands still after a SIGSTOP: the signal itself is sent before they do.
    pub fn is_stopped(&self) -> io::Result<bool> {
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = std::fs::read_to_string(task?.path().join("stat"))?;
            // The name in brackets may hold anything; the state follows it.
            if stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// SIGKILL: the process is gone, what the kernel already had is not.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// SIGTERM, and the exit status once it has drained.
    pub fn terminate(mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let asked = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if asked.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("the broker runs on {PATIENCE:?} after SIGTERM")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all shards together have counted under a name.
pub fn counted(status: &StatusReply, name: &str) -> i64 {
    status.shards.iter().flatten().filter(|(n, _)| n == name).map(|(_, value)| value).sum()
}

/// A binary of this workspace, built beside the running one.
pub fn binary(name: &str) -> io::Result<PathBuf> {
    let me = std::env::current_exe()?;
    let beside = me.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    beside.ok_or_else(|| {
        io::Error::other(format!(
            "no `{name}` beside {}: build it first with `cargo build --release --workspace --bins`",
            me.display()
        ))
    })
}
