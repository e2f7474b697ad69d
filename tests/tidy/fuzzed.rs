//! Rules about fuzz targets: every reader of foreign bytes and every listener has one, the list of targets and the
//! folders of their corpora agree, and a plain function of a `fuzz.rs` is in the list.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::Violation;
use crate::tree::{RustFile, Text};

/// The list of targets.
const LIST: &str = "fuzz/src/targets.rs";

/// Where foreign bytes are read or waited for, and the targets that cover it.
const FUZZED: &[(&str, &[&str])] = &[
    ("verbs-link/src/joined/", &["host-channel", "host-message"]),
    ("verbs-link/src/ring/", &["shared-ring"]),
    ("verbs-link/src/time/", &["hca"]),
    ("verbs-subnet/src/topology/file.rs", &["topology"]),
    ("verbs-subnet/src/host", &["subnet-host"]),
    ("verbs-subnet/src/ipc/message", &["subnet-message"]),
    ("verbs-subnet/src/packet.rs", &["subnet-host"]),
    ("verbs-wire/src/pcap/mod.rs", &["capture"]),
    ("hca-sim/src/transport/iwarp/", &["iwarp"]),
    ("hca-sim/src/transport/", &["hca"]),
    ("verbs-wire/src/target.rs", &["target-message"]),
    (
        "verbs-wire/src/iwarp/",
        &["mpa-startup", "fpdu", "port-mapper"],
    ),
    (
        "verbs-wire/src/",
        &["packet", "datagram", "frame", "header"],
    ),
    ("shims/ibumad/src/", &["ibumad"]),
    ("ulp-ipoib/src/link/", &["ipoib"]),
    (
        "ulp-ipoib/src/face/offload/",
        &["ipoib-join", "ipoib-split"],
    ),
    (
        "ulp-ipoib/src/wire/",
        &["ipoib-message", "ipoib-arp", "ipoib-nd", "ipoib-membership"],
    ),
    (
        "ulp-rds/src/wire/",
        &["rds-packet", "rds-handshake", "rds-congestion"],
    ),
    ("ulp-srp/src/initiator/address.rs", &["srp-names"]),
    ("ulp-srp/src/initiator/channel/", &["srp-initiator"]),
    (
        "ulp-srp/src/iu/",
        &["srp-to-target", "srp-to-initiator", "srp-login"],
    ),
    ("ulp-srp/src/scsi/", &["scsi-cdb", "scsi-sense"]),
    ("ulp-srp/src/target/", &["srp-target"]),
    ("verbs-cm/src/machine/", &["cm"]),
    ("verbs-cm/src/table/", &["cm"]),
    ("verbs-cm/src/wire/", &["cm-message", "cm-ip-header"]),
    (
        "verbs-core/src/management/mad/",
        &["mad-records", "mad-transfer", "mad-service"],
    ),
    (
        "verbs-core/src/host/",
        &["host-message", "host-command", "host-daemon"],
    ),
    ("verbs-host/src/", &["host-daemon"]),
    ("verbs-sm/src/", &["sm", "sm-seat"]),
];

/// Files that read without a target of their own, and the reason.
const OTHERS: &[(&str, &str)] = &[
    ("verbs-link/src/udp/ancillary.rs", "what the kernel says"),
    (
        "verbs-link/src/wrap/faulty.rs",
        "a share of packets, in arguments",
    ),
    (
        "shims/ibverbs/src/device/place.rs",
        "the environment of the program itself",
    ),
    (
        "shims/ibverbs/src/rsocket/stream/wire.rs",
        "a C library, whose modules no other crate can name; tests beside it draw words of a peer at random",
    ),
    ("shims/ibverbs/src/rsocket/datagram/wire.rs", "as above"),
    ("verbs-simulator/src/", "names of mutants, in arguments"),
    (
        "verbs-core/src/devices/extension/",
        "says what a reader of an extension's bytes is, and reads none",
    ),
    ("hca-sim/src/hca/extension.rs", "inputs that have no bytes"),
    (
        "ulp-srp/src/initiator/discovery.rs",
        "records of fixed length, which have no value that cannot be read",
    ),
    (
        "shims/ibverbs/src/memory/maps.rs",
        "the kernel's list of the process' own mappings; a C library, as above",
    ),
    (
        "verbs-cli/src/",
        "a binary, whose modules no other crate can name; tests beside them draw messages at random",
    ),
];

fn violation(path: &str, what: String) -> Violation {
    Violation {
        path: path.into(),
        line: 1,
        what,
    }
}

/// An entry of the list: a target's name and its folder.
struct Listed {
    name: String,
    folder: String,
    /// The function that it calls.
    run: String,
}

/// The entries of the list: `parser("name", "folder", run)`, and the same with `live`.
fn listed(text: &str) -> Vec<Listed> {
    let list = text.split("pub const TARGETS").nth(1).unwrap_or_default();
    let quoted: Vec<&str> = list.split('"').collect();
    // After an opening quote comes a name, after the third one a folder, and then the rest up to the next name.
    let mut entries = Vec::new();
    for parts in quoted[1..].chunks(4) {
        if let [name, _, folder, run, ..] = parts {
            entries.push(Listed {
                name: (*name).into(),
                folder: (*folder).into(),
                run: (*run).into(),
            });
        }
    }
    entries
}

/// Readers and listeners without a target, targets that nothing needs, and functions that are not listed.
pub(crate) fn targets(files: &[RustFile], texts: &[Text]) -> Vec<Violation> {
    let Some(list) = texts.iter().find(|text| text.path == LIST) else {
        return vec![violation(LIST, "the list of fuzz targets is gone".into())];
    };
    let entries = listed(&list.text);
    let names: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut violations = Vec::new();
    for (place, targets) in FUZZED {
        for target in targets.iter().filter(|target| !names.contains(**target)) {
            violations.push(violation(
                LIST,
                format!("{target}, for {place}, is not listed"),
            ));
        }
        if !files.iter().any(|file| file.path.starts_with(place)) {
            violations.push(violation(
                LIST,
                format!("there is nothing in {place} any more"),
            ));
        }
    }
    let needed: BTreeSet<&str> = FUZZED
        .iter()
        .flat_map(|(_, targets)| targets.iter().copied())
        .collect();
    for name in names.difference(&needed) {
        violations.push(violation(
            LIST,
            format!("{name} stands for no place of the tree"),
        ));
    }
    for file in files
        .iter()
        .filter(|file| file.path.contains("/src/") && !file.is_test)
    {
        if file.path.ends_with("/fuzz.rs") {
            violations.extend(unlisted(file, &entries));
        } else if reads(&file.code) && !is_known(&file.path) {
            let what = "reads foreign bytes, and has no fuzz target: see tests/tidy/fuzzed.rs";
            violations.push(violation(&file.path, what.into()));
        }
    }
    violations
}

/// Whether it has a function that reads bytes or text.
fn reads(code: &str) -> bool {
    let readers = ["fn parse", "fn decode", "fn from_str("];
    readers.iter().any(|reader| code.contains(reader))
}

fn is_known(path: &str) -> bool {
    let places = FUZZED.iter().map(|(place, _)| place);
    let others = OTHERS.iter().map(|(place, _)| place);
    let outside = ["fuzz/", "tests/", "benches/"];
    let mut known = places.chain(others).chain(&outside);
    known.any(|place| path.starts_with(place))
}

/// Public functions over bytes that the list does not call.
fn unlisted(file: &RustFile, entries: &[Listed]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for behind in file.code.split("pub fn ").skip(1) {
        let Some((name, rest)) = behind.split_once('(') else {
            continue;
        };
        let is_target = rest.starts_with("bytes: &[u8])");
        let call = format!("fuzz::{name}");
        let is_called = |entry: &Listed| {
            entry.run.contains(&format!("{call})")) || entry.run.contains(&format!("{call}),"))
        };
        // A function that another target calls is part of that one.
        let is_part = file.code.matches(&format!("{name}(")).count() > 1;
        if is_target && !is_part && !entries.iter().any(is_called) {
            violations.push(violation(&file.path, format!("{name} is not in {LIST}")));
        }
    }
    violations
}

/// Folders of corpora without a target, and targets without a folder.
pub(crate) fn folders(root: &Path, texts: &[Text]) -> Vec<Violation> {
    let list = texts.iter().find(|text| text.path == LIST);
    let entries = list.map(|list| listed(&list.text)).unwrap_or_default();
    let mut violations = Vec::new();
    for entry in &entries {
        let files = fs::read_dir(root.join(&entry.folder)).map_or(0, Iterator::count);
        if files == 0 {
            let what = format!("{}: {} has no inputs", entry.name, entry.folder);
            violations.push(violation(LIST, what));
        }
    }
    let crates = [
        "hca-sim",
        "verbs-wire",
        "verbs-cm",
        "verbs-core",
        "verbs-sm",
        "ulp-ipoib",
        "ulp-rds",
        "ulp-srp",
        ".",
    ];
    for folder in crates {
        let corpora = Path::new(folder).join("fuzz/corpus");
        for entry in fs::read_dir(root.join(&corpora))
            .into_iter()
            .flatten()
            .flatten()
        {
            let folder = corpora.join(entry.file_name());
            let folder = folder.to_string_lossy();
            let folder = folder.strip_prefix("./").unwrap_or(&folder);
            if !entries.iter().any(|entry| entry.folder == folder) {
                violations.push(violation(LIST, format!("no target starts from {folder}")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, text: &str) -> Text {
        Text {
            path: path.into(),
            text: text.into(),
        }
    }

    /// Goal: the rule detects violations. Method: a reader without a target, a function that is not listed, a missing
    /// list.
    #[test]
    fn readers_without_a_target_are_seen() {
        let list = "pub const TARGETS: &[Target] = &[\n    parser(\"cm\", \"x/fuzz/corpus/cm\", once!(x::fuzz::cm)),\n];";
        let files = [
            RustFile::new("verbs-new/src/reader.rs", "pub fn parse(bytes: &[u8]) {}"),
            RustFile::new(
                "verbs-new/src/fuzz.rs",
                "pub fn other(bytes: &[u8]) {}\npub fn cm(bytes: &[u8]) {}",
            ),
        ];
        let found = targets(&files, &[text(LIST, list)]);
        let says = |what: &str| {
            found
                .iter()
                .any(|violation| violation.to_string().contains(what))
        };
        assert!(
            says("verbs-new/src/reader.rs:1: reads foreign bytes"),
            "{found:?}"
        );
        assert!(says("other is not in"), "{found:?}");
        assert!(!says(": cm is not in"), "{found:?}");
        assert!(
            says("hca, for hca-sim/src/transport/, is not listed"),
            "{found:?}"
        );
        assert_eq!(targets(&[], &[]).len(), 1);
        assert_eq!(folders(Path::new("nowhere"), &[text(LIST, list)]).len(), 1);
    }
}
