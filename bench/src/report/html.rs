//! A result as one page: figures, facts and charts. It refers to nothing outside itself.

use std::fmt::Write as _;

use serde_json::Value;

use super::chart::{Chart, Line, Scale, amount, escaped};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;\
                     background:#fff}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;border-bottom:1px \
                     solid #ddd;text-align:left}svg{width:100%;height:auto;margin:1rem 0}svg text{font:12px system-ui,\
                     sans-serif;fill:#444}svg .title{font-weight:600;font-size:14px}.grid{stroke:#e4e4e4}.bad{color:#b00020}\
                     .good{color:#00662f}";

/// Facts in the order in which people ask.
const FACTS: [&str; 21] = [
    "durability",
    "level",
    "acks",
    "client",
    "loop",
    "rate",
    "partitions",
    "record_bytes",
    "batch_bytes_max",
    "seconds",
    "reactor",
    "kernel",
    "cpu",
    "drive",
    "filesystem",
    "flush_rule",
    "cpu_busy",
    "cpu_others",
    "load",
    "steal",
    "errors",
];

/// The page of one run, from its JSON.
pub fn run_page(run: &Value) -> String {
    let name = run["workload"].as_str().unwrap_or("run");
    let mut body = format!("<h1>tg bench {}</h1>\n", escaped(name));
    if run["valid"] == false {
        body += "<p class=\"bad\">Not valid: more than 2 % of the processors' time was stolen by other machines.</p>\n";
    }
    body += &figures(run);
    body += &facts(run);
    for chart in charts(run) {
        body += &chart.svg();
    }
    page(name, &body)
}

/// The page of a suite, from the JSON of its rows.
pub fn suite_page(rows: &[Value]) -> String {
    let mut body = String::from(
        "<h1>tg bench suite</h1>\n<table><tr><th>row</th><th>figure</th><th>value</th><th>limit</th><th>share</th>\
         <th>target</th><th></th></tr>\n",
    );
    for row in rows {
        for check in row["checks"].as_array().into_iter().flatten() {
            let text = |name: &str| escaped(check[name].as_str().unwrap_or_default());
            let class = match check["verdict"].as_str() {
                Some("holds") => "good",
                Some("told") => "",
                _ => "bad",
            };
            let _ = writeln!(
                body,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
                escaped(row["row"].as_str().unwrap_or_default()),
                text("what"),
                text("value_text"),
                text("limit_text"),
                text("share_text"),
                text("target_text"),
                text("verdict"),
            );
        }
    }
    body += "</table>\n";
    if let Some(first) = rows.first() {
        body += &facts(first);
    }
    page("suite", &body)
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>tg bench {}</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n",
        escaped(title)
    )
}

fn figures(run: &Value) -> String {
    let ms =
        |name: &str| run[name].as_f64().map_or("-".into(), |micros| format!("{} ms", amount(micros / 1e3)));
    let number = |name: &str| run[name].as_f64().map_or("-".into(), amount);
    let mut rows = vec![
        ("throughput", format!("{} MiB/s, {} records/s", number("mib_per_s"), number("records_per_s"))),
        ("p50 / p99", format!("{} / {}", ms("p50_us"), ms("p99_us"))),
        ("p99.9 / p99.99 / max", format!("{} / {} / {}", ms("p999_us"), ms("p9999_us"), ms("max_us"))),
    ];
    if let (Some(limit), Some(share)) = (run["limit"].as_str(), run["of_limit"].as_f64()) {
        let text = format!("{:.0} % of {limit}, {} MiB/s", share * 100.0, number("limit_mib_per_s"));
        rows.push(("of the limit", text));
    }
    let beside = &run["flush_loop"];
    if beside.is_object() {
        let ratio = |name: &str| beside[name].as_f64().map_or("-".into(), amount);
        rows.push((
            "by a plain write + flush loop",
            format!("p99 x {}, p99.9 x {}", ratio("p99_ratio"), ratio("p999_ratio")),
        ));
    }
    let rows =
        rows.iter().map(|(name, text)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escaped(text)));
    format!("<table>\n{}</table>\n", rows.collect::<String>())
}

fn facts(run: &Value) -> String {
    let mut table = String::from("<table>\n");
    for name in FACTS {
        let text = match &run[name] {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), amount),
            other => other.to_string(),
        };
        let _ = writeln!(table, "<tr><th>{}</th><td>{}</td></tr>", name.replace('_', " "), escaped(&text));
    }
    table + "</table>\n"
}

fn charts(run: &Value) -> Vec<Chart> {
    let mut charts =
        vec![over_time(run, "Throughput over time", "MiB/s", Scale::Linear, &[("MiB/s", "mib_per_s", 1.0)])];
    for reading in run["consumed"].as_array().into_iter().flatten() {
        let title = format!("Consumed over time: {}", reading["name"].as_str().unwrap_or_default());
        charts.push(over_time(reading, &title, "MiB/s", Scale::Linear, &[("MiB/s", "mib_per_s", 1.0)]));
    }
    let latency = [("p50", "p50_us", 1e3), ("p99", "p99_us", 1e3), ("max", "max_us", 1e3)];
    charts.push(over_time(run, "Latency over time, from the intended send", "ms", Scale::Log, &latency));
    let curve = run["curve"].as_array().into_iter().flatten();
    let points = curve.filter_map(|point| {
        let quantile = point["quantile"].as_f64().filter(|quantile| *quantile < 1.0)?;
        Some((1.0 / (1.0 - quantile), point["micros"].as_f64()? / 1e3))
    });
    charts.push(Chart {
        title: "Latency by percentile (10: p90, 100: p99, 1,000: p99.9)".into(),
        x: "1 / (1 - percentile)",
        y: "ms",
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        lines: vec![Line { name: "latency".into(), points: points.collect() }],
    });
    if let Some(steps) = run["steps"].as_array().filter(|steps| !steps.is_empty()) {
        let line = |name: &str, field: &str| {
            let points =
                steps.iter().filter_map(|step| Some((step["rate"].as_f64()?, step[field].as_f64()? / 1e3)));
            Line { name: name.into(), points: points.collect() }
        };
        charts.push(Chart {
            title: "Latency by load".into(),
            x: "records/s due",
            y: "ms",
            x_scale: Scale::Linear,
            y_scale: Scale::Log,
            lines: vec![line("p50", "p50_us"), line("p99", "p99_us"), line("p99.9", "p999_us")],
        });
    }
    charts
}

fn over_time(run: &Value, title: &str, y: &'static str, y_scale: Scale, of: &[(&str, &str, f64)]) -> Chart {
    let intervals = run["intervals"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |(name, field, unit): &(&str, &str, f64)| {
        let mut at = 0.0;
        let points = intervals.iter().filter_map(|interval| {
            at += interval["seconds"].as_f64()?;
            Some((at, interval[*field].as_f64()? / unit))
        });
        Line { name: (*name).to_owned(), points: points.collect() }
    };
    let lines = of.iter().map(line).collect();
    Chart { title: title.into(), x: "s", y, x_scale: Scale::Linear, y_scale, lines }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limits::Limit;
    use crate::report::json::{sample_outcome, sample_run};

    /// No address but the one that names SVG itself, and nothing that a browser would fetch.
    fn assert_self_contained(page: &str) {
        let without_xmlns = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in ["http:", "https:", "//", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!without_xmlns.contains(word), "{word}");
        }
    }

    #[test]
    fn a_page_of_a_run_is_self_contained_and_shows_its_charts() {
        let (outcome, limit) = (sample_outcome(50_000), Limit { name: "drive write".into(), mib_per_s: 4.0 });
        let mut json = sample_run(&outcome, &[("kernel".into(), "<6.18>".into())], &limit).to_json();
        json["steps"] = json!([{ "rate": 10.0, "p50_us": 1, "p99_us": 2, "p999_us": 3 }]);
        let page = run_page(&json);
        assert_self_contained(&page);
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("25 % of drive write") && page.contains("&lt;6.18&gt;"), "{page}");
        assert!(!page.contains("Not valid"));
    }

    #[test]
    fn an_invalid_run_says_so_first() {
        let page = run_page(&json!({ "valid": false, "workload": "produce" }));
        assert!(page.contains("Not valid"));
        assert_self_contained(&page);
    }

    #[test]
    fn a_page_of_a_suite_has_a_line_for_each_check() {
        let check = json!({ "what": "of the drive", "value_text": "1,800 MiB/s", "verdict": "falls short" });
        let page = suite_page(&[json!({ "row": "disk-4p", "checks": [check], "kernel": "6.18" })]);
        assert_self_contained(&page);
        assert!(page.contains("falls short") && page.contains("class=\"bad\"") && page.contains("6.18"));
    }
}
