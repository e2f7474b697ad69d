//! Formats of IP over InfiniBand: views over bytes, and plain values that are parsed and emitted.
//!
//! Parsers take any bytes and never panic; what they refuse they name.

mod arp;
mod encap;
pub mod fuzz;
mod hardware;
mod ip;
mod membership;
mod mgid;
mod nd;
mod private;

pub use arp::{Arp, ArpError, ArpFields, ArpFieldsView, ArpOperation};
pub use encap::{Encap, EncapView, Protocol};
pub use hardware::{HardwareAddress, HardwareFlags};
pub use ip::{Ip, IpError, checksum, too_big};
pub use membership::{Wish, Wishes};
pub use mgid::{Scope, all_nodes, broadcast, group_of, solicited_node};
pub use nd::{Advertisement, Nd, NdError, interface_identifier, link_local};
pub use private::{ConnectedData, ConnectedDataView};

/// Bytes of the encapsulation header.
pub const HEADER_LEN: usize = Encap::LEN;

/// Room in front of a received datagram for its global route.
pub const GRH_LEN: usize = 40;

/// Largest IP packet in connected mode, as Linux has it.
pub const CONNECTED_MTU: usize = 65_520;
