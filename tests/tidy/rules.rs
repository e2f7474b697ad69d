//! Rules about source files.

use crate::Violation;
use crate::manifests::{self, Member};
use crate::scan::{self, line_of};
use crate::tree::{RustFile, Text};

/// Where unsafe code may be: a module's path without `.rs`, and the reason. A door is a file, or a folder with
/// everything in it.
pub(crate) const DOORS: &[(&str, &str)] = &[
    (
        "verbs-core/src/memory/mem",
        "registered memory, keys and windows",
    ),
    (
        "verbs-core/src/devices/provider/vouch",
        "a provider's word for registered memory",
    ),
    (
        "hca-sim/src/hca/provider/vouch",
        "the word of the HCA, and of its command interface",
    ),
    ("hca-rdma/src/nic/vouch", "the word of a NIC"),
    ("verbs-core/src/sync/biased", "what shared queues hold"),
    (
        "verbs-core/src/sync/process",
        "the mask of signals of a thread that starts another, and whose rights the process has",
    ),
    (
        "verbs-core/src/sync/slot",
        "the slot of a pending request, cells side by side",
    ),
    (
        "verbs-io/src/endpoint/trust",
        "the owner's word in place of a provider's",
    ),
    (
        "verbs-io/src/buf",
        "slices of registered memory that only their holder reaches",
    ),
    (
        "verbs-link/src/sys",
        "raw iovecs into registered memory, shared mappings, descriptors that arrive",
    ),
    (
        "verbs-abi/src",
        "types of C functions, which are unsafe to call",
    ),
    ("hca-rdma/src/sys", "calls of the system's C libraries"),
    (
        "hca-rdma/tests/nic/rdma_core",
        "libraries that the test names are loaded",
    ),
    ("shims", "C ABIs"),
    (
        "benches/counts/nic/raw",
        "calls of C functions, to compare with",
    ),
    ("tests/exact/allocator", "an allocator that counts"),
    ("tests/exact/steps", "code that is stepped through"),
    ("tests/ipoib/allocator", "the same file"),
    ("tests/rds/allocator", "the same file"),
];

/// Lines that a file may have, its test modules not counted.
const FILE_LINES_MAX: usize = 600;

/// Lines that a function may have, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// The only module of the lower layers that names threads, locks and loom.
const SYNC: &str = "verbs-core/src/sync.rs";

/// The crates that [`SYNC`] speaks for.
const SYNC_FOR: [&str; 8] = [
    "verbs-core/src/",
    "verbs-io/src/",
    "verbs-wire/src/",
    "verbs-link/src/",
    "verbs-subnet/src/",
    "hca-sim/src/",
    "verbs-simulator/src/",
    "hca-rdma/src/",
];

/// The paths that [`SYNC`] hides.
const SYNC_PATHS: [&str; 5] = [
    "std::sync",
    "core::sync",
    "alloc::sync",
    "std::thread",
    "loom",
];

/// The protocols above the verbs, all of whose work happens in completions, and the calls that make a thread.
const THREADLESS: [&str; 5] = [
    "ulp-ipoib/src/",
    "ulp-srp/src/",
    "ulp-rds/src/",
    "verbs-cm/src/",
    "verbs-sm/src/",
];
const THREADS: [&str; 4] = [
    "thread::spawn",
    "thread::scope",
    "thread::Builder",
    "spawn_blocking",
];

/// Of the crates that programs link, the only file where a thread is made, as it blocks the program's signals there, and the
/// only one that reads the environment, as it may be that of a user with fewer rights. The suite in verbs-core is for tests;
/// a command's threads and settings are its own.
const SPAWN: &str = "verbs-core/src/sync/process/signals.rs";
const LINKED: [&str; 10] = [
    "hca-rdma/src/",
    "hca-sim/src/",
    "shims/",
    "verbs-core/src/",
    "verbs-host/src/",
    "verbs-io/src/",
    "verbs-link/src/",
    "verbs-subnet/src/",
    "verbs-wire/src/",
    "verbs/src/",
];
const ENVIRONMENT: &str = "verbs-core/src/sync/process/environment.rs";
const VARIABLES: [&str; 3] = ["env::var", "env::var_os", "env::vars"];
const SUITE: &str = "verbs-core/src/testing/";

/// Names that make a run depend on more than its seed.
const CLOCKS: [&str; 7] = [
    "HashMap",
    "HashSet",
    "RandomState",
    "Instant::now",
    "SystemTime",
    "clock_gettime",
    "thread::sleep",
];

/// The crates whose runs a seed determines.
const SEEDED: [&str; 5] = [
    "verbs-wire/src/",
    "verbs-link/src/",
    "verbs-subnet/src/",
    "hca-sim/src/",
    "verbs-simulator/src/",
];

/// Files of [`SEEDED`] that may name [`CLOCKS`].
const CLOCK_FILES: [&str; 2] = ["verbs-link/src/sys/clock.rs", "verbs-link/src/time/wall.rs"];

/// Words that do not belong in the tree, in two halves so that this file does not hold them.
const WORDS: [(&str, &str); 6] = [
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("../", "shared"),
    ("TO", "DO"),
    ("FIX", "ME"),
];

fn at(file: &RustFile, offset: usize, what: impl Into<String>) -> Violation {
    Violation {
        path: file.path.clone(),
        line: line_of(&file.code, offset),
        what: what.into(),
    }
}

/// Whether `path` is behind `door`: the file of that name, or anything in the folder.
fn is_behind(path: &str, door: &str) -> bool {
    path.strip_prefix(door)
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Unsafe code outside the doors, and lint levels relaxed anywhere except at a door.
pub(crate) fn unsafe_doors(files: &[RustFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        if !DOORS.iter().any(|(door, _)| is_behind(&file.path, door)) {
            for offset in scan::words(&file.code, "unsafe") {
                violations.push(at(file, offset, "unsafe code outside the doors"));
            }
        }
        for attribute in scan::attributes(&file.code) {
            let relaxes = is_relaxing(attribute.content)
                && scan::words(attribute.content, "unsafe_code")
                    .next()
                    .is_some();
            let is_outer = file.code[attribute.at + 1..].starts_with('[');
            if relaxes && !(is_outer && hangs_a_door(file, attribute.end)) {
                let what = "unsafe_code is relaxed somewhere else than at a door's mod line";
                violations.push(at(file, attribute.at, what));
            }
        }
    }
    violations
}

/// Whether the attribute that ends at `end` stands before the `mod` line of a door.
fn hangs_a_door(file: &RustFile, end: usize) -> bool {
    let Some((name, _)) = scan::module_after(&file.code, end) else {
        return false;
    };
    let folder = match file.path.rsplit_once('/') {
        Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
        _ => file.path.trim_end_matches(".rs").to_owned(),
    };
    let module = format!("{folder}/{name}");
    DOORS.iter().any(|(door, _)| *door == module)
}

/// Whether an attribute lowers a lint's level.
fn is_relaxing(content: &str) -> bool {
    ["allow", "expect", "warn"]
        .iter()
        .any(|level| scan::words(content, level).next().is_some())
}

/// Crate roots without the level for unsafe code that they must have.
pub(crate) fn root_levels(files: &[RustFile], members: &[Member]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in members {
        let wanted = match member.name.as_str() {
            _ if member.folder.starts_with("shims/") => continue,
            "verbs-core" | "verbs-io" | "verbs-link" | "hca-sim" | "hca-rdma" | "verbs-tests"
            | "verbs-benches" => "deny",
            _ => "forbid",
        };
        let roots = member.crate_roots();
        for file in files.iter().filter(|file| roots.contains(&file.path)) {
            let line = format!("#![{wanted}(unsafe_code)]");
            if !file.code.contains(&line) {
                violations.push(at(file, 0, format!("the crate's root lacks {line}")));
            }
        }
    }
    violations
}

/// Files and functions that are too long.
pub(crate) fn lengths(files: &[RustFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let lines = |range: &std::ops::Range<usize>| {
            line_of(&file.code, range.end) - line_of(&file.code, range.start) + 1
        };
        let tests: usize = file.test_modules.iter().map(lines).sum();
        let count = file.code.lines().count().saturating_sub(tests);
        if !file.is_test && count > FILE_LINES_MAX {
            let what = format!("{count} lines without tests; {FILE_LINES_MAX} at most");
            violations.push(at(file, 0, what));
        }
        for function in scan::functions(&file.code) {
            let count = lines(&function.range);
            if count > FUNCTION_LINES_MAX {
                let name = function.name;
                let what = format!("fn {name} has {count} lines; {FUNCTION_LINES_MAX} at most");
                violations.push(at(file, function.range.start, what));
            }
        }
    }
    violations
}

/// Threads, locks and loom named outside their module, spelled out or through a `use`.
///
/// Loom models are exempt: they are written for loom, and keep their records in types that loom must not see.
pub(crate) fn synchronisation(files: &[RustFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let governed = SYNC_FOR.iter().any(|folder| file.path.starts_with(folder));
        if !governed || file.is_model || file.path == SYNC {
            continue;
        }
        let mut report = |offset, path: &str| {
            if file.models.iter().any(|model| model.contains(&offset)) {
                return;
            }
            let what = format!("{path} outside {SYNC}; use verbs_core::sync");
            violations.push(at(file, offset, what));
        };
        for path in SYNC_PATHS {
            let spelled = format!("{path}::");
            for offset in scan::words(&file.code, &spelled) {
                report(offset, path);
            }
            for (offset, import) in scan::imports(&file.code) {
                let import = import.trim_start_matches("::");
                if import == path || import.starts_with(&spelled) {
                    report(offset, path);
                }
            }
        }
    }
    violations
}

/// Threads in crates whose work happens in completions.
pub(crate) fn threads(files: &[RustFile]) -> Vec<Violation> {
    calls(
        files,
        &THREADS,
        |path| THREADLESS.iter().any(|folder| path.starts_with(folder)),
        "the work of this crate happens in completions",
    )
}

/// Threads of libraries that would take a program's signals.
pub(crate) fn signals(files: &[RustFile]) -> Vec<Violation> {
    calls(
        files,
        &THREADS,
        |path| is_linked(path) && path != SPAWN,
        "it takes the program's signals; use verbs_core::process",
    )
}

/// Settings of a user that a program with other rights would follow.
pub(crate) fn environment(files: &[RustFile]) -> Vec<Violation> {
    calls(
        files,
        &VARIABLES,
        |path| is_linked(path) && path != ENVIRONMENT,
        "a program may have more rights than its user; use verbs_core::process",
    )
}

/// Whether programs link what is at that path. Modules of tests may be folders.
fn is_linked(path: &str) -> bool {
    LINKED.iter().any(|folder| path.starts_with(folder))
        && path.contains("/src/")
        && !path.contains("/tests/")
        && !path.starts_with(SUITE)
}

/// Calls of such names in files of such a path, outside tests.
fn calls(
    files: &[RustFile],
    names: &[&str],
    is_governed: impl Fn(&str) -> bool,
    instead: &str,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let governed = files.iter().filter(|file| is_governed(&file.path));
    for file in governed.filter(|file| !file.is_test) {
        for word in names {
            for offset in scan::words(&file.code, word) {
                let mut tests = file.test_modules.iter();
                if !tests.any(|tests| tests.contains(&offset)) {
                    violations.push(at(file, offset, format!("{word}: {instead}")));
                }
            }
        }
    }
    violations
}

/// Clocks, sleeps and hash order in the simulator.
pub(crate) fn determinism(files: &[RustFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let governed = SEEDED.iter().any(|folder| file.path.starts_with(folder));
        if !governed || CLOCK_FILES.contains(&file.path.as_str()) {
            continue;
        }
        for word in CLOCKS {
            for offset in scan::words(&file.code, word) {
                let what = format!("{word} makes a run depend on more than its seed");
                violations.push(at(file, offset, what));
            }
        }
    }
    violations
}

/// Crates that are missing in a list of these rules, or of the loom script.
pub(crate) fn forgotten(members: &[Member], loom: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |folder: &str, what: String| {
        violations.push(Violation {
            path: format!("{folder}Cargo.toml"),
            line: 1,
            what,
        });
    };
    for folder in manifests::seeded(members) {
        let root = folder.trim_end_matches("src/");
        if !SYNC_FOR.contains(&folder.as_str()) {
            report(root, format!("SYNC_FOR lacks {folder}"));
        }
        if !SEEDED.contains(&folder.as_str()) {
            report(root, format!("SEEDED lacks {folder}"));
        }
    }
    for member in members.iter().filter(|member| member.has_models()) {
        let selects = |line: &str| line.contains(&format!("-p {} ", member.name));
        if !loom.lines().any(selects) {
            let folder = format!("{}/", member.folder);
            report(&folder, format!("ci/loom does not run {}", member.name));
        }
    }
    violations
}

/// Lints relaxed without a reason, tests that do not run, code that is missing.
pub(crate) fn holes(files: &[RustFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        for attribute in scan::attributes(&file.code) {
            let has = |word| scan::words(attribute.content, word).next().is_some();
            let mut report = |what: &str| violations.push(at(file, attribute.at, what));
            let lowers = attribute.content.starts_with("allow")
                || attribute.content.starts_with("expect")
                || attribute.content.starts_with("cfg_attr") && (has("allow") || has("expect"));
            if lowers && !has("reason") {
                report("a lint is relaxed without a reason");
            }
            if has("allow") && has("dead_code") {
                report("dead code is to be removed; what must be held is expected, with a reason");
            }
            let is_on_a_test = attribute.content.starts_with("ignore")
                || attribute.content.starts_with("cfg_attr");
            if is_on_a_test && has("ignore") {
                report("a test that does not run");
            }
        }
        for name in ["todo", "unimplemented"] {
            for offset in scan::words(&file.code, &format!("{name}!")) {
                violations.push(at(file, offset, format!("{name}! in the tree")));
            }
        }
    }
    violations
}

/// Words that do not belong in a source tree, in code, prose and scripts alike.
pub(crate) fn words(texts: &[Text]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for text in texts {
        for (first, second) in WORDS {
            let word = format!("{first}{second}");
            for (offset, _) in text.text.match_indices(&word) {
                // A path must start here, or one of the tree's own folders could look like one of the machine's; a word
                // must not be part of a longer one.
                let before = text.text[..offset].chars().next_back();
                let after = text.text[offset + word.len()..].chars().next();
                let starts = !before.is_some_and(|c| c.is_alphanumeric() || "._".contains(c));
                let is_path = word.contains('/');
                let ends = is_path || !after.is_some_and(char::is_alphanumeric);
                if starts && ends {
                    violations.push(Violation {
                        path: text.path.clone(),
                        line: line_of(&text.text, offset),
                        what: format!("{word} does not belong in the tree"),
                    });
                }
            }
        }
    }
    violations
}
