//! What links count.

use std::fmt;

/// What a link has counted since it was made. A link that does not know a thing leaves it at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Packets that left, or were lost on the way.
    pub packets_sent: u64,
    /// Sends of more than one packet, which something behind the socket took apart.
    pub gso_bursts: u64,
    /// Packets that came.
    pub packets_received: u64,
    /// Packets among them that something before the socket had put together.
    pub gro_segments: u64,
    /// Bursts for which there was no room, each time that they were offered.
    pub blocked: u64,
    /// Bursts that could not be sent at all.
    pub send_errors: u64,
    /// The system's error number for the last of these (`errno`).
    pub send_errno: Option<i32>,
    /// Datagrams that came and were too short, too long, or from nobody.
    pub receive_errors: u64,
    /// Reports of the network about packets that it did not deliver (ICMP errors).
    pub icmp_errors: u64,
    /// Those among them that say that no program has the destination's UDP port (port unreachable).
    pub port_unreachable: u64,
    /// Routes on which bursts were given up since the machine's addresses last changed.
    pub gso_routes_off: u64,
    /// Why they were given up on the last such route.
    pub gso_off_reason: Option<GsoOff>,
}

/// Why a link does not send bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GsoOff {
    /// The kernel has no segmentation offload for UDP.
    Kernel,
    /// The system refused the send.
    Refused,
    /// The packets left with other identifications than their ICRCs cover.
    Identification,
    /// Twice in a row only the first packet of a burst arrived.
    OnlyFirst,
}

impl fmt::Display for GsoOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "the kernel has no segmentation offload for UDP",
            Self::Refused => "the system refused to send a burst",
            Self::Identification => "packets of a burst leave with unexpected identifications",
            Self::OnlyFirst => "only the first packets of bursts arrive",
        })
    }
}
