//! The command line as a user meets it: real processes, a broker of `tg dev` on a free port.

#![expect(clippy::unwrap_used, reason = "all of this file is test code, its helpers too")]

mod bench;
mod consume;
mod disk;
mod dump;
mod produce;
mod readme;
mod verify;
mod world;

use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::Value;
use world::{Dev, Ran, TestDir, tg, tg_with_input};

fn lines(ran: &Ran) -> Vec<&str> {
    ran.stdout.lines().collect()
}

fn objects(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
}

#[test]
fn help_and_version_are_results_and_a_wrong_command_line_is_exit_2() {
    assert!(tg(&["--version"]).ok().stdout.starts_with("tg "));
    assert!(tg(&["consume", "--help"]).ok().stdout.contains("Examples:"));
    assert_eq!(tg(&["no-such-command"]).code, 2);
    assert_eq!(tg(&["topic", "create", "t", "--set", "no-equals-sign"]).code, 2);
}

#[test]
fn completion_scripts_are_printed_and_a_closed_pipe_is_no_error() {
    assert!(tg(&["completions", "bash"]).ok().stdout.contains("_tg()"));
    let mut child = world::command(&["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 10]).unwrap();
    drop(stdout);
    assert!(child.wait().unwrap().success());
}

#[test]
fn an_unreachable_broker_is_exit_3_and_says_what_to_do() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("127.0.0.1:{port}");
    let ran = tg(&["--server", &server, "topic", "list"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains(&server) && ran.stderr.contains("tg dev"), "{}", ran.stderr);
    let ran = tg(&["--server", &server, "-o", "json", "topic", "list"]);
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["exit_code"], 3);
}

#[test]
fn a_configuration_that_makes_no_sense_is_exit_2_and_makes_nothing() {
    let dir = TestDir::new();
    let data = dir.path().join("data");
    for (listen, word) in [("nonsense", "listen"), ("0.0.0.0:0", "--insecure")] {
        let ran = tg(&["dev", "--data", data.to_str().unwrap(), "--listen", listen]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(word) && ran.stderr.contains("fix:"), "{}", ran.stderr);
    }
    assert!(!data.exists());
}

#[test]
fn a_development_broker_takes_every_key_of_the_configuration() {
    let dir = TestDir::new();
    let file = dir.path().join("broker.toml");
    std::fs::write(&file, "shards = 2\nlisten = \"127.0.0.1:0\"\nnode = 3\n").unwrap();
    let config = file.to_str().unwrap().to_owned();
    let dev = Dev::start_with(dir, &["--config", &config, "--set", "connections=50", "--set", "node=4"]);
    let status = &objects(&dev.tg(&["-o", "json", "status"]).ok())[0];
    assert_eq!(status["facts"]["shards"], "2", "{status}");
    let dir = dev.stop();
    let data = dir.path().join("data").display().to_string();
    let ran = tg(&["dev", "--listen", "127.0.0.1:0", "--data", &data]);
    assert_eq!(ran.code, 7, "it belongs to node 4: {}", ran.stderr);
    assert!(ran.stderr.contains("node 4"), "{}", ran.stderr);
    let ran = tg(&["dev", "--data", &data, "--set", "shrads=2", "--set", "memory=1", "--config", "/absent"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    for word in ["did you mean `shards`", "--set memory", "67108864", "--config /absent"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
}

#[test]
fn a_missing_data_directory_is_exit_5() {
    assert_eq!(tg(&["dump", "/nonexistent/data"]).code, 5);
}

#[test]
fn what_is_produced_from_a_file_is_consumed_again() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--partitions", "4"]).ok();
    assert_eq!(dev.tg(&["topic", "create", "t"]).code, 4, "it exists");
    dev.tg(&["topic", "create", "t", "--if-absent"]).ok();
    let file = dev.dir.path().join("input.txt");
    let input: Vec<String> = (0..1000).map(|i| format!("line {i} of the file")).collect();
    std::fs::write(&file, input.join("\n")).unwrap();
    let ran = dev.tg(&["produce", "t", file.to_str().unwrap()]).ok();
    assert!(ran.stdout.contains("1,000 records") && ran.stdout.contains("flushed to disk"), "{}", ran.stdout);
    let ran = dev.tg(&["consume", "t"]).ok();
    let mut got = lines(&ran);
    got.sort_unstable();
    let mut want: Vec<&str> = input.iter().map(String::as_str).collect();
    want.sort_unstable();
    assert_eq!(got, want);
    let total: i64 = objects(&dev.tg(&["-o", "json", "offsets", "t"]).ok())
        .iter()
        .map(|partition| partition["records"].as_i64().unwrap())
        .sum();
    assert_eq!(total, 1000);
    assert_eq!(objects(&dev.tg(&["-o", "json", "topic", "list"]).ok())[0]["partitions"], 4);
    dev.stop();
}

#[test]
fn keys_headers_partitions_and_formats_go_both_ways() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--partitions", "2"]).ok();
    let ran = dev
        .tg_with_input(&["-o", "json", "produce", "t", "-K", ":", "-p", "1", "-H", "a=1"], b"k:v\nk:\n")
        .ok();
    let acks = objects(&ran);
    assert_eq!(acks.iter().map(|ack| ack["records"].as_u64().unwrap()).sum::<u64>(), 2);
    assert!(acks.iter().all(|ack| ack["partition"] == 1 && ack["level"] == "disk"), "{acks:?}");
    assert_eq!(acks[0]["offset"], 0);
    let ran = dev.tg(&["consume", "t", "-f", "%t %p %o %k=%v (%K,%S) %h\\n"]).ok();
    assert_eq!(lines(&ran), ["t 1 0 k=v (1,1) a=1", "t 1 1 k= (1,0) a=1"]);
    let ran = dev.tg(&["-o", "json", "consume", "t", "--from", "1", "-p", "1"]).ok();
    assert_eq!(objects(&ran)[0]["value"], "");
    assert_eq!(objects(&ran)[0]["headers"][0]["name"], "a");
    dev.tg_with_input(&["produce", "t", "-f", "%p/%T/%v;"], b"0/1000/x;0/2000/y;").ok();
    let ran = dev.tg(&["consume", "t", "-p", "0", "-f", "%T %v\\n"]).ok();
    assert_eq!(lines(&ran), ["1000 x", "2000 y"]);
    let ran = dev.tg(&["consume", "t", "-p", "0", "--from", "-1", "--raw"]).ok();
    assert_eq!(ran.stdout, "y");
    assert_eq!(lines(&dev.tg(&["consume", "t", "-p", "0", "--until", "1"]).ok()), ["x"]);
    assert_eq!(lines(&dev.tg(&["consume", "t", "-p", "0", "-n", "1"]).ok()), ["x"]);
    assert_eq!(dev.tg(&["consume", "no-such-topic"]).code, 5);
    assert_eq!(dev.tg_with_input(&["produce", "t", "-K", ":"], b"no separator\n").code, 2);
    dev.stop();
}

#[test]
fn a_named_consumer_continues_where_it_stood() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    dev.tg_with_input(&["produce", "t"], b"a\nb\nc\n").ok();
    assert_eq!(lines(&dev.tg(&["consume", "t", "--group", "g", "-n", "2"]).ok()), ["a", "b"]);
    let offsets = objects(&dev.tg(&["-o", "json", "offsets", "t", "--group", "g"]).ok());
    assert_eq!((&offsets[0]["stored"], &offsets[0]["lag"]), (&Value::from(2), &Value::from(1)));
    assert_eq!(lines(&dev.tg(&["consume", "t", "--group", "g"]).ok()), ["c"]);
    assert_eq!(lines(&dev.tg(&["consume", "t", "--group", "g"]).ok()), [""; 0]);
    dev.stop();
}

#[test]
fn a_follower_sees_what_comes_later() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    let mut follower =
        dev.command(&["consume", "t", "--follow", "-n", "2"]).stdout(Stdio::piped()).spawn().unwrap();
    dev.tg_with_input(&["produce", "t"], b"early\n").ok();
    dev.tg_with_input(&["produce", "t"], b"late\n").ok();
    let mut text = String::new();
    follower.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(follower.wait().unwrap().success());
    assert_eq!(text, "early\nlate\n");
    dev.stop();
}

#[test]
fn topics_are_described_altered_trimmed_and_deleted() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t", "--set", "retention.ms=60000"]).ok();
    let ran = dev.tg(&["topic", "alter", "t", "--partitions", "3"]).ok();
    assert!(ran.stderr.contains("keys"), "adding partitions warns: {}", ran.stderr);
    let topic = &objects(&dev.tg(&["-o", "json", "topic", "describe", "t"]).ok())[0];
    assert_eq!(topic["partitions"].as_array().unwrap().len(), 3);
    assert_eq!(topic["settings"]["retention.ms"], "60000");
    assert_eq!(dev.tg(&["topic", "alter", "t", "--set", "no.such.setting=1"]).code, 4);
    assert_eq!(dev.tg(&["topic", "alter", "t"]).code, 2);
    dev.tg_with_input(&["produce", "t", "-p", "0"], b"a\nb\nc\n").ok();
    dev.tg(&["topic", "trim", "t", "--partition", "0", "--before", "2"]).ok();
    assert_eq!(lines(&dev.tg(&["consume", "t"]).ok()), ["c"]);
    dev.tg(&["topic", "delete", "t"]).ok();
    assert_eq!(dev.tg(&["topic", "describe", "t"]).code, 5);
    dev.stop();
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let dir = TestDir::new();
    let mut command = world::command(&["demo", "--seconds", "60"]);
    let mut demo =
        command.current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Its first line says that it is under way.
    demo.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    world::signal(&demo, nix::sys::signal::Signal::SIGINT);
    let ended = demo.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn records_are_acknowledged_while_the_input_stays_open() {
    let dev = Dev::start();
    dev.tg(&["topic", "create", "t"]).ok();
    let mut command = dev.command(&["-o", "json", "produce", "t"]);
    let mut producer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = producer.stdin.take().unwrap();
    stdin.write_all(b"first\n").unwrap();
    let mut byte = [0];
    producer.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"{", "the acknowledgement of the first record");
    drop(stdin);
    assert!(producer.wait().unwrap().success());
    dev.stop();
}

#[test]
fn a_command_line_with_input_needs_no_broker_to_be_refused() {
    assert_eq!(tg_with_input(&["produce"], b"").code, 2);
}
