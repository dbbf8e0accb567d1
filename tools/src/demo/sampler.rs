//! Reads this machine's own telemetry from procfs, as fast as it can: every sample is one reading of one series, with the
//! nanosecond at which the kernel was asked.
//!
//! Files stay open and are read again from their beginning, which is what procfs makes cheap. The numbers in a sample are
//! the kernel's own digits; nothing is computed, repeated or made up. Rows of one file (one row a core, a drive, a network
//! interface) are samples of different series taken by the same reading.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::time::now_ns;

/// One reading of one series.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// What was read, such as `cpu/0` or `process/4711/io`; the record's key.
    pub(crate) series: Arc<str>,
    /// In what its numbers are counted.
    pub(crate) unit: &'static str,
    /// When, in nanoseconds since the Unix epoch; rises strictly within a series.
    pub(crate) t_ns: u64,
    /// `{"t_ns":..,"field":number,..}`
    pub(crate) value: Vec<u8>,
}

/// How the text of a file becomes samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// /proc/stat: a row a core, then counters of the whole machine.
    Stat,
    /// `Name: number kB` lines.
    Meminfo,
    /// `name number` lines.
    Pairs,
    /// /proc/diskstats.
    Disks,
    /// /proc/net/dev.
    Interfaces,
    /// /proc/net/snmp and netstat: a line of names, a line of numbers.
    Protocols,
    /// /proc/loadavg.
    Load,
    /// /proc/pressure/*.
    Pressure,
    /// /proc/PID/stat.
    Process,
    /// One line of numbers with names known beforehand.
    Columns(&'static [&'static str]),
}

struct Source {
    file: File,
    shape: Shape,
    series: Arc<str>,
    unit: &'static str,
    /// The process it belongs to, whose end closes it.
    pid: Option<u32>,
}

/// Which part of the machine's series one sampler reads, so that several threads share them without overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// From 0.
    pub(crate) index: u32,
    /// At least 1.
    pub(crate) of: u32,
}

/// Reads its share of the machine's series in turn.
pub(crate) struct Sampler {
    root: std::path::PathBuf,
    share: Share,
    sources: Vec<Source>,
    /// Series of rows, by prefix and row name; made once.
    rows: HashMap<String, Arc<str>>,
    /// The last sampling time given out: times rise strictly, also when the clock does not.
    last_ns: u64,
    text: Vec<u8>,
}

/// A process beyond this many is not sampled, so that open files stay few.
const PROCESSES_MAX: usize = 200;
/// The longest file read whole; /proc/stat of a machine with hundreds of cores fits.
const TEXT_BYTES: usize = 256 << 10;

const CPU: &[&str] =
    &["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"];
const DISK: &[&str] = &[
    "reads",
    "reads_merged",
    "read_sectors",
    "read_ms",
    "writes",
    "writes_merged",
    "write_sectors",
    "write_ms",
    "in_flight",
    "io_ms",
    "io_weighted_ms",
    "discards",
    "discards_merged",
    "discard_sectors",
    "discard_ms",
    "flushes",
    "flush_ms",
];
const INTERFACE: &[&str] = &[
    "rx_bytes",
    "rx_packets",
    "rx_errors",
    "rx_dropped",
    "rx_fifo",
    "rx_frame",
    "rx_compressed",
    "rx_multicast",
    "tx_bytes",
    "tx_packets",
    "tx_errors",
    "tx_dropped",
    "tx_fifo",
    "tx_collisions",
    "tx_carrier",
    "tx_compressed",
];
/// /proc/PID/stat from its fourth field on; proc_pid_stat(5) has the list.
const PROCESS: &[&str] = &[
    "ppid",
    "pgrp",
    "session",
    "tty",
    "tpgid",
    "flags",
    "minor_faults",
    "child_minor_faults",
    "major_faults",
    "child_major_faults",
    "user_ticks",
    "system_ticks",
    "child_user_ticks",
    "child_system_ticks",
    "priority",
    "nice",
    "threads",
    "",
    "start_ticks",
    "virtual_bytes",
    "resident_pages",
];
const STATM: &[&str] = &["size", "resident", "shared", "text", "", "data"];
const SCHEDSTAT: &[&str] = &["run_ns", "wait_ns", "slices"];

impl Sampler {
    /// Opens what there is under `root`, normally `/proc`; what this kernel does not have is left out.
    ///
    /// # Errors
    /// Nothing at all can be read there.
    pub(crate) fn open(root: &Path, share: Share) -> io::Result<Sampler> {
        let mut sampler = Sampler {
            root: root.to_owned(),
            share,
            sources: Vec::new(),
            rows: HashMap::new(),
            last_ns: 0,
            text: vec![0; TEXT_BYTES],
        };
        let machine = [
            ("stat", Shape::Stat, "cpu", "ticks"),
            ("loadavg", Shape::Load, "cpu/load", "processes"),
            ("meminfo", Shape::Meminfo, "memory", "KiB"),
            ("vmstat", Shape::Pairs, "memory/vm", "count"),
            ("diskstats", Shape::Disks, "disk", "count, 512 B sectors, ms"),
            ("net/dev", Shape::Interfaces, "network", "bytes, packets"),
            ("net/snmp", Shape::Protocols, "network", "count"),
            ("net/netstat", Shape::Protocols, "network", "count"),
            ("pressure/cpu", Shape::Pressure, "pressure/cpu", "percent, us"),
            ("pressure/memory", Shape::Pressure, "pressure/memory", "percent, us"),
            ("pressure/io", Shape::Pressure, "pressure/io", "percent, us"),
        ];
        for (i, (path, shape, series, unit)) in machine.into_iter().enumerate() {
            if i as u32 % share.of == share.index {
                sampler.add(path, shape, series, unit, None);
            }
        }
        sampler.rescan()?;
        if sampler.sources.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("nothing to sample in {}", root.display()),
            ));
        }
        Ok(sampler)
    }

    /// Looks for processes that have come since; those that ended leave by themselves.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub(crate) fn rescan(&mut self) -> io::Result<()> {
        let known: std::collections::HashSet<u32> = self.sources.iter().filter_map(|s| s.pid).collect();
        let mut room = (PROCESSES_MAX / self.share.of as usize).saturating_sub(known.len());
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            if pid % self.share.of != self.share.index || known.contains(&pid) || room == 0 {
                continue;
            }
            room -= 1;
            let series = format!("process/{pid}");
            self.add(&format!("{pid}/stat"), Shape::Process, &series, "ticks, bytes, pages", Some(pid));
            self.add(
                &format!("{pid}/statm"),
                Shape::Columns(STATM),
                &format!("{series}/memory"),
                "pages",
                Some(pid),
            );
            self.add(
                &format!("{pid}/schedstat"),
                Shape::Columns(SCHEDSTAT),
                &format!("{series}/schedule"),
                "ns",
                Some(pid),
            );
            self.add(&format!("{pid}/io"), Shape::Meminfo, &format!("{series}/io"), "bytes", Some(pid));
        }
        Ok(())
    }

    /// Reads every source once and appends what it says; `more` is asked after each file whether to go on.
    pub(crate) fn sample_all(
        &mut self,
        out: &mut Vec<Sample>,
        more: &mut dyn FnMut(&mut Vec<Sample>) -> Next,
    ) {
        let mut i = 0;
        while i < self.sources.len() {
            if self.sample_one(i, out).is_err() {
                // The process has ended, or the kernel denies its counters to us: no series any more.
                self.sources.swap_remove(i);
                continue;
            }
            if more(out) == Next::Stop {
                return;
            }
            i += 1;
        }
    }

    fn add(&mut self, path: &str, shape: Shape, series: &str, unit: &'static str, pid: Option<u32>) {
        let Ok(file) = File::open(self.root.join(path)) else { return };
        self.sources.push(Source { file, shape, series: series.into(), unit, pid });
    }

    fn sample_one(&mut self, index: usize, out: &mut Vec<Sample>) -> io::Result<()> {
        let t_ns = now_ns().max(self.last_ns + 1);
        self.last_ns = t_ns;
        let length = self.sources[index].file.read_at(&mut self.text, 0)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let source = &self.sources[index];
        let mut reading =
            Reading { t_ns, unit: source.unit, series: &source.series, rows: &mut self.rows, out };
        reading.cut(source.shape, &self.text[..length]);
        Ok(())
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Read the next file.
    Go,
    /// Return to the caller.
    Stop,
}

/// One reading of one file on its way to becoming samples.
struct Reading<'a> {
    t_ns: u64,
    unit: &'static str,
    series: &'a Arc<str>,
    rows: &'a mut HashMap<String, Arc<str>>,
    out: &'a mut Vec<Sample>,
}

impl Reading<'_> {
    fn cut(&mut self, shape: Shape, text: &[u8]) {
        let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        match shape {
            Shape::Stat => self.cut_stat(text),
            Shape::Meminfo | Shape::Pairs => {
                let mut value = self.begin();
                for line in lines {
                    let mut words = words(line);
                    let name = words.next().unwrap_or_default();
                    field(&mut value, name.strip_suffix(b":").unwrap_or(name), words.next());
                }
                self.end(self.series.clone(), value);
            }
            Shape::Disks => {
                for line in lines {
                    let mut words = words(line).skip(2);
                    let name = words.next().unwrap_or_default();
                    self.row(name, DISK, words);
                }
            }
            Shape::Interfaces => {
                for line in lines.skip(2) {
                    let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
                    self.row(line[..colon].trim_ascii(), INTERFACE, words(&line[colon + 1..]));
                }
            }
            Shape::Protocols => self.cut_protocols(text),
            Shape::Load => {
                let mut value = self.begin();
                for (name, word) in ["load_1m", "load_5m", "load_15m"].iter().zip(words(text)) {
                    field(&mut value, name.as_bytes(), Some(word));
                }
                self.end(self.series.clone(), value);
            }
            Shape::Pressure => self.cut_pressure(text),
            Shape::Process => {
                // The name in parentheses may hold anything, also parentheses.
                let Some(close) = text.iter().rposition(|b| *b == b')') else { return };
                let mut value = self.begin();
                columns(&mut value, PROCESS, words(&text[close + 1..]).skip(1));
                self.end(self.series.clone(), value);
            }
            Shape::Columns(names) => {
                let mut value = self.begin();
                columns(&mut value, names, words(text));
                self.end(self.series.clone(), value);
            }
        }
    }

    fn cut_stat(&mut self, text: &[u8]) {
        let mut machine = self.begin();
        for line in text.split(|b| *b == b'\n') {
            let mut words = words(line);
            let Some(name) = words.next() else { continue };
            match name.strip_prefix(b"cpu") {
                Some(b"") => self.row(b"total", CPU, words),
                Some(core) => self.row(core, CPU, words),
                // The first number of intr and softirq is their sum; the others say which.
                None => field(&mut machine, name, words.next()),
            }
        }
        let series = self.row_series(b"events");
        self.push(series, "count", machine);
    }

    fn cut_protocols(&mut self, text: &[u8]) {
        let mut lines = text.split(|b| *b == b'\n');
        while let (Some(names), Some(numbers)) = (lines.next(), lines.next()) {
            let (mut names, numbers) = (words(names), words(numbers).skip(1));
            let Some(protocol) = names.next().and_then(|name| name.strip_suffix(b":")) else { continue };
            let mut value = self.begin();
            for (name, number) in names.zip(numbers) {
                field(&mut value, name, Some(number));
            }
            let series = self.row_series(protocol);
            self.end(series, value);
        }
    }

    /// `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`
    fn cut_pressure(&mut self, text: &[u8]) {
        let mut value = self.begin();
        for line in text.split(|b| *b == b'\n') {
            let mut words = words(line);
            let Some(kind) = words.next() else { continue };
            for word in words {
                let Some(equals) = word.iter().position(|b| *b == b'=') else { continue };
                let name = [kind, b"_", &word[..equals]].concat();
                field(&mut value, &name, Some(&word[equals + 1..]));
            }
        }
        self.end(self.series.clone(), value);
    }

    fn row<'w>(&mut self, name: &[u8], names: &[&str], numbers: impl Iterator<Item = &'w [u8]>) {
        let mut value = self.begin();
        columns(&mut value, names, numbers);
        let series = self.row_series(name);
        self.end(series, value);
    }

    fn row_series(&mut self, row: &[u8]) -> Arc<str> {
        let name = format!("{}/{}", self.series, String::from_utf8_lossy(row));
        match self.rows.get(&name) {
            Some(series) => series.clone(),
            None => self.rows.entry(name.clone()).or_insert_with(|| name.into()).clone(),
        }
    }

    fn begin(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(512);
        value.extend_from_slice(b"{\"t_ns\":");
        value.extend_from_slice(self.t_ns.to_string().as_bytes());
        value
    }

    fn end(&mut self, series: Arc<str>, value: Vec<u8>) {
        self.push(series, self.unit, value);
    }

    fn push(&mut self, series: Arc<str>, unit: &'static str, mut value: Vec<u8>) {
        value.push(b'}');
        self.out.push(Sample { series, unit, t_ns: self.t_ns, value });
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| matches!(b, b' ' | b'\t' | b'\n')).filter(|word| !word.is_empty())
}

fn columns<'w>(value: &mut Vec<u8>, names: &[&str], numbers: impl Iterator<Item = &'w [u8]>) {
    for (name, number) in names.iter().zip(numbers) {
        if !name.is_empty() {
            field(value, name.as_bytes(), Some(number));
        }
    }
}

/// Appends `,"name":number`; what is no plain number is left out, so that the value stays JSON.
fn field(value: &mut Vec<u8>, name: &[u8], number: Option<&[u8]>) {
    let Some(number) = number.filter(|number| is_json_number(number)) else { return };
    if name.iter().any(|b| !b.is_ascii_graphic() || matches!(b, b'"' | b'\\')) {
        return;
    }
    value.extend_from_slice(b",\"");
    value.extend_from_slice(name);
    value.extend_from_slice(b"\":");
    value.extend_from_slice(number);
}

fn is_json_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits.split(|b| *b == b'.').next().unwrap_or_default();
    let fraction_ok = match digits.len() - whole.len() {
        0 => true,
        rest => rest > 1 && digits[whole.len() + 1..].iter().all(u8::is_ascii_digit),
    };
    let whole_ok =
        !whole.is_empty() && whole.iter().all(u8::is_ascii_digit) && (whole == b"0" || whole[0] != b'0');
    whole_ok && fraction_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(shape: Shape, series: &str, text: &str) -> Vec<(String, String)> {
        let (mut rows, mut out, series) = (HashMap::new(), Vec::new(), Arc::from(series));
        let mut reading = Reading { t_ns: 7, unit: "u", series: &series, rows: &mut rows, out: &mut out };
        reading.cut(shape, text.as_bytes());
        out.into_iter().map(|s| (s.series.to_string(), String::from_utf8(s.value).unwrap())).collect()
    }

    #[track_caller]
    fn check(shape: Shape, series: &str, text: &str, want: &[(&str, &str)]) {
        let got = cut(shape, series, text);
        let got: Vec<(&str, &str)> = got.iter().map(|(s, v)| (s.as_str(), v.as_str())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn every_shape_of_file_becomes_samples() {
        check(
            Shape::Stat,
            "cpu",
            "cpu  1 2 3\ncpu0 1 2 3\nintr 9 1 1\nctxt 5\n",
            &[
                ("cpu/total", r#"{"t_ns":7,"user":1,"nice":2,"system":3}"#),
                ("cpu/0", r#"{"t_ns":7,"user":1,"nice":2,"system":3}"#),
                ("cpu/events", r#"{"t_ns":7,"intr":9,"ctxt":5}"#),
            ],
        );
        check(
            Shape::Meminfo,
            "memory",
            "MemTotal:       99 kB\nActive(anon):  1 kB\n",
            &[("memory", r#"{"t_ns":7,"MemTotal":99,"Active(anon)":1}"#)],
        );
        check(
            Shape::Disks,
            "disk",
            " 254  0 vda 1 2 3 4 5\n",
            &[(
                "disk/vda",
                r#"{"t_ns":7,"reads":1,"reads_merged":2,"read_sectors":3,"read_ms":4,"writes":5}"#,
            )],
        );
        check(
            Shape::Interfaces,
            "network",
            "Inter-| Receive\n face |bytes\n    lo:12 3\n",
            &[("network/lo", r#"{"t_ns":7,"rx_bytes":12,"rx_packets":3}"#)],
        );
        check(
            Shape::Protocols,
            "network",
            "Tcp: A B\nTcp: 1 -1\n",
            &[("network/Tcp", r#"{"t_ns":7,"A":1,"B":-1}"#)],
        );
        check(
            Shape::Load,
            "cpu/load",
            "0.50 1.25 2.00 1/99 123\n",
            &[("cpu/load", r#"{"t_ns":7,"load_1m":0.50,"load_5m":1.25,"load_15m":2.00}"#)],
        );
        check(
            Shape::Pressure,
            "pressure/cpu",
            "some avg10=0.00 total=12\n",
            &[("pressure/cpu", r#"{"t_ns":7,"some_avg10":0.00,"some_total":12}"#)],
        );
        check(
            Shape::Process,
            "process/1",
            "1 (a) b) S 4 5\n",
            &[("process/1", r#"{"t_ns":7,"ppid":4,"pgrp":5}"#)],
        );
        check(
            Shape::Columns(STATM),
            "m",
            "1 2 3 4 0 6 0\n",
            &[("m", r#"{"t_ns":7,"size":1,"resident":2,"shared":3,"text":4,"data":6}"#)],
        );
    }

    #[test]
    fn what_is_no_json_number_is_left_out() {
        for (text, want) in
            [("0", true), ("-1", true), ("1.50", true), ("007", false), ("1.", false), ("a", false)]
        {
            assert_eq!(is_json_number(text.as_bytes()), want, "{text}");
        }
        check(Shape::Pairs, "s", "a x\nb 1\n", &[("s", r#"{"t_ns":7,"b":1}"#)]);
    }

    #[test]
    fn this_machine_is_sampled_with_times_that_rise_within_each_series() {
        let mut sampler = Sampler::open(Path::new("/proc"), Share { index: 0, of: 1 }).unwrap();
        let mut samples = Vec::new();
        for _ in 0..3 {
            sampler.sample_all(&mut samples, &mut |_| Next::Go);
        }
        let mut last: HashMap<Arc<str>, u64> = HashMap::new();
        for sample in &samples {
            serde_json::from_slice::<serde_json::Value>(&sample.value).expect("every value is JSON");
            if let Some(before) = last.insert(sample.series.clone(), sample.t_ns) {
                assert!(before < sample.t_ns, "{}", sample.series);
            }
        }
        for series in ["cpu/total", "memory", "process/1"] {
            assert!(last.contains_key(series), "{series} is sampled");
        }
    }

    #[test]
    fn shares_do_not_overlap() {
        let mut series: Vec<std::collections::HashSet<Arc<str>>> = Vec::new();
        for index in 0..2 {
            let mut sampler = Sampler::open(Path::new("/proc"), Share { index, of: 2 }).unwrap();
            let mut samples = Vec::new();
            sampler.sample_all(&mut samples, &mut |_| Next::Go);
            series.push(samples.into_iter().map(|s| s.series).collect());
        }
        assert!(series[0].is_disjoint(&series[1]));
    }
}
