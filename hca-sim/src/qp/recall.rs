//! Riders that cannot be left to the next poll ([`crate::queue::cqe_inline`]): a queue pair has its own unloaded.

use verbs_core::mem::{grace, pin};
use verbs_core::sync::{Arc, Weak};

use crate::qp::QueuePair;
use crate::queue::base::events::QpEvents;
use crate::queue::base::word::flag;
use crate::queue::cqe_inline::{Aside, Berths};

impl QueuePair {
    /// What it takes to unload its riders, once it has been in INIT.
    pub(crate) fn berths(self: &Arc<Self>) -> Option<Berths> {
        let ring = self.recv_ring()?;
        let me = Arc::downgrade(self) as Weak<dyn QpEvents>;
        Some(Berths {
            qpn: self.qpn,
            pd: self.pd,
            entries: ring.entries.clone(),
            ring: ring.clone(),
            mrs: Arc::clone(&self.port.mrs),
            qp: me,
        })
    }

    /// Keeps pollers from unloading, and unloads all riders that wait when no poller does any longer; then
    /// does `then`. Outside of pins and locks.
    pub(crate) fn recall(self: &Arc<Self>, then: impl FnOnce() + Send + 'static) {
        let Some(berths) = self.berths() else {
            return then();
        };
        let touched = berths.ring.shut_out_pollers();
        let me = Arc::downgrade(self);
        grace::after(touched, move || {
            let qp = me.upgrade();
            let fault = qp.as_ref().is_some_and(|qp| qp.unload_all(&berths));
            berths.ring.let_pollers_in();
            if let (true, Some(qp)) = (fault, qp) {
                qp.fail();
            }
            then();
        });
    }

    /// Unloads all riders that wait; the pollers are kept out.
    pub(crate) fn end_riding(self: &Arc<Self>, berths: &Berths) {
        let fault = self.unload_all(berths);
        // A number that is used again must not be taken for that of a queue pair that is gone.
        if self.gate.word.tag() & flag::GONE == 0 {
            berths.ring.let_pollers_in();
        }
        if fault {
            self.fail();
        }
    }

    /// Unloads all riders that wait, for the thread that keeps the pollers out; whether one of them could not
    /// be placed.
    fn unload_all(&self, berths: &Berths) -> bool {
        if !berths.ring.are_loaded() {
            return false;
        }
        let (mut fault, pin) = (false, pin());
        // The pin is left when the lock inside is free again: leaving may run others' jobs.
        self.recv_cq.unload(|rider| {
            if rider.qpn != berths.qpn || !berths.ring.is_loaded(rider.receive) {
                return None;
            }
            let unloaded = berths.unload(&pin, rider);
            fault |= unloaded.fault.is_some();
            let (qpn, receive) = (rider.qpn, rider.receive);
            Some(Aside {
                qpn,
                receive,
                unloaded,
            })
        });
        drop(pin);
        fault
    }
}
