//! Invariant CRC of RoCEv2 (IBTA annex A17.3.3): Ethernet's CRC-32 over everything that no router
//! changes, with ones in place of what one may.
//!
//! Covered are the IP and UDP headers too, so the CRC of a packet is known only with them. For one
//! peer and one length these headers are the same from packet to packet: keep the [`Icrc`] of them and
//! clone it.

use crc32fast::Hasher;

use crate::wire::bth::Bth;
use crate::wire::{HeaderName, WireError};

/// Stands in for the local route header that RoCEv2 does not have.
const LRH: [u8; 8] = [0xff; 8];

/// The CRC of a packet so far: a fresh one has seen the IP and UDP headers. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Bytes of the ICRC on the wire.
    pub const LEN: usize = 4;

    /// Begins with an IPv4 header without options and a UDP header, as they are on the wire.
    pub fn ipv4(ip: &[u8; 20], udp: &[u8; 8]) -> Self {
        let mut ip = *ip;
        ip[1] = 0xff; // type of service
        ip[8] = 0xff; // time to live
        ip[10..12].fill(0xff); // header checksum
        Self::begin(&ip, udp)
    }

    /// Begins with an IPv6 header and a UDP header, as they are on the wire.
    pub fn ipv6(ip: &[u8; 40], udp: &[u8; 8]) -> Self {
        let mut ip = *ip;
        ip[0] |= 0x0f; // traffic class and flow label
        ip[1..4].fill(0xff);
        ip[7] = 0xff; // hop limit
        Self::begin(&ip, udp)
    }

    fn begin(ip: &[u8], udp: &[u8; 8]) -> Self {
        let mut udp = *udp;
        udp[6..].fill(0xff); // checksum
        let mut crc = Hasher::new();
        crc.update(&LRH);
        crc.update(ip);
        crc.update(&udp);
        Self(crc)
    }

    /// Takes in the base transport header.
    #[inline]
    pub fn bth(&mut self, bth: &[u8; Bth::LEN]) {
        let mut bth = *bth;
        bth[4] = 0xff; // FECN, BECN and reserved bits, which a switch may set
        self.0.update(&bth);
    }

    /// Takes in what follows the base transport header, in as many pieces as it lies in; pad bytes
    /// included, the ICRC itself not.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC; on the wire its least significant byte comes first.
    #[inline]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }

    /// The CRC of a packet that lies in one piece from its BTH to its last pad byte.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when the BTH is not complete.
    pub fn compute(&self, packet: &[u8]) -> Result<u32, WireError> {
        let Some((bth, rest)) = packet.split_first_chunk() else {
            return Err(WireError::Truncated {
                header: HeaderName::Bth,
                need: Bth::LEN,
                got: packet.len(),
            });
        };
        let mut crc = self.clone();
        crc.bth(bth);
        crc.update(rest);
        Ok(crc.finish())
    }

    /// Checks a packet that lies in one piece from its BTH to its ICRC.
    ///
    /// # Errors
    /// [`WireError::Icrc`] when it is not the one computed, [`WireError::Truncated`] when there is
    /// not even a BTH and an ICRC.
    pub fn verify(&self, packet: &[u8]) -> Result<(), WireError> {
        let Some((packet, icrc)) = packet.split_last_chunk() else {
            return Err(WireError::Truncated {
                header: HeaderName::Icrc,
                need: Self::LEN,
                got: packet.len(),
            });
        };
        let expected = self.compute(packet)?;
        let got = u32::from_le_bytes(*icrc);
        if got == expected {
            Ok(())
        } else {
            Err(WireError::Icrc { expected, got })
        }
    }
}
