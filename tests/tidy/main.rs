//! The house rules, checked against the tree: edges between crates, unsafe doors, lengths, where
//! threads and clocks may be named, what tests wait for, errors, attributes, words that do not belong in a source tree, and
//! names in documents.
//!
//! Each rule is one test, whose failure lists every violation as `file:line: what`. The rules see code through
//! [`scan`], which blanks out comments and strings. [`samples`] feeds bad samples to every rule, so that a rule that no
//! longer detects violations fails there.
//!
//! `cargo test -p verbs-tests --test tidy`

use std::fmt;

mod circles;
mod errors;
mod fuzzed;
mod limits;
mod lines;
mod manifests;
mod names;
mod parity;
mod realtime;
mod rules;
#[cfg(test)]
mod samples;
mod scan;
mod tree;
mod types;
mod waits;

use tree::Tree;

/// Where a rule is broken, and how.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Fails with a readable list unless `violations` is empty.
fn none(rule: &str, mut violations: Vec<Violation>) {
    violations.sort();
    violations.dedup();
    let list: Vec<String> = violations.iter().map(Violation::to_string).collect();
    assert!(
        list.is_empty(),
        "{rule}: {} violation(s)\n  {}\n",
        list.len(),
        list.join("\n  ")
    );
}

/// Goal: a rule that finds no files cannot pass. Method: files that must exist are found.
#[test]
fn the_tree_is_seen() {
    let tree = Tree::of_workspace();
    for path in [
        "verbs-core/src/lib.rs",
        "hca-sim/src/lib.rs",
        "ulp-srp/src/target/mod.rs",
        "tests/tidy/main.rs",
    ] {
        assert!(tree.rust.iter().any(|file| file.path == path), "{path}");
    }
    for path in ["Cargo.toml", "README.md", "ci/gate", ".ci/run"] {
        assert!(tree.texts.iter().any(|text| text.path == path), "{path}");
    }
    assert!(manifests::members().len() >= 5);
}

#[test]
fn edges_between_crates_point_down() {
    none("edges", manifests::edges(&manifests::members()));
}

#[test]
fn members_follow_the_house_plan() {
    none("manifests", manifests::habits(&manifests::members()));
}

#[test]
fn no_crate_is_forgotten_by_these_rules() {
    let tree = Tree::of_workspace();
    let loom = tree.texts.iter().find(|text| text.path == "ci/loom");
    let loom = loom.map_or("", |text| text.text.as_str());
    none("forgotten", rules::forgotten(&manifests::members(), loom));
}

#[test]
fn unsafe_code_stays_behind_its_doors() {
    let tree = Tree::of_workspace();
    for (path, reason) in rules::DOORS {
        println!("door: {path}: {reason}");
    }
    none("unsafe", rules::unsafe_doors(&tree.rust));
    none(
        "crate roots",
        rules::root_levels(&tree.rust, &manifests::members()),
    );
}

#[test]
fn errors_say_their_cause_once() {
    none(
        "said twice",
        errors::said_twice(&Tree::of_workspace().texts),
    );
}

#[test]
fn files_and_functions_are_short() {
    none("length", rules::lengths(&Tree::of_workspace().rust));
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    none(
        "circles",
        circles::circles(&Tree::of_workspace().rust, &folders()),
    );
}

/// The folders of the workspace's members.
fn folders() -> Vec<String> {
    let members = manifests::members().into_iter();
    members.map(|member| member.folder).collect()
}

#[test]
fn types_and_folders_are_small() {
    let tree = Tree::of_workspace();
    none("types", types::types(&tree.rust, &folders()));
    none("rooms", types::rooms(&tree.rust, &folders()));
}

#[test]
fn arrows_inside_the_device_point_down() {
    none("floors", types::floors(&Tree::of_workspace().rust));
}

#[test]
fn one_module_names_threads_and_locks() {
    none("sync", rules::synchronisation(&Tree::of_workspace().rust));
}

#[test]
fn protocols_above_the_verbs_make_no_thread() {
    none("threads", rules::threads(&Tree::of_workspace().rust));
}

#[test]
fn threads_of_libraries_take_no_signals() {
    none("signals", rules::signals(&Tree::of_workspace().rust));
}

#[test]
fn libraries_follow_no_settings_with_rights_that_the_user_has_not() {
    let tree = Tree::of_workspace();
    none("environment", rules::environment(&tree.rust));
}

#[test]
fn the_simulator_is_deterministic() {
    none(
        "determinism",
        rules::determinism(&Tree::of_workspace().rust),
    );
}

#[test]
fn attributes_and_macros_leave_no_holes() {
    none("holes", rules::holes(&Tree::of_workspace().rust));
}

#[test]
fn tests_wait_for_events_and_not_for_time() {
    let tree = Tree::of_workspace();
    let list = tree.texts.iter().find(|text| text.path == realtime::LIST);
    let list = list.map_or("", |list| list.text.as_str());
    let programs = realtime::Programs::new(&tree.rust, &manifests::members(), list);
    none("waits", waits::waits(&tree.rust, &programs));
    none("list", programs.list());
}

#[test]
fn no_words_that_do_not_belong() {
    none("words", rules::words(&Tree::of_workspace().texts));
}

#[test]
fn who_reads_foreign_bytes_is_fuzzed() {
    let tree = Tree::of_workspace();
    none("fuzz", fuzzed::targets(&tree.rust, &tree.texts));
    none("corpora", fuzzed::folders(&tree::root(), &tree.texts));
}

#[test]
fn every_call_of_ofed_has_a_row() {
    let tree = Tree::of_workspace();
    none("parity", parity::parity(&tree.texts, &tree.rust));
}

#[test]
fn documents_name_what_is_there() {
    let tree = Tree::of_workspace();
    // Of what is at the root, some files are not for readers: the licences.
    let root = std::fs::read_dir(tree::root()).expect("the workspace's root");
    let root = root.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let root: Vec<String> = root.collect();
    let files = tree.texts.iter().map(|text| &text.path).chain(&root);
    let paths = names::Paths::new(files.map(String::as_str));
    none("names", names::paths(&tree.texts, &paths));
    none("links", names::links(&tree.texts, &paths));
    none("rows", names::rows(&tree.texts, &names::tests(&tree.rust)));
}
