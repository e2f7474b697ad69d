//! Ends: devices of this process with a queue pair each, and how tests wait.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::link::{LinkError, PacketLink, Udp};
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Cq, Device, Gid, Memory, Mr, Pd, Psn, QKey, Qp, QpAttr, QpInit, QpState, Recv, Wc,
};

/// How long a test waits for something that is bound to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MEMORY: usize = 9 << 20;
pub(crate) const QKEY: QKey = QKey(0x1234);

pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) _pd: Pd,
    pub(crate) device: Device,
}

pub(crate) fn host(test: u8, end: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 78, test, end))
}

/// A link at that address, which a device of an earlier attempt may be about to leave.
pub(crate) fn free(address: IpAddr) -> Udp {
    let start = Instant::now();
    loop {
        match Udp::bind(&[address]) {
            Err(LinkError::InUse { .. }) if start.elapsed() < Duration::from_secs(10) => {
                thread::yield_now();
            }
            bound => return bound.unwrap(),
        }
    }
}

pub(crate) fn end(address: IpAddr) -> End {
    end_over(free(address))
}

pub(crate) fn end_over(link: impl PacketLink + 'static) -> End {
    block_on(async {
        let device = Hca::over(link).open().await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let cq = device.create_cq(256).await.unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let memory = Memory::alloc(MEMORY).unwrap();
        let mr = pd.register(memory, access).await.unwrap();
        let init = QpInit::rc(&cq, &cq).sges(4, 4).inline(64);
        let qp = pd.create_qp(init).await.unwrap();
        End {
            qp,
            cq,
            mr,
            _pd: pd,
            device,
        }
    })
}

/// A queue pair for datagrams at that address, with receives posted.
pub(crate) fn datagrams(address: IpAddr) -> End {
    let mut this = end(address);
    block_on(async {
        this.qp = this
            ._pd
            .create_qp(QpInit::ud(&this.cq, &this.cq).inline(64))
            .await
            .unwrap();
        this.qp.init_datagram(1, QKEY).await.unwrap();
        this.qp.ready_to_receive_datagrams().await.unwrap();
        this.qp.ready_to_send(Psn::new(1)).await.unwrap();
    });
    for wr_id in 100..108 {
        this.qp
            .post_recv(Recv::new(wr_id).into(this.mr.slice(0..4200)))
            .unwrap();
    }
    this
}

pub(crate) fn gid(address: IpAddr) -> Gid {
    address.into()
}

pub(crate) fn pair(test: u8) -> (End, End) {
    let (mut a, mut b) = (end(host(test, 1)), end(host(test, 2)));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    // 8.6 s in all: the half second that it has otherwise is too little where a process waits for its processor.
    for end in [&a, &b] {
        retry(&end.qp, 18, 7);
    }
    (a, b)
}

/// Has a queue pair that is connected retry so often, each time after the time of that code.
pub(crate) fn retry(qp: &Qp, timeout: u8, count: u8) {
    let change = QpAttr {
        timeout: Some(timeout),
        retry_cnt: Some(count),
        ..QpAttr::to(QpState::Sqd)
    };
    for step in [QpAttr::to(QpState::Sqd), change, QpAttr::to(QpState::Rts)] {
        qp.modify(step).wait().unwrap();
    }
}

/// The next completion, for which the thread sleeps: no consumer polls, so the engine's thread receives.
pub(crate) fn next(cq: &mut Cq) -> Wc {
    loop {
        let mut one = [Wc::default()];
        if let [wc] = cq.poll(&mut one) {
            return *wc;
        }
        within_patience(cq.ready()).unwrap();
    }
}

/// As `block_on`, for [`PATIENCE`] at most.
pub(crate) fn within_patience<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (mut future, begun) = (pin!(future), Instant::now());
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = PATIENCE.checked_sub(begun.elapsed());
        thread::park_timeout(left.expect("a completion comes"));
    }
}

/// Spins until it is so.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not come");
        thread::yield_now();
    }
}

pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ seed)
        .collect()
}
