//! Management datagrams that the device itself answers.

use crate::addr::{Lid, Qpn};
use crate::mad::MadBytes;

/// Bytes of a GRH, which precedes a datagram that came with one.
pub const GRH_LEN: usize = 40;

/// A management datagram that has come, as the device gets to see it.
#[derive(Clone, Copy, Debug)]
pub struct MadArrival<'a> {
    /// The special queue pair it came to: 0 for subnet management, 1 for the general services.
    pub qpn: Qpn,
    /// The port it came to, from 1.
    pub port: u8,
    /// LID of the port it came from; 0 where there are none.
    pub slid: Lid,
    /// Service level it came with.
    pub sl: u8,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
    /// Index of its partition in the port's P_Key table.
    pub pkey_index: u16,
    /// Its GRH, if it had one; of a packet over IPv4, the IP header is in the last 20 bytes.
    pub grh: Option<&'a [u8; GRH_LEN]>,
    /// The datagram.
    pub mad: &'a MadBytes,
}

/// What the device has made of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a reply has to be sent, and a datagram that the device did not want goes to others"]
pub enum MadVerdict {
    /// The reply is written, all 256 bytes of it: send it back to where the datagram came from.
    Reply,
    /// The datagram was the device's, and needs no answer.
    Consumed,
    /// The datagram is somebody else's; the reply was not touched.
    NotMine,
}
