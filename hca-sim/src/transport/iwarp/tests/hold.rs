//! Goal: a message that finds no receive waits, with all that is behind it, and is lost only when it has waited for too long.

use std::time::Duration;

use verbs_core::{Send, WcOpcode, WcStatus, Write};
use verbs_wire::iwarp::{Cause, Terminate};

use super::*;

fn two() -> (Machine, Machine) {
    (
        Machine::new(start(true, true)),
        Machine::new(start(false, true)),
    )
}

/// Method: fewer receives than messages, a WRITE and immediate data behind them, in pieces of all kinds; receives follow
/// one by one.
#[test]
fn messages_wait_for_receives_in_order() {
    for piece in [1, 7, 100, 1 << 20] {
        let (mut a, mut b) = two();
        let room = [b.sge(0, 64)];
        b.post_recv(0, &room);
        for n in 0..3_u8 {
            a.post(Send::new(n.into()).inline(&[n; 5]));
        }
        let write = Write::new(3, b.remote(600)).inline(b"last").imm(9);
        a.post(write.signaled());
        for bytes in a.transmit().chunks(piece) {
            b.receive(bytes);
        }
        assert!(b.iwarp.is_held());
        assert_eq!(statuses(&b.poll_recvs()), [(0, WcStatus::Success)]);
        for n in 1..3_u8 {
            assert!(!b.resume(), "there is none");
            let place = 100 * usize::from(n);
            let room = [b.sge(place, 64)];
            b.post_recv(n.into(), &room);
            assert!(b.resume());
            assert!(b.iwarp.is_held(), "the next one waits");
            assert_eq!(statuses(&b.poll_recvs()), [(n.into(), WcStatus::Success)]);
            assert_eq!(b.bytes(place, 6), [&[n; 5][..], &[0]].concat());
        }
        b.post_recv(3, &[]);
        assert!(b.resume());
        let last = b.poll_recvs();
        assert_eq!(statuses(&last), [(3, WcStatus::Success)]);
        assert_eq!(
            (last[0].opcode, last[0].immediate()),
            (WcOpcode::RecvRdmaWithImm, Some(9))
        );
        assert_eq!(b.bytes(600, 4), b"last");
        assert!(!b.failed && !b.iwarp.is_held() && b.rest.is_empty());
        assert_eq!(b.counters.rnr_naks.get(), 3, "messages that waited");
        assert_eq!(b.iwarp.deadline(), None);
    }
}

/// Method: the clock is moved from one deadline to the next; what is sent by this side is not held up.
#[test]
fn a_message_waits_so_long_and_no_longer() {
    let (mut a, mut b) = two();
    a.post(Send::new(1).inline(b"x"));
    b.receive(&a.transmit());
    b.post(Send::new(2).inline(b"y").signaled());
    patient(&mut b);
    let room = [a.sge(0, 64)];
    a.post_recv(3, &room);
    a.receive(&b.transmit());
    assert_eq!(statuses(&a.poll_recvs()), [(3, WcStatus::Success)]);
    let mut looks = 0;
    while b.iwarp.is_held() {
        let next = b.iwarp.deadline().unwrap();
        assert!(next > b.now);
        b.now = next;
        b.resume();
        looks += 1;
    }
    assert!((PATIENCE..PATIENCE + Duration::from_millis(5)).contains(&b.now.since(Instant::ZERO)));
    assert!((1000..3000).contains(&looks), "{looks}");
    assert!(b.failed && !b.iwarp.is_closed());
    assert_eq!(b.event, Some(EventType::QpFatal));
    let put = parsed(&b.transmit());
    let terminate = Terminate::parse(&put[0].1).unwrap();
    assert_eq!(terminate.cause, Cause::DDP_NO_BUFFER);
    a.receive(&fpdu(&put[0].0, &put[0].1));
    assert!(a.failed && !a.iwarp.is_closed());
}
