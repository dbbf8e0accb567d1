//! `credit`: an absolute byte limit that only rises; a repeated or lost update does no harm. No reply.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::subscribe::SubscriptionId;
use super::{Api, put_whole, reserved, take_whole, unknown};
use crate::code::DecodeError;
use crate::frame::{Frame, Kind, PREFIX_LEN};

/// Whose bytes are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Produce frames of this connection, whole frames counted with their length field; granted by the broker.
    Produce,
    /// `data` bodies of a subscription; granted by the client.
    Subscription(SubscriptionId),
    /// All `data` bodies of the connection, a ceiling over its subscriptions; granted by the client.
    Connection,
}

/// Why the limit does not grow faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Nothing holds it back.
    None = 0,
    /// The drive.
    Disk = 1,
    /// A replica.
    Replica = 2,
    /// The shard's memory.
    Memory = 3,
    /// A quota.
    Quota = 4,
    /// The consumer's application.
    Consumer = 5,
    /// The drive has no room: unlike a busy one it gets none by itself.
    DiskFull = 6,
}

/// Raise a limit, or ask the other side to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Whose.
    pub scope: Scope,
    /// Bytes that may be sent in all since the connection or subscription began; from the sending side of the bytes: the
    /// limit that it knows.
    pub limit: u64,
    /// Why not more.
    pub reason: Reason,
    /// From the sending side of the bytes: how many more bytes wait. 0: not asked.
    pub wanted: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    scope: u8,
    reason: u8,
    reserved: U16,
    subscription: U32,
    limit: U64,
    wanted: U64,
}

const SCOPE_PRODUCE: u8 = 0;
const SCOPE_SUBSCRIPTION: u8 = 1;
const SCOPE_CONNECTION: u8 = 2;

impl Reason {
    /// The reason of a number on the wire.
    pub fn from_number(number: u8) -> Option<Reason> {
        match number {
            0 => Some(Reason::None),
            1 => Some(Reason::Disk),
            2 => Some(Reason::Replica),
            3 => Some(Reason::Memory),
            4 => Some(Reason::Quota),
            5 => Some(Reason::Consumer),
            6 => Some(Reason::DiskFull),
            _ => None,
        }
    }

    /// What whoever waits for the limit to rise waits for.
    pub fn meaning(self) -> &'static str {
        match self {
            Reason::None => "nothing",
            Reason::Disk => "the broker's drive, which is busy",
            Reason::Replica => "a replica",
            Reason::Memory => "memory of the broker that is in use",
            Reason::Quota => "a quota",
            Reason::Consumer => "the consumer's application",
            Reason::DiskFull => "room on the broker's drive, which is full",
        }
    }

    /// What to do if it takes too long.
    pub fn hint(self) -> &'static str {
        match self {
            Reason::None => "",
            Reason::Disk => {
                "it goes on by itself; if that takes too long, see `tg status` and the broker's log"
            }
            Reason::Replica => "it goes on when the replica has caught up",
            Reason::Memory => {
                "it goes on by itself; if that takes too long, look for producers that hold credit in `tg status`"
            }
            Reason::Quota => "it goes on by itself; raise the quota if that is too slow",
            Reason::Consumer => "it goes on when the application has taken what it was sent",
            Reason::DiskFull => "free space, shorten retention or delete records; it goes on by itself then",
        }
    }
}

impl Credit {
    /// Appends the whole frame; its correlation is 0.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (scope, subscription) = match self.scope {
            Scope::Produce => (SCOPE_PRODUCE, 0),
            Scope::Subscription(subscription) => (SCOPE_SUBSCRIPTION, subscription.0),
            Scope::Connection => (SCOPE_CONNECTION, 0),
        };
        let head = Head {
            scope,
            reason: self.reason as u8,
            reserved: U16::ZERO,
            subscription: U32::new(subscription),
            limit: U64::new(self.limit),
            wanted: U64::new(self.wanted),
        };
        put_whole(Api::Credit, Kind::Request, 0, &head, out);
    }

    /// Reads the frame.
    pub fn decode(frame: &Frame<'_>) -> Result<Credit, DecodeError> {
        let head: &Head = take_whole(frame, Api::Credit, Kind::Request)?;
        reserved("reserved", PREFIX_LEN + 2, head.reserved.as_bytes())?;
        let scope = match head.scope {
            SCOPE_SUBSCRIPTION => Scope::Subscription(SubscriptionId(head.subscription.get())),
            SCOPE_PRODUCE | SCOPE_CONNECTION => {
                reserved("subscription", PREFIX_LEN + 4, head.subscription.as_bytes())?;
                if head.scope == SCOPE_PRODUCE { Scope::Produce } else { Scope::Connection }
            }
            found => return Err(unknown("scope", PREFIX_LEN, found)),
        };
        Ok(Credit {
            scope,
            limit: head.limit.get(),
            reason: Reason::from_number(head.reason).ok_or(unknown("reason", PREFIX_LEN + 1, head.reason))?,
            wanted: head.wanted.get(),
        })
    }
}
