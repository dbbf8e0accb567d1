//! The configuration: the list of keys, values as typed ([`RawConfig`]), values as checked ([`Config`]).
//!
//! A key is added in [`KEYS`] and read in [`RawConfig::check`]; docs/CONFIG.md is made from the list. All problems are reported
//! at once, and a key that is not in the list is one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tidegate_protocol::disk::superblock::SHARDS_MAX;
use tidegate_protocol::ids::{ClusterId, NodeId};

use crate::limits::{FileLimits, Limits};
use crate::problem::{Problem, StartError};
use crate::site::explain_io;

/// The address that is listened on by default.
pub const LISTEN: &str = "127.0.0.1:7171";

/// What a key's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A path; relative ones count from the working directory.
    Path,
    /// `address:port` with a numeric address; port 0 takes any free port.
    Address,
    /// `host:port`, as clients resolve it.
    HostPort,
    /// A whole number within bounds.
    Number {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// `true` or `false`.
    Switch,
    /// A UUID.
    Uuid,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl Kind {
    fn describe(self) -> String {
        match self {
            Kind::Path => "path".into(),
            Kind::Address => "address:port".into(),
            Kind::HostPort => "host:port".into(),
            Kind::Number { min, max } => format!("number, {min} to {max}"),
            Kind::Switch => "true or false".into(),
            Kind::Uuid => "UUID".into(),
            Kind::Choice(words) => words.join(" or "),
        }
    }
}

/// One key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// In the file as it is; as a flag `--name` with `-` for `_`.
    pub name: &'static str,
    /// What a value looks like.
    pub kind: Kind,
    /// The value where none is given; empty: none.
    pub default: &'static str,
    /// The unit of a number; empty: a mere count, or no number.
    pub unit: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// All keys, in the order of docs/CONFIG.md.
pub const KEYS: &[Key] = &[
    Key {
        name: "data",
        kind: Kind::Path,
        default: "tidegate-data",
        unit: "",
        doc: "The data directory; made if it is absent. One process at a time may serve it.",
    },
    Key {
        name: "listen",
        kind: Kind::Address,
        default: LISTEN,
        unit: "",
        doc: "Where clients connect. An address that is not of this machine alone (loopback) needs `insecure`.",
    },
    Key {
        name: "advertise",
        kind: Kind::HostPort,
        default: "",
        unit: "",
        doc: "How clients reach this broker, told to them with the metadata. Without it they go on using the address \
              by which they came.",
    },
    Key {
        name: "insecure",
        kind: Kind::Switch,
        default: "false",
        unit: "",
        doc: "Allows to listen beyond this machine although connections are neither encrypted nor authenticated.",
    },
    Key {
        name: "allow_volatile",
        kind: Kind::Switch,
        default: "false",
        unit: "",
        doc: "Accepts acks=1 on durable topics also where the storage keeps nothing over a power loss (tmpfs, mounts \
              without barriers). The level met is then `memory`, not `disk`.",
    },
    Key {
        name: "shards",
        kind: Kind::Number { min: 0, max: SHARDS_MAX as u64 },
        default: "0",
        unit: "",
        doc: "Shards, each a thread with its own journal. 0: as many as the data directory has; for a new one, one for \
              each core that the process may use. A directory with another number is changed over at the start. More shards \
              than cores run, but share the cores: none is pinned, and none gets faster.",
    },
    Key {
        name: "pin",
        kind: Kind::Switch,
        default: "true",
        unit: "",
        doc: "Keeps each shard on one core, where there is a core for each.",
    },
    Key {
        name: "reactor",
        kind: Kind::Choice(&["glommio", "ring"]),
        default: "ring",
        unit: "",
        doc: "What drives the shards: `ring`, io_uring itself, which needs Linux 6.1, or `glommio`, which needs Linux 5.8 and memory \
              that may be locked. docs/performance/reactors.md compares them.",
    },
    Key {
        name: "node",
        kind: Kind::Number { min: 0, max: i32::MAX as u64 },
        default: "0",
        unit: "",
        doc: "This broker's lasting number. A data directory of another node is refused.",
    },
    Key {
        name: "cluster",
        kind: Kind::Uuid,
        default: "",
        unit: "",
        doc: "The cluster that the data directory has to belong to. Without it any is served, and a new directory gets a \
              random one.",
    },
    Key {
        name: "memory",
        kind: Kind::Number { min: 64 << 20, max: 1 << 40 },
        default: "402653184",
        unit: "bytes",
        doc: "Memory of each shard's logs: what was appended lately, what waits for the drive, buffers under way. More of it \
              serves more readers without the drive.",
    },
    Key {
        name: "connections",
        kind: Kind::Number { min: 1, max: 1_000_000 },
        default: "20000",
        unit: "",
        doc: "Connections of each shard at a time; further ones are refused. Each needs a descriptor (`ulimit -n`).",
    },
    Key {
        name: "io_memory",
        kind: Kind::Number { min: 64 << 10, max: 1 << 30 },
        default: "16777216",
        unit: "bytes",
        doc: "Memory of each shard for writes under way, locked for the kernel where RLIMIT_MEMLOCK allows it. The reactor \
              `glommio` alone uses it; `ring` writes from where the records are.",
    },
    Key {
        name: "free_space_floor",
        kind: Kind::Number { min: 0, max: 1 << 50 },
        default: "",
        unit: "bytes",
        doc: "Bytes free on the data directory's drive below which produce is refused, while reads, commits, deletes and trims go \
              on; it is taken again by itself once there is a quarter more. Without it: 1 GiB, or a twentieth of a drive \
              smaller than 20 GiB. 0: until the drive is full.",
    },
    Key {
        name: "scrub_mib_per_s",
        kind: Kind::Number { min: 0, max: 1 << 20 },
        default: "8",
        unit: "MiB",
        doc: "What each shard reads a second at most to look for damage that nobody has come across yet: all runs of its data files \
              and its journal. Reads of clients go first. 0: it does not look.",
    },
    Key {
        name: "scrub_interval_s",
        kind: Kind::Number { min: 1, max: 10 * 365 * 24 * 3600 },
        default: "604800",
        unit: "seconds",
        doc: "From the beginning of one such pass over everything to that of the next, if it is done by then. The first begins a \
              minute after the start, or after this time if that is less.",
    },
    Key {
        name: "port_file",
        kind: Kind::Path,
        default: "",
        unit: "",
        doc: "A file that gets the address listened on, once clients are served. For scripts, with port 0.",
    },
];

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a configuration file.
    File(PathBuf),
    /// On the command line, or by an embedding program.
    Flag,
    /// On the command line, as `--set KEY=VALUE`.
    Set,
}

/// Values as typed, not checked yet. Of several values of one key the last one counts.
#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    values: BTreeMap<String, (String, Origin)>,
    problems: Vec<Problem>,
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// Where clients connect; port 0: any free one.
    pub listen: SocketAddr,
    /// `host:port` told to clients; empty: as connected.
    pub advertise: String,
    /// Whether storage that keeps nothing may stand for durable storage.
    pub volatile: Volatile,
    /// The number of shards asked for.
    pub shards: Shards,
    /// Whether shards keep to cores of their own.
    pub pinning: Pinning,
    /// What drives them.
    pub reactor: Reactor,
    /// This broker's number.
    pub node: NodeId,
    /// The cluster that the directory has to belong to; none: any.
    pub cluster: Option<ClusterId>,
    /// Bounds of each shard's logs.
    pub limits: Limits,
    /// Connections of each shard.
    pub connections_max: usize,
    /// Bytes of each shard's memory for writes under way.
    pub io_memory_bytes: usize,
    /// Gets the bound address.
    pub port_file: Option<PathBuf>,
}

/// Whether acks=1 on durable topics is accepted where nothing survives a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volatile {
    /// It is refused.
    Refused,
    /// It is accepted, at level `memory`.
    Allowed,
}

/// How many shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    /// As many as the directory has; a new one gets one for each core.
    AsFound,
    /// So many; a directory with another number is changed over.
    Exactly(u16),
}

/// What drives the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reactor {
    /// [`tidegate_reactor::glommio`].
    Glommio,
    /// [`tidegate_reactor::ring`].
    Ring,
}

impl Reactor {
    /// As it is configured and shown.
    pub fn name(self) -> &'static str {
        match self {
            Reactor::Glommio => "glommio",
            Reactor::Ring => "ring",
        }
    }
}

/// Whether shards keep to cores of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// One core a shard, where there are enough.
    OneCoreEach,
    /// The kernel places them.
    None,
}

impl RawConfig {
    /// Nothing given: all defaults.
    pub fn new() -> RawConfig {
        RawConfig::default()
    }

    /// Adds a value as typed on the command line. An unknown key is found by [`RawConfig::check`].
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> RawConfig {
        self.values.insert(key.to_owned(), (value.into(), Origin::Flag));
        self
    }

    /// Adds a value typed as `--set KEY=VALUE`.
    #[must_use]
    pub fn with_set(mut self, key: &str, value: impl Into<String>) -> RawConfig {
        self.values.insert(key.to_owned(), (value.into(), Origin::Set));
        self
    }

    /// Adds what the TOML file named by `--config` says. One that cannot be read is a problem like any other.
    #[must_use]
    pub fn with_file_at(mut self, path: &Path) -> RawConfig {
        match std::fs::read_to_string(path) {
            Ok(text) => self.with_file(path, &text),
            Err(error) => {
                let place = format!("--config {}", path.display());
                self.problems.push(explain_io("cannot read the configuration file", place, &error));
                self
            }
        }
    }

    /// Adds what a TOML file says; `path` is for messages.
    #[must_use]
    pub fn with_file(mut self, path: &Path, text: &str) -> RawConfig {
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(e) => {
                let fix = "correct the line; see docs/CONFIG.md for an example";
                let cause = format!("the configuration file is not TOML: {}", e.to_string().trim_end());
                self.problems.push(Problem::new(cause, fix).at(path.display().to_string()));
                return self;
            }
        };
        for (key, value) in table {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(switch) => switch.to_string(),
                other => {
                    let cause = format!("`{key}` is a {}, which no key takes", other.type_str());
                    let problem = Problem::new(cause, "give a string, a whole number, true or false");
                    self.problems.push(problem.at(path.display().to_string()));
                    continue;
                }
            };
            self.values.insert(key, (text, Origin::File(path.to_owned())));
        }
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All problems: unknown keys, values that are none, and what does not go together.
    pub fn check(mut self) -> Result<Config, StartError> {
        self.find_unknown();
        let listen = self.value("listen", |text| SocketAddr::from_str(text).ok());
        let insecure = self.value("insecure", |text| bool::from_str(text).ok());
        let allow_volatile = self.value("allow_volatile", |text| bool::from_str(text).ok());
        let pin = self.value("pin", |text| bool::from_str(text).ok());
        let reactor = self.value("reactor", reactor);
        let data = self.value("data", path);
        let port_file = self.optional("port_file", path);
        let advertise = self.optional("advertise", host_port);
        let cluster = self.optional("cluster", |text| uuid::Uuid::from_str(text).ok());
        let (shards, node) = (self.number("shards"), self.number("node"));
        let (memory, connections) = (self.number("memory"), self.number("connections"));
        let io_memory = self.number("io_memory");
        let floor = self.optional_number("free_space_floor");
        let (scrub_mib, scrub_s) = (self.number("scrub_mib_per_s"), self.number("scrub_interval_s"));
        if let (Some(listen), Some(false)) = (listen, insecure)
            && !listen.ip().is_loopback()
        {
            let problem = Problem::new(
                "listening beyond this machine, where connections are neither encrypted nor authenticated",
                "listen on a loopback address, or add --insecure if everybody who reaches this address may read, write \
                 and delete everything",
            );
            let current = listen.to_string();
            self.problems.push(
                problem.at(self.place("listen")).limits("127.0.0.0/8 or ::1 without --insecure", current),
            );
        }
        let complete = || {
            Some(Config {
                data: data?,
                listen: listen?,
                advertise: advertise?.unwrap_or_default(),
                volatile: if allow_volatile? { Volatile::Allowed } else { Volatile::Refused },
                shards: match shards? {
                    0 => Shards::AsFound,
                    count => Shards::Exactly(u16::try_from(count).ok()?),
                },
                reactor: reactor?,
                pinning: if pin? { Pinning::OneCoreEach } else { Pinning::None },
                node: NodeId(i32::try_from(node?).ok()?),
                cluster: cluster?.map(|uuid| ClusterId(uuid.into_bytes())),
                limits: Limits {
                    memory_bytes: usize::try_from(memory?).ok()?,
                    files: FileLimits {
                        floor_bytes: floor?,
                        scrub_bytes_per_s: scrub_mib? << 20,
                        scrub_interval_ns: scrub_s? * 1_000_000_000,
                        ..FileLimits::DEFAULT
                    },
                    ..Limits::DEFAULT
                },
                connections_max: usize::try_from(connections?).ok()?,
                io_memory_bytes: usize::try_from(io_memory?).ok()?,
                port_file: port_file?,
            })
        };
        match complete() {
            Some(config) if self.problems.is_empty() => Ok(config),
            _ => Err(StartError { problems: self.problems }),
        }
    }

    fn find_unknown(&mut self) {
        for (name, (_, origin)) in &self.values {
            if KEYS.iter().any(|key| key.name == name) {
                continue;
            }
            let near = KEYS.iter().map(|key| key.name).min_by_key(|known| distance(known, name));
            let near = near.filter(|known| distance(known, name) <= 3);
            let fix = match near {
                Some(known) => format!("did you mean `{known}`? All keys are in docs/CONFIG.md"),
                None => "remove it; all keys are in docs/CONFIG.md".into(),
            };
            let problem = Problem::new(format!("unknown key `{name}`"), fix);
            self.problems.push(problem.at(place(name, origin)));
        }
    }

    /// The parsed value or default of a key that always has one; a problem is noted if it cannot be parsed.
    fn value<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let key = KEYS.iter().find(|key| key.name == name).expect("every key that is read is in the list");
        let text = self.values.get(name).map_or(key.default, |(text, _)| text);
        let parsed = parse(text);
        if parsed.is_none() {
            let fix = match key.default {
                "" => "correct it, or leave it out".into(),
                default => format!("correct it, or leave it out for the default, {default}"),
            };
            let problem = Problem::new(format!("`{name}` has a value that it does not take"), fix);
            let problem = problem.at(self.place(name)).limits(key.kind.describe(), format!("\"{text}\""));
            self.problems.push(problem);
        }
        parsed
    }

    /// Of a key that may be absent: `Some(None)` then.
    fn optional<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
        if self.values.contains_key(name) { self.value(name, parse).map(Some) } else { Some(None) }
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        self.value(name, number(name))
    }

    fn optional_number(&mut self, name: &str) -> Option<Option<u64>> {
        self.optional(name, number(name))
    }

    fn place(&self, name: &str) -> String {
        self.values
            .get(name)
            .map_or_else(|| format!("default of `{name}`"), |(_, origin)| place(name, origin))
    }
}

fn place(name: &str, origin: &Origin) -> String {
    match origin {
        Origin::File(path) => format!("{}, key `{name}`", path.display()),
        Origin::Flag => format!("--{}", name.replace('_', "-")),
        Origin::Set => format!("--set {name}"),
    }
}

/// Reads a number within the bounds of the key.
fn number(name: &str) -> impl Fn(&str) -> Option<u64> + use<> {
    let key = KEYS.iter().find(|key| key.name == name).expect("every key that is read is in the list");
    let Kind::Number { min, max } = key.kind else { panic!("`{name}` is no number") };
    move |text| text.replace('_', "").parse().ok().filter(|n| (min..=max).contains(n))
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn host_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let whole = !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    whole.then(|| text.to_owned())
}

fn reactor(text: &str) -> Option<Reactor> {
    [Reactor::Glommio, Reactor::Ring].into_iter().find(|reactor| reactor.name() == text)
}

/// Letters to change from one word to the other, for "did you mean".
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

/// The text of docs/CONFIG.md.
pub fn document() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Made from the list of keys in `broker/src/config.rs` by `TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate-broker config`; \
         edit it there.\n\n\
         Keys go into a TOML file (`tidegate serve --config FILE`) or on the command line as `--key value`, with `-` for `_`; the \
         command line wins. `tg dev` takes the same file and `--set key=value`. An unknown key, or a value that a key does not take, stops the start, and all such problems are \
         reported at once.\n\n\
         ```toml\n",
    );
    for key in KEYS {
        let quoted =
            matches!(key.kind, Kind::Path | Kind::Address | Kind::HostPort | Kind::Uuid | Kind::Choice(_));
        let _ = match (key.default, quoted) {
            ("", true) => writeln!(text, "# {} = \"...\"", key.name),
            ("", false) => writeln!(text, "# {} = ...", key.name),
            (value, true) => writeln!(text, "{} = \"{value}\"", key.name),
            (value, false) => writeln!(text, "{} = {value}", key.name),
        };
    }
    text.push_str("```\n");
    for key in KEYS {
        let default = if key.default.is_empty() { "none".into() } else { format!("`{}`", key.default) };
        let unit = match (key.unit, key.default) {
            ("", _) | (_, "") => String::new(),
            (unit, _) => format!(" {unit}"),
        };
        let _ = write!(
            text,
            "\n## {}\n\n{}; default: {default}{unit}\n\n{}\n",
            key.name,
            key.kind.describe(),
            key.doc
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::ShardLimits;

    fn problems(raw: RawConfig) -> Vec<Problem> {
        raw.check().unwrap_err().problems
    }

    #[test]
    fn defaults_are_complete_and_listen_on_this_machine_alone() {
        let config = RawConfig::new().check().unwrap();
        assert_eq!(config.listen, LISTEN.parse::<SocketAddr>().unwrap());
        assert_eq!(config.volatile, Volatile::Refused);
        assert_eq!(config.shards, Shards::AsFound);
        assert_eq!(config.limits, Limits::DEFAULT);
        assert_eq!(config.connections_max, ShardLimits::default().connections_max);
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let raw =
            RawConfig::new().with_file(Path::new("a.toml"), "shards = 3\nnode = 7\n").with("shards", "2");
        let config = raw.check().unwrap();
        assert_eq!((config.shards, config.node), (Shards::Exactly(2), NodeId(7)));
    }

    #[test]
    fn all_problems_are_reported_at_once_each_with_its_place() {
        let text = "shrads = 2\nlisten = \"here\"\nnode = -1\npin = 3\nreactor = \"rings\"\ndata = [1]\n";
        let found = problems(RawConfig::new().with_file(Path::new("t.toml"), text).with("io_memory", "1"));
        let all: Vec<String> = found.iter().map(Problem::to_string).collect();
        let says = |words: [&str; 2]| all.iter().any(|p| words.iter().all(|w| p.contains(w)));
        for words in [
            ["unknown key `shrads`", "did you mean `shards`"],
            ["t.toml, key `listen`", "address:port"],
            ["t.toml, key `node`", "\"-1\""],
            ["t.toml, key `pin`", "true or false"],
            ["t.toml, key `reactor`", "glommio or ring"],
            ["`data` is a array", "t.toml"],
            ["--io-memory", "65536"],
        ] {
            assert!(says(words), "{words:?} in {all:#?}");
        }
        assert_eq!(all.len(), 7, "{all:#?}");
    }

    #[test]
    fn the_least_memory_that_is_accepted_fits_the_other_bounds() {
        let key = KEYS.iter().find(|key| key.name == "memory").unwrap();
        let Kind::Number { min, .. } = key.kind else { panic!("a number") };
        let config = RawConfig::new().with("memory", min.to_string()).check().unwrap();
        assert_eq!(config.limits.check(), Ok(()));
    }

    #[test]
    fn listening_beyond_this_machine_needs_to_be_asked_for() {
        let found = problems(RawConfig::new().with("listen", "0.0.0.0:7171"));
        assert!(found[0].to_string().contains("--insecure"), "{}", found[0]);
        let config = RawConfig::new().with("listen", "[::]:7171").with("insecure", "true").check().unwrap();
        assert_eq!(config.listen.port(), 7171);
    }

    #[test]
    fn a_file_that_is_not_toml_is_named_with_its_line() {
        let found = problems(RawConfig::new().with_file(Path::new("t.toml"), "data = 1\nlisten ==\n"));
        assert!(found[0].to_string().contains("line 2"), "{}", found[0]);
        assert_eq!(found[0].place, "t.toml");
    }

    #[test]
    fn the_document_of_the_configuration_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONFIG.md");
        if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        let how = "run TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate-broker config";
        assert!(found == document(), "docs/CONFIG.md is not current: {how}");
    }
}
