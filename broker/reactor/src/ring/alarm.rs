//! How other threads wake a shard: by an eventfd, and only when it sleeps or is about to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::op::Fault;

/// The alarm of one shard.
pub(super) struct Alarm {
    shared: Arc<Shared>,
}

struct Shared {
    asleep: AtomicBool,
    stroke: EventFd,
}

impl Alarm {
    /// # Errors
    /// If no descriptor is left.
    pub(super) fn new() -> Result<Alarm, Fault> {
        let stroke = EventFd::from_flags(EfdFlags::EFD_CLOEXEC);
        let stroke = stroke.map_err(|e| Fault::of("make an eventfd", &io::Error::from(e)))?;
        Ok(Alarm { shared: Arc::new(Shared { asleep: AtomicBool::new(false), stroke }) })
    }

    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.shared))
    }

    /// Readable after a stroke.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.stroke.as_fd()
    }

    /// From now on a stroke is heard. What other threads may have left before has to be looked for after this.
    pub(super) fn about_to_sleep(&self) {
        self.shared.asleep.store(true, Ordering::SeqCst);
    }

    /// Strokes are not needed.
    pub(super) fn awake(&self) {
        self.shared.asleep.store(false, Ordering::SeqCst);
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Ordered after what the shard is woken for: either it is seen asleep here, or it sees that before it sleeps.
        if self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only at 2^64 strokes.
            let _ = self.stroke.write(1);
        }
    }
}
