//! Multicast groups.

use hca_sim::extension::PacketCounters;
use verbs_core::{Attr, Av, Error, Lid, QpType, Qpn, Recv, Send, Why};

use crate::bed::{Bed, End, QKEY, Way, to};

fn post_receives(end: &mut End) {
    for wr_id in 0..4 {
        end.qp
            .post_recv(Recv::new(wr_id).into(end.mr.slice(0..200)))
            .unwrap();
    }
}

/// Goal: every attached queue pair gets a copy, at every port, and no other does.
#[test]
fn a_datagram_to_a_group_reaches_all_that_are_attached() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let mut ends = [0, 0, 1, 1].map(|number| bed.datagrams(number));
        ends.iter_mut().for_each(post_receives);
        let group = bed.group(1);
        let attached: Vec<_> = [0, 1, 2]
            .map(|n: usize| ends[n].qp.attach_mcast(group, Lid(0xc001)).wait().unwrap())
            .into();
        let there = to(Av::to_gid(1, 0, group), Qpn::MULTICAST, QKEY);
        let there = verbs_core::Datagram {
            av: Av {
                dlid: if way == Way::Loopback {
                    Lid(0xc001)
                } else {
                    Lid(0)
                },
                ..there.av
            },
            ..there
        };
        // A queue pair that is not attached may send; it does not learn what becomes of the datagram.
        ends[3]
            .qp
            .post_send(Send::new(9).inline(b"all").to(&there))
            .unwrap();
        for (n, expected) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
            let got = bed.poll(&mut ends[n]);
            assert_eq!(got.len(), expected, "{way:?}: queue pair {n}");
            assert!(got.iter().all(|wc| wc.src_qpn == ends[3].qp.qpn()));
        }
        // An attached queue pair receives its own datagrams.
        ends[0]
            .qp
            .post_send(Send::new(9).inline(b"me").to(&there))
            .unwrap();
        for (n, end) in ends[..3].iter_mut().enumerate() {
            assert_eq!(bed.poll(end).len(), 1, "{way:?}: queue pair {n}");
        }
        for mcast in attached {
            mcast.detach().wait().unwrap();
        }
        ends[3]
            .qp
            .post_send(Send::new(9).inline(b"nobody").to(&there))
            .unwrap();
        for end in &mut ends {
            assert_eq!(bed.poll(end).len(), 0, "{way:?}");
        }
    }
}

/// Goal: a queue pair that is attached twice gets one copy, it is in the group until both attachments are undone, and
/// then the port has left the group on the link too (IBTA vol. 1, 10.5.2.1). Method: the packets that arrive at the
/// port.
#[test]
fn two_attachments_make_one_copy_and_the_last_one_leaves_the_group() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
        let group = bed.group(1);
        let [first, second] = [(); 2].map(|()| b.qp.attach_mcast(group, Lid(0)).wait().unwrap());
        let there = to(Av::to_gid(1, 0, group), Qpn::MULTICAST, QKEY);
        // How many completions that makes, and how many packets arrive at the port.
        let mut send = || {
            post_receives(&mut b);
            let count = |end: &End| {
                let packets = end.device.call::<PacketCounters>(()).wait().unwrap();
                packets.received
            };
            let before = count(&b);
            a.qp.post_send(Send::new(9).inline(b"x").to(&there))
                .unwrap();
            let completions = bed.poll(&mut b).len();
            (completions, count(&b) - before)
        };
        assert_eq!(send(), (1, 1), "{way:?}: attached twice");
        second.detach().wait().unwrap();
        assert_eq!(send(), (1, 1), "{way:?}: attached once");
        first.detach().wait().unwrap();
        assert_eq!(send(), (0, 0), "{way:?}: detached");
    }
}

#[test]
fn a_queue_pair_can_keep_its_own_from_itself() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let mut a = bed.datagrams_of(0, |init| init.block_multicast_loopback());
        let mut b = bed.datagrams(0);
        let group = bed.group(2);
        let attached = [&a, &b].map(|end| end.qp.attach_mcast(group, Lid(0)).wait().unwrap());
        post_receives(&mut a);
        post_receives(&mut b);
        let there = to(Av::to_gid(1, 0, group), Qpn::MULTICAST, QKEY);
        a.qp.post_send(Send::new(9).inline(b"x").to(&there))
            .unwrap();
        assert_eq!(
            (bed.poll(&mut a).len(), bed.poll(&mut b).len()),
            (0, 1),
            "{way:?}"
        );
        b.qp.post_send(Send::new(9).inline(b"x").to(&there))
            .unwrap();
        assert_eq!(
            (bed.poll(&mut a).len(), bed.poll(&mut b).len()),
            (1, 1),
            "{way:?}"
        );
        drop(attached);
    }
}

#[test]
fn attachments_hold_the_queue_pair_and_are_counted() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let end = bed.datagrams(0);
        let attached = end.qp.attach_mcast(bed.group(3), Lid(0)).wait().unwrap();
        let Err(refused) = end.qp.destroy().wait() else {
            panic!("{way:?}: it is attached");
        };
        assert_eq!(refused.error, Error::Busy);
        let qp = refused.handle.unwrap();
        attached.detach().wait().unwrap();
        let mut all = Vec::new();
        for number in 0..=255 {
            all.push(qp.attach_mcast(bed.group(number), Lid(0)).wait().unwrap());
        }
        let other = match way {
            Way::V4 => std::net::Ipv4Addr::new(225, 1, 1, 1).into(),
            _ => std::net::Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 8, 1).into(),
        };
        let refused = qp.attach_mcast(other, Lid(0)).wait();
        let full = Error::Exhausted {
            attr: Attr::MaxMcastGrp,
            max: 256,
        };
        assert_eq!(refused.unwrap_err(), full);
        drop(all);
        // The same queue pair to one group, repeatedly.
        let attach = || qp.attach_mcast(bed.group(1), Lid(0)).wait();
        let all: Vec<_> = (0..64).map(|_| attach().unwrap()).collect();
        let attr = Attr::MaxMcast;
        assert_eq!(attach().unwrap_err(), Error::Exhausted { attr, max: 64 });
        drop(all);
        qp.attach_mcast(other, Lid(0)).wait().unwrap();
        let rc = bed.end(0, QpType::Rc, |init| init);
        let refused = rc.qp.attach_mcast(bed.group(1), Lid(0)).wait();
        let mismatch = Error::Mismatch {
            attr: Attr::QpType,
            why: Why::NotDatagram,
        };
        assert_eq!(refused.unwrap_err(), mismatch);
    }
}
