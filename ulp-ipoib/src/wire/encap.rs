//! The encapsulation header (RFC 4391, section 6).

use verbs_core::wire_record;

wire_record! {
    /// The header of every packet: its type, and two reserved bytes.
    pub struct Encap, EncapView: 4 bytes {
        /// The packet's type, by its Ethernet number.
        protocol: u16 = (0, 0, 16),
    }
}

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Protocol {
    /// A packet of IPv4.
    Ipv4 = 0x0800,
    /// A message of the address resolution protocol.
    Arp = 0x0806,
    /// A message of the reverse address resolution protocol.
    Rarp = 0x8035,
    /// A packet of IPv6.
    Ipv6 = 0x86dd,
}

impl Protocol {
    /// The protocol with that number, if it is one that IPoIB carries.
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x0800 => Self::Ipv4,
            0x0806 => Self::Arp,
            0x8035 => Self::Rarp,
            0x86dd => Self::Ipv6,
            _ => return None,
        })
    }

    /// The header for this protocol.
    pub fn header(self) -> [u8; Encap::LEN] {
        let mut bytes = [0; Encap::LEN];
        let protocol = self as u16;
        Encap { protocol }.emit(&mut bytes);
        bytes
    }

    /// Splits a message into its protocol and the packet. `None` for messages that are too short or have another
    /// protocol.
    pub fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let protocol = EncapView::new(message)?.protocol();
        let packet = message.get(Encap::LEN..)?;
        Some((Self::from_number(protocol)?, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_sent_as_zero_and_ignored() {
        assert_eq!(Protocol::Ipv6.header(), [0x86, 0xdd, 0, 0]);
        let message = [0x08, 0, 0xff, 0xff, 0x45];
        assert_eq!(
            Protocol::split(&message),
            Some((Protocol::Ipv4, &[0x45][..]))
        );
        assert_eq!(Protocol::split(&message[..3]), None);
        assert_eq!(Protocol::split(&[0x88, 0xcc, 0, 0]), None);
    }
}
