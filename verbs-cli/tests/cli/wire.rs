//! Processes that talk over UDP: pingpong, and copies from a server.
//!
//! Every test has addresses of 127.0.0.0/8 of its own, because one program at a time has the port of
//! RoCE on each.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use verbs_wire::pcap::reader::{Capture, CapturedPacket};

use crate::line::first_line;
use crate::run::{Ended, PATIENCE, Place, VERBS, WIRE, address_of, content, end_of};

/// Longer than all retries of a queue pair on a machine that does much else, shorter than the minute after which a copy
/// gives a peer up that lets nothing happen.
const SOON: Duration = Duration::from_secs(45);

/// An address that no other test has.
pub(crate) fn address(n: u8) -> String {
    address_of(WIRE, n)
}

/// A TCP port that nobody has just now.
pub(crate) fn free_port() -> String {
    crate::ports::free_port().to_string()
}

/// `verbs` in the background; killed if a test forgets it.
pub(crate) struct Background(Option<Child>);

impl Background {
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        let mut command = Command::new(VERBS);
        command.args(arguments).current_dir(place.path("."));
        Self::run(&mut command)
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().expect("it starts")))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("only `end` takes it")
    }

    pub(crate) fn kill(&mut self) {
        self.child().kill().expect("a child of ours");
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        kill_process(Pid::from_child(self.child()), signal).expect("a child of ours");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child().try_wait().expect("a child of ours").is_some()
    }

    /// Waits until it has written some of a file, which has no name before it is complete.
    pub(crate) fn is_writing(&mut self) {
        let open = format!("/proc/{}/fd", self.child().id());
        let since = Instant::now();
        loop {
            let files = fs::read_dir(&open).into_iter().flatten();
            let mut files = files.filter_map(|file| fs::metadata(file.ok()?.path()).ok());
            if files.any(|file| file.is_file() && file.len() >= 8 << 20) {
                return;
            }
            assert!(!self.has_ended(), "it has ended");
            assert!(since.elapsed() < PATIENCE, "nothing is written");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn end(mut self) -> Ended {
        end_of(self.0.take().expect("only here it is taken"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server of `dir`, and the URL that it says it is at.
pub(crate) struct Served {
    pub(crate) server: Background,
    url: String,
}

impl Served {
    pub(crate) fn start(place: &Place, n: u8, options: &[&str]) -> Self {
        fs::create_dir_all(place.path("dir")).expect("a directory");
        let listen = format!("{}:0", address(n));
        let arguments = [&["serve", "dir", "--listen", &listen], options].concat();
        let mut server = Background::start(place, &arguments);
        let line = first_line(server.child().stdout.take().expect("piped"));
        let mut words = line.split_whitespace();
        let url = words.find(|word| word.starts_with("roce://127."));
        let url = url
            .unwrap_or_else(|| panic!("no URL in {line:?}"))
            .to_owned();
        let managed = url.replace("roce", "rdma");
        assert!(words.eq(["and", managed.as_str()]), "{line}");
        Self { server, url }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}{name}", self.url)
    }

    /// The same file by the connection manager.
    pub(crate) fn managed(&self, name: &str) -> String {
        self.file(name).replace("roce", "rdma")
    }
}

/// A peer is given 8.6 s unless told otherwise: half a second, which is the default, is too little where a process waits
/// for its processor.
fn pingpong(place: &Place, port: &str, host: &[&str], options: &[&str]) -> Background {
    let patient: &[&str] = match options.contains(&"--timeout") {
        true => &[],
        false => &["--timeout", "18"],
    };
    let arguments = [&["pingpong", "rc", "-p", port], host, options, patient].concat();
    Background::start(place, &arguments)
}

/// Runs a client until the server listens.
fn against(place: &Place, port: &str, host: &str, options: &[&str]) -> Ended {
    let since = Instant::now();
    loop {
        let ended = pingpong(place, port, &[host], options).end();
        let refused = ended.stderr.contains("Connection refused");
        if !refused || since.elapsed() > PATIENCE {
            return ended;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn messages_go_back_and_forth() {
    let place = Place::new();
    let cases: [&[&str]; 4] = [
        &["-n", "50"],
        &["-n", "20", "-e", "-c", "-s", "65536", "-m", "4096"],
        &["-n", "5", "-c", "-s", "1000000", "-r", "4"],
        &["-n", "1", "-s", "1", "-m", "256"],
    ];
    for options in cases {
        let (port, host) = (free_port(), address(1));
        let server = pingpong(&place, &port, &[], options);
        let ours = against(
            &place,
            &port,
            &host,
            &[options, &["--bind", &address(2)]].concat(),
        );
        let (ours, theirs) = (ours.succeeded(), server.end().succeeded());
        let lines: Vec<_> = ours.lines().collect();
        assert_eq!(lines.len(), 4, "{ours}");
        assert!(
            lines[0].starts_with("  local address:  LID 0x0000, QPN 0x"),
            "{ours}"
        );
        assert!(
            lines[0].ends_with(&format!("GID ::ffff:{}", address(2))),
            "{ours}"
        );
        assert!(lines[1].ends_with(&format!("GID ::ffff:{host}")), "{ours}");
        assert_eq!(theirs.lines().count(), 4, "{theirs}");
    }
}

/// Goal: two programs on one host need no options. Also that a capture has all packets.
#[test]
fn two_terminals_are_enough() {
    let (place, port) = (Place::new(), free_port());
    let server = pingpong(&place, &port, &[], &["-n", "10", "-c"]);
    let options = ["-n", "10", "-c", "--pcap", "capture"];
    against(&place, &port, &address(3), &options).succeeded();
    server.end().succeeded();
    // Four packets for each message at least: 10 messages of 4 packets both ways, and ACKs.
    let capture = Capture::parse("pingpong", &place.read("capture"));
    let long = |is_inbound| {
        let packets = capture.packets.iter();
        let found = packets.filter(|it| it.is_inbound == Some(is_inbound) && it.len > 1024);
        found.count()
    };
    assert!(long(true) >= 40 && long(false) >= 40, "{capture:?}");
    assert!(
        capture
            .packets
            .iter()
            .all(|it| it.comment.is_empty() && it.interface == "roce0")
    );
}

/// Goal: a capture says which packets `--loss` took. Method: packets of data that came and were not taken come again, with
/// the same number.
#[test]
fn a_capture_says_what_was_lost() {
    let (place, port) = (Place::new(), free_port());
    let server = pingpong(&place, &port, &[], &["-n", "50", "-c"]);
    let bind = address(13);
    let options = [
        "-n", "50", "-c", "--loss", "10%", "--bind", &bind, "--pcap", "capture",
    ];
    against(&place, &port, &address(12), &options).succeeded();
    server.end().succeeded();
    let capture = Capture::parse("pingpong", &place.read("capture"));
    let mut lost = 0;
    for (n, packet) in capture.packets.iter().enumerate() {
        if packet.comment.is_empty() {
            continue;
        }
        assert_eq!(
            (packet.comment.as_str(), packet.is_inbound),
            ("lost on purpose", Some(true))
        );
        let psn = |packet: &CapturedPacket| packet.bytes[20 + 8 + 9..][..3].to_vec();
        let came_again = |later: &&CapturedPacket| {
            later.len == packet.len && later.is_inbound == Some(true) && psn(later) == psn(packet)
        };
        lost += 1;
        if packet.len > 1024 {
            let later = capture.packets[n + 1..].iter();
            assert!(later.filter(came_again).count() > 0, "packet {}", n + 1);
        }
    }
    assert!(lost > 5, "{lost} of {}", capture.packets.len());
}

#[test]
fn losses_are_made_up_for() {
    let (place, port) = (Place::new(), free_port());
    let server = pingpong(&place, &port, &[], &["-n", "50", "-c"]);
    let options = [
        "-n",
        "50",
        "-c",
        "--loss",
        "30",
        "--seed",
        "5",
        "--bind",
        &address(5),
    ];
    against(&place, &port, &address(4), &options).succeeded();
    server.end().succeeded();
}

/// Goal: a peer that has gone is missed after 8 timeouts. Method: that of 14 (0.54 s), and one of 18 (8.6 s).
#[test]
fn a_peer_that_is_killed_is_missed() {
    let (place, port) = (Place::new(), free_port());
    let options = ["-n", "100000000"];
    let bind = address(7);
    let missed_after = |timeout: &str| {
        let mut server = pingpong(&place, &port, &[], &options);
        let client_options = [&options[..], &["--bind", &bind, "--timeout", timeout]].concat();
        let since = Instant::now();
        let client = loop {
            assert!(since.elapsed() < PATIENCE, "no server answers");
            let mut client = pingpong(&place, &port, &[&address(6)], &client_options);
            let said = client.child().stdout.take().expect("piped");
            let mut lines = BufReader::new(said).lines().map_while(Result::ok);
            if lines.any(|line| line.contains("remote address")) {
                break client;
            }
        };
        thread::sleep(Duration::from_millis(200));
        server.kill();
        let killed = Instant::now();
        let ended = client.end();
        assert_eq!(ended.code, Some(5), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        killed.elapsed()
    };
    // The first may take longer where other tests have the processors.
    missed_after("14");
    let patient = missed_after("18");
    assert!(patient > Duration::from_secs(7), "{patient:?}");
}

#[test]
fn files_are_fetched() {
    let place = Place::new();
    let served = Served::start(&place, 10, &[]);
    fs::create_dir(place.path("dir/sub")).expect("a directory");
    for size in [0, 1, 70_000, 5_000_001] {
        fs::write(place.path("dir/sub/a b"), content(size)).expect("room");
        let url = served.file("sub/a%20b");
        let bind = address(11);
        let shown = place
            .verbs(&["copy", "--bind", &bind, &url, "B"])
            .succeeded();
        assert!(shown.starts_with(&format!("{size} bytes")), "{shown}");
        assert!(
            shown.contains(&blake3::hash(&content(size)).to_string()),
            "{shown}"
        );
        assert!(place.read("B") == content(size), "{size}");
    }
    assert_eq!(place.names(), ["B", "dir"]);
}

/// Goal: the connection manager finds the server as TCP does, for the same files.
#[test]
fn files_are_fetched_by_the_connection_manager() {
    let place = Place::new();
    let served = Served::start(&place, 40, &[]);
    fs::create_dir(place.path("dir/sub")).expect("a directory");
    let bind = address(41);
    for size in [0, 1, 70_000, 5_000_001] {
        fs::write(place.path("dir/sub/a b"), content(size)).expect("room");
        let url = served.managed("sub/a%20b");
        let shown = place
            .verbs(&["copy", "--bind", &bind, &url, "B"])
            .succeeded();
        assert!(shown.starts_with(&format!("{size} bytes")), "{shown}");
        assert!(place.read("B") == content(size), "{size}");
    }
    let lossy = ["copy", "--bind", &bind, "--loss", "20", "--seed", "7"];
    let url = served.managed("sub/a%20b");
    place
        .verbs(&[&lossy[..], &[&url, "B"]].concat())
        .succeeded();
    for path in ["../A", "%2e%2e/A"] {
        let fetched = place.verbs(&["copy", "--bind", &bind, &served.managed(path), "C"]);
        let parts = [
            "outside of the directory that is served",
            "C was not created",
        ];
        fetched.failed(1, &parts);
    }
    assert_eq!(place.names(), ["B", "dir"]);
}

/// Goal: who cannot be connected is told why, and has nothing. Method: a port at which nobody listens, a
/// server with enough clients, an address without a device, and one that no network has.
#[test]
fn what_keeps_a_connection_from_being_made_is_said() {
    let place = Place::new();
    let served = Served::start(&place, 42, &["--max-clients", "1"]);
    let large = File::create(place.path("dir/A")).expect("room");
    large.set_len(1 << 32).expect("a sparse file");
    let copy = |bind: u8, url: &str, name: &str| {
        let bind = address(bind);
        Background::start(&place, &["copy", "--quiet", "--bind", &bind, url, name])
    };
    let nobody = format!("rdma://{}/A", address(44));
    let silent = copy(43, &nobody, "S");
    let elsewhere = served.managed("A").replacen(&address(42), "x", 1);
    let port = elsewhere.trim_start_matches("rdma://x:");
    let port = port.split('/').next().expect("a port");
    let other: u16 = port.parse::<u16>().expect("a number") ^ 1;
    let unheard = format!("rdma://{}:{other}/A", address(42));
    let parts = ["nobody listens at", "B was not created"];
    copy(45, &unheard, "B").end().failed(1, &parts);

    // Whoever comes second is refused.
    let mut both = [46, 47].map(|bind| copy(bind, &served.managed("A"), "C"));
    let since = Instant::now();
    let refused = loop {
        if let Some(refused) = both.iter_mut().position(Background::has_ended) {
            break refused;
        }
        assert!(since.elapsed() < PATIENCE, "nobody is refused");
        thread::sleep(Duration::from_millis(20));
    };
    let [first, second] = both;
    let (mut busy, refused) = match refused {
        0 => (second, first),
        _ => (first, second),
    };
    let parts = ["1 others are being served", "C was not created"];
    refused.end().failed(1, &parts);
    assert!(!busy.has_ended(), "{:?}", busy.end());
    let parts = ["UDP port 4791 there refuses packets", "S was not created"];
    silent.end().failed(1, &parts);
    let unrouted = place.verbs(&["copy", "rdma://[ff1e::1]:7/A", "E"]);
    assert!(
        unrouted.stderr.contains("cannot connect to"),
        "{unrouted:?}"
    );
    busy.kill();
    assert_eq!(place.names(), ["dir"]);
}

/// Goal: a kill at either end of a copy by the connection manager is said too, although no stream ends.
#[test]
fn a_kill_is_noticed_without_a_stream() {
    let place = Place::new();
    let mut served = Served::start(&place, 48, &[]);
    let large = File::create(place.path("dir/A")).expect("room");
    large.set_len(1 << 32).expect("a sparse file");
    let (url, bind) = (served.managed("A"), address(49));
    let start = || Background::start(&place, &["copy", "--quiet", "--bind", &bind, &url, "B"]);
    let mut client = start();
    client.is_writing();
    client.kill();
    assert_eq!(client.end().signal, Some(9));

    let mut client = start();
    client.is_writing();
    let killed = Instant::now();
    served.server.kill();
    client.end().failed(5, &["B was not created"]);
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert_eq!(place.names(), ["dir"]);
}

#[test]
fn clients_are_served_at_the_same_time() {
    let place = Place::new();
    let served = Served::start(&place, 12, &[]);
    fs::write(place.path("dir/A"), content(3_000_000)).expect("room");
    let clients = (0..4).map(|n| {
        let (bind, name) = (address(13 + n), format!("B{n}"));
        let arguments = ["copy", "--quiet", "--bind", &bind, &served.file("A"), &name];
        Background::start(&place, &arguments)
    });
    let clients: Vec<_> = clients.collect();
    for (n, client) in clients.into_iter().enumerate() {
        client.end().succeeded();
        assert!(place.read(&format!("B{n}")) == content(3_000_000), "{n}");
    }
}

#[test]
fn what_is_not_beneath_is_not_served() {
    let place = Place::with_source(b"secret");
    let served = Served::start(&place, 20, &[]);
    symlink("../A", place.path("dir/link")).expect("a link");
    let bind = address(21);
    for path in ["../A", "link", "/etc/passwd", "%2e%2e/A"] {
        let fetched = place.verbs(&["copy", "--bind", &bind, &served.file(path), "B"]);
        fetched.failed(
            1,
            &[
                "outside of the directory that is served",
                "B was not created",
            ],
        );
    }
    assert_eq!(place.names(), ["A", "dir"]);
}

/// Goal: a kill at either end leaves nothing half-written, and the other end says so soon.
#[test]
fn a_kill_at_either_end_is_said() {
    let place = Place::new();
    let mut served = Served::start(&place, 22, &[]);
    let large = File::create(place.path("dir/A")).expect("room");
    large.set_len(1 << 32).expect("a sparse file");
    let (url, bind) = (served.file("A"), address(23));
    let start = || Background::start(&place, &["copy", "--quiet", "--bind", &bind, &url, "B"]);

    let mut client = start();
    client.is_writing();
    client.kill();
    assert_eq!(client.end().signal, Some(9));
    assert_eq!(place.names(), ["dir"]);
    let said = first_line(served.server.child().stderr.take().expect("piped"));
    assert!(said.contains("destination device"), "{said}");

    let mut client = start();
    client.is_writing();
    let killed = Instant::now();
    served.server.kill();
    let ended = client.end();
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert!(!ended.stderr.contains("when 0 of"), "nothing had moved");
    ended.failed(
        5,
        &["the source device went away when", "B was not created"],
    );
    assert_eq!(place.names(), ["dir"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::with_source(b"content");
    let cases: [(&[&str], &str); 7] = [
        (&["copy", "roce://host", "B"], "the path is missing"),
        (&["copy", "A", "roce://host/B"], "but not sent to one"),
        (
            &["copy", "--bind", "127.0.0.1", "A", "B"],
            "--bind is of use only",
        ),
        (
            &["copy", "--fault", "flip:0", "roce://127.0.0.1:1/A", "B"],
            "--fault is of use only",
        ),
        (&["serve", ".", "--listen", "127.0.0.1"], "invalid"),
        (
            &["pingpong", "rc", "-m", "1500"],
            "256, 512, 1024, 2048 or 4096",
        ),
        (&["pingpong", "rc", "--timeout", "32"], "0..=31"),
    ];
    for (arguments, part) in cases {
        let ended = place.verbs(arguments);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(part), "{part:?} in {}", ended.stderr);
    }
    let bind = [
        "serve",
        ".",
        "--bind",
        "192.0.2.1",
        "--listen",
        "127.0.0.1:0",
    ];
    place
        .verbs(&bind)
        .failed(1, &["192.0.2.1 is not an address of this machine"]);
    let refused = ["copy", "roce://127.0.0.1:1/A", "B"];
    place
        .verbs(&refused)
        .failed(1, &["cannot connect to 127.0.0.1 port 1", "refused"]);
    assert_eq!(place.names(), ["A"]);
}
