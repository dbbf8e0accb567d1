//! `tg consume`: records of a topic to standard output.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tidegate::{
    Batch, Client, ConsumedRecord, Consumer, ConsumerBuilder, Error, ErrorCode, Event, Offset, OffsetQuery,
    OutOfRange, PartitionId, Start, Unread,
};

use crate::args::ConsumeArgs;
use crate::connect::{SERVER_DEFAULT, with_client};
use crate::exit::{Code, Failure};
use crate::format::{self, Piece, RecordView};
use crate::output::{Out, note, tell};
use crate::time;

/// How often the position of a named consumer is stored while records flow.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Reads until the end that was asked for.
pub(crate) fn run(server: &str, args: ConsumeArgs, out: &mut Out) -> Result<(), Failure> {
    // Before anything is connected: a mistake is one whether the broker runs or not.
    let style = Style::new(&args, out)?;
    let from = From::parse(args.from.as_deref(), args.group.is_some())?;
    let until = until(&args, &from)?;
    with_client(server, |client| read(server, client, args, Plan { style, from, until }, out))
}

/// What the arguments come to.
struct Plan {
    style: Style,
    from: From,
    until: Until,
}

/// Where the reading ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Never,
    End,
    Offset(Offset),
}

fn until(args: &ConsumeArgs, from: &From) -> Result<Until, Failure> {
    match args.until.as_deref() {
        _ if args.follow => Ok(Until::Never),
        None if matches!(from, From::At(Start::Latest)) => Ok(Until::Never),
        None | Some("end") => Ok(Until::End),
        Some(text) => match text.parse() {
            Ok(offset) if offset >= 0 => Ok(Until::Offset(Offset(offset))),
            _ => Err(Failure::usage("this is neither end nor an offset")
                .place("--until")
                .current(text)
                .fix("write end, or an offset from 0 on, such as 1000; the last N records are --from -N")),
        },
    }
}

async fn read(
    server: &str,
    client: Client,
    args: ConsumeArgs,
    plan: Plan,
    out: &mut Out,
) -> Result<(), Failure> {
    let Plan { style, from, until } = plan;
    let builder = client
        .consumer(&args.topic)
        .prefetch_bytes(args.prefetch << 20)
        .partitions(&args.partitions.iter().map(|p| PartitionId(*p)).collect::<Vec<_>>());
    let builder = match &args.group {
        Some(group) => builder.name(group),
        None => builder,
    };
    let builder = from.apply(builder, &client, &args.topic).await?;
    let builder = match until {
        Until::Never => builder,
        Until::End => builder.until_end(),
        Until::Offset(offset) => builder.until_offset(offset),
    };
    let server = if server == SERVER_DEFAULT { String::new() } else { format!(" -s {server}") };
    let group = args.group.as_ref().map_or(String::new(), |group| format!(" --group {group}"));
    let mut reading = Reading {
        again: format!("tg{server} consume {}{group}", args.topic),
        topic: args.topic,
        style,
        room: args.max_records.unwrap_or(u64::MAX),
        done: BTreeMap::new(),
        stopped: BTreeMap::new(),
        text: Vec::new(),
    };
    let consumer = builder.start().await?;
    let commits = args.group.is_some() && !args.no_commit;
    let ended = reading.read(&consumer_options(commits, until == Until::Never), consumer, out).await;
    out.flush()?;
    ended
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    Never,
    Regularly,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// At the end, or by an error.
    ByItself,
    /// When somebody interrupts it.
    WhenTold,
}

struct Options {
    commits: Commits,
    ends: Ends,
}

fn consumer_options(commits: bool, endless: bool) -> Options {
    Options {
        commits: if commits { Commits::Regularly } else { Commits::Never },
        ends: if endless { Ends::WhenTold } else { Ends::ByItself },
    }
}

/// What is written, and what has been.
struct Reading {
    topic: String,
    /// The command line that reads the topic again, up to where it begins.
    again: String,
    style: Style,
    /// Records that may still be written.
    room: u64,
    /// The next offset of each partition, behind what has been written.
    done: BTreeMap<PartitionId, Offset>,
    /// Partitions that cannot be read on, and the code that they would end the command with.
    stopped: BTreeMap<PartitionId, Code>,
    text: Vec<u8>,
}

impl Reading {
    async fn read(
        &mut self,
        options: &Options,
        mut consumer: Consumer,
        out: &mut Out,
    ) -> Result<(), Failure> {
        let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
        let mut committed_at = Instant::now();
        let mut result = Ok(());
        while self.room > 0 {
            let event = tokio::select! {
                biased;
                _ = &mut interrupted => {
                    if options.ends == Ends::ByItself {
                        result = Err(Failure::new(Code::Interrupted, "interrupted before the end"));
                    }
                    break;
                }
                event = consumer.next_event() => event,
            };
            match event {
                None => break,
                Some(Err(error)) => match error.unread() {
                    Some(unread) => self.stop(unread, error, out)?,
                    None => {
                        result = Err(error.into());
                        break;
                    }
                },
                Some(Ok(Event::Batch(batch))) if self.stopped.contains_key(&batch.partition()) => {}
                Some(Ok(Event::Batch(batch))) => self.write(&batch, out)?,
                Some(Ok(Event::Skipped { partition, from, to })) => {
                    note(format!(
                        "warning: partition {partition}: offsets {from} to {to} are gone; going on at {to}"
                    ));
                }
                // Caught up, and whatever may be added: all that came is to be seen.
                Some(Ok(_)) => out.flush()?,
            }
            if options.commits == Commits::Regularly && committed_at.elapsed() >= COMMIT_INTERVAL {
                self.commit(&consumer, out).await?;
                committed_at = Instant::now();
            }
            if options.ends == Ends::WhenTold {
                out.flush()?;
            }
            if self.stopped.len() == consumer.positions().len() {
                break;
            }
        }
        if options.commits == Commits::Regularly {
            self.commit(&consumer, out).await?;
        }
        consumer.close().await;
        result.and_then(|()| self.verdict())
    }

    /// A partition cannot be read on: says so, with the way round it. The others go on.
    fn stop(&mut self, unread: Unread, error: Error, out: &mut Out) -> Result<(), Failure> {
        let failure = self.explain(unread, error);
        out.flush()?;
        tell(&failure, out.format());
        self.stopped.insert(unread.partition, failure.code());
        Ok(())
    }

    fn explain(&self, unread: Unread, error: Error) -> Failure {
        let Unread { partition, from, to } = unread;
        let topic = &self.topic;
        if let (Some(ErrorCode::OffsetOutOfRange), Some((_, earliest, end))) = (error.code(), error.limit()) {
            return Failure::new(Code::NotFound, "the offset to begin at is out of range")
                .place(format!("topic {topic}, partition {partition}"))
                .limit(format!("earliest {earliest}, end {end}"))
                .current(from)
                .fix(format!(
                    "`{} -p {partition} --from {earliest}` reads all that there is; the end is --from latest",
                    self.again
                ));
        }
        let failure = Failure::from(error);
        match to {
            Some(to) => failure
                .place(format!("topic {topic}, partition {partition}, offsets {from} to {}", to.0 - 1))
                .fix(format!("`{} -p {partition} --from {to}` goes on behind them", self.again)),
            None => failure.place(format!("topic {topic}, partition {partition}, from offset {from} on")),
        }
    }

    /// How the command ends once every partition is at its end or has stopped. What stopped them was told.
    fn verdict(&self) -> Result<(), Failure> {
        let mut codes = self.stopped.values();
        let Some(first) = codes.next() else { return Ok(()) };
        // Damage outweighs everything: it is what an operator has to hear of.
        let code = if codes.any(|code| *code == Code::Differs) { Code::Differs } else { *first };
        let count = self.stopped.len();
        Err(Failure::new(code, format!("{count} partitions were not read to their end")).told())
    }

    fn write(&mut self, batch: &Batch, out: &mut Out) -> Result<(), Failure> {
        let records = match batch.records() {
            Ok(records) => records,
            Err(error) => return self.unreadable(batch, error, out),
        };
        for record in records {
            let record = match record {
                Ok(record) => record,
                Err(error) => return self.unreadable(batch, error, out),
            };
            if self.room == 0 {
                return Ok(());
            }
            self.room -= 1;
            self.text.clear();
            self.style.render(&self.topic, batch, &record, &mut self.text);
            out.bytes(&self.text)?;
            self.done.insert(batch.partition(), Offset(record.offset().0 + 1));
        }
        if self.room > 0 {
            self.done.insert(batch.partition(), batch.end_offset());
        }
        Ok(())
    }

    /// A batch holds what is no record. Those of its records that were written out are not skipped.
    fn unreadable(&mut self, batch: &Batch, error: Error, out: &mut Out) -> Result<(), Failure> {
        let partition = batch.partition();
        let first = batch.first_offset();
        let from = self.done.get(&partition).map_or(first, |done| first.max(*done));
        self.stop(Unread { partition, from, to: Some(batch.end_offset()) }, error, out)
    }

    /// A position is stored only once what lies before it is out.
    async fn commit(&self, consumer: &Consumer, out: &mut Out) -> Result<(), Failure> {
        out.flush()?;
        if self.done.is_empty() {
            return Ok(());
        }
        let offsets: Vec<(PartitionId, Offset)> = self.done.iter().map(|(p, o)| (*p, *o)).collect();
        Ok(consumer.commit_offsets(&offsets).await?)
    }
}

/// Where to begin.
enum From {
    At(Start),
    /// So many records before the end of each partition.
    BeforeEnd(i64),
}

impl From {
    fn parse(text: Option<&str>, named: bool) -> Result<From, Failure> {
        Ok(match text {
            None if named => From::At(Start::Stored),
            None | Some("earliest") => From::At(Start::Earliest),
            Some("latest") => From::At(Start::Latest),
            Some("stored") if named => From::At(Start::Stored),
            Some("stored") => {
                return Err(Failure::usage("only a named consumer has a stored position")
                    .place("--from stored")
                    .fix("add --group NAME"));
            }
            Some(text) => match text.parse::<i64>() {
                Ok(offset) if offset < 0 || text.starts_with('-') => From::BeforeEnd(-offset),
                Ok(offset) => From::At(Start::Offset(Offset(offset))),
                Err(_) => match time::parse(text, time::now_ms()) {
                    Some(ms) => From::At(Start::RecordTime(ms)),
                    None => {
                        return Err(Failure::usage("this is no place to begin").place("--from").current(text).fix(
                            "write earliest, latest, stored, an offset, -N, a time such as 2026-11-29T15:00:00Z, or -5m",
                        ));
                    }
                },
            },
        })
    }

    async fn apply(
        &self,
        builder: ConsumerBuilder,
        client: &Client,
        topic: &str,
    ) -> Result<ConsumerBuilder, Failure> {
        match self {
            From::At(start) => Ok(builder.from(*start)),
            From::BeforeEnd(count) => {
                let earliest = client.admin().list_offsets(topic, OffsetQuery::Earliest).await?;
                let latest = client.admin().list_offsets(topic, OffsetQuery::Latest).await?;
                let mut builder = builder.from(Start::Earliest).out_of_range(OutOfRange::Earliest);
                for ((partition, first), (_, end)) in earliest.into_iter().zip(latest) {
                    let offset = (end.offset.0 - count).max(first.offset.0);
                    builder = builder.from_offset(partition, Offset(offset));
                }
                Ok(builder)
            }
        }
    }
}

/// How a record is written.
enum Style {
    Pieces(Vec<Piece>),
    Json,
}

impl Style {
    fn new(args: &ConsumeArgs, out: &Out) -> Result<Style, Failure> {
        if out.is_json() && (args.raw || args.format.is_some()) {
            let option = if args.raw { "--raw" } else { "--format" };
            return Err(Failure::usage("records are written either as JSON or in another form")
                .place(format!("-o json with {option}"))
                .fix(format!("leave out -o json, or {option}")));
        }
        let text = match (&args.format, args.raw) {
            (Some(format), _) => format.as_str(),
            (None, true) => "%v",
            (None, false) if out.is_json() => return Ok(Style::Json),
            (None, false) => "%v\\n",
        };
        format::parse(text).map(Style::Pieces).map_err(|e| {
            Failure::usage(format!("the format cannot be used: {e}"))
                .place("--format")
                .current(text)
                .fix("`tg consume --help` lists the letters and escapes")
        })
    }

    fn render(&self, topic: &str, batch: &Batch, record: &ConsumedRecord<'_>, text: &mut Vec<u8>) {
        let headers: Vec<(&str, Option<&[u8]>)> = record.headers().collect();
        let view = RecordView {
            topic,
            partition: batch.partition().0,
            offset: record.offset().0,
            timestamp_ms: record.timestamp_ms(),
            key: record.key(),
            value: record.value(),
            headers: &headers,
        };
        match self {
            Style::Pieces(pieces) => format::render(pieces, &view, text),
            Style::Json => {
                serde_json::to_writer(&mut *text, &record_json(&view)).expect("a vector takes any length");
                text.push(b'\n');
            }
        }
    }
}

/// Bytes that are UTF-8 are a string; others are in `key_base64`, `value_base64`.
fn record_json(record: &RecordView<'_>) -> Value {
    let mut object = Map::new();
    object.insert("topic".into(), json!(record.topic));
    object.insert("partition".into(), json!(record.partition));
    object.insert("offset".into(), json!(record.offset));
    object.insert("timestamp_ms".into(), json!(record.timestamp_ms));
    put_bytes(&mut object, "key", record.key);
    put_bytes(&mut object, "value", record.value);
    let headers: Vec<Value> = record
        .headers
        .iter()
        .map(|(name, value)| {
            let mut header = Map::new();
            header.insert("name".into(), json!(name));
            put_bytes(&mut header, "value", *value);
            Value::Object(header)
        })
        .collect();
    object.insert("headers".into(), Value::Array(headers));
    Value::Object(object)
}

fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => object.insert(name.into(), Value::Null),
        Some((_, Ok(text))) => object.insert(name.into(), json!(text)),
        Some((bytes, Err(_))) => object.insert(format!("{name}_base64"), json!(base64(bytes))),
    };
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, b| group << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * i) & 63) as usize] as char;
            text.push(if i <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_become_base64() {
        for (bytes, want) in
            [(&b"\xff"[..], "/w=="), (b"\xff\xfe", "//4="), (b"\xff\xfe\xfd", "//79"), (b"", "")]
        {
            assert_eq!(base64(bytes), want);
        }
        let record = RecordView {
            topic: "t",
            partition: 1,
            offset: 2,
            timestamp_ms: 3,
            key: None,
            value: Some(b"\xff"),
            headers: &[("h", Some(b"v"))],
        };
        assert_eq!(
            record_json(&record),
            json!({ "topic": "t", "partition": 1, "offset": 2, "timestamp_ms": 3, "key": null, "value_base64": "/w==",
                    "headers": [{ "name": "h", "value": "v" }] })
        );
    }

    #[test]
    fn every_way_to_say_where_to_begin_is_understood() {
        let at = |text| match From::parse(Some(text), true).unwrap() {
            From::At(start) => start,
            From::BeforeEnd(count) => panic!("{count} before the end"),
        };
        assert_eq!(at("earliest"), Start::Earliest);
        assert_eq!(at("latest"), Start::Latest);
        assert_eq!(at("stored"), Start::Stored);
        assert_eq!(at("17"), Start::Offset(Offset(17)));
        assert_eq!(at("@5"), Start::RecordTime(5));
        assert!(matches!(at("-5m"), Start::RecordTime(_)));
        assert!(matches!(From::parse(Some("-5"), true).unwrap(), From::BeforeEnd(5)));
        assert!(matches!(From::parse(None, true).unwrap(), From::At(Start::Stored)));
        assert!(matches!(From::parse(None, false).unwrap(), From::At(Start::Earliest)));
        assert!(From::parse(Some("stored"), false).is_err());
        assert!(From::parse(Some("soon"), false).is_err());
    }
}
