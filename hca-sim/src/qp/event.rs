//! The unsolicited events of a queue pair, and what it must observe to raise them.

use verbs_core::sync::atomic::Ordering::AcqRel;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{EventType, QpState, QpType};

use crate::port::Port;
use crate::qp::QueuePair;
use crate::qp::pairing::queue_pairs_on;
use crate::qp::recall;
use crate::qp::worker::target;
use crate::queue::base::events::{Job, QpEvents};
use crate::queue::cq::CqRing;

impl QpEvents for QueuePair {
    fn fail(self: Arc<Self>) -> bool {
        Self::fail(&self)
    }

    fn fail_sends(self: Arc<Self>) {
        Self::fail_sends(&self);
    }

    fn list(self: Arc<Self>) {
        if let Some(driver) = self.driver() {
            driver.list(&self);
        }
    }

    fn kick(self: Arc<Self>) {
        Self::kick(&self);
    }

    fn contact(self: Arc<Self>) {
        if !self.contacted.swap(true, AcqRel) && self.state() == QpState::Rtr {
            self.raise(EventType::CommEst);
        }
    }

    fn raise(&self, event: EventType) {
        let is_refusal = matches!(event, EventType::QpReqErr | EventType::QpAccessErr);
        if is_refusal && self.port.xrc.is_visitor(self.qpn) {
            // Its home raises it, for all who have it open.
        } else if self.qp_type == QpType::XrcRecv {
            for core in self.port.xrc.owners(self.qpn) {
                event.raise_for(&core);
            }
            target::tell_holders(self, event);
        } else if let Some(core) = self.core.get().and_then(Weak::upgrade) {
            event.raise_for(&core);
        }
    }

    fn recall(self: Arc<Self>, then: Job) {
        recall::recall(&self, then);
    }
}

impl Port {
    /// Completions of that queue were lost: every queue pair that uses it goes to ERR, because none can continue (IBTA
    /// vol. 1, 11.2.6.1).
    pub(crate) fn overrun(&self, cq: &Arc<CqRing>) {
        cq.tell_overrun(&self.counters);
        for qp in queue_pairs_on(&self.link, cq) {
            if QueuePair::fail(&qp) {
                // Its own completion may be the lost one, so nothing else reports it.
                qp.raise(EventType::QpFatal);
            }
        }
    }
}
