//! What work on queue pairs leads to for others: events, verbs that are done, queue pairs that go to ERR.
//!
//! It is collected while a machine is held, and carried out when it was let go.

use smallvec::SmallVec;
use verbs_core::mem::MrTable;
use verbs_core::sync::Arc;
use verbs_core::{EventType, WcStatus, collect};

use crate::direct::message::Fault;
use crate::direct::path::DirectPath;
use crate::engine::Due;
use crate::link::Change;
use crate::qp::finish::Finish;
use crate::queue::base::events::{Job, QpEvents, WaitsForCq};
use crate::queue::cq::CqRing;
use crate::queue::srq::SharedReceives;

/// What a turn leads to, done when the machine is free again.
#[derive(Default)]
pub(crate) struct Effects {
    /// The few that a packet leads to are kept in place: they cost no allocation.
    pub(crate) fire: SmallVec<[Arc<CqRing>; 2]>,
    pub(crate) overrun: Vec<Arc<CqRing>>,
    /// Who was put off by a completion queue that changes hands.
    pub(crate) waiting: Vec<(Arc<CqRing>, Arc<dyn QpEvents>)>,
    pub(crate) fail: Vec<Arc<dyn QpEvents>>,
    /// Whose send queue goes to SQE.
    pub(crate) fail_sends: Vec<Arc<dyn QpEvents>>,
    pub(crate) finish: Vec<Finish>,
    pub(crate) contact: Vec<Arc<dyn QpEvents>>,
    /// Who has packets for which the link has no room.
    pub(crate) stalled: Vec<Arc<dyn QpEvents>>,
    /// Packets that have left their queue pairs wait for room on the link.
    pub(crate) blocked: bool,
    /// Ports on the same link that packets have been brought to.
    pub(crate) fed: Fed,
    /// What the link has told about itself.
    pub(crate) news: Vec<Change>,
    pub(crate) raise: Vec<(Arc<dyn QpEvents>, EventType)>,
    pub(crate) srq_limit: Vec<Arc<SharedReceives>>,
    /// Who has more to do as soon as this is done.
    pub(crate) again: Vec<Arc<dyn QpEvents>>,
    /// Who waits until nobody is looking at what a key stood for.
    pub(crate) later: Vec<(Arc<dyn QpEvents>, Arc<MrTable>, u32)>,
    /// Whose riders are to be called back, and for whom.
    pub(crate) recall: Vec<(Arc<dyn QpEvents>, Arc<dyn QpEvents>)>,
    /// Keys that have let something go.
    pub(crate) settle: Vec<(Arc<MrTable>, u32)>,
    /// What else there is to do.
    pub(crate) after: Vec<Job>,
}

/// Ports that packets have been brought to; most often it is one.
pub(crate) type Fed = SmallVec<[Arc<dyn Due>; 1]>;

/// See [`Effects::take_packets`].
pub(crate) struct ForDriver {
    pub(crate) stalled: Vec<Arc<dyn QpEvents>>,
    pub(crate) blocked: bool,
    pub(crate) fed: Fed,
    pub(crate) news: Vec<Change>,
}

impl Effects {
    /// The responder has refused a message: it goes to ERR. No completion tells it why unless a receive
    /// was consumed, so an event does (IBTA vol. 1, 9.9.3).
    pub(crate) fn refused(&mut self, land: &DirectPath, fault: &Fault) {
        let Some(responder) = land.responder.upgrade() else {
            return;
        };
        let event = match fault.status {
            _ if fault.receive.is_some() => None,
            WcStatus::RemAccessErr => Some(EventType::QpAccessErr),
            _ => Some(EventType::QpReqErr),
        };
        self.fail.push(Arc::clone(&responder));
        self.raise.extend(event.map(|event| (responder, event)));
    }

    /// Riders are to be called back before the sender's machine goes on, which owns that direction.
    pub(crate) fn call_back(&mut self, land: &DirectPath, sender: Arc<dyn QpEvents>) {
        land.ring.count_recall();
        // The direct path was alive under the pin that its machine is inside, so its responder lives.
        let responder = land.responder.upgrade();
        let recalled = responder.map(|responder| (responder, sender));
        self.recall.extend(recalled);
    }

    /// What the driver itself sees to.
    pub(crate) fn take_packets(&mut self) -> ForDriver {
        ForDriver {
            stalled: std::mem::take(&mut self.stalled),
            blocked: std::mem::take(&mut self.blocked),
            fed: std::mem::take(&mut self.fed),
            news: std::mem::take(&mut self.news),
        }
    }

    /// The queue pair goes on when the completion queue has changed hands.
    pub(crate) fn wait_for(&mut self, cq: &Arc<CqRing>, qp: Arc<dyn QpEvents>) {
        self.waiting.push((Arc::clone(cq), qp));
    }

    /// Does what was noted, outside of pins, locks and turns. Who was put off by a completion queue that
    /// has changed hands since, and is to try again at once.
    ///
    /// `overrun` takes down the queue pairs of a completion queue that has lost some.
    ///
    /// Routines, handlers and wakers run when the thread has done all of it, and the turn that it takes
    /// ([`collect`]); one that panics takes nothing from the others.
    pub(crate) fn carry_out(&mut self, overrun: &dyn Fn(&Arc<CqRing>)) -> Vec<Arc<dyn QpEvents>> {
        collect(|| self.carry_out_all(overrun))
    }

    fn carry_out_all(&mut self, overrun: &dyn Fn(&Arc<CqRing>)) -> Vec<Arc<dyn QpEvents>> {
        for (mrs, index) in self.settle.drain(..) {
            mrs.settle(index);
        }
        for qp in self.contact.drain(..) {
            qp.contact();
        }
        for qp in self.fail.drain(..) {
            qp.fail();
        }
        for qp in self.fail_sends.drain(..) {
            qp.fail_sends();
        }
        for cq in self.overrun.drain(..) {
            overrun(&cq);
        }
        for (qp, event) in self.raise.drain(..) {
            qp.raise(event);
        }
        for srq in self.srq_limit.drain(..) {
            srq.raise_limit();
        }
        for cq in self.fire.drain(..) {
            cq.fire();
        }
        for finish in self.finish.drain(..) {
            finish.complete();
        }
        for (qp, mrs, index) in self.later.drain(..) {
            mrs.when_over(index, move || qp.kick());
        }
        for (responder, sender) in self.recall.drain(..) {
            responder.recall(Box::new(move || sender.kick()));
        }
        for job in self.after.drain(..) {
            job();
        }
        let mut again = std::mem::take(&mut self.waiting);
        again.retain(|(cq, qp)| cq.convert(Arc::clone(qp) as Arc<dyn WaitsForCq>));
        again.into_iter().map(|(_, qp)| qp).collect()
    }
}
