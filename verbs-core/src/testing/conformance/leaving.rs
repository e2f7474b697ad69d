//! Requests that are abandoned, cancelled, or overtaken by removal: K8, K9, K15.

use std::task::{Context, Waker};

use super::{Answers, Make, each_verb, judge};
use crate::command::Kind;
use crate::error::Error;
use crate::request::Issued;
use crate::sync::Arc;
use crate::testing::{Stage, Subject};

/// Cancelled at once: the request ends as if it had not been cancelled, or without any effect.
pub fn k8_cancel_leaves_nothing(make: Make<'_>) {
    each_verb(make, |subject, kind, stage| cancel(subject, kind, stage, 0));
}

/// Cancelled when the provider has got on with it.
pub fn k8_a_late_cancel_has_no_effect(make: Make<'_>) {
    each_verb(make, |subject, kind, stage| cancel(subject, kind, stage, 1));
}

fn cancel(subject: &Subject, kind: Kind, mut stage: Stage, steps: u32) {
    let (answers, nudge) = (Answers::default(), stage.nudge(kind));
    let issued = stage.request(kind).issue(answers.routine());
    for _ in 0..steps {
        subject.advance();
    }
    let handle = match issued {
        Issued::Pending(handle) => Some(handle),
        Issued::Completed => None,
    };
    if let Some(handle) = &handle {
        handle.cancel();
    }
    nudge.give();
    let answer = answers.one(subject, kind);
    match answer.error() {
        Some(Error::Cancelled) => {
            assert!(handle.is_some(), "{kind} was not cancelled by anybody");
            assert!(!kind.destroys(), "{kind} was accepted and then cancelled");
        }
        _ => judge(subject, kind, &answer),
    }
    let again = handle.is_some_and(|handle| handle.cancel());
    assert!(!again, "{kind} has completed and can be cancelled");
    drop((answer, nudge));
    // If it was cancelled, nothing exists that did not before; if not, what exists goes by its drop.
    stage.clear(subject);
}

/// A future that is never polled issues nothing.
pub fn k9_a_future_that_was_not_polled_did_nothing(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let before = (subject.holds(), listed(&stage));
        drop(stage.request(kind).future());
        // The handle that a destroy took is dropped with it, which is a destroy of its own.
        if !kind.destroys() && kind != Kind::ReregMr {
            assert_eq!((subject.holds(), listed(&stage)), before, "{kind}");
        }
        stage.clear(subject);
    });
}

fn listed(stage: &Stage) -> Option<usize> {
    stage.device.as_ref().map(|device| device.in_flight().len())
}

/// A future that is dropped while the verb runs on leaves nothing behind.
pub fn k9_a_future_dropped_while_it_pends(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let nudge = stage.nudge(kind);
        let mut future = stage.request(kind).future();
        let _ = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        drop(future);
        nudge.give();
        drop(nudge);
        stage.clear(subject);
    });
}

/// A future that is dropped when its result was there, unseen, leaves nothing behind.
pub fn k9_a_future_dropped_after_its_completion(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let nudge = stage.nudge(kind);
        let watch = stage.device.as_ref().map(Arc::downgrade);
        let mut future = stage.request(kind).future();
        let _ = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        nudge.give();
        // Opening and closing have no device to ask; some steps do.
        for _ in 0..4 {
            subject.advance();
        }
        subject.until(kind, || {
            let device = watch.as_ref().and_then(crate::sync::Weak::upgrade);
            device.is_none_or(|device| device.in_flight().is_empty())
        });
        drop(future);
        drop(nudge);
        stage.clear(subject);
    });
}

/// The device goes while a verb runs: the verb ends, and so does every later one; what is there can
/// be destroyed.
pub fn k15_removal_completes_everything(make: Make<'_>) {
    each_verb(make, |subject, kind, mut stage| {
        let (answers, nudge) = (Answers::default(), stage.nudge(kind));
        let _ = stage.request(kind).issue(answers.routine());
        if !subject.take_away() {
            // It has no way to go. The request still has to end.
            nudge.give();
        }
        let answer = answers.one(subject, kind);
        match answer.error() {
            Some(Error::DeviceRemoved) => {}
            _ => judge(subject, kind, &answer),
        }
        drop((answer, nudge));
        gone(subject, stage);
    });
}

/// Nothing new works on the removed device, and everything old can go.
fn gone(subject: &Subject, mut stage: Stage) {
    let device = stage.device.take();
    if let Some(device) = &device
        && subject.take_away()
    {
        let error = subject.must_fail(device.alloc_pd());
        assert_eq!(error, Error::DeviceRemoved, "a request after removal");
    }
    drop(stage);
    let Some(device) = device else { return };
    subject.until("objects of a removed device go", || device.objects() == 0);
    assert_eq!(device.implicit_destroy_failures(), 0);
    let device = Arc::into_inner(device).expect("nobody else kept the device");
    subject.must(device.close());
}
