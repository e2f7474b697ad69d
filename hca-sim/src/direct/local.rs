//! Work requests that concern only keys of their own side: fast registration, invalidate, bind. They need no peer and
//! send nothing. They are carried out under a pin; what they release is settled after the pin has been left.

use verbs_core::mem::{MrTable, Stopped, Who};
use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{SendOp, Target, WcCause, WcOpcode, WcStatus};

/// The outcome of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Local {
    Done(WcOpcode),
    /// Another thread is looking at what the key with that index stood for.
    Later(u32),
    /// It cannot be carried out; the status and the reason.
    Fault(WcStatus, u32),
}

/// Carries it out: returns what became of it, and the index of a key that has something to release.
pub(crate) fn execute(
    op: &SendOp,
    mrs: &MrTable,
    who: Who,
    qp: Option<&Weak<QpCore>>,
) -> (Local, Option<u32>) {
    let fault =
        |status, fault: verbs_core::mem::Fault| Local::Fault(status, WcCause::from(fault).code());
    match op {
        SendOp::RegMr(what) => {
            let done = match mrs.map(what, who.pd) {
                Ok(()) => Local::Done(WcOpcode::RegMr),
                Err(Stopped::Later) => Local::Later(what.key.index()),
                Err(Stopped::Fault(why)) => fault(WcStatus::LocQpOpErr, why),
            };
            (done, None)
        }
        SendOp::LocalInv(key) => match mrs.invalidate(key.value(), who) {
            Ok(invalidated) => {
                let settle = invalidated.settle.then_some(key.index());
                let done = match invalidated.over {
                    true => Local::Done(WcOpcode::LocalInv),
                    false => Local::Later(key.index()),
                };
                (done, settle)
            }
            Err(why) => (fault(WcStatus::LocQpOpErr, why), None),
        },
        SendOp::BindMw(what) => {
            let index = what.mw.index();
            let qp = qp.and_then(Weak::upgrade).map(|qp| qp as Arc<dyn Target>);
            match mrs.bind(what, who, qp.as_ref()) {
                Ok(settle) => (Local::Done(WcOpcode::BindMw), settle.then_some(index)),
                Err(Stopped::Later) => (Local::Later(index), Some(index)),
                Err(Stopped::Fault(why)) => (fault(WcStatus::MwBindErr, why), Some(index)),
            }
        }
        _ => (Local::Fault(WcStatus::LocQpOpErr, 0), None),
    }
}
