//! What a queue pair tells its client unasked, and what it must notice for that.

use verbs_core::qp::QpCore;
use verbs_core::sync::atomic::Ordering::{AcqRel, Acquire};
use verbs_core::sync::{Arc, Weak};
use verbs_core::{EventType, QpState, QpType};

use crate::direct::path::Door;
use crate::qp::QueuePair;
use crate::queue::base::events::{Job, QpEvents};

impl QpEvents for QueuePair {
    fn fail(self: Arc<Self>) -> bool {
        Self::fail(&self)
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
