//! Ends that forget everything, and what others believe of them.

use super::*;

#[test]
fn a_node_that_has_forgotten_everything_is_heard() {
    let mut pair = Pair::new();
    pair.connect();
    for number in 0..20 {
        pair.send(0, 3, 9, &numbered(number, 8));
    }
    pair.settle();
    // The sender starts again, and its first connection is cut before anything arrives.
    pair.cut();
    pair.ends[0] = End::new(1, 99);
    pair.ends[1].got.clear();
    pair.connect();
    for number in 0..5 {
        pair.send(0, 3, 9, &numbered(number, 8));
    }
    while pair.post(0) {}
    pair.cut();
    pair.connect();
    pair.settle();
    assert_eq!(pair.texts(1), [0, 1, 2, 3, 4]);
    assert_eq!(pair.ends[1].machine.counts().peer_restarts, 1);
    assert_eq!(pair.ends[0].machine.queued(), 0);
    // The receiver starts again: what it had acknowledged does not come again, the rest does.
    pair.cut();
    pair.ends[1] = End::new(2, 98);
    pair.send(0, 3, 9, &numbered(5, 8));
    pair.connect();
    pair.settle();
    assert_eq!(pair.texts(1), [5]);
}

/// Goal: each life of a node asks each life of its peer once whether it is known, and all that is said of an earlier life is
/// recognised. Method: packets as they are on the wire, at every moment at which the connection may be cut.
#[test]
fn probes_are_sent_to_each_life_of_a_peer_that_announces_itself() {
    let mut pair = Pair::new();
    pair.connect();
    let mut probes = Vec::new();
    while (0..2).fold(false, |moved, end| moved | pair.post(end)) {
        for from in 0..2 {
            let bytes = pair.ends[1 - from].wire.back().cloned();
            let header = bytes.map(|bytes| Header::parse(&bytes).unwrap());
            let is_probe =
                |header: &Header| [header.source, header.destination] == [PROBE_PORT, PING_PORT];
            probes.extend(header.filter(is_probe).map(|header| (from, header)));
        }
        while pair.ends[0].take() | pair.ends[1].take() {}
    }
    for from in 0..2 {
        let of_it = probes.iter().filter(|(end, _)| *end == from);
        let of_it: Vec<&Header> = of_it.map(|(_, header)| header).collect();
        assert_eq!(of_it.len(), 1, "from {from}");
        let said: Vec<Extension> = of_it[0].extensions.iter().collect();
        let generation = 11 + from as u32;
        assert_eq!(
            said,
            [Extension::Paths(1), Extension::Generation(generation)]
        );
        assert_eq!((of_it[0].sequence, of_it[0].len), (1, 0));
        assert_eq!(pair.ends[from].machine.counts().probes, 1);
        assert!(pair.ends[from].got.is_empty());
    }
    // The same life is not asked again, another one is.
    pair.cut();
    pair.connect();
    pair.settle();
    assert_eq!(pair.ends[0].machine.counts().probes, 1);
    pair.cut();
    pair.ends[1] = End::new(2, 77);
    pair.connect();
    pair.settle();
    assert_eq!(pair.ends[0].machine.counts().probes, 2);
    assert_eq!(pair.ends[1].machine.counts().probes, 1);
}

/// Goal: what a peer had of an earlier life is not taken for what it has of this one. Method: the earlier life has sent as many
/// messages as the new one will have, and the new one's connection is cut after every number of packets.
#[test]
fn acknowledgements_of_an_earlier_life_are_not_believed() {
    for cut_after in 0..24 {
        let mut pair = Pair::new();
        pair.connect();
        for number in 0..5 {
            pair.send(0, 3, 9, &numbered(number, 8));
        }
        pair.settle();
        pair.cut();
        pair.ends[0] = End::new(1, 99);
        pair.ends[1].got.clear();
        pair.connect();
        for number in 10..16 {
            pair.send(0, 3, 9, &numbered(number, 8));
        }
        for step in 0..cut_after {
            let from = step % 2;
            pair.post(from);
            // Every third packet is lost with the connection.
            if step % 3 != 2 {
                pair.ends[1 - from].take();
            }
        }
        pair.cut();
        pair.connect();
        pair.settle();
        assert_eq!(pair.texts(1), [10, 11, 12, 13, 14, 15], "{cut_after}");
        assert_eq!(pair.ends[0].machine.queued(), 0, "{cut_after}");
        assert_eq!(pair.ends[0].acked, 6, "{cut_after}");
    }
}

#[test]
fn simultaneous_attempts_and_lost_peers() {
    let mut pair = Pair::new();
    let [one, other] = &mut pair.ends;
    assert!(one.machine.connect().is_some() && other.machine.connect().is_some());
    // The lower address is the one that is answered, and asks on.
    assert_eq!(one.machine.asked().unwrap_err(), Refusal::Busy);
    assert!(other.machine.asked().is_ok());
    assert_eq!(other.machine.state(), State::Connecting);
    // Both try again after a time of their own, and only if something is to be sent.
    one.lost(pair.now);
    other.lost(pair.now);
    assert_eq!(one.machine.poll_timeout(), None);
    let mut pauses = Vec::new();
    one.machine.send(message(3, 2, b""));
    for _ in 0..14 {
        let at = one.machine.poll_timeout().unwrap();
        pauses.push(at.since(pair.now));
        pair.now = at;
        assert!(one.machine.connect().is_some());
        one.lost(pair.now);
    }
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(pauses.iter().all(|pause| *pause <= RECONNECT_PAUSE_MAX));
    assert!(pauses.iter().any(|pause| *pause > RECONNECT_PAUSE_MAX / 8));
    pair.connect();
    // A request changes nothing, a connection does.
    let asked = pair.ends[0].machine.asked().unwrap();
    assert_eq!(pair.ends[0].machine.state(), State::Up);
    assert_eq!(pair.ends[0].machine.supersede(&asked), Ok(()));
    assert_eq!(pair.ends[0].machine.state(), State::Error);
}
