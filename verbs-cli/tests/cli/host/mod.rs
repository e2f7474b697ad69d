//! `verbs host`: several programs on one address.

mod ends;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Lines, PipeReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::pipe::fcntl_setpipe_size;

use crate::nic::libraries;
use crate::run::{Ended, HOST, Place, VERBS, address_of};

/// A daemon on an address of its own, and its clients.
struct Host {
    place: Place,
    address: String,
    daemon: Child,
    /// Programs are in namespaces.
    is_apart: bool,
}

/// Runs a program in a network namespace of its own, where it has nothing but an idle loopback interface.
pub(crate) const APART: [&str; 8] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    "ip link set lo up && exec \"$@\"",
    "sh",
];

/// Whether the system allows that; a test that needs it is left out, and says so.
pub(crate) fn can_be_apart() -> bool {
    let mut apart = Command::new(APART[0]);
    let ran = apart.args(&APART[1..]).arg("true").status();
    let can = ran.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: the system allows no network namespaces");
    }
    can
}

/// A peer that is missed by its silence is missed after 7 times 4 s here.
const NOT_BY_RETRIES: Duration = Duration::from_secs(10);

impl Host {
    fn new(n: u8) -> Self {
        let (place, address) = (Place::new(), address_of(HOST, n));
        let daemon = start_daemon(&place, &address);
        Self {
            place,
            address,
            daemon,
            is_apart: false,
        }
    }

    /// Kills the daemon.
    fn kill(&mut self) {
        self.daemon.kill().expect("it runs");
        self.daemon.wait().expect("a child");
    }

    /// Starts the next one.
    fn restart(&mut self) {
        self.daemon = start_daemon(&self.place, &self.address);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.is_apart {
            true => Command::new(APART[0]),
            false => Command::new(VERBS),
        };
        if self.is_apart {
            command.args(&APART[1..]).arg(VERBS);
        }
        command
            .args(arguments)
            .env("VERBS_HOST_SOCKET", self.place.path("host"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// How often the daemon has made memory for two programs.
    fn pairs(&self) -> usize {
        let log = fs::read_to_string(self.place.path("log")).expect("it is there");
        log.lines()
            .filter(|line| line.ends_with("share memory"))
            .count()
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("it starts")
    }

    /// Starts a client that pings for ever, with these arguments besides. Ends when it pings.
    fn ping(&self, arguments: &[&str]) -> (Child, Pings) {
        let (reader, writer) = io::pipe().expect("a pipe");
        fcntl_setpipe_size(&writer, PIPE).expect("as small as there are");
        let common = ["rping", "-c", "-v", "-C", "100000000"];
        let mut command = self.command(&[&common, arguments].concat());
        let client = command.stdout(writer).spawn().expect("it starts");
        let mut pings = Pings(BufReader::with_capacity(LINE, reader).lines());
        pings.read(20);
        (client, pings)
    }

    /// Starts a server of many clients, and waits until it listens.
    fn serve(&self) -> Child {
        self.serve_at("7174")
    }

    fn serve_at(&self, port: &str) -> Child {
        let at = ["-a", &self.address, "-p", port];
        let serving = self.start(&[&["rping", "-s", "-P"][..], &at].concat());
        let pinged = self.ask(&[&["rping", "-c", "-C", "1"][..], &at].concat());
        assert_eq!(pinged.code, Some(0), "{pinged:?}");
        serving
    }

    /// Runs a client once its server listens.
    fn ask(&self, arguments: &[&str]) -> Ended {
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            let ended = Ended::from(self.command(arguments).output().expect("it starts"));
            if !ended.stderr.contains("nobody listens") || Instant::now() > patience {
                return ended;
            }
        }
    }
}

fn start_daemon(place: &Place, address: &str) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(place.path("log"));
    let mut daemon = Command::new(VERBS);
    daemon.stderr(log.expect("a file"));
    start_daemon_as(daemon, place, address)
}

fn start_daemon_as(mut daemon: Command, place: &Place, address: &str) -> Child {
    let mut daemon = daemon
        .args(["host", "--verbose", "--bind", address, "--socket"])
        .arg(place.path("host"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = String::new();
    let stdout = daemon.stdout.take().expect("a pipe");
    BufReader::new(stdout)
        .read_line(&mut first)
        .expect("a line");
    let log = || fs::read_to_string(place.path("log")).unwrap_or_default();
    assert!(
        first.starts_with(&format!("sharing {address} at ")),
        "{first}{}",
        log()
    );
    daemon
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn end(child: Child) -> Ended {
    Ended::from(child.wait_with_output().expect("a child"))
}

/// Goal: two programs have one address, and find each other there; a port number is one program's.
#[test]
fn programs_share_an_address_and_its_ports() {
    let host = Host::new(1);
    let at = host.address.as_str();
    let server = host.start(&["rping", "-s", "-a", at, "-C", "5"]);
    let client = ["rping", "-c", "-a", at, "-v", "-V", "-C", "5"];
    let pinged = host.ask(&client);
    assert_eq!(pinged.code, Some(0), "{pinged:?}");
    let served = end(server);
    assert_eq!(served.code, Some(0), "{served:?}");
    assert_eq!(
        host.pairs(),
        1,
        "they have talked through memory of their own"
    );

    let mut first = host.serve();
    let second = host.ask(&["rping", "-s", "-a", at, "-C", "1"]);
    assert_ne!(second.code, Some(0), "{second:?}");
    assert!(second.stderr.contains("in use"), "{second:?}");
    first.kill().expect("it runs");
    first.wait().expect("a child");
    // The number is free again at once.
    let third = host.start(&["rping", "-s", "-a", at, "-C", "2"]);
    let pinged = host.ask(&["rping", "-c", "-a", at, "-C", "2"]);
    assert_eq!(pinged.code, Some(0), "{pinged:?}");
    assert_eq!(end(third).code, Some(0));
}

/// The time from the death of a program by SIGKILL to the end of its peer, which was sending to it through memory that
/// the two share.
fn missed_after(host: &Host) -> Duration {
    let at = host.address.as_str();
    let mut server = host.serve();
    let before = host.pairs();
    let mut client = host.start(&["rping", "-c", "-a", at, "-C", "10000000", "-v"]);
    // Its first lines say that they are connected, and that data has gone to and fro.
    let stdout = client.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines();
    let (Some(Ok(_)), true) = (lines.nth(20), host.pairs() > before) else {
        let ended = end(client);
        panic!("{ended:?}");
    };
    let reader = thread::spawn(move || lines.for_each(drop));
    server.kill().expect("it runs");
    let killed = Instant::now();
    server.wait().expect("a child");
    let ended = end(client);
    let took = killed.elapsed();
    reader.join().expect("no panic");
    assert_ne!(ended.code, Some(0), "{ended:?}");
    took
}

/// Goal: a program that is killed is missed by its peer at once, and not when its retries are exceeded, which is 7 times
/// 4 s here. Method: the quickest of several, as others may keep the processors busy; none takes longer than a fraction
/// of that on any machine.
#[test]
fn a_killed_program_is_missed_at_once() {
    killed_program_is_missed(&Host::new(2));
}

fn killed_program_is_missed(host: &Host) {
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let took = missed_after(host);
        assert!(took < NOT_BY_RETRIES, "{took:?}");
        quickest = quickest.min(took);
        if quickest < Duration::from_millis(100) {
            return;
        }
    }
    panic!("{quickest:?}");
}

#[test]
fn what_cannot_be_shared_is_said() {
    let host = Host::new(3);
    let socket = host.place.path("host");
    let socket = socket.to_str().expect("a name");
    let again = host
        .place
        .verbs(&["host", "--socket", socket, "--bind", &host.address]);
    assert_eq!(again.code, Some(7), "{again:?}");
    assert!(
        again.stderr.contains("another program shares this host"),
        "{again:?}"
    );
    let mut alone = Command::new(VERBS);
    alone.args(["rping", "-s", "-a", &host.address, "-C", "1"]);
    let alone = Ended::from(
        alone
            .env("VERBS_HOST_SOCKET", "")
            .output()
            .expect("it starts"),
    );
    assert!(
        alone.stderr.contains("`verbs host` shares an address"),
        "{alone:?}"
    );
    let mut missing = Command::new(VERBS);
    missing.args(["rping", "-s", "-a", &host.address, "-C", "1"]);
    missing.env("VERBS_HOST_SOCKET", host.place.path("nothing"));
    let missing = Ended::from(missing.output().expect("it starts"));
    assert!(
        missing.stderr.contains("`verbs host` starts one"),
        "{missing:?}"
    );
}

/// Goal: a daemon that lingers ends when its last program has gone.
#[test]
fn a_daemon_ends_after_its_last_program() {
    let (place, address) = (Place::new(), address_of(HOST, 4));
    let socket = place.path("host");
    let socket = socket.to_str().expect("a name");
    let since = Instant::now();
    let ended = place.verbs(&[
        "host", "--bind", &address, "--socket", socket, "--linger", "1",
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(since.elapsed() >= Duration::from_secs(1));
    assert!(place.names().is_empty(), "{:?}", place.names());
}

/// Goal: a daemon goes on when nobody reads what it says any more, as one that `verbs run` has started. Method: what it says
/// goes into a pipe without a reader, all that it can say.
#[test]
fn a_daemon_goes_on_when_nobody_reads_what_it_says() {
    let (place, address) = (Place::new(), address_of(HOST, 15));
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut daemon = Command::new(VERBS);
    daemon.stderr(writer).env("VERBS_LOG", "debug");
    let daemon = start_daemon_as(daemon, &place, &address);
    let keeper = daemon.id();
    let host = Host {
        place,
        address,
        daemon,
        is_apart: false,
    };
    let before = crate::kept::next_kept_by(keeper, None);
    let mut server = host.serve();
    for _ in 0..2 {
        let pinged = host.ask(&["rping", "-c", "-C", "1", "-a", &host.address]);
        assert_eq!(pinged.code, Some(0), "{pinged:?}");
    }
    assert_eq!(
        crate::kept::kept_by(keeper),
        Some(before),
        "it was not started again"
    );
    server.kill().expect("it runs");
    server.wait().expect("a child");
}

/// Bytes of the pipe that a client pings into, and of a line of it at most.
const PIPE: usize = 4096;
const LINE: usize = 128;

/// What a client prints as long as data goes to and fro.
struct Pings(Lines<BufReader<PipeReader>>);

impl Pings {
    /// Reads several times as many lines as there is room for on their way: data goes to and fro now. On a machine with much
    /// else to do a ping takes some 20 ms, so there are not more.
    fn go_on(&mut self) {
        // A line has 64 bytes of data.
        self.read(4 * (PIPE + LINE) / 64);
    }

    fn read(&mut self, count: usize) {
        for _ in 0..count {
            assert!(matches!(self.0.next(), Some(Ok(_))), "it has ended");
        }
    }

    /// Reads on, until the client ends.
    fn read_on(self) -> JoinHandle<()> {
        thread::spawn(move || self.0.for_each(drop))
    }
}

/// Goal: connections go on while there is no daemon and when there is the next one, which knows the programs' numbers and
/// port numbers; and the end of a program is noticed under it, too.
#[test]
fn programs_outlive_the_daemon() {
    let mut host = Host::new(5);
    let at = host.address.clone();
    let mut server = host.serve();
    let (client, mut pings) = host.ping(&["-a", &at]);
    for _ in 0..3 {
        host.kill();
        pings.go_on();
        host.restart();
        pings.go_on();
    }
    // The server listens at its port number without having asked for it again.
    let another = host.ask(&["rping", "-c", "-a", &at, "-C", "5"]);
    assert_eq!(another.code, Some(0), "{another:?}");
    let taken = host.ask(&["rping", "-s", "-a", &at, "-C", "1"]);
    assert!(taken.stderr.contains("in use"), "{taken:?}");
    pings.go_on();
    let reader = pings.read_on();
    server.kill().expect("it runs");
    let killed = Instant::now();
    server.wait().expect("a child");
    let ended = end(client);
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(killed.elapsed() < NOT_BY_RETRIES, "{killed:?}");
    reader.join().expect("no panic");
}

/// The programs that the daemon lists.
fn listed(host: &Host) -> Vec<serde_json::Value> {
    let ended = host.ask(&["connections", "--host", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("a list")
}

/// Goal: the daemon lists the programs that share its address, with what each has and with which it shares memory; without
/// a daemon that is said.
#[test]
fn the_daemon_lists_its_programs() {
    let mut host = Host::new(7);
    let at = host.address.clone();
    let none = host.ask(&["connections", "--host"]);
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(none.stdout.contains("no program shares"), "{none:?}");
    let server = host.start(&["rping", "-s", "-a", &at, "-p", "7300", "-C", "10000000"]);
    let patience = Instant::now() + Duration::from_secs(60);
    let port = |programs: &[serde_json::Value]| programs.first()?["listens"][0]["port"].as_u64();
    while port(&listed(&host)) != Some(7300) {
        assert!(Instant::now() < patience, "it does not listen");
    }
    let (client, pings) = host.ping(&["-a", &at, "-p", "7300"]);
    let reader = pings.read_on();
    let programs = listed(&host);
    let [serves, asks] = &programs[..] else {
        panic!("{programs:?}");
    };
    for (program, child, other) in [(serves, &server, asks), (asks, &client, serves)] {
        assert_eq!(program["process"], child.id());
        assert_eq!(program["name"], "verbs");
        assert_eq!(
            program["shares_memory_with"],
            serde_json::json!([other["client"]])
        );
        let [connection] = &program["connections"].as_array().expect("a list")[..] else {
            panic!("{program}");
        };
        assert_eq!(connection["established"], true);
        assert_eq!(
            (&connection["local"], &connection["port"]),
            (&at.as_str().into(), &7300.into())
        );
        let peers = &other["connections"][0];
        assert_eq!(connection["qpn"], peers["remote_qpn"]);
        assert_ne!(connection["qpn"], serde_json::Value::Null);
    }
    let text = host.ask(&["connections", "--host"]).stdout;
    for part in [":7300", "established", &server.id().to_string()] {
        assert!(text.contains(part), "{part} in {text}");
    }
    for mut child in [server, client] {
        child.kill().expect("it runs");
        child.wait().expect("a child");
    }
    reader.join().expect("no panic");
    host.kill();
    let missing = host.ask(&["connections", "--host"]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(
        missing.stderr.contains("`verbs host` starts one"),
        "{missing:?}"
    );
}

/// Goal: programs in network namespaces of their own, which have only the daemon's socket in common, talk to each other,
/// and one notices at once that the other was killed. Method: as above.
#[test]
fn namespaces_share_nothing_but_the_socket() {
    if !can_be_apart() {
        return;
    }
    let mut host = Host::new(6);
    host.is_apart = true;
    killed_program_is_missed(&host);
}

/// Goal: of programs that are started at the same time, one starts the daemon, and all share its address. Method: none of them
/// runs without it. The daemons end by themselves.
#[test]
fn programs_that_start_at_once_have_one_daemon() {
    let place = Place::new();
    let lib = libraries(&place);
    for round in 0..20 {
        let socket = place.path(&format!("host{round}"));
        let address = address_of(HOST, 100 + round);
        let run = || {
            let mut command = Command::new(VERBS);
            command.args(["run", "--host", "--device", &address, "--library"]);
            command.arg(&lib).args(["--", "true"]);
            command.env("VERBS_HOST_SOCKET", &socket);
            command.stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let programs: Vec<_> = (0..8).map(|_| run()).collect();
        for program in programs {
            let output = program.wait_with_output().expect("a child");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{round}: {said}");
        }
    }
}
