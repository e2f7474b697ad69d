//! Connections being ended.

use verbs_core::addr::{Gid, Qpn};
use verbs_core::mad::{Address, Blob, TimeCode};
use verbs_core::{Av, QpState};

use super::lab::{Lab, accept, connect, port};
use crate::machine::State;
use crate::wire::{AprStatus, CommId, Dreq, Lap, Message, RejectReason, Rejected, Rep, Rtu};
use crate::{CmError, Config, Ended, Event, Failure};

#[test]
fn a_connection_is_ended_by_one_side_and_both_are_told() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.changes.clear();
    lab.disconnect(1, conns[1]);
    assert_eq!((lab.carry(1), lab.carry(0)), (vec!["DREQ"], vec!["DREP"]));
    assert_eq!(lab.changes, [(1, QpState::Err), (0, QpState::Err)]);
    for (host, conn, by) in [(0, conns[0], Ended::Peer), (1, conns[1], Ended::Here)] {
        assert_eq!(lab.event(host), Some(Event::Disconnected { conn, by }));
        assert_eq!(lab.state(host, conn), Some(State::Timewait));
    }
    lab.finish();
    for (host, conn) in [0, 1].into_iter().zip(conns) {
        assert_eq!(lab.event(host), Some(Event::TimewaitExit { conn }));
        assert_eq!(
            (lab.event(host), lab.cms[host].destroy(lab.now, conn)),
            (None, Err(CmError::Stale))
        );
    }
}

/// Goal: a user that finds work flushed can tell why. Method: at either end, the machine is asked when it has said that the
/// queue pair is to go to ERR, and the modify has not been issued.
#[test]
fn who_ended_a_connection_is_known_before_its_queue_pair_is_in_error() {
    let mut lab = Lab::new();
    let conns = lab.established();
    assert_eq!(
        [0, 1].map(|host| lab.cms[host].ended(conns[host])),
        [None; 2]
    );
    lab.disconnect(0, conns[0]);
    assert_eq!(lab.cms[0].ended(conns[0]), Some(Ended::Here));
    let (_, dreq) = lab.cms[0].poll_transmit().unwrap();
    lab.give(1, &Message::parse(&dreq).unwrap().1);
    assert_eq!(lab.cms[1].ended(conns[1]), Some(Ended::Peer));
    for cm in &mut lab.cms {
        let change = cm
            .poll_qp_change()
            .expect("its modify is still to be issued");
        assert_eq!(change.attr.state, Some(QpState::Err));
    }
}

#[test]
fn timewait_is_as_long_as_packets_may_be_under_way_and_waits_for_the_queue_pair() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.disconnect(0, conns[0]);
    // The modify to ERR is under way and does not end.
    let change = lab.cms[0].poll_qp_change().unwrap();
    let (_, dreq) = lab.cms[0].poll_transmit().unwrap();
    lab.give(1, &Message::parse(&dreq).unwrap().1);
    lab.carry(1);
    let way = lab.cms[0].poll_timeout().unwrap().since(lab.now);
    assert_eq!(way, TimeCode::new(19).duration());
    lab.fire(0);
    assert_eq!(lab.state(0, conns[0]), Some(State::Timewait));
    lab.cms[0].qp_modified(lab.now, change.conn, Ok(()));
    lab.fire(0);
    assert_eq!(lab.state(0, conns[0]), None);
}

#[test]
fn a_disconnect_for_another_queue_pair_is_ignored() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.disconnect(0, conns[0]);
    let Message::Dreq(mut dreq) = lab.sent(0)[0] else {
        panic!()
    };
    dreq.remote_qpn = Qpn::new(0x98);
    lab.give(1, &dreq.into());
    assert_eq!((lab.lose(1), lab.event(1)), (vec![], None));
    assert_eq!(lab.state(1, conns[1]), Some(State::Established));
}

#[test]
fn disconnects_cross() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.disconnect(0, conns[0]);
    lab.disconnect(1, conns[1]);
    let (one, other) = (lab.sent(0), lab.sent(1));
    lab.give(1, &one[0]);
    lab.give(0, &other[0]);
    assert_eq!((lab.carry(0), lab.carry(1)), (vec!["DREP"], vec!["DREP"]));
    for (host, conn) in [0, 1].into_iter().zip(conns) {
        assert_eq!(
            (lab.event(host), lab.event(host)),
            (
                Some(Event::Disconnected {
                    conn,
                    by: Ended::Here
                }),
                None
            )
        );
    }
    lab.finish();
}

#[test]
fn a_lost_answer_is_given_again_also_when_all_is_forgotten() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.disconnect(0, conns[0]);
    lab.carry(0);
    assert_eq!(lab.lose(1), ["DREP"]);
    lab.fire(0);
    assert_eq!((lab.carry(0), lab.lose(1)), (vec!["DREQ"], vec!["DREP"]));
    lab.fire_all(1);
    assert!(lab.cms[1].is_empty());
    lab.fire(0);
    let dreq = lab.sent(0);
    lab.give(1, &dreq[0]);
    assert_eq!(lab.carry(1), ["DREP"]);
    assert_eq!(lab.state(0, conns[0]), Some(State::Timewait));
    assert_eq!(lab.cms[1].counters().unknown_conn, 1);
}

#[test]
fn nobody_answers_a_disconnect() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.disconnect(0, conns[0]);
    let sent = lab.fire_all(0);
    assert_eq!(sent, vec!["DREQ"; 16], "one, and 15 retries");
    assert_eq!(
        lab.event(0),
        Some(Event::Disconnected {
            conn: conns[0],
            by: Ended::Here
        })
    );
    assert_eq!(lab.event(0), Some(Event::TimewaitExit { conn: conns[0] }));
}

#[test]
fn a_disconnect_overtakes_the_confirmation() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    lab.give(0, &rep);
    assert_eq!(lab.lose(0), ["RTU"]);
    lab.disconnect(0, conns[0]);
    lab.exchange();
    let why = Failure::PeerDisconnected;
    assert_eq!(
        lab.event(1),
        Some(Event::ConnectError {
            conn: conns[1],
            why
        })
    );
    lab.finish();
    assert_eq!(lab.event(1), None);
}

/// Goal: a queue pair that goes wrong late does not leave the peer alone. Method: the passive side's
/// RTS fails when the active one is established.
#[test]
fn a_failure_after_the_confirmation_disconnects() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    lab.give(0, &rep);
    lab.carry(0);
    let change = lab.cms[1].poll_qp_change().unwrap();
    assert_eq!(change.attr.state, Some(QpState::Rts));
    let error = verbs_core::Error::DeviceFailed;
    lab.cms[1].qp_modified(lab.now, conns[1], Err(error));
    let why = Failure::QueuePair(error);
    assert_eq!(
        lab.event(1),
        Some(Event::ConnectError {
            conn: conns[1],
            why
        })
    );
    assert_eq!(lab.carry(1), ["DREQ"]);
    lab.finish();
    let events: Vec<_> = std::iter::from_fn(|| lab.event(0)).collect();
    assert_eq!(
        events[1..],
        [
            Event::Disconnected {
                conn: conns[0],
                by: Ended::Peer
            },
            Event::TimewaitExit { conn: conns[0] },
        ]
    );
}

/// Goal: after destroy there are no events and no modifies, and the peer learns of it. Method:
/// destroy at each step of a connection, at either end.
#[test]
fn destroy_is_silent_here_and_heard_there() {
    for host in 0..2 {
        for step in 0..5 {
            let mut lab = Lab::new();
            let conns = match step {
                0 => lab.requested(),
                1 => lab.replied().0,
                2 => {
                    let (conns, rep) = lab.replied();
                    lab.give(0, &rep);
                    conns
                }
                3 => lab.established(),
                _ => {
                    let conns = lab.established();
                    lab.disconnect(0, conns[0]);
                    lab.carry(0);
                    conns
                }
            };
            lab.cms[host].destroy(lab.now, conns[host]).unwrap();
            assert_eq!(lab.cms[host].poll_qp_change(), None);
            if host == 0 && step == 0 {
                // It has not sent anything else yet, and the passive user has not answered.
                lab.exchange();
            }
            lab.finish();
            assert_eq!(lab.event(host), None, "host {host}, step {step}");
            let last = std::iter::from_fn(|| lab.event(1 - host)).last();
            let is_told = matches!(
                last,
                Some(
                    Event::Rejected { .. }
                        | Event::ConnectError { .. }
                        | Event::TimewaitExit { .. }
                )
            );
            assert!(is_told, "host {host}, step {step}: {last:?}");
        }
    }
}

#[test]
fn a_peer_that_has_forgotten_ends_the_old_connection() {
    let mut lab = Lab::new();
    let conns = lab.established();
    // The active host starts again, and its queue pair numbers begin from the start as well.
    lab.cms[0] = crate::Cm::new(Config::default(), port(0), 2, 99);
    let again = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    lab.carry(0);
    let sent = lab.sent(1);
    match sent[..] {
        [Message::Dreq(dreq), Message::Rej(rej)] => {
            assert_eq!(
                (dreq.remote_qpn, rej.reason),
                (Qpn::new(0x55), RejectReason::StaleConnection)
            );
        }
        _ => panic!("{sent:?}"),
    }
    lab.give(0, &sent[0]);
    assert_eq!(
        lab.carry(0),
        ["DREP"],
        "the new host knows nothing of the old connection"
    );
    assert_eq!(
        lab.event(1),
        Some(Event::Disconnected {
            conn: conns[1],
            by: Ended::Failed
        })
    );
    lab.cms[0].destroy(lab.now, again).unwrap();
    lab.finish();
}

/// Goal: a port cannot end the connections of another one. Method: a request that names the queue
/// pair of a connection, from elsewhere.
#[test]
fn a_stranger_does_not_end_a_connection() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let req = lab.sent_mads(0)[0];
    let stranger = Address::gsi(Av::to_gid(1, 1, Gid([7; 16])));
    lab.cms[1].handle(lab.now, stranger, &req);
    assert_eq!(lab.lose(1), ["REJ"]);
    assert_eq!(lab.state(1, conns[1]), Some(State::Established));
}

#[test]
fn a_reply_from_a_connected_queue_pair_is_stale() {
    let mut lab = Lab::new();
    let old = lab.established();
    let new = lab.cms[0].connect(lab.now, connect(0x56)).unwrap();
    lab.carry(0);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    // The same queue pair once more.
    lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
    lab.carry(1);
    let why = Failure::Stale;
    assert_eq!(lab.event(0), Some(Event::ConnectError { conn: new, why }));
    assert_eq!(lab.state(0, old[0]), Some(State::DreqSent));
    lab.exchange();
    assert!(matches!(
        lab.event(1),
        Some(Event::Rejected {
            reason: RejectReason::StaleConnection,
            ..
        })
    ));
    lab.finish();
}

#[test]
fn messages_for_nothing_get_an_answer_that_ends_the_matter_or_none() {
    let mut lab = Lab::new();
    let ids = (CommId(5), CommId(6));
    let rep = Rep {
        local_id: ids.0,
        remote_id: ids.1,
        ..Rep::default()
    };
    lab.give(0, &rep.into());
    let Message::Rej(rej) = lab.sent(0)[0] else {
        panic!()
    };
    assert_eq!(
        (rej.remote_id, rej.message, rej.reason),
        (ids.0, Rejected::Rep, RejectReason::InvalidCommId)
    );
    let dreq = Dreq {
        local_id: ids.0,
        remote_id: ids.1,
        ..Dreq::default()
    };
    lab.give(0, &dreq.into());
    let Message::Drep(drep) = lab.sent(0)[0] else {
        panic!()
    };
    assert_eq!((drep.local_id, drep.remote_id), (ids.1, ids.0));
    for message in [Rtu::default().into(), rej.into(), drep.into()] {
        lab.give(0, &message);
        assert_eq!(lab.lose(0), [""; 0], "{message:?}");
    }
}

/// Goal: a program that ends leaves no peer waiting. Method: all connections are ended, each at another
/// point of its making; both ends hear of it at once.
#[test]
fn ending_all_connections_tells_every_peer() {
    let points: [fn(&mut Lab); 4] = [
        |lab| {
            lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
        },
        |lab| {
            lab.requested();
        },
        |lab| {
            lab.replied();
        },
        |lab| {
            lab.established();
        },
    ];
    for (point, reach) in points.into_iter().enumerate() {
        for host in 0..2 {
            let mut lab = Lab::new();
            reach(&mut lab);
            lab.exchange();
            let told = |lab: &mut Lab, host: usize| {
                let events: Vec<_> = std::iter::from_fn(|| lab.event(host)).collect();
                events.into_iter().any(|event| {
                    matches!(
                        event,
                        Event::ConnectError { .. }
                            | Event::Rejected { .. }
                            | Event::Disconnected { .. }
                    )
                })
            };
            lab.cms[host].disconnect_all(lab.now);
            lab.exchange();
            for end in 0..2 {
                assert!(told(&mut lab, end), "{point}: {host} tells, not {end}");
            }
            let open = |cm: &crate::Cm| {
                let open = |conn: &crate::machine::Connection| conn.state() != State::Timewait;
                cm.conns.iter().filter(|(_, conn)| open(conn)).count()
            };
            assert_eq!(lab.cms.each_ref().map(open), [0, 0], "{point} {host}");
            lab.finish();
        }
    }
}

#[test]
fn alternate_paths_are_not_supported() {
    let mut lab = Lab::new();
    lab.established();
    let mut answer = |local_id, remote_id| {
        lab.give(
            1,
            &Lap {
                local_id,
                remote_id,
                ..Lap::default()
            }
            .into(),
        );
        match lab.sent(1)[..] {
            [Message::Apr(apr)] => apr.status,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(CommId(1), CommId(2)), AprStatus::InvalidCommId);
    let conn = lab.cms[1].conns.iter().next().unwrap().1;
    let (local, remote) = (conn.local_id(), conn.remote_id().unwrap());
    let mut answer = |local_id, remote_id| {
        lab.give(
            1,
            &Lap {
                local_id,
                remote_id,
                ..Lap::default()
            }
            .into(),
        );
        lab.sent(1)[0]
    };
    let Message::Apr(apr) = answer(remote, local) else {
        panic!()
    };
    assert_eq!(apr.status, AprStatus::Unsupported);
}

#[test]
fn too_many_in_timewait_leave_early_the_oldest_first() {
    let mut lab = Lab::with(Config {
        timewait_max: 1,
        ..Config::default()
    });
    let first = lab.established();
    lab.disconnect(0, first[0]);
    lab.exchange();
    let second = lab.cms[0].connect(lab.now, connect(0x60)).unwrap();
    lab.carry(0);
    let conn = loop {
        if let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) {
            break conn;
        }
    };
    let mut answer = accept();
    answer.qpn = Qpn::new(0x9a);
    lab.cms[1].accept(lab.now, conn, &answer).unwrap();
    lab.exchange();
    lab.now += std::time::Duration::from_millis(1);
    lab.cms[0]
        .disconnect(lab.now, second, Blob::default())
        .unwrap();
    lab.exchange();
    assert_eq!(lab.state(0, first[0]), None);
    assert_eq!(lab.state(0, second), Some(State::Timewait));
    assert_eq!(lab.cms[0].counters().timewait_cut, 1);
    let events: Vec<_> = std::iter::from_fn(|| lab.event(0)).collect();
    assert!(events.contains(&Event::TimewaitExit { conn: first[0] }));
}

/// Goal: a peer that gets rejected again and again does not shorten the timewait of others. Method:
/// room for one, an ended connection in it, then a reject.
#[test]
fn rejected_ones_leave_timewait_first() {
    let mut lab = Lab::with(Config {
        timewait_max: 1,
        ..Config::default()
    });
    let conns = lab.established();
    lab.disconnect(0, conns[0]);
    lab.exchange();
    assert_eq!(
        lab.event(1),
        Some(Event::Disconnected {
            conn: conns[1],
            by: Ended::Peer
        })
    );
    lab.cms[0].connect(lab.now, connect(0x60)).unwrap();
    lab.carry(0);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    let reason = RejectReason::Consumer;
    lab.cms[1]
        .reject(lab.now, conn, reason, b"", Blob::default())
        .unwrap();
    assert_eq!(lab.state(1, conn), None);
    assert_eq!(lab.state(1, conns[1]), Some(State::Timewait));
}
