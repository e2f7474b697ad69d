//! `verbs rping` and `verbs connect-bench`, each between two processes on addresses of 127.0.0.0/8.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{Ended, Place, RPING, VERBS, address_of};

/// An address that no other test has.
fn address(n: u8) -> String {
    address_of(RPING, n)
}

/// Starts a server, and waits until packets reach it.
fn serve(arguments: &[&str], address: &str) -> Child {
    let mut command = Command::new(VERBS);
    command.args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    let ip: std::net::Ipv4Addr = address.parse().expect("an address");
    let socket = format!("{:08X}:{:04X}", u32::from(ip).swap_bytes(), 4791);
    let patience = Instant::now() + Duration::from_secs(20);
    while !fs::read_to_string("/proc/net/udp")
        .expect("procfs")
        .contains(&socket)
    {
        assert!(Instant::now() < patience, "nobody has {address}");
        thread::sleep(Duration::from_millis(10));
    }
    child
}

/// Runs a client, once its server listens: from the server's socket to its listener it is a few requests.
fn ask(place: &Place, arguments: &[&str]) -> Ended {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let ended = place.verbs(arguments);
        if !ended.stderr.contains("nobody listens") || Instant::now() > patience {
            return ended;
        }
    }
}

fn end(child: Child) -> Ended {
    Ended::from(child.wait_with_output().expect("a child"))
}

#[test]
fn pings_go_there_and_back() {
    let (ours, theirs) = (address(1), address(2));
    let server = serve(&["rping", "-s", "-a", &theirs, "-v", "-C", "3"], &theirs);
    let place = Place::new();
    let client = [
        "rping", "-c", "-a", &theirs, "-I", &ours, "-v", "-V", "-C", "3", "-S", "100",
    ];
    // The server has room for 64 bytes unless told.
    let refused = ask(&place, &client);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    let since = Instant::now();
    let served = end(server);
    // A peer that goes without having answered is asked again and again: for 103 s.
    assert!(since.elapsed() < Duration::from_secs(30), "no DREP");
    assert_eq!(served.code, Some(5), "{served:?}");
    assert_eq!(
        served.stderr,
        "verbs rping: the peer announces 100 bytes; -S has room for 64\n"
    );

    let server = serve(
        &["rping", "-s", "-a", &theirs, "-v", "-C", "3", "-S", "100"],
        &theirs,
    );
    let said = ask(&place, &client).succeeded();
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.starts_with("ping data: rdma-ping-0: ABCDEF"), "{said}");
    let served = end(server).succeeded();
    assert!(
        served.contains("server ping data: rdma-ping-2: CDEF"),
        "{served}"
    );
}

#[test]
fn nobody_listens_is_one_sentence() {
    let (ours, theirs) = (address(3), address(4));
    let server = serve(&["rping", "-s", "-a", &theirs, "-p", "7001"], &theirs);
    let place = Place::new();
    let client = ["rping", "-c", "-a", &theirs, "-I", &ours, "-p", "7002"];
    let ended = place.verbs(&client);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.stderr,
        format!("verbs rping: nobody listens at {theirs}:7002\n")
    );
    let mut server = server;
    server.kill().expect("a child of ours");
    let _ = server.wait();
}

#[test]
fn connections_are_counted_and_leave_nothing() {
    let place = Place::new();
    let said = place
        .verbs(&[
            "connect-bench",
            "--count",
            "100",
            "--repeats",
            "1",
            "--parallel",
            "8",
        ])
        .succeeded();
    assert!(
        said.contains("left: 0 connections with a handle, 0 port numbers"),
        "{said}"
    );
}
