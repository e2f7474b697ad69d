//! The messages of sockets for datagrams: the protocol of Debian's librdmacm, so that either end may be that library.
//!
//! A datagram goes over the queue pairs once its sender knows the number of the receiver's. Before that it goes over
//! UDP, between the ports of the same numbers, and the receiver answers with the number of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header in front of the data of a packet.
pub(super) const SOURCE_MAX: usize = 24;
/// The longest header of a message over UDP.
pub(super) const NOTE_MAX: usize = 28;

const SOURCE_V4: usize = 8;
const NOTE_V4: usize = 16;
const TAG: [u8; 4] = [0x55; 4];
const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// Puts the header of a packet from that address into the room. Returns its length.
pub(super) fn emit_source(from: SocketAddr, room: &mut [u8; SOURCE_MAX]) -> usize {
    let [high, low] = from.port().to_be_bytes();
    match from.ip() {
        IpAddr::V4(ip) => {
            room[..4].copy_from_slice(&[4, SOURCE_V4 as u8, high, low]);
            room[4..8].copy_from_slice(&ip.octets());
            SOURCE_V4
        }
        IpAddr::V6(ip) => {
            room[..4].copy_from_slice(&[6, SOURCE_MAX as u8, high, low]);
            // The flow information is nobody's.
            room[4..8].fill(0);
            room[8..].copy_from_slice(&ip.octets());
            SOURCE_MAX
        }
    }
}

/// The sender of a packet, and the length of its header.
pub(super) fn parse_source(packet: &[u8]) -> Option<(SocketAddr, usize)> {
    let &[version, length, high, low, ref rest @ ..] = packet else {
        return None;
    };
    let ip = match (version, usize::from(length)) {
        (4, SOURCE_V4) => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
        (6, SOURCE_MAX) => Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    let from = SocketAddr::new(ip, u16::from_be_bytes([high, low]));
    Some((from, length.into()))
}

/// A message over UDP, without the data that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// A datagram follows. If not, this is the answer to one.
    pub(super) has_data: bool,
    /// The number of the sender's queue pair.
    pub(super) qpn: u32,
    /// The address of the sender's queue pair.
    pub(super) ip: IpAddr,
}

impl Note {
    /// Puts it into the room. Returns its length.
    pub(super) fn emit(&self, room: &mut [u8; NOTE_MAX]) -> usize {
        let (version, length) = match self.ip {
            IpAddr::V4(_) => (4, NOTE_V4),
            IpAddr::V6(_) => (6, NOTE_MAX),
        };
        room[..4].copy_from_slice(&TAG);
        let op = if self.has_data { DATA } else { CONTROL };
        room[4..8].copy_from_slice(&[version, op, length as u8, 0]);
        room[8..12].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        match self.ip {
            IpAddr::V4(ip) => room[12..16].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => room[12..].copy_from_slice(&ip.octets()),
        }
        length
    }

    /// The message, and its length. `None` for one that is none of this protocol.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let [t0, t1, t2, t3, version, op, length, _, q0, q1, q2, q3] = *head;
        let ip = match (version, usize::from(length)) {
            (4, NOTE_V4) => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
            (6, NOTE_MAX) => Ipv6Addr::from(*rest.first_chunk::<16>()?).into(),
            _ => return None,
        };
        if [t0, t1, t2, t3] != TAG || !matches!(op, DATA | CONTROL) {
            return None;
        }
        let note = Self {
            has_data: op == DATA,
            qpn: u32::from_be_bytes([q0, q1, q2, q3]) & 0xff_ffff,
            ip,
        };
        Some((note, length.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_librdmacm() {
        let mut room = [0xee; SOURCE_MAX];
        let from = "10.1.2.3:7174".parse().expect("an address");
        assert_eq!(emit_source(from, &mut room), 8);
        assert_eq!(room[..8], [4, 8, 0x1c, 0x06, 10, 1, 2, 3]);
        let mut room = [0xee; NOTE_MAX];
        let note = Note {
            has_data: true,
            qpn: 0x12_3456,
            ip: Ipv4Addr::new(10, 1, 2, 3).into(),
        };
        assert_eq!(note.emit(&mut room), 16);
        let wanted = [
            0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3,
        ];
        assert_eq!(room[..16], wanted);
        let answer = Note {
            has_data: false,
            ip: Ipv6Addr::LOCALHOST.into(),
            ..note
        };
        assert_eq!(answer.emit(&mut room), 28);
        assert_eq!(room[4..8], [6, 7, 28, 0]);
    }

    #[test]
    fn they_go_there_and_back() {
        for text in ["127.0.0.9:7174", "[fd77::2]:18515"] {
            let from: SocketAddr = text.parse().expect("an address");
            let mut room = [0; SOURCE_MAX];
            let length = emit_source(from, &mut room);
            assert_eq!(parse_source(&room[..length]), Some((from, length)));
            assert_eq!(parse_source(&room[..length - 1]), None);
            for has_data in [true, false] {
                let note = Note {
                    has_data,
                    qpn: 17,
                    ip: from.ip(),
                };
                let mut room = [0; NOTE_MAX];
                let length = note.emit(&mut room);
                assert_eq!(Note::parse(&room[..length]), Some((note, length)));
                assert_eq!(Note::parse(&room[..length - 1]), None);
            }
        }
    }

    /// Goal: any bytes are read or refused; what is read is written as it came, apart from unused bytes.
    #[test]
    fn any_bytes_are_read() {
        let mut random = oorandom::Rand64::new(7);
        let mut read = 0;
        for _ in 0..20_000 {
            let length = random.rand_range(0..40) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| random.rand_u64() as u8).collect();
            let start = [
                4,
                if random.rand_u64().is_multiple_of(2) {
                    8
                } else {
                    24
                },
            ];
            bytes
                .iter_mut()
                .zip(start)
                .for_each(|(to, from)| *to = from);
            if let Some((from, length)) = parse_source(&bytes) {
                let mut room = [0; SOURCE_MAX];
                assert_eq!(emit_source(from, &mut room), length);
                assert_eq!(room[..4], bytes[..4]);
                read += 1;
            }
            let head = [0x55, 0x55, 0x55, 0x55, 4, 7 * (length as u8 % 2), 16];
            bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
            if let Some((note, length)) = Note::parse(&bytes) {
                let mut room = [0; NOTE_MAX];
                assert_eq!(note.emit(&mut room), length);
                assert_eq!(room[..7], bytes[..7]);
                read += 1;
            }
        }
        assert!(read > 1000, "{read}");
    }
}
