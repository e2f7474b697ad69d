//! What programs call and hold: the manager, connections, listeners, groups, and the steps that make them.

pub(crate) mod alternate;
pub mod connect;
pub(crate) mod connection;
pub mod datagram;
pub mod listen;
pub(crate) mod manager;
pub(crate) mod multicast;
pub(crate) mod native;
pub(crate) mod step;
