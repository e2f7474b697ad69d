//! Reliable connections on a loopback link: what every operation does, and every status that it can
//! end in, at both ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::{Hca, Limits, Loopback, connect};
use verbs_core::{
    Access, Arm, Armed, Attr, Av, Cq, Device, Error, LKey, LinkLayer, Memory, Mr, Mtu, Path,
    Payload, Pd, PortState, PostError, Psn, Qp, QpAttr, QpInit, QpState, RKey, Read, Recv, Remote,
    Send, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus, Write,
};

/// One end of a connection, with memory that the peer may do everything to.
struct End {
    hca: Arc<Hca>,
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    mr: Mr,
    pd: Pd,
    device: Device,
}

fn end_with(link: &Loopback, init: impl Fn(QpInit<'_>) -> QpInit<'_>) -> End {
    end_of(Hca::on(link).build(), init)
}

fn end_of(hca: Arc<Hca>, init: impl Fn(QpInit<'_>) -> QpInit<'_>) -> End {
    block_on(async {
        let device = hca.open().await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let send_cq = device.create_cq(64).await.unwrap();
        let recv_cq = device.create_cq(64).await.unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd
            .register(Memory::alloc(1 << 16).unwrap(), access)
            .await
            .unwrap();
        let with = init(QpInit::rc(&send_cq, &recv_cq).sges(4, 4).inline(64));
        let qp = pd.create_qp(with).await.unwrap();
        End {
            hca,
            qp,
            send_cq,
            recv_cq,
            mr,
            pd,
            device,
        }
    })
}

/// Two ends on a clock that the test moves, connected step by step with changed attributes.
fn pair_with(clock: &VirtualClock, change: impl Fn(&mut QpAttr)) -> (End, End) {
    let link = Loopback::with_seed(3);
    let make = || end_of(Hca::on(&link).clock(clock.clone()).build(), |init| init);
    let (a, b) = (make(), make());
    for (from, to) in [(&a, &b), (&b, &a)] {
        let path = Path {
            av: Av::to_lid(1, to.hca.lid()),
            dest_qpn: to.qp.qpn(),
            rq_psn: Psn::new(0xff_ffff),
            mtu: Mtu::B4096,
        };
        let steps = [
            QpAttr::init(1, Access::REMOTE),
            QpAttr::rtr(&path),
            QpAttr::rts(Psn::new(0xff_ffff)),
        ];
        for mut attr in steps {
            change(&mut attr);
            from.qp.modify(attr).wait().unwrap();
        }
    }
    (a, b)
}

fn pair() -> (End, End) {
    let link = Loopback::with_seed(1);
    let (mut a, mut b) = (end_with(&link, |init| init), end_with(&link, |init| init));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    (a, b)
}

fn poll(cq: &mut Cq) -> Vec<Wc> {
    let mut out = [Wc::default(); 64];
    cq.poll(&mut out).to_vec()
}

/// The completions of a queue, as (`wr_id`, status).
fn statuses(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    poll(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn bytes(end: &End, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    end.mr.read(at, &mut out).unwrap();
    out
}

fn state(end: &End) -> QpState {
    end.qp.query().wait().unwrap().state
}

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

/// Both ends on a clock that the test moves.
fn pair_on(clock: &VirtualClock) -> (End, End) {
    let link = Loopback::with_seed(2);
    let make = || {
        let hca = Hca::on(&link).clock(clock.clone()).build();
        end_of(hca, |init| init)
    };
    let (mut a, mut b) = (make(), make());
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    (a, b)
}

#[test]
fn immediate_data_arrives_with_sends_and_writes() {
    let (mut a, mut b) = pair();
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..64)))
        .unwrap();
    b.qp.post_recv(Recv::new(2)).unwrap();
    a.mr.write(0, b"with imm").unwrap();
    a.qp.post_send(Send::new(3).imm(0xfeed).from(a.mr.slice(0..8)))
        .unwrap();
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
        [Some(0xfeed), Some(0xbeef)]
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
    a.qp.post_send(Read::new(3, b.mr.remote(20)).scatter(&back).signaled())
        .unwrap();
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
    b.qp.post_recv(Recv::new(16)).unwrap();
    let many = [b.mr.slice(0..1); 5];
    let refused = b.qp.post_recv(Recv::new(17).scatter(&many));
    assert_eq!(refused, Err(PostError::TooManySges { got: 5, max: 4 }));
}

/// How a work request is broken.
struct Broken {
    name: &'static str,
    post: fn(&mut End, &mut End) -> SendWr<'static>,
    requester: WcStatus,
    /// Statuses of two receives at the responder.
    responder: &'static [WcStatus],
    /// Whether the responder goes to ERR.
    both: bool,
}

const fn wr(op: SendOp, sge: Sge) -> SendWr<'static> {
    SendWr {
        wr_id: 9,
        op,
        flags: SendFlags::empty(),
        payload: Payload::One(sge),
    }
}

const FLUSHED: &[WcStatus] = &[WcStatus::WrFlushErr, WcStatus::WrFlushErr];

const BROKEN: &[Broken] = &[
    Broken {
        name: "local key",
        post: |a, _| {
            wr(
                SendOp::Send,
                Sge {
                    lkey: a.mr.lkey().next(),
                    ..a.mr.slice(0..8)
                },
            )
        },
        requester: WcStatus::LocProtErr,
        responder: &[],
        both: false,
    },
    Broken {
        name: "local bounds",
        post: |a, _| wr(SendOp::Send, a.mr.slice(65_530..65_540)),
        requester: WcStatus::LocProtErr,
        responder: &[],
        both: false,
    },
    Broken {
        name: "local write for a READ",
        post: |a, b| wr(SendOp::Read(b.mr.remote(0)), read_only(a).slice(0..8)),
        requester: WcStatus::LocProtErr,
        responder: &[],
        both: false,
    },
    Broken {
        name: "too long for the receive",
        post: |a, _| wr(SendOp::Send, a.mr.slice(0..65)),
        requester: WcStatus::RemInvReqErr,
        responder: &[WcStatus::LocLenErr, WcStatus::WrFlushErr],
        both: true,
    },
    Broken {
        name: "remote key of a WRITE",
        post: |a, b| {
            let stale = Remote {
                rkey: b.mr.rkey().next(),
                ..b.mr.remote(0)
            };
            wr(SendOp::Write(stale), a.mr.slice(0..8))
        },
        requester: WcStatus::RemAccessErr,
        responder: FLUSHED,
        both: true,
    },
    Broken {
        name: "remote bounds of a READ",
        post: |a, b| wr(SendOp::Read(b.mr.remote(65_530)), a.mr.slice(0..8)),
        requester: WcStatus::RemAccessErr,
        responder: FLUSHED,
        both: true,
    },
    Broken {
        name: "remote right of the region",
        post: |a, b| wr(SendOp::Write(readable(b).remote(0)), a.mr.slice(0..8)),
        requester: WcStatus::RemAccessErr,
        responder: FLUSHED,
        both: true,
    },
    Broken {
        name: "remote right of the queue pair",
        post: |a, b| {
            let access = Some(Access::REMOTE_READ);
            b.qp.modify(QpAttr {
                access,
                ..QpAttr::default()
            })
            .wait()
            .unwrap();
            wr(SendOp::Write(b.mr.remote(0)), a.mr.slice(0..8))
        },
        requester: WcStatus::RemInvReqErr,
        responder: FLUSHED,
        both: true,
    },
    Broken {
        name: "right of an atomic",
        post: |a, b| {
            wr(
                SendOp::FetchAdd {
                    remote: readable(b).remote(0),
                    add: 1,
                },
                a.mr.slice(0..8),
            )
        },
        requester: WcStatus::RemAccessErr,
        responder: FLUSHED,
        both: true,
    },
];

fn registered(end: &End, access: Access) -> Mr {
    end.pd
        .register(Memory::alloc(4096).unwrap(), access)
        .wait()
        .unwrap()
}

/// A region that is never deregistered.
fn read_only(end: &End) -> &'static Mr {
    Box::leak(Box::new(registered(end, Access::empty())))
}

fn readable(end: &End) -> &'static Mr {
    Box::leak(Box::new(registered(end, Access::REMOTE_READ)))
}

#[test]
fn every_fault_ends_as_the_specification_says_at_both_ends() {
    for case in BROKEN {
        let (mut a, mut b) = pair();
        for wr_id in [20, 21] {
            b.qp.post_recv(Recv::new(wr_id).into(b.mr.slice(0..64)))
                .unwrap();
        }
        let wr = (case.post)(&mut a, &mut b);
        a.qp.post_send(wr).unwrap();
        a.qp.post_send(Send::new(10).from(a.mr.slice(0..1)))
            .unwrap();
        let sent = poll(&mut a.send_cq);
        let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(
            ends,
            [(9, case.requester), (10, WcStatus::WrFlushErr)],
            "{}",
            case.name
        );
        assert_eq!(state(&a), QpState::Err, "{}", case.name);
        let received: Vec<_> = poll(&mut b.recv_cq).iter().map(|wc| wc.status).collect();
        assert_eq!(received, case.responder, "{}", case.name);
        let expected = if case.both {
            QpState::Err
        } else {
            QpState::Rts
        };
        assert_eq!(state(&b), expected, "{}", case.name);
        assert_eq!(
            bytes(&b, 0, 65),
            [0; 65],
            "{}: nothing was placed",
            case.name
        );
    }
}

#[test]
fn a_bad_receive_ends_at_both_ends() {
    for key in [0, 1] {
        let (mut a, mut b) = pair();
        let room = if key == 0 {
            Sge {
                lkey: b.mr.lkey().next(),
                ..b.mr.slice(0..64)
            }
        } else {
            readable(&b).slice(0..64)
        };
        b.qp.post_recv(Recv::new(1).into(room)).unwrap();
        a.qp.post_send(Send::new(2).from(a.mr.slice(0..8))).unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(2, WcStatus::RemOpErr)]);
        assert_eq!(statuses(&mut b.recv_cq), [(1, WcStatus::LocProtErr)]);
        assert_eq!((state(&a), state(&b)), (QpState::Err, QpState::Err));
    }
}

#[test]
fn rnr_waits_for_a_receive_and_keeps_the_order() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    a.mr.write(0, b"12").unwrap();
    a.qp.post_send(Send::new(1).from(a.mr.slice(0..1)).signaled())
        .unwrap();
    a.qp.post_send(
        Write::new(2, b.mr.remote(500))
            .from(a.mr.slice(0..2))
            .signaled(),
    )
    .unwrap();
    a.qp.post_send(Send::new(3).from(a.mr.slice(1..2)).signaled())
        .unwrap();
    assert!(poll(&mut a.send_cq).is_empty());
    assert_eq!(bytes(&b, 500, 1), [0], "the WRITE waits behind the SEND");
    clock.advance(Duration::from_secs(5));
    assert!(poll(&mut a.send_cq).is_empty(), "7 means for ever");
    b.qp.post_recv(Recv::new(4).into(b.mr.slice(0..1))).unwrap();
    assert_eq!(
        statuses(&mut a.send_cq),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    b.qp.post_recv(Recv::new(5).into(b.mr.slice(1..2))).unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(3, WcStatus::Success)]);
    assert_eq!(bytes(&b, 0, 2), b"12");
    b.qp.post_recv(Recv::new(6).into(b.mr.slice(0..1))).unwrap();
    a.qp.post_send(Send::new(7).from(a.mr.slice(0..1)).signaled())
        .unwrap();
    assert_eq!(
        statuses(&mut a.send_cq),
        [(7, WcStatus::Success)],
        "the door is open again"
    );
}

#[test]
fn rnr_retries_run_out() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_with(&clock, |attr| {
        attr.rnr_retry = attr.rnr_retry.map(|_| 2);
    });
    a.qp.post_send(Send::new(1).from(a.mr.slice(0..1))).unwrap();
    a.qp.post_send(Send::new(2).from(a.mr.slice(0..1))).unwrap();
    clock.advance(Duration::from_micros(2 * 640 - 1));
    assert!(poll(&mut a.send_cq).is_empty());
    clock.advance(Duration::from_micros(1));
    let ends = [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&mut a.send_cq), ends);
    assert_eq!((state(&a), state(&b)), (QpState::Err, QpState::Rts));
    drop(poll(&mut b.recv_cq));
}

#[test]
fn nobody_answers_for_a_queue_pair_that_is_gone() {
    let clock = VirtualClock::new();
    let (mut a, b) = pair_with(&clock, |attr| {
        (attr.timeout, attr.retry_cnt) = (attr.timeout.map(|_| 8), attr.retry_cnt.map(|_| 3));
    });
    b.qp.destroy().wait().unwrap();
    a.qp.post_send(Write::new(1, b.mr.remote(0)).from(a.mr.slice(0..1)))
        .unwrap();
    let timeout = Duration::from_nanos(4096 << 8);
    clock.advance(timeout * 4 - Duration::from_nanos(1));
    assert!(poll(&mut a.send_cq).is_empty());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(state(&a), QpState::Err);
}

#[test]
fn a_peer_that_becomes_ready_in_time_gets_the_message() {
    let clock = VirtualClock::new();
    let link = Loopback::with_seed(5);
    let make = || end_of(Hca::on(&link).clock(clock.clone()).build(), |init| init);
    let (mut a, mut b) = (make(), make());
    let path = |end: &End| Path {
        av: Av::to_gid(1, 0, end.hca.gid()),
        dest_qpn: end.qp.qpn(),
        rq_psn: Psn::new(77),
        mtu: Mtu::B1024,
    };
    for (qp, to) in [(&a.qp, path(&b)), (&b.qp, path(&a))] {
        qp.init(1, Access::REMOTE_WRITE).wait().unwrap();
        qp.ready_to_receive(&to).wait().unwrap();
    }
    let early = b.qp.post_send(Send::new(1));
    assert_eq!(early, Err(PostError::State(QpState::Rtr)));
    b.qp.to_error().wait().unwrap();
    a.qp.ready_to_send(Psn::new(77)).wait().unwrap();
    a.qp.post_send(Write::new(2, b.mr.remote(0)).inline(b"late").signaled())
        .unwrap();
    clock.advance(Duration::from_millis(100));
    b.qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    b.qp.init(1, Access::REMOTE_WRITE).wait().unwrap();
    b.qp.ready_to_receive(&path(&a)).wait().unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(2, WcStatus::Success)]);
    assert_eq!(bytes(&b, 0, 4), b"late");
    let info = b.qp.query().wait().unwrap();
    assert_eq!(info.attr.rq_psn, Some(Psn::new(78)));
    assert_eq!(a.qp.query().wait().unwrap().attr.sq_psn, Some(Psn::new(78)));
    drop(poll(&mut b.send_cq));
}

#[test]
fn error_flushes_each_queue_in_order() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    for wr_id in 0..5 {
        a.qp.post_recv(Recv::new(wr_id)).unwrap();
        a.qp.post_send(Send::new(10 + wr_id)).unwrap();
    }
    a.qp.to_error().wait().unwrap();
    let flushed = |from: u64| {
        (from..from + 5)
            .map(|id| (id, WcStatus::WrFlushErr))
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses(&mut a.send_cq), flushed(10));
    assert_eq!(statuses(&mut a.recv_cq), flushed(0));
    a.qp.post_send(Send::new(20)).unwrap();
    a.qp.post_recv(Recv::new(21)).unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(20, WcStatus::WrFlushErr)]);
    assert_eq!(statuses(&mut a.recv_cq), [(21, WcStatus::WrFlushErr)]);
    assert_eq!(state(&b), QpState::Rts, "the peer is not told");
    drop(poll(&mut b.recv_cq));
}

#[test]
fn a_reset_queue_pair_forgets_and_connects_again() {
    let (mut a, mut b) = pair();
    for wr_id in 0..16 {
        a.qp.post_send(Write::new(wr_id, b.mr.remote(0)).from(a.mr.slice(0..1)))
            .unwrap();
        a.qp.post_recv(Recv::new(wr_id)).unwrap();
    }
    for qp in [&a.qp, &b.qp] {
        qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    }
    assert!(poll(&mut a.send_cq).is_empty() && poll(&mut a.recv_cq).is_empty());
    assert_eq!(
        a.qp.post_send(Send::new(1)),
        Err(PostError::State(QpState::Reset))
    );
    assert_eq!(
        a.qp.post_recv(Recv::new(1)),
        Err(PostError::State(QpState::Reset))
    );
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    for wr_id in 0..16 {
        b.qp.post_recv(Recv::new(wr_id)).unwrap();
        a.qp.post_send(Send::new(wr_id)).unwrap();
    }
    assert_eq!(statuses(&mut b.recv_cq).len(), 16);
}

#[test]
fn sqd_queues_and_rts_goes_on() {
    let (mut a, b) = pair();
    a.qp.modify(QpAttr::to(QpState::Sqd)).wait().unwrap();
    a.qp.post_send(Write::new(1, b.mr.remote(0)).inline(b"x").signaled())
        .unwrap();
    assert!(poll(&mut a.send_cq).is_empty());
    a.qp.modify(QpAttr::to(QpState::Rts)).wait().unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::Success)]);
    assert_eq!(bytes(&b, 0, 1), b"x");
}

#[test]
fn an_overrun_takes_the_queue_pairs_to_error() {
    let link = Loopback::default();
    let small = end_with(&link, |init| init);
    let cq = small.device.create_cq(4).wait().unwrap();
    let pd = &small.pd;
    let mut a = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let mut b = pd
        .create_qp(QpInit::rc(&small.send_cq, &small.recv_cq))
        .wait()
        .unwrap();
    block_on(connect(&mut a, &mut b)).unwrap();
    for wr_id in 0..5 {
        a.post_send(
            Write::new(wr_id, small.mr.remote(0))
                .from(small.mr.slice(8..9))
                .signaled(),
        )
        .unwrap();
    }
    assert_eq!(a.query().wait().unwrap().state, QpState::Err);
    assert_eq!(b.query().wait().unwrap().state, QpState::Rts);
    let mut cq = cq;
    assert_eq!(poll(&mut cq).len(), 4, "what fitted can be polled");
}

#[test]
fn k11_destroy_flushes_and_the_queues_know() {
    let clock = VirtualClock::new();
    let (mut a, b) = pair_on(&clock);
    a.qp.post_send(Send::new(1).from(a.mr.slice(0..1))).unwrap();
    a.qp.post_recv(Recv::new(2)).unwrap();
    let (qp, mut sq, mut rq) = a.qp.split().unwrap();
    qp.destroy().wait().unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(statuses(&mut a.recv_cq), [(2, WcStatus::WrFlushErr)]);
    assert_eq!(sq.post(Send::new(3)), Err(PostError::Destroyed));
    assert_eq!(rq.post(Recv::new(4)), Err(PostError::Destroyed));
    a.send_cq.destroy().wait().unwrap();
    a.recv_cq.destroy().wait().unwrap();
    drop(b);
}

#[test]
fn a_removed_device_flushes_refuses_and_does_not_answer() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    b.qp.post_recv(Recv::new(1)).unwrap();
    b.hca.remove();
    assert_eq!(statuses(&mut b.recv_cq), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(b.qp.post_recv(Recv::new(2)), Err(PostError::DeviceRemoved));
    assert_eq!(b.qp.post_send(Send::new(3)), Err(PostError::DeviceRemoved));
    assert_eq!(
        b.device.alloc_pd().wait().map(drop),
        Err(Error::DeviceRemoved)
    );
    assert_eq!(b.qp.to_error().wait(), Err(Error::DeviceRemoved));
    a.qp.post_send(Send::new(4).from(a.mr.slice(0..1))).unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&mut a.send_cq), [(4, WcStatus::RetryExcErr)]);
    assert_eq!(b.hca.open().wait().map(drop), Err(Error::DeviceRemoved));
    b.qp.destroy().wait().unwrap();
    b.mr.dereg().wait().unwrap();
}

#[test]
fn a_flipped_bit_changes_one_message_and_nobody_notices() {
    let link = Loopback::with_seed(1);
    let (mut a, mut b) = (end_with(&link, |init| init), end_with(&link, |init| init));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    link.flip_bit(2);
    let zeros = a.mr.slice(0..16);
    b.qp.post_recv(Recv::new(0)).unwrap();
    a.qp.post_send(Send::new(0).signaled()).unwrap();
    for i in 0..4 {
        a.qp.post_send(
            Write::new(i, b.mr.remote(16 * i as usize))
                .from(zeros)
                .signaled(),
        )
        .unwrap();
    }
    assert!(poll(&mut a.send_cq).iter().all(Wc::is_ok));
    let mut expected = [0; 64];
    expected[32] = 1;
    assert_eq!(bytes(&b, 0, 64), expected, "the third that carried data");
}

#[test]
fn time_stamps_come_when_asked_for() {
    let clock = VirtualClock::new();
    let hca = Hca::loopback().clock(clock.clone()).build();
    let end = end_of(hca, |init| init);
    let mut cq = end.device.create_cq(8).timestamps().wait().unwrap();
    let mut a = end.pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let mut b = end.pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    block_on(connect(&mut a, &mut b)).unwrap();
    for us in 1..=2 {
        clock.advance(Duration::from_micros(1));
        a.post_send(
            Write::new(us, end.mr.remote(0))
                .from(end.mr.slice(8..16))
                .signaled(),
        )
        .unwrap();
    }
    let stamps: Vec<_> = poll(&mut cq).iter().map(|wc| wc.timestamp_ns).collect();
    assert_eq!(stamps, [1000, 2000]);
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
    block_on(connect(&mut a.qp, &mut qp)).unwrap();
    let mut send = |solicited: bool| {
        qp.post_recv(Recv::new(1)).unwrap();
        let send = Send::new(2);
        a.qp.post_send(if solicited { send.solicited() } else { send })
            .unwrap();
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
    drop(poll(&mut b.recv_cq));
}

#[test]
fn limits_are_named_and_counts_return() {
    let limits = Limits {
        max_pd: 2,
        max_cq: 2,
        max_qp: 1,
        max_mr: 1,
    };
    let device = Hca::loopback().limits(limits).open().wait().unwrap();
    let (pd, other) = (
        device.alloc_pd().wait().unwrap(),
        device.alloc_pd().wait().unwrap(),
    );
    let full = |attr, max| Some(Error::Exhausted { attr, max });
    assert_eq!(device.alloc_pd().wait().err(), full(Attr::MaxPd, 2));
    other.dealloc().wait().unwrap();
    assert!(device.alloc_pd().wait().is_ok());
    let cq = device.create_cq(1).wait().unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    assert_eq!(
        pd.create_qp(QpInit::rc(&cq, &cq)).wait().err(),
        full(Attr::MaxQp, 1)
    );
    qp.destroy().wait().unwrap();
    let deep = pd.create_qp(QpInit::rc(&cq, &cq).sges(17, 1)).wait().err();
    assert_eq!(
        deep,
        Some(Error::Invalid {
            attr: Attr::MaxSendSge,
            got: 17,
            max: 16
        })
    );
    assert!(pd.create_qp(QpInit::rc(&cq, &cq)).wait().is_ok());
    let low = pd
        .create_qp(QpInit::rc(&cq, &cq).low_latency())
        .wait()
        .err();
    assert_eq!(low, Some(Error::Unsupported(Attr::LowLatency)));
    let memory = || Memory::alloc(16).unwrap();
    let mr = pd.register(memory(), Access::empty()).wait().unwrap();
    assert_eq!(
        pd.register(memory(), Access::empty()).wait().err(),
        full(Attr::MaxMr, 1)
    );
    mr.dereg().wait().unwrap();
    assert!(pd.register(memory(), Access::empty()).wait().is_ok());
    assert!(device.query_port(2).wait().is_err());
    let port = device.query_port(1).wait().unwrap();
    assert_eq!(
        (port.state, port.link_layer),
        (PortState::Active, LinkLayer::InfiniBand)
    );
}
