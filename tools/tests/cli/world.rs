//! Processes of `tg` for the tests, and directories that go away with them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A directory under the build's own: the usual temporary directory may be memory, which a broker refuses.
pub(crate) struct TestDir(TempDir);

impl TestDir {
    pub(crate) fn new() -> TestDir {
        TestDir(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// What a process has said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// It has to have ended well.
    #[track_caller]
    pub(crate) fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tg"));
    command.args(args).env_remove("TIDEGATE_SERVER").stdin(Stdio::null());
    command
}

pub(crate) fn run(command: &mut Command) -> Ran {
    command.output().unwrap().into()
}

pub(crate) fn tg(args: &[&str]) -> Ran {
    run(&mut command(args))
}

pub(crate) fn tg_with_input(args: &[&str], input: &[u8]) -> Ran {
    run_with_input(command(args), input)
}

fn run_with_input(mut command: Command, input: &[u8]) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// A topic's identity as it is shown: 32 hexadecimal digits, whatever stands between them.
pub(crate) fn topic_id(text: &str) -> tidegate_protocol::ids::TopicId {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    tidegate_protocol::ids::TopicId(bytes.try_into().expect("16 bytes"))
}

/// The arguments of the first command that an error advises, between backticks.
pub(crate) fn advice(stderr: &str) -> Vec<&str> {
    let command = stderr.split('`').skip(1).step_by(2).find(|text| text.starts_with("tg "));
    command.unwrap_or_else(|| panic!("no command in {stderr}")).split(' ').skip(1).collect()
}

/// A broker of `tg dev` with one shard on a free port.
pub(crate) struct Dev {
    child: Child,
    pub(crate) server: String,
    pub(crate) dir: TestDir,
}

impl Dev {
    pub(crate) fn start() -> Dev {
        Dev::start_in(TestDir::new())
    }

    /// In the directory of an earlier one.
    pub(crate) fn start_in(dir: TestDir) -> Dev {
        Dev::start_with(dir, &["--shards", "1", "--listen", "127.0.0.1:0"])
    }

    /// With these arguments beside the directory.
    pub(crate) fn start_with(dir: TestDir, args: &[&str]) -> Dev {
        let (data, port_file) = (dir.path().join("data"), dir.path().join("port"));
        let _ = std::fs::remove_file(&port_file);
        let mut dev = command(&["dev"]);
        dev.args(args).arg("--data").arg(&data).arg("--port-file").arg(&port_file);
        let mut child = dev.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        loop {
            // The file comes under its name when it is complete.
            if let Ok(text) = std::fs::read_to_string(&port_file) {
                return Dev { child, server: text.trim().to_owned(), dir };
            }
            if child.try_wait().unwrap().is_some() || begun.elapsed() > Duration::from_secs(180) {
                let _ = child.kill();
                panic!("the broker does not serve: {:?}", Ran::from(child.wait_with_output().unwrap()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// One shard; returns what it prints once it serves, up to the last command that it names.
    pub(crate) fn start_and_read(dir: TestDir) -> (Dev, String) {
        let mut dev = command(&["dev", "--shards", "1", "--listen", "127.0.0.1:0", "--data"]);
        let mut child = dev.arg(dir.path().join("data")).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        while !printed.contains(" consume t\n") {
            assert!(stdout.read_line(&mut printed).unwrap() > 0, "it has ended: {printed}");
        }
        let server = printed.lines().find_map(|line| line.strip_prefix("listen ")).unwrap().trim().to_owned();
        (Dev { child, server, dir }, printed)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("TIDEGATE_SERVER", &self.server);
        command
    }

    pub(crate) fn tg(&self, args: &[&str]) -> Ran {
        run(&mut self.command(args))
    }

    pub(crate) fn tg_with_input(&self, args: &[&str], input: &[u8]) -> Ran {
        run_with_input(self.command(args), input)
    }

    /// SIGTERM; it has to end with 0. Returns its directory.
    pub(crate) fn stop(mut self) -> TestDir {
        signal(&self.child, Signal::SIGTERM);
        assert!(self.child.wait().unwrap().success(), "a stop by SIGTERM is an ordinary end");
        std::mem::replace(&mut self.dir, TestDir::new())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
