//! What is refused, and how: limits, arguments, transitions, queues that are not ready.

use std::collections::BTreeSet;

use super::Make;
use crate::addr::Lid;
use crate::error::{Attr, Error};
use crate::mem::{Access, Memory};
use crate::qp::QpInit;
use crate::qp_attr::{Av, QpAttr};
use crate::qp_state::QpState;
use crate::queue::PostError;
use crate::sync::{Arc, Mutex};
use crate::testing::Subject;
use crate::wr::{Recv, Send};

/// Limits above this are not tried out.
const TRIED: u32 = 4096;

/// A device lists an extension once, and only if it has the capabilities that the extension needs; and refuses a call of one
/// that it does not list.
pub fn extensions_are_listed_with_what_they_need(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let caps = subject.must(device.query()).caps;
    let mut names = BTreeSet::new();
    for info in device.extensions() {
        let missing = info.needs.difference(caps);
        assert!(missing.is_empty(), "{} lacks {missing:?}", info.name);
        assert!(names.insert(info.name), "{} is listed twice", info.name);
    }
    let answer = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&answer);
    let unknown = device.call_by_name("example.nobody_has_it", 1, &[]);
    let _ = unknown.issue(move |result| *kept.lock() = Some(result));
    subject.until("the call is answered", || answer.lock().is_some());
    let refused = Some(Err(Error::Unsupported(Attr::Extension)));
    assert_eq!(answer.lock().take(), refused);
    subject.must(device.close());
}

/// As many objects as the device says, and not one more; the error names the limit.
pub fn limits_are_refused_by_name(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let attr = subject.must(device.query());
    fill(&subject, (Attr::MaxPd, attr.max_pd), || {
        subject.finish(device.alloc_pd())
    });
    fill(&subject, (Attr::MaxCq, attr.max_cq), || {
        subject.finish(device.create_cq(1))
    });
    let pd = subject.must(device.alloc_pd());
    let cq = subject.must(device.create_cq(1));
    fill(&subject, (Attr::MaxQp, attr.max_qp), || {
        subject.finish(pd.create_qp(QpInit::rc(&cq, &cq)))
    });
    fill(&subject, (Attr::MaxMr, attr.max_mr), || {
        let memory = Memory::alloc(1)?;
        subject.finish(pd.register(memory, Access::LOCAL_WRITE))
    });
    fill(&subject, (Attr::MaxSrq, attr.max_srq), || {
        subject.finish(pd.create_srq(1, 1))
    });
    fill(&subject, (Attr::MaxXrcd, attr.max_xrcd), || {
        subject.finish(device.alloc_xrcd())
    });
    fill(&subject, (Attr::MaxAh, attr.max_ah), || {
        subject.finish(pd.create_ah(Av::to_lid(1, Lid(1))))
    });
    drop((pd, cq));
    subject.until("the objects go", || device.objects() == 0);
    subject.must(device.close());
}

/// Makes objects up to the limit, which must be refused by that name; then one more, when one has
/// gone. A limit of 0 says that the device has none of them, or does not tell.
fn fill<T>(subject: &Subject, limit: (Attr, u32), create: impl Fn() -> Result<T, Error>) {
    let (attr, max) = limit;
    if max == 0 || max > TRIED {
        return;
    }
    let mut made = Vec::new();
    let refused = loop {
        match create() {
            Ok(object) => made.push(object),
            Err(error) => break error,
        }
        assert!(made.len() as u32 <= max, "more than {attr} of {max}");
    };
    assert_eq!(refused, Error::Exhausted { attr, max });
    // Others of the kind may exist for the sake of this one.
    assert!(made.len() as u32 + 1 >= max, "{} of {max}", made.len());
    drop(made.pop());
    let mut again = None;
    subject.until("a destroyed object makes room", || {
        again = create().ok();
        again.is_some()
    });
}

/// Arguments out of range are refused with their name, the value, and the bound; nothing is made.
pub fn arguments_are_refused_by_name(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let attr = subject.must(device.query());
    let ports = attr.phys_port_cnt;
    assert!(ports > 0, "a device has a port");
    for port in [0, ports + 1, u8::MAX] {
        let expected = Error::Invalid {
            attr: Attr::Port,
            got: u32::from(port),
            max: u32::from(ports),
        };
        assert_eq!(subject.must_fail(device.query_port(port)), expected);
    }
    for port in 1..=ports {
        subject.must(device.query_port(port));
    }
    let refused = |error, wanted: Attr| {
        let named = matches!(error, Error::Invalid { attr, .. } if attr == wanted);
        assert!(named, "{wanted} out of range: {error}");
    };
    refused(subject.must_fail(device.create_cq(0)), Attr::Cqe);
    if attr.max_cqe < u32::MAX {
        refused(
            subject.must_fail(device.create_cq(attr.max_cqe + 1)),
            Attr::Cqe,
        );
    }
    let pd = subject.must(device.alloc_pd());
    let cq = subject.must(device.create_cq(1));
    if attr.max_qp_wr < u32::MAX {
        let more = attr.max_qp_wr + 1;
        let deep = |send, recv| pd.create_qp(QpInit::rc(&cq, &cq).depth(send, recv));
        refused(subject.must_fail(deep(more, 1)), Attr::MaxSendWr);
        refused(subject.must_fail(deep(1, more)), Attr::MaxRecvWr);
    }
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let memory = Memory::alloc(64).expect("64 bytes can be had");
        let error = subject.must_fail(pd.register(memory, access));
        let named = matches!(error, Error::Mismatch { attr, .. } if attr == Attr::Access);
        assert!(named, "{access:?} without LOCAL_WRITE: {error}");
    }
    if let Some(holds) = subject.holds() {
        assert_eq!(holds, 2, "a refused create left something");
    }
    subject.must(pd.dealloc());
    subject.must(cq.destroy());
    subject.must(device.close());
}

/// A modify is all or nothing.
pub fn a_refused_transition_changes_nothing(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let pd = subject.must(device.alloc_pd());
    let cq = subject.must(device.create_cq(1));
    let qp = subject.must(pd.create_qp(QpInit::rc(&cq, &cq)));
    assert_eq!(subject.must(qp.query()).state, QpState::Reset);
    for state in [QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let error = subject.must_fail(qp.modify(QpAttr::to(state)));
        assert!(
            matches!(error, Error::Transition(_)),
            "RESET to {state:?}: {error}"
        );
        assert_eq!(subject.must(qp.query()).state, QpState::Reset);
    }
    subject.must(qp.init(1, Access::REMOTE_WRITE));
    assert_eq!(subject.must(qp.query()).state, QpState::Init);
    subject.must(qp.modify(QpAttr::to(QpState::Err)));
    subject.must(qp.modify(QpAttr::to(QpState::Reset)));
    assert_eq!(subject.must(qp.query()).state, QpState::Reset);
    subject.must(qp.destroy());
    drop((pd, cq));
    subject.until("the objects go", || device.objects() == 0);
    subject.must(device.close());
}

/// Posting to a queue pair in RESET is refused, and an empty completion queue is empty.
pub fn queues_in_reset_take_nothing(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let pd = subject.must(device.alloc_pd());
    let mut cq = subject.must(device.create_cq(1));
    let qp = subject.must(pd.create_qp(QpInit::rc(&cq, &cq)));
    let (qp, mut sends, mut receives) = qp.split().expect("nobody has split it");
    let reset = Err(PostError::State(QpState::Reset));
    assert_eq!(sends.post(Send::new(1)), reset);
    assert_eq!(receives.post(Recv::new(2)), reset);
    assert!(cq.poll(&mut [crate::wc::Wc::default(); 4]).is_empty());
    drop((qp, sends, receives, cq, pd));
    subject.until("the objects go", || device.objects() == 0);
    subject.must(device.close());
}
