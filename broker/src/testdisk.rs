//! A disk in memory for the tests of this package: what is written and not flushed may be lost, at any call the power may
//! fail. The simulator's virtual drive knows more kinds of loss; this one is small enough to be tried at every call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidegate_reactor::buffer::{BLOCK, Buffer};
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::{Event, Fault, File, FreeSpace, Now, Op, OpenHow};

const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;

/// Files in memory. A file's durable bytes are what its last flush covered; names are durable at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestDisk {
    files: BTreeMap<PathBuf, Bytes>,
    dirs: Vec<PathBuf>,
    open: BTreeMap<DiskFile, PathBuf>,
    next: u64,
    calls: u32,
    crash_at: Option<u32>,
    fail_at: Option<(u32, i32)>,
    /// There is no room for another file.
    pub(crate) full: bool,
    /// Every read fails.
    pub(crate) reads_fail: bool,
    /// What is said of free space; none: nobody knows.
    pub(crate) space: Option<FreeSpace>,
}

#[derive(Clone, Debug, Default)]
struct Bytes {
    durable: Vec<u8>,
    now: Vec<u8>,
}

impl TestDisk {
    pub(crate) fn with_dir(path: &str) -> TestDisk {
        TestDisk { dirs: vec![path.into()], ..TestDisk::default() }
    }

    /// From the `at`th call from now on, every call fails as if the power were gone.
    pub(crate) fn crash_at(&mut self, at: Option<u32>) {
        self.calls = 0;
        self.crash_at = at;
    }

    /// The `at`th call from now fails with that error, the others do not.
    pub(crate) fn fail_at(&mut self, at: u32, errno: i32) {
        self.calls = 0;
        self.fail_at = Some((at, errno));
    }

    /// Calls since [`TestDisk::fail_at`] or [`TestDisk::crash_at`].
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    /// Each block that was not flushed becomes old, new or half of each, as the seed says; the power is back.
    pub(crate) fn power_loss(&mut self, seed: u64) {
        self.crash_at = None;
        self.open.clear();
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for bytes in self.files.values_mut() {
            for (new, old) in bytes.now.chunks_mut(BLOCK).zip(bytes.durable.chunks(BLOCK)) {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let keep = match dice % 3 {
                    0 => 0,
                    1 => new.len(),
                    _ => new.len() / 2,
                };
                new[keep..].copy_from_slice(&old[keep..]);
            }
            bytes.durable.clone_from(&bytes.now);
        }
    }

    /// As if the drive's cache had been flushed.
    pub(crate) fn all_durable(&mut self) {
        self.files.values_mut().for_each(|bytes| bytes.durable.clone_from(&bytes.now));
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.files.keys().map(|p| p.display().to_string()).collect()
    }

    pub(crate) fn len_of(&self, path: &str) -> usize {
        self.files[Path::new(path)].now.len()
    }

    pub(crate) fn bytes_of(&self, path: &str) -> &[u8] {
        &self.files[Path::new(path)].now
    }

    pub(crate) fn is_durable_zeros(&self, path: &str) -> bool {
        let bytes = &self.files[Path::new(path)];
        !bytes.durable.is_empty() && bytes.durable.iter().chain(&bytes.now).all(|b| *b == 0)
    }

    pub(crate) fn put(&mut self, path: &str, bytes: &[u8]) {
        self.files.insert(path.into(), Bytes { durable: bytes.to_vec(), now: bytes.to_vec() });
    }

    pub(crate) fn flip(&mut self, path: &str, at: usize) {
        let bytes = self.files.get_mut(Path::new(path)).expect("the file exists");
        bytes.now[at] ^= 1;
        bytes.durable[at] ^= 1;
    }

    pub(crate) fn truncate(&mut self, path: &str, len: usize) {
        let bytes = self.files.get_mut(Path::new(path)).expect("the file exists");
        bytes.now.truncate(len);
        bytes.durable.truncate(len);
    }

    fn call(&mut self, what: &str, path: &Path) -> Result<(), Fault> {
        let call = self.calls;
        self.calls += 1;
        let fault = |errno| Err(Fault { what: format!("{what} {}", path.display()), errno });
        if self.crash_at.is_some_and(|at| call >= at) {
            return fault(EIO);
        }
        match self.fail_at {
            Some((at, errno)) if at == call => fault(errno),
            _ => Ok(()),
        }
    }

    fn path(&self, file: DiskFile) -> PathBuf {
        self.open.get(&file).expect("the file is open").clone()
    }

    fn handle(&mut self, path: &Path) -> DiskFile {
        self.next += 1;
        self.open.insert(DiskFile(self.next), path.into());
        DiskFile(self.next)
    }
}

impl Disk for TestDisk {
    fn open(&mut self, path: &Path) -> Result<DiskFile, Fault> {
        self.call("open", path)?;
        if !self.files.contains_key(path) {
            return Err(Fault { what: format!("open {}", path.display()), errno: ENOENT });
        }
        Ok(self.handle(path))
    }

    fn create_zeroed(&mut self, path: &Path, bytes: u64) -> Result<DiskFile, Fault> {
        self.call("create", path)?;
        if self.files.contains_key(path) {
            return Err(Fault { what: format!("create {}", path.display()), errno: EEXIST });
        }
        if self.full {
            return Err(Fault { what: format!("fill {}", path.display()), errno: ENOSPC });
        }
        assert!(path.parent().is_some_and(|p| self.dirs.iter().any(|d| d == p)), "no directory for {path:?}");
        self.files.insert(path.into(), Bytes::default());
        self.call("fill", path)?;
        let zeros = vec![0; bytes as usize];
        self.files.insert(path.into(), Bytes { durable: zeros.clone(), now: zeros });
        Ok(self.handle(path))
    }

    fn len(&mut self, file: DiskFile) -> Result<u64, Fault> {
        let path = self.path(file);
        self.call("length of", &path)?;
        Ok(self.files[&path].now.len() as u64)
    }

    fn read(&mut self, file: DiskFile, at: u64, len: usize) -> Result<Buffer, Fault> {
        let path = self.path(file);
        self.call("read", &path)?;
        if self.reads_fail {
            return Err(Fault { what: format!("read {}", path.display()), errno: EIO });
        }
        let bytes = &self.files[&path].now;
        let end = bytes.len().min(at as usize + len);
        Ok(Buffer::copy_of(bytes.get(at as usize..end).unwrap_or_default()))
    }

    fn write(&mut self, file: DiskFile, at: u64, data: &Buffer) -> Result<(), Fault> {
        let path = self.path(file);
        self.call("write", &path)?;
        assert!(
            at.is_multiple_of(BLOCK as u64) && data.len().is_multiple_of(BLOCK),
            "direct writes are whole blocks"
        );
        let bytes = self.files.get_mut(&path).expect("an open file exists");
        bytes.now[at as usize..at as usize + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self, file: DiskFile) -> Result<(), Fault> {
        let path = self.path(file);
        self.call("flush", &path)?;
        let bytes = self.files.get_mut(&path).expect("an open file exists");
        bytes.durable.clone_from(&bytes.now);
        Ok(())
    }

    fn close(&mut self, file: DiskFile) {
        self.open.remove(&file);
    }

    fn create_dir(&mut self, path: &Path) -> Result<(), Fault> {
        self.call("create directory", path)?;
        if !self.dirs.iter().any(|d| d == path) {
            self.dirs.push(path.into());
        }
        Ok(())
    }

    fn list(&mut self, path: &Path) -> Result<Vec<PathBuf>, Fault> {
        self.call("list", path)?;
        let all = self.files.keys().chain(&self.dirs).filter(|p| p.parent() == Some(path));
        let mut names: Vec<PathBuf> = all.filter_map(|p| p.file_name()).map(PathBuf::from).collect();
        names.sort();
        Ok(names)
    }

    fn remove(&mut self, path: &Path) -> Result<(), Fault> {
        self.call("remove", path)?;
        self.files.remove(path).map(|_| ()).ok_or(Fault { what: "remove".into(), errno: ENOENT })
    }
}

/// A reactor's side of files, over a [`TestDisk`]: ops are done in the order given when the test asks for their events.
#[derive(Debug, Default)]
pub(crate) struct TestDrive {
    pub(crate) disk: TestDisk,
    /// Whether no file can be made.
    pub(crate) full: bool,
    /// Whether every flush ends with EIO.
    pub(crate) flushes_fail: bool,
    open: BTreeMap<File, DiskFile>,
    under_way: Vec<Op>,
    cut_next_write: Option<usize>,
    mono_ns: u64,
    /// How far the wall clock is from where it should be.
    pub(crate) wall_off_ms: i64,
}

impl TestDrive {
    pub(crate) fn with_dir(path: &str) -> TestDrive {
        TestDrive { disk: TestDisk::with_dir(path), ..TestDrive::default() }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono_ns: self.mono_ns,
            wall_ms: 1_000_000 + (self.mono_ns / 1_000_000) as i64 + self.wall_off_ms,
        }
    }

    pub(crate) fn pass(&mut self, ns: u64) {
        self.mono_ns += ns;
    }

    pub(crate) fn submit(&mut self, ops: Vec<Op>) {
        self.under_way.extend(ops);
    }

    /// As after a restart of the process.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
        self.under_way.clear();
    }

    /// Does all ops under way and returns their events; timers that are not due stay.
    pub(crate) fn complete(&mut self) -> Vec<Event> {
        self.complete_at_most(usize::MAX)
    }

    /// Likewise, the oldest `count` of them.
    pub(crate) fn complete_at_most(&mut self, count: usize) -> Vec<Event> {
        let ops = std::mem::take(&mut self.under_way);
        let mut events = Vec::new();
        for op in ops {
            match op {
                Op::Timer { at_ns, .. } if at_ns > self.mono_ns => self.under_way.push(op),
                op if events.len() == count => self.under_way.push(op),
                op => events.push(self.one(op)),
            }
        }
        events
    }

    /// The next write does no more than `bytes`.
    pub(crate) fn cut_next_write(&mut self, bytes: usize) {
        self.cut_next_write = Some(bytes);
    }

    /// The power fails: some of the writes under way have reached the drive, and it loses what was not flushed.
    pub(crate) fn power_loss(&mut self, seed: u64) {
        let ops = std::mem::take(&mut self.under_way);
        let writes = ops.into_iter().filter(|op| matches!(op, Op::Write { .. } | Op::Zero { .. }));
        for (i, write) in writes.enumerate() {
            if (seed >> (i % 60)) & 1 == 1 {
                self.one(write);
            }
        }
        self.close_all();
        self.disk.power_loss(seed);
    }

    fn keep(&mut self, file: File, handle: DiskFile) {
        self.open.insert(file, handle);
    }

    fn one(&mut self, op: Op) -> Event {
        match op {
            Op::Open { file, path, how } => {
                let opened = match how {
                    OpenHow::Existing => self.disk.open(&path),
                    OpenHow::New { .. } if self.full => Err(Fault { what: "open".into(), errno: ENOSPC }),
                    OpenHow::New { bytes } => self.disk.create_zeroed(&path, bytes).inspect(|_| {
                        // Allocated is not initialised.
                        let garbage = vec![0xee; bytes as usize];
                        self.disk.put(&path.display().to_string(), &garbage);
                    }),
                };
                Event::Opened { file, result: opened.map(|handle| self.keep(file, handle)) }
            }
            Op::CloseFile { file } => {
                let handle = self.open.remove(&file).expect("an open file is closed");
                self.disk.close(handle);
                Event::FileClosed { file }
            }
            Op::Read { file, at, len, tag } => {
                let result = self.disk.read(self.open[&file], at, len);
                Event::Read { file, tag, result }
            }
            Op::Write { file, at, data, tag } => {
                let data = match self.cut_next_write.take() {
                    Some(bytes) if bytes < data.len() => data.slice(0..bytes),
                    _ => data,
                };
                let result = self.disk.write(self.open[&file], at, &Buffer::copy_of(&data));
                Event::Written { file, tag, result: result.map(|()| data.len()) }
            }
            Op::Zero { file, at, len, tag } => {
                let zeros = Buffer::copy_of(&vec![0; len]);
                let result = self.disk.write(self.open[&file], at, &zeros).map(|()| len);
                Event::Written { file, tag, result }
            }
            Op::Flush { file, tag } => {
                let result = match self.flushes_fail {
                    true => Err(Fault::new("flush", EIO)),
                    false => self.disk.flush(self.open[&file]),
                };
                Event::Flushed { file, tag, result }
            }
            Op::Remove { path, tag } => Event::Removed { tag, result: self.disk.remove(&path) },
            Op::FreeSpace { tag, .. } => {
                let result = self.disk.space.ok_or(Fault::new("look for free space", EIO));
                Event::FreeSpace { tag, result }
            }
            Op::Timer { tag, .. } => Event::Timer { tag },
            other => panic!("not an op on files: {other:?}"),
        }
    }
}
