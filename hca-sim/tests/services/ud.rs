//! Datagrams.

use std::net::Ipv4Addr;

use verbs_core::{
    Access, Av, Gid, Lid, Mtu, PostError, Psn, QKey, QpAttr, QpState, QpType, Qpn, Read, Recv,
    Remote, Send, WcFlags, WcOpcode, WcStatus,
};

use crate::bed::{Bed, End, QKEY, Way, to};

/// Bytes in front of every datagram that is received.
const GRH: usize = 40;

#[test]
fn a_datagram_tells_who_sent_it() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
        a.mr.write(0, b"across the link").unwrap();
        b.qp.post_recv(Recv::new(1).into(b.mr.slice(100..300)))
            .unwrap();
        let there = to(bed.address(1), b.qp.qpn(), QKEY);
        a.qp.post_send(
            Send::new(2)
                .from(a.mr.slice(0..15))
                .imm(0xabcd)
                .to(&there)
                .signaled(),
        )
        .unwrap();
        let [sent] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: one send");
        };
        assert_eq!((sent.wr_id, sent.status), (2, WcStatus::Success));
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: one receive");
        };
        assert_eq!((wc.wr_id, wc.opcode), (1, WcOpcode::Recv));
        assert_eq!(wc.byte_len as usize, GRH + 15);
        assert_eq!(wc.src_qpn, a.qp.qpn());
        assert_eq!(wc.immediate(), Some(0xabcd));
        assert_eq!(wc.flags.contains(WcFlags::GRH), way != Way::Loopback);
        let slid = if way == Way::Loopback {
            a.hca.lid()
        } else {
            Lid(0)
        };
        assert_eq!(wc.slid, slid);
        assert_eq!(b.bytes(140..155), b"across the link");
        let area = b.bytes(100..140);
        match way {
            Way::Loopback => {}
            Way::V4 => {
                assert_eq!(area[..20], [0; 20]);
                assert_eq!(area[20], 0x45);
                assert_eq!(area[32..36], Ipv4Addr::new(10, 0, 0, 1).octets());
                assert_eq!(area[36..40], Ipv4Addr::new(10, 0, 0, 2).octets());
            }
            Way::V6 => {
                assert_eq!(area[0] >> 4, 6);
                assert_eq!(area[8..24], a.hca.gid().0);
                assert_eq!(area[24..40], b.hca.gid().0);
            }
        }
        // The answer is sent to where the datagram came from.
        let back = Av::reverse(1, &wc, area[..].try_into().unwrap(), 0).unwrap();
        a.qp.post_recv(Recv::new(3).into(a.mr.slice(0..200)))
            .unwrap();
        let back = to(back, wc.src_qpn, QKEY);
        b.qp.post_send(Send::new(4).inline(b"yes").to(&back))
            .unwrap();
        let [wc] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: one answer");
        };
        assert_eq!((wc.wr_id, wc.src_qpn), (3, b.qp.qpn()));
    }
}

/// Goal: the receiver of a datagram sees the traffic class that it was sent with, in the header before it, and answers
/// with it.
#[test]
fn the_traffic_class_stands_before_the_payload() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
        let mut av = Av::to_gid(1, 0, b.hca.gid());
        av.global.as_mut().unwrap().traffic_class = 0xb8;
        b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..100)))
            .unwrap();
        let there = to(av, b.qp.qpn(), QKEY);
        a.qp.post_send(Send::new(2).inline(b"x").to(&there))
            .unwrap();
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: one receive");
        };
        let area: [u8; GRH] = b.bytes(0..GRH).try_into().unwrap();
        let tclass = match way {
            Way::V4 => area[21],
            Way::V6 | Way::Loopback => area[0] << 4 | area[1] >> 4,
        };
        assert_eq!(tclass, 0xb8, "{way:?}");
        let back = Av::reverse(1, &wc, &area, 0).unwrap();
        assert_eq!(back.global.unwrap().traffic_class, 0xb8, "{way:?}");
    }
}

/// Goal: on a loopback link, a global route makes a GRH, as on any subnet.
#[test]
fn a_global_route_makes_a_global_header() {
    let bed = Bed::new(Way::Loopback);
    let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..100)))
        .unwrap();
    let there = to(Av::to_gid(1, 0, b.hca.gid()), b.qp.qpn(), QKEY);
    a.qp.post_send(Send::new(2).inline(b"x").to(&there))
        .unwrap();
    let [wc] = bed.poll(&mut b)[..] else {
        panic!("one receive");
    };
    assert!(wc.flags.contains(WcFlags::GRH));
    let area = b.bytes(0..GRH);
    assert_eq!(area[6], 0x1b, "the next header is a BTH");
    assert_eq!(area[8..24], a.hca.gid().0);
    let area = area[..].try_into().unwrap();
    let back = Av::reverse(1, &wc, area, 0).unwrap();
    assert_eq!(back.global.unwrap().dgid, a.hca.gid());
    assert_eq!(back.dlid, a.hca.lid());
}

#[test]
fn what_may_not_come_in_is_dropped_and_nobody_is_told() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
        let here = bed.address(1);
        // Without a receive.
        let there = to(here, b.qp.qpn(), QKEY);
        let send = |a: &mut End, there: &verbs_core::Datagram| {
            a.qp.post_send(Send::new(9).inline(b"lost").to(there).signaled())
                .unwrap();
            let [sent] = bed.poll(a)[..] else {
                panic!("{way:?}: a datagram is sent, whatever becomes of it");
            };
            assert_eq!(sent.status, WcStatus::Success);
        };
        send(&mut a, &there);
        // With a receive that is too short by one byte; the next datagram finds it.
        b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..GRH + 3)))
            .unwrap();
        send(&mut a, &there);
        // With another key, to a queue pair that does not exist, to no address.
        send(&mut a, &to(here, b.qp.qpn(), QKey(7)));
        send(&mut a, &to(here, Qpn::new(0x77_7777), QKEY));
        let nowhere = Gid::from(Ipv4Addr::new(10, 0, 0, 99));
        send(&mut a, &to(Av::to_gid(1, 0, nowhere), b.qp.qpn(), QKEY));
        assert_eq!(bed.poll(&mut b), [], "{way:?}");
        a.qp.post_send(Send::new(3).inline(b"fit").to(&there))
            .unwrap();
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: the receive is still there");
        };
        assert_eq!((wc.wr_id, wc.byte_len as usize), (1, GRH + 3));
        let port = b.device.query_port(1).wait().unwrap();
        assert_eq!(port.qkey_viol_cntr, 1);
    }
}

/// A Q_Key with the high bit is the queue pair's own, whatever the work request says.
#[test]
fn a_controlled_key_is_replaced_by_the_senders() {
    let bed = Bed::new(Way::Loopback);
    let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..100)))
        .unwrap();
    let there = to(bed.address(1), b.qp.qpn(), QKey(0x8000_0001));
    a.qp.post_send(Send::new(2).inline(b"x").to(&there))
        .unwrap();
    assert_eq!(bed.poll(&mut b).len(), 1);
}

#[test]
fn a_post_that_makes_no_sense_is_refused() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let mut a = bed.datagrams(0);
        let there = to(bed.address(0), a.qp.qpn(), QKEY);
        let send = Send::new(1).inline(b"x");
        assert_eq!(a.qp.post_send(send), Err(PostError::NoDestination));
        let long = Send::new(1).from(a.mr.slice(0..4097)).to(&there);
        assert_eq!(a.qp.post_send(long), Err(PostError::TooLong { max: 4096 }));
        let mut read = Read::new(1, Remote::default()).into(a.mr.slice(0..8)).wr;
        read.dest = send.to(&there).wr.dest;
        assert_eq!(a.qp.post_send(read), Err(PostError::Unsupported));
        let local = to(Av::to_lid(1, Lid(3)), a.qp.qpn(), QKEY);
        let expected = if way == Way::Loopback {
            Ok(())
        } else {
            Err(PostError::Unreachable)
        };
        assert_eq!(a.qp.post_send(send.to(&local)), expected);
        // A destination is a mistake on a connection.
        let mut pair = bed.pair(QpType::Rc);
        let refused = pair[0].qp.post_send(send.to(&there));
        assert_eq!(refused, Err(PostError::Destination));
    }
}

/// Goal: memory that is not the sender's ends its send queue, and only that; a modify takes it out of SQE.
#[test]
fn a_send_queue_that_failed_can_be_mended() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
        for wr_id in 1..=2 {
            b.qp.post_recv(Recv::new(wr_id).into(b.mr.slice(0..100)))
                .unwrap();
        }
        a.qp.post_recv(Recv::new(3).into(a.mr.slice(0..100)))
            .unwrap();
        let there = to(bed.address(1), b.qp.qpn(), QKEY);
        let foreign = b.mr.slice(0..8);
        a.qp.post_send(Send::new(10).inline(b"good").to(&there).signaled())
            .unwrap();
        a.qp.post_send(Send::new(11).from(foreign).to(&there))
            .unwrap();
        let states: Vec<_> = bed
            .poll(&mut a)
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        assert_eq!(
            states,
            [(10, WcStatus::Success), (11, WcStatus::LocProtErr)]
        );
        assert_eq!(a.qp.query().wait().unwrap().state, QpState::Sqe);
        a.qp.post_send(Send::new(12).inline(b"flushed").to(&there))
            .unwrap();
        let [flushed] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: flushed at once");
        };
        assert_eq!((flushed.wr_id, flushed.status), (12, WcStatus::WrFlushErr));
        // Receives continue.
        let back = to(bed.address(0), a.qp.qpn(), QKEY);
        b.qp.post_send(Send::new(20).inline(b"still there?").to(&back))
            .unwrap();
        let [got] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: received in SQE");
        };
        assert_eq!((got.wr_id, got.status), (3, WcStatus::Success));
        a.qp.modify(QpAttr::to(QpState::Rts)).wait().unwrap();
        a.qp.post_send(Send::new(13).inline(b"again").to(&there))
            .unwrap();
        let got: Vec<_> = bed
            .poll(&mut b)
            .iter()
            .map(|wc| wc.wr_id)
            .filter(|id| *id < 3)
            .collect();
        assert_eq!(got, [1, 2], "{way:?}");
    }
}

/// Goal: a queue pair reaches itself and others on its own port.
#[test]
fn neighbours_on_one_port_reach_each_other() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(0));
        let here = bed.address(0);
        for (wr_id, end) in [(1, &mut a), (2, &mut b)] {
            end.qp
                .post_recv(Recv::new(wr_id).into(end.mr.slice(0..100)))
                .unwrap();
        }
        let (to_a, to_b) = (to(here, a.qp.qpn(), QKEY), to(here, b.qp.qpn(), QKEY));
        a.qp.post_send(Send::new(3).inline(b"b").to(&to_b)).unwrap();
        a.qp.post_send(Send::new(4).inline(b"a").to(&to_a)).unwrap();
        assert_eq!(bed.poll(&mut a).len(), 1, "{way:?}");
        assert_eq!(bed.poll(&mut b).len(), 1, "{way:?}");
    }
}

/// Goal: a shared receive is written to in the protection domain of its queue, not in that of the queue pair that takes
/// it, for datagrams and for connections.
#[test]
fn a_shared_receive_is_in_the_domain_of_its_queue() {
    for (way, qp_type) in Way::ALL
        .map(|way| [(way, QpType::Ud), (way, QpType::Rc)])
        .concat()
    {
        let bed = Bed::new(way);
        let mut owner = bed.end(1, QpType::Ud, |init| init);
        let mut srq = owner.pd.create_srq(8, 1).wait().unwrap();
        let other = owner.device.alloc_pd().wait().unwrap();
        let init = verbs_core::QpInit::of(qp_type, &owner.cq, &owner.cq).srq(&srq);
        let qp = other.create_qp(init).wait().unwrap();
        srq.post_recv(Recv::new(1).into(owner.mr.slice(0..200)))
            .unwrap();
        let send = Send::new(9).inline(b"mine");
        let mut a;
        let at = if qp_type == QpType::Ud {
            a = bed.datagrams(0);
            qp.init_datagram(1, QKEY).wait().unwrap();
            qp.ready_to_receive_datagrams().wait().unwrap();
            let there = to(bed.address(1), qp.qpn(), QKEY);
            a.qp.post_send(send.to(&there)).unwrap();
            GRH
        } else {
            a = bed.end(0, QpType::Rc, |init| init);
            for (from, number, peer) in [(&a.qp, 1, qp.qpn()), (&qp, 0, a.qp.qpn())] {
                let path = verbs_core::Path {
                    av: bed.address(number),
                    dest_qpn: peer,
                    rq_psn: Psn::new(7),
                    mtu: Mtu::B1024,
                };
                from.init(1, Access::REMOTE).wait().unwrap();
                from.ready_to_receive(&path).wait().unwrap();
                from.ready_to_send(Psn::new(7)).wait().unwrap();
            }
            a.qp.post_send(send).unwrap();
            0
        };
        let [wc] = bed.poll(&mut owner)[..] else {
            panic!("{way:?} {qp_type:?}: one receive");
        };
        assert_eq!(wc.status, WcStatus::Success, "{way:?} {qp_type:?}");
        assert_eq!(owner.bytes(at..at + 4), b"mine");
    }
}

/// Goal: shared receives serve datagrams, and the limit event reports that they run out.
#[test]
fn datagrams_take_receives_of_a_shared_queue() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let mut a = bed.datagrams(0);
        let mut owner = bed.end(1, QpType::Rc, |init| init);
        let mut srq = owner.pd.create_srq(8, 1).wait().unwrap();
        let qp = owner
            .pd
            .create_qp(verbs_core::QpInit::ud(&owner.cq, &owner.cq).srq(&srq))
            .wait()
            .unwrap();
        qp.init_datagram(1, QKEY).wait().unwrap();
        qp.ready_to_receive_datagrams().wait().unwrap();
        for wr_id in 1..=4 {
            srq.post_recv(Recv::new(wr_id).into(owner.mr.slice(0..200)))
                .unwrap();
        }
        srq.arm_limit(3).wait().unwrap();
        let there = to(bed.address(1), qp.qpn(), QKEY);
        for _ in 0..2 {
            a.qp.post_send(Send::new(9).inline(b"one").to(&there))
                .unwrap();
        }
        let got: Vec<_> = bed.poll(&mut owner).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(got, [1, 2], "{way:?}");
        let event = owner.device.next_event().wait().unwrap();
        assert_eq!(event.event, verbs_core::EventType::SrqLimitReached);
    }
}

/// Goal: a datagram that the oldest receive of a shared queue has no room for is dropped, and the receive stays for one
/// that fits. Method: room for the header and two bytes; three, then two.
#[test]
fn a_shared_receive_that_is_too_small_stays() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let mut a = bed.datagrams(0);
        let mut owner = bed.end(1, QpType::Rc, |init| init);
        let mut srq = owner.pd.create_srq(8, 1).wait().unwrap();
        let init = verbs_core::QpInit::ud(&owner.cq, &owner.cq).srq(&srq);
        let qp = owner.pd.create_qp(init).wait().unwrap();
        qp.init_datagram(1, QKEY).wait().unwrap();
        qp.ready_to_receive_datagrams().wait().unwrap();
        for wr_id in 1..=2 {
            let end = 40 + 2 * wr_id as usize;
            srq.post_recv(Recv::new(wr_id).into(owner.mr.slice(0..end)))
                .unwrap();
        }
        let there = to(bed.address(1), qp.qpn(), QKEY);
        for (sent, got) in [(3, None), (2, Some((1, 42))), (4, Some((2, 44)))] {
            a.qp.post_send(Send::new(9).inline(&[7; 4][..sent]).to(&there))
                .unwrap();
            let came = bed.poll(&mut owner);
            let came: Vec<_> = came.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
            assert_eq!(came, Vec::from_iter(got), "{way:?}: {sent} bytes");
        }
    }
}
