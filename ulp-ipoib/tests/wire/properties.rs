//! Goal: written values read back the same, and any bytes can be read. Method: random values and bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use ulp_ipoib::wire::{
    Advertisement, Arp, ArpOperation, ConnectedData, ConnectedDataView, HardwareAddress,
    HardwareFlags, Nd, Scope, fuzz, group_of, too_big,
};
use verbs_core::{Gid, PKey, Qpn};

fn hardware() -> impl Strategy<Value = HardwareAddress> {
    (any::<u8>(), any::<u32>(), any::<[u8; 16]>()).prop_map(|(flags, qpn, gid)| HardwareAddress {
        flags: HardwareFlags::from_bits_truncate(flags),
        qpn: Qpn::new(qpn),
        gid: Gid(gid),
    })
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in vec(any::<u8>(), 0..200), version in 4_u8..7) {
        fuzz::message(&bytes);
        fuzz::arp(&bytes);
        fuzz::nd(&bytes);
        // The first four bits decide most.
        let mut packet = bytes;
        if let Some(first) = packet.first_mut() {
            *first = version << 4 | *first & 15;
        }
        fuzz::ip(&packet);
    }

    #[test]
    fn resolutions_read_as_they_were_written(
        own in hardware(), other in hardware(), a: u32, b: u32, asks: bool,
    ) {
        let operation = if asks { ArpOperation::Request } else { ArpOperation::Reply };
        let arp = Arp { operation, sender: (own, a.into()), target: (other, b.into()) };
        let read = Arp::parse(&arp.emit()).unwrap();
        prop_assert_eq!(read, arp);
        prop_assert_eq!(read.sender.0.flags, own.flags);
    }

    #[test]
    fn advertisements_read_as_they_were_written(
        own in hardware(), source: u128, destination: u128, target: u128, solicited: bool, overrides: bool,
    ) {
        // The first byte of a group's address is 0xff.
        let target = (target >> 1).into();
        let told = Advertisement {
            source: source.into(), destination: destination.into(), target, at: Some(own), solicited, overrides,
        };
        prop_assert_eq!(Nd::parse(&told.emit()), Ok(Nd::Advertisement(told)));
        let mut broken = told.emit();
        broken[60] ^= 0x10;
        prop_assert!(Nd::parse(&broken).is_err(), "the checksum sees it");
    }

    #[test]
    fn private_data_read_as_they_were_written(qpn: u32, receive_mtu: u32) {
        let data = ConnectedData { qpn: Qpn::new(qpn), receive_mtu };
        let mut bytes = [0; ConnectedData::LEN];
        data.emit(&mut bytes);
        prop_assert_eq!(ConnectedData::parse(ConnectedDataView::of(&bytes)), data);
    }

    #[test]
    fn groups_of_a_partition_differ_as_their_addresses_do(a: u32, b: u32, pkey: u16) {
        let group = |low: u32| std::net::Ipv4Addr::from(0xe000_0000 | low >> 4);
        let mgid = |low: u32, pkey: u16| group_of(group(low).into(), PKey(pkey), Scope::default()).unwrap();
        prop_assert_eq!(mgid(a, pkey) == mgid(b, pkey), group(a) == group(b));
        prop_assert_eq!(mgid(a, pkey), mgid(a, pkey | 0x8000));
        prop_assert!(mgid(a, pkey).is_multicast());
    }

    #[test]
    fn what_a_sender_is_told_quotes_its_packet(len in 28_usize..3000, source: u32) {
        let mut packet = vec![0x11; len];
        packet[..20].fill(0);
        packet[0] = 0x45;
        packet[9] = 17;
        packet[12..16].copy_from_slice(&source.to_be_bytes());
        packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
        let mut out = [0; 1280];
        let told = too_big(&packet, 2044, [10, 0, 0, 9].into(), &mut out);
        let quiet = source == 0 || source >> 28 == 0xe;
        prop_assert_eq!(told.is_none(), quiet);
        if let Some(told) = told {
            let quote = told - 28;
            prop_assert_eq!(&out[28..told], &packet[..quote]);
        }
    }
}
