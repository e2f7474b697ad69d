//! Ports with several addresses.

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::link::Cable;
use verbs_core::{Access, Av, Gid, Mtu, Path, Psn, QpType, Recv, Send, WcStatus};

use crate::bed::{Bed, End, QKEY, Way, to};

const GRH: usize = 40;

/// Two HCAs with two addresses each.
fn bed(way: Way) -> Bed {
    let clock = VirtualClock::new();
    let [near, far] = [[1, 3], [2, 4]].map(|hosts| hosts.map(|number| way.host(number)));
    let (a, b) = Cable::new().plug(&near, &far);
    let hcas = [a, b].map(|port| Hca::over(port).clock(clock.clone()).build());
    Bed::of(way, hcas, clock)
}

fn gid(end: &End, index: u16) -> Gid {
    end.device.query_gid(1, index).wait().unwrap()
}

/// Goal: a datagram leaves from the address whose index its address vector names, and for the address that it names; its
/// receiver finds both before the message.
#[test]
fn datagrams_leave_from_the_address_that_is_named() {
    for way in [Way::V4, Way::V6] {
        let bed = bed(way);
        let (mut a, mut b) = (bed.datagrams(0), bed.datagrams(1));
        for (from, at) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..100)))
                .unwrap();
            let (source, target) = (gid(&a, from), gid(&b, at));
            let there = to(Av::to_gid(1, from, target), b.qp.qpn(), QKEY);
            a.qp.post_send(Send::new(2).inline(b"x").to(&there))
                .unwrap();
            let wcs = bed.poll(&mut b);
            assert_eq!(wcs.len(), 1, "{way:?} {from} {at}");
            let area = b.bytes(0..GRH);
            let addresses = match way {
                Way::V6 => [&area[8..24], &area[24..40]],
                _ => [&area[32..36], &area[36..40]],
            };
            let len = addresses[0].len();
            let expected = [&source.0[16 - len..], &target.0[16 - len..]];
            assert_eq!(addresses, expected, "{way:?} {from} {at}");
        }
    }
}

/// Goal: the same for both directions of a connection. Method: each end takes packets from the address only that its
/// path names, so that messages and acknowledgements from another one would be lost.
#[test]
fn connections_keep_to_the_addresses_of_their_paths() {
    for way in [Way::V4, Way::V6] {
        let bed = bed(way);
        for (near, far) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let [mut a, mut b] = [0, 1].map(|number| bed.end(number, QpType::Rc, |init| init));
            let ways = [
                (Av::to_gid(1, near, gid(&b, far)), b.qp.qpn()),
                (Av::to_gid(1, far, gid(&a, near)), a.qp.qpn()),
            ];
            for (end, (av, dest_qpn)) in [&a, &b].into_iter().zip(ways) {
                let path = Path {
                    av,
                    dest_qpn,
                    rq_psn: Psn::new(7),
                    mtu: Mtu::B1024,
                };
                end.qp.init(1, Access::empty()).wait().unwrap();
                end.qp.ready_to_receive(&path).wait().unwrap();
                end.qp.ready_to_send(Psn::new(7)).wait().unwrap();
            }
            b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..100)))
                .unwrap();
            a.qp.post_send(Send::new(2).inline(b"x").signaled())
                .unwrap();
            let ends = [bed.poll(&mut a), bed.poll(&mut b)];
            for (wcs, wr_id) in ends.iter().zip([2, 1]) {
                let statuses: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
                let what = format!("{way:?} {near} {far}");
                assert_eq!(statuses, [(wr_id, WcStatus::Success)], "{what}");
            }
        }
    }
}
