//! Writes captures that Wireshark reads: classic pcap with times in nanoseconds.
//!
//! Times are arguments, so a simulated run gives the same file each time.

use std::io::{self, Write};
use std::iter;
use std::time::Duration;

use crate::{Envelope, Frame, Vcrc};

/// Marks times as nanoseconds and, by its byte order, the byte order of all numbers in the file.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION_MAJOR: u16 = 2;
const VERSION_MINOR: u16 = 4;
/// Most bytes kept of a packet, as in tcpdump: more than any IP packet or Ethernet frame.
const SNAP_LEN: u32 = 262_144;

/// The first header of the packets in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header; no frame check sequence at the end.
    Ethernet,
    /// An IPv4 or IPv6 header, which may differ from packet to packet.
    RawIp,
    /// The local route header of an InfiniBand link; a variant CRC at the end.
    InfiniBand,
}

impl LinkType {
    /// Its number in the file (LINKTYPE_ETHERNET, LINKTYPE_RAW, LINKTYPE_INFINIBAND).
    const fn number(self) -> u32 {
        match self {
            Self::Ethernet => 1,
            Self::RawIp => 101,
            Self::InfiniBand => 247,
        }
    }
}

/// A capture in progress.
///
/// Every packet takes several small writes: wrap files in a [`BufWriter`](std::io::BufWriter). After an error the
/// file may end within a packet; everything written before can still be read.
#[derive(Debug)]
pub struct PcapWriter<W> {
    out: W,
    link_type: LinkType,
}

impl<W: Write> PcapWriter<W> {
    /// Starts a capture: writes the file header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, link_type: LinkType) -> io::Result<Self> {
        out.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        out.write_all(&VERSION_MAJOR.to_le_bytes())?;
        out.write_all(&VERSION_MINOR.to_le_bytes())?;
        // Time zone and accuracy of the times: no program fills them in.
        out.write_all(&[0; 8])?;
        out.write_all(&SNAP_LEN.to_le_bytes())?;
        out.write_all(&link_type.number().to_le_bytes())?;
        Ok(Self { out, link_type })
    }

    /// Adds a packet that was seen `at` that time since the Unix epoch, in pieces that follow each other. It
    /// begins as the capture's [`LinkType`] requires.
    ///
    /// # Errors
    /// Those of `out`. [`io::ErrorKind::InvalidInput`], with nothing written, if the time is 2^32 seconds or more
    /// after the epoch (the year 2106) or the packet is longer than a capture can record.
    pub fn packet(&mut self, at: Duration, pieces: &[&[u8]]) -> io::Result<()> {
        self.record(at, pieces.iter().copied())
    }

    /// Adds a RoCEv2 packet whose IP and UDP headers a socket has written or stripped, and whose transport
    /// packet, from BTH to ICRC, is in pieces. On Ethernet it gets a header without addresses.
    ///
    /// # Errors
    /// Those of [`PcapWriter::packet`]; [`io::ErrorKind::InvalidInput`] in a capture of InfiniBand packets.
    pub fn roce(
        &mut self,
        at: Duration,
        envelope: &Envelope,
        transport: &[&[u8]],
    ) -> io::Result<()> {
        let len = transport
            .iter()
            .fold(0, |len: usize, piece| len.saturating_add(piece.len()));
        let mut headers = [0; ETHERNET_LEN + Envelope::LEN_MAX];
        let (ethernet, ip) = headers.split_at_mut(ETHERNET_LEN);
        ethernet[12..].copy_from_slice(&envelope.ethertype().to_be_bytes());
        let end = ETHERNET_LEN + envelope.emit(len, ip).map_err(invalid)?;
        let begin = match self.link_type {
            LinkType::Ethernet => 0,
            LinkType::RawIp => ETHERNET_LEN,
            LinkType::InfiniBand => return Err(invalid("this is a capture of InfiniBand packets")),
        };
        let headers = iter::once(&headers[begin..end]);
        self.record(at, headers.chain(transport.iter().copied()))
    }

    /// Adds a packet of an InfiniBand link, whose transport packet, from BTH to ICRC, is in one piece.
    ///
    /// # Errors
    /// Those of [`PcapWriter::packet`]; [`io::ErrorKind::InvalidInput`] in a capture of other packets, and for a
    /// packet that no header can represent.
    pub fn frame(&mut self, at: Duration, frame: &Frame, transport: &[u8]) -> io::Result<()> {
        if self.link_type != LinkType::InfiniBand {
            return Err(invalid("this is no capture of InfiniBand packets"));
        }
        let mut headers = [0; Frame::LEN_MAX];
        let len = frame.emit(transport.len(), &mut headers).map_err(invalid)?;
        let headers = &headers[..len];
        let mut vcrc = Vcrc::new();
        vcrc.update(headers);
        vcrc.update(transport);
        self.packet(at, &[headers, transport, &vcrc.finish()])
    }

    /// The kind of packets in it.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }

    /// Ends the capture: flushes it and returns the writer.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn record<'a>(
        &mut self,
        at: Duration,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> io::Result<()> {
        let len = pieces
            .clone()
            .try_fold(0_usize, |len, piece| len.checked_add(piece.len()))
            .and_then(|len| u32::try_from(len).ok())
            .ok_or_else(|| invalid("the packet is longer than a capture can say"))?;
        let seconds = u32::try_from(at.as_secs())
            .map_err(|_| invalid("the time is later than a capture can say"))?;
        let kept = len.min(SNAP_LEN);
        for number in [seconds, at.subsec_nanos(), kept, len] {
            self.out.write_all(&number.to_le_bytes())?;
        }
        let mut room = usize::try_from(kept).unwrap_or(usize::MAX);
        for piece in pieces {
            let piece = &piece[..piece.len().min(room)];
            self.out.write_all(piece)?;
            room -= piece.len();
        }
        Ok(())
    }
}

/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// A sink with room for that many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.checked_sub(bytes.len()) {
                Some(left) => {
                    self.0 = left;
                    Ok(bytes.len())
                }
                None => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Goal: the bytes of the format, see `pcap-savefile(5)`.
    #[test]
    fn files_have_the_bytes_of_the_format() {
        let mut pcap = PcapWriter::new(Vec::new(), LinkType::RawIp).unwrap();
        pcap.packet(Duration::new(0x0102_0304, 999_999_999), &[b"ab", b"", b"c"])
            .unwrap();
        let file = pcap.finish().unwrap();
        let header = [
            0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0,
        ];
        assert_eq!(file[..24], header);
        let record = [
            4, 3, 2, 1, 0xff, 0xc9, 0x9a, 0x3b, 3, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c',
        ];
        assert_eq!(file[24..], record);
    }

    #[test]
    fn long_packets_are_cut_and_say_so() {
        let mut pcap = PcapWriter::new(Vec::new(), LinkType::Ethernet).unwrap();
        let piece = vec![7; 200_000];
        pcap.packet(Duration::ZERO, &[&piece, &piece, &piece])
            .unwrap();
        let file = pcap.finish().unwrap();
        assert_eq!(file[32..36], 262_144_u32.to_le_bytes());
        assert_eq!(file[36..40], 600_000_u32.to_le_bytes());
        assert_eq!(file.len(), 24 + 16 + 262_144);
    }

    #[test]
    fn what_the_format_cannot_say_is_refused_whole() {
        let mut pcap = PcapWriter::new(Vec::new(), LinkType::RawIp).unwrap();
        let late = Duration::from_secs(1 << 32);
        let error = pcap.packet(late, &[b"x"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let envelope = Envelope::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 0xc000);
        let long = vec![0; 65_508];
        assert!(pcap.roce(Duration::ZERO, &envelope, &[&long]).is_err());
        assert_eq!(pcap.finish().unwrap().len(), 24);
    }

    #[test]
    fn errors_of_the_sink_come_back() {
        assert!(PcapWriter::new(Full(23), LinkType::RawIp).is_err());
        let mut pcap = PcapWriter::new(Full(24 + 16 + 2), LinkType::RawIp).unwrap();
        let error = pcap.packet(Duration::ZERO, &[b"abc"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn roce_packets_get_their_headers_again() {
        let v4 = Envelope::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), 0xc121);
        let v6 = Envelope::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 0xc121);
        for envelope in [v4, v6] {
            for (link_type, skipped) in [(LinkType::RawIp, 0), (LinkType::Ethernet, 14)] {
                let mut pcap = PcapWriter::new(Vec::new(), link_type).unwrap();
                pcap.roce(Duration::ZERO, &envelope, &[b"tran", b"sport"])
                    .unwrap();
                let file = pcap.finish().unwrap();
                let packet = &file[24 + 16 + skipped..];
                assert_eq!(Envelope::parse(packet), Ok((envelope, &b"transport"[..])));
            }
        }
    }
}
