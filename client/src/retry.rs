//! How long to wait before trying again: exponential, with full jitter, so that many clients do not come back at once.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// First and longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackoffLimits {
    /// The upper bound of the first wait.
    pub(crate) first: Duration,
    /// The upper bound of every later wait.
    pub(crate) max: Duration,
}

impl Default for BackoffLimits {
    fn default() -> Self {
        BackoffLimits { first: Duration::from_millis(20), max: Duration::from_secs(2) }
    }
}

/// The waits of one series of failures.
#[derive(Debug)]
pub(crate) struct Backoff {
    limits: BackoffLimits,
    failures: u32,
    random: u64,
}

impl Backoff {
    pub(crate) fn new(limits: BackoffLimits) -> Backoff {
        // The standard library's only source of randomness; its quality suffices to spread clients.
        let random = RandomState::new().build_hasher().finish() | 1;
        Backoff { limits, failures: 0, random }
    }

    /// After a success the next series starts with a short wait.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure: between half the bound and the bound.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = self.limits.first.saturating_mul(1 << self.failures.min(20)).min(self.limits.max);
        self.failures = self.failures.saturating_add(1);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = bound / 2;
        half + half.mul_f64((self.random >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_bound_and_start_anew_after_a_success() {
        let limits = BackoffLimits { first: Duration::from_millis(10), max: Duration::from_millis(100) };
        let mut backoff = Backoff::new(limits);
        for bound_ms in [10, 20, 40, 80, 100, 100] {
            let wait = backoff.next();
            assert!(wait >= Duration::from_millis(bound_ms) / 2 && wait <= Duration::from_millis(bound_ms));
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(10));
    }

    #[test]
    fn two_clients_do_not_wait_equally_long() {
        let limits = BackoffLimits::default();
        let waits = |mut backoff: Backoff| (0..8).map(|_| backoff.next()).collect::<Vec<_>>();
        assert_ne!(waits(Backoff::new(limits)), waits(Backoff::new(limits)));
    }
}
