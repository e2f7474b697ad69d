//! A provider's word for registered memory.
//!
//! # Why a vouch is a provider's own
//!
//! [`Vouch::new`] and [`Vouch::over`] are unsafe, and nothing else makes one. Safe code can pass one on that it was given, as
//! a filter does that hands its question to the provider behind it; so a vouch names its provider by address and type, and
//! counts only when that provider returns it ([`Vouch::is_given`]). A filter and the provider in its first field can have one
//! address, but not one type. The provider is borrowed while it is asked, so no other of its type has its address then.

use std::any::{Any, TypeId};
use std::ptr;

use super::Provider;

/// A provider's word that it keeps to what CONTRACT.md says of registered memory: that it reads and writes it only for
/// work requests that are posted and have not completed, or for peers that name a key with the right for it; that it
/// grants only rights that were asked for; that its completion queues report a work request once, when it no longer reaches the
/// memory; and that whatever it hands out does the same: objects, queues, memory that it has seen.
///
/// Code that lends registered memory as slices asks for it first ([`Device::is_vouched`](crate::Device::is_vouched)). A
/// provider that does not vouch can be used for everything else, and needs no unsafe code.
#[derive(Debug, PartialEq, Eq)]
pub struct Vouch {
    addr: usize,
    kind: TypeId,
}

impl Vouch {
    /// The word of that provider, to be returned from its [`Provider::vouch`].
    ///
    /// # Safety
    /// The provider keeps what [`Vouch`] says, for as long as anything lives that it has had a part in.
    pub unsafe fn new<P: Provider>(provider: &P) -> Self {
        Self::naming(provider)
    }

    /// The word of a filter in front of `inner`, if that gives its own.
    ///
    /// # Safety
    /// As for [`Vouch::new`], if `inner` keeps it.
    pub unsafe fn over<P: Provider>(filter: &P, inner: &dyn Provider) -> Option<Self> {
        Self::is_given(inner).then(|| Self::naming(filter))
    }

    /// As [`Vouch::over`], for the filters of this crate.
    pub(crate) fn over_own<P: Provider>(filter: &P, inner: &dyn Provider) -> Option<Self> {
        // SAFETY: `Trace` looks at what kind of command goes by and what it ends with, `Rename` at addresses of
        // connections; a command that `Fault` does not pass on is refused, dropped or kept whole. None of them looks at
        // memory, and there is no other caller.
        unsafe { Self::over(filter, inner) }
    }

    /// Whether that provider vouches, in its own name.
    pub fn is_given(provider: &dyn Provider) -> bool {
        provider.vouch() == Some(Self::naming(provider))
    }

    fn naming(provider: &dyn Provider) -> Self {
        Self {
            addr: ptr::from_ref(provider).cast::<()>().addr(),
            kind: (provider as &dyn Any).type_id(),
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;
    use crate::command::AnyCommand;
    use crate::error::Error;
    use crate::filter::Trace;
    use crate::sync::Arc;

    /// Vouches.
    struct Own;

    impl Provider for Own {
        fn issue(&self, command: AnyCommand<'_>) {
            command.refuse(Error::Dropped);
        }

        fn vouch(&self) -> Option<Vouch> {
            // SAFETY: it has no memory.
            Some(unsafe { Vouch::new(self) })
        }
    }

    /// Passes on what the one behind says: of the same address, and of another one.
    struct Inside(Own);
    struct Before(Arc<dyn Provider>);

    impl Provider for Inside {
        fn issue(&self, command: AnyCommand<'_>) {
            self.0.issue(command);
        }

        fn vouch(&self) -> Option<Vouch> {
            self.0.vouch()
        }
    }

    impl Provider for Before {
        fn issue(&self, command: AnyCommand<'_>) {
            self.0.issue(command);
        }

        fn vouch(&self) -> Option<Vouch> {
            self.0.vouch()
        }
    }

    /// Goal: a vouch counts for who has given it, and through filters that vouch only; one that is passed on by another
    /// provider, at the same address even, does not.
    #[test]
    fn a_vouch_is_its_providers_own() {
        let own: Arc<dyn Provider> = Arc::new(Own);
        assert!(Vouch::is_given(&*own));
        assert!(Vouch::is_given(&Trace::new(Arc::clone(&own))));
        let inside = Inside(Own);
        assert!(ptr::addr_eq(&raw const inside, &raw const inside.0));
        assert!(!Vouch::is_given(&inside));
        let before: Arc<dyn Provider> = Arc::new(Before(own));
        assert!(!Vouch::is_given(&*before));
        assert!(!Vouch::is_given(&Trace::new(before)));
        assert!(!Vouch::is_given(&Trace::new(Arc::new(inside))));
    }
}
