//! Crash states: what a drive may hold after a power cut, built from what a recorder saw.
//!
//! The state at flush `k` holds every write before it. Of the writes between it and the next flush each 4 KiB sector is
//! old or new, and one of them may be torn in 512-byte pieces. Nothing after the next flush is in: such a state could
//! not exist without that flush's writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::recorder::Recorded;
use crate::sim::random::Random;

const SECTOR: usize = 4096;
const PIECE: usize = 512;

/// Walks a recording from flush to flush, keeping an image of what is durable so far.
pub struct States<'a> {
    records: &'a [Recorded],
    durable: File,
    durable_path: PathBuf,
    /// Records before this are in the durable image.
    applied: usize,
    /// Flushes before `applied`.
    flush: u64,
}

impl<'a> States<'a> {
    /// Starts at the state before the first record, a copy of `base` at `durable_path`.
    pub fn new(base: &Path, durable_path: &Path, records: &'a [Recorded]) -> io::Result<States<'a>> {
        copy_sparse(base, durable_path)?;
        let durable = OpenOptions::new().read(true).write(true).open(durable_path)?;
        Ok(States { records, durable, durable_path: durable_path.to_owned(), applied: 0, flush: 0 })
    }

    /// Flushes in the whole recording.
    pub fn flushes(records: &[Recorded]) -> u64 {
        records.iter().filter(|r| **r == Recorded::Flush).count() as u64
    }

    /// Moves forward until `flush` flushes have taken effect.
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

    /// Writes the crash state of the present flush and `seed` to `image`. Returns how many sectors were pending and how
    /// many of them took effect.
    pub fn build(&self, image: &Path, seed: u64) -> io::Result<Pending> {
        copy_sparse(&self.durable_path, image)?;
        let file = OpenOptions::new().write(true).open(image)?;
        let mut random = Random::new(seed ^ self.flush.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut pending = Pending::default();
        // From nothing of the pending writes to all of them, so that both ends are among the states.
        let keep_of_8 = random.below(9);
        for record in &self.records[self.applied..] {
            let Recorded::Write { at, data } = record else { break };
            for (i, sector) in data.chunks(SECTOR).enumerate() {
                let place = at + (i * SECTOR) as u64;
                pending.sectors += 1;
                if random.below(8) < keep_of_8 {
                    pending.kept += 1;
                    file.write_all_at(sector, place)?;
                } else if random.below(4) == 0 {
                    pending.torn += 1;
                    for (j, piece) in sector.chunks(PIECE).enumerate() {
                        if random.below(2) == 0 {
                            file.write_all_at(piece, place + (j * PIECE) as u64)?;
                        }
                    }
                }
            }
        }
        Ok(pending)
    }
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
pub fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
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

    #[test]
    fn a_state_holds_every_flushed_write_and_none_after_the_next_flush() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        std::fs::write(&base, vec![0u8; 4 * SECTOR]).unwrap();
        let write =
            |sector: u64, byte: u8| Recorded::Write { at: sector * SECTOR as u64, data: vec![byte; SECTOR] };
        let records =
            [write(0, 1), Recorded::Flush, write(1, 2), Recorded::Flush, write(2, 3), Recorded::Flush];
        assert_eq!(States::flushes(&records), 3);
        let mut states = States::new(&base, &dir.path().join("durable"), &records).unwrap();
        states.advance_to(1).unwrap();
        let (mut old, mut new) = (false, false);
        for seed in 0..64 {
            let image = dir.path().join("image");
            states.build(&image, seed).unwrap();
            let bytes = std::fs::read(&image).unwrap();
            assert_eq!(bytes[0], 1, "flushed");
            assert_eq!(bytes[2 * SECTOR], 0, "after the next flush");
            old |= bytes[SECTOR..2 * SECTOR].iter().all(|b| *b == 0);
            new |= bytes[SECTOR..2 * SECTOR].iter().all(|b| *b == 2);
        }
        assert!(old && new, "a pending sector is sometimes old, sometimes new");
    }
}
