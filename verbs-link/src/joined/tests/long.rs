//! Long packets between two clients, whose payloads stay in the shared memory until they have been copied.

use verbs_core::Memory;
use verbs_core::mem::catch_faults;

use super::near::{
    RING_LEN, arrived, beside, message, neighbours, packet, said, send, texts, write,
};
use super::*;
use crate::ring::Broken;

const LONGEST: usize = RING_LEN / 8;

fn route(link: &Joined) -> Route {
    let here = link.addresses()[0];
    Route {
        src: here,
        dst: here,
        tclass: 3,
        hop_limit: 64,
        local: None,
    }
}

/// Sends a long packet with that payload.
fn send_long(link: &mut Joined, dest: u32, payload: &[u8]) -> Sent {
    let packet = LongPacket {
        route: route(link),
        dest: Qpn::new(dest),
        head: &packet(dest, b""),
        len: payload.len(),
    };
    let sent = link.transmit_long(&packet, &mut |window| {
        assert_eq!(window.len() as usize, payload.len());
        window.write_from(payload).map(drop)
    });
    sent.expect("the memory is there")
}

/// What has arrived: the bytes of each packet, and the payload of a long one.
fn both(link: &mut Joined) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut got = Vec::new();
    link.receive(&mut |arrival| {
        let payload = arrival.long.map(|window| {
            assert_eq!(arrival.ident, Ident::Unsealed);
            let mut bytes = vec![0; window.len() as usize];
            window.read_into(&mut bytes).expect("the memory is there");
            bytes
        });
        got.push((arrival.bytes.to_vec(), payload));
    });
    got
}

/// Goal: a port sends long packets to a neighbour that takes them, and to nobody else: not through the daemon, not to other
/// hosts. So none arrives at a port whose link is wrapped by one that may look at packets.
#[test]
fn only_a_neighbour_that_takes_them_is_sent_any() {
    let [mut one, mut other] = neighbours();
    let near = route(&one.link);
    let dest = Qpn::new(qpn(6, 0x10));
    assert_eq!(one.link.longest(&near, dest), None, "it has not said so");
    let mut wrapped = crate::Faulty::new(other.link, 1);
    wrapped.take_long();
    assert_eq!(
        one.link.longest(&near, dest),
        None,
        "another link is around it"
    );
    assert_eq!(wrapped.longest(&near, Qpn::new(qpn(5, 0x10))), None);
    [one, other] = neighbours();
    other.link.take_long();
    assert_eq!(one.link.longest(&near, dest), Some(LONGEST));
    assert_eq!(other.link.longest(&near, Qpn::new(qpn(5, 0x10))), None);
    let third = Qpn::new(qpn(7, 0x10));
    assert_eq!(one.link.longest(&near, third), None, "it has no channel");
    let away = Route {
        dst: "192.0.2.1".parse().expect("one"),
        ..near
    };
    assert_eq!(one.link.longest(&away, dest), None);
}

/// Goal: long packets and others arrive in order, whole; what a long one is filled with in vain is not sent.
#[test]
fn long_packets_arrive_among_others() {
    let [mut one, mut other] = neighbours();
    other.link.take_long();
    let dest = qpn(6, 0x10);
    catch_faults().expect("this machine can");
    let memory = Memory::alloc(4096).expect("there is memory");
    memory.take_away(0).expect("it can be");
    let payload =
        |salt: usize, len: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + salt) as u8).collect() };
    let mut expected = Vec::new();
    for round in 0..100 {
        let short = packet(dest, &[round as u8; 20]);
        assert_eq!(send(&mut one.link, &short, 64), Sent::Gone);
        expected.push((short, None));
        let long = payload(round, 1 + round * 977 % LONGEST);
        assert_eq!(send_long(&mut one.link, dest, &long), Sent::Gone);
        expected.push((packet(dest, b""), Some(long)));
        let gone = LongPacket {
            route: route(&one.link),
            dest: Qpn::new(dest),
            head: &packet(dest, b""),
            len: 100,
        };
        let failed = one.link.transmit_long(&gone, &mut |window| {
            window
                .copy_from(memory.window(0, 100).expect("it is as long"))
                .map(drop)
        });
        assert!(failed.is_err());
        let got = both(&mut other.link);
        assert_eq!(got, std::mem::take(&mut expected), "round {round}");
    }
    assert_eq!(one.link.counters().shared_lost, 0);
    assert_eq!(other.link.counters().shared_received, 200);
}

/// Goal: without room a sender waits, and loses nothing as long as the neighbour reads.
#[test]
fn a_long_packet_waits_for_room() {
    let [mut one, mut other] = neighbours();
    other.link.take_long();
    let payload = vec![7; LONGEST];
    let mut sent = 0;
    while send_long(&mut one.link, qpn(6, 0x10), &payload) == Sent::Gone {
        sent += 1;
    }
    assert!((3..8).contains(&sent), "{sent} of an eighth each");
    assert_eq!(one.link.counters().blocked, 1);
    assert_eq!(
        both(&mut other.link).len(),
        sent.min(4),
        "as many as in a turn"
    );
    assert_eq!(send_long(&mut one.link, qpn(6, 0x10), &payload), Sent::Gone);
}

/// Goal: long packets are checked as others are: what a neighbour may not send is dropped, and what makes no sense ends the
/// channel.
#[test]
fn a_neighbour_that_sends_nonsense_is_found_out() {
    let (mut bed, mut rings, _bell) = beside(true);
    bed.link.take_long();
    let here = port().addresses[0];
    let away: IpAddr = "192.0.2.1".parse().expect("one");
    let mut write_long = |head: &[u8]| {
        let longest = rings.writer.longest_payload();
        assert_eq!(longest, Some(LONGEST));
        let pieces = (head.len(), [head].into_iter());
        let written = rings
            .writer
            .write_long(pieces, 64, |_, _| Ok::<_, Broken>(()));
        assert!(matches!(written, Ok(Ok(Some(_)))));
    };
    let good = packet(qpn(5, 0x10), b"");
    for refused in [
        message(away, here, 12, &good),
        message(here, away, 12, &good),
        message(here, here, 12, &packet(1, b"")),
        message(here, here, 12, &packet(qpn(6, 0x10), b"")),
    ] {
        write_long(&refused);
        assert!(both(&mut bed.link).is_empty());
    }
    assert_eq!(bed.link.counters().receive_errors, 4);
    write_long(&message(here, here, 12, &good));
    assert_eq!(both(&mut bed.link), [(good.clone(), Some(vec![0; 64]))]);
    // Headers that go on behind what is copied.
    write_long(&message(here, here, 4000, &good));
    assert!(both(&mut bed.link).is_empty());
    assert_eq!(said(&bed), Message::Broken(6));
    assert_eq!(bed.link.gone(), Some(qpns(6)));
    let _ = write(
        &mut rings,
        &message(here, here, 16, &packet(qpn(5, 0x10), b"late")),
    );
    assert!(texts(&mut bed.link).is_empty() && arrived(&mut bed.link).is_empty());
}
