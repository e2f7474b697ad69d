//! What happens around a copy that is under way: kills, and others who touch its files.
//!
//! Copies are held by a stop signal once they have read a part of a source that is large enough for
//! them not to end before.

use std::fs::{OpenOptions, remove_file};
use std::io::Write;
use std::time::UNIX_EPOCH;

use crate::run::{Place, Running};

const LARGE: u64 = 1 << 30;

/// Small enough to be copied to its end in a test.
const SMALL: u64 = 48 << 20;

fn start(place: &Place) -> Running {
    place.start(&["copy", "--chunk", "4k", "--window", "4", "A", "B"])
}

/// A copy that has read a mebibyte of a small source, and waits. One that ends before this thread stops it, which may
/// have waited for its processor, is made again.
fn stopped() -> (Place, Running) {
    let stopped = (0..100).find_map(|_| {
        let place = Place::with_sparse_source(SMALL);
        let running = start(&place).stopped_in_time(1 << 20)?;
        Some((place, running))
    });
    stopped.expect("one of 100 copies is stopped before its end")
}

/// Goal: no moment at which a kill leaves something under the target's name. Method: kill at several
/// places, first with nothing there and then with an old file.
#[test]
fn a_kill_leaves_nothing() {
    let place = Place::with_sparse_source(LARGE);
    for bytes in [1, 100_000, 1 << 20, 5 << 20, 10 << 20] {
        let ended = start(&place).stopped_after(bytes).killed();
        assert_eq!(ended.signal, Some(9), "{ended:?}");
        assert_eq!(place.names(), ["A"]);
    }
    place.write("B", b"old");
    for bytes in [1, 3 << 20] {
        start(&place).stopped_after(bytes).killed();
        assert_eq!(place.names(), ["A", "B"]);
        assert_eq!(place.read("B"), b"old");
    }
}

/// Goal: the same near the end, where the target gets its name. Method: kill after growing delays, and
/// see either nothing or everything.
#[test]
fn a_kill_near_the_end_leaves_nothing_or_all() {
    let place = Place::with_sparse_source(SMALL);
    for step in 0..8 {
        let at = SMALL - 1 - (1 << 15) * step;
        start(&place).reached(at).killed();
        match place.names().as_slice() {
            [a] => assert_eq!(a, "A"),
            [a, b] => {
                assert_eq!((a.as_str(), b.as_str()), ("A", "B"));
                assert_eq!(place.read("B").len() as u64, SMALL);
                remove_file(place.path("B")).expect("our own file");
            }
            names => panic!("{names:?}"),
        }
    }
}

#[test]
fn a_source_that_shrinks_is_said() {
    let place = Place::with_sparse_source(LARGE);
    let running = start(&place).stopped_after(1 << 20);
    OpenOptions::new()
        .write(true)
        .open(place.path("A"))
        .and_then(|file| file.set_len(1000))
        .expect("shorter");
    let parts = [
        "A changed while it was being copied",
        "1073741824 bytes",
        "now ends at byte",
        "B was not created",
    ];
    running.continued().failed(4, &parts);
    assert_eq!(place.names(), ["A"]);
}

#[test]
fn a_source_that_grows_is_said() {
    let (place, running) = stopped();
    let mut file = OpenOptions::new()
        .append(true)
        .open(place.path("A"))
        .expect("writable");
    file.write_all(b"more").expect("room");
    running.continued().failed(
        4,
        &[
            "A changed",
            "it had 50331648 bytes and now has 50331652",
            "B was not created",
        ],
    );
    assert_eq!(place.names(), ["A"]);
}

#[test]
fn a_source_that_is_written_to_is_said() {
    let (place, running) = stopped();
    let file = OpenOptions::new()
        .write(true)
        .open(place.path("A"))
        .expect("writable");
    file.set_modified(UNIX_EPOCH).expect("our own file");
    running
        .continued()
        .failed(4, &["A changed", "written to", "B was not created"]);
    assert_eq!(place.names(), ["A"]);
}

#[test]
fn a_target_that_appears_is_left_alone() {
    let (place, running) = stopped();
    assert_eq!(place.names(), ["A"]);
    place.write("B", b"theirs");
    running
        .continued()
        .failed(1, &["B was created by another program"]);
    assert_eq!(place.read("B"), b"theirs");
    assert_eq!(place.names(), ["A", "B"]);
}

#[test]
fn a_source_that_is_renamed_is_copied_all_the_same() {
    let (place, running) = stopped();
    std::fs::rename(place.path("A"), place.path("Z")).expect("our own file");
    place.write("A", b"another");
    running.continued().succeeded();
    assert_eq!(place.read("B").len() as u64, SMALL);
}
