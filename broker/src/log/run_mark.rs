//! What a run says of itself, and what the journal says of it.

use tidegate_protocol::disk::entry::{ProducerNote, RunMark};
use tidegate_protocol::disk::run::RunHeader;
use tidegate_protocol::extent::ExtentHeader;
use tidegate_protocol::ids::ClusterId;

use super::segment::Place;

/// The header of a run of these extents.
pub(super) fn run_header(
    cluster: ClusterId,
    place: &Place,
    extents: &[(usize, ExtentHeader)],
    bytes: usize,
) -> RunHeader {
    let (first, last) = (extents[0].1, extents[extents.len() - 1].1);
    RunHeader {
        cluster,
        file: place.file,
        generation: place.generation,
        sequence: place.run_sequence,
        previous_crc: place.previous_crc,
        log: first.log,
        base: first.base,
        end: last.end,
        bytes: bytes as u32,
        extents: extents.len() as u32,
        append_first_ms: first.append_time_ms,
        append_last_ms: last.append_time_ms,
        max_timestamp_ms: extents.iter().map(|(_, h)| h.max_timestamp_ms).max().unwrap_or(i64::MIN),
    }
}

/// What the journal says about a run.
pub(super) fn mark_of(header: &RunHeader, at: u64, crc: u32, producers: Vec<ProducerNote>) -> RunMark {
    RunMark {
        log: header.log,
        base: header.base,
        end: header.end,
        file: header.file,
        generation: header.generation,
        at,
        bytes: header.bytes,
        crc,
        run_sequence: header.sequence,
        append_first_ms: header.append_first_ms,
        append_last_ms: header.append_last_ms,
        max_timestamp_ms: header.max_timestamp_ms,
        producers,
    }
}
