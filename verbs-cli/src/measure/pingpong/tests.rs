//! Both ends in one process, on a loopback link; TCP is real.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Parser;
use verbs_core::sync::thread;

use super::*;
use crate::cli::{Cli, Command};
use crate::exit;
use crate::wire::stand_in::LoopbackNetwork;

#[path = "../../../tests/cli/ports.rs"]
mod ports;

use self::ports::free_port;

/// How long a test waits for a server to listen.
const PATIENCE: Duration = Duration::from_secs(60);

fn args(port: u16, host: &str, options: &str) -> PingpongArgs {
    // The kind may come first.
    let (kind, options) = match options.split_once(':') {
        Some(parts) => parts,
        None => ("rc", options),
    };
    let line = format!("verbs pingpong {kind} {host} -p {port} {options}");
    match Cli::parse_from(line.split_whitespace()).command {
        Command::Pingpong(args) => args,
        other => panic!("{other:?}"),
    }
}

fn text_of(args: &PingpongArgs, network: &LoopbackNetwork) -> Result<String, PingpongError> {
    let mut out = Vec::new();
    run(args, network, &mut out).map(|()| String::from_utf8(out).expect("text"))
}

/// As [`text_of`], when the server may not be there yet.
fn client(args: &PingpongArgs, network: &LoopbackNetwork) -> Result<String, PingpongError> {
    let since = Instant::now();
    loop {
        match text_of(args, network) {
            Err(PingpongError::Net(NetError::Connect { .. })) if since.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

#[test]
fn messages_go_both_ways() {
    for options in [
        "-n 50",
        "-n 7 -e -c -s 100000 -r 3 --timeout 0",
        "-n 1 -c -s 1 -r 1 -m 4096",
        "uc: -n 50 -c",
        "uc: -n 7 -e -s 100000 -r 3",
        "ud: -n 50 -c",
        "ud: -n 7 -e -c -s 4096 -r 3",
        "srq: -n 100 -c -q 5 -r 7 --timeout 17",
        "srq: -n 100 -e -q 1 -r 1 -s 70000",
        "xrc: -n 50 -c",
        "xrc: -n 7 -e -c -s 100000 -r 3",
    ] {
        let (network, port) = (LoopbackNetwork::default(), free_port());
        let [server, client_args] = ["", "127.0.0.1"].map(|host| args(port, host, options));
        let (ours, theirs) = thread::scope(|scope| {
            let serving = scope.spawn(|| text_of(&server, &network));
            let ours = client(&client_args, &network).expect("a game");
            (ours, serving.join().expect("no panic").expect("a game"))
        });
        let (ours, theirs): (Vec<_>, Vec<_>) = (ours.lines().collect(), theirs.lines().collect());
        let count = client_args.connections() as usize;
        let lines = 2 * count + 2;
        assert_eq!((ours.len(), theirs.len()), (lines, lines), "{ours:?}");
        let seen = |lines: &[&str]| lines.join("").replace("local address: ", "remote address:");
        assert_eq!(seen(&ours[..count]), seen(&theirs[count..2 * count]));
        assert_eq!(seen(&theirs[..count]), seen(&ours[count..2 * count]));
        let ours = &ours[2 * count - 2..];
        let (iters, size) = (client_args.iters, client_args.size());
        let bytes = u64::from(iters) * u64::from(size) * 2;
        assert!(
            ours[2].starts_with(&format!("{bytes} bytes in ")),
            "{ours:?}"
        );
        assert!(ours[2].ends_with(" Mbit/sec"), "{ours:?}");
        assert!(
            ours[3].starts_with(&format!("{iters} iters in ")),
            "{ours:?}"
        );
        assert!(ours[3].ends_with(" usec/iter"), "{ours:?}");
    }
}

/// Goal: what a hostile or old client sends ends the server with a sentence. Method: several of them.
#[test]
fn strange_clients_are_told_apart() {
    let lidless = "0001:000011:fffff0:00000000000000000000000000000000\0";
    let v4 = "0000:000011:fffff0:00000000000000000000ffffc0000201\0";
    let cases: [(&str, u8, &str); 4] = [
        (
            "GET / HTTP/1.1\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            exit::FILES,
            "another protocol",
        ),
        ("short", exit::FILES, "ended the connection"),
        (lidless, exit::USAGE, "the peer has no GID"),
        (v4, exit::USAGE, "no packet goes from"),
    ];
    for (says, code, part) in cases {
        let (network, port) = (LoopbackNetwork::default(), free_port());
        let server = args(port, "", "");
        thread::scope(|scope| {
            let serving = scope.spawn(|| text_of(&server, &network));
            let since = Instant::now();
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
                }
                thread::sleep(Duration::from_millis(5));
            };
            stream.write_all(says.as_bytes()).expect("it reads");
            // A server that has seen enough may have closed it already.
            let _closed = stream.shutdown(std::net::Shutdown::Write);
            let error = serving
                .join()
                .expect("no panic")
                .expect_err("no client of ours");
            assert_eq!(error.exit_code(), code, "{error}");
            assert!(error.to_string().contains(part), "{error}");
            let _ = stream.read(&mut [0]);
        });
    }
}

#[test]
fn what_cannot_be_played_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let network = LoopbackNetwork::default();
    for (options, part) in [
        ("ud: -s 4097", "-s 4097 does not fit one datagram"),
        ("srq: -q 5 -r 4", "-r 4 receives are too few for -q 5"),
    ] {
        let error = text_of(&args(port, "127.0.0.1", options), &network).expect_err("refused");
        assert_eq!(error.exit_code(), exit::USAGE);
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Goal: ends with different numbers of connections notice.
#[test]
fn a_peer_with_fewer_connections_is_told_apart() {
    let (network, port) = (LoopbackNetwork::default(), free_port());
    let server = args(port, "", "srq: -q 3");
    let client_args = args(port, "127.0.0.1", "srq: -q 2");
    thread::scope(|scope| {
        let serving = scope.spawn(|| text_of(&server, &network));
        // What the client is told depends on which side notices first.
        client(&client_args, &network).expect_err("the server leaves");
        let error = serving.join().expect("no panic").expect_err("too few");
        assert!(
            matches!(error, PingpongError::Connections { got: 2 }),
            "{error}"
        );
    });
}

#[test]
fn what_does_not_fit_is_said_before_anything_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let network = LoopbackNetwork::default();
    let error = text_of(&args(port, "127.0.0.1", "-g 1"), &network).expect_err("one GID");
    assert!(
        matches!(error, PingpongError::GidIndex { got: 1, max: 0 }),
        "{error}"
    );
}
