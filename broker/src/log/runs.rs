//! Large data: runs of a log's extents, straight into its data file.
//!
//! A run holds the log's small extents, which lie in the journal alone until then, and behind them what is pending. The frame
//! of the cycle gets its mark.

use std::ops::Range;

use tidegate_protocol::disk::checkpoint::ExtentPlace;
use tidegate_protocol::disk::entry::{ASSIGN_BYTES, Entry, ProducerNote, RunMark, run_mark_bytes};
use tidegate_protocol::disk::run::{RUN_HEADER_BYTES, RunHeader, run_bytes};
use tidegate_protocol::extent::{EXTENT_HEADER_BYTES, ExtentHeader};
use tidegate_protocol::ids::{ClusterId, FileId, Offset};
use tidegate_reactor::buffer::{Buffer, View};
use tidegate_reactor::op::File;

use super::Logs;
use super::append::Pending;
use super::cycle::{Draft, Item, extents_of, fill_extent};
use super::recent::{BufferId, Settled, TailExtent};
use super::segment::{Place, PlaceFlush, Purpose};
use super::state::LogIndex;

#[derive(Debug)]
pub(super) struct BuiltRun {
    pub(super) file: FileId,
    pub(super) io: File,
    pub(super) flush: PlaceFlush,
    pub(super) at: u64,
    pub(super) view: View,
    pub(super) buffer: BufferId,
}

/// A part of a run.
#[derive(Clone, Debug)]
enum Piece {
    Small(ExtentPlace),
    Fresh(Range<usize>),
}

impl Logs {
    /// Writes runs of a log's small extents and pending batches, as far as there are places for them.
    pub(super) fn place_runs(&mut self, index: LogIndex, purpose: Purpose, draft: &mut Draft) {
        let log = self.log(index);
        let (id, segment_bytes) = (log.id, log.options.segment_bytes);
        let fresh = extents_of(&log.pending, log.pending_placed, self.limits.extent_bytes_max);
        let pieces: Vec<Piece> =
            log.small.iter().map(|e| Piece::Small(*e)).chain(fresh.into_iter().map(Piece::Fresh)).collect();
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (count, bytes) = self.run_of(index, rest);
            let (run, rest_of) = rest.split_at(count);
            let notes = match run.last() {
                Some(Piece::Fresh(range)) => range.end - self.log(index).pending_placed,
                Some(Piece::Small(_)) | None => 0,
            };
            if !draft.fits(ASSIGN_BYTES + run_mark_bytes(notes))
                || draft.run_bytes >= 2 * self.limits.frame_bytes_max
            {
                break;
            }
            let base = self.base_of(index, &run[0]);
            let Some(place) = self.segments.place(id, base, bytes as u32, segment_bytes, purpose) else {
                break;
            };
            self.place_run(index, run, bytes, place, draft);
            rest = rest_of;
        }
        self.note_age(index);
    }

    /// How many of `pieces` one run takes, and its bytes.
    fn run_of(&self, index: LogIndex, pieces: &[Piece]) -> (usize, usize) {
        let log = self.log(index);
        let mut extent_bytes = 0;
        let mut count = 0;
        for piece in pieces {
            let more = match piece {
                Piece::Small(place) => place.bytes as usize,
                Piece::Fresh(range) => {
                    EXTENT_HEADER_BYTES + log.pending[range.clone()].iter().map(|p| p.len).sum::<usize>()
                }
            };
            if count > 0 && run_bytes(extent_bytes + more) > self.limits.run_bytes_max {
                break;
            }
            extent_bytes += more;
            count += 1;
        }
        (count, run_bytes(extent_bytes))
    }

    fn base_of(&self, index: LogIndex, piece: &Piece) -> Offset {
        match piece {
            Piece::Small(place) => Offset(place.base),
            Piece::Fresh(range) => self.log(index).pending[range.start].base,
        }
    }

    /// Lays out one run, and lets the log's state and tail follow.
    fn place_run(
        &mut self,
        index: LogIndex,
        pieces: &[Piece],
        bytes: usize,
        place: Place,
        draft: &mut Draft,
    ) {
        let sequence = self.journal.next_sequence();
        let epoch = self.leader_epoch();
        let mut buffer = Buffer::for_filling(bytes);
        let log = self.logs[index.0 as usize].as_deref_mut().expect("a log with pieces exists");
        let memory = buffer.memory_mut();
        let mut at = RUN_HEADER_BYTES;
        let mut extents = Vec::with_capacity(pieces.len());
        let mut producers = Vec::new();
        for piece in pieces {
            let header = match piece {
                Piece::Small(small) => {
                    let source = log.tail.extent(Offset(small.base)).expect("small extents are in the tail");
                    memory[at..at + small.bytes as usize].copy_from_slice(&source.view);
                    source.header
                }
                Piece::Fresh(range) => {
                    let batches = &log.pending[range.clone()];
                    producers.extend(batches.iter().filter_map(Pending::note));
                    fill_extent(&mut memory[at..], log, range.clone(), epoch, &self.staging)
                }
            };
            extents.push((at, header));
            at += header.total_bytes();
        }
        let header = run_header(self.journal.identity().cluster, &place, &extents, bytes);
        let crc = header.finish(&mut memory[..bytes], at);
        buffer.set_filled(bytes);
        let (capacity, view) = (buffer.capacity(), buffer.freeze());
        let buffer = self.memory.charge(capacity);
        for ((at, header), piece) in extents.into_iter().zip(pieces) {
            let view = view.slice(at..at + header.total_bytes());
            match piece {
                Piece::Small(_) => log.tail.replace(header.base, view, buffer, &mut self.memory),
                Piece::Fresh(_) => log.tail.push(TailExtent { header, view, buffer }, &mut self.memory),
            }
        }
        let mark = mark_of(&header, place.at, crc, producers);
        let small_before = (log.small_bytes, log.small.len());
        log.settle(&mark).expect("a run continues its log");
        self.small_bytes -= small_before.0 - log.small_bytes;
        self.small_count -= small_before.1 - log.small.len();
        if let Some(Piece::Fresh(range)) = pieces.last() {
            log.pending_placed = range.end;
        }
        self.counts.runs += 1;
        self.memory.settled(Settled { log: index, upto: mark.end, cycle: sequence });
        if let Some(assign) = place.assign {
            self.segments.apply_assign(&assign).expect("the table chose the file itself");
            draft.push(Item::Entry(Entry::Assign(assign)), ASSIGN_BYTES);
        }
        self.segments.apply_run(&mark).expect("the table chose the place itself");
        let cost = run_mark_bytes(mark.producers.len());
        draft.push(Item::Entry(Entry::Run(mark)), cost);
        let (file, io, flush, at) = (place.file, place.io, place.flush, place.at);
        draft.run_bytes += bytes;
        draft.runs.push(BuiltRun { file, io, flush, at, view, buffer });
    }
}

/// The header of a run of these extents.
fn run_header(
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
fn mark_of(header: &RunHeader, at: u64, crc: u32, producers: Vec<ProducerNote>) -> RunMark {
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
