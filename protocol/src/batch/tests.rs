use super::*;

type Triple = (i64, Option<&'static [u8]>, Option<&'static [u8]>);

const SAMPLE: [Triple; 4] = [
    (1_700_000_000_123, Some(b"key"), Some(b"value")),
    (1_700_000_000_100, None, Some(b"")),
    (1_700_000_000_999, Some(b""), None),
    (1_700_000_000_500, None, None),
];

fn build(origin: BatchOrigin) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    for (time, key, value) in SAMPLE {
        let before = builder.len();
        let expected = builder.len_of(time, key, value, []);
        builder.push(time, key, value, []);
        assert_eq!(builder.len() - before, expected);
    }
    builder.finish(origin)
}

fn refused(bytes: &[u8]) -> String {
    BatchView::parse(bytes).and_then(|b| b.check_from_client(1000)).expect_err("refused").to_string()
}

#[test]
fn records_come_back_with_null_distinct_from_empty() {
    let bytes = build(BatchOrigin::NONE);
    let batch = BatchView::parse(&bytes).expect("built");
    batch.verify_crc().expect("built");
    batch.check_from_client(1000).expect("built");
    assert_eq!(batch.header().max_timestamp_ms, 1_700_000_000_999);
    let read: Vec<_> = batch.records().expect("plain").map(|r| r.expect("built")).collect();
    assert_eq!(read.len(), SAMPLE.len());
    for (i, (record, (time, key, value))) in read.iter().zip(SAMPLE).enumerate() {
        assert_eq!((record.offset, record.timestamp_ms), (Offset(i as i64), time));
        assert_eq!((record.key, record.value, record.headers_count()), (key, value, 0));
    }
}

#[test]
fn headers_come_back_in_their_order() {
    let mut builder = BatchBuilder::new(b"before".to_vec());
    let headers = [("a", Some(&b"1"[..])), ("a", None), ("", Some(b""))];
    let expected = builder.len() + builder.len_of(5, None, Some(b"v"), headers);
    builder.push(5, None, Some(b"v"), headers);
    assert_eq!(builder.len(), expected);
    let bytes = builder.finish(BatchOrigin::NONE);
    assert_eq!(&bytes[..6], b"before");
    let batch = BatchView::parse(&bytes[6..]).expect("built");
    let record = batch.records().expect("plain").next().expect("one").expect("built");
    let read: Vec<_> = record.headers().map(|h| (h.key_text().into_owned(), h.value)).collect();
    let expected: Vec<_> = headers.map(|(key, value)| (key.to_owned(), value)).into();
    assert_eq!(read, expected);
}

#[test]
fn place_and_append_time_are_set_without_reading_the_records() {
    let mut bytes = build(BatchOrigin::NONE);
    bytes.extend_from_slice(b"another batch");
    set_place(&mut bytes, Offset(77), LeaderEpoch(3));
    set_append_time(&mut bytes, 1_800_000_000_000);
    let batch = BatchView::parse(&bytes).expect("still a batch");
    batch.verify_crc().expect("mended checksum equals a full computation");
    assert_eq!(batch.header().timestamp_type, TimestampType::Append);
    assert_eq!((batch.header().base_offset, batch.header().end_offset()), (Offset(77), Offset(81)));
    assert_eq!(batch.header().leader_epoch, LeaderEpoch(3));
    for record in batch.records().expect("plain") {
        assert_eq!(record.expect("good").timestamp_ms, 1_800_000_000_000);
    }
    assert_eq!(batch.whole_crc(), crc::of(batch.bytes()));
}

#[test]
fn bytes_of_a_record_are_replaced_by_its_front_alone() {
    let mut whole = build(BatchOrigin::NONE);
    let at = whole.windows(5).position(|bytes| bytes == b"value").expect("the first value");
    let mut front = whole[..at + 5].to_vec();
    replace_in_records(&mut front, at, b"VALUE");
    whole[..at + 5].copy_from_slice(&front);
    let batch = BatchView::parse(&whole).expect("still a batch");
    batch.verify_crc().expect("mended checksum equals a full computation");
    let first = batch.records().expect("plain").next().expect("a record").expect("good");
    assert_eq!(first.value, Some(&b"VALUE"[..]));
}

#[test]
fn a_batch_that_gets_another_origin_is_as_if_built_with_it() {
    let origin = |id, epoch, sequence| BatchOrigin {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(sequence),
    };
    let mut bytes = build(origin(7, 0, 1000));
    set_origin(&mut bytes, origin(7, 1, 0));
    assert_eq!(bytes, build(origin(7, 1, 0)));
}

#[test]
fn consecutive_batches_are_gone_through_and_an_error_ends_it() {
    let one = build(BatchOrigin::NONE);
    let mut bytes = [one.clone(), one.clone()].concat();
    assert_eq!(
        Batches::new(&bytes).map(|b| b.expect("good").bytes().len()).collect::<Vec<_>>(),
        [one.len(); 2]
    );
    let heads = [&one[..21], &one[..21]].concat();
    assert_eq!(heads_crc(&bytes), Ok(crc::of(&heads)));
    bytes.pop();
    let results: Vec<_> = Batches::new(&bytes).map(|b| b.is_ok()).collect();
    assert_eq!(results, [true, false]);
}

#[test]
fn a_flipped_bit_behind_the_head_is_noticed() {
    let good = build(BatchOrigin::NONE);
    for byte in CRC_AT..good.len() {
        let mut bad = good.clone();
        bad[byte] ^= 0x10;
        assert!(BatchView::parse(&bad).and_then(|b| b.verify_crc()).is_err(), "byte {byte}");
    }
}

#[test]
fn what_a_client_must_not_send_is_refused_by_name() {
    let origin = BatchOrigin {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(i32::MAX),
    };
    let good = build(origin);
    let batch = BatchView::parse(&good).expect("built");
    batch.check_from_client(1000).expect("built");
    assert_eq!(batch.header().last_sequence(), Sequence(2), "2^31-1 is followed by 0");

    // (what is changed: place and bytes, the answer)
    let cases: [(usize, &[u8], &str); 14] = [
        (21, &[0, 0x20], "attributes at byte 21: marks a control batch"),
        (21, &[0, 0x10], "attributes at byte 21: marks a transactional batch"),
        (21, &[0, 0x08], "attributes at byte 21: says append time"),
        (21, &[1, 0], "attributes at byte 21: has bits that are not known"),
        (21, &[0, 7], "compression at byte 21: has the unknown value 7"),
        (57, &[0, 0, 0, 0], "records_count at byte 57: is not at least 1"),
        (57, &[0, 0, 0, 3], "last_offset_delta at byte 23: is not records_count - 1"),
        (23, &[0, 0, 0, 4], "last_offset_delta at byte 23: is not records_count - 1"),
        (16, &[1], "magic at byte 16: has the unknown value 1"),
        (0, &[0xff], "base_offset at byte 0: is negative"),
        (43, &[0xff], "producer_id at byte 43: is below -1"),
        (51, &[0xff, 0xff], "producer_epoch at byte 51: is negative"),
        (53, &[0xff], "base_sequence at byte 53: is negative"),
        (8, &[0, 0, 0, 48], "length at byte 8: is 48, below the least value 49"),
    ];
    for (at, bytes, expected) in cases {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let answer = refused(&bad);
        assert!(answer.contains(expected), "{answer} should contain {expected}");
    }
    let many =
        [&good[..23], &1_000_000i32.to_be_bytes(), &good[27..57], &1_000_001i32.to_be_bytes(), &good[61..]];
    assert!(refused(&many.concat()).contains("more than the bytes behind the header can hold"));
    assert_eq!(
        batch.check_from_client(50),
        Err(BatchError::TooLarge { limit: 50, len: good.len() }),
        "the limit is inclusive and named"
    );
}

#[test]
fn a_record_that_lies_about_its_lengths_is_an_error_not_a_panic() {
    let good = build(BatchOrigin::NONE);
    for at in HEADER_LEN..good.len() {
        for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            let Ok(batch) = BatchView::parse(&bad) else { continue };
            for record in batch.records().expect("plain").flatten() {
                assert!(record.headers().count() <= bad.len());
            }
        }
    }
}
