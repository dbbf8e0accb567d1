//! The highest rate that keeps a bound on p99: a climb to see the curve, then halving.

use serde::Serialize;

/// One rate that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Records due in a second.
    pub rate: f64,
    /// Records acknowledged in a second.
    pub reached: f64,
    /// Latency from the intended send, in microseconds.
    pub p50_us: u64,
    /// As above.
    pub p99_us: u64,
    /// As above.
    pub p999_us: u64,
}

/// Shares of the rate without a bound that the climb tries.
const CLIMB: [f64; 6] = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95];

/// A rate counts as kept from this share of it on; below, the broker falls behind for good, and any latency is only a
/// matter of how long the run lasts.
const REACHED_SHARE: f64 = 0.98;

impl Step {
    /// Whether the rate was kept within the bound.
    pub fn holds(&self, p99_us_max: u64) -> bool {
        self.p99_us <= p99_us_max && self.reached >= self.rate * REACHED_SHARE
    }
}

/// Tries rates below `unbounded`, the rate of a run as fast as it goes, with `probe`; the steps come in the order of
/// their rates. The first that does not hold ends the climb; `halvings` steps between it and the last that held follow.
///
/// # Errors
/// That of a probe.
pub fn find_max<E>(
    unbounded: f64,
    p99_us_max: u64,
    halvings: u32,
    mut probe: impl FnMut(f64) -> Result<Step, E>,
) -> Result<Vec<Step>, E> {
    let mut steps = Vec::new();
    let (mut low, mut high) = (0.0, unbounded);
    for share in CLIMB {
        let step = probe(unbounded * share)?;
        steps.push(step);
        if !step.holds(p99_us_max) {
            high = step.rate;
            break;
        }
        low = step.rate;
    }
    for _ in 0..halvings {
        let step = probe(f64::midpoint(low, high))?;
        steps.push(step);
        if step.holds(p99_us_max) { low = step.rate } else { high = step.rate }
    }
    steps.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    Ok(steps)
}

/// The highest rate among them that was kept within the bound.
pub fn best(steps: &[Step], p99_us_max: u64) -> Option<Step> {
    steps.iter().copied().filter(|step| step.holds(p99_us_max)).max_by(|a, b| a.rate.total_cmp(&b.rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of one queue: latency rises with 1 / (1 - load), as in M/M/1, and no more than `capacity` goes through.
    fn model(capacity: f64) -> impl FnMut(f64) -> Result<Step, ()> {
        move |rate| {
            let load = (rate / capacity).min(0.9999);
            let mean_us = 100.0 / (1.0 - load);
            let quantile = |q: f64| (mean_us * -(1.0 - q).ln()) as u64;
            Ok(Step {
                rate,
                reached: rate.min(capacity),
                p50_us: quantile(0.5),
                p99_us: quantile(0.99),
                p999_us: quantile(0.999),
            })
        }
    }

    #[test]
    fn the_search_comes_close_to_where_the_bound_lies() {
        // p99 = 4.605 * 100 / (1 - load) = 2,302 us at a load of 0.8.
        let steps = find_max(1e6, 2_302, 6, model(1e6)).unwrap();
        let best = best(&steps, 2_302).unwrap();
        assert!((0.79e6..=0.8e6).contains(&best.rate), "{best:?}");
        assert!(
            steps.windows(2).all(|pair| pair[0].rate <= pair[1].rate && pair[0].p99_us <= pair[1].p99_us)
        );
    }

    #[test]
    fn a_rate_that_is_not_reached_does_not_hold_whatever_its_latency() {
        let steps = find_max(2e6, u64::MAX, 6, model(1e6)).unwrap();
        let best = best(&steps, u64::MAX).unwrap();
        assert!(best.rate <= 1e6 / REACHED_SHARE && best.rate > 0.95e6, "{best:?}");
    }

    #[test]
    fn a_bound_that_nothing_keeps_has_no_best() {
        let steps = find_max(1e6, 1, 3, model(1e6)).unwrap();
        assert_eq!((steps.len(), best(&steps, 1)), (4, None));
    }
}
