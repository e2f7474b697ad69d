//! Links: what ports are attached to, what carries packets, and what can be wrapped around it.

mod loopback;
mod packet;
pub mod pcap;

pub use loopback::Loopback;
pub(crate) use loopback::{Fabric, LID_MAX, Links};
pub use packet::{Arrival, Burst, Change, Feedback, Ident, PacketLink, Route, Sent, Waiter};
