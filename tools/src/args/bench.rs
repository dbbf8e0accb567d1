//! What can be typed behind `tg bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{AcksArg, CompressionArg, SHARDS_HELP, name_value};

/// `tg bench`
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What this machine can do without a broker: drive, loopback, checksums, copies.
    #[command(after_help = "Example:\n  tg bench limits --dir /mnt/nvme")]
    Limits(LimitsArgs),
    /// Produce.
    #[command(after_help = RUN_HELP)]
    Produce(RunArgs),
    /// Consume what the broker has in memory, again and again.
    #[command(after_help = RUN_HELP)]
    Consume(RunArgs),
    /// Produce, and consume meanwhile: latency from the intended send to the arrival.
    #[command(after_help = RUN_HELP)]
    E2e(RunArgs),
    /// Consume what lies on the drive alone: of a broker of its own that was started anew, or of one that holds more than its memory.
    #[command(after_help = RUN_HELP)]
    Catchup(RunArgs),
    /// Produce, consume at the end, and catch up with old records on half of the cores, all at once.
    #[command(after_help = RUN_HELP)]
    Mixed(RunArgs),
    /// Produce small batches into very many partitions.
    #[command(after_help = RUN_HELP)]
    Partitions(RunArgs),
    /// Produce over many connections, one record under way on each.
    #[command(after_help = RUN_HELP)]
    Connections(RunArgs),
    /// The rows that are promised, each in rounds in turn with its limit: value, limit, share, target, verdict.
    #[command(after_help = "Examples:\n  tg bench suite --dir /mnt/nvme --results results\n  \
                      tg bench suite --only disk-4p-ready,half-load --rounds 3 --seconds 2\n  tg bench suite --list")]
    Suite(SuiteArgs),
    /// Two results: ratios with a confidence interval.
    #[command(after_help = "Example:\n  tg bench compare before.json after.json\n\n\
                      A ratio is shown with the interval in which 95 % of a block bootstrap over the seconds of a run,\n\
                      or the rounds of a suite's row, lie. If it holds 1, no difference is shown.")]
    Compare(CompareArgs),
}

const RUN_HELP: &str = "Examples:\n  tg bench produce --embedded\n  \
    tg bench produce --embedded --rate 200000 --beside-flush-loop\n  \
    tg bench e2e --embedded --client sdk --record-bytes 200 --rate 50000 --html run.html\n  \
    tg bench produce --embedded --find-max-p99-ms 10 --json run.json\n  \
    tg bench produce --embedded --set reactor=glommio\n  \
    tg bench catchup --embedded --preload-mib 8192\n\n\
    With --rate the loop is open: a latency counts from the time at which the record was to be sent, so that a stall\n\
    shows in everything that it held up. Without, as much as goes is sent, and a latency is that of a full queue.";

/// The drive that is measured.
#[derive(Clone, Debug, Args)]
pub(crate) struct DriveArgs {
    /// A directory on the filesystem to measure; what is made there is removed.
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The size of the file that the drive's limits are measured with, in MiB.
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    pub(crate) mib: u64,
    /// Milliseconds for each figure of the limits.
    #[arg(long, default_value_t = 250, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) cell_ms: u64,
}

/// `tg bench limits`
#[derive(Clone, Debug, Args)]
pub(crate) struct LimitsArgs {
    /// The drive.
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
}

/// A broker of its own.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostArgs {
    /// Start a broker for this run, in another process, on a directory below --dir that is removed afterwards. Otherwise the
    /// broker of --server is measured.
    #[arg(long)]
    pub(crate) embedded: bool,
    #[arg(long, help = SHARDS_HELP)]
    pub(crate) shards: Option<u16>,
    /// Measure on storage that cannot flush (tmpfs); acks say `memory`.
    #[arg(long)]
    pub(crate) allow_volatile: bool,
    /// A key of docs/CONFIG.md for the broker of --embedded, such as reactor=glommio; repeatable.
    #[arg(long = "set", requires = "embedded", value_name = "KEY=VALUE", value_parser = name_value)]
    pub(crate) broker_settings: Vec<(String, String)>,
}

/// `tg bench produce` and the other workloads
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// The broker.
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// The drive and its limits.
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// The topic; it is made for the run and deleted afterwards.
    #[arg(long, default_value_t = format!("bench-{}", std::process::id()))]
    pub(crate) topic: String,
    /// Partitions [default: 4; `partitions`: 1024].
    #[arg(long, short, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    pub(crate) partitions: Option<i32>,
    /// Producers, each with connections of its own [default: 4; `partitions`: 16; `connections`: 64].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) producers: Option<u32>,
    /// Consumers that share the partitions of a subscription.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) consumers: u32,
    /// How often everything is consumed [default: 1; `consume`: 4].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) subscriptions: Option<u32>,
    /// Bytes of each record's value [default: 1024; `connections`: 200].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) record_bytes: Option<u32>,
    /// Records of a full batch; 0: as many as fit 256 KiB, the SDK's default [default: 0; `partitions`: 16; `connections`: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) batch_records: Option<u32>,
    /// When a record counts as stored.
    #[arg(long, value_enum, default_value = "leader")]
    pub(crate) acks: AcksArg,
    /// Whether the topic acknowledges after a flush or from memory.
    #[arg(long, value_enum, default_value = "disk")]
    pub(crate) durability: DurabilityArg,
    /// Records due in a second, over all producers; without it as many as go.
    #[arg(long, value_parser = positive)]
    pub(crate) rate: Option<f64>,
    /// Seconds that count.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Seconds before anything counts.
    #[arg(long, default_value_t = 2.0, value_parser = not_negative)]
    pub(crate) warmup: f64,
    /// The share of each value that compresses to nearly nothing, from 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) compressible: f64,
    /// How batches are compressed; only with --client sdk.
    #[arg(long, short = 'z', value_enum, default_value = "none")]
    pub(crate) compression: CompressionArg,
    /// Different keys; 0: records without a key.
    #[arg(long, default_value_t = 0)]
    pub(crate) keys: u64,
    /// What produces; the SDK always consumes.
    #[arg(long, value_enum, default_value = "wire")]
    pub(crate) client: ClientArg,
    /// Frames under way on each connection (wire), batches in flight for each partition (sdk) [default: 16 and 4; `connections`: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) in_flight: Option<u32>,
    /// A setting of the topic, such as retention.bytes=1073741824; repeatable.
    #[arg(long = "topic-set", value_name = "NAME=VALUE", value_parser = name_value)]
    pub(crate) settings: Vec<(String, String)>,
    /// Connections beside those of the producers that do nothing.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) idle_connections: u32,
    /// MiB stored before `consume`, `catchup` and `mixed` [default: 128; `catchup` and `mixed`: 2048].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) preload_mib: Option<u64>,
    /// Look for the highest rate with an ack p99 of at most so many milliseconds.
    #[arg(long, value_name = "MS", conflicts_with_all = ["rate", "beside_flush_loop"], value_parser = positive)]
    pub(crate) find_max_p99_ms: Option<f64>,
    /// In turn with a plain loop of write and flush of the same size at the same rate, in slices of a second or more.
    #[arg(long, requires = "rate")]
    pub(crate) beside_flush_loop: bool,
    /// Do not measure the limits of the machine before the run.
    #[arg(long)]
    pub(crate) no_limits: bool,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the latencies as HdrHistogram's percentile log.
    #[arg(long, value_name = "FILE")]
    pub(crate) hgrm: Option<PathBuf>,
    /// Write the result as a page with charts that refers to nothing outside itself.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// `tg bench suite`
#[derive(Clone, Debug, Args)]
pub(crate) struct SuiteArgs {
    /// The drive and its limits.
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    #[arg(long, help = SHARDS_HELP)]
    pub(crate) shards: Option<u16>,
    /// Measure on storage that cannot flush (tmpfs); acks say `memory`.
    #[arg(long)]
    pub(crate) allow_volatile: bool,
    /// A key of docs/CONFIG.md for the broker, such as reactor=glommio; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = name_value)]
    pub(crate) broker_settings: Vec<(String, String)>,
    /// Only these rows.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<String>,
    /// Show the rows and end.
    #[arg(long)]
    pub(crate) list: bool,
    /// How often each row is measured; medians are told.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,
    /// What produces full batches; the SDK always consumes.
    #[arg(long, value_enum, default_value = "wire")]
    pub(crate) client: ClientArg,
    /// Connections of the row `idle-connections`.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) idle_connections: u32,
    /// MiB that the rows about cold records store before they read.
    #[arg(long, default_value_t = 2048, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) preload_mib: u64,
    /// Write each row's JSON and a page of all into this directory, which is made if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,
}

/// `tg bench compare`
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    /// The result to compare with: a run's or a row's JSON.
    pub(crate) first: PathBuf,
    /// The other one.
    pub(crate) second: PathBuf,
}

/// What produces in a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientArg {
    /// Batches built once and sent again and again: measures the broker.
    Wire,
    /// The SDK, record by record: measures both together.
    Sdk,
}

/// Whether a topic acknowledges after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// After the flush.
    Disk,
    /// From memory.
    Relaxed,
}

fn positive(text: &str) -> Result<f64, String> {
    number(text).filter(|number| *number > 0.0).ok_or_else(|| "it must be a number above 0".into())
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text)
        .filter(|number| (0.0..=3600.0).contains(number))
        .ok_or_else(|| "it must be from 0 to 3600".into())
}

fn share(text: &str) -> Result<f64, String> {
    number(text).filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| "it must be from 0 to 1".into())
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}
