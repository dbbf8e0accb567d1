//! `tg bench` as a user types it: short runs with a broker of their own, and what they leave.

use serde_json::Value;

use crate::world::{Dev, TestDir, tg};

/// Runs it with a broker of its own below a directory; nothing else may stay there.
fn embedded(dir: &TestDir, args: &[&str]) -> Value {
    let dir_text = dir.path().to_str().unwrap();
    let usual = ["-o", "json", "bench"];
    let own = ["--embedded", "--shards", "1", "--dir", dir_text, "--seconds", "1", "--warmup", "0"];
    let ran = tg(&[&usual, args, &own].concat()).ok();
    serde_json::from_str(ran.stdout.trim()).unwrap()
}

#[test]
fn a_short_run_sends_what_is_due_and_leaves_its_files_and_nothing_else() {
    let dir = TestDir::new();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, html, hgrm) = (path("run.json"), path("run.html"), path("run.hgrm"));
    let run = embedded(
        &dir,
        &[
            "produce",
            "--rate",
            "200",
            "--batch-records",
            "1",
            "--producers",
            "2",
            "--partitions",
            "2",
            "--mib",
            "64",
            "--cell-ms",
            "10",
            "--json",
            &json,
            "--html",
            &html,
            "--hgrm",
            &hgrm,
        ],
    );
    assert_eq!((&run["count"], &run["errors"]), (&Value::from(200), &Value::from(0)), "{run}");
    for (name, value) in [("durability", "disk"), ("level", "disk"), ("loop", "open"), ("client", "wire")] {
        assert_eq!(run[name], value, "{name}");
    }
    for name in [
        "mib_per_s",
        "records_per_s",
        "p50_us",
        "p99_us",
        "p999_us",
        "p9999_us",
        "max_us",
        "limit_mib_per_s",
        "of_limit",
    ] {
        assert!(run[name].as_f64().is_some_and(|number| number > 0.0), "{name}: {}", run[name]);
    }
    for name in ["kernel", "cpu", "drive", "filesystem", "flush_rule", "reactor", "limit"] {
        assert!(run[name].as_str().is_some_and(|text| !text.is_empty()), "{name}: {}", run[name]);
    }
    assert!(run["steal"].is_number() && run["valid"].is_boolean() && run["disturbed"].is_boolean());
    let file: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(file["publishRate"], run["publishRate"]);
    assert!(std::fs::read_to_string(&html).unwrap().contains("<svg"));
    assert!(std::fs::read_to_string(&hgrm).unwrap().contains("Total count    =          200"));
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        3,
        "the broker's directory and the drive's file are gone"
    );
}

#[test]
fn what_the_sdk_produces_arrives_with_its_intended_time() {
    let dir = TestDir::new();
    let run = embedded(
        &dir,
        &[
            "e2e",
            "--client",
            "sdk",
            "--rate",
            "200",
            "--record-bytes",
            "100",
            "--keys",
            "7",
            "-z",
            "lz4",
            "--no-limits",
        ],
    );
    assert_eq!((&run["count"], &run["errors"]), (&Value::from(200), &Value::from(0)), "{run}");
    let tail = &run["consumed"][0];
    assert_eq!(
        (&tail["name"], &tail["records"], &tail["count"]),
        (&"tail".into(), &200.into(), &200.into()),
        "{tail}"
    );
    assert!(run["aggregatedEndToEndLatency99pct"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_run_against_a_broker_that_is_there_deletes_its_topic() {
    let dev = Dev::start();
    let args = ["-o", "json", "bench", "catchup", "--seconds", "5", "--preload-mib", "1", "--no-limits"];
    let run: Value = serde_json::from_str(dev.tg(&args).ok().stdout.trim()).unwrap();
    let cold = &run["consumed"][0];
    let records = cold["records"].as_u64().unwrap();
    // Whole batches of 253 records: four or five.
    assert!(cold["ended_early"] == true && (1000..1300).contains(&records), "all of it was read: {cold}");
    assert!(cold["mib_per_s"].as_f64().unwrap() > 0.0, "{cold}");
    assert!(dev.tg(&["-o", "json", "topic", "list"]).ok().stdout.is_empty());
    dev.stop();
}

#[test]
fn the_reactor_of_a_broker_of_its_own_is_chosen_and_named() {
    let dir = TestDir::new();
    let run = embedded(
        &dir,
        &[
            "produce",
            "--set",
            "reactor=glommio",
            "--topic-set",
            "retention.ms=3600000",
            "--rate",
            "100",
            "--no-limits",
        ],
    );
    assert_eq!((&run["reactor"], &run["errors"]), (&"glommio".into(), &0.into()), "{run}");
    let dir_text = dir.path().to_str().unwrap();
    let ran = tg(&["bench", "produce", "--embedded", "--dir", dir_text, "--set", "reactor=nothing"]);
    assert!(ran.code != 0 && ran.stderr.contains("reactor"), "{}", ran.stderr);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays");
}

#[test]
fn two_results_are_compared_and_what_cannot_be_is_explained() {
    let dir = TestDir::new();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let slow = file("slow.json", r#"{"samples":{"records_per_s":[100,101,99,100]}}"#);
    let fast = file("fast.json", r#"{"samples":{"records_per_s":[200,202,198,200]},"valid":false}"#);
    let ran = tg(&["-o", "json", "bench", "compare", &slow, &fast]).ok();
    let found: Value = serde_json::from_str(ran.stdout.trim()).unwrap();
    assert_eq!((&found["figure"], &found["verdict"]), (&"records_per_s".into(), &"higher".into()));
    assert!((found["ratio"].as_f64().unwrap() - 2.0).abs() < 1e-9);
    assert!(ran.stderr.contains("fast.json is not valid"), "{}", ran.stderr);
    let none = file("none.json", "{}");
    let ran = tg(&["bench", "compare", &slow, &none]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("second") && ran.stderr.contains("--json FILE"), "{}", ran.stderr);
    assert_eq!(tg(&["bench", "compare", &slow, "/nonexistent.json"]).code, 5);
}

#[test]
fn rows_of_the_suite_are_listed_and_a_wrong_name_is_exit_2() {
    let ran = tg(&["bench", "suite", "--list"]).ok();
    for row in ["disk-4p-ready", "half-load", "cold-beside-producer", "idle-broker"] {
        assert!(ran.stdout.contains(row), "{row}: {}", ran.stdout);
    }
    let ran = tg(&["bench", "suite", "--only", "disk-5p"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("disk-5p") && ran.stderr.contains("disk-4p-ready"), "{}", ran.stderr);
}

#[test]
fn a_row_of_the_suite_is_measured_and_its_result_kept() {
    let dir = TestDir::new();
    let results = dir.path().join("results");
    let (dir_text, results_text) = (dir.path().to_str().unwrap(), results.to_str().unwrap());
    let ran = tg(&[
        "-o",
        "json",
        "bench",
        "suite",
        "--only",
        "connections-64",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--shards",
        "1",
        "--mib",
        "64",
        "--cell-ms",
        "10",
        "--dir",
        dir_text,
        "--results",
        results_text,
    ])
    .ok();
    let row: Value = serde_json::from_str(ran.stdout.trim()).unwrap();
    assert_eq!((&row["row"], row["runs"].as_array().unwrap().len()), (&"connections-64".into(), 1));
    assert!(row["samples"]["records_per_s"][0].as_f64().unwrap() > 0.0, "{row}");
    assert_eq!(row["runs"][0]["errors"], 0);
    assert!(row["disturbed"].is_boolean() && row["invalid_because"].is_array(), "{row}");
    assert_eq!(row["valid"], row["invalid_because"].as_array().unwrap().is_empty());
    let trips = &row["checks"][1];
    assert_eq!(trips["verdict"], "told", "bare round trips stand there to be read: {trips}");
    let kept: Value =
        serde_json::from_str(&std::fs::read_to_string(results.join("connections-64.json")).unwrap()).unwrap();
    assert_eq!(kept["checks"], row["checks"]);
    assert!(std::fs::read_to_string(results.join("suite.html")).unwrap().contains("acks/s"));
}

#[test]
fn what_makes_no_sense_is_exit_2_and_starts_no_broker() {
    for (args, word) in [
        (&["produce", "--compression", "lz4"][..], "--client sdk"),
        (&["e2e", "--record-bytes", "4"], "8 bytes"),
        (&["produce", "--rate", "0"], "above 0"),
        (&["produce", "--beside-flush-loop"], "--rate"),
        (&["produce", "--set", "reactor=ring"], "--embedded"),
    ] {
        let ran = tg(&[&["bench"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{args:?}: {}", ran.stderr);
    }
}
