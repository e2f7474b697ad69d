//! The counters of links.

use std::fmt;

/// The counters of a link since it was made. Counters that a link does not support stay at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct LinkCounters {
    /// Packets that were sent, or lost on the way.
    pub packets_sent: u64,
    /// Sends of more than one packet, which the system or the device behind the socket split up.
    pub gso_bursts: u64,
    /// Packets that arrived.
    pub packets_received: u64,
    /// The packets among them that were merged before they reached the socket.
    pub gro_segments: u64,
    /// Bursts for which there was no room, each time that they were offered.
    pub blocked: u64,
    /// Bursts that could not be sent at all.
    pub send_errors: u64,
    /// The system's error number for the last of these (`errno`).
    pub send_errno: Option<i32>,
    /// Datagrams that arrived and were too short, too long, or without a sender.
    pub receive_errors: u64,
    /// Packets among those sent that went to a process of this host through memory that is shared with it.
    pub shared_sent: u64,
    /// Packets among those received that came that way.
    pub shared_received: u64,
    /// Packets that were lost that way, because the other process does not read.
    pub shared_lost: u64,
    /// Reports of the network about packets that it did not deliver (ICMP errors).
    pub icmp_errors: u64,
    /// The reports among them that no program has the destination's UDP port (port unreachable).
    pub port_unreachable: u64,
    /// The reports among them that a packet is larger than the path takes (fragmentation needed, packet too big).
    pub packet_too_big: u64,
    /// Routes on which bursts were given up since the machine's addresses last changed.
    pub gso_routes_off: u64,
    /// Why they were given up on the last such route.
    pub gso_off_reason: Option<GsoOff>,
}

/// Why a link does not send bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum GsoOff {
    /// The kernel has no segmentation offload for UDP.
    Kernel,
    /// The system refused the send.
    Refused,
    /// The packets were sent with identifications other than those that their ICRCs cover.
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
