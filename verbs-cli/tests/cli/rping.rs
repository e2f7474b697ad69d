//! `verbs rping` and `verbs connect-bench`, each between two processes on addresses of 127.0.0.0/8.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{Ended, PATIENCE, Place, RPING, address_of};
use crate::wire::{Background, free_port};

/// An address that no other test has.
fn address(n: u8) -> String {
    address_of(RPING, n)
}

/// Starts a server, and waits until packets reach it.
fn serve(place: &Place, arguments: &[&str], address: &str) -> Background {
    let server = Background::start(place, arguments);
    let ip: std::net::Ipv4Addr = address.parse().expect("an address");
    let socket = format!("{:08X}:{:04X}", u32::from(ip).swap_bytes(), 4791);
    let since = Instant::now();
    while !fs::read_to_string("/proc/net/udp")
        .expect("procfs")
        .contains(&socket)
    {
        assert!(since.elapsed() < PATIENCE, "nobody has {address}");
        thread::sleep(Duration::from_millis(10));
    }
    server
}

/// Runs a client, once its server listens: from the server's socket to its listener it is a few requests.
fn ask(place: &Place, arguments: &[&str]) -> Ended {
    let since = Instant::now();
    loop {
        let ended = place.verbs(arguments);
        if !ended.stderr.contains("nobody listens") || since.elapsed() > PATIENCE {
            return ended;
        }
    }
}

#[test]
fn pings_go_there_and_back() {
    let (ours, theirs) = (address(1), address(2));
    let place = Place::new();
    let serving = ["rping", "-s", "-a", &theirs, "-v", "-C", "3"];
    let server = serve(&place, &serving, &theirs);
    let client = [
        "rping", "-c", "-a", &theirs, "-I", &ours, "-v", "-V", "-C", "3", "-S", "100",
    ];
    // The server has room for 64 bytes unless told.
    let refused = ask(&place, &client);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    let since = Instant::now();
    let served = server.end();
    // A peer that goes without having answered is asked again and again: for 103 s.
    assert!(since.elapsed() < PATIENCE, "no DREP");
    assert_eq!(served.code, Some(5), "{served:?}");
    assert_eq!(
        served.stderr,
        "verbs rping: the peer announces 100 bytes; -S has room for 64\n"
    );

    let server = serve(&place, &[&serving[..], &["-S", "100"]].concat(), &theirs);
    let said = ask(&place, &client).succeeded();
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.starts_with("ping data: rdma-ping-0: ABCDEF"), "{said}");
    let served = server.end().succeeded();
    assert!(
        served.contains("server ping data: rdma-ping-2: CDEF"),
        "{served}"
    );
}

#[test]
fn nobody_listens_is_one_sentence() {
    let (ours, theirs) = (address(3), address(4));
    let place = Place::new();
    let serving = ["rping", "-s", "-a", &theirs, "-p", "7001"];
    let _server = serve(&place, &serving, &theirs);
    let client = ["rping", "-c", "-a", &theirs, "-I", &ours, "-p", "7002"];
    let ended = place.verbs(&client);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.stderr,
        format!("verbs rping: nobody listens at {theirs}:7002\n")
    );
}

/// Goal: results are for programs too.
#[test]
fn results_are_json() {
    let place = Place::new();
    let bench = ["connect-bench", "--count", "50", "--repeats", "1", "--json"];
    let rates: Value = serde_json::from_str(&place.verbs(&bench).succeeded()).expect("JSON");
    assert_eq!(rates["connections"], 50);
    assert!(rates["ratio"].as_f64() > Some(0.0), "{rates}");
    assert_eq!(rates["left_handles"], 0);

    let (ours, theirs) = (address(7), address(8));
    let server = serve(&place, &["rping", "-s", "-a", &theirs], &theirs);
    let client = [
        "rping", "-c", "-a", &theirs, "-I", &ours, "-C", "5", "--json",
    ];
    let said = ask(&place, &client).succeeded();
    let pings: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&pings["pings"], &pings["bytes"]), (&5.into(), &64.into()));
    assert!(pings["min_us"].as_f64() <= pings["mean_us"].as_f64());
    server.end().succeeded();

    let [serves, asks] = [address(5), address(6)];
    let port = free_port().to_string();
    let play = [
        "pingpong", "rc", "-p", &port, "-n", "10", "-s", "100", "--json", "--bind",
    ];
    let server = Background::start(&place, &[&play[..], &[&serves]].concat());
    let client = [&play[..], &[&asks, &serves]].concat();
    let since = Instant::now();
    let said = loop {
        let ended = place.verbs(&client);
        if ended.code == Some(0) {
            break ended.stdout;
        }
        assert!(since.elapsed() < PATIENCE, "{ended:?}");
    };
    for said in [said, server.end().succeeded()] {
        let result: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(
            (&result["bytes"], &result["iterations"]),
            (&2000.into(), &10.into())
        );
        assert!(result["us_per_iteration"].as_f64() > Some(0.0), "{result}");
    }
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
