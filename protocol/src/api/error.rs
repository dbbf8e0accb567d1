//! The body of an error frame: cause, place, limit, current value, what to do.

use tidegate_schema::wire;

use super::table::{put_table, take_table_of_any};
use crate::code::{DecodeError, DecodeErrorKind};
use crate::error_code::{ErrorCode, Retry};
use crate::frame::{Frame, Kind};

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
    /// Of `WrongShard`: where the owner can be reached, `host:port`; an empty host means the address that the client has
    /// connected to. Else empty.
    pub address: String,
}

impl ErrorBody {
    /// An error with its code's own retry advice and meaning as its cause; the rest is filled in by struct update.
    pub fn of(code: ErrorCode) -> ErrorBody {
        ErrorBody {
            code: Ok(code),
            retry: code.retry(),
            cause: code.meaning().to_owned(),
            limited: String::new(),
            limit: 0,
            current: 0,
            hint: String::new(),
            field: String::new(),
            position: 0,
            address: String::new(),
        }
    }

    /// What to answer to a frame that cannot be read.
    pub fn malformed(error: &DecodeError) -> ErrorBody {
        let (limited, limit, current) = match error.kind {
            DecodeErrorKind::AboveLimit { limit, found } => (error.field, saturate(limit), saturate(found)),
            DecodeErrorKind::BelowLimit { limit, found } => (error.field, limit, found),
            DecodeErrorKind::Truncated { needed, left } => (error.field, saturate(left), saturate(needed)),
            _ => ("", 0, 0),
        };
        let code = match (error.field, error.kind) {
            ("length", DecodeErrorKind::AboveLimit { .. }) => ErrorCode::FrameTooLarge,
            _ => ErrorCode::MalformedFrame,
        };
        ErrorBody {
            cause: format!("{} {error}.", code.meaning()),
            limited: limited.to_owned(),
            limit,
            current,
            field: error.field.to_owned(),
            position: u32::try_from(error.at).unwrap_or(u32::MAX),
            ..ErrorBody::of(code)
        }
    }

    /// Appends the whole frame that answers a request of this api and correlation, known or not.
    pub fn encode(&self, api_number: u8, correlation: u32, out: &mut Vec<u8>) {
        put_table(api_number, Kind::Error, correlation, out, |b| {
            let args = wire::ErrorArgs {
                code: self.code.map_or_else(|number| number, ErrorCode::number),
                retry: self.retry as u8,
                cause: Some(b.create_string(&self.cause)),
                limited: Some(b.create_string(&self.limited)),
                limit: self.limit,
                current: self.current,
                hint: Some(b.create_string(&self.hint)),
                field: Some(b.create_string(&self.field)),
                position: self.position,
                address: (!self.address.is_empty()).then(|| b.create_string(&self.address)),
            };
            wire::Error::create(b, &args).as_union_value()
        });
    }

    /// Reads the body of an error frame of any api.
    pub fn decode(frame: &Frame<'_>) -> Result<ErrorBody, DecodeError> {
        if frame.kind != Kind::Error {
            let kind = DecodeErrorKind::Unknown { found: i64::from(frame.kind.flags()) };
            return Err(DecodeError::new("flags", 6, kind));
        }
        let table = take_table_of_any::<wire::Error<'_>>(frame)?;
        let at = frame.body_at();
        if table.code() == 0 {
            return Err(DecodeError::rule("code", at, "is 0, which is no error"));
        }
        let retry = Retry::from_number(table.retry()).ok_or_else(|| {
            DecodeError::new("retry", at, DecodeErrorKind::Unknown { found: i64::from(table.retry()) })
        })?;
        Ok(ErrorBody {
            code: ErrorCode::from_number(table.code()).ok_or(table.code()),
            retry,
            cause: table.cause().to_owned(),
            limited: table.limited().to_owned(),
            limit: table.limit(),
            current: table.current(),
            hint: table.hint().to_owned(),
            field: table.field().to_owned(),
            position: table.position(),
            address: table.address().unwrap_or_default().to_owned(),
        })
    }
}

fn saturate(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl std::fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            Ok(code) => write!(f, "{code:?}: {}", self.cause)?,
            Err(number) => write!(f, "error {number}: {}", self.cause)?,
        }
        if !self.limited.is_empty() {
            write!(f, " ({} is {}, the limit is {})", self.limited, self.current, self.limit)?;
        }
        if !self.hint.is_empty() {
            write!(f, " {}", self.hint)?;
        }
        Ok(())
    }
}
