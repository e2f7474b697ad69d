//! One thread at a time does the work; others leave a mark and go.
//!
//! Whoever has a reason enters. The first one *holds* the turnstile and does the work; who comes
//! meanwhile is counted, and the holder goes round again before it lets go. So nobody waits, and no
//! reason is lost.

use verbs_core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    /// 0: nobody holds it. Otherwise 1 and those who came meanwhile.
    turns: AtomicU32,
}

/// The right to do the work; given back by [`Held::leave`].
#[derive(Debug)]
#[must_use = "the turnstile is held until it is left"]
pub(crate) struct Held<'t> {
    turnstile: &'t Turnstile,
    seen: u32,
}

impl Turnstile {
    /// Enters with a reason: `None` if somebody else will see to it.
    pub(crate) fn enter(&self) -> Option<Held<'_>> {
        (self.turns.fetch_add(1, AcqRel) == 0).then_some(Held {
            turnstile: self,
            seen: 1,
        })
    }

    /// Enters if nobody is inside, and leaves no mark otherwise.
    pub(crate) fn try_enter(&self) -> Option<Held<'_>> {
        let free = self.turns.compare_exchange(0, 1, AcqRel, Acquire).is_ok();
        free.then_some(Held {
            turnstile: self,
            seen: 1,
        })
    }
}

impl<'t> Held<'t> {
    /// Leaves whoever came meanwhile; whether somebody did since it was entered.
    pub(crate) fn release(self) -> bool {
        self.turnstile.turns.swap(0, AcqRel) != self.seen
    }

    /// Leaves; gives the turnstile back if somebody came since it was entered or left in vain last.
    pub(crate) fn leave(self) -> Option<Held<'t>> {
        let Self { turnstile, seen } = self;
        match turnstile.turns.compare_exchange(seen, 0, AcqRel, Acquire) {
            Ok(_) => None,
            Err(seen) => Some(Self { turnstile, seen }),
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_holder_goes_round_again_for_those_who_came() {
        let turnstile = Turnstile::default();
        let held = turnstile.enter().expect("nobody is inside");
        assert!(turnstile.enter().is_none());
        assert!(turnstile.try_enter().is_none(), "and leaves no mark");
        let held = held.leave().expect("one came");
        assert!(held.leave().is_none());
        assert!(turnstile.try_enter().expect("free").leave().is_none());
    }
}
