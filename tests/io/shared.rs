//! Programs of crate `verbs` that share an address.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use verbs::prelude::*;

use crate::child::{Guarded, started};

/// The program is an end of a connection at that address: the one that is asked, or the one that asks.
const ROLE: &str = "VERBS_TEST_ENDPOINT";

/// What the one says that is asked, on stderr.
const LISTENS: &str = "it listens";

fn program(role: &str, address: &str, socket: Option<&str>) -> Command {
    let mut command = Command::new(env::current_exe().expect("this is one"));
    command.args(["--exact", "shared::an_end", "--nocapture"]);
    command.env(ROLE, format!("{role} {address}"));
    command.envs(socket.map(|socket| ("VERBS_HOST_SOCKET", socket)));
    command.stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The command, as built by `cargo test --workspace` or `cargo build -p verbs-cli`.
fn verbs() -> Command {
    let mut path: PathBuf = env::current_exe().expect("this test is a file");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path = path.join("verbs");
    assert!(
        path.exists(),
        "{} is not there: cargo build -p verbs-cli",
        path.display()
    );
    Command::new(path)
}

pub(crate) fn daemon(address: &str, socket: &str) -> Guarded {
    let mut command = verbs();
    command.args(["host", "--bind", address, "--socket", socket]);
    let (daemon, line) = started(&mut command);
    assert!(line.starts_with("sharing"), "{line}");
    daemon
}

/// Goal: two endpoints at one address of a daemon's find each other there; one at another address, and one that is told to join none,
/// have an address of their own; a daemon that is named and is not there is an error that says so.
#[test]
fn endpoints_share_an_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("host");
    let socket = socket.to_str().expect("text");
    let [.., high, low] = std::process::id().to_be_bytes();
    // No other test has addresses from there.
    let [shared, own] = [1, 2].map(|n| format!("127.{}.{low}.{n}", 96 + high % 16));
    let daemon = daemon(&shared, socket);
    let serves = |address, socket| {
        let mut server = Guarded::start(&mut program("serves", address, socket));
        let stderr = server.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(stderr).lines();
        let listens = lines.find(|line| line.as_ref().is_ok_and(|line| line == LISTENS));
        assert!(listens.is_some(), "it does not listen");
        server
    };
    let asks = |address, socket| {
        let output = program("asks", address, socket).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    for (address, socket) in [(&shared, Some(socket)), (&own, Some(""))] {
        let _server = serves(address, socket);
        let (is_answered, said) = asks(address, socket);
        let joins = socket != Some("");
        assert_eq!(is_answered, joins, "{said}");
        assert_eq!(said.contains("is taken"), !joins, "{said}");
    }
    // The daemon has another address than the endpoint.
    let server = serves(&own, Some(socket));
    let (_, said) = asks(&own, Some(socket));
    assert!(said.contains("is taken"), "{said}");
    drop((server, daemon));
    let (is_one, said) = asks(&shared, Some(socket));
    assert!(
        !is_one && said.contains("`verbs host` starts one"),
        "{said}"
    );
}

/// One end, of [`endpoints_share_an_address`]; nothing by itself.
#[test]
fn an_end() {
    let Ok(role) = env::var(ROLE) else { return };
    let (role, address) = role.split_once(' ').expect("a role and an address");
    let address: std::net::IpAddr = address.parse().expect("an address");
    verbs::block_on(async {
        let net = Endpoint::udp(address).open().await;
        let net = net.unwrap_or_else(|error| panic!("{error}"));
        let there = format!("{address}:7471");
        if role == "serves" {
            let mut listener = net.listen(there).await.expect("it listens");
            eprintln!("{LISTENS}");
            loop {
                let conn = listener.accept().await;
                while let Ok(Some(message)) = conn.recv().await {
                    conn.send(message).await.expect("it is there");
                }
            }
        }
        let conn = net.connect(there.as_str()).await;
        let conn = conn.expect("somebody listens");
        let mut message = conn.buf().await;
        message[..5].copy_from_slice(b"hello");
        conn.send(message).await.expect("it is there");
        let echo = conn.recv().await.expect("an answer").expect("one");
        assert_eq!(&echo[..5], b"hello");
    });
}
