//! The binary says what is wrong and what to do, ends with the documented code, and leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "all of this file is test code, its helpers too")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");
const USAGE: i32 = 2;
const FAILED: i32 = 7;

/// A place beside the build, because /tmp may be in memory.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// With one shard.
fn serve(data: &Path, arguments: &[&str]) -> Command {
    let mut command = serve_as_found(data, arguments);
    command.args(["--shards", "1"]);
    command
}

fn serve_as_found(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.arg("serve").arg("--data").arg(data).args(["--listen", "127.0.0.1:0"]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// It ends with the code, and says all the words.
fn refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is missing in:\n{said}");
    }
}

/// A broker that serves, and where.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(mut command: Command, port_file: &Path) -> Serving {
        let mut child = command.arg("--port-file").arg(port_file).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        loop {
            if let Ok(address) = fs::read_to_string(port_file) {
                return Serving { child, address: address.trim().to_owned() };
            }
            if child.try_wait().unwrap().is_some() || begun.elapsed() > Duration::from_secs(60) {
                let _ = child.kill();
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("it does not serve: {said}");
            }
            std::thread::yield_now();
        }
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// What it said, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (said, self.child.wait().unwrap().code())
    }
}

#[test]
fn a_broker_serves_until_sigterm_and_ends_with_0_on_either_reactor_and_one_directory() {
    let place = place();
    let (data, port) = (place.path().join("data"), place.path().join("port"));
    for reactor in ["ring", "glommio", "ring"] {
        let serving = Serving::start(serve(&data, &["--reactor", reactor]), &port);
        drop(TcpStream::connect(&serving.address).unwrap());
        serving.signal("TERM");
        let (said, code) = serving.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("serving on 127.0.0.1") && said.contains("stopped"), "{said}");
        assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
        assert!(!port.exists(), "the port file goes with the broker");
    }
}

#[test]
fn the_number_of_shards_is_changed_when_asked_for_and_kept_otherwise() {
    let place = place();
    let (data, port) = (place.path().join("data"), place.path().join("port"));
    for (asked, expected) in [(Some("1"), 1), (Some("3"), 3), (None, 3), (Some("2"), 2), (None, 2)] {
        let mut command = serve_as_found(&data, &[]);
        command.args(asked.map(|count| format!("--shards={count}")));
        let serving = Serving::start(command, &port);
        serving.signal("TERM");
        let (said, code) = serving.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(&format!(", {expected} shards")), "{said}");
        assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
    }
}

#[test]
fn ctrl_c_stops_it_as_sigterm_does() {
    let place = place();
    let serving = Serving::start(serve(&place.path().join("data"), &[]), &place.path().join("port"));
    serving.signal("INT");
    assert_eq!(serving.end().1, Some(0));
}

#[test]
fn a_directory_in_use_is_refused_and_the_holder_named() {
    let place = place();
    let data = place.path().join("data");
    let serving = Serving::start(serve(&data, &[]), &place.path().join("port"));
    let output = serve(&data, &[]).output().unwrap();
    let holder = format!("process {}", serving.child.id());
    refused(&output, FAILED, &["another process serves", "data/lock", &holder, "--data"]);
    serving.signal("TERM");
    assert_eq!(serving.end().1, Some(0), "the holder is not disturbed");
}

#[test]
fn all_problems_of_the_configuration_come_at_once_and_nothing_is_made() {
    let place = place();
    let (data, file) = (place.path().join("data"), place.path().join("t.toml"));
    fs::write(&file, "shrads = 2\nnode = \"x\"\n").unwrap();
    let output = serve(&data, &["--config", file.to_str().unwrap(), "--io-memory", "12"]).output().unwrap();
    let words =
        ["unknown key `shrads`", "did you mean `shards`", "t.toml, key `node`", "--io-memory", "1073741824"];
    refused(&output, USAGE, &words);
    assert!(!data.exists());
    let output = serve(&data, &["--config", "/absent.toml"]).output().unwrap();
    refused(&output, USAGE, &["--config /absent.toml", "No such file"]);
    assert!(!data.exists());
}

#[test]
fn listening_beyond_this_machine_needs_insecure() {
    let place = place();
    let data = place.path().join("data");
    let output = Command::new(TIDEGATE)
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    refused(&output, USAGE, &["neither encrypted nor authenticated", "--listen", "0.0.0.0:0", "--insecure"]);
    assert!(!data.exists());
}

#[test]
fn a_port_that_becomes_free_soon_is_taken() {
    let place = place();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut broker = Command::new(TIDEGATE)
        .args(["serve", "--shards", "1", "--listen", &address, "--data"])
        .arg(place.path().join("data"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(broker.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = said.find(|line| line.contains("in use"));
    drop(taken);
    let serves = said.find(|line| line.contains(&format!("serving on {address}")));
    broker.kill().unwrap();
    broker.wait().unwrap();
    assert!(waits.is_some(), "it says that it waits");
    assert!(serves.is_some(), "it serves at that address");
}

#[test]
fn a_port_in_use_is_refused_before_anything_is_made() {
    let place = place();
    let data = place.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        Command::new(TIDEGATE).args(["serve", "--listen", &address, "--data"]).arg(&data).output().unwrap();
    refused(&output, FAILED, &["in use", &address, "port 0"]);
    assert!(!data.exists());
}

#[test]
fn a_directory_with_other_things_in_it_is_left_alone() {
    let place = place();
    let precious = place.path().join("precious");
    fs::write(&precious, "photos").unwrap();
    let output = serve(place.path(), &[]).output().unwrap();
    refused(&output, FAILED, &["no data of Tidegate", "precious", "--data"]);
    assert_eq!(fs::read_to_string(precious).unwrap(), "photos");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing was added");
}

#[test]
fn a_path_that_cannot_be_a_directory_is_refused() {
    let place = place();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&serve(&file, &[]).output().unwrap(), FAILED, &["not a directory", "--data"]);
    refused(&serve(&file.join("below"), &[]).output().unwrap(), FAILED, &["data directory", "file/below"]);
    for (path, filesystem) in [("/proc/tidegate", "proc"), ("/sys/tidegate/data", "sysfs")] {
        let output = serve(Path::new(path), &[]).output().unwrap();
        refused(&output, FAILED, &["cannot hold a data directory", path, filesystem, "ext4 or XFS"]);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("dmesg"));
    }
}

#[test]
fn a_directory_of_another_node_or_cluster_is_refused_and_unchanged() {
    let place = place();
    let (data, port) = (place.path().join("data"), place.path().join("port"));
    let serving = Serving::start(serve(&data, &[]), &port);
    serving.signal("TERM");
    assert_eq!(serving.end().1, Some(0));
    let superblock = data.join("superblock");
    let before = fs::read(&superblock).unwrap();
    fs::write(data.join("lock"), "of the last one\n").unwrap();
    refused(
        &serve(&data, &["--node", "4"]).output().unwrap(),
        FAILED,
        &["another node", "node 4", "node 0", "--node"],
    );
    let cluster = "01234567-89ab-cdef-0123-456789abcdef";
    refused(&serve(&data, &["--cluster", cluster]).output().unwrap(), FAILED, &["another cluster", cluster]);
    assert_eq!(fs::read(&superblock).unwrap(), before);
    assert_eq!(fs::read_to_string(data.join("lock")).unwrap(), "of the last one\n");
}

/// Flips a bit of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_copy_of_the_superblock_or_of_a_checkpoint_is_said_in_one_line_with_what_is_used_instead() {
    let place = place();
    let (data, port) = (place.path().join("data"), place.path().join("port"));
    let life = || {
        let serving = Serving::start(serve(&data, &[]), &port);
        serving.signal("TERM");
        let (said, code) = serving.end();
        assert_eq!(code, Some(0), "{said}");
        said.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect::<Vec<_>>()
    };
    // Each stop takes a checkpoint: all three slots are in use.
    (0..3).for_each(|_| assert_eq!(life(), [""; 0]));
    let slots = fs::read_dir(data.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let slots: Vec<PathBuf> = slots.filter(|path| path.to_str().unwrap().contains("-checkpoint-")).collect();
    assert_eq!(slots.len(), 3);
    for slot in slots {
        flip(&slot, 40);
        let said = life();
        let name = slot.to_str().unwrap();
        assert!(matches!(&said[..], [line] if line.contains(name) && line.contains("in slot ")), "{said:?}");
        assert_eq!(life(), [""; 0], "the checkpoint of that stop has gone there");
    }
    for (at, copy) in [(100, "copy A was damaged"), (4096 + 100, "copy B was damaged")] {
        flip(&data.join("superblock"), at);
        let said = life();
        let is_it = |line: &String| {
            line.contains("data/superblock") && line.contains(copy) && line.contains("the other")
        };
        assert!(said.len() == 1 && said.iter().all(is_it), "{said:?}");
        assert_eq!(life(), [""; 0], "once");
    }
}

#[test]
fn too_little_lockable_memory_and_too_few_files_are_told_together() {
    let place = place();
    let data = place.path().join("data");
    let script = format!(
        "ulimit -l 64; ulimit -n 64; exec {TIDEGATE} serve --reactor glommio --data {} --listen 127.0.0.1:0",
        data.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let words = ["RLIMIT_MEMLOCK", "65536 bytes", "ulimit -l", "RLIMIT_NOFILE", "at least 256", "64"];
    refused(&output, FAILED, &words);
    assert!(!data.exists());
}

#[test]
fn storage_in_memory_is_served_and_said_to_be_volatile() {
    let shm = PathBuf::from("/dev/shm");
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(&shm).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&kind.stdout).trim(), "tmpfs", "this test needs a tmpfs there");
    let place = tempfile::tempdir_in(&shm).unwrap();
    for (arguments, words) in [
        (&[][..], "acks=1 is refused on durable topics"),
        (&["--allow-volatile"][..], "answered all the same"),
    ] {
        let serving =
            Serving::start(serve(&place.path().join("data"), arguments), &place.path().join("port"));
        serving.signal("TERM");
        let (said, code) = serving.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(words) && said.contains("tmpfs"), "{said}");
    }
}

/// Runs the binary in a mount namespace of its own, where `data` is a small filesystem.
fn serve_on_small_mount(data: &Path, options: &str) -> Output {
    serve_on_mount(data, &format!("-t tmpfs -o {options}"))
}

fn serve_on_mount(data: &Path, mount: &str) -> Output {
    fs::create_dir_all(data).unwrap();
    let data = data.display();
    let script = format!(
        "mount {mount} none {data} && exec {TIDEGATE} serve --listen 127.0.0.1:0 --shards 1 --data {data}/d"
    );
    Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output().unwrap()
}

#[test]
fn a_full_or_read_only_place_is_refused_with_what_is_needed() {
    let place = place();
    let output = serve_on_small_mount(&place.path().join("small"), "size=40m");
    refused(
        &output,
        FAILED,
        &["too little space for the journals", "small/d", "MiB free for 1 shards", "40 MiB free", "--data"],
    );
    let output = serve_on_small_mount(&place.path().join("fixed"), "size=40m,ro");
    refused(
        &output,
        FAILED,
        &["cannot make the data directory", "Read-only", "fixed/d", "mount it for writing"],
    );
}

#[test]
fn a_filesystem_without_direct_access_is_refused_and_named() {
    let place = place();
    let data = place.path().join("ram");
    let output = serve_on_mount(&data, "-t ramfs");
    refused(&output, FAILED, &["does not support direct I/O", "O_DIRECT", "ram/d", "ramfs", "ext4 or XFS"]);
}

#[test]
fn a_refused_start_leaves_an_empty_directory_empty() {
    let place = place();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    // Refused by what its journals need, behind the lock.
    let output = serve_on_mount(&place.path().join("small"), "-t tmpfs -o size=40m");
    refused(&output, FAILED, &["too little space"]);
    let listed = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs -o size=40m none {0} && mkdir {0}/d && {TIDEGATE} serve --listen 127.0.0.1:0 --shards 1 --data {0}/d; \
             ls -A {0}/d",
            data.display()
        ))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "", "nothing was added");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("too little space"));
}

#[test]
fn a_place_that_belongs_to_somebody_else_is_refused() {
    let place = place();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    // Permissions do not stop root; a directory that takes no new files does.
    let script = format!(
        "if [ $(id -u) = 0 ]; then chattr +i {0}; else chmod 555 {0}; fi && {TIDEGATE} serve --listen 127.0.0.1:0 --shards 1 --data {0}; code=$?; \
         chattr -i {0} || chmod 755 {0}; exit $code",
        data.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    refused(&output, FAILED, &["cannot write in the data directory", "permission", "--data"]);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
}

#[test]
fn what_a_failed_start_has_made_is_gone_again() {
    let place = place();
    let data = place.path().join("a/b/data");
    // The port file cannot be written: the last step of all fails.
    let output = serve(&data, &["--port-file", "/proc/tidegate"]).output().unwrap();
    refused(&output, FAILED, &["cannot write the port file", "/proc/tidegate"]);
    assert!(!place.path().join("a").exists());
}
