//! Fuzz targets as plain functions over bytes.
//!
//! `ci/fuzz` runs them on the inputs in `fuzz/corpus` of this crate, and a test replays those. They panic when
//! this module's parsers break a promise, and return whether the bytes were what the target looks for.

use std::fmt::{self, Debug, Write};
use std::net::IpAddr;

use super::{Arp, ArpFields, Ip, Nd, NdError, Protocol, Wishes, too_big};

/// A message with its encapsulation header.
pub fn message(bytes: &[u8]) -> bool {
    let Some((protocol, packet)) = Protocol::split(bytes) else {
        return false;
    };
    print(&protocol);
    assert_eq!(protocol.header()[..2], bytes[..2]);
    match protocol {
        Protocol::Arp => arp(packet),
        Protocol::Ipv4 => ip(packet) | membership(packet),
        Protocol::Ipv6 => ip(packet) | nd(packet) | membership(packet),
        Protocol::Rarp => false,
    }
}

/// A message of the address resolution protocol.
pub fn arp(bytes: &[u8]) -> bool {
    let arp = match Arp::parse(bytes) {
        Ok(arp) => arp,
        Err(error) => {
            print(&error);
            return false;
        }
    };
    print(&arp);
    let emitted = arp.emit();
    assert_eq!(Arp::parse(&emitted), Ok(arp));
    let mut expected = [0; ArpFields::LEN];
    expected.copy_from_slice(&bytes[..ArpFields::LEN]);
    // Only meaningful flags of the two addresses are kept.
    expected[8] &= 0xc0;
    expected[32] &= 0xc0;
    assert_eq!(emitted, expected);
    true
}

/// A packet with a message of neighbour discovery.
pub fn nd(bytes: &[u8]) -> bool {
    let nd = match Nd::parse(bytes) {
        Ok(nd) => nd,
        Err(NdError::Other) => return false,
        Err(error) => {
            print(&error);
            return false;
        }
    };
    print(&nd);
    if let Nd::Advertisement(advertisement) = nd
        && advertisement.at.is_some()
    {
        assert_eq!(Nd::parse(&advertisement.emit()), Ok(nd));
    }
    true
}

/// A report of a host about its groups.
pub fn membership(bytes: &[u8]) -> bool {
    let Some(wishes) = Wishes::parse(bytes) else {
        return false;
    };
    print(&wishes);
    let (mut count, most) = (0, bytes.len() / 8);
    for wish in wishes {
        print(&wish);
        assert!(wish.group.is_multicast(), "{wish:?}");
        assert_eq!(wish.group.is_ipv6(), bytes[0] >> 4 == 6);
        count += 1;
    }
    // Each takes at least eight bytes: the count is bounded by the packet's length.
    assert!(count <= most, "{count} of {} bytes", bytes.len());
    true
}

/// A packet, and the message to its sender if it is too long: that message is a packet itself, and is not
/// answered with another.
pub fn ip(bytes: &[u8]) -> bool {
    let ip = match Ip::parse(bytes) {
        Ok(ip) => ip,
        Err(error) => {
            print(&error);
            return false;
        }
    };
    print(&ip);
    let router: IpAddr = match ip.source {
        IpAddr::V4(_) => [10, 0, 0, 1].into(),
        IpAddr::V6(_) => [1; 16].into(),
    };
    let mut told = [0; 1280];
    if let Some(len) = too_big(bytes, 1280, router, &mut told) {
        let answer = Ip::parse(&told[..len]).expect("what is told is a packet");
        assert_eq!((answer.source, answer.destination), (router, ip.source));
        let mut again = [0; 1280];
        assert_eq!(too_big(&told[..len], 1280, router, &mut again), None);
    }
    true
}

/// Printing must not fail either.
fn print(value: &dyn Debug) {
    struct Nowhere;
    impl Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }
    assert!(write!(Nowhere, "{value:?}").is_ok());
}
