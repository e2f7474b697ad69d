//! Ports that a subnet manager configures: what a link with LIDs tells of them, and what answers for them.

use std::fmt;

use verbs_core::mad::sm::{BadKey, PortInfo};
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::{Gid, Guid, PKey, Qpn};

/// What a subnet manager has set of a port, and what the port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSheet {
    /// The node that it belongs to.
    pub node_guid: Guid,
    /// The node's box.
    pub system_guid: Guid,
    /// The port itself.
    pub info: PortInfo,
    /// Its GID table; entries that nobody has set are zero.
    pub gids: Vec<Gid>,
    /// Its P_Key table; entries that nobody has set are zero.
    pub pkeys: Vec<PKey>,
}

/// The side of a port that subnet management sees, for the HCA that is attached to it.
///
/// # Context
/// Everything may be called from routines, under locks of the HCA's, and never blocks. Nothing calls back.
pub trait Managed: Send + Sync + fmt::Debug {
    /// How the port is now.
    fn sheet(&self) -> PortSheet;

    /// A datagram that has come to queue pair 0 or 1: the agents of the port answer theirs.
    fn process(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict;

    /// The HCA has queue pair 0 or 1 take datagrams from now on, or not any more. As long as it has none,
    /// the port answers for itself.
    fn attend(&self, qpn: Qpn, attends: bool);

    /// Sets and clears bits of what the port offers (`PortInfo.CapabilityMask`), as its host does.
    fn offer(&self, set: u32, clear: u32);

    /// A packet with a key that does not fit has come: it is counted, and the subnet manager told.
    fn report(&self, packet: &BadKey);

    /// Pulls the port's cable, or puts it back.
    fn plug(&self, is_in: bool);
}
