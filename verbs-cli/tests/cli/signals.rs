//! Programs that are told to end tell their peers: by a DREQ, so that those do not wait for retries to run out.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Ended, Place};
use crate::wire::{Background, Served, address, free_port};

/// Longer than a message takes on a machine that does much else, and shorter than the retries of a READ or of
/// the connection manager together.
const PATIENCE: Duration = Duration::from_secs(30);

fn tell(process: &mut Background, signal: Signal) {
    let pid = Pid::from_child(process.child());
    kill_process(pid, signal).expect("a child of ours");
}

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
    let mut asking = Background::start(place, &[&ask[..], &["-v"]].concat());
    assert!(is_pinging(&mut asking), "{:?}", asking.end());
    [serving, asking]
}

/// Waits until a client has a ping back; `false` if it ends before.
fn is_pinging(asking: &mut Background) -> bool {
    let stdout = asking.child().stdout.take().expect("piped");
    let mut lines = BufReader::new(stdout).lines();
    let has_one = matches!(lines.next(), Some(Ok(_)));
    // Goes on reading, so that the client never has to wait.
    thread::spawn(move || lines.for_each(drop));
    has_one
}

#[test]
fn a_ping_server_that_is_told_to_end_tells_its_client() {
    let place = Place::new();
    for (n, signal) in [(100, Signal::TERM), (102, Signal::INT)] {
        let [mut serving, asking] = pinging(&place, n, n + 1);
        tell(&mut serving, signal);
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
    let ask = [
        "rping", "-c", "-v", "-a", &server, "-p", &port, "-I", &client,
    ];
    let since = Instant::now();
    let mut asking = loop {
        let mut asking = Background::start(&place, &ask);
        // One that nobody serves is told so, and ends.
        if is_pinging(&mut asking) {
            break asking;
        }
        assert!(!serving.has_ended(), "{:?}", serving.end());
        assert!(since.elapsed() < PATIENCE, "it does not serve");
    };
    tell(&mut asking, Signal::INT);
    let since = Instant::now();
    let asked = ended(asking, "the client");
    assert_eq!(asked.signal, Some(Signal::INT.as_raw()), "{asked:?}");
    let served = ended(serving, "the server");
    assert!(since.elapsed() < Duration::from_secs(15), "{served:?}");
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
    tell(&mut served.server, Signal::TERM);
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
    tell(&mut running, Signal::INT);
    let ended = ended(running, "the simulator");
    assert_eq!(ended.signal, Some(Signal::INT.as_raw()), "{ended:?}");
    let last = ended.stdout.lines().last().unwrap_or_default();
    let is_short = last.starts_with("seeds 1..1000000: ") && !last.contains(" 1000000 runs");
    assert!(is_short, "{ended:?}");
}
