//! How a command ends: a stable exit code, and an error that a person can act on.

use std::fmt;
use std::io;

use serde_json::json;

/// The exit codes of `tg`, documented in docs/OPERATING.md; numbers never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Something failed that has no code of its own.
    Failed = 1,
    /// The command line makes no sense; clap ends with the same number.
    Usage = 2,
    /// The broker cannot be reached, or the connection broke for good.
    Unreachable = 3,
    /// The broker refused the request.
    Refused = 4,
    /// There is no such topic, partition, offset or file.
    NotFound = 5,
    /// Stored data is damaged, or what was read is not what was written.
    Differs = 6,
    /// A broker of this command could not start, or stopped by itself.
    BrokerFailed = 7,
    /// Whether the data is stored is not known.
    UnknownOutcome = 8,
    /// Ended by ctrl-C or SIGTERM before the work was done.
    Interrupted = 130,
}

/// An error for the person who reads it: cause, place, limit, current value, fix.
#[derive(Debug)]
pub(crate) struct Failure {
    detail: Box<Detail>,
}

#[derive(Debug)]
struct Detail {
    code: Code,
    cause: String,
    place: Option<String>,
    limit: Option<String>,
    current: Option<String>,
    fix: Option<String>,
    telling: Telling,
}

/// Whether there is somebody who does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    ToTell,
    /// It was said when it happened; only the exit code is left.
    Told,
    /// The reader of our output has gone: nobody to tell, and nothing to complain about.
    OutputClosed,
}

impl Failure {
    /// An error with its cause, in one sentence without a full stop.
    pub(crate) fn new(code: Code, cause: impl Into<String>) -> Failure {
        let cause = cause.into();
        let telling = Telling::ToTell;
        let detail = Detail { code, cause, place: None, limit: None, current: None, fix: None, telling };
        Failure { detail: Box::new(detail) }
    }

    /// A mistake in the command line that clap could not see.
    pub(crate) fn usage(cause: impl Into<String>) -> Failure {
        Failure::new(Code::Usage, cause)
    }

    /// Writing to standard output failed. A closed pipe (`tg consume t | head`) is an ordinary end.
    pub(crate) fn output(error: io::Error) -> Failure {
        let mut failure = Failure::new(Code::Failed, format!("cannot write to standard output: {error}"));
        if error.kind() == io::ErrorKind::BrokenPipe {
            failure.detail.telling = Telling::OutputClosed;
        }
        failure
    }

    /// The same, once it has been said.
    pub(crate) fn told(mut self) -> Failure {
        self.detail.telling = Telling::Told;
        self
    }

    /// Where: an option, a file, an address.
    pub(crate) fn place(mut self, place: impl Into<String>) -> Failure {
        self.detail.place = Some(place.into());
        self
    }

    /// What was exceeded.
    pub(crate) fn limit(mut self, limit: impl fmt::Display) -> Failure {
        self.detail.limit = Some(limit.to_string());
        self
    }

    /// What it is now.
    pub(crate) fn current(mut self, current: impl fmt::Display) -> Failure {
        self.detail.current = Some(current.to_string());
        self
    }

    /// What to do.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Failure {
        self.detail.fix = Some(fix.into());
        self
    }

    /// What sort of end it is.
    pub(crate) fn code(&self) -> Code {
        self.detail.code
    }

    /// The number that the process ends with.
    pub(crate) fn exit_number(&self) -> u8 {
        if self.detail.telling == Telling::OutputClosed { 0 } else { self.detail.code as u8 }
    }

    /// Whether there is nothing to say.
    pub(crate) fn is_silent(&self) -> bool {
        self.detail.telling != Telling::ToTell
    }

    /// For `-o json`: one object.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({ "error": {
            "exit_code": self.exit_number(),
            "cause": self.detail.cause,
            "place": self.detail.place,
            "limit": self.detail.limit,
            "current": self.detail.current,
            "fix": self.detail.fix,
        }})
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.detail.cause)?;
        let rows = [
            ("place", &self.detail.place),
            ("limit", &self.detail.limit),
            ("current", &self.detail.current),
            ("fix", &self.detail.fix),
        ];
        for (name, value) in rows {
            if let Some(value) = value {
                write!(f, "\n  {:<9}{value}", format!("{name}:"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_cause_place_limit_current_and_fix_in_that_order() {
        let failure = Failure::usage("the record is too long")
            .place("line 3 of x.txt")
            .limit("1 MiB")
            .current("2 MiB")
            .fix("raise --record-bytes-max");
        assert_eq!(
            failure.to_string(),
            "error: the record is too long\n  place:   line 3 of x.txt\n  limit:   1 MiB\n  current: 2 MiB\n  \
             fix:     raise --record-bytes-max"
        );
        assert_eq!(failure.exit_number(), 2);
    }

    #[test]
    fn a_closed_pipe_is_silent_and_ends_with_0() {
        let failure = Failure::output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(failure.is_silent());
        assert_eq!(failure.exit_number(), 0);
        assert_eq!(Failure::output(io::Error::other("full")).exit_number(), 1);
    }
}
