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
    let ran = tg(&["-o", "json", "dump", dir.path().to_str().unwrap()]).ok();
    let found: Vec<(String, u64)> = objects(&ran)
        .iter()
        .map(|s| (s["kind"].as_str().unwrap().to_owned(), s["at"].as_u64().unwrap()))
        .collect();
    let block = BLOCK as u64;
    let want = [
        ("superblock", 0),
        ("superblock", block),
        ("zeros", 0),
        ("frame", 2 * block),
        ("unknown", 3 * block),
        ("zeros", 4 * block),
        ("checkpoint", 0),
    ];
    assert_eq!(found, want.map(|(kind, at)| (kind.to_owned(), at)));
    let frame = objects(&ran).into_iter().find(|s| s["kind"] == "frame").unwrap();
    assert_eq!(frame["entries"][0]["offset"], 17);
    let human = tg(&["dump", dir.path().to_str().unwrap()]).ok();
    assert!(human.stdout.contains("frame 6:") && human.stdout.contains("from offset 17"), "{}", human.stdout);
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
}
