//! Numbers for sockets: a slot, and how often it had been used before, so that no number comes again.

use crate::op::Socket;

/// What a reactor knows of each of its connected sockets.
pub(crate) struct Slots<C> {
    slots: Vec<Slot<C>>,
    free: Vec<u32>,
}

struct Slot<C> {
    used: u32,
    connection: Option<C>,
}

impl<C> Slots<C> {
    pub(crate) fn new() -> Slots<C> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    /// Adds what `make` makes for the number that it will have.
    pub(crate) fn add(&mut self, make: impl FnOnce(Socket) -> C) -> Socket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { used: 0, connection: None });
            u32::try_from(self.slots.len() - 1).expect("descriptors are fewer than 2^31")
        });
        let slot = &mut self.slots[index as usize];
        slot.used += 1;
        let socket = Socket(u64::from(slot.used) << 32 | u64::from(index));
        slot.connection = Some(make(socket));
        socket
    }

    /// None: closed, handed over, or never there.
    pub(crate) fn find(&mut self, socket: Socket) -> Option<&mut C> {
        let slot = self.slots.get_mut(index(socket)).filter(|slot| slot.used == used(socket));
        slot.and_then(|slot| slot.connection.as_mut())
    }

    /// As [`Slots::find`], for an op of the shard.
    ///
    /// # Panics
    /// If it is not there.
    pub(crate) fn get(&mut self, socket: Socket) -> &mut C {
        self.find(socket).unwrap_or_else(|| panic!("{socket:?} is not connected"))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &C> {
        self.slots.iter().filter_map(|slot| slot.connection.as_ref())
    }

    /// Ends the number.
    ///
    /// # Panics
    /// If it is not there.
    pub(crate) fn remove(&mut self, socket: Socket) -> C {
        self.get(socket);
        self.free.push(socket.0 as u32);
        self.slots[index(socket)].connection.take().expect("looked at above")
    }
}

fn index(socket: Socket) -> usize {
    (socket.0 as u32) as usize
}

fn used(socket: Socket) -> u32 {
    (socket.0 >> 32) as u32
}
