//! The NIC's word for registered memory ([`Vouch`]).

use verbs_core::provider::Vouch;

use super::Nic;

pub(super) fn of(nic: &Nic) -> Vouch {
    // SAFETY: memory is registered with the device's driver for as long as its region lives, and nothing else here keeps it.
    // The hardware and its driver access it as IBTA says: for work requests that are posted, until they complete, and for
    // peers that name a key. Work completions are reported as the driver reports them.
    unsafe { Vouch::new(nic) }
}
