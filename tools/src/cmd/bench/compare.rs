//! `tg bench compare`.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_bench::report::compare::compare;
use tidegate_bench::suite::figure;

use crate::args::CompareArgs;
use crate::exit::{Code, Failure};
use crate::output::{Out, note};

/// Compares two files.
pub(crate) fn run(args: &CompareArgs, out: &mut Out) -> Result<(), Failure> {
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    for (result, path) in [(&first, &args.first), (&second, &args.second)] {
        if result["valid"] == false {
            note(format!("warning: {} is not valid: time was stolen from that run", path.display()));
        }
    }
    let comparisons = compare(&first, &second).map_err(|why| {
        Failure::new(Code::Usage, why)
            .place(format!("{} and {}", args.first.display(), args.second.display()))
            .fix("compare two files of `tg bench ... --json FILE`, or two rows of `tg bench suite --results DIR`")
    })?;
    if out.is_json() {
        for comparison in &comparisons {
            let mut object = json!(comparison);
            object["verdict"] = json!(comparison.verdict());
            out.json(&object)?;
        }
        return Ok(());
    }
    let rows = comparisons.iter().map(|c| {
        vec![
            c.figure.clone(),
            figure(c.first),
            figure(c.second),
            format!("{:.3}", c.ratio),
            format!("{:.3} to {:.3}", c.low, c.high),
            format!("{} and {}", c.samples.0, c.samples.1),
            c.verdict().to_owned(),
        ]
    });
    let head = ["figure", "first", "second", "ratio", "95 % interval", "samples", "second is"];
    out.table(&head, &rows.collect::<Vec<_>>())
}

fn read(path: &Path) -> Result<Value, Failure> {
    let unreadable = |code, error: &dyn std::fmt::Display| {
        Failure::new(code, format!("cannot read the result: {error}"))
            .place(path.display().to_string())
            .fix("name a file that `tg bench ... --json FILE` or `tg bench suite --results DIR` has written")
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        let found = error.kind() != std::io::ErrorKind::NotFound;
        unreadable(if found { Code::Failed } else { Code::NotFound }, &error)
    })?;
    serde_json::from_str(&text).map_err(|error| unreadable(Code::Usage, &error))
}
