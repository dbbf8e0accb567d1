//! Why the broker does not start, for the person who reads it: cause, place, limit, current value, and what to do.

use std::fmt;

/// One thing that is wrong. Parts that say nothing are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, in one sentence.
    pub cause: String,
    /// Where: a file, a flag, an address.
    pub place: String,
    /// What would be right.
    pub limit: String,
    /// What was found instead.
    pub current: String,
    /// What to do about it.
    pub fix: String,
}

impl Problem {
    /// A problem with its cause and the way out.
    pub fn new(cause: impl Into<String>, fix: impl Into<String>) -> Problem {
        Problem { cause: cause.into(), fix: fix.into(), ..Problem::default() }
    }

    /// Says where.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Problem {
        self.place = place.into();
        self
    }

    /// Says what would be right and what was found.
    #[must_use]
    pub fn limits(mut self, limit: impl Into<String>, current: impl Into<String>) -> Problem {
        self.limit = limit.into();
        self.current = current.into();
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        let parts =
            [("place", &self.place), ("limit", &self.limit), ("current", &self.current), ("fix", &self.fix)];
        for (name, text) in parts.into_iter().filter(|(_, text)| !text.is_empty()) {
            write!(f, "\n  {name:>7}: {text}")?;
        }
        Ok(())
    }
}

/// Why the broker does not start: at least one problem; all that could be found at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// In the order in which they were found.
    pub problems: Vec<Problem>,
}

impl From<Problem> for StartError {
    fn from(problem: Problem) -> StartError {
        StartError { problems: vec![problem] }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.problems.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for StartError {}
