//! Goal: what goes on the wire is what a system without offload would have sent; what is joined stands for exactly what
//! was received. Method: packets built here by hand, and random sequences of them, good and bad.

use proptest::collection::vec;
use proptest::prelude::*;

use super::fuzz::{packets_of, without_id, written};
use super::*;
use crate::wire::checksum;

const PAYLOAD_MAX: usize = 60_000;

/// A large packet as a device gives it: headers by hand, and only the pseudo header's sum where the checksum belongs.
fn large(gso: Gso, is_v6: bool, size: u16, payload: usize) -> Vec<u8> {
    let is_udp = gso == Gso::Udp;
    let (ip, transport) = (if is_v6 { 40 } else { 20 }, if is_udp { 8 } else { 32 });
    let mut packet = vec![0; ip + transport];
    let covered = (transport + payload) as u16;
    let protocol = if is_udp { UDP } else { TCP };
    if is_v6 {
        (packet[0], packet[6], packet[7]) = (0x60, protocol, 64);
        packet[4..6].copy_from_slice(&covered.to_be_bytes());
        (packet[8], packet[23], packet[24], packet[39]) = (0xfd, 1, 0xfd, 2);
    } else {
        let len = covered + 20;
        packet[..10].copy_from_slice(&[0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol]);
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum(0, &packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet[ip..ip + 4].copy_from_slice(&[0x13, 0x88, 0x14, 0x51]);
    let offset = if is_udp {
        packet[ip + 4..ip + 6].copy_from_slice(&covered.to_be_bytes());
        6
    } else {
        // The end of the range of sequence numbers; all flags that only one end may have.
        packet[ip + 4..ip + 8].copy_from_slice(&(u32::MAX - 999).to_be_bytes());
        (packet[ip + 12], packet[ip + 13]) = (0x80, ACK | PSH | FIN | CWR);
        packet[ip + 20..ip + 24].copy_from_slice(&[1, 1, 8, 10]);
        16
    };
    let addresses = if is_v6 { 8..40 } else { 12..20 };
    let partial = !checksum(u32::from(protocol) + u32::from(covered), &packet[addresses]);
    let at = ip + offset;
    packet[at..at + 2].copy_from_slice(&partial.to_be_bytes());
    packet.extend((0..payload).map(|byte| (byte * 7 + byte / 251) as u8));
    let header = VnetHeader {
        is_partial: true,
        gso,
        header_len: (ip + transport) as u16,
        gso_size: size,
        checksum_start: ip as u16,
        checksum_offset: offset as u16,
    };
    [&header.emit()[..], &packet].concat()
}

/// Whether all lengths and checksums of a packet are right.
fn is_whole(packet: &[u8]) -> bool {
    let is_v6 = packet[0] >> 4 == 6;
    let (ip, len, addresses, protocol) = match is_v6 {
        true => (40, usize::from(word(packet, 4)) + 40, 8..40, packet[6]),
        false => (20, usize::from(word(packet, 2)), 12..20, packet[9]),
    };
    let begun = u32::from(protocol) + (packet.len() - ip) as u32;
    let begun = begun + u32::from(!checksum(0, &packet[addresses]));
    let is_udp = protocol == UDP;
    let udp_len = usize::from(word(packet, ip + 4));
    len == packet.len()
        && (is_v6 || checksum(0, &packet[..20]) == 0)
        && (!is_udp || udp_len == packet.len() - ip && word(packet, ip + 6) != 0)
        && checksum(begun, &packet[ip..]) == 0
}

#[test]
fn a_large_packet_becomes_those_that_a_system_would_send() {
    for (gso, is_v6) in [
        (Gso::Tcp4, false),
        (Gso::Tcp6, true),
        (Gso::Udp, false),
        (Gso::Udp, true),
    ] {
        let mut bytes = large(gso, is_v6, 1000, 3001);
        let payload = bytes[bytes.len() - 3001..].to_vec();
        let packets = packets_of(&mut bytes).unwrap();
        let ip = if is_v6 { 40 } else { 20 };
        let at = ip + if gso == Gso::Udp { 8 } else { 32 };
        let sizes: Vec<_> = packets.iter().map(|packet| packet.len() - at).collect();
        assert_eq!(sizes, [1000, 1000, 1000, 1]);
        assert!(packets.iter().all(|packet| is_whole(packet)), "{gso:?}");
        let parts: Vec<_> = packets
            .iter()
            .flat_map(|packet| &packet[at..])
            .copied()
            .collect();
        assert!(parts == payload);
        if !is_v6 {
            let ids: Vec<_> = packets.iter().map(|packet| word(packet, 4)).collect();
            assert_eq!(ids, [0xfffe, 0xffff, 0, 1]);
        }
        if gso != Gso::Udp {
            let sequences = packets
                .iter()
                .map(|packet| u32::from_be_bytes(*packet[ip + 4..].first_chunk().unwrap()));
            let first = u32::MAX - 999;
            assert!(sequences.eq([first, 0, 1000, 2000]), "they wrap");
            let flags: Vec<_> = packets
                .iter()
                .map(|packet| packet[ip + TCP_FLAGS])
                .collect();
            assert_eq!(flags, [ACK | CWR, ACK, ACK, ACK | PSH | FIN]);
        }
    }
}

#[test]
fn a_packet_for_itself_gets_its_checksum() {
    for gso in [Gso::Tcp4, Gso::Udp] {
        let mut bytes = large(gso, false, 0, 777);
        bytes[1] = 0;
        let packets = packets_of(&mut bytes).unwrap();
        assert_eq!(packets.len(), 1);
        assert!(is_whole(&packets[0]));
    }
    // One that has a checksum passes as it is, whatever it is.
    let mut bytes = [&[0; VNET_LEN][..], b"anything"].concat();
    assert_eq!(packets_of(&mut bytes).unwrap(), [b"anything"]);
}

/// Goal: a header that does not describe its packet is refused. Method: each of its fields, wrong.
#[test]
fn a_header_that_lies_is_refused() {
    let good = large(Gso::Tcp4, false, 1000, 3000);
    let wrong = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        packets_of(&mut bytes).is_none()
    };
    assert!(!wrong(|_| ()));
    assert!(wrong(|bytes| bytes[0] = 0), "the checksum is not missing");
    assert!(wrong(|bytes| bytes[1] = 4), "IPv6");
    assert!(
        wrong(|bytes| bytes[1] = 5),
        "UDP, by the place of the checksum"
    );
    assert!(wrong(|bytes| bytes[4..6].fill(0)), "nothing in each");
    assert!(wrong(|bytes| bytes[6..8].fill(0)), "no header of IP");
    assert!(wrong(|bytes| bytes[6..8].fill(0xff)), "behind the end");
    assert!(wrong(|bytes| bytes[8] = 6));
    assert!(
        wrong(|bytes| bytes[VNET_LEN + 32] = 0x40),
        "a short header of TCP"
    );
    assert!(wrong(|bytes| bytes.truncate(VNET_LEN + 52)), "no payload");
    assert!(wrong(|bytes| bytes.truncate(VNET_LEN)));
    let partial = |start: u8, offset: u8| {
        let mut bytes = [&[1, 0, 0, 0, 0, 0, start, 0, offset, 0][..], &[0; 30]].concat();
        packets_of(&mut bytes).is_none()
    };
    assert!(!partial(20, 8) && partial(20, 9) && partial(31, 0) && partial(255, 255));
}

fn joined(packets: &[Vec<u8>], joins_udp: bool) -> Vec<Vec<u8>> {
    written(packets.iter().map(Vec::as_slice), joins_udp)
}

/// Packets of one flow, as they come from the wire.
fn flow(gso: Gso, is_v6: bool, size: u16, payload: usize) -> Vec<Vec<u8>> {
    let mut bytes = large(gso, is_v6, size, payload);
    if gso != Gso::Udp {
        let flags = VNET_LEN + if is_v6 { 40 } else { 20 } + TCP_FLAGS;
        bytes[flags] = ACK | PSH;
    }
    packets_of(&mut bytes).unwrap()
}

#[test]
fn a_flow_is_given_to_the_system_at_once() {
    for (gso, is_v6) in [
        (Gso::Tcp4, false),
        (Gso::Tcp6, true),
        (Gso::Udp, false),
        (Gso::Udp, true),
    ] {
        let packets = flow(gso, is_v6, 1000, 3001);
        let mut written = joined(&packets, true);
        assert_eq!(written.len(), 1, "{gso:?}");
        let again = packets_of(&mut written[0]).unwrap();
        let plain = |packets: Vec<Vec<u8>>| packets.into_iter().map(without_id).collect::<Vec<_>>();
        assert_eq!(plain(again), plain(packets));
    }
    let packets = flow(Gso::Udp, false, 64, 64 * 150);
    let lens: Vec<_> = joined(&packets, true).iter().map(Vec::len).collect();
    let len = |packets: usize| VNET_LEN + 28 + 64 * packets;
    assert_eq!(
        lens,
        [len(64), len(64), len(22)],
        "as many as a system takes"
    );
    assert_eq!(
        joined(&packets, false).len(),
        150,
        "this device takes no UDP so"
    );
}

/// Goal: a packet that does not belong to the flow, or is not right, is not joined, and all stay in their order.
#[test]
fn what_is_not_right_passes_unchanged() {
    let good = flow(Gso::Tcp4, false, 1000, 3000);
    let wrong = |index: usize, change: fn(&mut Vec<u8>)| {
        let mut packets = good.clone();
        change(&mut packets[index]);
        let written = joined(&packets, true);
        let lone = |packet: &[u8]| written.iter().any(|one| one[VNET_LEN..] == *packet);
        (written.len(), lone(&packets[index]))
    };
    assert_eq!(wrong(1, |_| ()), (1, false));
    // The payload, the header's checksum, lengths, an option, a fragment, one that may be one, another time to live.
    let changes: [fn(&mut Vec<u8>); 9] = [
        |packet| packet[500] ^= 1,
        |packet| packet[10] ^= 1,
        |packet| packet[3] ^= 1,
        |packet| packet.truncate(700),
        |packet| packet[0] = 0x46,
        |packet| packet[7] = 1,
        |packet| packet[6] = 0,
        |packet| packet[8] = 63,
        |packet| packet[20 + TCP_FLAGS] |= 2,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(wrong(1, change), (3, true), "{number}");
        assert_eq!(wrong(0, change), (2, true), "{number}, in front");
    }
    let mut reordered = good.clone();
    reordered.swap(1, 2);
    assert_eq!(joined(&reordered, true).len(), 3);
    // Without a checksum, UDP proves nothing.
    let mut packets = flow(Gso::Udp, false, 100, 300);
    packets.iter_mut().for_each(|packet| packet[26..28].fill(0));
    assert_eq!(joined(&packets, true).len(), 3);
    assert_eq!(joined(&[vec![], vec![0x45], vec![0x60; 40]], true).len(), 3);
}

#[test]
fn long_messages_do_not_wait() {
    let packets = flow(Gso::Tcp4, false, 40_000, 40_000);
    let mut join = Join::new(true);
    let mut lens = Vec::new();
    join.push(&packets[0], |header, packet| {
        assert_eq!(header, &[0; VNET_LEN]);
        lens.push(packet.len());
    });
    assert_eq!(lens, [40_052]);
}

fn sequence() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let kind = prop_oneof![
        Just((Gso::Tcp4, false)),
        Just((Gso::Tcp6, true)),
        Just((Gso::Udp, false)),
        Just((Gso::Udp, true)),
    ];
    let run = (
        kind,
        1_u16..3000,
        1..PAYLOAD_MAX / 10,
        any::<prop::sample::Index>(),
        any::<bool>(),
    );
    let run = run.prop_map(|((gso, is_v6), size, payload, at, is_bad)| {
        let mut packets = flow(gso, is_v6, size, payload.min(usize::from(size) * 80));
        let index = at.index(packets.len());
        if is_bad {
            let byte = at.index(packets[index].len());
            packets[index][byte] ^= 0x11;
        }
        packets
    });
    vec(run, 0..5).prop_map(|runs| runs.concat())
}

proptest! {
    #[test]
    fn joined_packets_stand_for_what_was_received(packets in sequence()) {
        let bytes: Vec<_> = packets
            .iter()
            .flat_map(|packet| [&(packet.len() as u16).to_be_bytes()[..], packet].concat())
            .collect();
        fuzz::join(&bytes);
    }

    #[test]
    fn any_bytes_can_be_taken(bytes in vec(any::<u8>(), 0..200), gso: bool) {
        fuzz::join(&bytes);
        fuzz::split(&bytes);
        let (kind, start) = if gso { (1, 20) } else { (5, 40) };
        let header = [1, kind, 0, 0, 7, 0, start, 0, 16, 0];
        fuzz::split(&[&header[..], &bytes].concat());
    }
}
