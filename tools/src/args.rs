//! What can be typed: one struct a command, its help and its examples. What a command does is in `cmd`.

mod bench;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::format::{Direction, ESCAPES, letters_help};
use crate::output::Format;

pub(crate) use bench::{
    BenchCommand, ClientArg, CompareArgs, DriveArgs, DurabilityArg, HostArgs, LimitsArgs, RunArgs, SuiteArgs,
};

/// The operator's command line of the Tidegate log broker.
#[derive(Debug, Parser)]
#[command(
    name = "tg",
    version,
    about,
    propagate_version = true,
    after_help = "Five minutes:\n  \
        tg dev                                  a broker in ./tidegate-data, no configuration\n  \
        tg topic create readings -p 4           in another terminal\n  \
        tg produce readings < file              one record a line\n  \
        tg consume readings                     read them back\n  \
        tg demo                                 this machine's telemetry, stored, read back and compared\n\n\
        Exit codes: 0 done, 1 failed, 2 usage, 3 broker unreachable, 4 refused, 5 not found, 6 damaged or different,\n\
        7 broker could not start, 8 unknown outcome, 130 interrupted. More in docs/OPERATING.md."
)]
pub(crate) struct Cli {
    /// The broker to talk to.
    #[arg(
        long,
        short = 's',
        global = true,
        value_name = "HOST:PORT",
        env = "TIDEGATE_SERVER",
        default_value = crate::connect::SERVER_DEFAULT
    )]
    pub(crate) server: String,
    /// For whom the output is.
    #[arg(long, short = 'o', global = true, value_enum, default_value = "human")]
    pub(crate) output: Format,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a broker here, with no configuration, to try things out.
    Dev(DevArgs),
    /// Create, list, describe, alter, trim and delete topics.
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Append records from standard input or a file.
    Produce(ProduceArgs),
    /// Read records.
    Consume(ConsumeArgs),
    /// Show where partitions begin and end, and where a named consumer stands.
    Offsets(OffsetsArgs),
    /// Show what the broker is and what its shards have counted.
    Status(StatusArgs),
    /// Show what lies in a data directory or one of its files, without a broker.
    Dump(DumpArgs),
    /// Store this machine's own telemetry for some seconds, read it back from disk, and compare.
    Demo(DemoArgs),
    /// Measure a broker, and the drive under it.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  tg completions bash > ~/.local/share/bash-completion/completions/tg")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Serve a data directory until standard input ends; `demo` and `bench` start their broker with it.
    #[command(hide = true)]
    Serve(ServeArgs),
}

/// What `--shards` says, wherever a broker is started.
const SHARDS_HELP: &str = "Threads with a journal of their own [default: as many as the data directory has; for a new one, one for \
                           each core that this process may use]. More than there are cores share them unpinned, which gains nothing";

/// `tg dev`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tg dev\n  tg dev --data /mnt/nvme/tidegate --listen 127.0.0.1:7172\n  \
                  tg dev --config broker.toml --set memory=1073741824\n\n\
                  docs/CONFIG.md lists the keys. Options win over --set, and --set over the file.")]
pub(crate) struct DevArgs {
    /// The data directory; it is made if it does not exist. Default: ./tidegate-data
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// A TOML file with keys of docs/CONFIG.md, as `tidegate serve` takes it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A key of docs/CONFIG.md, such as memory=1073741824; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = name_value)]
    pub(crate) settings: Vec<(String, String)>,
    /// The address to listen on; port 0 takes a free one. Default: as the broker's.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    #[arg(long, help = SHARDS_HELP)]
    pub(crate) shards: Option<u16>,
    /// Write the bound address into this file once the broker serves.
    #[arg(long, value_name = "FILE")]
    pub(crate) port_file: Option<PathBuf>,
    /// Serve from storage that cannot flush (tmpfs): records do not survive a power loss, and acks say `memory`.
    #[arg(long)]
    pub(crate) allow_volatile: bool,
    /// Listen beyond this machine although whoever reaches the address may read, write and delete everything.
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The hidden `tg serve`
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The data directory.
    #[arg(long)]
    pub(crate) data: PathBuf,
    /// A key of docs/CONFIG.md; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = name_value)]
    pub(crate) settings: Vec<(String, String)>,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    #[arg(long, help = SHARDS_HELP)]
    pub(crate) shards: Option<u16>,
    /// Serve from storage that cannot flush.
    #[arg(long)]
    pub(crate) allow_volatile: bool,
}

/// `tg topic`
#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Create topics.
    #[command(after_help = "Examples:\n  tg topic create readings --partitions 4\n  \
                      tg topic create logs -p 16 --set retention.ms=86400000 --set durability=relaxed")]
    Create {
        /// Names: 1 to 249 of a-z A-Z 0-9 . _ -
        #[arg(required = true)]
        names: Vec<String>,
        /// Partitions of each.
        #[arg(long, short, default_value_t = 1, allow_negative_numbers = true)]
        partitions: i32,
        /// Replicas of each partition; -1: the broker's default.
        #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
        replication: i16,
        /// A setting, such as retention.ms=3600000; repeatable.
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = name_value)]
        settings: Vec<(String, String)>,
        /// A topic that exists already is no error.
        #[arg(long)]
        if_absent: bool,
    },
    /// List all topics.
    #[command(visible_alias = "ls")]
    List,
    /// Show settings and partitions of topics; of all, if none is named.
    Describe {
        /// Names.
        names: Vec<String>,
    },
    /// Change settings, add partitions, or both.
    #[command(
        after_help = "Examples:\n  tg topic alter logs --set retention.ms=3600000\n  tg topic alter logs --partitions 32\n\n\
                      An empty value sets a setting back to its default."
    )]
    Alter {
        /// The name.
        name: String,
        /// The new number of partitions. Keys then map to other partitions than before.
        #[arg(long, short, allow_negative_numbers = true)]
        partitions: Option<i32>,
        /// A setting; repeatable.
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = name_value)]
        settings: Vec<(String, String)>,
    },
    /// Remove the records of a partition below an offset.
    #[command(after_help = "Example:\n  tg topic trim logs --partition 0 --before 1000000")]
    Trim {
        /// The name.
        name: String,
        /// The partition.
        #[arg(long, short, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..))]
        partition: i32,
        /// The new start; the records below it are gone.
        #[arg(long, value_name = "OFFSET", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
        before: i64,
    },
    /// Delete topics with all their records.
    #[command(visible_alias = "rm")]
    Delete {
        /// Names.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// `tg produce`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  tg produce readings < file                      one record a line\n  \
        tg produce readings -K : < file                 key:value lines\n  \
        tg produce readings -K '\\t' < file              key, tab, value\n  \
        tg produce readings -f '%p %k %v\\n' < file      as the format says\n  \
        tg produce readings --key cfg --whole a.json    the whole file as one record\n  \
        tail -f app.log | tg produce logs -o json       one line for each acknowledged batch\n\n\
        {}\n\
        Every field ends where the text behind it begins.", letters_help(Direction::Input)))]
pub(crate) struct ProduceArgs {
    /// The topic.
    pub(crate) topic: String,
    /// Files; none or -: standard input.
    pub(crate) files: Vec<PathBuf>,
    #[arg(long, short = 'K', value_name = "TEXT", allow_hyphen_values = true,
          help = format!("What separates key and value in a line; may hold {ESCAPES}"), conflicts_with_all = ["format", "whole", "key"])]
    pub(crate) key_separator: Option<String>,
    /// The key of every record.
    #[arg(long, short)]
    pub(crate) key: Option<String>,
    /// A header of every record; repeatable.
    #[arg(long = "header", short = 'H', value_name = "NAME=VALUE")]
    pub(crate) headers: Vec<String>,
    /// How a record is cut out of the input.
    #[arg(long, short, conflicts_with = "whole")]
    pub(crate) format: Option<String>,
    /// Each file is one record.
    #[arg(long)]
    pub(crate) whole: bool,
    /// An empty value is null, which marks a key as deleted.
    #[arg(long, short = 'Z')]
    pub(crate) empty_is_null: bool,
    /// The partition of every record, from 0; default: by key, or in turn.
    #[arg(long, short, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Option<i32>,
    /// When a record counts as stored.
    #[arg(long, value_enum, default_value = "leader")]
    pub(crate) acks: AcksArg,
    /// How batches are compressed.
    #[arg(long, short = 'z', value_enum, default_value = "none")]
    pub(crate) compression: CompressionArg,
    /// Do not recognise batches that are sent twice.
    #[arg(long)]
    pub(crate) no_idempotence: bool,
}

/// When a record counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcksArg {
    /// At once; losses are not reported.
    #[value(alias = "0")]
    None,
    /// Once it is flushed on the leader's drive.
    #[value(alias = "1")]
    Leader,
    /// Once it is flushed on every in-sync replica.
    #[value(alias = "-1")]
    All,
}

/// How batches are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressionArg {
    /// Not at all.
    None,
    /// Gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4.
    Lz4,
}

/// `tg consume`
#[derive(Debug, Args)]
#[command(
    after_help = format!("Examples:\n  tg consume readings                             everything there is, then end\n  \
        tg consume readings --follow                    and what comes after it\n  \
        tg consume readings --from latest               only what comes from now on\n  \
        tg consume readings --from -5m -f '%p %o %k %v\\n'\n  \
        tg consume readings --from 100 --until 200 -p 0 -o json\n  \
        tg consume readings --group audit               from where `audit` stood; stores where it ends\n\n\
        {} A length is -1 for null.\n\
        Times: 2026-11-29T15:00:00Z, 2026-11-29, @1795965377000 (ms), -5m or 5m (that long ago; ms s m h d).\n\n\
        What cannot be read stops its partition only: the others are read to the end, and the exit code is not 0.",
        letters_help(Direction::Output))
)]
pub(crate) struct ConsumeArgs {
    /// The topic.
    pub(crate) topic: String,
    /// earliest, latest, stored, an offset, -N (N records before the end), or a time. Default: earliest; with --group:
    /// stored.
    #[arg(long, allow_hyphen_values = true, value_name = "WHERE")]
    pub(crate) from: Option<String>,
    /// end (what is there now) or an offset. Default: end, unless --follow or --from latest.
    #[arg(long, allow_hyphen_values = true, value_name = "WHERE", conflicts_with = "follow")]
    pub(crate) until: Option<String>,
    /// Go on at the end and wait for more.
    #[arg(long)]
    pub(crate) follow: bool,
    /// How a record is written. Default: the value and a newline.
    #[arg(long, short, conflicts_with = "raw")]
    pub(crate) format: Option<String>,
    /// Values as they are, nothing between them.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Only these partitions, such as 0,2.
    #[arg(long, short, value_delimiter = ',', value_name = "LIST", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partitions: Vec<i32>,
    /// End after so many records.
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub(crate) max_records: Option<u64>,
    /// The name under which the position is kept; it is stored once the records are written out.
    #[arg(long, short, value_name = "NAME", value_parser = consumer_name)]
    pub(crate) group: Option<String>,
    /// Do not store the position.
    #[arg(long, requires = "group")]
    pub(crate) no_commit: bool,
    /// Bytes that may wait in memory, in MiB.
    #[arg(long, default_value_t = 16, value_name = "MIB")]
    pub(crate) prefetch: usize,
}

/// `tg offsets`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tg offsets readings\n  tg offsets readings --at 2026-11-29T15:00:00Z\n  \
                  tg offsets readings --group audit"
)]
pub(crate) struct OffsetsArgs {
    /// The topic.
    pub(crate) topic: String,
    /// Also the first record whose own time is at or after this.
    #[arg(long, allow_hyphen_values = true, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Also where this consumer continues, and how many records are before it.
    #[arg(long, short, value_name = "NAME", value_parser = consumer_name)]
    pub(crate) group: Option<String>,
}

/// `tg status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Counters of each shard instead of their sum.
    #[arg(long)]
    pub(crate) shards: bool,
}

/// `tg dump`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tg dump ./tidegate-data                 superblock, checkpoints, journals, data files\n  \
        tg dump ./tidegate-data/superblock\n  tg dump ./tidegate-data -o json | jq .\n  \
        tg dump --verify ./tidegate-data        only what is damaged: file, bytes, topic, partition, offsets\n\n\
        Reads only; a running broker may be writing meanwhile, and what it writes may look torn."
)]
pub(crate) struct DumpArgs {
    /// A data directory, or one file of it.
    #[arg(default_value = "./tidegate-data")]
    pub(crate) path: PathBuf,
    /// Also every batch of every extent.
    #[arg(long)]
    pub(crate) batches: bool,
    /// Check everything that a data directory needs, the checksum of every batch included, and show only what is damaged or
    /// missing. Exit code 6 if anything is.
    #[arg(long, conflicts_with = "batches")]
    pub(crate) verify: bool,
}

/// `tg demo`
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  tg demo\n  tg demo --seconds 60 --keep\n\n\
        Every record is a sample of one series of this machine (a core, a drive, an interface, a process ...), read\n\
        from /proc with its own time in nanoseconds. Acknowledged means flushed. At the end a new broker process reads\n\
        everything back from disk; count, order by key and digest must be equal, else the exit code is 6.")]
pub(crate) struct DemoArgs {
    /// How long to sample, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Keep the data directory.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Where to make the data directory.
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Partitions of the topic.
    #[arg(long, default_value_t = 4)]
    pub(crate) partitions: i32,
    /// Store on storage that cannot flush (tmpfs): the level met is `memory`, and nothing survives a power loss.
    #[arg(long)]
    pub(crate) allow_volatile: bool,
    /// Threads that read /proc.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) samplers: u32,
}

fn name_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it must be NAME=VALUE".into()),
    }
}

/// The broker's rule, checked before anything is read.
fn consumer_name(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 255;
    match text.len() {
        1..=BYTES_MAX => Ok(text.to_owned()),
        bytes => Err(format!("a consumer's name has 1 to {BYTES_MAX} bytes, this one has {bytes}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_argument_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
