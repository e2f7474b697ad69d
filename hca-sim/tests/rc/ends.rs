//! Both ends of a connection, for tests to which it does not matter what carries the messages: `way` decides that.

use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::{Builder, Hca};
use verbs_core::{Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, QpState, Wc, WcStatus};

use crate::way;

/// One end of a connection, with memory to which the peer has every right.
pub(crate) struct End {
    pub(crate) hca: Arc<Hca>,
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
}

/// An end on that HCA, with a queue pair made by `init`.
pub(crate) fn end_of(hca: Arc<Hca>, init: impl Fn(QpInit<'_>) -> QpInit<'_>) -> End {
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

/// Two ends that are not connected, on a clock that the test moves.
pub(crate) fn two_on(clock: &VirtualClock) -> (End, End) {
    two_made(clock, |builder| builder)
}

/// The same, on HCAs that `change` configures.
pub(crate) fn two_made(clock: &VirtualClock, change: fn(Builder) -> Builder) -> (End, End) {
    let [a, b] = way::hcas(clock, change);
    (end_of(a, |init| init), end_of(b, |init| init))
}

/// Both ends on a clock that the test moves.
pub(crate) fn pair_on(clock: &VirtualClock) -> (End, End) {
    let (mut a, mut b) = two_on(clock);
    way::connect(&mut a.qp, &mut b.qp);
    (a, b)
}

pub(crate) fn pair() -> (End, End) {
    pair_on(&VirtualClock::new())
}

pub(crate) fn poll(cq: &mut Cq) -> Vec<Wc> {
    way::settle();
    let mut out = [Wc::default(); 64];
    cq.poll(&mut out).to_vec()
}

/// The completions of a queue, as (`wr_id`, status).
pub(crate) fn statuses(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    poll(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

pub(crate) fn bytes(end: &End, at: usize, len: usize) -> Vec<u8> {
    way::settle();
    let mut out = vec![0; len];
    end.mr.read(at, &mut out).unwrap();
    out
}

pub(crate) fn state(end: &End) -> QpState {
    way::settle();
    end.qp.query().wait().unwrap().state
}
