//! Why a request was not done: stable numbers, who is at fault, and whether trying again makes sense.

/// Whether, and where, the same request may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Retry {
    /// The same request will be refused again.
    Never = 0,
    /// The same request may be accepted later.
    Later = 1,
    /// Another node or shard serves it: refresh the metadata first.
    OtherNode = 2,
}

impl Retry {
    /// The advice of a number on the wire.
    pub fn from_number(number: u8) -> Option<Retry> {
        match number {
            0 => Some(Retry::Never),
            1 => Some(Retry::Later),
            2 => Some(Retry::OtherNode),
            _ => None,
        }
    }
}

/// Who has to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The request.
    Caller,
    /// The broker or what it stands on.
    Broker,
    /// Nobody: an ordinary state of the world.
    Nobody,
}

macro_rules! error_codes {
    ($($name:ident = $number:literal, $blame:ident, $retry:ident, $doc:literal;)*) => {
        /// A stable number of docs/WIRE_FORMAT.md; 0 is no error and never on the wire as one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode {
            $(#[doc = $doc] $name = $number,)*
        }

        impl ErrorCode {
            /// All codes, by number.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code of a number, if this version knows it.
            pub fn from_number(number: u16) -> Option<ErrorCode> {
                match number {
                    $($number => Some(ErrorCode::$name),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            pub fn number(self) -> u16 {
                self as u16
            }

            /// Who has to change something.
            pub fn blame(self) -> Blame {
                match self { $(ErrorCode::$name => Blame::$blame,)* }
            }

            /// Whether trying again makes sense.
            pub fn retry(self) -> Retry {
                match self { $(ErrorCode::$name => Retry::$retry,)* }
            }

            /// What it means, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(ErrorCode::$name => $doc,)* }
            }
        }
    };
}

error_codes! {
    MalformedFrame = 1, Caller, Never, "A frame or a field in it cannot be read; the place is in the error.";
    UnsupportedVersion = 2, Caller, Never, "The api or its version is unknown; the supported range is in the error.";
    FrameTooLarge = 3, Caller, Never, "The frame is longer than the limit.";
    NotReady = 4, Broker, Later, "The broker is starting or stopping.";
    HelloNeeded = 5, Caller, Never, "The first frame of a connection is hello, and only the first.";
    InvalidRequest = 6, Caller, Never, "The request is readable but makes no sense; the field is in the error.";
    BatchCorrupt = 10, Caller, Never, "The checksum of a batch is wrong.";
    BatchInvalid = 11, Caller, Never, "A batch breaks a rule of the format.";
    BatchTooLarge = 12, Caller, Never, "A batch is larger than the limit.";
    UnknownTopic = 20, Caller, Never, "There is no topic of this name or id.";
    UnknownPartition = 21, Caller, Never, "The topic has no such partition.";
    StaleEpoch = 22, Nobody, OtherNode, "The leader epoch is not the current one, which is in the error.";
    OffsetOutOfRange = 23, Nobody, Never, "The offset is below the start or above the end; both are in the error.";
    TopicExists = 24, Caller, Never, "A topic of this name exists already.";
    InvalidTopic = 25, Caller, Never, "A topic's name or a setting of it breaks a rule, named in the error.";
    WrongShard = 26, Nobody, OtherNode, "Another shard owns the partition.";
    OutOfSequence = 30, Caller, Never, "The producer's sequence has a gap; the expected one is in the error.";
    UnknownProducer = 31, Nobody, Never, "The broker does not know this producer (any more); it takes a new id.";
    StaleProducer = 32, Caller, Never, "A newer epoch of this producer exists.";
    OutOfCredit = 40, Caller, Later, "More bytes were sent than the credit allowed.";
    LimitReached = 41, Broker, Later, "A cap of the broker is reached; which one is in the error.";
    DiskFull = 50, Broker, Later, "The drive has no room; reads, commits and deletes go on.";
    UnknownOutcome = 51, Broker, Never, "Whether the data is stored is not known; after a restart of the broker it will be.";
    ReadOnly = 52, Broker, Never, "The shard takes no writes; the reason is in the error.";
    DataDamaged = 53, Broker, Never, "Stored data in this range is damaged; file and offsets are in the error.";
    DurabilityNotAvailable = 54, Broker, Never, "The storage cannot flush, so this level cannot be met.";
    Diverged = 60, Nobody, Never, "The reader's epoch and offset are not in this log; where they parted is in the error.";
}
