//! The place where a broker's data lies: made if it is absent, locked, its storage judged, its superblock open.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_protocol::disk::superblock::SHARDS_MAX;
use tidegate_protocol::ids::{ClusterId, Incarnation, JournalId, NodeId};
use tidegate_reactor::disk::StdDisk;
use tidegate_reactor::facts::{DirLock, LockError, StorageFacts};
use tidegate_reactor::probe::ZeroFill;
use tidegate_reactor::{cpu, probe};

use crate::config::{Config, Shards, Volatile};
use crate::datadir::{self, DataDir, Found, OpenError, Wanted};
use crate::limits::Limits;
use crate::log::flush_rule::FlushRule;
use crate::log::reshard;
use crate::problem::Problem;

/// A locked data directory with its superblock.
#[derive(Debug)]
pub struct Site {
    root: PathBuf,
    disk: StdDisk,
    dir: DataDir,
    incarnation: Incarnation,
    storage: StorageFacts,
    rule: FlushRule,
    made: Made,
    _lock: DirLock,
}

/// Directories that this start has made, the outermost first.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Site {
    /// Opens or makes the directory, judges its storage, raises the incarnation.
    ///
    /// # Errors
    /// If it cannot be served. What was made for it is gone again then.
    pub fn open(config: &Config) -> Result<Site, Problem> {
        let root = config.data.clone();
        let made = Made::make(&root)?;
        let locked = check_ours(&root).and_then(|()| check_direct(&root));
        let locked = locked.and_then(|()| DirLock::take(&root.join("lock")).map_err(|e| lock_problem(&e)));
        let mut lock = match locked {
            Ok(lock) => lock,
            Err(problem) => {
                // Somebody else may be at work in it by now.
                made.unmake_empty();
                return Err(problem);
            }
        };
        match Site::open_locked(config, &root) {
            Ok((disk, dir, incarnation, storage, rule)) => {
                lock.sign().map_err(|e| lock_problem(&e))?;
                Ok(Site { root, disk, dir, incarnation, storage, rule, made, _lock: lock })
            }
            Err(problem) => {
                lock.withdraw();
                made.unmake();
                Err(problem)
            }
        }
    }

    fn open_locked(
        config: &Config,
        root: &Path,
    ) -> Result<(StdDisk, DataDir, Incarnation, StorageFacts, FlushRule), Problem> {
        let place = || format!("--data {}", root.display());
        let storage = gather(root)?;
        let (journals, files) = (datadir::journal_dir(root), datadir::files_dir(root));
        let of = |dir: &Path| if dir.exists() { gather(dir) } else { Ok(storage.clone()) };
        let rule = FlushRule::decide(&of(&journals)?, &of(&files)?).map_err(|e| {
            let fix = "put the data directory on a drive with blocks of at most 4096 bytes";
            Problem::new("the drive's physical blocks are too large", fix)
                .at(place())
                .limits("4096 bytes", format!("{} bytes", e.found))
        })?;
        let wanted = Wanted {
            cluster: config.cluster,
            cluster_if_new: ClusterId(uuid::Uuid::new_v4().into_bytes()),
            // The lowest 32 bits of such an id are all random.
            journal_first_if_new: datadir::first_journal(uuid::Uuid::new_v4().as_u128() as u32),
            node: config.node,
            shard_count: shard_count(config.shards),
        };
        if !root.join("superblock").exists() {
            check_room(root, wanted.shard_count, &config.limits)?;
        }
        let mut disk = StdDisk::new();
        let opened = DataDir::open(&mut disk, root, &wanted, &mut |disk, journal| {
            crate::unit::make_journal(disk, root, &wanted, journal, &config.limits)
        });
        let mut dir = opened.map_err(|e| open_problem(&e))?;
        let count = dir.superblock().layout.journals.len();
        if let Shards::Exactly(asked) = config.shards
            && usize::from(asked) != count
        {
            check_room(root, asked, &config.limits)?;
            reshard::change(&mut disk, &mut dir, &config.limits, &rule, asked).map_err(|e| {
                let fix = format!("start it with --shards {count}, or without --shards");
                Problem::new(format!("the number of shards cannot be changed: {e}"), fix)
                    .at(place())
                    .limits(format!("{count} shards"), format!("{asked} asked for"))
            })?;
        }
        let incarnation = dir.raise(&mut disk).map_err(|e| open_problem(&e))?;
        Ok((disk, dir, incarnation, storage, rule))
    }

    /// The data directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Raised and flushed for this start.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The cluster and node that the directory belongs to.
    pub fn identity(&self) -> (ClusterId, NodeId) {
        let superblock = self.dir.superblock();
        (superblock.cluster, superblock.node)
    }

    /// The journals, one a shard, by shard.
    pub fn journals(&self) -> &[JournalId] {
        &self.dir.superblock().layout.journals
    }

    /// How many flushes make a cycle durable here.
    pub fn flush_rule(&self) -> &FlushRule {
        &self.rule
    }

    /// What the opening has repaired, one sentence each.
    pub fn repairs(&self) -> &[String] {
        self.dir.repairs()
    }

    /// What an operator has to be told at every start.
    pub fn warnings(&self, config: &Config) -> Vec<String> {
        match (&self.rule, config.volatile) {
            (FlushRule::OneFlush, _) => Vec::new(),
            (FlushRule::OwnFlush { why }, _) => {
                vec![format!("each data file is flushed by itself, which is slower: {why}")]
            }
            (FlushRule::MemoryOnly { why }, Volatile::Allowed) => {
                vec![format!(
                    "nothing survives a power loss, and acks=1 is answered all the same (--allow-volatile): {why}"
                )]
            }
            (FlushRule::MemoryOnly { why }, Volatile::Refused) => vec![format!(
                "acks=1 is refused on durable topics, because nothing survives a power loss here: {why}; put the data \
                 directory on a drive, or accept the loss with --allow-volatile"
            )],
        }
    }

    /// What a person wants to know.
    pub fn facts(&self) -> Vec<(String, String)> {
        let durability = match &self.rule {
            FlushRule::OneFlush | FlushRule::OwnFlush { .. } => "disk: acks=1 survives a power loss",
            FlushRule::MemoryOnly { .. } => "memory: nothing survives a power loss",
        };
        let zero_fill = match probe::zero_fill(&self.root) {
            ZeroFill::ByDrive => "by the drive (FALLOC_FL_WRITE_ZEROES)",
            ZeroFill::Written => "written by the broker: the drive or the kernel offers nothing better",
        };
        let data_dir = fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone());
        let cores: Vec<String> = cpu::allowed().iter().map(usize::to_string).collect();
        [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("data_dir", data_dir.display().to_string()),
            ("filesystem", self.storage.filesystem.name().to_owned()),
            ("flush_rule", self.rule.to_string()),
            ("zero_fill", zero_fill.to_owned()),
            ("durability", durability.to_owned()),
            ("shards", self.journals().len().to_string()),
            ("cores", cores.join(",")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// After a clean stop.
    pub fn close(mut self) {
        self.dir.close(&mut self.disk);
    }

    /// After a start that has failed: what this start has made is removed, if it holds no promise.
    pub fn abandon(mut self) {
        let found = self.dir.found();
        self.dir.close(&mut self.disk);
        if found == Found::New {
            self.made.unmake();
        }
    }
}

impl Made {
    fn make(root: &Path) -> Result<Made, Problem> {
        let missing: Vec<PathBuf> =
            root.ancestors().take_while(|dir| is_missing(dir)).map(Path::to_owned).collect();
        let made = Made(missing.into_iter().rev().collect());
        for dir in &made.0 {
            // The name must last as long as what will lie in it.
            let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let flush = || fs::File::open(parent)?.sync_all();
            if let Err(e) = fs::create_dir(dir).and_then(|()| flush()) {
                made.unmake_empty();
                return Err(unsuitable(parent).map_or_else(
                    || explain_io("cannot make the data directory", dir.display().to_string(), &e),
                    |problem| problem.at(format!("--data {}", root.display())),
                ));
            }
        }
        check_directory(root, fs::metadata(root).map(|found| found.is_dir()))?;
        Ok(made)
    }

    /// Only directories that this start has made, and only while it holds the lock: nothing acknowledged can lie in them.
    fn unmake(&self) {
        if let Some(root) = self.0.last() {
            let _ = fs::remove_dir_all(root);
        }
        self.unmake_empty();
    }

    /// Without the lock, what lies in them may be another process's already.
    fn unmake_empty(&self) {
        for dir in self.0.iter().rev() {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// What was found where the data directory should be: whether it is a directory, or why nobody can say.
fn check_directory(root: &Path, is_directory: io::Result<bool>) -> Result<(), Problem> {
    let place = format!("--data {}", root.display());
    match is_directory {
        Ok(true) => Ok(()),
        Ok(false) => {
            let fix = "give a directory with --data, or a path where there is nothing yet";
            Err(Problem::new("the data directory is not a directory", fix).at(place))
        }
        Err(e) => Err(explain_io("cannot look at the data directory", place, &e)),
    }
}

fn is_missing(dir: &Path) -> bool {
    !dir.as_os_str().is_empty()
        && matches!(fs::symlink_metadata(dir), Err(e) if e.kind() == io::ErrorKind::NotFound)
}

fn gather(dir: &Path) -> Result<StorageFacts, Problem> {
    StorageFacts::gather(dir)
        .map_err(|e| explain_io("cannot find out about the storage", dir.display().to_string(), &e))
}

/// Filesystems of the kernel's own, which hold no files of anybody's.
const KERNELS_OWN: [&str; 12] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "securityfs",
    "devpts",
    "mqueue",
    "bpf",
    "configfs",
    "pstore",
];

/// Where no directory can be made whatever the permissions are.
fn unsuitable(parent: &Path) -> Option<Problem> {
    let name = filesystem_of(parent);
    KERNELS_OWN.contains(&name.as_str()).then(|| {
        Problem::new(
            "the filesystem there cannot hold a data directory",
            "give a --data on a drive, formatted as ext4 or XFS",
        )
        .limits("a filesystem that holds files", name)
    })
}

/// Shards of a directory that is made now.
fn shard_count(shards: Shards) -> u16 {
    match shards {
        Shards::Exactly(count) => count,
        Shards::AsFound => u16::try_from(cpu::allowed().len().clamp(1, SHARDS_MAX)).expect("bounded above"),
    }
}

/// A directory of other things is not even locked.
fn check_ours(root: &Path) -> Result<(), Problem> {
    let entries = fs::read_dir(root)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>())
        .map_err(|e| {
            explain_io("cannot read the data directory", format!("--data {}", root.display()), &e)
        })?;
    let mut names: Vec<String> = entries.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.iter().any(|name| name == "superblock") {
        return Ok(());
    }
    names.retain(|name| name != "lock" && name != "lost+found");
    names.sort();
    if names.is_empty() {
        return Ok(());
    }
    Err(open_problem(&OpenError::NotOurs { root: root.to_owned(), names }))
}

fn check_direct(root: &Path) -> Result<(), Problem> {
    let place = format!("--data {}", root.display());
    match probe::direct_io(root) {
        Ok(()) => Ok(()),
        Err(e) if e.raw_os_error() == Some(EINVAL) => Err(Problem::new(
            "the filesystem of the data directory does not support direct I/O (O_DIRECT)",
            "put the data directory on ext4 or XFS",
        )
        .at(place)
        .limits("a filesystem with O_DIRECT", filesystem_of(root))),
        Err(e) => Err(explain_io("cannot write in the data directory", place, &e)),
    }
}

fn filesystem_of(dir: &Path) -> String {
    StorageFacts::gather(dir).map_or_else(|_| "unknown".into(), |facts| facts.filesystem.name().to_owned())
}

/// Space for new journals, before any of them is begun.
fn check_room(root: &Path, shards: u16, limits: &Limits) -> Result<(), Problem> {
    let needed = u64::from(shards) * (limits.ring_bytes() + 3 * limits.checkpoint_slot_bytes) + (64 << 20);
    let Ok(free) = tidegate_reactor::facts::free_space(root).map(|space| space.free_bytes) else {
        return Ok(());
    };
    if free >= needed {
        return Ok(());
    }
    let fix = "free space, give another --data, or start with fewer --shards";
    Err(Problem::new("too little space for the journals of so many shards", fix)
        .at(format!("--data {}", root.display()))
        .limits(format!("{} MiB free for {shards} shards", needed >> 20), format!("{} MiB free", free >> 20)))
}

fn lock_problem(error: &LockError) -> Problem {
    match error {
        LockError::Held { path, holder } => {
            // The one that holds it may not have put its number there yet.
            let lives = !holder.is_empty() && Path::new("/proc").join(holder).exists();
            let holder = if lives { format!("process {holder}") } else { "another process".into() };
            Problem::new(
                "another process serves this data directory",
                "stop that one, or give another --data",
            )
            .at(path.display().to_string())
            .limits("one process at a time", format!("{holder} holds the lock"))
        }
        LockError::File { path, error } => {
            explain_io("cannot lock the data directory", path.display().to_string(), error)
        }
    }
}

fn open_problem(error: &OpenError) -> Problem {
    match error {
        OpenError::Disk { doing, path, fault } => {
            let error = io::Error::from_raw_os_error(fault.errno);
            explain_io(
                format!("cannot {doing} what belongs to the data directory"),
                path.display().to_string(),
                &error,
            )
        }
        OpenError::NotOurs { root, names } => Problem::new(
            "the directory holds other things and no data of Tidegate",
            "give an empty or absent directory with --data",
        )
        .at(format!("--data {}", root.display()))
        .limits(
            "a data directory or an empty one",
            format!("{} other entries, `{}` among them", names.len(), names[0]),
        ),
        OpenError::NewerFormat { path, found } => Problem::new(
            "the data directory was written by a later version",
            "start the version that wrote it, or a later one",
        )
        .at(path.display().to_string())
        .limits(format!("format {}", tidegate_protocol::disk::superblock::FORMAT), format!("format {found}")),
        OpenError::ForeignCluster { root, found, wanted } => Problem::new(
            "the data directory belongs to another cluster",
            "give the right --data, or the right --cluster",
        )
        .at(format!("--data {}", root.display()))
        .limits(format!("cluster {wanted}"), format!("cluster {found}")),
        OpenError::ForeignNode { root, found, wanted } => Problem::new(
            "the data directory belongs to another node",
            "give the right --data, or the right --node",
        )
        .at(format!("--data {}", root.display()))
        .limits(format!("node {wanted}"), format!("node {found}")),
        OpenError::Damaged { path, .. } => Problem::new(
            error.to_string(),
            "nothing was changed; check the drive, and restore this file from a backup of the directory",
        )
        .at(path.display().to_string()),
    }
}

const EINVAL: i32 = 22;

/// What the kernel refused, and what to do about it.
pub fn explain_io(cause: impl Into<String>, place: impl Into<String>, error: &io::Error) -> Problem {
    let cause = format!("{}: {error}", cause.into());
    let fix = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "give the broker's user permission to read and write there, or give another place"
        }
        io::ErrorKind::ReadOnlyFilesystem => "mount it for writing, or give another place",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space there, or give another place"
        }
        io::ErrorKind::NotFound => "make the directory that it should lie in, or correct the path",
        io::ErrorKind::NotADirectory => "a part of the path is a file: correct the path",
        _ if error.raw_os_error() == Some(EMFILE) => "raise the limit of open files: `ulimit -n 65536`",
        _ => "see what the kernel says (`dmesg`), or give another place",
    };
    Problem::new(cause, fix).at(place)
}

const EMFILE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_may_not_be_looked_at_is_told_from_one_that_is_none() {
        let said = |found| check_directory(Path::new("/srv/data"), found).unwrap_err().to_string();
        assert!(said(Ok(false)).contains("is not a directory"));
        let denied = said(Err(io::ErrorKind::PermissionDenied.into()));
        assert!(denied.contains("permission") && !denied.contains("not a directory"), "{denied}");
        assert!(check_directory(Path::new("/srv/data"), Ok(true)).is_ok());
    }

    #[test]
    fn what_another_process_has_put_into_a_new_directory_outlives_a_start_without_the_lock() {
        // Beside the build, not in /tmp, which may be in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let root = dir.path().join("a/b");
        let made = Made::make(&root).unwrap();
        fs::write(root.join("superblock"), b"of the other one").unwrap();
        made.unmake_empty();
        assert!(root.join("superblock").exists());
        made.unmake();
        assert!(!dir.path().join("a").exists());
        let made = Made::make(&root).unwrap();
        made.unmake_empty();
        assert!(!dir.path().join("a").exists());
    }
}
