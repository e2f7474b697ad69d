//! Connections being made, refused and given up.

use std::time::Duration;

use verbs_core::addr::{Lid, Mtu, Qpn};
use verbs_core::mad::sa::PathRecord;
use verbs_core::mad::{Bits, Blob, TimeCode};
use verbs_core::time::Instant;
use verbs_core::{Error, LinkLayer, QpState};

use super::lab::{Lab, SERVICE, accept, connect, gid, port};
use crate::machine::State;
use crate::wire::{CommId, Message, Rej, RejectReason, Rejected};
use crate::{Accept, CmError, Config, Connect, Event, Failure, Listen, Port, Route};

/// The REJ among messages, alone.
pub(super) fn the_rej(messages: &[Message]) -> Rej {
    match messages {
        [Message::Rej(rej)] => *rej,
        other => panic!("{other:?}"),
    }
}

#[test]
fn queue_pairs_are_ready_before_the_peer_is_told() {
    let mut lab = Lab::new();
    let [_, passive] = lab.requested();
    lab.cms[1].accept(lab.now, passive, &accept()).unwrap();
    assert!(
        lab.cms[1].poll_transmit().is_none(),
        "the REP waits for RTR"
    );
    let change = lab.cms[1].poll_qp_change().unwrap();
    assert_eq!(change.attr.state, Some(QpState::Rtr));
    assert!(
        lab.cms[1].poll_qp_change().is_none(),
        "one modify at a time"
    );
    lab.cms[1].qp_modified(lab.now, passive, Ok(()));
    assert_eq!(lab.carry(1), ["REP"]);
    assert_eq!(lab.carry(0), ["RTU"]);
    assert_eq!(lab.changes, [(0, QpState::Rtr), (0, QpState::Rts)]);
    assert!(lab.event(1).is_none(), "RTS comes first");
    lab.exchange();
    assert_eq!(lab.changes[2..], [(1, QpState::Rts)]);
    assert!(matches!(lab.event(1), Some(Event::Established { .. })));
}

/// Goal: what the table has to tell of its connections is told in memory that was reserved when each was made. Method:
/// many connections are made, and ended by the peer, without an event being fetched; where a connection's event has no
/// reserved room, `Connection::tell` panics, here and in all simulations.
#[test]
fn p7_events_are_reserved_with_the_connection() {
    let mut lab = Lab::new();
    let mut conns = Vec::new();
    for n in 0..8 {
        conns.push(lab.cms[0].connect(lab.now, connect(0x100 + n)).unwrap());
        lab.carry(0);
    }
    let room = lab.cms[0].out.events.capacity();
    for n in 0..8 {
        let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
            panic!("each asks");
        };
        let qpn = Qpn::new(0x200 + n);
        let answer = Accept { qpn, ..accept() };
        lab.cms[1].accept(lab.now, conn, &answer).unwrap();
    }
    lab.exchange();
    for conn in conns {
        lab.cms[0]
            .disconnect(lab.now, conn, Blob::default())
            .unwrap();
    }
    lab.exchange();
    let out = &lab.cms[0].out;
    assert!(out.events.len() >= 16, "{} wait", out.events.len());
    assert_eq!(out.events.capacity(), room);
}

#[test]
fn attributes_go_across() {
    let mut lab = Lab::new();
    let mut wish = connect(0x55);
    (wish.responder_resources, wish.initiator_depth) = (3, 9);
    lab.cms[0].connect(lab.now, wish).unwrap();
    lab.carry(0);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    let mut answer = accept();
    (answer.responder_resources, answer.initiator_depth) = (5, 16);
    answer.private_data = Blob::new(b"welcome").unwrap();
    assert_eq!(lab.cms[1].qp_attrs(conn), None, "it is not accepted yet");
    let attrs = lab.cms[1].qp_attrs_if(conn, &answer);
    lab.cms[1].accept(lab.now, conn, &answer).unwrap();
    assert_eq!((lab.cms[1].qp_attrs(conn), attrs.is_some()), (attrs, true));
    let rtr = lab.cms[1].poll_qp_change().unwrap().attr;
    assert_eq!(attrs.map(|[rtr, _]| rtr), Some(rtr));
    // Each side says where the other is to begin.
    assert_eq!(
        (rtr.dest_qpn, rtr.rq_psn),
        (Some(wish.qpn), Some(answer.psn))
    );
    assert_eq!(
        (rtr.max_dest_rd_atomic, rtr.path_mtu),
        (Some(5), Some(Mtu::B1024))
    );
    assert_eq!(rtr.av.unwrap().global.unwrap().dgid, gid(0));
    lab.cms[1].qp_modified(lab.now, conn, Ok(()));
    lab.carry(1);
    let rtr = lab.cms[0].poll_qp_change().unwrap();
    let attrs = lab.cms[0].qp_attrs(rtr.conn);
    assert_eq!(attrs.map(|[rtr, _]| rtr), Some(rtr.attr));
    assert_eq!(lab.cms[0].qp_attrs_if(rtr.conn, &answer), None, "it asks");
    assert_eq!(
        lab.cms[0]
            .private_data(rtr.conn)
            .map(|data| data.0[..196].to_vec()),
        Some(answer.private_data.0.to_vec())
    );
    assert_eq!(
        (rtr.attr.dest_qpn, rtr.attr.rq_psn),
        (Some(answer.qpn), Some(wish.psn))
    );
    assert_eq!(
        rtr.attr.max_dest_rd_atomic,
        Some(3),
        "no more than was offered"
    );
    lab.cms[0].qp_modified(lab.now, rtr.conn, Ok(()));
    let rts = lab.cms[0].poll_qp_change().unwrap().attr;
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (Some(answer.psn), Some(5)));
    assert_eq!(
        (rts.timeout, rts.retry_cnt, rts.rnr_retry),
        (Some(19), Some(7), Some(7))
    );
}

#[test]
fn a_peer_that_wants_more_than_it_was_offered_gets_what_it_was_offered() {
    let mut lab = Lab::new();
    let (_, rep) = lab.replied();
    let Message::Rep(mut rep) = rep else { panic!() };
    (rep.initiator_depth, rep.responder_resources) = (200, 200);
    lab.give(0, &rep.into());
    let rtr = lab.cms[0].poll_qp_change().unwrap();
    assert_eq!(rtr.attr.max_dest_rd_atomic, Some(1));
    lab.cms[0].qp_modified(lab.now, rtr.conn, Ok(()));
    let rts = lab.cms[0].poll_qp_change().unwrap();
    assert_eq!(rts.attr.max_rd_atomic, Some(1));
}

/// Goal: on ports with several LIDs, both ends send from the LID that the other one expects. Method: a path between
/// LIDs that are not the first of their ports.
#[test]
fn paths_between_any_lids_of_two_ports_are_taken() {
    let port = |host: usize| Port {
        link_layer: LinkLayer::InfiniBand,
        lid: Lid(16 + 16 * u16::try_from(host).unwrap()),
        ..port(host)
    };
    let record = PathRecord {
        sgid: gid(0),
        dgid: gid(1),
        slid: Lid(17),
        dlid: Lid(35),
        mtu: Bits::truncated(2),
        ..PathRecord::default()
    };
    let route = Route::from_record(&port(0), &record, 0).unwrap();
    assert_eq!((route.av.dlid, route.av.src_path_bits), (Lid(35), 1));
    let mut lab = Lab::new();
    lab.cms = [0, 1].map(|host| crate::Cm::new(Config::default(), port(host), 2, 7));
    lab.cms[1].listen(Listen::new(SERVICE)).unwrap();
    let wish = Connect {
        route,
        ..connect(0x55)
    };
    lab.cms[0].connect(lab.now, wish).unwrap();
    lab.carry(0);
    let Some(Event::ConnectRequest { conn, req, .. }) = lab.event(1) else {
        panic!()
    };
    let path = req.primary;
    assert_eq!((path.local_lid, path.remote_lid), (Lid(17), Lid(35)));
    lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
    let av = lab.cms[1].poll_qp_change().unwrap().attr.av.unwrap();
    assert_eq!((av.dlid, av.src_path_bits), (Lid(17), 3));
    // A LID that cannot be the port's says nothing.
    let strange = PathRecord {
        slid: Lid(15),
        ..record
    };
    let route = Route::from_record(&port(0), &strange, 0).unwrap();
    assert_eq!(route.av.src_path_bits, 0);
}

/// Goal: on InfiniBand the way to the peer is the path that the subnet administrator gave. Method: a
/// path record within the subnet, and one across a router.
#[test]
fn paths_of_the_subnet_administrator_are_taken() {
    for hop_limit in [0, 64] {
        let port = |host: usize| Port {
            link_layer: LinkLayer::InfiniBand,
            lid: Lid(11 + u16::try_from(host).unwrap()),
            ..port(host)
        };
        let record = PathRecord {
            sgid: gid(0),
            dgid: gid(1),
            slid: Lid(11),
            dlid: Lid(12),
            sl: Bits::truncated(3),
            hop_limit,
            mtu: Bits::truncated(2),
            packet_lifetime: Bits::truncated(14),
            ..PathRecord::default()
        };
        let route = Route::from_record(&port(0), &record, 4).unwrap();
        assert_eq!((route.address().pkey_index, route.mtu), (4, Mtu::B512));
        let mut lab = Lab::new();
        lab.cms = [0, 1].map(|host| crate::Cm::new(Config::default(), port(host), 2, 7));
        lab.cms[1].listen(Listen::new(SERVICE)).unwrap();
        let wish = Connect {
            route,
            ..connect(0x55)
        };
        lab.cms[0].connect(lab.now, wish).unwrap();
        lab.carry(0);
        let Some(Event::ConnectRequest { conn, req, .. }) = lab.event(1) else {
            panic!()
        };
        assert_eq!(
            (req.primary.local_lid, req.primary.remote_lid),
            (Lid(11), Lid(12))
        );
        lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
        let rtr = lab.cms[1].poll_qp_change().unwrap().attr;
        let av = rtr.av.unwrap();
        assert_eq!(
            (av.dlid, av.sl, rtr.path_mtu),
            (Lid(11), 3, Some(Mtu::B512))
        );
        assert_eq!(
            av.global.map(|global| global.dgid),
            (hop_limit > 1).then_some(gid(0))
        );
    }
    let other = PathRecord {
        sgid: gid(1),
        ..PathRecord::default()
    };
    assert_eq!(Route::from_record(&port(0), &other, 0), None);
}

#[test]
fn a_lost_request_is_sent_again_until_there_is_no_hope() {
    let mut lab = Lab::new();
    let mut wish = connect(0x55);
    wish.max_cm_retries = Bits::truncated(2);
    let conn = lab.cms[0].connect(lab.now, wish).unwrap();
    assert_eq!(lab.lose(0), ["REQ"]);
    assert_eq!(lab.fire_all(0), ["REQ", "REQ", "REJ"]);
    assert_eq!(lab.event(0), Some(Event::Unreachable { conn }));
    assert_eq!((lab.event(0), lab.state(0, conn)), (None, None));
    lab.finish();
}

/// The REQ is repeated evenly within the time that its user has, and often enough; what the peer is asked
/// for, and what follows the answer, stays as it is.
#[test]
fn a_request_is_given_up_within_its_time() {
    for (millis, sends) in [(100, 5), (5_000, 5), (12_000, 12), (60_000, 16)] {
        let mut lab = Lab::new();
        let timeout = Duration::from_millis(millis);
        let mut wish = connect(0x55);
        wish.timeout = Some(timeout);
        let conn = lab.cms[0].connect(lab.now, wish).unwrap();
        assert_eq!(lab.lose(0), ["REQ"]);
        let begun = lab.now;
        let mut sent = lab.fire_all(0);
        assert_eq!(sent.pop(), Some("REJ"));
        assert_eq!(sent, vec!["REQ"; sends - 1], "in {timeout:?}");
        assert_eq!(lab.event(0), Some(Event::Unreachable { conn }));
        assert!(lab.now.since(begun) <= timeout, "{:?}", lab.now);
        assert!(lab.now.since(begun) * 100 >= timeout * 99, "{:?}", lab.now);
        lab.finish();
    }
    // One that is longer than the peer's own time changes nothing.
    let mut lab = Lab::new();
    let mut wish = connect(0x55);
    (wish.max_cm_retries, wish.timeout) = (Bits::truncated(1), Some(Duration::from_secs(600)));
    let _ = lab.cms[0].connect(lab.now, wish).unwrap();
    assert_eq!(lab.lose(0), ["REQ"]);
    assert_eq!(lab.fire_all(0), ["REQ", "REJ"]);
    lab.finish();
}

#[test]
fn a_withdrawn_request_is_found_by_guid() {
    let mut lab = Lab::new();
    let [active, passive] = lab.requested();
    lab.cms[0].destroy(lab.now, active).unwrap();
    let rej = the_rej(&lab.sent(0));
    assert_eq!(
        (rej.remote_id, rej.reason),
        (CommId(0), RejectReason::Timeout)
    );
    lab.give(1, &rej.into());
    match lab.event(1) {
        Some(Event::Rejected {
            conn,
            reason: RejectReason::Timeout,
            ..
        }) if conn == passive => {}
        other => panic!("{other:?}"),
    }
    let late = lab.cms[1].accept(lab.now, passive, &accept());
    assert_eq!(late, Err(CmError::State(State::Timewait)));
    lab.finish();
}

#[test]
fn a_repeated_request_gets_the_answer_again() {
    let mut lab = Lab::new();
    let active = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let req = lab.sent(0)[0];
    lab.give(1, &req);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    lab.give(1, &req);
    assert_eq!(
        (lab.lose(1), lab.event(1)),
        (vec![], None),
        "the user is asked once"
    );
    lab.cms[1].delay(lab.now, conn, TimeCode::new(20)).unwrap();
    assert_eq!(lab.lose(1), ["MRA"]);
    lab.give(1, &req);
    assert_eq!(lab.lose(1), ["MRA"]);
    lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
    assert_eq!(lab.lose(1), ["REP"]);
    lab.give(1, &req);
    assert_eq!(lab.carry(1), ["REP"]);
    lab.exchange();
    assert_eq!(lab.state(0, active), Some(State::Established));
    lab.give(1, &req);
    assert_eq!(lab.lose(1), [""; 0], "that one is old");
}

#[test]
fn a_repeated_request_is_rejected_again() {
    let mut lab = Lab::new();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let req = lab.sent(0)[0];
    lab.give(1, &req);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    let data = Blob::new(b"go away").unwrap();
    lab.cms[1]
        .reject(lab.now, conn, RejectReason::Consumer, b"why", data)
        .unwrap();
    let first = the_rej(&lab.sent(1));
    assert_eq!((first.info_len.value(), first.message), (3, Rejected::Req));
    lab.give(1, &req);
    assert_eq!((the_rej(&lab.sent(1)), lab.event(1)), (first, None));
    lab.give(0, &first.into());
    match lab.event(0) {
        Some(Event::Rejected {
            reason: RejectReason::Consumer,
            private_data,
            info,
            ..
        }) => {
            assert_eq!((private_data, info), (data, Blob::new(b"why").unwrap()));
        }
        other => panic!("{other:?}"),
    }
    // The rejected side may use its queue pair again at once.
    let again = lab.requested();
    assert!(lab.state(1, again[1]).is_some());
    lab.cms[1].destroy(lab.now, again[1]).unwrap();
    lab.finish();
}

/// Goal: a peer that goes on asking goes on being told. Method: a request that is repeated just before its
/// reject would be forgotten, and once more after that time.
#[test]
fn a_repetition_prolongs_the_memory_of_a_reject() {
    let mut lab = Lab::new();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let req = lab.sent(0)[0];
    lab.give(1, &req);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    let reason = RejectReason::Consumer;
    lab.cms[1]
        .reject(lab.now, conn, reason, b"", Blob::default())
        .unwrap();
    let first = the_rej(&lab.sent(1));
    let mut ends = lab.cms[1].poll_timeout().unwrap();
    for _ in 0..3 {
        lab.now = Instant::from_nanos(ends.as_nanos() - 1);
        lab.give(1, &req);
        assert_eq!((the_rej(&lab.sent(1)), lab.event(1)), (first, None));
        lab.cms[1].handle_timeout(ends);
        let later = lab.cms[1].poll_timeout().expect("it is remembered");
        assert!(later > ends);
        ends = later;
    }
}

#[test]
fn a_repeated_reply_gets_the_confirmation_again() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    lab.give(0, &rep);
    assert_eq!(lab.lose(0), ["RTU"]);
    assert_eq!(lab.state(1, conns[1]), Some(State::RepSent));
    lab.fire(1);
    assert_eq!((lab.carry(1), lab.carry(0)), (vec!["REP"], vec!["RTU"]));
    lab.exchange();
    assert_eq!(lab.state(1, conns[1]), Some(State::Established));
}

#[test]
fn data_stand_for_a_lost_confirmation() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    lab.give(0, &rep);
    assert_eq!(lab.lose(0), ["RTU"]);
    lab.cms[1]
        .communication_established(lab.now, conns[1])
        .unwrap();
    lab.exchange();
    assert!(matches!(lab.event(1), Some(Event::Established { .. })));
    let again = lab.cms[1].communication_established(lab.now, conns[1]);
    assert_eq!(again, Err(CmError::State(State::Established)));
}

#[test]
fn a_reply_that_nobody_confirms_is_taken_back_and_the_other_end_learns_of_it() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    lab.give(0, &rep);
    assert_eq!(lab.lose(0), ["RTU"]);
    while lab.state(1, conns[1]) == Some(State::RepSent) {
        lab.fire(1);
        let sent = lab.sent(1);
        if let [Message::Rej(rej)] = sent[..] {
            assert_eq!(rej.reason, RejectReason::Timeout);
            lab.give(0, &sent[0]);
        }
    }
    let why = Failure::NoConfirmation;
    assert_eq!(
        lab.event(1),
        Some(Event::ConnectError {
            conn: conns[1],
            why
        })
    );
    assert!(matches!(lab.event(0), Some(Event::Established { .. })));
    assert_eq!(
        lab.event(0),
        Some(Event::Disconnected {
            conn: conns[0],
            by: crate::Ended::Failed
        })
    );
    lab.finish();
    assert_eq!(lab.event(0), Some(Event::TimewaitExit { conn: conns[0] }));
    assert_eq!(
        lab.changes[lab.changes.len() - 2..],
        [(1, QpState::Err), (0, QpState::Err)]
    );
}

#[test]
fn more_time_is_given_but_not_for_ever() {
    let mut lab = Lab::new();
    let [active, passive] = lab.requested();
    let usual = lab.cms[0].poll_timeout().unwrap();
    lab.cms[1].delay(lab.now, passive, TimeCode::MAX).unwrap();
    let mra = lab.sent(1)[0];
    lab.give(0, &mra);
    assert_eq!(lab.state(0, active), Some(State::ReqMraRcvd));
    let longer = lab.cms[0].poll_timeout().unwrap();
    let most = Config::default().service_timeout_max.duration();
    assert_eq!(longer.since(usual), most, "2.4 hours are cut");
    for _ in 0..20 {
        lab.give(0, &mra);
    }
    assert_eq!(
        lab.cms[0].counters().unexpected,
        6,
        "each one took one of 15 retries"
    );
    lab.cms[1].accept(lab.now, passive, &accept()).unwrap();
    lab.exchange();
    assert_eq!(lab.state(0, active), Some(State::Established));
}

#[test]
fn failing_queue_pairs_end_the_attempt_at_both_ends() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    lab.give(0, &rep);
    let change = lab.cms[0].poll_qp_change().unwrap();
    lab.cms[0].qp_modified(lab.now, change.conn, Err(Error::DeviceFailed));
    let why = Failure::QueuePair(Error::DeviceFailed);
    assert_eq!(
        lab.event(0),
        Some(Event::ConnectError {
            conn: conns[0],
            why
        })
    );
    let rej = the_rej(&lab.sent(0));
    assert_eq!(
        (rej.message, rej.reason),
        (Rejected::Rep, RejectReason::NoQp)
    );
    lab.fire(1);
    assert_eq!(lab.carry(1), ["REP"]);
    assert_eq!(
        the_rej(&lab.sent(0)),
        rej,
        "a repeated REP is rejected again"
    );
    lab.give(1, &rej.into());
    assert!(matches!(lab.event(1), Some(Event::Rejected { .. })));
    lab.finish();
}

/// Goal: what the peer says with its confirmation is there for the user. Method: an RTU with private data.
#[test]
fn the_data_of_the_confirmation_is_kept() {
    let mut lab = Lab::new();
    let ([_, conn], rep) = lab.replied();
    let Message::Rep(rep) = rep else { panic!() };
    let rtu = crate::wire::Rtu {
        local_id: rep.remote_id,
        remote_id: rep.local_id,
        private_data: Blob::new(b"ready").unwrap(),
    };
    lab.give(1, &rtu.into());
    let told = lab.cms[1].private_data(conn);
    assert_eq!(
        told.map(|data| data.0[..5].to_vec()),
        Some(b"ready".to_vec())
    );
}
