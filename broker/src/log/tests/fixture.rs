//! A data directory of format 1, kept as it was written once: every version to come has to open it.
//!
//! The directory lies in one file, without the blocks that hold only zeros. It is never written again: a later format gets
//! a fixture of its own.

use std::path::Path;

use tidegate_protocol::batch::Batches;
use tidegate_protocol::ids::Offset;
use tidegate_reactor::disk::Disk;

use super::node::{Node, ROOT, log};
use crate::testdisk::TestDrive;

/// Two shards, twenty logs of nine records: small ones in journals, larger ones in data files, one log trimmed.
const FIXTURE: &[u8] = include_bytes!("../../../../tests/fixtures/v1/directory.bin");
const BLOCK: usize = 4096;

/// Per file: length of its name, name, its length, number of blocks, and each block with its place.
fn unpack(mut bytes: &[u8]) -> Node {
    let mut node = Node { drive: TestDrive::with_dir(ROOT), ..Node::default() };
    for dir in ["journal", "files"] {
        node.drive.disk.create_dir(&Path::new(ROOT).join(dir)).unwrap();
    }
    while !bytes.is_empty() {
        let name_len = take_number(&mut bytes);
        let name = String::from_utf8(bytes.split_off(..name_len).unwrap().to_vec()).unwrap();
        let mut file = vec![0; take_number(&mut bytes)];
        for _ in 0..take_number(&mut bytes) {
            let at = take_number(&mut bytes) * BLOCK;
            file[at..at + BLOCK].copy_from_slice(bytes.split_off(..BLOCK).unwrap());
        }
        node.drive.disk.put(&name, &file);
    }
    node
}

fn take_number(bytes: &mut &[u8]) -> usize {
    std::str::from_utf8(bytes.split_off(..8).unwrap()).unwrap().parse().unwrap()
}

#[test]
fn a_directory_of_format_1_opens_for_ever() {
    let mut node = unpack(FIXTURE);
    let mut records = 0;
    node.each_shard(|node, logs, _, _| {
        for n in 0..20 {
            let Some(positions) = logs.positions(log(n)) else { continue };
            let start = Offset(if n == 4 { 7 } else { 0 });
            assert_eq!((positions.start, positions.durable), (start, Offset(9)), "log {n}");
            let mut from = start;
            while from < positions.durable {
                let read = node.read(logs, log(n), from, positions.durable);
                let bytes: Vec<u8> = read.views.iter().flat_map(|view| view.to_vec()).collect();
                for batch in Batches::new(&bytes) {
                    for record in batch.unwrap().records().unwrap() {
                        let record = record.unwrap();
                        let len = if n % 4 == 0 { 6000 } else { 60 + usize::from(n) };
                        assert_eq!(record.key, Some(&log(n).topic.0[..]));
                        assert_eq!(record.value, Some(&vec![record.offset.0 as u8; len][..]));
                        assert_eq!(record.timestamp_ms, 1000);
                        records += 1;
                    }
                }
                from = read.end;
            }
        }
    });
    assert_eq!(records, 19 * 9 + 2);
}
