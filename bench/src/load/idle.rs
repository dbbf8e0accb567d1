//! Connections that have said hello and do nothing more.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidegate::ShardId;

use super::link::Link;

/// Connections to a broker, idle until dropped.
#[derive(Debug)]
pub struct Idle {
    links: Vec<Link>,
}

impl Idle {
    /// Opens `count` connections, in turn to each of `shards` shards.
    ///
    /// # Errors
    /// The broker refuses, or this process may not have so many descriptors.
    pub fn open(server: &str, shards: u16, count: usize) -> io::Result<Idle> {
        let shard = |index: usize| ShardId((index % usize::from(shards.max(1))) as u16);
        let links =
            (0..count).map(|index| Link::connect(server, shard(index), 1)).collect::<io::Result<_>>()?;
        Ok(Idle { links })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.links.len()
    }
}

/// Lets this process, and those that it starts later, have as many descriptors as the system allows. Returns how many.
pub fn raise_descriptors() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}
