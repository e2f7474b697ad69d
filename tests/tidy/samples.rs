//! Bad samples for every rule, and good ones that look bad: a rule that no longer detects violations, or reports false
//! ones, fails here.

use crate::manifests::{self, Member};
use crate::tree::{RustFile, Text, mark_test_files};
use crate::{Violation, names, rules, scan};

/// A file with this text, as the only one of the tree.
fn one(path: &str, text: &str) -> Vec<RustFile> {
    vec![RustFile::new(path, text)]
}

/// The lines of the violations.
fn lines(violations: Vec<Violation>) -> Vec<usize> {
    violations.iter().map(|violation| violation.line).collect()
}

#[test]
fn prose_is_blanked_and_code_is_kept() {
    let samples = [
        ("a // unsafe\nb", "a\nb"),
        ("/* a /* unsafe */ b */ c", "c"),
        (r#"f("unsafe \" unsafe", x)"#, r#"f("", x)"#),
        (r##"f(r#"unsafe " unsafe"#, x)"##, r##"f(r#""#, x)"##),
        (
            r#"f(b"unsafe", br"unsafe\", c"unsafe")"#,
            r#"f(b"", br"", c"")"#,
        ),
        (r"f('\'', '\u{7f}', '{') + 'a'", r"f('', '', '') + ''"),
        (
            "fn f<'a>(x: &'a str) { unsafe {} }",
            "fn f<'a>(x: &'a str) { unsafe {} }",
        ),
        ("let r = var\"x\";", "let r = var\"\";"),
        ("'\"' + unsafe", "'' + unsafe"),
    ];
    for (text, wanted) in samples {
        let code = scan::code_only(text);
        assert_eq!(code.len(), text.len(), "{text}");
        let squeeze = |text: &str| text.replace(' ', "");
        assert_eq!(squeeze(&code), squeeze(wanted), "{text}");
    }
}

#[test]
fn unsafe_code_outside_a_door_is_seen() {
    let body = "// unsafe\nfn f() {\n    unsafe { g() }\n}\nunsafe impl Send for X {}\n";
    for path in [
        "verbs-core/src/queue_pair/qp.rs",
        "hca-sim/src/system.rs",
        "tests/src/lib.rs",
    ] {
        assert_eq!(
            lines(rules::unsafe_doors(&one(path, body))),
            [3, 5],
            "{path}"
        );
    }
    for path in [
        "verbs-core/src/memory/mem.rs",
        "verbs-core/src/memory/mem/copy.rs",
        "shims/ibumad/src/lib.rs",
    ] {
        assert_eq!(
            lines(rules::unsafe_doors(&one(path, body))),
            [0; 0],
            "{path}"
        );
    }
    let words = "#![deny(unsafe_code)]\nconst A: &str = \"unsafe\";\nfn not_unsafe_at_all() {}\n";
    assert_eq!(
        lines(rules::unsafe_doors(&one(
            "verbs-core/src/queue_pair/qp.rs",
            words
        ))),
        [0; 0]
    );
}

#[test]
fn relaxing_unsafe_code_anywhere_but_at_a_door_is_seen() {
    let door = "#[expect(unsafe_code, reason = \"a door\")]\npub(crate) mod mem;\n";
    let root = |text: &str| rules::unsafe_doors(&one("verbs-core/src/memory/mod.rs", text));
    assert_eq!(lines(root(door)), [0; 0]);
    assert_eq!(lines(root(&door.replace("mem", "qp"))), [1]);
    assert_eq!(
        lines(root(
            "#![allow(unsafe_code, reason = \"all of it\")]\nmod mem;\n"
        )),
        [1]
    );
    assert_eq!(
        lines(root(
            "fn f() {}\n#[allow(unsafe_code, reason = \"a hole\")]\nfn g() {}"
        )),
        [2]
    );
    let elsewhere = rules::unsafe_doors(&one("verbs-core/src/queue_pair/qp.rs", door));
    assert_eq!(lines(elsewhere), [1]);
}

#[test]
fn threads_of_protocols_are_seen() {
    let body = "fn f() { thread::spawn(|| ()); }\n#[cfg(test)]\nmod tests { fn g() { thread::spawn(|| ()); } }\n";
    assert_eq!(
        lines(rules::threads(&one("ulp-ipoib/src/lib.rs", body))),
        [1]
    );
    assert_eq!(
        lines(rules::threads(&one("verbs-core/src/lib.rs", body))),
        [0; 0]
    );
}

#[test]
fn threads_that_would_take_signals_are_seen() {
    let body = "fn f() { thread::Builder::new().spawn(|| ()); }\n#[cfg(test)]\nmod tests { fn g() { thread::spawn(|| ()); } }\n";
    let check = |path: &str| lines(rules::signals(&one(path, body)));
    for path in ["verbs-link/src/a.rs", "shims/ibverbs/src/a.rs"] {
        assert_eq!(check(path), [1], "{path}");
    }
    for path in [
        "verbs-core/src/sync/process/signals.rs",
        "verbs-core/src/testing/a.rs",
        "verbs-cli/src/a.rs",
    ] {
        assert_eq!(check(path), [0; 0], "{path}");
    }
}

#[test]
fn settings_that_are_read_directly_are_seen() {
    let check = |path: &str, body: &str| lines(rules::environment(&one(path, body)));
    for body in ["env::var_os(\"A\")", "std::env::var(\"B\")"] {
        assert_eq!(check("shims/ibverbs/src/a.rs", body), [1], "{body}");
        for path in [
            "verbs-core/src/sync/process/environment.rs",
            "shims/ibverbs/build.rs",
            "verbs-link/src/joined/tests/near.rs",
            "verbs-cli/src/a.rs",
        ] {
            assert_eq!(check(path, body), [0; 0], "{path}");
        }
    }
    assert_eq!(check("shims/ibverbs/src/a.rs", "env::args()"), [0; 0]);
}

#[test]
fn a_root_without_its_level_is_seen() {
    let member = |name: &str| vec![Member::new(name, &format!("[package]\nname = \"{name}\""))];
    let check = |name: &str, text: &str| {
        let file = one(&format!("{name}/src/lib.rs"), text);
        lines(rules::root_levels(&file, &member(name)))
    };
    assert_eq!(check("verbs-core", "#![deny(unsafe_code)]"), [0; 0]);
    assert_eq!(check("verbs-core", "// #![deny(unsafe_code)]"), [1]);
    assert_eq!(check("verbs-cm", "#![forbid(unsafe_code)]"), [0; 0]);
    assert_eq!(check("verbs-cm", "#![deny(unsafe_code)]"), [1]);
    assert_eq!(check("ulp-rds", ""), [1]);
}

#[test]
fn long_files_are_seen_and_tests_are_not_counted() {
    let code = "fn f() {}\n".repeat(590);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
    let check = |path: &str, text: &str| lines(rules::lengths(&one(path, text)));
    assert_eq!(check("x/src/a.rs", &code), [0; 0]);
    assert_eq!(check("x/src/a.rs", &format!("{code}{tests}")), [0; 0]);
    assert_eq!(check("x/src/a.rs", &format!("{code}{code}")), [1]);
    assert_eq!(
        check("x/src/a.rs", &tests.replace("(test)", "(unix)").repeat(2)),
        [1]
    );
    assert_eq!(check("x/src/tests.rs", &code.repeat(2)), [0; 0]);
    let loom = tests.replace("cfg(test)", "cfg(all(test, not(verbs_loom)))");
    assert_eq!(check("x/src/a.rs", &format!("{code}{loom}")), [0; 0]);

    for shipped in ["not(test)", "any(test, unix)", "feature = \"test\""] {
        let module = tests.replace("cfg(test)", &format!("cfg({shipped})"));
        assert_eq!(
            check("x/src/a.rs", &format!("{code}{module}")),
            [1],
            "{shipped}"
        );
    }

    let parent = RustFile::new("x/src/a.rs", "#[cfg(test)]\nmod models;\n");
    let child = RustFile::new("x/src/a/models.rs", &code.repeat(2));
    let stranger = RustFile::new("x/src/b/models.rs", &code.repeat(2));
    let found = rules::lengths(&mark_test_files(vec![parent, child, stranger]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, "x/src/b/models.rs");
}

#[test]
fn long_functions_are_seen() {
    let function = |body: usize| {
        format!(
            "\nfn f<T>(x: [u8; 3]) -> T {{\n{}}}\n",
            "g();\n".repeat(body)
        )
    };
    let check = |text: &str| lines(rules::lengths(&one("x/src/a.rs", text)));
    assert_eq!(check(&function(68)), [0; 0]);
    assert_eq!(check(&function(69)), [2]);
    let declared = format!("trait T {{ fn f(&self);\n{} }}", "\n".repeat(90));
    assert_eq!(check(&declared), [0; 0]);
    assert_eq!(
        check(&format!("let x: fn(u8) = g;{}", "\n".repeat(90))),
        [0; 0]
    );
}

#[test]
fn threads_and_locks_are_seen_however_imported() {
    let check = |path: &str, text: &str| lines(rules::synchronisation(&one(path, text)));
    let bad = [
        "use std::sync::Arc;",
        "use std::{fmt, sync::{Arc, Mutex}};",
        "use std::{\n    thread,\n};",
        "use core::sync::atomic::AtomicU8;",
        "use ::std::thread as t;",
        "fn f(x: std::sync::Arc<u8>) {}",
        "fn f() { loom::model(|| ()); }",
        "use loom;",
    ];
    for text in bad {
        assert!(!check("hca-sim/src/cq.rs", text).is_empty(), "{text}");
        assert!(
            !check("verbs-core/src/queues/cq.rs", text).is_empty(),
            "{text}"
        );
        assert_eq!(check("verbs-core/src/sync.rs", text), [0; 0], "{text}");
        assert_eq!(check("tests/src/lib.rs", text), [0; 0], "{text}");
    }
    let good = [
        "use crate::sync::Arc;",
        "use verbs_core::sync::{thread, Mutex};",
        "// std::sync::Arc",
        "#[cfg(verbs_loom)]\nuse crate::sync::model;",
        "std::thread_local! {}",
    ];
    for text in good {
        assert_eq!(check("hca-sim/src/cq.rs", text), [0; 0], "{text}");
    }
}

#[test]
fn loom_models_may_name_loom() {
    let body = "use loom::model;\nuse std::sync::Arc;\n";
    let inline = |condition: &str| {
        let text = format!("#[cfg({condition})]\nmod loom_tests {{\n{body}}}\n{body}");
        lines(rules::synchronisation(&one("hca-sim/src/cq.rs", &text)))
    };
    let sorted = |mut lines: Vec<usize>| {
        lines.sort_unstable();
        lines.dedup();
        lines
    };
    assert_eq!(sorted(inline("all(test, verbs_loom)")), [6, 7]);
    assert_eq!(sorted(inline("test")), [3, 4, 6, 7]);
    assert_eq!(sorted(inline("all(test, not(verbs_loom))")), [3, 4, 6, 7]);

    let file = |condition: &str| {
        let parent = format!("#[cfg({condition})]\nmod loom_tests;\n");
        let files = vec![
            RustFile::new("hca-sim/src/cq.rs", &parent),
            RustFile::new("hca-sim/src/cq/loom_tests.rs", body),
        ];
        rules::synchronisation(&mark_test_files(files)).is_empty()
    };
    assert!(file("all(test, verbs_loom)"));
    assert!(!file("test"));
}

#[test]
fn clocks_are_seen() {
    let check = |path: &str, text: &str| lines(rules::determinism(&one(path, text)));
    for text in [
        "use std::collections::HashMap;",
        "let now = Instant::now();",
        "let now = libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);",
        "use std::time::{Duration, SystemTime};",
        "sync::thread::sleep(x);",
    ] {
        for seeded in [
            "hca-sim/src/cq.rs",
            "verbs-link/src/packet/cable.rs",
            "verbs-wire/src/field.rs",
        ] {
            assert_eq!(check(seeded, text), [1], "{seeded}: {text}");
        }
        assert_eq!(check("verbs-link/src/time/wall.rs", text), [0; 0], "{text}");
        assert_eq!(check("verbs-core/src/queues/cq.rs", text), [0; 0], "{text}");
    }
    assert_eq!(
        check("hca-sim/src/cq.rs", "struct MyHashMapper; // HashMap"),
        [0; 0]
    );
}

#[test]
fn holes_are_seen() {
    let check = |text: &str| lines(rules::holes(&one("x/src/a.rs", text)));
    for text in [
        "#[allow(unused)]\nfn f() {}",
        "#![expect(missing_docs)]",
        "#[cfg_attr(unix, allow(unused))]\nfn f() {}",
        "#[allow(dead_code, reason = \"later\")]\nfn f() {}",
        "#[ignore]\nfn f() {}",
        "#[ignore = \"slow\"]\nfn f() {}",
        "#[cfg_attr(miri, ignore)]\nfn f() {}",
        "fn f() { todo!() }",
        "fn f() { unimplemented!(\"x\") }",
    ] {
        assert_eq!(check(text), [1], "{text}");
    }
    for text in [
        "#[allow(unused, reason = \"why\")]\nfn f() {}",
        "struct Keeper(#[expect(dead_code, reason = \"held for its Drop\")] Box<u8>);",
        "// #[ignore] todo!()",
        "#[derive(Debug)]\nstruct Ignore;",
        "const X: &str = \"#[ignore]\";",
    ] {
        assert_eq!(check(text), [0; 0], "{text}");
    }
}

#[test]
fn words_are_seen() {
    let check = |path: &str, text: &str| {
        let path = path.into();
        let text = text.into();
        lines(rules::words(&[Text { path, text }]))
    };
    let machine = concat!("/wo", "rk/x");
    let shared = concat!("../", "shared/peers");
    let later = concat!("TO", "DO");
    assert_eq!(check("README.md", &format!("a\nsee {machine}")), [2]);
    assert_eq!(check("README.md", &format!("see src{machine}")), [0; 0]);
    assert_eq!(check("x/src/a.rs", &format!("// {later}: more")), [1]);
    assert_eq!(check("x/src/a.rs", &format!("// MAS{later}S")), [0; 0]);
    assert_eq!(check("docs/a.md", shared), [1]);
    assert_eq!(check("ci/peers", shared), [1]);
}

fn member(folder: &str, name: &str, dependencies: &str) -> Member {
    let text = format!(
        "[package]\nname = \"{name}\"\nversion.workspace = true\nedition.workspace = true\n\
         rust-version.workspace = true\nlicense.workspace = true\n\n\
         [lints]\nworkspace = true\n\n{dependencies}"
    );
    Member::new(folder, &text)
}

/// A crate of each place below the tests.
const HOUSE: [&str; 15] = [
    "verbs-core",
    "verbs-abi",
    "verbs-wire",
    "verbs-link",
    "verbs-subnet",
    "hca-sim",
    "verbs-simulator",
    "hca-rdma",
    "verbs-cm",
    "verbs-io",
    "verbs-sm",
    "verbs-host",
    "ulp-rds",
    "verbs-cli",
    "verbs-rdma",
];

/// Edges that point up or sideways.
const UP: &[(&str, &str)] = &[
    ("verbs-core", "hca-sim"),
    ("verbs-wire", "hca-sim"),
    ("verbs-wire", "verbs-link"),
    ("verbs-link", "hca-sim"),
    ("verbs-link", "verbs-subnet"),
    ("verbs-subnet", "hca-sim"),
    ("verbs-sm", "verbs-subnet"),
    ("verbs-cm", "verbs-link"),
    ("verbs-core", "verbs-wire"),
    ("verbs-cm", "verbs-wire"),
    ("ulp-rds", "verbs-wire"),
    ("hca-sim", "verbs-cm"),
    ("verbs-cm", "hca-sim"),
    ("verbs-sm", "hca-sim"),
    ("hca-rdma", "hca-sim"),
    ("hca-sim", "hca-rdma"),
    ("hca-sim", "verbs-abi"),
    ("hca-sim", "verbs-simulator"),
    ("verbs-simulator", "verbs-io"),
    ("verbs-host", "verbs-simulator"),
    ("ulp-rds", "verbs-simulator"),
    ("verbs-abi", "verbs-wire"),
    ("verbs-sm", "verbs-cm"),
    ("verbs-io", "hca-sim"),
    ("verbs-io", "verbs-sm"),
    ("verbs-cm", "verbs-io"),
    ("verbs-rdma", "verbs-cli"),
    ("ulp-srp", "verbs-sm"),
    ("ulp-srp", "hca-sim"),
    ("ulp-srp", "ulp-rds"),
    ("verbs-host", "hca-sim"),
    ("verbs-host", "verbs-link"),
    ("verbs-host", "verbs-io"),
    ("ulp-srp", "verbs-host"),
    ("hca-sim", "verbs-host"),
    ("verbs-tests-too", "verbs-core"),
];

/// Edges of the house plan.
const DOWN: &[(&str, &str)] = &[
    ("hca-rdma", "verbs-core"),
    ("hca-rdma", "verbs-abi"),
    ("verbs-abi", "verbs-core"),
    ("hca-sim", "verbs-core"),
    ("hca-sim", "verbs-wire"),
    ("hca-sim", "verbs-link"),
    ("hca-sim", "verbs-subnet"),
    ("verbs-simulator", "hca-sim"),
    ("verbs-simulator", "verbs-cm"),
    ("verbs-simulator", "verbs-host"),
    ("verbs-cli", "verbs-simulator"),
    ("verbs-subnet", "verbs-link"),
    ("verbs-link", "verbs-wire"),
    ("verbs-wire", "verbs-core"),
    ("verbs-cm", "verbs-core"),
    ("verbs-sm", "verbs-core"),
    ("verbs-io", "verbs-cm"),
    ("ulp-srp", "verbs-cm"),
    ("ulp-srp", "verbs-io"),
    ("verbs-rdma", "verbs-io"),
    ("verbs-rdma", "hca-sim"),
    ("verbs-cli", "hca-sim"),
    ("verbs-tests", "ulp-rds"),
    ("verbs-core", "bitflags"),
];

#[test]
fn edges_that_point_up_or_sideways_are_seen() {
    let house = |folder: &str, name: &str, dependency: &str| {
        let mut members: Vec<Member> = HOUSE
            .iter()
            .filter(|other| **other != name)
            .map(|name| member(name, name, ""))
            .collect();
        members.push(member(folder, name, dependency));
        manifests::edges(&members).len()
    };
    let on = |package: &str| format!("[dependencies]\n{package}.workspace = true\n");
    for &(name, package) in UP {
        assert_eq!(house(name, name, &on(package)), 1, "{name} -> {package}");
    }
    for &(name, package) in DOWN {
        assert_eq!(house(name, name, &on(package)), 0, "{name} -> {package}");
    }
    assert_eq!(house("shims/ibumad", "ibumad", &on("hca-sim")), 0);
    assert_eq!(house("shims/ibumad", "ibumad", &on("verbs-cli")), 1);
    // E3: shims are leaves, whichever crate would name one.
    for name in HOUSE {
        let mut members: Vec<Member> = HOUSE
            .iter()
            .filter(|other| **other != name)
            .map(|name| member(name, name, ""))
            .collect();
        members.push(member("shims/ibumad", "ibumad", ""));
        members.push(member(name, name, &on("ibumad")));
        assert_eq!(manifests::edges(&members).len(), 1, "{name} -> a shim");
    }
    for hidden in [
        "[dev-dependencies]\nhca-sim = { path = \"../hca-sim\" }",
        "[build-dependencies]\nhca-sim.workspace = true",
        "[target.'cfg(unix)'.dependencies]\nhca-sim.workspace = true",
        "[dependencies]\nother = { package = \"hca-sim\", path = \"../hca-sim\" }",
    ] {
        assert_eq!(house("verbs-core", "verbs-core", hidden), 1, "{hidden}");
    }
}

/// Goal: tests may load a library for C programs, and nothing more. Method: the one that is listed, of two kinds.
#[test]
fn libraries_that_tests_load_are_no_edges() {
    let check = |name: &str, table: &str, kinds: &str| {
        let on = format!("[{table}]\nverbs-ibverbs.workspace = true\n");
        let library = format!("[lib]\ncrate-type = [{kinds}]\n");
        let members = [
            member(name, name, &on),
            member("shims/ibverbs", "verbs-ibverbs", &library),
        ];
        manifests::edges(&members).len()
    };
    let (dev, cdylib) = ("dev-dependencies", "\"cdylib\"");
    assert_eq!(check("hca-rdma", dev, cdylib), 0);
    assert_eq!(check("hca-rdma", "dependencies", cdylib), 1);
    assert_eq!(check("hca-rdma", dev, "\"cdylib\", \"rlib\""), 1);
    assert_eq!(check("hca-sim", dev, cdylib), 1);
}

#[test]
fn habits_that_are_missing_are_seen() {
    let check = |member: Member| manifests::habits(&[member]).len();
    assert_eq!(check(member("verbs-core", "verbs-core", "")), 0);
    assert_eq!(
        check(Member::new(
            "verbs-core",
            "[package]\nname = \"verbs-core\""
        )),
        5
    );
    let tokio = "[dependencies]\ntokio = \"1\"";
    assert_eq!(check(member("verbs-core", "verbs-core", tokio)), 1);
    assert_eq!(check(member("verbs-cli", "verbs-cli", tokio)), 0);
    assert_eq!(
        check(member(
            "verbs-cm",
            "verbs-cm",
            "[dev-dependencies]\ntokio = \"1\""
        )),
        0
    );
    assert_eq!(
        check(member("hca-sim", "hca-sim", "[[bin]]\nname = \"x\"")),
        1
    );
}

/// Goal: a new crate cannot be left out of the lists. Method: one in a place whose runs a seed determines, and one with
/// models.
#[test]
fn forgotten_crates_are_seen() {
    let loom = "[target.'cfg(verbs_loom)'.dependencies]\nloom.workspace = true";
    let known = member("verbs-link", "verbs-link", loom);
    let missing = member("elsewhere", "verbs-wire", "");
    let found = |members: &[Member], script: &str| rules::forgotten(members, script).len();
    assert_eq!(found(&[known], "models -p verbs-link loom_"), 0);
    let known = member("verbs-link", "verbs-link", loom);
    assert_eq!(found(&[known, missing], "models -p verbs-core loom_"), 3);
}

/// The documents whose names are checked, with these lines in the first and in that of the rows.
fn documents(readme: &str, rows: &str) -> Vec<Text> {
    let documents = [
        ("README.md", readme),
        ("ARCHITECTURE.md", "# The code\n"),
        ("docs/STATUS.md", "# What works\n\n## Not yet\n"),
        (names::ROWS, rows),
        (
            names::RULES,
            "| K1 | a | `k1_a_test` |\n| K2 | a, `a_b` | `k2_no_test`, `wait()` |\n",
        ),
    ];
    let text = |(path, text): (&str, &str)| Text {
        path: path.into(),
        text: text.into(),
    };
    documents.into_iter().map(text).collect()
}

#[test]
fn files_that_no_document_can_name_are_seen() {
    let there = names::Paths::new([
        "hca-sim/src/qp/control.rs",
        "hca-rdma/src/nic.rs",
        "ci/peers.d/rxe",
    ]);
    let rows = "`hca-sim/src/qp/control.rs`\n`hca-sim/src/control.rs`\n";
    let good = "`hca-sim/src/`, `control.rs`, `qp/control.rs`, `ci/peers.d/rxe --all`, `a/b c`, `roce://a/b`\n";
    let bad = "\n`nic.rs`\n`hca-sim/src/`, `nic.rs`\n`ci/peers.d/siw`\n`hca-rdma/src/{nic,cm}.rs`\n\n    `none.rs`\n";
    let found = names::paths(&documents(&format!("{good}{bad}"), rows), &there);
    let found: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.line)).collect();
    let readme = [3, 4, 5, 6].map(|line| ("README.md", line));
    assert_eq!(found, [&readme[..], &[(names::ROWS, 2)]].concat());
}

#[test]
fn links_to_what_there_is_not_are_seen() {
    let there = names::Paths::new(["README.md", "docs/STATUS.md"]);
    let good = "[a](docs/STATUS.md#not-yet) [b](docs) [c](https://a/b) [d](#title)\n# Title\n";
    let bad = "[a](STATUS.md)\n[b](docs/STATUS.md#not)\n[c](#none)\n";
    let rows = "[a](../README.md) [b](STATUS.md)\n[c](README.md)\n";
    let found = names::links(&documents(&format!("{good}{bad}"), rows), &there);
    assert_eq!(lines(found), [3, 4, 5, 2]);
}

#[test]
fn rows_without_their_test_are_seen() {
    let code = "#[test]\nfn k1_a_test() {}\n\n#[test]\n#[ignore]\nfn another_test() {}\n\nfn not_a_test() {}\n";
    let files = one("hca-sim/tests/a.rs", code);
    let tests = names::tests(&files);
    assert_eq!(Vec::from_iter(&tests), [&"another_test", &"k1_a_test"]);
    let rows = "| id | what | state | test |\n\
        | A1 | a | works | `k1_a_test`, `Provider::not_a_test` |\n\
        | A2 | a | partly | `k1_*` and `another_*`, `hca-sim/tests` |\n\
        | A3 | a | not yet | |\n\
        | P1 | a pain | a | works | `ci/peers.d/rxe` |\n\
        | A4 | a | works | `not_a_test` |\n\
        | A5 | a | works | `k1_a_tes` |\n\
        | A6 | a | yes | `k1_a_test` |\n\
        | A7 | a | works | `hca-sim/src` shows it |\n\
        | A8 | a | works | `k2_*` |\n";
    assert_eq!(
        lines(names::rows(&documents("", rows), &tests)),
        [6, 7, 8, 9, 10, 2]
    );
}
