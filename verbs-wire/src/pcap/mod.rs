//! Writes captures that Wireshark and tcpdump read: pcapng, with several interfaces, directions and comments.
//!
//! Times are arguments, so a simulated run gives the same file each time. The crate pcap-file writes the format too, but
//! wants each packet in one piece, and its last release (2.0) depends on old versions of three crates.

#[cfg(feature = "testing")]
pub mod reader;

use std::io::{self, Write};
use std::iter;
use std::time::Duration;

use crate::{Envelope, Frame, Vcrc};

/// Types of blocks and of options (draft-ietf-opsawg-pcapng, section 4).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// By its bytes a reader finds the byte order of all numbers in the section.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const VERSION_MAJOR: u16 = 1;
const VERSION_MINOR: u16 = 0;
/// Nobody knows how long the section will be.
const UNKNOWN_LEN: u64 = u64::MAX;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
/// Times are in units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// Most bytes kept of a packet, as in tcpdump: more than any IP packet or Ethernet frame.
const SNAP_LEN: u32 = 262_144;
/// Bytes of a header of ERF, and the values of its fields (ERF Types Reference Guide).
const ERF_LEN: usize = 16;
const ERF_TYPE_INFINIBAND: u8 = 21;
const ERF_VARYING_LEN: u8 = 4;
/// Most bytes of a name or a comment.
const TEXT_LEN_MAX: usize = 1024;

/// The first header of the packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header; no frame check sequence at the end.
    Ethernet,
    /// An IPv4 or IPv6 header, which may differ from packet to packet.
    RawIp,
    /// A header of the Extensible Record Format (ERF), as ibdump writes it; behind it the local route header of an
    /// InfiniBand link, and a variant CRC at the end. Wireshark does not know the link type that begins with the local
    /// route header itself, 247.
    InfiniBand,
}

impl LinkType {
    /// Its number in the file (LINKTYPE_ETHERNET, LINKTYPE_RAW, LINKTYPE_ERF).
    const fn number(self) -> u16 {
        match self {
            Self::Ethernet => 1,
            Self::RawIp => 101,
            Self::InfiniBand => 197,
        }
    }
}

/// An interface of a capture, see [`PcapNgWriter::interface`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interface(u32);

impl Interface {
    /// The first one of a capture.
    pub const FIRST: Self = Self(0);
}

/// What a capture notes beside a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note<'a> {
    interface: Interface,
    at: Duration,
    /// The two bits of the format; 0 if it is not known.
    direction: u32,
    comment: &'a str,
}

impl Note<'_> {
    /// A packet was seen on that interface, `at` that time since the Unix epoch.
    pub const fn new(interface: Interface, at: Duration) -> Self {
        Self {
            interface,
            at,
            direction: 0,
            comment: "",
        }
    }

    /// It came in.
    pub const fn inbound(self) -> Self {
        Self {
            direction: 1,
            ..self
        }
    }

    /// It went out.
    pub const fn outbound(self) -> Self {
        Self {
            direction: 2,
            ..self
        }
    }

    /// With a comment; none if it is empty. Of a long one the first 1,024 bytes are kept.
    pub const fn comment(self, comment: &str) -> Note<'_> {
        Note { comment, ..self }
    }
}

/// A capture in progress.
///
/// Each packet is one write. After an error the file may end within a packet; everything written before can still be
/// read.
///
/// ```
/// use std::time::Duration;
///
/// use verbs_wire::pcap::{LinkType, Note, PcapNgWriter};
///
/// let mut pcap = PcapNgWriter::new(Vec::new())?;
/// let port = pcap.interface("roce0", LinkType::RawIp)?;
/// let note = Note::new(port, Duration::from_secs(1)).inbound().comment("lost");
/// pcap.packet(&note, &[&[0x45, 0x00], &[0x00, 0x02]])?;
/// let file = pcap.finish()?;
/// assert_eq!(file.len() % 4, 0, "blocks are whole words");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct PcapNgWriter<W> {
    out: W,
    /// Those of the interfaces.
    link_types: Vec<LinkType>,
    block: Block,
}

impl<W: Write> PcapNgWriter<W> {
    /// Starts a capture: writes the section header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut pcap = Self {
            out,
            link_types: Vec::new(),
            block: Block::default(),
        };
        let block = pcap.block.begin(SECTION_HEADER);
        block.add(&BYTE_ORDER_MAGIC.to_le_bytes());
        block.add(&VERSION_MAJOR.to_le_bytes());
        block.add(&VERSION_MINOR.to_le_bytes());
        block.add(&UNKNOWN_LEN.to_le_bytes());
        let program = concat!("Verbs ", env!("CARGO_PKG_VERSION"));
        block.option(SHB_USERAPPL, program.as_bytes());
        pcap.write()?;
        Ok(pcap)
    }

    /// As [`new`](Self::new), with its [first](Interface::FIRST) interface.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn with_interface(out: W, name: &str, link_type: LinkType) -> io::Result<Self> {
        let mut pcap = Self::new(out)?;
        pcap.interface(name, link_type)?;
        Ok(pcap)
    }

    /// Adds an interface, whose name may be empty. Packets that follow may be of it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn interface(&mut self, name: &str, link_type: LinkType) -> io::Result<Interface> {
        let number = u32::try_from(self.link_types.len())
            .map_err(|_| invalid("a capture has at most 2^32 interfaces"))?;
        let block = self.block.begin(INTERFACE_DESCRIPTION);
        block.add(&link_type.number().to_le_bytes());
        block.add(&[0; 2]);
        block.add(&SNAP_LEN.to_le_bytes());
        if !name.is_empty() {
            block.text(IF_NAME, name);
        }
        block.option(IF_TSRESOL, &[NANOSECONDS]);
        self.write()?;
        self.link_types.push(link_type);
        Ok(Interface(number))
    }

    /// Adds a packet in pieces that follow each other. It begins as the [`LinkType`] of its interface requires.
    ///
    /// # Errors
    /// Those of `out`. [`io::ErrorKind::InvalidInput`], with nothing written, if the interface is another capture's, the
    /// time is 2^64 nanoseconds or more after the epoch (the year 2554), or the packet is longer than a capture can
    /// record.
    pub fn packet(&mut self, note: &Note<'_>, pieces: &[&[u8]]) -> io::Result<()> {
        self.record(note, pieces.iter().copied())
    }

    /// Adds a RoCEv2 packet whose IP and UDP headers a socket has written or stripped, and whose transport
    /// packet, from BTH to ICRC, is in pieces. On Ethernet it gets a header without addresses.
    ///
    /// # Errors
    /// Those of [`PcapNgWriter::packet`]; [`io::ErrorKind::InvalidInput`] on an interface of InfiniBand packets.
    pub fn roce(
        &mut self,
        note: &Note<'_>,
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
        let begin = match self.link_type(note.interface)? {
            LinkType::Ethernet => 0,
            LinkType::RawIp => ETHERNET_LEN,
            LinkType::InfiniBand => {
                return Err(invalid("this is an interface of InfiniBand packets"));
            }
        };
        let headers = iter::once(&headers[begin..end]);
        self.record(note, headers.chain(transport.iter().copied()))
    }

    /// Adds a packet of an InfiniBand link, whose transport packet, from BTH to ICRC, is in one piece.
    ///
    /// # Errors
    /// Those of [`PcapNgWriter::packet`]; [`io::ErrorKind::InvalidInput`] on an interface of other packets, and for a
    /// packet that no header can represent.
    pub fn frame(&mut self, note: &Note<'_>, frame: &Frame, transport: &[u8]) -> io::Result<()> {
        if self.link_type(note.interface)? != LinkType::InfiniBand {
            return Err(invalid("this is no interface of InfiniBand packets"));
        }
        let mut headers = [0; Frame::LEN_MAX];
        let len = frame.emit(transport.len(), &mut headers).map_err(invalid)?;
        let headers = &headers[..len];
        let mut vcrc = Vcrc::new();
        vcrc.update(headers);
        vcrc.update(transport);
        let erf = erf_header(note.at, len + transport.len() + Vcrc::LEN)?;
        self.packet(note, &[&erf, headers, transport, &vcrc.finish()])
    }

    /// Ends the capture: flushes it and returns the writer.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn link_type(&self, interface: Interface) -> io::Result<LinkType> {
        let found = usize::try_from(interface.0).ok();
        found
            .and_then(|number| self.link_types.get(number).copied())
            .ok_or_else(|| invalid("the interface is not of this capture"))
    }

    fn record<'a>(
        &mut self,
        note: &Note<'_>,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> io::Result<()> {
        self.link_type(note.interface)?;
        let len = pieces
            .clone()
            .try_fold(0_usize, |len, piece| len.checked_add(piece.len()))
            .and_then(|len| u32::try_from(len).ok())
            .ok_or_else(|| invalid("the packet is longer than a capture can say"))?;
        let at = u64::try_from(note.at.as_nanos())
            .map_err(|_| invalid("the time is later than a capture can say"))?;
        let kept = len.min(SNAP_LEN);
        let block = self.block.begin(ENHANCED_PACKET);
        let (high, low) = ((at >> 32) as u32, at as u32);
        for number in [note.interface.0, high, low, kept, len] {
            block.add(&number.to_le_bytes());
        }
        let mut room = usize::try_from(kept).unwrap_or(usize::MAX);
        for piece in pieces {
            let piece = &piece[..piece.len().min(room)];
            block.add(piece);
            room -= piece.len();
        }
        block.pad();
        if !note.comment.is_empty() {
            block.text(OPT_COMMENT, note.comment);
        }
        if note.direction != 0 {
            block.option(EPB_FLAGS, &note.direction.to_le_bytes());
        }
        self.write()
    }

    /// Writes the block that was built.
    fn write(&mut self) -> io::Result<()> {
        let block = self.block.end()?;
        self.out.write_all(block)
    }
}

/// The header of a record of ERF about an InfiniBand packet of that length.
fn erf_header(at: Duration, len: usize) -> io::Result<[u8; ERF_LEN]> {
    let whole = u16::try_from(len + ERF_LEN)
        .map_err(|_| invalid("the packet is longer than a record of ERF can say"))?;
    let mut header = [0; ERF_LEN];
    // A fixed-point number of seconds, the only field whose least significant byte comes first.
    let fraction = (u64::from(at.subsec_nanos()) << 32) / 1_000_000_000;
    let seconds = at.as_secs() << 32 | fraction;
    header[..8].copy_from_slice(&seconds.to_le_bytes());
    header[8] = ERF_TYPE_INFINIBAND;
    // Packets have their own lengths.
    header[9] = ERF_VARYING_LEN;
    header[10..12].copy_from_slice(&whole.to_be_bytes());
    header[14..].copy_from_slice(&(whole - ERF_LEN as u16).to_be_bytes());
    Ok(header)
}

/// A block that is being built, without its two lengths. Its memory is used again.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    has_options: bool,
}

impl Block {
    fn begin(&mut self, block_type: u32) -> &mut Self {
        self.bytes.clear();
        self.has_options = false;
        self.add(&block_type.to_le_bytes());
        // Its length is known at its end.
        self.add(&[0; 4]);
        self
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Fills up a word.
    fn pad(&mut self) {
        let whole = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(whole, 0);
    }

    /// An option whose value is short.
    fn option(&mut self, code: u16, value: &[u8]) {
        self.add(&code.to_le_bytes());
        self.add(&(value.len() as u16).to_le_bytes());
        self.add(value);
        self.pad();
        self.has_options = true;
    }

    /// An option whose value is a text, which is cut if it is long.
    fn text(&mut self, code: u16, text: &str) {
        let end = text.floor_char_boundary(TEXT_LEN_MAX);
        self.option(code, &text.as_bytes()[..end]);
    }

    /// The whole block.
    fn end(&mut self) -> io::Result<&[u8]> {
        if self.has_options {
            // opt_endofopt, without a value.
            self.add(&[0; 4]);
        }
        let len = u32::try_from(self.bytes.len() + 4)
            .map_err(|_| invalid("the packet is longer than a capture can say"))?;
        self.add(&len.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&len.to_le_bytes());
        Ok(&self.bytes)
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

    use super::reader::Capture;
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

    fn capture(link_type: LinkType) -> (PcapNgWriter<Vec<u8>>, Interface) {
        let mut pcap = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = pcap.interface("eth0", link_type).unwrap();
        (pcap, interface)
    }

    /// Goal: the bytes of the format, see draft-ietf-opsawg-pcapng, 4.1 to 4.3.
    #[test]
    fn files_have_the_bytes_of_the_format() {
        let (mut pcap, interface) = capture(LinkType::RawIp);
        let begun = pcap.out.len();
        let note = Note::new(interface, Duration::new(0x0102_0304, 5))
            .inbound()
            .comment("ok");
        pcap.packet(&note, &[b"ab", b"", b"cde"]).unwrap();
        let file = pcap.finish().unwrap();
        let (header, packet) = file.split_at(begun);
        let section = [
            0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 4, 0,
        ];
        assert_eq!(header[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
        assert_eq!(header[8..26], section);
        let interface = [
            1, 0, 0, 0, 40, 0, 0, 0, 101, 0, 0, 0, 0, 0, 4, 0, 2, 0, 4, 0, b'e', b't', b'h', b'0',
            9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
        ];
        assert_eq!(header[header.len() - 40..], interface);
        let nanos = (0x0102_0304_u64 * 1_000_000_000 + 5).to_le_bytes();
        let mut expected = vec![6, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0];
        expected.extend_from_slice(&nanos[4..]);
        expected.extend_from_slice(&nanos[..4]);
        expected.extend_from_slice(&[5, 0, 0, 0, 5, 0, 0, 0]);
        expected.extend_from_slice(b"abcde\0\0\0");
        expected.extend_from_slice(&[1, 0, 2, 0, b'o', b'k', 0, 0]);
        expected.extend_from_slice(&[2, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0]);
        assert_eq!(packet, expected);
    }

    /// Goal: another reader finds everything that was noted. Method: two interfaces, both directions, and packets about
    /// which nothing is known.
    #[test]
    fn what_was_noted_is_read_by_others() {
        let (mut pcap, eth0) = capture(LinkType::Ethernet);
        let ib0 = pcap.interface("Sw 1:3", LinkType::RawIp).unwrap();
        let at = Duration::new(1_700_000_000, 123_456_789);
        let long = "ä".repeat(1000);
        let notes = [
            Note::new(eth0, at),
            Note::new(ib0, at).outbound(),
            Note::new(ib0, at).inbound().comment("lost: 2 of 7"),
            Note::new(eth0, Duration::ZERO).comment(&long),
        ];
        for (k, note) in notes.iter().enumerate() {
            pcap.packet(note, &[&[0x5a; 9][..k + 5]]).unwrap();
        }
        let capture = Capture::parse("notes", &pcap.finish().unwrap());
        let found: Vec<_> = capture
            .packets
            .iter()
            .map(|packet| {
                assert_eq!(packet.bytes.len(), packet.len);
                let about = (
                    packet.interface.as_str(),
                    packet.link_type,
                    packet.is_inbound,
                );
                (about, packet.at, packet.comment.as_str(), packet.len)
            })
            .collect();
        let (eth0, ib0) = (("eth0", 1), ("Sw 1:3", 101));
        let about = |(name, link_type), is_inbound| (name, link_type, is_inbound);
        assert_eq!(
            found,
            [
                (about(eth0, None), at, "", 5),
                (about(ib0, Some(false)), at, "", 6),
                (about(ib0, Some(true)), at, "lost: 2 of 7", 7),
                (about(eth0, None), Duration::ZERO, &long[..TEXT_LEN_MAX], 8),
            ]
        );
    }

    #[test]
    fn long_packets_are_cut_and_say_so() {
        let (mut pcap, interface) = capture(LinkType::Ethernet);
        let piece = vec![7; 200_000];
        let note = Note::new(interface, Duration::ZERO);
        pcap.packet(&note, &[&piece, &piece, &piece]).unwrap();
        let read = Capture::parse("long", &pcap.finish().unwrap());
        let packet = &read.packets[0];
        assert_eq!((packet.bytes.len(), packet.len), (262_144, 600_000));
    }

    #[test]
    fn what_the_format_cannot_say_is_refused_whole() {
        let (mut pcap, interface) = capture(LinkType::RawIp);
        let begun = pcap.out.len();
        let is_invalid = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        };
        let late = Note::new(interface, Duration::from_secs(1 << 35));
        is_invalid(pcap.packet(&late, &[b"x"]));
        let envelope = Envelope::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 0xc000);
        let note = Note::new(interface, Duration::ZERO);
        is_invalid(pcap.roce(&note, &envelope, &[&vec![0; 65_508]]));
        let strange = Note::new(Interface(1), Duration::ZERO);
        is_invalid(pcap.packet(&strange, &[b"x"]));
        is_invalid(pcap.roce(&strange, &envelope, &[b"x"]));
        assert_eq!(pcap.finish().unwrap().len(), begun);
    }

    #[test]
    fn errors_of_the_sink_come_back() {
        assert!(PcapNgWriter::new(Full(23)).is_err());
        let mut pcap = PcapNgWriter::new(Full(200)).unwrap();
        let interface = pcap.interface("eth0", LinkType::RawIp).unwrap();
        let note = Note::new(interface, Duration::ZERO);
        let error = pcap.packet(&note, &[&[7; 200]]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn roce_packets_get_their_headers_again() {
        let v4 = Envelope::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), 0xc121);
        let v6 = Envelope::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 0xc121);
        for envelope in [v4, v6] {
            for link_type in [LinkType::RawIp, LinkType::Ethernet] {
                let (mut pcap, interface) = capture(link_type);
                let note = Note::new(interface, Duration::ZERO);
                pcap.roce(&note, &envelope, &[b"tran", b"sport"]).unwrap();
                let read = Capture::parse("roce", &pcap.finish().unwrap());
                let (_, packet) = read.ip_packets().next().unwrap();
                assert_eq!(Envelope::parse(packet), Ok((envelope, &b"transport"[..])));
            }
        }
    }
}
