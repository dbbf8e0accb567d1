//! Batches that real Kafka clients wrote are read back: `fixtures/make.py` made them.
#![cfg(feature = "compression")]

use tidegate_protocol::batch::compression::{Packer, records};
use tidegate_protocol::batch::{BatchBuilder, BatchOrigin, BatchView, Batches, Compression, TimestampType};
use tidegate_protocol::ids::{Offset, ProducerId, Sequence};

const START_MS: i64 = 1_700_000_000_000;
const COUNT: usize = 60;
const CODECS: [(&str, Compression); 5] = [
    ("none", Compression::None),
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

#[derive(Debug, PartialEq, Eq)]
struct Expected {
    offset: Offset,
    timestamp_ms: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

/// The same list as in `make.py`.
fn expected() -> Vec<Expected> {
    let record = |i: usize| Expected {
        offset: Offset(i as i64),
        timestamp_ms: START_MS + i as i64 * 3 - (i as i64 % 2) * 5,
        key: match i % 5 {
            0 => None,
            1 => Some(Vec::new()),
            _ => Some(format!("key-{}", i % 7).into_bytes()),
        },
        value: match i % 11 {
            3 => None,
            4 => Some(Vec::new()),
            _ => Some(format!("value {i} ").repeat(1 + i % 9).into_bytes()),
        },
        headers: match i % 4 {
            1 => vec![
                ("trace".to_owned(), Some(format!("id-{i}").into_bytes())),
                ("trace".to_owned(), Some(Vec::new())),
                ("nothing".to_owned(), None),
            ],
            _ => Vec::new(),
        },
    };
    (0..COUNT).map(record).collect()
}

fn fixture(client: &str, codec: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/{client}-{codec}.batch", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read(batch: &BatchView<'_>) -> Vec<Expected> {
    let mut scratch = Vec::new();
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let records = records(batch, 1 << 20, &mut scratch).expect("a real client wrote it");
    let record = |record: Result<tidegate_protocol::batch::Record<'_>, _>| {
        let record = record.expect("a real client wrote it");
        Expected {
            offset: record.offset,
            timestamp_ms: record.timestamp_ms,
            key: owned(record.key),
            value: owned(record.value),
            headers: record.headers().map(|h| (h.key_text().into_owned(), owned(h.value))).collect(),
        }
    };
    records.map(record).collect()
}

fn build(codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    for record in expected() {
        let headers = record.headers.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
        builder.push(record.timestamp_ms, record.key.as_deref(), record.value.as_deref(), headers);
    }
    builder.finish_packed(BatchOrigin::NONE, codec, &mut Packer::default()).expect("built")
}

#[test]
fn batches_of_real_clients_are_accepted_and_read() {
    for client in ["kafka-python", "librdkafka"] {
        for (name, codec) in CODECS {
            let bytes = fixture(client, name);
            let batch = BatchView::parse(&bytes).expect("a real client wrote it");
            assert_eq!(Batches::new(&bytes).count(), 1, "{client} {name}");
            batch.verify_crc().expect("a real client wrote it");
            batch.check_from_client(1 << 20).expect("a real client wrote it");
            let header = batch.header();
            assert_eq!(header.compression, codec, "{client} {name}");
            assert_eq!(header.timestamp_type, TimestampType::Create);
            assert_eq!((header.base_offset, header.end_offset()), (Offset(0), Offset(COUNT as i64)));
            assert_eq!(read(&batch), expected(), "{client} {name}");
        }
    }
}

#[test]
fn librdkafka_numbers_its_batches_and_writes_snappy_raw() {
    let bytes = fixture("librdkafka", "snappy");
    let batch = BatchView::parse(&bytes).expect("a real client wrote it");
    assert!(batch.header().producer_id > ProducerId::NONE);
    assert_eq!(batch.header().base_sequence, Sequence(0));
    assert!(!batch.records_bytes().starts_with(b"\x82SNAPPY"));
    let xerial = fixture("kafka-python", "snappy");
    assert!(BatchView::parse(&xerial).expect("whole").records_bytes().starts_with(b"\x82SNAPPY"));
}

#[test]
fn our_batch_of_the_same_records_is_the_same_bytes() {
    // Leader epoch: kafka-python leaves 0 where we say unknown; the broker sets it, and no checksum covers it.
    let mut theirs = fixture("kafka-python", "none");
    theirs[12..16].copy_from_slice(&(-1i32).to_be_bytes());
    assert_eq!(build(Compression::None), theirs);
}

#[test]
fn what_we_pack_holds_the_same_records() {
    for (name, codec) in CODECS {
        if codec == Compression::Zstd && !cfg!(feature = "zstd") {
            continue;
        }
        let bytes = build(codec);
        let batch = BatchView::parse(&bytes).expect("built");
        assert_eq!(batch.header().compression, codec, "{name}");
        assert_eq!(read(&batch), expected(), "{name}");
    }
}

#[test]
fn a_changed_byte_behind_a_mended_checksum_is_an_error_not_a_panic() {
    for (name, _) in CODECS {
        let good = fixture("kafka-python", name);
        for at in (21..good.len()).step_by(3) {
            for value in [0, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let Ok(batch) = BatchView::parse(&bad) else { continue };
                let mut scratch = Vec::new();
                if let Ok(records) = records(&batch, 1 << 20, &mut scratch) {
                    assert!(records.take_while(Result::is_ok).count() <= bad.len() * 100);
                }
                assert!(scratch.capacity() <= 4 << 20, "{name} took {}", scratch.capacity());
            }
        }
    }
}
