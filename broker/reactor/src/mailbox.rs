//! Letters between threads: shard to shard through one ring per ordered pair, control to shard through an inbox.
//!
//! A full ring never blocks a turn: what does not fit waits on the sender's side and goes out in a later turn. The credit of
//! a mailbox is the sender's own count of letters that are not taken yet; each `MailTaken` gives one back.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use crate::op::{Letter, ShardIndex};

/// Letters that lie in one ring at most; more wait with their sender.
pub const RING_LETTERS: usize = 1024;

/// What travels from shard to shard.
#[derive(Debug)]
pub enum Parcel {
    /// A letter, whose taking is told to the sender.
    Mail(Letter),
    /// A connection that changes its shard, and what travels with it.
    Socket(OwnedFd, Letter),
}

/// What the control threads ask of a reactor.
#[derive(Debug)]
pub enum Order {
    /// Goes to the shard, unopened.
    Letter(Letter),
    /// Accept connections from this listener from now on.
    Listen(TcpListener),
    /// Close the listener, if there is one.
    StopListening,
}

/// Wakes the thread of one shard; many strokes before it looks count once.
#[derive(Debug, Default)]
pub struct Bell {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    /// Wakes the shard, or lets its next wait end at once.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst)
            && let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner)
        {
            waker.wake_by_ref();
        }
    }

    /// Wakes the shard even if it has been rung before and should be awake: for a reactor that may have slept through it.
    pub(crate) fn ring_again(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }

    /// How this shard is woken from now on; `None` when it ends. On the shard's own thread.
    pub fn set_waker(&self, waker: Option<Waker>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker;
    }

    /// To be called before the shard looks into its mailboxes: a later stroke wakes it again.
    pub fn silence(&self) {
        self.rung.store(false, Ordering::SeqCst);
    }

    /// Whether it has been rung since it was silenced.
    pub fn has_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }
}

/// The way for orders from the control threads to one shard.
#[derive(Clone, Debug)]
pub struct Door {
    inbox: Arc<Mutex<Vec<Order>>>,
    bell: Arc<Bell>,
}

impl Door {
    /// Gives the shard an order. Never blocks for long; orders arrive in the order in which they were given.
    pub fn give(&self, order: Order) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.bell.ring();
    }

    /// The shard's bell.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

/// One shard's ends of all mailboxes.
#[derive(Debug)]
pub struct Post {
    outgoing: Vec<Option<Outgoing>>,
    incoming: Vec<Option<Incoming>>,
    door: Door,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer<Parcel>,
    waiting: VecDeque<Parcel>,
    taken: Arc<AtomicU64>,
    taken_told: u64,
    bell: Arc<Bell>,
    put: bool,
}

#[derive(Debug)]
struct Incoming {
    ring: Consumer<Parcel>,
    taken: Arc<AtomicU64>,
    bell: Arc<Bell>,
}

/// What [`Post::collect`] finds, in order of arrival per sender.
#[derive(Debug)]
pub enum Delivery {
    /// From another shard.
    Parcel {
        /// Who sent it.
        from: ShardIndex,
        /// What came.
        parcel: Parcel,
    },
    /// A letter that this shard had sent has been taken.
    Taken {
        /// By whom.
        by: ShardIndex,
    },
    /// From the control threads.
    Order(Order),
}

impl Post {
    /// The mailboxes of `shards` shards, one element a shard.
    pub fn mesh(shards: usize) -> Vec<Post> {
        let mut posts: Vec<Post> = (0..shards)
            .map(|_| Post {
                outgoing: (0..shards).map(|_| None).collect(),
                incoming: (0..shards).map(|_| None).collect(),
                door: Door { inbox: Arc::default(), bell: Arc::default() },
            })
            .collect();
        for from in 0..shards {
            for to in (0..shards).filter(|to| *to != from) {
                let (producer, consumer) = RingBuffer::new(RING_LETTERS);
                let taken = Arc::new(AtomicU64::new(0));
                let bell = Arc::clone(&posts[to].door.bell);
                posts[from].outgoing[to] = Some(Outgoing {
                    ring: producer,
                    waiting: VecDeque::new(),
                    taken: Arc::clone(&taken),
                    taken_told: 0,
                    bell,
                    put: false,
                });
                let bell = Arc::clone(&posts[from].door.bell);
                posts[to].incoming[from] = Some(Incoming { ring: consumer, taken, bell });
            }
        }
        posts
    }

    /// The way for orders to this shard.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Puts a parcel on its way; [`Post::dispatch`] wakes the receiver. Gives it back if that shard has ended.
    ///
    /// # Panics
    /// If `to` is this shard or none.
    pub fn put(&mut self, to: ShardIndex, parcel: Parcel) -> Result<(), Parcel> {
        let lane = self.outgoing.get_mut(usize::from(to.0)).and_then(Option::as_mut);
        let lane = lane.unwrap_or_else(|| panic!("mail to {to:?}, which is not another shard"));
        if lane.ring.is_abandoned() {
            return Err(parcel);
        }
        lane.waiting.push_back(parcel);
        Ok(())
    }

    /// Moves what waits into the rings, as far as they have room, and wakes the receivers.
    pub fn dispatch(&mut self) {
        for lane in self.outgoing.iter_mut().flatten() {
            while let Some(parcel) = lane.waiting.pop_front() {
                match lane.ring.push(parcel) {
                    Ok(()) => lane.put = true,
                    Err(PushError::Full(parcel)) => {
                        lane.waiting.push_front(parcel);
                        break;
                    }
                }
            }
            if std::mem::take(&mut lane.put) {
                lane.bell.ring();
            }
        }
    }

    /// Hands over everything that has arrived, at most a ring of letters per sender.
    pub fn collect(&mut self, mut take: impl FnMut(Delivery)) {
        self.door.bell.silence();
        let orders = std::mem::take(&mut *self.door.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        orders.into_iter().for_each(|order| take(Delivery::Order(order)));

        for (from, lane) in self.incoming.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            let (mut parcels, mut letters) = (0, 0);
            while parcels < RING_LETTERS
                && let Ok(parcel) = lane.ring.pop()
            {
                parcels += 1;
                letters += u64::from(matches!(parcel, Parcel::Mail(_)));
                take(Delivery::Parcel { from: ShardIndex(from as u16), parcel });
            }
            if letters > 0 {
                lane.taken.fetch_add(letters, Ordering::Release);
            }
            // Also after sockets alone: the sender may have more that waits for room.
            if parcels > 0 {
                lane.bell.ring();
            }
        }

        for (to, lane) in self.outgoing.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            let taken = lane.taken.load(Ordering::Acquire);
            for _ in lane.taken_told..taken {
                take(Delivery::Taken { by: ShardIndex(to as u16) });
            }
            lane.taken_told = taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(number: usize) -> Parcel {
        Parcel::Mail(Box::new(number))
    }

    fn number(delivery: Delivery) -> Option<usize> {
        match delivery {
            Delivery::Parcel { parcel: Parcel::Mail(letter), .. } => letter.downcast().ok().map(|n| *n),
            _ => None,
        }
    }

    #[test]
    fn more_letters_than_the_ring_holds_wait_with_the_sender_and_keep_their_order() {
        let mut posts = Post::mesh(2);
        let mut b = posts.pop().unwrap();
        let mut a = posts.pop().unwrap();
        let total = 3 * RING_LETTERS + 7;
        for n in 0..total {
            a.put(ShardIndex(1), letter(n)).unwrap();
        }
        let (mut got, mut taken) = (Vec::new(), 0);
        for _ in 0..4 {
            a.dispatch();
            b.collect(|d| got.extend(number(d)));
            a.collect(|d| taken += usize::from(matches!(d, Delivery::Taken { by: ShardIndex(1) })));
        }
        assert_eq!(got, (0..total).collect::<Vec<_>>());
        assert_eq!(taken, total, "each letter gives its credit back once");
    }

    #[test]
    fn a_parcel_for_a_shard_that_has_ended_comes_back() {
        let mut posts = Post::mesh(2);
        drop(posts.pop());
        assert!(posts[0].put(ShardIndex(1), letter(1)).is_err());
    }

    #[test]
    fn a_stroke_after_the_look_is_not_lost() {
        let posts = Post::mesh(2);
        let bell = posts[0].door().bell();
        bell.ring();
        bell.silence();
        assert!(!bell.has_rung());
        posts[0].door().give(Order::StopListening);
        assert!(bell.has_rung());
    }
}
