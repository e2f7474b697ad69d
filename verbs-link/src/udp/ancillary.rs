//! Socket addresses and control messages as the kernel reads and writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a control message's header: its length as a word, its level and its type.
const HEADER_LEN: usize = size_of::<usize>() + 8;
/// The alignment of control messages.
const ALIGN: usize = size_of::<usize>();

/// A socket address in the kernel's form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    bytes: [u8; Self::V6_LEN],
    len: usize,
}

impl Address {
    const V4_LEN: usize = 16;
    const V6_LEN: usize = 28;

    /// An address with a port; `scope` is the interface of a link-local one.
    pub(super) fn new(address: IpAddr, port: u16, scope: u32) -> Self {
        let mut bytes = [0; Self::V6_LEN];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        let (family, len) = match address {
            IpAddr::V4(address) => {
                bytes[4..8].copy_from_slice(&address.octets());
                (libc::AF_INET, Self::V4_LEN)
            }
            IpAddr::V6(address) => {
                bytes[8..24].copy_from_slice(&address.octets());
                bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
                (libc::AF_INET6, Self::V6_LEN)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, len }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The address and the port in what the kernel wrote.
    pub(super) fn parse(bytes: &[u8]) -> Option<(IpAddr, u16)> {
        let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
        let address = match family {
            libc::AF_INET => Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some((address, port))
    }
}

/// Control messages to be sent along with a datagram.
#[derive(Debug)]
pub(super) struct Control {
    bytes: [u8; Self::LEN_MAX],
    len: usize,
}

impl Control {
    /// Room for the three messages that a packet may need.
    const LEN_MAX: usize = 3 * (HEADER_LEN + ALIGN);

    pub(super) fn new() -> Self {
        Self {
            bytes: [0; Self::LEN_MAX],
            len: 0,
        }
    }

    /// Adds a message whose value is at most a word long.
    pub(super) fn push<const N: usize>(&mut self, level: i32, kind: i32, value: [u8; N]) {
        const { assert!(N <= ALIGN) };
        let len = HEADER_LEN + N;
        let message = &mut self.bytes[self.len..];
        message[..ALIGN].copy_from_slice(&len.to_ne_bytes());
        message[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        message[ALIGN + 4..HEADER_LEN].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_LEN..len].copy_from_slice(&value);
        self.len += len.next_multiple_of(ALIGN);
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The contents of a datagram's control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Bytes of each datagram but the last, when several were merged.
    pub(super) segment: Option<usize>,
    /// Type of service or traffic class.
    pub(super) tclass: u8,
    /// Why it is in the error queue.
    pub(super) error: Option<QueuedError>,
}

/// Why an entry is in a socket's error queue: the head of the kernel's `sock_extended_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedError {
    /// The system's number for it.
    pub(super) errno: i32,
    /// The origin of the report: `SO_EE_ORIGIN_*`.
    pub(super) origin: u8,
    /// With `EMSGSIZE`: the largest IP packet that the next hop takes, in bytes (`ee_info`).
    pub(super) info: u32,
}

impl QueuedError {
    fn parse(value: &[u8]) -> Option<Self> {
        Some(Self {
            errno: number(value)?,
            origin: *value.get(4)?,
            info: value.get(8..).and_then(number).unwrap_or(0) as u32,
        })
    }

    /// Whether it concerns a packet that was not delivered; a time stamp does not.
    pub(super) fn is_report(self) -> bool {
        self.is_icmp() || self.origin == libc::SO_EE_ORIGIN_LOCAL
    }

    /// Whether a host or a router reports it, by ICMP.
    pub(super) fn is_icmp(self) -> bool {
        [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(&self.origin)
    }
}

impl Said {
    /// Reads the messages; unknown ones are skipped.
    pub(super) fn parse(mut messages: &[u8]) -> Self {
        let mut said = Self::default();
        while let Some((len, level, kind)) = header(messages) {
            let Some(value) = messages.get(HEADER_LEN..len) else {
                break;
            };
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    said.segment = number(value).and_then(|size| usize::try_from(size).ok());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    said.tclass = value.first().copied().unwrap_or(0);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    said.tclass = (number(value).unwrap_or(0) & 0xff) as u8;
                }
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                    said.error = QueuedError::parse(value);
                }
                _ => {}
            }
            messages = messages.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        }
        said
    }
}

/// Length, level and type of the first message.
fn header(messages: &[u8]) -> Option<(usize, i32, i32)> {
    let len = usize::from_ne_bytes(*messages.first_chunk()?);
    let level = number(messages.get(ALIGN..)?)?;
    let kind = number(messages.get(ALIGN + 4..)?)?;
    Some((len, level, kind))
}

fn number(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for address in ["127.0.0.2", "fe80::1:2"] {
            let address = address.parse().unwrap();
            let raw = Address::new(address, 4791, 3);
            assert_eq!(Address::parse(raw.as_bytes()), Some((address, 4791)));
            for cut in 0..8 {
                assert_eq!(Address::parse(&raw.as_bytes()[..cut]), None);
            }
        }
    }

    #[test]
    fn messages_are_read_and_foreign_ones_skipped() {
        let mut control = Control::new();
        control.push(libc::SOL_SOCKET, 99, [1, 2, 3]);
        control.push(libc::SOL_UDP, libc::UDP_GRO, 4112_i32.to_ne_bytes());
        control.push(libc::IPPROTO_IP, libc::IP_TOS, [0xb8]);
        let said = Said {
            segment: Some(4112),
            tclass: 0xb8,
            error: None,
        };
        assert_eq!(Said::parse(control.as_bytes()), said);
        let mut v6 = Control::new();
        v6.push(
            libc::IPPROTO_IPV6,
            libc::IPV6_TCLASS,
            0x2e_i32.to_ne_bytes(),
        );
        assert_eq!(Said::parse(v6.as_bytes()).tclass, 0x2e);
    }

    #[test]
    fn errors_are_read_with_their_origin() {
        let mut control = Control::new();
        let [a, b, c, d] = libc::ECONNREFUSED.to_ne_bytes();
        let value = [a, b, c, d, libc::SO_EE_ORIGIN_ICMP, 3, 3, 0];
        control.push(libc::IPPROTO_IP, libc::IP_RECVERR, value);
        let error = Said::parse(control.as_bytes()).error.unwrap();
        assert_eq!((error.errno, error.is_icmp()), (libc::ECONNREFUSED, true));
        let mut stamp = Control::new();
        let [a, b, c, d] = libc::ENOMSG.to_ne_bytes();
        let value = [a, b, c, d, libc::SO_EE_ORIGIN_TIMESTAMPING, 0, 0, 0];
        stamp.push(libc::IPPROTO_IP, libc::IP_RECVERR, value);
        let error = Said::parse(stamp.as_bytes()).error;
        assert!(error.is_some_and(|error| !error.is_icmp()));
        let mut cut = Control::new();
        cut.push(libc::IPPROTO_IP, libc::IP_RECVERR, [a, b, c, d]);
        assert_eq!(Said::parse(cut.as_bytes()).error, None);
    }

    /// Goal: no bytes make the parser loop for ever or panic.
    #[test]
    fn any_bytes_are_read_to_an_end() {
        for len in [0_usize, 1, 15, 16, 17, usize::MAX] {
            let mut bytes = [0xff; 40];
            bytes[..ALIGN].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Said::parse(&bytes), Said::default());
        }
    }
}
