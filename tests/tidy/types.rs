//! Rules about what a reader can keep in mind: functions of a type and the files that they are in, rooms of a folder (files
//! and folders of sources), and arrows between the floors of hca-sim that point up.
//!
//! What exceeds a limit is listed with its present number, rounded up to tens for functions. A number in a list only
//! decreases, and a row goes when it is no longer needed.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::circles::{Crate, Module};
use crate::scan;
use crate::tree::RustFile;

/// Functions of a type, without those of traits.
const FUNCTIONS_MAX: usize = 40;

/// Files that the functions of a type may be in.
const FILES_MAX: usize = 2;

/// Types that exceed these: crate, type, functions and files at most.
const TYPES: &[(&str, &str, usize, usize)] = &[
    ("hca-sim", "direct::message::Message", 40, 3),
    ("hca-sim", "port::Port", 40, 3),
    ("hca-sim", "port::streams::endpoint::CmEnd", 40, 3),
    ("hca-sim", "post::send::SendPoster", 40, 6),
    ("hca-sim", "qp::QueuePair", 40, 4),
    ("hca-sim", "queue::cq::CqRing", 40, 3),
    ("hca-sim", "transport::rc::responder::Responder", 40, 4),
    ("ulp-ipoib", "link::Core", 50, 5),
    ("ulp-ipoib", "link::state::State", 70, 9),
    ("verbs-cm", "user::manager::Manager", 40, 5),
    ("verbs-cm", "sa::SaClient", 40, 5),
    ("verbs-cm", "table::Cm", 50, 2),
    ("verbs-core", "memory::pd::Pd", 40, 8),
    ("verbs-core", "devices::device::Device", 40, 10),
    ("verbs-core", "devices::device::core::DeviceCore", 40, 3),
    ("verbs-core", "queue_pair::qp::Qp", 40, 3),
    ("verbs-core", "memory::mem::keys::table::MrTable", 50, 3),
    ("verbs-host", "daemon::Daemon", 70, 7),
    ("verbs-link", "joined::Joined", 40, 3),
    ("verbs-subnet", "agent::sma::Sma", 50, 2),
    ("verbs-subnet", "subnet::Subnet", 50, 4),
];

/// Files and folders in a folder, without tests and models: about nine.
const ROOMS_MAX: usize = 10;

/// Folders that have more, and how many.
const ROOMS: &[(&str, usize)] = &[("hca-sim/src/transport", 11)];

/// The floors of hca-sim, from the lowest.
const FLOORS: &[&str] = &[
    "queue",
    "direct",
    "link",
    "transport",
    "effects",
    "port",
    "qp",
    "post",
    "hca",
];

/// Arrows between files of hca-sim that point to a higher floor.
const UP_MAX: usize = 4;

/// A type: the module that defines it, its name, and the arguments that an `impl` fixes.
type Name = (Module, String);

/// A type's functions by file.
type Functions = BTreeMap<Name, BTreeMap<String, usize>>;

/// The functions in `impl` blocks without a trait, of the types that the crate defines.
fn functions(files: &[RustFile], krate: &Crate) -> Functions {
    let mut found = Functions::new();
    let by_path: BTreeMap<&str, &RustFile> = files.iter().map(|f| (f.path.as_str(), f)).collect();
    for (module, path) in &krate.files {
        let Some(file) = by_path.get(path.as_str()) else {
            continue;
        };
        for at in scan::words(&file.code, "impl") {
            let is_item = file.code[..at].trim_end().ends_with(['}', ';', ']', '{'])
                || file.code[..at].trim().is_empty()
                || file.code[..at].trim_end().ends_with("unsafe");
            let in_tests = file.test_modules.iter().any(|tests| tests.contains(&at));
            let Some(open) = file.code[at..].find('{').map(|open| at + open) else {
                continue;
            };
            let (Some(name), Some(end)) = (
                type_of(&file.code[at + 4..open]),
                scan::closing(&file.code, open),
            ) else {
                continue;
            };
            if !is_item || in_tests {
                continue;
            }
            let Some(definer) = definer(krate, &by_path, module, &name) else {
                continue;
            };
            let count = scan::functions(&file.code[open..end]).len();
            if count == 0 {
                continue;
            }
            let entry = found.entry((definer, name)).or_default();
            *entry.entry(path.clone()).or_default() += count;
        }
    }
    found
}

/// The type of an `impl` without a trait, with the types among its arguments that are no parameters: blocks for a
/// `Request` of one verb are that verb's.
pub(crate) fn type_of(head: &str) -> Option<String> {
    let head = head.trim_start();
    let (parameters, head) = match head.strip_prefix('<') {
        Some(_) => {
            let end = angle_end(head)?;
            (&head[1..end], &head[end + 1..])
        }
        None => ("", head),
    };
    let head = head.split(" where").next()?.split("\nwhere").next()?.trim();
    if scan::words(head, "for").next().is_some() {
        return None;
    }
    let (path, arguments) = head.split_at(head.find('<').unwrap_or(head.len()));
    let name = path.rsplit("::").next()?.trim();
    let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
    let is_fixed = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_uppercase())
            && scan::words(parameters, word).next().is_none()
    };
    let arguments: Vec<&str> = arguments
        .split(|c: char| c != '_' && !c.is_alphanumeric())
        .filter(is_fixed)
        .collect();
    is_type.then(|| match arguments.is_empty() {
        true => name.to_owned(),
        false => format!("{name}<{}>", arguments.join(",")),
    })
}

/// Place of the bracket that closes the one at the start.
fn angle_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
        before = c;
    }
    None
}

/// The module that defines the type that a file names; `None` for those of other crates.
fn definer(
    krate: &Crate,
    files: &BTreeMap<&str, &RustFile>,
    module: &Module,
    name: &str,
) -> Option<Module> {
    let name = name.split('<').next()?;
    let defines = |module: &Module| {
        let code = &files.get(krate.files.get(module)?.as_str())?.code;
        let item = |kind| {
            scan::words(code, &format!("{kind} {name}"))
                .next()
                .is_some()
        };
        ["struct", "enum", "union"]
            .into_iter()
            .any(item)
            .then_some(())
    };
    let imported = || krate.imported(module, name);
    let inherited = || {
        let above = (0..module.len())
            .rev()
            .map(|length| module[..length].to_vec());
        above.into_iter().find(|above| defines(above).is_some())
    };
    match defines(module) {
        Some(()) => Some(module.clone()),
        None => imported().or_else(inherited),
    }
}

/// Types with too many functions, or in too many files.
pub(crate) fn types(files: &[RustFile], folders: &[String]) -> Vec<Violation> {
    types_beyond(files, folders, TYPES)
}

fn types_beyond(
    files: &[RustFile],
    folders: &[String],
    listed: &[(&str, &str, usize, usize)],
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for folder in folders {
        let found = functions(files, &Crate::of(files, folder));
        for ((module, name), by_file) in found {
            let (count, spread) = (by_file.values().sum::<usize>(), by_file.len());
            let full = format!("{}::{name}", module.join("::"));
            let row = listed.iter().find(|row| row.0 == folder && row.1 == full);
            let (count_max, spread_max) =
                row.map_or((FUNCTIONS_MAX, FILES_MAX), |row| (row.2, row.3));
            let path = by_file.keys().next().cloned().unwrap_or_default();
            let mut report = |what| {
                let (path, line) = (path.clone(), 1);
                violations.push(Violation { path, line, what });
            };
            if count > count_max || spread > spread_max {
                report(format!(
                    "{full} has {count} functions in {spread} files; {count_max} in {spread_max} at most"
                ));
            }
            let is_low =
                count + 10 <= count_max.max(FUNCTIONS_MAX + 1) && count_max > FUNCTIONS_MAX;
            let is_narrow = spread < spread_max && spread_max > FILES_MAX;
            if is_low || is_narrow {
                report(format!(
                    "{full} has {count} functions in {spread} files now: say so in TYPES"
                ));
            }
        }
    }
    violations
}

/// Folders of sources with too many rooms.
pub(crate) fn rooms(files: &[RustFile], folders: &[String]) -> Vec<Violation> {
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let sources: Vec<String> = folders
        .iter()
        .map(|folder| format!("{folder}/src/"))
        .collect();
    let is_source =
        |file: &&RustFile| !file.is_test && !file.is_model && !file.path.contains("/tests/");
    for file in files.iter().filter(is_source) {
        let Some(root) = sources.iter().find(|root| file.path.starts_with(*root)) else {
            continue;
        };
        let mut folder = root.trim_end_matches('/').to_owned();
        for part in file.path[root.len()..].split('/') {
            let name = part.strip_suffix(".rs").unwrap_or(part);
            if !matches!(name, "mod" | "lib" | "main" | "tests") {
                rooms
                    .entry(folder.clone())
                    .or_default()
                    .insert(name.to_owned());
            }
            folder = format!("{folder}/{part}");
        }
    }
    let mut violations = Vec::new();
    for (folder, rooms) in rooms {
        let listed = ROOMS.iter().find(|(name, _)| *name == folder);
        let max = listed.map_or(ROOMS_MAX, |&(_, max)| max);
        let (path, line, count) = (folder, 1, rooms.len());
        if count > max {
            let what = format!("{count} rooms; {max} at most");
            violations.push(Violation { path, line, what });
        } else if listed.is_some() && count < max {
            let what = format!("{count} rooms now: say so in ROOMS");
            violations.push(Violation { path, line, what });
        }
    }
    violations
}

/// Arrows of hca-sim that point up, if there are too many.
pub(crate) fn floors(files: &[RustFile]) -> Vec<Violation> {
    let krate = Crate::of(files, "hca-sim");
    let floor = |module: &Module| {
        let room = module.first()?;
        FLOORS.iter().position(|name| name == room)
    };
    let mut up = Vec::new();
    let mut violations = Vec::new();
    for (from, targets) in krate.arrows() {
        if floor(&from).is_none() && !from.is_empty() {
            violations.push(Violation {
                path: krate.files[&from].clone(),
                line: 1,
                what: "it is on no floor: say in FLOORS which".to_owned(),
            });
        }
        for to in targets {
            if floor(&from)
                .zip(floor(&to))
                .is_some_and(|(from, to)| from < to)
            {
                up.push(format!("{} -> {}", from.join("::"), to.join("::")));
            }
        }
    }
    if up.len() > UP_MAX {
        violations.push(Violation {
            path: "hca-sim/src".to_owned(),
            line: 1,
            what: format!(
                "{} arrows point up, {UP_MAX} at most: {}",
                up.len(),
                up.join(", ")
            ),
        });
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, String)]) -> Vec<RustFile> {
        let file = |(path, text): &(&str, String)| RustFile::new(path, text);
        files.iter().map(file).collect()
    }

    fn block(of: &str, functions: usize) -> String {
        format!("impl {of} {{ {} }} ", "fn f(&self) {} ".repeat(functions))
    }

    /// Goal: functions are counted for the type that they belong to. Method: a type in three files, by an import and by
    /// a glob; one of the same name elsewhere; blocks of traits, tests and of one argument, which do not count.
    #[test]
    fn functions_are_counted_by_type() {
        let tree = files(&[
            ("x/src/lib.rs", "mod a; mod b; mod c;".to_owned()),
            (
                "x/src/a/mod.rs",
                format!(
                    "mod d; pub struct T<A>(A); {}",
                    block("<A: B<u8>> T<A>", 20)
                ),
            ),
            (
                "x/src/a/d.rs",
                format!("use super::*; {}", block("<A> T<A>", 12)),
            ),
            (
                "x/src/b.rs",
                format!(
                    "use crate::a::T; {} {} {} #[cfg(test)] mod tests {{ {} }}",
                    block("<A> T<A>", 8),
                    block("<A> Iterator for T<A>", 9),
                    block("T<Verb>", 9),
                    block("<A> T<A>", 9)
                ),
            ),
            ("x/src/c.rs", format!("struct T; {}", block("T", 40))),
        ]);
        let folders = ["x".to_owned()];
        let violations = types_beyond(&tree, &folders, &[]);
        let whats: Vec<&str> = violations.iter().map(|v| v.what.as_str()).collect();
        assert_eq!(whats, ["a::T has 40 functions in 3 files; 40 in 2 at most"]);
        assert_eq!(types_beyond(&tree, &folders, &[("x", "a::T", 40, 3)]), []);
        let loose = types_beyond(&tree, &folders, &[("x", "a::T", 60, 3)]);
        assert_eq!(loose.len(), 1, "{loose:?}");
        let wide = types_beyond(&tree, &folders, &[("x", "a::T", 40, 4)]);
        assert_eq!(wide.len(), 1, "{wide:?}");
        let more = types_beyond(
            &tree,
            &folders,
            &[("x", "a::T", 40, 3), ("x", "c::T", 30, 2)],
        );
        assert_eq!(more.len(), 1, "{more:?}");
    }

    #[test]
    fn large_folders_are_seen() {
        let names: Vec<String> = (0..=ROOMS_MAX)
            .map(|n| format!("x/src/a/r{n}.rs"))
            .collect();
        let mut all: Vec<(&str, String)> = Vec::new();
        for name in &names[..ROOMS_MAX] {
            all.push((name, String::new()));
        }
        all.extend(["x/src/a/mod.rs", "x/src/a/tests.rs"].map(|name| (name, String::new())));
        assert_eq!(rooms(&files(&all), &["x".to_owned()]), []);
        all.push((&names[ROOMS_MAX], String::new()));
        assert_eq!(rooms(&files(&all), &["x".to_owned()]).len(), 1);
    }

    /// Goal: arrows that point up are counted, others are not. Method: as many as are permitted, and one more.
    #[test]
    fn arrows_that_point_up_are_seen() {
        let mut all = vec![(
            "hca-sim/src/qp.rs",
            "pub struct T; use crate::queue::q0::T as A;".into(),
        )];
        let names: Vec<String> = (0..=UP_MAX)
            .map(|n| format!("hca-sim/src/queue/q{n}.rs"))
            .collect();
        for name in &names[..UP_MAX] {
            all.push((name, "use crate::qp::T; pub struct S;".to_owned()));
        }
        assert_eq!(floors(&files(&all)), []);
        all.push((&names[UP_MAX], "use crate::qp::T;".to_owned()));
        assert_eq!(floors(&files(&all)).len(), 1);
        all.pop();
        all.push(("hca-sim/src/attic.rs", String::new()));
        assert_eq!(floors(&files(&all)).len(), 1);
    }
}
