//! Fuzz targets as plain functions over bytes, as in [`wire::fuzz`](crate::wire::fuzz).

use super::{Head, Join, Split, VNET_LEN, VnetHeader};

/// Received packets, each behind its length: what the device gets stands for exactly these, whatever they are. Returns
/// whether any were joined.
pub fn join(bytes: &[u8]) -> bool {
    let mut packets = Vec::new();
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len)).min(behind.len());
        let (packet, behind) = behind.split_at(len);
        packets.push(packet);
        rest = behind;
    }
    let mut written = written(packets.iter().copied(), true);
    let has_joined = written.len() < packets.len();
    let mut stood_for = Vec::new();
    for bytes in &mut written {
        let is_plain = bytes[..VNET_LEN] == [0; VNET_LEN];
        let parts = packets_of(bytes).expect("the device gets what it understands");
        assert_eq!(is_plain, parts.len() == 1, "one packet stands for itself");
        stood_for.extend(parts.into_iter().map(|part| (part, is_plain)));
    }
    assert_eq!(stood_for.len(), packets.len());
    for ((got, is_plain), &sent) in stood_for.into_iter().zip(&packets) {
        match is_plain {
            true => assert_eq!(got, sent),
            false => assert_eq!(without_id(got), without_id(sent.to_vec())),
        }
    }
    has_joined
}

/// What a device gives, behind its header: packets with all of that payload. Returns whether the header describes it.
pub fn split(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let Some(packets) = packets_of(&mut bytes) else {
        return false;
    };
    let total: usize = packets.iter().map(Vec::len).sum();
    assert!(total >= bytes.len() - VNET_LEN);
    !packets.is_empty()
}

/// What the device gets of received packets, each behind its header.
pub(super) fn written<'p>(
    packets: impl Iterator<Item = &'p [u8]>,
    joins_udp: bool,
) -> Vec<Vec<u8>> {
    let (mut join, mut written) = (Join::new(joins_udp), Vec::new());
    let mut write = |header: &[u8; VNET_LEN], packet: &[u8]| {
        written.push([&header[..], packet].concat());
    };
    packets.for_each(|packet| join.push(packet, &mut write));
    join.flush(&mut write);
    join.flush(|_, _| panic!("it was flushed"));
    written
}

/// The packets that one stands for.
pub(super) fn packets_of(bytes: &mut [u8]) -> Option<Vec<Vec<u8>>> {
    let (header, packet) = VnetHeader::split(bytes).ok()?;
    let mut split = Split::begin(&header, packet).ok()?;
    let (mut head, mut packets) = (Head::default(), Vec::new());
    while let Some((head, payload)) = split.next(packet, &mut head) {
        packets.push([head, payload].concat());
        split.advance();
    }
    assert!(split.is_done());
    Some(packets)
}

/// A packet of which the identification does not matter, because it is never fragmented.
pub(super) fn without_id(mut packet: Vec<u8>) -> Vec<u8> {
    if packet.first().is_some_and(|first| first >> 4 == 4) {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet
}
