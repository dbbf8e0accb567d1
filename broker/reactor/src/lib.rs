//! The thin driver under a shard.
//!
//! A shard is a deterministic state machine, `turn(now, events) -> ops`. A reactor owns the thread and
//! the loop around it: collect completions, call the turn, submit its ops, wait. Read in this order:
//!
//! 1. [`op`]: the contract, two closed enums of plain data;
//! 2. [`buffer`]: who owns memory, and when it may be shared;
//! 3. [`disk`]: blocking file access for the time before a shard turns (start, recovery);
//! 4. [`device`]: why a failed flush belongs to the device and not to the file;
//! 5. [`mailbox`]: letters between shards, and from the control threads to a shard;
//! 6. [`setup`]: what every reactor is given;
//! 7. [`glommio`]: the first reactor;
//! 8. [`ring`]: the second one, on io_uring itself;
//! 9. [`facts`]: what is known about the storage under a directory, and its lock.

pub mod buffer;
mod clock;
pub mod cpu;
pub mod device;
pub mod disk;
mod doubts;
pub mod facts;
mod file;
pub mod glommio;
pub mod mailbox;
pub mod net;
pub mod op;
pub mod probe;
pub mod ring;
pub mod setup;
mod slots;
