//! One partition of the fake broker.

use std::collections::{HashMap, VecDeque};

use tidegate_protocol::api::error::ErrorBody;
use tidegate_protocol::batch::{self, BatchView};
use tidegate_protocol::error_code::ErrorCode;
use tidegate_protocol::ids::{LeaderEpoch, Offset, ProducerId, Sequence};

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) start: i64,
    pub(crate) end: i64,
    /// First offset, one past the last, bytes.
    pub(crate) batches: Vec<(i64, i64, Vec<u8>)>,
    pub(crate) producers: HashMap<i64, Known>,
}

/// Of a producer: epoch, next sequence, and the last batches as (sequence, base offset).
type Known = (i16, i32, VecDeque<(i32, i64)>);

impl Log {
    /// Takes a batch as a broker does.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(i64, i64), Box<ErrorBody>> {
        let view = BatchView::parse(bytes).unwrap();
        view.check_from_client(u32::MAX).unwrap();
        view.verify_crc().unwrap();
        let header = *view.header();
        let count = i64::from(header.records_count);
        if header.producer_id != ProducerId::NONE {
            let sequence = header.base_sequence.0;
            let known = self.producers.get(&header.producer_id.0);
            let epoch = header.producer_epoch.0;
            let (expected, last) = match known {
                None if sequence != 0 => return Err(Box::new(ErrorBody::of(ErrorCode::UnknownProducer))),
                Some((known, ..)) if *known > epoch => {
                    return Err(Box::new(ErrorBody::of(ErrorCode::StaleProducer)));
                }
                Some((known, expected, last)) if *known == epoch => (*expected, last.clone()),
                _ => (0, VecDeque::new()),
            };
            if let Some((_, base)) = last.iter().find(|(known, _)| *known == sequence) {
                return Ok((*base, count));
            }
            if sequence != expected {
                let (limit, current) = (i64::from(expected), i64::from(sequence));
                return Err(Box::new(ErrorBody {
                    limit,
                    current,
                    ..ErrorBody::of(ErrorCode::OutOfSequence)
                }));
            }
            let mut last = last;
            last.push_back((sequence, self.end));
            if last.len() > 5 {
                last.pop_front();
            }
            let next = Sequence(sequence).plus(header.records_count).0;
            self.producers.insert(header.producer_id.0, (epoch, next, last));
        }
        let base = self.end;
        let mut bytes = bytes.to_vec();
        batch::set_place(&mut bytes, Offset(base), LeaderEpoch(0));
        self.batches.push((base, base + count, bytes));
        self.end += count;
        Ok((base, count))
    }

    /// Loses what was stored from `offset` on, as a relaxed topic does in a crash.
    pub(crate) fn lose_from(&mut self, offset: i64) {
        self.batches.retain(|&(base, ..)| base < offset);
        self.end = self.batches.last().map_or(self.start, |&(_, end, _)| end);
        for (_, next, last) in self.producers.values_mut() {
            while last.back().is_some_and(|&(_, base)| base >= offset) {
                *next = last.pop_back().unwrap().0;
            }
        }
    }
}
