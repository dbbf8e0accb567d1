//! What was stored, in directories to be copied and damaged; and what a client is given afterwards.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tidegate::{Client, ErrorCode, Offset, PartitionId, Record, Start, TopicId, TopicSpec};
use tidegate_logic::placement::offsets_partition;
use tidegate_protocol::ids::TopicPartition;

use super::{Expect, Flips, file_name, journals, places};
use crate::process::{BrokerProcess, binary};
use crate::sim::random::Random;

/// Most time that a read, or the scrub, may take.
const PATIENCE: Duration = Duration::from_secs(20);
const ARGUMENTS: [&str; 4] = ["--allow-volatile", "--pin=false", "--free-space-floor", "0"];
const PARTITIONS: i32 = 4;
/// Named consumers: enough for every partition of the topic of stored offsets.
const GROUPS: i64 = 24;

/// The first offset and one past the last, by topic and partition.
type Ends = HashMap<(&'static str, i32), (i64, i64)>;

/// A topic and the length of its values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) id: TopicId,
    value_bytes: usize,
}

/// The directories, and what every partition holds.
pub(super) struct World {
    dir: TempDir,
    copies: AtomicU64,
    /// Of a broker that was stopped.
    pub(super) clean: PathBuf,
    /// Of one that was killed a while after it had marked its last flush.
    pub(super) killed: PathBuf,
    /// Little by little: it lies in the journal alone.
    pub(super) small: Topic,
    /// Much: it lies in data files.
    pub(super) large: Topic,
    trimmed: Topic,
    alive: Topic,
    /// What was acknowledged when it was stopped, and when it was killed.
    ends: [Ends; 2],
    /// The shard of each partition.
    shards: HashMap<(&'static str, i32), u16>,
}

/// How a start has ended.
pub(super) enum End {
    Running(BrokerProcess),
    Refused(String),
}

/// Records that were not given out, with the broker's words.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) topic: &'static str,
    pub(super) partition: i32,
    pub(super) shard: u16,
    pub(super) from: i64,
    pub(super) upto: i64,
    cause: String,
}

/// A named consumer that was not told its stored offsets, with the broker's words.
#[derive(Clone, Debug)]
pub(super) struct GroupRefused {
    /// The partition of the topic of stored offsets that keeps them.
    pub(super) log: TopicPartition,
    cause: String,
}

/// What a client has been given of everything.
#[derive(Debug, Default)]
pub(super) struct Seen {
    records: u64,
    pub(super) refused: Vec<Refused>,
    pub(super) groups_refused: Vec<GroupRefused>,
    /// Something that is worse than a refusal.
    pub(super) wrong: Option<String>,
}

/// What `tg dump --verify` says.
pub(super) struct Dump {
    pub(super) code: i32,
    pub(super) text: String,
    findings: Vec<Value>,
}

impl Refused {
    pub(super) fn names_one_of(&self, flips: &Flips) -> bool {
        flips.iter().any(|(path, _)| self.cause.contains(&file_name(path)))
    }
}

impl GroupRefused {
    pub(super) fn names_one_of(&self, flips: &Flips) -> bool {
        flips.iter().any(|(path, _)| self.cause.contains(&file_name(path)))
    }
}

impl Seen {
    pub(super) fn text(&self, expect: Expect) -> String {
        if !self.groups_refused.is_empty() && self.refused.is_empty() {
            let count = self.groups_refused.len();
            return format!(
                "stored offsets of {count} consumers refused by name; {} records served",
                self.records
            );
        }
        if self.refused.is_empty() {
            return match expect {
                Expect::Whole(by) => format!("served whole ({} records) by {by}", self.records),
                _ => format!("served whole ({} records)", self.records),
            };
        }
        let mut ranges: Vec<String> = self
            .refused
            .iter()
            .map(|r| format!("{}/{} {} to {}", r.topic, r.partition, r.from, r.upto - 1))
            .collect();
        let more = ranges.len().saturating_sub(2);
        ranges.truncate(2);
        let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
        format!("refused by name: {}{more}; {} records served", ranges.join(", "), self.records)
    }
}

impl Dump {
    /// Whether every flip lies in a place that is called damaged.
    pub(super) fn names(&self, flips: &Flips) -> bool {
        let names = |path: &Path, at: u64| {
            self.findings.iter().any(|finding| {
                let from = finding["at"].as_u64().unwrap_or(u64::MAX);
                let is_file = finding["file"].as_str() == Some(&path.display().to_string());
                // How far a frame goes whose header is damaged, nobody knows.
                let bytes = finding["bytes"].as_u64().unwrap_or(4096);
                is_file && (from..from + bytes).contains(&at)
            })
        };
        self.code == 6 && flips.iter().all(|(path, at)| names(path, *at))
    }
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn group_name(number: i64) -> String {
    format!("reader {number}")
}

/// What that consumer has stored.
fn stored_of(number: i64, partition: i32) -> Offset {
    Offset(number * 5 + i64::from(partition))
}

fn value_of(topic: &Topic, partition: i32, offset: i64) -> Vec<u8> {
    let name = topic.name.bytes().fold(7u64, |sum, byte| sum * 31 + u64::from(byte));
    let mut random = Random::new(name ^ ((partition as u64) << 40) ^ offset as u64);
    (0..topic.value_bytes.div_ceil(8)).flat_map(|_| random.word().to_le_bytes()).collect()
}

impl World {
    /// Stores everything. Takes some seconds.
    pub(super) async fn make(dir: Option<&Path>) -> io::Result<World> {
        let dir = match dir {
            Some(dir) => tempfile::tempdir_in(dir)?,
            None => tempfile::tempdir()?,
        };
        let topic = |name, value_bytes| Topic { name, id: TopicId([0; 16]), value_bytes };
        let mut world = World {
            copies: AtomicU64::new(0),
            clean: dir.path().join("clean"),
            killed: dir.path().join("killed"),
            dir,
            small: topic("small", 60),
            large: topic("large", 8_000),
            trimmed: topic("trimmed", 4_000),
            alive: topic("alive", 60),
            ends: [HashMap::new(), HashMap::new()],
            shards: HashMap::new(),
        };
        let data = world.dir.path().join("made");
        let mut ends = HashMap::new();
        // Each stop takes a checkpoint: all three slots are in use.
        for round in 0..4 {
            let broker = world.run(&data, &["--shards", "2"])?;
            let client = Client::connect(&broker.server()).await.map_err(other)?;
            if round == 0 {
                world.create(&client).await?;
            }
            world.produce(&client, &mut ends, 80).await?;
            if round == 0 {
                world.commit(&client).await?;
            }
            if round == 2 {
                for partition in 0..PARTITIONS / 2 {
                    let before = Offset(200);
                    let place = PartitionId(partition);
                    client.admin().delete_records("trimmed", place, before).await.map_err(other)?;
                    ends.entry(("trimmed", partition)).and_modify(|(start, _)| *start = before.0);
                }
            }
            drop(client);
            if !broker.terminate()?.success() {
                return Err(other("the broker does not stop by itself"));
            }
        }
        world.ends[0].clone_from(&ends);
        places::copy(&data, &world.clean)?;

        let broker = world.run(&data, &[])?;
        let client = Client::connect(&broker.server()).await.map_err(other)?;
        for _ in 0..20 {
            let small = world.small;
            world.produce_to(&client, &mut ends, &small, 1).await?;
        }
        world.ends[1] = ends;
        // Until each shard is so quiet that it has marked its last flush, and flushed that.
        let asked = Instant::now();
        while !world.is_marked(&data)? {
            if asked.elapsed() > PATIENCE {
                return Err(other("an idle shard does not mark its last flush"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        broker.kill()?;
        places::copy(&data, &world.killed)?;
        std::fs::remove_dir_all(&data)?;
        Ok(world)
    }

    fn is_marked(&self, data: &Path) -> io::Result<bool> {
        for journal in journals(data)? {
            let chain = places::chain(data, journal)?;
            let last_records = chain.iter().rev().find(|frame| frame.has_records).map(|frame| frame.sequence);
            let last = chain.last();
            if !last.is_some_and(|last| !last.has_records && Some(last.mark) == last_records) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn topics(&self) -> [Topic; 3] {
        [self.small, self.large, self.trimmed]
    }

    async fn create(&mut self, client: &Client) -> io::Result<()> {
        let admin = client.admin();
        let shards = &mut self.shards;
        for topic in [&mut self.small, &mut self.large, &mut self.trimmed, &mut self.alive] {
            topic.id =
                admin.create_topic(TopicSpec::new(topic.name).partitions(PARTITIONS)).await.map_err(other)?;
            for partition in admin.describe_topic(topic.name).await.map_err(other)?.partitions {
                shards.insert((topic.name, partition.partition.0), partition.shard.0);
            }
        }
        Ok(())
    }

    /// Each named consumer stores its offsets.
    async fn commit(&self, client: &Client) -> io::Result<()> {
        for number in 0..GROUPS {
            let consumer = client.consumer(self.large.name).name(&group_name(number));
            let consumer = consumer.from(Start::Earliest).start().await.map_err(other)?;
            let offsets: Vec<_> = (0..PARTITIONS).map(|p| (PartitionId(p), stored_of(number, p))).collect();
            consumer.commit_offsets(&offsets).await.map_err(other)?;
            consumer.close().await;
        }
        Ok(())
    }

    /// Asks for what every named consumer has stored, and compares it.
    async fn read_stored(&self, client: &Client, seen: &mut Seen) -> Result<(), String> {
        for number in 0..GROUPS {
            let name = group_name(number);
            match client.admin().fetch_offsets(&name, self.large.name).await {
                Ok(found) => {
                    let mut found: Vec<_> =
                        found.iter().map(|s| (s.partition.partition.0, s.offset)).collect();
                    found.sort_unstable();
                    let stored: Vec<_> = (0..PARTITIONS).map(|p| (p, stored_of(number, p))).collect();
                    if found != stored {
                        return Err(format!("WRONG OFFSETS of {name}: {found:?} instead of {stored:?}"));
                    }
                }
                Err(error) if error.code() == Some(ErrorCode::DataDamaged) => {
                    let (log, cause) = (offsets_partition(&name), error.cause().to_owned());
                    seen.groups_refused.push(GroupRefused { log, cause });
                }
                Err(error) => return Err(format!("the stored offsets of {name}: {error:?}")),
            }
        }
        Ok(())
    }

    async fn produce(&self, client: &Client, ends: &mut Ends, records: i64) -> io::Result<()> {
        for _ in 0..5 {
            self.produce_to(client, ends, &self.small, 1).await?;
        }
        self.produce_to(client, ends, &self.large, records).await?;
        self.produce_to(client, ends, &self.trimmed, records).await
    }

    async fn produce_to(
        &self,
        client: &Client,
        ends: &mut Ends,
        topic: &Topic,
        records: i64,
    ) -> io::Result<()> {
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        self.produce_to_some(client, ends, topic, &partitions, records).await
    }

    async fn produce_to_some(
        &self,
        client: &Client,
        ends: &mut Ends,
        topic: &Topic,
        partitions: &[i32],
        records: i64,
    ) -> io::Result<()> {
        let producer = client.producer(topic.name).start().await.map_err(other)?;
        let mut tickets = Vec::new();
        for partition in partitions.iter().copied() {
            let (_, end) = ends.entry((topic.name, partition)).or_default();
            for _ in 0..records {
                let value = value_of(topic, partition, *end);
                let record = Record::new(&value).partition(PartitionId(partition));
                tickets.push((*end, producer.enqueue(record).await.map_err(other)?));
                *end += 1;
            }
        }
        for (expected, ticket) in tickets {
            let ack = ticket.await.map_err(other)?;
            if ack.offset != Offset(expected) {
                return Err(other(format!("{} instead of {expected}", ack.offset)));
            }
        }
        producer.close().await.map_err(other)
    }

    /// A copy of one of the directories.
    pub(super) fn copy(&self, of: &Path) -> io::Result<PathBuf> {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let data = self.dir.path().join(format!("copy-{number}"));
        places::copy(of, &data)?;
        Ok(data)
    }

    /// A copy is not needed any more.
    pub(super) fn remove(&self, data: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(data)
    }

    fn run(&self, data: &Path, arguments: &[&str]) -> io::Result<BrokerProcess> {
        let all: Vec<&str> = ARGUMENTS.iter().chain(arguments).copied().collect();
        BrokerProcess::start(data, &all)
    }

    /// Starts the broker on a copy.
    pub(super) fn start(&self, data: &Path, arguments: &[&str]) -> End {
        match self.run(data, arguments) {
            Ok(broker) => End::Running(broker),
            Err(why) => End::Refused(why.to_string()),
        }
    }

    /// Whether the broker's log names a file that was damaged.
    pub(super) fn log_names(&self, data: &Path, flips: &Flips) -> bool {
        let log = std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
        flips.iter().any(|(path, _)| log.contains(&file_name(path)))
    }

    /// Waits until the broker's log does. Whether it ever did.
    pub(super) async fn scrubbed(
        &self,
        broker: &BrokerProcess,
        data: &Path,
        flips: &Flips,
    ) -> io::Result<bool> {
        let began = Instant::now();
        while !self.log_names(data, flips) {
            if began.elapsed() > PATIENCE {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = Client::connect(&broker.server()).await.map_err(other)?;
        let status = client.admin().status().await.map_err(other)?;
        let damaged = status.shards.iter().flatten().filter(|(name, _)| name == "scrub_damaged");
        Ok(damaged.map(|(_, count)| count).sum::<i64>() > 0)
    }

    /// Whether the descriptions of topics show what the scrub has found, and nothing else.
    pub(super) async fn described(
        &self,
        broker: &BrokerProcess,
        expect: Expect,
    ) -> io::Result<Result<(), String>> {
        let client = Client::connect(&broker.server()).await.map_err(other)?;
        for topic in self.topics() {
            for found in client.admin().describe_topic(topic.name).await.map_err(other)?.partitions {
                let partition = found.partition.0;
                let shown = (found.damaged_from.0..found.damaged_upto.0, found.damaged_ranges);
                let is_right = match expect {
                    Expect::Refused { topic: t, partition: p, offset }
                        if (t, p) == (topic.name, partition) =>
                    {
                        shown.1 == 1 && shown.0.contains(&offset)
                    }
                    Expect::RunRefused { topic: t, partition: p, from, upto }
                        if (t, p) == (topic.name, partition) =>
                    {
                        shown.1 == 1 && shown.0 == (from..upto)
                    }
                    _ => shown.1 == 0,
                };
                if !is_right {
                    return Ok(Err(format!("{}/{partition} is described with damage {shown:?}", topic.name)));
                }
            }
        }
        Ok(Ok(()))
    }

    /// `tg dump --verify`.
    pub(super) fn verify(&self, data: &Path) -> io::Result<Dump> {
        let ran = Command::new(binary("tg")?).args(["-o", "json", "dump", "--verify"]).arg(data).output()?;
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let objects = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let findings = objects.into_iter().filter(|object| object["kind"] == "damage").collect();
        let text = text + &String::from_utf8_lossy(&ran.stderr);
        Ok(Dump { code: ran.status.code().unwrap_or(-1), text, findings })
    }

    /// Whether the broker still takes records, in every partition of a topic of its own but those of that shard.
    pub(super) async fn goes_on(&self, broker: &BrokerProcess, but_for: Option<u16>) -> io::Result<()> {
        let client = Client::connect(&broker.server()).await.map_err(other)?;
        let is_asked = |p: &i32| but_for.is_none_or(|shard| self.shards[&(self.alive.name, *p)] != shard);
        let partitions: Vec<i32> = (0..PARTITIONS).filter(is_asked).collect();
        if partitions.is_empty() {
            return Err(other("the other shard has no partition of it"));
        }
        self.produce_to_some(&client, &mut HashMap::new(), &self.alive, &partitions, 1).await
    }

    /// Reads everything that was acknowledged and compares each record.
    pub(super) async fn read_all(&self, broker: &BrokerProcess, is_killed: bool) -> io::Result<Seen> {
        let client = Client::connect(&broker.server()).await.map_err(other)?;
        let mut seen = Seen::default();
        for topic in self.topics() {
            for partition in 0..PARTITIONS {
                let (start, end) = self.ends[usize::from(is_killed)][&(topic.name, partition)];
                let reading = self.read(&client, &topic, partition, start, end, &mut seen);
                let read = tokio::time::timeout(PATIENCE, reading).await;
                let wrong = match read {
                    Ok(Ok(())) => continue,
                    Ok(Err(why)) => why,
                    Err(_) => format!("no end after {PATIENCE:?}: records are lost"),
                };
                seen.wrong.get_or_insert(format!("{}/{partition}: {wrong}", topic.name));
            }
        }
        if let Err(wrong) = self.read_stored(&client, &mut seen).await {
            seen.wrong.get_or_insert(wrong);
        }
        Ok(seen)
    }

    async fn read(
        &self,
        client: &Client,
        topic: &Topic,
        partition: i32,
        start: i64,
        end: i64,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let place = PartitionId(partition);
        let mut at = start;
        while at < end {
            let consumer = client.consumer(topic.name).partitions(&[place]).from_offset(place, Offset(at));
            let mut consumer = consumer.until_offset(Offset(end)).start().await.map_err(|e| e.to_string())?;
            while let Some(next) = consumer.next_batch().await {
                let batch = match next {
                    Ok(batch) => batch,
                    Err(error) => {
                        let unread = error.unread().filter(|_| error.code() == Some(ErrorCode::DataDamaged));
                        let Some(unread) = unread else { return Err(format!("{error:?}")) };
                        if unread.from.0 > at {
                            return Err(format!("refused from {} while at {at}: {error}", unread.from));
                        }
                        // Where frames are lost nothing is known of what lies behind, and the end is named as it is known.
                        let upto = unread.to.filter(|to| to.0 > at).map_or(end, |to| to.0.min(end));
                        let shard = self.shards[&(topic.name, partition)];
                        let cause = error.cause().to_owned();
                        seen.refused.push(Refused {
                            topic: topic.name,
                            partition,
                            shard,
                            from: at,
                            upto,
                            cause,
                        });
                        at = upto;
                        break;
                    }
                };
                for record in batch.records().map_err(|e| e.to_string())? {
                    let record = record.map_err(|e| e.to_string())?;
                    if record.offset().0 < at {
                        continue;
                    }
                    if record.offset().0 != at || record.value() != Some(&value_of(topic, partition, at)[..])
                    {
                        return Err(format!("WRONG BYTES at offset {} instead of {at}", record.offset()));
                    }
                    seen.records += 1;
                    at += 1;
                }
            }
            consumer.close().await;
        }
        Ok(())
    }
}
