//! `tg dump --verify` of directories that a broker has written, sound and damaged.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::disk::{at, data_files, put, stored};
use crate::world::{Dev, Ran, tg};
use crate::{lines, objects};

/// What has to be said of a flipped bit.
struct Expected {
    /// The topic and partition whose records lie there; none: no records do.
    partition: Option<i32>,
    /// An offset that is concerned, where that does not depend on how the records came together in batches.
    offset: Option<i64>,
}

fn dump(options: &[&str], path: &Path) -> Ran {
    tg(&[options, &[path.to_str().unwrap()]].concat())
}

fn files(data: &Path, ending: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(data.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|path| path.to_str().is_some_and(|name| name.contains(ending))).collect();
    files.sort();
    files
}

/// Flips a bit, looks at what is said, and flips it back.
fn flipped(data: &Path, path: &Path, place: u64, expected: &Expected) {
    let before = at(path, place, 1);
    put(path, place, &[before[0] ^ 4]);
    let what = format!("byte {place} of {}", path.display());
    let ran = dump(&["-o", "json", "dump", "--verify"], data);
    assert_eq!(ran.code, 6, "{what}: {}{}", ran.stdout, ran.stderr);
    let error: Value = serde_json::from_str(ran.stderr.trim()).unwrap();
    assert_eq!(error["error"]["exit_code"], 6, "{what}");
    let found = objects(&ran);
    let [damage, summary] = &found[..] else { panic!("{what}: one damage and a summary: {found:?}") };
    assert_eq!((&damage["kind"], &summary["kind"]), (&"damage".into(), &"summary".into()), "{what}");
    assert_eq!(summary["damaged"], 1, "{what}");
    assert_eq!(damage["file"].as_str(), path.to_str(), "{what}");
    let (from, bytes) = (damage["at"].as_u64().unwrap(), damage["bytes"].as_u64().unwrap());
    assert!((from..from + bytes).contains(&place), "{what}: {damage}");
    let human = dump(&["dump", "--verify"], data);
    assert_eq!(human.code, 6, "{what}");
    let all = lines(&human);
    let [line, count] = &all[..] else { panic!("{what}: {all:?}") };
    assert!(count.ends_with("; 1 damaged"), "{what}: {count}");
    let named = format!("DAMAGED: {} bytes {from} to {}: ", path.display(), from + bytes);
    assert!(line.starts_with(&named), "{what}: {line}");
    assert!(human.stderr.contains("1 structure is damaged or missing"), "{what}: {}", human.stderr);
    assert!(human.stderr.contains("keep the directory"), "what to do: {}", human.stderr);
    if let Some(partition) = expected.partition {
        assert_eq!(
            (&damage["topic"], &damage["log"]["partition"]),
            (&"t".into(), &partition.into()),
            "{what}"
        );
        let (from, upto) = (damage["from"].as_i64().unwrap(), damage["upto"].as_i64().unwrap());
        assert!(from < upto && expected.offset.is_none_or(|o| (from..upto).contains(&o)), "{what}: {damage}");
        assert!(line.contains(&format!("t/{partition} offsets {from} to {}: ", upto - 1)), "{what}: {line}");
    } else {
        assert_eq!(damage.get("from"), None, "{what}: it holds no records of anybody");
    }
    // The dump that shows everything shows it too.
    let whole = dump(&["dump"], data);
    assert!(whole.code == 6 && whole.stdout.contains("DAMAGED"), "{what}: {} {}", whole.code, whole.stderr);
    put(path, place, &before);
}

#[test]
fn a_sound_directory_is_verified_with_exit_0_and_each_flipped_bit_is_named_with_exit_6() {
    let dir = stored();
    let data = dir.path().join("data");
    let sound = || {
        let ran = dump(&["dump", "--verify"], &data).ok();
        let all = lines(&ran);
        assert!(
            matches!(&all[..], [line] if line.starts_with("checked: 2 superblock copies, ") && line.ends_with("; 0 damaged")),
            "{all:?}"
        );
        let summary = objects(&dump(&["-o", "json", "dump", "--verify"], &data).ok()).pop().unwrap();
        assert_eq!((&summary["kind"], &summary["damaged"]), (&"summary".into(), &0.into()));
        assert!(summary["runs"].as_u64() > Some(0) && summary["extents"].as_u64() > Some(0), "{summary}");
    };
    sound();
    // The first run of the data file: its header, the header of its first extent, a payload.
    let file = data_files(&data).pop().expect("a partition lies in a data file");
    for (place, offset) in [(40, Some(0)), (128 + 45, Some(0)), (5000, None)] {
        flipped(&data, &file, place, &Expected { partition: Some(0), offset });
    }
    // An extent that lies in a frame of the ring alone.
    let ring = files(&data, "-ring-00").pop().unwrap();
    let bytes = std::fs::read(&ring).unwrap();
    let small = bytes.windows(9).position(|window| window == b"small one").unwrap() as u64;
    flipped(&data, &ring, small, &Expected { partition: Some(1), offset: Some(0) });
    let nobodys = Expected { partition: None, offset: None };
    for place in [0, 100, 4096 + 12, 4096 + 2000] {
        flipped(&data, &data.join("superblock"), place, &nobodys);
    }
    // Every slot that was written, its header and its body.
    let slots: Vec<PathBuf> =
        files(&data, "-checkpoint-").into_iter().filter(|slot| at(slot, 0, 4) == b"TGcp").collect();
    assert!(slots.len() > 1, "{slots:?}");
    for slot in &slots {
        for place in [0, 50, 300] {
            flipped(&data, slot, place, &nobodys);
        }
    }
    sound();
}

/// Where the runs of a data file begin.
fn runs(file: &Path) -> Vec<u64> {
    let found = objects(&dump(&["-o", "json", "dump"], file).ok());
    let runs = found.iter().filter(|object| object["kind"] == "run");
    runs.map(|run| run["at"].as_u64().unwrap()).collect()
}

#[test]
fn a_single_file_or_folder_with_a_flipped_bit_is_no_success_either() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    // Each is large enough for a run of its own, and is there before the next one begins.
    let large = format!("{}\n", "x".repeat(1000)).repeat(300);
    (0..4).for_each(|_| drop(dev.tg_with_input(&["produce", "t", "-p", "0"], large.as_bytes()).ok()));
    let dir = dev.stop();
    let data = dir.path().join("data");
    let file = data_files(&data).into_iter().max_by_key(|file| runs(file).len()).unwrap();
    let slot = files(&data, "-checkpoint-").into_iter().find(|slot| at(slot, 0, 4) == b"TGcp").unwrap();
    let superblock = data.join("superblock");
    // The magic of a structure too, without which nothing says that one was there.
    let [_, second_run, _, ..] = runs(&file)[..] else { panic!("at least three runs: {:?}", runs(&file)) };
    let places = [
        (&file, vec![0, 40, 5000, second_run, second_run + 40]),
        (&slot, vec![50, 300]),
        (&superblock, vec![0, 100, 4096, 4096 + 100]),
    ];
    for (path, places) in places {
        dump(&["dump"], path).ok();
        for place in places {
            let before = at(path, place, 1);
            put(path, place, &[before[0] ^ 4]);
            let ran = dump(&["dump"], path);
            assert_eq!(ran.code, 6, "byte {place} of {}: {}{}", path.display(), ran.stdout, ran.stderr);
            assert!(ran.stdout.contains("DAMAGED") && ran.stderr.contains(path.to_str().unwrap()));
            put(path, place, &before);
        }
    }
    let before = at(&file, 5000, 1);
    put(&file, 5000, &[before[0] ^ 4]);
    assert_eq!(dump(&["dump"], file.parent().unwrap()).code, 6);
    // The one structure of its file: without its magic nothing tells the file from somebody else's.
    put(&slot, 0, b"X");
    assert_eq!(dump(&["dump"], &slot).code, 5);
}
