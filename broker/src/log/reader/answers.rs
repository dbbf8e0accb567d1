//! What cold reads have brought, as answers of the logs.

use super::Done;
use super::search;
use crate::log::Logs;
use crate::log::answer::{Outcome, ReadRefused};
use crate::log::state::LostFrames;

impl Logs {
    /// Passes on what cold reads have brought; a search that has found nothing goes on in memory.
    pub(in crate::log) fn pass_reads_on(&mut self) {
        for (ticket, done) in self.reader.take_done() {
            if self.scrub.awaits(ticket) {
                if let Done::Batches(result) = done {
                    self.on_read_again(result);
                }
                continue;
            }
            self.outcomes.push_back(match done {
                Done::Batches(result) => {
                    let log = self.reads.remove(&ticket).expect("every read ends once");
                    let result = result.map_err(|refused| match (refused, self.by_id.get(&log)) {
                        // A trim has overtaken the read: the range is that of now.
                        (ReadRefused::OutOfRange { .. }, Some(index)) => {
                            let log = self.logs[index.0 as usize].as_deref().expect("a named log exists");
                            ReadRefused::OutOfRange { start: log.start, end: log.durable }
                        }
                        (ReadRefused::OutOfRange { .. }, None) => ReadRefused::UnknownLog,
                        (other, _) => other,
                    });
                    let result = result.map_err(|refused| in_doubt(refused, self.condition.lost()));
                    Outcome::ReadDone { ticket, result }
                }
                Done::Found(result) => {
                    let find = self.finds.remove(&ticket).expect("every search ends once");
                    let log = self.logs[find.log.0 as usize].as_deref();
                    let result = result.and_then(|found| match (found, log) {
                        (Some(found), _) => Ok(found),
                        // What was in memory when the search began may have left it.
                        (None, Some(log)) if log.tail.base().is_none_or(|base| base > find.upto) => {
                            Err(ReadRefused::Busy)
                        }
                        (None, Some(log)) => search::find_in_memory(log, find.time, self.condition.lost()),
                        (None, None) => Err(ReadRefused::UnknownLog),
                    });
                    let result = result.map_err(|refused| in_doubt(refused, self.condition.lost()));
                    Outcome::FindDone { ticket, result }
                }
            });
        }
    }
}

/// The frames that a shard has lost may have said that a file was freed: what is not found in it then need not be damage to it.
fn in_doubt(refused: ReadRefused, lost: Option<&LostFrames>) -> ReadRefused {
    match (refused, lost) {
        (ReadRefused::Damaged { file, bytes, from, upto }, Some(lost)) => {
            let file = format!("{file}, as of before {lost}");
            ReadRefused::Damaged { file, bytes, from, upto }
        }
        (refused, _) => refused,
    }
}
