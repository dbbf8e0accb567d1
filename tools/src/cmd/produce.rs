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
use crate::exit::{Code, Failure};
use crate::format::{self, InputRecord, Pattern};
use crate::output::{Out, bytes_text, grouped, progress_bar};

/// The longest field of a record; the broker's own limit is lower and named in its error.
const FIELD_BYTES_MAX: usize = 64 << 20;

/// Records that wait between the reader of the input and the producer.
const QUEUE_RECORDS: usize = 1024;

/// How long the observer may be silent after the producer has closed.
const LAST_EVENT: Duration = Duration::from_secs(5);

/// Reads, produces, waits for all acknowledgements.
pub(crate) async fn run(client: Client, args: ProduceArgs, out: &mut Out) -> Result<(), Failure> {
    let reader = Reader::new(&args)?;
    let (events, mut acknowledged) = mpsc::unbounded_channel();
    let producer = client
        .producer(&args.topic)
        .acks(args.acks.into())
        .compression(args.compression.into())
        .observe(move |event| drop(events.send(event.clone())));
    let producer = if args.no_idempotence { producer.without_idempotence() } else { producer };
    let producer = producer.start().await?;
    let bar = progress_bar(input_length(&args.files), "bytes");
    let (records, mut input) = mpsc::channel(QUEUE_RECORDS);
    let reading = tokio::task::spawn_blocking({
        let (files, bar) = (args.files.clone(), bar.clone());
        move || reader.read_all(&files, &bar, &records)
    });
    let mut tally = Tally::default();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut was_interrupted = false;
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
                let Some(record) = record else { break };
                enqueue(&producer, &record).await?;
                tally.enqueued += 1;
                if tally.error.is_some() {
                    break;
                }
            }
        }
    }
    drop(input);
    let closed = producer.close().await;
    // A record's acknowledgement may be known a moment before the observer hears of its batch.
    while tally.records + tally.failed < tally.enqueued {
        let Ok(Some(event)) = tokio::time::timeout(LAST_EVENT, acknowledged.recv()).await else { break };
        tally.add(event, &args.topic, out)?;
    }
    bar.finish_and_clear();
    if !was_interrupted {
        let read = reading.await.expect("the reader of the input does not panic");
        tally.summary(&args.topic, out)?;
        tally.verdict(closed.err())?;
        return read;
    }
    tally.summary(&args.topic, out)?;
    tally.verdict(closed.err())?;
    Err(Failure::new(Code::Interrupted, "interrupted; what was read before is stored"))
}

async fn enqueue(producer: &Producer, record: &InputRecord) -> Result<(), Failure> {
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
    producer.enqueue(record).await?;
    Ok(())
}

/// Cuts the input into records as the arguments say.
struct Reader {
    pattern: Option<Pattern>,
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
                Failure::usage(format!("the format cannot be used: {e}")).place("--format").current(format)
            })?),
            (None, false) => Some(Pattern::parse("%v\\n").expect("the default format is valid")),
        };
        let headers = args.headers.iter().map(|pair| format::parse_header(pair.as_bytes()));
        let headers: Result<Vec<_>, String> = headers.collect();
        if args.key_separator.as_deref() == Some("") {
            return Err(Failure::usage("the key separator is empty").place("--key-separator"));
        }
        Ok(Reader {
            pattern,
            key: args.key.as_ref().map(|k| k.as_bytes().to_vec()),
            key_separator: args.key_separator.as_ref().map(|s| s.as_bytes().to_vec()),
            headers: headers.map_err(|e| Failure::usage(e).place("--header"))?,
            partition: args.partition,
            empty_is_null: args.empty_is_null,
        })
    }

    fn read_all(
        &self,
        files: &[PathBuf],
        bar: &ProgressBar,
        records: &mpsc::Sender<InputRecord>,
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
        records: &mpsc::Sender<InputRecord>,
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
                    .place(format!("record {} of {}", number + 1, display(path)))
                    .fix("check --format against the input"),
                _ => unreadable(path, &e),
            })?;
            let Some(mut record) = record else { return Ok(()) };
            number += 1;
            self.complete(&mut record, number, path)?;
            let length = record.value.as_ref().map_or(0, Vec::len) + record.key.as_ref().map_or(0, Vec::len);
            bar.inc(length as u64 + 1);
            if records.blocking_send(record).is_err() {
                return Ok(()); // the other side has an error to tell
            }
        }
    }

    /// What the arguments say of every record.
    fn complete(&self, record: &mut InputRecord, number: u64, path: &Path) -> Result<(), Failure> {
        if let Some(separator) = &self.key_separator {
            let line = record.value.take().unwrap_or_default();
            let Some(at) = find(&line, separator) else {
                let shown = String::from_utf8_lossy(&line).chars().take(60).collect::<String>();
                return Err(Failure::usage("a line has no key separator")
                    .place(format!("line {number} of {}", display(path)))
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
    Failure::new(code, format!("cannot read the input: {error}")).place(display(path))
}

/// The length of all files together, if all are files.
fn input_length(files: &[PathBuf]) -> Option<u64> {
    if files.is_empty() {
        return None;
    }
    files.iter().map(|path| path.metadata().ok().filter(|m| m.is_file()).map(|m| m.len())).sum()
}

/// What became of the batches.
#[derive(Default)]
struct Tally {
    enqueued: u64,
    records: u64,
    bytes: u64,
    batches: u64,
    lowest_level: Option<Level>,
    failed: u64,
    error: Option<Error>,
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
            ProducerEvent::Failed { record_count, error, .. } => {
                self.failed += u64::from(record_count);
                self.error.get_or_insert(error);
            }
            // Lost and whatever is added later: records are gone that were acknowledged from memory.
            _ => {}
        }
        Ok(())
    }

    fn summary(&self, topic: &str, out: &mut Out) -> Result<(), Failure> {
        if out.is_json() {
            return Ok(());
        }
        let level = match self.lowest_level {
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

    fn verdict(&self, closed: Option<Error>) -> Result<(), Failure> {
        let Some(error) = self.error.clone().or(closed) else { return Ok(()) };
        let failed = self.failed;
        let mut failure = Failure::from(error);
        if failed > 0 {
            failure = failure.current(format!("{} records stored, {failed} not", self.records));
        }
        Err(failure)
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
