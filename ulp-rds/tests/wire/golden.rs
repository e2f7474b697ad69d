//! Goal: bytes are those of Linux. Method: packets written down by hand, field by field.

use ulp_rds::wire::{
    CongestionMap, Cookie, Extension, Extensions, Handshake, HandshakeError, Header, HeaderError,
    HeaderFlags, Version,
};
use verbs_core::RKey;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn the_header_of_nothing() {
    let mut expected = [0; Header::LEN];
    expected[30..32].fill(0xff);
    assert_eq!(Header::default().emit(), expected);
    assert!(Header::default().is_control());
    // "Not computed" is accepted, a wrong one is not.
    assert_eq!(Header::parse(&[0; 48]), Ok(Header::default()));
    expected[31] = 0xfe;
    let wrong = HeaderError::Checksum {
        expected: 0xffff,
        got: 0xfffe,
    };
    assert_eq!(Header::parse(&expected), Err(wrong));
    assert_eq!(Header::parse(&[0; 47]), Err(HeaderError::Short(47)));
}

#[test]
fn a_message_with_a_cookie() {
    let cookie = Cookie {
        rkey: RKey::new(0x0001_0203),
        offset: 0x40,
    };
    let header = Header {
        sequence: 0x0102,
        ack: 0x0304,
        len: 5000,
        source: 4000,
        destination: 4001,
        flags: HeaderFlags::ACK_REQUIRED | HeaderFlags::RETRANSMITTED,
        credit: 9,
        extensions: Extensions::one(Extension::Destination(cookie)),
    };
    // Words: 0102 0304 1388 0fa0 0fa1 0609 0300 0102 0300 0000 4000 sum to 0x83da.
    let expected = hex(
        "0000000000000102 0000000000000304 00001388 0fa0 0fa1 06 09 00000000 7c25
         03 00010203 00000040 00000000000000",
    );
    assert_eq!(header.emit()[..], expected);
    assert_eq!(Header::parse(&expected), Ok(header));
    assert_eq!(cookie.value(), 0x0000_0040_0001_0203);
    assert_eq!(Cookie::of(cookie.value()), cookie);
}

#[test]
fn extensions_follow_each_other_until_there_is_no_room() {
    let mut both = Extensions::one(Extension::Paths(1));
    both.push(Extension::Generation(7)).unwrap();
    assert_eq!(
        both.bytes()[..],
        hex("05 0001 06 00000007 0000000000000000")
    );
    both.push(Extension::Rdma(RKey::new(2))).unwrap();
    assert!(both.push(Extension::Version(1)).is_err());
    let read: Vec<Extension> = Extensions::parse(*both.bytes()).iter().collect();
    let written = [
        Extension::Paths(1),
        Extension::Generation(7),
        Extension::Rdma(RKey::new(2)),
    ];
    assert_eq!(read, written);
    // Behind a type that is not known nothing can be read.
    let mut unknown = *both.bytes();
    unknown[3] = 4;
    assert_eq!(
        Extensions::parse(unknown),
        Extensions::one(Extension::Paths(1))
    );
}

#[test]
fn private_data_between_ipv4_addresses() {
    let handshake = Handshake {
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        version: Version::V3_1,
        minors: 3,
        tos: 0,
        ack: 0x11,
        credits: 64,
        acked_life: 0,
    };
    let expected = hex("0a000001 0a000002 03 01 0003 00000000 0000000000000011 00000040 00000000");
    let (bytes, len) = handshake.emit();
    assert_eq!(bytes[..len], expected);
    assert_eq!(Handshake::parse(&expected, false), Ok(handshake));
    assert_eq!(handshake.choose(), Ok(Version::V3_1));
    assert_eq!(
        Handshake::parse(&[0; 56], false),
        Err(HandshakeError::Empty)
    );
    let old = Handshake {
        minors: 1,
        ..handshake
    };
    assert_eq!(
        old.choose(),
        Err(HandshakeError::Version {
            major: 3,
            minors: 1
        })
    );
}

#[test]
fn private_data_between_ipv6_addresses() {
    let [source, destination] = ["fd00::1", "fd00::2"].map(|text| text.parse().unwrap());
    let handshake = Handshake {
        source,
        destination,
        version: Version::V3_1,
        minors: Version::MINORS,
        tos: 4,
        ack: 0,
        credits: 0,
        acked_life: 0x0102_0304,
    };
    let expected = hex(
        "fd000000000000000000000000000001 fd000000000000000000000000000002
         03 01 0002 04 000000 0000000000000000 00000000 01020304",
    );
    let (bytes, len) = handshake.emit();
    assert_eq!(bytes[..len], expected);
    assert_eq!(Handshake::parse(&bytes, true), Ok(handshake));
    let short = HandshakeError::Short {
        expected: 56,
        got: 55,
    };
    assert_eq!(Handshake::parse(&bytes[..55], true), Err(short));
}

#[test]
fn a_congested_port() {
    let mut map = CongestionMap::default();
    assert!(map.set(4000, true) && !map.set(4000, true));
    assert_eq!((map.bytes()[500], map.count()), (1, 1));
    assert_eq!(map.freed(&CongestionMap::default()), 1 << 32);
    assert!(CongestionMap::parse(&[0; 8191]).is_err());
}
