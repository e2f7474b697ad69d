//! Moves of connections through a subnet.

use std::time::Duration;

use verbs_core::{
    Atomic, EventType, MigState, Qp, QpAttr, QpInit, Read, Recv, Send, Wc, WcStatus, Write,
};

use crate::bed::{Bed, End, lids, pass};

const SOON: Duration = Duration::from_millis(1);
/// Longer than all retries of one path take, with all that they are put off.
const LATER: Duration = Duration::from_secs(2);

/// A connection with an alternate path, armed.
fn armed(bed: &Bed) -> [End; 2] {
    let mut ends = bed.hcas.each_ref().map(End::on);
    let [a, b] = &ends;
    a.connect(b, lids(0, 0));
    b.connect(a, lids(1, 0));
    assert_eq!(a.state(), MigState::Migrated, "as it begins");
    arm(bed, &mut ends, 1);
    ends
}

/// Loads the path of that number at both ends, and has each hear of the other.
fn arm(bed: &Bed, ends: &mut [End; 2], number: u8) {
    for (host, end) in ends.iter().enumerate() {
        end.load(lids(host, number));
        assert_eq!(end.state(), MigState::Rearm);
    }
    let [a, b] = ends;
    let before = b.counted();
    a.count(b, 1);
    pass(&bed.sim, SOON);
    assert_eq!(b.counted(), before + 1);
    assert_eq!(a.poll().len(), 1);
    for end in [a, b] {
        assert_eq!(end.state(), MigState::Armed);
        assert_eq!(end.moves(), []);
    }
}

/// Both have moved to the path of that number, and were told once.
fn have_moved(ends: &[End; 2], number: u8) {
    for (host, end) in ends.iter().enumerate() {
        let attr = end.info().attr;
        assert_eq!(attr.av, Some(lids(host, number)), "{host}");
        let other = attr.alt_path.map(|path| path.av());
        assert_eq!(other, Some(lids(host, 1 - number)), "the one that was left");
        assert_eq!(attr.path_mig_state, Some(MigState::Migrated));
        assert_eq!(end.moves(), [EventType::PathMig], "{host}");
    }
}

/// Goal: a cable that is pulled moves the connection, with READs, WRITEs, SENDs and atomics under way in both
/// directions: all end well and in order, and none is done twice. So does one that loses in one direction. And back.
#[test]
fn a_cable_that_fails_moves_the_connection() {
    for lost in [None, Some(0), Some(1)] {
        let bed = Bed::new();
        let mut ends = armed(&bed);
        let counted = ends.each_ref().map(End::counted);
        let recvs = 30;
        for end in &mut ends {
            for wr_id in 0..recvs {
                let place = end.mr.slice(4096..4100);
                end.qp
                    .post_recv(Recv::new(1000 + wr_id).into(place))
                    .unwrap();
            }
        }
        match lost {
            None => bed.pull(2),
            Some(from) => bed.lose(2, from, 1_000_000),
        }
        for host in 0..2 {
            let [one, other] = &mut ends;
            let (from, to) = if host == 0 {
                (one, other)
            } else {
                (other, one)
            };
            work(from, to, recvs);
        }
        pass(&bed.sim, LATER);
        for (host, end) in ends.iter_mut().enumerate() {
            let wcs = end.poll();
            assert!(wcs.iter().all(Wc::is_ok), "{lost:?} {host}: {wcs:?}");
            let of = |is_recv: bool| {
                let ids = wcs.iter().map(|wc| wc.wr_id);
                ids.filter(move |id| (*id >= 1000) == is_recv)
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                of(false),
                (0..KINDS * recvs).collect::<Vec<_>>(),
                "{lost:?} {host}"
            );
            assert_eq!(of(true), (1000..1000 + recvs).collect::<Vec<_>>());
            assert_eq!(end.counted(), counted[host] + recvs, "{lost:?} {host}");
        }
        have_moved(&ends, 1);
        if lost.is_none() {
            continue;
        }
        // The first path is mended, armed, and gone back to.
        bed.cut(2, false);
        arm(&bed, &mut ends, 0);
        bed.cut(3, true);
        let [a, b] = &mut ends;
        let before = b.counted();
        a.count(b, 20);
        pass(&bed.sim, LATER);
        assert_eq!((b.counted(), a.poll().len()), (before + 20, 20));
        have_moved(&ends, 0);
    }
}

/// Work requests of a round.
const KINDS: u64 = 4;

/// A SEND, a WRITE of three packets, a READ of three and an addition each, numbered.
fn work(from: &mut End, to: &End, rounds: u64) {
    for round in 0..rounds {
        let send = Send::new(KINDS * round)
            .from(from.mr.slice(64..68))
            .signaled();
        from.qp.post_send(send).unwrap();
        let write = Write::new(KINDS * round + 1, to.mr.remote(8192));
        let write = write.from(from.mr.slice(16384..16384 + 3000)).signaled();
        from.qp.post_send(write).unwrap();
        let read = Read::new(KINDS * round + 2, to.mr.remote(8192));
        let read = read.into(from.mr.slice(32768..32768 + 3000)).signaled();
        from.qp.post_send(read).unwrap();
        let add = Atomic::fetch_add(KINDS * round + 3, to.mr.remote(0), 1);
        from.qp
            .post_send(add.into(from.mr.slice(8..16)).signaled())
            .unwrap();
    }
}

/// Goal: a client moves its end, and the peer follows with the first packet that it gets, whichever side sends first.
#[test]
fn a_client_moves_the_connection() {
    for sender in [0, 1] {
        let bed = Bed::new();
        let mut ends = armed(&bed);
        ends[0].qp.modify(QpAttr::migrate()).wait().unwrap();
        assert_eq!(ends[0].state(), MigState::Migrated);
        assert_eq!(ends[1].state(), MigState::Armed, "it has not heard of it");
        let [one, other] = &mut ends;
        let (from, to) = if sender == 0 {
            (one, other)
        } else {
            (other, one)
        };
        let before = to.counted();
        from.count(to, 5);
        // No retry is needed for it.
        pass(&bed.sim, SOON);
        let done = from.poll();
        assert_eq!(done.len(), 5, "{sender}");
        assert!(done.iter().all(Wc::is_ok));
        assert_eq!(to.counted(), before + 5);
        have_moved(&ends, 1);
    }
}

/// Goal: an armed connection whose both paths are cut ends as any other, after the retries of both.
#[test]
fn two_paths_that_are_cut_end_the_connection() {
    let bed = Bed::new();
    let mut ends = armed(&bed);
    bed.pull(2);
    bed.pull(3);
    let [a, b] = &mut ends;
    a.count(b, 2);
    pass(&bed.sim, LATER);
    let statuses: Vec<WcStatus> = a.poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExcErr, WcStatus::WrFlushErr]);
    assert_eq!((a.moves(), b.moves()), (vec![EventType::PathMig], vec![]));
}

/// Goal: receiver-not-ready is no reason to move.
#[test]
fn a_peer_that_is_not_ready_moves_nothing() {
    let bed = Bed::new();
    let [mut a, mut b] = armed(&bed);
    a.qp.post_send(Send::new(1).from(a.mr.slice(64..68)).signaled())
        .unwrap();
    pass(&bed.sim, LATER);
    assert!(a.poll().is_empty());
    b.qp.post_recv(Recv::new(2).into(b.mr.slice(64..68)))
        .unwrap();
    pass(&bed.sim, LATER);
    assert!(a.poll().iter().all(Wc::is_ok));
    assert_eq!((a.state(), b.state()), (MigState::Armed, MigState::Armed));
}

/// Goal: an unreliable connection is moved by its client, and followed.
#[test]
fn an_unreliable_connection_moves() {
    let bed = Bed::new();
    let ends = bed
        .hcas
        .each_ref()
        .map(|hca| End::with(hca, |cq| QpInit::uc(cq, cq)));
    let [mut a, mut b] = ends;
    a.connect(&b, lids(0, 0));
    b.connect(&a, lids(1, 0));
    for (host, end) in [&a, &b].into_iter().enumerate() {
        end.load(lids(host, 1));
    }
    let say = |from: &mut End, to: &mut End| {
        to.qp
            .post_recv(Recv::new(1).into(to.mr.slice(0..64)))
            .unwrap();
        from.qp
            .post_send(Send::new(2).from(from.mr.slice(64..80)))
            .unwrap();
        pass(&bed.sim, SOON);
        to.poll()
            .iter()
            .filter(|wc| wc.wr_id == 1 && wc.is_ok())
            .count()
    };
    assert_eq!((say(&mut a, &mut b), say(&mut b, &mut a)), (1, 1));
    assert_eq!((a.state(), b.state()), (MigState::Armed, MigState::Armed));
    a.qp.modify(QpAttr::migrate()).wait().unwrap();
    assert_eq!((say(&mut a, &mut b), say(&mut b, &mut a)), (1, 1));
    have_moved(&[a, b], 1);
}

/// Goal: a queue pair that goes through RESET has no alternate path.
#[test]
fn a_reset_forgets_the_path() {
    let bed = Bed::new();
    let [a, _b] = armed(&bed);
    a.qp.modify(QpAttr::to(verbs_core::QpState::Reset))
        .wait()
        .unwrap();
    let attr = Qp::query(&a.qp).wait().unwrap().attr;
    assert_eq!((attr.alt_path, attr.path_mig_state), (None, None));
}
