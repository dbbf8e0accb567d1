//! A bit flips in every structure of a data directory, of a stopped broker and under a running one.
//!
//! Whatever is read afterwards has to be what was written; what cannot be read has to be refused by file and offsets, and nothing
//! else; a start that is refused has to name the file. `tg dump --verify` has to name each place too.

mod places;
mod world;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tidegate_logic::placement::shard_of;
use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::run::RUN_HEADER_BYTES;
use tidegate_protocol::extent::EXTENT_HEADER_BYTES;
use tidegate_protocol::ids::{JournalId, TopicId};

use self::places::{Run, Small};
use self::world::{End, Seen, World};
use crate::process::BrokerProcess;
use crate::result;

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
    /// The run with these offsets is refused, and not one offset more.
    RunRefused { topic: &'static str, partition: i32, from: i64, upto: i64 },
    /// What a partition of the topic of stored offsets holds is refused; every record is served.
    OffsetsRefused { partition: i32 },
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
    let planned = |when, flips: Vec<(String, Expect, Flips)>| {
        flips.into_iter().map(move |(name, expect, flips)| Planned { when, name, expect, flips })
    };
    let mut all: Vec<Planned> = planned(When::Stopped, stopped(&world)?).collect();
    all.extend(planned(When::Running, running(&world)?));
    all.extend(planned(When::RunningUntilTheNextStart, redundant(&world)?));
    all.retain(|planned| planned.title().contains(&args.only));
    let cases = run_beside(&world, &all)?;
    let all: Vec<_> = cases
        .iter()
        .map(|case| {
            json!({ "structure": case.structure, "detected_by": case.detected_by, "outcome": case.outcome, "failure": case.failure })
        })
        .collect();
    let passed = cases.iter().all(|case| case.failure.is_none());
    result::write(args.output.as_deref(), json!({ "harness": "corrupt", "passed": passed, "cases": all }))?;
    Ok(cases)
}

/// When a bit flips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Stopped,
    Running,
    /// What only a start reads.
    RunningUntilTheNextStart,
}

/// A case to come.
struct Planned {
    when: When,
    name: String,
    expect: Expect,
    flips: Flips,
}

impl Planned {
    fn title(&self) -> String {
        match self.when {
            When::Stopped => self.name.clone(),
            When::Running | When::RunningUntilTheNextStart => format!("running broker: {}", self.name),
        }
    }

    async fn run(&self, world: &World) -> io::Result<Case> {
        let Planned { when, name, expect, flips } = self;
        match when {
            When::Stopped => at_rest(world, name, *expect, flips).await,
            When::Running => under_a_broker(world, name, *expect, flips).await,
            When::RunningUntilTheNextStart => until_the_next_start(world, name, *expect, flips).await,
        }
    }
}

/// Runs all cases, some beside each other: each waits for brokers and the drive most of its time.
fn run_beside(world: &World, all: &[Planned]) -> io::Result<Vec<Case>> {
    const BESIDE: usize = 4;
    let runtime = tokio::runtime::Handle::current();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(planned) = all.get(number) else { return Ok(done) };
            done.push((number, runtime.block_on(planned.run(world))?));
        }
    };
    let mut cases = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..BESIDE).map(|_| scope.spawn(work)).collect();
        let mut cases = Vec::new();
        for thread in threads {
            let done: io::Result<Vec<(usize, Case)>> = thread.join().expect("a case does not panic");
            cases.extend(done?);
        }
        Ok::<_, io::Error>(cases)
    })?;
    cases.sort_unstable_by_key(|(number, _)| *number);
    Ok(cases.into_iter().map(|(_, case)| case).collect())
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
    let slots = slots(clean, second)?;
    let slot = |n: usize, at: u64| (slots[n].clone(), at);
    let mut cases = redundant(world)?;
    cases.push((
        "superblock A and B".into(),
        Expect::NoStart,
        vec![(superblock.clone(), 100), (superblock, BLOCK as u64 + 100)],
    ));
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
        for (what, topic) in kinds_of_logs(world, shard) {
            let place = small_of(&small, topic, shard)?;
            for (part, at) in [("header", 70), ("payload", EXTENT_HEADER_BYTES as u64 + 30)] {
                let expect = match (shard, topic) {
                    (0, _) => Expect::NoStart,
                    (_, TopicId::OFFSETS) => Expect::OffsetsRefused { partition: place.partition },
                    _ => Expect::Refused {
                        topic: world.small.name,
                        partition: place.partition,
                        offset: place.base,
                    },
                };
                let flips = vec![(place.path.clone(), place.at + at)];
                cases.push((format!("small extent of {what}, shard {shard}, {part}"), expect, flips));
            }
        }
    }
    cases.extend(of_runs(world, clean)?);
    cases.extend(of_frames(world)?);
    Ok(cases)
}

/// What lies in the journal of a shard, by its topic. Shard 0 alone keeps the topics.
fn kinds_of_logs(world: &World, shard: u16) -> Vec<(&'static str, TopicId)> {
    let mut kinds = vec![("records", world.small.id), ("stored offsets", TopicId::OFFSETS)];
    if shard == 0 {
        kinds.push(("topics", TopicId::METADATA));
    }
    kinds
}

/// A small extent of a topic; of a client's, one that is not its partition's first.
fn small_of(small: &[Small], topic: TopicId, shard: u16) -> io::Result<&Small> {
    let is_it = |small: &&Small| small.topic == topic && (topic.is_internal() || small.base > 0);
    let missing = || io::Error::other(format!("no small extent of {topic} in shard {shard}"));
    small.iter().find(is_it).ok_or_else(missing)
}

/// The checkpoint slots of a journal that was stopped often enough to use all of them, newest first.
fn slots(root: &Path, journal: JournalId) -> io::Result<Vec<PathBuf>> {
    let slots = places::slots(root, journal)?;
    if slots.len() < 3 {
        return Err(io::Error::other(format!("{} checkpoints instead of 3", slots.len())));
    }
    Ok(slots.iter().map(|(slot, ..)| places::slot_path(root, journal, *slot)).collect())
}

/// What there is more than once: nothing is refused for its damage, and the next start says it.
fn redundant(world: &World) -> io::Result<Vec<(String, Expect, Flips)>> {
    let clean = &world.clean;
    let superblock = clean.join("superblock");
    let block = BLOCK as u64;
    let mut cases = vec![
        ("superblock A".into(), Expect::Whole("copy B"), vec![(superblock.clone(), 40)]),
        ("superblock B".into(), Expect::Whole("copy A"), vec![(superblock, block + 2000)]),
    ];
    let slots = slots(clean, journals(clean)?[1])?;
    for (slot, name) in slots.iter().zip(["the newest", "the older kept", "the oldest"]) {
        for (part, at) in [("header", 50), ("body", 300)] {
            let name = format!("checkpoint, {name}, {part}");
            let expect = Expect::Whole("another slot and the frames behind it");
            cases.push((name, expect, vec![(slot.clone(), at)]));
        }
    }
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
            let payload = frame.payload.map(|payload| ("payload", payload + 30));
            let parts = [("header", 60), ("entries", 110), ("padding", frame.bytes - 1)];
            for (part, at) in parts.into_iter().chain(payload) {
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
        let (partition, from, upto) = (header.log.partition.0, header.base.0, header.end.0);
        let run_refused = Expect::RunRefused { topic: topic.name, partition, from, upto };
        for (part, expect, place) in [
            ("run header", run_refused, 90),
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
    let mut cases = of_runs(world, clean)?;
    for (journal, shard) in journals(clean)?.into_iter().zip(0..) {
        let small = places::small(clean, journal)?;
        let mut flip = |name: String, path: &Path, at: u64| {
            let name = format!("journal frame, shard {shard}, {name}");
            cases.push((name, Expect::Whole("memory: it is written anew"), vec![(path.to_owned(), at)]));
        };
        for (what, topic) in kinds_of_logs(world, shard) {
            let place = small_of(&small, topic, shard)?;
            let payload = place.at + EXTENT_HEADER_BYTES as u64 + 30;
            flip(format!("payload of {what}"), &place.path, payload);
        }
        let Small { path, at, frame, .. } = small_of(&small, world.small.id, shard)?;
        flip("extent header".into(), path, at + 70);
        flip("frame header".into(), path, frame.start + 60);
        flip("padding".into(), path, frame.end - 1);
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
            if matches!(expect, Expect::Whole(_)) && !log_said && !is_torn && !name.ends_with("run pad") {
                failures.push("the start does not say it".into());
            }
            let seen = world.read_all(&broker, is_killed).await?;
            if log_said {
                by.push("start");
            } else if seen.refused.iter().any(|refused| refused.names_one_of(&flips)) {
                by.push("read");
            }
            failures.extend(judge(expect, &seen, &flips));
            let is_read_only = matches!(
                expect,
                Expect::ShardReadOnly { .. }
                    | Expect::OffsetsRefused { .. }
                    | Expect::Refused { topic: "small", .. }
            );
            // Damage to the journal of shard 1 stops writes there and nowhere else.
            let but_for = is_read_only.then_some(1);
            let went_on = world.goes_on(&broker, but_for).await;
            failures.extend(went_on.err().map(|e| format!("a produce is refused: {e}")));
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
    failures.extend(world.goes_on(&broker, None).await.err().map(|e| format!("a produce is refused: {e}")));
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

/// Start, flip what a broker reads only when it starts, read all, stop, verify, start again.
async fn until_the_next_start(world: &World, name: &str, expect: Expect, made: &Flips) -> io::Result<Case> {
    let data = world.copy(&world.clean)?;
    let flips = moved(made, &world.clean, &data);
    let (mut by, mut failures) = (Vec::new(), Vec::new());
    let broker = started(world.start(&data, &["--scrub-mib-per-s", "1000", "--scrub-interval-s", "1"]))?;
    for (path, at) in &flips {
        places::flip(path, *at)?;
    }
    let seen = world.read_all(&broker, false).await?;
    failures.extend(judge(expect, &seen, &flips));
    failures.extend(world.goes_on(&broker, None).await.err().map(|e| format!("a produce is refused: {e}")));
    let ended = broker.terminate()?;
    if !ended.success() {
        failures.push(format!("the broker ended with {ended}"));
    }
    let mut outcome = seen.text(expect);
    let dump = world.verify(&data)?;
    if dump.code == 0 {
        // The checkpoint of the stop has gone there.
        outcome += "; written anew";
    } else if dump.names(&flips) {
        by.push("dump --verify");
    } else {
        failures.push(format!("dump --verify ends with {} and says {}", dump.code, dump.text));
    }
    let again = started(world.start(&data, &[]))?;
    match (world.log_names(&data, &flips), dump.code) {
        (true, 6) => by.push("the next start"),
        (false, 0) => {}
        (said, code) => failures.push(format!("the next start says it: {said}, after a dump with {code}")),
    }
    let seen = world.read_all(&again, false).await?;
    failures.extend(judge(expect, &seen, &flips).map(|failure| format!("after the start: {failure}")));
    again.kill()?;
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
        Expect::Whole(_) | Expect::NoStart | Expect::OffsetsRefused { .. } => false,
        Expect::Refused { topic, partition, .. } => {
            (refused.topic, refused.partition) == (topic, partition) && refused.names_one_of(flips)
        }
        Expect::RunRefused { topic, partition, from, upto } => {
            (refused.topic, refused.partition) == (topic, partition)
                && (refused.from, refused.upto) == (from, upto)
                && refused.names_one_of(flips)
        }
        Expect::ShardReadOnly { shard } => refused.shard == shard && refused.names_one_of(flips),
    };
    if let Some(refused) = seen.refused.iter().find(|refused| !allowed(refused)) {
        return Some(format!("refused without need or name: {refused:?}"));
    }
    let allowed = |refused: &world::GroupRefused| match expect {
        Expect::OffsetsRefused { partition } => {
            refused.log.partition.0 == partition && refused.names_one_of(flips)
        }
        Expect::ShardReadOnly { shard } => shard_of(refused.log, 2).0 == shard && refused.names_one_of(flips),
        _ => false,
    };
    if let Some(refused) = seen.groups_refused.iter().find(|refused| !allowed(refused)) {
        return Some(format!("stored offsets refused without need or name: {refused:?}"));
    }
    match expect {
        Expect::Refused { topic, partition, offset } => {
            let is_refused = seen.refused.iter().any(|refused| {
                (refused.topic, refused.partition) == (topic, partition)
                    && (refused.from..refused.upto).contains(&offset)
            });
            (!is_refused).then(|| format!("offset {offset} of {topic}/{partition} is not refused"))
        }
        Expect::RunRefused { .. } | Expect::ShardReadOnly { .. } if seen.refused.is_empty() => {
            Some("nothing is refused".into())
        }
        Expect::OffsetsRefused { .. } if seen.groups_refused.is_empty() => {
            Some("no stored offset is refused".into())
        }
        Expect::NoStart => Some("the broker starts".into()),
        Expect::Whole(_)
        | Expect::RunRefused { .. }
        | Expect::ShardReadOnly { .. }
        | Expect::OffsetsRefused { .. } => None,
    }
}
