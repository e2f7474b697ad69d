//! A host's reports about its groups: IGMP (RFC 1112, 2236, 3376) and multicast listener discovery (RFC 2710,
//! 3810).
//!
//! InfiniBand does not need these reports, because groups are joined at the subnet administrator; but a stack
//! that does not know the administrator uses them.

use std::net::{IpAddr, Ipv4Addr};

use super::ip::{ICMPV6, Ip, V6_HEADER, icmpv6_sum, v6};
use super::sum::checksum;

/// IGMP's number among protocols.
const IGMP: u8 = 2;
/// Hop-by-hop options' number among next headers: reports carry a router alert.
const HOP_BY_HOP: u8 = 0;
/// Bytes before the records of a report of IGMPv3 and MLDv2.
const RECORDS_AT: usize = 8;

/// A host's report about one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The group.
    pub group: IpAddr,
    /// Whether the host wants packets to it, from any source.
    pub is_wanted: bool,
}

/// The groups of one report, in order.
///
/// ```
/// use ulp_ipoib::wire::Wishes;
///
/// // A report of IGMPv2 about 239.1.2.3.
/// let mut packet = [0; 28];
/// packet[..10].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2]);
/// packet[12..20].copy_from_slice(&[10, 0, 0, 1, 239, 1, 2, 3]);
/// packet[20..].copy_from_slice(&[0x16, 0, 0xf8, 0xfa, 239, 1, 2, 3]);
/// let wishes: Vec<_> = Wishes::parse(&packet).expect("a report").collect();
/// assert_eq!(wishes[0].group, std::net::IpAddr::from([239, 1, 2, 3]));
/// assert!(wishes[0].is_wanted);
/// ```
#[derive(Clone, Debug)]
pub struct Wishes<'a> {
    one: Option<Wish>,
    records: &'a [u8],
    left: u16,
    is_v6: bool,
}

impl<'a> Wishes<'a> {
    /// Checks whether a packet is a report; one with a wrong checksum is not.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let ip = Ip::parse(packet).ok()?;
        match ip.destination {
            IpAddr::V4(_) if ip.next == IGMP && !ip.is_later_fragment => Self::igmp(packet, &ip),
            IpAddr::V6(_) => Self::listener(packet, &ip),
            IpAddr::V4(_) => None,
        }
    }

    fn igmp(packet: &'a [u8], ip: &Ip) -> Option<Self> {
        let total = u16::from_be_bytes([packet[2], packet[3]]);
        let message = packet.get(ip.header_len..usize::from(total))?;
        if message.len() < RECORDS_AT || checksum(0, message) != 0 {
            return None;
        }
        let group = IpAddr::V4(v4(message, 4)?);
        match message[0] {
            0x12 | 0x16 => Some(Self::one(group, true)),
            0x17 => Some(Self::one(group, false)),
            0x22 => Some(Self::many(message, false)),
            _ => None,
        }
    }

    fn listener(packet: &'a [u8], ip: &Ip) -> Option<Self> {
        let total = V6_HEADER + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        let mut rest = packet.get(V6_HEADER..total)?;
        let mut next = ip.next;
        if next == HOP_BY_HOP {
            next = *rest.first()?;
            rest = rest.get((usize::from(*rest.get(1)?) + 1) * 8..)?;
        }
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else {
            return None;
        };
        let is_whole = rest.len() >= RECORDS_AT && icmpv6_sum(source, destination, rest) == 0;
        if next != ICMPV6 || !is_whole {
            return None;
        }
        let group = || rest.get(8..24).map(|_| IpAddr::V6(v6(rest, 8)));
        match rest[0] {
            131 => Some(Self::one(group()?, true)),
            132 => Some(Self::one(group()?, false)),
            143 => Some(Self::many(rest, true)),
            _ => None,
        }
    }

    fn one(group: IpAddr, is_wanted: bool) -> Self {
        Self {
            one: Some(Wish { group, is_wanted }),
            records: &[],
            left: 0,
            is_v6: group.is_ipv6(),
        }
    }

    fn many(message: &'a [u8], is_v6: bool) -> Self {
        Self {
            one: None,
            records: &message[RECORDS_AT..],
            left: u16::from_be_bytes([message[6], message[7]]),
            is_v6,
        }
    }

    /// The next record: its kind, its number of sources, and its group.
    fn record(&mut self) -> Option<(u8, u16, IpAddr)> {
        self.left = self.left.checked_sub(1)?;
        let &[kind, words, high, low] = self.records.first_chunk()?;
        let sources = u16::from_be_bytes([high, low]);
        let (group, size) = match self.is_v6 {
            true => (IpAddr::V6(v6(self.records, 4)), 16),
            false => (IpAddr::V4(v4(self.records, 4)?), 4),
        };
        let len = 4 + size * (1 + usize::from(sources)) + 4 * usize::from(words);
        // An incomplete record ends the list.
        self.records = self.records.get(len..)?;
        Some((kind, sources, group))
    }
}

impl Iterator for Wishes<'_> {
    type Item = Wish;

    fn next(&mut self) -> Option<Wish> {
        if let Some(wish) = self.one.take() {
            return wish.group.is_multicast().then_some(wish);
        }
        loop {
            let (kind, sources, group) = self.record()?;
            let is_wanted = match kind {
                // All except the listed sources: any source, if none is listed.
                2 | 4 => true,
                // Only the listed sources: nothing, if none is listed.
                1 | 3 => sources > 0,
                // Sources added to the wanted ones.
                5 if sources > 0 => true,
                // Sources removed: the group itself is still wanted.
                _ => continue,
            };
            if group.is_multicast() {
                return Some(Wish { group, is_wanted });
            }
        }
    }
}

fn v4(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    found.map(|bytes| Ipv4Addr::from(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn igmp(message: &[u8]) -> Vec<u8> {
        let mut packet = vec![
            0x46, 0xc0, 0, 0, 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 0, 0, 1, 224, 0, 0, 22, 0x94, 4, 0, 0,
        ];
        packet.extend_from_slice(message);
        packet[3] = u8::try_from(packet.len()).unwrap();
        let sum = checksum(0, &packet[24..]).to_be_bytes();
        packet[26..28].copy_from_slice(&sum);
        packet
    }

    fn mld(message: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 48];
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, 0, 1]);
        packet[8] = 0xfe;
        packet[9] = 0x80;
        packet[24..26].copy_from_slice(&[0xff, 2]);
        packet[39] = 0x16;
        packet[40..].copy_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
        packet.extend_from_slice(message);
        packet[5] = u8::try_from(packet.len() - 40).unwrap();
        let sum = icmpv6_sum(v6(&packet, 8), v6(&packet, 24), &packet[48..]);
        packet[50..52].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    fn read(packet: &[u8]) -> Option<Vec<(String, bool)>> {
        let wishes = Wishes::parse(packet)?;
        Some(
            wishes
                .map(|wish| (wish.group.to_string(), wish.is_wanted))
                .collect(),
        )
    }

    fn said(groups: &[(&str, bool)]) -> Option<Vec<(String, bool)>> {
        Some(
            groups
                .iter()
                .map(|&(group, is_wanted)| (group.to_owned(), is_wanted))
                .collect(),
        )
    }

    #[test]
    fn the_first_two_versions_name_one_group() {
        for (kind, is_wanted) in [(0x12, true), (0x16, true), (0x17, false)] {
            let packet = igmp(&[kind, 0, 0, 0, 239, 1, 2, 3]);
            assert_eq!(read(&packet), said(&[("239.1.2.3", is_wanted)]));
        }
        let mut wrong = igmp(&[0x16, 0, 0, 0, 239, 1, 2, 3]);
        wrong[31] ^= 1;
        assert_eq!(read(&wrong), None, "the checksum");
        assert_eq!(
            read(&igmp(&[0x11, 0, 0, 0, 0, 0, 0, 0])),
            None,
            "a question"
        );
        let unicast = igmp(&[0x16, 0, 0, 0, 10, 1, 2, 3]);
        assert_eq!(read(&unicast), said(&[]), "no group's address");
    }

    #[test]
    fn the_third_version_has_records_of_six_kinds() {
        let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 8];
        let mut record = |kind, sources: u8, last| {
            // Four bytes of auxiliary data after each.
            message.extend_from_slice(&[kind, 1, 0, sources, 239, 0, 0, last]);
            message.extend((0..sources).flat_map(|source| [10, 0, 0, source]));
            message.extend_from_slice(&[0; 4]);
        };
        record(4, 0, 1);
        record(3, 0, 2);
        record(2, 2, 3);
        record(1, 1, 4);
        record(5, 1, 5);
        record(6, 1, 6);
        record(9, 0, 7);
        record(1, 0, 8);
        let all = said(&[
            ("239.0.0.1", true),
            ("239.0.0.2", false),
            ("239.0.0.3", true),
            ("239.0.0.4", true),
            ("239.0.0.5", true),
            ("239.0.0.8", false),
        ]);
        assert_eq!(read(&igmp(&message)), all);
        // An incomplete report is not read beyond its end.
        let cut = igmp(&message[..message.len() - 2]);
        assert_eq!(read(&cut).unwrap().len(), 5);
    }

    #[test]
    fn listeners_say_the_same_of_groups_of_ipv6() {
        let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        for (kind, is_wanted) in [(131, true), (132, false)] {
            let packet = mld(&[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group].concat());
            assert_eq!(read(&packet), said(&[("ff0e::7", is_wanted)]));
            assert_eq!(read(&packet[..packet.len() - 1]), None);
        }
        let records = [
            &[143, 0, 0, 0, 0, 0, 0, 2][..],
            &[4, 0, 0, 0],
            &group,
            &[3, 0, 0, 0],
            &group,
        ];
        let packet = mld(&records.concat());
        assert_eq!(
            read(&packet),
            said(&[("ff0e::7", true), ("ff0e::7", false)])
        );
    }
}
