//! From packets of the wire to one that stands for them.

use std::ops::Range;

use super::header::{Gso, VNET_LEN, VnetHeader};
use super::{
    ACK, PSH, TCP, TCP_CHECKSUM, TCP_FLAGS, UDP, UDP_CHECKSUM, UDP_HEADER, V4_HEADER, finish_v4,
    pseudo, put, word,
};
use crate::wire::{V6_HEADER, sum};

/// Bytes of a packet that stands for others at most.
const LEN_MAX: usize = 65_535;
/// Packets that one stands for at most: the kernel takes 128 of UDP.
const PACKETS_MAX: usize = 64;
/// Don't fragment.
const DF: u16 = 0x4000;

/// Joins consecutive packets of one flow, for a device with `IFF_VNET_HDR`: TCP in sequence, and UDP of one length.
/// Only the checksums of what is joined are verified here; the rest passes as it came.
#[derive(Debug)]
pub struct Join {
    /// The packets that wait, as one.
    bytes: Vec<u8>,
    run: Option<Run>,
    joins_udp: bool,
}

/// Packets that were joined, or one that others may be joined to.
#[derive(Clone, Copy, Debug)]
struct Run {
    shape: Shape,
    packets: usize,
    /// The sequence number of what may follow.
    next: u32,
    /// The last packet ends it.
    is_closed: bool,
}

/// What is to be known of a packet that may be joined.
#[derive(Clone, Copy, Debug)]
struct Shape {
    gso: Gso,
    /// Where the header of TCP or UDP begins, and where the payload does.
    transport: usize,
    payload: usize,
    /// Bytes of payload.
    size: usize,
    sequence: u32,
    /// Nothing follows it in a row.
    is_last: bool,
}

impl Join {
    /// Whether packets of UDP are joined depends on the device: Linux takes them since 6.2.
    pub fn new(joins_udp: bool) -> Self {
        Self {
            bytes: Vec::with_capacity(LEN_MAX),
            run: None,
            joins_udp,
        }
    }

    /// Takes a received packet; `write` gets what does not wait for more: the header for the device, and a packet.
    pub fn push(&mut self, packet: &[u8], mut write: impl FnMut(&[u8; VNET_LEN], &[u8])) {
        let shape = Shape::of(packet).filter(|shape| self.joins_udp || shape.gso != Gso::Udp);
        if let Some(shape) = shape
            && self.extend(packet, &shape)
        {
            return;
        }
        self.flush(&mut write);
        // What has no room for another of its kind, or is followed by none, does not wait.
        match shape.filter(|shape| !shape.is_last && packet.len() + shape.size <= LEN_MAX) {
            Some(shape) => {
                self.bytes.clear();
                self.bytes.extend_from_slice(packet);
                self.run = Some(Run {
                    shape,
                    packets: 1,
                    next: shape.sequence.wrapping_add(shape.size as u32),
                    is_closed: false,
                });
            }
            None => write(&VnetHeader::default().emit(), packet),
        }
    }

    /// No packet follows for now: `write` gets what waits.
    pub fn flush(&mut self, mut write: impl FnMut(&[u8; VNET_LEN], &[u8])) {
        let Some(run) = self.run.take() else { return };
        let header = match run.packets {
            1 => VnetHeader::default(),
            _ => run.finish(&mut self.bytes),
        };
        write(&header.emit(), &self.bytes);
    }

    /// Joins a packet to those that wait, if it is the next of their flow.
    fn extend(&mut self, packet: &[u8], shape: &Shape) -> bool {
        let Some(run) = &mut self.run else {
            return false;
        };
        let payload = packet.get(shape.payload..).unwrap_or_default();
        let fits = !run.is_closed
            && run.packets < PACKETS_MAX
            && self.bytes.len() + payload.len() <= LEN_MAX
            && run.is_continued(&self.bytes, packet, shape);
        // Joined packets are beyond doubt for the system: their checksums must be right.
        let is_right =
            fits && shape.is_right(packet) && (run.packets > 1 || run.shape.is_right(&self.bytes));
        if !is_right {
            return false;
        }
        self.bytes.extend_from_slice(payload);
        run.packets += 1;
        run.next = run.next.wrapping_add(shape.size as u32);
        run.is_closed = shape.is_last || shape.size < run.shape.size;
        if shape.is_last
            && let Some(flags) = self.bytes.get_mut(run.shape.transport + TCP_FLAGS)
        {
            *flags |= PSH;
        }
        true
    }
}

impl Run {
    /// Whether a packet is the next of the flow, so that all its headers follow from those of the first.
    fn is_continued(&self, first: &[u8], packet: &[u8], shape: &Shape) -> bool {
        let own = &self.shape;
        let same = |range: Range<usize>| first.get(range.clone()) == packet.get(range);
        let at = own.transport;
        let ip = match own.transport {
            // All but the length, the identification and the checksum.
            V4_HEADER => same(0..2) && same(6..10) && same(12..20),
            // All but the length.
            _ => same(0..4) && same(6..40),
        };
        let places = (own.gso, own.transport, own.payload);
        if !ip || places != (shape.gso, shape.transport, shape.payload) || shape.size > own.size {
            return false;
        }
        match own.gso {
            Gso::Udp => same(at..at + 4),
            // Ports; acknowledgement and data offset; window; urgent pointer and options. Flags were looked at.
            _ => {
                shape.sequence == self.next
                    && same(at..at + 4)
                    && same(at + 8..at + 13)
                    && same(at + 14..at + 16)
                    && same(at + 18..own.payload)
            }
        }
    }

    /// Makes the headers of the first packet those of all, and returns the header for the device.
    fn finish(&self, bytes: &mut [u8]) -> VnetHeader {
        let Shape {
            gso,
            transport,
            payload,
            size,
            ..
        } = self.shape;
        let len = bytes.len();
        let addresses = Shape::addresses(transport);
        match transport {
            V4_HEADER => finish_v4(bytes.get_mut(..V4_HEADER).unwrap_or_default(), len),
            _ => put(bytes, 4, (len - V6_HEADER) as u16),
        }
        let (protocol, offset) = match gso {
            Gso::Udp => (UDP, UDP_CHECKSUM),
            _ => (TCP, TCP_CHECKSUM),
        };
        if gso == Gso::Udp {
            put(bytes, transport + 4, (len - transport) as u16);
        }
        let addresses = bytes.get(addresses).unwrap_or_default();
        let partial = pseudo(addresses, protocol, len - transport);
        put(bytes, transport + offset, partial);
        VnetHeader {
            is_partial: true,
            gso,
            header_len: payload as u16,
            gso_size: size as u16,
            checksum_start: transport as u16,
            checksum_offset: offset as u16,
        }
    }
}

impl Shape {
    /// A packet of TCP or UDP with a payload, without options or extensions of IP, that is no fragment and whose
    /// lengths agree.
    fn of(packet: &[u8]) -> Option<Self> {
        let (transport, protocol, len) = match packet.first()? {
            // A packet that may be fragmented later needs the identification that it has.
            0x45 if word(packet, 6) == DF => (V4_HEADER, *packet.get(9)?, word(packet, 2).into()),
            first if first >> 4 == 6 => {
                let len = V6_HEADER + usize::from(word(packet, 4));
                (V6_HEADER, *packet.get(6)?, len)
            }
            _ => return None,
        };
        if packet.len() != len {
            return None;
        }
        let header = packet.get(transport..)?;
        let (gso, header_len) = match (protocol, transport) {
            (UDP, _) => (Gso::Udp, UDP_HEADER),
            (TCP, V4_HEADER) => (Gso::Tcp4, usize::from(header.get(12)? >> 4) * 4),
            (TCP, _) => (Gso::Tcp6, usize::from(header.get(12)? >> 4) * 4),
            _ => return None,
        };
        let size = header
            .len()
            .checked_sub(header_len)
            .filter(|&size| size > 0)?;
        let is_last = match gso {
            Gso::Udp => {
                let is_whole = usize::from(word(header, 4)) == header.len();
                // 0 is the sum of those that have none.
                if !is_whole || word(header, UDP_CHECKSUM) == 0 {
                    return None;
                }
                false
            }
            _ => match *header.get(TCP_FLAGS)? {
                _ if header_len < 20 => return None,
                ACK => false,
                flags if flags == ACK | PSH => true,
                // The beginning or the end of a connection, something urgent, a mark of congestion.
                _ => return None,
            },
        };
        let sequence = header.get(4..)?.first_chunk().copied()?;
        Some(Self {
            gso,
            transport,
            payload: transport + header_len,
            size,
            sequence: u32::from_be_bytes(sequence),
            is_last,
        })
    }

    /// Whether the checksums of a packet of that shape are right.
    fn is_right(&self, packet: &[u8]) -> bool {
        let parts = (
            packet.get(..self.transport),
            packet.get(self.transport..),
            packet.get(Self::addresses(self.transport)),
        );
        let (Some(ip), Some(covered), Some(addresses)) = parts else {
            return false;
        };
        let protocol = if self.gso == Gso::Udp { UDP } else { TCP };
        let begun = pseudo(addresses, protocol, covered.len());
        let is_v4 = self.transport == V4_HEADER;
        (!is_v4 || sum(0, ip) == 0xffff) && sum(begun.into(), covered) == 0xffff
    }

    /// Where source and destination are.
    const fn addresses(transport: usize) -> Range<usize> {
        match transport {
            V4_HEADER => 12..20,
            _ => 8..40,
        }
    }
}
