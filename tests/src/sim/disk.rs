//! The virtual drive: what a write, a flush, a kill and a power loss do to bytes.
//!
//! Per 4 KiB sector the drive knows the durable bytes and the writes that completed since the last flush that covered
//! them. Reads see the latest. A flush of *any* file makes durable what every file wrote before the flush was submitted,
//! as a real device does, except sectors of a file whose extents are not initialised on the drive: those need a flush
//! of that very file (until then their metadata does not exist and they read as zeros after a power loss). With
//! [`OneFlush::OwnFileOnly`] a flush covers its own file alone, as on a filesystem that redirects writes.
//!
//! At a power loss each sector that has pending writes becomes, one by one: its old bytes, those of one of its pending
//! writes, a mixture in 512-byte pieces, zeros, or garbage. What is durable may decay ([`Decay`]). A kill of the process only
//! ends the ops under way; pending writes stay in the drive's cache, readable and not durable.

mod decay;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use tidegate_reactor::buffer::{BLOCK, Buffer, View};
use tidegate_reactor::op::{Fault, FreeSpace, OpenHow};

use super::coverage::Coverage;
use super::random::Random;

pub use self::decay::Decay;

const SECTOR: usize = BLOCK;
/// The unit in which a sector tears.
const PIECE: usize = 512;

const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;

/// A file's identity on the drive; a removed file keeps its own while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode(pub u64);

/// An op that the drive has taken and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What a flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneFlush {
    /// Every initialised sector of the device, and all of the file itself.
    WholeDevice,
    /// The file itself.
    OwnFileOnly,
}

/// How often ops fail, each in a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// A write ends with EIO; any part of it may have been done.
    pub write_error: u32,
    /// A write ends early, on a multiple of the block.
    pub short_write: u32,
    /// A flush ends with EIO; anything it should have covered may be lost, and the next flush says OK.
    pub flush_error: u32,
    /// A read ends with EIO.
    pub read_error: u32,
    /// A file cannot be created for want of space.
    pub full: u32,
    /// Somebody else has taken all free space but a little when it is asked for, and gives it back.
    pub low_space: u32,
    /// After a read, write or flush that failed, those of that file go on failing until the broker is started again.
    pub sticky: u32,
}

/// An op on an open file that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileOp {
    Read,
    Write,
    Flush,
}

/// The drive with its one filesystem. It outlives every start of the broker in a run.
#[derive(Debug)]
pub struct VirtualDisk {
    random: Random,
    one_flush: OneFlush,
    names: BTreeMap<PathBuf, Inode>,
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<Inode, VirtualFile>,
    underway: BTreeMap<Ticket, Underway>,
    /// What fails until the next start.
    failing: BTreeSet<(Inode, FileOp)>,
    /// Rises with every completed write; orders writes and flushes.
    tick: u64,
    next: u64,
    /// How often ops fail from now on.
    pub faults: FaultRates,
    /// Bytes that all files together may have from now on.
    pub capacity: u64,
    coverage: Coverage,
}

/// What a sector holds; none: zeros.
type Sector = Option<Box<[u8; SECTOR]>>;

/// What is written.
#[derive(Debug)]
pub enum Data {
    /// These bytes.
    Bytes(View),
    /// So many zeros.
    Zeros(usize),
}

impl Data {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Data::Bytes(view) => view.len(),
            Data::Zeros(len) => *len,
        }
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn sector(&self, index: usize) -> Sector {
        match self {
            Data::Bytes(view) => {
                let mut bytes = Box::new([0; SECTOR]);
                bytes.copy_from_slice(&view[index * SECTOR..(index + 1) * SECTOR]);
                Some(bytes)
            }
            Data::Zeros(_) => None,
        }
    }
}

#[derive(Debug, Default)]
struct VirtualFile {
    sectors: Vec<SectorState>,
    /// The sectors that have pending writes.
    dirty: BTreeSet<usize>,
}

#[derive(Debug, Default)]
struct SectorState {
    durable: Sector,
    /// What was durable before that.
    before: Sector,
    /// Whether the sector's extent is initialised on the drive, so that a flush of another file covers it.
    initialised: bool,
    /// Completed writes that no flush has covered, oldest first.
    pending: Vec<Version>,
}

#[derive(Debug)]
struct Version {
    bytes: Sector,
    tick: u64,
    /// The write it belongs to, so that a power loss can treat a write as one.
    write: Ticket,
}

#[derive(Debug)]
enum Underway {
    Write { inode: Inode, at: u64, data: Data },
    Flush { inode: Inode, tick: u64 },
    Create { path: PathBuf, inode: Inode, bytes: u64 },
    Remove { path: PathBuf },
}

/// How a power loss treats one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    Mixed,
}

impl VirtualDisk {
    /// An empty drive of `capacity` bytes.
    pub fn new(random: Random, one_flush: OneFlush, capacity: u64) -> VirtualDisk {
        VirtualDisk {
            random,
            one_flush,
            capacity,
            names: BTreeMap::new(),
            dirs: BTreeSet::from([PathBuf::from("/")]),
            files: BTreeMap::new(),
            underway: BTreeMap::new(),
            failing: BTreeSet::new(),
            tick: 0,
            next: 1,
            faults: FaultRates::default(),
            coverage: Coverage::default(),
        }
    }

    /// What has been tried so far.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Whether any completed write is not durable yet.
    pub fn has_pending(&self) -> bool {
        self.files.values().any(|f| !f.dirty.is_empty())
    }

    /// The file of that name.
    pub fn lookup(&self, path: &Path) -> Result<Inode, Fault> {
        self.names.get(path).copied().ok_or_else(|| fault(format!("open {}", path.display()), ENOENT))
    }

    /// The file's length in bytes.
    pub fn len(&self, inode: Inode) -> u64 {
        (self.files[&inode].sectors.len() * SECTOR) as u64
    }

    /// All files that have a name, sorted.
    pub fn list(&self, dir: &Path) -> Vec<PathBuf> {
        let files = self.names.keys().filter(|p| p.parent() == Some(dir));
        let dirs = self.dirs.iter().filter(|p| p.parent() == Some(dir));
        let mut names: Vec<PathBuf> =
            files.chain(dirs).filter_map(|p| p.file_name()).map(PathBuf::from).collect();
        names.sort();
        names
    }

    /// Whether a directory of that name exists.
    pub fn has_dir(&self, path: &Path) -> bool {
        self.dirs.contains(path)
    }

    /// Creates a directory, durable at once.
    pub fn create_dir(&mut self, path: &Path) -> Result<(), Fault> {
        self.require_parent(path)?;
        self.dirs.insert(path.to_path_buf());
        Ok(())
    }

    /// Submits a write of whole blocks inside the file.
    ///
    /// # Panics
    /// If place or length are not multiples of the block, the range is not inside the file, or another write under way
    /// overlaps it: all three are faults of the broker.
    pub fn begin_write(&mut self, inode: Inode, at: u64, data: Data) -> Ticket {
        assert!(at.is_multiple_of(SECTOR as u64), "a write at {at}, not a multiple of the block");
        assert!(!data.is_empty() && data.len().is_multiple_of(SECTOR), "a write of {} bytes", data.len());
        if let Data::Bytes(view) = &data {
            assert!((view.as_ptr() as usize).is_multiple_of(SECTOR), "a write from unaligned memory");
        }
        let end = at + data.len() as u64;
        assert!(end <= self.len(inode), "a write up to {end} in a file of {} bytes", self.len(inode));
        for other in self.underway.values() {
            if let Underway::Write { inode: i, at: other_at, data: other } = other
                && *i == inode
            {
                let apart = end <= *other_at || *other_at + other.len() as u64 <= at;
                assert!(apart, "two writes under way overlap at {at} and {other_at}");
            }
        }
        self.begin(Underway::Write { inode, at, data })
    }

    /// Ends a write: how many bytes were done. Fails as the fault rates say.
    pub fn end_write(&mut self, ticket: Ticket) -> Result<usize, Fault> {
        let Some(Underway::Write { inode, at, data }) = self.underway.remove(&ticket) else {
            panic!("{ticket:?} is no write under way");
        };
        self.coverage.writes += 1;
        if self.fails(inode, FileOp::Write, self.faults.write_error) {
            self.coverage.write_errors += 1;
            self.apply_some(ticket, inode, at, &data);
            return Err(fault(format!("write at {at}"), EIO));
        }
        let mut done = data.len();
        if done > SECTOR && self.random.chance(self.faults.short_write) {
            self.coverage.short_writes += 1;
            done = SECTOR * self.random.between(1, (done / SECTOR) as u64 - 1) as usize;
        }
        self.apply(ticket, inode, at, &data, 0..done / SECTOR);
        Ok(done)
    }

    /// Submits a flush: it covers the writes that have completed by now.
    pub fn begin_flush(&mut self, inode: Inode) -> Ticket {
        let tick = self.tick;
        self.begin(Underway::Flush { inode, tick })
    }

    /// Ends a flush. If it fails, every sector that it should have covered is durable, still pending or silently lost.
    pub fn end_flush(&mut self, ticket: Ticket) -> Result<(), Fault> {
        let Some(Underway::Flush { inode, tick }) = self.underway.remove(&ticket) else {
            panic!("{ticket:?} is no flush under way");
        };
        self.coverage.flushes += 1;
        if !self.fails(inode, FileOp::Flush, self.faults.flush_error) {
            self.cover(inode, tick);
            return Ok(());
        }
        self.coverage.flush_errors += 1;
        let lose_all = self.random.chance(500_000);
        let random = &mut self.random;
        for file in self.files.values_mut() {
            for index in file.dirty.clone() {
                if lose_all || random.chance(500_000) {
                    file.sectors[index].pending.retain(|v| v.tick > tick);
                    file.tidy(index);
                }
            }
        }
        if self.random.chance(300_000) {
            self.cover(inode, tick);
        }
        Err(fault("fdatasync".to_string(), EIO))
    }

    /// Submits the opening of a file; a new one has its name when the op ends.
    pub fn begin_open(&mut self, path: &Path, how: OpenHow) -> Ticket {
        let inode = Inode(self.next);
        let bytes = match how {
            OpenHow::Existing => u64::MAX,
            OpenHow::New { bytes } => bytes,
        };
        self.begin(Underway::Create { path: path.to_path_buf(), inode, bytes })
    }

    /// Ends an opening. A new file is allocated, durable with its name, and not initialised.
    pub fn end_open(&mut self, ticket: Ticket) -> Result<Inode, Fault> {
        let Some(Underway::Create { path, inode, bytes }) = self.underway.remove(&ticket) else {
            panic!("{ticket:?} is no opening under way");
        };
        if bytes == u64::MAX {
            return self.lookup(&path);
        }
        self.coverage.creates += 1;
        if self.names.contains_key(&path) {
            return Err(fault(format!("create {}", path.display()), EEXIST));
        }
        self.require_parent(&path)?;
        let no_byte_left = self.used() + bytes > self.capacity;
        if no_byte_left || self.random.chance(self.faults.full) {
            self.coverage.full += 1;
            self.coverage.full_at_byte += u64::from(no_byte_left);
            return Err(fault(format!("create {}", path.display()), ENOSPC));
        }
        self.create(path, inode, bytes);
        Ok(inode)
    }

    /// Submits the removal of a name.
    pub fn begin_remove(&mut self, path: &Path) -> Ticket {
        self.begin(Underway::Remove { path: path.to_path_buf() })
    }

    /// Ends a removal, durable.
    pub fn end_remove(&mut self, ticket: Ticket) -> Result<(), Fault> {
        let Some(Underway::Remove { path }) = self.underway.remove(&ticket) else {
            panic!("{ticket:?} is no removal under way");
        };
        self.coverage.removes += 1;
        match self.names.remove(&path) {
            Some(_) => Ok(()),
            None => Err(fault(format!("remove {}", path.display()), ENOENT)),
        }
    }

    /// The room that there is now.
    pub fn free_space(&mut self) -> FreeSpace {
        let mut free_bytes = self.capacity - self.used();
        if self.random.chance(self.faults.low_space) {
            self.coverage.low_space += 1;
            free_bytes = free_bytes.min(self.random.below(2 << 20));
        }
        FreeSpace { free_bytes, total_bytes: self.capacity }
    }

    /// Reads what a read that ends now sees; short at the end of the file.
    pub fn read(&mut self, inode: Inode, at: u64, len: usize) -> Result<Buffer, Fault> {
        assert!(at.is_multiple_of(SECTOR as u64), "a read at {at}, not a multiple of the block");
        assert!(len.is_multiple_of(SECTOR), "a read of {len} bytes, not a multiple of the block");
        self.coverage.reads += 1;
        if self.fails(inode, FileOp::Read, self.faults.read_error) {
            self.coverage.read_errors += 1;
            return Err(fault(format!("read at {at}"), EIO));
        }
        let file = &self.files[&inode];
        let first = (at / SECTOR as u64) as usize;
        let last = (first + len / SECTOR).min(file.sectors.len());
        let mut buf = Buffer::zeroed(len);
        for index in first..last {
            match file.sectors[index].latest() {
                Some(bytes) => buf.extend(&bytes[..]),
                None => buf.extend(&[0; SECTOR]),
            }
        }
        Ok(buf)
    }

    /// The process dies: ops under way end anywhere, completed writes stay in the drive's cache.
    pub fn kill(&mut self) {
        self.coverage.kills += 1;
        self.end_underway();
    }

    /// The power goes: ops under way end anywhere, and of every pending sector the drive keeps what it likes.
    pub fn power_loss(&mut self) {
        self.coverage.power_losses += 1;
        self.end_underway();
        let kept_per_million = self.random.pick(&[0, 300_000, 700_000, 950_000, 1_000_000]);
        let mixed_per_million = self.random.pick(&[0, 100_000, 500_000]);
        let mut fates: BTreeMap<Ticket, Fate> = BTreeMap::new();
        let (random, coverage) = (&mut self.random, &mut self.coverage);
        let old_before = coverage.sectors_old;
        for file in self.files.values_mut() {
            for index in std::mem::take(&mut file.dirty) {
                file.sectors[index].lose_power(random, coverage, |random, write| {
                    *fates.entry(write).or_insert_with(|| {
                        if random.chance(mixed_per_million) {
                            Fate::Mixed
                        } else if random.chance(kept_per_million) {
                            Fate::Kept
                        } else {
                            Fate::Dropped
                        }
                    })
                });
            }
        }
        self.coverage.power_losses_that_drop += u64::from(self.coverage.sectors_old > old_before);
    }

    /// The whole file is zero-filled and flushed by its own: from now on a flush of any file covers it.
    pub fn initialise(&mut self, inode: Inode) {
        let file = self.files.get_mut(&inode).expect("a file of this drive");
        for sector in &mut file.sectors {
            sector.initialised = true;
        }
    }

    /// Bytes of all files.
    pub fn used(&self) -> u64 {
        self.files.values().map(|f| (f.sectors.len() * SECTOR) as u64).sum()
    }

    /// Whether an op fails, by itself or because one of its kind has failed before.
    fn fails(&mut self, inode: Inode, op: FileOp, per_million: u32) -> bool {
        if self.faults.sticky > 0 && self.failing.contains(&(inode, op)) {
            return true;
        }
        let fails = self.random.chance(per_million);
        if fails && self.random.chance(self.faults.sticky) {
            self.coverage.sticky += 1;
            self.failing.insert((inode, op));
        }
        fails
    }

    fn begin(&mut self, op: Underway) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.underway.insert(ticket, op);
        ticket
    }

    fn require_parent(&self, path: &Path) -> Result<(), Fault> {
        match path.parent() {
            Some(parent) if self.dirs.contains(parent) => Ok(()),
            _ => Err(fault(format!("create {}: no such directory", path.display()), ENOENT)),
        }
    }

    fn create(&mut self, path: PathBuf, inode: Inode, bytes: u64) {
        assert!(bytes.is_multiple_of(SECTOR as u64), "{}: {bytes} bytes are no whole blocks", path.display());
        let mut file = VirtualFile::default();
        file.sectors.resize_with(bytes as usize / SECTOR, SectorState::default);
        self.files.insert(inode, file);
        self.names.insert(path, inode);
    }

    /// Makes durable what a flush of `inode`, submitted at `tick`, covers.
    fn cover(&mut self, inode: Inode, tick: u64) {
        for (other, file) in &mut self.files {
            if *other != inode && self.one_flush == OneFlush::OwnFileOnly {
                continue;
            }
            for index in file.dirty.clone() {
                let sector = &mut file.sectors[index];
                if *other != inode && !sector.initialised {
                    continue;
                }
                let covered = sector.pending.iter().take_while(|v| v.tick <= tick).count();
                if let Some(last) = sector.pending.drain(..covered).next_back() {
                    sector.before = std::mem::replace(&mut sector.durable, last.bytes);
                    sector.initialised = true;
                }
                file.tidy(index);
            }
        }
    }

    /// Those sectors of what is written at `at` reach the drive's cache.
    fn apply(&mut self, write: Ticket, inode: Inode, at: u64, data: &Data, sectors: Range<usize>) {
        self.tick += 1;
        let tick = self.tick;
        let file = self.files.get_mut(&inode).expect("a file of this drive");
        let first = at as usize / SECTOR;
        for index in sectors {
            file.sectors[first + index].pending.push(Version { bytes: data.sector(index), tick, write });
            file.dirty.insert(first + index);
        }
    }

    /// Any of the write's sectors reach the drive's cache.
    fn apply_some(&mut self, write: Ticket, inode: Inode, at: u64, data: &Data) {
        for index in 0..data.len() / SECTOR {
            if self.random.chance(500_000) {
                self.apply(write, inode, at, data, index..index + 1);
            }
        }
    }

    /// What becomes of the ops under way when nobody waits for them any more.
    fn end_underway(&mut self) {
        for (ticket, op) in std::mem::take(&mut self.underway) {
            let happens = self.random.chance(500_000);
            match op {
                Underway::Write { inode, at, data } if happens => {
                    self.apply(ticket, inode, at, &data, 0..data.len() / SECTOR);
                }
                Underway::Write { inode, at, data } => self.apply_some(ticket, inode, at, &data),
                Underway::Flush { inode, tick } if happens => self.cover(inode, tick),
                Underway::Create { path, inode, bytes } if happens && bytes != u64::MAX => {
                    let room = self.used() + bytes <= self.capacity;
                    if room && !self.names.contains_key(&path) && self.require_parent(&path).is_ok() {
                        self.create(path, inode, bytes);
                    }
                }
                Underway::Remove { path } if happens => {
                    self.names.remove(&path);
                }
                Underway::Flush { .. } | Underway::Create { .. } | Underway::Remove { .. } => {}
            }
        }
        self.failing.clear();
        // Nobody holds a file open any more: what has no name is gone.
        let named: BTreeSet<Inode> = self.names.values().copied().collect();
        self.files.retain(|inode, _| named.contains(inode));
    }
}

impl VirtualFile {
    fn tidy(&mut self, index: usize) {
        if self.sectors[index].pending.is_empty() {
            self.dirty.remove(&index);
        }
    }
}

impl SectorState {
    fn latest(&self) -> &Sector {
        self.pending.last().map_or(&self.durable, |v| &v.bytes)
    }

    fn lose_power(
        &mut self,
        random: &mut Random,
        coverage: &mut Coverage,
        mut fate_of: impl FnMut(&mut Random, Ticket) -> Fate,
    ) {
        let old = self.durable.take();
        let mut kept = None;
        let mut versions = std::mem::take(&mut self.pending);
        while let Some(version) = versions.pop() {
            let how = match fate_of(random, version.write) {
                Fate::Kept => 0,
                Fate::Dropped => 1,
                Fate::Mixed => random.below(5),
            };
            match how {
                0 => {
                    coverage.sectors_new += 1;
                    kept = Some(version.bytes);
                }
                1 => {
                    coverage.sectors_old += 1;
                    continue;
                }
                2 => {
                    coverage.sectors_torn += 1;
                    let below = versions.last().map_or(&old, |v| &v.bytes);
                    kept = Some(torn(random, version.bytes, below));
                }
                3 => {
                    coverage.sectors_zero += 1;
                    kept = Some(None);
                }
                _ => {
                    coverage.sectors_garbage += 1;
                    kept = Some(garbage(random));
                }
            }
            self.initialised = true;
            break;
        }
        self.durable = kept.unwrap_or(old);
    }
}

/// New bytes in which some 512-byte pieces are still those from below.
fn torn(random: &mut Random, new: Sector, below: &Sector) -> Sector {
    let mut new = new.unwrap_or_else(|| Box::new([0; SECTOR]));
    for piece in 0..SECTOR / PIECE {
        if random.chance(500_000) {
            let range = piece * PIECE..(piece + 1) * PIECE;
            match below {
                Some(below) => new[range.clone()].copy_from_slice(&below[range]),
                None => new[range].fill(0),
            }
        }
    }
    Some(new)
}

fn garbage(random: &mut Random) -> Sector {
    let mut bytes = Box::new([0; SECTOR]);
    bytes.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&random.word().to_le_bytes()));
    Some(bytes)
}

fn fault(what: String, errno: i32) -> Fault {
    Fault { what, errno }
}

#[cfg(test)]
#[path = "disk_test.rs"]
mod disk_test;
