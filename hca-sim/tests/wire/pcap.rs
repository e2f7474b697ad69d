//! Reads classic pcap files of Ethernet frames: as much of the format as captures for tests need.

use std::path::Path;

const LINKTYPE_ETHERNET: u32 = 1;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// All frames of a capture file, in order.
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) frames: Vec<Vec<u8>>,
}

impl Capture {
    /// Reads a file; panics when it is not a pcap file of whole Ethernet frames.
    pub(crate) fn read(path: &Path) -> Self {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(path).unwrap();
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
        assert_eq!(
            number(&header[20..]),
            LINKTYPE_ETHERNET,
            "{name}: link type"
        );
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
            frames.push(frame.to_vec());
            rest = behind;
        }
        Self { name, frames }
    }

    /// The IP packets among the frames, from the IP header to the frame's end, with frame numbers
    /// as Wireshark gives them.
    pub(crate) fn ip_packets(&self) -> impl Iterator<Item = (usize, &[u8])> {
        (1..)
            .zip(&self.frames)
            .filter_map(|(number, frame)| Some((number, ip_packet(frame)?)))
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
