//! What a reader of the topic has seen, in a form that two readers can compare: for each series the count, the order and
//! a digest of every byte.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

/// One record as it enters the digest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// The series.
    pub(crate) key: &'a [u8],
    /// The sample.
    pub(crate) value: &'a [u8],
    /// Of the header `host`.
    pub(crate) host: &'a [u8],
    /// Of the header `unit`.
    pub(crate) unit: &'a [u8],
    /// The sampling time, nanoseconds since the Unix epoch.
    pub(crate) t_ns: u64,
}

/// All series of one reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    series: HashMap<Vec<u8>, Series>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Series {
    records: u64,
    /// Each record's hash goes over the one before: another order is another chain.
    chain: u64,
    last_ns: u64,
    /// Records whose time did not rise.
    disorder: u64,
}

/// The digest of everything, for people and for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Total {
    /// Records of all series.
    pub(crate) records: u64,
    /// Series.
    pub(crate) series: usize,
    /// Records that were not later than the one before them in their series.
    pub(crate) disorder: u64,
    /// Over all series, whatever their order.
    pub(crate) digest: u64,
}

impl Digest {
    /// Adds the next record of its series.
    pub(crate) fn add(&mut self, seen: Seen<'_>) {
        let series = match self.series.get_mut(seen.key) {
            Some(series) => series,
            None => self.series.entry(seen.key.to_vec()).or_default(),
        };
        // The standard hasher with its fixed keys: equal in every process of this executable, which is all that is needed.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(series.chain);
        for part in [seen.value, seen.host, seen.unit] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        series.chain = hasher.finish();
        series.disorder += u64::from(seen.t_ns <= series.last_ns);
        series.last_ns = seen.t_ns;
        series.records += 1;
    }

    /// Takes in the series of another part; no series is in both.
    pub(crate) fn join(&mut self, other: Digest) {
        for (key, series) in other.series {
            let before = self.series.insert(key, series);
            assert!(before.is_none(), "each series has one reader");
        }
    }

    /// The digest of everything.
    pub(crate) fn total(&self) -> Total {
        let mut keys: Vec<&Vec<u8>> = self.series.keys().collect();
        keys.sort();
        let mut hasher = DefaultHasher::new();
        let mut total = Total { records: 0, series: keys.len(), disorder: 0, digest: 0 };
        for key in keys {
            let series = &self.series[key];
            hasher.write_usize(key.len());
            hasher.write(key);
            hasher.write_u64(series.records);
            hasher.write_u64(series.chain);
            total.records += series.records;
            total.disorder += series.disorder;
        }
        total.digest = hasher.finish();
        total
    }

    /// What differs between what was sampled (`self`) and what was read; none: nothing.
    pub(crate) fn difference(&self, read: &Digest, who: &str) -> Option<String> {
        let mut wrong: Vec<&Vec<u8>> = self
            .series
            .iter()
            .filter(|(key, series)| read.series.get(*key) != Some(series))
            .map(|(key, _)| key)
            .chain(read.series.keys().filter(|key| !self.series.contains_key(*key)))
            .collect();
        wrong.sort();
        let disorder = read.total().disorder;
        let Some(first) = wrong.first() else {
            return (disorder > 0)
                .then(|| format!("{who}: {disorder} records are out of order in their series"));
        };
        let records = |digest: &Digest| digest.series.get(*first).map_or(0, |series| series.records);
        Some(format!(
            "{who}: {} of {} series differ, {} records were sampled and {} read, {disorder} of them out of order; the \
             first series that differs is {} with {} sampled and {} read",
            wrong.len(),
            self.series.len(),
            self.total().records,
            read.total().records,
            String::from_utf8_lossy(first),
            records(self),
            records(read),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(records: &[(&str, u64, &str)]) -> Digest {
        let mut digest = Digest::default();
        for (key, t_ns, value) in records {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            digest.add(Seen { key, value, host: b"h", unit: b"u", t_ns: *t_ns });
        }
        digest
    }

    #[test]
    fn order_matters_within_a_series_and_not_across() {
        let one = digest(&[("a", 1, "x"), ("b", 1, "y"), ("a", 2, "z")]);
        let same = digest(&[("b", 1, "y"), ("a", 1, "x"), ("a", 2, "z")]);
        assert_eq!(one.total(), same.total());
        assert_eq!(one.difference(&same, "reader"), None);
        let swapped = digest(&[("a", 2, "z"), ("a", 1, "x"), ("b", 1, "y")]);
        assert_ne!(one.total(), swapped.total());
        assert_eq!(swapped.total().disorder, 1);
    }

    #[test]
    fn a_lost_a_doubled_and_a_changed_record_are_each_found() {
        let sampled = digest(&[("a", 1, "x"), ("a", 2, "y"), ("b", 1, "z")]);
        let lost = digest(&[("a", 1, "x"), ("b", 1, "z")]);
        let doubled = digest(&[("a", 1, "x"), ("a", 2, "y"), ("a", 2, "y"), ("b", 1, "z")]);
        let changed = digest(&[("a", 1, "x"), ("a", 2, "Y"), ("b", 1, "z")]);
        let invented = digest(&[("a", 1, "x"), ("a", 2, "y"), ("b", 1, "z"), ("c", 1, "z")]);
        for (read, series) in [(lost, "a"), (doubled, "a"), (changed, "a"), (invented, "c")] {
            let text = sampled.difference(&read, "reader").unwrap();
            assert!(text.contains(&format!("differs is {series} ")), "{text}");
        }
    }
}
