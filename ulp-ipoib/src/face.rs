//! What an interface looks like from above.

use std::fmt;

use verbs_core::PKey;

use crate::wire::HardwareAddress;

/// Who takes an interface's packets: an IP stack in this process, or the way to the system's.
///
/// All is called under NoBlock, so nothing here may wait; none of the interface's locks is held.
/// Packets that have come are delivered one at a time, in the order of their arrival; news of one that
/// was sent come on the thread that sent it, beside them.
pub trait Face: Send + Sync {
    /// A packet has come, or news of one that was sent: an ICMP message of the interface's own. The
    /// bytes are gone when this returns.
    fn deliver(&self, packet: &[u8]);

    /// There is room again after [`SendError::Full`](crate::SendError::Full).
    fn writable(&self) {}

    /// The link came up, or went down, or is another.
    fn link(&self, _link: &LinkInfo) {}
}

/// How the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Whether packets can be sent.
    pub is_up: bool,
    /// Bytes of the longest packet to a neighbour.
    pub mtu: usize,
    /// Bytes of the longest packet to a group, or to a neighbour who takes no connections.
    pub datagram_mtu: usize,
    /// This end.
    pub hardware: HardwareAddress,
    /// The partition, as the port is a member of it.
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
