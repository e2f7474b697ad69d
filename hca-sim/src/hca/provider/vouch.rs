//! The HCA's word for registered memory ([`Vouch`]).

use verbs_core::Provider;
use verbs_core::provider::Vouch;

/// For the HCA, and for nothing else.
pub(in crate::hca) fn of<P: Provider>(hca: &P) -> Vouch {
    // SAFETY: all accesses go through the keys of its table, under a pin ([`verbs_core::mem`]): for a work request between
    // its post and its completion, and for a peer whose key grants the right. Completion queues are pushed to after the
    // access. Simulators compare what arrives (`verbs-simulator`), and so do the conformance suite and its planted defects.
    unsafe { Vouch::new(hca) }
}

/// For the command interface before one, and for nothing else.
pub(in crate::hca) fn over<P: Provider>(front: &P, behind: &dyn Provider) -> Option<Vouch> {
    // SAFETY: it delays commands, and changes none. Memory that a command registers is held by the command alone.
    unsafe { Vouch::over(front, behind) }
}
