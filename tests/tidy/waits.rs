//! Rules about what tests wait for: an event, and not a time that a busy machine takes longer for. The programs that
//! `ci/realtime.list` names are exempt; their tests run once more when they fail.
//!
//! Time is that of the machine, `std::thread::sleep` and `std::time::Instant`; simulated time costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::Violation;
use crate::limits::{self, Named};
use crate::realtime::{LIST, Place, Programs};
use crate::scan::{self, line_of};
use crate::tree::RustFile;

/// The functions that may sleep between two looks, one for each program: they return at an event, and have a deadline.
const HELPERS: [&str; 2] = ["until", "wait_until"];

/// Files with one sleep that is not a wait for something, and the reason.
const SUBJECTS: &[(&str, &str)] = &[
    ("tests/exact/main.rs", "a sleep that must be counted"),
    ("tests/matrix/filter.rs", "a sleep that must be fatal"),
    ("verbs-cli/tests/storm.rs", "a pace that the user sets"),
];

/// Sleeps, and limits of time that a busy machine exceeds.
pub(crate) fn waits(files: &[RustFile], programs: &Programs<'_>) -> Vec<Violation> {
    let mut named = BTreeMap::<&str, Named>::new();
    for file in files {
        if let Some(place) = programs.place(&file.path) {
            let named = named.entry(&place.program).or_default();
            named.extend(limits::named(file));
        }
    }
    let mut violations = Vec::new();
    let mut helpers = BTreeSet::new();
    for file in files {
        let Some(place) = programs.place(&file.path) else {
            continue;
        };
        let tests = tests_in(file);
        if tests.is_empty() || programs.lists(place) {
            continue;
        }
        // A name of the file itself comes first.
        let mut known = limits::named(file);
        known.extend_from_slice(&named[place.program.as_str()]);
        let mut found = sleeps(file, place, &mut helpers);
        found.extend(limits::limits(file, &known));
        found.retain(|(at, _)| tests.iter().any(|tests| tests.contains(at)));
        violations.extend(found.into_iter().map(|(at, what)| Violation {
            path: file.path.clone(),
            line: line_of(&file.code, at),
            what: format!("{what}; {}", right(&place.program)),
        }));
    }
    violations
}

/// What would be right.
fn right(program: &str) -> String {
    format!(
        "wait for the event itself, with a deadline of 60 s. {program} is not in {LIST}, which is for programs of real \
         sockets and processes that cannot do otherwise, and may only become shorter"
    )
}

/// The parts of a file that exist only in tests.
fn tests_in(file: &RustFile) -> Vec<Range<usize>> {
    let is_test = file.is_test || file.path.starts_with("tests/") || file.path.contains("/tests/");
    match is_test {
        true => std::iter::once(0..file.code.len()).collect(),
        false => file.test_modules.clone(),
    }
}

/// Where it sleeps, except in a helper, and helpers that have no deadline or are not the first of their program.
fn sleeps(file: &RustFile, place: &Place, helpers: &mut BTreeSet<String>) -> Vec<(usize, String)> {
    let code = &file.code;
    let mut found = Vec::new();
    let mut imports = Vec::new();
    for (at, path) in scan::imports(code) {
        imports.push(at..at + code[at..].find(';').unwrap_or(0));
        if path.trim_start_matches("::") == "std::thread::sleep" {
            found.push((
                at,
                "sleep is imported, and not seen where it is called".into(),
            ));
        }
    }
    let functions = scan::functions(code);
    let mut sleeping = BTreeSet::new();
    let calls =
        scan::words(code, "thread::sleep").filter(|at| !imports.iter().any(|it| it.contains(at)));
    for (number, at) in calls.enumerate() {
        let helper = functions
            .iter()
            .find(|it| it.range.contains(&at) && HELPERS.contains(&it.name));
        let is_subject = number == 0 && SUBJECTS.iter().any(|(path, _)| *path == file.path);
        match helper {
            Some(helper) => {
                if sleeping.insert(helper.range.start) && !helpers.insert(place.program.clone()) {
                    found.push((at, "a second helper of this program sleeps".into()));
                }
                if !code[helper.range.clone()].contains("Instant::now()") {
                    found.push((at, format!("{} has no deadline", helper.name)));
                }
            }
            None if !is_subject => found.push((
                at,
                format!(
                    "thread::sleep outside of a helper called {}",
                    HELPERS.join(" or ")
                ),
            )),
            None => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::Member;

    const NAMED: &str = "# Why.\nhca-sim/udp   # sockets\nverbs-link/verbs_link ^udp::\nverbs-tests/io _over_udp$\n";

    fn members() -> Vec<Member> {
        let member = |folder: &str, name: &str| {
            Member::new(folder, &format!("[package]\nname = \"{name}\"\n"))
        };
        vec![
            member("hca-sim", "hca-sim"),
            member("verbs-link", "verbs-link"),
            member("tests", "verbs-tests"),
        ]
    }

    /// The violations of such a file beside the roots of the programs.
    fn found(path: &str, text: &str) -> Vec<String> {
        let roots = [
            "hca-sim/tests/udp.rs",
            "tests/io/main.rs",
            "verbs-link/src/lib.rs",
        ];
        let files = roots.iter().map(|root| RustFile::new(root, ""));
        let files: Vec<_> = files.chain([RustFile::new(path, text)]).collect();
        let members = members();
        let found = waits(&files, &Programs::new(&files, &members, NAMED));
        found.iter().map(Violation::to_string).collect()
    }

    /// Goal: the rule detects violations, in each kind of test code.
    #[test]
    fn sleeps_and_short_limits_are_seen() {
        let sleep = "use std::thread;\nfn f() { thread::sleep(Duration::from_secs(1)); }";
        for path in [
            "hca-sim/tests/fire.rs",
            "tests/io/over.rs",
            "verbs-link/src/ring/tests.rs",
        ] {
            let found = found(path, sleep);
            assert_eq!(found.len(), 1, "{path}: {found:?}");
            assert!(found[0].starts_with(&format!("{path}:2: thread::sleep outside")));
        }
        for (text, what) in [
            ("use std::thread::{self, sleep};", "imported"),
            (
                "fn f() { assert!(begun.elapsed() < Duration::from_secs(8)); }",
                "elapsed() <",
            ),
            (
                "fn f() { while since.elapsed().as_millis() <= 500 {} }",
                "500ms",
            ),
            (
                "const A: Duration = Duration::from_secs(10);\nfn f() { while it.elapsed() < 2 * A {} }",
                "20s",
            ),
            (
                "fn f() { let took = begun.elapsed();\nassert!(ok && took < TWO); }",
                "took < TWO",
            ),
            (
                "fn f() { let end = Instant::now() + Duration::from_millis(5); }",
                "5ms",
            ),
            (
                "fn f() { told.recv_timeout(Duration::from_secs(20)); }",
                "20s",
            ),
            (
                "fn f() { assert!(begun.elapsed() < long()); }",
                "cannot read",
            ),
            (
                "fn until() { loop { thread::sleep(SHORT); } }",
                "no deadline",
            ),
            (
                "fn other() { let end = Instant::now(); thread::sleep(SHORT); }",
                "outside",
            ),
        ] {
            let found = found("hca-sim/tests/fire.rs", text);
            assert!(
                found.iter().any(|found| found.contains(what)),
                "{text}: {found:?}"
            );
        }
        let module = format!("{sleep}\n#[cfg(test)]\nmod tests {{\n{sleep}\n}}\n");
        let found = found("verbs-link/src/ring.rs", &module);
        assert!(
            found.len() == 1 && found[0].contains("ring.rs:6: "),
            "{found:?}"
        );
    }

    /// Goal: what waits for events is accepted, and so are the programs of the list, and simulated time.
    #[test]
    fn waits_for_events_and_listed_programs_are_accepted() {
        for text in [
            "fn f() { sim.sleep(Duration::from_secs(1)); clock.advance(TICK); }",
            "const PATIENCE: Duration = Duration::from_secs(60);\nfn until() { let end = Instant::now() + PATIENCE;\n\
             while !so() { assert!(Instant::now() < end); thread::sleep(Duration::from_millis(1)); } }",
            "fn f() { assert!(begun.elapsed().as_secs() < 30 && begun.elapsed() > SHORT); }",
            "fn f() { let took = sim.now().since(start); assert!(took < Duration::from_millis(1)); }",
            "fn f() { told.recv_timeout(2 * super::HALF); } const HALF: Duration = Duration::from_secs(15);",
            "// thread::sleep(x)\nfn f() { g(\"thread::sleep\"); thread::yield_now(); }",
        ] {
            let found = found("hca-sim/tests/fire.rs", text);
            assert!(found.is_empty(), "{text}: {found:?}");
        }
        let sleep = "fn f() { thread::sleep(Duration::from_secs(1)); }";
        for path in [
            "hca-sim/tests/udp.rs",
            "hca-sim/tests/udp/ends.rs",
            "hca-sim/src/port.rs",
            "verbs-link/src/udp/tests.rs",
            "benches/src/lib.rs",
        ] {
            let found = found(path, sleep);
            assert!(found.is_empty(), "{path}: {found:?}");
        }
    }

    /// Goal: one helper of a program sleeps, a folder that programs share is exempt where all of them are, and the list
    /// only becomes shorter and names what there is.
    #[test]
    fn helpers_shared_folders_and_the_list_are_judged() {
        let helper = "fn until() { let end = Instant::now() + Duration::from_secs(60); thread::sleep(SHORT); }";
        let two = format!("mod one {{ {helper} }}\nmod two {{ {helper} }}");
        let found_two = found("hca-sim/tests/fire.rs", &two);
        assert!(
            found_two.len() == 1 && found_two[0].contains(":2: a second helper"),
            "{found_two:?}"
        );
        let sleep = "fn f() { thread::sleep(SHORT); }";
        let of = |paths: &[&str], list: &str| {
            let files: Vec<_> = paths.iter().map(|it| RustFile::new(it, sleep)).collect();
            let (members, list) = (members(), list.to_owned());
            let programs = Programs::new(&files, &members, &list);
            (waits(&files, &programs).len(), programs.list().len())
        };
        let shared = |beside| ["hca-sim/tests/child/mod.rs", beside];
        assert_eq!(of(&shared("hca-sim/tests/udp.rs"), NAMED).0, 0);
        assert_eq!(of(&shared("hca-sim/tests/fire.rs"), NAMED).0, 2);

        let lines = |count: usize| "hca-sim/udp\n".repeat(count);
        let listed = |count| of(&["hca-sim/tests/udp.rs"], &lines(count)).1;
        assert_eq!([18, 19, 20].map(listed), [1, 0, 1]);
        assert_eq!(of(&[], &lines(19)).1, 19);
    }
}
