//! Properties of the messages over random bytes and random values.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_cm::wire::{
    IpHeader, IpPair, Message, MtuCode, RejectReason, ServiceId, WireError, fuzz,
};
use verbs_core::addr::Mtu;
use verbs_core::mad::{Class, MadBytes};

/// A datagram with the header of a message (attributes 0x0f to 0x1b: one too many at either end).
fn mad(attribute: u8, body: &[u8]) -> MadBytes {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = attribute;
    for (to, from) in mad[24..].iter_mut().zip(body) {
        *to = *from;
    }
    mad
}

proptest! {
    /// Any body is a message of any attribute, and comes back but for reserved bits.
    #[test]
    fn messages_of_any_content_come_back(attribute in 0x0f_u8..=0x1b, body in vec(any::<u8>(), 232)) {
        let accepted = fuzz::message(&mad(attribute, &body));
        prop_assert_eq!(accepted, (0x10..=0x1a).contains(&attribute));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        fuzz::message(&bytes);
        fuzz::ip_header(&bytes);
    }

    #[test]
    fn ip_headers_come_back(port: u16, four: [u32; 2], six: [u128; 2], is_v6: bool) {
        let addresses = if is_v6 {
            let [source, destination] = six.map(Ipv6Addr::from_bits);
            IpPair::V6 { source, destination }
        } else {
            let [source, destination] = four.map(Ipv4Addr::from_bits);
            IpPair::V4 { source, destination }
        };
        let header = IpHeader { source_port: port, addresses };
        let mut bytes = [0xff; IpHeader::LEN];
        header.emit(&mut bytes);
        prop_assert_eq!(IpHeader::parse(&bytes), Ok(header));
        prop_assert!(fuzz::ip_header(&bytes));
    }

    #[test]
    fn codes_come_back(code: u16, id: u64) {
        prop_assert_eq!(RejectReason::from_code(code).code(), code);
        if let Some((space, port)) = ServiceId(id & 0xffff_ffff).port() {
            prop_assert_eq!(ServiceId::rdma_cm(space, port), ServiceId(id & 0xffff_ffff));
        }
    }
}

#[test]
fn wrong_headers_are_refused_with_what_is_wrong() {
    let good = mad(0x10, &[]);
    let with = |at: usize, value: u8| {
        let mut mad = good;
        mad[at] = value;
        Message::parse(&mad).err()
    };
    assert_eq!(with(0, 1), None);
    assert_eq!(with(0, 2), Some(WireError::BaseVersion(2)));
    assert_eq!(with(1, 3), Some(WireError::Class(Class::SA)));
    assert_eq!(with(2, 1), Some(WireError::ClassVersion(1)));
    assert!(matches!(with(3, 1), Some(WireError::Method(_))));
    assert!(matches!(with(16, 1), Some(WireError::Attribute(_))));
}

#[test]
fn path_mtus_have_five_codes_of_sixteen() {
    for mtu in Mtu::ALL {
        assert_eq!(MtuCode::from(mtu).mtu(), Some(mtu));
    }
    assert_eq!(MtuCode::from(Mtu::B1024).code(), 3);
    assert_eq!(MtuCode::default().mtu(), None);
}
