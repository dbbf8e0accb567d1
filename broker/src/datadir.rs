//! The data directory: what it is, whose it is, and how it begins.
//!
//! ```text
//! <root>/superblock                   which journals hold the data; two blocks, A and B
//! <root>/lock                         held by the process that serves the directory
//! <root>/journal/<journal>-<name>     a shard's journal: ring and checkpoint files
//! <root>/files/<file>                 data files
//! ```
//! Everything here runs before the first turn, over blocking calls, and is right when the power fails at any of them: the
//! superblock goes to disk in the state `initialising` before any other file, a directory in that state is made anew, and
//! files are deleted only when the superblock names them.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::superblock::{
    FORMAT, Layout, SHARDS_MAX, SUPERBLOCK_BYTES, State, Superblock, SuperblockError,
};
use tidegate_protocol::ids::{ClusterId, FileId, Incarnation, JournalId, NodeId};
use tidegate_reactor::buffer::Buffer;
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::Fault;

const SUPERBLOCK: &str = "superblock";
const JOURNALS: &str = "journal";
const FILES: &str = "files";
/// Names in an otherwise empty directory that are not ours and do no harm.
const HARMLESS: [&str; 2] = ["lock", "lost+found"];

/// Where the journals of a new directory may be numbered from; later ones count on. Frames carry the number of their journal,
/// and no client is ever told it: whoever does not know it cannot put bytes into a batch that pass for a frame of this
/// journal. Directories from before this rule have numbers from 1 on. The upper end leaves room for two thousand million
/// more.
pub const JOURNALS_FIRST: Range<u32> = 1 << 16..1 << 31;

/// Makes the files of one journal, flushed, ready for its first frame.
pub type MakeJournal<'a> = &'a mut dyn FnMut(&mut dyn Disk, JournalId) -> Result<(), Fault>;

/// What the operator wants the directory to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The cluster that it has to belong to; none: whichever it belongs to.
    pub cluster: Option<ClusterId>,
    /// A random identity for a directory that is made now and belongs to no named cluster.
    pub cluster_if_new: ClusterId,
    /// The first journal of a directory that is made now: see [`first_journal`].
    pub journal_first_if_new: JournalId,
    /// The node that it has to belong to.
    pub node: NodeId,
    /// The number of shards of a directory that is made now, 1 to [`SHARDS_MAX`].
    pub shard_count: u16,
}

/// Whether the directory held anything when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was made just now.
    New,
    /// It holds data.
    Existing,
}

/// An open data directory.
///
/// Invariants: both blocks of the superblock say what `superblock` says, flushed, unless a write has failed, after which
/// nothing more is written.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    file: DiskFile,
    superblock: Superblock,
    found: Found,
    repairs: Vec<String>,
}

/// The first journal of a new directory, from a random number.
pub fn first_journal(random: u32) -> JournalId {
    let Range { start, end } = JOURNALS_FIRST;
    JournalId(start + random % (end - start))
}

/// The directory of all journals.
pub fn journal_dir(root: &Path) -> PathBuf {
    root.join(JOURNALS)
}

/// A file of a journal.
pub fn journal_file(root: &Path, journal: JournalId, name: &str) -> PathBuf {
    journal_dir(root).join(format!("{:08x}-{name}", journal.0))
}

/// The directory of all data files.
pub fn files_dir(root: &Path) -> PathBuf {
    root.join(FILES)
}

/// A data file.
pub fn data_file(root: &Path, file: FileId) -> PathBuf {
    files_dir(root).join(file.to_string())
}

/// The data file of that name, if it is one.
pub fn data_file_id(name: &Path) -> Option<FileId> {
    let (journal, number) = name.file_name()?.to_str()?.split_once('-')?;
    let hex = |s: &str| {
        let plain = s.len() == 8 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if plain { u32::from_str_radix(s, 16).ok() } else { None }
    };
    Some(FileId::new(JournalId(hex(journal)?), hex(number)?))
}

impl DataDir {
    /// Opens the directory, or makes it if it holds no promise yet, and brings an interrupted change of layout to its end.
    /// The caller holds the directory's lock.
    ///
    /// # Errors
    /// If the directory is not ours to serve, or the disk fails. Nothing was lost then, and nothing is half-made that the
    /// next start does not make whole.
    pub fn open(
        disk: &mut dyn Disk,
        root: &Path,
        wanted: &Wanted,
        make_journal: MakeJournal<'_>,
    ) -> Result<DataDir, OpenError> {
        let at = Place(root);
        let names = at.list(disk)?;
        let bare = names.iter().all(|n| n == SUPERBLOCK || HARMLESS.contains(&n.as_str()));
        if !names.iter().any(|n| n == SUPERBLOCK) {
            if !bare {
                return Err(OpenError::NotOurs { root: root.into(), names });
            }
            let file = at.create_superblock(disk)?;
            return DataDir::make(disk, root, wanted, file, 0, make_journal);
        }
        let path = root.join(SUPERBLOCK);
        let file = at.did("open", SUPERBLOCK, disk.open(&path))?;
        let copies = at.copies(disk, file)?;
        let newest = match newest(&copies) {
            Ok(newest) => newest.clone(),
            Err(Unusable::Newer(found)) => {
                disk.close(file);
                return Err(OpenError::NewerFormat { path, found });
            }
            // The very first write of the superblock did not come to its end: nothing else can exist.
            Err(Unusable::Damaged) if bare => {
                disk.close(file);
                at.did("remove", SUPERBLOCK, disk.remove(&path))?;
                let file = at.create_superblock(disk)?;
                return DataDir::make(disk, root, wanted, file, 0, make_journal);
            }
            Err(Unusable::Damaged) => {
                disk.close(file);
                let [a, b] = copies.map(|c| c.err());
                return Err(OpenError::Damaged { path, a, b });
            }
        };
        if newest.state == State::Initialising {
            at.remove_everything(disk)?;
            return DataDir::make(disk, root, wanted, file, newest.sequence, make_journal);
        }
        if let Some(error) = foreign(root, &newest, wanted) {
            disk.close(file);
            return Err(error);
        }
        let (found, repairs) = (Found::Existing, Vec::new());
        let mut dir = DataDir { root: root.into(), file, superblock: newest, found, repairs };
        dir.renew_stale(disk, &copies)?;
        let unfinished = match dir.superblock.state {
            State::Preparing(_) => {
                Some("was cut short and is undone: the directory keeps the number that it had")
            }
            State::Retiring(_) => {
                Some("was cut short and is brought to its end: the old journals are deleted")
            }
            State::Initialising | State::Current => None,
        };
        dir.repairs.extend(unfinished.map(|what| format!("a change of the number of shards {what}")));
        dir.finish_change(disk)?;
        Ok(dir)
    }

    /// First start: the superblock says `initialising`, flushed, before any other file exists.
    fn make(
        disk: &mut dyn Disk,
        root: &Path,
        wanted: &Wanted,
        file: DiskFile,
        sequence: u64,
        make_journal: MakeJournal<'_>,
    ) -> Result<DataDir, OpenError> {
        let count = u32::from(wanted.shard_count);
        assert!(count >= 1 && count as usize <= SHARDS_MAX, "the configuration bounds the shards");
        let at = Place(root);
        let (first, next) = (wanted.journal_first_if_new.0, wanted.journal_first_if_new.0 + count);
        let superblock = Superblock {
            sequence,
            cluster: wanted.cluster.unwrap_or(wanted.cluster_if_new),
            node: wanted.node,
            incarnation: Incarnation(0),
            journal_next: JournalId(next),
            layout: Layout { id: 1, journals: (first..next).map(JournalId).collect() },
            state: State::Initialising,
        };
        let (found, repairs) = (Found::New, Vec::new());
        let mut dir = DataDir { root: root.into(), file, superblock, found, repairs };
        dir.put(disk, |_| ())?;
        at.did("create", JOURNALS, disk.create_dir(&journal_dir(root)))?;
        at.did("create", FILES, disk.create_dir(&files_dir(root)))?;
        for journal in dir.superblock.layout.journals.clone() {
            at.did("make", &format!("{JOURNALS}/{:08x}", journal.0), make_journal(disk, journal))?;
        }
        dir.put(disk, |s| s.state = State::Current)?;
        Ok(dir)
    }

    /// Raises the incarnation, flushed. Every recovery begins with it, so that no two attempts share one.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn raise(&mut self, disk: &mut dyn Disk) -> Result<Incarnation, OpenError> {
        self.put(disk, |s| s.incarnation = Incarnation(s.incarnation.0 + 1))?;
        Ok(self.superblock.incarnation)
    }

    /// Names the journals of a layout with another number of shards, flushed, before one of their files exists.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn prepare(&mut self, disk: &mut dyn Disk, shard_count: u16) -> Result<Layout, OpenError> {
        assert_eq!(self.superblock.state, State::Current, "one change of layout at a time");
        let first = self.superblock.journal_next.0;
        let next = first + u32::from(shard_count);
        let journals = (first..next).map(JournalId).collect();
        let layout = Layout { id: self.superblock.layout.id + 1, journals };
        self.put(disk, |s| {
            s.journal_next = JournalId(next);
            s.state = State::Preparing(layout.clone());
        })?;
        Ok(layout)
    }

    /// Makes the prepared layout, whose journals hold everything, flushed, the current one; then deletes the files of the
    /// old one.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn swing(&mut self, disk: &mut dyn Disk) -> Result<(), OpenError> {
        self.put(disk, |s| {
            let State::Preparing(new) = std::mem::replace(&mut s.state, State::Current) else {
                panic!("a layout is prepared before it becomes the current one");
            };
            s.state = State::Retiring(std::mem::replace(&mut s.layout, new));
        })?;
        self.finish_change(disk)
    }

    /// Closes the superblock's file.
    pub fn close(self, disk: &mut dyn Disk) -> Superblock {
        disk.close(self.file);
        self.superblock
    }

    /// Where the directory lies.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the directory was made just now.
    pub fn found(&self) -> Found {
        self.found
    }

    /// What the opening has repaired, one sentence each.
    pub fn repairs(&self) -> &[String] {
        &self.repairs
    }

    /// What both blocks of the superblock say.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Deletes exactly the files of the journals that are named preparing or retiring. Data files made under a retiring
    /// journal belong to the new layout; those made under one that was being prepared belong to nobody.
    fn finish_change(&mut self, disk: &mut dyn Disk) -> Result<(), OpenError> {
        let Some(other) = self.superblock.other() else { return Ok(()) };
        let prefixes: Vec<String> = other.journals.iter().map(|j| format!("{:08x}-", j.0)).collect();
        let dirs = match self.superblock.state {
            State::Preparing(_) => &[JOURNALS, FILES][..],
            _ => &[JOURNALS][..],
        };
        for dir in dirs {
            let path = self.root.join(dir);
            for name in Place(&path).list(disk)? {
                if prefixes.iter().any(|p| name.starts_with(p)) {
                    let removed = disk.remove(&path.join(&name));
                    Place(&path).did("remove", &name, removed)?;
                }
            }
        }
        self.put(disk, |s| s.state = State::Current)
    }

    /// Changes the superblock: A, flush, B, flush.
    fn put(&mut self, disk: &mut dyn Disk, change: impl FnOnce(&mut Superblock)) -> Result<(), OpenError> {
        change(&mut self.superblock);
        self.superblock.sequence += 1;
        for copy in 0..2 {
            self.put_copy(disk, copy)?;
        }
        Ok(())
    }

    fn put_copy(&self, disk: &mut dyn Disk, copy: u64) -> Result<(), OpenError> {
        let at = Place(&self.root);
        let block = Buffer::copy_of(&self.superblock.encode());
        at.did("write", SUPERBLOCK, disk.write(self.file, copy * BLOCK as u64, &block))?;
        at.did("flush", SUPERBLOCK, disk.flush(self.file))
    }

    /// Makes a copy that is older or damaged equal to the newest, before anything newer is written: else a torn write of the
    /// good one would leave only the old.
    fn renew_stale(&mut self, disk: &mut dyn Disk, copies: &Copies) -> Result<(), OpenError> {
        // A kill between a write and its flush leaves a copy that is readable and may be only in the drive's cache: a loss of
        // power while the other is written would take both.
        Place(&self.root).did("flush", SUPERBLOCK, disk.flush(self.file))?;
        for ((copy, name), found) in (0..).zip(["A", "B"]).zip(copies) {
            let what = match found {
                Ok(found) if *found == self.superblock => continue,
                Ok(_) => {
                    "was older than the other, as a loss of power between the two writes leaves it".to_owned()
                }
                Err(error) => format!("was damaged ({error})"),
            };
            self.put_copy(disk, copy)?;
            let path = self.root.join(SUPERBLOCK);
            let done = "it was written again from the other";
            self.repairs.push(format!("{}: copy {name} {what}; {done}", path.display()));
        }
        Ok(())
    }
}

type Copies = [Result<Superblock, SuperblockError>; 2];

enum Unusable {
    Newer(u32),
    Damaged,
}

fn newest(copies: &Copies) -> Result<&Superblock, Unusable> {
    let newer = copies.iter().find_map(|c| match c {
        Err(SuperblockError::Format(found)) => Some(*found),
        _ => None,
    });
    if let Some(found) = newer {
        return Err(Unusable::Newer(found));
    }
    match copies {
        [Ok(a), Ok(b)] if a.sequence == b.sequence && a != b => Err(Unusable::Damaged),
        [Ok(a), Ok(b)] => Ok(if a.sequence >= b.sequence { a } else { b }),
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
        [Err(_), Err(_)] => Err(Unusable::Damaged),
    }
}

fn foreign(root: &Path, found: &Superblock, wanted: &Wanted) -> Option<OpenError> {
    let root = root.to_path_buf();
    match wanted.cluster {
        Some(cluster) if cluster != found.cluster => {
            Some(OpenError::ForeignCluster { root, found: found.cluster, wanted: cluster })
        }
        _ if wanted.node != found.node => {
            Some(OpenError::ForeignNode { root, found: found.node, wanted: wanted.node })
        }
        _ => None,
    }
}

/// A directory, for calls whose errors say where they happened.
struct Place<'a>(&'a Path);

impl Place<'_> {
    fn did<T>(&self, doing: &'static str, what: &str, result: Result<T, Fault>) -> Result<T, OpenError> {
        let path = if what.is_empty() { self.0.into() } else { self.0.join(what) };
        result.map_err(|fault| OpenError::Disk { doing, path, fault })
    }

    fn list(&self, disk: &mut dyn Disk) -> Result<Vec<String>, OpenError> {
        let names = self.did("list", "", disk.list(self.0))?;
        Ok(names.iter().filter_map(|n| n.file_name()).map(|n| n.to_string_lossy().into_owned()).collect())
    }

    fn create_superblock(&self, disk: &mut dyn Disk) -> Result<DiskFile, OpenError> {
        self.did("create", SUPERBLOCK, disk.create_zeroed(&self.0.join(SUPERBLOCK), SUPERBLOCK_BYTES))
    }

    fn copies(&self, disk: &mut dyn Disk, file: DiskFile) -> Result<Copies, OpenError> {
        let bytes = self.did("read", SUPERBLOCK, disk.read(file, 0, 2 * BLOCK))?;
        let block = |i: usize| bytes.get(i * BLOCK..(i + 1) * BLOCK).unwrap_or_default();
        Ok([Superblock::decode(block(0)), Superblock::decode(block(1))])
    }

    /// Removes all files of journals and all data files of a directory that holds no promise.
    fn remove_everything(&self, disk: &mut dyn Disk) -> Result<(), OpenError> {
        let names = self.list(disk)?;
        for dir in [JOURNALS, FILES] {
            if !names.iter().any(|n| n == dir) {
                continue;
            }
            for name in Place(&self.0.join(dir)).list(disk)? {
                let removed = disk.remove(&self.0.join(dir).join(&name));
                self.did("remove", &format!("{dir}/{name}"), removed)?;
            }
        }
        Ok(())
    }
}

/// Why a data directory cannot be served.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It holds something, but no superblock.
    NotOurs {
        /// The directory.
        root: PathBuf,
        /// Names in it.
        names: Vec<String>,
    },
    /// It was written by a later version.
    NewerFormat {
        /// The superblock.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Neither copy of the superblock is whole.
    Damaged {
        /// The superblock.
        path: PathBuf,
        /// What is wrong with the first copy; none: nothing, but the copies contradict each other.
        a: Option<SuperblockError>,
        /// What is wrong with the second copy.
        b: Option<SuperblockError>,
    },
    /// It belongs to another cluster.
    ForeignCluster {
        /// The directory.
        root: PathBuf,
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
        wanted: ClusterId,
    },
    /// It belongs to another node of the cluster.
    ForeignNode {
        /// The directory.
        root: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Whose it should be.
        wanted: NodeId,
    },
    /// The disk refused or failed.
    Disk {
        /// What was tried, one word.
        doing: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The kernel's answer.
        fault: Fault,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotOurs { root, names } => {
                let shown: Vec<&str> = names.iter().take(4).map(String::as_str).collect();
                let more = if names.len() > shown.len() { ", ..." } else { "" };
                write!(
                    f,
                    "{}: not a data directory: it has no `{SUPERBLOCK}` but {} other entries ({}{more}); \
                     give an empty or absent directory with --data",
                    root.display(),
                    names.len(),
                    shown.join(", ")
                )
            }
            OpenError::NewerFormat { path, found } => write!(
                f,
                "{}: format {found} was written by a later version; this one knows up to format {FORMAT}; \
                 start the version that wrote it, or a later one",
                path.display()
            ),
            OpenError::Damaged { path, a, b } => {
                let say =
                    |e: &Option<SuperblockError>| e.map_or("contradicts the other".into(), |e| e.to_string());
                write!(
                    f,
                    "{}: neither of its two copies is whole (first: {}; second: {}); nothing was changed; check the \
                     drive and restore this file from a backup of the directory",
                    path.display(),
                    say(a),
                    say(b)
                )
            }
            OpenError::ForeignCluster { root, found, wanted } => write!(
                f,
                "{}: belongs to cluster {found}, but the configuration says cluster {wanted}; give the right directory \
                 with --data, or correct `cluster`",
                root.display()
            ),
            OpenError::ForeignNode { root, found, wanted } => write!(
                f,
                "{}: belongs to node {found}, but the configuration says node {wanted}; give the right directory with \
                 --data, or correct `node`",
                root.display()
            ),
            OpenError::Disk { doing, path, fault } => {
                write!(f, "{}: cannot {doing}: {fault}; {}", path.display(), remedy(fault))
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// What to do about a failed call on the data directory.
fn remedy(fault: &Fault) -> &'static str {
    const ENOENT: i32 = 2;
    const EACCES: i32 = 13;
    const EPERM: i32 = 1;
    const EINVAL: i32 = 22;
    const EMFILE: i32 = 24;
    const EROFS: i32 = 30;
    match fault.errno {
        _ if fault.is_full() => "free space on its filesystem and start again; nothing was lost",
        EACCES | EPERM => "the broker's user needs read and write permission on the directory and all in it",
        EROFS => "its filesystem is mounted read-only; remount it for writing",
        EINVAL => "its filesystem may not support direct I/O (O_DIRECT); use ext4 or XFS",
        EMFILE => "too many open files; raise the limit (ulimit -n)",
        ENOENT => "the file is missing; restore it from a backup of the directory",
        _ => "see the kernel's log for the drive's state",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testdisk::TestDisk;

    const ROOT: &str = "/data";

    fn wanted(shard_count: u16) -> Wanted {
        let (cluster_if_new, journal_first_if_new) = (ClusterId([7; 16]), JournalId(1));
        Wanted { cluster: None, cluster_if_new, journal_first_if_new, node: NodeId(1), shard_count }
    }

    /// A journal of one file with a byte in it.
    fn make_journal(disk: &mut dyn Disk, journal: JournalId) -> Result<(), Fault> {
        let file = disk.create_zeroed(&journal_file(Path::new(ROOT), journal, "ring-00"), BLOCK as u64)?;
        disk.write(file, 0, &Buffer::copy_of(&[7; BLOCK]))?;
        disk.flush(file)?;
        disk.close(file);
        Ok(())
    }

    fn open(disk: &mut TestDisk, wanted: &Wanted) -> Result<DataDir, OpenError> {
        DataDir::open(disk, Path::new(ROOT), wanted, &mut make_journal)
    }

    fn fresh() -> TestDisk {
        TestDisk::with_dir(ROOT)
    }

    fn journals(disk: &mut TestDisk) -> Vec<String> {
        Place(&journal_dir(Path::new(ROOT))).list(disk).unwrap()
    }

    #[test]
    fn a_new_directory_becomes_current_and_opens_again_with_the_same_identity() {
        let mut disk = fresh();
        let dir = open(&mut disk, &wanted(2)).unwrap();
        assert_eq!(dir.found(), Found::New);
        let made = dir.close(&mut disk);
        assert_eq!(made.state, State::Current);
        assert_eq!(journals(&mut disk), ["00000001-ring-00", "00000002-ring-00"]);
        let mut other = wanted(5);
        (other.cluster_if_new, other.journal_first_if_new) = (ClusterId([8; 16]), JournalId(77));
        let again = open(&mut disk, &other).unwrap();
        assert_eq!(again.found(), Found::Existing);
        assert_eq!(*again.superblock(), made, "what was made decides, not what is wanted now");
    }

    #[test]
    fn the_journals_of_a_new_directory_have_random_numbers_and_those_of_later_layouts_count_on() {
        for random in [0, 1, 12_345, u32::MAX] {
            let first = first_journal(random);
            assert!(JOURNALS_FIRST.contains(&first.0), "{first:?}");
            let mut disk = fresh();
            let mut wanted = wanted(2);
            wanted.journal_first_if_new = first;
            let mut dir = open(&mut disk, &wanted).unwrap();
            let ids = |journals: &[JournalId]| journals.iter().map(|j| j.0 - first.0).collect::<Vec<_>>();
            assert_eq!(ids(&dir.superblock().layout.journals), [0, 1]);
            let layout = dir.prepare(&mut disk, 3).unwrap();
            assert_eq!(ids(&layout.journals), [2, 3, 4]);
        }
        assert_ne!(first_journal(1), first_journal(2));
    }

    #[test]
    fn no_two_starts_share_an_incarnation_wherever_the_power_fails() {
        let mut disk = fresh();
        open(&mut disk, &wanted(1)).unwrap();
        let mut last = Incarnation(0);
        for op in 0..12 {
            for seed in 0..8 {
                disk.crash_at(Some(op));
                let raised = open(&mut disk, &wanted(1)).and_then(|mut d| d.raise(&mut disk));
                disk.power_loss(seed);
                // An incarnation whose raise did not come to its end was seen by nobody.
                if let Ok(raised) = raised {
                    assert!(raised > last, "op {op} seed {seed}: {raised} after {last}");
                    last = raised;
                }
            }
        }
        let raised = open(&mut disk, &wanted(1)).unwrap().raise(&mut disk).unwrap();
        assert!(raised > last && last > Incarnation(0));
    }

    #[test]
    fn a_first_start_cut_short_at_any_call_is_made_whole_by_the_next() {
        for op in 0..60 {
            for seed in 0..8 {
                let mut disk = fresh();
                disk.crash_at(Some(op));
                let first = open(&mut disk, &wanted(3)).is_ok();
                disk.power_loss(seed);
                // Cut short again, elsewhere, then left alone.
                disk.crash_at(Some(seed as u32 * 5));
                let _ = open(&mut disk, &wanted(3));
                disk.power_loss(seed + 1);
                let dir = open(&mut disk, &wanted(3)).unwrap_or_else(|e| panic!("op {op} seed {seed}: {e}"));
                assert_eq!(dir.superblock().state, State::Current);
                let names: Vec<String> = (1..=3).map(|j| format!("{j:08x}-ring-00")).collect();
                assert_eq!(journals(&mut disk), names, "op {op} seed {seed}");
                assert!(!first || op > 20, "a first start takes more than 20 calls");
            }
        }
    }

    #[test]
    fn a_change_of_layout_cut_short_leaves_the_old_or_the_new_one_whole() {
        let mut repaired = BTreeSet::new();
        let mut seen_old = false;
        let mut seen_new = false;
        for op in 0..120 {
            for seed in 0..4 {
                let mut disk = fresh();
                open(&mut disk, &wanted(2)).unwrap();
                disk.crash_at(Some(op));
                let _ = open(&mut disk, &wanted(2)).and_then(|mut dir| {
                    let layout = dir.prepare(&mut disk, 3)?;
                    for journal in layout.journals {
                        let failed = |fault| OpenError::Disk { doing: "make", path: "".into(), fault };
                        make_journal(&mut disk, journal).map_err(failed)?;
                        let file = data_file(Path::new(ROOT), FileId::new(journal, 0));
                        disk.create_zeroed(&file, BLOCK as u64).map_err(failed)?;
                    }
                    dir.swing(&mut disk)
                });
                disk.power_loss(seed);
                let dir = open(&mut disk, &wanted(2)).unwrap();
                assert_eq!(dir.superblock().state, State::Current);
                repaired.extend(dir.repairs().iter().cloned());
                let names: Vec<String> =
                    dir.superblock().layout.journals.iter().map(|j| format!("{:08x}-ring-00", j.0)).collect();
                assert_eq!(journals(&mut disk), names, "op {op} seed {seed}");
                let files = Place(&files_dir(Path::new(ROOT))).list(&mut disk).unwrap();
                match (names.len(), files.len()) {
                    (2, 0) => seen_old = true,
                    (3, 3) => seen_new = true,
                    other => panic!("journals and data files {other:?}"),
                }
            }
        }
        assert!(seen_old && seen_new, "the power failed on both sides of the swing");
        for what in ["is undone", "is brought to its end", "copy B was older"] {
            assert!(repaired.iter().any(|repair| repair.contains(what)), "{what}: {repaired:?}");
        }
    }

    #[test]
    fn a_directory_that_is_not_ours_is_refused_and_left_alone() {
        let mut disk = fresh();
        disk.put("/data/photos", b"x");
        let error = open(&mut disk, &wanted(1)).unwrap_err();
        assert!(error.to_string().contains("not a data directory"), "{error}");
        assert_eq!(disk.names(), ["/data/photos"]);

        let mut disk = fresh();
        open(&mut disk, &wanted(1)).unwrap();
        let mut other = wanted(1);
        other.cluster = Some(ClusterId([9; 16]));
        assert!(matches!(open(&mut disk, &other), Err(OpenError::ForeignCluster { .. })));
        other = Wanted { node: NodeId(2), ..wanted(1) };
        let error = open(&mut disk, &other).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/data: belongs to node 1, but the configuration says node 2; give the right directory with --data, or \
             correct `node`"
        );
    }

    #[test]
    fn one_damaged_copy_is_renewed_and_two_are_refused() {
        let mut disk = fresh();
        let made = open(&mut disk, &wanted(1)).unwrap().close(&mut disk);
        for (at, copy) in [(100, "copy A was damaged"), (BLOCK + 100, "copy B was damaged")] {
            disk.flip("/data/superblock", at);
            let dir = open(&mut disk, &wanted(1)).unwrap();
            assert_eq!(*dir.superblock(), made, "the other is whole: it was renewed before");
            assert!(dir.repairs().len() == 1 && dir.repairs()[0].contains(copy), "{:?}", dir.repairs());
            assert_eq!(open(&mut disk, &wanted(1)).unwrap().repairs(), [""; 0], "once");
        }
        disk.flip("/data/superblock", 100);
        disk.flip("/data/superblock", BLOCK + 100);
        let before = disk.clone();
        assert!(matches!(open(&mut disk, &wanted(1)), Err(OpenError::Damaged { .. })));
        assert_eq!(disk.names(), before.names());
    }

    #[test]
    fn a_full_disk_is_told_with_what_to_do_and_leaves_nothing_that_stops_the_next_start() {
        let mut disk = fresh();
        disk.fail_at(3, 28);
        let error = open(&mut disk, &wanted(2)).unwrap_err();
        assert!(error.to_string().contains("free space"), "{error}");
        open(&mut disk, &wanted(2)).unwrap();
    }

    #[test]
    fn names_of_data_files_are_their_ids() {
        let id = FileId::new(JournalId(0x12), 0xabc);
        let path = data_file(Path::new(ROOT), id);
        assert_eq!(path, Path::new("/data/files/00000012-00000abc"));
        assert_eq!(data_file_id(&path), Some(id));
        for other in
            ["x", "0000001-00000001", "+0000012-00000abc", "00000012-00000ABC", "00000012-00000abc.tmp"]
        {
            assert_eq!(data_file_id(Path::new(other)), None, "{other}");
        }
    }
}
