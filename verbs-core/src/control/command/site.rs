//! What stays on the issuer's stack while the provider looks at a request.

use std::cell::{Cell, OnceCell};
use std::panic::Location;

use super::{Origin, Pending, SlotRef};
use crate::object::Target;
use crate::routine::AnyRoutine;
use crate::sync::Arc;
use crate::verb::Verb;

/// How a request stands when the provider has returned.
pub(crate) enum Outcome<V: Verb> {
    /// Answered.
    Done(Result<V::Output, V::Error>),
    /// Waits in a slot.
    Pended(SlotRef),
}

/// What only a request that pends asks of its issuer.
pub(crate) trait Consumer<V: Verb> {
    /// The routine, which moves into the slot.
    fn stash(&self) -> Option<AnyRoutine> {
        None
    }

    /// The slot that the request has already, because it is only passed on.
    fn pended(&self) -> Option<Pending<V>> {
        None
    }
}

/// The consumer of a request that is polled or waited for.
pub(crate) struct Poller;

impl<V: Verb> Consumer<V> for Poller {}

/// The consumer of a request that pends already and is passed on.
pub(super) struct Forwarded<V: Verb>(Cell<Option<Pending<V>>>);

impl<V: Verb> Forwarded<V> {
    pub(super) fn new(pending: Pending<V>) -> Self {
        Self(Cell::new(Some(pending)))
    }
}

impl<V: Verb> Consumer<V> for Forwarded<V> {
    fn pended(&self) -> Option<Pending<V>> {
        self.0.take()
    }
}

/// The issuer's stack frame: everything about a request that has not pended.
pub(crate) struct Site<'a, V: Verb> {
    pub(crate) target: &'a Arc<V::Target>,
    pub(crate) origin: Origin,
    pub(crate) location: &'static Location<'static>,
    pub(crate) consumer: &'a dyn Consumer<V>,
    /// Written once, in place: moving results is what an inline verb would spend its time on.
    pub(crate) outcome: OnceCell<Outcome<V>>,
}

impl<'a, V: Verb> Site<'a, V> {
    #[inline(always)]
    pub(crate) fn new(
        target: &'a Arc<V::Target>,
        origin: Origin,
        location: &'static Location<'static>,
        consumer: &'a dyn Consumer<V>,
    ) -> Self {
        Self {
            target,
            origin,
            location,
            consumer,
            outcome: OnceCell::new(),
        }
    }

    #[inline(always)]
    pub(super) fn settle(&self, outcome: Outcome<V>) {
        let again = self.outcome.set(outcome).is_err();
        debug_assert!(!again, "a request is answered once");
    }
}

/// What a verb whose result its target's events must not overtake owes the target: dropping it says that the
/// result has been delivered.
pub(crate) struct Delivery(Arc<dyn Target>);

impl Delivery {
    pub(crate) fn new(target: Arc<dyn Target>) -> Self {
        Self(target)
    }

    /// For an answer that has come before the provider returned; `None` for other verbs, and for one that was
    /// not admitted.
    #[inline(always)]
    pub(crate) fn of<V: Verb>(
        is_admitted: bool,
        target: &Arc<V::Target>,
        result: &Result<V::Output, V::Error>,
    ) -> Option<Self> {
        if !V::ORDERED || !is_admitted {
            return None;
        }
        let this = Self(Arc::<V::Target>::clone(target));
        this.settle(result.as_ref().is_ok_and(V::took_effect));
        Some(this)
    }

    /// The result is final.
    pub(crate) fn settle(&self, is_ok: bool) {
        self.0.settled(is_ok);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        Arc::clone(&self.0).delivered();
    }
}
