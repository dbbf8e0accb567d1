//! The long run: every harness for as long as asked, one after the other, each as a process of its own that writes its result
//! file; then the page of what they have shown. A harness that fails does not keep the others from running.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::{card, result};

/// How long.
#[derive(Clone, Debug, clap::Args)]
pub struct SoakArgs {
    /// Folder for the result files and the page; it has to be new or empty.
    #[arg(long, value_name = "DIR")]
    pub results: PathBuf,
    /// Simulated hours that count, of logs; of whole shards a hundredth as many.
    #[arg(long, default_value_t = 60)]
    pub hours: u64,
    /// Crash states of real filesystems, all together.
    #[arg(long, default_value_t = 300)]
    pub images: u64,
    /// Times to kill the broker.
    #[arg(long, default_value_t = 50)]
    pub cycles: u64,
    /// Seconds of fuzzing for each target.
    #[arg(long, default_value_t = 60)]
    pub fuzz_seconds: u64,
    /// Another number runs other seeds everywhere.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Crash states of one load.
const IMAGES: u64 = 500;
/// Kills of one data directory: each cycle reads all that the cycles before have stored.
const CYCLES: u64 = 50;

/// Runs everything. Returns how many runs passed and how many did not.
///
/// # Errors
/// The folder cannot be used, or this program not be started.
pub fn run(args: &SoakArgs) -> io::Result<(u64, u64)> {
    std::fs::create_dir_all(&args.results)?;
    if std::fs::read_dir(&args.results)?.next().is_some() {
        let text =
            format!("{} is not empty: results are added up, choose another folder", args.results.display());
        return Err(io::Error::other(text));
    }
    let mut soak = Soak { args, passed: 0, failed: 0 };
    for harness in ["faults", "corrupt", "abuse", "partitions"] {
        soak.part(harness, harness)?;
    }
    soak.part("fuzz", &format!("fuzz --seconds {} --seed {}", args.fuzz_seconds, args.seed))?;
    for (number, cycles) in (0..).zip(portions(args.cycles, CYCLES)) {
        let seed = args.seed * 1_000_000 + number;
        soak.part(&format!("kill-{number:03}"), &format!("kill --cycles {cycles} --seed {seed}"))?;
    }
    for (fs, share) in [("ext4", 2), ("xfs", 2), ("xfs-reflink", 1)] {
        for (number, images) in (0..).zip(portions((args.images * share).div_ceil(5), IMAGES)) {
            let seed = args.seed * 1_000_000 + number;
            let line = format!("crash --fs {fs} --images {images} --seed {seed}");
            soak.part(&format!("crash-{fs}-{number:03}"), &line)?;
        }
    }
    soak.part("mutants", "sim --mutants 300")?;
    // Of whole shards an hour takes ten times as long.
    for (level, hours) in [("logs", args.hours), ("shards", args.hours.div_ceil(100))] {
        let first = args.seed * 1_000_000_000;
        let line = format!("sim --level {level} --first {first} --hours {hours} --repeat-every 10");
        soak.part(&format!("sim-{level}"), &line)?;
    }
    let page = args.results.join("RELIABILITY.md");
    card::make(&card::CardArgs { results: args.results.clone(), output: page })?;
    Ok((soak.passed, soak.failed))
}

/// So many altogether, at most `most` at a time.
fn portions(all: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..all.div_ceil(most)).map(move |number| most.min(all - number * most))
}

struct Soak<'a> {
    args: &'a SoakArgs,
    passed: u64,
    failed: u64,
}

impl Soak<'_> {
    /// Runs one command of this program. Its result is in the file of that name: one that left none has not passed.
    fn part(&mut self, name: &str, line: &str) -> io::Result<()> {
        let path = self.args.results.join(format!("{name}.json"));
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.args(line.split(' ')).arg("-o").arg(&path).status()?;
        match status.success() {
            true => self.passed += 1,
            false => self.failed += 1,
        }
        if !path.exists() {
            let harness = line.split(' ').next().unwrap_or_default();
            let why = format!("`{line}` ended with {status} and left no result");
            result::write(Some(&path), result::broken_off(harness, &why))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_all_of_it() {
        assert_eq!(portions(120, 50).collect::<Vec<_>>(), [50, 50, 20]);
        assert_eq!(portions(100, 50).collect::<Vec<_>>(), [50, 50]);
        assert_eq!(portions(0, 50).count(), 0);
    }
}
