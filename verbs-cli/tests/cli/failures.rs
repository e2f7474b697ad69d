//! Copies that cannot succeed: what they say, how they end, what they leave.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::run::{Place, content};

/// Everything is where it was, and nothing else.
#[track_caller]
fn untouched(place: &Place, names: &[&str]) {
    assert_eq!(place.names(), names);
}

#[test]
fn sources_that_cannot_be_copied() {
    let place = Place::new();
    fs::create_dir(place.path("dir")).expect("a directory");
    mknodat(
        CWD,
        place.path("pipe"),
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .expect("a pipe");
    symlink("nowhere", place.path("dangling")).expect("a link");
    let cases: [(&str, &[&str]); 6] = [
        ("missing", &["cannot open missing", "No such file"]),
        ("dangling", &["cannot open dangling", "No such file"]),
        ("dir", &["dir is a directory", "SRC must be a regular file"]),
        ("pipe", &["pipe is a pipe", "SRC must be a regular file"]),
        (
            "/dev/zero",
            &["/dev/zero is a character device", "regular file"],
        ),
        ("missing/A", &["cannot open missing/A", "No such file"]),
    ];
    for (source, parts) in cases {
        place.verbs(&["copy", source, "B"]).failed(1, parts);
        untouched(&place, &["dangling", "dir", "pipe"]);
    }
    // Its size is 0, and yet it can be read.
    place.verbs(&["copy", "/proc/self/status", "B"]).failed(
        4,
        &["/proc/self/status changed", "0 bytes", "B was not created"],
    );
    untouched(&place, &["dangling", "dir", "pipe"]);
}

#[test]
fn targets_that_cannot_be() {
    let place = Place::with_source(b"content");
    fs::create_dir(place.path("dir")).expect("a directory");
    symlink("nowhere", place.path("dangling")).expect("a link");
    symlink("A", place.path("link")).expect("a link");
    fs::hard_link(place.path("A"), place.path("same")).expect("a link");
    let names = ["A", "dangling", "dir", "link", "same"];
    let cases: [(&str, &[&str]); 10] = [
        (
            "dir",
            &[
                "dir is a directory",
                "DST must be a regular file or a new name",
            ],
        ),
        (".", &[". is a directory"]),
        (
            "new/",
            &["new/ is the name of a directory", "DST must name a file"],
        ),
        (
            "missing/B",
            &["cannot open the directory missing", "No such file"],
        ),
        ("A/B", &["A/B", "Not a directory"]),
        ("/dev/full", &["/dev/full is a character device"]),
        ("dangling", &["dangling is a symbolic link to nothing"]),
        ("A", &["A and A are the same file"]),
        ("link", &["A and link are the same file"]),
        ("same", &["A and same are the same file"]),
    ];
    for (target, parts) in cases {
        place.verbs(&["copy", "A", target]).failed(1, parts);
        untouched(&place, &names);
        assert_eq!(place.read("A"), b"content");
    }
    let long = "n".repeat(300);
    place
        .verbs(&["copy", "A", &long])
        .failed(1, &["File name too long"]);
    untouched(&place, &names);
}

#[test]
fn permissions_are_respected() {
    let place = Place::with_source(b"content");
    place.write("B", b"old");
    let forbid = |name: &str, mode| {
        fs::set_permissions(place.path(name), Permissions::from_mode(mode)).expect("our own file");
    };
    forbid("B", 0o444);
    place
        .verbs_without_privileges(&["copy", "A", "B"])
        .failed(1, &["cannot replace B", "Permission denied"]);
    assert_eq!(place.read("B"), b"old");

    fs::create_dir(place.path("dir")).expect("a directory");
    forbid("dir", 0o555);
    let denied = [
        "cannot create dir/B",
        "Permission denied",
        "dir/B was not created",
    ];
    place
        .verbs_without_privileges(&["copy", "A", "dir/B"])
        .failed(1, &denied);
    forbid("A", 0o000);
    place
        .verbs_without_privileges(&["copy", "A", "C"])
        .failed(1, &["cannot open A", "Permission denied"]);
    untouched(&place, &["A", "B", "dir"]);
}

#[test]
fn arguments_that_are_wrong() {
    let place = Place::with_source(&content(1000));
    let cases: [(&[&str], &str); 12] = [
        (&["copy", "A"], "<DST>"),
        (&["copy", "A", "B", "C"], "C"),
        (&["copy", "--chunk", "0", "A", "B"], "at least 1 byte"),
        (&["copy", "--chunk", "3g", "A", "B"], "at most 2g"),
        (
            &["copy", "--chunk", "1t", "A", "B"],
            "`t` is no unit; k, m and g are",
        ),
        (&["copy", "--window", "0", "A", "B"], "1..=65535"),
        (&["copy", "--window", "x", "A", "B"], "--window"),
        (
            &["copy", "--fault", "drop:1", "A", "B"],
            "flip:N and remove:N are",
        ),
        (
            &["copy", "--fault", "flip:x", "A", "B"],
            "flip:3 would be right",
        ),
        (
            &["copy", "--json", "--quiet", "A", "B"],
            "cannot be used with",
        ),
        (&["move", "A", "B"], "unrecognized subcommand"),
        (&[], "Usage: verbs"),
    ];
    for (arguments, part) in cases {
        let ended = place.verbs(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(
            ended.stderr.contains(part),
            "{part:?} in {:?}",
            ended.stderr
        );
        untouched(&place, &["A"]);
    }
    // Known to be wrong only when the file has been looked at.
    let late: [(&[&str], &[&str]); 3] = [
        (
            &["--fault", "flip:10"],
            &[
                "--fault flip:10 cannot happen",
                "A has 10 chunks",
                "at most 9",
            ],
        ),
        (
            &["--fault", "remove:11"],
            &["--fault remove:11 cannot happen", "at most 10"],
        ),
        (
            &["--fault", "flip:18446744073709551615"],
            &["cannot happen"],
        ),
    ];
    for (fault, parts) in late {
        let arguments = [&["copy", "--chunk", "100", "A", "B"], fault].concat();
        place.verbs(&arguments).failed(2, parts);
        untouched(&place, &["A"]);
    }
    place.write("empty", b"");
    place
        .verbs(&["copy", "--fault", "flip:0", "empty", "B"])
        .failed(2, &["empty is empty and has no chunks"]);
}

/// Goal: damage is never taken for the file. Method: flip a bit of every chunk in turn.
#[test]
fn a_flipped_bit_is_a_digest_mismatch() {
    let source = content(1000);
    let place = Place::with_source(&source);
    let sent = blake3::hash(&source).to_hex();
    for chunk in 0..10 {
        let fault = format!("flip:{chunk}");
        let arguments = [
            "copy", "--chunk", "100", "--window", "3", "--fault", &fault, "A", "B",
        ];
        let parts = [
            "digest mismatch",
            "A has blake3",
            sent.as_str(),
            "arrived",
            "B was not created",
        ];
        place.verbs(&arguments).failed(3, &parts);
        untouched(&place, &["A"]);
    }
    place.write("B", b"old");
    place
        .verbs(&["copy", "--fault", "flip:0", "A", "B"])
        .failed(3, &["B is as it was"]);
    assert_eq!(place.read("B"), b"old");
}

/// Goal: a device that goes ends the copy, whenever it goes. Method: after every number of chunks.
#[test]
fn a_removed_device_ends_the_copy() {
    let place = Place::with_source(&content(1000));
    for chunks in 0..=10 {
        let fault = format!("remove:{chunks}");
        let arguments = [
            "copy", "--chunk", "100", "--window", "3", "--fault", &fault, "A", "B",
        ];
        let arrived = format!("{chunks} of 10 chunks had arrived");
        place.verbs(&arguments).failed(
            5,
            &[
                "the destination device was removed",
                &arrived,
                "B was not created",
            ],
        );
        untouched(&place, &["A"]);
    }
    place.write("B", b"old");
    place
        .verbs(&["copy", "--fault", "remove:0", "A", "B"])
        .failed(5, &["B is as it was"]);
    assert_eq!(place.read("B"), b"old");
}

#[test]
fn a_limit_on_file_size_is_said() {
    let place = Place::with_source(&content(100_000));
    // Without the trap, the signal would end the command before it could say anything.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    place
        .shell(script, &["copy", "--chunk", "1k", "A", "B"])
        .failed(
            1,
            &["cannot write B", "File too large", "B was not created"],
        );
    untouched(&place, &["A"]);
}

/// Goal: a full disk is said and leaves nothing. Method: a file system of 64 KiB in a mount namespace
/// of its own. Where the system does not let users have those, the limit on file size above is all
/// that can be tried.
#[test]
fn a_full_disk_is_said() {
    let namespace = ["--user", "--map-root-user", "--mount"];
    let probe = Command::new("unshare")
        .args(namespace)
        .args(["mount", "-t", "tmpfs", "x", "/mnt"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("no mount namespaces for users here; nothing tried");
        return;
    }
    let place = Place::with_source(&content(200_000));
    fs::create_dir(place.path("small")).expect("a directory");
    let script = "exec unshare --user --map-root-user --mount sh -c '
        mount -t tmpfs -o size=64k small small || exit 99
        \"$@\"; code=$?
        ls -A small >&3; df --output=used small | tail -1 >&3
        exit $code' sh \"$@\" 3>left";
    let full = [
        "cannot write small/B",
        "No space left on device",
        "small/B was not created",
    ];
    place
        .shell(script, &["copy", "--chunk", "4k", "A", "small/B"])
        .failed(1, &full);
    assert_eq!(
        String::from_utf8_lossy(&place.read("left")).trim(),
        "0",
        "names and KiB that are left"
    );
}

#[test]
fn a_reader_that_has_gone_is_an_error_like_any_other() {
    let place = Place::with_source(b"content");
    place
        .shell("\"$@\" > /dev/full", &["copy", "A", "B"])
        .failed(1, &["cannot write the result to stdout", "No space"]);
    assert_eq!(place.read("B"), b"content", "the copy was complete");
}

/// Goal: a number that is none gets a sentence of ours, and the exit code of wrong arguments. Method: of each way to be none.
#[test]
fn numbers_that_are_none() {
    let place = Place::new();
    for (arguments, says) in [
        (
            ["sim", "--seed", "x"],
            "invalid value 'x' for '--seed <N>': a whole number would be right",
        ),
        (["sim", "--seed", ""], "a whole number would be right"),
        (["rping", "-p", "70000"], "70000"),
        (
            ["sim", "--seed", "18446744073709551616"],
            "the number is too large",
        ),
    ] {
        let ended = place.verbs(&arguments);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(says), "{ended:?}");
        assert!(ended.stderr.contains("--help"), "{ended:?}");
    }
}
