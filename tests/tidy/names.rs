//! What the documents name is there: files and folders in backticks, targets of links, and the tests that
//! `docs/REQUIREMENTS.md` and `docs/CONTRACT.md` cite as proofs.

use std::collections::BTreeSet;

use crate::tree::{RustFile, Text};
use crate::{Violation, scan};

/// The document whose rows name a test each.
pub(crate) const ROWS: &str = "docs/REQUIREMENTS.md";

/// The document whose rules name the tests that prove them.
pub(crate) const RULES: &str = "docs/CONTRACT.md";

/// The documents whose backticks are looked at.
const DOCUMENTS: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "docs/STATUS.md",
    ROWS,
    RULES,
];

/// What a row of [`ROWS`] may say of its state.
const STATES: [&str; 3] = ["works", "partly", "not yet"];

/// Endings that make a file of a name without a slash.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".txt", ".list", ".snap"];

/// The list of the checks that each provider's test program makes tests of.
const CHECKS: &str = "verbs-core/src/testing/conformance/list.rs";

/// The files of the workspace and their folders.
pub(crate) struct Paths<'a>(BTreeSet<&'a str>);

impl<'a> Paths<'a> {
    pub(crate) fn new(files: impl IntoIterator<Item = &'a str>) -> Self {
        let mut paths = BTreeSet::new();
        for file in files {
            let ends = file.match_indices('/').map(|(end, _)| end);
            paths.extend(ends.chain([file.len()]).map(|end| &file[..end]));
        }
        Self(paths)
    }

    /// Whether the name, which stands beside `others`, is a path from the root or the document's folder, or the end of
    /// a path within a crate that one of the others is in.
    fn has(&self, name: &str, document: &str, others: &[String]) -> bool {
        let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
        if self.0.contains(name) || self.0.contains(resolved(folder, name).as_str()) {
            return true;
        }
        let crates: BTreeSet<_> = others
            .iter()
            .filter(|other| self.0.contains(other.as_str()))
            .filter_map(|other| other.split_once('/').map(|(first, _)| first))
            .collect();
        let end = format!("/{name}");
        self.0.iter().any(|path| {
            let first = path.split('/').next().unwrap_or_default();
            path.ends_with(&end) && crates.contains(first)
        })
    }
}

/// A relative path from the folder of a document, as one from the root.
fn resolved(folder: &str, name: &str) -> String {
    let mut parts = Vec::new();
    for part in folder.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The words in backticks of a line of prose.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The lines outside blocks of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        let is_code = is_fenced || is_fence || line.starts_with("    ");
        (!is_code).then_some((index + 1, line))
    })
}

/// The paths that a quotation stands for: none if it is something else, several if it has braces.
fn paths_in(quotation: &str) -> Vec<String> {
    let first = quotation.split(' ').next().unwrap_or_default();
    let is_script = first.starts_with("ci/") || first.starts_with(".ci/");
    let is_path = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.{},".contains(c);
        let has_form = word.contains('/') || ENDINGS.iter().any(|ending| word.ends_with(ending));
        has_form && word.chars().all(plain) && !word.starts_with(['/', '-'])
    };
    let is_built = first.starts_with("target/");
    if !(is_script || first == quotation) || is_built || !is_path(first) {
        return Vec::new();
    }
    let first = first.trim_end_matches('/');
    match (first.find('{'), first.find('}')) {
        (Some(open), Some(close)) if open < close => first[open + 1..close]
            .split(',')
            .map(|part| format!("{}{part}{}", &first[..open], &first[close + 1..]))
            .collect(),
        _ => vec![first.into()],
    }
}

/// Paths in backticks that are not there.
pub(crate) fn paths(texts: &[Text], paths: &Paths<'_>) -> Vec<Violation> {
    let mut wrong = Vec::new();
    for document in DOCUMENTS {
        let Some(text) = texts.iter().find(|text| text.path == document) else {
            wrong.push(violation(document, 1, "there is no such document".into()));
            continue;
        };
        for (number, line) in prose(&text.text) {
            let named: Vec<String> = quoted(line).flat_map(paths_in).collect();
            for name in named
                .iter()
                .filter(|name| !paths.has(name, document, &named))
            {
                wrong.push(violation(document, number, format!("there is no {name}")));
            }
        }
    }
    wrong
}

/// Links of any document to files that are not there, or to headings that their file does not have.
pub(crate) fn links(texts: &[Text], paths: &Paths<'_>) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let of = |path: &str| texts.iter().find(|text| text.path == path);
    for text in texts.iter().filter(|text| text.path.ends_with(".md")) {
        let folder = text.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in prose(&text.text) {
            let targets = line.split("](").skip(1);
            for target in targets.filter_map(|rest| rest.split(')').next()) {
                if target.contains("://") {
                    continue;
                }
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => text.path.clone(),
                    file => resolved(folder, file),
                };
                let has_heading =
                    || of(&path).is_some_and(|to| headings(&to.text).contains(heading));
                if !paths.0.contains(path.as_str()) {
                    wrong.push(violation(
                        &text.path,
                        number,
                        format!("there is no {target}"),
                    ));
                } else if !heading.is_empty() && !has_heading() {
                    wrong.push(violation(
                        &text.path,
                        number,
                        format!("{path} has no #{heading}"),
                    ));
                }
            }
        }
    }
    wrong
}

/// The anchors of a document's headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.trim().to_lowercase())
    });
    let anchor = |title: String| {
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(anchor).collect()
}

/// The names of all tests, models and checks.
pub(crate) fn tests(files: &[RustFile]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for file in files {
        if file.path == CHECKS {
            found.extend(file.code.split_whitespace().filter(|word| is_plain(word)));
        }
        for at in scan::words(&file.code, "fn") {
            let name = file.code[at + 2..].trim_start();
            let end = name.find(|c: char| c != '_' && !c.is_alphanumeric());
            // What lies between the item before it and the function: its attributes.
            let before = file.code[..at].rfind(['}', ';', '{']);
            let attributes = &file.code[before.map_or(0, |end| end + 1)..at];
            if attributes.contains("#[test]") {
                found.insert(&name[..end.unwrap_or(name.len())]);
            }
        }
    }
    found
}

/// Whether it is a name in lower case of several words, as tests have.
fn is_plain(name: &str) -> bool {
    let is_part = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
    name.contains('_') && name.chars().all(is_part)
}

/// Rows of [`ROWS`] and [`RULES`] with a test that is not there. A plain name with an underscore in the last column is a
/// test, and one that ends with `*` is the beginning of tests' names; functions of the product are written with their type.
/// Those of [`ROWS`] need a state, and a test unless it is the last one.
pub(crate) fn rows(texts: &[Text], tests: &BTreeSet<&str>) -> Vec<Violation> {
    let mut wrong = Vec::new();
    for document in [ROWS, RULES] {
        let Some(text) = texts.iter().find(|text| text.path == document) else {
            wrong.push(violation(document, 1, "there is no such document".into()));
            continue;
        };
        for (number, line) in prose(&text.text) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, id, .., state, proofs, _] = cells[..] else {
                continue;
            };
            if !is_id(id) {
                continue;
            }
            let state = (document == ROWS).then_some(state);
            let of_row = row(state, proofs, tests).into_iter();
            wrong.extend(of_row.map(|what| violation(document, number, format!("{id}: {what}"))));
        }
    }
    wrong
}

/// What is wrong with a row.
fn row(state: Option<&str>, proofs: &str, tests: &BTreeSet<&str>) -> Vec<String> {
    let mut wrong = Vec::new();
    let named = quoted(proofs).filter(|name| is_plain(name.trim_end_matches('*')));
    let named: Vec<&str> = named.collect();
    for name in &named {
        let is_there = match name.strip_suffix('*') {
            Some(start) => tests.iter().any(|test| test.starts_with(start)),
            None => tests.contains(name),
        };
        if !is_there {
            wrong.push(format!("there is no test {name}"));
        }
    }
    let Some(state) = state else { return wrong };
    if !STATES.contains(&state) {
        wrong.push(format!("'{state}' is none of {}", STATES.join(", ")));
    }
    let is_proof = |path: String| {
        let places = ["test", "bench", "ci/"];
        places.iter().any(|place| path.contains(place))
    };
    let has_proof = !named.is_empty() || quoted(proofs).flat_map(paths_in).any(is_proof);
    if state != STATES[2] && !has_proof {
        wrong.push("it names no test".into());
    }
    wrong
}

/// Whether a cell is the id of a row: a letter and a number.
fn is_id(cell: &str) -> bool {
    let number = cell.trim_start_matches(|c: char| c.is_ascii_uppercase());
    cell.len() > number.len() && number.parse::<u8>().is_ok()
}

fn violation(path: &str, line: usize, what: String) -> Violation {
    Violation {
        path: path.into(),
        line,
        what,
    }
}
