//! A bit flips in every structure of a data directory, of a stopped broker and under a running one.
//!
//! Whatever is read afterwards has to be what was written; what cannot be read has to be refused by file and offsets, and nothing
//! else; a start that is refused has to name the file. `tg dump --verify` has to name each place too.

mod places;
mod world;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::run::RUN_HEADER_BYTES;
use tidegate_protocol::extent::EXTENT_HEADER_BYTES;
use tidegate_protocol::ids::JournalId;

use self::places::Run;
use self::world::{End, Seen, World};
use crate::process::BrokerProcess;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct CorruptArgs {
    /// Gets the result as JSON.
    #[arg(short = 'o', long)]
    pub output: Option<PathBuf>,
    /// Where the data directories are made; the system's temporary folder if not given.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Only structures whose name holds this.
    #[arg(long, default_value = "")]
    pub only: String,
}

/// One flip and what came of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// What was damaged, and when.
    pub structure: String,
    /// Who said so.
    pub detected_by: String,
    /// What readers got.
    pub outcome: String,
    /// Why that is not what it should be.
    pub failure: Option<String>,
}

/// What has to follow from a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// Everything is served; what is redundant is named here.
    Whole(&'static str),
    /// Offsets around this one of this partition are refused, all others served.
    Refused { topic: &'static str, partition: i32, offset: i64 },
    /// The shard serves what it knows and refuses the rest; other shards serve everything.
    ShardReadOnly { shard: u16 },
    /// The broker does not start.
    NoStart,
}

/// Flips of a case: file and byte.
type Flips = Vec<(PathBuf, u64)>;

/// Runs every case.
///
/// # Errors
/// The directories cannot be made, or a sound one is refused.
pub async fn run(args: &CorruptArgs) -> io::Result<Vec<Case>> {
    let world = World::make(args.dir.as_deref()).await?;
    let mut cases = Vec::new();
    for (name, expect, flips) in stopped(&world)? {
        if name.contains(&args.only) {
            cases.push(at_rest(&world, &name, expect, &flips).await?);
        }
    }
    for (name, expect, flips) in running(&world)? {
        if name.contains(&args.only) {
            cases.push(under_a_broker(&world, &name, expect, &flips).await?);
        }
    }
    if let Some(path) = &args.output {
        let all: Vec<_> = cases
            .iter()
            .map(|case| {
                json!({ "structure": case.structure, "detected_by": case.detected_by, "outcome": case.outcome, "failure": case.failure })
            })
            .collect();
        let passed = cases.iter().all(|case| case.failure.is_none());
        let text = json!({ "harness": "corrupt", "passed": passed, "cases": all });
        std::fs::write(path, format!("{text:#}\n"))?;
    }
    Ok(cases)
}

/// The table for people.
pub fn table(cases: &[Case]) -> String {
    let mut text = String::new();
    for Case { structure, detected_by, outcome, failure } in cases {
        let sign = if failure.is_some() { "FAILED" } else { "ok" };
        text += &format!("{sign:<6} {structure:<58} {detected_by:<32} {outcome}\n");
        if let Some(failure) = failure {
            text += &format!("       {failure}\n");
        }
    }
    text
}

/// Where the second shard's journal is, and the first one's.
fn journals(root: &Path) -> io::Result<[JournalId; 2]> {
    places::journals(root)?.try_into().map_err(|_| io::Error::other("two shards were asked for"))
}

/// Flips in the directory of a stopped broker.
fn stopped(world: &World) -> io::Result<Vec<(String, Expect, Flips)>> {
    let clean = &world.clean;
    let [first, second] = journals(clean)?;
    let superblock = clean.join("superblock");
    let block = BLOCK as u64;
    let mut cases = vec![
        ("superblock A".into(), Expect::Whole("copy B"), vec![(superblock.clone(), 40)]),
        ("superblock B".into(), Expect::Whole("copy A"), vec![(superblock.clone(), block + 2000)]),
        (
            "superblock A and B".into(),
            Expect::NoStart,
            vec![(superblock.clone(), 100), (superblock, block + 100)],
        ),
    ];
    let slots = places::slots(clean, second)?;
    if slots.len() < 3 {
        return Err(io::Error::other(format!("{} checkpoints of shard 1 instead of 3", slots.len())));
    }
    let slot = |n: usize, at: u64| (places::slot_path(clean, second, slots[n].0), at);
    for (n, name) in ["the newest", "the older kept", "the oldest"].into_iter().enumerate() {
        for (part, at) in [("header", 50), ("body", 300)] {
            let name = format!("checkpoint, {name}, {part}");
            cases.push((name, Expect::Whole("another slot and the frames behind it"), vec![slot(n, at)]));
        }
    }
    cases.push((
        "checkpoints, two of them".into(),
        Expect::Whole("the third slot and the frames behind it"),
        vec![slot(0, 200), slot(1, 200)],
    ));
    cases.push((
        "checkpoints, all of them".into(),
        Expect::NoStart,
        vec![slot(0, 9), slot(1, 9), slot(2, 9)],
    ));
    for (journal, shard) in [(first, 0), (second, 1)] {
        let small = places::small(clean, journal)?;
        let place = small
            .iter()
            .find(|small| small.topic == world.small.id && small.base > 0)
            .ok_or_else(|| io::Error::other(format!("no small extent of shard {shard}")))?;
        for (part, at) in [("header", 70), ("payload", EXTENT_HEADER_BYTES as u64 + 30)] {
            let expect = match shard {
                0 => Expect::NoStart,
                _ => Expect::Refused {
                    topic: world.small.name,
                    partition: place.partition,
                    offset: place.base,
                },
            };
            let flips = vec![(place.path.clone(), place.at + at)];
            cases.push((format!("small extent, shard {shard}, {part}"), expect, flips));
        }
    }
    cases.extend(of_runs(world, clean)?);
    cases.extend(of_frames(world)?);
    Ok(cases)
}

/// Of a stopped broker that was killed: its journal goes on behind the checkpoints.
fn of_frames(world: &World) -> io::Result<Vec<(String, Expect, Flips)>> {
    let killed = &world.killed;
    let mut cases = Vec::new();
    for (shard, journal) in journals(killed)?.into_iter().enumerate() {
        let chain = places::chain(killed, journal)?;
        let mark = chain.iter().map(|frame| frame.mark).max().unwrap_or_default();
        let needed: Vec<_> = chain.iter().filter(|f| f.has_records && f.sequence < mark).collect();
        let below =
            needed.get(needed.len() / 2).ok_or_else(|| io::Error::other("no frame below the mark"))?;
        let at_mark = chain.iter().find(|frame| frame.sequence == mark);
        let at_mark = at_mark.ok_or_else(|| io::Error::other("no frame at the mark"))?;
        let last = chain.last().filter(|last| last.sequence > mark && !last.has_records);
        let last = last.ok_or_else(|| io::Error::other("no empty frame above the mark"))?;
        let lost = if shard == 0 { Expect::NoStart } else { Expect::ShardReadOnly { shard: 1 } };
        for (what, frame, expect) in [
            ("below the mark", *below, lost),
            ("at the mark", at_mark, lost),
            ("the torn end", last, Expect::Whole("nothing: it holds no record")),
        ] {
            for (part, at) in [("header", 60), ("entries", 110)] {
                let name = format!("journal frame {what}, shard {shard}, {part}");
                cases.push((name, expect, vec![(frame.path.clone(), frame.at + at)]));
            }
        }
    }
    Ok(cases)
}

/// A run in the middle of a data file, and one flip in each part of it.
fn of_runs(world: &World, root: &Path) -> io::Result<Vec<(String, Expect, Flips)>> {
    let topic = &world.large;
    let mut cases = Vec::new();
    for (shard, journal) in journals(root)?.into_iter().enumerate() {
        let runs = places::runs(root, journal, topic.id)?;
        let Some(run) = runs.get(runs.len() / 2) else { continue };
        let Run { path, at, header, extents } = run;
        let extent = &extents[extents.len() / 2];
        let in_file = |place: u64| vec![(path.clone(), at + place)];
        let refused =
            |offset: i64| Expect::Refused { topic: topic.name, partition: header.log.partition.0, offset };
        let (base, extent_at) = (extent.header.base.0, extent.at as u64);
        let payload = extent_at + EXTENT_HEADER_BYTES as u64;
        let pad = u64::from(header.bytes) - 1;
        for (part, expect, place) in [
            ("run header", refused(header.base.0), 90),
            ("extent header", refused(base), extent_at + 45),
            ("extent payload, the broker's 21 bytes of a batch", refused(base), payload + 3),
            ("extent payload, records", refused(base), payload + 500),
            ("run pad", Expect::Whole("the pad: it holds no record"), pad),
        ] {
            assert!(place >= RUN_HEADER_BYTES as u64 || part == "run header");
            cases.push((format!("data file, shard {shard}, {part}"), expect, in_file(place)));
        }
    }
    Ok(cases)
}

/// Flips under a running broker.
fn running(world: &World) -> io::Result<Vec<(String, Expect, Flips)>> {
    let clean = &world.clean;
    let [_, second] = journals(clean)?;
    let mut cases = of_runs(world, clean)?;
    let small = places::small(clean, second)?;
    if let Some(place) = small.iter().find(|small| small.topic == world.small.id) {
        let flips = vec![(place.path.clone(), place.at + EXTENT_HEADER_BYTES as u64 + 30)];
        cases.push(("journal frame, shard 1".into(), Expect::Whole("memory: it is written anew"), flips));
    }
    Ok(cases)
}

/// Flip, verify, start, read all.
async fn at_rest(world: &World, name: &str, expect: Expect, flips: &Flips) -> io::Result<Case> {
    let is_killed = flips.iter().any(|(path, _)| path.starts_with(&world.killed));
    let source = if is_killed { &world.killed } else { &world.clean };
    let data = world.copy(source)?;
    let flips = moved(flips, source, &data);
    for (path, at) in &flips {
        places::flip(path, *at)?;
    }
    let mut by = Vec::new();
    let mut failures = Vec::new();
    let dump = world.verify(&data)?;
    let is_torn = name.contains("torn end");
    match dump.names(&flips) {
        true => by.push("dump --verify"),
        // What nobody needs is shown by `tg dump` and not counted as damage.
        false if is_torn => {}
        false => failures.push(format!("dump --verify ends with {} and says {}", dump.code, dump.text)),
    }
    let outcome = match world.start(&data, &[]) {
        End::Running(broker) => {
            let log_said = world.log_names(&data, &flips);
            let seen = world.read_all(&broker, is_killed).await?;
            if log_said {
                by.push("start");
            } else if seen.refused.iter().any(|refused| refused.names_one_of(&flips)) {
                by.push("read");
            }
            failures.extend(judge(expect, &seen, &flips));
            if !matches!(expect, Expect::ShardReadOnly { .. } | Expect::Refused { topic: "small", .. }) {
                failures
                    .extend(world.goes_on(&broker).await.err().map(|e| format!("a produce is refused: {e}")));
            }
            let ended = broker.terminate()?;
            if !ended.success() {
                failures.push(format!("the broker ended with {ended}"));
            }
            seen.text(expect)
        }
        End::Refused(why) => {
            by.push("start");
            let named = flips.iter().any(|(path, _)| why.contains(&file_name(path)));
            if expect != Expect::NoStart || !named {
                failures.push(format!("the start is refused: {why}"));
            }
            "the start is refused by the file's name".into()
        }
    };
    world.remove(&data)?;
    Ok(case(name.to_owned(), by, outcome, failures))
}

/// Start, flip, let the scrub find it, read all, verify, start again.
async fn under_a_broker(world: &World, name: &str, expect: Expect, made: &Flips) -> io::Result<Case> {
    let data = world.copy(&world.clean)?;
    let flips = moved(made, &world.clean, &data);
    let (mut by, mut failures) = (Vec::new(), Vec::new());
    // A reader comes across it where there is no scrub.
    let broker = started(world.start(&data, &["--scrub-mib-per-s", "0"]))?;
    for (path, at) in &flips {
        places::flip(path, *at)?;
    }
    let seen = world.read_all(&broker, false).await?;
    if seen.refused.iter().any(|refused| refused.names_one_of(&flips)) {
        by.push("read");
    }
    failures.extend(judge(expect, &seen, &flips));
    broker.kill()?;
    world.remove(&data)?;

    let data = world.copy(&world.clean)?;
    let flips = moved(made, &world.clean, &data);
    let scrub = ["--scrub-mib-per-s", "1000", "--scrub-interval-s", "1"];
    let broker = started(world.start(&data, &scrub))?;
    for (path, at) in &flips {
        places::flip(path, *at)?;
    }
    match world.scrubbed(&broker, &data, &flips).await? {
        true => by.push("scrub"),
        false => failures.push("the scrub does not name it in the log".into()),
    }
    failures.extend(world.described(&broker, expect).await?.err());
    let seen = world.read_all(&broker, false).await?;
    failures.extend(judge(expect, &seen, &flips).map(|failure| format!("after the scrub: {failure}")));
    failures.extend(world.goes_on(&broker).await.err().map(|e| format!("a produce is refused: {e}")));
    let ended = broker.terminate()?;
    if !ended.success() {
        failures.push(format!("the broker ended with {ended}"));
    }
    let mut outcome = seen.text(expect);
    let dump = world.verify(&data)?;
    if name.starts_with("journal frame") {
        // It was written anew: nothing needs the damaged frame.
        if dump.code != 0 {
            failures.push(format!("after the scrub dump --verify says {}", dump.text));
        }
        outcome = "served whole; the frame's records were written anew".into();
    } else if dump.names(&flips) {
        by.push("dump --verify");
    } else {
        failures.push(format!("dump --verify ends with {} and says {}", dump.code, dump.text));
    }
    world.remove(&data)?;
    Ok(case(format!("running broker: {name}"), by, outcome, failures))
}

fn started(end: End) -> io::Result<BrokerProcess> {
    match end {
        End::Running(broker) => Ok(broker),
        End::Refused(why) => Err(io::Error::other(format!("a sound directory is refused: {why}"))),
    }
}

fn case(structure: String, by: Vec<&str>, outcome: String, failures: Vec<String>) -> Case {
    let failure = (!failures.is_empty()).then(|| failures.join("; "));
    Case { structure, detected_by: by.join(", "), outcome, failure }
}

/// The same flips in a copy.
fn moved(flips: &Flips, from: &Path, to: &Path) -> Flips {
    let moved = |path: &PathBuf| path.strip_prefix(from).map_or_else(|_| path.clone(), |rest| to.join(rest));
    flips.iter().map(|(path, at)| (moved(path), *at)).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What is wrong with what was seen, if anything.
fn judge(expect: Expect, seen: &Seen, flips: &Flips) -> Option<String> {
    if let Some(wrong) = &seen.wrong {
        return Some(wrong.clone());
    }
    let allowed = |refused: &world::Refused| match expect {
        Expect::Whole(_) => false,
        Expect::Refused { topic, partition, .. } => {
            (refused.topic, refused.partition) == (topic, partition) && refused.names_one_of(flips)
        }
        Expect::ShardReadOnly { shard } => refused.shard == shard && refused.names_one_of(flips),
        Expect::NoStart => false,
    };
    if let Some(refused) = seen.refused.iter().find(|refused| !allowed(refused)) {
        return Some(format!("refused without need or name: {refused:?}"));
    }
    match expect {
        Expect::Refused { topic, partition, offset } => {
            let is_refused = seen.refused.iter().any(|refused| {
                (refused.topic, refused.partition) == (topic, partition)
                    && (refused.from..refused.upto).contains(&offset)
            });
            (!is_refused).then(|| format!("offset {offset} of {topic}/{partition} is not refused"))
        }
        Expect::ShardReadOnly { .. } if seen.refused.is_empty() => Some("nothing is refused".into()),
        Expect::NoStart => Some("the broker starts".into()),
        Expect::Whole(_) | Expect::ShardReadOnly { .. } => None,
    }
}
