//! Why bytes of a data directory cannot be what they should be.

/// The version of every structure of a data directory.
pub const FORMAT: u16 = 1;

/// Bytes that are not what their place should hold. Not necessarily a fault: the end of a journal looks like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// The structure and field, by its name in docs/DISK_FORMAT.md.
    pub what: &'static str,
    /// Where it lies, in bytes from the start of what was read.
    pub at: usize,
    /// What is wrong with it.
    pub kind: DiskErrorKind,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskErrorKind {
    /// The bytes end before it does.
    Short,
    /// A checksum does not fit its bytes.
    Checksum,
    /// A value that is never written.
    Value,
    /// It is sound, but belongs to something else.
    Foreign,
    /// It is whole, but of this format, which this code does not know.
    Format(u16),
}

impl DiskError {
    /// The bytes end before `what` does.
    pub fn short(what: &'static str, at: usize) -> DiskError {
        DiskError { what, at, kind: DiskErrorKind::Short }
    }

    /// The checksum of `what` is wrong.
    pub fn crc(what: &'static str, at: usize) -> DiskError {
        DiskError { what, at, kind: DiskErrorKind::Checksum }
    }

    /// `what` holds a value that is never written.
    pub fn bad(what: &'static str, at: usize) -> DiskError {
        DiskError { what, at, kind: DiskErrorKind::Value }
    }

    /// `what` is whole, but of a format that this code does not know.
    pub fn unknown_format(what: &'static str, format: u16) -> DiskError {
        DiskError { what, at: 4, kind: DiskErrorKind::Format(format) }
    }

    /// `what` is that of something else.
    pub fn foreign(what: &'static str, at: usize) -> DiskError {
        DiskError { what, at, kind: DiskErrorKind::Foreign }
    }
}

impl std::fmt::Display for DiskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            DiskErrorKind::Short => "is cut short",
            DiskErrorKind::Checksum => "has a wrong checksum",
            DiskErrorKind::Value => "holds a value that is never written",
            DiskErrorKind::Foreign => "belongs to something else",
            DiskErrorKind::Format(found) => {
                return write!(f, "{}: format {found}, this build reads up to {FORMAT}", self.what);
            }
        };
        write!(f, "{} {kind} (byte {})", self.what, self.at)
    }
}

impl std::error::Error for DiskError {}
