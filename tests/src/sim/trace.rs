//! What happened in a run, as one number and, on demand, as readable lines.
//!
//! Two runs of one seed must end with the same number: whatever differs between them (a clock, an address, the order of a
//! hash map) would make a failing seed impossible to replay.

use std::fmt::Write as _;

use tidegate_reactor::op::{Event, Fault};

/// The record of a run.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    notes: u64,
    history: Option<Vec<String>>,
}

/// A named number of a note.
pub type Field = (&'static str, u64);

impl Trace {
    /// A trace that keeps only its hash.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// A trace that also keeps every note as a line.
    pub fn with_history() -> Trace {
        Trace { history: Some(Vec::new()), ..Trace::default() }
    }

    /// Adds one thing that happened at `at_ns`: a word or two, an optional name, and numbers.
    pub fn note(&mut self, at_ns: u64, what: &'static str, name: &str, fields: &[Field]) {
        self.notes += 1;
        self.mix(at_ns);
        self.mix(u64::from(crc32c::crc32c(what.as_bytes())));
        self.mix(u64::from(crc32c::crc32c(name.as_bytes())));
        for (_, value) in fields {
            self.mix(*value);
        }
        let Some(history) = &mut self.history else { return };
        let mut line = format!("{:>12.3} us  {what:<16}", at_ns as f64 / 1e3);
        if !name.is_empty() {
            let _ = write!(line, " {name}");
        }
        for (field, value) in fields {
            let _ = match *field {
                "crc" | "file" | "tag" => write!(line, " {field}={value:#x}"),
                _ => write!(line, " {field}={value}"),
            };
        }
        history.push(line);
    }

    /// Adds an event that is put before a shard.
    pub fn note_event(&mut self, at_ns: u64, shard: usize, event: &Event) {
        let mut note = |what, name, fields: &[Field]| self.note(at_ns, what, name, fields);
        let index = ("shard", shard as u64);
        match event {
            Event::Opened { file, result } => note("opened", "", &[index, ("file", file.0), ok(result)]),
            Event::FileClosed { file } => note("file closed", "", &[index, ("file", file.0)]),
            Event::Read { file, tag, result } => {
                let len = result.as_ref().map_or(0, |b| b.filled()) as u64;
                note("read done", "", &[index, ("file", file.0), ("tag", tag.0), ok(result), ("len", len)]);
            }
            Event::Written { file, tag, result } => {
                let len = result.as_ref().map_or(0, |n| *n) as u64;
                note("written", "", &[index, ("file", file.0), ("tag", tag.0), ok(result), ("len", len)]);
            }
            Event::Flushed { file, tag, result } => {
                note("flushed", "", &[index, ("file", file.0), ("tag", tag.0), ok(result)]);
            }
            Event::Removed { tag, result } => note("removed", "", &[index, ("tag", tag.0), ok(result)]),
            Event::FreeSpace { tag, result } => {
                let free = result.as_ref().map_or(0, |space| space.free_bytes);
                note("free space", "", &[index, ("tag", tag.0), ("bytes", free)]);
            }
            Event::Timer { tag } => note("timer fires", "", &[index, ("tag", tag.0)]),
            Event::Accepted { socket } => note("accepted", "", &[index, ("socket", socket.0)]),
            Event::Arrived { socket, .. } => note("arrived", "", &[index, ("socket", socket.0)]),
            Event::Received { socket, result, .. } => {
                let len = result.as_ref().map_or(0, |n| *n) as u64;
                note("received", "", &[index, ("socket", socket.0), ok(result), ("len", len)]);
            }
            Event::Sent { socket, tag, result } => {
                note("sent", "", &[index, ("socket", socket.0), ("tag", tag.0), ok(result)]);
            }
            Event::Closed { socket } => note("closed", "", &[index, ("socket", socket.0)]),
            Event::HandedOver { socket, result } => {
                note("handed over", "", &[index, ("socket", socket.0), ok(result)]);
            }
            Event::Mail { from, .. } => note("mail comes", "", &[index, ("from", from.0.into())]),
            Event::MailTaken { to } => note("mail taken", "", &[index, ("to", to.0.into())]),
            Event::Order { .. } => note("order", "", &[index]),
        }
    }

    /// The hash of all notes so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many notes there are.
    pub fn notes(&self) -> u64 {
        self.notes
    }

    /// The lines, oldest first; empty unless the trace keeps a history.
    pub fn history(&self) -> &[String] {
        self.history.as_deref().unwrap_or(&[])
    }

    fn mix(&mut self, word: u64) {
        let mixed = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }
}

fn ok<T>(result: &Result<T, Fault>) -> Field {
    ("ok", result.is_ok().into())
}
