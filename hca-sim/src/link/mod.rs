//! Links: what ports are attached to, what carries packets, and what can be wrapped around it.
//!
//! Links of packets are those of `verbs-link`, which are re-exported here. The loopback link is the device's own:
//! its messages are placed without packets.

pub mod fabric;
mod hub;
mod loopback;

pub(crate) use hub::HubPort;
pub use loopback::Loopback;
pub(crate) use loopback::{Fabric, LID_MAX, Links};
#[doc(no_inline)]
pub use verbs_link::{
    ADDRESSES_MAX, Arrival, Burst, Cable, CableEnd, Captured, Change, FaultCounters, Faults,
    Faulty, Feedback, GROUPS_MAX, GsoOff, IcrcCounters, Ident, LinkCounters, LinkError, Local,
    Managed, PacketLink, PortSheet, Refusal, Route, Sent, Udp, Verdict, Verifier, Waiter, Wrap,
};
#[doc(no_inline)]
pub use verbs_wire::pcap;
