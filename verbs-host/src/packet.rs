//! What the daemon reads of packets: their destination, and the datagrams of the connection manager in them.
//!
//! Clients make and check ICRCs; their numbers are in the packets. So what is read here is only a hint about a packet's
//! client: a packet that was damaged on its way is dropped by the client that receives it.

use verbs_core::Qpn;
use verbs_core::mad::MadBytes;

/// The offset of the destination in a base transport header (IBTA vol. 1, 9.2).
const DEST_QPN: usize = 5;
/// Bytes of the base transport header, and of the datagram header behind it.
const BTH: usize = 12;
const DETH: usize = 8;
/// The operation of a datagram in one packet, without immediate data.
const UD_SEND_ONLY: u8 = 0x64;
/// Bytes of an invariant CRC.
const ICRC: usize = 4;
/// The queue pair of general services.
pub(crate) const GSI: Qpn = Qpn::new(1);

/// The queue pair that a packet is for; `None` if it is too short to be a packet.
pub(crate) fn dest(packet: &[u8]) -> Option<Qpn> {
    if packet.len() < BTH + ICRC {
        return None;
    }
    let number = packet.get(DEST_QPN..DEST_QPN + 3)?;
    Some(Qpn::new(u32::from_be_bytes([
        0, number[0], number[1], number[2],
    ])))
}

/// The management datagram in a packet, if there is one.
pub(crate) fn mad(packet: &[u8]) -> Option<&MadBytes> {
    let is_datagram = packet.first() == Some(&UD_SEND_ONLY);
    let mad = packet.get(BTH + DETH..)?;
    // Only the ICRC follows.
    is_datagram
        .then(|| mad.first_chunk())
        .flatten()
        .filter(|mad: &&MadBytes| packet.len() == BTH + DETH + mad.len() + ICRC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_packets_are_for_nobody() {
        for len in 0..300 {
            let packet = vec![UD_SEND_ONLY; len];
            assert_eq!(dest(&packet).is_some(), len >= 16, "{len}");
            assert_eq!(mad(&packet).is_some(), len == 280, "{len}");
        }
        let mut packet = [0; 16];
        packet[5..8].copy_from_slice(&[0x12, 0x34, 0x56]);
        assert_eq!(dest(&packet), Some(Qpn::new(0x12_3456)));
    }
}
