//! Resolutions of service ids.

use std::time::Duration;

use verbs_core::addr::{QKey, Qpn};
use verbs_core::mad::{Bits, Blob};

use super::lab::{Lab, SERVICE, gid, port};
use crate::wire::{Message, ServiceId, SidrRep, SidrStatus};
use crate::{CmError, Config, Event, Resolve, Resolved, Route};

fn question(service: ServiceId) -> Resolve {
    let route = Route::roce(&port(0), gid(0), gid(1)).unwrap();
    let mut resolve = Resolve::new(service, route);
    resolve.max_cm_retries = Bits::truncated(2);
    resolve
}

fn answer() -> Resolved {
    Resolved {
        status: SidrStatus::Valid,
        qpn: Qpn::new(0x24),
        qkey: QKey(0x0123_4567),
        private_data: Blob::new(b"here").unwrap(),
    }
}

#[test]
fn a_question_is_put_once_and_answered_as_often_as_it_is_asked() {
    let mut lab = Lab::new();
    let asked = lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    assert_eq!(lab.carry(0), ["SIDR_REQ"]);
    lab.fire(0);
    assert_eq!(lab.carry(0), ["SIDR_REQ"]);
    let Some(Event::ResolveRequest { resolution, .. }) = lab.event(1) else {
        panic!()
    };
    assert_eq!(lab.event(1), None);
    lab.cms[1].answer(lab.now, resolution, &answer()).unwrap();
    let again = lab.cms[1].answer(lab.now, resolution, &answer());
    assert_eq!(
        (lab.lose(1), again),
        (vec!["SIDR_REP"], Err(CmError::Stale))
    );
    // The answer is kept for a while.
    lab.cms[1].handle_timeout(lab.now);
    lab.fire(0);
    assert_eq!(
        (lab.carry(0), lab.carry(1)),
        (vec!["SIDR_REQ"], vec!["SIDR_REP"])
    );
    let event = Event::Resolved {
        resolution: asked,
        status: SidrStatus::Valid,
        qpn: Qpn::new(0x24),
        qkey: QKey(0x0123_4567),
        private_data: Blob::new(b"here").unwrap(),
    };
    assert_eq!((lab.event(0), lab.event(0)), (Some(event), None));
    lab.finish();
}

#[test]
fn nobody_listens_or_nobody_answers() {
    let mut lab = Lab::new();
    lab.cms[0]
        .resolve(lab.now, &question(ServiceId(9)))
        .unwrap();
    lab.exchange();
    match lab.event(0) {
        Some(Event::Resolved {
            status: SidrStatus::Unsupported,
            qpn,
            ..
        }) => {
            assert_eq!(qpn, Qpn::new(0));
        }
        other => panic!("{other:?}"),
    }
    let asked = lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    lab.lose(0);
    assert_eq!(lab.fire_all(0), ["SIDR_REQ"; 2]);
    assert_eq!(lab.event(0), Some(Event::Unresolved { resolution: asked }));
    lab.finish();
}

#[test]
fn a_question_can_be_forgotten_at_either_end() {
    let mut lab = Lab::new();
    let asked = lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    lab.carry(0);
    lab.cms[0].forget(asked).unwrap();
    assert_eq!(lab.cms[0].forget(asked), Err(CmError::Stale));
    let Some(Event::ResolveRequest { resolution, .. }) = lab.event(1) else {
        panic!()
    };
    lab.cms[1].forget(resolution).unwrap();
    assert!(lab.cms[0].is_empty() && lab.cms[1].is_empty());
}

#[test]
fn an_answer_counts_from_whom_was_asked_and_limits_hold() {
    let config = Config {
        resolutions_max: 1,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    let full = lab.cms[0].resolve(lab.now, &question(SERVICE));
    assert_eq!(
        full,
        Err(CmError::Limit {
            what: "resolutions_max",
            max: 1
        })
    );
    let Message::SidrReq(req) = lab.sent(0)[0] else {
        panic!()
    };
    let forged = Message::from(SidrRep {
        request_id: req.request_id,
        ..SidrRep::default()
    });
    let mad = forged.emit(verbs_core::mad::TransactionId(1));
    lab.cms[0].handle(lab.now, super::lab::other_of(1), &mad);
    assert_eq!(lab.event(0), None, "that came from another port");
    lab.give(0, &forged);
    assert!(lab.event(0).is_some());
}

/// Goal: questions that are not answered keep others out, answered ones do not. Method: a table with
/// room for one.
#[test]
fn answers_make_room_for_new_questions() {
    let mut lab = Lab::with(Config::default());
    let config = Config {
        resolutions_max: 1,
        ..Config::default()
    };
    lab.cms[1] = crate::Cm::new(config, port(1), 2, 9);
    lab.cms[1].listen(crate::Listen::new(SERVICE)).unwrap();
    let ask = |lab: &mut Lab| {
        lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
        lab.carry(0);
        lab.carry(1);
        match (lab.event(1), lab.event(0)) {
            (Some(Event::ResolveRequest { resolution, .. }), None) => Ok(resolution),
            (None, Some(Event::Resolved { status, .. })) => Err(status),
            other => panic!("{other:?}"),
        }
    };
    let first = ask(&mut lab).unwrap();
    assert_eq!(ask(&mut lab), Err(SidrStatus::NoQp));
    lab.cms[1].answer(lab.now, first, &answer()).unwrap();
    lab.carry(1);
    assert!(lab.event(0).is_some());
    assert!(ask(&mut lab).is_ok(), "the answer was given already");
    assert_eq!(lab.cms[1].counters().refused, 1);
}

/// Goal: questions that are never answered keep others out for a time only. Method: a table with room for one, whose
/// user leaves the question alone.
#[test]
fn questions_that_are_left_alone_make_room_when_their_peers_have_given_up() {
    let mut lab = Lab::new();
    let config = Config {
        resolutions_max: 1,
        ..Config::default()
    };
    lab.cms[1] = crate::Cm::new(config, port(1), 2, 9);
    lab.cms[1].listen(crate::Listen::new(SERVICE)).unwrap();
    lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    lab.carry(0);
    let Some(Event::ResolveRequest { resolution, .. }) = lab.event(1) else {
        panic!()
    };
    let until = lab.cms[1].poll_timeout().expect("it is kept for a time");
    assert_eq!(until.since(lab.now), Duration::from_secs(30));
    lab.now = until;
    lab.cms[1].handle_timeout(lab.now);
    assert!(lab.cms[1].is_empty());
    let late = lab.cms[1].answer(lab.now, resolution, &answer());
    assert_eq!(late, Err(CmError::Stale));
    lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    lab.carry(0);
    assert!(matches!(lab.event(1), Some(Event::ResolveRequest { .. })));
}

/// Goal: a refusal names no queue pair and no key, whatever the user fills in (IBTA vol. 1, 12.11.2). Method: each refusal, with both.
#[test]
fn a_refusal_tells_no_queue_pair_and_no_key() {
    for status in [SidrStatus::Rejected, SidrStatus::NoQp] {
        let mut lab = Lab::new();
        lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
        lab.carry(0);
        let Some(Event::ResolveRequest { resolution, .. }) = lab.event(1) else {
            panic!()
        };
        let refusal = Resolved { status, ..answer() };
        lab.cms[1].answer(lab.now, resolution, &refusal).unwrap();
        let Message::SidrRep(rep) = lab.sent(1)[0] else {
            panic!()
        };
        assert_eq!(
            (rep.status, rep.qpn, rep.qkey),
            (status, Qpn::default(), QKey(0))
        );
        assert_eq!(rep.private_data, answer().private_data);
    }
}

/// Goal: an answer is kept from when it is given, and a question that is forgotten is no longer told. Method: the
/// deadline of a question before and after its answer, and a question whose event has not been taken.
#[test]
fn an_answer_has_its_own_time_and_what_is_forgotten_is_not_told() {
    let mut lab = Lab::new();
    lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    lab.carry(0);
    let Some(Event::ResolveRequest { resolution, .. }) = lab.event(1) else {
        panic!()
    };
    lab.now += Duration::from_secs(5);
    lab.cms[1].answer(lab.now, resolution, &answer()).unwrap();
    let kept_until = lab.now + Duration::from_secs(10);
    assert_eq!(lab.cms[1].poll_timeout(), Some(kept_until));

    let mut lab = Lab::new();
    lab.cms[0].resolve(lab.now, &question(SERVICE)).unwrap();
    lab.carry(0);
    // Identifiers count from one.
    let forgotten = lab.cms[1].forget(crate::ResolveId(1));
    assert_eq!((forgotten, lab.event(1)), (Ok(()), None));
    assert!(lab.cms[1].is_empty());
}
