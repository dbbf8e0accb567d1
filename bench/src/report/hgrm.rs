//! The percentile log of HdrHistogram (`.hgrm`), as its plotters read it. Values in milliseconds.

use std::fmt::Write as _;

use crate::latency::Latencies;

/// The whole file.
pub fn text(latencies: &Latencies) -> String {
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    for point in latencies.curve() {
        let value = point.micros as f64 / 1e3;
        let _ = write!(text, "{value:>12.3} {:>14.12} {:>10}", point.quantile, point.count);
        // The last line has no finite fourth column; the format leaves it out.
        if point.quantile < 1.0 {
            let _ = write!(text, " {:>14.2}", 1.0 / (1.0 - point.quantile));
        }
        text.push('\n');
    }
    let summary = latencies.summary();
    let (mean, deviation) = (summary.mean_us / 1e3, latencies.deviation() / 1e3);
    let _ = writeln!(text, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]");
    let (max, count) = (summary.max_us as f64 / 1e3, summary.count);
    let _ = writeln!(text, "#[Max     = {max:>12.3}, Total count    = {count:>12}]");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_rising_percentiles_and_ends_with_the_totals() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|ms| latencies.record(ms * 1000));
        let text = text(&latencies);
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert!(rows.len() > 20);
        assert!(rows.windows(2).all(|pair| pair[0][1] <= pair[1][1] && pair[0][2] <= pair[1][2]));
        let last = rows.last().unwrap();
        assert_eq!((last.len(), last[1], last[2]), (3, 1.0, 1000.0));
        assert!((last[0] - 1000.0).abs() < 1.0);
        assert!(text.lines().last().unwrap().contains("Total count    =         1000"));
    }
}
