//! Reads captures for tests, with code that shares nothing with the writer's: those that it wrote, and those of others.

use std::path::Path;
use std::time::Duration;

use pcap_parser::pcapng::{OptionCode, parse_sections};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, EnhancedPacketBlock, PcapCapture};

const LINKTYPE_ETHERNET: i32 = 1;
const LINKTYPE_ERF: i32 = 197;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// A capture that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The name of its file, without the extension.
    pub name: String,
    /// Its packets, in order.
    pub packets: Vec<CapturedPacket>,
}

/// A packet of a capture, with what was noted beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// The name of its interface; empty if that has none.
    pub interface: String,
    /// The number of its first header (LINKTYPE). Of an InfiniBand packet the header of ERF is taken away: it begins with
    /// its local route header.
    pub link_type: i32,
    /// Since the Unix epoch.
    pub at: Duration,
    /// Whether it came in or went out, where that was noted.
    pub is_inbound: Option<bool>,
    /// The comment; empty if there is none.
    pub comment: String,
    /// How long it was, which may be more than was kept.
    pub len: usize,
    /// What was kept.
    pub bytes: Vec<u8>,
}

impl Capture {
    /// Reads a file.
    ///
    /// # Panics
    /// If it is not a capture, or cannot be read.
    pub fn read(path: &Path) -> Self {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let bytes =
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(name, &bytes)
    }

    /// Reads the bytes of a file, pcapng or classic pcap.
    ///
    /// # Panics
    /// If they are not a capture.
    pub fn parse(name: impl Into<String>, bytes: &[u8]) -> Self {
        let name = name.into();
        let is_pcapng = bytes.starts_with(&super::SECTION_HEADER.to_le_bytes());
        let packets = if is_pcapng {
            sections(&name, bytes)
        } else {
            classic(&name, bytes)
        };
        Self { name, packets }
    }

    /// The IP packets in it, from the IP header on, with packet numbers as in Wireshark.
    pub fn ip_packets(&self) -> impl Iterator<Item = (usize, &[u8])> {
        (1..).zip(&self.packets).filter_map(|(number, packet)| {
            let ip = match packet.link_type {
                LINKTYPE_ETHERNET => behind_ethernet(&packet.bytes)?,
                _ => &packet.bytes,
            };
            Some((number, ip))
        })
    }
}

fn classic(name: &str, bytes: &[u8]) -> Vec<CapturedPacket> {
    let file = PcapCapture::from_file(bytes).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let unit = if file.header.is_nanosecond_precision() {
        1
    } else {
        1000
    };
    let packet = |block: &pcap_parser::LegacyPcapBlock<'_>| CapturedPacket {
        interface: String::new(),
        link_type: file.header.network.0,
        at: Duration::new(block.ts_sec.into(), block.ts_usec * unit),
        is_inbound: None,
        comment: String::new(),
        len: block.origlen as usize,
        bytes: block.data.to_vec(),
    };
    file.blocks.iter().map(packet).collect()
}

fn sections(name: &str, bytes: &[u8]) -> Vec<CapturedPacket> {
    let (rest, sections) =
        parse_sections(bytes).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(rest.is_empty(), "{name}: {} bytes behind it", rest.len());
    let (mut packets, mut interfaces) = (Vec::new(), Vec::new());
    for block in sections.iter().flat_map(|section| &section.blocks) {
        match block {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(interface) => interfaces.push(interface),
            Block::EnhancedPacket(packet) => {
                let interface = interfaces[packet.if_id as usize];
                packets.push(enhanced(packet, interface));
            }
            other => panic!("{name}: a block {:#x}", other.magic()),
        }
    }
    packets
}

fn enhanced(
    packet: &EnhancedPacketBlock<'_>,
    interface: &pcap_parser::InterfaceDescriptionBlock<'_>,
) -> CapturedPacket {
    let option = |code| packet.options.iter().find(|option| option.code == code);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("texts are UTF-8");
    let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
    let per_second = interface.ts_resolution().expect("it fits");
    let skipped = erf_len(packet, interface.linktype.0);
    let nanos = units % per_second * (1_000_000_000 / per_second);
    CapturedPacket {
        interface: interface
            .if_name()
            .map_or_else(String::new, |name| name.expect("texts are UTF-8").into()),
        link_type: interface.linktype.0,
        at: Duration::new(units / per_second, nanos as u32),
        is_inbound: option(OptionCode(super::EPB_FLAGS))
            .and_then(|flags| flags.as_u32_le().ok())
            .and_then(|flags| match flags & 3 {
                1 => Some(true),
                2 => Some(false),
                _ => None,
            }),
        comment: option(OptionCode(super::OPT_COMMENT)).map_or_else(String::new, |comment| {
            text(comment.as_bytes().expect("it is whole"))
        }),
        len: packet.origlen as usize - skipped,
        bytes: packet.packet_data()[skipped..].to_vec(),
    }
}

/// Bytes of the header of ERF, if there is one, whose fields are right.
fn erf_len(packet: &EnhancedPacketBlock<'_>, link_type: i32) -> usize {
    if link_type != LINKTYPE_ERF {
        return 0;
    }
    let header = &packet.packet_data()[..super::ERF_LEN];
    let lens = [10, 14].map(|at| usize::from(u16::from_be_bytes([header[at], header[at + 1]])));
    let whole = packet.origlen as usize;
    assert_eq!(lens, [whole, whole - super::ERF_LEN], "the header of ERF");
    assert_eq!(header[8], 21, "a record about InfiniBand");
    super::ERF_LEN
}

fn behind_ethernet(frame: &[u8]) -> Option<&[u8]> {
    let mut rest = frame.get(12..)?;
    loop {
        let (ethertype, behind) = rest.split_first_chunk()?;
        match u16::from_be_bytes(*ethertype) {
            ETHERTYPE_VLAN => rest = behind.get(2..)?,
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Some(behind),
            _ => return None,
        }
    }
}
