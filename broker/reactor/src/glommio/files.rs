//! File ops of the glommio reactor: a small task each.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glommio::GlommioError;
use glommio::io::{DmaFile, OpenOptions};

use super::{Completion, Shard};
use crate::buffer::{BLOCK, Buffer};
use crate::file::{FileFault, create_allocated, nameless_block, parent, remove};
use crate::op::{Event, Fault, File, Op, OpenHow};
use crate::setup::Flushes;

impl Shard {
    pub(super) fn submit_file(&mut self, op: Op) {
        match op {
            Op::Open { file, path, how } => {
                assert!(!self.files.contains_key(&file), "{file:?} is open already");
                let probed = Rc::clone(&self.probed);
                let flushes = self.setup.flushes.clone();
                let shard = usize::from(self.setup.shard.0);
                self.spawn(async move {
                    if let OpenHow::New { bytes } = how {
                        let name = path.clone();
                        let made = counted(&flushes, shard, move || create_allocated(&name, bytes)).await;
                        if let Err(fault) = made {
                            return Completion::Opened { file, result: Err(fault) };
                        }
                    }
                    Completion::Opened { file, result: open(path, how, probed).await }
                });
            }
            Op::CloseFile { file } => {
                let closing = self.files.remove(&file).unwrap_or_else(|| not_open(file));
                let closing = Rc::into_inner(closing).expect("a file is closed with no op under way");
                self.spawn(async move {
                    // Everything that matters has been flushed; what close says changes nothing.
                    let _ = closing.close().await;
                    Completion::Event(Event::FileClosed { file })
                });
            }
            Op::Read { file, at, len, tag } => {
                assert_blocks("read", at, len);
                let opened = self.opened(file);
                self.spawn(async move {
                    let result = opened.read_at_aligned(at, len).await;
                    let result = result.map_err(|e| fault("read", &e)).map(|read| {
                        let mut buf = Buffer::for_filling(len);
                        buf.extend(&read);
                        buf
                    });
                    Completion::Event(Event::Read { file, tag, result })
                });
            }
            Op::Write { file, at, data, tag } => {
                assert_blocks("write", at, data.len());
                let opened = self.opened(file);
                let mut copy = opened.alloc_dma_buffer(data.len());
                copy.as_bytes_mut().copy_from_slice(&data);
                self.spawn(async move {
                    let result = opened.write_at(copy, at).await.map_err(|e| fault("write", &e));
                    drop(data);
                    Completion::Event(Event::Written { file, tag, result })
                });
            }
            Op::Flush { file, tag } => {
                let opened = self.opened(file);
                let flush = self.setup.flushes.device.submitting(usize::from(self.setup.shard.0));
                self.spawn(async move {
                    let result = opened.fdatasync().await.map_err(|e| fault("flush", &e));
                    Completion::Flushed { file, tag, flush, result }
                });
            }
            Op::Remove { path, tag } => {
                let flushes = self.setup.flushes.clone();
                let shard = usize::from(self.setup.shard.0);
                self.spawn(async move {
                    let result = counted(&flushes, shard, move || remove(&path)).await;
                    Completion::Event(Event::Removed { tag, result })
                });
            }
            other => unreachable!("{other:?} is no op on a file"),
        }
    }

    fn opened(&self, file: File) -> Rc<DmaFile> {
        self.files.get(&file).map_or_else(|| not_open(file), Rc::clone)
    }

    /// Runs the task up to its first wait at once, so that its request lies ready for the kernel.
    fn spawn(&self, task: impl Future<Output = Completion> + 'static) {
        let (done, count) = (Rc::clone(&self.done), Rc::clone(&self.file_tasks));
        count.set(count.get() + 1);
        glommio::spawn_local(async move {
            let completion = task.await;
            count.set(count.get() - 1);
            done.borrow_mut().push(completion);
        })
        .detach();
    }
}

/// Does what flushes on its way, which counts as a flush of the device.
async fn counted(
    flushes: &Flushes,
    shard: usize,
    work: impl FnOnce() -> Result<(), FileFault> + Send + 'static,
) -> Result<(), Fault> {
    let flush = flushes.device.submitting(shard);
    let done = glommio::executor().spawn_blocking(work).await;
    match &done {
        Err(FileFault::Flush(_)) => flushes.device.reaped_fault(flush),
        // No promise rests on it alone: it needs no verdict.
        Ok(()) | Err(FileFault::Refused(_)) => drop(flushes.device.reaped_ok(flush)),
    }
    flushes.reaped();
    Ok(done?)
}

/// Devices of which glommio has found out whether polled reads work.
pub(super) type Probed = Rc<RefCell<HashSet<u64>>>;

async fn open(path: PathBuf, how: OpenHow, probed: Probed) -> Result<DmaFile, Fault> {
    let name = path.clone();
    let device = glommio::executor().spawn_blocking(move || look(&name)).await?;
    if !probed.borrow().contains(&device) {
        let dir = parent(&path).to_owned();
        // Where there are no nameless files, the file itself is the probe.
        if let Ok(block) = glommio::executor().spawn_blocking(move || nameless_block(&dir)).await
            && let Ok(probe) = DmaFile::open(format!("/proc/self/fd/{}", block.as_raw_fd())).await
        {
            let _ = probe.close().await;
        }
        probed.borrow_mut().insert(device);
    }
    let opened = OpenOptions::new().read(true).write(true).dma_open(&path).await;
    if opened.is_err() && matches!(how, OpenHow::New { .. }) {
        let name = path.clone();
        let _ = glommio::executor().spawn_blocking(move || remove(&name)).await;
    }
    opened.map_err(|e| fault(&format!("open {}", path.display()), &e))
}

/// Makes sure that the file is there and holds a block; returns its device.
fn look(path: &Path) -> Result<u64, Fault> {
    let found = fs::metadata(path).map_err(|e| Fault::io("open", path, &e))?;
    if found.len() < BLOCK as u64 {
        let what =
            format!("open {}: it holds {} bytes, less than a block of {BLOCK}", path.display(), found.len());
        return Err(Fault::new(what, 0));
    }
    Ok(found.dev())
}

/// What a flush that said OK ends in after another flush of its device has failed.
pub(super) fn device_fault() -> Fault {
    Fault::new("flush: this one said OK, but another flush of the same device has failed", nix::libc::EIO)
}

fn fault(what: &str, error: &GlommioError<()>) -> Fault {
    match error.raw_os_error() {
        Some(errno) => Fault::new(what, errno),
        None => Fault::new(format!("{what}: {error}"), 0),
    }
}

fn not_open<T>(file: File) -> T {
    panic!("{file:?} is not open")
}

fn assert_blocks(what: &str, at: u64, len: usize) {
    let whole = at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK) && len > 0;
    assert!(whole, "{what} of {len} bytes at {at} is not whole blocks");
}
