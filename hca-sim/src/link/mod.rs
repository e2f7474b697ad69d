//! Links: what ports are attached to, what carries packets, and what can be wrapped around it.

mod counters;
mod loopback;
mod packet;
pub mod pcap;
mod udp;

pub use counters::{GsoOff, LinkCounters};
pub use loopback::Loopback;
pub(crate) use loopback::{Fabric, LID_MAX, Links};
pub use packet::{Arrival, Burst, Change, Feedback, Ident, PacketLink, Route, Sent, Waiter};
pub use udp::{ADDRESSES_MAX, LinkError, Udp};
