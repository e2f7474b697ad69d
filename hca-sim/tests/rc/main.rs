//! Reliable connections on a loopback link: what every operation does, and every status that it can
//! end in, at both ends.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::{Hca, Loopback, connect};
use verbs_core::{
    Access, Av, Cq, Device, Memory, Mr, Mtu, Path, Pd, Psn, Qp, QpAttr, QpInit, QpState, Wc,
    WcStatus,
};

mod faults;
mod operations;
mod states;

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
