//! Clients that receive from sockets of the network: the daemon says whose blocks have changed, and takes what was misled.

use verbs_core::Qpn;
use verbs_core::host::message::{Hello, Packets, SOCKETS};
use verbs_core::host::{Block, Message};
use verbs_host::{Ended, Files};

use crate::away;
use crate::bed::{self, Bed, Client, HERE, USER, first_words, packet, req};

fn join(bed: &mut Bed) -> Client {
    let hello = Message::Hello(Hello {
        features: SOCKETS,
        ..first_words()
    });
    bed.join_as(USER, &hello).expect("it is welcome")
}

fn misled(bytes: &[u8]) -> Packets<'_> {
    Packets {
        src: away(),
        ident: None,
        ..bed::burst(HERE, bytes.len() as u16, bytes)
    }
}

/// Goal: each change of a client's blocks is told, and its end; a client that knows no sockets has none. A socket goes with its
/// message.
#[test]
fn changes_of_blocks_are_told() {
    let mut bed = Bed::new();
    let old = bed.join();
    assert_eq!(bed.daemon.poll_moved(), Some((old.id, Vec::new())));
    let one = join(&mut bed);
    let mut blocks = vec![one.block];
    assert_eq!(bed.daemon.poll_moved(), Some((one.id, blocks.clone())));
    assert_eq!(bed.daemon.poll_moved(), None);
    bed.say(one, &Message::Lease(1));
    let [Message::Leased(1, Ok(further))] = bed.told(one)[..] else {
        panic!("one more");
    };
    blocks.extend(Block::new(further));
    let (id, mut moved) = bed.daemon.poll_moved().expect("a change");
    moved.sort_unstable();
    blocks.sort_unstable();
    assert_eq!((id, moved), (one.id, blocks));
    bed.say(one, &Message::Return(further));
    assert_eq!(bed.daemon.poll_moved(), Some((one.id, vec![one.block])));

    bed.daemon.give_socket(one.id, HERE);
    let files = bed.daemon.files_for_next(one.id);
    assert_eq!(files, Some(Files::Socket(HERE)));
    assert_eq!(bed.told(one), [Message::Socket(HERE)]);
    bed.daemon.leave(bed.now, one.id, Ended::Died);
    assert_eq!(bed.daemon.poll_moved(), Some((one.id, Vec::new())));
    // It has just gone.
    bed.daemon.give_socket(one.id, HERE);
}

/// Goal: what came to the socket of a client that it is not for is delivered as what comes from the network; a client that has
/// no sockets, or says that a program of the host has sent it, may not say so.
#[test]
fn misled_packets_are_delivered() {
    let mut bed = Bed::new();
    let [one, other] = [0; 2].map(|_| join(&mut bed));
    let old = bed.join();
    let bytes = packet(Qpn::new(other.block.qpns().start + 3), b"misled");
    bed.say(one, &Message::Arrived(misled(&bytes)));
    assert_eq!(bed.packets(other), [(None, bytes.clone())]);
    assert_eq!(bed.daemon.counters().misled, 1);
    // A request that nobody serves is refused, as if the daemon had received it itself.
    let request = bed::cm_packet(&req(verbs_cm::wire::CommId(7), 7174, Qpn::new(0x55)));
    bed.say(one, &Message::Arrived(misled(&request)));
    let rejected = bed.daemon.poll_mad().expect("an answer");
    assert_eq!((rejected.src, rejected.dst), (HERE, away()));

    let near = Packets {
        src: HERE,
        ..misled(&bytes)
    };
    bed.say(one, &Message::Arrived(near));
    assert!(bed.packets(other).is_empty());
    assert_eq!(bed.daemon.counters().refused, 1);
    assert!(bed.is_there(one), "the address may just have come");
    bed.say(old, &Message::Arrived(misled(&bytes)));
    assert!(bed.packets(other).is_empty());
    assert_eq!(bed.daemon.poll_ended(), Some((old.id, Ended::Unexpected)));
}
