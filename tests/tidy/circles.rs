//! Rules about circles: files of one crate that import each other, directly or through others, are effectively one file
//! for a reader. Counted from `use` lines and spelled-out `crate::` paths, tests left out.
//!
//! An import counts as one of the file that defines the name: a `pub use` passes it on. A file that only passes
//! its own children on does not import them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::scan;
use crate::tree::RustFile;

/// Files that a circle may have.
const FILES_MAX: usize = 3;

/// Crates of which one circle is larger, and its size: a number here only decreases.
const LARGER: &[(&str, usize)] = &[("verbs-core", 8)];

/// A module's path within its crate, without `crate`.
pub(crate) type Module = Vec<String>;

/// An import of a file.
struct Import {
    /// Re-exported to others.
    is_public: bool,
    path: Module,
}

/// The files of one crate.
pub(crate) struct Crate {
    pub(crate) files: BTreeMap<Module, String>,
    imports: BTreeMap<Module, Vec<Import>>,
}

impl Crate {
    /// The files in `folder/src` that are not tests.
    pub(crate) fn of(files: &[RustFile], folder: &str) -> Self {
        let prefix = format!("{folder}/src/");
        let ours: Vec<(Module, &RustFile)> = files
            .iter()
            .filter(|file| !file.is_test && !file.is_model)
            .filter_map(|file| Some((module(file.path.strip_prefix(&prefix)?)?, file)))
            .collect();
        let paths = |(module, file): &(Module, &RustFile)| (module.clone(), file.path.clone());
        let mut this = Self {
            files: ours.iter().map(paths).collect(),
            imports: BTreeMap::new(),
        };
        for (module, file) in &ours {
            let imports = this.imports_of(module, file);
            this.imports.insert(module.clone(), imports);
        }
        this
    }

    fn imports_of(&self, module: &Module, file: &RustFile) -> Vec<Import> {
        let in_tests = |at: usize| file.test_modules.iter().any(|tests| tests.contains(&at));
        let mut found = Vec::new();
        for (at, path) in scan::imports(&file.code) {
            if in_tests(at) {
                continue;
            }
            if let Some(path) = self.absolute(module, &path) {
                let before = file.code[..at].trim_end();
                let statement = before.rfind([';', '}', ']']).map_or(0, |end| end + 1);
                let is_public = before[statement..].trim_start().starts_with("pub");
                found.push(Import { is_public, path });
            }
        }
        for at in scan::words(&file.code, "crate") {
            let rest = &file.code[at..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &rest[..end.unwrap_or(rest.len())];
            // A path that ends in colons is the beginning of a list, which `imports` has expanded. `pub(in crate::x)`
            // sets a visibility, and imports nothing.
            let is_visibility = file.code[..at].ends_with("in ");
            let is_path = path.starts_with("crate::") && !path.ends_with(':');
            if is_path && !is_visibility && !in_tests(at) {
                let path = self.absolute(module, path).unwrap_or_default();
                let is_public = false;
                found.push(Import { is_public, path });
            }
        }
        found
    }

    /// The path from the crate's root; `None` for one into another crate.
    fn absolute(&self, module: &Module, path: &str) -> Option<Module> {
        let mut parts: Vec<&str> = path.split("::").collect();
        let mut base = match *parts.first()? {
            "crate" => Module::new(),
            "self" | "super" => module.clone(),
            child => {
                let mut name = module.clone();
                name.push(child.to_owned());
                self.files.contains_key(&name).then(|| module.clone())?
            }
        };
        if matches!(parts[0], "crate" | "self") {
            parts.remove(0);
        }
        while parts.first() == Some(&"super") {
            parts.remove(0);
            base.pop();
        }
        base.extend(parts.into_iter().map(str::to_owned));
        Some(base)
    }

    /// The file that defines what the path names.
    fn definer(&self, path: &[String], depth: usize) -> Option<Module> {
        let length = (0..=path.len())
            .rev()
            .find(|&length| self.files.contains_key(&path[..length]))?;
        let (module, rest) = path.split_at(length);
        if let Some(name) = rest.first().filter(|_| depth > 0) {
            let passed_on = self.imports.get(module).into_iter().flatten();
            let mut passed_on = passed_on.filter(|import| import.is_public);
            if let Some(import) = passed_on.find(|import| import.path.last() == Some(name)) {
                let mut path = import.path.clone();
                path.extend_from_slice(&rest[1..]);
                return self.definer(&path, depth - 1);
            }
        }
        Some(module.to_vec())
    }

    /// The file that defines what `module` imports by that name.
    pub(crate) fn imported(&self, module: &Module, name: &str) -> Option<Module> {
        let mut imports = self.imports.get(module)?.iter();
        let import = imports.find(|import| import.path.last().is_some_and(|last| last == name))?;
        self.definer(&import.path, 5)
    }

    /// Which files each file imports.
    pub(crate) fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, imports) in &self.imports {
            let targets = arrows.entry(module.clone()).or_default();
            // The root declares and re-exports; only what it defines itself is imported from it.
            for import in imports.iter().filter(|_| !module.is_empty()) {
                let target = self.definer(&import.path, 5);
                let Some(target) = target.filter(|target| target != module) else {
                    continue;
                };
                let is_own_child = import.is_public && target.starts_with(module);
                if !is_own_child {
                    targets.insert(target);
                }
            }
        }
        arrows
    }

    /// Sets of files that import each other, the largest first.
    fn circles(&self) -> Vec<Vec<String>> {
        let arrows = self.arrows();
        let reached: BTreeMap<&Module, BTreeSet<Module>> = arrows
            .keys()
            .map(|from| (from, reached_from(from, &arrows)))
            .collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for from in arrows.keys() {
            let back = |to: &&Module| reached.get(to).is_some_and(|set| set.contains(from));
            let circle: Vec<&Module> = reached[from].iter().filter(back).collect();
            if circle.len() > 1 && seen.insert(circle.clone()) {
                let path = |module: &Module| self.files[module].clone();
                circles.push(circle.into_iter().map(path).collect());
            }
        }
        circles.sort_by_key(|circle: &Vec<String>| std::cmp::Reverse(circle.len()));
        circles
    }
}

fn reached_from(from: &Module, arrows: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for target in arrows.get(module).into_iter().flatten() {
            if reached.insert(target.clone()) {
                open.push(target);
            }
        }
    }
    reached
}

/// The module that a file is, by its path from the folder of sources; `None` if it is not Rust.
fn module(path: &str) -> Option<Module> {
    let mut parts: Module = path
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    if parts.last().is_some_and(|last| last == "mod") || parts == ["lib"] || parts == ["main"] {
        parts.pop();
    }
    Some(parts)
}

/// Circles that are larger than permitted, and numbers in [`LARGER`] that are larger than necessary.
pub(crate) fn circles(files: &[RustFile], folders: &[String]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for folder in folders {
        let circles = Crate::of(files, folder).circles();
        let listed = LARGER.iter().find(|(name, _)| name == folder);
        let max = listed.map_or(FILES_MAX, |&(_, max)| max);
        let largest = circles.first().map_or(0, Vec::len);
        let mut report = |what| {
            violations.push(Violation {
                path: format!("{folder}/src"),
                line: 1,
                what,
            });
        };
        for (at, circle) in circles.iter().enumerate() {
            // The exception is for one circle, which is the first.
            let max = if at == 0 { max } else { FILES_MAX };
            if circle.len() > max {
                let files = circle.join(", ");
                report(format!(
                    "{} files import each other; {max} at most: {files}",
                    circle.len()
                ));
            }
        }
        if listed.is_some() && largest < max {
            report(format!(
                "the largest circle has {largest} files now: say so in LARGER"
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<RustFile> = files
            .iter()
            .map(|(path, text)| RustFile::new(&format!("x/src/{path}"), text))
            .collect();
        Crate::of(&files, "x").circles()
    }

    /// Goal: the rule detects circles. Method: a circle of four files through `self`, `super`, a list and a spelled-out
    /// path.
    #[test]
    fn circles_are_seen() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::{b::B, c};"),
            ("b/mod.rs", "mod d; use self::d::D; pub struct B;"),
            ("b/d.rs", "use super::super::c::C; pub struct D;"),
            ("c.rs", "pub struct C; fn f() -> crate::a::A { todo() }"),
        ];
        let [circle] = &found(&files)[..] else {
            panic!("{:?}", found(&files));
        };
        assert_eq!(circle.len(), 4, "{circle:?}");
    }

    /// Goal: what is not a circle is not reported as one. Method: names that are re-exported, a folder that re-exports
    /// its own, tests, other crates.
    #[test]
    fn what_is_passed_on_is_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            (
                "a.rs",
                "use crate::B; use verbs_core::A as Other; pub struct A;",
            ),
            (
                "b/mod.rs",
                "mod d; pub use d::B; #[cfg(test)] mod tests { use crate::A; }",
            ),
            (
                "b/d.rs",
                "pub struct B; #[cfg(test)] mod tests { use crate::A; }",
            ),
        ];
        assert_eq!(found(&files), [[""; 0]; 0]);
    }

    /// Goal: the limits are kept. Method: a crate without a limit and circles of three and four.
    #[test]
    fn larger_circles_are_violations() {
        let file = |name: char, next: char| {
            let text = format!("use crate::{next}::T; pub struct T;");
            RustFile::new(&format!("x/src/{name}.rs"), &text)
        };
        let three = [file('a', 'b'), file('b', 'c'), file('c', 'a')];
        assert_eq!(circles(&three, &["x".to_owned()]), []);
        let four = [
            file('a', 'b'),
            file('b', 'c'),
            file('c', 'd'),
            file('d', 'a'),
        ];
        assert_eq!(circles(&four, &["x".to_owned()]).len(), 1);
        let unneeded = circles(&[], &["verbs-core".to_owned()]);
        assert_eq!(unneeded.len(), 1, "{unneeded:?}");
        // A crate with an exception has it for one circle.
        let (name, max) = LARGER[0];
        let circle = |size: usize, from: char| {
            (0..size).map(move |n| {
                let text = format!("use crate::{from}{}::T; pub struct T;", (n + 1) % size);
                RustFile::new(&format!("{name}/src/{from}{n}.rs"), &text)
            })
        };
        let two: Vec<RustFile> = circle(max, 'a').chain(circle(4, 'b')).collect();
        let second = circles(&two, &[name.to_owned()]);
        assert_eq!(second.len(), 1, "{second:?}");
    }
}
