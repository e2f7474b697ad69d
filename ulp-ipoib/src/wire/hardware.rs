//! The link-layer address (RFC 4391, section 9.1.1; RFC 4755, section 3.2).

use std::fmt;

use bitflags::bitflags;
use verbs_core::{Gid, Qpn};

bitflags! {
    /// What a node supports besides datagrams.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct HardwareFlags: u8 {
        /// Reliable connections.
        const RC = 0x80;
        /// Unreliable connections.
        const UC = 0x40;
    }
}

/// The address of a node on the link: its port and its queue pair for datagrams.
///
/// Comparisons ignore the flags: a node that starts to take connections stays the same.
#[derive(Clone, Copy, Default)]
pub struct HardwareAddress {
    /// What it supports. Unknown bits are dropped.
    pub flags: HardwareFlags,
    /// Its queue pair for datagrams.
    pub qpn: Qpn,
    /// Its port.
    pub gid: Gid,
}

impl HardwareAddress {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Reads an address; every content is legal.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [flags, a, b, c, gid @ ..] = *bytes;
        Self {
            flags: HardwareFlags::from_bits_truncate(flags),
            qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])),
            gid: Gid(gid),
        }
    }

    /// Writes the address.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let [_, a, b, c] = self.qpn.value().to_be_bytes();
        bytes[..4].copy_from_slice(&[self.flags.bits(), a, b, c]);
        bytes[4..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Whether it takes reliable connections.
    pub const fn takes_rc(&self) -> bool {
        self.flags.contains(HardwareFlags::RC)
    }
}

impl PartialEq for HardwareAddress {
    fn eq(&self, other: &Self) -> bool {
        (self.qpn, self.gid) == (other.qpn, other.gid)
    }
}

impl Eq for HardwareAddress {}

impl fmt::Debug for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As `ip link` shows it.
impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.emit().iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_no_part_in_comparison_and_unknown_ones_are_ignored() {
        let mut bytes = [0x11; 20];
        bytes[..4].copy_from_slice(&[0xbf, 0, 4, 4]);
        let one = HardwareAddress::parse(&bytes);
        assert!(one.takes_rc());
        assert_eq!(one.emit()[..4], [0x80, 0, 4, 4]);
        bytes[0] = 0;
        assert_eq!(HardwareAddress::parse(&bytes), one);
        bytes[19] = 0;
        assert_ne!(HardwareAddress::parse(&bytes), one);
        assert!(one.to_string().starts_with("80:00:04:04:11:11"));
    }
}
