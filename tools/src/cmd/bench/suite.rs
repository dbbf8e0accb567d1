//! `tg bench suite`: every row in rounds, in turn with the limit that it is a share of.

use serde_json::Value;
use tidegate_bench::load::idle::raise_descriptors;
use tidegate_bench::machine::OTHERS_SHARE_MAX;
use tidegate_bench::report::html;
use tidegate_bench::suite::{ROWS, Row, row_json};

use super::Stage;
use super::rows::Bench;
use super::run::write;
use crate::args::SuiteArgs;
use crate::exit::{Code, Failure};
use crate::output::{Out, note};

/// Runs the rows that were picked.
pub(crate) fn run(stage: &Stage, args: &SuiteArgs, out: &mut Out) -> Result<(), Failure> {
    let picked = pick(&args.only)?;
    if args.list {
        let rows: Vec<Vec<String>> =
            picked.iter().map(|row| vec![row.name.into(), row.about.into()]).collect();
        return out.table(&["row", "what it does"], &rows);
    }
    if let Some(dir) = &args.results {
        std::fs::create_dir_all(dir).map_err(|error| {
            Failure::new(Code::Failed, format!("cannot make the directory of results: {error}"))
                .place(dir.display().to_string())
                .fix("name another one with --results")
        })?;
    }
    // Before the broker starts, which inherits it.
    raise_descriptors();
    let mut bench = Bench::start(stage, args)?;
    let mut results = Vec::new();
    for row in picked {
        let measured = bench.measure(row)?;
        let facts = bench.facts();
        let result = row_json(row, &measured, &facts);
        tell(row, &result, out)?;
        if let Some(dir) = &args.results {
            write(&dir.join(format!("{}.json", row.name)), &format!("{result:#}\n"))?;
        }
        results.push(result);
    }
    if let Some(dir) = &args.results {
        write(&dir.join("suite.html"), &html::suite_page(&results))?;
    }
    if !out.is_json() {
        out.line("")?;
        for (name, value) in bench.facts() {
            out.line(format!("{:<11} {value}", name.replace('_', " ")))?;
        }
    }
    bench.finish()
}

fn pick(names: &[String]) -> Result<Vec<&'static Row>, Failure> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let find = |name: &String| {
        ROWS.iter().find(|row| row.name == name).ok_or_else(|| {
            let known: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            Failure::usage(format!("there is no row {name:?}"))
                .place("--only")
                .fix(format!("choose among {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

/// One line for each check.
fn tell(row: &Row, result: &Value, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        out.json(result)?;
        return out.flush();
    }
    out.line(format!("{}: {}", row.name, row.about))?;
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    for check in result["checks"].as_array().into_iter().flatten() {
        let limit = match (&check["limit_text"], &check["share_text"]) {
            (Value::String(limit), Value::String(share)) => format!(", {share} of {limit}"),
            _ => String::new(),
        };
        out.line(format!(
            "  {}: {}{limit}; target {}: {}",
            text(&check["what"]),
            text(&check["value_text"]),
            text(&check["target_text"]),
            text(&check["verdict"]),
        ))?;
    }
    for why in result["invalid_because"].as_array().into_iter().flatten() {
        note(format!("{}: not valid: {}", row.name, text(why)));
    }
    if result["disturbed"] == true {
        note(format!(
            "{}: disturbed: others took more than {:.0} % of the processors",
            row.name,
            OTHERS_SHARE_MAX * 100.0
        ));
    }
    out.flush()
}
