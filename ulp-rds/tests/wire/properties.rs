//! Goal: what is written reads the same, and any bytes can be read. Method: random values and bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use ulp_rds::wire::{Cookie, Extension, Extensions, Header, HeaderFlags, fuzz};

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in vec(any::<u8>(), 0..200), computed: bool) {
        fuzz::handshake(&bytes);
        fuzz::congestion(&bytes);
        let mut packet = bytes;
        // Few random checksums are right.
        if let Some(sum) = packet.get_mut(30..32) && !computed {
            sum.fill(0);
        }
        fuzz::packet(&packet);
    }

    #[test]
    fn headers_read_as_they_were_written(
        sequence: u64, ack: u64, len: u32, source: u16, destination: u16, flags in 0_u8..8, credit: u8, cookie: u64,
    ) {
        let header = Header {
            sequence, ack, len, source, destination, credit,
            flags: HeaderFlags::from_bits_truncate(flags),
            extensions: Extensions::one(Extension::Destination(Cookie::of(cookie))),
        };
        prop_assert_eq!(Header::parse(&header.emit()), Ok(header));
        let mut broken = header.emit();
        broken[20] ^= 0x10;
        let sum = u16::from_be_bytes([broken[30], broken[31]]);
        prop_assert!(sum == 0 || Header::parse(&broken).is_err());
    }
}
