//! The protocol between the host of a subnet and clients in other processes, and its transports; and what programs of a user
//! tell each other.

/// Bytes of each of a port's two [rings](verbs_link::ring): enough for a few messages of 64 KiB to be read while others
/// are written. Half of what a reliable connection may have unacknowledged, so the ring holds a sender back before its
/// receiver loses packets.
pub const RING_LEN: usize = 512 << 10;

pub mod message;
pub mod place;
pub mod published;
pub mod socket;
