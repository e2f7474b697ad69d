//! The link of a client, with a daemon played by the test.

mod ends;
mod list;
mod long;
mod near;
mod rejoin;
mod waits;
mod wire;

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use verbs_core::host::message::{NotListening, Service};
use verbs_core::sync::{Mutex, thread};

use super::*;
use crate::Ident;

struct Bed {
    link: Joined,
    daemon: OwnedFd,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

fn port() -> PortNews {
    PortNews {
        addresses: vec!["127.0.0.1".parse().expect("one")],
        mtu: Mtu::B1024,
        is_up: true,
    }
}

/// The next message of the client.
fn heard(daemon: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let (len, _) = recv(daemon, &mut bytes, RecvFlags::DONTWAIT).expect("it is there");
    bytes.truncate(len);
    bytes
}

/// The queue pair numbers of that block.
fn qpns(block: u16) -> Range<u32> {
    Block::new(block).expect("there is one").qpns()
}

/// One of them.
fn qpn(block: u16, index: u32) -> u32 {
    qpns(block).start + index
}

fn say(daemon: &OwnedFd, message: &Message<'_>) {
    line::send(daemon.as_fd(), &message.encode()).expect("there is room");
}

fn bed() -> Bed {
    bed_of(5)
}

/// The client that has that block.
fn bed_of(block: u16) -> Bed {
    let (ours, daemon) = pair();
    let joining = thread::spawn(move || Joined::join(ours, &[], "test"));
    let mut first = vec![0; MESSAGE_MAX];
    let (len, _) = recv(&daemon, &mut first, RecvFlags::empty()).expect("it says hello");
    let hello = Message::decode(&first[..len]);
    assert!(matches!(hello, Ok(Message::Hello(hello)) if hello.name == "test"));
    say(
        &daemon,
        &Message::Welcome(Welcome {
            version: VERSION,
            features: FEATURE,
            client: 1,
            block,
            port: port(),
            token: [8; 16],
        }),
    );
    let link = joining.join().expect("no panic").expect("it is welcome");
    Bed { link, daemon }
}

#[test]
fn packets_go_through_the_daemon() {
    let Bed { mut link, daemon } = bed();
    let here = link.addresses()[0];
    let route = Route {
        src: here,
        dst: here,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    assert!(link.burst_limit(&route) > 1);
    let away = Route {
        dst: "192.0.2.1".parse().expect("one"),
        ..route
    };
    assert_eq!(
        link.burst_limit(&away),
        1,
        "identifications are the daemon's"
    );
    let burst = Burst {
        route,
        segment: 4,
        bytes: b"onetwo",
    };
    assert_eq!(link.transmit(&burst), Sent::Gone);
    let bytes = heard(&daemon);
    let Ok(Message::Packets(packets)) = Message::decode(&bytes) else {
        panic!("packets");
    };
    assert_eq!((packets.segment, packets.bytes), (4, &b"onetwo"[..]));
    say(
        &daemon,
        &Message::Packets(Packets {
            ident: Some(7),
            ..packets
        }),
    );
    let mut got = Vec::new();
    let count = link.receive(&mut |arrival| got.push((arrival.ident, arrival.bytes.to_vec())));
    assert_eq!(count, 2);
    assert_eq!(got[0], (Ident::Known(7), b"onet".to_vec()));
    assert_eq!(got[1], (Ident::Known(8), b"wo".to_vec()));
    say(
        &daemon,
        &Message::Packets(Packets {
            ident: None,
            ..packets
        }),
    );
    link.receive(&mut |arrival| assert_eq!(arrival.ident, Ident::Hidden));
}

/// Goal: numbers come from the leased blocks, and further ones are requested in time, once.
#[test]
fn numbers_are_leased() {
    let Bed { mut link, daemon } = bed();
    assert_eq!(link.numbers(0), Some(std::slice::from_ref(&qpns(5))));
    assert_eq!(link.numbers(255).map(<[_]>::len), Some(1));
    link.numbers(256);
    link.numbers(257);
    let asked = heard(&daemon);
    let Ok(Message::Lease(tag)) = Message::decode(&asked) else {
        panic!("a lease");
    };
    let mut more = [0; 64];
    assert!(
        recv(&daemon, &mut more, RecvFlags::DONTWAIT).is_err(),
        "once"
    );
    say(&daemon, &Message::Leased(tag, Ok(9)));
    link.receive(&mut |_| {});
    assert_eq!(link.numbers(0), Some(&[qpns(5), qpns(9)][..]));
    say(&daemon, &Message::Gone(vec![3]));
    link.receive(&mut |_| {});
    assert_eq!((link.gone(), link.gone()), (Some(qpns(3)), None));
}

/// Goal: every request for a port number is answered once, even if the daemon ends; the port is then down for good.
#[test]
fn the_end_of_the_daemon_is_told() {
    let Bed { mut link, daemon } = bed();
    let ports = link.host_ports().expect("it has some");
    let answers = Arc::new(Mutex::new(Vec::new()));
    let service = Service { id: 7, addr: None };
    let listen = || {
        let heard = Arc::clone(&answers);
        ports.listen(service, Box::new(move |result| heard.lock().push(result)));
    };
    listen();
    let asked = heard(&daemon);
    let Ok(Message::Listen(tag, _)) = Message::decode(&asked) else {
        panic!("a listen");
    };
    say(&daemon, &Message::Listening(tag, Err(NotListening::InUse)));
    link.receive(&mut |_| {});
    assert_eq!(answers.lock().pop(), Some(Err(NotListening::InUse)));
    listen();
    drop(daemon);
    assert_eq!(link.receive(&mut |_| {}), 0);
    assert_eq!(answers.lock().pop(), Some(Err(NotListening::HostLost)));
    assert_eq!((link.change(), link.change()), (Some(Change::Down), None));
    listen();
    assert_eq!(answers.lock().pop(), Some(Err(NotListening::HostLost)));
    assert_eq!(link.receive(&mut |_| {}), 0);
    assert_eq!(link.change(), None, "it is told once");
}

#[test]
fn garbage_of_the_daemon_is_counted() {
    let Bed { mut link, daemon } = bed();
    for bytes in [&b"garbage"[..], &[0; 16], &Message::Lease(3).encode()] {
        line::send(daemon.as_fd(), bytes).expect("there is room");
    }
    assert_eq!(link.receive(&mut |_| {}), 0);
    assert_eq!(link.counters().receive_errors, 3);
}
