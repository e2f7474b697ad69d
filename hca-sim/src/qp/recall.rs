//! Inline CQEs that cannot be left to the next poll ([`crate::queue::cqe_inline`]): a queue pair scatters its own.

use verbs_core::mem::{grace, pin};
use verbs_core::sync::Arc;

use crate::qp::QueuePair;
use crate::queue::base::events::QpEvents;
use crate::queue::base::word::flag;
use crate::queue::cqe_inline::{Aside, Scatter};

/// Keeps pollers from scattering, and scatters all inline CQEs that wait once no poller does so any longer; then
/// calls `then`. Called outside of pins and locks.
pub(crate) fn recall(qp: &Arc<QueuePair>, then: impl FnOnce() + Send + 'static) {
    let Some(scatter) = qp.scatter() else {
        return then();
    };
    let touched = scatter.ring.shut_out_pollers();
    let me = Arc::downgrade(qp);
    grace::after(touched, move || {
        let qp = me.upgrade();
        let fault = qp.as_ref().is_some_and(|qp| scatter_all(qp, &scatter));
        scatter.ring.let_pollers_in();
        if let (true, Some(qp)) = (fault, qp) {
            qp.fail();
        }
        then();
    });
}

/// Scatters all inline CQEs that wait; the pollers are kept out.
pub(crate) fn end_inline_cqes(qp: &Arc<QueuePair>, scatter: &Scatter) {
    let fault = scatter_all(qp, scatter);
    // If the number is used again, it must not be mistaken for that of a queue pair that no longer exists.
    if qp.gate.word.tag() & flag::GONE == 0 {
        scatter.ring.let_pollers_in();
    }
    if fault {
        qp.fail();
    }
}

/// Scatters all inline CQEs that wait, for the thread that keeps the pollers out. Returns whether one of them could
/// not be placed.
fn scatter_all(qp: &QueuePair, scatter: &Scatter) -> bool {
    if !scatter.ring.has_pending() {
        return false;
    }
    let (mut fault, pin) = (false, pin());
    // The pin is left after the inner lock has been released: leaving may run others' jobs.
    qp.recv_cq.scatter(|inline_cqe| {
        if inline_cqe.qpn != scatter.qpn || !scatter.ring.is_pending(inline_cqe.receive) {
            return None;
        }
        let scattered = scatter.place(&pin, inline_cqe);
        fault |= scattered.fault.is_some();
        let (qpn, receive) = (inline_cqe.qpn, inline_cqe.receive);
        Some(Aside {
            qpn,
            receive,
            scattered,
        })
    });
    drop(pin);
    fault
}
