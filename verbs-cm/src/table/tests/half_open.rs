//! Goal: strangers, whose addresses may be forged, neither take the places of others nor have this port
//! send to third parties. Method: a table that is asked by many, in virtual time; messages are counted. All
//! have the same size, so that they stand for bytes.

use std::net::Ipv4Addr;
use std::time::Duration;

use verbs_core::addr::{Gid, Guid, Qpn};
use verbs_core::mad::{Address, Blob, TimeCode, TransactionId};
use verbs_core::time::Instant;
use verbs_core::{Av, QpState};

use super::lab::{Lab, accept, connect};
use crate::machine::State;
use crate::wire::{
    Acknowledged, CommId, Dreq, Lap, Message, Mra, RejectReason, Rep, Req, Rtu, SidrReq,
};
use crate::{Accept, Config, ConnId, Event, Failure};

/// The address of a host that need not exist.
fn stranger(n: u32) -> (Gid, Address) {
    let gid = Gid::from(Ipv4Addr::from(0x0a63_0000 + n));
    (gid, Address::gsi(Av::to_gid(1, 1, gid)))
}

/// A REQ as stranger `n` would send it, for its queue pair of that number.
fn request(n: u32, qpn: u32) -> Req {
    let mut lab = Lab::new();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let Message::Req(mut req) = lab.sent(0)[0] else {
        panic!()
    };
    (req.local_id, req.qpn) = (CommId(qpn), Qpn::new(qpn));
    req.ca_guid = Guid(n.into());
    req.primary.local_gid = stranger(n).0;
    req
}

/// Gives host 1 a message of stranger `n`.
fn give(lab: &mut Lab, n: u32, message: &Message) {
    let mad = message.emit(TransactionId(u64::from(n)));
    lab.cms[1].handle(lab.now, stranger(n).1, &mad);
}

/// The same, for a REQ; the user accepts it.
fn forge(lab: &mut Lab, n: u32, qpn: u32) -> Option<ConnId> {
    give(lab, n, &request(n, qpn).into());
    take(lab, qpn)
}

/// The user of host 1 accepts the request that has come.
fn take(lab: &mut Lab, qpn: u32) -> Option<ConnId> {
    while let Some(event) = lab.event(1) {
        if let Event::ConnectRequest { conn, .. } = event {
            let qpn = Qpn::new(0x1_0000 + qpn);
            let accept = Accept { qpn, ..accept() };
            lab.cms[1].accept(lab.now, conn, &accept).unwrap();
            return Some(conn);
        }
    }
    None
}

/// Messages that host 1 sends to stranger `n` from now on, until it has forgotten it.
fn said_to_the_end(lab: &mut Lab) -> u32 {
    let mut said = lab.sent(1).len();
    while lab.cms[1].poll_timeout().is_some() {
        lab.fire(1);
        said += lab.sent(1).len();
    }
    u32::try_from(said).unwrap()
}

#[test]
fn a_request_is_answered_by_three_messages_at_most_whatever_the_user_does() {
    let users: [fn(&mut Lab, ConnId); 6] = [
        |lab, conn| lab.cms[1].accept(lab.now, conn, &accept()).unwrap(),
        |lab, conn| {
            for _ in 0..5 {
                lab.cms[1].delay(lab.now, conn, TimeCode::new(10)).unwrap();
            }
            lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
        },
        |lab, conn| {
            let reason = RejectReason::Consumer;
            let reject = lab.cms[1].reject(lab.now, conn, reason, &[], Blob::default());
            reject.unwrap();
        },
        |lab, conn| lab.cms[1].destroy(lab.now, conn).unwrap(),
        |lab, conn| {
            lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
            lab.sent(1);
            lab.fire(1);
            lab.cms[1].destroy(lab.now, conn).unwrap();
        },
        |lab, conn| {
            lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
            let change = lab.cms[1].poll_qp_change().unwrap();
            let failed = Err(verbs_core::Error::DeviceFailed);
            lab.cms[1].qp_modified(lab.now, change.conn, failed);
        },
    ];
    for (which, user) in users.into_iter().enumerate() {
        for repeats in 0..4 {
            let mut lab = Lab::new();
            let req = Message::from(request(7, 1));
            give(&mut lab, 7, &req);
            let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
                panic!()
            };
            user(&mut lab, conn);
            let mut said = u32::try_from(lab.sent(1).len()).unwrap();
            for _ in 0..repeats {
                give(&mut lab, 7, &req);
                said += u32::try_from(lab.sent(1).len()).unwrap();
            }
            said += said_to_the_end(&mut lab);
            let heard = 1 + repeats;
            assert!(said <= 3 * heard, "user {which}: {heard} got {said}");
            assert!(said > 0 && lab.cms[1].is_empty());
        }
    }
}

/// Goal: asking for more time does not use up what the answer needs. Method: a user that asks for it more often than
/// an unproven peer may be sent messages, and accepts then.
#[test]
fn a_user_that_takes_its_time_is_heard_all_the_same() {
    let mut lab = Lab::new();
    give(&mut lab, 7, &request(7, 1).into());
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    for _ in 0..5 {
        lab.cms[1].delay(lab.now, conn, TimeCode::new(10)).unwrap();
    }
    assert_eq!(lab.lose(1), ["MRA", "MRA"]);
    lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
    assert_eq!(lab.lose(1), ["REP"]);
}

#[test]
fn what_belongs_to_nothing_is_answered_once_at_most() {
    let mut lab = Lab::new();
    let messages: [Message; 6] = [
        Rep::default().into(),
        Rtu::default().into(),
        Message::Dreq(Dreq::default()),
        Message::Lap(Lap::default()),
        Message::SidrReq(SidrReq::default()),
        Mra::default().into(),
    ];
    for message in messages {
        give(&mut lab, 7, &message);
        let said = said_to_the_end(&mut lab);
        assert!(said <= 1, "{}: {said}", message.name());
    }
}

/// Goal: a peer that has confirmed, and whose confirmation got lost, is told of the end; one that names our id is asked
/// as often as it allows.
#[test]
fn a_peer_that_has_shown_itself_is_asked_as_often_as_it_allows() {
    let mut lab = Lab::new();
    let conn = forge(&mut lab, 7, 1).unwrap();
    let Message::Rep(rep) = lab.sent(1)[0] else {
        panic!()
    };
    assert_eq!(lab.fire_all(1), ["REP", "REJ"]);
    assert!(lab.cms[1].counters().unproven > 0);
    assert!(lab.state(1, conn).is_none());

    let conn = forge(&mut lab, 8, 2).unwrap();
    let again = lab.sent(1);
    let Message::Rep(Rep { local_id, .. }) = again[0] else {
        panic!("{again:?}")
    };
    assert_ne!(rep.local_id, local_id);
    let mra = Mra {
        local_id: CommId(2),
        remote_id: local_id,
        message: Acknowledged::Rep,
        service_timeout: TimeCode::new(10),
        private_data: Blob::default(),
    };
    give(&mut lab, 8, &mra.into());
    let said = lab.fire_all(1);
    assert_eq!(said.iter().filter(|name| **name == "REP").count(), 14);
    assert_eq!(said.last(), Some(&"REJ"));
    assert!(lab.state(1, conn).is_none());
}

/// Goal: forged REQs, each from another address, do not keep an honest client out, nor take memory.
#[test]
fn a_flood_of_forged_requests_lets_honest_clients_in() {
    let config = Config {
        connections_max: 24,
        half_open_max: 8,
        half_open_per_source_max: 4,
        timewait_max: 16,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    let mut n = 0;
    for honest in 0..12 {
        for _ in 0..50 {
            n += 1;
            forge(&mut lab, n, n);
            lab.sent(1);
        }
        lab.cms[0].connect(lab.now, connect(0x55 + honest)).unwrap();
        assert_eq!(lab.carry(0), ["REQ"]);
        let conn = take(&mut lab, 0x8000 + honest).expect("it is asked for");
        // Less than the limit come while the answer and its confirmation are on their way.
        let rep = lab.sent(1);
        for _ in 0..6 {
            n += 1;
            forge(&mut lab, n, n);
            lab.sent(1);
        }
        rep.iter().for_each(|rep| lab.give(0, rep));
        lab.exchange();
        assert_eq!(lab.state(1, conn), Some(State::Established), "{honest}");
        assert!(lab.cms[1].conns.len() <= 24 + 16);
    }
    assert_eq!(lab.cms[1].counters().refused, 0);
}

#[test]
fn the_oldest_gives_way_and_is_told() {
    let config = Config {
        half_open_max: 3,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    let conns = [1, 2, 3].map(|n| forge(&mut lab, n, n).unwrap());
    assert_eq!(lab.lose(1), ["REP", "REP", "REP"]);
    let changes = lab.changes.len();
    forge(&mut lab, 4, 4).unwrap();
    let why = Failure::GaveWay;
    let conn = conns[0];
    assert_eq!(lab.state(1, conn), Some(State::Timewait));
    let said = lab.sent(1);
    let [Message::Rej(rej), Message::Rep(_)] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(
        (rej.reason, rej.remote_id),
        (RejectReason::NoResources, CommId(1))
    );
    assert_eq!(lab.changes[changes], (1, QpState::Err));
    assert_eq!(lab.cms[1].counters().gave_way, 1);
    for conn in &conns[1..] {
        assert_eq!(lab.state(1, *conn), Some(State::RepSent));
    }
    // The event came before the next request.
    forge(&mut lab, 5, 5);
    let gone = lab.event(1);
    let conn = conns[1];
    assert!(
        gone.is_none() || gone == Some(Event::ConnectError { conn, why }),
        "{gone:?}"
    );
}

#[test]
fn a_source_that_floods_takes_its_own_places() {
    let config = Config {
        half_open_max: 100,
        half_open_per_source_max: 4,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    let other = forge(&mut lab, 1, 1).unwrap();
    for qpn in 2..60 {
        forge(&mut lab, 2, qpn).unwrap();
        lab.sent(1);
    }
    assert_eq!(lab.state(1, other), Some(State::RepSent));
    let open = |conn: &&crate::machine::Connection| conn.state() == State::RepSent;
    let conns = lab.cms[1].conns.iter().map(|(_, conn)| conn);
    assert_eq!(conns.filter(open).count(), 1 + 4);
}

#[test]
fn requests_that_wait_for_the_user_stay() {
    let config = Config {
        half_open_max: 2,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    for n in 1..=2 {
        give(&mut lab, n, &request(n, n).into());
        assert!(matches!(lab.event(1), Some(Event::ConnectRequest { .. })));
    }
    give(&mut lab, 3, &request(3, 3).into());
    let said = lab.sent(1);
    let [Message::Rej(rej)] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(rej.reason, RejectReason::NoResources);
    assert_eq!((lab.event(1), lab.cms[1].counters().refused), (None, 1));
}

/// Goal: what a REQ asks for does not decide how long it takes a place. Method: the longest timeouts and
/// the most repetitions that its fields have.
#[test]
fn half_open_connections_have_a_time_of_ours() {
    let long = |config: Config| {
        let mut lab = Lab::with(config);
        let mut req = request(7, 1);
        req.local_response_timeout = TimeCode::MAX;
        req.primary.ack_timeout = TimeCode::MAX;
        give(&mut lab, 7, &req.into());
        let conn = take(&mut lab, 1).unwrap();
        lab.sent(1);
        (lab, conn)
    };
    let config = Config::default();
    let (mut lab, conn) = long(config);
    let start = lab.now;
    while lab.state(1, conn) == Some(State::RepSent) {
        lab.fire(1);
    }
    assert_eq!(lab.now.since(start), config.half_open_time_max);
    assert_eq!(lab.lose(1), ["REJ"], "no repetition at the last moment");
    // Without that limit, each wait has one: of the peer's answer, and of its way.
    let hour = Duration::from_secs(3600);
    let (lab, _) = long(Config {
        half_open_time_max: hour,
        ..config
    });
    let wait = lab.cms[1].poll_timeout().unwrap().since(start);
    assert_eq!(wait, 2 * config.response_timeout_max.duration());
}

/// Goal: data go only to the peer that has asked. Method: a REQ whose path begins at a third party.
#[test]
fn a_path_from_elsewhere_is_refused() {
    let mut lab = Lab::new();
    let mut req = request(7, 1);
    req.primary.local_gid = stranger(8).0;
    give(&mut lab, 7, &req.into());
    let said = lab.sent(1);
    let [Message::Rej(rej)] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(rej.reason, RejectReason::PrimaryGid);
    assert_eq!(lab.event(1), None);
    assert!(lab.cms[1].is_empty() && lab.now > Instant::ZERO);
}
