//! The control thread: signals come in, log lines go out. Everything slow or asynchronous that is not the data path belongs
//! here, on a small tokio runtime of its own; shards talk to it by reports and are talked to by orders.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::{mpsc as queue, oneshot};

/// Log lines that wait to be written at most; further ones are counted and dropped.
const LINES_MAX: usize = 1024;

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Somebody should look at it.
    Warn,
    /// Something was lost or does not work.
    Error,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Info => "INFO",
            Severity::Warn => "WARN",
            Severity::Error => "ERROR",
        }
    }
}

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT, ctrl-C.
    Interrupt,
}

/// Writes log lines to standard error without making its caller wait. One for each who has something to say.
#[derive(Clone, Debug)]
pub struct Log {
    lines: queue::Sender<String>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Queues a line; it gets the time and the severity in front.
    pub fn line(&self, severity: Severity, text: &str) {
        let line = format!("{} {:5} {text}", utc(SystemTime::now()), severity.word());
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The control thread. Dropping it ends it after the lines queued by then are written; later ones are lost.
#[derive(Debug)]
pub struct Control {
    log: Log,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the control thread does about the process's signals.
pub enum Signals {
    /// Takes them: a first SIGTERM or SIGINT is told by this call, a second one ends the process at once.
    Tell(Box<dyn FnMut(Signal) + Send>),
    /// Nothing: an embedding program has its own ways.
    Leave,
}

impl Control {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel refuses a thread, a descriptor or a signal handler.
    pub fn start(signals: Signals) -> std::io::Result<Control> {
        let (lines, to_write) = queue::channel(LINES_MAX);
        let log = Log { lines, dropped: Arc::default() };
        let dropped = Arc::clone(&log.dropped);
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let streams = match signals {
            Signals::Tell(tell) => {
                let _inside = runtime.enter();
                Some((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, tell))
            }
            Signals::Leave => None,
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(async {
                let writing = write_lines(to_write, dropped, ended);
                match streams {
                    Some((terminate, interrupt, tell)) => tokio::select! {
                        () = writing => {}
                        () = tell_signals(terminate, interrupt, tell) => {}
                    },
                    None => writing.await,
                }
            });
        })?;
        Ok(Control { log, end: Some(end), thread: Some(thread) })
    }

    /// A way to write log lines.
    pub fn log(&self) -> Log {
        self.log.clone()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn write_lines(
    mut lines: queue::Receiver<String>,
    dropped: Arc<AtomicU64>,
    mut ended: oneshot::Receiver<()>,
) {
    loop {
        let line = tokio::select! {
            biased;
            line = lines.recv() => line,
            _ = &mut ended => None,
        };
        let Some(line) = line else { return };
        let mut out = std::io::stderr().lock();
        // Standard error that is gone is nobody's to tell.
        let _ = writeln!(out, "{line}");
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(out, "{} WARN  {dropped} log lines were dropped here", utc(SystemTime::now()));
        }
    }
}

async fn tell_signals(mut terminate: Stream, mut interrupt: Stream, mut tell: Box<dyn FnMut(Signal) + Send>) {
    /// What a shell expects of a process that ctrl-C has ended.
    const EXIT_INTERRUPTED: i32 = 130;
    let mut told = false;
    loop {
        let signal = tokio::select! {
            _ = terminate.recv() => Signal::Terminate,
            _ = interrupt.recv() => Signal::Interrupt,
        };
        if told {
            std::process::exit(EXIT_INTERRUPTED);
        }
        told = true;
        tell(signal);
    }
}

/// `2026-11-29T15:04:05.678Z`.
fn utc(time: SystemTime) -> String {
    const DAY_S: u64 = 86_400;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY_S, since.as_secs() % DAY_S);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{:03}Z",
        second % 60,
        since.subsec_millis()
    )
}

/// Year, month and day of a count of days since 1970-01-01, in the Gregorian calendar: years begin in March here, so that the
/// leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, day) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_102_444_800, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn the_thread_ends_with_its_control_whoever_still_holds_a_log() {
        let control = Control::start(Signals::Leave).unwrap();
        let log = control.log();
        log.line(Severity::Info, "a line of a test");
        drop(control);
        log.line(Severity::Info, "nobody writes this");
    }
}
