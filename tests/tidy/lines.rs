//! The amount of code: lines with code on them, without comments, blank lines and tests.

use std::collections::BTreeMap;

use crate::tree::{RustFile, Tree};

/// The facade in the style of the old stack, whose size is compared with that of the core under it.
const FACADE: &str = "verbs-core/src/control/compat.rs";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    tests: usize,
}

/// The lines of a file; lines of test modules inside it count as tests.
fn lines_of(file: &RustFile) -> Lines {
    let count = |code: &str| code.lines().filter(|line| !line.trim().is_empty()).count();
    let all = count(&file.code);
    let is_test = file.is_test || !file.path.contains("/src/") || file.path.contains("/tests/");
    let tests = match is_test {
        true => all,
        false => {
            let modules = file.test_modules.iter().cloned();
            modules.map(|module| count(&file.code[module])).sum()
        }
    };
    Lines {
        code: all - tests,
        tests,
    }
}

/// The crate that a file belongs to.
fn package(path: &str) -> &str {
    let folders = if path.starts_with("shims/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(folders - 1);
    &path[..end.map_or(path.len(), |(at, _)| at)]
}

/// Goal: the size of the code is known, and that of the facade compared with the core below it. Method: a table,
/// printed with `--nocapture`; the facade adds no more than a thirtieth.
#[test]
fn lines_of_code_are_reported() {
    let tree = Tree::of_workspace();
    let mut packages = BTreeMap::<&str, Lines>::new();
    for file in &tree.rust {
        let (sum, lines) = (
            packages.entry(package(&file.path)).or_default(),
            lines_of(file),
        );
        sum.code += lines.code;
        sum.tests += lines.tests;
    }
    println!("{:<16} {:>7} {:>7}", "lines of", "code", "tests");
    for (name, lines) in &packages {
        println!("{name:<16} {:>7} {:>7}", lines.code, lines.tests);
    }
    let facade = tree.rust.iter().find(|file| file.path == FACADE);
    let facade = lines_of(facade.expect("the facade is where it was")).code;
    let core = packages["verbs-core"].code - facade;
    println!("{FACADE}: {facade} lines; the core without it: {core}");
    assert!(facade > 0 && core > 30 * facade, "{facade} of {core} lines");
    assert!(packages.len() > 8 && packages.values().all(|lines| lines.code + lines.tests > 0));
}

#[test]
fn lines_with_code_are_counted() {
    let text = "//! Doc.\n\nfn one() {\n    two(); // why\n}\n\n#[cfg(test)]\nmod tests {\n    fn three() {}\n}\n";
    let lines = lines_of(&RustFile::new("verbs-core/src/a.rs", text));
    assert_eq!(lines, Lines { code: 3, tests: 4 });
    let lines = lines_of(&RustFile::new("verbs-core/tests/a.rs", text));
    assert_eq!(lines, Lines { code: 0, tests: 7 });
    assert_eq!(package("shims/ibumad/src/lib.rs"), "shims/ibumad");
    assert_eq!(package("hca-sim/src/lib.rs"), "hca-sim");
}
