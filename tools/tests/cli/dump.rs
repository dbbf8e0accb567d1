//! `tg dump` on files made by hand, without a broker.

use tidegate_protocol::disk::BLOCK;
use tidegate_protocol::disk::checkpoint::{self, CheckpointBody, CheckpointHeader};
use tidegate_protocol::disk::entry::{Entry, Start};
use tidegate_protocol::disk::frame::{
    FRAME_HEADER_BYTES, FrameBuilder, FrameHeader, JournalIdentity, frame_bytes,
};
use tidegate_protocol::disk::superblock::{Layout, State, Superblock};
use tidegate_protocol::ids::{
    ClusterId, FrameSequence, Incarnation, JournalId, NodeId, Offset, PartitionId, TopicId, TopicPartition,
};

use crate::objects;
use crate::world::{TestDir, tg};

const IDENTITY: JournalIdentity =
    JournalIdentity { cluster: ClusterId([1; 16]), node: NodeId(0), journal: JournalId(1) };

fn superblock() -> Vec<u8> {
    let superblock = Superblock {
        sequence: 1,
        cluster: IDENTITY.cluster,
        node: IDENTITY.node,
        incarnation: Incarnation(1),
        journal_next: JournalId(2),
        layout: Layout { id: 1, journals: vec![JournalId(1)] },
        state: State::Current,
    };
    superblock.encode()
}

fn frame() -> Vec<u8> {
    let log = TopicPartition { topic: TopicId([9; 16]), partition: PartitionId(3) };
    let mut bytes = vec![0; frame_bytes(64)];
    let mut builder = FrameBuilder::new(&mut bytes);
    builder.push(&Entry::Start(Start { log, offset: Offset(17) }));
    builder.finish(FrameHeader {
        identity: IDENTITY,
        incarnation: Incarnation(1),
        sequence: FrameSequence(6),
        previous_hash: 1,
        mark: FrameSequence(5),
        bytes: 0,
        entries: 0,
        inner_crc: 0,
    });
    assert!(bytes.len() > FRAME_HEADER_BYTES);
    bytes
}

fn checkpoint() -> Vec<u8> {
    let header = CheckpointHeader {
        identity: IDENTITY,
        incarnation: Incarnation(1),
        sequence: FrameSequence(5),
        hash: 1,
        next_at: 0,
    };
    checkpoint::encode(&header, &CheckpointBody::default())
}

#[test]
fn every_structure_is_found_wherever_it_lies() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path().join("journal")).unwrap();
    std::fs::write(dir.path().join("superblock"), [superblock(), superblock()].concat()).unwrap();
    std::fs::write(dir.path().join("lock"), "not looked at").unwrap();
    let ring = [vec![0; 2 * BLOCK], frame(), vec![7; BLOCK], vec![0; BLOCK]].concat();
    std::fs::write(dir.path().join("journal/ring"), ring).unwrap();
    std::fs::write(dir.path().join("journal/slot"), checkpoint()).unwrap();
    let journal = dir.path().join("journal");
    let ran = tg(&["-o", "json", "dump", journal.to_str().unwrap()]).ok();
    let found: Vec<(String, u64)> = objects(&ran)
        .iter()
        .filter(|s| s["kind"] != "summary")
        .map(|s| (s["kind"].as_str().unwrap().to_owned(), s["at"].as_u64().unwrap()))
        .collect();
    let block = BLOCK as u64;
    let want =
        [("zeros", 0), ("frame", 2 * block), ("unknown", 3 * block), ("zeros", 4 * block), ("checkpoint", 0)];
    assert_eq!(found, want.map(|(kind, at)| (kind.to_owned(), at)));
    let frame = objects(&ran).into_iter().find(|s| s["kind"] == "frame").unwrap();
    assert_eq!(frame["entries"][0]["offset"], 17);
    let human = tg(&["dump", journal.to_str().unwrap()]).ok();
    assert!(human.stdout.contains("frame 6:") && human.stdout.contains("from offset 17"), "{}", human.stdout);
    assert!(human.stdout.ends_with("2 structures, 0 damaged\n"), "{}", human.stdout);
    let blocks = tg(&["dump", dir.path().join("superblock").to_str().unwrap()]).ok();
    assert!(blocks.stdout.contains("superblock A") && blocks.stdout.contains("superblock B"));
    // As a whole it lacks what its superblock names.
    let whole = tg(&["dump", dir.path().to_str().unwrap()]);
    assert_eq!(whole.code, 6, "{}", whole.stderr);
    assert!(whole.stdout.contains("00000001-ring-00 at byte 0: is missing"), "{}", whole.stdout);
}

#[test]
fn damage_is_named_and_the_rest_is_shown() {
    let dir = TestDir::new();
    let mut bytes = [superblock(), superblock()].concat();
    bytes[100] ^= 1;
    let path = dir.path().join("superblock");
    std::fs::write(&path, bytes).unwrap();
    let ran = tg(&["dump", path.to_str().unwrap()]);
    assert_eq!(ran.code, 6, "{}", ran.stderr);
    assert!(ran.stdout.contains("DAMAGED") && ran.stdout.contains("superblock B"), "{}", ran.stdout);
    assert!(ran.stderr.contains("at byte 0"), "{}", ran.stderr);
    assert!(ran.stdout.ends_with("2 structures, 1 damaged\n"), "{}", ran.stdout);
}

#[test]
fn what_is_no_data_directory_is_refused_and_not_listed() {
    let dir = TestDir::new();
    std::fs::write(dir.path().join("notes.txt"), "of somebody").unwrap();
    for path in [dir.path().to_owned(), dir.path().join("notes.txt")] {
        let ran = tg(&["dump", path.to_str().unwrap()]);
        assert_eq!(ran.code, 5, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("data directory") && ran.stderr.contains("fix:"), "{}", ran.stderr);
    }
    assert!(!tg(&["dump", dir.path().to_str().unwrap()]).stdout.contains("notes.txt"));
}

#[test]
fn a_later_format_is_no_damage() {
    let dir = TestDir::new();
    let mut block = superblock();
    block[12] = 2;
    let crc = tidegate_protocol::crc::of(&block[12..]);
    for (i, byte) in block[8..12].iter_mut().enumerate() {
        *byte = (crc >> (8 * i)) as u8;
    }
    std::fs::write(dir.path().join("superblock"), [&block[..], &block[..]].concat()).unwrap();
    for path in [dir.path().to_owned(), dir.path().join("superblock")] {
        let ran = tg(&["dump", path.to_str().unwrap()]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stdout.contains("format 2, this build reads up to 1"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("DAMAGED") && ran.stderr.contains("later version"), "{}", ran.stderr);
    }
}

#[test]
fn a_checkpoint_that_was_made_with_its_journal_was_taken_at_no_time() {
    let dir = TestDir::new();
    let header = CheckpointHeader {
        identity: IDENTITY,
        incarnation: Incarnation(1),
        sequence: FrameSequence(0),
        hash: 0,
        next_at: 0,
    };
    let path = dir.path().join("slot");
    std::fs::write(&path, checkpoint::encode(&header, &CheckpointBody::default())).unwrap();
    let ran = tg(&["dump", path.to_str().unwrap()]).ok();
    assert!(ran.stdout.contains("not taken yet") && !ran.stdout.contains("1970"), "{}", ran.stdout);
}
