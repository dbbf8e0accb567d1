//! The rules about files.

use tidegate_reactor::buffer::{BLOCK, View};
use tidegate_reactor::op::{Event, File, Loop, Now, Op, OpenHow, Tag, Turn};

use super::{MakeTurn, World, machine, pattern, run_one, unexpected};

/// A script of file ops, one after the other: each checks the event of the one before.
struct FileScript {
    steps: std::vec::IntoIter<(Op, Check)>,
    check: Option<Check>,
}

type Check = Box<dyn FnOnce(Event) + Send>;

impl Turn for FileScript {
    fn turn(&mut self, _: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        for event in events.drain(..) {
            let check = self.check.take().expect("one event an op");
            check(event);
        }
        if self.check.is_some() {
            return Loop::Continue;
        }
        match self.steps.next() {
            Some((op, check)) => {
                ops.push(op);
                self.check = Some(check);
                Loop::Continue
            }
            None => Loop::Stop,
        }
    }
}

/// `make` runs on the shard's thread, because views do not travel.
fn file_script(make: impl FnOnce() -> Vec<(Op, Check)> + Send + 'static) -> MakeTurn {
    Box::new(move || Box::new(FileScript { steps: make().into_iter(), check: None }))
}

fn check(check: impl FnOnce(Event) + Send + 'static) -> Check {
    Box::new(check)
}

fn is_opened() -> Check {
    check(|event| assert!(matches!(event, Event::Opened { result: Ok(()), .. }), "{event:?}"))
}

fn is_flushed() -> Check {
    check(|event| assert!(matches!(event, Event::Flushed { tag: Tag(3), result: Ok(()), .. }), "{event:?}"))
}

fn is_written(bytes: usize) -> Check {
    check(move |event| match event {
        Event::Written { file: FILE, tag: Tag(2), result } => assert_eq!(result, Ok(bytes)),
        other => unexpected(Some(other)),
    })
}

fn holds(expected: Vec<u8>) -> Check {
    check(move |event| match event {
        Event::Read { file: FILE, tag: Tag(4), result: Ok(buf) } => {
            assert!(*buf == *expected, "{buf:?} differs")
        }
        other => unexpected(Some(other)),
    })
}

const FILE: File = File(0x0100_0000_0000_0007);

fn read(block: u64, blocks: usize) -> Op {
    Op::Read { file: FILE, at: block * BLOCK as u64, len: blocks * BLOCK, tag: Tag(4) }
}

fn write(block: u64, bytes: &[u8]) -> Op {
    Op::Write { file: FILE, at: block * BLOCK as u64, data: View::copy_of(bytes), tag: Tag(2) }
}

/// Create, write, flush, read, close, open again, read, remove.
pub fn what_is_written_and_flushed_is_read_back(world: &mut dyn World) {
    let path = world.dir().join("data");
    let (one, two) = (pattern(BLOCK, 1), pattern(2 * BLOCK, 2));
    let script = file_script(move || {
        let open = |how| Op::Open { file: FILE, path: path.clone(), how };
        // A part of a larger view: only that part is written.
        let large = View::copy_of(&[pattern(BLOCK, 8), two.clone(), pattern(BLOCK, 9)].concat());
        let part = large.slice(BLOCK..3 * BLOCK);
        vec![
            (open(OpenHow::New { bytes: 8 * BLOCK as u64 }), is_opened()),
            (write(0, &one), is_written(BLOCK)),
            (Op::Write { file: FILE, at: 6 * BLOCK as u64, data: part, tag: Tag(2) }, is_written(2 * BLOCK)),
            (Op::Flush { file: FILE, tag: Tag(3) }, is_flushed()),
            (read(0, 1), holds(one.clone())),
            (read(6, 2), holds(two.clone())),
            (read(7, 4), holds(two[BLOCK..].to_vec())),
            (read(8, 1), holds(Vec::new())),
            (read(1, 5), holds(vec![0; 5 * BLOCK])),
            (Op::CloseFile { file: FILE }, check(|e| assert!(matches!(e, Event::FileClosed { file: FILE })))),
            (open(OpenHow::Existing), is_opened()),
            (read(0, 1), holds(one.clone())),
            (Op::CloseFile { file: FILE }, check(|e| assert!(matches!(e, Event::FileClosed { file: FILE })))),
            (
                Op::Remove { path: path.clone(), tag: Tag(1) },
                check(|e| assert!(matches!(e, Event::Removed { tag: Tag(1), result: Ok(()) }), "{e:?}")),
            ),
            (open(OpenHow::Existing), check(|e| assert!(matches!(e, Event::Opened { result: Err(_), .. })))),
        ]
    });
    run_one(world, script, vec![]);
}

/// Sixty-four writes of different lengths at once, then one flush, then one read of all.
pub fn many_writes_under_way_end_once_each(world: &mut dyn World) {
    const WRITES: u64 = 64;
    let path = world.dir().join("many");
    let block_of = |n: u64| n * (n - 1) / 2;
    let total = block_of(WRITES + 1);
    let mut open = [true; WRITES as usize + 1];
    let mut written = 0;
    let turn = move |_: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {
                let how = OpenHow::New { bytes: total * BLOCK as u64 };
                ops.push(Op::Open { file: FILE, path: path.clone(), how });
            }
            Some(Event::Opened { result, .. }) => {
                assert_eq!(result, Ok(()));
                ops.extend((1..=WRITES).map(|n| Op::Write {
                    file: FILE,
                    at: block_of(n) * BLOCK as u64,
                    data: View::copy_of(&pattern(n as usize * BLOCK, n)),
                    tag: Tag(n),
                }));
            }
            Some(Event::Written { tag, result, .. }) => {
                assert_eq!(result, Ok(tag.0 as usize * BLOCK));
                assert!(std::mem::take(&mut open[tag.0 as usize]), "{tag:?} ended twice");
                written += 1;
                if written == WRITES {
                    ops.push(Op::Flush { file: FILE, tag: Tag(0) });
                }
            }
            Some(Event::Flushed { result, .. }) => {
                assert_eq!(result, Ok(()));
                ops.push(read(0, total as usize));
            }
            Some(Event::Read { result, .. }) => {
                let buf = result.expect("a read of a whole file");
                let expected: Vec<u8> = (1..=WRITES).flat_map(|n| pattern(n as usize * BLOCK, n)).collect();
                assert!(*buf == *expected, "what was read differs from what was written");
                return Loop::Stop;
            }
            other => unexpected(other),
        }
        Loop::Continue
    };
    run_one(world, machine(turn), vec![]);
}

/// Two blocks of zeros in the middle of a file that held other things.
pub fn a_range_is_filled_with_zeros_and_its_neighbours_stay(world: &mut dyn World) {
    let path = world.dir().join("zeros");
    let script = file_script(move || {
        let mut expected = pattern(5 * BLOCK, 8);
        let write = Op::Write { file: FILE, at: 0, data: View::copy_of(&expected), tag: Tag(2) };
        expected[2 * BLOCK..4 * BLOCK].fill(0);
        vec![
            (Op::Open { file: FILE, path, how: OpenHow::New { bytes: 5 * BLOCK as u64 } }, is_opened()),
            (write, is_written(5 * BLOCK)),
            (
                Op::Zero { file: FILE, at: 2 * BLOCK as u64, len: 2 * BLOCK, tag: Tag(2) },
                is_written(2 * BLOCK),
            ),
            (Op::Flush { file: FILE, tag: Tag(3) }, is_flushed()),
            (read(0, 5), holds(expected)),
        ]
    });
    run_one(world, script, vec![]);
}

/// A missing file, an existing file created anew, an empty file, a file removed twice.
pub fn errors_of_files_are_events(world: &mut dyn World) {
    let dir = world.dir();
    let script = file_script(move || {
        let open = |name: &str, how| Op::Open { file: FILE, path: dir.join(name), how };
        let new = OpenHow::New { bytes: BLOCK as u64 };
        let refused =
            || check(|e| assert!(matches!(e, Event::Opened { file: FILE, result: Err(_) }), "{e:?}"));
        let removed = |worked: Worked| {
            check(move |event| match event {
                Event::Removed { tag: Tag(6), result } => assert_eq!(result.is_ok(), worked == Worked::Yes),
                other => unexpected(Some(other)),
            })
        };
        vec![
            (open("missing", OpenHow::Existing), refused()),
            (open("missing/below", new), refused()),
            (open("there", new), is_opened()),
            (Op::CloseFile { file: FILE }, check(|e| assert!(matches!(e, Event::FileClosed { .. })))),
            (open("there", new), refused()),
            (open("there", OpenHow::Existing), is_opened()),
            (Op::Remove { path: dir.join("there"), tag: Tag(6) }, removed(Worked::Yes)),
            (Op::Remove { path: dir.join("there"), tag: Tag(6) }, removed(Worked::No)),
        ]
    });
    run_one(world, script, vec![]);
}

/// A filesystem has some room, and less than it is large.
pub fn free_space_is_that_of_the_filesystem(world: &mut dyn World) {
    let dir = world.dir();
    let script = file_script(move || {
        let asked = check(|event| match event {
            Event::FreeSpace { tag: Tag(7), result: Ok(space) } => {
                assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes, "{space:?}");
            }
            other => unexpected(Some(other)),
        });
        vec![(Op::FreeSpace { path: dir.clone(), tag: Tag(7) }, asked)]
    });
    run_one(world, script, vec![]);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Worked {
    Yes,
    No,
}
