//! What is left of a connection when it has gone, and what a peer repeats on the next one.

use super::*;

/// Goal: who waits for a congested port of a peer is told when the peer is lost: nothing is known of its ports any
/// more. Method: two ports that are congested, and the loss; a loss without any.
#[test]
fn a_lost_peers_ports_are_not_congested() {
    let mut pair = Pair::new();
    pair.connect();
    for port in [4000, 4001] {
        pair.ends[1].map.set(port, true);
    }
    let map = pair.ends[1].map.clone();
    pair.ends[1].machine.congestion_changed(&map);
    pair.settle();
    let machine = &mut pair.ends[0].machine;
    assert!(machine.is_congested(4000) && machine.is_congested(4001));
    assert_eq!(machine.poll_event(), None);
    let now = pair.now;
    pair.ends[0].lost(now);
    let machine = &mut pair.ends[0].machine;
    assert!(!machine.is_congested(4000) && !machine.is_congested(4001));
    let freed = 1 << (4000 % 64) | 1 << (4001 % 64);
    assert_eq!(machine.poll_event(), Some(Event::Congestion(freed)));
    assert_eq!(machine.poll_event(), None);

    let mut pair = Pair::new();
    pair.connect();
    pair.settle();
    pair.cut();
    assert_eq!(pair.ends[0].machine.poll_event(), None);
}

/// Goal: pauses between attempts grow while none succeeds, and a connection that was made ends that. Method: failed
/// attempts before and after a connection; the first after it is at once.
#[test]
fn a_success_ends_the_pauses() {
    let mut pair = Pair::new();
    pair.send(0, 3, 9, b"waits");
    for _ in 0..3 {
        let mut longest = Duration::ZERO;
        for _ in 0..12 {
            let now = pair.now;
            let end = &mut pair.ends[0];
            assert!(end.machine.connect().is_some());
            end.lost(now);
            let pause = end.machine.poll_timeout().unwrap().since(now);
            longest = longest.max(pause);
        }
        assert!(longest > RECONNECT_PAUSE_MAX / 8, "{longest:?}");
        pair.connect();
        pair.cut();
        let due = pair.ends[0].machine.poll_timeout();
        assert_eq!(due, Some(pair.now), "the first attempt is at once");
    }
}

/// Goal: a message that a peer marks as sent before is dropped if it has arrived, and acknowledged, so that the peer can
/// forget it; one that is not marked is new, whatever its number: that peer has begun again. Method: numbers 1 to 3, then
/// 2 with and 1 without the mark.
#[test]
fn only_what_is_marked_is_a_repetition() {
    let mut pair = Pair::new();
    pair.connect();
    pair.settle();
    let end = &mut pair.ends[0];
    let mut hand = |sequence: u64, flags: HeaderFlags| {
        let header = Header {
            sequence,
            len: 4,
            source: 3,
            destination: 9,
            flags,
            ..Header::default()
        };
        let packet = [&header.emit()[..], b"text"].concat();
        let came = end.machine.handle_packet(&packet[..], room).unwrap();
        let mut acks = Vec::new();
        while let Some(packet) = end.machine.poll_transmit() {
            acks.push(Header::parse(&packet.header).unwrap().ack);
            end.machine.control_sent();
        }
        (came.is_some(), acks)
    };
    for sequence in 1..=3 {
        assert_eq!(hand(sequence, HeaderFlags::empty()), (true, vec![]));
    }
    assert_eq!(hand(4, HeaderFlags::ACK_REQUIRED), (true, vec![4]));
    let again = HeaderFlags::RETRANSMITTED;
    assert_eq!(hand(2, again), (false, vec![4]));
    assert_eq!(hand(5, again), (true, vec![]), "it had not arrived");
    assert_eq!(hand(1, HeaderFlags::empty()), (true, vec![]));
    assert_eq!(hand(2, HeaderFlags::ACK_REQUIRED), (true, vec![2]));
    assert_eq!(pair.ends[0].machine.counts().duplicates, 1);
}
