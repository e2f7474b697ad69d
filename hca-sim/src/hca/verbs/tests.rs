//! What a control verb on a queue pair keeps waiting.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::net::{IpAddr, Ipv4Addr};

use futures::executor::block_on;
use verbs_core::sync::{Arc, thread};
use verbs_core::{
    Access, Av, Cq, Device, Memory, Mr, Mtu, Path, Pd, Psn, Qp, QpAttr, QpInit, QpType, Recv, Send,
    Wc,
};

use crate::hca::Hca;
use crate::link::Udp;
use crate::qp::QueuePair;
use crate::{Loopback, connect};

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    _device: Device,
    inner: Arc<QueuePair>,
}

fn end(hca: &Arc<Hca>, qp_type: QpType) -> End {
    let device = hca.open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(64).wait().unwrap();
    let memory = Memory::alloc(4096).unwrap();
    let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
    let init = QpInit::of(qp_type, &cq, &cq);
    let qp = pd.create_qp(init).wait().unwrap();
    let inner = hca.port.link.lock().of(hca.port.lid, qp.qpn()).unwrap();
    End {
        qp,
        cq,
        mr,
        _pd: pd,
        _device: device,
        inner,
    }
}

/// Messages in both directions, each with its receive and both completions.
fn carry(ends: &mut [End; 2]) {
    for _ in 0..4 {
        let [from, to] = &mut *ends;
        let recv = Recv::new(1).into(to.mr.slice(0..64));
        to.qp.post_recv(recv).unwrap();
        let send = Send::new(2).from(from.mr.slice(0..64)).signaled();
        from.qp.post_send(send).unwrap();
        let mut missing = 2;
        while missing > 0 {
            for end in &mut *ends {
                let mut out = [Wc::default(); 4];
                let some = end.cq.poll(&mut out);
                assert!(some.iter().all(Wc::is_ok), "{some:?}");
                missing -= some.len();
            }
        }
        ends.swap(0, 1);
    }
}

/// Messages in both directions, each sent before there is a receive for it: the receive that is posted then calls the
/// sender's machine.
fn carry_late(ends: &mut [End; 2]) {
    for _ in 0..4 {
        let [from, to] = &mut *ends;
        let send = Send::new(2).from(from.mr.slice(0..64)).signaled();
        from.qp.post_send(send).unwrap();
        let mut out = [Wc::default(); 4];
        assert!(from.cq.poll(&mut out).is_empty(), "there is no receive");
        let recv = Recv::new(1).into(to.mr.slice(0..64));
        to.qp.post_recv(recv).unwrap();
        for end in &mut *ends {
            let some = end.cq.poll(&mut out);
            assert!(matches!(some, [wc] if wc.is_ok()), "{some:?}");
        }
        ends.swap(0, 1);
    }
}

/// Connected, except that the second end has not left RTR: the first message that it hears is an event.
fn connected_in_rtr(hcas: &[Arc<Hca>; 2], ends: &[End; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let path = Path {
            av: Av::to_lid(1, hcas[to].lid()),
            dest_qpn: ends[to].qp.qpn(),
            rq_psn: Psn::new(7),
            mtu: Mtu::B1024,
        };
        ends[from].qp.init(1, Access::REMOTE).wait().unwrap();
        ends[from].qp.ready_to_receive(&path).wait().unwrap();
    }
    ends[0].qp.ready_to_send(Psn::new(7)).wait().unwrap();
}

/// Messages to the second end, each placed by its poster but for the first.
fn carry_one_way(ends: &mut [End; 2]) {
    let [from, to] = ends;
    for number in 0..4 {
        let recv = Recv::new(1).into(to.mr.slice(0..64));
        to.qp.post_recv(recv).unwrap();
        let send = Send::new(2).from(from.mr.slice(0..64)).signaled();
        from.qp.post_send(send).unwrap();
        for end in [&mut *from, &mut *to] {
            let mut out = [Wc::default(); 4];
            let some = end.cq.poll(&mut out);
            assert!(matches!(some, [wc] if wc.is_ok()), "{number}: {some:?}");
        }
    }
}

/// A change that takes nothing away, and that the next post has to find.
fn change(end: &End) {
    let attr = QpAttr {
        min_rnr_timer: Some(7),
        ..QpAttr::default()
    };
    end.qp.modify(attr).wait().unwrap();
}

/// Carries messages on another thread while locks are held here. Whether that ends, without a look at a clock.
fn is_carried<H>(
    mut ends: [End; 2],
    held: H,
    carries: impl FnOnce(&mut [End; 2]) + std::marker::Send + 'static,
) -> bool {
    let worker = thread::spawn(move || {
        carries(&mut ends);
        ends
    });
    let in_time = (0..2_000_000).any(|_| {
        thread::yield_now();
        worker.is_finished()
    });
    drop(held);
    drop(worker.join().unwrap());
    in_time
}

fn on_loopback() -> [Arc<Hca>; 2] {
    let loopback = Loopback::with_seed(1);
    [1, 2].map(|_| Hca::on(&loopback).build())
}

/// Goal: no post and no poll of a queue pair whose messages are packets waits for a control verb that works on it (A3).
/// Method: while another thread posts and polls, the control locks of both ends are held; over UDP, and unreliable connections
/// on a loopback link.
#[test]
fn a_post_over_packets_waits_for_no_control_verb() {
    let over_udp = || {
        [1, 2].map(|last| {
            let address = IpAddr::V4(Ipv4Addr::new(127, 77, 0, last));
            Hca::over(Udp::bind(&[address]).unwrap()).build()
        })
    };
    for (what, hcas, qp_type) in [
        ("over UDP", over_udp(), QpType::Rc),
        ("packets on a loopback link", on_loopback(), QpType::Uc),
    ] {
        let mut ends = hcas.each_ref().map(|hca| end(hca, qp_type));
        let [a, b] = &mut ends;
        block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
        // The first messages find the peer, and what the modifies have changed.
        carry(&mut ends);
        let inner = ends.each_ref().map(|end| Arc::clone(&end.inner));
        let held = inner.each_ref().map(|qp| qp.control.lock());
        assert!(
            is_carried(ends, held, carry),
            "{what}: it waits for the lock"
        );
    }
}

/// Goal: on a loopback link, no post and no poll of a connection waits for a control verb, of this queue pair or of any other
/// (A3). Method: the lock of the link, under which all of them work, is held while another thread sends to receives that
/// wait, and to those that come later; first of all by a path that was made again, and after a modify. And to a peer in RTR,
/// whose first message is an event.
#[test]
fn a_post_on_a_loopback_link_waits_for_no_control_verb() {
    for carries in [carry, carry_late] {
        let hcas = on_loopback();
        let mut ends = hcas.each_ref().map(|hca| end(hca, QpType::Rc));
        let [a, b] = &mut ends;
        block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
        carry(&mut ends);
        ends.iter().for_each(change);
        // For a moment there is no port to send to, and the paths are made again.
        hcas[0].port_down();
        hcas[0].port_up();
        let link = Arc::clone(&hcas[0].port.link);
        let held = link.lock();
        assert!(is_carried(ends, held, carries), "it waits for the lock");
    }
    let hcas = on_loopback();
    let ends = hcas.each_ref().map(|hca| end(hca, QpType::Rc));
    connected_in_rtr(&hcas, &ends);
    let link = Arc::clone(&hcas[0].port.link);
    let held = link.lock();
    assert!(
        is_carried(ends, held, carry_one_way),
        "the first message waits for the lock"
    );
}
