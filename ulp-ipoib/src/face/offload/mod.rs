//! Offload for a face that is a device of the system: one large packet in place of several.
//!
//! A TUN device with `IFF_VNET_HDR` has a [`VnetHeader`] before every packet. What the system sends may be a packet of
//! TCP or UDP that stands for many, without its checksum: [`Split`] makes packets for the wire of it. What was
//! received may be given to the system the same way: [`Join`] makes one packet of consecutive ones of a flow, so that
//! the system is called once for all of them.
//!
//! Both are without I/O. What cannot be joined, packets that are malformed or whose checksum is wrong above all,
//! passes unchanged, and the system judges it.

pub mod fuzz;
mod header;
mod join;
mod split;
#[cfg(test)]
mod tests;

pub use header::{Gso, OffloadError, VNET_LEN, VnetHeader};
pub use join::Join;
pub use split::{Head, Split};

use crate::wire::{fold, sum};

/// The number of TCP among protocols.
const TCP: u8 = 6;
/// The number of UDP among protocols.
const UDP: u8 = 17;
/// Bytes of an IPv4 header without options.
const V4_HEADER: usize = 20;
/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// Where the checksum is in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Where the checksum is in a UDP header.
const UDP_CHECKSUM: usize = 6;
/// Where the flags are in a TCP header.
const TCP_FLAGS: usize = 13;
const FIN: u8 = 1;
const PSH: u8 = 1 << 3;
const ACK: u8 = 1 << 4;
const CWR: u8 = 1 << 7;

/// Writes a word of the network's order, if there is room for it.
fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// The word of the network's order at that place; 0 outside the bytes.
fn word(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |&word| u16::from_be_bytes(word))
}

/// Writes the length of a packet of IPv4 into its header, and the header's checksum.
fn finish_v4(header: &mut [u8], len: usize) {
    put(header, 2, len as u16);
    put(header, 10, 0);
    put(header, 10, !sum(0, header));
}

/// The sum of the pseudo header: addresses (8 or 32 bytes), protocol and length.
fn pseudo(addresses: &[u8], protocol: u8, len: usize) -> u16 {
    fold(u64::from(sum(u32::from(protocol), addresses)) + len as u64)
}
