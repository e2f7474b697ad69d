//! What a listener takes, and what is refused without asking a user.

use std::net::{IpAddr, Ipv4Addr};

use verbs_core::addr::{Gid, Mtu};
use verbs_core::mad::Blob;
use verbs_core::time::Instant;

use super::lab::{Lab, SERVICE, accept, connect, gid, other_of, port};
use super::making::the_rej;
use crate::machine::State;
use crate::wire::{CommId, IpHeader, IpPair, Message, MtuCode, RejectReason, ServiceId, Transport};
use crate::{CmError, Config, Event, Listen, Route};

/// Goal: what no user can do anything about is refused without asking one. Method: requests with
/// one thing wrong.
#[test]
fn requests_are_refused_with_what_is_wrong() {
    let mut lab = Lab::new();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let Message::Req(req) = lab.sent(0)[0] else {
        panic!()
    };
    let mut refusal = |change: fn(&mut crate::wire::Req)| {
        let mut wrong = req;
        change(&mut wrong);
        lab.give(1, &wrong.into());
        assert_eq!(lab.event(1), None);
        let rej = the_rej(&lab.sent(1));
        assert_eq!((rej.local_id, rej.remote_id), (CommId(0), wrong.local_id));
        (rej.reason, rej.info_len.value(), rej.info.0[0])
    };
    let nobody = refusal(|req| req.service_id = ServiceId(7));
    assert_eq!(nobody, (RejectReason::InvalidServiceId, 0, 0));
    let rd = refusal(|req| req.transport = Transport::Rd);
    assert_eq!(rd, (RejectReason::InvalidTransportType, 0, 0));
    let xrc = refusal(|req| req.transport = Transport::Extended);
    assert_eq!(xrc, (RejectReason::InvalidTransportType, 0, 0));
    let large = refusal(|req| req.path_mtu = MtuCode::from(Mtu::B4096));
    assert_eq!(
        large,
        (RejectReason::InvalidMtu, 1, 3),
        "with the one that would do"
    );
    let none = refusal(|req| req.path_mtu = MtuCode::default());
    assert_eq!(none, (RejectReason::InvalidMtu, 1, 3));
    let elsewhere = refusal(|req| req.primary.remote_gid = Gid([9; 16]));
    assert_eq!(elsewhere, (RejectReason::PrimaryGid, 0, 0));
    assert!(lab.cms[1].is_empty());
}

#[test]
fn a_full_backlog_and_a_full_table_reject() {
    let config = Config {
        connections_max: 2,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    lab.cms[1] = crate::Cm::new(config, port(1), 2, 9);
    let listener = lab.cms[1]
        .listen(Listen {
            backlog: 1,
            ..Listen::new(SERVICE)
        })
        .unwrap();
    let [first, passive] = lab.requested();
    lab.cms[0].connect(lab.now, connect(0x56)).unwrap();
    lab.carry(0);
    assert_eq!(the_rej(&lab.sent(1)).reason, RejectReason::NoResources);
    lab.cms[1].accept(lab.now, passive, &accept()).unwrap();
    lab.cms[1].unlisten(listener).unwrap();
    lab.exchange();
    assert_eq!(
        lab.state(0, first),
        Some(State::Established),
        "what was asked before goes on"
    );
    let full = lab.cms[0].connect(lab.now, connect(0x57));
    assert_eq!(
        full,
        Err(CmError::Limit {
            what: "connections_max",
            max: 2
        })
    );
    assert_eq!(
        (lab.cms[1].counters().refused, lab.cms[1].unlisten(listener)),
        (1, Err(CmError::Stale))
    );
}

#[test]
fn the_listener_of_the_address_comes_first() {
    let mut lab = Lab::new();
    let addr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3));
    let listen = Listen {
        addr: Some(addr),
        ..Listen::new(SERVICE)
    };
    let exact = lab.cms[1].listen(listen).unwrap();
    assert_eq!(
        lab.cms[1].listen(listen),
        Err(CmError::InUse { addr: Some(addr) })
    );
    let mut ask = |host: u8, qpn| {
        let addresses = IpPair::V4 {
            source: Ipv4Addr::new(10, 77, 0, 2),
            destination: Ipv4Addr::new(10, 77, 0, host),
        };
        let header = IpHeader {
            source_port: 1,
            addresses,
        };
        let wish = connect(qpn).ip(&header, Blob::new(b"hello").unwrap());
        lab.cms[0].connect(lab.now, wish).unwrap();
        lab.carry(0);
        match lab.event(1) {
            Some(Event::ConnectRequest {
                listener,
                ip: Some(ip),
                req,
                ..
            }) => {
                assert_eq!(
                    (ip, &req.private_data.0[36..41]),
                    (header, b"hello".as_slice())
                );
                listener
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(3, 1), exact);
    assert_ne!(ask(4, 2), exact);
}

/// Goal: both ends may be behind one port. Method: one table, whose messages come back to it.
#[test]
fn a_port_connects_to_itself() {
    let mut cm = crate::Cm::new(Config::default(), port(0), 2, 5);
    cm.listen(Listen::new(SERVICE)).unwrap();
    let now = Instant::ZERO;
    let mut wish = connect(0x55);
    wish.route = Route::roce(&port(0), gid(0), gid(0)).unwrap();
    cm.connect(now, wish).unwrap();
    let mut established = Vec::new();
    let mut over = 0;
    for _ in 0..10 {
        while let Some((_, mad)) = cm.poll_transmit() {
            cm.handle(now, other_of(1), &mad);
        }
        while let Some(change) = cm.poll_qp_change() {
            cm.qp_modified(now, change.conn, Ok(()));
        }
        while let Some(event) = cm.poll_event() {
            match event {
                Event::ConnectRequest { conn, .. } => cm.accept(now, conn, &accept()).unwrap(),
                Event::Established { conn, .. } => {
                    established.push(conn);
                    if established.len() == 2 {
                        cm.disconnect(now, conn, Blob::default()).unwrap();
                    }
                }
                Event::Disconnected { .. } => over += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((established.len(), over), (2, 2));
    while let Some(deadline) = cm.poll_timeout() {
        cm.handle_timeout(deadline);
    }
    assert!(cm.is_empty() && cm.index.is_empty());
}

/// Goal: as many listeners as the configuration says, and an address is free again when its listener ends. Method:
/// one listener more than that, before and after one has ended.
#[test]
fn listeners_are_limited_and_leave_their_address() {
    let config = Config {
        listeners_max: 2,
        ..Config::default()
    };
    let mut cm = crate::Cm::new(config, port(0), 2, 5);
    let first = cm.listen(Listen::new(ServiceId(1))).unwrap();
    cm.listen(Listen::new(ServiceId(2))).unwrap();
    let full = CmError::Limit {
        what: "listeners_max",
        max: 2,
    };
    assert_eq!(cm.listen(Listen::new(ServiceId(3))), Err(full));
    cm.unlisten(first).unwrap();
    let again = cm.listen(Listen::new(ServiceId(1))).unwrap();
    assert_ne!(again, first);
}
