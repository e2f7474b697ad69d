//! The word of a NIC whose addresses are others' ([`Vouch`]).

use verbs_core::provider::{Provider, Vouch};

use super::nic::OneNic;

pub(super) fn over(nic: &OneNic, behind: &dyn Provider) -> Option<Vouch> {
    // SAFETY: it changes addresses of connections, and passes all else on as it is.
    unsafe { Vouch::over(nic, behind) }
}
