//! Which cores a process may use, and pinning a shard's thread to one.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::op::Fault;

/// The cores that this thread may run on, ascending; empty if the kernel does not say.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

/// Keeps this thread on one core.
pub fn pin(cpu: usize) -> Result<(), Fault> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|errno| Fault::new(format!("pin to core {cpu}"), errno as i32))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_can_be_pinned_to_a_core_that_it_may_use() {
        let pinned = std::thread::spawn(|| {
            let last = *super::allowed().last().unwrap();
            super::pin(last).unwrap();
            (super::allowed(), last)
        });
        let (allowed, last) = pinned.join().unwrap();
        assert_eq!(allowed, [last]);
    }
}
