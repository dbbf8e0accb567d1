//! docs/WIRE_FORMAT.md says what the code does: its tables are written from the code, its layouts are compared with it.

use std::collections::BTreeMap;
use std::fmt::Write;

use tidegate_protocol::api::Api;
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::{Frame, Kind, Split, split};

const DOC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/WIRE_FORMAT.md");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/messages.txt");

fn apis() -> String {
    let mut table = "| number | api | what |\n|---|---|---|\n".to_owned();
    for api in Api::ALL {
        let (number, name, meaning) = (api.number(), api.name(), api.meaning());
        writeln!(table, "| {number} | `{name}` | {meaning} |").expect("text grows");
    }
    table
}

fn errors() -> String {
    let mut table =
        "| number | code | who has to change something | retry | meaning |\n|---|---|---|---|---|\n"
            .to_owned();
    for code in ErrorCode::ALL {
        let (number, blame, retry, meaning) = (code.number(), code.blame(), code.retry(), code.meaning());
        writeln!(table, "| {number} | `{code:?}` | {blame:?} | {retry:?} | {meaning} |").expect("text grows");
    }
    table
}

/// `doc` with what stands between the marks of `section` replaced.
fn with_section(doc: &str, section: &str, content: &str) -> String {
    let mark = format!("<!-- generated: {section} -->\n");
    let (before, rest) = doc.split_once(&mark).unwrap_or_else(|| panic!("the document has no {mark}"));
    let (_, after) = rest.split_once("<!-- end -->").expect("every generated section ends");
    format!("{before}{mark}{content}<!-- end -->{after}")
}

/// Run with `GOLDEN_WRITE=1` after an api or an error code was added.
#[test]
fn the_tables_of_apis_and_errors_are_those_of_the_code() {
    let doc = std::fs::read_to_string(DOC).expect("docs/WIRE_FORMAT.md");
    let expected = with_section(&with_section(&doc, "apis", &apis()), "errors", &errors());
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(DOC, &expected).expect("writing docs/WIRE_FORMAT.md");
        return;
    }
    assert_eq!(doc, expected, "docs/WIRE_FORMAT.md is behind the code: run this test with GOLDEN_WRITE=1");
}

/// `produce reply` and so on, with the length that it has; fields must follow each other without a gap.
fn layouts(doc: &str) -> BTreeMap<String, usize> {
    let mut layouts = BTreeMap::new();
    for block in doc.split("```layout\n").skip(1) {
        let (block, _) = block.split_once("```").expect("every block ends");
        let mut lines = block.lines();
        let title = lines.next().expect("a title");
        let (name, rest) = title.split_once(": ").expect("`name: N bytes`");
        let said: usize = rest.split(' ').next().and_then(|n| n.parse().ok()).expect("`name: N bytes`");
        let mut at = 0;
        for line in lines {
            let mut words = line.split_whitespace();
            let (place, kind) = (words.next().expect("a place"), words.next().expect("a type"));
            assert_eq!(place, at.to_string(), "{name}: {line}");
            at += match kind {
                "u8" => 1,
                "u16" => 2,
                "u32" | "i32" => 4,
                "u64" | "i64" => 8,
                array => array.trim_matches(['[', ']']).parse().expect("a type"),
            };
        }
        assert_eq!(at, said, "{name}: the fields and the length in the title differ");
        layouts.insert(name.to_owned(), at);
    }
    layouts
}

fn golden_frames(text: &str) -> Vec<Vec<u8>> {
    let hex_lines = text.split("\n\n").filter_map(|entry| entry.lines().nth(1));
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hex");
        u8::from_str_radix(pair, 16).expect("hex")
    };
    hex_lines.map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect()
}

fn name_of(frame: &Frame<'_>) -> Option<String> {
    let api = frame.api().ok()?;
    let sent_unasked = matches!(api, Api::Data | Api::CaughtUp | Api::Heartbeat | Api::Credit);
    match frame.kind {
        Kind::Request if sent_unasked => Some(api.name().to_owned()),
        Kind::Request => Some(format!("{} request", api.name())),
        Kind::Reply => Some(format!("{} reply", api.name())),
        Kind::Error => None,
    }
}

#[test]
fn every_fixed_head_is_drawn_with_its_length() {
    let doc = std::fs::read_to_string(DOC).expect("docs/WIRE_FORMAT.md");
    let golden = std::fs::read_to_string(GOLDEN).expect("the golden file");
    let mut drawn = layouts(&doc);
    let mut seen = BTreeMap::new();
    for bytes in golden_frames(&golden) {
        let Ok(Split::Frame(frame)) = split(&bytes, 1 << 20) else { panic!("golden frames are whole") };
        if let Some(name) = name_of(&frame).filter(|_| !frame.head.is_empty()) {
            seen.insert(name, frame.head.len());
        }
    }
    for (name, len) in seen {
        assert_eq!(drawn.remove(&name), Some(len), "docs/WIRE_FORMAT.md and the head of `{name}`");
    }
    assert!(drawn.is_empty(), "drawn but not in the golden frames: {drawn:?}");
}
