//! `tg produce`: records from standard input or files into a topic.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::json;
use tidegate::{
    Acks, BatchAck, Client, Compression, Error, Header, Level, PartitionId, Producer, ProducerEvent, Record,
};
use tokio::sync::mpsc;

use crate::args::{AcksArg, CompressionArg, ProduceArgs};
use crate::connect::with_client;
use crate::exit::{Code, Failure};
use crate::format::{self, InputRecord, Pattern};
use crate::output::{Out, bytes_text, grouped, note, progress_bar};

/// The longest field of a record; the broker's own limit is lower and named in its error.
const FIELD_BYTES_MAX: usize = 64 << 20;

/// Records that wait between the reader of the input and the producer.
const QUEUE_RECORDS: usize = 1024;

/// Producing may stand still for so long before that is worth a line.
const STALL_TOLD_AFTER: Duration = Duration::from_secs(3);
/// How often to look whether it does.
const STALL_LOOKED_FOR: Duration = Duration::from_millis(500);

/// How long the observer may be silent after the producer has closed.
const LAST_EVENT: Duration = Duration::from_secs(5);

/// Bytes that a record takes in its batch beside key, value and headers, at most: the batch's header and its own numbers.
const RECORD_OVERHEAD: usize = 61 + 40;
/// Bytes that a header takes beside its name and value, at most.
const HEADER_OVERHEAD: usize = 10;

/// Reads, produces, waits for all acknowledgements.
pub(crate) fn run(server: &str, args: ProduceArgs, out: &mut Out) -> Result<(), Failure> {
    // Before anything is connected: a mistake is one whether the broker runs or not.
    let reader = Reader::new(&args)?;
    with_client(server, |client| produce(client, args, reader, out))
}

async fn produce(client: Client, args: ProduceArgs, reader: Reader, out: &mut Out) -> Result<(), Failure> {
    let limit = BatchLimit::of(&client, &args.topic).await?;
    let (events, mut acknowledged) = mpsc::unbounded_channel();
    let producer = client
        .producer(&args.topic)
        .acks(args.acks.into())
        .compression(args.compression.into())
        .observe(move |event| drop(events.send(event.clone())));
    // The topic may allow less than the SDK's batches.
    let producer = if limit.bytes < SDK_BATCH_BYTES { producer.batch_bytes(limit.bytes) } else { producer };
    let producer = if args.no_idempotence { producer.without_idempotence() } else { producer };
    let producer = producer.start().await?;
    let bar = progress_bar(input_length(&args.files), "bytes");
    let (records, mut input) = mpsc::channel(QUEUE_RECORDS);
    let reading = tokio::task::spawn_blocking({
        let (files, bar) = (args.files.clone(), bar.clone());
        move || reader.read_all(&files, &bar, &records)
    });
    let watching = tokio::spawn(tell_stalls(producer.clone()));
    let mut tally = Tally::default();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut was_interrupted = false;
    let mut refused = Ok(());
    loop {
        tokio::select! {
            biased;
            _ = &mut interrupted => {
                was_interrupted = true;
                break;
            }
            Some(event) = acknowledged.recv() => {
                tally.add(event, &args.topic, out)?;
                while let Ok(event) = acknowledged.try_recv() {
                    tally.add(event, &args.topic, out)?;
                }
                out.flush()?;
            }
            record = input.recv() => {
                let Some((record, place)) = record else { break };
                refused = enqueue(&producer, &record, &place, &limit).await;
                if refused.is_err() {
                    break;
                }
                tally.enqueued += 1;
                if tally.failed() > 0 {
                    break;
                }
            }
        }
    }
    drop(input);
    let closed = producer.close().await;
    // A record's acknowledgement may be known a moment before the observer hears of its batch.
    while tally.records + tally.failed() < tally.enqueued {
        let Ok(Some(event)) = tokio::time::timeout(LAST_EVENT, acknowledged.recv()).await else { break };
        tally.add(event, &args.topic, out)?;
    }
    watching.abort();
    bar.finish_and_clear();
    tally.summary(&args.topic, out)?;
    tally.verdict(&args.topic, closed.err())?;
    refused?;
    if was_interrupted {
        return Err(Failure::new(Code::Interrupted, "interrupted before the end of the input")
            .current(tally.counts())
            .fix("produce the rest of the input; what is counted above is done"));
    }
    reading.await.expect("the reader of the input does not panic")
}

/// Says once why nothing comes on, and again when there is another reason for it.
async fn tell_stalls(producer: Producer) {
    let mut told = None;
    loop {
        tokio::time::sleep(STALL_LOOKED_FOR).await;
        let Some(stall) = producer.stall() else {
            told = None;
            continue;
        };
        let kind = stall.error.kind();
        if stall.lasted >= STALL_TOLD_AFTER && told.replace(kind) != Some(kind) {
            note(format!("waiting for {} s: {}", stall.lasted.as_secs(), stall.error));
        }
    }
}

/// What the SDK makes of batches unless told otherwise.
const SDK_BATCH_BYTES: usize = 256 << 10;

/// The largest batch that a topic takes, and the largest that any may be told to take.
struct BatchLimit {
    topic: String,
    bytes: usize,
    ceiling: usize,
}

impl BatchLimit {
    async fn of(client: &Client, topic: &str) -> Result<BatchLimit, Failure> {
        let ceiling = client.batch_bytes_max();
        let described = client.admin().describe_topic(topic).await?;
        let setting = described.settings.iter().find(|setting| setting.name == "batch.bytes.max");
        let bytes = setting.and_then(|setting| setting.value.parse().ok()).unwrap_or(ceiling);
        Ok(BatchLimit { topic: topic.to_owned(), bytes: bytes.min(ceiling), ceiling })
    }

    /// Looked at here, where the place in the input is still known.
    fn check(&self, record: &InputRecord, place: &str) -> Result<(), Failure> {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = record.headers.iter().map(|(name, value)| HEADER_OVERHEAD + name.len() + value.len());
        let bytes = RECORD_OVERHEAD + length(&record.key) + length(&record.value) + headers.sum::<usize>();
        if bytes <= self.bytes {
            return Ok(());
        }
        let fix = if bytes <= self.ceiling {
            format!("`tg topic alter {} --set batch.bytes.max={}` lets it in", self.topic, self.ceiling)
        } else {
            format!("split it into records below {} bytes, or take it out", self.ceiling - RECORD_OVERHEAD)
        };
        Err(Failure::usage("a record is larger than a batch may be")
            .place(place)
            .limit(format!("{} bytes, batch.bytes.max of topic {}", self.bytes, self.topic))
            .current(format!("{bytes} bytes with its key, headers and the batch's own"))
            .fix(fix))
    }
}

async fn enqueue(
    producer: &Producer,
    record: &InputRecord,
    place: &str,
    limit: &BatchLimit,
) -> Result<(), Failure> {
    limit.check(record, place)?;
    let headers: Vec<Header<'_>> =
        record.headers.iter().map(|(name, value)| Header { name, value: Some(value) }).collect();
    let record = Record {
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: &headers,
        timestamp_ms: record.timestamp_ms,
        partition: record.partition.map(PartitionId),
    };
    // The ticket may go: what became of the record is told by the observer, batch by batch.
    producer.enqueue(record).await.map(drop).map_err(|error| Failure::from(error).place(place))
}

/// Cuts the input into records as the arguments say.
struct Reader {
    pattern: Option<Pattern>,
    /// Whether each line is a record.
    lines: bool,
    key: Option<Vec<u8>>,
    key_separator: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
    partition: Option<i32>,
    empty_is_null: bool,
}

impl Reader {
    fn new(args: &ProduceArgs) -> Result<Reader, Failure> {
        let pattern = match (&args.format, args.whole) {
            (_, true) => None,
            (Some(format), false) => Some(Pattern::parse(format).map_err(|e| {
                Failure::usage(format!("the format cannot be used: {e}"))
                    .place("--format")
                    .current(format)
                    .fix("`tg produce --help` lists the letters and escapes")
            })?),
            (None, false) => Some(Pattern::parse("%v\\n").expect("the default format is valid")),
        };
        let headers = args.headers.iter().map(|pair| format::parse_header(pair.as_bytes()));
        let headers: Result<Vec<_>, String> = headers.collect();
        let key_separator = args.key_separator.as_deref().map(separator).transpose()?;
        Ok(Reader {
            pattern,
            lines: args.format.is_none(),
            key: args.key.as_ref().map(|k| k.as_bytes().to_vec()),
            key_separator,
            headers: headers.map_err(|e| {
                Failure::usage(e).place("--header").fix("write it as NAME=VALUE; the value may be empty")
            })?,
            partition: args.partition,
            empty_is_null: args.empty_is_null,
        })
    }

    fn read_all(
        &self,
        files: &[PathBuf],
        bar: &ProgressBar,
        records: &mpsc::Sender<(InputRecord, String)>,
    ) -> Result<(), Failure> {
        if files.is_empty() {
            return self.read(Path::new("-"), &mut io::stdin().lock(), bar, records);
        }
        for path in files {
            if path.as_os_str() == "-" {
                self.read(path, &mut io::stdin().lock(), bar, records)?;
                continue;
            }
            let file = File::open(path).map_err(|e| unreadable(path, &e))?;
            self.read(path, &mut BufReader::with_capacity(256 << 10, file), bar, records)?;
        }
        Ok(())
    }

    fn read(
        &self,
        path: &Path,
        input: &mut dyn BufRead,
        bar: &ProgressBar,
        records: &mpsc::Sender<(InputRecord, String)>,
    ) -> Result<(), Failure> {
        let mut number = 0u64;
        loop {
            let record = match &self.pattern {
                Some(pattern) => pattern.read(input, FIELD_BYTES_MAX),
                None if number > 0 => Ok(None),
                None => whole(input),
            };
            let record = record.map_err(|e| match e.kind() {
                io::ErrorKind::InvalidData => Failure::usage(e.to_string())
                    .place(self.place(path, number + 1))
                    .fix("check --format against the input"),
                _ => unreadable(path, &e),
            })?;
            let Some(mut record) = record else { return Ok(()) };
            number += 1;
            let place = self.place(path, number);
            self.complete(&mut record, &place)?;
            let length = record.value.as_ref().map_or(0, Vec::len) + record.key.as_ref().map_or(0, Vec::len);
            bar.inc(length as u64 + 1);
            if records.blocking_send((record, place)).is_err() {
                return Ok(()); // the other side has an error to tell
            }
        }
    }

    /// Where a record stands, as an editor takes it where that is a line.
    fn place(&self, path: &Path, number: u64) -> String {
        match (&self.pattern, self.lines) {
            (None, _) => display(path),
            (Some(_), true) => format!("{}:{number}", display(path)),
            (Some(_), false) => format!("record {number} of {}", display(path)),
        }
    }

    /// What the arguments say of every record.
    fn complete(&self, record: &mut InputRecord, place: &str) -> Result<(), Failure> {
        if let Some(separator) = &self.key_separator {
            let line = record.value.take().unwrap_or_default();
            let Some(at) = find(&line, separator) else {
                let shown = String::from_utf8_lossy(&line).chars().take(60).collect::<String>();
                return Err(Failure::usage("a line has no key separator")
                    .place(place)
                    .current(format!("{shown:?}"))
                    .fix("take the line out, or leave --key-separator away"));
            };
            record.key = Some(line[..at].to_vec());
            record.value = Some(line[at + separator.len()..].to_vec());
        }
        if record.key.is_none() {
            record.key.clone_from(&self.key);
        }
        if record.partition.is_none() {
            record.partition = self.partition;
        }
        record.headers.extend(self.headers.iter().cloned());
        if self.empty_is_null && record.value.as_ref().is_some_and(Vec::is_empty) {
            record.value = None;
        }
        Ok(())
    }
}

/// What stands between key and value, as typed.
fn separator(text: &str) -> Result<Vec<u8>, Failure> {
    let cause = match format::unescape(text) {
        Ok(bytes) if !bytes.is_empty() => return Ok(bytes),
        Ok(_) => "the key separator is empty".to_owned(),
        Err(error) => format!("the key separator cannot be used: {error}"),
    };
    Err(Failure::usage(cause).place("--key-separator").current(format!("{text:?}")).fix(
        "write at least one byte, such as : or '\\t'; a backslash is '\\\\'; without keys leave the option out",
    ))
}

fn whole(input: &mut dyn BufRead) -> io::Result<Option<InputRecord>> {
    let mut value = Vec::new();
    input.take(FIELD_BYTES_MAX as u64 + 1).read_to_end(&mut value)?;
    if value.len() > FIELD_BYTES_MAX {
        let message = format!("the file is longer than {FIELD_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Some(InputRecord { value: Some(value), ..InputRecord::default() }))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn display(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { Code::NotFound } else { Code::Failed };
    Failure::new(code, format!("cannot read the input: {error}"))
        .place(display(path))
        .fix("name a file that can be read, or - for standard input")
}

/// The length of all files together, if all are files.
fn input_length(files: &[PathBuf]) -> Option<u64> {
    if files.is_empty() {
        return None;
    }
    files.iter().map(|path| path.metadata().ok().filter(|m| m.is_file()).map(|m| m.len())).sum()
}

/// What became of the records.
#[derive(Default)]
struct Tally {
    enqueued: u64,
    /// Acknowledged, or with acks=0 sent.
    records: u64,
    bytes: u64,
    batches: u64,
    lowest_level: Option<Level>,
    /// Certainly not stored.
    refused: u64,
    /// Sent, and not known whether stored.
    unknown: u64,
    /// Acknowledged from memory, and lost since.
    lost: u64,
    refusal: Option<Error>,
    doubt: Option<Error>,
}

impl Tally {
    fn add(&mut self, event: ProducerEvent, topic: &str, out: &mut Out) -> Result<(), Failure> {
        match event {
            ProducerEvent::Acknowledged(ack) => {
                self.records += u64::from(ack.record_count);
                self.bytes += u64::from(ack.bytes);
                self.batches += 1;
                self.lowest_level = Some(self.lowest_level.map_or(ack.level, |level| level.min(ack.level)));
                if out.is_json() {
                    out.json(&ack_json(topic, &ack))?;
                }
            }
            ProducerEvent::Failed { record_count, error, .. } if error.is_unknown_outcome() => {
                self.unknown += u64::from(record_count);
                self.doubt.get_or_insert(error);
            }
            ProducerEvent::Failed { record_count, error, .. } => {
                self.refused += u64::from(record_count);
                self.refusal.get_or_insert(error);
            }
            ProducerEvent::Lost { record_count, .. } => self.lost += u64::from(record_count),
            // Whatever is added later is no outcome of a record.
            _ => {}
        }
        Ok(())
    }

    fn failed(&self) -> u64 {
        self.refused + self.unknown
    }

    /// Only what is known: an acknowledgement, a refusal, or neither.
    fn counts(&self) -> String {
        let word = if self.lowest_level == Some(Level::None) { "sent" } else { "acknowledged" };
        let mut text = format!("{word}: {}", grouped(self.records));
        for (name, count) in [("not stored", self.refused), ("unknown", self.unknown), ("lost", self.lost)] {
            if count > 0 {
                text += &format!(", {name}: {}", grouped(count));
            }
        }
        text
    }

    fn summary(&self, topic: &str, out: &mut Out) -> Result<(), Failure> {
        if out.is_json() {
            return Ok(());
        }
        let level = match self.lowest_level {
            None if self.failed() > 0 => return out.line(format!("{topic}: {}", self.counts())),
            None => return out.line(format!("{topic}: no records")),
            Some(Level::None) => "sent, not acknowledged",
            Some(Level::Memory) => "acknowledged, in memory only",
            Some(Level::Disk) => "acknowledged, flushed to disk",
            Some(Level::Quorum) => "acknowledged, flushed on a quorum",
        };
        out.line(format!(
            "{topic}: {} record{} ({} in {} batch{}) {level}",
            grouped(self.records),
            if self.records == 1 { "" } else { "s" },
            bytes_text(self.bytes),
            grouped(self.batches),
            if self.batches == 1 { "" } else { "es" },
        ))
    }

    /// Doubt comes first: who sends again because of a refusal may store twice what is in doubt.
    fn verdict(&self, topic: &str, closed: Option<Error>) -> Result<(), Failure> {
        if let Some(error) = self.doubt.clone() {
            return Err(Failure::from(error).current(self.counts()).fix(format!(
                "whether they are stored is not known: read back with `tg consume {topic}` before they are sent again"
            )));
        }
        if let Some(error) = self.refusal.clone().or(closed) {
            let failure = Failure::from(error);
            return Err(if self.failed() > 0 { failure.current(self.counts()) } else { failure });
        }
        if self.lost > 0 {
            let cause = "records that were acknowledged from memory are lost: the broker has restarted";
            return Err(Failure::new(Code::Failed, cause)
                .place(format!("topic {topic}"))
                .current(self.counts())
                .fix("send them again; a topic with durability=disk loses none"));
        }
        Ok(())
    }
}

fn ack_json(topic: &str, ack: &BatchAck) -> serde_json::Value {
    json!({
        "topic": topic, "partition": ack.partition.0, "offset": ack.base_offset.0, "records": ack.record_count,
        "bytes": ack.bytes, "level": level_name(ack.level), "append_time_ms": ack.append_time_ms,
        "round_trip_us": ack.round_trip_us,
    })
}

/// The word of docs/GLOSSARY.md for a level.
pub(crate) fn level_name(level: Level) -> &'static str {
    match level {
        Level::None => "none",
        Level::Memory => "memory",
        Level::Disk => "disk",
        Level::Quorum => "quorum",
    }
}

impl From<AcksArg> for Acks {
    fn from(acks: AcksArg) -> Acks {
        match acks {
            AcksArg::None => Acks::None,
            AcksArg::Leader => Acks::Leader,
            AcksArg::All => Acks::All,
        }
    }
}

impl From<CompressionArg> for Compression {
    fn from(compression: CompressionArg) -> Compression {
        match compression {
            CompressionArg::None => Compression::None,
            CompressionArg::Gzip => Compression::Gzip,
            CompressionArg::Snappy => Compression::Snappy,
            CompressionArg::Lz4 => Compression::Lz4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_is_taken_with_its_escapes() {
        assert_eq!(separator("\\t").unwrap(), b"\t");
        assert_eq!(separator("::").unwrap(), b"::");
        assert_eq!(separator("\\\\").unwrap(), b"\\");
        for text in ["", "\\", "\\q"] {
            assert!(separator(text).unwrap_err().to_string().contains("fix:"), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_never_called_stored() {
        let tally = Tally { records: 5, unknown: 3, refused: 2, ..Tally::default() };
        assert_eq!(tally.counts(), "acknowledged: 5, not stored: 2, unknown: 3");
        let sent = Tally { records: 5, lowest_level: Some(Level::None), ..Tally::default() };
        assert_eq!(sent.counts(), "sent: 5");
    }
}
