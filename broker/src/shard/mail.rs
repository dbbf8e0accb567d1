//! What shards tell each other, and what the control threads tell a shard. Only owned bytes travel.
//!
//! A request about something that another shard owns is one [`Ask`] there and one [`Answer`] back. The shard that owns it
//! treats a letter like a request of its own connections; only the [`Asker`] differs.

use tidegate_protocol::api::Api;
use tidegate_protocol::api::offset::{
    DeleteRecordsReply, DeleteRecordsRequest, ListOffsetsReply, ListOffsetsRequest, OffsetCommitReply,
    OffsetCommitRequest, OffsetFetchReply, OffsetFetchRequest,
};
use tidegate_protocol::api::produce::{ProduceReply, ProduceRequest};
use tidegate_protocol::api::producer::{ProducerInitReply, ProducerInitRequest};
use tidegate_protocol::api::topic::{
    AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicRequest, PartitionDescription,
};
use tidegate_protocol::ids::{ShardId, TopicId, TopicPartition};
use tidegate_protocol::internal::MetadataRecord;
use tidegate_reactor::buffer::Buffer;
use tidegate_reactor::op::{Op, ShardIndex};

use super::connection::ConnectionId;
use super::reply::Refusal;
use super::{Phase, Shard};
use crate::log::notice::Notice;

/// From the control threads to a shard, in the letter of an `Event::Order`.
#[derive(Debug)]
pub enum Order {
    /// Take no more work, finish what is under way, flush, write a checkpoint and end the loop.
    Stop,
}

/// From a shard to the control threads, in the letter of an `Op::Report`.
#[derive(Debug)]
pub enum Report {
    /// The shard has its topics and serves.
    Serving {
        /// Which.
        shard: ShardId,
    },
    /// What is stored is damaged.
    Damaged {
        /// On which shard.
        shard: ShardId,
        /// What: topic, partition, offsets, file.
        what: String,
    },
    /// The shard cannot serve.
    Failed {
        /// Which.
        shard: ShardId,
        /// Why, and what to do.
        cause: String,
    },
    /// Something has begun or ended that an operator should know.
    Notice {
        /// Of which shard.
        shard: ShardId,
        /// What.
        notice: Notice,
    },
}

/// From shard to shard.
#[derive(Debug)]
pub(super) enum Mail {
    /// Travels with a handed-over socket: the bytes that were read from it, the hello first.
    HandOver { bytes: Vec<u8> },
    /// Please do this.
    Ask { request: u64, ask: Ask },
    /// It is done, or not.
    Answer { request: u64, answer: Result<Answer, Refusal> },
    /// From shard 0: the table of topics, or what has changed in it, is durable.
    Topics { version: u64, whole: bool, records: Vec<MetadataRecord> },
    /// To shard 0: the logs of this version are here.
    TopicsSeen { version: u64 },
}

/// What one shard does for another.
#[derive(Debug)]
pub(super) enum Ask {
    Produce { request: ProduceRequest, body: Buffer },
    ListOffsets(ListOffsetsRequest),
    DeleteRecords(DeleteRecordsRequest),
    OffsetCommit(OffsetCommitRequest),
    OffsetFetch(OffsetFetchRequest),
    CreateTopic(CreateTopicRequest),
    DeleteTopic(DeleteTopicRequest),
    AlterTopic(AlterTopicRequest),
    ProducerInit(ProducerInitRequest),
    Describe(Vec<TopicPartition>),
    Counters,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    /// None: at acks=0 there is nothing to say.
    Produce(Option<ProduceReply>),
    ListOffsets(ListOffsetsReply),
    DeleteRecords(DeleteRecordsReply),
    OffsetCommit(OffsetCommitReply),
    OffsetFetch(OffsetFetchReply),
    CreateTopic(CreateTopicReply),
    Done,
    ProducerInit(ProducerInitReply),
    Describe(Vec<(TopicId, PartitionDescription)>),
    Counters(Vec<(String, i64)>),
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A connection of this shard.
    Connection { id: ConnectionId, correlation: u32, api: Api },
    /// Another shard.
    Shard { shard: ShardId, request: u64 },
    /// A request of this shard that needs several answers.
    Gather { gather: u64, shard: ShardId },
}

/// A request that another shard has not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedElsewhere {
    asker: Asker,
    // Of its batches, if it is a produce: they may wait there for room.
    produce_bytes: usize,
}

impl Shard {
    /// Whether a produce of so many bytes has to wait because that shard has not answered for as many as it may owe.
    pub(super) fn forwards_too_much(&self, to: ShardId, bytes: usize) -> bool {
        let to = usize::from(to.0);
        let mailed = self.produce_mailed[to];
        (mailed > 0 && mailed + bytes > self.limits.mail_produce_bytes_max)
            || self.mail_under_way[to] >= self.limits.mail_max
    }

    /// Has `ask` done by the shard that it concerns.
    pub(super) fn ask(&mut self, asker: Asker, to: ShardId, ask: Ask, ops: &mut Vec<Op>) {
        if to == self.me {
            return self.asked(asker, ask, ops);
        }
        let under_way = self.mail_under_way[usize::from(to.0)];
        if under_way >= self.limits.mail_max {
            let limit = self.limits.mail_max as u64;
            let refusal =
                Refusal::Limit { what: "letters to another shard", limit, current: under_way as u64 };
            return self.answer(asker, Err(refusal), ops);
        }
        self.requests += 1;
        let request = self.requests;
        let produce_bytes = match &ask {
            Ask::Produce { body, .. } => body.len(),
            _ => 0,
        };
        self.produce_mailed[usize::from(to.0)] += produce_bytes;
        self.asked_elsewhere.insert(request, AskedElsewhere { asker, produce_bytes });
        self.post(to, Mail::Ask { request, ask }, ops);
    }

    pub(super) fn post(&mut self, to: ShardId, mail: Mail, ops: &mut Vec<Op>) {
        self.mail_under_way[usize::from(to.0)] += 1;
        ops.push(Op::Mail { to: ShardIndex(to.0), letter: Box::new(mail) });
    }

    pub(super) fn mail_taken(&mut self, to: ShardIndex) {
        let under_way = &mut self.mail_under_way[usize::from(to.0)];
        *under_way = under_way.checked_sub(1).expect("a letter is taken once");
    }

    pub(super) fn mail_came(&mut self, from: ShardIndex, mail: Mail, ops: &mut Vec<Op>) {
        let from = ShardId(from.0);
        match mail {
            // It travels with a socket, never alone.
            Mail::HandOver { .. } => {}
            Mail::Ask { request, ask } => {
                let asker = Asker::Shard { shard: from, request };
                match (self.phase, &ask) {
                    // A produce that is refused takes its turn behind those that wait.
                    (Phase::Serving, _) | (_, Ask::Produce { .. }) => self.asked(asker, ask, ops),
                    (
                        Phase::Starting | Phase::Draining | Phase::Flushing | Phase::Closing | Phase::Failed,
                        _,
                    ) => {
                        let refusal = self.not_ready();
                        self.answer(asker, Err(refusal), ops);
                    }
                }
            }
            Mail::Answer { request, answer } => {
                if let Some(asked) = self.asked_elsewhere.remove(&request) {
                    self.produce_mailed[usize::from(from.0)] -= asked.produce_bytes;
                    self.answer(asked.asker, answer, ops);
                }
            }
            Mail::Topics { version, whole, records } => {
                self.topics_came(whole, &records, ops);
                self.post(from, Mail::TopicsSeen { version }, ops);
            }
            Mail::TopicsSeen { version } => self.topics_seen(version, ops),
        }
    }

    fn asked(&mut self, asker: Asker, ask: Ask, ops: &mut Vec<Op>) {
        match ask {
            Ask::Produce { request, body } => {
                self.produce_by_mail(asker, request, body.freeze(), ops);
            }
            Ask::ListOffsets(request) => self.list_offsets(asker, request, ops),
            Ask::DeleteRecords(request) => self.delete_records(asker, request, ops),
            Ask::OffsetCommit(request) => self.offset_commit(asker, request, ops),
            Ask::OffsetFetch(request) => self.offset_fetch(asker, &request, ops),
            Ask::CreateTopic(request) => self.create_topic(asker, request, ops),
            Ask::DeleteTopic(request) => self.delete_topic(asker, &request, ops),
            Ask::AlterTopic(request) => self.alter_topic(asker, request, ops),
            Ask::ProducerInit(request) => self.producer_init(asker, &request, ops),
            Ask::Describe(logs) => {
                let answer = self.describe_logs(&logs);
                self.answer(asker, Ok(Answer::Describe(answer)), ops);
            }
            Ask::Counters => {
                let answer = self.counters();
                self.answer(asker, Ok(Answer::Counters(answer)), ops);
            }
        }
    }

    /// Gives whoever asked what came of it.
    pub(super) fn answer(&mut self, asker: Asker, answer: Result<Answer, Refusal>, ops: &mut Vec<Op>) {
        match asker {
            Asker::Connection { id, correlation, api } => self.reply_answer(id, correlation, api, answer),
            Asker::Shard { shard, request } => self.post(shard, Mail::Answer { request, answer }, ops),
            Asker::Gather { gather, shard } => self.gathered(gather, shard, answer),
        }
    }
}
