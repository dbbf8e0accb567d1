//! `-f`: how a record is written out by `consume`, and how one is cut out of the input by `produce`.
//!
//! The letters are kcat's where kcat has one; [`LETTERS`] lists them, and the help is made from that list.

use std::io::{self, BufRead};

/// One piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes as they are.
    Literal(Vec<u8>),
    /// A field of the record.
    Field(Field),
}

/// What a letter stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// `%t`
    Topic,
    /// `%p`
    Partition,
    /// `%o`
    Offset,
    /// `%k`
    Key,
    /// `%K`
    KeyLength,
    /// `%v`, `%s`
    Value,
    /// `%S`
    ValueLength,
    /// `%T`
    Time,
    /// `%h`
    Headers,
}

/// Every letter, what it stands for, and what the help says of it.
const LETTERS: [(char, Field, &str); 10] = [
    ('t', Field::Topic, "topic"),
    ('p', Field::Partition, "partition"),
    ('o', Field::Offset, "offset"),
    ('k', Field::Key, "key"),
    ('K', Field::KeyLength, "its length"),
    ('v', Field::Value, "value"),
    ('S', Field::ValueLength, "its length"),
    ('T', Field::Time, "record time in ms"),
    ('h', Field::Headers, "headers a=1,b=2"),
    ('s', Field::Value, "value, as kcat calls it"),
];

/// Escapes in formats and separators.
pub(crate) const ESCAPES: &str = "\\n \\r \\t \\0 \\\\ \\xHH";

/// What a format is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Records are written out.
    Output,
    /// Records are cut out of an input.
    Input,
}

/// The lines of the help that list the letters.
pub(crate) fn letters_help(direction: Direction) -> String {
    let known = LETTERS.iter().filter(|(_, field, _)| direction == Direction::Output || field.is_input());
    let words: Vec<String> = known.map(|(letter, _, text)| format!("%{letter} {text}")).collect();
    let mut lines = String::from("Format:");
    let mut width = lines.len();
    for word in words.iter().map(String::as_str).chain(["%% percent sign"]) {
        if width + word.len() > 100 {
            lines.push_str("\n       ");
            width = 7;
        }
        lines.push_str(&format!(" {word},"));
        width += word.len() + 2;
    }
    format!("{};\n        {ESCAPES}.", lines.trim_end_matches(','))
}

impl Field {
    /// Whether it can be told what to be when a record is cut out of an input.
    fn is_input(self) -> bool {
        match self {
            Field::Partition | Field::Key | Field::Value | Field::Time | Field::Headers => true,
            Field::Topic | Field::Offset | Field::KeyLength | Field::ValueLength => false,
        }
    }
}

/// Bytes as typed, with escapes.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => bytes.push(escape(&mut chars)?),
            other => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Ok(bytes)
}

/// A format as typed, cut into pieces; neighbouring literals are one.
pub(crate) fn parse(format: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut literal = Vec::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        let field = match c {
            '\\' => {
                literal.push(escape(&mut chars)?);
                continue;
            }
            '%' => match chars.next() {
                Some('%') => {
                    literal.push(b'%');
                    continue;
                }
                Some(letter) => field(letter)?,
                None => return Err("it ends with a single %; write %% for a percent sign".into()),
            },
            other => {
                literal.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Field(field));
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

fn field(letter: char) -> Result<Field, String> {
    if let Some((_, field, _)) = LETTERS.iter().find(|(known, _, _)| *known == letter) {
        return Ok(*field);
    }
    let known: String = LETTERS.iter().map(|(known, _, _)| format!("%{known} ")).collect();
    Err(format!("%{letter} is no field; there are {known}and %%"))
}

fn escape(chars: &mut std::str::Chars<'_>) -> Result<u8, String> {
    match chars.next() {
        Some('n') => Ok(b'\n'),
        Some('r') => Ok(b'\r'),
        Some('t') => Ok(b'\t'),
        Some('0') => Ok(0),
        Some('\\') => Ok(b'\\'),
        Some('x') => {
            let hex: String = chars.by_ref().take(2).collect();
            let byte = if hex.len() == 2 { u8::from_str_radix(&hex, 16).ok() } else { None };
            byte.ok_or_else(|| format!("\\x{hex} is no byte; write two hexadecimal digits"))
        }
        other => {
            let given = other.map(String::from).unwrap_or_default();
            Err(format!("\\{given} is no escape; there are {ESCAPES}"))
        }
    }
}

/// What a record offers to a format. Null and empty are different things.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a> {
    /// The topic's name.
    pub(crate) topic: &'a str,
    /// The partition.
    pub(crate) partition: i32,
    /// The offset.
    pub(crate) offset: i64,
    /// Milliseconds since the Unix epoch.
    pub(crate) timestamp_ms: i64,
    /// The key; none: null.
    pub(crate) key: Option<&'a [u8]>,
    /// The value; none: null.
    pub(crate) value: Option<&'a [u8]>,
    /// Names and values, in the record's order.
    pub(crate) headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// Appends a record to `out` as the pieces say. Null is written as nothing.
pub(crate) fn render(pieces: &[Piece], record: &RecordView<'_>, out: &mut Vec<u8>) {
    for piece in pieces {
        match piece {
            Piece::Literal(bytes) => out.extend_from_slice(bytes),
            Piece::Field(Field::Topic) => out.extend_from_slice(record.topic.as_bytes()),
            Piece::Field(Field::Partition) => number(out, record.partition.into()),
            Piece::Field(Field::Offset) => number(out, record.offset),
            Piece::Field(Field::Key) => out.extend_from_slice(record.key.unwrap_or_default()),
            Piece::Field(Field::KeyLength) => number(out, length(record.key)),
            Piece::Field(Field::Value) => out.extend_from_slice(record.value.unwrap_or_default()),
            Piece::Field(Field::ValueLength) => number(out, length(record.value)),
            Piece::Field(Field::Time) => number(out, record.timestamp_ms),
            Piece::Field(Field::Headers) => {
                for (i, (name, value)) in record.headers.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(name.as_bytes());
                    out.push(b'=');
                    out.extend_from_slice(value.unwrap_or_default());
                }
            }
        }
    }
}

fn length(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |b| b.len() as i64)
}

fn number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(number.to_string().as_bytes());
}

/// A record cut out of the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InputRecord {
    /// The key; none: null.
    pub(crate) key: Option<Vec<u8>>,
    /// The value; none: null.
    pub(crate) value: Option<Vec<u8>>,
    /// Where to; none: the partitioner decides.
    pub(crate) partition: Option<i32>,
    /// Milliseconds since the Unix epoch; none: now.
    pub(crate) timestamp_ms: Option<i64>,
    /// Names and values.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

/// An input format: a leading literal, then fields, each ended by the literal behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    lead: Vec<u8>,
    fields: Vec<(Field, Vec<u8>)>,
}

impl Pattern {
    /// Checks that the pieces can be told apart in the input.
    pub(crate) fn parse(format: &str) -> Result<Pattern, String> {
        let mut pattern = Pattern { lead: Vec::new(), fields: Vec::new() };
        for piece in parse(format)? {
            match piece {
                Piece::Literal(bytes) => match pattern.fields.last_mut() {
                    None => pattern.lead = bytes,
                    Some((_, end)) => *end = bytes,
                },
                Piece::Field(field) => {
                    if !field.is_input() {
                        return Err("on input only %k %v %p %T and %h make sense".into());
                    }
                    if pattern.fields.iter().any(|(_, end)| end.is_empty()) {
                        return Err("two fields need something between them to tell them apart".into());
                    }
                    pattern.fields.push((field, Vec::new()));
                }
            }
        }
        match pattern.fields.last_mut() {
            None => return Err("it names no field; the usual one is '%v\\n' or '%k,%v\\n'".into()),
            Some((_, end)) if end.is_empty() => end.push(b'\n'),
            Some(_) => {}
        }
        Ok(pattern)
    }

    /// The next record; none at the end of the input. The last record may lack its end.
    ///
    /// # Errors
    /// The input cannot be read, a field is longer than `bytes_max`, or it does not follow the pattern.
    pub(crate) fn read(&self, input: &mut dyn BufRead, bytes_max: usize) -> io::Result<Option<InputRecord>> {
        if input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        if !self.lead.is_empty() {
            let (skipped, end) = read_until(input, &self.lead, bytes_max)?;
            if end == End::OfInput && skipped.is_empty() {
                return Ok(None);
            }
            if end == End::OfInput || !skipped.is_empty() {
                return Err(invalid(format!("a record does not begin with {:?}", lossy(&self.lead))));
            }
        }
        let mut record = InputRecord::default();
        for (i, (field, end)) in self.fields.iter().enumerate() {
            let last = i + 1 == self.fields.len();
            let (bytes, found) = read_until(input, end, bytes_max)?;
            if found == End::OfInput && !last {
                return Err(invalid(format!("the last record ends before {:?}", lossy(end))));
            }
            record.set(*field, bytes)?;
        }
        Ok(Some(record))
    }
}

impl InputRecord {
    fn set(&mut self, field: Field, bytes: Vec<u8>) -> io::Result<()> {
        match field {
            Field::Key => self.key = Some(bytes),
            Field::Value => self.value = Some(bytes),
            Field::Partition => self.partition = Some(parse_number(&bytes, "%p")?),
            Field::Time => self.timestamp_ms = Some(parse_number(&bytes, "%T")?),
            Field::Headers => {
                for pair in bytes.split(|b| *b == b',').filter(|pair| !pair.is_empty()) {
                    self.headers.push(parse_header(pair).map_err(invalid)?);
                }
            }
            Field::Topic | Field::Offset | Field::KeyLength | Field::ValueLength => {
                unreachable!("Pattern::parse refuses {field:?}")
            }
        }
        Ok(())
    }
}

/// `name=value`.
pub(crate) fn parse_header(pair: &[u8]) -> Result<(String, Vec<u8>), String> {
    let at = pair.iter().position(|b| *b == b'=').filter(|at| *at > 0);
    let Some(at) = at else { return Err(format!("header {:?} is not name=value", lossy(pair))) };
    let name =
        String::from_utf8(pair[..at].to_vec()).map_err(|_| "a header's name is not UTF-8".to_owned())?;
    Ok((name, pair[at + 1..].to_vec()))
}

fn parse_number<T: std::str::FromStr>(bytes: &[u8], letter: &str) -> io::Result<T> {
    let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| invalid(format!("{letter} is {:?}, which is no number in range", lossy(bytes))))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The delimiter was there.
    Delimiter,
    /// The input ended first.
    OfInput,
}

/// What comes before `delimiter`, which is taken out of the input too.
fn read_until(input: &mut dyn BufRead, delimiter: &[u8], bytes_max: usize) -> io::Result<(Vec<u8>, End)> {
    let last = *delimiter.last().expect("a pattern has no empty delimiter");
    let mut bytes = Vec::new();
    loop {
        let available = input.fill_buf()?;
        if available.is_empty() {
            return Ok((bytes, End::OfInput));
        }
        let found = available.iter().position(|b| *b == last);
        let take = found.map_or(available.len(), |at| at + 1);
        bytes.extend_from_slice(&available[..take]);
        input.consume(take);
        if found.is_some() && bytes.ends_with(delimiter) {
            bytes.truncate(bytes.len() - delimiter.len());
            return Ok((bytes, End::Delimiter));
        }
        if bytes.len() > bytes_max {
            return Err(invalid(format!("a field is longer than {bytes_max} bytes")));
        }
    }
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_rendered_by_kcats_letters() {
        let record = RecordView {
            topic: "t",
            partition: 3,
            offset: 42,
            timestamp_ms: 1_700_000_000_000,
            key: None,
            value: Some(b"v\xff"),
            headers: &[("host", Some(b"a")), ("none", None)],
        };
        let cases: [(&str, &[u8]); 7] = [
            ("%p %o %k %v\\n", b"3 42  v\xff\n"),
            ("%t[%p]@%o %T", b"t[3]@42 1700000000000"),
            ("%K/%S", b"-1/2"),
            ("%h", b"host=a,none="),
            ("100%% \\t\\x41\\0\\\\", b"100% \tA\0\\"),
            ("\u{e9}%s", b"\xc3\xa9v\xff"),
            ("", b""),
        ];
        for (format, want) in cases {
            let mut out = Vec::new();
            render(&parse(format).unwrap(), &record, &mut out);
            assert_eq!(out, want, "{format}");
        }
    }

    #[test]
    fn a_wrong_format_is_explained() {
        for (format, want) in
            [("%", "single %"), ("%q", "%q"), ("\\q", "\\q"), ("\\x4", "\\x4"), ("\\", "escape")]
        {
            let error = parse(format).unwrap_err();
            assert!(error.contains(want), "{format}: {error}");
        }
        assert_eq!(unescape("a\\t\\0\\n\\\\\\x41").unwrap(), b"a\t\0\n\\A");
        assert!(unescape("\\").unwrap_err().contains("escape"));
        for (format, want) in [("%k%v", "between"), ("%o %v", "input"), ("text", "no field")] {
            let error = Pattern::parse(format).unwrap_err();
            assert!(error.contains(want), "{format}: {error}");
        }
    }

    #[test]
    fn every_letter_that_is_understood_is_in_the_help_and_no_other() {
        let help = [letters_help(Direction::Output), letters_help(Direction::Input)];
        for letter in ('!'..='~').filter(|c| *c != '%') {
            let named = help.each_ref().map(|text| text.contains(&format!("%{letter} ")));
            assert_eq!(named[0], parse(&format!("%{letter}")).is_ok(), "%{letter} in {}", help[0]);
            assert_eq!(named[1], Pattern::parse(&format!("%{letter}")).is_ok(), "%{letter} in {}", help[1]);
        }
        for escape in ESCAPES.split(' ') {
            assert!(unescape(&escape.replace("HH", "41")).is_ok(), "{escape}");
        }
    }

    fn read_all(format: &str, input: &[u8]) -> io::Result<Vec<InputRecord>> {
        let pattern = Pattern::parse(format).unwrap();
        // A reader of three bytes at a time crosses every delimiter.
        let mut input = io::BufReader::with_capacity(3, input);
        let mut records = Vec::new();
        while let Some(record) = pattern.read(&mut input, 64)? {
            records.push(record);
        }
        Ok(records)
    }

    #[test]
    fn records_are_cut_out_of_the_input() {
        let one = |key: Option<&str>, value: &str| InputRecord {
            key: key.map(|k| k.as_bytes().to_vec()),
            value: Some(value.as_bytes().to_vec()),
            ..InputRecord::default()
        };
        assert_eq!(read_all("%v\\n", b"a\n\nb").unwrap(), [one(None, "a"), one(None, ""), one(None, "b")]);
        assert_eq!(
            read_all("%k::%v;\\n", b"k::v;w;\nx::;\n").unwrap(),
            [one(Some("k"), "v;w"), one(Some("x"), "")]
        );
        assert_eq!(
            read_all("<%k>%v\\n", b"<k>v\n<l>w\n").unwrap(),
            [one(Some("k"), "v"), one(Some("l"), "w")]
        );
        let full = read_all("%p %T %h %v\\n", b"2 99 a=1,b= text here\n").unwrap();
        assert_eq!(full[0].partition, Some(2));
        assert_eq!(full[0].timestamp_ms, Some(99));
        assert_eq!(full[0].headers, [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), Vec::new())]);
        assert_eq!(full[0].value.as_deref(), Some(&b"text here"[..]));
    }

    #[test]
    fn input_that_does_not_follow_the_pattern_is_refused() {
        assert!(read_all("%k,%v\\n", b"no comma").unwrap_err().to_string().contains("ends before"));
        assert!(read_all("<%v\\n", b"x<v\n").unwrap_err().to_string().contains("begin with"));
        assert!(read_all("%p %v\\n", b"x v\n").unwrap_err().to_string().contains("%p"));
        assert!(read_all("%v\\n", &[b'a'; 200]).unwrap_err().to_string().contains("64 bytes"));
    }
}
