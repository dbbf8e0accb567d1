//! Boot order and shutdown order.
//!
//! ```text
//! machine -> listener bound -> directory, lock, storage facts -> superblock, incarnation
//!         -> a thread a shard: recover, then turn -> all serve -> accept -> port file
//! stop: no more accepting -> every shard drains, flushes, writes its checkpoint -> join -> superblock closed -> lock
//! ```
//! A start that fails leaves nothing behind that it has made; an existing data directory is as it was.

use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use tidegate_control::Signal;
use tidegate_control::{Control, Log, Severity, Signals};
use tidegate_reactor::mailbox::{Door, Order};
use tidegate_reactor::op::Letter;
use tidegate_reactor::probe::Raised;
use tidegate_reactor::setup::{Setup, setups};
use tidegate_reactor::{cpu, glommio, net, probe, ring};

use crate::config::{Config, Pinning, Reactor};
use crate::problem::{Problem, StartError};
use crate::site::{Site, explain_io};
use crate::unit::{self, Told, UnitPlan};

/// A broker that serves.
#[derive(Debug)]
pub struct Running {
    /// Where clients connect.
    pub addr: SocketAddr,
    /// What a person wants to know about it: `version`, `data_dir`, `filesystem`, `flush_rule`, `zero_fill`, `durability`, `shards`, `cores`,
    /// `listen`, `reactor`.
    pub facts: Vec<(String, String)>,
    site: Site,
    units: Units,
    happenings: mpsc::Receiver<Happening>,
    port_file: Option<PathBuf>,
    control: Control,
}

/// Why [`Running::wait`] has come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A signal asks for a stop.
    Asked(Signal),
    /// A shard has ended by itself.
    Failed(Problem),
}

/// What the threads tell the one that started them.
#[derive(Debug)]
enum Happening {
    Recovered,
    Serving,
    /// A shard's thread is at its end.
    Ended(Result<(), Problem>),
    Signal(Signal),
}

/// Whether the process's signals belong to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalsOf {
    /// SIGTERM and SIGINT end [`Running::wait`].
    Broker,
    /// The program around it has its own ways.
    Embedder,
}

/// Starts a broker in this process and returns when it serves. Signals are left alone.
///
/// # Errors
/// Everything that is wrong with the configuration's values, the machine, the address, the directory or what lies in it.
pub fn start(config: Config) -> Result<Running, StartError> {
    start_with(config, SignalsOf::Embedder)
}

/// As [`start`], for a process that is nothing but a broker or not.
///
/// # Errors
/// As for [`start`].
pub fn start_with(config: Config, signals: SignalsOf) -> Result<Running, StartError> {
    check_machine(config.reactor)?;
    let (tell, happenings) = mpsc::channel();
    let control = Control::start(signals_for(signals, &tell))
        .map_err(|e| explain_io("cannot start the control thread", "control thread", &e))?;
    let log = control.log();
    let listener = listen(config.listen, &log).map_err(|e| listen_problem(&config, &e))?;
    let addr =
        listener.local_addr().map_err(|e| explain_io("cannot listen", config.listen.to_string(), &e))?;

    let mut site = Site::open(&config)?;
    site.repairs().iter().for_each(|text| log.line(Severity::Warn, text));
    site.warnings(&config).iter().for_each(|text| log.line(Severity::Warn, text));
    let units = match Units::start(&config, &mut site, &log, &tell, &happenings) {
        Ok(units) => units,
        Err(problem) => {
            site.abandon();
            return Err(problem.into());
        }
    };
    // Who reads it finds the listener's queue open; nothing was promised yet if it cannot be written.
    if let Err(problem) = write_port_file(config.port_file.as_deref(), addr) {
        units.stop();
        site.abandon();
        return Err(problem.into());
    }
    units.doors[0].give(Order::Listen(listener));
    let mut facts = site.facts();
    facts.extend([("listen".into(), addr.to_string()), ("reactor".into(), config.reactor.name().into())]);
    let running = Running { addr, facts, site, units, happenings, port_file: config.port_file, control };
    let shards = running.units.doors.len();
    running.control.log().line(Severity::Info, &format!("serving on {addr}, {shards} shards"));
    Ok(running)
}

impl Running {
    /// Waits until there is a reason to stop.
    pub fn wait(&self) -> Ended {
        loop {
            match self.happenings.recv() {
                Ok(Happening::Signal(signal)) => return Ended::Asked(signal),
                Ok(Happening::Ended(Err(problem))) => return Ended::Failed(problem),
                Ok(Happening::Ended(Ok(()))) | Err(mpsc::RecvError) => {
                    let fix = "see the log lines before; start it again, it recovers what was acknowledged";
                    return Ended::Failed(Problem::new("a shard has ended by itself", fix));
                }
                Ok(Happening::Recovered | Happening::Serving) => {}
            }
        }
    }

    /// Drains, flushes, writes checkpoints, ends all threads.
    ///
    /// # Errors
    /// What a shard or the superblock's file had to say at its end. Everything acknowledged is durable even so.
    pub fn stop(self) -> Result<(), StartError> {
        let log = self.control.log();
        log.line(Severity::Info, "stopping: draining, flushing, writing checkpoints");
        if let Some(path) = &self.port_file {
            // A leftover would only mislead the next one who looks.
            let _ = std::fs::remove_file(path);
        }
        let problems = self.units.stop();
        self.site.close();
        if !problems.is_empty() {
            return Err(StartError { problems });
        }
        log.line(Severity::Info, "stopped");
        Ok(())
    }
}

/// The threads of all shards.
#[derive(Debug)]
struct Units {
    doors: Vec<Door>,
    threads: Vec<JoinHandle<()>>,
    /// How each thread ended, for [`Units::stop`].
    ends: mpsc::Receiver<Problem>,
}

impl Units {
    /// Starts a thread a shard, waits until all have recovered, lets them turn, waits until all serve.
    fn start(
        config: &Config,
        site: &mut Site,
        log: &Log,
        tell: &mpsc::Sender<Happening>,
        happenings: &mpsc::Receiver<Happening>,
    ) -> Result<Units, Problem> {
        let plans = unit::plans(config, site, log);
        let count = plans.len();
        let cores = cores_for(config, count);
        let (setups, doors) =
            setups(plans[0].count(), config.io_memory_bytes, report_to(tell.clone(), log.clone()));
        let (end, ends) = mpsc::channel();
        let mut units = Units { doors, threads: Vec::new(), ends };
        let mut gates = Vec::new();
        for ((plan, setup), core) in plans.into_iter().zip(setups).zip(cores) {
            let (open_gate, gate) = mpsc::channel();
            gates.push(open_gate);
            let (tell, end, reactor) = (tell.clone(), end.clone(), config.reactor);
            let thread = ShardThread { plan, setup, reactor, core, gate, tell, end };
            let spawned = std::thread::Builder::new().name(format!("shard-{}", units.threads.len()));
            let spawned = spawned.spawn(move || thread.run());
            let spawned = spawned.map_err(|e| explain_io("cannot start a shard's thread", "shard", &e));
            match spawned {
                Ok(thread) => units.threads.push(thread),
                Err(problem) => return Err(units.give_up(gates, problem)),
            }
        }
        for _ in 0..count {
            if let Err(problem) = next(happenings, |h| matches!(h, Happening::Recovered)) {
                return Err(units.give_up(gates, problem));
            }
        }
        for gate in &gates {
            // A thread that has ended already has said why.
            let _ = gate.send(());
        }
        for _ in 0..count {
            if let Err(problem) = next(happenings, |h| matches!(h, Happening::Serving)) {
                return Err(units.give_up(gates, problem));
            }
        }
        Ok(units)
    }

    /// Closed gates end the threads that wait before them, an order the others.
    fn give_up(self, gates: Vec<mpsc::Sender<()>>, problem: Problem) -> Problem {
        drop(gates);
        self.stop();
        problem
    }

    fn stop(self) -> Vec<Problem> {
        for door in &self.doors {
            door.give(Order::StopListening);
        }
        for door in &self.doors {
            door.give(Order::Letter(unit::stop_letter()));
        }
        for thread in self.threads {
            // A panic has aborted the process already.
            let _ = thread.join();
        }
        self.ends.try_iter().collect()
    }
}

/// Everything that a shard's thread needs.
struct ShardThread {
    plan: UnitPlan,
    setup: Setup,
    reactor: Reactor,
    core: Option<usize>,
    gate: mpsc::Receiver<()>,
    tell: mpsc::Sender<Happening>,
    end: mpsc::Sender<Problem>,
}

impl ShardThread {
    fn run(self) {
        let ShardThread { plan, setup, reactor, core, gate, tell, end } = self;
        let body = || {
            if let Some(core) = core {
                // Refused, the thread runs wherever the kernel puts it.
                let _ = cpu::pin(core);
            }
            let mut unit = plan.recover()?;
            let _ = tell.send(Happening::Recovered);
            if gate.recv().is_err() {
                return Ok(());
            }
            let name = format!("shard {}", setup.shard.0);
            let ended = match reactor {
                Reactor::Glommio => glommio::run(setup, &mut *unit),
                Reactor::Ring => ring::run(setup, &mut *unit),
            };
            ended.map_err(|fault| reactor_problem(&name, &fault))
        };
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(result) => {
                if let Err(problem) = &result {
                    let _ = end.send(problem.clone());
                }
                let _ = tell.send(Happening::Ended(result));
            }
            // A bug of ours, already written to standard error: what the others know of this shard is wrong from here on.
            Err(_) => std::process::abort(),
        }
    }
}

/// The next happening, which has to be the wanted one.
fn next(happenings: &mpsc::Receiver<Happening>, wanted: impl Fn(&Happening) -> bool) -> Result<(), Problem> {
    let interrupted = || Problem::new("the start was interrupted by a signal", "start it again");
    loop {
        match happenings.recv() {
            Ok(Happening::Ended(Err(problem))) => return Err(problem),
            Ok(Happening::Ended(Ok(()))) => {
                return Err(Problem::new("a shard has ended before it served", "see the log lines before"));
            }
            Ok(Happening::Signal(_)) | Err(mpsc::RecvError) => return Err(interrupted()),
            Ok(happening) if wanted(&happening) => return Ok(()),
            Ok(Happening::Recovered | Happening::Serving) => {}
        }
    }
}

/// By another name and a rename, so that nobody reads half an address.
fn write_port_file(path: Option<&Path>, addr: SocketAddr) -> Result<(), Problem> {
    let Some(path) = path else { return Ok(()) };
    let mut fresh = path.to_owned().into_os_string();
    fresh.push(".new");
    std::fs::write(&fresh, format!("{addr}\n"))
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|e| explain_io("cannot write the port file", path.display().to_string(), &e))
}

fn signals_for(signals: SignalsOf, tell: &mpsc::Sender<Happening>) -> Signals {
    match signals {
        SignalsOf::Embedder => Signals::Leave,
        SignalsOf::Broker => {
            let tell = tell.clone();
            Signals::Tell(Box::new(move |signal| drop(tell.send(Happening::Signal(signal)))))
        }
    }
}

/// What shards report, as log lines and happenings.
fn report_to(tell: mpsc::Sender<Happening>, log: Log) -> impl FnMut(Letter) + Clone + Send + 'static {
    move |letter| match unit::understand(letter) {
        Told::Serving => drop(tell.send(Happening::Serving)),
        Told::Failed(problem) => {
            log.line(Severity::Error, &problem.to_string());
            let _ = tell.send(Happening::Ended(Err(problem)));
        }
        Told::Trouble(text) => log.line(Severity::Warn, &text),
        Told::Relief(text) => log.line(Severity::Info, &text),
    }
}

/// A core for each shard, if there is one for each.
fn cores_for(config: &Config, shards: usize) -> Vec<Option<usize>> {
    let allowed = cpu::allowed();
    match config.pinning {
        Pinning::OneCoreEach if allowed.len() >= shards && shards > 1 => {
            allowed.into_iter().take(shards).map(Some).collect()
        }
        Pinning::OneCoreEach | Pinning::None => vec![None; shards],
    }
}

/// io_uring, lockable memory, descriptors.
fn check_machine(reactor: Reactor) -> Result<(), StartError> {
    let (locked, files) = (probe::raise_locked_bytes(), probe::raise_open_files());
    let io_uring = match reactor {
        Reactor::Glommio => probe::io_uring(),
        Reactor::Ring => probe::ring(),
    };
    let problems = machine_problems(reactor, locked.ok(), files.ok(), io_uring);
    if problems.is_empty() { Ok(()) } else { Err(StartError { problems }) }
}

/// What is wrong with a machine that has these limits (none: it does not say) and this io_uring.
fn machine_problems(
    reactor: Reactor,
    locked: Option<Raised>,
    files: Option<Raised>,
    io_uring: std::io::Result<()>,
) -> Vec<Problem> {
    const OPEN_FILES_MIN: u64 = 256;
    let mut problems = Vec::new();
    if let Some(locked) = locked
        && reactor == Reactor::Glommio
        && locked.now < probe::LOCKED_BYTES_MIN
    {
        let fix = "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 of a container";
        let limit = format!("at least {} bytes", probe::LOCKED_BYTES_MIN);
        let problem = Problem::new("too little memory may be locked for io_uring", fix).at("RLIMIT_MEMLOCK");
        problems.push(problem.limits(limit, format!("{} bytes", locked.now)));
    }
    if let Some(files) = files
        && files.now < OPEN_FILES_MIN
    {
        let fix = "raise it: `ulimit -n 65536`, LimitNOFILE=65536 in a systemd unit";
        let problem = Problem::new("too few files may be open", fix).at("RLIMIT_NOFILE");
        problems.push(problem.limits(format!("at least {OPEN_FILES_MIN}"), files.now.to_string()));
    }
    if let Err(error) = io_uring {
        problems.push(io_uring_problem(reactor, &error, locked));
    }
    problems
}

/// Why the kernel gives this process no io_uring as the reactor needs it, and what allows it.
fn io_uring_problem(reactor: Reactor, error: &std::io::Error, locked: Option<Raised>) -> Problem {
    const SECCOMP: &str = "a seccomp profile, as containers have by default, must let io_uring_setup pass (docker: --security-opt \
                           seccomp=FILE)";
    let needed = match reactor {
        Reactor::Glommio => "Linux 5.8",
        Reactor::Ring => "Linux 6.1",
    };
    let running = format!("Linux {}", probe::kernel_release());
    let disabled = probe::io_uring_disabled().unwrap_or_else(|| "absent".into());
    let (fix, limit, current) = match error.kind() {
        std::io::ErrorKind::InvalidInput => {
            let fix = "boot a newer kernel, or start with --reactor glommio, which needs Linux 5.8";
            (fix.to_owned(), format!("{needed} or later for the reactor `{}`", reactor.name()), running)
        }
        std::io::ErrorKind::PermissionDenied => {
            let fix = format!(
                "`sysctl -w kernel.io_uring_disabled=0` (or 1, with this user in the group of kernel.io_uring_group); where it is \
                 0 already, {SECCOMP}"
            );
            (fix, "sysctl kernel.io_uring_disabled = 0".to_owned(), disabled)
        }
        std::io::ErrorKind::OutOfMemory => {
            let fix = "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit; a container's memory limit counts too";
            let current = locked.map_or("unknown".into(), |locked| format!("{} bytes", locked.now));
            (fix.to_owned(), "enough memory that may be locked (RLIMIT_MEMLOCK)".to_owned(), current)
        }
        _ => {
            let fix = format!("boot {needed} or later, built with CONFIG_IO_URING; if it is, {SECCOMP}");
            (fix, format!("{needed} or later, with io_uring"), running)
        }
    };
    let cause = format!("this process cannot use io_uring: {error}");
    Problem::new(cause, fix).at("io_uring_setup").limits(limit, current)
}

/// Binds and listens. When a broker was killed, the kernel ends what its rings had under way in the background, and the old
/// listener is there until then: a restart waits for that instead of failing.
fn listen(addr: SocketAddr, log: &Log) -> std::io::Result<TcpListener> {
    const PATIENCE: Duration = Duration::from_secs(3);
    const PAUSE: Duration = Duration::from_millis(20);
    let began = Instant::now();
    loop {
        match net::listen(addr) {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < PATIENCE => {
                if began.elapsed() < PAUSE {
                    let text = format!("{addr} is in use; waiting up to {} s for it", PATIENCE.as_secs());
                    log.line(Severity::Warn, &text);
                }
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

fn listen_problem(config: &Config, error: &std::io::Error) -> Problem {
    let place = format!("--listen {}", config.listen);
    match error.kind() {
        std::io::ErrorKind::AddrInUse => Problem::new(
            "the address to listen on is in use",
            "stop what listens there (`ss -ltnp` names it), or give another --listen; port 0 takes any free one",
        )
        .at(place)
        .limits("one listener an address", "another process has listened there for 3 s"),
        std::io::ErrorKind::AddrNotAvailable => Problem::new(
            "the address to listen on is none of this machine",
            "give one that `ip addr` shows, or 0.0.0.0 with --insecure for all of them",
        )
        .at(place),
        _ => explain_io("cannot listen", place, error),
    }
}

fn reactor_problem(place: &str, fault: &tidegate_reactor::op::Fault) -> Problem {
    let fix = "raise the limit that is named (`ulimit -a` shows them), or start with fewer --shards; if it had served before, the kernel has \
               refused a ring that worked: look into its log (`dmesg`)";
    Problem::new(format!("a shard's reactor does not work: {fault}"), fix).at(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_io_uring_is_told_what_forbids_it_and_what_allows_it() {
        let enough = Some(Raised { now: 1 << 30, hard: 1 << 30 });
        let (enosys, eperm, enomem, einval) = (38, 1, 12, 22);
        for (reactor, errno, words) in [
            (Reactor::Ring, enosys, ["Linux 6.1", "seccomp", "CONFIG_IO_URING"]),
            (Reactor::Glommio, enosys, ["Linux 5.8", "seccomp", "CONFIG_IO_URING"]),
            (Reactor::Ring, eperm, ["sysctl kernel.io_uring_disabled", "kernel.io_uring_group", "seccomp"]),
            (Reactor::Ring, enomem, ["RLIMIT_MEMLOCK", "1073741824 bytes", "ulimit -l"]),
            (Reactor::Ring, einval, ["Linux 6.1", "--reactor glommio", &probe::kernel_release()]),
        ] {
            assert_eq!(machine_problems(reactor, enough, enough, Ok(())), []);
            let error = std::io::Error::from_raw_os_error(errno);
            let found = machine_problems(reactor, enough, enough, Err(error));
            let [problem] = &found[..] else { panic!("{found:?}") };
            let said = problem.to_string();
            for word in words.into_iter().chain(["io_uring", "os error"]) {
                assert!(said.contains(word), "`{word}` is missing in:\n{said}");
            }
        }
    }

    #[test]
    fn only_glommio_asks_for_memory_that_may_be_locked() {
        let (little, enough) =
            (Raised { now: 64 << 10, hard: 64 << 10 }, Raised { now: 1 << 30, hard: 1 << 30 });
        let problems = |reactor| machine_problems(reactor, Some(little), Some(enough), Ok(()));
        assert_eq!(problems(Reactor::Ring), []);
        assert_eq!(problems(Reactor::Glommio).len(), 1);
    }
}
