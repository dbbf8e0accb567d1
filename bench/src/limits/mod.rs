//! What this machine can do without a broker: the [`drive`], [`loopback`] sockets, and the [`cpu`]'s copies and checksums.
//!
//! Every figure of a run is told as a share of the limit that binds it, measured minutes or seconds before on the same
//! machine; a share outlives the machine that it was measured on, a figure does not.

pub mod cpu;
pub mod drive;
pub mod loopback;

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use self::cpu::CpuRates;
use self::drive::{Cell, FlushCell, Target};
use self::loopback::{RoundTrips, StreamCell};

/// All limits of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Direct writes over a zero-filled file, by size and depth.
    pub writes: Vec<Cell>,
    /// Direct reads of it.
    pub reads: Vec<Cell>,
    /// Write and flush, by size.
    pub flushes: Vec<FlushCell>,
    /// Bytes through loopback sockets, one way and both, by message size.
    pub loopback: Vec<StreamCell>,
    /// Small messages there and back.
    pub round_trips: RoundTrips,
    /// Copies and checksums of one core.
    pub cpu: CpuRates,
}

/// A limit and its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// What it is the limit of.
    pub name: String,
    /// MiB in a second.
    pub mib_per_s: f64,
}

/// The three limits that a run can meet, in MiB/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bounds {
    /// Direct writes at the best size and depth.
    pub drive_write: f64,
    /// Direct reads at the best size and depth.
    pub drive_read: f64,
    /// Loopback, one way, at the best message size.
    pub loopback: f64,
}

/// Which limits a run meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meets {
    /// What it stores.
    pub writes: bool,
    /// What it reads from the drive.
    pub reads: bool,
    /// What goes through sockets.
    pub sockets: bool,
}

impl Limits {
    /// Measures all of them, `time` for each figure; the file of `target` is overwritten.
    ///
    /// # Errors
    /// The drive or the sockets fail.
    pub fn measure(target: &Target, time: Duration) -> io::Result<Limits> {
        Ok(Limits {
            writes: target.overwrite_all(time)?,
            reads: target.read_all(time)?,
            flushes: target.write_and_flush_all(time)?,
            loopback: loopback::stream_all(time)?,
            round_trips: loopback::round_trips(64, 200, time)?,
            cpu: cpu::measure(time),
        })
    }

    /// The best of each kind.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            drive_write: drive::best(&self.writes).mib_per_s,
            drive_read: drive::best(&self.reads).mib_per_s,
            loopback: loopback::best(&self.loopback),
        }
    }
}

impl Bounds {
    /// Only what a run may meet, and quickly: for the denominator of one run.
    ///
    /// # Errors
    /// The directory cannot be written, or the drive or the sockets fail.
    pub fn measure(dir: &Path, file_bytes: u64, meets: Meets, time: Duration) -> io::Result<Bounds> {
        let mut bounds = Bounds::default();
        if meets.writes || meets.reads {
            let target = Target::create(dir, file_bytes, &mut |_| {})?;
            bounds = bounds.again(&target, Meets { sockets: false, ..meets }, time)?;
        }
        if meets.sockets {
            bounds.loopback = loopback::best(&loopback::stream_all(time)?);
        }
        Ok(bounds)
    }

    /// The same with a file that is there already.
    ///
    /// # Errors
    /// The drive or the sockets fail.
    pub fn again(mut self, target: &Target, meets: Meets, time: Duration) -> io::Result<Bounds> {
        if meets.writes {
            self.drive_write = drive::best(&target.overwrite_all(time)?).mib_per_s;
        }
        if meets.reads {
            self.drive_read = drive::best(&target.read_all(time)?).mib_per_s;
        }
        if meets.sockets {
            self.loopback = loopback::best(&loopback::stream_all(time)?);
        }
        Ok(self)
    }

    /// The smallest of those that a run meets and that were measured.
    pub fn binding(&self, meets: Meets) -> Option<Limit> {
        let limits = [
            (meets.writes, "drive write", self.drive_write),
            (meets.reads, "drive read", self.drive_read),
            (meets.sockets, "loopback", self.loopback),
        ];
        let met = limits.into_iter().filter(|(met, _, mib_per_s)| *met && *mib_per_s > 0.0);
        met.min_by(|a, b| a.2.total_cmp(&b.2))
            .map(|(_, name, mib_per_s)| Limit { name: name.into(), mib_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_that_applies_binds() {
        let bounds = Bounds { drive_write: 2000.0, drive_read: 900.0, loopback: 1500.0 };
        let name = |meets: Meets| bounds.binding(meets).map(|limit| limit.name);
        assert_eq!(name(Meets { writes: true, sockets: true, reads: false }).as_deref(), Some("loopback"));
        assert_eq!(name(Meets { writes: true, ..Meets::default() }).as_deref(), Some("drive write"));
        assert_eq!(name(Meets { writes: true, reads: true, sockets: true }).as_deref(), Some("drive read"));
        assert_eq!(name(Meets::default()), None);
        let unmeasured = Bounds { loopback: 0.0, ..bounds };
        assert_eq!(unmeasured.binding(Meets { sockets: true, ..Meets::default() }), None);
    }
}
