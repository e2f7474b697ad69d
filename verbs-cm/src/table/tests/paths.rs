//! Alternate paths: with the REQ, and by LAP and APR.

use verbs_core::addr::{Lid, Qpn};
use verbs_core::mad::{Blob, TimeCode, TransactionId};
use verbs_core::time::Instant;
use verbs_core::{AltPath, Av, Error, LinkLayer, MigState, QpAttr};

use super::lab::{Lab, SERVICE, accept, gid, other_of, port};
use crate::machine::State;
use crate::params::{Accept, Connect, Listen, Port, Route};
use crate::table::Cm;
use crate::wire::{Acknowledged, Apr, AprStatus, CommId, Lap, Message, Mra};
use crate::{CmError, Config, ConnId, Event, PathError};

/// The first LIDs of both hosts, which have four each.
const LIDS: [u16; 2] = [16, 32];

fn ib_port(host: usize) -> Port {
    Port {
        link_layer: LinkLayer::InfiniBand,
        lid: Lid(LIDS[host]),
        migrates: true,
        ..port(host)
    }
}

fn lab() -> Lab {
    let mut lab = Lab {
        now: Instant::from_nanos(1),
        cms: [0, 1].map(|host| Cm::new(Config::default(), ib_port(host), 2, 40 + host as u64)),
        changes: Vec::new(),
    };
    lab.cms[1].listen(Listen::new(SERVICE)).unwrap();
    lab
}

/// The way from host 0 to host 1 between their LIDs of that number.
fn route(number: u8) -> Route {
    let lid = Lid(LIDS[1] + u16::from(number));
    let route = Route {
        av: Av::to_lid(1, lid),
        is_subnet_local: true,
        packet_lifetime: TimeCode::new(12),
        ..Route::roce(&ib_port(0), gid(0), gid(1)).unwrap()
    };
    route.between(number, lid)
}

/// The path of that number, as the queue pair of a host has it.
fn path(host: usize, number: u8, timeout: u8) -> AltPath {
    let av = Av {
        src_path_bits: number,
        ..Av::to_lid(1, Lid(LIDS[1 - host] + u16::from(number)))
    };
    AltPath::new(av, 0, timeout)
}

fn asked(alternate: Option<Route>) -> Connect {
    Connect {
        alternate,
        ..Connect::new(SERVICE, Qpn::new(0x55), route(0))
    }
}

/// What the queue pair of a host is to be told now; it obeys.
fn obey(lab: &mut Lab, host: usize) -> Vec<QpAttr> {
    let mut attrs = Vec::new();
    while let Some(change) = lab.cms[host].poll_qp_change() {
        attrs.push(change.attr);
        lab.cms[host].qp_modified(lab.now, change.conn, Ok(()));
    }
    attrs
}

/// A connection without alternate path, its events taken.
fn established(lab: &mut Lab) -> [ConnId; 2] {
    let active = lab.cms[0].connect(lab.now, asked(None)).unwrap();
    lab.carry(0);
    let Some(Event::ConnectRequest { conn: passive, .. }) = lab.event(1) else {
        panic!("it is asked for")
    };
    lab.cms[1].accept(lab.now, passive, &accept()).unwrap();
    lab.exchange();
    for host in 0..2 {
        assert!(matches!(lab.event(host), Some(Event::Established { .. })));
    }
    [active, passive]
}

/// Goal: the alternate path of a REQ is loaded on the way to RTR and armed from RTS on, at both ends or at none, as the
/// REP says. Method: users that take it and do not, and a path that is the first one or does not lead to the port.
#[test]
fn a_request_brings_an_alternate_path() {
    let taken = (0, true);
    for (alternate, takes_paths, expected) in [
        (Some(1), true, taken),
        (Some(1), false, (2, false)),
        (Some(0), true, (2, false)),
        (Some(200), true, (2, false)),
        (None, true, (0, false)),
    ] {
        let mut lab = lab();
        lab.cms[0]
            .connect(lab.now, asked(alternate.map(route)))
            .unwrap();
        lab.carry(0);
        let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
            panic!("it is asked for")
        };
        let accept = Accept {
            takes_paths,
            ..accept()
        };
        lab.cms[1].accept(lab.now, conn, &accept).unwrap();
        let mut attrs = [Vec::new(), obey(&mut lab, 1)];
        let [Message::Rep(rep)] = lab.sent(1)[..] else {
            panic!("it replies")
        };
        lab.give(0, &rep.into());
        attrs[0].extend(obey(&mut lab, 0));
        lab.carry(0);
        attrs[1].extend(obey(&mut lab, 1));
        let mut loaded = Vec::new();
        for (host, attrs) in attrs.iter().enumerate() {
            let [rtr, rts] = attrs[..] else {
                panic!("{attrs:?}")
            };
            let path = alternate.filter(|_| expected.1).map(|number| {
                let timeout = rtr.alt_path.map_or(0, |path| path.timeout);
                path(host, number, timeout)
            });
            assert_eq!(rtr.alt_path, path, "{host} {alternate:?} {takes_paths}");
            assert!(path.is_none_or(|path| path.timeout >= 13), "there and back");
            assert_eq!(rts.path_mig_state, path.map(|_| MigState::Rearm));
            assert_eq!((rtr.path_mig_state, rts.alt_path), (None, None));
            loaded.push(path.is_some());
        }
        assert_eq!(
            (rep.failover.value(), loaded),
            (expected.0, vec![expected.1; 2])
        );
    }
}

/// Goal: ports without alternate paths offer none, and say so of those that they are offered.
#[test]
fn ports_without_alternate_paths_say_so() {
    for change in [
        |port: &mut Port| port.migrates = false,
        |port: &mut Port| port.link_layer = LinkLayer::Ethernet,
    ] {
        let mut ports = [0, 1].map(ib_port);
        ports.iter_mut().for_each(change);
        let mut lab = lab();
        lab.cms[1].port_changed(ports[1].clone());
        let asks = asked(Some(route(1)));
        lab.cms[0].connect(lab.now, asks).unwrap();
        let [Message::Req(mut req)] = lab.sent(0)[..] else {
            panic!("it asks")
        };
        // Without LIDs the way back is the one that the REQ came by.
        req.primary.subnet_local = false;
        lab.give(1, &req.into());
        let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
            panic!("it is asked for")
        };
        lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
        let [Message::Rep(rep)] = lab.sent(1)[..] else {
            panic!("it replies")
        };
        assert_eq!(rep.failover.value(), 1);
        lab.cms[0].port_changed(ports[0].clone());
        let refused = lab.cms[0].connect(lab.now, asks);
        assert_eq!(refused, Err(CmError::NoAlternates));
    }
}

/// Goal: a path is loaded by the queue pair that it is offered to before its offerer hears of that, and then by the
/// offerer's; both users are told. Again after that, the same path included. Method: message by message.
#[test]
fn a_path_is_offered_and_loaded() {
    let mut lab = lab();
    let [active, passive] = established(&mut lab);
    for number in [1, 2, 1, 1] {
        lab.cms[0]
            .load_path(lab.now, active, &route(number))
            .unwrap();
        let again = lab.cms[0].load_path(lab.now, active, &route(3));
        assert_eq!(
            again,
            Err(CmError::State(State::Established)),
            "one at a time"
        );
        assert!(
            lab.cms[0].poll_qp_change().is_none(),
            "not before the peer has"
        );
        assert_eq!(lab.carry(0), ["LAP"]);
        let change = lab.cms[1].poll_qp_change().expect("the path is loaded");
        assert!(
            lab.cms[1].poll_transmit().is_none(),
            "not before it is loaded"
        );
        let path_of = |host, timeout| QpAttr::load_path(path(host, number, timeout));
        // The peer's time to acknowledge is 15, the way 12.
        assert_eq!((change.conn, change.attr), (passive, path_of(1, 15)));
        lab.cms[1].qp_modified(lab.now, passive, Ok(()));
        assert_eq!(lab.event(1), Some(Event::PathLoaded { conn: passive }));
        assert_eq!(lab.carry(1), ["APR"]);
        assert_eq!(obey(&mut lab, 0), [path_of(0, 15)]);
        assert_eq!(lab.event(0), Some(Event::PathLoaded { conn: active }));
        assert_eq!((lab.event(0), lab.event(1)), (None, None));
        assert_eq!(lab.cms[0].poll_timeout(), None);
    }
    lab.disconnect(1, passive);
    lab.finish();
}

/// Goal: messages that get lost are sent again, and load nothing twice; a peer that says nothing is given up, and one
/// that asks for time gets it. The connection goes on.
#[test]
fn offers_that_get_lost_come_again() {
    let mut lab = lab();
    let [active, _] = established(&mut lab);
    lab.cms[0].load_path(lab.now, active, &route(1)).unwrap();
    assert_eq!(lab.lose(0), ["LAP"]);
    lab.fire(0);
    assert_eq!(lab.carry(0), ["LAP"]);
    assert_eq!(obey(&mut lab, 1).len(), 1);
    assert_eq!(lab.lose(1), ["APR"]);
    lab.fire(0);
    assert_eq!(lab.carry(0), ["LAP"]);
    assert!(obey(&mut lab, 1).is_empty(), "it is loaded already");
    assert_eq!(lab.carry(1), ["APR"]);
    assert_eq!(obey(&mut lab, 0).len(), 1);
    assert_eq!(lab.event(0), Some(Event::PathLoaded { conn: active }));

    lab.cms[0].load_path(lab.now, active, &route(2)).unwrap();
    let usual = lab.cms[0].poll_timeout();
    let local_id = lab.cms[1].conns.iter().next().unwrap().1.local_id();
    let remote_id = lab.cms[0].conns.iter().next().unwrap().1.local_id();
    let mra = Mra {
        local_id,
        remote_id,
        message: Acknowledged::Lap,
        service_timeout: TimeCode::new(22),
        private_data: Blob::default(),
    };
    lab.give(0, &mra.into());
    assert!(lab.cms[0].poll_timeout() > usual);
    let sent = lab.fire_all(0);
    assert_eq!(
        sent, ["LAP"; 15],
        "and 15 repetitions, less one for the MRA"
    );
    let why = PathError::NoAnswer;
    assert_eq!(lab.event(0), Some(Event::PathRefused { conn: active, why }));
    assert_eq!(lab.state(0, active), Some(State::Established));
    lab.disconnect(0, active);
    lab.finish();
}

/// Goal: what stands against a path is told to the side that has offered it, and changes nothing else.
#[test]
fn paths_that_cannot_be_loaded_are_refused() {
    let refused = |status| PathError::Refused(status);
    // The peer's queue pair, or the own one, refuses.
    for (host, why) in [
        (1, refused(AprStatus::Rejected)),
        (0, PathError::QueuePair(Error::NoMemory)),
    ] {
        let mut lab = lab();
        let [active, passive] = established(&mut lab);
        lab.cms[0].load_path(lab.now, active, &route(1)).unwrap();
        lab.carry(0);
        let done = |is_it| if is_it { Err(Error::NoMemory) } else { Ok(()) };
        assert!(lab.cms[1].poll_qp_change().is_some());
        lab.cms[1].qp_modified(lab.now, passive, done(host == 1));
        lab.carry(1);
        if lab.cms[0].poll_qp_change().is_some() {
            lab.cms[0].qp_modified(lab.now, active, done(host == 0));
        }
        assert_eq!(lab.event(0), Some(Event::PathRefused { conn: active, why }));
        assert_eq!(lab.state(0, active), Some(State::Established));
        assert_eq!(lab.state(1, passive), Some(State::Established));
    }
    // The side that was asked offers none.
    let mut lab = lab();
    let [active, passive] = established(&mut lab);
    let offered = lab.cms[1].load_path(lab.now, passive, &route(1));
    assert_eq!(offered, Err(CmError::NoAlternates));
    lab.cms[0].destroy(lab.now, active).unwrap();
    let gone = lab.cms[0].load_path(lab.now, active, &route(1));
    assert!(gone.is_err(), "it is being closed");
    lab.exchange();
    assert!(lab.cms[1].load_path(lab.now, passive, &route(1)).is_err());
}

/// Goal: a connection that ends while a path is being loaded ends as ever.
#[test]
fn a_connection_may_end_while_a_path_is_loaded() {
    for (point, host) in (0..3).flat_map(|point| [(point, 0), (point, 1)]) {
        let mut lab = lab();
        let conns = established(&mut lab);
        lab.cms[0].load_path(lab.now, conns[0], &route(1)).unwrap();
        let mut under_way = None;
        if point > 0 {
            lab.carry(0);
            under_way = lab.cms[1].poll_qp_change().map(|change| (1, change.conn));
        }
        if let (2, Some((_, conn))) = (point, under_way) {
            lab.cms[1].qp_modified(lab.now, conn, Ok(()));
            lab.carry(1);
            under_way = lab.cms[0].poll_qp_change().map(|change| (0, change.conn));
        }
        lab.disconnect(host, conns[host]);
        lab.exchange();
        if let Some((at, conn)) = under_way {
            lab.cms[at].qp_modified(lab.now, conn, Ok(()));
        }
        lab.finish();
        for (host, cm) in lab.cms.iter_mut().enumerate() {
            let last = std::iter::from_fn(|| cm.poll_event()).last();
            assert!(
                matches!(last, Some(Event::TimewaitExit { .. })),
                "{point} {host}"
            );
        }
    }
}

/// What is wrong with a LAP, and how it is answered.
type Case = (fn(&mut Lap), AprStatus);

/// Goal: forged and stray LAPs and APRs are answered or dropped as they have to be, and load nothing.
#[test]
fn strangers_load_nothing() {
    let mut lab = lab();
    let [active, passive] = established(&mut lab);
    let id = |cm: &Cm, conn: ConnId| cm.conns[conn.index].local_id();
    let (ours, theirs) = (id(&lab.cms[0], active), id(&lab.cms[1], passive));
    let good = Lap {
        local_id: ours,
        remote_id: theirs,
        remote_qpn: accept().qpn,
        ..Lap::of(&route(1).to_wire(&ib_port(0), TimeCode::new(14)))
    };
    let cases: [Case; 6] = [
        (|lap| lap.remote_id = CommId(1), AprStatus::InvalidCommId),
        (|lap| lap.local_id = CommId(1), AprStatus::InvalidCommId),
        (|lap| lap.remote_qpn = Qpn::new(3), AprStatus::QpnMismatch),
        (|lap| lap.remote_lid = Lid(31), AprStatus::InvalidLid),
        (|lap| lap.local_lid = Lid(0xc001), AprStatus::InvalidLid),
        (
            |lap| (lap.subnet_local, lap.remote_gid) = (false, gid(0)),
            AprStatus::InvalidGid,
        ),
    ];
    for (change, status) in cases {
        let mut lap = good;
        change(&mut lap);
        lab.give(1, &lap.into());
        let [Message::Apr(apr)] = lab.sent(1)[..] else {
            panic!("{status:?}: it is answered")
        };
        assert_eq!(apr.status, status);
    }
    // To the side that offers, in its own words.
    let turned = Lap {
        local_id: theirs,
        remote_id: ours,
        remote_qpn: Qpn::new(0x55),
        remote_lid: Lid(LIDS[0]),
        ..good
    };
    lab.give(0, &turned.into());
    let [Message::Apr(apr)] = lab.sent(0)[..] else {
        panic!("it is answered")
    };
    assert_eq!(apr.status, AprStatus::Rejected);
    // Answers that were not asked for, or are to another offer.
    let apr = Message::from(Apr {
        local_id: theirs,
        remote_id: ours,
        ..Apr::default()
    });
    lab.give(0, &apr);
    lab.cms[0].load_path(lab.now, active, &route(1)).unwrap();
    lab.give(0, &apr);
    let mad = apr.emit(TransactionId(7));
    lab.cms[0].handle(lab.now, other_of(0), &mad);
    assert!(obey(&mut lab, 0).is_empty() && obey(&mut lab, 1).is_empty());
    assert_eq!((lab.event(0), lab.event(1)), (None, None));
}
