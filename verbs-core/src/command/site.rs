//! What stays on the issuer's stack while the provider looks at a request.

use std::cell::{Cell, OnceCell};
use std::panic::Location;

use super::{Origin, Pending, SlotRef};
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

/// What only a request that pends asks of whoever issued it.
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
