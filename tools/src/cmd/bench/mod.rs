//! `tg bench`: what the machine can do, one run, the suite of rows, two results compared.
//!
//! Reading order: `run` (one workload), `host` (the broker that is measured), `limits`, `suite` and `rows` (what each row
//! does), `counters` (whether a round was what its row promises), `compare`.

mod compare;
mod counters;
mod host;
mod limits;
mod rows;
mod run;
mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_bench::engine::RunError;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::BenchCommand;
use crate::connect::runtime;
use crate::exit::{Code, Failure};
use crate::output::Out;

/// What a run needs of this process: threads for clients, and whether it was asked to end (ctrl-C, SIGTERM).
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    handle: Handle,
    stop: Arc<AtomicBool>,
}

impl Stage {
    /// An error once it was asked to end.
    fn go_on(&self) -> Result<(), Failure> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Failure::new(Code::Interrupted, "interrupted")),
            false => Ok(()),
        }
    }
}

/// Does one of them.
pub(crate) fn run(server: &str, command: BenchCommand, out: &mut Out) -> Result<(), Failure> {
    let runtime = runtime()?;
    let stage = Stage { handle: runtime.handle().clone(), stop: Arc::new(AtomicBool::new(false)) };
    let stop = stage.stop.clone();
    // Everything below returns soon after; what was made is removed on the way out.
    runtime.spawn(async move {
        let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        stop.store(true, Ordering::Relaxed);
    });
    let result = match command {
        BenchCommand::Limits(args) => limits::run(&args, out),
        BenchCommand::Suite(args) => suite::run(&stage, &args, out),
        BenchCommand::Compare(args) => compare::run(&args, out),
        BenchCommand::Produce(args) => run::run(&stage, server, run::Kind::Produce, &args, out),
        BenchCommand::Consume(args) => run::run(&stage, server, run::Kind::Consume, &args, out),
        BenchCommand::E2e(args) => run::run(&stage, server, run::Kind::E2e, &args, out),
        BenchCommand::Catchup(args) => run::run(&stage, server, run::Kind::Catchup, &args, out),
        BenchCommand::Mixed(args) => run::run(&stage, server, run::Kind::Mixed, &args, out),
        BenchCommand::Partitions(args) => run::run(&stage, server, run::Kind::Partitions, &args, out),
        BenchCommand::Connections(args) => run::run(&stage, server, run::Kind::Connections, &args, out),
    };
    runtime.shutdown_background();
    result
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Client(error) => error.into(),
            RunError::Io(error) => Failure::new(Code::Failed, format!("the run broke off: {error}"))
                .fix("see whether the broker runs (`tg status`) and what its log says"),
        }
    }
}
