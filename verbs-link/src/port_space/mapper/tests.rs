//! Goal: two mappers agree, whatever is lost, repeated or made up between them. Method: their datagrams pass by hand.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use verbs_wire::iwarp::{MapperKind, MapperMessage};

use super::{MapperError, MapperEvent, PortMapper, SENDS, WAIT};
use crate::port_space::TcpPortSpace;
use crate::time::Instant;

const CLIENT: &str = "127.0.0.1:3935";
const SERVER: &str = "127.0.0.2:3935";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn at(time: Duration) -> Instant {
    Instant::ZERO + time
}

struct Pair {
    client: PortMapper,
    server: PortMapper,
    service: SocketAddr,
    caller: SocketAddr,
    /// Where the service really is.
    mapped: SocketAddr,
}

fn pair() -> Pair {
    let mapper = |first| PortMapper::new(TcpPortSpace::host(), first);
    let (mut client, mut server) = (mapper(7), mapper(100));
    let (service, caller) = (addr("127.0.0.2:7174"), addr("127.0.0.1:4000"));
    let mapped = server.map(service).unwrap();
    client.map(caller).unwrap();
    Pair {
        client,
        server,
        service,
        caller,
        mapped,
    }
}

fn bytes(message: &MapperMessage) -> Vec<u8> {
    let mut out = vec![0; message.wire_len()];
    message.emit(&mut out).unwrap();
    out
}

/// Passes the next message on; `None` if there is none.
fn pass(from: &mut PortMapper, its: &str, to: &mut PortMapper, now: Instant) -> Option<MapperKind> {
    let (_, message) = from.poll_output()?;
    to.handle_datagram(addr(its), &bytes(&message), now);
    Some(message.kind)
}

#[test]
fn a_mapping_is_asked_for_accepted_and_acknowledged() {
    let Pair {
        mut client,
        mut server,
        service,
        caller,
        mapped,
    } = pair();
    assert_ne!(mapped.port(), service.port());
    assert!(TcpListener::bind(mapped).is_err(), "its port is taken");
    let now = at(Duration::ZERO);
    client.ask(caller, service, now).unwrap();
    let request = pass(&mut client, CLIENT, &mut server, now).unwrap();
    assert!(matches!(request, MapperKind::Request { .. }), "{request:?}");
    let announced = MapperEvent::Announced {
        local: service,
        remote: caller,
        mapped: client.mapped(caller).unwrap(),
    };
    assert_eq!(server.poll_event(), Some(announced));
    let accept = pass(&mut server, SERVER, &mut client, now);
    assert_eq!(accept, Some(MapperKind::Accept));
    let found = MapperEvent::Mapped {
        local: caller,
        remote: service,
        mapped,
    };
    assert_eq!(client.poll_event(), Some(found));
    let ack = pass(&mut client, CLIENT, &mut server, now);
    assert_eq!(ack, Some(MapperKind::Ack));
    assert_eq!((client.poll_timeout(), server.poll_timeout()), (None, None));
    assert_eq!((client.dropped(), server.dropped()), (0, 0));
    server.unmap(service).unwrap();
    assert!(TcpListener::bind(mapped).is_ok(), "its port is free again");
}

#[test]
fn what_is_lost_is_sent_again_and_what_comes_twice_counts_once() {
    let Pair {
        mut client,
        mut server,
        service,
        caller,
        ..
    } = pair();
    client.ask(caller, service, at(Duration::ZERO)).unwrap();
    assert!(client.poll_output().is_some(), "and it is lost");
    assert_eq!(client.poll_timeout(), Some(at(WAIT)));
    client.handle_timeout(at(WAIT));
    let (_, request) = client.poll_output().expect("it is sent again");
    for _ in 0..2 {
        server.handle_datagram(addr(CLIENT), &bytes(&request), at(WAIT));
    }
    assert!(server.poll_event().is_some());
    assert_eq!(server.poll_event(), None, "it is announced once");
    // The first answer is lost; then both it and the repeated one come.
    assert!(server.poll_output().is_some());
    for _ in 0..2 {
        server.handle_timeout(at(3 * WAIT));
    }
    let mut accepts = 0;
    while pass(&mut server, SERVER, &mut client, at(3 * WAIT)).is_some() {
        accepts += 1;
    }
    assert_eq!(accepts, 2);
    assert!(matches!(
        client.poll_event(),
        Some(MapperEvent::Mapped { .. })
    ));
    assert_eq!(client.poll_event(), None, "it is found once");
    for _ in 0..2 {
        let ack = pass(&mut client, CLIENT, &mut server, at(3 * WAIT));
        assert_eq!(ack, Some(MapperKind::Ack), "each accept is acknowledged");
    }
    assert_eq!(server.poll_timeout(), None);
}

#[test]
fn a_question_ends_in_a_rejection_or_after_its_time() {
    let Pair {
        mut client,
        mut server,
        caller,
        ..
    } = pair();
    let unknown = addr("127.0.0.2:9999");
    client.ask(caller, unknown, at(Duration::ZERO)).unwrap();
    pass(&mut client, CLIENT, &mut server, at(Duration::ZERO));
    let reject = pass(&mut server, SERVER, &mut client, at(Duration::ZERO));
    assert_eq!(reject, Some(MapperKind::Reject));
    let rejected = MapperEvent::Rejected {
        local: caller,
        remote: unknown,
    };
    assert_eq!(client.poll_event(), Some(rejected));

    client.ask(caller, unknown, at(Duration::ZERO)).unwrap();
    let mut sends = 0;
    for turn in 1..=2 * SENDS {
        sends += u32::from(client.poll_output().is_some());
        client.handle_timeout(at(turn * WAIT));
    }
    assert_eq!(sends, SENDS);
    let timed_out = MapperEvent::TimedOut {
        local: caller,
        remote: unknown,
    };
    assert_eq!(client.poll_event(), Some(timed_out));
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn what_nobody_has_asked_for_changes_nothing() {
    let Pair {
        mut client,
        mut server,
        service,
        caller,
        ..
    } = pair();
    let now = at(Duration::ZERO);
    client.ask(caller, service, now).unwrap();
    let (_, request) = client.poll_output().unwrap();
    let forged = MapperMessage {
        kind: MapperKind::Accept,
        accept_port: 1,
        ..request
    };
    // Of another host, and of another question.
    client.handle_datagram(addr("127.0.0.3:3935"), &bytes(&forged), now);
    let other = MapperMessage {
        association: 8,
        ..forged
    };
    client.handle_datagram(addr(SERVER), &bytes(&other), now);
    assert_eq!((client.poll_event(), client.poll_output()), (None, None));
    assert_eq!(client.dropped(), 2);
    let strange = MapperMessage {
        kind: MapperKind::Ack,
        ..request
    };
    server.handle_datagram(addr(CLIENT), &bytes(&strange), now);
    server.handle_datagram(addr(CLIENT), &[0xff; 48], now);
    server.handle_datagram(addr(CLIENT), &[], now);
    assert_eq!(server.dropped(), 3);
    assert_eq!(server.poll_output(), None);
}

#[test]
fn commands_are_refused_when_they_make_no_sense() {
    let Pair {
        mut client,
        service,
        caller,
        ..
    } = pair();
    let again = client.map(caller);
    assert!(matches!(again, Err(MapperError::Duplicate(_))), "{again:?}");
    let now = at(Duration::ZERO);
    let unknown = client.ask(service, caller, now);
    assert!(
        matches!(unknown, Err(MapperError::Unknown(_))),
        "{unknown:?}"
    );
    let other = client.ask(caller, addr("[::1]:1"), now);
    assert!(
        matches!(other, Err(MapperError::Families { .. })),
        "{other:?}"
    );
    client.unmap(caller).unwrap();
    assert!(client.unmap(caller).is_err());
    client.map_to_itself(caller).unwrap();
    assert_eq!(client.mapped(caller), Some(caller));
}

#[test]
fn a_wildcard_is_mapped_for_every_address() {
    let mut server = PortMapper::new(TcpPortSpace::host(), 0);
    let any = addr("0.0.0.0:7174");
    let mapped = server.map(any).unwrap();
    let found = server.find(addr("127.0.0.9:7174"));
    let expected = SocketAddr::new(addr("127.0.0.9:0").ip(), mapped.port());
    assert_eq!(found, Some((any, expected)));
    assert_eq!(server.find(addr("127.0.0.9:7175")), None);
}
