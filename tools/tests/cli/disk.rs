//! What needs a broker that keeps its records on disk: restarts, the dump, the demo.

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
fn the_demo_verifies_itself_and_leaves_nothing_behind() {
    let dir = TestDir::new();
    let ran = world::run(world::command(&["demo", "--seconds", "1"]).current_dir(dir.path())).ok();
    assert!(ran.stdout.contains("verified:        yes"), "{}", ran.stdout);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
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
