//! `verbs connections`: programs of the command, and programs on the C libraries, which `verbs run` starts.

use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nic::libraries;
use crate::run::{PATIENCE, Place, RPING, VERBS, address_of};
use crate::wire::Background;

/// `verbs` of a user to whom that directory is the runtime directory, and who shares no addresses.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(VERBS);
    command.args(arguments);
    command.env("XDG_RUNTIME_DIR", place.path(""));
    command.env("VERBS_HOST_SOCKET", "");
    command
}

/// `verbs` under `verbs run`, on the libraries' device for RoCE as a NIC.
fn on_library(place: &Place, lib: &Path, device: &str, arguments: &[&str]) -> Command {
    let lib = lib.to_str().expect("text");
    let front = ["run", "--library", lib, "--device", device, "--", VERBS];
    let behind = ["--device", "rdma:roce0"];
    command(place, &[&front[..], arguments, &behind].concat())
}

/// What carries a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Roce,
    Iwarp,
}

/// The connections that are shown, once it is so many that are established.
fn shown(place: &Place, count: usize) -> Vec<Value> {
    let since = Instant::now();
    loop {
        let output = command(place, &["connections", "--json"]).output();
        let output = output.expect("it starts");
        let all: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        if all
            .iter()
            .filter(|one| one["state"] == "established")
            .count()
            == count
        {
            return all;
        }
        assert!(since.elapsed() < PATIENCE, "{count} wanted: {all:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The line of a process.
fn of(all: &[Value], process: u32) -> &Value {
    let found = all.iter().find(|one| one["process"] == process);
    found.unwrap_or_else(|| panic!("{process} is not among {all:?}"))
}

/// A server and a client that ping each other for long, each on our C library or not.
fn pair(place: &Place, lib: &Path, way: Way, n: u8, on_libraries: [bool; 2]) -> [Background; 2] {
    let [serves, asks] = [n, n + 1].map(|n| address_of(RPING, n));
    let pings = ["-C", "100000000", "-a", &serves];
    let start = |is_on_library: bool, device: &str, arguments: &[&str]| {
        let mut command = match is_on_library {
            true => on_library(place, lib, device, arguments),
            false if way == Way::Roce => command(place, arguments),
            false => command(place, &[arguments, &["--transport", "iwarp"]].concat()),
        };
        Background::run(&mut command)
    };
    let server = [&["rping", "-s"][..], &pings].concat();
    let client = [&["rping", "-c", "-I", &asks][..], &pings].concat();
    let server = start(on_libraries[0], &serves, &server);
    let since = Instant::now();
    loop {
        let mut client = start(on_libraries[1], &asks, &client);
        // The server takes a moment, and a client that is refused ends.
        thread::sleep(Duration::from_millis(300));
        if !client.has_ended() {
            return [server, client];
        }
        assert!(since.elapsed() < PATIENCE, "{:?}", client.end());
    }
}

/// Whether the host shows that TCP connection: its state is 1.
fn is_on_host(local: &str, remote: &str) -> bool {
    let shown = |at: &str| {
        let at: SocketAddrV4 = at.parse().expect("an address");
        format!("{:08X}:{:04X}", u32::from(*at.ip()).swap_bytes(), at.port())
    };
    let row = format!(" {} {} 01 ", shown(local), shown(remote));
    let table = fs::read_to_string("/proc/net/tcp").expect("procfs");
    table.contains(&row)
}

/// Goal: both ends of a connection are shown, with the addresses and port numbers of its connection manager, the numbers of both
/// queue pairs, service, transport and what was counted, whether the program is of this command or on the C libraries; over TCP
/// with the port numbers under which the host shows the same connection; and no longer once a program was killed.
#[test]
fn both_ends_are_shown_of_commands_and_of_programs_on_the_libraries() {
    let place = Place::new();
    let lib = libraries(&place);
    for (n, way, on_libraries) in [
        (211, Way::Roce, [false, false]),
        (213, Way::Roce, [true, false]),
        (215, Way::Roce, [false, true]),
        (217, Way::Iwarp, [false, false]),
    ] {
        let [mut server, mut client] = pair(&place, &lib, way, n, on_libraries);
        let all = shown(&place, 2);
        let [serves, asks] = [&mut server, &mut client].map(|one| of(&all, one.child().id()));
        assert_eq!(serves["local"], format!("{}:7174", address_of(RPING, n)));
        assert_eq!(asks["remote"], serves["local"]);
        let (transport, unavailable) = match way {
            Way::Roce => ("RoCEv2", json!(["statistics"])),
            Way::Iwarp => ("iWARP", json!([])),
        };
        for end in [serves, asks] {
            assert_eq!(end["service"], "RC");
            assert_eq!(end["transport"], transport);
            assert_eq!(end["offloaded"], false);
            assert_eq!(end["unavailable"], unavailable);
            assert!(end["stats"]["timeouts"].is_u64(), "{end}");
            let [local, remote] = ["local", "remote"].map(|at| end[at].as_str().expect("text"));
            assert_eq!(is_on_host(local, remote), way == Way::Iwarp, "{end}");
        }
        if way == Way::Roce {
            assert_eq!(serves["qpn"], asks["remote_qpn"], "{all:?}");
            assert_eq!(asks["qpn"], serves["remote_qpn"], "{all:?}");
        }
        let text = command(&place, &["connections"])
            .output()
            .expect("it starts");
        let text = String::from_utf8(text.stdout).expect("text");
        assert!(text.contains(":7174 ") && text.contains(" RC "), "{text}");
        client.kill();
        drop((server, client));
        assert_eq!(shown(&place, 0), [Value::Null; 0]);
    }
}
