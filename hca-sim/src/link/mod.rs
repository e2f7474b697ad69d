//! Links: what ports are attached to, what carries packets, and what can be wrapped around it.

mod loopback;
pub mod pcap;

pub use loopback::Loopback;
pub(crate) use loopback::{Fabric, LID_MAX, Links};
