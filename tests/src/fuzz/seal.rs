//! Makes checksums and lengths of a changed input right again, so that the change gets past them to what lies behind.
//!
//! The layouts are those of docs/WIRE_FORMAT.md and docs/DISK_FORMAT.md. Where a structure is cut short, what is left of it is
//! left alone.

use tidegate_protocol::api::Api;
use tidegate_protocol::batch::HEAD_LEN;
use tidegate_protocol::disk::checkpoint::CHECKPOINT_HEADER_BYTES;
use tidegate_protocol::disk::entry::{ENTRY_HEADER_BYTES, entry_bytes};
use tidegate_protocol::disk::frame::FRAME_HEADER_BYTES;
use tidegate_protocol::disk::run::RUN_HEADER_BYTES;
use tidegate_protocol::disk::{BLOCK, whole_blocks};
use tidegate_protocol::extent::EXTENT_HEADER_BYTES;
use tidegate_protocol::frame::{LENGTH_LEN, PREFIX_LEN};

use crate::sim::random::Random;

const ENTRY_KIND_EXTENT: u8 = 1;

/// Wire frames back to back.
pub fn frames(random: &mut Random, mut rest: &mut [u8]) {
    while rest.len() >= PREFIX_LEN {
        let mut len = LENGTH_LEN + u32_at(rest, 0) as usize;
        if len < PREFIX_LEN || len > rest.len() {
            if random.chance(300_000) {
                return;
            }
            len = rest.len();
            put_u32(rest, 0, (len - LENGTH_LEN) as u32);
        }
        let (frame, behind) = rest.split_at_mut(len);
        seal_frame(random, frame);
        rest = behind;
    }
}

fn seal_frame(random: &mut Random, frame: &mut [u8]) {
    let head_len = usize::from(u16::from_le_bytes([frame[12], frame[13]]));
    let body_at = PREFIX_LEN + head_len;
    if body_at > frame.len() {
        return;
    }
    if [Api::Produce.number(), Api::Data.number()].contains(&frame[4]) && frame[6] == 0 {
        batches(random, &mut frame[body_at..]);
    } else if let Some(crc_at) = frame.len().checked_sub(4).filter(|at| *at >= body_at) {
        let crc = crc32c::crc32c(&frame[body_at..crc_at]);
        put_u32(frame, crc_at, crc);
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..16]), &frame[PREFIX_LEN..body_at]);
    put_u32(frame, 16, crc);
}

/// Record batches back to back.
pub fn batches(random: &mut Random, mut rest: &mut [u8]) {
    const LENGTH_END: usize = 12;
    while rest.len() > HEAD_LEN {
        let mut len = LENGTH_END + u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        if len < HEAD_LEN || len > rest.len() {
            if random.chance(300_000) {
                return;
            }
            len = rest.len();
            rest[8..12].copy_from_slice(&((len - LENGTH_END) as u32).to_be_bytes());
        }
        let (batch, behind) = rest.split_at_mut(len);
        let crc = crc32c::crc32c(&batch[HEAD_LEN..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        rest = behind;
    }
}

/// An extent at the front of `bytes`; returns its bytes, header included, if all of it is there.
pub fn extent(random: &mut Random, bytes: &mut [u8]) -> Option<usize> {
    if bytes.len() < EXTENT_HEADER_BYTES {
        return None;
    }
    let mut len = EXTENT_HEADER_BYTES + u32_at(bytes, 72) as usize;
    if len > bytes.len() && random.chance(700_000) {
        len = bytes.len();
        put_u32(bytes, 72, (len - EXTENT_HEADER_BYTES) as u32);
    }
    if len <= bytes.len() {
        let crc = crc32c::crc32c(&bytes[EXTENT_HEADER_BYTES..len]);
        put_u32(bytes, 76, crc);
    }
    end_crc(&mut bytes[..EXTENT_HEADER_BYTES]);
    (len <= bytes.len()).then_some(len)
}

/// Nothing: the input has no checksum that is checked before it is read.
pub fn nothing(_random: &mut Random, _bytes: &mut Vec<u8>) {}

/// Runs back to back. A header that says more bytes than there are goes to the end.
pub fn runs(random: &mut Random, bytes: &mut Vec<u8>) {
    let mut at = 0;
    while bytes.len() - at >= RUN_HEADER_BYTES {
        let len = u32_at(bytes, at + 68) as usize;
        let end = if len >= BLOCK && len <= bytes.len() - at { at + len } else { bytes.len() };
        let mut piece = bytes[at..end].to_vec();
        run(random, &mut piece);
        // A scan looks at headers alone: an extent may say any length and have the right checksum.
        let first = RUN_HEADER_BYTES..RUN_HEADER_BYTES + EXTENT_HEADER_BYTES;
        if random.chance(50_000) {
            put_u32(&mut piece[first.clone()], 72, random.below(bytes.len() as u64) as u32);
            end_crc(&mut piece[first]);
        }
        bytes.splice(at..end, piece.iter().copied());
        at += piece.len();
    }
}

/// A run at the front of `bytes`, which become whole blocks.
pub fn run(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.resize(whole_blocks(bytes.len().max(1)), 0);
    let mut len = u32_at(bytes, 68) as usize;
    if len != bytes.len() && random.chance(800_000) {
        len = bytes.len();
        put_u32(bytes, 68, len as u32);
    }
    if let Some(run) = bytes.get_mut(..len).filter(|run| run.len() >= RUN_HEADER_BYTES) {
        let extents = u32_at(run, 112);
        let (mut at, mut crc) = (RUN_HEADER_BYTES, 0);
        for _ in 0..extents {
            let Some(len) = extent(random, &mut run[at..]) else { break };
            crc = crc32c::crc32c_append(crc, &run[at..at + EXTENT_HEADER_BYTES]);
            at += len;
        }
        let pad = run.len() - at;
        if pad >= 8 && random.chance(800_000) {
            run[at..at + 4].copy_from_slice(b"TGpd");
            put_u32(run, at + 4, pad as u32);
        }
        crc = crc32c::crc32c_append(crc, &run[at..]);
        put_u32(run, 116, crc);
    }
    end_crc(&mut bytes[..RUN_HEADER_BYTES]);
}

/// A journal frame at the front of `bytes`, which become whole blocks.
pub fn journal_frame(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.resize(whole_blocks(bytes.len().max(1)), 0);
    let mut len = u32_at(bytes, 64) as usize;
    if len != bytes.len() && random.chance(800_000) {
        len = bytes.len();
        put_u32(bytes, 64, len as u32);
    }
    if let Some(frame) = bytes.get_mut(..len).filter(|frame| frame.len() >= FRAME_HEADER_BYTES) {
        let entries = u32_at(frame, 36);
        let (mut at, mut crc) = (FRAME_HEADER_BYTES, 0);
        for _ in 0..entries {
            let body = at + ENTRY_HEADER_BYTES;
            if body > frame.len() {
                break;
            }
            let body_len = u32_at(frame, at + 4) as usize;
            let end = at + entry_bytes(body_len);
            if end > frame.len() {
                break;
            }
            if frame[at] == ENTRY_KIND_EXTENT && body_len >= EXTENT_HEADER_BYTES {
                extent(random, &mut frame[body..body + body_len]);
                crc = crc32c::crc32c_append(crc, &frame[at..body + EXTENT_HEADER_BYTES]);
                crc = crc32c::crc32c_append(crc, &frame[body + body_len..end]);
            } else {
                crc = crc32c::crc32c_append(crc, &frame[at..end]);
            }
            at = end;
        }
        crc = crc32c::crc32c_append(crc, &frame[at..]);
        put_u32(frame, 68, crc);
    }
    end_crc(&mut bytes[..FRAME_HEADER_BYTES]);
}

/// A checkpoint at the front of `bytes`, which become whole blocks.
pub fn checkpoint(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.resize(whole_blocks(bytes.len().max(1)), 0);
    let room = bytes.len() - CHECKPOINT_HEADER_BYTES;
    let mut body = u64_at(bytes, 64);
    if body > room as u64 && random.chance(800_000) {
        body = random.between(0, room as u64);
        bytes[64..72].copy_from_slice(&body.to_le_bytes());
    }
    if body <= room as u64 {
        let end = whole_blocks(CHECKPOINT_HEADER_BYTES + body as usize);
        let crc = crc32c::crc32c(&bytes[CHECKPOINT_HEADER_BYTES..end]);
        put_u32(bytes, 36, crc);
    }
    end_crc(&mut bytes[..CHECKPOINT_HEADER_BYTES]);
}

/// A block of a superblock.
pub fn superblock(random: &mut Random, bytes: &mut Vec<u8>) {
    if random.chance(900_000) {
        bytes.resize(BLOCK, 0);
    }
    if bytes.len() > 12 {
        let crc = crc32c::crc32c(&bytes[12..]);
        put_u32(bytes, 8, crc);
    }
}

/// Puts the checksum over all before them into the last four bytes.
fn end_crc(header: &mut [u8]) {
    let at = header.len() - 4;
    let crc = crc32c::crc32c(&header[..at]);
    put_u32(header, at, crc);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
