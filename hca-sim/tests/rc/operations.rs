//! What every operation does, and how its completion reports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_core::{
    Arm, Armed, Capability, DeviceCap, LKey, Payload, PostError, QpAttr, QpInit, QpState, RKey,
    Read, Recv, Remote, Send, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus, Write,
};

use crate::ends::{End, bytes, pair, poll, statuses};
use crate::way;

#[test]
fn send_arrives_with_both_completions() {
    let (mut a, mut b) = pair();
    for round in 0..40u64 {
        let text = format!("message number {round}");
        a.mr.write(0, text.as_bytes()).unwrap();
        b.qp.post_recv(Recv::new(100 + round).into(b.mr.slice(512..1024)))
            .unwrap();
        a.qp.post_send(Send::new(round).from(a.mr.slice(0..text.len())).signaled())
            .unwrap();
        let sent = poll(&mut a.send_cq);
        assert_eq!(sent.len(), 1);
        assert_eq!(
            (sent[0].wr_id, sent[0].status, sent[0].opcode),
            (round, WcStatus::Success, WcOpcode::Send)
        );
        assert_eq!(sent[0].qpn, a.qp.qpn());
        let got = poll(&mut b.recv_cq);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].wr_id, got[0].opcode), (100 + round, WcOpcode::Recv));
        assert_eq!(
            (got[0].byte_len as usize, got[0].qpn),
            (text.len(), b.qp.qpn())
        );
        assert_eq!(bytes(&b, 512, text.len()), text.as_bytes());
    }
}

#[test]
fn write_and_read_move_bytes_without_the_peer() {
    let (mut a, mut b) = pair();
    a.mr.write(0, b"there").unwrap();
    b.mr.write(100, b"and back").unwrap();
    for _ in 0..3 {
        a.qp.post_send(
            Write::new(1, b.mr.remote(0))
                .from(a.mr.slice(0..5))
                .signaled(),
        )
        .unwrap();
        a.qp.post_send(
            Read::new(2, b.mr.remote(100))
                .into(a.mr.slice(50..58))
                .signaled(),
        )
        .unwrap();
        assert_eq!(
            statuses(&mut a.send_cq),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
    }
    assert_eq!(bytes(&b, 0, 5), b"there");
    assert_eq!(bytes(&a, 50, 8), b"and back");
    assert!(poll(&mut b.recv_cq).is_empty() && poll(&mut b.send_cq).is_empty());
}

#[test]
fn immediate_data_arrives_with_sends_and_writes() {
    let (mut a, mut b) = pair();
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..64)))
        .unwrap();
    b.qp.post_recv(Recv::new(2)).unwrap();
    a.mr.write(0, b"with imm").unwrap();
    let send = Send::new(3).from(a.mr.slice(0..8));
    let with_imm = a.qp.post_send(send.imm(0xfeed));
    if way::IS_IWARP {
        let missing = Capability::of(DeviceCap::SEND_WITH_IMM);
        assert_eq!(with_imm, Err(PostError::NoCapability(missing)));
        a.qp.post_send(send).unwrap();
    }
    a.qp.post_send(
        Write::new(4, b.mr.remote(200))
            .imm(0xbeef)
            .from(a.mr.slice(0..8))
            .signaled(),
    )
    .unwrap();
    let got = poll(&mut b.recv_cq);
    assert_eq!(
        got.iter().map(Wc::immediate).collect::<Vec<_>>(),
        [(!way::IS_IWARP).then_some(0xfeed), Some(0xbeef)]
    );
    assert_eq!(got[1].opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!((got[1].wr_id, got[1].byte_len), (2, 8));
    assert_eq!(bytes(&b, 0, 8), b"with imm");
    assert_eq!(bytes(&b, 200, 8), b"with imm");
    assert_eq!(
        statuses(&mut a.send_cq),
        [(4, WcStatus::Success)],
        "one was not signalled"
    );
}

#[test]
fn gathers_and_scatters_in_order() {
    let (mut a, mut b) = pair();
    a.mr.write(0, b"abcdefgh").unwrap();
    let from = [
        a.mr.slice(0..3),
        a.mr.slice(5..5),
        a.mr.slice(3..7),
        a.mr.slice(7..8),
    ];
    let to = [b.mr.slice(10..12), b.mr.slice(20..25), b.mr.slice(30..40)];
    b.qp.post_recv(Recv::new(1).scatter(&to)).unwrap();
    a.qp.post_send(Send::new(2).gather(&from).signaled())
        .unwrap();
    assert_eq!(poll(&mut b.recv_cq)[0].byte_len, 8);
    assert_eq!(
        (bytes(&b, 10, 2), bytes(&b, 20, 5), bytes(&b, 30, 2)),
        (b"ab".to_vec(), b"cdefg".to_vec(), b"h\0".to_vec())
    );
    let back = [a.mr.slice(100..101), a.mr.slice(110..117)];
    let read =
        a.qp.post_send(Read::new(3, b.mr.remote(20)).scatter(&back).signaled());
    if way::IS_IWARP {
        let (got, max) = (2, 1);
        assert_eq!(read, Err(PostError::TooManySges { got, max }));
        a.qp.post_send(Read::new(4, b.mr.remote(20)).into(back[0]))
            .unwrap();
        a.qp.post_send(Read::new(3, b.mr.remote(21)).into(back[1]).signaled())
            .unwrap();
    }
    assert_eq!(
        (bytes(&a, 100, 1), bytes(&a, 110, 4)),
        (b"c".to_vec(), b"defg".to_vec())
    );
    assert_eq!(
        statuses(&mut a.send_cq),
        [(2, WcStatus::Success), (3, WcStatus::Success)]
    );
}

#[test]
fn inline_bytes_need_no_key() {
    let (mut a, mut b) = pair();
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..64)))
        .unwrap();
    a.qp.post_send(Send::new(2).inline(b"not registered").signaled())
        .unwrap();
    a.qp.post_send(Write::new(3, b.mr.remote(100)).inline(&[7; 64]).signaled())
        .unwrap();
    assert_eq!(bytes(&b, 0, 14), b"not registered");
    assert_eq!(bytes(&b, 100, 64), [7; 64]);
    let long = a.qp.post_send(Send::new(4).inline(&[0; 65]));
    assert_eq!(long, Err(PostError::InlineTooLong { got: 65, max: 64 }));
}

#[test]
fn atomics_return_the_old_value() {
    let (mut a, b) = pair();
    b.mr.write(64, &41u64.to_ne_bytes()).unwrap();
    let mut atomic = |wr_id, op| {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::One(a.mr.slice(0..8)),
            dest: verbs_core::Dest::Peer,
        };
        a.qp.post_send(wr).unwrap();
        let wc = poll(&mut a.send_cq)[0];
        assert!(wc.is_ok(), "{wc:?}");
        let mut old = [0; 8];
        a.mr.read(0, &mut old).unwrap();
        (wc.opcode, wc.byte_len, u64::from_ne_bytes(old))
    };
    let remote = b.mr.remote(64);
    assert_eq!(
        atomic(1, SendOp::FetchAdd { remote, add: 1 }),
        (WcOpcode::FetchAdd, 8, 41)
    );
    let swap = SendOp::CompareSwap {
        remote,
        compare: 42,
        swap: 7,
    };
    assert_eq!(atomic(2, swap), (WcOpcode::CompSwap, 8, 42));
    assert_eq!(
        atomic(3, swap),
        (WcOpcode::CompSwap, 8, 7),
        "did not compare equal"
    );
    assert_eq!(bytes(&b, 64, 8), 7u64.to_ne_bytes());
    let odd = SendOp::FetchAdd {
        remote: b.mr.remote(65),
        add: 1,
    };
    let payload = Payload::One(a.mr.slice(0..8));
    let wr = |op, payload| SendWr {
        wr_id: 4,
        op,
        flags: SendFlags::empty(),
        payload,
        dest: verbs_core::Dest::Peer,
    };
    assert_eq!(
        a.qp.post_send(wr(odd, payload)),
        Err(PostError::AtomicAlignment)
    );
    let short = Payload::One(a.mr.slice(0..4));
    assert_eq!(
        a.qp.post_send(wr(swap, short)),
        Err(PostError::AtomicSize { got: 4 })
    );
    drop(b.qp.destroy());
}

#[test]
fn empty_messages_look_at_no_key() {
    let (mut a, mut b) = pair();
    let nowhere = Remote {
        addr: 1,
        rkey: RKey::new(0xdead_beef),
    };
    let nothing = Sge {
        addr: 5,
        len: 0,
        lkey: LKey::new(0xffff_ffff),
    };
    b.qp.post_recv(Recv::new(1)).unwrap();
    a.qp.post_send(Send::new(2).signaled()).unwrap();
    a.qp.post_send(Write::new(3, nowhere).from(nothing).signaled())
        .unwrap();
    a.qp.post_send(Read::new(4, nowhere).into(nothing).signaled())
        .unwrap();
    let all = [
        (2, WcStatus::Success),
        (3, WcStatus::Success),
        (4, WcStatus::Success),
    ];
    assert_eq!(statuses(&mut a.send_cq), all);
    assert_eq!(statuses(&mut b.recv_cq), [(1, WcStatus::Success)]);
}

#[test]
fn a_send_queue_is_full_until_a_completion_was_polled() {
    let (mut a, b) = pair();
    let post = |a: &mut End, wr_id, signaled: bool| {
        let write = Write::new(wr_id, b.mr.remote(0)).from(a.mr.slice(0..8));
        a.qp.post_send(if signaled { write.signaled() } else { write })
    };
    for wr_id in 0..16 {
        post(&mut a, wr_id, wr_id == 10).unwrap();
    }
    assert_eq!(post(&mut a, 16, true), Err(PostError::Full { depth: 16 }));
    assert_eq!(statuses(&mut a.send_cq), [(10, WcStatus::Success)]);
    for wr_id in 16..27 {
        post(&mut a, wr_id, true).unwrap();
    }
    assert_eq!(
        post(&mut a, 27, true),
        Err(PostError::Full { depth: 16 }),
        "11 to 15 are not retired"
    );
}

#[test]
fn a_receive_queue_is_full_until_a_message_took_one() {
    let (mut a, mut b) = pair();
    for wr_id in 0..16 {
        b.qp.post_recv(Recv::new(wr_id).into(b.mr.slice(0..8)))
            .unwrap();
    }
    assert_eq!(
        b.qp.post_recv(Recv::new(16)),
        Err(PostError::Full { depth: 16 })
    );
    a.qp.post_send(Send::new(0).from(a.mr.slice(0..8))).unwrap();
    way::settle();
    b.qp.post_recv(Recv::new(16)).unwrap();
    let many = [b.mr.slice(0..1); 5];
    let refused = b.qp.post_recv(Recv::new(17).scatter(&many));
    assert_eq!(refused, Err(PostError::TooManySges { got: 5, max: 4 }));
}

#[test]
fn k14_arm_fires_once_and_says_what_waits() {
    let (mut a, mut b) = pair();
    let events = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&events);
    let handler = move || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let mut cq = b.device.create_cq(64).handler(handler).wait().unwrap();
    let mut qp = b.pd.create_qp(QpInit::rc(&b.send_cq, &cq)).wait().unwrap();
    a.qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    way::connect(&mut a.qp, &mut qp);
    let mut send = |solicited: bool| {
        qp.post_recv(Recv::new(1)).unwrap();
        let send = Send::new(2);
        a.qp.post_send(if solicited { send.solicited() } else { send })
            .unwrap();
        way::settle();
    };
    let fired = || events.swap(0, Ordering::Relaxed);
    send(false);
    assert_eq!(fired(), 0, "never armed");
    assert_eq!(cq.arm(Arm::Next), Armed::Waiting);
    assert_eq!(poll(&mut cq).len(), 1);
    send(false);
    send(false);
    assert_eq!(fired(), 1, "once per arm");
    assert_eq!(poll(&mut cq).len(), 2);
    assert_eq!(cq.arm(Arm::Solicited), Armed::Empty);
    send(false);
    assert_eq!(fired(), 0, "not solicited");
    send(true);
    assert_eq!(fired(), 1);
    assert_eq!(poll(&mut cq).len(), 2);
    assert_eq!(cq.arm(Arm::Solicited), Armed::Empty);
    assert_eq!(cq.arm(Arm::Next), Armed::Empty);
    send(false);
    assert_eq!(fired(), 1, "the second call widened the first");
    assert_eq!(poll(&mut cq).len(), 1);
    assert_eq!(cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(cq.arm(Arm::Solicited), Armed::Empty);
    send(false);
    assert_eq!(fired(), 1, "and does not narrow it");
    drop(poll(&mut b.recv_cq));
}

/// Goal: a completion in error makes the event of a queue that is armed for solicited ones, whatever the work request
/// says: a client that waits for solicited messages has to learn that none will arrive (IBTA vol. 1, 11.4.2.2). Method:
/// a SEND of memory that is not the sender's, and the receives and SENDs that are flushed because of it.
#[test]
fn an_error_fires_a_queue_that_is_armed_for_solicited_completions() {
    let (mut a, b) = pair();
    let events = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&events);
    let handler = move || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let mut cqs = [(); 2].map(|()| {
        let counts = handler.clone();
        a.device.create_cq(64).handler(counts).wait().unwrap()
    });
    let mut qp = a.pd.create_qp(QpInit::rc(&cqs[0], &cqs[1])).wait().unwrap();
    let mut peer = b.qp;
    peer.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    way::connect(&mut qp, &mut peer);
    let fired = || {
        way::settle();
        events.swap(0, Ordering::Relaxed)
    };
    peer.post_recv(Recv::new(1)).unwrap();
    for cq in &mut cqs {
        assert_eq!(cq.arm(Arm::Solicited), Armed::Empty);
    }
    qp.post_send(Send::new(2).signaled()).unwrap();
    assert_eq!(fired(), 0, "a success that is not solicited");
    assert_eq!(poll(&mut cqs[0]).len(), 1);
    qp.post_recv(Recv::new(3)).unwrap();
    let foreign = b.mr.slice(0..8);
    qp.post_send(Send::new(4).from(foreign)).unwrap();
    assert_eq!(fired(), 2, "the SEND in error, and the flushed receive");
    let [sends, recvs] = &mut cqs;
    assert_eq!(poll(sends)[0].status, WcStatus::LocProtErr);
    assert_eq!(poll(recvs)[0].status, WcStatus::WrFlushErr);
    for cq in &mut cqs {
        assert_eq!(cq.arm(Arm::Solicited), Armed::Empty);
    }
    qp.post_send(Send::new(5)).unwrap();
    assert_eq!(fired(), 1, "a SEND that is flushed at once");
    qp.post_recv(Recv::new(6)).unwrap();
    assert_eq!(fired(), 1, "a receive that is flushed at once");
    assert!(poll(&mut cqs[0]).len() + poll(&mut cqs[1]).len() == 2);
    drop((poll(&mut a.send_cq), a.qp));
}
