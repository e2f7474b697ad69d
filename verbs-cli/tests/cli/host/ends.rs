//! Daemons that crash, and programs that are stopped, become others or leave children.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::kept::{is_alive, kept_by, next_kept_by};
use crate::nic::compiled;

/// Goal: a daemon that crashes is started again by itself: connections go on, programs connect as if nothing had happened, and
/// no other daemon takes its place; told to end, it leaves nothing. Method: `SIGKILL`, as `SIGSEGV` or any other fault.
#[test]
fn a_daemon_that_crashes_is_started_again() {
    let mut host = Host::new(8);
    let at = host.address.clone();
    let keeper = host.daemon.id();
    let mut server = host.serve();
    let (mut client, mut pings) = host.ping(&["-a", &at]);
    let mut last = None;
    for _ in 0..3 {
        let daemon = next_kept_by(keeper, last);
        last = Some(daemon);
        kill_process(daemon, Signal::KILL).expect("it runs");
        pings.go_on();
        // Without a second try: who connects waits for the next one.
        let mut another = host.command(&["rping", "-c", "-a", &at, "-C", "5"]);
        let another = Ended::from(another.output().expect("it starts"));
        assert_eq!(another.code, Some(0), "{another:?}");
    }
    let log = fs::read_to_string(host.place.path("log")).expect("it is there");
    assert_eq!(log.matches("is started again").count(), 3, "{log}");
    client.kill().expect("it runs");
    server.kill().expect("it runs");
    (client.wait(), server.wait()).0.expect("a child");

    let daemon = next_kept_by(keeper, last);
    kill_process(Pid::from_child(&host.daemon), Signal::TERM).expect("it runs");
    let ended = host.daemon.wait().expect("a child");
    assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{ended}");
    assert!(!is_alive(daemon));
    assert!(!host.place.path("host").exists());
}

/// Goal: a daemon that crashes as often as it is started is given up, and the error says how it ended.
#[test]
fn a_daemon_that_crashes_at_once_is_given_up() {
    let mut host = Host::new(9);
    let keeper = host.daemon.id();
    let mut last = None;
    let ended = loop {
        if let Some(ended) = host.daemon.try_wait().expect("a child") {
            break ended;
        }
        let daemon = kept_by(keeper).filter(|&daemon| Some(daemon) != last);
        last = daemon.or(last);
        if let Some(daemon) = daemon {
            // It may just have ended.
            let _ = kill_process(daemon, Signal::KILL);
        }
    };
    assert_eq!(ended.code(), Some(1), "{ended}");
    let log = fs::read_to_string(host.place.path("log")).expect("it is there");
    assert!(
        log.contains("crashes as soon as it is started (signal: 9"),
        "{log}"
    );
    assert!(!host.place.path("host").exists());
}

/// Goal: the daemon ends with its keeper, so that the next one is not refused.
#[test]
fn a_daemon_ends_with_its_keeper() {
    let mut host = Host::new(10);
    let daemon = next_kept_by(host.daemon.id(), None);
    host.kill();
    let patience = Instant::now() + Duration::from_secs(60);
    while is_alive(daemon) {
        assert!(Instant::now() < patience, "it goes on");
    }
    host.restart();
    // Nobody starts a daemon by hand as one that is kept.
    let mut alone = host.command(&["host", "--kept-by", "1"]);
    let alone = Ended::from(alone.stdin(Stdio::null()).output().expect("it starts"));
    assert_eq!(alone.code, Some(1), "{alone:?}");
    assert!(alone.stderr.contains("--kept-by"), "{alone:?}");
}

/// Goal: what programs of two hosts send to each other does not pass through the daemons, which may be busy, or crash; a daemon
/// that is started by hand after another one finds the address free. Method: the daemons are stopped, killed, and told to end, while
/// two programs send; each host has an address here.
#[test]
fn programs_of_two_hosts_talk_past_their_daemons() {
    let [mut here, there] = [13, 14].map(Host::new);
    let at = here.address.clone();
    let mut server = here.serve();
    let (mut client, mut pings) = there.ping(&["-a", &at]);
    let daemons = [&here, &there].map(|host| next_kept_by(host.daemon.id(), None));
    for daemon in daemons {
        kill_process(daemon, Signal::STOP).expect("it runs");
    }
    pings.go_on();
    for daemon in daemons {
        kill_process(daemon, Signal::CONT).expect("it is there");
    }
    let connect_once_more = |here: &Host| {
        let another = there.ask(&["rping", "-c", "-a", &here.address, "-C", "5"]);
        assert_eq!(another.code, Some(0), "{another:?}");
    };
    connect_once_more(&here);
    let mut last = daemons[0];
    for _ in 0..3 {
        kill_process(last, Signal::KILL).expect("it runs");
        pings.go_on();
        last = next_kept_by(here.daemon.id(), Some(last));
        connect_once_more(&here);
    }
    kill_process(Pid::from_child(&here.daemon), Signal::TERM).expect("it runs");
    here.daemon.wait().expect("a child");
    here.restart();
    pings.go_on();
    connect_once_more(&here);
    let reader = pings.read_on();
    for child in [&mut server, &mut client] {
        child.kill().expect("it runs");
        child.wait().expect("a child");
    }
    reader.join().expect("no panic");
}

/// Goal: a program that is stopped holds up nobody: others send, connect and are listed as before. Its own connection goes on
/// with it, and nothing that was sent meanwhile is lost. Method: one end of a pair is stopped; its retries take 7 times 4 s.
#[test]
fn a_stopped_program_holds_up_nobody() {
    let host = Host::new(11);
    let at = host.address.as_str();
    let pair = |port: &str| {
        let server = host.serve_at(port);
        let (client, pings) = host.ping(&["-a", at, "-p", port]);
        ([server, client], pings)
    };
    let (stopped, mut theirs) = pair("7301");
    let (others, mut pings) = pair("7302");
    for end in &stopped {
        theirs.go_on();
        let process = Pid::from_child(end);
        kill_process(process, Signal::STOP).expect("it runs");
        pings.go_on();
        let mut another = host.serve_at("7303");
        let patience = Instant::now() + Duration::from_secs(60);
        // The client that has found the server has just ended.
        while listed(&host).len() != 5 {
            assert!(Instant::now() < patience, "{:?}", listed(&host));
        }
        another.kill().expect("it runs");
        another.wait().expect("a child");
        kill_process(process, Signal::CONT).expect("it runs");
        theirs.go_on();
    }
    let readers = [theirs, pings].map(Pings::read_on);
    for mut child in stopped.into_iter().chain(others) {
        child.kill().expect("it runs");
        child.wait().expect("a child");
    }
    for reader in readers {
        reader.join().expect("no panic");
    }
}

/// Goal: a program that becomes another one by `exec`, and one that is killed while a child of its `fork` goes on with its
/// descriptors, have gone for the daemon, although a process, or the other end of the line, is still there.
#[test]
fn what_is_left_of_a_program_is_not_the_program() {
    let host = Host::new(12);
    let lib = libraries(&host.place);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/life.c");
    let program = compiled(&host.place, &lib, &source);
    for way in ["exec", "fork"] {
        let mut child = Command::new(&program)
            .arg(way)
            .env("LD_LIBRARY_PATH", &lib)
            .env("VERBS_DEVICE", &host.address)
            .env("VERBS_HOST_SOCKET", host.place.path("host"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n", "{way}");
        assert_eq!(listed(&host).len(), 1, "{way}");
        stdin.write_all(b"\n").expect("it reads");
        let patience = Instant::now() + Duration::from_secs(60);
        while !listed(&host).is_empty() {
            assert!(Instant::now() < patience, "{way}");
        }
        // What is left of it lives, and has its stdout: it ends with its stdin.
        if way == "exec" {
            assert!(is_alive(Pid::from_child(&child)));
            stdin.write_all(b"cat\n").expect("it reads");
        }
        drop(stdin);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("text");
        assert_eq!(rest.trim_end(), if way == "exec" { "cat" } else { "child" });
        let ended = child.wait().expect("a child");
        assert_eq!(ended.success(), way == "exec", "{ended}");
    }
}
