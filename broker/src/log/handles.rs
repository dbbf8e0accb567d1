//! Which data files are open, under which number, and who uses them.
//!
//! A file is opened when somebody wants it and closed when too many are open and nobody uses it, the one not used for longest
//! first. A thousand idle logs hold no descriptor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidegate_protocol::ids::FileId;
use tidegate_reactor::op::{Fault, File, Op, OpenHow};

use crate::datadir;

/// The upper 16 bits of the numbers of data files.
pub(crate) const FILE_SPACE: u64 = 0x0102 << 48;

/// The open data files of a shard.
///
/// Invariants: a file with users is open or being opened; `by_io` names exactly the files in `open`.
#[derive(Debug)]
pub(crate) struct Handles {
    root: PathBuf,
    open: BTreeMap<FileId, Handle>,
    by_io: BTreeMap<File, FileId>,
    next: u64,
    uses: u64,
    open_max: usize,
}

#[derive(Debug)]
struct Handle {
    io: File,
    state: State,
    users: u32,
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Closing,
}

impl Handles {
    /// None open.
    pub(crate) fn new(root: PathBuf, open_max: u32) -> Handles {
        let open_max = open_max as usize;
        Handles { root, open: BTreeMap::new(), by_io: BTreeMap::new(), next: 0, uses: 0, open_max }
    }

    /// The file's number if it is open; else it is being opened when this returns.
    pub(crate) fn get(&mut self, file: FileId, ops: &mut Vec<Op>) -> Option<File> {
        self.uses += 1;
        match self.open.get_mut(&file) {
            Some(handle) => {
                handle.used = self.uses;
                (handle.state == State::Open).then_some(handle.io)
            }
            None => {
                self.begin(file, OpenHow::Existing, ops);
                None
            }
        }
    }

    /// As [`Handles::get`], and the file stays open until [`Handles::put_back`].
    pub(crate) fn take(&mut self, file: FileId, ops: &mut Vec<Op>) -> Option<File> {
        let io = self.get(file, ops)?;
        self.open.get_mut(&file).expect("it is open").users += 1;
        Some(io)
    }

    /// The end of one [`Handles::take`].
    pub(crate) fn put_back(&mut self, file: FileId) {
        let handle = self.open.get_mut(&file).expect("a file in use is open");
        handle.users = handle.users.checked_sub(1).expect("a file is put back as often as it was taken");
    }

    /// Makes a file that does not exist.
    pub(crate) fn create(&mut self, file: FileId, bytes: u64, ops: &mut Vec<Op>) {
        assert!(!self.open.contains_key(&file), "data file {file} is new");
        self.begin(file, OpenHow::New { bytes }, ops);
    }

    /// Whether nobody uses the file.
    pub(crate) fn idle(&self, file: FileId) -> bool {
        self.open.get(&file).is_none_or(|handle| handle.users == 0)
    }

    /// Whether no file is on its way to being open or closed.
    pub(crate) fn all_at_rest(&self) -> bool {
        self.open.values().all(|handle| handle.state == State::Open)
    }

    /// Whether the file is open.
    pub(crate) fn is_open(&self, file: FileId) -> bool {
        self.open.get(&file).is_some_and(|handle| handle.state == State::Open)
    }

    /// The file of that number.
    pub(crate) fn file_of(&self, io: File) -> Option<FileId> {
        self.by_io.get(&io).copied()
    }

    /// The end of an opening. Returns the file it was about.
    pub(crate) fn on_opened(&mut self, io: File, result: &Result<(), Fault>) -> FileId {
        let file = *self.by_io.get(&io).expect("only what was asked for is opened");
        if result.is_ok() {
            self.open.get_mut(&file).expect("named by its number").state = State::Open;
        } else {
            self.open.remove(&file);
            self.by_io.remove(&io);
        }
        file
    }

    /// The end of a closing.
    pub(crate) fn on_closed(&mut self, io: File) {
        let file = self.by_io.remove(&io).expect("only what was open is closed");
        self.open.remove(&file);
    }

    /// Closes a file that is open and used by nobody.
    pub(crate) fn close(&mut self, file: FileId, ops: &mut Vec<Op>) {
        let handle = self.open.get_mut(&file).filter(|h| h.state == State::Open && h.users == 0);
        let handle = handle.expect("a file that is closed is open and not in use");
        handle.state = State::Closing;
        ops.push(Op::CloseFile { file: handle.io });
    }

    /// Whether the file is neither open nor on its way there or back.
    pub(crate) fn is_closed(&self, file: FileId) -> bool {
        !self.open.contains_key(&file)
    }

    /// Closes what is open beyond the limit and used by nobody.
    pub(crate) fn close_unused(&mut self, ops: &mut Vec<Op>) {
        if self.open.len() <= self.open_max {
            return;
        }
        let mut unused: Vec<(u64, FileId)> = self
            .open
            .iter()
            .filter(|(_, handle)| handle.state == State::Open && handle.users == 0)
            .map(|(file, handle)| (handle.used, *file))
            .collect();
        unused.sort();
        // A quarter at once, so that this is not done again for each file.
        let many = self.open.len() - self.open_max + self.open_max / 4;
        for (_, file) in unused.into_iter().take(many) {
            let handle = self.open.get_mut(&file).expect("it was just listed");
            handle.state = State::Closing;
            ops.push(Op::CloseFile { file: handle.io });
        }
    }

    /// Files that are open or on the way there or back.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    fn begin(&mut self, file: FileId, how: OpenHow, ops: &mut Vec<Op>) {
        self.next += 1;
        let io = File(FILE_SPACE | self.next);
        self.open.insert(file, Handle { io, state: State::Opening, users: 0, used: self.uses });
        self.by_io.insert(io, file);
        ops.push(Op::Open { file: io, path: datadir::data_file(&self.root, file), how });
    }
}
