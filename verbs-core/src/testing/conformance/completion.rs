//! How requests complete: K1, K2, K4, K6, K15, K16, K17.

use std::num::NonZeroU32;

use super::{Answers, Make, each_verb, judge};
use crate::command::{Kind, Origin};
use crate::request::Issued;
use crate::routine::{collect, no_block};
use crate::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use crate::sync::{Arc, thread};

/// Every verb ends once, with success or, if the provider does not have it, refused.
pub fn k1_every_verb_completes_once(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let _ = stage.request(kind).issue(answers.routine());
        nudge.give();
        judge(subject, kind, &answers.one(subject, kind));
        drop(nudge);
        stage.clear(subject);
    });
}

/// The same where nothing may wait: `issue` returns first.
pub fn k1_issued_under_no_block(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        // A provider with a thread of its own may run the routine there, as early as it likes.
        let here = thread::current().id();
        let (inside, ran_inside) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let (keep, issuing) = (answers.routine(), Arc::clone(&inside));
        let seen: Arc<AtomicBool> = Arc::clone(&ran_inside);
        collect(|| {
            let _ = stage.request(kind).issue(Box::new(move |answer| {
                if thread::current().id() == here && issuing.load(Acquire) {
                    seen.store(true, Release);
                }
                keep(answer);
            }));
            inside.store(false, Release);
        });
        let ran = ran_inside.load(Acquire);
        assert!(!ran, "{kind}: the routine ran in `issue`");
        nudge.give();
        judge(subject, kind, &answers.one(subject, kind));
        drop(nudge);
        stage.clear(subject);
    });
}

/// The same from the routine of another verb.
pub fn k1_issued_from_a_routine(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let other = subject.device();
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let (routine, place) = (answers.routine(), Arc::new(crate::sync::Mutex::new(None)));
        let back = Arc::clone(&place);
        let _ = other.query().issue(move |_| {
            assert!(no_block());
            let _ = stage.request(kind).issue(routine);
            *back.lock() = Some(stage);
        });
        nudge.give();
        judge(subject, kind, &answers.one(subject, kind));
        drop(nudge);
        let stage = place.lock().take().expect("the outer routine has run");
        stage.clear(subject);
        subject.must(other.close());
    });
}

/// Requests that are pending together all end.
pub fn k1_many_at_once(make: Make<'_>) {
    const MANY: usize = 64;
    let subject = make();
    let device = subject.device();
    let answered = Arc::new(AtomicU32::new(0));
    for n in 0..MANY {
        let (queries, objects) = (Arc::clone(&answered), Arc::clone(&answered));
        let _ = device.query_port(1).issue(move |port| {
            assert!(port.is_ok(), "query {n}: {port:?}");
            queries.fetch_add(1, AcqRel);
        });
        let _ = device.alloc_pd().issue(move |pd| {
            assert!(pd.is_ok(), "domain {n}: {pd:?}");
            objects.fetch_add(1, AcqRel);
        });
    }
    subject.until("all of many requests complete (K1)", || {
        answered.load(Acquire) as usize == 2 * MANY
    });
    subject.until("what was created goes", || device.objects() == 0);
    subject.must(device.close());
}

/// A routine may issue to the same provider: it holds no lock while it completes. One that does
/// blocks here, and the suite says so.
pub fn k4_a_routine_may_issue(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let other = Arc::new(subject.device());
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let (keep, inner) = (answers.routine(), Arc::clone(&other));
        let second = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&second);
        let _ = stage.request(kind).issue(Box::new(move |answer| {
            let _ = inner.alloc_pd().issue(move |pd| {
                assert!(pd.is_ok(), "{pd:?}");
                count.fetch_add(1, AcqRel);
            });
            keep(answer);
        }));
        nudge.give();
        judge(subject, kind, &answers.one(subject, kind));
        let what = "what a routine issued completes";
        subject.until(what, || second.load(Acquire) == 1);
        drop(nudge);
        subject.until("what the routine created goes", || other.objects() == 0);
        stage.clear(subject);
        let other = Arc::into_inner(other).expect("routines have run and are gone");
        subject.must(other.close());
    });
}

/// The result is whole when the routine runs: what it carries may be destroyed there and then.
pub fn k6_a_routine_may_let_go_of_the_result(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let nudge = stage.nudge(kind);
        let ran = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&ran);
        let _ = stage.request(kind).issue(Box::new(move |answer| {
            drop(answer);
            count.fetch_add(1, AcqRel);
        }));
        nudge.give();
        subject.until(kind, || ran.load(Acquire) == 1);
        drop(nudge);
        stage.clear(subject);
    });
}

/// A request that pends is in the device's list until it has completed.
pub fn k15_what_pends_is_listed(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let issued = stage.request(kind).issue(answers.routine());
        if let (Issued::Pending(handle), Some(device)) = (issued, &stage.device) {
            let list = device.in_flight();
            let listed = list.iter().find(|entry| entry.id == Some(handle.id()));
            // A provider with a thread of its own may have been faster than we.
            if let (None, 0) = (listed, answers.len()) {
                panic!("{kind} pends and is not listed: {list:?}");
            }
            assert!(listed.is_none_or(|entry| entry.verb == kind), "{list:?}");
        }
        nudge.give();
        let answer = answers.one(subject, kind);
        judge(subject, kind, &answer);
        let device = stage.device.as_ref();
        let left = device.map_or(0, |device| device.in_flight().len());
        assert_eq!(left, 0, "{kind} has completed and is listed");
        drop((answer, nudge));
        stage.clear(subject);
    });
}

/// A request on somebody's behalf ends as one of the program's own does.
pub fn k16_the_origin_changes_nothing(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let request = stage
            .request(kind)
            .on_behalf_of(Origin::Client(NonZeroU32::MIN));
        let _ = request.issue(answers.routine());
        nudge.give();
        judge(subject, kind, &answers.one(subject, kind));
        drop(nudge);
        stage.clear(subject);
    });
}

/// Requests for events are answered in turn, with one event each.
pub fn k17_each_event_is_seen_once(make: Make<'_>) {
    let subject = make();
    let Ok(mut stage) = crate::testing::Stage::set(&subject, Kind::NextEvent) else {
        panic!("a device can be opened");
    };
    let answers = Answers::default();
    for _ in 0..2 {
        let request = stage.request(Kind::NextEvent);
        let _ = request.issue(answers.routine());
    }
    let nudge = stage.nudge(Kind::NextEvent);
    nudge.give();
    subject.until("one event answers one request", || answers.len() == 1);
    for _ in 0..4 {
        subject.advance();
    }
    assert_eq!(answers.len(), 1, "one event answered two requests");
    nudge.give();
    subject.until("the second event answers the other", || answers.len() == 2);
    drop(nudge);
    stage.clear(&subject);
}
