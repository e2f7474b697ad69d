//! How long is waited for what: answers, packets under way, repetitions of what was rejected.

use verbs_core::mad::{Blob, TimeCode};

use super::lab::{Lab, accept, connect, port};
use crate::machine::State;
use crate::wire::{Acknowledged, CommId, Message, Mra, RejectReason};

/// Goal: more time is given for the message that is waited for, and for no other. Method: MRAs that name the REP to
/// one end whose REQ is not answered, and the REQ to one whose REP is not.
#[test]
fn more_time_is_for_the_message_that_it_names() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    let Message::Rep(rep) = rep else { panic!() };
    let ids = [rep.remote_id, rep.local_id];
    for (host, wrong, right) in [
        (0, Acknowledged::Rep, Acknowledged::Req),
        (1, Acknowledged::Req, Acknowledged::Rep),
    ] {
        let before = lab.cms[host].poll_timeout();
        let mra = |message| {
            let remote = if host == 0 { CommId(9) } else { ids[0] };
            Message::from(Mra {
                local_id: remote,
                remote_id: ids[host],
                message,
                service_timeout: TimeCode::new(24),
                private_data: Blob::default(),
            })
        };
        lab.give(host, &mra(wrong));
        assert_eq!(lab.cms[host].poll_timeout(), before);
        assert_eq!(lab.cms[host].counters().unexpected, 1);
        lab.give(host, &mra(right));
        assert!(lab.cms[host].poll_timeout() > before);
    }
    assert_eq!(lab.state(0, conns[0]), Some(State::ReqMraRcvd));
    assert_eq!(lab.state(1, conns[1]), Some(State::RepMraRcvd));
}

/// Goal: the side that has asked waits as long in timewait as the adapter of the peer may take to acknowledge. Method:
/// a REP with a delay that is far longer than the packet lifetime.
#[test]
fn timewait_knows_how_long_the_peers_adapter_takes() {
    let mut lab = Lab::new();
    let (conns, rep) = lab.replied();
    let Message::Rep(mut rep) = rep else { panic!() };
    rep.target_ack_delay = TimeCode::new(25);
    lab.give(0, &rep.into());
    lab.exchange();
    lab.disconnect(0, conns[0]);
    lab.exchange();
    assert_eq!(lab.state(0, conns[0]), Some(State::Timewait));
    let left = lab.cms[0].poll_timeout().unwrap().since(lab.now);
    assert_eq!(left, TimeCode::new(25).duration());
}

/// Goal: what was rejected is remembered until its sender has had the time to ask twice more. Method: the time that
/// the REQ says that an answer may take to come.
#[test]
fn a_rejection_is_remembered_for_two_repetitions() {
    let mut lab = Lab::new();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let Message::Req(req) = lab.sent(0)[0] else {
        panic!()
    };
    lab.give(1, &req.into());
    let Some(crate::Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    let reason = RejectReason::Consumer;
    let reject = lab.cms[1].reject(lab.now, conn, reason, &[], Blob::default());
    reject.unwrap();
    assert_eq!(lab.lose(1), ["REJ"]);
    let left = lab.cms[1].poll_timeout().unwrap().since(lab.now);
    let once = req.local_response_timeout.duration() + req.primary.ack_timeout.duration();
    assert_eq!(left, 2 * once);
    lab.now += once;
    lab.cms[1].handle_timeout(lab.now);
    lab.give(1, &req.into());
    assert_eq!(lab.lose(1), ["REJ"]);
    assert!(lab.cms[1].accept(lab.now, conn, &accept()).is_err());
}

/// Goal: a connection that is being closed ends as it would, when the peer has forgotten it and asks for another with the
/// same queue pair: the user is told once, that it is disconnected. Method: a DREQ that gets lost, then the REQ.
#[test]
fn a_peer_that_has_forgotten_does_not_disturb_a_close() {
    let mut lab = Lab::new();
    let conns = lab.established();
    lab.cms[0].connect(lab.now, connect(0x56)).unwrap();
    let Message::Req(mut req) = lab.sent(0)[0] else {
        panic!()
    };
    lab.disconnect(0, conns[0]);
    assert_eq!(lab.lose(0), ["DREQ"]);
    (req.ca_guid, req.qpn) = (port(1).ca_guid, accept().qpn);
    req.local_id = CommId(0x77);
    lab.give(0, &req.into());
    let said = lab.sent(0);
    let [Message::Rej(rej)] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(rej.reason, RejectReason::StaleConnection);
    assert_eq!(lab.state(0, conns[0]), Some(State::DreqSent));
    assert_eq!(lab.event(0), None);
    lab.fire(0);
    lab.exchange();
    let conn = conns[0];
    assert_eq!(
        lab.event(0),
        Some(crate::Event::Disconnected {
            conn,
            by: crate::Ended::Here
        })
    );
    assert_eq!(lab.state(0, conn), Some(State::Timewait));
}
