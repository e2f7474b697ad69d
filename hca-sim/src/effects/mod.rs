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
use crate::transport::{Facts, tell};

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
    pub(crate) told: SmallVec<[(Qpn, Facts); 1]>,
}

/// An effect that seldom follows from moving messages.
///
/// They are carried out in the order of the variants, those of one variant in the order in which they were added.
pub(crate) enum Effect {
    /// Keys that have something to release.
    Settle(Arc<MrTable>, u32),
    /// A message has arrived.
    Contact(Arc<dyn QpEvents>),
    /// The queue pair goes to ERR.
    Fail(Arc<dyn QpEvents>),
    /// Its send queue goes to SQE.
    FailSends(Arc<dyn QpEvents>),
    /// Completions were lost.
    Overrun(Arc<CqRing>),
    Raise(Arc<dyn QpEvents>, EventType),
    SrqLimit(Arc<SharedReceives>),
    /// After the handlers: the queue pair waits until no thread looks at what a key stood for.
    Later(Arc<dyn QpEvents>, Arc<MrTable>, u32),
    /// The responder's inline CQEs are recalled, because the sender needs it.
    Recall {
        responder: Arc<dyn QpEvents>,
        sender: Arc<dyn QpEvents>,
    },
    /// A further job.
    Run(Job),
    /// A completion queue that changes hands has put the queue pair off.
    WaitForCq(Arc<CqRing>, Arc<dyn QpEvents>),
    /// For the driver: the link has reported a change.
    Link(Change),
    /// For the driver: the packets of the queue pair find no room on the link.
    Stalled(Arc<dyn QpEvents>),
    /// For the holder: the queue pair has more to do as soon as this is done.
    Again(Arc<dyn QpEvents>),
}

impl Effect {
    /// The places of variants before this one are before the handlers.
    const HANDLERS: u8 = 7;

    /// The place of its variant.
    fn order(&self) -> u8 {
        match self {
            Self::Settle(..) => 0,
            Self::Contact(_) => 1,
            Self::Fail(_) => 2,
            Self::FailSends(_) => 3,
            Self::Overrun(_) => 4,
            Self::Raise(..) => 5,
            Self::SrqLimit(_) => 6,
            Self::Later(..) => Self::HANDLERS,
            Self::Recall { .. } => 8,
            Self::Run(_) => 9,
            Self::WaitForCq(..) => 10,
            Self::Link(_) => 11,
            Self::Stalled(_) => 12,
            Self::Again(_) => 13,
        }
    }

    /// Whether it comes before handlers of completion queues are called, and verbs completed.
    fn is_first(&self) -> bool {
        self.order() < Self::HANDLERS
    }

    /// Carries it out; `overrun` as in [`Effects::carry_out`]. Returns what the holder of the machine has to do itself.
    fn carry_out(self, overrun: &dyn Fn(&Arc<CqRing>)) -> Option<Self> {
        match self {
            Self::Settle(mrs, index) => mrs.settle(index),
            Self::Contact(qp) => qp.contact(),
            Self::Fail(qp) => {
                qp.fail();
            }
            Self::FailSends(qp) => qp.fail_sends(),
            Self::Overrun(cq) => overrun(&cq),
            Self::Raise(qp, event) => qp.raise(event),
            Self::SrqLimit(srq) => srq.raise_limit(),
            Self::Later(qp, mrs, index) => mrs.when_over(index, move || qp.kick()),
            Self::Recall { responder, sender } => responder.recall(Box::new(move || sender.kick())),
            Self::Run(job) => job(),
            Self::WaitForCq(cq, qp) => {
                // If the queue has changed hands since, the queue pair tries again at once.
                let changed = cq.convert(Arc::clone(&qp) as Arc<dyn WaitsForCq>);
                return changed.then_some(Self::Again(qp));
            }
            Self::Link(_) | Self::Stalled(_) | Self::Again(_) => return Some(self),
        }
        None
    }
}

/// Effects that are not part of moving messages.
#[derive(Default)]
struct Rare(Vec<Effect>);

/// Ports that packets have been delivered to; most often it is one.
pub(crate) type Fed = SmallVec<[Arc<dyn Due>; 1]>;

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

    /// Adds one that is not part of moving messages.
    #[cold]
    pub(crate) fn add(&mut self, effect: Effect) {
        self.rare.get_or_insert_default().0.push(effect);
    }

    /// Adds several.
    #[cold]
    pub(crate) fn add_all(&mut self, effects: impl IntoIterator<Item = Effect>) {
        let mut effects = effects.into_iter().peekable();
        if effects.peek().is_some() {
            self.rare.get_or_insert_default().0.extend(effects);
        }
    }

    /// Whether a completion queue that changes hands has put off a queue pair.
    pub(crate) fn waits(&self) -> bool {
        let waits = |effect: &Effect| matches!(effect, Effect::WaitForCq(..));
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| rare.0.iter().any(waits))
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
        self.add(Effect::Fail(Arc::clone(&responder)));
        self.add_all(event.map(|event| Effect::Raise(responder, event)));
    }

    /// Inline CQEs have to be recalled before the sender's machine continues, which owns that direction.
    pub(crate) fn recall_inline_cqes(&mut self, direct: &DirectPath, sender: Arc<dyn QpEvents>) {
        direct.ring.count_recall();
        // The direct path was alive under the pin that its machine is inside, so its responder lives.
        let responder = direct.responder.upgrade();
        let recalled = responder.map(|responder| Effect::Recall { responder, sender });
        self.add_all(recalled);
    }

    /// Whether all that follows is that handlers of completion queues are called.
    pub(crate) fn only_fires(&self) -> bool {
        let only_fires =
            |few: &Few| few.finish.is_empty() && few.fed.is_empty() && few.told.is_empty();
        self.rare.is_none() && !self.blocked && self.few.as_ref().is_none_or(only_fires)
    }

    /// Whether packets wait for room on the link, and the ports on the same link that packets have been delivered to: for
    /// the driver.
    pub(crate) fn take_packets(&mut self) -> (bool, Fed) {
        let fed = self.few.as_mut().map(|few| std::mem::take(&mut few.fed));
        (std::mem::take(&mut self.blocked), fed.unwrap_or_default())
    }

    /// The queue pair continues when the completion queue has changed hands.
    pub(crate) fn wait_for(&mut self, cq: &Arc<CqRing>, qp: Arc<dyn QpEvents>) {
        self.add(Effect::WaitForCq(Arc::clone(cq), qp));
    }

    /// Carries out the effects, outside of pins, locks and turns. Returns what the holder of the machine has to do itself:
    /// reports of the link, and queue pairs that are to be tried again; among them those that were put off by a completion
    /// queue that has changed hands since.
    ///
    /// `overrun` takes down the queue pairs of a completion queue that has lost some.
    ///
    /// Routines, handlers and wakers run when the thread has done all of it, and has finished its turn ([`collect`]); a
    /// panic in one does not prevent the others.
    pub(crate) fn carry_out(&mut self, overrun: &dyn Fn(&Arc<CqRing>)) -> Vec<Effect> {
        let few = &mut self.few;
        let mut rare = self.rare.take().map_or(Vec::new(), |rare| rare.0);
        // Sorted without a change of order within a variant.
        rare.sort_by_key(Effect::order);
        collect(|| {
            if let Some(few) = few {
                each!(few.told, (qpn, facts) => tell(qpn, facts));
            }
            let first = rare.iter().take_while(|effect| effect.is_first()).count();
            for effect in rare.drain(..first) {
                effect.carry_out(overrun);
            }
            if let Some(few) = few {
                each!(few.fire, cq => cq.fire());
                each!(few.finish, finish => finish.complete());
            }
            let rest = rare.drain(..);
            rest.filter_map(|effect| effect.carry_out(overrun))
                .collect()
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
