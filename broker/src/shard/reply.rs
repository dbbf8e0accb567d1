//! The one place where refusals and faults become error frames, and answers of other shards become replies.
//!
//! A refusal says what happened in the shard's own terms; [`Refusal::body`] says it to a person: cause, limit, current value,
//! what to do. Everything here is exhaustive: a new refusal does not compile until it has its words.

use std::ops::Range;

use tidegate_logic::credit::{IdleHolder, Patience};
use tidegate_logic::producer;
use tidegate_logic::topics::{TopicRefusal, TopicTable};
use tidegate_protocol::api::credit::Reason;
use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::api::{Api, Done};
use tidegate_protocol::batch::BatchError;
use tidegate_protocol::code::DecodeError;
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::frame::Unsupported;
use tidegate_protocol::ids::{
    LeaderEpoch, Offset, PartitionId, ProducerId, ShardId, TopicId, TopicPartition,
};
use tidegate_reactor::op::Fault;

use super::Shard;
use super::connection::ConnectionId;
use super::mail::Answer;
use crate::log::notice::Shortage;
use crate::log::{AppendRefused, CreateRefused, ReadRefused, TrimRefused};

/// Why a request is not done.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    Malformed(DecodeError),
    Unsupported(Unsupported),
    ProtocolVersion { min: u16, max: u16, ours: u16 },
    NotReady { state: &'static str },
    HelloNeeded { again: bool },
    HelloLate { hello_ms: u64 },
    FrameLate { held_ms: u64 },
    Invalid { field: &'static str, rule: String },
    Batch(BatchError),
    UnknownTopicId { topic: TopicId },
    UnknownPartition { name: String, partitions: i32, found: PartitionId },
    NoLog { log: TopicPartition },
    StaleEpoch { current: LeaderEpoch, found: LeaderEpoch },
    WrongShard { log: TopicPartition, owner: ShardId, here: ShardId },
    OffsetOutOfRange { log: TopicPartition, start: Offset, end: Offset, found: Offset },
    ReadOutOfRange { log: TopicPartition, start: Offset, end: Offset },
    Topic(TopicRefusal),
    Producer(producer::Refusal),
    ProducerNeverGiven { producer: ProducerId },
    OutOfCredit { limit: u64, received: u64 },
    CreditUnused { idle: IdleHolder, patience: Patience },
    Limit { what: &'static str, limit: u64, current: u64 },
    NoRoom { reason: Reason, wanted: u64, room: u64 },
    DiskFull(Shortage),
    DurabilityNotAvailable,
    UnknownOutcome { log: TopicPartition, from: Offset, fault: Fault },
    Stopped { from: Offset, fault: Fault },
    ReadOnly { cause: String },
    Damaged { log: TopicPartition, place: FilePlace, from: Offset, upto: Offset },
    Lost { log: TopicPartition, file: String, from: Offset },
    ReadFailed { log: TopicPartition, fault: Fault },
    DriveBusy,
}

/// Bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePlace {
    file: String,
    bytes: Range<u64>,
}

/// What people call topics, and where clients reach shards.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    topics: &'a TopicTable,
    advertised: &'a [String],
}

impl Names<'_> {
    /// The name of a log's topic; the identity of one that is gone or is the broker's own.
    fn topic(&self, log: TopicPartition) -> String {
        self.topics.get(log.topic).map_or_else(|| log.topic.to_string(), |topic| topic.record.name.clone())
    }

    fn place(&self, log: TopicPartition) -> String {
        format!("partition {} of topic {}", log.partition, self.topic(log))
    }
}

impl Refusal {
    pub(super) fn from_read(log: TopicPartition, refused: ReadRefused) -> Refusal {
        match refused {
            ReadRefused::UnknownLog => Refusal::NotReady { state: "making or removing the partition's log" },
            ReadRefused::OutOfRange { start, end } => Refusal::ReadOutOfRange { log, start, end },
            ReadRefused::Damaged { file, bytes, from, upto } => {
                Refusal::Damaged { log, place: FilePlace { file, bytes }, from, upto }
            }
            ReadRefused::Lost { file, from } => Refusal::Lost { log, file, from },
            ReadRefused::Fault(fault) => Refusal::ReadFailed { log, fault },
            ReadRefused::Busy => Refusal::DriveBusy,
        }
    }

    pub(super) fn from_create(log: TopicPartition, refused: CreateRefused) -> Refusal {
        match refused {
            CreateRefused::TooMany { limit } => {
                let limit = u64::from(limit);
                Refusal::Limit { what: "logs of a shard", limit, current: limit }
            }
            CreateRefused::ReadOnly => {
                Refusal::ReadOnly { cause: format!("the log of {log:?} cannot be made") }
            }
        }
    }

    pub(super) fn from_trim(log: TopicPartition, before: Offset, refused: TrimRefused) -> Refusal {
        match refused {
            TrimRefused::UnknownLog => Refusal::NoLog { log },
            TrimRefused::OutOfRange { start, committed } => {
                Refusal::OffsetOutOfRange { log, start, end: committed, found: before }
            }
            TrimRefused::Stopped => {
                Refusal::ReadOnly { cause: "a write or a flush of this shard has failed".to_owned() }
            }
        }
    }

    /// The refusal as it goes over the wire.
    pub(super) fn body(&self, names: Names<'_>) -> ErrorBody {
        match self {
            Refusal::Malformed(error) => ErrorBody {
                hint: "the client's software sends frames that docs/WIRE_FORMAT.md does not allow".to_owned(),
                ..ErrorBody::malformed(error)
            },
            Refusal::Unsupported(unsupported) => {
                error(ErrorCode::UnsupportedVersion, unsupported.to_string())
                    .hint("use a version of the client that this broker supports")
            }
            Refusal::ProtocolVersion { min, max, ours } => protocol_version(*min, *max, *ours),
            Refusal::NotReady { state } => {
                error(ErrorCode::NotReady, format!("the broker is {state}")).hint("try again in a moment")
            }
            Refusal::HelloNeeded { again } => hello_needed(*again),
            Refusal::HelloLate { hello_ms } => hello_late(*hello_ms),
            Refusal::FrameLate { held_ms } => frame_late(*held_ms),
            Refusal::Invalid { field, rule } => {
                let mut body = error(ErrorCode::InvalidRequest, format!("{field} {rule}"));
                body.field = (*field).to_owned();
                body
            }
            Refusal::Batch(batch) => batch_body(batch),
            Refusal::UnknownTopicId { topic } => {
                error(ErrorCode::UnknownTopic, format!("there is no topic with id {topic}"))
                    .hint("ask for the metadata again: the topic may have been deleted and made anew")
            }
            Refusal::UnknownPartition { name, partitions, found } => {
                unknown_partition(name, *partitions, *found)
            }
            Refusal::NoLog { log } => error(
                ErrorCode::NotReady,
                format!("{} has no log here yet", names.place(*log)),
            )
            .hint(
                "try again; if it stays, a cap on logs is reached or the shard takes no writes: see status",
            ),
            Refusal::StaleEpoch { current, found } => {
                let cause = format!("the leader epoch is {current}, the request names {found}");
                error(ErrorCode::StaleEpoch, cause)
                    .limited("leader epoch", i64::from(current.0), i64::from(found.0))
                    .hint("ask for the metadata again")
            }
            Refusal::WrongShard { log, owner, here } => wrong_shard(names, *log, *owner, *here),
            Refusal::OffsetOutOfRange { log, start, end, found } => {
                out_of_range(names, *log, *start, *end, *found)
            }
            Refusal::ReadOutOfRange { log, start, end } => {
                let cause = format!("{} now has offsets {start} to {end}", names.place(*log));
                error(ErrorCode::OffsetOutOfRange, cause)
                    .limited("offset", start.0, end.0)
                    .hint("records below the start are gone by retention or a trim: begin at the start")
            }
            Refusal::Topic(refusal) => topic_body(refusal),
            Refusal::Producer(refusal) => producer_body(refusal),
            Refusal::ProducerNeverGiven { producer } => {
                error(ErrorCode::UnknownProducer, format!("producer id {producer} was never given out"))
                    .hint("ask for a new producer id")
            }
            Refusal::OutOfCredit { limit, received } => out_of_credit(*limit, *received),
            Refusal::CreditUnused { idle, patience } => credit_unused(*idle, *patience),
            Refusal::Limit { what, limit, current } => {
                error(ErrorCode::LimitReached, format!("the limit of {what} is reached"))
                    .limited(what, to_i64(*limit), to_i64(*current))
                    .hint("try again when there are fewer, or spread the load over more shards")
            }
            Refusal::NoRoom { reason, wanted, room } => no_room(*reason, *wanted, *room),
            Refusal::DriveBusy => {
                error(ErrorCode::LimitReached, "too many reads from the drive are under way".to_owned())
                    .hint("try again in a moment")
            }
            Refusal::DiskFull(shortage) => disk_full(shortage),
            Refusal::DurabilityNotAvailable => durability_not_available(),
            Refusal::UnknownOutcome { log, from, fault } => unknown_outcome(names, *log, *from, fault),
            Refusal::Stopped { from, fault } => stopped(*from, fault),
            Refusal::ReadOnly { cause } => {
                error(ErrorCode::ReadOnly, format!("the shard takes no writes: {cause}"))
                    .hint("reads go on; the broker's log says more")
            }
            Refusal::Damaged { log, place, from, upto } => damaged(names, *log, place, *from, *upto),
            Refusal::Lost { log, file, from } => lost(names, *log, file, *from),
            Refusal::ReadFailed { log, fault } => {
                let cause = format!("the drive failed to read {}: {fault}", names.place(*log));
                error(ErrorCode::DataDamaged, cause).hint("check the drive; other ranges can still be read")
            }
        }
    }
}

fn error(code: ErrorCode, cause: String) -> ErrorBody {
    ErrorBody { cause, ..ErrorBody::of(code) }
}

/// The parts of an error body, one by one.
trait Words {
    fn limited(self, what: &str, limit: i64, current: i64) -> Self;
    fn hint(self, hint: &str) -> Self;
}

impl Words for ErrorBody {
    fn limited(self, what: &str, limit: i64, current: i64) -> ErrorBody {
        ErrorBody { limited: what.to_owned(), limit, current, ..self }
    }

    fn hint(self, hint: &str) -> ErrorBody {
        ErrorBody { hint: hint.to_owned(), ..self }
    }
}

fn protocol_version(min: u16, max: u16, ours: u16) -> ErrorBody {
    let cause = format!("the client speaks protocol versions {min} to {max}, this broker {ours}");
    error(ErrorCode::UnsupportedVersion, cause)
        .limited("protocol version", i64::from(ours), i64::from(max))
        .hint("use versions of client and broker that overlap")
}

fn hello_needed(again: bool) -> ErrorBody {
    let cause = if again { "a second hello on this connection" } else { "a request before hello" };
    error(ErrorCode::HelloNeeded, cause.to_owned()).hint("send hello first, and once")
}

fn hello_late(hello_ms: u64) -> ErrorBody {
    error(ErrorCode::HelloNeeded, format!("no hello has come within {hello_ms} ms"))
        .hint("send hello as soon as the connection is there")
}

fn frame_late(held_ms: u64) -> ErrorBody {
    let cause =
        format!("a frame has not come whole within {held_ms} ms, while memory for such frames was used up");
    error(ErrorCode::LimitReached, cause).hint("connect again, and send a frame without pauses")
}

fn unknown_partition(name: &str, partitions: i32, found: PartitionId) -> ErrorBody {
    let cause = format!("topic {name} has partitions 0 to {}, not {found}", partitions - 1);
    error(ErrorCode::UnknownPartition, cause)
        .limited("partition", i64::from(partitions) - 1, i64::from(found.0))
        .hint("ask for the metadata again")
}

fn wrong_shard(names: Names<'_>, log: TopicPartition, owner: ShardId, here: ShardId) -> ErrorBody {
    let cause = format!("{} belongs to shard {owner}, this is shard {here}", names.place(log));
    let body = error(ErrorCode::WrongShard, cause)
        .limited("shard", i64::from(owner.0), i64::from(here.0))
        .hint("open another connection, to the address in the error, with that shard in its hello");
    let address = names.advertised.get(usize::from(owner.0)).cloned().unwrap_or_default();
    ErrorBody { address, ..body }
}

fn out_of_range(
    names: Names<'_>,
    log: TopicPartition,
    start: Offset,
    end: Offset,
    found: Offset,
) -> ErrorBody {
    let cause = format!("{} has offsets {start} to {end}, asked was {found}", names.place(log));
    error(ErrorCode::OffsetOutOfRange, cause)
        .limited("offset", start.0, end.0)
        .hint("begin at the start or at the end; records below the start are gone by retention or a trim")
}

fn out_of_credit(limit: u64, received: u64) -> ErrorBody {
    let cause = format!("{received} bytes were received, the produce credit allowed {limit} to begin");
    error(ErrorCode::OutOfCredit, cause)
        .limited("produce credit", to_i64(limit), to_i64(received))
        .hint("ask for credit and wait until the limit is raised")
}

fn credit_unused(idle: IdleHolder, patience: Patience) -> ErrorBody {
    let silent = idle.idle_ns > patience.idle_ns;
    let (what, limit_ns, current_ns) = match silent {
        true => ("without a byte", patience.idle_ns, idle.idle_ns),
        false => ("since they were granted", patience.held_ns, idle.held_ns),
    };
    let (limit_ms, current_ms) = (to_i64(limit_ns / 1_000_000), to_i64(current_ns / 1_000_000));
    let bytes = idle.bytes;
    let cause = format!(
        "{bytes} bytes of produce credit were left unused, {current_ms} ms {what}, while others waited for some"
    );
    error(ErrorCode::LimitReached, cause)
        .limited("milliseconds with unused credit", limit_ms, current_ms)
        .hint("connect again, and ask for credit when there is something to send")
}

fn no_room(reason: Reason, wanted: u64, room: u64) -> ErrorBody {
    let cause = format!("the shard has no room for {wanted} bytes now; it waits for {}", reason.meaning());
    error(ErrorCode::LimitReached, cause)
        .limited("bytes that may be appended", to_i64(room), to_i64(wanted))
        .hint(reason.hint())
}

fn durability_not_available() -> ErrorBody {
    let cause = "the data directory is on storage that cannot flush (such as tmpfs): acks=1 and acks=all cannot be kept";
    error(ErrorCode::DurabilityNotAvailable, cause.to_owned())
        .hint("use a real drive, a topic with durability=relaxed, acks=0, or start with --allow-volatile")
}

fn unknown_outcome(names: Names<'_>, log: TopicPartition, from: Offset, fault: &Fault) -> ErrorBody {
    let cause = format!("the drive failed ({fault}) under {} from offset {from} on", names.place(log));
    error(ErrorCode::UnknownOutcome, cause)
        .limited("offset", from.0, from.0)
        .hint("check the drive and restart the broker: recovery tells what is stored; then resend")
}

fn stopped(from: Offset, fault: &Fault) -> ErrorBody {
    let cause = format!("the drive failed ({fault}); what was appended from offset {from} on is uncertain");
    error(ErrorCode::ReadOnly, cause)
        .hint("the shard serves reads only; check the drive and restart the broker")
}

fn damaged(
    names: Names<'_>,
    log: TopicPartition,
    place: &FilePlace,
    from: Offset,
    upto: Offset,
) -> ErrorBody {
    let FilePlace { file, bytes } = place;
    let cause = format!(
        "offsets {from} to {} of {} are damaged in {file}, bytes {} to {}",
        upto.0 - 1,
        names.place(log),
        bytes.start,
        bytes.end
    );
    let hint = format!(
        "what follows can be read: tg consume {} -p {} --from {upto}; keep the file, it may be mended",
        names.topic(log),
        log.partition
    );
    error(ErrorCode::DataDamaged, cause).limited("offset", from.0, upto.0).hint(&hint)
}

fn lost(names: Names<'_>, log: TopicPartition, file: &str, from: Offset) -> ErrorBody {
    let place = names.place(log);
    let cause = format!("what {place} had stored from offset {from} on is not known: {file} is damaged");
    error(ErrorCode::DataDamaged, cause)
        .limited("offset", from.0, from.0)
        .hint("what lies below can be read; keep the directory as it is, and see the broker's log")
}

fn batch_body(batch: &BatchError) -> ErrorBody {
    let body = error(batch.code(), batch.to_string());
    match batch {
        BatchError::Invalid(invalid) => ErrorBody {
            field: invalid.field.to_owned(),
            position: u32::try_from(invalid.at).unwrap_or(u32::MAX),
            hint: "the client's software builds batches that Kafka's format does not allow".to_owned(),
            ..body
        },
        BatchError::Corrupt { .. } => body.hint(
            "the batch was changed on its way: send it again; if it stays, look for faulty memory or network",
        ),
        BatchError::TooLarge { limit, len } => body
            .limited("batch.bytes.max", i64::from(*limit), i64::try_from(*len).unwrap_or(i64::MAX))
            .hint("send smaller batches, or raise batch.bytes.max of the topic: `tg topic alter TOPIC --set batch.bytes.max=N`"),
    }
}

fn topic_body(refusal: &TopicRefusal) -> ErrorBody {
    match refusal {
        TopicRefusal::Invalid { problems } => {
            error(ErrorCode::InvalidTopic, problems.join("; ")).hint("correct what is named and ask again")
        }
        TopicRefusal::Exists { name } => {
            error(ErrorCode::TopicExists, format!("topic {name} exists already"))
                .hint("choose another name, or use it as it is")
        }
        TopicRefusal::Unknown { name } => error(ErrorCode::UnknownTopic, format!("there is no topic {name}"))
            .hint("list the topics with `tg topic list`"),
        TopicRefusal::TooMany { what, limit, current } => {
            error(ErrorCode::LimitReached, format!("the limit of {what} is reached"))
                .limited(what, to_i64(*limit as u64), to_i64(*current as u64))
                .hint("delete topics that are not needed, or use fewer partitions")
        }
    }
}

fn producer_body(refusal: &producer::Refusal) -> ErrorBody {
    match refusal {
        producer::Refusal::OutOfSequence { expected, found } => {
            let cause = format!("the producer's next sequence is {expected}, {found} came");
            error(ErrorCode::OutOfSequence, cause)
                .limited("sequence", i64::from(expected.0), i64::from(found.0))
                .hint("send the batches in order; what was acked from memory only may have been lost in a crash")
        }
        producer::Refusal::UnknownProducer { producer } => {
            error(ErrorCode::UnknownProducer, format!("producer {producer} is not known here (any more)"))
                .hint("ask for a new producer id and begin with sequence 0")
        }
        producer::Refusal::StaleProducer { current } => {
            error(ErrorCode::StaleProducer, format!("epoch {current} of this producer has been seen"))
                .limited("producer epoch", i64::from(current.0), i64::from(current.0))
                .hint("another instance of this producer is at work: stop this one")
        }
        producer::Refusal::MixedProducers => {
            error(ErrorCode::BatchInvalid, "one produce holds batches of several producers".to_owned())
                .hint("send them in produces of their own")
        }
        producer::Refusal::TooManyBatches { limit } => {
            let limit = to_i64(*limit as u64);
            error(ErrorCode::BatchInvalid, "one produce holds more batches than are remembered".to_owned())
                .limited("idempotence.window", limit, limit)
                .hint("send fewer batches in one produce")
        }
    }
}

fn disk_full(shortage: &Shortage) -> ErrorBody {
    let body = error(ErrorCode::DiskFull, shortage.to_string());
    match shortage {
        Shortage::BelowFloor { free_bytes, needed_bytes } => body
            .limited("bytes free on the drive, at least", to_i64(*needed_bytes), to_i64(*free_bytes))
            .hint(
                "free space, shorten retention or delete topics; produce goes on by itself then. The broker's \
                 free_space_floor sets the limit",
            ),
        Shortage::Files { limit, current } => body
            .limited("data files of a shard", i64::from(*limit), to_i64(*current as u64))
            .hint("shorten retention or delete topics, or start the broker with more --shards; produce goes on by itself then"),
        Shortage::NoFile(fault) if !fault.is_full() => {
            body.hint("the drive fails: look at its health and the kernel's log, then start the broker again")
        }
        Shortage::NoFile(_) => body.hint("free space, shorten retention or delete topics; produce goes on by itself then"),
    }
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Refusal {
        Refusal::Malformed(error)
    }
}

impl From<Unsupported> for Refusal {
    fn from(unsupported: Unsupported) -> Refusal {
        Refusal::Unsupported(unsupported)
    }
}

impl From<BatchError> for Refusal {
    fn from(error: BatchError) -> Refusal {
        Refusal::Batch(error)
    }
}

impl From<AppendRefused> for Refusal {
    fn from(refused: AppendRefused) -> Refusal {
        match refused {
            // The shard has the partition in its table: its log is about to go or to come.
            AppendRefused::UnknownLog => {
                Refusal::NotReady { state: "making or removing the partition's log" }
            }
            AppendRefused::Producer(refusal) => Refusal::Producer(refusal),
            AppendRefused::NoRoom { reason, wanted, room } => Refusal::NoRoom { reason, wanted, room },
            AppendRefused::TooManyProducers { limit, current } => {
                let what =
                    "batches that a shard remembers of producers, each counted with its topic's whole window";
                Refusal::Limit { what, limit: limit as u64, current: current as u64 }
            }
            AppendRefused::DiskFull(shortage) => Refusal::DiskFull(shortage),
            AppendRefused::Unknown { from, fault } => Refusal::Stopped { from, fault },
            AppendRefused::ReadOnly { cause } => Refusal::ReadOnly { cause },
        }
    }
}

impl Shard {
    pub(super) fn names(&self) -> Names<'_> {
        Names { topics: &self.topics, advertised: &self.advertised }
    }

    /// Answers a request with an error frame.
    pub(super) fn refuse(&mut self, id: ConnectionId, correlation: u32, api_number: u8, refusal: &Refusal) {
        self.stats.refusals += 1;
        let body = refusal.body(self.names());
        self.send(id, |out| body.encode(api_number, correlation, out));
    }

    /// Answers a request that has nothing to say but that it was done.
    pub(super) fn reply_done(&mut self, id: ConnectionId, correlation: u32, api: Api) {
        self.send(id, |out| Done.encode(api, correlation, out));
    }

    /// Answers a request of a connection that was asked of a shard, this one or another.
    pub(super) fn reply_answer(
        &mut self,
        id: ConnectionId,
        correlation: u32,
        api: Api,
        answer: Result<Answer, Refusal>,
    ) {
        self.connection_answered(id);
        match answer {
            Ok(Answer::Produce(None)) => {}
            Ok(Answer::Produce(Some(reply))) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::ListOffsets(reply)) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::DeleteRecords(reply)) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::OffsetCommit(reply)) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::OffsetFetch(reply)) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::CreateTopic(reply)) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::ProducerInit(reply)) => self.send(id, |out| reply.encode(correlation, out)),
            Ok(Answer::Done) => self.reply_done(id, correlation, api),
            Ok(Answer::Describe(_) | Answer::Counters(_)) => {
                unreachable!("only gathered, never a reply of its own")
            }
            Err(refusal) => self.refuse(id, correlation, api.number(), &refusal),
        }
    }
}
