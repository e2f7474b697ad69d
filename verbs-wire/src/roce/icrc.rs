//! Invariant CRC of InfiniBand (IBTA vol. 1, 7.8.1) and RoCEv2 (annex A17.3.3): Ethernet's CRC-32 over everything
//! that no router changes, with ones in place of fields that routers may change.
//!
//! It covers the route headers (in RoCEv2 the IP and UDP headers), so the CRC of a packet can be computed only
//! with them. For one peer and one length these headers are the same in every packet: keep their [`Icrc`] and
//! clone it.

use crc32fast::Hasher;

use crate::bth::{Bth, pad_len};
use crate::{HeaderName, WireError};

/// Replaces the local route header, which RoCEv2 does not have and routers change.
const LRH: [u8; 8] = [0xff; 8];

/// The CRC of a packet so far: a new one covers the IP and UDP headers. Cloning is cheap.
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

    /// Begins with a local route header as it is on an InfiniBand link, if the BTH follows it.
    #[inline]
    pub fn local(lrh: &[u8; 8]) -> Self {
        let mut lrh = *lrh;
        lrh[0] |= 0xf0; // virtual lane
        let mut crc = Hasher::new();
        crc.update(&lrh);
        Self(crc)
    }

    /// Begins with a global route header as it is on an InfiniBand link. Routers rewrite local route headers, so
    /// nothing of that one is covered.
    #[inline]
    pub fn global(grh: &[u8; 40]) -> Self {
        let mut grh = *grh;
        grh[0] |= 0x0f; // traffic class and flow label
        grh[1..4].fill(0xff);
        grh[7] = 0xff; // hop limit
        let mut crc = Hasher::new();
        crc.update(&LRH);
        crc.update(&grh);
        Self(crc)
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

    /// Continues after headers that left the CRC's register at this value.
    #[inline]
    pub(crate) fn behind(register: u32) -> Self {
        Self(Hasher::new_with_initial(!register))
    }

    /// The CRC's register.
    #[inline]
    pub(crate) fn register(self) -> u32 {
        !self.0.finalize()
    }

    /// Adds headers as [`Head::emit`](crate::Head::emit) wrote them, or a packet's first piece: any bytes that
    /// begin with the base transport header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if the BTH is incomplete.
    #[inline]
    pub fn head(&mut self, head: &[u8]) -> Result<(), WireError> {
        let Some((bth, rest)) = head.split_first_chunk() else {
            return Err(WireError::Truncated {
                header: HeaderName::Bth,
                need: Bth::LEN,
                got: head.len(),
            });
        };
        self.bth(bth);
        self.update(rest);
        Ok(())
    }

    /// Adds the base transport header.
    #[inline]
    pub fn bth(&mut self, bth: &[u8; Bth::LEN]) {
        self.0.update(&Self::invariant(bth));
    }

    /// The base transport header as it is covered.
    #[inline]
    pub(crate) fn invariant(bth: &[u8; Bth::LEN]) -> [u8; Bth::LEN] {
        let mut bth = *bth;
        bth[4] = 0xff; // FECN, BECN and reserved bits, which a switch may set
        bth
    }

    /// Adds the bytes after the base transport header, in any number of pieces, including pad bytes but not the
    /// ICRC itself.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC; on the wire its least significant byte is first.
    #[inline]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }

    /// Ends a packet whose payload of that many bytes has been added: returns its pad bytes, which are added too,
    /// and its ICRC.
    #[inline]
    pub fn trailer(mut self, payload_len: usize) -> Trailer {
        let pad = pad_len(payload_len);
        self.update(&[0; 3][..pad]);
        let [a, b, c, d] = self.finish().to_le_bytes();
        Trailer {
            bytes: [0, 0, 0, a, b, c, d],
            pad,
        }
    }

    /// The CRC of a packet in one piece, from its BTH to its last pad byte.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if the BTH is incomplete.
    pub fn compute(&self, packet: &[u8]) -> Result<u32, WireError> {
        let mut crc = self.clone();
        crc.head(packet)?;
        Ok(crc.finish())
    }

    /// Checks a packet in one piece, from its BTH to its ICRC.
    ///
    /// # Errors
    /// [`WireError::Icrc`] if it is not the computed one, [`WireError::Truncated`] if there is not even a BTH and
    /// an ICRC.
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

/// The end of a packet whose payload is elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Three pad bytes and the ICRC.
    bytes: [u8; Self::LEN_MAX],
    /// The number of pad bytes that belong to the packet; at most 3.
    pad: usize,
}

impl Trailer {
    /// Bytes of the longest trailer.
    pub const LEN_MAX: usize = 3 + Icrc::LEN;

    /// Pad bytes and ICRC, in the order after the payload.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[3 - self.pad..]
    }
}
