//! The view of an interface from the layer above.

#[cfg(feature = "smoltcp")]
pub mod embedded;
pub mod offload;

use std::fmt;

use verbs_core::PKey;

use crate::wire::HardwareAddress;

/// Takes an interface's packets: an IP stack in this process, or an adapter to the system's.
///
/// Every method is called under NoBlock, so it may not wait; the caller holds none of the interface's locks.
/// Received packets are delivered one at a time, in the order of their arrival; ICMP messages about a sent packet
/// arrive on the thread that sent it, possibly at the same time.
pub trait Face: Send + Sync {
    /// A packet was received, or the interface itself answers a sent packet with an ICMP message. The bytes are
    /// valid only during the call.
    fn deliver(&self, packet: &[u8]);

    /// No packet follows for now. A face that does the work of several packets together finishes it here.
    fn delivered(&self) {}

    /// There is room again after [`SendError::Full`](crate::SendError::Full).
    fn writable(&self) {}

    /// The link came up, went down, or changed.
    fn link(&self, _link: &LinkInfo) {}
}

/// The state of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Whether packets can be sent.
    pub is_up: bool,
    /// Bytes of the longest packet to a neighbour.
    pub mtu: usize,
    /// Bytes of the longest packet to a group, or to a neighbour that takes no connections.
    pub datagram_mtu: usize,
    /// The address of this end.
    pub hardware: HardwareAddress,
    /// The partition, with the port's kind of membership.
    pub pkey: PKey,
}

impl fmt::Display for LinkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_up { "up" } else { "down" };
        write!(
            f,
            "{state}, mtu {}, link/infiniband {}",
            self.mtu, self.hardware
        )
    }
}
