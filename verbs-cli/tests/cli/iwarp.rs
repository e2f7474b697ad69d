//! Commands over TCP, as iWARP, each between two processes on addresses of 127.0.0.0/8.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::host::{APART, can_be_apart};
use crate::run::{Ended, Place, VERBS, WIRE, address_of, content};
use crate::wire::{Background, free_port};

const PATIENCE: Duration = Duration::from_secs(20);

/// An address that no other test has: those of packets end before it.
fn address(n: u8) -> String {
    address_of(WIRE, 200 + n)
}

/// Runs a client until its server listens.
pub(crate) fn ask(place: &Place, arguments: &[&str]) -> Ended {
    let until = Instant::now() + PATIENCE;
    loop {
        let ended = place.verbs(arguments);
        let is_early = ["Connection refused", "nobody listens"]
            .iter()
            .any(|said| ended.stderr.contains(said));
        if !is_early || Instant::now() > until {
            return ended;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Goal: pingpongs of one and of several queue pairs over TCP, polling and with events, every byte checked.
#[test]
fn messages_go_back_and_forth() {
    let place = Place::new();
    let host = address(1);
    let cases: [&[&str]; 3] = [
        &["rc", "-n", "200", "-c"],
        &["rc", "-n", "20", "-e", "-c", "-s", "1000000", "-r", "4"],
        &["srq", "-n", "200", "-q", "4", "-c"],
    ];
    for options in cases {
        let port = free_port();
        let common = [
            &["pingpong"],
            options,
            &["--transport", "iwarp", "-p", &port],
        ]
        .concat();
        let server = Background::start(&place, &common);
        let client = ask(&place, &[&common[..], &[&host]].concat()).succeeded();
        assert!(client.contains("remote address"), "{client}");
        server.end().succeeded();
    }
}

/// Goal: what RDMA over TCP does not have is refused before anything begins, with what would be right.
#[test]
fn what_needs_packets_is_refused() {
    let place = Place::new();
    for kind in ["uc", "ud", "xrc"] {
        let refused = place.verbs(&["pingpong", kind, "--transport", "iwarp"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(
            refused.stderr.contains(kind) && refused.stderr.contains("rc and srq"),
            "{}",
            refused.stderr
        );
    }
    let alone = place.verbs(&["connect-bench", "--transport", "iwarp"]);
    assert_eq!(alone.code, Some(2), "{alone:?}");
}

/// Goal: connections over TCP beside ordinary ones; a server whose number an ordinary one has says so.
#[test]
fn connections_are_measured() {
    let place = Place::new();
    let host = address(2);
    let at = format!("{host}:{}", free_port());
    let serves = ["connect-bench", "--transport", "iwarp", "--serve", &at];
    let plain = TcpListener::bind(&at).expect("it is free");
    let refused = place.verbs(&serves);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
    drop(plain);
    let mut server = Background::start(&place, &serves);
    let asks = [
        "connect-bench",
        "--transport",
        "iwarp",
        "--to",
        &at,
        "--count",
        "20",
    ];
    let said = ask(&place, &asks).succeeded();
    assert!(said.contains("20 connections with"), "{said}");
    TcpListener::bind(&at).expect_err("it is the server's");
    server.kill();
}

/// Goal: tests of perftest over TCP: every operation, by rate and by latency, on several connections; and a client whose
/// server speaks the other transport is told. Method: both ends are this command.
#[test]
fn rates_and_latencies_are_measured() {
    let place = Place::new();
    let host = address(7);
    let tests: [&[&str]; 7] = [
        &["send-lat", "-n", "50"],
        &["write-lat", "-n", "50"],
        &["read-lat", "-n", "50"],
        &["send-bw", "-n", "100", "-q", "3", "-b"],
        &["write-bw", "-n", "100", "-s", "100000", "-q", "2"],
        &["atomic-bw", "-n", "100"],
        &["rpc", "-n", "100", "-q", "2"],
    ];
    for test in tests {
        let port = free_port();
        let options = ["--transport", "iwarp", "-p", &port];
        let common = [&["perf"], test, &options].concat();
        let server = Background::start(&place, &common);
        let client = ask(&place, &[&common[..], &[&host, "--json"]].concat()).succeeded();
        let report: serde_json::Value = serde_json::from_str(&client).expect("JSON");
        let results = report["results"][0].as_object().expect("what was measured");
        let figures: Vec<_> = results.values().filter_map(|it| it.as_f64()).collect();
        assert!(figures.iter().all(|&figure| figure > 0.0), "{client}");
        assert!(figures.len() > 2, "{client}");
        server.end().succeeded();
    }
}

/// A server of `dir`, and the URL that it says it is at.
fn serve(place: &Place, n: u8, options: &[&str]) -> (Background, String) {
    fs::create_dir_all(place.path("dir")).expect("a directory");
    let listen = format!("{}:0", address(n));
    let common = ["serve", "dir", "--transport", "iwarp", "--listen", &listen];
    let mut server = Background::start(place, &[&common, options].concat());
    let stdout = server.child().stdout.take().expect("piped");
    let mut line = String::new();
    let mut reader = BufReader::new(stdout);
    reader.read_line(&mut line).expect("text");
    // Goes on reading, so that the server never has to wait.
    thread::spawn(move || reader.lines().for_each(drop));
    let mut words = line.split_whitespace();
    let url = words.find(|word| word.starts_with("iwarp://"));
    let url = url.unwrap_or_else(|| panic!("no URL in {line:?}"));
    (server, url.to_owned())
}

/// Goal: files are served and fetched over TCP, at the server's port alone; the scheme names the transport. Method: files of
/// no byte to many chunks, two clients at once, a file outside, and a URL of another transport.
#[test]
fn files_are_fetched() {
    let place = Place::new();
    let (mut server, url) = serve(&place, 3, &[]);
    fs::create_dir(place.path("dir/sub")).expect("a directory");
    let file = format!("{url}sub/a%20b");
    for size in [0, 1, 70_000, 40_000_001] {
        fs::write(place.path("dir/sub/a b"), content(size)).expect("room");
        let shown = place.verbs(&["copy", &file, "B"]).succeeded();
        assert!(shown.starts_with(&format!("{size} bytes")), "{shown}");
        assert!(place.read("B") == content(size), "{size}");
    }
    let window = ["--chunk", "64k", "--window", "4", "--transport", "iwarp"];
    let both = ["C", "D"].map(|name| {
        let arguments = [&["copy", "--quiet"], &window[..], &[&file, name]].concat();
        Background::start(&place, &arguments)
    });
    for client in both {
        client.end().succeeded();
    }
    for name in ["C", "D"] {
        assert!(place.read(name) == content(40_000_001), "{name}");
    }
    let outside = place.verbs(&["copy", &format!("{url}..%2fA"), "E"]);
    outside.failed(1, &["outside of the directory", "E was not created"]);
    let packets = place.verbs(&["copy", "--pcap", "x", &file, "E"]);
    packets.failed(1, &["--pcap is about packets", "E was not created"]);
    let roce = file.replace("iwarp", "roce");
    let mixed = place.verbs(&["copy", "--transport", "iwarp", &roce, "E"]);
    mixed.failed(1, &["this runs over RoCE only"]);
    let local = place.verbs(&["copy", "--transport", "iwarp", "B", "E"]);
    local.failed(2, &["--transport"]);
    server.kill();
    let complaints = server.end().stderr;
    assert!(
        complaints
            .lines()
            .all(|line| line.contains("outside of the directory")),
        "{complaints}"
    );
    assert_eq!(place.names(), ["B", "C", "D", "dir"]);
}

/// Goal: a server of all addresses is found at those of both families.
#[test]
fn files_are_fetched_from_all_addresses() {
    let place = Place::new();
    fs::create_dir_all(place.path("dir")).expect("a directory");
    fs::write(place.path("dir/A"), content(70_000)).expect("room");
    let port = free_port();
    let listen = format!("[::]:{port}");
    let serves = ["serve", "dir", "--transport", "iwarp", "--listen", &listen];
    let mut server = Background::start(&place, &serves);
    for host in ["127.0.0.1", "[::1]"] {
        let url = format!("iwarp://{host}:{port}/A");
        ask(&place, &["copy", &url, "B"]).succeeded();
        assert!(place.read("B") == content(70_000), "{host}");
    }
    server.kill();
}

/// Goal: a name may have several addresses: the server is found at the one that it listens on, whichever comes first; and if it is
/// at none of them, the client says so. Method: a name for this program alone, in a file of hosts that stands in the place of the
/// system's in a mount namespace.
#[test]
fn a_name_with_several_addresses_is_tried_to_the_end() {
    let place = Place::new();
    let hosts = |addresses: [&str; 2]| {
        let lines = addresses.map(|address| format!("{address} twice.test\n"));
        fs::write(place.path("hosts"), lines.concat()).expect("room");
    };
    let mount = "mount --bind hosts /etc/hosts && exec \"$@\"";
    let script = format!("exec unshare -r -m sh -c '{mount}' sh \"$@\"");
    let named = |arguments: &[&str]| place.shell(&script, arguments);
    hosts(["::1", "127.0.0.1"]);
    if named(&["--version"]).code != Some(0) {
        eprintln!("left out: no mount namespace can be made here");
        return;
    }
    let (mut server, url) = serve(&place, 5, &[]);
    fs::write(place.path("dir/A"), content(70_000)).expect("room");
    let (own, absent) = (address(5), address(6));
    let file = format!("{}A", url.replace(&own, "twice.test"));
    for addresses in [["::1", &own], [&own, "::1"]] {
        hosts(addresses);
        named(&["copy", &file, "B"]).succeeded();
        assert!(place.read("B") == content(70_000), "{addresses:?}");
        fs::remove_file(place.path("B")).expect("it is there");
    }
    hosts(["::1", &absent]);
    named(&["copy", &file, "B"]).failed(1, &["nobody listens", "B was not created"]);
    server.kill();
}

/// Goal: a peer that is killed in the middle of a file is missed by either side. Method: a client is killed, and the server
/// serves the next; then the server is killed, and its client leaves nothing.
#[test]
fn a_copy_that_loses_its_peer_ends() {
    let place = Place::new();
    let (mut server, url) = serve(&place, 4, &["--max-clients", "1"]);
    let large = File::create(place.path("dir/A")).expect("room");
    large.set_len(1 << 36).expect("a sparse file");
    fs::write(place.path("dir/B"), content(70_000)).expect("room");
    let file = format!("{url}A");
    let copy = |name| Background::start(&place, &["copy", "--quiet", &file, name]);
    let mut killed = copy("C");
    killed.is_writing();
    killed.kill();
    drop(killed.end());
    let until = Instant::now() + PATIENCE;
    let small = format!("{url}B");
    while place.verbs(&["copy", &small, "B"]).code != Some(0) {
        assert!(Instant::now() < until, "the place is not free");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(place.read("B") == content(70_000));
    let mut client = copy("C");
    client.is_writing();
    server.kill();
    let since = Instant::now();
    let ended = client.end();
    assert!(since.elapsed() < PATIENCE, "{ended:?}");
    ended.failed(5, &["C was not created"]);
    assert_eq!(place.names(), ["B", "dir"]);
}

/// What a network namespace of its own runs: a service at all addresses, beside which addresses come and go. `$0` is `verbs`.
const FOLLOWS: &str = r#"
ip addr add 10.77.0.1/32 dev lo || exit 9
"$0" rping -s -P --transport iwarp -p 7200 & server=$!
ask() { "$0" rping -c -C 2 --transport iwarp -a "$1" -p 7200 2>said; }
until ask 10.77.0.1; do grep -q -e refused -e 'nobody listens' said || exit 1; done
ip addr add 10.77.0.2/32 dev lo && ask 10.77.0.2 || exit 2
ip addr del 10.77.0.1/32 dev lo && ask 10.77.0.1 && exit 3
ask 10.77.0.2 || exit 4
kill $server
"#;

/// Goal: C5, a service at all addresses is at those that interfaces get later, and serves on when one goes.
#[test]
fn a_service_at_all_addresses_follows_interfaces() {
    if !can_be_apart() {
        return;
    }
    let place = Place::new();
    let mut command = Command::new(APART[0]);
    command.args(&APART[1..]).args(["sh", "-c", FOLLOWS, VERBS]);
    let ended = Background::run(command.current_dir(place.path("."))).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Goal: an option for streams alone is refused over packets, before a server waits for anybody.
#[test]
fn a_port_mapper_is_for_streams() {
    let place = Place::new();
    for command in [
        &["rping", "-s", "-a", "127.0.0.1", "--port-mapper"][..],
        &["pingpong", "rc", "--port-mapper"],
        &["serve", ".", "--port-mapper"],
    ] {
        place
            .verbs(command)
            .failed(1, &["--port-mapper is for --transport iwarp"]);
    }
}
