//! What follows from reports that a host refuses our messages: hints, which end no connection that is there and
//! no attempt by themselves.

use std::time::Duration;

use verbs_core::mad::{Bits, TimeCode, TransactionId};

use super::lab::{Lab, SERVICE, accept, connect, gid, port};
use crate::event::Failure;
use crate::machine::State;
use crate::params::{Resolve, Route};
use crate::{CmError, Event};

const PAUSE: Duration = Duration::from_millis(500);

fn nobody(conn: crate::ConnId) -> Option<Event> {
    let why = Failure::PortUnreachable;
    Some(Event::ConnectError { conn, why })
}

/// Goal: a host without a peer ends an attempt after one repetition, half a second later.
#[test]
fn two_refusals_in_a_row_end_an_attempt() {
    let mut lab = Lab::new();
    let begun = lab.now;
    let conn = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    assert_eq!(lab.refuse(0), ["REQ"]);
    assert_eq!(lab.event(0), None, "one is a hint");
    lab.fire(0);
    assert_eq!(lab.now.since(begun), PAUSE);
    assert_eq!(lab.refuse(0), ["REQ"]);
    assert_eq!(lab.event(0), nobody(conn));
    assert_eq!((lab.event(0), lab.state(0, conn)), (None, None));
    assert_eq!(lab.lose(0), ["REJ"], "the request is taken back");
    lab.finish();
}

/// Goal: a peer that starts within the pause is reached, at the first repetition.
#[test]
fn a_peer_that_is_starting_is_reached() {
    let mut lab = Lab::new();
    let begun = lab.now;
    let conn = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    assert_eq!(lab.refuse(0), ["REQ"]);
    lab.fire(0);
    assert_eq!(lab.carry(0), ["REQ"]);
    assert_eq!(lab.now.since(begun), PAUSE);
    let Some(Event::ConnectRequest { conn: passive, .. }) = lab.event(1) else {
        panic!("it listens by now")
    };
    lab.cms[1].accept(lab.now, passive, &accept()).unwrap();
    lab.exchange();
    assert_eq!(lab.state(0, conn), Some(State::Established));
}

/// Goal: one request counts once, and only requests in a row count: silence in between begins again.
#[test]
fn only_refusals_in_a_row_count() {
    let mut lab = Lab::new();
    let conn = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let req = lab.sent_mads(0)[0];
    for _ in 0..5 {
        lab.report(0, gid(1), &req);
    }
    assert_eq!(lab.cms[0].counters().idle_refusals, 4);
    for _ in 0..3 {
        // Refused before; this one gets lost, and so does the next.
        lab.fire(0);
        assert_eq!(lab.lose(0), ["REQ"]);
        lab.fire(0);
        assert_eq!(lab.refuse(0), ["REQ"]);
        assert_eq!(lab.event(0), None);
    }
    lab.fire(0);
    assert_eq!(lab.refuse(0), ["REQ"]);
    assert_eq!(lab.event(0), nobody(conn));
    lab.finish();
}

/// Goal: forged reports do nothing: for another destination, of another transaction, of another client.
#[test]
fn reports_of_what_was_not_sent_do_nothing() {
    let mut lab = Lab::new();
    let conn = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let usual = lab.cms[0].poll_timeout();
    let req = lab.sent_mads(0)[0];
    for _ in 0..4 {
        lab.report(0, gid(7), &req);
        for (client, request) in [(2, 1), (2, u32::MAX), (3, 1)] {
            let tid = TransactionId::new(client, request);
            lab.cms[0].undelivered(lab.now, gid(1), tid);
        }
    }
    assert_eq!(lab.cms[0].poll_timeout(), usual);
    assert_eq!((lab.lose(0), lab.event(0)), (vec![], None));
    assert_eq!(lab.cms[0].counters().idle_refusals, 16);
    lab.cms[0].destroy(lab.now, conn).unwrap();
    lab.finish();
}

/// Goal: a peer that has answered is there. Method: each state after a first answer, with reports of its REQ.
#[test]
fn an_answer_outweighs_reports() {
    // An MRA, after which the REQ is sent again.
    let mut lab = Lab::new();
    let active = lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let req = lab.sent_mads(0)[0];
    lab.cms[1].handle(lab.now, super::lab::other_of(1), &req);
    let Some(Event::ConnectRequest { conn: passive, .. }) = lab.event(1) else {
        panic!()
    };
    lab.cms[1]
        .delay(lab.now, passive, TimeCode::new(18))
        .unwrap();
    assert_eq!(lab.carry(1), ["MRA"]);
    lab.report(0, gid(1), &req);
    lab.fire(0);
    assert_eq!(lab.refuse(0), ["REQ"]);
    lab.report(0, gid(1), &req);
    assert_eq!(lab.state(0, active), Some(State::ReqSent));

    // A REP; then data.
    lab.cms[1].accept(lab.now, passive, &accept()).unwrap();
    lab.exchange();
    lab.report(0, gid(1), &req);
    lab.report(0, gid(1), &req);
    assert_eq!(lab.state(0, active), Some(State::Established));

    // A DREQ to a host whose program is gone: it is repeated as ever.
    lab.disconnect(0, active);
    assert_eq!(lab.refuse(0), ["DREQ"]);
    lab.fire(0);
    assert_eq!(lab.refuse(0), ["DREQ"]);
    assert_eq!(lab.state(0, active), Some(State::DreqSent));
}

/// Goal: an attempt never takes longer for a report. Method: few repetitions, and little time.
#[test]
fn reports_lengthen_nothing() {
    for (millis, retries) in [(100, 15), (2_000, 15), (5_000, 15), (5_000, 1), (5_000, 0)] {
        let mut lab = Lab::new();
        let mut wish = connect(0x55);
        (wish.max_cm_retries, wish.timeout) = (
            Bits::truncated(retries),
            Some(Duration::from_millis(millis)),
        );
        let begun = lab.now;
        let conn = lab.cms[0].connect(lab.now, wish).unwrap();
        let usual = lab.cms[0].poll_timeout();
        assert_eq!(lab.refuse(0), ["REQ"]);
        assert!(lab.cms[0].poll_timeout() <= usual);
        let sent = lab.fire_all(0);
        assert_eq!(sent.last(), Some(&"REJ"), "{sent:?}");
        assert_eq!(lab.event(0), Some(Event::Unreachable { conn }));
        let took = lab.now.since(begun);
        assert!(took <= Duration::from_millis(millis), "{retries}: {took:?}");
        lab.finish();
    }
}

/// Goal: the same rule for questions about services for datagrams.
#[test]
fn a_question_that_is_refused_twice_ends() {
    let mut lab = Lab::new();
    let route = Route::roce(&port(0), gid(0), gid(1)).unwrap();
    let question = Resolve::new(SERVICE, route);
    let begun = lab.now;
    let resolution = lab.cms[0].resolve(lab.now, &question).unwrap();
    let asked = lab.sent_mads(0)[0];
    lab.report(0, gid(7), &asked);
    assert_eq!(lab.cms[0].counters().idle_refusals, 1);
    lab.report(0, gid(1), &asked);
    lab.report(0, gid(1), &asked);
    lab.fire(0);
    assert_eq!(lab.now.since(begun), PAUSE);
    assert_eq!(lab.event(0), None);
    assert_eq!(lab.refuse(0), ["SIDR_REQ"]);
    let why = Failure::PortUnreachable;
    assert_eq!(lab.event(0), Some(Event::ResolveError { resolution, why }));
    assert_eq!(lab.cms[0].forget(resolution), Err(CmError::Stale));
    lab.finish();
}

/// Goal: a report never has a question wait longer than without it. Method: little time, and a report.
#[test]
fn a_report_does_not_put_a_question_off() {
    let mut lab = Lab::new();
    let route = Route::roce(&port(0), gid(0), gid(1)).unwrap();
    let mut question = Resolve::new(SERVICE, route);
    question.timeout = Some(Duration::from_millis(100));
    lab.cms[0].resolve(lab.now, &question).unwrap();
    let usual = lab.cms[0].poll_timeout();
    assert_eq!(lab.refuse(0), ["SIDR_REQ"]);
    assert_eq!(lab.cms[0].poll_timeout(), usual);
}
