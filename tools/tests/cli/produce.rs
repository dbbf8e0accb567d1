//! `tg produce` and `tg topic` where something is wrong with what was typed or with the input.

use crate::world::{self, Dev, tg, tg_with_input};
use crate::{lines, objects};

#[test]
fn what_makes_no_sense_is_refused_without_a_broker_and_says_what_would() {
    let cases: [(&[&str], &str); 7] = [
        (&["produce", "t", "-K", ""], "at least one byte"),
        (&["produce", "t", "-K", "\\"], "no escape"),
        (&["produce", "t", "-H", "novalue"], "NAME=VALUE"),
        (&["produce", "t", "-H", "=v"], "NAME=VALUE"),
        (&["produce", "t", "-p", "-1"], "-1 is not in 0.."),
        (&["produce", "t", "-p", "x"], "invalid value"),
        (&["produce", "t", "-f", "%o"], "%k"),
    ];
    for (args, word) in cases {
        let ran = tg_with_input(args, b"");
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word) && ran.stderr.contains("fix: "), "{args:?}: {}", ran.stderr);
    }
    let ran = tg(&["-o", "json", "produce"]);
    let error: serde_json::Value = serde_json::from_str(ran.stderr.trim()).unwrap();
    assert_eq!(error["error"]["exit_code"], 2, "{}", ran.stderr);
}

#[test]
fn what_the_broker_refuses_ends_in_a_way_out() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--partitions", "2"]).ok();
    let cases: [(&[&str], i32, &str); 11] = [
        (&["topic", "create", "a/b"], 4, "'/'"),
        (&["topic", "create", ""], 4, "name"),
        (&["topic", "create", "u", "-p", "0"], 4, "at least 1"),
        (&["topic", "create", "u", "-p", "-3"], 4, "at least 1"),
        (&["topic", "create", "u", "--replication", "3"], 4, "only 1"),
        (&["topic", "create", "u", "--set", "retention.ms=soon"], 4, "retention.ms"),
        (&["topic", "create", "t"], 4, "exists"),
        (&["topic", "alter", "t", "--partitions", "1"], 4, "never become fewer"),
        (&["topic", "alter", "t", "--set", "no.such=1"], 4, "known are"),
        (&["topic", "trim", "t", "--partition", "0", "--before", "9"], 5, "offset"),
        (&["topic", "describe", "no-such"], 5, "no-such"),
    ];
    for (args, code, word) in cases {
        let ran = dev.tg(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word) && ran.stderr.contains("fix: "), "{args:?}: {}", ran.stderr);
    }
    let ran = dev.tg_with_input(&["produce", "t", "-p", "7"], b"x\n");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    for word in ["no partition 7", "standard input:1", "fix: "] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    dev.stop();
}

#[test]
fn a_record_that_is_too_large_is_named_by_its_line_and_what_lets_it_in_works() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    dev.tg(&["topic", "create", "narrow", "--set", "batch.bytes.max=2048"]).ok();
    let file = dev.dir.path().join("x.txt");
    std::fs::write(&file, format!("one\ntwo\n{}\nfour\n", "x".repeat(2 << 20))).unwrap();
    let ran = dev.tg(&["produce", "t", file.to_str().unwrap()]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    for word in ["x.txt:3", "1048576 bytes", "2097253 bytes", "split it"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert_eq!(lines(&dev.tg(&["consume", "t"]).ok()), ["one", "two"], "what came before is stored");
    assert!(ran.stdout.contains("2 records"), "{}", ran.stdout);

    let input = format!("small\n{}\n", "y".repeat(4000));
    let ran = dev.tg_with_input(&["produce", "narrow"], input.as_bytes());
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    for word in ["standard input:2", "2048 bytes", "batch.bytes.max of topic narrow"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    dev.tg(&world::advice(&ran.stderr)).ok();
    dev.tg_with_input(&["produce", "narrow"], &input.as_bytes()[6..]).ok();
    let whole = dev.tg(&["-o", "json", "offsets", "narrow"]).ok();
    assert_eq!(objects(&whole)[0]["records"], 2);
    dev.stop();
}

#[test]
fn many_records_go_into_a_topic_whose_batches_are_small() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--set", "batch.bytes.max=2048"]).ok();
    let input: String = (0..2000).map(|i| format!("record {i}\n")).collect();
    let ran = dev.tg_with_input(&["produce", "t"], input.as_bytes()).ok();
    assert!(ran.stdout.contains("2,000 records"), "{}", ran.stdout);
    dev.stop();
}

#[test]
fn a_separator_may_be_typed_with_escapes() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    dev.tg_with_input(&["produce", "t", "-K", "\\t"], b"k\tv\n").ok();
    dev.tg_with_input(&["produce", "t", "-K", "\\\\"], b"a\\b\n").ok();
    dev.tg_with_input(&["produce", "t", "-K", "\\0"], b"c\0d\n").ok();
    assert_eq!(lines(&dev.tg(&["consume", "t", "-f", "%k=%v\\n"]).ok()), ["k=v", "a=b", "c=d"]);
    let ran = dev.tg_with_input(&["produce", "t", "-K", "\\t"], b"no tab\n");
    assert!(ran.stderr.contains("standard input:1") && ran.stderr.contains("fix: "), "{}", ran.stderr);
    dev.stop();
}
