//! What becomes of durable bytes, by themselves or because the drive lied when it took them.

use std::path::PathBuf;

use super::{Inode, SECTOR, Sector, SectorState, VirtualDisk, garbage};
use crate::sim::random::Random;

/// What can become of durable sectors, whether by itself or because the drive lied when they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// One bit flips.
    Bit,
    /// They are random bytes.
    Garbage,
    /// They are zeros.
    Zeros,
    /// They are what they were before they were last written: that write was lost.
    Stale,
    /// They are what lies somewhere else: a write went astray.
    Misplaced,
}

impl Decay {
    /// All of them.
    pub const ALL: [Decay; 5] = [Decay::Bit, Decay::Garbage, Decay::Zeros, Decay::Stale, Decay::Misplaced];
}

impl VirtualDisk {
    /// Lets a few neighbouring sectors decay somewhere in the files whose path contains `part`. Returns in which; none if there is
    /// nothing that could decay so.
    pub fn decay_somewhere(&mut self, random: &mut Random, how: Decay, part: &str) -> Option<PathBuf> {
        let can = |sector: &SectorState| {
            let holds = sector.durable.as_ref().is_some_and(|bytes| !is_zero(bytes));
            let has_changed = how != Decay::Stale || sector.before.is_some();
            sector.pending.is_empty() && holds && has_changed
        };
        let mut found = Vec::new();
        for (path, inode) in self.names.iter().filter(|(path, _)| path.to_string_lossy().contains(part)) {
            let sectors = &self.files[inode].sectors;
            let indices: Vec<usize> = (0..sectors.len()).filter(|i| can(&sectors[*i])).collect();
            if !indices.is_empty() {
                found.push((path.clone(), *inode, indices));
            }
        }
        if found.is_empty() {
            return None;
        }
        // A file, then a place in it: small files matter as much as large ones.
        let elsewhere = found[random.index(found.len())].clone();
        let (path, inode, indices) = found.swap_remove(random.index(found.len()));
        let first = random.pick(&indices);
        if how == Decay::Bit {
            let at = first * SECTOR + random.index(SECTOR);
            assert!(self.rot(inode, at as u64, random.below(8) as u8), "the sector holds something");
            return Some(path);
        }
        // A frame and the next one, whose mark says that it was flushed, must not go together: that would be a tear.
        let count = if path.to_string_lossy().contains("-ring-") { 1 } else { random.between(1, 4) as usize };
        let mut has_changed = false;
        for index in (first..first + count).take_while(|index| indices.contains(index)) {
            let (_, from, others) = &elsewhere;
            let other = self.files[from].sectors[random.pick(others)].durable.clone();
            has_changed |= self.decay(random, inode, index, how, other);
        }
        has_changed.then_some(path)
    }

    /// Returns whether the sector holds something else now.
    fn decay(&mut self, random: &mut Random, inode: Inode, index: usize, how: Decay, other: Sector) -> bool {
        let sector = &mut self.files.get_mut(&inode).expect("a file of this drive").sectors[index];
        let (new, count) = match how {
            Decay::Bit => unreachable!("a bit is no sector"),
            Decay::Garbage => (garbage(random), &mut self.coverage.sectors_garbled),
            Decay::Zeros => (None, &mut self.coverage.sectors_zeroed),
            Decay::Stale => (sector.before.clone(), &mut self.coverage.sectors_stale),
            Decay::Misplaced => (other, &mut self.coverage.sectors_misplaced),
        };
        let has_changed = new != sector.durable;
        *count += u64::from(has_changed);
        sector.durable = new;
        has_changed
    }

    /// Flips that bit of the byte there. Returns false if the sector has never been written.
    pub fn rot(&mut self, inode: Inode, at: u64, bit: u8) -> bool {
        let file = self.files.get_mut(&inode).expect("a file of this drive");
        match &mut file.sectors[at as usize / SECTOR].durable {
            Some(bytes) => {
                bytes[at as usize % SECTOR] ^= 1 << bit;
                self.coverage.bits_flipped += 1;
                true
            }
            None => false,
        }
    }
}

fn is_zero(bytes: &[u8; SECTOR]) -> bool {
    bytes.iter().all(|b| *b == 0)
}
