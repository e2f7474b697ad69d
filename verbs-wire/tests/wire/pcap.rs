//! Reads classic pcap files of Ethernet frames or IP packets: as much of the format as captures for tests need.

use std::path::Path;

const LINKTYPE_ETHERNET: u32 = 1;
const LINKTYPE_RAW: u32 = 101;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// All frames of a capture file, in order.
#[derive(PartialEq, Eq)]
pub(crate) struct Capture {
    pub(crate) name: String,
    /// Whether frames begin with an Ethernet header; with an IP header otherwise.
    pub(crate) ethernet: bool,
    pub(crate) frames: Vec<Frame>,
}

#[derive(PartialEq, Eq)]
pub(crate) struct Frame {
    /// Seconds, and the fraction in the file's unit: micro- or nanoseconds.
    pub(crate) time: (u32, u32),
    pub(crate) bytes: Vec<u8>,
}

impl Capture {
    /// Reads a file; panics when it is not a pcap file of whole frames.
    pub(crate) fn read(path: &Path) -> Self {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self::parse(name, &std::fs::read(path).unwrap())
    }

    /// Reads a file's bytes; panics when they are not a pcap file of whole frames.
    pub(crate) fn parse(name: String, bytes: &[u8]) -> Self {
        let (header, mut rest) = bytes.split_at(24);
        let big_endian = match header[..4] {
            [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => false,
            [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => true,
            _ => panic!("{name}: not a pcap file"),
        };
        let number = |bytes: &[u8]| {
            let bytes = bytes.try_into().unwrap();
            if big_endian {
                u32::from_be_bytes(bytes)
            } else {
                u32::from_le_bytes(bytes)
            }
        };
        let ethernet = match number(&header[20..]) {
            LINKTYPE_ETHERNET => true,
            LINKTYPE_RAW => false,
            other => panic!("{name}: link type {other}"),
        };
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (record, behind) = rest.split_at(16);
            let (captured, original) = (number(&record[8..12]), number(&record[12..]));
            assert_eq!(
                captured,
                original,
                "{name}: frame {} is cut",
                frames.len() + 1
            );
            let (frame, behind) = behind.split_at(usize::try_from(captured).unwrap());
            frames.push(Frame {
                time: (number(&record[..4]), number(&record[4..8])),
                bytes: frame.to_vec(),
            });
            rest = behind;
        }
        Self {
            name,
            ethernet,
            frames,
        }
    }

    /// The IP packets among the frames, from the IP header to the frame's end, with frame numbers as in
    /// Wireshark.
    pub(crate) fn ip_packets(&self) -> impl Iterator<Item = (usize, &[u8])> {
        (1..).zip(&self.frames).filter_map(|(number, frame)| {
            let ip = if self.ethernet {
                ip_packet(&frame.bytes)?
            } else {
                &frame.bytes
            };
            Some((number, ip))
        })
    }
}

fn ip_packet(frame: &[u8]) -> Option<&[u8]> {
    let mut rest = &frame[12..];
    loop {
        let (ethertype, behind) = rest.split_first_chunk()?;
        match u16::from_be_bytes(*ethertype) {
            ETHERTYPE_VLAN => rest = behind.get(2..)?,
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Some(behind),
            _ => return None,
        }
    }
}
