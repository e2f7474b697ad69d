//! Prints what the last run of `cargo bench` measured as tables of Markdown: medians, and rates of those that have bytes.
//!
//! `cargo bench -p verbs-benches --bench table [-- FOLDER]` reads what Criterion left in `FOLDER`: `criterion` in the target folder
//! that this program was built in, unless another one is named. It measures nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What was measured of one subject with one parameter.
struct Measured {
    group: String,
    subject: String,
    /// Bytes, requests or entries, if the subject was measured with several.
    parameter: Option<u64>,
    ns: f64,
    bytes: Option<u64>,
    elements: Option<u64>,
}

fn main() -> Result<()> {
    // Cargo adds options of its own.
    let named = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let folder = match named {
        Some(folder) => PathBuf::from(folder),
        None => beside_this_program()?,
    };
    let mut all = Vec::new();
    read(&folder, &mut all)?;
    if all.is_empty() {
        return Err(format!("{} has no results: run cargo bench", folder.display()).into());
    }
    let mut groups = BTreeMap::<&str, Vec<&Measured>>::new();
    for one in &all {
        groups.entry(&one.group).or_default().push(one);
    }
    for (name, subjects) in groups {
        print(name, &subjects);
    }
    Ok(())
}

/// This program is `deps/table-...` in the folder of its profile, which is in the target folder.
fn beside_this_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program
        .ancestors()
        .nth(3)
        .ok_or("this program is in no target folder")?;
    Ok(target.join("criterion"))
}

/// Collects the results below a folder.
fn read(folder: &Path, all: &mut Vec<Measured>) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.ends_with("new") {
            let [about, estimates] =
                ["benchmark.json", "estimates.json"].map(|name| json(&path.join(name)));
            all.extend(measured(&about?, &estimates?));
        } else if path.is_dir() {
            read(&path, all)?;
        }
    }
    Ok(())
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// `None` for what is not of a version of Criterion that is known here.
fn measured(about: &Value, estimates: &Value) -> Option<Measured> {
    let text = |key: &str| about[key].as_str().map(str::to_owned);
    let (function, value) = (text("function_id"), text("value_str"));
    let parameter = value.as_ref().and_then(|value| value.parse().ok());
    Some(Measured {
        group: text("group_id")?,
        subject: function.or(value)?,
        parameter,
        ns: estimates["median"]["point_estimate"].as_f64()?,
        bytes: about["throughput"]["Bytes"].as_u64(),
        elements: about["throughput"]["Elements"].as_u64(),
    })
}

/// A table: a row for each subject, a column for each parameter.
fn print(name: &str, subjects: &[&Measured]) {
    let mut parameters: Vec<_> = subjects.iter().map(|one| one.parameter).collect();
    parameters.sort_unstable();
    parameters.dedup();
    let has_bytes = subjects.iter().any(|one| one.bytes.is_some());
    let heads = parameters.iter().map(|parameter| match parameter {
        Some(bytes) if has_bytes => size(*bytes),
        Some(count) => count.to_string(),
        None => "median".into(),
    });
    let heads: Vec<_> = heads.collect();
    println!("| {name} | {} |", heads.join(" | "));
    println!("|---{}|", "|---".repeat(heads.len()));
    let mut rows = BTreeMap::<&str, BTreeMap<Option<u64>, String>>::new();
    for one in subjects {
        let row = rows.entry(&one.subject).or_default();
        row.insert(one.parameter, cell(one));
    }
    for (subject, cells) in rows {
        let cells = parameters.iter().map(|parameter| cells.get(parameter));
        let cells: Vec<_> = cells.map(|cell| cell.map_or("", String::as_str)).collect();
        println!("| {subject} | {} |", cells.join(" | "));
    }
    println!();
}

fn cell(one: &Measured) -> String {
    let per_second = |count: u64| count as f64 / one.ns * 1e9;
    let rate = match (one.bytes, one.elements) {
        (Some(bytes), _) => format!(", {}B/s", scaled(per_second(bytes))),
        (None, Some(elements)) => format!(", {}/s", scaled(per_second(elements))),
        (None, None) => String::new(),
    };
    format!("{}{rate}", time(one.ns))
}

fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{} ns", digits(ns)),
        ..1e6 => format!("{} us", digits(ns / 1e3)),
        _ => format!("{} ms", digits(ns / 1e6)),
    }
}

/// With a decimal prefix.
fn scaled(value: f64) -> String {
    match value {
        ..1e3 => format!("{} ", digits(value)),
        ..1e6 => format!("{} k", digits(value / 1e3)),
        ..1e9 => format!("{} M", digits(value / 1e6)),
        _ => format!("{} G", digits(value / 1e9)),
    }
}

/// Three digits, or those before the point.
fn digits(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0x10_0000.. => format!("{} MiB", bytes >> 20),
        0x1000.. => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}
