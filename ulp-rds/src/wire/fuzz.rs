//! Fuzz targets as plain functions over bytes.
//!
//! `ci/fuzz` drives them over the inputs in `fuzz/corpus` of this crate, and a test replays those. They panic when
//! a promise of this module's parsers is broken, and return whether the bytes were what the target looks for.

use super::{CongestionMap, Extension, FRAGMENT_LEN, Handshake, Header, MapLength};

/// A packet: its header, and what may follow.
pub fn packet(bytes: &[u8]) -> bool {
    let header = match Header::parse(bytes) {
        Ok(header) => header,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let emitted = header.emit();
    assert_eq!(Header::parse(&emitted), Ok(header), "{header:?}");
    assert_eq!(emitted[..24], bytes[..24]);
    let taken: usize = header.extensions.iter().map(length).sum();
    assert!(taken <= 16, "{header:?}");
    assert_eq!(emitted[32..32 + taken], bytes[32..32 + taken]);
    bytes.len() <= Header::LEN + FRAGMENT_LEN
}

/// Private data, between addresses of either family: the first byte decides.
pub fn handshake(bytes: &[u8]) -> bool {
    let Some((&first, bytes)) = bytes.split_first() else {
        return false;
    };
    let v6 = first & 1 != 0;
    let handshake = match Handshake::parse(bytes, v6) {
        Ok(handshake) => handshake,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let (emitted, len) = handshake.emit();
    assert_eq!(len == Handshake::LEN_V6, v6);
    assert_eq!(Handshake::parse(&emitted[..len], v6), Ok(handshake));
    match handshake.choose() {
        Ok(version) => assert!(handshake.minors & 1 << version.minor != 0),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    handshake.choose().is_ok()
}

/// A congestion map. Lengths other than 8192 are refused; the bytes are repeated to that length.
pub fn congestion(bytes: &[u8]) -> bool {
    if bytes.len() != CongestionMap::LEN {
        assert_eq!(CongestionMap::parse(bytes), Err(MapLength(bytes.len())));
    }
    let Some((&first, rest)) = bytes.split_first() else {
        return false;
    };
    let wide: Vec<u8> = bytes
        .iter()
        .copied()
        .cycle()
        .take(CongestionMap::LEN)
        .collect();
    let Ok(mut map) = CongestionMap::parse(&wide) else {
        return false;
    };
    let old = map.clone();
    for pair in rest.chunks_exact(2) {
        let port = u16::from_be_bytes([pair[0], pair[1]]);
        map.set(port, first & 1 != 0);
        assert_eq!(map.is_congested(port), first & 1 != 0);
        let is_freed = old.is_congested(port) && !map.is_congested(port);
        assert!(!is_freed || old.freed(&map) & 1 << (port % 64) != 0);
    }
    assert_eq!(map.freed(&map), 0);
    bytes.len() % 2 == 1
}

fn length(extension: Extension) -> usize {
    match extension {
        Extension::Version(_) | Extension::Rdma(_) | Extension::Generation(_) => 5,
        Extension::Destination(_) => 9,
        Extension::Paths(_) => 3,
    }
}
