//! `verbs srp` between processes on addresses of 127.0.0.0/8: disks side by side, outages, signals.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::line::first_line;
use crate::run::{Ended, PATIENCE, Place, SRP, VERBS, address_of};
use crate::wire::Background;

/// An address that no other test has.
fn address(n: u8) -> String {
    address_of(SRP, n)
}

/// A command that runs until it is told to end; killed if a test forgets it.
struct Program(Background);

impl Program {
    /// Starts it, and waits for the first line that it says.
    fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::started(Background::start(place, arguments))
    }

    fn started(mut program: Background) -> Self {
        let line = first_line(program.child().stdout.take().expect("it was piped"));
        match line.is_empty() {
            true => panic!("{:?}", program.end()),
            false => Self(program),
        }
    }

    fn target(place: &Place, at: &str, more: &[&str]) -> Self {
        let listen = format!("{at}:5555");
        Self::start(
            place,
            &[&["srp", "target", "--listen", &listen], more].concat(),
        )
    }

    fn attach(place: &Place, at: &str, from: &str, socket: &str, more: &[&str]) -> Self {
        let (target, nbd) = (format!("{at}:5555"), format!("unix:{socket}"));
        let arguments = ["srp", "attach", &target, "--bind", from, "--nbd", &nbd];
        Self::start(place, &[&arguments, more].concat())
    }

    /// Waits until it has ended.
    fn end(self) -> Ended {
        self.0.end()
    }

    /// Has it end by that signal, which takes no longer than saying goodbye.
    fn told_to_end(mut self, signal: Signal) -> Ended {
        self.0.signal(signal);
        let since = Instant::now();
        let ended = self.end();
        assert_eq!(ended.signal, Some(signal.as_raw()), "{ended:?}");
        // A second of it are the program's, the rest is the machine's.
        assert!(since.elapsed() < PATIENCE, "{ended:?}");
        ended
    }

    fn killed(mut self) {
        self.0.kill();
    }
}

/// A program that speaks NBD.
struct Client(UnixStream);

impl Client {
    fn new(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        let name = [
            &[0, 0, 0, 3][..],
            b"IHAVEOPT",
            &[0, 0, 0, 1, 0, 0, 0, 1],
            b"x",
        ]
        .concat();
        stream.write_all(&name).expect("a name");
        let mut export = [0; 10];
        stream.read_exact(&mut export).expect("size and flags");
        Self(stream)
    }

    /// Sends a request; `data` are those of a write.
    fn send(&mut self, flags: u16, command: u16, at: u64, len: u32, data: &[u8]) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([flags.to_be_bytes(), command.to_be_bytes()].concat());
        bytes.extend([7; 8]);
        bytes.extend(at.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).expect("it is there");
    }

    /// The error of the next reply.
    fn reply(&mut self) -> u32 {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).expect("a reply");
        u32::from_be_bytes(head[4..8].try_into().expect("4 bytes"))
    }

    fn write(&mut self, at: u64, byte: u8, fua: bool) -> u32 {
        self.send(fua.into(), 1, at, 4096, &[byte; 4096]);
        self.reply()
    }

    fn read(&mut self, at: u64) -> Result<u8, u32> {
        self.send(0, 0, at, 4096, &[]);
        match self.reply() {
            0 => {}
            errno => return Err(errno),
        }
        let mut data = [0; 4096];
        self.0.read_exact(&mut data).expect("its data");
        assert!(data.iter().all(|byte| *byte == data[0]), "a torn block");
        Ok(data[0])
    }
}

fn lines<'a>(ended: &'a Ended, part: &str) -> Vec<&'a str> {
    ended
        .stderr
        .lines()
        .filter(|line| line.contains(part))
        .collect()
}

/// Goal: programs that use one target do not end each other. Method: two disks attached, lists and a benchmark beside
/// them; both disks are read and written all the time.
#[test]
fn initiators_of_one_target_live_side_by_side() {
    let place = Place::new();
    let [at, one, two, other] = [1, 2, 3, 4].map(address);
    let target = Program::target(&place, &at, &["--memory", "16m"]);
    let first = Program::attach(&place, &at, &one, "one", &[]);
    let second = Program::attach(&place, &at, &two, "two", &["--channels", "2"]);
    let mut clients = [
        Client::new(&place.path("one")),
        Client::new(&place.path("two")),
    ];
    let login = format!("{at}:5555");
    for round in 0..3 {
        for (number, client) in (0..).zip(&mut clients) {
            assert_eq!(client.write(number * 4096, round + 1, true), 0);
        }
        let listed = place
            .verbs(&["srp", "ls", &login, "--bind", &other])
            .succeeded();
        assert!(listed.contains("16777216"), "{listed}");
        let bench = [
            "srp", "bench", &login, "--bind", &other, "--read", "100", "--time", "1",
        ];
        place.verbs(&bench).succeeded();
        for (number, client) in (0..).zip(&mut clients) {
            assert_eq!(client.read(number * 4096), Ok(round + 1));
        }
    }
    drop(clients);
    for program in [first, second] {
        let ended = program.told_to_end(Signal::TERM);
        assert_eq!(ended.stderr, "", "nothing was lost");
    }
    assert_eq!(
        place.names(),
        Vec::<String>::new(),
        "the sockets are removed"
    );
    let ended = target.told_to_end(Signal::TERM);
    assert_eq!(lines(&ended, "has logged in").len(), 9, "{}", ended.stderr);
    assert_eq!(lines(&ended, "has logged out").len(), 9, "{}", ended.stderr);
}

/// Goal: an outage that is longer than the first attempts is said once, with its end, and no request fails. Method: a
/// target is ended for 4 s, while its address answers nothing and then refuses; requests are under way all the time.
#[test]
fn requests_wait_for_a_target_that_is_away() {
    let place = Place::new();
    let [at, from] = [5, 6].map(address);
    place.write("disk", &vec![0; 1 << 20]);
    let files = ["--file", "disk"];
    let target = Program::target(&place, &at, &files);
    let attach = Program::attach(&place, &at, &from, "nbd", &["--reconnect-timeout", "10m"]);
    let mut client = Client::new(&place.path("nbd"));
    assert_eq!(client.write(0, 1, false), 0);
    target.killed();
    client.send(0, 1, 4096, 4096, &[2; 4096]);
    thread::sleep(Duration::from_secs(2));
    // Somebody is there, and nobody listens: logins are refused at once.
    let other = format!("{at}:5556");
    let foreign = Program::start(
        &place,
        &["srp", "target", "--memory", "1m", "--listen", &other],
    );
    thread::sleep(Duration::from_secs(3));
    foreign.told_to_end(Signal::INT);
    let target = Program::target(&place, &at, &files);
    assert_eq!(client.reply(), 0);
    assert_eq!(client.write(8192, 3, true), 0);
    for (at, byte) in [(0, 1), (4096, 2), (8192, 3)] {
        assert_eq!(client.read(at), Ok(byte));
    }
    let ended = attach.told_to_end(Signal::INT);
    let said: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(said.len(), 2, "{said:?}");
    let lost = format!("verbs srp attach: lost the target at {at}:5555: ");
    let again = format!("verbs srp attach: logged in again to the target at {at}:5555 after ");
    assert!(
        said[0].starts_with(&lost) && said[1].starts_with(&again),
        "{said:?}"
    );
    target.told_to_end(Signal::TERM);
    assert_eq!(fs::read(place.path("disk")).expect("a file")[4096], 2);
}

/// Goal: a disk in memory is another one when its target was started again, and is not taken for the old one. What is
/// under way fails, and the program ends with the reason.
#[test]
fn a_disk_that_is_another_one_is_not_used() {
    let place = Place::new();
    let [at, from] = [7, 8].map(address);
    let target = Program::target(&place, &at, &["--memory", "1m"]);
    let attach = Program::attach(&place, &at, &from, "nbd", &[]);
    let mut client = Client::new(&place.path("nbd"));
    assert_eq!(client.write(0, 1, false), 0);
    target.told_to_end(Signal::TERM);
    client.send(0, 0, 0, 4096, &[]);
    let _target = Program::target(&place, &at, &["--memory", "1m"]);
    let ended = attach.end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let last = ended.stderr.lines().last().expect("a reason");
    assert!(
        last.contains("the target offers another disk than before"),
        "{last}"
    );
    assert_eq!(place.names(), Vec::<String>::new());
}

/// Goal: who gives up says so and ends, and leaves no socket. Method: a target that does not come back; and another
/// program that logs in under the same name.
#[test]
fn a_session_that_is_over_ends_the_program() {
    let place = Place::new();
    let [at, from, other] = [9, 10, 11].map(address);
    let target = Program::target(&place, &at, &["--memory", "1m"]);
    let name = "0000000000000001000000000000000a";
    let named = ["--initiator", name];
    let first = Program::attach(&place, &at, &from, "one", &named);
    let more = [&named[..], &["--reconnect-timeout", "1s"]].concat();
    let second = Program::attach(&place, &at, &other, "two", &more);
    let ended = first.end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert_eq!(
        ended.stderr,
        format!("verbs srp: another initiator logged in under this name (0x{name})\n")
    );
    let mut client = Client::new(&place.path("two"));
    assert_eq!(client.write(0, 1, false), 0, "it is not pushed out in turn");
    target.killed();
    // A target that dies without a word is noticed by who wants something of it.
    client.send(0, 0, 0, 4096, &[]);
    let ended = second.end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let said: Vec<_> = ended.stderr.lines().collect();
    assert!(said[0].contains("lost the target"), "{said:?}");
    assert!(
        said[1].starts_with("verbs srp: no login has succeeded for "),
        "{said:?}"
    );
    assert_eq!(place.names(), Vec::<String>::new());
}

/// Goal: the target tells its initiators that it ends, and a second signal does not wait.
#[test]
fn a_target_that_is_told_to_end_tells_its_initiators() {
    let place = Place::new();
    let [at, from] = [12, 13].map(address);
    let target = Program::target(&place, &at, &["--memory", "1m"]);
    let attach = Program::attach(&place, &at, &from, "nbd", &["--reconnect-timeout", "0s"]);
    let since = Instant::now();
    let ended = target.told_to_end(Signal::INT);
    assert_eq!(lines(&ended, "was logged out").len(), 1, "{ended:?}");
    let ended = attach.end();
    assert!(since.elapsed() < PATIENCE);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(
        ended.stderr.contains("the target has ended the session"),
        "{ended:?}"
    );
}

/// Goal: a file that another target serves, and one that would be cut, are left as they are, and the sentence says what
/// would help.
#[test]
fn a_second_target_leaves_the_file_whole() {
    let place = Place::new();
    let [at, other] = [14, 15].map(address);
    place.write("disk", &vec![7; 1 << 20]);
    let _target = Program::target(&place, &at, &["--file", "disk"]);
    let listen = format!("{other}:5555");
    let target = |size: &str, more: &[&str], file: &str| {
        let arguments = [
            "srp", "target", "--listen", &listen, "--file", file, "--size", size,
        ];
        place.verbs(&[&arguments, more].concat())
    };
    target("4k", &["--shrink"], "disk")
        .failed(1, &["cannot offer disk", "locked by another process"]);
    assert_eq!(place.read("disk"), vec![7; 1 << 20]);
    place.write("free", &vec![7; 1 << 20]);
    let parts = ["1048576 bytes", "beyond the 4096", "--shrink"];
    target("4k", &[], "free").failed(1, &parts);
    assert_eq!(place.read("free"), vec![7; 1 << 20]);
}

/// Goal: a server at the limit of its descriptors serves those who are there, and others when they have gone. Method:
/// clients that say nothing, until the process has no more descriptors.
#[test]
fn clients_that_say_nothing_do_not_end_the_server() {
    let place = Place::new();
    let [at, from] = [16, 17].map(address);
    let _target = Program::target(&place, &at, &["--memory", "1m"]);
    let (login, nbd) = (format!("{at}:5555"), "unix:nbd");
    let script = "ulimit -n 64; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args([
        "-c", script, "sh", VERBS, "srp", "attach", &login, "--bind", &from,
    ]);
    command
        .args(["--nbd", nbd, "--clients", "200"])
        .current_dir(place.path("."));
    let attach = Program::started(Background::run(&mut command));
    let socket = place.path("nbd");
    let mut honest = Client::new(&socket);
    assert_eq!(honest.write(0, 1, false), 0);
    let silent: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(&socket).expect("queued"))
        .collect();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(honest.read(0), Ok(1));
    drop(silent);
    let mut late = Client::new(&socket);
    assert_eq!(late.read(0), Ok(1));
    drop((honest, late));
    let ended = attach.told_to_end(Signal::TERM);
    // Once for each time that a descriptor came free and was taken again; not once for each attempt.
    let complaints = lines(&ended, "cannot serve another client").len();
    assert!((1..=50).contains(&complaints), "{ended:?}");
}

/// Goal: all three clients wait for a target as long as they are told, say so after two seconds, and do not
/// wait for a host that refuses packets. Method: a socket that takes packets and says nothing; then none.
#[test]
fn a_target_is_waited_for_as_long_as_one_is_told() {
    let place = Place::new();
    let (at, from) = (address(60), address(61));
    let silent = std::net::UdpSocket::bind((at.as_str(), 4791)).expect("it is free");
    let target = format!("{at}:5555");
    let clients = [
        vec!["ls", &target],
        vec!["attach", &target, "--nbd", "unix:nbd"],
        vec!["bench", &target, "--read", "100"],
    ];
    let ask = |client: &[&str], timeout: &str| {
        let more = ["--bind", &from, "--connect-timeout", timeout];
        let since = Instant::now();
        let ended = place.verbs(&[&["srp"], client, &more].concat());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        (ended, since.elapsed())
    };
    for client in &clients {
        let (ended, took) = ask(client, "300ms");
        assert!(
            ended.stderr.contains("did not answer within 300ms"),
            "{ended:?}"
        );
        assert!(!ended.stderr.contains("still trying"), "{ended:?}");
        assert!(took >= Duration::from_millis(300), "{took:?}");
    }
    let (ended, took) = ask(&clients[0], "2500ms");
    let still = format!("still trying to reach {target}, for 2.5s in all (--connect-timeout)");
    assert!(ended.stderr.contains(&still), "{ended:?}");
    assert!(
        ended.stderr.contains("did not answer within 2.5s"),
        "{ended:?}"
    );
    assert!(took >= Duration::from_millis(2500), "{took:?}");
    drop(silent);
    for client in &clients {
        let (ended, took) = ask(client, "2m");
        let nobody = format!("nobody is at {at}: UDP port 4791 there refuses packets");
        assert!(ended.stderr.contains(&nobody), "{ended:?}");
        assert!(took < PATIENCE, "{took:?}");
    }
}
