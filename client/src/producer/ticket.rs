//! How one record's acknowledgement reaches whoever waits for it: all records of a batch share one slot.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate_protocol::ids::Offset;

use super::{Ack, BatchAck};
use crate::Result;

/// The outcome of one batch, once it is there.
#[derive(Debug)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
}

#[derive(Debug)]
enum SlotState {
    /// Those to be woken; each waiting future keeps its place.
    Open(Vec<Option<Waker>>),
    Settled(Result<BatchAck>),
}

impl Slot {
    pub(crate) fn new() -> Slot {
        Slot { state: Mutex::new(SlotState::Open(Vec::new())) }
    }

    /// Sets the outcome and wakes everybody. Returns false if there was one already, which then stays.
    pub(crate) fn settle(&self, outcome: Result<BatchAck>) -> bool {
        let mut state = self.lock();
        let SlotState::Open(wakers) = &mut *state else { return false };
        let wakers = std::mem::take(wakers);
        *state = SlotState::Settled(outcome);
        drop(state);
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
        true
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(&*self.lock(), SlotState::Settled(_))
    }

    /// The outcome, or a wake-up when it is there. `place` belongs to the future that asks.
    fn poll(&self, place: &mut Option<usize>, context: &mut Context<'_>) -> Poll<Result<BatchAck>> {
        let mut state = self.lock();
        let wakers = match &mut *state {
            SlotState::Settled(outcome) => return Poll::Ready(outcome.clone()),
            SlotState::Open(wakers) => wakers,
        };
        match *place {
            Some(place) => wakers[place] = Some(context.waker().clone()),
            None => {
                *place = Some(wakers.len());
                wakers.push(Some(context.waker().clone()));
            }
        }
        Poll::Pending
    }

    fn forget(&self, place: usize) {
        if let SlotState::Open(wakers) = &mut *self.lock() {
            wakers[place] = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the outcome of a whole batch.
#[derive(Debug)]
pub(crate) struct BatchOutcome {
    slot: Arc<Slot>,
    place: Option<usize>,
}

impl BatchOutcome {
    pub(crate) fn new(slot: Arc<Slot>) -> BatchOutcome {
        BatchOutcome { slot, place: None }
    }
}

impl Future for BatchOutcome {
    type Output = Result<BatchAck>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<BatchAck>> {
        let BatchOutcome { slot, place } = &mut *self;
        slot.poll(place, context)
    }
}

impl Drop for BatchOutcome {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.slot.forget(place);
        }
    }
}

/// The acknowledgement to come of one record. Dropping it is fine: the record is sent all the same.
#[derive(Debug)]
pub struct Ticket {
    batch: BatchOutcome,
    index: u32,
}

impl Ticket {
    pub(crate) fn new(slot: Arc<Slot>, index: u32) -> Ticket {
        Ticket { batch: BatchOutcome::new(slot), index }
    }
}

impl Future for Ticket {
    type Output = Result<Ack>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Ack>> {
        let index = i64::from(self.index);
        Pin::new(&mut self.batch).poll(context).map_ok(|ack| Ack {
            partition: ack.partition,
            // With `Acks::None` no record has an offset that is known.
            offset: if ack.base_offset == UNKNOWN_OFFSET {
                UNKNOWN_OFFSET
            } else {
                ack.base_offset.plus(index)
            },
            level: ack.level,
            append_time_ms: ack.append_time_ms,
        })
    }
}

/// What stands for the offset where acknowledgements were not wanted.
pub(crate) const UNKNOWN_OFFSET: Offset = Offset(-1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::tests::sample_ack;
    use crate::{Error, ErrorKind};

    #[tokio::test]
    async fn each_record_of_a_batch_gets_its_own_offset() {
        let slot = Arc::new(Slot::new());
        let (first, third) = (Ticket::new(slot.clone(), 0), Ticket::new(slot.clone(), 2));
        let waiting = tokio::spawn(third);
        tokio::task::yield_now().await;
        assert!(slot.settle(Ok(sample_ack(100))));
        assert_eq!(first.await.expect("acknowledged").offset, Offset(100));
        assert_eq!(waiting.await.expect("joined").expect("acknowledged").offset, Offset(102));
    }

    #[tokio::test]
    async fn the_first_outcome_of_a_batch_stays() {
        let slot = Arc::new(Slot::new());
        assert!(slot.settle(Err(Error::new(ErrorKind::Expired, "late"))));
        assert!(!slot.settle(Ok(sample_ack(1))));
        assert_eq!(Ticket::new(slot, 0).await.expect_err("failed").kind(), ErrorKind::Expired);
    }
}
