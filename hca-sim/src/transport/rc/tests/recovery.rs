//! Which packets are sent again, how many, and answers that accept and refuse at once.

use super::retries::{answers, post_read, post_write, requests};
use super::*;

/// Goal: a packet that is sent again only to ask for an acknowledgement takes no second place in the window. Method:
/// the queue pair is made to drain and to continue several times while nothing is answered; then a long WRITE fills
/// what is left.
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

/// Goal: what the peer reports missing is sent at once, even if a timeout has passed since it first reported it.
/// Method: everything is lost except one packet and the answer to it, which arrives a second time after the timeout.
#[test]
fn a_timeout_does_not_hide_what_is_missing() {
    let mut pair = Pair::new();
    post_write(&mut pair, 1, 2000);
    let [ours, theirs] = &mut pair.ends;
    let (sent, _) = ours.transmit(0);
    theirs.receive(0, &sent[1].0);
    let (nak, _) = theirs.transmit(0);
    ours.receive(0, &nak[0].0);
    assert_eq!(ours.transmit(0).0.len(), 1, "it is sent again");
    ours.receive(0, &nak[0].0);
    assert_eq!(ours.transmit(0).0.len(), 0, "it was");
    let late = ours.rc.deadline().unwrap().as_nanos();
    ours.with(late, |rc, ends, events| rc.expire(ends, events));
    assert_eq!(ours.transmit(late).0.len(), 1, "as the timeout says");
    ours.receive(late, &nak[0].0);
    assert_eq!(ours.transmit(late).0.len(), 1, "as the peer says");
}

/// Goal: when the packet arrives that others waited for, one acknowledgement confirms all of them, also where only one in
/// their middle asks for it.
#[test]
fn one_acknowledgement_confirms_what_waited() {
    let mut pair = Pair::new();
    post_write(&mut pair, 1, 5000);
    let mut sent = requests(&mut pair);
    sent[1][8] |= 0x80;
    let nak = answers(&mut pair, &[&sent[1], &sent[2], &sent[3]]);
    let of = |packets: &[Vec<u8>]| -> Vec<(u8, u8)> {
        packets.iter().map(|bytes| (bytes[11], bytes[12])).collect()
    };
    assert_eq!(of(&nak), [(0, 0x60)]);
    let ack = answers(&mut pair, &[&sent[0]]);
    assert_eq!(of(&ack), [(3, 0x1f)]);
}

/// Goal: packets that wait for a missing one are found again where the numbers begin anew, and so is a second gap behind
/// them. Method: two of eight packets are lost, at each place about the end of the numbers, without timeouts.
#[test]
fn packets_wait_across_the_end_of_the_numbers() {
    for (first, second) in (0..8).flat_map(|first| (first..8).map(move |second| (first, second))) {
        let mut pair = Pair::new();
        pair.paths(|path| {
            path.timeout = 0;
            (path.sq_psn, path.rq_psn) = (0x00ff_fffc, 0x00ff_fffc);
        });
        let mut count = 0;
        pair.filter = Some(Box::new(move |from, _| {
            count += usize::from(from == 0);
            from != 0 || ![first + 1, second + 1].contains(&count)
        }));
        // What follows shows that something is missing.
        post_write(&mut pair, 1, 8 << 10);
        post_write(&mut pair, 2, 100);
        pair.run();
        let done = [(1, WcStatus::Success), (2, WcStatus::Success)];
        let ours = &mut pair.ends[0];
        assert_eq!(ours.send_statuses(), done, "{first} {second}");
        let lost = 1 + usize::from(first != second);
        let repeated = pair.sent_by(0).len() - 9;
        assert!(
            (lost..=lost + 1).contains(&repeated),
            "{first} {second}: {repeated} again"
        );
    }
}

/// Goal: an answer that carries a value and a refusal at once is invalid: the work request fails, and nothing is
/// placed. Method: answers to an atomic and a READ whose syndromes are made NAKs.
#[test]
fn an_answer_with_a_refusal_in_it_is_bad() {
    for (opcode, is_atomic) in [(0x12, true), (0x10, false)] {
        // Of an operation error, of missing receives.
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

/// Goal: the response to a READ begins with First or Only, as long as it was not requested again. Method: First of two
/// packets made a Middle, and Only made a Last.
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
