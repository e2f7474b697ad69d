//! Faults, and how they end at both ends.

use std::time::Duration;

use hca_sim::clock::VirtualClock;
use verbs_core::{
    Access, Memory, Mr, Mtu, Path, Payload, Psn, QpAttr, QpState, Recv, Remote, Send, SendFlags,
    SendOp, SendWr, Sge, WcCause, WcStatus, Write,
};

use crate::ends::{End, bytes, pair, poll, state, statuses, two_on};
use crate::way;

/// Two ends on a clock that the test moves, connected step by step with changed attributes.
pub(crate) fn pair_with(clock: &VirtualClock, change: impl Fn(&mut QpAttr)) -> (End, End) {
    let (a, b) = two_on(clock);
    for (from, to) in [(&a, &b), (&b, &a)] {
        let path = Path {
            av: way::address(&to.hca),
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

/// In what respect a work request is broken.
struct Broken {
    name: &'static str,
    post: fn(&mut End, &mut End) -> SendWr<'static>,
    requester: WcStatus,
    /// The cause that the device that finds it reports.
    cause: WcCause,
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
        dest: verbs_core::Dest::Peer,
    }
}

/// Syndromes of NAKs, which are all that a peer on a wire reports (IBTA vol. 1, 9.7.5.2.8).
const NAKS: std::ops::RangeInclusive<u32> = 0x60..=0x64;

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
        cause: WcCause::KeyGone,
        responder: &[],
        both: false,
    },
    Broken {
        name: "local bounds",
        post: |a, _| wr(SendOp::Send, a.mr.slice(65_530..65_540)),
        requester: WcStatus::LocProtErr,
        cause: WcCause::Range,
        responder: &[],
        both: false,
    },
    Broken {
        name: "local write for a READ",
        post: |a, b| wr(SendOp::Read(b.mr.remote(0)), read_only(a).slice(0..8)),
        requester: WcStatus::LocProtErr,
        cause: WcCause::NoRight,
        responder: &[],
        both: false,
    },
    Broken {
        name: "too long for the receive",
        post: |a, _| wr(SendOp::Send, a.mr.slice(0..65)),
        requester: WcStatus::RemInvReqErr,
        cause: WcCause::TooLong,
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
        cause: WcCause::KeyGone,
        responder: FLUSHED,
        both: true,
    },
    Broken {
        name: "remote bounds of a READ",
        post: |a, b| wr(SendOp::Read(b.mr.remote(65_530)), a.mr.slice(0..8)),
        requester: WcStatus::RemAccessErr,
        cause: WcCause::Range,
        responder: FLUSHED,
        both: true,
    },
    Broken {
        name: "remote right of the region",
        post: |a, b| wr(SendOp::Write(readable(b).remote(0)), a.mr.slice(0..8)),
        requester: WcStatus::RemAccessErr,
        cause: WcCause::NoRight,
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
        cause: WcCause::QpNoRight,
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
        cause: WcCause::NoRight,
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
        let known = case.requester == WcStatus::LocProtErr || way::PEER_SAYS_WHY;
        let cause = known.then_some(case.cause);
        assert_eq!(sent[0].cause(), cause, "{}", case.name);
        assert!(known || NAKS.contains(&sent[0].vendor_err), "{}", case.name);
        assert_eq!(sent[1].cause(), Some(WcCause::State));
        assert_eq!(state(&a), QpState::Err, "{}", case.name);
        let received = poll(&mut b.recv_cq);
        let causes = received.iter().map(|wc| (wc.status, wc.cause()));
        let expected = case.responder.iter().map(|&status| match status {
            WcStatus::WrFlushErr => (status, Some(WcCause::State)),
            _ => (status, Some(case.cause)),
        });
        assert!(causes.eq(expected), "{}: {received:?}", case.name);
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
fn rnr_retries_run_out() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_with(&clock, |attr| {
        attr.rnr_retry = attr.rnr_retry.map(|_| 2);
    });
    a.qp.post_send(Send::new(1).from(a.mr.slice(0..1))).unwrap();
    a.qp.post_send(Send::new(2).from(a.mr.slice(0..1))).unwrap();
    way::advance(&clock, Duration::from_micros(2 * 640 - 1));
    assert!(poll(&mut a.send_cq).is_empty());
    way::advance(&clock, Duration::from_micros(1));
    let ends = [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&mut a.send_cq), ends);
    assert_eq!((state(&a), state(&b)), (QpState::Err, QpState::Rts));
    // The second one was only flushed.
    let stats = a.qp.stats().wait().unwrap();
    assert_eq!((stats.rnr_naks, stats.failures, stats.timeouts), (3, 1, 0));
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
    way::advance(&clock, timeout * 4 - Duration::from_nanos(1));
    assert!(poll(&mut a.send_cq).is_empty());
    way::advance(&clock, Duration::from_nanos(1));
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(state(&a), QpState::Err);
    let stats = a.qp.stats().wait().unwrap();
    assert!(stats.timeouts >= 4 && stats.failures == 1, "{stats:?}");
}
