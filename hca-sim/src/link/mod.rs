//! Links: what ports are attached to, what carries packets, and what can be wrapped around it.

mod cable;
mod captured;
mod counters;
mod entropy;
pub mod fabric;
mod faulty;
mod hub;
mod loopback;
mod managed;
mod packet;
mod udp;
mod verifier;

pub use cable::{Cable, CableEnd};
pub use captured::Captured;
pub use counters::{GsoOff, LinkCounters};
pub use faulty::{FaultCounters, Faults, Faulty};
pub(crate) use hub::HubPort;
pub use loopback::Loopback;
pub(crate) use loopback::{Fabric, LID_MAX, Links};
pub use managed::{Managed, PortSheet};
pub use packet::{
    Arrival, Burst, Change, Feedback, Ident, Local, PacketLink, Refusal, Route, Sent, Waiter,
};
pub use udp::{ADDRESSES_MAX, LinkError, Udp};
#[doc(no_inline)]
pub use verbs_wire::pcap;
pub use verifier::{IcrcCounters, Verdict, Verifier};
