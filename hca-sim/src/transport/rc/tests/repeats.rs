//! What the responder does with READs that come again, while others are half answered, under other keys or after a RESET.

use super::retries::{answers, post_read, post_write, requests};
use super::*;

/// The packets that a machine sends while its outlet takes that many, as (opcode, number).
fn sent(pair: &mut Pair, room: usize) -> Vec<(u8, u8)> {
    pair.ends[1].room = room;
    let (packets, _) = pair.ends[1].transmit(pair.now);
    let packets = packets.into_iter();
    packets.map(|(bytes, _)| (bytes[0], bytes[11])).collect()
}

/// Goal: when an older READ is asked for again, the answers behind it begin again: the peer has dropped what it got of
/// them (IBTA vol. 1, 9.7.5.1.2). Method: the second of two READs is answered in part when the first comes again.
#[test]
fn answers_behind_a_repeated_read_begin_again() {
    let mut pair = Pair::new();
    post_read(&mut pair, 1, 3000);
    post_read(&mut pair, 2, 3000);
    let requests = requests(&mut pair);
    for bytes in &requests {
        pair.ends[1].receive(pair.now, bytes);
    }
    let first = [(0x0d, 0), (0x0e, 1), (0x0f, 2)];
    assert_eq!(
        sent(&mut pair, 5),
        [&first[..], &[(0x0d, 3), (0x0e, 4)]].concat()
    );
    pair.ends[1].receive(pair.now, &requests[0]);
    let second = [(0x0d, 3), (0x0e, 4), (0x0f, 5)];
    assert_eq!(sent(&mut pair, 100), [first, second].concat());
}

/// Goal: a READ that comes again under another key, which leads to the same bytes, is not the READ that was asked for:
/// there is no answer and no fault.
#[test]
fn a_repeated_read_has_the_key_that_it_had() {
    let mut pair = Pair::new();
    post_read(&mut pair, 1, 3000);
    let request = requests(&mut pair).remove(0);
    assert_eq!(answers(&mut pair, &[&request]).len(), 3);
    let peer = &pair.ends[1];
    let region = region_of(&peer.memory, Access::REMOTE_READ, PD);
    let (_, other) = peer.mrs.register(region).unwrap();
    let mut under_other = request.clone();
    under_other[20..24].copy_from_slice(&other.value().to_be_bytes());
    assert_eq!(answers(&mut pair, &[&under_other]), Vec::<Vec<u8>>::new());
    assert_eq!(
        answers(&mut pair, &[&request]).len(),
        3,
        "its own key still does"
    );
    assert!(!pair.ends[1].dead && pair.ends[1].events.is_empty());
}

/// Goal: a responder that was reset owes its last peer nothing: neither the NAK that has not left, nor a READ that is asked
/// for again; and it complains of what its next peer has lost. Method: the next connection has the next number.
#[test]
fn a_reset_responder_owes_nothing() {
    let mut pair = Pair::new();
    pair.paths(|path| (path.sq_psn, path.rq_psn) = (5, 5));
    post_read(&mut pair, 1, 100);
    for wr_id in 2..5 {
        post_write(&mut pair, wr_id, 100);
    }
    let requests = requests(&mut pair);
    assert_eq!(answers(&mut pair, &[&requests[0]]).len(), 1);
    pair.ends[1].receive(pair.now, &requests[2]);
    pair.ends[1].rc.reset();
    let none = Vec::<Vec<u8>>::new();
    assert_eq!(answers(&mut pair, &[]), none, "a NAK for the last peer");
    pair.ends[1].path.rq_psn = 6;
    assert_eq!(answers(&mut pair, &[&requests[0]]), none, "its READ");
    let nak = answers(&mut pair, &[&requests[2]]).remove(0);
    assert_eq!((nak[11], nak[12]), (6, 0x60), "what this peer has lost");
}
