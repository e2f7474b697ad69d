//! Programs that are told to end tell their peers: by a DREQ, so that those do not wait for retries to run out.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::line::first_line;
use crate::run::{Ended, PATIENCE, Place};
use crate::wire::{Background, Served, address, free_port};

/// Waits for its end.
fn ended(mut process: Background, what: &str) -> Ended {
    let since = Instant::now();
    while !process.has_ended() {
        assert!(since.elapsed() < PATIENCE, "{what} goes on");
        thread::sleep(Duration::from_millis(10));
    }
    process.end()
}

/// A server of pings, and a client that pings it for ever, as soon as both are at it.
fn pinging(place: &Place, ours: u8, theirs: u8) -> [Background; 2] {
    let (server, client, port) = (address(theirs), address(ours), free_port());
    let serve = ["rping", "-s", "-P", "-a", &server, "-p", &port];
    let serving = Background::start(place, &serve);
    let ask = ["rping", "-c", "-a", &server, "-p", &port, "-I", &client];
    let since = Instant::now();
    while place.verbs(&[&ask[..], &["-C", "1"]].concat()).code != Some(0) {
        assert!(since.elapsed() < PATIENCE, "it does not serve");
    }
    let asking = asking(place, &ask);
    [serving, asking.expect("it is served")]
}

/// A client that pings for ever, once it has been answered; nothing if it ends before.
fn asking(place: &Place, arguments: &[&str]) -> Option<Background> {
    let mut asking = Background::start(place, &[arguments, &["-v"]].concat());
    let line = first_line(asking.child().stdout.take().expect("piped"));
    (!line.is_empty()).then_some(asking)
}

#[test]
fn a_ping_server_that_is_told_to_end_tells_its_client() {
    let place = Place::new();
    for (n, signal) in [(100, Signal::TERM), (102, Signal::INT)] {
        let [mut serving, asking] = pinging(&place, n, n + 1);
        serving.signal(signal);
        let served = ended(serving, "the server");
        assert_eq!(served.signal, Some(signal.as_raw()), "{served:?}");
        let asked = ended(asking, "the client");
        assert!(matches!(asked.code, Some(1 | 5)), "{asked:?}");
        // It was told, and did not find out by itself.
        assert!(!asked.stderr.contains("retry"), "{asked:?}");
    }
}

/// Goal: the server of one client ends with it, and not when its retries have run out, which takes 17 s.
#[test]
fn a_ping_client_that_is_told_to_end_tells_its_server() {
    let place = Place::new();
    let (server, client, port) = (address(105), address(104), free_port());
    let serve = ["rping", "-s", "-a", &server, "-p", &port];
    let mut serving = Background::start(&place, &serve);
    let ask = ["rping", "-c", "-a", &server, "-p", &port, "-I", &client];
    let since = Instant::now();
    let mut asking = loop {
        // One that nobody serves is told so, and ends.
        if let Some(asking) = asking(&place, &ask) {
            break asking;
        }
        assert!(!serving.has_ended(), "{:?}", serving.end());
        assert!(since.elapsed() < PATIENCE, "it does not serve");
    };
    asking.signal(Signal::INT);
    let asked = ended(asking, "the client");
    assert_eq!(asked.signal, Some(Signal::INT.as_raw()), "{asked:?}");
    let served = ended(serving, "the server");
    // It was told, and did not find out by itself.
    assert!(!served.stderr.contains("retry"), "{served:?}");
}

#[test]
fn a_server_of_files_that_is_told_to_end_tells_its_clients() {
    let place = Place::new();
    let mut served = Served::start(&place, 106, &[]);
    let large = File::create(place.path("dir/A")).expect("room");
    large.set_len(1 << 34).expect("a sparse file");
    let (bind, url) = (address(107), served.managed("A"));
    let copy = ["copy", "--quiet", "--bind", &bind, &url, "B"];
    let mut copying = Background::start(&place, &copy);
    copying.is_writing();
    served.server.signal(Signal::TERM);
    let server = ended(served.server, "the server");
    assert_eq!(server.signal, Some(Signal::TERM.as_raw()), "{server:?}");
    let parts = ["the source device went away", "B was not created"];
    ended(copying, "the client").failed(5, &parts);
}

/// Goal: long work that is interrupted shows what it has so far, and ends as the signal has it.
#[test]
fn seeds_that_are_interrupted_show_their_table() {
    let place = Place::new();
    let mut running = Background::start(&place, &["sim", "--seeds", "1..1000000"]);
    thread::sleep(Duration::from_secs(2));
    running.signal(Signal::INT);
    let ended = ended(running, "the simulator");
    assert_eq!(ended.signal, Some(Signal::INT.as_raw()), "{ended:?}");
    let last = ended.stdout.lines().last().unwrap_or_default();
    let is_short = last.starts_with("seeds 1..1000000: ") && !last.contains(" 1000000 runs");
    assert!(is_short, "{ended:?}");
}
