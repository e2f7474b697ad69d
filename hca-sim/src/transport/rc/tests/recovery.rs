//! What is sent again, how much of it, and answers that say yes and no at once.

use super::retries::{post_read, post_write};
use super::*;

/// Goal: a packet that is sent again only to ask takes no second place in the window. Method: the queue pair is told
/// to drain and to go on several times while nothing is answered; then a long WRITE fills what is left.
#[test]
fn what_asks_again_is_counted_once() {
    const ROUNDS: usize = 8;
    let mut pair = Pair::new();
    pair.paths(|path| path.timeout = 0);
    post_write(&mut pair, 0, 100);
    for round in 1..=ROUNDS {
        post_write(&mut pair, round as u64, 100);
        let ours = &mut pair.ends[0];
        ours.room = 1;
        let (first, _) = ours.transmit(0);
        ours.may_begin = false;
        let (again, _) = ours.transmit(0);
        ours.may_begin = true;
        let asks = |packets: &[(Vec<u8>, bool)]| packets[0].0[8] & 0x80 != 0;
        assert!(!asks(&first), "the next one is to ask");
        assert!(asks(&again) && again[0].1, "it does not go now");
    }
    post_write(&mut pair, 100, 300 << 10);
    pair.ends[0].room = 1000;
    let (rest, more) = pair.ends[0].transmit(0);
    assert_eq!((rest.len(), more), (256 - ROUNDS, false));
}

/// Goal: what the peer says is missing is sent at once, also when a timeout has passed since it first said so. Method:
/// everything is lost but one packet and the answer to it, which comes a second time behind the timeout.
#[test]
fn a_timeout_does_not_hide_what_is_missing() {
    let mut pair = Pair::new();
    post_write(&mut pair, 1, 2000);
    let [ours, theirs] = &mut pair.ends;
    let (sent, _) = ours.transmit(0);
    theirs.receive(0, &sent[1].0);
    let (nak, _) = theirs.transmit(0);
    ours.receive(0, &nak[0].0);
    assert_eq!(ours.transmit(0).0.len(), 2, "all is sent again");
    ours.receive(0, &nak[0].0);
    assert_eq!(ours.transmit(0).0.len(), 0, "it was");
    let late = ours.rc.deadline().unwrap().as_nanos();
    ours.with(late, |rc, ends, notes| rc.expire(ends, notes));
    assert_eq!(ours.transmit(late).0.len(), 1, "as the timeout says");
    ours.receive(late, &nak[0].0);
    assert_eq!(ours.transmit(late).0.len(), 1, "as the peer says");
}

/// Goal: an answer that brings a value and refuses at once is none: the work request fails, and nothing is placed.
/// Method: answers to an atomic and a READ whose syndromes are made NAKs.
#[test]
fn an_answer_with_a_refusal_in_it_is_bad() {
    for (opcode, is_atomic) in [(0x12, true), (0x10, false)] {
        // Of operation, of receives that are missing.
        for syndrome in [0x63, 0x20] {
            let mut pair = Pair::new();
            pair.filter = Some(Box::new(move |from, bytes| {
                if from == 1 {
                    assert_eq!(bytes[0], opcode);
                    bytes[12] = syndrome;
                }
                true
            }));
            if is_atomic {
                let [ours, theirs] = &mut pair.ends;
                theirs.memory.write(0, &[7; 8]).unwrap();
                let (remote, add) = (theirs.remote(0), 1);
                let sges = [ours.sge(0x8000, 8)];
                ours.post(wr(1, SendOp::FetchAdd { remote, add }, &sges));
            } else {
                post_read(&mut pair, 1, 8);
            }
            pair.run();
            let ours = &mut pair.ends[0];
            assert_eq!(ours.send_statuses(), [(1, WcStatus::BadRespErr)]);
            assert_eq!(ours.bytes(0x8000, 8), [0; 8]);
        }
    }
}

/// Goal: what a READ is answered with begins with First or Only, as long as it was not asked for again. Method: First
/// of two packets made a Middle, and Only made a Last.
#[test]
fn a_response_does_not_begin_in_its_middle() {
    for len in [1500, 8] {
        let mut pair = Pair::new();
        pair.filter = Some(Box::new(move |from, bytes| {
            match bytes[0] {
                // A Middle has no acknowledgement header.
                0x0d if from == 1 => {
                    bytes[0] = 0x0e;
                    bytes.drain(12..16);
                }
                0x10 if from == 1 => bytes[0] = 0x0f,
                _ => {}
            }
            true
        }));
        post_read(&mut pair, 1, len);
        pair.run();
        let ours = &mut pair.ends[0];
        assert_eq!(ours.send_statuses(), [(1, WcStatus::BadRespErr)], "{len}");
        assert_eq!(ours.bytes(0x8000, len as usize), vec![0; len as usize]);
    }
}
