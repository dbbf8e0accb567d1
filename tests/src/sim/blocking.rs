//! The virtual drive behind [`reactor::disk::Disk`](tidegate_reactor::disk::Disk), for start and recovery: blocking calls,
//! any of which may be the last before the power goes or the process is killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::disk::{Disk, DiskFile};
use tidegate_reactor::op::{Fault, OpenHow};

use super::clock::Clock;
use super::disk::{Data, Inode, VirtualDisk};
use super::trace::{Field, Trace};

/// How a process ends that does not stop by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The drive loses what it has not made durable.
    PowerLoss,
    /// The drive keeps what the process wrote.
    Kill,
}

/// Blocking access to the drive that ends with a crash after a number of calls.
#[derive(Debug)]
pub struct BlockingDisk<'a> {
    disk: &'a mut VirtualDisk,
    clock: &'a mut Clock,
    trace: &'a mut Trace,
    open: BTreeMap<DiskFile, Inode>,
    next: u64,
    /// Calls until the crash; none: no crash.
    crash: Option<(u64, Crash)>,
    calls: u64,
    crashed: bool,
}

impl<'a> BlockingDisk<'a> {
    /// Access that crashes at the call of that number, counted from 0.
    pub fn new(
        disk: &'a mut VirtualDisk,
        clock: &'a mut Clock,
        trace: &'a mut Trace,
        crash: Option<(u64, Crash)>,
    ) -> BlockingDisk<'a> {
        BlockingDisk { disk, clock, trace, open: BTreeMap::new(), next: 1, crash, calls: 0, crashed: false }
    }

    /// Whether the crash has come: every error since then is its consequence.
    pub fn crashed(&self) -> bool {
        self.crashed
    }

    /// How many calls were made.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    fn note(&mut self, what: &'static str, path: &Path, fields: &[Field]) {
        self.clock.advance(self.clock.now_ns() + 20_000);
        self.trace.note(self.clock.now_ns(), what, &path.display().to_string(), fields);
    }

    /// Counts a call; `true` if the process ends in the middle of it.
    fn ends_here(&mut self) -> bool {
        let ends = self.crash.is_some_and(|(at, _)| at == self.calls);
        self.calls += 1;
        ends
    }

    /// Ends the process now, with whatever op is under way on the drive.
    fn crash<T>(&mut self) -> Result<T, Fault> {
        if !self.crashed {
            self.crashed = true;
            match self.crash {
                Some((_, Crash::Kill)) => self.disk.kill(),
                _ => self.disk.power_loss(),
            }
            self.note("crash in a call", Path::new(""), &[("call", self.calls - 1)]);
        }
        Err(Fault { what: "the simulated process has ended".to_string(), errno: 0 })
    }

    fn inode(&self, file: DiskFile) -> Inode {
        *self.open.get(&file).unwrap_or_else(|| panic!("{file:?} is not open"))
    }

    fn opened(&mut self, inode: Inode) -> DiskFile {
        let file = DiskFile(self.next);
        self.next += 1;
        self.open.insert(file, inode);
        file
    }
}

impl Disk for BlockingDisk<'_> {
    fn open(&mut self, path: &Path) -> Result<DiskFile, Fault> {
        if self.crashed || self.ends_here() {
            return self.crash();
        }
        self.note("d.open", path, &[]);
        let inode = self.disk.lookup(path)?;
        Ok(self.opened(inode))
    }

    fn create_zeroed(&mut self, path: &Path, bytes: u64) -> Result<DiskFile, Fault> {
        self.note("d.create", path, &[("bytes", bytes)]);
        let ticket = (!self.crashed).then(|| self.disk.begin_open(path, OpenHow::New { bytes }));
        if self.crashed || self.ends_here() {
            return self.crash();
        }
        let inode = self.disk.end_open(ticket.expect("the process lives"))?;
        if self.ends_here() {
            return self.crash();
        }
        self.disk.initialise(inode);
        Ok(self.opened(inode))
    }

    fn len(&mut self, file: DiskFile) -> Result<u64, Fault> {
        if self.crashed {
            return self.crash();
        }
        Ok(self.disk.len(self.inode(file)))
    }

    fn read(&mut self, file: DiskFile, at: u64, len: usize) -> Result<Buffer, Fault> {
        if self.crashed || self.ends_here() {
            return self.crash();
        }
        let inode = self.inode(file);
        let result = self.disk.read(inode, at, len);
        let crc = result.as_ref().map_or(0, |b| crc32c::crc32c(b));
        self.note(
            "d.read",
            Path::new(""),
            &[("inode", inode.0), ("at", at), ("len", len as u64), ("crc", crc.into())],
        );
        result
    }

    fn write(&mut self, file: DiskFile, at: u64, data: &Buffer) -> Result<(), Fault> {
        if self.crashed {
            return self.crash();
        }
        let inode = self.inode(file);
        let crc = crc32c::crc32c(data);
        let len = data.len() as u64;
        self.note(
            "d.write",
            Path::new(""),
            &[("inode", inode.0), ("at", at), ("len", len), ("crc", crc.into())],
        );
        // A buffer of its own: short writes are continued inside the call, so only a whole write or an error comes out.
        let mut done = 0;
        while done < data.len() {
            let rest = View::copy_of(&data[done..]);
            let ticket = self.disk.begin_write(inode, at + done as u64, Data::Bytes(rest));
            if self.ends_here() {
                return self.crash();
            }
            done += self.disk.end_write(ticket)?;
        }
        Ok(())
    }

    fn flush(&mut self, file: DiskFile) -> Result<(), Fault> {
        if self.crashed {
            return self.crash();
        }
        let inode = self.inode(file);
        let ticket = self.disk.begin_flush(inode);
        if self.ends_here() {
            return self.crash();
        }
        let result = self.disk.end_flush(ticket);
        self.note("d.flush", Path::new(""), &[("inode", inode.0), ("ok", result.is_ok().into())]);
        result
    }

    fn close(&mut self, file: DiskFile) {
        if !self.crashed {
            self.open.remove(&file);
        }
    }

    fn create_dir(&mut self, path: &Path) -> Result<(), Fault> {
        if self.crashed || self.ends_here() {
            return self.crash();
        }
        self.note("d.create_dir", path, &[]);
        self.disk.create_dir(path)
    }

    fn list(&mut self, path: &Path) -> Result<Vec<PathBuf>, Fault> {
        if self.crashed || self.ends_here() {
            return self.crash();
        }
        self.note("d.list", path, &[]);
        if !self.disk.has_dir(path) {
            return Err(Fault { what: format!("list {}", path.display()), errno: 2 });
        }
        Ok(self.disk.list(path))
    }

    fn remove(&mut self, path: &Path) -> Result<(), Fault> {
        if self.crashed {
            return self.crash();
        }
        let ticket = self.disk.begin_remove(path);
        if self.ends_here() {
            return self.crash();
        }
        self.note("d.remove", path, &[]);
        self.disk.end_remove(ticket)
    }
}
