//! How requests complete: K1, K2, K4, K6, K15, K16, K17.

use std::num::NonZeroU32;

use super::{Answers, Make, each_verb, each_verb_of, judge, not_offered};
use crate::command::{Kind, Origin};
use crate::device::Device;
use crate::error::Error;
use crate::object::{ObjectKind, Refused};
use crate::request::Issued;
use crate::routine::{collect, no_block};
use crate::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use crate::sync::{Arc, thread};
use crate::testing::Stage;

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

/// A client's request on its own objects ends as one of the program's own does; on the device itself, as far as that
/// is not to be closed or changed.
pub fn k16_a_client_acts_on_its_own(make: Make<'_>) {
    let client = Origin::Client(NonZeroU32::MIN);
    each_verb_of(make, client, |subject, kind, mut stage| {
        let objects = |stage: &Stage| stage.device.as_ref().map_or(0, |device| device.objects());
        let before = objects(&stage);
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let _ = stage
            .request(kind)
            .on_behalf_of(client)
            .issue(answers.routine());
        nudge.give();
        let answer = answers.one(subject, kind);
        match kind {
            Kind::CloseDevice => {
                assert_eq!(answer.error(), Some(Error::AccessDenied), "{kind}");
                // The handle came back.
                let refused: Option<Refused<Device>> = answer.kept();
                let device = refused.and_then(|refused| refused.handle);
                stage.device = device.map(Arc::new);
                drop(nudge);
                return stage.clear(subject);
            }
            Kind::ModifyDevice | Kind::ModifyPort => {
                assert_eq!(answer.error(), Some(Error::AccessDenied), "{kind}");
            }
            _ => judge(subject, kind, &answer),
        }
        if objects(&stage) > before {
            assert_eq!(
                answer.owner(),
                Some(client),
                "{kind}: whose is the new object?"
            );
        }
        drop((nudge, answer));
        stage.clear(subject);
    });
}

/// A client's request that acts on or names an object of another client, or of the program, is refused before the
/// provider sees it, whichever of the objects that is; its handle comes back and what there is stays as it was.
pub fn k16_no_client_reaches_another(make: Make<'_>) {
    let [client, other] = [1, 2].map(|n| Origin::client(n).unwrap_or_default());
    for &kind in Kind::ALL {
        for &foreign in Stage::needs(kind) {
            // The device is every client's, and what a child's parents are is not asked for again.
            if foreign == ObjectKind::Device || !acts_on(kind, foreign) {
                continue;
            }
            for stranger in [other, Origin::Trusted] {
                let subject = make();
                let owners = Some((foreign, stranger));
                let mut stage = match Stage::set_for(&subject, kind, client, owners) {
                    Ok(stage) => stage,
                    Err(missing) => {
                        not_offered(&subject, kind, missing);
                        continue;
                    }
                };
                let before = subject.holds();
                let answers = Answers::default();
                let _ = stage
                    .request(kind)
                    .on_behalf_of(client)
                    .issue(answers.routine());
                let answer = answers.one(&subject, kind);
                let what = format!("{kind} with a foreign {foreign}");
                assert_eq!(answer.error(), Some(Error::AccessDenied), "{what}");
                assert_eq!(subject.holds(), before, "{what}");
                // The handle that comes back destroys its object.
                drop(answer);
                stage.clear(&subject);
            }
        }
    }
}

/// Whether the verb acts on the object of that kind or names it, of those that its row makes.
fn acts_on(kind: Kind, need: ObjectKind) -> bool {
    use ObjectKind as K;
    let needs = Stage::needs(kind);
    match kind {
        Kind::CreateQp => true,
        Kind::FreeMr => false,
        Kind::RegSharedMr => matches!(need, K::Mr | K::Pd),
        // Any queue pair of the device may be opened in its domain, by any program that knows its number.
        Kind::OpenTargetQp => need == K::Xrcd,
        Kind::ConnectCm | Kind::AcceptCm => matches!(need, K::Qp | K::CmEndpoint),
        _ => needs.last() == Some(&need),
    }
}

/// Requests for events are answered in turn, with one event each.
pub fn k17_each_event_is_seen_once(make: Make<'_>) {
    let subject = make();
    let Ok(mut stage) = Stage::set(&subject, Kind::NextEvent) else {
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
