//! Structures as lines for people and as objects for scripts.

use serde_json::{Value, json};
use tidegate_protocol::batch::BatchHeader;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader, FileOwner, FileState};
use tidegate_protocol::disk::entry::{Carriage, Entry, Start};
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::{FileId, ProducerId, TopicId, TopicPartition};

use crate::output::{bytes_text, grouped};
use crate::time;

/// The first line of a checkpoint. One without a frame was made with its journal and has not been taken at any time.
pub(super) fn checkpoint_text(header: &CheckpointHeader, body: &CheckpointBody) -> String {
    let incarnation = header.incarnation.0;
    if header.sequence.0 == 0 && body.wall_ms == 0 {
        return format!(
            "checkpoint of a new journal: incarnation {incarnation}, no frame yet, not taken yet"
        );
    }
    format!(
        "checkpoint after frame {}: incarnation {incarnation}, {} logs, {} files, taken {}",
        header.sequence.0,
        body.logs.len(),
        body.files.len(),
        time::render_ms(body.wall_ms),
    )
}

pub(super) fn batch_text(header: &BatchHeader) -> String {
    let producer = match header.producer_id {
        ProducerId::NONE => String::new(),
        id => format!(", producer {id} epoch {} sequence {}", header.producer_epoch, header.base_sequence),
    };
    format!(
        "batch: offsets {} to {}, {} records, {}, compression {:?}, times {} to {}{producer}",
        header.base_offset,
        header.end_offset(),
        grouped(header.records_count.max(0) as u64),
        bytes_text(header.len as u64),
        header.compression,
        time::render_ms(header.base_timestamp_ms),
        time::render_ms(header.max_timestamp_ms),
    )
}

pub(super) fn entry_text(entry: &Entry<'_>) -> String {
    match entry {
        Entry::Extent { how, bytes } => {
            let how = if *how == Carriage::Carried { "carried " } else { "" };
            match ExtentHeader::decode(bytes) {
                Ok(header) => format!("{how}{}", extent_text(&header)),
                Err(error) => format!("{how}extent, DAMAGED: {error}"),
            }
        }
        Entry::Run(mark) => format!(
            "run mark: {}, offsets {} to {}, in file {} generation {} at byte {}, {}",
            log_text(mark.log),
            mark.base,
            mark.end,
            file_name(mark.file),
            mark.generation.0,
            mark.at,
            bytes_text(mark.bytes.into()),
        ),
        Entry::Start(start) if start.offset == Start::REMOVED => format!("removed: {}", log_text(start.log)),
        Entry::Start(start) => format!("start: {} from offset {}", log_text(start.log), start.offset),
        Entry::Cut(cut) => format!("cut: {} at offset {}", log_text(cut.log), cut.offset),
        Entry::Assign(assign) => format!(
            "assign: file {} generation {} to {} from offset {}",
            file_name(assign.file),
            assign.generation.0,
            log_text(assign.log),
            assign.base,
        ),
        Entry::Free(free) => format!("free: file {} generation {}", file_name(free.file), free.generation.0),
        Entry::Recovered(recovered) => format!(
            "recovered: incarnation {}, last kept frame {}",
            recovered.incarnation.0, recovered.last_kept.0
        ),
    }
}

pub(super) fn entry_json(entry: &Entry<'_>) -> Value {
    match entry {
        Entry::Extent { how, bytes } => {
            let mut object = match ExtentHeader::decode(bytes) {
                Ok(header) => extent_json(&header),
                Err(error) => json!({ "damaged": error.to_string() }),
            };
            object["entry"] = json!("extent");
            object["carried"] = json!(*how == Carriage::Carried);
            object
        }
        Entry::Run(mark) => json!({
            "entry": "run", "log": log_json(mark.log), "base": mark.base.0, "end": mark.end.0,
            "data_file": file_name(mark.file), "generation": mark.generation.0, "at": mark.at, "bytes": mark.bytes,
            "run_sequence": mark.run_sequence, "append_first_ms": mark.append_first_ms,
            "append_last_ms": mark.append_last_ms, "producers": mark.producers.len(),
        }),
        Entry::Start(start) if start.offset == Start::REMOVED => {
            json!({ "entry": "removed", "log": log_json(start.log) })
        }
        Entry::Start(start) => {
            json!({ "entry": "start", "log": log_json(start.log), "offset": start.offset.0 })
        }
        Entry::Cut(cut) => json!({ "entry": "cut", "log": log_json(cut.log), "offset": cut.offset.0 }),
        Entry::Assign(assign) => json!({
            "entry": "assign", "data_file": file_name(assign.file), "generation": assign.generation.0,
            "log": log_json(assign.log), "base": assign.base.0,
        }),
        Entry::Free(free) => {
            json!({ "entry": "free", "data_file": file_name(free.file), "generation": free.generation.0 })
        }
        Entry::Recovered(recovered) => json!({
            "entry": "recovered", "incarnation": recovered.incarnation.0, "last_kept": recovered.last_kept.0,
        }),
    }
}

pub(super) fn extent_text(header: &ExtentHeader) -> String {
    format!(
        "extent: {}, offsets {} to {}, {} batches, {}, epoch {}, appended {}",
        log_text(header.log),
        header.base,
        header.end,
        grouped(header.batch_count.into()),
        bytes_text(header.byte_len.into()),
        header.leader_epoch,
        time::render_ms(header.append_time_ms),
    )
}

pub(super) fn extent_json(header: &ExtentHeader) -> Value {
    json!({
        "log": log_json(header.log), "base": header.base.0, "end": header.end.0, "batches": header.batch_count,
        "bytes": header.byte_len, "leader_epoch": header.leader_epoch.0, "append_time_ms": header.append_time_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
    })
}

pub(super) fn logs_json(body: &CheckpointBody) -> Vec<Value> {
    let log = |log: &checkpoint::LogState| {
        json!({
            "topic_id": TopicId(log.topic).to_string(), "partition": log.partition, "start": log.start,
            "appended": log.appended, "append_time_ms": log.append_time_ms, "extents": log.extents.len(),
            "producers": log.producers.len(),
        })
    };
    body.logs.iter().map(log).collect()
}

pub(super) fn files_json(body: &CheckpointBody) -> Vec<Value> {
    let owner = |owner: &FileOwner| {
        json!({
            "topic_id": TopicId(owner.topic).to_string(), "partition": owner.partition, "base": owner.base,
            "end": owner.end, "written": owner.written, "runs": owner.runs, "sealed": owner.sealed,
        })
    };
    let file = |file: &FileState| {
        json!({
            "data_file": file_name(FileId(file.file)), "generation": file.generation, "bytes": file.bytes,
            "freed_by": file.freed_by, "owner": file.owner.as_ref().map(owner),
        })
    };
    body.files.iter().map(file).collect()
}

pub(super) fn file_text(file: &FileState) -> String {
    let (name, size) = (file_name(FileId(file.file)), bytes_text(file.bytes));
    match &file.owner {
        None => format!("file {name} generation {}: {size}, free", file.generation),
        Some(owner) => format!(
            "file {name} generation {}: {size}, log {}/{}, offsets {} to {}, {} in {} runs{}",
            file.generation,
            topic_text(TopicId(owner.topic)),
            owner.partition,
            owner.base,
            owner.end,
            bytes_text(owner.written),
            owner.runs,
            if owner.sealed { ", sealed" } else { "" },
        ),
    }
}

pub(super) fn log_text(log: TopicPartition) -> String {
    format!("log {}/{}", topic_text(log.topic), log.partition)
}

/// The broker's own topics by what they hold: the names of the others stand in records of the first.
pub(super) fn topic_text(topic: TopicId) -> String {
    match topic {
        TopicId::METADATA => "(topics)".to_owned(),
        TopicId::OFFSETS => "(consumer offsets)".to_owned(),
        topic => topic.to_string(),
    }
}

pub(super) fn log_json(log: TopicPartition) -> Value {
    json!({ "topic_id": log.topic.to_string(), "partition": log.partition.0 })
}

/// As the file is named in its directory.
pub(super) fn file_name(file: FileId) -> String {
    format!("{:08x}-{:08x}", file.0 >> 32, file.0 & 0xffff_ffff)
}
