//! How the responder handles requests that arrive again, while others are half answered, under other keys or after a
//! RESET, and the requests behind one that it cannot answer.

use verbs_core::{FlushRange, Placement};

use super::retries::{answers, post_read, post_write, requests};
use super::*;

/// The packets that a machine sends while its outlet takes that many, as (opcode, number).
fn sent(pair: &mut Pair, room: usize) -> Vec<(u8, u8)> {
    pair.ends[1].room = room;
    let (packets, _) = pair.ends[1].transmit(pair.now);
    let packets = packets.into_iter();
    packets.map(|(bytes, _)| (bytes[0], bytes[11])).collect()
}

/// Goal: when an older READ is requested again, the answers behind it begin again: the peer has dropped what it got of
/// them (IBTA vol. 1, 9.7.5.1.2). Method: the second of two READs is answered in part when the first arrives again.
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

/// Goal: a request that takes the place of a READ which is due a second time is answered in its turn, after the other
/// repetitions. Method: a responder that remembers as many READs as it can gets the two oldest again, then a new one.
#[test]
fn a_request_takes_the_place_of_a_repetition() {
    let mut pair = Pair::new();
    pair.paths(|path| path.max_dest_rd_atomic = 128);
    post_read(&mut pair, 1, 8);
    let first = requests(&mut pair).remove(0);
    let read = |number: u8| {
        let mut bytes = first.clone();
        bytes[11] = number;
        bytes
    };
    for number in 0..128 {
        pair.ends[1].receive(pair.now, &read(number));
    }
    let in_order: Vec<_> = (0..128).map(|number| (0x10, number)).collect();
    assert_eq!(sent(&mut pair, 1000), in_order);
    for number in [0, 1, 128] {
        pair.ends[1].receive(pair.now, &read(number));
    }
    assert_eq!(sent(&mut pair, 1000), [(0x10, 1), (0x10, 128)]);
}

/// Goal: a READ that arrives again under another key, for the same bytes, is not the READ that was requested: there is
/// no answer and no fault.
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

/// Goal: a responder that was reset owes its last peer nothing: neither the NAK that was not sent, nor a READ that is
/// requested again; and it reports what its next peer has lost. Method: the next connection has the next number.
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

/// Goal: an ATOMIC WRITE and a FLUSH that arrive again are answered as before, and not done again. Method: what the
/// WRITE has put there is replaced before it arrives again, as by a later one.
#[test]
fn what_is_only_done_is_answered_again_and_not_done_again() {
    let mut pair = Pair::new();
    let access = Access::REMOTE | Access::FLUSH | Access::LOCAL_WRITE;
    pair.paths(|path| path.access = access);
    let [ours, theirs] = &mut pair.ends;
    let (_, rkey) = theirs
        .mrs
        .register(region_of(&theirs.memory, access, PD))
        .unwrap();
    let remote = verbs_core::Remote {
        rkey,
        ..theirs.remote(64)
    };
    ours.memory.write(0, &[5; 8]).unwrap();
    let sges = [ours.sge(0, 8)];
    ours.post(wr(1, SendOp::AtomicWrite(remote), &sges));
    let range = FlushRange {
        remote,
        len: Some(8),
        placement: Placement::GLOBAL,
    };
    ours.post(wr(2, SendOp::Flush(range), &[]));
    let requests = requests(&mut pair);
    let both: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
    let first = answers(&mut pair, &both);
    assert_eq!((first.len(), pair.ends[1].bytes(64, 8)), (2, vec![5; 8]));
    pair.ends[1].memory.write(64, &[6; 8]).unwrap();
    for (request, answer) in requests.iter().zip(&first) {
        let again = answers(&mut pair, &[request]);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0][..12], answer[..12], "kind and number");
    }
    assert_eq!(pair.ends[1].bytes(64, 8), [6; 8]);
}

/// Goal: what is behind a READ that can no longer be answered is not answered: the NAK is all that the peer gets,
/// because it would take anything behind as a sign that the READ was answered. Method: the memory of the first of three
/// READs is deregistered before the outlet has room.
#[test]
fn nothing_behind_a_read_that_fails_is_answered() {
    let mut pair = Pair::new();
    let theirs = &pair.ends[1];
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let passing = region_of(&theirs.memory, access, PD);
    let (lkey, rkey) = theirs.mrs.register(passing).unwrap();
    let lasting = std::mem::replace(&mut pair.ends[1].rkey, rkey);
    post_read(&mut pair, 1, 100);
    pair.ends[1].rkey = lasting;
    post_read(&mut pair, 2, 100);
    post_read(&mut pair, 3, 100);
    let requests = requests(&mut pair);
    for bytes in &requests {
        pair.ends[1].receive(pair.now, bytes);
    }
    pair.ends[1].mrs.deregister(lkey, || {}).unwrap();
    let answers = answers(&mut pair, &[]);
    let [nak] = &answers[..] else {
        panic!("one answer, and not {}", answers.len());
    };
    assert_eq!((nak[0], nak[11], nak[12]), (0x11, 0, 0x62));
    assert!(pair.ends[1].dead);
}

/// Goal: a SEND that is under way has nothing to do with a READ before it that can no longer be answered: its receive is
/// flushed, and the queue pair has the event. Method: the READ's memory is deregistered after the first packet of the SEND,
/// before the outlet has room; with an own receive, and with a shared one.
#[test]
fn a_read_that_fails_spares_the_receive_of_a_send_behind_it() {
    for shared in [false, true] {
        let mut pair = Pair::with(shared, 1);
        let theirs = &mut pair.ends[1];
        let sges = [theirs.sge(0x4000, 4096)];
        theirs.post_recv(7, &sges);
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let passing = region_of(&theirs.memory, access, PD);
        let (lkey, rkey) = theirs.mrs.register(passing).unwrap();
        theirs.rkey = rkey;
        post_read(&mut pair, 1, 100);
        let ours = &mut pair.ends[0];
        let sges = [ours.sge(0, 3000)];
        ours.post(wr(2, SendOp::Send, &sges));
        let requests = requests(&mut pair);
        for bytes in &requests[..2] {
            pair.ends[1].receive(pair.now, bytes);
        }
        pair.ends[1].mrs.deregister(lkey, || {}).unwrap();
        assert_eq!(answers(&mut pair, &[]).len(), 1, "shared {shared}");
        let theirs = &mut pair.ends[1];
        assert!(theirs.dead);
        assert_eq!(theirs.events, [EventType::QpAccessErr]);
        theirs.flush();
        let flushed = [(7, WcStatus::WrFlushErr)];
        assert_eq!(theirs.recv_statuses(), flushed, "shared {shared}");
    }
}
