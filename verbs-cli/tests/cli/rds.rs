//! `verbs rds` between two processes on addresses of 127.0.0.0/8.

use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::run::{Ended, PATIENCE, Place, RDS, VERBS, address_of};
use crate::wire::Background;

/// An address that no other test has.
fn address(n: u8) -> String {
    address_of(RDS, n)
}

/// A program that answers, with a runtime directory of its own.
struct Answering {
    program: Background,
    place: Place,
}

impl Answering {
    fn at(address: &str) -> Self {
        let place = Place::new();
        let mut command = Command::new(VERBS);
        command.args(["rds", "stress", "-r", address, "-v"]);
        command.env("XDG_RUNTIME_DIR", place.path(""));
        let program = Background::run(&mut command);
        let since = Instant::now();
        while UdpSocket::bind((address, 4791)).is_ok() {
            assert!(since.elapsed() < PATIENCE, "nobody has {address}");
            thread::sleep(Duration::from_millis(10));
        }
        Self { program, place }
    }

    /// `verbs rds` with these arguments, as the same user of the same session.
    fn rds(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(VERBS);
        command.arg("rds").args(arguments);
        command.env("XDG_RUNTIME_DIR", self.place.path(""));
        Ended::from(command.output().expect("it runs"))
    }

    fn info(&self) -> Value {
        let said = self.rds(&["info", "--json"]).succeeded();
        serde_json::from_str(&said).expect("JSON")
    }

    /// Tells it to end.
    fn end(mut self) -> Ended {
        self.program.signal(Signal::TERM);
        self.program.end()
    }
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).expect("JSON")
}

#[test]
fn addresses_are_pinged() {
    let (ours, theirs) = (address(1), address(2));
    let answering = Answering::at(&theirs);
    let said = answering
        .rds(&["ping", "-c", "3", "-i", "1ms", "-I", &ours, &theirs])
        .succeeded();
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("3 pings, 3 answered; min/avg/max"), "{said}");
    let asked = ["ping", "-c", "2", "-i", "1ms", "-Q", "5", "--json", "-I"];
    let asked = answering.rds(&[&asked[..], &[&ours, &theirs]].concat());
    assert_eq!(json(&asked)["answered"], 2, "{asked:?}");
    drop(answering.end());
}

#[test]
fn a_ping_that_nobody_answers_is_an_error() {
    let (ours, theirs) = (address(3), address(4));
    let ended = Place::new().verbs(&[
        "rds", "ping", "-c", "1", "-W", "300ms", "-I", &ours, &theirs,
    ]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert_eq!(
        ended.stderr,
        format!("verbs rds: {theirs}:0 has not answered within 300ms: 0 answers came before\n")
    );
}

#[test]
fn every_datagram_comes_once_although_the_connection_is_dropped_all_the_time() {
    let (ours, theirs) = (address(5), address(6));
    let answering = Answering::at(&theirs);
    let asked = answering.rds(&[
        "stress", "-r", &ours, "-s", &theirs, "-t", "3", "-d", "8", "-n", "400", "-q", "5000",
        "-a", "100", "-v", "--kill", "20ms", "--json",
    ]);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let sums = json(&asked);
    assert_eq!(sums["answers"], 1200, "{sums}");
    assert_eq!(sums["bytes_received"], 120_000, "{sums}");
    assert!(sums["losses"].as_u64() > Some(0), "{sums}");
    let info = answering.info();
    let connections = info[0]["connections"].as_array().expect("a list");
    assert_eq!(connections.len(), 1, "{info}");
    assert!(connections[0]["connects"].as_u64() > Some(1), "{info}");
    let ended = answering.end();
    assert_eq!(ended.stderr, "");
}

#[test]
fn programs_that_run_are_shown_and_those_that_were_killed_are_not() {
    let theirs = address(7);
    let mut answering = Answering::at(&theirs);
    let since = Instant::now();
    let socket = format!("{theirs}:4000");
    let pid = loop {
        let info = answering.info();
        // The program is shown before it has its socket.
        if let (Some(pid), true) = (info[0]["pid"].as_u64(), info[0]["sockets"][0] == socket) {
            break pid;
        }
        assert!(since.elapsed() < PATIENCE, "it is not shown: {info}");
    };
    assert_eq!(pid, u64::from(answering.program.child().id()));
    let text = answering.rds(&["info"]).succeeded();
    assert!(text.starts_with(&format!("process {pid}\n")), "{text}");
    answering.program.kill();
    let _reaped = answering.program.child().wait();
    assert_eq!(answering.info(), Value::Array(Vec::new()));
    let text = answering.rds(&["info"]).succeeded();
    assert_eq!(text, "no program of `verbs rds` is running\n");
}

#[test]
fn what_cannot_be_asked_is_said() {
    let place = Place::new();
    for (arguments, code, text) in [
        (&["rds", "stress"][..], 2, "required"),
        (
            &["rds", "stress", "-s", "127.0.0.1", "-q", "15"],
            2,
            "15 is not in 16..=1048576",
        ),
        (&["rds", "stress", "-r", "192.0.2.77"], 1, "192.0.2.77"),
    ] {
        let ended = place.verbs(arguments);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
}
