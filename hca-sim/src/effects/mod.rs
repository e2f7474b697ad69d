//! The effects of work on queue pairs: events, verbs that are done, queue pairs that go to ERR.
//!
//! They are collected while a machine is held, and carried out after it has been released.

use smallvec::SmallVec;
use verbs_core::mem::MrTable;
use verbs_core::sync::Arc;
use verbs_core::{EventType, Qpn, WcStatus, collect};

use crate::direct::message::MessageFault;
use crate::direct::path::DirectPath;
use crate::engine::Due;
use crate::link::Change;
use crate::queue::base::events::{Job, QpEvents, WaitsForCq};
use crate::queue::cq::CqRing;
use crate::queue::srq::SharedReceives;
use crate::transport::{Told, tell};

mod finish;

pub(crate) use finish::Finish;

/// The effects of a turn, carried out when the machine has been released.
#[derive(Default)]
pub(crate) struct Effects {
    /// Packets that have left their queue pairs wait for room on the link.
    pub(crate) blocked: bool,
    /// Most turns have none of these, or none at all: then one look tells so, and there is nothing to drop.
    few: Option<Few>,
    /// The rest, which nearly every turn has none of.
    rare: Option<Box<Rare>>,
}

/// The effects of a packet, kept in place: the few that there are cost no allocation.
#[derive(Default)]
pub(crate) struct Few {
    pub(crate) fire: SmallVec<[Arc<CqRing>; 2]>,
    /// Verbs that are done, seldom more than one: a modify costs no allocation.
    pub(crate) finish: SmallVec<[Finish; 1]>,
    /// Ports on the same link that packets have been delivered to.
    pub(crate) fed: Fed,
    /// Facts for the log, each with its queue pair. What is lost on a busy machine costs no allocation.
    pub(crate) told: SmallVec<[(Qpn, Told, Option<WcStatus>); 1]>,
}

/// The effects that are not part of moving messages.
#[derive(Default)]
pub(crate) struct Rare {
    pub(crate) fail: Vec<Arc<dyn QpEvents>>,
    /// Queue pairs whose packets find no room on the link.
    pub(crate) stalled: Vec<Arc<dyn QpEvents>>,
    /// Queue pairs that have more to do as soon as this is done.
    pub(crate) again: Vec<Arc<dyn QpEvents>>,
    /// Keys that have something to release.
    pub(crate) settle: Vec<(Arc<MrTable>, u32)>,
    /// Further jobs.
    pub(crate) after: Vec<Job>,
    pub(crate) overrun: Vec<Arc<CqRing>>,
    /// Queue pairs that were put off by a completion queue that changes hands.
    pub(crate) waiting: Vec<(Arc<CqRing>, Arc<dyn QpEvents>)>,
    /// Queue pairs whose send queue goes to SQE.
    pub(crate) fail_sends: Vec<Arc<dyn QpEvents>>,
    pub(crate) contact: Vec<Arc<dyn QpEvents>>,
    /// The changes that the link has reported.
    pub(crate) news: Vec<Change>,
    pub(crate) raise: Vec<(Arc<dyn QpEvents>, EventType)>,
    pub(crate) srq_limit: Vec<Arc<SharedReceives>>,
    /// Queue pairs that wait until no thread looks at what a key stood for.
    pub(crate) later: Vec<(Arc<dyn QpEvents>, Arc<MrTable>, u32)>,
    /// Queue pairs whose inline CQEs are to be recalled, and the senders that need it.
    pub(crate) recall: Vec<(Arc<dyn QpEvents>, Arc<dyn QpEvents>)>,
}

/// Ports that packets have been delivered to; most often it is one.
pub(crate) type Fed = SmallVec<[Arc<dyn Due>; 1]>;

/// See [`Effects::take_packets`].
pub(crate) struct ForDriver {
    pub(crate) stalled: Vec<Arc<dyn QpEvents>>,
    pub(crate) blocked: bool,
    pub(crate) fed: Fed,
    pub(crate) news: Vec<Change>,
    pub(crate) again: Vec<Arc<dyn QpEvents>>,
}

/// Calls for each of a list. Most lists are empty, and draining one costs more than looking at it.
macro_rules! each {
    ($all:expr, $one:pat => $call:expr) => {
        if !$all.is_empty() {
            for $one in $all.drain(..) {
                $call;
            }
        }
    };
}

impl Effects {
    /// The lists of what happens more often.
    pub(crate) fn few(&mut self) -> &mut Few {
        self.few.get_or_insert_default()
    }

    /// The lists of what seldom happens.
    #[cold]
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Whether a completion queue that changes hands has put off a queue pair.
    pub(crate) fn waits(&self) -> bool {
        self.rare
            .as_ref()
            .is_some_and(|rare| !rare.waiting.is_empty())
    }

    /// The responder has refused a message: it goes to ERR. No completion reports the reason unless a receive was
    /// consumed, so an event does (IBTA vol. 1, 9.9.3).
    pub(crate) fn refused(&mut self, direct: &DirectPath, fault: &MessageFault) {
        let Some(responder) = direct.responder.upgrade() else {
            return;
        };
        let event = match fault.status {
            _ if fault.receive.is_some() => None,
            WcStatus::RemAccessErr => Some(EventType::QpAccessErr),
            _ => Some(EventType::QpReqErr),
        };
        let rare = self.rare();
        rare.fail.push(Arc::clone(&responder));
        rare.raise.extend(event.map(|event| (responder, event)));
    }

    /// Inline CQEs have to be recalled before the sender's machine continues, which owns that direction.
    pub(crate) fn recall_inline_cqes(&mut self, direct: &DirectPath, sender: Arc<dyn QpEvents>) {
        direct.ring.count_recall();
        // The direct path was alive under the pin that its machine is inside, so its responder lives.
        let responder = direct.responder.upgrade();
        let recalled = responder.map(|responder| (responder, sender));
        self.rare().recall.extend(recalled);
    }

    /// Whether all that follows is that handlers of completion queues are called.
    pub(crate) fn only_fires(&self) -> bool {
        let only_fires =
            |few: &Few| few.finish.is_empty() && few.fed.is_empty() && few.told.is_empty();
        self.rare.is_none() && !self.blocked && self.few.as_ref().is_none_or(only_fires)
    }

    /// The effects that the driver itself handles.
    pub(crate) fn take_packets(&mut self) -> ForDriver {
        let mut none = Rare::default();
        let rare = self.rare.as_deref_mut().unwrap_or(&mut none);
        ForDriver {
            stalled: std::mem::take(&mut rare.stalled),
            blocked: std::mem::take(&mut self.blocked),
            fed: self
                .few
                .as_mut()
                .map_or(Fed::new(), |few| std::mem::take(&mut few.fed)),
            news: std::mem::take(&mut rare.news),
            again: std::mem::take(&mut rare.again),
        }
    }

    /// The queue pair continues when the completion queue has changed hands.
    pub(crate) fn wait_for(&mut self, cq: &Arc<CqRing>, qp: Arc<dyn QpEvents>) {
        self.rare().waiting.push((Arc::clone(cq), qp));
    }

    /// Carries out the effects, outside of pins, locks and turns. Returns the queue pairs that were put off by a
    /// completion queue that has changed hands since, and are to try again at once.
    ///
    /// `overrun` takes down the queue pairs of a completion queue that has lost some.
    ///
    /// Routines, handlers and wakers run when the thread has done all of it, and has finished its turn ([`collect`]); a
    /// panic in one does not prevent the others.
    pub(crate) fn carry_out(&mut self, overrun: &dyn Fn(&Arc<CqRing>)) -> Vec<Arc<dyn QpEvents>> {
        let Self { few, rare, .. } = self;
        collect(|| {
            if let Some(few) = few {
                each!(few.told, (qpn, told, gave_up) => tell(qpn, told, gave_up));
            }
            if let Some(rare) = rare {
                rare.before_handlers(overrun);
            }
            if let Some(few) = few {
                each!(few.fire, cq => cq.fire());
                each!(few.finish, finish => finish.complete());
            }
            rare.as_mut()
                .map_or(Vec::new(), |rare| rare.after_handlers())
        })
    }

    /// Whether there is nothing to carry out.
    pub(crate) fn are_none(&self) -> bool {
        self.few.is_none() && self.rare.is_none()
    }

    /// As [`Effects::carry_out`], where that is [all](Self::only_fires).
    pub(crate) fn call_handlers(&mut self) {
        if let Some(few) = &mut self.few {
            collect(|| each!(few.fire, cq => cq.fire()));
        }
    }
}

impl Rare {
    /// What [`Effects::carry_out`] does before it calls handlers and completes verbs.
    fn before_handlers(&mut self, overrun: &dyn Fn(&Arc<CqRing>)) {
        each!(self.settle, (mrs, index) => mrs.settle(index));
        each!(self.contact, qp => qp.contact());
        each!(self.fail, qp => qp.fail());
        each!(self.fail_sends, qp => qp.fail_sends());
        each!(self.overrun, cq => overrun(&cq));
        each!(self.raise, (qp, event) => qp.raise(event));
        each!(self.srq_limit, srq => srq.raise_limit());
    }

    /// What it does afterwards; the same result.
    fn after_handlers(&mut self) -> Vec<Arc<dyn QpEvents>> {
        each!(self.later, (qp, mrs, index) => mrs.when_over(index, move || qp.kick()));
        each!(self.recall, (responder, sender) => responder.recall(Box::new(move || sender.kick())));
        each!(self.after, job => job());
        let mut again = std::mem::take(&mut self.waiting);
        again.retain(|(cq, qp)| cq.convert(Arc::clone(qp) as Arc<dyn WaitsForCq>));
        again.into_iter().map(|(_, qp)| qp).collect()
    }
}
