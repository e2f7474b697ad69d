//! Upper limits of time in a source, as numbers.

use std::ops::Range;
use std::time::Duration;

use crate::scan;
use crate::tree::RustFile;

/// The least that a test may demand of the machine.
const LEAST: Duration = Duration::from_secs(30);

/// Lengths of time that have names: the name, and the expression behind it.
pub(crate) type Named = Vec<(String, String)>;

/// Upper limits of elapsed time that are short, or that cannot be read.
pub(crate) fn limits(file: &RustFile, known: &[(String, String)]) -> Vec<(usize, String)> {
    let code = &file.code;
    let mut found = Vec::new();
    let mut judge = |at, name: &str, limit: &str, unit: Option<Duration>| {
        let what = match length(limit, unit, known, 4) {
            Some(length) if length >= LEAST => return,
            Some(length) => format!("{name} {limit}, which is {length:?}: less than {LEAST:?}"),
            None => format!("{name} {limit}: a limit that this rule cannot read"),
        };
        found.push((at, what));
    };
    for at in scan::words(code, "elapsed()") {
        let (unit, rest) = unit_of(&code[at + "elapsed()".len()..]);
        if let Some(limit) = below(rest) {
            judge(at, "elapsed() <", limit, unit);
        }
        let (name, function) = (bound_name(code, at), function_around(code, at));
        let Some(name) = name else { continue };
        for again in scan::words(&code[function.clone()], name) {
            let again = function.start + again;
            let (other, rest) = unit_of(&code[again + name.len()..]);
            if let Some(limit) = below(rest) {
                judge(again, &format!("{name} <"), limit, other.or(unit));
            }
        }
    }
    for at in scan::words(code, "Instant::now()") {
        let rest = code[at + "Instant::now()".len()..].trim_start();
        if let Some(rest) = rest.strip_prefix('+') {
            judge(at, "Instant::now() +", expression(rest), None);
        }
    }
    for at in scan::words(code, "recv_timeout(") {
        let limit = expression(&code[at + "recv_timeout(".len()..]);
        judge(at, "recv_timeout", limit, None);
    }
    found
}

/// The unit of `.as_secs()` and the like, and what comes behind it.
fn unit_of(rest: &str) -> (Option<Duration>, &str) {
    let units = [
        (".as_secs()", Duration::from_secs(1)),
        (".as_secs_f64()", Duration::from_secs(1)),
        (".as_millis()", Duration::from_millis(1)),
        (".as_micros()", Duration::from_micros(1)),
        (".as_nanos()", Duration::from_nanos(1)),
    ];
    let unit = units
        .iter()
        .find_map(|(name, unit)| Some((Some(*unit), rest.strip_prefix(name)?)));
    unit.unwrap_or((None, rest))
}

/// What it is compared with, if it has to be below that.
fn below(rest: &str) -> Option<&str> {
    let rest = rest.trim_start().strip_prefix('<')?;
    (!rest.starts_with('<')).then(|| expression(rest.strip_prefix('=').unwrap_or(rest)))
}

/// The expression at the start, up to what cannot be part of it.
fn expression(rest: &str) -> &str {
    let mut depth = 0_usize;
    let ends = |c: char| match c {
        '(' => {
            depth += 1;
            false
        }
        ')' if depth > 0 => {
            depth -= 1;
            false
        }
        ')' | '{' | '}' | ';' | '&' | '|' | '=' => true,
        _ => c == ',' && depth == 0,
    };
    let end = rest.find(ends).unwrap_or(rest.len());
    rest[..end].trim()
}

/// The name that the statement around `at` binds: `let NAME = ..`.
fn bound_name(code: &str, at: usize) -> Option<&str> {
    let start = code[..at]
        .rfind([';', '{', '}'])
        .map_or(0, |start| start + 1);
    let (name, _) = code[start..at]
        .trim()
        .strip_prefix("let ")?
        .split_once('=')?;
    let name = name.split(':').next()?.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_alphanumeric());
    is_name.then_some(name)
}

/// The innermost function around it.
fn function_around(code: &str, at: usize) -> Range<usize> {
    let functions = scan::functions(code).into_iter().map(|it| it.range);
    let around = functions.filter(|range| range.contains(&at));
    around
        .max_by_key(|range| range.start)
        .unwrap_or(at..code.len())
}

/// The lengths of time that a file names.
pub(crate) fn named(file: &RustFile) -> Named {
    let consts = file.code.split("const ").skip(1);
    let lets = file.code.split("let ").skip(1);
    let named = consts.chain(lets).filter_map(|rest| {
        let (name, value) = rest.split(';').next()?.split_once('=')?;
        let name = name.split(':').next()?.trim();
        let is_time = value.contains("Duration::");
        is_time.then(|| (name.to_owned(), value.trim().to_owned()))
    });
    named.collect()
}

/// The length of time that an expression stands for, if it is one that this rule reads: `Duration::from_secs(60)`, a name,
/// a number in that unit, and products of those with numbers.
fn length(
    text: &str,
    unit: Option<Duration>,
    known: &[(String, String)],
    depth: u8,
) -> Option<Duration> {
    let text = text.trim();
    let number = |text: &str| text.trim().replace('_', "").parse::<u32>().ok();
    let depth = depth.checked_sub(1)?;
    if let Some((first, second)) = text.split_once('*') {
        let (times, one) = match number(first) {
            Some(times) => (times, second),
            None => (number(second)?, first),
        };
        return length(one, unit, known, depth)?.checked_mul(times);
    }
    if let Some((whole, parts)) = text.split_once('/') {
        return length(whole, unit, known, depth)?.checked_div(number(parts)?);
    }
    if let Some(number) = number(text) {
        return unit?.checked_mul(number);
    }
    if let Some((_, rest)) = text.rsplit_once("Duration::from_") {
        let (unit, count) = rest.strip_suffix(')')?.split_once('(')?;
        let unit = match unit {
            "mins" => Duration::from_secs(60),
            "secs" => Duration::from_secs(1),
            "millis" => Duration::from_millis(1),
            "micros" => Duration::from_micros(1),
            _ => return None,
        };
        return unit.checked_mul(number(count)?);
    }
    let name = text.rsplit("::").next()?;
    let (_, value) = known.iter().find(|(known, _)| known == name)?;
    length(value, None, known, depth)
}
