//! Ports that a subnet manager configures: what a link with LIDs reports about them, and the agent that answers for
//! them.

use std::fmt;

use verbs_core::mad::sm::{BadKey, PortInfo};
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::{Gid, Guid, PKey, Qpn};

/// The tables of a port: its own attributes, and those that a subnet manager has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortTables {
    /// The node that it belongs to.
    pub node_guid: Guid,
    /// The node's box.
    pub system_guid: Guid,
    /// The port itself.
    pub info: PortInfo,
    /// Its GID table; entries that were not set are zero.
    pub gids: Vec<Gid>,
    /// Its P_Key table; entries that were not set are zero.
    pub pkeys: Vec<PKey>,
}

/// The side of a port that subnet management sees, for the HCA that is attached to it.
///
/// # Context
/// Everything may be called from routines, under locks of the HCA, and never blocks. Nothing calls back.
pub trait Managed: Send + Sync + fmt::Debug {
    /// The current state of the port.
    fn tables(&self) -> PortTables;

    /// A datagram has arrived for queue pair 0 or 1: the agents of the port answer the datagrams that are theirs.
    fn process(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict;

    /// The HCA has queue pair 0 or 1 take datagrams from now on, or no longer. As long as it has none, the port answers
    /// for itself.
    fn attend(&self, qpn: Qpn, attends: bool);

    /// Sets and clears bits of what the port offers (`PortInfo.CapabilityMask`), as its host does.
    fn offer(&self, set: u32, clear: u32);

    /// A packet with a key that does not match has arrived: it is counted, and reported to the subnet manager.
    fn report(&self, packet: &BadKey);

    /// Pulls the port's cable, or plugs it in again.
    fn plug(&self, is_in: bool);
}
