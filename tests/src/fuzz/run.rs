//! The loop of one target: an input, the check, the next input.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use super::mutate::mutate;
use super::{Outcome, Target};
use crate::sim::random::Random;

/// Failures of a target after which no more are looked for.
const FAILURES_MAX: usize = 5;
/// Valid inputs that were found and are changed further.
const KEPT_MAX: usize = 64;

/// An input that broke something.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The input.
    pub input: Vec<u8>,
    /// What it broke, and where.
    pub why: String,
}

/// What a loop has shown.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inputs tried.
    pub executions: u64,
    /// Those in which something was valid: if there is none, the target looks at nothing.
    pub taken: u64,
    /// Those that broke something, one for each place where it broke.
    pub failures: Vec<Failure>,
}

/// What a loop is doing now, for somebody who watches whether it goes on.
#[derive(Debug, Default)]
pub struct Progress {
    /// Inputs begun.
    pub begun: AtomicU64,
    /// The last one.
    pub input: Mutex<Vec<u8>>,
}

/// Tries one input.
///
/// # Errors
/// What it broke, and where.
pub fn execute(target: &Target, input: &[u8]) -> Result<Outcome, String> {
    quiet_panics();
    IS_QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| (target.check)(input)));
    IS_QUIET.set(false);
    result.map_err(|panic| format!("{} ({})", message(&*panic), PANIC_PLACE.take()))
}

/// Tries changed inputs, as many as `goes_on` allows, which is told how many there were.
pub fn fuzz(
    target: &Target,
    stored: &[Vec<u8>],
    seed: u64,
    progress: &Progress,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Report {
    let mut report = Report::default();
    let mut places = Vec::new();
    let mut inputs = Inputs::new(stored, seed);
    while report.failures.len() < FAILURES_MAX && goes_on(report.executions) {
        let input = inputs.next(target);
        if let Ok(mut last) = progress.input.lock() {
            last.clone_from(&input);
        }
        progress.begun.fetch_add(1, Ordering::SeqCst);
        report.executions += 1;
        match execute(target, &input) {
            Ok(Outcome::Taken) => {
                report.taken += 1;
                inputs.keep(input);
            }
            Ok(Outcome::Refused) => {}
            Err(why) => {
                // The same place again says nothing new.
                let place = why.rsplit('(').next().unwrap_or_default().to_string();
                if !places.contains(&place) {
                    places.push(place);
                    report.failures.push(Failure { input, why });
                }
            }
        }
    }
    report
}

/// The inputs of a seed, one after another.
struct Inputs<'a> {
    random: Random,
    stored: &'a [Vec<u8>],
    kept: Vec<Vec<u8>>,
}

impl<'a> Inputs<'a> {
    fn new(stored: &'a [Vec<u8>], seed: u64) -> Inputs<'a> {
        assert!(!stored.is_empty(), "there is nothing to begin with");
        Inputs { random: Random::new(seed), stored, kept: Vec::new() }
    }

    fn next(&mut self, target: &Target) -> Vec<u8> {
        let mut input = self.some().to_vec();
        let other = self.some().to_vec();
        mutate(&mut self.random, &mut input, &other, target.bytes_max);
        // Some are left broken, so that the checks of checksums are tried as well.
        if self.random.chance(850_000) {
            (target.seal)(&mut self.random, &mut input);
            input.truncate(target.bytes_max);
        }
        input
    }

    fn some(&mut self) -> &[u8] {
        if !self.kept.is_empty() && self.random.chance(400_000) {
            let at = self.random.index(self.kept.len());
            return &self.kept[at];
        }
        let at = self.random.index(self.stored.len());
        &self.stored[at]
    }

    fn keep(&mut self, input: Vec<u8>) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(input);
        } else if self.random.chance(100_000) {
            let at = self.random.index(KEPT_MAX);
            self.kept[at] = input;
        }
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A failing input is a panic that is caught: its place is kept, and it is not printed.
fn quiet_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(|l| format!("{}:{}", l.file(), l.line()));
            PANIC_PLACE.set(place.unwrap_or_default());
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_string()
}
