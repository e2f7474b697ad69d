//! `verbs rds` between two processes: over RoCE and iWARP on addresses of 127.0.0.0/8, and at two nodes of a hosted subnet.

use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use verbs_wire::pcap::reader::Capture;

use crate::line::first_line;
use crate::run::{Ended, PATIENCE, Place, RDS, VERBS, address_of};
use crate::wire::Background;

/// An address that no other test has.
fn address(n: u8) -> String {
    address_of(RDS, n)
}

/// Options of both ends of a network.
const IWARP: [&str; 2] = ["--transport", "iwarp"];

/// A program that answers, with a runtime directory of its own.
struct Answering {
    program: Background,
    place: Place,
}

impl Answering {
    fn at(address: &str) -> Self {
        Self::over(Place::new(), &[], address)
    }

    /// On the network that these options name. Ends when it says that it answers.
    fn over(place: Place, network: &[&str], address: &str) -> Self {
        let mut command = command(&place, &["stress", "-r", address, "-v"]);
        command.args(network);
        let mut program = Background::run(&mut command);
        let line = first_line(program.child().stdout.take().expect("piped"));
        if line != format!("requests to {address}:4000 are answered\n") {
            panic!("{line}{:?}", program.end());
        }
        Self { program, place }
    }

    /// `verbs rds` with these arguments, as the same user of the same session.
    fn rds(&self, arguments: &[&str]) -> Ended {
        Ended::from(command(&self.place, arguments).output().expect("it runs"))
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

/// `verbs rds` of a user to whom that directory is the runtime directory.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(VERBS);
    command.arg("rds").args(arguments);
    command.env("XDG_RUNTIME_DIR", place.path(""));
    command.env("VERBS_SUBNET", place.path("subnet"));
    command
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

/// Goal: where the peer's host says that nobody is there, the ping says so, and does not wait for its time. Method: more time
/// than the test has patience for.
#[test]
fn a_ping_to_nobody_says_so_at_once() {
    let (ours, theirs) = (address(10), address(11));
    let place = Place::new();
    let arguments = ["ping", "-c", "1", "-W", "3600s", "-I", &ours, &theirs];
    let ended = Background::run(&mut command(&place, &arguments)).end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let why = format!("nobody is at {theirs}: UDP port 4791 there refuses packets");
    assert!(
        ended.stdout.contains(&why) && ended.stderr.contains(&why),
        "{ended:?}"
    );
}

#[test]
fn every_datagram_comes_once_although_the_connection_is_dropped_all_the_time() {
    let (ours, theirs) = (address(5), address(6));
    let answering = Answering::at(&theirs);
    let asked = answering.rds(&[
        "stress", "-r", &ours, "-s", &theirs, "-t", "3", "-d", "8", "-n", "2000", "-q", "5000",
        "-a", "100", "-v", "--kill", "20ms", "--json",
    ]);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let sums = json(&asked);
    assert_eq!(sums["answers"], 6000, "{sums}");
    assert_eq!(sums["bytes_received"], 600_000, "{sums}");
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

/// Goal: streams of TCP carry all that packets do. Method: pings and requests, with the connection dropped all the time.
#[test]
fn iwarp_carries_datagrams_once_and_in_order() {
    let (ours, theirs) = (address(8), address(9));
    let answering = Answering::over(Place::new(), &IWARP, &theirs);
    let rds = |arguments: &[&str]| answering.rds(&[arguments, &IWARP].concat());
    let said = rds(&["ping", "-c", "3", "-i", "1ms", "-I", &ours, &theirs]).succeeded();
    assert!(said.contains("3 pings, 3 answered"), "{said}");
    let asked = rds(&[
        "stress", "-r", &ours, "-s", &theirs, "-t", "3", "-d", "8", "-n", "3000", "-q", "9000",
        "-a", "100", "-v", "--kill", "10ms", "--json",
    ]);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let sums = json(&asked);
    assert_eq!(sums["answers"], 9000, "{sums}");
    assert!(sums["losses"].as_u64() > Some(0), "{sums}");
    assert_eq!(answering.end().stderr, "");
}

/// Goal: programs of one host need no option to find an address, although programs share addresses over TCP: RDS has one port.
#[test]
fn iwarp_programs_of_one_host_find_addresses() {
    let theirs = address(10);
    let answering = Answering::over(Place::new(), &IWARP, &theirs);
    let arguments = [&["ping", "-c", "1", &theirs][..], &IWARP].concat();
    let asking: Vec<_> = (0..3)
        .map(|_| Background::run(&mut command(&answering.place, &arguments)))
        .collect();
    for asking in asking {
        let ended = asking.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let second = answering.rds(&[&["stress", "-r", &theirs][..], &IWARP].concat());
    second.failed(1, &[&format!("{theirs}:18634 is in use")]);
    assert_eq!(answering.end().stderr, "");
}

/// A subnet of two adapters with a manager.
struct Hosted {
    _program: Background,
}

impl Hosted {
    fn at(place: &Place) -> Self {
        let topology = "Switch 2 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\nHca 1 \"a\"\nHca 1 \"b\"\n";
        place.write("net", topology.as_bytes());
        let mut command = Command::new(VERBS);
        command.arg("subnet").arg(place.path("net")).arg("--sm");
        command.env("VERBS_SUBNET", place.path("subnet"));
        let mut program = Background::run(&mut command);
        let line = first_line(program.child().stdout.take().expect("piped"));
        assert!(line.starts_with("subnet with"), "{line}");
        Self { _program: program }
    }
}

/// Goal: nodes of a hosted subnet carry datagrams; addresses are found by address resolution, paths by the manager.
#[test]
fn nodes_of_a_hosted_subnet_carry_datagrams_once_and_in_order() {
    let place = Place::new();
    let hosted = Hosted::at(&place);
    let answering = Answering::over(place, &["--node", "b"], "10.0.0.2");
    let rds = |arguments: &[&str]| answering.rds(&[arguments, &["--node", "a:1"]].concat());
    let said = rds(&["ping", "-c", "3", "-i", "1ms", "-I", "10.0.0.1", "10.0.0.2"]).succeeded();
    assert!(said.contains("3 pings, 3 answered"), "{said}");
    let path = answering.place.path("a.pcapng");
    let path = path.to_str().expect("text");
    let pcap = [
        "ping", "-c", "1", "-I", "10.0.0.1", "--pcap", path, "10.0.0.2",
    ];
    rds(&pcap).succeeded();
    let capture = Capture::parse("a", &answering.place.read("a.pcapng"));
    let is_there = |is_inbound| {
        let mut packets = capture.packets.iter();
        packets.any(|it| {
            (it.interface.as_str(), it.link_type, it.is_inbound) == ("a:1", 197, Some(is_inbound))
        })
    };
    assert!(is_there(true) && is_there(false), "{capture:?}");
    let asked = rds(&[
        "stress", "--bind", "fd00::1", "-r", "10.0.0.1", "-s", "10.0.0.2", "-t", "2", "-d", "8",
        "-n", "3000", "-q", "9000", "-a", "100", "-v", "--kill", "10ms", "--json",
    ]);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let sums = json(&asked);
    assert_eq!(sums["answers"], 6000, "{sums}");
    assert!(sums["losses"].as_u64() > Some(0), "{sums}");
    let without = rds(&["ping", "-c", "1", "10.0.0.2"]);
    without.failed(1, &["no address of this end is of the family of 10.0.0.2"]);
    let taken = answering.rds(&[
        "ping", "-c", "1", "--node", "b", "-I", "10.0.0.9", "10.0.0.2",
    ]);
    taken.failed(1, &["no port 1 of \"b\"", "somebody else has that"]);
    assert_eq!(answering.end().stderr, "");
    drop(hosted);
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
        (
            &[
                "rds",
                "ping",
                "--node",
                "a",
                "--transport",
                "iwarp",
                "127.0.0.1",
            ],
            2,
            "cannot be used with",
        ),
        (
            &["rds", "ping", "--subnet", "s", "127.0.0.1"],
            2,
            "--node <NODE[:PORT]>",
        ),
        (
            &[
                "rds", "ping", "--node", "a", "--subnet", "none", "-I", "10.0.0.1", "10.0.0.2",
            ],
            1,
            "cannot reach a subnet at none",
        ),
    ] {
        let ended = place.verbs(arguments);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
}
