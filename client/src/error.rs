//! The one error of the SDK: what happened, whether trying again makes sense, and what to do.

use std::fmt;
use std::sync::Arc;

use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::error_code::{ErrorCode, Retry};
use tidegate_protocol::ids::{Offset, PartitionId};

/// Why something was not done. Cheap to clone: all records of a batch share theirs.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    cause: String,
    limited: String,
    limit: i64,
    current: i64,
    hint: String,
    retry: Retry,
    unread: Option<Unread>,
}

/// Records of a partition that a consumer cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The partition.
    pub partition: PartitionId,
    /// The first of them; everything before it was handed out.
    pub from: Offset,
    /// Where a new consumer goes on behind them, always behind `from`. None: not known, as where the broker has lost a part of its
    /// journal; a consumer from `from` on is refused in the same way, and only what lies below can be read.
    pub to: Option<Offset>,
}

/// What sort of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The broker refused the request with this code.
    Refused(ErrorCode),
    /// The broker refused the request with a code that this version of the SDK does not know.
    RefusedUnknown(u16),
    /// The broker cannot be reached, or the connection was lost before a request was sent.
    Unreachable,
    /// The request was sent and the connection was lost before the reply: it may or may not have been done.
    UnknownOutcome,
    /// The broker grants no credit for more records, for this reason; see [`crate::Producer::stall`].
    NoCredit(Reason),
    /// Records were not delivered within the producer's delivery timeout, and certainly not stored.
    Expired,
    /// An argument or a setting makes no sense.
    InvalidArgument,
    /// A record or batch is larger than a limit.
    TooLarge,
    /// The client, producer or consumer is closed.
    Closed,
    /// What the broker sent cannot be read or breaks the protocol.
    Protocol,
    /// A batch cannot be decompressed or its records cannot be read.
    Damaged,
}

impl Error {
    /// An error of the SDK's own.
    pub(crate) fn new(kind: ErrorKind, cause: impl Into<String>) -> Error {
        let retry = match kind {
            ErrorKind::Unreachable | ErrorKind::Expired | ErrorKind::NoCredit(_) => Retry::Later,
            ErrorKind::Refused(code) => code.retry(),
            _ => Retry::Never,
        };
        let inner = Inner {
            kind,
            cause: cause.into(),
            limited: String::new(),
            limit: 0,
            current: 0,
            hint: String::new(),
            retry,
            unread: None,
        };
        Error { inner: Arc::new(inner) }
    }

    /// What the broker said in an error frame.
    pub(crate) fn refused(body: ErrorBody) -> Error {
        let kind = match body.code {
            Ok(code) => ErrorKind::Refused(code),
            Err(number) => ErrorKind::RefusedUnknown(number),
        };
        let mut cause = body.cause;
        // Only what could not be read has a place in the frame.
        if !body.field.is_empty() && body.position > 0 {
            cause = format!("{cause} (field {}, byte {})", body.field, body.position);
        }
        let inner = Inner {
            kind,
            cause,
            limited: body.limited,
            limit: body.limit,
            current: body.current,
            hint: body.hint,
            retry: body.retry,
            unread: None,
        };
        Error { inner: Arc::new(inner) }
    }

    /// The broker grants no credit, for this reason.
    pub(crate) fn no_credit(reason: Reason) -> Error {
        let cause = format!("the broker takes no more records now: they wait for {}", reason.meaning());
        Error::new(ErrorKind::NoCredit(reason), cause).with_hint(reason.hint())
    }

    /// The same error with what was limited, the limit and the value that met it.
    pub(crate) fn with_limit(self, limited: &str, limit: i64, current: i64) -> Error {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        inner.limited = limited.to_string();
        inner.limit = limit;
        inner.current = current;
        Error { inner: Arc::new(inner) }
    }

    /// The same error with what to do about it.
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Error {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        inner.hint = hint.into();
        Error { inner: Arc::new(inner) }
    }

    /// The same error of records that a consumer cannot be given. What is known already stays.
    pub(crate) fn with_unread(self, unread: Unread) -> Error {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        inner.unread.get_or_insert(unread);
        Error { inner: Arc::new(inner) }
    }

    /// What sort of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The broker's code, where the broker refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self.inner.kind {
            ErrorKind::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Whether the same call may succeed later. The SDK has already retried what it may retry by itself.
    pub fn is_retriable(&self) -> bool {
        self.inner.retry != Retry::Never
    }

    /// Whether it is open if the request was done: the records may or may not be stored.
    pub fn is_unknown_outcome(&self) -> bool {
        matches!(self.inner.kind, ErrorKind::UnknownOutcome | ErrorKind::Refused(ErrorCode::UnknownOutcome))
    }

    /// What happened, in a sentence, with the place.
    pub fn cause(&self) -> &str {
        &self.inner.cause
    }

    /// What was limited, the limit, and the value that met it; none where nothing was limited.
    pub fn limit(&self) -> Option<(&str, i64, i64)> {
        if self.inner.limited.is_empty() {
            return None;
        }
        Some((&self.inner.limited, self.inner.limit, self.inner.current))
    }

    /// Of an error that stops one partition of a consumer, which goes on with the others: what it could not read.
    pub fn unread(&self) -> Option<Unread> {
        self.inner.unread
    }

    /// The numbers of the error even where nothing is named as limited: the limit and the current value.
    pub(crate) fn numbers(&self) -> (i64, i64) {
        (self.inner.limit, self.inner.current)
    }

    /// What to do; empty where there is nothing to say.
    pub fn hint(&self) -> &str {
        &self.inner.hint
    }

    /// Where the broker says that the request may succeed.
    pub(crate) fn retry(&self) -> Retry {
        self.inner.retry
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.cause)?;
        if let Some((limited, limit, current)) = self.limit() {
            write!(f, " [{limited}: limit {limit}, current {current}]")?;
        }
        if !self.inner.hint.is_empty() {
            write!(f, "; {}", self.inner.hint)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_frame_is_shown_with_cause_limit_current_and_hint() {
        let error = Error::refused(ErrorBody {
            code: Ok(ErrorCode::LimitReached),
            retry: Retry::Later,
            cause: "no room for another topic".into(),
            limited: "topics".into(),
            limit: 10,
            current: 10,
            hint: "delete one".into(),
            field: String::new(),
            position: 0,
            address: String::new(),
        });
        assert_eq!(error.to_string(), "no room for another topic [topics: limit 10, current 10]; delete one");
        assert_eq!(error.code(), Some(ErrorCode::LimitReached));
        assert!(error.is_retriable());
        assert!(!error.is_unknown_outcome());
    }

    #[test]
    fn a_malformed_field_is_named_with_its_place() {
        let error = Error::refused(ErrorBody {
            code: Err(999),
            retry: Retry::Never,
            cause: "cannot be read".into(),
            limited: String::new(),
            limit: 0,
            current: 0,
            hint: String::new(),
            field: "acks".into(),
            position: 44,
            address: String::new(),
        });
        assert_eq!(error.to_string(), "cannot be read (field acks, byte 44)");
        assert_eq!(error.kind(), ErrorKind::RefusedUnknown(999));
        assert_eq!(error.code(), None);
    }
}
