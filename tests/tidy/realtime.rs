//! The test program that a file belongs to, and whether `ci/realtime.list` names it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::manifests::Member;
use crate::tree::RustFile;

/// The programs that use real sockets, processes or clocks.
pub(crate) const LIST: &str = "ci/realtime.list";

/// Its lines: it may only become shorter, and this number with it.
const LISTED: usize = 19;

/// A test program, and a module in there.
pub(crate) struct Place {
    /// As in the list: CRATE/PROGRAM.
    pub(crate) program: String,
    /// With `::` behind each name; empty for the root.
    module: String,
    /// Whether it is a folder that the programs of the crate share.
    is_shared: bool,
}

impl Place {
    fn of<'m>(path: &str, paths: &BTreeSet<&str>, members: &'m [Member]) -> Option<Self> {
        let rest_in = |folder: &str| path.strip_prefix(folder)?.strip_prefix('/');
        let within = |member: &'m Member| Some((member, rest_in(&member.folder)?));
        let (member, rest) = members.iter().find_map(within)?;
        let folder = &member.folder;
        if let Some(module) = rest.strip_prefix("src/") {
            let program = match paths.contains(format!("{folder}/src/lib.rs").as_str()) {
                true => name_in(member, "lib").unwrap_or_else(|| member.name.replace('-', "_")),
                false => name_in(member, "bin").unwrap_or_else(|| member.name.clone()),
            };
            return Some(Self::new(member, &program, module, false));
        }
        // The member that has nothing but tests has them at its root.
        let tests = if folder == "tests" { "" } else { "tests/" };
        let rest = rest.strip_prefix(tests)?;
        let (program, module) = rest.split_once('/').unwrap_or((rest, ""));
        let roots = ["/main.rs", ".rs"].map(|end| format!("{folder}/{tests}{program}{end}"));
        let has_root = roots.iter().any(|root| paths.contains(root.as_str()));
        let is_shared = !module.is_empty() && !has_root;
        let program = program.trim_end_matches(".rs");
        Some(Self::new(member, program, module, is_shared))
    }

    fn new(member: &Member, program: &str, module: &str, is_shared: bool) -> Self {
        let names = module.trim_end_matches(".rs").split('/');
        let names = names.filter(|name| !["", "main", "lib", "mod"].contains(name));
        Self {
            program: format!("{}/{program}", member.name),
            module: names.map(|name| format!("{name}::")).collect(),
            is_shared,
        }
    }
}

/// The places of all files, and the list.
pub(crate) struct Programs<'a> {
    places: BTreeMap<&'a str, Place>,
    entries: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Programs<'a> {
    pub(crate) fn new(files: &'a [RustFile], members: &[Member], list: &'a str) -> Self {
        let paths: BTreeSet<_> = files.iter().map(|file| file.path.as_str()).collect();
        let place = |&path: &&'a str| Some((path, Place::of(path, &paths, members)?));
        Self {
            places: paths.iter().filter_map(place).collect(),
            entries: entries(list),
        }
    }

    pub(crate) fn place(&self, path: &str) -> Option<&Place> {
        self.places.get(path)
    }

    /// Every program; shared folders are none.
    fn all(&self) -> impl Iterator<Item = &str> {
        let places = self.places.values().filter(|place| !place.is_shared);
        places.map(|place| place.program.as_str())
    }

    /// Whether the list names it. Of the expressions, those count that stand for a module; a shared folder is listed
    /// where all programs of its crate are.
    pub(crate) fn lists(&self, place: &Place) -> bool {
        if place.is_shared {
            let end = place.program.find('/').map_or(0, |end| end + 1);
            let of_crate = &place.program[..end];
            let mut others = self.all().filter(|other| other.starts_with(of_crate));
            return others.all(|other| self.entries.contains(&(other, None)));
        }
        let is_within = |module: &str| module.ends_with("::") && place.module.starts_with(module);
        self.entries.iter().any(|(program, tests)| {
            let module = tests.map(|tests| tests.strip_prefix('^'));
            *program == place.program && module.is_none_or(|module| module.is_some_and(is_within))
        })
    }

    /// A list that has become longer, or names what there is not.
    pub(crate) fn list(&self) -> Vec<Violation> {
        let mut wrong = Vec::new();
        let count = self.entries.len();
        if count > LISTED {
            wrong.push(format!(
                "{count} programs, and there were {LISTED}: it may only become shorter"
            ));
        }
        if count < LISTED {
            wrong.push(format!(
                "{count} programs: LISTED in tests/tidy/realtime.rs has to say so"
            ));
        }
        let all: BTreeSet<_> = self.all().collect();
        let missing = self.entries.iter().filter(|(it, _)| !all.contains(it));
        wrong.extend(missing.map(|(it, _)| format!("there is no {it}")));
        let violation = |what| Violation {
            path: LIST.into(),
            line: 1,
            what,
        };
        wrong.into_iter().map(violation).collect()
    }
}

/// The name that a member gives to its library or to its first binary.
fn name_in(member: &Member, table: &str) -> Option<String> {
    let table = member.manifest.get(table)?;
    let table = table.get(0).unwrap_or(table);
    table.get("name")?.as_str().map(ToOwned::to_owned)
}

/// The lines of the list: a program, and an expression where it is only some of its tests.
fn entries(list: &str) -> Vec<(&str, Option<&str>)> {
    let lines = list.lines().map(|line| line.split('#').next());
    let parts = lines.filter_map(|line| {
        let mut parts = line?.split_whitespace();
        Some((parts.next()?, parts.next()))
    });
    parts.collect()
}
