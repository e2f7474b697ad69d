//! The HCA's word for registered memory ([`Vouch`]).

use verbs_core::Provider;
use verbs_core::provider::Vouch;

use crate::hca::Hca;
use crate::hca::command::CommandInterface;

pub(in crate::hca) fn of(hca: &Hca) -> Vouch {
    // SAFETY: all accesses go through the keys of its table, under a pin ([`verbs_core::mem`]): for a work request between
    // its post and its completion, and for a peer whose key grants the right. Completion queues are pushed to after the
    // access. Simulators compare what arrives (`verbs-simulator`), and so do the conformance suite and its planted defects.
    unsafe { Vouch::new(hca) }
}

pub(in crate::hca) fn over(front: &CommandInterface, behind: &dyn Provider) -> Option<Vouch> {
    // SAFETY: it delays commands, and changes none. Memory that a command registers is held by the command alone.
    unsafe { Vouch::over(front, behind) }
}
