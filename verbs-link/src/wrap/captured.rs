//! A link whose packets are written to a file that Wireshark reads.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use crate::time::Clock;
use crate::wrap::Wrap;
use crate::wrap::remarks::Remarks;
use crate::{Arrival, Burst, Ident, PacketLink, Route, Sent};
use verbs_wire::pcap::{Interface, Note, PcapNgWriter};
use verbs_wire::{Envelope, Frame, Net, ROCE_PORT, Seal};

/// A link with a capture of all that it sends and receives, IP and UDP headers included; for a link with LIDs, which
/// needs a capture of [`LinkType::InfiniBand`](verbs_wire::pcap::LinkType::InfiniBand), the route headers and the
/// variant CRC.
///
/// The headers are those on the wire as far as a socket reports them: a hidden identification is solved for, but hop
/// limits of received packets are written as 64 and their UDP checksums as none, and all flow labels are 0. Wireshark
/// remarks on packets over IPv6 without a UDP checksum, which are common in RoCEv2. Packets that a link refuses because
/// it has no room are not written; those that it loses are.
///
/// Each packet has its direction. What a link with faults around this one does to packets that come can be told
/// ([`Captured::remarks`]): it is the comment of the packet.
///
/// When the sink fails, the capture ends, the link continues, and [`Captured::finish`] returns the error.
pub struct Captured<L, W: Write> {
    link: L,
    capture: Capture<W>,
}

impl<L: PacketLink, W: Write + Send> Captured<L, W> {
    /// Captures the packets of `link`, which is the [first](Interface::FIRST) interface of `pcap`. They are stamped with
    /// the time of `clock`, which started `epoch` after the Unix epoch.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use verbs_link::time::{Clock, VirtualClock};
    /// use verbs_wire::pcap::{LinkType, PcapNgWriter};
    /// use verbs_link::{Cable, Captured};
    ///
    /// let (link, _other_end) = Cable::new().plug(&["10.0.0.1".parse()?], &["10.0.0.2".parse()?]);
    /// let pcap = PcapNgWriter::with_interface(Vec::new(), "port 1", LinkType::RawIp)?;
    /// let link = Captured::new(link, pcap, VirtualClock::new().into(), Duration::ZERO);
    /// let (_link, file) = link.finish();
    /// assert!(file?.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]), "a capture without packets");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(link: L, pcap: PcapNgWriter<W>, clock: Clock, epoch: Duration) -> Self {
        let capture = Capture {
            pcap: Ok(pcap),
            clock,
            epoch,
            remarks: Remarks::default(),
        };
        Self { link, capture }
    }

    /// Where a link around this one tells what becomes of packets that come: see [`Faulty::telling`](crate::Faulty::telling).
    pub fn remarks(&self) -> Remarks {
        self.capture.remarks.clone()
    }

    /// Returns the link, and the capture's sink or the error that ended the capture early.
    pub fn finish(self) -> (L, io::Result<W>) {
        (self.link, self.capture.pcap.and_then(PcapNgWriter::finish))
    }
}

struct Capture<W> {
    pcap: io::Result<PcapNgWriter<W>>,
    clock: Clock,
    epoch: Duration,
    remarks: Remarks,
}

impl<W: Write> Capture<W> {
    fn write(&mut self, note: &Note<'_>, envelope: &Envelope, packet: &[u8]) {
        self.add(|pcap| pcap.roce(note, envelope, &[packet]));
    }

    /// A packet of a link with LIDs.
    fn write_frame(&mut self, note: &Note<'_>, frame: &Frame, packet: &[u8]) {
        self.add(|pcap| pcap.frame(note, frame, packet));
    }

    fn add(&mut self, add: impl FnOnce(&mut PcapNgWriter<W>) -> io::Result<()>) {
        if let Ok(pcap) = &mut self.pcap
            && let Err(error) = add(pcap)
        {
            tracing::warn!(%error, "the capture ends here");
            self.pcap = Err(error);
        }
    }

    /// A note about a packet that is seen now.
    fn note(&self) -> Note<'static> {
        let since = Duration::from_nanos(self.clock.now().as_nanos());
        Note::new(Interface::FIRST, self.epoch.saturating_add(since))
    }

    fn sent(&mut self, burst: &Burst<'_>) {
        let note = self.note().outbound();
        let Route {
            src,
            dst,
            tclass,
            hop_limit,
            local,
        } = burst.route;
        if let Some(local) = local {
            let mut frame = local.frame(src, dst);
            frame.vl = if local.is_management(burst.bytes) {
                15
            } else {
                0
            };
            if let Some(grh) = &mut frame.grh {
                (grh.traffic_class, grh.hop_limit) = (tclass, hop_limit);
            }
            for packet in burst.packets() {
                self.write_frame(&note, &frame, packet);
            }
            return;
        }
        for (k, packet) in (0..).zip(burst.packets()) {
            if let Some(mut envelope) = envelope(src, dst, ROCE_PORT, k, true) {
                envelope.traffic_class = tclass;
                envelope.hop_limit = hop_limit;
                envelope.udp_checksum = udp_checksum(&envelope, packet);
                self.write(&note, &envelope, packet);
            }
        }
    }

    fn came(&mut self, note: &Note<'_>, arrival: &Arrival<'_>) {
        let Arrival {
            src, dst, sport, ..
        } = *arrival;
        if let Some(local) = &arrival.local {
            let mut frame = local.frame(src, dst);
            frame.vl = if local.is_management(arrival.bytes) {
                15
            } else {
                0
            };
            if let Some(grh) = &mut frame.grh {
                grh.traffic_class = arrival.tclass;
            }
            return self.write_frame(note, &frame, arrival.bytes);
        }
        let (identification, dont_fragment) = match arrival.ident {
            Ident::Known(identification) => (identification, true),
            Ident::Hidden => Seal::new(src, dst, sport)
                .and_then(|seal| seal.solve(arrival.bytes))
                .map_or((0, true), |found| {
                    (found.identification, found.dont_fragment)
                }),
            Ident::Unsealed => (0, true),
        };
        if let Some(mut envelope) = envelope(src, dst, sport, identification, dont_fragment) {
            envelope.traffic_class = arrival.tclass;
            match arrival.ident {
                Ident::Unsealed => self.write(note, &envelope, &sealed(arrival)),
                _ => self.write(note, &envelope, arrival.bytes),
            }
        }
    }
}

/// The packet with the ICRC that it would have on a network.
fn sealed(arrival: &Arrival<'_>) -> Vec<u8> {
    let mut packet = arrival.bytes.to_vec();
    let seal = Seal::new(arrival.src, arrival.dst, arrival.sport);
    if let Some((seal, (covered, icrc))) = seal.zip(packet.split_last_chunk_mut()) {
        *icrc = seal.icrc(0, covered).to_le_bytes();
    }
    packet
}

/// Headers between these addresses; `None` if only one of them is IPv4.
fn envelope(
    src: IpAddr,
    dst: IpAddr,
    sport: u16,
    identification: u16,
    dont_fragment: bool,
) -> Option<Envelope> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Envelope {
            net: Net::V4 {
                src,
                dst,
                identification,
                dont_fragment,
            },
            ..Envelope::v4(src, dst, sport)
        }),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Envelope::v6(src, dst, sport)),
        _ => None,
    }
}

/// The checksum that the kernel gives such a packet (RFC 768; RFC 8200, 8.1).
fn udp_checksum(envelope: &Envelope, packet: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        let (pairs, last) = bytes.as_chunks();
        let sum: u64 = pairs
            .iter()
            .map(|&pair| u64::from(u16::from_be_bytes(pair)))
            .sum();
        sum + last.first().map_or(0, |&last| u64::from(last) << 8)
    };
    let addresses = match envelope.net {
        Net::V4 { src, dst, .. } => words(&src.octets()) + words(&dst.octets()),
        Net::V6 { src, dst, .. } => words(&src.octets()) + words(&dst.octets()),
    };
    let ports = u64::from(envelope.src_port) + u64::from(ROCE_PORT);
    // The length is both in the pseudo-header, behind the protocol number 17, and in the header.
    let lengths = 17 + 2 * (packet.len() as u64 + 8);
    let mut sum = addresses + ports + lengths + words(packet);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Zero would mean that there is none.
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

impl<L: PacketLink, W: Write + Send> Wrap for Captured<L, W> {
    fn inner(&self) -> &dyn PacketLink {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut dyn PacketLink {
        &mut self.link
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let sent = self.link.transmit(burst);
        if sent == Sent::Gone {
            self.capture.sent(burst);
        }
        sent
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let Self { link, capture } = self;
        link.receive(&mut |arrival| {
            let note = capture.note().inbound();
            // What those above do to it is known when they have had it.
            sink(arrival);
            let comment = capture.remarks.take();
            capture.came(&note.comment(&comment), arrival);
        })
    }
}

impl<L: fmt::Debug, W: Write> fmt::Debug for Captured<L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured")
            .field("link", &self.link)
            .field("is_capturing", &self.capture.pcap.is_ok())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the sum of RFC 768, done by hand.
    #[test]
    fn checksums_are_as_by_hand() {
        let bytes = [0x45, 0x67, 0x89];
        let v4 = Envelope::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
        // 0a00 0001 0a00 0002, 0011 000b, c000 12b7 000b, 4567 8900: together 1_b548.
        assert_eq!(udp_checksum(&v4, &bytes), !0xb549);
        // The sum ffff has the checksum 0, which is written as ffff.
        let v4 = Envelope::v4([0; 4].into(), [0; 4].into(), 0);
        let rest = 0xffff - (17 + 2 * 10 + ROCE_PORT);
        assert_eq!(udp_checksum(&v4, &rest.to_be_bytes()), 0xffff);
    }
}
