//! Two results against each other: ratios with a confidence interval from a bootstrap over intervals or rounds.
//!
//! Neighbouring seconds of one run resemble each other, so whole blocks of them are drawn (circular block bootstrap, Politis
//! and Romano 1992): drawing single seconds would claim more confidence than there is. With few samples even this is
//! too sure; the result says how many there were.

use serde::Serialize;
use serde_json::Value;

use crate::payload::step;

/// Draws of the bootstrap.
const DRAWS: usize = 10_000;
/// Fewer samples on a side than this allow no statement.
pub const SAMPLES_MIN: usize = 3;

/// One figure of both results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Which.
    pub figure: String,
    /// Its mean in the first result.
    pub first: f64,
    /// Its mean in the second.
    pub second: f64,
    /// Second by first.
    pub ratio: f64,
    /// 95 % of the draws lie between these.
    pub low: f64,
    /// As above.
    pub high: f64,
    /// Samples of each side.
    pub samples: (usize, usize),
}

impl Comparison {
    /// What it shows: nothing, if 1 lies in the interval.
    pub fn verdict(&self) -> &'static str {
        match (self.low > 1.0, self.high < 1.0) {
            (true, _) => "higher",
            (_, true) => "lower",
            _ => "no difference shown",
        }
    }
}

/// Compares all figures that both results have samples of, in the order of the first.
///
/// # Errors
/// A result has no samples, they have no figure in common, or there are fewer than [`SAMPLES_MIN`] of each.
pub fn compare(first: &Value, second: &Value) -> Result<Vec<Comparison>, String> {
    let samples = |result: &Value, which: &str| {
        let samples = result["samples"].as_object().cloned();
        samples.ok_or_else(|| format!("the {which} file has no `samples`: it is no result of `tg bench`"))
    };
    let (first, second) = (samples(first, "first")?, samples(second, "second")?);
    let mut comparisons = Vec::new();
    let mut short = None;
    for (figure, mine) in &first {
        let Some(theirs) = second.get(figure) else { continue };
        let (mine, theirs) = (numbers(mine), numbers(theirs));
        let least = mine.len().min(theirs.len());
        if least < SAMPLES_MIN {
            short.get_or_insert((figure.clone(), least));
            continue;
        }
        comparisons.extend(ratio(figure, &mine, &theirs));
    }
    match (comparisons.is_empty(), short) {
        (false, _) => Ok(comparisons),
        (true, Some((figure, least))) => Err(format!(
            "{figure} has {least} samples, at least {SAMPLES_MIN} are needed: measure for longer"
        )),
        (true, None) => Err("the two results have no figure in common".into()),
    }
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// The ratio of the means with its interval; none if a mean of the first is 0.
fn ratio(figure: &str, first: &[f64], second: &[f64]) -> Option<Comparison> {
    let (mean_first, mean_second) = (mean(first), mean(second));
    if mean_first == 0.0 {
        return None;
    }
    // The same seed always: whoever repeats the comparison gets the same interval.
    let mut state = 0x5eed_5eed_5eed_5eed;
    let mut ratios: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            let (a, b) = (resampled_mean(first, &mut state), resampled_mean(second, &mut state));
            (a != 0.0).then(|| b / a)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize];
    Some(Comparison {
        figure: figure.to_owned(),
        first: mean_first,
        second: mean_second,
        ratio: mean_second / mean_first,
        low: at(0.025),
        high: at(0.975),
        samples: (first.len(), second.len()),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean of as many samples as there are, drawn in blocks that may go round the end.
fn resampled_mean(values: &[f64], state: &mut u64) -> f64 {
    let count = values.len();
    let block = (count as f64).cbrt().ceil() as usize;
    let mut sum = 0.0;
    let mut drawn = 0;
    while drawn < count {
        *state = step(*state);
        let begin = (*state % count as u64) as usize;
        let length = block.min(count - drawn);
        sum += (begin..begin + length).map(|index| values[index % count]).sum::<f64>();
        drawn += length;
    }
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn noisy(mean: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = step(state);
                mean * (0.95 + 0.1 * (state % 1000) as f64 / 1000.0)
            })
            .collect()
    }

    fn of(values: &[f64]) -> Value {
        json!({ "samples": { "records_per_s": values } })
    }

    #[test]
    fn a_real_difference_is_shown_and_lies_in_its_interval() {
        let found = compare(&of(&noisy(1000.0, 30, 3)), &of(&noisy(1200.0, 30, 5))).unwrap();
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.verdict(), one.samples), ("higher", (30, 30)));
        assert!(
            one.low < one.ratio && one.ratio < one.high && one.low < 1.2 && 1.2 < one.high + 0.02,
            "{one:?}"
        );
        assert!(one.high - one.low < 0.1, "{one:?}");
    }

    #[test]
    fn noise_alone_shows_no_difference() {
        let mut wrong = 0;
        for seed in 1..=100 {
            let found = compare(&of(&noisy(1000.0, 20, seed)), &of(&noisy(1000.0, 20, seed + 1000))).unwrap();
            wrong += usize::from(found[0].verdict() != "no difference shown");
        }
        assert!(
            wrong <= 15,
            "an interval of 95 % misses about 5 of 100, a little more with 20 samples: {wrong}"
        );
    }

    #[test]
    fn samples_that_resemble_their_neighbours_make_the_interval_wider() {
        let shuffled: Vec<f64> = (0..64).map(|i| if i % 2 == 0 { 900.0 } else { 1100.0 }).collect();
        let in_runs: Vec<f64> = (0..64).map(|i| if (i / 16) % 2 == 0 { 900.0 } else { 1100.0 }).collect();
        let width = |values: &[f64]| {
            let one = ratio("x", values, &[1000.0; 64]).unwrap();
            one.high - one.low
        };
        assert!(width(&in_runs) > 1.5 * width(&shuffled), "{} {}", width(&in_runs), width(&shuffled));
    }

    #[test]
    fn what_cannot_be_compared_is_explained() {
        let good = of(&[1.0, 2.0, 3.0]);
        assert!(compare(&json!({}), &good).unwrap_err().contains("first"));
        assert!(compare(&good, &of(&[1.0])).unwrap_err().contains("at least 3"));
        assert!(compare(&good, &json!({ "samples": { "x": [] } })).unwrap_err().contains("in common"));
    }
}
