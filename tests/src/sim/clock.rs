//! Virtual time: it moves only from one event to the next.

use tidegate_reactor::op::Now;

/// The time of a simulated machine, across all starts of the broker on it.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Nanoseconds since the run began; never falls.
    now_ns: u64,
    /// When the reactor that runs now was started.
    started_ns: u64,
    /// What the wall clock showed when the run began, moved by every jump.
    wall_base_ms: i64,
}

impl Clock {
    /// A run that begins on some day of 2026.
    pub fn new() -> Clock {
        Clock { now_ns: 0, started_ns: 0, wall_base_ms: 1_780_000_000_000 }
    }

    /// Nanoseconds since the run began.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What a turn of the running reactor is told.
    pub fn now(&self) -> Now {
        let wall_ms = self.wall_base_ms + (self.now_ns / 1_000_000) as i64;
        Now { mono_ns: self.now_ns - self.started_ns, wall_ms }
    }

    /// The run's time at which the reactor's monotonic clock shows `mono_ns`.
    pub fn at_mono(&self, mono_ns: u64) -> u64 {
        self.started_ns.saturating_add(mono_ns)
    }

    /// Moves on to `to_ns`.
    ///
    /// # Panics
    /// If that lies in the past.
    pub fn advance(&mut self, to_ns: u64) {
        assert!(to_ns >= self.now_ns, "time would fall from {} to {to_ns}", self.now_ns);
        self.now_ns = to_ns;
    }

    /// A reactor starts: its monotonic clock begins at 0.
    pub fn restart(&mut self) {
        self.started_ns = self.now_ns;
    }

    /// The wall clock is set forward or back by `ms`.
    pub fn jump_wall(&mut self, ms: i64) {
        self.wall_base_ms += ms;
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}
