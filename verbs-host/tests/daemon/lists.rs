//! Lists of clients, which anybody may ask for who may connect.

use verbs_cm::wire::CommId;
use verbs_core::Qpn;
use verbs_core::host::Message;
use verbs_core::host::list::{CONNECTIONS_MAX, Cursor, Listed};
use verbs_core::host::message::{HEADER, MESSAGE_MAX, VERSION, VERSION_LEAST};
use verbs_core::host::quota::Quota;
use verbs_host::{ClientId, Ended, User};

use crate::away;
use crate::bed::{Bed, HERE, USER, hello, rep, req, rtu, service_of};
use crate::channels::{join, open};

/// One that has connected, and does not say who it is.
fn stranger(bed: &mut Bed) -> ClientId {
    bed.daemon.enter(USER)
}

fn ask(bed: &mut Bed, who: ClientId, from: Cursor) -> Option<Listed> {
    let question = Message::List(9, from).encode();
    bed.daemon.hear(bed.now, who, &question);
    match &bed.told_of(who)[..] {
        [Message::Listing(9, listed)] => listed.as_deref().cloned(),
        told => panic!("{told:?}"),
    }
}

/// The whole list, piece by piece.
fn all(bed: &mut Bed, who: ClientId) -> Vec<Listed> {
    let mut pieces = Vec::new();
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from {
        let piece = ask(bed, who, cursor);
        from = piece.as_ref().and_then(|piece| piece.next);
        assert!(from.is_none_or(|next| next > cursor), "it goes on");
        pieces.extend(piece);
    }
    pieces
}

/// Goal: a list has what each client has, and nothing of those who have gone.
#[test]
fn a_list_has_what_each_client_has() {
    let mut bed = Bed::new();
    let asks = stranger(&mut bed);
    assert_eq!(all(&mut bed, asks), []);
    let [one, other] = [0; 2].map(|_| join(&mut bed));
    let user = User { uid: 7, pid: 70 };
    let third = bed.join_as(user, &hello(VERSION, VERSION));
    let third = third.expect("it is welcome");
    open(&mut bed, one, other);
    let group = "224.0.0.9".parse().expect("one");
    bed.say(one, &Message::Join(group));
    bed.say(one, &Message::Lease(1));
    bed.say(other, &Message::Listen(1, service_of(7)));
    for client in [one, other] {
        bed.told(client);
    }
    let further = bed.daemon.clients();
    assert_eq!(further.len(), 3, "who only asks is no client");

    // One asks for a connection to the other, which a peer elsewhere asks for, too.
    let [own, theirs] = [0x11, 0x22].map(|n| Qpn::new(one.block.qpns().start + n));
    bed.send_cm(one, HERE, &req(CommId(1), 7, own));
    bed.send_cm(other, HERE, &rep(CommId(2), CommId(1), theirs));
    bed.send_cm(one, HERE, &rtu(CommId(1), CommId(2)));
    bed.arrive_cm(away(), &req(CommId(3), 7, Qpn::new(0x99)));
    bed.send_cm(other, away(), &rep(CommId(4), CommId(3), own));
    bed.send_cm(one, away(), &req(CommId(5), 8, own));
    let listed = all(&mut bed, asks);
    let numbers = [one, other, third].map(|client| client.id.number());
    assert!(listed.iter().map(|piece| piece.client).eq(numbers));
    assert!(listed.iter().all(|piece| piece.name == "test"));
    assert_eq!((listed[2].uid, listed[2].pid), (7, 70));
    assert_eq!(listed[0].blocks.len(), 2);
    assert!(listed[0].blocks.contains(&one.block.number()));
    assert_eq!(
        (&listed[0].groups, &listed[1].groups),
        (&vec![group], &vec![])
    );
    assert_eq!(listed[1].services, [service_of(7)]);
    assert_eq!(listed[0].shares, [other.id.number()]);
    assert_eq!(listed[1].shares, [one.id.number()]);
    let [made, begun] = listed[0].connections[..] else {
        panic!("{listed:?}");
    };
    assert_eq!((made.local, made.remote), (HERE, HERE));
    assert_eq!((made.qpn, made.remote_qpn), (Some(own), Some(theirs)));
    assert_eq!(
        (made.service, made.is_active),
        (Some(service_of(7).id), true)
    );
    assert_eq!((begun.remote, begun.remote_qpn), (away(), None));
    let [from_one, from_away] = listed[1].connections[..] else {
        panic!("{listed:?}");
    };
    assert_eq!(
        (from_one.qpn, from_one.remote_qpn),
        (Some(theirs), Some(own))
    );
    assert_eq!((from_away.remote, from_away.is_active), (away(), false));
    assert_eq!(from_away.service, Some(service_of(7).id));
    // A client may ask, too.
    assert_eq!(all(&mut bed, third.id), listed);

    bed.daemon.leave(bed.now, one.id, Ended::Died);
    let left = all(&mut bed, asks);
    assert_eq!(left.len(), 2);
    assert_eq!(left[0].shares, []);
}

/// Goal: a client that has as much as it may is listed in pieces, each a message, and everything is in one of them.
#[test]
fn a_client_with_everything_is_listed_in_pieces() {
    let mut bed = Bed::new();
    let long = Message::Hello(verbs_core::host::message::Hello {
        lowest: VERSION_LEAST,
        highest: VERSION,
        features: 0,
        addresses: vec![HERE],
        name: "ä".repeat(40_000),
        token: [0; 16],
        blocks: Vec::new(),
    });
    let greedy = bed.join_as(USER, &long).expect("its name is cut");
    let after = bed.join();
    let count = Quota::Connections.max();
    for k in 1..=count {
        bed.send_cm(greedy, away(), &req(CommId(k), 7, Qpn::new(k)));
    }
    for k in 0..Quota::Listeners.max() {
        bed.say(greedy, &Message::Listen(1, service_of(k as u16)));
    }
    for k in 0..Quota::Groups.max() {
        let group = std::net::Ipv4Addr::new(224, 0, 1, k as u8).into();
        bed.say(greedy, &Message::Join(group));
    }
    bed.told(greedy);
    let asks = stranger(&mut bed);
    let listed = all(&mut bed, asks);
    for piece in &listed {
        let bytes = Message::Listing(9, Some(Box::new(piece.clone()))).encode();
        assert!(bytes.len() <= MESSAGE_MAX / 2, "{}", bytes.len() - HEADER);
    }
    let pieces = count as usize / CONNECTIONS_MAX;
    assert_eq!(listed.len(), pieces + 1);
    assert_eq!(listed[pieces].client, after.id.number());
    let connections = listed.iter().flat_map(|piece| &piece.connections);
    let numbers: Vec<_> = connections
        .filter_map(|it| it.qpn)
        .map(Qpn::value)
        .collect();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
    assert_eq!(listed[0].services.len(), Quota::Listeners.max() as usize);
    assert_eq!(listed[0].groups.len(), Quota::Groups.max() as usize);
}

/// Goal: any cursor has an answer.
#[test]
fn a_list_may_be_asked_for_from_anywhere() {
    let mut bed = Bed::new();
    let asks = stranger(&mut bed);
    let one = bed.join();
    let number = one.id.number();
    for (client, connections, is_there) in [
        (0, 0, true),
        (0, u32::MAX, true),
        (number, 0, true),
        (number, u32::MAX, true),
        (number + 1, 0, false),
        (u32::MAX, u32::MAX, false),
    ] {
        let from = Cursor {
            client,
            connections,
        };
        let piece = ask(&mut bed, asks, from);
        assert_eq!(piece.is_some(), is_there, "{from:?}");
        assert!(piece.is_none_or(|piece| piece.connections.is_empty() && piece.next.is_none()));
    }
    assert!(bed.is_there(one));
}

/// Goal: one that asks and does not read, or that says what only a client may, loses its line, and nobody else notices.
#[test]
fn who_asks_for_lists_without_end_loses_its_own() {
    let mut bed = Bed::new();
    let one = bed.join();
    let flood = stranger(&mut bed);
    let question = Message::List(1, Cursor::default()).encode();
    for _ in 0..100_000 {
        bed.daemon.hear(bed.now, flood, &question);
        assert!(bed.daemon.waiting() <= 2 << 20);
    }
    assert_eq!(bed.daemon.poll_ended(), Some((flood, Ended::Deaf)));
    assert_eq!(bed.daemon.poll_ended(), None);
    assert_eq!(bed.daemon.waiting(), 0);
    assert!(bed.told(one).is_empty(), "it was no client");
    // Having asked makes nobody a client, and the answer is not a question.
    for message in [Message::Lease(1), Message::Listing(1, None)] {
        let asks = stranger(&mut bed);
        assert!(ask(&mut bed, asks, Cursor::default()).is_some());
        bed.daemon.hear(bed.now, asks, &message.encode());
        assert_eq!(bed.daemon.poll_ended(), Some((asks, Ended::Unexpected)));
    }
    let member = bed.join();
    bed.say(member, &Message::Listing(1, None));
    assert_eq!(
        bed.daemon.poll_ended(),
        Some((member.id, Ended::Unexpected))
    );
    // One that has asked may still become a client.
    let asks = stranger(&mut bed);
    ask(&mut bed, asks, Cursor::default());
    bed.daemon
        .hear(bed.now, asks, &hello(VERSION, VERSION).encode());
    assert!(matches!(bed.told_of(asks)[..], [Message::Welcome(_)]));
    assert!(bed.is_there(one));
}
