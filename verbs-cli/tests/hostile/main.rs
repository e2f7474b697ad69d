//! A hosted subnet with hostile clients: an honest one has its answers, whatever they do, and what they take is given
//! back.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attack;
mod bed;
#[path = "../child/mod.rs"]
mod child;

use std::env;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use hca_sim::link::fabric::message::{BULK, Message, Refusal};
use hca_sim::link::fabric::socket::{Take, receive, send, send_with};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use attack::attack;
use bed::{Hosted, NET, STUCK, ask, heard, node_description, open, register};
use child::started;

/// Goal: a client cannot make the host wait. Method: the mark of a message in a file, with a pipe that nobody writes
/// to, a FIFO, a terminal-like device and a file that grows; an honest client asks before, during and after.
#[test]
fn a_file_that_does_not_end_stops_nobody() {
    let hosted = Hosted::new();
    hosted.is_well();
    let fifo = hosted.folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let fifo = fs::File::options().read(true).write(true).open(&fifo);
    let (reader, writer) = std::io::pipe().unwrap();
    let endless = [
        OwnedFd::from(reader),
        fifo.unwrap().into(),
        fs::File::open("/dev/zero").unwrap().into(),
        fs::File::open("/dev/ptmx").unwrap().into(),
    ];
    for file in &endless {
        let evil = hosted.connect();
        send_with(evil.as_fd(), &BULK, file.as_fd(), true).unwrap();
        hosted.is_well();
        let mut entry = [PollFd::new(&evil, PollFlags::IN)];
        poll(&mut entry, Some(&Timespec::try_from(STUCK).unwrap())).unwrap();
        let end = receive(evil.as_fd(), Take::Away, false);
        assert!(matches!(end, Ok(None) | Err(Errno::CONNRESET)), "{end:?}");
    }
    drop(writer);
    hosted.is_well();
}

/// Goal: what a client has opened is its own; cables are the operators'. Method: a second client at the numbers of the
/// first one's, and at its cable; then the command that may.
#[test]
fn a_client_has_no_hold_on_another() {
    let hosted = Hosted::new();
    let honest = hosted.connect();
    let (session, port) = open(&honest, "a").unwrap();
    let registered = register(&honest, session, 0x81, 1 << 1 | 1 << 2);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
    let evil = hosted.connect();
    for session in 0..20 {
        let missing = Some(Message::Refused(Refusal::Missing));
        let unregister = Message::Unregister { session, agent: 0 };
        assert_eq!(ask(&evil, &unregister), missing);
        assert_eq!(register(&evil, session, 4, 0), missing);
    }
    let plug = Message::Plug {
        node: "a".into(),
        port: 1,
        is_in: false,
    };
    let denied = Some(Message::Refused(Refusal::Denied));
    assert_eq!(ask(&evil, &plug), denied);
    assert_eq!(node_description(&port).status, 0);

    let command = |arg: &str, port: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
        let command = command.args(["subnet", arg, port]);
        command
            .env("VERBS_SUBNET", &hosted.socket)
            .output()
            .unwrap()
    };
    assert!(command("--unplug", "a:1").status.success());
    assert_eq!(node_description(&port).status, 110);
    assert!(command("--plug", "s:1").status.success());
    assert_eq!(node_description(&port).status, 0);
    let missing = command("--plug", "s:9");
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("there is no cable at port 9 of s"), "{said}");
    let missing = command("--plug", "x:9");
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("no node \"x\""), "{said}");

    // With the connection that has opened it, the session's own ends.
    drop(honest);
    assert_eq!(heard(&port), None);
}

/// Goal: a host that has no descriptor left does nothing until it has, and says so to those that it has no room for.
/// Method: 64 files at most, 80 clients; its processor time, and its answer when some have gone.
#[test]
fn a_host_without_descriptors_rests() {
    let hosted = Hosted::limited(Some(64));
    let mut clients: Vec<OwnedFd> = (0..80).map(|_| hosted.connect()).collect();
    let answers = clients.iter().map(|client| {
        // One that was refused has its answer already, and cannot ask.
        let _refused = send(client.as_fd(), &Message::Count.encode(), true);
        heard(client)
    });
    let answers: Vec<_> = answers.collect();
    let full = Some(Message::Refused(Refusal::Full));
    let let_in = answers
        .iter()
        .filter(|it| matches!(it, Some(Message::Counts { .. })));
    let refused = answers.iter().filter(|&it| *it == full).count();
    let let_in = let_in.count();
    assert!(let_in >= 4 && refused >= 16, "{let_in} and {refused}");
    let before = hosted.ticks();
    thread::sleep(Duration::from_secs(1));
    let used = hosted.ticks() - before;
    assert!(
        used <= 30,
        "{used} hundredths of a second of processor time"
    );
    clients.clear();
    let begun = Instant::now();
    while !matches!(
        ask(&hosted.connect(), &Message::Count),
        Some(Message::Counts { .. })
    ) {
        assert!(begun.elapsed() < STUCK, "it is full for ever");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: 10,000 clients that come and go leave nothing. Method: each opens a port, registers and asks; memory and
/// descriptors after the first thousand and at the end.
#[test]
fn clients_that_come_and_go_leave_nothing() {
    let hosted = Hosted::new();
    let round = || {
        let client = hosted.connect();
        let (session, port) = open(&client, "b").unwrap();
        register(&client, session, 0x81, 1 << 2).unwrap();
        (client, port)
    };
    (0..1000).for_each(|_| drop(round()));
    hosted.is_well();
    // An allocator may take more once; a leak takes more each time.
    let mut grown = Vec::new();
    while grown.last().is_none_or(|&grown| grown >= 1024) {
        assert!(grown.len() < 3, "{grown:?} KiB in 9,000 connections each");
        let before = hosted.memory();
        (0..9000).for_each(|_| drop(round()));
        hosted.is_well();
        grown.push(hosted.memory().saturating_sub(before));
    }
    let begun = Instant::now();
    // Three streams, two doors, the folder and its lock, two bells, the signals' pipes, and who asks here.
    while hosted.files() > 20 {
        assert!(begun.elapsed() < STUCK, "{} descriptors", hosted.files());
        thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: a host that is told to end leaves nothing behind, and ends as the signal does. Method: both signals, with a
/// client and a manager's file.
#[test]
fn a_host_that_is_told_to_end_leaves_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut hosted = Hosted::new();
        let client = hosted.connect();
        let ask_for_file = Message::ManagerFile {
            host: "a".into(),
            adapter: 0,
            port: 1,
        };
        let Some(Message::Path(path)) = ask(&client, &ask_for_file) else {
            panic!("there is a file");
        };
        assert!(Path::new(&path).exists());
        let mode = fs::metadata(Path::new(&path).parent().unwrap()).unwrap();
        assert_eq!(mode.permissions().mode() & 0o7777, 0o700);
        let pid = Pid::from_raw(hosted.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
        let status = hosted.child.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        let left = fs::read_dir(hosted.folder.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["net"], "after {signal:?}");
    }
}

/// The command with that runtime folder, or none, and that folder for temporary files.
fn placed(runtime: Option<&Path>, tmp: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
    command.arg("subnet").args(args).env("TMPDIR", tmp);
    command.env_remove("VERBS_SUBNET");
    match runtime {
        Some(folder) => command.env("XDG_RUNTIME_DIR", folder),
        None => command.env_remove("XDG_RUNTIME_DIR"),
    };
    command
}

/// The commands that need a place end, and say what is wrong with it.
fn is_refused(runtime: Option<&Path>, tmp: &Path, net: &str, complaint: &str) {
    for args in [&[net][..], &["--status"], &["--unplug", "a:1"]] {
        let mut child = placed(runtime, tmp, args)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            // One that hosts a subnet goes on for ever.
            if begun.elapsed() > STUCK {
                child.kill().unwrap();
            }
            thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(complaint), "{said}");
    }
}

/// A subnet is hosted there until it is told to end.
fn is_hosted(runtime: Option<&Path>, tmp: &Path, net: &str) {
    let (mut child, line) = started(&mut placed(runtime, tmp, &[net]));
    assert!(line.starts_with("subnet with"), "{line}");
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
}

/// Goal: a place that is not the user's own is not used, neither to host a subnet nor to look for one. Method: runtime
/// folders that are a link and open to others; then a folder for temporary files with a link where ours is to be.
#[test]
fn a_place_that_others_can_change_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path();
    let net = base.join("net");
    fs::write(&net, NET).unwrap();
    let net = net.to_str().unwrap();
    let folder = |name: &str, mode: u32| {
        let folder = base.join(name);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        folder
    };
    let (own, open_to_all) = (folder("own", 0o700), folder("open", 0o777));
    let link = base.join("link");
    symlink(&own, &link).unwrap();
    is_refused(Some(&link), base, net, "a symbolic link");
    is_refused(Some(&open_to_all), base, net, "0777");
    assert_eq!(fs::read_dir(&open_to_all).unwrap().count(), 0);
    is_hosted(Some(&own), base, net);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "it leaves nothing");

    // Without a runtime folder, one that is made in the folder for temporary files.
    let tmp = folder("tmp", 0o1777);
    is_hosted(None, &tmp, net);
    let user = rustix::process::geteuid().as_raw();
    let made = tmp.join(format!("verbs-subnet-{user}"));
    let mode = fs::metadata(&made).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    fs::remove_dir(&made).unwrap();
    symlink(&own, &made).unwrap();
    is_refused(None, &tmp, net, "a symbolic link");
}

/// What a number of the environment says, for longer runs by hand.
fn number(name: &str, default: u64) -> u64 {
    let said = env::var(name).ok();
    said.map_or(default, |said| said.parse().unwrap())
}

/// How often an honest client asks and registers until then.
fn rounds(client: &OwnedFd, session: u32, port: &OwnedFd, end: Instant) -> u32 {
    let mut rounds = 0;
    while Instant::now() < end {
        assert_eq!(node_description(port).status, 0);
        let Some(Message::Registered { agent }) = register(client, session, 4, 0) else {
            panic!("there is room for it");
        };
        let unregister = Message::Unregister { session, agent };
        assert_eq!(ask(client, &unregister), Some(Message::Done));
        rounds += 1;
    }
    rounds
}

/// Goal: hostile clients do not keep an honest one from its answers, and end up where they began. Method: for
/// `HOSTILE_S` seconds, `HOSTILE_CLIENTS` (with that `HOSTILE_NICE`) that flood, do not read, send nonsense, files of all kinds and wild datagrams,
/// attach, and come and go; beside them one asks and registers as usual, and waits for each answer.
#[test]
fn an_honest_client_is_served_among_hostile_ones() {
    let hosted = Hosted::new();
    let honest = hosted.connect();
    let (session, port) = open(&honest, "a").unwrap();
    register(&honest, session, 0x81, 0).unwrap();
    let second = Instant::now() + Duration::from_secs(1);
    let alone = rounds(&honest, session, &port, second);
    let is_over = AtomicBool::new(false);
    let before = hosted.memory();
    let seconds = number("HOSTILE_S", 6);
    let nice = i32::try_from(number("HOSTILE_NICE", 0)).unwrap();
    thread::scope(|scope| {
        for seed in 0..number("HOSTILE_CLIENTS", 6) {
            let (hosted, is_over) = (&hosted, &is_over);
            scope.spawn(move || attack(hosted, seed, nice, is_over));
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        let among = rounds(&honest, session, &port, end);
        is_over.store(true, Relaxed);
        let grown = hosted.memory().saturating_sub(before);
        println!("{alone} rounds in a second alone, {among} in {seconds} among them; {grown} KiB");
        // How many depends on what else the machine has to do; each takes 60 s at most, or it fails by itself.
        assert!(among > 0, "{among} rounds in {seconds} s");
    });
    let begun = Instant::now();
    while hosted.files() > 25 {
        assert!(begun.elapsed() < STUCK, "{} descriptors", hosted.files());
        thread::sleep(Duration::from_millis(10));
    }
    hosted.is_well();
    let grown = hosted.memory().saturating_sub(before);
    assert!(grown < 128 << 10, "{grown} KiB");
}
