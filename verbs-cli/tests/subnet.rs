//! `verbs subnet`, from outside: a subnet is hosted, seen and changed by other processes.

mod child;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use verbs_wire::Frame;
use verbs_wire::pcap::reader::Capture;

use child::{Guarded, started};

const TWO: &str = "Switch 2 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\nHca 1 \"a\"\nHca 1 \"b\"\n";

fn verbs(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
    command.arg("subnet").args(args).env("VERBS_SUBNET", socket);
    command
}

fn run(socket: &Path, args: &[&str]) -> Output {
    verbs(socket, args).output().expect("it runs")
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8(text).expect("text")
}

/// Hosts a subnet and waits until it says that it is there.
fn host(socket: &Path, args: &[&str]) -> (Guarded, String) {
    started(&mut verbs(socket, args))
}

/// Goal: a subnet can be hosted, looked at and changed, and what a killed one leaves behind is no obstacle.
/// Method: each command once, as a user types it.
#[test]
fn a_subnet_is_hosted_and_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, file) = (folder.path().join("subnet"), folder.path().join("net"));
    fs::write(&file, TWO).expect("a topology");
    let file = file.to_str().expect("text");

    let none = run(&socket, &["--status"]);
    assert_eq!(none.status.code(), Some(5), "{}", said(&none));
    let (hosted, welcome) = host(&socket, &[file]);
    assert!(
        welcome.starts_with("subnet with 1 switches, 2 adapters and 2 links"),
        "{welcome}"
    );
    let status = "3 nodes, 4 ports with a link, 0 of them in service\n";
    assert_eq!(said(&run(&socket, &["--status"])), status);
    let json = said(&run(&socket, &["--status", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["nodes"], &json["linked_ports"], &json["active_ports"]),
        (&3.into(), &4.into(), &0.into())
    );
    let twice = run(&socket, &[file]);
    assert_eq!(twice.status.code(), Some(1), "{}", said(&twice));

    assert!(run(&socket, &["--unplug", "s:1"]).status.success());
    assert!(said(&run(&socket, &["--status"])).contains("2 ports with a link"));
    assert!(
        run(&socket, &["--plug", "a:1"]).status.success(),
        "from its other end"
    );
    assert_eq!(said(&run(&socket, &["--status"])), status);
    let missing = run(&socket, &["--unplug", "c:1"]);
    assert_eq!(missing.status.code(), Some(5), "{}", said(&missing));

    drop(hosted);
    assert!(
        socket.exists(),
        "a program that is killed leaves its socket"
    );
    let (_hosted, welcome) = host(&socket, &["--tree", "64"]);
    assert!(welcome.contains("8 switches, 64 adapters"), "{welcome}");
}

/// Goal: the built-in manager brings a hosted subnet into service, and keeps it there. Method: a cable that is
/// pulled and put back.
#[test]
fn a_hosted_subnet_is_managed() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("subnet");
    let (_hosted, _welcome) = host(&socket, &["--tree", "64", "--sm"]);
    let until = |wanted: &str| {
        let end = Instant::now() + Duration::from_secs(60);
        while !said(&run(&socket, &["--status"])).contains(wanted) {
            assert!(Instant::now() < end, "not {wanted}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("144 ports with a link, 144 of them in service");
    assert!(run(&socket, &["--unplug", "host5:1"]).status.success());
    until("142 ports with a link, 142 of them in service");
    assert!(run(&socket, &["--plug", "host5:1"]).status.success());
    until("144 ports with a link, 144 of them in service");
    let alone = run(&socket, &["--tree", "64", "--sm-priority", "3"]);
    assert_eq!(alone.status.code(), Some(2), "a priority of whom?");
}

/// Goal: a capture of a hosted subnet has all packets on all links, each as the port that it leaves through sent it. Method:
/// the manager asks each node, in its answers and questions both CRCs are right; one direction of a link is as long as what the
/// manager at its end has sent.
#[test]
fn packets_on_all_links_are_written_to_a_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let [socket, file, pcap] = ["subnet", "net", "pcap"].map(|name| folder.path().join(name));
    fs::write(&file, TWO).expect("a topology");
    let [file, path] = [&file, &pcap].map(|path| path.to_str().expect("text"));
    let (mut hosted, _welcome) = host(&socket, &[file, "--sm", "--pcap", path]);
    let end = Instant::now() + Duration::from_secs(60);
    while !said(&run(&socket, &["--status"])).contains("4 of them in service") {
        assert!(Instant::now() < end, "it does not come up");
        thread::sleep(Duration::from_millis(20));
    }
    let process = Pid::from_child(&hosted);
    kill_process(process, Signal::TERM).expect("it runs");
    let ended = hosted.wait().expect("it ends");
    assert_eq!(ended.signal(), Some(15));
    let capture = Capture::read(&pcap);
    let mut sent = BTreeMap::<_, usize>::new();
    for packet in &capture.packets {
        assert_eq!((packet.link_type, packet.is_inbound), (197, Some(false)));
        let (frame, transport) = Frame::parse(&packet.bytes).expect("a packet");
        let icrc = frame.icrc(transport.len()).expect("a length");
        assert_eq!(icrc.verify(transport), Ok(()));
        *sent.entry(packet.interface.as_str()).or_default() += 1;
    }
    // The manager is at a: what it sends to b leaves through s:2, and b answers all of that.
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert!(sent["a:1"] > sent["s:2"] && sent["s:2"] > 5, "{sent:?}");
    assert_eq!(sent["s:2"], sent["b:1"], "{sent:?}");
    let unwritable = run(&socket, &[file, "--pcap", "/nowhere/pcap"]);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(said(&unwritable).contains("cannot write the capture /nowhere/pcap"));
    assert!(!socket.exists(), "nothing is left");
    let alone = run(&socket, &["--status", "--pcap", path]);
    assert_eq!(alone.status.code(), Some(2), "a capture of what?");
}

#[test]
fn what_cannot_be_hosted_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("subnet");
    let file = folder.path().join("net");
    let path = file.to_str().expect("text");
    assert_eq!(
        run(&socket, &[path]).status.code(),
        Some(1),
        "there is no file"
    );
    for (text, complaint) in [
        (
            "Hca 1 \"a\"\n[1] \"b\"[1]\n",
            "line 2: there is no node \"b\"",
        ),
        ("Switch 4 \"s\"\n", "no adapter"),
    ] {
        fs::write(&file, text).expect("a topology");
        let refused = run(&socket, &[path]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(said(&refused).contains(complaint), "{}", said(&refused));
    }
    for args in [
        &["--tree", "65"][..],
        &[],
        &["--plug", "s"],
        &["--plug", "s:1", "--status"],
    ] {
        assert_eq!(run(&socket, args).status.code(), Some(2), "{args:?}");
    }
}
