//! From a packet that stands for several to those that go on the wire.

use super::header::{Gso, OffloadError, VnetHeader};
use super::{
    CWR, FIN, PSH, TCP_CHECKSUM, TCP_FLAGS, UDP_CHECKSUM, UDP_HEADER, V4_HEADER, finish_v4, put,
    word,
};
use crate::wire::{V6_HEADER, fold, sum};

/// The longest headers of a packet that stands for others: those of IPv4 and TCP with all options, or some extensions
/// of IPv6.
const HEAD_MAX: usize = 256;

/// Room for the headers of one packet.
#[derive(Debug)]
pub struct Head([u8; HEAD_MAX]);

impl Default for Head {
    fn default() -> Self {
        Self([0; HEAD_MAX])
    }
}

/// A packet of a device, and how much of it was taken. The packet itself stays with the caller, who takes one after
/// the other of [`next`](Self::next), and calls [`advance`](Self::advance) for each that it has sent.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    gso: Gso,
    /// Bytes of the packet.
    len: usize,
    /// Where the header of TCP or UDP begins, and where the payload does.
    transport: usize,
    payload: usize,
    /// Where the checksum is.
    checksum_at: usize,
    /// The sum of the pseudo header without its length.
    pseudo: u16,
    /// Bytes of payload of each packet.
    size: usize,
    /// Bytes of payload that were taken; `None` when there is nothing left.
    taken: Option<usize>,
}

impl Split {
    /// Begins with a packet that a device has given. One that stands only for itself gets its checksum here.
    ///
    /// # Errors
    /// [`OffloadError`] if the header does not describe the packet: it cannot be sent.
    pub fn begin(header: &VnetHeader, packet: &mut [u8]) -> Result<Self, OffloadError> {
        let mismatch = OffloadError::Mismatch(*header);
        let transport = usize::from(header.checksum_start);
        let checksum_at = transport + usize::from(header.checksum_offset);
        let mut split = Self {
            gso: header.gso,
            len: packet.len(),
            transport,
            payload: packet.len(),
            checksum_at,
            pseudo: 0,
            size: usize::from(header.gso_size),
            taken: Some(0),
        };
        if header.gso == Gso::None {
            if header.is_partial {
                let covered = packet.get(transport..).ok_or(mismatch)?;
                if checksum_at + 2 > packet.len() {
                    return Err(mismatch);
                }
                let checksum = nonzero(!sum(0, covered));
                put(packet, checksum_at, checksum);
            }
            return Ok(split);
        }
        split.payload = transport + split.transport_header(packet).ok_or(mismatch)?;
        let fits = header.is_partial
            && split.size > 0
            && split.payload < packet.len()
            && split.payload <= HEAD_MAX;
        if !fits {
            return Err(mismatch);
        }
        // The device's sum is about all of the packet: each of its parts has a length of its own.
        let whole = fold((packet.len() - transport) as u64);
        split.pseudo = fold(u64::from(word(packet, checksum_at)) + u64::from(!whole));
        Ok(split)
    }

    /// Bytes of the header of TCP or UDP, if the packet is what its header says.
    fn transport_header(&self, packet: &[u8]) -> Option<usize> {
        let version = packet.first()? >> 4;
        let (least, is_udp) = match (self.gso, version) {
            (Gso::Tcp4, 4) => (V4_HEADER, false),
            (Gso::Tcp6, 6) => (V6_HEADER, false),
            (Gso::Udp, 4) => (V4_HEADER, true),
            (Gso::Udp, 6) => (V6_HEADER, true),
            _ => return None,
        };
        let offset = self.checksum_at - self.transport;
        let wanted = if is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        if self.transport < least || offset != wanted {
            return None;
        }
        match is_udp {
            true => Some(UDP_HEADER),
            false => {
                let len = usize::from(packet.get(self.transport + 12)? >> 4) * 4;
                (len >= 20).then_some(len)
            }
        }
    }

    /// The next packet for the wire, in two parts: its headers, written into `head`, and its payload. `None` when all
    /// were taken.
    pub fn next<'p>(&self, packet: &'p [u8], head: &'p mut Head) -> Option<(&'p [u8], &'p [u8])> {
        let taken = self.taken?;
        if self.gso == Gso::None {
            return Some((packet, &[]));
        }
        let begin = self.payload + taken;
        let end = self.len.min(begin + self.size);
        let payload = packet.get(begin..end)?;
        let head = head.0.get_mut(..self.payload)?;
        head.copy_from_slice(packet.get(..self.payload)?);
        self.write_head(head, payload, taken);
        Some((head, payload))
    }

    /// The packet that [`next`](Self::next) gives was sent.
    pub fn advance(&mut self) {
        let taken = self.taken.map(|taken| taken + self.size);
        self.taken = taken.filter(|taken| self.gso != Gso::None && self.payload + taken < self.len);
    }

    /// Whether all packets were taken.
    pub fn is_done(&self) -> bool {
        self.taken.is_none()
    }

    /// Makes the headers of the whole those of one part.
    fn write_head(&self, head: &mut [u8], payload: &[u8], taken: usize) {
        let (len, size) = (head.len() + payload.len(), self.size);
        let is_v4 = head.first().is_some_and(|first| first >> 4 == 4);
        if is_v4 {
            let id = word(head, 4).wrapping_add((taken / size) as u16);
            put(head, 4, id);
            // Extensions of the header are options here: all before TCP or UDP is about IP.
            finish_v4(head.get_mut(..self.transport).unwrap_or_default(), len);
        } else {
            put(head, 4, (len - V6_HEADER) as u16);
        }
        let Some(transport) = head.get_mut(self.transport..) else {
            return;
        };
        let covered = transport.len() + payload.len();
        if self.gso == Gso::Udp {
            put(transport, 4, covered as u16);
        } else {
            self.write_tcp(transport, taken, taken + payload.len());
        }
        let at = self.checksum_at - self.transport;
        put(transport, at, 0);
        let begun = sum(u32::from(self.pseudo) + covered as u32, transport);
        let checksum = !sum(begun.into(), payload);
        let checksum = if self.gso == Gso::Udp {
            nonzero(checksum)
        } else {
            checksum
        };
        put(transport, at, checksum);
    }

    /// Its place in the stream; and flags that are only about the end, or the beginning, of the whole.
    fn write_tcp(&self, transport: &mut [u8], taken: usize, end: usize) {
        if let Some(place) = transport
            .get_mut(4..)
            .and_then(<[u8]>::first_chunk_mut::<4>)
        {
            *place = u32::from_be_bytes(*place)
                .wrapping_add(taken as u32)
                .to_be_bytes();
        }
        if let Some(flags) = transport.get_mut(TCP_FLAGS) {
            if self.payload + end < self.len {
                *flags &= !(FIN | PSH);
            }
            if taken > 0 {
                *flags &= !CWR;
            }
        }
    }
}

/// A checksum of 0 means that there is none: the other zero is sent (RFC 768).
const fn nonzero(checksum: u16) -> u16 {
    match checksum {
        0 => 0xffff,
        checksum => checksum,
    }
}
