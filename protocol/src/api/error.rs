//! The body of an error frame: cause, place, limit, current value, what to do.

use crate::error_code::{ErrorCode, Retry};

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorBody {
    /// The stable number; one that this version does not know is kept as it came.
    pub code: Result<ErrorCode, u16>,
    /// Whether, and where, the same request may succeed.
    pub retry: Retry,
    /// What happened, in a sentence, with the place.
    pub cause: String,
    /// What was limited; empty where nothing was.
    pub limited: String,
    /// The limit; 0 where there is none.
    pub limit: i64,
    /// The value that met it.
    pub current: i64,
    /// What to do.
    pub hint: String,
    /// The field that could not be read; empty where not malformed.
    pub field: String,
    /// Its place in the frame, in bytes.
    pub position: u32,
}
