//! A drive's content as a file that is only read, and in memory the blocks that differ from it. A crash state costs as much as
//! its pending writes, not as much as the drive.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Unit of what differs, in bytes.
pub const BLOCK: usize = 4096;

/// The content. A clone shares the file and has its own blocks.
#[derive(Clone)]
pub struct Overlay {
    base: Arc<File>,
    bytes: u64,
    blocks: HashMap<u64, Box<[u8]>>,
}

impl Overlay {
    /// Nothing differs from `base` yet, whose size is a number of whole blocks.
    pub fn new(base: Arc<File>) -> io::Result<Overlay> {
        let bytes = base.metadata()?.len();
        Ok(Overlay { base, bytes, blocks: HashMap::new() })
    }

    /// The drive's size, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out` with what lies at `at`; both are within the drive.
    pub fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        self.base.read_exact_at(out, at)?;
        if self.blocks.is_empty() {
            return Ok(());
        }
        for (block, from, within, len) in pieces(at, out.len()) {
            if let Some(bytes) = self.blocks.get(&block) {
                out[from..from + len].copy_from_slice(&bytes[within..within + len]);
            }
        }
        Ok(())
    }

    /// Writes `data` at `at`.
    pub fn write_at(&mut self, data: &[u8], at: u64) -> io::Result<()> {
        for (block, from, within, len) in pieces(at, data.len()) {
            let piece = &data[from..from + len];
            if len == BLOCK {
                self.blocks.insert(block, piece.into());
                continue;
            }
            if !self.blocks.contains_key(&block) {
                let mut whole = vec![0; BLOCK];
                self.base.read_exact_at(&mut whole, block * BLOCK as u64)?;
                self.blocks.insert(block, whole.into());
            }
            let bytes = self.blocks.get_mut(&block).expect("put there above");
            bytes[within..within + len].copy_from_slice(piece);
        }
        Ok(())
    }
}

/// Cuts a range at the bounds of blocks: block, place in the caller's bytes, place in the block, length.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        if from == len {
            return None;
        }
        let place = at + from as u64;
        let within = (place % BLOCK as u64) as usize;
        let piece = (BLOCK - within).min(len - from);
        let cut = (place / BLOCK as u64, from, within, piece);
        from += piece;
        Some(cut)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_lies_over_the_base_and_the_base_is_never_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        std::fs::write(&path, vec![7u8; 4 * BLOCK]).unwrap();
        let mut overlay = Overlay::new(Arc::new(File::open(&path).unwrap())).unwrap();
        let before = overlay.clone();
        overlay.write_at(&vec![1; BLOCK + 1024], BLOCK as u64 - 512).unwrap();
        let mut all = vec![0; 4 * BLOCK];
        overlay.read_at(&mut all, 0).unwrap();
        let mut expected = vec![7; 4 * BLOCK];
        expected[BLOCK - 512..2 * BLOCK + 512].fill(1);
        assert!(all == expected);
        let mut part = [0; 1024];
        overlay.read_at(&mut part, 2 * BLOCK as u64).unwrap();
        assert_eq!((part[511], part[512]), (1, 7));
        before.read_at(&mut all, 0).unwrap();
        assert!(all.iter().all(|byte| *byte == 7), "a clone made before");
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 7), "the file");
    }
}
