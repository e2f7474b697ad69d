//! RoCEv2 over the machine's own UDP sockets: two HCAs of this process, on addresses of the loopback
//! interface that no other test uses.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod acknowledged;
mod ends;
mod late_round;
mod polled;
mod turns;
mod under_load;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::extension::PacketCounters;
use hca_sim::link::{LinkError, Udp};
use verbs_core::{
    Av, Datagram, Error, Lid, LinkLayer, Mtu, QpState, Qpn, Read, Recv, Send, Wc, WcStatus, Write,
};

use crate::ends::{
    End, PATIENCE, QKEY, datagrams, end, free, gid, host, next, pair, pattern, retry,
};

#[test]
fn every_operation_moves_every_size() {
    let (mut a, mut b) = pair(1);
    for (round, len) in [0, 1, 64, 4095, 4096, 4097, 61_440, 1 << 20, 8 << 20]
        .into_iter()
        .enumerate()
    {
        let sent = pattern(round as u8, len);
        a.mr.write(0, &sent).unwrap();
        let mut got = vec![0; len];
        a.qp.post_send(
            Write::new(1, b.mr.remote(64))
                .from(a.mr.slice(0..len))
                .signaled(),
        )
        .unwrap();
        let wc = next(&mut a.cq);
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success), "{len}");
        b.mr.read(64, &mut got).unwrap();
        assert_eq!(got, sent, "WRITE of {len}");

        b.mr.write(0, &vec![0; len]).unwrap();
        b.qp.post_recv(Recv::new(2).into(b.mr.slice(0..len.max(1))))
            .unwrap();
        a.qp.post_send(Send::new(3).from(a.mr.slice(0..len)).signaled())
            .unwrap();
        let wc = next(&mut b.cq);
        assert_eq!(
            (wc.wr_id, wc.status, wc.byte_len as usize),
            (2, WcStatus::Success, len)
        );
        assert_eq!(next(&mut a.cq).wr_id, 3);
        b.mr.read(0, &mut got).unwrap();
        assert_eq!(got, sent, "SEND of {len}");

        a.mr.write(0, &vec![0; len]).unwrap();
        a.qp.post_send(
            Read::new(4, b.mr.remote(0))
                .into(a.mr.slice(0..len))
                .signaled(),
        )
        .unwrap();
        let wc = next(&mut a.cq);
        assert_eq!((wc.wr_id, wc.status), (4, WcStatus::Success), "{len}");
        a.mr.read(0, &mut got).unwrap();
        assert_eq!(got, sent, "READ of {len}");
    }
}

#[test]
fn the_port_is_ethernet_and_its_gid_is_the_address() {
    let end = end(host(2, 1));
    let port = end.device.query_port(1).wait().unwrap();
    assert_eq!(port.link_layer, LinkLayer::Ethernet);
    assert_eq!(port.active_mtu, Mtu::B4096);
    assert_eq!((port.gid_tbl_len, port.lid.0), (1, 0));
    assert_eq!(IpAddr::from(port.gid), host(2, 1));
    let error = end.device.query_gid(1, 1).wait().err();
    assert!(
        matches!(error, Some(Error::Invalid { got: 1, max: 0, .. })),
        "{error:?}"
    );
    let counted = end.device.call::<PacketCounters>(()).wait().unwrap();
    assert_eq!((counted.received, counted.link.send_errors), (0, 0));
    let taken = Udp::bind(&[host(2, 1)]).err();
    assert!(matches!(taken, Some(LinkError::InUse { .. })), "{taken:?}");
}

#[test]
fn a_peer_that_is_gone_is_an_error_within_the_timeout() {
    let (mut a, b) = pair(3);
    drop(b);
    retry(&a.qp, 8, 3);
    a.qp.post_send(Send::new(1).inline(b"anybody?").signaled())
        .unwrap();
    assert_eq!(next(&mut a.cq).status, WcStatus::RetryExcErr);
    assert_eq!(a.qp.query().wait().unwrap().state, QpState::Err);
}

#[test]
fn both_ends_send_at_once_from_threads_of_their_own() {
    let (a, b) = pair(4);
    const MESSAGES: u64 = 2_000;
    let run = |mut end: End| {
        move || {
            let (mut sent, mut received, mut posted) = (0, 0, 0);
            for wr_id in 0..16 {
                end.qp
                    .post_recv(Recv::new(wr_id).into(end.mr.slice(0..256)))
                    .unwrap();
            }
            while sent < MESSAGES || received < MESSAGES {
                while posted < MESSAGES && posted < sent + 8 {
                    end.qp
                        .post_send(Send::new(1000).from(end.mr.slice(512..768)).signaled())
                        .unwrap();
                    posted += 1;
                }
                let wc = next(&mut end.cq);
                assert!(wc.is_ok(), "{wc:?}");
                if wc.wr_id == 1000 {
                    sent += 1;
                } else {
                    received += 1;
                    end.qp
                        .post_recv(Recv::new(wc.wr_id).into(end.mr.slice(0..256)))
                        .unwrap();
                }
            }
            // The peer may wait for the last acknowledgement, which only a living device repeats.
            end
        }
    };
    let threads = [a, b].map(|end| thread::spawn(run(end)));
    drop(threads.map(|thread| thread.join().unwrap()));
}

#[test]
fn an_address_is_free_again_when_its_device_has_gone() {
    for _ in 0..3 {
        let (mut a, b) = pair(5);
        a.qp.post_send(
            Write::new(1, b.mr.remote(0))
                .from(a.mr.slice(0..8))
                .signaled(),
        )
        .unwrap();
        assert!(next(&mut a.cq).is_ok());
        drop((a, b));
        let begun = Instant::now();
        while let Err(error) = Udp::bind(&[host(5, 1), host(5, 2)]) {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            thread::yield_now();
        }
    }
}

#[test]
fn datagrams_of_every_size_arrive_over_both_ip_versions() {
    let v6 = IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
    for (from, to) in [(host(31, 1), host(31, 2)), (v6, v6)] {
        let mut ends: Vec<End> = if from == to {
            vec![datagrams(from)]
        } else {
            vec![datagrams(to), datagrams(from)]
        };
        let there = Datagram::new(Av::to_gid(1, 0, gid(to)), ends[0].qp.qpn(), QKEY);
        let sender = ends.len() - 1;
        let src_qpn = ends[sender].qp.qpn();
        for (round, len) in [0, 1, 64, 1024, 4096].into_iter().enumerate() {
            let sent = pattern(round as u8, len);
            let end = &mut ends[sender];
            end.mr.write(8192, &sent).unwrap();
            end.qp
                .post_send(Send::new(1).from(end.mr.slice(8192..8192 + len)).to(&there))
                .unwrap();
            let wc = next(&mut ends[0].cq);
            assert_eq!(
                (wc.status, wc.byte_len as usize),
                (WcStatus::Success, 40 + len)
            );
            assert_eq!(wc.src_qpn, src_qpn);
            let mut got = vec![0; 40 + len];
            ends[0].mr.read(0, &mut got).unwrap();
            assert_eq!(got[40..], sent);
            let area = got[..40].try_into().unwrap();
            let back = Av::reverse(1, &wc, &area, 0).unwrap();
            assert_eq!(back.global.unwrap().dgid, gid(from));
        }
    }
}

/// Goal: the kernel's groups are joined and left; every member of a group receives its datagrams, the sender among
/// them.
#[test]
fn datagrams_to_a_group_reach_all_sockets_that_have_joined() {
    let group = IpAddr::V4(Ipv4Addr::new(239, 78, 32, 1));
    let mut ends = [1, 2, 3].map(|end| datagrams(host(32, end)));
    let there = Datagram::new(Av::to_gid(1, 0, gid(group)), Qpn::MULTICAST, QKEY);
    let attached = [0, 1].map(|end: usize| {
        block_on(async { ends[end].qp.attach_mcast(gid(group), Lid(0)).await.unwrap() })
    });
    for round in 0..2 {
        let sender = ends[2 * round].qp.qpn();
        ends[2 * round]
            .qp
            .post_send(Send::new(1).inline(b"all").to(&there))
            .unwrap();
        for end in &mut ends[..2] {
            let wc = next(&mut end.cq);
            assert_eq!(
                (wc.status, wc.byte_len, wc.src_qpn),
                (WcStatus::Success, 43, sender)
            );
        }
    }
    let [first, second] = attached;
    first.detach().wait().unwrap();
    ends[2]
        .qp
        .post_send(Send::new(1).inline(b"one").to(&there))
        .unwrap();
    assert_eq!(next(&mut ends[1].cq).byte_len, 43);
    assert!(ends[0].cq.poll(&mut [Wc::default()]).is_empty());
    second.detach().wait().unwrap();
}

/// Goal: the work requests of one call leave together, and one acknowledgement answers them all; what stands before one
/// that is refused leaves too. Method: counters of both links.
#[test]
fn a_batch_leaves_in_one_burst_and_is_acknowledged_once() {
    const BATCH: u64 = 16;
    let (mut a, mut b) = pair(34);
    let link = |end: &End| end.device.call::<PacketCounters>(()).wait().unwrap().link;
    let send = |n: u64, len: usize| Send::new(n).from(a.mr.slice(0..len)).signaled().wr;
    let expect = |b: &mut End, count| {
        for n in 0..count {
            let recv = Recv::new(n).into(b.mr.slice(0..64));
            b.qp.post_recv(recv).unwrap();
        }
    };
    expect(&mut b, BATCH);
    let wrs: Vec<_> = (0..BATCH).map(|n| send(n, 64)).collect();
    a.qp.send_queue().unwrap().post_batch(&wrs).unwrap();
    for n in 0..BATCH {
        assert_eq!(next(&mut b.cq).wr_id, n);
        let sent = next(&mut a.cq);
        assert_eq!((sent.wr_id, sent.status), (n, WcStatus::Success));
    }
    let (from, to) = (link(&a), link(&b));
    assert_eq!((from.packets_sent, from.gso_bursts), (BATCH, 1));
    assert_eq!((to.packets_received, to.packets_sent), (BATCH, 1));

    expect(&mut b, 2);
    let mut wrs: Vec<_> = (0..3).map(|n| send(n, 64)).collect();
    wrs[2].payload = verbs_core::Payload::Inline(&[0; 1000]);
    let refused = a.qp.send_queue().unwrap().post_batch(&wrs).unwrap_err();
    assert_eq!(refused.posted, 2);
    for n in 0..2 {
        assert_eq!(next(&mut a.cq).wr_id, n);
    }
}

/// See [`under_load::comes_and_goes`]. Another card has another address.
#[test]
fn a_device_arrives_and_goes_under_load_over_udp() {
    let last = AtomicU8::new(0);
    under_load::comes_and_goes(&|name| {
        let address = host(38, last.fetch_add(1, Relaxed) + 1);
        Hca::over(free(address)).name(name).build()
    });
}
