//! Style rules that a machine can check. Each message says what to do instead.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Code lines (tests at the end of a file not counted) above which a file needs a place in [`LONG_FILES`].
const FILE_LINES_MAX: usize = 700;
/// Lines above which a function needs a place in [`LONG_FUNCTIONS`].
const FUNCTION_LINES_MAX: usize = 90;

/// Files that are too long and how long they may be: lower the figure when one shrinks, never raise it.
const LONG_FILES: &[(&str, usize)] = &[("broker/src/log/reader.rs", 709)];
/// Functions that are too long, as `file:function`, likewise.
const LONG_FUNCTIONS: &[(&str, usize)] = &[];

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Lines with their number, without those of the test module that ends the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]\nmod tests").unwrap_or(self.text.len());
        self.text[..end].lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    fn is_in(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| self.path.starts_with(folder))
    }
}

#[test]
fn unsafe_code_is_only_in_the_reactor() {
    refuse(
        |s| !s.is_in(&["broker/reactor/", "protocol/schema/", "tests/tests/tidy.rs"]),
        |line| line.contains("unsafe ") && !line.trim_start().starts_with("//") && !line.contains("\""),
        "move it behind a safe function of broker/reactor",
    );
}

#[test]
fn byte_order_is_decided_in_protocol_only() {
    refuse(
        // The crash recorder speaks the kernel's protocol, not ours.
        |s| s.is_in(&["broker/", "client/", "tools/", "bench/"]) && !s.is_in(&["broker/reactor/"]),
        |line| {
            ["to_le_bytes", "from_le_bytes", "to_be_bytes", "from_be_bytes"].iter().any(|w| line.contains(w))
        },
        "add a field or a codec to the protocol crate and use it",
    );
}

#[test]
fn shards_and_rules_touch_no_clock_thread_file_or_socket() {
    const WORLD: [&str; 7] =
        ["std::fs", "std::net", "std::thread", "SystemTime::now", "Instant::now", "tokio::", "std::env"];
    refuse(
        |s| s.is_in(&["broker/src/shard/", "broker/src/log/", "broker/logic/src/", "protocol/src/"]),
        |line| WORLD.iter().any(|w| line.contains(w)) && !line.trim_start().starts_with("//"),
        "ask for it by an op, or take it as an argument",
    );
}

#[test]
fn closed_tables_have_no_catch_all() {
    refuse(
        |s| {
            ["broker/src/shard/connection.rs", "broker/src/shard/reply.rs", "protocol/src/api/mod.rs"]
                .contains(&s.path.as_str())
        },
        |line| line.trim_start().starts_with("_ =>"),
        "name every case, so that the compiler finds the place for a new one",
    );
}

#[test]
fn nothing_is_unwrapped_or_left_open() {
    const WORDS: [&str; 5] = [".unwrap()", "todo!(", "unimplemented!(", "FIXME", "XXX"];
    refuse(
        |s| {
            !s.is_in(&["tests/", "protocol/schema/"])
                && !s.path.contains("/tests/")
                && !s.path.ends_with("/tests.rs")
                && !s.path.contains("/examples/")
        },
        |line| WORDS.iter().any(|w| line.contains(w)) && !line.trim_start().starts_with("//"),
        "handle it, or `expect` with the reason why it cannot fail",
    );
}

#[test]
fn no_test_is_ignored() {
    refuse(
        |s| s.path != "tests/tests/tidy.rs",
        |line| line.contains("#[ignore"),
        "mend the test or delete it",
    );
}

#[test]
fn names_are_the_glossarys() {
    const BANNED: [&str; 4] = ["mod utils", "mod helpers", "mod common", "mod impls"];
    refuse(
        |s| s.path != "tests/tests/tidy.rs",
        |line| BANNED.iter().any(|w| line.contains(w)),
        "name the module after what it knows, not after how it is used",
    );
}

#[test]
fn files_and_functions_stay_readable() {
    let mut complaints = String::new();
    for source in sources("rs") {
        if source.is_in(&["protocol/schema/", "tests/tests/"]) || source.path.ends_with("/tests.rs") {
            continue;
        }
        let lines = source.code().count();
        let allowed = allowance(LONG_FILES, &source.path, FILE_LINES_MAX);
        if lines > allowed {
            let _ = writeln!(
                complaints,
                "{}: {lines} lines of code, at most {allowed}: split it by what its parts know",
                source.path
            );
        }
        for (name, start, lines) in functions(&source) {
            let key = format!("{}:{name}", source.path);
            let allowed = allowance(LONG_FUNCTIONS, &key, FUNCTION_LINES_MAX);
            if lines > allowed {
                let _ = writeln!(
                    complaints,
                    "{}:{start}: fn {name} has {lines} lines, at most {allowed}: name its steps",
                    source.path
                );
            }
        }
    }
    assert!(complaints.is_empty(), "\n{complaints}");
}

#[test]
fn paths_named_in_documents_exist() {
    let root = root();
    let mut complaints = String::new();
    for document in sources("md") {
        let folder = root.join(&document.path).parent().map(Path::to_path_buf).unwrap_or_default();
        for (number, line) in document.text.lines().enumerate() {
            for target in links(line) {
                let target = target.split('#').next().unwrap_or_default();
                let outside = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
                if !outside && !folder.join(target).exists() {
                    let _ = writeln!(
                        complaints,
                        "{}:{}: link to {target}, which is not there",
                        document.path,
                        number + 1
                    );
                }
            }
            for named in line.split('`').skip(1).step_by(2) {
                let is_path = named.ends_with(".rs") || named.ends_with(".md") || named.ends_with(".toml");
                if is_path && named.contains('/') && !named.contains([' ', '*', '<', '{']) {
                    let found =
                        [&root, &folder].iter().any(|base| base.join(named.trim_start_matches('/')).exists());
                    if !found {
                        let _ = writeln!(
                            complaints,
                            "{}:{}: names {named}, which is not there",
                            document.path,
                            number + 1
                        );
                    }
                }
            }
        }
    }
    assert!(complaints.is_empty(), "\n{complaints}");
}

#[test]
fn what_the_list_of_failures_names_is_there() {
    let list = sources("md").into_iter().find(|s| s.path == "docs/FAILURES.md").expect("the list");
    let all: String = sources("rs").into_iter().map(|source| source.text).collect();
    let mut complaints = String::new();
    let rows = list.text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| number"));
    let mut expected = 1;
    for row in rows {
        if !row.starts_with(&format!("| {expected} |")) {
            let _ = writeln!(complaints, "row {expected} is missing or out of order: {row}");
        }
        expected += 1;
        for named in row.split('`').skip(1).step_by(2) {
            let of =
                |more: char| named.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == more);
            let found = match named {
                _ if of('_') && named.contains('_') => all.contains(&format!("fn {named}(")),
                // A planted bug or a scenario.
                _ if of('-') && named.contains('-') => all.contains(&format!("\"{named}\"")),
                _ => true,
            };
            if !found {
                let _ = writeln!(complaints, "row {}: names {named}, which is not there", expected - 1);
            }
        }
    }
    assert!(expected > 60, "a table of {} rows", expected - 1);
    assert!(complaints.is_empty(), "\n{complaints}");
}

/// Fails with every line of the chosen files that `is_bad`.
fn refuse(chosen: impl Fn(&Source) -> bool, is_bad: impl Fn(&str) -> bool, instead: &str) {
    let mut complaints = String::new();
    let mut files = 0;
    for source in sources("rs").into_iter().filter(|s| chosen(s)) {
        files += 1;
        for (number, line) in source.code().filter(|(_, line)| is_bad(line)) {
            let _ = writeln!(complaints, "{}:{number}: {}\n    {instead}", source.path, line.trim());
        }
    }
    assert!(files > 0, "the rule looks at no file");
    assert!(complaints.is_empty(), "\n{complaints}");
}

fn allowance(exceptions: &[(&str, usize)], key: &str, usual: usize) -> usize {
    exceptions.iter().find(|(name, _)| *name == key).map_or(usual, |(_, lines)| *lines)
}

/// Name, first line and length of each function, told by the indentation that rustfmt gives its closing brace.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize, usize)> = None;
    for (number, line) in source.code() {
        let indent = line.len() - line.trim_start().len();
        if let Some((name, start, depth)) = &open {
            if indent == *depth && line.trim_start().starts_with('}') {
                found.push((name.clone(), *start, number - start + 1));
                open = None;
            }
            continue;
        }
        let head = line.trim_start();
        let Some(at) = head.find("fn ") else { continue };
        let is_function = head[..at].split_whitespace().all(|w| {
            matches!(w, "pub" | "pub(crate)" | "pub(super)" | "const" | "async" | "unsafe")
                || w.starts_with("pub(in")
        });
        if is_function && !head.ends_with(';') && !head.ends_with('}') {
            let name = head[at + 3..].split(['(', '<']).next().unwrap_or_default().to_owned();
            open = Some((name, number, indent));
        }
    }
    found
}

/// The targets of Markdown links in a line.
fn links(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

/// All files of a kind that belong to the project, by path.
fn sources(extension: &str) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).expect("a folder of the project").map(|e| e.expect("an entry").path())
        {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if entry.is_dir() {
                if !name.starts_with('.') && !name.starts_with("target") && !name.starts_with("tidegate-") {
                    folders.push(entry);
                }
            } else if entry.extension().is_some_and(|e| e == extension) {
                let path =
                    entry.strip_prefix(&root).expect("it was found below").to_string_lossy().into_owned();
                found.push(Source { path, text: std::fs::read_to_string(&entry).expect("sources are text") });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}
