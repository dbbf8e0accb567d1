//! Record batches of any content come back, and no bytes make their readers panic.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_protocol::batch::{
    BatchBuilder, BatchOrigin, BatchView, Batches, HEADER_LEN, Record, set_append_time, set_place,
};
use tidegate_protocol::crc;
use tidegate_protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};

type Bytes = Option<Vec<u8>>;
type Content = (i64, Bytes, Bytes, Vec<(String, Bytes)>);

fn bytes() -> impl Strategy<Value = Bytes> {
    proptest::option::of(vec(any::<u8>(), 0..80))
}

fn contents() -> impl Strategy<Value = Vec<Content>> {
    vec((any::<i64>(), bytes(), bytes(), vec(("\\PC{0,10}", bytes()), 0..4)), 1..20)
}

fn push(builder: &mut BatchBuilder, (time, key, value, headers): &Content) {
    let headers = headers.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
    let before = builder.len();
    let expected = builder.len_of(*time, key.as_deref(), value.as_deref(), headers.clone());
    builder.push(*time, key.as_deref(), value.as_deref(), headers);
    assert_eq!(builder.len() - before, expected, "the length foretold is the length taken");
}

fn build(contents: &[Content], origin: BatchOrigin) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    contents.iter().for_each(|content| push(&mut builder, content));
    builder.finish(origin)
}

fn content_of(record: &Record<'_>) -> Content {
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let headers = record.headers().map(|h| (h.key_text().into_owned(), owned(h.value))).collect();
    (record.timestamp_ms, owned(record.key), owned(record.value), headers)
}

/// Reads whatever can be read.
fn read_all(bytes: &[u8]) {
    for batch in Batches::new(bytes).flatten() {
        let _ = batch.verify_crc();
        let _ = batch.check_from_client(1000);
        assert_eq!(batch.header().len, batch.bytes().len());
        let Ok(records) = batch.records() else { continue };
        assert!(records.size_hint().1.is_some_and(|most| most <= bytes.len()));
        for record in records.flatten() {
            assert!(record.headers().count() == record.headers_count());
        }
    }
}

proptest! {
    #[test]
    fn records_of_any_content_come_back(contents in contents(), id in any::<i64>(), epoch in any::<i16>(), sequence in any::<i32>()) {
        let origin = BatchOrigin {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch),
            base_sequence: Sequence(sequence),
        };
        let bytes = build(&contents, origin);
        let batch = BatchView::parse(&bytes).expect("built");
        batch.verify_crc().expect("built");
        let header = batch.header();
        prop_assert_eq!((header.producer_id.0, header.producer_epoch.0, header.base_sequence.0), (id, epoch, sequence));
        prop_assert_eq!(header.records_count as usize, contents.len());
        prop_assert_eq!(header.max_timestamp_ms, contents.iter().map(|c| c.0).max().expect("one at least"));
        let read: Vec<_> = batch.records().expect("plain").map(|r| content_of(&r.expect("built"))).collect();
        prop_assert_eq!(read, contents);
    }

    #[test]
    fn append_time_is_set_as_if_the_checksum_were_computed_anew(
        contents in contents(),
        time in any::<i64>(),
        base in 0i64..1 << 60,
        epoch in any::<i32>(),
    ) {
        let mut bytes = build(&contents, BatchOrigin::NONE);
        set_place(&mut bytes, Offset(base), LeaderEpoch(epoch));
        set_append_time(&mut bytes, time);
        let batch = BatchView::parse(&bytes).expect("still a batch");
        batch.verify_crc().expect("as if computed anew");
        prop_assert_eq!(batch.whole_crc(), crc::of(&bytes));
        prop_assert!(batch.records().expect("plain").all(|r| r.expect("good").timestamp_ms == time));
        prop_assert_eq!(batch.header().end_offset(), Offset(base + contents.len() as i64));
        // A second time: a batch that was patched can be patched again.
        set_append_time(&mut bytes, time.wrapping_add(1));
        BatchView::parse(&bytes).expect("still a batch").verify_crc().expect("as if computed anew");
    }

    #[test]
    fn any_bytes_are_batches_or_an_error(bytes in vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn a_changed_batch_is_read_or_refused(
        contents in contents(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in 0usize..30,
    ) {
        let mut bytes = build(&contents, BatchOrigin::NONE);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut).max(HEADER_LEN));
        read_all(&bytes);
    }
}
