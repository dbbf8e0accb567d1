//! `credit`: an absolute byte limit that only rises; a repeated or lost update does no harm. No reply.

use super::subscribe::SubscriptionId;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
