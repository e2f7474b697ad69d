//! What a queue pair tells its client unasked, and what it must notice for that.

use verbs_core::qp::QpCore;
use verbs_core::sync::atomic::Ordering::{AcqRel, Acquire};
use verbs_core::sync::{Arc, Weak};
use verbs_core::{EventType, QpState, QpType};

use crate::direct::path::Door;
use crate::port::Port;
use crate::qp::QueuePair;
use crate::qp::pairing::queue_pairs_on;
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
        if self.contacted.swap(true, AcqRel) {
            return;
        }
        let in_rtr = {
            let links = self.port.link.lock();
            // Nothing is taken away, so nobody is waited for.
            let _ = self.repair(&links);
            self.state() == QpState::Rtr
        };
        if in_rtr {
            self.raise(EventType::CommEst);
        }
    }

    fn raise(&self, event: EventType) {
        if self.qp_type == QpType::XrcRecv {
            for core in self.port.xrc.owners(self.qpn) {
                event.raise_for(&core);
            }
        } else if let Some(core) = self.core.get().and_then(Weak::upgrade) {
            event.raise_for(&core);
        }
    }

    fn recall(self: Arc<Self>, then: Job) {
        Self::recall(&self, then);
    }
}

impl Port {
    /// Completions of that queue were lost: every queue pair on it goes to ERR, as none can go on (IBTA vol. 1,
    /// 11.2.6.1).
    pub(crate) fn overrun(&self, cq: &Arc<CqRing>) {
        cq.tell_overrun(&self.counters);
        for qp in queue_pairs_on(&self.link, cq) {
            if QueuePair::fail(&qp) {
                // Its own completion may be the lost one, so nothing else tells it.
                qp.raise(EventType::QpFatal);
            }
        }
    }
}

impl QueuePair {
    pub(crate) fn set_core(&self, core: &Arc<QpCore>) {
        // The queue pair is new, so nobody has set this.
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// Who may land messages on it.
    pub(crate) fn door(&self) -> Door {
        if self.state() == QpState::Rtr && !self.contacted.load(Acquire) {
            Door::First
        } else if self.port.link.is_bare() {
            Door::Direct
        } else {
            Door::Machine
        }
    }
}
