//! The only place that writes to the terminal: results on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_bench::stages::Stage;

use crate::exit::Failure;

/// For whom the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: aligned tables, units. May change between versions.
    Human,
    /// For scripts: one JSON object a line. Fields are only ever added.
    Json,
}

/// Standard output, buffered, and the wish of the caller for its form.
pub(crate) struct Out {
    format: Format,
    stdout: BufWriter<io::Stdout>,
}

impl Out {
    /// Nothing is written before the first call.
    pub(crate) fn new(format: Format) -> Out {
        Out { format, stdout: BufWriter::with_capacity(64 << 10, io::stdout()) }
    }

    /// For whom the output is.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Whether the output is for scripts.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// One line for people.
    pub(crate) fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        writeln!(self.stdout, "{text}").map_err(Failure::output)
    }

    /// One object for scripts.
    pub(crate) fn json(&mut self, value: &serde_json::Value) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.stdout, value).map_err(|e| Failure::output(e.into()))?;
        self.bytes(b"\n")
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(Failure::output)
    }

    /// What was written is out. Called when there is nothing more to write for now, and at the end.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(Failure::output)
    }

    /// A table for people: a head, then rows; numbers right-aligned.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
        self.line(render_table(head, rows).trim_end())
    }
}

/// An error, in the form that was asked for. On standard error.
pub(crate) fn tell(failure: &Failure, format: Format) {
    match format {
        Format::Human => note(failure),
        Format::Json => note(failure.to_json()),
    }
}

/// Something to say to a person that is no result: a warning, a hint. On standard error; a closed one is no matter.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A line that replaces the one before, if standard error is a terminal; else nothing.
pub(crate) fn progress_bar(length: Option<u64>, unit: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(8));
    let template = match (length, unit) {
        (Some(_), "bytes") => "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left {msg}",
        (None, "bytes") => "{spinner} {bytes} {binary_bytes_per_sec} {msg}",
        (Some(_), _) => "{bar:30} {human_pos}/{human_len} {per_sec} {eta} left {msg}",
        (None, _) => "{spinner} {human_pos} {per_sec} {msg}",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the templates above are valid"));
    bar
}

/// Aligned columns with two spaces between; a column whose cells are all numbers is right-aligned.
pub(crate) fn render_table(head: &[&str], rows: &[Vec<String>]) -> String {
    let columns = head.len();
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    let mut numeric = vec![!rows.is_empty(); columns];
    for row in rows {
        assert_eq!(row.len(), columns, "every row has a cell for each column of {head:?}");
        for (i, cell) in row.iter().enumerate() {
            widths[i] = widths[i].max(cell.chars().count());
            numeric[i] &= cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        }
    }
    let mut text = String::new();
    let head_cells: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&head_cells).chain(rows) {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[i] - cell.chars().count());
            let gap = if i == 0 { "" } else { "  " };
            line += &if numeric[i] { format!("{gap}{pad}{cell}") } else { format!("{gap}{cell}{pad}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// 12345678 as `12,345,678`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Bytes in the largest binary unit that leaves at least 1: `1.5 MiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Microseconds for people: `850 us`, `1.25 ms`, `2.1 s`.
pub(crate) fn micros_text(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

/// Where a broker's time goes, a line a stage.
pub(crate) fn stage_table(stages: &[Stage], out: &mut Out) -> Result<(), Failure> {
    let row = |stage: &Stage| {
        let times = stage.times();
        let micros = [times.p50_us, times.p99_us, times.p999_us, times.max_us].map(micros_text);
        [vec![stage.name.clone(), grouped(times.count)], micros.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = stages.iter().map(row).collect();
    out.table(&["stage", "times", "p50", "p99", "p99.9", "max"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned_and_text_left() {
        let rows = vec![vec!["a".into(), "5".into()], vec!["long".into(), "1,000".into()]];
        assert_eq!(render_table(&["name", "n"], &rows), "name      n\na         5\nlong  1,000\n");
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(12_345_678), "12,345,678");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(3 << 40), "3.0 TiB");
        assert_eq!(micros_text(999), "999 us");
        assert_eq!(micros_text(1250), "1.25 ms");
        assert_eq!(micros_text(2_100_000), "2.10 s");
    }
}
