//! What needs a broker that keeps its records on disk: restarts, the dump, the demo.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::world::{self, Dev, TestDir, tg};
use crate::{lines, objects};

#[test]
fn data_survives_a_stop_and_is_shown_by_dump() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    dev.tg_with_input(&["produce", "t"], b"kept\n").ok();
    let dir = dev.stop();
    let data = dir.path().join("data");
    let structures = objects(&tg(&["-o", "json", "dump", data.to_str().unwrap()]).ok());
    for kind in ["superblock", "frame", "checkpoint"] {
        assert!(structures.iter().any(|s| s["kind"] == kind), "there is a {kind}");
    }
    let dev = Dev::start_in(dir);
    assert_eq!(lines(&dev.tg(&["consume", "t"]).ok()), ["kept"]);
    let ran = tg(&["dev", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, 7, "the directory is in use: {}", ran.stderr);
    let other = dev.dir.path().join("other");
    let ran = tg(&["dev", "--data", other.to_str().unwrap(), "--listen", &dev.server]);
    assert_eq!(ran.code, 7, "the port is in use: {}", ran.stderr);
    assert!(ran.stderr.contains(&dev.server), "{}", ran.stderr);
    dev.stop();
}

#[test]
fn the_demo_on_storage_that_keeps_nothing_names_a_way_that_there_is() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let demo = ["demo", "--seconds", "1", "--dir", shm.path().to_str().unwrap()];
    let refused = tg(&demo);
    assert_eq!(refused.code, 4, "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("--allow-volatile"), "{}", refused.stderr);
    let ran = tg(&[&demo[..], &["--allow-volatile"]].concat()).ok();
    assert!(ran.stdout.contains("level met        memory"), "{}", ran.stdout);
    assert!(ran.stdout.contains("verified:        yes"), "{}", ran.stdout);
}

/// A stopped broker's directory: a topic `t` with a partition in a data file and one in the journal alone.
pub(crate) fn stored() -> TestDir {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--partitions", "2"]).ok();
    let large: String = (0..6000).map(|i| format!("record {i} {}\n", "x".repeat(100))).collect();
    dev.tg_with_input(&["produce", "t", "-p", "0"], large.as_bytes()).ok();
    dev.tg_with_input(&["produce", "t", "-p", "1"], b"small one\nsmall two\n").ok();
    dev.stop()
}

/// Files with runs: those that do not begin with zeros.
pub(crate) fn data_files(data: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(data.join("files")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| at(path, 0, 4) == b"TGrn").collect()
}

pub(crate) fn at(path: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

pub(crate) fn put(path: &Path, at: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// The damaged places of a dump's summary.
fn damaged(data: &Path) -> (i32, u64) {
    let ran = tg(&["-o", "json", "dump", data.to_str().unwrap()]);
    let summary = objects(&ran).pop().unwrap();
    assert_eq!(summary["kind"], "summary");
    (ran.code, summary["damaged"].as_u64().unwrap())
}

#[test]
fn the_dump_counts_what_is_damaged_or_missing_and_nothing_else() {
    let dir = stored();
    let data = dir.path().join("data");
    assert_eq!(damaged(&data), (0, 0));
    let file = data_files(&data).pop().expect("a partition lies in a data file");
    // What is needed, by one way of damage each: a payload, a magic, a whole block.
    for (place, bytes) in [(5000, &[0xa5; 1][..]), (0, &[0; 4]), (0, &[0; 4096]), (0, &[7; 4096])] {
        let before = at(&file, place, bytes.len());
        put(&file, place, bytes);
        assert_eq!(damaged(&data), (6, 1), "{} bytes at {place}", bytes.len());
        put(&file, place, &before);
    }
    // What nobody needs: behind the last run of the file.
    let end = file.metadata().unwrap().len() - 4096;
    assert_eq!(at(&file, end, 8), [0; 8]);
    put(&file, end, &[7; 4096]);
    assert_eq!(damaged(&data), (0, 0));
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    assert_eq!(damaged(&data), (6, 1));
    std::fs::rename(&elsewhere, &file).unwrap();
    // A small extent of the journal, behind its frame's header, and the superblock's second block.
    let journal = std::fs::read_dir(data.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let is_first = |path: &PathBuf| path.to_str().is_some_and(|name| name.ends_with("-ring-00"));
    let ring = journal.into_iter().find(is_first).unwrap();
    let bytes = std::fs::read(&ring).unwrap();
    let small = bytes.windows(9).position(|window| window == b"small one").unwrap() as u64;
    put(&ring, small, b"S");
    assert_eq!(damaged(&data), (6, 1));
    put(&ring, small, b"s");
    put(&data.join("superblock"), 4096 + 100, b"\xff");
    assert_eq!(damaged(&data), (6, 1));
}

#[test]
fn damage_of_one_partition_stops_it_alone_and_the_way_round_it_is_named() {
    let dir = stored();
    let file = data_files(&dir.path().join("data")).pop().unwrap();
    put(&file, 5000, b"\x00");
    let dev = Dev::start_in(dir);
    let ran = dev.tg(&["consume", "t"]);
    assert_eq!(ran.code, 6, "{}", ran.stderr);
    let small = lines(&ran).iter().filter(|line| line.starts_with("small")).count();
    assert_eq!(small, 2, "the other partition is read to its end: {}", ran.stderr);
    assert!(ran.stderr.contains("topic t, partition 0, offsets "), "{}", ran.stderr);
    let behind = dev.tg(&world::advice(&ran.stderr)).ok();
    assert!(
        behind.stdout.ends_with(&format!("record 5999 {}\n", "x".repeat(100))),
        "{}",
        behind.stdout.len()
    );
    assert!(!behind.stdout.contains("record 0 "));
    dev.stop();
}

#[test]
fn a_consumer_begins_at_a_time() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    dev.tg_with_input(&["produce", "t", "-f", "%T/%v;"], b"1000/x;2000/y;").ok();
    let ran = dev.tg(&["consume", "t", "-p", "0", "--from", "@1500", "-f", "%v\\n"]).ok();
    assert_eq!(lines(&ran), ["y"]);
    dev.stop();
}
