//! Goal: the bytes are those of the RFCs. Method: messages written down by hand.

use ulp_ipoib::wire::{
    Advertisement, Arp, ArpOperation, HardwareAddress, HardwareFlags, Nd, interface_identifier,
    link_local,
};
use verbs_core::{Gid, Guid, Qpn};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn port(last: u8) -> Gid {
    Gid::from_parts(
        Gid::LINK_LOCAL_PREFIX,
        Guid(0x0002_c903_0001_0200 | u64::from(last)),
    )
}

fn address(flags: HardwareFlags, qpn: u32, last: u8) -> HardwareAddress {
    HardwareAddress {
        flags,
        qpn: Qpn::new(qpn),
        gid: port(last),
    }
}

#[test]
fn an_arp_request_of_a_node_that_takes_connections() {
    let arp = Arp {
        operation: ArpOperation::Request,
        sender: (address(HardwareFlags::RC, 0x404, 3), [10, 0, 0, 1].into()),
        target: (HardwareAddress::default(), [10, 0, 0, 2].into()),
    };
    let expected = hex("0020 0800 14 04 0001
         80 000404 fe80000000000000 0002c90300010203 0a000001
         00 000000 0000000000000000 0000000000000000 0a000002");
    assert_eq!(arp.emit()[..], expected);
    assert_eq!(Arp::parse(&expected), Ok(arp));
    let reply = arp.reply(address(HardwareFlags::empty(), 0x48, 9)).emit();
    assert_eq!(reply[6..12], hex("0002 00 000048"));
    assert_eq!(reply[28..32], [10, 0, 0, 2]);
}

#[test]
fn a_solicitation_and_its_advertisement() {
    let [ours, theirs] = ["fd00::1", "fd00::12:3456"].map(|text| text.parse().unwrap());
    let own = address(HardwareFlags::empty(), 0x404, 3);
    let packet = Nd::solicit(ours, theirs, own, false);
    let expected = hex("60000000 0030 3a ff
         fd000000000000000000000000000001 ff0200000000000000000001ff123456
         87 00 0000 00000000 fd000000000000000000000000123456
         01 03 0000 00 000404 fe80000000000000 0002c90300010203");
    // Everything except the checksum, which must be right.
    assert_eq!(packet[..42], expected[..42]);
    assert_eq!(packet[44..], expected[44..]);
    let asked = Nd::Solicitation {
        source: ours,
        target: theirs,
        from: Some(own),
    };
    assert_eq!(Nd::parse(&packet), Ok(asked));
    let told = Advertisement {
        source: theirs,
        destination: ours,
        target: theirs,
        at: Some(own),
        solicited: true,
        overrides: true,
    };
    let packet = told.emit();
    assert_eq!(packet[40..42], [136, 0]);
    assert_eq!(packet[44..48], [0x60, 0, 0, 0]);
    assert_eq!(packet[64..68], [2, 3, 0, 0]);
    assert_eq!(Nd::parse(&packet), Ok(Nd::Advertisement(told)));
}

#[test]
fn identifiers_come_from_the_port() {
    assert_eq!(interface_identifier(port(3)), 0x0202_c903_0001_0203);
    assert_eq!(link_local(port(3)).to_string(), "fe80::202:c903:1:203");
}
