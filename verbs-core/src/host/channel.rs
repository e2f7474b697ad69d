//! Channels: memory that two clients share, so that packets between them do not pass through the daemon.
//!
//! A client asks for a channel to the owner of a block of queue pair numbers. The daemon makes the memory and the two
//! ends of a bell, and hands each client its part. From then on the two use it alone: the daemon does not map it.
//!
//! Packets that a client has sent through the daemon before must arrive before those that it writes to the memory. So
//! each end says once that it has [changed over](super::Message::ChangedOver); the daemon passes that on behind the
//! packets, and the other end reads its ring from then on.
//!
//! A message of a ring is a [`Head`] and packets, from BTH to ICRC. In an ICRC of zero there is none: memory damages
//! nothing, and who writes to it is known. Or it is a *long* packet, if the reader has said in the memory that it takes
//! those: a [`Head`] and the packet's headers, whose length is the segment; and at the end of the message the payload.

use std::net::IpAddr;

use crate::host::bytes::{Encode, Malformed, Reader, encode};

/// A bit of [`Hello::features`](super::message::Hello::features) and
/// [`Welcome::features`](super::message::Welcome::features): channels.
pub const FEATURE: u64 = 1;

/// Bytes of each ring of a channel at least: a message with the longest burst takes half of one.
pub const RING_LEN_MIN: u32 = 128 << 10;

/// Bytes of each ring at most.
pub const RING_LEN_MAX: u32 = 1 << 20;

/// Descriptors that come with a new channel: the file of the rings, and the client's end of the bell, a socket pair.
pub const FILES: usize = 2;

/// A channel, as a client hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its number; no other channel of the daemon has it.
    pub number: u32,
    /// Which end is the client's: 0 writes to the first ring of the file, 1 to the second.
    pub end: u8,
    /// Bytes of each ring.
    pub ring_len: u32,
    /// The channel is new, and [`FILES`] descriptors come with the message.
    pub is_new: bool,
    /// Blocks of the client at the other end.
    pub blocks: Vec<u16>,
}

encode! { struct Channel { number, end, ring_len, is_new, blocks } }

/// What is in front of the packets of a message in a ring: 8 bytes, and the addresses if they are not those of the message
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Where the packets come from and where they go to; `None`: as those of the message before.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Traffic class.
    pub tclass: u8,
    /// The identification in the IP header that the ICRC of the first packet covers; the next has the next.
    pub ident: u16,
    /// Bytes of each packet but the last, which may be shorter; at least 1.
    pub segment: u16,
}

impl Head {
    /// Bytes of the longest.
    pub const LEN_MAX: usize = 40;

    /// Bytes of one without addresses.
    pub const LEN_MIN: usize = 8;

    /// Its bytes, and how many of them count.
    #[inline]
    pub fn bytes(&self) -> ([u8; Self::LEN_MAX], usize) {
        let mut bytes = [0; Self::LEN_MAX];
        bytes[..2].copy_from_slice(&self.segment.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.ident.to_le_bytes());
        bytes[4] = self.tclass;
        let Some((src, dst)) = self.addresses else {
            return (bytes, Self::LEN_MIN);
        };
        bytes[5] = 1;
        let mut addresses = Vec::with_capacity(Self::LEN_MAX - Self::LEN_MIN);
        src.put(&mut addresses);
        dst.put(&mut addresses);
        bytes[Self::LEN_MIN..].copy_from_slice(&addresses);
        (bytes, Self::LEN_MAX)
    }

    /// Reads it from the front of a message. Returns the rest, the packets.
    ///
    /// # Errors
    /// [`Malformed`], also if there are no packets.
    #[inline]
    pub fn take(message: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (head, rest) = message.split_first_chunk().ok_or(Malformed::Short)?;
        let [s0, s1, i0, i1, tclass, has_addresses, 0, 0]: [u8; Self::LEN_MIN] = *head else {
            return Err(Malformed::Newer);
        };
        let (addresses, packets) = match has_addresses {
            0 => (None, rest),
            1 => {
                let mut from = Reader::new(rest);
                let addresses = (from.read()?, from.read()?);
                (Some(addresses), from.rest())
            }
            _ => return Err(Malformed::Newer),
        };
        let head = Self {
            addresses,
            tclass,
            ident: u16::from_le_bytes([i0, i1]),
            segment: u16::from_le_bytes([s0, s1]),
        };
        match head.segment == 0 || packets.is_empty() {
            true => Err(Malformed::Short),
            false => Ok((head, packets)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that other versions read; none that is cut, or says more than is known, is read.
    #[test]
    fn a_head_has_its_bytes() {
        let [src, dst] = ["1.2.3.4", "::5"].map(|text| text.parse().expect("one"));
        let mut head = Head {
            addresses: None,
            tclass: 6,
            ident: 0x0a0b,
            segment: 2,
        };
        let short = [2, 0, 0x0b, 0x0a, 6, 0, 0, 0];
        assert_eq!(head.bytes().1, Head::LEN_MIN);
        assert_eq!(head.bytes().0[..Head::LEN_MIN], short);
        let message = [&short[..], &[7, 8, 9]].concat();
        assert_eq!(Head::take(&message), Ok((head, &[7, 8, 9][..])));
        assert_eq!(Head::take(&short), Err(Malformed::Short));
        for at in 5..8 {
            let mut newer = message.clone();
            newer[at] = 2;
            assert_eq!(Head::take(&newer), Err(Malformed::Newer));
        }
        head.addresses = Some((src, dst));
        let mut long = short.to_vec();
        long[5] = 1;
        long.extend([0; 10]);
        long.extend([0xff, 0xff, 1, 2, 3, 4]);
        long.extend([0; 15]);
        long.push(5);
        assert_eq!(head.bytes(), (long.clone().try_into().expect("40"), 40));
        long.push(7);
        assert_eq!(Head::take(&long), Ok((head, &[7][..])));
        for len in 0..long.len() {
            assert!(Head::take(&long[..len]).is_err(), "{len}");
        }
        long[0] = 0;
        assert_eq!(Head::take(&long), Err(Malformed::Short));
    }
}
