//! Formats of IP over InfiniBand: views over bytes, and plain values that are parsed and emitted.
//!
//! Parsers take any bytes and never panic; an error names what they refuse.

mod arp;
mod encap;
pub mod fuzz;
mod hardware;
mod ip;
mod membership;
mod mgid;
mod nd;
mod private;
mod sum;

pub use arp::{Arp, ArpError, ArpFields, ArpFieldsView, ArpOperation};
pub use encap::{Encap, EncapView, Protocol};
pub use hardware::{HardwareAddress, HardwareFlags};
pub(crate) use ip::V6_HEADER;
pub use ip::{Ip, IpError, too_big};
pub use membership::{Wish, Wishes};
pub use mgid::{Scope, all_nodes, broadcast, group_of, solicited_node};
pub use nd::{Advertisement, Nd, NdError, interface_identifier, link_local};
pub use private::{ConnectedData, ConnectedDataView};
pub use sum::checksum;
pub(crate) use sum::{fold, sum};

/// Bytes of the encapsulation header.
pub const HEADER_LEN: usize = Encap::LEN;

/// Space before a received datagram for its global route header.
pub const GRH_LEN: usize = 40;

/// Largest IP packet in connected mode, as in Linux.
pub const CONNECTED_MTU: usize = 65_520;
