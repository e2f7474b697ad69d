//! ICRCs of one flow without its headers at hand, and the identification that an ICRC reveals.
//!
//! A CRC is linear: the contribution of a header field depends only on the field and on the number of bytes after
//! it. So the headers of a flow are added once, with lengths and identification 0, and for each packet the
//! contributions of these fields are looked up. Conversely, the difference between a packet's ICRC and the one
//! computed for identification 0 reveals the sender's identification: the packet itself contains what a UDP
//! socket hides. Sixteen of the ICRC's 32 bits then still check the packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bth::Bth;
use crate::envelope::Envelope;
use crate::icrc::Icrc;

/// The part of the IP and UDP headers that the ICRC of a packet needs: everything that is the same for all
/// packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The CRC's register after the headers, with all lengths and the identification 0, and DF set.
    register: u32,
    is_v4: bool,
}

/// The fields of a packet's IPv4 header that its ICRC reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The identification.
    pub identification: u16,
    /// Whether the packet must not be fragmented.
    pub dont_fragment: bool,
}

impl Seal {
    /// Bytes of the longest packet whose identification can be solved for, from its BTH to its last pad byte: a
    /// payload of 4096 and the longest possible headers.
    pub const SOLVED_LEN_MAX: usize = 4096 + 64;

    /// Packets between these addresses from that UDP port; `None` if only one of the addresses is IPv4.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::v4(src, dst, src_port)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::v6(src, dst, src_port)),
            _ => None,
        }
    }

    /// Packets between these addresses from that UDP port.
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16) -> Self {
        Self::behind(&Envelope::v4(src, dst, src_port), true)
    }

    /// Packets between these addresses from that UDP port.
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16) -> Self {
        Self::behind(&Envelope::v6(src, dst, src_port), false)
    }

    fn behind(envelope: &Envelope, is_v4: bool) -> Self {
        // An empty packet has the shortest headers; the contribution of their lengths is removed.
        let register = envelope
            .icrc(0)
            .expect("an empty packet is not too long")
            .register();
        let seal = Self { register, is_v4 };
        Self {
            register: register ^ seal.lengths(0),
            ..seal
        }
    }

    /// The ICRC over the headers of a packet with this identification (which IPv6 does not have), DF set, and
    /// `transport_len` bytes from its BTH to its ICRC.
    #[inline]
    pub fn begin(&self, identification: u16, transport_len: usize) -> Icrc {
        Icrc::behind(self.behind_route(identification, transport_len))
    }

    /// The register behind these headers.
    #[inline]
    fn behind_route(&self, identification: u16, transport_len: usize) -> u32 {
        let register = self.register ^ self.lengths(transport_len);
        if self.is_v4 {
            register ^ share(&SHARES.identification, identification)
        } else {
            register
        }
    }

    /// The ICRC of a packet in one piece, from its BTH to its last pad byte.
    #[inline]
    pub fn icrc(&self, identification: u16, covered: &[u8]) -> u32 {
        let register = self.behind_route(identification, covered.len() + Icrc::LEN);
        let (register, rest) = match covered.split_first_chunk() {
            Some((bth, rest)) => (behind_bth(register, bth), rest),
            // No peer accepts this as a packet.
            None => (register, covered),
        };
        // An acknowledgement has one short header more. What is longer is worth a look for the processor's instructions.
        match <[u8; 4]>::try_from(rest) {
            Ok(word) => !four_on(register ^ u32::from_le_bytes(word)),
            Err(_) => {
                let mut icrc = Icrc::behind(register);
                icrc.update(rest);
                icrc.finish()
            }
        }
    }

    /// Whether a packet, from its BTH to its ICRC, has the right ICRC for that identification and DF.
    #[inline]
    pub fn verify(&self, identification: u16, packet: &[u8]) -> bool {
        self.difference(identification, packet) == Some(0)
    }

    /// The fields that the IPv4 header of a packet, from its BTH to its ICRC, must have had for its ICRC to be
    /// right; `None` if no value makes it right. Packets over IPv6 give identification 0 and DF, or `None`.
    #[inline]
    pub fn solve(&self, packet: &[u8]) -> Option<Solution> {
        let difference = self.difference(0, packet)?;
        if difference == 0 {
            return Some(Solution {
                identification: 0,
                dont_fragment: true,
            });
        }
        let covered_len = packet.len() - Icrc::LEN;
        if !self.is_v4 || !covered_len.is_multiple_of(4) {
            return None;
        }
        // The difference has passed through the packet, the UDP header and the rest of the IP header. Moved back
        // by as many bytes, it is that of identification, flags and fragment offset.
        let back = *BACK.get(covered_len / 4)?;
        let [high, low, flags, offset] = product(back, difference).to_le_bytes();
        let dont_fragment = match (flags, offset) {
            (0x00, 0) => true,
            (0x40, 0) => false,
            _ => return None,
        };
        Some(Solution {
            identification: u16::from_be_bytes([high, low]),
            dont_fragment,
        })
    }

    /// The difference between the ICRC that a packet has and the one it should have.
    #[inline]
    fn difference(&self, identification: u16, packet: &[u8]) -> Option<u32> {
        let (covered, icrc) = packet.split_last_chunk()?;
        if covered.len() < Bth::LEN {
            return None;
        }
        Some(self.icrc(identification, covered) ^ u32::from_le_bytes(*icrc))
    }

    /// The contribution of the length fields of both headers.
    #[inline]
    fn lengths(&self, transport_len: usize) -> u32 {
        let (at, is_whole) = (transport_len / 4, transport_len.is_multiple_of(4));
        match LENGTHS[usize::from(self.is_v4)].get(at) {
            Some(&share) if is_whole => share,
            _ => lengths(self.is_v4, transport_len),
        }
    }
}

/// The contribution of the length fields of both headers.
const fn lengths(is_v4: bool, transport_len: usize) -> u32 {
    // A length that no header can represent makes a wrong ICRC, and no socket sends it.
    let [udp, v4] = [transport_len + 8, transport_len + 28];
    let of_udp = share(&SHARES.udp_len, (udp & 0xffff) as u16);
    of_udp
        ^ if is_v4 {
            share(&SHARES.v4_total_len, (v4 & 0xffff) as u16)
        } else {
            share(&SHARES.v6_payload_len, (udp & 0xffff) as u16)
        }
}

/// Those of packets, whose lengths are multiples of four, by a quarter of the length; of IPv6, then of IPv4.
static LENGTHS: [[u32; Seal::SOLVED_LEN_MAX / 4 + 2]; 2] = {
    let mut table = [[0; Seal::SOLVED_LEN_MAX / 4 + 2]; 2];
    let mut i = 0;
    while i < table[0].len() {
        table[0][i] = lengths(false, 4 * i);
        table[1][i] = lengths(true, 4 * i);
        i += 1;
    }
    table
};

/// The polynomial of CRC-32, reflected: the highest bit of a register stands for x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The contribution of each byte of a 16-bit header field to the register after the headers.
type Share = [[u32; 256]; 2];

struct Shares {
    identification: Share,
    v4_total_len: Share,
    v6_payload_len: Share,
    udp_len: Share,
}

/// The fields, by the number of bytes after them up to the end of the UDP header.
static SHARES: Shares = Shares {
    identification: [byte_share(23), byte_share(22)],
    v4_total_len: [byte_share(25), byte_share(24)],
    v6_payload_len: [byte_share(43), byte_share(42)],
    udp_len: [byte_share(3), byte_share(2)],
};

/// A register four bytes later, by each of its bytes.
static FOUR_ON: [[u32; 256]; 4] = [byte_share(3), byte_share(2), byte_share(1), byte_share(0)];

/// The contributions of the bytes of a base transport header to the register behind it.
static BTH_SHARES: [[u32; 256]; Bth::LEN] = {
    let mut table = [[0; 256]; Bth::LEN];
    let mut i = 0;
    while i < Bth::LEN {
        table[i] = byte_share(Bth::LEN - 1 - i);
        i += 1;
    }
    table
};

/// The register behind a base transport header.
#[inline]
fn behind_bth(register: u32, bth: &[u8; Bth::LEN]) -> u32 {
    let mut bth = Icrc::invariant(bth);
    for (byte, before) in bth.iter_mut().zip(register.to_le_bytes()) {
        *byte ^= before;
    }
    let shares = BTH_SHARES.iter().zip(bth);
    shares.fold(0, |sum, (share, byte)| sum ^ share[usize::from(byte)])
}

/// A register four bytes later.
#[inline]
fn four_on(register: u32) -> u32 {
    let shares = FOUR_ON.iter().zip(register.to_le_bytes());
    shares.fold(0, |sum, (share, byte)| sum ^ share[usize::from(byte)])
}

/// x^(-8(n + 24)) for packets whose ICRC covers n bytes, by n / 4: moves a difference back to just after the
/// flags and the fragment offset.
static BACK: [u32; Seal::SOLVED_LEN_MAX / 4 + 1] = {
    let mut table = [0; Seal::SOLVED_LEN_MAX / 4 + 1];
    let mut factor = back(0x8000_0000, 24);
    let mut i = 0;
    while i < table.len() {
        table[i] = factor;
        factor = back(factor, 4);
        i += 1;
    }
    table
};

#[inline]
const fn share(of: &Share, field: u16) -> u32 {
    let [high, low] = field.to_be_bytes();
    of[0][high as usize] ^ of[1][low as usize]
}

/// The contribution of each value of a byte to a register when that many bytes follow it.
const fn byte_share(following: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut value = 0;
    while value < table.len() {
        table[value] = on(value as u32, following + 1);
        value += 1;
    }
    table
}

/// A register, that many zero bytes later.
const fn on(mut register: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < 8 * bytes {
        let carry = if register & 1 == 0 { 0 } else { POLYNOMIAL };
        register = register >> 1 ^ carry;
        bit += 1;
    }
    register
}

/// A register, that many zero bytes earlier.
const fn back(mut register: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < 8 * bytes {
        register = if register & 0x8000_0000 == 0 {
            register << 1
        } else {
            (register ^ POLYNOMIAL) << 1 | 1
        };
        bit += 1;
    }
    register
}

/// The product of two registers modulo the polynomial.
#[inline]
fn product(a: u32, b: u32) -> u32 {
    let wide = carryless(a, b) << 1;
    // The lower half exceeds the polynomial's degree: it moves four bytes on.
    let [high, low] = [(wide >> 32) as u32, (wide & 0xffff_ffff) as u32];
    high ^ four_on(low)
}

/// The product of two polynomials over GF(2): a multiplication without carries.
///
/// With only every fourth bit of the factors set, at most eight ones meet in a column, and their carries end
/// within the three empty columns: an ordinary multiplication is enough.
#[inline]
fn carryless(a: u32, b: u32) -> u64 {
    const COLUMNS: u64 = 0x1111_1111_1111_1111;
    let every_fourth = |factor: u32| [0, 1, 2, 3].map(|i| u64::from(factor) & COLUMNS << i);
    let (a, b) = (every_fourth(a), every_fourth(b));
    (0..4).fold(0, |sum, column| {
        let products = (0..4).fold(0, |sum, i| sum ^ (a[i] * b[(column + 4 - i) % 4]));
        sum | products & COLUMNS << column
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: the product by ordinary multiplications equals that by shifting and adding.
        #[test]
        fn products_are_those_of_the_long_way(a: u32, b: u32) {
            let (mut multiple, mut sum) = (a, 0);
            for bit in (0..32).rev() {
                if b >> bit & 1 == 1 {
                    sum ^= multiple;
                }
                let carry = if multiple & 1 == 0 { 0 } else { POLYNOMIAL };
                multiple = multiple >> 1 ^ carry;
            }
            prop_assert_eq!(product(a, b), sum);
        }

        #[test]
        fn back_undoes_on(register: u32, bytes in 0_usize..100) {
            prop_assert_eq!(back(on(register, bytes), bytes), register);
        }
    }
}
