//! Copies that succeed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::Value;

use crate::run::{Place, content};

const CHUNK: usize = 4096;

/// Goal: sizes around the borders of chunk and window. Method: each with windows that wrap and that do
/// not; the report must agree with arithmetic and with a digest taken here.
#[test]
fn every_size_arrives() {
    for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 16 * CHUNK + 5] {
        for window in [1, 2, 3, 100] {
            let source = content(size);
            let place = Place::with_source(&source);
            let chunk = CHUNK.to_string();
            let arguments = [
                "copy",
                "--json",
                "--chunk",
                &chunk,
                "--window",
                &window.to_string(),
                "A",
                "B",
            ];
            let report: Value =
                serde_json::from_str(&place.verbs(&arguments).succeeded()).expect("JSON");
            assert_eq!(place.read("B"), source, "{size} bytes, window {window}");
            assert_eq!(place.names(), ["A", "B"]);
            assert_eq!(report["bytes"], size);
            assert_eq!(
                report["writes"],
                size.div_ceil(CHUNK),
                "{size} bytes, window {window}"
            );
            assert_eq!(report["retries"], 0);
            assert_eq!(report["digest"], blake3::hash(&source).to_hex().as_str());
            assert!(
                report["seconds"]
                    .as_f64()
                    .is_some_and(|seconds| seconds > 0.0)
            );
        }
    }
}

#[test]
fn the_defaults_are_a_mebibyte_and_sixteen() {
    let source = content(5 << 20);
    let place = Place::with_source(&source);
    let report: Value =
        serde_json::from_str(&place.verbs(&["copy", "A", "B", "--json"]).succeeded())
            .expect("JSON");
    assert_eq!(place.read("B"), source);
    assert_eq!(
        [&report["chunk"], &report["window"], &report["writes"]],
        [1 << 20, 16, 5]
    );
}

#[test]
fn chunks_of_one_byte_do() {
    let source = content(1000);
    let place = Place::with_source(&source);
    let arguments = ["copy", "--json", "--chunk", "1", "--window", "7", "A", "B"];
    let report: Value = serde_json::from_str(&place.verbs(&arguments).succeeded()).expect("JSON");
    assert_eq!(place.read("B"), source);
    assert_eq!(report["writes"], 1000);
}

#[test]
fn people_see_the_throughput_unless_they_want_quiet() {
    let place = Place::with_source(&content(10_000));
    let said = place.verbs(&["copy", "A", "B"]).succeeded();
    for part in ["10000 bytes", "1 WRITEs", "MiB/s", "blake3 "] {
        assert!(said.contains(part), "{part:?} in {said:?}");
    }
    assert_eq!(place.verbs(&["copy", "--quiet", "A", "C"]).succeeded(), "");
    assert_eq!(place.read("B"), place.read("C"));
}

#[test]
fn an_existing_file_is_replaced() {
    let place = Place::with_source(b"new");
    place.write("B", b"old and longer");
    place.verbs(&["copy", "A", "B"]).succeeded();
    assert_eq!(place.read("B"), b"new");
    symlink("B", place.path("link")).expect("a link");
    place.write("A", b"newer");
    place.verbs(&["copy", "A", "link"]).succeeded();
    assert_eq!(place.read("B"), b"newer");
    assert_eq!(place.names(), ["A", "B", "link"]);
}

#[test]
fn permissions_follow_the_source_and_the_umask() {
    for (mode, umask, expected) in [
        (0o777, "027", 0o750),
        (0o640, "022", 0o640),
        (0o444, "000", 0o444),
        (0o4755, "022", 0o755),
    ] {
        let place = Place::with_source(b"x");
        fs::set_permissions(place.path("A"), Permissions::from_mode(mode)).expect("our own file");
        let script = format!("umask {umask}; exec \"$@\"");
        place.shell(&script, &["copy", "A", "B"]).succeeded();
        let got = fs::metadata(place.path("B"))
            .expect("there")
            .permissions()
            .mode()
            & 0o7777;
        assert_eq!(got, expected, "mode {mode:o}, umask {umask}: {got:o}");
    }
}

/// Goal: memory use is a matter of chunk and window. Method: hold a copy far into a large file and
/// ask the kernel for its peak.
#[test]
fn memory_use_does_not_grow_with_the_file() {
    let place = Place::with_sparse_source(256 << 20);
    let running = place
        .start(&["copy", "--chunk", "256k", "--window", "4", "A", "B"])
        .stopped_after(96 << 20);
    let peak = running.memory_peak();
    assert!(peak < 12 << 20, "{peak} bytes");
    running.killed();
}

#[test]
fn help_has_examples_and_exit_codes() {
    let place = Place::new();
    let help = place.verbs(&["copy", "--help"]).succeeded();
    for part in [
        "Examples:",
        "verbs copy A B",
        "Exit codes:",
        "--chunk <N>",
        "[default: 1m]",
    ] {
        assert!(help.contains(part), "{part:?} in {help}");
    }
    assert!(
        place
            .verbs(&["devinfo", "--help"])
            .succeeded()
            .contains("verbs devinfo --json")
    );
    assert!(place.verbs(&["--help"]).succeeded().contains("Exit codes:"));
}

/// Goal: `-` is stdin and stdout: what a pipe brings is copied, empty too; stdout gets all of a copy or nothing of it; the
/// report does not get into the data.
#[test]
fn streams_are_copied() {
    let content: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    let place = Place::with_source(&content);
    let both = place.shell(r#"cat A | "$1" copy - - > B"#, &[]);
    assert_eq!((both.code, both.stdout.as_str()), (Some(0), ""), "{both:?}");
    assert!(both.stderr.contains("3000000 bytes"), "{both:?}");
    assert_eq!(place.read("B"), content);
    let empty = place.shell(r#""$1" copy --quiet - C </dev/null"#, &[]);
    empty.succeeded();
    assert_eq!(place.read("C"), b"");
    let broken = place.shell(r#""$1" copy --fault flip:0 A - > D"#, &[]);
    broken.failed(3, &["stdout got nothing"]);
    assert_eq!(place.read("D"), b"");
    let full = place.shell(r#""$1" copy --quiet A - > /dev/full"#, &[]);
    full.failed(1, &["stdout"]);
    place.shell(r#""$1" copy --quiet A ./-"#, &[]).succeeded();
    assert_eq!(place.names(), ["-", "A", "B", "C", "D"]);
}
