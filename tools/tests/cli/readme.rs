//! What the README shows is what happens: its commands are run as printed and their output compared.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{self, Dev, Ran, TestDir, tg};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The README's console block that holds a command: each command with what it printed.
fn session(command: &str) -> Vec<(String, String)> {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = readme.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut blocks = blocks.filter(|block| block.lines().any(|line| line == format!("$ {command}")));
    let block = blocks.next().unwrap_or_else(|| panic!("the README shows `{command}`"));
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), String::new())),
            (None, Some((_, output))) => {
                output.push_str(line.trim_end());
                output.push('\n');
            }
            (None, None) => panic!("output before a command: {line}"),
        }
    }
    steps
}

/// Sizes and batches depend on how the input came in; everything else is the same on every machine.
fn steady(output: &str) -> String {
    let lines = output.lines().map(|line| match (line.find('('), line.find(')')) {
        (Some(from), Some(to)) if line[from..to].contains("batch") => {
            format!("{}(..{}", &line[..from], &line[to..])
        }
        _ => line.trim_end().to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

/// The first column of a table of names and values; lines of other kinds have none.
fn names(output: &str) -> Vec<&str> {
    let is_name = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase());
    output
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(name, _)| name)
        .filter(|n| is_name(n))
        .collect()
}

/// In a shell, as a person types it, with this build's `tg`.
fn typed(line: &str, dir: &Path, server: &str) -> Ran {
    let program = Path::new(env!("CARGO_BIN_EXE_tg"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(dir).env("PATH", path).env("TIDEGATE_SERVER", server);
    world::run(&mut shell)
}

#[test]
fn the_session_of_the_readme_prints_what_it_shows() {
    let dev = Dev::start();
    for file in ["README.md", "LICENSE"] {
        std::fs::copy(root().join(file), dev.dir.path().join(file)).unwrap();
    }
    for (command, shown) in session("tg topic create t --partitions 4") {
        let ran = typed(&command, dev.dir.path(), &dev.server).ok();
        assert_eq!(steady(&ran.stdout), steady(&shown), "$ {command}");
    }
    dev.stop();
}

#[test]
fn what_tg_dev_prints_is_what_the_readme_shows_and_its_next_commands_work() {
    let dir = TestDir::new();
    std::fs::copy(root().join("README.md"), dir.path().join("README.md")).unwrap();
    let (dev, printed) = Dev::start_and_read(dir);
    let (_, shown) = session("tg dev").into_iter().find(|(command, _)| command == "tg dev").unwrap();
    assert_eq!(names(&printed), names(&shown), "{printed}");
    let next = |text: &str| -> Vec<String> {
        let commands =
            text.lines().filter_map(|line| line.strip_prefix("  ")).filter(|l| l.starts_with("tg "));
        commands.map(|command| command.replace(&format!(" -s {}", dev.server), "")).collect()
    };
    assert_eq!(next(&printed), next(&shown));
    let commands = next(&printed);
    assert_eq!(commands.len(), 3);
    let rans: Vec<Ran> =
        commands.iter().map(|command| typed(command, dev.dir.path(), &dev.server).ok()).collect();
    // Records without a key go to partitions in turn, so the order across partitions is open.
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert_eq!(sorted(&rans[2].stdout), sorted(&readme));
    dev.stop();
}

#[test]
fn the_demo_prints_what_the_readme_shows() {
    let dir = TestDir::new();
    let ran = world::run(world::command(&["demo", "--seconds", "1"]).current_dir(dir.path())).ok();
    assert!(ran.stdout.contains("verified:        yes"), "{}", ran.stdout);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it leaves nothing behind");
    let (_, shown) = session("cargo run --release -- demo --seconds 5").remove(0);
    assert_eq!(names(&ran.stdout), names(&shown), "{}", ran.stdout);
    assert!(ran.stdout.contains("  1 s ") && shown.contains("  5 s "));
}

#[test]
fn every_command_that_a_document_names_can_be_typed() {
    let mut seen = 0;
    for document in ["README.md", "docs/OPERATING.md", "docs/HACKING.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for command in text.split('`').filter(|part| part.starts_with("tg ") && !part.contains('\n')) {
            let mut args: Vec<&str> = command.split([' ']).skip(1).collect();
            args.truncate(args.iter().position(|arg| ["|", "\\|", "<"].contains(arg)).unwrap_or(args.len()));
            // With its help asked for, a command does nothing; what it does not know, it says first.
            let help = tg(&[&args[..], &["--help"]].concat());
            assert_eq!(help.code, 0, "{document}: {command}: {}", help.stderr);
            for option in args.iter().filter(|arg| arg.starts_with("--")) {
                let option = option.split('=').next().unwrap();
                assert!(help.stdout.contains(option), "{document}: {command}: there is no {option}");
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "the documents name commands");
}
