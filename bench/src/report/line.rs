//! A run in one line, as kafka-producer-perf-test ends with.

use crate::latency::Summary;
use crate::series::Series;

/// `N records sent, X records/sec (Y MB/sec), A ms avg latency, B ms max latency, C ms 50th, D ms 95th, E ms 99th, F ms 99.9th.`
///
/// As there, MB are of 2^20 bytes, and the count is that of the whole window.
pub fn perf_test(series: &Series) -> String {
    let Summary { mean_us, max_us, p50_us, p95_us, p99_us, p999_us, .. } = series.latency.summary();
    let ms = |micros: u64| micros as f64 / 1e3;
    format!(
        "{} records sent, {:.6} records/sec ({:.2} MB/sec), {:.2} ms avg latency, {:.2} ms max latency, {:.2} ms 50th, \
         {:.2} ms 95th, {:.2} ms 99th, {:.2} ms 99.9th.",
        series.records(),
        series.records_per_s(),
        series.mib_per_s(),
        mean_us / 1e3,
        ms(max_us),
        ms(p50_us),
        ms(p95_us),
        ms(p99_us),
        ms(p999_us),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::sample_outcome;

    #[test]
    fn the_line_is_that_of_kafkas_tool() {
        let line = perf_test(&sample_outcome(2_000).published.unwrap().series);
        assert_eq!(
            line,
            "3000 records sent, 1000.000000 records/sec (1.00 MB/sec), 1.33 ms avg latency, 2.00 ms max latency, 1.00 ms \
             50th, 2.00 ms 95th, 2.00 ms 99th, 2.00 ms 99.9th."
        );
    }
}
