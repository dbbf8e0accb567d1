//! Crash states: what a drive may hold after a power cut, built from what a recorder saw.
//!
//! The state at flush `k` holds every write before it. Of the writes between it and the next flush each 4 KiB sector is
//! old or new, or, on a drive that does so, torn in 512-byte pieces. Nothing after the next flush is in: such a state could
//! not exist without that flush's writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::overlay::Overlay;
use super::recorder::Recorded;
use crate::sim::random::Random;

const SECTOR: usize = 4096;
const PIECE: usize = 512;
/// Of the one block that ext4 writes in place past its journal, with a checksum over two pieces: torn, it cannot be mounted
/// before e2fsck has taken a copy of it, whatever lies on it.
const SUPERBLOCK_AT: u64 = 0;

/// What a drive does to the sector that it was just writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sectors {
    /// Leaves any of its 512-byte pieces old.
    Torn,
    /// Keeps it old, or writes all of its 4 KiB.
    Whole,
}

/// Walks a recording from flush to flush, keeping an image of what is durable so far.
pub struct States<'a> {
    records: &'a [Recorded],
    durable: Arc<File>,
    /// Records before this are in the durable image.
    applied: usize,
    /// Flushes before `applied`.
    flush: u64,
}

impl<'a> States<'a> {
    /// Starts at the state before the first record, a copy of `base` at `durable_path`.
    pub fn new(base: &Path, durable_path: &Path, records: &'a [Recorded]) -> io::Result<States<'a>> {
        copy_sparse(base, durable_path)?;
        let durable = Arc::new(OpenOptions::new().read(true).write(true).open(durable_path)?);
        Ok(States { records, durable, applied: 0, flush: 0 })
    }

    /// Moves forward until `flush` flushes have taken effect. No state that was built before may be in use.
    ///
    /// # Panics
    /// If that lies behind, or past the end.
    pub fn advance_to(&mut self, flush: u64) -> io::Result<()> {
        assert!(flush >= self.flush, "states are walked forwards: at {}, asked for {flush}", self.flush);
        while self.flush < flush {
            match &self.records[self.applied] {
                Recorded::Write { at, data } => self.durable.write_all_at(data, *at)?,
                Recorded::Flush => self.flush += 1,
            }
            self.applied += 1;
        }
        Ok(())
    }

    /// The crash state of the present flush and `seed`: valid until the next [`States::advance_to`].
    pub fn build(&self, sectors: Sectors, seed: u64) -> io::Result<(Overlay, Pending)> {
        let mut state = Overlay::new(Arc::clone(&self.durable))?;
        let mut random = Random::new(seed ^ self.flush.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pending = tear(&mut state, &self.records[self.applied..], sectors, &mut random)?;
        Ok((state, pending))
    }
}

/// Flushes in a recording.
pub fn flushes(records: &[Recorded]) -> u64 {
    records.iter().filter(|r| **r == Recorded::Flush).count() as u64
}

/// Turns the state at the begin of a recording into a crash state at its flush number `flush`.
pub fn crash_at(
    state: &mut Overlay,
    records: &[Recorded],
    flush: u64,
    sectors: Sectors,
    random: &mut Random,
) -> io::Result<Pending> {
    let applied = durable_at(state, records, flush)?;
    tear(state, &records[applied..], sectors, random)
}

/// Turns the state at the begin of a recording into what its first `flush` flushes have made durable, and nothing else. Returns
/// how many records that were.
pub fn durable_at(state: &mut Overlay, records: &[Recorded], flush: u64) -> io::Result<usize> {
    let mut passed = 0;
    for (i, record) in records.iter().enumerate() {
        if passed == flush {
            return Ok(i);
        }
        match record {
            Recorded::Write { at, data } => state.write_at(data, *at)?,
            Recorded::Flush => passed += 1,
        }
    }
    Ok(records.len())
}

/// Lets a random part of the writes up to the first flush of `records` take effect.
fn tear(
    state: &mut Overlay,
    records: &[Recorded],
    sectors: Sectors,
    random: &mut Random,
) -> io::Result<Pending> {
    let mut pending = Pending::default();
    // From nothing of the pending writes to all of them, so that both ends are among the states.
    let keep_of_8 = random.below(9);
    for record in records {
        let Recorded::Write { at, data } = record else { break };
        for (i, sector) in data.chunks(SECTOR).enumerate() {
            let place = at + (i * SECTOR) as u64;
            pending.sectors += 1;
            if random.below(8) < keep_of_8 {
                pending.kept += 1;
                state.write_at(sector, place)?;
            } else if sectors == Sectors::Torn && place != SUPERBLOCK_AT && random.below(4) == 0 {
                pending.torn += 1;
                for (j, piece) in sector.chunks(PIECE).enumerate() {
                    if random.below(2) == 0 {
                        state.write_at(piece, place + (j * PIECE) as u64)?;
                    }
                }
            }
        }
    }
    Ok(pending)
}

/// What became of the writes after the last flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Sectors written since the last flush.
    pub sectors: u64,
    /// Of these, taken whole.
    pub kept: u64,
    /// Of these, taken in part.
    pub torn: u64,
}

/// Copies a file and keeps its holes.
fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("cp {} {}: {status}", from.display(), to.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(sector: u64, byte: u8) -> Recorded {
        Recorded::Write { at: sector * SECTOR as u64, data: vec![byte; SECTOR] }
    }

    fn records() -> [Recorded; 6] {
        [write(0, 1), Recorded::Flush, write(1, 2), Recorded::Flush, write(2, 3), Recorded::Flush]
    }

    fn base(dir: &Path) -> std::path::PathBuf {
        let base = dir.join("base");
        std::fs::write(&base, vec![0u8; 4 * SECTOR]).unwrap();
        base
    }

    /// Whether the pending sector was seen old, and new, over many seeds.
    fn old_and_new(mut state: impl FnMut(u64) -> Overlay) -> (bool, bool) {
        let (mut old, mut new) = (false, false);
        for seed in 0..64 {
            let mut bytes = vec![0; 4 * SECTOR];
            state(seed).read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes[0], 1, "flushed");
            assert_eq!(bytes[2 * SECTOR], 0, "after the next flush");
            old |= bytes[SECTOR..2 * SECTOR].iter().all(|b| *b == 0);
            new |= bytes[SECTOR..2 * SECTOR].iter().all(|b| *b == 2);
        }
        (old, new)
    }

    #[test]
    fn a_state_holds_every_flushed_write_and_none_after_the_next_flush() {
        let dir = tempfile::tempdir().unwrap();
        let records = records();
        assert_eq!(flushes(&records), 3);
        let mut states = States::new(&base(dir.path()), &dir.path().join("durable"), &records).unwrap();
        states.advance_to(1).unwrap();
        let seen = old_and_new(|seed| states.build(Sectors::Torn, seed).unwrap().0);
        assert_eq!(seen, (true, true), "a pending sector is sometimes old, sometimes new");
    }

    #[test]
    fn a_crash_of_a_recovery_holds_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let base = Arc::new(File::open(base(dir.path())).unwrap());
        let seen = old_and_new(|seed| {
            let mut state = Overlay::new(Arc::clone(&base)).unwrap();
            crash_at(&mut state, &records(), 1, Sectors::Torn, &mut Random::new(seed)).unwrap();
            state
        });
        assert_eq!(seen, (true, true));
    }

    #[test]
    fn every_pending_sector_but_the_superblock_is_sometimes_torn() {
        let dir = tempfile::tempdir().unwrap();
        let base = Arc::new(File::open(base(dir.path())).unwrap());
        let pending = [write(0, 1), write(1, 1)];
        let (mut superblock, mut other) = (false, false);
        for seed in 0..64 {
            let mut state = Overlay::new(Arc::clone(&base)).unwrap();
            tear(&mut state, &pending, Sectors::Torn, &mut Random::new(seed)).unwrap();
            let mut bytes = vec![0; 2 * SECTOR];
            state.read_at(&mut bytes, 0).unwrap();
            let is_torn = |sector: &[u8]| sector.contains(&0) && sector.contains(&1);
            superblock |= is_torn(&bytes[..SECTOR]);
            other |= is_torn(&bytes[SECTOR..]);
        }
        assert_eq!((superblock, other), (false, true));
    }
}
