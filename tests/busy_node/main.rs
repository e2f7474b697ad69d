//! Busy nodes: real HCAs with their real services for management datagrams.
//!
//! Everything runs on one thread and in virtual time: what a handler does takes time of the node, which passes both for
//! the node and for the end that waits for it. So an answer is as late as the work that the node did before it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod front;
mod managed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use verbs_cm::UDP_QKEY;
use verbs_core::sync::Mutex;
use verbs_core::{
    Access, Arm, Armed, Cq, Device, Memory, Mr, Pd, Psn, Qp, QpInit, QpType, Qpn, Recv, Request,
    Verb, Wc,
};

/// One test at a time, in a process of their own: a thread that ends a grace period calls what has waited for it, so that
/// work of a node would be done by the thread of another test.
pub(crate) fn alone() -> impl Drop {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// How long the node's thread has worked in this turn.
#[derive(Clone, Default)]
pub(crate) struct Work {
    nanos: Arc<AtomicU64>,
    /// The clock that goes on while the node works; without one, time passes after its turn.
    meanwhile: Option<VirtualClock>,
}

impl Work {
    /// Work during which that clock goes on, and so does whatever is due for others.
    pub(crate) fn beside_others(clock: &VirtualClock) -> Self {
        Self {
            meanwhile: Some(clock.clone()),
            ..Self::default()
        }
    }

    pub(crate) fn spend(&self, time: Duration) {
        self.nanos.fetch_add(time.as_nanos() as u64, Relaxed);
        if let Some(clock) = &self.meanwhile {
            clock.advance(time);
        }
    }

    /// A turn begins.
    pub(crate) fn begin(&self) {
        self.nanos.store(0, Relaxed);
    }

    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed))
    }
}

/// A service of the node with that device, which works `each` for each datagram.
pub(crate) fn service(
    clock: &VirtualClock,
    device: &Device,
    work: &Work,
    each: Duration,
    called: impl Fn() + Send + 'static,
) -> Service {
    let pd = finish(clock, device.alloc_pd());
    let held: Arc<Mutex<Option<Served>>> = Arc::default();
    let (theirs, work) = (Arc::clone(&held), work.clone());
    let cq = device.create_cq(1024).handler(move || {
        called();
        if let Some(served) = &mut *theirs.lock() {
            served.serve(&work, each);
        }
    });
    let mut cq = finish(clock, cq);
    let memory = Memory::alloc(64).unwrap();
    let mr = finish(clock, pd.register(memory, Access::LOCAL_WRITE));
    let init = QpInit::of(QpType::Ud, &cq, &cq).depth(1, 512);
    let mut qp = finish(clock, pd.create_qp(init));
    datagrams(clock, &qp);
    for number in 0..512 {
        qp.post_recv(Recv::new(number).into(mr.all())).unwrap();
    }
    assert_eq!(cq.arm(Arm::Next), Armed::Empty);
    let qpn = qp.qpn();
    *held.lock() = Some(Served { cq, qp, mr });
    Service { qpn, held, _pd: pd }
}

pub(crate) struct Service {
    pub(crate) qpn: Qpn,
    held: Arc<Mutex<Option<Served>>>,
    _pd: Pd,
}

impl Service {
    /// Destroys its queue pair, without holding the lock: its handler may be called during the destroy.
    pub(crate) fn stop(&self) {
        let served = self.held.lock().take();
        drop(served);
    }
}

pub(crate) struct Served {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Served {
    fn serve(&mut self, work: &Work, each: Duration) {
        let mut out = [Wc::default(); 16];
        loop {
            for wc in self.cq.poll(&mut out).iter() {
                work.spend(each);
                self.qp
                    .post_recv(Recv::new(wc.wr_id).into(self.mr.all()))
                    .unwrap();
            }
            if self.cq.arm(Arm::Next) == Armed::Empty {
                return;
            }
        }
    }
}

/// Ready for datagrams.
pub(crate) fn datagrams(clock: &VirtualClock, qp: &Qp) {
    finish(clock, qp.init_datagram(1, UDP_QKEY));
    finish(clock, qp.ready_to_receive_datagrams());
    finish(clock, qp.ready_to_send(Psn::new(0)));
}

/// Advances time for commands until a future is ready.
pub(crate) fn poll_until<F: Future>(clock: &VirtualClock, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        clock.advance(Duration::from_micros(100));
    }
}

/// Advances time for commands until a request has completed.
pub(crate) fn finish<V>(clock: &VirtualClock, request: Request<'_, V>) -> V::Output
where
    V: Verb<Error = verbs_core::Error>,
{
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let _ = request.issue(move |result| *theirs.lock() = Some(result));
    loop {
        if let Some(result) = place.lock().take() {
            return result.unwrap();
        }
        clock.advance(Duration::from_micros(100));
    }
}
