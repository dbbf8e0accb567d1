//! What the machine is, and what it did meanwhile: stolen time, bytes that the drive wrote, a process's memory and time.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::stat::{major, minor};
use serde::Serialize;

/// A run with more stolen time than this share is not valid: another machine had the cores.
pub const STEAL_SHARE_MAX: f64 = 0.02;

/// A run beside which other processes took more than this share of the processors was disturbed. It stays valid: what the
/// kernel does for the broker is in that share, too.
pub const OTHERS_SHARE_MAX: f64 = 0.10;

/// USER_HZ is 100 on every Linux that Rust runs on; it is part of the kernel's interface.
const TICKS_PER_S: f64 = 100.0;

/// A drive that has written less than this in [`STILL_READINGS`] readings, [`STILL_STEP`] apart, stands still: under a
/// hundredth of what one that is worth measuring writes in that time.
const STILL_BYTES: u64 = 4 << 20;
const STILL_READINGS: usize = 5;
const STILL_STEP: Duration = Duration::from_millis(250);

/// The processors' time since the machine's start, in ticks. Source: proc_stat(5), line `cpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All of it. What guests took is part of `user` and `nice` already.
    pub total: u64,
    /// `idle` and `iowait`.
    pub idle: u64,
    /// What other machines on the same host took while this one had work.
    pub steal: u64,
}

/// What became of the processors' time between two readings, as shares from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuShares {
    /// Working.
    pub busy: f64,
    /// Stolen.
    pub steal: f64,
    /// Used by other processes than the broker's and ours, where both are known. What the kernel does for us beside our
    /// calls is in it, too.
    pub others: Option<f64>,
}

impl CpuTimes {
    /// Reads them; zeros where there is no /proc.
    pub fn now() -> CpuTimes {
        fs::read_to_string("/proc/stat").ok().and_then(|text| CpuTimes::parse(&text)).unwrap_or_default()
    }

    /// From the text of /proc/stat.
    pub fn parse(text: &str) -> Option<CpuTimes> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
        let total = user + nice + system + idle + iowait + irq + softirq + steal;
        Some(CpuTimes { total, idle: idle + iowait, steal })
    }

    /// Seconds of all processors together since `before`.
    pub fn seconds_since(self, before: CpuTimes) -> f64 {
        self.total.saturating_sub(before.total).max(1) as f64 / TICKS_PER_S
    }

    /// What happened since `before`.
    pub fn since(self, before: CpuTimes) -> CpuShares {
        let total = self.total.saturating_sub(before.total).max(1) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64;
        let steal = self.steal.saturating_sub(before.steal) as f64;
        CpuShares { busy: (1.0 - (idle + steal) / total).max(0.0), steal: steal / total, others: None }
    }
}

impl CpuShares {
    /// Whether others took so much that the figures may be theirs.
    pub fn is_disturbed(self) -> bool {
        self.others.is_some_and(|others| others > OTHERS_SHARE_MAX)
    }

    /// Says how much of `busy` was not spent in `own_seconds`, of `all_seconds` of all processors.
    pub fn without(self, own_seconds: f64, all_seconds: f64) -> CpuShares {
        CpuShares { others: Some((self.busy - own_seconds / all_seconds).max(0.0)), ..self }
    }
}

/// The block device that a directory lies on.
#[derive(Clone, Debug)]
pub struct Device {
    sys: PathBuf,
}

impl Device {
    /// Of a directory; none where there is no such device (memory, overlays).
    pub fn of(dir: &Path) -> Option<Device> {
        let dev = fs::metadata(dir).ok()?.dev();
        let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", major(dev), minor(dev)));
        sys.exists().then_some(Device { sys })
    }

    /// Bytes written by it since the machine's start, whoever wrote them.
    ///
    /// # Errors
    /// The kernel says something else than its documentation (block/stat.rst).
    pub fn written_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.sys.join("stat"))?;
        let unknown = || io::Error::other(format!("{}/stat reads {text:?}", self.sys.display()));
        written_of(&text).ok_or_else(unknown)
    }

    /// Waits until it writes no more, `limit` at the longest or until `stop` is set. Returns whether it came to that.
    ///
    /// # Errors
    /// As for [`Device::written_bytes`].
    pub fn wait_until_still(&self, limit: Duration, stop: &AtomicBool) -> io::Result<bool> {
        let begun = Instant::now();
        let mut readings = Vec::new();
        loop {
            readings.push(self.written_bytes()?);
            if stands_still(&readings) {
                return Ok(true);
            }
            if begun.elapsed() >= limit || stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            std::thread::sleep(STILL_STEP);
        }
    }

    /// Its name, size and model, as far as the kernel knows them.
    pub fn describe(&self) -> String {
        let read =
            |name: &str| fs::read_to_string(self.sys.join(name)).map(|text| text.trim().to_owned()).ok();
        let name = fs::canonicalize(&self.sys).ok();
        let name = name.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let mut text = name.unwrap_or_else(|| "unknown".into());
        if let Some(sectors) = read("size").and_then(|text| text.parse::<u64>().ok()) {
            text += &format!(", {} GiB", (sectors * 512) >> 30);
        }
        for place in ["device/model", "../device/model"] {
            if let Some(model) = read(place) {
                text += &format!(", {model}");
                break;
            }
        }
        if let Some(cache) = read("queue/write_cache") {
            text += &format!(", cache: {cache}");
        }
        text
    }
}

/// Whether the last readings of the bytes written say so.
fn stands_still(readings: &[u64]) -> bool {
    let last = &readings[readings.len().saturating_sub(STILL_READINGS)..];
    last.len() == STILL_READINGS && last[STILL_READINGS - 1].saturating_sub(last[0]) < STILL_BYTES
}

/// The seventh number: sectors of 512 bytes written.
fn written_of(text: &str) -> Option<u64> {
    text.split_whitespace().nth(6)?.parse::<u64>().ok().map(|sectors| sectors * 512)
}

/// A process, by its number.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
}

impl Process {
    /// Bytes of memory that it has resident.
    ///
    /// # Errors
    /// There is no such process.
    pub fn resident_bytes(self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        resident_of(&text).ok_or_else(|| io::Error::other("its status names no VmRSS"))
    }

    /// Seconds of processor time that it has used.
    ///
    /// # Errors
    /// There is no such process.
    pub fn cpu_seconds(self) -> io::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let ticks = ticks_of(&text).ok_or_else(|| io::Error::other("its stat names no times"))?;
        Ok(ticks as f64 / TICKS_PER_S)
    }
}

fn resident_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// User and system time: the 14th and 15th field, counted behind the name, which may hold anything.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// What people need to know to judge a figure: kernel, processor, drive of `dir`, and the load of the last minute.
pub fn facts(dir: &Path) -> Vec<(String, String)> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let drive = Device::of(dir).map_or("unknown".into(), |device| device.describe());
    // Others on the same machine are not stolen time: only this tells of them.
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let facts = [
        ("kernel", kernel.trim().to_owned()),
        ("cpu", format!("{cores} x {model}")),
        ("drive", drive),
        ("load", load),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number_of_the_first_line() {
        let text = "cpu  100 10 50 800 20 5 5 10 7 3\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n";
        let before = CpuTimes::parse(text).unwrap();
        assert_eq!(before, CpuTimes { total: 1000, idle: 820, steal: 10 });
        let after = CpuTimes { total: 1100, idle: 860, steal: 15 };
        let shares = after.since(before);
        assert!((shares.steal - 0.05).abs() < 1e-9 && shares.steal > STEAL_SHARE_MAX);
        assert!((shares.busy - 0.55).abs() < 1e-9);
        assert_eq!(CpuTimes::parse("cpu  1 2 3\n"), None, "kernels before 2.6.11 had no steal");
        assert_eq!(before.since(before), CpuShares { busy: 1.0, steal: 0.0, others: None });
        let seconds = after.seconds_since(before);
        assert!((seconds - 1.0).abs() < 1e-9, "100 ticks of all processors: {seconds}");
        let shared = shares.without(0.25, seconds);
        assert!(shared.others.is_some_and(|others| (others - 0.3).abs() < 1e-9), "{shared:?}");
        assert!(shared.is_disturbed() && !shares.is_disturbed(), "who it was is not known without a process");
        assert!(!shares.without(0.5, seconds).is_disturbed(), "a twentieth");
    }

    #[test]
    fn a_drive_stands_still_once_its_last_readings_hardly_differ() {
        let busy = [0, 10 << 20, 20 << 20, 30 << 20, 40 << 20];
        assert!(!stands_still(&busy));
        assert!(!stands_still(&[7, 7, 7, 7]), "too few to know");
        let mut readings = busy.to_vec();
        readings.extend([(40 << 20) + 4096; 4]);
        assert!(stands_still(&readings), "what was before does not matter");
        assert!(!stands_still(&readings[..8]));
    }

    #[test]
    fn a_devices_written_sectors_and_a_processs_memory_and_time_are_found() {
        assert_eq!(
            written_of("  16241 3797 2994802 28875 2190 17179 2631184 10497 0 4356 39910"),
            Some(2_631_184 * 512)
        );
        assert_eq!(written_of("1 2"), None);
        assert_eq!(resident_of("Name:\tx\nVmRSS:\t   5120 kB\n"), Some(5 << 20));
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(ticks_of(stat), Some(300));
    }

    #[test]
    fn this_process_uses_memory() {
        let process = Process { pid: std::process::id() };
        assert!(process.resident_bytes().unwrap() > 0);
        assert!(process.cpu_seconds().is_ok());
    }
}
