//! Fuzz targets as plain functions over bytes.
//!
//! `ci/fuzz` drives them over the inputs in `fuzz/corpus` of this crate, and a test replays those. They panic when a promise of this module's parsers is broken, and return whether the
//! bytes were what the target looks for.

use std::fmt::{self, Debug, Write};

use verbs_core::mad::{MAD_LEN, MadBytes, MadHeader};

use crate::wire::{IpFields, IpHeader, IpPair, Message, ReqPath, body_mut, check};

/// A datagram. What is accepted is written again to the same bytes but for reserved bits.
pub fn message(bytes: &[u8]) -> bool {
    let mut mad: MadBytes = [0; MAD_LEN];
    for (to, from) in mad.iter_mut().zip(bytes) {
        *to = *from;
    }
    let (tid, message) = match Message::parse(&mad) {
        Ok(parsed) => parsed,
        Err(error) => {
            print(&error);
            return false;
        }
    };
    print(&message);
    let emitted = message.emit(tid);
    assert_eq!(
        Message::parse(&emitted),
        Ok((tid, message)),
        "what was written reads differently"
    );

    let mut expected = mad;
    let Ok(header) = check(&mad) else {
        unreachable!("a message has the right header");
    };
    // Of the header a message keeps the transaction id and what makes it one.
    let kept = MadHeader {
        status: Default::default(),
        class_specific: 0,
        modifier: 0,
        ..header
    };
    verbs_core::mad::header::emit_header(&kept, &mut expected);
    clear_reserved(&message, body_mut(&mut expected));
    assert_eq!(emitted, expected);
    true
}

/// A header of the RDMA IP connection manager.
pub fn ip_header(bytes: &[u8]) -> bool {
    let header = match IpHeader::parse(bytes) {
        Ok(header) => header,
        Err(error) => {
            print(&error);
            return false;
        }
    };
    print(&header);
    let mut emitted = [0xa5; IpHeader::LEN];
    header.emit(&mut emitted);
    assert_eq!(IpHeader::parse(&emitted), Ok(header));
    let mut expected = [0; IpHeader::LEN];
    expected.copy_from_slice(&bytes[..IpHeader::LEN]);
    mask(&mut expected, &IpFields::covered());
    if matches!(header.addresses, IpPair::V4 { .. }) {
        expected[4..16].fill(0);
        expected[20..32].fill(0);
    }
    assert_eq!(emitted, expected);
    true
}

fn clear_reserved(message: &Message, body: &mut [u8]) {
    mask(body, &message.covered());
    if matches!(message, Message::Req(_)) {
        mask(&mut body[52..96], &ReqPath::covered());
        mask(&mut body[96..140], &ReqPath::covered());
    }
}

fn mask(bytes: &mut [u8], covered: &[u8]) {
    for (byte, bits) in bytes.iter_mut().zip(covered) {
        *byte &= bits;
    }
}

/// Prints to nowhere: printing must not panic either.
fn print(value: &dyn Debug) {
    struct Nowhere;
    impl Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }
    assert!(write!(Nowhere, "{value:?}").is_ok());
}
