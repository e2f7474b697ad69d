//! What a queue pair tells its client unasked, and what it must notice for that.

use verbs_core::qp::QpCore;
use verbs_core::sync::atomic::Ordering::{AcqRel, Acquire};
use verbs_core::sync::{Arc, Weak};
use verbs_core::{EventType, QpState, QpType};

use crate::landing::Door;
use crate::qp::QueuePair;
use crate::queue::events::QpEvents;

impl QpEvents for QueuePair {
    fn fail(self: Arc<Self>) -> bool {
        Self::fail(&self)
    }

    fn kick(self: Arc<Self>) {
        Self::kick(&self);
    }

    fn contact(self: Arc<Self>) {
        Self::contact(&self);
    }

    fn raise(&self, event: EventType) {
        Self::raise(self, event);
    }

    fn recall(self: Arc<Self>, then: Box<dyn FnOnce() + Send>) {
        Self::recall(&self, then);
    }
}

impl QueuePair {
    pub(crate) fn set_core(&self, core: &Arc<QpCore>) {
        // The queue pair is new, so nobody has set this.
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// Raises an event about it. Outside pins and locks.
    pub(crate) fn raise(&self, event: EventType) {
        if self.qp_type == QpType::XrcRecv {
            for core in self.port.xrc.owners(self.qpn) {
                event.raise_for(&core);
            }
        } else if let Some(core) = self.core.get().and_then(Weak::upgrade) {
            event.raise_for(&core);
        }
    }

    /// A message has come. In RTR the first one is an event, and what is sent from now on goes the short
    /// way. Outside pins and locks.
    pub(crate) fn contact(self: &Arc<Self>) {
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
